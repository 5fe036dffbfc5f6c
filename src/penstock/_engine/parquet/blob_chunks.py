"""Column chunks of blobs, read as they lie: their cells are found in the chunk's own bytes, and no byte is copied twice.

It is for chunks that need no decoding: bytes in plain encoding, not compressed, without a dictionary, as our writer lays out
images and arrays. Whatever else a file holds is pyarrow's to read. Nothing a file says is believed: sizes and counts are
checked against the bytes that are there.
"""

from __future__ import annotations

import re
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError  # noqa: N812 - a class, whatever its name
from typing import Any

import numpy as np
import numpy.typing as npt
from pyarrow import fs as pafs

from penstock._blobs import Blobs
from penstock._engine.parquet import thrift
from penstock._engine.parquet.file_blobs import FileBlobs, LocalFile
from penstock._engine.parquet.footer import footer_of
from penstock._engine.parquet.thrift import Only, ThriftError, Wanted, leaves, parse, parse_start
from penstock._engine.runtime.memory import BufferPool
from penstock.dtypes import Marks
from penstock.model import IntArray

__all__ = [
    "LARGE_CELL",
    "BlobChunk",
    "CellPlaces",
    "CellPlacesCache",
    "concat_blobs",
    "find_chunks",
    "locate_chunk",
    "read_chunk",
]

BYTES = 6  # the physical type
REQUIRED, OPTIONAL = 0, 1
ENCODINGS, CODEC, VALUES, DATA_AT, DICTIONARY_AT = 2, 4, 5, 9, 11
PLAIN, SIMPLE = 0, {0, 3, 4}  # plain values; levels in either of their encodings
_META: Wanted = {
    thrift.META: {
        thrift.TYPE: int,
        ENCODINGS: [int],
        CODEC: int,
        VALUES: int,
        thrift.SIZE: int,
        DATA_AT: int,
        DICTIONARY_AT: int,
    }
}
PAGE_TYPE, COMPRESSED, V1, V2 = 1, 3, 5, 8
DATA_PAGE, DATA_PAGE_V2 = 0, 3
PAGE_VALUES, V1_ENCODING, V2_ENCODING, V2_LEVELS, V2_REPETITIONS = 1, 2, 4, 5, 6
_HEADER: dict[int, Wanted] = {
    PAGE_TYPE: int,
    COMPRESSED: int,
    V1: {PAGE_VALUES: int, V1_ENCODING: int},
    V2: {PAGE_VALUES: int, V2_ENCODING: int, V2_LEVELS: int, V2_REPETITIONS: int},
    1 << 14: int,  # which no header has, so that it is read to its end
}
HEADER_MOST = 16 << 10
"""Bytes of a page's header; ours take less than a hundred, and one that needs more is left to pyarrow."""

LENGTH = Struct("<I")
USUAL_MOST = 96
"""Bytes that hold the header of a page as most are."""

LEVELS_SPARE = 64
"""Bytes of levels beyond two for each value, which none of a flat column needs."""

