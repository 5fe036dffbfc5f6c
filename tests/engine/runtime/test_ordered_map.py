"""Results come in order, pending work is bounded, and nothing continues after an error. Cell buffers reuse memory."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._engine.runtime.memory import BufferPool
from penstock._engine.runtime.ordered_map import OrderedConsumer, OrderedMap
from penstock._engine.runtime.threads import Priority, ThreadPool
from penstock._engine.write.encode import LARGE, CellBuffer, pieces


def consumer(threads: int, consume: Any, measure: Any = abs, most: int = 100) -> OrderedConsumer[Any]:
    """Return a consumer with the same bound for tasks and results."""
    return OrderedConsumer(threads, consume, measure, max_task_bytes=most, max_result_bytes=most)


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(0, 4), st.integers(1, 5), st.integers(1, 100))
def test_a_map_returns_results_in_the_order_of_submission(sizes: list[int], threads: int, count: int, most: int) -> None:
    """Results come in order with any number of threads and any bounds. Only a single task may exceed the bounds."""
    pool = ThreadPool(threads) if threads else None
    results = OrderedMap[int](pool, max_pending=count, max_bytes=most)
    waiting, found, pending = list(enumerate(sizes)), [], [0]

    while waiting or results.pending:
        while waiting and results.has_capacity(waiting[0][1]):
            number, size = waiting.pop(0)
            results.submit(Priority.READ, partial(int, number), size)
            active = sizes[number + 1 - results.pending : number + 1]
            assert results.pending == 1 or (results.pending <= count and sum(active) <= most)
        found.append(results.next())
        pending.append(results.pending)
    if pool is not None:
        pool.close()

    assert found == list(range(len(sizes)))
    assert pending[-1] == 0
    with pytest.raises(StopIteration):
        results.next()


def test_an_error_is_raised_in_its_turn() -> None:
    """An error is raised in the order of submission. Results before and after it can still be taken."""
    pool = ThreadPool(2)
    for threads in (pool, None):
        results = OrderedMap[float](threads)
        for number in (1, 0, 2):
            results.submit(Priority.READ, partial(lambda number: 2 / number, number))

        assert results.next() == 2
        with pytest.raises(ZeroDivisionError):
            results.next()
        assert results.next() == 1
    pool.close()


def test_a_task_cannot_end_an_iteration_without_an_error() -> None:
    """A task that raises StopIteration raises RuntimeError. StopIteration would end the consumer's loop silently."""
    pool = ThreadPool(1)
    for threads in (pool, None):
        results = OrderedMap[Any](threads)
        results.submit(Priority.READ, partial(next, iter(())))

        with pytest.raises(RuntimeError, match="A function raised StopIteration, which would end the reading in silence"):
            results.next()
        assert results.pending == 0
    pool.close()


def test_an_interrupted_wait_loses_no_result() -> None:
    """After an interrupted wait, the next call returns the result."""

    class Interrupted(Future[int]):
        """A future whose first wait is interrupted."""

        waits = 0

        def result(self, timeout: float | None = None) -> int:
            self.waits += 1
            if self.waits == 1:
                raise KeyboardInterrupt
            return super().result(timeout)

    future, results = Interrupted(), OrderedMap[int]()
    future.set_result(42)
    results.add(future)

    with pytest.raises(KeyboardInterrupt):
        results.next()
    assert results.next() == 42


def test_a_map_reports_ready_results() -> None:
    """Running tasks are pending, not ready. A map without threads runs a task when its result is taken."""
    gate = threading.Event()
    pool = ThreadPool(2)
    results, serial = OrderedMap[bool](pool), OrderedMap[bool]()
    results.submit(Priority.READ, gate.wait)
    results.submit(Priority.READ, lambda: True)
    serial.submit(Priority.READ, lambda: True)

    assert (results.pending, results.has_result, serial.ready) == (2, False, 0)
    gate.set()
    while results.ready < 2:
        pass
    assert results.has_result
    assert [results.next(), results.next(), serial.next()] == [True] * 3
    assert not results.has_result
    pool.close()


def test_a_closed_map_drops_pending_tasks() -> None:
    """`close` drops tasks that have not begun. A map accepts tasks again until its pool closes."""
    gate = threading.Event()
    began: list[int] = []
    pool = ThreadPool(1)
    results = OrderedMap[Any](pool, max_bytes=5)
    results.submit(Priority.READ, gate.wait, 5)
    results.submit(Priority.READ, partial(began.append, 1), 5)

    results.close()
    gate.set()
    results.submit(Priority.READ, lambda: "next", 5)

    assert results.next() == "next"
    pool.close()
    results.submit(Priority.READ, lambda: "too late")
    with pytest.raises(StopIteration):
        results.next()
    assert began == []


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 4), st.integers(1, 100))
def test_results_are_consumed_in_the_order_of_their_tasks(sizes: list[int], threads: int, most: int) -> None:
    """Results are consumed in order with any number of threads and any bounds."""
    consumed: list[int] = []
    squares = consumer(threads, consumed.append, most=most)

    for number, size in enumerate(sizes):
        squares.put(partial(int, number), size)
    squares.finish()

    assert consumed == list(range(len(sizes)))


