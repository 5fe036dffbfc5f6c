"""What an iteration takes in memory is counted, and kept within what it may take."""

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
from pyarrow import fs as pafs

import penstock as ps
from penstock._engine.parquet.footer import footer_of, row_bytes
from penstock._engine.runtime.memory import BufferPool, MemoryBudget

ROWS = 4_000


class Window:
    """Something that is kept for a while."""


@given(st.lists(st.tuples(st.integers(1, 1 << 20), st.booleans()), max_size=60))
def test_what_is_lent_is_counted_exactly(asked: list[tuple[int, bool]]) -> None:
    """However arrays come and go, those that are alive are those that count, each by the memory that it has."""
    buffer_pool, alive = BufferPool(1 << 22), []
    for size, dies in asked:
        array = buffer_pool.empty((size,), np.dtype(np.uint8))
        if not dies:
            alive.append(array)
        del array

    assert sum(map(len, alive)) <= buffer_pool.used_bytes <= sum(max(1 << 16, len(one) * 9 // 8 + (1 << 16)) for one in alive)
    alive.clear()
    assert buffer_pool.used_bytes == 0


def test_what_windows_keep_counts_until_they_are_gone() -> None:
    """Memory of Arrow is not lent; it counts as long as its window is there."""
    budget, window = MemoryBudget(1_000, BufferPool(0), threads=1), Window()
    budget.count_while_alive(window, 700)
    held = budget.used_bytes
    del window
    gc.collect()

    assert (held, budget.used_bytes) == (700, 0)


def test_there_is_room_for_what_fits_beside_the_rest() -> None:
    """Before anything was read nothing is known, and something must be read."""
    budget, window = MemoryBudget(100_000, BufferPool(0), threads=1), Window()
    assert budget.has_room(1 << 40)
    budget.add_unit(rows=10, nbytes=1000)

    assert budget.row_bytes == 100
    assert budget.has_room(600)
    assert not budget.has_room(800)
    budget.count_while_alive(window, 50_000)
    assert not budget.has_room(600)
    assert budget.is_pinned(0)
    assert not budget.is_pinned(500)


def test_a_window_that_cannot_fit_is_refused_with_both_numbers() -> None:
    """And what would fit is told."""
    budget = MemoryBudget(10 << 20, BufferPool(0), threads=1)
    budget.add_unit(rows=1_000, nbytes=2 << 20, window_rows=5_000)

    with pytest.raises(
        ps.errors.MemoryLimitError,
        match=r"A window of 50000 rows takes 100\.0 MiB .* memory_limit is 10\.0 MiB.*WindowShuffle\(rows=2500\)",
    ):
        budget.add_unit(rows=1_000, nbytes=2 << 20, window_rows=50_000)


def wide(place: Path, **options: Any) -> Path:
    """Write rows that take more in memory than on storage."""
    words = [f"{number % 7}" * 100 for number in range(ROWS)]
    lists = pa.array([[1] * (number % 20) for number in range(ROWS)], pa.list_(pa.int64()))
    place.mkdir()
    path = place / "a.parquet"
    pq.write_table(pa.table({"id": np.arange(ROWS), "word": words, "list": lists}), path, row_group_size=500, **options)
    return path


def test_footers_tell_what_rows_take_in_memory(tmp_path: Path) -> None:
    """Numbers and lists of them exactly, and text where its writer says so."""
    path = wide(tmp_path / "t")
    stored = path.stat().st_size / ROWS
    found = row_bytes(footer_of(str(path), pafs.LocalFileSystem()))

    assert found > 3 * stored
    assert 8 + 9.5 * 8 + 100 <= found < 8 + 11 * 8 + 120


def test_the_window_of_a_table_is_as_large_as_its_rows_in_memory_allow(tmp_path: Path) -> None:
    """Not as storage would have it, where a dictionary makes long texts short."""
    path = wide(tmp_path / "t")
    ds = ps.open(path.parent).shuffle(ps.WindowShuffle(window_bytes=100_000), seed=1).batch(10)
    planned: Any = ds._table.plan(ds._query)

    rows = planned.shuffle.rows
    assert 100_000 // 2 // 230 <= rows <= 100_000 // 2 // 180


@pytest.mark.parametrize("columns", [("id",), ("id", "word", "list")])
def test_rows_are_the_same_whatever_the_limit(tmp_path: Path, columns: tuple[str, ...]) -> None:
    """A window is cut loose at its end, batches are copied where a consumer keeps some, and no row is another."""
    path = wide(tmp_path / "t")
    ds = ps.open(path.parent).select(*columns).shuffle(ps.WindowShuffle(rows=700), seed=1).batch(64, last="uneven")
    free = [batch["id"].tolist() for batch in ds]
    kept = list(ds.using(threads=2, memory_limit=400_000))

    assert [batch["id"].tolist() for batch in kept] == free
    if "word" in columns:
        for batch in kept:
            assert [text[0] for text in batch["word"]] == [str(number % 7) for number in batch["id"]]
            assert [len(cells) for cells in batch["list"]] == [number % 20 for number in batch["id"]]


def test_a_consumer_that_keeps_batches_does_not_keep_windows(tmp_path: Path) -> None:
    """When whole windows are alive for the sake of single batches, batches are copied instead."""
    place = tmp_path / "t"
    place.mkdir()
    pq.write_table(pa.table({"id": np.arange(400_000)}), place / "a.parquet", row_group_size=10_000)
    ds = ps.open(place).shuffle(ps.WindowShuffle(rows=20_000), seed=1).batch(100).using(threads=1, memory_limit=1_000_000)
    batches, kept, most = iter(ds), [], 0
    for number, batch in enumerate(batches):
        if number % 50 == 0:
            kept.append(batch)
        most = max(most, batches._window_reader.budget.used_bytes)  # type: ignore[union-attr]

    assert len(kept) == 80
    assert most <= 1_200_000
