"""Threads that run tasks by priority, and waiting for them that Ctrl-C can interrupt at any moment.

Python runs signal handlers where the main thread enters a function that is written in Python. The conditions of `threading`
are such functions: one that is interrupted while it unlocks stays locked, and every thread that needs it hangs. The classes
here lock and unlock through functions written in C, between which no handler runs.
"""

from __future__ import annotations

import _thread
import heapq
import itertools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from enum import IntEnum
from functools import partial
from queue import Empty, SimpleQueue
from threading import main_thread
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")
Item = TypeVar("Item")

SIGNAL_SECONDS = 0.2
"""How often a waiting main thread looks for a signal that came just before it began to wait."""

PATIENCE = 5.0
"""Seconds that a closing pool waits for running tasks."""


class InterruptibleCondition(_thread.RLock):  # type: ignore[misc] # typeshed has no class of this name
    """A lock and its queue of waiting threads, as `threading.Condition`.

    Example:
        >>> condition = InterruptibleCondition()
        >>> with condition:
        ...     condition.notify_all()
        ...     condition.wait(timeout=0)
        False
    """

    def __init__(self) -> None:
        """Begin unlocked, without waiting threads."""
        self._waiters: deque[Any] = deque()

    def wait(self, timeout: float | None = None) -> bool:
        """Unlock, wait for a notification, lock again; return False if the timeout ended the wait."""
        waiter = _thread.allocate_lock()
        waiter.acquire()
        notified = False
        # Only the main thread has signals to look for.
        step = SIGNAL_SECONDS if _thread.get_ident() == main_thread().ident else -1
        try:
            self._waiters.append(waiter)
            self.release()
            notified = waiter.acquire(True, step if timeout is None else max(0.0, timeout))  # noqa: FBT003 - positional in C
            while timeout is None and not notified:
                notified = waiter.acquire(True, SIGNAL_SECONDS)  # noqa: FBT003 - the same
        finally:
            # An interrupt leaves through a `with`, which unlocks. So lock first, even if locking is interrupted too.
            interrupt: BaseException | None = None
            while True:
                try:
                    if not self._is_owned():  # type: ignore[attr-defined] # the same
                        self.acquire()
                    break
                except BaseException as error:  # noqa: BLE001 - raised below
                    interrupt = error
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            if interrupt is not None:
                raise interrupt
        return notified

    def notify(self, count: int = 1) -> None:
        """Wake `count` waiting threads, the oldest first."""
        for waiter in tuple(self._waiters):
            if count > 0 and waiter.locked():
                waiter.release()  # the thread itself leaves the queue, so an interrupt here forgets no thread
                count -= 1

    def notify_all(self) -> None:
        """Wake all waiting threads."""
        self.notify(len(self._waiters))


class InterruptibleFuture(Future[Result], Generic[Result]):
    """A future whose `result` can be interrupted.

    Example:
        >>> future = InterruptibleFuture()
        >>> future.set_result(42)
        >>> future.result()
        42
    """

    def __init__(self) -> None:
        """Begin without a result."""
        super().__init__()
        self._condition = InterruptibleCondition()  # type: ignore[assignment] # has the methods that a future calls


def wait_for_one(futures: Iterable[Future[Any]]) -> None:
    """Wait until one of the futures is done.

    Example:
        >>> first, second = InterruptibleFuture(), InterruptibleFuture()
        >>> first.set_result(42)
        >>> wait_for_one([second, first])
    """
    done: SimpleQueue[None] = SimpleQueue()  # written in C
    for future in futures:
        future.add_done_callback(lambda _: done.put(None))  # puts no future, which would refer back to itself
    while True:
        with suppress(Empty):
            return done.get(timeout=SIGNAL_SECONDS)


class Priority(IntEnum):
    """The order of tasks: make batches, put windows in order, read units."""

    BATCH = 0
    WINDOW = 1
    READ = 2


