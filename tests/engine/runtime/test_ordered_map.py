"""Results come in order, what waits is bounded, and nothing goes on after an error."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._engine.runtime.buffers import BufferPool
from penstock._engine.runtime.ordered_map import Conveyor, Room
from penstock._engine.write.encode import LARGE, CellBuffer, pieces


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 4), st.integers(1, 100))
def test_results_are_taken_in_the_order_of_their_tasks(sizes: list[int], threads: int, most: int) -> None:
    """Whatever the threads and the room."""
    taken: list[int] = []
    conveyor = Conveyor(threads, taken.append, abs, Room(given=most, made=most))

    for number, size in enumerate(sizes):
        conveyor.put(lambda number=number: number, size)  # type: ignore[misc] # mypy cannot tell
    conveyor.finish()

    assert taken == list(range(len(sizes)))


def test_a_task_waits_for_room() -> None:
    """While what was given holds too much, no more is let in."""
    gate = threading.Event()
    taken: list[int] = []
    conveyor = Conveyor(1, taken.append, abs, Room(given=10, made=10))

    def produce() -> None:
        for number in range(4):
            conveyor.put(lambda number=number: (gate.wait(), number)[1], 4)  # type: ignore[misc] # mypy cannot tell

    producer = threading.Thread(target=produce)
    producer.start()
    producer.join(0.2)
    waiting = producer.is_alive()
    gate.set()
    producer.join()
    conveyor.finish()

    assert waiting
    assert taken == [0, 1, 2, 3]


def test_results_wait_for_room_too() -> None:
    """While nobody takes what was made, no more is made than there is room for."""
    gate = threading.Event()
    made: list[int] = []
    taken: list[int] = []

    def make(number: int) -> int:
        made.append(number)
        return number

    def take(number: int) -> None:
        gate.wait()
        taken.append(number)

    conveyor = Conveyor(1, take, lambda _: 4, Room(given=1, made=10))

    def produce() -> None:
        for number in range(20):
            conveyor.put(partial(make, number), 1)

    producer = threading.Thread(target=produce)
    producer.start()
    producer.join(0.2)
    most = len(made)
    gate.set()
    producer.join()
    conveyor.finish()

    assert most <= 4
    assert taken == list(range(20))


def test_an_error_is_raised_where_the_next_is_given() -> None:
    """By put, by check and by finish; tasks behind it are not taken."""
    taken: list[int] = []
    conveyor = Conveyor(1, taken.append, abs, Room(given=5, made=5))

    def broken() -> int:
        msg = "broken"
        raise RuntimeError(msg)

    def go_on() -> None:
        for _ in range(3):
            conveyor.put(lambda: 2, 5)

    conveyor.put(lambda: 1, 5)
    conveyor.put(broken, 5)
    with pytest.raises(RuntimeError, match="broken"):
        go_on()
    with pytest.raises(RuntimeError, match="broken"):
        conveyor.check()
    with pytest.raises(RuntimeError, match="broken"):
        conveyor.finish()

    assert taken == [1]


def test_what_taking_raises_is_raised_too() -> None:
    """A full disk ends the write as a bad cell does."""

    def refuse(_: int) -> None:
        msg = "disk full"
        raise OSError(msg)

    conveyor = Conveyor(2, refuse, abs, Room(given=100, made=100))
    conveyor.put(lambda: 1, 1)

    with pytest.raises(OSError, match="disk full"):
        conveyor.finish()


def test_threads_end_when_nobody_holds_the_conveyor() -> None:
    """Without finish or stop, and though tasks wait."""
    gate = threading.Event()
    conveyor: Conveyor[bool] = Conveyor(1, print, int, Room(given=100, made=100))
    conveyor.put(gate.wait, 1)
    conveyor.put(gate.wait, 1)
    gate.set()
    conveyor.stop()

    del conveyor

    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock")] == []


def test_arrays_lie_side_by_side_in_a_slab() -> None:
    """Each keeps its values, whatever comes after it; what has no room lies elsewhere."""
    slab = CellBuffer(BufferPool(most=0), 200)
    arrays: list[Any] = [
        np.arange(3, dtype=np.int64),
        np.ones((2, 5), np.float32, order="F"),
        np.zeros(0),
        np.arange(30),
        np.array("x", object),
    ]

    copies = [slab.copy(array) for array in arrays]
    for array in arrays:
        array.fill("y" if array.dtype == object else 7)

    assert [copy.tolist() for copy in copies] == [[0, 1, 2], [[1.0] * 5] * 2, [], list(range(30)), "x"]


def test_a_slab_is_lent_again_when_its_arrays_are_gone() -> None:
    """Not before: an array that somebody holds keeps its values."""
    buffer_pool = BufferPool(most=1 << 20)
    held = CellBuffer(buffer_pool, 1000).copy(np.arange(8))
    other = CellBuffer(buffer_pool, 1000).copy(np.zeros(8, np.int64))

    apart = not np.shares_memory(held, other)
    where = other.ctypes.data
    del other

    assert apart
    assert CellBuffer(buffer_pool, 1000).copy(np.ones(8, np.int64)).ctypes.data == where
    assert held.tolist() == list(range(8))


@given(st.lists(st.none() | st.binary(max_size=50) | st.integers(LARGE - 1, LARGE + 1).map(bytes), max_size=20))
def test_blobs_are_a_column_of_arrow(blobs: list[bytes | None]) -> None:
    """Nulls, empty ones and large ones too; those are not copied."""
    found = pieces(blobs)

    found.validate(full=True)
    assert found.to_pylist() == blobs
    assert sum(len(chunk) == 1 and chunk.nbytes >= LARGE for chunk in found.chunks) >= sum(
        len(b or b"") >= LARGE for b in blobs
    )
