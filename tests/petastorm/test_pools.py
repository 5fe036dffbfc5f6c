"""Pools that somebody drives without a reader: items go in, and what workers make of them comes out."""

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
    """Makes two results of each number, and none of 7."""

    def process(self, *args: Any, **kargs: Any) -> None:
        """Publish them."""
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
    """Whoever works on them, and whatever waits; then there are no more."""
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
    told = rf"{type(pool).__name__}\({pool.workers_count}\) cannot be reused! stop_event set\? True\. Make another pool\."
    with pytest.raises(RuntimeError, match=told):
        pool.start(Twice)


@pytest.mark.parametrize("name", POOLS)
def test_an_error_of_a_worker_is_raised_again_and_again(name: str) -> None:
    """As what it was."""
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
def test_a_ventilator_gives_items_some_times(name: str) -> None:
    """No more of them at once than may be under way; without end until it is stopped."""
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
def test_no_more_items_are_under_way_than_were_asked_for(name: str) -> None:
    """An item is under way until its results were taken, so nothing is worked on that nobody has asked for."""
    pool = POOLS[name]()
    given = threading.Semaphore(0)

    def give(n: int) -> None:
        pool.ventilate(n)
        given.release()

    ventilator = ConcurrentVentilator(give, [{"n": 10 + number} for number in range(50)], max_ventilation_queue_size=3)
    pool.start(Twice, None, ventilator)
    for _ in range(3):
        assert given.acquire(timeout=60)
    first = [pool.get_results() for _ in range(3)]  # the second result of 11 waits, and 10 is done
    assert given.acquire(timeout=60)
    ventilator.stop()
    rest = drained(pool)
    pool.stop()
    pool.join()

    assert first == [10, 10, 11]
    assert rest == [11, 12, 12, 13, 13]


def test_a_ventilator_begins_anew_when_all_was_given() -> None:
    """And not before."""
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
def test_the_order_of_a_seed_is_the_same_again(seed: int) -> None:
    """Another one each time, and 0 is a seed."""
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


def test_what_cannot_be_given_is_refused() -> None:
    """Items are dicts, and times a positive number or without end."""
    for times in (0, -1, 1.5):
        with pytest.raises(ValueError, match="iterations must be positive integer or None"):
            ConcurrentVentilator(print, [], times)
    for items in (({"n": 1},), [1]):
        with pytest.raises(ValueError, match="items_to_ventilate must be a list of dicts"):
            ConcurrentVentilator(print, items)


def test_pools_tell_what_is_going_on() -> None:
    """Under the names that Petastorm has for it."""
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
    """Tells which process works."""

    def process(self, *args: Any, **kargs: Any) -> None:
        """Publish its number."""
        del args, kargs
        self.publish_func(os.getpid())


class Failing(WorkerBase):
    """Makes nothing of anything."""

    def process(self, *args: Any, **kargs: Any) -> None:
        """Fail."""
        raise KeyError("never", args, kargs)


def test_processes_are_there_when_the_start_returns() -> None:
    """So that the first item need not wait for them; each worker knows its process."""
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
    """Cannot be made."""

    def __init__(self, worker_id: int, publish_func: Any, args: Any) -> None:
        """Fail."""
        super().__init__(worker_id, publish_func, args)
        raise KeyError("unmade")

    def process(self, *args: Any, **kargs: Any) -> None:
        """Do nothing."""


def test_workers_that_cannot_be_made_end_the_start(capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing is left behind, and the reason is on the standard error of the process."""
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
def test_processes_end_with_the_one_that_started_them(tmp_path: Path, how: str) -> None:
    """However that ends, and though nobody stopped the pool."""
    script = tmp_path / "main.py"
    script.write_text(ORPHANS)

    # The workers inherit the pipe, so it ends when the last of them has ended.
    done = subprocess.run(
        [sys.executable, script, Path(__file__).parent, how], stdout=subprocess.PIPE, text=True, timeout=120, check=False
    )

    assert len(done.stdout.split()) == 2
    assert done.returncode == (-signal.SIGKILL if how == "killed" else 0)


def test_a_pool_of_processes_that_all_failed_takes_no_more_items() -> None:
    """They would wait without end; what went wrong first is the cause."""
    pool = ProcessPool(2)
    pool.start(Failing)
    for _ in range(2):
        pool.ventilate()
    while pool._failed < 2:
        pass

    with pytest.raises(RuntimeError, match="All 2 workers of this ProcessPool have failed, one with KeyError") as told:
        pool.ventilate()
    with pytest.raises(KeyError, match="never"):
        pool.get_results()
    pool.stop()
    pool.join()

    assert isinstance(told.value.__cause__, KeyError)


def test_a_pool_of_threads_takes_items_though_its_workers_failed() -> None:
    """Whoever asks for results gets the error."""
    pool = ThreadPool(2)
    pool.start(Failing)
    for _ in range(50):
        pool.ventilate()

    with pytest.raises(KeyError, match="never"):
        pool.get_results()
    pool.stop()
    pool.join()


@pytest.mark.parametrize(("size", "waiting"), [(2, 10), (50, 50), (51, 50)])
def test_results_wait_for_each_worker(size: int, waiting: int) -> None:
    """At most `results_queue_size` divided by the workers, and at least five, for each of them."""
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

    assert pool.results_qsize() in (waiting, waiting + 1)  # the one whose turn it is need not wait
    pool.stop()
    pool.join()
