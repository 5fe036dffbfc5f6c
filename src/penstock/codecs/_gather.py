"""Copies of many cells from Arrow buffers to the rows of an array."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock._blobs import Blobs
from penstock.model import IntArray

__all__ = ["SMALL", "are_sparse", "byte_rows", "copy_bytes", "first_bytes", "present_rows", "spaced_rows"]

Bytes = npt.NDArray[np.uint8]

SMALL = 4096
"""Bytes of a row up to which two copies with few calls are faster than one copy with many calls."""

MIN_GATHERED_ROWS = 96
"""Rows of one buffer from which a gather of NumPy is faster than one slice for each row."""


def present_rows(cells: Blobs) -> IntArray:
    """Return the numbers of the cells that are not null."""
    return np.arange(len(cells)) if cells.valid is None else np.flatnonzero(cells.valid)


def byte_rows(out: npt.NDArray[Any]) -> Bytes | None:
    """Return the memory of an array as rows of bytes; None if it is not contiguous."""
    if out.size == 0 or not out.flags.c_contiguous:
        return None
    return out.reshape(len(out), -1).view(np.uint8)


def are_sparse(cells: Blobs, rows: IntArray) -> bool:
    """Return whether there are few cells in each buffer."""
    return len(rows) <= MIN_GATHERED_ROWS * int(np.count_nonzero(np.bincount(cells.source[rows])))


def first_bytes(cells: Blobs, rows: IntArray, size: int) -> Bytes:
    """Return the first bytes of cells, one row for each cell."""
    if are_sparse(cells, rows):
        return np.frombuffer(b"".join(_parts(cells, rows, 0, size)), np.uint8).reshape(len(rows), size)
    out = np.empty((len(rows), size), np.uint8)
    _gather(cells, rows, 0, out, np.arange(len(rows)))
    return out


def copy_bytes(cells: Blobs, rows: IntArray, skip: int, out: Bytes) -> None:
    """Copy bytes of cells, from `skip` on, into the rows of `out` with the same numbers; a row sets how many."""
    size = out.shape[1]
    if size <= SMALL and not are_sparse(cells, rows):
        _gather(cells, rows, skip, out, rows)
        return
    # NumPy calls for each row cost more, and each waits for the interpreter's lock.
    whole = out.reshape(-1).data
    for at, part in zip((rows * size).tolist(), _parts(cells, rows, skip, size), strict=True):
        whole[at : at + size] = part


def _parts(cells: Blobs, rows: IntArray, skip: int, size: int) -> list[memoryview]:
    """Return views of the bytes of cells."""
    places = cells.start[rows] + skip
    numbers, starts, stops = cells.source[rows].tolist(), places.tolist(), (places + size).tolist()
    views = {number: memoryview(cells.buffers[number]) for number in set(numbers)}
    return [views[number][start:stop] for number, start, stop in zip(numbers, starts, stops, strict=True)]


def _gather(cells: Blobs, rows: IntArray, skip: int, out: Bytes, to: IntArray) -> None:
    """Copy bytes of cells into the rows `to` of an array, all cells of one buffer together."""
    size = out.shape[1]
    items = out.view(f"V{size}").reshape(-1)
    source, places = cells.source[rows], cells.start[rows] + skip
    order = np.argsort(source, kind="stable")
    cuts = [0, *(np.flatnonzero(np.diff(source[order])) + 1).tolist(), len(order)]
    for first, last in pairwise(cuts):
        group = order[first:last]
        buffer = cells.buffers[source[group[0]]]
        # An item at every byte of the buffer, so that an index is the offset of an item.
        at_offset = np.ndarray((len(buffer) - size + 1,), items.dtype, buffer, strides=(1,))
        items[_as_slice(to[group])] = at_offset[_as_slice(places[group])]


def _as_slice(numbers: IntArray) -> IntArray | slice:
    """Return ascending numbers of equal distance as a slice, which NumPy copies faster; other numbers as they are."""
    first, last, count = int(numbers[0]), int(numbers[-1]), len(numbers)
    step = (last - first) // max(count - 1, 1)
    # The cheap test of both ends rejects most other numbers.
    if step <= 0 or first + step * (count - 1) != last or (numbers[1:] - numbers[:-1] != step).any():
        return numbers
    return slice(first, last + 1, step)


def spaced_rows(cells: Blobs, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any] | None:
    """Return cells of one size at equal distances in one buffer as an array of its memory; None for other cells.

    Example:
        >>> import pyarrow as pa
        >>> spaced_rows(Blobs.of(pa.array([b"ab", b"cd"])), np.dtype(np.uint8), (2,)).tolist()
        [[97, 98], [99, 100]]
    """
    if len(cells.buffers) != 1 or not len(cells) or not (cells.valid is None or cells.valid.all()):
        return None
    buffer, places = cells.buffers[0], _as_slice(cells.start)
    if not isinstance(places, slice):
        return None
    step = places.step or dtype.itemsize
    if (buffer.ctypes.data + places.start) % dtype.alignment or step % dtype.alignment:
        return None
    row = np.ndarray(shape, dtype, buffer, places.start)
    return np.ndarray((len(cells), *shape), dtype, buffer, places.start, (step, *row.strides))
