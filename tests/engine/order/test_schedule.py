"""Batches of a rank: their rows, and the rows consumed after each."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock._engine.order.shard import BatchRows, Schedule, Shard, row_group_schedule, schedule, shards
from penstock.model import Assignment, Position, Ranges

NINE = Assignment(lanes=2, stride=2, ranks=2)


def spelt(batches: Schedule, step: int) -> Ranges:
    """Return the part of the epoch's sequence that a batch reads."""
    draw = batches.batch(step)
    return batches.shard.ranges(draw.start, draw.stop) + draw.fill


def test_drop_stops_before_a_batch_that_some_rank_cannot_fill() -> None:
    """Rank 1 has a fifth row, which is left out with rank 0's."""
    batches = schedule(shards(9, (NINE,)), NINE, 1, size=2, last="drop")

    assert [spelt(batches, step) for step in range(len(batches))] == [((4, 6),), ((6, 8),)]


def test_pad_repeats_a_row_and_counts_the_valid_ones() -> None:
    """What fills up is not read again."""
    batches = schedule(shards(9, (NINE,)), NINE, 1, size=2, last="pad")

    assert batches.batch(2) == BatchRows(start=4, stop=5, valid=1, size=2)
    assert spelt(batches, 2) == ((8, 9),)


def test_a_rank_without_rows_pads_with_the_first_row_of_another() -> None:
    """After a resume a rank may have nothing left, and must take its step all the same."""
    assignments = (Assignment(lanes=1, stride=2, ranks=1, rows=8), Assignment(lanes=3, stride=2, ranks=3))
    dealt = shards(9, assignments)

    assert schedule(dealt, assignments[-1], 0, size=2, last="pad").batch(0) == BatchRows(
        start=0, stop=0, fill=((8, 9),), valid=0, size=2
    )
    assert spelt(schedule(dealt, assignments[-1], 0, size=2, last="wrap"), 0) == ((8, 9), (8, 9))


def test_wrap_goes_on_with_the_beginning_as_often_as_it_takes() -> None:
    """A rank of three rows fills a batch of eight with them over and over."""
    assignment = Assignment(lanes=1, stride=8, ranks=1)

    found = schedule(shards(3, (assignment,)), assignment, 0, size=8, last="wrap")
    assert found.batch(0) == BatchRows(start=0, stop=3, fill=((0, 3), (0, 2)), valid=8, size=8)


def test_an_epoch_of_no_rows_has_no_batches() -> None:
    """Nothing left is no step, whatever the policy."""
    assignment = Assignment(lanes=1, stride=1, ranks=1)

    assert [
        len(schedule(shards(0, (assignment,)), assignment, 0, size=2, last=last)) for last in ("drop", "pad", "wrap", "uneven")
    ] == [0] * 4


def test_batches_of_unequal_sizes_end_at_their_edges() -> None:
    """Consumed rows and the position follow the edges."""
    batches = row_group_schedule(Shard((((10, 16),),), stride=6), 1, np.array([0, 2, 5]))
    start = Position(assignments=(Assignment(lanes=1, stride=6, ranks=1, rows=1),))

    assert [spelt(batches, step) for step in range(len(batches))] == [((11, 13),), ((13, 16),)]
    assert batches.position(start, 1).assignments[-1].rows == 3
    assert batches.position(start, 2) == Position(epoch=1)


@given(rows=st.integers(0, 60), ranks=st.integers(1, 5), size=st.integers(1, 9))
def test_level_ranks_end_with_batches_of_one_size_and_hardly_a_row_twice(rows: int, ranks: int, size: int) -> None:
    """As many steps and rows on each, all rows at least once, and fewer than one row a rank more than there are."""
    assignment = Assignment(lanes=ranks, stride=size, ranks=ranks)
    dealt = shards(rows, (assignment,))
    found = [schedule(dealt, assignment, rank, size=size, last="level") for rank in range(ranks)]
    draws = [[one.batch(step) for step in range(len(one))] for one in found]
    places = [place for one, its in zip(found, draws, strict=True) for draw in its for place in spelt_rows(one, draw)]

    assert len({tuple(draw.size for draw in its) for its in draws}) == 1
    assert all(draw.size == draw.valid for its in draws for draw in its)
    assert set(places) == set(range(rows))
    assert len(places) == -(-rows // ranks) * ranks


def spelt_rows(found: Schedule, draw: BatchRows) -> list[int]:
    """Return the places of the epoch's sequence that a batch is made of."""
    own = found.shard.ranges(draw.start, draw.stop)
    return [place for start, stop in (*own, *draw.fill) for place in range(start, stop)]
