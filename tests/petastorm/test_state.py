"""A reader that is resumed continues where it was, whatever was read ahead."""

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


def check_resume_at_every_step(make: Any) -> None:
    """Check that a reader that is resumed at any step returns the same remaining items."""

    def ids_of(item: Any) -> Any:
        return {at: int(row.id) for at, row in item.items()} if isinstance(item, dict) else tables.ids([item])

    with make() as reader:
        states, items = [reader.state_dict()], []
        for item in reader:
            items.append(ids_of(item))
            states.append(json.loads(json.dumps(reader.state_dict())))
    for step, state in enumerate(states):
        with make() as reader:
            reader.load_state_dict(state)

            assert [ids_of(item) for item in reader] == items[step:]


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
def test_readers_of_rows_can_be_resumed(url: str, options: dict[str, Any]) -> None:
    """A reader can be resumed at each row, with each way to choose rows."""
    check_resume_at_every_step(lambda: make_reader(url, reader_pool_type="dummy", **{"schema_fields": ["id"], **options}))


@pytest.mark.parametrize("size", [None, 3, 10, 25])
def test_readers_of_batches_can_be_resumed(url: str, size: int | None) -> None:
    """A reader can be resumed at each batch, of row groups or of one size."""
    check_resume_at_every_step(
        lambda: make_batch_reader(url, batch_size=size, seed=1, num_epochs=2, decode=True, reader_pool_type="dummy")
    )


@pytest.mark.parametrize("pool", ["thread", "process"])
def test_the_state_excludes_rows_that_were_read_ahead(url: str, pool: str) -> None:
    """The state does not depend on what workers have read ahead, and a reader with another pool can load it."""
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


def test_a_state_contains_the_seed_that_was_drawn(url: str) -> None:
    """A reader without a seed can be resumed too."""
    with make_reader(url, shuffle_rows=True, num_epochs=2) as reader:
        for _ in range(13):
            next(reader)
        state = reader.state_dict()
        rest = tables.ids(reader)
    with make_reader(url, shuffle_rows=True, num_epochs=2) as reader:
        reader.load_state_dict(state)

        assert tables.ids(reader) == rest


def test_a_state_can_be_loaded_while_reading(url: str) -> None:
    """A reader that loads an earlier state while reading continues from there."""
    with make_reader(url, seed=1) as reader:
        state = reader.state_dict()
        first = [int(next(reader).id) for _ in range(15)]
        reader.load_state_dict(state)

        assert [int(next(reader).id) for _ in range(15)] == first


def test_states_of_other_readers_raise(url: str, tmp_path: Path) -> None:
    """A state of other data or arguments raises StateError, and so does a value that is no state."""
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
