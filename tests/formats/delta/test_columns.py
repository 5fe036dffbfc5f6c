"""The columns of Delta tables: mapped names and ids, changed types, added and dropped fields."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta_logs import Lake, column, metadata, protocol, struct_of
from deltalake import DeltaTable

import penstock as ps
from penstock.errors import ArgumentError, DataError

NAIVE = dt.datetime(2024, 9, 9)  # noqa: DTZ001 - a time without a zone


def with_id(name: str, kind: pa.DataType, number: int) -> pa.Field:
    """Return a file's column with a field id."""
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})


def table(fields: list[pa.Field], *columns: list[Any]) -> pa.Table:
    """Return the rows of a file as a table."""
    return pa.table(
        [pa.array(cells, field.type) for field, cells in zip(fields, columns, strict=True)], schema=pa.schema(fields)
    )


def remove(add: dict[str, Any]) -> dict[str, Any]:
    """Return the action that removes what an action added."""
    return {"remove": {"path": add["add"]["path"], "dataChange": True, "deletionTimestamp": 1}}


def rows(ds: ps.Dataset, by: str = "id") -> list[dict[str, Any]]:
    """Return all rows, sorted by a column."""
    return sorted(ds.to_arrow().to_pylist(), key=lambda row: int(row[by]))


def arrays_of(element: Any) -> dict[str, Any]:
    """Return the type of an array."""
    return {"type": "array", "elementType": element, "containsNull": True}


def maps_of(key: Any, value: Any) -> dict[str, Any]:
    """Return the type of a map."""
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


MAPPED = [
    column("id", "long", number=1, called="c-1"),
    column("b", "string", number=2, called="a"),  # renamed: its stored name is now the name of another column
    column("a", "string", number=3, called="b"),
    column(
        "s",
        struct_of(column("x", "integer", number=5, called="c-5"), column("y", "integer", number=6, called="x")),
        number=4,
        called="c-4",
    ),
    column("l", arrays_of(struct_of(column("n", "string", number=8, called="c-8"))), number=7, called="c-7"),
    column("m", maps_of("string", struct_of(column("n", "long", number=10, called="c-10"))), number=9, called="c-9"),
    column("p", "integer", number=11, called="c-11"),
    column("new", "double", number=12, called="c-12"),
]
EXPECTED = {
    "id": 1,
    "b": "from a",
    "a": "from b",
    "s": {"x": 5, "y": 6},
    "l": [{"n": "l"}, None],
    "m": [("k", {"n": 7})],
    "p": 3,
    "new": None,
}


def mapped_file(*, names: bool) -> pa.Table:
    """Return a file of the mapped table, either with its stored names or with ids and other names."""

    def field(name: str, kind: pa.DataType, number: int) -> pa.Field:
        return with_id(name if names else f"other-{number}", kind, number)

    inner = pa.struct([field("x", pa.int32(), 6), field("dropped", pa.int32(), 99), field("c-5", pa.int32(), 5)])
    first, dropped, second = (inner.field(at).name for at in range(3))
    element = pa.struct([field("c-8", pa.string(), 8)])
    value = pa.struct([field("c-10", pa.int32(), 10)])
    fields = [
        field("c-7", pa.list_(element), 7),
        field("b", pa.string(), 3),
        field("a", pa.string(), 2),
        field("c-1", pa.int64(), 1),
        field("c-4", inner, 4),
        field("c-9", pa.map_(pa.string(), value), 9),
        field("gone", pa.string(), 98),
    ]
    cells: list[Any] = [[{element.field(0).name: "l"}, None], "from b", "from a", 1, {first: 6, dropped: 0, second: 5}]
    cells += [[("k", {value.field(0).name: 7})], "gone"]
    return table(fields, *([cell] for cell in cells))


def mapped(path: Path, mode: str, *, names: bool, reader: int | None = None, **parquet: Any) -> Lake:
    """Write a table whose columns are mapped by name or by id."""
    lake = Lake(path)
    features = () if reader == 2 else ("columnMapping",)
    add = lake.add("0.parquet", mapped_file(names=names), partition={"c-11": "3"}, parquet=parquet)
    lake.commit(0, protocol(*features, reader=reader), metadata(MAPPED, ["p"], delta__columnMapping__mode=mode), add)
    return lake


@pytest.mark.parametrize("reader", [2, None])
def test_mapped_names_are_followed_everywhere(tmp_path: Path, reader: int | None) -> None:
    """Mapped names apply to columns, nested fields and partition values, even if two columns swapped their names."""
    ds = ps.open(mapped(tmp_path / "t", "name", names=True, reader=reader).path)

    assert rows(ds) == [EXPECTED]
    assert ds.schema.names == tuple(EXPECTED)
    assert ds.where(ps.col("a") == "from b", ps.col("s")["y"] == 6, ps.col("p") == 3).num_rows == 1
    assert ds.where(ps.col("a") == "from a").num_rows == 0
    assert rows(ds.select("id", "m"))[0] == {"id": 1, "m": [("k", {"n": 7})]}


