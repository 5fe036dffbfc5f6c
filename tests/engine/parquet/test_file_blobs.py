"""Large cells stay in their files until their batch is made, and are the same cells all the same."""

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


def told(cells: Blobs) -> list[bytes | None]:
    """Return cells as Python has them."""
    return [None if cells.valid is not None and not cells.valid[row] else bytes(cells[row]) for row in range(len(cells))]


def put(path: Path, cells: list[bytes | None], **options: Any) -> None:
    """Write cells as our writer lays them out, but for some options."""
    table = pa.table({"x": pa.array(cells, pa.binary())})
    plain = {"compression": "none", "use_dictionary": False, "row_group_size": 13, "write_batch_size": 4}
    pq.write_table(table, path, **{**plain, "data_page_size": 64, **options})


@given(CELLS, st.sampled_from(["1.0", "2.0"]), st.sampled_from([{}, {"write_page_checksum": True}]), st.data())
def test_cells_in_files_are_those_that_are_read_at_once(
    tmp_path_factory: pytest.TempPathFactory,
    cells: list[bytes | None],
    version: str,
    more: dict[str, bool],
    data: st.DataObject,
) -> None:
    """In any order, some of them in memory and some more than once."""
    path = tmp_path_factory.mktemp("t") / "t.parquet"
    put(path, cells, data_page_version=version, **more)
    chunks, places = find_chunks(footer_of(str(path), LOCAL), ["x"])["x"], CellPlacesCache()
    with LOCAL.open_input_file(str(path)) as source:
        read = [read_chunk(source, chunk, BufferPool(1 << 20)) for chunk in chunks]
    located = [places.located(str(path), chunk, lambda: None) for chunk in chunks]
    mixed = [data.draw(st.sampled_from([one, two])) for one, two in zip(read, located, strict=True)]
    numbers = data.draw(st.lists(st.integers(0, len(cells) - 1), max_size=80))

    found = concat_blobs([one for one in mixed if one is not None]).take(np.array(numbers, dtype=np.int64))
    found = found.loaded(BufferPool(1 << 20)) if isinstance(found, FileBlobs) else found

    assert told(found) == [cells[number] for number in numbers]


@given(st.binary(max_size=200), st.data())
def test_damaged_pages_are_left_to_pyarrow(tmp_path_factory: pytest.TempPathFactory, noise: bytes, data: st.DataObject) -> None:
    """Whatever stands in a chunk, its places are found or not, and nothing is raised."""
    path = tmp_path_factory.mktemp("t") / "t.parquet"
    put(path, [bytes(40)] * 30)
    (chunk, *_) = find_chunks(footer_of(str(path), LOCAL), ["x"])["x"]
    at = data.draw(st.integers(chunk.start, chunk.start + chunk.size - 1))
    with path.open("r+b") as file:
        file.seek(at)
        file.write(noise)
    found = locate_chunk(LocalFile(str(path)), chunk)

    assert found is None or len(found.start) == chunk.values


def noise(number: int) -> Any:
    """Return an array that is not worth compressing, and begins with a number."""
    values = np.random.default_rng(number).integers(0, 1 << 62, SIDE)
    values[0] = number
    return values


def table(place: Path, rows: int = 60) -> ps.Dataset:
    """Return a table of arrays of 40 kB, six to a row group."""
    schema = ps.Schema("T", [ps.Field("id", np.int64), ps.Field("x", np.int64, (SIDE,), Npy())])
    with ps.write(place, schema, row_group_rows=6) as out:
        for number in range(rows):
            out.append({"id": number, "x": noise(number)})
    return ps.open(place).using(threads=2)


def test_windows_of_large_cells_hold_no_bytes(tmp_path: Path) -> None:
    """What a window of sixty cells lends is a batch at a time."""
    lent: list[int] = []
    ds = table(tmp_path / "t").shuffle(seed=3).batch(4)
    batches = iter(ds)
    buffer_pool: Any = batches._window_reader.buffer_pool  # type: ignore[union-attr]
    empty = buffer_pool.empty

    def noted(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        lent.append(int(np.prod(shape)) * dtype.itemsize)
        return empty(shape, dtype)

    buffer_pool.empty = noted

    found = {int(number): values for batch in batches for number, values in zip(batch["id"], batch["x"], strict=True)}

    assert all((values == noise(number)).all() for number, values in found.items())
    assert sorted(found) == list(range(60))
    assert max(lent) < 5 * SIDE * 8


def test_a_file_that_is_cut_while_it_is_read_is_told(tmp_path: Path) -> None:
    """The place of the cell is named, the error comes again, and nothing hangs."""
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
    """Cells of further files are read at once; rows are the same, and all files are closed at the end."""
    monkeypatch.setattr(local_cells, "MAX_FILES", 2)
    for part in range(5):
        table(tmp_path / f"p={part}", 12)
    ds = ps.open(tmp_path).select("id", "x", "p").shuffle(seed=1).batch(5, last="uneven")
    gc.collect()  # what others have left to it
    before = len(list(Path("/proc/self/fd").iterdir()))
    found = sorted(
        (int(p), int(i), int(x[0])) for batch in ds for p, i, x in zip(batch["p"], batch["id"], batch["x"], strict=True)
    )

    assert found == [(part, number, number) for part in range(5) for number in range(12)]
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2


def test_places_are_forgotten_where_there_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered is bounded, and rows are the same."""
    monkeypatch.setattr(local_cells, "MAX_PLACES_BYTES", 200)
    loader = ps.loader(table(tmp_path / "t").select("id", "x").shuffle(seed=1).batch(7, last="uneven"))
    for _ in range(2):
        assert sorted(int(x[0]) for batch in loader for x in batch["x"]) == list(range(60))


def test_a_file_that_is_being_closed_is_nobodys_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other threads, which know it by weak references, open it anew and do not get one that is closed under their hands."""
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
