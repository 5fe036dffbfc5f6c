"""Rows by number become columns: those that lie far apart are looked up, those of which a unit has many come with it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from itertools import groupby, pairwise
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
from pyarrow import fs as pafs

from penstock._blobs import Blobs
from penstock._engine.decode.arrow import CellError
from penstock._engine.decode.columns import decode_deferred
from penstock._engine.decode.concat import take_wide
from penstock._engine.lookup.byte_ranges import AT_ONCE, LOCAL, REMOTE, side_by_side
from penstock._engine.lookup.cache import LookupCache, LruCache
from penstock._engine.lookup.row_lookup import SEVERAL, LookupRequest, RowLookup
from penstock._engine.parquet.file_blobs import FileBlobs
from penstock._engine.plan.table import Table
from penstock._engine.query.query import Query, ReadSpec
from penstock._engine.query.values import Batch
from penstock._engine.read.reader import Reader, Unit, UnitTable
from penstock._engine.runtime.threads import ThreadPool, default_threads
from penstock._engine.window.buffer import Cells, UnitColumns, concat_arrays, concat_cells
from penstock._engine.window.reader import WindowReader, WindowRows
from penstock._engine.window.sequences import SequenceWindowReader
from penstock.errors import DataError
from penstock.model import IntArray, Plan, Window
from penstock.shuffles import InOrder

__all__ = ["Ready", "RowTaker", "ready"]

SPARSE = 4
"""Of a unit of which more than one row in so many is asked for, all is read."""

FEW = 256
"""Rows of files on this machine that are not worth to start a thread for."""

ONE: IntArray = np.zeros(1, dtype=np.int64)
"""The order of a single row."""

READY_MOST = 8
"""Questions that are kept ready of a table."""


class _Some(NamedTuple):
    """Some rows of a unit, which has a number: which ones, counted among the rows kept of it."""

    unit: Unit
    number: int
    rows: IntArray

    @property
    def sparse(self) -> bool:
        """Whether they are few of the unit's."""
        return SPARSE * len(self.rows) <= self.unit.count


class RowTaker(WindowReader):
    """Reads the rows that are asked for, and of their units no more than is cheap.

    Attributes:
        num_rows: How many rows there are.
    """

    def __init__(self, reader: RowLookup, plan: Plan, read_spec: ReadSpec, threads: int) -> None:
        """Store what is read, and by how many threads."""
        super().__init__(reader, plan, read_spec, ThreadPool(1))
        self._lookup, self._wish = reader, LookupRequest(columns=self.columns, blobs=self._blobs, threads=threads)
        self._stream = InOrder().arrange(plan.counts, seed=0, epoch=0)
        self.num_rows = plan.num_rows

    def rows(self, numbers: IntArray) -> Batch:
        """Return rows by their numbers in stored order, in the order asked for.

        Raises:
            DataError: If a file cannot be read, or a cell cannot be decoded.
        """
        if not len(numbers):
            return WindowRows(pieces=((self.fetch(Window(reads=())), 0, 0),), places=(0,)).assemble(self)
        order = ONE if len(numbers) == 1 else np.argsort(numbers, kind="stable")
        parts = self._parts(*self._stream.locate(numbers[order]))
        back = order if len(numbers) == 1 else np.argsort(order, kind="stable")
        found = {name: concat_arrays([part.fixed[name] for part in parts])[back] for name in parts[0].fixed}
        for column in self.deferred:
            cells = concat_cells([part.deferred[column.name] for part in parts])
            try:
                cells = cells if len(numbers) == 1 else _taken(cells, back)
                made = decode_deferred(cells, column, self.buffer_pool, self.max_cell_bytes, self.meter)
            except CellError as error:
                raise self._blamed(error, parts, back) from error
            self.outputs[column.name] = tuple(made)
            found.update(made)
        return found

    def _parts(self, units: IntArray, rows: IntArray) -> list[UnitColumns]:
        """Return rows, given the unit of each and its number among the rows kept of that, in ascending order."""
        edges = [0, *(np.flatnonzero(units[1:] != units[:-1]) + 1).tolist(), len(units)]
        spelt = [_Some(Unit.of(self._plan.units, int(units[at])), int(units[at]), rows[at:end]) for at, end in pairwise(edges)]
        every = [(sparse, list(some)) for (_, sparse), some in groupby(spelt, lambda one: (one.unit.file, one.sparse))]
        threads = AT_ONCE if not self._lookup.cost.near else self._wish.threads if len(rows) > FEW else 1
        return [part for parts in side_by_side(self._of_file, every, threads) for part in parts]

    def _of_file(self, task: tuple[bool, list[_Some]]) -> list[UnitColumns]:
        """Return rows of one file, looked up where they are sparse."""
        sparse, some = task
        if sparse:
            found = self._lookup.pick([(one.unit, self._lookup.stored(one.unit, one.rows)) for one in some], self._wish)
            if found is not None:
                return [self._decode_unit(*found)]
        return [_subset(self._read(one.number), one.rows) for one in some]

    def located(self, error: CellError, unit: Unit, row: int | None) -> DataError:
        """Return an error of a cell as one that says which file, row group, row and column it is in."""
        if unit.row_group == SEVERAL and row is not None:
            unit = replace(unit, row_group=int(self._lookup.row_groups(unit, np.array([row]))[0]))
        return super().located(error, unit, row)

    def _blamed(self, error: CellError, parts: list[UnitColumns], back: IntArray) -> DataError:
        """Return an error of a cell as one that says where the cell lies."""
        at = int(back[error.row or 0])
        for part in parts:
            if at < part.rows.count:
                return self.located(error, part.unit, int(part.rows.row_numbers()[at]) if error.row is not None else None)
            at -= part.rows.count
        return DataError(str(error))


