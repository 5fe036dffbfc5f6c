"""Lots: row groups, or parts of them, that are worked on one after the other, and the order they come in.

Where rows are handed out as they lie in their row groups, and a function may make more or fewer of them, nobody can say at
which place of an epoch a row stands. What can be said is which lot comes when, and that is all that is decided here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import numpy as np

from penstock._ranges import even_edges
from penstock.model import IntArray, Units
from penstock.randomness import permutation

__all__ = ["RowGroupTasks", "Step", "Turns"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowGroupTasks:
    """Row groups, or ranges of their rows, in stored order, an entry each.

    Attributes:
        units: What is read.
        ordinal: The number of each one's row group among all of the table, whatever was left out of them.
    """

    units: Units
    ordinal: IntArray

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.ordinal)

    @property
    def num_rows(self) -> int:
        """The rows of all of them, as they are stored."""
        return int(self.units.rows.sum())

    def picked(self, which: IntArray) -> RowGroupTasks:
        """Return some of them, in another order or several times."""
        units = Units(**{column.name: getattr(self.units, column.name)[which] for column in fields(Units)})
        return RowGroupTasks(units=units, ordinal=self.ordinal[which])

    def ranges(self, start: IntArray, rows: IntArray) -> RowGroupTasks:
        """Return them with other rows of the same row groups, counted from where each began."""
        units = self.units
        units = replace(units, start=units.start + start, first=units.first + start, rows=rows, counts=rows)
        return RowGroupTasks(units=units, ordinal=self.ordinal)

    def cut(self, parts: int, more: int = 0) -> RowGroupTasks:
        """Return them cut into so many parts each, or into single rows where there are not so many.

        Args:
            parts: The parts of each, whose rows follow one another.
            more: Rows of the next part that each has besides, where there are any.

        Example:
            >>> lots = RowGroupTasks.of(rows=[5, 1])
            >>> lots.cut(2).units.start.tolist(), lots.cut(2).units.rows.tolist()
            ([0, 3, 0], [3, 2, 1])
            >>> lots.cut(2, more=1).units.rows.tolist()
            [4, 2, 1]
        """
        whole = self.units.rows
        each = np.minimum(whole, parts)
        found = self.picked(np.repeat(np.arange(len(self)), each))
        number = np.arange(int(each.sum())) - np.repeat(np.cumsum(each) - each, each)
        rows, each = found.units.rows, np.repeat(each, each)
        start, stop = -(-number * rows // each), -(-(number + 1) * rows // each)
        return found.ranges(start, np.minimum(stop + more, rows) - start)

    def shared_out(self, rank: int, ranks: int) -> RowGroupTasks:
        """Return the part of one of several readers, whose numbers of rows differ by one at most.

        Example:
            >>> [RowGroupTasks.of(rows=[5, 2, 4]).shared_out(rank, 3).units.rows.tolist() for rank in range(3)]
            [[3], [2, 2], [4]]
        """
        ends = np.cumsum(self.units.rows)
        begins = ends - self.units.rows
        low, high = even_edges(0, self.num_rows, ranks)[rank : rank + 2]
        which = np.flatnonzero(np.minimum(ends, high) > np.maximum(begins, low))
        start = np.maximum(low - begins[which], 0)
        return self.picked(which).ranges(start, np.minimum(high, ends[which]) - begins[which] - start)

    @classmethod
    def of(cls, rows: list[int]) -> RowGroupTasks:
        """Return lots of one file with so many rows each."""
        every, count = np.array(rows, dtype=np.int64), len(rows)
        units = Units(
            file=np.zeros(count, dtype=np.int32),
            row_group=np.arange(count, dtype=np.int32),
            start=np.zeros(count, dtype=np.int64),
            first=np.cumsum(every) - every,
            rows=every,
            counts=every,
            residual=np.zeros(count, dtype=np.bool_),
        )
        return cls(units=units, ordinal=np.arange(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One lot at its place: which it is, and when it comes.

    Attributes:
        epoch: The epoch.
        place: Its place in the epoch.
        lot: Its number among the lots.
    """

    epoch: int
    place: int
    lot: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """The order of so many lots, in every epoch another or always the stored one.

    Attributes:
        count: How many lots there are.
        seed: Decides the order.
        shuffled: Whether it is another in each epoch.

    Example:
        >>> [step.lot for step in Turns(count=3, shuffled=False).steps(epochs=2)]
        [0, 1, 2, 0, 1, 2]
    """

    count: int
    seed: int = 0
    shuffled: bool = True

    def order(self, epoch: int) -> IntArray:
        """Return the lots in the order of an epoch."""
        return permutation(self.count, "lots", self.seed, epoch) if self.shuffled else np.arange(self.count)

    def steps(self, *, epochs: int | None, epoch: int = 0, place: int = 0) -> Iterator[Step]:
        """Yield the lots of so many epochs, from a place of the first of them on; without end where that is None."""
        last = None if epochs is None else epoch + epochs
        while self.count and (last is None or epoch < last):
            order = self.order(epoch)
            for at in range(place, self.count):
                yield Step(epoch=epoch, place=at, lot=int(order[at]))
            epoch, place = epoch + 1, 0
