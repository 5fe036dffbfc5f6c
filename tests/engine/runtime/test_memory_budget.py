"""The memory of an iteration is counted and kept within `memory_limit`."""

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
from penstock.testing import MemoryFormat

ROWS = 4_000


class Window:
    """A stand-in for a window."""


@given(st.lists(st.tuples(st.integers(1, 1 << 20), st.booleans()), max_size=60))
def test_used_bytes_counts_live_arrays(requests: list[tuple[int, bool]]) -> None:
    """`used_bytes` counts every live array with the size of its buffer, and is zero when no array is alive."""
    buffer_pool, alive = BufferPool(1 << 22), []
    for size, dies in requests:
        array = buffer_pool.empty((size,), np.dtype(np.uint8))
        if not dies:
            alive.append(array)
        del array

    assert sum(map(len, alive)) <= buffer_pool.used_bytes <= sum(max(1 << 16, len(one) * 9 // 8 + (1 << 16)) for one in alive)
    alive.clear()
    assert buffer_pool.used_bytes == 0


def test_window_memory_counts_until_the_window_dies() -> None:
    """Arrow memory of a window is not from the buffer pool. It counts as long as the window lives."""
    budget, window = MemoryBudget(1_000, BufferPool(0), threads=1), Window()
    budget.count_while_alive(window, 700)
    used_before = budget.used_bytes
    del window
    gc.collect()

    assert (used_before, budget.used_bytes) == (700, 0)


def test_a_window_has_room_if_it_fits_beside_used_memory() -> None:
    """`has_room` allows the first read, then compares estimates with free memory. `retains_windows` detects kept windows."""
    budget, window = MemoryBudget(100_000, BufferPool(0), threads=1), Window()
    assert budget.has_room(1 << 40)
    budget.add_unit(rows=10, nbytes=1000)

    assert budget.row_bytes == 100
    assert budget.has_room(600)
    assert not budget.has_room(800)
    budget.count_while_alive(window, 50_000)
    assert not budget.has_room(600)
    assert budget.retains_windows(0)
    assert not budget.retains_windows(500)


def test_a_window_that_cannot_fit_raises_with_both_sizes() -> None:
    """A window that exceeds the limit raises MemoryLimitError with both sizes and a window size that fits."""
    budget = MemoryBudget(10 << 20, BufferPool(0), threads=1)
    budget.add_unit(rows=1_000, nbytes=2 << 20, window_rows=5_000)

    with pytest.raises(
        ps.errors.MemoryLimitError,
        match=r"A window of 50000 rows takes 100\.0 MiB .* memory_limit is 10\.0 MiB.*WindowShuffle\(rows=2500\)",
    ):
        budget.add_unit(rows=1_000, nbytes=2 << 20, window_rows=50_000)


def wide(directory: Path, **options: Any) -> Path:
    """Write a table whose rows take more bytes in memory than on storage."""
    words = [f"{number % 7}" * 100 for number in range(ROWS)]
    lists = pa.array([[1] * (number % 20) for number in range(ROWS)], pa.list_(pa.int64()))
    directory.mkdir()
    path = directory / "a.parquet"
    pq.write_table(pa.table({"id": np.arange(ROWS), "word": words, "list": lists}), path, row_group_size=500, **options)
    return path


def test_row_bytes_estimates_memory_from_the_footer(tmp_path: Path) -> None:
    """`row_bytes` is exact for numbers and lists of numbers. For text it uses the sizes that the writer recorded."""
    path = wide(tmp_path / "t")
    stored = path.stat().st_size / ROWS
    found = row_bytes(footer_of(str(path), pafs.LocalFileSystem()))

    assert found > 3 * stored
    assert 8 + 9.5 * 8 + 100 <= found < 8 + 11 * 8 + 120


def test_the_window_size_follows_row_sizes_in_memory(tmp_path: Path) -> None:
    """`window_bytes` counts bytes in memory, not on storage, where a dictionary shrinks long texts."""
    path = wide(tmp_path / "t")
    ds = ps.open(path.parent).shuffle(ps.WindowShuffle(window_bytes=100_000), seed=1).batch(10)
    planned: Any = ds._table.plan(ds._query)

    rows = planned.shuffle.rows
    assert 100_000 // 2 // 230 <= rows <= 100_000 // 2 // 180


@pytest.mark.parametrize("columns", [("id",), ("id", "word", "list")])
def test_rows_do_not_depend_on_the_memory_limit(tmp_path: Path, columns: tuple[str, ...]) -> None:
    """A low memory limit may copy batches that the consumer keeps, but never changes their values."""
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
    """When kept batches would keep whole windows alive, batches are copied instead of being views."""
    directory = tmp_path / "t"
    directory.mkdir()
    pq.write_table(pa.table({"id": np.arange(400_000)}), directory / "a.parquet", row_group_size=10_000)
    ds = ps.open(directory).shuffle(ps.WindowShuffle(rows=20_000), seed=1).batch(100).using(threads=1, memory_limit=1_000_000)
    batches, kept, most = iter(ds), [], 0
    for number, batch in enumerate(batches):
        if number % 50 == 0:
            kept.append(batch)
        most = max(most, batches._window_reader.budget.used_bytes)  # type: ignore[union-attr]

    assert len(kept) == 80
    assert most <= 1_200_000


def test_a_consumer_that_keeps_batches_does_not_keep_small_windows() -> None:
    """Batches of small windows are copied too if the consumer keeps some of each window."""
    rows, limit = 200_000, 4 << 20
    table = pa.table({"id": np.arange(rows), **{f"x{number}": np.zeros(rows) for number in range(7)}})
    ds = MemoryFormat.of(table, row_group_rows=2_000).open().shuffle(ps.WindowShuffle(rows=4_000), seed=1)
    batches, kept, most = iter(ds.batch(50).using(memory_limit=limit)), [], 0
    for number, batch in enumerate(batches):
        if number % 20 == 10:
            kept.append(batch)
        most = max(most, batches._window_reader.budget.used_bytes)  # type: ignore[union-attr]

    assert len(kept) == 200
    assert most <= limit
