"""What is done with each row group: it is read, filtered and decoded, and becomes rows, windows of rows or a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._engine.decode import CellError
from penstock._engine.lot_reader import Loaded, LotReader, Values
from penstock._engine.lots import Lots, Step
from penstock._engine.read import Unit
from penstock._engine.stored import StoredBlobs
from penstock.blobs import Blobs
from penstock.codecs import Npy
from penstock.model import BoolArray
from penstock.petastorm._carry import packed, unpacked
from penstock.petastorm._values import batch_column, categorical, cells_of, one_array, stacked, text_array, whole_again
from penstock.petastorm.transform import TransformSpec
from penstock.petastorm.unischema import Unischema, row_type
from penstock.petastorm.utils import DecodeFieldError
from penstock.randomness import permutation

__all__ = ["BatchJob", "BatchPredicate", "Made", "RowJob", "RowPredicate", "Rows"]

ROWS_AT_ONCE = 4096
BYTES_AT_ONCE = 4 << 20
"""How many rows are made at a time, and how many bytes of arrays, so that the first come soon and not all lie in memory."""

LEAST = 16
EXACT = 1 << 53
"""Whole numbers up to this are the same as floats."""

SWELLS = 8
"""How many times as large an image is in memory as it is stored, about, where its size differs from row to row."""

WHOLE = "\0rows"
"""The name under which rows cross that are no dicts."""


@dataclass(frozen=True, slots=True)
class RowPredicate:
    """A predicate that is asked about each row."""

    predicate: Any
    schema: Unischema
    columns: Sequence[str]

    def __call__(self, loaded: Loaded, reader: LotReader) -> BoolArray:
        """Return which rows it includes."""
        whole = slice(0, loaded.count)
        cells = [_cells(reader, loaded, self.schema.fields[name], whole) for name in self.columns]
        names, include = list(self.columns), self.predicate.do_include
        found = (bool(include(dict(zip(names, row, strict=True)))) for row in zip(*cells, strict=True))
        return np.fromiter(found, np.bool_, loaded.count)


@dataclass(frozen=True, slots=True)
class BatchPredicate:
    """A predicate that is asked about a whole row group, as a data frame."""

    predicate: Any
    columns: Sequence[str]

    def __call__(self, loaded: Loaded, reader: LotReader) -> BoolArray:
        """Return which rows it includes."""
        answer = np.asarray(self.predicate.do_include(_frame(reader, loaded, self.columns)))
        if answer.shape != (loaded.count,):
            msg = (
                f"The predicate answered {answer.shape} for {loaded.count} rows. In make_batch_reader it is given a data "
                "frame, and must return a boolean for each of its rows."
            )
            raise ValueError(msg)
        return answer.astype(np.bool_)


def _cells(reader: LotReader, loaded: Loaded, field: Any, rows: slice) -> list[Any]:
    """Return the values of a field, as rows hold them.

    Raises:
        DecodeFieldError: If one cannot be decoded.
    """
    return cells_of(_values(reader, loaded, field.name, rows), field.numpy_dtype, field.shape)


def _values(reader: LotReader, loaded: Loaded, name: str, rows: slice) -> Values:
    try:
        return reader.values(loaded, name, rows)
    except CellError as error:
        raise DecodeFieldError(f'Decoding field "{name}" failed: {error.problem}') from error


def _frame(reader: LotReader, loaded: Loaded, names: Sequence[str]) -> Any:
    """Return columns as a data frame."""
    import pandas as pd

    found: dict[str, Any] = {}
    for name in names:
        column = loaded.columns[name]
        if isinstance(column, pa.Array):
            found[name] = _pandas(column)
        else:
            cells = one_array(list(_values(reader, loaded, name, slice(0, loaded.count)).cells))
            found[name] = pd.Series(cells, dtype=object)
    return pd.DataFrame(found, index=range(loaded.count))


def _pandas(column: pa.Array) -> Any:
    """Return a column as functions written for Petastorm expect it, whatever pandas of today makes of it.

    Text is objects, None where it is null. Whole numbers with nulls are floats, unless a float would be another number.
    """
    import pandas as pd

    if pa.types.is_nested(column.type) or pa.types.is_string(column.type):
        return pd.Series(one_array(column.to_numpy(zero_copy_only=False)), dtype=object)
    if _is_floated(column) and any(abs(value) > EXACT for value in column.drop_null().to_pylist()):
        return pd.Series(one_array(column.to_pylist()), dtype=object)
    return pd.Series(column.to_pandas().array)


def _is_floated(column: Any) -> bool:
    """Return whether pandas has floats for a column of whole numbers, because some are null."""
    return isinstance(column, pa.Array) and pa.types.is_integer(column.type) and column.null_count > 0


class _LotJob:
    """What both kinds of jobs have in common: lots, what reads them, and in which order their rows come."""

    def __init__(self, lots: Lots, reader: LotReader, seed: int | None) -> None:
        """Store them; rows are as they are stored where there is no seed."""
        self._lots, self._reader, self._seed = lots, reader, seed

    def __getstate__(self) -> dict[str, Any]:
        """Return itself packed, with the functions of the user."""
        return {"packed": packed(self.__dict__)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Unpack itself."""
        self.__dict__.update(unpacked(state["packed"]))

    def load(self, step: Step) -> Loaded:
        """Return the rows of a lot."""
        loaded = self._reader.load(Unit.of(self._lots.units, step.lot))
        if self._seed is None or loaded.count < 2:  # noqa: PLR2004 - what has an order
            return loaded
        place = (self._seed, step.epoch, int(self._lots.ordinal[step.lot]), int(self._lots.units.start[step.lot]))
        return loaded.taken(permutation(loaded.count, "rows of a lot", *place))


