"""Fields and schemas as values, and as JSON on disk."""

from __future__ import annotations

import datetime as dt
import json
import pickle
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock import codecs
from penstock.codecs import Npy, Raw, Scalar, Tensor
from penstock.errors import ArgumentError, ColumnNotFoundError, DataError
from penstock.schema import CellCodec, Field, Schema
from penstock.schema import json as _schema_json

DTYPES = ["bool", "int8", "uint16", "int64", "float16", "float64", "datetime64[us]", "timedelta64[ns]", "complex64"]


@dataclass(frozen=True)
class Shouting(CellCodec):
    """A user-defined codec that stores text in capitals."""

    name = "shouting"
    marks: int = 1

    def encode(self, field: Field, cell: Any) -> bytes:  # noqa: ARG002 - the same for all fields
        """Return text in capitals."""
        return (str(cell).upper() + "!" * self.marks).encode()

    def decode(self, field: Field, cell: memoryview) -> Any:  # noqa: ARG002 - the same for all fields
        """Return the text."""
        return bytes(cell).decode().rstrip("!")


@given(
    st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.none() | st.integers(1, 4), max_size=3), st.booleans()), max_size=5)
)
def test_a_stored_schema_is_loaded_unchanged(description: list[tuple[str, list[int | None], bool]]) -> None:
    """A loaded schema equals the stored one, with default codecs filled in."""
    fields = [
        Field(f"f{at}", dtype, shape, nullable=nullable)
        for at, (dtype, shape, nullable) in enumerate(description)
        if dtype != "complex64" or shape  # Arrow has no such scalar
    ]
    schema = Schema("Any", fields)
    loaded = _schema_json.load(_schema_json.dump(schema))

    assert [replace(field, codec=None) for field in loaded] == fields
    assert all(field.codec is not None for field in loaded)
    assert _schema_json.dump(loaded) == _schema_json.dump(schema)


def test_python_types_are_dtypes_too() -> None:
    """Python's types for text, bytes, decimals, dates, times and numbers are dtypes of fields."""
    given_types = [str, bytes, Decimal, dt.date, dt.datetime, dt.timedelta, int, float, bool]
    schema = Schema("Python", [Field(kind.__name__, kind) for kind in given_types])
    stored = [codecs.default(field).storage(field) for field in _schema_json.load(_schema_json.dump(schema))]

    assert stored == [
        pa.string(),
        pa.binary(),
        pa.decimal128(38, 18),
        pa.date32(),
        pa.timestamp("us"),
        pa.duration("us"),
        pa.int64(),
        pa.float64(),
        pa.bool_(),
    ]


@pytest.mark.parametrize(
    ("make", "description"),
    [
        (lambda: Field(3, np.int32), "Field() got name=3; expected the column's name as a str."),  # type: ignore[arg-type]
        (lambda: Field("a\ud800", np.int32), "Field() got name='a\\ud800'; expected the column's name"),
        (
            lambda: Field("x", None),
            "Field 'x' got dtype=None; expected a NumPy dtype, str, bytes, Decimal, date, datetime or timedelta",
        ),
        (lambda: Field("x", "nonsense"), "Field 'x' got dtype='nonsense'; expected a NumPy dtype"),
        (lambda: Field("x", [("a", "i4")]), "which has several parts; expected a plain dtype. Use a field for each part."),
        (lambda: Field("x", np.int32, (-1,)), "Field 'x' got shape=(-1,); expected non-negative sizes or None"),
        (lambda: Field("x", np.int8, (2**32, 2**31)), "Field 'x' got shape=(4294967296, 2147483648);"),
        (lambda: Field("x", np.int32, (1,) * 32), "Field 'x' got shape=(1, 1, 1"),
        (lambda: Field("x", np.int32, "ab"), "Field 'x' got shape='ab';"),  # type: ignore[arg-type]
        (lambda: Field("x", np.int32, (2.5,)), "Field 'x' got shape=(2.5,);"),  # type: ignore[arg-type]
        (lambda: Field("x", np.int32, (), Npy), "expected a codec object, for example penstock.codecs.Png()."),  # type: ignore[arg-type]
        (lambda: Field("x", np.int32, (2,), Scalar()), "Scalar stores single values. Use Tensor() or Npy()."),
        (lambda: Field("x", np.int32, (None,), Tensor()), "Tensor stores arrays of one shape that is not empty."),
        (lambda: Field("x", np.int8, (2**16, 2**15), Tensor()), "Tensor stores up to 2147483647 values in a cell."),
        (lambda: Field("x", np.complex64, (2,), Tensor()), "Tensor stores plain numbers. Use penstock.codecs.Npy()."),
        (lambda: Field("x", np.complex64, (), Scalar()), "Field 'x' has dtype complex64, which Arrow does not have."),
        (lambda: Scalar("decimal128(99, 2)"), "which Arrow rejects"),
        (lambda: Scalar("list<int8>"), "Scalar() got type='list<int8>'; expected one of int8"),
        (lambda: Schema("S", [Field("a", int), Field("a", int)]), "Schema 'S' got several fields with the name a;"),
        (lambda: Schema("S", ["a"]), "Schema 'S' got 'a'; expected Field objects"),  # type: ignore[list-item]
    ],
)
def test_invalid_fields_raise_when_they_are_made(make: Any, description: str) -> None:
    """Invalid names, dtypes, shapes and codecs raise ArgumentError at once, with what to give instead."""
    with pytest.raises(ArgumentError) as caught:
        make()

    assert description in str(caught.value)


