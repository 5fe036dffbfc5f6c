"""Windows become rows: units are read on threads, put together to windows, and windows are handed out in pieces.

Columns whose cells have a fixed size are gathered once per window and cut into views. All others stay as they are
stored, and are picked by index when a batch needs them, so that a blob is never copied with its window.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from penstock import dtypes
from penstock._engine.decode.arrow import TEXTS, CellError, check_values, decode
from penstock._engine.decode.bad_cells import AT, BadRow, code_of, decode_good
from penstock._engine.query.projection import ReadSpec
from penstock._engine.query.values import Batch, Column
from penstock._engine.read.reader import Reader, Unit, UnitTable
from penstock._engine.runtime.interruptible import InterruptibleFuture
from penstock._engine.runtime.memory_budget import MemoryBudget
from penstock._engine.runtime.threads import Priority, ThreadPool, result_of
from penstock._engine.runtime.timers import DECODE, GATHER, READ, Meter
from penstock._engine.window.buffer import (
    Cells,
    UnitColumns,
    WindowBuffer,
    WindowBuilder,
    concat_arrays,
    concat_cells,
    joined_cells,
    reordered_columns,
)
from penstock._engine.window.deferred import (
    PASSED,
    ROW_IDS,
    cell_bytes,
    decoded,
    in_order,
    is_bytes,
    is_fixed,
    plain,
    stored,
    viewed,
)
from penstock.errors import DataError
from penstock.model import IntArray, Plan, Read, Window

__all__ = ["PASSED", "ROW_IDS", "PendingWindow", "WindowBuffer", "WindowReader", "WindowRows"]


class PendingWindow:
    """A window that is being read; its units are read on threads, and the last of them puts it together."""

    def __init__(self) -> None:
        """Make the promise of a window."""
        self.buffer: Future[WindowBuffer] = InterruptibleFuture()
        self.begun: Future[None] = InterruptibleFuture()
        self.tail: tuple[int, Future[UnitColumns]] | None = None
        self._left = 0
        self._lock = threading.Lock()

    def reexport(self) -> tuple[int, Future[UnitColumns]] | None:
        """Return the unit that this window has left half used, and let go of it: who waits for it leads back to here."""
        tail, self.tail = self.tail, None
        return tail

    def handed(self) -> WindowBuffer:
        """Return the window, waiting for it, and let go of it, so that its memory comes back without garbage collection."""
        buffer = result_of(self.buffer)
        self.buffer = InterruptibleFuture()
        return buffer

    def expect(self, tasks: Sequence[Future[Any]], then: Callable[[], None]) -> None:
        """Call `then` when all tasks have ended; with none to wait for, at once."""
        self._left = len(tasks) + 1

        def ended(_: object) -> None:
            with self._lock:
                self._left -= 1
                last = self._left == 0
            if last:
                then()

        for task in tasks:
            task.add_done_callback(ended)
        ended(None)

    def settle(self, task: Future[None]) -> None:
        """Tell those who wait what a task failed of, or that it was dropped; a task that succeeded has told them itself."""
        if task.cancelled():
            self.buffer.cancel()
            self.begun.cancel()
        elif (error := task.exception()) is not None:
            self.buffer.set_exception(error)
            if not self.begun.done():
                self.begun.set_result(None)


LIGHT = 8
"""A window's texts and lists are brought in order at once if so many of them fit in memory; else they are picked by batches."""

