"""Rows of windows become batches: assembled, filled up, and passed to the user's maps; bad rows are dropped where asked.

A row is bad if a cell of it cannot be decoded, is null or ragged where the column's policy refuses that, or if a map raises
on it. A batch that fails is made once more without the rows that are to blame. Other batches keep their rows: this one is
shorter, or filled up where batches are padded. A file that cannot be read is an error, not a bad row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock._engine.batch.user_map import apply_map, apply_stack, apply_to_row
from penstock._engine.decode.bad_cells import ROW_CODE, BadRow, bad_row_of, find_bad_rows
from penstock._engine.decode.columns import PASSED
from penstock._engine.order.shard import BatchRows, RankEpoch
from penstock._engine.query.query import Batch, Places, Query
from penstock._engine.runtime.timers import MAP
from penstock._engine.window.buffer import WindowBuffer, concat_arrays
from penstock._engine.window.reader import WindowReader, WindowRows
from penstock._engine.window.sequences import SequenceWindowBuffer
from penstock.model import BoolArray, IntArray
from penstock.policies import Offsets

NO_PLACES: IntArray = np.zeros(0, dtype=np.int64)
NO_NAMES: frozenset[str] = frozenset()


@dataclass(slots=True, kw_only=True, eq=False)
class AssembledRows:
    """The rows of the steps `start..stop` of a rank's epoch: one batch, or some single rows.

    It is not frozen: there is one for every batch, and a frozen value takes several times as long to make.

    Attributes:
        rank_epoch: The rank's epoch.
        start: The first step.
        stop: The step after the last.
        columns: The rows.
        count: The number of rows; there may be no column.
        places: The place of each row in the epoch's sequence; empty where no map asks for it.
        used: Under a lazy filter, the rows that the rank has consumed after each.
        every: The distance of two rows in steps; the rows between them are those of other workers.
        mapped_rows: Single rows that were mapped in a worker process.
        error: What a map raised on the row after the last of `mapped_rows`.
        selected: Which of the rows are left, where bad ones were dropped.
        ids: Where each row is stored, where bad rows are dropped; see `row_codes`.
        bad: The rows that were dropped.
        retry: Makes the batch without bad rows, if a worker process fails on it.
    """

    rank_epoch: RankEpoch
    start: int
    stop: int
    columns: Batch
    count: int
    places: IntArray
    used: IntArray | None = None
    every: int = 1
    mapped_rows: list[dict[str, Any]] | None = None
    error: BaseException | None = None
    selected: IntArray | None = None
    ids: IntArray | None = None
    bad: tuple[tuple[int, BadRow], ...] = ()
    retry: Callable[[], AssembledRows] | None = None

    def take(self, rows: slice | IntArray) -> AssembledRows:
        """Return some of the rows; only under a lazy filter."""
        assert self.used is not None  # noqa: S101 - under a lazy filter
        columns, used = {name: values[rows] for name, values in self.columns.items()}, self.used[rows]
        places = self.places[rows] if len(self.places) else self.places
        ids = None if self.ids is None else self.ids[rows]
        return replace(self, columns=columns, count=len(used), places=places, used=used, ids=ids, bad=())

    def then(self, more: AssembledRows) -> AssembledRows:
        """Return these rows and those that follow; only under a lazy filter."""
        columns = {name: np.concatenate([values, more.columns[name]]) for name, values in self.columns.items()}
        places, used = np.concatenate([self.places, more.places]), np.concatenate([self.used, more.used])
        ids = None if more.ids is None else np.concatenate([self.ids, more.ids])
        return replace(more, columns=columns, count=len(used), places=places, used=used, ids=ids)

    def mapped(self, query: Query, valid: int) -> AssembledRows:
        """Return the batch with its padding marked and the maps applied."""
        epoch = self.rank_epoch.position.epoch
        return replace(self, columns=mapped(query, self.columns, self.places, epoch, (self.count, valid)))

    def row(self, query: Query, at: int) -> dict[str, Any]:
        """Return one row with the maps applied."""
        if self.mapped_rows is None:
            return mapped_row(query, self.columns, self.places, self.rank_epoch.position.epoch, at)
        if at >= len(self.mapped_rows) and self.error is not None:
            raise self.error
        return self.mapped_rows[at]


def every_nth(rows: WindowRows, first: int, every: int) -> WindowRows:
    """Return every `every`-th row from `first` on, not yet assembled."""
    pieces: list[tuple[WindowBuffer, int, int]] = []
    for buffer, start, stop in rows.pieces:
        numbers = np.arange(start + first, stop, every)
        if len(numbers):
            pieces.append((buffer.chosen(numbers), 0, len(numbers)))
        first = (first - (stop - start)) % every
    return replace(rows, pieces=tuple(pieces), places=(0,) * len(pieces))


def assemble(query: Query, window_reader: WindowReader, rows: WindowRows, size: int) -> tuple[Batch, IntArray]:
    """Return rows as columns, filled up to `size` with the last row, and their places in the sequence."""
    count = len(rows)
    batch = rows.assemble(window_reader)
    places = rows.epoch_places if query.maps else NO_PLACES
    if size > count:
        window_reader.check_batch(size)
        batch, places = fill_up(batch, places, count, size)
    return (in_query_order(query, window_reader, batch) if window_reader.deferred else batch), places


def fill_up(batch: Batch, places: IntArray, rows: int, size: int) -> tuple[Batch, IntArray]:
    """Return rows and their places, with the last row repeated until there are `size`."""
    if size <= rows:
        return batch, places
    index = np.minimum(np.arange(size), rows - 1)
    return {name: values[index] for name, values in batch.items()}, places[index] if len(places) else places


def in_query_order(query: Query, window_reader: WindowReader, batch: Batch) -> Batch:
    """Return columns in the order of the query, with those stacked that were deferred."""
    return window_reader.arranged(stacked(query, batch) if query.stacks else batch)


def stacked(query: Query, batch: Batch) -> Batch:
    """Return a batch with the stacks that are not made yet, since their columns were deferred."""
    for stack in query.stacks:
        if stack.name not in batch:
            batch = apply_stack(stack, batch)
    return batch


def mapped(query: Query, columns: Batch, places: Places, epoch: int, rows: tuple[int, int]) -> Batch:
    """Return a batch with its padding marked and the maps applied.

    Args:
        query: The query.
        columns: The rows.
        places: The place of each row in the epoch's sequence.
        epoch: Their epoch.
        rows: The number of rows, and how many of them are no padding.
    """
    marks = {"_valid": np.arange(rows[0]) < rows[1]} if query.ending == "pad" else {}
    batch = {name: _writable(values) for name, values in columns.items()} if query.maps else dict(columns)
    batch.update(marks)
    flat = _flat_columns(query)
    for number, step in enumerate(query.maps):
        key = (query.seed, epoch, number)
        batch = apply_map(step, batch, places, key, resize=query.size == "row_group", free=flat)
        for name, mark in marks.items():
            batch.setdefault(name, mark)
    return batch


def _flat_columns(query: Query) -> frozenset[str]:
    """Return the columns that do not have one entry per row."""
    flat = [column.name for column in query.policies if isinstance(column.ragged, Offsets)] if query.policies else ()
    return frozenset(flat) | {f"{name}{suffix}" for name in flat for suffix in ("_offsets", "_valid")} if flat else NO_NAMES


def mapped_row(query: Query, columns: Batch, places: IntArray, epoch: int, at: int) -> dict[str, Any]:
    """Return one of some rows with the maps applied."""
    row = {name: values[at] for name, values in columns.items()}
    for number, step in enumerate(query.maps):
        row = apply_to_row(step, row, int(places[at]), (query.seed, epoch, number))
    return row


def _writable(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array that a map may write to."""
    return values if values.flags.writeable else values.copy()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchTask:
    """The task of making a batch, several whole batches, or some single rows: assemble, map, drop bad rows.

    Attributes:
        query: The query.
        window_reader: What decodes the rows.
        rank_epoch: The rank's epoch.
        batch: The rows of the batch; None for single rows and for several batches.
        rows: The rows in their windows.
        steps: The steps of the rank's epoch; where they skip some, those are of other workers.
    """

    query: Query
    window_reader: WindowReader
    rank_epoch: RankEpoch
    batch: BatchRows | None
    rows: WindowRows
    steps: range

    @property
    def is_together(self) -> bool:
        """Whether the rows are those of several whole batches, which are cut and mapped later."""
        return self.batch is None and self.query.size is not None

    @property
    def has_bad_rows(self) -> bool:
        """Whether some rows are known to be bad."""
        return bool((_codes(self.own_rows()) < 0).any())

    @property
    def ids(self) -> IntArray:
        """Where each row is stored."""
        return _codes(self.own_rows())[:, 0]

    def one_by_one(self) -> list[BatchTask]:
        """Return a task for each of several batches."""
        size = len(self.rows) // len(self.steps)
        return [
            replace(self, rows=self.rows.cut(at * size, at * size + size), steps=range(step, step + 1))
            for at, step in enumerate(self.steps)
        ]

    def run(self) -> AssembledRows:
        """Return the rows, with the maps applied where batches are mapped."""
        query = self.query
        if query.skip is None:
            return self._make(None)
        rows = self.own_rows()
        codes = _codes(rows)
        if not len(codes) or codes.min() >= 0:
            try:
                return self._make(np.arange(len(rows)) if query.maps and not query.lazy else None)
            except Exception as error:  # errors of maps too
                if self._bad_row(error) is None:
                    raise
        candidates, known = np.arange(len(rows)), np.flatnonzero((codes < 0).any(axis=1))
        if query.lazy:
            candidates = np.flatnonzero(_passed(rows))  # rows that do not pass are dropped anyway
        made, bad = find_bad_rows(np.setdiff1d(candidates, known), self._make, self._bad_row)
        known = np.intersect1d(candidates, known)
        bad.update({row: self.window_reader.bad_rows[~int(codes[row].min())] for row in known.tolist()})
        if made is None:
            made = self.empty()
            made.selected = candidates[:0]
        return replace(made, bad=tuple((int(codes[row, 0]), bad[row]) for row in sorted(bad)))

    def _bad_row(self, error: BaseException) -> BadRow | None:
        """Return the bad row that an error is about; of a sequence, with its row in it."""
        bad = bad_row_of(error)
        if bad is not None and bad.column is not None and type(self.rows) is not WindowRows:
            return replace(bad, problem=str(error))
        return bad

    def own_rows(self) -> WindowRows:
        """Return the rows that are not those of other workers."""
        return self.rows if self.steps.step == 1 else every_nth(self.rows, self._first, self.steps.step)

    def own_places(self) -> IntArray:
        """Return the places of these rows in the epoch's sequence."""
        return self.rows.epoch_places if self.steps.step == 1 else self.rows.epoch_places[self._first :: self.steps.step]

    @property
    def _first(self) -> int:
        """The first of single rows that is this worker's."""
        return self.steps.start - self.steps.stop + len(self.rows)

    def empty(self) -> AssembledRows:
        """Return the result without rows."""
        steps = self.steps
        return AssembledRows(
            rank_epoch=self.rank_epoch,
            start=steps.start,
            stop=steps.stop,
            columns={},
            count=0,
            places=NO_PLACES,
            every=steps.step,
        )

    def _make(self, selected: IntArray | None) -> AssembledRows:
        """Return all rows, or some of them."""
        query, window_reader, batch = self.query, self.window_reader, self.batch
        rows = some = self.own_rows()
        made = self.empty()
        dropped = 0
        # Maps get a copy: a map that fails may have changed it, and runs again.
        if selected is not None and (len(selected) < len(rows) or query.maps):
            some, dropped = _take(rows, selected), len(rows) - len(selected)
        else:
            selected = None
        count = batch.size if batch else len(rows)
        count = count if batch and query.ending == "pad" else count - dropped
        columns, places = assemble(query, window_reader, some, count)
        if query.maps and (self.steps.step > 1 or selected is not None):
            places = self.own_places()
            places = fill_up({}, places if selected is None else places[selected], len(some), count)[1]
        made.columns, made.count, made.places = columns, count, places
        if query.skip is not None:
            columns.pop(ROW_CODE, None)
            made.ids = _codes(some)[:, 0] if query.lazy or query.size is None else None
            made.selected = selected if dropped else None
        if not query.lazy and batch is not None and (query.maps or query.ending == "pad"):
            valid = batch.valid - (dropped if query.ending == "pad" else 0)
            with window_reader.meter.busy(MAP):
                made.columns = mapped(query, columns, places, self.rank_epoch.position.epoch, (count, valid))
        return made


