"""Windows of rows: which windows there are, what they contain, and what cannot be combined with them."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.formats.petastorm import PetastormFormat
from penstock.petastorm import TransformSpec, make_reader
from penstock.petastorm.ngram import NGram
from penstock.petastorm.predicates import in_lambda
from penstock.petastorm.unischema import Unischema, UnischemaField

Corpus = Callable[[str], Path]

ID = UnischemaField("id", np.int64, ())
X = UnischemaField("x", np.float32, ())
SCHEMA = Unischema("Times", [ID, X, UnischemaField("y1", np.int8, ()), UnischemaField("y2", np.int8, ())])


def written(place: Path, ids: list[int], group: int = 100) -> str:
    """Write a dataset whose ids are timestamps, and return its URL."""
    schema = ps.Schema("Times", [ps.Field("id", np.int64), ps.Field("x", np.float32)])
    ps.write(str(place), schema, ({"id": n, "x": n / 2} for n in ids), format=PetastormFormat(), row_group_rows=group)
    return place.as_uri()


def windows(url: str, ngram: NGram, **options: Any) -> list[dict[int, Any]]:
    """Return the windows of a dataset in stored order."""
    options = {"shuffle_row_groups": False, "workers_count": 2, **options}
    with make_reader(url, schema_fields=ngram, **options) as reader:
        assert reader.ngram is ngram
        return list(reader)


def ids(found: list[dict[int, Any]]) -> list[tuple[int, ...]]:
    """Return the ids in windows."""
    return [tuple(int(row.id) for row in window.values() if "id" in row._fields) for window in found]


@pytest.mark.parametrize("pool", ["dummy", "thread", "process"])
def test_windows_are_rows_that_are_close(tmp_path: Path, pool: str) -> None:
    """Consecutive rows of a window differ by at most the threshold."""
    url = written(tmp_path / "t", [0, 3, 8, 10, 11, 20, 23])

    found = windows(url, NGram({0: [ID, X], 1: [ID]}, 4, ID), reader_pool_type=pool)

    assert ids(found) == [(0, 3), (8, 10), (10, 11), (20, 23)]
    assert (found[0][0]._fields, found[0][1]._fields) == (("id", "x"), ("id",))
    assert found[1][0].x == np.float32(4)


def test_windows_stay_inside_row_groups(tmp_path: Path) -> None:
    """A window has rows of one row group, as in Petastorm."""
    url = written(tmp_path / "t", [0, 3, 8, 10, 11, 20], group=3)

    assert ids(windows(url, NGram({0: [ID], 1: [ID]}, 4, ID))) == [(0, 3), (10, 11)]


@pytest.mark.parametrize("parts", [1, 3])
def test_parts_of_row_groups_lose_no_window(tmp_path: Path, parts: int) -> None:
    """Each part of a row group has the rows that its last windows need."""
    url = written(tmp_path / "t", list(range(40)), group=20)

    found = windows(url, NGram({0: [ID], 1: [ID], 2: [ID]}, 1, ID), shuffle_row_drop_partitions=parts)

    assert sorted(ids(found)) == [(n, n + 1, n + 2) for n in range(40) if n % 20 < 18]


def test_windows_without_overlap(tmp_path: Path) -> None:
    """Without overlap, each window starts after the end of the previous one, and parts of row groups raise an error."""
    url = written(tmp_path / "t", list(range(10)))
    ngram = NGram({0: [ID], 1: [ID], 2: [ID]}, 1, ID, timestamp_overlap=False)

    assert ids(windows(url, ngram)) == [(0, 1, 2), (3, 4, 5), (6, 7, 8)]
    with pytest.raises(NotImplementedError, match="shuffle_row_drop_partitions > 1"):
        make_reader(url, schema_fields=ngram, shuffle_row_drop_partitions=2)


def test_a_window_has_all_offsets_from_the_first_to_the_last(tmp_path: Path) -> None:
    """Offsets without fields have empty rows. Regular expressions may name fields."""
    url = written(tmp_path / "t", [1, 2, 3])

    (window,) = windows(url, NGram({1: ["i.*"], -1: ["id", "x"]}, 5, "id"))

    assert list(window) == [-1, 0, 1]
    assert (window[-1], window[0], window[1]) == ((1, 0.5), (), (3,))
    assert type(window[-1]).__name__ == "Times_view_view_view"


def test_a_dataset_that_petastorm_wrote_is_read_in_windows(corpus: Corpus) -> None:
    """A dataset that Petastorm wrote is read in windows that respect the threshold."""
    url = corpus("petastorm/modern-0.13.1-seq").as_uri()

    found = windows(url, NGram({0: ["ts", "sensor"], 1: ["ts"]}, 10, "ts"))

    assert found
    assert all(window[1].ts - window[0].ts <= 10 for window in found)


def test_windows_are_made_after_predicates_and_transforms(tmp_path: Path) -> None:
    """Windows have rows that pass the predicate, as the transform function returns them."""
    url = written(tmp_path / "t", list(range(8)))
    even = in_lambda(["id"], lambda number: number % 2 == 0)
    spec = TransformSpec(lambda row: {**row, "x": row["x"] * 10})

    found = windows(url, NGram({0: [ID, X], 1: [ID]}, 2, ID), predicate=even, transform_spec=spec)

    assert ids(found) == [(0, 2), (2, 4), (4, 6)]
    assert found[1][0].x == 10


def test_rows_out_of_order_raise(tmp_path: Path) -> None:
    """Rows that are not sorted by the timestamp field raise NotImplementedError."""
    url = written(tmp_path / "t", [3, 1, 2])
    for options in ({}, {"shuffle_rows": True}):
        with pytest.raises(NotImplementedError, match="NGram assumes that the data is sorted by id field"):
            windows(url, NGram({0: [ID], 1: [ID]}, 5, ID), **options)


@pytest.mark.parametrize("times", [[1.0, float("nan"), 2.0], np.array(["2020", "NaT", "2021"], "datetime64[D]")])
def test_missing_timestamps_raise(times: Any) -> None:
    """A NaN or NaT timestamp counts as out of order and raises NotImplementedError."""
    ngram = NGram({0: [ID], 1: [ID]}, 5, ID)

    with pytest.raises(NotImplementedError, match="NGram assumes that the data is sorted by id field"):
        ngram.form_ngram([{"id": time} for time in times], SCHEMA)


def test_windows_of_one_row_need_no_order(tmp_path: Path) -> None:
    """Windows of one row need no order and no threshold."""
    url = written(tmp_path / "t", [3, 1, 2])

    assert ids(windows(url, NGram({0: [ID]}, 0, ID), shuffle_rows=True, seed=1)) != []
    assert len(windows(url, NGram({5: [ID]}, 0, ID))) == 3


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (({}, 1, ID), "Fields must be set and must be a dictionary"),
        ((5, 1, ID), "Fields must be set and must be a dictionary"),
        (({0: (ID,)}, 1, ID), "Each field value must be a list"),
        (({0: [5]}, 1, ID), "All field values must be of type UnischemaField"),
        (({0: [ID]}, "x", ID), "delta_threshold must be a number"),
        (({0: [ID]}, 1, 5), "timestamp_field must be set"),
        (({0: [ID]}, 1, ID, 1), "timestamp_overlap must be set and must be of type bool"),
    ],
)
def test_invalid_arguments_raise(arguments: tuple[Any, ...], text: str) -> None:
    """An invalid argument of `NGram` raises ValueError."""
    with pytest.raises(ValueError, match=text):
        NGram(*arguments)


def test_members_of_an_ngram() -> None:
    """An `NGram` has the attributes and methods of Petastorm's class."""
    ngram = NGram({-1: [ID, X], 1: [ID, "y.*"]}, Decimal("4.5"), "id")

    assert (ngram.length, ngram.delta_threshold, ngram.timestamp_overlap) == (3, Decimal("4.5"), True)
    assert ngram.get_field_names_at_timestep(0) == []
    ngram.resolve_regex_field_names(SCHEMA)
    assert ngram.get_field_names_at_timestep(1) == ["id", "y1", "y2"]
    assert [field.name for field in ngram.get_field_names_at_all_timesteps()] == ["id", "x", "y1", "y2"]
    assert list(ngram.get_schema_at_timestep(SCHEMA, 1).fields) == ["id", "y1", "y2"]
    assert [field.name for field in ngram.convert_fields(SCHEMA, [X, "y.*"])] == ["x", "y1", "y2"]
    with pytest.raises(ValueError, match="must be either a string"):
        ngram.convert_fields(SCHEMA, [5])


