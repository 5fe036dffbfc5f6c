"""Splitting, slicing and joining ranges."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.model import Ranges, even_edges, join_ranges, ranges_length, slice_ranges, split_ranges


@st.composite
def parts(draw: st.DrawFn) -> Ranges:
    """Draw disjoint ranges in any order, some of them adjacent."""
    edges = sorted(draw(st.sets(st.integers(0, 60), max_size=10)))
    found = list(pairwise(edges))
    return tuple(draw(st.permutations(found)))


def places(ranges: Ranges) -> list[int]:
    """Return the places in ranges, in order."""
    return [place for start, stop in ranges for place in range(start, stop)]


@given(parts(), st.integers(1, 9))
def test_split_ranges_gives_parts_that_make_the_whole(ranges: Ranges, count: int) -> None:
    """Parts follow one another, lose nothing and differ in length by at most one."""
    found = split_ranges(ranges, count)

    assert [place for part in found for place in places(part)] == places(ranges)
    assert len(found) == count
    assert max(map(ranges_length, found)) - min(map(ranges_length, found)) <= 1


@given(parts(), st.integers(0, 70), st.integers(0, 70))
def test_slice_ranges_gives_places_by_number(ranges: Ranges, start: int, stop: int) -> None:
    """`slice_ranges` selects places by their number in the order of the ranges."""
    assert places(slice_ranges(ranges, start, stop)) == places(ranges)[start:stop]


@given(parts())
def test_join_ranges_keeps_places_and_merges_adjacent_ranges(ranges: Ranges) -> None:
    """No two neighbours in the result are adjacent."""
    found = join_ranges([ranges[:2], ranges[2:]])

    assert places(found) == places(ranges)
    assert all(before[1] != after[0] for before, after in pairwise(found))


@given(st.integers(0, 10**17), st.integers(0, 10**17), st.integers(1, 50))
def test_even_edges_do_not_overflow(start: int, size: int, count: int) -> None:
    """Edges equal those of exact arithmetic, also for numbers whose product exceeds 64 bits."""
    assert even_edges(start, start + size, count).tolist() == [start + at * size // count for at in range(count + 1)]
