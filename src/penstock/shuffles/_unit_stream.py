"""The stream of rows that all shuffles are built on: the selected rows of all units, one unit after the other."""

from __future__ import annotations

from dataclasses import dataclass
from operator import index
from typing import Self, SupportsIndex

import numpy as np

from penstock._ranges import even_edges
from penstock.errors import ArgumentError
from penstock.model import IntArray, Read, Window
from penstock.randomness import permutation

__all__ = ["WINDOW_BYTES", "UnitStream", "positive", "window_edges", "window_rows"]

WINDOW_BYTES = 128 << 20
"""The default size of a window on storage."""

MAX_WINDOW_ROWS = 1_000_000
"""A limit for very narrow rows, of which `WINDOW_BYTES` hold a hundred million."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitStream:
    """Units in the order of a stream; units without selected rows are left out.

    Attributes:
        units: The unit at each position.
        ends: The place in the stream after the last row of each of these units.
    """

    units: IntArray
    ends: IntArray

    @classmethod
    def stored(cls, counts: IntArray) -> Self:
        """Return the stream in stored order.

        Example:
            >>> UnitStream.stored(np.array([2, 0, 3])).ends.tolist()
            [2, 5]
        """
        units = np.flatnonzero(counts)
        return cls(units=units, ends=np.cumsum(counts[units]))

    @classmethod
    def shuffled(cls, counts: IntArray, *, seed: int, epoch: int) -> Self:
        """Return the stream with its units permuted over all files.

        Example:
            >>> sorted(UnitStream.shuffled(np.array([2, 0, 3]), seed=0, epoch=0).units.tolist())
            [0, 2]
        """
        units = np.flatnonzero(counts)
        units = units[permutation(len(units), "units", seed, epoch)]
        ends = counts[units]
        return cls(units=units, ends=np.cumsum(ends, out=ends))

    def edges(self, start: int, stop: int) -> IntArray:
        """Return `start`, the ends of units inside `start..stop`, and `stop`."""
        low, high = np.searchsorted(self.ends, [start, stop], side="right")
        inner = self.ends[low:high]
        inner = inner[:-1] if len(inner) and inner[-1] == stop else inner
        return np.concatenate(([start], inner, [stop])) if start < stop else np.array([start])

    def window(self, start: int, stop: int, *, lane: int, index: int) -> Window:  # noqa: ARG002 - the order is not random
        """Return `start..stop` of the stream with its rows in stream order."""
        return Window(reads=self.reads(start, stop))

    def reads(self, start: int, stop: int) -> tuple[Read, ...]:
        """Return the parts of units that make up `start..stop` of the stream."""
        edges = self.edges(start, stop)
        first = int(np.searchsorted(self.ends, start, side="right"))
        units = self.units[first : first + len(edges) - 1].tolist()
        first_row = start - (int(self.ends[first - 1]) if first else 0)
        reads = []
        for unit, size in zip(units, np.diff(edges).tolist(), strict=True):
            reads.append(Read(unit=unit, rows=slice(first_row, first_row + size)))
            first_row = 0
        return tuple(reads)

    def scattered(self, places: IntArray) -> Window:
        """Return a window of the rows at any places of the stream, in the order of `places`.

        Example:
            >>> window = UnitStream.stored(np.array([2, 3])).scattered(np.array([4, 0, 2]))
            >>> [(read.unit, read.rows.tolist()) for read in window.reads], window.take.tolist()
            ([(0, [0]), (1, [0, 2])], [2, 0, 1])
        """
        order = np.argsort(places, kind="stable")
        units, rows = self.locate(places[order])
        firsts = np.flatnonzero(np.diff(units, prepend=-1))
        parts = np.split(rows, firsts[1:])
        take = np.empty(len(places), dtype=np.int64)
        take[order] = np.arange(len(places))
        reads = tuple(Read(unit=int(units[at]), rows=part) for at, part in zip(firsts, parts, strict=False))
        return Window(reads=reads, take=take)

    def locate(self, places: IntArray) -> tuple[IntArray, IntArray]:
        """Return, for ascending places of the stream, the unit of each and the row in that unit."""
        position = np.searchsorted(self.ends, places, side="right")
        first = np.where(position > 0, self.ends[position - 1], 0)
        return self.units[position], places - first


def window_edges(start: int, stop: int, rows: int) -> IntArray:
    """Return the edges of windows of at most `rows` rows; the windows of one lane are of equal length.

    Example:
        >>> window_edges(0, 10, 4).tolist()
        [0, 3, 6, 10]
    """
    return even_edges(start, stop, -(-(stop - start) // rows)) if start < stop else np.array([start])


def positive(shuffle: str, name: str, number: object) -> int:
    """Return an option that is a positive number of rows or bytes.

    Raises:
        ArgumentError: If it is not a positive integer.

    Example:
        >>> positive("WindowShuffle", "rows", np.int64(8))
        8
    """
    if not isinstance(number, SupportsIndex) or isinstance(number, bool | np.ndarray) or not 0 < index(number) < 1 << 62:
        msg = f"{shuffle}() got {name}={number!r}; expected a positive integer, for example {shuffle}({name}=100_000)."
        raise ArgumentError(msg)
    return index(number)


def window_rows(num_rows: int, num_bytes: int, window_bytes: int = WINDOW_BYTES) -> int:
    """Return how many rows of a table take `window_bytes` on storage.

    Example:
        >>> window_rows(num_rows=1000, num_bytes=1_000_000, window_bytes=200_000)
        200
    """
    if num_rows == 0 or num_bytes == 0:
        return MAX_WINDOW_ROWS
    return max(1, min(MAX_WINDOW_ROWS, window_bytes * num_rows // num_bytes))
