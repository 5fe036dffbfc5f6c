"""The arithmetic of mixtures: shares, slots, lengths and orders of sources are compared with plain counting."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock._engine.order.mixture import MAX_SLOTS, MixtureOrder, MixturePart, Pattern, Stop, shares
from penstock.errors import ArgumentError
from penstock.model import even_edges
from penstock.protocols import Shuffle
from penstock.shuffles import InOrder, WindowShuffle

patterns = st.builds(
    Pattern, shares=st.lists(st.integers(1, 9), min_size=1, max_size=5).map(tuple), seed=st.integers(0, 1 << 62)
)
shuffles: st.SearchStrategy[Shuffle] = st.sampled_from([InOrder(), WindowShuffle(rows=5)])


stops: st.SearchStrategy[Stop] = st.sampled_from(["first", "all"])


@st.composite
def parts(draw: st.DrawFn) -> MixturePart:
    """Draw a source of a few units."""
    counts = np.array(draw(st.lists(st.integers(0, 7), min_size=1, max_size=5)))
    width, partial = draw(st.integers(1, 4)), draw(st.booleans())
    part = MixturePart(counts=counts, shuffle=draw(shuffles), seed=draw(st.integers(0, 3)), width=width, partial=partial)
    assume(part.slots > 0)
    return part


@st.composite
def blends(draw: st.DrawFn) -> MixtureOrder:
    """Draw a mixture."""
    pattern = draw(patterns)
    found = tuple(draw(parts()) for _ in pattern.shares)
    return MixtureOrder(parts=found, pattern=pattern, stop=draw(stops))


# Weights.


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.fractions(min_value=Fraction(1, 100), max_value=100))
def test_shares_are_the_weights_in_their_lowest_terms(weights: list[int], scale: Fraction) -> None:
    """Only the proportions of weights count, and a stratum is as short as they allow."""
    found = shares([weight * scale for weight in weights])

    assert [Fraction(share, sum(found)) for share in found] == [Fraction(weight, sum(weights)) for weight in weights]
    assert np.gcd.reduce(found) == 1


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([0.7, 0.3], (7, 3)),
        ([0.1, 0.2, 0.7], (1, 2, 7)),
        ([1 / 3, 1 / 3, 1 / 3], (1, 1, 1)),
        ([0.333, 0.667], (333, 667)),
        ([1e-9, 3e-9], (1, 3)),
        ([5.0], (1,)),
    ],
)
def test_weights_may_be_floats(weights: list[float], expected: tuple[int, ...]) -> None:
    """A float counts as the short fraction that is next to it."""
    assert shares([Fraction(weight) for weight in weights]) == expected


@given(st.lists(st.integers(1000, 10_000_000), min_size=3, max_size=6))
def test_uneven_weights_are_rounded_by_less_than_a_slot(weights: list[int]) -> None:
    """Each share of the longest stratum is off by less than one slot."""
    exact = [Fraction(weight, sum(weights)) for weight in weights]
    assume(min(exact) * MAX_SLOTS >= 1)

    found = shares([Fraction(weight) for weight in weights])

    assert sum(found) <= MAX_SLOTS
    assert all(abs(share - part * sum(found)) < 1 for share, part in zip(found, exact, strict=True))


def test_a_weight_of_less_than_a_slot_raises() -> None:
    """A source with less than one slot in the longest stratum raises an error."""
    with pytest.raises(ArgumentError) as caught:
        shares([Fraction(1_000_000), Fraction(1)])

    assert str(caught.value) == (
        "Source 1 has 1e-06 of all weights, which is less than one slot in 65536. Shares are exact in strata of that many "
        "slots at most. Give it a larger weight, or leave it out."
    )


# Slots.


@given(patterns, st.integers(0, 10_000), st.integers(0, 200))
def test_every_stratum_has_exact_shares(pattern: Pattern, first: int, strata: int) -> None:
    """Each source has exactly its share of every stratum, wherever the stratum begins."""
    stratum = pattern.stratum
    found = pattern.sources(first * stratum, (first + strata) * stratum).reshape(-1, stratum)

    assert all(Counter(one) == dict(enumerate(pattern.shares)) for one in found.tolist())


@given(patterns, st.integers(0, 5000))
def test_a_source_is_always_close_to_its_share(pattern: Pattern, slots: int) -> None:
    """After any number of slots a source is off its share by at most the number of other sources."""
    found = np.cumsum(pattern.sources(0, slots)[:, None] == np.arange(len(pattern.shares)), axis=0)
    exact = np.arange(1, slots + 1)[:, None] * np.array(pattern.shares) / pattern.stratum

    assert (abs(found - exact) <= max(1, len(pattern.shares) - 1)).all()


@given(patterns, st.integers(0, 9000), st.integers(0, 9000))
def test_slots_are_a_function_of_their_number(pattern: Pattern, start: int, count: int) -> None:
    """A range of slots equals that range of all slots, and `counts` and `slot` agree with it."""
    whole = pattern.sources(0, start + count).tolist()
    counts = pattern.counts(start).tolist()

    assert pattern.sources(start, start + count).tolist() == whole[start:]
    assert counts == [whole[:start].count(source) for source in range(len(pattern.shares))]
    for slot in range(start, min(start + count, start + 5)):
        source = whole[slot]
        assert pattern.slot(source, whole[:slot].count(source)) == slot


def test_the_order_of_slots_is_the_same_in_all_releases() -> None:
    """A saved state means the same slots in every release."""
    pattern = Pattern(shares=(5, 3, 1), seed=7)

    assert "".join(map(str, pattern.sources(0, 27).tolist())) == "021001010021010001120001100"
    assert "".join(map(str, pattern.sources(100_000, 100_018).tolist())) == "200010011021000101"
    assert Pattern(shares=(5, 3, 1), seed=8).sources(0, 27).tolist() != pattern.sources(0, 27).tolist()


# Lengths.


@given(blends())
def test_the_length_of_an_epoch_follows_from_its_sources(blend: MixtureOrder) -> None:
    """`first` ends an epoch where a source would run out, and `all` when each source was used whole."""
    sizes = [part.slots for part in blend.parts]
    taken, length = [0] * len(sizes), 0
    order = blend.pattern.sources(0, blend.num_slots + blend.pattern.stratum).tolist()
    while any(used < size for used, size in zip(taken, sizes, strict=True)) if blend.stop == "all" else True:
        if blend.stop == "first" and taken[order[length]] == sizes[order[length]]:
            break
        taken[order[length]] += 1
        length += 1

    assert blend.num_slots == length
    assert blend.used == tuple(taken)
    if blend.stop == "first":
        assert any(used == size for used, size in zip(taken, sizes, strict=True))
        assert all(blend.epochs(source) == 1 for source in range(len(sizes)))


@given(parts(), st.integers(0, 60))
def test_rows_of_slots_are_counted_over_epochs(part: MixturePart, slots: int) -> None:
    """Every slot has the same number of rows, except for the last slot of an epoch."""
    ends = np.minimum(np.arange(part.slots + 1) * part.width, part.num_rows)

    assert part.rows(slots) == sum(int(np.diff(ends)[slot % part.slots]) for slot in range(slots))


# Orders of the sources.


def walked(blend: MixtureOrder, epoch: int, lanes: int) -> dict[int, list[tuple[int, int]]]:
    """Return the unit and row of each row of every source, lane after lane, by walking its windows."""
    mixing = blend.epoch(epoch, lanes)
    edges = even_edges(0, blend.num_slots, lanes).tolist()
    found: dict[int, list[tuple[int, int]]] = {source: [] for source in range(len(blend.parts))}
    for source, order in enumerate(mixing.orders):
        runs = mixing.runs(pairwise(edges))
        for piece in order.pieces(mixing.source_places(source, runs)):
            window = order.window(piece.lane, piece.window)
            rows = [(read.unit, row) for read in window.reads for row in np.arange(1 << 10)[read.rows].tolist()]
            taken = np.arange(len(rows)) if window.take is None else window.take
            assert len(taken) >= piece.stop
            found[source] += [rows[at] for at in taken[piece.start : piece.stop].tolist()]
    return found


@given(blends(), st.integers(0, 3), st.integers(1, 7))
def test_no_row_comes_twice_before_all_have_come(blend: MixtureOrder, epoch: int, lanes: int) -> None:
    """An epoch of a source has no row twice. All its epochs but the last have every row, for any lanes."""
    for source, rows in walked(blend, epoch, lanes).items():
        part, counted = blend.parts[source], Counter(rows)
        whole = part.num_rows == part.slots * part.width or part.partial

        assert len(rows) == part.rows(blend.used[source])
        assert max(counted.values(), default=0) <= blend.epochs(source)
        if whole:
            assert all(counted[row] >= blend.epochs(source) - 1 for row in counted)
            assert blend.stop == "first" or len(counted) == part.num_rows


@given(blends(), st.integers(0, 3), st.data())
def test_one_lane_reads_a_source_in_its_own_order(blend: MixtureOrder, epoch: int, data: st.DataObject) -> None:
    """With one lane the rows of a source come as from its own loader, epoch after epoch."""
    source = data.draw(st.integers(0, len(blend.parts) - 1))
    part, epochs = blend.parts[source], blend.epochs(source)
    expected = []
    for number in range(epoch * epochs, (epoch + 1) * epochs):
        arrangement = part.shuffle.arrange(part.counts, seed=part.seed, epoch=number)
        rows: list[tuple[int, int]] = []
        edges = arrangement.edges(0, part.num_rows).tolist()
        for index, (start, stop) in enumerate(pairwise(edges)):
            window = arrangement.window(start, stop, lane=0, index=index)
            read = [(one.unit, row) for one in window.reads for row in np.arange(1 << 10)[one.rows].tolist()]
            rows += read if window.take is None else [read[at] for at in window.take.tolist()]
        expected += rows[: part.slots * part.width]

    assert walked(blend, epoch, 1)[source] == expected[: part.rows(blend.used[source])]


@given(blends(), st.integers(1, 7), st.data())
def test_a_range_of_slots_is_a_range_of_each_source_order(blend: MixtureOrder, lanes: int, data: st.DataObject) -> None:
    """Consecutive ranges of slots take consecutive ranges of each source."""
    mixing = blend.epoch(0, lanes)
    start = data.draw(st.integers(0, blend.num_slots))
    stop = data.draw(st.integers(start, blend.num_slots))
    cut = sorted({0, start, stop, blend.num_slots})

    for source in range(len(blend.parts)):
        places = [
            [place for low, high in mixing.source_places(source, mixing.runs([span])) for place in range(low, high)]
            for span in (*pairwise(cut), (0, blend.num_slots))
        ]
        assert sum(places[:-1], []) == places[-1]


def test_lanes_start_evenly_spaced_in_a_partly_used_source() -> None:
    """If a source is not needed whole, its lanes do not all start near its beginning."""
    rare = MixturePart(counts=np.array([1000]), shuffle=InOrder(), seed=0)
    small = MixturePart(counts=np.array([100]), shuffle=InOrder(), seed=0)
    blend = MixtureOrder(parts=(rare, small), pattern=Pattern(shares=(1, 1), seed=0), stop="first")
    mixing = blend.epoch(0, 4)

    begins = [next(mixing.source_places(0, mixing.runs([(start, blend.num_slots)])))[0] for start in (0, 50, 100, 150)]

    assert begins == [0, 249, 499, 749]
