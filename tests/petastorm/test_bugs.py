"""Bugs of Petastorm that Penstock does not have. Each test names one bug and fails if Penstock has it."""

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
    """With shuffled rows, columns that a predicate reads and other columns stay on the same rows."""
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
    """A null in a text column is None."""
    (batch,) = batches(tables.plain(tmp_path / "t", {"a": pa.array(["x", None])}))

    assert batch.a.tolist() == ["x", None]


def test_bug_integers_with_nulls_became_floats(tmp_path: Path) -> None:
    """Integers next to nulls keep their exact values, and nulls are None."""
    (batch,) = batches(tables.plain(tmp_path / "t", {"a": pa.array([BIG, None])}))

    assert batch.a.tolist() == [BIG, None]


def test_bug_integers_became_floats_under_a_predicate(tmp_path: Path) -> None:
    """Integers of rows that pass a predicate keep their dtype and exact values."""
    url = tables.plain(tmp_path / "t", {"id": [BIG, BIG + 1, BIG + 2], "b": [1, 2, 3]})

    (batch,) = batches(url, predicate=in_lambda(["b"], lambda b: b > 1))

    assert batch.id.dtype == np.int64
    assert batch.id.tolist() == [BIG + 1, BIG + 2]


@pytest.mark.parametrize("big", [BIG, 7])
def test_bug_integers_with_nulls_became_floats_in_functions(tmp_path: Path, big: int) -> None:
    """Transform functions that keep, drop or fill nulls get the exact values of an integer column."""
    url = tables.plain(tmp_path / "t", {"a": pa.array([big, None, 3])})

    (same,) = batches(url, transform_spec=TransformSpec(lambda frame: frame))
    (dropped,) = batches(url, transform_spec=TransformSpec(lambda frame: frame.dropna()))
    (half,) = batches(url, transform_spec=TransformSpec(lambda frame: frame.fillna(5) / 2))

    assert same.a.tolist() == [big, None, 3]
    assert dropped.a.tolist() == [big, 3]
    assert half.a.tolist() == [big / 2, 2.5, 1.5]


def test_transform_functions_get_text_as_objects_and_nulls_as_none(tmp_path: Path) -> None:
    """Transform functions get text as objects and nulls as None, with any version of pandas."""
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


def test_bug_a_predicate_failed_with_fields_removed_without_a_function(tmp_path: Path) -> None:
    """A predicate works with `TransformSpec(removed_fields=...)` that has no function."""
    url = tables.plain(tmp_path / "t", {"id": [1, 2], "b": [1, 2]})

    (batch,) = batches(url, predicate=in_lambda(["id"], lambda n: n > 1), transform_spec=TransformSpec(removed_fields=["b"]))

    assert batch._fields == ("id",)
    assert batch.id.tolist() == [2]


def test_bug_filters_on_columns_were_ignored(tmp_path: Path) -> None:
    """A filter on any column selects single rows."""
    url = tables.plain(tmp_path / "t", {"id": list(range(40))})

    assert tables.ids(batches(url, filters=[("id", ">", 25), ("id", "!=", 27)])) == [26, *range(28, 40)]
    assert tables.ids(rows(url, filters=[("id", "in", [3, 33])])) == [3, 33]


@pytest.mark.parametrize("chosen", [{"cur_shard": 1, "shard_count": 4}, {"rowgroup_selector": SingleIndexSelector("i", [12])}])
def test_bug_a_selector_chose_wrong_row_groups_with_filters(tmp_path: Path, chosen: dict[str, Any]) -> None:
    """Shards and selectors use the row group numbers of the whole dataset, also with filters."""
    url = tables.small(tmp_path / "t")
    build_rowgroup_index(url, None, [SingleFieldIndexer("i", "id")])
    found = []
    for filters in (None, [("id", ">=", 15)]):
        with make_reader(url, filters=filters, **chosen) as reader:
            found.append(sorted(tables.ids(reader)))

    assert found == [list(range(10, 20)), list(range(15, 20))]


@pytest.mark.parametrize("batched", [False, True])
def test_bug_the_second_next_after_an_error_never_returned(tmp_path: Path, *, batched: bool) -> None:
    """Each `next()` after the error of a worker raises that error."""

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


def test_bug_readers_could_not_be_mixed_with_current_numpy(tmp_path: Path) -> None:
    """`WeightedSamplingReader` works with current versions of NumPy and has a length."""
    url = tables.plain(tmp_path / "t", {"id": [1, 2]})

    with WeightedSamplingReader([make_batch_reader(url), make_batch_reader(url)], [1, 3]) as mixed:
        assert len(mixed) == 2
        assert next(mixed).id.tolist() == [1, 2]


