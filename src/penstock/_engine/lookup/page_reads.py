"""How rows of a column are read from one row group: single pages, or the whole chunk, whichever costs less."""

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
from penstock._engine.read.schema_evolution import without_view_types
from penstock._engine.runtime.memory import BufferPool
from penstock.model import IntArray

StoredRows: TypeAlias = pa.ChunkedArray | Blobs | FileBlobs
PageRows: TypeAlias = tuple[IntArray, IntArray]
"""The numbers of pages, and the indices of rows among the rows of these pages."""

WHOLE_CHUNK = -1
"""The page number of a whole chunk."""

SMALL = 1 << 20
"""Bytes of chunks that are read whole here. Larger ones are left to pyarrow, which does not copy them."""

LARGE, RUN = 64 << 20, 4 << 20
"""Bytes of pages from which on pages are decoded in runs, in reused memory: to allocate memory for all takes longer."""

EMPTY = memoryview(b"")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _LeafPages:
    """What is read of one leaf.

    Attributes:
        chunk: Its chunk.
        spans: The bytes to read: of the dictionary and of each page, or of the whole chunk.
        sizes: The rows of each page, or of the chunk.
        paged: Whether single pages are read.
        flat: Whether a row has one value.
    """

    chunk: ColumnChunk
    spans: Sequence[tuple[int, int]]
    sizes: Sequence[int]
    paged: bool = False
    flat: bool = False

    @classmethod
    def whole(cls, chunk: ColumnChunk) -> _LeafPages:
        """Return a whole chunk."""
        return cls(chunk=chunk, spans=[(chunk.start, chunk.stop)], sizes=[chunk.rows])

    @classmethod
    def of(cls, chunk: ColumnChunk, pages: PageTable, numbers: IntArray, *, flat: bool) -> _LeafPages:
        """Return some pages of a chunk. What is before the first page is their dictionary."""
        first, sizes = int(pages.start[0]), pages.first[numbers + 1] - pages.first[numbers]
        spans = [(chunk.start, first)] if first > chunk.start else []
        return cls(chunk=chunk, spans=spans + pages.spans(numbers), sizes=sizes.tolist(), paged=True, flat=flat)

    def page_range(self, data: Sequence[memoryview]) -> PageRange:
        """Return the pages in the bytes of the spans."""
        if not self.paged:
            return PageRange(chunk=self.chunk, values=self.chunk.values, dictionary=EMPTY, pages=data)
        dictionary, pages, values = EMPTY, data, 0
        if len(data) > len(self.sizes):
            dictionary, *pages = data
        for page, rows in zip(pages, self.sizes, strict=True):
            header = page_header(page)
            # A wrong index would give other rows than the requested ones.
            if (header.values if self.flat else header.rows) not in (rows, -1):
                raise ThriftError("a page has other rows than its index says")
            values += header.values
        return PageRange(chunk=self.chunk, values=values, dictionary=dictionary, pages=pages)


class ColumnRead:
    """A way to read some rows of a column in one row group.

    Attributes:
        spans: The bytes to fetch first.
        size: The bytes that are read in all.
        page: The only page that is read, by its number, or WHOLE_CHUNK; None for several pages.
    """

    spans: Sequence[tuple[int, int]] = ()
    size = 0
    page: int | None = None

    def rows(self, data: Sequence[memoryview], buffer_pool: BufferPool) -> StoredRows:
        """Return the rows, given the bytes of the spans."""
        raise NotImplementedError


