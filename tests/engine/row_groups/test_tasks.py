"""Row-group tasks: parts and shards lose no rows, and a seed decides the order of tasks."""

from __future__ import annotations

from itertools import islice

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock._engine.row_groups.tasks import RowGroupTasks, ScheduledTask, TaskOrder
from penstock.model import Units

sizes = st.lists(st.integers(1, 30), min_size=1, max_size=12)


def tasks_of(rows: list[int]) -> RowGroupTasks:
    """Return tasks for the row groups of one file, with these numbers of rows."""
    counts, tasks = np.array(rows, dtype=np.int64), len(rows)
    units = Units(
        file=np.zeros(tasks, dtype=np.int32),
        row_group=np.arange(tasks, dtype=np.int32),
        start=np.zeros(tasks, dtype=np.int64),
        first=np.cumsum(counts) - counts,
        rows=counts,
        counts=counts,
        residual=np.zeros(tasks, dtype=np.bool_),
    )
    return RowGroupTasks(units=units, ordinal=np.arange(tasks))


def test_tasks_are_split_and_sharded() -> None:
    """Parts of a row group may overlap and stop at its end. Shards may cut row groups."""
    tasks = tasks_of([5, 1])

    assert (tasks.split(2).units.start.tolist(), tasks.split(2).units.rows.tolist()) == ([0, 3, 0], [3, 2, 1])
    assert tasks.split(2, overlap=1).units.rows.tolist() == [4, 2, 1]
    assert [tasks_of([5, 2, 4]).shard(rank, 3).units.rows.tolist() for rank in range(3)] == [[3], [2, 2], [4]]


def rows(tasks: RowGroupTasks) -> list[tuple[int, int]]:
    """Return each row as its row group and its number there."""
    units = tasks.units
    found = zip(tasks.ordinal.tolist(), units.start.tolist(), units.rows.tolist(), strict=True)
    return [(group, row) for group, start, count in found for row in range(start, start + count)]


@given(sizes=sizes, parts=st.integers(1, 40))
def test_parts_cover_their_row_group_in_order(sizes: list[int], parts: int) -> None:
    """A row group has as many parts as requested, or as many as it has rows. Their sizes differ by one row at most."""
    tasks = tasks_of(sizes)

    found = tasks.split(parts)

    assert rows(found) == rows(tasks)
    for group, size in enumerate(sizes):
        counts = found.units.rows[found.ordinal == group]
        assert len(counts) == min(parts, size)
        assert counts.max() - counts.min() <= 1


@given(sizes=sizes, parts=st.integers(1, 40), more=st.integers(0, 5))
def test_parts_may_overlap_the_next_part(sizes: list[int], parts: int, more: int) -> None:
    """With an overlap, a part has that many more rows, as far as its row group has them."""
    plain, longer = tasks_of(sizes).split(parts), tasks_of(sizes).split(parts, more)

    ends = np.array(sizes)[plain.ordinal]
    assert longer.units.start.tolist() == plain.units.start.tolist()
    assert (longer.units.start + longer.units.rows).tolist() == np.minimum(
        plain.units.start + plain.units.rows + more, ends
    ).tolist()


@given(sizes=sizes, parts=st.integers(1, 5), ranks=st.integers(1, 20))
def test_shards_are_even_and_cover_all_rows(sizes: list[int], parts: int, ranks: int) -> None:
    """Shards differ by one row at most and cover all rows in order, whether or not row groups are split."""
    tasks = tasks_of(sizes).split(parts)

    shards = [tasks.shard(rank, ranks) for rank in range(ranks)]

    assert [row for shard in shards for row in rows(shard)] == rows(tasks)
    counts = [shard.num_rows for shard in shards]
    assert max(counts) - min(counts) <= 1
    assert all((shard.units.rows > 0).all() for shard in shards)


@given(count=st.integers(1, 50), seed=st.integers(0, 5), epochs=st.integers(1, 3))
def test_every_task_comes_in_every_epoch(count: int, seed: int, epochs: int) -> None:
    """Every epoch has each task once. The same seed gives the same order."""
    order = TaskOrder(count=count, seed=seed)

    schedule = list(order.schedule(epochs=epochs))

    assert [(scheduled.epoch, scheduled.place) for scheduled in schedule] == [
        (epoch, place) for epoch in range(epochs) for place in range(count)
    ]
    for epoch in range(epochs):
        assert sorted(scheduled.task for scheduled in schedule if scheduled.epoch == epoch) == list(range(count))
    assert schedule == list(order.schedule(epochs=epochs))


@given(count=st.integers(1, 20), skipped=st.integers(0, 40))
def test_a_schedule_continues_from_any_place(count: int, skipped: int) -> None:
    """A schedule that begins at an epoch and place equals the rest of the whole schedule."""
    order = TaskOrder(count=count, seed=3)
    epoch, place = divmod(skipped, count)

    assert list(islice(order.schedule(epochs=None, epoch=epoch, place=place), 50)) == list(
        islice(order.schedule(epochs=None), skipped, skipped + 50)
    )


def test_tasks_in_stored_order() -> None:
    """Without shuffling, tasks are in stored order. Without tasks, an endless schedule is empty."""
    assert list(TaskOrder(count=2, shuffled=False).schedule(epochs=1)) == [
        ScheduledTask(epoch=0, place=0, task=0),
        ScheduledTask(epoch=0, place=1, task=1),
    ]
    assert list(TaskOrder(count=0).schedule(epochs=None)) == []


def test_the_order_of_tasks_is_pinned() -> None:
    """The order for a seed never changes, because the resume of a saved state depends on it."""
    assert TaskOrder(count=8, seed=7).order(0).tolist() == [6, 7, 1, 5, 4, 3, 0, 2]
    assert TaskOrder(count=8, seed=7).order(1).tolist() == [6, 5, 7, 1, 0, 3, 2, 4]
