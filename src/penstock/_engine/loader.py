"""The hallway: the one file that knows the order of the rooms, from a question to batches and back to a position."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from penstock._engine import state as states
from penstock._engine.access import columns_of
from penstock._engine.gather import Gather, Gathered
from penstock._engine.leg import Leg, check_rows
from penstock._engine.question import Question
from penstock._engine.table import Planned, Table
from penstock._engine.transform import Batch, apply_map, apply_stack, apply_to_row
from penstock.errors import ArgumentError
from penstock.model import Position

__all__ = ["Batches", "Loader"]

ROWS_AT_ONCE = 256
"""Rows put together at a time where the consumer takes them one by one."""


class Loader:
    """Hands out a dataset's batches, epoch after epoch, to one rank, and can say and take back how far it has come.

    Each `iter()` is the next epoch, also after a `break`; only the first after `load_state_dict` goes on inside one.
    """

    def __init__(self, table: Table, question: Question) -> None:
        """Store the question; nothing is read before it is needed."""
        self._table, self._question = table, question
        self._next = Position()
        self._running: Batches | None = None

    def __iter__(self) -> Batches:
        """Return the batches of the next epoch.

        Raises:
            EmptyDatasetError: If there is nothing, or too little, to hand out.
        """
        batches = Batches(self._table, self._question, self._next)
        check_rows(batches.planned.plan, self._question)
        self._running = batches
        self._next = Position(epoch=batches.start.epoch + 1 if batches.end is None else batches.end)
        return batches

    def __len__(self) -> int:
        """Return the number of batches that the next `iter()` yields.

        Raises:
            TypeError: If it has no length: it repeats without end, or filters on the fly.
        """
        return len(Batches(self._table, self._question, self._next))

    def set_epoch(self, epoch: int) -> None:
        """Make the next `iter()` begin this epoch.

        Raises:
            ArgumentError: If the epoch is negative.
        """
        if epoch < 0:
            msg = f"set_epoch got {epoch}. Epochs count from 0. Give the number of the epoch to begin."
            raise ArgumentError(msg)
        self._running, self._next = None, Position(epoch=epoch)

    def state_dict(self) -> states.State:
        """Return how far the reading has come, as JSON can hold it."""
        return self._told(self._next if self._running is None else self._running.position)

    def state_at(self, step: int) -> states.State:
        """Return the state after `step` batches of the iteration that runs, whatever has been fetched ahead.

        Steps count from where the iteration began: the start of an epoch, or the state that was loaded.

        Raises:
            ArgumentError: If the iteration has not so many steps.
        """
        batches = Batches(self._table, self._question, self._next) if self._running is None else self._running
        return self._told(batches.position_at(step))

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go on where a state says: that of any rank, or a list of those of all ranks in the order of ranks.

        Raises:
            StateError: If the state is damaged, or was saved over another table, order or question.
        """
        plan = self._table.plan(self._question).plan
        position = states.load(state, plan, seed=self._question.seed, ranks=self._question.world_size)
        self._running, self._next = None, position

    def _told(self, position: Position) -> states.State:
        question, plan = self._question, self._table.plan(self._question).plan
        alike = question.world_size == 1 or not (question.lazy or question.ending == "uneven")
        return states.dump(plan, position, seed=question.seed, alike=alike)


