"""Lots: parts of row groups and shares of readers lose no row, and turns come in an order that a seed decides."""

from __future__ import annotations

from itertools import islice

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock._engine.row_groups.order import RowGroupTasks, Step, Turns

sizes = st.lists(st.integers(1, 30), min_size=1, max_size=12)


def rows(lots: RowGroupTasks) -> list[tuple[int, int]]:
    """Return each row as its row group and its number there."""
    units = lots.units
    found = zip(lots.ordinal.tolist(), units.start.tolist(), units.rows.tolist(), strict=True)
    return [(group, row) for group, start, count in found for row in range(start, start + count)]


@given(sizes=sizes, parts=st.integers(1, 40))
def test_parts_follow_one_another_and_make_up_the_whole(sizes: list[int], parts: int) -> None:
    """A row group has as many parts as asked for, or as many as it has rows; they differ by one row at most."""
    lots = RowGroupTasks.of(sizes)

    found = lots.cut(parts)

    assert rows(found) == rows(lots)
    for group, size in enumerate(sizes):
        counts = found.units.rows[found.ordinal == group]
        assert len(counts) == min(parts, size)
        assert counts.max() - counts.min() <= 1


@given(sizes=sizes, parts=st.integers(1, 40), more=st.integers(0, 5))
def test_parts_may_have_rows_of_the_next(sizes: list[int], parts: int, more: int) -> None:
    """As far as their row group has any."""
    plain, longer = RowGroupTasks.of(sizes).cut(parts), RowGroupTasks.of(sizes).cut(parts, more)

    ends = np.array(sizes)[plain.ordinal]
    assert longer.units.start.tolist() == plain.units.start.tolist()
    assert (longer.units.start + longer.units.rows).tolist() == np.minimum(
        plain.units.start + plain.units.rows + more, ends
    ).tolist()


@given(sizes=sizes, parts=st.integers(1, 5), ranks=st.integers(1, 20))
def test_shares_are_even_and_make_up_the_whole(sizes: list[int], parts: int, ranks: int) -> None:
    """Whatever row groups there are, and whether they are cut."""
    lots = RowGroupTasks.of(sizes).cut(parts)

    shares = [lots.shared_out(rank, ranks) for rank in range(ranks)]

    assert [row for share in shares for row in rows(share)] == rows(lots)
    counts = [share.num_rows for share in shares]
    assert max(counts) - min(counts) <= 1
    assert all((share.units.rows > 0).all() for share in shares)


@given(count=st.integers(1, 50), seed=st.integers(0, 5), epochs=st.integers(1, 3))
def test_every_lot_has_its_turn_in_every_epoch(count: int, seed: int, epochs: int) -> None:
    """Once, at the place that the seed says."""
    turns = Turns(count=count, seed=seed)

    steps = list(turns.steps(epochs=epochs))

    assert [(step.epoch, step.place) for step in steps] == [(epoch, place) for epoch in range(epochs) for place in range(count)]
    for epoch in range(epochs):
        assert sorted(step.lot for step in steps if step.epoch == epoch) == list(range(count))
    assert steps == list(turns.steps(epochs=epochs))


@given(count=st.integers(1, 20), skipped=st.integers(0, 40))
def test_turns_go_on_from_any_place(count: int, skipped: int) -> None:
    """A resume computes where it is."""
    turns = Turns(count=count, seed=3)
    epoch, place = divmod(skipped, count)

    assert list(islice(turns.steps(epochs=None, epoch=epoch, place=place), 50)) == list(
        islice(turns.steps(epochs=None), skipped, skipped + 50)
    )


def test_turns_in_stored_order() -> None:
    """Where nothing is shuffled, and where there is nothing."""
    assert list(Turns(count=2, shuffled=False).steps(epochs=1)) == [
        Step(epoch=0, place=0, lot=0),
        Step(epoch=0, place=1, lot=1),
    ]
    assert list(Turns(count=0).steps(epochs=None)) == []


def test_the_order_of_turns_is_pinned() -> None:
    """A saved state means the same order for ever: whoever changes this breaks resumes, and says so."""
    assert Turns(count=8, seed=7).order(0).tolist() == [6, 7, 1, 5, 4, 3, 0, 2]
    assert Turns(count=8, seed=7).order(1).tolist() == [6, 5, 7, 1, 0, 3, 2, 4]
