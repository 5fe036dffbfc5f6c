"""Conversions between Arrow types that hold the same values: zones, views, large offsets; and casts of values."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

__all__ = ["around", "converted", "enlarged", "in_utc", "unviewed"]

VIEWED = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
"""Types of views, and the types without views."""

ENLARGED = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary(), **VIEWED}
"""Types of text and bytes, and the types with 64-bit offsets."""

LISTS = {
    "is_list": pa.list_,
    "is_large_list": pa.large_list,
    "is_list_view": pa.list_view,
    "is_large_list_view": pa.large_list_view,
}
"""The constructors of list types, by the name of their test."""


def in_utc(kind: pa.DataType) -> pa.DataType:
    """Return a type with all timestamps that have a zone in UTC.

    Example:
        >>> in_utc(pa.list_(pa.timestamp("us", tz="Europe/Paris"))).value_type
        TimestampType(timestamp[us, tz=UTC])
    """
    return _changed(kind, lambda one: pa.timestamp(one.unit, tz="UTC") if getattr(one, "tz", None) is not None else one)


def unviewed(kind: pa.DataType) -> pa.DataType:
    """Return a type without views of text and bytes, which `take` of Arrow does not support.

    Example:
        >>> unviewed(pa.struct({"a": pa.string_view()})).field("a").type
        DataType(large_string)
    """
    return _changed(kind, lambda one: VIEWED.get(one, one))


def enlarged(kind: pa.DataType) -> pa.DataType:
    """Return a type with 64-bit offsets for all text and bytes.

    Example:
        >>> enlarged(pa.list_(pa.string())).value_type
        DataType(large_string)
    """
    return _changed(kind, lambda one: ENLARGED.get(one, one))


def converted(values: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Return values cast to another type; decimals become the nearest floats.

    Arrow's cast multiplies a decimal by a power of ten, and up to four in ten results are not the nearest float. Its parser
    of text is exact, so decimals are cast to text first.

    Raises:
        pa.ArrowException: If a value cannot be cast.

    Example:
        >>> cents = pa.array(["-5.56"]).cast(pa.decimal128(12, 2))
        >>> cents.cast(pa.float64())[0].as_py(), converted(cents, pa.float64())[0].as_py()
        (-5.5600000000000005, -5.56)
    """
    if pa.types.is_decimal(values.type) and pa.types.is_floating(kind):
        values = values.cast(pa.large_string())
    return values.cast(kind)


def _changed(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type with its innermost types changed."""
    if isinstance(kind, pa.BaseExtensionType):  # some cannot be hashed
        return kind
    return around(kind, lambda inner: _changed(inner, change)) if pa.types.is_nested(kind) else change(kind)


def around(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a nested type with its child types changed; other types are returned as they are.

    Example:
        >>> around(pa.list_(pa.int8()), lambda kind: pa.int64())
        ListType(list<item: int64>)
    """
    of = pa.types
    if of.is_struct(kind):
        return pa.struct([field.with_type(change(field.type)) for field in kind])
    if of.is_map(kind):
        return pa.map_(*(field.with_type(change(field.type)) for field in (kind.key_field, kind.item_field)), kind.keys_sorted)
    if of.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(change(kind.value_type)), kind.list_size)
    make = next((make for test, make in LISTS.items() if getattr(of, test)(kind)), None)
    return kind if make is None else make(kind.value_field.with_type(change(kind.value_type)))
