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
from penstock._engine.decode.bad_cells import AT, Trouble, code_of, decode_good
from penstock._engine.query.projection import Wanted
from penstock._engine.query.values import Batch, Column
from penstock._engine.read.reader import Part, Reader, Unit
from penstock._engine.runtime.interruptible import Promise
from penstock._engine.runtime.memory_budget import Budget
from penstock._engine.runtime.threads import Pool, Urgency, outcome
from penstock._engine.runtime.timers import DECODE, GATHER, READ, Meter
from penstock._engine.window.buffer import Cells, Filling, Held, UnitRows, brought_in_order, cells_of, joined, one_after_another
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

__all__ = ["PASSED", "ROW_IDS", "Gather", "Held", "Pending", "Rows"]


class Pending:
    """A window that is being read; its units are read on threads, and the last of them puts it together."""

    def __init__(self) -> None:
        """Make the promise of a window."""
        self.held: Future[Held] = Promise()
        self.begun: Future[None] = Promise()
        self.tail: tuple[int, Future[UnitRows]] | None = None
        self._left = 0
        self._lock = threading.Lock()

    def passed_on(self) -> tuple[int, Future[UnitRows]] | None:
        """Return the unit that this window has left half used, and let go of it: who waits for it leads back to here."""
        tail, self.tail = self.tail, None
        return tail

    def handed(self) -> Held:
        """Return the window, waiting for it, and let go of it, so that its memory comes back without garbage collection."""
        held = outcome(self.held)
        self.held = Promise()
        return held

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
            self.held.cancel()
            self.begun.cancel()
        elif (error := task.exception()) is not None:
            self.held.set_exception(error)
            if not self.begun.done():
                self.begun.set_result(None)


LIGHT = 8
"""A window's texts and lists are brought in order at once if so many of them fit in memory; else they are picked by batches."""

MOST_IN_ORDER = 1 << 30
"""Bytes of texts that are brought in order at most: Arrow counts them in 32 bits."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Rows of some windows, one after the other, not yet put together.

    Attributes:
        pieces: Windows, and which rows of each.
        places: Where the first row of each piece stands in the epoch's sequence.
        ready: What columns that were left as stored have become, where they were decoded with those of other rows.
    """

    pieces: tuple[tuple[Held, int, int], ...]
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

    def put_together(self, gather: Gather) -> Batch:
        """Return the rows as columns, those that were left as stored decoded now.

        Raises:
            DataError: If a cell cannot be decoded; it says where the cell lies.
        """
        found = self.gathered()
        for column in gather.loose:
            if column.name in self.ready:
                found.update(self.ready[column.name])
                continue
            with gather.meter.busy(DECODE):
                found.update(self.decoded(column, gather))
        return found

    def gathered(self) -> Batch:
        """Return the columns that were gathered with their windows."""
        if len(self.pieces) == 1:
            held, start, stop = self.pieces[0]
            return {name: values[start:stop] for name, values in held.fixed.items()}
        names = self.pieces[0][0].fixed if self.pieces else ()
        found = {name: joined([held.fixed[name][start:stop] for held, start, stop in self.pieces]) for name in names}
        for name, values in found.items():
            # Whether a batch lies in one window or in two must not show: what is a view elsewhere is none's to write.
            values.flags.writeable = all(held.fixed[name].flags.writeable for held, _, _ in self.pieces)
        return found

    def picked(self, name: str) -> pa.Array | Cells:
        """Return a column that was left as stored, as it is."""
        return one_after_another([held.pick(name, start, stop) for held, start, stop in self.pieces])

    def decoded(self, column: Column, gather: Gather) -> Batch:
        """Return a column that was left as stored.

        Raises:
            DataError: If a cell cannot be decoded; it says where the cell lies.
        """
        try:
            made = decoded(self.picked(column.name), column, gather.slabs, gather.most_bytes, gather.meter)
        except CellError as error:
            raise self.told(error, gather) from error
        gather.outputs[column.name] = tuple(made)
        return made

    def told(self, error: CellError, gather: Gather) -> DataError:
        """Return an error of a cell with the place of the cell."""
        row = error.row or 0
        for held, start, stop in self.pieces:
            if row < stop - start:
                read, number = held.where(start + row)
                return gather.told(error, read.unit, number if error.row is not None else None)
            row -= stop - start
        return DataError(f"column {error.column!r}: {error.problem}")


