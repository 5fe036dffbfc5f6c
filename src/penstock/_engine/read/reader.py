"""Reading a unit: its rows as Arrow, less the deleted and the filtered ones. The only room that reads data files."""

from __future__ import annotations

import contextlib
import logging
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from penstock._blobs import Blobs
from penstock._engine.parquet.blob_chunks import LARGE_CELL, CellPlacesCache, concat_blobs, find_chunks, read_chunk
from penstock._engine.parquet.file_blobs import FileBlobs
from penstock._engine.parquet.page_index import ColumnChunk
from penstock._engine.read.missing_columns import check_absent
from penstock._engine.read.schema_evolution import (
    ReadColumns,
    beyond_nanoseconds,
    columns_by_id,
    fitted,
    has_timestamps,
    id_of,
    int96_unit,
    spelt,
)
from penstock._engine.runtime.buffers import BufferPool
from penstock._engine.runtime.table_cache import PinnedMemory, TableCache
from penstock._engine.storage.file_errors import check_same, miscounted, missing_file, out_of_reach, read_columns, unreadable
from penstock.errors import DataChangedError, DataError
from penstock.filters import Expr
from penstock.model import WHOLE_FILE, BoolArray, IntArray, Snapshot, Units
from penstock.schema import CellCodec, CellProblem

__all__ = ["UNCOUNTED", "FileHandle", "FileHandles", "Reader", "Unit", "UnitTable"]


@dataclass(slots=True, kw_only=True, eq=False)
class FileHandle:
    """An open data file: as pyarrow reads it, its bytes, and the names of its columns.

    Attributes:
        in_nanoseconds: Whether timestamps of twelve bytes, INT96, are read in nanoseconds.
        chunks: Where the cells of some columns lie that can be read as they are; None before anybody asked.
        ids: The names of columns by their ids; None before anybody asked.
    """

    file: pq.ParquetFile
    source: Any
    names: frozenset[str]
    in_nanoseconds: bool = False
    chunks: dict[str, list[ColumnChunk]] | None = None
    ids: dict[int, str] | None = None

    def rows(self, row_group: int) -> int:
        """Return the rows that a row group, or the whole file, has by its footer."""
        footer = self.file.metadata
        return int(footer.num_rows if row_group == WHOLE_FILE else footer.row_group(row_group).num_rows)

    def stored_bytes(self, row_group: int, columns: Sequence[str]) -> int:
        """Return what columns of a row group, or of the whole file, take on storage."""
        # pyarrow has found out the leaves of columns when it opened the file; to do so again would take as long as that.
        footer, leaves = self.file.metadata, getattr(self.file, "_nested_paths_by_prefix", {})
        groups = map(footer.row_group, range(footer.num_row_groups) if row_group == WHOLE_FILE else (row_group,))
        found = [leaf for name in columns for leaf in leaves.get(name, ())]
        return sum([group.column(leaf).total_compressed_size for group in groups for leaf in found])

    def out_of_reach(self, row_group: int, columns: Sequence[str]) -> str | None:
        """Return which column of a row group, or of the whole file, has timestamps that nanoseconds do not reach.

        Arrow makes other timestamps of them and does not say so; in seconds they are what they are.
        """
        if not self.in_nanoseconds:
            return None
        asked = [name for name in columns if has_timestamps(self.file.schema_arrow.field(name).type)]
        leaves, stored = getattr(self.file, "_nested_paths_by_prefix", {}), self.file.schema
        asked = [name for name in asked if any(stored.column(leaf).physical_type == "INT96" for leaf in leaves.get(name, ()))]
        if not asked:
            return None
        file = pq.ParquetFile(self.source, metadata=self.file.metadata, coerce_int96_timestamp_unit="s")
        groups = range(self.file.metadata.num_row_groups) if row_group == WHOLE_FILE else (row_group,)
        found = file.read_row_groups(list(groups), columns=asked, use_threads=False)
        return next((name for name in asked if beyond_nanoseconds(found.column(name))), None)


