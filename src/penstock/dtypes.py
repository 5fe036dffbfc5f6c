"""Arrow types in NumPy, and conversions of their values. `docs/types.md` has the whole table.

Policies are applied later: values come with a mask of valid values, and the values of nulls are undefined.
"""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import DataError

__all__ = ["is_fixed", "numpy_type"]

Values: TypeAlias = npt.NDArray[Any]
Marks: TypeAlias = npt.NDArray[np.bool_] | None
"""True for values and False for nulls; None if there are no nulls."""

BOOL8 = "arrow.bool8"
TENSOR = "arrow.fixed_shape_tensor"
UUID = "arrow.uuid"
VARIABLE_TENSOR = "arrow.variable_shape_tensor"
KNOWN = frozenset((None, BOOL8, TENSOR, UUID, VARIABLE_TENSOR))
"""The extension types with a meaning here; None stands for types of Arrow itself."""

FIXED: dict[pa.DataType, np.dtype[Any]] = {
    pa.bool_(): np.dtype(np.bool_),
    pa.int8(): np.dtype(np.int8),
    pa.int16(): np.dtype(np.int16),
    pa.int32(): np.dtype(np.int32),
    pa.int64(): np.dtype(np.int64),
    pa.uint8(): np.dtype(np.uint8),
    pa.uint16(): np.dtype(np.uint16),
    pa.uint32(): np.dtype(np.uint32),
    pa.uint64(): np.dtype(np.uint64),
    pa.float16(): np.dtype(np.float16),
    pa.float32(): np.dtype(np.float32),
    pa.float64(): np.dtype(np.float64),
    pa.date32(): np.dtype("datetime64[D]"),
    pa.date64(): np.dtype("datetime64[ms]"),
}


def numpy_type(kind: pa.DataType) -> tuple[np.dtype[Any], tuple[int | None, ...]]:
    """Return the NumPy dtype of a column of an Arrow type, and the shape of one cell.

    A dimension that differs from row to row is None; types that NumPy does not have are objects.

    Example:
        >>> numpy_type(pa.list_(pa.float32(), 3))
        (dtype('float32'), (3,))
        >>> numpy_type(pa.list_(pa.list_(pa.time32("s")), 2))
        (dtype('<m8[s]'), (2, None))
        >>> numpy_type(pa.string())
        (dtype('O'), ())
    """
    if isinstance(kind, pa.BaseExtensionType):  # first, since some cannot be hashed
        return _extension_type(kind)
    if kind in FIXED:
        return FIXED[kind], ()
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or pa.types.is_time(kind):
        return np.dtype(f"{'datetime64' if pa.types.is_timestamp(kind) else 'timedelta64'}[{kind.unit}]"), ()
    if is_encoded(kind):
        return numpy_type(kind.value_type)
    if pa.types.is_fixed_size_list(kind) or is_ragged(kind):
        inner, shape = numpy_type(kind.value_type)
        return inner, (None if is_ragged(kind) else kind.list_size, *shape)
    return np.dtype(object), ()


def _extension_type(kind: pa.DataType) -> tuple[np.dtype[Any], tuple[int | None, ...]]:
    """Return the NumPy dtype and shape of an extension type; those of its storage if it is not known."""
    if kind.extension_name == BOOL8:
        return np.dtype(np.bool_), ()
    if kind.extension_name == TENSOR:
        return numpy_type(kind.value_type)[0], tensor_shape(kind)
    if kind.extension_name in {UUID, VARIABLE_TENSOR}:
        return np.dtype(object), ()
    return numpy_type(kind.storage_type)


def is_fixed(kind: pa.DataType) -> bool:
    """Return whether all cells have the same number of bytes in NumPy, so that a column is one dense array.

    Example:
        >>> is_fixed(pa.list_(pa.float32(), 3)), is_fixed(pa.list_(pa.float32())), is_fixed(pa.string())
        (True, False, False)
    """
    dtype, shape = numpy_type(kind)
    return dtype.kind != "O" and None not in shape


def least_bytes(kind: pa.DataType) -> int:
    """Return the bytes of one cell in NumPy if they are fixed, else 0.

    Example:
        >>> least_bytes(pa.list_(pa.float32(), 3)), least_bytes(pa.bool_()), least_bytes(pa.string())
        (12, 1, 0)
    """
    dtype, shape = numpy_type(kind)
    return 0 if dtype.kind == "O" or None in shape else dtype.itemsize * prod(size or 0 for size in shape)


def is_ragged(kind: pa.DataType) -> bool:
    """Return whether cells of an Arrow type are lists of different lengths."""
    tests = pa.types
    return bool(tests.is_list(kind) or tests.is_large_list(kind) or is_list_view(kind))


def is_list_view(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is a list view, which stores an offset and a size for each cell."""
    return bool(pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))


def is_encoded(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is dictionary-encoded or run-end encoded."""
    return bool(pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind))


