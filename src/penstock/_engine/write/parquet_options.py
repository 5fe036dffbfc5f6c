"""The layout of Parquet files: options of each column, where pages end, and when a row group or a file is full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa
import pyarrow.parquet as pq

from penstock._engine.commit.change import Change
from penstock._engine.commit.target import Mode
from penstock._engine.write.encode import TableEncoder
from penstock.codecs.tensor import Tensor
from penstock.errors import ArgumentError
from penstock.model import Place
from penstock.schema import CellCodec, Schema

PAGE_BYTES = 64 << 10
"""The size at which a page ends. A blob of this size or more has a page of its own, so that it can be read alone."""

MEGABYTE = 1 << 20
COMPRESSIONS = ("none", "snappy", "gzip", "brotli", "zstd", "lz4")
SAMPLES, MIN_RATIO = 8, 0.9
"""Blobs are compressed if this many samples shrink to less than this part of their size."""

NO_DICTIONARY = ("BOOLEAN", "FLOAT", "DOUBLE")


class _CodecFormat(Protocol):
    @property
    def name(self) -> str:
        """The name of the format."""
        ...

    def suited(self, schema: Schema) -> Schema:
        """Return a schema whose fields without a codec get one that the format has."""
        ...


@runtime_checkable
class WrittenFormat(_CodecFormat, Protocol):
    """A table format of Parquet files with metadata of its own in `_common_metadata`, so that other software reads it."""

    def check(self, schema: Schema, partition_by: Sequence[str]) -> None:
        """Raise `ArgumentError` for a table that the format cannot store, before anything is written."""
        ...

    def metadata(self, schema: Schema, row_groups: Mapping[str, int]) -> Mapping[bytes, bytes]:
        """Return the metadata of a table, given the number of row groups of each file."""
        ...


@runtime_checkable
class LoggedChange(Change, Protocol):
    """A change of a table whose log lists its files and columns."""

    arrow: pa.Schema | None
    """The columns of the table that is appended to; None for a new table."""
    partition_by: tuple[str, ...]
    """The partition columns of that table."""

    def state(self, arrow: pa.Schema, partition_by: tuple[str, ...]) -> None:
        """Set the columns before any file is written, or raise `ArgumentError` if the format cannot store them."""
        ...

    def written(self, name: str, footer: pq.FileMetaData) -> None:
        """Add a complete data file with its footer."""
        ...


@runtime_checkable
class LoggedFormat(_CodecFormat, Protocol):
    """A table format with a log of its own."""

    def begin(self, place: Place, mode: Mode) -> LoggedChange:
        """Return a new change of the table at a place, or raise `ArgumentError` if it is not allowed there."""
        ...


@dataclass(frozen=True, slots=True)
class Layout:
    """The user's options for files.

    Attributes:
        row_group_mb: The Arrow size of a row group, in MB of 2**20 bytes.
        row_group_rows: The rows of a row group, whatever their size; None to go by size.
        file_mb: The stored size at which a file ends.
        compression: The compression of columns that are not compressed already.
        partition_by: The partition columns.
    """

    row_group_mb: float = 64
    row_group_rows: int | None = None
    file_mb: float = 512
    compression: str | None = "zstd"
    partition_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the options."""
        for name in ("row_group_mb", "file_mb"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 < value < float("inf"):
                raise ArgumentError(
                    f"write() got {name}={value!r}; expected a number of megabytes above 0, for example {name}=64."
                )
        rows = self.row_group_rows
        if rows is not None and (type(rows) is not int or rows < 1):
            raise ArgumentError(f"write() got row_group_rows={rows!r}; expected a positive integer. Give one, or leave it out.")
        codec = self.compression
        if codec not in (None, *COMPRESSIONS) or (codec not in (None, "none") and not pa.Codec.is_available(codec)):
            raise ArgumentError(f"write() got compression={codec!r}; expected one of {', '.join(COMPRESSIONS)}.")

    @property
    def row_group_bytes(self) -> int:
        """The Arrow bytes at which a row group is full."""
        return max(1, int(self.row_group_mb * MEGABYTE))

    @property
    def file_bytes(self) -> int:
        """The stored bytes at which a file is full."""
        return max(1, int(self.file_mb * MEGABYTE))


def writer_options(encoder: TableEncoder, schema: pa.Schema, compression: str | None, rows: pa.Table) -> dict[str, Any]:
    """Return the options of a Parquet writer, by the codecs of its columns.

    Encoded cells get no statistics and no dictionary, and no compression if the codec compresses them or a sample of the
    first rows does not shrink. Numbers in tensors get no statistics: no filter uses them.
    """
    default = compression or "none"
    columns = {column.field.name: column for column in encoder.columns if column.field.name in schema.names}
    blobs = {name: column for name, column in columns.items() if column.is_blob}
    opaque = {*blobs, *(name for name, column in columns.items() if isinstance(column.codec, Tensor))}
    compressed = {name for name, column in blobs.items() if isinstance(column.codec, CellCodec) and column.codec.compressed}
    compressed |= {name for name in blobs.keys() - compressed if not _shrinks(rows.column(name), default)}
    compressions, dictionaries, statistics = {}, [], []
    for path, kind in _parquet_columns(schema):
        # A Parquet column is the column itself, or a part of it. A name may contain dots.
        name = next((name for name in opaque if path == name or path.startswith(f"{name}.")), None)
        compressions[path] = "none" if name in compressed else default
        if name is None:
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
    """Return whether a compression makes samples of a column's blobs small enough to be worth its time."""
    if compression == "none":
        return False
    rows = range(0, len(column), max(1, len(column) // SAMPLES))
    buffers = [cell.as_buffer() for row in rows if (cell := column[row]).is_valid]
    sample = b"".join(memoryview(buffer)[:PAGE_BYTES] for buffer in buffers)
    return not sample or len(pa.compress(sample, codec=compression, asbytes=True)) < MIN_RATIO * len(sample)


def _parquet_columns(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return the path and the physical type of every Parquet column of a schema."""
    parquet = pq.read_metadata(pa.BufferReader(common_metadata(schema))).schema
    return [(parquet.column(at).path, parquet.column(at).physical_type) for at in range(len(parquet))]


def split_blob_pages(table: pa.Table, blobs: Sequence[str]) -> pa.Table:
    """Return a table whose blobs are in chunks of half a page at most, or one by one.

    Parquet's writer checks whether a page is full only after a chunk, or after 1024 values: with one chunk, a page would
    hold a thousand images. A smaller `write_batch_size` would help too, but it applies to all columns, and tensors, of many
    values each, would be written a few numbers at a time.
    """
    for name in blobs:
        at = table.schema.get_field_index(name)
        column = table.column(at)
        step = max(1, PAGE_BYTES // 2 * len(column) // max(1, column.nbytes))
        chunks = [
            chunk.slice(row, step) if len(chunk) > step else chunk
            for chunk in column.chunks
            for row in range(0, len(chunk), step)
        ]
        table = table.set_column(at, table.schema.field(at), pa.chunked_array(chunks, type=column.type))
    return table


def common_metadata(schema: pa.Schema) -> bytes:
    """Return a Parquet file without rows, which holds the columns and the schema of a table."""
    sink = pa.BufferOutputStream()
    pq.write_metadata(schema, sink)
    contents: bytes = sink.getvalue().to_pybytes()
    return contents
