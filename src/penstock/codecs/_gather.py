"""Bytes of many cells, copied from where Arrow keeps them to the rows of an array."""

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
"""Up to so many bytes a row, to copy twice with few calls is faster than to copy once with many."""

CROWD = 96
"""From so many rows of one buffer on, NumPy's gather is faster than a slice each."""


def present_rows(cells: Blobs) -> IntArray:
    """Return the numbers of the cells that are not null."""
    return np.arange(len(cells)) if cells.valid is None else np.flatnonzero(cells.valid)


def byte_rows(out: npt.NDArray[Any]) -> Bytes | None:
    """Return the memory of an array as a row of bytes for each of its own rows; None where they do not lie side by side."""
    if out.size == 0 or not out.flags.c_contiguous:
        return None
    return out.reshape(len(out), -1).view(np.uint8)


def are_sparse(cells: Blobs, rows: IntArray) -> bool:
    """Return whether cells lie in so many buffers that there are few in each."""
    return len(rows) <= CROWD * int(np.count_nonzero(np.bincount(cells.source[rows])))


def first_bytes(cells: Blobs, rows: IntArray, size: int) -> Bytes:
    """Return the first bytes of some cells, a row each."""
    if are_sparse(cells, rows):
        return np.frombuffer(b"".join(_parts(cells, rows, 0, size)), np.uint8).reshape(len(rows), size)
    out = np.empty((len(rows), size), np.uint8)
    _gather(cells, rows, 0, out, np.arange(len(rows)))
    return out


def copy_bytes(cells: Blobs, rows: IntArray, skip: int, out: Bytes) -> None:
    """Copy as many bytes of each of some cells as a row of `out` has, from `skip` on, into the rows of the same numbers."""
    size = out.shape[1]
    if size <= SMALL and not are_sparse(cells, rows):
        _gather(cells, rows, skip, out, rows)
        return
    # A call of NumPy for each would cost more, and would wait for the interpreter's lock each time.
    whole = out.reshape(-1).data
    for at, part in zip((rows * size).tolist(), _parts(cells, rows, skip, size), strict=True):
        whole[at : at + size] = part


def _parts(cells: Blobs, rows: IntArray, skip: int, size: int) -> list[memoryview]:
    """Return bytes of cells where they lie."""
    places = cells.start[rows] + skip
    numbers, starts, stops = cells.source[rows].tolist(), places.tolist(), (places + size).tolist()
    views = {number: memoryview(cells.buffers[number]) for number in set(numbers)}
    return [views[number][start:stop] for number, start, stop in zip(numbers, starts, stops, strict=True)]


def _gather(cells: Blobs, rows: IntArray, skip: int, out: Bytes, to: IntArray) -> None:
    """Copy bytes of cells into the rows `to` of an array, all that lie in one buffer at once."""
    size = out.shape[1]
    items = out.view(f"V{size}").reshape(-1)
    source, places = cells.source[rows], cells.start[rows] + skip
    order = np.argsort(source, kind="stable")
    cuts = [0, *(np.flatnonzero(np.diff(source[order])) + 1).tolist(), len(order)]
    for first, last in pairwise(cuts):
        some = order[first:last]
        buffer = cells.buffers[source[some[0]]]
        # An item begins at every byte, so that items are picked by where they begin, whatever lies between them.
        begun = np.ndarray((len(buffer) - size + 1,), items.dtype, buffer, strides=(1,))
        items[_spaced(to[some])] = begun[_spaced(places[some])]


def _spaced(numbers: IntArray) -> IntArray | slice:
    """Return growing numbers that are equally far apart as a slice, which NumPy copies without a step between."""
    first, last, count = int(numbers[0]), int(numbers[-1]), len(numbers)
    step = (last - first) // max(count - 1, 1)
    # The ends are compared before all, since numbers in any order seldom pass that.
    if step <= 0 or first + step * (count - 1) != last or (numbers[1:] - numbers[:-1] != step).any():
        return numbers
    return slice(first, last + 1, step)


def spaced_rows(cells: Blobs, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any] | None:
    """Return cells of one size that are equally far apart in one buffer as an array of its memory, a row each; None for others.

    Example:
        >>> import pyarrow as pa
        >>> spaced_rows(Blobs.of(pa.array([b"ab", b"cd"])), np.dtype(np.uint8), (2,)).tolist()
        [[97, 98], [99, 100]]
    """
    if len(cells.buffers) != 1 or not len(cells) or not (cells.valid is None or cells.valid.all()):
        return None
    buffer, places = cells.buffers[0], _spaced(cells.start)
    if not isinstance(places, slice):
        return None
    step = places.step or dtype.itemsize
    if (buffer.ctypes.data + places.start) % dtype.alignment or step % dtype.alignment:
        return None
    row = np.ndarray(shape, dtype, buffer, places.start)
    return np.ndarray((len(cells), *shape), dtype, buffer, places.start, (step, *row.strides))
