"""The way of one iteration through its epochs, and how far it has come. Pure: it knows rows, and reads none."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from operator import index
from typing import Any, SupportsIndex

from penstock._engine.deliver.mixture import MixturePlan
from penstock._engine.order.rank_epoch import RankEpoch
from penstock._engine.plan.table import Planned
from penstock._engine.query.query import Query
from penstock._engine.runtime.stats import Stats
from penstock._engine.runtime.timers import Meter
from penstock.errors import ArgumentError
from penstock.model import Position

__all__ = ["Iteration"]


class Iteration:
    """The way of one iteration, and how far it has come; arithmetic only, so that it can be kept when its threads are gone.

    Attributes:
        planned: What is read.
        start: Where it begins.
        end: The epoch that it ends before; None where it has no end.
        handed: Batches, or rows, handed out so far.
        at: Where the last of them ended: a leg and a step of it, or a position; None before the first.
        left_out: For every step that bad rows were all of, how many had been handed out before it.
    """

    def __init__(self, planned: Planned | MixturePlan, query: Query, start: Position) -> None:
        """Deal what is left of the first epoch."""
        self.planned, self._query, self.start = planned, query, start
        self.end = None if query.epochs is None else (start.epoch // query.epochs + 1) * query.epochs
        self._first = RankEpoch(planned.plan, planned.shuffle, query, start)
        self.handed = 0
        self.left_out: list[int] = []
        self.at: tuple[RankEpoch, int] | Position | None = None

    @property
    def position(self) -> Position:
        """The position after what has been handed out."""
        at = self.at  # once: another thread may be handing out
        if at is None:
            return self._at_once()
        return at[0].after(at[1]) if isinstance(at, tuple) else at

    def finish(self) -> None:
        """Note that all has been handed out, whatever was left out after the last batch: by a lazy filter, or as bad."""
        if self.end is not None:
            self.at = Position(epoch=self.end)

    def __len__(self) -> int:
        """Return the number of batches, or rows, of the whole iteration.

        Raises:
            TypeError: If it has no length: it repeats without end, or filters on the fly.
        """
        if self._query.lazy:
            msg = "A dataset with a lazy filter has no length before it is read. Leave lazy=True out to count rows first."
            raise TypeError(msg)
        if self.end is None:
            msg = "A dataset that repeats without end has no length. Give .repeat() a number of epochs."
            raise TypeError(msg)
        if self._query.size == "row_group":
            return sum(len(rank_epoch.schedule) for rank_epoch in self.rank_epochs())
        # Epochs after the first are all of one length.
        whole = itertools.islice(self.rank_epochs(), 1, 2)
        return len(self._first.schedule) + sum(
            len(rank_epoch.schedule) * (self.end - rank_epoch.position.epoch) for rank_epoch in whole
        )

    def position_at(self, step: Any) -> Position:
        """Return the position after `step` batches.

        Raises:
            ArgumentError: If the iteration has not so many, or nobody can know how many rows they need.
        """
        if self._query.lazy:
            msg = "state_at cannot tell how many rows a lazy filter passes. Use state_dict(), or leave lazy=True out."
            raise ArgumentError(msg)
        if not isinstance(step, SupportsIndex) or isinstance(step, bool) or index(step) < 0:
            raise ArgumentError(f"state_at got {step!r}. A number of steps was expected. Give a whole one from 0 on.")
        left = index(step) + sum(before < index(step) for before in self.left_out)
        if left == 0:
            return self._at_once()
        for rank_epoch in self.rank_epochs():
            if 0 <= left <= len(rank_epoch.schedule):
                return rank_epoch.after(left)
            left -= len(rank_epoch.schedule)
        msg = f"state_at got step {step}. This iteration has {len(self)} steps. Give a number from 0 to that."
        raise ArgumentError(msg)

    def rank_epochs(self) -> Iterator[RankEpoch]:
        """Yield what is left of the first epoch, then the whole epochs after it."""
        yield self._first
        epoch = self._first.position.epoch + 1
        while self.end is None or epoch < self.end:
            yield RankEpoch(self.planned.plan, self.planned.shuffle, self._query, Position(epoch=epoch))
            epoch += 1

    def stats(self, meter: Meter) -> Stats:
        """Return what this iteration did so far, by what was counted of it."""
        return meter.stats(handed=self.handed, size=self._query.size if isinstance(self._query.size, int) else 1)

    def _at_once(self) -> Position:
        """Return the position before the first batch: dealt anew, or past an epoch that has too little left for a step."""
        if not self._query.lazy and not len(self._first.schedule):
            return Position(epoch=self.start.epoch + 1)
        return self._first.position
