"""The default shuffle: units permuted over all files, then rows permuted inside windows of several units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock.model import IntArray, Window
from penstock.randomness import permutation
from penstock.shuffles._unit_stream import WINDOW_BYTES, UnitStream, positive, window_edges, window_rows

__all__ = ["WindowShuffle"]


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
