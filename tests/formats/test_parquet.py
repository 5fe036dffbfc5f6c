"""Opening plain Parquet files and directories of them."""

from __future__ import annotations

import os
from base64 import b64encode
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs as pafs

import penstock as ps
from penstock.errors import ArgumentError, DataError, TableNotFoundError
from penstock.formats.parquet import ParquetFormat


class FilesOnly(pafs.FSSpecHandler):  # type: ignore[misc] # pyarrow has no types
    """A filesystem whose listings contain files only, as in stores without directories."""

    def get_file_info_selector(self, selector: Any) -> Any:
        """Return the files of a listing, without its directories."""
        return [info for info in super().get_file_info_selector(selector) if info.type == pafs.FileType.File]


def put(path: Path, **columns: Any) -> Path:
    """Write a Parquet file and create its parent directories."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def ids(ds: ps.Dataset) -> list[int]:
    """Return the ids of all rows."""
    return [int(row["id"]) for row in ds]


@pytest.fixture
def two_files(tmp_path: Path) -> Path:
    """Return a directory of two data files, and of other files that writers leave beside them."""
    put(tmp_path / "b.parquet", id=[3, 4])
    put(tmp_path / "a.parquet", id=[1, 2])
    put(tmp_path / "_temporary" / "c.parquet", id=[9])
    (tmp_path / "_SUCCESS").write_bytes(b"")
    (tmp_path / ".a.parquet.crc").write_bytes(b"crc")
    (tmp_path / "README.md").write_text("Not a table.")
    return tmp_path


def test_a_table_opens_by_every_kind_of_source(two_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table opens by directory, file, list, pattern, relative path, URL, and in filesystems of pyarrow and fsspec."""
    monkeypatch.chdir(two_files.parent)

    assert ids(ps.open(two_files)) == [1, 2, 3, 4]
    assert ids(ps.open(str(two_files) + "/")) == [1, 2, 3, 4]
    assert ids(ps.open(two_files.name)) == [1, 2, 3, 4]
    assert ids(ps.open(two_files.as_uri())) == [1, 2, 3, 4]
    assert ids(ps.open(two_files / "b.parquet")) == [3, 4]
    assert ids(ps.open([two_files / "b.parquet", str(two_files / "a.parquet")])) == [3, 4, 1, 2]
    assert ids(ps.open(f"{two_files}/*.parquet")) == [1, 2, 3, 4]
    assert ids(ps.open(f"{two_files}/[b-c].parquet")) == [3, 4]
    assert ids(ps.open(str(two_files), filesystem=pafs.LocalFileSystem())) == [1, 2, 3, 4]
    assert ids(ps.open(str(two_files), filesystem=fsspec.filesystem("file"))) == [1, 2, 3, 4]
    assert ids(ps.open(f"local://{two_files}", storage_options={"auto_mkdir": False})) == [1, 2, 3, 4]


def test_a_table_in_memory_opens_by_url() -> None:
    """A URL whose scheme pyarrow does not know is opened through fsspec."""
    memory = fsspec.filesystem("memory")
    with memory.open("/penstock-test/x.parquet", "wb") as target:
        pq.write_table(pa.table({"id": [5, 6]}), target)
    try:
        assert ids(ps.open("memory://penstock-test")) == [5, 6]
    finally:
        memory.rm("/penstock-test", recursive=True)


def test_files_without_the_parquet_suffix_are_read_if_no_file_has_it(tmp_path: Path) -> None:
    """Files without the suffix .parquet are read if no file has it, because Hive names files 000000_0."""
    put(tmp_path / "000000_0", id=[1])
    put(tmp_path / "000001_0", id=[2])

    assert ids(ps.open(tmp_path)) == [1, 2]


def test_hidden_files_are_read_when_they_are_named(tmp_path: Path) -> None:
    """A file whose name begins with an underscore is read if the source names it."""
    hidden = put(tmp_path / "_odd.parquet", id=[1])

    assert ids(ps.open(hidden)) == [1]
    assert ids(ps.open([hidden])) == [1]


def test_hive_partitions_are_columns(tmp_path: Path) -> None:
    """Directories named key=value become columns: nested, percent-encoded, null, whole numbers, and keys with an underscore."""
    put(tmp_path / "_y=2024" / "city=S%C3%A3o%20Paulo" / "a.parquet", id=[1, 2])
    put(tmp_path / "_y=2025" / "city=__HIVE_DEFAULT_PARTITION__" / "a.parquet", id=[3])
    put(tmp_path / "_y=2025" / "city=a%2Fb%3D" / "a.parquet", id=[4])
    ds = ps.open(tmp_path)

    rows = sorted((int(row["id"]), int(row["_y"]), row["city"]) for row in ds)
    assert rows == [(1, 2024, "São Paulo"), (2, 2024, "São Paulo"), (3, 2025, None), (4, 2025, "a/b=")]
    assert ds.schema["_y"].dtype == np.int64
    assert ids(ds.where(ps.col("_y") == 2025, ps.col("city").is_not_null())) == [4]
    assert ids(ds.select("id").where(ps.col("city") == "São Paulo")) == [1, 2]
    assert "files       1 of 3" in ds.where(ps.col("city").is_null()).explain()


