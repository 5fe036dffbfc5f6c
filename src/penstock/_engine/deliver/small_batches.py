"""Small batches are made together: by one task for several of them, and texts in one step for all.

To hand a task to a thread and its result back costs some hundred microseconds, more than it takes to make a batch of a few
dozen texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import Lock, current_thread, main_thread
from time import perf_counter
from typing import TypeAlias

import numpy as np

from penstock._engine.batch.assemble import NOWHERE, AssembledRows, in_query_order, mapped
from penstock._engine.batch.bad_rows import BatchTask
from penstock._engine.order.rank_epoch import RankEpoch
from penstock._engine.query.adapter import BatchAdapter
from penstock._engine.query.query import Query
from penstock._engine.query.values import Batch
from penstock._engine.runtime.timers import DECODE, HAND_OVER, MAP
from penstock._engine.window.reader import WindowBuffer, WindowReader, WindowRows
from penstock.errors import DataError

__all__ = ["SMALL", "Made", "Pace", "Run", "Tempo", "Tried", "can_run", "finished", "fitting", "interrupts"]

Tried: TypeAlias = "AssembledRows | BaseException"
"""A batch, or why there is none, which is raised when its turn comes."""


def can_run(query: Query, window_reader: WindowReader) -> bool:
    """Return whether a question's batches can be made so: each by itself, here, and of rows that are all to be handed out."""
    plain = isinstance(query.size, int) and query.ending != "pad"
    return plain and query.skip is None and not query.lazy and type(window_reader) is WindowReader


def interrupts(error: BaseException) -> bool:
    """Return whether an error is not of a batch: whoever interrupts the consumer does so now."""
    return isinstance(error, KeyboardInterrupt) and current_thread() is main_thread()


