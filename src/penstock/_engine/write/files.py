"""The data files of a write: rows are collected to row groups, row groups to files, in a directory for each partition."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from penstock._engine.commit.change import Change
from penstock._engine.decode.concat import split_for_dictionaries
from penstock._engine.write.encode import TableEncoder
from penstock._engine.write.errors import parquet_errors, storage_errors
from penstock._engine.write.hive import Partition, directory, empty_table_directory
from penstock._engine.write.parquet_options import Layout, LoggedChange, split_blob_pages, writer_options
from penstock.model import Place

MAX_OPEN, MAX_OPEN_REMOTE = 128, 16
"""Files that are open at once, on a local disk and on other storage, where each holds megabytes that are not sent yet. With
more partitions, the file that was written longest ago is closed, and its directory goes on in a new file."""

MAX_BUFFERED_ROW_GROUPS = 4
"""The size that the rows of all partitions may have together, in row groups. Beyond it the largest is written early."""

SMALL_BYTES, MAX_SMALL_TABLES = 64 << 10, 256
"""Tables of fewer bytes are joined when there are this many: each table costs memory of its own."""


class _RowGroupBuffer:
    """Rows of one directory that are collected to a row group."""

    def __init__(self) -> None:
        self.tables: list[pa.Table] = []
        self.small: list[pa.Table] = []
        self.num_rows = 0
        self.nbytes = 0

    def add(self, table: pa.Table, nbytes: int) -> None:
        self.num_rows += table.num_rows
        self.nbytes += nbytes
        if nbytes < SMALL_BYTES:
            self.small.append(table)
        if nbytes >= SMALL_BYTES or len(self.small) >= MAX_SMALL_TABLES:
            self._join_small()
        if nbytes >= SMALL_BYTES:
            self.tables.append(table)

    def _join_small(self) -> None:
        if len(self.small) > 1:
            self.tables += [part.combine_chunks() for part in split_for_dictionaries(pa.concat_tables(self.small))]
        else:
            self.tables += self.small
        self.small = []

    def pop(self, rows: int) -> pa.Table:
        """Remove and return the first rows."""
        self._join_small()
        result: list[pa.Table] = []
        missing = min(rows, self.num_rows)
        self.num_rows -= missing
        while missing:
            table = self.tables.pop(0)
            if table.num_rows > missing:
                self.tables.insert(0, table.slice(missing))
                table = table.slice(0, missing)
            missing -= table.num_rows
            result.append(table)
        self.nbytes = self.nbytes - sum(table.nbytes for table in result) if self.num_rows else 0
        return pa.concat_tables(result)


class _OutputFile:
    """A data file that is being written."""

    def __init__(self, filesystem: pafs.FileSystem, path: str, schema: pa.Schema, options: dict[str, Any]) -> None:
        self._footer: list[pq.FileMetaData] = []
        self._writer: Any = None
        self._sink = filesystem.open_output_stream(path, compression=None)
        try:
            self._writer = pq.ParquetWriter(self._sink, schema, metadata_collector=self._footer, **options)
            if schema.metadata and not options.get("store_schema", True):
                self._writer.add_key_value_metadata(schema.metadata)
        except BaseException:
            self.abort()
            raise

    def write(self, table: pa.Table) -> int:
        """Write a row group, and return the size of the file."""
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        return int(self._sink.tell())

    def close(self) -> pq.FileMetaData:
        """Complete the file, and return its footer."""
        try:
            self._writer.close()
            self._sink.close()
        except BaseException:
            self.abort()
            raise
        return self._footer[0]

    def abort(self) -> None:
        """Close the file as it is."""
        if self._writer is not None:
            self._writer.is_open = False  # stops pyarrow from writing the rest when it is collected, and printing errors
        with suppress(Exception):
            self._sink.close()


class OutputFiles:
    """The files of a write, by names relative to the table. Only one thread at a time may use it."""

    def __init__(self, place: Place, change: Change, encoder: TableEncoder, layout: Layout, *, first: int = 0) -> None:
        """Store the options and the number of the first file; no file is opened yet."""
        self.names: list[str] = []
        self.row_groups: dict[str, int] = {}
        self._place, self._change, self._encoder, self._layout, self._first = place, change, encoder, layout, first
        self._logged = change if isinstance(change, LoggedChange) else None
        columns = [column for column in encoder.columns if column.field.name not in layout.partition_by]
        self._schema = pa.schema([column.arrow for column in columns], metadata=encoder.arrow.metadata)
        self._blobs = [column.field.name for column in columns if column.is_blob]
        self._options: dict[str, Any] | None = None
        self._buffers: dict[str, _RowGroupBuffer] = {}
        self._nbytes = 0
        self._max_open = MAX_OPEN if isinstance(place.filesystem, pafs.LocalFileSystem) else MAX_OPEN_REMOTE
        self._open: OrderedDict[str, tuple[str, _OutputFile]] = OrderedDict()

    def write(self, partitions: Iterable[Partition]) -> None:
        """Add rows of some directories, and write row groups that are full."""
        for partition in partitions:
            if not partition.table.num_rows:
                continue
            folder = partition.directory
            buffer = self._buffers.setdefault(folder, _RowGroupBuffer())
            before = buffer.nbytes
            buffer.add(partition.table, partition.nbytes)
            rows = self._layout.row_group_rows
            while rows is not None and buffer.num_rows >= rows:
                self._write_rows(folder, buffer.pop(rows))
            if rows is None and buffer.nbytes >= self._layout.row_group_bytes:
                self._write_rows(folder, buffer.pop(buffer.num_rows))
            self._nbytes += buffer.nbytes - before
            self._limit_buffers()

    def _limit_buffers(self) -> None:
        """Write row groups that are not full while many partitions together have too many bytes."""
        while len(self._buffers) > 1 and self._nbytes > MAX_BUFFERED_ROW_GROUPS * self._layout.row_group_bytes:
            folder = max(self._buffers, key=lambda name: self._buffers[name].nbytes)
            buffer = self._buffers.pop(folder)
            self._nbytes -= buffer.nbytes
            if buffer.num_rows:
                self._write_rows(folder, buffer.pop(buffer.num_rows))

    def _write_rows(self, folder: str, rows: pa.Table) -> None:
        """Write a row group to the open file of a directory, or to a new one; several if the rows are too large for one."""
        for part in split_for_dictionaries(rows):
            table = split_blob_pages(part, self._blobs)
            output = self._open.pop(folder, None) or self._create(folder, table)
            self._open[folder] = output
            name, file = output
            what = f"A row group of {table.num_rows} rows in {name}"
            with storage_errors(what, self._place.url), parquet_errors(what, self._place.url):
                size = file.write(table)
            if size >= self._layout.file_bytes:
                self._close(folder)

    def _close(self, folder: str) -> None:
        """Complete the open file of a directory."""
        name, file = self._open.pop(folder)
        with storage_errors(f"The end of {name}", self._place.url):
            footer = file.close()
        self.row_groups[name] = footer.num_row_groups
        if self._logged is not None:
            self._logged.written(name, footer)

    def _create(self, folder: str, table: pa.Table) -> tuple[str, _OutputFile]:
        """Return the name of a new file in a directory, and the file; the first rows decide the options of all files."""
        while len(self._open) >= self._max_open:
            self._close(next(iter(self._open)))
        if self._options is None:
            with parquet_errors("The first row group", self._place.url):
                self._options = writer_options(self._encoder, self._schema, self._layout.compression, table)
            # A log has the types of columns, so that files need not have Arrow's own types.
            self._options["store_schema"] = self._logged is None
        name = f"{folder}{'/' if folder else ''}part-{self._first + len(self.names):05d}-{self._change.id}.parquet"
        with storage_errors(f"The file {name}", self._place.url):
            file = _OutputFile(self._place.filesystem, self._change.path(name), self._schema, self._options)
        self.names.append(name)
        return name, file

    def finish(self, *, is_new: bool = True) -> None:
        """Write the remaining rows, and close all files; a new table without rows gets a file without rows."""
        for folder, buffer in self._buffers.items():
            if buffer.num_rows:
                self._write_rows(folder, buffer.pop(buffer.num_rows))
        if is_new and not self.names:
            names = self._layout.partition_by
            # Readers of a log take partition values from the log, and may be null there.
            is_logged = self._logged is not None
            folder = directory((name, None) for name in names) if is_logged else empty_table_directory(self._encoder, names)
            self._open[folder] = self._create(folder, self._schema.empty_table())
        while self._open:
            self._close(next(iter(self._open)))

    def abort(self) -> None:
        """Close all files as they are; aborting the change removes them."""
        self._buffers.clear()
        while self._open:
            self._open.popitem()[1][1].abort()
