"""The progress of a write as one line on standard error; by rich where that is installed."""

from __future__ import annotations

import sys
import time
from typing import Any

__all__ = ["ProgressLine"]

INTERVAL_SECONDS = 0.25
"""The least time between two lines."""


class ProgressLine:
    """Shows how many rows were written; does nothing unless it is shown.

    Example:
        >>> ProgressLine("t", shown=False).update(3)
    """

    def __init__(self, url: str, *, shown: bool) -> None:
        """Look for rich; the line appears with the first rows."""
        self._url, self._shown = url, shown
        self._started, self._next = time.monotonic(), 0.0
        self._console = _rich_console() if shown else None
        self._status: Any = None

    def update(self, rows: int) -> None:
        """Show the number of rows so far, a few times a second at most."""
        if not self._shown or (now := time.monotonic()) < self._next:
            return
        self._next = now + INTERVAL_SECONDS
        if self._console is None:
            self._write(rows, "\r" if sys.stderr.isatty() else "\n")
        elif self._console.is_terminal:
            if self._status is None:
                self._status = self._console.status(self._text(rows))
                self._status.start()
            self._status.update(self._text(rows))

    def end(self, rows: int | None) -> None:
        """Show the last line; without one if the write was aborted."""
        if self._status is not None:
            self._status.stop()
        if not self._shown or rows is None:
            return
        if self._console is None:
            self._write(rows, "\n")
        else:
            self._console.print(self._text(rows), highlight=False, markup=False)

    def _text(self, rows: int) -> str:
        seconds = max(time.monotonic() - self._started, 1e-9)
        return f"{self._url}: {rows:,} rows, {rows / seconds:,.0f} rows/s"

    def _write(self, rows: int, ending: str) -> None:
        sys.stderr.write(self._text(rows) + ending)
        sys.stderr.flush()


def _rich_console() -> Any:
    """Return a console of rich on standard error; None if rich is not installed."""
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(stderr=True)
