"""Plain binary columns are read without decoding: the cells equal those of pyarrow, or there is no result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs as pafs

import penstock as ps
from penstock._blobs import Blobs
from penstock._engine.parquet.blob_chunks import find_chunks, read_chunk
from penstock._engine.parquet.footer import footer_of
from penstock._engine.parquet.page_index import ColumnChunk
from penstock._engine.runtime.memory import BufferPool
from penstock.codecs import Npy

LOCAL = pafs.LocalFileSystem()
CELLS = st.lists(st.none() | st.binary(max_size=40), max_size=60)


def python_cells(cells: Blobs) -> list[bytes | None]:
    """Return cells as Python bytes, and nulls as None."""
    return [None if cells.valid is not None and not cells.valid[row] else bytes(cells[row]) for row in range(len(cells))]


def write_cells(path: Path, cells: list[bytes | None], **options: Any) -> pa.Table:
    """Write cells in the layout of our writer, changed by options, and return the table."""
    table = pa.table({"id": pa.array(range(len(cells))), "x": pa.array(cells, pa.binary())})
    defaults = {
        "compression": "none",
        "use_dictionary": False,
        "row_group_size": 13,
        "write_batch_size": 4,
        "data_page_size": 64,
    }
    pq.write_table(table, path, **{**defaults, **options})
    return table


def read_direct(path: Path) -> list[bytes | None] | None:
    """Return the cells of all row groups, read without decoding, or None where that is impossible."""
    chunks = find_chunks(footer_of(str(path), LOCAL), ["x", "nowhere"]).get("x")
    if chunks is None:
        return None
    with LOCAL.open_input_file(str(path)) as source:
        found = [read_chunk(source, chunk, BufferPool(1 << 20)) for chunk in chunks]
    assert all(one is not None for one in found)
    return [cell for one in found if one is not None for cell in python_cells(one)]


@given(
    CELLS,
    st.fixed_dictionaries(
        {
            "data_page_version": st.sampled_from(["1.0", "2.0"]),
            "write_page_checksum": st.booleans(),
            "write_page_index": st.booleans(),
        }
    ),
)
def test_cells_are_those_that_were_written(
    tmp_path_factory: pytest.TempPathFactory, cells: list[bytes | None], options: dict[str, Any]
) -> None:
    """A direct read returns the written cells for any pages, nulls, page versions and checksums."""
    path = tmp_path_factory.mktemp("chunks") / "a.parquet"
    write_cells(path, cells, **options)

    assert read_direct(path) == cells


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=30))
def test_required_columns_are_read(tmp_path_factory: pytest.TempPathFactory, cells: list[bytes]) -> None:
    """Columns that the schema declares as required have no levels, and are read directly too."""
    path = tmp_path_factory.mktemp("chunks") / "a.parquet"
    schema = pa.schema([pa.field("x", pa.binary(), nullable=False)])
    pq.write_table(pa.table({"x": cells}, schema=schema), path, compression="none", use_dictionary=False)

    assert read_direct(path) == cells


@pytest.mark.parametrize(
    "options", [{"compression": "zstd"}, {"use_dictionary": True}, {"column_encoding": {"x": "DELTA_BYTE_ARRAY"}}]
)
def test_encoded_chunks_are_left_to_pyarrow(tmp_path: Path, options: dict[str, Any]) -> None:
    """Compressed, dictionary-encoded and delta-encoded chunks are not read directly."""
    write_cells(tmp_path / "a.parquet", [b"one", b"two", b"two"], **options)

    assert read_direct(tmp_path / "a.parquet") is None


@given(st.data())
def test_a_damaged_chunk_gives_cells_or_nothing(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """A damaged chunk gives cells inside the chunk or None, and raises no error."""
    path = tmp_path_factory.mktemp("chunks") / "a.parquet"
    write_cells(path, [b"some", None, b"cells", b"", b"x" * 50] * 5)
    chunk = find_chunks(footer_of(str(path), LOCAL), ["x"])["x"][0]
    broken = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        broken[chunk.start + data.draw(st.integers(0, chunk.size - 1))] = data.draw(st.integers(0, 255))
    shorter = replace(chunk, size=data.draw(st.integers(0, chunk.size)))
    chunk_fields: dict[str, Any] = {"values": 1, "rows": 1, "physical": 6, "codec": 0, "encodings": (0,)}

    for requested in (
        chunk,
        shorter,
        ColumnChunk(start=-1, size=9, **chunk_fields),
        ColumnChunk(start=9, size=1 << 40, **chunk_fields),
    ):
        found = read_chunk(pa.BufferReader(bytes(broken)), requested, BufferPool(0))
        if found is not None:
            assert (found.start >= 0).all()
            assert (found.start <= found.stop).all()
            assert (found.stop <= requested.size).all()


def test_uncompressed_and_compressed_tables_read_alike(tmp_path: Path) -> None:
    """Batches, filters and shuffles return the same cells from uncompressed and compressed tables."""
    field = ps.Field("x", np.int16, (None,), Npy(), nullable=True)
    schema = ps.Schema("T", [ps.Field("id", np.int64), field])
    rows = [{"id": number, "x": None if number % 7 == 3 else np.arange(number % 5, dtype=np.int16)} for number in range(100)]
    for name, compression in (("plain", "none"), ("packed", "zstd")):
        ps.write(tmp_path / name, schema, rows, row_group_rows=30, compression=compression)
    chunks = find_chunks(footer_of(str(next((tmp_path / "plain").glob("*.parquet"))), LOCAL), ["x"])
    queries: list[Callable[[ps.Dataset], ps.Dataset]] = [
        lambda ds: ds.batch(7, last="uneven"),
        lambda ds: ds.where(ps.col("id") > 41).batch(9, last="uneven"),
        lambda ds: ds.shuffle(ps.WindowShuffle(rows=20, unit_rows=8), seed=2).batch(11, last="uneven"),
    ]

    assert len(chunks["x"]) == 4
    for query in queries:
        one, other = (list(query(ps.open(tmp_path / name))) for name in ("plain", "packed"))
        for left, right in zip(one, other, strict=True):
            assert left["id"].tolist() == right["id"].tolist()
            assert [None if cell is None else cell.tolist() for cell in left["x"]] == [
                None if cell is None else cell.tolist() for cell in right["x"]
            ]
    assert ps.open(tmp_path / "plain")[98]["x"].tolist() == [0, 1, 2]
