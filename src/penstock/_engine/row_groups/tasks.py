"""Row-group tasks, and the order in which they are scheduled.

A task is a row group or a part of one. Its rows are handed out together, and a function of the user may return more or fewer
of them, so the number of rows before a task is unknown. Therefore only the order of tasks is decided here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import numpy as np

from penstock.model import IntArray, Units, even_edges
from penstock.randomness import permutation


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowGroupTasks:
    """Tasks in stored order, one entry per task.

    Attributes:
        units: The rows that are read.
        ordinal: The number of each task's row group in the whole table.
    """

    units: Units
    ordinal: IntArray

    def __len__(self) -> int:
        """Return the number of tasks."""
        return len(self.ordinal)

    @property
    def num_rows(self) -> int:
        """The stored rows of all tasks."""
        return int(self.units.rows.sum())

    def take(self, indices: IntArray) -> RowGroupTasks:
        """Return the tasks at some indices."""
        units = Units(**{column.name: getattr(self.units, column.name)[indices] for column in fields(Units)})
        return RowGroupTasks(units=units, ordinal=self.ordinal[indices])

    def split(self, parts: int, overlap: int = 0) -> RowGroupTasks:
        """Return each task split into `parts` tasks, or into single rows where it has fewer rows.

        Args:
            parts: The number of parts, which follow one another.
            overlap: Rows of the next part that each part has in addition.
        """
        counts = np.minimum(self.units.rows, parts)
        repeated = self.take(np.repeat(np.arange(len(self)), counts))
        part = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        rows, parts_of_task = repeated.units.rows, np.repeat(counts, counts)
        start, stop = -(-part * rows // parts_of_task), -(-(part + 1) * rows // parts_of_task)
        return repeated.narrow(start, np.minimum(stop + overlap, rows) - start)

    def shard(self, rank: int, ranks: int) -> RowGroupTasks:
        """Return the rows of one of several readers; the numbers of rows differ by one at most."""
        ends = np.cumsum(self.units.rows)
        begins = ends - self.units.rows
        low, high = even_edges(0, self.num_rows, ranks)[rank : rank + 2]
        indices = np.flatnonzero(np.minimum(ends, high) > np.maximum(begins, low))
        start = np.maximum(low - begins[indices], 0)
        return self.take(indices).narrow(start, np.minimum(high, ends[indices]) - begins[indices] - start)

    def narrow(self, start: IntArray, rows: IntArray) -> RowGroupTasks:
        """Return the tasks with `rows` of their rows each, from row `start` of the task on."""
        units = self.units
        units = replace(units, start=units.start + start, first=units.first + start, rows=rows, counts=rows)
        return RowGroupTasks(units=units, ordinal=self.ordinal)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledTask:
    """The index of a task, and its place in the order of an epoch."""

    epoch: int
    place: int
    task: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOrder:
    """The order of `count` tasks: another one in each epoch, or always the stored one.

    Example:
        >>> [scheduled.task for scheduled in TaskOrder(count=3, shuffled=False).schedule(epochs=2)]
        [0, 1, 2, 0, 1, 2]
    """

    count: int
    seed: int = 0
    shuffled: bool = True

    def order(self, epoch: int) -> IntArray:
        """Return the indices of the tasks in the order of an epoch."""
        # The name is part of the order, and so of all saved states.
        return permutation(self.count, "lots", self.seed, epoch) if self.shuffled else np.arange(self.count)

    def schedule(self, *, epochs: int | None, epoch: int = 0, place: int = 0) -> Iterator[ScheduledTask]:
        """Yield the tasks of some epochs, from a place in the first of them on; without end for `epochs=None`."""
        last = None if epochs is None else epoch + epochs
        while self.count and (last is None or epoch < last):
            order = self.order(epoch)
            for at in range(place, self.count):
                yield ScheduledTask(epoch=epoch, place=at, task=int(order[at]))
            epoch, place = epoch + 1, 0
