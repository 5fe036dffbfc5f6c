"""Types of Arrow that hold the same values: in other zones, as views, with room for more; and values in another type."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

__all__ = ["around", "converted", "enlarged", "in_utc", "unviewed"]

VIEWED = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
"""Views, and what holds the same values."""

ENLARGED = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary(), **VIEWED}
"""Text and bytes, and what has room for any of it."""

LISTS = {
    "is_list": pa.list_,
    "is_large_list": pa.large_list,
    "is_list_view": pa.list_view,
    "is_large_list_view": pa.large_list_view,
}
"""What makes lists of any length, by the test that tells them."""


def in_utc(kind: pa.DataType) -> pa.DataType:
    """Return a type with all its moments that have a zone in UTC: those of another zone are the same moments.

    Example:
        >>> in_utc(pa.list_(pa.timestamp("us", tz="Europe/Paris"))).value_type
        TimestampType(timestamp[us, tz=UTC])
    """
    return _changed(kind, lambda one: pa.timestamp(one.unit, tz="UTC") if getattr(one, "tz", None) is not None else one)


def unviewed(kind: pa.DataType) -> pa.DataType:
    """Return a type without views of text and bytes, of which Arrow cannot pick rows yet.

    Example:
        >>> unviewed(pa.struct({"a": pa.string_view()})).field("a").type
        DataType(large_string)
    """
    return _changed(kind, lambda one: VIEWED.get(one, one))


def enlarged(kind: pa.DataType) -> pa.DataType:
    """Return a type with all its text and bytes in the layout that has room for any of it.

    Example:
        >>> enlarged(pa.list_(pa.string())).value_type
        DataType(large_string)
    """
    return _changed(kind, lambda one: ENLARGED.get(one, one))


def converted(values: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Return values in another type, decimals as the floats that are nearest to them.

    Arrow multiplies a decimal by a power of ten that no float is, and comes out beside up to four in ten of them. What it
    makes of their digits is right.

    Raises:
        pa.ArrowException: If there is no such value.

    Example:
        >>> cents = pa.array(["-5.56"]).cast(pa.decimal128(12, 2))
        >>> cents.cast(pa.float64())[0].as_py(), converted(cents, pa.float64())[0].as_py()
        (-5.5600000000000005, -5.56)
    """
    if pa.types.is_decimal(values.type) and pa.types.is_floating(kind):
        values = values.cast(pa.large_string())
    return values.cast(kind)


def _changed(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type with what its lists, structs and maps hold in the end changed."""
    if isinstance(kind, pa.BaseExtensionType):  # which may not be hashed
        return kind
    return around(kind, lambda inner: _changed(inner, change)) if pa.types.is_nested(kind) else change(kind)


def around(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type with what is inside of it changed; one that has nothing inside stays.

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
