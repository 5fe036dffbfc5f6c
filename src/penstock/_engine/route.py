"""Epochs one after the other: the next one is begun while the last rows of one are handed out.

Without that, every epoch of a dataset that repeats would begin with the time that it takes to read a window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from penstock._engine.feed import Feed
from penstock._engine.leg import Leg

__all__ = ["Route"]

Feeding: TypeAlias = Callable[[Leg], Feed]


class Route:
    """The legs of an iteration, each with what reads its rows."""

    def __init__(self, legs: Iterator[Leg]) -> None:
        """Store which legs come; nothing is read yet."""
        self._legs = legs
        self._begun: tuple[Leg, Feed] | Exception | None = None

    def next(self, feeding: Feeding) -> tuple[Leg, Feed] | None:
        """Return the next leg, and what reads it; None where there is none."""
        begun, self._begun = self._begun, None
        if isinstance(begun, Exception):
            raise begun
        if begun is None:
            return self._begin(feeding)
        begun[1].begin_turn()
        return begun

    def read_ahead(self, feed: Feed, feeding: Feeding) -> None:
        """Have the windows read that come next in a leg; where all of them are being read, the first of the leg after it.

        What goes wrong with the next leg is raised when its turn comes.
        """
        if not feed.prefetch():
            return
        try:
            self._begun = self._begun or self._begin(feeding)
        except Exception as error:  # noqa: BLE001 - raised in its turn
            self._begun = error
        if isinstance(self._begun, tuple):
            self._begun[1].begin_early(feed.rows_held)

    def _begin(self, feeding: Feeding) -> tuple[Leg, Feed] | None:
        leg = next(self._legs, None)
        return None if leg is None else (leg, feeding(leg))
