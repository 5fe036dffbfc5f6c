"""Files that consist of a few pages: pyarrow reads the same values from them as from the original file."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from columns import LAYOUTS, arrays, kinds, same
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock._engine.parquet.chunk_layout import FileLayout
from penstock._engine.parquet.page_file import PageRange, leaf_count, put_together
from penstock._engine.parquet.page_index import page_header, parse_page_index
from penstock._engine.runtime.memory import BufferPool

BUFFER_POOL = BufferPool(1 << 20)
EMPTY = memoryview(b"")


def written(array: pa.Array, layout: dict[str, Any]) -> bytes:
    """Return a file of one column and one row group. Skip examples that pyarrow cannot read back."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": array}), sink, **{**layout, "row_group_size": 1000})
    data: bytes = sink.getvalue().to_pybytes()
    try:
        assume(pq.read_table(pa.BufferReader(data)).num_rows == len(array))
    except pa.ArrowInvalid:
        assume(condition=False)
    return data


def read_file(data: bytes) -> FileLayout:
    """Return the layout that the footer of a file describes."""
    length = int.from_bytes(data[-8:-4], "little")
    return FileLayout(data[-8 - length : -8], len(data))


@given(st.data(), LAYOUTS, st.integers(1, 60))
def test_whole_chunks_are_read_as_from_the_original(data: st.DataObject, layout: dict[str, Any], rows: int) -> None:
    """Whole chunks decode to the original values. If too few rows are requested, the result is longer than that."""
    content = written(data.draw(arrays(rows)), layout)
    file, expected = read_file(content), pq.ParquetFile(pa.BufferReader(content)).read().column(0)
    excerpt, chunks = file.column("x"), file.chunks(0, "x")
    assert excerpt is not None
    assert chunks is not None
    pieces = [
        PageRange(chunk=chunk, values=chunk.values, dictionary=EMPTY, pages=[memoryview(content)[chunk.start : chunk.stop]])
        for chunk in chunks
    ]

    assert file.schema.field("x").type == expected.type
    assert same(excerpt.decode(pieces, rows, BUFFER_POOL).to_pylist(), expected.to_pylist())
    if rows > 1:
        assert len(excerpt.decode(pieces, rows - 2, BUFFER_POOL)) > rows - 2


@given(st.data(), LAYOUTS, st.integers(1, 60))
def test_leaf_columns_are_joined_again(data: st.DataObject, layout: dict[str, Any], rows: int) -> None:
    """Each leaf column is decoded from the pages that hold the wanted rows. Together they are the original rows."""
    kind = data.draw(kinds)
    content = written(data.draw(arrays(rows, kind)), {**layout, "write_page_index": True})
    file, expected = read_file(content), pq.ParquetFile(pa.BufferReader(content)).read().column(0)
    excerpt, chunks = file.column("x"), file.chunks(0, "x")
    assert excerpt is not None
    assert chunks is not None
    assert excerpt.splits
    wanted = np.array(sorted(data.draw(st.sets(st.integers(0, rows - 1), min_size=1, max_size=5))))
    leaves = []
    for at, chunk in enumerate(chunks):
        assert chunk.index is not None
        pages = parse_page_index(content[chunk.index[0] : sum(chunk.index)], chunk)
        assert pages is not None
        numbers, places = pages.holding(wanted)
        page_bytes = [memoryview(content)[start:stop] for start, stop in pages.spans(numbers)]
        values = sum(page_header(page).values for page in page_bytes)
        before = memoryview(content)[chunk.start : int(pages.start[0])]
        pieces: list[PageRange | None] = [None] * len(chunks)
        pieces[at] = PageRange(chunk=chunk, values=values, dictionary=before, pages=page_bytes)
        page_rows = int((pages.first[numbers + 1] - pages.first[numbers]).sum())
        found = excerpt.decode(pieces, page_rows, BUFFER_POOL)
        assert len(found) == page_rows
        leaves.append(found.combine_chunks().take(pa.array(places)))

    joined = put_together(excerpt.field.type, leaves)
    joined.validate(full=True)
    assert joined.type == expected.type
    assert same(joined.to_pylist(), [expected[row].as_py() for row in wanted.tolist()])


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        (pa.int8(), 1),
        (pa.list_(pa.int8()), 1),
        (pa.map_(pa.string(), pa.struct({"a": pa.int8(), "b": pa.int8()})), 3),
        (pa.struct({"a": pa.list_(pa.int8(), 2), "b": pa.dictionary(pa.int8(), pa.string())}), 2),
        (pa.fixed_shape_tensor(pa.int8(), (2,)), None),
        (pa.struct({"a": pa.fixed_shape_tensor(pa.int8(), (2,))}), None),
        (pa.list_view(pa.int8()), None),
        (pa.struct([]), None),
    ],
)
def test_leaves_are_counted_for_types_that_can_be_joined(kind: pa.DataType, count: int | None) -> None:
    """Extension types, list views and empty structs have no leaf count, and are left to pyarrow."""
    assert leaf_count(kind) == count