def test_partitions_that_are_not_all_numbers_are_text(tmp_path: Path) -> None:
    """A partition column is text unless all its values are numbers, and null for files whose path lacks the key."""
    put(tmp_path / "k=1" / "a.parquet", id=[1])
    put(tmp_path / "k=x" / "a.parquet", id=[2])
    put(tmp_path / "a.parquet", id=[3])

    assert {int(row["id"]): row["k"] for row in ps.open(tmp_path)} == {1: "1", 2: "x", 3: None}


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (["1", "-7", "007"], "int64"),
        (["1", "1000000000000000000"], "int64"),
        (["9223372036854775807", "-9223372036854775808"], "int64"),
        (["1", "9223372036854775808"], "object"),
        (["-9223372036854775809", "1"], "object"),
        (["1", "+4"], "object"),
        (["1", "٢"], "object"),
        (["1", "0x1"], "object"),
        (["1", "-"], "object"),
    ],
)
def test_partitions_are_int64_if_all_values_are_integers_that_fit(tmp_path: Path, values: list[str], dtype: str) -> None:
    """Digits with an optional minus are int64 if they fit; any other spelling makes the column text, unchanged."""
    for number, value in enumerate(values):
        put(tmp_path / f"k={value}" / "a.parquet", id=[number])
    ds = ps.open(tmp_path)

    found = {int(row["id"]): row["k"] for row in ds}
    assert ds.schema["k"].dtype == np.dtype(dtype)
    assert found == {number: int(value) if dtype == "int64" else value for number, value in enumerate(values)}


def test_a_partition_may_also_be_a_column_of_the_files(tmp_path: Path) -> None:
    """If files also have the column, the directory's value is used, in the type of the files' column."""
    put(tmp_path / "k=7" / "a.parquet", id=[1], k=pa.array([5], pa.int16()))

    row = next(iter(ps.open(tmp_path)))
    assert (int(row["k"]), row["k"].dtype) == (7, np.int16)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (pa.string_view(), "a", "a"),
        (pa.binary_view(), "a", b"a"),
        (pa.large_string(), "a", "a"),
        (pa.dictionary(pa.int8(), pa.string()), "a", "a"),
        (pa.date32(), "2024-01-31", np.datetime64("2024-01-31")),
        (pa.time32("ms"), "01%3A02%3A03.5", np.timedelta64(3_723_500, "ms")),
        (pa.time64("ns"), "01%3A02%3A03.000000001", np.timedelta64(3_723_000_000_001, "ns")),
        (pa.uuid(), "00000000-0000-0000-0000-00000000000a", UUID(int=10)),
        (pa.json_(), "7", "7"),
    ],
)
def test_a_partition_is_read_in_the_type_that_the_files_have(tmp_path: Path, kind: Any, text: str, expected: Any) -> None:
    """A partition value takes the type of the files' column, which Polars and DuckDB can leave in the files."""
    put(tmp_path / f"k={text}" / "a.parquet", id=[1, 2], k=pa.nulls(2, kind))
    put(tmp_path / "k=__HIVE_DEFAULT_PARTITION__" / "a.parquet", id=[3], k=pa.nulls(1, kind))
    ds = ps.open(tmp_path)

    assert [int(row["id"]) for row in ds if row["k"] == expected] == [1, 2]
    assert ds.where(ps.col("k").is_null()).num_rows == 1
    assert ds.to_arrow().num_rows == 3
    assert ds.where(ps.col("k").is_not_null())[1]["k"] == expected


@pytest.mark.parametrize(
    ("kind", "text"), [(pa.uuid(), "a"), (pa.time64("us"), "noon"), (pa.int8(), "1000"), (pa.list_(pa.int8()), "1")]
)
def test_a_partition_value_that_does_not_fit_its_type_raises(tmp_path: Path, kind: Any, text: str) -> None:
    """A partition value that does not fit the type of the files' column raises DataError with the column and the type."""
    put(tmp_path / f"k={text}" / "a.parquet", id=[1], k=pa.nulls(1, kind))

    with pytest.raises(DataError, match=r"Partition column 'k' does not fit its type .*\. Give another type in the schema\."):
        ps.open(tmp_path)


def test_empty_files_and_selections_without_columns_are_read(tmp_path: Path) -> None:
    """Files without rows can be opened, and a selection without columns yields empty rows."""
    put(tmp_path / "a.parquet", id=pa.array([], pa.int64()))
    assert list(ps.open(tmp_path)) == []
    put(tmp_path / "b.parquet", id=[1])
    ds = ps.open(tmp_path)

    assert ids(ds) == [1]
    assert list(ds.select()) == [{}]
    assert ps.open(tmp_path / "a.parquet").num_rows == 0


def test_files_whose_schemas_differ_make_one_table(tmp_path: Path) -> None:
    """Files with added columns, wider types or another column order make one table; missing columns are null."""
    put(tmp_path / "1.parquet", id=pa.array([1], pa.int32()), x=[1.5])
    put(tmp_path / "2.parquet", x=[2.5], id=pa.array([2**40], pa.int64()), name=["n"])
    ds = ps.open(tmp_path)

    assert ds.schema.names == ("id", "x", "name")
    assert [(int(row["id"]), row["x"], row["name"]) for row in ds] == [(1, 1.5, None), (2**40, 2.5, "n")]
    assert ids(ds.where(ps.col("name").is_null())) == [1]
    assert ids(ds.where(ps.col("id") > 10)) == [2**40]


