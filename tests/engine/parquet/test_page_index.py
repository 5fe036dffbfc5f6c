"""Pages of a column chunk: their places by an index or by page headers, and the pages that hold given rows."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._engine.parquet.chunk_layout import FileLayout
from penstock._engine.parquet.page_index import ColumnChunk, PageTable, coalesce, page_header, parse_page_index, walk_pages
from penstock._engine.parquet.thrift import ThriftError

CHUNK = ColumnChunk(start=4, size=10_000, values=500, rows=500, physical=1, codec=0, encodings=(0,))


def number(value: int) -> bytes:
    """Return a signed number in Thrift's compact protocol."""
    value = value << 1 if value >= 0 else (-value << 1) - 1
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def index(pages: list[tuple[int, int, int]], *, long_form: bool = False) -> bytes:
    """Return a page index: the start, the bytes and the first row of each page. `long_form` stores full field numbers."""
    head = bytes([0x19, len(pages) << 4 | 12]) if len(pages) < 15 else bytes([0x19, 0xFC, *varint(len(pages))])
    # A writer may store a field's number in full instead of the step from the last one.
    first = b"\x06\x02" if long_form else b"\x16"
    body = b"".join(first + number(at) + b"\x15" + number(size) + b"\x16" + number(row) + b"\x00" for at, size, row in pages)
    return head + body + b"\x00"


def varint(value: int) -> bytes:
    """Return an unsigned number in Thrift's compact protocol."""
    return bytes([value]) if value < 128 else bytes([value & 127 | 128, *varint(value >> 7)])


def read_file(data: bytes) -> FileLayout:
    """Return the layout that the footer of a file describes."""
    length = int.from_bytes(data[-8:-4], "little")
    return FileLayout(data[-8 - length : -8], len(data))


