"""Some pages of a column as a small Parquet file of their own, which pyarrow decodes like any other.

So whatever pyarrow knows of encodings, compressions and nesting is known here too. The file has the one column, as the
original's schema tells it, and one row group. Leaves of a nested column, whose pages end at different rows, are decoded one
by one, and put together again when the rows that are wanted have been picked of each.
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

__all__ = ["PageFile", "PageRange", "joined", "leaf_count", "put_together", "schema_of"]

MAGIC = b"PAR1"
ROOT = b"\x48\x06schema\x15\x02\x00"  # the element above all columns: its name, and that it has one


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PageRange:
    """Pages of one leaf.

    Attributes:
        chunk: The chunk that they are of.
        values: How many values they hold.
        dictionary: The bytes of the page that their values are numbers of; none where they are not.
        pages: The bytes of the pages.
    """

    chunk: ColumnChunk
    values: int
    dictionary: memoryview
    pages: Sequence[memoryview]

    @property
    def size(self) -> int:
        """The bytes of all."""
        return len(self.dictionary) + sum(map(len, self.pages))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PageFile:
    """What is the same in all small files of one column.

    Attributes:
        field: The column, as pyarrow reads it from the original.
        leaves: Its leaves.
        splits: Whether rows of single leaves can be put together again.
        before: What stands in a footer before the row groups.
        after: What stands there after them.
    """

    field: pa.Field
    leaves: tuple[Leaf, ...]
    splits: bool
    before: bytes
    after: bytes

    @classmethod
    def of(cls, field: pa.Field, leaves: Sequence[Leaf], elements: Sequence[bytes], writer: bytes) -> PageFile:
        """Return that of a column, given what the original's schema says of it, an element after the other."""
        schema = base64.b64encode(pa.schema([field]).serialize().to_pybytes())
        pair = _struct((1, BINARY, _binary(b"ARROW:schema")), (2, BINARY, _binary(schema)))
        before, after = _around([ROOT, *elements], [pair], writer)
        splits = leaf_count(field.type) == len(leaves)
        return cls(field=field, leaves=tuple(leaves), splits=splits, before=before, after=after)

    def decode(self, pieces: Sequence[PageRange | None], rows: int, buffer_pool: BufferPool) -> pa.ChunkedArray:
        """Return pages as pyarrow reads them.

        Args:
            pieces: Pages of each leaf, all of them with the same rows; or of one, and None for all others.
            rows: How many rows they should have. There may turn out to be fewer, or more.
            buffer_pool: Where memory for the file comes from.

        Raises:
            OSError, ArrowException: If pyarrow cannot read them.
        """
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
        there = [number for number, piece in enumerate(pieces) if piece is not None]
        return reader.read_all(column_indices=there, use_threads=False).column(0)


def joined(parts: Sequence[bytes | memoryview], buffer_pool: BufferPool) -> pa.Buffer:
    """Return bytes one after the other, in memory that was used before."""
    room = buffer_pool.empty((sum(map(len, parts)),), np.dtype(np.uint8))
    view, at = room.data, 0
    for part in parts:
        view[at : at + len(part)] = part
        at += len(part)
    return pa.py_buffer(room)


def schema_of(elements: Sequence[bytes], metadata: Sequence[bytes], writer: bytes) -> pa.Schema:
    """Return a file's columns as pyarrow reads them, given what its footer says of them.

    Raises:
        OSError, ArrowException: If it makes no sense.
    """
    before, after = _around(elements, metadata, writer)
    footer = before + _list(STRUCT, []) + after
    whole = MAGIC + footer + len(footer).to_bytes(4, "little") + MAGIC
    return pq.ParquetFile(pa.BufferReader(whole)).schema_arrow


def _around(elements: Sequence[bytes], metadata: Sequence[bytes], writer: bytes) -> tuple[bytes, bytes]:
    """Return what stands in a footer before and after the list of row groups.

    Who wrote the original is said too: by that pyarrow knows of mistakes which were made.
    """
    before = _struct((1, I32, _number(2)), (2, LIST, _list(STRUCT, elements)), (3, I64, _number(1)))[:-1]
    after = [bytes([1 << 4 | LIST]), _list(STRUCT, metadata), bytes([1 << 4 | BINARY]), _binary(writer), b"\x00"]
    return before + bytes([1 << 4 | LIST]), b"".join(after)


