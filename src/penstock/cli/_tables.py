"""Output to the terminal: lines, and tables, which `rich` draws if it is installed and the output is a terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

__all__ = ["counted", "format_bytes", "grouped", "line_width", "needs_rich", "say", "show", "visible"]

KILO = 1000
LINE, LINES = 120, 25
"""The width of a line without a terminal, and a number of lines for `rich`, which does not truncate tables to it."""

WORD, GAP = 12, 3
"""The length up to which words are not broken in a narrow table, and the space between two columns."""


def say(text: str = "") -> None:
    """Write a line and flush it, also into a pipe."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def line_width() -> int:
    """Return the width of the terminal."""
    return shutil.get_terminal_size((LINE, 0)).columns


def needs_rich(module: str, *, terminal: bool) -> ModuleType | None:
    """Return a module of rich; None if it is not installed or there is no terminal."""
    if not terminal:
        return None
    try:
        return import_module(f"rich.{module}")
    except ImportError:
        return None


def show(headings: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[str] = ()) -> None:
    """Write a table without its empty columns; columns of numbers are right-aligned.

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
    widths = [max(map(_longest_word, [heading, *(line[at] for line in lines)])) for at, heading in enumerate(headings)]
    if terminal and sum(widths) + GAP * len(widths) > line_width():
        _show_one_by_one(headings, lines)
        return
    tables = needs_rich("table", terminal=terminal)
    if tables is None:
        _show_plainly(headings, lines, numbers)
        return
    console, text, box = import_module("rich.console"), import_module("rich.text"), import_module("rich.box")
    table = tables.Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading, width in zip(headings, widths, strict=True):
        table.add_column(heading, justify="right" if heading in numbers else "left", overflow="fold", min_width=width)
    for line in lines:
        table.add_row(*(text.Text(cell) for cell in line))  # as text, since [red] can be data
    console.Console(width=line_width(), height=LINES).print(table)  # the default for a dumb terminal is 80


def _longest_word(text: str) -> int:
    return min(WORD, max(map(len, text.split()), default=0))


def _show_one_by_one(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Write a line for each cell, for terminals that are too narrow for a table."""
    width = max(map(len, headings[1:]), default=0)
    for title, *cells in lines:
        say(title)
        for heading, cell in zip(headings[1:], cells, strict=True):
            if cell:
                say(f"  {heading.ljust(width)}  {cell}")


def _show_plainly(headings: Sequence[str], lines: Sequence[Sequence[str]], numbers: Sequence[str]) -> None:
    widths = [max(len(line[at]) for line in (headings, *lines)) for at in range(len(headings))]
    for line in (headings, ["-" * width for width in widths], *lines):
        cells = [
            cell.rjust(width) if heading in numbers else cell.ljust(width)
            for cell, width, heading in zip(line, widths, headings, strict=True)
        ]
        say("  ".join(cells).rstrip())


def visible(text: str) -> str:
    r"""Return text with all unprintable characters escaped, so that nothing moves the cursor or colours the screen.

    Example:
        >>> visible("a\x1b[31mb")
        'a\\x1b[31mb'
    """
    return "".join(one if one.isprintable() else one.encode("unicode_escape", "surrogatepass").decode() for one in text)


def format_bytes(count: float) -> str:
    """Return a number of bytes with a unit.

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
    """Return a number with thousands separators.

    Example:
        >>> grouped(1234567)
        '1,234,567'
    """
    return f"{count:,.0f}"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun.

    Example:
        >>> counted(1, "file"), counted(2000, "row")
        ('1 file', '2,000 rows')
    """
    return f"{grouped(count)} {noun}" + ("" if count == 1 else "s")
