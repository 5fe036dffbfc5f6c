"""Rows of several sources in the order of their slots: taken of each source's own windows, and put together to batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
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
from penstock._engine.query.query import Batch, BatchAdapter, Column, Query
from penstock._engine.runtime.memory import BufferPool
from penstock._engine.runtime.timers import GATHER, MAP
from penstock._engine.window.buffer import WindowBuffer
from penstock._engine.window.prefetch import LanePrefetcher, Prefetcher
from penstock._engine.window.reader import WindowReader, WindowRows
from penstock.errors import DataError, MapError
from penstock.model import IntArray, Ranges

SOURCE = "_source"
"""The column that says which source a row comes from."""

ROWS_AT_ONCE = 1 << 13
"""Rows that are put together at a time where nothing but copying is to be done: many cost little more than one."""

WORTH_LENDING = 1 << 16

BYTES_AT_ONCE = 4 << 20
"""What they may take: more would no longer lie near when it is cut."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SourceReading:
    """How one source of a mixture is read.

    Attributes:
        name: What it is called in messages.
        query: What is asked of it.
        window_reader: What reads its windows.
        num_rows: The rows of an epoch of it.
        ahead: How many windows of each lane are read before they are needed, at most.
        memory_limit: Bytes that its windows in memory may have, where one of each lane does not have more.
    """

    name: str
    query: Query
    window_reader: WindowReader
    num_rows: int
    ahead: int
    memory_limit: int

    def size(self, rows: int) -> int:
        """Return how many rows are handed out, of so many that were read."""
        size = self.query.batch_rows
        return rows if size is None or self.query.ending != "pad" else size

    def made(self, rows: WindowRows) -> Batch:
        """Return rows as the source hands them out: columns in its order, its maps run."""
        query, size = self.query, self.size(len(rows))
        columns, places = assemble(query, self.window_reader, rows, size)
        if query.size is None:
            if not query.maps:
                return columns
            with self.window_reader.meter.busy(MAP):
                return self._mapped_by_row(columns, places)
        # A batch never goes on into the next epoch.
        epoch = int(places[0]) // self.num_rows if len(places) else 0
        with self.window_reader.meter.busy(MAP):
            return mapped(query, columns, places % self.num_rows, epoch, (size, len(rows)))

    def _mapped_by_row(self, columns: Batch, places: IntArray) -> Batch:
        """Return what maps make of single rows, some of which may be of the source's next epoch."""
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
    """What the next slots are made of, not yet put together.

    Attributes:
        slots: The numbers of the slots.
        order: The source of each.
        parts: Each source's rows of them.
        readings: How sources are read.
        width: Rows of a slot, at most.
        numbered: Whether the column that names the source is added.
        policies: Columns whose lists are padded, flattened or checked over rows of all sources.
        buffer_pool: What lends the memory of batches.
    """

    slots: IntArray
    order: IntArray
    parts: tuple[WindowRows, ...]
    readings: tuple[SourceReading, ...]
    width: int
    numbered: bool
    policies: tuple[Column, ...]
    buffer_pool: BufferPool

    def __len__(self) -> int:
        """Return the number of slots."""
        return len(self.slots)

    @property
    def sequence(self) -> IntArray:
        """Where each row stands in the epoch's sequence; batches stand as far apart as the largest of them asks for."""
        if self.width == 1:
            return self.slots
        source = int(self.order[0])
        return np.arange(self.readings[source].size(len(self.parts[source]))) + int(self.slots[0]) * self.width

    def assemble(self, window_reader: WindowReader) -> Batch:  # noqa: ARG002 - each source has its own
        """Return the rows as columns: a batch of one source as it is, or single rows of all sources in turn."""
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
            if column.name not in found:  # a map of the sources has left it out
                continue
            try:
                found = apply_ragged(found, column, self.buffer_pool)
            except CellError as error:
                raise self._located(error) from error
        return found

    def _located(self, error: CellError) -> DataError:
        """Return an error of a cell with the place of the cell in its source."""
        source = int(self.order[error.row or 0])
        row = None if error.row is None else int((self.order[: error.row] == source).sum())
        reading = self.readings[source]
        return self.parts[source].located(CellError(error.column, error.problem, row), reading.window_reader)