class Batches:
    """The batches of one iteration: an iterator that knows its position."""

    def __init__(self, table: Table, question: Question, start: Position) -> None:
        """Plan and deal; no data is read before the first `next`."""
        self.planned: Planned = table.plan(question)
        self._question = question
        self.start = start
        self.end = None if question.epochs is None else (start.epoch // question.epochs + 1) * question.epochs
        self._first = self._leg(start)
        self.position = self._at_once()
        columns = columns_of(table, question)
        self._gather = Gather(self.planned.reader, self.planned.plan, columns, row_ids=question.row_ids)
        self._feed = self._fed()
        self._failed: BaseException | None = None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Return itself."""
        return self

    def __next__(self) -> dict[str, Any]:
        """Return the next batch, or row; what went wrong once is raised again by every further call."""
        if self._failed is not None:
            raise self._failed
        try:
            return next(self._feed)
        except BaseException as error:
            self._failed = error
            raise

    def __len__(self) -> int:
        """Return the number of batches, or rows, of the whole iteration.

        Raises:
            TypeError: If it has no length: it repeats without end, or filters on the fly.
        """
        if self._question.lazy:
            msg = "A dataset with a lazy filter has no length before it is read. Leave lazy=True out to count rows first."
            raise TypeError(msg)
        if self.end is None:
            msg = "A dataset that repeats without end has no length. Give .repeat() a number of epochs."
            raise TypeError(msg)
        return sum(len(leg.schedule) for leg in self._legs())

    @property
    def units_read(self) -> int:
        """How often a unit has been read so far."""
        return self._gather.units_read

    def position_at(self, step: int) -> Position:
        """Return the position after `step` batches.

        Raises:
            ArgumentError: If the iteration has not so many, or nobody can know how many rows they need.
        """
        if self._question.lazy:
            msg = "state_at cannot tell how many rows a lazy filter passes. Use state_dict(), or leave lazy=True out."
            raise ArgumentError(msg)
        left = step
        for leg in self._legs():
            if 0 <= left <= len(leg.schedule):
                return leg.after(left)
            left -= len(leg.schedule)
        msg = f"state_at got step {step}. This iteration has {len(self)} steps. Give a number from 0 to that."
        raise ArgumentError(msg)

    def close(self) -> None:
        """Stop and let go of everything; a further `next` ends the iteration."""
        self._feed.close()
        self._gather.release()
        self._failed = StopIteration()

    def _at_once(self) -> Position:
        """Return the position before the first batch: dealt anew, or past an epoch that has too little left for a step."""
        if not self._question.lazy and not len(self._first.schedule):
            return Position(epoch=self.start.epoch + 1)
        return self._first.position if self.start.deals else self.start

    def _leg(self, position: Position) -> Leg:
        return Leg(self.planned.plan, self.planned.shuffle, self._question, position)

    def _legs(self) -> Iterator[Leg]:
        """Yield what is left of the first epoch, then the whole epochs after it."""
        yield self._first
        epoch = self.start.epoch + 1
        while self.end is None or epoch < self.end:
            yield self._leg(Position(epoch=epoch))
            epoch += 1

    def _fed(self) -> Generator[dict[str, Any]]:
        """Yield everything, keeping the position in step with what has been handed out."""
        for leg in self._legs():
            self._gather.begin(leg.epoch, leg.lanes_in_turn)
            if self._question.lazy:
                yield from self._filtered(leg)
            elif self._question.size is None:
                yield from self._rows(leg)
            else:
                yield from self._batches(leg)
            self.position = Position(epoch=leg.position.epoch + 1)
        self._gather.release()

    def _batches(self, leg: Leg) -> Iterator[dict[str, Any]]:
        for step in range(len(leg.schedule)):
            draw = leg.schedule.draw(step)
            rows = self._gather.rows(draw.stretches)
            if draw.size > len(rows.places):
                rows = rows.take(np.minimum(np.arange(draw.size), len(rows.places) - 1))
            batch = self._finished(rows, leg, valid=draw.valid)
            self.position = leg.after(step + 1)
            yield batch

    def _rows(self, leg: Leg) -> Iterator[dict[str, Any]]:
        for first in range(0, len(leg.schedule), ROWS_AT_ONCE):
            last = min(first + ROWS_AT_ONCE, len(leg.schedule))
            stretches = leg.hand.stretches(leg.schedule.consumed(first), leg.schedule.consumed(last))
            rows = self._gather.rows(stretches)
            for at in range(last - first):
                row = self._finished_row(rows, at, leg)
                self.position = leg.after(first + at + 1)
                yield row

    def _filtered(self, leg: Leg) -> Iterator[dict[str, Any]]:
        """Yield batches, or rows, of those rows that pass a filter which nobody has run before."""
        size = self._question.size
        held, used = Gathered.none(), np.zeros(0, dtype=np.int64)
        for step in range(len(leg.schedule)):
            start = leg.schedule.consumed(step)
            rows = self._gather.rows(leg.schedule.draw(step).stretches)
            passed = np.flatnonzero(rows.passed) if rows.passed is not None else np.arange(len(rows.places))
            held, used = held.followed(rows.take(passed)), np.concatenate([used, start + 1 + passed])
            while len(used) >= (size if isinstance(size, int) else 1):
                count = size if isinstance(size, int) else len(used) if size == "row_group" else 1
                yield self._handed(held.cut(0, count), leg, int(used[count - 1]))
                held, used = held.cut(count, len(used)), used[count:]
        if len(used) and self._question.ending == "uneven":
            yield self._handed(held, leg, leg.hand.num_rows)

    def _handed(self, rows: Gathered, leg: Leg, consumed: int) -> dict[str, Any]:
        """Return a filtered batch, or row, having noted how many rows were consumed for it."""
        if self._question.size is None:
            made = self._finished_row(rows, 0, leg)
        else:
            made = self._finished(rows, leg, valid=len(rows.places))
        deal = replace(leg.position.deals[-1], rows=consumed)
        self.position = Position(epoch=leg.position.epoch, deals=(*leg.position.deals[:-1], deal))
        return made

    def _finished(self, rows: Gathered, leg: Leg, *, valid: int) -> Batch:
        """Return rows as the consumer gets them: stacked, marked and mapped."""
        question, batch = self._question, rows.columns
        for stack in question.stacks:
            batch = apply_stack(stack, batch)
        marks = {"_valid": np.arange(len(rows.places)) < valid} if question.ending == "pad" else {}
        batch = {**batch, **marks}
        for step in question.maps:
            resize = question.size == "row_group"
            made = apply_map(step, batch, rows.places, (question.seed, leg.position.epoch), resize=resize)
            batch = {**made, **{name: mark for name, mark in marks.items() if name not in made}}
        return batch

    def _finished_row(self, rows: Gathered, at: int, leg: Leg) -> dict[str, Any]:
        """Return one row as the consumer gets it."""
        question = self._question
        batch = rows.cut(at, at + 1).columns
        for stack in question.stacks:
            batch = apply_stack(stack, batch)
        row = {name: values[0] for name, values in batch.items()}
        for step in question.maps:
            row = apply_to_row(step, row, int(rows.places[at]), (question.seed, leg.position.epoch))
        return row
