"""Find sequences: which rows begin one, and which follow, from the times and groups of rows.

Rows are sorted by group and then by time, so a sequence is a run of neighbours. The place of its first row identifies it. Pure:
the caller reads the times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.model import BoolArray, IntArray

Times: TypeAlias = npt.NDArray[Any]
"""The times of rows: `uint64`, so that differences cannot overflow, or finite `float64`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRule:
    """The condition for neighbours to be a sequence.

    Attributes:
        length: The number of rows.
        gap: The largest difference between the times of two neighbours; None for no limit.
        overlap: Whether sequences may share rows. If not, each begins later than the one before it ended.
    """

    length: int
    gap: int | float | None = None
    overlap: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SortedRows:
    """Rows sorted by group, then by time, then in stored order.

    Attributes:
        rows: The number of the row at each place.
        times: The time at each place.
        groups: The group at each place, ascending.
    """

    rows: IntArray
    times: Times
    groups: IntArray

    @classmethod
    def of(cls, times: Times, groups: IntArray | None = None) -> Self:
        """Return rows sorted; without `groups`, all are in one group.

        Example:
            >>> SortedRows.of(np.array([3, 1, 2], dtype=np.uint64), np.array([0, 1, 0])).rows.tolist()
            [2, 0, 1]
        """
        if groups is None:
            groups = np.zeros(len(times), dtype=np.int64)
            rows = np.arange(len(times)) if (times[1:] >= times[:-1]).all() else np.argsort(times, kind="stable")
        else:
            rows = np.lexsort((times, groups))
        return cls(rows=rows, times=times[rows], groups=groups[rows])

    @property
    def group_starts(self) -> IntArray:
        """The place of each group's first row."""
        return run_starts(self.groups)


def run_starts(numbers: npt.NDArray[Any]) -> IntArray:
    """Return the indices at which an array differs from the entry before.

    Example:
        >>> run_starts(np.array([4, 4, 7])).tolist()
        [0, 2]
    """
    if not len(numbers):
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(np.concatenate(([True], numbers[1:] != numbers[:-1])))


def first_unordered(times: Times, groups: IntArray | None, length: int) -> int | None:
    """Return the first row that is earlier than the row before it in its group; None if there is none.

    Groups with fewer rows than a sequence are ignored, and all groups if a sequence is a single row.

    Example:
        >>> first_unordered(np.array([5, 1, 4, 2], dtype=np.uint64), np.array([0, 1, 0, 1]), 2)
        2
    """
    if length == 1:
        return None
    groups = np.zeros(len(times), dtype=np.int64) if groups is None else groups
    rows = np.argsort(groups, kind="stable")
    sizes = np.bincount(groups, minlength=1)
    earlier, later = rows[:-1], rows[1:]
    wrong = (groups[earlier] == groups[later]) & (times[later] < times[earlier]) & (sizes[groups[later]] >= length)
    return int(later[wrong].min()) if wrong.any() else None


def sequence_starts(line: SortedRows, rule: SequenceRule, free: BoolArray | None = None) -> IntArray:
    """Return the places at which sequences begin, ascending.

    `free` says at which places a sequence may begin; by default at all.

    Example:
        >>> line = SortedRows.of(np.array([0, 3, 8, 10, 11, 20, 23], dtype=np.uint64))
        >>> sequence_starts(line, SequenceRule(length=2, gap=4)).tolist()
        [0, 2, 3, 5]
        >>> sequence_starts(line, SequenceRule(length=2, gap=4, overlap=False)).tolist()
        [0, 2, 5]
    """
    times, groups, length = line.times, line.groups, rule.length
    if len(times) < length:
        return np.zeros(0, dtype=np.int64)
    broken = groups[1:] != groups[:-1]
    if rule.gap is not None:
        broken |= times[1:] - times[:-1] > rule.gap
    breaks = np.concatenate(([0], np.cumsum(broken)))
    starts = np.flatnonzero(breaks[length - 1 :] == breaks[: len(breaks) - length + 1])
    if free is not None:
        starts = starts[free[starts]]
    return starts if rule.overlap else starts[_without_overlap(starts, line, length)]


def _without_overlap(starts: IntArray, line: SortedRows, length: int) -> IntArray:
    """Return the sequences that remain if each must begin later than the one before it ended.

    These are the first sequence, and then always the next possible one. Each group begins anew.
    """
    changes = (line.times[1:] != line.times[:-1]) | (line.groups[1:] != line.groups[:-1])
    edges = np.append(np.flatnonzero(changes) + 1, len(line.times))
    later = edges[np.searchsorted(edges, starts + length - 1, side="right")]  # the first place after the end
    following = np.searchsorted(starts, later).tolist()
    # A Python loop is faster than arrays here: it takes one step per remaining sequence.
    remaining, at = [], 0
    while at < len(following):
        remaining.append(at)
        at = following[at]
    return np.array(remaining, dtype=np.int64)
