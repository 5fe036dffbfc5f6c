"""Rows by number: the very rows that iterating gives, whatever the layout, read by page wherever that is cheaper."""

from __future__ import annotations

import gc
import io
import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from columns import LAYOUTS, arrays, same
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pyarrow import fs as pafs

import penstock as ps
from penstock._engine.lookup import access, byte_ranges, page_reads
from penstock._engine.lookup.byte_ranges import Cost
from penstock._engine.parquet import plain_pages
from penstock._engine.parquet.file_blobs import LocalFile
from penstock.codecs import Jpeg, Npy, Raw
from penstock.errors import DataChangedError, DataError
from penstock.testing import MemoryFormat

COSTS = [
    Cost(request=0, max_bytes=1 << 30, near=True),
    Cost(request=100, max_bytes=3000, near=False),
    byte_ranges.LOCAL,
    byte_ranges.REMOTE,
]
RUNS = [100, 10_000, page_reads.RUN]
ALWAYS = COSTS[0]
"""Requests that cost nothing: pages are read wherever a page is less than all."""


@contextmanager
def costing(cost: Cost, *, run: int = page_reads.RUN) -> Iterator[None]:
    """Let reading cost something else for a while, and pages be decoded in runs of other sizes."""
    with pytest.MonkeyPatch.context() as patch:
        if run != page_reads.RUN:
            patch.setattr(page_reads, "RUN", run)
            patch.setattr(page_reads, "LARGE", run)
        patch.setattr(access, "LOCAL", cost)
        patch.setattr(access, "REMOTE", cost)
        yield


def check(ds: ps.Dataset, rows: Sequence[int]) -> None:
    """See that rows by number are those that come in turn."""
    every = list(ds)
    found = ds.take(rows)

    for at, row in enumerate(rows):
        assert list(found) == list(every[row])
        for name, cell in every[row].items():
            assert same(found[name][at], cell), (name, row, found[name][at], cell)
        assert same(ds[row], every[row])


@contextmanager
def counted(owner: Any, name: str) -> Iterator[list[Any]]:
    """Count what a method returns."""
    method, found = getattr(owner, name), []

    def watched(self: Any, *given: Any, **named: Any) -> Any:
        found.append(method(self, *given, **named))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, watched)
        yield found


def is_read_back(place: Path, rows: int) -> bool:
    """Return whether pyarrow can read what it has written, which it cannot of some lists in pages of one value."""
    try:
        return bool(pq.read_table(place).num_rows == rows)
    except pa.ArrowInvalid:
        return False


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data(), LAYOUTS, st.sampled_from(COSTS), st.integers(1, 200))
def test_rows_by_number_are_those_that_come_in_turn(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, layout: dict[str, Any], cost: Cost, count: int
) -> None:
    """Whatever types, nesting, nulls, encodings, compressions, pages and index a file has, and whatever reading costs."""
    place = tmp_path_factory.mktemp("lookup") / "a.parquet"
    columns = {f"c{at}": data.draw(arrays(count)) for at in range(data.draw(st.integers(1, 3)))}
    pq.write_table(pa.table({**columns, "id": pa.array(range(count))}), place, **layout)
    assume(is_read_back(place, count))
    rows = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=count // 3 + 1))

    with costing(cost, run=data.draw(st.sampled_from(RUNS))):
        check(ps.open(place).nulls(ps.Mask(), ".*"), rows)


@settings(max_examples=40)
@given(st.data(), st.sampled_from([ALWAYS, byte_ranges.REMOTE]), st.booleans())
def test_filters_deletes_and_partitions_count(data: st.DataObject, cost: Cost, stated: bool) -> None:  # noqa: FBT001 - drawn
    """Rows are counted among those kept: less the deleted, the filtered and what a limit cuts off, over all files."""
    sizes = data.draw(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=3), min_size=1, max_size=3))
    numbers = iter(range(1000))
    files = [[pa.table({"id": pa.array([next(numbers) for _ in range(size)], pa.int64())}) for size in file] for file in sizes]
    deletes = {at: data.draw(st.sets(st.integers(0, sum(file) - 1))) for at, file in enumerate(sizes) if sum(file)}
    partitions = pa.table({"part": [f"p{at}" for at in range(len(sizes))]})
    table = MemoryFormat(
        files, partitions=partitions, deletes={at: sorted(some) for at, some in deletes.items()}, stated=stated
    )
    ds = table.open().with_row_ids()
    if data.draw(st.booleans()):
        ds = ds.where(ps.col("id") > 4, ps.col("id") != 20)
    if data.draw(st.booleans()):
        ds = ds.limit(data.draw(st.integers(1, 40)))

    with costing(cost):
        if ds.num_rows:
            check(ds, data.draw(st.lists(st.integers(0, ds.num_rows - 1), min_size=1, max_size=10)))


