"""`AdaptiveLock` lets threads make fast samples one after the other, and slow samples in parallel."""

from __future__ import annotations

import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("torch")
samples = pytest.importorskip("penstock.deltatorch._sample_map")

pytestmark = pytest.mark.torch


def run_slowly() -> str:
    """Take longer than the time from which a row counts as slow."""
    until = time.perf_counter() + 2 * samples.SLOW_ROW_SECONDS
    while time.perf_counter() < until:
        pass
    return "made"


def test_fast_functions_run_in_one_thread_at_a_time() -> None:
    """Fast functions never run in two threads at the same time."""
    lock, inside, most = samples.AdaptiveLock(), [0], [0]

    def work() -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        inside[0] -= 1

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(lock.run, work, 1000) for _ in range(200)]:
            done.result()

    assert most == [1]


def test_slow_functions_run_in_several_threads_at_once() -> None:
    """After a few slow batches, two threads run functions at the same time. A pickled lock can be used."""
    lock = samples.AdaptiveLock()
    found = [lock.run(run_slowly, 1) for _ in range(samples.SLOW_BATCHES)]
    barrier = threading.Barrier(2, timeout=30)
    with ThreadPoolExecutor(2) as pool:
        positions = [done.result() for done in [pool.submit(lock.run, barrier.wait, 1) for _ in range(2)]]

    assert found == ["made"] * samples.SLOW_BATCHES
    assert sorted(positions) == [0, 1]
    assert pickle.loads(pickle.dumps(lock)).run(lambda: 5, 1) == 5  # noqa: S301 - pickled right here


def test_an_error_releases_the_lock() -> None:
    """After a function that raises an error, the next function runs."""
    lock = samples.AdaptiveLock()

    with pytest.raises(ZeroDivisionError):
        lock.run(lambda: 1 / 0, 1)
    assert lock.run(lambda: 2, 1) == 2
