"""Row groups become rows, or windows of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock._engine.row_groups.order import RowGroupTasks, Step
from penstock._engine.row_groups.reader import LoadedRowGroup, RowGroupReader, Values
from penstock.model import BoolArray
from penstock.petastorm._impl.row_group_job import WHOLE, LotJob, array_bytes, field_cells, field_values
from penstock.petastorm._impl.rows import Made, Rows
from penstock.petastorm._impl.values import cells_of, one_array
from penstock.petastorm.transform import TransformSpec
from penstock.petastorm.unischema import Unischema, row_type

__all__ = ["RowJob", "RowPredicate"]

ROWS_AT_ONCE = 4096
BYTES_AT_ONCE = 4 << 20
"""How many rows are made at a time, and how many bytes of arrays, so that the first come soon and not all lie in memory."""

LEAST = 16


@dataclass(frozen=True, slots=True)
class RowPredicate:
    """A predicate that is asked about each row."""

    predicate: Any
    schema: Unischema
    columns: Sequence[str]

    def __call__(self, loaded: LoadedRowGroup, reader: RowGroupReader) -> BoolArray:
        """Return which rows it includes."""
        whole = slice(0, loaded.count)
        cells = [field_cells(reader, loaded, self.schema.fields[name], whole) for name in self.columns]
        names, include = list(self.columns), self.predicate.do_include
        found = (bool(include(dict(zip(names, row, strict=True)))) for row in zip(*cells, strict=True))
        return np.fromiter(found, np.bool_, loaded.count)


class RowJob(LotJob):
    """Makes rows.

    Args:
        lots: The row groups.
        reader: What reads them.
        seed: Decides the order of rows in each, where there is one.
        schema: The fields that are read.
        made: The fields that rows have, where they are others.
        transform: A function that is run on each row.
        windows: What makes windows of rows.
    """

    def __init__(
        self,
        lots: RowGroupTasks,
        reader: RowGroupReader,
        seed: int | None,
        *,
        schema: Unischema,
        made: Unischema | None = None,
        transform: TransformSpec | None = None,
        windows: Any = None,
    ) -> None:
        """Store what is done."""
        super().__init__(lots, reader, seed)
        made = schema if made is None else made
        self._fields, self._transform, self._windows = list(schema.fields.values()), transform, windows
        self._name, self._names = made._name, tuple(made.fields)  # noqa: SLF001 - the name, which has no other way

    def pieces(self, read: LoadedRowGroup) -> Sequence[slice]:
        """Return rows some at a time; windows need all of them."""
        if read.count == 0 or self._windows is not None:
            return [slice(0, read.count)]
        rows = min(ROWS_AT_ONCE, max(LEAST, BYTES_AT_ONCE // max(1, self._row_bytes(read))))
        return [slice(start, min(start + rows, read.count)) for start in range(0, read.count, rows)]

    def weigh(self, read: LoadedRowGroup) -> tuple[int, int]:
        """Return what rows take as they are stored, and what is made of some of them."""
        each = self._row_bytes(read) * read.count
        return read.nbytes, each if self._windows is not None else min(each, max(BYTES_AT_ONCE, LEAST * self._row_bytes(read)))

    def _row_bytes(self, read: LoadedRowGroup) -> int:
        """Return what a row takes, about."""
        return max(array_bytes(self._reader, read), read.nbytes // max(1, read.count))

    def make(self, read: LoadedRowGroup, piece: slice) -> Rows | Made:
        """Return rows."""
        if read.count == 0:
            return Made([])
        return self._rows(self._columns(read, piece), piece.stop - piece.start)

    def dicts(self, step: Step) -> list[dict[str, Any]]:
        """Return the rows of a lot as dicts."""
        read = self.load(step)
        columns = self._columns(read, slice(0, read.count))
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def sent(self, step: Step) -> Mapping[str, Any]:
        """Return the columns of rows, as they cross."""
        read = self.load(step)
        whole = slice(0, read.count)
        if read.count == 0:
            return {"count": 0, "columns": {}, "missing": {}}
        if self._transform is not None:
            made = self._columns(read, whole)
            return {"count": read.count, "columns": {name: one_array(cells) for name, cells in made.items()}, "cells": True}
        values = {field.name: field_values(self._reader, read, field.name, whole) for field in self._fields}
        columns = {
            name: one.cells if isinstance(one.cells, np.ndarray) else one_array(one.cells) for name, one in values.items()
        }
        missing = {name: one.missing for name, one in values.items() if one.missing is not None}
        return {"count": read.count, "columns": columns, "missing": missing}

    def received(self, crossed: Mapping[str, Any]) -> Rows | Made:
        """Return rows of columns that have crossed."""
        columns: dict[str, list[Any]] = {}
        for name, cells in crossed["columns"].items():
            if crossed.get("cells"):
                columns[name] = list(cells)
            else:
                field = next(field for field in self._fields if field.name == name)
                columns[name] = cells_of(Values(cells=cells, missing=crossed["missing"].get(name)), field)
        return self._rows(columns, crossed["count"])

    def _columns(self, read: LoadedRowGroup, rows: slice) -> dict[str, list[Any]]:
        """Return the values of each field, as the function of the user leaves them."""
        columns = {field.name: field_cells(self._reader, read, field, rows) for field in self._fields}
        return columns if self._transform is None else self._transformed(columns, self._transform)

    def _transformed(self, columns: Mapping[str, list[Any]], transform: TransformSpec) -> dict[str, list[Any]]:
        names, function = list(columns), transform.func or _same
        made = [function(dict(zip(names, row, strict=True))) for row in zip(*columns.values(), strict=True)]
        if any(isinstance(row, tuple) for row in made):
            return {WHOLE: made}
        return dict(zip(self._names, map(list, zip(*(self._fitted(row, transform) for row in made), strict=True)), strict=True))

    def _fitted(self, row: Any, transform: TransformSpec) -> tuple[Any, ...]:
        """Return what a function made of a row, as the fields that it was said to have."""
        if not isinstance(row, Mapping):
            msg = f"The function of transform_spec returned {type(row).__name__}. A dict, or a tuple, was expected. Return one."
            raise TypeError(msg)
        left = {name: value for name, value in row.items() if name not in transform.removed_fields}
        if transform.selected_fields is not None:
            left = {name: left[name] for name in transform.selected_fields if name in left}
        if left.keys() != set(self._names):
            row_type(self._name, self._names)(**left)  # which says what is missing
        return tuple(left[name] for name in self._names)

    def _rows(self, columns: Mapping[str, list[Any]], count: int) -> Rows | Made:
        """Return rows of columns."""
        if count == 0:
            return Made([])
        if WHOLE in columns:
            return Made(columns[WHOLE])
        if self._windows is not None:
            return Made(self._windows.made(columns, count))
        return Rows(row_type(self._name, self._names), [columns[name] for name in self._names], count)


def _same(row: dict[str, Any]) -> dict[str, Any]:
    return row
