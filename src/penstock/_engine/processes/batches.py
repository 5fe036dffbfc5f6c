"""Batches that are finished in other processes: decoded there, and given to the user's functions there.

The parent reads windows and puts batches in their order. Of a batch its stored cells cross, or where they lie in their files;
numbers and Arrow cross too where there are maps. What comes back is handed out where it lies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from penstock._engine.batch.assemble import NOWHERE, Chunk, arranged, filled_up, put_together, thinned
from penstock._engine.batch.bad_rows import Finishing, mapped_good
from penstock._engine.decode.arrow import CellError
from penstock._engine.decode.bad_cells import AT, trouble_of
from penstock._engine.order.rank_epoch import Leg
from penstock._engine.order.schedule import Draw
from penstock._engine.parquet.file_blobs import LocalFile
from penstock._engine.processes.pool import Crew, Reply, Task
from penstock._engine.processes.serialize import Parcel, Told, pack_arrow, pack_blobs, pack_numbers
from penstock._engine.processes.task import Recipe, columns_in, pack_columns, rows_in
from penstock._engine.query.adapter import HandOver
from penstock._engine.query.query import STORED, Question
from penstock._engine.query.values import Batch
from penstock._engine.runtime.interruptible import Promise
from penstock._engine.runtime.threads import Pool, Urgency, default_threads
from penstock._engine.runtime.timers import DECODE, HAND_OVER
from penstock._engine.window.deferred import Loose, decoded
from penstock._engine.window.reader import Gather, Rows
from penstock.errors import DataError
from penstock.model import IntArray

__all__ = ["Elsewhere"]

TIMEOUT = 600.0
"""Seconds that a process may take for one batch, unless the user says otherwise."""

AHEAD = 2
"""Batches under way for each process: the next lies ready when it is done with one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Crossing:
    """What crosses of one batch.

    Attributes:
        columns: Arrays.
        loose: Columns as they are stored.
        places: Where each row stands in the epoch's sequence.
        rows: How many rows there are.
        size: How many there are to be; the last is repeated.
        valid: How many of them count.
        maps: Whether maps are run; otherwise cells are decoded and nothing else.
        arranged: Whether columns are in the order asked for already.
    """

    columns: Batch = field(default_factory=dict)
    loose: dict[str, Loose] = field(default_factory=dict)
    places: IntArray = field(default_factory=lambda: NOWHERE)
    rows: int = 0
    size: int = 0
    valid: int = 0
    maps: bool = False
    arranged: bool = False


