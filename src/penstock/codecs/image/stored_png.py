"""PNGs that hold their pixels as they are, which is what noise is written as: no filter and no code makes it smaller.

OpenCV takes ten times as long to find that out, and twice as long to read what it then wrote. All that is not pixels is the
same in all such images of one size and kind, so that many are read at once.
"""

from __future__ import annotations

import sys
import zlib
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock._blobs import Blobs
from penstock.codecs._gather import byte_rows, copy_bytes, present_rows
from penstock.model import IntArray

__all__ = ["decode_into", "fits", "is_noise", "read", "write"]

Pixels = npt.NDArray[Any]

SAMPLE = 8192
"""Bytes of an image that are looked at, and the fewest that it must have."""

MOST_UNEVEN = 1.07
"""How much more often than by pure chance two bytes may be the same: their code would be shorter by one in a hundred."""

LEAST_LINE = 96
"""Bytes that a line must have: before each stands one more, of which a code would leave little."""

MOST_STORED = 0xFFFF
"""Bytes that zlib stores under one head."""

COLOURS = {1: 0, 3: 2, 4: 6}
MAGIC = b"\x89PNG\r\n\x1a\n"
END = b"\0\0\0\0IEND\xaeB`\x82"
HEADER = Struct(">IIBBBBB").pack
NUMBER = Struct(">I").pack
TOLD = Struct(">I").unpack_from
HEAD = Struct("<BHH").pack
CHECKED_FROM = 37
"""Where the bytes begin that the last checksum is of: the name of the chunk of pixels."""


def fits(pixels: Pixels) -> bool:
    """Return whether an image can be written so: whole lines are stored under one head."""
    return bool(pixels[0].nbytes < MOST_STORED)


