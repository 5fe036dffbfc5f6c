"""`adopt` adds a schema to tables of other software, and leaves their data files unchanged."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import penstock as ps
from penstock.adopt import adopt
from penstock.codecs import Npy, Raw
from penstock.errors import ArgumentError, ColumnNotFoundError, TableNotFoundError
from penstock.schema import Field, Schema
from penstock.schema.json import KEY, load
from penstock.write import write

ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)
FIELD = Field("x", np.float32, (2, 3), Npy())


def write_files(place: Path, *tables: pa.Table) -> Path:
    """Write one Parquet file for each table, without a schema of Penstock."""
    place.mkdir(exist_ok=True)
    for number, table in enumerate(tables):
        pq.write_table(table, place / f"part-{number}.parquet")
    return place


def encoded(*arrays: Any) -> pa.Array:
    """Return a column of arrays encoded as `.npy`; None becomes null."""
    return pa.array([None if array is None else Npy().encode(FIELD, array) for array in arrays], pa.binary())


def test_cells_are_decoded_once_a_schema_is_adopted(tmp_path: Path) -> None:
    """Cells decode after `adopt`; data files and columns outside the schema stay unchanged."""
    place = write_files(tmp_path / "t", pa.table({"x": encoded(ARRAY, ARRAY + 1), "name": ["a", "b"]}))
    before = (place / "part-0.parquet").read_bytes()

    adopt(place, Schema("Adopted", [FIELD]))

    rows = list(ps.open(place))
    assert (place / "part-0.parquet").read_bytes() == before
    assert [row["name"] for row in rows] == ["a", "b"]
    np.testing.assert_array_equal(rows[1]["x"], ARRAY + 1)
    assert sorted(path.name for path in place.iterdir()) == ["_common_metadata", "part-0.parquet"]


def test_foreign_metadata_is_kept(tmp_path: Path) -> None:
    """`adopt` keeps foreign key-values of `_common_metadata`, whatever their bytes, and replaces an earlier adopted schema."""
    place = write_files(tmp_path / "t", pa.table({"x": encoded(ARRAY)}))
    foreign = pa.schema({"x": pa.binary()}, metadata={b"theirs": bytes(range(256)), b"more": b"1"})
    pq.write_metadata(foreign, place / "_common_metadata")

    adopt(place, Schema("First", [FIELD]))
    adopt(place, Schema("Second", [FIELD]))

    found = pq.read_schema(place / "_common_metadata")
    assert (found.metadata[b"theirs"], found.metadata[b"more"]) == (bytes(range(256)), b"1")
    assert load(found.metadata[KEY]).name == "Second"
    assert found.names == ["x"]


@pytest.mark.parametrize(
    ("field", "column"),
    [
        (Field("x", np.int32), pa.array([1, 2], pa.int32())),
        (Field("x", str), pa.array(["a"], pa.large_string())),
        (Field("x", str), pa.array(["a"]).dictionary_encode()),
        (Field("x", bytes), pa.array([b"a"])),
        (Field("x", Decimal), pa.array([Decimal("1.5")], pa.decimal128(5, 2))),
        (Field("x", dt.date), pa.array([dt.date(2020, 1, 1)])),
        (Field("x", "datetime64[ms]"), pa.array([1], pa.timestamp("ms", tz="UTC"))),
        (Field("x", np.float32, (2, 3)), pa.array([ARRAY.tolist()], pa.list_(pa.list_(pa.float32())))),
        (Field("x", np.float32, (2, 3)), pa.array([ARRAY.ravel().tolist()], pa.list_(pa.float32(), 6))),
        (Field("x", np.float32, (2, 3)), pa.FixedShapeTensorArray.from_numpy_ndarray(np.stack([ARRAY, ARRAY]))),
        (Field("x", np.float32, (2, 3), nullable=True), pa.array([None, ARRAY.tolist()], pa.list_(pa.list_(pa.float32())))),
        (replace(FIELD, nullable=True), encoded(None, ARRAY).cast(pa.large_binary())),
        (Field("x", np.float32, (2, 3), Raw()), pa.array([ARRAY.tobytes()], pa.binary(24))),
    ],
)
def test_compatible_columns_are_adopted(tmp_path: Path, field: Field, column: pa.Array) -> None:
    """A column is adopted if its type suits the codec: bytes, lists of the right size, or values of the dtype."""
    place = write_files(tmp_path / "t", pa.table({"x": column}))

    adopt(place, Schema("Adopted", [field]))

    assert load(pq.read_schema(place / "_common_metadata").metadata[KEY])["x"].shape == field.shape


@pytest.mark.parametrize(
    ("field", "column", "message"),
    [
        (
            FIELD,
            pa.array([1]),
            "Column 'x' is int64 in {file}, and Npy() reads bytes. Give the field another dtype, shape or codec.",
        ),
        (
            Field("x", np.int32),
            pa.array([1]),
            "Column 'x' is int64 in {file}, and Scalar(type=None) reads single values of int32.",
        ),
        (
            Field("x", str),
            pa.array([b"a"]),
            "Column 'x' is binary in {file}, and Scalar(type=None) reads single values of text.",
        ),
        (Field("x", Decimal), pa.array(["1"]), "and Scalar(type=None) reads single values of decimal."),
        (Field("x", np.int64), pa.array([[1]]), "Column 'x' is list<element: int64> in {file}"),
        (
            Field("x", np.int64, (None,)),
            pa.array([[1]]),
            "Npy() reads bytes. Leave the field out: lists become arrays without it.",
        ),
        (Field("x", np.float32, (2,)), pa.array([[1.0, 2.0]]), "and Tensor() reads lists or tensors of float32 (2,)."),
        (
            Field("x", np.float64, (3,)),
            pa.array([[1.0, 2.0]]),
            "Column 'x' in {file} does not match its field: row 0 got a list of 2; expected lists of 3 values.",
        ),
        (
            FIELD,
            pa.array([b"junk"]),
            "Column 'x' in {file} does not match its field: row 0 got bytes that it cannot decode; expected a cell "
            "that Npy() has encoded.",
        ),
        (FIELD, encoded(ARRAY[:1]), "The codec says: it holds float32 (1, 3), and the schema says float32 (2, 3)."),
    ],
)
def test_incompatible_columns_raise(tmp_path: Path, field: Field, column: pa.Array, message: str) -> None:
    """A column that does not match its field raises an error with the column, file and reason, and nothing is written."""
    place = write_files(tmp_path / "t", pa.table({"x": column}))

    with pytest.raises(ArgumentError) as caught:
        adopt(place, Schema("Adopted", [field]))

    assert message.format(file=place / "part-0.parquet") in str(caught.value)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["part-0.parquet", "t"]


def test_a_field_without_a_column_raises(tmp_path: Path) -> None:
    """A field without a column raises an error that suggests the nearest column name."""
    place = write_files(tmp_path / "t", pa.table({"label": [1]}))

    with pytest.raises(ColumnNotFoundError, match=r"Column 'lable' is not in .*Did you mean 'label'?"):
        adopt(place, Schema("Adopted", [Field("lable", np.int64)]))


def test_a_column_that_some_files_lack_must_be_nullable(tmp_path: Path) -> None:
    """A column that is missing in some files is adopted only if its field is nullable."""
    place = write_files(tmp_path / "t", pa.table({"a": [1], "b": [1.0]}), pa.table({"a": [2]}))

    with pytest.raises(ArgumentError, match=r"Column 'b' is not in .*part-1.parquet, and the field is not nullable."):
        adopt(place, Schema("Adopted", [Field("b", np.float64)]))
    adopt(place, Schema("Adopted", [Field("b", np.float64, nullable=True)]))

    assert ps.open(place).num_rows == 2


def test_cells_are_checked_in_the_first_file_with_rows(tmp_path: Path) -> None:
    """The first cell of a column is checked in the first file that has rows."""
    empty = pa.table({"x": pa.array([], pa.binary())})
    place = write_files(tmp_path / "t", empty, empty, pa.table({"x": [b"junk"]}))

    with pytest.raises(ArgumentError, match=r"Column .* in .*part-2.parquet does not match its field"):
        adopt(place, Schema("Adopted", [FIELD]))


def test_partition_columns_are_adopted(tmp_path: Path) -> None:
    """A partition column takes the dtype of its field; a dtype or codec that does not suit its values raises an error."""
    place = tmp_path / "t"
    for day in (1, 2):
        write_files(place, pa.table({"id": [day]}))
        (place / f"day={day}").mkdir()
        (place / "part-0.parquet").rename(place / f"day={day}" / "part-0.parquet")

    adopt(place, Schema("Adopted", [Field("day", np.int8)]))
    with pytest.raises(ArgumentError, match="Column 'day' is a partition column; its values do not fit bool"):
        adopt(place, Schema("Adopted", [Field("day", np.bool_)]))
    with pytest.raises(ArgumentError, match=r"Column 'day' is a partition column, which Npy.* cannot store"):
        adopt(place, Schema("Adopted", [Field("day", np.int8, (2,), Npy())]))

    assert ps.open(place).schema["day"].dtype == np.int8


@pytest.mark.parametrize("name", ["t/part-0.parquet", "t/*.parquet", "nowhere"])
def test_only_a_directory_can_have_a_schema(tmp_path: Path, name: str) -> None:
    """Single files, patterns and missing paths raise ArgumentError."""
    write_files(tmp_path / "t", pa.table({"id": [1]}))

    with pytest.raises(ArgumentError, match=r"where there is no directory; expected a directory of Parquet files."):
        adopt(tmp_path / name, Schema("Adopted", [Field("id", np.int64)]))


def test_unreachable_storage_raises() -> None:
    """Storage that does not answer raises TableNotFoundError with its message."""

    class UnreachableFileSystem(MemoryFileSystem):  # type: ignore[misc] # fsspec has no types
        cachable = False

        def info(self, path: str, **options: Any) -> Any:
            raise OSError(f"no answer for {path} and {options}")

    with pytest.raises(TableNotFoundError, match="'/t' cannot be read: no answer"):
        adopt("/t", Schema("S", [Field("x", np.int8)]), filesystem=UnreachableFileSystem())


def test_invalid_arguments_raise(tmp_path: Path) -> None:
    """A missing schema, a list of directories and a directory without Parquet files raise ArgumentError."""
    with pytest.raises(ArgumentError, match=r"adopt\(\) got schema=None; expected a penstock.Schema with at least one field."):
        adopt(tmp_path, None)  # type: ignore[arg-type] # an invalid schema
    with pytest.raises(ArgumentError, match="expected the path or URL of one directory"):
        adopt([tmp_path], Schema("Adopted", [FIELD]))  # type: ignore[arg-type] # an invalid source
    with pytest.raises(ArgumentError, match=r"adopt: .* has no Parquet file"):
        adopt(tmp_path, Schema("Adopted", [FIELD]))


def test_an_adopted_table_can_be_appended_to(tmp_path: Path) -> None:
    """An append without a schema uses the adopted schema and the columns outside it."""
    place = write_files(tmp_path / "t", pa.table({"x": encoded(ARRAY), "name": ["a"]}))
    adopt(place, Schema("Adopted", [FIELD]))

    write(place, None, {"x": ARRAY + 1, "name": "b"}, mode="append")

    assert sorted(float(row["x"][0, 0]) for row in ps.open(place)) == [0.0, 1.0]