_NUMBER = rb"([\x80-\xff]{0,9}[\x00-\x7f])"
_USUAL = re.compile(
    # a data page; its sizes in memory and here; a checksum or none; its values, plain; encodings of levels; both ends
    rb"\x15\x00\x15" + _NUMBER + rb"\x15" + _NUMBER + rb"(?:\x15" + _NUMBER + rb"\x1c|\x2c)"
    rb"\x15" + _NUMBER + rb"\x15\x00\x15[\x00-\x7f]\x15[\x00-\x7f]\x00\x00"
)
"""The header of most pages. There is one for every few cells, and to parse it field by field takes longer than to read them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobChunk:
    """Where the cells of one column and row group lie in a file.

    Attributes:
        start: The first byte of the first page.
        size: Bytes of all pages.
        values: Cells, nulls among them.
        optional: Whether there may be nulls.
    """

    start: int
    size: int
    values: int
    optional: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CellPlaces:
    """Where cells lie: from where on, up to where, and which are no nulls; None where none is."""

    start: IntArray
    stop: IntArray
    valid: Marks = None


def find_chunks(path: str, filesystem: pafs.FileSystem, columns: Iterable[str]) -> dict[str, list[BlobChunk]]:
    """Return, of columns that can be read as they lie, the chunk of each row group.

    Raises:
        DataError: If the footer cannot be read.
    """
    footer = footer_of(path, filesystem)
    wanted = {column.encode(): column for column in columns}
    try:
        every, _ = leaves(parse(footer, {thrift.SCHEMA: [thrift.ELEMENT]}))
        flat = {leaf.place: leaf for leaf in every if len(leaf.path) == 1 and leaf.path[0] in wanted and not leaf.repeated}
        tree: Wanted = {thrift.CHUNKS: Only(places=dict.fromkeys(flat, _META))}
        groups = parse(footer, {thrift.GROUPS: [tree]}).get(thrift.GROUPS, [])
    except ThriftError:
        return {}  # pyarrow tells what is wrong
    found: dict[str, list[BlobChunk]] = {}
    for place, leaf in flat.items():
        optional = leaf.element.get(thrift.REPETITION, REQUIRED) == OPTIONAL
        chunks = [_chunk(group, place, optional=optional) for group in groups]
        if all(chunk is not None for chunk in chunks):
            found[wanted[leaf.path[0]]] = [chunk for chunk in chunks if chunk is not None]
    return found


def _chunk(group: Mapping[int, Any], place: int, *, optional: bool) -> BlobChunk | None:
    """Return a chunk that needs no decoding; None for any other."""
    chunks = group.get(thrift.CHUNKS) or []
    meta = (chunks[place] or {}).get(thrift.META, {}) if place < len(chunks) else {}
    simple = meta.get(thrift.TYPE) == BYTES and meta.get(CODEC) == 0 and DICTIONARY_AT not in meta
    if not simple or not set(meta.get(ENCODINGS, [None])) <= SIMPLE or meta.get(VALUES, -1) < 0:
        return None
    return BlobChunk(start=meta.get(DATA_AT, -1), size=meta.get(thrift.SIZE, -1), values=meta[VALUES], optional=optional)


def read_chunk(source: Any, chunk: BlobChunk, buffer_pool: BufferPool) -> Blobs | None:
    """Return the cells of a chunk; None where they are not laid out as the footer promised, for pyarrow to tell why."""
    if chunk.start < 0 or chunk.size < 0 or chunk.start + chunk.size > source.size():
        return None
    data = buffer_pool.empty((chunk.size,), np.dtype(np.uint8))
    source.seek(chunk.start)
    if source.readinto(data.data) != chunk.size:
        return None
    places = _places(data.data, chunk)
    if places is None:
        return None
    source_ = np.zeros(len(places.start), dtype=np.int64)
    return Blobs(buffers=(data,), source=source_, start=places.start, stop=places.stop, valid=places.valid)


def locate_chunk(file: LocalFile, chunk: BlobChunk) -> CellPlaces | None:
    """Return where in a file the cells of a chunk lie, reading no more than what stands before each; None as above."""
    if chunk.start < 0 or chunk.size < 0:
        return None
    file.expect(chunk.start, chunk.size)
    found = _places(_Peeked(file, chunk), chunk)
    if found is None:
        return None
    return CellPlaces(start=found.start + chunk.start, stop=found.stop + chunk.start, valid=found.valid)


class _Peeked:
    """The bytes of a chunk in a file, of which only small parts are looked at, mostly one after the other."""

    AT_ONCE = 192
    """Bytes that hold a page's header, its levels and the length of its first cell, nearly always."""

    def __init__(self, file: LocalFile, chunk: BlobChunk) -> None:
        self._file, self._chunk = file, chunk
        self._at, self._bytes = 0, b""

    def __getitem__(self, part: slice) -> bytes:
        start, stop = part.start, min(part.stop, self._chunk.size)
        if not self._at <= start <= stop <= self._at + len(self._bytes):
            self._at, self._bytes = start, self._file.peek(self._chunk.start + start, max(self.AT_ONCE, stop - start))
        return self._bytes[start - self._at : stop - self._at]


