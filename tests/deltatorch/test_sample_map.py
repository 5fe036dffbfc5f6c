"""How threads make samples: one after the other where each takes microseconds, and at once where each takes long."""

from __future__ import annotations

import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("torch")
samples = pytest.importorskip("penstock.deltatorch._sample_map")

pytestmark = pytest.mark.torch


def slowly() -> str:
    """Take longer than a row may that does not take long."""
    until = time.perf_counter() + 2 * samples.SLOW_ROW_SECONDS
    while time.perf_counter() < until:
        pass
    return "made"


def test_what_takes_microseconds_is_done_by_one_thread_at_a_time() -> None:
    """No two threads are inside at once."""
    pace, inside, most = samples.AdaptiveLock(), [0], [0]

    def work() -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        inside[0] -= 1

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(pace.run, work, 1000) for _ in range(200)]:
            done.result()

    assert most == [1]


def test_what_takes_long_is_done_by_several_threads_at_once() -> None:
    """After a few batches of which each row took long, two threads meet inside; in another process it begins anew."""
    pace = samples.AdaptiveLock()
    found = [pace.run(slowly, 1) for _ in range(samples.SLOW_BATCHES)]
    meeting = threading.Barrier(2, timeout=30)
    with ThreadPoolExecutor(2) as pool:
        met = [done.result() for done in [pool.submit(pace.run, meeting.wait, 1) for _ in range(2)]]

    assert found == ["made"] * samples.SLOW_BATCHES
    assert sorted(met) == [0, 1]
    assert pickle.loads(pickle.dumps(pace)).run(lambda: 5, 1) == 5  # noqa: S301 - pickled right here


def test_what_goes_wrong_gives_up_the_turn() -> None:
    """The next one goes on."""
    pace = samples.AdaptiveLock()

    with pytest.raises(ZeroDivisionError):
        pace.run(lambda: 1 / 0, 1)
    assert pace.run(lambda: 2, 1) == 2