class PageRead(ColumnRead):
    """Pages that pyarrow decodes."""

    def __init__(
        self, page_file: PageFile, leaves: Sequence[_LeafPages | None], places: IntArray, page: int | None = None
    ) -> None:
        """Store the pages of each leaf, None for leaves that are not read, and which of their rows are requested."""
        self._page_file, self._leaves, self._places, self.page = page_file, leaves, places, page
        self.spans = [span for leaf in leaves if leaf is not None for span in leaf.spans]
        self.size = sum(stop - start for start, stop in self.spans)

    def decode(self, data: Sequence[memoryview], buffer_pool: BufferPool) -> pa.ChunkedArray:
        """Return all rows of the pages."""
        pieces: list[PageRange | None] = []
        rows, spans = 0, iter(data)
        for leaf in self._leaves:
            pieces.append(None if leaf is None else leaf.page_range([next(spans) for _ in leaf.spans]))
            rows = rows if leaf is None else sum(leaf.sizes)
        column, field = self._page_file.decode(pieces, rows, buffer_pool), self._page_file.field
        if len(column) != rows or (None not in pieces and column.type != field.type):
            raise ValueError(f"{len(column)} rows of {column.type} were found where {rows} of {field.type} were expected")
        return column

    def take(self, decoded: pa.ChunkedArray, *, copy: bool = False) -> pa.ChunkedArray:
        """Return the requested rows of those that were decoded."""
        return take_rows(decoded, self._places, copy=copy)

    def rows(self, data: Sequence[memoryview], buffer_pool: BufferPool) -> pa.ChunkedArray:
        """Return the rows."""
        return self.take(self.decode(data, buffer_pool))


class LeafReads(ColumnRead):
    """A nested column whose leaves are read one by one."""

    def __init__(self, page_file: PageFile, leaves: Sequence[PageRead]) -> None:
        """Store how each leaf is read."""
        self._page_file, self._leaves = page_file, leaves
        self.spans = [span for leaf in leaves for span in leaf.spans]
        self.size = sum(leaf.size for leaf in leaves)

    def rows(self, data: Sequence[memoryview], buffer_pool: BufferPool) -> StoredRows:
        """Return the rows."""
        spans = iter(data)
        arrays = [leaf.rows([next(spans) for _ in leaf.spans], buffer_pool).combine_chunks() for leaf in self._leaves]
        return pa.chunked_array([put_together(self._page_file.field.type, arrays)])


class RunReads(ColumnRead):
    """Many pages, of which a few at a time are in memory."""

    def __init__(self, file: OpenFile, runs: Sequence[PageRead]) -> None:
        """Store how each run of pages is read."""
        self._file, self._runs = file, runs
        self.size = sum(run.size for run in runs)

    def rows(self, data: Sequence[memoryview], buffer_pool: BufferPool) -> pa.ChunkedArray:  # noqa: ARG002 - there are no spans
        """Return the rows."""
        chunks: list[pa.Array] = []
        for run in self._runs:
            column = run.decode(self._file.fetch(run.spans, LOCAL, buffer_pool), buffer_pool)
            chunks += run.take(column, copy=True).chunks
        return pa.chunked_array(chunks)


class PlainRead(ColumnRead):
    """Cells of plain pages, found without decoding; other pages are decoded."""

    def __init__(
        self, file: OpenFile, cells: PlainCells, pages: PageTable, rows: IntArray, decoding: PageRead | RunReads
    ) -> None:
        """Store the cells, and how their pages are decoded if necessary."""
        self._file, self._cells, self._rows, self._decoding = file, cells, rows, decoding
        self._numbers = pages.holding(rows)[0]
        self._pages = pages.spans(self._numbers)  # without a dictionary, which they do not need
        self.size = sum(stop - start for start, stop in self._pages)
        # Compressed pages of a local file are read one by one, so that they are not in memory all at once.
        self.spans = () if cells.compressed and isinstance(file.source, LocalFile) else self._pages

    def rows(self, data: Sequence[memoryview], buffer_pool: BufferPool) -> StoredRows:
        """Return the rows."""
        page = data.__getitem__ if data else self._file.one_by_one(self._pages, buffer_pool)
        cells = self._cells.cells(self._numbers, page, self._rows, buffer_pool)
        if cells is not None:
            return cells
        spans = self._decoding.spans
        if len(data) != len(spans):  # there is a dictionary too, or nothing was read
            data = self._file.fetch(spans, LOCAL, buffer_pool) if spans else ()
        return self._decoding.rows(data, buffer_pool)


