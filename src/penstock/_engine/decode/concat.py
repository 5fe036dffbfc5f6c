"""Arrow arrays put together and picked from, also where their types are too narrow for what comes of it.

Offsets of 32 bits reach two gigabytes, and indices of eight bits 128 values of a dictionary. What has more is the same values
in a type that counts in 64 bits. Files are read to narrow types, which take less memory, and few need wide ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock import dtypes
from penstock._arrow_types import around
from penstock.errors import DataError
from penstock.model import IntArray

__all__ = ["concat", "one_array", "readable", "storable", "take", "with_roomy_indices"]

ROOMY = 32
"""Bits of indices that no dictionary is too large for."""

MOST_OFFSET = (1 << 31) - 1
"""The largest offset of 32 bits."""

FEW = 8
"""Of an array with more than so many times the rows that are picked, Arrow picks lists itself: all offsets take longer."""


def concat(arrays: Sequence[pa.Array]) -> pa.Array:
    """Return the values of several arrays as one, whose type may be a wider one.

    The arrays are of one type, or of that and its wide one.

    Raises:
        DataError: If there is no array that holds so much.

    Example:
        >>> concat([pa.array(["a"]), pa.array(["b"], pa.large_string())]).type
        DataType(large_string)
    """
    if len(arrays) == 1:
        return arrays[0]
    try:
        return pa.concat_arrays(arrays)
    except pa.ArrowInvalid as error:
        return _retried(lambda: pa.concat_arrays([_widened(array) for array in arrays]), arrays[0].type, error)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, whose type may be a wider one.

    Raises:
        DataError: If there is no array that holds so much.
    """
    return concat(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


def take(array: pa.Array, rows: IntArray) -> pa.Array:
    """Return some values of an array, in another order or several times; its type may be a wider one.

    Raises:
        DataError: If there is no array that holds so much.
    """
    numbers = pa.array(rows)
    if _is_bytewise(array) and array.offset + len(array) <= FEW * len(rows):
        return _taken_bytewise(array, numbers)
    try:
        return array.take(numbers)
    except pa.ArrowInvalid as error:
        return _retried(lambda: _widened(array).take(numbers), array.type, error)


def _is_bytewise(array: pa.Array) -> bool:
    """Return whether the items of each list lie side by side in whole bytes, none of them null."""
    kind = array.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_primitive(kind.value_type):
        return False
    return kind.value_type.bit_width % 8 == 0 and not array.values.null_count


def _taken_bytewise(array: pa.Array, numbers: pa.Array) -> pa.Array:
    """Return some lists, each copied at once as bytes; Arrow itself copies item by item, which takes five times as long."""
    kind, items, size = array.type, array.values, array.type.value_type.bit_width // 8
    valid, offsets = array.buffers()[:2]
    narrow = pa.types.is_list(kind)
    edge: np.dtype[Any] = np.dtype(np.int32 if narrow else np.int64)
    ends = np.frombuffer(offsets, edge, array.offset + len(array) + 1).astype(np.int64) * size
    # No items may lie in no memory at all, as those that crossed a stream of Arrow do, and Arrow takes no bytes from there.
    data = items.buffers()[1].slice(items.offset * size) if len(items) else pa.py_buffer(b"")
    cells = pa.Array.from_buffers(
        pa.large_binary(), len(array), [valid, pa.py_buffer(ends), data], array.null_count, array.offset
    ).take(numbers)
    valid, offsets, data = cells.buffers()
    ends = np.frombuffer(offsets, np.int64, cells.offset + len(cells) + 1) // size
    if narrow and ends[-1] <= MOST_OFFSET:
        ends = ends.astype(np.int32)
    elif narrow:
        kind = pa.large_list(kind.value_field)
    values = pa.Array.from_buffers(kind.value_type, int(ends[-1]), [None, data], 0)
    return pa.Array.from_buffers(kind, len(cells), [valid, pa.py_buffer(ends)], cells.null_count, cells.offset, [values])


def with_roomy_indices(field: pa.Field) -> pa.Field:
    """Return a column with indices of 32 bits, or more, where it has a dictionary.

    What a row group holds is known when it is written, and its type long before.

    Example:
        >>> with_roomy_indices(pa.field("x", pa.dictionary(pa.int8(), pa.string()))).type.index_type
        DataType(int32)
    """
    kind = _roomy(field.type)
    return field if kind == field.type else field.with_type(kind)


def storable(kind: pa.DataType) -> pa.DataType:
    """Return the type that pyarrow can write for one that it cannot: of dictionaries of views, as polars has them, or of runs.

    Example:
        >>> storable(pa.dictionary(pa.uint32(), pa.string_view())).value_type
        DataType(string)
    """
    if pa.types.is_dictionary(kind):
        values = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(kind.value_type)
        if values is None:
            return storable(kind.value_type) if pa.types.is_nested(kind.value_type) else kind
        return pa.dictionary(kind.index_type, values, kind.ordered)
    return storable(kind.value_type) if pa.types.is_run_end_encoded(kind) else around(kind, storable)


def readable(table: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows of a table in as many parts as its dictionaries need, each of which fits its indices.

    A row group with more values than its indices count can be written, and nobody can read it.

    Example:
        >>> words = [pa.array(map(str, range(at, at + 100))).dictionary_encode() for at in (0, 50, 100)]
        >>> few = pa.table({"x": pa.chunked_array(words).cast(pa.dictionary(pa.int8(), pa.string()))})
        >>> [part.num_rows for part in readable(few)]
        [100, 100, 100]
    """
    narrow = [field.name for field in table.schema if with_roomy_indices(field) is not field]
    if not narrow or _fits(table.select(narrow)):
        yield table
        return
    start = rows = 0
    for batch in table.to_batches():
        if rows and not _fits(table.slice(start, rows + batch.num_rows).select(narrow)):
            yield table.slice(start, rows)
            start, rows = start + rows, 0
        rows += batch.num_rows
    yield table.slice(start, rows)


def _fits(table: pa.Table) -> bool:
    try:
        table.combine_chunks()
    except pa.ArrowInvalid:
        return False
    return True


def _retried(attempt: Callable[[], pa.Array], kind: pa.DataType, first: Exception) -> pa.Array:
    """Return what an attempt with wide types makes of a failure with narrow ones."""
    try:
        return attempt()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        msg = f"cells of {kind} do not fit one Arrow array: {first}. Fewer were expected. Read fewer rows at a time."
        raise DataError(msg) from error


def _widened(array: pa.Array) -> pa.Array:
    """Return an array in the type that has room for more, where there is one."""
    while isinstance(array, pa.ExtensionArray) and dtypes.extension_name(array.type) not in dtypes.KNOWN:
        array = array.storage  # which is what it is decoded as
    kind = _wide(array.type)
    return array if kind == array.type else array.cast(kind)


def _wide(kind: pa.DataType) -> pa.DataType:
    of = pa.types
    if of.is_binary(kind):
        return pa.large_binary()
    if of.is_string(kind):
        return pa.large_string()
    if of.is_list(kind):
        return pa.large_list(kind.value_field.with_type(_wide(kind.value_type)))
    if of.is_dictionary(kind):
        return pa.dictionary(pa.int64(), _wide(kind.value_type), kind.ordered)
    return around(kind, _wide)


def _roomy(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind) and kind.index_type.bit_width < ROOMY:
        return pa.dictionary(pa.int32(), kind.value_type, kind.ordered)
    return around(kind, _roomy)
