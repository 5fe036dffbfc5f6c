"""Interleave the rows of several sources: rows of each source's windows, in the order of the mixture's slots."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock._engine.batch.assemble import assemble, mapped
from penstock._engine.batch.ragged import apply_ragged
from penstock._engine.batch.user_map import apply_map, by_row
from penstock._engine.decode.arrow import CellError
from penstock._engine.order.mixture import MixtureEpoch, SourceOrder
from penstock._engine.order.shard import RankEpoch
from penstock._engine.query.query import Batch, ColumnDecoding, Query
from penstock._engine.runtime.memory import BufferPool
from penstock._engine.runtime.timers import GATHER, MAP
from penstock._engine.window.buffer import WindowBuffer
from penstock._engine.window.prefetch import ROWS_TOGETHER, LanePrefetcher, Prefetcher
from penstock._engine.window.reader import WindowReader, WindowRows
from penstock.errors import DataError, MapError
from penstock.model import IntArray, Ranges

SOURCE = "_source"
"""The column with the number of a row's source."""

POOLED_BYTES = 1 << 16
"""Arrays of fewer bytes do not come from the buffer pool."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourceReading:
    """How one source of a mixture is read.

    Attributes:
        name: Its name in messages.
        query: Its query.
        window_reader: The reader of its windows.
        num_rows: The rows of its epoch.
        ahead: The most windows of each lane that are read ahead.
        memory_limit: Memory of its windows; one window of each lane is always read.
    """

    name: str
    query: Query
    window_reader: WindowReader
    num_rows: int
    ahead: int
    memory_limit: int

    def size(self, rows: int) -> int:
        """Return the number of rows handed out, given the number read."""
        size = self.query.batch_rows
        return rows if size is None or self.query.ending != "pad" else size

    def made(self, rows: WindowRows) -> Batch:
        """Return rows as the source hands them out, with its maps applied."""
        query, size = self.query, self.size(len(rows))
        columns, places = assemble(query, self.window_reader, rows, size)
        if query.size is None:
            if not query.maps:
                return columns
            with self.window_reader.meter.busy(MAP):
                return self._mapped_by_row(columns, places)
        # A batch is within one epoch.
        epoch = int(places[0]) // self.num_rows if len(places) else 0
        with self.window_reader.meter.busy(MAP):
            return mapped(query, columns, places % self.num_rows, epoch, (size, len(rows)))

    def _mapped_by_row(self, columns: Batch, places: IntArray) -> Batch:
        """Return single rows with the maps applied; some may be of the source's next epoch."""
        epochs = places // self.num_rows
        edges = [0, *(np.flatnonzero(np.diff(epochs)) + 1).tolist(), len(places)]
        found = []
        for start, stop in pairwise(edges):
            batch = {name: values[start:stop] for name, values in columns.items()}
            for number, step in enumerate(self.query.maps):
                key = (self.query.seed, int(epochs[start]), number)
                batch = apply_map(by_row(step), batch, places[start:stop] % self.num_rows, key, resize=False)
            found.append((self.name, np.arange(start, stop), batch))
        return found[0][2] if len(found) == 1 else interleaved(found, self.window_reader.buffer_pool)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MixtureRows(WindowRows):
    """The rows of the next slots, not yet assembled.

    Attributes:
        order: The source of each slot.
        parts: The rows of each source.
        width: The most rows of a slot.
        numbered: Whether the column `_source` is added.
        policies: Columns whose ragged policies act on rows of all sources.
    """

    slots: IntArray
    order: IntArray
    parts: tuple[WindowRows, ...]
    readings: tuple[SourceReading, ...]
    width: int
    numbered: bool
    policies: tuple[ColumnDecoding, ...]
    buffer_pool: BufferPool

    def __len__(self) -> int:
        """Return the number of slots."""
        return len(self.slots)

    @property
    def epoch_places(self) -> IntArray:
        """The place of each row in the epoch's sequence; all batches take as many places as the largest one."""
        if self.width == 1:
            return self.slots
        source = int(self.order[0])
        return np.arange(self.readings[source].size(len(self.parts[source]))) + int(self.slots[0]) * self.width

    def cut(self, start: int, stop: int) -> MixtureRows:
        """Return the rows of slots `start..stop`, each of one row."""
        parts = [
            part.cut(int((self.order[:start] == source).sum()), int((self.order[:stop] == source).sum()))
            for source, part in enumerate(self.parts)
        ]
        return replace(self, slots=self.slots[start:stop], order=self.order[start:stop], parts=tuple(parts))

    def assemble(self, window_reader: WindowReader) -> Batch:  # noqa: ARG002 - each source has its own
        """Return the rows as columns: a batch of one source as it is, or single rows of all sources interleaved."""
        if self.readings[0].query.size is not None:
            source = int(self.order[0])
            found = self.readings[source].made(self.parts[source])
            order = np.full(self.readings[source].size(len(self.parts[source])), source, dtype=np.int64)
        else:
            order = self.order
            made = [
                (reading.name, np.flatnonzero(order == source), reading.made(rows))
                for source, (reading, rows) in enumerate(zip(self.readings, self.parts, strict=True))
                if len(rows)
            ]
            with self.readings[0].window_reader.meter.busy(GATHER):
                found = self._ragged(interleaved(made, self.buffer_pool))
        return {**found, SOURCE: order.copy()} if self.numbered else found

    def _ragged(self, found: Batch) -> Batch:
        """Return rows of all sources with the mixture's ragged policies applied."""
        for column in self.policies:
            if column.name not in found:  # a map of the sources dropped it
                continue
            try:
                found = apply_ragged(found, column, self.buffer_pool)
            except CellError as error:
                raise self._located(error) from error
        return found

    def _located(self, error: CellError) -> DataError:
        """Return the error of a cell with its place in its source."""
        source = int(self.order[error.row or 0])
        row = None if error.row is None else int((self.order[: error.row] == source).sum())
        reading = self.readings[source]
        return self.parts[source].located(CellError(error.column, error.problem, row), reading.window_reader)


