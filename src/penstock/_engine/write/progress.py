"""How far a write has come, as one line on standard error; by rich where that is installed."""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol

__all__ = ["Progress", "progress_line"]

SECONDS = 0.25
"""Between two lines."""


class Progress(Protocol):
    """What is told how far a write has come."""

    def update(self, rows: int) -> None:
        """Tell that so many rows were taken."""
        ...

    def end(self, rows: int | None) -> None:
        """Tell that these were all; None if the write is given up."""
        ...


class Silence:
    """Tells nothing."""

    def update(self, rows: int) -> None:
        """Tell nothing."""

    def end(self, rows: int | None) -> None:
        """Tell nothing."""


def progress_line(url: str, *, shown: bool) -> Progress:
    """Return what tells how far the write of a table has come, or keeps silent.

    Example:
        >>> progress_line("t", shown=False).update(3)
    """
    if not shown:
        return Silence()
    try:
        from rich.console import Console
    except ImportError:
        return Line(url)
    return RichLine(url, Console(stderr=True))


def text(url: str, rows: int, seconds: float) -> str:
    """Return the line.

    Example:
        >>> text("t", 1200, 2.0)
        't: 1,200 rows, 600 rows/s'
    """
    return f"{url}: {rows:,} rows, {rows / max(seconds, 1e-9):,.0f} rows/s"


class Line:
    """Writes plain text: over the same line on a terminal, else a line each."""

    def __init__(self, url: str) -> None:
        """Store what is written."""
        self._url, self._started, self._next = url, time.monotonic(), 0.0

    def update(self, rows: int) -> None:
        """Write the line, a few times a second at most."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + SECONDS
            self._write(rows, "\r" if sys.stderr.isatty() else "\n")

    def end(self, rows: int | None) -> None:
        """Write the last line."""
        if rows is not None:
            self._write(rows, "\n")

    def _write(self, rows: int, ending: str) -> None:
        sys.stderr.write(text(self._url, rows, time.monotonic() - self._started) + ending)
        sys.stderr.flush()


class RichLine:
    """Shows the line by rich, which is started with the first row and ended with the last."""

    def __init__(self, url: str, console: Any) -> None:
        """Store what is shown."""
        self._url, self._console, self._started, self._next = url, console, time.monotonic(), 0.0
        self._status: Any = None

    def update(self, rows: int) -> None:
        """Show the line, a few times a second at most."""
        now = time.monotonic()
        if now < self._next or not self._console.is_terminal:
            return
        self._next = now + SECONDS
        line = text(self._url, rows, now - self._started)
        if self._status is None:
            self._status = self._console.status(line)
            self._status.start()
        self._status.update(line)

    def end(self, rows: int | None) -> None:
        """Show the last line."""
        if self._status is not None:
            self._status.stop()
        if rows is not None:
            self._tell(rows)

    def _tell(self, rows: int) -> None:
        self._console.print(text(self._url, rows, time.monotonic() - self._started), highlight=False, markup=False)
