"""Lists of any length become arrays: side by side with offsets, as views, or as rows of one width.

Most lists are of numbers, and neither they nor their items are null. Those take a short way here: a batch of a few dozen
lists is made in some microseconds, and to walk down their type would take many times as long.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from penstock._engine.runtime.memory import BufferPool
from penstock.dtypes import Marks, Values
from penstock.policies import AsObjects, Offsets, Pad, Ragged

__all__ = ["cut", "dense", "plain_lists"]

NUMBERS: dict[int, np.dtype[Any]] = {
    kind.id: np.dtype(name)
    for kind, name in (
        (pa.int8(), "int8"),
        (pa.int16(), "int16"),
        (pa.int32(), "int32"),
        (pa.int64(), "int64"),
        (pa.uint8(), "uint8"),
        (pa.uint16(), "uint16"),
        (pa.uint32(), "uint32"),
        (pa.uint64(), "uint64"),
        (pa.float16(), "float16"),
        (pa.float32(), "float32"),
        (pa.float64(), "float64"),
    )
}
"""Types of numbers that lie in memory as NumPy has them, by the number that Arrow gives them."""

EDGES: dict[int, np.dtype[Any]] = {pa.list_(pa.int8()).id: np.dtype(np.int32), pa.large_list(pa.int8()).id: np.dtype(np.int64)}
"""What offsets of lists are, by the number of their type."""

LONG = 512
"""Items of a list, on average, from which on lists are copied one by one: what tells all their places takes longer."""


def plain_lists(array: pa.Array, ragged: Ragged, padding: Any, buffer_pool: BufferPool | None) -> dict[str, Values] | None:
    """Return lists of numbers, none of them and none in them null, by the suffix of what they are called; None for all else.

    Args:
        array: The lists.
        ragged: What becomes of them.
        padding: What they are filled up with under `Pad`.
        buffer_pool: Where memory comes from.

    Example:
        >>> plain_lists(pa.array([[1, 2], [3]]), Offsets(), None, None)
        {'': array([1, 2, 3]), '_offsets': array([0, 2, 3])}
    """
    found = _numbers(array)
    if found is None:
        return None
    flat, offsets = found
    if isinstance(ragged, Offsets):
        return {"": flat, "_offsets": offsets}
    if isinstance(ragged, AsObjects):
        return {"": cut(flat, offsets, None)}
    length = offsets[1:] - offsets[:-1]
    width = _width(length, ragged)
    return None if width is None else {"": dense(flat, length, width, padding, buffer_pool), "_length": length}


def _numbers(array: pa.Array) -> tuple[Values, Values] | None:
    """Return the numbers of all lists and where each list begins and the last one ends, both views; None for other lists."""
    kind = array.type
    edge = EDGES.get(kind.id)
    if edge is None or not len(array) or array.null_count:
        return None
    dtype, items = NUMBERS.get(kind.value_type.id), array.values
    if dtype is None or items.null_count:
        return None
    edges = np.frombuffer(array.buffers()[1], edge, len(array) + 1, array.offset * edge.itemsize)
    first, last = int(edges[0]), int(edges[-1])
    if first == last:  # there may be no memory
        return None
    flat = np.frombuffer(items.buffers()[1], dtype, last - first, (items.offset + first) * dtype.itemsize)
    flat.flags.writeable = False  # it is Arrow's, and may stay in memory for others
    return flat, edges.astype(np.int64) - first


def _width(length: Values, ragged: Ragged) -> int | None:
    """Return how long lists are made; None where they are not, or where one is too long, which is told by who refuses it."""
    if not isinstance(ragged, Pad):
        return None
    longest = int(length.max())
    width = longest if ragged.length is None else int(ragged.length)
    return width if longest <= width or ragged.truncate else None


def cut(items: Values, offsets: Values, missing: Marks) -> Values:
    """Return items as an object array of views of them, None where a list is missing."""
    edges = offsets.tolist()
    found = np.fromiter((items[start:stop] for start, stop in pairwise(edges)), object, len(edges) - 1)
    if missing is not None:
        found[missing] = None
    return found


def dense(items: Values, length: Values, width: int, padding: Any, buffer_pool: BufferPool | None) -> Values:
    """Return lists as rows of one width, cut or filled up at their end."""
    shape = (len(length), width, *items.shape[1:])
    if (length == width).all():
        return items.reshape(shape)
    if length.max() > width:
        place = np.arange(len(items)) - np.repeat(np.cumsum(length) - length, length)
        items = items[place < width]
    found = np.empty(shape, items.dtype) if buffer_pool is None else buffer_pool.empty(shape, items.dtype)
    found[...] = padding
    if len(items) < LONG * len(length):
        found[np.arange(width) < length[:, None]] = items
        return found
    start = 0
    for row, count in zip(found, np.minimum(length, width).tolist(), strict=True):
        row[:count] = items[start : start + count]
        start += count
    return found