@pytest.fixture
def blobs(tmp_path: Path) -> Path:
    """Return a table of large cells as our writer lays it out."""
    random = np.random.default_rng(0)
    schema = ps.Schema(
        "Blobs",
        [
            ps.Field("id", np.int64),
            ps.Field("npy", np.uint8, (20_000,), Npy()),
            ps.Field("raw", np.int16, (2, 3000), Raw()),
            ps.Field("any", np.float32, (None,), Npy(), nullable=True),
            ps.Field("image", np.uint8, (32, 48, 3), Jpeg(90)),
            ps.Field("vector", np.float32, (256,)),
        ],
    )
    with ps.write(tmp_path / "blobs", schema, row_group_rows=50) as table:
        for number in range(120):
            table.append(
                {
                    "id": number,
                    "npy": random.integers(0, 256, 20_000, dtype=np.uint8),
                    "raw": random.integers(0, 1000, (2, 3000), dtype=np.int16),
                    "any": None if number % 10 == 3 else np.arange(number * 20, dtype=np.float32),
                    "image": np.full((32, 48, 3), number, np.uint8),
                    "vector": random.random(256, dtype=np.float32),
                }
            )
    return tmp_path / "blobs"


@pytest.mark.parametrize("cost", COSTS)
def test_cells_of_codecs_are_decoded_as_in_turn(blobs: Path, cost: Cost) -> None:
    """Arrays, images and tensors, with nulls and of any length."""
    with costing(cost):
        ds = ps.open(blobs)

        check(ds, [5, 119, 0, 53, 5, 51, 50])
        check(ds.ragged(ps.Pad(length=2380), "any").nulls(ps.Fill(0), "any").select("any", "id"), [7, 13, 0])
        assert ds.ragged(ps.Pad(), "any").nulls(ps.Mask(), "any").take([2, 3, 70])["any"].shape == (3, 1400)


def test_a_row_is_read_without_its_row_group(blobs: Path) -> None:
    """Of a large cell no more is read than itself and what stands before it; of compressed ones their page."""
    ds = ps.open(blobs).select("npy")
    with counted(LocalFile, "peek") as read:
        ds[70]
        first = sum(map(len, read))
        read.clear()
        ds[70]

    whole = sum(path.stat().st_size for path in blobs.glob("*.parquet"))
    assert first < 100_000 + whole // 20
    assert sum(map(len, read)) < 20_200
    with counted(plain_pages.PlainCells, "located") as located:
        check(ds, [1, 60, 119, 2])
    assert len(located) == 3 + 4
    assert None not in located


def test_compressed_cells_are_found_in_their_pages(tmp_path: Path) -> None:
    """Large cells are unpacked a page at a time, without pyarrow; with nulls among them, pyarrow finds them."""
    random = np.random.default_rng(0)
    for nulls in (False, True):
        cells = [None if nulls and number % 3 == 0 else random.bytes(5000 + number) for number in range(300)]
        layout = {"compression": "zstd", "use_dictionary": False, "write_page_index": True, "data_page_size": 1 << 14}
        place = tmp_path / f"{nulls}.parquet"
        pq.write_table(pa.table({"x": pa.array(cells, pa.binary())}), place, write_batch_size=2, **layout)
        with counted(plain_pages.PlainCells, "cells") as found:
            check(ps.open(place), [5, 1, 299, 140, 141])

        assert [one is None for one in found] == [nulls] * (3 if nulls else 6)  # of three pages, each is tried once


