"""A reader that is resumed goes on where it was, whatever lay ready."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import petastorm_tables as tables
import pytest

from penstock.errors import StateError
from penstock.petastorm import make_batch_reader, make_reader
from penstock.petastorm.ngram import NGram
from penstock.petastorm.predicates import in_lambda
from penstock.petastorm.reader import Reader


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of four row groups of ten rows."""
    return tables.small(tmp_path_factory.mktemp("small") / "t")


def resumed_at_every_step(make: Any) -> None:
    """Check that a reader gives the same rest from every step on."""

    def told(item: Any) -> Any:
        return {at: int(row.id) for at, row in item.items()} if isinstance(item, dict) else tables.ids([item])

    with make() as reader:
        states, items = [reader.state_dict()], []
        for item in reader:
            items.append(told(item))
            states.append(json.loads(json.dumps(reader.state_dict())))
    for step, state in enumerate(states):
        with make() as reader:
            reader.load_state_dict(state)

            assert [told(item) for item in reader] == items[step:]


@pytest.mark.parametrize(
    "options",
    [
        {"seed": 1, "num_epochs": 2, "shuffle_rows": True},
        {"seed": 0, "shuffle_row_drop_partitions": 3},
        {"seed": 2, "predicate": in_lambda(["id"], lambda number: number % 3 == 0)},
        {"seed": 3, "filters": [("id", ">", 17)], "cur_shard": 1, "shard_count": 3, "shard_by": "rows"},
        {"shuffle_row_groups": False, "schema_fields": NGram({0: ["id"], 1: ["id"]}, 1, "id")},
    ],
    ids=["shuffled", "parts", "predicate", "shard", "windows"],
)
def test_rows_go_on_where_they_were(url: str, options: dict[str, Any]) -> None:
    """At every row, with every way to choose them."""
    resumed_at_every_step(lambda: make_reader(url, reader_pool_type="dummy", **{"schema_fields": ["id"], **options}))


@pytest.mark.parametrize("size", [None, 3, 10, 25])
def test_batches_go_on_where_they_were(url: str, size: int | None) -> None:
    """At every batch, of row groups or of one size."""
    resumed_at_every_step(
        lambda: make_batch_reader(url, batch_size=size, seed=1, num_epochs=2, decode=True, reader_pool_type="dummy")
    )


@pytest.mark.parametrize("pool", ["thread", "process"])
def test_what_was_read_ahead_does_not_count(url: str, pool: str) -> None:
    """Workers may be anywhere; another pool goes on as well."""
    options: dict[str, Any] = {"seed": 4, "num_epochs": 2, "shuffle_rows": True, "workers_count": 2}
    with make_reader(url, reader_pool_type=pool, **options) as reader:
        first = [int(next(reader).id) for _ in range(37)]
        state = reader.state_dict()
    with make_reader(url, reader_pool_type="dummy", **options) as reader:
        reader.load_state_dict(state)
        rest = tables.ids(reader)
    with make_reader(url, reader_pool_type="dummy", **options) as reader:
        whole = tables.ids(reader)

    assert first + rest == whole


def test_a_state_holds_the_seed_that_was_drawn(url: str) -> None:
    """A reader without a seed is resumed too."""
    with make_reader(url, shuffle_rows=True, num_epochs=2) as reader:
        for _ in range(13):
            next(reader)
        state = reader.state_dict()
        rest = tables.ids(reader)
    with make_reader(url, shuffle_rows=True, num_epochs=2) as reader:
        reader.load_state_dict(state)

        assert tables.ids(reader) == rest


def test_a_reader_may_go_back(url: str) -> None:
    """Loading a state in mid-course begins again from there."""
    with make_reader(url, seed=1) as reader:
        state = reader.state_dict()
        first = [int(next(reader).id) for _ in range(15)]
        reader.load_state_dict(state)

        assert [int(next(reader).id) for _ in range(15)] == first


def test_states_of_other_readings_are_refused(url: str, tmp_path: Path) -> None:
    """Other data, other arguments, or no state at all."""
    other = tables.small(tmp_path / "t", rows=30)

    def state(made: Reader) -> dict[str, Any]:
        with made as reader:
            return reader.state_dict()

    wrong = [
        state(make_reader(other)),
        state(make_reader(url, shuffle_rows=True)),
        state(make_reader(url, cur_shard=0, shard_count=2)),
    ]
    with make_reader(url) as reader:
        for one in wrong:
            with pytest.raises(StateError, match="the state of another reader"):
                reader.load_state_dict(one)
        for none in ({}, {"state": 2}, 5):
            with pytest.raises(StateError, match="which is no state of a reader"):
                reader.load_state_dict(none)  # type: ignore[arg-type] # it is refused
