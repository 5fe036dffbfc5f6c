"""Rules about the order of rows, checked with random tables, shuffles, ranks and policies."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import Case, aligned, cases, shuffles

import penstock as ps

RANKS = st.integers(1, 7)
SIZES = st.integers(1, 5)
LASTS = st.sampled_from(["drop", "pad", "wrap", "uneven"])


def ids(batch: dict[str, Any]) -> list[int]:
    """Return the ids of a batch without padding."""
    found = batch["id"] if "_valid" not in batch else batch["id"][batch["_valid"]]
    return [int(number) for number in found]


def loaders(ds: ps.Dataset, ranks: int, lanes: int | None = None) -> list[Any]:
    """Return a loader for each rank."""
    return [ps.loader(ds.shard(rank, ranks, lanes=lanes)) for rank in range(ranks)]


def seen(batches: Any) -> list[list[int]]:
    """Return the ids of each batch."""
    return [ids(batch) for batch in batches]


def fitted(case: Case, ranks: int, size: int, last: str) -> tuple[int, int]:
    """Return the ranks and the batch size, reduced if the table has too few rows for them."""
    assume(case.ids)
    ranks = min(ranks, len(case.ids))
    return ranks, min(size, len(case.ids) // ranks) if last == "drop" else size


@given(cases(), RANKS, SIZES)
def test_uneven_gives_every_row_once_each_epoch(case: Case, ranks: int, size: int) -> None:
    """With last="uneven", all ranks together return every row exactly once per epoch."""
    ranks, size = fitted(case, ranks, size, "uneven")
    readers = loaders(case.dataset().batch(size, last="uneven"), ranks)

    for _ in range(2):
        found = [number for reader in readers for batch in seen(reader) for number in batch]
        assert sorted(found) == case.ids


@given(cases(), RANKS, SIZES)
def test_single_rows_are_shared_by_ranks(case: Case, ranks: int, size: int) -> None:
    """Without batches, all ranks together return every row once, and `len` is the number of rows of a rank."""
    ranks, size = fitted(case, ranks, size, "uneven")
    parts = [case.dataset().shard(rank, ranks) for rank in range(ranks)]

    found = [[int(row["id"]) for row in part] for part in parts]
    assert sorted(sum(found, [])) == case.ids
    assert [len(part) for part in parts] == [len(part) for part in found]


@given(cases(), RANKS, SIZES)
def test_drop_loses_less_than_one_global_batch(case: Case, ranks: int, size: int) -> None:
    """With last="drop", no row comes twice, and fewer rows than one global batch are left out."""
    ranks, size = fitted(case, ranks, size, "drop")
    readers = loaders(case.dataset().batch(size, last="drop"), ranks)

    for _ in range(2):
        found = [number for reader in readers for batch in seen(reader) for number in batch]
        assert len(set(found)) == len(found)
        assert set(found) <= set(case.ids)
        assert len(case.ids) - len(found) < ranks * size


@given(cases(), RANKS, SIZES)
def test_wrap_gives_every_row_at_least_once(case: Case, ranks: int, size: int) -> None:
    """With last="wrap", every row comes, every batch is full, and fewer than a global batch and a row per rank repeat."""
    ranks, size = fitted(case, ranks, size, "wrap")
    readers = loaders(case.dataset().batch(size, last="wrap"), ranks)

    for _ in range(2):
        batches = [batch for reader in readers for batch in seen(reader)]
        assert {len(batch) for batch in batches} == {size}
        assert set(sum(batches, [])) == set(case.ids)
        assert sum(map(len, batches)) - len(case.ids) < ranks * (size + 1)


@given(cases(), RANKS, SIZES)
def test_pad_gives_every_row_once_and_marks_the_rest(case: Case, ranks: int, size: int) -> None:
    """With last="pad", every row comes once as a valid row, and every batch is full."""
    ranks, size = fitted(case, ranks, size, "pad")
    batches = [batch for reader in loaders(case.dataset().batch(size, last="pad"), ranks) for batch in reader]

    assert sorted(number for batch in batches for number in ids(batch)) == case.ids
    assert {len(batch["_valid"]) for batch in batches} == {size}


@given(cases(), RANKS, SIZES, LASTS)
def test_columns_stay_aligned(case: Case, ranks: int, size: int, last: Any) -> None:
    """All values of a returned row belong to the same stored row."""
    ranks, size = fitted(case, ranks, size, last)

    assert all(aligned(batch) for reader in loaders(case.dataset().batch(size, last=last), ranks) for batch in reader)


@given(cases(), RANKS, SIZES, LASTS)
def test_all_ranks_have_equal_steps(case: Case, ranks: int, size: int, last: Any) -> None:
    """Unless last="uneven", all ranks take equally many steps; `len` is the number of steps in any case."""
    ranks, size = fitted(case, ranks, size, last)
    readers = loaders(case.dataset().batch(size, last=last), ranks)

    reported = [len(reader) for reader in readers]
    assert reported == [len(list(reader)) for reader in readers]
    assert last == "uneven" or len(set(reported)) == 1


@given(cases(), RANKS, LASTS, st.integers(1, 3))
def test_too_few_rows_raise_on_all_ranks(case: Case, ranks: int, last: Any, more: int) -> None:
    """If a rank would get no batch, every rank raises EmptyDatasetError, so that none waits for another."""
    if last == "drop":
        size = len(case.ids) // ranks + more
    else:
        size, ranks = more, len(case.ids) + more

    for reader in loaders(case.dataset().batch(size, last=last), ranks):
        with pytest.raises(ps.errors.EmptyDatasetError):
            iter(reader)


@given(cases(), RANKS, SIZES, LASTS)
def test_the_same_seed_gives_the_same_order(case: Case, ranks: int, size: int, last: Any) -> None:
    """Two loaders of one query return the same order."""
    ranks, size = fitted(case, ranks, size, last)
    ds = case.dataset().batch(size, last=last)

    once, again = ([seen(reader) for reader in loaders(ds, ranks)] for _ in range(2))
    assert once == again


@pytest.mark.slow
@given(cases(), RANKS, SIZES, LASTS, st.sampled_from([1, 1, 2, 3]), st.data())
def test_a_resume_at_any_batch_gives_the_identical_rest(
    case: Case, ranks: int, size: int, last: Any, share: int, data: st.DataObject
) -> None:
    """Over two epochs, a state saved after any batch resumes with the same batches as going on without it."""
    ranks, size = fitted(case, ranks, size, last)
    rank = data.draw(st.integers(0, ranks - 1))
    ds = case.dataset().batch(size, last=last).shard(rank, ranks, lanes=ranks * share)
    reader, found, states = ps.loader(ds), [], []
    for _ in range(2):
        for batch in reader:
            found.append(ids(batch))
            states.append(reader.state_dict())

    for step, state in enumerate(states, start=1):
        again = ps.loader(ds)
        again.load_state_dict(state)
        rest = seen(again) + (seen(again) if step < len(states) // 2 else [])
        assert rest == found[step:] or (step == len(states) and state["epoch"] == 2)


@given(cases(), RANKS, SIZES, LASTS)
def test_a_state_can_be_computed_for_any_step(case: Case, ranks: int, size: int, last: Any) -> None:
    """`state_at(step)` before reading equals `state_dict()` after that step."""
    ranks, size = fitted(case, ranks, size, last)
    reader = ps.loader(case.dataset().batch(size, last=last).shard(ranks - 1, ranks))
    computed = [reader.state_at(step) for step in range(len(reader) + 1)]

    reported = [reader.state_dict(), *(reader.state_dict() for _ in reader)]
    assert computed[1:] == reported[1:]
    assert (computed[-1]["epoch"], computed[-1]["deals"]) == (1, [])


@pytest.mark.slow
@given(cases(smallest=1), st.sampled_from(["drop", "pad", "wrap", "uneven"]), st.integers(1, 4), st.data())
def test_elastic_resumes_lose_and_repeat_nothing(case: Case, last: Any, resumes: int, data: st.DataObject) -> None:
    """Up to four resumes on other numbers of ranks lose no more than the dropped tail, and the next epoch is complete."""
    found: list[int] = []
    states: Any = None
    for turn in range(resumes + 1):
        ranks = data.draw(st.integers(1, 6), label="ranks")
        size = data.draw(st.integers(1, 4), label="size")
        ranks, size = fitted(case, ranks, size, last)
        readers = loaders(case.dataset().batch(size, last=last), ranks)
        for reader in readers:
            if states is not None:
                reader.load_state_dict(states if last == "uneven" else states[0])
        steps = [len(reader) for reader in readers]
        stop = data.draw(st.integers(0, max(steps)), label="steps") if turn < resumes else max(steps)
        for reader in readers:
            batches = iter(reader)
            for _ in range(min(stop, len(batches))):
                found += ids(next(batches))
        states = [reader.state_dict() for reader in readers]
        if stop == max(steps):
            break

    counts = Counter(found)
    if last == "wrap":
        assert set(counts) == set(case.ids)
    else:
        assert set(counts.values()) <= {1}
    if last in ("pad", "uneven"):
        assert sorted(found) == case.ids
    assert len(case.ids) - len(counts) < ranks * size
    again = loaders(case.dataset().batch(size, last=last), ranks)
    for reader in again:
        reader.load_state_dict(states)
    whole = [number for reader in again for batch in seen(reader) for number in batch]
    fresh = [number for reader in _second_epochs(case, size, last, ranks) for batch in seen(reader) for number in batch]
    assert whole == fresh


def _second_epochs(case: Case, size: int, last: Any, ranks: int) -> list[Any]:
    """Return loaders at the beginning of epoch 1."""
    readers = loaders(case.dataset().batch(size, last=last), ranks)
    for reader in readers:
        reader.set_epoch(1)
    return readers


@given(cases(smallest=24), st.integers(1, 3), st.sampled_from([(6, 3), (6, 2), (4, 2), (6, 1), (2, 1)]), st.data())
def test_ranks_that_divide_the_lanes_give_identical_global_batches(
    case: Case, size: int, change: tuple[int, int], data: st.DataObject
) -> None:
    """A job that resumes with fewer ranks and the same global batch size returns the same global batches in order."""
    before, after = change
    assume(len(case.ids) >= before * size)
    old = loaders(case.dataset().batch(size, last="drop"), before)
    expected: list[list[int]] = [sum(step, []) for step in zip(*(seen(reader) for reader in old), strict=True)]
    stop = data.draw(st.integers(0, len(expected)))
    state = loaders(case.dataset().batch(size, last="drop"), before)[0].state_at(stop)

    new = loaders(case.dataset().batch(size * before // after, last="drop"), after)
    for reader in new:
        reader.load_state_dict(state)
    found: list[list[int]] = [sum(step, []) for step in zip(*(seen(reader) for reader in new), strict=True)]
    assert found == (expected[stop:] if stop < len(expected) else found)
    assert stop == len(expected) or state["deals"][0][0] == before


@given(cases(shuffles.filter(lambda kind: not isinstance(kind, ps.ExactShuffle))), RANKS, SIZES, st.sampled_from([1, 2]))
def test_a_unit_is_read_again_only_where_a_lane_ends_in_it(case: Case, ranks: int, size: int, share: int) -> None:
    """Over all ranks, an epoch reads at most as many units as there are units and lanes."""
    ranks, size = fitted(case, ranks, size, "uneven")
    ds = case.dataset().batch(size, last="uneven")
    reads = 0
    for reader in loaders(ds, ranks, lanes=ranks * share):
        batches = iter(reader)
        list(batches)
        reads += batches.units_read

    units = int(ds.explain().split("units")[1].split()[0])
    assert reads <= units + ranks * share


@given(cases(smallest=12), st.integers(0, 3))
def test_epochs_differ_and_are_reproducible(case: Case, epoch: int) -> None:
    """A shuffled epoch has its own order, and the same order whenever it is read."""
    reader = ps.loader(case.dataset().batch(3, last="uneven"))
    orders = []
    for number in (epoch, epoch + 1, epoch):
        reader.set_epoch(number)
        orders.append(sum(seen(reader), []))

    assert orders[0] == orders[2]
    assert sorted(orders[0]) == sorted(orders[1]) == case.ids
    if isinstance(case.shuffle, ps.InOrder):
        assert orders[0] == orders[1]
    elif isinstance(case.shuffle, (ps.WindowShuffle, ps.ExactShuffle)) and (case.shuffle.rows or 0) >= 12:
        assert orders[0] != orders[1]


@given(cases(), st.integers(0, 30))
def test_a_limit_keeps_the_first_rows_in_stored_order(case: Case, limit: int) -> None:
    """A limit selects the first rows in stored order, whatever the shuffle."""
    found = [int(row["id"]) for row in case.dataset().limit(limit)]

    assert sorted(found) == case.ids[:limit]


filtered = cases().filter(lambda case: case.condition is not None)


def lazy_dataset(case: Case, size: int) -> ps.Dataset:
    """Return the dataset of a case with its condition as a lazy filter."""
    assert case.condition is not None
    return case.table.open().shuffle(case.shuffle, seed=case.seed).where(case.condition, lazy=True).batch(size)


@given(filtered, RANKS, SIZES)
def test_a_lazy_filter_gives_every_row_once(case: Case, ranks: int, size: int) -> None:
    """A lazy filter neither loses nor repeats rows, also over several ranks."""
    ranks, size = fitted(case, ranks, size, "uneven")
    readers = loaders(lazy_dataset(case, size), ranks)

    assert sorted(number for reader in readers for batch in seen(reader) for number in batch) == case.ids


@given(filtered, SIZES, st.data())
def test_a_lazy_filter_resumes_at_any_batch(case: Case, size: int, data: st.DataObject) -> None:
    """A state saved after any batch of a lazily filtered epoch resumes with the same remaining batches."""
    assume(case.ids)
    ds = lazy_dataset(case, size)
    reader = ps.loader(ds)
    found, states = [], []
    for batch in reader:
        found.append(ids(batch))
        states.append(reader.state_dict())
    step = data.draw(st.integers(1, len(states)))

    again = ps.loader(ds)
    again.load_state_dict(states[step - 1])
    assert seen(again) == (found[step:] if states[step - 1]["epoch"] == 0 else seen(_second_epoch(ds)))


def _second_epoch(ds: ps.Dataset) -> Any:
    reader = ps.loader(ds)
    reader.set_epoch(1)
    return reader


@pytest.mark.slow
@given(filtered, st.integers(1, 4), st.data())
def test_lazy_filters_resume_on_other_ranks_from_all_states(case: Case, size: int, data: st.DataObject) -> None:
    """Ranks that advanced differently resume on another number of ranks if the states of all are loaded."""
    before, after = data.draw(st.integers(2, 4)), data.draw(st.integers(1, 4))
    assume(len(case.ids) >= max(before, after))
    readers = loaders(lazy_dataset(case, size), before)
    found = []
    for reader in readers:
        batches = iter(reader)
        for _ in range(data.draw(st.integers(0, 2))):
            found += [number for batch in [next(batches, None)] if batch for number in ids(batch)]
    states = [reader.state_dict() for reader in readers]
    assume({state["epoch"] for state in states} == {0})

    rest = loaders(lazy_dataset(case, size), after)
    for reader in rest:
        reader.load_state_dict(states)
    found += [number for reader in rest for batch in seen(reader) for number in batch]
    assert sorted(found) == case.ids
