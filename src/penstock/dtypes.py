"""The type table: what each Arrow type is in NumPy, and how its values come over. `docs/types.md` shows it in full.

Nothing here knows a policy: values come with marks that tell where they are null, and what stands there then is no promise.
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
"""Where there are values; None where there is one everywhere."""

BOOL8 = "arrow.bool8"
TENSOR = "arrow.fixed_shape_tensor"
UUID = "arrow.uuid"
VARIABLE_TENSOR = "arrow.variable_shape_tensor"
KNOWN = frozenset((None, BOOL8, TENSOR, UUID, VARIABLE_TENSOR))
"""Types that are more than what they are stored as; None is a type of Arrow itself."""

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

    A dimension that differs from row to row is None; what NumPy has no type for is an object.

    Example:
        >>> numpy_type(pa.list_(pa.float32(), 3))
        (dtype('float32'), (3,))
        >>> numpy_type(pa.list_(pa.list_(pa.time32("s")), 2))
        (dtype('<m8[s]'), (2, None))
        >>> numpy_type(pa.string())
        (dtype('O'), ())
    """
    if isinstance(kind, pa.BaseExtensionType):  # which may have no hash, so it comes first
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
    """Return what an extension type is in NumPy: its storage, where we do not know it."""
    if kind.extension_name == BOOL8:
        return np.dtype(np.bool_), ()
    if kind.extension_name == TENSOR:
        return numpy_type(kind.value_type)[0], tensor_shape(kind)
    if kind.extension_name in {UUID, VARIABLE_TENSOR}:
        return np.dtype(object), ()
    return numpy_type(kind.storage_type)


def is_fixed(kind: pa.DataType) -> bool:
    """Return whether one cell has a fixed number of bytes in NumPy, so that a column is one dense array whatever its rows.

    Example:
        >>> is_fixed(pa.list_(pa.float32(), 3)), is_fixed(pa.list_(pa.float32())), is_fixed(pa.string())
        (True, False, False)
    """
    dtype, shape = numpy_type(kind)
    return dtype.kind != "O" and None not in shape


def least_bytes(kind: pa.DataType) -> int:
    """Return the bytes that one cell takes in NumPy at least: all of one that has a fixed size, and none of another.

    Example:
        >>> least_bytes(pa.list_(pa.float32(), 3)), least_bytes(pa.bool_()), least_bytes(pa.string())
        (12, 1, 0)
    """
    dtype, shape = numpy_type(kind)
    return 0 if dtype.kind == "O" or None in shape else dtype.itemsize * prod(size or 0 for size in shape)


def is_ragged(kind: pa.DataType) -> bool:
    """Return whether cells of an Arrow type are lists that may differ in length."""
    tests = pa.types
    return bool(tests.is_list(kind) or tests.is_large_list(kind) or is_list_view(kind))


def is_list_view(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is a list that tells where each cell starts and how long it is."""
    return bool(pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))


def is_encoded(kind: pa.DataType) -> bool:
    """Return whether an Arrow type stores values once and refers to them: a dictionary, or runs."""
    return bool(pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind))


def extension_name(kind: pa.DataType) -> str | None:
    """Return the name of an extension type; None for a type of Arrow itself."""
    return str(kind.extension_name) if isinstance(kind, pa.BaseExtensionType) else None


def tensor_shape(kind: pa.DataType) -> tuple[int, ...]:
    """Return the shape of one tensor of a fixed-shape tensor type, as it is used: after its permutation."""
    shape = tuple(kind.shape)
    return shape if kind.permutation is None else tuple(shape[axis] for axis in kind.permutation)


def leaf_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values themselves, without the lists, encodings and extensions around them.

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
    """Return what is no list as NumPy values, and where they are no nulls; a view of Arrow's memory where that is possible.

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
    stored = dtype if dtype.itemsize * 8 == kind.bit_width else np.dtype(np.int32)  # days, and the coarse times of a day
    found = np.frombuffer(buffer, stored, rows, array.offset * stored.itemsize)
    found.flags.writeable = False  # others may share it
    return found if stored is dtype else found.astype(dtype), valid(array)


def valid(array: pa.Array) -> Marks:
    """Return where an array is not null.

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
    """Return where both have a value."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


def items(array: pa.Array, present: Marks = None) -> tuple[pa.Array, Values, Marks]:
    """Return the items of lists or maps one after the other, how many each has, and which lists are no nulls.

    Where `present` is False a list counts as null, whatever it holds.

    Example:
        >>> flat, length, _ = items(pa.array([[1, 2], None, [3]]))
        >>> flat.to_pylist(), length.tolist()
        ([1, 2, 3], [2, 0, 1])
    """
    there = both(valid(array), present)
    starts = values(array.offsets)[0].astype(np.int64)
    if is_list_view(array.type):
        length = values(array.sizes)[0].astype(np.int64)
    else:
        starts, length = starts[:-1], np.diff(starts)
    if there is not None:  # a null may own items, which are garbage
        length[~there] = 0
    starts, ends = starts[length > 0], (starts + length)[length > 0]
    if not len(starts):
        return array.values.slice(0, 0), length, there
    breaks = starts[1:] != ends[:-1]
    first, last = starts[np.concatenate([[True], breaks])], ends[np.concatenate([breaks, [True]])]
    runs = [array.values.slice(start, stop - start) for start, stop in zip(first.tolist(), last.tolist(), strict=True)]
    return runs[0] if len(runs) == 1 else pa.concat_arrays(runs), length, there


def plain(array: pa.Array) -> pa.Array:
    """Return the values that a dictionary or runs stand for."""
    if pa.types.is_dictionary(array.type):
        kind = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(array.type.value_type)
        store = array.dictionary if kind is None else array.dictionary.cast(kind)  # Arrow takes nothing of views
        return store.take(array.indices)
    return array.values.take(pa.array(_run(array)))


def python_values(array: pa.Array) -> list[Any]:
    """Return cells as plain Python values, None for null.

    Moments and durations in nanoseconds, and those beyond Python's own range, are NumPy scalars instead.

    Raises:
        DataError: If a struct has two fields of one name.

    Example:
        >>> python_values(pa.array([{"a": 1, "at": 0}], pa.struct({"a": pa.int8(), "at": pa.timestamp("ns")})))
        [{'a': 1, 'at': np.datetime64('1970-01-01T00:00:00.000000000')}]
    """
    kind = array.type
    if is_encoded(kind) and is_compound(kind.value_type):
        return python_values(plain(array))
    if extension_name(kind) not in {None, BOOL8, UUID}:
        return python_values(array.storage)
    there = None if is_encoded(kind) else valid(array)
    if pa.types.is_struct(kind):
        found = _dicts(array)
    elif pa.types.is_map(kind) or pa.types.is_fixed_size_list(kind) or is_ragged(kind):
        found = _python_lists(array)
    elif is_encoded(kind) or numpy_type(kind)[0].kind != "O":
        numbers, there = values(array)
        found = _python_scalars(numbers, leaf_type(kind))
    else:
        return _python_objects(array)
    if there is not None:
        for row in np.flatnonzero(~there).tolist():
            found[row] = None
    return found


def is_compound(kind: pa.DataType) -> bool:
    """Return whether cells of an Arrow type consist of others, or may."""
    return bool(pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType))


