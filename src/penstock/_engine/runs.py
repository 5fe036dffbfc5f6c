"""Whole batches that follow one another in one window: what is the same for all of them is found out once.

A batch of a few dozen rows is made in some microseconds, and to ask where its rows lie would take as long again.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import current_thread, main_thread
from typing import TypeAlias

from penstock._engine.finish import NOWHERE, Chunk, arranged, mapped
from penstock._engine.gather import Gather, Held, Rows
from penstock._engine.hand_over import HandOver
from penstock._engine.leg import Leg
from penstock._engine.meter import DECODE, HAND_OVER, MAP
from penstock._engine.question import Question
from penstock._engine.transform import Batch
from penstock.errors import DataError

__all__ = ["Run", "Tried", "can_run", "interrupts"]

Tried: TypeAlias = "Chunk | BaseException"
"""A batch, or why there is none, which is raised when its turn comes."""


def can_run(question: Question, gather: Gather) -> bool:
    """Return whether a question's batches can be made so: each by itself, here, and of rows that are all to be handed out."""
    plain = isinstance(question.size, int) and question.ending != "pad"
    return plain and question.skip is None and not question.lazy and type(gather) is Gather


def interrupts(error: BaseException) -> bool:
    """Return whether an error is not of a batch: whoever interrupts the consumer does so now."""
    return isinstance(error, KeyboardInterrupt) and current_thread() is main_thread()


@dataclass(slots=True, kw_only=True, eq=False)
class Run:
    """Some batches of one window, one after the other.

    Attributes:
        question: What is asked.
        gather: What decodes their cells.
        leg: The leg that they are of.
        held: The window.
        start: The first of their rows in it.
        place: Where that stands in the epoch's sequence.
        step: Which step of the leg the first batch is.
        count: How many batches there are.
        size: How many rows each has.
    """

    question: Question
    gather: Gather
    leg: Leg
    held: Held
    start: int
    place: int
    step: int
    count: int
    size: int

    def finished(self, hand_over: HandOver | None) -> list[Tried]:
        """Return the batches as the consumer gets them."""
        made = self._put_together()
        if self.question.maps:
            with self.gather.meter.busy(MAP):
                self._map(made)
        if hand_over is not None:
            with self.gather.meter.busy(HAND_OVER):
                _hand_over(made, hand_over)
        return made

    def _put_together(self) -> list[Tried]:
        """Return the batches as they are before maps."""
        if self.gather.loose:
            texts = self._texts()
            return [self._decoded(number, texts) for number in range(self.count)]
        fixed, size, leg, step = self.held.fixed, self.size, self.leg, self.step
        first = range(self.start, self.start + self.count * size, size)
        return [
            Chunk(
                leg=leg,
                start=step + number,
                stop=step + number + 1,
                columns={name: values[at : at + size] for name, values in fixed.items()},
                count=size,
                places=NOWHERE,
            )
            for number, at in enumerate(first)
        ]

    def _texts(self) -> dict[str, Batch]:
        """Return texts of all batches, made in one step."""
        if self.count == 1 or not self.gather.texts:
            return {}
        whole = Rows(pieces=((self.held, self.start, self.start + self.count * self.size),), places=(0,))
        try:
            with self.gather.meter.busy(DECODE):
                return {column.name: whole.decoded(column, self.gather) for column in self.gather.texts}
        except DataError:
            return {}  # the batch that it is in will tell it

    def _decoded(self, number: int, texts: dict[str, Batch]) -> Tried:
        """Return one of the batches with all its columns decoded."""
        size, begin = self.size, number * self.size
        # As copies: who keeps one batch must not keep the texts of all.
        ready = {
            name: {key: values[begin : begin + size].copy() for key, values in made.items()} for name, made in texts.items()
        }
        at = self.start + begin
        rows = Rows(pieces=((self.held, at, at + size),), places=(0,), ready=ready)
        try:
            columns = arranged(self.question, self.gather, rows.put_together(self.gather))
        except BaseException as error:
            if interrupts(error):
                raise
            return error
        step = self.step + number
        return Chunk(leg=self.leg, start=step, stop=step + 1, columns=columns, count=size, places=NOWHERE)

    def _map(self, made: list[Tried]) -> None:
        """Give batches to the user's functions."""
        question, size, place, epoch = self.question, self.size, self.place, self.leg.position.epoch
        for number, chunk in enumerate(made):
            if isinstance(chunk, Chunk):
                begin = place + number * size
                try:
                    chunk.columns = mapped(question, chunk.columns, range(begin, begin + size), epoch, (size, size))
                except BaseException as error:
                    if interrupts(error):
                        raise
                    made[number] = error


def _hand_over(made: list[Tried], hand_over: HandOver) -> None:
    """Turn batches into the types of a framework."""
    for number, chunk in enumerate(made):
        if isinstance(chunk, Chunk):
            try:
                chunk.columns = hand_over.batch(chunk.columns)
            except BaseException as error:
                if interrupts(error):
                    raise
                made[number] = error
