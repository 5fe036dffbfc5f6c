"""Written tables are readable by Penstock and by other libraries, and a write that fails leaves no partial table."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import subprocess
import sys
import threading
import uuid
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs as pafs

import penstock as ps
from penstock._engine.parquet import thrift
from penstock.codecs import CellCodec, Npy, Png, Raw, Scalar, Tensor, register
from penstock.errors import ArgumentError, ColumnNotFoundError, DataError
from penstock.schema import Field, Schema
from penstock.schema.json import KEY, load
from penstock.write import write


@register
@dataclass(frozen=True)
class Plain(CellCodec):
    """The bytes of an array; -1 in it cannot be encoded."""

    name = "plain-bytes-of-test-write"

    def encode(self, field: Field, cell: Any) -> bytes:
        """Return the bytes."""
        if field.dtype.kind == "i" and cell.size and cell.flat[0] == -1:
            msg = "minus one"
            raise RuntimeError(msg)
        return bytes(np.asarray(cell, field.dtype).tobytes())

    def decode(self, field: Field, cell: memoryview) -> Any:
        """Return the array."""
        return np.frombuffer(cell, field.dtype).reshape([-1 if size is None else size for size in field.shape])


@register
@dataclass(frozen=True)
class Packed(Plain):
    """A codec that declares its bytes as compressed."""

    name = "packed-bytes-of-test-write"
    compressed = True


IDS = Schema("Ids", [Field("id", np.int64)])
BLOBS = Schema("Blobs", [Field("id", np.int64), Field("blob", np.int64, (None,), Plain())])


def files_below(directory: Path) -> list[str]:
    """Return the names of all files below a directory."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def ids_in(directory: Path) -> list[int]:
    """Return the ids of a table, as pyarrow reads it."""
    return sorted(pq.read_table(directory, columns=["id"]).column("id").to_pylist())


def pages(path: Path) -> dict[str, list[int]]:
    """Return the number of rows of each page of each column, from the page index of the first row group."""
    data = path.read_bytes()
    footer = thrift.parse(data[-8 - int.from_bytes(data[-8:-4], "little") : -8])
    group = footer[4][0]
    found = {}
    for chunk in group[1]:
        index = thrift.parse(data[chunk[4] : chunk[4] + chunk[5]])
        starts = [page.get(3, 0) for page in index[1]]
        found[b".".join(chunk[3][3]).decode()] = np.diff([*starts, group[3]]).tolist()
    return found


# ---------------------------------------------------------------------------------------------------------- round trip


def test_rows_are_read_back_by_penstock_and_pyarrow(tmp_path: Path) -> None:
    """Every kind of field is decoded by `penstock.open`, and is stored so that pyarrow can read it."""
    schema = Schema(
        "All",
        [
            Field("id", np.int32),
            Field("image", np.uint8, (8, 16, 3), Png()),
            Field("ragged", np.float32, (None, 2), Npy()),
            Field("raw", np.int16, (3,), Raw()),
            Field("tensor", np.float32, (2, 2), Tensor()),
            Field("name", str, nullable=True),
            Field("day", dt.date),
            Field("price", Decimal, (), Scalar("decimal128(10, 2)")),
            Field("at", dt.datetime, (), Scalar("timestamp[us, tz=UTC]"), nullable=True),
        ],
    )
    rows = [
        {
            "id": number,
            "image": np.full((8, 16, 3), number, np.uint8),
            "ragged": np.full((number % 3, 2), number, np.float32),
            "raw": np.arange(3, dtype=np.int16) + number,
            "tensor": np.full((2, 2), number, np.float32),
            "name": None if number % 4 == 0 else f"row {number}",
            "day": dt.date(2020, 1, 1 + number),
            "price": Decimal(number) / 4,
            "at": dt.datetime(2020, 1, 1, number, tzinfo=dt.UTC),
        }
        for number in range(20)
    ]

    table = write(tmp_path / "t", schema, rows)

    assert (table.num_rows, len(table.files)) == (20, 1)
    for row, found in zip(rows, ps.open(tmp_path / "t"), strict=True):
        np.testing.assert_array_equal(found["image"], row["image"])
        np.testing.assert_array_equal(found["ragged"], row["ragged"])
        np.testing.assert_array_equal(found["raw"], row["raw"])
        np.testing.assert_array_equal(found["tensor"], row["tensor"])
        assert (found["id"], found["name"], found["price"]) == (row["id"], row["name"], row["price"])
    stored = pq.read_table(tmp_path / "t")
    assert stored.column("day").to_pylist() == [row["day"] for row in rows]
    assert stored.column("at").to_pylist() == [row["at"] for row in rows]
    assert stored.column("price").to_pylist() == [row["price"] for row in rows]
    assert stored.column("ragged")[2].as_py()[:6] == b"\x93NUMPY"


@st.composite
def tables(draw: st.DrawFn) -> tuple[Schema, list[dict[str, Any]]]:
    """Draw a schema and matching rows."""
    kinds: dict[Any, st.SearchStrategy[Any]] = {
        np.int16: st.integers(-(2**15), 2**15 - 1),
        np.uint64: st.integers(0, 2**64 - 1),
        np.float64: st.floats(allow_nan=False),
        np.bool_: st.booleans(),
        str: st.text(),
        bytes: st.binary(),
        dt.date: st.dates(),
        dt.datetime: st.datetimes(),
    }
    fields, cells = [], []
    for number in range(draw(st.integers(1, 4))):
        nullable = draw(st.booleans())
        if draw(st.booleans()):
            dtype = draw(st.sampled_from(list(kinds)))
            field, value = Field(f"f{number}", dtype, nullable=nullable), kinds[dtype]
        else:
            shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))
            codec = draw(st.sampled_from([Tensor(), Npy(), Plain()]))
            field = Field(f"f{number}", np.int32, shape, codec, nullable=nullable)
            value = st.integers(0, 100).map(partial(_filled, shape))
        fields.append(field)
        cells.append(st.none() | value if nullable else value)
    rows = draw(st.lists(st.tuples(*cells), max_size=12))
    schema = Schema("Drawn", fields)
    return schema, [dict(zip(schema.names, row, strict=True)) for row in rows]


def _filled(shape: list[int], first: int) -> Any:
    return np.full(shape, first, np.int32)


@given(tables(), st.integers(1, 5), st.sampled_from([1, 2, 4]), st.data())
def test_rows_of_any_schema_are_read_back(
    tmp_path_factory: pytest.TempPathFactory, drawn: tuple[Schema, list[dict[str, Any]]], group: int, threads: int, data: Any
) -> None:
    """Rows keep their order for any number of threads and any row group size, given as rows or as batches."""
    schema, rows = drawn
    directory = tmp_path_factory.mktemp("drawn") / "t"
    cut = data.draw(st.integers(0, len(rows)))
    batch = {name: [row[name] for row in rows[cut:]] for name in schema.names}

    with write(directory, schema, row_group_rows=group, threads=threads) as table:
        for row in rows[:cut]:
            table.append(row)
        table.extend(batch)

    (file,) = table.files
    groups = pq.read_metadata(directory / file)
    assert [groups.row_group(at).num_rows for at in range(groups.num_row_groups)] == [
        min(group, len(rows) - start) for start in range(0, len(rows), group)
    ]
    found = pq.read_table(directory / file)
    for field in schema:
        expected = [row[field.name] for row in rows]
        assert [_decoded(field, cell) for cell in found.column(field.name)] == [_plain(cell) for cell in expected]


def _decoded(field: Field, cell: Any) -> Any:
    """Return a stored cell as a list or a plain value."""
    if not cell.is_valid:
        return None
    if isinstance(field.codec, CellCodec):
        return field.codec.decode(field, memoryview(cell.as_py())).tolist()
    if isinstance(field.codec, Tensor):
        return cell.to_numpy().tolist()
    return cell.as_py()


def _plain(cell: Any) -> Any:
    return cell.tolist() if isinstance(cell, np.ndarray) else cell


def test_an_empty_table_can_be_opened(tmp_path: Path) -> None:
    """An empty table has one file without rows, and its columns can be read."""
    table = write(tmp_path / "t", BLOBS, [])

    assert len(table.files) == 1
    assert pq.read_table(tmp_path / "t").num_rows == 0
    assert ps.open(tmp_path / "t").schema.names == ("id", "blob")


def test_the_schema_is_stored_in_every_file_and_in_common_metadata(tmp_path: Path) -> None:
    """Every footer and `_common_metadata` hold the full schema, including partition columns that no file stores."""
    schema = Schema("Days", [Field("day", str), Field("x", np.int8, (2,), Npy())])

    table = write(tmp_path / "t", schema, [{"day": day, "x": np.zeros(2, np.int8)} for day in "ab"], partition_by="day")

    common = pq.read_schema(tmp_path / "t" / "_common_metadata")
    assert common.names == ["day", "x"]
    assert load(common.metadata[KEY]).names == ("day", "x")
    for file in table.files:
        metadata = pq.read_metadata(tmp_path / "t" / file)
        assert metadata.schema.names == ["x"]
        assert load(metadata.metadata[KEY]) == load(common.metadata[KEY])


def test_files_carry_page_indexes_and_checksums(tmp_path: Path) -> None:
    """Files have page indexes and checksums. Blob columns have no statistics and no dictionary; other columns have both."""
    rng = np.random.default_rng(0)
    rows = [{"id": 7, "blob": rng.integers(0, 2**62, 2500)} for _ in range(100)]

    table = write(tmp_path / "t", BLOBS, rows)

    path = tmp_path / "t" / table.files[0]
    number, blob = (pq.read_metadata(path).row_group(0).column(at) for at in range(2))
    assert (number.has_offset_index, number.has_column_index, number.is_stats_set) == (True, True, True)
    assert (blob.has_offset_index, blob.is_stats_set, blob.has_dictionary_page) == (True, False, False)
    assert number.has_dictionary_page
    pq.read_table(path, page_checksum_verification=True)


