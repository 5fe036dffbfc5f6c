"""`make_reader`: which rows it returns, in which order, and which arguments are invalid."""

from __future__ import annotations

import re
import threading
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import petastorm_tables as tables
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.codecs import Npy, Npz
from penstock.errors import DataError
from penstock.formats.petastorm import PetastormFormat
from penstock.petastorm import NoDataAvailableError, TransformSpec, make_batch_reader, make_reader
from penstock.petastorm.predicates import in_lambda, in_pseudorandom_split, in_reduce, in_set
from penstock.petastorm.reader import Reader, normalize_dataset_url_or_urls
from penstock.petastorm.unischema import UnischemaField

POOLS = ("dummy", "thread", "process")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of four row groups of ten rows."""
    return tables.small(tmp_path_factory.mktemp("small") / "t")


@pytest.fixture(scope="module")
def partitioned_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of four partition directories."""
    return tables.partitioned(tmp_path_factory.mktemp("parted") / "t")


def read(url: str, **options: Any) -> list[int]:
    """Return the ids of all rows."""
    with make_reader(url, **{"workers_count": 2, **options}) as reader:
        return tables.ids(reader)


@pytest.mark.parametrize("pool", POOLS)
def test_single_values_of_array_codecs_are_arrays(tmp_path: Path, pool: str) -> None:
    """Single values of array codecs are arrays of no dimension, as in Petastorm. Nulls are None."""
    schema = ps.Schema("Zero", [ps.Field("a", np.float32, (), Npy()), ps.Field("b", np.int16, (), Npz(), nullable=True)])
    rows = [{"a": 0.5, "b": 7}, {"a": 1.5, "b": None}]
    ps.write(str(tmp_path / "t"), schema, rows, format=PetastormFormat())

    with make_reader((tmp_path / "t").as_uri(), reader_pool_type=pool, workers_count=1) as reader:
        first, second = reader

    assert [(type(one), one.dtype, one.shape) for one in (first.a, first.b)] == [
        (np.ndarray, np.float32, ()),
        (np.ndarray, np.int16, ()),
    ]
    assert (first.a, first.b, second.a, second.b) == (0.5, 7, 1.5, None)


@pytest.mark.parametrize("pool", POOLS)
def test_rows_are_named_tuples_of_decoded_values(url: str, pool: str) -> None:
    """A row has NumPy scalars, writable arrays, and None for nulls."""
    with make_reader(url, shuffle_row_groups=False, reader_pool_type=pool, workers_count=1) as reader:
        rows = list(reader)

    first = rows[4]
    assert type(first).__name__ == "Small_view"
    assert first._fields == ("id", "name", "vector", "image", "score")
    assert (type(first.id), type(first.name), first.score) == (np.int64, np.str_, None)
    assert (type(rows[3].score), rows[3].score) == (np.int32, 30)
    assert first.image.dtype == np.uint8
    assert first.image.flags.writeable
    assert (first.image == 4).all()
    assert tables.ids(rows) == list(range(40))


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("groups", [False, True])
def test_the_order_is_the_same_for_every_pool(url: str, pool: str, *, groups: bool) -> None:
    """All pools give the same order with a seed, and without shuffling."""
    options: dict[str, Any] = {"seed": 3, "shuffle_rows": groups, "shuffle_row_groups": groups, "num_epochs": 2}

    assert read(url, reader_pool_type=pool, **options) == read(url, reader_pool_type="dummy", **options)


def test_all_rows_come_once_in_each_epoch(url: str) -> None:
    """Each epoch has each row exactly once, also with shuffling."""
    found = read(url, num_epochs=3, shuffle_rows=True)

    assert [sorted(epoch) for epoch in tables.pairs(found, 40)] == [list(range(40))] * 3


@pytest.mark.parametrize("num_epochs", [0, -1, "a", 1.5, True])
def test_an_invalid_num_epochs_raises(url: str, num_epochs: Any) -> None:
    """`num_epochs` must be a positive integer or None. `make_reader` raises ValueError otherwise."""
    with pytest.raises(ValueError, match="iterations must be positive integer or None"):
        make_reader(url, num_epochs=num_epochs)


