"""Threads that run tasks by urgency, and end when nobody needs them any more."""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from enum import IntEnum
from typing import Any, TypeVar

__all__ = ["Pool", "Urgency", "default_threads", "outcome", "succeeded"]

Result = TypeVar("Result")

PATIENCE = 5.0
"""Seconds that a closing pool waits for tasks that run."""


class Urgency(IntEnum):
    """What is run first: what the consumer waits for, then what it will need later."""

    FINISH = 0
    ASSEMBLE = 1
    READ = 2


class _Work:
    """What the threads of a pool share; it knows nothing of the pool, so that the pool can be collected."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.waiting: list[tuple[int, int, Future[Any], Callable[[], Any]]] = []
        self.number = itertools.count()
        self.stopped = False
        self.threads: list[threading.Thread] = []

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
            self.changed.notify_all()
        for _, _, future, _ in dropped:
            future.cancel()
        until = time.monotonic() + patience
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, until - time.monotonic()))


class Pool:
    """Some threads, started with the first task and ended by `close`, by garbage collection or at exit.

    Example:
        >>> pool = Pool(2)
        >>> pool.submit(Urgency.READ, lambda: 6 * 7).result()
        42
        >>> pool.close()
    """

    def __init__(self, threads: int) -> None:
        """Store the number of threads; none is started yet."""
        self.threads = threads
        self._work = _Work()
        self._end = weakref.finalize(self, self._work.stop)

    def submit(self, urgency: Urgency, task: Callable[[], Result]) -> Future[Result]:
        """Return the future of a task; of equal urgency, the older goes first."""
        future: Future[Result] = Future()
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

    def close(self, patience: float = PATIENCE) -> None:
        """End all threads; tasks that have not begun are dropped, and those that run are waited for, so many seconds."""
        if self._end.detach():
            self._work.stop(patience)


def default_threads() -> int:
    """Return how many threads read where the user does not say: one for each processor this process may use."""
    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def succeeded(future: Future[Any]) -> bool:
    """Return whether a future has a result."""
    return future.done() and not future.cancelled() and future.exception() is None


def outcome(future: Future[Result]) -> Result:
    """Return a future's result, waiting for it; a task dropped by a closing pool ends the iteration."""
    try:
        return future.result()
    except CancelledError:
        raise StopIteration from None