@pytest.mark.parametrize("compression", ["none", "snappy"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_large_cells_after_a_full_dictionary_need_no_dictionary(tmp_path: Path, compression: str, version: str) -> None:
    """Most writers begin with a dictionary and give it up when it is full; pages after that are plain, and are read as such."""
    random = np.random.default_rng(0)
    cells = [random.bytes(3000 + number) for number in range(400)]
    layout = {"compression": compression, "write_page_index": True, "data_page_size": 1 << 14, "data_page_version": version}
    place = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": pa.array(cells)}), place, write_batch_size=2, dictionary_pagesize_limit=1 << 17, **layout)
    ds = ps.open(place)
    coded = min(row for row in range(400) if sum(map(len, cells[: row + 1])) > 1 << 17)
    with counted(page_reads.PageRead, "decode") as decoded:
        found = ds.take([399, 200, coded + 10, 200])["x"]
        single = ds[300]["x"]

    assert found.tolist() == [cells[399], cells[200], cells[coded + 10], cells[200]]
    assert single == cells[300]
    assert decoded == []
    with counted(page_reads.PageRead, "decode") as decoded:
        found = ds.take([399, 0, 250, 5])["x"]

    assert found.tolist() == [cells[399], cells[0], cells[250], cells[5]]
    assert [len(page) < 50 for page in decoded] == [True]


def test_rows_of_many_pages_need_memory_for_a_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists in all pages of a large chunk are picked from a few pages at a time, and not from all of it."""
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.random.default_rng(0).random(1 << 20)), 512)
    place = tmp_path / "a.parquet"
    layout = {"use_dictionary": False, "write_page_index": True, "data_page_size": 1 << 16, "write_batch_size": 512}
    pq.write_table(pa.table({"x": lists}), place, **layout)
    ds = ps.open(place)
    rows = np.random.default_rng(1).permutation(2048)[:500].tolist()
    monkeypatch.setattr(page_reads, "LARGE", page_reads.RUN)
    with counted(page_reads.PageRead, "decode") as decoded:
        found = ds.take(rows)["x"]

    assert (found == lists.flatten().to_numpy().reshape(-1, 512)[rows]).all()
    assert len(decoded) > 1
    assert max(one.nbytes for one in decoded) < 2 * page_reads.RUN


@settings(max_examples=30, deadline=None)
@given(st.data(), st.sampled_from(COSTS), st.sampled_from(["none", "snappy", "zstd"]), st.sampled_from(["1.0", "2.0"]))
def test_rows_of_dictionaries_that_were_given_up_are_those_of_the_table(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, cost: Cost, compression: str, version: str
) -> None:
    """Repeated, in any order, with and without nulls, as bytes, text and in structs, from both kinds of pages."""
    place = tmp_path_factory.mktemp("lookup") / "a.parquet"
    count, nulls = data.draw(st.integers(60, 150)), data.draw(st.booleans())
    random = np.random.default_rng(data.draw(st.integers(0, 9)))
    cells = [None if nulls and row % 7 == 3 else random.bytes(1200) for row in random.integers(0, 1000, count).tolist()]
    texts = [None if cell is None else cell.hex() for cell in cells]
    table = pa.table({"b": pa.array(cells, pa.binary()), "t": texts, "s": [{"t": text} for text in texts], "id": range(count)})
    pq.write_table(
        table,
        place,
        compression=compression,
        data_page_version=version,
        data_page_size=data.draw(st.sampled_from([1 << 11, 1 << 14, 1 << 20])),
        write_batch_size=data.draw(st.sampled_from([1, 8])),
        dictionary_pagesize_limit=data.draw(st.sampled_from([1 << 10, 1 << 14, 1 << 16, 1 << 20])),
        write_page_index=data.draw(st.booleans()),
        row_group_size=data.draw(st.sampled_from([50, 1000])),
    )
    rows = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=count // 5))
    with costing(cost, run=data.draw(st.sampled_from(RUNS))):
        found = ps.open(place).take(rows)

    expected = ps.open(place).to_arrow().take(pa.array(rows)).to_pydict()
    assert {name: list(column) for name, column in found.items()} == expected


@pytest.mark.parametrize("rows", [[1, 3], [0, 7], [2, 3, 6], [5, 1, 0]])
def test_pages_that_did_not_shrink_keep_their_cells(tmp_path: Path, rows: list[int]) -> None:
    """A page of the second kind may lie uncompressed among compressed ones; each is read into the memory of the one before."""
    random = np.random.default_rng(0)
    cells = [random.bytes(2000) if number % 4 else bytes(2000) for number in range(32)]
    layout = {"compression": "snappy", "data_page_version": "2.0", "data_page_size": 1, "write_batch_size": 1}
    pq.write_table(pa.table({"x": cells}), tmp_path / "a.parquet", use_dictionary=False, write_page_index=True, **layout)

    with costing(ALWAYS), counted(plain_pages.PlainCells, "cells") as found:
        check(ps.open(tmp_path / "a.parquet"), rows)

    assert len(found) == 1 + len(rows)
    assert None not in found


def test_leaves_of_nested_columns_have_pages_of_their_own(tmp_path: Path) -> None:
    """Each leaf is read where it lies, and they are put together again."""
    rows = [{"a": number, "b": [{"c": f"{number}-{at}", "d": at} for at in range(number % 5)]} for number in range(400)]
    layout = {"write_page_index": True, "data_page_size": 300, "write_batch_size": 8, "compression": "none"}
    pq.write_table(pa.table({"x": pa.array(rows)}), tmp_path / "a.parquet", **layout)
    with costing(ALWAYS), counted(page_reads.LeafReads, "rows") as found:
        check(ps.open(tmp_path), [3, 399, 200, 201])

    assert len(found) == 5


def test_rows_are_counted_like_a_list_s(blobs: Path) -> None:
    """From the end, by NumPy's numbers, and by slices of any step."""
    ds: Any = ps.open(blobs).select("id")

    assert [int(ds[at]["id"]) for at in (0, -1, np.int32(7), np.uint8(3), -120)] == [0, 119, 7, 3, 0]
    assert ds[3:120:40]["id"].tolist() == [3, 43, 83]
    assert ds[-2:]["id"].tolist() == [118, 119]
    assert ds[::-60]["id"].tolist() == [119, 59]
    assert ds[5:5]["id"].tolist() == []
    assert ds.take([])["id"].dtype == np.int64
    assert ds.take(np.array([4, -1, 4]))["id"].tolist() == [4, 119, 4]


def test_arrays_may_be_written_to(blobs: Path) -> None:
    """What comes by number is nobody else's: writing to it changes no later answer."""
    ds = ps.open(blobs).select("id", "npy", "vector")
    for _ in range(2):
        for found in (ds.take([3, 70]), ds.take([3]), {name: np.asarray(cell)[None] for name, cell in ds[3].items()}):
            assert found["id"][0] == 3
            for name in ("npy", "vector"):
                assert found[name].flags.writeable
                found[name][...] = 0
        assert ds[3]["vector"].any()


def index_of(place: Path) -> tuple[int, int]:
    """Return where the page index of a file's only column lies, and where its footer begins."""
    data = place.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    column = pq.read_metadata(place).row_group(0).column(0)
    return 4 + column.total_compressed_size, footer


@pytest.mark.parametrize("near", [True, False])
def test_a_damaged_index_is_as_good_as_none(tmp_path: Path, near: bool) -> None:  # noqa: FBT001 - a parameter
    """What an index says is held against the file: noise in its place changes no row."""
    place = tmp_path / "a.parquet"
    layout = {"write_page_index": True, "data_page_size": 400, "write_batch_size": 8, "use_dictionary": False}
    pq.write_table(pa.table({"x": pa.array(range(3000))}), place, compression="none", write_statistics=False, **layout)
    start, stop = index_of(place)
    data = place.read_bytes()
    place.write_bytes(data[:start] + b"\xff" * (stop - start) + data[stop:])
    with costing(Cost(request=0, max_bytes=1 << 20, near=near)), counted(page_reads.PageRead, "decode") as found:
        check(ps.open(place), [5, 2999, 1700])

    assert [len(one) < 3000 for one in found[:1]] == [near]


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 8), st.booleans(), st.sampled_from(["1.0", "2.0"]))
def test_a_lying_index_gives_the_right_rows_or_an_error(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    changes: int,
    lists: bool,  # noqa: FBT001 - drawn
    version: str,
) -> None:
    """Bytes of an index may be anything: rows are right, or an error of ours tells what is wrong with the file."""
    place = tmp_path_factory.mktemp("lying") / "a.parquet"
    cells = pa.array([[number] * (number % 3) for number in range(500)] if lists else range(500))
    layout = {"write_page_index": True, "data_page_size": 200, "write_batch_size": 4, "data_page_version": version}
    pq.write_table(pa.table({"x": cells}), place, compression="none", use_dictionary=False, **layout)
    start, stop = index_of(place)
    data, random = bytearray(place.read_bytes()), np.random.default_rng(seed)
    for at in random.integers(start, stop, changes).tolist():
        data[at] = int(random.integers(0, 256))
    place.write_bytes(bytes(data))
    rows = random.integers(0, 500, 8).tolist()

    with costing(Cost(request=0, max_bytes=1 << 20, near=False)):
        try:
            found = ps.open(place).take(rows)["x"]
        except DataError as error:
            assert "a.parquet" in str(error)  # noqa: PT017 - either of both is right
        else:
            if version == "2.0" or not lists:  # of lists in old pages nothing tells how many rows there are
                assert [np.asarray(cell).tolist() for cell in found] == [cells[row].as_py() for row in rows]