def test_num_epochs_of_none_repeats_without_end(url: str) -> None:
    """With `num_epochs=None` the reader repeats the dataset without end."""
    with make_reader(url, num_epochs=None, workers_count=2, shuffle_row_groups=False) as reader:
        found = [int(next(reader).id) for _ in range(100)]

    assert found == [number % 40 for number in range(100)]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_seed_gives_the_same_order_again(url: str, seed: int) -> None:
    """The same seed gives the same order, and another seed gives another. 0 is a valid seed."""
    first, second = (read(url, seed=seed, shuffle_rows=True, num_epochs=2) for _ in range(2))

    assert first == second
    assert first != read(url, seed=seed + 7, shuffle_rows=True, num_epochs=2)


def test_the_order_of_a_seed_never_changes(url: str) -> None:
    """The order of a seed must never change, since saved states depend on it."""
    found = read(url, seed=7, shuffle_rows=True, num_epochs=2)

    assert found[:12] == [38, 30, 34, 33, 39, 36, 32, 37, 31, 35, 19, 16]
    assert found[40:52] == [39, 35, 38, 30, 33, 37, 36, 31, 32, 34, 15, 11]


def test_without_a_seed_orders_differ(url: str) -> None:
    """Two readers without a seed shuffle rows in different orders."""
    assert read(url, shuffle_rows=True) != read(url, shuffle_rows=True)


@pytest.mark.parametrize("parts", [2, 3, 100])
def test_parts_of_row_groups_are_shuffled(url: str, parts: int) -> None:
    """Cutting row groups into parts loses no row, and rows inside a part stay consecutive."""
    found = read(url, shuffle_row_drop_partitions=parts, seed=5)

    assert sorted(found) == list(range(40))
    assert found != list(range(40))
    size = 10 // min(10, parts)
    runs = sum(later != earlier + 1 for earlier, later in pairwise(found)) + 1
    assert runs <= 40 // size


@pytest.mark.parametrize("parts", [0, -1, 1.5, "2"])
def test_an_invalid_number_of_parts_raises(url: str, parts: Any) -> None:
    """`shuffle_row_drop_partitions` must be a positive integer. Other values would drop all rows and raise ValueError."""
    with pytest.raises(ValueError, match="shuffle_row_drop_partitions must be a positive integer"):
        make_reader(url, shuffle_row_drop_partitions=parts)


def test_fields_are_chosen_by_field_or_regular_expression(url: str) -> None:
    """Fields that are passed as objects come first, then fields that match a pattern, in schema order."""
    with make_reader(url, schema_fields=[UnischemaField("score", np.int8, ()), "n.*", "id"]) as reader:
        row = next(reader)

    assert row._fields == ("score", "id", "name")
    assert type(row).__name__ == "Small_view_view"


def test_a_single_pattern_may_be_given_without_a_list(url: str) -> None:
    """A string is one regular expression, not a list of letters."""
    with make_reader(url, schema_fields="id") as reader:
        assert next(reader)._fields == ("id",)


def test_an_empty_list_of_fields_means_all_fields(url: str) -> None:
    """An empty `schema_fields` selects all fields."""
    with make_reader(url, schema_fields=[]) as reader:
        assert len(next(reader)._fields) == 5


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        (["nope"], RuntimeError, "No fields matching the criteria '\\['nope'\\]' were found in the dataset"),
        (5, ValueError, "Fields must be either None, an iterable"),
        ([5], ValueError, "must be either a string \\(regular expressions\\) or an instance of UnischemaField"),
        ([UnischemaField("nope", np.int8, ())], ValueError, "does not belong to the schema"),
    ],
)
def test_invalid_fields_raise(url: str, fields: Any, error: type[Exception], text: str) -> None:
    """`schema_fields` that match no field, or are of another type, raise an error."""
    with pytest.raises(error, match=text):
        make_reader(url, schema_fields=fields)


