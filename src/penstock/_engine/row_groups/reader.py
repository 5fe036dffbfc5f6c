"""Lots read: what a predicate asks for first, and of the rows that pass all else, left as stored until it is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from penstock._engine.query.values import MEMORY_LIMIT, Column
from penstock._engine.read.reader import UNCOUNTED, Reader, Unit, UnitTable
from penstock._engine.runtime.timers import Meter
from penstock.errors import DataError
from penstock.filters import Expr
from penstock.model import BoolArray, IntArray, Snapshot
from penstock.policies import Fill, Mask
from penstock.schema import CellProblem

__all__ = ["Keep", "LoadedRowGroup", "RowGroupReader", "Values"]

OWN_BYTES = 1 << 10
"""From how many bytes on a cell has memory of its own. What keeps a smaller one keeps some hundreds of them, side by side."""


COPY_BYTES = 1 << 16
"""From how many bytes on it takes less time to use memory again than to get some that is fresh."""

NUMBER = "\0number"
"""What the column is called that says which rows of a file were kept."""


class Cache(Protocol):
    """What keeps tables."""

    def get(self, key: Any, fill_cache_func: Callable[[], pa.Table]) -> pa.Table:
        """Return what is kept under a key; where nothing is, what a function makes, which is kept."""
        ...


class Keep(Protocol):
    """Which rows of a lot are kept: a function of some of its columns."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns that it looks at."""
        ...

    def __call__(self, loaded: LoadedRowGroup, reader: RowGroupReader) -> BoolArray:
        """Return which rows are kept."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Values:
    """The values of a column.

    Attributes:
        cells: An array with a row for each, or a list where each has memory of its own.
        missing: Which of them are null; None where none is.
    """

    cells: npt.NDArray[Any] | list[Any]
    missing: BoolArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadedRowGroup:
    """Rows that were read, as they are stored.

    Attributes:
        unit: What they are rows of.
        columns: Their columns.
        count: How many there are.
        kept: Which rows of the unit they are; None where all are.
    """

    unit: Unit
    columns: dict[str, DeferredCells]
    count: int
    kept: IntArray | None = None

    @property
    def nbytes(self) -> int:
        """What they take in memory."""
        return sum(column.nbytes for column in self.columns.values())

    def taken(self, rows: IntArray) -> LoadedRowGroup:
        """Return some of the rows, in another order."""
        columns = {name: _taken(column, rows) for name, column in self.columns.items()}
        return replace(self, columns=columns, count=len(rows), kept=rows if self.kept is None else self.kept[rows])

    def number(self, row: int) -> int:
        """Return the number of a row in its file."""
        return self.unit.first + (row if self.kept is None else int(self.kept[row]))

    def part(self, name: str, rows: slice) -> DeferredCells:
        """Return some rows of a column as stored."""
        column = self.columns[name]
        if isinstance(column, pa.Array):
            return column.slice(rows.start, rows.stop - rows.start)
        return column.take(rows)


class RowGroupReader:
    """Reads lots of one table, and decodes them; threads may share it, and another process can be sent it.

    Args:
        snapshot: The table's facts.
        filesystem: Where its files lie.
        columns: The columns that are wanted, in order.
        condition: What rows must fulfil, bound to the table.
        keep: What else they must, when the columns that it asks for are decoded.
        cache: What keeps rows that were read, so that they are not read again.
        memory_limit: Bytes that all may take that is read ahead; of memory that was used before, some of them wait.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        filesystem: pafs.FileSystem,
        columns: Sequence[Column],
        *,
        condition: Expr | None = None,
        keep: Keep | None = None,
        cache: Cache | None = None,
        memory_limit: int = MEMORY_LIMIT,
    ) -> None:
        """Store what is read; nothing is yet."""
        self._reader = Reader(snapshot=snapshot, filesystem=filesystem, condition=condition)
        self._columns = {column.name: column for column in columns}
        self._keep, self._cache = keep, cache
        self._buffer_pool, self._meter, self._limit = self._reader.buffer_pool, Meter(), memory_limit
        self._buffer_pool.set_limit(memory_limit // 8)

    def __getstate__(self) -> dict[str, Any]:
        """Return what it was made with."""
        reader = self._reader
        asked = {"condition": reader.condition, "keep": self._keep, "cache": self._cache, "memory_limit": self._limit}
        return {"made": (reader.snapshot, reader.filesystem, list(self._columns.values())), "asked": asked}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make it again."""
        self.__init__(*state["made"], **state["asked"])  # type: ignore[misc] # the same arguments

    @property
    def columns(self) -> dict[str, Column]:
        """The columns that are wanted, by name."""
        return self._columns

    def load(self, unit: Unit) -> LoadedRowGroup:
        """Return the rows of a unit that are kept.

        Raises:
            DataError: If the file cannot be read.
        """
        if self._keep is None:
            return self._read(unit, list(self._columns))
        first = self._read(unit, list(self._keep.columns))
        kept = np.flatnonzero(self._keep(first, self))
        rest = [name for name in self._columns if name not in first.columns]
        if len(kept) == 0:
            return LoadedRowGroup(unit=unit, columns={}, count=0)
        found = first.taken(kept) if len(kept) < first.count else first
        if rest:
            others = self._read(unit, rest)
            others = others.taken(kept) if len(kept) < others.count else others
            found = replace(found, columns={**found.columns, **others.columns})
        return replace(found, columns={name: found.columns[name] for name in self._columns})

    def copied(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return an array that may be written to, of the same values; large ones in memory that was used before."""
        if values.nbytes < COPY_BYTES or values.dtype.hasobject:
            return values.copy()
        room = self._buffer_pool.empty(values.shape, values.dtype)
        np.copyto(room, values)
        return room

    def values(self, loaded: LoadedRowGroup, name: str, rows: slice) -> Values:
        """Return a column as values that tell where they are null, whatever its policies say; nulls among floats are NaN.

        Raises:
            CellError: If a cell cannot be decoded; it says where that lies.
        """
        column, part = self._columns[name], loaded.part(name, rows)
        try:
            if isinstance(part, FileBlobs):
                part = part.loaded(self._buffer_pool)
            if isinstance(part, Blobs):
                return self._blobs(replace(part, max_cell_bytes=MAX_CELL_BYTES), column)
            return self._plain(part, column)
        except CellProblem as problem:
            raise self._placed(CellError(name, problem.problem, problem.row), loaded, rows) from problem.__cause__
        except CellError as error:
            raise self._placed(error, loaded, rows) from error

    def _blobs(self, cells: Blobs, column: Column) -> Values:
        field, codec = column.field, column.codec
        assert field is not None  # noqa: S101 - whoever has cells of bytes has a field
        assert codec is not None  # noqa: S101 - the same
        missing = None if cells.valid is None or cells.valid.all() else ~cells.valid
        size = field.dtype.itemsize * prod(side or 0 for side in field.shape) if field.is_dense else OWN_BYTES
        if size < OWN_BYTES and missing is None:
            return Values(cells=decode_cells(cells, column, self._buffer_pool)[column.name])
        try:
            return Values(cells=codec.decode_each(field, cells), missing=missing)
        except CellProblem:
            raise
        except DataError as error:
            raise CellError(column.name, str(error)) from error

    def _plain(self, array: pa.Array, column: Column) -> Values:
        """Return the values of a column that has no codec."""
        dtype, shape = dtypes.numpy_type(array.type)
        valid = dtypes.valid(array)
        missing = None if valid is None else ~valid
        if shape and dtype.kind in "biu" and _has_null_items(array):
            return Values(cells=[None if one is None else np.array(one, object) for one in array.to_pylist()], missing=missing)
        if missing is not None and dtype.kind in "biumM":
            column = replace(column, nulls=Mask())
        elif missing is not None and dtype.kind == "f" and shape:  # arrays of one shape have no place for a null
            column = replace(column, nulls=Fill(np.nan))
        found = decode_deferred(array, column, self._buffer_pool, MAX_CELL_BYTES, self._meter)[column.name]
        if shape or found.ndim > 1:
            # Lists lie in memory that others share, and whoever has a row may do with it what he likes.
            return Values(cells=[one.copy() if isinstance(one, np.ndarray) else one for one in found], missing=missing)
        return Values(cells=found, missing=None if dtype.kind == "f" else missing)

    def _read(self, unit: Unit, names: Sequence[str]) -> LoadedRowGroup:
        part = self._part(replace(unit, count=UNCOUNTED), names)
        columns = {name: self._stored(part, name) for name in names}
        return LoadedRowGroup(unit=unit, columns=columns, count=part.count, kept=part.selected)

    def _part(self, unit: Unit, names: Sequence[str]) -> UnitTable:
        """Return rows that are read, or that were kept when they were read before."""
        if self._cache is None:
            return self._reader.read(unit, names, [name for name in names if self._columns[name].codec is not None])
        files, condition = self._reader.snapshot.files, self._reader.condition
        asked = None if condition is None or not unit.residual else condition.describe()
        file = (files.path[unit.file].as_py(), files.stamp[unit.file].as_py())
        key = (*file, unit.row_group, unit.start, unit.rows, *names, asked)
        table = self._cache.get(key, lambda: _numbered(self._reader.read(unit, names)))
        numbers = table.column(NUMBER).to_numpy()
        return UnitTable(table=table.select(names), first=unit.first, count=len(numbers), selected=numbers - unit.first)

    def _stored(self, part: UnitTable, name: str) -> DeferredCells:
        """Return a column as it is kept until it is decoded."""
        if name in part.cells:
            return part.cells[name]
        return deferred_cells(part.table.column(name), self._columns[name])

    def _placed(self, error: CellError, loaded: LoadedRowGroup, rows: slice) -> CellError:
        """Return an error of a cell that says which file, row group and row it is in."""
        at = "" if error.row is None else f", row {loaded.number(rows.start + error.row)}"
        return CellError(error.column, f"{self._reader.where(loaded.unit)}{at}: {error.problem}")


def _taken(column: DeferredCells, rows: IntArray) -> DeferredCells:
    return column.take(pa.array(rows)) if isinstance(column, pa.Array) else column.take(rows)


def _numbered(part: UnitTable) -> pa.Table:
    """Return rows with their numbers in their file."""
    return part.table.append_column(NUMBER, pa.array(part.row_numbers()))


def _has_null_items(array: pa.Array) -> bool:
    """Return whether there is a null in a list that is none itself."""
    try:
        return bool(array.flatten().null_count)
    except (AttributeError, pa.ArrowException):
        return False
