"""Reads and decodes the rows of row-group tasks.

The columns of a predicate are read first; the other columns only where a row passes it. Cells stay as stored until they are
decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import fs as pafs

from penstock import dtypes
from penstock._blobs import MAX_CELL_BYTES, Blobs
from penstock._engine.decode.arrow import CellError
from penstock._engine.decode.codecs import decode_cells
from penstock._engine.decode.columns import DeferredCells, decode_deferred, deferred_cells
from penstock._engine.parquet.file_blobs import FileBlobs
from penstock._engine.query.query import MEMORY_LIMIT, ColumnDecoding
from penstock._engine.read.reader import UNCOUNTED, Reader, Unit, UnitTable
from penstock._engine.runtime.timers import Meter
from penstock.errors import DataError
from penstock.filters import Expr
from penstock.model import BoolArray, IntArray, Snapshot
from penstock.policies import Fill, Mask
from penstock.schema import CellProblem

OWN_MEMORY_BYTES = 1 << 10
"""Cells of at least this size get memory of their own. A user who holds on to a smaller one holds on to its neighbours too."""

POOLED_BYTES = 1 << 16
"""Arrays of at least this size are copied into pooled memory, which takes less time than fresh memory."""

ROW_NUMBER = "\0number"
"""The column of cached tables that holds the number of each row in its file."""


class TableStore(Protocol):
    """A cache of tables."""

    def get(self, key: Any, fill_cache_func: Callable[[], pa.Table]) -> pa.Table:
        """Return the cached table of a key; call `fill_cache_func` for it, and cache it, where there is none."""


class RowPredicate(Protocol):
    """A function of some columns that selects rows."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns that it needs."""

    def __call__(self, loaded: LoadedRowGroup, reader: RowGroupReader) -> BoolArray:
        """Return which rows are selected."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodedColumn:
    """The values of a column.

    Attributes:
        cells: An array with a row for each cell, or a list of cells that have memory of their own.
        missing: Which cells are null; None where none is.
    """

    cells: npt.NDArray[Any] | list[Any]
    missing: BoolArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadedRowGroup:
    """Rows of a unit as they are stored.

    Attributes:
        unit: The unit.
        columns: The columns.
        count: The number of rows.
        selected: The rows of the unit that these are; None for all.
    """

    unit: Unit
    columns: dict[str, DeferredCells]
    count: int
    selected: IntArray | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of all columns in memory."""
        return sum(column.nbytes for column in self.columns.values())

    def take(self, rows: IntArray) -> LoadedRowGroup:
        """Return the rows at some indices."""
        columns = {
            name: column.take(pa.array(rows) if isinstance(column, pa.Array) else rows) for name, column in self.columns.items()
        }
        return replace(self, columns=columns, count=len(rows), selected=rows if self.selected is None else self.selected[rows])

    def row_number(self, row: int) -> int:
        """Return the number of a row in its file."""
        return self.unit.first + (row if self.selected is None else int(self.selected[row]))

    def cells(self, name: str, rows: slice) -> DeferredCells:
        """Return some rows of a column as they are stored."""
        column = self.columns[name]
        if isinstance(column, pa.Array):
            return column.slice(rows.start, rows.stop - rows.start)
        return column.take(rows)


