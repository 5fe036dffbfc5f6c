"""Rows by number: `RowTaker` returns them as decoded columns, and `RowLookup` reads the pages that hold them.

A row group is read whole if that costs less, or if many of its rows are requested. Names, types and partition values of
columns are decided by `Reader`, as for rows that are read in order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import fs as pafs

from penstock._blobs import Blobs
from penstock._engine.decode.arrow import CellError
from penstock._engine.decode.columns import decode_deferred
from penstock._engine.decode.concat import take_wide
from penstock._engine.lookup.byte_ranges import MAX_REQUESTS, Cost, OpenFile
from penstock._engine.lookup.cache import LookupCache, LruCache, PageKey
from penstock._engine.lookup.page_reads import ColumnRead, PageRead, StoredRows, take_rows
from penstock._engine.parquet.blob_chunks import concat_blobs
from penstock._engine.parquet.chunk_layout import FileLayout
from penstock._engine.parquet.file_blobs import FileBlobs, LocalFile
from penstock._engine.parquet.plain_pages import as_arrow
from penstock._engine.parquet.thrift import ThriftError
from penstock._engine.query.query import Batch, ReadSpec
from penstock._engine.read.reader import Reader, Unit, UnitTable
from penstock._engine.runtime.threads import ThreadPool, parallel_map
from penstock._engine.window.buffer import Cells, UnitColumns, concat_arrays, concat_cells
from penstock._engine.window.reader import WindowReader, WindowRows
from penstock.errors import DataChangedError, DataError
from penstock.model import WHOLE_FILE, BoolArray, IntArray, Plan, Window
from penstock.schema import CellProblem
from penstock.shuffles import InOrder

SELECTED_BYTES = 16 << 20
"""Bytes of cached numbers of selected rows."""

THREAD_BYTES = 1 << 22
"""Bytes that a thread reads and decompresses at least; fewer are not worth a thread."""

SPARSE = 4
"""A unit is read whole if more than one in so many of its rows is requested."""

FEW_ROWS = 256
"""Rows of local files up to which no thread is started."""

SEVERAL = -2
"""The row group of rows from several row groups."""

Groups: TypeAlias = Sequence[tuple[int, IntArray]]
"""Row groups, and the rows that are read of each."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Request:
    """What is read of each row.

    Attributes:
        columns: The table's columns.
        blobs: Columns whose cells may stay as they are stored.
        threads: The largest number of threads that read and decompress.
    """

    columns: Sequence[str]
    blobs: Sequence[str] = ()
    threads: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _RowsRead(Unit):
    """Rows of a file that were read, by the names that columns have in the file."""

    data: dict[str, StoredRows]


