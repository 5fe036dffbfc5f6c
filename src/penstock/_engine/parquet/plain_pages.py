"""Cells of single pages, found in the page's own bytes: large ones, that nothing but compression stands before.

Where they lie is remembered. Of cells that are not compressed and lie on this machine nothing else is then read.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from struct import error as StructError  # noqa: N812 - a class, whatever its name
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from penstock._blobs import Blobs
from penstock._engine.parquet.page_file import joined
from penstock._engine.parquet.page_index import DATA, HEADER_MOST, PEEK, ColumnChunk, Header, PageTable, page_header
from penstock._engine.parquet.thrift import LENGTH, REPETITION, Leaf, ThriftError
from penstock._engine.runtime.memory import BufferPool
from penstock.model import IntArray

__all__ = ["PlainCells", "are_plain", "as_arrow"]

Data: TypeAlias = bytes | memoryview

BYTES, FIXED = 6, 7  # physical types
PLAIN, SIMPLE = 0, {0, 3, 4}  # plain values; levels in either of their encodings
OPTIONAL = 1
COMPRESSIONS = {0: "", 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
LARGE = 1 << 10
"""Bytes of a cell, on average, from which on a loop over cells is faster than to have pyarrow open a file."""

KINDS = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_fixed_size_binary,
)
_SIZE = Struct("<I")


def are_plain(chunk: ColumnChunk, leaf: Leaf, kind: pa.DataType) -> bool:
    """Return whether cells of a column can be found here, unless there are nulls or other surprises among them.

    If it began with a dictionary, these are the cells of pages that were written when the dictionary was full.
    """
    return (
        any(test(kind) for test in KINDS)
        and chunk.physical in (BYTES, FIXED)
        and len(leaf.path) == 1
        and not leaf.repeated
        and (set(chunk.encodings) <= SIMPLE or chunk.plain > 0)
        and chunk.codec in COMPRESSIONS
        and chunk.rows == chunk.values <= chunk.size // LARGE
    )


class _Packed(NamedTuple):
    """The part of a page that is compressed: where it begins and ends, and its bytes in memory; -1 where nothing is."""

    begin: int
    end: int
    size: int


class PlainCells:
    """The cells of one chunk, and where they lie, as far as that has been found out.

    Places are those in a page, or in what was compressed of it once that is unpacked.

    Attributes:
        odd: Pages in which no cell can be found, by number: they hold nulls, or are not what the footer says.
        nbytes: What all places take in memory.
    """

    def __init__(self, chunk: ColumnChunk, leaf: Leaf, pages: PageTable) -> None:
        """Begin without knowing where any cell lies."""
        self._pages = pages
        self._width = leaf.element.get(LENGTH, 0) if chunk.physical == FIXED else 0
        self._optional = leaf.element.get(REPETITION, 0) == OPTIONAL
        self._codec = pa.Codec(COMPRESSIONS[chunk.codec]) if chunk.codec else None
        self._start = np.full(chunk.rows, -1, dtype=np.int64)
        self._stop = np.full(chunk.rows, -1, dtype=np.int64)
        self._known: dict[int, _Packed] = {}
        self.odd: set[int] = set()
        self.nbytes = 2 * self._start.nbytes + 300 * len(pages)

    @property
    def compressed(self) -> bool:
        """Whether pages are compressed."""
        return self._codec is not None

    def located(self, rows: IntArray, read: Callable[[int, int], bytes]) -> tuple[IntArray, IntArray] | None:
        """Return where in the file the cells of some rows begin and end; None where that cannot be told.

        Pages may not be compressed. Of those that were not looked at before, what stands before cells is read.
        """
        pages, start = self._pages, self._start[rows]
        numbers, number = np.searchsorted(pages.first, rows, side="right") - 1, -1
        try:
            for number in dict.fromkeys(numbers[start < 0].tolist()):
                at = int(pages.start[number])
                self._image(number, _Ahead(read, at, int(pages.size[number])))
        except (ThriftError, StructError, IndexError, ValueError):
            self.odd.add(number)
            return None
        return self._start[rows] + pages.start[numbers], self._stop[rows] + pages.start[numbers]

    def cells(
        self, numbers: IntArray, page: Callable[[int], memoryview], rows: IntArray, buffer_pool: BufferPool
    ) -> Blobs | None:
        """Return the cells of some rows; None where they cannot be told.

        Args:
            numbers: The pages that hold the rows.
            page: What gives the bytes of one of these pages, by its place among them; they need not outlive the next.
            rows: The numbers of the rows in the row group, in ascending order.
            buffer_pool: Where memory comes from.
        """
        fresh: dict[int, bytes] = {}
        number = -1
        try:
            for number, at in zip(numbers.tolist(), range(len(numbers)), strict=True):
                if number not in self._known:
                    image = self._image(number, page(at))
                    if self._known[number].size >= 0:  # else it is the page itself, whose memory the next one takes
                        fresh[number] = self._picked(number, image, rows)
            if self._codec is not None:
                return self._copied(numbers, page, fresh, rows, buffer_pool)
            buffers = tuple(np.frombuffer(page(at), np.uint8) for at in range(len(numbers)))
        except (ThriftError, StructError, IndexError, ValueError, OSError, pa.ArrowException):
            self.odd.add(number)
            return None
        source = np.searchsorted(self._pages.first[numbers], rows, side="right") - 1
        return Blobs(buffers=buffers, source=source, start=self._start[rows], stop=self._stop[rows])

    def _picked(self, number: int, image: Any, rows: IntArray) -> bytes:
        """Return the cells of those rows that lie in a page, so that all of it need not stay in memory."""
        low, high = np.searchsorted(rows, self._pages.first[number : number + 2])
        some = rows[low:high]
        return b"".join(
            [image[begin:end] for begin, end in zip(self._start[some].tolist(), self._stop[some].tolist(), strict=True)]
        )

    def _copied(
        self,
        numbers: IntArray,
        page: Callable[[int], memoryview],
        fresh: dict[int, bytes],
        rows: IntArray,
        buffer_pool: BufferPool,
    ) -> Blobs:
        """Return cells of compressed pages, copied out of each before the next is unpacked: so all is done in near memory.

        Those of pages that were looked at for the first time are copied already.
        """
        start, stop = self._start[rows], self._stop[rows]
        ends = np.cumsum(stop - start)
        room = buffer_pool.empty((int(ends[-1]),), np.dtype(np.uint8))
        view, done = room.data, 0
        for at, number in enumerate(numbers.tolist()):
            cells = fresh.pop(number, None)
            if cells is None:
                cells = self._picked(number, self._unpacked(page(at), self._known[number]), rows)
            view[done : done + len(cells)] = cells
            done += len(cells)
        return Blobs(buffers=(room,), source=np.zeros(len(rows), dtype=np.int64), start=ends - (stop - start), stop=ends)

    def _image(self, number: int, page: Any) -> Any:
        """Return what places in a page are places of, having noted where its cells lie."""
        known = self._known.get(number)
        if known is not None:
            return self._unpacked(page, known)
        first, last = int(self._pages.first[number]), int(self._pages.first[number + 1])
        header = _header(page)
        begin, end = header.length, header.length + header.packed
        if header.encoding != PLAIN or header.values != last - first or end > len(page):
            raise ValueError
        if header.kind == DATA:
            packed = _Packed(begin, end, header.unpacked if self._codec is not None else -1)
        elif header.flat and header.rows == header.values:
            levels, begin = page[begin : begin + header.levels], begin + header.levels
            packed = _Packed(
                begin, end, header.unpacked - header.levels if self._codec is not None and header.compressed else -1
            )
        else:
            raise ValueError
        image, at = self._unpacked(page, packed), begin if packed.size < 0 else 0
        if header.kind == DATA and self._optional:
            at, levels = at + 4, _SIZE.unpack(image[at : at + 4])[0]
            at, levels = at + levels, image[at : at + levels]
        if self._optional and not _all_there(levels, last - first):
            raise ValueError
        self._start[first:last], self._stop[first:last] = _edges(image, at, last - first, self._width)
        self._known[number] = packed
        return image

    def _unpacked(self, page: Any, packed: _Packed) -> Any:
        if packed.size < 0 or self._codec is None:
            return page
        return memoryview(self._codec.decompress(page[packed.begin : packed.end], packed.size)).cast("B")


class _Ahead:
    """The bytes of a page in a file, of which only small parts are looked at, one after the other."""

    def __init__(self, read: Callable[[int, int], bytes], start: int, size: int) -> None:
        self._read, self._start, self._size = read, start, size
        self._at, self._bytes = 0, b""

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        start, stop = part.start or 0, min(part.stop, self._size)
        if not self._at <= start <= stop <= self._at + len(self._bytes):
            self._at, self._bytes = start, self._read(self._start + start, max(PEEK, stop - start))
        return self._bytes[start - self._at : stop - self._at]


def _header(page: Any) -> Header:
    try:
        return page_header(page[:PEEK])
    except ThriftError:
        return page_header(page[:HEADER_MOST])


def _all_there(levels: Data, count: int) -> bool:
    """Return whether levels of one bit, in runs or packed by eight, say that there is no null."""
    at = have = 0
    while have < count:
        head = shift = 0
        while True:
            byte = levels[at]
            head, at, shift = head | (byte & 127) << shift, at + 1, shift + 7
            if byte < 128 or shift > 63:  # noqa: PLR2004 - the last byte of a number of seven bits each
                break
        size = head >> 1
        if not size:
            return False
        if head & 1:
            ones = (1 << min(8 * size, count - have)) - 1
            if int.from_bytes(levels[at : at + size], "little") & ones != ones:
                return False
            at, have = at + size, have + 8 * size
        elif levels[at] == 1:
            at, have = at + 1, have + size
        else:
            return False
    return True


def _edges(image: Any, at: int, count: int, width: int) -> tuple[list[int], list[int]]:
    """Return where each cell of a page begins and ends."""
    start, stop = [], []
    for _ in range(count):
        begin = at if width else at + 4
        at = begin + (width or _SIZE.unpack(image[at:begin])[0])
        start.append(begin)
        stop.append(at)
    if at > len(image):
        raise ValueError
    return start, stop


def as_arrow(cells: Blobs, kind: pa.DataType, buffer_pool: BufferPool) -> pa.Array:
    """Return cells, of which none is null, as an Arrow array of bytes or text.

    Raises:
        ValueError: If they are too many bytes for its type.
    """
    together = len(cells.buffers) == 1 and bool((cells.start[1:] == cells.stop[:-1]).all())
    if together:
        data = pa.py_buffer(cells.buffers[0][int(cells.start[0]) : int(cells.stop[-1])])
    else:
        data = joined([cell for _, cell in cells.present()], buffer_pool)
    if pa.types.is_fixed_size_binary(kind):
        return pa.Array.from_buffers(kind, len(cells), [None, data])
    wide = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    offsets = np.concatenate([[0], np.cumsum(cells.stop - cells.start)])
    if not wide and offsets[-1] >= 1 << 31:
        raise ValueError
    offsets = offsets.astype(np.int64 if wide else np.int32)
    return pa.Array.from_buffers(kind, len(cells), [None, pa.py_buffer(offsets), data])
