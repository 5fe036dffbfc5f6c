"""Data frames: `to_pandas` changes no value, and uses NumPy dtypes wherever they can represent the values."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock._dataset.data_frames import frame_of
from penstock.errors import ArgumentError
from penstock.testing import MemoryFormat, example

LARGE = 2**53 + 1
NAN = float("nan")


def to_arrow_array(series: Any, kind: pa.DataType, *, nan_is_null: bool = False) -> pa.Array:
    """Convert a column of a data frame to an Arrow array."""
    found = pa.array(series, kind, from_pandas=nan_is_null)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def equal(one: pa.Array, other: pa.Array) -> bool:
    """Return whether two arrays are equal, where NaN equals NaN."""
    return one.equals(other) or (one.type == other.type and repr(one.to_pylist()) == repr(other.to_pylist()))


def integers(bits: int, *, signed: bool) -> st.SearchStrategy[int]:
    """Draw integers, often the largest and the smallest."""
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.integers(low, high) | st.sampled_from([low, high])


LEAVES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    **{kind: integers(kind.bit_width, signed=True) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{kind: integers(kind.bit_width, signed=False) for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())},
    **{pa.timestamp(unit): integers(64, signed=True) for unit in ("s", "ms", "us", "ns")},
    **{pa.duration(unit): integers(64, signed=True) for unit in ("s", "ms", "us", "ns")},
    pa.timestamp("us", "Europe/Berlin"): st.integers(-(10**15), 10**15),
    pa.timestamp("ns", "+05:30"): st.integers(-(10**15), 10**15),
    pa.bool_(): st.booleans(),
    pa.float16(): st.sampled_from([np.float16(0.5), np.float16(-3), np.float16("nan")]),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.string(): st.text(max_size=3),
    pa.large_binary(): st.binary(max_size=3),
    pa.binary(2): st.binary(min_size=2, max_size=2),
    pa.date32(): st.integers(-800_000, 6_585_493),
    pa.date64(): st.integers(-800_000, 800_000).map(lambda ms: ms * 86_400_000) | st.integers(0, 10**6),
    pa.time32("ms"): st.integers(0, 86_399_999),
    pa.time64("ns"): st.integers(0, 10**12),
    pa.decimal128(20, 2): st.decimals(-(10**17), 10**17, places=2),
    pa.decimal256(60, 3): st.decimals(-(10**20), 10**20, places=3),
}


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Draw values of a type, including nulls."""
    if pa.types.is_struct(kind):
        found: st.SearchStrategy[Any] = st.fixed_dictionaries({field.name: values(field.type) for field in kind})
    elif pa.types.is_map(kind):
        found = st.lists(st.tuples(st.text(max_size=2), values(kind.item_type)), max_size=3, unique_by=lambda pair: pair[0])
    elif pa.types.is_fixed_size_list(kind):
        found = st.lists(values(kind.value_type), min_size=kind.list_size, max_size=kind.list_size)
    elif pa.types.is_nested(kind):
        found = st.lists(values(kind.value_type), max_size=3)
    elif pa.types.is_dictionary(kind):
        found = LEAVES[kind.value_type]
    else:
        found = LEAVES[kind]
    return st.none() | found


