"""Literals of filters: as Python values, compared with a column's type, and in the form in which it stores them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import Any, TypeAlias
from uuid import UUID

import numpy as np
import pyarrow as pa

from penstock._arrow_types import unviewed
from penstock.errors import FilterError

Value: TypeAlias = bool | int | float | str | bytes | Decimal | date | datetime | time | timedelta
"""A literal as a Python value."""

# For each type of literal: how an instance of a subclass (an enum, a pandas.Timestamp) becomes one, and how it becomes JSON.
_LITERALS: dict[type, tuple[Callable[[Any], Value], Callable[[Any], object]]] = {
    bool: (bool, bool),
    int: (int, int),
    float: (float, str),
    str: (str.__str__, str),
    bytes: (bytes, bytes.hex),
    Decimal: (Decimal, str),
    datetime: (lambda value: datetime.combine(value.date(), value.timetz()), datetime.isoformat),
    date: (lambda value: date(value.year, value.month, value.day), date.isoformat),
    time: (lambda value: time.fromisoformat(value.isoformat()), time.isoformat),
    timedelta: (lambda value: timedelta(value.days, value.seconds, value.microseconds), str),
}


# The families of types that compare with the same literals, and the advice for a literal that does not fit.
_KINDS = {
    "bool": ("boolean", "Use True or False."),
    "int": ("integer", "Use a number, such as 3."),
    "float": ("floating", "Use a number, such as 0.5."),
    "decimal": ("decimal", "Use a number, such as Decimal('0.5')."),
    "text": ("string large_string", "Use a str, such as 'a'."),
    "bytes": ("binary large_binary", "Use bytes, such as b'a'."),
    "timestamp": ("timestamp", "Use a datetime, or a string such as '2024-01-31 12:30'."),
    "date": ("date", "Use a date, or a string such as '2024-01-31'."),
    "time": ("time", "Use a time without zone, or a string such as '12:30'."),
    "duration": ("duration", "Use a timedelta."),
    "null": ("null", ""),
    "other": ("", "Only is_null() and is_not_null() work on this type; a field of a struct is col('a')['b']."),
}
_ADD_ZONE = "Its values have a zone: use one too, such as datetime(2024, 1, 31, tzinfo=UTC) or '2024-01-31T00:00Z'."
_DROP_ZONE = "Its values have no zone: use none, such as datetime(2024, 1, 31) or '2024-01-31'."
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
# Types without the compute kernels of filters, and types with these kernels that hold the same values. (See also `unviewed`.)
_PLAIN = {pa.float16(): pa.float32()}


@cache
def kind(type_: pa.DataType) -> str:
    """Return the family of a type."""
    tests = ((name, test) for name, (every, _) in _KINDS.items() for test in every.split())
    return next((name for name, test in tests if getattr(pa.types, f"is_{test}")(type_)), "other")


def plain(type_: pa.DataType) -> pa.DataType:
    """Return the type in which a column is compared: without dictionaries and layouts that have no kernels."""
    if isinstance(type_, pa.BaseExtensionType) or pa.types.is_dictionary(type_):
        return plain(type_.value_type if pa.types.is_dictionary(type_) else type_.storage_type)
    if pa.types.is_decimal(type_):
        wide = pa.decimal128 if type_.precision <= 38 else pa.decimal256  # noqa: PLR2004
        return wide(type_.precision, type_.scale) if type_.scale >= 0 else pa.decimal256(76, 0)
    return pa.binary() if pa.types.is_fixed_size_binary(type_) else _PLAIN.get(type_, unviewed(type_))


def is_half(type_: pa.DataType) -> bool:
    """Return whether a column stores floats of 16 bits."""
    if isinstance(type_, pa.BaseExtensionType) or pa.types.is_dictionary(type_):
        return is_half(type_.value_type if pa.types.is_dictionary(type_) else type_.storage_type)
    return bool(pa.types.is_float16(type_))


def halved(given: Any) -> Any:
    """Return one or several literals rounded to float16; a float that is too large stays as it is."""
    if isinstance(given, tuple):
        return tuple(map(halved, given))
    with np.errstate(over="ignore"):
        near = float(np.float16(given)) if isinstance(given, float) else math.inf
    return near if math.isfinite(near) else given


def shared_type(one: pa.DataType, two: pa.DataType) -> pa.DataType | None:
    """Return the type in which two plain columns are compared, or None if they cannot be."""
    kinds = {kind(one), kind(two)}
    if one == two:
        return {"other": None, "null": pa.bool_()}.get(kind(one), one)
    if kinds == {"int"}:
        return pa.decimal128(20, 0) if pa.uint64() in (one, two) else pa.int64()
    if kinds in ({"decimal"}, {"decimal", "int"}):
        return pa.decimal256(76, max(getattr(one, "scale", 0), getattr(two, "scale", 0)))
    wide = {"bytes": pa.large_binary(), "float": pa.float64(), "float int": pa.float64(), "text": pa.large_string()}
    return wide.get(" ".join(sorted(kinds)))


def nearest(value: Any, type_: pa.DataType, name: str) -> tuple[Any, int]:
    """Return the value of a column's type nearest to a literal, and -1, 0 or 1 if that is below, equal or above it.

    The value is None for a literal that does not compare with any value: NaN with integers, anything with nulls.
    """
    number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    match kind(type_):
        case "null":
            return None, 0
        case "bool" | "text" | "bytes" as wanted if type(value) is {"bool": bool, "text": str, "bytes": bytes}[wanted]:
            return value, 0
        case "float" if number:
            return _nearest_float(value, type_)
        case "int" | "decimal" as wanted if number:
            if not isinstance(value, float) or math.isfinite(value):
                value = Fraction(str(value) if wanted == "decimal" and isinstance(value, float) else value)
            return _nearest_integer(value * Fraction(10) ** getattr(type_, "scale", 0), type_)
        case "timestamp" | "date" | "time" | "duration":
            return _nearest_integer(_units(value, type_, name), type_)
    raise misfit(value, type_, name, _KINDS[kind(type_)][1])


def misfit(value: object, type_: pa.DataType, name: str, remedy: str) -> FilterError:
    """Return the error for a literal that does not compare with a column's type."""
    return FilterError(f"Column {name!r} has type {type_}, which does not compare with {value!r}. {remedy}")


