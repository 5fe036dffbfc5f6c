"""Rows by number as decoded columns. Few rows of a unit are looked up; of a unit with many, all rows are read."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby, pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock._blobs import Blobs
from penstock._engine.decode import concat as wide
from penstock._engine.decode.arrow import CellError
from penstock._engine.lookup.byte_ranges import MAX_REQUESTS, side_by_side
from penstock._engine.lookup.row_lookup import SEVERAL, LookupRequest, RowLookup
from penstock._engine.parquet.file_blobs import FileBlobs
from penstock._engine.query.projection import ReadSpec
from penstock._engine.query.values import Batch
from penstock._engine.read.reader import Unit, UnitTable
from penstock._engine.runtime.threads import ThreadPool
from penstock._engine.window.buffer import Cells, UnitColumns, concat_arrays, concat_cells
from penstock._engine.window.deferred import decoded
from penstock._engine.window.reader import WindowReader, WindowRows
from penstock.errors import DataError
from penstock.model import IntArray, Plan, Window
from penstock.shuffles import InOrder

__all__ = ["RowTaker"]

SPARSE = 4
"""A unit is read whole if more than one in so many of its rows is requested."""

FEW_ROWS = 256
"""Rows of local files up to which no thread is started."""

ONE: IntArray = np.zeros(1, dtype=np.int64)
"""The order of a single row."""


class _UnitRows(NamedTuple):
    """A unit, its number, and the requested rows by their numbers among its selected rows."""

    unit: Unit
    number: int
    rows: IntArray

    @property
    def sparse(self) -> bool:
        """Whether few of the unit's rows are requested."""
        return SPARSE * len(self.rows) <= self.unit.count


class RowTaker(WindowReader):
    """Reads rows by number.

    Attributes:
        num_rows: The number of selected rows.
    """

    def __init__(self, reader: RowLookup, plan: Plan, read_spec: ReadSpec, threads: int) -> None:
        """Store the reader and the plan."""
        super().__init__(reader, plan, read_spec, ThreadPool(1))
        self._lookup = reader
        self._request = LookupRequest(columns=self._columns, blobs=self._blobs, threads=threads)
        self._stream = InOrder().arrange(plan.counts, seed=0, epoch=0)
        self.num_rows = plan.num_rows

    def rows(self, numbers: IntArray) -> Batch:
        """Return rows by their numbers in stored order, in the order of the numbers.

        Raises:
            DataError: If a file cannot be read, or a cell cannot be decoded.
        """
        if not len(numbers):
            return WindowRows(pieces=((self.fetch(Window(reads=())), 0, 0),), places=(0,)).assemble(self)
        order = ONE if len(numbers) == 1 else np.argsort(numbers, kind="stable")
        parts = self._read_parts(*self._stream.locate(numbers[order]))
        back = order if len(numbers) == 1 else np.argsort(order, kind="stable")
        batch = {name: concat_arrays([part.fixed[name] for part in parts])[back] for name in parts[0].fixed}
        for column in self.deferred:
            cells = concat_cells([part.deferred[column.name] for part in parts])
            try:
                cells = cells if len(numbers) == 1 else _take(cells, back)
                arrays = decoded(cells, column, self.buffer_pool, self.max_cell_bytes, self.meter)
            except CellError as error:
                raise self._cell_error(error, parts, back) from error
            self.outputs[column.name] = tuple(arrays)
            batch.update(arrays)
        return batch

    def _read_parts(self, units: IntArray, rows: IntArray) -> list[UnitColumns]:
        """Return rows, given the unit of each and its number among the selected rows of the unit, in ascending order."""
        edges = [0, *(np.flatnonzero(units[1:] != units[:-1]) + 1).tolist(), len(units)]
        parts = [
            _UnitRows(Unit.of(self._plan.units, int(units[at])), int(units[at]), rows[at:end]) for at, end in pairwise(edges)
        ]
        tasks = [(sparse, list(group)) for (_, sparse), group in groupby(parts, lambda part: (part.unit.file, part.sparse))]
        threads = MAX_REQUESTS if not self._lookup.cost.near else self._request.threads if len(rows) > FEW_ROWS else 1
        return [part for parts in side_by_side(self._read_file, tasks, threads) for part in parts]

    def _read_file(self, task: tuple[bool, list[_UnitRows]]) -> list[UnitColumns]:
        """Return rows of one file. Sparse rows are looked up."""
        sparse, parts = task
        if sparse:
            units = [(part.unit, self._lookup.stored(part.unit, part.rows)) for part in parts]
            rows = self._lookup.take(units, self._request)
            if rows is not None:
                return [self._decoded(*rows)]
        return [_take_of_unit(self._read(part.number), part.rows) for part in parts]

    def told(self, error: CellError, unit: Unit, row: int | None) -> DataError:
        """Return the error of a cell with its file, row group, row and column."""
        if unit.row_group == SEVERAL and row is not None:
            unit = replace(unit, row_group=int(self._lookup.row_groups(unit, np.array([row]))[0]))
        return super().told(error, unit, row)

    def _cell_error(self, error: CellError, parts: list[UnitColumns], back: IntArray) -> DataError:
        """Return the error of a cell of a batch with the place of the cell."""
        at = int(back[error.row or 0])
        for part in parts:
            if at < part.part.count:
                return self.told(error, part.unit, int(part.part.numbers()[at]) if error.row is not None else None)
            at -= part.part.count
        return DataError(str(error))


def _take_of_unit(read: UnitColumns, rows: IntArray) -> UnitColumns:
    """Return some rows of a unit that was read whole."""
    part = UnitTable(table=read.part.table, first=0, count=len(rows), kept=read.part.numbers()[rows])
    fixed = {name: values[rows] for name, values in read.fixed.items()}
    deferred = {name: _take(cells, rows) for name, cells in read.deferred.items()}
    return UnitColumns(unit=read.unit, part=part, fixed=fixed, deferred=deferred)


def _take(cells: pa.Array | Cells, rows: IntArray) -> pa.Array | Cells:
    return cells.take(rows) if isinstance(cells, Blobs | FileBlobs) else wide.take(cells, rows)
