"""Plans of a table: made once for as long as somebody reads by them, and no memory is kept by those that nobody does."""

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
    """Return a table of a few row groups."""
    return MemoryFormat.of({"id": np.arange(4000), "x": np.arange(4000) / 2}, row_group_rows=500).open()


@pytest.fixture
def laid(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the seeds of the plans that are made."""
    found: list[int] = []
    real = Table.uncounted

    def noted(table: Table, query: Query) -> UncountedPlan:
        found.append(query.seed)
        return real(table, query)

    monkeypatch.setattr(Table, "uncounted", noted)
    return found


def test_plans_that_are_being_read_are_made_once(laid: list[int]) -> None:
    """However many loaders read one table at once, each finds its own plan again."""
    loaders = [ps.loader(asked) for asked in _asked(dataset())]
    running = [iter(loader) for loader in loaders]

    for _ in range(3):
        for batches, loader in zip(running, loaders, strict=True):
            next(batches)
            loader.state_dict()

    assert laid == list(range(MANY))


def test_a_plan_that_another_thread_throws_out_meanwhile_is_still_found() -> None:
    """Threads that ask many questions of one table get their answers."""
    ds = dataset().shuffle(seed=0)
    assert ds.num_rows == 4000
    table = ds._table

    class Meanwhile(OrderedDict[str, Planned]):
        def move_to_end(self, key: str, last: bool = True) -> None:  # noqa: FBT001, FBT002 - as it is
            self.clear()
            super().move_to_end(key, last)

    object.__setattr__(table, "_plans", Meanwhile(table._plans))

    assert ds.num_rows == 4000


def test_questions_that_nobody_asks_any_more_keep_no_memory() -> None:
    """One table that is read by one order after the other takes no more memory than by one, but for batches that are kept."""
    ds, kept = dataset(), []
    for asked in _asked(ds)[:MAX_PLANS]:
        batches = list(asked)
        kept.append(batches[20])
        assert len(batches) == 40
        del batches

    idle = [sum(map(len, plan.reader.buffer_pool._idle.values())) for plan in ds._table._plans.values()]

    assert len(idle) == MAX_PLANS
    assert idle[-1]
    assert not any(idle[:-1])
    assert all(len(batch["id"]) == 100 for batch in kept)


def test_a_copy_of_a_table_begins_anew(tmp_path: Path) -> None:
    """What was made of a table neither travels nor is shared with a copy."""
    ps.write(str(tmp_path / "table"), data={"id": np.arange(10)})
    ds = ps.open(str(tmp_path / "table")).shuffle(seed=0)
    assert ds.num_rows == 10

    for found in (copy.deepcopy(ds), cloudpickle.loads(cloudpickle.dumps(ds))):
        assert not found._table._plans
        assert found.num_rows == 10


def _asked(ds: ps.Dataset) -> list[ps.Dataset]:
    return [ds.shuffle(ps.WindowShuffle(rows=1000), seed=seed).batch(100) for seed in range(MANY)]
