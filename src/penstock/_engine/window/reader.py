"""Shuffle windows: units are read on threads, put together to window buffers, and handed out as rows of a window.

Columns with cells of a fixed size are copied to the window's arrays, permuted there, and cut into views. Deferred columns
stay as stored, and are picked by index when a batch needs them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from penstock._engine.decode.arrow import CellError, check_values
from penstock._engine.decode.bad_cells import ROW_CODE, BadRow, decode_good_rows, row_codes
from penstock._engine.decode.columns import PASSED, ROW_IDS, ColumnDecoder, decode_deferred, in_order
from penstock._engine.query.query import Batch, ColumnDecoding, ReadSpec
from penstock._engine.read.reader import Reader, Unit, UnitTable
from penstock._engine.runtime.memory import MemoryBudget
from penstock._engine.runtime.threads import InterruptibleFuture, Priority, ThreadPool, result_of
from penstock._engine.runtime.timers import DECODE, GATHER, READ, Meter
from penstock._engine.window.buffer import (
    STEP_BYTES,
    Cells,
    UnitColumns,
    WindowBuffer,
    WindowBuilder,
    concat_arrays,
    concat_cells,
    joined_cells,
    reordered_columns,
)
from penstock.errors import DataError
from penstock.model import IntArray, Plan, Read, Window

REORDER_SHARE = 8
"""Text and lists of a window are put in order at once if this many times their size fits in memory; else per batch."""

MAX_REORDERED = 1 << 30
"""Bytes of text that are put in order at once: Arrow's offsets have 32 bits."""

NO_COLUMNS = pa.table({})

GROUP_BYTES, MIN_GROUP_BYTES = 1 << 22, 1 << 18
"""Bytes of the small units that one task reads: at most, and at least where there are more."""

UnitFuture: TypeAlias = tuple[int, "Future[list[UnitColumns]]"]
"""The number of a unit, and the future of a list that holds it alone."""

GroupFuture: TypeAlias = tuple[tuple[int, ...], "Future[list[UnitColumns]]"]
"""Numbers of the reads of a window, and the future of their units."""


