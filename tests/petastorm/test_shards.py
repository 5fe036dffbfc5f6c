"""The row groups of each shard and their order, which equal Petastorm's wherever that is deterministic."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import petastorm_tables as tables
import pytest

from penstock.petastorm import make_reader
from penstock.petastorm.errors import NoDataAvailableError
from penstock.petastorm.predicates import in_set

SEEDS: list[dict[str, int]] = [{}, {"seed": 5}, {"seed": 0}, {"shard_seed": 7}, {"seed": 5, "shard_seed": 7}]
SEEDS += [{"seed": 5, "shard_seed": 0}, {"seed": 2**70}]
FILTERS: list[Any] = [
    None,
    [["part", "in", ["p_0", "p_2"]]],
    [["part", "=", "p_1"]],
    [[["part", "=", "p_1"]], [["part", "=", "p_3"]]],
]

PETASTORM_ORDERS = """
import json
from petastorm.predicates import in_set

def tuples(given):
    return None if given is None else [tuple(one) if isinstance(one[0], str) else tuples(one) for one in given]

for case in json.loads(sys.argv[2]):
    case["filters"] = tuples(case["filters"])
    case["predicate"] = case["predicate"] and in_set(case["predicate"], "part")
    print(json.dumps([int(row.id) for row in every(sys.argv[1], shuffle_row_groups=False, **case)]))
"""


def tuples(given: Any) -> Any:
    """Return filters as the tuples that users of Petastorm write."""
    return None if given is None else [tuple(one) if isinstance(one[0], str) else tuples(one) for one in given]


def order(url: str, **options: Any) -> list[int]:
    """Return the ids of a shard in the order of its row groups."""
    with make_reader(url, shuffle_row_groups=False, **options) as reader:
        return tables.ids(reader)


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore:shard_seed was deprecated")
def test_shards_equal_those_of_petastorm(tmp_path: Path, ask_petastorm: Callable[..., list[str]]) -> None:
    """Seeds, filters on partition columns and predicates give the same rows in the same order as in Petastorm."""
    url = tables.partitioned(tmp_path / "t", rows=100, group=5)
    chosen: list[dict[str, Any]] = [{"filters": filters, "predicate": None} for filters in FILTERS]
    chosen.append({"filters": None, "predicate": ["p_1", "p_2"]})
    cases = [{**seed, **one, "cur_shard": at, "shard_count": 3} for seed in SEEDS for one in chosen for at in range(3)]

    theirs = [json.loads(line) for line in ask_petastorm(PETASTORM_ORDERS, url, json.dumps(cases)) if line.startswith("[")]
    ours = []
    for case in cases:
        predicate = case["predicate"] and in_set(case["predicate"], "part")
        ours.append(order(url, **{**case, "filters": tuples(case["filters"]), "predicate": predicate}))

    assert ours == theirs


@pytest.mark.filterwarnings("ignore:shard_seed was deprecated")
@pytest.mark.parametrize(
    ("seeds", "expected"),
    [
        ({}, [[0, 3, 6], [1, 4], [2, 5]]),
        ({"seed": 5}, [[6, 3, 0], [1, 4], [5, 2]]),
        ({"shard_seed": 7}, [[6, 0, 3], [4, 1], [5, 2]]),
        ({"seed": 5, "shard_seed": 7}, [[6, 0, 3], [4, 1], [5, 2]]),
        ({"seed": 5, "shard_seed": 0}, [[6, 3, 0], [1, 4], [5, 2]]),
    ],
)
def test_a_seed_orders_the_row_groups_of_a_shard(tmp_path: Path, seeds: dict[str, int], expected: list[list[int]]) -> None:
    """A nonzero `shard_seed` replaces `seed` for the order. Neither changes which row groups a shard has."""
    url = tables.small(tmp_path / "t", rows=70)

    found = [order(url, **seeds, cur_shard=shard, shard_count=3) for shard in range(3)]

    assert [[number // 10 for number in shard[::10]] for shard in found] == expected


@pytest.mark.filterwarnings("ignore:shard_seed was deprecated")
def test_shard_seed_changes_shuffled_shards_too(tmp_path: Path) -> None:
    """`shard_seed` changes the order also if `seed` shuffles the row groups afterwards."""
    url = tables.small(tmp_path / "t", rows=200)

    orders = []
    for shard_seed in (None, 1, 2, 1):
        with make_reader(url, seed=4, shard_seed=shard_seed, cur_shard=1, shard_count=2) as reader:
            orders.append(tables.ids(reader))

    assert orders[1] == orders[3]
    assert len({tuple(one) for one in orders}) == 3
    assert len({frozenset(one) for one in orders}) == 1


def test_row_groups_that_partition_filters_drop_are_not_counted(tmp_path: Path) -> None:
    """Filters on partition columns apply before sharding. Shards are even, and too many shards raise an error."""
    url = tables.partitioned(tmp_path / "t", rows=40)
    given = [("part", "in", ["p_0", "p_2"])]

    shards = [order(url, filters=given, cur_shard=shard, shard_count=2) for shard in range(2)]

    assert [{number % 4 for number in shard} for shard in shards] == [{0}, {2}]
    with pytest.raises(NoDataAvailableError, match="There are 2 row groups and 3 shards"):
        make_reader(url, filters=given, cur_shard=0, shard_count=3)


def test_a_filter_on_rows_keeps_shards_and_their_order(tmp_path: Path) -> None:
    """A filter on rows drops rows of a shard, and the others come in the same order."""
    url = tables.small(tmp_path / "t", rows=90)
    options: dict[str, Any] = {"seed": 3, "cur_shard": 1, "shard_count": 2}

    assert order(url, filters=[("id", ">", 34)], **options) == [number for number in order(url, **options) if number > 34]


@pytest.mark.parametrize("seeds", [{"seed": "a"}, {"shard_seed": "a"}, {"seed": 1.5}, {"seed": 3, "shard_seed": 1.5}])
@pytest.mark.filterwarnings("ignore:shard_seed was deprecated")
def test_an_invalid_seed_raises(tmp_path: Path, seeds: dict[str, Any]) -> None:
    """A `seed` or `shard_seed` that is not an integer raises ValueError that names the argument."""
    url = tables.small(tmp_path / "t")

    with pytest.raises(ValueError, match=f"^{list(seeds)[-1]} must be a whole number or None"):
        make_reader(url, cur_shard=0, shard_count=2, **seeds)
