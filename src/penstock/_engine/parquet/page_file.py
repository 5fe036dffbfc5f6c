"""Pages of a column as a small Parquet file, which pyarrow decodes with all its encodings, compressions and nested types.

The file has one column, with the schema of the original file, and one row group. The leaves of a nested column have pages of
different rows. They are decoded one by one, and put together after the requested rows were taken of each.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock._engine.parquet.page_index import ColumnChunk
from penstock._engine.parquet.thrift import BINARY, I32, I64, LIST, STRUCT, Leaf
from penstock._engine.runtime.memory import BufferPool

MAGIC = b"PAR1"
ROOT = b"\x48\x06schema\x15\x02\x00"  # the element above all columns: its name, and one child


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PageRange:
    """Pages of one leaf.

    Attributes:
        values: The number of their values.
        dictionary: The bytes of their dictionary page; empty if there is none.
        pages: The bytes of the pages.
    """

    chunk: ColumnChunk
    values: int
    dictionary: memoryview
    pages: Sequence[memoryview]

    @property
    def size(self) -> int:
        """The bytes of all pages."""
        return len(self.dictionary) + sum(map(len, self.pages))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PageFile:
    """What all small files of one column have in common.

    Attributes:
        field: The column, as pyarrow reads it from the original file.
        splits: Whether leaves that were decoded one by one can be put together.
        before: The bytes of the footer before the row groups.
        after: The bytes of the footer after them.
    """

    field: pa.Field
    leaves: tuple[Leaf, ...]
    splits: bool
    before: bytes
    after: bytes

    @classmethod
    def of(cls, field: pa.Field, leaves: Sequence[Leaf], elements: Sequence[bytes], writer: bytes) -> PageFile:
        """Return the page file of a column, given its elements in the original's schema."""
        schema = base64.b64encode(pa.schema([field]).serialize().to_pybytes())
        pair = _struct((1, BINARY, _binary(b"ARROW:schema")), (2, BINARY, _binary(schema)))
        before, after = _around([ROOT, *elements], [pair], writer)
        splits = leaf_count(field.type) == len(leaves)
        return cls(field=field, leaves=tuple(leaves), splits=splits, before=before, after=after)

    def decode(self, pieces: Sequence[PageRange | None], rows: int, buffer_pool: BufferPool) -> pa.ChunkedArray:
        """Return pages as pyarrow reads them."""
        content: list[bytes | memoryview] = [MAGIC]
        chunks, at = [], len(MAGIC)
        for leaf, piece in zip(self.leaves, pieces, strict=True):
            chunks.append(_chunk(leaf, piece, at, rows + 1))
            if piece is not None:
                content += [piece.dictionary, *piece.pages]
                at += piece.size
        group = _struct((1, LIST, _list(STRUCT, chunks)), (2, I64, _number(at)), (3, I64, _number(rows + 1)))
        footer = self.before + _list(STRUCT, [group]) + self.after
        content += [footer, len(footer).to_bytes(4, "little"), MAGIC]
        reader = pq.ParquetFile(pa.BufferReader(joined(content, buffer_pool))).reader
        present = [number for number, piece in enumerate(pieces) if piece is not None]
        return reader.read_all(column_indices=present, use_threads=False).column(0)


def joined(parts: Sequence[bytes | memoryview], buffer_pool: BufferPool) -> pa.Buffer:
    """Return bytes one after the other, in memory of a buffer pool."""
    memory = buffer_pool.empty((sum(map(len, parts)),), np.dtype(np.uint8))
    view, at = memory.data, 0
    for part in parts:
        view[at : at + len(part)] = part
        at += len(part)
    return pa.py_buffer(memory)


def schema_of(elements: Sequence[bytes], metadata: Sequence[bytes], writer: bytes) -> pa.Schema:
    """Return a file's columns as pyarrow reads them, given the elements of its schema, its metadata and its writer."""
    before, after = _around(elements, metadata, writer)
    footer = before + _list(STRUCT, []) + after
    whole = MAGIC + footer + len(footer).to_bytes(4, "little") + MAGIC
    return pq.ParquetFile(pa.BufferReader(whole)).schema_arrow


def _around(elements: Sequence[bytes], metadata: Sequence[bytes], writer: bytes) -> tuple[bytes, bytes]:
    """Return the bytes of a footer before and after the list of row groups.

    They include the writer of the original file, since pyarrow corrects the mistakes of some writers.
    """
    before = _struct((1, I32, _number(2)), (2, LIST, _list(STRUCT, elements)), (3, I64, _number(1)))[:-1]
    after = [bytes([1 << 4 | LIST]), _list(STRUCT, metadata), bytes([1 << 4 | BINARY]), _binary(writer), b"\x00"]
    return before + bytes([1 << 4 | LIST]), b"".join(after)