@pytest.mark.parametrize("cells", [100, 2_500, 40_000])
def test_pages_hold_few_blobs_but_many_numbers(tmp_path: Path, cells: int) -> None:
    """Pages of blobs hold little more than 64 kB, while narrow columns are not split into more pages."""
    rng = np.random.default_rng(0)
    schema = Schema("Mixed", [*BLOBS, Field("tensor", np.float32, (16,))])
    blobs = rng.integers(0, 2**62, (50, cells))
    batch = {"id": np.arange(50), "blob": blobs, "tensor": np.zeros((50, 16), np.float32)}

    table = write(tmp_path / "t", schema, batch)

    found = pages(tmp_path / "t" / table.files[0])
    assert max(found["blob"]) * cells * 8 <= max(96 << 10, cells * 8)
    assert found["id"] == [50]
    assert found["tensor.list.element"] == [50]


def test_incompressible_columns_are_not_compressed(tmp_path: Path) -> None:
    """Columns whose codec compresses, and bytes that do not shrink, are stored uncompressed; other columns are compressed."""
    rng = np.random.default_rng(0)
    codecs = {"noise": Npy(), "zeros": Npy(), "packed": Packed()}
    schema = Schema("Kinds", [Field(name, np.uint8, (4096,), codec) for name, codec in codecs.items()])
    zeros = np.zeros(4096, np.uint8)
    rows = [{"noise": rng.integers(0, 256, 4096, np.uint8), "zeros": zeros, "packed": zeros} for _ in range(20)]

    table = write(tmp_path / "t", schema, rows)

    group = pq.read_metadata(tmp_path / "t" / table.files[0]).row_group(0)
    assert [group.column(at).compression for at in range(3)] == ["UNCOMPRESSED", "ZSTD", "UNCOMPRESSED"]


def test_row_groups_are_cut_by_size(tmp_path: Path) -> None:
    """Row groups are cut at about `row_group_mb` of Arrow memory."""
    rows = ({"id": number, "blob": np.arange(1024)} for number in range(1000))

    table = write(tmp_path / "t", BLOBS, rows, row_group_mb=1)

    metadata = pq.read_metadata(tmp_path / "t" / table.files[0])
    sizes = [metadata.row_group(at).num_rows * 8 * 1024 for at in range(metadata.num_row_groups)]
    assert len(sizes) > 5
    assert all(1 << 20 <= size <= 1.25 * (1 << 20) for size in sizes[:-1])


def test_files_are_cut_by_size(tmp_path: Path) -> None:
    """A file ends with the row group that fills it, and the next file continues with the next row."""
    rng = np.random.default_rng(0)
    rows = ({"id": number, "blob": rng.integers(0, 2**62, 1024)} for number in range(1000))

    table = write(tmp_path / "t", BLOBS, rows, row_group_mb=0.5, file_mb=2)

    sizes = [(tmp_path / "t" / file).stat().st_size for file in table.files]
    assert len(sizes) == 4
    assert all(2 << 20 <= size <= 2.7 * (1 << 20) for size in sizes[:-1])
    assert [file.split("-")[1] for file in table.files] == ["00000", "00001", "00002", "00003"]
    assert pa.concat_tables(pq.read_table(tmp_path / "t" / file) for file in table.files)["id"].to_pylist() == list(range(1000))


def test_many_small_batches_make_one_row_group(tmp_path: Path) -> None:
    """Batches of one row are joined into one row group."""
    batches = (pa.record_batch({"id": [number]}) for number in range(2000))

    table = write(tmp_path / "t", IDS, batches, threads=1)

    assert table.num_rows == 2000
    assert ids_in(tmp_path / "t") == list(range(2000))
    assert pq.read_metadata(tmp_path / "t" / table.files[0]).num_row_groups == 1


# ------------------------------------------------------------------------------------------------------------- the input


@pytest.mark.parametrize(
    "data",
    [
        {"id": [0, 1, 2, 3]},
        {"id": np.arange(4)},
        {"id": pd.Series(range(4))},
        [{"id": 0}, {"id": [1, 2]}, pa.table({"id": [3]})],
        [{"id": number} for number in range(4)].__iter__,
        pa.table({"id": [0, 1, 2, 3]}),
        pa.record_batch({"id": [0, 1, 2, 3]}),
        lambda: pa.table({"id": [0, 1, 2, 3]}).to_reader(max_chunksize=3),
        pd.DataFrame({"id": range(4)}),
        [pd.DataFrame({"id": [0, 1]}), pd.DataFrame({"id": [2, 3]})],
    ],
    ids=range(10),
)
@pytest.mark.parametrize("schema", [IDS, pa.schema({"id": pa.int64()}), None], ids=["ours", "arrow", "none"])
def test_all_kinds_of_data_are_accepted(tmp_path: Path, data: Any, schema: Any) -> None:
    """Mappings, Arrow data, pandas data and iterables of them can be written, with or without a schema."""
    table = write(tmp_path / "t", schema, data() if callable(data) else data)

    assert table.num_rows == 4
    assert ids_in(tmp_path / "t") == [0, 1, 2, 3]


def test_objects_with_the_arrow_stream_protocol_are_accepted(tmp_path: Path) -> None:
    """Objects of other libraries are read through the Arrow stream protocol."""

    class Foreign:
        """An object that is not one of pyarrow's own."""

        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            """Return a stream."""
            return pa.table({"id": [1, 2]}).__arrow_c_stream__(requested_schema)

    write(tmp_path / "t", IDS, Foreign())

    assert ids_in(tmp_path / "t") == [1, 2]


@pytest.mark.parametrize("kind", ["parquet", "petastorm", "delta"])
@pytest.mark.parametrize("below", ["inside", "day=1/deep/er"])
def test_writing_inside_another_table_raises(tmp_path: Path, kind: Any, below: str) -> None:
    """Writing below the directory of a table raises ArgumentError and leaves that table unchanged."""
    write(tmp_path / "t", data={"id": [1, 2, 3]}, format=kind)

    with pytest.raises(ArgumentError, match=r"lies inside the table at .*/t, which would read it as its own files"):
        write(tmp_path / "t" / below, data={"id": [4]})

    assert ps.open(tmp_path / "t").num_rows == 3
    write(tmp_path / "t2", data={"id": [4]})


def test_arrays_of_another_byte_order_are_accepted(tmp_path: Path) -> None:
    """Arrays of either byte order are stored by their values."""
    schema = Schema("Big", [Field("x", np.dtype(">i2"), (3,), Npy())])

    write(tmp_path / "t", schema, [{"x": np.array([1, 2, 300], ">i2")}, {"x": np.array([4, 5, 6], "<i2")}])

    assert ps.open(tmp_path / "t").take([0, 1])["x"].tolist() == [[1, 2, 300], [4, 5, 6]]


def test_a_single_row_is_accepted_as_data(tmp_path: Path) -> None:
    """A mapping of single cells is one row, with or without a schema."""
    write(tmp_path / "a", IDS, {"id": 5})
    write(tmp_path / "b", None, {"id": 5, "x": np.zeros(3)})

    assert (ids_in(tmp_path / "a"), ids_in(tmp_path / "b")) == ([5], [5])


def test_an_inferred_schema_is_stored(tmp_path: Path) -> None:
    """The schema inferred from the first row applies to all rows, and is read back from the table."""
    with write(tmp_path / "t") as table:
        table.append({"id": 1, "x": np.zeros((2, 3), np.float32), "name": "a"})
        table.append({"id": 2, "x": np.ones((2, 3), np.float32), "name": "b"})
        with pytest.raises(DataError, match="Row 2, field 'x': got a float64 array"):
            table.append({"id": 3, "x": np.ones((2, 3)), "name": "c"})

    assert ps.open(tmp_path / "t").schema["x"].shape == (2, 3)


def test_an_arrow_table_is_stored_unchanged(tmp_path: Path) -> None:
    """An Arrow table keeps its types, nested ones too, its metadata and its pandas index."""
    frame = pd.DataFrame({"a": [1, 2], "b": [[1], [2, 3]], "c": pd.Categorical(["x", "y"])}, index=pd.Index([5, 6], name="key"))
    table = pa.Table.from_pandas(frame).replace_schema_metadata({**pa.Table.from_pandas(frame).schema.metadata, "mine": "yes"})

    pq.write_table(table, tmp_path / "theirs.parquet")

    write(tmp_path / "t", data=table)

    found = pq.read_table(tmp_path / "t")
    assert found.schema.equals(pq.read_table(tmp_path / "theirs.parquet").schema)
    assert found.schema.metadata[b"mine"] == b"yes"
    pd.testing.assert_frame_equal(found.to_pandas(), frame, check_categorical=False)


def test_a_penstock_table_read_by_pyarrow_can_be_written_again(tmp_path: Path) -> None:
    """Encoded cells and the stored schema are copied unchanged."""
    write(tmp_path / "a", BLOBS, [{"id": 1, "blob": np.arange(3)}])

    write(tmp_path / "b", data=pq.read_table(tmp_path / "a"))

    assert ps.open(tmp_path / "b")[0]["blob"].tolist() == [0, 1, 2]


def test_invalid_data_raises(tmp_path: Path) -> None:
    """Values that are not data raise an error, both alone and among rows."""
    with pytest.raises(
        ArgumentError, match=r"write\(\) got 5 \(int\) as data; expected batches, rows, Arrow tables, data frames, or an iter"
    ):
        write(tmp_path / "t", IDS, 5)
    with pytest.raises(DataError, match=r"Row 1 is 5 \(int\); expected a mapping of names to cells"):
        write(tmp_path / "t", IDS, [{"id": 0}, 5])
    with (
        write(tmp_path / "t", IDS) as table,
        pytest.raises(DataError, match=r"Row 0 is \[1\] \(list\); expected a mapping of field names"),
    ):
        table.append([1])  # type: ignore[arg-type] # the invalid type is what is tested


def test_a_single_series_raises(tmp_path: Path) -> None:
    """A pandas Series raises ArgumentError with a message that names the alternative."""
    with pytest.raises(ArgumentError, match=r"write\(\) got Series, .* a pandas Series as series\.to_frame\('name'\)"):
        ps.write(tmp_path / "t", data=pd.Series([1, 2], name="a"))


OUT_OF_RANGE = [
    (dt.timedelta, dt.timedelta(days=200_000_000)),
    (np.dtype("m8[us]"), dt.timedelta.max),
    (np.dtype("m8[us]"), dt.timedelta.min),
    (np.dtype("M8[D]"), np.datetime64(2**31, "D")),
    (np.dtype("M8[D]"), np.datetime64(-(2**31) - 1, "D")),
    (np.dtype("M8[s]"), np.datetime64(2**62, "s")),
]