def _chunk(leaf: Leaf, piece: PageRange | None, at: int, most: int) -> bytes:
    """Return what a footer says of a column chunk; of one that is not there, that it has no bytes, and the most values.

    For older versions of pyarrow look at the values of the first leaf to know how many rows may be read of another.
    """
    told = None if piece is None else piece.chunk
    size, values = (0, most) if piece is None else (piece.size, piece.values)
    encodings = [_number(one) for one in told.encodings] if told is not None else []
    fields = [
        (1, I32, _number(told.physical if told is not None else 0)),
        (2, LIST, _list(I32, encodings)),
        (3, LIST, _list(BINARY, [_binary(name) for name in leaf.path])),
        (4, I32, _number(told.codec if told is not None else 0)),
        (5, I64, _number(values)),
        (6, I64, _number(size)),
        (7, I64, _number(size)),
        (9, I64, _number(at + (len(piece.dictionary) if piece is not None else 0))),
    ]
    if piece is not None and len(piece.dictionary):
        fields.append((11, I64, _number(at)))
    return _struct((2, I64, _number(at)), (3, STRUCT, _struct(*fields)))


def _struct(*fields: tuple[int, int, bytes]) -> bytes:
    """Return a struct in Thrift's compact protocol: its fields' numbers, types and values, in the order of numbers."""
    found, last = [], 0
    for number, kind, value in fields:
        found += [bytes([number - last << 4 | kind]), value]
        last = number
    return b"".join([*found, b"\x00"])


def _list(kind: int, items: Sequence[bytes]) -> bytes:
    count = len(items)
    head = bytes([count << 4 | kind]) if count < 15 else bytes([0xF0 | kind]) + _varint(count)  # noqa: PLR2004 - half a byte
    return head + b"".join(items)


def _binary(value: bytes) -> bytes:
    return _varint(len(value)) + value


def _number(value: int) -> bytes:
    return _varint(value << 1 if value >= 0 else (-value << 1) - 1)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:  # noqa: PLR2004 - what seven bits hold
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def leaf_count(kind: pa.DataType) -> int | None:
    """Return how many leaves a column has; None where rows of its leaves cannot be put together here.

    Example:
        >>> leaf_count(pa.struct({"a": pa.int8(), "b": pa.list_(pa.int8())}))
        2
    """
    if pa.types.is_struct(kind) or pa.types.is_map(kind) or _is_list(kind):
        inner = [kind.field(at).type for at in range(kind.num_fields)]
        inner = [kind.key_type, kind.item_type] if pa.types.is_map(kind) else inner
        found = [leaf_count(one) for one in inner]
        return None if not found or None in found else sum(one for one in found if one is not None)
    return None if pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType) else 1


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def put_together(kind: pa.DataType, leaves: Sequence[pa.Array]) -> pa.Array:
    """Return a nested column, given each of its leaves in a column of its own, with the same rows.

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
        found = _each([field.type for field in fields], [leaf.field(0) for leaf in leaves])
        return pa.StructArray.from_arrays(found, fields=fields, mask=missing)
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        inside = [leaf.values.slice(leaf.offset * size, len(leaf) * size) for leaf in leaves]
        return pa.FixedSizeListArray.from_arrays(put_together(kind.value_type, inside), type=kind, mask=missing)
    inside = [leaf.flatten() for leaf in leaves]
    offsets = _offsets(first, kind)
    if pa.types.is_map(kind):
        keys, items = _each([kind.key_type, kind.item_type], [leaf.field(0) for leaf in inside])
        return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=missing)
    made: Any = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    return made.from_arrays(offsets, put_together(kind.value_type, inside), type=kind, mask=missing)


def _each(kinds: Sequence[pa.DataType], leaves: Sequence[pa.Array]) -> list[pa.Array]:
    """Return columns of some types, which have the leaves in turn."""
    found, at = [], 0
    for kind in kinds:
        count = leaf_count(kind) or 1
        found.append(put_together(kind, leaves[at : at + count]))
        at += count
    return found


def _offsets(lists: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return where each list begins among the items of all that are not null."""
    import pyarrow.compute as pc

    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    width = pa.int64() if pa.types.is_large_list(kind) else pa.int32()
    ends = pc.cumulative_sum(lengths.cast(pa.int64()))
    return pa.concat_arrays([pa.array([0], pa.int64()), ends]).cast(width)
