"""How each column of a query becomes arrays.

Columns whose cells have a fixed size are decoded once per unit, when their window is read. All others are *deferred*: they
stay as stored, Arrow or blobs, and are decoded when their batch is made, so that no blob is copied with its window.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import replace
from math import prod
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from penstock import dtypes
from penstock._blobs import Blobs
from penstock._engine.decode.arrow import CellError, decode, output_dtype
from penstock._engine.decode.bad_cells import ROW_CODE, UnreadableCellError
from penstock._engine.decode.codecs import decode_cells, decode_flat_tensors, is_stored_flat
from penstock._engine.decode.concat import one_array
from penstock._engine.parquet.file_blobs import FileBlobs
from penstock._engine.query.query import Batch, ColumnDecoding, Stack
from penstock._engine.runtime.memory import BufferPool
from penstock._engine.runtime.timers import READ, Meter
from penstock.dtypes import Values
from penstock.errors import DataError
from penstock.policies import DEFAULT_NULLS, AsObjects, Resize
from penstock.schema import CellProblem

ROW_IDS = ("_file", "_row_group", "_row")
"""Columns that say where a row is stored."""

PASSED = "_passed"
"""The column that says which rows pass a lazy filter."""

SMALL_CELL = 1 << 12
"""Bytes up to which a cell that a codec only copies is decoded with its window: picking it for a batch takes longer."""

NUMBERS = "biufcmM"
"""Kinds of dtypes with values of a fixed size: numbers and times."""

VIEWABLE = frozenset(
    pa.type_for_alias(f"{kind}{bits}").id
    for kind in ("int", "uint", "float")
    for bits in (8, 16, 32, 64)
    if (kind, bits) != ("float", 8)
)
"""Ids of Arrow types whose values NumPy can view."""

DeferredCells: TypeAlias = pa.Array | Blobs | FileBlobs
"""A deferred column: Arrow, or cells of bytes in memory or in files."""


class ColumnDecoder:
    """Decodes one column of a query; what depends on the column alone is worked out once.

    Attributes:
        column: The column and its policies.
        name: Its name.
        is_deferred: Whether it is decoded with its batch.
        is_blob: Whether its cells are bytes of a codec.
        decodes_by_row: Whether decoding a cell does not depend on the other rows of its batch.
        is_plain_bytes: Whether its cells are bytes that are handed out as they are.
        cell_bytes: The bytes of a decoded cell, where a codec makes all cells of one size; else 0.
        min_bytes: The least that a decoded cell takes.
    """

    def __init__(self, column: ColumnDecoding, kind: pa.DataType, *, codecs_deferred: bool = False) -> None:
        """Look at the column; `codecs_deferred` defers all cells of a codec."""
        field, codec = column.field, column.codec
        self.column, self.name, self._codec = column, column.name, codec
        dense = field is not None and field.is_dense
        self.cell_bytes = field.dtype.itemsize * prod(size or 0 for size in field.shape) if dense and field is not None else 0
        self.min_bytes = self.cell_bytes or dtypes.least_bytes(kind)
        if codec is None:
            self.is_deferred = not dtypes.is_fixed(kind) or (field is not None and is_stored_flat(column, kind))
        else:
            small = 0 < self.cell_bytes <= SMALL_CELL and not isinstance(column.ragged, Resize)
            copied = small and codec.copied and field is not None and field.dtype.kind in NUMBERS
            self.is_deferred = codecs_deferred or not copied
        self.is_blob = codec is not None
        self.decodes_by_row = dense if codec is not None else isinstance(column.ragged, AsObjects) or not dtypes.is_ragged(kind)
        plain_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        self.is_plain_bytes = plain_bytes and codec is None and column.nulls == DEFAULT_NULLS
        self._viewable = column.nulls == DEFAULT_NULLS and kind.id in VIEWABLE and codec is None
        if self._viewable and field is not None:
            dtype = np.dtype(kind.to_pandas_dtype())
            self._viewable = output_dtype(dtype, field) == dtype

    def decode(
        self,
        stored: pa.ChunkedArray,
        views: MutableMapping[str, Values],
        buffer_pool: BufferPool,
        max_cell_bytes: int,
        meter: Meter,
        *,
        copies_rows: bool,
    ) -> Batch:
        """Return the column of a unit as arrays; if it is a view of Arrow's memory, it is added to `views`.

        With `copies_rows` a codec may return views, because the rows are copied before a batch has them.
        """
        by_codec = copies_rows and self._codec is not None and self.column.nulls == DEFAULT_NULLS
        view = None
        if self._viewable or (by_codec and self.cell_bytes <= max_cell_bytes):
            view = views.get(self.name)
            if view is None and stored.num_chunks == 1 and not stored.null_count:
                view = self._codec_view(stored, max_cell_bytes) if by_codec else stored.chunk(0).to_numpy(zero_copy_only=True)
                if view is not None:
                    views[self.name] = view
        if view is not None:
            return {self.name: view}
        if self._codec is not None:
            return decode_deferred(deferred_cells(stored, self.column), self.column, buffer_pool, max_cell_bytes, meter)
        return decode(stored, self.column)

    def _codec_view(self, stored: pa.ChunkedArray, max_cell_bytes: int) -> Values | None:
        """Return the cells as a view, where the codec can do so."""
        field = self.column.field
        if field is None or not field.is_dense or self._codec is None:
            return None
        view = self._codec.view(field, replace(deferred_cells(stored, self.column), max_cell_bytes=max_cell_bytes))
        if view is not None:
            view.flags.writeable = False
        return view

    def keep(self, stored: pa.ChunkedArray) -> pa.Array | Blobs:
        """Return a deferred column of a unit as it is kept until its batch is made."""
        if stored.num_chunks == 1 and self._codec is None:
            return stored.chunk(0)
        return deferred_cells(stored, self.column)


def deferred_cells(stored: pa.ChunkedArray, column: ColumnDecoding) -> pa.Array | Blobs:
    """Return a column as it is kept until its batch is made."""
    try:
        if column.codec is None:
            return one_array(stored)
        return Blobs.joined([Blobs.of(chunk) for chunk in stored.chunks] or [Blobs.of(pa.nulls(0, stored.type))])
    except DataError as error:
        raise CellError(column.name, str(error)) from error


def decode_deferred(
    cells: DeferredCells, column: ColumnDecoding, buffer_pool: BufferPool, max_cell_bytes: int, meter: Meter
) -> Batch:
    """Return a deferred column as arrays."""
    if isinstance(cells, FileBlobs):
        try:
            with meter.busy(READ):
                cells = cells.loaded(buffer_pool)
        except CellProblem as problem:
            raise UnreadableCellError(column.name, problem.problem, problem.row) from problem.__cause__
    if isinstance(cells, Blobs) and column.codec is None:
        return {column.name: _python_bytes(cells)}
    if isinstance(cells, Blobs):
        return decode_cells(replace(cells, max_cell_bytes=max_cell_bytes), column, buffer_pool)
    if column.field is not None and is_stored_flat(column, cells.type):
        return decode_flat_tensors(cells, column)
    return decode(cells, column, buffer_pool)


def in_order(batch: Batch, columns: Sequence[str], outputs: Mapping[str, Sequence[str]], stacks: Sequence[Stack]) -> Batch:
    """Return the columns of a batch in the order of the query: the table's, row ids, stacks.

    `outputs` has the names of what each column became, where it is more than one array.
    """
    names = [name for column in columns for name in outputs.get(column, (column,))]
    names += [*ROW_IDS, *(stack.name for stack in stacks), PASSED, ROW_CODE]
    return {name: batch[name] for name in dict.fromkeys(names) if name in batch}


def _python_bytes(cells: Blobs) -> Values:
    """Return cells as Python's bytes, None for nulls."""
    values = np.full(len(cells), None, dtype=object)
    if cells.valid is None:
        views = [buffer.data for buffer in cells.buffers]
        places = zip(cells.source.tolist(), cells.start.tolist(), cells.stop.tolist(), strict=True)
        values[:] = [views[source][start:stop].tobytes() for source, start, stop in places]
    else:
        for row, cell in cells.present():
            values[row] = cell.tobytes()
    return values