@dataclass(slots=True, kw_only=True, eq=False)
class _Taken:
    """What has been taken of one source for the next slots."""

    pieces: list[tuple[WindowBuffer, int, int]] = field(default_factory=list)
    places: list[int] = field(default_factory=list)

    def fetch(self, reading: SourceReading, source_order: SourceOrder, places: Sequence[tuple[int, int]]) -> None:
        """Add rows that are read out of turn."""
        for piece in source_order.pieces(places):
            self.pieces.append(
                (reading.window_reader.fetch(source_order.window(piece.lane, piece.window)), piece.start, piece.stop)
            )
            self.places.append(piece.place)

    def rows(self, reading: SourceReading) -> WindowRows:
        """Return it as rows that can be put together."""
        return reading.window_reader.rows_type(pieces=tuple(self.pieces), places=tuple(self.places))


class MixturePrefetcher(Prefetcher):
    """Hands out a leg's slots from its beginning on, lane after lane in turn, each made of rows of its source."""

    def __init__(
        self,
        readings: Sequence[SourceReading],
        mixing: MixtureEpoch,
        rank_epoch: RankEpoch,
        *,
        buffer_pool: BufferPool,
        numbered: bool,
        policies: tuple[Column, ...],
        adapter: BatchAdapter | None,
    ) -> None:
        """Store where the leg begins, how sources are read, and what views are turned into, if they are."""
        self._buffer_pool, self._policies = buffer_pool, policies
        self._rank_epoch, self._mixing, self._readings, self._numbered = rank_epoch, mixing, tuple(readings), numbered
        self._adapter = adapter
        self._at = rank_epoch.schedule.start
        self._cuts: Iterator[dict[str, Any]] = iter(())
        lanes = rank_epoch.lanes_ahead()
        self._mixture = [_MixtureLane(self._readings, mixing, lane, share=len(lanes)) for lane in lanes]
        self._width = max(source_order.part.width for source_order in mixing.orders)

    def rows(self, start: int, stop: int, fill: Ranges = ()) -> WindowRows:
        """Return slots `start..stop` of the rank's hand, which must go on where the last ones ended.

        `fill` is read out of turn and comes after them.
        """
        self._at = stop
        # All sources begin to read before one of them is waited for.
        for lane in self._mixture:
            lane.begin()
        taken = [_Taken() for _ in self._readings]
        runs: list[tuple[int, int, int]] = []
        for number, count in self._rank_epoch.turns(start, stop):
            runs += self._mixture[number].take(count, taken)
        for run in self._mixing.runs(fill):
            for source, one in enumerate(taken):
                one.fetch(self._readings[source], self._mixing.orders[source], tuple(self._mixing.source_places(source, [run])))
            runs.append(run)
        return MixtureRows(
            pieces=(),
            places=(),
            slots=np.concatenate([np.zeros(0, dtype=np.int64), *(np.arange(begin, end) for _, begin, end in runs)]),
            order=np.concatenate([np.zeros(0, dtype=np.int64), *(self._mixing.pattern.sources(*run[1:]) for run in runs)]),
            parts=tuple(one.rows(reading) for one, reading in zip(taken, self._readings, strict=True)),
            readings=self._readings,
            width=self._width,
            numbered=self._numbered,
            policies=self._policies,
            buffer_pool=self._buffer_pool,
        )

    def cut(self, count: int) -> dict[str, Any] | None:
        """Return the next slots as views, of many that are put together at a time; None where they must be waited for."""
        found = next(self._cuts, None)
        if found is not None or self._readings[0].query.size is not None:
            return found
        whole = self._batches_ready(count)
        if not whole:
            return None
        made = self.rows(self._at, self._at + whole * count).assemble(self._readings[0].window_reader)
        self.prefetch()
        self._cuts = self._cut_all(made, whole, count)
        return next(self._cuts)

    def _batches_ready(self, count: int) -> int:
        """Return how many of the next batches are in memory, as far as it is worth to put them together at once."""
        row_bytes = max(1.0, *(reading.window_reader.row_bytes for reading in self._readings))
        most = min(ROWS_AT_ONCE // count, int(BYTES_AT_ONCE / row_bytes / count))
        whole = min(max(1, most), (self._rank_epoch.shard.num_rows - self._at) // count)
        while whole and self.rows_ready(self._at, self._at + whole * count) < whole * count:
            whole //= 2
        return whole

    def _cut_all(self, made: Batch, whole: int, count: int) -> Iterator[dict[str, Any]]:
        """Yield batches of what was put together, as a framework has them."""
        if self._adapter is not None and made:
            return self._adapter.cuts(made, count)
        starts = range(0, whole * count, count)
        return ({name: values[start : start + count] for name, values in made.items()} for start in starts)

    def prefetch(self) -> bool:
        """Have the windows read that come next; the next leg is not begun before its turn, for sources share the memory."""
        for lane in self._mixture:
            lane.prefetch()
        return False

    def coming(self) -> list[Future[WindowBuffer]]:
        """Return nothing: the windows of a mixture are waited for when their rows are needed."""
        return []

    def rows_ready(self, start: int, stop: int) -> int:
        """Return how many of the slots `start..stop` are in memory: all or none."""
        turns = self._rank_epoch.turns(start, stop)
        return stop - start if all(self._mixture[number].ready(count) for number, count in turns) else 0


class _MixtureLane:
    """What is left of one lane of a mixture: its slots, and a lane of each source."""

    def __init__(self, readings: Sequence[SourceReading], mixing: MixtureEpoch, ranges: Ranges, *, share: int) -> None:
        self._readings, self._mixing = readings, mixing
        self._runs = list(mixing.runs(ranges))
        self._run, self._passed = 0, 0
        self._counts: IntArray | None = None
        self._lanes = [
            LanePrefetcher(
                one.window_reader, source_order, mixing.source_places(source, self._runs), one.ahead, one.memory_limit // share
            )
            for source, (one, source_order) in enumerate(zip(readings, mixing.orders, strict=True))
        ]

    def take(self, count: int, taken: Sequence[_Taken]) -> list[tuple[int, int, int]]:
        """Add the next `count` slots to what is made of each source, and return them."""
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
        """Begin to read what is needed next of every source."""
        for lane in self._lanes:
            lane.begin()

    def prefetch(self) -> None:
        """Have the windows read that come next."""
        for lane in self._lanes:
            lane.prefetch()

    def ready(self, count: int) -> bool:
        """Return whether the next `count` slots are in memory."""
        slots = np.sum([self._slots(run) for run in self._coming(count)], axis=0).tolist()
        needed = (number * source_order.part.width for number, source_order in zip(slots, self._mixing.orders, strict=True))
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
        """Return how many of some slots each source has."""
        return np.bincount(self._mixing.pattern.sources(*run[1:]), minlength=len(self._lanes))

    def _places(self, run: tuple[int, int, int], slots: IntArray) -> list[list[tuple[int, int]]]:
        """Return what the next slots take of each source; where slots are single rows, only how many of them."""
        if self._readings[0].query.size is None:
            return [[(0, number)] if number else [] for number in slots.tolist()]
        if self._counts is None:
            self._counts = self._mixing.pattern.counts(run[1])
        return [
            list(source_order.places(run[0], low, low + number))
            for source_order, low, number in zip(self._mixing.orders, self._counts.tolist(), slots.tolist(), strict=True)
        ]

    def _pass(self, run: tuple[int, int, int], slots: IntArray) -> None:
        """Go on behind some slots."""
        self._passed += run[2] - run[1]
        self._counts = None if self._counts is None else self._counts + slots
        if run[2] == self._runs[self._run][2]:
            self._run, self._passed, self._counts = self._run + 1, 0, None

    def _wrap(self, source: int, start: int, rows: int, taken: _Taken) -> None:
        """Fill a source's last batch up with rows of the beginning of its epoch, where that was asked for."""
        query, source_order = self._readings[source].query, self._mixing.orders[source]
        size = query.batch_rows
        if query.ending != "wrap" or size is None or rows == size:
            return
        total = source_order.part.num_rows
        begin = start // total * total
        again, rest = divmod(size - rows, total)
        taken.fetch(self._readings[source], source_order, [(begin, begin + total)] * again + [(begin, begin + rest)])


def interleaved(parts: Sequence[tuple[str, IntArray, Batch]], buffer_pool: BufferPool) -> Batch:
    """Return rows of several sources as one batch: each a name for messages, where its rows belong, and its columns."""
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
        # What is small is not worth to be lent. mode="clip" spares the check of every index; they come from a permutation.
        large = sum(array.nbytes for array in arrays) > WORTH_LENDING
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
