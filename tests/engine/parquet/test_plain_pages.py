"""Cells that are found in their pages without decoding: the same cells that pyarrow reads, or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._blobs import Blobs
from penstock._engine.lookup.byte_ranges import LOCAL, OpenFile
from penstock._engine.parquet.file_blobs import LocalFile
from penstock._engine.parquet.page_index import ColumnChunk, PageTable, walk_pages
from penstock._engine.parquet.plain_pages import PlainCells, are_plain, as_arrow
from penstock._engine.runtime.memory import BufferPool

BUFFER_POOL = BufferPool(1 << 24)
KINDS = [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.binary(1500)]
LAYOUTS = st.fixed_dictionaries(
    {
        "compression": st.sampled_from(["none", "snappy", "gzip", "zstd", "lz4", "brotli"]),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "write_page_checksum": st.booleans(),
        "write_statistics": st.booleans(),
        "data_page_size": st.sampled_from([1, 8000, 1 << 20]),
    }
)


class Case:
    """A column of a file that is opened for reading, with its cells and pages."""

    def __init__(self, place: Path, cells: list[Any], kind: pa.DataType, *, nullable: bool = True, **layout: Any) -> None:
        """Write the file and open it."""
        schema = pa.schema([pa.field("x", kind, nullable=nullable)])
        pq.write_table(pa.table([pa.array(cells, kind)], schema), place, use_dictionary=False, write_batch_size=3, **layout)
        self.file = OpenFile.at(str(place), LocalFile(str(place)))
        self.page_file = self.file.layout.column("x")
        assert self.page_file is not None
        self.leaf, self.chunk = self.page_file.leaves[0], (self.file.layout.chunks(0, "x") or [])[0]
        pages = walk_pages(self.file.read, self.chunk, flat=True)
        assert pages is not None
        self.pages: PageTable = pages
        self.cells = PlainCells(self.chunk, self.leaf, pages)

    def taken(self, rows: list[int]) -> Blobs | None:
        """Return cells that are read from the pages that hold them."""
        numbers, _ = self.pages.holding(np.array(rows))
        data = self.file.fetch(self.pages.spans(numbers), LOCAL, BUFFER_POOL)
        return self.cells.cells(numbers, data.__getitem__, np.array(rows), BUFFER_POOL)

    def located(self, rows: list[int]) -> list[bytes] | None:
        """Return cells that are read at the places where they were located."""
        places = self.cells.located(np.array(rows), self.file.read)
        if places is None:
            return None
        return [self.file.read(start, stop - start) for start, stop in zip(*(place.tolist() for place in places), strict=True)]


def python_cells(cells: Blobs | None) -> list[bytes] | None:
    """Return cells as Python bytes."""
    return None if cells is None else [bytes(cells[row]) for row in range(len(cells))]


@given(st.data(), st.sampled_from(KINDS), LAYOUTS, st.booleans(), st.integers(1, 40))
def test_cells_are_those_that_were_written(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    kind: pa.DataType,
    layout: dict[str, Any],
    nullable: bool,  # noqa: FBT001 - drawn
    rows: int,
) -> None:
    """Cells equal the written ones for any type, compression and pages, also when they are asked for twice."""
    random = np.random.default_rng(rows)
    size = kind.byte_width if pa.types.is_fixed_size_binary(kind) else None
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    cells = [random.bytes(size or 1100 + at) for at in range(rows)]
    cells = [cell.hex().encode() for cell in cells] if text else cells
    case = Case(tmp_path_factory.mktemp("plain") / "a.parquet", cells, kind, nullable=nullable, **layout)
    assert are_plain(case.chunk, case.leaf, kind)
    for _ in range(2):
        wanted = sorted(data.draw(st.sets(st.integers(0, rows - 1), min_size=1, max_size=4)))
        found = case.taken(wanted)

        assert python_cells(found) == [cells[row] for row in wanted]
        assert found is not None
        assert as_arrow(found, kind, BUFFER_POOL).cast(pa.large_binary()).to_pylist() == [cells[row] for row in wanted]
        if not case.cells.compressed:
            assert case.located(wanted) == [cells[row] for row in wanted]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_page_with_nulls_is_left_to_pyarrow(tmp_path: Path, version: str, compression: str) -> None:
    """Cells of pages with nulls give None. Other pages of the same column are read."""
    cells = [None if row in (4, 30) else b"%d" % row * 1000 for row in range(40)]
    layout: dict[str, Any] = {"data_page_version": version, "compression": compression, "data_page_size": 1}
    case = Case(tmp_path / "a.parquet", cells, pa.binary(), **layout)

    assert python_cells(case.taken([0, 10, 39])) == [cells[row] for row in (0, 10, 39)]
    assert case.taken([3]) is None
    assert case.taken([0, 31]) is None
    if compression == "none":
        assert case.located([0, 10]) == [cells[0], cells[10]]
        assert case.located([31]) is None


@given(st.integers(0, 2**32), st.sampled_from(["none", "zstd"]), st.sampled_from(["1.0", "2.0"]), st.booleans())
def test_damaged_pages_give_valid_cells_or_none(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    compression: str,
    version: str,
    fixed: bool,  # noqa: FBT001 - drawn
) -> None:
    """Damaged pages give None, or cells that lie inside the pages and the chunk."""
    kind = pa.binary(1500) if fixed else pa.binary()
    place = tmp_path_factory.mktemp("plain") / "a.parquet"
    layout: dict[str, Any] = {"compression": compression, "data_page_version": version, "data_page_size": 4000}
    case = Case(place, [b"%04d" % row * 375 for row in range(20)], kind, **layout)
    random, data = np.random.default_rng(seed), bytearray(place.read_bytes())
    for page in case.pages.start.tolist():
        for at in random.integers(page, page + 60, 2).tolist():
            data[at] = int(random.integers(0, 256))
    place.write_bytes(bytes(data))
    case.file = OpenFile.at(str(place), LocalFile(str(place)))

    found = case.taken([0, 7, 19])
    if found is not None:
        assert all(0 <= start <= stop <= len(found.buffers[source]) for start, stop, source in _edges(found))
    places = None if case.cells.compressed else case.cells.located(np.array([3, 8]), case.file.read)
    if places is not None:
        assert (places[0] >= case.chunk.start).all()
        assert (places[1] <= case.chunk.stop).all()


def _edges(found: Blobs) -> list[tuple[int, int, int]]:
    return list(zip(found.start.tolist(), found.stop.tolist(), found.source.tolist(), strict=True))


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"physical": 1}, pa.binary()),
        ({"codec": 3}, pa.binary()),
        ({"codec": 5}, pa.binary()),
        ({"encodings": (0, 8), "plain": 0}, pa.binary()),
        ({"values": 1 << 20, "rows": 1 << 20}, pa.binary()),
        ({"rows": 1 << 40}, pa.binary()),
        ({}, pa.decimal128(20, 2)),
        ({}, pa.binary_view()),
    ],
)
def test_columns_that_must_be_decoded_are_not_plain(tmp_path: Path, change: dict[str, Any], kind: pa.DataType) -> None:
    """Other types and encodings, compressions that only pyarrow reads, and small cells are not plain."""
    case = Case(tmp_path / "a.parquet", [b"x" * 2000] * 3, pa.binary(), compression="none")
    facts = {name: getattr(case.chunk, name) for name in ColumnChunk.__dataclass_fields__}

    assert are_plain(case.chunk, case.leaf, pa.binary())
    assert not are_plain(ColumnChunk(**{**facts, **change}), case.leaf, kind)
