"""One write of a table, from rows that were checked to files that can be seen: encoded side by side, written in order."""

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

from penstock._engine.commit.change import Change, Mode
from penstock._engine.runtime.buffers import BufferPool
from penstock._engine.runtime.ordered_map import OrderedConsumer
from penstock._engine.write.append import ExistingTable, appended, check_still, existing
from penstock._engine.write.encode import CellBuffer, RowChunk, TableEncoder, size
from penstock._engine.write.errors import refusals_told
from penstock._engine.write.files import OutputFiles
from penstock._engine.write.hive import Partition, partitioned, split
from penstock._engine.write.parquet_options import Layout, LoggedChange, LoggedFormat, WrittenFormat, common_metadata
from penstock.codecs.tensor import Tensor
from penstock.errors import ArgumentError
from penstock.formats.parquet import COMMON
from penstock.model import Place
from penstock.schema import Schema

__all__ = ["Missing", "OpenWrite", "WriteJob", "forsake"]

CHUNK_BYTES, CHUNK_PART = 1 << 20, 16
"""What is encoded together: so many bytes, or such a part of a row group if that is less."""

CHUNK_ROWS = 4096
"""Rows that are taken one by one and encoded together, if their bytes are few."""

CHUNKS_AHEAD = 2
"""Chunks that wait to be encoded: few, so that a processor still has in its cache what it is to encode."""

MADE_BYTES = 64 << 20
"""Encoded rows that may wait while a row group is written."""

Parts: TypeAlias = list[Partition]
Missing: TypeAlias = Literal["error", "null"]

logger = logging.getLogger("penstock")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenWrite:
    """A write that was begun, whose columns may not be known yet.

    Attributes:
        place: Where the table lies, or will.
        mode: What becomes of a table that is there.
        change: What makes it appear.
        layout: How rows lie in its files.
        threads: How many encode.
        table: The table that is appended to; None for a new one.
        format: What is told of the table besides its columns, for others to read it; None for nothing.
        index: Whether the named index of a data frame is stored; None where the user did not say.
        missing: What becomes of a column that rows lack: "error" refuses it, unless the schema of the write says that it may
            be null, and "null" has nulls in its place.
    """

    place: Place
    mode: Mode
    change: Change
    layout: Layout
    threads: int
    table: ExistingTable | None
    format: WrittenFormat | LoggedFormat | None = None
    index: bool | None = None
    missing: Missing = "error"

    def suited(self, schema: Schema) -> Schema:
        """Return a schema whose fields get the codecs that the format has."""
        return schema if self.format is None else self.format.suited(schema)


