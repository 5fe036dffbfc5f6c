"""Mixtures by arithmetic: which source hands out each slot of an epoch, and which of its rows.

A slot is what is handed out of one source at a time: a row, or a batch where the sources have batches. Slots come in
strata of one length, and in each stratum every source has its exact share of them. The source of a slot depends on the
seed and the slot's number alone, so how far each source has come at any slot is counted, never replayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from math import lcm
from typing import Literal, TypeAlias

import numpy as np

from penstock._engine.order.epoch import Epoch, WindowSlice
from penstock._ranges import even_edges
from penstock.errors import ArgumentError
from penstock.model import IntArray, Window
from penstock.protocols import Shuffle
from penstock.randomness import generator

__all__ = ["MOST_SLOTS", "MixtureEpoch", "MixtureOrder", "MixturePart", "Pattern", "SourceOrder", "Stop", "shares"]

Stop: TypeAlias = Literal["first", "all"]

MOST_SLOTS = 1 << 16
"""Slots of the longest stratum; weights that come out even in none so short are rounded."""

DRAWN_AT_ONCE = 1 << 10
"""Slots that are drawn together, at least; short strata would cost more to draw one by one than to fill."""

EPOCHS_KEPT = 8


def shares(weights: Sequence[Fraction]) -> tuple[int, ...]:
    """Return how many slots of a stratum each source has.

    The stratum is the shortest one in which the weights come out even. Where that would be longer than `MOST_SLOTS`, it
    is as long as that, and shares are rounded by largest remainder.

    Raises:
        ArgumentError: If a weight is less than one slot of the longest stratum.

    Example:
        >>> shares([Fraction(7, 10), Fraction(3, 10)]), shares([Fraction(2), Fraction(4)])
        ((7, 3), (1, 2))
    """
    total = sum(weights)
    exact = [weight / total for weight in weights]
    least = min(exact)
    if least * MOST_SLOTS < 1:
        msg = (
            f"Source {exact.index(least)} has {float(least):.2g} of all weights, which is less than one slot in {MOST_SLOTS}. "
            "Shares are exact in strata of that many slots at most. Give it a larger weight, or leave it out."
        )
        raise ArgumentError(msg)
    near = [share.limit_denominator(MOST_SLOTS) for share in exact]
    stratum = lcm(*(share.denominator for share in near))
    if stratum <= MOST_SLOTS and sum(near) == 1:
        return tuple(int(share * stratum) for share in near)
    whole = [int(share * MOST_SLOTS) for share in exact]
    order = sorted(range(len(exact)), key=lambda source: whole[source] - exact[source] * MOST_SLOTS)
    more = set(order[: MOST_SLOTS - sum(whole)])
    return tuple(slots + (source in more) for source, slots in enumerate(whole))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """Which source each slot belongs to, without end.

    The slots of a source are spread evenly: its share of n slots cuts the stratum into n parts, and one slot is drawn in
    each. So any number of slots from the first on has a source's share to within as many as there are other sources.

    Example:
        >>> pattern = Pattern(shares=(2, 1), seed=0)
        >>> pattern.sources(0, 9).tolist(), pattern.counts(9).tolist(), pattern.slot(1, 2)
        ([1, 0, 0, 1, 0, 0, 0, 1, 0], [6, 3], 7)
    """

    shares: tuple[int, ...]
    seed: int

    @property
    def stratum(self) -> int:
        """The number of slots in which every source has its exact share."""
        return sum(self.shares)

    @property
    def _strata(self) -> int:
        return max(1, DRAWN_AT_ONCE // self.stratum)

    def sources(self, start: int, stop: int) -> IntArray:
        """Return the source of each of the slots `start..stop`."""
        size, found = self._strata * self.stratum, [np.zeros(0, dtype=np.int64)]
        while start < stop:
            block, at = divmod(start, size)
            end = min(at + stop - start, size)
            found.append(self._block(block)[at:end])
            start += end - at
        return found[-1] if len(found) == 2 else np.concatenate(found)  # noqa: PLR2004 - mostly one block

    def counts(self, slot: int) -> IntArray:
        """Return how many of the slots before one belong to each source."""
        block, at = divmod(slot, self._strata * self.stratum)
        whole = np.array(self.shares, dtype=np.int64) * (block * self._strata)
        return whole + np.bincount(self._block(block)[:at], minlength=len(self.shares)) if at else whole

    def slot(self, source: int, number: int) -> int:
        """Return the slot that is number `number` of a source's slots, counted from 0."""
        block, at = divmod(number, self._strata * self.shares[source])
        return block * self._strata * self.stratum + int(np.flatnonzero(self._block(block) == source)[at])

    def _block(self, number: int) -> IntArray:
        return _drawn(self.shares, self.seed, number, self._strata)


