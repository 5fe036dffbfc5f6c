"""Ctrl-C at a chosen moment: at one of those points where Python looks for signals, and not when a clock says so."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

LEFT_OUT = {"__del__": "", "start": threading.__file__, "_find_and_load": ""}
"""Functions in which nothing is raised: what runs when an object is collected, from where Python itself cannot raise; the start
of a thread and the import of a module, which are Python's own and cannot be interrupted without harm."""


class Interrupt:
    """Raises KeyboardInterrupt where the main thread has entered a function, or comes back from one that is written in C.

    Those are the points at which Python runs the handlers of signals.

    Args:
        at: Which of them.

    Attributes:
        points: How many there were so far.
        where: At which it was raised; empty if there were not so many.
    """

    def __init__(self, at: int) -> None:
        """Store when."""
        self.at = at
        self.points = 0
        self.where = ""

    def run(self, task: Callable[[], Any]) -> bool:
        """Run a task, and return whether it was interrupted."""
        sys.setprofile(self._look)
        try:
            task()
        except KeyboardInterrupt:
            return True
        finally:
            sys.setprofile(None)
        return False

    def _look(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "c_return") or frame.f_code.co_filename == __file__ or _is_left_out(frame):
            return
        self.points += 1
        if self.points == self.at:
            name = Path(frame.f_code.co_filename).name
            self.where = f"{name}:{frame.f_lineno} {frame.f_code.co_name} {event}"
            sys.setprofile(None)
            raise KeyboardInterrupt


def _is_left_out(frame: FrameType | None) -> bool:
    while frame is not None:
        code = frame.f_code
        if code.co_name in LEFT_OUT and code.co_filename.startswith(LEFT_OUT[code.co_name]):
            return True
        if code.co_filename.endswith("weakref.py"):
            return True
        frame = frame.f_back
    return False
