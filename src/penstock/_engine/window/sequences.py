"""Windows of sequences: the rows of units are kept once, and each sequence is assembled from them with its batch.

A window holds the rows of its units and, for every sequence, the place of its first row in a line in which the rows of a
sequence are neighbours. So long sequences take no more memory than short ones, and a blob that is in several sequences of a
batch is decoded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._engine.decode.columns import ROW_IDS, in_order
from penstock._engine.parquet.blob_chunks import concat_blobs
from penstock._engine.plan.sequence_times import SequenceFinder
from penstock._engine.query.query import Batch, ColumnDecoding, ReadSpec
from penstock._engine.read.reader import UNCOUNTED, Reader, Unit, UnitTable
from penstock._engine.runtime.threads import ThreadPool
from penstock._engine.runtime.timers import DECODE, GATHER, READ, Meter
from penstock._engine.window.buffer import UnitColumns, WindowBuffer, WindowBuilder, concat_arrays
from penstock._engine.window.reader import WindowReader, WindowRows
from penstock.errors import DataChangedError
from penstock.model import IntArray, Plan
from penstock.policies import Offsets
from penstock.sequences import Sequence as SequenceSpec
from penstock.shuffles import InOrder

NO_ROWS: IntArray = np.zeros(0, dtype=np.int64)
ALL_COLUMNS = (ColumnDecoding(name=""),)
"""Stands for the deferred columns: all columns of a sequence are assembled with its batch."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitSequenceColumns(UnitColumns):
    """The rows of a unit, and its sequences.

    Attributes:
        flat: Columns of a fixed size, one entry per row.
        more: Rows of other units, with which its sequences continue.
        line: Row numbers in which the rows of a sequence are neighbours; those of `more` come after the unit's own.
        begins: The place in the line where each sequence begins.
    """

    flat: Batch = field(default_factory=dict)
    more: tuple[UnitSequenceColumns, ...] = ()
    line: IntArray = field(default_factory=lambda: NO_ROWS)
    begins: IntArray = field(default_factory=lambda: NO_ROWS)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SequenceWindowBuffer(WindowBuffer):
    """A window of sequences in memory; its order is one of sequences.

    Attributes:
        rows: The rows, with their deferred columns.
        flat: Columns of a fixed size, one entry per row.
        line: Row numbers in which the rows of a sequence are neighbours.
        begins: The place in the line where each sequence begins.
        steps: The distances of a sequence's rows from its beginning.
    """

    rows: WindowBuffer
    flat: Batch
    line: IntArray
    begins: IntArray
    steps: IntArray

    def members(self, start: int, stop: int) -> IntArray:
        """Return the row numbers of sequences `start..stop`, one sequence per row."""
        rows: IntArray = self.line[self.begins[self.numbers(start, stop)][:, None] + self.steps]
        return rows

    def cut(self, start: int, stop: int) -> SequenceWindowBuffer:
        """Return a copy of some sequences, so that the window can be freed."""
        members = self.members(start, stop)
        distinct, line = np.unique(members, return_inverse=True)
        count, width = members.shape
        return SequenceWindowBuffer(
            fixed={},
            rows=replace(self.rows, take=distinct).cut(0, len(distinct)),
            flat={name: values[distinct] for name, values in self.flat.items()},
            line=line.reshape(-1),
            begins=np.arange(count) * width,
            steps=np.arange(width),
        )


class SequenceRows(WindowRows):
    """Consecutive sequences of one or several windows, not yet assembled."""

    __slots__ = ()

    def assemble(self, window_reader: WindowReader) -> Batch:
        """Return the sequences as columns; the rows of each are the second dimension."""
        assert isinstance(window_reader, SequenceWindowReader)  # noqa: S101 - which alone makes these
        pieces = [
            (buffer, buffer.members(start, stop))
            for buffer, start, stop in self.pieces
            if isinstance(buffer, SequenceWindowBuffer)
        ]
        return window_reader.assemble_sequences(pieces)


