"""The columns of Delta tables: mapped names and ids, changed types, fields that came and went."""

from __future__ import annotations

import datetime as dt
import json
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
from penstock.errors import DataError

NAIVE = dt.datetime(2024, 9, 9)  # noqa: DTZ001 - a time without a zone


def with_id(name: str, kind: pa.DataType, number: int) -> pa.Field:
    """Return a column of a file with an id."""
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})


def table(fields: list[pa.Field], *columns: list[Any]) -> pa.Table:
    """Return rows of a file."""
    return pa.table(
        [pa.array(cells, field.type) for field, cells in zip(fields, columns, strict=True)], schema=pa.schema(fields)
    )


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
    column("b", "string", number=2, called="a"),  # renamed: files call it as another column is called now
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
    """Return a file of the mapped table: with the names that it should have, or with ids and other names."""

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
    """Return a table whose columns are mapped."""
    lake = Lake(path)
    features = () if reader == 2 else ("columnMapping",)
    add = lake.add("0.parquet", mapped_file(names=names), partition={"c-11": "3"}, parquet=parquet)
    lake.commit(0, protocol(*features, reader=reader), metadata(MAPPED, ["p"], delta__columnMapping__mode=mode), add)
    return lake


@pytest.mark.parametrize("reader", [2, None])
def test_mapped_names_are_followed_everywhere(tmp_path: Path, reader: int | None) -> None:
    """Columns, fields in structs, lists and maps, and partition values; names that were exchanged do not mix."""
    ds = ps.open(mapped(tmp_path / "t", "name", names=True, reader=reader).path)

    assert rows(ds) == [EXPECTED]
    assert ds.schema.names == tuple(EXPECTED)
    assert ds.where(ps.col("a") == "from b", ps.col("s")["y"] == 6, ps.col("p") == 3).num_rows == 1
    assert ds.where(ps.col("a") == "from a").num_rows == 0
    assert rows(ds.select("id", "m"))[0] == {"id": 1, "m": [("k", {"n": 7})]}


