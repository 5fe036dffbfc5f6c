"""The hallway: the one file that knows the order of the rooms, from a question to batches and back to a position."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, Self

from penstock._engine.deliver.batches import Stream
from penstock._engine.deliver.iteration import Course
from penstock._engine.deliver.mixture import Mixed, MixedGather, MixedPlan, opened_mixture
from penstock._engine.deliver.skipped import LeftOut, SkippedRow, Skips
from penstock._engine.deliver.small_batches import Tempo
from penstock._engine.lookup.access import wanted
from penstock._engine.order import state as states
from penstock._engine.order.rank_epoch import check_rows
from penstock._engine.plan.table import Planned, Table
from penstock._engine.query.adapter import HandOver
from penstock._engine.query.query import Question
from penstock._engine.query.values import MEMORY_LIMIT
from penstock._engine.runtime.stats import Stats
from penstock._engine.runtime.threads import PATIENCE, Pool, default_threads
from penstock._engine.runtime.timers import Meter
from penstock._engine.window.reader import Gather
from penstock._engine.window.sequences import gathering
from penstock.errors import ArgumentError
from penstock.model import Position

__all__ = ["Batches", "Loader"]


class Loader:
    """Hands out a dataset's batches, epoch after epoch, to one rank, and can say and take back how far it has come.

    Each `iter()` is the next epoch, also after a `break`; only the first after `load_state_dict` goes on inside one.
    """

    def __init__(self, table: Table | Mixed, question: Question, hand_over: HandOver | None = None) -> None:
        """Store the question, and what its batches are turned into; nothing is read before it is needed."""
        self._table, self._question, self._hand_over = table, question, hand_over
        self._next = Position()
        self._running: Course | None = None
        self._overtaken = 0
        self._skips = Skips(question)
        self._tempo: Tempo | None = None
        self._counted: tuple[Stats, tuple[tuple[Meter, Course], ...]] = (Stats(), ())
        self._turn = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy needs, in this process or another: it begins where the next `iter()` would."""
        return {"table": self._table, "question": self._question, "hand_over": self._hand_over, "next": self._next}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begin as a copy."""
        self.__init__(state["table"], state["question"], state["hand_over"])  # type: ignore[misc] # it is none yet
        self._next = state["next"]

    def __iter__(self) -> Batches:
        """Return the batches of the next epoch.

        Raises:
            EmptyDatasetError: If there is nothing, or too little, to hand out.
        """
        self._table.expect_again()  # or why a loader
        with self._turn:  # of two threads that ask at once, each has an epoch of its own
            batches = Batches(self._table, self._question, self._next, self._hand_over, self._skips, self._tempo)
            check_rows(batches.planned.plan, self._question)
            # The iteration itself is not kept: after a `break` it ends, and its threads with it.
            self._begin(batches.course)
            self._tempo = batches.tempo
            self._count(batches.meter, batches.course)
        return batches

    def begin(self) -> Course:
        """Return the way of the next iteration for somebody else to go, who counts what is handed out: of other processes.

        Raises:
            EmptyDatasetError: If there is nothing, or too little, to hand out.
        """
        course = self.coming
        check_rows(course.planned.plan, self._question)
        self._begin(course)
        return course

    def _begin(self, course: Course) -> None:
        self._running, self._overtaken = course, 0
        self._next = Position(epoch=course.start.epoch + 1 if course.end is None else course.end)

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
        plan = self._table.plan(self._question).plan
        position = states.load(state, plan, self._question)
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
        for meter, course in runs:
            past = course.stats(meter).plus(past)
        return past

    def _count(self, meter: Meter, course: Course) -> None:
        """Count one more iteration; of those that have ended only the sums are kept."""
        past, runs = self._counted
        for each, way in runs:
            past = way.stats(each).plus(past) if each.ended else past
        # Stored in one go, for whoever asks meanwhile.
        self._counted = past, (*(run for run in runs if not run[0].ended), (meter, course))

    @property
    def coming(self) -> Course:
        """The iteration that the next `iter()` begins."""
        return Course(self._table.plan(self._question), self._question, self._next)

    def _told(self, position: Position) -> states.State:
        return _told(self._table.plan(self._question), self._question, position)


class Batches:
    """The batches of one iteration: an iterator that knows its position.

    Its threads end with it: at its end, when it is closed or collected, or when something goes wrong.
    """

    def __init__(
        self,
        table: Table | Mixed,
        question: Question,
        start: Position,
        hand_over: HandOver | None = None,
        skips: Skips | None = None,
        before: Tempo | None = None,
    ) -> None:
        """Plan and deal; no data is read before the first `next`. It goes on as an iteration before it did."""
        if question.epochs != 1:
            table.expect_again()
        self.planned: Planned | MixedPlan = table.plan(question)
        self._question, self.start = question, start
        self.course = Course(self.planned, question, start)
        self._pool = Pool(question.threads or default_threads())
        self.meter = Meter(threads=self._pool.threads)
        self._gather, self._stream = _opened(table, self.course, question, self._pool, self.meter, hand_over)
        self.tempo = self._stream.tempo = Tempo(before=before)
        self._skips = skips or Skips(question)
        if question.skip is not None and isinstance(self.planned, Planned):
            self._stream.left_out = LeftOut(question, self._skips.of(self.planned.plan, self.planned.reader.filesystem))
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
        course, stream = self.course, self._stream
        try:
            made = stream.next()
        except BaseException as error:
            if isinstance(error, StopIteration) and self._failed is None:
                course.finish()
            # An end that is kept would keep all that its traceback leads to: the functions that wait, and their variables.
            self._failed = StopIteration if isinstance(error, StopIteration) else error
            self.meter.end()
            # Whoever interrupts does not want to wait for the functions that run.
            self._pool.close(0.0 if isinstance(error, KeyboardInterrupt) else PATIENCE)
            stream.close()
            raise
        if stream.left_out.steps:
            course.left_out += [course.handed] * stream.left_out.steps
            stream.left_out.steps = 0
        course.handed += 1
        course.at = stream.handed
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
        return len(self.course)

    @property
    def units_read(self) -> int:
        """How often a unit has been read so far."""
        return self._gather.units_read

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
        return self.course.stats(self.meter)

    def state_dict(self) -> states.State:
        """Return how far it has come, as JSON can hold it."""
        return _told(self.planned, self._question, self.course.position)

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


def _told(planned: Planned | MixedPlan, question: Question, position: Position) -> states.State:
    """Return a position as a state."""
    alike = question.world_size == 1 or not (question.lazy or question.ending == "uneven")
    return states.dump(planned.plan, position, question, alike=alike)


def _opened(
    table: Table | Mixed, course: Course, question: Question, pool: Pool, meter: Meter, hand_over: HandOver | None
) -> tuple[Gather | MixedGather, Stream]:
    """Return what reads, and what makes batches of it."""
    planned = course.planned
    if isinstance(table, Mixed):
        assert isinstance(planned, MixedPlan)  # noqa: S101 - a mixture's own
        return opened_mixture(table, planned, question, pool, meter, course.legs(), hand_over)
    assert isinstance(planned, Planned)  # noqa: S101 - a table's own
    limit = question.memory_limit or MEMORY_LIMIT
    framework = hand_over is not None
    asked = replace(wanted(table, question, as_numbers=framework), writable=framework, memory_limit=limit)
    gather = gathering(planned.reader, planned.plan, asked, pool, meter)
    return gather, Stream(gather, pool, question, course.legs(), hand_over)
