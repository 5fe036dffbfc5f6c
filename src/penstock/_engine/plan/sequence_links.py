"""Sequences that go on from one unit to the next: units are linked in stored order, and what lies at their borders is noted.

While units are linked, of each group no more is kept than could still become part of a sequence. What is noted is the rows that
a group begins with in each unit, for the sequences that began before it, and the rows that may not begin one since an earlier
sequence has not ended. With that, a unit's sequences are found again later without looking at any other. Pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock._engine.plan.sequence_find import Line, Rule, Times, begins, starts
from penstock.model import BoolArray, IntArray, SequenceLinks

__all__ = ["Extended", "Linking", "NotInOrderError", "extended"]


class NotInOrderError(Exception):
    """A group goes on earlier than it ended: in which unit and row, and in which unit it ended."""

    def __init__(self, unit: int, row: int, before: int) -> None:
        """Store where."""
        super().__init__(unit, row, before)
        self.unit, self.row, self.before = unit, row, before


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Extended:
    """The rows of a unit in line, with those of later units that its sequences may go on with.

    Attributes:
        line: All of them; rows that are not the unit's own have the numbers after those.
        own: How many rows are the unit's own.
        units: The unit of each other row.
        rows: Which row of that unit it is.
        free: At which places of the line a sequence may begin.
    """

    line: Line
    own: int
    units: IntArray
    rows: IntArray
    free: BoolArray


def extended(chain: SequenceLinks, unit: int, stored: IntArray, times: Times, groups: IntArray | None, length: int) -> Extended:
    """Return the rows of a unit in line, and those that come after them.

    Args:
        chain: What was noted when units were linked.
        unit: The unit.
        stored: The number that each of its rows has there; ascending.
        times: When each was.
        groups: The group of each; None where all are of one.
        length: Rows of a sequence.
    """
    groups = np.zeros(len(times), dtype=np.int64) if groups is None else groups
    alone = Line.of(times, groups)
    firsts = alone.firsts
    entries = chain.entries_of(unit)
    entries = entries[np.argsort(chain.row[entries])]
    wanted = stored[alone.rows[firsts]]
    at = np.searchsorted(chain.row[entries], wanted)
    there = np.flatnonzero(at < len(entries))
    there = there[chain.row[entries[at[there]]] == wanted[there]]
    low, high = chain.following(entries[at[there]], length - 1)
    more = _ranges(low, high)
    whose = np.repeat(alone.groups[firsts[there]], high - low)
    line = Line.of(np.concatenate([times, chain.time[more].astype(times.dtype)]), np.concatenate([groups, whose]))
    held = np.searchsorted(stored, chain.held_row[slice(*np.searchsorted(chain.held_unit, [unit, unit + 1]))])
    until = np.full(int(groups.max(initial=0)) + 1, -1)
    place = np.empty(len(line.rows), dtype=np.int64)
    place[line.rows] = np.arange(len(line.rows))
    held = held[held < len(stored)]
    np.maximum.at(until, groups[held], place[held])
    free = (np.arange(len(line.rows)) > until[line.groups]) & (line.rows < len(times))
    return Extended(line=line, own=len(times), units=chain.unit[more], rows=chain.row[more], free=free)


class Linking:
    """Links units, which are added in stored order, and counts the sequences that begin in each."""

    def __init__(self, rule: Rule, units: int) -> None:
        """Begin without any unit."""
        self._rule, self._width = rule, rule.length - 1
        self._counts = np.zeros(units, dtype=np.int64)
        self._codes: dict[Hashable, int] = {}
        # Of each group: its last rows, how many they are, when and where its last row was; and of its last sequence, when
        # it ended and in which unit it began.
        self._tail_times: Times = np.zeros((0, 0))
        self._tail_units: IntArray = np.zeros((0, 0), dtype=np.int64)
        self._tail_rows: IntArray = np.zeros((0, 0), dtype=np.int64)
        self._tails: IntArray = np.zeros(0, dtype=np.int64)
        self._last_unit: IntArray = np.zeros(0, dtype=np.int64)
        self._since: IntArray = np.zeros(0, dtype=np.int64)
        self._last: Times = np.zeros(0)
        self._until: Times = np.zeros(0)
        self._blocked: BoolArray = np.zeros(0, dtype=np.bool_)
        self._heads: list[tuple[IntArray, IntArray, IntArray, Times]] = []
        self._held: list[tuple[IntArray, IntArray]] = []

    def add(self, unit: int, stored: IntArray, times: Times, groups: IntArray | None, names: Sequence[Hashable]) -> None:
        """Add a unit.

        Args:
            unit: Its number.
            stored: The number that each of its rows has there; ascending.
            times: When each was.
            groups: The group of each, as a number of `names`; None where all are of one.
            names: What groups are called in all units.

        Raises:
            NotInOrderError: If a group goes on earlier than it ended.
        """
        if not len(times):
            return
        line = Line.of(times, groups)
        firsts = line.firsts
        local = line.groups[firsts]
        codes = self._known([names[number] for number in local.tolist()] if groups is not None else [None], times.dtype)
        self._check(unit, stored, line, codes)
        numbers = np.repeat(np.arange(len(firsts)), np.diff(np.append(firsts, len(line.rows))))
        self._link(unit, stored[line.rows], line.times, numbers, codes)

    def chain(self) -> SequenceLinks:
        """Return what was noted; of groups that only one unit has, nothing need be."""
        none = np.zeros(0, dtype=np.int64)
        heads = self._heads or [(none, none, none, none.astype(np.uint64))]
        group, unit, row, time = (np.concatenate(parts) for parts in zip(*heads, strict=True))
        held_unit, held_row = (np.concatenate(parts) for parts in zip((none, none), *self._held, strict=True))
        held = np.lexsort((held_row, held_unit))
        order = np.lexsort((unit, group))
        group, unit, row, time = group[order], unit[order], row[order], time[order]
        edges = begins(group)
        several = np.diff(np.append(edges, len(group)))
        ends = edges + several - 1
        kept = np.repeat(unit[edges] != unit[ends], several)
        return SequenceLinks(
            counts=self._counts,
            group=group[kept],
            unit=unit[kept],
            row=row[kept],
            time=time[kept],
            held_unit=held_unit[held],
            held_row=held_row[held],
        )

    def _known(self, names: Sequence[Hashable], kind: np.dtype[Any]) -> IntArray:
        """Return the numbers of groups, new ones given to those that have none yet."""
        codes = np.array([self._codes.setdefault(name, len(self._codes)) for name in names], dtype=np.int64)
        more = max(0, len(self._codes) - len(self._last))
        if more:
            more = max(more, len(self._last) // 2)
            self._tail_times = _grown(self._tail_times.astype(kind), more)
            self._tail_units, self._tail_rows = _grown(self._tail_units, more), _grown(self._tail_rows, more)
            self._tails, self._since = _grown(self._tails, more), _grown(self._since, more)
            self._last_unit = np.append(self._last_unit, np.full(more, -1))
            self._last, self._until = _grown(self._last.astype(kind), more), _grown(self._until.astype(kind), more)
            self._blocked = _grown(self._blocked, more)
        return codes

    def _check(self, unit: int, stored: IntArray, line: Line, codes: IntArray) -> None:
        """Refuse a unit in which a group goes on earlier than it ended."""
        firsts = line.firsts
        wrong = (self._last_unit[codes] >= 0) & (line.times[firsts] < self._last[codes])
        if wrong.any():
            at = int(np.argmax(wrong))
            raise NotInOrderError(unit, int(stored[line.rows[firsts[at]]]), int(self._last_unit[codes[at]]))

    def _link(self, unit: int, rows: IntArray, times: Times, numbers: IntArray, codes: IntArray) -> None:
        """Find the sequences that end in a unit, whose rows stand in line, and note its borders."""
        before = self._tails[codes]
        inside, of = _ranges(np.zeros_like(before), before), np.repeat(codes, before)
        # What is left of units before stands before the unit's own rows, group by group.
        mixed = np.concatenate([np.repeat(np.arange(len(codes)), before), numbers])
        order = np.argsort(mixed, kind="stable")
        all_rows = np.concatenate([self._tail_rows[of, inside], rows])[order]
        all_times = np.concatenate([self._tail_times[of, inside], times])[order]
        units = np.concatenate([self._tail_units[of, inside], np.full(len(times), unit)])[order]
        line = Line(rows=all_rows, times=all_times, groups=mixed[order])
        whose = codes[line.groups]
        free = None if self._rule.overlap else ~self._blocked[whose] | (all_times > self._until[whose])
        found = starts(line, self._rule, free)
        self._counts += np.bincount(units[found], minlength=len(self._counts))
        if not self._rule.overlap:
            self._note_held(unit, line, units, codes, found)
        self._note_heads(unit, rows, times, numbers, codes)
        self._keep_tails(codes, line, units)
        lasts = np.append(begins(numbers)[1:], len(numbers)) - 1
        self._last[codes], self._last_unit[codes] = times[lasts], unit

    def _note_held(self, unit: int, line: Line, units: IntArray, codes: IntArray, found: IntArray) -> None:
        """Note the rows that come before the end of a sequence of an earlier unit, the last of each unit and group."""
        whose, ends = codes[line.groups], line.times[found + self._rule.length - 1] if len(found) else line.times[found]
        at = np.searchsorted(found, np.arange(len(units)), side="right") - 1  # the last that begins there or before
        new = at >= 0
        new[new] = line.groups[found[at[new]]] == line.groups[new]
        until, since = self._until[whose], self._since[whose]
        until[new], since[new] = ends[at[new]], units[found[at[new]]]
        held = (self._blocked[whose] | new) & (line.times <= until) & (since < units) & (new | (units == unit))
        places = np.flatnonzero(held)
        last = np.append(
            (np.diff(line.groups[places]) != 0) | (np.diff(units[places]) != 0), np.ones(min(1, len(places)), np.bool_)
        )
        places = places[last.astype(np.bool_)]
        self._held.append((units[places], line.rows[places]))
        groups = codes[line.groups[found]]
        # Of several sequences of one group the last counts.
        self._until[groups], self._since[groups], self._blocked[groups] = ends, units[found], True

    def _note_heads(self, unit: int, rows: IntArray, times: Times, numbers: IntArray, codes: IntArray) -> None:
        """Note the first rows of each group, as many as a sequence that began before them may need."""
        inside = np.arange(len(numbers)) - begins(numbers)[numbers]
        head = np.flatnonzero(inside < self._width)
        self._heads.append((codes[numbers[head]], np.full(len(head), unit), rows[head], times[head]))

    def _keep_tails(self, codes: IntArray, line: Line, units: IntArray) -> None:
        """Keep the last rows of each group, which a later sequence may begin with."""
        ends = np.append(begins(line.groups)[1:], len(line.groups))
        left = np.minimum(np.diff(ends, prepend=0), self._width)
        places = _ranges(ends - left, ends)
        self._widen_tails(int(left.max(initial=0)))
        of, inside = np.repeat(codes, left), _ranges(np.zeros_like(left), left)
        self._tail_times[of, inside] = line.times[places]
        self._tail_units[of, inside] = units[places]
        self._tail_rows[of, inside] = line.rows[places]
        self._tails[codes] = left

    def _widen_tails(self, rows: int) -> None:
        """Make room for the last rows of each group: as many as there are, for a sequence may be longer than any group."""
        there = self._tail_rows.shape[1]
        if rows > there:
            more = max(rows, min(self._width, 2 * there)) - there
            self._tail_times = _grown(self._tail_times.T, more).T
            self._tail_units, self._tail_rows = _grown(self._tail_units.T, more).T, _grown(self._tail_rows.T, more).T


def _ranges(low: IntArray, high: IntArray) -> IntArray:
    """Return the numbers from each of `low` to each of `high`, one range after the other."""
    sizes = high - low
    found: IntArray = np.arange(int(sizes.sum())) + np.repeat(low - (np.cumsum(sizes) - sizes), sizes)
    return found


def _grown(array: npt.NDArray[Any], more: int) -> npt.NDArray[Any]:
    """Return an array with room for more entries."""
    return np.concatenate([array, np.zeros((more, *array.shape[1:]), dtype=array.dtype)])
