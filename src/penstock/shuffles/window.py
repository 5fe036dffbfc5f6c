"""The default shuffle: units permuted over all files, then rows permuted inside windows of several units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from penstock._ranges import even_edges
from penstock.model import IntArray, Window
from penstock.randomness import permutation
from penstock.shuffles._blocks import WINDOW_BYTES, Blocks, positive, window_rows

__all__ = ["WindowShuffle"]


@dataclass(frozen=True, slots=True)
class WindowShuffle:
    """Units permuted over all files, cut into windows, and the rows of each window permuted.

    The window is the one knob that trades three things: a larger one mixes better, holds more in memory and re-reads
    more on a resume.

    Bias: two rows of one unit come closer together than chance would have them, the less so the more units a window
    holds; with units drawn at random over all files it is near a full shuffle once a window holds a few per cent of
    them. Cost: one window per lane is held in memory, and every unit is read once.

    Args:
        rows: Rows of a window; by default as many as `window_bytes` of the table's files hold.
        window_bytes: Bytes of a window on storage, where `rows` is not given.
        unit_rows: Cut row groups of more rows than this into ranges, which are permuted on their own. It mixes tables of
            few huge row groups better, at the price of reading such a row group once for each of its ranges.

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
        """An eighth of a window: smaller files cost less to read whole than their footers cost to plan with."""
        return (self.rows or 0) // 8

    def settle(self, num_rows: int, num_bytes: int) -> WindowShuffle:
        """Return this shuffle with the rows of a window fixed."""
        if self.rows is not None:
            return self
        return replace(self, rows=window_rows(num_rows, num_bytes, self.window_bytes))

    def describe(self) -> Mapping[str, str | int | None]:
        """Return the name and the rows of a window; what they were derived from does not matter."""
        return {"name": "window", "rows": self.rows, "unit_rows": self.unit_rows}

    def arrange(self, counts: IntArray, *, seed: int, epoch: int) -> _Windows:
        """Return the stream of one epoch."""
        blocks = Blocks.shuffled(counts, seed=seed, epoch=epoch)
        return _Windows(blocks=blocks, rows=self.rows or len(counts), seed=seed, epoch=epoch)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Windows:
    """A stream of permuted units, cut into windows of permuted rows."""

    blocks: Blocks
    rows: int
    seed: int
    epoch: int

    def edges(self, start: int, stop: int) -> IntArray:
        # Windows of one lane are of equal length, so that none is a remnant too small to be shuffled.
        return even_edges(start, stop, -(-(stop - start) // self.rows)) if start < stop else even_edges(start, stop, 1)[:1]

    def window(self, start: int, stop: int, *, lane: int, index: int) -> Window:
        take = permutation(stop - start, "rows", self.seed, self.epoch, lane, index)
        return Window(reads=self.blocks.reads(start, stop), take=take)
