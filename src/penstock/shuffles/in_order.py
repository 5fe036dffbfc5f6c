"""The stored order: no shuffle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.model import IntArray
from penstock.shuffles.window import UnitStream, positive, window_rows

__all__ = ["InOrder"]


@dataclass(frozen=True, slots=True)
class InOrder:
    """Rows in stored order, the same in every epoch.

    Bias: complete; the order of the writer is the order of training.
    Cost: none; one row group is in memory at a time.

    Args:
        file_rows: Files of at most so many rows are read whole, if the table states their rows; by default it follows from
            the size of the table.

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
        """The largest number of rows of a file that is read as one unit."""
        return self.file_rows or 0

    @property
    def unit_rows(self) -> int | None:
        """Row groups are never cut; they would only be read twice."""
        return None

    def settle(self, num_rows: int, num_bytes: int) -> InOrder:
        """Return this order with `file_rows` fixed."""
        return self if self.file_rows is not None else InOrder(window_rows(num_rows, num_bytes) // 8)

    def describe(self) -> Mapping[str, str | int | None]:
        """Return the name; `file_rows` does not change the order."""
        return {"name": "in_order"}

    def arrange(self, counts: IntArray, *, seed: int, epoch: int) -> UnitStream:  # noqa: ARG002 - the same for all
        """Return the stream in stored order."""
        return UnitStream.stored(counts)