class RowJob(_LotJob):
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
        lots: Lots,
        reader: LotReader,
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

    def pieces(self, read: Loaded) -> Sequence[slice]:
        """Return rows some at a time; windows need all of them."""
        if read.count == 0 or self._windows is not None:
            return [slice(0, read.count)]
        rows = min(ROWS_AT_ONCE, max(LEAST, BYTES_AT_ONCE // max(1, self._row_bytes(read))))
        return [slice(start, min(start + rows, read.count)) for start in range(0, read.count, rows)]

    def weigh(self, read: Loaded) -> tuple[int, int]:
        """Return what rows take as they are stored, and what is made of some of them."""
        each = self._row_bytes(read) * read.count
        return read.nbytes, each if self._windows is not None else min(each, max(BYTES_AT_ONCE, LEAST * self._row_bytes(read)))

    def _row_bytes(self, read: Loaded) -> int:
        """Return what a row takes, about."""
        return max(_array_bytes(self._reader, read), read.nbytes // max(1, read.count))

    def make(self, read: Loaded, piece: slice) -> Rows | Made:
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
        values = {field.name: _values(self._reader, read, field.name, whole) for field in self._fields}
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
                columns[name] = cells_of(
                    Values(cells=cells, missing=crossed["missing"].get(name)), field.numpy_dtype, field.shape
                )
        return self._rows(columns, crossed["count"])

    def _columns(self, read: Loaded, rows: slice) -> dict[str, list[Any]]:
        """Return the values of each field, as the function of the user leaves them."""
        columns = {field.name: _cells(self._reader, read, field, rows) for field in self._fields}
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


def _array_bytes(reader: LotReader, read: Loaded) -> int:
    """Return what the arrays of a row take: by their shapes, or by what is stored where sizes differ."""
    found = 0
    for column in reader.columns.values():
        field, cells = column.field, read.columns.get(column.name)
        if field is None or column.codec is None:
            continue
        if None not in field.shape:
            found += field.dtype.itemsize * prod(side or 0 for side in field.shape)
        elif isinstance(cells, Blobs | StoredBlobs):
            stored = int((cells.stop - cells.start).sum()) // max(1, read.count)
            found += stored if isinstance(column.codec, Npy) else SWELLS * stored
    return found


def _same(row: dict[str, Any]) -> dict[str, Any]:
    return row


class Rows:
    """Rows that are made one by one when they are asked for, of columns whose values are all there.

    Named tuples that lie in memory by the thousand are looked at by the garbage collector again and again, which takes longer
    than to make them.
    """

    def __init__(self, kind: Any, columns: Sequence[list[Any]], count: int) -> None:
        """Store the type of the rows, and their columns."""
        self._kind, self._columns, self._count = kind, columns, count

    def __len__(self) -> int:
        """Return how many there are."""
        return self._count

    def after(self, first: int) -> Rows:
        """Return the rows from one on."""
        return Rows(self._kind, [column[first:] for column in self._columns], self._count - first)

    def begun(self) -> tuple[Iterator[Any], Iterator[Any]]:
        """Return an iterator over the rows, and one whose length is that of the rows which are left."""
        if not self._columns:
            left = iter([self._kind()] * self._count)
            return left, left
        cells = [iter(column) for column in self._columns]
        return map(partial(tuple.__new__, self._kind), zip(*cells, strict=True)), cells[-1]


class Made:
    """Rows, windows or batches that are made already."""

    def __init__(self, items: Sequence[Any]) -> None:
        """Store them."""
        self._items = items

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over them."""
        return iter(self._items)

    def after(self, first: int) -> Made:
        """Return those from one on."""
        return Made(self._items[first:])

    def begun(self) -> tuple[Iterator[Any], Iterator[Any]]:
        """Return an iterator over them, whose length is that of those which are left."""
        found = iter(self._items)
        return found, found


class BatchJob(_LotJob):
    """Makes batches, one of each row group.

    Args:
        lots: The row groups.
        reader: What reads them.
        seed: Decides the order of rows in each, where there is one.
        schema: The fields that are read.
        made: The fields that batches have.
        transform: A function that is run on the data frame of each row group.
        partitions: The values of columns that directories name.
    """

    def __init__(
        self,
        lots: Lots,
        reader: LotReader,
        seed: int | None,
        *,
        schema: Unischema,
        made: Unischema,
        transform: TransformSpec | None = None,
        partitions: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        """Store what is done."""
        super().__init__(lots, reader, seed)
        self._fields, self._made, self._transform = dict(schema.fields), dict(made.fields), transform
        self._name, self._partitions = made._name, dict(partitions or {})  # noqa: SLF001 - the name, which has no other way

    def pieces(self, read: Loaded) -> Sequence[slice]:
        """Return all rows at once."""
        return [slice(0, read.count)]

    def weigh(self, read: Loaded) -> tuple[int, int]:
        """Return what rows take as they are stored; as arrays they take about as much."""
        return read.nbytes, max(read.nbytes, _array_bytes(self._reader, read) * read.count)

    def make(self, read: Loaded, piece: slice) -> Made:  # noqa: ARG002 - there is one
        """Return the batch of a row group; none where the function of the user has left no rows."""
        return self._batches(self._columns(read) if read.count else {})

    def sent(self, step: Step) -> Mapping[str, Any]:
        """Return the columns of a batch, as they cross."""
        read = self.load(step)
        return {"columns": self._columns(read) if read.count else {}}

    def received(self, crossed: Mapping[str, Any]) -> Made:
        """Return the batch of columns that have crossed."""
        return self._batches(crossed["columns"])

    def _columns(self, read: Loaded) -> dict[str, Any]:
        if self._transform is not None and self._transform.func is not None:
            floated = {name for name in self._fields if _is_floated(read.columns[name])}
            return self._transformed(_frame(self._reader, read, list(self._fields)), self._transform, floated)
        whole = slice(0, read.count)
        return {name: self._column(read, name, whole) for name in self._fields if name in self._made}

    def _column(self, read: Loaded, name: str, rows: slice) -> npt.NDArray[Any]:
        column = read.columns[name]
        if isinstance(column, pa.Array):
            return batch_column(name, column, self._fields[name].shape, self._reader.copied)
        found = _values(self._reader, read, name, rows)
        if isinstance(found.cells, np.ndarray):
            return found.cells
        cells: list[Any] = found.cells
        shapes = {
            None if cell is None else (cell.shape, cell.dtype) for cell in cells if isinstance(cell, np.ndarray) or cell is None
        }
        return np.stack(cells) if len(shapes) == 1 and None not in shapes else one_array(cells)

    def _transformed(self, frame: Any, transform: TransformSpec, floated: set[str]) -> dict[str, Any]:
        """Return what the function of the user makes of a data frame, in which some whole numbers were floats."""
        made = transform.func(frame)  # type: ignore[misc] # there is one
        if isinstance(made, tuple):
            return {WHOLE: made}
        left = [name for name in made.columns if name not in transform.removed_fields]
        if transform.selected_fields is not None:
            left = [name for name in transform.selected_fields if name in left]
        if set(left) != set(self._made):
            msg = (
                f"Transformed result columns ({','.join(map(str, left))}) do not match required schema "
                f"columns({','.join(self._made)})"
            )
            raise ValueError(msg)
        return {name: self._series(name, made[name], was_whole=name in floated) for name in self._made}

    def _series(self, name: str, series: Any, *, was_whole: bool) -> npt.NDArray[Any]:
        field = self._made[name]
        if field.shape:
            return stacked(name, series.tolist() if series.dtype != object else list(series), field.shape)
        values: npt.NDArray[Any] = series.to_numpy()
        if values.dtype.kind == "M":
            return values.astype("datetime64[ns]")
        if was_whole and values.dtype.kind == "f":
            return whole_again(values, field.numpy_dtype)
        if values.dtype.kind in "OT" and field.numpy_dtype in (np.str_, str):
            cells = values.astype(object)
            cells[series.isna().to_numpy()] = None
            return cells
        return values if values.dtype.kind != "O" or series.dtype == object else np.asarray(series, dtype=object)

    def _batches(self, columns: Mapping[str, Any]) -> Made:
        if not columns:
            return Made([])
        if WHOLE in columns:
            return Made([columns[WHOLE]])
        found = {name: self._finished(name, columns[name]) for name in self._made}
        if any(len(values) == 0 for values in found.values()):
            return Made([])
        return Made([row_type(self._name, tuple(self._made))(**found)])

    def _finished(self, name: str, values: Any) -> Any:
        if name in self._partitions:
            return categorical(values, self._partitions[name])
        kind = self._made[name].numpy_dtype
        if kind in (np.str_, str) and isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind == "O":
            return text_array(values)
        return values
