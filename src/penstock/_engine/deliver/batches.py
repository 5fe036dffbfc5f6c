"""The batches and rows of an iteration, in order.

`Steps` says which rows each step of the rank's epochs has. A `BatchSource` makes batches of them, in one of three ways, which
is chosen once:

* `ViewBatches`: in the consumer's thread, where batches are views of windows;
* `LocalBatches`: on threads, ahead of the consumer, or in the consumer's thread;
* `RemoteBatches`: in worker processes, ahead of the consumer.

A `BatchStream` returns them to the consumer, one by one or as single rows, and knows how far the consumer is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from itertools import islice
from sys import maxsize
from threading import current_thread, main_thread
from time import perf_counter
from typing import Any, Protocol, TypeAlias

from penstock._engine.batch.assemble import AssembledRows, BatchTask, mapped
from penstock._engine.deliver.lazy_filter import LazyFilter
from penstock._engine.deliver.skipped import SkippedBatches
from penstock._engine.order.shard import RankEpoch
from penstock._engine.processes.batches import ProcessBatches
from penstock._engine.query.query import BatchAdapter, Query
from penstock._engine.runtime.ordered_map import OrderedMap
from penstock._engine.runtime.threads import Priority, ThreadPool, wait_for_one
from penstock._engine.runtime.timers import HAND_OVER, MAP
from penstock._engine.window.prefetch import EpochPrefetcher, MakePrefetcher, Prefetcher
from penstock._engine.window.reader import WindowReader
from penstock.model import Position

ROWS_AT_ONCE = 256
"""Rows assembled at a time where the consumer takes single rows."""

MAX_TASK_BYTES, MAX_TOGETHER = 1 << 18, 16
"""Bytes that one task decodes at most, and batches that it makes at most. Several batches share the overhead of a task."""

QUICK_SECONDS, QUICK_TASKS = 0.0005, 8
"""A batch that takes fewer seconds is quick. After as many quick tasks the consumer makes batches itself."""

Delivered: TypeAlias = tuple[RankEpoch, int] | Position
"""How far the consumer is: after a step of a rank's epoch, or at a position."""


class BatchSource(Protocol):
    """Makes the batches of an iteration, in order."""

    def next(self) -> AssembledRows:
        """Return the next batch, or some single rows."""
        ...


