"""Dealing an epoch's sequence to ranks, and dealing its rest anew when their number changes.

A deal cuts what is left of the sequence into lanes of equal length and gives each rank as many. How far every rank has
come is one number per deal, so a list of deals is the whole position inside an epoch, whatever happened in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from penstock._ranges import Ranges, between, cut, joined, length
from penstock.errors import ArgumentError, StateError
from penstock.model import Assignment, Position

__all__ = ["Shard", "first_assignment", "merge_positions", "reassign", "shards"]


@dataclass(frozen=True)
class Shard:
    """A rank's own part of a deal: its lanes, of which it takes `stride` rows each in turn.

    When the shortest lane has no whole stride left, the last turn takes what remains of each lane.
    """

    lanes: tuple[Ranges, ...]
    stride: int

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """The rows of each lane; they differ by at most one."""
        return tuple(length(lane) for lane in self.lanes)

    @cached_property
    def num_rows(self) -> int:
        """The rows of all lanes."""
        return sum(self.lengths)

    @cached_property
    def _full_turns(self) -> int:
        return min(self.lengths) // self.stride

    def taken(self, rows: int) -> tuple[int, ...]:
        """Return how many rows of each lane are used when the rank has consumed `rows`.

        Example:
            >>> Shard((((0, 5),), ((5, 10),)), stride=2).taken(7)
            (4, 3)
        """
        turn = len(self.lanes) * self.stride
        full = min(rows // turn, self._full_turns)
        base, rest = full * self.stride, rows - full * turn
        found = []
        for total in self.lengths:
            share = self.stride if full < self._full_turns else total - base
            found.append(base + min(rest, share))
            rest -= min(rest, share)
        return tuple(found)

    def ranges(self, start: int, stop: int) -> Ranges:
        """Return rows `start..stop` of the rank, as a part of the epoch's sequence.

        Example:
            >>> Shard((((0, 5),), ((5, 10),)), stride=2).ranges(3, 10)
            ((6, 7), (2, 4), (7, 9), (4, 5), (9, 10))
        """
        used, found = list(self.taken(start)), list[tuple[int, int]]()
        for slot, rows in self.turns(start, stop):
            found += between(self.lanes[slot], used[slot], used[slot] + rows)
            used[slot] += rows
        return tuple(found)

    def turns(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return how many rows of which lane make up rows `start..stop` of the rank, in turn.

        Example:
            >>> Shard((((0, 5),), ((5, 10),)), stride=2).turns(3, 10)
            [(1, 1), (0, 2), (1, 2), (0, 1), (1, 1)]
        """
        if len(self.lanes) == 1:
            return [(0, stop - start)] if start < stop else []
        found: list[tuple[int, int]] = []
        turn = len(self.lanes) * self.stride
        before = self.taken(start)
        while start < stop:
            end = min((start // turn + 1) * turn, stop) if start // turn < self._full_turns else stop
            after = self.taken(end)
            found += [(slot, high - low) for slot, (low, high) in enumerate(zip(before, after, strict=True)) if high > low]
            start, before = end, after
        return found

    def ahead(self, start: int) -> tuple[Ranges, ...]:
        """Return what is left of each lane when the rank has consumed `start` rows.

        Example:
            >>> Shard((((0, 5),), ((5, 10),)), stride=2).ahead(3)
            (((2, 5),), ((6, 10),))
        """
        return tuple(
            between(lane, used, total) for lane, used, total in zip(self.lanes, self.taken(start), self.lengths, strict=True)
        )

    def rest(self, rows: int) -> Ranges:
        """Return what the rank leaves when it has consumed `rows`, lane after lane.

        Example:
            >>> Shard((((0, 5),), ((5, 10),)), stride=2).rest(7)
            ((4, 5), (8, 10))
        """
        return joined(self.ahead(rows))


def first_assignment(*, ranks: int, lanes: int | None, size: int) -> Assignment:
    """Return the deal that begins an epoch.

    Every global batch takes as many rows of each lane where that comes out even, so that another number of ranks which
    divides the lanes sees the same global batches.

    Raises:
        ArgumentError: If the lanes cannot be shared out evenly.

    Example:
        >>> first_assignment(ranks=2, lanes=8, size=64)
        Deal(lanes=8, stride=16, ranks=2, rows=0)
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
    """Return the hand of each rank in the last of an epoch's deals.

    Raises:
        StateError: If the deals cannot have been made over so many rows.

    Example:
        >>> shards(10, (Assignment(lanes=2, stride=2, ranks=2, rows=4), Assignment(lanes=1, stride=2, ranks=1)))
        [Hand(lanes=(((4, 5), (9, 10)),), stride=2)]
    """
    stream: Ranges = ((0, num_rows),)
    dealt: list[Shard] = []
    for number, assignment in enumerate(assignments):
        lanes = cut(stream, assignment.lanes)
        share = assignment.lanes // assignment.ranks
        dealt = [Shard(tuple(lanes[at : at + share]), assignment.stride) for at in range(0, assignment.lanes, share)]
        largest = max(shard.num_rows for shard in dealt)
        for rank, shard in enumerate(dealt):
            # One number for all ranks may be that of a rank which was dealt a row more than others.
            most = shard.num_rows if isinstance(assignment.rows, tuple) else largest
            if assignment.consumed(rank) > most:
                msg = (
                    f"Deal {number} of the state says that rank {rank} has consumed {assignment.consumed(rank)} rows, "
                    "but it was "
                    f"dealt {shard.num_rows}. The state was damaged or belongs to another table. Start without it."
                )
                raise StateError(msg)
        stream = joined(shard.rest(min(assignment.consumed(rank), shard.num_rows)) for rank, shard in enumerate(dealt))
    return dealt


def reassign(num_rows: int, assignments: tuple[Assignment, ...], *, ranks: int, size: int) -> tuple[Assignment, ...]:
    """Return the deals with which `ranks` ranks go on where other ranks stopped.

    As many ranks go on with what they had. A number that divides the lanes, at a moment when all lanes are used alike up
    to a whole stride, takes over the same lanes. Otherwise the rests of all lanes, in lane order, are dealt anew.

    Example:
        >>> reassign(100, (Assignment(lanes=4, stride=5, ranks=4, rows=10),), ranks=2, size=10)
        (Deal(lanes=4, stride=5, ranks=2, rows=20),)
        >>> reassign(100, (Assignment(lanes=4, stride=5, ranks=4, rows=10),), ranks=3, size=5)
        (Deal(lanes=4, stride=5, ranks=4, rows=10), Deal(lanes=3, stride=5, ranks=3, rows=0))
    """
    last = assignments[-1]
    if ranks == last.ranks:
        return assignments
    used = {
        taken
        for rank, shard in enumerate(shards(num_rows, assignments))
        for taken in shard.taken(min(last.consumed(rank), shard.num_rows))
    }
    if last.lanes % ranks == 0 and len(used) == 1 and min(used) % last.stride == 0:
        return (*assignments[:-1], replace(last, ranks=ranks, rows=min(used) * (last.lanes // ranks)))
    # A deal of which nothing was taken leaves no trace, so that restarts without progress do not add up.
    played = assignments if used != {0} or len(assignments) == 1 else assignments[:-1]
    return (*played, Assignment(lanes=ranks, stride=size, ranks=ranks))


def merge_positions(num_rows: int, positions: Sequence[Position]) -> Position:
    """Return where all ranks together have come, from the positions of each in the order of ranks.

    A rank that is already in the next epoch has consumed all that it was dealt in this one.

    Raises:
        StateError: If the positions are not those of all ranks of one run.

    Example:
        >>> assignment = Assignment(lanes=2, stride=4, ranks=2, rows=4)
        >>> merge_positions(9, [Position(epoch=1), Position(assignments=(assignment,))]).assignments
        (Deal(lanes=2, stride=4, ranks=2, rows=(4, 4)),)
    """
    if all(position == positions[0] for position in positions):
        return positions[0]
    epoch = min(position.epoch for position in positions)
    played = next((position.assignments for position in positions if position.epoch == epoch and position.assignments), ())
    ended, begun = Position(epoch=epoch + 1), Position(epoch=epoch)
    unlike = [
        position
        for position in positions
        if position not in (ended, begun) and (position.epoch, _unplayed(position.assignments)) != (epoch, _unplayed(played))
    ]
    if unlike or not played or len(positions) != played[-1].ranks or (begun in positions and len(played) > 1):
        msg = (
            f"{len(positions)} states were given that are not those of all ranks of one run at one moment. They say: "
            f"{sorted({(position.epoch, len(position.assignments)) for position in positions})} as (epoch, deals). Pass "
            "the state of "
            "every rank, in the order of ranks, all saved after the same step."
        )
        raise StateError(msg)
    dealt = shards(num_rows, _unplayed(played))
    rows = tuple(
        dealt[rank].num_rows if position == ended else position.assignments[-1].consumed(rank) if position.assignments else 0
        for rank, position in enumerate(positions)
    )
    return Position(epoch=epoch, assignments=(*played[:-1], replace(played[-1], rows=rows)))


def _unplayed(assignments: tuple[Assignment, ...]) -> tuple[Assignment, ...]:
    """Return deals as they were before anything was taken of the last."""
    return (*assignments[:-1], replace(assignments[-1], rows=0)) if assignments else ()
