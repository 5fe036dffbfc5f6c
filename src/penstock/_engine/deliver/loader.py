"""The entry points of reading: from a query to batches, and from batches back to a position.

A `Loader` hands out one epoch after the other. Each `iter()` of it makes `Batches`, the iterator of one iteration. How far an
iteration is, without its threads and data, is an `Iteration`.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from operator import index
from typing import Any, NoReturn, Self, SupportsIndex

from penstock._engine.deliver.batches import BatchStream, Delivered, Steps
from penstock._engine.deliver.mixture import MixturePlan, MixtureReader, MixtureTable, open_mixture
from penstock._engine.deliver.skipped import SkippedBatches, SkippedRow, SkippedRows
from penstock._engine.order import state as states
from penstock._engine.order.shard import RankEpoch
from penstock._engine.plan.table import Planned, Table, check_rows
from penstock._engine.query.query import BatchAdapter, Query, ReadSpec
from penstock._engine.runtime.threads import PATIENCE, ThreadPool, default_threads
from penstock._engine.runtime.timers import Meter
from penstock._engine.window.prefetch import Prefetcher, windows_ahead
from penstock._engine.window.reader import WindowReader
from penstock._engine.window.sequences import SequenceWindowReader
from penstock.errors import ArgumentError
from penstock.model import Position
from penstock.stats import Stats


class Iteration:
    """How far one iteration is. It is arithmetic only, so that it can be kept when the threads are gone.

    Attributes:
        planned: The plan.
        start: The position before the first batch.
        end: The first epoch after it; None if it repeats without end.
        handed: The number of batches, or rows, that were returned.
        at: The position after the last of them; None before the first.
        dropped: For each step whose rows were all bad, the number of batches that were returned before it.
    """

    def __init__(self, planned: Planned | MixturePlan, query: Query, start: Position) -> None:
        """Assign what is left of the first epoch."""
        self.planned, self._query, self.start = planned, query, start
        self.end = None if query.epochs is None else (start.epoch // query.epochs + 1) * query.epochs
        self._first = RankEpoch(planned.plan, planned.shuffle, query, start)
        self.handed = 0
        self.dropped: list[int] = []
        self.at: Delivered | None = None

    @property
    def position(self) -> Position:
        """The position after what has been handed out."""
        at = self.at  # read once: another thread may change it
        if at is None:
            return self._first_position()
        return at[0].after(at[1]) if isinstance(at, tuple) else at

    def finish(self) -> None:
        """Set the position to the end, also if rows after the last batch were dropped by a lazy filter or as bad."""
        if self.end is not None:
            self.at = Position(epoch=self.end)

    def __len__(self) -> int:
        """Return the number of batches, or rows, of the whole iteration."""
        if self._query.lazy:
            msg = "A dataset with a lazy filter has no length before it is read. Leave lazy=True out to count rows first."
            raise TypeError(msg)
        if self.end is None:
            msg = "A dataset that repeats without end has no length. Give .repeat() a number of epochs."
            raise TypeError(msg)
        if self._query.size == "row_group":
            return sum(len(rank_epoch.schedule) for rank_epoch in self.rank_epochs())
        # All epochs after the first have the same length.
        whole = itertools.islice(self.rank_epochs(), 1, 2)
        return len(self._first.schedule) + sum(
            len(rank_epoch.schedule) * (self.end - rank_epoch.position.epoch) for rank_epoch in whole
        )

    def position_at(self, step: Any) -> Position:
        """Return the position after `step` batches."""
        if self._query.lazy:
            msg = "state_at cannot tell how many rows a lazy filter passes. Use state_dict(), or leave lazy=True out."
            raise ArgumentError(msg)
        if not isinstance(step, SupportsIndex) or isinstance(step, bool) or index(step) < 0:
            raise ArgumentError(f"state_at() got step={step!r}; expected a non-negative integer.")
        left = index(step) + sum(before < index(step) for before in self.dropped)
        if left == 0:
            return self._first_position()
        if self.end is None:
            check_rows(self.planned.plan, self._query)  # epochs without a step would be passed for ever
        for rank_epoch in self.rank_epochs():
            if 0 <= left <= len(rank_epoch.schedule):
                return rank_epoch.after(left)
            left -= len(rank_epoch.schedule)
        msg = f"state_at() got step={step}; expected at most {len(self)}, the number of steps of this iteration."
        raise ArgumentError(msg)

    def rank_epochs(self) -> Iterator[RankEpoch]:
        """Yield what is left of the first epoch, then the whole epochs after it."""
        yield self._first
        epoch = self._first.position.epoch + 1
        while self.end is None or epoch < self.end:
            yield RankEpoch(self.planned.plan, self.planned.shuffle, self._query, Position(epoch=epoch))
            epoch += 1

    def stats(self, meter: Meter) -> Stats:
        """Return the statistics of this iteration."""
        return meter.stats(handed=self.handed, size=self._query.step_rows)

    def _first_position(self) -> Position:
        """Return the position before the first batch; an epoch with too few rows left for a step is passed."""
        if not self._query.lazy and not len(self._first.schedule):
            return Position(epoch=self.start.epoch + 1)
        return self._first.position


class ListsSkippedRows:
    """A reader that knows which bad rows it skipped."""

    _skipped: SkippedRows | None

    @property
    def skipped(self) -> tuple[SkippedRow, ...]:
        """The bad rows that were skipped so far, where and why, in their order; at most the first hundred thousand."""
        return () if self._skipped is None else self._skipped.rows

    @property
    def num_skipped(self) -> int:
        """The number of rows that were skipped so far."""
        return 0 if self._skipped is None else self._skipped.count


class Loader(ListsSkippedRows):
    """Hands out a dataset's batches to one rank, epoch after epoch; `state_dict` says how far it is.

    Each `iter()` is the next epoch, also after a `break`; only the first after `load_state_dict` goes on inside an epoch.
    """

    def __init__(self, table: Table | MixtureTable, query: Query, adapter: BatchAdapter | None = None) -> None:
        """Store the query, and what batches are turned into; nothing is read."""
        self._table, self._query, self._adapter = table, query, adapter
        self._next = Position()
        self._running: Iteration | None = None
        self._handed_at_set = 0
        self._skipped = None if query.skip is None else SkippedRows(query)
        self._counted: tuple[Stats, tuple[tuple[Meter, Iteration], ...]] = (Stats(), ())
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy needs, in this process or another: it begins where the next `iter()` would."""
        return {"table": self._table, "query": self._query, "adapter": self._adapter, "next": self._next}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begin as a copy."""
        self.__init__(state["table"], state["query"], state["adapter"])  # type: ignore[misc] # the copy has no state yet
        self._next = state["next"]

    def __iter__(self) -> Batches:
        """Return the batches of the next epoch."""
        self._table.cache_from_first_read()  # a loader is made to read several times
        with self._lock:  # each of several threads has an epoch of its own
            batches = Batches(self._table, self._query, self._next, self._adapter, self._skipped)
            # The batches are not kept here: after a `break` they are collected, and their threads end.
            self._begin(batches.iteration)
            self._count(batches.meter, batches.iteration)
        return batches

    def begin(self) -> Iteration:
        """Return the next iteration for a caller that reads it in other processes, and counts what is handed out."""
        iteration = self.next_iteration
        check_rows(iteration.planned.plan, self._query)
        self._begin(iteration)
        return iteration

    def _begin(self, iteration: Iteration) -> None:
        self._running, self._handed_at_set = iteration, 0
        self._next = Position(epoch=iteration.start.epoch + 1 if iteration.end is None else iteration.end)

    def __len__(self) -> int:
        """Return the number of batches that the next `iter()` yields."""
        return len(self.next_iteration)

    def set_epoch(self, epoch: Any) -> None:
        """Make the next `iter()` begin this epoch; a state loaded inside of the same epoch stays."""
        number = states.checked_epoch(epoch)
        if self._running is None and self._next.epoch == number:
            return
        self._next = Position(epoch=number)
        self._handed_at_set = self._running.handed if self._running is not None else 0

    def state_dict(self) -> states.State:
        """Return how far the reading is, as a JSON-serializable dict."""
        running = self._running
        # An epoch that was set while an iteration runs counts until that iteration goes on.
        goes_on = running is not None and (not self._handed_at_set or running.handed > self._handed_at_set)
        if running is None or not goes_on:
            running = self.next_iteration
        return _state(self._table.plan(self._query), self._query, running.position)

    def state_at(self, step: int) -> states.State:
        """Return the state after `step` batches of the running iteration, whatever was prefetched.

        Steps count from the beginning of the iteration: the start of an epoch, or the state that was loaded.
        """
        position = (self.next_iteration if self._running is None else self._running).position_at(step)
        return _state(self._table.plan(self._query), self._query, position)

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go on from a state: that of any rank, or a list of the states of all ranks in rank order."""
        plan = self._table.plan(self._query).plan
        position = states.load(state, plan, self._query)
        self._running, self._next, self._handed_at_set = None, position, 0

    def stats(self) -> Stats:
        """Return the statistics of all iterations so far: where the time went, and what would make them faster.

        Any thread may ask, at any time, and it costs next to nothing.
        """
        stats, running = self._counted
        for meter, iteration in running:
            stats = iteration.stats(meter).plus(stats)
        return stats

    def _count(self, meter: Meter, iteration: Iteration) -> None:
        """Count one more iteration; those that have ended are summed."""
        stats, running = self._counted
        for each, past in running:
            stats = past.stats(each).plus(stats) if each.ended else stats
        # Assigned at once: another thread may ask at any moment.
        self._counted = stats, (*(run for run in running if not run[0].ended), (meter, iteration))

    @property
    def next_iteration(self) -> Iteration:
        """The iteration that the next `iter()` begins."""
        return Iteration(self._table.plan(self._query), self._query, self._next)


