"""A full shuffle: every order of all rows is possible, at the price of reading rows one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from penstock._ranges import even_edges
from penstock.model import IntArray, Window
from penstock.randomness import key
from penstock.shuffles._blocks import Blocks, positive, window_rows
from penstock.stable_hash import mix

__all__ = ["ExactShuffle"]

ROUNDS = 6


@dataclass(frozen=True, slots=True)
class ExactShuffle:
    """All rows permuted over the whole table.

    The permutation is computed place by place and never held, so a billion rows cost no memory.

    Bias: none that a training could notice. Cost: each window reads rows from all over the table, so a unit is read once
    per window that needs a row of it; meant for small tables and for random access by page.

    Args:
        rows: Rows fetched together; by default as many as 128 MiB of the table's files hold. It does not change the
            order, only how many rows of one unit are found in one go.

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
        """An eighth of what is fetched together."""
        return (self.rows or 0) // 8

    @property
    def unit_rows(self) -> int | None:
        """Row groups are never cut: every row is drawn on its own anyway."""
        return None

    def settle(self, num_rows: int, num_bytes: int) -> ExactShuffle:
        """Return this shuffle with the rows fetched together fixed."""
        return self if self.rows is not None else replace(self, rows=window_rows(num_rows, num_bytes))

    def describe(self) -> Mapping[str, str | int | None]:
        """Return the name: how much is fetched together does not change the order."""
        return {"name": "exact"}

    def arrange(self, counts: IntArray, *, seed: int, epoch: int) -> _Scattered:
        """Return the stream of one epoch."""
        blocks = Blocks.stored(counts)
        num_rows = int(blocks.ends[-1]) if len(blocks.ends) else 0
        keys = np.random.Philox(key=key("exact", seed, epoch)).random_raw(ROUNDS)
        return _Scattered(blocks=blocks, num_rows=num_rows, keys=keys, rows=self.rows or max(1, num_rows))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Scattered:
    """A stream whose every place holds a row drawn from the whole table."""

    blocks: Blocks
    num_rows: int
    keys: npt.NDArray[np.uint64]
    rows: int

    def edges(self, start: int, stop: int) -> IntArray:
        return even_edges(start, stop, -(-(stop - start) // self.rows)) if start < stop else even_edges(start, stop, 1)[:1]

    def window(self, start: int, stop: int, *, lane: int, index: int) -> Window:  # noqa: ARG002 - the place says all
        return self.blocks.scattered(scatter(np.arange(start, stop, dtype=np.uint64), self.num_rows, self.keys))


def scatter(places: npt.NDArray[np.uint64], count: int, keys: npt.NDArray[np.uint64]) -> IntArray:
    """Return where a keyed permutation of `range(count)` sends each place.

    A Feistel network permutes the next power of four; what falls outside of `range(count)` is sent on until it falls
    inside, which keeps it a permutation.

    Example:
        >>> keys = np.arange(6, dtype=np.uint64)
        >>> sorted(scatter(np.arange(10, dtype=np.uint64), 10, keys).tolist())
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    half = np.uint64(max(1, ((count - 1).bit_length() + 1) // 2))
    sent = _feistel(places, half, keys)
    outside = np.flatnonzero(sent >= count)
    while len(outside):
        sent[outside] = _feistel(sent[outside], half, keys)
        outside = outside[sent[outside] >= count]
    return sent.astype(np.int64)


def _feistel(places: npt.NDArray[np.uint64], half: np.uint64, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return a permutation of the numbers of `2 * half` bits."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = places >> half, places & mask
    for round_key in keys:
        left, right = right, left ^ (mix(right ^ round_key) & mask)
    return (left << half) | right
