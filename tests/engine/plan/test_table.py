"""Plans of a table are made once while they are read, and plans that are not read keep no memory."""

from __future__ import annotations

import copy
from collections import OrderedDict
from pathlib import Path

import cloudpickle
import numpy as np
import pytest

import penstock as ps
from penstock._engine.plan.table import MAX_PLANS, Planned, Table, UncountedPlan
from penstock._engine.query.query import Query
from penstock.testing import MemoryFormat

MANY = MAX_PLANS + 3


def dataset() -> ps.Dataset:
    """Return a dataset of a few row groups."""
    return MemoryFormat.of({"id": np.arange(4000), "x": np.arange(4000) / 2}, row_group_rows=500).open()


@pytest.fixture
def planned_seeds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which the seed of each plan is added when it is made."""
    found: list[int] = []
    real = Table.uncounted

    def recorded(table: Table, query: Query) -> UncountedPlan:
        found.append(query.seed)
        return real(table, query)

    monkeypatch.setattr(Table, "uncounted", recorded)
    return found


def test_plans_that_are_being_read_are_made_once(planned_seeds: list[int]) -> None:
    """Each of many loaders that read one table at once finds its own plan again."""
    loaders = [ps.loader(shuffled) for shuffled in _shuffled(dataset())]
    running = [iter(loader) for loader in loaders]

    for _ in range(3):
        for batches, loader in zip(running, loaders, strict=True):
            next(batches)
            loader.state_dict()

    assert planned_seeds == list(range(MANY))


def test_a_plan_that_another_thread_evicts_is_made_again() -> None:
    """A query works if another thread evicts its plan at the same time."""
    ds = dataset().shuffle(seed=0)
    assert ds.num_rows == 4000
    table = ds._table

    class EvictingPlans(OrderedDict[str, Planned]):
        def move_to_end(self, key: str, last: bool = True) -> None:  # noqa: FBT001, FBT002 - as it is
            self.clear()
            super().move_to_end(key, last)

    object.__setattr__(table, "_plans", EvictingPlans(table._plans))

    assert ds.num_rows == 4000


def test_plans_that_are_no_longer_read_keep_no_buffers() -> None:
    """Only the plan that was read last keeps idle buffers. Batches of other plans stay valid."""
    ds, kept_batches = dataset(), []
    for shuffled in _shuffled(ds)[:MAX_PLANS]:
        batches = list(shuffled)
        kept_batches.append(batches[20])
        assert len(batches) == 40
        del batches

    idle = [sum(map(len, plan.reader.buffer_pool._idle.values())) for plan in ds._table._plans.values()]

    assert len(idle) == MAX_PLANS
    assert idle[-1]
    assert not any(idle[:-1])
    assert all(len(batch["id"]) == 100 for batch in kept_batches)


def test_a_copy_of_a_table_has_no_plans(tmp_path: Path) -> None:
    """A copied or unpickled dataset has no plans of the original, and makes its own."""
    ps.write(str(tmp_path / "table"), data={"id": np.arange(10)})
    ds = ps.open(str(tmp_path / "table")).shuffle(seed=0)
    assert ds.num_rows == 10

    for found in (copy.deepcopy(ds), cloudpickle.loads(cloudpickle.dumps(ds))):
        assert not found._table._plans
        assert found.num_rows == 10


def _shuffled(ds: ps.Dataset) -> list[ps.Dataset]:
    return [ds.shuffle(ps.WindowShuffle(rows=1000), seed=seed).batch(100) for seed in range(MANY)]