def test_windows_of_dicts() -> None:
    """`form_ngram` and `make_namedtuple` make windows of dicts, as a reader does."""
    ngram = NGram({0: [ID, X], 1: [ID]}, Decimal("2.5"), ID)
    rows = [{"id": n, "x": n, "y1": 0, "y2": 0} for n in (0, 2, 5)]

    found = ngram.form_ngram(rows, SCHEMA)

    assert found == [{0: {"id": 0, "x": 0}, 1: {"id": 2}}]
    assert ngram.make_namedtuple(SCHEMA, found[0])[0].x == 0


def test_ngrams_are_equal_by_their_fields() -> None:
    """Equality of NGrams depends on the fields at each offset, not on the threshold or the timestamp field."""
    assert NGram({0: [ID], 1: [X]}, 1, ID) == NGram({1: [X], 0: [ID]}, 9, X)
    assert NGram({0: [ID]}, 1, ID) != NGram({0: [X]}, 1, ID)
    assert NGram({0: [ID]}, 1, ID) != NGram({1: [ID]}, 1, ID)


def test_an_ambiguous_timestamp_field_raises() -> None:
    """A timestamp pattern that matches several fields, or none, raises an error."""
    with pytest.raises(ValueError, match="timestamp_field was matched to more than one unischema field"):
        NGram({0: [ID]}, 1, "y.*").resolve_regex_field_names(SCHEMA)
    with pytest.raises(IndexError):
        NGram({0: [ID]}, 1, "nope").resolve_regex_field_names(SCHEMA)


@given(
    steps=st.lists(st.integers(0, 5), max_size=30),
    length=st.integers(1, 4),
    gap=st.integers(0, 5),
    overlap=st.booleans(),
    kind=st.sampled_from([int, float, Decimal, np.int64, np.uint8, np.float32]),
)
def test_timestamps_of_every_type_give_the_same_windows(
    steps: list[int],
    length: int,
    gap: int,
    overlap: bool,  # noqa: FBT001 - drawn
    kind: Any,
) -> None:
    """For timestamps of every type, the engine finds the same windows as a search step by step."""
    times = [kind(number) for number in np.cumsum([0, *steps]).tolist()]
    ngram = NGram({0: [ID], length - 1: [ID]}, gap, ID, timestamp_overlap=overlap)

    expected, until = [], None
    for start in range(len(times) - length + 1):
        window = [int(time) for time in times[start : start + length]]
        close = all(window[at + 1] - window[at] <= gap for at in range(length - 1))
        if close and (overlap or until is None or window[0] > until):
            expected.append(start)
            until = window[-1]

    assert ngram._starts(times) == expected
