"""Concatenate and take from Arrow arrays, in wider types if the values do not fit.

Offsets of 32 bits reach 2 GiB, and indices of 8 bits reach 128 dictionary values. Beyond that, the result has a type with
64-bit offsets or indices. Files are read to narrow types, because they take less memory and rarely overflow.
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

MIN_INDEX_BITS = 32
"""The width of dictionary indices that no dictionary exceeds in practice."""

MAX_OFFSET = (1 << 31) - 1
"""The largest 32-bit offset."""

COPY_FACTOR = 8
"""Lists per taken row up to which `take_wide` copies bytes itself; beyond that, converting all offsets takes longer."""


def concat_wide(arrays: Sequence[pa.Array]) -> pa.Array:
    """Return several arrays of one type, or of its wide type, as one array, in the wide type if necessary.

    Example:
        >>> concat_wide([pa.array(["a"]), pa.array(["b"], pa.large_string())]).type
        DataType(large_string)
    """
    if len(arrays) == 1:
        return arrays[0]
    try:
        return pa.concat_arrays(arrays)
    except pa.ArrowInvalid as error:
        return _retry_wide(lambda: pa.concat_arrays([_widen(array) for array in arrays]), arrays[0].type, error)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, in a wider type if necessary."""
    return concat_wide(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


def take_wide(array: pa.Array, rows: IntArray) -> pa.Array:
    """Return values of an array by position, in a wider type if necessary."""
    numbers = pa.array(rows)
    if _is_bytewise(array) and array.offset + len(array) <= COPY_FACTOR * len(rows):
        return _take_bytewise(array, numbers)
    try:
        return array.take(numbers)
    except pa.ArrowInvalid as error:
        return _retry_wide(lambda: _widen(array).take(numbers), array.type, error)


def _is_bytewise(array: pa.Array) -> bool:
    """Return whether the items of the lists are contiguous whole bytes, without nulls."""
    kind = array.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_primitive(kind.value_type):
        return False
    return kind.value_type.bit_width % 8 == 0 and not array.values.null_count


def _take_bytewise(array: pa.Array, numbers: pa.Array) -> pa.Array:
    """Return some lists, each copied as bytes; Arrow copies item by item, which takes five times as long."""
    kind, items, size = array.type, array.values, array.type.value_type.bit_width // 8
    valid, offsets = array.buffers()[:2]
    narrow = pa.types.is_list(kind)
    edge: np.dtype[Any] = np.dtype(np.int32 if narrow else np.int64)
    ends = np.frombuffer(offsets, edge, array.offset + len(array) + 1).astype(np.int64) * size
    # An IPC stream can give an array without items a buffer at address 0, which Arrow does not slice.
    data = items.buffers()[1].slice(items.offset * size) if len(items) else pa.py_buffer(b"")
    cells = pa.Array.from_buffers(
        pa.large_binary(), len(array), [valid, pa.py_buffer(ends), data], array.null_count, array.offset
    ).take(numbers)
    valid, offsets, data = cells.buffers()
    ends = np.frombuffer(offsets, np.int64, cells.offset + len(cells) + 1) // size
    if narrow and ends[-1] <= MAX_OFFSET:
        ends = ends.astype(np.int32)
    elif narrow:
        kind = pa.large_list(kind.value_field)
    values = pa.Array.from_buffers(kind.value_type, int(ends[-1]), [None, data], 0)
    return pa.Array.from_buffers(kind, len(cells), [valid, pa.py_buffer(ends)], cells.null_count, cells.offset, [values])


def with_wide_indices(field: pa.Field) -> pa.Field:
    """Return a field with dictionary indices of at least 32 bits.

    A row group's number of dictionary values is known only when it is written, after the type is fixed.

    Example:
        >>> with_wide_indices(pa.field("x", pa.dictionary(pa.int8(), pa.string()))).type.index_type
        DataType(int32)
    """
    kind = _wide_index_type(field.type)
    return field if kind == field.type else field.with_type(kind)


def writable_type(kind: pa.DataType) -> pa.DataType:
    """Return a type that pyarrow can write, without dictionaries of views (which polars has) and run-end encoding.

    Example:
        >>> writable_type(pa.dictionary(pa.uint32(), pa.string_view())).value_type
        DataType(string)
    """
    if pa.types.is_dictionary(kind):
        values = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(kind.value_type)
        if values is None:
            return writable_type(kind.value_type) if pa.types.is_nested(kind.value_type) else kind
        return pa.dictionary(kind.index_type, values, kind.ordered)
    return writable_type(kind.value_type) if pa.types.is_run_end_encoded(kind) else around(kind, writable_type)


def split_for_dictionaries(table: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows of a table in parts whose dictionaries each fit the index type.

    pyarrow writes a row group with more dictionary values than the indices count, but cannot read it.

    Example:
        >>> words = [pa.array(map(str, range(at, at + 100))).dictionary_encode() for at in (0, 50, 100)]
        >>> narrow = pa.table({"x": pa.chunked_array(words).cast(pa.dictionary(pa.int8(), pa.string()))})
        >>> [part.num_rows for part in split_for_dictionaries(narrow)]
        [100, 100, 100]
    """
    narrow = [field.name for field in table.schema if with_wide_indices(field) is not field]
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


def _retry_wide(attempt: Callable[[], pa.Array], kind: pa.DataType, first: Exception) -> pa.Array:
    """Return the result of an attempt with wide types, after `first` was raised with narrow ones."""
    try:
        return attempt()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        msg = f"cells of {kind} do not fit one Arrow array: {first}. Read fewer rows at a time."
        raise DataError(msg) from error


def _widen(array: pa.Array) -> pa.Array:
    """Return an array in its wide type."""
    while isinstance(array, pa.ExtensionArray) and dtypes.extension_name(array.type) not in dtypes.KNOWN:
        array = array.storage  # decoding unknown extensions also uses the storage
    kind = _wide_type(array.type)
    return array if kind == array.type else array.cast(kind)


def _wide_type(kind: pa.DataType) -> pa.DataType:
    of = pa.types
    if of.is_binary(kind):
        return pa.large_binary()
    if of.is_string(kind):
        return pa.large_string()
    if of.is_list(kind):
        return pa.large_list(kind.value_field.with_type(_wide_type(kind.value_type)))
    if of.is_dictionary(kind):
        return pa.dictionary(pa.int64(), _wide_type(kind.value_type), kind.ordered)
    return around(kind, _wide_type)


def _wide_index_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind) and kind.index_type.bit_width < MIN_INDEX_BITS:
        return pa.dictionary(pa.int32(), kind.value_type, kind.ordered)
    return around(kind, _wide_index_type)
