"""The columns and column chunks of one file, parsed from its footer when they are needed."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock._engine.parquet import thrift
from penstock._engine.parquet.page_file import PageFile, schema_of
from penstock._engine.parquet.page_index import ColumnChunk
from penstock._engine.parquet.thrift import Leaf, Only, ThriftError, Wanted, leaves, parse
from penstock.model import IntArray

INT96 = 3  # the physical type of timestamps whose unit the table chooses
OPTIONAL = 1
METADATA, WRITER = 5, 6
FILE_PATH, INDEX_AT, INDEX_SIZE, ENCRYPTION = 1, 4, 5, 8
ENCODINGS, CODEC, VALUES, DATA_AT, DICTIONARY_AT, PAGES = 2, 4, 5, 9, 11, 13
PAGE_KIND, PAGE_ENCODING, PAGE_COUNT = 1, 2, 3
DATA_PAGES, PLAIN, CODED = (0, 3), 0, (2, 8)  # of both versions; plain values, and indices of a dictionary
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
CHUNK_FIELDS: Wanted = {FILE_PATH: bytes, thrift.META: _META, INDEX_AT: int, INDEX_SIZE: int, ENCRYPTION: {}}
"""The fields of a column chunk that `column_chunk` needs."""

_FOOTER: dict[int, Wanted] = {thrift.SCHEMA: [memoryview], thrift.GROUPS: [memoryview], METADATA: [memoryview], WRITER: bytes}


class FileLayout:
    """The columns and row groups of one file.

    Attributes:
        schema: The columns, as pyarrow reads them.
        names: Their names.
        nbytes: Bytes in memory, roughly.
    """

    def __init__(self, footer: bytes, size: int) -> None:
        """Parse the schema of a footer."""
        fields = parse(footer, _FOOTER)
        self._elements: list[bytes] = fields.get(thrift.SCHEMA, [])
        self._groups: list[bytes] = fields.get(thrift.GROUPS, [])
        self._writer: bytes = fields.get(WRITER, b"")
        self._size = size
        every, _ = leaves({thrift.SCHEMA: [parse(one, thrift.ELEMENT) for one in self._elements]})
        self.schema: pa.Schema = schema_of(self._elements, fields.get(METADATA, []), self._writer)
        self.names = frozenset(self.schema.names)
        self._leaves: dict[bytes, list[Leaf]] = {}
        for leaf in every:
            self._leaves.setdefault(leaf.path[0], []).append(leaf)
        self._columns: dict[str, PageFile | None] = {}
        self._rows: dict[int, int] = {}
        self._chunks: dict[tuple[int, str], list[ColumnChunk] | None] = {}
        self.nbytes = 4 * len(footer)

    def rows(self, group: int) -> int:
        """Return the rows of a row group; -1 if there is no such row group, or its rows are unknown."""
        if group not in self._rows:
            fields = parse(self._groups[group], {thrift.ROWS: int}) if group < len(self._groups) else {}
            self._rows[group] = fields.get(thrift.ROWS, -1)
        return self._rows[group]

    def group_rows(self) -> IntArray:
        """Return the rows of all row groups."""
        return np.array([self.rows(group) for group in range(len(self._groups))], dtype=np.int64)

    def column(self, name: str) -> PageFile | None:
        """Return how pages of a column are decoded; None if the column must be left to pyarrow."""
        if name not in self._columns:
            self._columns[name] = self._parse_column(name)
        return self._columns[name]

    def _parse_column(self, name: str) -> PageFile | None:
        own = self._leaves.get(name.encode(), [])
        if self.schema.names.count(name) != 1 or not own or any(leaf.element[thrift.TYPE] == INT96 for leaf in own):
            return None
        return PageFile.of(self.schema.field(name), own, self._subtree(name.encode()), self._writer)

    def _subtree(self, name: bytes) -> list[bytes]:
        """Return the schema elements of a column, nested ones included."""
        subtree: list[bytes] = []
        unfinished = 0
        for raw in self._elements[1:]:
            element = parse(raw, {thrift.NAME: bytes, thrift.CHILDREN: int})
            if unfinished == 0:
                unfinished, belongs = 1, element[thrift.NAME] == name
            unfinished += element.get(thrift.CHILDREN, 0) - 1
            if belongs:
                subtree.append(raw)
        return subtree

    def chunks(self, group: int, name: str) -> list[ColumnChunk] | None:
        """Return the chunks of a column's leaves in a row group; None if they must be left to pyarrow."""
        key = (group, name)
        if key not in self._chunks:
            try:
                self._chunks[key] = self._parse_chunks(group, name)
            except ThriftError:
                self._chunks[key] = None
        return self._chunks[key]

    def _parse_chunks(self, group: int, name: str) -> list[ColumnChunk] | None:
        own = self._leaves.get(name.encode(), [])
        if group >= len(self._groups):
            return None
        places = {leaf.place: CHUNK_FIELDS for leaf in own}
        fields = parse(self._groups[group], {thrift.CHUNKS: Only(places=places), thrift.ROWS: int})
        chunks = [column_chunk(fields, leaf, self._size) for leaf in own]
        return None if None in chunks else [chunk for chunk in chunks if chunk is not None]


def column_chunk(group: Mapping[int, Any], leaf: Leaf, file_size: int = sys.maxsize) -> ColumnChunk | None:
    """Return the chunk of a leaf in a row group; None if it is encrypted, in another file, or not in the file's bytes."""
    chunks, rows = group.get(thrift.CHUNKS) or [], group.get(thrift.ROWS, -1)
    fields = (chunks[leaf.place] or {}) if leaf.place < len(chunks) else {}
    meta = fields.get(thrift.META, {})
    data, dictionary = meta.get(DATA_AT, -1), meta.get(DICTIONARY_AT, 0)
    start = dictionary if 0 < dictionary < data else data
    size, values = meta.get(thrift.SIZE, -1), meta.get(VALUES, -1)
    if FILE_PATH in fields or ENCRYPTION in fields or meta.get(thrift.TYPE) != leaf.element[thrift.TYPE]:
        return None
    in_file = start >= 4 and size > 0 and start + size <= file_size  # noqa: PLR2004 - the bytes PAR1
    if rows < 0 or values < 0 or not (in_file or rows == values == size == 0):
        return None
    at, length = fields.get(INDEX_AT, 0), fields.get(INDEX_SIZE, 0)
    coded, plain = _data_pages(meta.get(PAGES, ()))
    return ColumnChunk(
        start=start,
        size=size,
        values=values,
        rows=rows,
        physical=meta[thrift.TYPE],
        codec=meta.get(CODEC, -1),
        encodings=tuple(meta.get(ENCODINGS, ())),
        optional=leaf.element.get(thrift.REPETITION, 0) == OPTIONAL,
        index=(at, length) if at > 0 and length > 0 and at + length <= file_size else None,
        coded=coded,
        plain=plain,
    )


def _data_pages(counts: Sequence[Mapping[int, int]]) -> tuple[int, int]:
    """Return the number of data pages that use a dictionary, and of plain ones; -1 if there are others."""
    pages = {True: 0, False: 0}
    for one in counts:
        if one.get(PAGE_KIND) not in DATA_PAGES:
            continue
        encoding, count = one.get(PAGE_ENCODING, -1), one.get(PAGE_COUNT, -1)
        if count < 0 or encoding not in (PLAIN, *CODED):
            return -1, -1
        pages[encoding in CODED] += count
    return (pages[True], pages[False]) if any(pages.values()) else (-1, -1)
