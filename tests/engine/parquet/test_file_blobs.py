"""Large cells stay in their files until their batch is made, and their values are the same as without that."""

from __future__ import annotations

import gc
import os
import re
import weakref
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
from penstock._engine.parquet import blob_chunks as local_cells
from penstock._engine.parquet.blob_chunks import CellPlacesCache, concat_blobs, find_chunks, locate_chunk, read_chunk
from penstock._engine.parquet.file_blobs import FileBlobs, LocalFile
from penstock._engine.parquet.footer import footer_of
from penstock._engine.runtime.memory import BufferPool
from penstock.codecs import Npy

LOCAL = pafs.LocalFileSystem()
CELLS = st.lists(st.none() | st.binary(max_size=300), min_size=1, max_size=60)
SIDE = 5_000  # int64 values: a cell of 40 kB


def python_cells(cells: Blobs) -> list[bytes | None]:
    """Return cells as Python bytes, and nulls as None."""
    return [None if cells.valid is not None and not cells.valid[row] else bytes(cells[row]) for row in range(len(cells))]


def write_cells(path: Path, cells: list[bytes | None], **options: Any) -> None:
    """Write cells in the layout of our writer, changed by options."""
    table = pa.table({"x": pa.array(cells, pa.binary())})
    plain = {"compression": "none", "use_dictionary": False, "row_group_size": 13, "write_batch_size": 4}
    pq.write_table(table, path, **{**plain, "data_page_size": 64, **options})


@given(CELLS, st.sampled_from(["1.0", "2.0"]), st.sampled_from([{}, {"write_page_checksum": True}]), st.data())
def test_cells_in_files_equal_cells_in_memory(
    tmp_path_factory: pytest.TempPathFactory,
    cells: list[bytes | None],
    version: str,
    checksum: dict[str, bool],
    data: st.DataObject,
) -> None:
    """Cells left in the file equal the written cells, in any order, repeated, and mixed with cells in memory."""
    path = tmp_path_factory.mktemp("t") / "t.parquet"
    write_cells(path, cells, data_page_version=version, **checksum)
    chunks, places = find_chunks(footer_of(str(path), LOCAL), ["x"])["x"], CellPlacesCache()
    with LOCAL.open_input_file(str(path)) as source:
        read = [read_chunk(source, chunk, BufferPool(1 << 20)) for chunk in chunks]
    located = [places.located(str(path), chunk, lambda: None) for chunk in chunks]
    mixed = [data.draw(st.sampled_from([one, two])) for one, two in zip(read, located, strict=True)]
    numbers = data.draw(st.lists(st.integers(0, len(cells) - 1), max_size=80))

    found = concat_blobs([one for one in mixed if one is not None]).take(np.array(numbers, dtype=np.int64))
    found = found.loaded(BufferPool(1 << 20)) if isinstance(found, FileBlobs) else found

    assert python_cells(found) == [cells[number] for number in numbers]


@given(st.binary(max_size=200), st.data())
def test_damaged_pages_are_left_to_pyarrow(tmp_path_factory: pytest.TempPathFactory, noise: bytes, data: st.DataObject) -> None:
    """Locating the cells of a damaged chunk finds the places of all cells or None, and never raises."""
    path = tmp_path_factory.mktemp("t") / "t.parquet"
    write_cells(path, [bytes(40)] * 30)
    (chunk, *_) = find_chunks(footer_of(str(path), LOCAL), ["x"])["x"]
    at = data.draw(st.integers(chunk.start, chunk.start + chunk.size - 1))
    with path.open("r+b") as file:
        file.seek(at)
        file.write(noise)
    found = locate_chunk(LocalFile(str(path)), chunk)

    assert found is None or len(found.start) == chunk.values


def noise(number: int) -> Any:
    """Return an incompressible array whose first value is the number."""
    values = np.random.default_rng(number).integers(0, 1 << 62, SIDE)
    values[0] = number
    return values


