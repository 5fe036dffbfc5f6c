"""A small table stays in memory from the first epoch of a loader on, and nothing that comes out of it is another."""

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
    """Return a table of numbers, texts, nulls, small arrays and large cells, in several row groups."""
    place, random = tmp_path_factory.mktemp("kept") / "table", np.random.default_rng(0)
    fields = [
        ps.Field("id", np.int64),
        ps.Field("x", np.float32, nullable=True),
        ps.Field("word", str),
        ps.Field("small", np.uint8, (3, 5), ps.codecs.Npy()),
        ps.Field("large", np.uint8, (None, 200), ps.codecs.Npy()),
    ]
    with ps.write(place, ps.Schema("Kept", fields), row_group_rows=500) as writing:
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
    return place


def plain(epoch: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return batches as what can be compared."""
    return [
        {
            name: [np.asarray(one).tolist() for one in values] if values.dtype == object else np.nan_to_num(values).tolist()
            for name, values in batch.items()
        }
        for batch in epoch
    ]


@pytest.mark.parametrize(
    "ask",
    [
        lambda ds: ds.shuffle(ps.WindowShuffle(rows=1_200), seed=3).batch(64, last="uneven"),
        lambda ds: ds.batch("row_group"),
        lambda ds: ds.where(ps.col("x") > 200).shuffle(seed=1).batch(100, last="uneven"),
        lambda ds: ds.select("id", "large").shuffle(seed=1).batch(100, last="uneven"),
    ],
    ids=["windows", "row groups", "filtered", "cells"],
)
def test_every_epoch_is_what_it_would_be_if_it_were_read(table: Path, ask: Any) -> None:
    """Epochs of a loader that keeps the table equal those of loaders that begin there, and read no more after the first."""
    kept = ps.loader(ask(ps.open(table)))
    epochs, read = [], []
    for _ in range(4):
        epochs.append(plain(list(kept)))
        read.append((kept.stats().bytes_read, kept.stats().units_read))

    for number, epoch in enumerate(epochs):
        fresh = ps.loader(ask(ps.open(table)))
        fresh.set_epoch(number)
        assert plain(list(fresh)) == epoch
    assert (0, 0) < read[0] == read[1] == read[2] == read[3]


def test_who_reads_without_a_loader_keeps_what_is_read_twice(table: Path) -> None:
    """Most who do so read once, and are spared the memory; a dataset that repeats is read again for sure."""
    opened = ps.open(table).batch(100)
    for stays in (False, True):
        list(opened)
        assert (opened._table._table_cache.nbytes > 0) is stays

    repeated = ps.open(table).batch(100).repeat(2)
    next(iter(repeated))
    assert repeated._table._table_cache.nbytes > 0


def test_what_stays_in_memory_is_nobodys_to_write(table: Path) -> None:
    """Whatever a consumer writes into its batches, later epochs hold what is stored."""
    kept = ps.loader(ps.open(table).select("id", "small", "large").batch("row_group"))
    for _ in range(4):
        for batch in kept:
            assert (batch["large"][0] == batch["id"][0] % 251).all()
            for values in [batch["id"], batch["small"], *batch["large"]]:
                if values.flags.writeable:
                    values[...] = 0


@pytest.mark.parametrize("codec", [ps.codecs.Raw(), ps.codecs.Npy(), ps.codecs.Png()])
@pytest.mark.parametrize("side", [4, 90])
def test_cells_that_stay_in_memory_are_nobodys_to_write(tmp_path: Path, codec: Any, side: int) -> None:
    """Of small ones and of large ones, which were in their file before, whatever a codec makes of them."""
    field = ps.Field("cell", np.uint8, (side, side, 3), codec)
    cells = np.random.default_rng(0).integers(0, 256, (40, side, side, 3), np.uint8)
    rows = ({"id": row, "cell": cell} for row, cell in enumerate(cells))
    ps.write(tmp_path, ps.Schema("Cells", [ps.Field("id", np.int64), field]), rows, row_group_rows=10)
    for ds in (ps.open(tmp_path).batch(10), ps.open(tmp_path).shuffle(seed=1).batch(8), ps.open(tmp_path)):
        kept = ps.loader(ds)
        for _ in range(3):
            for batch in kept:
                found = np.array(batch["cell"])
                if batch["cell"].flags.writeable:
                    batch["cell"][...] = 0
                assert (found == cells[batch["id"]]).all()
        assert ds._table._table_cache.nbytes > cells.nbytes


def test_a_table_that_takes_too_much_does_not_stay(tmp_path: Path) -> None:
    """With more than a quarter of the memory limit, every epoch reads all of it."""
    pq.write_table(pa.table({"x": np.random.default_rng(0).random(600_000)}), tmp_path / "a.parquet", row_group_size=50_000)
    sizes = []
    for limit in (32 << 20, 8 << 20):
        kept = ps.loader(ps.open(tmp_path).batch(10_000).using(memory_limit=limit))
        for _ in range(4):
            assert sum(len(batch["x"]) for batch in kept) == 600_000
        sizes.append(kept.stats().units_read)

    assert sizes == [12, 48]


def test_many_small_units_count_with_what_they_take_beside_their_values(tmp_path: Path) -> None:
    """A row of two numbers takes sixteen bytes, and as a unit of its own some thousands."""
    table = pa.table({"x": np.arange(400), "y": np.arange(400)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1)
    for limit, stays in ((4 << 20, False), (16 << 20, True)):
        ds = ps.open(tmp_path).batch(10).using(memory_limit=limit)
        list(ps.loader(ds))

        assert (ds._table._table_cache.nbytes > 0) is stays


def test_what_would_not_stay_for_long_is_not_kept_at_all(tmp_path: Path) -> None:
    """Whether the whole table has room is judged by the first unit, and not found out when the room is full."""
    pq.write_table(pa.table({"x": np.random.default_rng(0).random(600_000)}), tmp_path / "a.parquet", row_group_size=50_000)
    ds = ps.open(tmp_path).batch(10_000).using(memory_limit=12 << 20)
    batches = iter(ps.loader(ds))
    most = 0
    for _ in batches:
        most = max(most, ds._table._table_cache.nbytes)

    assert most == 0


def test_questions_about_one_table_share_what_stays(table: Path) -> None:
    """Another order reads nothing, another filter what it keeps of other rows, and no filter what a filter left whole."""
    opened = ps.open(table)
    list(ps.loader(opened.shuffle(seed=1).batch(100, last="uneven")))
    read = [ps.loader(one.batch(100, last="uneven")) for one in (opened.shuffle(seed=3), opened.where(ps.col("x") > 900))]
    rows = [sum(len(batch["id"]) for batch in one) for one in read]

    assert rows == [ROWS, sum(1 for row in range(ROWS) if row % 7 and row / 2 > 900)]
    assert read[0].stats().units_read == 0
    assert read[1].stats().units_read > 0


@pytest.mark.parametrize(("limit", "read"), [(1 << 30, 4), (3 << 20, 16)])
def test_files_of_large_cells_do_not_stay_open(tmp_path: Path, limit: int, read: int) -> None:
    """Cells that are left in their file until their batch is made are loaded if they stay, and otherwise left there again."""
    fields = [ps.Field("id", np.int64), ps.Field("cell", np.uint8, (40_000,), ps.codecs.Npy())]
    cells = [np.random.default_rng(row).integers(0, 256, 40_000, np.uint8) for row in range(20)]  # which do not shrink
    rows = ({"id": row, "cell": cell} for row, cell in enumerate(cells))
    ps.write(tmp_path / "t", ps.Schema("Large", fields), rows, row_group_rows=5)
    kept = ps.loader(ps.open(tmp_path / "t").shuffle(seed=1).batch(4).using(memory_limit=limit))
    for _ in range(4):
        for batch in kept:
            assert (batch["cell"] == np.stack([cells[row] for row in batch["id"]])).all()
    del batch
    gc.collect()

    assert kept.stats().units_read == read
    assert not [name for name in Path("/proc/self/fd").glob("*") if str(tmp_path) in str(name.resolve())]


def test_an_epoch_needs_no_file_once_the_table_is_in_memory(tmp_path: Path) -> None:
    """Files may go after the first epoch: what was opened is what is handed out."""
    pq.write_table(pa.table({"x": np.arange(1_000)}), tmp_path / "a.parquet", row_group_size=100)
    kept = ps.loader(ps.open(tmp_path).shuffle(seed=0).batch(50))
    assert sum(int(batch["x"].sum()) for batch in kept) == 499_500
    (tmp_path / "a.parquet").unlink()

    assert sum(int(batch["x"].sum()) for batch in kept) == 499_500


@given(
    limit=st.integers(0, 400),
    offers=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 30)), max_size=60),
    whole=st.integers(0, 200),
    again=st.booleans(),
)
def test_units_are_kept_by_their_second_time_while_all_have_room(
    limit: int, offers: list[tuple[int, int]], whole: int, *, again: bool
) -> None:
    """What is kept never takes more than its share, and is gone as soon as all that was seen takes more.

    Where it is known that units are read again, they are kept at once, if all of them are going to have room.
    """
    kept: TableCache[int] = TableCache()
    kept.set_memory_limit(limit)
    if again:
        kept.expect_again()
    sizes: dict[int, int] = {}
    times: dict[int, int] = {}
    for name, size in offers:
        sizes.setdefault(name, size)
        times[name] = times.get(name, 0) + 1
        if kept.accepts(name, sizes[name], whole):
            kept.keep(name, name)

        fits = sum(sizes.values()) <= limit // 4
        least = 1 if again and whole <= limit // 4 else 2
        expected = {one for one, count in times.items() if count >= least} if fits else set()
        assert {one for one in times if kept.units.get(one) is not None} == expected
        assert kept.nbytes == sum(sizes[one] for one in expected) <= limit / 4


def test_more_room_is_another_chance() -> None:
    """What had no room has some when the limit is raised; when it is lowered, what has none goes."""
    kept: TableCache[int] = TableCache()
    for limit, expected in ((40, None), (40, None), (80, 7), (100, 7), (80, 7), (40, None), (20, None)):
        kept.set_memory_limit(limit)
        for _ in range(2):
            if kept.accepts("unit", 15, 15):
                kept.keep("unit", 7)
        assert kept.units.get("unit") == expected
