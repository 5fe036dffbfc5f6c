"""A small table stays cached from the first epoch of a loader on, with unchanged values."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock._engine.runtime.memory import TableCache

ROWS = 3_000


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table of numbers, texts, nulls, small arrays and large cells in several row groups."""
    directory, random = tmp_path_factory.mktemp("kept") / "table", np.random.default_rng(0)
    fields = [
        ps.Field("id", np.int64),
        ps.Field("x", np.float32, nullable=True),
        ps.Field("word", str),
        ps.Field("small", np.uint8, (3, 5), ps.codecs.Npy()),
        ps.Field("large", np.uint8, (None, 200), ps.codecs.Npy()),
    ]
    with ps.write(directory, ps.Schema("Kept", fields), row_group_rows=500) as writing:
        for row in range(ROWS):
            many = 100 if row % 100 == 0 else row % 3
            writing.append(
                {
                    "id": row,
                    "x": None if row % 7 == 0 else row / 2,
                    "word": f"word {row}",
                    "small": random.integers(0, 255, (3, 5), np.uint8),
                    "large": np.full((many, 200), row % 251, np.uint8),
                }
            )
    return directory


def plain(epoch: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return batches as lists that can be compared."""
    return [
        {
            name: [np.asarray(one).tolist() for one in values] if values.dtype == object else np.nan_to_num(values).tolist()
            for name, values in batch.items()
        }
        for batch in epoch
    ]


@pytest.mark.parametrize(
    "build_query",
    [
        lambda ds: ds.shuffle(ps.WindowShuffle(rows=1_200), seed=3).batch(64, last="uneven"),
        lambda ds: ds.batch("row_group"),
        lambda ds: ds.where(ps.col("x") > 200).shuffle(seed=1).batch(100, last="uneven"),
        lambda ds: ds.select("id", "large").shuffle(seed=1).batch(100, last="uneven"),
    ],
    ids=["windows", "row groups", "filtered", "cells"],
)
def test_cached_epochs_equal_epochs_that_are_read(table: Path, build_query: Any) -> None:
    """Epochs of a loader with a cached table equal those of fresh loaders. Nothing is read after the first epoch."""
    cached = ps.loader(build_query(ps.open(table)))
    epochs, read = [], []
    for _ in range(4):
        epochs.append(plain(list(cached)))
        read.append((cached.stats().bytes_read, cached.stats().units_read))

    for number, epoch in enumerate(epochs):
        fresh = ps.loader(build_query(ps.open(table)))
        fresh.set_epoch(number)
        assert plain(list(fresh)) == epoch
    assert (0, 0) < read[0] == read[1] == read[2] == read[3]


def test_without_a_loader_the_second_read_is_cached(table: Path) -> None:
    """Most datasets without a loader are read once, so the second read is cached. A repeated one is cached on the first."""
    dataset = ps.open(table).batch(100)
    for is_cached in (False, True):
        list(dataset)
        assert (dataset._table._table_cache.nbytes > 0) is is_cached

    repeated = ps.open(table).batch(100).repeat(2)
    next(iter(repeated))
    assert repeated._table._table_cache.nbytes > 0


def test_writing_to_batches_does_not_change_the_cache(table: Path) -> None:
    """If a consumer writes to its batches, later epochs still return the stored values."""
    cached = ps.loader(ps.open(table).select("id", "small", "large").batch("row_group"))
    for _ in range(4):
        for batch in cached:
            assert (batch["large"][0] == batch["id"][0] % 251).all()
            for values in [batch["id"], batch["small"], *batch["large"]]:
                if values.flags.writeable:
                    values[...] = 0


@pytest.mark.parametrize("codec", [ps.codecs.Raw(), ps.codecs.Npy(), ps.codecs.Png()])
@pytest.mark.parametrize("side", [4, 90])
def test_writing_to_cells_does_not_change_the_cache(tmp_path: Path, codec: Any, side: int) -> None:
    """Cached cells keep their values when a consumer writes to batches, for every codec and cell size."""
    field = ps.Field("cell", np.uint8, (side, side, 3), codec)
    cells = np.random.default_rng(0).integers(0, 256, (40, side, side, 3), np.uint8)
    rows = ({"id": row, "cell": cell} for row, cell in enumerate(cells))
    ps.write(tmp_path, ps.Schema("Cells", [ps.Field("id", np.int64), field]), rows, row_group_rows=10)
    for ds in (ps.open(tmp_path).batch(10), ps.open(tmp_path).shuffle(seed=1).batch(8), ps.open(tmp_path)):
        cached = ps.loader(ds)
        for _ in range(3):
            for batch in cached:
                found = np.array(batch["cell"])
                if batch["cell"].flags.writeable:
                    batch["cell"][...] = 0
                assert (found == cells[batch["id"]]).all()
        assert ds._table._table_cache.nbytes > cells.nbytes


def test_a_table_that_is_too_large_is_not_cached(tmp_path: Path) -> None:
    """A table larger than a quarter of the memory limit is read again in every epoch."""
    pq.write_table(pa.table({"x": np.random.default_rng(0).random(600_000)}), tmp_path / "a.parquet", row_group_size=50_000)
    sizes = []
    for limit in (32 << 20, 8 << 20):
        cached = ps.loader(ps.open(tmp_path).batch(10_000).using(memory_limit=limit))
        for _ in range(4):
            assert sum(len(batch["x"]) for batch in cached) == 600_000
        sizes.append(cached.stats().units_read)

    assert sizes == [12, 48]


def test_small_units_count_with_their_overhead(tmp_path: Path) -> None:
    """A unit counts with its overhead. For a row of two numbers the overhead is some thousand bytes."""
    table = pa.table({"x": np.arange(400), "y": np.arange(400)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1)
    for limit, is_cached in ((4 << 20, False), (16 << 20, True)):
        ds = ps.open(tmp_path).batch(10).using(memory_limit=limit)
        list(ps.loader(ds))

        assert (ds._table._table_cache.nbytes > 0) is is_cached


def test_a_table_that_will_not_fit_is_never_cached(tmp_path: Path) -> None:
    """The first unit decides whether the whole table fits. No unit of a table that does not fit is cached."""
    pq.write_table(pa.table({"x": np.random.default_rng(0).random(600_000)}), tmp_path / "a.parquet", row_group_size=50_000)
    ds = ps.open(tmp_path).batch(10_000).using(memory_limit=12 << 20)
    batches = iter(ps.loader(ds))
    most = 0
    for _ in batches:
        most = max(most, ds._table._table_cache.nbytes)

    assert most == 0


def test_queries_of_one_table_share_the_cache(table: Path) -> None:
    """A query in another order reads nothing. A query with a filter reads its rows itself."""
    dataset = ps.open(table)
    list(ps.loader(dataset.shuffle(seed=1).batch(100, last="uneven")))
    read = [ps.loader(one.batch(100, last="uneven")) for one in (dataset.shuffle(seed=3), dataset.where(ps.col("x") > 900))]
    rows = [sum(len(batch["id"]) for batch in one) for one in read]

    assert rows == [ROWS, sum(1 for row in range(ROWS) if row % 7 and row / 2 > 900)]
    assert read[0].stats().units_read == 0
    assert read[1].stats().units_read > 0


@pytest.mark.parametrize(("limit", "read"), [(1 << 30, 4), (3 << 20, 16)])
def test_files_of_large_cells_do_not_stay_open(tmp_path: Path, limit: int, read: int) -> None:
    """Deferred cells are loaded if the table is cached, and otherwise stay in their files. No file stays open at the end."""
    fields = [ps.Field("id", np.int64), ps.Field("cell", np.uint8, (40_000,), ps.codecs.Npy())]
    # Random cells do not compress.
    cells = [np.random.default_rng(row).integers(0, 256, 40_000, np.uint8) for row in range(20)]
    rows = ({"id": row, "cell": cell} for row, cell in enumerate(cells))
    ps.write(tmp_path / "t", ps.Schema("Large", fields), rows, row_group_rows=5)
    cached = ps.loader(ps.open(tmp_path / "t").shuffle(seed=1).batch(4).using(memory_limit=limit))
    for _ in range(4):
        for batch in cached:
            assert (batch["cell"] == np.stack([cells[row] for row in batch["id"]])).all()
    del batch
    gc.collect()

    assert cached.stats().units_read == read
    assert not [name for name in Path("/proc/self/fd").glob("*") if str(tmp_path) in str(name.resolve())]


def test_a_cached_table_needs_no_files(tmp_path: Path) -> None:
    """Files may be deleted after the first epoch, because later epochs come from the cache."""
    pq.write_table(pa.table({"x": np.arange(1_000)}), tmp_path / "a.parquet", row_group_size=100)
    cached = ps.loader(ps.open(tmp_path).shuffle(seed=0).batch(50))
    assert sum(int(batch["x"].sum()) for batch in cached) == 499_500
    (tmp_path / "a.parquet").unlink()

    assert sum(int(batch["x"].sum()) for batch in cached) == 499_500


@given(
    limit=st.integers(0, 400),
    offers=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 30)), max_size=60),
    total_bytes=st.integers(0, 200),
    read_again=st.booleans(),
)
def test_units_are_cached_on_their_second_read_while_all_fit(
    limit: int, offers: list[tuple[int, int]], total_bytes: int, *, read_again: bool
) -> None:
    """Cached units never exceed their share of the limit. All are dropped once the units seen so far exceed it.

    If units are known to be read again, they are cached on the first read, provided that the whole table fits.
    """
    cached: TableCache[int] = TableCache()
    cached.set_memory_limit(limit)
    if read_again:
        cached.cache_from_first_read()
    sizes: dict[int, int] = {}
    times: dict[int, int] = {}
    for name, size in offers:
        sizes.setdefault(name, size)
        times[name] = times.get(name, 0) + 1
        if cached.accepts(name, sizes[name], total_bytes):
            cached.keep(name, name)

        fits = sum(sizes.values()) <= limit // 4
        least = 1 if read_again and total_bytes <= limit // 4 else 2
        expected = {one for one, count in times.items() if count >= least} if fits else set()
        assert {one for one in times if cached.units.get(one) is not None} == expected
        assert cached.nbytes == sum(sizes[one] for one in expected) <= limit / 4


def test_a_higher_limit_allows_caching_again() -> None:
    """A higher limit allows units to be cached again. A lower limit drops units that no longer fit."""
    cached: TableCache[int] = TableCache()
    for limit, expected in ((40, None), (40, None), (80, 7), (100, 7), (80, 7), (40, None), (20, None)):
        cached.set_memory_limit(limit)
        for _ in range(2):
            if cached.accepts("unit", 15, 15):
                cached.keep("unit", 7)
        assert cached.units.get("unit") == expected