@pytest.mark.parametrize("names", [True, False])
def test_ids_are_followed_everywhere(tmp_path: Path, names: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """By the ids of a file's columns, whatever it calls them."""
    lake = mapped(tmp_path / "t", "id", names=names, store_schema=False)  # as all but Arrow write it
    ds = ps.open(lake.path)

    assert rows(ds) == [EXPECTED]
    assert (ds[0]["a"], ds[0]["b"], ds[0]["p"]) == ("from b", "from a", 3)
    assert ds.where(ps.col("l").is_not_null()).num_rows == 1
    assert ds.where(ps.col("a") == "from b", ps.col("s")["y"] == 6, ps.col("p") == 3).num_rows == 1
    assert [row["b"] for row in ds.select("b").shuffle(seed=1)] == ["from a"]


def test_delta_rs_reads_the_same_of_mapped_names(tmp_path: Path) -> None:
    """An independent reader agrees."""
    lake = mapped(tmp_path / "t", "name", names=True)

    assert pa.table(DeltaTable(lake.path).scan()).to_pylist() == rows(ps.open(lake.path))


def test_row_groups_of_tables_with_ids_are_pruned_by_nothing_that_may_be_wrong(tmp_path: Path) -> None:
    """A file calls another column as the table calls the one that is asked for; its statistics must not be believed."""
    lake = Lake(tmp_path / "t")
    fields = [column("a", "long", number=1, called="a"), column("b", "long", number=2, called="b")]
    crossed = table([with_id("b", pa.int64(), 1), with_id("a", pa.int64(), 2)], [10] * 40, list(range(40)))
    add = lake.add("0.parquet", crossed, stats=None, parquet={"row_group_size": 10})
    lake.commit(0, protocol("columnMapping"), metadata(fields, delta__columnMapping__mode="id"), add)
    ds = ps.open(lake.path)

    assert ds.where(ps.col("a") == 10).num_rows == 40
    assert ds.where(ps.col("b") >= 35).num_rows == 5
    assert rows(ds.where(ps.col("b") == 7), "b") == [{"a": 10, "b": 7}]


def test_a_file_without_ids_is_refused_where_columns_go_by_them(tmp_path: Path) -> None:
    """It could only be nulls."""
    lake = Lake(tmp_path / "t")
    add = lake.add("0.parquet", pa.table({"a": [1]}))
    told = metadata([column("a", "long", number=1, called="a")], delta__columnMapping__mode="id")
    lake.commit(0, protocol("columnMapping"), told, add)

    with pytest.raises(DataError, match=r"0\.parquet: the columns have no ids, by which the table knows them"):
        ps.open(lake.path).to_arrow()


def test_the_mapping_counts_only_where_the_protocol_has_it(tmp_path: Path) -> None:
    """Else files call columns as the schema does."""
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


def change(before: str, after: str, path: str | None = None) -> dict[str, Any]:
    """Return the note of a changed type."""
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
    """Alone, in structs, in lists and in maps; files of both types stand beside each other."""
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
def test_a_change_of_type_that_is_none_of_the_protocol_is_refused(tmp_path: Path, before: str, after: str) -> None:
    """Its files might not be read as they are meant."""
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
    """They are never bent into its type; the message names file and column."""
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
    """What Arrow and others write that has the table's values."""
    lake = Lake(tmp_path / "t")
    told = metadata([column("id", "long"), column("x", kind)])
    lake.commit(0, protocol("timestampNtz"), told, lake.add("0.parquet", pa.table({"id": [0, 1], "x": stored})))

    assert [row["x"] for row in rows(ps.open(lake.path))] == [expected, stored[1].as_py()]


def test_columns_that_came_or_went_are_null_or_left_out(tmp_path: Path) -> None:
    """A file older than the schema, in columns and in fields of structs; a change's own column is no data."""
    lake = Lake(tmp_path / "t")
    fields = [column("id", "long"), column("s", struct_of(column("y", "long"), column("z", "string"))), column("new", "string")]
    old = pa.table({"id": [1], "s": [{"x": 0, "y": 5}], "dropped": [3], "_change_type": ["insert"]})
    lake.commit(0, protocol(), metadata(fields), lake.add("0.parquet", old))

    assert rows(ps.open(lake.path)) == [{"id": 1, "s": {"y": 5, "z": None}, "new": None}]
    assert ps.open(lake.path).where(ps.col("new").is_null(), ps.col("s")["z"].is_null()).num_rows == 1


def test_defaults_and_generated_columns_are_read_as_they_are_stored(tmp_path: Path) -> None:
    """They are for writers: what a file does not have is null."""
    lake = Lake(tmp_path / "t")
    fields = [
        column("id", "long", {"delta.identity.start": 1, "delta.identity.step": 1}),
        column("twice", "long", {"delta.generationExpression": "id * 2"}),
        column("d", "string", {"CURRENT_DEFAULT": "'x'"}),
    ]
    lake.commit(0, protocol(), metadata(fields), lake.add("0.parquet", pa.table({"id": [1], "twice": [3]})))

    assert rows(ps.open(lake.path)) == [{"id": 1, "twice": 3, "d": None}]


def variants(*fields: pa.Field) -> pa.Table:
    """Return a file with a variant of some layout."""
    kind = pa.struct(list(fields))
    cell = {"metadata": b"\x01\x00\x00", "value": b"\x0c\x07", "typed_value": None}
    return pa.table({"id": [1, 2], "v": pa.array([{key: cell[key] for key in [f.name for f in fields]}, None], kind)})


def test_a_variant_is_a_struct_of_its_two_parts(tmp_path: Path) -> None:
    """In whatever order a file has them; one that is shredded into columns is refused, and the other columns are read."""
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


def test_timestamps_of_twelve_bytes_reach_every_year(tmp_path: Path) -> None:
    """Spark writes them; in nanoseconds the year 9999 would come round as another."""
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
    """Those of the protocol, void ones, and those that Spark's users define."""
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
    ("told", "complaint"),
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
def test_a_schema_that_is_not_known_is_refused(tmp_path: Path, told: dict[str, Any], complaint: str) -> None:
    """By what is wrong with it."""
    lake = Lake(tmp_path / "t")
    lake.commit(0, protocol(), told)

    with pytest.raises(DataError, match=complaint.replace("(", r"\(")):
        ps.open(lake.path)


@pytest.mark.parametrize(
    ("told", "complaint"),
    [
        (
            protocol("deletionVectors", "teleport", "flight"),
            "needs features that are not known here: flight, teleport. Known are",
        ),
        (protocol("catalogManaged", "vacuumProtocolCheck"), r"is managed by a catalog \(catalogManaged\)"),
        (protocol(reader=4), "needs reader version 4 of Delta's protocol. Versions 1 to 3 are known"),
        ({"protocol": {"minReaderVersion": 5, "readerFeatures": ["teleport"]}}, "version 5 .* with the features teleport"),
        ({"protocol": {}}, "needs reader version None"),
    ],
)
def test_what_a_reader_must_know_and_does_not_is_named(tmp_path: Path, told: dict[str, Any], complaint: str) -> None:
    """A table is refused whole rather than read wrongly."""
    lake = Lake(tmp_path / "t")
    lake.commit(0, told, metadata([column("x", "long")]))

    with pytest.raises(DataError, match=complaint):
        ps.open(lake.path)


def test_features_of_writers_alone_do_not_matter(tmp_path: Path) -> None:
    """Constraints, clustering, row tracking and what is to come: readers need not know them."""
    lake = Lake(tmp_path / "t")
    told = protocol("vacuumProtocolCheck", "v2Checkpoint")
    told["protocol"]["writerFeatures"] += ["clustering", "rowTracking", "icebergCompatV2", "inCommitTimestamp", "tomorrow"]
    domain = {"domainMetadata": {"domain": "delta.clustering", "configuration": "{}", "removed": False}}
    lake.commit(0, told, metadata([column("x", "long")]), domain, lake.add("0.parquet", pa.table({"x": [1]})))

    assert ps.open(lake.path).to_arrow()["x"].to_pylist() == [1]


@pytest.fixture
def shouted(tmp_path: Path) -> str:
    """Return a table whose second file has its names in capital letters, as writers leave them that do not heed these."""
    lake = Lake(tmp_path / "t")
    fields = [column("id", "long"), column("s", struct_of(column("q", "integer"))), column("later", "string")]
    plain = table([pa.field("id", pa.int64()), pa.field("s", pa.struct([("q", pa.int32())]))], [1, 2], [{"q": 1}, {"q": 2}])
    loud = table([pa.field("ID", pa.int64()), pa.field("S", pa.struct([("Q", pa.int32())]))], [3, 4], [{"Q": 3}, {"Q": 4}])
    adds = [lake.add(name, data, stats=None) for name, data in {"a.parquet": plain, "b.parquet": loud}.items()]
    lake.commit(0, protocol(), metadata(fields), *adds)
    return str(lake.path)


def test_files_may_spell_columns_with_other_capital_letters(shouted: str) -> None:
    """They are found, by filters and by numbers too; what a file has under no such name is null."""
    ds = ps.open(shouted)

    assert rows(ds) == [{"id": number, "s": {"q": number}, "later": None} for number in (1, 2, 3, 4)]
    assert [row["id"] for row in rows(ds.where(ps.col("id") >= 2).select("id"))] == [2, 3, 4]
    assert [row["id"] for row in rows(ds.where(ps.col("s.q") == 4).select("id"))] == [4]
    assert ds.select("id").take([3, 0])["id"].tolist() == [4, 1]


def test_columns_that_differ_in_capital_letters_only_are_not_guessed_among(tmp_path: Path) -> None:
    """Both are named, of columns and of fields inside."""
    lake = Lake(tmp_path / "t")
    both = pa.struct([("Q", pa.int32()), ("qQ", pa.int32()), ("Qq", pa.int32())])
    kinds = [pa.field("ID", pa.int64()), pa.field("Id", pa.int64()), pa.field("s", both), pa.field("t", both)]
    cells = {"Q": 1, "qQ": 2, "Qq": 3}
    inner = {"s": struct_of(column("q", "integer")), "t": struct_of(column("qq", "integer"))}
    fields = [column("id", "long"), *(column(name, kind) for name, kind in inner.items())]
    twice = table(kinds, [1], [2], [cells], [cells])
    lake.commit(0, protocol(), metadata(fields), lake.add("a.parquet", twice))
    ds = ps.open(lake.path)

    with pytest.raises(DataError, match=r"a\.parquet.*: the table's column 'id' could be 'ID' or 'Id'\. One such column was"):
        ds.select("id").to_arrow()
    with pytest.raises(DataError, match=r"a\.parquet.*, column 't': .*'qq' could be 'Qq' or 'qQ'"):
        ds.select("t").to_arrow()
    assert ds.select("s").to_arrow().to_pylist() == [{"s": {"q": 1}}]
