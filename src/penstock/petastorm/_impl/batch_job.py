"""Row groups become batches: named tuples of arrays, as pandas would give them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._engine.row_groups.order import RowGroupTasks, Step
from penstock._engine.row_groups.reader import LoadedRowGroup, RowGroupReader, Values
from penstock.codecs import CellCodec, Scalar, Tensor
from penstock.codecs.scalar import NUMPY
from penstock.model import BoolArray
from penstock.petastorm._impl.row_group_job import WHOLE, LotJob, array_bytes, field_values
from penstock.petastorm._impl.rows import Made
from penstock.petastorm._impl.values import batch_column, categorical, nanoseconds, one_array, stacked, text_array, whole_again
from penstock.petastorm.transform import TransformSpec
from penstock.petastorm.unischema import Unischema, row_type

__all__ = ["BatchJob", "BatchPredicate"]

EXACT = 1 << 53
"""Whole numbers up to this are the same as floats."""


@dataclass(frozen=True, slots=True)
class BatchPredicate:
    """A predicate that is asked about a whole row group, as a data frame."""

    predicate: Any
    columns: Sequence[str]

    def __call__(self, loaded: LoadedRowGroup, reader: RowGroupReader) -> BoolArray:
        """Return which rows it includes."""
        answer = np.asarray(self.predicate.do_include(_frame(reader, loaded, self.columns)))
        if answer.shape != (loaded.count,):
            msg = (
                f"The predicate answered {answer.shape} for {loaded.count} rows. In make_batch_reader it is given a data "
                "frame, and must return a boolean for each of its rows."
            )
            raise ValueError(msg)
        return answer.astype(np.bool_)


class BatchJob(LotJob):
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
        lots: RowGroupTasks,
        reader: RowGroupReader,
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

    def pieces(self, read: LoadedRowGroup) -> Sequence[slice]:
        """Return all rows at once."""
        return [slice(0, read.count)]

    def weigh(self, read: LoadedRowGroup) -> tuple[int, int]:
        """Return what rows take as they are stored; as arrays they take about as much."""
        return read.nbytes, max(read.nbytes, array_bytes(self._reader, read) * read.count)

    def make(self, read: LoadedRowGroup, piece: slice) -> Made:  # noqa: ARG002 - there is one
        """Return the batch of a row group; none where the function of the user has left no rows."""
        return self._batches(self._columns(read) if read.count else {})

    def sent(self, step: Step) -> Mapping[str, Any]:
        """Return the columns of a batch, as they cross."""
        read = self.load(step)
        return {"columns": self._columns(read) if read.count else {}}

    def received(self, crossed: Mapping[str, Any]) -> Made:
        """Return the batch of columns that have crossed."""
        return self._batches(crossed["columns"])

    def _columns(self, read: LoadedRowGroup) -> dict[str, Any]:
        if self._transform is not None and self._transform.func is not None:
            floated = {name for name in self._fields if _is_floated(read.columns[name])}
            return self._transformed(_frame(self._reader, read, list(self._fields)), self._transform, floated)
        whole = slice(0, read.count)
        return {name: self._column(read, name, whole) for name in self._fields if name in self._made}

    def _column(self, read: LoadedRowGroup, name: str, rows: slice) -> npt.NDArray[Any]:
        column = _arrow(self._reader, read, name)
        if column is not None:
            return batch_column(name, column, self._fields[name].shape, self._reader.copied)
        found = field_values(self._reader, read, name, rows)
        return found.cells if isinstance(found.cells, np.ndarray) else _together(found.cells)

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
        decoded = {name for name, field in self._made.items() if self._fields.get(name) is field}
        decoded = {name for name in decoded if _is_array(self._reader, name)}
        return {
            name: _together(list(made[name]))  # which may differ in shape, as no field that a function declares may
            if name in decoded
            else self._series(name, made[name], was_whole=name in floated)
            for name in self._made
        }

    def _series(self, name: str, series: Any, *, was_whole: bool) -> npt.NDArray[Any]:
        field = self._made[name]
        if field.shape:
            return stacked(name, series.tolist() if series.dtype != object else list(series), field.shape)
        if getattr(series.dtype, "tz", None) is not None:
            series = series.dt.tz_convert(None)  # in UTC, as without a function
        values: npt.NDArray[Any] = series.to_numpy()
        if values.dtype.kind == "M":
            return nanoseconds(values)
        if was_whole and values.dtype.kind == "f":
            return whole_again(values, field.numpy_dtype)
        if values.dtype.kind in "OT" and field.numpy_dtype in (np.str_, str):
            cells = values.astype(object)
            cells[series.isna().to_numpy()] = None
            return cells
        if values.dtype.kind == "O" and series.dtype != object:
            return np.asarray(series, dtype=object)
        return values if values.flags.writeable else values.copy()  # pandas hands out views that nobody may write to

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


def _is_array(reader: RowGroupReader, name: str) -> bool:
    """Return whether the stored schema says that cells of a column are arrays, or bytes that a codec decodes."""
    field = reader.columns[name].field
    return field is not None and isinstance(field.codec, CellCodec | Tensor)


def _with_nulls(found: Values) -> npt.NDArray[Any]:
    """Return values as objects, None where they are null."""
    cells = one_array(list(found.cells))
    if found.missing is not None:
        cells[found.missing] = None
    return cells


def _together(cells: Sequence[Any]) -> npt.NDArray[Any]:
    """Return decoded cells as one array, or as objects where one is null or they differ."""
    if not all(isinstance(cell, np.ndarray) for cell in cells):
        return one_array(cells)
    return np.stack(cells) if len({(cell.shape, cell.dtype) for cell in cells}) == 1 else one_array(cells)


def _arrow(reader: RowGroupReader, loaded: LoadedRowGroup, name: str) -> pa.Array | None:
    """Return a column that Arrow holds, with whole numbers in the type that the stored schema says; None for cells of bytes."""
    column, field = loaded.columns[name], reader.columns[name].field
    if not isinstance(column, pa.Array):
        return None
    kind = None if field is None or not isinstance(field.codec, Scalar) else NUMPY.get(field.dtype)
    other = kind is not None and kind != column.type and pa.types.is_integer(kind) and pa.types.is_integer(column.type)
    return column.cast(kind) if other else column


def _frame(reader: RowGroupReader, loaded: LoadedRowGroup, names: Sequence[str]) -> Any:
    """Return columns as a data frame."""
    import pandas as pd

    found: dict[str, Any] = {}
    for name in names:
        column = _arrow(reader, loaded, name)
        if column is not None and not _is_array(reader, name):
            found[name] = _pandas(column)
        else:
            cells = field_values(reader, loaded, name, slice(0, loaded.count))
            found[name] = pd.Series(_with_nulls(cells), dtype=object)
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
