"""Random tables and queries, with the expected rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

import penstock as ps
from penstock.filters import Expr
from penstock.protocols import Shuffle
from penstock.testing import MemoryFormat


@dataclass(frozen=True)
class Case:
    """A table and a query, with the ids of the expected rows in stored order."""

    table: MemoryFormat
    groups: Sequence[Sequence[int]]
    deletes: dict[int, list[int]]
    shuffle: Shuffle
    condition: Expr | None = None
    seed: int = 0
    ids: list[int] = field(default_factory=list)
    threads: int = 2

    def dataset(self) -> ps.Dataset:
        """Return the query without shards or batches."""
        ds = self.table.open().shuffle(self.shuffle, seed=self.seed).using(threads=self.threads)
        return ds if self.condition is None else ds.where(self.condition)


def rows(ids: Sequence[int]) -> pa.Table:
    """Return rows whose columns all derive from the id, so that mixed-up rows are detected."""
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "triple": pa.array([3.0 * number for number in ids], pa.float64()),
            "name": pa.array([f"row {number}" for number in ids], pa.string()),
            "third": pa.array([number % 3 for number in ids], pa.int32()),
        }
    )


def aligned(batch: dict[str, Any]) -> bool:
    """Return whether the columns of each row of a batch belong together."""
    return bool(
        batch["triple"].tolist() == [3.0 * number for number in batch["id"].tolist()]
        and batch["name"].tolist() == [f"row {number}" for number in batch["id"].tolist()]
        and batch["third"].tolist() == [number % 3 for number in batch["id"].tolist()]
    )


shuffles: st.SearchStrategy[Shuffle] = st.one_of(
    st.just(ps.InOrder()),
    st.just(ps.InOrder(file_rows=6)),
    st.just(ps.RowGroupShuffle()),
    st.builds(ps.WindowShuffle, st.integers(1, 40), unit_rows=st.none() | st.integers(1, 4)),
    st.builds(ps.ExactShuffle, st.integers(1, 40)),
)

conditions: st.SearchStrategy[Expr | None] = st.one_of(
    st.none(),
    st.builds(lambda number: ps.col("third") != number, st.integers(0, 2)),
    st.builds(lambda number: ps.col("id") >= number, st.integers(0, 20)),
    st.builds(lambda number: (ps.col("id") < number) | (ps.col("triple") > 30), st.integers(0, 20)),
)


@st.composite
def cases(draw: st.DrawFn, kinds: st.SearchStrategy[Shuffle] = shuffles, smallest: int = 0) -> Case:
    """Draw a query and a table of uneven row groups, with some row groups empty and some rows deleted."""
    sizes = draw(st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=4), min_size=1, max_size=4))
    total = sum(map(sum, sizes))
    if total < smallest:
        sizes.append([smallest - total])
    numbers = iter(range(sum(map(sum, sizes))))
    groups = [[[next(numbers) for _ in range(size)] for size in file] for file in sizes]
    deletes = {}
    for at, file in enumerate(groups):
        stored = sum(map(len, file))
        if stored and total > smallest and draw(st.booleans()):
            deletes[at] = sorted(draw(st.sets(st.integers(0, stored - 1), max_size=min(3, total - smallest))))
            total -= len(deletes[at])
    condition = draw(conditions) if not smallest else None
    table = MemoryFormat([[rows(group) for group in file] for file in groups], deletes=deletes, stated=draw(st.booleans()))
    alive = [number for at, file in enumerate(groups) for number in _alive(file, deletes.get(at, []))]
    selected = alive if condition is None else [number for number in alive if _passes(condition, number)]
    return Case(
        table=table,
        groups=[[len(group) for group in file] for file in groups],
        deletes=deletes,
        shuffle=draw(kinds),
        condition=condition,
        seed=draw(st.integers(0, 3)),
        ids=selected,
        threads=draw(st.sampled_from([1, 2, 3, 8])),
    )


def _alive(file: Sequence[Sequence[int]], deleted: Sequence[int]) -> list[int]:
    stored = [number for group in file for number in group]
    return [number for at, number in enumerate(stored) if at not in deleted]


def _passes(condition: Expr, number: int) -> bool:
    table = rows([number])
    return bool(condition.bind(table.schema, table="rows").mask(table)[0])