class SequenceWindowReader(WindowReader):
    """Reads units and puts windows of sequences together."""

    rows_type = SequenceRows

    def __init__(self, reader: Reader, plan: Plan, read_spec: ReadSpec, pool: ThreadPool, meter: Meter | None = None) -> None:
        """Store what is read, with which threads, and what counts how long it takes."""
        super().__init__(reader, plan, read_spec, pool, meter)
        assert read_spec.sequence is not None  # noqa: S101 - asked before
        self._sequence: SequenceSpec = read_spec.sequence
        self._finder = SequenceFinder.of(reader, read_spec.sequence, plan.links)
        self._named = {column.name: column for column in read_spec.columns}
        self._is_fixed = frozenset(one.name for one in self._fixed)
        # Every batch is assembled by a task, whatever its columns are.
        self.deferred, self.decodes_by_row, self._read_columns = ALL_COLUMNS, False, self.columns
        named = read_spec.sequence.columns
        if named is not None:
            ids = ROW_IDS if read_spec.row_ids else ()
            self.columns = tuple(f"{name}/{offset}" for offset, names in named.items() for name in (*names, *ids))

    @cached_property
    def _steps(self) -> IntArray:
        """How far after its first row the rows of a sequence stand; not made where there is no sequence, however long."""
        steps = self._sequence.steps
        return np.arange(len(steps)) if isinstance(steps, range) else np.array([step - steps[0] for step in steps])

    def arranged(self, found: Batch) -> Batch:
        """Return columns in the order asked for."""
        return in_order(found, self.columns, self.outputs, self._read_spec.stacks)

    @property
    def num_rows(self) -> int:
        """How many sequences there are."""
        return self._plan.num_rows

    def rows(self, numbers: IntArray) -> Batch:
        """Return sequences by their numbers in stored order, in the order asked for."""
        buffer = self.fetch(InOrder().arrange(self._plan.counts, seed=0, epoch=0).scattered(numbers))
        return SequenceRows(pieces=((buffer, 0, len(numbers)),), places=(0,)).assemble(self)

    def _read_all(self, indices: Sequence[int], window_rows: int) -> list[UnitColumns]:
        """Return units, read and decoded, with their sequences."""
        return [self._read_sequences(index, window_rows) for index in indices]

    def _read_sequences(self, index: int, window_rows: int) -> UnitSequenceColumns:
        """Return a unit, read and decoded, with its sequences."""
        unit = Unit.of(self._plan.units, index)
        self.budget.check_unit(partial(self._reader.where, unit), unit.rows, self._min_row_bytes)
        with self.meter.busy(READ):
            part = self._finder.read(unit, self._read_columns, self._blobs)
            self.meter.read(1, self._reader.handles.bytes_read)
            self._reader.handles.bytes_read = 0
        with self.meter.busy(GATHER):
            found = self._finder.find(index, unit, part)
            line, units, rows = self._needed(found.line, found.places, part.count, found.units, found.rows)
        with self.meter.busy(DECODE):
            own = self._unit(unit, part)
        more = tuple(self._border(number, rows[units == number]) for number in np.unique(units).tolist())
        with self._counting:
            self.units_read += 1 + len(more)
        fixed, deferred = (
            sum(values.nbytes for one in (own, *more) for values in getattr(one, name).values())
            for name in ("flat", "deferred")
        )
        self.budget.add_unit(rows=len(found.places), nbytes=fixed + deferred, window_rows=window_rows)
        return replace(own, more=more, line=line, begins=found.places)

    def _needed(
        self, line: IntArray, begins: IntArray, own: int, units: IntArray, rows: IntArray
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Return a line with those rows of other units only that are handed out, and these, by unit."""
        if not len(units):
            return line, units, rows
        # Step by step: all rows of all sequences at once may be many times those of the unit.
        every = (line[begins + step] for step in self._steps.tolist())
        used = np.unique(np.concatenate([some[some >= own] for some in every])) - own
        used = used[np.lexsort((rows[used], units[used]))]
        number = np.zeros(own + len(units), dtype=np.int64)
        number[:own], number[own + used] = np.arange(own), own + np.arange(len(used))
        return number[line], units[used], rows[used]

    def _unit(self, unit: Unit, part: UnitTable) -> UnitSequenceColumns:
        """Return rows, those of a fixed size decoded."""
        return _flat(self._decode_unit(unit, part))

    def _border(self, index: int, rows: IntArray) -> UnitSequenceColumns:
        """Return some rows of a unit that sequences of another go on with."""
        unit = replace(Unit.of(self._plan.units, index), count=UNCOUNTED)
        with self.meter.busy(READ):
            part = self._reader.read(unit, self._read_columns, self._blobs)
            self.meter.read(1, self._reader.handles.bytes_read)
            self._reader.handles.bytes_read = 0
        stored = np.arange(part.count) if part.selected is None else part.selected
        at = np.searchsorted(stored, rows)
        if len(at) and (at[-1] >= part.count or (stored[at] != rows).any()):
            msg = (
                f"{self._reader.where(unit)}: a row that a sequence goes on with is no longer there. The file was changed "
                "after the table was opened. Open the table again; a state saved before cannot be resumed."
            )
            raise DataChangedError(msg)
        table = part.table.take(pa.array(at)) if part.table.num_columns else part.table
        cells = {name: cells.take(at) for name, cells in part.cells.items()}
        with self.meter.busy(DECODE):
            return self._unit(unit, UnitTable(table=table, first=part.first, count=len(rows), selected=rows, cells=cells))

    def _buffer(self, builder: WindowBuilder, reads: Sequence[UnitColumns]) -> SequenceWindowBuffer:
        """Return a window: the rows that its sequences need, and where each begins."""
        units = [read if isinstance(read, UnitSequenceColumns) else _flat(read) for read in reads]
        selected = [self._select(read, read_spec.rows) for read, read_spec in zip(units, builder.window.reads, strict=True)]
        parts = [part for one in selected for part in one.parts]
        kept = tuple((replace(read, flat={}, more=(), line=NO_ROWS, begins=NO_ROWS), rows) for read, rows in parts)
        cells = {name: concat_blobs([read.deferred[name].take(rows) for read, rows in kept]) for name in self._blobs}
        buffer = SequenceWindowBuffer(
            fixed={},
            take=builder.window.take,
            rows=WindowBuffer(fixed={}, parts=kept, ends=np.cumsum([_size(rows) for _, rows in parts]), cells=cells),
            flat={name: concat_arrays([read.flat[name][rows] for read, rows in parts]) for name in parts[0][0].flat},
            line=concat_arrays(
                [one.line + before for one, before in zip(selected, _before([one.size for one in selected]), strict=True)]
            ),
            begins=concat_arrays(
                [one.begins + at for one, at in zip(selected, _before([len(one.line) for one in selected]), strict=True)]
            ),
            steps=self._steps,
        )
        stored = [values.nbytes for read, _ in parts for some in (read.flat, read.deferred) for values in some.values()]
        self.budget.count_while_alive(buffer, sum(stored))
        return buffer

    def _select(self, read: UnitSequenceColumns, which: slice | IntArray) -> _SelectedSequences:
        """Return some sequences of a unit, and no more rows than they need."""
        begins, every = read.begins[which], (read, *read.more)
        sizes = [one.rows.count for one in every]
        if len(begins) == len(read.begins):
            whole = [(one, slice(0, size)) for one, size in zip(every, sizes, strict=True)]
            return _SelectedSequences(parts=whole, line=read.line, begins=begins)
        used = np.zeros(sum(sizes), dtype=np.bool_)
        for step in self._steps.tolist():
            used[read.line[begins + step]] = True
        parts = [(one, np.flatnonzero(used[at : at + one.rows.count])) for one, at in zip(every, _before(sizes), strict=True)]
        return _SelectedSequences(parts=parts, line=(np.cumsum(used) - 1)[read.line], begins=begins)

    def assemble_sequences(self, pieces: Sequence[tuple[SequenceWindowBuffer, IntArray]]) -> Batch:
        """Return sequences as columns, given the rows of each."""
        named, row_ids = self._sequence.columns, ROW_IDS if self._read_spec.row_ids else ()
        assembler = _SequenceAssembler(self, pieces)
        found: Batch = {}
        if named is None:
            for name in (*self._read_columns, *row_ids):
                found.update(assembler.column(name, range(len(self._steps))))
            for stack in self._read_spec.stacks:
                found[stack.name] = np.stack([found.pop(name) for name in stack.columns], axis=2)
            return found
        at = {offset: number for number, offset in enumerate(named)}
        for name in (*self._read_columns, *row_ids):
            offsets = [offset for offset, names in named.items() if name in names or name in row_ids]
            made = assembler.column(name, [at[offset] for offset in offsets])
            for number, offset in enumerate(offsets):
                self.outputs[f"{name}/{offset}"] = tuple(f"{one}/{offset}" for one in made)
                found.update({f"{one}/{offset}": values[:, number] for one, values in made.items()})
        return found

    def deferred_column(self, name: str) -> ColumnDecoding | None:
        """Return a column that is decoded with its batch; None for one that was decoded with its unit."""
        return None if name in self._is_fixed or name in ROW_IDS else self._named[name]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _SelectedSequences:
    """Sequences of a unit: the rows that they need, and where each begins in their line."""

    parts: Sequence[tuple[UnitSequenceColumns, slice | IntArray]]
    line: IntArray
    begins: IntArray

    @property
    def size(self) -> int:
        """The number of rows."""
        return sum(_size(rows) for _, rows in self.parts)


def _size(rows: slice | IntArray) -> int:
    return int(rows.stop) if isinstance(rows, slice) else len(rows)


def _before(sizes: Sequence[int]) -> list[int]:
    """Return the sum of the sizes before each one."""
    ends: list[int] = np.cumsum([0, *sizes]).tolist()
    return ends[:-1]


def _flat(read: UnitColumns) -> UnitSequenceColumns:
    """Return the rows of a unit, without sequences."""
    return UnitSequenceColumns(unit=read.unit, rows=read.rows, fixed={}, deferred=read.deferred, flat=read.fixed)


class _SequenceAssembler:
    """Assembles the columns of one batch of sequences."""

    def __init__(self, window_reader: SequenceWindowReader, pieces: Sequence[tuple[SequenceWindowBuffer, IntArray]]) -> None:
        self._window_reader, self._pieces = window_reader, pieces
        self._count = sum(len(members) for _, members in pieces)
        self._known: dict[tuple[int, ...], list[IntArray]] = {}

    def column(self, name: str, which: Sequence[int]) -> Batch:
        """Return a column as arrays, with the given rows of each sequence."""
        column = self._window_reader.deferred_column(name)
        if column is None:
            with self._window_reader.meter.busy(GATHER):
                return {one: self._fixed(one, which) for one in self._window_reader.outputs.get(name, (name,))}
        index, distinct = [], []
        before = 0
        for (buffer, _), members in zip(self._pieces, self._members(which), strict=True):
            rows, inverse = np.unique(members, return_inverse=True)
            index.append(inverse.reshape(members.shape) + before)
            distinct.append((replace(buffer.rows, take=rows), 0, len(rows)))
            before += len(rows)
        rows_once = WindowRows(pieces=tuple(distinct), places=(0,) * len(distinct))
        with self._window_reader.meter.busy(DECODE):
            decoded = rows_once.decoded(column, self._window_reader)
        with self._window_reader.meter.busy(GATHER):
            return _repeated(decoded, np.concatenate(index), column, self._window_reader)

    def _fixed(self, name: str, which: Sequence[int]) -> npt.NDArray[Any]:
        """Return a column that was decoded with its unit."""
        like = self._pieces[0][0].flat[name]
        found = self._window_reader.buffer_pool.empty((self._count, len(which), *like.shape[1:]), like.dtype)
        start = 0
        for (buffer, _), members in zip(self._pieces, self._members(which), strict=True):
            stop = start + len(members)
            buffer.flat[name].take(members, axis=0, mode="clip", out=found[start:stop])
            start = stop
        return found

    def _members(self, which: Sequence[int]) -> list[IntArray]:
        """Return the given rows of each sequence, for each piece; computed once for all columns."""
        found = self._known.get(tuple(which))
        if found is None:
            found = self._known[tuple(which)] = [members[:, list(which)] for _, members in self._pieces]
        return found


def _repeated(made: Batch, index: IntArray, column: ColumnDecoding, window_reader: WindowReader) -> Batch:
    """Return rows as often as sequences have them; `index` has the row of each."""
    offsets = made.get(f"{column.name}_offsets") if isinstance(column.ragged, Offsets) else None
    if offsets is None:
        found = {}
        for name, values in made.items():
            out = window_reader.buffer_pool.empty((*index.shape, *values.shape[1:]), values.dtype)
            found[name] = values.take(index, axis=0, mode="clip", out=out)
        return found
    # Lists one after the other: repeated ones are copied, and all get new offsets.
    rows = index.reshape(-1)
    sizes = np.diff(offsets)[rows]
    ends = np.cumsum(sizes)
    items = np.arange(int(sizes.sum())) + np.repeat(offsets[:-1][rows] - (ends - sizes), sizes)
    found = {name: values[items] for name, values in made.items() if name != f"{column.name}_offsets"}
    return {**found, f"{column.name}_offsets": np.concatenate([[0], ends])}
