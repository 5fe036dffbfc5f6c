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

from penstock._engine.batch.assemble import (
    NO_PLACES,
    AssembledRows,
    BatchTask,
    assemble,
    fill_up,
    in_query_order,
    map_good_rows,
)
from penstock._engine.decode.arrow import CellError
from penstock._engine.decode.bad_cells import ROW_CODE, bad_row_of
from penstock._engine.decode.columns import DeferredCells, decode_deferred
from penstock._engine.parquet.file_blobs import LocalFile
from penstock._engine.processes.pool import ProcessPool, Reply, Task
from penstock._engine.processes.serialize import Parcel, Told, pack_arrow, pack_blobs, pack_numbers
from penstock._engine.processes.task import Recipe, columns_in, pack_columns, rows_in
from penstock._engine.query.query import STORED_ORDER, BatchAdapter, Query
from penstock._engine.query.values import Batch
from penstock._engine.runtime.threads import InterruptibleFuture, Priority, ThreadPool, default_threads
from penstock._engine.runtime.timers import DECODE, HAND_OVER
from penstock._engine.window.reader import WindowReader, WindowRows
from penstock.errors import DataError
from penstock.model import IntArray

__all__ = ["ProcessBatches"]

TIMEOUT = 600.0
"""Seconds that a process may take for one batch, unless the user says otherwise."""

