"""Pages of column chunks: where they lie, which of them hold some rows, and what stands at their beginning.

Where they lie is told by a file's page index. A file without one tells it too, if each page's header is looked at in turn.
Nothing that is told is believed: what does not lie in its chunk, one page after the other, is as good as no index.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from penstock._engine.parquet.thrift import ThriftError, Wanted, parse, parse_start
from penstock.model import IntArray

__all__ = ["ColumnChunk", "Header", "PageTable", "indexed", "page_header", "runs", "walked"]

Read: TypeAlias = Callable[[int, int], bytes]
"""What reads so many bytes from a place in a file on; fewer at its end."""

DATA, DICTIONARY, DATA_V2 = 0, 2, 3
HEADER_MOST = 16 << 10
"""Bytes of a page's header; one that needs more is left to pyarrow."""

PEEK = 192
"""Bytes that hold most headers."""

PAGES_MOST = 1 << 16
"""Pages of a chunk that are walked over."""

_NUMBER = rb"([\x80-\xff]{0,4}[\x00-\x7f])"
_USUAL = re.compile(
    # a data page; its sizes in memory and here; a checksum or none; values and encoding; encodings of levels; both ends
    rb"\x15\x00\x15" + _NUMBER + rb"\x15" + _NUMBER + rb"(?:\x15" + _NUMBER + rb"\x1c|\x2c)"
    rb"\x15" + _NUMBER + rb"\x15([\x00-\x7f])\x15[\x00-\x7f]\x15[\x00-\x7f]\x00\x00"
)
_V1: Wanted = {1: int, 2: int}
_V2: Wanted = {1: int, 3: int, 4: int, 5: int, 6: int, 7: bool}
_HEADER: dict[int, Wanted] = {1: int, 2: int, 3: int, 5: _V1, 7: {1: int}, 8: _V2}
_HEADER |= {1 << 14: int}  # which no header has, so that it is read to its end

_LOCATION = (0x16, 0x15, 0x16, 0)  # before an offset, a size, a row, and the end of the three
_LOCATIONS: dict[int, Wanted] = {1: [{1: int, 2: int, 3: int}]}
_LIST, _STRUCT, _LONG = 0x19, 12, 15


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChunk:
    """What a footer says of one column of one row group.

    Attributes:
        start: Its first byte, of a dictionary if there is one.
        size: Its bytes.
        values: Its values, nulls and items of lists among them.
        rows: The rows of its row group.
        physical: The Parquet type.
        codec: The number of its compression.
        encodings: The numbers of its encodings.
        index: Where its page index lies, and how many bytes that has; None where it has none.
        coded: Data pages whose values are numbers of a dictionary; -1 where the footer does not say.
        plain: Data pages whose values are plain; -1 where the footer does not say. Writers put them after the others.
    """

    start: int
    size: int
    values: int
    rows: int
    physical: int
    codec: int
    encodings: tuple[int, ...]
    index: tuple[int, int] | None = None
    coded: int = -1
    plain: int = -1

    @property
    def stop(self) -> int:
        """Where it ends."""
        return self.start + self.size


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PageTable:
    """The data pages of a chunk, in their order.

    Attributes:
        start: The first byte of each, which is one of its header.
        size: The bytes of each, its header among them.
        first: The number in the row group of the first row of each, and at the end the number of all rows.
    """

    start: IntArray
    size: IntArray
    first: IntArray

    def __len__(self) -> int:
        """Return the number of pages."""
        return len(self.start)

    def holding(self, rows: IntArray) -> tuple[IntArray, IntArray]:
        """Return the pages that hold some ascending rows, and where among the rows of these pages each of them stands."""
        of_row = np.searchsorted(self.first, rows, side="right") - 1
        new = np.ones(len(rows), dtype=np.bool_)
        new[1:] = of_row[1:] != of_row[:-1]
        pages = of_row[new]
        sizes = self.first[pages + 1] - self.first[pages]
        before = np.cumsum(sizes) - sizes - self.first[pages]
        return pages, rows + before[np.cumsum(new) - 1]

    def spans(self, numbers: IntArray) -> list[tuple[int, int]]:
        """Return where some pages begin and end."""
        starts = self.start[numbers]
        return list(zip(starts.tolist(), (starts + self.size[numbers]).tolist(), strict=True))

    @property
    def nbytes(self) -> int:
        """What it takes in memory."""
        return 3 * self.start.nbytes + 200


def indexed(data: bytes, chunk: ColumnChunk) -> PageTable | None:
    """Return the pages that an index tells of; None where it cannot be right.

    Example:
        >>> chunk = ColumnChunk(start=4, size=30, values=5, rows=5, physical=1, codec=0, encodings=())
        >>> indexed(bytes.fromhex("192c" "160815141600" "00" "161c1528160600" "00"), chunk).first.tolist()
        [0, 3, 5]
    """
    try:
        found = _locations(data)
    except ThriftError:
        return None
    return _checked(found[:, 0], found[:, 1], found[:, 2], chunk)


def _locations(data: bytes) -> IntArray:
    """Return what an index says of each page: its first byte, its bytes, its first row."""
    at, count = 2, data[1] >> 4 if len(data) > 1 else 0
    if count == _LONG:
        count, shift = 0, 0
        while at < len(data) and shift < 28:  # noqa: PLR2004 - more pages than that are not asked for
            byte = data[at]
            count, at, shift = count | (byte & 127) << shift, at + 1, shift + 7
            if byte < 128:  # noqa: PLR2004 - the last byte of a number
                break
    body = np.frombuffer(data, np.uint8, offset=min(at, len(data)))
    # What stands before a number is a single byte too, so that all is numbers: seven for each page.
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
    told = parse(data, _LOCATIONS).get(1, [])
    if not all(len(one) == 3 for one in told):  # noqa: PLR2004 - an offset, a size and a row
        raise ThriftError("a page has no place")
    return np.array([[one[1], one[2], one[3]] for one in told], dtype=np.int64).reshape(-1, 3)