class Elsewhere:
    """Finishes the batches of one question in other processes."""

    def __init__(self, question: Question, gather: Gather, pool: Pool, hand_over: HandOver | None) -> None:
        """Store what is done; no process is started before the first batch."""
        self._question, self._gather, self._pool, self._hand_over = question, gather, pool, hand_over
        processes = question.processes or default_threads()
        self.most, gather.meter.processes = AHEAD * processes, processes
        plain = replace(question, condition=None, shuffle=STORED, last=question.ending, skip=None)
        recipe = Recipe(question=plain, columns=gather.columns, loose=gather.loose, most_bytes=gather.most_bytes)
        self._crew = Crew(recipe, pool, processes, question.timeout or TIMEOUT)
        gather.meter.starting = self._crew.starting

    @classmethod
    def of(cls, question: Question, gather: Gather, pool: Pool, hand_over: HandOver | None) -> Elsewhere | None:
        """Return what finishes batches in processes, where that was asked for and there is something to be done there."""
        if question.workers != "processes" or not (question.maps or any(one.codec is not None for one in gather.loose)):
            return None
        return cls(question, gather, pool, hand_over)

    def finish(self, leg: Leg, draw: Draw | None, rows: Rows, steps: range) -> Future[Chunk]:
        """Begin to put some rows together, and return the promise of them."""
        first = steps.start - steps.stop + len(rows)
        maps = bool(self._question.maps)

        def begin(future: Future[Chunk]) -> None:
            some = rows if steps.step == 1 else thinned(rows, first, steps.step)
            count = draw.size if draw else len(some)
            places = rows.sequence if maps else NOWHERE
            places = places if steps.step == 1 else places[first :: steps.step]
            chunk = Chunk(leg=leg, start=steps.start, stop=steps.stop, columns={}, count=count, places=places, every=steps.step)
            if self._question.skip is not None:
                finishing = Finishing(question=self._question, gather=self._gather, leg=leg, draw=draw, rows=rows, steps=steps)
                if finishing.marked:
                    _done(future, self._handed_over(finishing.run()))
                    return
                chunk = replace(chunk, ids=finishing.ids, again=finishing.run)
            try:
                self._begin(future, chunk, some, draw.valid if draw else count)
            except DataError as error:
                if chunk.again is None or trouble_of(error) is None:
                    raise
                _done(future, self._handed_over(chunk.again()))

        return self._promised(begin)

    def map(self, chunk: Chunk) -> Future[Chunk]:
        """Begin to run maps on rows that were put together, and return the promise of what they make."""

        def begin(future: Future[Chunk]) -> None:
            again = None if self._question.skip is None else partial(mapped_good, self._question, chunk)
            self._map(future, replace(chunk, again=again), chunk.count)

        return self._promised(begin)

    def _promised(self, begin: Callable[[Future[Chunk]], None]) -> Future[Chunk]:
        """Return the promise of what a task on a thread begins; if it fails or is dropped, so is the promise."""
        future: Future[Chunk] = Promise()

        def begun(task: Future[None]) -> None:
            if task.cancelled():
                future.cancel()
            elif (error := task.exception()) is not None:
                _fail(future, error)

        self._pool.submit(Urgency.FINISH, partial(begin, future)).add_done_callback(begun)
        return future

    def _begin(self, future: Future[Chunk], chunk: Chunk, rows: Rows, valid: int) -> None:
        question, gather = self._question, self._gather
        if type(rows) is not Rows:  # but sequences of them, which are gathered when they have been decoded
            columns, places = put_together(question, gather, rows, chunk.count)
            chunk = replace(chunk, columns=columns, places=places if chunk.every == 1 else chunk.places)
            self._map(future, chunk, valid)
        elif question.maps and not question.lazy:
            loose = {column.name: rows.picked(column.name) for column in gather.loose}
            crossing = _Crossing(
                columns=_shown(rows.gathered()),
                loose=loose,
                places=chunk.places,
                rows=len(rows),
                size=chunk.count,
                valid=valid,
                maps=True,
            )
            self._cross(future, chunk, crossing, rows, _mapped)
        else:
            self._decode(future, chunk, rows, valid)

    def _decode(self, future: Future[Chunk], chunk: Chunk, rows: Rows, valid: int) -> None:
        """Have cells of a codec decoded elsewhere, and all else here: Python objects have to be made here anyhow."""
        gather, found = self._gather, _shown(rows.gathered())
        loose = {}
        for column in gather.loose:
            if column.codec is not None:
                loose[column.name] = rows.picked(column.name)
                continue
            with gather.meter.busy(DECODE):
                try:
                    made = decoded(rows.picked(column.name), column, gather.slabs, gather.most_bytes, gather.meter)
                except CellError as error:
                    raise rows.told(error, gather) from error
            gather.outputs[column.name] = tuple(made)
            found.update(made)

        def put(chunk: Chunk, reply: Mapping[str, Told], made: Batch) -> Chunk:
            gather.outputs.update({name: tuple(names) for name, names in reply["outputs"].items()})
            columns, places = filled_up({**found, **made}, chunk.places, len(rows), chunk.count)
            return self._marked(replace(chunk, columns=arranged(self._question, gather, columns), places=places), valid)

        if loose:
            self._cross(future, chunk, _Crossing(loose=loose), rows, put)
        else:
            _done(future, self._handed_over(put(chunk, {"outputs": {}}, {})))

    def _marked(self, chunk: Chunk, valid: int) -> Chunk:
        """Return a batch that no map is run on, or not yet, with its padding marked."""
        plain = self._question.lazy or self._question.size is None or self._question.ending != "pad"
        return chunk if plain else chunk.mapped(self._question, valid)

    def _map(self, future: Future[Chunk], chunk: Chunk, valid: int) -> None:
        """Have maps run on rows that were put together here."""
        if not self._question.maps or (self._question.lazy and chunk.used is None):
            _done(future, self._handed_over(self._marked(chunk, valid)))
            return
        size = chunk.count
        crossing = _Crossing(
            columns=chunk.columns, places=chunk.places, rows=size, size=size, valid=valid, maps=True, arranged=True
        )
        self._cross(future, chunk, crossing, None, _mapped)

    def _cross(
        self,
        future: Future[Chunk],
        chunk: Chunk,
        crossing: _Crossing,
        rows: Rows | None,
        put: Callable[[Chunk, Mapping[str, Told], Batch], Chunk],
    ) -> None:
        """Send what crosses of a batch, and have what comes back put in."""
        files: dict[LocalFile, int] = {}

        def number(file: LocalFile) -> int:
            return files.setdefault(file, self._crew.number(file))

        def receive(reply: Reply) -> None:
            self._gather.meter.add(reply.told["took"])
            _done(future, self._received(chunk, reply, rows, put))

        told, parcel = self._packed(crossing, chunk, number)
        place = int(chunk.places[0]) if len(chunk.places) else rows.places[0] if rows is not None and rows.places else 0
        where = f"what begins at place {place} of epoch {chunk.leg.position.epoch}"
        self._crew.give(Task(told=told, parcel=parcel, files=files, where=where, receive=receive, fail=partial(_fail, future)))

    def _packed(self, crossing: _Crossing, chunk: Chunk, number: Callable[[LocalFile], int]) -> tuple[dict[str, Told], Parcel]:
        """Return what is told of a batch that crosses, and its bytes."""
        parcel = Parcel()
        arrow = {name: column for name, column in crossing.loose.items() if isinstance(column, pa.Array)}
        cells = {name: column for name, column in crossing.loose.items() if name not in arrow}
        told = {
            "do": "map" if crossing.maps else "decode",
            "cells": {name: pack_blobs(column, parcel, number) for name, column in cells.items()},
            "columns": pack_columns(crossing.columns, parcel, self._question),
            "arrow": pack_arrow(arrow, parcel),
            "places": pack_numbers(crossing.places, parcel) if crossing.maps else None,
            "outputs": None if crossing.arranged else dict(self._gather.outputs),
            "rows": crossing.rows,
            "size": crossing.size,
            "valid": crossing.valid,
            "epoch": chunk.leg.position.epoch,
        }
        return told, parcel

    def _received(
        self,
        chunk: Chunk,
        reply: Reply,
        rows: Rows | None,
        put: Callable[[Chunk, Mapping[str, Told], Batch], Chunk],
    ) -> Chunk:
        """Return a chunk with what a process has made of it."""
        error, told, again = reply.error, reply.told, chunk.again
        chunk = replace(chunk, again=None)
        if again is not None and error is not None and trouble_of(error) is not None:
            # Bad rows are few, and looked for here: what was made elsewhere is made once more without them.
            return self._handed_over(again())
        if "made" in told:
            return replace(chunk, made=rows_in(told["made"], reply.memory), error=error)
        if isinstance(error, CellError) and rows is not None:
            raise rows.told(error, self._gather) from error
        if error is not None:
            raise error
        return self._handed_over(put(chunk, told, columns_in(told["columns"], reply.memory)))

    def _handed_over(self, chunk: Chunk) -> Chunk:
        if self._hand_over is None or self._question.size is None or (self._question.lazy and chunk.used is None):
            return chunk
        with self._gather.meter.busy(HAND_OVER):
            return replace(chunk, columns=self._hand_over.batch(chunk.columns))


def _shown(columns: Batch) -> Batch:
    """Return columns without what is never handed out."""
    return {name: values for name, values in columns.items() if name != AT}


def _mapped(chunk: Chunk, _: Mapping[str, Told], made: Batch) -> Chunk:
    """Return what maps have made."""
    return replace(chunk, columns=made)


def _done(future: Future[Chunk], chunk: Chunk) -> None:
    if not future.done() and future.set_running_or_notify_cancel():
        future.set_result(chunk)


def _fail(future: Future[Any], error: BaseException | None) -> None:
    """Tell those who wait that there is nothing, and why; without a reason, that it was dropped."""
    if error is None:
        future.cancel()
    elif not future.done() and future.set_running_or_notify_cancel():
        future.set_exception(error)
