"""Link sequences that continue in the next unit: units are added in stored order, and the rows at their borders are recorded.

The linker keeps the last rows of each group, as many as could still be part of a sequence. It records the first rows of each
group in each unit, with which sequences of earlier units continue. It also records the rows that may not begin a sequence
because an earlier one has not ended. With these, the sequences of a unit can be found without reading other units. Pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock._engine.plan.sequence_find import SequenceRule, SortedRows, Times, run_starts, sequence_starts
from penstock.model import BoolArray, IntArray, SequenceLinks


class NotInOrderError(Exception):
    """A group continues at an earlier time than it ended in a previous unit."""

    def __init__(self, unit: int, row: int, before: int) -> None:
        """Store the unit and the row of the earlier time, and the previous unit."""
        super().__init__(unit, row, before)
        self.unit, self.row, self.before = unit, row, before


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExtendedRows:
    """The sorted rows of a unit, with the rows of later units that its sequences may continue with.

    Attributes:
        line: All rows; those of later units are numbered after the unit's own.
        units: The unit of each row of a later unit.
        rows: The number of each such row in its unit.
        free: The places at which a sequence may begin.
    """

    line: SortedRows
    units: IntArray
    rows: IntArray
    free: BoolArray


def extend_rows(
    links: SequenceLinks, unit: int, stored: IntArray, times: Times, groups: IntArray | None, length: int
) -> ExtendedRows:
    """Return the sorted rows of a unit and of the later units that its sequences may continue with."""
    groups = np.zeros(len(times), dtype=np.int64) if groups is None else groups
    alone = SortedRows.of(times, groups)
    starts = alone.group_starts
    entries = links.entries_of(unit)
    entries = entries[np.argsort(links.row[entries])]
    first_rows = stored[alone.rows[starts]]
    at = np.searchsorted(links.row[entries], first_rows)
    linked = np.flatnonzero(at < len(entries))
    linked = linked[links.row[entries[at[linked]]] == first_rows[linked]]
    low, high = links.following(entries[at[linked]], length - 1)
    later = _ranges(low, high)
    later_groups = np.repeat(alone.groups[starts[linked]], high - low)
    line = SortedRows.of(np.concatenate([times, links.time[later].astype(times.dtype)]), np.concatenate([groups, later_groups]))
    held = np.searchsorted(stored, links.held_row[slice(*np.searchsorted(links.held_unit, [unit, unit + 1]))])
    until = np.full(int(groups.max(initial=0)) + 1, -1)
    place = np.empty(len(line.rows), dtype=np.int64)
    place[line.rows] = np.arange(len(line.rows))
    held = held[held < len(stored)]
    np.maximum.at(until, groups[held], place[held])
    free = (np.arange(len(line.rows)) > until[line.groups]) & (line.rows < len(times))
    return ExtendedRows(line=line, units=links.unit[later], rows=links.row[later], free=free)


class SequenceLinker:
    """Links units, added in stored order, and counts the sequences that begin in each."""

    def __init__(self, rule: SequenceRule, units: int) -> None:
        """Start with no unit added."""
        self._rule, self._width = rule, rule.length - 1
        self._counts = np.zeros(units, dtype=np.int64)
        self._codes: dict[Hashable, int] = {}
        # Per group: its last rows, and how many; the time and the unit of its last row.
        self._tail_times: Times = np.zeros((0, 0))
        self._tail_units: IntArray = np.zeros((0, 0), dtype=np.int64)
        self._tail_rows: IntArray = np.zeros((0, 0), dtype=np.int64)
        self._tail_sizes: IntArray = np.zeros(0, dtype=np.int64)
        self._last_times: Times = np.zeros(0)
        self._last_units: IntArray = np.zeros(0, dtype=np.int64)
        # Per group: whether it has a sequence without overlap; the end time of the last one, and the unit in which it began.
        self._blocked: BoolArray = np.zeros(0, dtype=np.bool_)
        self._end_times: Times = np.zeros(0)
        self._start_units: IntArray = np.zeros(0, dtype=np.int64)
        self._heads: list[tuple[IntArray, IntArray, IntArray, Times]] = []
        self._held: list[tuple[IntArray, IntArray]] = []

    def add(self, unit: int, stored: IntArray, times: Times, groups: IntArray | None, names: Sequence[Hashable]) -> None:
        """Add a unit."""
        if not len(times):
            return
        line = SortedRows.of(times, groups)
        starts = line.group_starts
        local = line.groups[starts]
        codes = self._group_codes([names[number] for number in local.tolist()] if groups is not None else [None], times.dtype)
        wrong = (self._last_units[codes] >= 0) & (line.times[starts] < self._last_times[codes])
        if wrong.any():
            at = int(np.argmax(wrong))
            raise NotInOrderError(unit, int(stored[line.rows[starts[at]]]), int(self._last_units[codes[at]]))
        numbers = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(line.rows))))
        self._link(unit, stored[line.rows], line.times, numbers, codes)

    def links(self) -> SequenceLinks:
        """Return the links of all units, without groups that only one unit has."""
        none = np.zeros(0, dtype=np.int64)
        heads = self._heads or [(none, none, none, none.astype(np.uint64))]
        group, unit, row, time = (np.concatenate(parts) for parts in zip(*heads, strict=True))
        held_unit, held_row = (np.concatenate(parts) for parts in zip((none, none), *self._held, strict=True))
        held = np.lexsort((held_row, held_unit))
        order = np.lexsort((unit, group))
        group, unit, row, time = group[order], unit[order], row[order], time[order]
        edges = run_starts(group)
        sizes = np.diff(np.append(edges, len(group)))
        several = np.repeat(unit[edges] != unit[edges + sizes - 1], sizes)
        return SequenceLinks(
            counts=self._counts,
            group=group[several],
            unit=unit[several],
            row=row[several],
            time=time[several],
            held_unit=held_unit[held],
            held_row=held_row[held],
        )

    def _group_codes(self, names: Sequence[Hashable], dtype: np.dtype[Any]) -> IntArray:
        """Return the codes of groups, with new codes for new groups."""
        codes = np.array([self._codes.setdefault(name, len(self._codes)) for name in names], dtype=np.int64)
        more = max(0, len(self._codes) - len(self._last_times))
        if more:
            more = max(more, len(self._last_times) // 2)
            self._tail_times = _grow(self._tail_times.astype(dtype), more)
            self._tail_units, self._tail_rows = _grow(self._tail_units, more), _grow(self._tail_rows, more)
            self._tail_sizes, self._start_units = _grow(self._tail_sizes, more), _grow(self._start_units, more)
            self._last_units = np.append(self._last_units, np.full(more, -1))
            self._last_times = _grow(self._last_times.astype(dtype), more)
            self._end_times = _grow(self._end_times.astype(dtype), more)
            self._blocked = _grow(self._blocked, more)
        return codes

    def _link(self, unit: int, rows: IntArray, times: Times, numbers: IntArray, codes: IntArray) -> None:
        """Find the sequences that end in a unit, from its sorted rows, and record its borders."""
        sizes = self._tail_sizes[codes]
        inside, tail_codes = _ranges(np.zeros_like(sizes), sizes), np.repeat(codes, sizes)
        # In each group, the rows of earlier units come before the unit's own.
        mixed = np.concatenate([np.repeat(np.arange(len(codes)), sizes), numbers])
        order = np.argsort(mixed, kind="stable")
        all_rows = np.concatenate([self._tail_rows[tail_codes, inside], rows])[order]
        all_times = np.concatenate([self._tail_times[tail_codes, inside], times])[order]
        units = np.concatenate([self._tail_units[tail_codes, inside], np.full(len(times), unit)])[order]
        line = SortedRows(rows=all_rows, times=all_times, groups=mixed[order])
        row_codes = codes[line.groups]
        free = None if self._rule.overlap else ~self._blocked[row_codes] | (all_times > self._end_times[row_codes])
        starts = sequence_starts(line, self._rule, free)
        self._counts += np.bincount(units[starts], minlength=len(self._counts))
        if not self._rule.overlap:
            self._record_held(unit, line, units, codes, starts)
        self._record_heads(unit, rows, times, numbers, codes)
        self._keep_tails(codes, line, units)
        lasts = np.append(run_starts(numbers)[1:], len(numbers)) - 1
        self._last_times[codes], self._last_units[codes] = times[lasts], unit

    def _record_held(self, unit: int, line: SortedRows, units: IntArray, codes: IntArray, starts: IntArray) -> None:
        """Record, per unit and group, the last row that is not later than the end of a sequence of an earlier unit."""
        row_codes = codes[line.groups]
        ends = line.times[starts + self._rule.length - 1] if len(starts) else line.times[starts]
        at = np.searchsorted(starts, np.arange(len(units)), side="right") - 1  # the last sequence that began by then
        new = at >= 0
        new[new] = line.groups[starts[at[new]]] == line.groups[new]
        end_times, start_units = self._end_times[row_codes], self._start_units[row_codes]
        end_times[new], start_units[new] = ends[at[new]], units[starts[at[new]]]
        held = (self._blocked[row_codes] | new) & (line.times <= end_times) & (start_units < units) & (new | (units == unit))
        places = np.flatnonzero(held)
        last = np.append(
            (np.diff(line.groups[places]) != 0) | (np.diff(units[places]) != 0), np.ones(min(1, len(places)), np.bool_)
        )
        places = places[last.astype(np.bool_)]
        self._held.append((units[places], line.rows[places]))
        groups = codes[line.groups[starts]]
        # Of several sequences of one group, the assignment keeps the last.
        self._end_times[groups], self._start_units[groups], self._blocked[groups] = ends, units[starts], True

    def _record_heads(self, unit: int, rows: IntArray, times: Times, numbers: IntArray, codes: IntArray) -> None:
        """Record the first rows of each group, as many as an earlier sequence may need."""
        inside = np.arange(len(numbers)) - run_starts(numbers)[numbers]
        head = np.flatnonzero(inside < self._width)
        self._heads.append((codes[numbers[head]], np.full(len(head), unit), rows[head], times[head]))

    def _keep_tails(self, codes: IntArray, line: SortedRows, units: IntArray) -> None:
        """Keep the last rows of each group, with which a later sequence may begin."""
        ends = np.append(run_starts(line.groups)[1:], len(line.groups))
        sizes = np.minimum(np.diff(ends, prepend=0), self._width)
        places = _ranges(ends - sizes, ends)
        # The tails widen on demand: a sequence may be longer than any group.
        longest, width = int(sizes.max(initial=0)), self._tail_rows.shape[1]
        if longest > width:
            more = max(longest, min(self._width, 2 * width)) - width
            self._tail_times = _grow(self._tail_times.T, more).T
            self._tail_units, self._tail_rows = _grow(self._tail_units.T, more).T, _grow(self._tail_rows.T, more).T
        tail_codes, inside = np.repeat(codes, sizes), _ranges(np.zeros_like(sizes), sizes)
        self._tail_times[tail_codes, inside] = line.times[places]
        self._tail_units[tail_codes, inside] = units[places]
        self._tail_rows[tail_codes, inside] = line.rows[places]
        self._tail_sizes[codes] = sizes


def _ranges(low: IntArray, high: IntArray) -> IntArray:
    """Return the numbers from each `low` to its `high`, one range after the other."""
    sizes = high - low
    numbers: IntArray = np.arange(int(sizes.sum())) + np.repeat(low - (np.cumsum(sizes) - sizes), sizes)
    return numbers


def _grow(array: npt.NDArray[Any], more: int) -> npt.NDArray[Any]:
    """Return an array with more entries, which are zero."""
    return np.concatenate([array, np.zeros((more, *array.shape[1:]), dtype=array.dtype)])
