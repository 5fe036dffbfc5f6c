"""Shards, assignments and merged positions, one rule at a time. test_properties tests them together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._engine.order.shard import Shard, first_assignment, merge_positions, reassign, shards
from penstock.errors import ArgumentError, StateError
from penstock.model import Assignment, Position, Ranges, split_ranges


def places(ranges: Ranges) -> list[int]:
    """Return the places of the ranges in order."""
    return [place for start, stop in ranges for place in range(start, stop)]


shard_of = st.builds(
    lambda rows, lanes, stride: Shard(tuple(split_ranges(((0, rows),), lanes)), stride),
    st.integers(0, 60),
    st.integers(1, 5),
    st.integers(1, 7),
)


@given(shard_of, st.data())
def test_a_shard_takes_lanes_in_turn(shard: Shard, data: st.DataObject) -> None:
    """A shard takes `stride` rows of each lane in turn, and any range of it is that range of this order."""
    expected: list[int] = []
    lanes = [places(lane) for lane in shard.lanes]
    shortest = min(map(len, lanes)) // shard.stride * shard.stride
    for turn in range(0, shortest, shard.stride):
        for lane in lanes:
            expected += lane[turn : turn + shard.stride]
    for lane in lanes:
        expected += lane[shortest:]
    start = data.draw(st.integers(0, shard.num_rows))
    stop = data.draw(st.integers(start, shard.num_rows))

    assert places(shard.ranges(start, stop)) == expected[start:stop]
    assert sorted(places(shard.ranges(0, start)) + places(shard.rest(start))) == list(range(shard.num_rows))


def test_the_stride_divides_a_global_batch_among_the_lanes() -> None:
    """A global batch takes the same number of rows of each lane if possible, else whole batches of each."""
    assert first_assignment(ranks=2, lanes=8, size=64) == Assignment(lanes=8, stride=16, ranks=2)
    assert first_assignment(ranks=2, lanes=6, size=4) == Assignment(lanes=6, stride=4, ranks=2)
    assert first_assignment(ranks=3, lanes=None, size=5) == Assignment(lanes=3, stride=5, ranks=3)


def test_lanes_that_are_no_multiple_of_the_ranks_raise() -> None:
    """The number of lanes must be a multiple of the number of ranks."""
    with pytest.raises(ArgumentError) as caught:
        first_assignment(ranks=4, lanes=6, size=1)

    assert str(caught.value) == (
        "6 lanes cannot be shared out among 4 ranks. The number of lanes must be a multiple of the number of ranks. "
        "Use lanes=4, or leave it out."
    )


def test_an_assignment_that_consumed_more_rows_than_its_shard_has_raises() -> None:
    """A state cannot have consumed more rows than the table has."""
    with pytest.raises(StateError) as caught:
        shards(10, (Assignment(lanes=2, stride=1, ranks=2, rows=6),))

    assert str(caught.value) == (
        "Assignment 0 of the state says that rank 0 has consumed 6 rows, but its shard has 5. The state was damaged or belongs "
        "to another table. Start without it."
    )


def test_an_assignment_without_consumed_rows_is_replaced() -> None:
    """Restarts without progress do not make the state longer."""
    assignments = (Assignment(lanes=2, stride=2, ranks=2, rows=3),)
    again = reassign(40, reassign(40, reassign(40, assignments, ranks=3, size=2), ranks=5, size=2), ranks=4, size=1)

    assert again == (*assignments, Assignment(lanes=4, stride=1, ranks=4))


def test_equal_positions_are_merged_to_one() -> None:
    """Ranks that advance equally have equal positions."""
    position = Position(epoch=3, assignments=(Assignment(lanes=2, stride=2, ranks=2, rows=2),))

    assert merge_positions(10, [position, position]) == position
    assert merge_positions(10, [Position(epoch=4)] * 3) == Position(epoch=4)


def test_unequal_positions_are_merged_rank_by_rank() -> None:
    """A rank that has not begun consumed no rows, and one that has ended consumed its shard."""
    assignment = Assignment(lanes=3, stride=2, ranks=3, rows=1)

    found = merge_positions(10, [Position(epoch=2), Position(epoch=3), Position(epoch=2, assignments=(assignment,))])
    assert found == Position(epoch=2, assignments=(Assignment(lanes=3, stride=2, ranks=3, rows=(0, 3, 1)),))


BEGUN = Position(assignments=(Assignment(lanes=2, stride=2, ranks=2, rows=1),))


@pytest.mark.parametrize(
    "positions",
    [
        [BEGUN, Position(assignments=(Assignment(lanes=2, stride=1, ranks=2, rows=1),))],
        [BEGUN, Position(epoch=2)],
        [BEGUN, Position(epoch=1), Position()],
        [Position(), Position(epoch=1)],
        [Position(), Position(assignments=(*BEGUN.assignments, Assignment(lanes=2, stride=1, ranks=2, rows=1)))],
    ],
)
def test_positions_that_do_not_belong_together_raise(positions: list[Position]) -> None:
    """Positions of different runs, moments or numbers of ranks cannot be merged."""
    with pytest.raises(StateError, match="are not those of all ranks of one run at one moment"):
        merge_positions(10, positions)
