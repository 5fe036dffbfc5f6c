"""Large cells of bytes, found in plain data pages without decoding them.

The places of cells are remembered. Of cells in uncompressed pages of a local file, only the cells themselves are read then.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from struct import error as StructError  # noqa: N812 - a class, whatever its name
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from penstock._blobs import Blobs
from penstock._engine.parquet.page_file import joined
from penstock._engine.parquet.page_index import DATA, DATA_V2, ColumnChunk, PageHeader, PageTable, PeekedBytes, header_at
from penstock._engine.parquet.thrift import LENGTH, Leaf, ThriftError
from penstock._engine.runtime.memory import BufferPool
from penstock.model import BoolArray, IntArray

Data: TypeAlias = memoryview | PeekedBytes

BYTES, FIXED = 6, 7  # physical types
PLAIN, SIMPLE = 0, {0, 3, 4}  # plain values; levels in either of their encodings
COMPRESSIONS = {0: "", 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
LARGE = 1 << 10
"""Average bytes of a cell from which on a loop over cells is faster than to open a file with pyarrow."""

KINDS = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_fixed_size_binary,
)
DAMAGED = (ThriftError, StructError, IndexError, ValueError)
"""What parsing a page raises if it is not what the footer says."""

_SIZE = Struct("<I")


def are_plain(chunk: ColumnChunk, leaf: Leaf, kind: pa.DataType) -> bool:
    """Return whether cells of a column can be found here, except in pages with nulls.

    In a chunk with a dictionary, these are the cells of the pages that were written when the dictionary was full.
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
    """The compressed part of a page: its first byte, the byte after its last, and its size in memory; -1 if there is none."""

    begin: int
    end: int
    size: int


class PlainCells:
    """The cells of one chunk, and their places as far as they are known.

    A place is one in a page, or in the compressed part of a page after decompression.

    Attributes:
        odd: The numbers of pages in which no cell can be found: they have nulls, or are not what the footer says.
        nbytes: Bytes of all places in memory.
    """

    def __init__(self, chunk: ColumnChunk, leaf: Leaf, pages: PageTable) -> None:
        """Store the chunk; no place is known yet."""
        self._pages = pages
        self._width = leaf.element.get(LENGTH, 0) if chunk.physical == FIXED else 0
        self._optional = chunk.optional
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
        """Return where in the file the cells of some rows begin and end, in uncompressed pages; None if that is unknown.

        Of pages that were not parsed before, only what is not a cell is read.
        """
        pages, start = self._pages, self._start[rows]
        numbers, number = np.searchsorted(pages.first, rows, side="right") - 1, -1
        try:
            for number in dict.fromkeys(numbers[start < 0].tolist()):
                self._parse(number, PeekedBytes(read, int(pages.start[number]), int(pages.size[number])))
        except DAMAGED:
            self.odd.add(number)
            return None
        return self._start[rows] + pages.start[numbers], self._stop[rows] + pages.start[numbers]

    def cells(
        self, numbers: IntArray, page: Callable[[int], memoryview], rows: IntArray, buffer_pool: BufferPool
    ) -> Blobs | None:
        """Return the cells of some rows; None if they cannot be found."""
        parsed: dict[int, bytes] = {}
        number = -1
        try:
            for at, number in enumerate(numbers.tolist()):
                if number not in self._known:
                    image = self._parse(number, page(at))
                    if self._known[number].size >= 0:  # otherwise the image is the page, whose memory the next page takes
                        parsed[number] = self._copy(number, image, rows)
            if self._codec is not None:
                return self._copied(numbers, page, parsed, rows, buffer_pool)
            buffers = tuple(np.frombuffer(page(at), np.uint8) for at in range(len(numbers)))
        except (*DAMAGED, OSError, pa.ArrowException):
            self.odd.add(number)
            return None
        source = np.searchsorted(self._pages.first[numbers], rows, side="right") - 1
        return Blobs(buffers=buffers, source=source, start=self._start[rows], stop=self._stop[rows])

    def _copy(self, number: int, image: Data, rows: IntArray) -> bytes:
        """Return the cells of those rows that lie in a page."""
        low, high = np.searchsorted(rows, self._pages.first[number : number + 2])
        own = rows[low:high]
        return b"".join(
            [image[begin:end] for begin, end in zip(self._start[own].tolist(), self._stop[own].tolist(), strict=True)]
        )

    def _copied(
        self,
        numbers: IntArray,
        page: Callable[[int], memoryview],
        parsed: dict[int, bytes],
        rows: IntArray,
        buffer_pool: BufferPool,
    ) -> Blobs:
        """Return cells of compressed pages, copied from each page before the next is decompressed.

        `parsed` has the cells of the pages that were parsed just now.
        """
        start, stop = self._start[rows], self._stop[rows]
        ends = np.cumsum(stop - start)
        memory = buffer_pool.empty((int(ends[-1]),), np.dtype(np.uint8))
        view, done = memory.data, 0
        for at, number in enumerate(numbers.tolist()):
            cells = parsed.pop(number, None)
            if cells is None:
                cells = self._copy(number, self._unpacked(page(at), self._known[number]), rows)
            view[done : done + len(cells)] = cells
            done += len(cells)
        return Blobs(buffers=(memory,), source=np.zeros(len(rows), dtype=np.int64), start=ends - (stop - start), stop=ends)

    def _parse(self, number: int, page: Data) -> Data:
        """Find the cells of a page, and return the bytes that their places refer to."""
        first, last = int(self._pages.first[number]), int(self._pages.first[number + 1])
        header = header_at(page, 0)
        begin, end = header.length, header.length + header.packed
        if header.encoding != PLAIN or header.values != last - first or end > len(page):
            raise ValueError
        present, at = None, begin
        if header.kind == DATA_V2:  # its levels are not compressed
            if header.rows != header.values:
                raise ValueError
            at, present = cells_present(page, at, header, optional=self._optional)
        compressed = self._codec is not None and header.compressed
        packed = _Packed(at, end, header.unpacked - (at - begin) if compressed else -1)
        image = self._unpacked(page, packed)
        at, end = (0, len(image)) if compressed else (at, end)
        if header.kind == DATA:
            at, present = cells_present(image, at, header, optional=self._optional)
        if present is not None and not present.all():
            raise ValueError
        self._start[first:last], self._stop[first:last] = cell_edges(image, at, end, last - first, self._width)
        self._known[number] = packed
        return image

    def _unpacked(self, page: Data, packed: _Packed) -> Data:
        if packed.size < 0 or self._codec is None:
            return page
        return memoryview(self._codec.decompress(page[packed.begin : packed.end], packed.size)).cast("B")


