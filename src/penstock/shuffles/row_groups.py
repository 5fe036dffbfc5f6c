"""Row groups in random order, each with its rows in stored order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.model import IntArray
from penstock.shuffles.window import UnitStream

__all__ = ["RowGroupShuffle"]


@dataclass(frozen=True, slots=True)
class RowGroupShuffle:
    """Row groups permuted over all files, the rows of each in stored order.

    Bias: rows of a row group stay neighbours, so batches are only as mixed as the row groups are.
    Cost: none; one row group is in memory at a time.

    Example:
        >>> RowGroupShuffle().describe()
        {'name': 'row_groups'}
    """

    @property
    def whole_file_rows(self) -> int:
        """Files are never read whole; their row groups would stay neighbours."""
        return 0

    @property
    def unit_rows(self) -> int | None:
        """Row groups are never cut."""
        return None

    def settle(self, num_rows: int, num_bytes: int) -> RowGroupShuffle:  # noqa: ARG002 - nothing depends on sizes
        """Return this order, which does not depend on sizes."""
        return self

    def describe(self) -> Mapping[str, str | int | None]:
        """Return the name."""
        return {"name": "row_groups"}

    def arrange(self, counts: IntArray, *, seed: int, epoch: int) -> UnitStream:
        """Return the stream of permuted row groups."""
        return UnitStream.shuffled(counts, seed=seed, epoch=epoch)