@pytest.mark.parametrize(
    ("text", "description"),
    [
        ("", "it is not valid JSON at line 1, column 1"),
        ("[]", "it is []; expected an object"),
        ("{}", "it has no 'penstock'"),
        ('{"penstock": 2}', "it has version 2, and this Penstock reads version 1; use a newer Penstock"),
        ('{"penstock": 1, "name": "x", "fields": 3}', "it has 'fields': 3; expected a list"),
        ('{"penstock": 1, "name": "x", "fields": [{}]}', "field 0 has no 'name'"),
        ('{"penstock": 1, "name": "x", "fields": [{"name": "a"}]}', "field 'a' has no 'dtype'"),
        ("[" * 100_000, "it is nested too deeply"),
    ],
)
def test_a_text_without_a_schema_raises(text: str, description: str) -> None:
    """A stored text that is not a schema raises DataError, which says what is wrong."""
    with pytest.raises(DataError, match="cannot be read") as caught:
        _schema_json.load(text)

    assert description in str(caught.value)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_any_field_from_disk_loads_or_raises_data_error(anything: Any) -> None:
    """Any JSON as name, dtype, shape or codec of a stored field loads or raises DataError."""
    field = {"name": "x", "dtype": "int8", "shape": [], "nullable": False, "codec": {"name": "scalar"}}
    for key in field:
        text = json.dumps({"penstock": 1, "name": "S", "fields": [{**field, key: anything}]})
        try:
            found = _schema_json.load(text)
        except DataError as error:
            assert "cannot be read" in str(error)  # noqa: PT017 - one or the other
        else:
            assert len(found) == 1


def test_codecs_of_others_are_found_by_name() -> None:
    """An unknown codec keeps its options until its class is given, and a name is registered once."""
    schema = Schema("S", [Field("x", object, (), Shouting(marks=3))])
    text = _schema_json.dump(schema)
    unknown = _schema_json.load(text)["x"]

    assert isinstance(unknown.codec, codecs.Unknown)
    assert codecs.resolved(unknown, [Shouting]).codec == Shouting(marks=3)
    assert _schema_json.load(text, [Shouting])["x"].codec == Shouting(marks=3)
    with pytest.raises(ArgumentError, match="Choose another name"):
        codecs.register(type("Other", (Shouting,), {"name": "npy"}))
    with pytest.raises(ArgumentError, match=r"expected a subclass of penstock\.codecs\.CellCodec"):
        codecs.register(Shouting())  # type: ignore[type-var]
    with pytest.raises(DataError, match="was stored with invalid options"):
        codecs.named("shouting", {"volume": 11}, [Shouting])


def test_fields_are_values() -> None:
    """Fields compare, hash, pickle and print by value."""
    one, other = Field("x", "f4", [None, 2], Npy()), Field("x", np.float32, (None, 2), Npy())

    assert one == other
    assert hash(one) == hash(other)
    assert pickle.loads(pickle.dumps(one)) == one  # noqa: S301 - our own
    assert repr(ps.Field("x", np.int32)) == "Field(name='x', dtype=dtype('int32'), shape=(), codec=None, nullable=False)"
    assert one.with_codec(Raw()) != one
    assert Field("x", ">i4").dtype == np.dtype("=i4")