class _PlannedRead(NamedTuple):
    """How a column of a row group is read: the index of the row group, and the decoded page if it is cached."""

    at: int
    name: str
    read: ColumnRead
    key: PageKey | None
    page: pa.ChunkedArray | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowLookup(Reader):
    """Reads selected rows of units.

    Attributes:
        cost: The cost of reading from the table's storage.
        cache: What is remembered of its files.
        selected: The selected rows of units, by file, row group and first row.
    """

    cost: Cost
    cache: LookupCache
    selected: LruCache[tuple[int, int, int], IntArray] = field(default_factory=lambda: LruCache(SELECTED_BYTES), repr=False)

    def stored(self, unit: Unit, rows: IntArray) -> IntArray:
        """Return the stored rows of a unit, given their numbers among its selected rows."""
        if not unit.residual and unit.file not in self.snapshot.files.deletes:
            return rows
        key = (unit.file, unit.row_group, unit.start)
        selected = self.selected.get(key)
        if selected is None:
            every = self.read(unit, ()).selected
            selected = np.arange(unit.rows) if every is None else every
            self.selected.put(key, selected, selected.nbytes + 100)
        return selected[rows]

    def take(self, units: Sequence[tuple[Unit, IntArray]], request: _Request) -> tuple[Unit, UnitTable] | None:
        """Return rows of units of one file as one unit, by their ascending stored numbers in each unit.

        It is None if the units must be read whole.
        """
        if self.checksums:  # which only pyarrow checks
            return None
        try:
            file = self._open(units[0][0])
            groups = [group for unit, rows in units for group in self._groups(unit, file.layout, rows)]
        except ThriftError:
            return None
        numbers = [unit.first + rows for unit, rows in units]
        kept = numbers[0] if len(numbers) == 1 else np.concatenate(numbers)
        unit = _RowsRead(
            file=units[0][0].file,
            row_group=groups[0][0] if len(groups) == 1 else SEVERAL,
            start=0,
            first=0,
            rows=len(kept),
            count=len(kept),
            residual=False,
            data={},
        )
        if self.snapshot.sampled and not self.warned:
            self._warn(unit, file.layout.names)
        unit.data.update(self._read_groups(unit, file, groups, request))
        part = self.read(unit, request.columns, request.blobs)
        unit.data.clear()
        return unit, replace(part, selected=kept)

    def _open(self, unit: Unit) -> OpenFile:
        """Return the file of a unit."""
        path = self.snapshot.files.path[unit.file].as_py()
        file = self.cache.files.get(path)
        if file is None:
            with self._file_errors(unit):
                self._check_unchanged(unit)
                local = isinstance(self.filesystem, pafs.LocalFileSystem)
                file = OpenFile.at(path, LocalFile(path) if local else self.filesystem.open_input_file(path))
            self.cache.put_file(file)
        return file

    def _groups(self, unit: Unit, layout: FileLayout, rows: IntArray) -> Groups:
        """Return the row groups that hold some rows of a unit, and the numbers of the rows in each."""
        if unit.row_group != WHOLE_FILE:
            stored = layout.rows(unit.row_group)
            if stored < unit.start + unit.rows:
                raise DataChangedError(self._changed(unit, max(0, stored)))
            return [(unit.row_group, unit.start + rows)]
        sizes = layout.group_rows()
        ends, total = np.cumsum(sizes), int(sizes.sum())
        if (sizes < 0).any() or total < unit.rows or self.snapshot.files.rows[unit.file] not in (-1, total):
            raise DataChangedError(self._changed(unit, total))
        groups = np.searchsorted(ends, rows, side="right")
        return [(group, rows[groups == group] - int(ends[group] - sizes[group])) for group in np.unique(groups).tolist()]

    def _read_groups(self, unit: Unit, file: OpenFile, groups: Groups, request: _Request) -> dict[str, StoredRows]:
        """Return rows of some row groups, by the names that columns have in the file."""
        partitions = self.snapshot.files.partitions.column_names
        present = file.layout.names
        names = self._stored_names(unit, [name for name in request.columns if name not in partitions], present)
        names = {name: stored for name, stored in names.items() if stored in present}
        blobs = {names[name] for name in request.blobs if name in names}
        data: list[dict[str, StoredRows]] = [{} for _ in groups]
        with self._file_errors(unit):
            stored_names = tuple(names.values())
            reads = [read for at in range(len(groups)) for read in self._plan(file, groups, at, stored_names)]
            parts = parallel_map(lambda part: self._run(file, part, blobs), self._split(reads, request.threads), MAX_REQUESTS)
            for read, column in zip(reads, chain.from_iterable(parts), strict=True):
                if column is not None:
                    data[read.at][read.name] = column
            for (group, rows), columns in zip(groups, data, strict=True):
                rest = [name for name, stored in names.items() if stored not in columns]
                if rest:
                    table = Reader._from_file(self, replace(unit, row_group=group), rest)  # noqa: SLF001 - see _from_file
                    columns.update({name: take_rows(table.column(at), rows) for at, name in enumerate(table.column_names)})
        return data[0] if len(data) == 1 else {name: _concat([columns[name] for columns in data]) for name in names.values()}

    def _plan(self, file: OpenFile, groups: Groups, at: int, names: tuple[str, ...]) -> Iterator[_PlannedRead]:
        """Yield how to read columns of a row group, except those that are left to pyarrow."""
        group, rows = groups[at]
        for column in self.cache.columns(file, group, names, self.cost, self.buffer_pool):
            read = column.read_of(file, rows, self.cost)
            if read is not None:
                key = None if read.page is None else (file.path, group, column.name, read.page)
                yield _PlannedRead(at, column.name, read, key, None if key is None else self.cache.pages.get(key))

    def _split(self, reads: Sequence[_PlannedRead], threads: int) -> list[Sequence[_PlannedRead]]:
        """Return what each thread reads: one reads all if it is little, or if requests are made in parallel anyway."""
        sizes = np.cumsum([0, *(one.read.size if one.page is None else 0 for one in reads)])
        parts = min(threads, int(sizes[-1]) // THREAD_BYTES) if self.cost.near else 1
        if parts <= 1:
            return [reads]
        edges = np.searchsorted(sizes, np.arange(1, parts) * sizes[-1] // parts).tolist()
        return [reads[start:stop] for start, stop in pairwise([0, *edges, len(reads)])]

    def _run(self, file: OpenFile, reads: Sequence[_PlannedRead], blobs: Collection[str]) -> list[StoredRows | None]:
        """Return columns; None for those that are left to pyarrow."""
        spans = [span for one in reads if one.page is None for span in one.read.spans]
        data = iter(file.fetch(spans, self.cost, self.buffer_pool) if spans else ())
        columns = []
        for one in reads:
            own = [next(data) for _ in one.read.spans] if one.page is None else []
            columns.append(self._rows(file, one, own, as_blobs=one.name in blobs))
        return columns

    def _rows(self, file: OpenFile, planned: _PlannedRead, data: Sequence[memoryview], *, as_blobs: bool) -> StoredRows | None:
        """Return rows of a column; None if its pages are damaged, which pyarrow then reports."""
        read, page = planned.read, planned.page
        try:
            if planned.key is not None and isinstance(read, PageRead):
                if page is None:
                    page = read.decode(data, self.buffer_pool)
                    self.cache.put_page(planned.key, page)
                return read.take(page)
            rows = read.rows(data, self.buffer_pool)
            return rows if as_blobs or isinstance(rows, pa.ChunkedArray) else self._as_arrow(file, planned.name, rows)
        except (OSError, ValueError, pa.ArrowException, CellProblem):
            self.cache.refuse(file, planned.name)
            return None

    def _as_arrow(self, file: OpenFile, name: str, cells: Blobs | FileBlobs) -> pa.ChunkedArray:
        loaded = cells.loaded(self.buffer_pool) if isinstance(cells, FileBlobs) else cells
        return pa.chunked_array([as_arrow(loaded, file.layout.schema.field(name).type, self.buffer_pool)])

    def where(self, unit: Unit) -> str:
        """Return the name of a unit for messages."""
        return Reader.where(self, replace(unit, row_group=WHOLE_FILE) if unit.row_group == SEVERAL else unit)

    def row_groups(self, unit: Unit, rows: IntArray) -> IntArray:
        """Return the number of the row group of each row of a unit."""
        if unit.row_group != SEVERAL:
            return Reader.row_groups(self, unit, rows)
        return np.searchsorted(np.cumsum(self._open(unit).layout.group_rows()), rows, side="right")

    # `Reader.read` gets rows that were read already from these methods. Classes with slots have no super().

    def _from_file(self, unit: Unit, columns: Sequence[str]) -> pa.Table:
        if not isinstance(unit, _RowsRead):
            return Reader._from_file(self, unit, columns)  # noqa: SLF001 - of the class above
        stored = [name for name in self._stored_names(unit, columns).values() if name in unit.data]
        if not stored:
            return pa.table({"rows": pa.nulls(unit.rows)}).select([])  # a table without columns still has rows
        return pa.Table.from_arrays([unit.data[name] for name in stored], names=stored)

    def _cells(self, unit: Unit, columns: Sequence[str]) -> dict[str, Blobs | FileBlobs]:
        if not isinstance(unit, _RowsRead):
            return Reader._cells(self, unit, columns)  # noqa: SLF001 - of the class above
        cells = {name: unit.data.get(stored) for name, stored in self._stored_names(unit, columns).items()}
        return {name: one for name, one in cells.items() if isinstance(one, Blobs | FileBlobs)}

    def _names_in(self, unit: Unit) -> Collection[str]:
        return unit.data if isinstance(unit, _RowsRead) else Reader._names_in(self, unit)  # noqa: SLF001 - of the class above

    def _schema_in(self, unit: Unit) -> pa.Schema:
        return self._open(unit).layout.schema if isinstance(unit, _RowsRead) else Reader._schema_in(self, unit)  # noqa: SLF001

    def _alive(self, unit: Unit) -> BoolArray | None:
        return None if isinstance(unit, _RowsRead) else Reader._alive(self, unit)  # noqa: SLF001 - of the class above


def _concat(parts: Sequence[StoredRows]) -> StoredRows:
    """Return rows of several row groups, one after the other."""
    if any(isinstance(part, Blobs | FileBlobs) for part in parts):
        return concat_blobs([_as_blobs(part) for part in parts])
    chunks = [chunk for array in parts for chunk in array.chunks]  # type: ignore[union-attr] # all are Arrow's
    return pa.chunked_array([pa.concat_arrays(chunks)] if pa.types.is_primitive(chunks[0].type) else chunks)


def _as_blobs(part: StoredRows) -> Blobs | FileBlobs:
    return part if isinstance(part, Blobs | FileBlobs) else Blobs.joined([Blobs.of(chunk) for chunk in part.chunks])


_ONE: IntArray = np.zeros(1, dtype=np.int64)
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
        self._request = _Request(columns=self.columns, blobs=self._blobs, threads=threads)
        self._stream = InOrder().arrange(plan.counts, seed=0, epoch=0)
        self.num_rows = plan.num_rows

    def rows(self, numbers: IntArray) -> Batch:
        """Return rows by their numbers in stored order, in the order of the numbers."""
        if not len(numbers):
            return WindowRows(pieces=((self.fetch(Window(reads=())), 0, 0),), places=(0,)).assemble(self)
        order = _ONE if len(numbers) == 1 else np.argsort(numbers, kind="stable")
        parts = self._read_parts(*self._stream.locate(numbers[order]))
        back = order if len(numbers) == 1 else np.argsort(order, kind="stable")
        batch = {name: concat_arrays([part.fixed[name] for part in parts])[back] for name in parts[0].fixed}
        for column in self.deferred:
            cells = concat_cells([part.deferred[column.name] for part in parts])
            try:
                cells = cells if len(numbers) == 1 else _take(cells, back)
                arrays = decode_deferred(cells, column, self.buffer_pool, self.max_cell_bytes, self.meter)
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
        return [part for parts in parallel_map(self._read_file, tasks, threads) for part in parts]

    def _read_file(self, task: tuple[bool, list[_UnitRows]]) -> list[UnitColumns]:
        """Return rows of one file. Sparse rows are looked up."""
        sparse, parts = task
        if sparse:
            units = [(part.unit, self._lookup.stored(part.unit, part.rows)) for part in parts]
            rows = self._lookup.take(units, self._request)
            if rows is not None:
                return [self._decode_unit(*rows)]
        return [_take_of_unit(self._read(part.number), part.rows) for part in parts]

    def located(self, error: CellError, unit: Unit, row: int | None) -> DataError:
        """Return the error of a cell with its file, row group, row and column."""
        if unit.row_group == SEVERAL and row is not None:
            unit = replace(unit, row_group=int(self._lookup.row_groups(unit, np.array([row]))[0]))
        return super().located(error, unit, row)

    def _cell_error(self, error: CellError, parts: list[UnitColumns], back: IntArray) -> DataError:
        """Return the error of a cell of a batch with the place of the cell."""
        at = int(back[error.row or 0])
        for part in parts:
            if at < part.rows.count:
                return self.located(error, part.unit, int(part.rows.row_numbers()[at]) if error.row is not None else None)
            at -= part.rows.count
        return DataError(str(error))


def _take_of_unit(read: UnitColumns, rows: IntArray) -> UnitColumns:
    """Return some rows of a unit that was read whole."""
    part = UnitTable(table=read.rows.table, first=0, count=len(rows), selected=read.rows.row_numbers()[rows])
    fixed = {name: values[rows] for name, values in read.fixed.items()}
    deferred = {name: _take(cells, rows) for name, cells in read.deferred.items()}
    return UnitColumns(unit=read.unit, rows=part, fixed=fixed, deferred=deferred)


def _take(cells: pa.Array | Cells, rows: IntArray) -> pa.Array | Cells:
    return cells.take(rows) if isinstance(cells, Blobs | FileBlobs) else take_wide(cells, rows)
