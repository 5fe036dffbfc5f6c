"""The first rows of a write without a schema: what their columns are, lists, structs and nulls among them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from penstock._engine.write.encode import ColumnEncoder, TableEncoder, complete, owned
from penstock._engine.write.input import infer
from penstock._engine.write.schema import of_arrow, of_schema
from penstock._engine.write.validate import REFUSED, Check, Misfit, told
from penstock.errors import ArgumentError
from penstock.schema import Schema
from penstock.schema.json import KEY, dump

__all__ = ["FirstRows", "columns_of_batch"]

MOST_ROWS, MOST_VALUES = 1000, 1 << 20
"""From how many rows types follow, at most, and from how many values inside of their cells."""

ADVICE = "Give a schema: penstock.write(url, pyarrow.schema(...), data)."
FAMILIES = (
    ("a truth value", (bool, np.bool_)),
    ("a number", (int, float, np.integer, np.floating)),
    ("text", (str,)),
    ("bytes", (bytes, bytearray)),
    ("a decimal", (Decimal,)),
    ("a date", (dt.date,)),
    ("a time of day", (dt.time,)),
    ("a duration", (dt.timedelta,)),
)
"""Values that one type of Arrow holds; a datetime is looked at before."""


class FirstRows:
    """Rows that wait until there are enough of them to tell their types: lists and nulls may tell little at first.

    Args:
        fill: Whether a row may lack a column of the first.

    Example:
        >>> first = FirstRows(fill=False)
        >>> first.waits({"id": 1}), first.waits({"tokens": []})
        (False, True)
        >>> first.add({"tokens": []}, 0), first.add({"tokens": [1, 2.5]}, 1)
        (None, None)
        >>> first.columns(lambda schema: schema).arrow.field("tokens").type
        ListType(list<item: double>)
    """

    def __init__(self, *, fill: bool) -> None:
        """Store what rows may lack."""
        self.rows: list[tuple[int, dict[str, Any]]] = []
        self._fill = fill
        self._values = 0

    def waits(self, row: Mapping[str, Any]) -> bool:
        """Return whether more rows are needed to tell the types of this one, or of those before it."""
        return bool(self.rows) or any(cell is None or _is_nested(cell) for cell in row.values())

    def add(self, row: Mapping[str, Any], number: int) -> None:
        """Take a row; what it holds may be changed afterwards.

        Raises:
            ArgumentError: If no type follows from a cell of the first row.
            DataError: If it has other columns than the first.
        """
        if self.rows:
            names = self.rows[0][1].keys()
            row = complete(row, number, names, names if self._fill else (), names)
        else:
            infer({name: cell for name, cell in row.items() if cell is not None and not _is_nested(cell)}, batch=False)
        self.rows.append((number, {name: _copied(cell) for name, cell in row.items()}))
        self._values += sum(map(_size, row.values()))

    @property
    def full(self) -> bool:
        """Whether there are as many rows as are looked at."""
        return len(self.rows) >= MOST_ROWS or self._values >= MOST_VALUES

    def has_cells_like(self, item: Mapping[str, Any]) -> bool:
        """Return whether a mapping of lists is a row like these, and not a batch of such: none has single values there."""
        return all(cell is None or _is_nested(cell) for _, row in self.rows for name, cell in row.items() if name in item)

    def columns(self, suit: Callable[[Schema], Schema]) -> TableEncoder:
        """Return the columns that follow from the rows.

        Args:
            suit: Gives fields the codecs of the format that is written.

        Raises:
            ArgumentError: If none follow.
        """
        first = self.rows[0][1]
        batch = {name: [row[name] for _, row in self.rows] for name in first}
        # A single value has the type of the first row's, and no other row changes that.
        infer(
            {name: [None] for name, cells in batch.items() if first[name] is None and not any(map(_is_nested, cells))},
            batch=True,
        )
        return columns_of_batch(batch, suit, nullable=self._fill)


def columns_of_batch(batch: Mapping[str, Any], suit: Callable[[Schema], Schema], *, nullable: bool) -> TableEncoder:
    """Return the columns that follow from a batch; lists, structs and Arrow's arrays have types of Arrow.

    Args:
        batch: The columns of cells.
        suit: Gives fields the codecs of the format that is written.
        nullable: Whether all of them may be null.

    Raises:
        ArgumentError: If no type follows from a column.
    """
    nested = {name: kind for name, cells in batch.items() if (kind := _nested_type(name, cells)) is not None}
    plain = infer({name: cells for name, cells in batch.items() if name not in nested}, batch=True, nullable=nullable)
    if not nested:
        return replace(of_schema(suit(plain)), optional=frozenset())
    coded = of_schema(suit(plain)) if len(plain) else None
    fields = [pa.field(name, nested[name]) if name in nested or coded is None else coded.named(name).arrow for name in batch]
    found = of_arrow(pa.schema(fields, metadata=None if coded is None else {KEY: dump(coded.schema).encode()}))
    return replace(found, columns=tuple(_advised(each) if each.field.name in nested else each for each in found.columns))


def _advised(column: ColumnEncoder) -> ColumnEncoder:
    """Return a column whose type followed from the first rows, which is said where a later row contradicts it."""
    return replace(column, check=partial(_checked, column.check))


def _checked(check: Check, cell: Any) -> Any:
    try:
        return check(cell)
    except Misfit as misfit:
        misfit.args = (f"{misfit} The type was inferred from the first rows. {ADVICE}",)
        raise


def _is_nested(cell: Any) -> bool:
    return isinstance(cell, (list, tuple, Mapping))


def _nested_type(name: str, cells: Any) -> pa.DataType | None:
    """Return the type of Arrow that holds cells which are lists or mappings; None where they are something else.

    Raises:
        ArgumentError: If there is none.
    """
    if isinstance(cells, (pa.Array, pa.ChunkedArray)):
        return cells.type
    if cells is None or (isinstance(cells, np.ndarray) and cells.dtype.kind != "O") or not any(map(_is_nested, cells)):
        return None
    _check_families(name, cells)
    try:
        found = pa.array(list(cells)).type
    except REFUSED as error:
        msg = f"write() got cells of column {name!r} that have no common type: {str(error).rstrip('.')}. {ADVICE}"
        raise ArgumentError(msg) from error
    if _is_unknown(found):
        msg = (
            f"write() got {told(next(filter(_is_nested, cells)))} in column {name!r}; expected values that tell its type, and "
            f"the first rows have only {found}. {ADVICE}"
        )
        raise ArgumentError(msg)
    return found


def _is_unknown(kind: pa.DataType) -> bool:
    """Return whether a type has a part that nothing is known of."""
    inside = [kind.field(at).type for at in range(kind.num_fields)]
    return pa.types.is_null(kind) or (pa.types.is_struct(kind) and not inside) or any(map(_is_unknown, inside))


def _check_families(name: str, cells: Sequence[Any]) -> None:
    """Refuse values that Arrow would store as something else, beside others: text as bytes, moments as days.

    Raises:
        ArgumentError: If there are such.
    """
    seen: dict[tuple[str, ...], tuple[str, Any]] = {}
    for path, value in _leaves(cells, ()):
        family = _family(value)
        before, first = seen.setdefault(path, (family, value))
        if family != before:
            msg = f"write() got {told(first)} and {told(value)} in column {name!r}; expected values of one type. {ADVICE}"
            raise ArgumentError(msg)


def _leaves(cell: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the single values inside of a cell, with the fields of structs that they are in."""
    if isinstance(cell, Mapping):
        for key, value in cell.items():
            yield from _leaves(value, (*path, str(key)))
    elif isinstance(cell, (list, tuple)) or (isinstance(cell, np.ndarray) and cell.dtype.kind == "O"):
        for value in cell:
            yield from _leaves(value, path)
    elif isinstance(cell, np.ndarray):
        yield from ((path, value) for value in cell.reshape(-1)[:1])
    elif cell is not None:
        yield path, cell


def _family(value: Any) -> str:
    if isinstance(value, dt.datetime):
        return "a moment" if value.tzinfo is None else "a moment of a zone"
    return next((family for family, kinds in FAMILIES if isinstance(value, kinds)), type(value).__name__)


def _copied(cell: Any) -> Any:
    """Return a cell that the caller cannot change."""
    if isinstance(cell, Mapping):
        return {name: _copied(value) for name, value in cell.items()}
    if isinstance(cell, (list, tuple)):
        return [_copied(value) for value in cell]
    return bytes(cell) if isinstance(cell, bytearray) else owned(cell)


def _size(cell: Any) -> int:
    """Return about how many values a cell has; eight letters or bytes count as one."""
    if isinstance(cell, Mapping):
        return 1 + sum(map(_size, cell.values()))
    if isinstance(cell, (list, tuple)):
        return 1 + (len(cell) if cell and isinstance(cell[0], (int, float)) else sum(map(_size, cell)))
    if isinstance(cell, np.ndarray):
        return 1 + cell.nbytes // 8
    return 1 + (len(cell) // 8 if isinstance(cell, (str, bytes, bytearray)) else 0)
