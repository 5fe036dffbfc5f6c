"""PNGs of one size and kind, one after the other: what was found out of one is not asked of the next."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct, error
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.codecs.image import pixels

__all__ = ["Alike", "read"]

BEGIN = 33
"""Bytes of a PNG that tell its size and its kind."""

KIND = slice(24, 29)
"""Of these, the ones that tell the bits of a number, the colours, and whether lines come in another order."""

PLAIN_KINDS = {
    bytes((8 * size, colours, 0, 0, 0)): (channels, size) for size in (1, 2) for colours, channels in ((0, 1), (2, 3), (6, 4))
}
"""Kinds of PNGs whose pixels are in memory what they are in the file, with the channels and the bytes of a number."""

CHUNK = Struct(">I4s").unpack_from
END = (0, b"IEND")


class Alike:
    """Decodes PNGs into the rows of an array, those that begin as one that was checked.

    It says of others, and of those that are damaged, only that it did not decode them.
    """

    def __init__(self, out: npt.NDArray[Any]) -> None:
        """Store where they go."""
        grey = out.shape[3:] == (1,)
        self._rows = out[..., 0] if grey else out
        self._shape = out.shape[1:3] if grey else out.shape[1:]
        self._begin = b""
        self._straight: Callable[..., Any] | None = None

    def learn(self, cell: memoryview) -> None:
        """Take the beginning of an image that was checked, and decoded into a row, as that of others."""
        self._begin = bytes(cell[:BEGIN])
        self._straight = _straight(cell, self._shape, self._rows.dtype)

    def decode(self, row: int, cell: memoryview) -> bool:
        """Return whether an image was one of these, and is in its row."""
        if cell[:BEGIN] != self._begin or not _is_plain(cell):
            return False
        if self._straight is not None:
            return _done(self._straight, cell, self._rows[row])
        found = pixels.read_ordered(cell, self._shape, self._rows.dtype)
        if found is None:
            return False
        self._rows[row] = found
        return True


def read(cell: memoryview, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any] | None:
    """Return an image of a shape that is decoded in the order in which we have it; None where another way must be found."""
    straight = _straight(cell, shape, dtype)
    if straight is not None and _is_plain(cell):
        out: npt.NDArray[Any] = np.empty(shape, dtype)
        if _done(straight, cell, out):
            return out
    return pixels.read_ordered(cell, shape, dtype)


def _straight(cell: memoryview, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Callable[..., Any] | None:
    """Return what decodes an image to where its pixels belong, if they are there what they are in the file."""
    wanted = (shape[2] if shape[2:] else 1, dtype.itemsize)
    return pixels.straight_png() if PLAIN_KINDS.get(bytes(cell[KIND])) == wanted else None


def _done(straight: Callable[..., Any], cell: memoryview, out: npt.NDArray[Any]) -> bool:
    """Return whether an image was decoded; what is wrong with one that was not is for others to find out."""
    try:
        straight(cell, out=out)
    except (RuntimeError, ValueError):
        return False
    return True


def _is_plain(cell: memoryview) -> bool:
    """Return whether there is nothing in a PNG but its header and pixels, in chunks that say how long they are."""
    at, end = BEGIN, len(cell) - 12
    try:
        while at < end:
            length, kind = CHUNK(cell, at)
            if kind != b"IDAT":
                return False
            at += 12 + length
        return at == end and CHUNK(cell, at) == END
    except error:
        return False