def table(place: Path, rows: int = 60) -> ps.Dataset:
    """Return a dataset of arrays of 40 kB, six to a row group."""
    schema = ps.Schema("T", [ps.Field("id", np.int64), ps.Field("x", np.int64, (SIDE,), Npy())])
    with ps.write(place, schema, row_group_rows=6) as out:
        for number in range(rows):
            out.append({"id": number, "x": noise(number)})
    return ps.open(place).using(threads=2)


def test_windows_of_large_cells_hold_no_bytes(tmp_path: Path) -> None:
    """No buffer that is allocated while a window of sixty large cells is read exceeds about one batch."""
    allocated: list[int] = []
    ds = table(tmp_path / "t").shuffle(seed=3).batch(4)
    batches = iter(ds)
    buffer_pool: Any = batches._window_reader.buffer_pool  # type: ignore[union-attr]
    empty = buffer_pool.empty

    def recorded(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        allocated.append(int(np.prod(shape)) * dtype.itemsize)
        return empty(shape, dtype)

    buffer_pool.empty = recorded

    found = {int(number): values for batch in batches for number, values in zip(batch["id"], batch["x"], strict=True)}

    assert all((values == noise(number)).all() for number, values in found.items())
    assert sorted(found) == list(range(60))
    assert max(allocated) < 5 * SIDE * 8


def test_a_file_that_is_truncated_while_it_is_read_raises(tmp_path: Path) -> None:
    """Reading a file that was truncated meanwhile raises with the cell's place, and raises the same again."""
    batches = iter(table(tmp_path / "t").shuffle(seed=3).batch(4))
    next(batches)  # now all rows are in one window, and their bytes still in the file
    (path,) = (tmp_path / "t").glob("*.parquet")
    os.truncate(path, 500_000)

    # Cells before the cut are whole, and cells after it are gone.
    problem = "its bytes cannot be read: the file was written to while it was being read|the file ends after 500000"
    with pytest.raises(ps.errors.DataError, match=rf"parquet, row group \d+, row \d+, column 'x': ({problem})") as first:
        list(batches)
    with pytest.raises(ps.errors.DataError, match=re.escape(str(first.value))):
        next(batches)


def test_no_more_files_than_allowed_are_kept_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most `MAX_FILES` files stay open. Cells of further files are read at once, and rows are the same."""
    monkeypatch.setattr(local_cells, "MAX_FILES", 2)
    for part in range(5):
        table(tmp_path / f"p={part}", 12)
    ds = ps.open(tmp_path).select("id", "x", "p").shuffle(seed=1).batch(5, last="uneven")
    gc.collect()  # closes files that earlier tests left to the garbage collector
    before = len(list(Path("/proc/self/fd").iterdir()))
    found = sorted(
        (int(p), int(i), int(x[0])) for batch in ds for p, i, x in zip(batch["p"], batch["id"], batch["x"], strict=True)
    )

    assert found == [(part, number, number) for part in range(5) for number in range(12)]
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2


def test_rows_are_the_same_when_the_cache_of_places_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are the same when the cache of cell places is too small for all places."""
    monkeypatch.setattr(local_cells, "MAX_PLACES_BYTES", 200)
    loader = ps.loader(table(tmp_path / "t").select("id", "x").shuffle(seed=1).batch(7, last="uneven"))
    for _ in range(2):
        assert sorted(int(x[0]) for batch in loader for x in batch["x"]) == list(range(60))


def test_a_file_that_is_being_closed_is_not_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file leaves weak references before it is closed, so that no other thread gets a closed file."""
    (tmp_path / "file").write_bytes(b"abc")
    files: weakref.WeakValueDictionary[str, LocalFile] = weakref.WeakValueDictionary()
    seen: list[LocalFile | None] = []
    close = os.close

    def closed(descriptor: int) -> None:
        seen.append(files.get("file"))
        close(descriptor)

    monkeypatch.setattr(os, "close", closed)
    files["file"] = file = LocalFile(str(tmp_path / "file"))
    assert file.peek(0, 3) == b"abc"

    del file

    assert seen == [None]
