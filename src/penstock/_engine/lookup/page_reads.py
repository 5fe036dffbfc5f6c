"""What is read of a row group for some rows of a column: pages of it, or all of it, whichever costs less."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from penstock._blobs import Blobs
from penstock._engine.lookup.byte_ranges import LOCAL, Cost, OpenFile
from penstock._engine.parquet.file_blobs import FileBlobs, LocalFile
from penstock._engine.parquet.page_file import PageFile, PageRange, put_together
from penstock._engine.parquet.page_index import ColumnChunk, PageTable, page_header
from penstock._engine.parquet.plain_pages import PlainCells, are_plain, as_arrow
from penstock._engine.parquet.thrift import ThriftError
from penstock._engine.read.schema_evolution import without_views
from penstock._engine.runtime.memory import BufferPool
from penstock.model import IntArray

__all__ = ["Found", "Request", "StoredColumn", "Way", "picked"]

Found: TypeAlias = pa.ChunkedArray | Blobs | FileBlobs
Held: TypeAlias = tuple[IntArray, IntArray]
"""Pages by number, and places among their rows."""

WHOLE = -1
"""The number of a page that is a whole chunk."""

SMALL = 1 << 20
"""Bytes of chunks that are read whole here; larger ones are left to pyarrow, which needs no copy of them."""

LARGE, RUN = 64 << 20, 4 << 20
"""Bytes of pages from which on so many are decoded at a time, to the same memory: new memory for all takes longer than that."""

EMPTY = memoryview(b"")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stretch:
    """What is read of one leaf.

    Attributes:
        chunk: Its chunk.
        spans: The bytes to read: of a dictionary, and of each page; or of the whole chunk.
        sizes: The rows of each page; of all together where they are not read apart.
        paged: Whether it is pages that are read, and no whole chunk.
        flat: Whether a row has one value.
    """

    chunk: ColumnChunk
    spans: Sequence[tuple[int, int]]
    sizes: Sequence[int]
    paged: bool = False
    flat: bool = False

    @classmethod
    def whole(cls, chunk: ColumnChunk) -> Stretch:
        """Return all of a chunk."""
        return cls(chunk=chunk, spans=[(chunk.start, chunk.stop)], sizes=[chunk.rows])

    @classmethod
    def some(cls, chunk: ColumnChunk, pages: PageTable, numbers: IntArray, *, flat: bool) -> Stretch:
        """Return some pages of a chunk, with whatever stands before the first of all, which is their dictionary."""
        first, sizes = int(pages.start[0]), pages.first[numbers + 1] - pages.first[numbers]
        spans = [(chunk.start, first)] if first > chunk.start else []
        return cls(chunk=chunk, spans=spans + pages.spans(numbers), sizes=sizes.tolist(), paged=True, flat=flat)

    def piece(self, data: Sequence[memoryview]) -> PageRange:
        """Return what was read.

        Raises:
            ThriftError: If it is not what was to be read.
        """
        if not self.paged:
            return PageRange(chunk=self.chunk, values=self.chunk.values, dictionary=EMPTY, pages=data)
        dictionary, pages, values = EMPTY, data, 0
        if len(data) > len(self.sizes):
            dictionary, *pages = data
        for page, rows in zip(pages, self.sizes, strict=True):
            header = page_header(page)
            # Where a page tells its rows, they must be those of the index: else others would come than were asked for.
            if (header.values if self.flat else header.rows) not in (rows, -1):
                raise ThriftError("a page has other rows than its index says")
            values += header.values
        return PageRange(chunk=self.chunk, values=values, dictionary=dictionary, pages=pages)


class Request:
    """Some rows of a column in one row group: what is to be read for them, and what they then are.

    Attributes:
        spans: The bytes to read.
        size: How many these are.
        number: The page that holds the rows, where there is one; WHOLE for whole chunks, and None for several pages.
    """

    def __init__(
        self, excerpt: PageFile, stretches: Sequence[Stretch | None], places: IntArray, number: int | None = None
    ) -> None:
        """Store what is read of each leaf, None for those that are left out, and which of the rows read are asked for."""
        self._excerpt, self._stretches, self._places, self.number = excerpt, stretches, places, number
        self.spans = [span for stretch in stretches if stretch is not None for span in stretch.spans]
        self.size = sum(stop - start for start, stop in self.spans)

    def decoded(self, data: Sequence[memoryview], buffer_pool: BufferPool) -> pa.ChunkedArray:
        """Return all rows of what was read.

        Raises:
            OSError, ValueError, ArrowException: If the bytes are not what they should be.
        """
        pieces: list[PageRange | None] = []
        rows, given = 0, iter(data)
        for stretch in self._stretches:
            pieces.append(None if stretch is None else stretch.piece([next(given) for _ in stretch.spans]))
            rows = rows if stretch is None else sum(stretch.sizes)
        found = self._excerpt.decode(pieces, rows, buffer_pool)
        if len(found) != rows or (None not in pieces and found.type != self._excerpt.field.type):
            msg = f"{len(found)} rows of {found.type} were found where {rows} of {self._excerpt.field.type} were expected"
            raise ValueError(msg)
        return found

    def picked(self, page: pa.ChunkedArray, *, own: bool = False) -> pa.ChunkedArray:
        """Return the rows asked for of what was read, in memory of their own if that is asked for."""
        return picked(page, self._places, own=own)

    def found(self, data: Sequence[memoryview], buffer_pool: BufferPool) -> pa.ChunkedArray:
        """Return the rows asked for, given the bytes of all spans.

        Raises:
            OSError, ValueError, ArrowException: If the bytes are not what they should be.
        """
        return self.picked(self.decoded(data, buffer_pool))


class Split:
    """Some rows of a nested column whose leaves have pages of their own; otherwise like a `Request`."""

    number = None

    def __init__(self, excerpt: PageFile, leaves: Sequence[Request]) -> None:
        """Store what is read of each leaf."""
        self._excerpt, self._leaves = excerpt, leaves
        self.spans = [span for leaf in leaves for span in leaf.spans]
        self.size = sum(leaf.size for leaf in leaves)

    def found(self, data: Sequence[memoryview], buffer_pool: BufferPool) -> Found:
        """Return the rows asked for, given the bytes of all spans.

        Raises:
            OSError, ValueError, ArrowException: If the bytes are not what they should be.
        """
        given = iter(data)
        arrays = [leaf.picked(leaf.decoded([next(given) for _ in leaf.spans], buffer_pool)) for leaf in self._leaves]
        return pa.chunked_array([put_together(self._excerpt.field.type, [array.combine_chunks() for array in arrays])])


class Runs:
    """Some rows of a column in many pages, of which a few at a time are in memory; otherwise like a `Request`."""

    number = None
    spans: Sequence[tuple[int, int]] = ()

    def __init__(self, file: OpenFile, requests: Sequence[Request]) -> None:
        """Store what is read in turn."""
        self._file, self._requests = file, requests
        self.size = sum(request.size for request in requests)

    def found(self, data: Sequence[memoryview], buffer_pool: BufferPool) -> pa.ChunkedArray:  # noqa: ARG002 - nothing was read
        """Return the rows asked for.

        Raises:
            OSError, ValueError, ArrowException: If the bytes are not what they should be.
        """
        chunks: list[pa.Array] = []
        for request in self._requests:
            page = request.decoded(self._file.fetch(request.spans, LOCAL, buffer_pool), buffer_pool)
            chunks += request.picked(page, own=True).chunks
        return pa.chunked_array(chunks)


class Plain:
    """Some cells of pages that need no decoding; otherwise like a `Request`, which it falls back on."""

    number = None

    def __init__(self, file: OpenFile, cells: PlainCells, pages: PageTable, rows: IntArray, otherwise: Request | Runs) -> None:
        """Store which rows they are of."""
        self._file, self._cells, self._rows, self._otherwise = file, cells, rows, otherwise
        self._numbers = pages.holding(rows)[0]
        self._pages = pages.spans(self._numbers)  # without a dictionary, which they do not need
        self.size = sum(stop - start for start, stop in self._pages)
        # What is copied out of pages of this machine is so one by one, and they need not be there all at once.
        self.spans = () if cells.compressed and isinstance(file.source, LocalFile) else self._pages

    def found(self, data: Sequence[memoryview], buffer_pool: BufferPool) -> Found:
        """Return the cells asked for, given the bytes of all spans.

        Raises:
            OSError, ValueError, ArrowException: If the bytes are not what they should be.
        """
        page = data.__getitem__ if data else self._file.one_by_one(self._pages, buffer_pool)
        found = self._cells.cells(self._numbers, page, self._rows, buffer_pool)
        if found is not None:
            return found
        spans = self._otherwise.spans
        if len(data) != len(spans):  # there is a dictionary besides, or nothing was read
            data = self._file.fetch(spans, LOCAL, buffer_pool) if spans else ()
        return self._otherwise.found(data, buffer_pool)


class Located:
    """Some cells that stay in their file until they are needed; otherwise like a `Request`."""

    number = None
    size = 0
    spans: Sequence[tuple[int, int]] = ()

    def __init__(self, file: LocalFile, start: IntArray, stop: IntArray) -> None:
        """Store where they are."""
        self._file, self._start, self._stop = file, start, stop

    def found(self, data: Sequence[memoryview], buffer_pool: BufferPool) -> Found:  # noqa: ARG002 - nothing was read
        """Return the cells; a single one is read at once.

        Raises:
            OSError: If the file ends before it does.
        """
        source = np.zeros(len(self._start), dtype=np.int64)
        if len(source) > 1:
            return FileBlobs(sources=(self._file,), source=source, start=self._start, stop=self._stop)
        size = self._stop - self._start
        cell = self._file.peek(int(self._start[0]), int(size[0]))
        if len(cell) < size[0]:
            raise OSError("the file ends before its cell does")
        return Blobs(buffers=(np.frombuffer(cell, np.uint8),), source=source, start=source, stop=size)


class Both:
    """Some cells that are entries of a dictionary, and others after it was full; otherwise like a `Request`."""

    number = None

    def __init__(self, kind: pa.DataType, coded: Request | Runs, plain: Plain | Located) -> None:
        """Store how each of them is read."""
        self._kind, self._coded, self._plain = kind, coded, plain
        self.spans = [*coded.spans, *plain.spans]
        self.size = coded.size + plain.size

    def found(self, data: Sequence[memoryview], buffer_pool: BufferPool) -> Found:
        """Return the rows asked for, given the bytes of all spans.

        Raises:
            OSError, ValueError, ArrowException: If the bytes are not what they should be.
            CellProblem: If a cell cannot be read.
        """
        at = len(self._coded.spans)
        first, rest = self._coded.found(data[:at], buffer_pool), self._plain.found(data[at:], buffer_pool)
        if isinstance(rest, FileBlobs):
            rest = rest.loaded(buffer_pool)
        chunks = [as_arrow(rest, self._kind, buffer_pool)] if isinstance(rest, Blobs) else rest.chunks
        return pa.chunked_array([*first.chunks, *chunks])


Way: TypeAlias = Request | Runs | Split | Plain | Located | Both


class StoredColumn:
    """A column in one row group, and how some rows of it are best read.

    Attributes:
        name: Its name in the file.
        nbytes: What it takes in memory, roughly.
    """

    def __init__(self, name: str, excerpt: PageFile, layout: Sequence[tuple[ColumnChunk, PageTable | None]]) -> None:
        """Store, of each leaf, its chunk and the pages of it, or None where they are not known."""
        self.name, self._excerpt, self._layout = name, excerpt, layout
        self._size = sum(chunk.size for chunk, _ in layout)
        self._paged = any(pages is not None for _, pages in layout) and (len(layout) == 1 or excerpt.splits)
        self._whole = [Stretch.whole(chunk) for chunk, _ in layout]
        self._cells, self._plain_from = _plain_cells(excerpt, layout)
        self.nbytes = 500 + sum(pages.nbytes for _, pages in layout if pages is not None)
        self.nbytes += 0 if self._cells is None else self._cells.nbytes

    def way(self, file: OpenFile, rows: IntArray, cost: Cost) -> Way | None:
        """Return how to read some rows, by their numbers in the row group, ascending; None where that is left to pyarrow."""
        if self._cells is None:
            return self._way(file, rows, cost, None)
        coded = int(np.searchsorted(rows, self._plain_from))
        if not coded:
            return self._way(file, rows, cost, self._cells)
        if coded < len(rows):
            first, rest = self._way(file, rows[:coded], cost, None), self._way(file, rows[coded:], cost, self._cells)
            if isinstance(first, Request | Runs) and isinstance(rest, Plain | Located):
                return Both(self._excerpt.field.type, first, rest)
        return self._way(file, rows, cost, None)

    def _way(self, file: OpenFile, rows: IntArray, cost: Cost, cells: PlainCells | None) -> Way | None:
        """Return how to read some rows, which may be cells of plain pages."""
        source, pages = file.source, self._layout[0][1]
        if cells is not None and cells.odd and pages is not None and not cells.odd.isdisjoint(pages.holding(rows)[0].tolist()):
            cells = None
        if cells is not None and not cells.compressed and isinstance(source, LocalFile):
            places = cells.located(rows, file.read)
            if places is not None:
                return Located(source, *places)
        if self._paged:
            held = [None if pages is None else pages.holding(rows) for _, pages in self._layout]
            # What is near is not read at once where it would need much new memory: plain cells never need it.
            near = cost.near and len(self._layout) == 1 and (cells is not None or self._size > LARGE)
            if near or 4 * self._cost(held, cost) < 3 * (self._size + cost.request):
                return self._by_page(file, held, rows, cost, cells)
        if self._size > SMALL:
            return None
        return Request(self._excerpt, self._whole, rows, WHOLE)

    def _cost(self, held: Sequence[Held | None], cost: Cost) -> int:
        """Return what it costs to read some pages of each leaf, or all of those whose pages are not known."""
        found = 0
        for (chunk, pages), one in zip(self._layout, held, strict=True):
            if pages is None or one is None:
                found += chunk.size + cost.request
            else:
                found += cost.of(pages.start[one[0]], pages.size[one[0]]) + int(pages.start[0]) - chunk.start
        return found

    def _by_page(
        self, file: OpenFile, held: Sequence[Held | None], rows: IntArray, cost: Cost, cells: PlainCells | None
    ) -> Way:
        """Return how to read some pages of each leaf."""
        found = []
        for at, ((chunk, pages), one) in enumerate(zip(self._layout, held, strict=True)):
            numbers, places = (None, rows) if one is None else one
            stretches: list[Stretch | None] = [None] * len(self._layout)
            flat = not self._excerpt.leaves[at].repeated
            if pages is None or numbers is None:
                stretches[at] = Stretch.whole(chunk)
            else:
                stretches[at] = Stretch.some(chunk, pages, numbers, flat=flat)
            number = int(numbers[0]) if numbers is not None and len(numbers) == 1 else None
            found.append(Request(self._excerpt, stretches, places, number))
        if len(found) > 1:
            return Split(self._excerpt, found)
        pages = self._layout[0][1]
        if pages is None:
            return found[0]
        decoded = self._runs(file, pages, rows) if cost.near and found[0].size > LARGE else found[0]
        return decoded if cells is None else Plain(file, cells, pages, rows, decoded)

    def _runs(self, file: OpenFile, pages: PageTable, rows: IntArray) -> Runs:
        """Return how to read some pages of a column with one leaf, a few at a time."""
        chunk, flat = self._layout[0][0], not self._excerpt.leaves[0].repeated
        numbers = pages.holding(rows)[0]
        run = np.cumsum(pages.size[numbers]) // RUN
        last = numbers[np.append(run[1:] != run[:-1], True)]  # of each run
        requests = []
        for some in np.split(rows, np.searchsorted(rows, pages.first[last[:-1] + 1])):
            held, places = pages.holding(some)
            requests.append(Request(self._excerpt, [Stretch.some(chunk, pages, held, flat=flat)], places))
        return Runs(file, requests)


def _plain_cells(excerpt: PageFile, layout: Sequence[tuple[ColumnChunk, PageTable | None]]) -> tuple[PlainCells | None, int]:
    """Return the cells of a column that need no decoding, and the row of its row group that they begin with."""
    chunk, pages = layout[0]
    if pages is None or len(layout) > 1 or not are_plain(chunk, excerpt.leaves[0], excerpt.field.type):
        return None, 0
    if int(pages.start[0]) == chunk.start:
        return PlainCells(chunk, excerpt.leaves[0], pages), 0
    if chunk.coded + chunk.plain != len(pages):  # pages without rows are left out there
        return None, 0
    return PlainCells(chunk, excerpt.leaves[0], pages), int(pages.first[chunk.coded])


def picked(array: pa.ChunkedArray, places: IntArray, *, own: bool = False) -> pa.ChunkedArray:
    """Return some rows of a column, in a type that rows can be picked from; a single number may be a view, unless `own`."""
    if not pa.types.is_primitive(array.type):
        kind = without_views(pa.field("", array.type)).type
        array = array if kind == array.type else array.cast(kind)
    elif len(places) == 1 and not own:
        return array.slice(int(places[0]), 1)
    # No slice of anything else: of lists of fixed length in each other pyarrow would then pick wrong rows. To take from one
    # chunk is many times faster than from a list of one.
    numbers = pa.array(places)
    return pa.chunked_array([array.chunk(0).take(numbers)]) if array.num_chunks == 1 else array.take(numbers)
