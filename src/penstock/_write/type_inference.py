"""Types of columns that follow from the first rows of a write without a schema, also of lists, structs and nulls."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from penstock._engine.write.encode import ColumnEncoder, TableEncoder, copy_if_writeable, fill_missing
from penstock._engine.write.schema import encoder_from_arrow, encoder_from_schema
from penstock._engine.write.validate import CONVERSION_ERRORS, Check, InvalidCellError, describe
from penstock._write.input import infer_schema
from penstock.errors import ArgumentError
from penstock.schema import Schema
from penstock.schema.json import KEY, dump

__all__ = ["FirstRows", "infer_encoder"]

MAX_ROWS, MAX_VALUES = 1000, 1 << 20
"""Types are inferred from at most so many rows, and so many values inside their cells."""

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
"""Values that one Arrow type can hold; a datetime is tested before."""


class FirstRows:
    """Rows that are kept until there are enough to infer types: single lists and nulls may not show them.

    With `fill`, later rows may lack columns of the first.

    Example:
        >>> first = FirstRows(fill=False)
        >>> first.must_wait({"id": 1}), first.must_wait({"tokens": []})
        (False, True)
        >>> first.add({"tokens": []}, 0), first.add({"tokens": [1, 2.5]}, 1)
        (None, None)
        >>> first.infer_encoder(lambda schema: schema).arrow.field("tokens").type
        ListType(list<item: double>)
    """

    def __init__(self, *, fill: bool) -> None:
        """Store the option; there are no rows yet."""
        self.rows: list[tuple[int, dict[str, Any]]] = []
        self._fill = fill
        self._num_values = 0

    def must_wait(self, row: Mapping[str, Any]) -> bool:
        """Return whether more rows are needed to infer the types of this one, or of earlier ones."""
        return bool(self.rows) or any(cell is None or _is_nested(cell) for cell in row.values())

    def add(self, row: Mapping[str, Any], number: int) -> None:
        """Add a copy of a row."""
        if self.rows:
            names = self.rows[0][1].keys()
            row = fill_missing(row, number, names, names if self._fill else (), names)
        else:
            infer_schema({name: cell for name, cell in row.items() if cell is not None and not _is_nested(cell)}, batch=False)
        self.rows.append((number, {name: _copy(cell) for name, cell in row.items()}))
        self._num_values += sum(map(_count_values, row.values()))

    @property
    def is_full(self) -> bool:
        """Whether there are as many rows as types are inferred from."""
        return len(self.rows) >= MAX_ROWS or self._num_values >= MAX_VALUES

    def has_cells_like(self, item: Mapping[str, Any]) -> bool:
        """Return whether a mapping of lists is a row like these, and not a batch: no row has a single value in its columns."""
        return all(cell is None or _is_nested(cell) for _, row in self.rows for name, cell in row.items() if name in item)

    def infer_encoder(self, add_codecs: Callable[[Schema], Schema]) -> TableEncoder:
        """Return the encoder that follows from the rows; `add_codecs` returns a schema with the codecs of the format."""
        first = self.rows[0][1]
        batch = {name: [row[name] for _, row in self.rows] for name in first}
        # Only the first row decides the type of single values, so a null there has no type.
        unknown = [name for name, cells in batch.items() if first[name] is None and not any(map(_is_nested, cells))]
        infer_schema({name: [None] for name in unknown}, batch=True)
        return infer_encoder(batch, add_codecs, nullable=self._fill)


def infer_encoder(batch: Mapping[str, Any], add_codecs: Callable[[Schema], Schema], *, nullable: bool) -> TableEncoder:
    """Return the encoder that follows from a batch; lists, structs and Arrow arrays get Arrow types."""
    nested = {name: kind for name, cells in batch.items() if (kind := _nested_type(name, cells)) is not None}
    plain = infer_schema({name: cells for name, cells in batch.items() if name not in nested}, batch=True, nullable=nullable)
    if not nested:
        return replace(encoder_from_schema(add_codecs(plain)), optional=frozenset())
    coded = encoder_from_schema(add_codecs(plain)) if len(plain) else None
    fields = [pa.field(name, nested[name]) if name in nested or coded is None else coded.named(name).arrow for name in batch]
    metadata = None if coded is None else {KEY: dump(coded.schema).encode()}
    encoder = encoder_from_arrow(pa.schema(fields, metadata=metadata))
    columns = tuple(_with_advice(each) if each.field.name in nested else each for each in encoder.columns)
    return replace(encoder, columns=columns)


def _with_advice(column: ColumnEncoder) -> ColumnEncoder:
    """Return a column whose errors say that its type was inferred."""
    return replace(column, check=partial(_check_inferred, column.check))


def _check_inferred(check: Check, cell: Any) -> Any:
    try:
        return check(cell)
    except InvalidCellError as error:
        error.args = (f"{error} The type was inferred from the first rows. {ADVICE}",)
        raise


def _is_nested(cell: Any) -> bool:
    return isinstance(cell, (list, tuple, Mapping))


def _nested_type(name: str, cells: Any) -> pa.DataType | None:
    """Return the Arrow type of cells that are lists or mappings, or raise `ArgumentError`; None for other cells."""
    if isinstance(cells, (pa.Array, pa.ChunkedArray)):
        return cells.type
    if cells is None or (isinstance(cells, np.ndarray) and cells.dtype.kind != "O") or not any(map(_is_nested, cells)):
        return None
    _check_families(name, cells)
    try:
        kind = pa.array(list(cells)).type
    except CONVERSION_ERRORS as error:
        msg = f"write() got cells of column {name!r} without a common type: {str(error).rstrip('.')}. {ADVICE}"
        raise ArgumentError(msg) from error
    if _is_unknown(kind):
        raise ArgumentError(
            f"write() got {describe(next(filter(_is_nested, cells)))} in column {name!r}; expected values that show its type, "
            f"and the first rows have only {kind}. {ADVICE}"
        )
    return kind


def _is_unknown(kind: pa.DataType) -> bool:
    """Return whether a part of a type is unknown."""
    inner = [kind.field(at).type for at in range(kind.num_fields)]
    return pa.types.is_null(kind) or (pa.types.is_struct(kind) and not inner) or any(map(_is_unknown, inner))


def _check_families(name: str, cells: Sequence[Any]) -> None:
    """Refuse values that Arrow would store as another kind beside others: text as bytes, moments as days."""
    seen: dict[tuple[str, ...], tuple[str, Any]] = {}
    for path, value in _leaves(cells, ()):
        family = _family(value)
        first_family, first = seen.setdefault(path, (family, value))
        if family != first_family:
            got = f"{describe(first)} and {describe(value)}"
            raise ArgumentError(f"write() got {got} in column {name!r}; expected values of one type. {ADVICE}")


def _leaves(cell: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the single values inside a cell, each with the names of the struct fields around it."""
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


def _copy(cell: Any) -> Any:
    """Return a deep copy of a cell, except of values that the caller cannot change."""
    if isinstance(cell, Mapping):
        return {name: _copy(value) for name, value in cell.items()}
    if isinstance(cell, (list, tuple)):
        return [_copy(value) for value in cell]
    return bytes(cell) if isinstance(cell, bytearray) else copy_if_writeable(cell)


def _count_values(cell: Any) -> int:
    """Return the approximate number of values in a cell; eight letters or bytes count as one."""
    if isinstance(cell, Mapping):
        return 1 + sum(map(_count_values, cell.values()))
    if isinstance(cell, (list, tuple)):
        return 1 + (len(cell) if cell and isinstance(cell[0], (int, float)) else sum(map(_count_values, cell)))
    if isinstance(cell, np.ndarray):
        return 1 + cell.nbytes // 8
    return 1 + (len(cell) // 8 if isinstance(cell, (str, bytes, bytearray)) else 0)
