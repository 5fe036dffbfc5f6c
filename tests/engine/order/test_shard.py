"""Hands, deals and merged positions, one rule at a time; their sum is tested in test_properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._engine.order.shard import Shard, first_assignment, merge_positions, reassign, shards
from penstock.errors import ArgumentError, StateError
from penstock.model import Assignment, Position, Ranges, split_ranges


def places(ranges: Ranges) -> list[int]:
    """Return the places of a part in turn."""
    return [place for start, stop in ranges for place in range(start, stop)]


hand_of = st.builds(
    lambda rows, lanes, stride: Shard(tuple(split_ranges(((0, rows),), lanes)), stride),
    st.integers(0, 60),
    st.integers(1, 5),
    st.integers(1, 7),
)


@given(hand_of, st.data())
def test_a_hand_takes_lanes_in_turn(shard: Shard, data: st.DataObject) -> None:
    """Any stretch of a hand is that stretch of its whole order, which takes `stride` rows of each lane in turn."""
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


def test_a_stride_shares_a_global_batch_among_the_lanes() -> None:
    """Each global batch takes as many rows of every lane where that comes out even, else whole batches of each."""
    assert first_assignment(ranks=2, lanes=8, size=64) == Assignment(lanes=8, stride=16, ranks=2)
    assert first_assignment(ranks=2, lanes=6, size=4) == Assignment(lanes=6, stride=4, ranks=2)
    assert first_assignment(ranks=3, lanes=None, size=5) == Assignment(lanes=3, stride=5, ranks=3)


def test_lanes_that_cannot_be_shared_out_are_refused() -> None:
    """The number of lanes is a multiple of the number of ranks."""
    with pytest.raises(ArgumentError) as caught:
        first_assignment(ranks=4, lanes=6, size=1)

    assert str(caught.value) == (
        "6 lanes cannot be shared out among 4 ranks. The number of lanes must be a multiple of the number of ranks. "
        "Use lanes=4, or leave it out."
    )


def test_a_deal_that_consumed_more_than_it_had_is_refused() -> None:
    """A state cannot say more than the table holds."""
    with pytest.raises(StateError) as caught:
        shards(10, (Assignment(lanes=2, stride=1, ranks=2, rows=6),))

    assert str(caught.value) == (
        "Assignment 0 of the state says that rank 0 has consumed 6 rows, but its shard has 5. The state was damaged or belongs "
        "to another table. Start without it."
    )


def test_a_deal_of_which_nothing_was_taken_leaves_no_trace() -> None:
    """Restarts without progress do not make the state longer."""
    assignments = (Assignment(lanes=2, stride=2, ranks=2, rows=3),)
    again = reassign(40, reassign(40, reassign(40, assignments, ranks=3, size=2), ranks=5, size=2), ranks=4, size=1)

    assert again == (*assignments, Assignment(lanes=4, stride=1, ranks=4))


def test_equal_positions_are_merged_to_one() -> None:
    """Ranks that advance alike say the same."""
    position = Position(epoch=3, assignments=(Assignment(lanes=2, stride=2, ranks=2, rows=2),))

    assert merge_positions(10, [position, position]) == position
    assert merge_positions(10, [Position(epoch=4)] * 3) == Position(epoch=4)


def test_unequal_positions_are_merged_rank_by_rank() -> None:
    """A rank that has not begun consumed nothing, one that has ended consumed its hand."""
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
def test_positions_that_do_not_go_together_are_refused(positions: list[Position]) -> None:
    """States of different runs, moments or numbers of ranks cannot be merged."""
    with pytest.raises(StateError, match="are not those of all ranks of one run at one moment"):
        merge_positions(10, positions)