def test_extra_columns_of_a_middle_file_warn_unless_the_union_is_read(tmp_path: Path) -> None:
    """By default, columns that only a middle file has emit a warning; columns="union" includes them."""
    for name, columns in (("1", {"id": [1]}), ("2", {"id": [2], "more": [20]}), ("3", {"id": [3]})):
        put(tmp_path / f"{name}.parquet", **columns)
    with pytest.warns(RuntimeWarning, match=r"2\.parquet has columns that the table does not: more\."):
        assert ids(ps.open(tmp_path)) == [1, 2, 3]

    union = ps.open(tmp_path, format=ParquetFormat(columns="union"))
    assert union.where(ps.col("more").is_not_null()).take([0])["more"].tolist() == [20]
    chosen = ps.open(tmp_path, format=ParquetFormat(columns=pa.schema({"id": pa.float64()})))
    assert [row["id"] for row in chosen] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("store_schema", [True, False])
def test_uuid_and_json_columns_have_their_arrow_types(tmp_path: Path, *, store_schema: bool) -> None:
    """UUID and JSON columns get their Arrow types, nested too, with and without a stored Arrow schema."""
    names = [UUID(int=number) for number in range(6)]
    uuids = pa.array([name.bytes for name in names], pa.uuid())
    texts = pa.array([f'{{"a": {number}}}' for number in range(6)], pa.json_())
    lists = pa.ListArray.from_arrays(pa.array(range(7), pa.int32()), uuids)
    table = pa.table({"name": uuids, "text": texts, "listed": lists, "inside": pa.StructArray.from_arrays([texts], ["x"])})
    pq.write_table(table, tmp_path / "t.parquet", store_schema=store_schema, row_group_size=4)
    ds = ps.open(tmp_path)

    assert ds.to_arrow().schema.types == table.schema.types
    found = [
        row
        for batch in (*ds.shuffle(seed=1).batch(4, last="uneven"), ds.take([5]))
        for row in zip(*batch.values(), strict=True)
    ]
    rows = [(name, f'{{"a": {number}}}', [name], {"x": f'{{"a": {number}}}'}) for number, name in enumerate(names)]
    assert sorted((name, text, listed.tolist(), inside) for name, text, listed, inside in found[:-1]) == rows
    assert (*found[-1][:2], found[-1][2].tolist(), found[-1][3]) == rows[-1]


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()])
def test_views_are_read_as_plain_values(tmp_path: Path, kind: pa.DataType) -> None:
    """View columns are read as plain text or bytes, because Arrow cannot take rows of views."""
    values = ["a", None, "a longer text, which has a place of its own"]
    cells = values if pa.types.is_string_view(kind) else [None if one is None else one.encode() for one in values]
    pq.write_table(pa.table({"x": pa.array(cells, kind)}), tmp_path / "t.parquet")
    ds = ps.open(tmp_path)

    assert [row["x"] for row in ds] == ds.to_arrow()["x"].to_pylist() == cells
    assert ds.take([2, 1])["x"].tolist() == [cells[2], cells[1]]


class Label(pa.ExtensionType):  # type: ignore[misc] # pyarrow has no types
    """An extension type of a user, without a hash."""

    def __init__(self) -> None:
        """Define int64 as the storage type."""
        super().__init__(pa.int64(), "penstock.tests.label")

    def __arrow_ext_serialize__(self) -> bytes:
        """Return no bytes, because the type has no parameters."""
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> pa.ExtensionType:
        """Return the type."""
        return cls()


def test_extension_types_are_read_as_their_storage_type(tmp_path: Path) -> None:
    """A registered extension type stays in Arrow tables, and its storage values appear in rows and filters."""
    labels = pa.ExtensionArray.from_storage(Label(), pa.array([1, 2, 3]))
    pa.register_extension_type(Label())
    try:
        put(tmp_path / "0.parquet", id=[1, 2, 3], x=labels)
        ds = ps.open(tmp_path)

        assert ds.to_arrow()["x"].type == Label()
        assert [int(row["x"]) for row in ds] == [1, 2, 3]
        assert ds.take([2, 0])["x"].tolist() == [3, 1]
        assert ids(ds.where(ps.col("x") >= 2)) == [2, 3]
    finally:
        pa.unregister_extension_type("penstock.tests.label")


@pytest.mark.parametrize(
    ("kind", "cells"),
    [
        (pa.struct({"a": pa.struct({"b": pa.string_view()})}), [{"a": {"b": "x"}}, None, {"a": {"b": "y" * 30}}]),
        (pa.list_(pa.string_view()), [["x", None], None, ["y" * 30]]),
        (pa.large_list(pa.binary_view()), [[b"x", None], None, [b"y" * 30]]),
        (pa.list_(pa.string_view(), 1), [["x"], ["z"], ["y" * 30]]),
        (pa.map_(pa.string_view(), pa.binary_view()), [[("a", b"x")], None, [("b" * 30, None)]]),
        (pa.list_(pa.struct({"a": pa.list_(pa.string_view())})), [[{"a": ["x"]}], None, []]),
    ],
)
@pytest.mark.parametrize("indexed", [False, True])
def test_nested_views_are_read_as_plain_values(tmp_path: Path, kind: Any, cells: list[Any], *, indexed: bool) -> None:
    """Views in structs, lists and maps, as DataFusion and delta-rs write them, are read as plain values."""
    schema = pa.schema({"id": pa.int64(), "x": kind})
    with pq.ParquetWriter(tmp_path / "0.parquet", schema, write_page_index=indexed) as file:
        for rows in ([0, 1], [2]):
            file.write_table(pa.table([rows, pa.array([cells[row] for row in rows], kind)], schema=schema))
    ds = ps.open(tmp_path)

    assert ds.to_arrow()["x"].to_pylist() == cells
    assert ds.to_pandas()["id"].tolist() == [0, 1, 2]
    shuffled = {int(row["id"]): row["x"] for row in ds.shuffle(seed=1)}
    taken = ds.take([2, 0])["x"]
    for number, cell in ((2, taken[0]), (0, taken[1]), *shuffled.items()):
        assert (cell.tolist() if isinstance(cell, np.ndarray) else cell) == cells[number]
    assert ds.where(ps.col("x").is_null()).num_rows == cells.count(None)


