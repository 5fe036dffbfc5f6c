"""The iteration of a reader: which result comes next, and the position of each row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from penstock._engine.row_groups.tasks import ScheduledTask
from penstock.petastorm._impl.fixed_size_batches import FixedSizeBatches
from penstock.petastorm._impl.results import ResultList, TaskResult
from penstock.petastorm._impl.state import ReaderPosition
from penstock.petastorm.errors import NoDataAvailableError

__all__ = ["ReaderIteration"]


class ReaderIteration:
    """Takes the results of tasks, skips those before the start position, and computes the position of each row.

    Args:
        next_result: Returns the next task and its result.
        start: The first position.
        tasks_per_epoch: The number of tasks of an endless iteration; None for an iteration that ends.
        batches: Makes batches of a fixed size; None for the batches of row groups.
        drop_last: Whether a last batch with fewer rows is dropped.
    """

    def __init__(
        self,
        next_result: Callable[[], tuple[ScheduledTask, TaskResult]],
        start: ReaderPosition,
        tasks_per_epoch: int | None,
        batches: FixedSizeBatches | None,
        *,
        drop_last: bool,
    ) -> None:
        """Store the arguments."""
        self._next_result, self._start, self._tasks_per_epoch = next_result, start, tasks_per_epoch
        self._batches, self._drop_last = batches, drop_last
        self._place: tuple[int, int] | None = None
        self._rows_of_task = self._empty_tasks = 0
        self._first, self._after = start, start
        self._count = 0

    def next(self) -> TaskResult:
        """Return the next rows or batches, at least one.

        Raises:
            StopIteration: If there is nothing more.
        """
        if self._batches is not None:
            return ResultList([self._next_batch(self._batches)])
        while True:
            first, result = self._next()
            if len(result):
                self._first, self._count = first, len(result)
                return result

    def position(self, left: int) -> ReaderPosition:
        """Return the position of the next row, if `left` of the results that came last were not handed out yet."""
        if self._batches is not None:
            return self._first if left else self._after
        return replace(self._first, rows=self._first.rows + self._count - left)

    def _next_batch(self, batches: FixedSizeBatches) -> Any:
        """Return a batch of the fixed size, or the last rows."""
        while batches.rows < batches.size:
            try:
                first, result = self._next()
            except StopIteration:
                if self._drop_last or not batches.rows:
                    raise
                break
            is_start = (first.epoch, first.place) == (self._start.epoch, self._start.place)
            for batch in cast("ResultList", result):
                batches.put(first, batch, self._start.rows if is_start else 0)
        self._first, batch = self._after, batches.take(min(batches.size, batches.rows))
        origin, row = batches.next_row
        self._after = replace(origin, rows=row)
        return batch

    def _next(self) -> tuple[ReaderPosition, TaskResult]:
        """Return the next result, and the position of its first row.

        Raises:
            NoDataAvailableError: If an endless iteration would never return a row.
        """
        scheduled, result = self._next_result()
        self._empty_tasks = 0 if len(result) else self._empty_tasks + 1
        if self._tasks_per_epoch is not None and self._empty_tasks > self._tasks_per_epoch:
            msg = (
                "A whole epoch went by without a row: the predicate, the filters or the function of transform_spec leave none. "
                "Reading without end would never come to any. Check them, or give num_epochs."
            )
            raise NoDataAvailableError(msg)
        place = (scheduled.epoch, scheduled.place)
        if place != self._place:
            self._place, self._rows_of_task = place, 0
        before = self._rows_of_task
        self._rows_of_task += len(result)
        first = replace(self._start, epoch=scheduled.epoch, place=scheduled.place, rows=before)
        if self._batches is None and place == (self._start.epoch, self._start.place) and before < self._start.rows:
            skipped = min(len(result), self._start.rows - before)
            return replace(first, rows=before + skipped), result.skip(skipped)
        return first, result