class LocatedRead(ColumnRead):
    """Cells that stay in their file until they are needed."""

    def __init__(self, file: LocalFile, start: IntArray, stop: IntArray) -> None:
        """Store where they are."""
        self._file, self._start, self._stop = file, start, stop

    def rows(self, data: Sequence[memoryview], buffer_pool: BufferPool) -> StoredRows:  # noqa: ARG002 - there are no spans
        """Return the cells; a single one is read at once."""
        source = np.zeros(len(self._start), dtype=np.int64)
        if len(source) > 1:
            return FileBlobs(sources=(self._file,), source=source, start=self._start, stop=self._stop)
        size = self._stop - self._start
        cell = self._file.peek(int(self._start[0]), int(size[0]))
        if len(cell) < size[0]:
            raise OSError("the file ends before its cell does")
        return Blobs(buffers=(np.frombuffer(cell, np.uint8),), source=source, start=source, stop=size)


class MixedRead(ColumnRead):
    """Cells that are entries of a dictionary, followed by plain cells that were written after it was full."""

    def __init__(self, kind: pa.DataType, coded: PageRead | RunReads, plain: PlainRead | LocatedRead) -> None:
        """Store how each of them is read."""
        self._kind, self._coded, self._plain = kind, coded, plain
        self.spans = [*coded.spans, *plain.spans]
        self.size = coded.size + plain.size

    def rows(self, data: Sequence[memoryview], buffer_pool: BufferPool) -> StoredRows:
        """Return the rows."""
        at = len(self._coded.spans)
        first, rest = self._coded.rows(data[:at], buffer_pool), self._plain.rows(data[at:], buffer_pool)
        if isinstance(rest, FileBlobs):
            rest = rest.loaded(buffer_pool)
        chunks = [as_arrow(rest, self._kind, buffer_pool)] if isinstance(rest, Blobs) else rest.chunks
        return pa.chunked_array([*first.chunks, *chunks])