@pytest.mark.parametrize(("kind", "cell"), OUT_OF_RANGE, ids=range(len(OUT_OF_RANGE)))
@pytest.mark.parametrize("form", ["row", "list", "array"])
def test_times_out_of_range_raise(tmp_path: Path, kind: Any, cell: Any, form: str) -> None:
    """Times outside the stored range raise an error with row and field; NumPy and Arrow would change them silently."""
    data: Any = {"row": [{"v": cell}], "list": {"v": [cell]}, "array": {"v": np.array([cell])}}[form]

    with pytest.raises(DataError, match=r"Row 0, field 'v': got .* is (finer or )?further than "):
        ps.write(tmp_path / "t", Schema("S", [Field("v", kind)]), data)
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("day", [2**31 - 1, -(2**31)])
def test_the_first_and_last_days_in_range_are_read_back(tmp_path: Path, day: int) -> None:
    """The earliest and the latest day that a file can store are read back."""
    ps.write(tmp_path / "t", data={"v": np.array([day], "M8[D]")})

    assert ps.open(tmp_path / "t")[0]["v"] == np.datetime64(day, "D")


def test_an_invalid_row_raises_the_same_error_in_write_and_append(tmp_path: Path) -> None:
    """A mapping with a single number is a row, so a list beside the number is a cell and must match its field."""
    schema = Schema("Row", [Field("id", np.int64), Field("x", np.float32, (2,))])
    row = {"id": 1, "x": [0.0, 0.0]}
    reported = (
        r"^Row 0, field 'x': got \[0.0, 0.0\] \(list\); "
        r"expected a float32 array of shape \(2,\). Make it one: numpy.asarray"
    )

    with write(tmp_path / "t", schema) as table, pytest.raises(DataError, match=reported):
        table.append(row)
    for data in ([row], row):
        with pytest.raises(DataError, match=reported):
            write(tmp_path / "u", schema, data)


def test_a_first_row_of_nulls_requires_a_schema(tmp_path: Path) -> None:
    """A null in the first row has no type: without a schema it raises ArgumentError, with a schema the row is written."""
    schema = Schema("Nulls", [Field("a", np.float64, nullable=True)])
    for data in ([{"a": None}, {"a": 2.5}], {"a": None}, {"a": None, "b": [1, 2]}):
        with pytest.raises(ArgumentError, match=r"Field 'a' has no value in the first row .* Give a schema: penstock.write"):
            write(tmp_path / "t", data=data)

    write(tmp_path / "many", schema, [{"a": None}, {"a": 2.5}])
    write(tmp_path / "one", schema, {"a": None})

    assert pq.read_table(tmp_path / "many").column("a").to_pylist() == [None, 2.5]
    assert pq.read_table(tmp_path / "one").column("a").to_pylist() == [None]


def test_a_rejected_row_is_left_out_and_later_rows_are_written(tmp_path: Path) -> None:
    """Row numbers in messages count all rows that were passed in, including rejected ones."""
    with write(tmp_path / "t", IDS) as table:
        for number in range(10):
            try:
                table.append({"id": "x" if number == 3 else number})
            except DataError as error:
                assert str(error).startswith("Row 3, field 'id': got 'x' (str);")  # noqa: PT017 - not every row raises
        with pytest.raises(DataError, match="Row 11, field 'id': got 'y'"):
            table.extend({"id": [10, "y"]})

    assert table.num_rows == 9
    assert ids_in(tmp_path / "t") == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_arrays_may_be_reused_after_append(tmp_path: Path) -> None:
    """The writer copies arrays, so a caller may fill the same array for every row."""
    schema = Schema("Reused", [Field("a", np.int64, (4,)), Field("b", np.int64, (4,), Npy()), Field("c", np.int64)])
    cell, column = np.zeros(4, np.int64), np.zeros(1, np.int64)

    with write(tmp_path / "t", schema, row_group_rows=10, threads=2) as table:
        for number in range(100):
            cell[:] = column[:] = number
            if number % 2:
                table.append({"a": cell, "b": cell, "c": number})
            else:
                table.extend({"a": cell[None], "b": [cell], "c": column})

    for number, row in enumerate(ps.open(tmp_path / "t")):
        assert (row["a"].tolist(), row["b"].tolist(), int(row["c"])) == ([number] * 4, [number] * 4, number)


# ----------------------------------------------------------------------------------------------------- all or nothing


def test_an_exception_in_the_block_leaves_no_files(tmp_path: Path) -> None:
    """An exception in the `with` block leaves neither a table nor temporary files."""

    def interrupted() -> None:
        with write(tmp_path / "t", IDS, row_group_rows=1) as table:
            table.extend({"id": range(100)})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert files_below(tmp_path) == []


def test_a_generator_that_raises_leaves_the_old_table(tmp_path: Path) -> None:
    """If the data generator raises, its rows are discarded and the old table stays unchanged."""
    write(tmp_path / "t", IDS, {"id": [1, 2, 3]})
    before = files_below(tmp_path)

    def broken() -> Iterator[dict[str, int]]:
        yield {"id": 9}
        msg = "no more"
        raise RuntimeError(msg)

    for mode in ("append", "overwrite"):
        with pytest.raises(RuntimeError, match="no more"):
            write(tmp_path / "t", IDS, broken(), mode=mode)

        assert files_below(tmp_path) == before


