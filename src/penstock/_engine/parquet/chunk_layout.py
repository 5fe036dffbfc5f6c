"""What a file's footer says of where its columns lie, looked up row group by row group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock._engine.parquet import thrift
from penstock._engine.parquet.page_file import PageFile, schema_of
from penstock._engine.parquet.page_index import ColumnChunk
from penstock._engine.parquet.thrift import Leaf, Only, ThriftError, Wanted, leaves, parse
from penstock.model import IntArray

__all__ = ["FileLayout"]

INT96 = 3  # the physical type of timestamps whose unit is the table's to choose
METADATA, WRITER = 5, 6
FILE_PATH, INDEX_AT, INDEX_SIZE, ENCRYPTION = 1, 4, 5, 8
ENCODINGS, CODEC, VALUES, DATA_AT, DICTIONARY_AT, PAGES = 2, 4, 5, 9, 11, 13
PAGE_KIND, PAGE_ENCODING, PAGE_COUNT = 1, 2, 3
DATA_PAGES, PLAIN, CODED = (0, 3), 0, (2, 8)  # of both versions; encodings of values, and of numbers of a dictionary
_META: Wanted = {
    thrift.TYPE: int,
    ENCODINGS: [int],
    CODEC: int,
    VALUES: int,
    thrift.SIZE: int,
    DATA_AT: int,
    DICTIONARY_AT: int,
    PAGES: [{PAGE_KIND: int, PAGE_ENCODING: int, PAGE_COUNT: int}],
}
_CHUNK: Wanted = {FILE_PATH: bytes, thrift.META: _META, INDEX_AT: int, INDEX_SIZE: int, ENCRYPTION: {}}
_WHOLE: dict[int, Wanted] = {
    thrift.SCHEMA: [memoryview],
    thrift.GROUPS: [memoryview],
    METADATA: [memoryview],
    WRITER: bytes,
}


class FileLayout:
    """The columns and row groups of one file.

    Attributes:
        schema: Its columns, as pyarrow reads them.
        names: Their names.
        nbytes: What it takes in memory, roughly.
    """

    def __init__(self, footer: bytes, size: int) -> None:
        """Look through a footer.

        Args:
            footer: Its bytes.
            size: Those of the file, which nothing may lie beyond.

        Raises:
            ThriftError: If it makes no sense.
            OSError, ArrowException: If pyarrow cannot make sense of its columns.
        """
        told = parse(footer, _WHOLE)
        self._elements: list[bytes] = told.get(thrift.SCHEMA, [])
        self._groups: list[bytes] = told.get(thrift.GROUPS, [])
        self._writer: bytes = told.get(WRITER, b"")
        self._size = size
        every, _ = leaves({thrift.SCHEMA: [parse(one, thrift.ELEMENT) for one in self._elements]})
        self.schema: pa.Schema = schema_of(self._elements, told.get(METADATA, []), self._writer)
        self.names = frozenset(self.schema.names)
        self._leaves: dict[bytes, list[Leaf]] = {}
        for leaf in every:
            self._leaves.setdefault(leaf.path[0], []).append(leaf)
        self._columns: dict[str, PageFile | None] = {}
        self._rows: dict[int, int] = {}
        self._chunks: dict[tuple[int, str], list[ColumnChunk] | None] = {}
        self.nbytes = 4 * len(footer)

    def rows(self, group: int) -> int:
        """Return the rows of a row group; -1 where it does not say, or is not there.

        Raises:
            ThriftError: If what is said of it makes no sense.
        """
        if group not in self._rows:
            told = parse(self._groups[group], {thrift.ROWS: int}) if group < len(self._groups) else {}
            self._rows[group] = told.get(thrift.ROWS, -1)
        return self._rows[group]

    def group_rows(self) -> IntArray:
        """Return the rows of all row groups.

        Raises:
            ThriftError: If what is said of one makes no sense.
        """
        return np.array([self.rows(group) for group in range(len(self._groups))], dtype=np.int64)

    def column(self, name: str) -> PageFile | None:
        """Return what is known of a column; None where it must be left to pyarrow."""
        if name not in self._columns:
            self._columns[name] = self._column(name)
        return self._columns[name]

    def _column(self, name: str) -> PageFile | None:
        mine = self._leaves.get(name.encode(), [])
        if self.schema.names.count(name) != 1 or not mine or any(leaf.element[thrift.TYPE] == INT96 for leaf in mine):
            return None
        field = self.schema.field(name)
        return PageFile.of(field, mine, self._subtree(name.encode()), self._writer)

    def _subtree(self, name: bytes) -> list[bytes]:
        """Return what the schema says of a column, and of all below it."""
        found: list[bytes] = []
        open_ = 0
        for raw in self._elements[1:]:
            element = parse(raw, {thrift.NAME: bytes, thrift.CHILDREN: int})
            inside = open_ > 0
            if not inside:
                open_, mine = 1, element[thrift.NAME] == name
            open_ += element.get(thrift.CHILDREN, 0) - 1
            if mine:
                found.append(raw)
        return found

    def chunks(self, group: int, name: str) -> list[ColumnChunk] | None:
        """Return the chunks of a column's leaves in a row group; None where they must be left to pyarrow."""
        key = (group, name)
        if key not in self._chunks:
            try:
                self._chunks[key] = self._found(group, name)
            except ThriftError:
                self._chunks[key] = None
        return self._chunks[key]

    def _found(self, group: int, name: str) -> list[ColumnChunk] | None:
        mine = self._leaves.get(name.encode(), [])
        if group >= len(self._groups):
            return None
        places = {leaf.place: _CHUNK for leaf in mine}
        told = parse(self._groups[group], {thrift.CHUNKS: Only(places=places), thrift.ROWS: int})
        every, rows = told.get(thrift.CHUNKS, []), told.get(thrift.ROWS, -1)
        if rows < 0 or any(leaf.place >= len(every) for leaf in mine):
            return None
        found = [self._chunk(every[leaf.place], rows, leaf) for leaf in mine]
        return None if None in found else [one for one in found if one is not None]

    def _chunk(self, told: Mapping[int, Any], rows: int, leaf: Leaf) -> ColumnChunk | None:
        """Return a chunk that lies in the file; None of one that is encrypted, lies elsewhere or nowhere."""
        meta = told.get(thrift.META, {})
        data, dictionary = meta.get(DATA_AT, -1), meta.get(DICTIONARY_AT, 0)
        start = dictionary if 0 < dictionary < data else data
        size, values = meta.get(thrift.SIZE, -1), meta.get(VALUES, -1)
        if FILE_PATH in told or ENCRYPTION in told or meta.get(thrift.TYPE) != leaf.element[thrift.TYPE]:
            return None
        if start < 4 or size <= 0 or start + size > self._size or values < 0:  # noqa: PLR2004 - the bytes that say PAR1
            return None
        at, length = told.get(INDEX_AT, 0), told.get(INDEX_SIZE, 0)
        index = (at, length) if at > 0 and length > 0 and at + length <= self._size else None
        coded, plain = _data_pages(meta.get(PAGES, ()))
        return ColumnChunk(
            start=start,
            size=size,
            values=values,
            rows=rows,
            physical=meta[thrift.TYPE],
            codec=meta.get(CODEC, -1),
            encodings=tuple(meta.get(ENCODINGS, ())),
            index=index,
            coded=coded,
            plain=plain,
        )


def _data_pages(told: Sequence[Mapping[int, int]]) -> tuple[int, int]:
    """Return how many data pages hold numbers of a dictionary, and how many plain values; -1 where there are others."""
    found = {True: 0, False: 0}
    for one in told:
        if one.get(PAGE_KIND) not in DATA_PAGES:
            continue
        encoding, count = one.get(PAGE_ENCODING, -1), one.get(PAGE_COUNT, -1)
        if count < 0 or encoding not in (PLAIN, *CODED):
            return -1, -1
        found[encoding in CODED] += count
    return (found[True], found[False]) if any(found.values()) else (-1, -1)
