"""Threads that run tasks by urgency, and end when nobody needs them any more."""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from enum import IntEnum
from functools import partial
from typing import Any, TypeVar

from penstock._engine.runtime.interruptible import InterruptibleCondition, InterruptibleFuture

__all__ = ["Priority", "ThreadPool", "default_threads", "result_of", "run_over", "succeeded"]

Result = TypeVar("Result")
Item = TypeVar("Item")

PATIENCE = 5.0
"""Seconds that a closing pool waits for tasks that run."""


class Priority(IntEnum):
    """What is run first: what the consumer waits for, then what it will need later."""

    FINISH = 0
    ASSEMBLE = 1
    READ = 2


class _Work:
    """What the threads of a pool share; it knows nothing of the pool, so that the pool can be collected."""

    def __init__(self) -> None:
        self.changed = InterruptibleCondition()
        self.waiting: list[tuple[int, int, Future[Any], Callable[[], Any]]] = []
        self.number = itertools.count()
        self.stopped = False
        self.threads: list[threading.Thread] = []
        self.ends: list[Callable[[float], None]] = []

    def run(self) -> None:
        """Run tasks until told to stop."""
        while True:
            with self.changed:
                while not self.waiting and not self.stopped:
                    self.changed.wait()
                if self.stopped:
                    return
                _, _, future, task = heapq.heappop(self.waiting)
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(task())
                except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
                    future.set_exception(error)
            del future, task  # while waiting, a thread must not keep alive what it has handed over

    def stop(self, patience: float = PATIENCE) -> None:
        """Drop what has not begun, let what runs end, and wait for that, but not for ever: it may be a user's function."""
        with self.changed:
            self.stopped = True
            dropped, self.waiting = self.waiting, []
            ends, self.ends = self.ends, []
            self.changed.notify_all()
        for end in ends:
            end(patience)
        for _, _, future, _ in dropped:
            future.cancel()
        until = time.monotonic() + patience
        for thread in self.threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))


class ThreadPool:
    """Some threads, started with the first task and ended by `close`, by garbage collection or at exit.

    Example:
        >>> pool = ThreadPool(2)
        >>> pool.submit(Priority.READ, lambda: 6 * 7).result()
        42
        >>> pool.close()
    """

    def __init__(self, threads: int) -> None:
        """Store the number of threads; none is started yet."""
        self.threads = threads
        self._work = _Work()
        self._end = weakref.finalize(self, self._work.stop)

    def submit(self, urgency: Priority, task: Callable[[], Result]) -> Future[Result]:
        """Return the future of a task; of equal urgency, the older goes first."""
        future: Future[Result] = InterruptibleFuture()
        work = self._work
        with work.changed:
            if work.stopped:
                future.cancel()
                return future
            if len(work.threads) < self.threads:
                thread = threading.Thread(target=work.run, name=f"penstock-{len(work.threads)}", daemon=True)
                work.threads.append(thread)
                thread.start()
            heapq.heappush(work.waiting, (urgency, next(work.number), future, task))
            work.changed.notify()
        return future

    def end_too(self, end: Callable[[float], None]) -> None:
        """Have something else ended with the threads, and before them; it is called with the seconds that it may take."""
        with self._work.changed:
            self._work.ends.append(end)

    def close(self, patience: float = PATIENCE) -> None:
        """End all threads; tasks that have not begun are dropped, and those that run are waited for, so many seconds."""
        if self._end.alive:
            self._work.stop(patience)
            self._end.detach()  # not before: who is interrupted here still ends the threads when the pool is collected

    def join(self, patience: float = PATIENCE) -> None:
        """Wait for the threads of a pool that was closed, so many seconds at most."""
        until = time.monotonic() + patience
        for thread in self._work.threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))


def default_threads() -> int:
    """Return how many threads read where the user does not say: one for each processor this process may use."""
    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def run_over(function: Callable[[Item], Result], items: Sequence[Item], threads: int) -> Iterator[Result]:
    """Yield what a function makes of each of some items, in their order, on threads of their own.

    What goes wrong drops what has not begun. Who interrupts does not wait for what runs.

    Example:
        >>> list(run_over(abs, [-1, 2, -3], threads=2))
        [1, 2, 3]
    """
    pool = ThreadPool(max(1, min(threads, len(items))))
    patience = PATIENCE
    try:
        for future in [pool.submit(Priority.READ, partial(function, item)) for item in items]:
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
    """Return a future's result, waiting for it; a task dropped by a closing pool ends the iteration."""
    try:
        return future.result()
    except CancelledError:
        raise StopIteration from None