class FileHandles(threading.local):
    """Open data files, of each thread its own: the newest few, closed when the thread ends.

    What their footers say is shared, so that a file is opened often but its footer read once.
    """

    MOST = 8

    def __init__(self, footers: OrderedDict[str, pq.FileMetaData] | None = None) -> None:
        """Begin without any; called anew in every thread, with the same footers."""
        self._files: OrderedDict[str, FileHandle] = OrderedDict()
        self._footers = OrderedDict() if footers is None else footers
        self.fetched = 0

    def get(
        self, path: str, filesystem: pafs.FileSystem, check: Callable[[], None], schema: pa.Schema, *, checksums: bool = False
    ) -> FileHandle:
        """Return an open file of a table with some schema; `check` is called before one is opened."""
        found = self._files.pop(path, None)
        if found is None:
            check()
            remote = not isinstance(filesystem, pafs.LocalFileSystem)
            source = filesystem.open_input_file(path)
            footer, unit = self._footers.get(path), int96_unit(schema)
            options = {"pre_buffer": remote, "coerce_int96_timestamp_unit": unit, "page_checksum_verification": checksums}
            file = pq.ParquetFile(source, metadata=footer, **options)
            found = FileHandle(file=file, source=source, names=frozenset(file.schema_arrow.names), in_nanoseconds=unit is None)
            self._footers[path] = file.metadata
            while len(self._footers) > 8 * self.MOST:
                self._footers.popitem(last=False)
        self._files[path] = found
        while len(self._files) > self.MOST:
            self._files.popitem(last=False)[1].file.close(force=True)
        return found


OBJECTS = 1536
"""Bytes that a column of a unit takes beside its values, which counts where units are many and small."""

UNCOUNTED = -1
"""The count of a unit whose rows nobody has counted, since they are not what is handed out."""


MOST_CHECKED = 1 << 14
"""Files that are remembered as looked at."""

DOUBTED: tuple[int, tuple[str, ...]] = (-1, ())
"""What stands among them once the user was warned."""

