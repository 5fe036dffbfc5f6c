"""The cache of random access: open files, where pages and cells lie, and small decoded pages."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Generic, TypeAlias, TypeVar

import pyarrow as pa

from penstock._engine.lookup.byte_ranges import Cost, OpenFile
from penstock._engine.lookup.page_reads import StoredColumn
from penstock._engine.parquet.page_index import ColumnChunk, PageTable, parse_page_index, walk_pages
from penstock._engine.runtime.memory import BufferPool

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class LruCache(Generic[Key, Value]):
    """Values by key, up to a total size. The least recently used one is evicted first. All threads may use it.

    `functools.lru_cache` counts values and not their sizes; `cachetools` would be a dependency, and need a lock as well.

    Example:
        >>> cache: LruCache[str, int] = LruCache(max_size=10)
        >>> cache.put("a", 1, size=6)
        >>> cache.put("b", 2, size=6)
        >>> cache.get("a"), cache.get("b")
        (None, 2)
    """

    def __init__(self, max_size: int) -> None:
        """Store the largest total size, in the unit of the sizes of values."""
        self._max_size, self._size = max_size, 0
        self._values: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key) -> Value | None:
        """Return a value; None if it is not cached."""
        with self._lock:
            entry = self._values.get(key)
            if entry is None:
                return None
            self._values.move_to_end(key)
            return entry[0]

    def put(self, key: Key, value: Value, size: int) -> None:
        """Cache a value, unless it alone is too large."""
        if size > self._max_size:
            return
        with self._lock:
            _, old_size = self._values.pop(key, (None, 0))
            self._size += size - old_size
            self._values[key] = (value, size)
            while self._size > self._max_size:
                self._size -= self._values.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Remove all values."""
        with self._lock:
            self._values.clear()
            self._size = 0

    def __len__(self) -> int:
        """Return the number of cached values."""
        return len(self._values)


PageKey: TypeAlias = tuple[str, int, str, int]
"""The path of a file, a row group, a column, and the number of a page."""

FILES_BYTES, COLUMNS_BYTES, PAGES_BYTES = 32 << 20, 64 << 20, 64 << 20
"""The largest sizes of the footers of open files, of the places of pages and cells, and of decoded pages."""

MIN_FILE_BYTES = 1 << 19
"""The size of an open file at least, so that few files are open."""

SMALL = 1 << 20
"""The largest size of a decoded page that is cached: pages of numbers and words are, those of images are not."""


class LookupCache:
    """What is remembered of the files of a table.

    Attributes:
        files: Open files by path.
        pages: Decoded pages.
    """

    def __init__(self) -> None:
        """Begin empty."""
        self.files: LruCache[str, OpenFile] = LruCache(FILES_BYTES)
        self.pages: LruCache[PageKey, pa.ChunkedArray] = LruCache(PAGES_BYTES)
        self._columns: LruCache[tuple[str, int, tuple[str, ...]], list[StoredColumn]] = LruCache(COLUMNS_BYTES)
        self._refused: set[tuple[str, str]] = set()

    def put_file(self, file: OpenFile) -> None:
        """Cache an open file."""
        self.files.put(file.path, file, max(MIN_FILE_BYTES, file.layout.nbytes))

    def put_page(self, key: PageKey, page: pa.ChunkedArray) -> None:
        """Cache a decoded page if it is small."""
        if page.nbytes <= SMALL:
            self.pages.put(key, page, page.nbytes + 200)

    def refuse(self, file: OpenFile, name: str) -> None:
        """Leave a column to pyarrow from now on."""
        self._refused.add((file.path, name))
        self._columns.clear()

    def columns(
        self, file: OpenFile, group: int, names: tuple[str, ...], cost: Cost, buffer_pool: BufferPool
    ) -> list[StoredColumn]:
        """Return columns of a row group, except those that are left to pyarrow."""
        columns = self._columns.get((file.path, group, names))
        if columns is None:
            columns = self._parse(file, group, names, cost, buffer_pool)
            self._columns.put((file.path, group, names), columns, 500 + sum(column.nbytes for column in columns))
        return columns

    def _parse(
        self, file: OpenFile, group: int, names: Sequence[str], cost: Cost, buffer_pool: BufferPool
    ) -> list[StoredColumn]:
        columns, large = [], []
        for name in names:
            page_file, chunks = file.layout.column(name), file.layout.chunks(group, name)
            if page_file is None or chunks is None or (file.path, name) in self._refused:
                continue
            columns.append((name, page_file, chunks))
            # A chunk that costs no more than its page index is read whole.
            leaves = zip(page_file.leaves, chunks, strict=True)
            large += [(chunk, not leaf.repeated) for leaf, chunk in leaves if chunk.size > 2 * cost.request]
        pages = _page_tables(file, large, cost, buffer_pool)
        return [
            StoredColumn(name, page_file, [(chunk, pages.get(chunk.start)) for chunk in chunks])
            for name, page_file, chunks in columns
        ]


def _page_tables(
    file: OpenFile, chunks: Sequence[tuple[ColumnChunk, bool]], cost: Cost, buffer_pool: BufferPool
) -> dict[int, PageTable | None]:
    """Return the pages of chunks, by the first byte of the chunk; None if they are unknown. The flag says if it is flat."""
    spans = [(chunk.index[0], sum(chunk.index)) for chunk, _ in chunks if chunk.index is not None]
    data = iter(file.fetch(spans, cost, buffer_pool) if spans else ())
    tables = {}
    for chunk, flat in chunks:
        pages = None if chunk.index is None else parse_page_index(bytes(next(data)), chunk)
        if pages is None and cost.near:
            pages = walk_pages(file.read, chunk, flat=flat)
        tables[chunk.start] = pages
    return tables
