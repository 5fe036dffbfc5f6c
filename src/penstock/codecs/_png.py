"""PNGs of one size and kind, one after the other: what was found out of one is not asked of the next."""

from __future__ import annotations

from struct import Struct, error
from typing import Any

import numpy.typing as npt

from penstock.codecs import _image_pixels as pixels

__all__ = ["Alike"]

BEGIN = 33
"""Bytes of a PNG that tell its size and its kind."""

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

    def learn(self, cell: memoryview) -> None:
        """Take the beginning of an image that was checked, and decoded into a row, as that of others."""
        self._begin = bytes(cell[:BEGIN])

    def decode(self, row: int, cell: memoryview) -> bool:
        """Return whether an image was one of these, and is in its row."""
        if cell[:BEGIN] != self._begin or not _is_plain(cell):
            return False
        found = pixels.read_ordered(cell, self._shape, self._rows.dtype)
        if found is None:
            return False
        self._rows[row] = found
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
