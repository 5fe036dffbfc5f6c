"""A full shuffle: all rows permuted over the whole table, at the cost of reads all over the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from penstock.model import IntArray, Window
from penstock.randomness import key
from penstock.shuffles.window import UnitStream, positive, window_edges, window_rows
from penstock.stable_hash import mix

__all__ = ["ExactShuffle"]

ROUNDS = 6


@dataclass(frozen=True, slots=True)
class ExactShuffle:
    """All rows permuted over the whole table.

    The permutation is computed for each place and never stored, so a billion rows take no memory.

    Bias: none that matters to training.
    Cost: each window reads rows from all over the table, so a unit is read once per window that needs one of its rows.
    Use it for small tables and for random access by page.

    Args:
        rows: Rows read together; by default as many as take 128 MiB in the table's files. It does not change the order.

    Raises:
        ArgumentError: If `rows` is not positive.

    Example:
        >>> ExactShuffle(rows=64).describe()
        {'name': 'exact'}
    """

    rows: int | None = None

    def __post_init__(self) -> None:
        if self.rows is not None:
            object.__setattr__(self, "rows", positive("ExactShuffle", "rows", self.rows))

    @property
    def whole_file_rows(self) -> int:
        """An eighth of the rows that are read together."""
        return (self.rows or 0) // 8

    @property
    def unit_rows(self) -> int | None:
        """Row groups are never cut, since every row is drawn on its own."""
        return None

    def settle(self, num_rows: int, num_bytes: int) -> ExactShuffle:
        """Return this shuffle with the number of rows that are read together fixed."""
        return self if self.rows is not None else replace(self, rows=window_rows(num_rows, num_bytes))

    def describe(self) -> Mapping[str, str | int | None]:
        """Return the name; `rows` does not change the order."""
        return {"name": "exact"}

    def arrange(self, counts: IntArray, *, seed: int, epoch: int) -> _Scattered:
        """Return the stream of one epoch."""
        stream = UnitStream.stored(counts)
        num_rows = int(stream.ends[-1]) if len(stream.ends) else 0
        keys = np.random.Philox(key=key("exact", seed, epoch)).random_raw(ROUNDS)
        return _Scattered(stream=stream, num_rows=num_rows, keys=keys, rows=self.rows or max(1, num_rows))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Scattered:
    """A stream with a row of the whole table, drawn at random, at each place."""

    stream: UnitStream
    num_rows: int
    keys: npt.NDArray[np.uint64]
    rows: int

    def edges(self, start: int, stop: int) -> IntArray:
        return window_edges(start, stop, self.rows)

    def window(self, start: int, stop: int, *, lane: int, index: int) -> Window:  # noqa: ARG002 - the places decide
        return self.stream.scattered(scatter(np.arange(start, stop, dtype=np.uint64), self.num_rows, self.keys))


def scatter(places: npt.NDArray[np.uint64], count: int, keys: npt.NDArray[np.uint64]) -> IntArray:
    """Return the image of each place under a keyed permutation of `range(count)`.

    A Feistel network permutes the next power of four. Results outside of `range(count)` are permuted again until they
    are inside, so that the whole is a permutation.

    Example:
        >>> keys = np.arange(6, dtype=np.uint64)
        >>> sorted(scatter(np.arange(10, dtype=np.uint64), 10, keys).tolist())
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    half = np.uint64(max(1, ((count - 1).bit_length() + 1) // 2))
    images = _feistel(places, half, keys)
    outside = np.flatnonzero(images >= count)
    while len(outside):
        images[outside] = _feistel(images[outside], half, keys)
        outside = outside[images[outside] >= count]
    return images.astype(np.int64)


def _feistel(places: npt.NDArray[np.uint64], half: np.uint64, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the images of places under a permutation of all integers of `2 * half` bits."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = places >> half, places & mask
    for round_key in keys:
        left, right = right, left ^ (mix(right ^ round_key) & mask)
    return (left << half) | right
