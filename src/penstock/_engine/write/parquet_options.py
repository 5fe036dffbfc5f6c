"""How rows lie in Parquet files: the options of each column, where pages end, and when a row group or a file is full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.parquet as pq

from penstock._engine.commit.change import Change, Mode
from penstock._engine.write.encode import TableEncoder
from penstock.codecs.tensor import Tensor
from penstock.errors import ArgumentError
from penstock.model import Place
from penstock.schema import CellCodec, Schema

__all__ = ["Layout", "LoggedChange", "LoggedFormat", "WrittenFormat", "common_metadata", "in_pages", "writer_options"]

PAGE_BYTES = 64 << 10
"""At which a page is closed. One blob of this size or more has a page of its own, so that it can be read alone."""

MEGABYTE = 1 << 20
COMPRESSIONS = ("none", "snappy", "gzip", "brotli", "zstd", "lz4")
SAMPLES, WORTH = 8, 0.9
"""How many blobs are tried to see whether compression shrinks them, and to what part of their size it must."""

NO_DICTIONARY = ("BOOLEAN", "FLOAT", "DOUBLE")


@runtime_checkable
class WrittenFormat(Protocol):
    """A table format that is Parquet files and more to say of them in `_common_metadata`, so that others read what we write."""

    @property
    def name(self) -> str:
        """What the format is called."""
        ...

    def suited(self, schema: Schema) -> Schema:
        """Return a schema whose fields without a codec get one that the format has."""
        ...

    def check(self, schema: Schema, partition_by: Sequence[str]) -> None:
        """Refuse a table that the format cannot have, before anything is written of it.

        Raises:
            ArgumentError: If it cannot.
        """
        ...

    def metadata(self, schema: Schema, row_groups: Mapping[str, int]) -> Mapping[bytes, bytes]:
        """Return what the format says of a table, given the number of row groups of each of its files."""
        ...


@runtime_checkable
class LoggedChange(Change, Protocol):
    """A change of a table whose log says which files belong to it, and what its columns are.

    Attributes:
        arrow: The columns of the table that is appended to; None of a new one.
        partition_by: The columns by which that is partitioned.
    """

    arrow: pa.Schema | None
    partition_by: tuple[str, ...]

    def state(self, arrow: pa.Schema, partition_by: tuple[str, ...]) -> None:
        """Take the columns that are written, before any file is.

        Raises:
            ArgumentError: If the format cannot have them.
        """
        ...

    def written(self, name: str, footer: pq.FileMetaData) -> None:
        """Take the footer of a data file that is complete."""
        ...


@runtime_checkable
class LoggedFormat(Protocol):
    """A table format with a log of its own, by which tables change."""

    @property
    def name(self) -> str:
        """What the format is called."""
        ...

    def suited(self, schema: Schema) -> Schema:
        """Return a schema whose fields without a codec get one that the format has."""
        ...

    def begin(self, place: Place, mode: Mode) -> LoggedChange:
        """Return a change of the table at a place, which need not be there yet.

        Raises:
            ArgumentError: If the mode, the storage or the table does not allow it.
        """
        ...


@dataclass(frozen=True, slots=True)
class Layout:
    """What the user says of the files.

    Attributes:
        row_group_mb: Arrow bytes of a row group, in MB of 2**20 bytes.
        row_group_rows: Rows of a row group, whatever their bytes; None for as many as fit.
        file_mb: Bytes on storage at which a file ends.
        compression: The compression of columns that are not compressed already.
        partition_by: The columns whose values name directories.

    Raises:
        ArgumentError: If a value cannot be meant.
    """

    row_group_mb: float = 64
    row_group_rows: int | None = None
    file_mb: float = 512
    compression: str | None = "zstd"
    partition_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check what was given."""
        for name in ("row_group_mb", "file_mb"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 < value < float("inf"):
                msg = f"write got {name}={value!r}. A number of megabytes above 0 was expected. Give one: {name}=64."
                raise ArgumentError(msg)
        rows = self.row_group_rows
        if rows is not None and (type(rows) is not int or rows < 1):
            msg = f"write got row_group_rows={rows!r}. A whole number from 1 on was expected. Give one, or leave it out."
            raise ArgumentError(msg)
        if self.compression not in (None, *COMPRESSIONS) or not _available(self.compression):
            msg = f"write got compression={self.compression!r}. One of {', '.join(COMPRESSIONS)} was expected. Give one."
            raise ArgumentError(msg)

    @property
    def row_group_bytes(self) -> int:
        """Arrow bytes at which a row group is full."""
        return max(1, int(self.row_group_mb * MEGABYTE))

    @property
    def file_bytes(self) -> int:
        """Bytes on storage at which a file is full."""
        return max(1, int(self.file_mb * MEGABYTE))


def _available(name: str | None) -> bool:
    return name in (None, "none") or bool(pa.Codec.is_available(name))


def writer_options(columns: TableEncoder, schema: pa.Schema, compression: str | None, rows: pa.Table) -> dict[str, Any]:
    """Return the options of a Parquet writer, those of each column by what its cells are.

    Encoded cells get no statistics and no dictionary, and no compression where the codec has compressed them, or where the
    first rows do not shrink by it. Numbers in tensors get no statistics either: nobody asks for the least of them.
    """
    default = compression or "none"
    known = {column.field.name: column for column in columns.columns if column.field.name in schema.names}
    blobs = {name: column for name, column in known.items() if column.is_blob}
    opaque = {*blobs, *(name for name, column in known.items() if isinstance(column.codec, Tensor))}
    packed = {name for name, column in blobs.items() if isinstance(column.codec, CellCodec) and column.codec.compressed}
    packed |= {name for name in blobs.keys() - packed if not _shrinks(rows.column(name), default)}
    compressions, dictionaries, statistics = {}, [], []
    for path, kind in _leaves(schema):
        # A leaf is the column itself, or lies in it. A name may have dots of its own.
        inside = next((name for name in opaque if path == name or path.startswith(f"{name}.")), None)
        compressions[path] = "none" if inside in packed else default
        if inside is None:
            statistics.append(path)
            if kind not in NO_DICTIONARY:
                dictionaries.append(path)
    return {
        "compression": compressions,
        "use_dictionary": dictionaries,
        "write_statistics": statistics,
        "data_page_size": PAGE_BYTES,
        "write_page_index": True,
        "write_page_checksum": True,
        "store_schema": True,
    }


def _shrinks(column: pa.ChunkedArray, compression: str) -> bool:
    """Return whether some of a column's blobs get smaller by a compression, so that it is worth the time to read them."""
    if compression == "none":
        return False
    chosen = range(0, len(column), max(1, len(column) // SAMPLES))
    buffers = [cell.as_buffer() for number in chosen if (cell := column[number]).is_valid]
    sample = b"".join(memoryview(buffer)[:PAGE_BYTES] for buffer in buffers)
    return not sample or len(pa.compress(sample, codec=compression, asbytes=True)) < WORTH * len(sample)


def _leaves(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return the path and the physical type of every column that Parquet makes of a schema."""
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema).close()
    parquet = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    return [(parquet.column(at).path, parquet.column(at).physical_type) for at in range(len(parquet))]


def in_pages(table: pa.Table, blobs: Sequence[str]) -> pa.Table:
    """Return a table whose blobs come in pieces of half a page at most, or one by one.

    Parquet's writer looks whether a page is full only after each piece, or after 1024 values: without this, a page would hold
    a thousand images. A smaller `write_batch_size` would do it too, but for all columns: tensors, of many values each, would
    be written a few numbers at a time.
    """
    for name in blobs:
        at = table.schema.get_field_index(name)
        column = table.column(at)
        step = max(1, PAGE_BYTES // 2 * len(column) // max(1, column.nbytes))
        pieces = [
            chunk.slice(row, step) if len(chunk) > step else chunk
            for chunk in column.chunks
            for row in range(0, len(chunk), step)
        ]
        table = table.set_column(at, table.schema.field(at), pa.chunked_array(pieces, type=column.type))
    return table


def common_metadata(schema: pa.Schema) -> bytes:
    """Return the file that tells a table's columns and its schema: Parquet metadata without rows."""
    sink = pa.BufferOutputStream()
    pq.write_metadata(schema, sink)
    found: bytes = sink.getvalue().to_pybytes()
    return found