class WriteJob:
    """A write whose columns are known. It knows nothing of who feeds it, so that it is given up when nobody does any more.

    Args:
        begun: Where and how.
        columns: What is written; None for the columns of the table that is appended to.

    Attributes:
        columns: What is written.

    Raises:
        ArgumentError: If the columns do not go with the table, or cannot be partitioned so.
    """

    def __init__(self, begun: OpenWrite, columns: TableEncoder | None) -> None:
        """Decide the columns; threads start with the first rows."""
        layout = begun.layout
        given = None if columns is None else partitioned(columns, layout.partition_by)
        found = appended(begun.table, given, layout.partition_by) if begun.table is not None else given
        if found is None:
            raise ArgumentError("A new table was given no columns. A schema was expected. Give one.")
        logged = isinstance(begun.change, LoggedChange)
        # A log has no type for tensors, so that their shape stands nowhere but in the schema of ours.
        tensors = [column.field.name for column in found.columns if logged and isinstance(column.codec, Tensor)]
        stated = found.stating([*layout.partition_by, *tensors])
        self.columns = stated.nullable() if begun.missing == "null" else stated
        if isinstance(begun.change, LoggedChange):
            begun.change.state(self.columns.arrow, layout.partition_by)
        elif isinstance(begun.format, WrittenFormat):
            if begun.table is not None:
                raise _untold(begun.format, begun.table.url)
            begun.format.check(_schema_of(self.columns, begun.format), layout.partition_by)
        self._chunk_bytes = min(CHUNK_BYTES, max(1, layout.row_group_bytes // CHUNK_PART))
        self._begun = begun
        first = begun.table.files if begun.table else 0
        self._output = OutputFiles(begun.place, begun.change, self.columns, layout, first=first)
        ahead = begun.threads + CHUNKS_AHEAD
        self._encoder = OrderedConsumer[Parts](
            begun.threads,
            self._output.take,
            _bytes_in,
            max_task_bytes=ahead * self._chunk_bytes,
            max_result_bytes=min(MADE_BYTES, layout.row_group_bytes),
        )
        self._buffer_pool = BufferPool(most=4 * ahead * self._chunk_bytes)
        self._rows: list[list[Any]] = []
        self._first = self._nbytes = 0
        self._taken = 0
        self._slab: CellBuffer | None = None

    def add(self, cells: list[Any], number: int) -> None:
        """Take the checked cells of one row; arrays are copied, for the caller may go on to fill them with the next row.

        Raises:
            Exception: What went wrong with earlier rows.
        """
        if number != self._first + len(self._rows):  # one between was refused
            self.flush()
            self._first = number
        for at, cell in enumerate(cells):
            if type(cell) is np.ndarray:
                if cell.flags.writeable:
                    cells[at] = self._copied(cell)
                self._nbytes += cell.nbytes
            else:
                self._nbytes += size(cell)
        self._rows.append(cells)
        if self._nbytes >= self._chunk_bytes or len(self._rows) >= CHUNK_ROWS:
            self.flush()

    def _copied(self, cell: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if self._slab is None:
            self._slab = CellBuffer(self._buffer_pool, 2 * self._chunk_bytes)  # the last array of a chunk may be a large one
        return self._slab.copy(cell)

    def flush(self) -> None:
        """Hand over the rows that were taken one by one."""
        rows, nbytes = self._rows, self._nbytes
        self._rows, self._slab, self._nbytes = [], None, 0
        if rows:
            self._put(RowChunk(first=self._first, rows=len(rows), nbytes=nbytes, cells=rows))
        self._first += len(rows)

    def put(self, chunk: RowChunk, *, lent: bool = False) -> None:
        """Take rows that came together, waiting for room; all are copied that the caller may change, of Arrow if `lent`.

        Raises:
            Exception: What went wrong with earlier rows.
        """
        self.flush()
        for part in chunk.cut(self._chunk_bytes, lent=lent):
            self._put(part)

    def _put(self, chunk: RowChunk) -> None:
        self._taken += chunk.rows
        self._encoder.put(partial(_encoded, self.columns, chunk, self._begun.layout.partition_by), chunk.nbytes)

    def check(self) -> None:
        """Raise what has gone wrong so far."""
        self._encoder.check()

    def finish(self) -> tuple[str, ...]:
        """Write what is left and make all of it visible; return the names of the files."""
        self.flush()
        self._encoder.finish()
        self._output.finish(is_new=self._begun.table is None)
        # A table that is appended to has its schema already.
        small = {} if self._begun.table is not None else {COMMON: common_metadata(self._told())}
        with refusals_told("The table", self._begun.place.url):
            self._begun.change.finish(small, self._check_still if self._begun.mode == "append" else None)
        return tuple(self._output.names)

    def _check_still(self) -> None:
        """Refuse rows that do not go with what others have made of the table since this write began."""
        begun = self._begun
        if isinstance(begun.format, WrittenFormat) and existing(begun.place) is not None:
            raise _untold(begun.format, begun.place.url)
        check_still(begun.place, begun.table, self.columns, begun.layout.partition_by)

    def _told(self) -> pa.Schema:
        """Return what is told of the table: its columns and its schema, and what its format says more."""
        arrow, kind = self.columns.arrow, self._begun.format
        if not isinstance(kind, WrittenFormat):
            return arrow
        more = kind.metadata(_schema_of(self.columns, kind), self._output.row_groups)
        return arrow.with_metadata({**(arrow.metadata or {}), **more})

    def abort(self) -> None:
        """Leave nothing."""
        self._encoder.stop()
        self._output.drop()
        self._begun.change.abort()

    def forsake(self) -> None:
        """Leave nothing of a write that nobody has closed, and say so if rows are lost by it."""
        try:
            _warn_of(self._taken + len(self._rows), self._begun.place.url)
        finally:
            self.abort()


def forsake(begun: OpenWrite, rows: Sized) -> None:
    """Do the same for a write whose columns are not known yet."""
    try:
        _warn_of(len(rows), begun.place.url)
    finally:
        begun.change.abort()


def _warn_of(rows: int, url: str) -> None:
    # What a script has died of was told already; at a prompt others may have gone wrong before.
    if rows and (not hasattr(sys, "last_value") or hasattr(sys, "ps1")):
        _tell_of_lost_rows(rows, url)


def _tell_of_lost_rows(rows: int, url: str) -> None:
    """Warn, and make sure that it is heard: unless told otherwise, Python is silent about what was not closed."""
    msg = f"The table at {url} was not written, for its writer was never closed; rows lost: {rows}. Write in a block, `with "
    msg += "penstock.write(...) as table:`, or call table.close() at the end."
    general = (each for each in warnings.filters if not each[1] and not each[3] and issubclass(ResourceWarning, each[2]))
    action, _, kind, *_ = next(general, ("default", None, Warning))
    if action == "ignore" and kind is ResourceWarning:
        logger.warning(msg)
    warnings.warn(msg, ResourceWarning, stacklevel=2)


def _schema_of(columns: TableEncoder, kind: WrittenFormat) -> Schema:
    """Return all columns as fields with their codecs, which a format may not have."""
    for column in columns.columns:
        if column.codec is None:
            msg = (
                f"Field {column.field.name!r} is stored as {column.arrow.type}, and {kind.name} has codecs for all its fields. "
            )
            raise ArgumentError(msg + "Give a penstock.Schema that says what its cells are, or leave the format out.")
    return Schema(columns.schema.name, [column.field for column in columns.columns])


def _untold(kind: WrittenFormat, url: str) -> ArgumentError:
    msg = f"write got format={kind!r} to append to {url}, of whose files it would not tell. A new table was expected. "
    return ArgumentError(msg + 'Leave the format out, or write all with mode="overwrite".')


def _bytes_in(parts: Parts) -> int:
    return sum(part.nbytes for part in parts)


def _encoded(columns: TableEncoder, chunk: RowChunk, partition_by: tuple[str, ...]) -> Parts:
    """Return rows as they are stored, by directory."""
    return split(columns.encode(chunk), partition_by, chunk.first)