@lru_cache(maxsize=32)
def _drawn(slots: tuple[int, ...], seed: int, block: int, strata: int) -> IntArray:
    """Return the sources of some strata, drawn together."""
    owner = np.repeat(np.arange(len(slots)), slots)
    number = np.concatenate([np.arange(count) for count in slots])
    drawn = generator("mixture", seed, block).random_sample((strata, len(owner)))
    found: IntArray = owner[np.argsort((number + drawn) / np.array(slots)[owner], axis=1, kind="stable")].reshape(-1)
    found.flags.writeable = False
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MixturePart:
    """What a mixture takes of one source.

    Attributes:
        counts: Rows of each unit.
        shuffle: The order of its rows.
        seed: The seed of that order.
        width: Rows of a slot: 1, or the size of the source's batches.
        partial: Whether rows that do not fill a slot make one more.
    """

    counts: IntArray
    shuffle: Shuffle
    seed: int
    width: int = 1
    partial: bool = False

    @property
    def num_rows(self) -> int:
        """The rows of an epoch of the source."""
        return int(self.counts.sum())

    @property
    def slots(self) -> int:
        """The slots of an epoch of the source."""
        whole, odd = divmod(self.num_rows, self.width)
        return whole + (self.partial and odd > 0)

    def rows(self, slots: int) -> int:
        """Return how many rows the first so many slots have, over as many epochs as it takes."""
        epochs, rest = divmod(slots, self.slots)
        return epochs * min(self.slots * self.width, self.num_rows) + min(rest * self.width, self.num_rows)


