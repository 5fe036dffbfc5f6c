"""Mixtures: shares, epochs, ranks and resumes are compared with plain computations, and invalid mixtures raise errors."""

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

ID_STEP = 1000
"""Ids of source n begin at n times this number, so that an id identifies its source."""

shuffles: st.SearchStrategy[Shuffle] = st.sampled_from(
    [ps.InOrder(), ps.RowGroupShuffle(), ps.WindowShuffle(rows=6), ps.ExactShuffle(rows=9)]
)


def table(number: int, size: int, *, group: int = 4, **options: Any) -> ps.Dataset:
    """Return a source with `size` rows."""
    ids = list(range(number * ID_STEP, number * ID_STEP + size))
    return MemoryFormat.of(rows(ids), row_group_rows=group, name=f"source-{number}", **options).open().using(threads=2)


@st.composite
def sources(draw: st.DrawFn, most: int = 4) -> list[tuple[ps.Dataset, float | Fraction]]:
    """Draw datasets of different sizes and orders, with their weights."""
    found: list[tuple[ps.Dataset, float | Fraction]] = []
    for number in range(draw(st.integers(1, most))):
        ds = table(number, draw(st.integers(1, 16)), group=draw(st.integers(1, 9)), files=draw(st.integers(1, 2)))
        shuffle, seed = draw(shuffles), draw(st.integers(0, 3))
        ds = ds if shuffle == ps.InOrder() else ds.shuffle(shuffle, seed=seed)
        found.append((ds, draw(st.sampled_from([1, 2, 3, 5, 0.5, 1.5]))))
    return found


stops: st.SearchStrategy[Any] = st.sampled_from(["first", "all"])


def ids(found: Iterable[dict[str, Any]]) -> list[int]:
    """Return the ids of all rows in order."""
    return [int(number) for item in found for number in np.atleast_1d(item["id"])]