def test_the_default_codec_is_arrow_where_arrow_has_the_type() -> None:
    """Scalars and arrays of one shape default to Arrow types, other arrays to npy; unsupported cells raise."""
    assert codecs.default(Field("x", np.int8)) == Scalar()
    assert codecs.default(Field("x", np.int8, (2, 2))) == Tensor()
    assert codecs.default(Field("x", np.complex64, (2, 2))) == Npy()
    assert codecs.default(Field("x", str, (None,))) == Npy()
    with pytest.raises(ArgumentError, match="which no built-in codec stores"):
        codecs.default(Field("x", object, (2,)))


@pytest.mark.parametrize(
    ("dtype", "kind"), [(float, "int32"), (Decimal, "int64"), (float, "float"), (str, "binary"), (np.int64, "double")]
)
def test_a_type_that_does_not_hold_the_values_is_refused(dtype: Any, kind: str) -> None:
    """A storage type that would change values of the dtype raises ArgumentError."""
    with pytest.raises(ArgumentError, match="does not hold its values"):
        Field("x", dtype, (), Scalar(kind))


def test_times_have_a_unit() -> None:
    """A dtype of times without a unit raises ArgumentError."""
    with pytest.raises(ArgumentError, match="without a unit; expected one"):
        Field("x", "M8")


@pytest.mark.parametrize(
    ("name", "fields", "expected"),
    [
        (3, [], "Schema() got name=3; expected a str, or '' for no name."),
        (
            "S",
            None,
            "Schema 'S' got fields=None; expected Field objects, for example [penstock.Field('id', numpy.int32)].",
        ),
    ],
)
def test_a_schema_has_a_name_and_fields(name: Any, fields: Any, expected: str) -> None:
    """An invalid name or invalid fields raise ArgumentError with the value."""
    with pytest.raises(ArgumentError) as caught:
        Schema(name, fields)

    assert str(caught.value) == expected


@pytest.mark.parametrize("name", [0, None])
def test_a_key_that_is_not_a_name_raises(name: Any) -> None:
    """A key that is not a name raises ColumnNotFoundError with the names that exist."""
    with pytest.raises(ColumnNotFoundError, match=rf"Column {name} is not in schema 'S'\. Columns: id\."):
        Schema("S", [Field("id", np.int32)])[name]


class Numbered(codecs.CellCodec):
    """A codec that is not a dataclass, so that its options are unknown."""

    name = "numbered-of-tests"

    def __init__(self, number: int) -> None:
        """Store a number that is not a dataclass field."""
        self.number = number

    def encode(self, field: Field, cell: Any) -> bytes:
        """Return the bytes of an array."""
        return np.asarray(cell, field.dtype).tobytes()

    def decode(self, field: Field, cell: memoryview) -> Any:
        """Return the array."""
        return np.frombuffer(cell, field.dtype)


@dataclass(frozen=True)
class Holding(Numbered):
    """A codec with an option of any kind."""

    name = "holding-of-tests"
    number: Any


@pytest.mark.parametrize(
    ("codec", "why"),
    [
        (Numbered(3), "missing 1 required positional argument: 'number'"),
        (Holding(object()), "Object of type object is not JSON serializable"),
    ],
)
def test_a_codec_that_cannot_be_restored_is_not_written(tmp_path: Path, codec: codecs.Codec, why: str) -> None:
    """A codec that cannot be restored from its stored options raises ArgumentError, and nothing is written."""
    with pytest.raises(ArgumentError, match="cannot be restored from its options") as caught:
        ps.write(tmp_path / "t", Schema("S", [Field("x", np.int8, (2,), codec)]))

    assert why in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_codec_with_options_that_json_holds_is_written(tmp_path: Path) -> None:
    """A codec whose options are JSON values is stored and restored."""
    field = Field("x", np.int8, (2,), Holding([1, {"a": None}]))
    ps.write(tmp_path / "t", Schema("S", [field]), [{"x": np.zeros(2, np.int8)}])

    assert ps.open(tmp_path / "t", codecs=[Holding]).schema["x"] == field
