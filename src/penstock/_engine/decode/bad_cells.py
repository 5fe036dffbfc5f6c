"""Find the bad rows: those that cannot be decoded, or on which a user's function raises.

The search bisects: it attempts all rows, then halves of the rows that failed, down to single rows, and then all other rows
together. It does not depend on what an attempt does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa

from penstock._engine.decode.arrow import CellError, decode
from penstock._engine.query.query import Batch, ColumnDecoding, raised_by_map
from penstock.model import IntArray

Result = TypeVar("Result")

ROW_CODE = "_at"
"""The internal column of row codes: file and row in one number, which is negative for a known bad row."""

ROW_BITS = 40
"""Bits of a row code that hold the row; the higher bits hold the file."""


class UnreadableCellError(CellError):
    """A cell whose bytes cannot be read: the fault is in the file, not in the row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """The problem of a row, and the column whose cell cannot be decoded; None if a map raised."""

    column: str | None
    problem: str


def row_codes(file: int, rows: IntArray) -> IntArray:
    """Return the codes of rows of a file.

    Example:
        >>> file_and_row(int(row_codes(3, np.array([7]))[0])), file_and_row(~int(row_codes(3, np.array([7]))[0]))
        ((3, 7), (3, 7))
    """
    return (file << ROW_BITS) | rows


def file_and_row(code: int) -> tuple[int, int]:
    """Return the file and the row of a code, negative or not."""
    code = ~code if code < 0 else code
    return code >> ROW_BITS, code & ((1 << ROW_BITS) - 1)


def bad_row_of(error: BaseException) -> BadRow | None:
    """Return the bad row that an error describes; None if the error has another cause."""
    cause = error if isinstance(error, CellError) else error.__cause__
    if isinstance(cause, CellError):
        no_row = cause.row is None or isinstance(cause, UnreadableCellError)
        return None if no_row else BadRow(column=cause.column, problem=cause.problem)
    name = raised_by_map(error) if isinstance(error, Exception) else None
    if name is None or isinstance(error, MemoryError):
        return None
    return BadRow(column=None, problem=f"map {name} raised {type(error).__name__}: {error}")


def find_bad_rows(
    rows: IntArray, attempt: Callable[[IntArray], Result], classify: Callable[[BaseException], BadRow | None] = bad_row_of
) -> tuple[Result | None, dict[int, BadRow]]:
    """Return the result of an attempt without the bad rows, None if all are bad, and the bad rows.

    Bad rows are those that fail alone, and then those that fail together with the rows before them.

    Example:
        >>> def attempt(rows):
        ...     if 5 in rows:
        ...         raise CellError("x", "it is five", 0)
        ...     return rows.tolist()
        >>> find_bad_rows(np.arange(3, 8), attempt)
        ([3, 4, 6, 7], {5: BadRow(column='x', problem='it is five')})
    """
    bad: dict[int, BadRow] = {}
    bisected = False
    while len(rows):
        try:
            return attempt(rows), bad
        except Exception as error:
            problem = classify(error)
            if problem is None:
                raise
            before = len(bad)
            if not bisected:
                _bisect(rows, attempt, classify, bad)
                bisected = True
            elif (row := _row_in_error(error)) is not None:
                bad[int(rows[row])] = problem
            if len(bad) == before and _row_in_error(error) is None:
                raise
            rows = rows[~np.isin(rows, list(bad))]
    return None, bad


def _bisect(
    rows: IntArray,
    attempt: Callable[[IntArray], object],
    classify: Callable[[BaseException], BadRow | None],
    bad: dict[int, BadRow],
) -> None:
    """Add to `bad` the rows that fail alone, from rows that fail together."""
    half = len(rows) // 2
    for part in (rows[:half], rows[half:]):
        try:
            if len(part):
                attempt(part)
        except Exception as error:
            problem = classify(error)
            if problem is None:
                raise
            if len(part) > 1:
                _bisect(part, attempt, classify, bad)
            else:
                bad[int(part[0])] = problem


def _row_in_error(error: BaseException) -> int | None:
    """Return the position of the row that a cell error names."""
    cause = error if isinstance(error, CellError) else error.__cause__
    return cause.row if isinstance(cause, CellError) else None


def decode_good_rows(array: pa.ChunkedArray, column: ColumnDecoding) -> tuple[Batch, dict[int, BadRow]]:
    """Return a column with cells of a fixed size as arrays, and its bad rows, whose values are arbitrary."""

    def decode_rows(rows: IntArray) -> Batch:
        return decode(array.take(pa.array(rows)), column)

    bad: dict[int, BadRow] = {}
    rows = np.arange(len(array))
    nulls = np.flatnonzero(np.asarray(array.is_null())) if array.null_count else rows[:0]
    if len(nulls):  # one null stands for all
        _, first = find_bad_rows(nulls[:1], decode_rows)
        bad = dict.fromkeys(nulls.tolist(), first[int(nulls[0])]) if first else {}
        rows = np.setdiff1d(rows, nulls) if first else rows
    decoded, failed = find_bad_rows(rows, decode_rows)
    good = np.setdiff1d(rows, list(failed))
    decoded = decode(array.slice(0, 0), column) if decoded is None else decoded
    whole: Batch = {}
    for name, values in decoded.items():
        whole[name] = np.zeros((len(array), *values.shape[1:]), values.dtype)
        whole[name][good] = values
    return whole, {**bad, **failed}
