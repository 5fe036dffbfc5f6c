"""Tasks that run side by side, whose results one thread takes in the order they were given; what waits is bounded."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from penstock._engine.runtime.interruptible import InterruptibleCondition
from penstock._engine.runtime.threads import PATIENCE, Priority, ThreadPool

__all__ = ["Conveyor", "Room"]

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What may wait.

    Attributes:
        given: Bytes that tasks hold which are not done. One is let in whatever it holds.
        made: Bytes of results that are not taken yet, from which on no more tasks are let in.
    """

    given: int
    made: int


class _Belt:
    """What the threads share with the conveyor; it knows nothing of that, so that it can be collected."""

    def __init__(self) -> None:
        self.changed = InterruptibleCondition()
        self.waiting: deque[Future[Any]] = deque()
        self.given = self.made = 0
        self.ended = False
        self.error: BaseException | None = None

    def run(self, take: Callable[[Any], None]) -> None:
        """Take results until the last, or until one fails."""
        while True:
            with self.changed:
                while not self.waiting and not self.ended:
                    self.changed.wait()
                if not self.waiting:
                    return
                future = self.waiting.popleft()
            try:
                result, nbytes = future.result()
                take(result)
            except BaseException as error:  # noqa: BLE001 - it is raised where the next is given
                self.stop(error)
                return
            del future, result
            with self.changed:
                self.made -= nbytes
                self.changed.notify_all()

    def done(self, task: Callable[[], Result], nbytes: int, weigh: Callable[[Result], int]) -> tuple[Result, int]:
        """Return what a task makes and its size; what the task held is free then, and the result waits instead."""
        result = task()
        made = weigh(result)
        with self.changed:
            self.given -= nbytes
            self.made += made
            self.changed.notify_all()
        return result, made

    def stop(self, error: BaseException | None = None) -> None:
        """Drop what waits."""
        with self.changed:
            self.error = self.error or error
            self.ended = True
            dropped, self.waiting = self.waiting, deque()
            self.changed.notify_all()
        for future in dropped:
            future.cancel()


class Conveyor(Generic[Result]):
    """Runs tasks on threads and hands their results, in order, to one more thread.

    Args:
        threads: How many tasks run at once.
        take: What is done with each result.
        weigh: How many bytes a result holds.
        room: What may wait.

    Example:
        >>> taken = []
        >>> conveyor = Conveyor(2, taken.append, lambda result: 8, Room(given=1000, made=1000))
        >>> for number in range(5):
        ...     conveyor.put(lambda number=number: number * number, 100)
        >>> conveyor.finish()
        >>> taken
        [0, 1, 4, 9, 16]
    """

    def __init__(self, threads: int, take: Callable[[Result], None], weigh: Callable[[Result], int], room: Room) -> None:
        """Store them; threads start with the first task."""
        self._pool, self._take, self._weigh, self._room = ThreadPool(threads), take, weigh, room
        self._belt = _Belt()
        self._thread: threading.Thread | None = None
        self._end = weakref.finalize(self, self._belt.stop)

    def put(self, task: Callable[[], Result], nbytes: int) -> None:
        """Hand over a task, waiting for room.

        Raises:
            BaseException: What an earlier task, or taking its result, has raised.
        """
        belt, room = self._belt, self._room
        if self._thread is None:
            self._thread = threading.Thread(target=belt.run, args=(self._take,), name="penstock-write", daemon=True)
            self._thread.start()
        with belt.changed:
            while not belt.ended and ((belt.given and belt.given + nbytes > room.given) or belt.made >= room.made):
                belt.changed.wait()
            self.check()
            belt.waiting.append(self._pool.submit(Priority.READ, partial(belt.done, task, nbytes, self._weigh)))
            belt.given += nbytes
            belt.changed.notify_all()

    def check(self) -> None:
        """Raise what has gone wrong so far.

        Raises:
            BaseException: What a task, or taking its result, has raised.
        """
        if self._belt.error is not None:
            raise self._belt.error

    def finish(self) -> None:
        """Wait until all results are taken, and end the threads.

        Raises:
            BaseException: What a task, or taking its result, has raised.
        """
        with self._belt.changed:
            self._belt.ended = True
            self._belt.changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._pool.close()
        self.check()

    def stop(self, patience: float = PATIENCE) -> None:
        """End the threads without taking what is not taken yet; what runs is waited for, so many seconds."""
        self._belt.stop()
        self._pool.close(patience)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(patience)