def _places(view: memoryview | _Peeked, chunk: BlobChunk) -> CellPlaces | None:
    """Return where each cell of a chunk lies, if all is as the footer promised."""
    try:
        found = _cells(view, chunk)
    except (ThriftError, IndexError, KeyError, StructError, ValueError):
        return None
    return found if len(found.start) == chunk.values else None


def _cells(view: memoryview | _Peeked, chunk: BlobChunk) -> CellPlaces:
    """Return where each cell of a chunk begins and ends, and which are no nulls."""
    at = 0
    edges: list[int] = []
    marks: list[npt.NDArray[np.bool_]] = []
    while at < chunk.size:
        at, stop, header = _page(view, at)
        if not at <= stop <= chunk.size:
            raise ValueError
        if chunk.optional or type(header) is not int:
            at, there = _levels(view, at, _usual(header) if type(header) is int else header, chunk)
            filled = int(there.sum())
            if chunk.optional:
                marks.append(there)
        else:
            filled = header
        _walk(view, at, stop, filled, edges)
        at = stop
    starts, stops = np.array(edges[0::2], dtype=np.int64), np.array(edges[1::2], dtype=np.int64)
    valid = np.concatenate(marks) if marks else None
    if valid is None or valid.all():
        return CellPlaces(start=starts, stop=stops)
    start, stop_ = np.zeros(len(valid), dtype=np.int64), np.zeros(len(valid), dtype=np.int64)
    start[valid], stop_[valid] = starts, stops
    return CellPlaces(start=start, stop=stop_, valid=valid)


def _page(view: memoryview | _Peeked, at: int) -> tuple[int, int, Any]:
    """Return where a page's bytes begin and end, and its header: of one of the usual kind no more than its number of values."""
    usual = _USUAL.match(view[at : at + USUAL_MOST])
    if usual is not None:
        _, size, _, values = usual.groups()
        begin = at + usual.end()
        return begin, begin + _number(size), _number(values)
    header, length = parse_start(view[at : at + HEADER_MOST], _HEADER)
    begin = at + length
    return begin, begin + header[COMPRESSED], header


def _number(stored: bytes) -> int:
    """Return a number of seven bits a byte, whose last bit is its sign."""
    found = 0
    for byte in reversed(stored):
        found = found << 7 | byte & 127
    return found >> 1 if found & 1 == 0 else -(found + 1 >> 1)


def _usual(values: int) -> dict[int, Any]:
    return {PAGE_TYPE: DATA_PAGE, V1: {PAGE_VALUES: values, V1_ENCODING: PLAIN}}


def _levels(
    view: memoryview | _Peeked, at: int, header: Mapping[int, Any], chunk: BlobChunk
) -> tuple[int, npt.NDArray[np.bool_]]:
    """Return where the values of a page begin, and which of its cells have one."""
    if header[PAGE_TYPE] == DATA_PAGE:
        told, encoding = header[V1], V1_ENCODING
        length = LENGTH.unpack(view[at : at + 4])[0] if chunk.optional else 0
        at += LENGTH.size if chunk.optional else 0
    elif header[PAGE_TYPE] == DATA_PAGE_V2 and not header[V2].get(V2_REPETITIONS):
        told, encoding = header[V2], V2_ENCODING
        length = told[V2_LEVELS]
    else:
        raise ValueError
    count = told[PAGE_VALUES]
    if told[encoding] != PLAIN or not 0 <= count <= chunk.values or length < 0:
        raise ValueError
    if length > 2 * chunk.values + LEVELS_SPARE:
        raise ValueError
    there = _ones(view[at : at + length], count) if chunk.optional else np.ones(count, dtype=np.bool_)
    return at + length, there