def test_nested_views_and_plain_types_make_one_table(tmp_path: Path) -> None:
    """Files that store a nested field as a view and files that do not make one table, in any order."""
    kinds = [pa.string(), pa.string_view(), pa.large_string(), pa.string_view(), pa.string()]
    for number, kind in enumerate(kinds):
        put(
            tmp_path / f"{number}.parquet",
            x=pa.array([[{"a": "b"}]], pa.list_(pa.struct({"a": kind}))),
            s=pa.array(["c"], kind),
        )
    for place in (tmp_path, [tmp_path / "0.parquet", tmp_path / "1.parquet"], [tmp_path / "1.parquet", tmp_path / "0.parquet"]):
        found = ps.open(place).to_arrow().to_pylist()
        assert found
        assert all(row == {"x": [{"a": "b"}], "s": "c"} for row in found)


def test_struct_fields_may_have_any_order(tmp_path: Path) -> None:
    """Files may store the fields of a struct in different orders, also in lists of structs."""
    rows = [{"x": 1, "y": "p"}, {"y": "q", "x": 2}, {"y": "r", "x": None}]
    for number, row in enumerate(rows):
        pq.write_table(pa.table({"a": [row], "l": [[row, row]]}), tmp_path / f"{number}.parquet")

    found = ps.open(tmp_path)

    assert [row["a"] for row in found] == rows
    assert [row["l"].tolist() for row in found.shuffle(seed=2)] == [[row["a"]] * 2 for row in found.shuffle(seed=2)]


def test_files_with_incompatible_types_raise(tmp_path: Path) -> None:
    """Files whose column types have no common type raise DataError, which names both files and the remedy."""
    put(tmp_path / "1.parquet", id=[1])
    put(tmp_path / "2.parquet", id=["one"])
    with pytest.raises(DataError) as caught:
        ps.open(tmp_path)

    text = str(caught.value)
    assert f"The schemas of {tmp_path}/1.parquet and {tmp_path}/2.parquet do not fit together" in text
    assert "open with a schema of your own: format=ParquetFormat(columns=schema)." in text


def test_a_foreign_summary_file_is_not_data(two_files: Path) -> None:
    """`_metadata` and `_common_metadata` of other writers add neither rows nor columns."""
    pq.write_metadata(pa.schema({"other": pa.string()}), two_files / "_common_metadata")
    (two_files / "_metadata").write_bytes(b"PAR1 nonsense")

    assert ids(ps.open(two_files)) == [1, 2, 3, 4]
    assert ps.open(two_files).schema.names == ("id",)


def test_a_missing_table_raises(tmp_path: Path) -> None:
    """A source without data files, an unknown scheme, an empty list, a version or an invalid columns argument raises."""
    for source, expected in (
        (tmp_path / "nowhere", f"No file or directory exists at '{tmp_path}/nowhere'. Check the path."),
        (f"{tmp_path}/*.pq", f"No file or directory matches '{tmp_path}/*.pq'. Check the pattern."),
        (
            tmp_path,
            f"'{tmp_path}' has no Parquet file: none of 0 files is a data file (names that begin with _ or . are ignored). "
            "Check the path.",
        ),
    ):
        with pytest.raises(TableNotFoundError) as caught:
            ps.open(source)
        assert str(caught.value) == expected
    with pytest.raises(TableNotFoundError, match="No filesystem opens 'nosuch://x'"):
        ps.open("nosuch://x")
    with pytest.raises(ArgumentError, match=r"open\(\) got an empty list; expected at least one path\."):
        ps.open([])
    put(tmp_path / "a.parquet", id=[1])
    with pytest.raises(ArgumentError, match=r"plain Parquet files have no versions\. Leave it out\."):
        ps.open(tmp_path, version=3)
    with pytest.raises(ArgumentError, match="got columns='all'; expected an Arrow schema"):
        ps.open(tmp_path, format=ParquetFormat(columns="all"))


@pytest.mark.parametrize(
    ("source", "options", "expected"),
    [
        ({"a": 1}, {}, "open() got {'a': 1}; expected a path, a URL or a list of them, for example open('/data/table')."),
        ({"a"}, {}, "open() got {'a'}; expected a path, a URL or a list of them, for example open('/data/table')."),
        ("s3://", {}, "'s3://' has no bucket or host. Give the whole URL: s3://bucket/table."),
        ("gs:///", {}, "'gs:///' has no bucket or host. Give the whole URL: gs://bucket/table."),
        (
            "t",
            {"filesystem": "x"},
            "filesystem='x' is not a filesystem; expected an object of pyarrow.fs or fsspec, for example "
            "fsspec.filesystem('s3'). Or leave it out and give a URL: s3://bucket/table.",
        ),
        (
            "t",
            {"storage_options": 3},
            "storage_options=3 is not a mapping; expected options of fsspec, for example {'anon': True}.",
        ),
    ],
)
def test_an_invalid_source_raises(source: Any, options: dict[str, Any], expected: str) -> None:
    """An invalid source, filesystem or mapping of storage options raises ArgumentError."""
    with pytest.raises(ArgumentError) as caught:
        ps.open(source, **options)

    assert str(caught.value) == expected


