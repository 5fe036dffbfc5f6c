"""Policies are values: they compare, print as the code that makes them, and reject invalid arguments."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import ArgumentError
from penstock.policies import (
    DEFAULT_NULLS,
    DEFAULT_RAGGED,
    AsObjects,
    DefaultNulls,
    Fill,
    Mask,
    Offsets,
    Pad,
    RaiseIfRagged,
    RaiseOnNull,
    fitted,
    zero,
)

ALL = [DefaultNulls(), Fill(1), Mask(), RaiseOnNull(), AsObjects(), Pad(), Pad(1, 2, truncate=True), Offsets(), RaiseIfRagged()]


def test_policies_compare_by_value() -> None:
    """Policies of one kind with the same arguments are equal and hash alike."""
    assert len(set(ALL)) == len(ALL)
    assert Fill(1) == Fill(value=1)
    assert Pad(length=3) != Pad(length=4)
    assert DefaultNulls() == DEFAULT_NULLS
    assert AsObjects() == DEFAULT_RAGGED


@pytest.mark.parametrize("policy", ALL, ids=repr)
def test_policies_print_as_the_code_that_makes_them(policy: Any) -> None:
    """The repr of a policy is code that makes an equal policy."""
    name, _, arguments = repr(policy).removesuffix(")").partition("(")
    given = dict(part.split("=") for part in arguments.split(", ") if part)
    values = {"None": None, "True": True, "False": False}

    assert type(policy).__name__ == name
    assert (
        type(policy)(**{key: values.get(text, int(text) if text.isdigit() else text) for key, text in given.items()}) == policy
    )


def test_policies_do_not_change() -> None:
    """Policies are immutable."""
    with pytest.raises(AttributeError):
        Fill(1).value = 2  # type: ignore[misc]


SCALAR = "expected a number, str, bytes, Decimal, UUID, date, duration or NumPy scalar, for example"

LENGTH = "expected a non-negative integer or None, for example Pad(length=8)."


@pytest.mark.parametrize(("make", "message"), [
    (lambda: Fill(None), f"Fill() got value=None; {SCALAR} Fill(0)."),  # type: ignore[arg-type]
    (lambda: Fill([1]), f"Fill() got value=[1]; {SCALAR} Fill(0)."),  # type: ignore[arg-type]
    (lambda: Pad({}), f"Pad() got value={{}}; {SCALAR} Pad(0)."),  # type: ignore[arg-type]
    (lambda: Pad(length=-1), f"Pad() got length=-1; {LENGTH}"),
    (lambda: Pad(length=True), f"Pad() got length=True; {LENGTH}"),
    (lambda: Pad(length=1.5), f"Pad() got length=1.5; {LENGTH}"),  # type: ignore[arg-type]
    (lambda: Pad(truncate=True),
     "Pad() got truncate=True without a length; expected both, for example Pad(length=128, truncate=True)."),
])  # fmt: skip
def test_invalid_arguments_raise(make: Any, message: str) -> None:
    """An invalid argument raises ArgumentError when the policy is made, not when data is read."""
    with pytest.raises(ArgumentError) as refused:
        make()

    assert str(refused.value) == message


@pytest.mark.parametrize(("dtype", "text"), [
    ("int8", "0"), ("uint64", "0"), ("float16", "0.0"), ("bool", "False"), ("M8[us]", "NaT"), ("m8[s]", "NaT"), ("O", "None"),
])  # fmt: skip
def test_every_dtype_has_a_zero(dtype: str, text: str) -> None:
    """The zero of a dtype has that dtype."""
    assert str(zero(np.dtype(dtype))) == text
    assert np.array([zero(np.dtype(dtype))], dtype).dtype == dtype


ID = uuid.UUID(int=5)
NOON = dt.datetime(2020, 1, 2, 12, tzinfo=dt.timezone(dt.timedelta(hours=9)))


@pytest.mark.parametrize(("kind", "value", "wanted"), [
    (pa.int8(), -128, np.int8(-128)),
    (pa.int64(), 2**63 - 1, np.int64(2**63 - 1)),
    (pa.uint64(), np.uint64(2**64 - 1), np.uint64(2**64 - 1)),
    (pa.int32(), 3.0, np.int32(3)),
    (pa.float32(), 0.1, np.float32(0.1)),
    (pa.float32(), 2**24, np.float32(2**24)),
    (pa.float16(), float("inf"), np.float16("inf")),
    (pa.bool_(), np.True_, True),
    (pa.bool8(), False, False),
    (pa.timestamp("ms"), dt.date(2020, 1, 2), np.datetime64("2020-01-02", "ms")),
    (pa.timestamp("us", "UTC"), NOON, np.datetime64("2020-01-02T03", "us")),
    (pa.date32(), np.datetime64("2020-01-02T00", "ns"), np.datetime64("2020-01-02")),
    (pa.duration("s"), dt.timedelta(minutes=1), np.timedelta64(60, "s")),
    (pa.time64("ns"), np.timedelta64(1, "ns"), np.timedelta64(1, "ns")),
    (pa.large_string(), "a", "a"),
    (pa.binary(1), b"a", b"a"),
    (pa.decimal32(4, 2), Decimal(1), Decimal(1)),
    (pa.uuid(), ID, ID),
    (pa.null(), 1, 1),
    (pa.list_(pa.dictionary(pa.int8(), pa.uint8())), 255, np.uint8(255)),
    (pa.json_(), "{}", "{}"),
])  # fmt: skip
def test_a_value_that_fits_gets_the_columns_dtype(kind: Any, value: Any, wanted: Any) -> None:
    """A value that fits is converted to the dtype of the column without loss, also in lists and dictionaries."""
    found = fitted(Fill(value), kind, "x")

    assert found == wanted
    assert np.asarray(found).dtype == np.asarray(wanted).dtype


@pytest.mark.parametrize("kind", [pa.float32(), pa.timestamp("ns"), pa.duration("us")], ids=str)
def test_nan_and_nat_fit(kind: Any) -> None:
    """NaN fits columns of floats, and NaT fits timestamps and durations."""
    value: Any = {"float": np.nan, "timestamp[ns]": np.datetime64("NaT"), "duration[us]": np.timedelta64("NaT")}[str(kind)]

    assert str(fitted(Fill(value), kind, "x")).lower() in {"nan", "nat"}


@pytest.mark.parametrize(("kind", "value", "named", "expected"), [
    (pa.uint8(), 256, "uint8", "an integer from 0 to 255"),
    (pa.uint8(), -1, "uint8", "an integer from 0 to 255"),
    (pa.int8(), 0.5, "int8", "an integer from -128 to 127"),
    (pa.int8(), True, "int8", "an integer from -128 to 127"),
    (pa.int8(), float("nan"), "int8", "an integer from -128 to 127"),
    (pa.int8(), float("inf"), "int8", "an integer from -128 to 127"),
    (pa.int64(), 2**63, "int64", "an integer from -9223372036854775808 to 9223372036854775807"),
    (pa.int64(), "1", "int64", "an integer from -9223372036854775808 to 9223372036854775807"),
    (pa.float16(), 1e6, "float16", "a number that float16 holds"),
    (pa.float32(), 2**24 + 1, "float32", "a number that float32 holds"),
    (pa.float64(), 10**400, "float64", "a number that float64 holds"),
    (pa.float64(), Decimal(1), "float64", "a number that float64 holds"),
    (pa.bool_(), 1, "bool", "True or False"),
    (pa.timestamp("s"), np.datetime64(1, "ms"), "datetime64[s]",
     "a numpy.datetime64 or datetime.date that datetime64[s] holds"),
    (pa.timestamp("ns"), np.datetime64("3000-01-01"), "datetime64[ns]",
     "a numpy.datetime64 or datetime.date that datetime64[ns] holds"),
    (pa.timestamp("s"), 0, "datetime64[s]", "a numpy.datetime64 or datetime.date that datetime64[s] holds"),
    (pa.time32("s"), dt.timedelta(milliseconds=1), "timedelta64[s]",
     "a numpy.timedelta64 or datetime.timedelta that timedelta64[s] holds"),
    (pa.string(), b"a", "string", "a str"),
    (pa.binary(), "a", "binary", "bytes"),
    (pa.decimal128(5, 2), 1, "decimal128(5, 2)", "a decimal.Decimal"),
    (pa.uuid(), "5", "extension<arrow.uuid>", "a uuid.UUID"),
    (pa.struct({"a": pa.int8()}), 1, "struct<a: int8>", "no value, since cells of this type are mutable"),
])  # fmt: skip
def test_a_value_that_does_not_fit_is_refused(kind: Any, value: Any, named: str, expected: str) -> None:
    """A value that does not fit raises ArgumentError, which says what would fit."""
    with pytest.raises(ArgumentError) as refused:
        fitted(Fill(value), kind, "x")

    assert str(refused.value) == (
        f"Column 'x' got Fill(value={value!r}), which does not fit {named}; expected {expected}. "
        "Change the value, or use Mask()."
    )


@pytest.mark.parametrize("kind", [pa.string(), pa.bool_(), pa.timestamp("s"), pa.struct({"a": pa.int8()})], ids=str)
def test_padding_with_zero_fits_everything(kind: Any) -> None:
    """`Pad` uses the zero of each dtype by default, where `Fill(0)` raises."""
    assert str(fitted(Pad(), pa.list_(kind), "x")) in {"None", "False", "NaT"}
    with pytest.raises(ArgumentError):
        fitted(Fill(0), kind, "x")
