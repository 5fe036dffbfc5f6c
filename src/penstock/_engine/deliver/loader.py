"""The hallway: the one file that knows the order of the rooms, from a question to batches and back to a position."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, Self

from penstock._engine.deliver.batches import BatchStream
from penstock._engine.deliver.iteration import Iteration
from penstock._engine.deliver.mixture import MixturePlan, MixtureReader, MixtureTable, opened_mixture
from penstock._engine.deliver.skipped import SkippedBatches, SkippedRow, SkippedRows
from penstock._engine.deliver.small_batches import Tempo
from penstock._engine.lookup.access import read_spec
from penstock._engine.order import state as states
from penstock._engine.order.rank_epoch import check_rows
from penstock._engine.plan.table import Planned, Table
from penstock._engine.query.adapter import BatchAdapter
from penstock._engine.query.query import Query
from penstock._engine.query.values import MEMORY_LIMIT
from penstock._engine.runtime.stats import Stats
from penstock._engine.runtime.threads import PATIENCE, ThreadPool, default_threads
from penstock._engine.runtime.timers import Meter
from penstock._engine.window.reader import WindowReader
from penstock._engine.window.sequences import make_window_reader
from penstock.errors import ArgumentError
from penstock.model import Position

__all__ = ["Batches", "Loader"]


class Loader:
    """Hands out a dataset's batches, epoch after epoch, to one rank, and can say and take back how far it has come.

    Each `iter()` is the next epoch, also after a `break`; only the first after `load_state_dict` goes on inside one.
    """

    def __init__(self, table: Table | MixtureTable, query: Query, adapter: BatchAdapter | None = None) -> None:
        """Store the question, and what its batches are turned into; nothing is read before it is needed."""
        self._table, self._query, self._adapter = table, query, adapter
        self._next = Position()
        self._running: Iteration | None = None
        self._overtaken = 0
        self._skips = SkippedRows(query)
        self._tempo: Tempo | None = None
        self._counted: tuple[Stats, tuple[tuple[Meter, Iteration], ...]] = (Stats(), ())
        self._turn = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy needs, in this process or another: it begins where the next `iter()` would."""
        return {"table": self._table, "query": self._query, "adapter": self._adapter, "next": self._next}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begin as a copy."""
        self.__init__(state["table"], state["query"], state["adapter"])  # type: ignore[misc] # it is none yet
        self._next = state["next"]

    def __iter__(self) -> Batches:
        """Return the batches of the next epoch.

        Raises:
            EmptyDatasetError: If there is nothing, or too little, to hand out.
        """
        self._table.expect_again()  # or why a loader
        with self._turn:  # of two threads that ask at once, each has an epoch of its own
            batches = Batches(self._table, self._query, self._next, self._adapter, self._skips, self._tempo)
            check_rows(batches.planned.plan, self._query)
            # The iteration itself is not kept: after a `break` it ends, and its threads with it.
            self._begin(batches.iteration)
            self._tempo = batches.tempo
            self._count(batches.meter, batches.iteration)
        return batches

    def begin(self) -> Iteration:
        """Return the way of the next iteration for somebody else to go, who counts what is handed out: of other processes.

        Raises:
            EmptyDatasetError: If there is nothing, or too little, to hand out.
        """
        iteration = self.coming
        check_rows(iteration.planned.plan, self._query)
        self._begin(iteration)
        return iteration

    def _begin(self, iteration: Iteration) -> None:
        self._running, self._overtaken = iteration, 0
        self._next = Position(epoch=iteration.start.epoch + 1 if iteration.end is None else iteration.end)

    def __len__(self) -> int:
        """Return the number of batches that the next `iter()` yields.

        Raises:
            TypeError: If it has no length: it repeats without end, or filters on the fly.
        """
        return len(self.coming)

    def set_epoch(self, epoch: Any) -> None:
        """Make the next `iter()` begin this epoch; a state loaded inside of the same epoch stays.

        Raises:
            ArgumentError: If it is no number from 0 to 2**62 - 1.
        """
        number = states.checked_epoch(epoch)
        if self._running is None and self._next.epoch == number:
            return
        self._next = Position(epoch=number)
        self._overtaken = self._running.handed if self._running is not None else 0

    def state_dict(self) -> states.State:
        """Return how far the reading has come, as JSON can hold it."""
        running = self._running
        # What was set while an iteration ran counts until that iteration goes on.
        gone_on = running is not None and (not self._overtaken or running.handed > self._overtaken)
        if running is None or not gone_on:
            running = self.coming
        return self._told(running.position)

    def state_at(self, step: int) -> states.State:
        """Return the state after `step` batches of the iteration that runs, whatever has been fetched ahead.

        Steps count from where the iteration began: the start of an epoch, or the state that was loaded.

        Raises:
            ArgumentError: If the iteration has not so many steps.
        """
        return self._told((self.coming if self._running is None else self._running).position_at(step))

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go on where a state says: that of any rank, or a list of those of all ranks in the order of ranks.

        Raises:
            StateError: If the state is damaged, or was saved over another table, order or question.
        """
        plan = self._table.plan(self._query).plan
        position = states.load(state, plan, self._query)
        self._running, self._next, self._overtaken = None, position, 0

    @property
    def skipped(self) -> tuple[SkippedRow, ...]:
        """The bad rows that were skipped so far, where and why, in the order in which they would have come.

        No more than the first hundred thousand are listed; `num_skipped` counts all of them.
        """
        return self._skips.rows

    @property
    def num_skipped(self) -> int:
        """How many rows have been skipped so far."""
        return self._skips.count

    def stats(self) -> Stats:
        """Return what all iterations of this loader did so far, where their time went, and what would make them faster.

        Any thread may ask, at any time, and it costs next to nothing.
        """
        past, runs = self._counted
        for meter, iteration in runs:
            past = iteration.stats(meter).plus(past)
        return past

    def _count(self, meter: Meter, iteration: Iteration) -> None:
        """Count one more iteration; of those that have ended only the sums are kept."""
        past, runs = self._counted
        for each, way in runs:
            past = way.stats(each).plus(past) if each.ended else past
        # Stored in one go, for whoever asks meanwhile.
        self._counted = past, (*(run for run in runs if not run[0].ended), (meter, iteration))

    @property
    def coming(self) -> Iteration:
        """The iteration that the next `iter()` begins."""
        return Iteration(self._table.plan(self._query), self._query, self._next)

    def _told(self, position: Position) -> states.State:
        return _told(self._table.plan(self._query), self._query, position)