def test_a_field_without_a_column_is_reported(tmp_path: Path) -> None:
    """A field without a column raises DataError at the first row. The other fields can be read."""
    url = tables.small(tmp_path / "t")
    for file in (tmp_path / "t").glob("*.parquet"):
        pq.write_table(pq.read_table(file).drop_columns(["vector"]), file, row_group_size=10)

    with make_reader(url, schema_fields=["id"]) as reader:
        assert len(list(reader)) == 40
    with make_reader(url) as reader, pytest.raises(DataError, match="the field 'vector', and no file has such a column"):
        next(reader)


@pytest.mark.parametrize("pool", POOLS)
def test_a_predicate_chooses_rows_and_keeps_them_whole(url: str, pool: str) -> None:
    """Rows that pass a predicate keep all their values, with any pool and with shuffling."""
    odd = in_lambda(["id", "score"], lambda number, score: number % 2 == 1 and score is not None)

    with make_reader(url, predicate=odd, reader_pool_type=pool, workers_count=2, shuffle_rows=True) as reader:
        rows = list(reader)

    assert sorted(int(row.id) for row in rows) == [n for n in range(40) if n % 2 == 1 and n % 5 != 4]
    for row in rows:
        assert (row.name, row.score, row.vector[0]) == (f"row {row.id}", 10 * row.id, row.id)


def test_rows_that_a_predicate_drops_are_not_decoded(tmp_path: Path) -> None:
    """Columns that a predicate does not read are decoded only for rows that pass it."""
    url = tables.small(tmp_path / "t")
    (file,) = (tmp_path / "t").rglob("*.parquet")
    table = pq.read_table(file)
    cells = table.column("image").to_pylist()
    cells[13] = b"no image"
    broken = table.set_column(table.schema.get_field_index("image"), "image", pa.array(cells))
    pq.write_table(broken, file, row_group_size=10)

    assert sorted(read(url, predicate=in_lambda(["id"], lambda number: number != 13))) == [n for n in range(40) if n != 13]


def test_predicates_can_be_combined(url: str) -> None:
    """`in_reduce` combines the results of several predicates by a function."""
    both = in_reduce([in_set({1, 2, 3}, "id"), in_lambda(["name"], lambda name: name != "row 2")], all)

    assert sorted(read(url, predicate=both)) == [1, 3]


def test_parts_of_a_pseudorandom_split_cover_all_rows(url: str) -> None:
    """Each row is in exactly one part of a pseudorandom split."""
    parts = [read(url, predicate=in_pseudorandom_split([0.3, 0.7], part, "id")) for part in range(2)]

    assert sorted(sum(parts, [])) == list(range(40))
    assert parts[0]
    assert parts[1]


@pytest.mark.parametrize(
    ("predicate", "fields"), [(in_lambda(["nope"], bool), None), (in_lambda([], bool), None), (in_set({1}, "id"), ["name"])]
)
def test_a_predicate_on_fields_that_are_not_read_raises_at_the_first_row(url: str, predicate: Any, fields: Any) -> None:
    """A predicate on fields that are not read raises ValueError at each `next`, not in `make_reader`."""
    with make_reader(url, predicate=predicate, schema_fields=fields) as reader:
        for _ in range(2):
            with pytest.raises(ValueError, match="are not valid schema names"):
                next(reader)


def test_predicates_and_selectors_of_other_types_raise(url: str) -> None:
    """A predicate or a selector that is not derived from Petastorm's base class raises ValueError."""
    with pytest.raises(ValueError, match="predicate parameter is expected to be derived from PredicateBase"):
        make_reader(url, predicate=lambda row: True)  # type: ignore[arg-type] # noqa: ARG005 - it is refused
    with pytest.raises(ValueError, match="expected to be derived from RowGroupSelectorBase"):
        make_reader(url, rowgroup_selector=5)  # type: ignore[arg-type] # it is refused


def test_a_predicate_on_partition_columns_chooses_files(partitioned_url: str) -> None:
    """A predicate on partition columns is called once for each directory, not for each row."""
    seen = []

    def is_first(part: str) -> bool:
        seen.append(part)
        return part == "p_1"

    found = read(partitioned_url, predicate=in_lambda(["part"], is_first))

    assert sorted(found) == list(range(1, 40, 4))
    assert sorted(seen) == ["p_0", "p_1", "p_2", "p_3"]
    assert {type(one) for one in seen} == {np.str_}


