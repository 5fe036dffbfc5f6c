"""What readers do with each row-group task: it is read, its rows are put in order, and become rows or a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._blobs import Blobs
from penstock._engine.decode.arrow import CellError
from penstock._engine.parquet.file_blobs import FileBlobs
from penstock._engine.read.reader import Unit
from penstock._engine.row_groups.reader import DecodedColumn, LoadedRowGroup, RowGroupReader
from penstock._engine.row_groups.tasks import RowGroupTasks, ScheduledTask
from penstock.codecs import CellCodec, Npy, Scalar, Tensor
from penstock.codecs.scalar import NUMPY
from penstock.model import BoolArray
from penstock.petastorm._impl.conversions import (
    as_objects,
    as_text_array,
    batch_column,
    categorical,
    field_cells,
    restore_integers,
    stack_declared,
    to_nanoseconds,
)
from penstock.petastorm._impl.pickling import dumps, loads
from penstock.petastorm._impl.results import LazyRows, ResultList, TaskResult
from penstock.petastorm.ngram import Windows
from penstock.petastorm.transform import TransformSpec
from penstock.petastorm.unischema import Unischema, row_type
from penstock.petastorm.utils import DecodeFieldError
from penstock.randomness import permutation

__all__ = ["BatchJob", "FramePredicate", "RowJob", "RowwisePredicate"]

ROWS_AT_ONCE = 4096
BYTES_AT_ONCE = 4 << 20
MIN_ROWS_AT_ONCE = 16
"""Rows, and bytes of arrays, that are decoded at a time, so that the first rows come soon and few lie in memory."""

IMAGE_EXPANSION = 8
"""Estimated size of a decoded image in relation to its stored size, where the shape differs from row to row."""

EXACT = 1 << 53
"""Integers up to this are exact as floats."""

WHOLE = "\0rows"
"""The column name under which results of a user's function are passed on that are not split into columns."""


@dataclass(frozen=True, slots=True)
class RowwisePredicate:
    """A Petastorm predicate that is called with each row."""

    predicate: Any
    schema: Unischema
    columns: Sequence[str]

    def __call__(self, loaded: LoadedRowGroup, reader: RowGroupReader) -> BoolArray:
        """Return which rows it includes."""
        every = slice(0, loaded.count)
        cells = [_field_cells(reader, loaded, self.schema.fields[name], every) for name in self.columns]
        names, include = list(self.columns), self.predicate.do_include
        included = (bool(include(dict(zip(names, row, strict=True)))) for row in zip(*cells, strict=True))
        return np.fromiter(included, np.bool_, loaded.count)


@dataclass(frozen=True, slots=True)
class FramePredicate:
    """A Petastorm predicate that is called with the data frame of a row group."""

    predicate: Any
    columns: Sequence[str]

    def __call__(self, loaded: LoadedRowGroup, reader: RowGroupReader) -> BoolArray:
        """Return which rows it includes."""
        included = np.asarray(self.predicate.do_include(_data_frame(reader, loaded, self.columns)))
        if included.shape != (loaded.count,):
            msg = (
                f"The predicate answered {included.shape} for {loaded.count} rows. In make_batch_reader it is given a data "
                "frame, and must return a boolean for each of its rows."
            )
            raise ValueError(msg)
        return included.astype(np.bool_)


class ReaderJob:
    """The part of a job that rows and batches share.

    Args:
        tasks: The row-group tasks.
        reader: Reads them.
        seed: Decides the order of the rows of each task; None for stored order.
        schema: The fields that are read.
        result_schema: The fields that are handed out; None for those that are read.
        transform: A function of the user.
    """

    def __init__(
        self,
        tasks: RowGroupTasks,
        reader: RowGroupReader,
        seed: int | None,
        *,
        schema: Unischema,
        result_schema: Unischema | None = None,
        transform: TransformSpec | None = None,
    ) -> None:
        """Store the arguments."""
        self._tasks, self._reader, self._seed, self._transform = tasks, reader, seed, transform
        result = schema if result_schema is None else result_schema
        self._fields, self._result_fields = dict(schema.fields), dict(result.fields)
        self._name = result._name  # noqa: SLF001 - a Unischema has no other name

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes pickled, with the functions of the user."""
        return {"pickle": dumps(self.__dict__)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Unpickle the attributes."""
        self.__dict__.update(loads(state["pickle"]))

    def load(self, scheduled: ScheduledTask) -> LoadedRowGroup:
        """Return the rows of a task."""
        task, units = scheduled.task, self._tasks.units
        loaded = self._reader.load(Unit.of(units, task))
        if self._seed is None or loaded.count < 2:  # noqa: PLR2004 - fewer rows have no order
            return loaded
        place = (self._seed, scheduled.epoch, int(self._tasks.ordinal[task]), int(units.start[task]))
        # The name is part of the order, and so of all saved states.
        return loaded.take(permutation(loaded.count, "rows of a lot", *place))

    def _array_bytes(self, loaded: LoadedRowGroup) -> int:
        """Return the bytes that the arrays of a row take: by their shapes, or by the stored cells where shapes differ."""
        nbytes = 0
        for column in self._reader.columns.values():
            field, cells = column.field, loaded.columns.get(column.name)
            if field is None or column.codec is None:
                continue
            if None not in field.shape:
                nbytes += field.dtype.itemsize * prod(side or 0 for side in field.shape)
            elif isinstance(cells, Blobs | FileBlobs):
                stored = int((cells.stop - cells.start).sum()) // max(1, loaded.count)
                nbytes += stored if isinstance(column.codec, Npy) else IMAGE_EXPANSION * stored
        return nbytes


