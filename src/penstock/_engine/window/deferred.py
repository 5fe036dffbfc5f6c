"""Columns that were left as stored become arrays when their batch is made, and all columns come in the order asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from penstock._engine.query.values import Batch, Column, Stack
from penstock._engine.read.reader import UnitTable
from penstock._engine.runtime.buffers import BufferPool
from penstock._engine.runtime.timers import READ, Meter
from penstock.dtypes import Values
from penstock.errors import DataError
from penstock.policies import DEFAULT_NULLS, Resize
from penstock.schema import CellProblem

__all__ = [
    "PASSED",
    "ROW_IDS",
    "DeferredCells",
    "cell_bytes",
    "decoded",
    "in_order",
    "is_bytes",
    "is_fixed",
    "plain",
    "stored",
    "viewed",
]

ROW_IDS = ("_file", "_row_group", "_row")
PASSED = "_passed"

SMALL_CELL = 1 << 12
"""Bytes up to which a cell that is only copied is decoded with its window: to pick it for its batch would take longer."""

NUMBERS = "biufcmM"
"""Kinds of values that columns of a fixed size have: numbers and times, but neither text nor structures."""

PLAIN = frozenset(
    pa.type_for_alias(f"{kind}{bits}").id
    for kind in ("int", "uint", "float")
    for bits in (8, 16, 32, 64)
    if (kind, bits) != ("float", 8)
)
"""Ids of Arrow's types whose values are NumPy's as they lie."""

DeferredCells: TypeAlias = pa.Array | Blobs | FileBlobs
"""A column as it is stored: Arrow, or cells of bytes in memory or in files."""


def decoded(cells: DeferredCells, column: Column, buffer_pool: BufferPool, max_cell_bytes: int, meter: Meter) -> Batch:
    """Return a column that was left as stored, decoded.

    Raises:
        CellError: If a cell cannot be read or decoded.
    """
    if isinstance(cells, FileBlobs):
        try:
            with meter.busy(READ):
                cells = cells.loaded(buffer_pool)
        except CellProblem as problem:
            raise UnreadableCellError(column.name, problem.problem, problem.row) from problem.__cause__
    if isinstance(cells, Blobs) and column.codec is None:
        return {column.name: _as_bytes(cells)}
    if isinstance(cells, Blobs):
        return decode_cells(replace(cells, max_cell_bytes=max_cell_bytes), column, buffer_pool)
    return decode_flat_tensors(cells, column) if is_stored_flat(column, cells.type) else decode(cells, column, buffer_pool)


def in_order(found: Batch, columns: Sequence[str], outputs: Mapping[str, Sequence[str]], stacks: Sequence[Stack]) -> Batch:
    """Return the table's columns, those that say where rows lie, and stacks; `outputs` says what each column has become."""
    names = [name for column in columns for name in outputs.get(column, (column,))]
    names += [*ROW_IDS, *(stack.name for stack in stacks), PASSED, ROW_CODE]
    return {name: found[name] for name in dict.fromkeys(names) if name in found}


def is_fixed(column: Column, kind: pa.DataType) -> bool:
    """Return whether a column is decoded once per window; most cells that have a codec wait until their batch is made."""
    if column.codec is not None:
        small = 0 < cell_bytes(column) <= SMALL_CELL and not isinstance(column.ragged, Resize)
        return small and column.codec.copied and column.field is not None and column.field.dtype.kind in NUMBERS
    return dtypes.is_fixed(kind) and not is_stored_flat(column, kind)


def is_bytes(column: Column, kind: pa.DataType) -> bool:
    """Return whether cells are bytes that are handed out as they are."""
    plain = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return plain and column.codec is None and column.nulls == DEFAULT_NULLS


def _as_bytes(cells: Blobs) -> Values:
    """Return cells as Python's bytes, None for nulls."""
    found = np.full(len(cells), None, dtype=object)
    if cells.valid is None:
        views = [buffer.data for buffer in cells.buffers]
        places = zip(cells.source.tolist(), cells.start.tolist(), cells.stop.tolist(), strict=True)
        found[:] = [views[source][start:stop].tobytes() for source, start, stop in places]
    else:
        for row, cell in cells.present():
            found[row] = cell.tobytes()
    return found


def cell_bytes(column: Column) -> int:
    """Return the bytes of a decoded cell, where a codec makes all of one size."""
    field = column.field
    return 0 if field is None or not field.is_dense else field.dtype.itemsize * prod(size or 0 for size in field.shape)


def stored(column: pa.ChunkedArray, policy: Column) -> pa.Array | Blobs:
    """Return a column as it is kept until its batch is made.

    Raises:
        CellError: If it is none that its codec has made, or too large.
    """
    try:
        if policy.codec is None:
            return one_array(column)
        return Blobs.joined([Blobs.of(chunk) for chunk in column.chunks] or [Blobs.of(pa.nulls(0, column.type))])
    except DataError as error:
        raise CellError(policy.name, str(error)) from error


def plain(part: UnitTable, policy: Column) -> Values | None:
    """Return numbers in one chunk without nulls as a view, which is most of what is ever decoded; None for all else."""
    if policy.nulls != DEFAULT_NULLS:
        return None
    if policy.name in part.views:  # of one that stays
        return part.views[policy.name]
    column = part.table.column(policy.name)
    if column.type.id not in PLAIN or column.num_chunks != 1 or column.null_count:
        return None
    found: Values = column.chunk(0).to_numpy(zero_copy_only=True)
    if output_dtype(found.dtype, policy.field) != found.dtype:
        return None
    part.views[policy.name] = found
    return found


def viewed(part: UnitTable, policy: Column, max_cell_bytes: int) -> Values | None:
    """Return cells that their codec need not even copy as a view; None for all else."""
    if policy.nulls != DEFAULT_NULLS or policy.codec is None or policy.field is None or not policy.field.is_dense:
        return None
    if cell_bytes(policy) > max_cell_bytes:
        return None
    if policy.name in part.views:  # of one that stays
        return part.views[policy.name]
    column = part.table.column(policy.name)
    if column.num_chunks != 1 or column.null_count:
        return None
    found = policy.codec.view(policy.field, replace(stored(column, policy), max_cell_bytes=max_cell_bytes))
    if found is not None:
        found.flags.writeable = False
        part.views[policy.name] = found
    return found
