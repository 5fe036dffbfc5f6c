"""The files of a table that is written: rows gathered into row groups, row groups into files, a directory per partition."""

from __future__ import annotations

import ctypes
import os
import sys
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from penstock._engine.commit.change import Change
from penstock._engine.decode.concat import split_for_dictionaries
from penstock._engine.write.encode import TableEncoder
from penstock._engine.write.errors import misfits_told, refusals_told
from penstock._engine.write.hive import Partition, directory, directory_of_nothing
from penstock._engine.write.parquet_options import Layout, LoggedChange, in_pages, writer_options
from penstock.model import Place

__all__ = ["OutputFiles", "begin_writeback"]

BEGIN = 2  # as Linux numbers it


def begin_writeback(path: str, start: int, stop: int) -> None:
    """Let what was written to a part of a local file go to disk, without waiting; where that cannot be asked, do nothing."""
    ask = _system_call()
    if ask is not None:
        file = os.open(path, os.O_RDONLY)
        try:
            ask(file, ctypes.c_int64(start), ctypes.c_int64(stop - start), BEGIN)
        finally:
            os.close(file)


@cache
def _system_call() -> Any:
    """Return what asks Linux for it; None on other systems."""
    return getattr(ctypes.CDLL(None), "sync_file_range", None) if sys.platform == "linux" else None


MOST_OPEN, MOST_OPEN_AFAR = 128, 16
"""Files that are open at once: on a local disk, and elsewhere, where each holds megabytes that are yet to be sent. Of more
partitions, the one written longest ago is closed and goes on in a new file."""

MOST_GATHERED = 4
"""Row groups' worth of rows that all partitions together may hold before the largest of them is written as it is."""

SMALL_BYTES, SMALL_PARTS = 64 << 10, 256
"""So many parts of fewer bytes are joined to one: each part costs memory of its own."""


class _Gathered:
    """Rows of one directory that wait to be a row group."""

    def __init__(self) -> None:
        self.parts: list[pa.Table] = []
        self.small: list[pa.Table] = []
        self.rows = 0
        self.nbytes = 0

    def add(self, table: pa.Table, nbytes: int) -> None:
        self.rows += table.num_rows
        self.nbytes += nbytes
        if nbytes < SMALL_BYTES:
            self.small.append(table)
        if nbytes >= SMALL_BYTES or len(self.small) >= SMALL_PARTS:
            self._join()
        if nbytes >= SMALL_BYTES:
            self.parts.append(table)

    def _join(self) -> None:
        if len(self.small) > 1:
            self.parts += [part.combine_chunks() for part in split_for_dictionaries(pa.concat_tables(self.small))]
        else:
            self.parts += self.small
        self.small = []

    def take(self, rows: int | None = None) -> pa.Table:
        """Return the first rows, or all, and forget them."""
        self._join()
        wanted = self.rows if rows is None else min(rows, self.rows)
        found: list[pa.Table] = []
        missing = wanted
        while missing:
            table = self.parts.pop(0)
            if table.num_rows > missing:
                self.parts.insert(0, table.slice(missing))
                table = table.slice(0, missing)
            missing -= table.num_rows
            found.append(table)
        self.rows -= wanted
        self.nbytes = self.nbytes - sum(table.nbytes for table in found) if self.rows else 0
        return pa.concat_tables(found)


class _File:
    """One data file that is being written."""

    def __init__(self, filesystem: pafs.FileSystem, path: str, schema: pa.Schema, options: dict[str, Any]) -> None:
        self._footer: list[pq.FileMetaData] = []
        self._writer: Any = None
        self._path = path if isinstance(filesystem, pafs.LocalFileSystem) else None
        self._size = 0
        self._sink = filesystem.open_output_stream(path, compression=None)
        try:
            self._writer = pq.ParquetWriter(self._sink, schema, metadata_collector=self._footer, **options)
            if schema.metadata and not options.get("store_schema", True):
                self._writer.add_key_value_metadata(schema.metadata)
        except BaseException:
            self.drop()
            raise

    def write(self, table: pa.Table) -> int:
        """Write a row group, and return how large the file is."""
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        before, self._size = self._size, int(self._sink.tell())
        if self._path is not None:
            begin_writeback(self._path, before, self._size)
        return self._size

    def close(self) -> pq.FileMetaData:
        """End the file, and return its footer."""
        try:
            self._writer.close()
            self._sink.close()
        except BaseException:
            self.drop()
            raise
        return self._footer[0]

    def drop(self) -> None:
        """Let go of the file, which may be in any state."""
        if self._writer is not None:
            self._writer.is_open = False  # else pyarrow would write the rest when it is collected, and print what comes of it
        with suppress(Exception):
            self._sink.close()