class PendingWindow:
    """A window that is being read.

    Attributes:
        buffer: The future window.
        begun: Done when the reads of its units are submitted.
        tail: Its last unit, where the next window needs the rest of it.
    """

    def __init__(self) -> None:
        """Begin with nothing read."""
        self.buffer: Future[WindowBuffer] = InterruptibleFuture()
        self.begun: Future[None] = InterruptibleFuture()
        self.tail: UnitFuture | None = None
        self._left = 0
        self._lock = threading.Lock()

    def take_tail(self) -> UnitFuture | None:
        """Return the unit that the next window continues, and drop it: its future refers back to this window."""
        tail, self.tail = self.tail, None
        return tail

    def take(self) -> WindowBuffer:
        """Wait for the window, return it and drop it, so that its memory is released without garbage collection."""
        buffer = result_of(self.buffer)
        self.buffer = InterruptibleFuture()
        return buffer

    def when_done(self, futures: Sequence[Future[Any]], then: Callable[[], object]) -> None:
        """Call `then` when all futures are done, in the thread that completes the last one."""
        self._left = len(futures) + 1

        def done(_: object) -> None:
            with self._lock:
                self._left -= 1
                is_last = self._left == 0
            if is_last:
                then()

        for future in futures:
            future.add_done_callback(done)
        done(None)

    def fail_with(self, task: Future[None]) -> None:
        """Pass on the error or cancellation of a task that reads this window; nothing if it succeeded."""
        if task.cancelled():
            self.buffer.cancel()
            self.begun.cancel()
        elif (error := task.exception()) is not None:
            self.buffer.set_exception(error)
            if not self.begun.done():
                self.begun.set_result(None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowRows:
    """Consecutive rows of one or several windows, not yet assembled.

    Attributes:
        pieces: Windows, with the first row and the row after the last of each.
        places: The place of each piece's first row in the epoch's sequence.
    """

    pieces: tuple[tuple[WindowBuffer, int, int], ...]
    places: tuple[int, ...]

    def __len__(self) -> int:
        """Return the number of rows."""
        if len(self.pieces) == 1:
            return self.pieces[0][2] - self.pieces[0][1]
        return sum(stop - start for _, start, stop in self.pieces)

    @property
    def epoch_places(self) -> IntArray:
        """The place of each row in the order of the epoch."""
        if len(self.pieces) == 1:
            return np.arange(self.places[0], self.places[0] + len(self))
        parts = [np.arange(at, at + stop - start) for at, (_, start, stop) in zip(self.places, self.pieces, strict=True)]
        return np.concatenate([np.zeros(0, dtype=np.int64), *parts])

    def cut(self, start: int, stop: int) -> WindowRows:
        """Return rows `start..stop`."""
        pieces, places, before = [], [], 0
        for (buffer, first, last), place in zip(self.pieces, self.places, strict=True):
            low, high = max(0, start - before), min(last - first, stop - before)
            if low < high:
                pieces.append((buffer, first + low, first + high))
                places.append(place + low)
            before += last - first
        return replace(self, pieces=tuple(pieces), places=tuple(places))

    def assemble(self, window_reader: WindowReader) -> Batch:
        """Return the rows as columns; deferred columns are decoded now."""
        batch = self.fixed_columns()
        for column in window_reader.deferred:
            with window_reader.meter.busy(DECODE):
                batch.update(self.decoded(column, window_reader))
        return batch

    def fixed_columns(self) -> Batch:
        """Return the columns that were decoded with their windows."""
        if len(self.pieces) == 1:
            buffer, start, stop = self.pieces[0]
            return {name: values[start:stop] for name, values in buffer.fixed.items()}
        names = self.pieces[0][0].fixed if self.pieces else ()
        batch = {name: concat_arrays([buffer.fixed[name][start:stop] for buffer, start, stop in self.pieces]) for name in names}
        for name, values in batch.items():
            # A batch that lies in two windows must be as read-only as one that is a view of a single window.
            values.flags.writeable = all(buffer.fixed[name].flags.writeable for buffer, _, _ in self.pieces)
        return batch

    def cells(self, name: str) -> pa.Array | Cells:
        """Return a deferred column as stored."""
        return concat_cells([buffer.pick(name, start, stop) for buffer, start, stop in self.pieces])

    def decoded(self, column: ColumnDecoding, window_reader: WindowReader) -> Batch:
        """Return a deferred column decoded."""
        try:
            arrays = decode_deferred(
                self.cells(column.name), column, window_reader.buffer_pool, window_reader.max_cell_bytes, window_reader.meter
            )
        except CellError as error:
            raise self.located(error, window_reader) from error
        window_reader.outputs[column.name] = tuple(arrays)
        return arrays

    def located(self, error: CellError, window_reader: WindowReader) -> DataError:
        """Return the error of a cell with the file, row group and row of the cell."""
        row = error.row or 0
        for buffer, start, stop in self.pieces:
            if row < stop - start:
                columns, number = buffer.where(start + row)
                return window_reader.located(error, columns.unit, number if error.row is not None else None)
            row -= stop - start
        return DataError(f"column {error.column!r}: {error.problem}")


class WindowReader:
    """Reads units and puts windows together, on the threads of a pool.

    Attributes:
        units_read: The number of units read from storage.
        outputs: The names of the arrays that each column became.
        bad_rows: The bad rows found so far, by where they are stored; see `row_codes`.
        decodes_by_row: Whether decoding a cell does not depend on the other rows of its batch.
        dense_bytes: The bytes that the deferred cells of a row take decoded, where they are all of one shape.
        max_cell_bytes: The most that a decoded cell may take.
    """

    rows_type = WindowRows

    def __init__(self, reader: Reader, plan: Plan, read_spec: ReadSpec, pool: ThreadPool, meter: Meter | None = None) -> None:
        """Store what is read, and with which threads; nothing is read."""
        self.buffer_pool, self.meter = reader.buffer_pool, meter or Meter(threads=pool.threads)
        reader.table_cache.set_memory_limit(read_spec.memory_limit)
        self.budget = MemoryBudget(read_spec.memory_limit, reader.buffer_pool, pool.threads, reader.table_cache)
        self.max_cell_bytes, self.units_read = read_spec.max_cell_bytes, 0
        self.outputs: dict[str, tuple[str, ...]] = {}
        self.bad_rows: dict[int, BadRow] = {}
        self._reader, self._plan, self._read_spec, self._pool = reader, plan, read_spec, pool
        self._counting, self._num_rows = threading.Lock(), plan.num_rows
        types = plan.snapshot.schema
        decoders = [
            ColumnDecoder(column, types.field(column.name).type, codecs_deferred=read_spec.skip) for column in read_spec.columns
        ]
        self._fixed = [one for one in decoders if not one.is_deferred]
        self._deferred = [one for one in decoders if one.is_deferred]
        self.columns = tuple(column.name for column in read_spec.columns)
        self.deferred = tuple(one.column for one in self._deferred)
        self.decodes_by_row = all(one.decodes_by_row for one in self._deferred)
        self.dense_bytes = sum(one.cell_bytes for one in self._deferred)
        self._min_row_bytes = sum(one.min_bytes for one in self._fixed)
        self._blobs = tuple(one.name for one in self._deferred if one.is_blob)
        self._plain_bytes = tuple(one.name for one in self._deferred if one.is_plain_bytes)

    @property
    def row_bytes(self) -> float:
        """Memory of a row, on average over what was read so far."""
        return self.budget.row_bytes

    def check_batch(self, rows: int) -> None:
        """Refuse to fill up a batch to more rows than fit in memory."""
        self.budget.check_batch(rows, self.budget.limit)

    def arranged(self, batch: Batch) -> Batch:
        """Return the columns of a batch in the order of the query: the table's, row ids, stacks."""
        return in_order(batch, self.columns, self.outputs, self._read_spec.stacks)

    def request(self, window: Callable[[], Window], before: PendingWindow | None) -> PendingWindow:
        """Begin to read a window; it shares the last unit of the window before, if that used a part of the unit."""
        pending, earlier = PendingWindow(), [] if before is None else [before]

        def begin() -> None:
            builder = WindowBuilder(window(), self._read_spec.stacks, self.buffer_pool, writable=self._read_spec.writable)
            tail = earlier.pop().take_tail() if earlier else None  # popped, to drop the reference: it refers back to here
            reads = self._submit_reads(builder, pending, tail)
            pending.begun.set_result(None)
            futures = [future for _, future in reads]
            pending.when_done(futures, lambda: self._run(pending, partial(self._permute, pending, builder, reads)))

        def start() -> None:
            self._run(pending, begin).add_done_callback(lambda _: earlier.clear())  # also if it is cancelled

        # The unit that the window before leaves is known once that window has begun.
        pending.when_done(() if before is None else (before.begun,), start)
        return pending

    def _submit_reads(self, builder: WindowBuilder, pending: PendingWindow, tail: UnitFuture | None) -> list[GroupFuture]:
        """Submit the reads of a window; return for each task the indices of its reads in `window.reads`, and its future.

        The window before has begun to read the unit of `tail`. A last unit that the next window continues is a task of its own,
        whose future both windows share.
        """
        reads = builder.window.reads
        last, futures = len(reads) - 1, list[GroupFuture]()
        alone = set[int]()
        for at, read in enumerate(reads):
            if tail is not None and tail[0] == read.unit:
                futures.append(((at,), tail[1]))
                alone.add(at)
        has_tail = last >= 0 and self._is_part(reads[last])
        if has_tail:
            if last not in alone:
                task = partial(self._put, builder, (last,), keep=True)
                futures.append(((last,), self._pool.submit(Priority.READ, task)))
            pending.tail = (reads[last].unit, futures[-1][1])
            alone.add(last)
        groups = self._groups(reads, [at for at in range(len(reads)) if at not in alone])
        tasks = [partial(self._put, builder, group, keep=False) for group in groups]
        return [*futures, *zip(groups, self._pool.submit_all(Priority.READ, tasks), strict=True)]

    def _groups(self, reads: Sequence[Read], numbers: Sequence[int]) -> list[tuple[int, ...]]:
        """Return the reads of a window in groups, each for one task: small units of a file are read by one thread."""
        rows = int(sum(self._plan.units.rows[reads[at].unit] for at in numbers))
        row_bytes = max(1, self._min_row_bytes)
        limit = min(GROUP_BYTES // row_bytes, max(rows // (2 * self._pool.threads), MIN_GROUP_BYTES // row_bytes))
        groups: list[tuple[int, ...]] = []
        open_groups: dict[int, tuple[list[int], int]] = {}
        for at in numbers:
            unit = reads[at].unit
            file, size = int(self._plan.units.file[unit]), int(self._plan.units.rows[unit])
            group, before = open_groups.get(file, ([], 0))
            if group and before + size > limit:
                groups.append(tuple(group))
                group, before = [], 0
            open_groups[file] = ([*group, at], before + size)
        return groups + [tuple(group) for group, _ in open_groups.values()]

    def _is_part(self, read: Read) -> bool:
        """Return whether a window reads only the first rows of a unit."""
        return isinstance(read.rows, slice) and read.rows.stop < self._plan.counts[read.unit]

    def _permute(self, pending: PendingWindow, builder: WindowBuilder, reads: list[GroupFuture]) -> None:
        """Put the columns of a window in order, on several threads; all units are read."""
        by_number = {at: columns for group, future in reads for at, columns in zip(group, future.result(), strict=True)}
        reads.clear()  # they refer back to here, and a window must not wait for garbage collection
        units = [by_number[at] for at in range(len(by_number))]
        for at, unit in enumerate(units):
            if not builder.has(at):  # begun by the window before
                builder.put(at, unit.fixed)
        helpers = min(builder.prepare_steps(), builder.nbytes // STEP_BYTES, self._pool.threads) - 1
        helping = [self._submit(builder.order) for _ in range(helpers)]
        builder.order()

        def complete() -> None:
            while helping:  # they too refer back
                helping.pop().result()
            pending.buffer.set_result(self._buffer(builder, units))

        if helping:
            pending.when_done(helping, lambda: self._run(pending, complete))
        else:
            complete()

    def _run(self, pending: PendingWindow, task: Callable[[], None]) -> Future[None]:
        """Run a step of reading a window on a thread; its error fails the window."""
        future = self._submit(task)
        future.add_done_callback(pending.fail_with)
        return future

    def _submit(self, task: Callable[[], None]) -> Future[None]:
        return self._pool.submit(Priority.WINDOW, self.meter.timed(GATHER, task))

    def fetch(self, window: Window) -> WindowBuffer:
        """Return a window, read in this thread."""
        if window.reads:
            units = [self._read(read.unit) for read in window.reads]
        else:
            empty = Unit(file=0, row_group=0, start=0, first=0, rows=0, count=0, residual=False)
            fields = [self._plan.snapshot.schema.field(name) for name in self.columns]
            units = [self._decode_unit(empty, UnitTable(table=pa.schema(fields).empty_table(), first=0, count=0))]
            window = Window(reads=(Read(unit=0, rows=slice(0, 0)),))
        builder = WindowBuilder(window, self._read_spec.stacks, self.buffer_pool, writable=self._read_spec.writable)
        for at, unit in enumerate(units):
            builder.put(at, unit.fixed)
        builder.prepare_steps()
        builder.order()
        return self._buffer(builder, units)

    def unit(self, index: int) -> pa.Table:
        """Return the rows of one unit as stored."""
        unit = Unit.of(self._plan.units, index)
        rows = self._reader.read(unit, self.columns)
        table = rows.table
        for name, values in self._row_ids(unit, rows).items():
            table = table.append_column(name, pa.array(values))
        table = table.slice(0, int(self._plan.counts[index]))
        for name in self.columns:
            try:
                check_values(table.column(name), name)
            except CellError as error:
                raise self._located_in(error, unit, rows) from error
        return table

    def empty_table(self) -> pa.Table:
        """Return a table without rows, with the columns that rows have."""
        ids = dict(zip(ROW_IDS, (pa.string(), pa.int64(), pa.int64()), strict=True)) if self._read_spec.row_ids else {}
        fields = [self._plan.snapshot.schema.field(name) for name in self.columns]
        return pa.schema([*fields, *(pa.field(name, kind) for name, kind in ids.items())]).empty_table()

    def _read(self, index: int) -> UnitColumns:
        """Return a unit, read and decoded."""
        return self._read_all((index,), window_rows=0)[0]

    def _read_all(self, indices: Sequence[int], window_rows: int) -> list[UnitColumns]:
        """Return units, read and decoded for a window of some rows."""
        with self.meter.busy(READ):
            units = [Unit.of(self._plan.units, index) for index in indices]
            for unit in units:
                if unit.rows * self._min_row_bytes > self.budget.limit:
                    self.budget.check_unit(partial(self._reader.where, unit), unit.rows, self._min_row_bytes)
            tables, in_memory = self._reader.read_cached(units, self.columns, self._blobs, self._num_rows)
            self.meter.read(len(units) - in_memory, self._reader.handles.bytes_read)
            self._reader.handles.bytes_read = 0
        with self._counting:
            self.units_read += len(units) - in_memory
        with self.meter.busy(DECODE):
            columns = self._decode(units, tables)
            del tables  # what is decoded is not kept as Arrow too
            for one in columns:
                nbytes = sum([values.nbytes for values in one.fixed.values()])
                nbytes += sum([values.nbytes for values in one.deferred.values()])
                self.budget.add_unit(rows=one.rows.count, nbytes=nbytes, window_rows=window_rows)
        return columns

    def _decode_unit(self, unit: Unit, rows: UnitTable) -> UnitColumns:
        """Return the rows of a unit, columns of a fixed size decoded."""
        return self._decode((unit,), (rows,))[0]

    def _decode(self, units: Sequence[Unit], tables: Sequence[UnitTable]) -> list[UnitColumns]:
        """Return the rows of units, columns of a fixed size decoded."""
        spec, decoded = self._read_spec, []
        for unit, rows in zip(units, tables, strict=True):
            fixed: Batch = {}
            bad: dict[int, BadRow] = {}
            for one in self._fixed:
                stored = rows.table.column(one.name)
                try:
                    arrays = one.decode(
                        stored, rows.views, self.buffer_pool, self.max_cell_bytes, self.meter, copies_rows=spec.copies_rows
                    )
                except CellError as error:
                    if not spec.skip:
                        raise self._located_in(error, unit, rows) from error
                    arrays, more = decode_good_rows(stored, one.column)
                    bad = {**more, **bad}
                self.outputs[one.name] = tuple(arrays)
                fixed.update(arrays)
            deferred: dict[str, pa.Array | Cells] = dict(rows.cells)
            try:
                for one in self._deferred:
                    if one.name not in deferred:
                        deferred[one.name] = one.keep(rows.table.column(one.name))
            except CellError as error:
                raise self.located(error, unit, None) from error
            if spec.skip or spec.row_ids or self._reader.lazy:
                fixed.update(self._added_columns(unit, rows, bad))
            # What is decoded is not kept as Arrow too.
            numbers = UnitTable(table=NO_COLUMNS, first=rows.first, count=rows.count, selected=rows.selected)
            cached = frozenset(rows.views) if rows.is_cached else frozenset()
            decoded.append(UnitColumns(unit=unit, rows=numbers, fixed=fixed, deferred=deferred, cached=cached))
        return decoded

    def _added_columns(self, unit: Unit, rows: UnitTable, bad: dict[int, BadRow]) -> Batch:
        """Return the columns that the table does not have: row ids, which rows are bad, which pass a lazy filter."""
        added = self._row_ids(unit, rows)
        if self._read_spec.skip:
            added[ROW_CODE] = self._codes(unit, rows, bad)
        if self._reader.lazy:
            added[PASSED] = np.ones(rows.count, dtype=np.bool_) if rows.passed is None else rows.passed
        return added

    def _codes(self, unit: Unit, rows: UnitTable, bad: dict[int, BadRow]) -> IntArray:
        """Return where each row is stored as a number; the numbers of bad rows are inverted, so below 0."""
        codes = row_codes(unit.file, rows.row_numbers())
        at = np.fromiter(bad, np.int64, len(bad))
        self.bad_rows.update(zip(codes[at].tolist(), bad.values(), strict=True))
        codes[at] = ~codes[at]
        return codes

    def located(self, error: CellError, unit: Unit, row: int | None) -> DataError:
        """Return the error of a cell with the file, row group and row of the cell."""
        at = "" if row is None else f", row {row}"
        return DataError(f"{self._reader.where(unit)}{at}, column {error.column!r}: {error.problem}")

    def _located_in(self, error: CellError, unit: Unit, rows: UnitTable) -> DataError:
        return self.located(error, unit, None if error.row is None else int(rows.row_numbers()[error.row]))

    def _row_ids(self, unit: Unit, rows: UnitTable) -> Batch:
        """Return the columns that say where each row is stored."""
        if not self._read_spec.row_ids:
            return {}
        path = np.full(rows.count, self._plan.snapshot.files.path[unit.file].as_py(), dtype=object)
        numbers = rows.row_numbers()
        return dict(zip(ROW_IDS, (path, self._reader.row_groups(unit, numbers), numbers), strict=True))

    def _put(self, builder: WindowBuilder, numbers: Sequence[int], *, keep: bool) -> list[UnitColumns]:
        """Read units and copy their columns to the window; `keep` them for the next window too."""
        units = self._read_all([builder.window.reads[at].unit for at in numbers], window_rows=builder.num_rows)
        with self.meter.busy(GATHER):
            for at, columns in zip(numbers, units, strict=True):
                builder.put(at, columns.fixed, columns.cached)
        return units if keep else [replace(columns, fixed={}) for columns in units]

    def _buffer(self, builder: WindowBuilder, units: Sequence[UnitColumns]) -> WindowBuffer:
        """Return the complete window."""
        fixed = self.arranged(builder.complete())
        rows = (read.rows for read in builder.window.reads)
        # A window without deferred columns does not keep its units.
        parts = tuple((replace(unit, fixed={}), at) for unit, at in zip(units, rows, strict=True)) if self._deferred else ()
        take = builder.window.take
        cells = joined_cells(parts, self._blobs, self._plain_bytes)
        others = [one.name for one in self._deferred if not one.is_blob and one.name not in cells]
        parts, ordered = reordered_columns(parts, others, take, min(MAX_REORDERED, self.budget.limit // REORDER_SHARE))
        buffer = WindowBuffer(fixed=fixed, parts=parts, ends=builder.ends, take=take, cells=cells, ordered=ordered)
        stored = [*ordered.values(), *(values for unit, _ in parts for values in unit.deferred.values())]
        self.budget.count_while_alive(buffer, sum(values.nbytes for values in stored))
        return buffer