def test_the_root_of_a_filesystem_is_not_a_table() -> None:
    """Opening the root of a filesystem raises TableNotFoundError."""
    for top in ("/", "//", "file:///"):
        with pytest.raises(TableNotFoundError) as caught:
            ps.open(top)
        assert str(caught.value) == (
            f"{top!r} is the root of the filesystem; expected a file or a directory below it. Give its path."
        )


def test_a_directory_that_cannot_be_listed_is_reported(tmp_path: Path) -> None:
    """A directory that cannot be listed raises TableNotFoundError, whose message shortens a long cause."""
    put(tmp_path / "a.parquet", id=[1])

    class Unlistable(pafs.FSSpecHandler):  # type: ignore[misc] # pyarrow has no types; a handler, because root may list everything
        def get_file_info_selector(self, selector: pafs.FileSelector) -> Any:  # noqa: ARG002 - every listing fails
            raise PermissionError(13, f"Cannot list directory '{'x' * 1000}'")

    unlistable = pafs.PyFileSystem(Unlistable(fsspec.filesystem("file")))
    with pytest.raises(TableNotFoundError, match=r"cannot be listed: \[Errno 13\] Cannot list directory 'xx.*…xx") as caught:
        ps.open(str(tmp_path), filesystem=unlistable, format="parquet")

    assert len(str(caught.value)) < 700


def test_a_file_that_is_not_parquet_raises(tmp_path: Path) -> None:
    """A file that is named *.parquet but has other bytes raises DataError, which names the file."""
    bad = tmp_path / "bad.parquet"
    long = b"PAR1" + b"\0" * 30 + b"\xff\xff\xff\x7fPAR1"
    for content in (b"", b"PAR1", b"not a table at all, but long enough to be one", long):
        bad.write_bytes(content)
        with pytest.raises(DataError, match=r"bad\.parquet"):
            ps.open(bad)


def test_only_needed_footers_are_read(tmp_path: Path) -> None:
    """Partitions are pruned first, so only footers of the schema's files and of the matching file are read."""
    for day in range(10):
        put(tmp_path / f"day={day}" / "a.parquet", id=[day])
    opened: list[str] = []

    class Watched(pafs.FSSpecHandler):  # type: ignore[misc] # pyarrow has no types
        def open_input_file(self, path: str) -> Any:
            opened.append(path)
            return super().open_input_file(path)

    filesystem = pafs.PyFileSystem(Watched(fsspec.filesystem("file")))
    ds = ps.open(str(tmp_path), filesystem=filesystem).where(ps.col("day") == 4)
    assert ds.num_rows == 1

    assert {path.split("day=")[1][0] for path in opened} == {"0", "4", "9"}


def test_a_middle_file_with_an_incompatible_type_raises(tmp_path: Path) -> None:
    """A middle file whose type does not fit raises DataError instead of changing values; narrower integers are read."""
    naive, zoned = pa.timestamp("us"), pa.timestamp("us", tz="America/New_York")
    for number, (outer, inner) in enumerate(
        (
            (pa.array([1]), pa.array(["5"])),
            (pa.array(["a"]), pa.array([5])),
            (pa.array([1]), pa.array([True])),
            (pa.array([0], naive), pa.array([0], zoned)),
            (pa.array([0.5], pa.float32()), pa.array([16777217.0])),
        )
    ):
        place = tmp_path / str(number)
        for name, values in (("1", outer), ("2", inner), ("3", outer)):
            put(place / f"{name}.parquet", x=values)
        with pytest.raises(DataError, match=r"2\.parquet, row group 0, column 'x': stored as"):
            list(ps.open(place))
    narrow = tmp_path / "narrow"
    for name, values in (("1", [1, 2]), ("2", pa.array([3], pa.int8())), ("3", [4])):
        put(narrow / f"{name}.parquet", id=values)
    assert ids(ps.open(narrow)) == [1, 2, 3, 4]


@pytest.mark.parametrize("last", ["America/New_York", "+00:00", "Europe/Paris"])
def test_timestamps_of_different_zones_are_the_same_moments(tmp_path: Path, last: str) -> None:
    """Timestamps of files with different time zones are read in UTC; a zone stays if the schema's files agree on it."""

    def table(zone: str) -> dict[str, pa.Array]:
        kind = pa.timestamp("us", zone)
        inside = pa.struct({"m": pa.map_(pa.string(), kind)})
        return {
            "t": pa.array([7], kind),
            "l": pa.array([[{"m": [("a", 7)]}]], pa.list_(inside)),
            "large": pa.array([[7]], pa.large_list(kind)),
            "same": pa.array([7], pa.timestamp("us", "Asia/Tokyo")),
        }

    for name, zone in (("1", "Europe/Paris"), ("2", "Asia/Tokyo"), ("3", last)):
        put(tmp_path / f"{name}.parquet", **table(zone))
    found = ps.open(tmp_path).to_arrow()

    common = "Europe/Paris" if last == "Europe/Paris" else "UTC"
    assert found.equals(pa.concat_tables([pa.table(table(common))] * 3))
    assert [row["t"].astype(int) for row in ps.open(tmp_path)] == [7, 7, 7]
    assert ps.open(tmp_path).where(ps.col("t") == datetime(1970, 1, 1, tzinfo=UTC)).num_rows == 0


