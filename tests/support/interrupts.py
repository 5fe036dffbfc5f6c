"""Raise KeyboardInterrupt at a chosen point, independent of timing, where Python would run signal handlers."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

LEFT_OUT = {"__del__": "", "start": threading.__file__, "_find_and_load": ""}
"""Functions in which nothing is raised. Finalizers cannot propagate exceptions. Python's own code for starting a thread and for
importing a module is not safe to interrupt."""


class Interrupt:
    """Raises KeyboardInterrupt in the main thread at a chosen function call, or return from a C function.

    Python runs signal handlers at these points.

    Args:
        at: The number of the point at which to raise.

    Attributes:
        points: The number of points passed so far.
        where: The position at which it was raised; empty if it was not raised.
    """

    def __init__(self, at: int) -> None:
        """Store the number of the point."""
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
