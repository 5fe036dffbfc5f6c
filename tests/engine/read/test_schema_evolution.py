"""Stored columns are converted to the names and types of the table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._engine.read.schema_evolution import columns_by_id, evolve_column, field_id, int96_unit
from penstock.errors import DataError
from penstock.model import DataFiles, Snapshot

LEAVES: list[tuple[pa.DataType, pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int32(), pa.int64(), st.integers(-100, 100)),
    (pa.string(), pa.string(), st.text(max_size=3)),
    (pa.float32(), pa.float64(), st.integers(-8, 8).map(float)),
]


def snapshot(kind: pa.DataType, shape: pa.DataType | None) -> Snapshot:
    """Return a snapshot of a table with one column."""
    files = DataFiles(
        path=pa.array([], pa.string()),
        size=np.zeros(0, np.int64),
        rows=np.zeros(0, np.int64),
        stamp=pa.array([], pa.string()),
        partitions=pa.table({}),
    )
    stored = None if shape is None else pa.schema([pa.field("x", shape)])
    return Snapshot(table="t", version="1", schema=pa.schema([pa.field("x", kind)]), files=files, stored=stored)


class Nest:
    """A type in three forms: of the file, of the table, and of the table with the field names of the file."""

    def __init__(self, stored: pa.DataType, kind: pa.DataType, shape: pa.DataType, values: st.SearchStrategy[Any]) -> None:
        """Store the types, and a strategy for pairs of a stored value and the expected value."""
        self.stored, self.kind, self.shape, self.values = stored, kind, shape, values


def leaf(at: int) -> Nest:
    """Return a type without nested types."""
    stored, kind, values = LEAVES[at]
    return Nest(stored, kind, kind, st.none().map(lambda _: (None, None)) | values.map(lambda value: (value, value)))


def listed(inner: Nest) -> Nest:
    """Return a type of lists of another type."""
    values = st.none().map(lambda _: (None, None)) | st.lists(inner.values, max_size=3).map(
        lambda pairs: ([one for one, _ in pairs], [two for _, two in pairs])
    )
    return Nest(pa.list_(inner.stored), pa.list_(pa.field("element", inner.kind)), pa.list_(inner.shape), values)


def mapped(inner: Nest) -> Nest:
    """Return a type of maps from text to another type."""
    pairs = st.lists(st.tuples(st.sampled_from("abc"), inner.values), max_size=3, unique_by=lambda pair: pair[0])
    values = st.none().map(lambda _: (None, None)) | pairs.map(
        lambda found: ([(key, one) for key, (one, _) in found], [(key, two) for key, (_, two) in found])
    )
    stored, kind, shape = (pa.map_(pa.string(), kind) for kind in (inner.stored, inner.kind, inner.shape))
    return Nest(stored, kind, shape, values)


def structured(inner: Nest, other: Nest) -> Nest:
    """Return a type of structs in which names are exchanged, a field is new and a field is dropped."""
    stored = pa.struct([("gone", pa.int8()), ("a", inner.stored), ("b", other.stored)])
    kind = pa.struct([("b", inner.kind), ("new", pa.int64()), ("a", other.kind)])
    shape = pa.struct([("a", inner.shape), ("c-9", pa.int64()), ("b", other.shape)])
    values = st.none().map(lambda _: (None, None)) | st.tuples(inner.values, other.values).map(
        lambda two: ({"gone": 1, "a": two[0][0], "b": two[1][0]}, {"b": two[0][1], "new": None, "a": two[1][1]})
    )
    return Nest(stored, kind, shape, values)


NESTS = st.recursive(
    st.integers(0, len(LEAVES) - 1).map(leaf),
    lambda inner: st.one_of(inner.map(listed), inner.map(mapped), st.tuples(inner, inner).map(lambda two: structured(*two))),
    max_leaves=4,
)


@given(st.data())
def test_nested_fields_are_renamed_and_converted(data: st.DataObject) -> None:
    """Any nesting is converted, for whole columns, slices and several chunks."""
    nest = data.draw(NESTS)
    pairs = data.draw(st.lists(nest.values, max_size=6))
    start = data.draw(st.integers(0, len(pairs)))
    array = pa.array([one for one, _ in pairs], nest.stored)
    column = pa.chunked_array([array.slice(start), array.slice(0, start), array], nest.stored)

    found = evolve_column(column, "x", nest.kind, snapshot(nest.kind, nest.shape))
    expected = [two for _, two in pairs]
    assert found.type == nest.kind
    assert found.to_pylist() == expected[start:] + expected[:start] + expected
    found.validate(full=True)


def test_columns_are_found_by_field_id() -> None:
    """A file whose columns have no ids raises DataError, unless it has no columns."""
    field = pa.field("a", pa.int64(), metadata={"PARQUET:field_id": "7"})

    assert (field_id(field), field_id(pa.field("a", pa.int64()))) == (7, None)
    assert columns_by_id(pa.schema([field, pa.field("b", pa.int64())]), "f") == {7: "a"}
    assert columns_by_id(pa.schema([]), "f") == {}
    with pytest.raises(DataError, match="f: the columns have no ids, but the table identifies columns by id"):
        columns_by_id(pa.schema([pa.field("b", pa.int64())]), "f")


@pytest.mark.parametrize(
    ("kind", "unit"),
    [
        (pa.timestamp("us"), "us"),
        (pa.timestamp("ns"), None),
        (pa.list_(pa.struct([("a", pa.timestamp("ns", "UTC"))])), None),
        (pa.map_(pa.string(), pa.timestamp("ms")), "us"),
        (pa.int64(), "us"),
    ],
)
def test_int96_timestamps_are_read_in_the_unit_of_the_table(kind: pa.DataType, unit: str | None) -> None:
    """INT96 timestamps are read in microseconds, unless the table has nanoseconds."""
    assert int96_unit(pa.schema({"x": kind})) == unit
