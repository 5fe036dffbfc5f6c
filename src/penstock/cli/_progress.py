"""A bar that grows while somebody waits, on the standard error stream, where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from penstock.cli._tables import needs_rich

__all__ = ["bar"]

WIDTH = 30


@contextmanager
def bar(title: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Return what is called with the number of rows that have come; nothing is shown where nobody looks.

    Example:
        >>> with bar("reading", 100) as advance:
        ...     advance(60)
    """
    terminal = sys.stderr.isatty()
    rich = needs_rich("progress", terminal=terminal)
    if rich is not None:
        with _rich_bar(rich, title, total, done) as advance:
            yield advance
    elif terminal:
        with _plain_bar(title, total, done) as advance:
            yield advance
    else:
        yield lambda _: None


@contextmanager
def _rich_bar(rich: Any, title: str, total: int, done: int) -> Iterator[Callable[[int], None]]:
    console = needs_rich("console", terminal=True)
    columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), rich.MofNCompleteColumn(), rich.TimeElapsedColumn())
    shown = rich.Progress(*columns, transient=True, console=None if console is None else console.Console(stderr=True))
    with shown as progress:
        task = progress.add_task(title, total=total, completed=done)
        yield lambda count: progress.update(task, advance=count)


@contextmanager
def _plain_bar(title: str, total: int, done: int) -> Iterator[Callable[[int], None]]:
    come, drawn = done, -1

    def advance(count: int) -> None:
        nonlocal come, drawn
        come += count
        length = WIDTH * come // max(1, total)
        if length != drawn:
            drawn = length
            sys.stderr.write(f"\r{title} [{'#' * length:<{WIDTH}}] {come}/{total}")
            sys.stderr.flush()

    advance(0)
    try:
        yield advance
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
