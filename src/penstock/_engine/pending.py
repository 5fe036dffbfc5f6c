"""Windows on their way: promises that are kept when the last of their units has been read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from penstock._engine.execute import outcome
from penstock._engine.gate import Promise
from penstock._engine.held import Held, UnitRows

__all__ = ["Pending"]


class Pending:
    """A window that is being read; its units are read on threads, and the last of them puts it together."""

    def __init__(self) -> None:
        """Make the promise of a window."""
        self.held: Future[Held] = Promise()
        self.begun: Future[None] = Promise()
        self.tail: tuple[int, Future[UnitRows]] | None = None
        self._left = 0
        self._lock = threading.Lock()

    def passed_on(self) -> tuple[int, Future[UnitRows]] | None:
        """Return the unit that this window has left half used, and let go of it: who waits for it leads back to here."""
        tail, self.tail = self.tail, None
        return tail

    def handed(self) -> Held:
        """Return the window, waiting for it, and let go of it, so that its memory comes back without garbage collection."""
        held = outcome(self.held)
        self.held = Promise()
        return held

    def expect(self, tasks: Sequence[Future[Any]], then: Callable[[], None]) -> None:
        """Call `then` when all tasks have ended; with none to wait for, at once."""
        self._left = len(tasks) + 1

        def ended(_: object) -> None:
            with self._lock:
                self._left -= 1
                last = self._left == 0
            if last:
                then()

        for task in tasks:
            task.add_done_callback(ended)
        ended(None)

    def settle(self, task: Future[None]) -> None:
        """Tell those who wait what a task failed of, or that it was dropped; a task that succeeded has told them itself."""
        if task.cancelled():
            self.held.cancel()
            self.begun.cancel()
        elif (error := task.exception()) is not None:
            self.held.set_exception(error)
            if not self.begun.done():
                self.begun.set_result(None)