def _bits(buffer: pa.Buffer, offset: int, count: int) -> npt.NDArray[np.bool_]:
    """Return some bits of a buffer."""
    start, skipped = divmod(offset, 8)
    packed = np.frombuffer(buffer, np.uint8, (skipped + count + 7) // 8, start)
    return np.unpackbits(packed, count=skipped + count, bitorder="little")[skipped:].view(np.bool_)


def _run(array: pa.Array) -> Values:
    """Return, for each row of runs, which of them it lies in."""
    return np.searchsorted(values(array.run_ends)[0], np.arange(array.offset, array.offset + len(array)), "right")


def _encoded(array: pa.Array) -> tuple[Values, Marks]:
    """Return the values that a dictionary or runs stand for; a string that stands in many rows is one object."""
    if pa.types.is_dictionary(array.type):
        (index, there), store = values(array.indices), array.dictionary
    else:
        index, there, store = _run(array), None, array.values
    found, marks = values(store)
    if there is not None:
        index = np.where(there, index, 0)
    if not len(found):  # all null, or no rows
        return np.zeros(len(array), found.dtype), there
    return found.take(index), both(there, None if marks is None else marks.take(index))


def _dicts(array: pa.Array) -> list[Any]:
    """Return the cells of a struct."""
    names = [field.name for field in array.type]
    if len(set(names)) < len(names):
        raise DataError(f"{array.type} has fields of one name, and a dict holds one of each. Rename them where it is written.")
    found: list[Any] = [{} for _ in range(len(array))]
    for number, name in enumerate(names):
        for cell, value in zip(found, python_values(array.field(number)), strict=True):
            cell[name] = value
    return found


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
    """Return strings and other values that NumPy has no dtype for."""
    kind = array.type
    if extension_name(kind) == UUID:
        return [None if cell is None else uuid.UUID(bytes=cell) for cell in _python_objects(array.storage)]
    if pa.types.is_decimal(kind):  # by way of text, in half the time
        return [None if text is None else Decimal(text) for text in array.cast(pa.large_string()).to_pylist()]
    if pa.types.is_fixed_size_binary(kind):  # the same
        return list(array.cast(pa.large_binary()).to_pylist())
    return list(array.to_pylist())


def _python_scalars(numbers: Values, kind: pa.DataType) -> list[Any]:
    """Return NumPy's values as Python's own, where Python has such values."""
    if pa.types.is_date64(kind):
        numbers = numbers.astype("datetime64[D]")
    found = numbers.tolist()
    if numbers.dtype.kind in "mM":  # what Python cannot hold, as all nanoseconds, came as an int
        found = [numbers[row] if isinstance(cell, int) else cell for row, cell in enumerate(found)]
    if pa.types.is_time(kind):
        midnight = dt.datetime(1, 1, 1)  # noqa: DTZ001 - a time of day has no zone
        return [(midnight + cell).time() if isinstance(cell, dt.timedelta) else cell for cell in found]
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return [cell.replace(tzinfo=dt.UTC) if isinstance(cell, dt.datetime) else cell for cell in found]
    return list(found)