class RowJob(ReaderJob):
    """Makes rows, or windows of rows; the function of the user is called with each row."""

    def __init__(self, *args: Any, windows: Windows | None = None, **options: Any) -> None:
        """Store the arguments, and the class that makes windows."""
        super().__init__(*args, **options)
        self._windows, self._names = windows, tuple(self._result_fields)

    def slices(self, loaded: LoadedRowGroup) -> Sequence[slice]:
        """Return slices of a few rows; windows need all rows at once."""
        if loaded.count == 0 or self._windows is not None:
            return [slice(0, loaded.count)]
        rows = min(ROWS_AT_ONCE, max(MIN_ROWS_AT_ONCE, BYTES_AT_ONCE // max(1, self._row_bytes(loaded))))
        return [slice(start, min(start + rows, loaded.count)) for start in range(0, loaded.count, rows)]

    def sizes(self, loaded: LoadedRowGroup) -> tuple[int, int]:
        """Return the bytes of the rows as they are stored, and of the decoded rows of one slice."""
        row_bytes = self._row_bytes(loaded)
        nbytes = row_bytes * loaded.count
        return loaded.nbytes, nbytes if self._windows is not None else min(
            nbytes, max(BYTES_AT_ONCE, MIN_ROWS_AT_ONCE * row_bytes)
        )

    def _row_bytes(self, loaded: LoadedRowGroup) -> int:
        return max(self._array_bytes(loaded), loaded.nbytes // max(1, loaded.count))

    def make(self, loaded: LoadedRowGroup, rows: slice) -> TaskResult:
        """Return rows."""
        return self._rows(self._columns(loaded, rows), rows.stop - rows.start) if loaded.count else ResultList([])

    def dicts(self, scheduled: ScheduledTask) -> list[dict[str, Any]]:
        """Return the rows of a task as dicts."""
        loaded = self.load(scheduled)
        columns = self._columns(loaded, slice(0, loaded.count))
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def make_columns(self, scheduled: ScheduledTask) -> Mapping[str, Any]:
        """Return the columns of rows."""
        loaded = self.load(scheduled)
        every = slice(0, loaded.count)
        if loaded.count == 0:
            return {"count": 0, "columns": {}, "missing": {}}
        if self._transform is not None:
            cells = self._columns(loaded, every)
            return {"count": loaded.count, "columns": {name: as_objects(cells[name]) for name in cells}, "cells": True}
        decoded = {name: _decode(self._reader, loaded, name, every) for name in self._fields}
        columns = {
            name: column.cells if isinstance(column.cells, np.ndarray) else as_objects(column.cells)
            for name, column in decoded.items()
        }
        missing = {name: column.missing for name, column in decoded.items() if column.missing is not None}
        return {"count": loaded.count, "columns": columns, "missing": missing}

    def from_columns(self, columns: Mapping[str, Any]) -> TaskResult:
        """Return the rows of columns."""
        cells: dict[str, list[Any]] = {}
        for name, values in columns["columns"].items():
            if columns.get("cells"):
                cells[name] = list(values)
            else:
                decoded = DecodedColumn(cells=values, missing=columns["missing"].get(name))
                cells[name] = field_cells(decoded, self._fields[name])
        return self._rows(cells, columns["count"])

    def _columns(self, loaded: LoadedRowGroup, rows: slice) -> dict[str, list[Any]]:
        """Return the values of each field, as the function of the user leaves them."""
        columns = {name: _field_cells(self._reader, loaded, field, rows) for name, field in self._fields.items()}
        return columns if self._transform is None else self._apply_transform(columns, self._transform)

    def _apply_transform(self, columns: Mapping[str, list[Any]], transform: TransformSpec) -> dict[str, list[Any]]:
        names, function = list(columns), transform.func or _identity
        results = [function(dict(zip(names, row, strict=True))) for row in zip(*columns.values(), strict=True)]
        if any(isinstance(row, tuple) for row in results):
            return {WHOLE: results}
        rows = (self._transformed_row(row, transform) for row in results)
        return dict(zip(self._names, map(list, zip(*rows, strict=True)), strict=True))

    def _transformed_row(self, row: Any, transform: TransformSpec) -> tuple[Any, ...]:
        """Return the declared fields of a row that the user's function returned."""
        if not isinstance(row, Mapping):
            msg = f"The function of transform_spec returned {type(row).__name__}; expected a dict, or a tuple,. Return one."
            raise TypeError(msg)
        values = {name: value for name, value in row.items() if name not in transform.removed_fields}
        if transform.selected_fields is not None:
            values = {name: values[name] for name in transform.selected_fields if name in values}
        if values.keys() != set(self._names):
            row_type(self._name, self._names)(**values)  # raises an error that names the missing field
        return tuple(values[name] for name in self._names)

    def _rows(self, columns: Mapping[str, list[Any]], count: int) -> TaskResult:
        if count == 0:
            return ResultList([])
        if WHOLE in columns:
            return ResultList(columns[WHOLE])
        if self._windows is not None:
            return ResultList(self._windows.make(columns, count))
        return LazyRows(row_type(self._name, self._names), [columns[name] for name in self._names], count)


class BatchJob(ReaderJob):
    """Makes one batch of each task: a named tuple of the arrays that pandas would return.

    The function of the user is called with the data frame of each task.
    """

    def __init__(self, *args: Any, partitions: Mapping[str, Sequence[Any]], **options: Any) -> None:
        """Store the arguments, and the values of partition columns."""
        super().__init__(*args, **options)
        self._partitions = dict(partitions)

    def slices(self, loaded: LoadedRowGroup) -> Sequence[slice]:
        """Return one slice of all rows."""
        return [slice(0, loaded.count)]

    def sizes(self, loaded: LoadedRowGroup) -> tuple[int, int]:
        """Return the bytes of the rows as they are stored, and as arrays."""
        return loaded.nbytes, max(loaded.nbytes, self._array_bytes(loaded) * loaded.count)

    def make(self, loaded: LoadedRowGroup, rows: slice) -> ResultList:  # noqa: ARG002 - these are all rows
        """Return the batch; nothing where the function of the user left no rows."""
        return self._batches(self._columns(loaded) if loaded.count else {})

    def make_columns(self, scheduled: ScheduledTask) -> Mapping[str, Any]:
        """Return the columns of the batch."""
        loaded = self.load(scheduled)
        return {"columns": self._columns(loaded) if loaded.count else {}}

    def from_columns(self, columns: Mapping[str, Any]) -> ResultList:
        """Return the batch of columns."""
        return self._batches(columns["columns"])

    def _columns(self, loaded: LoadedRowGroup) -> dict[str, Any]:
        if self._transform is not None and self._transform.func is not None:
            floats = {name for name in self._fields if _is_float_in_pandas(loaded.columns[name])}
            return self._apply_transform(_data_frame(self._reader, loaded, list(self._fields)), self._transform, floats)
        return {name: self._column(loaded, name) for name in self._fields if name in self._result_fields}

    def _column(self, loaded: LoadedRowGroup, name: str) -> npt.NDArray[Any]:
        array = _arrow_column(self._reader, loaded, name)
        if array is not None:
            return batch_column(name, array, self._fields[name].shape, self._reader.copy)
        cells = _decode(self._reader, loaded, name, slice(0, loaded.count)).cells
        return cells if isinstance(cells, np.ndarray) else _stack_if_equal(cells)

    def _apply_transform(self, frame: Any, transform: TransformSpec, floats: set[str]) -> dict[str, Any]:
        """Return the columns of the frame that the user's function returns; `floats` were integers before."""
        result = transform.func(frame)  # type: ignore[misc] # it is not None
        if isinstance(result, tuple):
            return {WHOLE: result}
        names = [name for name in result.columns if name not in transform.removed_fields]
        if transform.selected_fields is not None:
            names = [name for name in transform.selected_fields if name in names]
        if set(names) != set(self._result_fields):
            msg = (
                f"Transformed result columns ({','.join(map(str, names))}) do not match required schema "
                f"columns({','.join(self._result_fields)})"
            )
            raise ValueError(msg)
        unchanged = {name for name, field in self._result_fields.items() if self._fields.get(name) is field}
        decoded = {name for name in unchanged if _has_array_cells(self._reader, name)}
        return {
            name: _stack_if_equal(list(result[name]))  # shapes may differ, unlike those that a TransformSpec declares
            if name in decoded
            else self._from_series(name, result[name], was_integer=name in floats)
            for name in self._result_fields
        }

    def _from_series(self, name: str, series: Any, *, was_integer: bool) -> npt.NDArray[Any]:
        field = self._result_fields[name]
        if field.shape:
            return stack_declared(name, series.tolist() if series.dtype != object else list(series), field.shape)
        if getattr(series.dtype, "tz", None) is not None:
            series = series.dt.tz_convert(None)  # in UTC, as without a function
        values: npt.NDArray[Any] = series.to_numpy()
        if values.dtype.kind == "M":
            return to_nanoseconds(values)
        if was_integer and values.dtype.kind == "f":
            return restore_integers(values, field.numpy_dtype)
        if values.dtype.kind in "OT" and field.numpy_dtype in (np.str_, str):
            cells = values.astype(object)
            cells[series.isna().to_numpy()] = None
            return cells
        if values.dtype.kind == "O" and series.dtype != object:
            return np.asarray(series, dtype=object)
        return values if values.flags.writeable else values.copy()  # pandas returns read-only views

    def _batches(self, columns: Mapping[str, Any]) -> ResultList:
        if not columns:
            return ResultList([])
        if WHOLE in columns:
            return ResultList([columns[WHOLE]])
        batch = {name: self._finish(name, columns[name]) for name in self._result_fields}
        if any(len(values) == 0 for values in batch.values()):
            return ResultList([])
        return ResultList([row_type(self._name, tuple(self._result_fields))(**batch)])

    def _finish(self, name: str, values: Any) -> Any:
        if name in self._partitions:
            return categorical(values, self._partitions[name])
        dtype = self._result_fields[name].numpy_dtype
        if dtype in (np.str_, str) and isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind == "O":
            return as_text_array(values)
        return values


def _identity(row: dict[str, Any]) -> dict[str, Any]:
    return row


def _field_cells(reader: RowGroupReader, loaded: LoadedRowGroup, field: Any, rows: slice) -> list[Any]:
    """Return the values of a field, as rows hold them."""
    return field_cells(_decode(reader, loaded, field.name, rows), field)


def _decode(reader: RowGroupReader, loaded: LoadedRowGroup, name: str, rows: slice) -> DecodedColumn:
    try:
        return reader.decode(loaded, name, rows)
    except CellError as error:
        raise DecodeFieldError(f'Decoding field "{name}" failed: {error.problem}') from error


def _has_array_cells(reader: RowGroupReader, name: str) -> bool:
    """Return whether the stored schema says that the cells of a column are arrays, or bytes that a codec decodes."""
    field = reader.columns[name].field
    return field is not None and isinstance(field.codec, CellCodec | Tensor)


def _stack_if_equal(cells: Sequence[Any]) -> npt.NDArray[Any]:
    """Return cells as one array; as objects where one is null, or shapes or dtypes differ."""
    if not all(isinstance(cell, np.ndarray) for cell in cells):
        return as_objects(cells)
    return np.stack(cells) if len({(cell.shape, cell.dtype) for cell in cells}) == 1 else as_objects(cells)


def _arrow_column(reader: RowGroupReader, loaded: LoadedRowGroup, name: str) -> pa.Array | None:
    """Return a column of Arrow, with integers in the type of the stored schema; None for cells that a codec decodes."""
    column, field = loaded.columns[name], reader.columns[name].field
    if not isinstance(column, pa.Array):
        return None
    kind = None if field is None or not isinstance(field.codec, Scalar) else NUMPY.get(field.dtype)
    differs = kind is not None and kind != column.type and pa.types.is_integer(kind) and pa.types.is_integer(column.type)
    return column.cast(kind) if differs else column


def _data_frame(reader: RowGroupReader, loaded: LoadedRowGroup, names: Sequence[str]) -> Any:
    import pandas as pd

    frame: dict[str, Any] = {}
    for name in names:
        array = _arrow_column(reader, loaded, name)
        if array is not None and not _has_array_cells(reader, name):
            frame[name] = _series(array)
        else:
            decoded = _decode(reader, loaded, name, slice(0, loaded.count))
            cells = as_objects(list(decoded.cells))
            if decoded.missing is not None:
                cells[decoded.missing] = None
            frame[name] = pd.Series(cells, dtype=object)
    return pd.DataFrame(frame, index=range(loaded.count))


def _series(array: pa.Array) -> Any:
    """Return a column as functions written for Petastorm expect it, with any version of pandas.

    Text is objects, with None for null. Integers with nulls are floats, unless one is not exact as a float.
    """
    import pandas as pd

    if pa.types.is_nested(array.type) or pa.types.is_string(array.type):
        return pd.Series(as_objects(array.to_numpy(zero_copy_only=False)), dtype=object)
    if _is_float_in_pandas(array) and any(abs(value) > EXACT for value in array.drop_null().to_pylist()):
        return pd.Series(as_objects(array.to_pylist()), dtype=object)
    return pd.Series(array.to_pandas().array)


def _is_float_in_pandas(column: Any) -> bool:
    """Return whether pandas has floats for a column of integers, because some are null."""
    return isinstance(column, pa.Array) and pa.types.is_integer(column.type) and column.null_count > 0
