"""Whole batches that follow one another in a window: the same rows, places and errors as those that are drawn one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock._engine.deliver import batches as stream
from penstock._engine.deliver.small_batches import Run
from penstock._engine.window.buffer import LONG
from penstock.testing import MemoryFormat

ROWS = 400


def drawn(ds: ps.Dataset) -> list[dict[str, list[Any]]]:
    """Return a dataset's batches, each drawn by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "can_run", lambda *_: False)
        return listed(ds)


def listed(ds: ps.Dataset) -> list[dict[str, list[Any]]]:
    """Return a dataset's batches as Python has them."""
    return [{name: values.tolist() for name, values in batch.items()} for batch in ds]


def noisy(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Return a batch with a random number, which depends on where its rows stand."""
    return {**batch, "drawn": rng.integers(0, 1 << 30, len(batch["id"]))}


def noisy_row(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Return a row with one."""
    return {**row, "drawn": rng.integers(0, 1 << 30)}


def table(data: list[bytes | None] | None = None) -> ps.Dataset:
    """Return numbers, and bytes where they are given, in row groups of forty rows."""
    columns: dict[str, Any] = {"id": pa.array(range(ROWS)), "x": pa.array(np.arange(ROWS) / 7)}
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
    """They depend on where rows stand in the epoch, and not on how batches are made."""
    ds = table().shuffle(ps.WindowShuffle(rows=130), seed=5).batch(size, last=last).repeat(epochs)
    ds = ds.map(noisy_row, per_row=True) if per_row else ds.map(noisy)

    assert listed(ds) == drawn(ds)


def long_in(windows: list[bool], *, nulls: bool) -> list[bytes | None]:
    """Return bytes that are long in some windows of eighty rows, with a null here and there in every other window."""
    found: list[bytes | None] = []
    for number in range(ROWS):
        window = number // 80
        cell = bytes([number % 251]) * ((LONG * 2 if windows[window] else 3) + number % 7) + b"\0"
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
def test_bytes_are_theirs_wherever_they_lie(
    windows: list[bool], size: int, *, nulls: bool, shuffled: bool, mapped: bool, skip: bool
) -> None:
    """Long ones are picked from where they were read, short ones brought in order; a batch may be of both."""
    data = long_in(windows, nulls=nulls)
    ds = table(data).batch(size, last="uneven")
    ds = ds.shuffle(ps.WindowShuffle(rows=80), seed=2) if shuffled else ds
    ds = ds.map(lambda batch: batch) if mapped else ds
    ds = ds.on_bad_row("skip") if skip else ds

    found = {number: cell for batch in ds for number, cell in zip(batch["id"].tolist(), batch["data"].tolist(), strict=True)}

    assert found == dict(enumerate(data))


def test_long_bytes_are_bytes_of_their_own() -> None:
    """They are no views of memory that is used again."""
    cells: list[bytes | None] = [bytes([number % 251]) * 2 * LONG for number in range(ROWS)]

    for batch in table(cells).batch(50):
        assert {type(cell) for cell in batch["data"]} == {bytes}


def test_a_batch_of_a_run_fails_when_its_turn_comes() -> None:
    """Those before it are handed out, and the error says which map and where."""

    def picky(batch: dict[str, Any]) -> dict[str, Any]:
        if 200 in batch["id"]:
            msg = "nobody likes 200"
            raise ValueError(msg)
        return batch

    seen: list[int] = []
    ds = table().batch(4).map(picky).repeat(3)
    with pytest.raises(ValueError, match="nobody likes 200") as caught:
        seen.extend(number for batch in ds for number in batch["id"].tolist())

    assert seen == list(range(200))
    assert any("Raised by map" in note and "position 200 of epoch 0" in note for note in caught.value.__notes__)


def test_a_resumed_run_goes_on_with_the_next_batch() -> None:
    """The position counts what was handed out, and not what was made."""
    loader = ps.loader(table().shuffle(ps.WindowShuffle(rows=100), seed=1).batch(3, last="uneven").map(lambda batch: batch))
    batches = iter(loader)
    seen = [next(batches)["id"].tolist() for _ in range(71)]
    again = ps.loader(table().shuffle(ps.WindowShuffle(rows=100), seed=1).batch(3, last="uneven").map(lambda batch: batch))
    again.load_state_dict(loader.state_dict())

    rest = [batch["id"].tolist() for batch in again]

    assert sorted(sum(seen + rest, [])) == list(range(ROWS))


def test_runs_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly all batches of an epoch come of runs, or these tests would say nothing."""
    counts: list[int] = []
    real = Run.finished

    def counting(run: Run, adapter: Any) -> Any:
        counts.append(run.count)
        return real(run, adapter)

    monkeypatch.setattr(Run, "finished", counting)
    steps = sum(1 for _ in table().shuffle(seed=1).batch(2).map(lambda batch: batch))

    assert steps == ROWS // 2
    assert sum(counts) >= steps - 10
    assert max(counts) > 1
