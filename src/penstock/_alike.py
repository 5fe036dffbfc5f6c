"""Types of Arrow that hold the same values: in other zones, as views, with room for more."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

__all__ = ["enlarged", "in_utc", "unviewed"]

VIEWED = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
"""Views, and what holds the same values."""

ENLARGED = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary(), **VIEWED}
"""Text and bytes, and what has room for any of it."""


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


def _changed(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type with what is inside of its lists, structs and maps changed."""
    tests = pa.types
    if tests.is_struct(kind):
        return pa.struct([_changed_field(kind.field(at), change) for at in range(kind.num_fields)])
    if tests.is_map(kind):
        return pa.map_(_changed_field(kind.key_field, change), _changed_field(kind.item_field, change), kind.keys_sorted)
    if tests.is_fixed_size_list(kind):
        return pa.list_(_changed_field(kind.value_field, change), kind.list_size)
    if tests.is_list(kind) or tests.is_large_list(kind):
        return (pa.list_ if tests.is_list(kind) else pa.large_list)(_changed_field(kind.value_field, change))
    return kind if isinstance(kind, pa.BaseExtensionType) else change(kind)  # which may not be hashed


def _changed_field(field: pa.Field, change: Callable[[pa.DataType], pa.DataType]) -> pa.Field:
    return field.with_type(_changed(field.type, change))
