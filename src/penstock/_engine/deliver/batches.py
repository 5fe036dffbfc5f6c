"""Batches and rows as the consumer gets them, made on threads and handed out in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from penstock._engine.batch.assemble import AssembledRows
from penstock._engine.batch.bad_rows import BatchTask, map_good_rows
from penstock._engine.decode.bad_cells import ROW_CODE
from penstock._engine.deliver.skipped import SkippedBatches
from penstock._engine.deliver.small_batches import SMALL, Made, Pace, Run, Tempo, can_run, finished
from penstock._engine.order.rank_epoch import RankEpoch
from penstock._engine.processes.batches import ProcessBatches
from penstock._engine.query.adapter import BatchAdapter
from penstock._engine.query.query import Query
from penstock._engine.query.values import MEMORY_LIMIT
from penstock._engine.runtime.interruptible import wait_for_one
from penstock._engine.runtime.threads import Priority, ThreadPool, result_of
from penstock._engine.runtime.timers import MAP
from penstock._engine.window.prefetch import EpochPrefetcher, Prefetcher, windows_ahead
from penstock._engine.window.reader import PASSED, WindowReader
from penstock.errors import EmptyDatasetError
from penstock.model import Position

__all__ = ["MEMORY_LIMIT", "BatchStream"]

ROWS_AT_ONCE = 256
"""Rows put together at a time where the consumer takes them one by one."""


class BatchStream:
    """Makes a question's batches from a position on, and knows how far they have been handed out."""

    def __init__(
        self,
        window_reader: WindowReader,
        pool: ThreadPool,
        query: Query,
        rank_epochs: Iterator[RankEpoch],
        adapter: BatchAdapter | None = None,
    ) -> None:
        """Store the question; nothing is read before the first `next`."""
        self._window_reader, self._pool, self._query, self._route = window_reader, pool, query, EpochPrefetcher(rank_epochs)
        self._adapter, self._meter = adapter, window_reader.meter
        self._queue: deque[Future[Any] | Made] = deque()
        self._made: deque[AssembledRows | BaseException] = deque()
        self.tempo = Tempo()
        self._pace = Pace(
            turns=all(column.codec is None for column in window_reader.deferred)
        )  # what a codec decodes takes long
        self._rank_epoch: RankEpoch | None = None
        self._prefetcher: Prefetcher | None = None
        self._step = self._at = 0
        self._chunk: AssembledRows | None = None
        self.handed: tuple[RankEpoch, int] | Position | None = None
        self._told_any = False
        # What only cuts views of a window is not worth a task.
        self._inline, self._here = not (window_reader.deferred or query.maps), False
        self._largest = window_reader.dense_bytes * (query.size if isinstance(query.size, int) else ROWS_AT_ONCE)
        self._elsewhere = ProcessBatches.of(query, window_reader, pool, adapter)
        self._plain = self._inline and isinstance(query.size, int) and query.ending != "pad"
        self._runs = self._elsewhere is None and can_run(query, window_reader)
        self._size = query.size if isinstance(query.size, int) else 1
        self._full = 0
        self._worker, self._workers, self._number = 0, 1, 0
        self.left_out = SkippedBatches(query)
        self.next = self._chosen()

    def only(self, worker: int, workers: int) -> None:
        """Hand out no more than batches `worker`, `worker + workers` and so on; called before the first."""
        if self._query.lazy:  # whose rows are anybody's until the filter has run
            self.next = self._meter.waited_for(islice(self._filtered(), worker, None, workers).__next__)
        else:
            self._worker, self._workers, self._runs = worker, workers, self._runs and workers == 1

    def close(self) -> None:
        """Let go of what was read; nothing may be asked for after that."""
        self._queue.clear()
        self._made.clear()
        self._prefetcher = self._chunk = None
        self._route = EpochPrefetcher(iter(()))
        self.next = _nothing  # a method of its own would keep it alive

    def _chosen(self) -> Callable[[], dict[str, Any]]:
        """Return the function that makes what comes next: a batch, or a row."""
        if self._query.lazy:
            return self._meter.waited_for(self._filtered().__next__)
        return self._next_row if self._query.size is None else self._next_batch

    def _next_batch(self) -> dict[str, Any]:
        if self._made and self._runs:  # nobody waits for those
            chunk = self._made[0]
            if isinstance(chunk, AssembledRows):
                del self._made[0]
                self._meter.surplus += chunk.count - self._size
                self.handed = (chunk.rank_epoch, chunk.stop)
                return chunk.columns
        rank_epoch, prefetcher = self._rank_epoch, self._prefetcher
        while self._plain and rank_epoch is not None and prefetcher is not None and self._step < self._full:
            if self._query.skip is not None and self._window_reader.troubles:
                break  # of which some may be in this window
            views = prefetcher.views(self._size)
            if views is None:
                break
            self._step += 1
            if self._is_mine():
                self.handed = (rank_epoch, self._step)
                views.pop(ROW_CODE, None)
                return views
        chunk = self._next_chunk()
        while self.left_out.skips_batch(chunk):
            chunk = self._next_chunk()
        self._meter.surplus += chunk.count - self._size
        self.handed = (chunk.rank_epoch, chunk.stop)
        return chunk.columns

    def _next_row(self) -> dict[str, Any]:
        row = None
        while row is None:
            while self._chunk is None or self._at >= self._chunk.count:
                self.left_out.end_rows()
                self._chunk, self._at = self._next_chunk(), 0
                self.left_out.begin_rows(self._chunk)
            chunk, at = self._chunk, self._at
            row = self._row(chunk, at)
            self._at += 1
        step = at if chunk.kept is None else self.left_out.step(chunk, at)
        self.handed = (chunk.rank_epoch, chunk.start + step * chunk.every + 1)
        return row

    def _row(self, chunk: AssembledRows, at: int) -> dict[str, Any] | None:
        """Return one row as the consumer gets it, None if it is bad; maps of single rows are run here, while it waits."""
        if not self._query.maps:
            return self._handed_over(chunk.row(self._query, at))
        with self._meter, self._meter.busy(MAP):
            try:
                return self._handed_over(chunk.row(self._query, at))
            except Exception as error:  # of the user's
                if not self.left_out.skips_row(chunk, at, error):
                    raise
                return None

    def _is_mine(self) -> bool:
        """Return whether the next batch is one of those to hand out."""
        self._number += 1
        return (self._number - 1) % self._workers == self._worker

    def _handed_over(self, made: dict[str, Any]) -> dict[str, Any]:
        return made if self._adapter is None else self._adapter.batch(made)

    def _next_chunk(self) -> AssembledRows:
        """Return the next rows that were put together; the clock of what the consumer waits runs meanwhile."""
        with self._meter:
            chunk = self._awaited_chunk()
            self.left_out.record(chunk)
            return chunk

    def _awaited_chunk(self) -> AssembledRows:
        """Return the next rows that were put together, and begin to put together the ones after them."""
        if self._made:
            return self._taken()
        most = self._pool.threads + 1 if self._elsewhere is None else self._elsewhere.most
        most = (
            1 if self._inline else min(2 if self.tempo.together > SMALL else most, -(-self._affordable // self.tempo.together))
        )
        self._here = self._elsewhere is None and not self._inline and self.tempo.is_here(small=self.tempo.together > SMALL)
        most = 1 if self._here else most
        while len(self._queue) < most and self._begin(wait=not self._queue):
            pass
        if not self._queue:
            raise StopIteration
        found = self._queue.popleft()
        if isinstance(found, Future):
            self._begin_meanwhile(found, most - 1)
            with self._meter.blocked:
                made: AssembledRows | Made = result_of(found)
        else:
            made = found
        if isinstance(made, AssembledRows):  # of another process
            self._made.append(made)
        else:
            self._made.extend(made.chunks)
            self.tempo.note(made, most=max(1, self._affordable // (self._pool.threads + 1)))
        return self._taken()

    def _taken(self) -> AssembledRows:
        """Return the first of the batches that are made."""
        chunk = self._made.popleft()
        if not isinstance(chunk, AssembledRows):
            raise chunk
        if self._runs or len(self._made) < SMALL:  # of many small ones, one or a few tell enough
            self._largest = max(self._largest, sum([getattr(values, "nbytes", 0) for values in chunk.columns.values()]))
        return chunk

    def _begin_meanwhile(self, found: Future[Any], most: int) -> None:
        """Begin to put together what comes into memory while a batch is waited for."""
        while len(self._queue) < most and not found.done():
            coming = self._prefetcher.coming() if self._prefetcher is not None else []
            if not coming:
                return
            with self._meter.blocked:
                wait_for_one([found, *coming])
            while len(self._queue) < most and self._begin(wait=False):
                pass

    @property
    def _affordable(self) -> int:
        """How many batches may be made at once, so that they take no more than a quarter of the memory."""
        return max(1, (self._query.memory_limit or MEMORY_LIMIT) // 4 // max(1, self._largest))

    def _begin(self, *, wait: bool) -> bool:
        """Begin to put together more rows; False where there are none, or none in memory and they are not to be waited for."""
        some: list[BatchTask] = []
        run = self._run(self.tempo.together)
        begun = run is not None or self._drawn(some, wait=wait)
        alone = self._inline or self._elsewhere is not None or self._query.size is None
        for made in range(1, self.tempo.together if begun and run is None and not alone else 0):
            run = self._run(self.tempo.together - made)
            if run is not None or not self._drawn(some, wait=False):
                break
        task, here = partial(finished, some, run, self._adapter, self._pace), self._inline or self._here
        if (some or run) and not here:
            self._queue.append(self._pool.submit(Priority.FINISH, task))
        if begun and self._prefetcher is not None:
            self._route.read_ahead(self._prefetcher, self._feed_of)  # after that, so that reading takes no thread from it
        if (some or run) and here:
            self._queue.append(task())
        return begun

    def _run(self, most: int) -> Run | None:
        """Take the rows of the next batches, as far as they lie whole in the window that is held; None where none do."""
        rank_epoch, prefetcher = self._rank_epoch, self._prefetcher
        if not self._runs or rank_epoch is None or prefetcher is None or self._step >= self._full:
            return None
        found = prefetcher.run(self._size, min(most, self._full - self._step))
        if found is None:
            return None
        (buffer, start, place, count), step = found, self._step
        self._step += count
        query, window_reader, size = self._query, self._window_reader, self._size
        return Run(
            query=query,
            window_reader=window_reader,
            rank_epoch=rank_epoch,
            buffer=buffer,
            start=start,
            place=place,
            step=step,
            count=count,
            size=size,
        )

    def _drawn(self, some: list[BatchTask], *, wait: bool) -> bool:
        """Take the rows of the next batch, and add how they are finished; False where none are to be had."""
        if not self._on_a_leg():
            return False
        rank_epoch, prefetcher, start = self._rank_epoch, self._prefetcher, self._step
        assert rank_epoch is not None  # noqa: S101 - that was asked
        assert prefetcher is not None  # noqa: S101 - made with the leg
        single = self._query.size is None
        stop = min(start + ROWS_AT_ONCE * self._workers, len(rank_epoch.schedule)) if single else start + 1
        draw = rank_epoch.schedule.draw(start) if stop == start + 1 else None
        first, last = (
            (draw.start, draw.stop) if draw else (rank_epoch.schedule.consumed(start), rank_epoch.schedule.consumed(stop))
        )
        if not wait and not prefetcher.ready(first, last):
            return False
        rows = prefetcher.rows(first, last, draw.fill if draw else ())
        self._step = stop
        mine = self._share(stop - start) if single else 0 if self._is_mine() else None
        if mine is not None:
            steps = range(start + mine, stop, self._workers if single else 1)
            if self._elsewhere is not None:
                self._queue.append(self._elsewhere.finish(rank_epoch, draw, rows, steps))
            else:
                query, window_reader = self._query, self._window_reader
                some.append(
                    BatchTask(
                        query=query, window_reader=window_reader, rank_epoch=rank_epoch, draw=draw, rows=rows, steps=steps
                    )
                )
        return True

    def _share(self, rows: int) -> int | None:
        """Return which of the next single rows is the first to hand out; None where they are all those of others."""
        first = (self._worker - self._number) % self._workers
        self._number += rows
        return first if first < rows else None

    def _on_a_leg(self) -> bool:
        """Go on to a leg that has steps left; False where there is none."""
        while self._rank_epoch is None or self._step >= len(self._rank_epoch.schedule):
            self._rank_epoch, self._prefetcher = self._route.next(self._feed_of) or (None, None)
            if self._rank_epoch is None:
                return False
            self._step = 0
            self._full = min(
                len(schedule := self._rank_epoch.schedule), (self._rank_epoch.shard.num_rows - schedule.start) // self._size
            )
        return True

    def _feed_of(self, rank_epoch: RankEpoch) -> Prefetcher:
        """Return what reads the rows of a leg."""
        ahead = windows_ahead(self._query, self._pool)
        limit = self._query.memory_limit or MEMORY_LIMIT
        return Prefetcher(self._window_reader, rank_epoch, ahead=ahead, memory_limit=limit, adapter=self._adapter)

    def _filtered(self) -> Iterator[dict[str, Any]]:
        """Yield batches, or rows, of those rows that pass a filter which nobody has run before."""
        for chunk, position in self._mapped(self._regrouped()):
            if chunk is None:
                self.handed = position
            elif self._query.size is None:
                for at in range(chunk.count):
                    row = self._row(chunk, at)
                    self.handed = position if at == chunk.count - 1 else _after(chunk, at)
                    if row is not None:
                        yield row
            elif self.left_out.skips_batch(chunk, record=True):
                self.handed = position
            else:
                self._meter.surplus += chunk.count - self._size
                self.handed = position
                yield chunk.columns

    def _mapped(
        self, regrouped: Iterator[tuple[AssembledRows | None, Position]]
    ) -> Iterator[tuple[AssembledRows | None, Position]]:
        """Yield regrouped rows as the consumer gets them; where other processes map them, some are begun ahead."""
        queue: deque[tuple[Future[AssembledRows] | AssembledRows | None, Position]] = deque()
        most = self._elsewhere.most if self._elsewhere is not None and self._query.maps else 1
        failed: Exception | None = None
        while True:
            while len(queue) < most and failed is None:
                try:
                    chunk, position = next(regrouped)
                except Exception as error:  # noqa: BLE001 - raised when what comes before it has been handed out
                    failed = error
                else:
                    queue.append((None if chunk is None else self._map(chunk), position))
            if not queue:
                break
            found, position = queue.popleft()
            if isinstance(found, Future):
                with self._meter, self._meter.blocked:
                    found = result_of(found)
            yield found, position
        if failed is not None and not isinstance(failed, StopIteration):
            raise failed

    def _map(self, chunk: AssembledRows) -> Future[AssembledRows] | AssembledRows:
        """Return regrouped rows as the consumer gets them; single rows are mapped when they are handed out."""
        if self._elsewhere is not None and self._query.maps:
            return self._elsewhere.map(chunk)
        if self._query.size is None:
            return chunk
        with self._meter, self._meter.busy(MAP):
            chunk = map_good_rows(self._query, chunk)
            return replace(chunk, columns=self._handed_over(chunk.columns))

    def _regrouped(self) -> Iterator[tuple[AssembledRows | None, Position]]:
        """Yield rows that pass as the consumer asks for them, and the position after them; at the end of an epoch only that."""
        size, buffer = self._query.size, None
        for chunk in self._passing():
            if buffer is not None and buffer.rank_epoch is not chunk.rank_epoch:
                yield self._ended(buffer)
                buffer = None
                self._check_progress()
            buffer = chunk if buffer is None or not buffer.count else buffer.followed(chunk) if chunk.count else buffer
            while buffer.count >= (size if isinstance(size, int) else 1):
                count = size if isinstance(size, int) else buffer.count
                self._told_any = True
                found, buffer = buffer.picked(slice(0, count)), buffer.picked(slice(count, None))
                ended = not buffer.count and buffer.stop >= len(buffer.rank_epoch.schedule)
                yield found, Position(epoch=buffer.rank_epoch.position.epoch + 1) if ended else _after(found, count - 1)
        if buffer is not None:
            yield self._ended(buffer)

    def _check_progress(self) -> None:
        """Refuse to go on for ever over epochs of which nothing passes."""
        if self._query.epochs is None and not self._told_any:
            msg = (
                "A whole epoch went by without a batch: nothing, or too little, passes the filter "
                f"{self._query.condition!r}. Repeating it without end would never hand out anything. Check the filter."
            )
            raise EmptyDatasetError(msg)

    def _passing(self) -> Iterator[AssembledRows]:
        """Yield chunks less the rows that do not pass."""
        while True:
            try:
                chunk = self._next_chunk()
            except StopIteration:
                return
            used = (
                chunk.rank_epoch.schedule.consumed(chunk.start)
                + 1
                + (np.arange(chunk.count) if chunk.kept is None else chunk.kept)
            )
            # Of rows that are all bad, or do not pass, nothing was put together.
            passed = np.flatnonzero(chunk.columns.pop(PASSED, used[:0]))
            yield replace(chunk, used=used).picked(passed)

    def _ended(self, buffer: AssembledRows) -> tuple[AssembledRows | None, Position]:
        """Return what is left at the end of an epoch, too little for a batch, and the position after it."""
        handed = buffer if buffer.count and self._query.ending == "uneven" else None
        self._told_any = self._told_any or handed is not None
        return handed, Position(epoch=buffer.rank_epoch.position.epoch + 1)


def _after(chunk: AssembledRows, at: int) -> Position:
    """Return the position after a row that has passed a lazy filter."""
    assert chunk.used is not None  # noqa: S101 - a filtered chunk
    assignments = chunk.rank_epoch.position.assignments
    return Position(
        epoch=chunk.rank_epoch.position.epoch,
        assignments=(*assignments[:-1], replace(assignments[-1], rows=int(chunk.used[at]))),
    )


def _nothing() -> dict[str, Any]:
    raise StopIteration