def test_a_task_waits_for_capacity() -> None:
    """`put` waits while earlier tasks use up the allowed bytes."""
    gate = threading.Event()
    consumed: list[int] = []
    numbers = consumer(1, consumed.append, most=10)

    def produce() -> None:
        for number in range(4):
            numbers.put(lambda number=number: (gate.wait(), number)[1], 4)  # type: ignore[misc] # mypy cannot tell

    producer = threading.Thread(target=produce)
    producer.start()
    producer.join(0.2)
    waiting = producer.is_alive()
    gate.set()
    producer.join()
    numbers.finish()

    assert waiting
    assert consumed == [0, 1, 2, 3]


def test_tasks_wait_until_results_are_consumed() -> None:
    """Tasks wait while results that are not consumed yet use up the allowed bytes."""
    gate = threading.Event()
    made: list[int] = []
    consumed: list[int] = []

    def make(number: int) -> int:
        made.append(number)
        return number

    def consume(number: int) -> None:
        gate.wait()
        consumed.append(number)

    numbers = OrderedConsumer(1, consume, lambda _: 4, max_task_bytes=1, max_result_bytes=10)

    def produce() -> None:
        for number in range(20):
            numbers.put(partial(make, number), 1)

    producer = threading.Thread(target=produce)
    producer.start()
    producer.join(0.2)
    most = len(made)
    gate.set()
    producer.join()
    numbers.finish()

    assert most <= 4
    assert consumed == list(range(20))


def test_an_error_is_raised_by_a_later_put() -> None:
    """An error of a task is raised by later `put`, `check` and `finish`. Results of later tasks are not consumed."""
    consumed: list[int] = []
    numbers = consumer(1, consumed.append, most=5)

    def broken() -> int:
        msg = "broken"
        raise RuntimeError(msg)

    def go_on() -> None:
        for _ in range(3):
            numbers.put(lambda: 2, 5)

    numbers.put(lambda: 1, 5)
    numbers.put(broken, 5)
    with pytest.raises(RuntimeError, match="broken"):
        go_on()
    with pytest.raises(RuntimeError, match="broken"):
        numbers.check()
    with pytest.raises(RuntimeError, match="broken"):
        numbers.finish()

    assert consumed == [1]


def test_an_error_of_the_consumer_is_raised_too() -> None:
    """An error of the consuming function, such as a full disk, is raised by `finish`. No further result is consumed."""
    calls: list[int] = []

    def refuse(number: int) -> None:
        calls.append(number)
        msg = "disk full"
        raise OSError(msg)

    numbers = consumer(2, refuse)
    for number in range(3):
        numbers.put(partial(int, number), 1)

    with pytest.raises(OSError, match="disk full"):
        numbers.finish()
    assert calls == [0]


def test_no_thread_is_left_after_a_stop() -> None:
    """`stop` ends all threads, even if tasks are pending."""
    gate = threading.Event()
    results = consumer(1, print, int)
    results.put(gate.wait, 1)
    results.put(gate.wait, 1)
    gate.set()
    results.stop()

    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock")] == []


def test_a_cell_buffer_copies_arrays() -> None:
    """Copies in a cell buffer keep their values when the originals change, also arrays that do not fit in the buffer."""
    cell_buffer = CellBuffer(BufferPool(limit=0), 200)
    arrays: list[Any] = [
        np.arange(3, dtype=np.int64),
        np.ones((2, 5), np.float32, order="F"),
        np.zeros(0),
        np.arange(30),
        np.array("x", object),
    ]

    copies = [cell_buffer.copy(array) for array in arrays]
    for array in arrays:
        array.fill("y" if array.dtype == object else 7)

    assert [copy.tolist() for copy in copies] == [[0, 1, 2], [[1.0] * 5] * 2, [], list(range(30)), "x"]


def test_a_cell_buffer_is_reused_after_its_arrays_die() -> None:
    """A cell buffer is reused only after its arrays die. An array that is still referenced keeps its values."""
    buffer_pool = BufferPool(limit=1 << 20)
    active = CellBuffer(buffer_pool, 1000).copy(np.arange(8))
    other = CellBuffer(buffer_pool, 1000).copy(np.zeros(8, np.int64))

    separate = not np.shares_memory(active, other)
    address = other.ctypes.data
    del other

    assert separate
    assert CellBuffer(buffer_pool, 1000).copy(np.ones(8, np.int64)).ctypes.data == address
    assert active.tolist() == list(range(8))


@given(st.lists(st.none() | st.binary(max_size=50) | st.integers(LARGE - 1, LARGE + 1).map(bytes), max_size=20))
def test_blobs_become_an_arrow_column(blobs: list[bytes | None]) -> None:
    """Null, empty and large blobs become a valid Arrow column with the same values. Each large blob is a separate chunk."""
    found = pieces(blobs)

    found.validate(full=True)
    assert found.to_pylist() == blobs
    assert sum(len(chunk) == 1 and chunk.nbytes >= LARGE for chunk in found.chunks) >= sum(
        len(b or b"") >= LARGE for b in blobs
    )
