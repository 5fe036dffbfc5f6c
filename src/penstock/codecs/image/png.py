"""Fast decoding of PNGs: straight into the output array, without parsing the header of each image of a batch."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct, error
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.codecs.image import pixels

__all__ = ["BatchDecoder", "read"]

HEADER_BYTES = 33
"""The signature and the IHDR chunk of a PNG, which hold its size and its pixel format."""

PIXEL_FORMAT = slice(24, 29)
"""The bytes of IHDR with the bit depth, the colour type and the interlacing."""

PLAIN_FORMATS = {
    bytes((8 * size, colours, 0, 0, 0)): (channels, size) for size in (1, 2) for colours, channels in ((0, 1), (2, 3), (6, 4))
}
"""Pixel formats that are the same in the file and in memory, with the channels and the bytes of a value."""

CHUNK = Struct(">I4s").unpack_from
END = (0, b"IEND")


class BatchDecoder:
    """Decodes those PNGs of a batch whose header equals one that was checked before."""

    def __init__(self, out: npt.NDArray[Any]) -> None:
        """Store the output array, which has one row for each image."""
        grey = out.shape[3:] == (1,)
        self._rows = out[..., 0] if grey else out
        self._shape = out.shape[1:3] if grey else out.shape[1:]
        self._header = b""
        self._decode: Callable[..., Any] | None = None

    def accept(self, cell: memoryview) -> None:
        """Accept the header of an image that was checked and decoded."""
        self._header = bytes(cell[:HEADER_BYTES])
        self._decode = _direct_decoder(cell, self._shape, self._rows.dtype)

    def decode(self, row: int, cell: memoryview) -> bool:
        """Decode an image into its row, and return whether that was possible; the caller finds the reason if not."""
        if cell[:HEADER_BYTES] != self._header or not _is_plain(cell):
            return False
        if self._decode is not None:
            return _decoded_into(self._decode, cell, self._rows[row])
        image = pixels.read_ordered(cell, self._shape, self._rows.dtype)
        if image is None:
            return False
        self._rows[row] = image
        return True


def read(cell: memoryview, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any] | None:
    """Return an image of a shape, or None if it has to be decoded and converted by OpenCV."""
    decode = _direct_decoder(cell, shape, dtype)
    if decode is not None and _is_plain(cell):
        out: npt.NDArray[Any] = np.empty(shape, dtype)
        if _decoded_into(decode, cell, out):
            return out
    return pixels.read_ordered(cell, shape, dtype)


def _direct_decoder(cell: memoryview, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Callable[..., Any] | None:
    """Return the function that decodes into an array, if the pixel format is the same in the file and in memory."""
    wanted = (shape[2] if shape[2:] else 1, dtype.itemsize)
    return pixels.png_decoder() if PLAIN_FORMATS.get(bytes(cell[PIXEL_FORMAT])) == wanted else None


def _decoded_into(decode: Callable[..., Any], cell: memoryview, out: npt.NDArray[Any]) -> bool:
    """Decode an image into an array, and return whether it succeeded."""
    try:
        decode(cell, out=out)
    except (RuntimeError, ValueError):
        return False
    return True


def _is_plain(cell: memoryview) -> bool:
    """Return whether a PNG has only IHDR, IDAT and IEND chunks, each with a valid length."""
    at, end = HEADER_BYTES, len(cell) - 12
    try:
        while at < end:
            length, kind = CHUNK(cell, at)
            if kind != b"IDAT":
                return False
            at += 12 + length
        return at == end and CHUNK(cell, at) == END
    except error:
        return False
