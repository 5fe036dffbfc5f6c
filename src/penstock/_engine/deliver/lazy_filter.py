"""Batches of the rows that pass a lazy filter, which runs while reading: rows are regrouped to batches of one size."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np

from penstock._engine.batch.assemble import AssembledRows, map_good_rows
from penstock._engine.decode.columns import PASSED
from penstock._engine.deliver.skipped import SkippedBatches
from penstock._engine.processes.batches import ProcessBatches
from penstock._engine.query.query import BatchAdapter, Query
from penstock._engine.runtime.threads import result_of
from penstock._engine.runtime.timers import MAP, Meter
from penstock.errors import EmptyDatasetError
from penstock.model import Position


class LazyFilter:
    """Regroups the rows that pass to batches, or returns them as single rows, and maps them."""

    def __init__(
        self,
        query: Query,
        next_rows: Callable[[], AssembledRows],
        mapped_row: Callable[[AssembledRows, int], dict[str, Any] | None],
        processes: ProcessBatches | None,
        meter: Meter,
        skipping: SkippedBatches | None,
    ) -> None:
        """Store what is filtered: `next_rows` returns rows with the column that says which pass.

        `mapped_row` returns one of some rows as the consumer gets it, None if it is bad.
        """
        self._query, self._next_rows, self._mapped_row = query, next_rows, mapped_row
        self._processes = processes if query.maps else None
        self._meter, self._skipping = meter, skipping
        self._any_batch = False

    def batches(self, adapter: BatchAdapter | None) -> Iterator[tuple[dict[str, Any] | None, Position]]:
        """Yield batches, or rows, and the position after each; None instead of a batch where only the position moves."""
        skipping = self._skipping
        for rows, position in self._map_all(self._regrouped(), adapter):
            if rows is None:
                yield None, position
            elif self._query.size is None:
                for at in range(rows.count):
                    row = self._mapped_row(rows, at)
                    yield row, position if at == rows.count - 1 else _position_after(rows, at)
            elif skipping is not None and skipping.skips_batch(rows, record=True):
                yield None, position
            else:
                self._meter.surplus += rows.count - self._query.step_rows
                yield rows.columns, position

    def _map_all(
        self, regrouped: Iterator[tuple[AssembledRows | None, Position]], adapter: BatchAdapter | None
    ) -> Iterator[tuple[AssembledRows | None, Position]]:
        """Yield regrouped rows with the maps applied; where worker processes do so, some batches are sent ahead."""
        queue: deque[tuple[Future[AssembledRows] | AssembledRows | None, Position]] = deque()
        max_pending = 1 if self._processes is None else self._processes.max_pending
        error: Exception | None = None
        while True:
            while len(queue) < max_pending and error is None:
                try:
                    rows, position = next(regrouped)
                except Exception as raised:  # noqa: BLE001 - raised after the batches before it
                    error = raised
                else:
                    queue.append((None if rows is None else self._map(rows, adapter), position))
            if not queue:
                break
            mapped, position = queue.popleft()
            if isinstance(mapped, Future):
                with self._meter, self._meter.blocked:
                    mapped = result_of(mapped)
            yield mapped, position
        if error is not None and not isinstance(error, StopIteration):
            raise error

    def _map(self, rows: AssembledRows, adapter: BatchAdapter | None) -> Future[AssembledRows] | AssembledRows:
        """Return regrouped rows with the maps applied; single rows are mapped one by one later."""
        if self._processes is not None:
            return self._processes.map(rows)
        if self._query.size is None:
            return rows
        with self._meter, self._meter.busy(MAP):
            rows = map_good_rows(self._query, rows)
            return rows if adapter is None else replace(rows, columns=adapter.batch(rows.columns))

    def _regrouped(self) -> Iterator[tuple[AssembledRows | None, Position]]:
        """Yield the rows that pass, in batches of the size asked for, and the position after each."""
        size, rest = self._query.batch_rows, None
        for rows in self._passing():
            if rest is not None and rest.rank_epoch is not rows.rank_epoch:
                yield self._end_of_epoch(rest)
                rest = None
                self._check_progress()
            rest = rows if rest is None or not rest.count else rest.then(rows) if rows.count else rest
            while rest.count >= (size or 1):
                count = size or rest.count
                self._any_batch = True
                batch, rest = rest.take(slice(0, count)), rest.take(slice(count, None))
                ended = not rest.count and rest.stop >= len(rest.rank_epoch.schedule)
                next_epoch = Position(epoch=rest.rank_epoch.position.epoch + 1)
                yield batch, next_epoch if ended else _position_after(batch, count - 1)
        if rest is not None:
            yield self._end_of_epoch(rest)

    def _check_progress(self) -> None:
        """Refuse to go on for ever over epochs without a batch."""
        if self._query.epochs is None and not self._any_batch:
            msg = (
                "A whole epoch went by without a batch: nothing, or too little, passes the filter "
                f"{self._query.condition!r}. Repeating it without end would never hand out anything. Check the filter."
            )
            raise EmptyDatasetError(msg)

    def _passing(self) -> Iterator[AssembledRows]:
        """Yield the rows that pass."""
        while True:
            try:
                rows = self._next_rows()
            except StopIteration:
                return
            steps = np.arange(rows.count) if rows.selected is None else rows.selected
            used = rows.rank_epoch.schedule.consumed(rows.start) + 1 + steps
            # Where all rows are bad, or none passes, there are no columns.
            passed = np.flatnonzero(rows.columns.pop(PASSED, used[:0]))
            yield replace(rows, used=used).take(passed)

    def _end_of_epoch(self, rest: AssembledRows) -> tuple[AssembledRows | None, Position]:
        """Return what is left at the end of an epoch, too little for a batch, and the position after it."""
        batch = rest if rest.count and self._query.ending == "uneven" else None
        self._any_batch = self._any_batch or batch is not None
        return batch, Position(epoch=rest.rank_epoch.position.epoch + 1)


def _position_after(rows: AssembledRows, at: int) -> Position:
    """Return the position after a row that has passed."""
    assert rows.used is not None  # noqa: S101 - set by the filter
    position = rows.rank_epoch.position
    last = replace(position.assignments[-1], rows=int(rows.used[at]))
    return Position(epoch=position.epoch, assignments=(*position.assignments[:-1], last))
