"""Which rows are bad: those that cannot be decoded, or that a user's function raises on, found by halving what fails.

Nothing here knows what a row is. Something is attempted with all rows; if that fails, with halves of them, down to the single
rows that fail by themselves; and then with all others together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa

from penstock._engine.decode.arrow import CellError, decode
from penstock._engine.query.values import Batch, Column, raised_by_map
from penstock.model import IntArray

__all__ = ["AT", "BadRow", "UnreadableCellError", "bad_row_of", "code_of", "decode_good", "find_bad_rows", "place_of"]

Result = TypeVar("Result")

AT = "_at"
"""The column, never handed out, that says where a row lies as one number; below 0 for a row that is known to be bad."""

ROW_BITS = 40
"""Bits of the number that count the rows of a file; the others count files."""


class UnreadableCellError(CellError):
    """A cell whose bytes cannot be had: its file is to blame, and not its row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """What is wrong with a row.

    Attributes:
        column: The column whose cell cannot be decoded; None where a function raised.
        problem: What is wrong.
    """

    column: str | None
    problem: str


def code_of(file: int, rows: IntArray) -> IntArray:
    """Return rows of a file as numbers.

    Example:
        >>> place_of(int(code_of(3, np.array([7]))[0])), place_of(~int(code_of(3, np.array([7]))[0]))
        ((3, 7), (3, 7))
    """
    return (file << ROW_BITS) | rows


def place_of(code: int) -> tuple[int, int]:
    """Return the file and the row that a number means, good or bad."""
    code = ~code if code < 0 else code
    return code >> ROW_BITS, code & ((1 << ROW_BITS) - 1)


def bad_row_of(error: BaseException) -> BadRow | None:
    """Return what an error says of a row; None where something else is to blame."""
    cause = error if isinstance(error, CellError) else error.__cause__
    if isinstance(cause, CellError):
        lost = cause.row is None or isinstance(cause, UnreadableCellError)
        return None if lost else BadRow(column=cause.column, problem=cause.problem)
    name = raised_by_map(error) if isinstance(error, Exception) else None
    if name is None or isinstance(error, MemoryError):
        return None
    return BadRow(column=None, problem=f"map {name} raised {type(error).__name__}: {error}")


def find_bad_rows(
    rows: IntArray, attempt: Callable[[IntArray], Result], told: Callable[[BaseException], BadRow | None] = bad_row_of
) -> tuple[Result | None, dict[int, BadRow]]:
    """Return what an attempt with rows gives, and which of them were left out of it; None where all were.

    Rows that fail by themselves are left out, and then those that are told not to go together with the ones before them.

    Args:
        rows: Numbers of rows.
        attempt: What is done with some of them. It is called more than once.
        told: What an error says of the rows that it was called with; None for an error that is none of theirs.

    Raises:
        Exception: What is nobody's fault alone.

    Example:
        >>> def attempt(rows):
        ...     if 5 in rows:
        ...         raise CellError("x", "it is five", 0)
        ...     return rows.tolist()
        >>> find_bad_rows(np.arange(3, 8), attempt)
        ([3, 4, 6, 7], {5: Trouble(column='x', problem='it is five')})
    """
    found: dict[int, BadRow] = {}
    looked = False
    while len(rows):
        try:
            return attempt(rows), found
        except Exception as error:
            problem = told(error)
            if problem is None:
                raise
            before = len(found)
            if not looked:
                _look(rows, attempt, told, found)
                looked = True
            elif (row := _blamed(error)) is not None:
                found[int(rows[row])] = problem
            if len(found) == before and _blamed(error) is None:
                raise
            rows = rows[~np.isin(rows, list(found))]
    return None, found


def _look(
    rows: IntArray,
    attempt: Callable[[IntArray], object],
    told: Callable[[BaseException], BadRow | None],
    found: dict[int, BadRow],
) -> None:
    """Find the rows that fail by themselves, of some that fail together."""
    half = len(rows) // 2
    for part in (rows[:half], rows[half:]):
        try:
            if len(part):
                attempt(part)
        except Exception as error:
            problem = told(error)
            if problem is None:
                raise
            if len(part) > 1:
                _look(part, attempt, told, found)
            else:
                found[int(part[0])] = problem


def _blamed(error: BaseException) -> int | None:
    """Return which of the rows that were attempted an error of a cell is about."""
    cause = error if isinstance(error, CellError) else error.__cause__
    return cause.row if isinstance(cause, CellError) else None


def decode_good(array: pa.ChunkedArray, column: Column) -> tuple[Batch, dict[int, BadRow]]:
    """Return a column of cells of a fixed size as arrays, and which rows of it cannot be decoded; those have any value.

    Raises:
        CellError: If it is not rows that are to blame.
    """
    bad: dict[int, BadRow] = {}
    rows = np.arange(len(array))
    nulls = np.flatnonzero(np.asarray(array.is_null())) if array.null_count else rows[:0]
    if len(nulls):  # all of which are treated alike
        _, first = find_bad_rows(nulls[:1], lambda some: decode(array.take(pa.array(some)), column))
        bad = dict.fromkeys(nulls.tolist(), first[int(nulls[0])]) if first else {}
        rows = np.setdiff1d(rows, nulls) if first else rows
    made, more = find_bad_rows(rows, lambda some: decode(array.take(pa.array(some)), column))
    bad.update(more)
    good = np.setdiff1d(rows, list(more))
    made = decode(array.slice(0, 0), column) if made is None else made
    found: Batch = {}
    for name, values in made.items():
        found[name] = np.zeros((len(array), *values.shape[1:]), values.dtype)
        found[name][good] = values
    return found, bad