def cells_present(data: Data, at: int, header: PageHeader, *, optional: bool) -> tuple[int, BoolArray | None]:
    """Return where the values of a page begin, and which cells are not null; None if none can be null."""
    if header.kind == DATA_V2 and header.flat:
        size = header.levels
    elif header.kind == DATA:
        size = _SIZE.unpack(data[at : at + 4])[0] if optional else 0
        at += 4 if optional else 0
    else:
        raise ValueError
    return at + size, _levels(data[at : at + size], header.values) if optional else None


def _levels(levels: memoryview | bytes, count: int) -> BoolArray:
    """Return levels of one bit, in runs or packed by eight, as Parquet stores them."""
    parts: list[BoolArray] = []
    at = done = 0
    while done < count:
        head = shift = 0
        while True:
            byte = levels[at]
            head, at, shift = head | (byte & 127) << shift, at + 1, shift + 7
            if byte < 128 or shift > 63:  # noqa: PLR2004 - the last byte of a number of seven bits each
                break
        size = head >> 1
        if head & 1:
            packed = np.frombuffer(levels[at : at + size], dtype=np.uint8)
            parts.append(np.unpackbits(packed, bitorder="little").astype(np.bool_))
            at += size
        else:
            parts.append(np.full(min(size, count - done), levels[at] == 1, dtype=np.bool_))
            at += 1
        if not len(parts[-1]):
            raise ValueError
        done += len(parts[-1])
    return parts[0][:count] if len(parts) == 1 else np.concatenate([np.zeros(0, dtype=np.bool_), *parts])[:count]


def cell_edges(data: Data, at: int, stop: int, count: int, width: int = 0) -> tuple[list[int], list[int]]:
    """Return where each of `count` values begins and ends; `width` is that of values of a fixed size."""
    starts, stops = [], []
    unpack = _SIZE.unpack
    for _ in range(count):
        begin = at if width else at + 4
        at = begin + (width or unpack(data[at:begin])[0])
        starts.append(begin)
        stops.append(at)
    if at != stop:
        raise ValueError
    return starts, stops


def as_arrow(cells: Blobs, kind: pa.DataType, buffer_pool: BufferPool) -> pa.Array:
    """Return cells without nulls as an Arrow array of bytes or text."""
    contiguous = len(cells.buffers) == 1 and bool((cells.start[1:] == cells.stop[:-1]).all())
    if contiguous:
        data = pa.py_buffer(cells.buffers[0][int(cells.start[0]) : int(cells.stop[-1])])
    else:
        data = joined([cell for _, cell in cells.present()], buffer_pool)
    if pa.types.is_fixed_size_binary(kind):
        return pa.Array.from_buffers(kind, len(cells), [None, data])
    large = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    offsets = np.concatenate([[0], np.cumsum(cells.stop - cells.start)])
    if not large and offsets[-1] >= 1 << 31:
        raise ValueError
    offsets = offsets.astype(np.int64 if large else np.int32)
    return pa.Array.from_buffers(kind, len(cells), [None, pa.py_buffer(offsets), data])
