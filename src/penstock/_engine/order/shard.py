"""Which rows of an epoch a rank gets, and in which batches. Pure arithmetic.

An *assignment* cuts what is left of the epoch's sequence into lanes of equal length and gives each rank as many lanes. How
far every rank has come is one number per assignment, so a list of assignments is the whole position inside an epoch, whatever
the number of ranks was before. A `Shard` has the rows of one rank, a `Schedule` its batches, and a `RankEpoch` both.

The ways to end an epoch differ in `Schedule` only: `drop` stops before a batch that not every rank can fill, `pad` fills the
last batch up and marks the padding, `wrap` fills it with rows from the rank's beginning, `level` fills it as far as the rank
with most rows, and `uneven` lets every rank end on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from penstock._engine.order.epoch import Epoch
from penstock._engine.query.query import Last, Query
from penstock.errors import ArgumentError, StateError
from penstock.model import Assignment, IntArray, Plan, Position, Ranges, join_ranges, ranges_length, slice_ranges, split_ranges
from penstock.protocols import Shuffle


@dataclass(frozen=True)
class Shard:
    """The rows of one rank: its lanes, of which it takes `stride` rows each in turn.

    When the shortest lane has no whole stride left, the last turn takes what remains of each lane.
    """

    lanes: tuple[Ranges, ...]
    stride: int

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """The rows of each lane; they differ by at most one."""
        return tuple(ranges_length(lane) for lane in self.lanes)

    @cached_property
    def num_rows(self) -> int:
        """The rows of all lanes."""
        return sum(self.lengths)

    @cached_property
    def _full_turns(self) -> int:
        return min(self.lengths) // self.stride

    def used(self, rows: int) -> tuple[int, ...]:
        """Return how many rows of each lane are used when the rank has consumed `rows`."""
        if len(self.lanes) == 1:
            return (min(rows, self.num_rows),)
        turn = len(self.lanes) * self.stride
        full = min(rows // turn, self._full_turns)
        base, rest = full * self.stride, rows - full * turn
        used = []
        for total in self.lengths:
            share = self.stride if full < self._full_turns else total - base
            used.append(base + min(rest, share))
            rest -= min(rest, share)
        return tuple(used)

    def ranges(self, start: int, stop: int) -> Ranges:
        """Return rows `start..stop` of the rank, as a part of the epoch's sequence.

        Example:
            >>> Shard((((0, 5),), ((5, 10),)), stride=2).ranges(3, 10)
            ((6, 7), (2, 4), (7, 9), (4, 5), (9, 10))
        """
        used, ranges = list(self.used(start)), list[tuple[int, int]]()
        for lane, rows in self.turns(start, stop):
            ranges += slice_ranges(self.lanes[lane], used[lane], used[lane] + rows)
            used[lane] += rows
        return tuple(ranges)

    def turns(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return rows `start..stop` of the rank as pairs of a lane and a number of its next rows, in turn.

        Example:
            >>> Shard((((0, 5),), ((5, 10),)), stride=2).turns(3, 10)
            [(1, 1), (0, 2), (1, 2), (0, 1), (1, 1)]
        """
        if len(self.lanes) == 1:
            return [(0, stop - start)] if start < stop else []
        turns: list[tuple[int, int]] = []
        turn = len(self.lanes) * self.stride
        before = self.used(start)
        while start < stop:
            end = min((start // turn + 1) * turn, stop) if start // turn < self._full_turns else stop
            after = self.used(end)
            turns += [(lane, high - low) for lane, (low, high) in enumerate(zip(before, after, strict=True)) if high > low]
            start, before = end, after
        return turns

    def ahead(self, start: int) -> tuple[Ranges, ...]:
        """Return what is left of each lane when the rank has consumed `start` rows."""
        if not start:
            return self.lanes
        return tuple(
            slice_ranges(lane, used, total)
            for lane, used, total in zip(self.lanes, self.used(start), self.lengths, strict=True)
        )

    def rest(self, rows: int) -> Ranges:
        """Return what the rank leaves when it has consumed `rows`, lane after lane."""
        return join_ranges(self.ahead(rows))


def first_assignment(*, ranks: int, lanes: int | None, size: int) -> Assignment:
    """Return the assignment that begins an epoch.

    If the rows of a global batch divide by the lanes, every global batch takes as many rows of each lane. Another number of
    ranks that divides the lanes then gets the same global batches.

    Example:
        >>> first_assignment(ranks=2, lanes=8, size=64)
        Assignment(lanes=8, stride=16, ranks=2, rows=0)
    """
    lanes = ranks if lanes is None else lanes
    if lanes < 1 or lanes % ranks:
        msg = (
            f"{lanes} lanes cannot be shared out among {ranks} ranks. The number of lanes must be a multiple of the "
            f"number of ranks. Use lanes={max(1, lanes // ranks) * ranks}, or leave it out."
        )
        raise ArgumentError(msg)
    stride, odd = divmod(size * ranks, lanes)
    return Assignment(lanes=lanes, stride=size if odd else stride, ranks=ranks)


def shards(num_rows: int, assignments: tuple[Assignment, ...]) -> list[Shard]:
    """Return the shard of each rank in the last of an epoch's assignments.

    Example:
        >>> shards(10, (Assignment(lanes=2, stride=2, ranks=2, rows=4), Assignment(lanes=1, stride=2, ranks=1)))
        [Shard(lanes=(((4, 5), (9, 10)),), stride=2)]
    """
    rest: Ranges = ((0, num_rows),)
    by_rank: list[Shard] = []
    for number, assignment in enumerate(assignments):
        if number:
            last = assignments[number - 1]
            rest = join_ranges(shard.rest(min(last.consumed(rank), shard.num_rows)) for rank, shard in enumerate(by_rank))
        lanes = split_ranges(rest, assignment.lanes)
        share = assignment.lanes // assignment.ranks
        by_rank = [Shard(tuple(lanes[at : at + share]), assignment.stride) for at in range(0, assignment.lanes, share)]
        for rank, shard in enumerate(by_rank) if assignment.rows else ():
            # One number for all ranks may be that of a rank with one row more than others.
            most = shard.num_rows if isinstance(assignment.rows, tuple) else max(one.num_rows for one in by_rank)
            if assignment.consumed(rank) > most:
                msg = (
                    f"Assignment {number} of the state says that rank {rank} has consumed {assignment.consumed(rank)} rows, "
                    f"but its shard has {shard.num_rows}. The state was damaged or belongs to another table. Start without it."
                )
                raise StateError(msg)
    return by_rank


def reassign(num_rows: int, assignments: tuple[Assignment, ...], *, ranks: int, size: int) -> tuple[Assignment, ...]:
    """Return the assignments with which `ranks` ranks continue where other ranks stopped.

    The same number of ranks continues as before. A number that divides the lanes takes over the same lanes, if all lanes are
    used alike up to a whole stride. Otherwise the rests of all lanes, in lane order, are assigned anew.

    Example:
        >>> reassign(100, (Assignment(lanes=4, stride=5, ranks=4, rows=10),), ranks=2, size=10)
        (Assignment(lanes=4, stride=5, ranks=2, rows=20),)
        >>> reassign(100, (Assignment(lanes=4, stride=5, ranks=4, rows=10),), ranks=3, size=5)
        (Assignment(lanes=4, stride=5, ranks=4, rows=10), Assignment(lanes=3, stride=5, ranks=3, rows=0))
    """
    last = assignments[-1]
    if ranks == last.ranks:
        return assignments
    used = {
        rows
        for rank, shard in enumerate(shards(num_rows, assignments))
        for rows in shard.used(min(last.consumed(rank), shard.num_rows))
    }
    if last.lanes % ranks == 0 and len(used) == 1 and min(used) % last.stride == 0:
        return (*assignments[:-1], replace(last, ranks=ranks, rows=min(used) * (last.lanes // ranks)))
    # An assignment of which nothing was consumed leaves no trace, so that restarts without progress do not add up.
    started = assignments if used != {0} or len(assignments) == 1 else assignments[:-1]
    return (*started, Assignment(lanes=ranks, stride=size, ranks=ranks))


def merge_positions(num_rows: int, positions: Sequence[Position]) -> Position:
    """Return the position of all ranks together, from the position of each, in rank order.

    A rank that is already in the next epoch has consumed its whole shard of this one.

    Example:
        >>> assignment = Assignment(lanes=2, stride=4, ranks=2, rows=4)
        >>> merge_positions(9, [Position(epoch=1), Position(assignments=(assignment,))]).assignments
        (Assignment(lanes=2, stride=4, ranks=2, rows=(4, 4)),)
    """
    if all(position == positions[0] for position in positions):
        return positions[0]
    epoch = min(position.epoch for position in positions)
    started = next((position.assignments for position in positions if position.epoch == epoch and position.assignments), ())
    ended, begun = Position(epoch=epoch + 1), Position(epoch=epoch)
    unlike = [
        position
        for position in positions
        if position not in (ended, begun) and (position.epoch, _unstarted(position.assignments)) != (epoch, _unstarted(started))
    ]
    if unlike or not started or len(positions) != started[-1].ranks or (begun in positions and len(started) > 1):
        msg = (
            f"{len(positions)} states were given that are not those of all ranks of one run at one moment. They say: "
            f"{sorted({(position.epoch, len(position.assignments)) for position in positions})} as (epoch, assignments). Pass "
            "the state of every rank, in the order of ranks, all saved after the same step."
        )
        raise StateError(msg)
    by_rank = shards(num_rows, _unstarted(started))
    rows = tuple(
        by_rank[rank].num_rows if position == ended else position.assignments[-1].consumed(rank) if position.assignments else 0
        for rank, position in enumerate(positions)
    )
    return Position(epoch=epoch, assignments=(*started[:-1], replace(started[-1], rows=rows)))


def _unstarted(assignments: tuple[Assignment, ...]) -> tuple[Assignment, ...]:
    """Return assignments as they were before anything was consumed of the last."""
    return (*assignments[:-1], replace(assignments[-1], rows=0)) if assignments else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRows:
    """The rows of one batch.

    Attributes:
        start: The first row, counted in the rank's shard.
        stop: The row after the last.
        fill: Places of further rows, which fill the batch up under `last="wrap"` or `"level"`.
        valid: The number of rows that are not padding.
        size: Rows of the batch with padding, which repeats the last row.
    """

    start: int
    stop: int
    fill: Ranges = ()
    valid: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """The batches that a rank has left in an epoch.

    Attributes:
        shard: The rank's rows.
        start: Rows that it had consumed before.
        steps: The number of batches left.
        size: Rows of a batch.
        last: How the epoch ends.
        spare: The place of a row for a rank that has no row of its own but must fill a batch.
        edges: Where batches begin, in rows after `start`; None where all are of one size.
        max_rows: The most rows that a rank has left, for `last="level"`.
    """

    shard: Shard
    start: int
    steps: int
    size: int
    last: Last
    spare: Ranges = ()
    edges: IntArray | None = None
    max_rows: int | None = None

    def __len__(self) -> int:
        """Return the number of batches left."""
        return self.steps

    def consumed(self, step: int) -> int:
        """Return the rows that the rank has consumed after `step` of these batches."""
        if self.edges is not None:
            return self.start + int(self.edges[step])
        return min(self.start + step * self.size, self.shard.num_rows)

    def batch(self, step: int) -> BatchRows:
        """Return the rows of batch number `step`."""
        start, stop = self.consumed(step), self.consumed(step + 1)
        own = stop - start
        size = self.size if self.max_rows is None else min(self.size, self.max_rows - step * self.size)
        if self.last in ("drop", "uneven") or own == size:
            return BatchRows(start=start, stop=stop, valid=own, size=own)
        if self.last == "pad":
            return BatchRows(start=start, stop=stop, fill=() if own else self.spare, valid=own, size=size)
        return BatchRows(start=start, stop=stop, fill=self._wrapped(size - own), valid=size, size=size)

    def _wrapped(self, rows: int) -> Ranges:
        """Return rows of the rank's beginning, repeated as often as needed."""
        total = self.shard.num_rows
        if total == 0:
            return self.spare * rows
        again, rest = divmod(rows, total)
        return self.shard.ranges(0, total) * again + self.shard.ranges(0, rest)

    def position(self, start: Position, step: int) -> Position:
        """Return the position after `step` of these batches, given the position before them."""
        if step >= self.steps:
            return Position(epoch=start.epoch + 1)
        assignment = replace(start.assignments[-1], rows=self.consumed(step))
        return Position(epoch=start.epoch, assignments=(*start.assignments[:-1], assignment))


def schedule(by_rank: Sequence[Shard], assignment: Assignment, rank: int, *, size: int, last: Last) -> Schedule:
    """Return the batches that a rank has left; all ranks have equally many, unless they are `uneven`.

    Example:
        >>> assignment = Assignment(lanes=2, stride=2, ranks=2)
        >>> by_rank = shards(9, (assignment,))
        >>> [len(schedule(by_rank, assignment, 0, size=2, last=last)) for last in ("drop", "pad", "level", "uneven")]
        [2, 3, 3, 2]
    """
    consumed = [assignment.consumed(number) for number in range(len(by_rank))]
    left = [max(0, shard.num_rows - rows) for shard, rows in zip(by_rank, consumed, strict=True)]
    if last == "drop":
        steps = min(left) // size
    elif last == "uneven":
        steps = -(-left[rank] // size)
    else:
        steps = -(-max(left) // size)
    return Schedule(
        shard=by_rank[rank],
        start=consumed[rank],
        steps=steps,
        size=size,
        last=last,
        spare=next((shard.ranges(0, 1) for shard in by_rank if shard.num_rows), ()) if last not in ("drop", "uneven") else (),
        max_rows=max(left) if last == "level" else None,
    )


def row_group_schedule(shard: Shard, start: int, edges: IntArray) -> Schedule:
    """Return a rank's batches of one unit each: `edges` counts rows after `start`, from 0 to the last.

    Example:
        >>> import numpy as np
        >>> row_group_schedule(Shard((((0, 5),),), stride=5), 1, np.array([0, 3, 4])).batch(1)
        BatchRows(start=4, stop=5, fill=(), valid=1, size=1)
    """
    return Schedule(shard=shard, start=start, steps=len(edges) - 1, size=1, last="uneven", edges=edges)


class RankEpoch:
    """What one rank reads from a position to the end of its epoch."""

    def __init__(self, plan: Plan, shuffle: Shuffle, query: Query, position: Position) -> None:
        """Assign what is left of the epoch to the ranks of the query."""
        self._counts, self._shuffle, self._query, self._num_rows = plan.counts, shuffle, query, plan.num_rows
        # Row groups are not cut, so the lanes of a rank are taken one after the other.
        size = max(1, self._num_rows) if query.size == "row_group" else query.size or 1
        if position.assignments:
            assignments = reassign(self._num_rows, position.assignments, ranks=query.world_size, size=size)
        else:
            assignments = (first_assignment(ranks=query.world_size, lanes=query.lanes, size=size),)
        self.position = Position(epoch=position.epoch, assignments=assignments)

    @cached_property
    def epoch(self) -> Epoch:
        """The epoch's sequence."""
        lanes = self.position.assignments[0].lanes
        return Epoch(self._shuffle, self._counts, seed=self._query.seed, epoch=self.position.epoch, lanes=lanes)

    @cached_property
    def _shards(self) -> list[Shard]:
        return shards(self._num_rows, self.position.assignments)

    @property
    def shard(self) -> Shard:
        """The rank's rows."""
        return self._shards[self._query.rank]

    @cached_property
    def schedule(self) -> Schedule:
        """The rank's batches; single rows where the query has no batches."""
        query, assignment = self._query, self.position.assignments[-1]
        if query.size == "row_group":
            start = assignment.consumed(query.rank)
            return row_group_schedule(self.shard, start, self.epoch.edges(self.shard.ranges(start, self.shard.num_rows)))
        # A lazy filter reads all rows; how its last batch ends does not depend on the rows before the filter.
        last = "uneven" if query.lazy else query.ending
        return schedule(self._shards, assignment, query.rank, size=query.size or 1, last=last)

    def lanes_ahead(self) -> tuple[Ranges, ...]:
        """Return what is left of each lane of the rank."""
        return self.shard.ahead(self.schedule.start)

    def turns(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return rows `start..stop` of the rank as pairs of a lane and a number of its next rows."""
        return self.shard.turns(start, stop)

    def after(self, step: int) -> Position:
        """Return the position after `step` batches."""
        return self.schedule.position(self.position, step)
