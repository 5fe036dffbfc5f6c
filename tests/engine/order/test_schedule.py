"""Batches of a rank: their rows, and the number of rows consumed after each."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock._engine.order.shard import BatchRows, Schedule, Shard, row_group_schedule, schedule, shards
from penstock.model import Assignment, Position, Ranges

NINE = Assignment(lanes=2, stride=2, ranks=2)


def batch_ranges(batches: Schedule, step: int) -> Ranges:
    """Return the ranges of the epoch's order that a batch reads."""
    rows_of_batch = batches.batch(step)
    return batches.shard.ranges(rows_of_batch.start, rows_of_batch.stop) + rows_of_batch.fill


def test_drop_stops_before_a_batch_that_some_rank_cannot_fill() -> None:
    """All ranks stop before the first batch that some rank cannot fill, and drop their other rows."""
    batches = schedule(shards(9, (NINE,)), NINE, 1, size=2, last="drop")

    assert [batch_ranges(batches, step) for step in range(len(batches))] == [((4, 6),), ((6, 8),)]


def test_pad_fills_the_last_batch_and_counts_the_valid_rows() -> None:
    """Padding reads no row again."""
    batches = schedule(shards(9, (NINE,)), NINE, 1, size=2, last="pad")

    assert batches.batch(2) == BatchRows(start=4, stop=5, valid=1, size=2)
    assert batch_ranges(batches, 2) == ((8, 9),)


def test_a_rank_without_rows_pads_with_the_first_row_of_another() -> None:
    """After a resume a rank may have no rows left, and must still take its step."""
    assignments = (Assignment(lanes=1, stride=2, ranks=1, rows=8), Assignment(lanes=3, stride=2, ranks=3))
    rank_shards = shards(9, assignments)

    assert schedule(rank_shards, assignments[-1], 0, size=2, last="pad").batch(0) == BatchRows(
        start=0, stop=0, fill=((8, 9),), valid=0, size=2
    )
    assert batch_ranges(schedule(rank_shards, assignments[-1], 0, size=2, last="wrap"), 0) == ((8, 9), (8, 9))


def test_wrap_repeats_the_beginning_as_often_as_needed() -> None:
    """A rank of three rows fills a batch of eight by repeating them."""
    assignment = Assignment(lanes=1, stride=8, ranks=1)

    found = schedule(shards(3, (assignment,)), assignment, 0, size=8, last="wrap")
    assert found.batch(0) == BatchRows(start=0, stop=3, fill=((0, 3), (0, 2)), valid=8, size=8)


def test_an_epoch_of_no_rows_has_no_batches() -> None:
    """Without rows there are no batches under any policy."""
    assignment = Assignment(lanes=1, stride=1, ranks=1)

    assert [
        len(schedule(shards(0, (assignment,)), assignment, 0, size=2, last=last)) for last in ("drop", "pad", "wrap", "uneven")
    ] == [0] * 4


def test_batches_of_unequal_sizes_end_at_their_edges() -> None:
    """The ranges of the batches and the position follow the edges of the row groups."""
    batches = row_group_schedule(Shard((((10, 16),),), stride=6), 1, np.array([0, 2, 5]))
    start = Position(assignments=(Assignment(lanes=1, stride=6, ranks=1, rows=1),))

    assert [batch_ranges(batches, step) for step in range(len(batches))] == [((11, 13),), ((13, 16),)]
    assert batches.position(start, 1).assignments[-1].rows == 3
    assert batches.position(start, 2) == Position(epoch=1)


@given(rows=st.integers(0, 60), ranks=st.integers(1, 5), size=st.integers(1, 9))
def test_level_gives_all_ranks_batches_of_the_same_sizes(rows: int, ranks: int, size: int) -> None:
    """All rows are read, and fewer rows are repeated than there are ranks."""
    assignment = Assignment(lanes=ranks, stride=size, ranks=ranks)
    rank_shards = shards(rows, (assignment,))
    found = [schedule(rank_shards, assignment, rank, size=size, last="level") for rank in range(ranks)]
    rows_by_rank = [[one.batch(step) for step in range(len(one))] for one in found]
    places = [
        place
        for one, rank_batches in zip(found, rows_by_rank, strict=True)
        for rows_of_batch in rank_batches
        for place in batch_places(one, rows_of_batch)
    ]

    assert len({tuple(rows_of_batch.size for rows_of_batch in rank_batches) for rank_batches in rows_by_rank}) == 1
    assert all(rows_of_batch.size == rows_of_batch.valid for rank_batches in rows_by_rank for rows_of_batch in rank_batches)
    assert set(places) == set(range(rows))
    assert len(places) == -(-rows // ranks) * ranks


def batch_places(found: Schedule, rows_of_batch: BatchRows) -> list[int]:
    """Return the places in the epoch's order that a batch consists of."""
    own = found.shard.ranges(rows_of_batch.start, rows_of_batch.stop)
    return [place for start, stop in (*own, *rows_of_batch.fill) for place in range(start, stop)]