class StoredColumn:
    """A column in one row group, and how its rows are best read.

    Attributes:
        name: Its name in the file.
        nbytes: Bytes in memory, roughly.
    """

    def __init__(self, name: str, page_file: PageFile, layout: Sequence[tuple[ColumnChunk, PageTable | None]]) -> None:
        """Store the chunk of each leaf, and its pages, or None if they are unknown."""
        self.name, self._page_file, self._layout = name, page_file, layout
        self._size = sum(chunk.size for chunk, _ in layout)
        self._paged = any(pages is not None for _, pages in layout) and (len(layout) == 1 or page_file.splits)
        self._whole = [_LeafPages.whole(chunk) for chunk, _ in layout]
        self._cells, self._plain_from = _plain_cells(page_file, layout)
        self.nbytes = 500 + sum(pages.nbytes for _, pages in layout if pages is not None)
        self.nbytes += 0 if self._cells is None else self._cells.nbytes

    def read_of(self, file: OpenFile, rows: IntArray, cost: Cost) -> ColumnRead | None:
        """Return how to read some rows, by their ascending numbers in the row group; None if pyarrow reads them better."""
        coded = len(rows) if self._cells is None else int(np.searchsorted(rows, self._plain_from))
        if not coded:
            return self._choose(file, rows, cost, self._cells)
        if coded < len(rows):
            first, rest = self._choose(file, rows[:coded], cost, None), self._choose(file, rows[coded:], cost, self._cells)
            if isinstance(first, PageRead | RunReads) and isinstance(rest, PlainRead | LocatedRead):
                return MixedRead(self._page_file.field.type, first, rest)
        return self._choose(file, rows, cost, None)

    def _choose(self, file: OpenFile, rows: IntArray, cost: Cost, cells: PlainCells | None) -> ColumnRead | None:
        """Return how to read some rows; `cells` are those of plain pages."""
        source, pages = file.source, self._layout[0][1]
        if cells is not None and cells.odd and pages is not None and not cells.odd.isdisjoint(pages.holding(rows)[0].tolist()):
            cells = None
        if cells is not None and not cells.compressed and isinstance(source, LocalFile):
            places = cells.located(rows, file.read)
            if places is not None:
                return LocatedRead(source, *places)
        if self._paged:
            held = [None if pages is None else pages.holding(rows) for _, pages in self._layout]
            # A whole chunk of a local file is not read if it needs much new memory. Plain cells never need it.
            near = cost.near and len(self._layout) == 1 and (cells is not None or self._size > LARGE)
            if near or 4 * self._cost(held, cost) < 3 * (self._size + cost.request):
                return self._by_page(file, held, rows, cost, cells)
        if self._size > SMALL:
            return None
        return PageRead(self._page_file, self._whole, rows, WHOLE_CHUNK)

    def _cost(self, held: Sequence[PageRows | None], cost: Cost) -> int:
        """Return the cost of some pages of each leaf, or of the whole chunk if its pages are unknown."""
        total = 0
        for (chunk, pages), one in zip(self._layout, held, strict=True):
            if pages is None or one is None:
                total += chunk.size + cost.request
            else:
                total += cost.of(pages.start[one[0]], pages.size[one[0]]) + int(pages.start[0]) - chunk.start
        return total

    def _by_page(
        self, file: OpenFile, held: Sequence[PageRows | None], rows: IntArray, cost: Cost, cells: PlainCells | None
    ) -> ColumnRead:
        """Return how to read some pages of each leaf."""
        reads = []
        for at, ((chunk, pages), one) in enumerate(zip(self._layout, held, strict=True)):
            leaves: list[_LeafPages | None] = [None] * len(self._layout)
            places, page = rows, None
            if pages is None or one is None:
                leaves[at] = _LeafPages.whole(chunk)
            else:
                numbers, places = one
                leaves[at] = _LeafPages.of(chunk, pages, numbers, flat=not self._page_file.leaves[at].repeated)
                page = int(numbers[0]) if len(numbers) == 1 else None
            reads.append(PageRead(self._page_file, leaves, places, page))
        if len(reads) > 1:
            return LeafReads(self._page_file, reads)
        pages = self._layout[0][1]
        if pages is None:
            return reads[0]
        decoding = self._in_runs(file, pages, rows) if cost.near and reads[0].size > LARGE else reads[0]
        return decoding if cells is None else PlainRead(file, cells, pages, rows, decoding)

    def _in_runs(self, file: OpenFile, pages: PageTable, rows: IntArray) -> RunReads:
        """Return how to read many pages of a column with one leaf, a few at a time."""
        chunk, flat = self._layout[0][0], not self._page_file.leaves[0].repeated
        numbers = pages.holding(rows)[0]
        run = np.cumsum(pages.size[numbers]) // RUN
        last = numbers[np.append(run[1:] != run[:-1], True)]  # of each run
        reads = []
        for part in np.split(rows, np.searchsorted(rows, pages.first[last[:-1] + 1])):
            held, places = pages.holding(part)
            reads.append(PageRead(self._page_file, [_LeafPages.of(chunk, pages, held, flat=flat)], places))
        return RunReads(file, reads)


def _plain_cells(page_file: PageFile, layout: Sequence[tuple[ColumnChunk, PageTable | None]]) -> tuple[PlainCells | None, int]:
    """Return the cells of a column that need no decoding, and the first row of its row group that has one."""
    chunk, pages = layout[0]
    if pages is None or len(layout) > 1 or not are_plain(chunk, page_file.leaves[0], page_file.field.type):
        return None, 0
    if int(pages.start[0]) == chunk.start:
        return PlainCells(chunk, page_file.leaves[0], pages), 0
    if chunk.coded + chunk.plain != len(pages):  # the page table leaves pages without rows out
        return None, 0
    return PlainCells(chunk, page_file.leaves[0], pages), int(pages.first[chunk.coded])


def take_rows(array: pa.ChunkedArray, places: IntArray, *, copy: bool = False) -> pa.ChunkedArray:
    """Return some rows of a column, in a type that pyarrow can take from. A single number is a view, unless `copy`."""
    if not pa.types.is_primitive(array.type):
        kind = without_view_types(pa.field("", array.type)).type
        array = array if kind == array.type else array.cast(kind)
    elif len(places) == 1 and not copy:
        return array.slice(int(places[0]), 1)
    # No slice of other types: from slices of nested lists of fixed length pyarrow takes wrong rows. To take from one chunk is
    # many times faster than from a list of one.
    numbers = pa.array(places)
    return pa.chunked_array([array.chunk(0).take(numbers)]) if array.num_chunks == 1 else array.take(numbers)
