"""Pages of column chunks: where they lie, which of them hold some rows, and their headers.

The page index of a file says where its pages lie. In a file without one, the page headers are read one after the other.
Everything is checked: pages must lie in their chunk, one after the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from penstock._engine.parquet.thrift import ThriftError, Wanted, parse, parse_start
from penstock.model import IntArray

Read: TypeAlias = Callable[[int, int], bytes]
"""Reads so many bytes from a place in a file; fewer at its end."""

DATA, DICTIONARY, DATA_V2 = 0, 2, 3  # types of pages
MAX_HEADER_BYTES = 16 << 10
"""Longer page headers are left to pyarrow."""

PEEK = 192
"""Bytes that hold a page header, the levels and the length of the first cell, nearly always."""

MAX_PAGES = 1 << 16
"""Pages of a chunk whose headers are read one after the other."""

_NUMBER = rb"([\x80-\xff]{0,9}[\x00-\x7f])"
_COMMON_HEADER = re.compile(
    # a data page; its sizes in memory and here; a checksum or none; values and encoding; encodings of levels; both ends
    rb"\x15\x00\x15" + _NUMBER + rb"\x15" + _NUMBER + rb"(?:\x15" + _NUMBER + rb"\x1c|\x2c)"
    rb"\x15" + _NUMBER + rb"\x15([\x00-\x7f])\x15[\x00-\x7f]\x15[\x00-\x7f]\x00\x00"
)
"""The header of most pages. A page may hold few cells, and parsing its header field by field takes longer than reading them."""

_V1: Wanted = {1: int, 2: int}
_V2: Wanted = {1: int, 3: int, 4: int, 5: int, 6: int, 7: bool}
_HEADER: dict[int, Wanted] = {1: int, 2: int, 3: int, 5: _V1, 7: {1: int}, 8: _V2}
_HEADER |= {1 << 14: int}  # no header has this field, so headers are parsed to their end

_LOCATION = (0x16, 0x15, 0x16, 0)  # before an offset, a size, a row, and the end of the three
_LOCATIONS: dict[int, Wanted] = {1: [{1: int, 2: int, 3: int}]}
_LIST, _STRUCT, _LONG = 0x19, 12, 15


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChunk:
    """What a footer says about one column of one row group.

    Attributes:
        start: Its first byte; that of the dictionary if there is one.
        values: Its values, including nulls and items of lists.
        rows: The rows of its row group.
        index: The first byte and the size of its page index; None without one.
        coded: The number of data pages that use the dictionary; -1 if the footer does not say.
        plain: The number of plain data pages, which writers put after those; -1 if the footer does not say.
    """

    start: int
    size: int
    values: int
    rows: int
    physical: int
    codec: int
    encodings: tuple[int, ...]
    optional: bool = False
    index: tuple[int, int] | None = None
    coded: int = -1
    plain: int = -1

    @property
    def stop(self) -> int:
        """The byte after its last."""
        return self.start + self.size


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PageTable:
    """The data pages of a chunk, in order.

    Attributes:
        start: The first byte of each page, with its header.
        size: The bytes of each page, with its header.
        first: The first row of each page in its row group, and at the end the number of all rows.
    """

    start: IntArray
    size: IntArray
    first: IntArray

    def __len__(self) -> int:
        """Return the number of pages."""
        return len(self.start)

    def holding(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Return the pages that hold some ascending rows, and the index of each row among the rows of these pages."""
        of_row = np.searchsorted(self.first, rows, side="right") - 1
        new = np.ones(len(rows), dtype=np.bool_)
        new[1:] = of_row[1:] != of_row[:-1]
        pages = of_row[new]
        sizes = self.first[pages + 1] - self.first[pages]
        before = np.cumsum(sizes) - sizes - self.first[pages]
        return pages, rows + before[np.cumsum(new) - 1]

    def spans(self, numbers: IntArray) -> list[tuple[int, int]]:
        """Return the first byte of some pages, and the byte after the last."""
        starts = self.start[numbers]
        return list(zip(starts.tolist(), (starts + self.size[numbers]).tolist(), strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return 3 * self.start.nbytes + 200


def parse_page_index(data: bytes, chunk: ColumnChunk) -> PageTable | None:
    """Return the pages of a chunk, from its page index; None if the index cannot be right.

    Example:
        >>> chunk = ColumnChunk(start=4, size=30, values=5, rows=5, physical=1, codec=0, encodings=())
        >>> parse_page_index(bytes.fromhex("192c" "160815141600" "00" "161c1528160600" "00"), chunk).first.tolist()
        [0, 3, 5]
    """
    try:
        locations = _locations(data)
    except ThriftError:
        return None
    return _page_table(locations[:, 0], locations[:, 1], locations[:, 2], chunk)


def _locations(data: bytes) -> IntArray:
    """Return the first byte, the size and the first row of each page of an index."""
    at, count = 2, data[1] >> 4 if len(data) > 1 else 0
    if count == _LONG:
        count, shift = 0, 0
        while at < len(data) and shift < 28:  # noqa: PLR2004 - more pages than that are not read
            byte = data[at]
            count, at, shift = count | (byte & 127) << shift, at + 1, shift + 7
            if byte < 128:  # noqa: PLR2004 - the last byte of a number
                break
    body = np.frombuffer(data, np.uint8, offset=min(at, len(data)))
    # The head of a field is a single byte too, so that all is numbers: seven for each page.
    ends = np.flatnonzero(body < 128)[: 7 * count]  # noqa: PLR2004 - the last byte of a number
    if data[:1] == bytes([_LIST]) and data[1] & 15 == _STRUCT and len(ends) == 7 * count > 0:
        begins = np.concatenate([[0], ends[:-1] + 1])
        lengths = ends - begins + 1
        numbers = np.zeros(len(ends), dtype=np.uint64)
        for place in range(min(int(lengths.max()), 10)):
            more = np.flatnonzero(lengths > place)
            numbers[more] |= (body[begins[more] + place] & np.uint64(127)) << np.uint64(7 * place)
        table = numbers.reshape(count, 7)
        if (table[:, ::2] == np.array(_LOCATION, dtype=np.uint64)).all():
            signed = table[:, 1::2]
            return ((signed >> np.uint64(1)) ^ (np.uint64(0) - (signed & np.uint64(1)))).astype(np.int64)
    locations = parse(data, _LOCATIONS).get(1, [])
    if not all(len(one) == 3 for one in locations):  # noqa: PLR2004 - an offset, a size and a row
        raise ThriftError("a page has no place")
    return np.array([[one[1], one[2], one[3]] for one in locations], dtype=np.int64).reshape(-1, 3)


def _page_table(start: IntArray, size: IntArray, first: IntArray, chunk: ColumnChunk) -> PageTable | None:
    """Return pages if they lie in their chunk one after the other, and hold its rows in order; otherwise None."""
    if not len(start) or (size <= 0).any() or (start < chunk.start).any() or (start >= chunk.stop).any():
        return None
    if (size > chunk.size).any() or (start[:-1] + size[:-1] > start[1:]).any() or start[-1] + size[-1] > chunk.stop:
        return None
    first = np.append(first, chunk.rows)
    rows = np.diff(first)
    if first[0] != 0 or (rows < 0).any() or not rows.any():
        return None
    filled = rows > 0  # writers leave pages without rows
    return PageTable(start=start[filled], size=size[filled], first=first[np.append(filled, True)])


class PageHeader(NamedTuple):
    """The header of a page.

    Attributes:
        length: The bytes of the header.
        unpacked: The bytes of the page in memory.
        packed: The bytes of the page in the file.
        values: Its values, including nulls and items of lists.
        rows: Its rows; -1 if the header does not say.
        levels: The bytes of the levels in a page of version 2, which are never compressed; -1 for others.
        flat: Whether no row has several values; only version 2 says so.
        compressed: Whether the values are compressed if the column is.
    """

    length: int
    kind: int
    unpacked: int
    packed: int
    values: int
    rows: int = -1
    encoding: int = -1
    levels: int = -1
    flat: bool = False
    compressed: bool = True


def page_header(data: bytes | memoryview) -> PageHeader:
    """Return the page header at the start of some bytes."""
    common = _COMMON_HEADER.match(data)
    if common is not None:
        unpacked, packed, _, values, encoding = common.groups()
        header = PageHeader(common.end(), DATA, _number(unpacked), _number(packed), _number(values), encoding=encoding[0] >> 1)
        sound = True
    else:
        fields, length = parse_start(data[:MAX_HEADER_BYTES], _HEADER)
        sizes = fields.get(1, -1), fields.get(2, -1), fields.get(3, -1)
        v1, v2 = fields.get(5, {}), fields.get(8, {})
        if sizes[0] == DATA_V2:
            levels, repeated = v2.get(5, 0), v2.get(6, 0)
            values, rows, encoding = v2.get(1, -1), v2.get(3, -1), v2.get(4, -1)
            header = PageHeader(length, *sizes, values, rows, encoding, levels + repeated, repeated == 0, v2.get(7, True))
            sound = levels >= 0 and repeated >= 0 and rows >= 0
        else:
            header = PageHeader(length, *sizes, (v1 or fields.get(7, {})).get(1, -1), encoding=v1.get(2, -1))
            sound = sizes[0] in (DATA, DICTIONARY)
    if not sound or min(header.unpacked, header.packed, header.values) < 0:
        raise ThriftError("it is not a page header")
    return header


def _number(stored: bytes) -> int:
    """Return a zigzag number of seven bits a byte."""
    value = 0
    for byte in reversed(stored):
        value = value << 7 | byte & 127
    return value >> 1 if value & 1 == 0 else -(value + 1 >> 1)


class PeekedBytes:
    """Bytes of a file of which small parts are read, mostly one after the other."""

    def __init__(self, read: Read, start: int, size: int) -> None:
        """Store where they lie; nothing is read yet."""
        self._read, self._start, self._size = read, start, size
        self._at, self._bytes = 0, b""

    def __len__(self) -> int:
        """Return their number."""
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        """Return some bytes."""
        start, stop = part.start or 0, min(part.stop, self._size)
        if not self._at <= start <= stop <= self._at + len(self._bytes):
            self._at, self._bytes = start, self._read(self._start + start, max(PEEK, stop - start))
        return self._bytes[start - self._at : stop - self._at]


def header_at(data: memoryview | PeekedBytes, at: int) -> PageHeader:
    """Return the page header at a place, reading few bytes where they are enough."""
    try:
        return page_header(data[at : at + PEEK])
    except ThriftError:
        return page_header(data[at : at + MAX_HEADER_BYTES])


def walk_pages(read: Read, chunk: ColumnChunk, *, flat: bool) -> PageTable | None:
    """Return the pages of a chunk, from their headers; None if the headers do not say enough."""
    data, at, row = PeekedBytes(read, chunk.start, chunk.size), 0, 0
    pages: list[tuple[int, int, int]] = []
    while at < chunk.size and len(pages) < MAX_PAGES:
        try:
            header = header_at(data, at)
        except ThriftError:
            return None
        size = header.length + header.packed
        if header.kind != DICTIONARY:
            rows = header.values if flat else header.rows
            if rows < 0:
                return None
            pages.append((chunk.start + at, size, row))
            row += rows
        at += size
    if at != chunk.size or row != chunk.rows or not pages:
        return None
    start, size_, first = np.array(pages, dtype=np.int64).T
    return _page_table(start, size_, first, chunk)


def coalesce(spans: Sequence[tuple[int, int]], gap: int, max_bytes: int) -> list[tuple[int, int, list[int]]]:
    """Return few requests that read many spans: the first byte, the byte after the last, and the spans in it.

    Example:
        >>> coalesce([(100, 110), (0, 10), (12, 20)], gap=4, max_bytes=1000)
        [(0, 20, [1, 2]), (100, 110, [0])]
    """
    requests: list[tuple[int, int, list[int]]] = []
    for number in sorted(range(len(spans)), key=spans.__getitem__):
        start, stop = spans[number]
        if requests and start - requests[-1][1] <= gap and max(stop, requests[-1][1]) - requests[-1][0] <= max_bytes:
            begin, end, inside = requests[-1]
            inside.append(number)
            requests[-1] = (begin, max(stop, end), inside)
        else:
            requests.append((start, stop, [number]))
    return requests