class RowGroupReader:
    """Reads and decodes units of one table. Threads may share it, and it can be pickled.

    Args:
        snapshot: The table.
        filesystem: The filesystem of its files.
        columns: The columns that are read, in order.
        condition: A filter, bound to the table.
        predicate: Another filter, called with decoded columns.
        cache: A cache of the rows that were read.
        memory_limit: Bytes that all read-ahead may use; a part of them is memory that waits to be used again.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        filesystem: pafs.FileSystem,
        columns: Sequence[ColumnDecoding],
        *,
        condition: Expr | None = None,
        predicate: RowPredicate | None = None,
        cache: TableStore | None = None,
        memory_limit: int = MEMORY_LIMIT,
    ) -> None:
        """Store what is read; nothing is read yet."""
        self._reader = Reader(snapshot=snapshot, filesystem=filesystem, condition=condition)
        self._columns = {column.name: column for column in columns}
        self._predicate, self._cache = predicate, cache
        self._buffer_pool, self._meter, self._limit = self._reader.buffer_pool, Meter(), memory_limit
        self._buffer_pool.set_limit(memory_limit // 8)

    def __reduce__(self) -> Any:
        """Pickle the arguments."""
        reader = self._reader
        arguments = (reader.snapshot, reader.filesystem, list(self._columns.values()))
        options: dict[str, Any] = {
            "condition": reader.condition,
            "predicate": self._predicate,
            "cache": self._cache,
            "memory_limit": self._limit,
        }
        return partial(RowGroupReader, **options), arguments

    @property
    def columns(self) -> dict[str, ColumnDecoding]:
        """The columns that are read, by name."""
        return self._columns

    def load(self, unit: Unit) -> LoadedRowGroup:
        """Return the selected rows of a unit."""
        if self._predicate is None:
            return self._read(unit, list(self._columns))
        loaded = self._read(unit, list(self._predicate.columns))
        selected = np.flatnonzero(self._predicate(loaded, self))
        if len(selected) == 0:
            return LoadedRowGroup(unit=unit, columns={}, count=0)
        rest = [name for name in self._columns if name not in loaded.columns]
        parts = [loaded, self._read(unit, rest)] if rest else [loaded]
        if len(selected) < loaded.count:
            parts = [part.take(selected) for part in parts]
        columns = {name: cells for part in parts for name, cells in part.columns.items()}
        return replace(parts[0], columns={name: columns[name] for name in self._columns})

    def copy(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a writable copy of an array; a large one in pooled memory."""
        if values.nbytes < POOLED_BYTES or values.dtype.hasobject:
            return values.copy()
        buffer = self._buffer_pool.empty(values.shape, values.dtype)
        np.copyto(buffer, values)
        return buffer

    def decode(self, loaded: LoadedRowGroup, name: str, rows: slice) -> DecodedColumn:
        """Return the values of a column and which are null; null floats are NaN. Null policies do not apply."""
        column, cells = self._columns[name], loaded.cells(name, rows)
        try:
            if isinstance(cells, FileBlobs):
                cells = cells.loaded(self._buffer_pool)
            if isinstance(cells, Blobs):
                return self._decode_blobs(replace(cells, max_cell_bytes=MAX_CELL_BYTES), column)
            return self._decode_arrow(cells, column)
        except CellProblem as problem:
            raise self._located(CellError(name, problem.problem, problem.row), loaded, rows) from problem.__cause__
        except CellError as error:
            raise self._located(error, loaded, rows) from error

    def _decode_blobs(self, cells: Blobs, column: ColumnDecoding) -> DecodedColumn:
        field, codec = column.field, column.codec
        assert field is not None  # noqa: S101 - a column of blobs has a field
        assert codec is not None  # noqa: S101 - and a codec
        missing = None if cells.valid is None or cells.valid.all() else ~cells.valid
        size = field.dtype.itemsize * prod(side or 0 for side in field.shape) if field.is_dense else OWN_MEMORY_BYTES
        if size < OWN_MEMORY_BYTES and missing is None:
            return DecodedColumn(cells=decode_cells(cells, column, self._buffer_pool)[column.name])
        try:
            return DecodedColumn(cells=codec.decode_each(field, cells), missing=missing)
        except CellProblem:
            raise
        except DataError as error:
            raise CellError(column.name, str(error)) from error

    def _decode_arrow(self, array: pa.Array, column: ColumnDecoding) -> DecodedColumn:
        """Return the values of a column without a codec."""
        dtype, shape = dtypes.numpy_type(array.type)
        valid = dtypes.valid(array)
        missing = None if valid is None else ~valid
        if shape and dtype.kind in "biu" and _has_null_items(array):
            cells = [None if cell is None else np.array(cell, object) for cell in array.to_pylist()]
            return DecodedColumn(cells=cells, missing=missing)
        if missing is not None and dtype.kind in "biumM":
            column = replace(column, nulls=Mask())
        elif missing is not None and dtype.kind == "f" and shape:  # arrays of one shape have no place for a null
            column = replace(column, nulls=Fill(np.nan))
        values = decode_deferred(array, column, self._buffer_pool, MAX_CELL_BYTES, self._meter)[column.name]
        if shape or values.ndim > 1:
            # The lists share memory, and a user may write to his row.
            copies = [value.copy() if isinstance(value, np.ndarray) else value for value in values]
            return DecodedColumn(cells=copies, missing=missing)
        return DecodedColumn(cells=values, missing=None if dtype.kind == "f" else missing)

    def _read(self, unit: Unit, names: Sequence[str]) -> LoadedRowGroup:
        table = self._unit_table(replace(unit, count=UNCOUNTED), names)
        columns = {
            name: table.cells[name] if name in table.cells else deferred_cells(table.table.column(name), self._columns[name])
            for name in names
        }
        return LoadedRowGroup(unit=unit, columns=columns, count=table.count, selected=table.selected)

    def _unit_table(self, unit: Unit, names: Sequence[str]) -> UnitTable:
        """Return the rows of a unit, from the cache if there is one."""
        if self._cache is None:
            return self._reader.read(unit, names, [name for name in names if self._columns[name].codec is not None])
        files, condition = self._reader.snapshot.files, self._reader.condition
        described = None if condition is None or not unit.residual else condition.describe()
        file = (files.path[unit.file].as_py(), files.stamp[unit.file].as_py())
        key = (*file, unit.row_group, unit.start, unit.rows, *names, described)
        table = self._cache.get(key, lambda: _with_row_numbers(self._reader.read(unit, names)))
        numbers = table.column(ROW_NUMBER).to_numpy()
        return UnitTable(table=table.select(names), first=unit.first, count=len(numbers), selected=numbers - unit.first)

    def _located(self, error: CellError, loaded: LoadedRowGroup, rows: slice) -> CellError:
        """Return an error of a cell that names its file, row group and row."""
        at = "" if error.row is None else f", row {loaded.row_number(rows.start + error.row)}"
        return CellError(error.column, f"{self._reader.where(loaded.unit)}{at}: {error.problem}")


def _with_row_numbers(part: UnitTable) -> pa.Table:
    return part.table.append_column(ROW_NUMBER, pa.array(part.row_numbers()))


def _has_null_items(array: pa.Array) -> bool:
    """Return whether a list that is not null has a null item."""
    try:
        return bool(array.flatten().null_count)
    except (AttributeError, pa.ArrowException):
        return False