def test_a_zone_that_no_other_file_contradicts_stays(tmp_path: Path) -> None:
    """A time zone stays if no other file contradicts it, even if other columns differ between files."""
    tokyo, paris = pa.timestamp("us", "Asia/Tokyo"), pa.timestamp("us", "Europe/Paris")
    put(tmp_path / "1.parquet", t=pa.array([7], paris), only=pa.array([7], paris), c=pa.array(["a"]).dictionary_encode())
    put(tmp_path / "2.parquet", t=pa.array([7], tokyo), c=pa.array(["a"]))

    found = ps.open(tmp_path).to_arrow().schema
    assert found.types == [pa.timestamp("us", "UTC"), paris, pa.string()]


def test_integers_are_read_as_decimals_if_they_fit(tmp_path: Path) -> None:
    """An int64 file joins a decimal column if its values fit, even though int64 could hold larger ones."""
    put(tmp_path / "1.parquet", x=pa.array([Decimal("1.25")], pa.decimal128(10, 2)))
    put(tmp_path / "2.parquet", x=pa.array([7, None, -(10**9)], pa.int64()))

    assert ps.open(tmp_path).to_arrow()["x"].to_pylist() == [Decimal("1.25"), Decimal(7), None, Decimal(-(10**9))]


def test_a_source_that_names_nothing_raises() -> None:
    """None, a number, bytes or empty text raises ArgumentError instead of opening the working directory."""
    for source in (None, 3, b"lake", ""):
        with pytest.raises(ArgumentError, match=r"expected a path, a URL or a list of them, for example"):
            ps.open(source)  # type: ignore[arg-type]


def test_duplicate_column_names_raise(tmp_path: Path) -> None:
    """Opening a file with two columns of the same name raises DataError."""
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"has more than one column called 'a'\. Names must differ\. Rename all but one\."):
        ps.open(tmp_path)


def test_empty_selections_keep_their_columns(tmp_path: Path) -> None:
    """A selection without rows has all columns as empty arrays, and a selection without columns keeps its row count."""
    put(tmp_path / "a.parquet", id=[1, 2], s=["a", "b"])
    ds = ps.open(tmp_path)

    for nothing in (ds.head(0), ds[0:0], ds.take([]), ds.where(ps.col("id") < 0).head()):
        assert {name: values.tolist() for name, values in nothing.items()} == {"id": [], "s": []}
    assert ds.select().to_arrow().num_rows == 2


def test_a_map_cannot_end_a_dataset_silently(tmp_path: Path) -> None:
    """StopIteration in a map raises MapError; another error gets a note with the position of its rows."""
    put(tmp_path / "a.parquet", id=list(range(10)))

    def stopping(batch: dict[str, Any]) -> dict[str, Any]:
        if batch["id"][0] >= 4:
            raise StopIteration
        return batch

    with pytest.raises(ps.errors.MapError, match="raised StopIteration, which would end the dataset silently"):
        list(ps.open(tmp_path).batch(2).map(stopping))
    with pytest.raises(ZeroDivisionError) as caught:
        list(ps.open(tmp_path).map(lambda row: {"id": 1 // (int(row["id"]) - 3)}))
    assert "on the rows from position 3 of epoch 0." in caught.value.__notes__[0]


def test_dictionaries_in_some_files_are_read_as_plain_values(tmp_path: Path) -> None:
    """A column that is a dictionary in some files and text in others, as pandas writes categories, is read as text."""
    put(tmp_path / "1.parquet", id=[1, 2], s=pa.array(["a", "b"]).dictionary_encode())
    put(tmp_path / "2.parquet", id=[3], s=["c"])
    put(tmp_path / "3.parquet", id=[4], s=pa.array([None], pa.string()).dictionary_encode())
    stored: dict[int, list[str | None]] = {1: ["a", "b"], 2: ["c"], 3: [None]}
    for places in ([1, 2, 3], [1, 2], [2, 3], [2, 1, 2]):
        ds = ps.open([tmp_path / f"{place}.parquet" for place in places])
        assert ids(ds.where(ps.col("s") == "c").shuffle()) == [3] * places.count(2)
        assert [row["s"] for row in ds] == [value for place in places for value in stored[place]]


def test_a_delta_table_is_not_read_as_plain_files(tmp_path: Path) -> None:
    """A directory with a Delta log is not read as plain files, unless the Parquet format is given."""
    put(tmp_path / "a.parquet", id=[1])
    (tmp_path / "_delta_log").mkdir()
    with pytest.raises(DataError, match="has a Delta log without commits"):
        ps.open(tmp_path)

    assert ids(ps.open(tmp_path, format=ParquetFormat())) == [1]


def test_invalid_codecs_raise(two_files: Path) -> None:
    """A codec class outside a list, or a codec's name in a list, raises ArgumentError."""
    codec: Any = ps.codecs.Png
    with pytest.raises(ArgumentError, match=r"open\(\) got codecs=<class '.*Png'>; expected codec classes"):
        ps.open(two_files, codecs=codec)
    with pytest.raises(ArgumentError, match=r"open\(\) got codecs='png'"):
        ps.open(two_files, codecs=["png"])  # type: ignore[list-item]


@pytest.mark.parametrize("listed", [pafs.FSSpecHandler, FilesOnly], ids=["directories", "files alone"])
@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("2025-*", [1, 2]), ("*-01", [1, 3]), ("20*/part=1", [1, 2]), ("*/*/*.parquet", [1, 2, 3]), ("2025-01/**", [1])],
)
def test_a_pattern_matches_directories_of_every_store(tmp_path: Path, listed: Any, pattern: str, expected: list[int]) -> None:
    """Patterns match directories even in stores that list only files, and each file is read once."""
    for number, month in enumerate(["2025-01", "2025-02", "2024-01"]):
        put(tmp_path / month / f"part={1 if number < 2 else 2}" / "a.parquet", id=[number + 1])
    store = pafs.PyFileSystem(listed(fsspec.filesystem("file")))

    assert sorted(ids(ps.open(f"{tmp_path}/{pattern}", filesystem=store))) == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("part-?.parquet", [1, 2]),
        ("part-[12].parquet", [1, 2]),
        ("São%20Paulo#1/a b.parquet", [3]),
        ("S%C3%A3o Paulo%231/a%20b.parquet", [3]),
        ("100%", [4]),
    ],
)
@pytest.mark.parametrize("before", ["file://", "file://localhost"])
def test_urls_of_local_files_need_no_percent_encoding(tmp_path: Path, before: str, url: str, expected: list[int]) -> None:
    """In file URLs, wildcards and special characters mean the same as in paths, and percent-encoding is optional."""
    put(tmp_path / "part-", id=[9])
    put(tmp_path / "part-1.parquet", id=[1])
    put(tmp_path / "part-2.parquet", id=[2])
    put(tmp_path / "São Paulo#1" / "a b.parquet", id=[3])
    put(tmp_path / "100%" / "a.parquet", id=[4])

    assert ids(ps.open(f"{before}{tmp_path}/{url}")) == expected


