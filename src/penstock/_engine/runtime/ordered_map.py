"""Parallel tasks whose results come in the order in which the tasks were submitted."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Generic, TypeVar

from penstock._engine.runtime.threads import PATIENCE, Priority, ThreadPool

Result = TypeVar("Result")


class OrderedMap(Generic[Result]):
    """A bounded queue of running tasks; `next` returns their results in the order of submission.

    The caller submits tasks while `has_capacity` is true, and takes results with `next`:

    * Nothing blocks but `next`. Ctrl-C interrupts it, and no result is lost: the next call returns it.
    * The error of a task is raised by the `next` that would return its result. The call after it goes on with the next task.
    * One thread may submit while another one takes results.

    Args:
        pool: Threads that run the tasks; without them each task runs inside of `next`.
        max_pending: Tasks that may be pending.
        max_bytes: Bytes that pending tasks may hold, as `submit` states them. A single task may hold more.

    Example:
        >>> pool = ThreadPool(2)
        >>> squares = OrderedMap(pool, max_pending=3)
        >>> numbers = iter(range(100))
        >>> while squares.has_capacity():
        ...     squares.submit(Priority.READ, lambda number=next(numbers): number * number)
        >>> squares.pending, squares.next(), squares.next()
        (3, 0, 1)
        >>> squares.close()
        >>> pool.close()
    """

    def __init__(self, pool: ThreadPool | None = None, *, max_pending: int | None = None, max_bytes: int | None = None) -> None:
        """Store the bounds; threads start with the first task."""
        self._pool, self._max_pending, self._max_bytes = pool, max_pending, max_bytes
        self._futures: deque[tuple[Future[Result], int]] = deque()
        self._bytes_submitted = self._bytes_taken = 0  # each is written by one thread only

    @property
    def pending(self) -> int:
        """The number of tasks whose results were not taken."""
        return len(self._futures)

    @property
    def ready(self) -> int:
        """The number of tasks that have ended and whose results were not taken."""
        return sum(future.done() for future, _ in tuple(self._futures))

    @property
    def has_result(self) -> bool:
        """Whether `next` would return or raise at once."""
        return bool(self._futures) and self._futures[0][0].done()

    @property
    def first(self) -> Future[Result] | None:
        """The future of the result that `next` returns; None where nothing is pending."""
        return self._futures[0][0] if self._futures else None

    def has_capacity(self, nbytes: int = 0) -> bool:
        """Return whether a task that holds `nbytes` can be submitted within the bounds; the first one always can."""
        if not self._futures:
            return True
        if self._max_pending is not None and len(self._futures) >= self._max_pending:
            return False
        return self._max_bytes is None or self._bytes_submitted - self._bytes_taken + nbytes <= self._max_bytes

    def submit(self, priority: Priority, task: Callable[[], Result], nbytes: int = 0) -> None:
        """Run a task, within the bounds or not.

        Args:
            priority: Which tasks of the pool run first.
            task: The function.
            nbytes: Bytes that it holds until its result is taken.
        """
        self.add(_CalledByNext(task) if self._pool is None else self._pool.submit(priority, task), nbytes)

    def add(self, future: Future[Result], nbytes: int = 0) -> None:
        """Add a task that runs somewhere else, for example in a worker process."""
        self._bytes_submitted += nbytes
        self._futures.append((future, nbytes))

    def next(self) -> Result:
        """Return the next result, waiting for it."""
        if not self._futures:
            raise StopIteration
        future = self._futures[0][0]
        try:
            result = future.result()
        except CancelledError:
            raise StopIteration from None
        except StopIteration as error:
            self._remove_first()
            msg = "A function raised StopIteration, which would end the reading in silence. Catch it, or raise another error."
            raise RuntimeError(msg) from error
        except Exception:
            self._remove_first()
            raise
        self._remove_first()
        return result

    def close(self) -> None:
        """Cancel the tasks that have not begun, and drop all results."""
        while self._futures:
            self._futures[0][0].cancel()
            self._remove_first()

    def _remove_first(self) -> None:
        _, nbytes = self._futures.popleft()
        self._bytes_taken += nbytes


class _CalledByNext(Future[Result]):
    """A task that runs when its result is taken, in the thread that takes it."""

    def __init__(self, task: Callable[[], Result]) -> None:
        super().__init__()
        self._task = task

    def result(self, timeout: float | None = None) -> Result:  # noqa: ARG002 - it cannot be stopped after a while
        return self._task()


class OrderedConsumer(Generic[Result]):
    """Runs tasks in parallel, and passes their results in order to a function, which runs on a thread of its own.

    Args:
        threads: Threads that run the tasks.
        consume: The function. After it raised, it is not called again.
        measure: Returns the bytes that a result holds.
        max_task_bytes: Bytes that tasks may hold whose results were not passed on.
        max_result_bytes: Bytes of results that wait to be consumed.

    Example:
        >>> consumed = []
        >>> consumer = OrderedConsumer(2, consumed.append, lambda result: 8, max_task_bytes=1000, max_result_bytes=1000)
        >>> for number in range(5):
        ...     consumer.put(lambda number=number: number * number, 100)
        >>> consumer.finish()
        >>> consumed
        [0, 1, 4, 9, 16]
    """

    def __init__(
        self,
        threads: int,
        consume: Callable[[Result], None],
        measure: Callable[[Result], int],
        *,
        max_task_bytes: int,
        max_result_bytes: int,
    ) -> None:
        """Store the functions; threads start with the first task."""
        self._consume, self._measure = partial(_consume_until_error, consume, threading.Event()), measure
        self._pools = ThreadPool(threads), ThreadPool(1)
        self._tasks = OrderedMap[Result](self._pools[0], max_bytes=max_task_bytes)
        self._consumed = OrderedMap[None](self._pools[1], max_bytes=max_result_bytes)
        self._error: BaseException | None = None

    def put(self, task: Callable[[], Result], nbytes: int) -> None:
        """Submit a task that holds `nbytes`, waiting until it is within the bounds."""
        self.check()
        try:
            while self._tasks.has_result or not self._tasks.has_capacity(nbytes):
                self._pass_on()
        except Exception as error:
            self._error = error
            raise
        self._tasks.submit(Priority.READ, task, nbytes)

    def check(self) -> None:
        """Raise the error that was raised before."""
        if self._error is not None:
            raise self._error

    def finish(self) -> None:
        """Wait until all results are consumed, and end the threads."""
        try:
            while self._tasks.pending and self._error is None:
                self._pass_on()
            while self._consumed.pending:
                self._consumed.next()
        except Exception as error:  # noqa: BLE001 - raised below
            self._error = self._error or error
        finally:
            self.stop()
        self.check()

    def stop(self, patience: float = PATIENCE) -> None:
        """End the threads and drop the results; wait for running tasks for `patience` seconds."""
        for pool in self._pools:
            pool.close(patience)

    def _pass_on(self) -> None:
        """Have the result of the first task consumed, waiting until it is within the bounds."""
        while self._consumed.has_result or not self._consumed.has_capacity():
            self._consumed.next()
        result = self._tasks.next()
        self._consumed.submit(Priority.READ, partial(self._consume, result), self._measure(result))


def _consume_until_error(consume: Callable[[Result], None], failed: threading.Event, result: Result) -> None:
    if not failed.is_set():
        try:
            consume(result)
        except BaseException:
            failed.set()
            raise
