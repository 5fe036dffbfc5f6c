"""Waiting for other threads in a way that Ctrl-C can interrupt at any moment, and nothing stays locked.

Python runs the handlers of signals where the main thread enters a function that is written in Python. The conditions of
`threading` are such functions: one that is interrupted where it begins to unlock stays locked for ever, and every thread that
needs it waits for ever. A gate is locked and unlocked by functions written in C, between which nothing can happen.
"""

from __future__ import annotations

import _thread
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import main_thread
from typing import Any, Generic, TypeVar

__all__ = ["InterruptibleCondition", "InterruptibleFuture", "wait_for_one"]

Result = TypeVar("Result")

LOOK = 0.2
"""Seconds after which the main thread looks up: a signal that came just before it began to wait would else be seen after it."""


class InterruptibleCondition(_thread.RLock):  # type: ignore[misc] # of which there are no types
    """A lock, and a queue of those who wait for something to change while it is open, as `threading.Condition` is.

    Example:
        >>> gate = InterruptibleCondition()
        >>> with gate:
        ...     gate.notify_all()
        ...     gate.wait(timeout=0)
        False
    """

    def __init__(self) -> None:
        """Begin unlocked, with nobody waiting."""
        self._waiting: deque[Any] = deque()

    def wait(self, timeout: float | None = None) -> bool:
        """Unlock, wait to be notified, lock again, and return whether it was not for the time that it ended."""
        waiter = _thread.allocate_lock()
        waiter.acquire()
        came = False
        try:
            self._waiting.append(waiter)
            self.release()
            came = waiter.acquire(True, _patience() if timeout is None else max(0.0, timeout))  # noqa: FBT003 - it has no names
            while timeout is None and not came:
                came = waiter.acquire(True, LOOK)  # noqa: FBT003 - the same
        finally:
            # Whatever interrupts leaves through a `with`, which unlocks: so it is locked first, also if that is interrupted.
            interrupted: BaseException | None = None
            while True:
                try:
                    if not self._is_owned():  # type: ignore[attr-defined] # the same
                        self.acquire()
                    break
                except BaseException as error:  # noqa: BLE001 - raised below
                    interrupted = error
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            if interrupted is not None:
                raise interrupted
        return came

    def notify(self, count: int = 1) -> None:
        """Let some of those who wait go on, the first first."""
        for waiter in tuple(self._waiting):
            if count > 0 and waiter.locked():
                waiter.release()  # it leaves the queue itself, so that nobody is forgotten by who is interrupted here
                count -= 1

    def notify_all(self) -> None:
        """Let all of those who wait go on."""
        self.notify(len(self._waiting))


class InterruptibleFuture(Future[Result], Generic[Result]):
    """A future whose waiting can be interrupted.

    Example:
        >>> promise = InterruptibleFuture()
        >>> promise.set_result(42)
        >>> promise.result()
        42
    """

    def __init__(self) -> None:
        """Promise something."""
        super().__init__()
        self._condition = InterruptibleCondition()  # type: ignore[assignment] # which does what a condition does


def _patience() -> float:
    """Return how long a thread may wait at a time; only the main thread has signals to look for."""
    return LOOK if _thread.get_ident() == main_thread().ident else -1


def wait_for_one(futures: Iterable[Future[Any]]) -> None:
    """Wait until one of some futures has ended, in whatever way; all of them are promises.

    Example:
        >>> early, late = InterruptibleFuture(), InterruptibleFuture()
        >>> early.set_result(42)
        >>> wait_for_one([late, early])
    """
    ended: SimpleQueue[None] = SimpleQueue()  # written in C
    for future in futures:
        future.add_done_callback(lambda _: ended.put(None))  # and not the future, which would then lead to itself
    while True:
        with suppress(Empty):
            return ended.get(timeout=LOOK)