@dataclass(slots=True, kw_only=True, eq=False)
class _SourceRows:
    """The rows of one source for the next slots."""

    pieces: list[tuple[WindowBuffer, int, int]] = field(default_factory=list)
    places: list[int] = field(default_factory=list)

    def fetch(self, reading: SourceReading, source_order: SourceOrder, places: Sequence[tuple[int, int]]) -> None:
        """Append rows that are read out of turn."""
        for piece in source_order.pieces(places):
            self.pieces.append(
                (reading.window_reader.fetch(source_order.window(piece.lane, piece.window)), piece.start, piece.stop)
            )
            self.places.append(piece.place)

    def rows(self, reading: SourceReading) -> WindowRows:
        """Return the rows, not yet assembled."""
        return reading.window_reader.rows_type(pieces=tuple(self.pieces), places=tuple(self.places))


class MixturePrefetcher(Prefetcher):
    """Returns the slots of a rank's epoch, lane after lane in turn, each with the rows of its source."""

    def __init__(
        self,
        readings: Sequence[SourceReading],
        epoch: MixtureEpoch,
        rank_epoch: RankEpoch,
        *,
        buffer_pool: BufferPool,
        numbered: bool,
        policies: tuple[ColumnDecoding, ...],
    ) -> None:
        """Store where the epoch begins, and how sources are read."""
        self._buffer_pool, self._policies = buffer_pool, policies
        self._rank_epoch, self._epoch, self._readings, self._numbered = rank_epoch, epoch, tuple(readings), numbered
        lanes = rank_epoch.lanes_ahead()
        self._mixture_lanes = [_MixtureLane(self._readings, epoch, lane, share=len(lanes)) for lane in lanes]
        self._width = max(source_order.part.width for source_order in epoch.orders)

    def rows(self, start: int, stop: int, fill: Ranges = ()) -> WindowRows:
        """Return slots `start..stop` of the rank's shard, which continue the last ones; then those of `fill`."""
        # All sources begin to read before the first one is waited for.
        for lane in self._mixture_lanes:
            lane.begin()
        taken = [_SourceRows() for _ in self._readings]
        runs: list[tuple[int, int, int]] = []
        for number, count in self._rank_epoch.turns(start, stop):
            runs += self._mixture_lanes[number].take(count, taken)
        for run in self._epoch.runs(fill):
            for source, one in enumerate(taken):
                one.fetch(self._readings[source], self._epoch.orders[source], tuple(self._epoch.source_places(source, [run])))
            runs.append(run)
        return MixtureRows(
            pieces=(),
            places=(),
            slots=np.concatenate([np.zeros(0, dtype=np.int64), *(np.arange(begin, end) for _, begin, end in runs)]),
            order=np.concatenate([np.zeros(0, dtype=np.int64), *(self._epoch.pattern.sources(*run[1:]) for run in runs)]),
            parts=tuple(one.rows(reading) for one, reading in zip(taken, self._readings, strict=True)),
            readings=self._readings,
            width=self._width,
            numbered=self._numbered,
            policies=self._policies,
            buffer_pool=self._buffer_pool,
        )

    def prefetch(self) -> bool:
        """Begin to read the next windows; the next epoch is not begun early, because sources share the memory."""
        for lane in self._mixture_lanes:
            lane.prefetch()
        return False

    def pending_windows(self) -> list[Future[WindowBuffer]]:
        """Return nothing: a window of a mixture is waited for when its rows are needed."""
        return []

    def rows_together(self, start: int, stop: int) -> int:
        """Return how many of the slots `start..stop` may be interleaved at once."""
        return self.rows_ready(start, min(stop, start + ROWS_TOGETHER))

    def rows_ready(self, start: int, stop: int) -> int:
        """Return how many of the slots `start..stop` are in memory: all or none."""
        turns = self._rank_epoch.turns(start, stop)
        return stop - start if all(self._mixture_lanes[number].ready(count) for number, count in turns) else 0