def by_source(numbers: Iterable[int], count: int) -> list[list[int]]:
    """Return the ids of each source."""
    found: list[list[int]] = [[] for _ in range(count)]
    for number in numbers:
        found[number // ID_STEP].append(number)
    return found


def own_order(ds: ps.Dataset, first: int, epochs: int) -> list[int]:
    """Return the ids of some epochs of a dataset in the order of its own loader."""
    loader = ps.loader(ds)
    loader.set_epoch(first)
    return [number for _ in range(epochs) for number in ids(loader)]


def epochs_of(used: int, size: int) -> int:
    """Return the number of epochs of a source that begin, so that `used` rows are returned."""
    return max(1, -(-used // size))


# Rows and their order.


@given(sources(), stops, st.integers(0, 99), st.integers(0, 1))
def test_each_source_comes_in_its_own_order(
    weighted: list[tuple[ps.Dataset, float | Fraction]], stop: Any, seed: int, epoch: int
) -> None:
    """On one rank, the rows of each source come in the order of its own loader, equally many in every epoch."""
    mixture = ps.mix(weighted, stop=stop, seed=seed)
    loader = ps.loader(mixture)
    first = by_source(ids(mixture), len(weighted))
    loader.set_epoch(epoch)
    found = by_source(ids(loader), len(weighted))

    assert [len(part) for part in found] == [len(part) for part in first]
    for (ds, _), part in zip(weighted, found, strict=True):
        begun = epochs_of(len(part), ds.num_rows)
        assert part == own_order(ds, epoch * begun, begun)[: len(part)]
    assert sum(map(len, found)) == mixture.num_rows == len(mixture)


@given(sources(), stops, st.integers(0, 99))
def test_an_epoch_ends_as_stop_says(weighted: list[tuple[ps.Dataset, float | Fraction]], stop: Any, seed: int) -> None:
    """With stop="first" one source is returned whole and no row twice; with stop="all" every row is returned."""
    found = by_source(ids(ps.mix(weighted, stop=stop, seed=seed)), len(weighted))
    sizes = [ds.num_rows for ds, _ in weighted]

    if stop == "first":
        assert all(len(set(part)) == len(part) for part in found)
        assert any(len(part) == size for part, size in zip(found, sizes, strict=True))
    else:
        assert [len(set(part)) for part in found] == sizes
        assert any(len(part) == size for part, size in zip(found, sizes, strict=True))


@pytest.mark.slow
@given(st.lists(st.integers(1, 6), min_size=2, max_size=4), st.integers(1, 40), st.integers(0, 99))
def test_every_batch_has_the_shares(weights: list[int], batch_rows: int, seed: int) -> None:
    """A batch as long as a stratum has exactly each source's share; any other batch is off by a few rows."""
    lowest = [weight // int(np.gcd.reduce(weights)) for weight in weights]
    size = sum(lowest)
    weighted = [(table(number, share * 12), weight) for number, (share, weight) in enumerate(zip(lowest, weights, strict=True))]
    mixture = ps.mix(weighted, seed=seed).with_source()

    assert mixture.num_rows == size * 12
    for batch in mixture.batch(size):
        assert Counter(batch["_source"].tolist()) == dict(enumerate(lowest))
        assert batch["_source"].tolist() == [number // ID_STEP for number in batch["id"].tolist()]
    for batch in mixture.batch(batch_rows, last="uneven"):
        batch_rows = len(batch["id"])
        counts = np.bincount(batch["_source"], minlength=len(lowest))
        assert (abs(counts - batch_rows * np.array(lowest) / size) <= 2 * max(1, len(lowest) - 1)).all()


@given(sources(), stops, st.integers(1, 9), st.sampled_from(["drop", "pad", "wrap", "uneven"]))
def test_batches_hold_the_rows_of_the_mixture_in_order(
    weighted: list[tuple[ps.Dataset, float | Fraction]], stop: Any, size: int, last: Any
) -> None:
    """Batches hold the rows of the mixture in order, columns stay aligned, and `last` decides the end of an epoch."""
    single = ids(ps.mix(weighted, stop=stop, seed=3))
    assume(last != "drop" or len(single) >= size)
    batches = list(ps.mix(weighted, stop=stop, seed=3).batch(size, last=last))
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
    """Return the shard of each rank."""
    return [mixture.shard(rank, ranks, **options) for rank in range(ranks)]


@pytest.mark.slow
@given(sources(), stops, st.integers(1, 5), st.integers(1, 3), st.integers(1, 5), st.integers(0, 2))
def test_ranks_share_an_epoch(
    weighted: list[tuple[ps.Dataset, float | Fraction]], stop: Any, ranks: int, lanes: int, size: int, epoch: int
) -> None:
    """All ranks together return the slots of one reader, and no row more often than epochs of its source begin."""
    mixture = ps.mix(weighted, stop=stop, seed=5).with_source()
    slots = [int(row["_source"]) for row in mixture]
    assume(len(slots) >= ranks)
    found: list[int] = []
    for shard in shards(mixture.batch(size, last="uneven"), ranks, lanes=ranks * lanes):
        loader = ps.loader(shard)
        loader.set_epoch(epoch)
        found += ids(loader)

    assert sorted(number // ID_STEP for number in found) == sorted(slots)
    for (ds, _), part in zip(weighted, by_source(found, len(weighted)), strict=True):
        begun, counted = epochs_of(len(part), ds.num_rows), Counter(part)
        assert max(counted.values(), default=0) <= begun
        assert begun == 1 or min(counted[number] for number in ids(ds)) >= begun - 1


@given(sources(), stops, st.integers(1, 5), st.integers(1, 4), st.sampled_from(["drop", "pad", "wrap"]))
def test_ranks_make_equal_steps(
    weighted: list[tuple[ps.Dataset, float | Fraction]], stop: Any, ranks: int, size: int, last: Any
) -> None:
    """Every rank has equally many batches, all full; fewer rows than one global batch are dropped."""
    mixture = ps.mix(weighted, stop=stop, seed=5).batch(size, last=last)
    assume(mixture.num_rows >= ranks * (size if last == "drop" else 1))
    found = [list(part) for part in shards(mixture, ranks)]

    assert len({len(batches) for batches in found}) == 1
    assert len(found[0]) == len(mixture.shard(0, ranks))
    assert all(len(batch["id"]) == size for batches in found for batch in batches)
    if last == "drop":
        returned = sum(len(batch["id"]) for batches in found for batch in batches)
        assert 0 <= mixture.num_rows - returned < ranks * size


def test_the_slots_of_a_mixture_do_not_depend_on_ranks() -> None:
    """With equally many lanes, all numbers of ranks that divide them give the same global batches."""
    mixture = ps.mix([(table(0, 160).shuffle(seed=1), 3), (table(1, 90).shuffle(seed=2), 1)], seed=4).with_source()
    found = []
    for ranks in (1, 2, 4, 8):
        steps = [list(part.batch(16 // ranks)) for part in shards(mixture, ranks, lanes=8)]
        found.append([sorted(ids(step)) for step in zip(*steps, strict=True)])

    assert found[0] == found[1] == found[2] == found[3]
    assert len(found[0]) == 13


# Resumes.


@pytest.mark.slow
@given(sources(), stops, st.integers(1, 5), st.integers(0, 12), st.integers(0, 1))
def test_a_resume_continues_with_the_same_batches(
    weighted: list[tuple[ps.Dataset, float | Fraction]], stop: Any, size: int, steps: int, epoch: int
) -> None:
    """A state that went through JSON gives exactly the remaining batches, and then the next epoch."""
    mixture = ps.mix(weighted, stop=stop, seed=2).batch(size, last="uneven")
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
    weighted: list[tuple[ps.Dataset, float | Fraction]], stop: Any, history: list[tuple[int, int]], size: int
) -> None:
    """Resumes on changing numbers of ranks return all rows of the epoch, each as often as without a resume."""
    mixture = ps.mix(weighted, stop=stop, seed=6)
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
    weighted: list[tuple[ps.Dataset, float | Fraction]], stop: Any, before: int, after: int, steps: int, size: int
) -> None:
    """After equal steps, the state of rank 0 resumes any number of ranks: no row comes twice, and few are dropped."""
    mixture = ps.mix(weighted, stop=stop, seed=6).batch(size, last="drop")
    assume(mixture.num_rows >= max(before, after) * size)
    whole = Counter(number for part in shards(ps.mix(weighted, stop=stop, seed=6), before) for number in ids(part))
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
    """A resume near the end of an epoch computes the position of each source and reads only from there."""
    weighted = [(table(number, 400).shuffle(ps.WindowShuffle(rows=20), seed=1), 1) for number in range(2)]
    mixture = ps.mix(weighted).batch(10)
    state = ps.loader(mixture).state_at(78)
    batches = Batches(mixture._table, mixture._query, Position())
    whole = ids(batches)
    loader = ps.loader(mixture)
    loader.load_state_dict(state)
    again = iter(loader)

    assert ids(again) == whole[780:]
    assert batches.units_read >= 200
    assert again.units_read <= 20


def test_a_state_of_another_mixture_raises_with_the_difference() -> None:
    """Other sources, weights, stop, batches, tables, queries or seeds raise StateError, which names the difference."""
    one, other = table(0, 20).shuffle(seed=1), table(1, 20)
    mixture = ps.mix([(one, 0.5), (other, 0.5)], seed=1)
    state = ps.loader(mixture).state_dict()
    new_version = MemoryFormat.of(rows(range(ID_STEP, ID_STEP + 20)), row_group_rows=4, name="source-1", version="2").open()
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
    assert refused(ps.mix([(one, 1), (new_version, 1)], seed=1)) == (
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


def test_a_state_resumes_with_other_columns_threads_and_batch_sizes() -> None:
    """Equivalent weights, columns, threads and the batch size of the mixture may change between runs."""
    one, other = table(0, 20).shuffle(seed=1), table(1, 20).shuffle(seed=1)
    loader = ps.loader(ps.mix([(one, 0.5), (other, 0.5)]).batch(4))
    batches = iter(loader)
    seen = ids([next(batches)])
    again = ps.loader(ps.mix([(one.select("id"), 3), (other.select("id"), 3)]).batch(6, last="uneven").using(threads=1))
    again.load_state_dict(loader.state_dict())

    assert sorted(seen + ids(again)) == sorted([*range(20), *range(ID_STEP, ID_STEP + 20)])


# Batches as slots.


small = st.tuples(st.integers(1, 16), st.integers(1, 6))
"""The number of rows of a source, and of each of its batches."""


@given(stops, small, small, st.sampled_from(["drop", "pad", "wrap", "uneven"]), st.integers(0, 1))
def test_sources_with_batches_are_mixed_batch_by_batch(
    stop: Any, one: tuple[int, int], other: tuple[int, int], last: Any, epoch: int
) -> None:
    """A mixture returns the batches of each source as the source's own loader does, for every policy of the last one."""
    assume(last != "drop" or (one[0] >= one[1] and other[0] >= other[1]))
    pair = [table(0, one[0]).batch(one[1], last=last), table(1, other[0]).shuffle(seed=3).batch(other[1], last=last)]
    mixture = ps.mix([(pair[0], 2), (pair[1], 1)], stop=stop, seed=1).with_source()
    loader = ps.loader(mixture)
    loader.set_epoch(epoch)
    batches = [(batch.pop("_source").tolist(), as_lists(batch)) for batch in loader]

    assert len(batches) == len(mixture)
    for source, ds in enumerate(pair):
        found = [batch for reported, batch in batches if set(reported) == {source}]
        own = ps.loader(ds)
        begun = epochs_of(len(found), len(ds))
        own.set_epoch(epoch * begun)
        assert found == [as_lists(batch) for _ in range(begun) for batch in own][: len(found)]


def as_lists(batch: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a batch as lists."""
    return {name: np.asarray(values).tolist() for name, values in batch.items()}


@pytest.mark.slow
@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 4), stops)
def test_batches_are_dealt_to_ranks_and_resumed(before: int, after: int, steps: int, stop: Any) -> None:
    """Every rank has equally many batches; an elastic resume repeats none and loses fewer than one per rank."""
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


def test_maps_of_a_mixture_run_on_the_batches_of_sources() -> None:
    """A map of the mixture gets whole batches of the sources, also with offsets, and per row its own random numbers."""
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


def test_maps_of_sources_run_as_in_their_own_datasets() -> None:
    """Maps of a source run as in its own dataset, with the same random numbers, also over several epochs."""

    def drawn(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"id": row["id"], "drawn": rng.integers(1 << 60)}

    weighted = [(table(0, 20).shuffle(seed=1).map(drawn), 1), (table(1, 3).shuffle(seed=2).map(drawn), 2)]
    mixture = ps.mix(weighted, stop="all", seed=3)
    own: set[tuple[int, int]] = set()
    for ds, _ in weighted:
        loader = ps.loader(ds)
        own |= {(int(row["id"]), int(row["drawn"])) for _ in range(20) for row in loader}
    single = [(int(row["id"]), int(row["drawn"])) for row in mixture]
    batches = [pair for batch in mixture.batch(7, last="uneven") for pair in zip(*as_lists(batch).values(), strict=True)]

    assert single == batches
    assert set(single) <= own
    assert len(set(single)) == len(single) > 50


def test_a_map_of_the_mixture_sees_rows_of_all_sources() -> None:
    """A map of the mixture runs after the maps of the sources, on whole batches with the column `_source`."""
    weighted = [
        (table(number, 12).map(lambda row: {"id": row["id"] + 1}, fields=[ps.Field("id", np.int64)]), 1) for number in (0, 1)
    ]
    mixture = ps.mix(weighted).with_source().batch(6).map(lambda batch: {"n": batch["id"] - ID_STEP * batch["_source"]})

    assert sorted(int(number) for batch in mixture for number in batch["n"]) == sorted([*range(1, 13)] * 2)


def test_clauses_of_sources_apply() -> None:
    """Filters, limits, columns, stacks and row ids of each source apply in the mixture."""
    one = table(0, 20).where(ps.col("id") >= 10).select("id", "triple").with_row_ids().stack("both", ["id", "triple"])
    other = table(1, 20).limit(10).select("id", "triple").with_row_ids().stack("both", ["id", "triple"])
    batch = next(iter(ps.mix([(one, 1), (other, 1)]).batch(20)))

    assert list(batch) == ["_file", "_row_group", "_row", "both"]
    assert sorted(batch["both"][:, 0].tolist()) == [*range(10, 20), *range(ID_STEP, ID_STEP + 10)]
    assert batch["both"][:, 1].tolist() == (3 * batch["both"][:, 0]).tolist()


def test_columns_may_be_in_another_order() -> None:
    """Columns come in the order of the first source."""
    mixture = ps.mix([(table(0, 4).select("id", "name"), 1), (table(1, 4).select("name", "id"), 1)]).batch(8)

    assert [list(batch) for batch in mixture] == [["id", "name"]]
    assert mixture.schema.names == ("id", "name")


def test_arrays_of_one_shape_are_stacked_and_others_are_objects() -> None:
    """Arrays that maps return are stacked if all have one shape; otherwise the column holds objects."""
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


def test_maps_that_return_different_columns_raise() -> None:
    """Maps of sources that return different columns or types raise MapError, which names both sources."""
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
    """Maps in worker processes return the same values as on threads, with the same random numbers, of rows and batches."""

    def drawn(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"id": batch["id"], "name": batch["name"], "drawn": rng.integers(1 << 60, size=len(batch["id"]))}

    weighted = [(table(0, 30).shuffle(seed=1), 2), (table(1, 20), 1)]
    mixture = ps.mix([(ds.batch(4) if batched else ds, weight) for ds, weight in weighted], seed=3)
    mixture = (mixture if batched else mixture.batch(4)).map(drawn)

    made = [as_lists(batch) for batch in mixture.using(workers="processes", processes=1)]

    assert made == [as_lists(batch) for batch in mixture]
    assert len(made) == len(mixture)


def test_arrays_of_a_batch_may_be_written_to() -> None:
    """Arrays of a batch can be written to, because the rows of a mixture are copied, also those of one source."""
    mixed = ps.mix([(table(0, 8), 1), (table(1, 8), 7)]).batch(2)
    before = ids(mixed)
    for batch in mixed:
        batch["id"][:] = 0

    assert ids(mixed) == before
    assert any(before)


def test_a_loader_counts_the_rows_of_all_sources() -> None:
    """A loader counts the rows of all sources, whether slots are rows or batches."""
    for batched in (False, True):
        one, other = table(0, 20), table(1, 20)  # new tables: units in memory are not read again
        rows = ps.mix([(one, 1), (other, 1)]).batch(4)
        loader = ps.loader(ps.mix([(one.batch(4), 1), (other.batch(4), 1)]) if batched else rows)
        list(loader)

        assert (loader.stats().batches, loader.stats().rows, loader.stats().units_read) == (10, 40, 10)


def test_one_pool_reads_all_sources() -> None:
    """All sources share one thread pool."""
    mixture = ps.mix([(table(number, 40).shuffle(seed=1), 1) for number in range(5)]).batch(10)
    batches = Batches(mixture._table, mixture._query, Position())
    next(batches)

    assert batches._pool.threads == 2
    assert {id(reading.window_reader._pool) for reading in batches._window_reader.readings} == {id(batches._pool)}  # type: ignore[union-attr]
    batches.close()
    assert ps.mix([(table(0, 4), 1)]).using(threads=3)._query.threads == 3


# Text, equality and schema.


def test_a_mixture_prints_as_the_code_that_makes_it() -> None:
    """The repr shows sources, weights, options and clauses."""
    mixture = ps.mix([(example(), Fraction(2, 6)), (example().select("id", "x", "label"), 2 / 3)], stop="all", seed=4)

    assert repr(mixture.with_source().batch(8, last="pad").shard(0, 2).repeat(2).map(np.copy)) == (
        "penstock.mix([(penstock.open('memory:example'), Fraction(1, 3)), (penstock.open('memory:example')"
        ".select('id', 'x', 'label'), 0.6666666666666666)], stop='all', seed=4).with_source().shard(0, 2)"
        ".batch(8, last='pad').repeat(2).map(copy)"
    )
    weight: Any = np.int64(3)
    assert repr(ps.mix([(example().batch(2), weight)])) == "penstock.mix([(penstock.open('memory:example').batch(2), 3)])"


def test_mixtures_with_the_same_query_are_equal() -> None:
    """Mixtures compare and hash by their query, and can be copied and pickled."""
    mixture = ps.mix([(example(), 1), (example().shuffle(seed=1), 2)], seed=3)

    assert mixture == ps.mix([(example(), 1), (example().shuffle(seed=1), 2)], seed=3)
    assert len({mixture, copy.copy(mixture), mixture.using(memory_limit=1 << 20)}) == 1
    assert mixture != ps.mix([(example(), 1), (example().shuffle(seed=1), 2)])
    assert mixture.map(lambda row: row) != mixture.map(lambda row: row)
    assert mixture != "mixture"
    assert bool(mixture) is True
    assert ids(cloudpickle.loads(cloudpickle.dumps(mixture))) == ids(mixture)


def test_the_schema_describes_the_returned_columns() -> None:
    """The schema has the columns of the sources, the added columns, and the fields that maps declare."""
    mixture = ps.mix([(example(), 1), (example(), 1)]).with_source().batch(3, last="pad")

    assert mixture.schema.names == ("id", "x", "label", "_source", "_valid")
    assert set(next(iter(mixture))) == set(mixture.schema.names)
    assert mixture.map(lambda batch: batch).schema.names == mixture.schema.names
    assert mixture.map(lambda batch: {"y": batch["x"]}, fields=[ps.Field("y", np.float64)]).schema.names == ("y", "_valid")


def test_explain_shows_the_share_of_each_source() -> None:
    """`explain` shows shares, rows, epochs, ranks and steps."""
    reported = ps.mix([(example(), 2), (example(), 2)]).explain()
    batches = ps.mix([(example().batch(2), 3), (example().limit(6).batch(2), 1)], stop="all").shard(1, 2).explain()

    assert [line.strip() for line in reported.splitlines()[1:]] == [
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


def test_explain_analyze_shows_where_the_time_goes() -> None:
    """With analyze=True, the page of `explain` is followed by the same measurements as for a dataset."""
    for mixture in (
        ps.mix([(example(), 2), (example(), 1)]).batch(3),
        ps.mix([(example().batch(2), 1)]),
        ps.mix([(example(), 1)]),
    ):
        page = mixture.explain()
        reported = mixture.repeat().explain(analyze=True)
        added = reported.splitlines()[len(page.splitlines()) :]

        assert page.splitlines()[1:] == reported.splitlines()[1 : len(page.splitlines())]
        assert added[0] == "  analyzed    a whole epoch, read now for a consumer that does nothing"
        assert added[1].startswith(f"  handed out  {len(mixture)} batches, {mixture.num_rows} rows, ")
        assert added[-1].startswith("  remedy      ")


@pytest.mark.parametrize("name", sorted(set(dir(ps.Dataset)) - set(dir(ps.mix([(example(), 1)])))))
def test_methods_that_only_sources_have_raise_with_advice(name: str) -> None:
    """Every name that a dataset has and a mixture lacks raises AttributeError, which says where to use it."""
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


def test_an_unknown_attribute_of_a_mixture_raises_as_usual() -> None:
    """An unknown attribute raises a plain AttributeError; a source with on_bad_row("skip") raises ArgumentError."""
    mixture = ps.mix([(example(), 1)])

    assert not hasattr(mixture, "selct")
    with pytest.raises(AttributeError, match=r"^'Mixture' object has no attribute 'selct'"):
        _ = mixture.selct  # type: ignore[attr-defined]
    with pytest.raises(ArgumentError, match=r"with .on_bad_row\('skip'\), and a mixture needs an exact number of rows of each"):
        ps.mix([(example().on_bad_row("skip"), 1)])


def test_lengths_and_rows() -> None:
    """Rows that come twice count twice, and the length counts all epochs; a mixture that repeats without end has no length."""
    mixture = ps.mix([(table(0, 10), 1), (table(1, 30), 1)], stop="all")

    assert mixture.num_rows == 59
    assert len(mixture.batch(7).repeat(2)) == 18
    assert ps.mix([(table(0, 10).batch(4), 1), (table(1, 7).batch(7), 1)], stop="all").num_rows == 24
    with pytest.raises(TypeError, match="repeats without end"):
        len(mixture.repeat())


# Errors.


@pytest.mark.parametrize(
    ("argument", "message"),
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
def test_an_argument_that_is_not_a_list_of_sources_raises(argument: Any, message: str) -> None:
    """`mix` takes a list of datasets with weights; anything else raises ArgumentError."""
    with pytest.raises(ArgumentError) as caught:
        ps.mix(argument)

    assert str(caught.value) == message


@pytest.mark.parametrize("weight", [0, -1, True, "1", None, float("nan"), float("inf"), 1j])
def test_a_weight_is_a_positive_number(weight: Any) -> None:
    """A weight that is not a positive number raises ArgumentError with that weight."""
    with pytest.raises(ArgumentError) as caught:
        ps.mix([(example(), 1), (example(), weight)])

    assert str(caught.value) == (
        f"mix() got weight {weight!r} for source 1; expected a positive number, for example (ds, 0.5)."
    )


@pytest.mark.parametrize(
    ("source", "message"),
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
def test_a_source_with_clauses_that_a_mixture_cannot_use_raises(source: ps.Dataset, message: str) -> None:
    """A clause that a source of a mixture cannot have raises ArgumentError, which says what to use instead."""
    with pytest.raises(ArgumentError) as caught:
        ps.mix([(example(), 1), (source, 1)])

    assert str(caught.value) == f"Source 1 of the mixture (memory:example) {message}"


def test_rows_and_batches_are_not_mixed() -> None:
    """Sources are all with rows or all with batches, and batches of sources are not batched again."""
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


def test_sources_with_different_columns_raise() -> None:
    """Sources with different columns or types raise ArgumentError with the difference before anything is read."""
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


def test_added_columns_do_not_hide_columns_of_sources() -> None:
    """A clause that adds a column raises ArgumentError if a source has a column of that name."""
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
    """A source without rows, or a rank that would get none, raises EmptyDatasetError."""
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
    for mixture, message in cases:
        with pytest.raises(EmptyDatasetError) as caught:
            iter(mixture)
        assert str(caught.value) == message


def test_options_are_checked() -> None:
    """Invalid values of stop, seed, weights, maps and loaders raise ArgumentError."""
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


def test_the_last_batch_of_a_mixture_is_padded() -> None:
    """Padded rows are marked as not valid, and padding that exceeds memory_limit raises before it is made."""
    source = example().shuffle(seed=0)
    padded = ps.mix([(source, 1)], stop="all").batch(4, last="pad")

    found = list(ps.loader(padded))

    assert [batch["_valid"].sum() for batch in found] == [4, 4, 2]
    assert sorted(np.concatenate([batch["id"][batch["_valid"]] for batch in found])) == list(range(10))
    with pytest.raises(MemoryLimitError, match="filled up to 120000 rows"):
        list(ps.loader(ps.mix([(source, 1)], stop="all").batch(120_000, last="pad").using(memory_limit=1 << 20)))


def test_a_memory_limit_of_less_than_a_byte_per_source_is_a_limit() -> None:
    """A limit that leaves nothing for each source raises; it is not replaced by the default."""
    sources = [(table(number, 50), 1) for number in range(2)]

    with pytest.raises(MemoryLimitError):
        list(ps.mix(sources).batch(10).using(memory_limit=1))


def test_padding_of_a_mixture_repeats_the_last_row() -> None:
    """The last batch is padded with copies of the last row of the epoch, marked as not valid."""
    ds = example().select("id")
    last = list(ps.mix([(ds, 1), (ds, 1)]).batch(8, last="pad"))[-1]

    assert last["_valid"].tolist() == [True] * 4 + [False] * 4
    assert last["id"].tolist()[4:] == last["id"].tolist()[3:4] * 4


def test_padded_lists_in_sequences_need_batches_of_each_source() -> None:
    """Padding lists of sequences raises ArgumentError if the sources of a mixture have single rows."""
    data = {"time": list(range(6)), "tokens": [[n] * (n % 3) for n in range(6)]}
    ds = MemoryFormat.of(pa.table(data), row_group_rows=6, name="steps").open().ragged(ps.Pad(), "tokens")
    ds = ds.sequence(ps.Sequence(length=2, by="time"))

    with pytest.raises(ArgumentError) as refused:
        next(iter(ps.mix([(ds, 1), (ds, 1)]).batch(2)))

    assert str(refused.value) == (
        "Column 'tokens' comes as Pad(value=0, length=None, truncate=False), which depends on the other rows of a batch, and "
        "source 0 of the mixture has single rows. Batch each source, not the mixture, or give Pad a length."
    )


def test_a_policy_on_only_one_source_raises() -> None:
    """A column that a policy adds to one source only raises ArgumentError, with advice to use the policy on all sources."""
    ds = MemoryFormat.of({"tokens": [[1], [2, 3]]}, row_group_rows=2, name="ragged").open()

    with pytest.raises(
        ArgumentError, match=r"Column 'tokens_length' is in .*Use the same \.ragged\(\) and \.nulls\(\) on all sources"
    ):
        ps.mix([(ds.ragged(ps.Pad(), "tokens"), 1), (ds, 1)])