MOST_IN_ORDER = 1 << 30
"""Bytes of texts that are brought in order at most: Arrow counts them in 32 bits."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowRows:
    """Rows of some windows, one after the other, not yet put together.

    Attributes:
        pieces: Windows, and which rows of each.
        places: Where the first row of each piece stands in the epoch's sequence.
        ready: What columns that were left as stored have become, where they were decoded with those of other rows.
    """

    pieces: tuple[tuple[WindowBuffer, int, int], ...]
    places: tuple[int, ...]
    ready: Mapping[str, Batch] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of rows."""
        if len(self.pieces) == 1:
            return self.pieces[0][2] - self.pieces[0][1]
        return sum(stop - start for _, start, stop in self.pieces)

    @property
    def sequence(self) -> IntArray:
        """Where each row stands in the epoch's sequence."""
        if len(self.pieces) == 1:
            return np.arange(self.places[0], self.places[0] + len(self))
        parts = [np.arange(at, at + stop - start) for at, (_, start, stop) in zip(self.places, self.pieces, strict=True)]
        return np.concatenate([np.zeros(0, dtype=np.int64), *parts])

    def assemble(self, window_reader: WindowReader) -> Batch:
        """Return the rows as columns, those that were left as stored decoded now.

        Raises:
            DataError: If a cell cannot be decoded; it says where the cell lies.
        """
        found = self.gathered()
        for column in window_reader.deferred:
            if column.name in self.ready:
                found.update(self.ready[column.name])
                continue
            with window_reader.meter.busy(DECODE):
                found.update(self.decoded(column, window_reader))
        return found

    def gathered(self) -> Batch:
        """Return the columns that were gathered with their windows."""
        if len(self.pieces) == 1:
            buffer, start, stop = self.pieces[0]
            return {name: values[start:stop] for name, values in buffer.fixed.items()}
        names = self.pieces[0][0].fixed if self.pieces else ()
        found = {name: concat_arrays([buffer.fixed[name][start:stop] for buffer, start, stop in self.pieces]) for name in names}
        for name, values in found.items():
            # Whether a batch lies in one window or in two must not show: what is a view elsewhere is none's to write.
            values.flags.writeable = all(buffer.fixed[name].flags.writeable for buffer, _, _ in self.pieces)
        return found

    def picked(self, name: str) -> pa.Array | Cells:
        """Return a column that was left as stored, as it is."""
        return concat_cells([buffer.pick(name, start, stop) for buffer, start, stop in self.pieces])

    def decoded(self, column: Column, window_reader: WindowReader) -> Batch:
        """Return a column that was left as stored.

        Raises:
            DataError: If a cell cannot be decoded; it says where the cell lies.
        """
        try:
            made = decoded(
                self.picked(column.name), column, window_reader.buffer_pool, window_reader.max_cell_bytes, window_reader.meter
            )
        except CellError as error:
            raise self.told(error, window_reader) from error
        window_reader.outputs[column.name] = tuple(made)
        return made

    def told(self, error: CellError, window_reader: WindowReader) -> DataError:
        """Return an error of a cell with the place of the cell."""
        row = error.row or 0
        for buffer, start, stop in self.pieces:
            if row < stop - start:
                read, number = buffer.where(start + row)
                return window_reader.told(error, read.unit, number if error.row is not None else None)
            row -= stop - start
        return DataError(f"column {error.column!r}: {error.problem}")