class _MixtureLane:
    """The rest of one lane of a mixture: its slots, and a lane of each source."""

    def __init__(self, readings: Sequence[SourceReading], epoch: MixtureEpoch, ranges: Ranges, *, share: int) -> None:
        self._readings, self._epoch = readings, epoch
        self._runs = list(epoch.runs(ranges))
        self._run, self._passed = 0, 0
        self._counts: IntArray | None = None
        self._lanes = [
            LanePrefetcher(
                one.window_reader, source_order, epoch.source_places(source, self._runs), one.ahead, one.memory_limit // share
            )
            for source, (one, source_order) in enumerate(zip(readings, epoch.orders, strict=True))
        ]

    def take(self, count: int, taken: Sequence[_SourceRows]) -> list[tuple[int, int, int]]:
        """Append the rows of the next `count` slots, and return these slots."""
        runs = self._coming(count)
        for run in runs:
            slots = self._slots(run)
            for source, places in enumerate(self._places(run, slots)):
                rows = sum(stop - start for start, stop in places)
                self._lanes[source].take(rows, taken[source].pieces, taken[source].places)
                if rows:
                    self._wrap(source, places[0][0], rows, taken[source])
            self._pass(run, slots)
        return runs

    def begin(self) -> None:
        """Begin to read the next window of every source."""
        for lane in self._lanes:
            lane.begin()

    def prefetch(self) -> None:
        """Begin to read the next windows."""
        for lane in self._lanes:
            lane.prefetch()

    def ready(self, count: int) -> bool:
        """Return whether the next `count` slots are in memory."""
        slots = np.sum([self._slots(run) for run in self._coming(count)], axis=0).tolist()
        needed = (number * source_order.part.width for number, source_order in zip(slots, self._epoch.orders, strict=True))
        return all(lane.rows_ready(rows) == rows for lane, rows in zip(self._lanes, needed, strict=True))

    def _coming(self, count: int) -> list[tuple[int, int, int]]:
        """Return the next `count` slots as lane, start and stop."""
        found: list[tuple[int, int, int]] = []
        at, passed = self._run, self._passed
        while count:
            lane, start, stop = self._runs[at]
            slots = min(count, stop - start - passed)
            found.append((lane, start + passed, start + passed + slots))
            at, passed, count = at + 1, 0, count - slots
        return found

    def _slots(self, run: tuple[int, int, int]) -> IntArray:
        """Return the number of slots of each source."""
        return np.bincount(self._epoch.pattern.sources(*run[1:]), minlength=len(self._lanes))

    def _places(self, run: tuple[int, int, int], slots: IntArray) -> list[list[tuple[int, int]]]:
        """Return the places that the next slots take of each source; for single rows only their number."""
        if self._readings[0].query.size is None:
            return [[(0, number)] if number else [] for number in slots.tolist()]
        if self._counts is None:
            self._counts = self._epoch.pattern.counts(run[1])
        return [
            list(source_order.places(run[0], low, low + number))
            for source_order, low, number in zip(self._epoch.orders, self._counts.tolist(), slots.tolist(), strict=True)
        ]

    def _pass(self, run: tuple[int, int, int], slots: IntArray) -> None:
        """Pass some slots."""
        self._passed += run[2] - run[1]
        self._counts = None if self._counts is None else self._counts + slots
        if run[2] == self._runs[self._run][2]:
            self._run, self._passed, self._counts = self._run + 1, 0, None

    def _wrap(self, source: int, start: int, rows: int, taken: _SourceRows) -> None:
        """Fill the last batch of a source with rows from the beginning of its epoch, under `last="wrap"`."""
        query, source_order = self._readings[source].query, self._epoch.orders[source]
        size = query.batch_rows
        if query.ending != "wrap" or size is None or rows == size:
            return
        total = source_order.part.num_rows
        begin = start // total * total
        again, rest = divmod(size - rows, total)
        taken.fetch(self._readings[source], source_order, [(begin, begin + total)] * again + [(begin, begin + rest)])


