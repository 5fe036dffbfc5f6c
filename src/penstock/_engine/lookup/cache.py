"""What is kept of a table's files for those who ask for rows by number: open files, where pages and cells lie, small pages."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Generic, TypeAlias, TypeVar

import pyarrow as pa

from penstock._engine.lookup.byte_ranges import Cost, OpenFile
from penstock._engine.lookup.page_reads import StoredColumn
from penstock._engine.parquet.page_index import ColumnChunk, PageTable, parse_page_index, walk_pages
from penstock._engine.runtime.buffers import BufferPool

__all__ = ["LookupCache", "LruCache"]

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class LruCache(Generic[Key, Value]):
    """Values by key; what was not asked for longest goes first when there is no room. Any thread may ask.

    Example:
        >>> keep: LruCache[str, int] = LruCache(most=10)
        >>> keep.put("a", 1, size=6)
        >>> keep.put("b", 2, size=6)
        >>> keep.get("a"), keep.get("b")
        (None, 2)
    """

    def __init__(self, most: int) -> None:
        """Store how much there is room for, in whatever unit sizes are given."""
        self._most, self._used = most, 0
        self._found: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key) -> Value | None:
        """Return a value; None where it is not kept."""
        with self._lock:
            found = self._found.get(key)
            if found is None:
                return None
            self._found.move_to_end(key)
            return found[0]

    def put(self, key: Key, value: Value, size: int) -> None:
        """Keep a value, unless it alone is too large."""
        if size > self._most:
            return
        with self._lock:
            old = self._found.pop(key, None)
            self._used += size - (old[1] if old is not None else 0)
            self._found[key] = (value, size)
            while self._used > self._most:
                self._used -= self._found.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Keep nothing of it."""
        with self._lock:
            self._found.clear()
            self._used = 0

    def __len__(self) -> int:
        """Return how many values are kept."""
        return len(self._found)


PageKey: TypeAlias = tuple[str, int, str, int]

FILES_MOST, COLUMNS_MOST, PAGES_MOST = 32 << 20, 64 << 20, 64 << 20
"""Bytes that are kept: of footers of open files, of places of pages and cells, of decoded pages."""

FILE_LEAST = 1 << 19
"""Bytes that an open file counts for at least, so that there are never too many of them."""

SMALL = 1 << 20
"""Bytes of Arrow up to which a decoded page is kept: columns of numbers and words, not images."""


class LookupCache:
    """What is kept; as much as there is room for."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._files: LruCache[str, OpenFile] = LruCache(FILES_MOST)
        self._columns: LruCache[tuple[str, int, tuple[str, ...]], list[StoredColumn]] = LruCache(COLUMNS_MOST)
        self._pages: LruCache[PageKey, pa.ChunkedArray] = LruCache(PAGES_MOST)
        self._odd: set[tuple[str, str]] = set()

    def file(self, path: str) -> OpenFile | None:
        """Return an open file; None where it is not open."""
        return self._files.get(path)

    def put_file(self, file: OpenFile) -> None:
        """Keep a file open."""
        self._files.put(file.path, file, max(FILE_LEAST, file.anatomy.nbytes))

    def page(self, key: PageKey) -> pa.ChunkedArray | None:
        """Return the page of a file, a row group, a column and a number; None where it is not kept."""
        return self._pages.get(key)

    def put_page(self, key: PageKey, page: pa.ChunkedArray) -> None:
        """Keep a page that was decoded, if it is small."""
        if page.nbytes <= SMALL:
            self._pages.put(key, page, page.nbytes + 200)

    def refuse(self, file: OpenFile, name: str) -> None:
        """Leave a column to pyarrow from now on."""
        self._odd.add((file.path, name))
        self._columns.clear()

    def columns(
        self, file: OpenFile, group: int, names: tuple[str, ...], cost: Cost, buffer_pool: BufferPool
    ) -> list[StoredColumn]:
        """Return columns of a row group, without those that are left to pyarrow.

        Raises:
            OSError: If it cannot be read where their pages lie.
        """
        found = self._columns.get((file.path, group, names))
        if found is None:
            found = self._found(file, group, names, cost, buffer_pool)
            self._columns.put((file.path, group, names), found, 500 + sum(column.nbytes for column in found))
        return found

    def _found(
        self, file: OpenFile, group: int, names: Sequence[str], cost: Cost, buffer_pool: BufferPool
    ) -> list[StoredColumn]:
        known, large = [], []
        for name in names:
            excerpt, chunks = file.anatomy.column(name), file.anatomy.chunks(group, name)
            if excerpt is None or chunks is None or (file.path, name) in self._odd:
                continue
            known.append((name, excerpt, chunks))
            for leaf, chunk in zip(excerpt.leaves, chunks, strict=True):
                # What costs no more to read than where its pages lie is read whole.
                if chunk.size > 2 * cost.request:
                    large.append((chunk, not leaf.repeated))
        pages = _pages(file, large, cost, buffer_pool)
        layouts = ((name, excerpt, [(chunk, pages.get(chunk.start)) for chunk in chunks]) for name, excerpt, chunks in known)
        return [StoredColumn(name, excerpt, layout) for name, excerpt, layout in layouts]


def _pages(
    file: OpenFile, chunks: Sequence[tuple[ColumnChunk, bool]], cost: Cost, buffer_pool: BufferPool
) -> dict[int, PageTable | None]:
    """Return the pages of chunks, which may be flat, by where they begin; None where that cannot be found out."""
    spans = [(chunk.index[0], sum(chunk.index)) for chunk, _ in chunks if chunk.index is not None]
    data = iter(file.fetch(spans, cost, buffer_pool) if spans else ())
    found = {}
    for chunk, flat in chunks:
        pages = None if chunk.index is None else parse_page_index(bytes(next(data)), chunk)
        if pages is None and cost.near:
            pages = walk_pages(file.read, chunk, flat=flat)
        found[chunk.start] = pages
    return found
