"""Mixtures: shares, epochs, ranks and resumes against counting by hand, and what is refused."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import aligned, rows

import penstock as ps
from penstock._engine.deliver.loader import Batches
from penstock.errors import ArgumentError, EmptyDatasetError, MapError, MemoryLimitError, StateError
from penstock.model import Position
from penstock.protocols import Shuffle
from penstock.testing import MemoryFormat, example

APART = 1000
"""Ids of a source begin at so many times its number, so that an id says where it comes from."""

shuffles: st.SearchStrategy[Shuffle] = st.sampled_from(
    [ps.InOrder(), ps.RowGroupShuffle(), ps.WindowShuffle(rows=6), ps.ExactShuffle(rows=9)]
)


def table(number: int, size: int, *, group: int = 4, **options: Any) -> ps.Dataset:
    """Return a source of so many rows."""
    ids = list(range(number * APART, number * APART + size))
    return MemoryFormat.of(rows(ids), row_group_rows=group, name=f"source-{number}", **options).open().using(threads=2)


@st.composite
def sources(draw: st.DrawFn, most: int = 4) -> list[tuple[ps.Dataset, float | Fraction]]:
    """Draw datasets of different sizes and orders, and their weights."""
    found: list[tuple[ps.Dataset, float | Fraction]] = []
    for number in range(draw(st.integers(1, most))):
        ds = table(number, draw(st.integers(1, 16)), group=draw(st.integers(1, 9)), files=draw(st.integers(1, 2)))
        shuffle, seed = draw(shuffles), draw(st.integers(0, 3))
        ds = ds if shuffle == ps.InOrder() else ds.shuffle(shuffle, seed=seed)
        found.append((ds, draw(st.sampled_from([1, 2, 3, 5, 0.5, 1.5]))))
    return found


stops: st.SearchStrategy[Any] = st.sampled_from(["first", "all"])


def ids(found: Iterable[dict[str, Any]]) -> list[int]:
    """Return the ids of all rows, in the order they come."""
    return [int(number) for item in found for number in np.atleast_1d(item["id"])]


def by_source(numbers: Iterable[int], count: int) -> list[list[int]]:
    """Return ids apart by their source."""
    found: list[list[int]] = [[] for _ in range(count)]
    for number in numbers:
        found[number // APART].append(number)
    return found


def own_order(ds: ps.Dataset, first: int, epochs: int) -> list[int]:
    """Return the ids of some epochs of a dataset as its own loader hands them out."""
    loader = ps.loader(ds)
    loader.set_epoch(first)
    return [number for _ in range(epochs) for number in ids(loader)]


def epochs_of(used: int, size: int) -> int:
    """Return how many epochs of a source are begun."""
    return max(1, -(-used // size))


# What comes, and in which order.


@given(sources(), stops, st.integers(0, 99), st.integers(0, 1))
def test_each_source_comes_in_its_own_order(
    given_: list[tuple[ps.Dataset, float | Fraction]], stop: Any, seed: int, epoch: int
) -> None:
    """On one rank a mixture's rows of a source are those of its own loader, epoch after epoch, as many as the epoch has."""
    mixture = ps.mix(given_, stop=stop, seed=seed)
    loader = ps.loader(mixture)
    first = by_source(ids(mixture), len(given_))
    loader.set_epoch(epoch)
    found = by_source(ids(loader), len(given_))

    assert [len(part) for part in found] == [len(part) for part in first]
    for (ds, _), part in zip(given_, found, strict=True):
        begun = epochs_of(len(part), ds.num_rows)
        assert part == own_order(ds, epoch * begun, begun)[: len(part)]
    assert sum(map(len, found)) == mixture.num_rows == len(mixture)


@given(sources(), stops, st.integers(0, 99))
def test_an_epoch_ends_as_asked(given_: list[tuple[ps.Dataset, float | Fraction]], stop: Any, seed: int) -> None:
    """With "first" a source is handed out whole and no row comes twice; with "all" every row comes."""
    found = by_source(ids(ps.mix(given_, stop=stop, seed=seed)), len(given_))
    sizes = [ds.num_rows for ds, _ in given_]

    if stop == "first":
        assert all(len(set(part)) == len(part) for part in found)
        assert any(len(part) == size for part, size in zip(found, sizes, strict=True))
    else:
        assert [len(set(part)) for part in found] == sizes
        assert any(len(part) == size for part, size in zip(found, sizes, strict=True))


