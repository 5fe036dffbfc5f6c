"""A progress bar on the standard error stream, if that is a terminal."""

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
    """Return a function that advances the bar by a number of rows; without a terminal it does nothing.

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
    bar = rich.Progress(*columns, transient=True, console=None if console is None else console.Console(stderr=True))
    with bar as progress:
        task = progress.add_task(title, total=total, completed=done)
        yield lambda count: progress.update(task, advance=count)


@contextmanager
def _plain_bar(title: str, total: int, done: int) -> Iterator[Callable[[int], None]]:
    current, drawn = done, -1

    def advance(count: int) -> None:
        nonlocal current, drawn
        current += count
        length = WIDTH * current // max(1, total)
        if length != drawn:
            drawn = length
            sys.stderr.write(f"\r{title} [{'#' * length:<{WIDTH}}] {current}/{total}")
            sys.stderr.flush()

    advance(0)
    try:
        yield advance
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
