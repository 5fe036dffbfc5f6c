"""What is read of a row group for some rows of a column: pages of it, or all of it, whichever costs less."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from penstock._engine.excerpt import Excerpt, Piece, put_together
from penstock._engine.fit_stored import takeable
from penstock._engine.lease import Slabs
from penstock._engine.pages import Chunk, Pages, page_header
from penstock._engine.plain_cells import PlainCells, are_plain
from penstock._engine.spans import LOCAL, Cost, OpenFile
from penstock._engine.stored import LocalFile, StoredBlobs
from penstock._engine.thrift import ThriftError
from penstock.blobs import Blobs
from penstock.model import IntArray

__all__ = ["Found", "Request", "StoredColumn", "Way", "picked"]

Found: TypeAlias = pa.ChunkedArray | Blobs | StoredBlobs
Held: TypeAlias = tuple[IntArray, IntArray]
"""Pages by number, and places among their rows."""

WHOLE = -1
"""The number of a page that is a whole chunk."""

SMALL = 1 << 20
"""Bytes of chunks that are read whole here; larger ones are left to pyarrow, which needs no copy of them."""

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

    chunk: Chunk
    spans: Sequence[tuple[int, int]]
    sizes: Sequence[int]
    paged: bool = False
    flat: bool = False

    @classmethod
    def whole(cls, chunk: Chunk) -> Stretch:
        """Return all of a chunk."""
        return cls(chunk=chunk, spans=[(chunk.start, chunk.stop)], sizes=[chunk.rows])

    @classmethod
    def some(cls, chunk: Chunk, pages: Pages, numbers: IntArray, *, flat: bool) -> Stretch:
        """Return some pages of a chunk, with whatever stands before the first of all, which is their dictionary."""
        first, sizes = int(pages.start[0]), pages.first[numbers + 1] - pages.first[numbers]
        spans = [(chunk.start, first)] if first > chunk.start else []
        return cls(chunk=chunk, spans=spans + pages.spans(numbers), sizes=sizes.tolist(), paged=True, flat=flat)

    def piece(self, data: Sequence[memoryview]) -> Piece:
        """Return what was read.

        Raises:
            ThriftError: If it is not what was to be read.
        """
        if not self.paged:
            return Piece(chunk=self.chunk, values=self.chunk.values, dictionary=EMPTY, pages=data)
        dictionary, pages, values = EMPTY, data, 0
        if len(data) > len(self.sizes):
            dictionary, *pages = data
        for page, rows in zip(pages, self.sizes, strict=True):
            header = page_header(page)
            # Where a page tells its rows, they must be those of the index: else others would come than were asked for.
            if (header.values if self.flat else header.rows) not in (rows, -1):
                raise ThriftError("a page has other rows than its index says")
            values += header.values
        return Piece(chunk=self.chunk, values=values, dictionary=dictionary, pages=pages)


class Request:
    """Some rows of a column in one row group: what is to be read for them, and what they then are.

    Attributes:
        spans: The bytes to read.
        size: How many these are.
        number: The page that holds the rows, where there is one; WHOLE for whole chunks, and None for several pages.
    """

    def __init__(
        self, excerpt: Excerpt, stretches: Sequence[Stretch | None], places: IntArray, number: int | None = None
    ) -> None:
        """Store what is read of each leaf, None for those that are left out, and which of the rows read are asked for."""
        self._excerpt, self._stretches, self._places, self.number = excerpt, stretches, places, number
        self.spans = [span for stretch in stretches if stretch is not None for span in stretch.spans]
        self.size = sum(stop - start for start, stop in self.spans)

    def decoded(self, data: Sequence[memoryview], slabs: Slabs) -> pa.ChunkedArray:
        """Return all rows of what was read.

        Raises:
            OSError, ValueError, ArrowException: If the bytes are not what they should be.
        """
        pieces: list[Piece | None] = []
        rows, given = 0, iter(data)
        for stretch in self._stretches:
            pieces.append(None if stretch is None else stretch.piece([next(given) for _ in stretch.spans]))
            rows = rows if stretch is None else sum(stretch.sizes)
        found = self._excerpt.decode(pieces, rows, slabs)
        if len(found) != rows or (None not in pieces and found.type != self._excerpt.field.type):
            msg = f"{len(found)} rows of {found.type} were found where {rows} of {self._excerpt.field.type} were expected"
            raise ValueError(msg)
        return found

    def picked(self, page: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the rows asked for of what was read."""
        return picked(page, self._places)

    def found(self, data: Sequence[memoryview], slabs: Slabs) -> Found:
        """Return the rows asked for, given the bytes of all spans.

        Raises:
            OSError, ValueError, ArrowException: If the bytes are not what they should be.
        """
        return self.picked(self.decoded(data, slabs))


class Split:
    """Some rows of a nested column whose leaves have pages of their own; otherwise like a `Request`."""

    number = None

    def __init__(self, excerpt: Excerpt, leaves: Sequence[Request]) -> None:
        """Store what is read of each leaf."""
        self._excerpt, self._leaves = excerpt, leaves
        self.spans = [span for leaf in leaves for span in leaf.spans]
        self.size = sum(leaf.size for leaf in leaves)

    def found(self, data: Sequence[memoryview], slabs: Slabs) -> Found:
        """Return the rows asked for, given the bytes of all spans.

        Raises:
            OSError, ValueError, ArrowException: If the bytes are not what they should be.
        """
        given = iter(data)
        arrays = [leaf.picked(leaf.decoded([next(given) for _ in leaf.spans], slabs)) for leaf in self._leaves]
        return pa.chunked_array([put_together(self._excerpt.field.type, [array.combine_chunks() for array in arrays])])