logger = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One unit, spelt out: what a worker needs to know to read it."""

    file: int
    row_group: int
    start: int
    first: int
    rows: int
    count: int
    residual: bool

    @classmethod
    def of(cls, units: Units, index: int) -> Unit:
        """Return one entry of the arrays."""
        return cls(
            file=int(units.file[index]),
            row_group=int(units.row_group[index]),
            start=int(units.start[index]),
            first=int(units.first[index]),
            rows=int(units.rows[index]),
            count=int(units.counts[index]),
            residual=bool(units.residual[index]),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitTable:
    """The rows kept of one unit.

    Attributes:
        table: The columns asked for.
        first: The number of the unit's first row in its file.
        count: How many rows are kept; there may be no column to tell.
        kept: Which rows of the unit they are; None where all are.
        passed: Under a filter on the fly, which of the rows pass it; None where all do.
        cells: Columns of blobs that were read as they lie, and are not in the table.
        lasts: Whether they stay in memory.
        views: Columns of the table as arrays that are views of it, where somebody has asked for them.
    """

    table: pa.Table
    first: int
    count: int
    kept: IntArray | None = None
    passed: BoolArray | None = None
    cells: Mapping[str, Blobs | FileBlobs] = field(default_factory=dict)
    lasts: bool = False
    views: dict[str, npt.NDArray[Any]] = field(default_factory=dict)

    def numbers(self) -> IntArray:
        """Return the number of each row in its file."""
        return np.arange(self.first, self.first + self.count) if self.kept is None else self.first + self.kept

    @property
    def nbytes(self) -> int:
        """What they take in memory, cells that are still in their file included; a part keeps all that was read with it."""
        cells = (one.loaded_bytes if isinstance(one, FileBlobs) else one.nbytes for one in self.cells.values())
        objects = OBJECTS * (len(self.table.column_names) + len(self.cells))
        return int(self.table.get_total_buffer_size()) + sum(cells) + objects

    def owned(self, rooms: PinnedMemory) -> UnitTable:
        """Return them in other memory: what they were read to is used for the next ones, or lent to their window.

        Raises:
            CellProblem: If a cell that is still in its file cannot be read.
        """
        cells: dict[str, Blobs] = {}
        for name, one in self.cells.items():
            if isinstance(one, FileBlobs):
                cells[name] = one.loaded(rooms)
            else:
                cells[name] = replace(one, buffers=tuple(map(rooms.copied, one.buffers)))
            for memory in cells[name].buffers:
                memory.flags.writeable = False  # of which a codec may hand out views
        return replace(self, table=rooms.settled(self.table), cells=cells, lasts=True, views={})


IDLE_BYTES = 256 << 20
"""Memory of windows that may wait to be used again."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reader:
    """Reads units of one snapshot.

    Attributes:
        snapshot: The table's facts.
        filesystem: Where its files lie.
        condition: The row filter, bound to the table; None for none.
        lazy: Whether filtered rows are only marked, since they were not counted before.
        handles: Files that are open.
        warned: Files that were warned of.
        buffer_pool: Memory that windows use over and over, also from one epoch to the next.
        places: Where large cells lie in files of this machine.
        table_cache: Units that stay in memory, also for other questions about the table.
        checksums: Whether pages that were written with a checksum are compared with it.
        asked: What is the same for all units of which the same columns are asked for.
        checked: Files of which it was looked at what they lack, of some columns.
    """

    snapshot: Snapshot
    filesystem: pafs.FileSystem
    condition: Expr | None = None
    lazy: bool = False
    handles: FileHandles = field(default_factory=lambda: FileHandles(OrderedDict()), repr=False)
    warned: list[int] = field(default_factory=list, repr=False)
    buffer_pool: BufferPool = field(default_factory=lambda: BufferPool(IDLE_BYTES), repr=False)
    places: CellPlacesCache = field(default_factory=CellPlacesCache, repr=False)
    table_cache: TableCache[UnitTable] = field(default_factory=TableCache, repr=False)
    checksums: bool = False
    asked: dict[tuple[str, ...], ReadColumns] = field(default_factory=dict, repr=False)
    checked: set[tuple[int, tuple[str, ...]]] = field(default_factory=set, repr=False)

    def read(self, unit: Unit, columns: Sequence[str], blobs: Sequence[str] = ()) -> UnitTable:
        """Return the rows kept of a unit; those columns among `blobs` that can be are read as they lie.

        Raises:
            DataError: If the file cannot be read.
            DataChangedError: If other rows pass than were counted.
        """
        asked = self.condition if unit.residual else None
        cells = self._cells(unit, blobs)
        columns = [name for name in columns if name not in cells] if cells else columns
        needed = list(dict.fromkeys([*columns, *sorted(asked.columns if asked is not None else ())]))
        table = self._stored(unit, needed)
        kept = passed = None
        alive = self._alive(unit)
        if alive is not None:
            table, kept = table.filter(pa.array(alive)), np.flatnonzero(alive)
        if asked is not None:
            passed = asked.mask(table)
            if not self.lazy:
                table = table.filter(pa.array(passed))
                kept, passed = np.flatnonzero(passed) if kept is None else kept[passed], None
        count = unit.rows if kept is None else len(kept)
        if unit.count not in (UNCOUNTED, count):
            raise DataChangedError(self._changed(unit, count))
        table = table if len(needed) == len(columns) else table.select(columns)
        cells = cells if kept is None else {name: found.take(kept) for name, found in cells.items()}
        return UnitTable(table=table, first=unit.first, count=count, kept=kept, passed=passed, cells=cells)

    def read_to_stay(self, unit: Unit, columns: tuple[str, ...], blobs: tuple[str, ...], rows: int) -> UnitTable:
        """Return what `read` does, which stays in memory by `name` if the table, of so many rows, is small and read again.

        Cells that are still in their file are loaded then, and the file is closed.
        """
        part, name = self.read(unit, columns, blobs), self.name(unit, columns, blobs)
        with contextlib.suppress(CellProblem):  # which is told when the cell is needed
            self.table_cache.offer(
                name,
                size=lambda: part.nbytes,
                whole=lambda: part.nbytes * rows // max(1, part.count),
                own=part.owned,
            )
        return self.table_cache.get(name) or part

    def name(self, unit: Unit, columns: tuple[str, ...], blobs: tuple[str, ...]) -> Hashable:
        """Return what tells the rows kept of a unit from all that other questions would keep of it."""
        asked = repr(self.condition.describe()) if unit.residual and self.condition is not None else None
        return unit, columns, blobs, asked, self.lazy and asked is not None, self.checksums

    def count(self, unit: Unit) -> int:
        """Return how many rows of a unit are kept, reading no more than the filter's columns."""
        assert self.condition is not None  # noqa: S101 - only units with a filter yet to be run are counted
        table = self._stored(unit, sorted(self.condition.columns))
        mask = self.condition.mask(table)
        alive = self._alive(unit)
        return int(np.count_nonzero(mask if alive is None else mask & alive))

    def fetched(self) -> int:
        """Return what this thread has read since it was last asked, in bytes on storage."""
        found, self.handles.fetched = self.handles.fetched, 0
        return found

    def row_groups(self, unit: Unit, rows: IntArray) -> IntArray:
        """Return the number of the row group that each row of a unit lies in."""
        if unit.row_group != WHOLE_FILE:
            return np.full(len(rows), unit.row_group)
        with self.filesystem.open_input_file(self.snapshot.files.path[unit.file].as_py()) as source:
            footer = pq.read_metadata(source)
        ends = np.cumsum([footer.row_group(at).num_rows for at in range(footer.num_row_groups)])
        return np.searchsorted(ends, rows, side="right")

    def where(self, unit: Unit) -> str:
        """Return the name of a unit for messages."""
        path = self.snapshot.files.path[unit.file].as_py()
        return path if unit.row_group == WHOLE_FILE else f"{path}, row group {unit.row_group}"

    def _stored(self, unit: Unit, columns: Sequence[str]) -> pa.Table:
        """Return a unit's rows as stored, with the table's names and types, partition values among them."""
        files, asked = self.snapshot.files, self.asked.get(names := tuple(columns))
        if asked is None:
            asked = self.asked[names] = ReadColumns.of(self.snapshot, names)
        self._check_absent(unit, asked.inside)
        table = self._from_file(unit, asked.inside)
        stated = files.rows[unit.file] if unit.row_group == WHOLE_FILE else -1
        misstated = stated not in (-1, table.num_rows)
        if misstated and self.snapshot.version:
            msg = (
                f"{self.where(unit)}: it has {table.num_rows} rows, and the table's log says {stated}. A file as it was "
                "committed was expected. Restore it, or have the software that wrote the table repair its log."
            )
            raise DataChangedError(msg)
        if misstated or table.num_rows < unit.start + unit.rows:
            raise DataChangedError(self._changed(unit, table.num_rows))
        table = table if table.num_rows == unit.rows else table.slice(unit.start, unit.rows)
        called = self._called(unit, asked.inside)
        stored_as, found = dict(zip(table.column_names, table.columns, strict=True)), []
        for name, kind in zip(names, asked.schema.types, strict=True):
            if name in asked.partitions:
                value = files.partitions.column(name)[unit.file].cast(kind)
                found.append(pa.chunked_array([pa.repeat(value, unit.rows)], type=kind))
            else:
                found.append(self._typed(unit, stored_as.get(called[name]), name, kind))
        return pa.Table.from_arrays(found, schema=asked.schema) if found else table.select([])

    def _check_absent(self, unit: Unit, columns: tuple[str, ...]) -> None:
        """Refuse a file that lacks a column which cannot be null in it; looked at once for each file."""
        if self.snapshot.stored is None or (unit.file, columns) in self.checked:
            return
        there = self._schema_in(unit)
        self._called(unit, columns)  # which refuses a file whose columns cannot be told apart
        doubt = check_absent(self.snapshot, unit.file, columns, there)
        if doubt and DOUBTED not in self.checked:
            self.checked.add(DOUBTED)
            logger.warning(doubt)
        if len(self.checked) >= MOST_CHECKED:
            self.checked.intersection_update({DOUBTED})
        self.checked.add((unit.file, columns))

    def _from_file(self, unit: Unit, columns: Sequence[str]) -> pa.Table:
        with self._told(unit):
            handle = self._handle(unit)
            if self.snapshot.sampled and not self.warned:
                self._warn(unit, handle.names)
            present = [name for name in self._called(unit, columns).values() if name in handle.names]
            whole, file = unit.row_group == WHOLE_FILE, handle.file
            read = file.read if whole else partial(file.read_row_group, unit.row_group)
            table = read_columns(partial(read, use_threads=False), present, rows := handle.rows(unit.row_group))
            self.handles.fetched += handle.stored_bytes(unit.row_group, present)
            far = handle.out_of_reach(unit.row_group, present)
        if far is not None:
            raise out_of_reach(self.where(unit), far)
        if table.num_rows != rows:
            raise miscounted(self.where(unit), rows, table.num_rows)
        return table

    @contextlib.contextmanager
    def _told(self, unit: Unit) -> Iterator[None]:
        """Tell what goes wrong in a file as an error of ours."""
        try:
            yield
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            with contextlib.suppress(OSError):
                self._check(unit)()
            if isinstance(error, FileNotFoundError):
                raise missing_file(self.snapshot, unit.file, self.where(unit)) from error
            raise unreadable(self.where(unit), unit.rows, error) from error

    def _handle(self, unit: Unit) -> FileHandle:
        path = self.snapshot.files.path[unit.file].as_py()
        return self.handles.get(path, self.filesystem, self._check(unit), self.snapshot.schema, checksums=self.checksums)

    def _called(self, unit: Unit, columns: Sequence[str], there: Collection[str] | None = None) -> dict[str, str]:
        """Return what a unit's file calls columns; a name that it does not have stands for a column that it does not have.

        Raises:
            DataError: If the names that are there differ from a column's in capital letters only, and from one another.
        """
        names, stored = self.snapshot.names, self.snapshot.stored
        place = self.snapshot.schema.get_field_index
        ids = {} if stored is None else {name: id_of(stored.field(place(name))) for name in columns}
        if stored is None:
            return {name: names.get(name, name) for name in columns}
        if not any(number is not None for number in ids.values()):
            there = self._names_in(unit) if there is None else there
            try:
                return {name: spelt(names.get(name, name), there) for name in columns}
            except pa.ArrowInvalid as error:
                msg = f"{self.where(unit)}: the table's column {error}. One such column was expected. Rename the others."
                raise DataError(msg) from error
        handle = self._handle(unit)
        if handle.ids is None:
            handle.ids = columns_by_id(handle.file.schema_arrow, self.where(unit))
        # What is no column of the table has no id, such as what a change data feed tells of a row.
        found = {name: number for name, number in ids.items() if number is not None}
        return {name: handle.ids.get(found[name], "\0") if name in found else names.get(name, name) for name in columns}

    def _names_in(self, unit: Unit) -> Collection[str]:
        """Return the names of the columns in a unit's file."""
        with self._told(unit):
            return self._handle(unit).names

    def _schema_in(self, unit: Unit) -> pa.Schema:
        """Return the columns in a unit's file."""
        with self._told(unit):
            return self._handle(unit).file.schema_arrow

    def _cells(self, unit: Unit, columns: Sequence[str]) -> dict[str, Blobs | FileBlobs]:
        """Return the cells of those columns that can be read as they lie."""
        if not columns or self.checksums:  # which pyarrow verifies
            return {}
        path = self.snapshot.files.path[unit.file].as_py()
        with self._told(unit):
            handle = self._handle(unit)
            stored = {called: name for name, called in self._called(unit, columns).items()}
            if handle.chunks is None:
                every = [name for name, column in self.snapshot.fields.items() if isinstance(column.codec, CellCodec)]
                handle.chunks = find_chunks(path, self.filesystem, list(self._called(unit, every).values()))
            found: dict[str, Blobs | FileBlobs] = {}
            for name, chunks in handle.chunks.items():
                if name not in stored:
                    continue
                mine = chunks if unit.row_group == WHOLE_FILE else chunks[unit.row_group : unit.row_group + 1]
                cells = [self._located(unit, chunk) or read_chunk(handle.source, chunk, self.buffer_pool) for chunk in mine]
                there = [one for one in cells if one is not None]
                if there and len(there) == len(mine) and sum(map(len, there)) >= unit.start + unit.rows:
                    found[stored[name]] = concat_blobs(there).take(slice(unit.start, unit.start + unit.rows))
                    self.handles.fetched += sum(chunk.size for chunk in mine)
        return found

    def _located(self, unit: Unit, chunk: ColumnChunk) -> FileBlobs | None:
        """Return the cells of a chunk where they lie in a file of this machine, if they are large enough to be left there."""
        if chunk.size < LARGE_CELL * max(1, chunk.values) or not isinstance(self.filesystem, pafs.LocalFileSystem):
            return None
        return self.places.located(self.snapshot.files.path[unit.file].as_py(), chunk, self._check(unit))

    def _check(self, unit: Unit) -> Callable[[], None]:
        """Return what refuses a file that is not the one the table was opened with."""

        def check() -> None:
            check_same(self.snapshot, unit.file, self.filesystem, self.where(unit))

        return check

    def _warn(self, unit: Unit, stored: frozenset[str]) -> None:
        """Tell, once, of columns that the files which told the table's columns did not have."""
        more = stored.difference(self.snapshot.schema.names, self.snapshot.names.values())
        if more:
            self.warned.append(unit.file)
            warnings.warn(
                f"{self.snapshot.files.path[unit.file].as_py()} has columns that the table does not: "
                f"{', '.join(sorted(more))}. The table's columns are those of its first and last file. To have those of all: "
                'penstock.open(..., format=ParquetFormat(columns="union")).',
                RuntimeWarning,
                stacklevel=2,
            )

    def _typed(self, unit: Unit, column: pa.ChunkedArray | None, name: str, kind: pa.DataType) -> pa.ChunkedArray:
        """Return a column in the table's type; all null where the file was written before the column was added."""
        if column is None:
            return pa.chunked_array([pa.nulls(unit.rows, kind)], type=kind)
        try:
            return fitted(column, name, kind, self.snapshot)
        except pa.ArrowException as error:
            msg = (
                f"{self.where(unit)}, column {name!r}: stored as {column.type}, which does not fit the table's {kind}: "
                f"{error}. "
                "Rewrite the file with the table's type, or leave the column out."
            )
            raise DataError(msg) from error

    def _alive(self, unit: Unit) -> BoolArray | None:
        """Return which rows of a unit are not deleted; None where none is."""
        deleted = self.snapshot.files.deletes.get(unit.file)
        if deleted is None:
            return None
        low, high = np.searchsorted(deleted, [unit.first, unit.first + unit.rows])
        alive = np.ones(unit.rows, dtype=np.bool_)
        alive[deleted[low:high] - unit.first] = False
        return alive

    def _changed(self, unit: Unit, rows: int) -> str:
        return (
            f"{self.where(unit)}: {rows} rows were found where the plan has {unit.count} of {unit.rows}. The file was changed "
            "after the table was opened. Open the table again; a state saved before cannot be resumed."
        )