@pytest.mark.slow
@given(st.lists(st.integers(1, 6), min_size=2, max_size=4), st.integers(1, 40), st.integers(0, 99))
def test_every_batch_has_the_shares(weights: list[int], strata: int, seed: int) -> None:
    """A batch as long as a stratum has each source's share exactly, and any other is off by a few rows."""
    lowest = [weight // int(np.gcd.reduce(weights)) for weight in weights]
    size = sum(lowest)
    given_ = [(table(number, share * 12), weight) for number, (share, weight) in enumerate(zip(lowest, weights, strict=True))]
    mixture = ps.mix(given_, seed=seed).with_source()

    assert mixture.num_rows == size * 12
    for batch in mixture.batch(size):
        assert Counter(batch["_source"].tolist()) == dict(enumerate(lowest))
        assert batch["_source"].tolist() == [number // APART for number in batch["id"].tolist()]
    for batch in mixture.batch(strata, last="uneven"):
        strata = len(batch["id"])
        counts = np.bincount(batch["_source"], minlength=len(lowest))
        assert (abs(counts - strata * np.array(lowest) / size) <= 2 * max(1, len(lowest) - 1)).all()


@given(sources(), stops, st.integers(1, 9), st.sampled_from(["drop", "pad", "wrap", "uneven"]))
def test_batches_are_whole_rows_of_the_same_slots(
    given_: list[tuple[ps.Dataset, float | Fraction]], stop: Any, size: int, last: Any
) -> None:
    """Batches cut the rows of the mixture, columns of a row stay together, and an epoch ends by the policy."""
    single = ids(ps.mix(given_, stop=stop, seed=3))
    assume(last != "drop" or len(single) >= size)
    batches = list(ps.mix(given_, stop=stop, seed=3).batch(size, last=last))
    expected = [single[at : at + size] for at in range(0, len(single), size)]
    short = size - len(expected[-1])

    assert all(aligned(batch) for batch in batches)
    if last == "drop":
        expected = expected[: len(single) // size]
    elif last == "pad":
        assert batches[-1]["_valid"].tolist() == [True] * (size - short) + [False] * short
        expected[-1] += expected[-1][-1:] * short
    elif last == "wrap":
        expected[-1] += (single * size)[:short]
    assert [batch["id"].tolist() for batch in batches] == expected


# Ranks.


def shards(mixture: ps.Mixture, ranks: int, **options: Any) -> list[ps.Mixture]:
    """Return the part of each rank."""
    return [mixture.shard(rank, ranks, **options) for rank in range(ranks)]


@pytest.mark.slow
@given(sources(), stops, st.integers(1, 5), st.integers(1, 3), st.integers(1, 5), st.integers(0, 2))
def test_ranks_share_an_epoch(
    given_: list[tuple[ps.Dataset, float | Fraction]], stop: Any, ranks: int, lanes: int, size: int, epoch: int
) -> None:
    """Together ranks hand out the slots of one reader, and no row more often than its source is begun."""
    mixture = ps.mix(given_, stop=stop, seed=5).with_source()
    slots = [int(row["_source"]) for row in mixture]
    assume(len(slots) >= ranks)
    found: list[int] = []
    for shard in shards(mixture.batch(size, last="uneven"), ranks, lanes=ranks * lanes):
        loader = ps.loader(shard)
        loader.set_epoch(epoch)
        found += ids(loader)

    assert sorted(number // APART for number in found) == sorted(slots)
    for (ds, _), part in zip(given_, by_source(found, len(given_)), strict=True):
        begun, counted = epochs_of(len(part), ds.num_rows), Counter(part)
        assert max(counted.values(), default=0) <= begun
        assert begun == 1 or min(counted[number] for number in ids(ds)) >= begun - 1


@given(sources(), stops, st.integers(1, 5), st.integers(1, 4), st.sampled_from(["drop", "pad", "wrap"]))
def test_ranks_make_equal_steps(
    given_: list[tuple[ps.Dataset, float | Fraction]], stop: Any, ranks: int, size: int, last: Any
) -> None:
    """Every rank has as many batches, all full, and what is dropped is less than a global batch."""
    mixture = ps.mix(given_, stop=stop, seed=5).batch(size, last=last)
    assume(mixture.num_rows >= ranks * (size if last == "drop" else 1))
    found = [list(part) for part in shards(mixture, ranks)]

    assert len({len(batches) for batches in found}) == 1
    assert len(found[0]) == len(mixture.shard(0, ranks))
    assert all(len(batch["id"]) == size for batches in found for batch in batches)
    if last == "drop":
        handed = sum(len(batch["id"]) for batches in found for batch in batches)
        assert 0 <= mixture.num_rows - handed < ranks * size


def test_the_slots_of_a_mixture_do_not_depend_on_ranks() -> None:
    """With as many lanes, a number of ranks that divides them sees the same global batches."""
    mixture = ps.mix([(table(0, 160).shuffle(seed=1), 3), (table(1, 90).shuffle(seed=2), 1)], seed=4).with_source()
    found = []
    for ranks in (1, 2, 4, 8):
        steps = [list(part.batch(16 // ranks)) for part in shards(mixture, ranks, lanes=8)]
        found.append([sorted(ids(step)) for step in zip(*steps, strict=True)])

    assert found[0] == found[1] == found[2] == found[3]
    assert len(found[0]) == 13


# Resumes.


@given(sources(), stops, st.integers(1, 5), st.integers(0, 12), st.integers(0, 1))
def test_a_resume_goes_on_with_the_same_batches(
    given_: list[tuple[ps.Dataset, float | Fraction]], stop: Any, size: int, steps: int, epoch: int
) -> None:
    """A state that went through JSON gives the very batches that were left, and the next epoch after them."""
    mixture = ps.mix(given_, stop=stop, seed=2).batch(size, last="uneven")
    loader = ps.loader(mixture)
    loader.set_epoch(epoch)
    batches = iter(loader)
    for _ in zip(range(min(steps, len(mixture) - 1)), batches, strict=False):
        pass
    state = json.loads(json.dumps(loader.state_dict()))
    assert state == loader.state_at(min(steps, len(mixture) - 1))

    again = ps.loader(mixture)
    again.load_state_dict(state)

    assert len(again) == len(mixture) - min(steps, len(mixture) - 1)
    assert ids(again) == ids(batches)
    assert ids(again) == ids(loader)


@pytest.mark.slow
@given(sources(), stops, st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), min_size=1, max_size=4), st.integers(1, 4))
def test_a_resume_on_other_ranks_loses_and_repeats_nothing(
    given_: list[tuple[ps.Dataset, float | Fraction]], stop: Any, history: list[tuple[int, int]], size: int
) -> None:
    """Whatever numbers of ranks follow each other, all rows of the epoch come, as often as on one rank."""
    mixture = ps.mix(given_, stop=stop, seed=6)
    lanes = history[0][0]
    assume(mixture.num_rows >= 5)
    whole = Counter(number for part in shards(mixture, lanes) for number in ids(part))
    found: Counter[int] = Counter()
    states: list[Any] = []
    for ranks, steps in [*history, (history[-1][0], 10_000)]:
        loaders = [ps.loader(part.batch(size, last="uneven")) for part in shards(mixture, ranks)]
        for loader in loaders:
            if states:
                loader.load_state_dict(json.loads(json.dumps(states)))
            batches = iter(loader)
            found.update(ids(batch for _, batch in zip(range(steps), batches, strict=False)))
        states = [loader.state_dict() for loader in loaders]
        if all(state["epoch"] for state in states):
            break

    assert found == whole


@pytest.mark.slow
@given(sources(most=3), stops, st.integers(1, 5), st.integers(1, 5), st.integers(1, 6), st.integers(1, 3))
def test_one_state_is_enough_where_ranks_advance_alike(
    given_: list[tuple[ps.Dataset, float | Fraction]], stop: Any, before: int, after: int, steps: int, size: int
) -> None:
    """With equal steps the state of rank 0 resumes any number of ranks: nothing comes twice, and little is dropped."""
    mixture = ps.mix(given_, stop=stop, seed=6).batch(size, last="drop")
    assume(mixture.num_rows >= max(before, after) * size)
    whole = Counter(number for part in shards(ps.mix(given_, stop=stop, seed=6), before) for number in ids(part))
    found: Counter[int] = Counter()
    loaders = [ps.loader(part) for part in shards(mixture, before)]
    assume(steps < len(loaders[0]))
    for loader in loaders:
        found.update(ids(batch for _, batch in zip(range(steps), loader, strict=False)))
    state = json.loads(json.dumps(loaders[0].state_dict()))
    for part in shards(mixture, after):
        again = ps.loader(part)
        again.load_state_dict(state)
        if not again.state_dict()["epoch"]:
            found.update(ids(again))

    assert not found - whole
    assert (whole - found).total() < after * size


def test_a_resume_reads_a_window_of_each_source_and_no_more() -> None:
    """A resume near the end of an epoch computes where each source is, and reads on from there."""
    given_ = [(table(number, 400).shuffle(ps.WindowShuffle(rows=20), seed=1), 1) for number in range(2)]
    mixture = ps.mix(given_).batch(10)
    state = ps.loader(mixture).state_at(78)
    batches = Batches(mixture._table, mixture._query, Position())
    whole = ids(batches)
    loader = ps.loader(mixture)
    loader.load_state_dict(state)
    again = iter(loader)

    assert ids(again) == whole[780:]
    assert batches.units_read >= 200
    assert again.units_read <= 20


def test_what_differs_in_a_state_is_named() -> None:
    """Another weight, another table, another seed or another stop is refused with what differs."""
    one, other = table(0, 20).shuffle(seed=1), table(1, 20)
    mixture = ps.mix([(one, 0.5), (other, 0.5)], seed=1)
    state = ps.loader(mixture).state_dict()
    renewed = MemoryFormat.of(rows(range(APART, APART + 20)), row_group_rows=4, name="source-1", version="2").open()
    end = "Mix the same sources by the same weights, or start without the state."

    def refused(ds: Any, state: Any = state) -> str:
        with pytest.raises(StateError) as caught:
            ps.loader(ds).load_state_dict(state)
        return str(caught.value)

    assert refused(ps.mix([(one, 2), (other, 1)], seed=1)) == (
        "The state was saved for a mixture with shares [1, 1], and this one has shares [2, 1]. Its slots would have "
        f"other rows. {end}"
    )
    assert refused(ps.mix([(one, 1)], seed=1)).startswith(
        "The state was saved for a mixture with sources 2, and this one has sources 1."
    )
    assert refused(ps.mix([(one, 1), (other, 1)], seed=1, stop="all")).startswith(
        "The state was saved for a mixture with stop 'first', and this one has stop 'all'."
    )
    assert refused(ps.mix([(one.batch(2), 1), (other.batch(2), 1)], seed=1)).startswith(
        "The state was saved for a mixture with batches None, and this one has batches [[2, False], [2, True]]."
    )
    assert refused(ps.mix([(one, 1), (renewed, 1)], seed=1)) == (
        "The state was saved with version '', but source 1 of this mixture has version '2'. Resume over the same version, or "
        "start without the state."
    )
    assert refused(ps.mix([(one, 1), (table(2, 20), 1)], seed=1)) == (
        "The state was saved with table 'memory:source-1', but source 1 of this mixture has table 'memory:source-2'. Resume "
        "over the same table, or start without the state."
    )
    assert "since it was saved, of source 1 of this mixture its files or rows changed." in refused(
        ps.mix([(one, 1), (table(1, 19), 1)], seed=1)
    )
    assert "of source 0 of this mixture the filter, sequence, shuffle, window or limit changed." in refused(
        ps.mix([(table(0, 20).shuffle(ps.ExactShuffle(rows=5), seed=1), 1), (other, 1)], seed=1)
    )
    assert refused(ps.mix([(table(0, 20).shuffle(seed=3), 1), (other, 1)], seed=1)) == (
        "The state was saved with seed 1, but source 0 of this mixture has seed 3. Resume over the same seed, or start without "
        "the state."
    )
    assert refused(ps.mix([(one, 1), (other, 1)], seed=2)) == (
        "The state was saved with seed 1, but this dataset has seed 2. Resume over the same seed, or start without the state."
    )
    assert refused(one) == (
        "The state was saved for a mixture, and this is one table. Resume it with a mixture, or start without it."
    )
    assert refused(mixture, ps.loader(one).state_dict()) == (
        "The state was saved for one table, and this is a mixture. Resume it with one table, or start without it."
    )
    assert refused(mixture, {**state, "mixture": {"sources": 3}}) == (
        "The state's mixture is not valid: {'sources': 3}. The state was damaged; start without it."
    )


def test_what_may_differ_in_a_state() -> None:
    """Weights in other terms, columns, maps, threads and the size of the mixture's batches may change between runs."""
    one, other = table(0, 20).shuffle(seed=1), table(1, 20).shuffle(seed=1)
    loader = ps.loader(ps.mix([(one, 0.5), (other, 0.5)]).batch(4))
    batches = iter(loader)
    seen = ids([next(batches)])
    again = ps.loader(ps.mix([(one.select("id"), 3), (other.select("id"), 3)]).batch(6, last="uneven").using(threads=1))
    again.load_state_dict(loader.state_dict())

    assert sorted(seen + ids(again)) == sorted([*range(20), *range(APART, APART + 20)])


# Batches as slots.


small = st.tuples(st.integers(1, 16), st.integers(1, 6))
"""Rows of a source, and of its batches."""


@given(stops, small, small, st.sampled_from(["drop", "pad", "wrap", "uneven"]), st.integers(0, 1))
def test_sources_with_batches_are_mixed_batch_by_batch(
    stop: Any, one: tuple[int, int], other: tuple[int, int], last: Any, epoch: int
) -> None:
    """Batches of each source come as its own loader hands them out, whatever its policy for the last one."""
    assume(last != "drop" or (one[0] >= one[1] and other[0] >= other[1]))
    pair = [table(0, one[0]).batch(one[1], last=last), table(1, other[0]).shuffle(seed=3).batch(other[1], last=last)]
    mixture = ps.mix([(pair[0], 2), (pair[1], 1)], stop=stop, seed=1).with_source()
    loader = ps.loader(mixture)
    loader.set_epoch(epoch)
    batches = [(batch.pop("_source").tolist(), listed(batch)) for batch in loader]

    assert len(batches) == len(mixture)
    for source, ds in enumerate(pair):
        found = [batch for told, batch in batches if set(told) == {source}]
        own = ps.loader(ds)
        begun = epochs_of(len(found), len(ds))
        own.set_epoch(epoch * begun)
        assert found == [listed(batch) for _ in range(begun) for batch in own][: len(found)]


def listed(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch as lists."""
    return {name: np.asarray(values).tolist() for name, values in batch.items()}


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 4), stops)
def test_batches_are_dealt_to_ranks_and_resumed(before: int, after: int, steps: int, stop: Any) -> None:
    """Every rank has as many batches, and an elastic resume neither repeats nor loses one but the last few."""
    mixture = ps.mix([(table(0, 26).shuffle(seed=1).batch(3), 1), (table(1, 40).batch(4), 2)], stop=stop, seed=2)
    loaders = [ps.loader(part) for part in shards(mixture, before)]
    total = len(mixture)
    steps = min(steps, total // before - 1)
    found = Counter(tuple(batch["id"].tolist()) for loader in loaders for _, batch in zip(range(steps), loader, strict=False))
    for part in shards(mixture, after):
        again = ps.loader(part)
        again.load_state_dict(loaders[0].state_dict())
        found.update(tuple(batch["id"].tolist()) for batch in again)

    assert len({len(part) for part in shards(mixture, before)}) == 1
    assert total - after < found.total() <= total
    whole = Counter(number for part in found.elements() for number in part)
    assert stop == "all" or max(whole.values()) == 1


def test_a_mixture_of_batches_runs_its_own_maps_on_them() -> None:
    """A map of the mixture gets each batch of the sources with the places of its rows, also where values lie flat."""
    ragged = MemoryFormat.of({"tokens": [[1], [2, 3], [], [4, 5, 6]]}, row_group_rows=2, name="ragged").open()
    one = ragged.ragged(ps.Offsets(), "tokens").batch(2)
    made = list(ps.mix([(one, 1), (one, 1)]).map(lambda batch: {**batch, "tokens": batch["tokens"] * 2}))
    drawn = list(
        ps.mix([(table(0, 6).batch(3), 1), (table(1, 6).batch(2), 1)], stop="all").map(
            lambda row, rng: {"id": row["id"], "drawn": rng.integers(1 << 60)}, per_row=True
        )
    )

    assert [batch["tokens"].tolist() for batch in made] == [[2, 4, 6], [2, 4, 6], [8, 10, 12], [8, 10, 12]]
    assert [batch["tokens_offsets"].tolist() for batch in made] == [[0, 1, 3], [0, 1, 3], [0, 0, 3], [0, 0, 3]]
    numbers = [number for batch in drawn for number in batch["drawn"].tolist()]
    assert len(set(numbers)) == len(numbers) == 15


# Clauses of sources and of the mixture.


def test_maps_of_sources_are_theirs() -> None:
    """A row's map runs as in the source's own dataset, with the same random numbers, also over its epochs."""

    def drawn(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"id": row["id"], "drawn": rng.integers(1 << 60)}

    given_ = [(table(0, 20).shuffle(seed=1).map(drawn), 1), (table(1, 3).shuffle(seed=2).map(drawn), 2)]
    mixture = ps.mix(given_, stop="all", seed=3)
    own: set[tuple[int, int]] = set()
    for ds, _ in given_:
        loader = ps.loader(ds)
        own |= {(int(row["id"]), int(row["drawn"])) for _ in range(20) for row in loader}
    single = [(int(row["id"]), int(row["drawn"])) for row in mixture]
    batches = [pair for batch in mixture.batch(7, last="uneven") for pair in zip(*listed(batch).values(), strict=True)]

    assert single == batches
    assert set(single) <= own
    assert len(set(single)) == len(single) > 50


def test_a_map_of_the_mixture_sees_rows_of_all_sources() -> None:
    """It runs after the sources' own maps, on whole batches, with the column that names the source."""
    given_ = [
        (table(number, 12).map(lambda row: {"id": row["id"] + 1}, fields=[ps.Field("id", np.int64)]), 1) for number in (0, 1)
    ]
    mixture = ps.mix(given_).with_source().batch(6).map(lambda batch: {"n": batch["id"] - APART * batch["_source"]})

    assert sorted(int(number) for batch in mixture for number in batch["n"]) == sorted([*range(1, 13)] * 2)


def test_clauses_of_sources_count() -> None:
    """Filters, limits, columns, stacks, row ids and policies are those of each source."""
    one = table(0, 20).where(ps.col("id") >= 10).select("id", "triple").with_row_ids().stack("both", ["id", "triple"])
    other = table(1, 20).limit(10).select("id", "triple").with_row_ids().stack("both", ["id", "triple"])
    batch = next(iter(ps.mix([(one, 1), (other, 1)]).batch(20)))

    assert list(batch) == ["_file", "_row_group", "_row", "both"]
    assert sorted(batch["both"][:, 0].tolist()) == [*range(10, 20), *range(APART, APART + 10)]
    assert batch["both"][:, 1].tolist() == (3 * batch["both"][:, 0]).tolist()


def test_columns_may_be_in_another_order() -> None:
    """Columns come in the order of the first source."""
    mixture = ps.mix([(table(0, 4).select("id", "name"), 1), (table(1, 4).select("name", "id"), 1)]).batch(8)

    assert [list(batch) for batch in mixture] == [["id", "name"]]
    assert mixture.schema.names == ("id", "name")


def test_arrays_of_one_shape_are_stacked_and_others_are_objects() -> None:
    """What maps return is stacked where the cells of all sources agree."""
    alike = ps.mix([(table(number, 4).map(lambda row: {"x": np.full(2, row["id"])}), 1) for number in (0, 1)])
    unlike = ps.mix(
        [
            (table(0, 4).map(lambda row: {"x": np.full(2, row["id"])}), 1),
            (table(1, 4).map(lambda row: {"x": np.full(3, row["id"])}), 1),
        ]
    )
    (stacked,), (deferred,) = list(alike.batch(8)), list(unlike.batch(8))

    assert stacked["x"].shape == (8, 2)
    assert deferred["x"].dtype == object
    assert sorted(cell.shape for cell in deferred["x"]) == [(2,)] * 4 + [(3,)] * 4


def test_maps_that_do_not_go_together_are_told_apart() -> None:
    """What a map returns shows only when it runs; then the sources that differ are named."""
    plain = table(0, 4).map(lambda row: {"x": row["id"]})
    with pytest.raises(MapError) as names:
        list(ps.mix([(plain, 1), (table(1, 4).map(lambda row: {"y": row["id"]}), 1)]).batch(8))
    with pytest.raises(MapError) as kinds:
        list(ps.mix([(plain, 1), (table(1, 4).map(lambda row: {"x": np.float32(row["id"])}), 1)]).batch(8))

    assert str(names.value) == (
        "The maps of source 0 (memory:source-0) return columns x, and those of source 1 (memory:source-1) y. All sources of "
        "a mixture must have the same columns. Return the same ones."
    )
    assert str(kinds.value) == (
        "Column 'x' is int64 as the maps of source 0 (memory:source-0) return it, and float32 as those of source 1 "
        "(memory:source-1) do. All sources of a mixture must have the same types. Return the same one, with .astype(...)."
    )


@pytest.mark.parametrize("batched", [False, True])
def test_maps_of_a_mixture_run_in_processes_too(*, batched: bool) -> None:
    """They make what they make on threads, with the same random numbers, of rows and of batches."""

    def drawn(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"id": batch["id"], "name": batch["name"], "drawn": rng.integers(1 << 60, size=len(batch["id"]))}

    given_ = [(table(0, 30).shuffle(seed=1), 2), (table(1, 20), 1)]
    mixture = ps.mix([(ds.batch(4) if batched else ds, weight) for ds, weight in given_], seed=3)
    mixture = (mixture if batched else mixture.batch(4)).map(drawn)

    made = [listed(batch) for batch in mixture.using(workers="processes", processes=1)]

    assert made == [listed(batch) for batch in mixture]
    assert len(made) == len(mixture)


def test_arrays_of_a_batch_may_be_written_to() -> None:
    """Single rows are copied when they are put together, so that a batch is the consumer's own, of one source too."""
    for batch in ps.mix([(table(0, 8), 1), (table(1, 8), 7)]).batch(2):
        batch["id"][:] = 0

    assert len(set(ids(ps.mix([(table(0, 8), 1)])))) == 8


def test_a_loader_counts_the_rows_of_all_sources() -> None:
    """What is counted are rows, whether slots are rows or batches."""
    for batched in (False, True):
        one, other = table(0, 20), table(1, 20)  # which stay in memory
        rows = ps.mix([(one, 1), (other, 1)]).batch(4)
        loader = ps.loader(ps.mix([(one.batch(4), 1), (other.batch(4), 1)]) if batched else rows)
        list(loader)

        assert (loader.stats().batches, loader.stats().rows, loader.stats().units_read) == (10, 40, 10)


def test_one_pool_reads_all_sources() -> None:
    """Threads are not multiplied by sources."""
    mixture = ps.mix([(table(number, 40).shuffle(seed=1), 1) for number in range(5)]).batch(10)
    batches = Batches(mixture._table, mixture._query, Position())
    next(batches)

    assert batches._pool.threads == 2
    assert {id(reading.window_reader._pool) for reading in batches._window_reader.readings} == {id(batches._pool)}  # type: ignore[union-attr]
    batches.close()
    assert ps.mix([(table(0, 4), 1)]).using(threads=3)._query.threads == 3


# What it says of itself.


def test_a_mixture_prints_as_the_question_it_asks() -> None:
    """Sources, weights, options and clauses show."""
    mixture = ps.mix([(example(), Fraction(2, 6)), (example().select("id", "x", "label"), 2 / 3)], stop="all", seed=4)

    assert repr(mixture.with_source().batch(8, last="pad").shard(0, 2).repeat(2).map(np.copy)) == (
        "penstock.mix([(penstock.open('memory:example'), Fraction(1, 3)), (penstock.open('memory:example')"
        ".select('id', 'x', 'label'), 0.6666666666666666)], stop='all', seed=4).with_source().shard(0, 2)"
        ".batch(8, last='pad').repeat(2).map(copy)"
    )
    weight: Any = np.int64(3)
    assert repr(ps.mix([(example().batch(2), weight)])) == "penstock.mix([(penstock.open('memory:example').batch(2), 3)])"


def test_mixtures_are_equal_when_they_ask_the_same() -> None:
    """Equality is by question, and a mixture is a value that travels."""
    mixture = ps.mix([(example(), 1), (example().shuffle(seed=1), 2)], seed=3)

    assert mixture == ps.mix([(example(), 1), (example().shuffle(seed=1), 2)], seed=3)
    assert len({mixture, copy.copy(mixture), mixture.using(memory_limit=1 << 20)}) == 1
    assert mixture != ps.mix([(example(), 1), (example().shuffle(seed=1), 2)])
    assert mixture.map(lambda row: row) != mixture.map(lambda row: row)
    assert mixture != "mixture"
    assert bool(mixture) is True
    assert ids(cloudpickle.loads(cloudpickle.dumps(mixture))) == ids(mixture)


def test_the_schema_is_that_of_what_comes() -> None:
    """The columns of the sources, the source, padding, and what maps declare."""
    mixture = ps.mix([(example(), 1), (example(), 1)]).with_source().batch(3, last="pad")

    assert mixture.schema.names == ("id", "x", "label", "_source", "_valid")
    assert set(next(iter(mixture))) == set(mixture.schema.names)
    assert mixture.map(lambda batch: batch).schema.names == mixture.schema.names
    assert mixture.map(lambda batch: {"y": batch["x"]}, fields=[ps.Field("y", np.float64)]).schema.names == ("y", "_valid")


def test_explain_says_what_is_taken_of_each_source() -> None:
    """Shares, rows, epochs, ranks and steps."""
    told = ps.mix([(example(), 2), (example(), 2)]).explain()
    batches = ps.mix([(example().batch(2), 3), (example().limit(6).batch(2), 1)], stop="all").shard(1, 2).explain()

    assert [line.strip() for line in told.splitlines()[1:]] == [
        "source 0    1 of every 2 slots; 10 of its 10 rows",
        "source 1    1 of every 2 slots; 10 of its 10 rows",
        "epoch       20 rows, until the first source would run out",
        "ranks       1, 1 lanes; this is rank 0, with 20 rows",
        "steps       20 per epoch on this rank, last=uneven",
    ]
    assert [line.strip() for line in batches.splitlines()[1:]] == [
        "source 0    3 of every 4 slots; 7 batches, in 2 epochs of 5",
        "source 1    1 of every 4 slots; 3 of its 3 batches",
        "epoch       10 batches, until all sources have been handed out whole",
        "ranks       2, 2 lanes; this is rank 1, with 5 batches",
        "steps       5 per epoch on this rank, last=drop",
    ]


def test_explain_analyze_tells_where_the_time_goes() -> None:
    """The page of explain, what was read, and the same lines as for a dataset."""
    for mixture in (
        ps.mix([(example(), 2), (example(), 1)]).batch(3),
        ps.mix([(example().batch(2), 1)]),
        ps.mix([(example(), 1)]),
    ):
        page = mixture.explain()
        told = mixture.repeat().explain(analyze=True)
        added = told.splitlines()[len(page.splitlines()) :]

        assert page.splitlines()[1:] == told.splitlines()[1 : len(page.splitlines())]
        assert added[0] == "  analyzed    a whole epoch, read now for a consumer that does nothing"
        assert added[1].startswith(f"  handed out  {len(mixture)} batches, {mixture.num_rows} rows, ")
        assert added[-1].startswith("  remedy      ")


@pytest.mark.parametrize("name", sorted(set(dir(ps.Dataset)) - set(dir(ps.mix([(example(), 1)])))))
def test_what_only_sources_have_is_refused_with_where_to_ask_it(name: str) -> None:
    """Every public name that a dataset has and a mixture lacks."""
    mixture = ps.mix([(example(), 1)])
    with pytest.raises(AttributeError) as caught:
        getattr(mixture, name)

    if name.startswith("_"):
        assert str(caught.value) == f"'Mixture' object has no attribute {name!r}"
    elif name == "on_bad_row":
        assert str(caught.value).startswith("A mixture has no .on_bad_row(): it needs an exact number of rows of each source. ")
    elif name in ("head", "take", "to_arrow", "to_pandas"):
        assert str(caught.value) == (
            f"A mixture has no .{name}(), since its rows come from several tables. Call it on each source: ds.{name}(...)."
        )
    else:
        assert callable(getattr(example(), name))
        assert str(caught.value) == (
            f"A mixture has no .{name}(): clauses about rows and columns belong to its sources. Call it on each source: "
            f"penstock.mix([(ds.{name}(...), 1), ...])."
        )


def test_what_nobody_has_is_no_attribute_of_a_mixture() -> None:
    """As of other objects, so that those who look for it go on."""
    mixture = ps.mix([(example(), 1)])

    assert not hasattr(mixture, "selct")
    with pytest.raises(AttributeError, match=r"^'Mixture' object has no attribute 'selct'"):
        _ = mixture.selct  # type: ignore[attr-defined]
    with pytest.raises(ArgumentError, match=r"with .on_bad_row\('skip'\), and a mixture needs an exact number of rows of each"):
        ps.mix([(example().on_bad_row("skip"), 1)])


def test_lengths_and_rows() -> None:
    """Rows count those that come twice; a mixture that repeats counts all its epochs, and one without end has no length."""
    mixture = ps.mix([(table(0, 10), 1), (table(1, 30), 1)], stop="all")

    assert mixture.num_rows == 59
    assert len(mixture.batch(7).repeat(2)) == 18
    assert ps.mix([(table(0, 10).batch(4), 1), (table(1, 7).batch(7), 1)], stop="all").num_rows == 24
    with pytest.raises(TypeError, match="repeats without end"):
        len(mixture.repeat())


# What is refused.


@pytest.mark.parametrize(
    ("sources_", "said"),
    [
        ([], "mix() got []; expected a list of datasets and weights, for example mix([(ds_a, 0.7), (ds_b, 0.3)])."),
        ("ab", "mix() got 'ab'; expected a list of datasets and weights, for example mix([(ds_a, 0.7), (ds_b, 0.3)])."),
        ([3], "mix() got 3 as source 0; expected a dataset and its weight, for example (ds, 0.5)."),
        (
            [("ds", 1)],
            "mix() got str as source 0; expected a dataset, for example penstock.open(url). To mix a mixture, pass its "
            "sources.",
        ),
    ],
)
def test_what_is_no_list_of_sources_is_refused(sources_: Any, said: str) -> None:
    """A mixture is made of pairs."""
    with pytest.raises(ArgumentError) as caught:
        ps.mix(sources_)

    assert str(caught.value) == said


@pytest.mark.parametrize("weight", [0, -1, True, "1", None, float("nan"), float("inf"), 1j])
def test_a_weight_is_a_positive_number(weight: Any) -> None:
    """Anything else is refused with what was given."""
    with pytest.raises(ArgumentError) as caught:
        ps.mix([(example(), 1), (example(), weight)])

    assert str(caught.value) == (
        f"mix() got weight {weight!r} for source 1; expected a positive number, for example (ds, 0.5)."
    )


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            example().shard(0, 2),
            "has .shard(). Shard the mixture instead: penstock.mix([...]).shard(rank, world_size).",
        ),
        (
            example().repeat(2),
            'has .repeat(). Remove it and use stop="all", or repeat the mixture.',
        ),
        (
            example().where(ps.col("id") > 3, lazy=True),
            "has a lazy filter, and the rows of a source are counted before it is read. Remove lazy=True.",
        ),
        (
            example().using(workers="processes"),
            'has .using(workers="processes"), and sources are read and mapped on threads. Remove it, or use it on the '
            "mixture, whose own maps can run in processes.",
        ),
        (
            example().batch("row_group"),
            'has .batch("row_group"), whose batches differ in size. Use a number of rows, or batch the mixture.',
        ),
    ],
)
def test_what_is_the_mixtures_is_refused_of_a_source(source: ps.Dataset, said: str) -> None:
    """Clauses that concern the whole are asked of the mixture."""
    with pytest.raises(ArgumentError) as caught:
        ps.mix([(example(), 1), (source, 1)])

    assert str(caught.value) == f"Source 1 of the mixture (memory:example) {said}"


def test_rows_and_batches_are_not_mixed() -> None:
    """Slots are all of one kind."""
    with pytest.raises(ArgumentError) as caught:
        ps.mix([(example(), 1), (example().batch(2), 1)])
    with pytest.raises(ArgumentError) as twice:
        ps.mix([(example().batch(2), 1)]).batch(2)
    with pytest.raises(ArgumentError) as groups:
        ps.mix([(example(), 1)]).batch("row_group")  # type: ignore[arg-type]

    assert str(caught.value) == (
        "Source 1 of the mixture has batches, and source 0 has single rows; expected one kind. To mix rows, use .batch() on "
        "the mixture and not on its sources; to mix whole batches, use it on every source."
    )
    assert str(twice.value) == (
        "batch() got size=2 for a mixture whose sources have batches already. Remove it; or remove .batch() from the "
        "sources, for batches with rows of all of them."
    )
    assert str(groups.value) == (
        'batch() got size="row_group" for a mixture; expected a positive integer, for example batch(32).'
    )


def test_columns_that_differ_are_named() -> None:
    """The difference and the remedy are said before anything is read."""
    floats = MemoryFormat.of({"id": [1.0, 2.0]}, row_group_rows=2, name="floats").open()
    arrays = MemoryFormat([[pa.table({"id": pa.array([[1, 2]], pa.list_(pa.int64(), 2))})]], name="arrays").open()

    def refused(one: ps.Dataset, other: ps.Dataset) -> str:
        with pytest.raises(ArgumentError) as caught:
            ps.mix([(one, 1), (other, 1)])
        return str(caught.value)

    end = "Leave it out with .select(...), or add it with .map(...)."
    assert refused(example(), example().select("id", "x")) == (
        "Column 'label' is in source 0 (memory:example) and not in source 1 (memory:example); expected the same columns in "
        f"all sources. {end}"
    )
    assert refused(example().select("id"), example().select("id", "x")).startswith(
        "Column 'x' is in source 1 (memory:example) and not in source 0 (memory:example);"
    )
    assert refused(example().select("id"), floats) == (
        "Column 'id' is int64 in source 0 (memory:example) and float64 in source 1 (memory:floats); expected the same types "
        "in all sources. Convert it with .map(..., fields=[...]), or leave it out with .select(...)."
    )
    assert "is int64 in source 0 (memory:example) and int64 of shape (2,) in source 1 (memory:arrays);" in refused(
        example().select("id"), arrays
    )
    as_declared = floats.map(lambda row: {"id": np.int64(row["id"])}, fields=[ps.Field("id", np.int64)])
    assert len(ps.mix([(example().select("id"), 1), (as_declared, 1)])) == 5


def test_columns_of_ours_do_not_hide_those_of_sources() -> None:
    """A source that has such a column is told so."""
    one = MemoryFormat.of({"_source": [1], "_valid": [1]}, row_group_rows=1, name="ours").open()
    with pytest.raises(ArgumentError) as caught:
        ps.mix([(one, 1)]).with_source()
    with pytest.raises(ArgumentError, match="This mixture adds a column '_valid'"):
        ps.mix([(one, 1)]).batch(2, last="pad")

    assert str(caught.value) == (
        "This mixture adds a column '_source', and its sources have a column of that name. Leave theirs out with "
        ".select(...), or remove the clause that adds the other."
    )


def test_a_source_without_rows_is_refused() -> None:
    """Every source has something to give, and every rank something to get."""
    few = [(example().limit(2), 1), (example().limit(2), 1)]
    cases: list[tuple[ps.Mixture, str]] = [
        (
            ps.mix([(example(), 1), (example().where(ps.col("id") > 99), 1)]),
            "Source 1 of the mixture, memory:example, has no rows to hand out under the filter col('id') > 99. Every source "
            "needs at least one. Check its filter, or leave it out.",
        ),
        (
            ps.mix([(example().limit(0), 1)]),
            "Source 0 of the mixture, memory:example, has no rows to hand out. Every source needs at least one. Check its "
            "filter, or leave it out.",
        ),
        (
            ps.mix([(example().limit(3).batch(4, last="drop"), 1)]),
            'memory:example has 3 rows to hand out, fewer than one batch of 4, and last="drop" would drop them all. Use a '
            'batch of at most 3 rows, or last="pad", "wrap", "level" or "uneven".',
        ),
        (
            ps.mix(few).shard(0, 5),
            "a mixture of memory:example and memory:example has 4 rows to hand out, fewer than its 5 ranks. Every rank needs "
            "at least one row. Use at most 4 ranks.",
        ),
        (
            ps.mix([(ds.batch(2), weight) for ds, weight in few]).shard(0, 3),
            "a mixture of memory:example and memory:example has 2 batches to hand out, fewer than its 3 ranks. Every rank "
            'needs at least one. Use fewer ranks, smaller batches, or stop="all".',
        ),
    ]
    for mixture, said in cases:
        with pytest.raises(EmptyDatasetError) as caught:
            iter(mixture)
        assert str(caught.value) == said


def test_options_are_checked() -> None:
    """What stop, seed and the clauses do not know is refused."""
    with pytest.raises(ArgumentError) as caught:
        ps.mix([(example(), 1)], stop="last")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"mix\(\) got seed=-1"):
        ps.mix([(example(), 1)], seed=-1)
    with pytest.raises(ArgumentError, match="less than one slot in 65536"):
        ps.mix([(example(), 1), (example(), 1e-9)])
    with pytest.raises(ArgumentError, match=r"map\(\) got 3"):
        ps.mix([(example(), 1)]).map(3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"loader\(\) got str"):
        ps.loader("mixture")  # type: ignore[arg-type]

    assert str(caught.value) == (
        """mix() got stop='last'; expected "first" or "all": at the end of the first source, or of all."""
    )


def test_the_last_batch_of_a_mixture_is_filled_up() -> None:
    """Padding is marked, and counted before it is made."""
    source = example().shuffle(seed=0)
    asked = ps.mix([(source, 1)], stop="all").batch(4, last="pad")

    found = list(ps.loader(asked))

    assert [batch["_valid"].sum() for batch in found] == [4, 4, 2]
    assert sorted(np.concatenate([batch["id"][batch["_valid"]] for batch in found])) == list(range(10))
    with pytest.raises(MemoryLimitError, match="filled up to 120000 rows"):
        list(ps.loader(ps.mix([(source, 1)], stop="all").batch(120_000, last="pad").using(memory_limit=1 << 20)))


def test_a_batch_of_a_mixture_is_filled_up() -> None:
    """With the last row of the epoch, which is marked."""
    ds = example().select("id")
    last = list(ps.mix([(ds, 1), (ds, 1)]).batch(8, last="pad"))[-1]

    assert last["_valid"].tolist() == [True] * 4 + [False] * 4
    assert last["id"].tolist()[4:] == last["id"].tolist()[3:4] * 4


def test_sequences_of_lists_need_batches_of_their_own() -> None:
    """Padding of lists in sequences is left to each source, which must have batches for it."""
    data = {"time": list(range(6)), "tokens": [[n] * (n % 3) for n in range(6)]}
    ds = MemoryFormat.of(pa.table(data), row_group_rows=6, name="steps").open().ragged(ps.Pad(), "tokens")
    ds = ds.sequence(ps.Sequence(length=2, by="time"))

    with pytest.raises(ArgumentError) as refused:
        next(iter(ps.mix([(ds, 1), (ds, 1)]).batch(2)))

    assert str(refused.value) == (
        "Column 'tokens' comes as Pad(value=0, length=None, truncate=False), which depends on the other rows of a batch, and "
        "source 0 of the mixture has single rows. Batch each source, not the mixture, or give Pad a length."
    )


def test_a_policy_of_one_source_is_told_to_be_needed_by_all() -> None:
    """What a policy adds is no column to select or to make."""
    ds = MemoryFormat.of({"tokens": [[1], [2, 3]]}, row_group_rows=2, name="ragged").open()

    with pytest.raises(
        ArgumentError, match=r"Column 'tokens_length' is in .*Use the same \.ragged\(\) and \.nulls\(\) on all sources"
    ):
        ps.mix([(ds.ragged(ps.Pad(), "tokens"), 1), (ds, 1)])
