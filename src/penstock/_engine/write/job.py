"""One write of a table, from checked rows to visible files: encoded in parallel, written in order."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Sized
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._engine.commit.change import Change
from penstock._engine.commit.target import Mode
from penstock._engine.runtime.memory import BufferPool
from penstock._engine.runtime.ordered_map import OrderedConsumer
from penstock._engine.write.append import ExistingTable, append_encoder, check_unchanged, read_existing
from penstock._engine.write.encode import CellBuffer, RowChunk, TableEncoder, data_size
from penstock._engine.write.errors import storage_errors
from penstock._engine.write.files import OutputFiles
from penstock._engine.write.hive import Partition, partition_encoder, split_partitions
from penstock._engine.write.parquet_options import Layout, LoggedChange, LoggedFormat, WrittenFormat, common_metadata
from penstock.codecs.tensor import Tensor
from penstock.errors import ArgumentError
from penstock.formats.parquet import COMMON
from penstock.model import Place
from penstock.schema import Schema

CHUNK_BYTES, CHUNKS_PER_ROW_GROUP = 1 << 20, 16
"""The size of the rows that are encoded together: so many bytes, or this part of a row group if that is less."""

CHUNK_ROWS = 4096
"""The number of single rows that are encoded together if they are small."""

WAITING_CHUNKS = 2
"""Chunks that wait to be encoded: few, so that they are still in the cache of a processor."""

ENCODED_BYTES = 64 << 20
"""Encoded rows that may wait while a row group is written."""

Missing: TypeAlias = Literal["error", "null"]

logger = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenWrite:
    """A write that has begun, with the options of `penstock.write`; its columns may not be known yet."""

    place: Place
    mode: Mode
    change: Change
    layout: Layout
    threads: int
    table: ExistingTable | None
    """The table that is appended to; None for a new one."""
    format: WrittenFormat | LoggedFormat | None = None
    index: bool | None = None
    missing: Missing = "error"

    def add_codecs(self, schema: Schema) -> Schema:
        """Return a schema whose fields without a codec get that of the format."""
        return schema if self.format is None else self.format.suited(schema)


class WriteJob:
    """A write whose columns are known. It does not refer to its writer, so that both are collected with the last user."""

    def __init__(self, begun: OpenWrite, encoder: TableEncoder | None) -> None:
        """Decide the columns, by default those of the table that is appended to; threads start with the first rows."""
        self._begun = begun
        self.encoder = self._final_encoder(encoder)
        layout = begun.layout
        self._chunk_bytes = min(CHUNK_BYTES, max(1, layout.row_group_bytes // CHUNKS_PER_ROW_GROUP))
        first = begun.table.num_files if begun.table else 0
        self._output = OutputFiles(begun.place, begun.change, self.encoder, layout, first=first)
        max_chunks = begun.threads + WAITING_CHUNKS
        self._consumer = OrderedConsumer[list[Partition]](
            begun.threads,
            self._output.write,
            lambda parts: sum(part.nbytes for part in parts),
            max_task_bytes=max_chunks * self._chunk_bytes,
            max_result_bytes=min(ENCODED_BYTES, layout.row_group_bytes),
        )
        self._buffer_pool = BufferPool(limit=4 * max_chunks * self._chunk_bytes)
        self._rows: list[list[Any]] = []
        self._first = self._nbytes = 0
        self._num_rows = 0
        self._cell_buffer: CellBuffer | None = None

    def _final_encoder(self, encoder: TableEncoder | None) -> TableEncoder:
        """Return the columns that are written, checked by the table and the format."""
        table, change, kind, partition_by = (
            self._begun.table,
            self._begun.change,
            self._begun.format,
            self._begun.layout.partition_by,
        )
        encoder = None if encoder is None else partition_encoder(encoder, partition_by)
        encoder = append_encoder(table, encoder, partition_by) if table is not None else encoder
        if encoder is None:
            raise ArgumentError("write() got no columns for a new table; expected a schema. Give one.")
        # A log has no type for tensors, so that only our schema has their shapes.
        is_logged = isinstance(change, LoggedChange)
        tensors = [column.field.name for column in encoder.columns if is_logged and isinstance(column.codec, Tensor)]
        encoder = encoder.with_schema_fields([*partition_by, *tensors])
        if self._begun.missing == "null":
            encoder = encoder.with_optional_nulls()
        if isinstance(change, LoggedChange):
            change.state(encoder.arrow, partition_by)
        elif isinstance(kind, WrittenFormat):
            if table is not None:
                raise _append_error(kind, table.url)
            kind.check(_full_schema(encoder, kind), partition_by)
        return encoder

    def add(self, cells: list[Any], number: int) -> None:
        """Add the checked cells of one row, or raise the error of earlier rows.

        Arrays are copied: the caller may fill them with the next row.
        """
        if number != self._first + len(self._rows):  # the row before it was refused
            self.flush()
            self._first = number
        for at, cell in enumerate(cells):
            if type(cell) is np.ndarray:
                if cell.flags.writeable:
                    cells[at] = self._copy(cell)
                self._nbytes += cell.nbytes
            else:
                self._nbytes += data_size(cell)
        self._rows.append(cells)
        if self._nbytes >= self._chunk_bytes or len(self._rows) >= CHUNK_ROWS:
            self.flush()

    def _copy(self, cell: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if self._cell_buffer is None:  # twice a chunk: its last array may be large
            self._cell_buffer = CellBuffer(self._buffer_pool, 2 * self._chunk_bytes)
        return self._cell_buffer.copy(cell)

    def flush(self) -> None:
        """Encode the single rows that have been added."""
        rows, nbytes = self._rows, self._nbytes
        self._rows, self._cell_buffer, self._nbytes = [], None, 0
        if rows:
            self._put(RowChunk(first=self._first, num_rows=len(rows), nbytes=nbytes, columns=list(zip(*rows, strict=True))))
        self._first += len(rows)

    def put(self, chunk: RowChunk, *, shared: bool = False) -> None:
        """Add rows, and wait while too many are being encoded; raise the error of earlier rows.

        Arrays are copied if the caller can change them; Arrow arrays only if `shared`.
        """
        self.flush()
        for part in chunk.split(self._chunk_bytes, shared=shared):
            self._put(part)

    def _put(self, chunk: RowChunk) -> None:
        self._num_rows += chunk.num_rows
        self._consumer.put(partial(_encode, self.encoder, chunk, self._begun.layout.partition_by), chunk.nbytes)

    def check(self) -> None:
        """Raise the error of earlier rows."""
        self._consumer.check()

    def finish(self) -> tuple[str, ...]:
        """Write the remaining rows and commit; return the names of the files."""
        self.flush()
        self._consumer.finish()
        begun = self._begun
        self._output.finish(is_new=begun.table is None)
        # An existing table has its schema already.
        small = {} if begun.table is not None else {COMMON: common_metadata(self._table_metadata())}
        with storage_errors("The table", begun.place.url):
            begun.change.finish(small, self._check_unchanged if begun.mode == "append" else None)
        return tuple(self._output.names)

    def _check_unchanged(self) -> None:
        begun = self._begun
        if isinstance(begun.format, WrittenFormat) and read_existing(begun.place) is not None:
            raise _append_error(begun.format, begun.place.url)
        check_unchanged(begun.place, begun.table, self.encoder, begun.layout.partition_by)

    def _table_metadata(self) -> pa.Schema:
        """Return the columns of the table with its schema and the metadata of its format."""
        arrow, kind = self.encoder.arrow, self._begun.format
        if not isinstance(kind, WrittenFormat):
            return arrow
        more = kind.metadata(_full_schema(self.encoder, kind), self._output.row_groups)
        return arrow.with_metadata({**(arrow.metadata or {}), **more})

    def abort(self) -> None:
        """Remove everything that was written."""
        self._consumer.stop()
        self._output.abort()
        self._begun.change.abort()

    def abandon(self) -> None:
        """Abort a write that was not closed, and warn if rows are lost."""
        try:
            _warn_of_lost_rows(self._num_rows + len(self._rows), self._begun.place.url)
        finally:
            self.abort()


def abandon(begun: OpenWrite, rows: Sized) -> None:
    """Abort a write that was not closed and whose columns are not known, and warn if rows are lost."""
    try:
        _warn_of_lost_rows(len(rows), begun.place.url)
    finally:
        begun.change.abort()


def _warn_of_lost_rows(rows: int, url: str) -> None:
    """Warn, and log if Python hides the warning, as it does by default for what was not closed."""
    # A script that ends by an error has shown the error; at a prompt the error may be an earlier one.
    if not rows or (hasattr(sys, "last_value") and not hasattr(sys, "ps1")):
        return
    msg = f"The table at {url} was not written because its writer was not closed; rows lost: {rows}. Write in a block, `with "
    msg += "penstock.write(...) as table:`, or call table.close() at the end."
    general = (each for each in warnings.filters if not each[1] and not each[3] and issubclass(ResourceWarning, each[2]))
    action, _, kind, *_ = next(general, ("default", None, Warning))
    if action == "ignore" and kind is ResourceWarning:
        logger.warning(msg)
    warnings.warn(msg, ResourceWarning, stacklevel=2)


def _full_schema(encoder: TableEncoder, kind: WrittenFormat) -> Schema:
    """Return all columns as fields with their codecs, or raise `ArgumentError` if one has none."""
    for column in encoder.columns:
        if column.codec is None:
            raise ArgumentError(
                f"Field {column.field.name!r} is stored as {column.arrow.type}; expected a codec, which all fields of "
                f"{kind.name} have. Give a penstock.Schema that says what its cells are, or leave the format out."
            )
    return Schema(encoder.schema.name, [column.field for column in encoder.columns])


def _append_error(kind: WrittenFormat, url: str) -> ArgumentError:
    return ArgumentError(
        f"write() got format={kind!r} to append to {url}; expected a new table, because the format's metadata would lack the "
        'appended files. Leave the format out, or write all rows with mode="overwrite".'
    )


def _encode(encoder: TableEncoder, chunk: RowChunk, partition_by: tuple[str, ...]) -> list[Partition]:
    return split_partitions(encoder.encode(chunk), partition_by, chunk.first)