def test_a_file_that_was_cut_or_exchanged_is_told(tmp_path: Path) -> None:
    """An open file goes on to be read; one that ends early is an error, and one that is another is refused."""
    place = tmp_path / "a.parquet"
    table = pa.table({"x": pa.array([bytes([number % 256]) * 4000 for number in range(1000)])})
    layout = {"write_page_index": True, "compression": "none", "use_dictionary": False, "write_batch_size": 4}
    pq.write_table(table, place, data_page_size=1 << 14, **layout)
    ds = ps.open(place)
    assert ds[7]["x"] == b"\x07" * 4000
    (tmp_path / "other").mkdir()
    other = Path(shutil.copy(place, tmp_path / "other"))
    with place.open("r+b") as file:
        file.truncate(2_000_000)

    with pytest.raises(DataError, match="row group 0"):
        ds[900]
    fresh = ps.open(other)
    assert fresh.num_rows == 1000
    pq.write_table(table.slice(0, 900), other, **layout)
    with pytest.raises(DataChangedError, match="the file was changed after the table was opened"):
        fresh[5]


def test_a_cell_that_cannot_be_decoded_is_told_with_its_place(tmp_path: Path) -> None:
    """File, row group, row and column, whether its rows lie in one row group or in several."""
    schema = ps.Schema("Broken", [ps.Field("id", np.int64), ps.Field("x", np.uint8, (1200,), Npy())])
    good = Npy().encode(schema.fields[1], np.zeros(1200, np.uint8))
    cells = [good[:100] if number == 137 else good for number in range(300)]
    ps.write(tmp_path / "t", schema, pa.table({"id": range(300), "x": pa.array(cells, pa.binary())}), row_group_rows=100)
    ds = ps.open(tmp_path / "t")

    for rows in ([137], [5, 137, 250], [136, 137]):
        with pytest.raises(DataError, match=r"parquet, row group 1, row 137, column 'x': "):
            ds.take(rows)


