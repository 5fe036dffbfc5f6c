"""How far an iteration has come, also for those who ask from another thread."""

from __future__ import annotations

from typing import Any

from penstock._engine.deliver.loader import Iteration
from penstock._engine.query.query import Query
from penstock.model import Position
from penstock.testing import example


class Ending(Iteration):
    """An iteration that ends, on another thread, as soon as somebody has looked where it is."""

    coming: Any

    @property
    def at(self) -> Any:
        """Return where it is now, and go on."""
        now, self.coming = self.coming, Position(epoch=1)
        return now

    @at.setter
    def at(self, value: Any) -> None:
        self.coming = value


def test_a_position_is_one_of_those_that_there_were() -> None:
    """Whoever asks while another thread is handed the end gets the step before it, or the end."""
    query = Query(size=4)
    iteration = Ending(example()._table.plan(query), query, Position())
    rank_epoch = next(iteration.rank_epochs())
    iteration.at = (rank_epoch, 2)

    assert [iteration.position, iteration.position] == [rank_epoch.after(2), Position(epoch=1)]
