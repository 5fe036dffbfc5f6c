"""Small batches made together by one task equal batches made alone, and fail alone."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock._engine.deliver import batches
from penstock._engine.window.buffer import LONG_CELL
from penstock.errors import DataError
from penstock.testing import MemoryFormat

ROWS = 600
NUMBERS = 400


def table(texts: list[str | None]) -> ps.Dataset:
    """Return a dataset of texts, their bytes and lists of their letters, in row groups of forty rows."""
    columns = {
        "id": pa.array(range(len(texts))),
        "text": pa.array(texts, pa.string()),
        "data": pa.array([None if text is None else text.encode() for text in texts], pa.binary()),
        "letters": pa.array([None if text is None else list(text) for text in texts], pa.list_(pa.string())),
    }
    return MemoryFormat.of(pa.table(columns), row_group_rows=40).open()


def python_rows(batch: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return the rows of a batch as Python values."""
    letters = [None if some is None else list(some) for some in batch["letters"]]
    return list(zip(batch["id"].tolist(), batch["text"].tolist(), batch["data"].tolist(), letters, strict=True))


def made_alone(ds: ps.Dataset) -> list[list[tuple[Any, ...]]]:
    """Return the batches of a dataset, each made by a task of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "MAX_TOGETHER", 1)
        return [python_rows(batch) for batch in ds]


@pytest.mark.slow
@given(
    size=st.integers(1, 50),
    threads=st.integers(1, 3),
    ranks=st.integers(1, 3),
    lanes=st.integers(1, 2),
    shuffled=st.booleans(),
    mapped=st.booleans(),
)
def test_batches_made_together_equal_batches_made_alone(
    size: int, threads: int, ranks: int, lanes: int, *, shuffled: bool, mapped: bool
) -> None:
    """Batches made together equal batches made alone, with any options, windows and lanes."""
    ds = table([f"text {number}" * (number % 5) for number in range(ROWS)]).batch(size, last="uneven").using(threads=threads)
    ds = ds.shuffle(ps.WindowShuffle(rows=150), seed=3) if shuffled else ds
    ds = ds.shard(ranks - 1, ranks, lanes=lanes * ranks)
    ds = ds.map(lambda batch: {**batch, "text": np.array([text.upper() for text in batch["text"]], object)}) if mapped else ds

    assert [python_rows(batch) for batch in ds] == made_alone(ds)


def test_an_error_of_a_batch_is_raised_in_its_turn() -> None:
    """Batches made before it in the same task are handed out first, for an error of a map or of a value."""

    def picky(batch: dict[str, Any]) -> dict[str, Any]:
        if 200 in batch["id"]:
            raise ValueError("two hundred")
        return batch

    texts: list[str | None] = [f"text {number}" for number in range(ROWS)]
    texts[200] = None
    failing_datasets = {
        ValueError: table(["text"] * ROWS).batch(2).map(picky),
        DataError: table(texts).nulls(ps.RaiseOnNull(), "text").batch(2),
    }
    for kind, ds in failing_datasets.items():
        got: list[int] = []
        with pytest.raises(kind) as caught:
            got.extend(number for batch in ds.using(threads=1) for number in batch["id"].tolist())

        assert got == list(range(200))
    assert "row 200, column 'text'" in str(caught.value)


def test_skipped_rows_shorten_their_own_batch() -> None:
    """A skipped row shortens its own batch only, also if batches are made together."""
    texts: list[str | None] = [None if number % 50 == 7 else f"text {number}" for number in range(ROWS)]
    loader = ps.loader(table(texts).nulls(ps.RaiseOnNull(), "text").batch(4).on_bad_row("skip", most=0.1))

    got = [batch["id"].tolist() for batch in loader]

    assert sum(got, []) == [number for number in range(ROWS) if number % 50 != 7]
    assert [len(ids) for ids in got].count(3) == ROWS // 50


def test_functions_may_wait_for_each_other() -> None:
    """Batches are made on as many threads as requested, from the first batch on."""
    both = threading.Barrier(2)

    def meeting(batch: dict[str, Any]) -> dict[str, Any]:
        both.wait(timeout=60)
        return batch

    ds = table(["text"] * 80).batch(10).map(meeting).using(threads=2)

    assert [batch["id"][0] for batch in ds] == list(range(0, 80, 10))


def listed(ds: ps.Dataset) -> list[dict[str, list[Any]]]:
    """Return the batches of a dataset as lists of Python values."""
    return [{name: values.tolist() for name, values in batch.items()} for batch in ds]


def noisy(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Return a batch with random numbers, which depend on the positions of its rows."""
    return {**batch, "drawn": rng.integers(0, 1 << 30, len(batch["id"]))}