def interleaved(parts: Sequence[tuple[str, IntArray, Batch]], buffer_pool: BufferPool) -> Batch:
    """Return rows of several sources as one batch; each part has a name, the places of its rows, and its columns."""
    count = sum(len(places) for _, places, _ in parts)
    first, _, columns = parts[0]
    for name, _, batch in parts[1:]:
        if batch.keys() != columns.keys():
            msg = (
                f"The maps of {first} return columns {', '.join(sorted(columns))}, and those of {name} "
                f"{', '.join(sorted(batch))}. All sources of a mixture must have the same columns. Return the same ones."
            )
            raise MapError(msg)
    order = np.empty(count, dtype=np.int64)
    order[np.concatenate([places for _, places, _ in parts])] = np.arange(count)
    return {name: _column(name, order, [(part[0], part[2][name]) for part in parts], buffer_pool) for name in columns}


def _column(
    name: str, order: IntArray, parts: Sequence[tuple[str, npt.NDArray[Any]]], buffer_pool: BufferPool
) -> npt.NDArray[Any]:
    """Return a column of all sources: stacked where the shapes of cells agree, else objects."""
    (first, values), *others = parts
    arrays = [array for _, array in parts]
    if all(array.dtype == values.dtype and array.shape[1:] == values.shape[1:] for array in arrays):
        shape = (len(order), *values.shape[1:])
        # mode="clip" saves the check of every index; they come from a permutation.
        large = sum(array.nbytes for array in arrays) > POOLED_BYTES
        whole = np.concatenate(arrays, out=buffer_pool.empty(shape, values.dtype) if large else None) if others else values
        return whole.take(order, axis=0, mode="clip", out=buffer_pool.empty(shape, values.dtype) if large else None)
    for other, array in others:
        if array.dtype != values.dtype and object not in (array.dtype, values.dtype):
            msg = (
                f"Column {name!r} is {values.dtype} as the maps of {first} return it, and {array.dtype} as those of {other} "
                "do. All sources of a mixture must have the same types. Return the same one, with .astype(...)."
            )
            raise MapError(msg)
    deferred = np.empty(len(order), dtype=object)
    for at, cell in enumerate(cell for array in arrays for cell in array):
        deferred[at] = cell
    return deferred[order]
