"""Reading units: row groups of data files become Arrow tables with the table's columns, names and types.

Deleted rows and rows that do not pass the filter are dropped here, once and for all columns. This is the only module that
reads whole row groups; `lookup` reads single pages, and `parquet/file_blobs.py` large cells.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from penstock._blobs import Blobs
from penstock._engine.parquet.blob_chunks import LARGE_CELL, CellPlacesCache, concat_blobs, find_chunks, read_chunk
from penstock._engine.parquet.file_blobs import FileBlobs
from penstock._engine.parquet.footer import FooterCache
from penstock._engine.parquet.page_index import ColumnChunk
from penstock._engine.read.missing_columns import check_missing_columns
from penstock._engine.read.schema_evolution import (
    columns_by_id,
    evolve_column,
    exceeds_nanoseconds,
    field_id,
    has_timestamps,
    int96_unit,
    match_name,
    without_view_types,
)
from penstock._engine.runtime.memory import BufferPool, CacheMemory, TableCache
from penstock._engine.storage.file_errors import (
    changed_file_error,
    missing_file_error,
    read_columns,
    read_error,
    row_count_error,
    timestamp_range_error,
)
from penstock._engine.storage.filesystem import check_unchanged
from penstock.errors import DataChangedError, DataError
from penstock.filters import Expr
from penstock.model import WHOLE_FILE, BoolArray, IntArray, Snapshot, Units
from penstock.schema import CellCodec, CellProblem

COLUMN_BYTES = 1536
"""Memory of a column of a unit beside its values; it counts where units are many and small."""

UNCOUNTED = -1
"""The count of a unit whose selected rows are not counted."""

IDLE_BYTES = 256 << 20
"""Memory of windows that stays allocated for reuse."""

MAX_CHECKED_FILES = 1 << 14
"""Files whose missing columns were looked up and are remembered."""

WARNED_ONCE: tuple[int, tuple[str, ...]] = (-1, ())
"""The entry of `Reader.checked_files` after the user was warned of a doubtful column."""

PLAIN_IDS = frozenset(
    kind.id
    for kind in (
        *(pa.type_for_alias(name) for name in ("bool", "string", "large_string", "binary", "large_binary", "date32")),
        *(pa.type_for_alias(f"{name}{bits}") for name in ("int", "uint") for bits in (8, 16, 32, 64)),
        *(pa.type_for_alias(f"float{bits}") for bits in (16, 32, 64)),
    )
)
"""Ids of types without fields, views, dictionaries or timestamps: they are read as they are."""

logger = logging.getLogger("penstock")


@dataclass(slots=True, kw_only=True, eq=False)
class FileHandle:
    """An open data file.

    Attributes:
        in_nanoseconds: Whether INT96 timestamps are read in nanoseconds.
        blob_chunks: The column chunks whose cells can be read without decoding pages; None before the first request.
        ids: The names of columns by field id; None before the first request.
        opened: The status of a local file when it was opened; None elsewhere, where to ask again is one more request.
    """

    file: pq.ParquetFile
    source: Any
    names: frozenset[str]
    in_nanoseconds: bool = False
    blob_chunks: dict[str, list[ColumnChunk]] | None = None
    ids: dict[int, str] | None = None
    opened: tuple[Path, os.stat_result] | None = None

    @property
    def is_rewritten(self) -> bool:
        """Whether the file was written to after it was opened; one that was replaced or deleted is still the old one."""
        if self.opened is None:
            return False
        path, before = self.opened
        try:
            now = path.stat()
        except OSError:
            return False
        return os.path.samestat(now, before) and now.st_mtime_ns != before.st_mtime_ns

    def num_rows(self, row_group: int) -> int:
        """Return the rows of a row group, or of the whole file, by its footer."""
        footer = self.file.metadata
        return int(footer.num_rows if row_group == WHOLE_FILE else footer.row_group(row_group).num_rows)

    def read(self, row_group: int, columns: list[str]) -> pa.Table:
        """Return columns of a row group, or of the whole file."""
        if row_group == WHOLE_FILE:
            return self.file.read(columns, use_threads=False)
        return self.file.read_row_group(row_group, columns, use_threads=False)

    def stored_bytes(self, row_group: int, columns: Sequence[str]) -> int:
        """Return the bytes on storage of columns of a row group, or of the whole file."""
        # pyarrow has looked up the leaves of columns when it opened the file; to do so again takes as long as that.
        footer, leaves = self.file.metadata, getattr(self.file, "_nested_paths_by_prefix", {})
        groups = map(footer.row_group, range(footer.num_row_groups) if row_group == WHOLE_FILE else (row_group,))
        wanted = [leaf for name in columns for leaf in leaves.get(name, ())]
        return sum([group.column(leaf).total_compressed_size for group in groups for leaf in wanted])

    def column_beyond_nanoseconds(self, row_group: int, columns: Sequence[str]) -> str | None:
        """Return a column whose INT96 timestamps do not fit nanoseconds, if there is one.

        Arrow wraps them around without an error. Read again in seconds, they have their true values.
        """
        if not self.in_nanoseconds:
            return None
        columns = [name for name in columns if has_timestamps(self.file.schema_arrow.field(name).type)]
        leaves, stored = getattr(self.file, "_nested_paths_by_prefix", {}), self.file.schema
        columns = [
            name for name in columns if any(stored.column(leaf).physical_type == "INT96" for leaf in leaves.get(name, ()))
        ]
        if not columns:
            return None
        file = pq.ParquetFile(self.source, metadata=self.file.metadata, coerce_int96_timestamp_unit="s")
        groups = range(self.file.metadata.num_row_groups) if row_group == WHOLE_FILE else (row_group,)
        table = file.read_row_groups(list(groups), columns=columns, use_threads=False)
        return next((name for name in columns if exceeds_nanoseconds(table.column(name))), None)


class FileHandles(threading.local):
    """The open data files of each thread: the most recent ones, closed when the thread ends.

    What pyarrow made of footers is shared by all threads: a file is opened by several, but its footer is parsed once.
    """

    MAX_OPEN = 8

    def __init__(self, metadata: OrderedDict[str, pq.FileMetaData] | None = None) -> None:
        """Begin without open files; Python calls this again in every thread, with the same metadata."""
        self._files: OrderedDict[str, FileHandle] = OrderedDict()
        self._metadata = OrderedDict() if metadata is None else metadata
        self.bytes_read = 0

    def get(self, path: str) -> FileHandle | None:
        """Return an open file, if it is open in this thread."""
        handle = self._files.get(path)
        if handle is not None:
            self._files.move_to_end(path)
        return handle

    def open(
        self, path: str, filesystem: pafs.FileSystem, footers: FooterCache, int96: str | None, *, checksums: bool
    ) -> FileHandle:
        """Open a file; `int96` is the unit of its INT96 timestamps, None for nanoseconds."""
        remote = not isinstance(filesystem, pafs.LocalFileSystem)
        opened = None if remote else (Path(path), Path(path).stat())
        source = filesystem.open_input_file(path)
        options = {"pre_buffer": remote, "coerce_int96_timestamp_unit": int96, "page_checksum_verification": checksums}
        file = pq.ParquetFile(source, metadata=self._metadata.get(path) or footers.metadata(path), **options)
        names = frozenset(file.schema_arrow.names)
        handle = FileHandle(file=file, source=source, names=names, in_nanoseconds=int96 is None, opened=opened)
        self._metadata[path] = file.metadata
        while len(self._metadata) > 8 * self.MAX_OPEN:
            self._metadata.popitem(last=False)
        self._files[path] = handle
        while len(self._files) > self.MAX_OPEN:
            self._files.popitem(last=False)[1].file.close(force=True)
        return handle


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One entry of `penstock.model.Units`, which documents the fields."""

    file: int
    row_group: int
    start: int
    first: int
    rows: int
    count: int
    residual: bool

    @classmethod
    def of(cls, units: Units, index: int) -> Unit:
        """Return the unit of an index."""
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
    """The selected rows of a unit, as Arrow.

    Attributes:
        table: The columns; it may have none.
        first: The number of the unit's first row in its file.
        count: The number of selected rows.
        selected: The selected rows of the unit; None for all.
        passed: Under a lazy filter, which of the rows pass it; None for all.
        cells: Columns of blobs that were read without decoding pages; they are not in the table.
        is_cached: Whether the rows stay in memory.
        views: Columns of the table that were asked for as arrays, which are views of it.
    """

    table: pa.Table
    first: int
    count: int
    selected: IntArray | None = None
    passed: BoolArray | None = None
    cells: Mapping[str, Blobs | FileBlobs] = field(default_factory=dict)
    is_cached: bool = False
    views: dict[str, npt.NDArray[Any]] = field(default_factory=dict)

    def row_numbers(self) -> IntArray:
        """Return the number of each row in its file."""
        return np.arange(self.first, self.first + self.count) if self.selected is None else self.first + self.selected

    @property
    def nbytes(self) -> int:
        """The memory they take once cells that are still in their file are loaded."""
        cells = (one.loaded_bytes if isinstance(one, FileBlobs) else one.nbytes for one in self.cells.values())
        columns = COLUMN_BYTES * (len(self.table.column_names) + len(self.cells))
        return int(self.table.get_total_buffer_size()) + sum(cells) + columns

    def cells_in_cache_memory(self, memory: CacheMemory) -> dict[str, Blobs]:
        """Return a copy of the cells in memory that stays.

        Raises:
            CellProblem: If a cell that is still in its file cannot be read.
        """
        cells: dict[str, Blobs] = {}
        for name, column in self.cells.items():
            if isinstance(column, FileBlobs):
                cells[name] = column.loaded(memory)
            else:
                cells[name] = replace(column, buffers=tuple(map(memory.copy, column.buffers)))
            for buffer in cells[name].buffers:
                buffer.flags.writeable = False  # a codec may hand out views of it
        return cells


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReadColumns:
    """Columns that are read of many units, and what is the same for all units.

    Attributes:
        schema: Their names and types.
        in_files: The columns that data files have.
        partitions: The columns whose values the table states.
    """

    schema: pa.Schema
    in_files: tuple[str, ...]
    partitions: frozenset[str]

    @classmethod
    def of(cls, snapshot: Snapshot, columns: Sequence[str]) -> ReadColumns:
        """Return what is the same for all units of a table."""
        partitions = frozenset(columns).intersection(snapshot.files.partitions.column_names)
        fields = [snapshot.schema.field(name) for name in columns]
        return cls(
            schema=pa.schema([one if one.type.id in PLAIN_IDS else without_view_types(one) for one in fields]),
            in_files=tuple(name for name in columns if name not in partitions),
            partitions=partitions,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Reader:
    """Reads the units of one snapshot, on any thread.

    Attributes:
        snapshot: The table's facts.
        filesystem: Where its files are.
        condition: The row filter, bound to the table; None for none.
        lazy: Whether rows that do not pass are only marked, because they were not counted.
        checksums: Whether page checksums are verified.
        table_cache: Units that stay in memory, shared by all queries of the table.
        footers: Footers of files, shared by all queries of the table.
        buffer_pool: Memory of windows, reused from one epoch to the next.
        handles: The open files.
        read_columns: What is the same for all units, by columns.
        checked_files: Files whose missing columns were looked up, with the columns that were asked for.
        warned: Files that the user was warned of.
    """

    snapshot: Snapshot
    filesystem: pafs.FileSystem
    condition: Expr | None = None
    lazy: bool = False
    checksums: bool = False
    table_cache: TableCache[UnitTable] = field(default_factory=TableCache, repr=False)
    footers: FooterCache = field(default_factory=FooterCache, repr=False)
    buffer_pool: BufferPool = field(default_factory=lambda: BufferPool(IDLE_BYTES), repr=False)
    handles: FileHandles = field(default_factory=lambda: FileHandles(OrderedDict()), repr=False)
    read_columns: dict[tuple[str, ...], ReadColumns] = field(default_factory=dict, repr=False)
    checked_files: set[tuple[int, tuple[str, ...]]] = field(default_factory=set, repr=False)
    warned: list[int] = field(default_factory=list, repr=False)

    @cached_property
    def cell_places(self) -> CellPlacesCache:
        """Where large cells are in local files."""
        return CellPlacesCache()

    def read(self, unit: Unit, columns: Sequence[str], blobs: Sequence[str] = ()) -> UnitTable:
        """Return the selected rows of a unit; columns among `blobs` are read without decoding pages where possible.

        Raises:
            DataError: If the file cannot be read.
            DataChangedError: If the number of selected rows differs from the plan's count.
        """
        condition = self.condition if unit.residual else None
        cells = self._cells(unit, blobs) if blobs else {}
        columns = [name for name in columns if name not in cells] if cells else columns
        needed = list(columns)
        if condition is not None:
            needed = list(dict.fromkeys([*columns, *sorted(condition.columns)]))
        table = self._stored(unit, needed)
        selected = passed = None
        alive = self._alive(unit)
        if alive is not None:
            table, selected = table.filter(pa.array(alive)), np.flatnonzero(alive)
        if condition is not None:
            passed = condition.mask(table)
            if not self.lazy:
                table = table.filter(pa.array(passed))
                selected, passed = np.flatnonzero(passed) if selected is None else selected[passed], None
        count = unit.rows if selected is None else len(selected)
        if unit.count not in (UNCOUNTED, count):
            raise DataChangedError(self._changed(unit, count))
        table = table if len(needed) == len(columns) else table.select(columns)
        if selected is not None:
            cells = {name: column.take(selected) for name, column in cells.items()}
        return UnitTable(table=table, first=unit.first, count=count, selected=selected, passed=passed, cells=cells)

    def read_cached(
        self, units: Sequence[Unit], columns: tuple[str, ...], blobs: tuple[str, ...], num_rows: int
    ) -> tuple[list[UnitTable], int]:
        """Return the selected rows of units, and how many of the units were in memory.

        Units stay in memory if the table, of `num_rows` selected rows, is small and read again. The bytes read from storage
        are added to `handles.bytes_read`.
        """
        cache, tables, new = self.table_cache, list[UnitTable](), dict[Hashable, UnitTable]()
        for unit in units:
            condition = repr(self.condition.describe()) if unit.residual and self.condition is not None else None
            name: Hashable = (unit, columns, blobs, condition, self.lazy and condition is not None, self.checksums)
            cached = cache.units.get(name)
            if cached is None:
                cached = new[name] = self.read(unit, columns, blobs)
            tables.append(cached)
        if new and not cache.is_full:
            sizes = {name: table.nbytes for name, table in new.items()}
            kept = {
                name: new[name]
                for name, nbytes in sizes.items()
                if cache.accepts(name, nbytes, nbytes * num_rows // max(1, new[name].count))
            }
            arrow = [cache.memory.copy_table(table.table) for table in kept.values()]
            for (name, table), copied in zip(kept.items(), arrow, strict=True):
                with contextlib.suppress(CellProblem):  # raised when the cell is needed
                    cells = table.cells_in_cache_memory(cache.memory) if table.cells else {}
                    cache.keep(name, replace(table, table=copied, cells=cells, is_cached=True, views={}))
            tables = [cache.units.get(name, table) for name, table in new.items()] if len(new) == len(units) else tables
        return tables, len(units) - len(new)

    def count(self, unit: Unit) -> int:
        """Return the number of selected rows of a unit, reading only the filter's columns."""
        assert self.condition is not None  # noqa: S101 - only units with a residual filter are counted
        table = self._stored(unit, sorted(self.condition.columns))
        mask = self.condition.mask(table)
        alive = self._alive(unit)
        return int(np.count_nonzero(mask if alive is None else mask & alive))

    def row_groups(self, unit: Unit, rows: IntArray) -> IntArray:
        """Return the row group of each of some rows of a unit."""
        if unit.row_group != WHOLE_FILE:
            return np.full(len(rows), unit.row_group)
        with self.filesystem.open_input_file(self.snapshot.files.path[unit.file].as_py()) as source:
            footer = pq.read_metadata(source)
        ends = np.cumsum([footer.row_group(at).num_rows for at in range(footer.num_row_groups)])
        return np.searchsorted(ends, rows, side="right")

    def where(self, unit: Unit) -> str:
        """Return the file and row group of a unit, for messages."""
        path = self.snapshot.files.path[unit.file].as_py()
        return path if unit.row_group == WHOLE_FILE else f"{path}, row group {unit.row_group}"

    def _stored(self, unit: Unit, columns: Sequence[str]) -> pa.Table:
        """Return all rows of a unit with the table's names and types, partition values included."""
        files, read_columns = self.snapshot.files, self.read_columns.get(names := tuple(columns))
        if read_columns is None:
            read_columns = self.read_columns[names] = ReadColumns.of(self.snapshot, names)
        self._check_missing_columns(unit, read_columns.in_files)
        table = self._from_file(unit, read_columns.in_files)
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
        called = self._stored_names(unit, read_columns.in_files)
        stored, arrays = dict(zip(table.column_names, table.columns, strict=True)), []
        for name, kind in zip(names, read_columns.schema.types, strict=True):
            if name in read_columns.partitions:
                value = files.partitions.column(name)[unit.file].cast(kind)
                arrays.append(pa.chunked_array([pa.repeat(value, unit.rows)], type=kind))
            else:
                arrays.append(self._converted(unit, stored.get(called[name]), name, kind))
        return pa.Table.from_arrays(arrays, schema=read_columns.schema) if arrays else table.select([])

    def _check_missing_columns(self, unit: Unit, columns: tuple[str, ...]) -> None:
        """Refuse a file that lacks a column which cannot be null in it; each file is checked once."""
        if self.snapshot.stored is None or (unit.file, columns) in self.checked_files:
            return
        schema = self._schema_in(unit)
        self._stored_names(unit, columns)  # refuses ambiguous names
        doubt = check_missing_columns(self.snapshot, unit.file, columns, schema)
        if doubt and WARNED_ONCE not in self.checked_files:
            self.checked_files.add(WARNED_ONCE)
            logger.warning(doubt)
        if len(self.checked_files) >= MAX_CHECKED_FILES:
            self.checked_files.intersection_update({WARNED_ONCE})
        self.checked_files.add((unit.file, columns))

    def _from_file(self, unit: Unit, columns: Sequence[str]) -> pa.Table:
        """Return the columns of a row group, or of a whole file, as stored."""
        with self._file_errors(unit):
            handle = self._handle(unit)
            if self.snapshot.sampled and not self.warned:
                self._warn(unit, handle.names)
            present = [name for name in self._stored_names(unit, columns).values() if name in handle.names]
            rows = handle.num_rows(unit.row_group)
            try:
                table = handle.read(unit.row_group, present)
            except (OSError, pa.ArrowException) as error:
                if getattr(error, "errno", None) is not None:  # an error of the system, not of a column
                    raise
                table = read_columns(partial(handle.read, unit.row_group), present, rows)  # names the bad column
            self.handles.bytes_read += handle.stored_bytes(unit.row_group, present)
            beyond = handle.column_beyond_nanoseconds(unit.row_group, present)
            if handle.is_rewritten:
                raise changed_file_error(self.where(unit))
        if beyond is not None:
            raise timestamp_range_error(self.where(unit), beyond)
        if table.num_rows != rows:
            raise row_count_error(self.where(unit), rows, table.num_rows)
        return table

    @contextlib.contextmanager
    def _file_errors(self, unit: Unit) -> Iterator[None]:
        """Raise errors of a file as errors of ours, which say why and what to do."""
        try:
            yield
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            with contextlib.suppress(OSError):
                self._check_unchanged(unit)
            if isinstance(error, FileNotFoundError):
                raise missing_file_error(self.snapshot, unit.file, self.where(unit)) from error
            raise read_error(self.where(unit), unit.rows, error) from error

    def _check_unchanged(self, unit: Unit) -> None:
        """Refuse a file that is not the one the table was opened with."""
        check_unchanged(self.snapshot, unit.file, self.filesystem, self.where(unit))

    def _handle(self, unit: Unit) -> FileHandle:
        path = self.snapshot.files.path[unit.file].as_py()
        handle = self.handles.get(path)
        if handle is None:
            self._check_unchanged(unit)
            kinds = self.snapshot.schema
            int96 = "us" if all(kind.id in PLAIN_IDS for kind in kinds.types) else int96_unit(kinds)
            handle = self.handles.open(path, self.filesystem, self.footers, int96, checksums=self.checksums)
        return handle

    def _stored_names(self, unit: Unit, columns: Sequence[str], present: Collection[str] | None = None) -> dict[str, str]:
        r"""Return the names of columns in a unit's file; "\0" for a column that it does not have.

        `present` are the names in the file, where they are known.

        Raises:
            DataError: If several names in the file differ from a column's in capital letters only.
        """
        names, stored = self.snapshot.names, self.snapshot.stored
        if stored is None:
            return {name: names.get(name, name) for name in columns}
        place = self.snapshot.schema.get_field_index
        ids = {name: field_id(stored.field(place(name))) for name in columns}
        if not any(number is not None for number in ids.values()):
            present = self._names_in(unit) if present is None else present
            try:
                return {name: match_name(names.get(name, name), present) for name in columns}
            except pa.ArrowInvalid as error:
                msg = f"{self.where(unit)}: the table's column {error}; expected one such column. Rename the others."
                raise DataError(msg) from error
        handle = self._handle(unit)
        if handle.ids is None:
            handle.ids = columns_by_id(handle.file.schema_arrow, self.where(unit))
        # A column that the table does not have, such as the kind of change in a change data feed, has no id.
        return {name: names.get(name, name) if number is None else handle.ids.get(number, "\0") for name, number in ids.items()}

    def _names_in(self, unit: Unit) -> Collection[str]:
        """Return the names of the columns in a unit's file."""
        with self._file_errors(unit):
            return self._handle(unit).names

    def _schema_in(self, unit: Unit) -> pa.Schema:
        """Return the columns in a unit's file."""
        with self._file_errors(unit):
            return self._handle(unit).file.schema_arrow

    def _cells(self, unit: Unit, columns: Sequence[str]) -> dict[str, Blobs | FileBlobs]:
        """Return the cells of the columns that can be read without decoding pages."""
        if not columns or self.checksums:  # pyarrow verifies checksums
            return {}
        path = self.snapshot.files.path[unit.file].as_py()
        with self._file_errors(unit):
            handle = self._handle(unit)
            names = {called: name for name, called in self._stored_names(unit, columns).items()}
            if handle.blob_chunks is None:
                every = [name for name, column in self.snapshot.fields.items() if isinstance(column.codec, CellCodec)]
                footer = self.footers.get(path, self.filesystem)
                handle.blob_chunks = find_chunks(footer, list(self._stored_names(unit, every).values()))
            cells: dict[str, Blobs | FileBlobs] = {}
            for called, chunks in handle.blob_chunks.items():
                if called not in names:
                    continue
                own = chunks if unit.row_group == WHOLE_FILE else chunks[unit.row_group : unit.row_group + 1]
                read = [self._cells_in_file(unit, one) or read_chunk(handle.source, one, self.buffer_pool) for one in own]
                parts = [part for part in read if part is not None]
                if parts and len(parts) == len(own) and sum(map(len, parts)) >= unit.start + unit.rows:
                    cells[names[called]] = concat_blobs(parts).take(slice(unit.start, unit.start + unit.rows))
                    self.handles.bytes_read += sum(chunk.size for chunk in own)
        return cells

    def _cells_in_file(self, unit: Unit, chunk: ColumnChunk) -> FileBlobs | None:
        """Return the cells of a chunk without reading them, if they are large and the file is local."""
        if chunk.size < LARGE_CELL * max(1, chunk.values) or not isinstance(self.filesystem, pafs.LocalFileSystem):
            return None
        path = self.snapshot.files.path[unit.file].as_py()
        return self.cell_places.located(path, chunk, partial(self._check_unchanged, unit))

    def _warn(self, unit: Unit, stored: Collection[str]) -> None:
        """Warn, once, of columns that only files have which were not looked at when the table was opened."""
        more = set(stored).difference(self.snapshot.schema.names, self.snapshot.names.values())
        if more:
            self.warned.append(unit.file)
            warnings.warn(
                f"{self.snapshot.files.path[unit.file].as_py()} has columns that the table does not: "
                f"{', '.join(sorted(more))}. The table's columns are those of its first and last file. To have those of all: "
                'penstock.open(..., format=ParquetFormat(columns="union")).',
                RuntimeWarning,
                stacklevel=2,
            )

    def _converted(self, unit: Unit, column: pa.ChunkedArray | None, name: str, kind: pa.DataType) -> pa.ChunkedArray:
        """Return a column in the table's type; all null where the file is older than the column."""
        if column is None:
            return pa.chunked_array([pa.nulls(unit.rows, kind)], type=kind)
        if column.type == kind and kind.id in PLAIN_IDS:
            return column
        try:
            return evolve_column(column, name, kind, self.snapshot)
        except pa.ArrowException as error:
            msg = (
                f"{self.where(unit)}, column {name!r}: stored as {column.type}, which does not fit the table's {kind}: "
                f"{error}. "
                "Rewrite the file with the table's type, or leave the column out."
            )
            raise DataError(msg) from error

    def _alive(self, unit: Unit) -> BoolArray | None:
        """Return which rows of a unit are not deleted; None if no row is."""
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
