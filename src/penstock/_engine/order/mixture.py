"""Compute mixtures: which source fills each slot of an epoch, and with which of its rows.

A slot is what a mixture takes of a source at a time: a row, or a batch if the sources have batches. Slots come in strata of one
length, and each source has its exact share of every stratum. The source of a slot depends only on the seed and the number of
the slot, so the progress of each source at any slot is computed without replay.
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
from penstock.errors import ArgumentError
from penstock.model import IntArray, Window, even_edges
from penstock.protocols import Shuffle
from penstock.randomness import generator

Stop: TypeAlias = Literal["first", "all"]

MAX_SLOTS = 1 << 16
"""The longest stratum; weights that need a longer one are rounded."""

MIN_BLOCK_SLOTS = 1 << 10
"""Slots that are drawn together, at least: drawing short strata one by one costs more than reading the rows."""

CACHED_EPOCHS = 8


def shares(weights: Sequence[Fraction]) -> tuple[int, ...]:
    """Return the number of slots of each source in a stratum.

    The stratum is the shortest one that represents the weights exactly. If that is longer than `MAX_SLOTS`, the stratum has
    `MAX_SLOTS` slots, and the shares are rounded by largest remainder.

    Example:
        >>> shares([Fraction(7, 10), Fraction(3, 10)]), shares([Fraction(2), Fraction(4)])
        ((7, 3), (1, 2))
    """
    total = sum(weights)
    exact = [weight / total for weight in weights]
    least = min(exact)
    if least * MAX_SLOTS < 1:
        msg = (
            f"Source {exact.index(least)} has {float(least):.2g} of all weights, which is less than one slot in {MAX_SLOTS}. "
            "Shares are exact in strata of that many slots at most. Give it a larger weight, or leave it out."
        )
        raise ArgumentError(msg)
    near = [share.limit_denominator(MAX_SLOTS) for share in exact]
    stratum = lcm(*(share.denominator for share in near))
    if stratum <= MAX_SLOTS and sum(near) == 1:
        return tuple(int(share * stratum) for share in near)
    whole = [int(share * MAX_SLOTS) for share in exact]
    order = sorted(range(len(exact)), key=lambda source: whole[source] - exact[source] * MAX_SLOTS)
    more = set(order[: MAX_SLOTS - sum(whole)])
    return tuple(slots + (source in more) for source, slots in enumerate(whole))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """The source of each slot, without end.

    The slots of a source are spread evenly: its share of n slots cuts the stratum into n parts, and one slot is drawn in
    each. So in the first slots, each source is off its share by at most the number of other sources.

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
        return max(1, MIN_BLOCK_SLOTS // self.stratum)

    def sources(self, start: int, stop: int) -> IntArray:
        """Return the source of each of the slots `start..stop`."""
        size, parts = self._strata * self.stratum, [np.zeros(0, dtype=np.int64)]
        while start < stop:
            block, at = divmod(start, size)
            end = min(at + stop - start, size)
            parts.append(self._block(block)[at:end])
            start += end - at
        return parts[-1] if len(parts) == 2 else np.concatenate(parts)  # noqa: PLR2004 - mostly one block

    def counts(self, slot: int) -> IntArray:
        """Return the number of slots of each source before a slot."""
        block, at = divmod(slot, self._strata * self.stratum)
        whole = np.array(self.shares, dtype=np.int64) * (block * self._strata)
        return whole + np.bincount(self._block(block)[:at], minlength=len(self.shares)) if at else whole

    def slot(self, source: int, number: int) -> int:
        """Return the slot with a number among a source's slots, counted from 0."""
        block, at = divmod(number, self._strata * self.shares[source])
        return block * self._strata * self.stratum + int(np.flatnonzero(self._block(block) == source)[at])

    def _block(self, number: int) -> IntArray:
        return _draw_sources(self.shares, self.seed, number, self._strata)


@lru_cache(maxsize=32)
def _draw_sources(slots: tuple[int, ...], seed: int, block: int, strata: int) -> IntArray:
    """Return the sources of a block of strata."""
    owner = np.repeat(np.arange(len(slots)), slots)
    number = np.concatenate([np.arange(count) for count in slots])
    offsets = generator("mixture", seed, block).random_sample((strata, len(owner)))
    sources: IntArray = owner[np.argsort((number + offsets) / np.array(slots)[owner], axis=1, kind="stable")].reshape(-1)
    sources.flags.writeable = False
    return sources


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MixturePart:
    """One source of a mixture.

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
        whole, rest = divmod(self.num_rows, self.width)
        return whole + (self.partial and rest > 0)

    def rows(self, slots: int) -> int:
        """Return the rows of the first slots, over as many epochs as necessary."""
        epochs, rest = divmod(slots, self.slots)
        return epochs * min(self.slots * self.width, self.num_rows) + min(rest * self.width, self.num_rows)


@dataclass(frozen=True, kw_only=True, eq=False)
class MixtureOrder:
    """The order of a mixture, whose epochs all have the same length.

    Attributes:
        parts: The sources; each has at least one slot.
        pattern: The source of each slot.
        stop: Whether an epoch ends when the first source runs out, or when all have been read completely.
    """

    parts: tuple[MixturePart, ...]
    pattern: Pattern
    stop: Stop

    @cached_property
    def num_slots(self) -> int:
        """The slots of an epoch."""
        slots = enumerate(part.slots for part in self.parts)
        if self.stop == "first":
            return min(self.pattern.slot(source, count) for source, count in slots)
        return max(self.pattern.slot(source, count - 1) + 1 for source, count in slots)

    @cached_property
    def used(self) -> tuple[int, ...]:
        """The slots of an epoch that belong to each source."""
        return tuple(self.pattern.counts(self.num_slots).tolist())

    @property
    def num_rows(self) -> int:
        """The rows of an epoch."""
        return sum(part.rows(slots) for part, slots in zip(self.parts, self.used, strict=True))

    def epochs(self, source: int) -> int:
        """Return how many epochs of a source one epoch of the mixture uses; each starts with a new one."""
        return max(1, -(-self.used[source] // self.parts[source].slots))

    def epoch(self, epoch: int, lanes: int) -> MixtureEpoch:
        """Return one epoch, cut into lanes."""
        return MixtureEpoch(self, epoch, lanes)


class MixtureEpoch:
    """One epoch of a mixture, whose slots are cut into lanes of equal length.

    Attributes:
        pattern: The source of each slot.
        orders: The rows of each source, in the order in which the mixture takes them.
    """

    def __init__(self, mixture: MixtureOrder, epoch: int, lanes: int) -> None:
        """Cut each source at the edges of the mixture's lanes."""
        self.pattern = mixture.pattern
        self._edges = even_edges(0, mixture.num_slots, lanes)
        cuts = _cuts(mixture.pattern, mixture.num_slots, lanes)
        self.orders = tuple(
            SourceOrder(part, cuts[:, source], epochs=mixture.epochs(source), first=epoch * mixture.epochs(source))
            for source, part in enumerate(mixture.parts)
        )

    def runs(self, ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
        """Yield ranges of slots as lane, start and stop, cut at the edges of lanes."""
        for start, stop in ranges:
            at = start
            while at < stop:
                lane = int(np.searchsorted(self._edges, at, side="right")) - 1
                end = min(stop, int(self._edges[lane + 1]))
                yield lane, at, end
                at = end

    def source_places(self, source: int, runs: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int]]:
        """Yield the rows of one source in some runs of slots, as ranges of places in its order."""
        for lane, start, stop in runs:
            low, high = (int(self.pattern.counts(slot)[source]) for slot in (start, stop))
            yield from self.orders[source].places(lane, low, high)


@lru_cache(maxsize=8)
def _cuts(pattern: Pattern, num_slots: int, lanes: int) -> IntArray:
    """Return the slots of each source before each edge of the lanes, a row per edge."""
    return np.stack([pattern.counts(slot) for slot in even_edges(0, num_slots, lanes).tolist()])


class SourceOrder:
    """The rows of one source in an epoch of a mixture: some of the source's own epochs, one after the other.

    Place `e * num_rows + p` is place p of the source's epoch e. Windows are cut inside the ranges of the mixture's lanes, so
    each rank reads its own windows. With one lane they are the source's own windows, in its own order. The rows that the
    mixture does not read of the last epoch lie at the end of each lane's range, so they differ from epoch to epoch.
    """

    def __init__(self, part: MixturePart, cuts: IntArray, *, epochs: int, first: int) -> None:
        """Compute where the lanes are cut."""
        self.part, self._first, self._epochs, self._lanes = part, first, epochs, len(cuts) - 1
        begin = (epochs - 1) * part.slots
        late = np.cumsum(cuts[1:-1] > begin)
        unused = epochs * part.slots - int(cuts[-1])
        # The first lane in the last epoch begins with it. The other lanes leave their shares of the unused slots before them.
        self._shifts = np.concatenate([[0], late * unused // (int(late[-1]) + 1 if len(late) else 1)])
        shifted = cuts[1:-1] + self._shifts[1:]
        # `partial` of a function: a bound method would keep the object alive through its own cache.
        self._epoch = lru_cache(maxsize=CACHED_EPOCHS)(partial(_source_epoch, part, shifted, epochs, first))

    def places(self, lane: int, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Yield the places of the source's slots `low..high`, which lie in one lane of the mixture."""
        rows, slots, width = self.part.num_rows, self.part.slots, self.part.width
        while low < high:
            epoch, at = divmod(low, slots)
            stop = min(at + high - low, slots)
            shift = int(self._shifts[lane]) if epoch == self._epochs - 1 else 0
            begin = (self._first + epoch) * rows
            yield begin + (at + shift) * width, begin + min((stop + shift) * width, rows)
            low += stop - at

    def pieces(self, places: Iterable[tuple[int, int]]) -> Iterator[WindowSlice]:
        """Yield the slices of windows for some ranges of places, none of which continues in another epoch."""
        rows = self.part.num_rows
        for start, stop in places:
            epoch = start // rows
            begin = epoch * rows
            for piece in self._epoch(epoch).pieces(((start - begin, stop - begin),)):
                yield replace(piece, lane=epoch * self._lanes + piece.lane, place=begin + piece.place)

    def window(self, lane: int, index: int) -> Window:
        """Return the window of a slice."""
        epoch, inside = divmod(lane, self._lanes)
        return self._epoch(epoch).window(inside, index)


def _source_epoch(part: MixturePart, cuts: IntArray, epochs: int, first: int, epoch: int) -> Epoch:
    """Return an epoch of a source, with lanes that end at the edges of the mixture's lanes."""
    begin, last = (epoch - first) * part.slots, epoch == first + epochs - 1
    inside = cuts[(cuts > begin) & (last | (cuts < begin + part.slots))] - begin
    edges = np.concatenate([[0], np.minimum(inside * part.width, part.num_rows), [part.num_rows]])
    return Epoch(part.shuffle, part.counts, seed=part.seed, epoch=epoch, lanes=edges)