def extension_name(kind: pa.DataType) -> str | None:
    """Return the name of an extension type; None for a type of Arrow itself."""
    return str(kind.extension_name) if isinstance(kind, pa.BaseExtensionType) else None


def tensor_shape(kind: pa.DataType) -> tuple[int, ...]:
    """Return the shape of one tensor of a fixed-shape tensor type, after its permutation."""
    shape = tuple(kind.shape)
    return shape if kind.permutation is None else tuple(shape[axis] for axis in kind.permutation)


def leaf_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the innermost values, without lists, encodings and extensions.

    Example:
        >>> leaf_type(pa.list_(pa.dictionary(pa.int8(), pa.string())))
        DataType(string)
    """
    extension = extension_name(kind)
    if is_encoded(kind) or is_ragged(kind) or pa.types.is_fixed_size_list(kind) or extension == TENSOR:
        return leaf_type(kind.value_type)
    if extension in {None, BOOL8, UUID, VARIABLE_TENSOR}:
        return kind
    return leaf_type(kind.storage_type)


def values(array: pa.Array) -> tuple[Values, Marks]:
    """Return an array without lists as NumPy values and a mask of valid values; a view of Arrow's memory if possible.

    Example:
        >>> values(pa.array(["a", None]))
        (array(['a', None], dtype=object), array([ True, False]))
    """
    kind, rows = array.type, len(array)
    if is_encoded(kind):
        return _encoded(array)
    if extension_name(kind) == BOOL8:
        return values(array.storage)[0] != 0, valid(array)
    dtype, _ = numpy_type(kind)
    if dtype.kind == "O":
        return np.fromiter(python_values(array), object, rows), valid(array)
    buffer = array.buffers()[1]
    if rows == 0 or buffer is None:
        return np.zeros(rows, dtype), valid(array)
    if dtype.kind == "b":
        return _bits(buffer, array.offset, rows), valid(array)
    stored = dtype if dtype.itemsize * 8 == kind.bit_width else np.dtype(np.int32)  # dates, and times of day in s or ms
    result = np.frombuffer(buffer, stored, rows, array.offset * stored.itemsize)
    result.flags.writeable = False  # the memory can be shared
    return result if stored is dtype else result.astype(dtype), valid(array)


def valid(array: pa.Array) -> Marks:
    """Return the mask of valid values of an array.

    Example:
        >>> valid(pa.array([1, None])), valid(pa.array([1, 2]))
        (array([ True, False]), None)
    """
    if isinstance(array, pa.ExtensionArray):
        return valid(array.storage)
    if not array.null_count:
        return None
    buffer = array.buffers()[0]
    return np.zeros(len(array), np.bool_) if buffer is None else _bits(buffer, array.offset, len(array))


def both(one: Marks, other: Marks) -> Marks:
    """Return the intersection of two masks of valid values."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


def items(array: pa.Array, present: Marks = None) -> tuple[pa.Array, Values, Marks]:
    """Return the items of lists or maps one after the other, the length of each, and the mask of valid lists.

    A list is also null where `present` is False.

    Example:
        >>> flat, length, _ = items(pa.array([[1, 2], None, [3]]))
        >>> flat.to_pylist(), length.tolist()
        ([1, 2, 3], [2, 0, 1])
    """
    mask = both(valid(array), present)
    starts = values(array.offsets)[0].astype(np.int64)
    if is_list_view(array.type):
        length = values(array.sizes)[0].astype(np.int64)
    else:
        starts, length = starts[:-1], np.diff(starts)
    if mask is not None:  # a null list can have items, which are undefined
        length[~mask] = 0
    starts, ends = starts[length > 0], (starts + length)[length > 0]
    if not len(starts):
        return array.values.slice(0, 0), length, mask
    breaks = starts[1:] != ends[:-1]
    first, last = starts[np.concatenate([[True], breaks])], ends[np.concatenate([breaks, [True]])]
    runs = [array.values.slice(start, stop - start) for start, stop in zip(first.tolist(), last.tolist(), strict=True)]
    return runs[0] if len(runs) == 1 else pa.concat_arrays(runs), length, mask


def plain(array: pa.Array) -> pa.Array:
    """Return a dictionary-encoded or run-end encoded array without its encoding."""
    if pa.types.is_dictionary(array.type):
        kind = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(array.type.value_type)
        store = array.dictionary if kind is None else array.dictionary.cast(kind)  # Arrow has no take for views
        return store.take(array.indices)
    return array.values.take(pa.array(_run_of_row(array)))