AHEAD = 2
"""Batches under way for each process: the next lies ready when it is done with one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Crossing:
    """What crosses of one batch.

    Attributes:
        columns: Arrays.
        deferred: Columns as they are stored.
        places: Where each row stands in the epoch's sequence.
        rows: How many rows there are.
        size: How many there are to be; the last is repeated.
        valid: How many of them count.
        maps: Whether maps are run; otherwise cells are decoded and nothing else.
        in_query_order: Whether columns are in the order asked for already.
    """

    columns: Batch = field(default_factory=dict)
    deferred: dict[str, DeferredCells] = field(default_factory=dict)
    places: IntArray = field(default_factory=lambda: NO_PLACES)
    rows: int = 0
    size: int = 0
    valid: int = 0
    maps: bool = False
    in_query_order: bool = False


class ProcessBatches:
    """Finishes the batches of one question in other processes."""

    def __init__(self, query: Query, window_reader: WindowReader, pool: ThreadPool, adapter: BatchAdapter | None) -> None:
        """Store what is done; no process is started before the first batch."""
        self._query, self._window_reader, self._pool, self._adapter = query, window_reader, pool, adapter
        processes = query.processes or default_threads()
        self.max_pending, window_reader.meter.processes = AHEAD * processes, processes
        plain = replace(query, condition=None, shuffle=STORED_ORDER, last=query.ending, skip=None)
        recipe = Recipe(
            query=plain,
            columns=window_reader.columns,
            deferred=window_reader.deferred,
            max_cell_bytes=window_reader.max_cell_bytes,
        )
        self._crew = ProcessPool(recipe, pool, processes, query.timeout or TIMEOUT)
        window_reader.meter.starting = self._crew.starting

    @classmethod
    def of(
        cls, query: Query, window_reader: WindowReader, pool: ThreadPool, adapter: BatchAdapter | None
    ) -> ProcessBatches | None:
        """Return what finishes batches in processes, where that was asked for and there is something to be done there."""
        if query.workers != "processes" or not (query.maps or any(one.codec is not None for one in window_reader.deferred)):
            return None
        return cls(query, window_reader, pool, adapter)

    def finish(self, task: BatchTask) -> Future[AssembledRows]:
        """Begin to make a batch, and return its future."""

        def begin(future: Future[AssembledRows]) -> None:
            some = task.own_rows()
            chunk = task.empty()
            chunk.count = task.batch.size if task.batch else len(some)
            chunk.places = task.own_places() if self._query.maps else NO_PLACES
            if self._query.skip is not None:
                if task.has_bad_rows:
                    _done(future, self._handed_over(task.run()))
                    return
                chunk.ids, chunk.retry = task.ids, task.run
            try:
                self._begin(future, chunk, some, task.batch.valid if task.batch else chunk.count)
            except DataError as error:
                if chunk.retry is None or bad_row_of(error) is None:
                    raise
                _done(future, self._handed_over(chunk.retry()))

        return self._promised(begin)

    def map(self, chunk: AssembledRows) -> Future[AssembledRows]:
        """Begin to run maps on rows that were put together, and return the promise of what they make."""

        def begin(future: Future[AssembledRows]) -> None:
            again = None if self._query.skip is None else partial(map_good_rows, self._query, chunk)
            self._map(future, replace(chunk, retry=again), chunk.count)

        return self._promised(begin)

    def _promised(self, begin: Callable[[Future[AssembledRows]], None]) -> Future[AssembledRows]:
        """Return the promise of what a task on a thread begins; if it fails or is dropped, so is the promise."""
        future: Future[AssembledRows] = InterruptibleFuture()

        def begun(task: Future[None]) -> None:
            if task.cancelled():
                future.cancel()
            elif (error := task.exception()) is not None:
                _fail(future, error)

        self._pool.submit(Priority.FINISH, partial(begin, future)).add_done_callback(begun)
        return future

    def _begin(self, future: Future[AssembledRows], chunk: AssembledRows, rows: WindowRows, valid: int) -> None:
        query, window_reader = self._query, self._window_reader
        if type(rows) is not WindowRows:  # but sequences of them, which are gathered when they have been decoded
            columns, places = assemble(query, window_reader, rows, chunk.count)
            chunk = replace(chunk, columns=columns, places=places if chunk.every == 1 else chunk.places)
            self._map(future, chunk, valid)
        elif query.maps and not query.lazy:
            deferred = {column.name: rows.cells(column.name) for column in window_reader.deferred}
            crossing = _Crossing(
                columns=_shown(rows.fixed_columns()),
                deferred=deferred,
                places=chunk.places,
                rows=len(rows),
                size=chunk.count,
                valid=valid,
                maps=True,
            )
            self._cross(future, chunk, crossing, rows, _mapped)
        else:
            self._decode(future, chunk, rows, valid)

    def _decode(self, future: Future[AssembledRows], chunk: AssembledRows, rows: WindowRows, valid: int) -> None:
        """Have cells of a codec decoded elsewhere, and all else here: Python objects have to be made here anyhow."""
        window_reader, found = self._window_reader, _shown(rows.fixed_columns())
        deferred = {}
        for column in window_reader.deferred:
            if column.codec is not None:
                deferred[column.name] = rows.cells(column.name)
                continue
            with window_reader.meter.busy(DECODE):
                try:
                    made = decode_deferred(
                        rows.cells(column.name),
                        column,
                        window_reader.buffer_pool,
                        window_reader.max_cell_bytes,
                        window_reader.meter,
                    )
                except CellError as error:
                    raise rows.located(error, window_reader) from error
            window_reader.outputs[column.name] = tuple(made)
            found.update(made)

        def put(chunk: AssembledRows, reply: Mapping[str, Told], made: Batch) -> AssembledRows:
            window_reader.outputs.update({name: tuple(names) for name, names in reply["outputs"].items()})
            columns, places = fill_up({**found, **made}, chunk.places, len(rows), chunk.count)
            return self._marked(
                replace(chunk, columns=in_query_order(self._query, window_reader, columns), places=places), valid
            )

        if deferred:
            self._cross(future, chunk, _Crossing(deferred=deferred), rows, put)
        else:
            _done(future, self._handed_over(put(chunk, {"outputs": {}}, {})))

    def _marked(self, chunk: AssembledRows, valid: int) -> AssembledRows:
        """Return a batch that no map is run on, or not yet, with its padding marked."""
        plain = self._query.lazy or self._query.size is None or self._query.ending != "pad"
        return chunk if plain else chunk.mapped(self._query, valid)

    def _map(self, future: Future[AssembledRows], chunk: AssembledRows, valid: int) -> None:
        """Have maps run on rows that were put together here."""
        if not self._query.maps or (self._query.lazy and chunk.used is None):
            _done(future, self._handed_over(self._marked(chunk, valid)))
            return
        size = chunk.count
        crossing = _Crossing(
            columns=chunk.columns, places=chunk.places, rows=size, size=size, valid=valid, maps=True, in_query_order=True
        )
        self._cross(future, chunk, crossing, None, _mapped)

    def _cross(
        self,
        future: Future[AssembledRows],
        chunk: AssembledRows,
        crossing: _Crossing,
        rows: WindowRows | None,
        put: Callable[[AssembledRows, Mapping[str, Told], Batch], AssembledRows],
    ) -> None:
        """Send what crosses of a batch, and have what comes back put in."""
        files: dict[LocalFile, int] = {}

        def number(file: LocalFile) -> int:
            return files.setdefault(file, self._crew.number(file))

        def receive(reply: Reply) -> None:
            self._window_reader.meter.add(reply.told["took"])
            _done(future, self._received(chunk, reply, rows, put))

        told, parcel = self._packed(crossing, chunk, number)
        place = int(chunk.places[0]) if len(chunk.places) else rows.places[0] if rows is not None and rows.places else 0
        where = f"what begins at place {place} of epoch {chunk.rank_epoch.position.epoch}"
        self._crew.give(Task(told=told, parcel=parcel, files=files, where=where, receive=receive, fail=partial(_fail, future)))

    def _packed(
        self, crossing: _Crossing, chunk: AssembledRows, number: Callable[[LocalFile], int]
    ) -> tuple[dict[str, Told], Parcel]:
        """Return what is told of a batch that crosses, and its bytes."""
        parcel = Parcel()
        arrow = {name: column for name, column in crossing.deferred.items() if isinstance(column, pa.Array)}
        cells = {name: column for name, column in crossing.deferred.items() if name not in arrow}
        told = {
            "do": "map" if crossing.maps else "decode",
            "cells": {name: pack_blobs(column, parcel, number) for name, column in cells.items()},
            "columns": pack_columns(crossing.columns, parcel, self._query),
            "arrow": pack_arrow(arrow, parcel),
            "places": pack_numbers(crossing.places, parcel) if crossing.maps else None,
            "outputs": None if crossing.in_query_order else dict(self._window_reader.outputs),
            "rows": crossing.rows,
            "size": crossing.size,
            "valid": crossing.valid,
            "epoch": chunk.rank_epoch.position.epoch,
        }
        return told, parcel

    def _received(
        self,
        chunk: AssembledRows,
        reply: Reply,
        rows: WindowRows | None,
        put: Callable[[AssembledRows, Mapping[str, Told], Batch], AssembledRows],
    ) -> AssembledRows:
        """Return a chunk with what a process has made of it."""
        error, told, again = reply.error, reply.told, chunk.retry
        chunk = replace(chunk, retry=None)
        if again is not None and error is not None and bad_row_of(error) is not None:
            # Bad rows are few, and looked for here: what was made elsewhere is made once more without them.
            return self._handed_over(again())
        if "made" in told:
            return replace(chunk, mapped_rows=rows_in(told["made"], reply.memory), error=error)
        if isinstance(error, CellError) and rows is not None:
            raise rows.located(error, self._window_reader) from error
        if error is not None:
            raise error
        return self._handed_over(put(chunk, told, columns_in(told["columns"], reply.memory)))

    def _handed_over(self, chunk: AssembledRows) -> AssembledRows:
        if self._adapter is None or self._query.size is None or (self._query.lazy and chunk.used is None):
            return chunk
        with self._window_reader.meter.busy(HAND_OVER):
            return replace(chunk, columns=self._adapter.batch(chunk.columns))


def _shown(columns: Batch) -> Batch:
    """Return columns without what is never handed out."""
    return {name: values for name, values in columns.items() if name != ROW_CODE}


def _mapped(chunk: AssembledRows, _: Mapping[str, Told], made: Batch) -> AssembledRows:
    """Return what maps have made."""
    return replace(chunk, columns=made)


def _done(future: Future[AssembledRows], chunk: AssembledRows) -> None:
    if not future.done() and future.set_running_or_notify_cancel():
        future.set_result(chunk)


def _fail(future: Future[Any], error: BaseException | None) -> None:
    """Tell those who wait that there is nothing, and why; without a reason, that it was dropped."""
    if error is None:
        future.cancel()
    elif not future.done() and future.set_running_or_notify_cancel():
        future.set_exception(error)