def test_filters_on_partition_columns(partitioned_url: str) -> None:
    """Filters in the form of pyarrow choose partition directories."""
    assert sorted(read(partitioned_url, filters=[("part", "=", "p_2")])) == list(range(2, 40, 4))
    assert sorted(read(partitioned_url, filters=[[("part", "in", ["p_0"])], [("part", "=", "p_3")]])) == [
        n for n in range(40) if n % 4 in (0, 3)
    ]


def test_filters_compare_numeric_partition_columns_with_text(tmp_path: Path) -> None:
    """A filter converts its value to the type of the column, as in Petastorm."""
    for year in (2020, 2021):
        tables.plain(tmp_path / f"year={year}", {"id": [year]})
    with pytest.warns(UserWarning, match="supports reading only Petastorm datasets"):
        assert read(tmp_path.as_uri(), filters=[("year", "=", "2021")]) == [2021]


@pytest.mark.parametrize("shards", [2, 3, 4])
def test_shards_are_row_groups_by_number(url: str, shards: int) -> None:
    """Row group n is in shard n % count, with any seed and any order."""
    for shard in range(shards):
        for seed in (None, 0, 9):
            found = read(url, cur_shard=shard, shard_count=shards, seed=seed)

            assert sorted({number // 10 for number in found}) == [n for n in range(4) if n % shards == shard]


def test_filters_do_not_change_shards(url: str) -> None:
    """Filters move no row group to another shard."""
    for shard in range(2):
        found = read(url, cur_shard=shard, shard_count=2, filters=[("id", ">=", 20)])

        assert sorted(found) == list(range(20 + 10 * shard, 30 + 10 * shard))


@given(shards=st.integers(1, 40), parts=st.integers(1, 4))
def test_shards_by_rows_are_even(url: str, shards: int, parts: int) -> None:
    """With `shard_by="rows"` the row counts of shards differ by at most one, and no row is in two shards."""
    found = [
        read(url, cur_shard=n, shard_count=shards, shard_by="rows", schema_fields=["id"], shuffle_row_drop_partitions=parts)
        for n in range(0, shards, max(1, shards // 3))
    ]

    assert {len(part) for part in found} <= {40 // shards, -(-40 // shards)}
    assert len({number for part in found for number in part}) == sum(map(len, found))


@pytest.mark.parametrize(("shard", "count"), [(0, None), (None, 2), (0, 0), ("0", 2), (0, "2"), (0.5, 2)])
def test_invalid_shards_raise(url: str, shard: Any, count: Any) -> None:
    """`cur_shard` and `shard_count` must both be integers. Other values raise ValueError."""
    with pytest.raises(ValueError, match="partition and num_partitions must be ints and both specified"):
        make_reader(url, cur_shard=shard, shard_count=count)


def test_more_shards_than_row_groups_raise(url: str) -> None:
    """More shards than row groups raise NoDataAvailableError, since some shards would have no rows."""
    with pytest.raises(NoDataAvailableError, match="must be greater or equal to the number of requested shards"):
        make_reader(url, cur_shard=0, shard_count=5)


def test_a_shard_without_row_groups_warns(url: str) -> None:
    """A shard number outside the shards warns and gives no rows, also with endless epochs."""
    with pytest.warns(UserWarning, match="No matching data is available for loading after rowgroup selector"):
        reader = make_reader(url, cur_shard=7, shard_count=2, num_epochs=None)
    with reader:
        assert list(reader) == []


def test_shard_seed_is_deprecated(url: str) -> None:
    """`shard_seed` warns, and does not change which row groups a shard has."""
    with pytest.warns(UserWarning, match="shard_seed was deprecated"):
        reader = make_reader(url, cur_shard=0, shard_count=2, shard_seed=5)
    with reader:
        assert sorted({int(row.id) // 10 for row in reader}) == [0, 2]


@pytest.mark.parametrize("pool", POOLS)
def test_a_transform_function_is_called_for_each_row(url: str, pool: str) -> None:
    """A transform function may change, add and remove fields, as its spec declares."""
    spec = TransformSpec(
        lambda row: {**row, "twice": row["vector"] * 2, "id": int(row["id"])},
        edit_fields=[("twice", np.float32, (3,), False), ("id", np.int64, (), False)],
        removed_fields=["image", "score"],
    )

    with make_reader(url, transform_spec=spec, reader_pool_type=pool, workers_count=2) as reader:
        rows = list(reader)

    assert rows[0]._fields == ("name", "vector", "twice", "id")
    assert type(rows[0]).__name__ == "Small_transformed_view"
    assert sorted(row.id for row in rows) == list(range(40))
    assert all((row.twice == 2 * row.id).all() for row in rows)


@pytest.mark.parametrize("pool", POOLS)
def test_tuples_from_a_transform_function_become_rows(url: str, pool: str) -> None:
    """If a transform function returns a tuple, the reader returns it unchanged."""
    spec = TransformSpec(lambda row: (row["vector"], int(row["id"])), removed_fields=["name"])

    with make_reader(url, transform_spec=spec, reader_pool_type=pool, workers_count=2, shuffle_row_groups=False) as reader:
        rows = list(reader)

    assert [number for _, number in rows] == list(range(40))
    assert (rows[7][0] == 7).all()


def test_a_transform_function_that_omits_a_field_raises(url: str) -> None:
    """A transform function that omits a field raises TypeError at each `next`."""
    with make_reader(url, transform_spec=TransformSpec(lambda row: {"id": row["id"]})) as reader:
        with pytest.raises(TypeError, match="missing 4 required positional arguments"):
            next(reader)
        with pytest.raises(TypeError, match="missing 4 required"):
            next(reader)


def test_threads_share_a_reader(url: str) -> None:
    """Ten threads that share a reader get each row of each epoch exactly once."""
    with make_reader(url, workers_count=3, num_epochs=25) as reader:
        found: list[list[int]] = [[] for _ in range(10)]

        def take(mine: list[int]) -> None:
            mine.extend(int(row.id) for row in reader)

        threads = [threading.Thread(target=take, args=(mine,)) for mine in found]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert sorted(sum(found, [])) == sorted(list(range(40)) * 25)


@pytest.mark.parametrize(
    ("given_url", "text"),
    [("lake/x", "scheme-less"), (5, "directory url must be a string"), ([], "dataset url list must be non-empty.")],
)
def test_invalid_urls_raise(given_url: Any, text: str) -> None:
    """A URL without a scheme, a URL that is not text, and an empty list raise ValueError."""
    with pytest.raises(ValueError, match=text):
        make_reader(given_url)


def test_a_url_without_files_raises_an_oserror(tmp_path: Path) -> None:
    """A URL without files raises OSError."""
    with pytest.raises(OSError, match="Passed non-file path"):
        make_reader((tmp_path / "nope").as_uri())


def test_trailing_slashes_are_ignored(url: str) -> None:
    """One or three trailing slashes of a URL are ignored."""
    assert normalize_dataset_url_or_urls(f"{url}/") == url
    assert sorted(read(f"{url}///")) == list(range(40))


@pytest.mark.parametrize("name", ["with space", "per%cent", "hash#mark", "question?"])
def test_paths_may_have_any_characters(tmp_path: Path, name: str) -> None:
    """Paths may have special characters: unescaped, as Petastorm accepts them, or escaped as in a URL."""
    tables.small(tmp_path / name, rows=10)

    for url in (f"file://{tmp_path / name}", f"file:{tmp_path / name}", (tmp_path / name).as_uri()):
        assert sorted(read(url)) == list(range(10))


def test_a_reader_can_be_constructed_from_a_url(url: str) -> None:
    """`Reader(url)` works, as Petastorm's first README shows."""
    with Reader(url, num_epochs=2) as reader:
        assert sorted(tables.ids(reader)) == sorted([*range(40), *range(40)])


def test_a_reader_accepts_a_filesystem(url: str) -> None:
    """Readers accept filesystem objects of pyarrow and of fsspec."""
    import fsspec
    from pyarrow import fs as pafs

    for filesystem in (pafs.LocalFileSystem(), fsspec.filesystem("file")):
        with Reader(filesystem, url.removeprefix("file://"), schema_fields=["id"]) as reader:
            assert sorted(tables.ids(reader)) == list(range(40))
        with make_reader(url, filesystem=filesystem) as reader:
            assert sorted(tables.ids(reader)) == list(range(40))


def test_a_reader_accepts_storage_options(url: str) -> None:
    """A dataset can be read with `storage_options`, for which fsspec opens the URL."""
    assert sorted(read(url, storage_options={"auto_mkdir": False})) == list(range(40))


@pytest.mark.parametrize(("name", "value"), [("reader_pool_type", "x"), ("cache_type", "x")])
def test_unknown_types_of_pools_and_caches_raise(url: str, name: str, value: str) -> None:
    """An unknown pool or cache type raises ValueError that names the argument and its value."""
    with pytest.raises(ValueError, match=f"Unknown {name}: x"):
        make_reader(url, **{name: value})  # type: ignore[arg-type] # it is refused


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        (
            "filters",
            "id<5",
            "filters must be a list of tuples (column, operator, value), a list of such lists, or None, and is 'id<5'",
        ),
        (
            "filters",
            5,
            "filters must be a list of tuples (column, operator, value), a list of such lists, or None, and is 5. Give",
        ),
        ("filters", [5], "[5] is not a filter; expected (column, op, value), a list of those, or a list of such lists."),
        ("filters", ["id<5"], "('id<5',) is not a comparison; expected (column, op, value)"),
        (
            "transform_spec",
            "x",
            "transform_spec must be a TransformSpec or None, and is 'x'. Give one: TransformSpec(the_function).",
        ),
        ("seed", "x", "seed must be a whole number or None, and is 'x'. Give one; 0 is a seed like others."),
        ("seed", 1.5, "seed must be a whole number or None, and is 1.5. Give one; 0 is a seed like others."),
    ],
)
def test_arguments_of_other_types_raise(url: str, name: str, value: Any, text: str) -> None:
    """Arguments of other types raise ValueError that says what is expected, in both functions."""
    for make in (make_reader, partial(make_batch_reader, decode=True)):
        with pytest.raises(ValueError, match=re.escape(text)):
            make(url, **{name: value})


def test_a_function_without_a_transform_spec_raises(url: str) -> None:
    """A function that is not inside a `TransformSpec` raises ValueError."""
    function: Any = dict
    with pytest.raises(ValueError, match="transform_spec must be a TransformSpec or None, and is <class 'dict'>"):
        make_reader(url, transform_spec=function)


def test_plain_parquet_is_read_with_a_warning(tmp_path: Path) -> None:
    """Plain Parquet is read with a warning, and its schema is inferred from its columns."""
    url = tables.plain(tmp_path / "t", {"id": [1, 2], "words": [["a", "b"], []], "n": pa.array([1, None], pa.int8())})

    with pytest.warns(UserWarning, match="Currently make_reader supports reading only Petastorm datasets"):
        reader = make_reader(url)
    with reader:
        rows = list(reader)

    assert type(rows[0]).__name__ == "inferred_schema_view"
    assert rows[0].words.tolist() == ["a", "b"]
    assert (rows[0].n, rows[1].n) == (1, None)


def test_diagnostics_have_the_keys_of_petastorm(url: str) -> None:
    """The diagnostics of each pool have the keys that Petastorm uses."""
    keys = {}
    for pool in POOLS:
        with make_reader(url, reader_pool_type=pool, workers_count=1) as reader:
            next(reader)
            keys[pool] = set(reader.diagnostics)

    assert keys == {
        "dummy": set(),
        "thread": {"output_queue_size"},
        "process": {"items_consumed", "items_produced", "items_inprocess", "zmq_copy_buffers"},
    }


def test_attributes_of_a_reader(url: str) -> None:
    """A reader has the public attributes and methods of Petastorm's reader."""
    with make_reader(url, num_epochs=2) as reader:
        found = (reader.batched_output, reader.is_batched_reader, reader.num_epochs, reader.ngram, reader.last_row_consumed)
        list(reader)

        assert found == (False, False, 2, None, False)
        assert reader.last_row_consumed
        assert len(reader) == 80
        assert iter(reader) is reader
        with pytest.raises(StopIteration):
            reader.next()