class Batches:
    """The batches of one iteration: an iterator that knows its position.

    Its threads end with it: at its end, when it is closed or collected, or when something goes wrong.
    """

    def __init__(
        self,
        table: Table | MixtureTable,
        query: Query,
        start: Position,
        adapter: BatchAdapter | None = None,
        skips: SkippedRows | None = None,
        before: Tempo | None = None,
    ) -> None:
        """Plan and deal; no data is read before the first `next`. It goes on as an iteration before it did."""
        if query.epochs != 1:
            table.expect_again()
        self.planned: Planned | MixturePlan = table.plan(query)
        self._query, self.start = query, start
        self.iteration = Iteration(self.planned, query, start)
        self._pool = ThreadPool(query.threads or default_threads())
        self.meter = Meter(threads=self._pool.threads)
        self._window_reader, self._stream = _opened(table, self.iteration, query, self._pool, self.meter, adapter)
        self.tempo = self._stream.tempo = Tempo(before=before)
        self._skips = skips or SkippedRows(query)
        if query.skip is not None and isinstance(self.planned, Planned):
            self._stream.left_out = SkippedBatches(query, self._skips.of(self.planned.plan, self.planned.reader.filesystem))
        self._failed: BaseException | type[StopIteration] | None = None
        self._turn = threading.Lock()
        self._process = os.getpid()

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> dict[str, Any]:
        """Return the next batch, or row; what went wrong once is raised again by every further call."""
        if os.getpid() != self._process:
            msg = (
                f"This iteration was begun in process {self._process}, and its threads are there. "
                f"Begin a new one in process {os.getpid()}."
            )
            raise ArgumentError(msg)
        with self._turn:
            return self._handed_out()

    def _handed_out(self) -> dict[str, Any]:
        if self._failed is not None:
            raise self._failed
        iteration, stream = self.iteration, self._stream
        try:
            made = stream.next()
        except BaseException as error:
            if isinstance(error, StopIteration) and self._failed is None:
                iteration.finish()
            # An end that is kept would keep all that its traceback leads to: the functions that wait, and their variables.
            self._failed = StopIteration if isinstance(error, StopIteration) else error
            self.meter.end()
            # Whoever interrupts does not want to wait for the functions that run.
            self._pool.close(0.0 if isinstance(error, KeyboardInterrupt) else PATIENCE)
            stream.close()
            raise
        if stream.left_out.steps:
            iteration.left_out += [iteration.handed] * stream.left_out.steps
            stream.left_out.steps = 0
        iteration.handed += 1
        iteration.at = stream.handed
        return made

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied, or sent to another process.

        Raises:
            ArgumentError: Always.
        """
        msg = (
            "An iteration can neither be copied nor sent to another process, for its threads are here. Give the loader, or the "
            "dataset, and begin one there; the loader's state_dict() tells where this one is."
        )
        raise ArgumentError(msg)

    def __del__(self) -> None:
        """End the threads."""
        if hasattr(self, "_turn"):
            self.close()

    def __len__(self) -> int:
        """Return the number of batches, or rows, of the whole iteration.

        Raises:
            TypeError: If it has no length: it repeats without end, or filters on the fly.
        """
        return len(self.iteration)

    @property
    def units_read(self) -> int:
        """How often a unit has been read so far."""
        return self._window_reader.units_read

    @property
    def skipped(self) -> tuple[SkippedRow, ...]:
        """The bad rows that were skipped so far, as `Loader.skipped` has them."""
        return self._skips.rows

    @property
    def num_skipped(self) -> int:
        """How many rows have been skipped so far."""
        return self._skips.count

    def stats(self) -> Stats:
        """Return what has been done so far, and where the time went."""
        return self.iteration.stats(self.meter)

    def state_dict(self) -> states.State:
        """Return how far it has come, as JSON can hold it."""
        return _told(self.planned, self._query, self.iteration.position)

    def only(self, worker: int, workers: int) -> None:
        """Hand out no more than batches `worker`, `worker + workers` and so on; called before the first `next`."""
        self._stream.only(worker, workers)

    def close(self) -> None:
        """Stop and let go of everything; a further `next` ends the iteration."""
        self._failed = self._failed or StopIteration
        self.meter.end()
        self._pool.close()
        # A thread that waits for a batch right now has been told that there is none, and lets go of the rest itself.
        if self._turn.acquire(blocking=False):
            self._stream.close()
            self._turn.release()


def _told(planned: Planned | MixturePlan, query: Query, position: Position) -> states.State:
    """Return a position as a state."""
    alike = query.world_size == 1 or not (query.lazy or query.ending == "uneven")
    return states.dump(planned.plan, position, query, alike=alike)


def _opened(
    table: Table | MixtureTable,
    iteration: Iteration,
    query: Query,
    pool: ThreadPool,
    meter: Meter,
    adapter: BatchAdapter | None,
) -> tuple[WindowReader | MixtureReader, BatchStream]:
    """Return what reads, and what makes batches of it."""
    planned = iteration.planned
    if isinstance(table, MixtureTable):
        assert isinstance(planned, MixturePlan)  # noqa: S101 - a mixture's own
        return opened_mixture(table, planned, query, pool, meter, iteration.rank_epochs(), adapter)
    assert isinstance(planned, Planned)  # noqa: S101 - a table's own
    limit = query.memory_limit or MEMORY_LIMIT
    framework = adapter is not None
    asked = replace(read_spec(table, query, as_numbers=framework), writable=framework, memory_limit=limit)
    window_reader = make_window_reader(planned.reader, planned.plan, asked, pool, meter)
    return window_reader, BatchStream(window_reader, pool, query, iteration.rank_epochs(), adapter)
