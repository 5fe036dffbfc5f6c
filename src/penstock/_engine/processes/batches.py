"""Batches that are finished in worker processes, which decode cells and run the user's functions.

The parent process reads windows and keeps the order of batches. It sends the stored cells of a batch, or their places in
files; with maps it also sends numbers and Arrow columns. The arrays that come back lie in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

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
from penstock._engine.decode.columns import decode_deferred
from penstock._engine.parquet.file_blobs import LocalFile
from penstock._engine.processes.pool import ProcessPool, Reply, Task
from penstock._engine.processes.task import Recipe, WorkerInput, WorkerOutput, pack_input
from penstock._engine.query.query import STORED_ORDER, Batch, BatchAdapter, Query
from penstock._engine.runtime.threads import InterruptibleFuture, Priority, ThreadPool, default_threads
from penstock._engine.runtime.timers import DECODE, HAND_OVER
from penstock._engine.window.reader import WindowReader, WindowRows
from penstock.errors import DataError

TIMEOUT = 600.0
"""Default seconds that a process may take for one batch."""

BATCHES_PER_PROCESS = 2
"""Batches in flight for each process: the next one is there when it has finished one."""

Complete: TypeAlias = Callable[[AssembledRows, WorkerOutput], AssembledRows]
"""Returns rows with what a process has made of them."""


class ProcessBatches:
    """Finishes the batches of one query in worker processes."""

    def __init__(self, query: Query, window_reader: WindowReader, pool: ThreadPool, adapter: BatchAdapter | None) -> None:
        """Store the query; the first batch starts a process."""
        self._query, self._window_reader, self._pool, self._adapter = query, window_reader, pool, adapter
        processes = query.processes or default_threads()
        self.max_pending, window_reader.meter.processes = BATCHES_PER_PROCESS * processes, processes
        recipe = Recipe(
            query=replace(query, condition=None, shuffle=STORED_ORDER, last=query.ending, skip=None),
            columns=window_reader.columns,
            deferred=window_reader.deferred,
            max_cell_bytes=window_reader.max_cell_bytes,
        )
        self._processes = ProcessPool(recipe, pool, processes, query.timeout or TIMEOUT)
        window_reader.meter.starting = self._processes.starting

    @classmethod
    def of(
        cls, query: Query, window_reader: WindowReader, pool: ThreadPool, adapter: BatchAdapter | None
    ) -> ProcessBatches | None:
        """Return the worker processes of a query; None if it has none, or nothing for them to do."""
        if query.workers != "processes" or not (query.maps or any(one.codec is not None for one in window_reader.deferred)):
            return None
        return cls(query, window_reader, pool, adapter)

    def finish(self, task: BatchTask) -> Future[AssembledRows]:
        """Return the future of a batch, decoded and mapped."""

        def begin(future: Future[AssembledRows]) -> None:
            own, chunk = task.own_rows(), task.empty()
            chunk.count = task.batch.size if task.batch else len(own)
            chunk.places = task.own_places() if self._query.maps else NO_PLACES
            if self._query.skip is not None:
                if task.has_bad_rows:
                    _resolve(future, self._adapted(task.run()))
                    return
                chunk.ids, chunk.retry = task.ids, task.run
            try:
                self._begin(future, chunk, own, task.batch.valid if task.batch else chunk.count)
            except DataError as error:
                if chunk.retry is None or bad_row_of(error) is None:
                    raise
                _resolve(future, self._adapted(chunk.retry()))

        return self._submit(begin)

    def map(self, chunk: AssembledRows) -> Future[AssembledRows]:
        """Return the future of assembled rows, mapped."""

        def begin(future: Future[AssembledRows]) -> None:
            retry = None if self._query.skip is None else partial(map_good_rows, self._query, chunk)
            self._map(future, replace(chunk, retry=retry), chunk.count)

        return self._submit(begin)

    def _submit(self, begin: Callable[[Future[AssembledRows]], None]) -> Future[AssembledRows]:
        """Return a future that `begin` resolves later; if `begin` fails or is cancelled on its thread, so is the future."""
        future: Future[AssembledRows] = InterruptibleFuture()

        def begun(task: Future[None]) -> None:
            if task.cancelled():
                future.cancel()
            elif (error := task.exception()) is not None:
                _fail(future, error)

        self._pool.submit(Priority.BATCH, partial(begin, future)).add_done_callback(begun)
        return future

    def _begin(self, future: Future[AssembledRows], chunk: AssembledRows, rows: WindowRows, valid: int) -> None:
        query, window_reader = self._query, self._window_reader
        if type(rows) is not WindowRows:  # sequences of rows are gathered after decoding
            columns, places = assemble(query, window_reader, rows, chunk.count)
            chunk = replace(chunk, columns=columns, places=places if chunk.every == 1 else chunk.places)
            self._map(future, chunk, valid)
        elif query.maps and not query.lazy:
            batch = WorkerInput(
                columns=_visible(rows.fixed_columns()),
                deferred={column.name: rows.cells(column.name) for column in window_reader.deferred},
                places=chunk.places,
                rows=len(rows),
                size=chunk.count,
                valid=valid,
                run_maps=True,
                outputs=dict(window_reader.outputs),
            )
            self._send(future, chunk, batch, rows, _mapped)
        else:
            self._decode(future, chunk, rows, valid)

    def _decode(self, future: Future[AssembledRows], chunk: AssembledRows, rows: WindowRows, valid: int) -> None:
        """Decode cells with a codec in a process, and all other columns here: their Python objects are made here anyway."""
        window_reader, columns = self._window_reader, _visible(rows.fixed_columns())
        deferred = {}
        for column in window_reader.deferred:
            cells = rows.cells(column.name)
            if column.codec is not None:
                deferred[column.name] = cells
                continue
            with window_reader.meter.busy(DECODE):
                try:
                    arrays = decode_deferred(
                        cells, column, window_reader.buffer_pool, window_reader.max_cell_bytes, window_reader.meter
                    )
                except CellError as error:
                    raise rows.located(error, window_reader) from error
            window_reader.outputs[column.name] = tuple(arrays)
            columns.update(arrays)

        def complete(chunk: AssembledRows, output: WorkerOutput) -> AssembledRows:
            window_reader.outputs.update({name: tuple(names) for name, names in output.outputs.items()})
            batch, places = fill_up({**columns, **output.columns}, chunk.places, len(rows), chunk.count)
            return self._marked(replace(chunk, columns=in_query_order(self._query, window_reader, batch), places=places), valid)

        if deferred:
            self._send(future, chunk, WorkerInput(deferred=deferred, outputs=dict(window_reader.outputs)), rows, complete)
        else:
            _resolve(future, self._adapted(complete(chunk, WorkerOutput())))

    def _marked(self, chunk: AssembledRows, valid: int) -> AssembledRows:
        """Return a batch without maps, or before them, with its padding marked."""
        plain = self._query.lazy or self._query.size is None or self._query.ending != "pad"
        return chunk if plain else chunk.mapped(self._query, valid)

    def _map(self, future: Future[AssembledRows], chunk: AssembledRows, valid: int) -> None:
        """Run maps on rows that were assembled here."""
        if not self._query.maps or (self._query.lazy and chunk.used is None):
            _resolve(future, self._adapted(self._marked(chunk, valid)))
            return
        size = chunk.count
        batch = WorkerInput(columns=chunk.columns, places=chunk.places, rows=size, size=size, valid=valid, run_maps=True)
        self._send(future, chunk, batch, None, _mapped)

    def _send(
        self,
        future: Future[AssembledRows],
        chunk: AssembledRows,
        batch: WorkerInput,
        rows: WindowRows | None,
        complete: Complete,
    ) -> None:
        """Send a batch to a process; its reply resolves the future."""
        files: dict[LocalFile, int] = {}
        epoch = chunk.rank_epoch.position.epoch

        def file_number(file: LocalFile) -> int:
            return files.setdefault(file, self._processes.file_number(file))

        def receive(reply: Reply) -> None:
            self._window_reader.meter.add(reply.busy)
            _resolve(future, self._received(chunk, reply, rows, complete))

        blocks = pack_input(replace(batch, epoch=epoch), self._query, file_number)
        place = int(chunk.places[0]) if len(chunk.places) else rows.places[0] if rows is not None and rows.places else 0
        where = f"the rows from position {place} of epoch {epoch}"
        self._processes.submit(Task(blocks=blocks, files=files, where=where, receive=receive, fail=partial(_fail, future)))

    def _received(self, chunk: AssembledRows, reply: Reply, rows: WindowRows | None, complete: Complete) -> AssembledRows:
        """Return rows with what a process has made of them."""
        error, retry = reply.error, chunk.retry
        chunk = replace(chunk, retry=None)
        if retry is not None and error is not None and bad_row_of(error) is not None:
            # Bad rows are few, and found here: the batch is made once more without them.
            return self._adapted(retry())
        if reply.output.rows is not None:
            return replace(chunk, mapped_rows=reply.output.rows, error=error)
        if isinstance(error, CellError) and rows is not None:
            raise rows.located(error, self._window_reader) from error
        if error is not None:
            raise error
        return self._adapted(complete(chunk, reply.output))

    def _adapted(self, chunk: AssembledRows) -> AssembledRows:
        if self._adapter is None or self._query.size is None or (self._query.lazy and chunk.used is None):
            return chunk
        with self._window_reader.meter.busy(HAND_OVER):
            return replace(chunk, columns=self._adapter.batch(chunk.columns))


def _visible(columns: Batch) -> Batch:
    """Return columns without those for internal use."""
    return {name: values for name, values in columns.items() if name != ROW_CODE}


def _mapped(chunk: AssembledRows, output: WorkerOutput) -> AssembledRows:
    return replace(chunk, columns=output.columns)


def _resolve(future: Future[AssembledRows], chunk: AssembledRows) -> None:
    if not future.done() and future.set_running_or_notify_cancel():
        future.set_result(chunk)


def _fail(future: Future[Any], error: BaseException | None) -> None:
    """Raise an error where the future is waited for; without an error, cancel it."""
    if error is None:
        future.cancel()
    elif not future.done() and future.set_running_or_notify_cancel():
        future.set_exception(error)
