"""Pools without a reader: items go in, and results of workers come out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.petastorm.workers_pool import EmptyResultError
from penstock.petastorm.workers_pool.dummy_pool import DummyPool
from penstock.petastorm.workers_pool.process_pool import ProcessPool
from penstock.petastorm.workers_pool.thread_pool import ThreadPool
from penstock.petastorm.workers_pool.ventilator import ConcurrentVentilator
from penstock.petastorm.workers_pool.worker_base import WorkerBase

POOLS: dict[str, Any] = {
    "dummy": DummyPool,
    "thread": lambda: ThreadPool(3),
    "one that waits": lambda: ThreadPool(4, results_queue_size=1),
    "process": lambda: ProcessPool(2),
}


class Twice(WorkerBase):
    """A worker that publishes each number twice, but 7 not at all."""

    def process(self, *args: Any, **kargs: Any) -> None:
        """Publish the results of one number."""
        (number,) = (*args, *kargs.values())
        if number == self.args:
            raise KeyError("the one that fails")
        for _ in range(0 if number == 7 else 2):
            self.publish_func(number)


def drained(pool: Any) -> list[int]:
    """Return all results of a pool."""
    found = []
    while True:
        try:
            found.append(pool.get_results())
        except EmptyResultError:
            return found


@pytest.mark.parametrize("name", POOLS)
def test_results_come_in_the_order_of_the_items(name: str) -> None:
    """Results come in the order of the items, then EmptyResultError is raised. A pool cannot be started again."""
    pool = POOLS[name]()
    pool.start(Twice)
    for number in range(12):
        pool.ventilate(number)

    found = drained(pool)
    pool.stop()
    pool.join()

    assert found == [number for number in range(12) for _ in range(2) if number != 7]
    with pytest.raises(EmptyResultError):
        pool.get_results()
    error = rf"{type(pool).__name__}\({pool.workers_count}\) cannot be reused! stop_event set\? True\. Make another pool\."
    with pytest.raises(RuntimeError, match=error):
        pool.start(Twice)


@pytest.mark.parametrize("name", POOLS)
def test_an_error_of_a_worker_is_raised_by_each_call(name: str) -> None:
    """Each request for results raises the error of a worker, with its own type."""
    pool = POOLS[name]()
    pool.start(Twice, 1)
    for number in range(5):
        pool.ventilate(n=number)

    for _ in range(2):
        with pytest.raises(KeyError, match="the one that fails"):
            [pool.get_results() for _ in range(9)]
    pool.stop()
    pool.join()


@pytest.mark.parametrize("name", POOLS)
def test_a_ventilator_repeats_its_items(name: str) -> None:
    """A ventilator repeats its items `iterations` times. None repeats them until it is stopped."""
    pool = POOLS[name]()
    items = [{"n": number} for number in range(4)]
    pool.start(Twice, None, ConcurrentVentilator(pool.ventilate, items, iterations=3, max_ventilation_queue_size=2))
    found = drained(pool)
    pool.stop()
    pool.join()

    assert found == [number for _ in range(3) for number in range(4) for _ in range(2)]

    endless = POOLS[name]()
    endless.start(Twice, None, ConcurrentVentilator(endless.ventilate, items, iterations=None))
    assert [endless.get_results() for _ in range(100)] == (found * 5)[:100]
    endless.stop()
    endless.join()


@pytest.mark.parametrize("name", POOLS)
def test_the_number_of_items_in_progress_is_limited(name: str) -> None:
    """An item is in progress until its results are taken, so workers do not run ahead of the consumer."""
    pool = POOLS[name]()
    given = threading.Semaphore(0)

    def give(n: int) -> None:
        pool.ventilate(n)
        given.release()

    ventilator = ConcurrentVentilator(give, [{"n": 10 + number} for number in range(50)], max_ventilation_queue_size=3)
    pool.start(Twice, None, ventilator)
    for _ in range(3):
        assert given.acquire(timeout=60)
    first = [pool.get_results() for _ in range(3)]  # 10 is done, and the second result of 11 is not taken yet
    assert given.acquire(timeout=60)
    ventilator.stop()
    rest = drained(pool)
    pool.stop()
    pool.join()

    assert first == [10, 10, 11]
    assert rest == [11, 12, 12, 13, 13]


def test_a_running_ventilator_cannot_be_reset() -> None:
    """Resetting a ventilator that still has items raises NotImplementedError. One that gave all its items is completed."""
    given: list[int] = []
    done = threading.Event()

    def take(n: int) -> None:
        given.append(n)
        if len(given) in (6, 9):
            done.set()

    first = ConcurrentVentilator(take, [{"n": 0}], iterations=None, max_ventilation_queue_size=1)
    first.start()
    with pytest.raises(NotImplementedError, match="while ventilating is not supported"):
        first.reset()
    first.stop()
    given.clear()

    items = [{"n": number} for number in range(3)]
    ventilator = ConcurrentVentilator(take, items, 2, max_ventilation_queue_size=20)
    ventilator.start()
    assert done.wait(60)
    ventilator.stop()
    assert ventilator.completed()
    assert given == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("seed", [0, 5])
def test_a_seed_gives_the_same_order_again(seed: int) -> None:
    """The same seed gives the same order, which differs between iterations. 0 is a valid seed."""
    found = []
    for _ in range(2):
        pool = DummyPool()
        items = [{"n": 10 + number} for number in range(20)]
        pool.start(Twice, None, ConcurrentVentilator(pool.ventilate, items, 2, randomize_item_order=True, random_seed=seed))
        found.append(drained(pool)[::2])
        pool.stop()

    assert found[0] == found[1]
    assert sorted(found[0][:20]) == sorted(found[0][20:]) == list(range(10, 30))
    assert found[0][:20] != found[0][20:]


def test_invalid_arguments_of_a_ventilator_raise() -> None:
    """Items must be a list of dicts, and `iterations` a positive integer or None."""
    for times in (0, -1, 1.5):
        with pytest.raises(ValueError, match="iterations must be positive integer or None"):
            ConcurrentVentilator(print, [], times)
    for items in (({"n": 1},), [1]):
        with pytest.raises(ValueError, match="items_to_ventilate must be a list of dicts"):
            ConcurrentVentilator(print, items)


def test_pools_have_diagnostics() -> None:
    """The diagnostics of pools have Petastorm's keys."""
    processes = ProcessPool(1, zmq_copy_buffers=False)

    assert DummyPool().diagnostics == {}
    assert DummyPool().workers_count == 1
    assert ThreadPool(4).diagnostics == {"output_queue_size": 0}
    assert processes.diagnostics == {
        "items_consumed": 0,
        "items_produced": 0,
        "items_inprocess": 0,
        "zmq_copy_buffers": False,
    }


