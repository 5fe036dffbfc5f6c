"""What is written to the terminal: lines, and tables; those by rich where it is installed and somebody looks."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

__all__ = ["counted", "format_bytes", "grouped", "line_width", "needs_rich", "say", "show", "visible"]

KILO = 1000
LINE, LINES = 120, 25
"""Characters of a line, where no terminal says how many it shows, and lines of a page, which no table is cut to."""

WORD, BETWEEN = 12, 3
"""Letters of a word that is not broken in a narrow table, and those between two columns."""


def say(text: str = "") -> None:
    """Write a line, at once: whoever waits may look through a pipe."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def line_width() -> int:
    """Return how many characters a line of the terminal shows."""
    return shutil.get_terminal_size((LINE, 0)).columns


def needs_rich(module: str, *, terminal: bool) -> ModuleType | None:
    """Return a module of rich; None where it is not installed, or nobody looks at a terminal."""
    if not terminal:
        return None
    try:
        return import_module(f"rich.{module}")
    except ImportError:
        return None


def show(headings: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[str] = ()) -> None:
    """Write a table; columns in which nothing stands are left out, and those of numbers lean to the right.

    Example:
        >>> show(["name", "note", "size"], [["a", "", "5"], ["bc", "", "10"]], numbers=["size"])
        name  size
        ----  ----
        a        5
        bc      10
    """
    filled = [at for at in range(len(headings)) if not rows or any(row[at] for row in rows)]
    headings = [headings[at] for at in filled]
    lines = [[visible(row[at]) for at in filled] for row in rows]
    terminal = sys.stdout.isatty()
    least = [max(map(_longest_word, [heading, *(line[at] for line in lines)])) for at, heading in enumerate(headings)]
    if terminal and sum(least) + BETWEEN * len(least) > line_width():
        _show_one_by_one(headings, lines)
        return
    tables = needs_rich("table", terminal=terminal)
    if tables is None:
        _show_plainly(headings, lines, numbers)
        return
    console, text, box = import_module("rich.console"), import_module("rich.text"), import_module("rich.box")
    table = tables.Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading, width in zip(headings, least, strict=True):
        table.add_column(heading, justify="right" if heading in numbers else "left", overflow="fold", min_width=width)
    for line in lines:
        table.add_row(*(text.Text(cell) for cell in line))  # as text, for [red] may be data
    console.Console(width=line_width(), height=LINES).print(table)  # which else takes a dumb terminal for one of 80


def _longest_word(text: str) -> int:
    return min(WORD, max(map(len, text.split()), default=0))


def _show_one_by_one(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Write a line for each cell, where the terminal is too narrow for a table."""
    width = max(map(len, headings[1:]), default=0)
    for title, *cells in lines:
        say(title)
        for heading, cell in zip(headings[1:], cells, strict=True):
            if cell:
                say(f"  {heading.ljust(width)}  {cell}")


def _show_plainly(headings: Sequence[str], lines: Sequence[Sequence[str]], numbers: Sequence[str]) -> None:
    every = [list(headings), ["-" * len(heading) for heading in headings], *map(list, lines)]
    widths = [max(len(line[at]) for line in every) for at in range(len(headings))]
    for place, width in enumerate(widths):
        every[1][place] = "-" * width
    for line in every:
        cells = [
            cell.rjust(width) if heading in numbers else cell.ljust(width)
            for cell, width, heading in zip(line, widths, headings, strict=True)
        ]
        say("  ".join(cells).rstrip())


def visible(text: str) -> str:
    r"""Return text in which nothing can move the cursor or colour the screen: what cannot be printed is escaped.

    Example:
        >>> visible("a\x1b[31mb")
        'a\\x1b[31mb'
    """
    return "".join(one if one.isprintable() else one.encode("unicode_escape", "surrogatepass").decode() for one in text)


def format_bytes(count: float) -> str:
    """Return a number of bytes as people say it.

    Example:
        >>> format_bytes(0), format_bytes(12_345), format_bytes(3e15)
        ('0 B', '12.3 kB', '3000 TB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if round(count, 0 if unit == "B" else 1) < KILO:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= KILO
    return f"{count:.0f} TB"


def grouped(count: float) -> str:
    """Return a number with its thousands apart.

    Example:
        >>> grouped(1234567)
        '1,234,567'
    """
    return f"{count:,.0f}"


def counted(count: int, noun: str) -> str:
    """Return how many there are of what.

    Example:
        >>> counted(1, "file"), counted(2000, "row")
        ('1 file', '2,000 rows')
    """
    return f"{grouped(count)} {noun}" + ("" if count == 1 else "s")
