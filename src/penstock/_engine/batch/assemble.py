"""The last steps of a batch: rows are put together, filled up, and given to the user's functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock._engine.batch.user_map import apply_map, apply_stack, apply_to_row
from penstock._engine.decode.bad_cells import BadRow
from penstock._engine.order.rank_epoch import RankEpoch
from penstock._engine.query.query import Query
from penstock._engine.query.values import Batch, Places
from penstock._engine.window.reader import WindowBuffer, WindowReader, WindowRows
from penstock.model import IntArray
from penstock.policies import Offsets

__all__ = ["NOWHERE", "AssembledRows", "assemble", "filled_up", "in_query_order", "mapped", "mapped_row", "stacked", "thinned"]

NOWHERE: IntArray = np.zeros(0, dtype=np.int64)
NONE: frozenset[str] = frozenset()


@dataclass(slots=True, kw_only=True, eq=False)
class AssembledRows:
    """Rows put together: what the steps `start..stop` of a leg give.

    It is not frozen, since there is one for every batch, however small, and that would take longer than all else here.

    Attributes:
        rank_epoch: The leg.
        start: The first step.
        stop: The step after the last.
        columns: The rows.
        count: How many there are; there may be no column to tell.
        places: Where each row stands in the epoch's sequence; none where nobody asks.
        used: Under a lazy filter, the rows that the rank has consumed with each.
        every: How many steps lie between one row and the next, where the rows between them are others' to hand out.
        made: What maps made of each single row, where they have run already.
        error: What they raised on the row after the last of these.
        kept: Which of the steps' rows these are, where bad ones were left out.
        ids: Where each row lies, where bad ones are left out.
        bad: Those that were, by where they lie.
        again: What makes it without bad rows, if making it elsewhere fails because of them.
    """

    rank_epoch: RankEpoch
    start: int
    stop: int
    columns: Batch
    count: int
    places: IntArray
    used: IntArray | None = None
    every: int = 1
    made: list[dict[str, Any]] | None = None
    error: BaseException | None = None
    kept: IntArray | None = None
    ids: IntArray | None = None
    bad: tuple[tuple[int, BadRow], ...] = ()
    again: Callable[[], AssembledRows] | None = None

    def picked(self, rows: slice | IntArray) -> AssembledRows:
        """Return some of the rows, all under a lazy filter."""
        assert self.used is not None  # noqa: S101 - under a lazy filter
        columns, used = {name: values[rows] for name, values in self.columns.items()}, self.used[rows]
        places = self.places[rows] if len(self.places) else self.places
        ids = None if self.ids is None else self.ids[rows]
        return replace(self, columns=columns, count=len(used), places=places, used=used, ids=ids, bad=())

    def followed(self, more: AssembledRows) -> AssembledRows:
        """Return these rows and then others, all under a lazy filter."""
        columns = {name: np.concatenate([values, more.columns[name]]) for name, values in self.columns.items()}
        places, used = np.concatenate([self.places, more.places]), np.concatenate([self.used, more.used])
        ids = None if more.ids is None else np.concatenate([self.ids, more.ids])
        return replace(more, columns=columns, count=len(used), places=places, used=used, ids=ids)

    def mapped(self, query: Query, valid: int) -> AssembledRows:
        """Return a batch as the consumer gets it: padding marked, maps run."""
        return replace(
            self, columns=mapped(query, self.columns, self.places, self.rank_epoch.position.epoch, (self.count, valid))
        )

    def row(self, query: Query, at: int) -> dict[str, Any]:
        """Return one row as the consumer gets it."""
        if self.made is None:
            return mapped_row(query, self.columns, self.places, self.rank_epoch.position.epoch, at)
        if at >= len(self.made) and self.error is not None:
            raise self.error
        return self.made[at]


def thinned(rows: WindowRows, first: int, every: int) -> WindowRows:
    """Return every so many-th row, from one on; nothing is decoded yet."""
    pieces: list[tuple[WindowBuffer, int, int]] = []
    for buffer, start, stop in rows.pieces:
        numbers = np.arange(start + first, stop, every)
        if len(numbers):
            pieces.append((buffer.chosen(numbers), 0, len(numbers)))
        first = (first - (stop - start)) % every
    return replace(rows, pieces=tuple(pieces), places=(0,) * len(pieces), ready={})


def assemble(query: Query, window_reader: WindowReader, rows: WindowRows, size: int) -> tuple[Batch, IntArray]:
    """Return rows as columns, filled up to `size` with the last one, and their places in the sequence.

    Raises:
        MemoryLimitError: If so many do not fit in memory.
    """
    if size > len(rows):
        window_reader.check_batch(size)
    found = rows.assemble(window_reader)
    found, places = filled_up(found, rows.sequence if query.maps else NOWHERE, len(rows), size)
    return (in_query_order(query, window_reader, found) if window_reader.deferred else found), places


def filled_up(found: Batch, places: IntArray, rows: int, size: int) -> tuple[Batch, IntArray]:
    """Return rows, and their places where anybody asks for them, with the last one repeated until there are `size`."""
    if size <= rows:
        return found, places
    index = np.minimum(np.arange(size), rows - 1)
    return {name: values[index] for name, values in found.items()}, places[index] if len(places) else places


def in_query_order(query: Query, window_reader: WindowReader, found: Batch) -> Batch:
    """Return columns in the order asked for, with those stacked that could not be before."""
    return window_reader.arranged(stacked(query, found))


def stacked(query: Query, found: Batch) -> Batch:
    """Return columns with those stacked that could not be before they were decoded."""
    for stack in query.stacks:
        if stack.name not in found:
            found = apply_stack(stack, found)
    return found


def mapped(query: Query, columns: Batch, places: Places, epoch: int, rows: tuple[int, int]) -> Batch:
    """Return a batch as the consumer gets it: padding marked, maps run.

    Args:
        query: What is asked.
        columns: The rows.
        places: Where each row stands in the epoch's sequence.
        epoch: Which epoch they are of.
        rows: How many there are, and how many of them are no padding.
    """
    marks = {"_valid": np.arange(rows[0]) < rows[1]} if query.ending == "pad" else {}
    batch = {name: _own(values) for name, values in columns.items()} if query.maps else dict(columns)
    batch.update(marks)
    free = _free(query)
    for number, step in enumerate(query.maps):
        key = (query.seed, epoch, number)
        batch = apply_map(step, batch, places, key, resize=query.size == "row_group", free=free)
        for name, mark in marks.items():
            batch.setdefault(name, mark)
    return batch


def _free(query: Query) -> frozenset[str]:
    """Return columns that do not have one entry per row."""
    flat = [column.name for column in query.policies if isinstance(column.ragged, Offsets)] if query.policies else ()
    return frozenset(flat) | {f"{name}{suffix}" for name in flat for suffix in ("_offsets", "_valid")} if flat else NONE


def mapped_row(query: Query, columns: Batch, places: IntArray, epoch: int, at: int) -> dict[str, Any]:
    """Return one of some rows as the consumer gets it."""
    row = {name: values[at] for name, values in columns.items()}
    for number, step in enumerate(query.maps):
        row = apply_to_row(step, row, int(places[at]), (query.seed, epoch, number))
    return row


def _own(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array that a map may write to."""
    return values if values.flags.writeable else values.copy()
