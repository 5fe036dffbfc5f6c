"""Arrays and blobs laid side by side, in as little fresh memory as can be: that costs more than the copy."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._engine.lease import Slabs

__all__ = ["Slab", "pieces"]

ALIGNMENT = 64
LARGE = 16 << 10
"""From how many bytes on it takes longer to copy a blob than to make an array of it."""

MOST_BYTES = 2**31 - 1
"""What offsets of 32 bits can tell."""


class Slab:
    """A piece of memory that arrays are copied into, one after the other; it is free again when none of them is left.

    Example:
        >>> Slab(Slabs(most=1 << 20), 1000).copy(np.arange(3))
        array([0, 1, 2])
    """

    def __init__(self, slabs: Slabs, nbytes: int) -> None:
        """Borrow memory."""
        self._memory = slabs.lend((nbytes,), np.dtype(np.uint8))
        self._used = 0

    def copy(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return an array of the same values that lies here, or elsewhere if there is no room."""
        start, stop = self._used, self._used + array.nbytes
        if stop > len(self._memory) or array.dtype.hasobject or not array.nbytes:
            return array.copy()
        self._used = -(-stop // ALIGNMENT) * ALIGNMENT
        here = self._memory[start:stop].view(array.dtype).reshape(array.shape)
        here[...] = array
        return here


def pieces(blobs: Sequence[bytes | None]) -> pa.ChunkedArray:
    """Return blobs as an Arrow column: large ones where they lie, a piece each, and small ones between them copied together.

    Example:
        >>> pieces([b"one", None, bytes(LARGE), b"three"]).num_chunks
        3
    """
    if not all(blob is None or isinstance(blob, bytes) for blob in blobs):
        blobs = [None if blob is None else bytes(memoryview(blob)) for blob in blobs]
    found: list[pa.Array] = []
    small: list[bytes | None] = []
    for blob in blobs:
        if blob is None or len(blob) < LARGE:
            small.append(blob)
            continue
        if small:
            found.append(_joined(small))
            small = []
        found.append(_array(1, None, struct.pack("<ii", 0, _checked(len(blob))), blob))
    if small:
        found.append(_joined(small))
    return pa.chunked_array(found, type=pa.binary())


def _joined(blobs: Sequence[bytes | None]) -> pa.Array:
    """Return blobs as one array, copied together."""
    present = [blob for blob in blobs if blob is not None]
    offsets = np.cumsum([0, *(0 if blob is None else len(blob) for blob in blobs)])
    _checked(int(offsets[-1]))
    marks = None
    if len(present) < len(blobs):
        marks = pa.py_buffer(np.packbits([blob is not None for blob in blobs], bitorder="little"))
    return _array(len(blobs), marks, offsets.astype(np.int32), b"".join(present))


def _array(rows: int, marks: pa.Buffer | None, offsets: Any, data: bytes) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(), rows, [marks, pa.py_buffer(offsets), pa.py_buffer(data)])


def _checked(nbytes: int) -> int:
    if nbytes > MOST_BYTES:
        msg = f"{nbytes} bytes are more than Arrow holds in one array, which is {MOST_BYTES}"
        raise ValueError(msg)
    return nbytes