@pytest.mark.parametrize("names", [True, False])
def test_ids_are_followed_everywhere(tmp_path: Path, names: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """In id mode, columns and nested fields are found by the field ids of a file, whatever their names."""
    lake = mapped(tmp_path / "t", "id", names=names, store_schema=False)  # as writers other than Arrow do
    ds = ps.open(lake.path)

    assert rows(ds) == [EXPECTED]
    assert (ds[0]["a"], ds[0]["b"], ds[0]["p"]) == ("from b", "from a", 3)
    assert ds.where(ps.col("l").is_not_null()).num_rows == 1
    assert ds.where(ps.col("a") == "from b", ps.col("s")["y"] == 6, ps.col("p") == 3).num_rows == 1
    assert [row["b"] for row in ds.select("b").shuffle(seed=1)] == ["from a"]


def test_delta_rs_reads_the_same_rows_of_mapped_columns(tmp_path: Path) -> None:
    """delta-rs reads the same rows of a table with mapped names."""
    lake = mapped(tmp_path / "t", "name", names=True)

    assert pa.table(DeltaTable(lake.path).scan()).to_pylist() == rows(ps.open(lake.path))


def test_row_groups_are_not_pruned_by_a_column_with_another_id(tmp_path: Path) -> None:
    """Row groups are not pruned by the statistics of a column that has the right name but another field id."""
    lake = Lake(tmp_path / "t")
    fields = [column("a", "long", number=1, called="a"), column("b", "long", number=2, called="b")]
    crossed = table([with_id("b", pa.int64(), 1), with_id("a", pa.int64(), 2)], [10] * 40, list(range(40)))
    add = lake.add("0.parquet", crossed, stats=None, parquet={"row_group_size": 10})
    lake.commit(0, protocol("columnMapping"), metadata(fields, delta__columnMapping__mode="id"), add)
    ds = ps.open(lake.path)

    assert ds.where(ps.col("a") == 10).num_rows == 40
    assert ds.where(ps.col("b") >= 35).num_rows == 5
    assert rows(ds.where(ps.col("b") == 7), "b") == [{"a": 10, "b": 7}]


def test_a_file_without_ids_is_refused_in_id_mode(tmp_path: Path) -> None:
    """A file without field ids raises DataError in id mode, because all its columns would be null."""
    lake = Lake(tmp_path / "t")
    add = lake.add("0.parquet", pa.table({"a": [1]}))
    entry = metadata([column("a", "long", number=1, called="a")], delta__columnMapping__mode="id")
    lake.commit(0, protocol("columnMapping"), entry, add)

    with pytest.raises(DataError, match=r"0\.parquet: the columns have no ids, but the table identifies columns by id"):
        ps.open(lake.path).to_arrow()


def test_column_mapping_applies_only_if_the_protocol_has_it(tmp_path: Path) -> None:
    """Column mapping applies only if the protocol has it, and an unknown mapping mode raises DataError."""
    lake = Lake(tmp_path / "t")
    fields = [column("a", "long", number=1, called="other")]
    add = lake.add("0.parquet", pa.table({"a": [1], "other": [2]}))
    lake.commit(0, protocol(), metadata(fields, delta__columnMapping__mode="name"), add)
    lake.commit(1, protocol("columnMapping"))
    lake.commit(2, metadata(fields, delta__columnMapping__mode="by sight"))

    assert ps.open(lake.path, version=0).to_arrow()["a"].to_pylist() == [1]
    assert ps.open(lake.path, version=1).to_arrow()["a"].to_pylist() == [2]
    with pytest.raises(DataError, match="maps columns by 'by sight'"):
        ps.open(lake.path)


def features(reader: int, *, readers: Sequence[str] = (), writers: Sequence[str] = ()) -> dict[str, Any]:
    """Return a protocol action with separate features for readers and for writers."""
    entry: dict[str, Any] = {"minReaderVersion": reader, "minWriterVersion": 7, "writerFeatures": list(writers)}
    return {"protocol": entry | ({"readerFeatures": list(readers)} if reader == 3 else {})}


@pytest.mark.parametrize("mode", ["name", "id", "NAME"])
@pytest.mark.parametrize("reader", [2, 3])
def test_column_mapping_applies_if_it_is_only_a_writer_feature(tmp_path: Path, reader: int, mode: str) -> None:
    """A mapping that is only a writer feature applies to rows, filters, single rows, changes and checkpoints."""
    lake = Lake(tmp_path / "t")
    entry = features(reader, readers=["deletionVectors"], writers=["columnMapping", "icebergCompatV1", "deletionVectors"])
    data = mapped_file(names=True)
    stats = {
        "numRecords": 1,
        "minValues": {"c-1": 1, "a": "from a"},
        "maxValues": {"c-1": 1, "a": "from a"},
        "nullCount": {"b": 0},
    }
    adds = [
        lake.add(f"{at}.parquet", data, partition={"c-11": "3"}, stats=stats, parquet={"store_schema": False})
        for at in range(2)
    ]
    start = [entry, metadata(MAPPED, ["p"], delta__columnMapping__mode=mode)]
    lake.commit(0, *start, adds[0])
    lake.commit(1, adds[1])

    def check() -> None:
        ds = ps.open(lake.path)
        assert rows(ds) == [EXPECTED, EXPECTED]
        assert (ds[1]["a"], ds[1]["b"], ds[1]["s"]["y"]) == ("from b", "from a", 6)
        assert ds.where(ps.col("b") == "from a", ps.col("s")["y"] == 6, ps.col("p") == 3).num_rows == 2
        assert ds.where(ps.col("b") == "from b").num_rows == 0
        assert ds.where(ps.col("new").is_null()).num_rows == 2
        assert rows(ps.changes(lake.path, 0)) == [EXPECTED]

    check()
    lake.parquet(f"{1:020d}.checkpoint.parquet", [*start, *adds])
    check()
    with pytest.raises(
        ArgumentError,
        match=r"has rules for writers that Penstock does not support: icebergCompatV1, delta\.columnMapping\.mode",
    ):
        ps.write(lake.path, data={"id": [2]}, format="delta", mode="append")


MISSING = "Nulls would be wrong"
"""A part of the message for a column that a file should have."""


@pytest.mark.parametrize(
    "entry",
    [
        protocol(),
        features(1, writers=["columnMapping"]),
        features(3, readers=["deletionVectors"], writers=["deletionVectors"]),
    ],
)
@pytest.mark.parametrize("stats", ["rows", None])
def test_stored_names_are_refused_without_column_mapping(tmp_path: Path, entry: dict[str, Any], stats: Any) -> None:
    """Without column mapping in the protocol, files and partition values under stored names raise DataError."""
    lake = Lake(tmp_path / "t")
    fields = [column("a", "long", number=1, called="col-1"), column("p", "long", number=2, called="col-2")]
    add = lake.add("0.parquet", pa.table({"col-1": [1]}), stats=stats)
    lake.commit(0, entry, metadata(fields, delta__columnMapping__mode="name"), add)
    lake.commit(
        1,
        metadata(fields, ["p"], delta__columnMapping__mode="name"),
        lake.add("1.parquet", pa.table({"a": [1]}), partition={"col-2": "7"}),
    )

    match = r"0\.parquet: .*no column 'a'.* version 0.*'col-1', .*not have column mapping.* The file has: col-1\. Nulls would"
    with pytest.raises(DataError, match=match):
        ps.open(lake.path, version=0).to_arrow()
    with pytest.raises(DataError, match=r"partition column 'p' .* has no value under 'p' .*'col-2'"):
        ps.open(lake.path)


@pytest.mark.parametrize("stats", [None, "rows", {"numRecords": 2, "nullCount": {"label": 0}}])
@pytest.mark.parametrize("ask", ["all", "filter", "pick", "changes", "batch", "is null"])
def test_a_file_with_logical_names_is_refused_under_a_mapping(tmp_path: Path, stats: Any, ask: str) -> None:
    """A file with logical names in a mapped table raises DataError, because its values would silently be null."""
    lake = Lake(tmp_path / "t")
    fields = [column("id", "long", number=1, called="id"), column("label", "string", number=2, called="col-2")]
    add = lake.add("0.parquet", pa.table({"id": [1, 2], "label": ["x", "y"]}), stats=stats)
    entry = metadata(fields, delta__columnMapping__mode="name", delta__columnMapping__maxColumnId="2")
    lake.commit(0, protocol("columnMapping"), metadata(fields, delta__columnMapping__mode="name"))
    lake.commit(1, entry, add)
    ds = ps.open(lake.path)
    ways: dict[str, Callable[[], object]] = {
        "all": ds.to_arrow,
        "filter": lambda: ds.where(ps.col("label") == "x").num_rows,
        "is null": lambda: ds.where(ps.col("label").is_null()).num_rows,
        "pick": lambda: ds.take([0]),
        "changes": lambda: ps.changes(lake.path, 0).to_arrow(),
        "batch": lambda: list(ds.shuffle(seed=1).batch(2)),
    }

    assert ds.select("id").to_arrow()["id"].to_pylist() == [1, 2]
    with pytest.raises(
        DataError, match=r"0\.parquet: .*no column 'col-2', .* column 'label' of .* The file has: id, label\. Nulls"
    ):
        ways[ask]()


def test_a_column_that_was_dropped_and_added_again_is_null_in_older_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A re-added column is null in older files, with a warning if they lack ids; its current id under another name raises."""
    lake = Lake(tmp_path / "t")
    fields = [column("id", "long", number=1, called="id"), column("a", "string", number=3, called="col-3")]
    old = table([with_id("id", pa.int64(), 1), with_id("a", pa.string(), 2)], [1], ["dropped"])
    adds = [lake.add("0.parquet", old), lake.add("1.parquet", pa.table({"id": [2], "a": ["dropped"]}))]
    options = {"delta__columnMapping__mode": "name", "delta__columnMapping__maxColumnId": "3"}
    lake.commit(0, protocol("columnMapping"), metadata(fields, **options), *adds)

    assert rows(ps.open(lake.path)) == [{"id": 1, "a": None}, {"id": 2, "a": None}]
    (record,) = caplog.records
    assert re.search(r"1\.parquet: .*'a' of .* is null in it, but it has 'a' without a field id\.", record.getMessage())

    same = table([with_id("id", pa.int64(), 1), with_id("a", pa.string(), 3)], [1], ["not dropped"])
    lake.commit(1, lake.add("2.parquet", same))
    with pytest.raises(DataError, match=r"2\.parquet: .*'a' with its id 3.*Nulls would be wrong"):
        ps.open(lake.path).to_arrow()


def test_a_file_without_any_current_column_needs_dropped_columns(tmp_path: Path) -> None:
    """A file without any current column gives nulls if the table ever dropped columns, and raises DataError otherwise."""
    lake = Lake(tmp_path / "t")
    fields = [column("b", "long", number=2, called="col-2")]
    add = lake.add("0.parquet", table([with_id("a", pa.int64(), 1)], [1, 2]))
    options = {"delta__columnMapping__mode": "name", "delta__columnMapping__maxColumnId": "2"}
    lake.commit(0, protocol("columnMapping"), metadata(fields, **options), add)
    lake.commit(1, metadata(fields, delta__columnMapping__mode="name", delta__columnMapping__maxColumnId="1"))

    assert ps.open(lake.path, version=0).to_arrow()["b"].to_pylist() == [None, None]
    with pytest.raises(DataError, match=r"0\.parquet: .*it has none of the table's columns.*The file has: a\. Nulls"):
        ps.open(lake.path).to_arrow()
    lake.commit(2, protocol(), metadata([column("b", "long")]))
    with pytest.raises(DataError, match=r"it has none of the table's columns"):
        ps.open(lake.path).to_arrow()


@pytest.mark.parametrize("mode", ["none", "name", "id"])
@pytest.mark.parametrize(
    ("stats", "why"),
    [
        ({"numRecords": 2, "nullCount": {"col-2": 1}}, "the log says that 1 of its 2 values are null"),
        ({"numRecords": 2, "minValues": {"col-2": 5}, "maxValues": {"col-2": 5}}, "the log says that its least value is 5"),
        ({"numRecords": 2, "maxValues": {"col-2": 5}}, "the log says that its greatest value is 5"),
    ],
)
def test_a_missing_column_with_statistics_raises(tmp_path: Path, mode: str, stats: Any, why: str) -> None:
    """A file without a column or struct field raises DataError if the log's statistics say that it has values."""
    lake = Lake(tmp_path / "t")
    inner = struct_of(column("y", "long", number=4, called="col-4"), column("x", "long", number=5, called="col-2"))
    fields = [
        column("id", "long", number=1, called="id"),
        column("x", "long", number=2, called="col-2"),
        column("s", inner, number=3, called="s"),
    ]
    if mode == "none":
        stats = json.loads(json.dumps(stats).replace("col-2", "x"))
    name = "col-4" if mode != "none" else "y"
    kind = pa.struct([with_id(name, pa.int64(), 4)])
    data = table([with_id("id", pa.int64(), 1), with_id("s", kind, 3)], [1, 2], [{name: 1}, {name: 2}])
    inside = {key: {"s": value} if isinstance(value, dict) else value for key, value in stats.items()}
    adds = [
        lake.add(f"{at}.parquet", data, stats=entry, parquet={"store_schema": False})
        for at, entry in enumerate((stats, inside))
    ]
    start = [protocol("columnMapping"), metadata(fields, delta__columnMapping__mode=mode)]
    lake.commit(0, *start, adds[0])
    lake.commit(1, remove(adds[0]), adds[1])

    with pytest.raises(
        DataError, match=rf"0\.parquet: .*column 'x' of .* version 0, but .*{why}.* The file has: id, s\. {MISSING}"
    ):
        ps.open(lake.path, version=0).to_arrow()
    with pytest.raises(DataError, match=rf"1\.parquet: .*column 's\.x' of .* version 1, but .*{why}.* {MISSING}"):
        ps.open(lake.path, version=1).to_arrow()
    least = ps.open(lake.path, version=0).where(ps.col("x") == 5)
    with pytest.raises(DataError, match=MISSING):
        least.to_arrow()
    assert ps.open(lake.path).select("id").to_arrow()["id"].to_pylist() == [1, 2]


@pytest.mark.parametrize("mode", ["none", "name", "id"])
@pytest.mark.parametrize("lacks", ["tags", "pairs", "s", "s.tags"])
def test_a_missing_list_or_map_with_null_counts_raises(tmp_path: Path, mode: str, lacks: str) -> None:
    """A file without a list, map or struct raises DataError if the log's null counts say that it has values."""
    lake, prefix = Lake(tmp_path / "t"), "" if mode == "none" else "col-"
    tags = {"type": "array", "elementType": "long", "containsNull": True}
    pairs = {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}

    def field(name: str, kind: Any, number: int) -> dict[str, Any]:
        return column(name, kind, number=number, called=prefix + name)

    inner = struct_of(field("tags", tags, 5), field("y", "long", 6))
    fields = [field("id", "long", 1), field("tags", tags, 2), field("pairs", pairs, 3), field("s", inner, 4)]
    inside = [with_id(prefix + "y", pa.int64(), 6)]
    if lacks != "s.tags":
        inside.append(with_id(prefix + "tags", pa.list_(pa.int64()), 5))
    has = {
        "id": with_id(prefix + "id", pa.int64(), 1),
        "tags": with_id(prefix + "tags", pa.list_(pa.int64()), 2),
        "pairs": with_id(prefix + "pairs", pa.map_(pa.string(), pa.int64()), 3),
        "s": with_id(prefix + "s", pa.struct(inside), 4),
    }
    schema = pa.schema([one for name, one in has.items() if name != lacks] + [with_id("else", pa.int64(), 9)])
    nulls = {prefix + "id": 0, prefix + "tags": 0, prefix + "pairs": 1, prefix + "s": {prefix + "tags": 1, prefix + "y": 2}}
    data = schema.empty_table().from_arrays([pa.nulls(2, one.type) for one in schema], schema=schema)
    add = lake.add("0.parquet", data, stats={"numRecords": 2, "nullCount": nulls}, parquet={"store_schema": False})
    lake.commit(0, protocol("columnMapping"), metadata(fields, delta__columnMapping__mode=mode), add)

    called, counted = prefix + lacks.replace(".", f".{prefix}"), 0 if lacks == "tags" else 1
    match = rf"0\.parquet: the file has no column '{called}'.* the log says that {counted} of its 2 values are null.*{MISSING}"
    with pytest.raises(DataError, match=match):
        ps.open(lake.path).to_arrow()
    with pytest.raises(DataError, match=match):
        ps.open(lake.path).select(lacks.split(".", maxsplit=1)[0]).take([0])


def test_null_counts_of_lists_prune_no_file_with_selected_rows(tmp_path: Path) -> None:
    """Null counts of lists prune no file with selected rows, because some writers also count the nulls inside lists."""
    lake = Lake(tmp_path / "t")
    tags = {"type": "array", "elementType": "long", "containsNull": True}
    cells: list[Any] = [[None, [None, None]], [[1], []], [None, None], [None, [2]]]
    files = [pa.table({"id": [at, 10 + at], "tags": pa.array(some, pa.list_(pa.int64()))}) for at, some in enumerate(cells)]
    stated: list[Any] = [2, 0, 2, {"element": 0}]
    adds = [
        lake.add(f"{at}.parquet", rows, stats={"numRecords": 2, "nullCount": {"tags": stated[at]}})
        for at, rows in enumerate(files)
    ]
    lake.commit(0, protocol(), metadata([column("id", "long"), column("tags", tags)]), *adds)
    ds = ps.open(lake.path)

    assert ds.where(ps.col("tags").is_null()).to_arrow()["id"].to_pylist() == [0, 2, 12, 3]
    assert ds.where(ps.col("tags").is_not_null()).to_arrow()["id"].to_pylist() == [10, 1, 11, 13]


@pytest.mark.parametrize("size", [1, 100_000])
def test_a_filter_on_a_missing_column_with_statistics_raises(tmp_path: Path, size: int) -> None:
    """A filter on a missing column with statistics raises DataError, both for a tiny file and for a large one."""
    lake = Lake(tmp_path / "t")
    stats = {"numRecords": size, "nullCount": {"x": 0}}
    add = lake.add("0.parquet", pa.table({"id": range(size), "y": range(size)}), stats=stats)
    lake.commit(0, protocol(), metadata([column("id", "long"), column("x", "long")]), add)

    with pytest.raises(DataError, match=rf"no column 'x'.*{MISSING}"):
        ps.open(lake.path).where(ps.col("x") == 5).select("id").to_arrow()


def test_a_missing_column_with_statistics_warns_if_no_other_column_fits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If a file has no other column, a missing column with statistics is null, and one warning is logged."""
    lake = Lake(tmp_path / "t")
    stats = {"numRecords": 2, "nullCount": {"x": 0}}
    adds = [lake.add(f"{at}.parquet", pa.table({"id": [at, 2]}), stats=stats) for at in range(3)]
    lake.commit(0, protocol(), metadata([column("id", "long"), column("x", "long")]), *adds)
    found = ps.open(lake.path).to_arrow()["x"].to_pylist()

    assert found == [None] * 6
    (record,) = caplog.records
    assert record.name == "penstock"
    assert "0.parquet: the file has no column 'x', so column 'x' of" in record.message
    assert "is null in it, but the log says that 0 of its 2 values are null" in record.message


def test_a_missing_column_that_is_not_nullable_raises(tmp_path: Path) -> None:
    """A missing column that is not nullable raises DataError, also inside structs, lists and maps."""
    lake = Lake(tmp_path / "t")
    never = {**column("x", "long"), "nullable": False}
    inner = struct_of(column("y", "long"), never)
    fields = [
        column("id", "long"),
        column("s", inner),
        column("l", arrays_of(inner)),
        column("m", maps_of("string", inner)),
        never,
    ]
    rows_of = {
        "id": [1],
        "s": [{"y": 1}],
        "l": [[{"y": 1}]],
        "m": pa.array([[("k", {"y": 1})]], pa.map_(pa.string(), pa.struct({"y": pa.int64()}))),
    }
    lake.commit(0, protocol(), metadata(fields), lake.add("0.parquet", pa.table(rows_of)))
    ds = ps.open(lake.path)

    for name, dotted in {"x": "x", "s": r"s\.x", "l": r"l\.element\.x", "m": r"m\.value\.x"}.items():
        with pytest.raises(DataError, match=rf"column '{dotted}' of .*it may not be null.*{MISSING}"):
            ds.select(name).to_arrow()
        with pytest.raises(DataError, match=MISSING):
            ds.select(name).take([0])
    assert ds.select("id").to_arrow()["id"].to_pylist() == [1]


def test_a_nested_field_with_a_logical_name_is_refused_under_a_mapping(tmp_path: Path) -> None:
    """Nested fields with logical names in a mapped table raise DataError, in structs and in lists."""
    lake = Lake(tmp_path / "t")
    inner = struct_of(column("x", "long", number=3, called="col-3"))
    fields = [
        column("id", "long", number=1, called="col-1"),
        column("s", inner, number=2, called="col-2"),
        column("l", arrays_of(inner), number=4, called="col-4"),
    ]
    kind = pa.struct({"x": pa.int64()})
    data = table(
        [pa.field("col-1", pa.int64()), pa.field("col-2", kind), pa.field("col-4", pa.list_(kind))],
        [1],
        [{"x": 1}],
        [[{"x": 1}]],
    )
    lake.commit(0, protocol("columnMapping"), metadata(fields, delta__columnMapping__mode="name"), lake.add("0.parquet", data))

    with pytest.raises(DataError, match=rf"no column 'col-2\.col-3', .* column 's\.x' of .* The file has: .*x.*{MISSING}"):
        ps.open(lake.path).select("s").to_arrow()
    with pytest.raises(DataError, match=rf"column 'l\.element\.x' of .*{MISSING}"):
        ps.open(lake.path).select("l").to_arrow()


@pytest.mark.parametrize("mode", ["none", "name", "id"])
def test_a_new_column_without_values_is_null(tmp_path: Path, mode: str) -> None:
    """A new column is null in older files if their statistics are absent, omit it or count only nulls."""
    lake = Lake(tmp_path / "t")
    new = column("new", struct_of(column("x", "long", number=4, called="col-4")), number=3, called="col-3")
    fields = [column("id", "long", number=1, called="id"), column("plain", "long", number=2, called="col-2"), new]
    data = [table([with_id("id", pa.int64(), 1)], [at]) for at in range(4)]
    stats: list[Any] = [None, "rows", {"numRecords": 1, "nullCount": {"id": 0, "col-2": 1, "col-3": {"col-4": 1}}}]
    stats.append({"numRecords": 1, "minValues": {"id": 3}, "maxValues": {"id": 3}, "nullCount": {"id": 0}})
    adds = [lake.add(f"{at}.parquet", data[at], stats=stats[at], parquet={"store_schema": False}) for at in range(4)]
    options = {"delta__columnMapping__mode": mode, "delta__columnMapping__maxColumnId": "4"}
    lake.commit(0, protocol("columnMapping"), metadata(fields, **options), *adds)
    ds = ps.open(lake.path)

    assert rows(ds) == [{"id": at, "plain": None, "new": None} for at in range(4)]
    assert ds.where(ps.col("plain").is_null(), ps.col("new.x").is_null()).num_rows == 4
    assert [row["id"] for row in rows(ds.select("id").where(ps.col("plain").is_null()))] == [0, 1, 2, 3]
    assert ds.where(ps.col("plain") == 1).num_rows == 0


@pytest.mark.parametrize("mode", ["name", "id"])
def test_a_partition_value_under_a_logical_name_is_refused_under_a_mapping(tmp_path: Path, mode: str) -> None:
    """A partition value under a logical name raises DataError in a mapped table, from commits and from checkpoints."""
    lake = Lake(tmp_path / "t")
    fields = [column("id", "long", number=1, called="id"), column("p", "long", number=2, called="col-2")]
    data = table([with_id("id", pa.int64(), 1)], [1])
    add = lake.add("0.parquet", data, partition={"col-2": None}, parquet={"store_schema": False})
    lake.commit(0, protocol("columnMapping"), metadata(fields, ["p"], delta__columnMapping__mode=mode), add)
    assert rows(ps.open(lake.path)) == [{"id": 1, "p": None}]

    lake.commit(1, lake.add("1.parquet", data, partition={"p": "3"}))
    match = r"partition column 'p' of the table has no value under 'col-2' .*/1\.parquet, and one under 'p'"
    for _ in range(2):
        with pytest.raises(DataError, match=match):
            ps.open(lake.path)
        lake.parquet(
            f"{1:020d}.checkpoint.parquet",
            [
                protocol("columnMapping"),
                metadata(fields, ["p"], delta__columnMapping__mode=mode),
                add,
                lake.add("1.parquet", data, partition={"p": "3"}),
            ],
        )


def change(before: str, after: str, path: str | None = None) -> dict[str, Any]:
    """Return the field metadata that records a type change."""
    return {"delta.typeChanges": [{"fromType": before, "toType": after, **({"fieldPath": path} if path else {})}]}


WIDENED: list[tuple[str, str, pa.DataType, Any, Any]] = [
    ("byte", "short", pa.int8(), -3, -3),
    ("short", "integer", pa.int16(), 300, 300),
    ("integer", "long", pa.int32(), -(2**31), -(2**31)),
    ("float", "double", pa.float32(), 3.4, float(np.float32(3.4))),
    ("byte", "double", pa.int8(), 5, 5.0),
    ("integer", "double", pa.int32(), 2**31 - 1, 2.0**31 - 1),
    ("date", "timestamp_ntz", pa.date32(), dt.date(2024, 9, 9), NAIVE),
    ("decimal(6,2)", "decimal(10,4)", pa.decimal128(6, 2), Decimal("1.25"), Decimal("1.2500")),
    ("integer", "decimal(12,2)", pa.int32(), -7, Decimal("-7.00")),
    ("long", "decimal(20,0)", pa.int64(), -(2**63), Decimal(-(2**63))),
]


@pytest.mark.parametrize(("before", "after", "kind", "stored", "expected"), WIDENED)
def test_widened_columns_give_wider_values(
    tmp_path: Path, before: str, after: str, kind: pa.DataType, stored: Any, expected: Any
) -> None:
    """A widened column gives values of the new type from older files, also in structs, lists and maps."""
    lake = Lake(tmp_path / "t")
    fields = [
        column("id", "long"),
        column("x", after, change(before, after)),
        column("s", struct_of(column("x", after, change(before, after)))),
        column("l", arrays_of(after), change(before, after, "element")),
        column("m", maps_of("string", after), change(before, after, "value")),
    ]
    old = {
        "id": pa.array([1, 2]),
        "x": pa.array([stored, None], kind),
        "s": pa.array([{"x": stored}, None], pa.struct([("x", kind)])),
        "l": pa.array([[stored, None], None], pa.list_(kind)),
        "m": pa.array([[("k", stored)], None], pa.map_(pa.string(), kind)),
    }
    lake.commit(0, protocol("typeWidening", "timestampNtz"), metadata(fields), lake.add("0.parquet", pa.table(old)))
    ds = ps.open(lake.path)

    row = {"id": 1, "x": expected, "s": {"x": expected}, "l": [expected, None], "m": [("k", expected)]}
    assert rows(ds) == [row, dict.fromkeys(row) | {"id": 2}]
    assert ds.where(ps.col("x") == expected).num_rows == 1
    assert ds.where(ps.col("x") != expected).num_rows == 0


@pytest.mark.parametrize(("before", "after"), [("long", "integer"), ("string", "long"), ("decimal(10,2)", "decimal(10,4)")])
def test_a_type_change_outside_the_protocol_is_refused(tmp_path: Path, before: str, after: str) -> None:
    """A recorded type change that the protocol does not allow raises DataError."""
    lake = Lake(tmp_path / "t")
    lake.commit(0, protocol("typeWidening"), metadata([column("x", after, change(before, after))]))

    with pytest.raises(DataError, match=r"column 'x' was changed from .* to .*, which is no wider type"):
        ps.open(lake.path)


@pytest.mark.parametrize(
    ("kind", "stored"),
    [
        ("integer", pa.array([2**40])),
        ("long", pa.array(["7"])),
        ("float", pa.array([0.1])),
        ("double", pa.array([1])),
        ("string", pa.array([7])),
        ("string", pa.array([b"\xff"])),
        ("date", pa.array([NAIVE])),
        ("boolean", pa.array([1])),
        (struct_of(column("x", "long")), pa.array([7])),
        (arrays_of("long"), pa.array([7])),
        ("timestamp", pa.array([1], pa.timestamp("ns"))),
    ],
)
def test_stored_values_that_do_not_fit_the_table_are_refused(tmp_path: Path, kind: Any, stored: pa.Array) -> None:
    """Stored values that do not fit the table's type raise DataError, which names the file and the column."""
    lake = Lake(tmp_path / "t")
    lake.commit(0, protocol(), metadata([column("x", kind)]), lake.add("0.parquet", pa.table({"x": stored})))

    with pytest.raises(DataError, match=r"0\.parquet, column 'x': stored as .*, which does not fit the table's"):
        ps.open(lake.path).to_arrow()


@pytest.mark.parametrize(
    ("kind", "stored", "expected"),
    [
        ("string", pa.array(["a", None], pa.large_string()), "a"),
        ("string", pa.array(["a", None]).dictionary_encode(), "a"),
        ("string", pa.array([b"a", None]), "a"),
        ("binary", pa.array(["a", None]), b"a"),
        ("long", pa.array([7, None], pa.uint32()), 7),
        (arrays_of("long"), pa.array([[7], None], pa.large_list(pa.int32())), [7]),
        (arrays_of("float"), pa.array([[1.5, 2.0], [None, None]], pa.list_(pa.float32(), 2)), [1.5, 2.0]),
        ("timestamp", pa.array([NAIVE, None], pa.timestamp("ms")), dt.datetime(2024, 9, 9, tzinfo=dt.UTC)),
        ("timestamp_ntz", pa.array([NAIVE, None], pa.timestamp("us", "UTC")), NAIVE),
        ("integer", pa.nulls(2), None),
    ],
)
def test_other_layouts_of_the_same_values_are_read(tmp_path: Path, kind: Any, stored: pa.Array, expected: Any) -> None:
    """Other Arrow types that store the same values are read as the table's type."""
    lake = Lake(tmp_path / "t")
    entry = metadata([column("id", "long"), column("x", kind)])
    lake.commit(0, protocol("timestampNtz"), entry, lake.add("0.parquet", pa.table({"id": [0, 1], "x": stored})))

    assert [row["x"] for row in rows(ps.open(lake.path))] == [expected, stored[1].as_py()]


def test_added_columns_are_null_and_dropped_columns_are_left_out(tmp_path: Path) -> None:
    """In older files, added columns and struct fields are null; dropped columns and _change_type are left out."""
    lake = Lake(tmp_path / "t")
    fields = [column("id", "long"), column("s", struct_of(column("y", "long"), column("z", "string"))), column("new", "string")]
    old = pa.table({"id": [1], "s": [{"x": 0, "y": 5}], "dropped": [3], "_change_type": ["insert"]})
    lake.commit(0, protocol(), metadata(fields), lake.add("0.parquet", old))

    assert rows(ps.open(lake.path)) == [{"id": 1, "s": {"y": 5, "z": None}, "new": None}]
    assert ps.open(lake.path).where(ps.col("new").is_null(), ps.col("s")["z"].is_null()).num_rows == 1


def test_defaults_and_generated_columns_are_read_as_they_are_stored(tmp_path: Path) -> None:
    """Identity, generated and default columns are read as stored, and are null in files that lack them."""
    lake = Lake(tmp_path / "t")
    fields = [
        column("id", "long", {"delta.identity.start": 1, "delta.identity.step": 1}),
        column("twice", "long", {"delta.generationExpression": "id * 2"}),
        column("d", "string", {"CURRENT_DEFAULT": "'x'"}),
    ]
    lake.commit(0, protocol(), metadata(fields), lake.add("0.parquet", pa.table({"id": [1], "twice": [3]})))

    assert rows(ps.open(lake.path)) == [{"id": 1, "twice": 3, "d": None}]


def variants(*fields: pa.Field) -> pa.Table:
    """Return the rows of a file whose variant column has these fields."""
    kind = pa.struct(list(fields))
    cell = {"metadata": b"\x01\x00\x00", "value": b"\x0c\x07", "typed_value": None}
    return pa.table({"id": [1, 2], "v": pa.array([{key: cell[key] for key in [f.name for f in fields]}, None], kind)})


def test_a_variant_is_a_struct_of_its_two_parts(tmp_path: Path) -> None:
    """A variant is a struct of metadata and value; a shredded variant raises DataError, and other columns are read."""
    lake = Lake(tmp_path / "t")
    parts = [pa.field("value", pa.binary()), pa.field("metadata", pa.binary())]
    lake.commit(
        0,
        protocol("variantType", "variantShredding-preview"),
        metadata([column("id", "long"), column("v", "variant")]),
        lake.add("0.parquet", variants(*parts)),
    )
    ds = ps.open(lake.path)
    assert rows(ds) == [{"id": 1, "v": {"metadata": b"\x01\x00\x00", "value": b"\x0c\x07"}}, {"id": 2, "v": None}]

    lake.commit(1, lake.add("1.parquet", variants(*parts, pa.field("typed_value", pa.int64()))))
    ds = ps.open(lake.path)
    assert ds.select("id").num_rows == 4
    assert len(ds.select("id").to_arrow()) == 4
    with pytest.raises(DataError, match=r"1\.parquet, column 'v': .* its variants are shredded into columns"):
        ds.to_arrow()


def test_int96_timestamps_reach_every_year(tmp_path: Path) -> None:
    """INT96 timestamps of Spark are read in microseconds, because the year 9999 overflows nanoseconds."""
    lake = Lake(tmp_path / "t")
    moments = [
        dt.datetime(9999, 12, 31, tzinfo=dt.UTC),
        dt.datetime(1, 1, 1, tzinfo=dt.UTC),
        dt.datetime(2024, 9, 9, tzinfo=dt.UTC),
    ]
    file = pa.table({"x": pa.array(moments, pa.timestamp("us", "UTC"))})
    add = lake.add("0.parquet", file, parquet={"use_deprecated_int96_timestamps": True})
    lake.commit(0, protocol(), metadata([column("x", "timestamp")]), add)

    stored = pq.ParquetFile(lake.path / "0.parquet", coerce_int96_timestamp_unit="us").read()["x"].to_pylist()
    assert [value.replace(tzinfo=dt.UTC) for value in stored] == ps.open(lake.path).to_arrow()["x"].to_pylist()
    assert ps.open(lake.path).take([2, 0])["x"].astype("datetime64[Y]").astype(str).tolist() == ["2024", "9999"]


def test_every_type_has_its_arrow_type(tmp_path: Path) -> None:
    """Every type of the protocol, void and user-defined types have an Arrow type."""
    named = (
        "string long integer short byte float double boolean binary date timestamp timestamp_ntz void decimal decimal(38,18)"
    )
    fields = [column(name, name) for name in named.split()]
    fields.append(column("u", {"type": "udt", "class": "x.VectorUDT", "sqlType": struct_of(column("n", "integer"))}))
    lake = Lake(tmp_path / "t")
    lake.commit(0, protocol("timestampNtz"), metadata(fields))
    schema = ps.open(lake.path)._table.snapshot.schema

    first = ["string", "int64", "int32", "int16", "int8", "float", "double", "bool", "binary", "date32[day]"]
    last = ["timestamp[us, tz=UTC]", "timestamp[us]", "null", "decimal128(10, 0)", "decimal128(38, 18)", "struct<n: int32>"]
    assert [str(kind) for kind in schema.types] == first + last
    assert ps.open(lake.path).num_rows == 0


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        (metadata([column("x", "geometry(OGC:CRS84)")]), "the type 'geometry"),
        (metadata([column("x", {"type": "tensor"})]), "the type 'tensor' is not known"),
        (metadata([column("x", "long")], ["y"]), "has no column 'y', by which it is partitioned. Columns: x"),
        (metadata([column("x", "long"), column("x", "long")]), "has two columns called 'x'"),
        ({"metaData": {"schemaString": "{", "partitionColumns": []}}, "the schema in the table's log cannot be read"),
        (
            {"metaData": {"schemaString": json.dumps([1]), "partitionColumns": []}},
            "the schema in the table's log cannot be read",
        ),
        ({"metaData": {"partitionColumns": []}}, "the metadata in the table's log has no schema"),
        ({"metaData": {"schemaString": "{}", "format": {"provider": "orc"}}}, "stores its rows as 'orc'"),
    ],
)
def test_an_invalid_schema_is_refused(tmp_path: Path, entry: dict[str, Any], complaint: str) -> None:
    """An unknown type or an invalid schema raises DataError, which says what is wrong."""
    lake = Lake(tmp_path / "t")
    lake.commit(0, protocol(), entry)

    with pytest.raises(DataError, match=complaint.replace("(", r"\(")):
        ps.open(lake.path)


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        (
            protocol("deletionVectors", "teleport", "flight"),
            "needs unsupported features: flight, teleport. Supported features: ",
        ),
        (protocol("catalogManaged", "vacuumProtocolCheck"), r"is managed by a catalog \(catalogManaged\)"),
        (protocol(reader=4), "needs reader version 4 of Delta's protocol; Penstock supports the versions 1 to 3"),
        ({"protocol": {"minReaderVersion": 5, "readerFeatures": ["teleport"]}}, "version 5 .* with the features teleport"),
        ({"protocol": {}}, "needs reader version None"),
    ],
)
def test_unsupported_reader_features_are_named(tmp_path: Path, entry: dict[str, Any], complaint: str) -> None:
    """Unsupported reader versions and features raise DataError, which names them."""
    lake = Lake(tmp_path / "t")
    lake.commit(0, entry, metadata([column("x", "long")]))

    with pytest.raises(DataError, match=complaint):
        ps.open(lake.path)


