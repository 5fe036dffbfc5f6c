"""Ranges of places in a stream: the arithmetic of lanes, windows and assignments.

A range is a half-open pair `(start, stop)`. A part of a stream is a tuple of ranges, which are read in turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np

from penstock.model import IntArray

__all__ = ["Ranges", "between", "cut", "even_edges", "joined", "length"]

Ranges: TypeAlias = tuple[tuple[int, int], ...]


def even_edges(start: int, stop: int, parts: int) -> IntArray:
    """Return the edges of `parts` consecutive parts of `start..stop`, whose lengths differ by at most one.

    Example:
        >>> even_edges(10, 20, 3).tolist()
        [10, 13, 16, 20]
    """
    whole, rest = divmod(stop - start, parts)
    part = np.arange(parts + 1, dtype=np.int64)
    # part * (stop - start) // parts, written so that no product leaves 64 bits.
    return start + part * whole + part * rest // parts


def length(ranges: Ranges) -> int:
    """Return the number of places in ranges.

    Example:
        >>> length(((0, 3), (10, 11)))
        4
    """
    return sum(stop - start for start, stop in ranges)


def between(ranges: Ranges, start: int, stop: int) -> Ranges:
    """Return the places with the numbers `start` to `stop` in ranges.

    Example:
        >>> between(((0, 3), (10, 20)), 2, 5)
        ((2, 3), (10, 12))
    """
    result = []
    passed = 0
    for low, high in ranges:
        if passed >= stop:
            break
        first, last = max(start, passed), min(stop, passed + high - low)
        if first < last:
            result.append((low + first - passed, low + last - passed))
        passed += high - low
    return tuple(result)


def cut(ranges: Ranges, parts: int) -> list[Ranges]:
    """Return `parts` consecutive parts of ranges, whose lengths differ by at most one.

    Example:
        >>> cut(((0, 3), (10, 13)), 2)
        [((0, 3),), ((10, 13),)]
    """
    edges = even_edges(0, length(ranges), parts).tolist()
    result: list[list[tuple[int, int]]] = [[] for _ in range(parts)]
    part, passed = 0, 0
    for low, high in ranges:
        place = low
        while place < high:
            while edges[part + 1] <= passed:
                part += 1
            step = min(high - place, edges[part + 1] - passed)
            result[part].append((place, place + step))
            place += step
            passed += step
    return [tuple(part) for part in result]


def joined(parts: Iterable[Ranges]) -> Ranges:
    """Return several parts as one, with adjacent ranges merged.

    Example:
        >>> joined([((0, 2),), ((2, 5), (8, 9))])
        ((0, 5), (8, 9))
    """
    result: list[tuple[int, int]] = []
    for low, high in (span for part in parts for span in part):
        if result and result[-1][1] == low:
            result[-1] = (result[-1][0], high)
        else:
            result.append((low, high))
    return tuple(result)