def test_threads_may_ask_at_once(blobs: Path) -> None:
    """What is kept is shared: any number of threads get the rows they ask for, and none is left."""
    ds = ps.open(blobs).select("id", "raw", "image")
    expected = [ds[at] for at in range(120)]
    fresh = ps.open(blobs).select("id", "raw", "image")

    def ask(seed: int) -> bool:
        rows = np.random.default_rng(seed).integers(0, 120, 9).tolist()
        found = fresh.take(rows)
        return all(same({name: found[name][at] for name in found}, expected[row]) for at, row in enumerate(rows))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(40)))
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock")] == []


def test_files_are_closed_with_the_dataset(blobs: Path) -> None:
    """Open files are kept for the next question, and no longer than somebody may ask one."""
    gc.collect()  # what others have left to it
    before = len(list(Path("/proc/self/fd").iterdir()))
    ds = ps.open(blobs)
    ds.take([3, 70])
    assert len(list(Path("/proc/self/fd").iterdir())) > before
    del ds
    gc.collect()

    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_files_of_a_large_table_are_not_all_kept_open(tmp_path: Path) -> None:
    """The ones that were asked about last are; what is known of the others is kept without them."""
    for number in range(90):
        pq.write_table(pa.table({"id": [number] * 10, "x": [bytes([number]) * 4000] * 10}), tmp_path / f"{number:02}.parquet")
    ds = ps.open(tmp_path)
    gc.collect()  # what others have left to it
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(2):
        found = [ds[10 * number]["x"][:1] for number in range(90)]
        assert found == [bytes([number]) for number in range(90)]

    assert len(list(Path("/proc/self/fd").iterdir())) - before <= 64 + 8