def _subset(read: UnitColumns, rows: IntArray) -> UnitColumns:
    """Return some rows of a unit that was read whole."""
    part = UnitTable(table=read.rows.table, first=0, count=len(rows), selected=read.rows.row_numbers()[rows])
    fixed = {name: values[rows] for name, values in read.fixed.items()}
    return UnitColumns(
        unit=read.unit, rows=part, fixed=fixed, deferred={name: _taken(one, rows) for name, one in read.deferred.items()}
    )


def _taken(cells: pa.Array | Cells, rows: IntArray) -> pa.Array | Cells:
    return cells.take(rows) if isinstance(cells, Blobs | FileBlobs) else take_wide(cells, rows)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ready:
    """What answers a question by numbers of rows.

    Attributes:
        asked: The question. It is known again by its identity, and kept here so that no other gets its place in memory.
        query: What is answered: whoever asks for a row by its number wants that row, or an error.
        picks: What reads the rows.
    """

    asked: Query
    query: Query
    picks: RowTaker | SequenceWindowReader


class _Known:
    """What is kept of a table from one call to the next: its files, and what answers questions about it."""

    def __init__(self) -> None:
        self.shelf = LookupCache()
        self.ready: LruCache[int, Ready] = LruCache(READY_MOST)


_KNOWN: WeakKeyDictionary[Table, _Known] = WeakKeyDictionary()
"""By table, not in it: sent to another process, or made anew after a fork, it is another one, of which nothing is known."""

_KNOWING = threading.Lock()


def ready(table: Table, query: Query, read_spec: Callable[[Table, Query], ReadSpec]) -> Ready:
    """Return what answers a question by numbers of rows, made when it is first asked."""
    with _KNOWING:
        known = _KNOWN.get(table)
        if known is None:
            known = _KNOWN[table] = _Known()
    found = known.ready.get(id(query))
    if found is None:
        found = _made(table, query, read_spec, known.shelf)
        known.ready.put(id(query), found, 1)
    return found


def _made(table: Table, asked: Query, read_spec: Callable[[Table, Query], ReadSpec], shelf: LookupCache) -> Ready:
    query = replace(asked, skip=None)
    planned = table.plan(query)
    cost = LOCAL if isinstance(table.filesystem, pafs.LocalFileSystem) else REMOTE
    told = {column.name: getattr(planned.reader, column.name) for column in fields(Reader)}
    reader, what = RowLookup(**told, cost=cost, shelf=shelf), read_spec(table, query)
    if what.sequence is not None:
        return Ready(asked=asked, query=query, picks=SequenceWindowReader(reader, planned.plan, what, ThreadPool(1)))
    picks = RowTaker(reader, planned.plan, what, query.threads or default_threads())
    return Ready(asked=asked, query=query, picks=picks)
