"""The default shuffle: units permuted over all files, then rows permuted inside windows of several units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import index
from typing import Self, SupportsIndex

import numpy as np

from penstock.errors import ArgumentError
from penstock.model import IntArray, Read, Window, even_edges
from penstock.randomness import permutation

__all__ = ["WindowShuffle"]

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


@dataclass(frozen=True, slots=True)
class WindowShuffle:
    """Units permuted over all files, cut into windows, and the rows of each window permuted.

    A larger window mixes better, takes more memory and reads more again on a resume.

    Bias: two rows of one unit are closer together than in a full shuffle. The effect shrinks with the number of units in a
    window; a window of a few per cent of all units is close to a full shuffle.
    Cost: one window per lane is in memory, and every unit is read once.

    Args:
        rows: Rows of a window; by default as many as take `window_bytes` in the table's files.
        window_bytes: Bytes of a window on storage, if `rows` is not given.
        unit_rows: Row groups with more rows are cut into ranges, which are permuted on their own. This mixes tables of
            few huge row groups better, and reads such a row group once for each of its ranges.

    Raises:
        ArgumentError: If a number is not positive.

    Example:
        >>> WindowShuffle().settle(num_rows=10_000, num_bytes=1 << 30)
        WindowShuffle(rows=1250, window_bytes=134217728, unit_rows=None)
    """

    rows: int | None = None
    window_bytes: int = WINDOW_BYTES
    unit_rows: int | None = None

    def __post_init__(self) -> None:
        for name in ("rows", "window_bytes", "unit_rows"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, positive("WindowShuffle", name, getattr(self, name)))

    @property
    def whole_file_rows(self) -> int:
        """An eighth of a window: to read a smaller file whole costs less than to read its footer first."""
        return (self.rows or 0) // 8

    def settle(self, num_rows: int, num_bytes: int) -> WindowShuffle:
        """Return this shuffle with the rows of a window fixed."""
        if self.rows is not None:
            return self
        return replace(self, rows=window_rows(num_rows, num_bytes, self.window_bytes))

    def describe(self) -> Mapping[str, str | int | None]:
        """Return the name and the rows of a window; `window_bytes` does not matter once they are fixed."""
        return {"name": "window", "rows": self.rows, "unit_rows": self.unit_rows}

    def arrange(self, counts: IntArray, *, seed: int, epoch: int) -> _Windows:
        """Return the stream of one epoch."""
        stream = UnitStream.shuffled(counts, seed=seed, epoch=epoch)
        return _Windows(stream=stream, rows=self.rows or len(counts), seed=seed, epoch=epoch)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Windows:
    """A stream of permuted units, cut into windows of permuted rows."""

    stream: UnitStream
    rows: int
    seed: int
    epoch: int

    def edges(self, start: int, stop: int) -> IntArray:
        return window_edges(start, stop, self.rows)

    def window(self, start: int, stop: int, *, lane: int, index: int) -> Window:
        take = permutation(stop - start, "rows", self.seed, self.epoch, lane, index)
        return Window(reads=self.stream.reads(start, stop), take=take)