def map_good_rows(query: Query, rows: AssembledRows) -> AssembledRows:
    """Return assembled rows with the maps applied to all rows but those on which they raise."""
    if query.skip is None:
        return rows.mapped(query, rows.count)

    def attempt(some: IntArray) -> AssembledRows:
        return rows.take(some).mapped(query, len(some))

    made, bad = find_bad_rows(np.arange(rows.count), attempt)
    assert rows.ids is not None  # noqa: S101 - set where bad rows are dropped
    if made is None:
        made = rows.take(np.arange(0))
    return replace(made, bad=tuple((int(rows.ids[row]), bad[row]) for row in sorted(bad)))


def _codes(rows: WindowRows) -> IntArray:
    """Return where each row is stored, as a column of numbers; for a sequence, a number for each of its rows."""
    parts = []
    for buffer, start, stop in rows.pieces:
        if isinstance(buffer, SequenceWindowBuffer):
            parts.append(buffer.flat[ROW_CODE][buffer.members(start, stop)])
        else:
            parts.append(buffer.fixed[ROW_CODE][start:stop, None])
    return concat_arrays(parts) if parts else np.zeros((0, 1), dtype=np.int64)


def _passed(rows: WindowRows) -> BoolArray:
    """Return which rows pass a lazy filter."""
    return concat_arrays([buffer.fixed[PASSED][start:stop] for buffer, start, stop in rows.pieces])


def _take(rows: WindowRows, selected: IntArray) -> WindowRows:
    """Return some of the rows; columns of a fixed size are copied."""
    pieces: list[tuple[WindowBuffer, int, int]] = []
    before = 0
    for buffer, start, stop in rows.pieces:
        inside = selected[(selected >= before) & (selected < before + stop - start)] - before
        before += stop - start
        if len(inside):
            pieces.append((buffer.chosen(inside + start), 0, len(inside)))
    return replace(rows, pieces=tuple(pieces), places=(0,) * len(pieces))
