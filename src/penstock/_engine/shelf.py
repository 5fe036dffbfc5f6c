"""What is kept of a table's files for those who ask for rows by number: open files, where pages and cells lie, small pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import pyarrow as pa

from penstock._engine.keep import Keep
from penstock._engine.lease import Slabs
from penstock._engine.page_reads import StoredColumn
from penstock._engine.pages import Chunk, Pages, indexed, walked
from penstock._engine.spans import Cost, OpenFile

__all__ = ["Shelf"]

Key: TypeAlias = tuple[str, int, str, int]

FILES_MOST, COLUMNS_MOST, PAGES_MOST = 32 << 20, 64 << 20, 64 << 20
"""Bytes that are kept: of footers of open files, of places of pages and cells, of decoded pages."""

FILE_LEAST = 1 << 19
"""Bytes that an open file counts for at least, so that there are never too many of them."""

SMALL = 1 << 20
"""Bytes of Arrow up to which a decoded page is kept: columns of numbers and words, not images."""


class Shelf:
    """What is kept; as much as there is room for."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._files: Keep[str, OpenFile] = Keep(FILES_MOST)
        self._columns: Keep[tuple[str, int, tuple[str, ...]], list[StoredColumn]] = Keep(COLUMNS_MOST)
        self._pages: Keep[Key, pa.ChunkedArray] = Keep(PAGES_MOST)
        self._odd: set[tuple[str, str]] = set()

    def file(self, path: str) -> OpenFile | None:
        """Return an open file; None where it is not open."""
        return self._files.get(path)

    def put_file(self, file: OpenFile) -> None:
        """Keep a file open."""
        self._files.put(file.path, file, max(FILE_LEAST, file.anatomy.nbytes))

    def page(self, key: Key) -> pa.ChunkedArray | None:
        """Return the page of a file, a row group, a column and a number; None where it is not kept."""
        return self._pages.get(key)

    def put_page(self, key: Key, page: pa.ChunkedArray) -> None:
        """Keep a page that was decoded, if it is small."""
        if page.nbytes <= SMALL:
            self._pages.put(key, page, page.nbytes + 200)

    def refuse(self, file: OpenFile, name: str) -> None:
        """Leave a column to pyarrow from now on."""
        self._odd.add((file.path, name))
        self._columns.clear()

    def columns(self, file: OpenFile, group: int, names: tuple[str, ...], cost: Cost, slabs: Slabs) -> list[StoredColumn]:
        """Return columns of a row group, without those that are left to pyarrow.

        Raises:
            OSError: If it cannot be read where their pages lie.
        """
        found = self._columns.get((file.path, group, names))
        if found is None:
            found = self._found(file, group, names, cost, slabs)
            self._columns.put((file.path, group, names), found, 500 + sum(column.nbytes for column in found))
        return found

    def _found(self, file: OpenFile, group: int, names: Sequence[str], cost: Cost, slabs: Slabs) -> list[StoredColumn]:
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
        pages = _pages(file, large, cost, slabs)
        layouts = ((name, excerpt, [(chunk, pages.get(chunk.start)) for chunk in chunks]) for name, excerpt, chunks in known)
        return [StoredColumn(name, excerpt, layout) for name, excerpt, layout in layouts]


def _pages(file: OpenFile, chunks: Sequence[tuple[Chunk, bool]], cost: Cost, slabs: Slabs) -> dict[int, Pages | None]:
    """Return the pages of chunks, which may be flat, by where they begin; None where that cannot be found out."""
    spans = [(chunk.index[0], sum(chunk.index)) for chunk, _ in chunks if chunk.index is not None]
    data = iter(file.fetch(spans, cost, slabs) if spans else ())
    found = {}
    for chunk, flat in chunks:
        pages = None if chunk.index is None else indexed(bytes(next(data)), chunk)
        if pages is None and cost.near:
            pages = walked(file.read, chunk, flat=flat)
        found[chunk.start] = pages
    return found
