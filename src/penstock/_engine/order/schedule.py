"""Batches of a rank: which rows make up each, and how many rows are consumed after it.

The five ways to end an epoch differ only here. `drop` stops before a batch that not every rank can fill, `pad` fills the
last one up and marks it, `wrap` fills it with rows of the rank's beginning, `level` fills it only as far as the rank that has
most goes, and `uneven` lets every rank end on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock._engine.order.shard import Shard
from penstock._engine.query.values import Last
from penstock._ranges import Ranges
from penstock.model import Assignment, IntArray, Position

__all__ = ["Draw", "Schedule", "schedule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """What one batch is made of.

    Attributes:
        start: The first of the rank's rows in it, counted in the rank's hand.
        stop: The row after the last.
        fill: A part of the epoch's sequence that follows, to fill the batch up.
        valid: How many of the batch's rows count.
        size: Rows of the batch; where it is more than was read, the last row read is repeated.
    """

    start: int
    stop: int
    fill: Ranges = ()
    valid: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """The batches that a rank has left in an epoch.

    Attributes:
        shard: The rank's rows.
        start: Rows it had consumed before.
        steps: The number of batches left.
        size: Rows of a batch.
        last: How the epoch ends.
        spare: A row for a rank that has none of its own and must fill a batch all the same.
        edges: Where batches begin, counted in rows after `start`, where they are not all of one size.
        most: Rows that the rank which has most has left, where the last batch is as large on all.
    """

    shard: Shard
    start: int
    steps: int
    size: int
    last: Last
    spare: Ranges = ()
    edges: IntArray | None = None
    most: int | None = None

    def __len__(self) -> int:
        """Return the number of batches left."""
        return self.steps

    def consumed(self, step: int) -> int:
        """Return the rows that the rank has consumed after `step` of these batches."""
        if self.edges is not None:
            return self.start + int(self.edges[step])
        return min(self.start + step * self.size, self.shard.num_rows)

    def draw(self, step: int) -> Draw:
        """Return what batch number `step` is made of."""
        start, stop = self.consumed(step), self.consumed(step + 1)
        own = stop - start
        size = self.size if self.most is None else min(self.size, self.most - step * self.size)
        if self.last in ("drop", "uneven") or own == size:
            return Draw(start=start, stop=stop, valid=own, size=own)
        if self.last == "pad":
            return Draw(start=start, stop=stop, fill=() if own else self.spare, valid=own, size=size)
        return Draw(start=start, stop=stop, fill=self._fill(size - own), valid=size, size=size)

    def _fill(self, rows: int) -> Ranges:
        """Return rows of the rank's beginning, over again as often as it takes."""
        total = self.shard.num_rows
        if total == 0:
            return self.spare * rows
        again, rest = divmod(rows, total)
        return self.shard.ranges(0, total) * again + self.shard.ranges(0, rest)

    def position(self, start: Position, step: int) -> Position:
        """Return the position after `step` of these batches, given where they started."""
        if step >= self.steps:
            return Position(epoch=start.epoch + 1)
        assignment = replace(start.assignments[-1], rows=self.consumed(step))
        return Position(epoch=start.epoch, assignments=(*start.assignments[:-1], assignment))


def schedule(shards: Sequence[Shard], assignment: Assignment, rank: int, *, size: int, last: Last) -> Schedule:
    """Return the batches that a rank has left, equally many on all ranks unless they are `uneven`.

    Example:
        >>> from penstock._engine.order.shard import shards
        >>> assignment = Assignment(lanes=2, stride=2, ranks=2)
        >>> dealt = shards(9, (assignment,))
        >>> [len(schedule(dealt, assignment, 0, size=2, last=last)) for last in ("drop", "pad", "level", "uneven")]
        [2, 3, 3, 2]
    """
    left = [max(0, shard.num_rows - assignment.consumed(number)) for number, shard in enumerate(shards)]
    if last == "drop":
        steps = min(left) // size
    elif last == "uneven":
        steps = -(-left[rank] // size)
    else:
        steps = -(-max(left) // size)
    first = next((shard.ranges(0, 1) for shard in shards if shard.num_rows), ())
    most = max(left) if last == "level" else None
    return Schedule(
        shard=shards[rank], start=assignment.consumed(rank), steps=steps, size=size, last=last, spare=first, most=most
    )


def ragged_schedule(shard: Shard, start: int, edges: IntArray) -> Schedule:
    """Return a rank's batches where each ends at an edge: `edges` counts rows after `start`, from 0 to the last.

    Example:
        >>> import numpy as np
        >>> from penstock._engine.order.shard import Shard
        >>> ragged_schedule(Shard((((0, 5),),), stride=5), 1, np.array([0, 3, 4])).draw(1)
        Draw(start=4, stop=5, fill=(), valid=1, size=1)
    """
    return Schedule(shard=shard, start=start, steps=len(edges) - 1, size=1, last="uneven", edges=edges)
