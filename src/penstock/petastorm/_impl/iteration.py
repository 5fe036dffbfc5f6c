"""The way of one reading: what comes next, and how far it has come."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from penstock._engine.row_groups.pipeline import Assembly
from penstock.petastorm._impl.rebatch import Rebatch
from penstock.petastorm._impl.rows import Made, Rows
from penstock.petastorm._impl.state import Progress
from penstock.petastorm.errors import NoDataAvailableError

__all__ = ["Course"]


class Course:
    """Takes what is made of row groups, leaves out what was handed out before it began, and knows where each row stands.

    Args:
        assembly: What makes rows, or batches.
        start: Where it begins.
        lots: How many row groups an epoch has, where there is no last one; None where there is.
        rebatch: What cuts batches of one size, where that is asked for.
        drop_last: Whether a last batch of fewer rows is left out.
    """

    def __init__(
        self, assembly: Assembly[Rows | Made], start: Progress, lots: int | None, rebatch: Rebatch | None, *, drop_last: bool
    ) -> None:
        """Store where it begins."""
        self._assembly, self._start, self._lots = assembly, start, lots
        self._rebatch, self._drop_last = rebatch, drop_last
        self._at: tuple[int, int] | None = None
        self._made = self._empty = 0
        self._first, self._after = start, start
        self._count = 0

    def refill(self) -> Rows | Made:
        """Return what comes next, at least one row or batch.

        Raises:
            StopIteration: If there is nothing more.
        """
        if self._rebatch is not None:
            return Made([self._batch(self._rebatch)])
        while True:
            first, made = self._next()
            if len(made):
                self._first, self._count = first, len(made)
                return made

    def position(self, left: int) -> Progress:
        """Return where the next row stands, when so many of those that came last are not handed out yet."""
        if self._rebatch is not None:
            return self._first if left else self._after
        return replace(self._first, rows=self._first.rows + self._count - left)

    def _batch(self, rebatch: Rebatch) -> Any:
        """Return a batch of the size that was asked for, or what is left."""
        while rebatch.rows < rebatch.size:
            try:
                first, made = self._next()
            except StopIteration:
                if self._drop_last or not rebatch.rows:
                    raise
                break
            for batch in cast("Made", made):
                here = (first.epoch, first.place) == (self._start.epoch, self._start.place)
                rebatch.put(first, batch, self._start.rows if here else 0)
        self._first, found = self._after, rebatch.take(min(rebatch.size, rebatch.rows))
        origin, row = rebatch.next_row
        self._after = replace(origin, rows=row)
        return found

    def _next(self) -> tuple[Progress, Rows | Made]:
        """Return what is made next, and where the first of it stands.

        Raises:
            NoDataAvailableError: If nothing ever would be.
        """
        step, made = self._assembly.next()
        self._empty = 0 if len(made) else self._empty + 1
        if self._lots is not None and self._empty > self._lots:
            msg = (
                "A whole epoch went by without a row: the predicate, the filters or the function of transform_spec leave none. "
                "Reading without end would never come to any. Check them, or give num_epochs."
            )
            raise NoDataAvailableError(msg)
        place = (step.epoch, step.place)
        if place != self._at:
            self._at, self._made = place, 0
        before = self._made
        self._made += len(made)
        first = replace(self._start, epoch=step.epoch, place=step.place, rows=before)
        if self._rebatch is None and place == (self._start.epoch, self._start.place) and before < self._start.rows:
            gone = min(len(made), self._start.rows - before)
            return replace(first, rows=before + gone), made.after(gone)
        return first, made