class Where(WorkerBase):
    """A worker that publishes the id of its process."""

    def process(self, *args: Any, **kargs: Any) -> None:
        """Publish the process id."""
        del args, kargs
        self.publish_func(os.getpid())


class Failing(WorkerBase):
    """A worker that fails on each item."""

    def process(self, *args: Any, **kargs: Any) -> None:
        """Fail."""
        raise KeyError("never", args, kargs)


def test_start_waits_for_the_worker_processes() -> None:
    """When `start` returns, all worker processes run, and each worker knows the id of its process."""
    pool = ProcessPool(2)
    pool.start(Where)
    known = {worker.pid for worker in pool._workers}
    for _ in range(6):
        pool.ventilate()
    found = set(drained(pool))
    pool.stop()
    pool.join()

    assert len(known) == 2
    assert os.getpid() not in known
    assert found <= known


class Unmade(WorkerBase):
    """A worker that cannot be constructed."""

    def __init__(self, worker_id: int, publish_func: Any, args: Any) -> None:
        """Fail."""
        super().__init__(worker_id, publish_func, args)
        raise KeyError("unmade")

    def process(self, *args: Any, **kargs: Any) -> None:
        """Do nothing."""


def test_start_raises_if_a_worker_cannot_be_constructed(capfd: pytest.CaptureFixture[str]) -> None:
    """`start` raises RuntimeError and leaves no threads. The worker process prints the reason to standard error."""
    pool, before = ProcessPool(2), set(threading.enumerate())

    with pytest.raises(RuntimeError):
        pool.start(Unmade)

    assert "KeyError: 'unmade'" in capfd.readouterr().err
    assert set(threading.enumerate()) <= before


ORPHANS = """
import multiprocessing, os, signal, sys
sys.path.insert(0, sys.argv[1])
from test_pools import ProcessPool, Where


def begin():
    pool = ProcessPool(2)
    pool.start(Where)
    print(*(worker.pid for worker in pool._workers), flush=True)
    return pool


if __name__ == "__main__":
    if sys.argv[2] == "child":
        child = multiprocessing.get_context("spawn").Process(target=begin)
        child.start()
        child.join()
        sys.exit(child.exitcode)
    pool = begin()
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "ended", "child"])
def test_worker_processes_end_with_their_parent(tmp_path: Path, how: str) -> None:
    """Worker processes end with their parent process, however it ends, and also if the pool was not stopped."""
    script = tmp_path / "main.py"
    script.write_text(ORPHANS)

    # The workers inherit the pipe, so it ends when the last of them has ended.
    done = subprocess.run(
        [sys.executable, script, Path(__file__).parent, how], stdout=subprocess.PIPE, text=True, timeout=120, check=False
    )

    assert len(done.stdout.split()) == 2
    assert done.returncode == (-signal.SIGKILL if how == "killed" else 0)


def test_a_process_pool_without_working_workers_accepts_no_items() -> None:
    """If all worker processes failed, `ventilate` raises RuntimeError instead of waiting. The first error is its cause."""
    pool = ProcessPool(2)
    pool.start(Failing)
    for _ in range(2):
        pool.ventilate()
    while pool._failed < 2:
        pass

    with pytest.raises(RuntimeError, match="All 2 workers of this ProcessPool have failed, one with KeyError") as error:
        pool.ventilate()
    with pytest.raises(KeyError, match="never"):
        pool.get_results()
    pool.stop()
    pool.join()

    assert isinstance(error.value.__cause__, KeyError)


def test_a_thread_pool_accepts_items_after_its_workers_failed() -> None:
    """`ventilate` does not raise the error of a worker thread; `get_results` does."""
    pool = ThreadPool(2)
    pool.start(Failing)
    for _ in range(50):
        pool.ventilate()

    with pytest.raises(KeyError, match="never"):
        pool.get_results()
    pool.stop()
    pool.join()


@pytest.mark.parametrize(("size", "waiting"), [(2, 10), (50, 50), (51, 50)])
def test_the_results_that_wait_are_limited_for_each_worker(size: int, waiting: int) -> None:
    """A worker has at most `results_queue_size` divided by the workers, and at least five, results that wait."""
    pool = ThreadPool(2, results_queue_size=size)
    full = threading.Semaphore(0)

    class Counted(WorkerBase):
        def process(self, *args: Any, **kargs: Any) -> None:
            del args, kargs
            self.publish_func(0)
            full.release()

    pool.start(Counted)
    for _ in range(200):
        pool.ventilate()
    for _ in range(waiting):
        assert full.acquire(timeout=60)

    assert pool.results_qsize() in (waiting, waiting + 1)  # the result that is next in order may exceed the limit
    pool.stop()
    pool.join()
