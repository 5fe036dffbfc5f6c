"""Conformance kits: the rules that every shuffle follows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from penstock._engine.order.epoch import Epoch
from penstock.model import IntArray, Window
from penstock.protocols import Shuffle

__all__ = ["check_shuffle"]

COUNTS: tuple[list[int], ...] = ([], [0], [1], [5], [3, 0, 4], [0, 0, 2, 0], [7, 1, 1, 12, 0, 3], [1] * 40)


def check_shuffle(shuffle: Shuffle) -> None:
    """Check that a shuffle follows the rules of its protocol: every row once, and the same order for the same seed.

    Raises:
        AssertionError: If it breaks a rule; the message names the rule and the row counts.

    Example:
        >>> from penstock.shuffles import WindowShuffle
        >>> check_shuffle(WindowShuffle(rows=8))
    """
    _check(isinstance(shuffle, Shuffle), "it implements the Shuffle protocol", shuffle)
    settled = shuffle.settle(num_rows=1000, num_bytes=1 << 20)
    _check(settled.settle(num_rows=5, num_bytes=1 << 30) == settled, "sizes do not change it after settle()", shuffle)
    _check(dict(settled.describe()).get("name"), "describe() returns a name", shuffle)
    for counts in COUNTS:
        for lanes in (1, 2, 5):
            _check_counts(settled, np.array(counts, dtype=np.int64), lanes)


def _check_counts(shuffle: Shuffle, counts: IntArray, lanes: int) -> None:
    expected = [(unit, row) for unit, count in enumerate(counts.tolist()) for row in range(count)]
    for seed, epoch in ((0, 0), (0, 1), (1, 0)):
        rows = list(_rows(shuffle, counts, lanes, seed, epoch))
        where = f"counts {counts.tolist()}, {lanes} lanes, seed {seed}, epoch {epoch}"
        _check(sorted(rows) == expected, f"every row comes once ({where})", shuffle)
        repeated = list(_rows(shuffle, counts, lanes, seed, epoch))
        _check(rows == repeated, f"the same seed and epoch give the same order ({where})", shuffle)


def _rows(shuffle: Shuffle, counts: IntArray, lanes: int, seed: int, epoch: int) -> Iterator[tuple[int, int]]:
    """Yield (unit, row) in the order of the epoch's sequence, window by window."""
    order = Epoch(shuffle, counts, seed=seed, epoch=epoch, lanes=lanes)
    for piece in order.pieces(((0, order.num_rows),)):
        window = order.window(piece.lane, piece.window)
        pairs = _rows_of(window)
        _check(len(pairs) == piece.stop, "a window has as many rows as its edges say", shuffle)
        yield from map(tuple, pairs.tolist())


def _rows_of(window: Window) -> npt.NDArray[np.int64]:
    """Return the (unit, row) pairs of a window in its order."""
    parts = [np.zeros((0, 2), dtype=np.int64)]
    for read in window.reads:
        rows = np.arange(read.rows.start, read.rows.stop) if isinstance(read.rows, slice) else read.rows
        parts.append(np.stack([np.full(len(rows), read.unit), rows], axis=1))
    pairs = np.concatenate(parts)
    return pairs if window.take is None else pairs[window.take]


def _check(holds: object, rule: str, shuffle: Shuffle) -> None:
    if not holds:
        msg = f"{shuffle!r} breaks a rule: {rule}."
        raise AssertionError(msg)