def test_writer_features_do_not_prevent_reading(tmp_path: Path) -> None:
    """Features that only writers need do not prevent reading, even if they are unknown."""
    lake = Lake(tmp_path / "t")
    entry = protocol("vacuumProtocolCheck", "v2Checkpoint")
    entry["protocol"]["writerFeatures"] += ["clustering", "rowTracking", "icebergCompatV2", "inCommitTimestamp", "tomorrow"]
    domain = {"domainMetadata": {"domain": "delta.clustering", "configuration": "{}", "removed": False}}
    lake.commit(0, entry, metadata([column("x", "long")]), domain, lake.add("0.parquet", pa.table({"x": [1]})))

    assert ps.open(lake.path).to_arrow()["x"].to_pylist() == [1]


@pytest.fixture
def mixed_case(tmp_path: Path) -> str:
    """Return the path of a table whose second file has its column names in capital letters."""
    lake = Lake(tmp_path / "t")
    fields = [column("id", "long"), column("s", struct_of(column("q", "integer"))), column("later", "string")]
    plain = table([pa.field("id", pa.int64()), pa.field("s", pa.struct([("q", pa.int32())]))], [1, 2], [{"q": 1}, {"q": 2}])
    upper = table([pa.field("ID", pa.int64()), pa.field("S", pa.struct([("Q", pa.int32())]))], [3, 4], [{"Q": 3}, {"Q": 4}])
    adds = [lake.add(name, data, stats=None) for name, data in {"a.parquet": plain, "b.parquet": upper}.items()]
    lake.commit(0, protocol(), metadata(fields), *adds)
    return str(lake.path)