def is_noise(pixels: Pixels) -> bool:
    """Return whether writing the differences of neighbours in fewer bits, which is what OpenCV does, would save nothing."""
    if pixels.nbytes < SAMPLE or pixels[0].nbytes < LEAST_LINE:
        return False
    some = pixels[:: max(1, pixels.nbytes // SAMPLE)]
    apart = np.ascontiguousarray(some[:, 1:] - some[:, :-1]).reshape(-1).view(np.uint8)
    if apart.size < SAMPLE // 2:
        return False
    counts = np.bincount(apart, minlength=256)
    pairs = apart.size * (apart.size - 1)
    return int(counts @ counts) - apart.size <= MOST_UNEVEN * pairs / 256


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where everything is in the images of one size and kind.

    Attributes:
        begin: What comes before the pixels.
        line: Bytes of a line of pixels, with the one before it that says that it is not filtered.
        heads: Where the lines of a block are told from the next, and by which bytes: the lines of each lie side by side.
        blocks: Where the lines of each block begin, and where they end.
        size: Bytes of an image.
    """

    begin: bytes
    line: int
    heads: tuple[tuple[int, bytes], ...]
    blocks: tuple[tuple[int, int], ...]
    size: int

    def lines(self) -> IntArray:
        """Return where each line of pixels begins."""
        return np.concatenate([np.arange(start, stop, self.line) for start, stop in self.blocks]) + 1


@lru_cache(256)
def _layout(shape: tuple[int, ...], itemsize: int) -> _Layout:
    """Return how images of a shape are stored."""
    height, width, channels = (*shape, 1)[:3]  # grey may have no third
    line = 1 + width * channels * itemsize
    header = b"IHDR" + HEADER(width, height, 8 * itemsize, COLOURS[channels], 0, 0, 0)
    at = len(MAGIC) + 4 + len(header) + 4 + 8 + 2
    heads, blocks = [], []
    for first in range(0, height, MOST_STORED // line):
        count = min(MOST_STORED // line, height - first)
        heads.append((at, HEAD(first + count == height, count * line, 0xFFFF ^ count * line)))
        blocks.append((at + 5, at + 5 + count * line))
        at += 5 + count * line
    stream = at + 4 - (len(MAGIC) + 4 + len(header) + 4 + 8)
    begin = MAGIC + NUMBER(13) + header + NUMBER(zlib.crc32(header)) + NUMBER(stream) + b"IDAT\x78\x01"
    return _Layout(begin, line, tuple(heads), tuple(blocks), at + 8 + len(END))


def write(pixels: Pixels) -> bytes:
    """Return a PNG of pixels, grey or in the order RGB or RGBA, as they are."""
    layout = _layout(pixels.shape, pixels.itemsize)
    ordered = pixels.byteswap() if pixels.itemsize > 1 and sys.byteorder == "little" else pixels
    lines = np.zeros((len(pixels), layout.line), np.uint8)
    lines[:, 1:] = ordered.reshape(len(pixels), -1).view(np.uint8)
    flat, done = lines.reshape(-1).data, 0
    parts: list[bytes | memoryview] = [layout.begin]
    for (_, head), (start, stop) in zip(layout.heads, layout.blocks, strict=True):
        parts += [head, flat[done : done + stop - start]]
        done += stop - start
    parts.append(NUMBER(zlib.adler32(flat)))
    check = 0
    for part in (b"IDAT\x78\x01", *parts[1:]):
        check = zlib.crc32(part, check)
    return b"".join((*parts, NUMBER(check), END))


def decode_into(cells: Blobs, out: Pixels) -> IntArray:
    """Decode the images that `write` wrote into the rows of an array, and return which other cells there are.

    Those that are damaged are among them: who reads them says what is wrong.
    """
    rows, whole = present_rows(cells), byte_rows(out)
    if whole is None or not fits(out[0]) or out[0].nbytes > cells.max_cell_bytes:
        return rows
    layout = _layout(out.shape[1:], out.itemsize)
    sizes = (cells.stop - cells.start)[rows].tolist()
    stored = [size == layout.size and _is_whole(cells[row], layout) for row, size in zip(rows.tolist(), sizes, strict=True)]
    found, left = rows[stored], rows[np.logical_not(stored)]
    if len(found):
        # A line of pixels is a cell of bytes by itself.
        places, size = layout.lines(), layout.line - 1
        start = (cells.start[:, np.newaxis] + places).reshape(-1)
        lines = Blobs(buffers=cells.buffers, source=cells.source.repeat(len(places)), start=start, stop=start + size)
        numbers = (found[:, np.newaxis] * len(places) + np.arange(len(places))).reshape(-1)
        copy_bytes(lines, numbers, 0, whole.reshape(-1, size))
        _turn_bytes(out, found)
    return left


def read(cell: memoryview, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Pixels | None:
    """Return the pixels of an image that `write` wrote; None where it is another."""
    if len(cell) <= prod(shape) * dtype.itemsize or prod(shape[1:]) * dtype.itemsize >= MOST_STORED:
        return None
    layout = _layout(shape, dtype.itemsize)
    if len(cell) != layout.size or not _is_whole(cell, layout):
        return None
    out: Pixels = np.empty(shape, dtype)
    whole, stored, done = out.reshape(len(out), -1).view(np.uint8), np.frombuffer(cell, np.uint8), 0
    for start, stop in layout.blocks:
        lines = stored[start:stop].reshape(-1, layout.line)
        whole[done : done + len(lines)] = lines[:, 1:]
        done += len(lines)
    _turn_bytes(out, slice(None))
    return out


def _turn_bytes(out: Pixels, rows: IntArray | slice) -> None:
    """Bring numbers of PNG, whose first byte counts most, into the order that this machine has."""
    if out.itemsize > 1 and sys.byteorder == "little":
        out[rows] = out[rows].byteswap()


def _is_whole(cell: memoryview, layout: _Layout) -> bool:
    """Return whether a cell is an image that `write` wrote, and its pixels are those that were written."""
    if cell[: len(layout.begin)] != layout.begin:
        return False
    for (at, head), (start, stop) in zip(layout.heads, layout.blocks, strict=True):
        if cell[at:start] != head or any(bytes(cell[start : stop : layout.line])):
            return False
    # One call for all of it, during which other threads can have the interpreter's lock.
    told: int = TOLD(cell, len(cell) - len(END) - 4)[0]
    return zlib.crc32(cell[CHECKED_FROM : -len(END) - 4]) == told