@dataclass(slots=True, kw_only=True, eq=False)
class Run:
    """Some batches of one window, one after the other.

    Attributes:
        query: What is asked.
        window_reader: What decodes their cells.
        rank_epoch: The leg that they are of.
        buffer: The window.
        start: The first of their rows in it.
        place: Where that stands in the epoch's sequence.
        step: Which step of the leg the first batch is.
        count: How many batches there are.
        size: How many rows each has.
    """

    query: Query
    window_reader: WindowReader
    rank_epoch: RankEpoch
    buffer: WindowBuffer
    start: int
    place: int
    step: int
    count: int
    size: int

    def finished(self, adapter: BatchAdapter | None) -> list[Tried]:
        """Return the batches as the consumer gets them."""
        made = self._put_together()
        if self.query.maps:
            with self.window_reader.meter.busy(MAP):
                self._map(made)
        if adapter is not None:
            with self.window_reader.meter.busy(HAND_OVER):
                _adapter(made, adapter)
        return made

    def _put_together(self) -> list[Tried]:
        """Return the batches as they are before maps."""
        if self.window_reader.deferred:
            texts = self._texts()
            return [self._decoded(number, texts) for number in range(self.count)]
        fixed, size, rank_epoch, step = self.buffer.fixed, self.size, self.rank_epoch, self.step
        first = range(self.start, self.start + self.count * size, size)
        return [
            AssembledRows(
                rank_epoch=rank_epoch,
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
        if self.count == 1 or not self.window_reader.texts:
            return {}
        whole = WindowRows(pieces=((self.buffer, self.start, self.start + self.count * self.size),), places=(0,))
        try:
            with self.window_reader.meter.busy(DECODE):
                return {column.name: whole.decoded(column, self.window_reader) for column in self.window_reader.texts}
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
        rows = WindowRows(pieces=((self.buffer, at, at + size),), places=(0,), ready=ready)
        try:
            columns = in_query_order(self.query, self.window_reader, rows.assemble(self.window_reader))
        except BaseException as error:
            if interrupts(error):
                raise
            return error
        step = self.step + number
        return AssembledRows(rank_epoch=self.rank_epoch, start=step, stop=step + 1, columns=columns, count=size, places=NOWHERE)

    def _map(self, made: list[Tried]) -> None:
        """Give batches to the user's functions."""
        query, size, place, epoch = self.query, self.size, self.place, self.rank_epoch.position.epoch
        for number, chunk in enumerate(made):
            if isinstance(chunk, AssembledRows):
                begin = place + number * size
                try:
                    chunk.columns = mapped(query, chunk.columns, range(begin, begin + size), epoch, (size, size))
                except BaseException as error:
                    if interrupts(error):
                        raise
                    made[number] = error


def _adapter(made: list[Tried], adapter: BatchAdapter) -> None:
    """Turn batches into the types of a framework."""
    for number, chunk in enumerate(made):
        if isinstance(chunk, AssembledRows):
            try:
                chunk.columns = adapter.batch(chunk.columns)
            except BaseException as error:
                if interrupts(error):
                    raise
                made[number] = error


TASK = 0.002
"""Seconds that a task should take."""

SMALL = 8
"""Batches of which a task makes more than so many are small: no more than two tasks are begun ahead."""

PATIENCE = 10 * TASK
"""Seconds that a task waits for its turn."""

LONG, SURE = TASK / SMALL, 2
"""Seconds that a batch takes if it takes long, and how many tasks in a row must say so."""

MOST = 32
"""Batches that one task makes at most."""

MEDIUM = 0.003
"""Seconds that a batch takes if it may be made where it is waited for."""

FRESH = 0.25
"""The share of what was seen last in what is expected; the rest is what was seen before, for a machine may have its moments."""

TRIAL, KEPT = 12, 400
"""How often batches are asked for while a way to make them is tried, and until another one is tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What a task has made of some batches.

    Attributes:
        chunks: The batches; where one failed, why.
        seconds: How long it took.
    """

    chunks: list[Tried]
    seconds: float


def fitting(made: Made, before: int) -> int:
    """Return how many batches the next tasks should make, after so many before.

    Example:
        >>> fitting(Made(chunks=[KeyError(), KeyError()], seconds=0.0001), before=2)
        4
    """
    return max(1, min(int(TASK * len(made.chunks) / max(made.seconds, 1e-9)), 2 * before, MOST))


class Pace:
    """Lets tasks follow one another until it is seen that batches take long.

    What takes microseconds is Python, and threads that do it at once take the interpreter from each other after every call
    of a library: two are slower than one.

    Example:
        >>> Pace().run(lambda: Made(chunks=[KeyError()], seconds=1.0)).seconds
        1.0
    """

    def __init__(self, *, turns: bool = True) -> None:
        """Store whether to begin with turns."""
        self._turn, self._slow = Lock(), 0 if turns else SURE

    def run(self, task: Callable[[], Made]) -> Made:
        """Return what a task makes."""
        # Who waits longer than small batches ever take goes on beside those that take long, and may even wait for this one.
        if self._slow >= SURE or not self._turn.acquire(timeout=PATIENCE):
            return task()
        try:
            made = task()
            self._slow = self._slow + 1 if made.seconds > LONG * len(made.chunks) else 0
            return made
        finally:
            self._turn.release()


class Tempo:
    """Says where the next batches are best made: ahead of the consumer by threads, or here, where it waits for them.

    Whoever asks for batches sooner than they are made waits anyway. Small ones are then made here: another thread would have
    to be woken for them, and would share the interpreter with the consumer. With others it depends: what computes in Python
    is made faster here, and what others compute for Python faster by several threads. So both ways are tried in turns, now
    and then, and the faster one is kept.

    Attributes:
        together: How many batches the next task should make.

    Example:
        >>> tempo = Tempo(clock=iter([0.0, 1.0, 9.0]).__next__)
        >>> tempo.note(Made(chunks=[KeyError()], seconds=1.0), most=8)
        >>> tempo.is_here(small=True)
        False
    """

    def __init__(self, clock: Callable[[], float] = perf_counter, before: Tempo | None = None) -> None:
        """Begin with threads, or as an iteration before went on."""
        self._clock, self._since = clock, clock()
        self._seconds = self._each = self._away = 0.0
        self._here = self._waits = False
        self._left, self.together = TRIAL, 1
        if before is not None:
            self._here, left, self.together = before.kept
            self._left = max(TRIAL, left)
        self._took: dict[bool, tuple[float, int]] = dict.fromkeys((False, True), (0.0, 0))

    @property
    def kept(self) -> tuple[bool, int, int]:
        """Where batches are made, for how often that is kept, and how many are made together."""
        return self._here, self._left, self.together

    def note(self, made: Made, most: int) -> None:
        """Note that batches are handed out now, and that no more than `most` may be made together."""
        now, count = self._clock(), len(made.chunks)
        self.together = min(fitting(made, self.together), most)
        if self._waits and self._left < TRIAL - 2:  # those before were begun the other way
            seconds, batches = self._took[self._here]
            self._took[self._here] = (seconds + now - self._since, batches + count)
        self._since, self._each = now, made.seconds / max(1, count)
        self._seconds += (made.seconds - self._seconds) * FRESH

    def is_here(self, *, small: bool) -> bool:
        """Return whether the consumer, which has come back now, should make the next batches by itself."""
        self._away += (self._clock() - self._since - self._away) * FRESH
        self._waits = self._away < self._seconds
        if not self._waits or small or self._each > MEDIUM:
            return self._waits and small
        self._left -= 1
        if self._left == 0:
            self._decide()
        return self._here

    def _decide(self) -> None:
        """Go on in the way that was faster; one that has not been tried for long is tried next."""
        tried = {here: seconds / batches for here, (seconds, batches) in self._took.items() if batches}
        if len(tried) < len(self._took):
            self._here, self._left = not self._here, TRIAL
        else:
            self._here, self._left = tried[True] < tried[False], KEPT
            self._took = dict.fromkeys(self._took, (0.0, 0))


def finished(finishings: Sequence[BatchTask], run: Run | None, adapter: BatchAdapter | None, pace: Pace) -> Made:
    """Return batches as the consumer gets them, those of a run after the others."""

    def finish() -> Made:
        begun = perf_counter()
        chunks = [_outcome(finishing, adapter) for finishing in _with_texts(finishings)] if finishings else []
        if run is not None:
            chunks += run.finished(adapter)
        return Made(chunks=chunks, seconds=perf_counter() - begun)

    return pace.run(finish)


def _outcome(finishing: BatchTask, adapter: BatchAdapter | None) -> Tried:
    try:
        chunk = finishing.run()
        if not (adapter is None or finishing.query.lazy or finishing.query.size is None):
            with finishing.window_reader.meter.busy(HAND_OVER):
                chunk.columns = adapter.batch(chunk.columns)
    except BaseException as error:
        if interrupts(error):
            raise
        return error
    return chunk


def _with_texts(finishings: Sequence[BatchTask]) -> Sequence[BatchTask]:
    """Return batches with their texts made, all in one step, where there are any."""
    query, window_reader = finishings[0].query, finishings[0].window_reader
    rows = [finishing.rows for finishing in finishings]
    if len(rows) == 1 or query.skip is not None or any(type(one) is not WindowRows for one in rows) or not window_reader.texts:
        return finishings
    pieces = _joined(rows)
    whole = WindowRows(pieces=pieces, places=(0,) * len(pieces))
    try:
        with window_reader.meter.busy(DECODE):
            texts = {column.name: whole.decoded(column, window_reader) for column in window_reader.texts}
    except DataError:
        return finishings  # the one that it is in will tell it
    ends = np.cumsum([len(one) for one in rows]).tolist()
    ready = [
        # As copies: who keeps one batch must not keep the texts of all.
        {name: {key: values[end - len(one) : end].copy() for key, values in made.items()} for name, made in texts.items()}
        for one, end in zip(rows, ends, strict=True)
    ]
    return [
        replace(finishing, rows=replace(one, ready=its)) for finishing, one, its in zip(finishings, rows, ready, strict=True)
    ]


def _joined(rows: Sequence[WindowRows]) -> tuple[tuple[WindowBuffer, int, int], ...]:
    """Return the pieces of several, neighbours as one."""
    found: list[tuple[WindowBuffer, int, int]] = []
    for buffer, start, stop in (piece for one in rows for piece in one.pieces):
        if found and found[-1][0] is buffer and found[-1][2] == start:
            found[-1] = (buffer, found[-1][1], stop)
        else:
            found.append((buffer, start, stop))
    return tuple(found)