leaves = st.sampled_from(list(LEAVES)) | st.sampled_from([pa.int64(), pa.string(), pa.float64()]).map(
    lambda kind: pa.dictionary(pa.int32(), kind)
)
kinds = st.recursive(
    leaves,
    lambda inner: (
        inner.map(pa.list_)
        | inner.map(pa.large_list)
        | inner.map(lambda kind: pa.list_(kind, 2))
        | inner.map(lambda kind: pa.struct({"a": kind, "b": pa.int64()}))
        | inner.map(lambda kind: pa.map_(pa.string(), kind))
    ),
    max_leaves=3,
)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Draw a table of one to three columns in two chunks each."""
    rows = draw(st.integers(0, 4))
    columns = {}
    for number in range(draw(st.integers(1, 3))):
        kind = draw(kinds)
        cells = st.lists(values(kind), min_size=rows, max_size=rows)
        columns[f"c{number}"] = pa.chunked_array([pa.array(draw(cells), kind), pa.array(draw(cells), kind)])
    return pa.table(columns)


@given(tables())
def test_a_data_frame_has_the_values_of_its_table(table: pa.Table) -> None:
    """Every column converts back to an equal Arrow column; NaN in floats stands for null or for NaN, never for both."""
    found = frame_of(table)

    assert list(found.columns) == table.column_names
    for name, column in zip(table.column_names, table.columns, strict=True):
        floats = pa.types.is_floating(column.type) and bool(column.null_count)
        assert equal(to_arrow_array(found[name], column.type, nan_is_null=floats), column.combine_chunks())


@given(tables())
def test_columns_without_nulls_keep_numpy_dtypes(table: pa.Table) -> None:
    """Columns of numbers and booleans without nulls have the dtypes that pyarrow gives them."""
    flat = [name for name in table.column_names if pa.types.is_primitive(table[name].type) and not table[name].null_count]
    fits = [name for name in flat if not pa.types.is_temporal(table[name].type)]

    found = frame_of(table.select(fits))

    assert found.dtypes.to_dict() == table.select(fits).to_pandas().dtypes.to_dict()


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_integers_with_nulls_have_nullable_dtypes(kind: str, tmp_path: Path) -> None:
    """The dtype depends on the type and on whether the column has a null, not on how large a number is."""
    largest = int(np.iinfo(kind).max)
    pq.write_table(
        pa.table({"id": pa.array([largest, None, 1], kind), "full": pa.array([largest, 2, 1], kind)}), tmp_path / "t"
    )

    found = ps.open(tmp_path / "t").to_pandas()

    assert found["id"].dtype == kind.title().replace("Uint", "UInt")
    assert found["id"][0] == largest
    assert found["id"].isna().tolist() == [False, True, False]
    assert found["full"].dtype == kind


@pytest.mark.parametrize(
    ("column", "dtype"),
    [
        (pa.array([True, None]), "boolean"),
        (pa.array([True, False]), "bool"),
        (pa.array([1.5, None]), "float64"),
        (pa.array([1.5, NAN]), "float64"),
        (pa.array([None, NAN]), pd.ArrowDtype(pa.float64())),
        (pa.array([1, None], pa.timestamp("s")), "datetime64[s]"),
        (pa.array([1, None], pa.duration("us")), "timedelta64[us]"),
        (pa.array([-(2**63), 1], pa.timestamp("ns")), pd.ArrowDtype(pa.timestamp("ns"))),
        (pa.array([decimal.Decimal("1.5"), None]), "object"),
        (pa.array([dt.date(2000, 1, 1), None]), "object"),
        (pa.array([dt.time(1), None], pa.time64("ns")), pd.ArrowDtype(pa.time64("ns"))),
        (pa.array([[1, 2], None, []]), "object"),
        (pa.array([[LARGE, None]]), pd.ArrowDtype(pa.list_(pa.int64()))),
        (pa.array([[1.5, NAN]]), "object"),
        (pa.array([[1.5, None]]), pd.ArrowDtype(pa.list_(pa.float64()))),
        (pa.array([["a", None], None]), "object"),
        (pa.array([{"a": 1}, {"a": 2}]), "object"),
        (pa.array([{"a": LARGE}, None]), pd.ArrowDtype(pa.struct({"a": pa.int64()}))),
        (pa.array([LARGE, None]).dictionary_encode(), "category"),
        (pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array([LARGE, None])), None),
    ],
)
def test_the_dtype_depends_on_the_type_and_its_nulls(column: pa.Array, dtype: Any) -> None:
    """Columns that pandas would change have nullable or Arrow dtypes; others have NumPy dtypes or objects."""
    found = frame_of(pa.table({"x": column}))

    assert found["x"].dtype == (pd.ArrowDtype(column.type) if dtype is None else dtype)


@pytest.mark.parametrize("shape", [(2,), (2, 1)])
def test_tensors_with_nulls_keep_their_integers(shape: tuple[int, ...], tmp_path: Path) -> None:
    """A null cell does not turn the integers of the other cells into floats."""
    field = ps.Field("x", np.int64, shape, ps.codecs.Tensor(), nullable=True)
    cells = [np.full(shape, LARGE), None]
    ps.write(tmp_path / "t", ps.Schema("T", [field]), [{"x": cell} for cell in cells])

    found = ps.open(tmp_path / "t").to_pandas()
    without_nulls = ps.open(tmp_path / "t").limit(1).to_pandas()

    assert found["x"].isna().tolist() == [False, True]
    assert np.ravel(found["x"][0]).tolist() == [LARGE, LARGE]
    assert np.ravel(without_nulls["x"][0]).tolist() == [LARGE, LARGE]
    assert np.asarray(without_nulls["x"][0]).dtype == np.int64


def test_an_empty_data_frame_keeps_its_dtypes() -> None:
    """An empty data frame has the dtypes of columns without nulls."""
    ds = MemoryFormat.of({"id": pa.array([1, None]), "x": pa.array([1.5, None])}, row_group_rows=2).open()

    assert ds.limit(0).to_pandas().dtypes.astype(str).to_dict() == {"id": "int64", "x": "float64"}


@pytest.mark.parametrize("call", ["to_arrow", "to_pandas"])
@pytest.mark.parametrize(
    ("clause", "reason"),
    [
        (lambda ds: ds.shuffle(), "{call} counts in stored order, and this dataset is shuffled, batched or sharded"),
        (lambda ds: ds.where(ps.col("id") > 1, lazy=True), "{call} counts the rows that pass, and a lazy filter"),
        (lambda ds: ds.map(lambda row: row), "{call} shows rows as they are stored, and this dataset has maps or stacks"),
    ],
)
def test_an_unsupported_dataset_raises_with_the_called_method(call: str, clause: Any, reason: str) -> None:
    """The error of an unsupported dataset names the called method: `to_arrow` or `to_pandas`."""
    ds = clause(example())

    with pytest.raises(ArgumentError) as caught:
        getattr(ds, call)()

    assert reason.format(call=call) in str(caught.value)