@dataclass(frozen=True, kw_only=True, eq=False)
class MixtureOrder:
    """An epoch of a mixture: as long as its sources say, the same length in every epoch.

    Attributes:
        parts: The sources; each has a slot at least.
        pattern: Which of them each slot belongs to.
        stop: Whether an epoch ends where the first source would run out, or when all have been handed out whole.
    """

    parts: tuple[MixturePart, ...]
    pattern: Pattern
    stop: Stop

    @cached_property
    def num_slots(self) -> int:
        """The slots of an epoch."""
        ends = enumerate(part.slots for part in self.parts)
        if self.stop == "first":
            return min(self.pattern.slot(source, slots) for source, slots in ends)
        return max(self.pattern.slot(source, slots - 1) + 1 for source, slots in ends)

    @cached_property
    def used(self) -> tuple[int, ...]:
        """The slots of an epoch that belong to each source."""
        return tuple(self.pattern.counts(self.num_slots).tolist())

    @property
    def num_rows(self) -> int:
        """The rows of an epoch."""
        return sum(part.rows(slots) for part, slots in zip(self.parts, self.used, strict=True))

    def epochs(self, source: int) -> int:
        """Return how many epochs of a source one epoch of the mixture begins; each begins with one of them."""
        return max(1, -(-self.used[source] // self.parts[source].slots))

    def mixing(self, epoch: int, lanes: int) -> MixtureEpoch:
        """Return one epoch, cut into lanes."""
        return MixtureEpoch(self, epoch, lanes)


class MixtureEpoch:
    """One epoch of a mixture, whose slots are cut into lanes of equal length.

    Attributes:
        pattern: Which source each slot belongs to.
        tapes: The rows of each source, in the order the mixture takes them.
    """

    def __init__(self, blend: MixtureOrder, epoch: int, lanes: int) -> None:
        """Cut each source where the mixture's lanes are cut."""
        self.pattern = blend.pattern
        self._edges = even_edges(0, blend.num_slots, lanes)
        cuts = _cuts(blend.pattern, blend.num_slots, lanes)
        self.tapes = tuple(
            SourceOrder(part, cuts[:, source], epochs=blend.epochs(source), first=epoch * blend.epochs(source))
            for source, part in enumerate(blend.parts)
        )

    def runs(self, ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
        """Yield a part of the slots as lane, start and stop, cut where a lane ends."""
        for start, stop in ranges:
            at = start
            while at < stop:
                lane = int(np.searchsorted(self._edges, at, side="right")) - 1
                end = min(stop, int(self._edges[lane + 1]))
                yield lane, at, end
                at = end

    def strand(self, source: int, runs: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int]]:
        """Yield what a part of the slots takes of one source, as places on its tape."""
        for lane, start, stop in runs:
            low, high = (int(self.pattern.counts(slot)[source]) for slot in (start, stop))
            yield from self.tapes[source].places(lane, low, high)


@lru_cache(maxsize=8)
def _cuts(pattern: Pattern, num_slots: int, lanes: int) -> IntArray:
    """Return how far each source has come at the edges of lanes, a row for each edge."""
    return np.stack([pattern.counts(slot) for slot in even_edges(0, num_slots, lanes).tolist()])


class SourceOrder:
    """The epochs of one source one after the other, as one epoch of a mixture takes them.

    Place `e * num_rows + p` is place p of the source's epoch e. Windows are cut inside the stretches of the mixture's lanes,
    so that ranks read windows of their own. With one lane they are the source's own windows, in its own order. What the
    mixture leaves unread of its last epoch is left at the end of each lane's stretch, and so is other rows each time.
    """

    def __init__(self, part: MixturePart, cuts: IntArray, *, epochs: int, first: int) -> None:
        """Store what is cut where.

        Args:
            part: The source.
            cuts: How many of its slots lie before the edges of the mixture's lanes.
            epochs: How many of its epochs the mixture begins.
            first: The number of the first of them.
        """
        self.part, self._first, self._epochs, self._lanes = part, first, epochs, len(cuts) - 1
        begin = (epochs - 1) * part.slots
        late = np.cumsum(cuts[1:-1] > begin)
        unused = epochs * part.slots - int(cuts[-1])
        # The first lane in the last epoch begins where that does; others leave to those before them their share of the rest.
        self._shifts = np.concatenate([[0], late * unused // (int(late[-1]) + 1 if len(late) else 1)])
        shifted = cuts[1:-1] + self._shifts[1:]
        # A bound method would keep itself alive.
        self._epoch = lru_cache(maxsize=EPOCHS_KEPT)(partial(_arranged, part, shifted, epochs, first))

    def places(self, lane: int, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Yield the places of the slots `low..high` of the source, which lie in one lane of the mixture."""
        rows, slots, width = self.part.num_rows, self.part.slots, self.part.width
        while low < high:
            epoch, at = divmod(low, slots)
            stop = min(at + high - low, slots)
            shift = int(self._shifts[lane]) if epoch == self._epochs - 1 else 0
            begin = (self._first + epoch) * rows
            yield begin + (at + shift) * width, begin + min((stop + shift) * width, rows)
            low += stop - at

    def pieces(self, places: Iterable[tuple[int, int]]) -> Iterator[WindowSlice]:
        """Yield the pieces of windows that make up a part of the tape, none of whose stretches ends in another epoch."""
        rows = self.part.num_rows
        for start, stop in places:
            epoch = start // rows
            begin = epoch * rows
            for piece in self._epoch(epoch).pieces(((start - begin, stop - begin),)):
                yield replace(piece, lane=epoch * self._lanes + piece.lane, place=begin + piece.place)

    def window(self, lane: int, index: int) -> Window:
        """Return the window of a piece."""
        epoch, inside = divmod(lane, self._lanes)
        return self._epoch(epoch).window(inside, index)


def _arranged(part: MixturePart, cuts: IntArray, epochs: int, first: int, epoch: int) -> Epoch:
    """Return an epoch of a source, with lanes that end where those of the mixture do."""
    begin, last = (epoch - first) * part.slots, epoch == first + epochs - 1
    inside = cuts[(cuts > begin) & (last | (cuts < begin + part.slots))] - begin
    edges = np.concatenate([[0], np.minimum(inside * part.width, part.num_rows), [part.num_rows]])
    return Epoch(part.shuffle, part.counts, seed=part.seed, epoch=epoch, lanes=edges)
