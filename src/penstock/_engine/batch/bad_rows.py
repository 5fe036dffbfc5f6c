"""Batches without their bad rows: put together as always, and where that fails, once more without the rows that are to blame.

A row is bad if a cell of it cannot be decoded, or is null or ragged where the column's policy refuses that, or if a function of
the user raises on it. Nothing else moves: other batches have the same rows as if none were bad, and this one is shorter, or is
filled up where batches are padded. A file that cannot be read is nobody's bad row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from penstock._engine.batch.assemble import AssembledRows, assemble, filled_up, mapped, thinned
from penstock._engine.decode.bad_cells import ROW_CODE, BadRow, bad_row_of, find_bad_rows
from penstock._engine.order.rank_epoch import RankEpoch
from penstock._engine.order.schedule import Draw
from penstock._engine.query.query import Query
from penstock._engine.runtime.timers import MAP
from penstock._engine.window.buffer import concat_arrays
from penstock._engine.window.reader import PASSED, WindowBuffer, WindowReader, WindowRows
from penstock._engine.window.sequences import SequenceWindowBuffer
from penstock.model import BoolArray, IntArray

__all__ = ["BatchTask", "map_good_rows"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchTask:
    """How some rows are finished: put together, and given to the user's functions.

    Attributes:
        query: What is asked.
        window_reader: What decodes them.
        rank_epoch: The leg that they are of.
        draw: What the batch is made of; None for single rows.
        rows: The rows.
        steps: Which steps of the leg they are, those between them being others'.
    """

    query: Query
    window_reader: WindowReader
    rank_epoch: RankEpoch
    draw: Draw | None
    rows: WindowRows
    steps: range

    @property
    def marked(self) -> bool:
        """Whether there are rows that are known to be bad."""
        return bool((_codes(self._mine()) < 0).any())

    @property
    def ids(self) -> IntArray:
        """Where each row lies."""
        return _codes(self._mine())[:, 0]

    def run(self) -> AssembledRows:
        """Return the rows as the consumer gets them, but for what a framework makes of them."""
        query = self.query
        if query.skip is None:
            return self._finished(None)
        rows = self._mine()
        codes = _codes(rows)
        if not len(codes) or codes.min() >= 0:
            try:
                return self._finished(np.arange(len(rows)) if query.maps and not query.lazy else None)
            except Exception as error:  # of the user's too
                if self._told(error) is None:
                    raise
        asked, marked = np.arange(len(rows)), np.flatnonzero((codes < 0).any(axis=1))
        if query.lazy:
            asked = np.flatnonzero(_passed(rows))  # those that do not pass are nobody's, good or bad
        made, bad = find_bad_rows(np.setdiff1d(asked, marked), self._finished, self._told)
        bad.update({row: self.window_reader.troubles[~int(codes[row].min())] for row in np.intersect1d(asked, marked).tolist()})
        made = replace(self._empty(), kept=asked[:0]) if made is None else made
        return replace(made, bad=tuple((int(codes[row, 0]), bad[row]) for row in sorted(bad)))

    def _told(self, error: BaseException) -> BadRow | None:
        """Return what an error says of a row; of a sequence, also where in it."""
        found = bad_row_of(error)
        if found is not None and found.column is not None and type(self.rows) is not WindowRows:
            return replace(found, problem=str(error))
        return found

    def _mine(self) -> WindowRows:
        """Return the rows that are this reader's."""
        return self.rows if self.steps.step == 1 else thinned(self.rows, self._first, self.steps.step)

    @property
    def _first(self) -> int:
        """Which of single rows is the first that is this reader's."""
        return self.steps.start - self.steps.stop + len(self.rows)

    def _finished(self, kept: IntArray | None) -> AssembledRows:
        """Return all rows, or some of them."""
        query, window_reader, steps, draw = self.query, self.window_reader, self.steps, self.draw
        rows = self._mine()
        # Where there are maps, they get a copy: one that fails may have changed it, and is run again.
        kept = None if kept is not None and len(kept) == len(rows) and not query.maps else kept
        some = rows if kept is None else _picked(rows, kept)
        lost = len(rows) - len(some)
        count = draw.size if draw else len(rows)
        count = count if draw and query.ending == "pad" else count - lost
        made, places = assemble(query, window_reader, some, count)
        if query.maps and (steps.step > 1 or kept is not None):
            places = self.rows.sequence if steps.step == 1 else self.rows.sequence[self._first :: steps.step]
            places = filled_up({}, places if kept is None else places[kept], len(some), count)[1]
        chunk = AssembledRows(
            rank_epoch=self.rank_epoch,
            start=steps.start,
            stop=steps.stop,
            columns=made,
            count=count,
            places=places,
            every=steps.step,
        )
        if query.skip is not None:
            made.pop(ROW_CODE, None)
            chunk.ids = _codes(some)[:, 0] if query.lazy or query.size is None else None
            chunk.kept = kept if lost else None
        if not (query.lazy or query.size is None or (not query.maps and query.ending != "pad")):
            valid = (draw.valid if draw else count) - (lost if query.ending == "pad" else 0)
            with window_reader.meter.busy(MAP):
                chunk.columns = mapped(query, made, places, self.rank_epoch.position.epoch, (count, valid))
        return chunk

    def _empty(self) -> AssembledRows:
        nothing: IntArray = np.zeros(0, dtype=np.int64)
        steps = self.steps
        return AssembledRows(
            rank_epoch=self.rank_epoch,
            start=steps.start,
            stop=steps.stop,
            columns={},
            count=0,
            places=nothing,
            every=steps.step,
        )


def map_good_rows(query: Query, chunk: AssembledRows) -> AssembledRows:
    """Return rows that were put together before, with maps run on all but those on which they raise."""
    if query.skip is None:
        return chunk.mapped(query, chunk.count)

    def attempt(rows: IntArray) -> AssembledRows:
        return chunk.picked(rows).mapped(query, len(rows))

    made, bad = find_bad_rows(np.arange(chunk.count), attempt)
    assert chunk.ids is not None  # noqa: S101 - rows that may be skipped say where they lie
    if made is None:
        made = chunk.picked(np.arange(0))
    return replace(made, bad=tuple((int(chunk.ids[row]), bad[row]) for row in sorted(bad)))


def _codes(rows: WindowRows) -> IntArray:
    """Return where each row lies, as a column of numbers; of a sequence, where all of its rows do."""
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


def _picked(rows: WindowRows, kept: IntArray) -> WindowRows:
    """Return some of the rows, in memory of their own as far as they have been put together."""
    pieces: list[tuple[WindowBuffer, int, int]] = []
    before = 0
    for buffer, start, stop in rows.pieces:
        inside = kept[(kept >= before) & (kept < before + stop - start)] - before
        before += stop - start
        if len(inside):
            pieces.append((buffer.chosen(inside + start), 0, len(inside)))
    return replace(rows, pieces=tuple(pieces), places=(0,) * len(pieces), ready={})
