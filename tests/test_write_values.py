"""Written values are read back unchanged, or raise an error where NumPy, Arrow or Parquet would change them silently."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.codecs import Jpeg, Npy, Npz, Png, Raw, Scalar, Tensor
from penstock.errors import ArgumentError, DataError


def field(*arguments: Any, **options: Any) -> ps.Schema:
    """Return a schema of one field."""
    return ps.Schema("S", [ps.Field("x", *arguments, **options)])


# Nested values: structs, lists and maps.

FIRST = pa.table(
    {
        "f": pa.array([[1.0]], pa.list_(pa.float32())),
        "d": pa.array([[dt.date(2020, 1, 1)]]),
        "t": pa.array([[dt.datetime(2020, 1, 1)]], pa.list_(pa.timestamp("ms"))),  # noqa: DTZ001
        "n": pa.array([{"a": 1, "when": dt.datetime(2020, 1, 1)}]),  # noqa: DTZ001
        "m": pa.array([list({"k": 1}.items())], pa.map_(pa.string(), pa.int64())),
    }
)
EAST = dt.timezone(dt.timedelta(hours=5))
LOSSY = [
    ("f", [1e300]),
    ("f", np.array([1e300])),
    ("f", [2**24 + 1]),
    ("d", [dt.datetime(2020, 1, 1, 13)]),  # noqa: DTZ001
    ("t", [dt.datetime(2020, 1, 1, 0, 0, 0, 1)]),  # noqa: DTZ001
    ("t", [np.datetime64("2020-01-01T00:00:00.000001")]),
    ("t", [dt.datetime(2020, 1, 1, tzinfo=EAST)]),
    ("n", {"a": 2, "b": "lost"}),
    ("n", {"when": dt.datetime(2020, 1, 1, tzinfo=EAST)}),
    ("m", {"k": 1.5}),
]


@pytest.mark.parametrize(("name", "cell"), LOSSY, ids=map(str, range(len(LOSSY))))
def test_nested_values_that_would_change_raise(tmp_path: Path, name: str, cell: Any) -> None:
    """Nested values that would change raise DataError, as single rows and in batches."""
    ps.write(tmp_path / "t", data=FIRST.select([name]))
    with ps.write(tmp_path / "t", mode="append") as table:
        with pytest.raises(DataError, match=f"Row 0, field '{name}'"):
            table.append({name: cell})
        with pytest.raises(DataError, match=f"Row 1, field '{name}'"):
            table.extend({name: [cell]})
    assert ps.open(tmp_path / "t").to_arrow().select([name]) == FIRST.select([name])


LOSSLESS = [
    ("f", [0.1, float("nan"), float("inf")]),
    ("f", np.array([0.5])),
    ("d", [dt.datetime(2020, 1, 1), dt.date(2021, 1, 1)]),  # noqa: DTZ001
    ("t", [np.datetime64("2020-01-01T00:00:00.001")]),
    ("n", {"a": 3}),
    ("m", {"k": 2.0}),
]


@pytest.mark.parametrize(("name", "cell"), LOSSLESS, ids=map(str, range(len(LOSSLESS))))
def test_nested_values_that_are_kept_are_written(tmp_path: Path, name: str, cell: Any) -> None:
    """A float may be rounded to float32, midnight is a date, and a missing struct field becomes null."""
    ps.write(tmp_path / "t", data=FIRST.select([name]))
    with ps.write(tmp_path / "t", mode="append") as table:
        table.append({name: cell})

    assert ps.open(tmp_path / "t").num_rows == 2


ARROW = [
    ("n", pa.array([{"a": 2, "b": "lost"}])),
    ("n", pa.array([{"renamed": 3}])),
    ("n", pa.array([{"a": "4"}])),
    ("f", pa.array([[1e300]])),
    ("f", pa.array([["1"]])),
    ("t", pa.array([[dt.datetime(2020, 1, 1)]], pa.list_(pa.timestamp("ms", tz="UTC")))),  # noqa: DTZ001
    ("m", pa.array([list({"k": "1"}.items())], pa.map_(pa.string(), pa.string()))),
]


@pytest.mark.parametrize(("name", "column"), ARROW, ids=map(str, range(len(ARROW))))
@pytest.mark.parametrize("format", [None, "delta"])
def test_nested_arrow_columns_that_would_change_raise(tmp_path: Path, name: str, column: pa.Array, format: Any) -> None:  # noqa: A002
    """Arrow columns raise DataError where struct fields would be dropped, numbers rounded, or text read as numbers."""
    first = FIRST.select([name]).cast(pa.schema([pa.field(name, _in_microseconds(FIRST.schema.field(name).type))]))
    ps.write(tmp_path / "t", data=first, format=format)
    for data in (pa.table({name: column}), iter([pa.table({name: column})])):
        with pytest.raises(DataError, match=f"Row 0, field '{name}'"):
            ps.write(tmp_path / "t", data=data, mode="append", format=format)
    with pytest.raises(DataError, match=f"Row 1, field '{name}'"):
        ps.write(tmp_path / "u", data=iter([first, pa.table({name: column})]), format=format)
    assert ps.open(tmp_path / "t").num_rows == 1


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    """Return the type with timestamps in microseconds, which Delta supports."""
    if pa.types.is_list(kind) and pa.types.is_timestamp(kind.value_type):
        return pa.list_(pa.timestamp("us"))
    return kind


def test_arrow_columns_may_differ_where_nothing_is_lost(tmp_path: Path) -> None:
    """Arrow columns may have wider numbers that fit, and structs with fewer fields or another order."""
    ps.write(tmp_path / "t", data=pa.table({"x": [{"a": 1, "b": [1.5]}]}))
    ps.write(tmp_path / "t", data=pa.table({"x": pa.array([{"b": [2], "a": 2}])}), mode="append")
    ps.write(tmp_path / "t", data=pa.table({"x": pa.array([{"a": 3}])}), mode="append")

    found = [row["x"] for row in ps.open(tmp_path / "t").to_arrow().to_pylist()]
    assert found == [{"a": 1, "b": [1.5]}, {"a": 2, "b": [2.0]}, {"a": 3, "b": None}]


# Numbers and times.


@pytest.mark.parametrize("cell", [np.int64(2**53 + 1), np.uint64(2**64 - 1), np.int64(2**63 - 1)])
def test_integers_are_not_rounded_to_floats(tmp_path: Path, cell: Any) -> None:
    """Integers that a float cannot hold exactly raise an error with the row, as single values and in arrays."""
    with pytest.raises(DataError, match=f"Row 0, field 'x': got {cell}"):
        ps.write(tmp_path / "t", field(np.float64), [{"x": cell}])
    with pytest.raises(DataError, match=f"Row 1, field 'x': got .*{cell}"):
        ps.write(tmp_path / "t", field(np.float64), {"x": np.array([1, cell], cell.dtype)})
    with pytest.raises(DataError, match="Row 0, field 'x'"):
        ps.write(tmp_path / "t", field(np.complex128, (), Npy()), [{"x": cell}])
    for number in (np.int64(2**53 + 2), np.int64(-(2**63)), np.uint64(2**63)):
        ps.write(tmp_path / "t", field(np.float64), {"x": np.array([number, 5], number.dtype)}, mode="overwrite")
        assert ps.open(tmp_path / "t")[0]["x"] == float(number)


def test_times_in_multiples_of_a_unit_keep_their_value(tmp_path: Path) -> None:
    """Times in multiples of a unit are converted to that unit; an explicit Scalar codec with such a dtype raises."""
    ps.write(tmp_path / "t", data={"t": np.array(["2020-01-01"], "M8[10us]"), "d": np.array([3], "m8[7ms]")})

    assert ps.open(tmp_path / "t")[0] == {"t": np.datetime64("2020-01-01T00:00:00.000000"), "d": np.timedelta64(21, "ms")}
    ps.write(tmp_path / "u", field(np.dtype("M8[10us]")), [{"x": np.datetime64(20, "us")}])
    assert ps.open(tmp_path / "u")[0]["x"] == np.datetime64(20, "us")
    with pytest.raises(ArgumentError, match=r"Field 'x' has dtype datetime64\[10us\], which Arrow does not have"):
        field(np.dtype("M8[10us]"), (), Scalar())


STORED = [
    ("timestamp[s]", "M8[s]", np.datetime64("2020-01-01T01:01:01")),
    ("timestamp[s, tz=UTC]", "M8[s]", np.datetime64("2020-01-01T01:01:01")),
    ("time32[s]", "m8[s]", np.timedelta64(5, "s")),
    ("date64", "M8[ms]", np.datetime64("2020-01-01", "ms")),
    ("timestamp[us]", "M8[ms]", np.datetime64("2020-01-01T01:01:01.500")),
    ("int8", "i8", np.int64(100)),
    ("uint16", "i4", np.int32(7)),
    (None, "M8[s]", np.datetime64("2020-01-01T01:01:01")),
]


@pytest.mark.parametrize(("name", "dtype", "cell"), STORED, ids=str)
def test_values_have_the_dtype_of_their_field(tmp_path: Path, name: Any, dtype: str, cell: Any) -> None:
    """Values are read with the dtype of their field, even if Parquet or the codec stores another type."""
    schema = field(np.dtype(dtype), (), Scalar(name))
    ps.write(tmp_path / "t", schema, [{"x": cell}])
    ps.write(tmp_path / "t", schema, {"x": np.array([cell], dtype)}, mode="append")
    ps.write(tmp_path / "t", None, [{"x": cell}], mode="append")
    ds = ps.open(tmp_path / "t")
    ps.write(tmp_path / "u", data=ds)
    ps.write(tmp_path / "v", data=ds.shuffle(seed=1))

    assert next(iter(ds.shuffle(seed=1)))["x"].dtype == np.dtype(dtype)
    for one in (ds, ps.open(tmp_path / "u"), ps.open(tmp_path / "v")):
        (batch,) = one.batch(3)
        assert batch["x"].dtype == np.dtype(dtype) == one.schema["x"].dtype
        assert batch["x"].tolist() == [cell.item()] * 3
        assert one[1]["x"] == cell
        assert one[1]["x"].dtype == np.dtype(dtype)


def test_a_date64_value_with_a_time_of_day_raises(tmp_path: Path) -> None:
    """`date64` counts milliseconds but files store days, so a time of day raises DataError."""
    schema = field(np.dtype("M8[ms]"), (), Scalar("date64"))
    for data in ([{"x": np.datetime64("2020-01-01T13:14:15", "ms")}], {"x": np.array(["2020-01-01T13:14:15"], "M8[ms]")}):
        with pytest.raises(DataError, match=r"Row 0, field 'x': .* finer or further than"):
            ps.write(tmp_path / "t", schema, data)


def test_times_that_numpy_cannot_convert_raise(tmp_path: Path) -> None:
    """Times whose unit NumPy cannot convert to the unit of the field raise DataError."""
    with pytest.raises(DataError, match=r"Row 0, field 'x': .* finer or further than"):
        ps.write(tmp_path / "t", field(np.dtype("M8[D]")), [{"x": np.datetime64(1, "as")}])


# Data frames.


def test_a_data_frame_may_be_changed_after_it_is_written(tmp_path: Path) -> None:
    """The writer copies data frames, so a generator may refill one frame, with and without a schema."""

    def frames() -> Iterator[pd.DataFrame]:
        frame = pd.DataFrame({"i": np.zeros(2, "i8")})
        for number in range(4):
            frame.loc[:, "i"] = number
            yield frame

    for schema in (None, ps.Schema("S", [ps.Field("i", np.int64)])):
        ps.write(tmp_path / "t", schema, frames(), mode="overwrite")
        assert ps.open(tmp_path / "t").to_arrow()["i"].to_pylist() == [0, 0, 1, 1, 2, 2, 3, 3]
    with ps.write(tmp_path / "u") as table:
        frame = pd.DataFrame({"i": [1, 2]})
        table.extend(frame)
        frame.iloc[0, 0] = 99
    assert ps.open(tmp_path / "u").to_arrow()["i"].to_pylist() == [1, 2]


# Values that NumPy or Parquet cannot represent.

UNSUPPORTED = [
    pa.table({"x": pa.array([{}], pa.struct([]))}),
    pa.table({"x": pa.array([2**60], pa.timestamp("s"))}),
    pd.DataFrame({"x": pd.arrays.SparseArray([0, 1])}),
]


@pytest.mark.parametrize("data", UNSUPPORTED, ids=map(str, range(len(UNSUPPORTED))))
def test_types_that_parquet_cannot_store_raise(tmp_path: Path, data: Any) -> None:
    """Data that Parquet or Arrow cannot represent raises DataError and leaves no files."""
    with pytest.raises(DataError, match=r"Parquet cannot store it|Arrow cannot convert"):
        ps.write(tmp_path / "t", data=data)
    assert list(tmp_path.iterdir()) == []


MISFITS: list[tuple[Any, Any, str]] = [
    (field("U2"), pa.table({"x": ["ab", "abc"]}), "Row 1, field 'x': got 3 characters; expected 2 at most"),
    (field("S2"), pa.table({"x": [None, b"abc"]}).cast(pa.schema({"x": pa.binary()})), "Row 0, field 'x': got a null"),
    (field("S2"), pa.table({"x": [b"abc"]}), "Row 0, field 'x': got 3 bytes; expected 2 at most"),
    (field(np.int64), [{"x": np.ma.array(5, mask=True)}], "Row 0, field 'x': got a masked value"),
    (field(np.float64, nullable=True), [{"x": np.ma.masked}], "Row 0, field 'x': got a masked value"),
    (field(np.bool_), [{"x": np.ma.array(True, mask=True)}], "Row 0, field 'x': got a masked value"),  # noqa: FBT003
    (field(np.dtype("M8[ns]")), pa.table({"x": pa.array([2**40], pa.timestamp("s"))}), "Row 0, field 'x': got 1099511627776"),
]


@pytest.mark.parametrize(("schema", "data", "message"), MISFITS, ids=map(str, range(len(MISFITS))))
def test_values_that_do_not_fit_raise_with_their_row(tmp_path: Path, schema: ps.Schema, data: Any, message: str) -> None:
    """Long text, masked values and times out of range raise an error that names the row."""
    with pytest.raises(DataError, match=message):
        ps.write(tmp_path / "t", schema, data)


@pytest.mark.parametrize(
    ("kind", "cells"),
    [
        (pa.list_(pa.int8()), [[1], [1.5]]),
        (pa.list_(pa.int8(), 2), [[1, 2], [1.5, 2]]),
        (pa.list_(pa.string()), [["a"], "no"]),
        (pa.struct({"x": pa.int8()}), [{"x": 1}, {"x": 1, "y": 2}]),
        (pa.struct({"x": pa.timestamp("ms")}), [{"x": None}, {"x": dt.datetime(2020, 1, 1, microsecond=5)}]),  # noqa: DTZ001
        (pa.map_(pa.string(), pa.int8()), [{"a": 1}, {"a": 1.5}]),
    ],
    ids=str,
)
def test_nested_data_frame_cells_that_would_change_raise(tmp_path: Path, kind: pa.DataType, cells: list[Any]) -> None:
    """Lists, structs and maps in data frames that would be rounded or cut raise DataError with their row."""
    schema = pa.schema({"x": kind})
    frame = pd.DataFrame({"x": pd.Series(cells, dtype=object)})

    with pytest.raises(DataError, match=r"^Row 1, field 'x': got .* It would be stored as"):
        ps.write(tmp_path / "t", schema, frame)

    ps.write(tmp_path / "t", schema, frame.iloc[[0, 0]])
    assert ps.open(tmp_path / "t").to_arrow()["x"].to_pylist() == pa.array(cells[:1] * 2, kind).to_pylist()


def test_data_frames_of_lists_and_structs_keep_their_values(tmp_path: Path) -> None:
    """Nested cells keep their values, whether or not Arrow infers the requested types; NaN cells are null."""
    schema = pa.schema(
        {"narrow": pa.list_(pa.float32()), "same": pa.list_(pa.int64()), "part": pa.struct({"a": pa.int8(), "b": pa.int8()})}
    )
    cells = {"narrow": [[0.1], None, float("nan")], "same": [[1, 2], [], None], "part": [{"a": 1}, {"b": 2}, None]}
    arrow = pd.Series(pa.array(cells["same"]), dtype=pd.ArrowDtype(pa.list_(pa.int64())))

    for same in (pd.Series(cells["same"], dtype=object), arrow):
        frame = pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in cells.items()}).assign(same=same)
        ps.write(tmp_path / "t", schema, frame, mode="overwrite")

        found = ps.open(tmp_path / "t").to_arrow()
        assert found["narrow"].to_pylist() == [[float(np.float32(0.1))], None, None]
        assert found["same"].to_pylist() == cells["same"]
        assert found["part"].to_pylist() == [{"a": 1, "b": None}, {"a": None, "b": 2}, None]


def test_a_schema_inferred_from_nulls_is_nullable(tmp_path: Path) -> None:
    """NaT in an array is stored as a null, so the inferred field is nullable."""
    ps.write(tmp_path / "t", data={"d": np.array(["2020-01-01", "NaT"], "M8[D]")})

    assert ps.open(tmp_path / "t").to_arrow()["d"].to_pylist() == [dt.date(2020, 1, 1), None]
    with pytest.raises(ArgumentError, match=r"Scalar\(\) got type='decimal128\(10, -2\)'"):
        Scalar("decimal128(10, -2)")


# Copies.

NOISE = np.random.default_rng(0).integers(0, 256, (32, 32, 3)).astype(np.uint8)


def pictures(directory: Path, **options: Any) -> ps.Dataset:
    """Write and open a table with a lossy codec, a tensor, nulls and lists."""
    fields = [
        ps.Field("i", np.int64),
        ps.Field("x", np.uint8, (None, None, 3), Jpeg(30)),
        ps.Field("v", np.float32, (2,)),
        ps.Field("r", np.int16, (3,), Raw()),
        ps.Field("n", np.int64, nullable=True),
    ]
    rows = [
        {"i": 0, "x": NOISE, "v": np.ones(2, "f4"), "r": np.arange(3, dtype="i2"), "n": None},
        {"i": 1, "x": NOISE[:8], "v": np.zeros(2, "f4"), "r": np.arange(3, dtype="i2"), "n": 5},
    ]
    ps.write(directory, ps.Schema("T", fields), rows, **options)
    return ps.open(directory)


@pytest.mark.parametrize("source", [None, "delta"])
@pytest.mark.parametrize("target", [None, "delta", "petastorm"])
def test_a_copy_keeps_codecs_and_cells_in_every_format(tmp_path: Path, source: Any, target: Any) -> None:
    """In a copy JPEGs are not encoded again, variable shapes stay variable, and nulls stay nulls."""
    names = ["i", "x", "n"] if target == "petastorm" else ["i", "x", "v", "r", "n"]
    ds = pictures(tmp_path / "a", format=source).select(*names)
    ps.write(tmp_path / "b", data=ds, format=target)
    copy = ps.open(tmp_path / "b")

    assert copy.to_arrow()["x"].to_pylist() == ds.to_arrow()["x"].to_pylist()
    assert copy.to_arrow()["n"].to_pylist() == [None, 5]
    assert copy.schema["x"].shape == (None, None, 3)
    assert copy.schema["x"].codec == Jpeg(30) or target == "petastorm"
    for name in names[2:4]:
        if name != "n":
            np.testing.assert_array_equal([row[name] for row in copy.select(name)], [row[name] for row in ds.select(name)])


def test_a_delta_copy_keeps_nested_columns(tmp_path: Path) -> None:
    """Structs, maps and lists of lists are copied without a codec."""
    maps = pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))
    table = pa.table({"s": [{"a": 1, "b": "t"}], "l": [[[1, 2], []]], "m": maps})
    ps.write(tmp_path / "a", data=table, format="delta")
    ps.write(tmp_path / "b", data=ps.open(tmp_path / "a"), format="delta")

    assert ps.open(tmp_path / "b").to_arrow().to_pylist() == table.to_pylist()


# Adopted tables.


def test_lists_that_were_adopted_as_tensors_are_appended_to(tmp_path: Path) -> None:
    """Rows appended without a schema are stored like the existing cells of an adopted table."""
    (tmp_path / "t").mkdir()
    stored = {"x": pa.array([[1.0, 2.0, 3.0, 4.0]], pa.list_(pa.float32())), "r": pa.array([bytes(4)], pa.binary())}
    pq.write_table(pa.table(stored), tmp_path / "t/p.parquet")
    fields = [ps.Field("x", np.float32, (2, 2), Tensor()), ps.Field("r", np.int16, (2,), Raw())]
    ps.adopt(tmp_path / "t", ps.Schema("T", fields))

    row = {"x": np.full((2, 2), 9, "f4"), "r": np.array([1, 2], "i2")}
    ps.write(tmp_path / "t", data=[row], mode="append")

    found = list(ps.open(tmp_path / "t"))
    assert [one["x"].tolist() for one in found] == [[[1.0, 2.0], [3.0, 4.0]], [[9.0, 9.0], [9.0, 9.0]]]
    assert [one["r"].tolist() for one in found] == [[0, 0], [1, 2]]


NESTED = pa.list_(pa.list_(pa.int32()))


@pytest.mark.parametrize("kind", [NESTED, pa.list_(pa.list_(pa.int32(), 2)), pa.list_(pa.list_(pa.int32(), 2), 2)], ids=str)
def test_lists_of_lists_are_adopted_as_tensors(tmp_path: Path, kind: pa.DataType) -> None:
    """Adopted lists of lists are read as tensors with the shape of their field."""
    (tmp_path / "t").mkdir()
    cells: list[Any] = [[[1, 2], [3, 4]], None if kind == NESTED else [[5, 6], [7, 8]]]
    pq.write_table(pa.table({"x": pa.array(cells, kind)}), tmp_path / "t/p.parquet")
    ps.adopt(tmp_path / "t", ps.Schema("T", [ps.Field("x", np.int32, (2, 2), Tensor(), nullable=True)]))
    ds = ps.open(tmp_path / "t").nulls(ps.Fill(7), "x").batch(2)

    (batch,) = ds
    assert batch["x"].tolist() == [[[1, 2], [3, 4]], [[7, 7], [7, 7]] if kind == NESTED else [[5, 6], [7, 8]]]


def test_adopted_lists_of_other_sizes_raise(tmp_path: Path) -> None:
    """Lists of other sizes in a later file raise DataError when read; a row group of nulls is filled."""
    (tmp_path / "t").mkdir()
    for number, cells in enumerate([[[[1, 2], [3, 4]]], [None], [[[1, 2, 3], [4, 5, 6]]]]):
        pq.write_table(pa.table({"x": pa.array(cells, NESTED)}), tmp_path / f"t/{number}.parquet")
    ps.adopt(tmp_path / "t", ps.Schema("T", [ps.Field("x", np.int32, (2, 2), Tensor(), nullable=True)]))
    ds = ps.open(tmp_path / "t").nulls(ps.Mask(), "x").batch("row_group")

    batches = iter(ds)
    assert next(batches)["x_valid"].all()
    assert next(batches) == {"x": pytest.approx(np.zeros((1, 2, 2))), "x_valid": pytest.approx(np.zeros((1, 2, 2)))}
    with pytest.raises(DataError, match=r"2\.parquet, row group 0, row 0, column 'x': the lists have the sizes \(2, 3\)"):
        next(batches)


# Arrow data from other libraries.

VIEWS = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.uint32()), pa.array(["a", "b"], pa.string_view()))
PLAIN_VALUES: dict[str, tuple[pa.Array, list[Any]]] = {
    "categories of views": (VIEWS, ["a", "b", None]),
    "categories of bytes": (VIEWS.cast(pa.dictionary(pa.uint32(), pa.binary_view())), [b"a", b"b", None]),
    "lists of categories": (pa.ListArray.from_arrays([0, 2, 3], VIEWS), [["a", "b"], [None]]),
    "structs of categories": (pa.StructArray.from_arrays([VIEWS], ["s"]), [{"s": "a"}, {"s": "b"}, {"s": None}]),
    "runs": (pa.RunEndEncodedArray.from_arrays([2, 3], [7, 8]), [7, 7, 8]),
    "categories of lists": (pa.DictionaryArray.from_arrays([1, 0], pa.array([[1], [2, 3]])), [[2, 3], [1]]),
}


@pytest.mark.parametrize("name", PLAIN_VALUES)
def test_types_that_pyarrow_does_not_write_are_written_as_their_values(tmp_path: Path, name: str) -> None:
    """Dictionaries of views, which Polars exports, and run-end encoded arrays are written as plain values."""
    source_array, expected = PLAIN_VALUES[name]
    ps.write(tmp_path / "t", data=pa.table({"x": source_array}))
    ps.write(tmp_path / "t", data=pa.table({"x": source_array}), mode="append")

    assert pq.read_table(tmp_path / "t")["x"].to_pylist() == expected * 2


def test_categories_of_views_are_text_for_a_field(tmp_path: Path) -> None:
    """Dictionaries of string views are read as text in a text field."""
    ps.write(tmp_path / "t", field(str, nullable=True), pa.table({"x": VIEWS}))

    assert [row["x"] for row in ps.open(tmp_path / "t")] == ["a", "b", None]


@pytest.mark.parametrize("codec", [None, Raw(), Npz()])
@pytest.mark.parametrize("kind", [pa.list_, pa.large_list, pa.list_view], ids=["list", "large_list", "list_view"])
def test_arrow_lists_become_arrays_of_variable_length(tmp_path: Path, codec: Any, kind: Any) -> None:
    """Arrow lists of any kind become arrays whose first dimension varies, also from a sliced table."""
    lists = pa.array([[9], [1, 2], None, [], [3]], kind(pa.int32()))
    boxes = pa.array([[], [[1, 2], [3, 4]], [[5, 6]], None, []], kind(pa.list_(pa.int32(), 2)))
    fields = [ps.Field("x", "i4", (None,), codec, nullable=True), ps.Field("y", "i4", (None, 2), codec, nullable=True)]

    ps.write(tmp_path / "t", ps.Schema("S", fields), pa.table({"x": lists, "y": boxes}).slice(1))

    rows = list(ps.open(tmp_path / "t"))
    assert [None if row["x"] is None else row["x"].tolist() for row in rows] == [[1, 2], None, [], [3]]
    assert [None if row["y"] is None else row["y"].tolist() for row in rows] == [[[1, 2], [3, 4]], [[5, 6]], None, []]
    assert {row["y"].shape[1:] for row in rows if row["y"] is not None} == {(2,)}


LISTS: list[tuple[Any, Any, str]] = [
    ((None,), pa.array([[1], [2, None]], pa.list_(pa.int32())), "Row 1, field 'x': got lists with nulls in them"),
    ((None,), pa.array([[1]], pa.list_(pa.int64())), "got a column of list<item: int64>; expected tensors or lists of int32"),
    ((None, 2), pa.array([[], [[1, 2]], [[3]]], pa.list_(pa.list_(pa.int32()))), "Row 2, field 'x': got a list of 1;"),
    ((None, 2), pa.array([[1, 2]], pa.list_(pa.int32())), "expected lists of int32 (None, 2)."),
    ((None, None), pa.array([[[1]]], pa.list_(pa.list_(pa.int32()))), "expected arrays of int32 (None, None). Give NumPy"),
]


@pytest.mark.parametrize(("shape", "column", "message"), LISTS, ids=map(str, range(len(LISTS))))
def test_lists_that_are_not_valid_arrays_raise(tmp_path: Path, shape: Any, column: pa.Array, message: str) -> None:
    """Lists with nulls, other number types or other sizes raise DataError."""
    with pytest.raises(DataError, match=re.escape(message)):
        ps.write(tmp_path / "t", field("i4", shape, Npy()), pa.table({"x": column}))


def test_zero_dimensional_arrays_are_single_values(tmp_path: Path) -> None:
    """Zero-dimensional arrays of text, bytes, times and numbers are stored as single values."""
    row = {"t": np.array("x"), "b": np.array(b"y"), "m": np.array("2020", "M8[s]"), "d": np.array(3, "m8[s]"), "i": np.array(1)}

    ps.write(tmp_path / "t", data=[row])

    assert ps.open(tmp_path / "t")[0] == {name: value[()] for name, value in row.items()}


def test_encoded_bytes_in_rows_raise_with_advice(tmp_path: Path) -> None:
    """Encoded bytes in a row raise an error, because they are not an array; Arrow columns accept them."""
    schema = field("u1", (2, 2), Png())
    ps.write(tmp_path / "t", schema, [{"x": np.ones((2, 2), "u1")}])
    encoded = pq.read_table(tmp_path / "t")["x"][0].as_py()

    with pytest.raises(DataError, match=r"Bytes that are a cell of Png\(compression=1\) already are taken in columns of Arrow"):
        ps.write(tmp_path / "u", schema, [{"x": encoded}])
    with pytest.raises(DataError, match=r"Make it one: numpy.frombuffer"):
        ps.write(tmp_path / "u", field("u1", (2, 2), Raw()), [{"x": encoded}])
    ps.write(tmp_path / "u", schema, pa.table({"x": [encoded]}))
    assert ps.open(tmp_path / "u")[0]["x"].tolist() == [[1, 1], [1, 1]]


def test_data_frames_that_arrow_cannot_read_raise(tmp_path: Path) -> None:
    """The error gives the message of Arrow, or names the duplicate column."""

    class Frame:
        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            raise pa.ArrowInvalid("Invalid or unsupported format string: '_pli128'")

    with pytest.raises(DataError, match="Arrow cannot read the Frame: Invalid or unsupported format string"):
        ps.write(tmp_path / "t", data=Frame())
    with pytest.raises(DataError, match="The data frame has more than one column called a"):
        ps.write(tmp_path / "t", data=pd.DataFrame([[1, 2]], columns=["a", "a"]))


REQUIRED = pa.field("item", pa.int8(), nullable=False)
STRICT: list[tuple[pa.DataType, Any, Any]] = [
    (pa.list_(REQUIRED), [1, 2], [1, None]),
    (pa.list_(REQUIRED, 2), [1, 2], [1, None]),
    (pa.list_(pa.list_(REQUIRED)), [None, [1]], [[1], [None]]),
    (pa.struct([REQUIRED, pa.field("other", pa.int8())]), {"item": 1, "other": None}, {"item": None, "other": 1}),
    (pa.struct([REQUIRED]), {"item": 1}, {}),
    (pa.map_(pa.string(), REQUIRED), [("a", 1)], [("a", None)]),
    (pa.map_(pa.string(), pa.struct([REQUIRED])), [("a", {"item": 1}), ("b", None)], [("a", {"item": None})]),
]


@pytest.mark.parametrize(("kind", "good", "bad"), STRICT, ids=map(str, range(len(STRICT))))
def test_nulls_inside_a_required_nested_type_raise_with_their_row(
    tmp_path: Path, kind: pa.DataType, good: Any, bad: Any
) -> None:
    """The row with the null is rejected, and later rows are written."""
    with ps.write(tmp_path / "t", pa.schema({"x": kind})) as table:
        table.append({"x": good})
        with pytest.raises(DataError, match=r"Row 1, field 'x': got .*, with a null inside; expected a value of"):
            table.append({"x": bad})
        table.append({"x": None})

    assert pq.read_table(tmp_path / "t")["x"].to_pylist() == [good, None]


FRAMES = {
    "columns that are numbers": pd.DataFrame([[1, 2.5], [3, 4.5]]),
    "columns of two levels": pd.DataFrame([[1, 2.5]], columns=pd.MultiIndex.from_tuples([("a", 1), ("a", 2)])),
    "an index without a name": pd.DataFrame({"v": [1, 2]}, index=[5, 7]),
    "an index of words": pd.DataFrame({"v": [1, 2]}, index=["a", "b"]),
    "an index of two levels": pd.DataFrame({"v": [1, 2]}, index=pd.MultiIndex.from_tuples([("a", 1), ("b", 2)])),
}


@pytest.mark.parametrize("name", FRAMES)
def test_later_data_frames_have_the_columns_of_the_first(tmp_path: Path, name: str) -> None:
    """Columns have the names that Arrow gives them, and an unnamed index is left out."""
    frame = FRAMES[name]
    ps.write(tmp_path / "one", data=frame)
    ps.write(tmp_path / "two", data=iter([frame, frame]))
    ps.write(tmp_path / "one", data=frame, mode="append")

    expected = pa.Table.from_pandas(frame, preserve_index=False).to_pylist()
    assert pq.read_table(tmp_path / "one").to_pylist() == pq.read_table(tmp_path / "two").to_pylist() == expected * 2


# ----------------------------------------------------------------------------------------------------- an index of pandas

VALUES = pd.DataFrame({"a": [1, 2, 3, 4, 5]})
NAMED = pd.DataFrame({"v": [1, 2]}, index=pd.Index([5, 7], name="k"))
LEVELS = pd.DataFrame({"v": [1, 2]}, index=pd.MultiIndex.from_tuples([("x", 1), ("y", 2)], names=["k", "n"]))
HALF_NAMED = pd.DataFrame({"v": [1, 2]}, index=pd.MultiIndex.from_tuples([("x", 1), ("y", 2)], names=["k", None]))
FORMATS = pytest.mark.parametrize("kind", ["parquet", "delta"])


@FORMATS
@pytest.mark.parametrize("chosen", [[1, 4, 5], [1, 3, 5], [2], []])
@pytest.mark.parametrize("index", [None, False])
def test_an_unnamed_index_is_never_stored(tmp_path: Path, kind: str, chosen: list[int], index: Any) -> None:
    """A filtered data frame is stored with its visible columns only, in the first write and in appends."""
    frame = VALUES[VALUES["a"].isin(chosen)]

    ps.write(tmp_path / "t", data=frame, format=kind, index=index)
    ps.write(tmp_path / "t", data=iter([frame, frame]), mode="append", format=kind, index=index)

    assert ps.open(tmp_path / "t").to_arrow().to_pydict() == {"a": chosen * 3}


@pytest.mark.parametrize("schema", [pa.Schema.from_pandas(VALUES[::4].drop(2, errors="ignore")), None])
@pytest.mark.parametrize("convert", [pa.Table.from_pandas, lambda frame: pa.Table.from_pandas(frame).to_reader()])
def test_an_unnamed_index_that_arrow_made_a_column_is_not_stored(tmp_path: Path, schema: Any, convert: Any) -> None:
    """A column that pandas metadata describes as an unnamed index is left out of the table and its metadata."""
    frame = VALUES.drop([1, 2])

    ps.write(tmp_path / "t", schema, convert(frame))
    ps.write(tmp_path / "t", data=iter([pa.Table.from_pandas(frame)]), mode="append")

    assert ps.open(tmp_path / "t").schema.names == ("a",)
    assert pd.read_parquet(tmp_path / "t").to_dict("list") == {"a": [1, 4, 5] * 2}


def test_an_arrow_column_that_only_looks_like_an_index_is_stored(tmp_path: Path) -> None:
    """Without matching pandas metadata, a column named like an index is an ordinary column."""
    table = pa.table({"__index_level_0__": [1]})

    for number, metadata in enumerate([None, {"pandas": "{}"}, {"pandas": "[1"}, {"pandas": '{"index_columns": 1}'}]):
        ps.write(tmp_path / str(number), data=table.replace_schema_metadata(metadata))

    assert {ps.open(tmp_path / str(number)).schema.names for number in range(4)} == {("__index_level_0__",)}


@FORMATS
@pytest.mark.parametrize("frame", [NAMED, LEVELS], ids=["one", "two"])
def test_a_named_index_is_stored_on_request(tmp_path: Path, kind: str, frame: pd.DataFrame) -> None:
    """With index=True each index level is stored as a column; with index=False none is, also in appends."""
    ps.write(tmp_path / "with", data=frame, index=True, format=kind)
    ps.write(tmp_path / "with", data=iter([frame, frame]), index=True, mode="append", format=kind)
    ps.write(tmp_path / "without", data=frame, index=False, format=kind)
    ps.write(tmp_path / "without", data=iter([frame, frame]), index=False, mode="append", format=kind)

    expected = frame.reset_index().to_dict("records") * 3
    assert sorted(map(str, ps.open(tmp_path / "with").select(*expected[0]).to_arrow().to_pylist())) == sorted(
        map(str, expected)
    )
    assert ps.open(tmp_path / "without").to_arrow().to_pydict() == {"v": [1, 2] * 3}


def test_an_index_named_like_a_column_raises_with_advice(tmp_path: Path) -> None:
    """Index and column cannot both be stored, so the message does not suggest index=True."""
    frame = pd.DataFrame({"a": [1, 2]}, index=pd.Index([3, 4], name="a"))

    with pytest.raises(ArgumentError, match=r"A column is called 'a' too: write index=False to drop the index, or rename one"):
        ps.write(tmp_path / "t", data=frame)
    ps.write(tmp_path / "t", data=frame, index=False)

    assert ps.open(tmp_path / "t").to_arrow().to_pydict() == {"a": [1, 2]}


def test_an_index_may_be_named_by_a_number(tmp_path: Path) -> None:
    """The column of the index has the number as text, and pyarrow emits no warning."""
    ps.write(tmp_path / "t", data=pd.DataFrame({"a": [1, 2]}, index=pd.Index([3, 4], name=7)), index=True)

    assert ps.open(tmp_path / "t").to_arrow().to_pydict() == {"a": [1, 2], "7": [3, 4]}


@pytest.mark.parametrize("first", [NAMED, VALUES.rename(columns={"a": "v"})], ids=["first", "later"])
def test_a_named_index_without_an_index_argument_raises(tmp_path: Path, first: pd.DataFrame) -> None:
    """A named index without the argument `index` raises ArgumentError that explains both choices."""
    with pytest.raises(ArgumentError) as refused:
        ps.write(tmp_path / "t", data=iter([first, NAMED]))

    assert str(refused.value) == (
        "write() got a data frame with the index 'k'; expected the argument index, which says whether to store it. "
        "Write index=True to store it as a column, or index=False to drop it."
    )
    assert not (tmp_path / "t").exists()


def test_an_index_is_stored_if_the_schema_has_its_column(tmp_path: Path) -> None:
    """A field named like the index makes it stored; with index=False the column is missing."""
    schema = ps.Schema("S", [ps.Field("k", np.int64), ps.Field("v", np.int64)])

    ps.write(tmp_path / "t", schema, NAMED)
    ps.write(tmp_path / "t", data=NAMED, mode="append")
    with pytest.raises(DataError, match="'k' is missing"):
        ps.write(tmp_path / "t", data=NAMED, mode="append", index=False)

    assert ps.open(tmp_path / "t").to_arrow().to_pydict() == {"k": [5, 7] * 2, "v": [1, 2] * 2}


@pytest.mark.parametrize(
    ("frame", "index", "message"),
    [
        (
            VALUES,
            True,
            r"write\(\) got index=True; expected an index whose levels have names, and its names are \[None\]\. Name",
        ),
        (
            HALF_NAMED,
            True,
            r"expected an index whose levels have names, and its names are \['k', None\]\. Name it, frame\.rename_a",
        ),
        (
            HALF_NAMED,
            None,
            r"write\(\) got a data frame with the index 'k'; expected the argument index, which says whether to store it\. Wri",
        ),
        (NAMED, "k", r"write\(\) got index='k'; expected True or False\. Write index=True to store the named index"),
        (NAMED, 1, r"write\(\) got index=1; expected True or False\."),
    ],
    ids=range(5),
)
def test_an_invalid_index_argument_raises(tmp_path: Path, frame: Any, index: Any, message: str) -> None:
    """The message says what was passed, and what to write instead."""
    with pytest.raises(ArgumentError, match=message):
        ps.write(tmp_path / "t", data=frame, index=index)


def test_index_true_with_a_column_of_the_same_name_raises(tmp_path: Path) -> None:
    """Storing the index would make two columns of one name."""
    with pytest.raises(DataError, match="The data frame has more than one column called v"):
        ps.write(tmp_path / "t", data=VALUES.rename(columns={"a": "v"}).rename_axis("v"), index=True)


def test_the_advice_for_a_multi_level_index_works(tmp_path: Path) -> None:
    """The message suggests pandas calls that work."""
    frame = VALUES.set_index(pd.MultiIndex.from_product([range(len(VALUES)), ["x"]]))
    with pytest.raises(ArgumentError, match=r"frame\.rename_axis\(\['level_0', 'level_1'\]\)"):
        ps.write(tmp_path / "t", data=frame, index=True)
    named = frame.rename_axis(["level_0", "level_1"])
    with pytest.raises(ArgumentError, match=r"or choose levels with frame\.reset_index\(\)"):
        ps.write(tmp_path / "t", data=named)

    ps.write(tmp_path / "t", data=named.reset_index(level=0).reset_index(drop=True))

    assert "level_0" in ps.open(tmp_path / "t").schema.names


def test_nan_in_lists_of_a_frame_stays_nan(tmp_path: Path) -> None:
    """NaN inside lists and structs stays NaN and differs from null; a whole cell of NaN or NA is null."""
    cells = [[1.0, float("nan")], np.array([np.nan]), None, float("nan"), []]
    ps.write(tmp_path / "t", data=pd.DataFrame({"o": cells, "s": [{"x": float("nan")}, {"x": 1.0}, None, pd.NA, {"x": None}]}))

    found = ps.open(tmp_path / "t").to_arrow()

    assert str(found["o"].to_pylist()) == "[[1.0, nan], [nan], None, None, []]"
    assert str(found["s"].to_pylist()) == "[{'x': nan}, {'x': 1.0}, None, None, {'x': None}]"
