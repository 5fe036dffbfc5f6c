"""Windows become rows: units are read once, windows held while they are handed out, pieces of them put together."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._engine.decode import decode
from penstock._engine.order import Epoch, Piece
from penstock._engine.read import Part, Reader, Unit
from penstock._engine.transform import Batch
from penstock.model import WHOLE_FILE, BoolArray, IntArray, Plan, Read, Window
from penstock.stretches import Stretches

__all__ = ["ROW_IDS", "Gather", "Gathered"]

ROW_IDS = ("_file", "_row_group", "_row")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gathered:
    """Rows put together: their columns, where each stands in the epoch's sequence, and whether it passes a lazy filter."""

    columns: Batch
    places: IntArray
    passed: BoolArray | None = None

    @classmethod
    def none(cls) -> Gathered:
        """Return no rows at all."""
        return cls(columns={}, places=np.zeros(0, dtype=np.int64))

    def take(self, index: IntArray) -> Gathered:
        """Return some of the rows, all of which are taken to pass."""
        return Gathered(columns={name: values[index] for name, values in self.columns.items()}, places=self.places[index])

    def cut(self, start: int, stop: int) -> Gathered:
        """Return rows `start..stop`."""
        columns = {name: values[start:stop] for name, values in self.columns.items()}
        return Gathered(columns=columns, places=self.places[start:stop])

    def followed(self, more: Gathered) -> Gathered:
        """Return these rows and then others."""
        if not len(self.places):
            return more
        columns = {name: np.concatenate([values, more.columns[name]]) for name, values in self.columns.items()}
        return Gathered(columns=columns, places=np.concatenate([self.places, more.places]))


class Gather:
    """Puts together the rows of an epoch's pieces, holding no more than a window per lane in use."""

    def __init__(self, reader: Reader, plan: Plan, columns: tuple[str, ...], *, row_ids: bool) -> None:
        """Store what is read."""
        self.units_read = 0
        self._reader, self._plan, self._columns, self._row_ids = reader, plan, columns, row_ids
        self._lanes = 1
        self._held: OrderedDict[tuple[int, int], tuple[Batch, BoolArray | None]] = OrderedDict()
        self._carried: OrderedDict[int, pa.Table] = OrderedDict()
        self._epoch: Epoch | None = None

    def begin(self, epoch: Epoch, lanes: int) -> None:
        """Go on with another epoch, of which `lanes` lanes are read in turn."""
        self._epoch, self._lanes = epoch, lanes
        self.release()

    def release(self) -> None:
        """Let go of what is held."""
        self._held.clear()
        self._carried.clear()

    def rows(self, stretches: Stretches) -> Gathered:
        """Return the rows of a part of the sequence."""
        assert self._epoch is not None  # noqa: S101 - begin() comes first
        pieces = list(self._epoch.pieces(stretches))
        found = [self._cut(piece) for piece in pieces]
        places = [np.arange(piece.place, piece.place + piece.stop - piece.start) for piece in pieces]
        names = found[0][0].keys() if found else ()
        columns = {name: _concatenated([columns[name] for columns, _ in found]) for name in names}
        marks = [passed for _, passed in found if passed is not None]
        return Gathered(
            columns=columns,
            places=np.concatenate(places) if places else np.zeros(0, dtype=np.int64),
            passed=np.concatenate(marks) if marks else None,
        )

    def _cut(self, piece: Piece) -> tuple[Batch, BoolArray | None]:
        """Return one piece of a window."""
        columns, passed = self._window(piece)
        cut = slice(piece.start, piece.stop)
        return {name: values[cut] for name, values in columns.items()}, None if passed is None else passed[cut]

    def _window(self, piece: Piece) -> tuple[Batch, BoolArray | None]:
        """Return a window's columns, read where it is not held, and held until its last row is handed out."""
        held = self._held.pop((piece.lane, piece.window), None)
        if held is None:
            assert self._epoch is not None  # noqa: S101 - begin() comes first
            held = self.load(self._epoch.window(piece.lane, piece.window))
        if not piece.last:
            self._held[piece.lane, piece.window] = held
            _trim(self._held, 2 * self._lanes)
        return held

    def load(self, window: Window) -> tuple[Batch, BoolArray | None]:
        """Return the columns of a window, and which of its rows pass a lazy filter."""
        parts = [self._read(read) for read in window.reads]
        table = pa.concat_tables(parts) if parts else self.nothing()
        if window.take is not None:
            table = table.take(pa.array(window.take))
        passed = None
        if "_passed" in table.column_names:
            passed = table.column("_passed").to_numpy()
            table = table.drop_columns(["_passed"])
        where = self._reader.where(Unit.of(self._plan.units, window.reads[0].unit)) if window.reads else ""
        columns = {name: decode(table.column(name), name, where) for name in table.column_names}
        return columns, passed

    def _read(self, read: Read) -> pa.Table:
        """Return some rows of a unit; a unit that a window left half used is kept for the next window."""
        table = self._carried.pop(read.unit, None)
        if table is None:
            table = self.unit(read.unit)
        if not isinstance(read.rows, slice):
            return table.take(pa.array(read.rows))
        if read.rows.stop < self._plan.counts[read.unit]:
            self._carried[read.unit] = table
            _trim(self._carried, 2 * self._lanes)
        return table.slice(read.rows.start, read.rows.stop - read.rows.start)

    def unit(self, index: int) -> pa.Table:
        """Return the rows that are handed out of one unit."""
        unit = Unit.of(self._plan.units, index)
        table = self._completed(self._reader.read(unit, self._columns), unit)
        self.units_read += 1
        return table.slice(0, int(self._plan.counts[index]))

    def nothing(self) -> pa.Table:
        """Return no rows, with the columns that rows would have."""
        kinds = dict(zip(ROW_IDS, (pa.string(), pa.int64(), pa.int64()), strict=True)) if self._row_ids else {}
        fields = [self._plan.snapshot.schema.field(name) for name in self._columns]
        return pa.schema([*fields, *(pa.field(name, kind) for name, kind in kinds.items())]).empty_table()

    def _completed(self, part: Part, unit: Unit) -> pa.Table:
        """Return a unit's rows with the columns we add ourselves."""
        table = part.table
        if self._row_ids:
            path = self._plan.snapshot.files.path[unit.file]
            group = pa.repeat(pa.scalar(unit.row_group, pa.int64()), len(part.rows))
            if unit.row_group == WHOLE_FILE:
                group = pa.array(self._reader.row_groups(unit.file, part.rows))
            for name, values in zip(ROW_IDS, (pa.repeat(path, len(part.rows)), group, pa.array(part.rows)), strict=True):
                table = table.append_column(name, values)
        if self._reader.lazy:
            passed: npt.NDArray[Any] = np.ones(len(part.rows), dtype=np.bool_) if part.passed is None else part.passed
            table = table.append_column("_passed", pa.array(passed))
        return table


def _trim(held: OrderedDict[Any, Any], most: int) -> None:
    """Let go of the oldest; each lane uses one, and may have left one behind where its rows end inside."""
    while len(held) > most:
        held.popitem(last=False)


def _concatenated(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