def noisy_row(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Return a row with a random number."""
    return {**row, "drawn": rng.integers(0, 1 << 30)}


def numbers(data: list[bytes | None] | None = None) -> ps.Dataset:
    """Return a dataset of numbers, and of bytes if given, in row groups of forty rows."""
    columns: dict[str, Any] = {"id": pa.array(range(NUMBERS)), "x": pa.array(np.arange(NUMBERS) / 7)}
    if data is not None:
        columns["data"] = pa.array(data, pa.binary())
    return MemoryFormat.of(pa.table(columns), row_group_rows=40).open()


@given(
    size=st.integers(1, 90),
    last=st.sampled_from(["drop", "uneven", "wrap", "pad"]),
    per_row=st.booleans(),
    epochs=st.integers(1, 2),
)
def test_maps_draw_the_same_numbers(size: int, last: Any, epochs: int, *, per_row: bool) -> None:
    """Random numbers depend on the positions of rows in the epoch, and not on how batches are made."""
    ds = numbers().shuffle(ps.WindowShuffle(rows=130), seed=5).batch(size, last=last).repeat(epochs)
    ds = ds.map(noisy_row, per_row=True) if per_row else ds.map(noisy)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "ROWS_AT_ONCE", 7)
        patch.setattr(batches, "MAX_TOGETHER", 1)
        made_alone = listed(ds.using(threads=1))

    assert listed(ds) == made_alone


def long_in(windows: list[bool], *, nulls: bool) -> list[bytes | None]:
    """Return cells that are long in some windows of eighty rows, with some nulls in every other window."""
    found: list[bytes | None] = []
    for number in range(NUMBERS):
        window = number // 80
        cell = bytes([number % 251]) * ((LONG_CELL * 2 if windows[window] else 3) + number % 7) + b"\0"
        found.append(None if nulls and window % 2 and number % 9 == 0 else cell)
    return found


@given(
    windows=st.lists(st.booleans(), min_size=5, max_size=5),
    nulls=st.booleans(),
    size=st.integers(1, 70),
    shuffled=st.booleans(),
    mapped=st.booleans(),
    skip=st.booleans(),
)
def test_short_and_long_cells_belong_to_their_rows(
    windows: list[bool], size: int, *, nulls: bool, shuffled: bool, mapped: bool, skip: bool
) -> None:
    """Long cells are picked from where they were read and short cells are reordered. A batch may have both."""
    data = long_in(windows, nulls=nulls)
    ds = numbers(data).batch(size, last="uneven")
    ds = ds.shuffle(ps.WindowShuffle(rows=80), seed=2) if shuffled else ds
    ds = ds.map(lambda batch: batch) if mapped else ds
    ds = ds.on_bad_row("skip") if skip else ds

    found = {number: cell for batch in ds for number, cell in zip(batch["id"].tolist(), batch["data"].tolist(), strict=True)}

    assert found == dict(enumerate(data))


def test_long_cells_are_bytes_objects() -> None:
    """Long cells are `bytes` objects, not views of memory that is reused."""
    cells: list[bytes | None] = [bytes([number % 251]) * 2 * LONG_CELL for number in range(NUMBERS)]

    for batch in numbers(cells).batch(50):
        assert {type(cell) for cell in batch["data"]} == {bytes}


def test_a_resumed_run_continues_with_the_next_batch() -> None:
    """A position counts batches that were handed out, not batches that were made."""
    loader = ps.loader(numbers().shuffle(ps.WindowShuffle(rows=100), seed=1).batch(3, last="uneven").map(lambda batch: batch))
    batches = iter(loader)
    seen = [next(batches)["id"].tolist() for _ in range(71)]
    again = ps.loader(numbers().shuffle(ps.WindowShuffle(rows=100), seed=1).batch(3, last="uneven").map(lambda batch: batch))
    again.load_state_dict(loader.state_dict())

    rest = [batch["id"].tolist() for batch in again]

    assert sorted(sum(seen + rest, [])) == list(range(NUMBERS))


def test_one_task_makes_several_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task makes up to MAX_TOGETHER batches. Otherwise the tests of this file would check nothing."""
    counts: list[int] = []
    real = batches._finish

    def counting(task: Any, adapter: Any) -> Any:
        counts.append(len(task.steps))
        return real(task, adapter)

    monkeypatch.setattr(batches, "_finish", counting)
    steps = sum(1 for _ in table([f"text {number}" for number in range(ROWS)]).shuffle(seed=1).batch(2))

    assert sum(counts) == steps == ROWS // 2
    assert max(counts) == batches.MAX_TOGETHER