class _Workers:
    """The state that the threads of a pool share. It does not refer to the pool, so that the pool can be collected."""

    def __init__(self) -> None:
        self.changed = InterruptibleCondition()
        self.queue: list[tuple[int, int, Future[Any], Callable[[], Any]]] = []
        self.number = itertools.count()
        self.stopped = False
        self.threads: list[threading.Thread] = []
        self.on_stop: list[Callable[[float], None]] = []

    def run(self) -> None:
        """Run tasks until the pool stops."""
        while True:
            with self.changed:
                while not self.queue and not self.stopped:
                    self.changed.wait()
                if self.stopped:
                    return
                _, _, future, task = heapq.heappop(self.queue)
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(task())
                except BaseException as error:  # noqa: BLE001 - raised by future.result()
                    future.set_exception(error)
            del future, task  # an idle thread must not keep results alive

    def stop(self, patience: float = PATIENCE) -> None:
        """Cancel queued tasks and wait for running ones, for `patience` seconds at most: a user's function may hang."""
        with self.changed:
            self.stopped = True
            cancelled, self.queue = self.queue, []
            on_stop, self.on_stop = self.on_stop, []
            self.changed.notify_all()
        for stop in on_stop:
            stop(patience)
        for _, _, future, _ in cancelled:
            future.cancel()
        self.join(patience)

    def join(self, patience: float) -> None:
        """Wait for the threads to end."""
        until = time.monotonic() + patience
        for thread in self.threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))


class ThreadPool:
    """Threads that start with the first task and end with `close`, with garbage collection of the pool, or at exit.

    Example:
        >>> pool = ThreadPool(2)
        >>> pool.submit(Priority.READ, lambda: 6 * 7).result()
        42
        >>> pool.close()
    """

    def __init__(self, threads: int) -> None:
        """Store the number of threads; no thread is started."""
        self.threads = threads
        self._workers = _Workers()
        self._stop = weakref.finalize(self, self._workers.stop)

    def submit(self, priority: Priority, task: Callable[[], Result]) -> Future[Result]:
        """Return the future of a task; tasks of equal priority run in the order they were submitted."""
        future: Future[Result] = InterruptibleFuture()
        workers = self._workers
        with workers.changed:
            if workers.stopped:
                future.cancel()
                return future
            if len(workers.threads) < self.threads:
                thread = threading.Thread(target=workers.run, name=f"penstock-{len(workers.threads)}", daemon=True)
                workers.threads.append(thread)
                thread.start()
            heapq.heappush(workers.queue, (priority, next(workers.number), future, task))
            workers.changed.notify()
        return future

    def submit_all(self, priority: Priority, tasks: Iterable[Callable[[], Result]]) -> list[Future[Result]]:
        """Return the futures of several tasks."""
        return [self.submit(priority, task) for task in tasks]

    def call_on_stop(self, stop: Callable[[float], None]) -> None:
        """Register a function that runs before the threads end; its argument is the number of seconds it may take."""
        with self._workers.changed:
            self._workers.on_stop.append(stop)

    def close(self, patience: float = PATIENCE) -> None:
        """Cancel queued tasks, wait `patience` seconds for running ones, and end the threads."""
        if self._stop.alive:
            self._workers.stop(patience)
            self._stop.detach()  # last: after an interrupt here, garbage collection of the pool still ends the threads

    def join(self, patience: float = PATIENCE) -> None:
        """Wait `patience` seconds for the threads of a closed pool to end."""
        self._workers.join(patience)


def default_threads() -> int:
    """Return the default number of threads: one for each processor that this process may use."""
    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def parallel_map(function: Callable[[Item], Result], items: Sequence[Item], threads: int = 16) -> Iterator[Result]:
    """Yield the results of a function for some items, in order, computed on threads of their own.

    An error cancels the calls that have not begun. An interrupt does not wait for the calls that run.

    Example:
        >>> list(parallel_map(abs, [-1, 2, -3], threads=2))
        [1, 2, 3]
    """
    threads = min(threads, len(items))
    if threads <= 1:
        yield from map(function, items)
        return
    pool = ThreadPool(threads)
    patience = PATIENCE
    try:
        for future in pool.submit_all(Priority.READ, [partial(function, item) for item in items]):
            yield future.result()
    except KeyboardInterrupt:
        patience = 0.0
        raise
    finally:
        pool.close(patience)


def succeeded(future: Future[Any]) -> bool:
    """Return whether a future has a result."""
    return future.done() and not future.cancelled() and future.exception() is None


def result_of(future: Future[Result]) -> Result:
    """Return the result of a future, waiting for it; a task that a closing pool cancelled ends the iteration."""
    try:
        return future.result()
    except CancelledError:
        raise StopIteration from None