class Steps:
    """The steps of a rank's epochs, in order, with the rows of each.

    Attributes:
        rank_epoch: The current epoch; None before the first and after the last.
        prefetcher: What reads its rows.
    """

    def __init__(
        self, query: Query, window_reader: WindowReader, rank_epochs: Iterator[RankEpoch], make_prefetcher: MakePrefetcher
    ) -> None:
        """Store which epochs come; nothing is read."""
        self.query, self.window_reader = query, window_reader
        self._epochs = EpochPrefetcher(rank_epochs, make_prefetcher)
        self.rank_epoch: RankEpoch | None = None
        self.prefetcher: Prefetcher | None = None
        self._step = self._steps = self._row = self._whole = 0
        self._error: Exception | None = None
        self._worker, self._workers, self._number = 0, 1, 0

    def select(self, worker: int, workers: int) -> None:
        """Return only the steps of one of several workers; to be called before the first step."""
        self._worker, self._workers = worker, workers

    def next(self, *, wait: bool, together: int = 1) -> BatchTask | None:
        """Return the task of the next batch, or of up to `together` whole batches; None at the end.

        With `wait=False` it is also None if the rows are not in memory. An error is then stored, and raised by the next call
        with `wait=True`, which comes when all batches before it were returned.
        """
        if self._error is not None:
            if not wait:
                return None
            error, self._error = self._error, None
            raise error
        try:
            return self._next(together, wait=wait)
        except Exception as error:
            if wait:
                raise
            self._error = error
            return None

    def _next(self, together: int, *, wait: bool) -> BatchTask | None:
        while self._has_step():
            assert self.rank_epoch is not None  # noqa: S101 - there is a step
            assert self.prefetcher is not None  # noqa: S101 - the same
            schedule, prefetcher, start, first = self.rank_epoch.schedule, self.prefetcher, self._step, self._row
            single, size = self.query.size is None, self.query.step_rows
            together = together if self._workers == 1 else 1  # the next batch is another worker's
            steps = ROWS_AT_ONCE * self._workers if single else max(1, min(together, self._whole - start))
            if steps > 1 and not single:
                steps = max(1, min(steps, prefetcher.rows_together(first, first + steps * size) // size))
            stop = min(start + steps, self._steps)
            last = schedule.consumed(stop)
            batch = schedule.batch(start) if stop == start + 1 and not single else None
            if not wait and prefetcher.rows_ready(first, last) < last - first:
                return None
            window_rows = prefetcher.rows(first, last, batch.fill if batch else ())
            self._step, self._row = stop, last
            own = self._first_own(stop - start if single else 1)
            if own is not None:
                return BatchTask(
                    query=self.query,
                    window_reader=self.window_reader,
                    rank_epoch=self.rank_epoch,
                    batch=batch,
                    rows=window_rows,
                    steps=range(start + own, stop, self._workers if single else 1),
                )
        return None

    def read_ahead(self) -> None:
        """Begin to read the next windows; call it after the current batch is submitted, which needs a thread first."""
        if self.prefetcher is not None:
            self._epochs.read_ahead(self.prefetcher)

    def pending_windows(self) -> list[Future[Any]]:
        """Return the windows that are being read."""
        return [] if self.prefetcher is None else list(self.prefetcher.pending_windows())

    def _has_step(self) -> bool:
        """Go on to an epoch with steps left; return False where there is none."""
        while self.rank_epoch is None or self._step >= self._steps:
            self.rank_epoch, self.prefetcher = self._epochs.next() or (None, None)
            if self.rank_epoch is None:
                return False
            schedule, size = self.rank_epoch.schedule, self.query.step_rows
            self._step, self._steps, self._row = 0, len(schedule), schedule.consumed(0)
            self._whole = min(self._steps, (schedule.shard.num_rows - schedule.start) // size)
        return True

    def _first_own(self, count: int) -> int | None:
        """Return the first of the next batches, or single rows, that is this worker's; None where all are those of others."""
        first = (self._worker - self._number) % self._workers
        self._number += count
        return first if first < count else None


class ViewBatches:
    """Makes batches in the consumer's thread that are nothing but views of windows, or copies of their rows."""

    def __init__(self, steps: Steps, adapter: BatchAdapter | None) -> None:
        """Store the steps and the adapter."""
        self._steps, self._adapter, self._alone = steps, adapter, is_made_alone(steps)
        self._cuts: Iterator[dict[str, Any]] = iter(())
        self._next: tuple[RankEpoch, int] | None = None

    def next(self) -> AssembledRows:
        """Return the next batch, or some single rows; `cut` returns the batches that were made with it."""
        task = self._steps.next(wait=True, together=1 if self._alone else maxsize)
        if task is None:
            raise StopIteration
        self._steps.read_ahead()
        made = task.run()
        if not task.is_together:
            return _adapted(made, task, self._adapter)
        size = made.count // len(task.steps)
        self._cuts = (
            _slices(made, size) if self._adapter is None or not made.columns else self._adapter.split(made.columns, size)
        )
        made.columns, made.stop, made.count = next(self._cuts), made.start + 1, size
        self._next = made.rank_epoch, made.stop
        return made

    def cut(self) -> tuple[dict[str, Any], Delivered] | None:
        """Return the next of the batches that were made together, and the position after it; None if there is none."""
        batch = next(self._cuts, None)
        if batch is None or self._next is None:
            return None
        self._next = self._next[0], self._next[1] + 1
        return batch, self._next


class LocalBatches:
    """Makes batches on threads, ahead of the consumer, or in the consumer's thread where a thread would not help.

    A quick batch costs less than handing it from one thread to another. The consumer makes quick batches itself if it asks for
    them sooner than a thread could have made them. A task makes several small ones: texts are decoded together.
    """

    def __init__(self, steps: Steps, pool: ThreadPool, adapter: BatchAdapter | None) -> None:
        """Store the steps, the threads and the adapter; nothing is read."""
        query, reader = steps.query, steps.window_reader
        self._steps, self._window_reader, self._adapter, self._pool = steps, reader, adapter, pool
        self._tasks = OrderedMap[tuple[list[AssembledRows | BaseException], float]](pool)
        self._made: deque[AssembledRows | BaseException] = deque()
        self._rows, self._memory_bytes, self._largest = query.batch_rows or ROWS_AT_ONCE, query.memory_bytes, 0
        self._max_together = 1 if is_made_alone(steps) else MAX_TOGETHER
        self._has_maps, self._quick_tasks = bool(query.maps), 0
        self._returned = perf_counter()

    def next(self) -> AssembledRows:
        """Return the next batch, or some single rows."""
        if not self._made:
            asked = perf_counter()
            seconds = self._make()
            quick = asked - self._returned < seconds < QUICK_SECONDS * len(self._made)
            self._quick_tasks = min(self._quick_tasks + 1, 2 * QUICK_TASKS) if quick else self._quick_tasks // 2
            self._returned = perf_counter()
        made = self._made.popleft()
        if isinstance(made, BaseException):
            raise made
        return made

    def _make(self) -> float:
        """Make the next batches, or wait for them; return the seconds that they took."""
        is_quick = self._quick_tasks >= QUICK_TASKS
        together = 1 if self._has_maps and not is_quick else self._max_together  # maps that take long run beside each other
        if together > 1 and self._window_reader.deferred:
            together = max(1, min(together, MAX_TASK_BYTES // self._batch_bytes))
        if is_quick and not self._tasks.pending:
            task = self._steps.next(wait=True, together=together)
            if task is None:
                raise StopIteration
            self._steps.read_ahead()
            batches, seconds = _timed(task, self._adapter)
        else:
            batches, seconds = self._from_threads(together)
        self._made.extend(batches)
        made = batches[0]
        if isinstance(made, AssembledRows) and not (is_quick and together == 1):
            self._largest = max(self._largest, sum([getattr(one, "nbytes", 0) for one in made.columns.values()]))
        return seconds

    @property
    def _batch_bytes(self) -> int:
        """The bytes of a batch, by what was read so far."""
        reader = self._window_reader
        return max(1, self._largest, int(self._rows * max(reader.row_bytes, reader.dense_bytes)))

    def _from_threads(self, together: int) -> tuple[list[AssembledRows | BaseException], float]:
        """Wait for the next task, with more tasks submitted as their rows come into memory."""
        affordable = self._memory_bytes // 4 // (self._batch_bytes * together)  # all tasks may take a quarter of the memory
        max_pending = 0 if self._quick_tasks >= QUICK_TASKS else max(1, min(self._pool.threads + 1, affordable))
        self._submit(together, max_pending)
        first = self._tasks.first
        while first is not None and not first.done() and self._tasks.pending < max_pending:
            coming = self._steps.pending_windows()
            if not coming:
                break
            with self._window_reader.meter.blocked:
                wait_for_one([first, *coming])
            self._submit(together, max_pending)
        with self._window_reader.meter.blocked:
            return self._tasks.next()

    def _submit(self, together: int, max_pending: int) -> None:
        """Submit tasks for the next batches, as far as their rows are in memory; wait only where no task is pending."""
        pending = self._tasks.pending
        while pending < max_pending:
            task = self._steps.next(wait=not pending, together=together)
            if task is None:
                break
            self._tasks.add(self._pool.submit(Priority.BATCH, partial(_timed, task, self._adapter)))
            pending += 1
        self._steps.read_ahead()


class RemoteBatches:
    """Makes batches in worker processes, ahead of the consumer."""

    def __init__(self, steps: Steps, processes: ProcessBatches) -> None:
        """Store the steps and the worker processes; nothing is read."""
        self._steps, self._query, self._window_reader, self._processes = steps, steps.query, steps.window_reader, processes
        self._tasks: OrderedMap[AssembledRows] = OrderedMap()
        self._largest = self._window_reader.dense_bytes * (self._query.batch_rows or ROWS_AT_ONCE)

    def next(self) -> AssembledRows:
        """Return the next batch, or some single rows."""
        affordable = max(1, self._query.memory_bytes // 4 // max(1, self._largest))
        while self._tasks.pending < min(self._processes.max_pending, affordable):
            task = self._steps.next(wait=not self._tasks.pending)
            if task is None:
                break
            self._tasks.add(self._processes.finish(task))
            self._steps.read_ahead()
        with self._window_reader.meter.blocked:
            made = self._tasks.next()
        self._largest = max(self._largest, sum([getattr(one, "nbytes", 0) for one in made.columns.values()]))
        return made


def _timed(task: BatchTask, adapter: BatchAdapter | None) -> tuple[list[AssembledRows | BaseException], float]:
    """Return the batches of a task, and the seconds that it took."""
    start = perf_counter()
    batches = _finish(task, adapter)
    return batches, perf_counter() - start


def _finish(task: BatchTask, adapter: BatchAdapter | None) -> list[AssembledRows | BaseException]:
    """Return the batches of a task as the consumer gets them; the error of a batch is raised in its turn."""
    try:
        made = task.run()
        return _cut(made, task, adapter) if task.is_together else [_adapted(made, task, adapter)]
    except BaseException as error:
        if _is_interrupt(error):
            raise
        if not task.is_together or len(task.steps) == 1:
            return [error]
    return [made for one in task.one_by_one() for made in _finish(one, adapter)]


def _cut(made: AssembledRows, task: BatchTask, adapter: BatchAdapter | None) -> list[AssembledRows | BaseException]:
    """Return several batches that were made together, with the maps applied to each."""
    query, meter, size = task.query, task.window_reader.meter, made.count // len(task.steps)
    if adapter is not None and not query.maps:
        with meter.busy(HAND_OVER):
            cuts = list(adapter.split(made.columns, size))
    else:
        cuts = list(_slices(made, size))
    batches: list[AssembledRows | BaseException] = []
    for number, (step, batch) in enumerate(zip(task.steps, cuts, strict=True)):
        places = made.places[number * size : (number + 1) * size]
        one = AssembledRows(rank_epoch=made.rank_epoch, start=step, stop=step + 1, columns=batch, count=size, places=places)
        if query.maps:
            try:
                with meter.busy(MAP):
                    one.columns = mapped(query, batch, places, made.rank_epoch.position.epoch, (size, size))
                batches.append(_adapted(one, task, adapter))
            except BaseException as error:
                if _is_interrupt(error):
                    raise
                batches.append(error)
        else:
            batches.append(one)
    return batches


def _slices(made: AssembledRows, size: int) -> Iterator[dict[str, Any]]:
    """Yield rows in batches; objects are copied, because a batch that is kept must not keep the objects of the others."""
    columns = [(name, values, values.dtype.hasobject) for name, values in made.columns.items()]
    for start in range(0, made.count, size):
        stop = start + size
        yield {name: values[start:stop].copy() if copies else values[start:stop] for name, values, copies in columns}


def is_made_alone(steps: Steps) -> bool:
    """Return whether each batch is made by itself, because its rows depend on each other, or some may be dropped."""
    query = steps.query
    dropped = query.skip is not None or query.lazy
    return query.batch_rows is None or dropped or query.ending == "pad" or not steps.window_reader.decodes_by_row


def _is_interrupt(error: BaseException) -> bool:
    """Return whether an error interrupts the consumer, which makes a batch itself; other errors are raised in their turn."""
    return isinstance(error, KeyboardInterrupt) and current_thread() is main_thread()


def _adapted(made: AssembledRows, task: BatchTask, adapter: BatchAdapter | None) -> AssembledRows:
    """Return a batch in the types of the framework; single rows, and rows under a lazy filter, are converted later."""
    if not (adapter is None or task.query.lazy or task.query.size is None):
        with task.window_reader.meter.busy(HAND_OVER):
            made.columns = adapter.batch(made.columns)
    return made


class BatchStream:
    """Returns the batches, or rows, of an iteration to the consumer.

    Attributes:
        next: Returns the next batch, or row; raises StopIteration at the end.
        delivered: How far the consumer is; None before the first batch.
        skipping: What counts bad rows; None where bad rows raise.
    """

    def __init__(
        self,
        steps: Steps,
        pool: ThreadPool,
        adapter: BatchAdapter | None = None,
        *,
        inline: bool,
        may_use_processes: bool = True,
        skipping: SkippedBatches | None = None,
    ) -> None:
        """Choose where batches are made: `inline`, if they are nothing but views of windows, on threads or in processes."""
        query, window_reader = steps.query, steps.window_reader
        self._query, self._window_reader, self._adapter, self._steps = query, window_reader, adapter, steps
        self._meter, self.skipping = window_reader.meter, skipping
        self.delivered: Delivered | None = None
        self._rows: AssembledRows | None = None
        self._at = 0
        processes = None
        if may_use_processes and query.workers == "processes":
            processes = ProcessBatches.of(query, window_reader, pool, adapter)
        self._source: BatchSource
        if processes is not None:
            self._source = RemoteBatches(steps, processes)
        else:
            self._source = ViewBatches(steps, adapter) if inline else LocalBatches(steps, pool, adapter)
        self._cut = self._source.cut if isinstance(self._source, ViewBatches) else None
        if query.lazy:
            self._lazy = LazyFilter(query, self.next_rows, self._mapped, processes, self._meter, skipping)
            self.next = self._meter.waited_for(self._next_filtered().__next__)
        else:
            self.next = self._next_row if query.size is None else self._next_batch

    next: Callable[[], dict[str, Any]]

    def select(self, worker: int, workers: int) -> None:
        """Return only batches `worker`, `worker + workers` and so on; to be called before the first."""
        if self._query.lazy:  # which rows are whose is known after the filter
            self.next = self._meter.waited_for(islice(self._next_filtered(), worker, None, workers).__next__)
        else:
            self._steps.select(worker, workers)

    def close(self) -> None:
        """Drop what was read; nothing can be asked for after that."""
        for name in ("_source", "_steps", "_cut"):
            self.__dict__.pop(name, None)
        self._rows, self.next = None, _raise_stop  # a method of this object would keep it alive

    def next_rows(self) -> AssembledRows:
        """Return the next batch as it was made, or some single rows; the time that the consumer waits is counted."""
        with self._meter:
            rows = self._source.next()
            if self.skipping is not None:
                self.skipping.record(rows)
            return rows

    def _next_batch(self) -> dict[str, Any]:
        cut = self._cut() if self._cut is not None else None
        if cut is not None:
            batch, self.delivered = cut
            return batch
        rows = self.next_rows()
        while self.skipping is not None and self.skipping.skips_batch(rows):
            rows = self.next_rows()
        self._meter.surplus += rows.count - self._query.step_rows
        self.delivered = (rows.rank_epoch, rows.stop)
        return rows.columns

    def _next_row(self) -> dict[str, Any]:
        row = None
        skipping = self.skipping
        while row is None:
            while self._rows is None or self._at >= self._rows.count:
                if skipping is not None:
                    skipping.end_rows()
                self._rows, self._at = self.next_rows(), 0
                if skipping is not None:
                    skipping.begin_rows(self._rows)
            rows, at = self._rows, self._at
            row = self._mapped(rows, at)
            self._at += 1
        step = at if rows.selected is None or skipping is None else skipping.step(rows, at)
        self.delivered = (rows.rank_epoch, rows.start + step * rows.every + 1)
        return row

    def _mapped(self, rows: AssembledRows, at: int) -> dict[str, Any] | None:
        """Return one row as the consumer gets it, None if it is bad; maps of single rows run here."""
        if not self._query.maps:
            return self._adapted(rows.row(self._query, at))
        with self._meter, self._meter.busy(MAP):
            try:
                return self._adapted(rows.row(self._query, at))
            except Exception as error:  # of the user's map
                if self.skipping is None or not self.skipping.skips_row(rows, at, error):
                    raise
                return None

    def _adapted(self, row: dict[str, Any]) -> dict[str, Any]:
        return row if self._adapter is None else self._adapter.batch(row)

    def _next_filtered(self) -> Iterator[dict[str, Any]]:
        """Yield the batches, or rows, that pass a lazy filter."""
        for batch, position in self._lazy.batches(self._adapter):
            self.delivered = position
            if batch is not None:
                yield batch


def _raise_stop() -> dict[str, Any]:
    raise StopIteration
