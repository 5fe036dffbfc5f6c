"""Small batches that are made together are what they would be alone, and fail alone."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock._engine.deliver import batches as stream
from penstock._engine.deliver import small_batches as groups
from penstock._engine.deliver.small_batches import Made, Tempo, fitting
from penstock.errors import DataError
from penstock.testing import MemoryFormat

ROWS = 600


def table(texts: list[str | None]) -> ps.Dataset:
    """Return texts, their bytes and lists of their letters, in row groups of forty rows."""
    columns = {
        "id": pa.array(range(len(texts))),
        "text": pa.array(texts, pa.string()),
        "data": pa.array([None if text is None else text.encode() for text in texts], pa.binary()),
        "letters": pa.array([None if text is None else list(text) for text in texts], pa.list_(pa.string())),
    }
    return MemoryFormat.of(pa.table(columns), row_group_rows=40).open()


def told(batch: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return a batch as Python has it."""
    letters = [None if some is None else list(some) for some in batch["letters"]]
    return list(zip(batch["id"].tolist(), batch["text"].tolist(), batch["data"].tolist(), letters, strict=True))


def alone(ds: ps.Dataset) -> list[list[tuple[Any, ...]]]:
    """Return the batches of a dataset, each made by a task of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "MOST", 1)
        patch.setattr(stream, "can_run", lambda *_: False)
        return [told(batch) for batch in ds]


@pytest.mark.slow
@given(
    size=st.integers(1, 50),
    threads=st.integers(1, 3),
    ranks=st.integers(1, 3),
    lanes=st.integers(1, 2),
    shuffled=st.booleans(),
    mapped=st.booleans(),
)
def test_batches_made_together_are_those_made_alone(
    size: int, threads: int, ranks: int, lanes: int, *, shuffled: bool, mapped: bool
) -> None:
    """Whatever is asked of them, and however many windows and lanes they come from."""
    ds = table([f"text {number}" * (number % 5) for number in range(ROWS)]).batch(size, last="uneven").using(threads=threads)
    ds = ds.shuffle(ps.WindowShuffle(rows=150), seed=3) if shuffled else ds
    ds = ds.shard(ranks - 1, ranks, lanes=lanes * ranks)
    ds = ds.map(lambda batch: {**batch, "text": np.array([text.upper() for text in batch["text"]], object)}) if mapped else ds

    assert [told(batch) for batch in ds] == alone(ds)


def test_what_fails_in_one_batch_does_so_when_its_turn_comes() -> None:
    """Those made before it in the same task are handed out, whether a function or a value is to blame."""

    def picky(batch: dict[str, Any]) -> dict[str, Any]:
        if 200 in batch["id"]:
            raise ValueError("two hundred")
        return batch

    texts: list[str | None] = [f"text {number}" for number in range(ROWS)]
    texts[200] = None
    asked = {
        ValueError: table(["text"] * ROWS).batch(2).map(picky),
        DataError: table(texts).nulls(ps.RaiseOnNull(), "text").batch(2),
    }
    for kind, ds in asked.items():
        got: list[int] = []
        with pytest.raises(kind) as caught:
            got.extend(number for batch in ds.using(threads=1) for number in batch["id"].tolist())

        assert got == list(range(200))
    assert "row 200, column 'text'" in str(caught.value)


def test_rows_that_are_left_out_are_left_out_of_their_batch() -> None:
    """Also where batches are small enough to be made together."""
    texts: list[str | None] = [None if number % 50 == 7 else f"text {number}" for number in range(ROWS)]
    loader = ps.loader(table(texts).nulls(ps.RaiseOnNull(), "text").batch(4).on_bad_row("skip", most=0.1))

    got = [batch["id"].tolist() for batch in loader]

    assert sum(got, []) == [number for number in range(ROWS) if number % 50 != 7]
    assert [len(ids) for ids in got].count(3) == ROWS // 50


@given(count=st.integers(1, 32), seconds=st.floats(0, 10), before=st.integers(1, 32))
def test_tasks_take_about_as_long_as_they_should(count: int, seconds: float, before: int) -> None:
    """They grow by steps, make one batch at least, and no more than would take too long."""
    chunks: list[Any] = [KeyError()] * count

    found = fitting(Made(chunks=chunks, seconds=seconds), before)

    assert 1 <= found <= min(2 * before, groups.MOST)
    assert found == 1 or found * seconds / count <= groups.TASK * 1.000001


def placed(tempo: Tempo, now: list[float], *, asks: int, here: float, ahead: float, away: float = 0.0) -> list[bool]:
    """Return where batches are made that take so long here or ahead, for a consumer that is away in between."""
    found = []
    for _ in range(asks):
        found.append(tempo.is_here(small=False))
        now[0] += here if found[-1] else ahead
        tempo.note(Made(chunks=[KeyError()], seconds=here), most=8)
        now[0] += away
    return found


@pytest.mark.parametrize(("here", "ahead"), [(0.0005, 0.001), (0.002, 0.001)])
def test_the_faster_way_is_found_and_kept(here: float, ahead: float) -> None:
    """Both are tried a few times, then the faster one is kept; and the other tried again, for it may be faster by now."""
    now = [0.0]
    tempo = Tempo(clock=lambda: now[0])
    tempo.note(Made(chunks=[KeyError()], seconds=here), most=8)

    first = placed(tempo, now, asks=3 * groups.TRIAL, here=here, ahead=ahead)
    later = placed(tempo, now, asks=groups.KEPT + 3 * groups.TRIAL, here=ahead, ahead=here)

    assert set(first[: 2 * groups.TRIAL - 2]) == {True, False}
    assert set(first[2 * groups.TRIAL :]) == {here < ahead}
    assert later[-1] is (ahead < here)


def test_the_next_epoch_goes_on_in_the_way_that_was_found() -> None:
    """What was tried in one epoch is not tried again in each."""
    now = [0.0]
    tempo = Tempo(clock=lambda: now[0])
    tempo.note(Made(chunks=[KeyError()] * 4, seconds=0.002), most=8)
    placed(tempo, now, asks=3 * groups.TRIAL, here=0.0005, ahead=0.001)

    again = Tempo(clock=lambda: now[0], before=tempo)
    together = again.together
    again.note(Made(chunks=[KeyError()], seconds=0.0005), most=8)

    assert together == tempo.together > 1
    assert set(placed(again, now, asks=groups.KEPT // 2, here=0.0005, ahead=0.001)) == {True}


def test_a_consumer_that_is_away_has_batches_made_ahead() -> None:
    """Nothing is made while it waits, if it comes back later than batches take; small or not."""
    now = [0.0]
    tempo = Tempo(clock=lambda: now[0])
    tempo.note(Made(chunks=[KeyError()], seconds=0.001), most=8)

    assert tempo.is_here(small=True)
    assert True not in placed(tempo, now, asks=100, here=0.001, ahead=0.001, away=0.002)[10:]
    assert not tempo.is_here(small=True)


def test_what_takes_long_is_made_by_threads() -> None:
    """It is not even tried otherwise."""
    now = [0.0]
    tempo = Tempo(clock=lambda: now[0])
    tempo.note(Made(chunks=[KeyError()], seconds=1.0), most=8)

    assert True not in placed(tempo, now, asks=100, here=1.0, ahead=1.0)


def test_an_interrupt_of_a_small_map_is_raised_at_once() -> None:
    """No batch that was made together with the interrupted one is handed out before."""
    asked: list[int] = []

    def interrupted(batch: dict[str, Any]) -> dict[str, Any]:
        asked.append(int(batch["id"][0]))
        if threading.current_thread() is threading.main_thread() and len(asked) > 150:
            raise KeyboardInterrupt
        return batch

    batches = iter(table(["text"] * ROWS).batch(2).repeat(50).map(interrupted).using(threads=1))
    handed: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        handed.extend(int(batch["id"][0]) for batch in batches)

    assert len(handed) < len(asked)


def test_functions_may_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are made on as many threads as asked for, from the first on, if a function takes long."""
    monkeypatch.setattr(groups, "TASK", 0.0)  # any function does; a task that made two batches could not wait for itself
    both = threading.Barrier(2)

    def meeting(batch: dict[str, Any]) -> dict[str, Any]:
        both.wait(timeout=60)
        return batch

    ds = table(["text"] * 80).batch(10).map(meeting).using(threads=2)

    assert [batch["id"][0] for batch in ds] == list(range(0, 80, 10))
