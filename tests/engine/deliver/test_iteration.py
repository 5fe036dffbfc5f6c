"""The position of an iteration, also when another thread reads it."""

from __future__ import annotations

from typing import Any

import pytest

import penstock as ps
from penstock._engine.deliver.loader import Iteration
from penstock._engine.query.query import Query
from penstock.errors import EmptyDatasetError
from penstock.model import Position
from penstock.testing import example


class Ending(Iteration):
    """An iteration that another thread ends right after its position is read."""

    next_at: Any

    @property
    def at(self) -> Any:
        """Return the current position, and move to the end."""
        current, self.next_at = self.next_at, Position(epoch=1)
        return current

    @at.setter
    def at(self, value: Any) -> None:
        self.next_at = value


def test_a_position_read_at_the_end_is_valid() -> None:
    """Reading the position while another thread reaches the end returns the step before the end, or the end."""
    query = Query(size=4)
    iteration = Ending(example()._table.plan(query), query, Position())
    rank_epoch = next(iteration.rank_epochs())
    iteration.at = (rank_epoch, 2)

    assert [iteration.position, iteration.position] == [rank_epoch.after(2), Position(epoch=1)]


def test_a_state_in_endless_epochs_without_batches_raises() -> None:
    """`state_at` raises as reading does, instead of passing empty epochs for ever."""
    loader = ps.loader(example().shuffle().batch(63).repeat())

    with pytest.raises(EmptyDatasetError, match="fewer than one batch of 63"):
        loader.state_at(1)
