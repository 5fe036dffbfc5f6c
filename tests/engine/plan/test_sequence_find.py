"""Sequences by times and groups equal those that plain Python finds, in units and across their borders."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._engine.plan.sequence_find import SequenceRule, SortedRows, Times, first_unordered, sequence_starts
from penstock._engine.plan.sequence_links import NotInOrderError, SequenceLinker, extend_rows
from penstock.model import IntArray, SequenceLinks

Row = tuple[Hashable, float, int]
"""A row for plain Python: its group, its time and its number."""


def plain(rows: Sequence[Row], rule: SequenceRule) -> list[tuple[int, ...]]:
    """Return all sequences of rows in stored order, as row numbers, by testing one window after the other."""
    found = []
    for group in {row[0] for row in rows}:
        line = sorted((row for row in rows if row[0] == group), key=lambda row: row[1])
        ended = None
        for at in range(len(line) - rule.length + 1):
            candidate = line[at : at + rule.length]
            close = all(rule.gap is None or later[1] - earlier[1] <= rule.gap for earlier, later in pairwise(candidate))
            if close and (rule.overlap or ended is None or candidate[0][1] > ended):
                found.append(tuple(row[2] for row in candidate))
                ended = candidate[-1][1]
    return sorted(found)


def counted(times: Sequence[int]) -> Times:
    """Return integer times in the type of the engine."""
    return np.array(times, dtype=np.uint64)


rules = st.builds(SequenceRule, length=st.integers(1, 4), gap=st.none() | st.integers(0, 3), overlap=st.booleans())
rows_of = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=20)


@given(rows_of, rules)
def test_sequences_of_a_unit_are_those_of_plain_python(rows: list[tuple[int, int]], rule: SequenceRule) -> None:
    """Sequences equal those of plain Python for rows in any order, and for all groups, gaps and repeated times."""
    line = SortedRows.of(counted([time for _, time in rows]), np.array([group for group, _ in rows], dtype=np.int64))

    found = sequence_starts(line, rule)

    assert sorted(tuple(line.rows[at : at + rule.length].tolist()) for at in found) == plain(
        [(group, time, number) for number, (group, time) in enumerate(rows)], rule
    )
    assert found.tolist() == sorted(found.tolist())


@given(st.lists(st.integers(0, 9), max_size=15), rules)
def test_without_groups_all_rows_are_one_group(times: list[int], rule: SequenceRule) -> None:
    """Rows without groups give the same sequences as rows of one group, in any order."""
    line, same = SortedRows.of(counted(times)), SortedRows.of(counted(times), np.zeros(len(times), dtype=np.int64))

    assert line.rows.tolist() == same.rows.tolist()
    assert sequence_starts(line, rule).tolist() == sequence_starts(same, rule).tolist()


@given(st.lists(st.floats(0, 4, width=16), max_size=12), st.floats(0, 2, width=16), st.integers(1, 3))
def test_times_may_be_fractions(times: list[float], gap: float, length: int) -> None:
    """Times may be floats. Neighbours exactly as far apart as the gap are close enough."""
    rule = SequenceRule(length=length, gap=gap)
    line = SortedRows.of(np.array(times, dtype=np.float64))

    assert sorted(tuple(line.rows[at : at + length].tolist()) for at in sequence_starts(line, rule)) == plain(
        [(0, time, number) for number, time in enumerate(times)], rule
    )


def test_differences_of_extreme_times_do_not_overflow() -> None:
    """Gaps are compared correctly for times at both ends of the range of 64 bits."""
    line = SortedRows.of(np.array([0, 1, 2**64 - 2, 2**64 - 1], dtype=np.uint64))

    assert sequence_starts(line, SequenceRule(length=2, gap=1)).tolist() == [0, 2]
    assert sequence_starts(line, SequenceRule(length=2, gap=2**64 - 3)).tolist() == [0, 1, 2]
    assert sequence_starts(line, SequenceRule(length=2, gap=2**64 - 4)).tolist() == [0, 2]


@pytest.mark.parametrize(
    ("times", "rule", "expected"),
    [
        ([0, 3, 8, 10, 11, 20, 23], SequenceRule(length=2, gap=4), [(0, 3), (8, 10), (10, 11), (20, 23)]),
        (range(10), SequenceRule(length=3, overlap=False), [(0, 1, 2), (3, 4, 5), (6, 7, 8)]),
        ([0, 1, 1, 1, 2, 3], SequenceRule(length=2, overlap=False), [(0, 1), (2, 3)]),
        ([0, 1, 5, 6, 7], SequenceRule(length=3, gap=1), [(5, 6, 7)]),
        ([5, 5, 5], SequenceRule(length=1, overlap=False), [(5,)]),
        ([1, 2], SequenceRule(length=3), []),
        ([], SequenceRule(length=1), []),
        ([], SequenceRule(length=1, overlap=False), []),
    ],
)
def test_rules_for_gaps_and_overlap(times: Sequence[int], rule: SequenceRule, expected: list[tuple[int, ...]]) -> None:
    """A longer gap ends a sequence. Without overlap the next sequence starts later than the last one ended."""
    line = SortedRows.of(counted(list(times)))

    assert [tuple(line.times[at : at + rule.length].tolist()) for at in sequence_starts(line, rule)] == expected


@pytest.mark.parametrize(
    ("times", "groups", "length", "expected"),
    [
        ([1, 2, 2, 3], None, 2, None),
        ([1, 3, 2, 0], None, 2, 2),
        ([1, 3, 2], None, 1, None),
        ([3, 2], None, 3, None),
        ([], None, 2, None),
        ([9, 1, 9, 2], [0, 1, 0, 1], 2, None),
        ([9, 2, 8, 1], [0, 1, 0, 1], 2, 2),
        ([9, 8, 1, 2, 3], [0, 0, 1, 1, 1], 3, None),
    ],
)
def test_rows_out_of_order_are_found_where_they_matter(
    times: list[int], groups: list[int] | None, length: int, expected: int | None
) -> None:
    """The result is the first row earlier than its predecessor, in groups with enough rows for a sequence."""
    found = first_unordered(counted(times), None if groups is None else np.array(groups), length)

    assert found == expected


@dataclass(frozen=True)
class Units:
    """Units in which each group continues in time, with rows of which some were filtered out."""

    rows: list[list[tuple[int, int]]]
    stored: list[list[int]]
    grouped: bool

    def times(self, unit: int) -> Times:
        """Return the times of the rows of a unit."""
        return counted([time for _, time in self.rows[unit]])

    def groups(self, unit: int) -> IntArray | None:
        """Return the groups of the rows of a unit, as numbers that are valid in this unit only."""
        names = self.names(unit)
        return np.array([names.index(group) for group, _ in self.rows[unit]], dtype=np.int64) if self.grouped else None

    def names(self, unit: int) -> list[int]:
        """Return the groups of a unit, in the order in which they appear."""
        return list(dict.fromkeys(group for group, _ in self.rows[unit]))

    def linked(self, rule: SequenceRule) -> SequenceLinks:
        """Return the links of the units."""
        linker = SequenceLinker(rule, len(self.rows))
        for unit, stored in enumerate(self.stored):
            linker.add(unit, np.array(stored, dtype=np.int64), self.times(unit), self.groups(unit), self.names(unit))
        return linker.links()


@st.composite
def units(draw: st.DrawFn) -> Units:
    """Draw units that continue each other group by group in time, with their rows in any order."""
    grouped = draw(st.booleans())
    rows = draw(st.lists(st.tuples(st.integers(0, 2 if grouped else 0), st.integers(0, 9)), max_size=24))
    rows.sort(key=lambda row: row[1])
    if grouped and draw(st.booleans()):
        rows.sort(key=lambda row: row[0])
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=6)))
    parts = [rows[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    parts = [draw(st.permutations(part)) for part in parts]
    stored = [sorted(draw(st.lists(st.integers(0, 40), min_size=len(part), max_size=len(part), unique=True))) for part in parts]
    return Units(rows=[list(part) for part in parts], stored=stored, grouped=grouped)


@given(units(), rules)
def test_sequences_continue_across_units(drawn: Units, rule: SequenceRule) -> None:
    """Each sequence across borders is found once, and a unit finds its own from the links alone."""
    every = [
        (group, time, (unit, row))
        for unit, rows in enumerate(drawn.rows)
        for row, (group, time) in zip(drawn.stored[unit], rows, strict=True)
    ]
    numbered = {place: number for number, (_, _, place) in enumerate(every)}
    links = drawn.linked(rule)

    found = []
    for unit, stored in enumerate(drawn.stored):
        own = np.array(stored, dtype=np.int64)
        more = extend_rows(links, unit, own, drawn.times(unit), drawn.groups(unit), rule.length)
        places = sequence_starts(more.line, rule, more.free)
        assert len(places) == links.counts[unit]
        for at in places.tolist():
            rows = more.line.rows[at : at + rule.length].tolist()
            found.append(
                tuple(
                    numbered[
                        (unit, stored[row])
                        if row < len(own)
                        else (int(more.units[row - len(own)]), int(more.rows[row - len(own)]))
                    ]
                    for row in rows
                )
            )
    assert sorted(found) == plain([(group, time, number) for number, (group, time, _) in enumerate(every)], rule)


def test_a_group_that_continues_earlier_than_it_ended_raises() -> None:
    """The error has the unit and the row, and the unit where the group was before."""
    linker = SequenceLinker(SequenceRule(length=2), 3)
    linker.add(0, np.array([0, 1]), counted([5, 9]), np.array([0, 1]), ["a", "b"])
    linker.add(1, np.array([4, 7]), counted([8, 6]), np.array([0, 0]), ["a"])

    with pytest.raises(NotInOrderError) as error:
        linker.add(2, np.array([3, 6]), counted([9, 7]), np.array([1, 0]), ["a", "b"])

    assert (error.value.unit, error.value.row, error.value.before) == (2, 6, 1)


def test_groups_of_a_single_unit_have_no_links() -> None:
    """Links hold only the rows of groups that continue in another unit."""
    linker = SequenceLinker(SequenceRule(length=3), 2)
    linker.add(0, np.arange(4), counted([1, 2, 3, 4]), np.array([0, 0, 1, 1]), ["a", "b"])
    linker.add(1, np.arange(3), counted([5, 6, 7]), np.array([0, 0, 0]), ["b"])
    links = linker.links()

    assert links.counts.tolist() == [2, 1]
    assert list(zip(links.unit.tolist(), links.row.tolist(), links.time.tolist(), strict=True)) == [
        (0, 2, 3),
        (0, 3, 4),
        (1, 0, 5),
        (1, 1, 6),
    ]
    assert links.entries_of(1).tolist() == [2, 3]


def test_a_unit_that_changed_has_only_its_present_rows() -> None:
    """Extending a unit that changed since it was linked raises no error. Its links still have the old count."""
    linker = SequenceLinker(SequenceRule(length=3, overlap=False), 2)
    linker.add(0, np.arange(2), counted([1, 2]), None, ())
    linker.add(1, np.arange(3), counted([3, 4, 5]), None, ())
    links = linker.links()

    changed = extend_rows(links, 1, np.array([5, 6]), counted([8, 9]), None, 3)
    empty = extend_rows(links, 1, np.zeros(0, dtype=np.int64), counted([]), None, 3)

    assert links.counts.tolist() == [1, 0]
    assert changed.line.times.tolist() == [8, 9]
    assert len(empty.line.rows) == 0