def test_patterns_skip_hidden_files(tmp_path: Path) -> None:
    """Patterns skip hidden files and directories, unless the pattern itself names them."""
    for name in ("a", "_tmp", ".part", "_temporary/0/b", "_year=1/c"):
        put(tmp_path / f"{name}.parquet", f=[name])

    def found(pattern: str) -> list[str]:
        return sorted(ps.open(f"{tmp_path}/{pattern}").to_arrow()["f"].to_pylist())

    assert found("*.parquet") == ["a"]
    assert found("**/*.parquet") == ["_year=1/c", "a"]
    assert found("_t*.parquet") == ["_tmp"]
    assert found(".p*") == [".part"]
    assert found("_temporary/*/*.parquet") == ["_temporary/0/b"]


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        ("file://{}", [(1, 1), (2, 2)]),
        ("{}", [(1, 1), (2, 2)]),
        ("t", [(1, 1), (2, 2)]),
        ("t/../t", [(1, 1), (2, 2)]),
        ("t/*/*.parquet", [(1, 1), (2, 2)]),
        ("file://{}/k=*", [(1, 1), (2, 2)]),
        ("t/k=1/a.parquet", [(1, 99)]),
        ("file://{}/k=1/a.parquet", [(1, 99)]),
    ],
)
def test_sources_mean_the_same_with_a_filesystem_of_fsspec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: str, expected: list[tuple[int, int]]
) -> None:
    """URLs, relative paths and patterns name the same files with a filesystem as without, partitions included."""
    put(tmp_path / "t" / "k=1" / "a.parquet", id=[1], k=[99])
    put(tmp_path / "t" / "k=2" / "a.parquet", id=[2], k=[98])
    monkeypatch.chdir(tmp_path)
    source = ask.format(tmp_path / "t")
    for options in ({"filesystem": fsspec.filesystem("file")}, {}):
        opened = ps.open(source, **options)
        assert [(int(row["id"]), int(row["k"])) for row in opened] == expected


def test_sources_in_a_memory_filesystem_need_no_scheme() -> None:
    """Sources in a memory filesystem may have its scheme or a leading slash, or neither."""
    store = fsspec.filesystem("memory")
    for number in (1, 2):
        with store.open(f"/names/k={number}/a.parquet", "wb") as file:
            pq.write_table(pa.table({"id": [number]}), file)
    sources = ["memory://names", "names", "/names", "names/*", "memory://names/*/*.parquet", ["names/k=1", "names/k=2"]]

    for source in sources:
        assert [(int(row["id"]), int(row["k"])) for row in ps.open(source, filesystem=store)] == [(1, 1), (2, 2)]


FAR = [datetime.fromisoformat("9999-12-31T01:02:03.456789"), None, datetime.fromisoformat("0001-01-01")]
MOMENTS = pa.table({"t": pa.array(FAR, pa.timestamp("us")), "l": [[{"x": far}] for far in FAR], "id": [0, 1, 2]})
SPARK = {"org.apache.spark.version": "3.5.1"}


def test_int96_timestamps_of_spark_reach_every_year(tmp_path: Path) -> None:
    """INT96 timestamps of Spark are read in microseconds, because the year 9999 overflows nanoseconds."""
    table = MOMENTS.replace_schema_metadata(SPARK)
    pq.write_table(table, tmp_path / "0.parquet", use_deprecated_int96_timestamps=True, row_group_size=2)

    ds = ps.open(tmp_path)

    assert ds.to_arrow().to_pydict() == MOMENTS.to_pydict()
    assert [row["t"].item() for row in ds] == FAR
    assert ds.where(ps.col("t") == FAR[0]).num_rows == 1