def python_values(array: pa.Array) -> list[Any]:
    """Return cells as Python values, None for nulls.

    Timestamps and durations in nanoseconds, and those outside of Python's range, are NumPy scalars.

    Raises:
        DataError: If a struct has two fields with the same name.

    Example:
        >>> python_values(pa.array([{"a": 1, "at": 0}], pa.struct({"a": pa.int8(), "at": pa.timestamp("ns")})))
        [{'a': 1, 'at': np.datetime64('1970-01-01T00:00:00.000000000')}]
    """
    kind = array.type
    if is_encoded(kind) and is_compound(kind.value_type):
        return python_values(plain(array))
    if extension_name(kind) not in {None, BOOL8, UUID}:
        return python_values(array.storage)
    mask = None if is_encoded(kind) else valid(array)
    if pa.types.is_struct(kind):
        cells = _dicts(array)
    elif pa.types.is_map(kind) or pa.types.is_fixed_size_list(kind) or is_ragged(kind):
        cells = _python_lists(array)
    elif is_encoded(kind) or numpy_type(kind)[0].kind != "O":
        numbers, mask = values(array)
        cells = _python_scalars(numbers, leaf_type(kind))
    else:
        return _python_objects(array)
    if mask is not None:
        for row in np.flatnonzero(~mask).tolist():
            cells[row] = None
    return cells


def is_compound(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is nested or an extension type."""
    return bool(pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType))


def _bits(buffer: pa.Buffer, offset: int, count: int) -> npt.NDArray[np.bool_]:
    """Return bits of a buffer as booleans."""
    start, skipped = divmod(offset, 8)
    packed = np.frombuffer(buffer, np.uint8, (skipped + count + 7) // 8, start)
    return np.unpackbits(packed, count=skipped + count, bitorder="little")[skipped:].view(np.bool_)


def _run_of_row(array: pa.Array) -> Values:
    """Return the number of the run of each row of a run-end encoded array."""
    return np.searchsorted(values(array.run_ends)[0], np.arange(array.offset, array.offset + len(array)), "right")


def _encoded(array: pa.Array) -> tuple[Values, Marks]:
    """Return the values of a dictionary-encoded or run-end encoded array; equal strings of a dictionary are one object."""
    if pa.types.is_dictionary(array.type):
        (index, mask), store = values(array.indices), array.dictionary
    else:
        index, mask, store = _run_of_row(array), None, array.values
    distinct, marks = values(store)
    if mask is not None:
        index = np.where(mask, index, 0)
    if not len(distinct):  # all null, or no rows
        return np.zeros(len(array), distinct.dtype), mask
    return distinct.take(index), both(mask, None if marks is None else marks.take(index))


def _dicts(array: pa.Array) -> list[Any]:
    """Return the cells of a struct as dicts."""
    names = [field.name for field in array.type]
    if len(set(names)) < len(names):
        raise DataError(f"{array.type} has several fields with one name, which a dict cannot hold. Rename them in the table.")
    cells: list[Any] = [{} for _ in range(len(array))]
    for number, name in enumerate(names):
        for cell, value in zip(cells, python_values(array.field(number)), strict=True):
            cell[name] = value
    return cells


def _python_lists(array: pa.Array) -> list[Any]:
    """Return lists as lists, and maps as lists of pairs."""
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        flat, length = array.values.slice(array.offset * size, len(array) * size), np.full(len(array), size)
    else:
        flat, length, _ = items(array)
    if pa.types.is_map(array.type):
        cells: list[Any] = list(zip(python_values(flat.field(0)), python_values(flat.field(1)), strict=True))
    else:
        cells = python_values(flat)
    ends = np.cumsum(length)
    return [cells[start:stop] for start, stop in zip((ends - length).tolist(), ends.tolist(), strict=True)]


def _python_objects(array: pa.Array) -> list[Any]:
    """Return strings and other values without a NumPy dtype."""
    kind = array.type
    if extension_name(kind) == UUID:
        return [None if cell is None else uuid.UUID(bytes=cell) for cell in _python_objects(array.storage)]
    if pa.types.is_decimal(kind):  # text is twice as fast
        return [None if text is None else Decimal(text) for text in array.cast(pa.large_string()).to_pylist()]
    if pa.types.is_fixed_size_binary(kind):  # the same, with large binary
        return list(array.cast(pa.large_binary()).to_pylist())
    return list(array.to_pylist())


def _python_scalars(numbers: Values, kind: pa.DataType) -> list[Any]:
    """Return NumPy values as Python values, if Python has such values."""
    if pa.types.is_date64(kind):
        numbers = numbers.astype("datetime64[D]")
    cells = numbers.tolist()
    if numbers.dtype.kind in "mM":  # values that Python does not have, such as nanoseconds, are integers here
        cells = [numbers[row] if isinstance(cell, int) else cell for row, cell in enumerate(cells)]
    if pa.types.is_time(kind):
        midnight = dt.datetime(1, 1, 1)  # noqa: DTZ001 - a time of day has no zone
        return [(midnight + cell).time() if isinstance(cell, dt.timedelta) else cell for cell in cells]
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return [cell.replace(tzinfo=dt.UTC) if isinstance(cell, dt.datetime) else cell for cell in cells]
    return list(cells)