def test_a_garbage_collected_writer_leaves_no_files(tmp_path: Path) -> None:
    """A writer that is collected without close or abort warns, removes its files and ends its threads."""
    for schema in (IDS, None):
        table = write(tmp_path / "t", schema, row_group_rows=1, threads=2)
        table.extend({"id": range(10)})
        with pytest.warns(ResourceWarning, match="was not written because its writer was not closed; rows lost: 10"):
            del table  # collected at once, because no reference cycle holds it

        assert files_below(tmp_path) == []
        assert [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock")] == []


FORGOTTEN = """
import os, sys
import penstock as ps
os.chdir(sys.argv[1])
schema = ps.Schema("", [ps.Field("id", "i8")])
table = ps.write("t", schema)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "reported"),
    [
        ("table.append({'id': 1})", True),
        ("table.append({'id': 1}); sys.exit(3)", True),
        ("table.append({'id': 1})\ntry: table.append({})\nexcept ValueError: pass", True),
        ("", False),
        ("table.append({'id': 1}); table.close()", False),
        ("table.append({'id': 1}); table.abort()", False),
        ("with table: table.append({'id': 1})", False),
        ("with table: table.append({'id': 1}); sys.exit(3)", False),
        ("table.append({'id': 1}); table.append({'id': 'one'})", False),
        ("ps.write('u', schema, [{'id': 1}])", False),
    ],
)
def test_a_script_that_forgets_to_close_is_warned(tmp_path: Path, script: str, reported: bool) -> None:  # noqa: FBT001
    """An unclosed writer is reported once at exit, but not if it was closed or aborted, or if the script raised."""
    for options in ((), ("-W", "default")):
        done = subprocess.run(
            [sys.executable, *options, "-c", FORGOTTEN + script, str(tmp_path)], capture_output=True, text=True, check=False
        )

        expected = "The table at t was not written because its writer was not closed; rows lost: 1. Write in a block, `with "
        assert done.returncode == (3 if "exit" in script else 1 if "'one'" in script else 0)
        assert done.stderr.count(expected) == reported
        assert ("ResourceWarning" in done.stderr) == (reported and bool(options))
        shutil.rmtree(tmp_path / "t", ignore_errors=True)
        shutil.rmtree(tmp_path / "u", ignore_errors=True)


def test_ignored_warnings_are_not_logged_either(tmp_path: Path) -> None:
    """The logger reports an unclosed writer only where Python itself hides the warning."""
    script = FORGOTTEN + "table.append({'id': 1})"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(tmp_path)], capture_output=True, text=True, check=True
    )

    assert done.stderr == ""
    assert files_below(tmp_path) == []


def test_a_block_may_abort_or_close_its_writer(tmp_path: Path) -> None:
    """A writer may be aborted or closed inside its block; the end of the block then changes nothing."""
    with write(tmp_path / "a", IDS, row_group_rows=1) as table:
        table.extend({"id": range(10)})
        table.abort()
    with write(tmp_path / "b", IDS) as table:
        table.append({"id": 1})
        table.close()

    assert not (tmp_path / "a").exists()
    assert ids_in(tmp_path / "b") == [1]


def test_rows_appear_only_on_close(tmp_path: Path) -> None:
    """Rows become visible when the writer is closed, and not before."""
    table = write(tmp_path / "t", IDS, row_group_rows=1)
    table.extend({"id": range(100)})

    assert not (tmp_path / "t").exists()
    table.close()
    table.close()
    assert ids_in(tmp_path / "t") == list(range(100))


def test_a_closed_or_aborted_writer_rejects_rows(tmp_path: Path) -> None:
    """Appending to a closed or an aborted writer raises ArgumentError that says which it was."""
    closed, aborted = write(tmp_path / "a", IDS, []), write(tmp_path / "b", IDS)
    aborted.abort()
    aborted.abort()

    with pytest.raises(ArgumentError, match=r"was closed; expected an open one. Begin another"):
        closed.append({"id": 1})
    with pytest.raises(ArgumentError, match=r"was aborted;"):
        aborted.extend({"id": [1]})
    with pytest.raises(ArgumentError, match=r"was aborted;"):
        aborted.close()
    assert repr(closed) == f"penstock.Writer({str(tmp_path / 'a')!r}, num_rows=0, closed)"


def test_a_cell_that_cannot_be_encoded_aborts_the_write(tmp_path: Path) -> None:
    """The error names the row, is raised by the next call or by close, and no files are left."""
    table = write(tmp_path / "t", BLOBS)
    for number in range(10):
        table.append({"id": number, "blob": np.array([-1 if number == 5 else number])})

    with pytest.raises(DataError, match=r"Row 5, field 'blob': Plain.* cannot encode it: minus one. Nothing was written."):
        table.close()

    assert files_below(tmp_path) == []


def test_an_error_in_a_writer_thread_is_raised_by_a_later_call(tmp_path: Path) -> None:
    """An error in a writer thread stops an endless producer at one of its next calls."""
    table = write(tmp_path / "t", BLOBS, row_group_mb=0.1)

    def produce() -> None:
        table.append({"id": 0, "blob": np.array([-1])})
        while True:
            table.append({"id": 1, "blob": np.zeros(10_000, np.int64)})

    with pytest.raises(DataError, match="Row 0, field 'blob'"):
        produce()
    with pytest.raises(ArgumentError, match="was aborted;"):
        table.append({"id": 1, "blob": np.zeros(1, np.int64)})
    assert files_below(tmp_path) == []


def test_writing_without_schema_and_rows_raises(tmp_path: Path) -> None:
    """Writing neither rows nor a schema raises ArgumentError, because the columns are unknown."""
    with pytest.raises(ArgumentError, match=r"Nothing was written to .*; expected rows or a schema. Give one of them."):
        write(tmp_path / "t", data=[])

    assert files_below(tmp_path) == []


def test_a_fast_producer_waits(tmp_path: Path) -> None:
    """The memory of rows that wait to be encoded is bounded, so a fast producer has to wait."""
    alive, most = [0], 0
    lock = threading.Lock()

    def on_collected() -> None:
        with lock:
            alive[0] -= 1

    with write(tmp_path / "t", BLOBS, threads=1) as table:
        for number in range(400):
            blob = np.full(1 << 15, number)  # 0.25 MB each, 100 MB in total
            blob.flags.writeable = False  # read-only arrays are not copied
            with lock:
                alive[0] += 1
            weakref.finalize(blob, on_collected)
            table.append({"id": number, "blob": blob})
            del blob
            most = max(most, alive[0])

    assert most * 0.25 <= 6
    assert table.num_rows == 400


# ---------------------------------------------------------------------------------------------------------------- modes


def test_an_existing_table_raises_by_default(tmp_path: Path) -> None:
    """Writing to an existing table raises ArgumentError unless a mode is given."""
    write(tmp_path / "t", IDS, {"id": [1]})

    with pytest.raises(ArgumentError, match='mode="error" expects an empty place'):
        write(tmp_path / "t", IDS, {"id": [2]})

    assert ids_in(tmp_path / "t") == [1]


def test_rows_are_appended(tmp_path: Path) -> None:
    """Appends accept the same fields in any order, or no schema. An append to a missing table creates it."""
    schema = Schema("Two", [Field("id", np.int64), Field("x", np.int8, (2,), Npy())])
    reordered = Schema("Two", [schema["x"], schema["id"]])
    rows: list[Any] = [{"id": number, "x": np.full(2, number, np.int8)} for number in range(4)]

    write(tmp_path / "t", schema, rows[0], mode="append")
    write(tmp_path / "t", reordered, rows[1], mode="append")
    write(tmp_path / "t", None, rows[2], mode="append")
    write(tmp_path / "t", schema, {"id": [3], "x": rows[3]["x"][None]}, mode="append")

    assert sorted((int(row["id"]), row["x"].tolist()) for row in ps.open(tmp_path / "t")) == [(n, [n, n]) for n in range(4)]
    assert len({tuple(pq.read_schema(path).names) for path in (tmp_path / "t").glob("*.parquet")}) == 1


def test_a_table_is_overwritten(tmp_path: Path) -> None:
    """Overwriting may change the schema and the partitions."""
    write(tmp_path / "t", IDS, {"id": [1, 2]})

    table = write(tmp_path / "t", BLOBS, [{"id": 3, "blob": np.zeros(1, np.int64)}], mode="overwrite", partition_by="id")

    assert files_below(tmp_path / "t") == ["_common_metadata", table.files[0]]
    assert ps.open(tmp_path / "t").schema.names == ("blob", "id")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([Field("id", np.int32), Field("x", np.int8, (2,), Npy())], "'id' has dtype 'int32' and not 'int64'"),
        ([Field("id", np.int64), Field("x", np.int8, (3,), Npy())], "'x' has shape [3] and not [2]"),
        ([Field("id", np.int64), Field("x", np.int8, (2,))], "'x' has codec {'name': 'tensor'} and not {'name': 'npy'}"),
        ([Field("id", np.int64, nullable=True), Field("x", np.int8, (2,), Npy())], "'id' has nullable True and not False"),
        ([Field("id", np.int64)], "'x' is missing"),
        ([Field("id", np.int64), Field("x", np.int8, (2,), Npy()), Field("y", str)], "'y' is not in the table"),
    ],
)
def test_appending_with_another_schema_raises(tmp_path: Path, fields: list[Field], message: str) -> None:
    """The message says how the schema differs from the schema of the table."""
    write(tmp_path / "t", Schema("Two", [Field("id", np.int64), Field("x", np.int8, (2,), Npy())]), [])

    with pytest.raises(ArgumentError) as caught:
        write(tmp_path / "t", Schema("Two", fields), [], mode="append")

    assert str(caught.value) == (
        f"The schema is not that of {tmp_path / 't'}: {message}; expected the same columns: id, x. Change the "
        'schema, leave it out, or replace the table with mode="overwrite".'
    )


def test_rows_are_appended_to_a_plain_parquet_directory(tmp_path: Path) -> None:
    """Appends to plain Parquet files compare Arrow types and add no Penstock metadata."""
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table({"id": [1], "name": ["a"]}), tmp_path / "t" / "one.parquet")

    write(tmp_path / "t", Schema("Given", [Field("id", np.int64), Field("name", str)]), {"id": 2, "name": "b"}, mode="append")
    write(tmp_path / "t", None, pa.table({"id": [3], "name": ["c"]}), mode="append")
    with pytest.raises(ArgumentError, match="'id' would be stored as int8 and is int64 there"):
        write(tmp_path / "t", Schema("Given", [Field("id", np.int8), Field("name", str)]), [], mode="append")
    with pytest.raises(ArgumentError, match="'name' would be stored as binary by Npy"):
        write(tmp_path / "t", Schema("Given", [Field("id", np.int64), Field("name", np.int8, (2,), Npy())]), [], mode="append")

    assert ids_in(tmp_path / "t") == [1, 2, 3]
    assert not (tmp_path / "t" / "_common_metadata").exists()


def test_an_append_hides_no_column(tmp_path: Path) -> None:
    """The schema is read from the first and the last file. An append becomes the last file, so it writes every column."""
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table({"id": pa.array([0], pa.int32())}), tmp_path / "t" / "0.parquet")
    pq.write_table(pa.table({"id": [1], "name": ["one"]}), tmp_path / "t" / "1.parquet")

    write(tmp_path / "t", data=[{"id": 2}, {"id": 3, "name": "three"}], mode="append", missing="null")

    assert ps.open(tmp_path / "t").to_arrow().to_pydict() == {"id": [0, 1, 2, 3], "name": [None, "one", None, "three"]}


INCOMPLETE = {
    "a row": {"id": 2},
    "rows": [{"id": 2}],
    "a batch": {"id": [2]},
    "an Arrow table": pa.table({"id": [2]}),
    "a data frame": pd.DataFrame({"id": [2]}),
    "data frames": [pd.DataFrame({"id": [2]})],
}


@pytest.mark.parametrize("kind", ["parquet", "delta"])
@pytest.mark.parametrize("incomplete", INCOMPLETE.values(), ids=INCOMPLETE)
def test_an_append_that_lacks_columns_raises_unless_missing_is_null(tmp_path: Path, incomplete: Any, kind: str) -> None:
    """An append that lacks columns of the table raises DataError; missing="null" stores nulls instead."""
    write(tmp_path / "t", data=pa.table({"id": [1], "name": ["one"], "tokens": [[1]]}), format=kind)

    with pytest.raises(DataError) as refused:
        write(tmp_path / "t", data=incomplete, mode="append", format=kind)
    write(tmp_path / "t", data=incomplete, mode="append", format=kind, missing="null")

    assert str(refused.value) == (
        "Row 0: 'name' is missing; 'tokens' is missing. Fields: id, name, tokens. "
        'Give every column, or write nulls in its place: penstock.write(..., missing="null").'
    )
    found = sorted(ps.open(tmp_path / "t").to_arrow().to_pylist(), key=lambda row: row["id"])
    assert found == [{"id": 1, "name": "one", "tokens": [1]}, {"id": 2, "name": None, "tokens": None}]


@pytest.mark.parametrize("incomplete", INCOMPLETE.values(), ids=INCOMPLETE)
def test_appending_a_dataset_that_lacks_a_column_raises_unless_missing_is_null(tmp_path: Path, incomplete: Any) -> None:
    """Rows that come from another dataset follow the same rule, batched or not."""
    write(tmp_path / "t", data=pa.table({"id": [1], "name": ["one"]}))
    write(tmp_path / "less", data=incomplete)

    for ds in (ps.open(tmp_path / "less"), ps.open(tmp_path / "less").batch(1)):
        with pytest.raises(DataError, match="Row 0: 'name' is missing"):
            write(tmp_path / "t", data=ds, mode="append")
    write(tmp_path / "t", data=ps.open(tmp_path / "less"), mode="append", missing="null")

    assert ps.open(tmp_path / "t").to_arrow().to_pydict() == {"id": [1, 2], "name": ["one", None]}


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_required_column_may_never_be_missing(tmp_path: Path, kind: str) -> None:
    """A missing column that may not be null raises DataError even with missing="null", for Penstock and Arrow schemas."""
    write(tmp_path / "ours", Schema("S", [Field("id", np.int64), Field("x", np.int64)]), {"id": 1, "x": 2}, format=kind)
    strict = pa.schema([pa.field("id", pa.int64()), pa.field("x", pa.int64(), nullable=False)])
    write(tmp_path / "arrow", strict, {"id": 1, "x": 2}, format=kind)

    for name in ("ours", "arrow"):
        for data in ({"id": 1}, pa.table({"id": [1]})):
            with pytest.raises(
                DataError,
                match=r"Row 0: 'x' is missing.*Give every field, or write the table again with a schema in which it is null",
            ):
                write(tmp_path / name, data=data, mode="append", missing="null", format=kind)


@pytest.mark.parametrize("kind", ["parquet", "delta", "petastorm"])
def test_a_nullable_field_of_the_given_schema_may_be_missing(tmp_path: Path, kind: str) -> None:
    """Nullable fields may be missing only if this write was given the schema; a stored or inferred schema does not allow it."""
    schema = Schema("S", [Field("id", np.int64), Field("name", str, nullable=True)])

    write(tmp_path / "t", schema, [{"id": 1}, {"id": [2, 3]}], format=kind)
    if kind != "petastorm":
        write(tmp_path / "t", schema, pa.table({"id": [4]}), mode="append", format=kind)
        with pytest.raises(DataError, match=r"'name' is missing.*missing="):
            write(tmp_path / "t", data={"id": 5}, mode="append", format=kind)

    expected = [1, 2, 3] if kind == "petastorm" else [1, 2, 3, 4]
    found = ps.open(tmp_path / "t").to_arrow()
    assert (sorted(found["id"].to_pylist()), found["name"].null_count) == (expected, len(expected))


@pytest.mark.parametrize("first", [{"id": 1, "name": "one"}, pa.table({"id": [1], "name": ["one"]})])
def test_columns_of_an_inferred_schema_may_be_missing_only_on_request(tmp_path: Path, first: Any) -> None:
    """Later rows must have all columns of the first row of the same write, unless missing="null" is given."""
    with write(tmp_path / "a") as table:
        table.extend([first])
        with pytest.raises(DataError, match="Row 1: 'name' is missing"):
            table.append({"id": 2})
    write(tmp_path / "b", data=[first, {"id": 2}], missing="null")

    assert ps.open(tmp_path / "a").to_arrow().to_pydict() == {"id": [1], "name": ["one"]}
    assert ps.open(tmp_path / "b").to_arrow().to_pydict() == {"id": [1, 2], "name": ["one", None]}


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_partition_column_may_be_missing_only_on_request(tmp_path: Path, kind: str) -> None:
    """A missing partition column follows the same rule as other columns."""
    write(tmp_path / "t", data=pa.table({"id": [1], "day": ["mon"]}), partition_by="day", format=kind)

    with pytest.raises(DataError, match="'day' is missing"):
        write(tmp_path / "t", data={"id": [2]}, mode="append", partition_by="day", format=kind)
    write(tmp_path / "t", data={"id": [2]}, mode="append", partition_by="day", format=kind, missing="null")

    assert {(row["id"], row["day"]) for row in ps.open(tmp_path / "t").to_arrow().to_pylist()} == {(1, "mon"), (2, None)}


@pytest.mark.parametrize("as_arrow", [False, True])
def test_missing_struct_fields_are_null_and_extra_ones_raise(tmp_path: Path, *, as_arrow: bool) -> None:
    """Struct fields that are missing become null, as in Arrow; extra struct fields raise DataError."""

    def rows(cell: dict[str, int]) -> Any:
        return pa.table({"id": [1], "s": [cell]}) if as_arrow else [{"id": 1, "s": cell}]

    ps.write(tmp_path / "t", data=pa.table({"id": [0], "s": [{"a": 1, "b": 2}]}))
    ps.write(tmp_path / "t", data=rows({"a": 5}), mode="append")
    with pytest.raises(DataError, match="field 's': got"):
        ps.write(tmp_path / "t", data=rows({"a": 5, "b": 6, "c": 7}), mode="append")

    assert ps.open(tmp_path / "t").to_arrow()["s"].to_pylist() == [{"a": 1, "b": 2}, {"a": 5, "b": None}]


def test_an_invalid_value_of_missing_raises(tmp_path: Path) -> None:
    """The argument `missing` accepts "error" and "null" only."""
    with pytest.raises(
        ArgumentError, match=r"write\(\) got missing='fill'; expected \"error\" or \"null\"\. Write missing=\"null"
    ):
        write(tmp_path / "t", data={"id": 1}, missing="fill")  # type: ignore[arg-type] # the invalid value is what is tested


def test_an_arrow_table_is_appended_to_a_penstock_table(tmp_path: Path) -> None:
    """Arrow data, including encoded cells, is appended if its types match."""
    write(tmp_path / "t", BLOBS, [{"id": 1, "blob": np.arange(2)}])

    write(tmp_path / "t", None, pa.table({"id": [2], "blob": [np.arange(3).tobytes()]}), mode="append")
    write(tmp_path / "t", pq.read_schema(tmp_path / "t" / "_common_metadata"), {"id": 3, "blob": np.arange(4)}, mode="append")

    assert sorted(len(row["blob"]) for row in ps.open(tmp_path / "t")) == [2, 3, 4]


def test_appending_to_a_petastorm_table_raises(tmp_path: Path) -> None:
    """The metadata of a Petastorm table counts row groups, so an append would make it wrong."""
    (tmp_path / "t").mkdir()
    pq.write_table(pa.table({"id": [1]}), tmp_path / "t" / "one.parquet")
    foreign = pa.schema({"id": pa.int64()}, metadata={"dataset-toolkit.num_row_groups_per_file.v1": "{}"})
    pq.write_metadata(foreign, tmp_path / "t" / "_common_metadata")

    with pytest.raises(ArgumentError, match="is a Petastorm table, whose metadata counts the row groups"):
        write(tmp_path / "t", IDS, [], mode="append")


# ----------------------------------------------------------------------------------------------------------- partitions


@st.composite
def partitioned(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    """Draw the type of a partition column, and values of that type."""
    kinds: list[tuple[Any, st.SearchStrategy[Any]]] = [
        (np.int16, st.integers(-(2**15), 2**15 - 1)),
        (np.uint64, st.integers(0, 2**64 - 1)),
        (np.bool_, st.booleans()),
        (np.float64, st.floats(allow_nan=False)),
        (np.float32, st.floats(width=32, allow_nan=False)),
        (str, st.text(max_size=20)),
        (dt.date, st.dates()),
        (dt.datetime, st.datetimes(min_value=dt.datetime(1, 1, 1), max_value=dt.datetime(9999, 1, 1))),  # noqa: DTZ001
    ]
    dtype, values = draw(st.sampled_from(kinds))
    return dtype, draw(st.lists(st.none() | values, min_size=1, max_size=8))


@given(partitioned())
def test_partition_values_are_read_back(tmp_path_factory: pytest.TempPathFactory, drawn: tuple[Any, list[Any]]) -> None:
    """Partition values of every type, nulls and special characters are read back by pyarrow and by Penstock."""
    dtype, values = drawn
    directory = tmp_path_factory.mktemp("drawn") / "t"
    schema = Schema("Parts", [Field("part", dtype, nullable=True), Field("id", np.int64)])

    write(directory, schema, [{"part": value, "id": number} for number, value in enumerate(values)], partition_by=["part"])

    stored = pq.read_schema(directory / "_common_metadata").field("part").type
    hive = pads.partitioning(pa.schema({"part": stored}), flavor="hive")
    pyarrow_table = pads.dataset(directory, format="parquet", partitioning=hive).to_table().sort_by("id")
    found = sorted(((int(row["id"]), row) for row in ps.open(directory).nulls(ps.Mask(), "part")), key=lambda pair: pair[0])
    assert pyarrow_table.column("id").to_pylist() == list(range(len(values)))
    assert pyarrow_table.column("part").to_pylist() == values
    for (_, row), value in zip(found, values, strict=True):
        assert row["part_valid"] == (value is not None)
        assert value is None or row["part"] == (np.datetime64(value) if isinstance(value, dt.date) else value)


def test_directories_follow_hive_naming(tmp_path: Path) -> None:
    """Characters with a meaning in paths are escaped, others are not, and nulls have a name of their own."""
    schema = Schema("Named", [Field("a b", str, nullable=True), Field("n", np.int8), Field("x", np.int8)])
    rows = [{"a b": value, "n": 1, "x": 1} for value in ("mon/tue", "São Paulo", None, "50%=x", "")]

    table = write(tmp_path / "t", schema, rows, partition_by=("a b", "n"))

    assert sorted(str(Path(file).parent) for file in table.files) == sorted(
        f"a b={name}/n=1" for name in ("mon%2Ftue", "São Paulo", "__HIVE_DEFAULT_PARTITION__", "50%25%3Dx", "")
    )


def test_partitions_of_an_arrow_table_keep_their_type(tmp_path: Path) -> None:
    """The stored schema holds the type of a partition column, which no file holds."""
    write(tmp_path / "t", data=pa.table({"part": pa.array(["1", "2"]), "id": [1, 2]}), partition_by="part")

    assert sorted(str(row["part"]) for row in ps.open(tmp_path / "t")) == ["1", "2"]
    assert ps.open(tmp_path / "t").schema["part"].dtype.kind in "OU"


@pytest.mark.parametrize("written", [None, "delta"])
@pytest.mark.parametrize(
    "kind", [pa.dictionary(pa.int8(), pa.string()), pa.string_view(), pa.dictionary(pa.uint32(), pa.string_view())], ids=str
)
def test_partitions_of_categories_and_views_are_text(tmp_path: Path, kind: pa.DataType, written: str | None) -> None:
    """Dictionary and view columns are read back as text when they are partition columns."""
    words = pa.array(["a", "b", None]).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string()))
    days = (
        pa.DictionaryArray.from_arrays(words.indices.cast(kind.index_type), words.dictionary.cast(kind.value_type))
        if (pa.types.is_dictionary(kind))
        else pa.array(["a", "b", None], kind)
    )
    table = pa.table({"id": [0, 1, 2], "day": days})

    write(tmp_path / "t", data=table, partition_by="day", format=written)
    write(tmp_path / "t", data=table, partition_by="day", format=written, mode="append")
    write(tmp_path / "t", table.schema, table, partition_by="day", format=written, mode="append")

    assert sorted((row["id"], row["day"]) for row in ps.open(tmp_path / "t").to_arrow().to_pylist()) == (
        [(0, "a")] * 3 + [(1, "b")] * 3 + [(2, None)] * 3
    )
    assert ps.open(tmp_path / "t").where(ps.col("day") == "b").num_rows == 3


def test_rows_of_many_mixed_partitions_are_written(tmp_path: Path) -> None:
    """All rows of a hundred mixed partitions are written."""
    rng = np.random.default_rng(0)
    parts = rng.integers(0, 100, 5000)
    batch = {"id": np.arange(5000), "part": parts}
    schema = Schema("Many", [Field("id", np.int64), Field("part", np.int64)])

    with write(tmp_path / "t", schema, row_group_rows=10, partition_by="part") as table:
        for start in range(0, 5000, 500):
            table.extend({name: cells[start : start + 500] for name, cells in batch.items()})

    found = pads.dataset(tmp_path / "t", partitioning="hive", format="parquet").to_table().sort_by("id")
    assert found.column("id").to_pylist() == list(range(5000))
    assert found.column("part").to_pylist() == parts.tolist()
    assert len(table.files) >= 100


def test_the_memory_of_all_partitions_together_is_bounded(tmp_path: Path) -> None:
    """Row groups that are not full are written early when all partitions together hold too much."""
    schema = Schema("Wide", [*BLOBS, Field("part", np.int64)])
    rows = ({"id": number, "blob": np.zeros(8192, np.int64), "part": number % 50} for number in range(500))

    table = write(tmp_path / "t", schema, rows, row_group_mb=0.5, partition_by="part")

    groups = [pq.read_metadata(tmp_path / "t" / file).row_group(0).num_rows for file in table.files]
    assert min(groups) < 8
    assert sum(pq.read_metadata(tmp_path / "t" / file).num_rows for file in table.files) == 500


def test_large_blobs_go_to_their_partitions(tmp_path: Path) -> None:
    """Large and small blobs stay with their rows in the right partitions."""
    schema = Schema("Wide", [*BLOBS, Field("part", str)])
    rows = [{"id": number, "blob": np.full(1 + 5000 * (number % 3), number), "part": "abc"[number % 2]} for number in range(30)]

    write(tmp_path / "t", schema, rows, partition_by="part")

    found = list(ps.open(tmp_path / "t"))
    assert sorted(int(row["id"]) for row in found) == list(range(30))
    for row in found:
        number = int(row["id"])
        assert row["part"] == "abc"[number % 2]
        assert row["blob"].tolist() == [number] * (1 + 5000 * (number % 3))


def test_an_empty_partitioned_table_is_appended_to(tmp_path: Path) -> None:
    """The one file of an empty partitioned table is in a partition directory, so an append knows the partition columns."""
    schema = Schema("Empty", [Field("part", str), Field("id", np.int64)])
    write(tmp_path / "t", schema, [], partition_by="part")

    write(tmp_path / "t", schema, [{"part": "a", "id": 1}], partition_by="part", mode="append")

    assert ps.open(tmp_path / "t").num_rows == 1
    with pytest.raises(ArgumentError, match=r"write\(\) got partition_by=\(\); expected \('part',\), the partitions of "):
        write(tmp_path / "t", schema, [], mode="append")


@pytest.mark.parametrize(
    "value",
    [
        "a",
        True,
        np.int8(3),
        np.float32(0.5),
        dt.date(2020, 1, 2),
        dt.datetime(2020, 1, 2, tzinfo=dt.UTC),
        pa.scalar(Decimal("1.25"), pa.decimal128(5, 2)),
        pa.scalar(Decimal("1.25"), pa.decimal64(5, 2)),
        pa.scalar(Decimal("1.25"), pa.decimal256(50, 2)),
    ],
    ids=repr,
)
def test_pandas_reads_a_partitioned_table_without_rows(tmp_path: Path, value: Any) -> None:
    """Pandas can read an empty partitioned table before and after an append, for every type of partition."""
    kind = value.type if isinstance(value, pa.Scalar) else pa.scalar(value).type
    rows = pa.table({"id": [1], "part": pa.array([value], kind)})
    write(tmp_path / "t", rows.schema, [], partition_by="part")
    empty = pd.read_parquet(tmp_path / "t")

    write(tmp_path / "t", data=rows, partition_by="part", mode="append")
    write(tmp_path / "u", data=rows, partition_by="part")

    assert (list(empty.columns), len(empty)) == (["id", "part"], 0)
    assert len(pd.read_parquet(tmp_path / "t")) == 1
    assert ps.open(tmp_path / "t")[0] == ps.open(tmp_path / "u")[0]
    assert {path.parent.name for path in tmp_path.glob("u/*/*")} < {path.parent.name for path in tmp_path.glob("t/*/*")}


@pytest.mark.parametrize(
    ("written", "dtype", "value", "reported"),
    [
        *((written, "M8[D]", day, day) for written in (None, "delta") for day in ("10000-01-01", "0000-12-31", "-0001-01-01")),
        # Delta tables cannot be partitioned by timestamps.
        (None, "M8[s]", "10000-01-01", "10000-01-01 00:00:00.000"),
        (None, "M8[us]", "-0001-01-01", "-0001-01-01 00:00:00.000000"),
    ],
)
def test_partition_dates_out_of_range_raise(tmp_path: Path, dtype: str, value: str, reported: str, written: str | None) -> None:
    """Dates outside the years 1 to 9999 raise DataError as partition values; dates at the limits are accepted."""
    schema = Schema("Far", [Field("id", np.int64), Field("day", np.dtype(dtype), nullable=True)])
    days = [None, *np.array(["0001-01-01", "2020-01-01", "9999-12-31"], dtype)]
    write(tmp_path / "t", schema, {"id": [1, 2, 3, 4], "day": days}, partition_by="day", format=written)

    with pytest.raises(DataError) as caught:
        write(
            tmp_path / "t",
            schema,
            {"id": np.arange(4), "day": [None, days[1], np.datetime64(value).astype(dtype), days[1]]},
            partition_by="day",
            format=written,
            mode="append",
        )

    assert str(caught.value) == (
        f"Row 2, partition field 'day': got {reported}, which cannot be read back from the name of a directory; "
        "expected a null or a year from 1 to 9999. Replace it, or partition by another field."
    )
    assert {None if row["day"] is None else str(row["day"])[:10] for row in ps.open(tmp_path / "t")} >= {
        "2020-01-01",
        "9999-12-31",
    }


def test_a_partition_time_with_a_zone_offset_in_seconds_raises(tmp_path: Path) -> None:
    """A zone offset is written in minutes, so an offset with seconds would be read back as another time."""
    moments = pa.array([0, -2_600_000_000_000_000], pa.timestamp("us", "Europe/Berlin"))

    with pytest.raises(DataError, match=r"Row 1, partition field 'at': got 1887-08-11 10:40:08.000000\+0053"):
        write(tmp_path / "t", None, pa.table({"id": [1, 2], "at": moments}), partition_by="at")


@pytest.mark.parametrize("written", [None, "delta"])
def test_a_date64_partition_column_raises(tmp_path: Path, written: str | None) -> None:
    """A stored schema cannot express date64, so date64 columns raise ArgumentError as partition columns."""
    table = pa.table({"id": [1], "p": pa.array([86_400_000], pa.date64())})

    with pytest.raises(ArgumentError, match=r"which is stored as date64\[ms\]; .* Cast it to date32, or choose another field"):
        write(tmp_path / "t", None, table, partition_by="p", format=written)
    assert not (tmp_path / "t").exists()

    cast = table.set_column(1, "p", table["p"].cast(pa.date32()))
    write(tmp_path / "t", None, cast, partition_by="p", format=written)
    assert ps.open(tmp_path / "t").to_arrow()["p"].to_pylist() == [dt.date(1970, 1, 2)]


@pytest.mark.parametrize("partition_by", [(), "part"])
@pytest.mark.parametrize(
    "given", [[], {"part": [], "id": []}, pa.table({"part": pa.array([], "string"), "id": pa.array([], "int64")})]
)
def test_an_append_of_nothing_adds_no_file(tmp_path: Path, partition_by: Any, given: Any) -> None:
    """An append without rows adds no file, because other readers would list an empty partition."""
    schema = Schema("Empty", [Field("part", str), Field("id", np.int64)])
    write(tmp_path / "t", schema, [{"part": "a", "id": 1}], partition_by=partition_by)
    before = files_below(tmp_path / "t")

    table = write(tmp_path / "t", schema, given, partition_by=partition_by, mode="append")

    assert (table.files, files_below(tmp_path / "t")) == ((), before)
    assert len(pd.read_parquet(tmp_path / "t")) == ps.open(tmp_path / "t").num_rows == 1


@pytest.mark.parametrize("more", [[], [{"part": 7, "id": 1}]])
def test_a_filter_passes_over_files_without_rows(tmp_path: Path, more: list[Any]) -> None:
    """Filters skip the empty file of a table that was created without rows."""
    schema = Schema("Empty", [Field("part", np.int64, nullable=True), Field("id", np.int64)])
    write(tmp_path / "t", schema, [], partition_by="part")
    write(tmp_path / "t", schema, more, partition_by="part", mode="append")
    dataset = ps.open(tmp_path / "t")

    assert dataset.where(ps.col("part") == 0).num_rows == 0
    assert dataset.where(ps.col("part").is_null()).num_rows == 0
    assert dataset.where(ps.col("part").is_null()).to_arrow().num_rows == 0
    assert dataset.where(ps.col("id") >= 0).num_rows == len(list(dataset.where(ps.col("part") == 7))) == len(more)
    assert dataset.schema.names == ("id", "part")


@pytest.mark.parametrize(
    ("partition_by", "error", "message"),
    [
        ("prt", ColumnNotFoundError, "Column 'prt' is not in the schema. Columns: part, id, x. Did you mean 'part'?"),
        (
            "x",
            ArgumentError,
            "write() got partition_by='x', which is stored as binary; expected numbers, text, booleans or dates.",
        ),
        (("part", "part"), ArgumentError, "expected different fields, and at least one left for the files. Leave some out."),
        (("part", "id", "x"), ArgumentError, "write() got partition_by='x'"),
    ],
)
def test_invalid_partition_columns_raise(tmp_path: Path, partition_by: Any, error: type[Exception], message: str) -> None:
    """Unsuitable or unknown partition columns raise an error before anything is written."""
    schema = Schema("Parts", [Field("part", str), Field("id", np.int64), Field("x", np.int8, (2,), Npy())])

    with pytest.raises(error) as caught:
        write(tmp_path / "t", schema, [], partition_by=partition_by)

    assert message in str(caught.value)
    assert files_below(tmp_path) == []


def test_the_null_directory_name_as_a_value_raises(tmp_path: Path) -> None:
    """A partition value equal to the directory name of nulls raises DataError, because it would be read as null."""
    schema = Schema("Parts", [Field("part", str), Field("id", np.int64)])

    with pytest.raises(
        DataError, match="Partition field 'part' has the value '__HIVE_DEFAULT_PARTITION__', which stands for a null"
    ):
        write(tmp_path / "t", schema, [{"part": "__HIVE_DEFAULT_PARTITION__", "id": 1}], partition_by="part")


# -------------------------------------------------------------------------------------------------------- other behaviour


def test_pandas_and_duckdb_read_the_files(tmp_path: Path) -> None:
    """Pandas and DuckDB read numbers, text and bytes."""
    duckdb = pytest.importorskip("duckdb")
    schema = Schema("Read", [*BLOBS, Field("name", str), Field("tensor", np.float32, (2,))])
    rows = [
        {"id": number, "blob": np.arange(number), "name": f"n{number}", "tensor": np.ones(2, np.float32)} for number in range(5)
    ]

    table = write(tmp_path / "t", schema, rows, row_group_rows=2)

    path = str(tmp_path / "t" / table.files[0])
    frame = pd.read_parquet(path)
    found = duckdb.sql(f"select id, blob, name, tensor from '{path}' order by id").fetchall()  # noqa: S608 - a trusted path
    assert frame["blob"].tolist() == [np.arange(number).tobytes() for number in range(5)]
    assert [row[1] for row in found] == frame["blob"].tolist()
    assert [row[2] for row in found] == ["n0", "n1", "n2", "n3", "n4"]
    assert [list(row[3]) for row in found] == [[1, 1]] * 5


def test_a_table_is_written_to_any_filesystem(tmp_path: Path) -> None:
    """Tables can be written by URL, to filesystems of pyarrow and to filesystems of fsspec."""
    memory = pytest.importorskip("fsspec").filesystem("memory")
    inside = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())

    write(f"file://{tmp_path}/a", IDS, {"id": [1]})
    write("b", IDS, {"id": [2]}, filesystem=inside)
    write("memory://test-write/c", IDS, {"id": [3]})
    write("/test-write/c", IDS, {"id": [4]}, filesystem=memory, mode="append")

    assert (ids_in(tmp_path / "a"), ids_in(tmp_path / "b")) == ([1], [2])
    assert sorted(int(row["id"]) for row in ps.open("memory://test-write/c")) == [3, 4]
    memory.rm("/test-write", recursive=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "replace"}, "mode='replace' is not known;"),
        (
            {"row_group_mb": 0},
            "write() got row_group_mb=0; expected a number of megabytes above 0, for example row_group_mb=64.",
        ),
        ({"file_mb": "large"}, "write() got file_mb='large';"),
        ({"row_group_rows": 1.5}, "write() got row_group_rows=1.5; expected a positive integer. Give one"),
        ({"compression": "zip"}, "write() got compression='zip'; expected one of none, snappy, gzip, brotli, zstd, lz4."),
        ({"threads": 0}, "write() got threads=0; expected a positive integer. Give one"),
        ({"schema": {"id": int}}, "expected a penstock.Schema or a pyarrow.Schema. Give one, or write data by its name"),
        ({"source": ["a", "b"]}, "The target is ['a', 'b']; expected the path or URL of one directory"),
        ({"source": ""}, "The target is ''; expected"),
    ],
)
def test_invalid_arguments_raise(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    """Invalid arguments raise ArgumentError before anything is written."""
    with pytest.raises(ArgumentError) as caught:
        write(**{"source": tmp_path / "t", "schema": IDS, "data": [], **options})

    assert message in str(caught.value)
    assert files_below(tmp_path) == []


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "brotli", "zstd", "lz4", None])
def test_every_compression_is_read_back(tmp_path: Path, compression: str | None) -> None:
    """Tables are readable with every value of `compression`."""
    write(
        tmp_path / "t",
        BLOBS,
        [{"id": number, "blob": np.zeros(100, np.int64)} for number in range(10)],
        compression=compression,
    )

    assert ids_in(tmp_path / "t") == list(range(10))


def test_progress_is_printed_only_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`progress=True` prints one line to standard error at the end; otherwise nothing is printed."""
    write(tmp_path / "a", IDS, {"id": [1, 2, 3]})
    assert capsys.readouterr() == ("", "")

    write(tmp_path / "b", IDS, {"id": [1, 2, 3]}, progress=True)

    out, err = capsys.readouterr()
    assert out == ""
    assert "3 rows" in " ".join(err.split())  # lines are broken where the path is long


def test_the_stored_schema_is_json(tmp_path: Path) -> None:
    """The stored schema is plain JSON, readable without Penstock."""
    write(tmp_path / "t", IDS, [])

    reported = json.loads(pq.read_schema(tmp_path / "t" / "_common_metadata").metadata[KEY])
    assert reported["fields"] == [{"name": "id", "dtype": "int64", "shape": [], "nullable": False, "codec": {"name": "scalar"}}]


def test_appended_rows_come_after_existing_rows(tmp_path: Path) -> None:
    """File names continue the existing numbering, so that rows are read in the order of the appends."""
    for start in range(0, 30, 5):
        write(tmp_path / "t", data={"id": np.arange(start, start + 5)}, mode="append")

    assert [int(row["id"]) for row in ps.open(tmp_path / "t")] == list(range(30))


def test_a_row_of_nulls_is_a_row(tmp_path: Path) -> None:
    """With a schema, a mapping without lists or arrays is a row and never a batch."""
    schema = Schema("S", [Field("a", int, nullable=True), Field("b", str, nullable=True)])
    write(tmp_path / "t", schema, [{"a": 1, "b": "x"}, {"a": None, "b": None}, {}])

    assert ps.open(tmp_path / "t").to_arrow().to_pylist() == [
        {"a": 1, "b": "x"},
        {"a": None, "b": None},
        {"a": None, "b": None},
    ]


def test_a_float_is_not_rounded_to_a_decimal(tmp_path: Path) -> None:
    """A float in a decimal column raises DataError; Arrow would round it silently."""
    schema = Schema("S", [Field("a", Decimal, (), Scalar("decimal128(5, 1)"))])
    with pytest.raises(DataError, match="a float is no exact decimal"):
        write(tmp_path / "t", schema, pa.table({"a": [1.25]}))


def test_writing_to_the_working_directory_keeps_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory is changed in place and not replaced by another directory."""
    monkeypatch.chdir(tmp_path)
    write(".", data={"id": [1, 2]})

    assert Path.cwd() == tmp_path
    assert ps.open(".").num_rows == 2


@pytest.mark.parametrize("name", ["parquet", "petastorm", "delta"])
def test_formats_can_be_given_by_name(tmp_path: Path, name: str) -> None:
    """A format name works for writing and opening; an unknown name raises ArgumentError that lists the known names."""
    schema = ps.Schema("S", [ps.Field("id", np.int64)])
    ps.write(tmp_path / "t", schema, [{"id": 1}, {"id": 2}], format=name)

    assert [int(row["id"]) for row in ps.open(tmp_path / "t", format=name)] == [1, 2]
    assert (tmp_path / "t" / "_delta_log").exists() == (name == "delta")
    with pytest.raises(ArgumentError, match=r"expected a format that can be written: 'delta', 'petastorm', or an object"):
        ps.write(tmp_path / "u", schema, format="iceberg")
    with pytest.raises(ArgumentError, match=r"or one of the names .*'delta'.*'parquet'"):
        ps.open(tmp_path / "t", format="iceberg")


COPIED = ps.Schema(
    "Copied",
    [
        Field("id", np.int64),
        Field("name", str, nullable=True),
        Field("v", np.int32, (None,)),
        Field("image", np.uint8, (4, 4), Png()),
    ],
)


def copied_rows() -> list[dict[str, Any]]:
    """Return rows whose nulls and array lengths cannot be inferred from the first rows."""
    return [
        {
            "id": n,
            "name": None if n > 5 else f"n{n}",
            "v": np.arange(n, dtype=np.int32),
            "image": np.full((4, 4), n, np.uint8),
        }
        for n in range(10)
    ]


@pytest.mark.parametrize("size", [None, 4, "row_group"])
def test_a_dataset_can_be_written(tmp_path: Path, size: Any) -> None:
    """A dataset of rows or batches can be written directly, as a loader or as an iterator, and keeps columns and codecs."""
    write(tmp_path / "a", COPIED, copied_rows(), row_group_rows=3)
    ds = ps.open(tmp_path / "a")
    source = ds if size is None else ds.batch(size)
    for number, data in enumerate([source, ps.loader(source), iter(source)]):
        directory = tmp_path / str(number)

        assert write(directory, data=data).num_rows == 10
        found = ps.open(directory)
        assert found.schema.fields == ds.schema.fields
        assert found.to_arrow().equals(ds.to_arrow())


def test_a_dataset_of_arrow_columns_can_be_written(tmp_path: Path) -> None:
    """Lists, structs and text from plain Parquet files keep their types, even if the first rows are empty or null."""
    table = pa.table({"l": [[], [1, 2]], "s": [None, "x"], "d": [{"a": 1}, {"a": None}]})
    pq.write_table(table, tmp_path / "a.parquet")
    for number, source in enumerate([ps.open(tmp_path / "a.parquet"), ps.open(tmp_path / "a.parquet").batch(1)]):
        write(tmp_path / str(number), data=source)

        assert ps.open(tmp_path / str(number)).to_arrow().to_pylist() == table.to_pylist()


def test_mapped_and_mixed_datasets_can_be_written(tmp_path: Path) -> None:
    """Columns made by `map` get their types from the first batch. Mixtures can be written, also to another format."""
    write(tmp_path / "a", data={"id": np.arange(10)})
    ds = ps.open(tmp_path / "a")
    twice = ds.batch(4).map(lambda batch: {"twice": batch["id"] * 2})

    write(tmp_path / "b", data=twice)
    assert ps.open(tmp_path / "b").to_arrow()["twice"].to_pylist() == list(range(0, 20, 2))
    assert write(tmp_path / "c", data=ps.mix([(ds, 1)]).batch(3)).num_rows == 10
    assert write(tmp_path / "d", data=ps.mix([(ds.batch(2), 1)])).num_rows == 10
    assert write(tmp_path / "e", data=ds.batch(3), format="petastorm").num_rows == 10
    assert write(tmp_path / "a", data=ds.shuffle().batch(5), mode="append").num_rows == 10
    assert ps.open(tmp_path / "a").num_rows == 20


def test_writing_an_endless_dataset_raises(tmp_path: Path) -> None:
    """An endless dataset raises ArgumentError and leaves no files."""
    write(tmp_path / "a", data={"id": [1]})
    for endless in (ps.open(tmp_path / "a").repeat(), ps.loader(ps.open(tmp_path / "a").batch(1).repeat())):
        with pytest.raises(
            ArgumentError, match=r"which repeats without end; expected data with an end\. Leave \.repeat\(\) out"
        ):
            write(tmp_path / "b", data=endless)

    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("names", [3, None, [3], [None, "id"]])
def test_partition_by_must_be_names(tmp_path: Path, names: Any) -> None:
    """A `partition_by` that is not a name or a list of names raises ArgumentError that shows its value."""
    with pytest.raises(ArgumentError) as caught:
        write(tmp_path / "t", data={"id": [1]}, partition_by=names)

    assert str(caught.value) == (
        f"write() got partition_by={names!r}; expected the name of a field, or a list of names. Give them, or leave it out."
    )


@pytest.mark.parametrize("mode", ["error", "append"])
def test_copies_keep_nulls_and_cells_as_they_are_stored(tmp_path: Path, mode: Any) -> None:
    """Copies to the same codec are not decoded: nulls stay nulls, and JPEGs are not encoded again."""
    random = np.random.default_rng(0)
    fields = [
        ps.Field("id", np.int64),
        ps.Field("n", np.int64, nullable=True),
        ps.Field("f", np.float32, nullable=True),
        ps.Field("v", np.float32, (2,), nullable=True),
        ps.Field("image", np.uint8, (16, 16, 3), ps.codecs.Jpeg(80), nullable=True),
    ]

    def row(number: int) -> dict[str, Any]:
        if number % 3 == 0:
            return {"id": number}
        image = random.integers(0, 256, (16, 16, 3), np.uint8)
        return {"id": number, "n": number, "f": np.float32("nan"), "v": np.ones(2, np.float32), "image": image}

    schema = ps.Schema("Rows", fields)
    ps.write(tmp_path / "a", schema, map(row, range(50)), row_group_rows=7)
    if mode == "append":
        ps.write(tmp_path / "b", schema, [])
    stored = ps.open(tmp_path / "a").to_arrow()
    source = ps.open(tmp_path / "a").where(ps.col("id") >= 4).batch(8, last="drop")

    written = ps.write(tmp_path / "b", data=source, mode=mode)
    found = ps.open(tmp_path / "b").to_arrow()

    assert written.num_rows == 40
    assert found["id"].to_pylist() == list(range(4, 44))
    for name in ("n", "v", "image"):
        assert found[name].to_pylist() == stored[name].slice(4, 40).to_pylist()
    assert found["f"].null_count == stored["f"].slice(4, 40).null_count > 0


def test_copies_to_another_codec_are_encoded_again(tmp_path: Path) -> None:
    """Cells are decoded and encoded again when the target field has another codec."""
    image = ps.Field("image", np.uint8, (8, 8), ps.codecs.Png())
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8)
    ps.write(tmp_path / "a", ps.Schema("Rows", [image]), [{"image": pixels}])
    ps.write(tmp_path / "b", ps.Schema("Rows", [image.with_codec(ps.codecs.Npy())]), ps.open(tmp_path / "a"))

    assert (ps.open(tmp_path / "b")[0]["image"] == pixels).all()
    assert ps.open(tmp_path / "b").to_arrow()["image"][0].as_py()[1:6] == b"NUMPY"


@pytest.mark.parametrize("written", [None, "delta"])
@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.int16(), 0),
        pa.list_(pa.list_(pa.int16(), 0)),
        pa.list_(pa.list_(pa.int16(), 0), 2),
        pa.struct([("a", pa.list_(pa.int16(), 0))]),
        pa.map_(pa.string(), pa.list_(pa.int16(), 0)),
        pa.fixed_shape_tensor(pa.int16(), [0, 3]),
    ],
    ids=str,
)
def test_lists_of_fixed_length_zero_raise(tmp_path: Path, kind: pa.DataType, written: str | None) -> None:
    """Lists of fixed length 0 raise, because pyarrow writes nulls for them; as variable-length lists they are read back."""
    with pytest.raises(ArgumentError, match=r"Column 'x' is .*: of the fixed length 0, which pyarrow writes wrongly"):
        write(tmp_path / "t", pa.schema({"x": kind}), [], format=written)
    assert not (tmp_path / "t").exists()

    cast = pa.array([[], []], pa.list_(pa.int16(), 0)).cast(pa.list_(pa.int16()))
    write(tmp_path / "t", None, pa.table({"x": cast}), format=written)
    assert ps.open(tmp_path / "t").to_arrow()["x"].to_pylist() == [[], []]


def _extension_lists(cells: list[Any], kind: pa.DataType, storage: pa.DataType) -> pa.Array:
    """Return lists of an extension type; Arrow can build them only from lists of the storage type."""
    return pa.array(cells, pa.list_(storage)).cast(pa.list_(kind))


LIST_ARRAYS: dict[str, pa.Array] = {
    "dates": pa.array([[dt.date(2020, 1, 1), None], [], None, [dt.date(1, 1, 1)]]),
    "dates in milliseconds": pa.array([[dt.date(2020, 1, 1)]], pa.list_(pa.date64())),
    "times": pa.array([[dt.time(1, 2), dt.time(3, 4, 5, 6)]]),
    "times in seconds": pa.array([[dt.time(1, 2)]], pa.list_(pa.time32("s"))),
    "times in nanoseconds": pa.array([[5, 7]]).cast(pa.list_(pa.time64("ns"))),
    "two times": pa.array([[dt.time(1), dt.time(2)]], pa.list_(pa.time64("us"), 2)),
    "lists of dates": pa.array([[[dt.date(2020, 1, 1)], []]]),
    "lists of two": pa.array([[[1, 2], [3, 4]], []], pa.list_(pa.list_(pa.int8(), 2))),
    "two lists of one": pa.array([[[1], [2]]], pa.list_(pa.list_(pa.int8(), 1), 2)),
    "lists of two dates": pa.array([[[dt.date(2020, 1, 1)] * 2]], pa.list_(pa.list_(pa.date32(), 2))),
    "identifiers": _extension_lists([[b"0123456789abcdef", None], [], None], pa.uuid(), pa.binary(16)),
    "bytes for booleans": _extension_lists([[1, 0]], pa.bool8(), pa.int8()),
    "texts of JSON": _extension_lists([["{}", "1"]], pa.json_(), pa.string()),
    "tensors": _extension_lists([[[1, 2, 3, 4]]], pa.fixed_shape_tensor(pa.int8(), (2, 2)), pa.list_(pa.int8(), 4)),
    "types of others": _extension_lists([[1], None], pa.opaque(pa.int16(), "x", "y"), pa.int16()),
    "lists of two words": pa.array([[["a", "b"]]], pa.list_(pa.list_(pa.string(), 2))),
}


@pytest.mark.parametrize("name", LIST_ARRAYS)
def test_lists_that_arrow_cannot_build_from_numpy_are_copied(tmp_path: Path, name: str) -> None:
    """Shuffled copies of such list columns, as rows and as batches, equal the original."""
    table = pa.table({"x": LIST_ARRAYS[name], "i": range(len(LIST_ARRAYS[name]))})
    ps.write(tmp_path / "t", data=table)
    shuffled = ps.open(tmp_path / "t").shuffle(seed=1)

    ps.write(tmp_path / "rows", data=shuffled)
    ps.write(tmp_path / "batches", data=shuffled.batch(2, last="uneven"))

    for copy in ("rows", "batches"):
        found = pq.read_table(tmp_path / copy).sort_by("i")
        assert found.equals(pq.read_table(tmp_path / "t"))


@pytest.mark.parametrize(
    ("kind", "cell"),
    [
        (pa.list_(pa.date32()), np.array(["2020-01-01T01"], "M8[h]")),
        (pa.list_(pa.time64("us")), np.array([1], "M8[us]")),
        (pa.list_(pa.list_(pa.int8(), 2)), np.array([[1.5, 2]])),
    ],
)
def test_list_values_that_would_lose_precision_raise(tmp_path: Path, kind: pa.DataType, cell: Any) -> None:
    """List values that the column type cannot hold exactly raise DataError."""
    refused = pytest.raises(DataError, match=r"Row 0, field 'x': got a .* array of shape")
    with refused, ps.write(tmp_path / "t", pa.schema({"x": kind})) as table:
        table.append({"x": cell})


def test_extension_types_inside_structs_and_maps_are_written(tmp_path: Path) -> None:
    """Arrow cannot build extension types inside structs and maps from Python values; rows with them are written anyway."""
    one, other = uuid.UUID(int=1), uuid.UUID(int=2)
    schema = pa.schema({"s": pa.struct({"a": pa.uuid(), "b": pa.bool8()}), "m": pa.map_(pa.string(), pa.uuid())})
    rows: list[Any] = [
        {"s": {"a": one, "b": True}, "m": {"k": other}},
        {"s": {"a": None, "b": None}, "m": []},
        {"s": None, "m": None},
    ]

    with write(tmp_path / "t", schema) as table:
        table.extend(rows)
        with pytest.raises(DataError, match=r"Row 3, field 's': .* would be stored as"):
            table.append({"s": {"a": one, "c": 1}, "m": None})

    assert pq.read_schema(tmp_path / "t" / table.files[0]).types == schema.types
    assert [row["s"] for row in ps.open(tmp_path / "t")] == [row["s"] for row in rows]
    assert [row["m"] for row in ps.open(tmp_path / "t")] == [[("k", other)], [], None]


def test_paths_with_parent_steps_are_read_where_they_are_written(tmp_path: Path) -> None:
    """`..` is resolved after links and works below missing directories; a table on the way is not written into."""
    (tmp_path / "far" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "far" / "deep")
    write(tmp_path / "t", data={"id": [1]})

    for above, directory in (("nothing/..", "a"), ("link/..", "far/a"), ("t/..", "b")):
        path = f"{tmp_path}/{above}/{Path(directory).name}"
        write(path, data={"id": [1, 2]})

        for same in (path, f"file://{path}", tmp_path / directory):
            assert [row["id"] for row in ps.open(same)] == [1, 2]
        assert ps.open(path, filesystem=pafs.LocalFileSystem()).num_rows == 2
        assert ps.open(path, filesystem=LocalFileSystem()).num_rows == 2