class Batches(ListsSkippedRows):
    """The batches of one iteration: an iterator that knows its position.

    Its threads end with it: at its end, when it is closed or collected, or after an error.
    """

    def __init__(
        self,
        table: Table | MixtureTable,
        query: Query,
        start: Position,
        adapter: BatchAdapter | None = None,
        skipped: SkippedRows | None = None,
    ) -> None:
        """Plan the iteration; no data is read before the first `next`."""
        if query.epochs != 1:
            table.cache_from_first_read()
        self.planned: Planned | MixturePlan = table.plan(query)
        check_rows(self.planned.plan, query)
        self._query, self.start = query, start
        self.iteration = Iteration(self.planned, query, start)
        self._pool = ThreadPool(query.threads or default_threads())
        self.meter = Meter(threads=self._pool.threads)
        self._skipped = skipped or (None if query.skip is None else SkippedRows(query))
        self._window_reader, self._stream = self._open(table, adapter)
        self._ended_by: BaseException | type[StopIteration] | None = None
        self._lock = threading.Lock()
        self._process = os.getpid()

    def _open(
        self, table: Table | MixtureTable, adapter: BatchAdapter | None
    ) -> tuple[WindowReader | MixtureReader, BatchStream]:
        """Return the reader of windows and the stream of batches."""
        planned, query, pool, rank_epochs = self.planned, self._query, self._pool, self.iteration.rank_epochs()
        if isinstance(table, MixtureTable):
            assert isinstance(planned, MixturePlan)  # noqa: S101 - a mixture's own
            return open_mixture(table, planned, query, pool, self.meter, rank_epochs, adapter)
        assert isinstance(planned, Planned)  # noqa: S101 - a table's own
        spec = ReadSpec.of(table.snapshot, query, framework=adapter is not None)
        make = WindowReader if query.sequence is None else SequenceWindowReader
        reader = make(planned.reader, planned.plan, spec, pool, self.meter)
        make_prefetcher = partial(Prefetcher, reader, ahead=windows_ahead(query, pool), memory_limit=query.memory_bytes)
        skipping = None
        if self._skipped is not None:
            skipping = SkippedBatches(query, self._skipped.of(planned.plan, planned.reader.filesystem))
        steps = Steps(query, reader, rank_epochs, make_prefetcher)
        return reader, BatchStream(steps, pool, adapter, inline=not (reader.deferred or query.maps), skipping=skipping)

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> dict[str, Any]:
        """Return the next batch, or row; after an error every further call raises it again."""
        if os.getpid() != self._process:
            msg = (
                f"This iteration was begun in process {self._process}, and its threads are there. "
                f"Begin a new one in process {os.getpid()}."
            )
            raise ArgumentError(msg)
        with self._lock:
            return self._next()

    def _next(self) -> dict[str, Any]:
        if self._ended_by is not None:
            raise self._ended_by
        iteration, stream = self.iteration, self._stream
        try:
            batch = stream.next()
        except BaseException as error:
            if isinstance(error, StopIteration) and self._ended_by is None:
                iteration.finish()
            # A StopIteration that is kept would keep its traceback, with the variables of all functions in it.
            self._ended_by = StopIteration if isinstance(error, StopIteration) else error
            self.meter.end()
            # After an interrupt the user's functions that run are not waited for.
            self._pool.close(0.0 if isinstance(error, KeyboardInterrupt) else PATIENCE)
            stream.close()
            raise
        skipping = stream.skipping
        if skipping is not None and skipping.steps:
            iteration.dropped += [iteration.handed] * skipping.steps
            skipping.steps = 0
        iteration.handed += 1
        iteration.at = stream.delivered
        return batch

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied, or sent to another process."""
        msg = (
            "An iteration can neither be copied nor sent to another process, for its threads are here. Give the loader, or the "
            "dataset, and begin one there; the loader's state_dict() tells where this one is."
        )
        raise ArgumentError(msg)

    def __del__(self) -> None:
        """End the threads."""
        if hasattr(self, "_process"):
            self.close()

    def __len__(self) -> int:
        """Return the number of batches, or rows, of the whole iteration."""
        return len(self.iteration)

    @property
    def units_read(self) -> int:
        """The number of units read from storage."""
        return self._window_reader.units_read

    def stats(self) -> Stats:
        """Return the statistics so far."""
        return self.iteration.stats(self.meter)

    def state_dict(self) -> states.State:
        """Return how far the iteration is, as a JSON-serializable dict."""
        return _state(self.planned, self._query, self.iteration.position)

    def select(self, worker: int, workers: int) -> None:
        """Return only batches `worker`, `worker + workers` and so on; to be called before the first `next`."""
        self._stream.select(worker, workers)

    def close(self) -> None:
        """End the threads and free the memory; a further `next` ends the iteration."""
        self._ended_by = self._ended_by or StopIteration
        self.meter.end()
        self._pool.close()
        # A thread that waits for a batch right now gets none, and closes the stream itself.
        if self._lock.acquire(blocking=False):
            self._stream.close()
            self._lock.release()


def _state(planned: Planned | MixturePlan, query: Query, position: Position) -> states.State:
    """Return a position as a state."""
    alike = query.world_size == 1 or not (query.lazy or query.ending == "uneven")
    return states.dump(planned.plan, position, query, alike=alike)