def _checked(start: IntArray, size: IntArray, first: IntArray, chunk: ColumnChunk) -> PageTable | None:
    """Return pages that lie in their chunk one after the other, and hold its rows in turn; None for others."""
    if not len(start) or (size <= 0).any() or (start < chunk.start).any() or (start >= chunk.stop).any():
        return None
    if (size > chunk.size).any() or (start[:-1] + size[:-1] > start[1:]).any() or start[-1] + size[-1] > chunk.stop:
        return None
    first = np.append(first, chunk.rows)
    rows = np.diff(first)
    if first[0] != 0 or (rows < 0).any() or not rows.any():
        return None
    some = rows > 0  # writers leave pages without rows
    return PageTable(start=start[some], size=size[some], first=first[np.append(some, True)])  # the last is where they end


class Header(NamedTuple):
    """What stands before a page.

    Attributes:
        length: Its own bytes.
        kind: The kind of page.
        unpacked: The page's bytes in memory.
        packed: The page's bytes here.
        values: Its values, nulls and items of lists among them.
        rows: Its rows; -1 where it does not say.
        encoding: How values are encoded.
        levels: Of a page of the second version, the bytes of its levels, which are never compressed; -1 of others.
        flat: Whether it says that no row has several values, as only the second version does.
        compressed: Whether its values are compressed, where its column is.
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


def page_header(data: bytes | memoryview) -> Header:
    """Return the header that some bytes begin with.

    Raises:
        ThriftError: If they begin with none.
    """
    usual = _USUAL.match(data)
    if usual is not None:
        unpacked, packed, _, values, encoding = usual.groups()
        return Header(usual.end(), DATA, _number(unpacked), _number(packed), _number(values), encoding=encoding[0] >> 1)
    told, length = parse_start(data[:HEADER_MOST], _HEADER)
    sizes = told.get(1, -1), told.get(2, -1), told.get(3, -1)
    v1, v2 = told.get(5, {}), told.get(8, {})
    if sizes[0] == DATA_V2:
        levels, repeated = v2.get(5, 0), v2.get(6, 0)
        found = Header(
            length, *sizes, v2.get(1, -1), v2.get(3, -1), v2.get(4, -1), levels + repeated, repeated == 0, v2.get(7, True)
        )
        sound = levels >= 0 and repeated >= 0 and found.rows >= 0
    else:
        found = Header(length, *sizes, (v1 or told.get(7, {})).get(1, -1), encoding=v1.get(2, -1))
        sound = sizes[0] in (DATA, DICTIONARY)
    if not sound or min(found.unpacked, found.packed, found.values) < 0:
        raise ThriftError("it is no header of a page")
    return found


def _number(stored: bytes) -> int:
    """Return a number of seven bits a byte, whose last bit is its sign."""
    found = 0
    for byte in reversed(stored):
        found = found << 7 | byte & 127
    return found >> 1 if found & 1 == 0 else -(found + 1 >> 1)


def walked(read: Read, chunk: ColumnChunk, *, flat: bool) -> PageTable | None:
    """Return the pages of a chunk, found by looking at one header after the other; None where that does not tell.

    Args:
        read: What reads the file.
        chunk: The chunk.
        flat: Whether a row has one value, so that the number of values tells that of rows.
    """
    at, row = chunk.start, 0
    found: list[tuple[int, int, int]] = []
    while at < chunk.stop and len(found) < PAGES_MOST:
        try:
            header = _peeked(read, at)
        except ThriftError:
            return None
        size = header.length + header.packed
        if header.kind != DICTIONARY:
            rows = header.values if flat else header.rows
            if rows < 0:
                return None
            found.append((at, size, row))
            row += rows
        at += size
    if at != chunk.stop or row != chunk.rows or not found:
        return None
    start, size_, first = np.array(found, dtype=np.int64).T
    return _checked(start, size_, first, chunk)


def _peeked(read: Read, at: int) -> Header:
    """Return the header at a place of a file."""
    try:
        return page_header(read(at, PEEK))
    except ThriftError:
        return page_header(read(at, HEADER_MOST))


def runs(spans: Sequence[tuple[int, int]], gap: int, most: int) -> list[tuple[int, int, list[int]]]:
    """Return what to read so that many spans are read with few requests: from where to where, and the spans in it.

    Args:
        spans: Where each begins and ends.
        gap: Bytes between two that are read for nothing rather than asked for apart.
        most: Bytes of a request that no more are added to.

    Example:
        >>> runs([(100, 110), (0, 10), (12, 20)], gap=4, most=1000)
        [(0, 20, [1, 2]), (100, 110, [0])]
    """
    found: list[tuple[int, int, list[int]]] = []
    for number in sorted(range(len(spans)), key=spans.__getitem__):
        start, stop = spans[number]
        if found and start - found[-1][1] <= gap and max(stop, found[-1][1]) - found[-1][0] <= most:
            begin, end, inside = found[-1]
            inside.append(number)
            found[-1] = (begin, max(stop, end), inside)
        else:
            found.append((start, stop, [number]))
    return found
