"""A schema is given to tables that others wrote, and their files stay as they are."""

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


def table_of(place: Path, *tables: pa.Table) -> Path:
    """Write a file for each table, as others would."""
    place.mkdir(exist_ok=True)
    for number, table in enumerate(tables):
        pq.write_table(table, place / f"part-{number}.parquet")
    return place


def encoded(*arrays: Any) -> pa.Array:
    """Return arrays as `.npy`."""
    return pa.array([None if array is None else Npy().encode(FIELD, array) for array in arrays], pa.binary())


def test_cells_are_decoded_once_a_schema_is_adopted(tmp_path: Path) -> None:
    """Data files are untouched, columns that the schema does not name stay as they are."""
    place = table_of(tmp_path / "t", pa.table({"x": encoded(ARRAY, ARRAY + 1), "name": ["a", "b"]}))
    before = (place / "part-0.parquet").read_bytes()

    adopt(place, Schema("Adopted", [FIELD]))

    rows = list(ps.open(place))
    assert (place / "part-0.parquet").read_bytes() == before
    assert [row["name"] for row in rows] == ["a", "b"]
    np.testing.assert_array_equal(rows[1]["x"], ARRAY + 1)
    assert sorted(path.name for path in place.iterdir()) == ["_common_metadata", "part-0.parquet"]


def test_what_others_wrote_beside_it_is_kept(tmp_path: Path) -> None:
    """Foreign key-values of `_common_metadata` stay, whatever bytes they are; a schema of ours is replaced."""
    place = table_of(tmp_path / "t", pa.table({"x": encoded(ARRAY)}))
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
def test_columns_that_suit_are_adopted(tmp_path: Path, field: Field, column: pa.Array) -> None:
    """Bytes for codecs that make them, lists of the right size for tensors, values of the dtype for scalars."""
    place = table_of(tmp_path / "t", pa.table({"x": column}))

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
def test_columns_that_do_not_suit_are_refused(tmp_path: Path, field: Field, column: pa.Array, message: str) -> None:
    """Which column, where and why is told, and nothing is written."""
    place = table_of(tmp_path / "t", pa.table({"x": column}))

    with pytest.raises(ArgumentError) as caught:
        adopt(place, Schema("Adopted", [field]))

    assert message.format(file=place / "part-0.parquet") in str(caught.value)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["part-0.parquet", "t"]


def test_a_field_without_a_column_is_refused(tmp_path: Path) -> None:
    """The columns that exist are told, and the nearest."""
    place = table_of(tmp_path / "t", pa.table({"label": [1]}))

    with pytest.raises(ColumnNotFoundError, match=r"Column 'lable' is not in .*Did you mean 'label'?"):
        adopt(place, Schema("Adopted", [Field("lable", np.int64)]))


def test_a_column_that_some_files_lack_must_be_nullable(tmp_path: Path) -> None:
    """Rows of such files are null there."""
    place = table_of(tmp_path / "t", pa.table({"a": [1], "b": [1.0]}), pa.table({"a": [2]}))

    with pytest.raises(ArgumentError, match=r"Column 'b' is not in .*part-1.parquet, and the field is not nullable."):
        adopt(place, Schema("Adopted", [Field("b", np.float64)]))
    adopt(place, Schema("Adopted", [Field("b", np.float64, nullable=True)]))

    assert ps.open(place).num_rows == 2


def test_the_first_file_with_rows_is_looked_at(tmp_path: Path) -> None:
    """Files without rows say nothing."""
    empty = pa.table({"x": pa.array([], pa.binary())})
    place = table_of(tmp_path / "t", empty, empty, pa.table({"x": [b"junk"]}))

    with pytest.raises(ArgumentError, match=r"Column .* in .*part-2.parquet does not match its field"):
        adopt(place, Schema("Adopted", [FIELD]))


def test_partition_columns_are_adopted(tmp_path: Path) -> None:
    """What directories name is read in the type that the field says, if it can be."""
    place = tmp_path / "t"
    for day in (1, 2):
        table_of(place, pa.table({"id": [day]}))
        (place / f"day={day}").mkdir()
        (place / "part-0.parquet").rename(place / f"day={day}" / "part-0.parquet")

    adopt(place, Schema("Adopted", [Field("day", np.int8)]))
    with pytest.raises(ArgumentError, match="Column 'day' is a partition column; its values do not fit bool"):
        adopt(place, Schema("Adopted", [Field("day", np.bool_)]))
    with pytest.raises(ArgumentError, match=r"Column 'day' is a partition column, which Npy.* cannot store"):
        adopt(place, Schema("Adopted", [Field("day", np.int8, (2,), Npy())]))

    assert ps.open(place).schema["day"].dtype == np.int8


@pytest.mark.parametrize("name", ["t/part-0.parquet", "t/*.parquet", "nowhere"])
def test_only_a_directory_has_a_place_for_a_schema(tmp_path: Path, name: str) -> None:
    """Single files, patterns and nothing are refused."""
    table_of(tmp_path / "t", pa.table({"id": [1]}))

    with pytest.raises(ArgumentError, match=r"where there is no directory; expected a directory of Parquet files."):
        adopt(tmp_path / name, Schema("Adopted", [Field("id", np.int64)]))


def test_storage_that_does_not_answer_is_told() -> None:
    """Before anything is asked of a table there."""

    class Mute(MemoryFileSystem):  # type: ignore[misc] # fsspec has no types
        cachable = False

        def info(self, path: str, **options: Any) -> Any:
            raise OSError(f"no answer for {path} and {options}")

    with pytest.raises(TableNotFoundError, match="'/t' cannot be read: no answer"):
        adopt("/t", Schema("S", [Field("x", np.int8)]), filesystem=Mute())


def test_other_arguments_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    """A schema, one directory and data files in it are needed."""
    with pytest.raises(ArgumentError, match=r"adopt\(\) got schema=None; expected a penstock.Schema with at least one field."):
        adopt(tmp_path, None)  # type: ignore[arg-type] # that is what is tested
    with pytest.raises(ArgumentError, match="expected the path or URL of one directory"):
        adopt([tmp_path], Schema("Adopted", [FIELD]))  # type: ignore[arg-type] # that is what is tested
    with pytest.raises(ArgumentError, match=r"adopt: .* has no Parquet file"):
        adopt(tmp_path, Schema("Adopted", [FIELD]))


def test_an_adopted_table_is_appended_to(tmp_path: Path) -> None:
    """With the schema that it was given, and the columns that it has besides."""
    place = table_of(tmp_path / "t", pa.table({"x": encoded(ARRAY), "name": ["a"]}))
    adopt(place, Schema("Adopted", [FIELD]))

    write(place, None, {"x": ARRAY + 1, "name": "b"}, mode="append")

    assert sorted(float(row["x"][0, 0]) for row in ps.open(place)) == [0.0, 1.0]
