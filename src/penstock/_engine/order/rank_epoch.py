"""What a rank has left of one epoch: the deal it plays, its hand and its batches. Pure, but for nothing being read yet."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from penstock._engine.order.epoch import Epoch
from penstock._engine.order.schedule import Schedule, ragged_schedule, schedule
from penstock._engine.order.shard import Shard, first_assignment, reassign, shards
from penstock._engine.query.query import Query
from penstock._engine.query.values import MEMORY_LIMIT, Column, Map
from penstock._engine.runtime.memory_budget import format_bytes
from penstock.errors import ArgumentError, EmptyDatasetError, MemoryLimitError
from penstock.model import Plan, Position
from penstock.policies import Offsets, Pad
from penstock.protocols import Shuffle

__all__ = ["RankEpoch", "check_row_maps", "check_rows"]

LEAST_BYTES = 8
"""What a row that fills a batch up takes at least: the number of the row that it repeats."""


class RankEpoch:
    """One rank's way from a position to the end of its epoch."""

    def __init__(self, plan: Plan, shuffle: Shuffle, query: Query, position: Position) -> None:
        """Deal what is left of the epoch to the question's ranks."""
        self._plan, self._shuffle, self._query = plan, shuffle, query
        size, ranks = self._stride, query.world_size
        if position.assignments:
            assignments = reassign(plan.num_rows, position.assignments, ranks=ranks, size=size)
        else:
            assignments = (first_assignment(ranks=ranks, lanes=query.lanes, size=size),)
        self.position = Position(epoch=position.epoch, assignments=assignments)

    @property
    def _stride(self) -> int:
        """Rows a rank takes of a lane in turn; row groups are not cut, so their lanes are taken one after the other."""
        size = self._query.size
        return max(1, self._plan.num_rows) if size == "row_group" else size or 1

    @cached_property
    def epoch(self) -> Epoch:
        """The epoch's sequence."""
        query = self._query
        lanes = self.position.assignments[0].lanes
        return Epoch(self._shuffle, self._plan.counts, seed=query.seed, epoch=self.position.epoch, lanes=lanes)

    @cached_property
    def _shards(self) -> list[Shard]:
        return shards(self._plan.num_rows, self.position.assignments)

    @property
    def shard(self) -> Shard:
        """The rank's own rows."""
        return self._shards[self._query.rank]

    @cached_property
    def schedule(self) -> Schedule:
        """The rank's batches; single rows where the question has no batches."""
        query, assignment = self._query, self.position.assignments[-1]
        if query.size == "row_group":
            start = assignment.consumed(query.rank)
            return ragged_schedule(self.shard, start, self.epoch.edges(self.shard.ranges(start, self.shard.num_rows)))
        # A lazy filter runs on all rows, so how its last batch ends is not a matter of the rows before it.
        last = "uneven" if query.lazy else query.ending
        return schedule(self._shards, assignment, query.rank, size=query.size or 1, last=last)

    def after(self, step: int) -> Position:
        """Return the position after `step` batches."""
        return self.schedule.position(self.position, step)


def check_rows(plan: Plan, query: Query, *, source: int | None = None) -> None:
    """Refuse an epoch that would hand out nothing to some rank.

    Single rows read by one reader are a query, and a query may find nothing.

    Args:
        plan: What is read.
        query: What is asked.
        source: Which source of a mixture is asked, where one is.

    Raises:
        EmptyDatasetError: If there are too few rows.
        ArgumentError: If a column needs batches and there are none, or a map is to have rows of what only batches have.
        MemoryLimitError: If a batch is to be filled up with more rows than can fit.
    """
    _check_batches(query, source)
    check_row_maps(query.maps, query.policies, query.columns)
    found, ranks, size = plan.num_rows, query.world_size, query.size
    what = _told(found, "row" if query.sequence is None else "sequence")
    kept = f"{plan.snapshot.table} has {what} to hand out"
    if query.sequence is not None:
        kept += f" by {query.sequence!r}"
    if query.condition is not None:
        kept += f" under the filter {query.condition!r}"
    if found == 0 and (size is not None or ranks > 1 or query.epochs is None):
        msg = f"{kept}. At least one is needed. Check the filter, or ask `ds.num_rows` first where none may be right."
        raise EmptyDatasetError(msg)
    if found < ranks and found:
        msg = f"{kept}, fewer than its {ranks} ranks. Every rank needs at least one row. Use at most {found} ranks."
        raise EmptyDatasetError(msg)
    if isinstance(size, int) and query.ending == "drop" and found // ranks < size and not query.lazy:
        whole = f"one global batch of {size * ranks} rows ({ranks} ranks of {size})" if ranks > 1 else f"one batch of {size}"
        msg = (
            f'{kept}, fewer than {whole}, and last="drop" would drop them all. Use a batch of at most {found // ranks} rows, '
            'or last="pad", "wrap", "level" or "uneven".'
        )
        raise EmptyDatasetError(msg)
    limit = query.memory_limit or MEMORY_LIMIT
    if isinstance(size, int) and size > found and query.ending in {"pad", "wrap"} and size * LEAST_BYTES > limit:
        msg = (
            f'{kept}, and last="{query.ending}" would fill them up to a batch of {size}, which takes at least '
            f"{format_bytes(size * LEAST_BYTES)} in memory; memory_limit is {format_bytes(limit)}. Use a smaller batch, or "
            'last="uneven".'
        )
        raise MemoryLimitError(msg)


def check_row_maps(maps: Sequence[Map], policies: Sequence[Column], columns: Sequence[str] | None = None) -> None:
    """Refuse to call a map with single rows of what only batches have; what a map of batches makes of it shows when it runs.

    Raises:
        ArgumentError: If the first map is one of rows, and a column that is read comes as values and offsets.
    """
    flat = [one.name for one in policies if isinstance(one.ragged, Offsets) and (columns is None or one.name in columns)]
    if flat and maps and maps[0].per_row:
        msg = (
            f"Column {flat[0]!r} comes as Offsets(), which has all values of a batch in one array, and map {maps[0].name} is "
            "called with one row at a time. A map of batches was expected. Leave per_row=True out, or Offsets()."
        )
        raise ArgumentError(msg)


def _check_batches(query: Query, source: int | None) -> None:
    """Refuse to hand out single rows of what only batches have."""
    for column in query.policies:
        longest = isinstance(column.ragged, Pad) and column.ragged.length is None
        if query.size is None and (longest or isinstance(column.ragged, Offsets)):
            remedy = "this dataset has no batches. Add .batch(size), or give Pad a length."
            if source is not None:
                other = "give Pad a length" if longest else "leave Offsets() out"
                remedy = f"source {source} of the mixture has single rows. Batch each source, not the mixture, or {other}."
            msg = f"Column {column.name!r} comes as {column.ragged}, which depends on the other rows of a batch, and {remedy}"
            raise ArgumentError(msg)


def _told(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