def test_column_names_of_files_may_differ_in_case(mixed_case: str) -> None:
    """Column names of a file may differ in case, for rows, filters and take; a column without a match is null."""
    ds = ps.open(mixed_case)

    assert rows(ds) == [{"id": number, "s": {"q": number}, "later": None} for number in (1, 2, 3, 4)]
    assert [row["id"] for row in rows(ds.where(ps.col("id") >= 2).select("id"))] == [2, 3, 4]
    assert [row["id"] for row in rows(ds.where(ps.col("s.q") == 4).select("id"))] == [4]
    assert ds.select("id").take([3, 0])["id"].tolist() == [4, 1]


def test_column_names_that_are_ambiguous_in_case_raise(tmp_path: Path) -> None:
    """A column or field that several names match in another case raises DataError, which lists these names."""
    lake = Lake(tmp_path / "t")
    both = pa.struct([("Q", pa.int32()), ("qQ", pa.int32()), ("Qq", pa.int32())])
    kinds = [pa.field("ID", pa.int64()), pa.field("Id", pa.int64()), pa.field("s", both), pa.field("t", both)]
    cells = {"Q": 1, "qQ": 2, "Qq": 3}
    inner = {"s": struct_of(column("q", "integer")), "t": struct_of(column("qq", "integer"))}
    fields = [column("id", "long"), *(column(name, kind) for name, kind in inner.items())]
    twice = table(kinds, [1], [2], [cells], [cells])
    lake.commit(0, protocol(), metadata(fields), lake.add("a.parquet", twice))
    ds = ps.open(lake.path)

    with pytest.raises(
        DataError, match=r"a\.parquet.*: the table's column 'id' could be 'ID' or 'Id'; expected one such column\."
    ):
        ds.select("id").to_arrow()
    with pytest.raises(DataError, match=r"a\.parquet.*, column 't': .*'qq' could be 'Qq' or 'qQ'"):
        ds.select("t").to_arrow()
    assert ds.select("s").to_arrow().to_pylist() == [{"s": {"q": 1}}]
