"""Sequences found: times and groups of rows become the rows that begin one, and those that follow them.

Rows stand in a *line*, group after group and by time inside each, so that a sequence is a number of neighbours. It is known
by the place of its first row there. Pure: what the times are and where they come from is others' to know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.model import BoolArray, IntArray

__all__ = ["Line", "Rule", "Times", "begins", "first_unordered", "starts"]

Times: TypeAlias = npt.NDArray[Any]
"""When rows were: `uint64`, so that differences cannot overflow, or `float64`; never one that is not a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What makes neighbours a sequence.

    Attributes:
        length: How many there are.
        gap: The most that one may be later than the one before it; None for anything.
        overlap: Whether two sequences may have rows in common. Where not, each begins later than the one before it ended.
    """

    length: int
    gap: int | float | None = None
    overlap: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Line:
    """Rows group after group, and by time in each; those of one time as they are stored.

    Attributes:
        rows: The number of the row at each place.
        times: When it was.
        groups: The number of its group, which never falls from one place to the next.
    """

    rows: IntArray
    times: Times
    groups: IntArray

    @classmethod
    def of(cls, times: Times, groups: IntArray | None = None) -> Self:
        """Return rows in line; without groups, all are of one.

        Example:
            >>> Line.of(np.array([3, 1, 2], dtype=np.uint64), np.array([0, 1, 0])).rows.tolist()
            [2, 0, 1]
        """
        if groups is None:
            groups = np.zeros(len(times), dtype=np.int64)
            rows = np.arange(len(times)) if (times[1:] >= times[:-1]).all() else np.argsort(times, kind="stable")
        else:
            rows = np.lexsort((times, groups))
        return cls(rows=rows, times=times[rows], groups=groups[rows])

    @property
    def firsts(self) -> IntArray:
        """The place of the first row of each group, in the order of groups."""
        return begins(self.groups)


def begins(numbers: npt.NDArray[Any]) -> IntArray:
    """Return where in an array another number begins than the one before.

    Example:
        >>> begins(np.array([4, 4, 7])).tolist()
        [0, 2]
    """
    return (
        np.flatnonzero(np.concatenate(([True], numbers[1:] != numbers[:-1]))) if len(numbers) else np.zeros(0, dtype=np.int64)
    )


def first_unordered(times: Times, groups: IntArray | None, length: int) -> int | None:
    """Return the first row that is earlier than the one before it in its group; None where there is none.

    Groups with fewer rows than a sequence do not matter, nor do any rows where a sequence is a single one.

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


def starts(line: Line, rule: Rule, free: BoolArray | None = None) -> IntArray:
    """Return the places of a line at which sequences begin, in ascending order.

    `free` says at which places one may begin, where that is not anywhere.

    Example:
        >>> line = Line.of(np.array([0, 3, 8, 10, 11, 20, 23], dtype=np.uint64))
        >>> starts(line, Rule(length=2, gap=4)).tolist()
        [0, 2, 3, 5]
        >>> starts(line, Rule(length=2, gap=4, overlap=False)).tolist()
        [0, 2, 5]
    """
    times, groups, length = line.times, line.groups, rule.length
    if len(times) < length:
        return np.zeros(0, dtype=np.int64)
    broken = groups[1:] != groups[:-1]
    if rule.gap is not None:
        broken |= times[1:] - times[:-1] > rule.gap
    passed = np.concatenate(([0], np.cumsum(broken)))
    found = np.flatnonzero(passed[length - 1 :] == passed[: len(passed) - length + 1])
    if free is not None:
        found = found[free[found]]
    return found if rule.overlap else found[_apart(found, line, length)]


def _apart(found: IntArray, line: Line, length: int) -> IntArray:
    """Return which sequences are left when each must begin later than the one before it ended.

    That is the first of all, and then always the first that can be, which in the next group is its first.
    """
    other = (line.times[1:] != line.times[:-1]) | (line.groups[1:] != line.groups[:-1])
    moments = np.append(np.flatnonzero(other) + 1, len(line.times))
    later = moments[np.searchsorted(moments, found + length - 1, side="right")]  # the first place after its end
    follows = np.searchsorted(found, later).tolist()
    # A walk in Python is over sooner than arrays could find out how far it goes: it takes a step for each that is left.
    kept, at = [], 0
    while at < len(follows):
        kept.append(at)
        at = follows[at]
    return np.array(kept, dtype=np.int64)
