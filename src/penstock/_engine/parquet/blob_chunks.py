"""Column chunks of bytes that need no decoding: their cells are found in the bytes of the chunk and are not copied.

Such chunks are plainly encoded and uncompressed, as our writer stores images and arrays. All others are left to pyarrow.
Sizes and counts in a file are checked against the bytes that are there.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock._blobs import Blobs
from penstock._engine.parquet import thrift
from penstock._engine.parquet.chunk_layout import CHUNK_FIELDS, column_chunk
from penstock._engine.parquet.file_blobs import FileBlobs, LocalFile
from penstock._engine.parquet.page_index import ColumnChunk, PeekedBytes, header_at
from penstock._engine.parquet.plain_pages import BYTES, DAMAGED, PLAIN, SIMPLE, Data, cell_edges, cells_present
from penstock._engine.parquet.thrift import Only, ThriftError, Wanted, leaves, parse
from penstock._engine.runtime.memory import BufferPool
from penstock.dtypes import Marks
from penstock.model import BoolArray, IntArray

LARGE_CELL = 16 << 10
"""Bytes from which on a cell stays in its file until it is needed: a read of its own costs less than a second copy."""

MAX_FILES = 128
"""Files that are open for cells that stay in them. Cells of further files are read at once."""

MAX_PLACES_BYTES = 64 << 20
"""Bytes of places that are remembered for the next epoch, sixteen for each cell."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CellPlaces:
    """Where cells begin and end, and which are not null; None if none is null."""

    start: IntArray
    stop: IntArray
    valid: Marks = None


def find_chunks(footer: bytes, columns: Iterable[str]) -> dict[str, list[ColumnChunk]]:
    """Return the chunks of each row group, for those columns whose chunks all need no decoding."""
    names = {column.encode(): column for column in columns}
    try:
        every, _ = leaves(parse(footer, {thrift.SCHEMA: [thrift.ELEMENT]}))
        flat = {leaf.place: leaf for leaf in every if len(leaf.path) == 1 and leaf.path[0] in names and not leaf.repeated}
        tree: Wanted = {thrift.CHUNKS: Only(places=dict.fromkeys(flat, CHUNK_FIELDS)), thrift.ROWS: int}
        groups = parse(footer, {thrift.GROUPS: [tree]}).get(thrift.GROUPS, [])
    except ThriftError:
        return {}  # pyarrow reports what is wrong
    plain: dict[str, list[ColumnChunk]] = {}
    for leaf in flat.values():
        chunks = [column_chunk(group, leaf) for group in groups]
        if all(chunk is not None and _needs_no_decoding(chunk) for chunk in chunks):
            plain[names[leaf.path[0]]] = [chunk for chunk in chunks if chunk is not None]
    return plain


def _needs_no_decoding(chunk: ColumnChunk) -> bool:
    return chunk.physical == BYTES and chunk.codec == 0 and bool(chunk.encodings) and set(chunk.encodings) <= SIMPLE


def read_chunk(source: Any, chunk: ColumnChunk, buffer_pool: BufferPool) -> Blobs | None:
    """Return the cells of a chunk; None if the chunk is not what the footer says, which pyarrow then reports."""
    if chunk.start < 0 or chunk.stop > source.size():
        return None
    data = buffer_pool.empty((chunk.size,), np.dtype(np.uint8))
    source.seek(chunk.start)
    if source.readinto(data.data) != chunk.size:
        return None
    places = _places(data.data, chunk)
    if places is None:
        return None
    numbers = np.zeros(len(places.start), dtype=np.int64)
    return Blobs(buffers=(data,), source=numbers, start=places.start, stop=places.stop, valid=places.valid)


def locate_chunk(file: LocalFile, chunk: ColumnChunk) -> CellPlaces | None:
    """Return where in a file the cells of a chunk lie, reading only what is not a cell; None as `read_chunk`."""
    if chunk.start < 0:
        return None
    file.expect(chunk.start, chunk.size)
    places = _places(PeekedBytes(file.peek, chunk.start, chunk.size), chunk)
    if places is None:
        return None
    return CellPlaces(start=places.start + chunk.start, stop=places.stop + chunk.start, valid=places.valid)


def _places(data: Data, chunk: ColumnChunk) -> CellPlaces | None:
    """Return where each cell lies in the bytes of a chunk; None if the chunk is not what the footer says."""
    try:
        places = _parse(data, chunk)
    except DAMAGED:
        return None
    return places if len(places.start) == chunk.values else None


def _parse(data: Data, chunk: ColumnChunk) -> CellPlaces:
    """Return where each cell begins and ends, and which are not null."""
    at = 0
    starts: list[int] = []
    stops: list[int] = []
    marks: list[BoolArray] = []
    while at < chunk.size:
        header = header_at(data, at)
        begin = at + header.length
        at = begin + header.packed
        if header.encoding != PLAIN or header.values > chunk.values or at > chunk.size:
            raise ValueError
        begin, present = cells_present(data, begin, header, optional=chunk.optional)
        count = header.values
        if present is not None:
            marks.append(present)
            count = int(present.sum())
        page_starts, page_stops = cell_edges(data, begin, at, count)
        starts += page_starts
        stops += page_stops
    start, stop = np.array(starts, dtype=np.int64), np.array(stops, dtype=np.int64)
    valid = np.concatenate(marks) if marks else None
    if valid is None or valid.all():
        return CellPlaces(start=start, stop=stop)
    every = CellPlaces(start=np.zeros(len(valid), dtype=np.int64), stop=np.zeros(len(valid), dtype=np.int64), valid=valid)
    every.start[valid], every.stop[valid] = start, stop
    return every


class CellPlacesCache:
    """Remembers the places of cells, and shares open files among windows and threads."""

    def __init__(self) -> None:
        """Begin empty."""
        self._files: weakref.WeakValueDictionary[str, LocalFile] = weakref.WeakValueDictionary()
        self._places: OrderedDict[tuple[str, int], CellPlaces] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.Lock()

    def located(self, path: str, chunk: ColumnChunk, check: Callable[[], None]) -> FileBlobs | None:
        """Return the cells of a chunk, which stay in their file; None if their places are unknown.

        `check` is called after a file was opened, and raises if it is not the expected file.
        """
        with self._lock:
            file = self._files.get(path)
            if file is None:
                if len(self._files) >= MAX_FILES:
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

    def _remember(self, key: tuple[str, int], places: CellPlaces) -> None:
        with self._lock:
            self._places[key] = places
            self._nbytes += 2 * places.start.nbytes
            while self._nbytes > MAX_PLACES_BYTES:
                self._nbytes -= 2 * self._places.popitem(last=False)[1].start.nbytes


def concat_blobs(cells: Sequence[Blobs | FileBlobs]) -> Blobs | FileBlobs:
    """Return the cells of several, one after the other, in memory or in files."""
    if len(cells) == 1:
        return cells[0]
    memory = [one for one in cells if isinstance(one, Blobs)]
    return Blobs.joined(memory) if len(memory) == len(cells) else FileBlobs.joined(cells)