class Plain:
    """Some cells of pages that need no decoding; otherwise like a `Request`, which it falls back on."""

    number = None

    def __init__(self, file: OpenFile, cells: PlainCells, numbers: IntArray, rows: IntArray, otherwise: Request) -> None:
        """Store which pages and rows they are of."""
        self._file, self._cells, self._numbers, self._rows, self._otherwise = file, cells, numbers, rows, otherwise
        self.size = otherwise.size
        # What is copied out of pages of this machine is so one by one, and they need not be there all at once.
        self.spans = () if cells.compressed and isinstance(file.source, LocalFile) else otherwise.spans

    def found(self, data: Sequence[memoryview], slabs: Slabs) -> Found:
        """Return the cells asked for, given the bytes of all spans.

        Raises:
            OSError, ValueError, ArrowException: If the bytes are not what they should be.
        """
        page = data.__getitem__ if data else self._file.one_by_one(self._otherwise.spans, slabs)
        found = self._cells.cells(self._numbers, page, self._rows, slabs)
        if found is not None:
            return found
        return self._otherwise.found(data or self._file.fetch(self._otherwise.spans, LOCAL, slabs), slabs)


class Located:
    """Some cells that stay in their file until they are needed; otherwise like a `Request`."""

    number = None
    size = 0
    spans: Sequence[tuple[int, int]] = ()

    def __init__(self, file: LocalFile, start: IntArray, stop: IntArray) -> None:
        """Store where they are."""
        self._file, self._start, self._stop = file, start, stop

    def found(self, data: Sequence[memoryview], slabs: Slabs) -> Found:  # noqa: ARG002 - nothing was read
        """Return the cells; a single one is read at once.

        Raises:
            OSError: If the file ends before it does.
        """
        source = np.zeros(len(self._start), dtype=np.int64)
        if len(source) > 1:
            return StoredBlobs(sources=(self._file,), source=source, start=self._start, stop=self._stop)
        size = self._stop - self._start
        cell = self._file.peek(int(self._start[0]), int(size[0]))
        if len(cell) < size[0]:
            raise OSError("the file ends before its cell does")
        return Blobs(buffers=(np.frombuffer(cell, np.uint8),), source=source, start=source, stop=size)


Way: TypeAlias = Request | Split | Plain | Located


class StoredColumn:
    """A column in one row group, and how some rows of it are best read.

    Attributes:
        name: Its name in the file.
        nbytes: What it takes in memory, roughly.
    """

    def __init__(self, name: str, excerpt: Excerpt, layout: Sequence[tuple[Chunk, Pages | None]]) -> None:
        """Store, of each leaf, its chunk and the pages of it, or None where they are not known."""
        self.name, self._excerpt, self._layout = name, excerpt, layout
        self._size = sum(chunk.size for chunk, _ in layout)
        self._paged = any(pages is not None for _, pages in layout) and (len(layout) == 1 or excerpt.splits)
        self._whole = [Stretch.whole(chunk) for chunk, _ in layout]
        self._cells: PlainCells | None = None
        chunk, pages = layout[0]
        if pages is not None and len(layout) == 1 and int(pages.start[0]) == chunk.start:
            plain = are_plain(chunk, excerpt.leaves[0], excerpt.field.type)
            self._cells = PlainCells(chunk, excerpt.leaves[0], pages) if plain else None
        self.nbytes = 500 + sum(pages.nbytes for _, pages in layout if pages is not None)
        self.nbytes += 0 if self._cells is None else self._cells.nbytes

    def way(self, file: OpenFile, rows: IntArray, cost: Cost) -> Way | None:
        """Return how to read some rows, by their numbers in the row group, ascending; None where that is left to pyarrow."""
        cells, source = self._cells, file.source
        if cells is not None and not cells.compressed and isinstance(source, LocalFile):
            places = cells.located(rows, file.read)
            if places is not None:
                return Located(source, *places)
        if self._paged:
            held = [None if pages is None else pages.holding(rows) for _, pages in self._layout]
            if 4 * self._cost(held, cost) < 3 * (self._size + cost.request):
                return self._by_page(file, held, rows)
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

    def _by_page(self, file: OpenFile, held: Sequence[Held | None], rows: IntArray) -> Way:
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
        return found[0] if self._cells is None or held[0] is None else Plain(file, self._cells, held[0][0], rows, found[0])


def picked(array: pa.ChunkedArray, places: IntArray) -> pa.ChunkedArray:
    """Return some rows of a column, in a type that rows can be picked from."""
    if not pa.types.is_primitive(array.type):
        kind = takeable(pa.field("", array.type)).type
        array = array if kind == array.type else array.cast(kind)
    elif len(places) == 1:
        return array.slice(int(places[0]), 1)
    # No slice of anything else: of lists of fixed length in each other pyarrow would then pick wrong rows. To take from one
    # chunk is many times faster than from a list of one.
    numbers = pa.array(places)
    return pa.chunked_array([array.chunk(0).take(numbers)]) if array.num_chunks == 1 else array.take(numbers)
