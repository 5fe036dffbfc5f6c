"""Datasets: their clauses, repr, explain, states and loaders, and the errors of invalid calls."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.errors import (
    ArgumentError,
    ColumnNotFoundError,
    EmptyDatasetError,
    FilterError,
    MapError,
    MemoryLimitError,
    RowNotFoundError,
    StateError,
)
from penstock.testing import MemoryFormat, example

DAMAGED = (
    "Ranks and epochs count from 0, and deals are a list of lists of lanes, stride, ranks and rows. The state was damaged; "
    "start without it."
)


LISTS = pa.table({"id": [0, 1, 2, 3], "toks": [[1, 2, 3], [4], [], [5, 6]]})


@pytest.fixture
def ds() -> ps.Dataset:
    """Return a dataset of ten rows in row groups of four."""
    return example()


def ids(ds: Iterable[dict[str, Any]]) -> list[int]:
    """Return the ids of all rows, in the order they come."""
    return [int(number) for item in ds for number in np.atleast_1d(item["id"])]


# Repr, equality, schema and explain.


def test_the_repr_shows_the_query(ds: ps.Dataset) -> None:
    """The repr shows every clause, in the order in which the clauses apply."""
    dataset = (
        ds.map(np.copy)
        .batch(4, last="pad")
        .shuffle(ps.ExactShuffle(rows=3), seed=7)
        .select("x", "id")
        .where(ps.col("id") < 8, lazy=False)
        .limit(6)
        .shard(1, 2, lanes=4)
        .stack("v", ["x"])
        .with_row_ids()
        .repeat(2)
    )

    assert repr(dataset) == (
        "penstock.open('memory:example').where(col('id') < 8).limit(6).select('x', 'id').with_row_ids()"
        ".shuffle(ExactShuffle(rows=3), seed=7).shard(1, 2, lanes=4).batch(4, last='pad').repeat(2)"
        ".stack('v', ['x']).map(copy)"
    )
    assert repr(ds.shuffle().repeat()) == "penstock.open('memory:example').shuffle(seed=0).repeat()"
    assert (
        repr(MemoryFormat([[pa.table({"a": [1]})]], version="3", name="v").open().batch(1))
        == "penstock.open('memory:v', version='3').batch(1)"
    )


def test_datasets_with_equal_queries_are_equal(ds: ps.Dataset) -> None:
    """Datasets are equal if their queries are equal, whatever the order of calls."""
    double = lambda row: row  # noqa: E731 - two functions that look alike

    assert ds.select("id").where(ps.col("id") > 2) == example().where(("id", ">", 2)).select("id")
    assert hash(ds.limit(3)) == hash(example().limit(3))
    assert ds.select("id") != ds.select("x")
    assert ds.where(ps.col("id") > 2) != ds.where(ps.col("id") > 2.5)
    assert ds.map(double) == ds.map(double)
    assert ds.map(double) != ds.map(lambda row: row)
    assert ds != "memory:example"
    assert bool(ds.limit(0)) is True


def test_a_dataset_is_immutable(ds: ps.Dataset) -> None:
    """Clauses return new datasets; a dataset cannot be changed, and it can be copied and pickled."""
    narrow = ds.select("id").shuffle(seed=3)

    assert ds.schema.names == ("id", "x", "label")
    with pytest.raises(AttributeError):
        ds._query = narrow._query  # type: ignore[misc]
    assert copy.copy(narrow) == narrow
    assert ids(cloudpickle.loads(cloudpickle.dumps(narrow))) == ids(narrow)


def test_the_schema_matches_the_batches(ds: ps.Dataset) -> None:
    """Row ids, stacks, padding and declared maps are in the schema."""
    dataset = ds.with_row_ids().stack("both", ["id", "x"]).shuffle().batch(2, last="pad")

    assert dataset.schema.names == ("label", "_file", "_row_group", "_row", "both", "_valid")
    assert dataset.schema["both"] == ps.Field("both", np.float64, (2,))
    assert set(next(iter(dataset))) == set(dataset.schema.names)
    mapped = dataset.map(lambda batch: {"y": batch["both"]}, fields=[ps.Field("y", np.float64, (2,))])
    assert mapped.schema.names == ("y", "_valid")
    assert set(next(iter(mapped))) == {"y", "_valid"}


@pytest.mark.parametrize(
    ("dtype", "codec", "schema_dtype"),
    [
        (str, None, object),
        (bytes, None, object),
        (str, ps.codecs.Npy(), object),
        (bytes, ps.codecs.Npz(), object),
        ("U4", ps.codecs.Npy(), object),
        ("U4", ps.codecs.Raw(), "U4"),
        ("S4", ps.codecs.Raw(), "S4"),
    ],
)
def test_the_schema_of_text_matches_the_batches(
    tmp_path: Path, dtype: Any, codec: ps.codecs.Codec | None, schema_dtype: Any
) -> None:
    """The schema of text and bytes has the dtype of the batches for every codec, with and without a null policy."""
    cell = b"ab" if dtype in (bytes, "S4") else "ab"
    ps.write(tmp_path / "t", ps.Schema("T", [ps.Field("v", dtype, (), codec)]), [{"v": cell}] * 2)
    ds = ps.open(tmp_path / "t").batch(2)

    for dataset in (ds, ds.nulls(ps.Fill(cell), "v")):
        (batch,) = dataset
        assert batch["v"].tolist() == [cell, cell]
        assert dataset.schema["v"].dtype == batch["v"].dtype == schema_dtype
        assert dataset.schema["v"].codec == (codec or ps.codecs.Scalar())


def test_explain_describes_what_is_read(ds: ps.Dataset) -> None:
    """`explain` lists files, row groups, units, rows, memory, order, ranks, steps and dropped rows."""
    message = ds.where(ps.col("id") >= 5).shuffle(ps.WindowShuffle(rows=8), seed=2).shard(1, 2).batch(2).explain().splitlines()

    assert message[0].startswith("penstock.open('memory:example')")
    assert [line.strip() for line in message[1:5]] == [
        "files       1 of 1",
        "row groups  2 of 3, 1 pruned by partition or statistics",
        "units       2 to read, 1 of them with rows to filter",
        "rows        5 of 10",
    ]
    assert [line.strip() for line in message[7:10]] == [
        "order       name=window, rows=8, seed=2",
        "ranks       2, 2 lanes; this is rank 1, with 3 of 2 to 3 rows per rank",
        "steps       1 per epoch on this rank, last=drop, which leaves out 1 rows",
    ]
    assert message[5].startswith("  bytes       about ")
    assert message[6].startswith("  memory      windows of 5 rows, ")
    assert "before the lazy filter" in ds.where(ps.col("id") >= 5, lazy=True).explain()
    assert "last=uneven" in ds.explain()


# Clauses.


def test_columns_are_selected_by_name_pattern_or_field(ds: ps.Dataset) -> None:
    """Selected columns come in the order of the arguments, each once."""
    assert ds.select("x", "id").schema.names == ("x", "id")
    assert ds.select(".*l", ps.Field("id", np.int64), "i.").schema.names == ("label", "id")
    assert list(ds.select("label").where(ps.col("id") == 3)) == [{"label": "odd"}]


def test_selecting_no_columns_keeps_the_number_of_rows(ds: ps.Dataset) -> None:
    """Selecting no columns gives empty rows, in the same number."""
    assert list(ds.select()) == [{}] * 10
    assert ds.select().num_rows == 10
    assert list(ds.select().where(ps.col("id") > 7)) == [{}, {}]


def test_the_default_of_last_depends_on_the_dataset(ds: ps.Dataset) -> None:
    """By default, a short last batch comes in stored order, and is dropped if the dataset is shuffled or sharded."""
    assert len(ds.batch(4)) == 3
    assert len(ds.shuffle().batch(4)) == 2
    assert [len(ds.shard(rank, 3).batch(2)) for rank in range(3)] == [1, 1, 1]


def test_row_groups_can_be_batches(ds: ps.Dataset) -> None:
    """Each batch is a row group, in stored or shuffled order, and a map may change the number of rows."""
    assert [batch["id"].tolist() for batch in ds.batch("row_group")] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    shuffled = ds.shuffle(ps.RowGroupShuffle(), seed=1).batch("row_group")
    assert sorted(len(batch["id"]) for batch in shuffled) == [2, 4, 4]
    assert len(shuffled) == 3
    odd = ds.batch("row_group").map(lambda batch: {"id": batch["id"][batch["id"] % 2 == 1]})
    assert ids(odd) == [1, 3, 5, 7, 9]
    parts = [[batch["id"].tolist() for batch in ds.shard(rank, 2).batch("row_group")] for rank in range(2)]
    assert parts == [[[0, 1, 2, 3], [4]], [[5, 6, 7], [8, 9]]]


def test_row_ids_give_the_position_of_a_row() -> None:
    """Row ids are file, row group and row number, for units that are row groups and for units that are files."""
    for stated in (False, True):
        table = MemoryFormat.of({"id": range(10)}, row_group_rows=3, files=2, stated=stated)
        rows = list(table.open().with_row_ids())
        assert [(row["_file"], int(row["_row_group"]), int(row["_row"])) for row in rows[4:8]] == [
            ("part-0.parquet", 1, 4),
            ("part-0.parquet", 1, 5),
            ("part-1.parquet", 0, 0),
            ("part-1.parquet", 0, 1),
        ]


def test_partition_columns_are_columns() -> None:
    """Partition values come with every row, can be filtered on, and can be null."""
    groups = [[pa.table({"id": [at * 2, at * 2 + 1]})] for at in range(3)]
    table = MemoryFormat(groups, partitions=pa.table({"day": pa.array(["mon", "tue", None])})).open()

    assert [row["day"] for row in table] == ["mon", "mon", "tue", "tue", None, None]
    assert ids(table.where(ps.col("day") == "tue")) == [2, 3]
    assert ids(table.where(ps.col("day").is_null())) == [4, 5]
    assert "files       1 of 3" in table.where(ps.col("day") == "tue").explain()


def test_each_repeated_epoch_has_its_own_order(ds: ps.Dataset) -> None:
    """Each epoch of `repeat` has every row once, in its own order; `repeat()` has no end and no length."""
    found = ids(ds.shuffle(seed=1).repeat(3))
    epochs = [found[at : at + 10] for at in (0, 10, 20)]

    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3
    endless = iter(ds.repeat())
    assert [int(next(endless)["id"]) for _ in range(12)] == [*range(10), 0, 1]
    with pytest.raises(TypeError, match="has no length"):
        len(ds.repeat())


def test_split_is_disjoint_stable_and_close_to_its_shares() -> None:
    """The part of a row does not change when other rows are added or removed."""
    large = MemoryFormat.of({"id": range(2000)}, row_group_rows=500).open()
    small = MemoryFormat.of({"id": range(0, 2000, 7)}, row_group_rows=100).open()
    shares = {"train": 0.7, "val": 0.2, "test": 0.1}

    parts = {name: set(ids(part)) for name, part in large.split(shares, by="id").items()}
    again = {name: set(ids(part)) for name, part in small.split(shares, by="id").items()}
    assert sorted(sum(map(sorted, parts.values()), [])) == list(range(2000))
    assert all(again[name] <= parts[name] for name in shares)
    assert all(abs(len(parts[name]) - 2000 * share) < 100 for name, share in shares.items())
    assert set(ids(large.split(shares, by="id", seed=1)["val"])) != parts["val"]
    assert sum(part.num_rows for part in large.split({"a": 0.25, "b": 0.25}, by="id").values()) < 1200


def test_rows_are_read_by_number(ds: ps.Dataset) -> None:
    """Row numbers count filtered rows in stored order, also from the end; rows come in the requested order."""
    late = ds.where(ps.col("id") >= 4).select("id")

    assert int(late[0]["id"]) == 4
    assert int(late[-1]["id"]) == 9
    assert late.take([5, 0, 5])["id"].tolist() == [9, 4, 9]
    assert late[1:4]["id"].tolist() == [5, 6, 7]
    assert late.head(2)["id"].tolist() == [4, 5]
    assert late.head(99)["id"].tolist() == [4, 5, 6, 7, 8, 9]
    assert late.limit(0).head()["id"].tolist() == []
    assert late.map(lambda row: {"id": row["id"] * 2})[1] == {"id": 10}
    assert ds.stack("v", ["id", "x"])[3]["v"].tolist() == [3.0, 1.5]


def test_all_rows_are_read_as_arrow_or_pandas(ds: ps.Dataset) -> None:
    """`to_arrow` and `to_pandas` keep the stored types, and apply the filter, the limit and the selection."""
    table = ds.where(ps.col("label") == "odd").limit(2).select("label", "id").with_row_ids().to_arrow()

    assert table.to_pydict() == {
        "label": ["odd", "odd"],
        "id": [1, 3],
        "_file": ["part-0.parquet"] * 2,
        "_row_group": [0, 0],
        "_row": [1, 3],
    }
    assert ds.limit(0).with_row_ids().to_arrow().schema.names == ["id", "x", "label", "_file", "_row_group", "_row"]
    assert ds.to_pandas()["x"].tolist() == [number / 2 for number in range(10)]


def test_a_data_frame_supports_values_without_a_python_type(tmp_path: Path) -> None:
    """Dates after the year 9999, times in nanoseconds and lists of UUIDs keep Arrow types; other columns do not."""
    table = pa.table(
        {
            "day": pa.array([0, None, 6_585_493], pa.int32()).cast(pa.date32()),
            "time": pa.array([1, None, 3], pa.int64()).cast(pa.time64("ns")),
            "uuids": pa.array([[b"0" * 16], None, []], pa.list_(pa.binary(16))).cast(pa.list_(pa.uuid())),
            "id": [1, 2, 3],
        }
    )
    pq.write_table(table, tmp_path / "0.parquet")

    found = ps.open(tmp_path).to_pandas()

    assert pa.table({name: pa.array(found[name]) for name in table.column_names}).equals(table)
    assert found["id"].dtype == "int64"


# Maps.


def test_a_map_gets_batches_or_rows(ds: ps.Dataset) -> None:
    """A map gets batches if there are batches, rows otherwise, and rows of batches with `per_row`."""
    assert [row["id"] for row in ds.map(lambda row: {"id": int(row["id"]) + 1})] == list(range(1, 11))
    assert ids(ds.batch(4).map(lambda batch: {"id": batch["id"] + 1})) == list(range(1, 11))
    each = ds.batch(4).map(lambda row: {"id": row["id"] + 1, "name": f"n{row['id']}"}, per_row=True)
    assert ids(each) == list(range(1, 11))
    assert next(iter(each))["name"].tolist() == ["n0", "n1", "n2", "n3"]
    assert next(iter(ds.batch(2).map(lambda _: {"s": np.array(["a", "b"])})))["s"].dtype == object


def test_maps_run_one_after_the_other(ds: ps.Dataset) -> None:
    """Each map gets the result of the map before it."""
    dataset = ds.map(lambda row: {"a": row["id"]}).map(lambda row: {"b": row["a"] * 10})

    assert next(iter(dataset)) == {"b": 0}


def test_randomness_in_a_map_depends_on_the_position_alone(ds: ps.Dataset) -> None:
    """A row gets the same random draws in every run of an epoch, and other draws in the next epoch."""

    def noisy(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"id": row["id"], "draw": rng.random()}

    dataset = ds.shuffle(seed=4).batch(2).map(noisy, per_row=True)
    alone = {int(i): d for batch in dataset for i, d in zip(batch["id"], batch["draw"], strict=True)}
    first = ps.loader(dataset.shard(0, 1, lanes=1))
    again = {int(i): d for batch in first for i, d in zip(batch["id"], batch["draw"], strict=True)}
    later = {int(i): d for batch in first for i, d in zip(batch["id"], batch["draw"], strict=True)}

    assert alone == again
    assert len(set(alone.values())) == 10
    assert not set(alone.values()) & set(later.values())
    keyword = ds.batch(10).map(lambda _, rng=None: {"draw": rng.random(10)})
    assert next(iter(keyword))["draw"].tolist() == next(iter(keyword))["draw"].tolist()
    assert ids(ds.map(dict)) == list(range(10))


@pytest.mark.parametrize(
    ("function", "options", "expected"),
    [
        (
            lambda _: {"id": np.zeros(3)},
            {},
            "got 4 rows and returned columns of other lengths (id: 3). It must return as many rows as it gets. "
            'To change the number of rows use .batch("row_group").',
        ),
        (
            lambda _: 3,
            {},
            "returned int; expected a mapping of column names to values. Return the batch, changed or not.",
        ),
        (
            lambda _: {"id": 3},
            {},
            "returned a single value for column 'id'; expected an array with one entry per row. "
            "Return an array, or use per_row=True.",
        ),
        (
            lambda batch: batch,
            {"fields": [ps.Field("id", np.int64)]},
            "returned columns id, label, x, but its fields say id. Declare what it returns, or leave `fields` out.",
        ),
        (
            lambda row: {f"c{row['id']}": 1},
            {"per_row": True},
            "returned columns ['c1'] for row 1 of a batch and ['c0'] for row 0. Every row must have the same columns.",
        ),
        (
            lambda _: {"list": [[1], [2, 3], [], [4]]},
            {},
            "Return an array of numbers, or one of objects where rows differ in shape.",
        ),
        (
            lambda _: {"list": [[1], [2, 3]]},
            {"per_row": True},
            "Return an array of numbers, or one of objects where rows differ in shape.",
        ),
    ],
)
def test_an_invalid_result_of_a_map_raises(ds: ps.Dataset, function: Any, options: Any, expected: str) -> None:
    """The error says what the map returned and what is expected, again at every further call."""
    batches = iter(ds.batch(4).map(function, **options))

    for _ in range(2):
        with pytest.raises(MapError) as caught:
            next(batches)
        assert str(caught.value).endswith(expected)


# Errors.


def test_an_unknown_column_raises_with_the_nearest_name(ds: ps.Dataset) -> None:
    """A clause with an unknown column raises an error when it is called, not when rows are read."""
    message = "Column 'lable' is not in memory:example. Columns: id, x, label. Did you mean 'label'?"
    with pytest.raises(ColumnNotFoundError) as caught:
        ds.select("lable")
    assert str(caught.value) == message
    with pytest.raises(KeyError) as keyed:
        ds.where(ps.col("lable") == "odd")
    assert str(keyed.value) == message
    with pytest.raises(ColumnNotFoundError, match=r"Print `ds\.schema` to see their types"):
        ds.stack("v", ["q.*"])
    with pytest.raises(ColumnNotFoundError):
        ds.split({"a": 1}, by="nowhere")
    with pytest.raises(ColumnNotFoundError, match=r"Column '\(' is not in"):
        ds.select("(")


def test_a_filter_on_an_added_column_raises(ds: ps.Dataset) -> None:
    """A filter on a column that a map or stack adds raises an error, because filters run first."""
    made = ds.map(lambda row: row, fields=[ps.Field("y", np.int64)])
    with pytest.raises(FilterError) as caught:
        made.where(ps.col("y") > 0)

    assert str(caught.value) == (
        "where() got column 'y', which map or stack adds later. Columns of memory:example: id, x, label. "
        'Filter on those, or drop rows in a map with .batch("row_group").'
    )
    with pytest.raises(FilterError, match=r"where\(\) got column 'v', which map or stack adds later"):
        ds.stack("v", ["id", "x"]).where(ps.col("v") > 0)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda ds: ds.batch(0), 'batch() got size=0; expected a positive integer or "row_group", for example batch(32).'),
        (lambda ds: ds.batch(2.5), 'batch() got size=2.5; expected a positive integer or "row_group", for example batch(32).'),
        (
            lambda ds: ds.batch(2, last="keep"),
            "batch() got last='keep'; expected one of 'drop', 'pad', 'wrap', 'level', 'uneven', or None.",
        ),
        (lambda ds: ds.shard(2, 2), "shard() got rank=2 with world_size=2; expected an integer from 0 to 1."),
        (lambda ds: ds.shard(-1, 2), "shard() got rank=-1 with world_size=2; expected an integer from 0 to 1."),
        (lambda ds: ds.shard(0, 0), "shard() got world_size=0; expected a positive integer, for example shard(0, 4)."),
        (
            lambda ds: ds.shard(0, 4, lanes=6),
            "6 lanes cannot be shared out among 4 ranks. The number of lanes must be a multiple of the number of ranks. "
            "Use lanes=4, or leave it out.",
        ),
        (lambda ds: ds.limit(-1), "limit() got rows=-1; expected a non-negative integer, for example limit(100)."),
        (
            lambda ds: ds.repeat(0),
            "repeat() got epochs=0; expected a positive integer, for example repeat(3), or repeat() for no end.",
        ),
        (
            lambda ds: ds.shuffle(seed=-1),
            "shuffle() got seed=-1; expected an integer from 0 to 2**63 - 1, for example seed=0.",
        ),
        (
            lambda ds: ds.shuffle("window"),
            "shuffle() got 'window'; expected a Shuffle object, for example shuffle(penstock.WindowShuffle(rows=100_000)).",
        ),
        (
            lambda ds: ds.split({"a": 0.0}, by="id"),
            "split() got 0.0 for part 'a'; expected a share above 0 and up to 1.",
        ),
        (
            lambda ds: ds.split({"a": 0.8, "b": 0.3}, by="id"),
            "split() got shares with the sum 1.1; expected a sum of at most 1.",
        ),
        (
            lambda ds: ds.stack("id", ["x"]),
            "stack() got the name 'id', which is a column that it does not stack. Columns: id, x, label. Choose another name.",
        ),
        (
            lambda ds: ds.shuffle().batch("row_group"),
            'batch("row_group") returns whole row groups, and this shuffle mixes the rows of several. '
            "Use .shuffle(penstock.RowGroupShuffle()), or a number of rows.",
        ),
        (
            lambda ds: ds.batch("row_group", last="drop"),
            'batch("row_group") got last=\'drop\'; expected last="uneven", since its batches differ in size.',
        ),
        (
            lambda ds: ds.where(ps.col("id") > 1, lazy=True).batch(2, last="pad"),
            "batch() got last='pad' with a lazy filter, which cannot give all ranks the same number of steps. "
            'Use last="uneven" or "drop", or remove lazy=True.',
        ),
        (
            lambda ds: ds.where(ps.col("id") > 1, lazy=True).num_rows,
            "A dataset with a lazy filter has no number of rows before it is read. Remove lazy=True to count them first.",
        ),
        (
            lambda ds: ds.shuffle()[3],
            "Rows by number count in stored order, and this dataset is shuffled, batched or sharded. "
            "Ask the dataset before .shuffle(), .batch() and .shard().",
        ),
        (
            lambda ds: ds.where(ps.col("id") > 1, lazy=True).to_arrow(),
            "to_arrow counts the rows that pass, and a lazy filter has not counted them. Leave lazy=True out.",
        ),
        (
            lambda ds: ds.take(np.array([True, False])),
            "Rows are counted by whole numbers, and array([ True, False]) is bool. Give numbers from 0 on. "
            "Of a mask, take numpy.flatnonzero(mask).",
        ),
        (lambda ds: ds[2.5], "Rows are counted by whole numbers, and [2.5] is float64. Give numbers from 0 on."),
        (
            lambda ds: ds["id"],
            "ds[...] got 'id'; expected a row number or a slice. For a column use ds.select('id').to_arrow().",
        ),
        (lambda ds: ds.head(-1), "head() got rows=-1; expected a non-negative integer, for example head(100)."),
        (
            lambda ds: ds.map(dict).to_arrow(),
            "to_arrow shows rows as they are stored, and this dataset has maps or stacks. Iterate over it, or leave them out.",
        ),
        (
            lambda ds: ps.loader(ds).set_epoch(-1),
            "set_epoch() got -1; expected the number of the epoch to start, from 0 to 2**62 - 1, for example set_epoch(3).",
        ),
        (
            lambda ds: ps.loader(ds.batch(4)).state_at(4),
            "state_at() got step=4; expected at most 3, the number of steps of this iteration.",
        ),
        (
            lambda ds: ps.loader(ds.where(ps.col("id") > 1, lazy=True)).state_at(1),
            "state_at cannot tell how many rows a lazy filter passes. Use state_dict(), or leave lazy=True out.",
        ),
        (
            lambda _: MemoryFormat([]),
            "MemoryFormat() got no file, or a file without row groups. Use a table without rows for an empty row group.",
        ),
        (
            lambda _: MemoryFormat([[pa.table({"a": [1]})]], partitions=pa.table({"p": [1, 2]})),
            "MemoryFormat() got 2 rows of partitions for 1 files; expected one for each.",
        ),
    ],
)
def test_invalid_arguments_raise(ds: ps.Dataset, call: Any, expected: str) -> None:
    """Invalid arguments raise an error that says what is expected and what to do."""
    with pytest.raises(ArgumentError) as caught:
        call(ds)

    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (
            lambda ds: ds.where(ps.col("id") > 100).batch(2),
            "memory:example has 0 rows to hand out under the filter col('id') > 100. At least one is needed. Check the filter, "
            "or ask `ds.num_rows` first where none may be right.",
        ),
        (
            lambda ds: ds.limit(0).shard(0, 2),
            "memory:example has 0 rows to hand out. At least one is needed. Check the filter, or ask `ds.num_rows` first where "
            "none may be right.",
        ),
        (
            lambda ds: ds.limit(1).shuffle().batch(4),
            'memory:example has 1 row to hand out, fewer than one batch of 4, and last="drop" would drop them all. '
            'Use a batch of at most 1 rows, or last="pad", "wrap", "level" or "uneven".',
        ),
        (
            lambda ds: ds.shard(0, 3).batch(4),
            'memory:example has 10 rows to hand out, fewer than one global batch of 12 rows (3 ranks of 4), and last="drop" '
            'would drop them all. Use a batch of at most 3 rows, or last="pad", "wrap", "level" or "uneven".',
        ),
        (
            lambda ds: ds.limit(2).shard(0, 3).batch(1, last="pad"),
            "memory:example has 2 rows to hand out, fewer than its 3 ranks. Every rank needs at least one row. "
            "Use at most 2 ranks.",
        ),
    ],
)
def test_too_few_rows_raise(ds: ps.Dataset, call: Any, expected: str) -> None:
    """No rows, fewer rows than ranks and fewer rows than a batch raise an error, in datasets and in loaders."""
    dataset = call(ds)
    for begin in (lambda: iter(dataset), lambda: iter(ps.loader(dataset))):
        with pytest.raises(EmptyDatasetError) as caught:
            begin()
        assert str(caught.value) == expected


@pytest.mark.parametrize("last", ["pad", "wrap"])
def test_batches_too_large_to_be_filled_up_raise(ds: ps.Dataset, last: Any) -> None:
    """A batch that would be filled up beyond the memory limit raises an error when the iteration begins."""
    dataset = ds.batch(10**12, last=last)
    for batches in (dataset, ps.loader(dataset)):
        with pytest.raises(MemoryLimitError) as caught:
            iter(batches)
        assert str(caught.value) == (
            f'memory:example has 10 rows to hand out, and last="{last}" would fill them up to a batch of 1000000000000, which '
            'takes at least 7450.6 GiB in memory; memory_limit is 1.0 GiB. Use a smaller batch, or last="uneven".'
        )


def test_the_size_of_rows_is_checked_before_a_batch_is_filled_up(ds: ps.Dataset) -> None:
    """The real size of text rows is checked, even if the estimate from their numbers fits the memory limit."""
    dataset = ds.batch(100_000, last="pad").using(memory_limit=1 << 20)
    with pytest.raises(MemoryLimitError, match=r'filled up to 100000 rows by last="pad" takes .* in memory'):
        list(dataset)


def test_a_query_may_select_no_rows(ds: ps.Dataset) -> None:
    """A dataset without batches and ranks may select no rows: it, its length and its table are empty."""
    nothing = ds.where(ps.col("id") > 100)

    assert list(nothing) == []
    assert len(nothing) == nothing.num_rows == nothing.to_arrow().num_rows == 0
    assert len(nothing.batch(2)) == 0
    assert list(ds.limit(1)) == [{"id": 0, "x": 0.0, "label": "even"}]


# States.


def saved(ds: ps.Dataset, steps: int = 1) -> dict[str, Any]:
    """Return the state after some steps, converted to JSON and back."""
    state: dict[str, Any] = json.loads(json.dumps(ps.loader(ds).state_at(steps)))
    return state


def test_a_state_is_a_small_json_object(ds: ps.Dataset) -> None:
    """The content of a state is stable, because checkpoints store it."""
    state = saved(ds.shuffle(ps.WindowShuffle(rows=8), seed=5).shard(0, 2).batch(2))

    assert state == {
        "state": 1,
        "order": 1,
        "table": "memory:example",
        "version": "",
        "fingerprint": state["fingerprint"],
        "seed": 5,
        "epoch": 0,
        "deals": [[2, 2, 2, 2]],
        "rank": 0,
        "alike": True,
    }


def test_columns_maps_and_batches_may_change_on_a_resume(ds: ps.Dataset) -> None:
    """A state is a position in the rows, so columns, maps and the batch size may change on a resume."""
    dataset = ds.shuffle(seed=5)
    state = saved(dataset.batch(2), 2)
    after = ps.loader(dataset.select("id").batch(3, last="uneven").map(lambda batch: {"id": batch["id"]}))
    after.load_state_dict(state)

    assert [batch["id"].tolist() for batch in after] == [ids(dataset)[4:7], ids(dataset)[7:]]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"table": "memory:other"},
            "The state was saved with table 'memory:other', but this dataset has table 'memory:example'. "
            "Resume over the same table, or start without the state.",
        ),
        (
            {"version": "7"},
            "The state was saved with version '7', but this dataset has version ''. "
            "Resume over the same version (penstock.open(url, version='7')), or start without the state.",
        ),
        (
            {"seed": 1},
            "The state was saved with seed 1, but this dataset has seed 5. "
            "Resume over the same seed, or start without the state.",
        ),
        (
            {"order": 2},
            "The state was saved in order number 2; this version has order number 1. "
            "Resume it with the version of Penstock that saved it, or start without it.",
        ),
        (
            {"state": 9},
            "The state is of kind 9; this version reads kind 1. "
            "Resume it with the version of Penstock that saved it, or start without it.",
        ),
        (
            {"deals": [[2, 2, 3, 0]]},
            f"The state's position is not valid: rank 0, epoch 0, deals [[2, 2, 3, 0]]. {DAMAGED}",
        ),
        ({"deals": 3}, f"The state's position is not valid: rank 0, epoch 0, deals 3. {DAMAGED}"),
        ({"deals": {}}, f"The state's position is not valid: rank 0, epoch 0, deals {{}}. {DAMAGED}"),
        ({"deals": ""}, f"The state's position is not valid: rank 0, epoch 0, deals ''. {DAMAGED}"),
        ({"epoch": -1}, f"The state's position is not valid: rank 0, epoch -1, deals [[1, 2, 1, 2]]. {DAMAGED}"),
        ({"epoch": True}, f"The state's position is not valid: rank 0, epoch True, deals [[1, 2, 1, 2]]. {DAMAGED}"),
        ({"epoch": 2**62}, f"The state's position is not valid: rank 0, epoch {2**62}, deals [[1, 2, 1, 2]]. {DAMAGED}"),
        ({"rank": -1}, f"The state's position is not valid: rank -1, epoch 0, deals [[1, 2, 1, 2]]. {DAMAGED}"),
        ({"rank": "0"}, f"The state's position is not valid: rank '0', epoch 0, deals [[1, 2, 1, 2]]. {DAMAGED}"),
    ],
)
def test_a_state_that_does_not_match_raises(ds: ps.Dataset, change: dict[str, Any], expected: str) -> None:
    """The error names the part of the state that differs or is damaged."""
    dataset = ds.shuffle(seed=5).batch(2)
    with pytest.raises(StateError) as caught:
        ps.loader(dataset).load_state_dict({**saved(dataset), **change})

    assert str(caught.value) == expected


def test_the_error_of_a_changed_fingerprint_says_what_changed(ds: ps.Dataset) -> None:
    """The error of a state distinguishes a changed query from changed data."""
    dataset = ds.shuffle(seed=5).batch(2)
    state = saved(dataset)
    with pytest.raises(StateError, match="since it was saved, the filter, sequence, shuffle, window or limit changed"):
        ps.loader(dataset.limit(9)).load_state_dict(state)
    with pytest.raises(StateError, match="the filter, sequence, shuffle, window or limit changed"):
        ps.loader(ds.shuffle(ps.WindowShuffle(rows=3), seed=5).batch(2)).load_state_dict(state)
    longer = MemoryFormat.of({"id": range(11)}, row_group_rows=4, name="example").open().shuffle(seed=5).batch(2)
    with pytest.raises(StateError, match="since it was saved, its files or rows changed"):
        ps.loader(longer).load_state_dict(state)


def test_an_incomplete_state_raises(ds: ps.Dataset) -> None:
    """The error names the missing keys of a state; an empty list of states raises an error too."""
    dataset = ds.shuffle(seed=5).batch(2)
    state = saved(dataset)
    del state["deals"], state["seed"]
    with pytest.raises(StateError) as caught:
        ps.loader(dataset).load_state_dict(state)
    assert str(caught.value) == (
        "The state has no seed, deals; expected a state as `state_dict()` returns it. Start without it."
    )
    with pytest.raises(StateError, match="The list of states is empty"):
        ps.loader(dataset).load_state_dict([])


def test_uneven_ranks_resume_on_other_ranks_only_with_all_states(ds: ps.Dataset) -> None:
    """Ranks with unequal steps resume on another number of ranks only from the states of all ranks."""
    dataset = ds.batch(2, last="uneven")
    states = [saved(dataset.shard(rank, 3), steps=2) for rank in range(3)]
    with pytest.raises(StateError) as caught:
        ps.loader(dataset.shard(0, 2)).load_state_dict(saved(dataset.shard(0, 3)))
    assert str(caught.value) == (
        "The state of one rank cannot resume 3 ranks on 2, because their ranks do not advance alike (uneven batches, a lazy "
        "filter or a map that changes the number of rows). Pass the states of all ranks."
    )
    reader = ps.loader(dataset)
    reader.load_state_dict(states)
    assert reader.state_dict()["epoch"] == 1
    reader.load_state_dict([saved(dataset.shard(rank, 3)) for rank in range(3)])
    assert [batch["id"].tolist() for batch in reader] == [[2, 5], [8, 9]]


def test_the_state_of_merged_ranks_can_be_saved_again(ds: ps.Dataset) -> None:
    """The merged state of ranks with different positions can be converted to JSON and resumed."""
    dataset = ds.batch(3, last="uneven")
    states = [saved(dataset.shard(rank, 3), steps=steps) for rank, steps in enumerate((0, 1, 0))]
    reader = ps.loader(dataset.shard(0, 2))
    reader.load_state_dict(states)
    state = json.loads(json.dumps(reader.state_dict()))

    assert state["deals"] == [[3, 3, 3, [0, 3, 0]], [2, 3, 2, 0]]
    parts = []
    for rank in range(2):
        part = ps.loader(dataset.shard(rank, 2))
        part.load_state_dict(state)
        parts += [batch["id"].tolist() for batch in part]
    assert sorted(sum(parts, [])) == [0, 1, 2, 6, 7, 8, 9]


# Loaders.


def test_each_iteration_is_the_next_epoch_also_after_a_break(ds: ps.Dataset) -> None:
    """Every iteration is a new epoch, also after a break; only the first one after a loaded state resumes inside its epoch."""
    dataset = ds.shuffle(seed=3).batch(5)
    whole = ps.loader(dataset)
    epochs = [[batch["id"].tolist() for batch in whole] for _ in range(3)]
    reader = ps.loader(dataset)
    for batch in reader:
        assert batch["id"].tolist() == epochs[0][0]
        break
    state = reader.state_dict()

    assert [batch["id"].tolist() for batch in reader] == epochs[1]
    reader.load_state_dict(state)
    assert [batch["id"].tolist() for batch in reader] == epochs[0][1:]
    assert [batch["id"].tolist() for batch in reader] == epochs[1]
    assert [batch["id"].tolist() for batch in dataset] == epochs[0]


def test_an_endless_loader_resumes_where_it_stopped(ds: ps.Dataset) -> None:
    """A state from a later epoch of an endless iteration resumes with the same batches."""
    dataset = ds.shuffle(seed=3).batch(4).repeat()
    reader = ps.loader(dataset)
    batches = iter(reader)
    for _ in range(5):
        next(batches)
    state = reader.state_dict()
    expected = [next(batches)["id"].tolist() for _ in range(4)]

    again = ps.loader(dataset)
    again.load_state_dict(state)
    resumed = iter(again)
    assert [next(resumed)["id"].tolist() for _ in range(4)] == expected
    assert again.state_at(3)["epoch"] == 4
    assert state["epoch"] == 2


def test_a_closed_iterator_has_ended(ds: ps.Dataset) -> None:
    """A closed iterator yields no more batches, and can be closed again."""
    batches = iter(ps.loader(ds.batch(2)))
    next(batches)
    batches.close()

    assert list(batches) == []
    batches.close()


def test_lazy_filters_apply_to_rows_row_groups_and_batches(ds: ps.Dataset) -> None:
    """Lazy filters work without batches, with row groups, and with a dropped last batch."""
    lazy = ds.where(ps.col("label") == "odd", lazy=True)

    assert ids(lazy) == [1, 3, 5, 7, 9]
    assert [batch["id"].tolist() for batch in lazy.batch("row_group")] == [[1, 3], [5, 7], [9]]
    assert [batch["id"].tolist() for batch in lazy.batch(2, last="drop")] == [[1, 3], [5, 7]]
    with pytest.raises(TypeError, match="has no length before it is read"):
        len(lazy)


# Other rules.


def test_a_lazy_filter_drops_no_more_than_the_last_short_batch(ds: ps.Dataset) -> None:
    """The rows that pass a lazy filter decide which last batch is dropped, also after a resume."""
    lazy = ds.where(~ps.col("id").isin([0, 5]), lazy=True).select("id").batch(2, last="drop")
    whole = [ids([batch]) for batch in lazy]
    assert whole == [[1, 2], [3, 4], [6, 7], [8, 9]]
    reader = ps.loader(lazy)
    batches = iter(reader)
    next(batches)
    again = ps.loader(lazy)
    again.load_state_dict(reader.state_dict())
    assert [ids([batch]) for batch in again] == whole[1:]

    assert [ids([b]) for b in ds.where(ps.col("id") != 1, lazy=True).batch(4, last="drop")] == [[0, 2, 3, 4], [5, 6, 7, 8]]


@pytest.mark.parametrize("size", [None, 1, 2, 5, 10, "row_group"])
def test_a_lazy_epoch_ends_with_the_last_row_that_passes(ds: ps.Dataset, size: Any) -> None:
    """With a lazy filter, the state after the last batch already belongs to the next epoch."""
    lazy = ds.select("id").where(ps.col("id") >= 0, lazy=True)
    lazy = lazy if size is None else lazy.batch(size)
    whole, loader = list(lazy), ps.loader(lazy)
    batches = iter(loader)
    for _ in whole:
        assert loader.state_dict()["epoch"] == 0
        next(batches)

    assert (loader.state_dict()["epoch"], loader.state_dict()["deals"]) == (1, [])


def test_a_rank_without_remaining_rows_ends_a_lazy_epoch_too(ds: ps.Dataset) -> None:
    """If two ranks resume with one row left, the rank without a row moves to the next epoch too."""
    lazy = ds.select("id").where(ps.col("id") >= 0, lazy=True)
    first = ps.loader(lazy.batch(9, last="uneven"))
    batches = iter(first)
    next(batches)
    ends = []
    for rank in range(2):
        other = ps.loader(lazy.batch(1, last="uneven").shard(rank, 2))
        other.load_state_dict([first.state_dict()])
        ends.append((ids(other), other.state_dict()["epoch"], other.state_dict()["deals"]))

    assert sorted(ends) == [([], 1, []), ([9], 1, [])]


def test_a_lazy_filter_requires_a_length_for_padding() -> None:
    """With a lazy filter, Pad needs a length, because rows are padded before the filter runs."""
    ds = MemoryFormat([[LISTS]]).open().where(ps.col("id") != 1, lazy=True).batch(2, last="uneven")

    with pytest.raises(ArgumentError) as raised:
        ds.ragged(ps.Pad(), "toks")
    assert str(raised.value) == (
        "Column 'toks' has the policy Pad() without a length, which does not combine with a lazy filter: rows are padded "
        "before it runs. Give Pad a length, or remove lazy=True."
    )
    found = [batch["toks"].tolist() for batch in ds.ragged(ps.Pad(length=3), "toks")]
    assert found == [[[1, 2, 3], [0, 0, 0]], [[5, 6, 0]]]
    assert [batch["id"].tolist() for batch in ds.select("id").ragged(ps.Pad(), ".*")] == [[0, 2], [3]]


def test_a_rank_with_more_rows_loads_its_own_state(ds: ps.Dataset) -> None:
    """A rank can resume from its own state if the ranks have different numbers of rows."""
    dataset = ds.where(ps.col("id") != 1, lazy=True).select("id").batch(2, last="uneven").shard(2, 3)
    reader = ps.loader(dataset.repeat(2))
    batches = iter(reader)
    expected = [ids([batch]) for batch in batches][2:]
    batches = iter(ps.loader(dataset.repeat(2)))
    again = ps.loader(dataset.repeat(2))
    other = ps.loader(dataset.repeat(2))
    steps = iter(other)
    next(steps), next(steps)
    again.load_state_dict(other.state_dict())

    assert [ids([batch]) for batch in again] == expected


def test_each_map_has_its_own_random_draws(ds: ps.Dataset) -> None:
    """Two maps get different random draws; `rng` may be a keyword-only parameter."""

    def drawing(name: str) -> Any:
        def draw(batch: dict[str, Any], *, rng: np.random.Generator) -> dict[str, Any]:
            return {**batch, name: rng.random(len(batch["id"]))}

        return draw

    batch = next(iter(ds.batch(3).map(drawing("a")).map(drawing("b"))))
    assert not set(batch["a"]) & set(batch["b"])


def test_a_part_of_a_split_can_be_split_again() -> None:
    """Splitting a part by the same column gives shares of the part, not all or nothing."""
    whole = MemoryFormat.of({"id": range(4000)}, row_group_rows=1000).open()
    half = whole.split({"a": 0.5, "b": 0.5}, by="id")["b"]
    parts = {name: set(ids(part)) for name, part in half.split({"fit": 0.5, "val": 0.5}, by="id").items()}

    assert parts["fit"] | parts["val"] == set(ids(half))
    assert not parts["fit"] & parts["val"]
    assert abs(len(parts["fit"]) - len(parts["val"])) < 250


def test_repeating_an_empty_dataset_without_end_raises(ds: ps.Dataset) -> None:
    """An endless `repeat` without rows raises an error, because it would never yield and never end."""
    for nothing in (ds.where(ps.col("id") > 99), ds.limit(0)):
        with pytest.raises(EmptyDatasetError, match="0 rows to hand out"):
            iter(nothing.repeat())
    for lazy in (
        ds.where(ps.col("label") == "neither", lazy=True),
        ds.where(ps.col("x") == 0.25, lazy=True).batch(4, last="drop"),
    ):
        with pytest.raises(EmptyDatasetError):
            next(iter(lazy.repeat()))


def test_setting_the_epoch_that_was_loaded_keeps_the_position(ds: ps.Dataset) -> None:
    """`set_epoch` keeps the loaded position if the epoch is the same, and starts at the beginning of any other epoch."""
    dataset = ds.shuffle(seed=3).batch(2)
    state = ps.loader(dataset).state_at(2)
    reader = ps.loader(dataset)
    reader.load_state_dict(state)
    reader.set_epoch(np.int64(0))
    assert len(reader) == 3
    reader.set_epoch(5)
    batches = iter(reader)
    next(batches)
    reader.set_epoch(2)
    assert json.dumps(reader.state_dict()["epoch"]) == "2"
    next(batches)

    assert (reader.state_dict()["epoch"], reader.state_dict()["deals"][-1][-1]) == (5, 4)
    for epoch in (1.5, "a", None, -1, 1 << 70, True):
        with pytest.raises(ArgumentError, match=r"epoch to start, from 0 to 2\*\*62 - 1"):
            reader.set_epoch(epoch)


def test_states_of_several_ranks_must_match(ds: ps.Dataset) -> None:
    """States of ranks may come in any order; missing states and states of different steps raise an error."""
    dataset = ds.batch(2, last="uneven")
    states = [saved(dataset.shard(rank, 3)) for rank in range(3)]
    reader = ps.loader(dataset)
    reader.load_state_dict(states[::-1])
    assert [batch["id"].tolist() for batch in reader] == [[2, 5], [8, 9]]
    with pytest.raises(StateError, match=r"The states are of ranks \[0, 2\]"):
        reader.load_state_dict(states[::2])
    alike = ds.shuffle().batch(1)
    with pytest.raises(StateError, match="were saved after different steps, though their ranks advance alike"):
        ps.loader(alike).load_state_dict([saved(alike.shard(0, 2), 1), saved(alike.shard(1, 2), 4)])
    with pytest.raises(StateError, match="The state of rank 0 cannot resume rank 1"):
        ps.loader(dataset.shard(1, 3)).load_state_dict(states[0])
    own = ps.loader(dataset.shard(1, 3))
    own.load_state_dict(states[1])
    assert [batch["id"].tolist() for batch in own] == [batch["id"].tolist() for batch in dataset.shard(1, 3)][1:]
    for invalid in (None, "text", [states[0], None]):
        with pytest.raises(StateError, match="The state is of type"):
            reader.load_state_dict(invalid)  # type: ignore[arg-type]
    before = reader.state_dict()
    with pytest.raises(StateError, match="has consumed 999 rows"):
        reader.load_state_dict({**saved(dataset), "deals": [[1, 2, 1, 999]]})
    assert reader.state_dict() == before


def test_all_batches_are_equally_writable(ds: ps.Dataset) -> None:
    """Batches in stored order are read-only views; shuffled batches and batches in a map are writable."""
    assert {batch["x"].flags.writeable for batch in ds.batch(3)} == {False}
    assert {batch["x"].flags.writeable for batch in ds.shuffle().batch(3)} == {True}

    def halved(batch: dict[str, Any]) -> dict[str, Any]:
        batch["x"] /= 2
        return batch

    assert [float(x) for batch in ds.batch(3).map(halved) for x in batch["x"]] == [number / 4 for number in range(10)]


def test_added_columns_never_hide_columns_of_the_table() -> None:
    """A clause that adds a column whose name the table already has raises an error."""
    table = MemoryFormat.of({"_valid": [1, 2], "_file": [3, 4], "id": [0, 1]}, row_group_rows=2).open()
    calls: list[Callable[[], Any]] = [
        lambda: table.shuffle().batch(2, last="pad"),
        table.with_row_ids,
        lambda: table.stack("_file", ["id"]),
    ]
    for call in calls:
        with pytest.raises(ArgumentError, match=r"and the table has a column of that name|a column that it does not stack"):
            call()

    assert set(next(iter(table.select("id").with_row_ids()))) == {"id", "_file", "_row_group", "_row"}


def test_only_selected_columns_can_be_stacked(ds: ps.Dataset) -> None:
    """A column is stacked at most once, and only if it is selected."""
    with pytest.raises(ColumnNotFoundError, match="Column 'x' is not in the columns that are left for stack 'v'"):
        ds.stack("v", ["x"]).select("id")
    with pytest.raises(ColumnNotFoundError):
        ds.stack("v", ["x", "id"]).stack("w", ["x"])
    nothing: list[str] = []
    for columns in (nothing, "x"):
        with pytest.raises(ArgumentError, match="expected a name and a list of columns"):
            ds.stack("v", columns)


def test_columns_of_different_kinds_cannot_be_stacked() -> None:
    """Stacking text, ragged lists, or columns of other shapes or kinds raises an error; lists of one length can be stacked."""
    arrow = pa.table(
        {
            "n": [1, 2],
            "s": ["a", "b"],
            "l": [[1], [2]],
            "m": [[3], [4]],
            "v": pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)),
            "t": pa.array([1, 2], pa.timestamp("us")),
        }
    )
    ds = MemoryFormat.of(arrow, row_group_rows=2).open().batch(2)
    for columns, expected in (
        (["n", "s"], "stack('z') got column 's', which holds text or objects; expected columns of numbers. Remove it."),
        (
            ["n", "l"],
            "stack('z') got column 'l', which holds lists or arrays of different sizes; expected columns of one shape. "
            "Remove it, or give it one shape with .ragged(..., 'l').",
        ),
        (
            ["n", "v"],
            "stack('z') got columns of different shapes: 'n' (), 'v' (2,). Stack columns of one kind and shape, or join "
            "them in a map.",
        ),
        (["n", "t"], "stack('z') got columns of different kinds: 'n' number, 't' M. Stack columns of one kind and shape"),
    ):
        with pytest.raises(ArgumentError) as caught:
            ds.stack("z", columns)
        assert expected in str(caught.value)
    even = ds.ragged(ps.RaiseIfRagged(), "l", "m").stack("z", ["l", "m"])
    assert next(iter(even))["z"].tolist() == [[[1], [3]], [[2], [4]]]


def test_a_pattern_may_match_columns_without_lists(ds: ps.Dataset) -> None:
    """A pattern in `ragged` skips columns without lists; only a named column must have lists."""
    assert next(iter(ds.ragged(ps.Pad(), ".*").batch(2)))["id"].tolist() == [0, 1]


def test_numpy_integers_are_valid_arguments(ds: ps.Dataset) -> None:
    """NumPy integers are valid wherever an int is, and the state can still be converted to JSON."""
    two: Any = np.int64(2)
    dataset = ds.shuffle(seed=two).batch(two).shard(two - 2, two, lanes=two * 2).limit(two * 4).repeat(two)

    assert dataset == ds.shuffle(seed=2).batch(2).shard(0, 2, lanes=4).limit(8).repeat(2)
    assert json.dumps(ps.loader(dataset).state_dict())


def test_arguments_of_the_wrong_type_raise(ds: Any) -> None:
    """Arguments of the wrong type raise an error when the clause is called."""
    invalid: Any = None
    parquet: Any = "porquet"
    refusals: list[tuple[Callable[[], Any], str]] = [
        (lambda: ds.map(invalid), "map() got None; expected a function of a batch or a row"),
        (lambda: ds.map(dict, fields=invalid or ["q"]), "expected Field objects"),
        (lambda: ds.select(["id", "x"]), "expected names, regular expressions or fields"),
        (lambda: ps.loader(invalid), "loader() got NoneType; expected a dataset"),
        (lambda: ds.split([0.5, 0.5], by="id"), "expected shares by name"),
        (lambda: ps.open("x", format=parquet), "expected a TableFormat object"),
        (lambda: MemoryFormat.of({"id": [1]}, row_group_rows=0), "expected positive integers"),
        (lambda: ds.where(ps.col("id") > 1, lazy=True).limit(3), "limit() does not combine with a lazy filter"),
        (lambda: ds[1, 2], "expected one row number or a slice"),
        (lambda: ds.nulls("fill", "x"), "expected one of DefaultNulls(), Fill(), Mask(), RaiseOnNull()"),
        (lambda: ds.ragged(ps.Pad()), "without columns"),
        (
            lambda: ds.ragged(ps.Pad(), "id"),
            "ragged() got Pad(value=0, length=None, truncate=False) for column 'id', which has type int64; expected columns "
            "of lists or arrays.",
        ),
        (
            lambda: ds.split({}, by="id"),
            "split() got {}; expected shares by name, for example {'train': 0.9",
        ),
    ]
    for call, expected in refusals:
        with pytest.raises(ArgumentError) as caught:
            call()
        assert expected in str(caught.value)
    with pytest.raises(IndexError, match="Row 10 is not among the 10 rows"):
        ds[10]
    assert "id" in ds.schema
    assert "q" not in ds.schema


@pytest.mark.parametrize("row", [10, -11, 2**63, 2**64 - 1, 10**30, -(10**30)])
def test_a_row_beyond_the_end_raises(ds: ps.Dataset, row: int) -> None:
    """A row number out of range raises RowNotFoundError, alone and among others, even if it does not fit 64 bits."""
    for call in (lambda: ds[row], lambda: ds.take([0, row]), lambda: ds.take([-1, row])):
        with pytest.raises(RowNotFoundError) as caught:
            call()
        assert str(caught.value) == (
            f"Row {row} is not among the 10 rows of memory:example. Rows count from 0, or from -1 backwards."
        )


def test_a_column_of_a_map_in_an_earlier_clause_raises(ds: ps.Dataset) -> None:
    """The error of an unknown column explains that maps run last, if the dataset has a map."""
    mapped = ds.map(lambda row: {**row, "zz": row["id"]})
    hint = (
        "Columns: id, x, label. Print `ds.schema` to see their types. Maps run last, whatever the order of calls, so only "
        "later maps can use a column that a map returns. Return the columns that you want from the map."
    )
    calls: list[Callable[[ps.Dataset], Any]] = [
        lambda ds: ds.select("zz"),
        lambda ds: ds.where(ps.col("zz") > 3),
        lambda ds: ds.where(("zz", ">", 3)),
        lambda ds: ds.split({"a": 0.5}, by="zz"),
        lambda ds: ds.stack("v", ["zz"]),
        lambda ds: ds.nulls(ps.Mask(), "zz"),
        lambda ds: ds.sequence(ps.Sequence(length=2, by="zz")),
        lambda ds: ds.sequence(ps.Sequence(offsets={0: ["zz"]}, by="id")),
    ]
    for call in calls:
        with pytest.raises(ColumnNotFoundError) as caught:
            call(mapped)
        assert str(caught.value) == f"Column 'zz' is not in memory:example. {hint}"
        with pytest.raises(ColumnNotFoundError) as caught:
            call(ds)
        assert str(caught.value).endswith("Print `ds.schema` to see their types.")


def test_declared_types_of_a_map_are_checked(ds: ps.Dataset) -> None:
    """A map that returns another dtype than its declared field raises an error."""
    mismatched = ds.batch(2).map(lambda batch: {"y": batch["id"]}, fields=[ps.Field("y", np.float32)])
    with pytest.raises(MapError, match="returned int64 of shape"):
        next(iter(mismatched))


def test_lists_stay_lists_in_a_map_of_rows() -> None:
    """Lists stay objects, even if all lists of a batch have the same length."""
    ds = MemoryFormat.of({"t": [[1, 2], [3, 4], [5], [6, 7, 8]]}, row_group_rows=4).open().batch(2)

    assert [batch["t"].dtype for batch in ds.map(lambda row: row, per_row=True)] == [np.dtype(object)] * 2


def test_text_views_can_be_filtered_and_shuffled() -> None:
    """String views are read as plain text, because Arrow cannot select rows of views."""
    text = pa.array([f"t{number}" for number in range(8)], pa.string_view())
    ds = MemoryFormat.of(pa.table({"id": range(8), "t": text}), row_group_rows=3).open()

    assert {int(row["id"]): row["t"] for row in ds.where(ps.col("t") != "t3").shuffle()} == {
        n: f"t{n}" for n in range(8) if n != 3
    }
    assert sum(part.num_rows for part in ds.split({"a": 0.5, "b": 0.5}, by="t").values()) == 8


def test_policies_produce_the_columns_of_the_schema() -> None:
    """Null and ragged policies produce the columns of the schema; policies that need a batch raise an error without one."""
    table = pa.table({"n": pa.array([1, None, 3], pa.int32()), "t": [[1], [2, 3], []]})
    ds = MemoryFormat.of(table, row_group_rows=2).open()
    masked = ds.nulls(ps.Mask(), "n").ragged(ps.Pad(9, length=2), "t")
    batch = next(iter(masked.batch(3)))

    assert {name: values.tolist() for name, values in batch.items()} == {
        "n": [1, 0, 3],
        "n_valid": [True, False, True],
        "t": [[1, 9], [2, 3], [9, 9]],
        "t_length": [1, 2, 0],
    }
    assert masked.schema.names == tuple(batch)
    flat = next(iter(ds.nulls(ps.Fill(7), "n").ragged(ps.Offsets(), "t").batch(3).map(lambda b: b)))
    assert (flat["n"].tolist(), flat["t"].tolist(), flat["t_offsets"].tolist()) == ([1, 7, 3], [1, 2, 3], [0, 1, 3, 3])
    assert masked[1]["t"].tolist() == [2, 3]
    with pytest.raises(ArgumentError, match=r"depends on the other rows of a batch"):
        iter(ds.ragged(ps.Offsets(), "t"))
    with pytest.raises(ArgumentError, match=r"column 't' has the policy Offsets\(\), which needs a batch"):
        ds.select("t").ragged(ps.Offsets(), "t")[1]
    assert ds.select("t").ragged(ps.Offsets(), "t").take([1])["t"].tolist() == [2, 3]
    assert ds.select("n").nulls(ps.Fill(7), "n").ragged(ps.Offsets(), "t")[1] == {"n": 7}
    with pytest.raises(ArgumentError, match='does not combine with last="pad" or a lazy filter'):
        ds.ragged(ps.Offsets(), "t").batch(2, last="pad")
    assert repr(masked) == (
        f"penstock.open('{ds.schema.name}').nulls(Mask(), 'n').ragged(Pad(value=9, length=2, truncate=False), 't')"
    )


def test_columns_of_policies_must_be_text(ds: ps.Dataset) -> None:
    """A column that is not text raises an error in `nulls` and `ragged`."""
    number: Any = 0

    with pytest.raises(ArgumentError, match=r"nulls\(\) got 0 as a column; expected names or regular expressions"):
        ds.nulls(ps.Mask(), number)
    with pytest.raises(ArgumentError, match=r"ragged\(\) got 0 as a column; expected names or regular expressions"):
        ds.ragged(ps.Pad(), number)


def test_stacks_have_the_values_of_their_columns(ds: ps.Dataset) -> None:
    """Stacks are correct in every order, across windows, and with or without text columns."""
    for dataset in (ds, ds.select("id", "x")):
        for order in (ps.InOrder(), ps.WindowShuffle(rows=4), ps.ExactShuffle(rows=3)):
            seen = []
            for batch in dataset.shuffle(order, seed=2).stack("both", ["id", "x"]).batch(3, last="uneven"):
                assert batch["both"].shape == (len(batch["both"]), 2)
                seen += [(float(one), float(two)) for one, two in batch["both"]]
            assert sorted(seen) == [(float(number), number / 2) for number in range(10)]


def test_options_that_are_not_passed_stay_unchanged(ds: ps.Dataset) -> None:
    """Calls of `using` combine; `workers="threads"` also resets the number of processes."""
    combined = ds.using(threads=3, checksums=True).using(memory_limit=1 << 28).using(processes=2, timeout=5)._query
    reset = ds.using(threads=3, processes=2).using(workers="threads", checksums=False)._query

    assert (combined.threads, combined.checksums, combined.memory_limit) == (3, True, 1 << 28)
    assert (combined.workers, combined.processes, combined.timeout) == ("processes", 2, 5.0)
    assert (reset.workers, reset.processes, reset.threads, reset.checksums) == ("threads", None, 3, False)


def test_selecting_a_column_of_a_policy_raises_with_its_source() -> None:
    """A column that `nulls` adds cannot be selected; the error names the column to select instead."""
    ds = MemoryFormat.of({"n": [1, None]}, row_group_rows=2).open().nulls(ps.Mask(), "n")

    with pytest.raises(ps.errors.ColumnNotFoundError, match=r"Select 'n': 'n_valid' is added to it by \.nulls\(\)"):
        ds.select(*ds.schema.names)
    (batch,) = ds.select("n").batch(2)
    assert batch.keys() == {"n", "n_valid"}


def test_a_map_of_rows_rejects_columns_without_rows() -> None:
    """A map of rows with a column of Offsets raises an error, also if an earlier map returns that column."""
    ds = MemoryFormat([[LISTS]]).open().ragged(ps.Offsets(), "toks").batch(4)

    def row_map(row: Any) -> Any:
        return row

    message = (
        "Column 'toks' comes as Offsets(), which has all values of a batch in one array, and map "
        f"{row_map.__qualname__} is called with one row at a time; expected a map of batches. Leave per_row=True out, or "
        "Offsets()."
    )
    each = ds.map(row_map, per_row=True)
    for dataset in (each, ps.loader(each), ps.mix([(each, 1)]), ps.mix([(ds, 1), (ds, 1)]).map(row_map, per_row=True)):
        with pytest.raises(ArgumentError) as raised:
            next(iter(dataset))
        assert str(raised.value) == message
    with pytest.raises(MapError, match=r"its 4 rows have columns of other lengths \(id: 4, toks: 6, toks_offsets: 5\)"):
        next(iter(ds.map(lambda batch: batch).map(row_map, per_row=True)))
    (counted,) = ds.map(lambda batch: {"n": np.diff(batch["toks_offsets"])}).map(row_map, per_row=True)
    assert counted["n"].tolist() == [3, 1, 0, 2]
    (plain,) = ds.select("id").map(row_map, per_row=True)
    assert plain["id"].tolist() == [0, 1, 2, 3]