class WindowReader:
    """Reads units and puts windows together, on the threads of a pool."""

    rows_type = WindowRows

    def __init__(self, reader: Reader, plan: Plan, read_spec: ReadSpec, pool: ThreadPool, meter: Meter | None = None) -> None:
        """Store what is read, with which threads, and what counts how long it takes."""
        self.buffer_pool, self.meter = reader.buffer_pool, meter or Meter(threads=pool.threads)
        reader.table_cache.bound(read_spec.memory_limit)
        self.budget = MemoryBudget(read_spec.memory_limit, reader.buffer_pool, pool.threads, reader.table_cache)
        self.units_read = 0
        self._counting = threading.Lock()
        self.outputs: dict[str, tuple[str, ...]] = {}
        self.troubles: dict[int, BadRow] = {}
        self._reader, self._plan, self._read_spec, self._pool = reader, plan, read_spec, pool
        schema = plan.snapshot.schema
        self._fixed = [column for column in read_spec.columns if is_fixed(column, schema.field(column.name).type)]
        if read_spec.skip:  # which of a codec's cells are bad is found out batch by batch
            self._fixed = [column for column in self._fixed if column.codec is None]
        fixed = {column.name for column in self._fixed}
        self._deferred = [column for column in read_spec.columns if column.name not in fixed]
        self._columns = tuple(column.name for column in read_spec.columns)
        self._least = sum(cell_bytes(one) or dtypes.least_bytes(schema.field(one.name).type) for one in self._fixed)
        self._blobs = tuple(column.name for column in self._deferred if column.codec is not None)
        self.texts = tuple(one for one in self._deferred if one.codec is None and schema.field(one.name).type in TEXTS)
        self._plain = tuple(one.name for one in self._deferred if one.codec is None)
        self._bytes = tuple(one.name for one in self.texts if is_bytes(one, schema.field(one.name).type))

    @property
    def row_bytes(self) -> float:
        """What a row has taken in memory so far, on average."""
        return self.budget.row_bytes

    def check_batch(self, rows: int) -> None:
        """Refuse to fill a batch up to more than fits.

        Raises:
            MemoryLimitError: If it does not, by what rows took so far.
        """
        self.budget.check_batch(rows, self.budget.limit)

    @property
    def max_cell_bytes(self) -> int:
        """What one cell may take when it is decoded."""
        return self._read_spec.max_cell_bytes

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the table's columns that are read, in the order asked for."""
        return self._columns

    @property
    def deferred(self) -> tuple[Column, ...]:
        """The columns that are picked per batch."""
        return tuple(self._deferred)

    @property
    def dense_bytes(self) -> int:
        """What the cells of a row take decoded, of those that all have one shape."""
        return sum(map(cell_bytes, self._deferred))

    def arranged(self, found: Batch) -> Batch:
        """Return columns in the order asked for: the table's, those that say where rows lie, stacks."""
        return in_order(found, self._columns, self.outputs, self._read_spec.stacks)

    def draw(self, window: Callable[[], Window]) -> Future[Window]:
        """Begin to find out what a window is made of; the permutation of its rows takes about as long as to apply it."""
        return self._pool.submit(Priority.READ, self.meter.timed(GATHER, window))

    def request(self, window: Future[Window], before: PendingWindow | None) -> PendingWindow:
        """Begin to read a window; a unit that the window before left half used is not read again."""
        pending, drawn, earlier = PendingWindow(), [window], [] if before is None else [before]

        def begin() -> None:
            # Both are popped, for they lead back to here.
            filling = WindowBuilder(
                drawn.pop().result(), self._read_spec.stacks, self.buffer_pool, writable=self._read_spec.writable
            )
            tail = earlier.pop().reexport() if earlier else None
            reads, late = self._begin_reads(filling, pending, tail)
            pending.begun.set_result(None)

            def finish() -> None:
                found = [read.result() for read in reads]
                reads.clear()  # they refer back to here, and a window must not wait for garbage collection
                for at in late:
                    filling.put(at, found[at].fixed)
                ordered = [self._timed(filling.order) for _ in range(min(filling.steps(), self._pool.threads) - 1)]
                filling.order()

                def hold() -> None:
                    while ordered:  # they too refer back
                        ordered.pop().result()
                    pending.buffer.set_result(self._buffer(filling, found))

                pending.expect(ordered, lambda: self._promised(pending, hold)) if ordered else hold()

            pending.expect(reads, lambda: self._promised(pending, finish))

        def forget(_: object) -> None:
            drawn.clear()
            earlier.clear()

        def start() -> None:
            task = self._timed(begin)
            task.add_done_callback(pending.settle)
            task.add_done_callback(forget)  # also if it was dropped

        # Only when the window before has begun is it known what it leaves half used.
        pending.expect((window,) if before is None else (window, before.begun), start)
        return pending

    def _begin_reads(
        self, filling: WindowBuilder, pending: PendingWindow, tail: tuple[int, Future[UnitColumns]] | None
    ) -> tuple[list[Future[UnitColumns]], list[int]]:
        """Begin to read a window's units, and return them with those that were begun before and are put in at the end."""
        reads, late = [], []
        read_spec = filling.window.reads
        for at, read in enumerate(read_spec):
            half_used = at == len(read_spec) - 1 and self._half_used(read)
            if tail is not None and tail[0] == read.unit:
                future = tail[1]
                late.append(at)
            else:
                future = self._pool.submit(Priority.READ, partial(self._put_in, filling, at, keep=half_used))
            if half_used:
                pending.tail = (read.unit, future)
            reads.append(future)
        return reads, late

    def _promised(self, pending: PendingWindow, task: Callable[[], None]) -> None:
        """Run a task on a thread; whatever becomes of it, those who wait for the window are told."""
        self._timed(task).add_done_callback(pending.settle)

    def _timed(self, task: Callable[[], None]) -> Future[None]:
        """Begin a task on a thread, timed where it runs."""
        return self._pool.submit(Priority.ASSEMBLE, self.meter.timed(GATHER, task))

    def fetch(self, window: Window) -> WindowBuffer:
        """Return a window, read here and now."""
        if not window.reads:
            empty = Unit(file=0, row_group=0, start=0, first=0, rows=0, count=0, residual=False)
            fields = [self._plan.snapshot.schema.field(name) for name in self._columns]
            nothing = UnitTable(table=pa.schema(fields).empty_table(), first=0, count=0)
            window = Window(reads=(Read(unit=0, rows=slice(0, 0)),))
            return self._filled(window, [self._decoded(empty, nothing)])
        return self._filled(window, [self._read(read.unit) for read in window.reads])

    def _filled(self, window: Window, reads: Sequence[UnitColumns]) -> WindowBuffer:
        filling = WindowBuilder(window, self._read_spec.stacks, self.buffer_pool, writable=self._read_spec.writable)
        for at, read in enumerate(reads):
            filling.put(at, read.fixed)
        filling.steps()
        filling.order()
        return self._buffer(filling, reads)

    def unit(self, index: int) -> pa.Table:
        """Return the rows that are handed out of one unit, as stored."""
        unit = Unit.of(self._plan.units, index)
        part = self._reader.read(unit, self._columns)
        table = part.table
        for name, values in self._ids(unit, part).items():
            table = table.append_column(name, pa.array(values))
        table = table.slice(0, int(self._plan.counts[index]))
        for name in self._columns:
            try:
                check_values(table.column(name), name)
            except CellError as error:
                raise self.told(error, unit, None if error.row is None else int(part.numbers()[error.row])) from error
        return table

    def nothing(self) -> pa.Table:
        """Return no rows, with the columns that rows would have."""
        kinds = dict(zip(ROW_IDS, (pa.string(), pa.int64(), pa.int64()), strict=True)) if self._read_spec.row_ids else {}
        fields = [self._plan.snapshot.schema.field(name) for name in self._columns]
        return pa.schema([*fields, *(pa.field(name, kind) for name, kind in kinds.items())]).empty_table()

    def _half_used(self, read: Read) -> bool:
        return isinstance(read.rows, slice) and read.rows.stop < self._plan.counts[read.unit]

    def _read(self, index: int) -> UnitColumns:
        """Return a unit, read and decoded."""
        unit = Unit.of(self._plan.units, index)
        self.budget.check_unit(partial(self._reader.where, unit), unit.rows, self._least)
        part = self._reader.table_cache.get(self._reader.name(unit, self._columns, self._blobs))
        if part is None:
            with self.meter.busy(READ):
                part = self._reader.read_to_stay(unit, self._columns, self._blobs, self._plan.num_rows)
                self.meter.read(self._reader.fetched())
            with self._counting:
                self.units_read += 1
        with self.meter.busy(DECODE):
            found = self._decoded(unit, part)
        fixed, deferred = (sum(values.nbytes for values in some.values()) for some in (found.fixed, found.deferred))
        self.budget.note(rows=part.count, fixed=fixed, deferred=deferred)
        del part
        self.budget.tidy()
        return found

    def _decoded(self, unit: Unit, part: UnitTable) -> UnitColumns:
        """Return a unit's rows with the columns of a fixed size decoded, and those stacked that can be."""
        fixed: Batch = {}
        bad: dict[int, BadRow] = {}
        for column in self._fixed:
            try:
                made = self._made(part, column)
            except CellError as error:
                if not self._read_spec.skip:
                    raise self.told(error, unit, None if error.row is None else int(part.numbers()[error.row])) from error
                made, more = decode_good(part.table.column(column.name), column)
                bad = {**more, **bad}
            self.outputs[column.name] = tuple(made)
            fixed.update(made)
        if self._read_spec.skip:
            fixed[AT] = self._marked(unit, part, bad)
        deferred: dict[str, pa.Array | Cells] = dict(part.cells)
        try:
            deferred.update(
                {one.name: stored(part.table.column(one.name), one) for one in self._deferred if one.name not in deferred}
            )
        except CellError as error:
            raise self.told(error, unit, None) from error
        fixed.update(self._ids(unit, part))
        if self._reader.lazy:
            fixed[PASSED] = np.ones(part.count, dtype=np.bool_) if part.passed is None else part.passed
        # What has been decoded need not be kept as Arrow too.
        left = UnitTable(table=pa.table({}), first=part.first, count=part.count, kept=part.kept)
        lasting = frozenset(part.views) if part.lasts else frozenset()
        return UnitColumns(unit=unit, part=left, fixed=fixed, deferred=deferred, lasting=lasting)

    def _made(self, part: UnitTable, column: Column) -> Batch:
        """Return a column of a unit decoded."""
        stored_as = part.table.column(column.name)
        if column.codec is not None:
            view = viewed(part, column, self.max_cell_bytes) if self._read_spec.permuted else None
            if view is not None:
                return {column.name: view}
            return decoded(stored(stored_as, column), column, self.buffer_pool, self.max_cell_bytes, self.meter)
        view = plain(part, column)
        return decode(stored_as, column) if view is None else {column.name: view}

    def _marked(self, unit: Unit, part: UnitTable, bad: dict[int, BadRow]) -> IntArray:
        """Return where each row lies, as numbers that are below 0 for those that are bad."""
        codes = code_of(unit.file, part.numbers())
        rows = np.fromiter(bad, np.int64, len(bad))
        self.troubles.update(zip(codes[rows].tolist(), bad.values(), strict=True))
        codes[rows] = ~codes[rows]
        return codes

    def told(self, error: CellError, unit: Unit, row: int | None) -> DataError:
        """Return an error of a cell as one that says which file, row group, row and column it is in."""
        at = "" if row is None else f", row {row}"
        return DataError(f"{self._reader.where(unit)}{at}, column {error.column!r}: {error.problem}")

    def _ids(self, unit: Unit, part: UnitTable) -> Batch:
        """Return the columns that say where each row lies."""
        if not self._read_spec.row_ids:
            return {}
        path = np.full(part.count, self._plan.snapshot.files.path[unit.file].as_py(), dtype=object)
        numbers = part.numbers()
        return dict(zip(ROW_IDS, (path, self._reader.row_groups(unit, numbers), numbers), strict=True))

    def _put_in(self, filling: WindowBuilder, at: int, *, keep: bool) -> UnitColumns:
        """Read a unit, put it in its window, and let go of what nobody needs after that."""
        found = self._read(filling.window.reads[at].unit)
        self.budget.check_window(int(filling.ends[-1]))
        with self.meter.busy(GATHER):
            filling.put(at, found.fixed, found.lasting)
        return found if keep else replace(found, fixed={})

    def _buffer(self, filling: WindowBuilder, reads: Sequence[UnitColumns]) -> WindowBuffer:
        """Return a window that has been filled, its columns of a fixed size in the order they are handed out."""
        fixed = self.arranged(filling.complete())
        rows = (read.rows for read in filling.window.reads)
        # Without columns to be picked later, a window need not keep what its units gave.
        kept = tuple((replace(read, fixed={}), at) for read, at in zip(reads, rows, strict=True)) if self._deferred else ()
        take = filling.window.take
        cells = joined_cells(kept, self._blobs, self._bytes)
        plain = [name for name in self._plain if name not in cells]
        kept, ordered = reordered_columns(kept, plain, take, min(MOST_IN_ORDER, self.budget.limit // LIGHT))
        buffer = WindowBuffer(fixed=fixed, parts=kept, ends=filling.ends, take=take, cells=cells, ordered=ordered)
        stored = [*ordered.values(), *(values for read, _ in kept for values in read.deferred.values())]
        self.budget.keep(buffer, sum(values.nbytes for values in stored))
        return buffer