class Watched:
    """A file that notes what is read of it."""

    def __init__(self, path: str, sizes: list[int]) -> None:
        """Take it into memory."""
        self._file, self._sizes = io.BytesIO(Path(path).read_bytes()), sizes

    def read(self, size: int = -1) -> bytes:
        """Return some bytes."""
        self._sizes.append(size)
        return self._file.read(size)

    def __getattr__(self, name: str) -> Any:
        """Be a file otherwise."""
        return getattr(self._file, name)


class Far(pafs.FileSystemHandler):  # type: ignore[misc] # pyarrow has no types
    """Files of this machine that are read as if they were far away."""

    def __init__(self) -> None:
        """Begin without requests."""
        self.sizes: list[int] = []

    def get_type_name(self) -> str:
        """Return a name."""
        return "far"

    def normalize_path(self, path: str) -> str:
        """Return the path itself."""
        return path

    def get_file_info(self, paths: Sequence[str]) -> list[pafs.FileInfo]:
        """Return what the machine says."""
        found: list[pafs.FileInfo] = pafs.LocalFileSystem().get_file_info(list(paths))
        return found

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        """Return what the machine says."""
        found: list[pafs.FileInfo] = pafs.LocalFileSystem().get_file_info(selector)
        return found

    def open_input_file(self, path: str) -> pa.NativeFile:
        """Return a file that notes what is read of it."""
        return pa.PythonFile(Watched(path, self.sizes), mode="r")

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    open_input_stream = open_append_stream = open_output_stream = create_dir = delete_dir = delete_dir_contents = _refuse
    delete_root_dir_contents = delete_file = move = copy_file = _refuse


def test_far_away_requests_are_few(tmp_path: Path) -> None:
    """Small columns are read whole and kept, pages of large ones apart, and neighbours with one request."""
    random = np.random.default_rng(0)
    cells = pa.array([random.bytes(20_000) for _ in range(600)], pa.binary())
    layout = {"write_page_index": True, "compression": "none", "use_dictionary": False, "write_batch_size": 2}
    table = pa.table({"id": pa.array(range(600)), "label": pa.array([number % 7 for number in range(600)]), "x": cells})
    pq.write_table(table, tmp_path / "a.parquet", data_page_size=1 << 16, row_group_size=300, **layout)
    far = Far()
    ds = ps.open(str(tmp_path / "a.parquet"), filesystem=pafs.PyFileSystem(far))
    assert ds.num_rows == 600
    requests, read = [], []
    for rows in ([5], [7], [8, 9, 10, 11], [5, 150, 290], [310]):
        far.sizes.clear()
        found = ds.take(rows)
        requests.append(len(far.sizes))
        read.append(sum(far.sizes))
        assert found["id"].tolist() == rows
        assert found["x"].tolist() == [cells[row].as_py() for row in rows]

    # the footer, the index, and both small columns with a page near them; a page; pages side by side; three pages far apart;
    # of the other row group the index, and again all at once
    assert requests == [3, 1, 1, 3, 2]
    assert max(read[1:4]) < 400_000