class Gather:
    """Reads units and puts windows together, on the threads of a pool."""

    rows_type = Rows

    def __init__(self, reader: Reader, plan: Plan, wanted: Wanted, pool: Pool, meter: Meter | None = None) -> None:
        """Store what is read, with which threads, and what counts how long it takes."""
        self.slabs, self.meter = reader.slabs, meter or Meter(threads=pool.threads)
        reader.stay.bound(wanted.memory_limit)
        self.budget = Budget(wanted.memory_limit, reader.slabs, pool.threads, reader.stay)
        self.units_read = 0
        self._counting = threading.Lock()
        self.outputs: dict[str, tuple[str, ...]] = {}
        self.troubles: dict[int, Trouble] = {}
        self._reader, self._plan, self._wanted, self._pool = reader, plan, wanted, pool
        schema = plan.snapshot.schema
        self._fixed = [column for column in wanted.columns if is_fixed(column, schema.field(column.name).type)]
        if wanted.skip:  # which of a codec's cells are bad is found out batch by batch
            self._fixed = [column for column in self._fixed if column.codec is None]
        fixed = {column.name for column in self._fixed}
        self._loose = [column for column in wanted.columns if column.name not in fixed]
        self._columns = tuple(column.name for column in wanted.columns)
        self._least = sum(cell_bytes(one) or dtypes.least_bytes(schema.field(one.name).type) for one in self._fixed)
        self._blobs = tuple(column.name for column in self._loose if column.codec is not None)
        self.texts = tuple(one for one in self._loose if one.codec is None and schema.field(one.name).type in TEXTS)
        self._plain = tuple(one.name for one in self._loose if one.codec is None)
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
    def most_bytes(self) -> int:
        """What one cell may take when it is decoded."""
        return self._wanted.most_bytes

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the table's columns that are read, in the order asked for."""
        return self._columns

    @property
    def loose(self) -> tuple[Column, ...]:
        """The columns that are picked per batch."""
        return tuple(self._loose)

    @property
    def dense_bytes(self) -> int:
        """What the cells of a row take decoded, of those that all have one shape."""
        return sum(map(cell_bytes, self._loose))

    def arranged(self, found: Batch) -> Batch:
        """Return columns in the order asked for: the table's, those that say where rows lie, stacks."""
        return in_order(found, self._columns, self.outputs, self._wanted.stacks)

    def draw(self, window: Callable[[], Window]) -> Future[Window]:
        """Begin to find out what a window is made of; the permutation of its rows takes about as long as to apply it."""
        return self._pool.submit(Urgency.READ, self.meter.timed(GATHER, window))

    def request(self, window: Future[Window], before: Pending | None) -> Pending:
        """Begin to read a window; a unit that the window before left half used is not read again."""
        pending, drawn, earlier = Pending(), [window], [] if before is None else [before]

        def begin() -> None:
            # Both are popped, for they lead back to here.
            filling = Filling(drawn.pop().result(), self._wanted.stacks, self.slabs, writable=self._wanted.writable)
            tail = earlier.pop().passed_on() if earlier else None
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
                    pending.held.set_result(self._held(filling, found))

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
        self, filling: Filling, pending: Pending, tail: tuple[int, Future[UnitRows]] | None
    ) -> tuple[list[Future[UnitRows]], list[int]]:
        """Begin to read a window's units, and return them with those that were begun before and are put in at the end."""
        reads, late = [], []
        wanted = filling.window.reads
        for at, read in enumerate(wanted):
            half_used = at == len(wanted) - 1 and self._half_used(read)
            if tail is not None and tail[0] == read.unit:
                future = tail[1]
                late.append(at)
            else:
                future = self._pool.submit(Urgency.READ, partial(self._put_in, filling, at, keep=half_used))
            if half_used:
                pending.tail = (read.unit, future)
            reads.append(future)
        return reads, late

    def _promised(self, pending: Pending, task: Callable[[], None]) -> None:
        """Run a task on a thread; whatever becomes of it, those who wait for the window are told."""
        self._timed(task).add_done_callback(pending.settle)

    def _timed(self, task: Callable[[], None]) -> Future[None]:
        """Begin a task on a thread, timed where it runs."""
        return self._pool.submit(Urgency.ASSEMBLE, self.meter.timed(GATHER, task))

    def fetch(self, window: Window) -> Held:
        """Return a window, read here and now."""
        if not window.reads:
            empty = Unit(file=0, row_group=0, start=0, first=0, rows=0, count=0, residual=False)
            fields = [self._plan.snapshot.schema.field(name) for name in self._columns]
            nothing = Part(table=pa.schema(fields).empty_table(), first=0, count=0)
            window = Window(reads=(Read(unit=0, rows=slice(0, 0)),))
            return self._filled(window, [self._decoded(empty, nothing)])
        return self._filled(window, [self._read(read.unit) for read in window.reads])

    def _filled(self, window: Window, reads: Sequence[UnitRows]) -> Held:
        filling = Filling(window, self._wanted.stacks, self.slabs, writable=self._wanted.writable)
        for at, read in enumerate(reads):
            filling.put(at, read.fixed)
        filling.steps()
        filling.order()
        return self._held(filling, reads)

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
        kinds = dict(zip(ROW_IDS, (pa.string(), pa.int64(), pa.int64()), strict=True)) if self._wanted.row_ids else {}
        fields = [self._plan.snapshot.schema.field(name) for name in self._columns]
        return pa.schema([*fields, *(pa.field(name, kind) for name, kind in kinds.items())]).empty_table()

    def _half_used(self, read: Read) -> bool:
        return isinstance(read.rows, slice) and read.rows.stop < self._plan.counts[read.unit]

    def _read(self, index: int) -> UnitRows:
        """Return a unit, read and decoded."""
        unit = Unit.of(self._plan.units, index)
        self.budget.check_unit(partial(self._reader.where, unit), unit.rows, self._least)
        part = self._reader.stay.get(self._reader.name(unit, self._columns, self._blobs))
        if part is None:
            with self.meter.busy(READ):
                part = self._reader.read_to_stay(unit, self._columns, self._blobs, self._plan.num_rows)
                self.meter.read(self._reader.fetched())
            with self._counting:
                self.units_read += 1
        with self.meter.busy(DECODE):
            found = self._decoded(unit, part)
        fixed, loose = (sum(values.nbytes for values in some.values()) for some in (found.fixed, found.loose))
        self.budget.note(rows=part.count, fixed=fixed, loose=loose)
        del part
        self.budget.tidy()
        return found

    def _decoded(self, unit: Unit, part: Part) -> UnitRows:
        """Return a unit's rows with the columns of a fixed size decoded, and those stacked that can be."""
        fixed: Batch = {}
        bad: dict[int, Trouble] = {}
        for column in self._fixed:
            try:
                made = self._made(part, column)
            except CellError as error:
                if not self._wanted.skip:
                    raise self.told(error, unit, None if error.row is None else int(part.numbers()[error.row])) from error
                made, more = decode_good(part.table.column(column.name), column)
                bad = {**more, **bad}
            self.outputs[column.name] = tuple(made)
            fixed.update(made)
        if self._wanted.skip:
            fixed[AT] = self._marked(unit, part, bad)
        loose: dict[str, pa.Array | Cells] = dict(part.cells)
        try:
            loose.update({one.name: stored(part.table.column(one.name), one) for one in self._loose if one.name not in loose})
        except CellError as error:
            raise self.told(error, unit, None) from error
        fixed.update(self._ids(unit, part))
        if self._reader.lazy:
            fixed[PASSED] = np.ones(part.count, dtype=np.bool_) if part.passed is None else part.passed
        # What has been decoded need not be kept as Arrow too.
        left = Part(table=pa.table({}), first=part.first, count=part.count, kept=part.kept)
        lasting = frozenset(part.views) if part.lasts else frozenset()
        return UnitRows(unit=unit, part=left, fixed=fixed, loose=loose, lasting=lasting)

    def _made(self, part: Part, column: Column) -> Batch:
        """Return a column of a unit decoded."""
        stored_as = part.table.column(column.name)
        if column.codec is not None:
            view = viewed(part, column, self.most_bytes) if self._wanted.permuted else None
            if view is not None:
                return {column.name: view}
            return decoded(stored(stored_as, column), column, self.slabs, self.most_bytes, self.meter)
        view = plain(part, column)
        return decode(stored_as, column) if view is None else {column.name: view}

    def _marked(self, unit: Unit, part: Part, bad: dict[int, Trouble]) -> IntArray:
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

    def _ids(self, unit: Unit, part: Part) -> Batch:
        """Return the columns that say where each row lies."""
        if not self._wanted.row_ids:
            return {}
        path = np.full(part.count, self._plan.snapshot.files.path[unit.file].as_py(), dtype=object)
        numbers = part.numbers()
        return dict(zip(ROW_IDS, (path, self._reader.row_groups(unit, numbers), numbers), strict=True))

    def _put_in(self, filling: Filling, at: int, *, keep: bool) -> UnitRows:
        """Read a unit, put it in its window, and let go of what nobody needs after that."""
        found = self._read(filling.window.reads[at].unit)
        self.budget.check_window(int(filling.ends[-1]))
        with self.meter.busy(GATHER):
            filling.put(at, found.fixed, found.lasting)
        return found if keep else replace(found, fixed={})

    def _held(self, filling: Filling, reads: Sequence[UnitRows]) -> Held:
        """Return a window that has been filled, its columns of a fixed size in the order they are handed out."""
        fixed = self.arranged(filling.complete())
        rows = (read.rows for read in filling.window.reads)
        # Without columns to be picked later, a window need not keep what its units gave.
        kept = tuple((replace(read, fixed={}), at) for read, at in zip(reads, rows, strict=True)) if self._loose else ()
        take = filling.window.take
        cells = cells_of(kept, self._blobs, self._bytes)
        plain = [name for name in self._plain if name not in cells]
        kept, ordered = brought_in_order(kept, plain, take, min(MOST_IN_ORDER, self.budget.limit // LIGHT))
        held = Held(fixed=fixed, parts=kept, ends=filling.ends, take=take, cells=cells, ordered=ordered)
        stored = [*ordered.values(), *(values for read, _ in kept for values in read.loose.values())]
        self.budget.keep(held, sum(values.nbytes for values in stored))
        return held