@st.composite
def places(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Draw pages that lie in a chunk one after the other, with or without gaps."""
    found, at, row = [], CHUNK.start + draw(st.integers(0, 50)), 0
    for _ in range(draw(st.integers(1, 40))):
        size = draw(st.integers(1, 200))
        found.append((at, size, row))
        at, row = at + size + draw(st.integers(0, 20)), row + draw(st.integers(1, 12))
    return found


@given(places(), st.booleans())
def test_an_index_is_what_was_written(pages: list[tuple[int, int, int]], long_form: bool) -> None:  # noqa: FBT001 - drawn
    """A parsed index has the written pages, for any number of pages and both forms of field numbers."""
    found = parse_page_index(index(pages, long_form=long_form), CHUNK)

    assert found is not None
    assert list(zip(found.start.tolist(), found.size.tolist(), found.first.tolist(), strict=False)) == pages
    assert found.first[-1] == CHUNK.rows


@pytest.mark.parametrize(
    "pages",
    [
        [],
        [(3, 10, 0)],
        [(4, 0, 0)],
        [(4, -5, 0)],
        [(4, 10_001, 0)],
        [(9_990, 20, 0)],
        [(10_004, 1, 0)],
        [(4, 10, 1)],
        [(4, 10, 0), (13, 10, 5)],
        [(14, 10, 0), (4, 10, 5)],
        [(4, 10, 0), (14, 10, 501)],
        [(4, 10, 0), (14, 10, 7), (24, 10, 6)],
        [(4, 10, 0), (14, 2**40, 5)],
        [(-(2**62), 10, 0)],
    ],
)
def test_an_impossible_index_is_none(pages: list[tuple[int, int, int]]) -> None:
    """An index is None if its pages leave the chunk, overlap, or do not hold the rows in order."""
    assert parse_page_index(index(pages), CHUNK) is None


def test_pages_without_rows_are_left_out() -> None:
    """Pages without rows, which some writers make, are left out."""
    found = parse_page_index(index([(4, 10, 0), (14, 10, 0), (24, 10, 7), (34, 10, 7), (44, 10, 500)]), CHUNK)

    assert found is not None
    assert (found.start.tolist(), found.first.tolist()) == ([14, 34], [0, 7, 500])


@given(places(), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=6), st.integers(0, 3))
def test_pages_of_a_damaged_index_lie_in_the_chunk(
    pages: list[tuple[int, int, int]], changes: list[tuple[int, int]], cut: int
) -> None:
    """A damaged or truncated index is None, or has pages inside the chunk with increasing first rows."""
    data = bytearray(index(pages))
    for at, byte in changes:
        data[at % len(data)] = byte
    found = parse_page_index(bytes(data[: len(data) - cut]), CHUNK)

    if found is not None:
        assert found.start.min() >= CHUNK.start
        assert (found.start + found.size).max() <= CHUNK.stop
        assert (np.diff(found.first) > 0).all()
        assert found.first[0] == 0


@given(places(), st.lists(st.integers(0, CHUNK.rows - 1), min_size=1, max_size=30))
def test_rows_are_found_in_the_pages_that_hold_them(pages: list[tuple[int, int, int]], rows: list[int]) -> None:
    """`holding` returns each page with a wanted row once, and the positions of the rows among the rows of these pages."""
    found = parse_page_index(index(pages), CHUNK)
    assert found is not None
    numbers, inside = found.holding(np.array(sorted(rows)))
    page_rows = np.concatenate([np.arange(found.first[page], found.first[page + 1]) for page in numbers])

    assert page_rows[inside].tolist() == sorted(rows)
    assert all(set(range(found.first[page], found.first[page + 1])) & set(rows) for page in numbers.tolist())
    assert (np.diff(numbers) > 0).all()


@given(
    st.integers(1, 300),
    st.fixed_dictionaries(
        {
            "data_page_version": st.sampled_from(["1.0", "2.0"]),
            "compression": st.sampled_from(["none", "zstd"]),
            "use_dictionary": st.booleans(),
            "write_statistics": st.booleans(),
            "write_page_checksum": st.booleans(),
            "data_page_size": st.sampled_from([1, 100, 10_000]),
            "write_batch_size": st.sampled_from([2, 16]),
        }
    ),
)
def test_page_headers_give_the_pages_of_the_index(rows: int, layout: dict[str, Any]) -> None:
    """Page headers give the same pages as the index. Lists in 1.0 pages, which have no row counts, give None."""
    table = pa.table(
        {
            "flat": pa.array([None if at % 5 == 0 else f"{at % 9}" * (at % 7) for at in range(rows)]),
            "list": pa.array([list(range(at % 4)) for at in range(rows)]),
        }
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, write_page_index=True, row_group_size=100, **layout)
    data = sink.getvalue().to_pybytes()
    file = read_file(data)
    for group in range(-(-rows // 100)):
        for name in table.column_names:
            chunk = (file.chunks(group, name) or [])[0]
            assert chunk.index is not None
            indexed = parse_page_index(data[chunk.index[0] : sum(chunk.index)], chunk)
            found = walk_pages(lambda start, size: data[start : start + size], chunk, flat=name == "flat")
            assert indexed is not None
            if name == "list" and layout["data_page_version"] == "1.0":
                assert found is None
            else:
                assert found is not None
                assert [found.start.tolist(), found.size.tolist(), found.first.tolist()] == [
                    indexed.start.tolist(),
                    indexed.size.tolist(),
                    indexed.first.tolist(),
                ]


@given(st.binary(max_size=300))
def test_headers_of_random_bytes_raise(data: bytes) -> None:
    """Random bytes raise only `ThriftError`, or give a header without negative sizes."""
    with suppress(ThriftError):
        header = page_header(data)
        assert min(header.unpacked, header.packed, header.values, header.length) >= 0
    assert walk_pages(lambda start, size: data[start : start + size], CHUNK, flat=True) is None


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 60)), min_size=1, max_size=20), st.integers(0, 100))
def test_neighbours_are_read_with_one_request(pairs: list[tuple[int, int]], gap: int) -> None:
    """Spans that are no further apart than the gap share one request, which starts and ends with a span."""
    spans = [(start, start + size) for start, size in pairs]
    found = coalesce(spans, gap, max_bytes=1 << 30)

    assert sorted(number for _, _, inside in found for number in inside) == list(range(len(spans)))
    for start, stop, inside in found:
        assert (start, stop) == (min(spans[at][0] for at in inside), max(spans[at][1] for at in inside))
    assert all(after[0] - before[1] > gap for before, after in pairwise(found))


def test_requests_do_not_exceed_a_size() -> None:
    """A request does not exceed `max_bytes`, so that other requests can run in parallel."""
    assert coalesce([(0, 50), (50, 90), (90, 140)], gap=10, max_bytes=100) == [(0, 90, [0, 1]), (90, 140, [2])]


def test_a_layout_has_only_what_lies_in_the_file(tmp_path: Path) -> None:
    """A layout returns the rows and chunks of the file, and nothing for missing row groups, columns and bytes."""
    place = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": range(10), "y": [[1]] * 10}), place)
    data = place.read_bytes()
    file = read_file(data)

    assert file.rows(0) == 10
    assert file.rows(1) == -1
    assert file.group_rows().tolist() == [10]
    assert [chunk.rows for chunk in file.chunks(0, "x") or []] == [10]
    assert (file.chunks(1, "x"), file.chunks(0, "z") or None, file.column("z")) == (None, None, None)
    length = int.from_bytes(data[-8:-4], "little")
    assert FileLayout(data[-8 - length : -8], 50).chunks(0, "x") is None
    assert file.column("y") is not None
    assert len(PageTable(start=np.array([4]), size=np.array([8]), first=np.array([0, 10]))) == 1
