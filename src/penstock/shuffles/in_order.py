"""The stored order: no shuffle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.model import IntArray
from penstock.shuffles._blocks import Blocks, positive, window_rows

__all__ = ["InOrder"]


@dataclass(frozen=True, slots=True)
class InOrder:
    """Rows as they are stored, every epoch alike.

    Bias: complete; whatever order the writer left is the order of training.
    Cost: none; one row group is held at a time.

    Args:
        file_rows: Files that state their rows are read whole up to this many; by default it follows from their sizes.

    Example:
        >>> InOrder().describe()
        {'name': 'in_order'}
    """

    file_rows: int | None = None

    def __post_init__(self) -> None:
        if self.file_rows:
            object.__setattr__(self, "file_rows", positive("InOrder", "file_rows", self.file_rows))

    @property
    def whole_file_rows(self) -> int:
        """The most rows of a file that is taken as one unit."""
        return self.file_rows or 0

    @property
    def unit_rows(self) -> int | None:
        """Row groups are never cut: it would only read them twice."""
        return None

    def settle(self, num_rows: int, num_bytes: int) -> InOrder:
        """Return this order with the size of files taken whole fixed."""
        return self if self.file_rows is not None else InOrder(window_rows(num_rows, num_bytes) // 8)

    def describe(self) -> Mapping[str, str | int | None]:
        """Return the name alone: what is read at once does not change the order of rows."""
        return {"name": "in_order"}

    def arrange(self, counts: IntArray, *, seed: int, epoch: int) -> Blocks:  # noqa: ARG002 - the same for all
        """Return the stored stream."""
        return Blocks.stored(counts)
