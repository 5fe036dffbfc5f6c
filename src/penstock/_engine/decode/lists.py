"""Convert lists of any length to arrays: flat with offsets, as views, or as rows of one width.

Most columns of lists have numbers and no nulls. `decode_number_lists` converts a small batch of them in microseconds; the
general decoder would take many times as long.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from penstock._engine.runtime.memory import BufferPool
from penstock.dtypes import Marks, Values
from penstock.policies import AsObjects, Offsets, Pad, Ragged

NUMBERS: dict[int, np.dtype[Any]] = {
    pa.from_numpy_dtype(np.dtype(name)).id: np.dtype(name)
    for name in (*(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "float16", "float32", "float64")
}
"""The dtypes of Arrow's numbers that NumPy stores in the same way, by type id."""

OFFSETS: dict[int, np.dtype[Any]] = {
    pa.list_(pa.int8()).id: np.dtype(np.int32),
    pa.large_list(pa.int8()).id: np.dtype(np.int64),
}
"""The dtype of list offsets, by type id."""

LONG_LIST = 512
"""Items of a list, on average, from which `pad_lists` copies list by list: a mask of all places takes longer."""


def decode_number_lists(
    array: pa.Array, ragged: Ragged, padding: Any, buffer_pool: BufferPool | None
) -> dict[str, Values] | None:
    """Return lists of numbers without nulls as arrays by the suffix of their name; None for other lists.

    Example:
        >>> decode_number_lists(pa.array([[1, 2], [3]]), Offsets(), None, None)
        {'': array([1, 2, 3]), '_offsets': array([0, 2, 3])}
    """
    numbers = _numbers(array)
    if numbers is None:
        return None
    flat, offsets = numbers
    if isinstance(ragged, Offsets):
        return {"": flat, "_offsets": offsets}
    if isinstance(ragged, AsObjects):
        return {"": list_views(flat, offsets, None)}
    if not isinstance(ragged, Pad):
        return None
    length = offsets[1:] - offsets[:-1]
    width, too_long = pad_width(length, ragged)
    if too_long is not None:  # the general decoder raises the error
        return None
    return {"": pad_lists(flat, length, width, padding, buffer_pool), "_length": length}


def _numbers(array: pa.Array) -> tuple[Values, Values] | None:
    """Return the numbers of all lists and the offsets of the lists, both as views; None for other lists."""
    kind = array.type
    edge = OFFSETS.get(kind.id)
    if edge is None or not len(array) or array.null_count:
        return None
    dtype, items = NUMBERS.get(kind.value_type.id), array.values
    if dtype is None or items.null_count:
        return None
    edges = np.frombuffer(array.buffers()[1], edge, len(array) + 1, array.offset * edge.itemsize)
    first, last = int(edges[0]), int(edges[-1])
    if first == last:  # the buffer of items may be None
        return None
    flat = np.frombuffer(items.buffers()[1], dtype, last - first, (items.offset + first) * dtype.itemsize)
    flat.flags.writeable = False  # other readers may share Arrow's memory
    return flat, edges.astype(np.int64) - first


def pad_width(length: Values, ragged: Pad) -> tuple[int, int | None]:
    """Return the width of padded lists, and the first list that is too long for it; None if all fit or are cut."""
    longest = int(length.max(initial=0))
    width = longest if ragged.length is None else int(ragged.length)
    return width, None if longest <= width or ragged.truncate else int((length > width).argmax())


def too_long_problem(count: int, ragged: Pad) -> str:
    """Return the end of the message for a list, or cell, that is too long: what it has, what is allowed, what to do."""
    return f"{count} values, and {ragged} allows {ragged.length}. Give a larger length, or truncate=True to cut."


def list_views(items: Values, offsets: Values, missing: Marks) -> Values:
    """Return an object array of one view per list, None for a missing list."""
    edges = offsets.tolist()
    views = np.fromiter((items[start:stop] for start, stop in pairwise(edges)), object, len(edges) - 1)
    if missing is not None:
        views[missing] = None
    return views


def pad_lists(items: Values, length: Values, width: int, padding: Any, buffer_pool: BufferPool | None) -> Values:
    """Return lists as rows of one width, cut or padded at their end."""
    shape = (len(length), width, *items.shape[1:])
    if (length == width).all():
        return items.reshape(shape)
    if length.max() > width:
        place = np.arange(len(items)) - np.repeat(np.cumsum(length) - length, length)
        items = items[place < width]
    rows = np.empty(shape, items.dtype) if buffer_pool is None else buffer_pool.empty(shape, items.dtype)
    rows[...] = padding
    if len(items) < LONG_LIST * len(length):
        rows[np.arange(width) < length[:, None]] = items
        return rows
    start = 0
    for row, count in zip(rows, np.minimum(length, width).tolist(), strict=True):
        row[:count] = items[start : start + count]
        start += count
    return rows
