"""What Petastorm did wrong and we do right: each test names the bug, and fails where it is still there."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import petastorm_tables as tables
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.petastorm import TransformSpec, make_batch_reader, make_reader
from penstock.petastorm.etl.rowgroup_indexers import SingleFieldIndexer
from penstock.petastorm.etl.rowgroup_indexing import build_rowgroup_index
from penstock.petastorm.ngram import NGram
from penstock.petastorm.predicates import in_lambda
from penstock.petastorm.selectors import SingleIndexSelector
from penstock.petastorm.unischema import Unischema, UnischemaField, match_unischema_fields
from penstock.petastorm.weighted_sampling_reader import WeightedSamplingReader

BIG = 2**53 + 1


def batches(url: str, **options: Any) -> list[Any]:
    """Return all batches in stored order."""
    with make_batch_reader(url, **{"shuffle_row_groups": False, "workers_count": 2, **options}) as reader:
        return list(reader)


def rows(url: str, **options: Any) -> list[Any]:
    """Return all rows of plain Parquet in stored order."""
    with pytest.warns(UserWarning, match="supports reading only Petastorm datasets"):
        reader = make_reader(url, **{"shuffle_row_groups": False, "workers_count": 2, **options})
    with reader:
        return list(reader)


def test_bug_regex_fields_came_in_the_order_of_hashes() -> None:
    """Fields that a regular expression matches come in the order of the schema, in every process."""
    names = [f"field_{number}" for number in range(50)]
    schema = Unischema("Many", [UnischemaField(name, np.int8, ()) for name in names])

    assert [field.name for field in match_unischema_fields(schema, ["field_.*"])] == names


@pytest.mark.parametrize("batched", [False, True])
def test_bug_shuffled_rows_were_mixed_under_a_predicate(tmp_path: Path, *, batched: bool) -> None:
    """Columns that a predicate looks at, and the others, are of the same rows."""
    url = tables.plain(tmp_path / "t", {"id": list(range(80)), "same": list(range(80))}, group=20)
    even = in_lambda(["id"], lambda number: number % 2 == 0)

    found = (batches if batched else rows)(url, predicate=even, shuffle_rows=True)

    pairs = [
        (int(number), int(same))
        for item in found
        for number, same in zip(np.atleast_1d(item.id), np.atleast_1d(item.same), strict=True)
    ]
    assert sorted(pairs) == [(number, number) for number in range(0, 80, 2)]


def test_bug_a_null_text_was_the_word_none(tmp_path: Path) -> None:
    """Text that is null is None."""
    (batch,) = batches(tables.plain(tmp_path / "t", {"a": pa.array(["x", None])}))

    assert batch.a.tolist() == ["x", None]


def test_bug_whole_numbers_with_nulls_became_floats(tmp_path: Path) -> None:
    """No number is rounded, and no null is a number."""
    (batch,) = batches(tables.plain(tmp_path / "t", {"a": pa.array([BIG, None])}))

    assert batch.a.tolist() == [BIG, None]


def test_bug_whole_numbers_became_floats_under_a_predicate(tmp_path: Path) -> None:
    """What passes a predicate keeps its dtype and all of its digits."""
    url = tables.plain(tmp_path / "t", {"id": [BIG, BIG + 1, BIG + 2], "b": [1, 2, 3]})

    (batch,) = batches(url, predicate=in_lambda(["b"], lambda b: b > 1))

    assert batch.id.dtype == np.int64
    assert batch.id.tolist() == [BIG + 1, BIG + 2]


@pytest.mark.parametrize("big", [BIG, 7])
def test_bug_whole_numbers_with_nulls_became_floats_in_functions(tmp_path: Path, big: int) -> None:
    """A function that leaves them alone changes no number, and one that leaves out nulls no dtype."""
    url = tables.plain(tmp_path / "t", {"a": pa.array([big, None, 3])})

    (same,) = batches(url, transform_spec=TransformSpec(lambda frame: frame))
    (left,) = batches(url, transform_spec=TransformSpec(lambda frame: frame.dropna()))
    (half,) = batches(url, transform_spec=TransformSpec(lambda frame: frame.fillna(5) / 2))

    assert same.a.tolist() == [big, None, 3]
    assert left.a.tolist() == [big, 3]
    assert half.a.tolist() == [big / 2, 2.5, 1.5]


def test_text_in_functions_is_objects_and_nulls_are_none(tmp_path: Path) -> None:
    """Whatever the pandas of today makes of text, functions see what they were written for."""
    url = tables.plain(tmp_path / "t", {"a": pa.array(["x", None])})
    seen: list[Any] = []

    def look(frame: Any) -> Any:
        seen.append((frame["a"].dtype, frame["a"].tolist()))
        return frame.assign(b=frame["a"].str.upper())

    spec = TransformSpec(look, edit_fields=[("b", np.str_, (), True)])
    (batch,) = batches(url, reader_pool_type="dummy", transform_spec=spec)

    assert seen == [(np.dtype(object), ["x", None])]
    assert batch.a.tolist() == ["x", None]
    assert batch.b.tolist() == ["X", None]


def test_bug_a_predicate_failed_beside_fields_removed_without_a_function(tmp_path: Path) -> None:
    """`TransformSpec(removed_fields=...)` needs no function."""
    url = tables.plain(tmp_path / "t", {"id": [1, 2], "b": [1, 2]})

    (batch,) = batches(url, predicate=in_lambda(["id"], lambda n: n > 1), transform_spec=TransformSpec(removed_fields=["b"]))

    assert batch._fields == ("id",)
    assert batch.id.tolist() == [2]


def test_bug_filters_on_columns_were_ignored(tmp_path: Path) -> None:
    """A filter on any column leaves out rows, and whole row groups where statistics say so."""
    url = tables.plain(tmp_path / "t", {"id": list(range(40))})

    assert tables.ids(batches(url, filters=[("id", ">", 25), ("id", "!=", 27)])) == [26, *range(28, 40)]
    assert tables.ids(rows(url, filters=[("id", "in", [3, 33])])) == [3, 33]


@pytest.mark.parametrize("chosen", [{"cur_shard": 1, "shard_count": 4}, {"rowgroup_selector": SingleIndexSelector("i", [12])}])
def test_bug_a_selector_chose_wrong_row_groups_beside_filters(tmp_path: Path, chosen: dict[str, Any]) -> None:
    """Numbers of row groups are those of the whole dataset, whatever is filtered."""
    url = tables.small(tmp_path / "t")
    build_rowgroup_index(url, None, [SingleFieldIndexer("i", "id")])
    found = []
    for filters in (None, [("id", ">=", 15)]):
        with make_reader(url, filters=filters, **chosen) as reader:
            found.append(sorted(tables.ids(reader)))

    assert found == [list(range(10, 20)), list(range(15, 20))]


@pytest.mark.parametrize("batched", [False, True])
def test_bug_the_second_next_after_an_error_never_returned(tmp_path: Path, *, batched: bool) -> None:
    """What went wrong on a thread is raised by every `next()`."""

    def fail(_: Any) -> Any:
        raise KeyError("of the user")

    url = tables.plain(tmp_path / "t", {"id": [1, 2]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reader = (make_batch_reader if batched else make_reader)(url, transform_spec=TransformSpec(fail))

    with reader:
        for _ in range(3):
            with pytest.raises(KeyError, match="of the user"):
                next(reader)


def test_bug_readers_could_not_be_mixed_with_numpy_of_today(tmp_path: Path) -> None:
    """`WeightedSamplingReader` needs no name that NumPy has dropped, and has a length."""
    url = tables.plain(tmp_path / "t", {"id": [1, 2]})

    with WeightedSamplingReader([make_batch_reader(url), make_batch_reader(url)], [1, 3]) as mixed:
        assert len(mixed) == 2
        assert next(mixed).id.tolist() == [1, 2]


def test_bug_a_single_name_was_taken_letter_by_letter(tmp_path: Path) -> None:
    """One text is one pattern."""
    url = tables.plain(tmp_path / "t", {"id": [1], "i": [2], "d": [3]})

    assert batches(url, schema_fields="id")[0]._fields == ("id",)


def test_bug_every_epoch_had_the_same_order(tmp_path: Path) -> None:
    """Row groups come in another order each epoch, with and without a seed."""
    url = tables.plain(tmp_path / "t", {"id": list(range(100))}, group=1)

    for seed in (None, 1):
        found = tables.ids(batches(url, shuffle_row_groups=True, seed=seed, num_epochs=2))

        assert sorted(found[:100]) == sorted(found[100:])
        assert found[:100] != found[100:]


def test_bug_zero_was_no_seed(tmp_path: Path) -> None:
    """Two readers with seed 0 give the same order."""
    url = tables.plain(tmp_path / "t", {"id": list(range(100))}, group=5)
    first, second = (
        tables.ids(batches(url, shuffle_row_groups=True, shuffle_rows=True, seed=0, num_epochs=2)) for _ in range(2)
    )

    assert first == second


def test_bug_every_row_group_was_shuffled_alike(tmp_path: Path) -> None:
    """Row groups of one size have orders of their own, other ones in each epoch."""
    url = tables.plain(tmp_path / "t", {"id": list(range(60))}, group=20)

    found = [[number % 20 for number in group] for group in tables.pairs(rows_ids(url), 20)]

    assert len({tuple(group) for group in found}) == 6


def rows_ids(url: str) -> list[int]:
    """Return ids of two epochs with shuffled rows."""
    return tables.ids(rows(url, shuffle_rows=True, seed=1, num_epochs=2))


def test_bug_a_null_moment_could_not_be_read(tmp_path: Path) -> None:
    """A moment that is null is None in a row."""
    found = rows(tables.plain(tmp_path / "t", {"at": pa.array([0, None], pa.timestamp("us"))}))

    assert [row.at for row in found] == [np.datetime64(0, "us"), None]


def test_bug_lists_of_text_were_their_own_repr(tmp_path: Path) -> None:
    """A list of text is an array of text."""
    (row,) = rows(tables.plain(tmp_path / "t", {"words": [["a", "bc"]]}))

    assert row.words.tolist() == ["a", "bc"]
    assert row.words.dtype.kind == "U"


def test_bug_a_null_list_could_not_be_batched(tmp_path: Path) -> None:
    """A list that is null is None among arrays."""
    (batch,) = batches(tables.plain(tmp_path / "t", {"a": pa.array([[1, 2], None], pa.list_(pa.int32()))}))

    assert batch.a[0].tolist() == [1, 2]
    assert batch.a[1] is None


def test_bug_an_empty_row_group_could_not_be_read(tmp_path: Path) -> None:
    """Files and row groups without rows are passed over."""
    place = tmp_path / "t"
    tables.plain(place, {"id": [1, 2]})
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), place / "empty.parquet")
    with pq.ParquetWriter(place / "some.parquet", pa.schema({"id": pa.int64()})) as writer:
        for cells in ([], [3]):
            writer.write_table(pa.table({"id": pa.array(cells, pa.int64())}))

    assert sorted(tables.ids(rows(place.as_uri()))) == [1, 2, 3]


def test_bug_a_foreign_common_metadata_made_a_table_unreadable(tmp_path: Path) -> None:
    """Where numbers of row groups are not stored, footers tell them."""
    url = tables.plain(tmp_path / "t", {"id": [1, 2]})
    pq.write_metadata(pa.schema({"id": pa.int64()}), tmp_path / "t" / "_common_metadata")

    assert tables.ids(batches(url)) == [1, 2]
    assert tables.ids(rows(url)) == [1, 2]


@pytest.mark.parametrize("batched", [False, True])
def test_bug_selected_fields_were_not_selected(tmp_path: Path, *, batched: bool) -> None:
    """Whatever a function returns, the fields that were selected are left, in their order."""
    url = tables.plain(tmp_path / "t", {"id": [1], "b": [2], "c": [3]})
    spec = TransformSpec(lambda given: given, selected_fields=["c", "id"])

    (found,) = (batches if batched else rows)(url, transform_spec=spec)

    assert found._fields == ("c", "id")


def test_bug_the_time_of_windows_had_to_be_among_their_fields(tmp_path: Path) -> None:
    """The field that tells times is read whether it is handed out or not."""
    url = tables.plain(tmp_path / "t", {"t": [0, 1, 2], "id": [7, 8, 9]})

    found = rows(url, schema_fields=NGram({0: ["id"], 1: ["id"]}, 1, "t"))

    assert [(window[0].id, window[1].id) for window in found] == [(7, 8), (8, 9)]
    assert found[0][0]._fields == ("id",)


def test_bug_a_cache_gave_other_columns_what_it_had_kept(tmp_path: Path) -> None:
    """What is kept depends on the columns that were read."""
    url = tables.plain(tmp_path / "t", {"id": [1, 2], "b": [3, 4]})
    options: dict[str, Any] = {
        "cache_type": "local-disk",
        "cache_location": str(tmp_path / "cache"),
        "cache_size_limit": 10**8,
        "cache_row_size_estimate": 100,
        "cache_extra_settings": {"cleanup": False},
    }

    for fields in (["id"], ["b"], ["b", "id"], ["id"]):
        (batch,) = batches(url, schema_fields=fields, **options)
        assert set(batch._fields) == set(fields)
        assert all(getattr(batch, name).tolist() == {"id": [1, 2], "b": [3, 4]}[name] for name in fields)


def test_bug_conversion_in_other_processes_failed(tmp_path: Path) -> None:
    """`convert_early_to_numpy` goes together with processes."""
    url = tables.plain(tmp_path / "t", {"id": [1, 2]})

    assert tables.ids(batches(url, convert_early_to_numpy=True, reader_pool_type="process", workers_count=1)) == [1, 2]