@pytest.mark.parametrize("column", ["t", "l"])
def test_int96_timestamps_that_overflow_nanoseconds_raise(tmp_path: Path, column: str) -> None:
    """INT96 timestamps that overflow nanoseconds raise DataError, and are read in the unit that the message names."""
    path = tmp_path / "0.parquet"
    pq.write_table(MOMENTS, path, use_deprecated_int96_timestamps=True)

    with pytest.raises(DataError, match=rf"column '{column}'.* before the year 1677 or after 2262.*timestamp\('us'\)"):
        ps.open(path).select(column).to_arrow()
    found = ps.open(path, format=ParquetFormat(columns=MOMENTS.schema)).to_arrow()
    assert found.to_pydict() == MOMENTS.to_pydict()


def test_int96_timestamps_are_nanoseconds_if_they_fit(tmp_path: Path) -> None:
    """INT96 timestamps keep all nine digits if nanoseconds hold them, also in maps, as Impala and Hive write them."""
    moments = pa.array([1_700_000_000_123_456_789, None], pa.int64()).cast(pa.timestamp("ns"))
    table = pa.table({"t": moments, "m": pa.array([[("a", moments[0])], None], pa.map_(pa.string(), pa.timestamp("ns")))})
    pq.write_table(table, tmp_path / "0.parquet", use_deprecated_int96_timestamps=True)

    assert ps.open(tmp_path).to_arrow().equals(table)


def test_an_encrypted_column_raises_and_the_others_are_read(tmp_path: Path) -> None:
    """Reading an encrypted column raises DataError; other columns are read if the footer is not encrypted."""
    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class Keys(encryption.KmsClient):  # type: ignore[misc, name-defined] # pyarrow has no types
        def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:  # noqa: ARG002 - the interface requires it
            return b64encode(key_bytes)

    factory = encryption.CryptoFactory(lambda _: Keys())
    config = encryption.EncryptionConfiguration(footer_key="k", column_keys={"k": ["secret"]}, plaintext_footer=True)
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), config)
    path = tmp_path / "0.parquet"
    pq.write_table(pa.table({"id": [1], "secret": ["a"]}), path, encryption_properties=properties)

    assert ids(ps.open(path).select("id")) == [1]
    with pytest.raises(DataError, match=r"column 'secret': it is encrypted\. Encryption is not supported\. Leave it out"):
        list(ps.open(path))


def test_a_link_to_a_parent_directory_raises(tmp_path: Path) -> None:
    """A link to a directory that contains it raises, because its rows would repeat; hidden links are ignored."""
    table = tmp_path / "t"
    ps.write(table, data={"id": [1, 2]}, mode="error")
    (table / "_latest").symlink_to(table)
    assert ps.open(table).num_rows == 2
    (table / "_latest").unlink()
    (table / "t").symlink_to(table)

    for ask in (lambda: ps.open(table), lambda: ps.write(table, data={"id": [3]}, mode="append")):
        with pytest.raises(TableNotFoundError, match=rf"'{table}/t' is a link to '{table}', which .* Remove the link\."):
            ask()


def test_links_that_form_a_cycle_raise(tmp_path: Path) -> None:
    """Links that form a cycle through several directories raise; deeply nested directories do not."""
    deep = tmp_path.joinpath("deep", *["d"] * 50)
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (deep, one, other):
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"id": [1]}), folder / "0.parquet")
    (one / "x").symlink_to(other)
    assert ps.open(one).num_rows == 2
    (other / "y").symlink_to(one)

    with pytest.raises(TableNotFoundError, match=rf"'{one}/x/y' is a link to '{one}', which contains it"):
        ps.open(one)
    assert ps.open(tmp_path / "deep").num_rows == 1


def test_a_file_name_that_is_not_utf_8_is_reported(tmp_path: Path) -> None:
    """A file name that is not UTF-8 raises TableNotFoundError, which shows its bytes."""
    pq.write_table(pa.table({"id": [1]}), tmp_path / "0.parquet")
    try:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.parquet")).touch()
    except OSError:
        pytest.skip("The filesystem has no such names.")

    with pytest.raises(
        TableNotFoundError, match=r"the file name .*xff\.parquet' is not UTF-8\. Rename the file, or remove it\."
    ):
        ps.open(tmp_path)


def test_a_column_may_have_an_empty_name(tmp_path: Path) -> None:
    """A column with an empty name, as the index of a pandas CSV file has, can be read, filtered and written."""
    path = tmp_path / "indexed.parquet"
    pq.write_table(pa.table({"": [0, 1], "a": ["x", "y"]}), path)
    ds = ps.open(path)

    ps.write(tmp_path / "copy", data=ds)

    assert ds.schema.names == ("", "a")
    assert list(ds.where(ps.col("") == 1)) == list(ps.open(tmp_path / "copy").where(ps.col("") == 1)) == [{"": 1, "a": "y"}]


@pytest.mark.slow
def test_decimals_beside_floats_become_the_nearest_floats(tmp_path: Path) -> None:
    """Decimals in a float column become the nearest floats, in rows and in statistics, so that filters lose no row."""
    prices = [Decimal(cents).scaleb(-2) for cents in range(-55_678, 55_678, 997)]
    stored = pa.table({"x": pa.array(prices, pa.decimal128(12, 2))})
    pq.write_table(stored, tmp_path / "0.parquet", row_group_size=1)
    put(tmp_path / "1.parquet", x=[1e6])
    ds = ps.open(tmp_path)

    found = [float(row["x"]) for row in ds]

    assert stored["x"].cast(pa.float64()).to_pylist() != [float(price) for price in prices]
    assert found == [*map(float, prices), 1e6]
    assert [ds.where(ps.col("x") <= value).num_rows for value in found] == list(range(1, len(found) + 1))
