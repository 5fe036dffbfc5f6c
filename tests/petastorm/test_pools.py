"""Pools that somebody drives without a reader: items go in, and what workers make of them comes out."""

from __future__ import annotations

import threading
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
    with pytest.raises(RuntimeError, match="cannot be started twice"):
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