def _walk(view: memoryview | _Peeked, at: int, stop: int, count: int, edges: list[int]) -> None:
    """Add where each of `count` values begins and ends, one after the other."""
    unpack = LENGTH.unpack
    for _ in range(count):
        start = at + 4
        at = start + unpack(view[at:start])[0]
        if at > stop:
            raise ValueError
        edges += (start, at)
    if at != stop:
        raise ValueError


def _ones(levels: memoryview | bytes, count: int) -> npt.NDArray[np.bool_]:
    """Return levels of one bit, in runs or packed by eight, as Parquet has them."""
    found: list[npt.NDArray[np.bool_]] = []
    at = have = 0
    while have < count:
        head = shift = 0
        while True:
            byte = levels[at]
            at += 1
            head |= (byte & 127) << shift
            shift += 7
            if byte < 128 or shift > 63:  # noqa: PLR2004 - the last byte of a number of seven bits each
                break
        if head & 1:
            size = head >> 1
            packed = np.frombuffer(levels[at : at + size], dtype=np.uint8)
            found.append(np.unpackbits(packed, bitorder="little").astype(np.bool_))
            at += size
        else:
            found.append(np.full(min(head >> 1, count - have), levels[at] == 1, dtype=np.bool_))
            at += 1
        if not len(found[-1]):
            raise ValueError
        have += len(found[-1])
    return np.concatenate([np.zeros(0, dtype=np.bool_), *found])[:count]


LARGE_CELL = 16 << 10
"""Bytes from which on a cell stays in its file until it is needed: to ask for it costs less then than to copy it twice."""

MOST_FILES = 128
"""Files that are kept open for cells that are left in them; those of more are read at once, and closed."""

MOST_PLACES = 64 << 20
"""Bytes of places that are remembered from one epoch to the next, sixteen for each cell."""


class CellPlacesCache:
    """Remembers places of cells, and shares open files among windows and threads."""

    def __init__(self) -> None:
        """Begin without any."""
        self._files: weakref.WeakValueDictionary[str, LocalFile] = weakref.WeakValueDictionary()
        self._places: OrderedDict[tuple[str, int], CellPlaces] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.Lock()

    def located(self, path: str, chunk: BlobChunk, check: Callable[[], None]) -> FileBlobs | None:
        """Return the cells of a chunk, left where they are; None where that cannot be.

        `check` is called after a file was opened, and raises where it is another than was expected.
        """
        with self._lock:
            file = self._files.get(path)
            if file is None:
                if len(self._files) >= MOST_FILES:
                    return None
                file = LocalFile(path)
                check()
                self._files[path] = file
            places = self._places.get((path, chunk.start))
        if places is None:
            places = locate_chunk(file, chunk)
            if places is None:
                return None
            self._remember((path, chunk.start), places)
        else:
            file.expect(chunk.start, chunk.size)
        source = np.zeros(len(places.start), dtype=np.int64)
        return FileBlobs(sources=(file,), source=source, start=places.start, stop=places.stop, valid=places.valid)

    def _remember(self, name: tuple[str, int], places: CellPlaces) -> None:
        with self._lock:
            self._places[name] = places
            self._nbytes += 2 * places.start.nbytes
            while self._nbytes > MOST_PLACES:
                self._nbytes -= 2 * self._places.popitem(last=False)[1].start.nbytes


def concat_blobs(cells: Sequence[Blobs | FileBlobs]) -> Blobs | FileBlobs:
    """Return the cells of several, one after the other, wherever they lie."""
    if len(cells) == 1:
        return cells[0]
    memory = [one for one in cells if isinstance(one, Blobs)]
    return Blobs.joined(memory) if len(memory) == len(cells) else FileBlobs.joined(cells)