def test_bug_a_single_name_was_split_into_letters(tmp_path: Path) -> None:
    """A string for `schema_fields` is one pattern."""
    url = tables.plain(tmp_path / "t", {"id": [1], "i": [2], "d": [3]})

    assert batches(url, schema_fields="id")[0]._fields == ("id",)


def test_bug_every_epoch_had_the_same_order(tmp_path: Path) -> None:
    """Each epoch has the row groups in another order, with and without a seed."""
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
    """Row groups of equal size are shuffled differently, and differently in each epoch."""
    url = tables.plain(tmp_path / "t", {"id": list(range(60))}, group=20)

    found = [[number % 20 for number in group] for group in tables.pairs(rows_ids(url), 20)]

    assert len({tuple(group) for group in found}) == 6


def rows_ids(url: str) -> list[int]:
    """Return the row ids of two epochs with shuffled rows."""
    return tables.ids(rows(url, shuffle_rows=True, seed=1, num_epochs=2))


def test_bug_a_null_timestamp_could_not_be_read(tmp_path: Path) -> None:
    """A null timestamp in a row is None."""
    found = rows(tables.plain(tmp_path / "t", {"at": pa.array([0, None], pa.timestamp("us"))}))

    assert [row.at for row in found] == [np.datetime64(0, "us"), None]


def test_bug_lists_of_text_were_their_own_repr(tmp_path: Path) -> None:
    """A list of text is an array of text."""
    (row,) = rows(tables.plain(tmp_path / "t", {"words": [["a", "bc"]]}))

    assert row.words.tolist() == ["a", "bc"]
    assert row.words.dtype.kind == "U"


def test_bug_a_null_list_could_not_be_batched(tmp_path: Path) -> None:
    """A null list in a batch is None among the arrays."""
    (batch,) = batches(tables.plain(tmp_path / "t", {"a": pa.array([[1, 2], None], pa.list_(pa.int32()))}))

    assert batch.a[0].tolist() == [1, 2]
    assert batch.a[1] is None


def test_bug_an_empty_row_group_could_not_be_read(tmp_path: Path) -> None:
    """Files and row groups without rows are skipped."""
    place = tmp_path / "t"
    tables.plain(place, {"id": [1, 2]})
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), place / "empty.parquet")
    with pq.ParquetWriter(place / "some.parquet", pa.schema({"id": pa.int64()})) as writer:
        for cells in ([], [3]):
            writer.write_table(pa.table({"id": pa.array(cells, pa.int64())}))

    assert sorted(tables.ids(rows(place.as_uri()))) == [1, 2, 3]


def test_bug_a_foreign_common_metadata_made_a_table_unreadable(tmp_path: Path) -> None:
    """If `_common_metadata` has no row group counts, the file footers give them."""
    url = tables.plain(tmp_path / "t", {"id": [1, 2]})
    pq.write_metadata(pa.schema({"id": pa.int64()}), tmp_path / "t" / "_common_metadata")

    assert tables.ids(batches(url)) == [1, 2]
    assert tables.ids(rows(url)) == [1, 2]


@pytest.mark.parametrize("batched", [False, True])
def test_bug_selected_fields_were_not_selected(tmp_path: Path, *, batched: bool) -> None:
    """`selected_fields` limits and orders the fields, whatever the function returns."""
    url = tables.plain(tmp_path / "t", {"id": [1], "b": [2], "c": [3]})
    spec = TransformSpec(lambda given: given, selected_fields=["c", "id"])

    (found,) = (batches if batched else rows)(url, transform_spec=spec)

    assert found._fields == ("c", "id")


def test_bug_the_timestamp_of_windows_had_to_be_among_their_fields(tmp_path: Path) -> None:
    """The timestamp field of windows is read even if no window contains it."""
    url = tables.plain(tmp_path / "t", {"t": [0, 1, 2], "id": [7, 8, 9]})

    found = rows(url, schema_fields=NGram({0: ["id"], 1: ["id"]}, 1, "t"))

    assert [(window[0].id, window[1].id) for window in found] == [(7, 8), (8, 9)]
    assert found[0][0]._fields == ("id",)


def test_bug_a_cache_returned_the_entries_of_other_columns(tmp_path: Path) -> None:
    """Cache entries depend on the columns that were read."""
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


def test_bug_early_conversion_failed_in_worker_processes(tmp_path: Path) -> None:
    """`convert_early_to_numpy` works with a process pool."""
    url = tables.plain(tmp_path / "t", {"id": [1, 2]})

    assert tables.ids(batches(url, convert_early_to_numpy=True, reader_pool_type="process", workers_count=1)) == [1, 2]
