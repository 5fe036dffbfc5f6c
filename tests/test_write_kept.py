"""What is written comes back as it was given, or is refused: values that NumPy, Arrow or Parquet would change in silence."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import penstock as ps
from penstock.codecs import Npy, Scalar
from penstock.errors import ArgumentError, DataError


def field(*arguments: Any, **options: Any) -> ps.Schema:
    """Return a schema of one field."""
    return ps.Schema("S", [ps.Field("x", *arguments, **options)])


# Structs, lists and maps.

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
CHANGED = [
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


@pytest.mark.parametrize(("name", "cell"), CHANGED, ids=map(str, range(len(CHANGED))))
def test_what_a_nested_value_would_lose_is_refused(tmp_path: Path, name: str, cell: Any) -> None:
    """Rows, one by one and in batches."""
    ps.write(tmp_path / "t", data=FIRST.select([name]))
    with ps.write(tmp_path / "t", mode="append") as table:
        with pytest.raises(DataError, match=f"Row 0, field '{name}'"):
            table.append({name: cell})
        with pytest.raises(DataError, match=f"Row 1, field '{name}'"):
            table.extend({name: [cell]})
    assert ps.open(tmp_path / "t").to_arrow().select([name]) == FIRST.select([name])


KEPT = [
    ("f", [0.1, float("nan"), float("inf")]),
    ("f", np.array([0.5])),
    ("d", [dt.datetime(2020, 1, 1), dt.date(2021, 1, 1)]),  # noqa: DTZ001
    ("t", [np.datetime64("2020-01-01T00:00:00.001")]),
    ("n", {"a": 3}),
    ("m", {"k": 2.0}),
]


@pytest.mark.parametrize(("name", "cell"), KEPT, ids=map(str, range(len(KEPT))))
def test_what_a_nested_value_keeps_is_written(tmp_path: Path, name: str, cell: Any) -> None:
    """A float may have fewer digits, a day is a day, and a field of a struct may be null."""
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
def test_arrow_columns_lose_nothing_inside(tmp_path: Path, name: str, column: pa.Array, format: Any) -> None:  # noqa: A002
    """Fields of structs are not dropped, numbers not rounded, and text is no number."""
    first = FIRST.select([name]).cast(pa.schema([pa.field(name, _micro(FIRST.schema.field(name).type))]))
    ps.write(tmp_path / "t", data=first, format=format)
    for data in (pa.table({name: column}), iter([pa.table({name: column})])):
        with pytest.raises(DataError, match=f"Row 0, field '{name}'"):
            ps.write(tmp_path / "t", data=data, mode="append", format=format)
    with pytest.raises(DataError, match=f"Row 1, field '{name}'"):
        ps.write(tmp_path / "u", data=iter([first, pa.table({name: column})]), format=format)
    assert ps.open(tmp_path / "t").num_rows == 1


def _micro(kind: pa.DataType) -> pa.DataType:
    """Return a type whose times Delta has too."""
    if pa.types.is_list(kind) and pa.types.is_timestamp(kind.value_type):
        return pa.list_(pa.timestamp("us"))
    return kind


def test_arrow_columns_may_differ_where_nothing_is_lost(tmp_path: Path) -> None:
    """Wider numbers that fit, structs with fewer fields, in another order."""
    ps.write(tmp_path / "t", data=pa.table({"x": [{"a": 1, "b": [1.5]}]}))
    ps.write(tmp_path / "t", data=pa.table({"x": pa.array([{"b": [2], "a": 2}])}), mode="append")
    ps.write(tmp_path / "t", data=pa.table({"x": pa.array([{"a": 3}])}), mode="append")

    found = [row["x"] for row in ps.open(tmp_path / "t").to_arrow().to_pylist()]
    assert found == [{"a": 1, "b": [1.5]}, {"a": 2, "b": [2.0]}, {"a": 3, "b": None}]


# Numbers and times.


@pytest.mark.parametrize("cell", [np.int64(2**53 + 1), np.uint64(2**64 - 1), np.int64(2**63 - 1)])
def test_whole_numbers_are_not_rounded_to_floats(tmp_path: Path, cell: Any) -> None:
    """One by one, and in arrays, of which the row is told."""
    with pytest.raises(DataError, match=f"Row 0, field 'x': got {cell}"):
        ps.write(tmp_path / "t", field(np.float64), [{"x": cell}])
    with pytest.raises(DataError, match=f"Row 1, field 'x': got .*{cell}"):
        ps.write(tmp_path / "t", field(np.float64), {"x": np.array([1, cell], cell.dtype)})
    with pytest.raises(DataError, match="Row 0, field 'x'"):
        ps.write(tmp_path / "t", field(np.complex128, (), Npy()), [{"x": cell}])
    for number in (np.int64(2**53 + 2), np.int64(-(2**63)), np.uint64(2**63)):
        ps.write(tmp_path / "t", field(np.float64), {"x": np.array([number, 5], number.dtype)}, mode="overwrite")
        assert ps.open(tmp_path / "t")[0]["x"] == float(number)


def test_times_in_steps_of_several_units_keep_their_value(tmp_path: Path) -> None:
    """A schema that follows has single units; one that is given must."""
    ps.write(tmp_path / "t", data={"t": np.array(["2020-01-01"], "M8[10us]"), "d": np.array([3], "m8[7ms]")})

    assert ps.open(tmp_path / "t")[0] == {"t": np.datetime64("2020-01-01T00:00:00.000000"), "d": np.timedelta64(21, "ms")}
    ps.write(tmp_path / "u", field(np.dtype("M8[10us]")), [{"x": np.datetime64(20, "us")}])
    assert ps.open(tmp_path / "u")[0]["x"] == np.datetime64(20, "us")
    with pytest.raises(ArgumentError, match=r"Field 'x' is datetime64\[10us\], which Arrow does not have"):
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
def test_values_have_the_dtype_of_their_field_however_they_are_stored(tmp_path: Path, name: Any, dtype: str, cell: Any) -> None:
    """Parquet has no seconds and no dates in milliseconds, and a codec may name a narrower type."""
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


def test_a_date_has_no_time_of_day(tmp_path: Path) -> None:
    """`date64` counts milliseconds, and files have days all the same."""
    schema = field(np.dtype("M8[ms]"), (), Scalar("date64"))
    for data in ([{"x": np.datetime64("2020-01-01T13:14:15", "ms")}], {"x": np.array(["2020-01-01T13:14:15"], "M8[ms]")}):
        with pytest.raises(DataError, match=r"Row 0, field 'x': .* finer or further than"):
            ps.write(tmp_path / "t", schema, data)


def test_times_of_units_far_apart_are_refused(tmp_path: Path) -> None:
    """NumPy cannot even turn them into one another."""
    with pytest.raises(DataError, match=r"Row 0, field 'x': .* finer or further than"):
        ps.write(tmp_path / "t", field(np.dtype("M8[D]")), [{"x": np.datetime64(1, "as")}])


# Data frames.


def test_a_data_frame_may_be_changed_as_soon_as_it_is_taken(tmp_path: Path) -> None:
    """As arrays may: with a schema and without, and in a generator that fills one frame again and again."""

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