class OutputFiles:
    """Where encoded rows go. One thread at a time writes to it.

    Attributes:
        names: The files, by their names relative to the table.
        row_groups: How many row groups each has that is closed.
    """

    def __init__(self, place: Place, change: Change, columns: TableEncoder, layout: Layout, *, first: int = 0) -> None:
        """Store where, and the number of the first file; nothing is opened yet."""
        self._first, self._url, filesystem = first, place.url, place.filesystem
        self.names: list[str] = []
        self.row_groups: dict[str, int] = {}
        self._filesystem, self._change, self._layout = filesystem, change, layout
        self._logged = change if isinstance(change, LoggedChange) else None
        inside = [column for column in columns.columns if column.field.name not in layout.partition_by]
        self._schema = pa.schema([column.arrow for column in inside], metadata=columns.arrow.metadata)
        self._blobs = [column.field.name for column in inside if column.is_blob]
        self._columns = columns
        self._options: dict[str, Any] | None = None
        self._gathered: dict[str, _Gathered] = {}
        self._nbytes = 0
        self._most_open = MOST_OPEN if isinstance(filesystem, pafs.LocalFileSystem) else MOST_OPEN_AFAR
        self._open: OrderedDict[str, tuple[str, _File]] = OrderedDict()

    def take(self, parts: Iterable[Partition]) -> None:
        """Gather rows of some directories, and write what is a row group."""
        for part in parts:
            where = part.directory
            if not part.table.num_rows:
                continue
            gathered = self._gathered.setdefault(where, _Gathered())
            before = gathered.nbytes
            gathered.add(part.table, part.nbytes)
            exact = self._layout.row_group_rows
            while exact is not None and gathered.rows >= exact:
                self._write(where, gathered.take(exact))
            if exact is None and gathered.nbytes >= self._layout.row_group_bytes:
                self._write(where, gathered.take())
            self._nbytes += gathered.nbytes - before
            self._relieve()

    def _relieve(self) -> None:
        """Write row groups that are not full, where many partitions hold too much together."""
        while len(self._gathered) > 1 and self._nbytes > MOST_GATHERED * self._layout.row_group_bytes:
            where = max(self._gathered, key=lambda name: self._gathered[name].nbytes)
            gathered = self._gathered.pop(where)
            self._nbytes -= gathered.nbytes
            if gathered.rows:
                self._write(where, gathered.take())

    def _write(self, where: str, rows: pa.Table) -> None:
        """Write a row group, or what must be several, to the file that a directory has open, or to a new one."""
        for part in split_for_dictionaries(rows):
            self._write_group(where, in_pages(part, self._blobs))

    def _write_group(self, where: str, table: pa.Table) -> None:
        named = self._open.pop(where, None) or self._new(where, table)
        self._open[where] = named
        what = f"A row group of {table.num_rows} rows in {named[0]}"
        with refusals_told(what, self._url), misfits_told(what, self._url):
            size = named[1].write(table)
        if size >= self._layout.file_bytes:
            self._close(where)

    def _close(self, where: str) -> None:
        """End the file that a directory has open."""
        name, file = self._open.pop(where)
        with refusals_told(f"The end of {name}", self._url):
            footer = file.close()
        self.row_groups[name] = footer.num_row_groups
        if self._logged is not None:
            self._logged.written(name, footer)

    def _new(self, where: str, table: pa.Table) -> tuple[str, _File]:
        """Return a new file in a directory and its name, for rows like those of a table; those of the first decide for all."""
        while len(self._open) >= self._most_open:
            self._close(next(iter(self._open)))
        if self._options is None:
            with misfits_told("The first row group", self._url):
                self._options = writer_options(self._columns, self._schema, self._layout.compression, table)
            # Where a log says what columns are, others need not understand Arrow's own types.
            self._options["store_schema"] = self._logged is None
        name = f"{where}{'/' if where else ''}part-{self._first + len(self.names):05d}-{self._change.id}.parquet"
        with refusals_told(f"The file {name}", self._url):
            found = _File(self._filesystem, self._change.path(name), self._schema, self._options)
        self.names.append(name)
        return name, found

    def finish(self, *, is_new: bool = True) -> None:
        """Write what is left, and close all files; a new table without rows gets a file without rows."""
        for where, gathered in self._gathered.items():
            if gathered.rows:
                self._write(where, gathered.take())
        if is_new and not self.names:
            names = self._layout.partition_by
            is_told = self._logged is not None  # what a log says of partitions, no reader takes from names
            where = directory((name, None) for name in names) if is_told else directory_of_nothing(self._columns, names)
            self._open[where] = self._new(where, self._schema.empty_table())
        while self._open:
            self._close(next(iter(self._open)))

    def drop(self) -> None:
        """Let go of all files; whoever made the change removes them."""
        self._gathered.clear()
        while self._open:
            self._open.popitem()[1][1].drop()