def _nearest_float(value: Any, type_: pa.DataType) -> tuple[float, int]:
    """Return the float nearest to a number; a float literal is equal to the value it is rounded to, as in NumPy."""
    try:
        near = float(value)
    except OverflowError:
        near = math.inf if value > 0 else -math.inf
    with np.errstate(over="ignore"):
        near = float(type_.to_pandas_dtype()(near))
    if isinstance(value, float) and (math.isfinite(near) or not math.isfinite(value)):
        return near, 0
    return near, (near > value) - (near < value)


def _nearest_integer(exact: Any, type_: pa.DataType) -> tuple[int | None, int]:
    """Return the stored integer at or below a number, clamped to the range of the type."""
    if isinstance(exact, float) and math.isnan(exact):
        return None, 0
    if kind(type_) == "decimal":
        low, high = 1 - 10**type_.precision, 10**type_.precision - 1
    else:
        low = 0 if pa.types.is_unsigned_integer(type_) else -(2 ** (type_.bit_width - 1))
        high = low + 2**type_.bit_width - 1
    if not low <= exact <= high:
        return (high, -1) if exact > high else (low, 1)
    near = math.floor(exact)
    return near, 0 if near == exact else -1


def _units(value: Any, type_: pa.DataType, name: str) -> Fraction:
    """Return a literal in the units of a type: since the epoch, since midnight, or as a duration."""
    wanted, zoned = kind(type_), getattr(type_, "tz", None) is not None
    given = _parsed(value, time if wanted == "time" else datetime) if isinstance(value, str) else value
    if wanted in ("timestamp", "date") and isinstance(given, date):
        moment = given if isinstance(given, datetime) else datetime.combine(given, time())
        if (moment.utcoffset() is not None) != zoned:
            raise misfit(value, type_, name, _ADD_ZONE if zoned else _DROP_ZONE)
        given = moment - datetime(1970, 1, 1, tzinfo=UTC if zoned else None)
    elif wanted == "time" and isinstance(given, time) and given.tzinfo is None:
        given = datetime.combine(date.min, given) - datetime.combine(date.min, time())
    elif wanted != "duration" or not isinstance(given, timedelta):
        raise misfit(value, type_, name, _KINDS[wanted][1])
    seconds = Fraction(given // timedelta(microseconds=1), 10**6)
    return seconds / 86_400 if pa.types.is_date32(type_) else seconds * _PER_SECOND[getattr(type_, "unit", "ms")]


def _parsed(text: str, into: type[datetime | time]) -> datetime | time | None:
    """Return an ISO string as a time; None if it is not valid, or finer than microseconds."""
    try:
        return None if re.search(r"[.,]\d{7}", text) else into.fromisoformat(text)
    except ValueError:
        return None


def array_of(stored: list[Any], type_: pa.DataType) -> pa.Array:
    """Return an array of a type from stored values; times and decimals are given as integers."""
    if kind(type_) == "decimal":
        return pa.array([Decimal(f"{value}E{-type_.scale}") for value in stored], type_)
    if kind(type_) in ("timestamp", "date", "time", "duration"):
        return pa.array(stored, pa.int64()).cast(pa.int32() if type_.bit_width == 32 else pa.int64()).cast(type_)  # noqa: PLR2004
    return pa.array(stored, type_)


def literal(value: Any, expression: str) -> Value:
    """Return a literal as a Python value; `expression` is the text before it, for the FilterError of an invalid one."""
    given = value
    if isinstance(value, np.datetime64 | np.timedelta64):
        micros = value.astype(f"{value.dtype.kind}8[us]")
        value = micros.item() if micros == value or np.isnat(value) else value
    elif isinstance(value, np.generic | pa.Scalar):
        value = value.item() if isinstance(value, np.generic) else value.as_py()
    value = value.bytes if isinstance(value, UUID) else value
    if value is None or (isinstance(value, date) and value != value):  # noqa: PLR0124 - pandas.NaT is a date
        raise FilterError(f"{expression} {given!r} matches no row: null equals nothing. Use is_null() or is_not_null().")
    finer = getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0)
    endless = isinstance(value, Decimal) and not value.is_finite()
    for type_, (make, _) in _LITERALS.items() if not (finer or endless) else ():
        if isinstance(value, type_):
            return make(value)
    raise FilterError(
        f"{expression} {given!r} compares with no value; expected a bool, int, float, str, bytes, UUID, finite Decimal, date, "
        "datetime, time or timedelta, in whole microseconds. For several values use isin([...])."
    )


def format_literal(value: object) -> str:
    """Return a literal as Python."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(format_literal, value))}]"
    return f"float('{value}')" if isinstance(value, float) and not np.isfinite(value) else repr(value)


def tagged(value: Value) -> list[object]:
    """Return the name of a literal's type and the literal as JSON."""
    return [type(value).__name__, _LITERALS[type(value)][1](value)]