def _chunk(leaf: Leaf, piece: PageRange | None, at: int, max_values: int) -> bytes:
    """Return a column chunk of a footer; a missing one has no bytes, and `max_values` values.

    Older versions of pyarrow read at most as many rows of a leaf as the first leaf has values.
    """
    chunk = None if piece is None else piece.chunk
    size, values = (0, max_values) if piece is None else (piece.size, piece.values)
    encodings = [_number(one) for one in chunk.encodings] if chunk is not None else []
    fields = [
        (1, I32, _number(chunk.physical if chunk is not None else 0)),
        (2, LIST, _list(I32, encodings)),
        (3, LIST, _list(BINARY, [_binary(name) for name in leaf.path])),
        (4, I32, _number(chunk.codec if chunk is not None else 0)),
        (5, I64, _number(values)),
        (6, I64, _number(size)),
        (7, I64, _number(size)),
        (9, I64, _number(at + (len(piece.dictionary) if piece is not None else 0))),
    ]
    if piece is not None and len(piece.dictionary):
        fields.append((11, I64, _number(at)))
    return _struct((2, I64, _number(at)), (3, STRUCT, _struct(*fields)))


def _struct(*fields: tuple[int, int, bytes]) -> bytes:
    """Return a struct in Thrift's compact protocol, given the number, type and value of each field, by number."""
    parts, last = [], 0
    for number, kind, value in fields:
        parts += [bytes([number - last << 4 | kind]), value]
        last = number
    return b"".join([*parts, b"\x00"])


def _list(kind: int, items: Sequence[bytes]) -> bytes:
    count = len(items)
    head = bytes([count << 4 | kind]) if count < 15 else bytes([0xF0 | kind]) + _varint(count)  # noqa: PLR2004 - half a byte
    return head + b"".join(items)


def _binary(value: bytes) -> bytes:
    return _varint(len(value)) + value


def _number(value: int) -> bytes:
    return _varint(value << 1 if value >= 0 else (-value << 1) - 1)


def _varint(value: int) -> bytes:
    data = bytearray()
    while value > 127:  # noqa: PLR2004 - the largest number of seven bits
        data.append(value & 127 | 128)
        value >>= 7
    data.append(value)
    return bytes(data)


def leaf_count(kind: pa.DataType) -> int | None:
    """Return the number of leaves of a column; None if `put_together` cannot make it from its leaves.

    Example:
        >>> leaf_count(pa.struct({"a": pa.int8(), "b": pa.list_(pa.int8())}))
        2
    """
    if pa.types.is_struct(kind) or pa.types.is_map(kind) or _is_list(kind):
        inner = [kind.field(at).type for at in range(kind.num_fields)]
        inner = [kind.key_type, kind.item_type] if pa.types.is_map(kind) else inner
        counts = [leaf_count(one) for one in inner]
        return None if not counts or None in counts else sum(count for count in counts if count is not None)
    return None if pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType) else 1


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def put_together(kind: pa.DataType, leaves: Sequence[pa.Array]) -> pa.Array:
    """Return a nested column, given a column for each of its leaves, with the same rows.

    Example:
        >>> one = pa.array([[{"a": 1}], []], pa.list_(pa.struct({"a": pa.int8()})))
        >>> two = pa.array([[{"b": 2}], []], pa.list_(pa.struct({"b": pa.int8()})))
        >>> put_together(pa.list_(pa.struct({"a": pa.int8(), "b": pa.int8()})), [one, two]).to_pylist()
        [[{'a': 1, 'b': 2}], []]
    """
    if len(leaves) == 1 and not pa.types.is_struct(kind) and not pa.types.is_map(kind) and not _is_list(kind):
        return leaves[0]
    first = leaves[0]
    missing = first.is_null() if first.null_count else None
    if pa.types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        children = _columns([field.type for field in fields], [leaf.field(0) for leaf in leaves])
        return pa.StructArray.from_arrays(children, fields=fields, mask=missing)
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        inside = [leaf.values.slice(leaf.offset * size, len(leaf) * size) for leaf in leaves]
        return pa.FixedSizeListArray.from_arrays(put_together(kind.value_type, inside), type=kind, mask=missing)
    inside = [leaf.flatten() for leaf in leaves]
    offsets = _offsets(first, kind)
    if pa.types.is_map(kind):
        keys, items = _columns([kind.key_type, kind.item_type], [leaf.field(0) for leaf in inside])
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=missing)
    array: Any = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    return array.from_arrays(offsets, put_together(kind.value_type, inside), type=kind, mask=missing)


def _columns(kinds: Sequence[pa.DataType], leaves: Sequence[pa.Array]) -> list[pa.Array]:
    """Return columns of some types, given the leaves of all."""
    columns, at = [], 0
    for kind in kinds:
        count = leaf_count(kind) or 1
        columns.append(put_together(kind, leaves[at : at + count]))
        at += count
    return columns


def _offsets(lists: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the offsets of lists into the items of all lists that are not null."""
    import pyarrow.compute as pc

    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    width = pa.int64() if pa.types.is_large_list(kind) else pa.int32()
    ends = pc.cumulative_sum(lengths.cast(pa.int64()))
    return pa.concat_arrays([pa.array([0], pa.int64()), ends]).cast(width)
