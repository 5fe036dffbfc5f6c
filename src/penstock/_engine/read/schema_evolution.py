"""Stored columns as the table has them: found by name or id, fields inside renamed, narrower types widened.

A file may be older than the table's schema: what it does not have is null, and what the table dropped is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock._arrow_types import converted, enlarged, in_utc, unviewed
from penstock.errors import DataError
from penstock.model import Snapshot

__all__ = [
    "FIELD_ID",
    "beyond_nanoseconds",
    "columns_by_id",
    "fitted",
    "has_timestamps",
    "id_of",
    "int96_unit",
    "place_of",
    "spelt",
    "takeable",
]

FIELD_ID = b"PARQUET:field_id"
"""The key under which pyarrow keeps the id of a column in a file."""

BYTES = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view", "fixed_size_binary")
LONGEST_SECONDS = 2**63 // 10**9
"""Seconds before or after 1970 that timestamps in nanoseconds do not reach."""

MOST_DIGITS = 76
"""Digits of the longest decimals."""

EXACT_BITS = 32
"""Bits of the integers that floats of 64 bits hold exactly, as the table formats that widen them demand."""


def id_of(field: pa.Field) -> int | None:
    """Return the id of a column; None where it goes by its name.

    Example:
        >>> id_of(pa.field("a", pa.int64(), metadata={"PARQUET:field_id": "7"}))
        7
    """
    text = (field.metadata or {}).get(FIELD_ID)
    return None if text is None else int(text)


def columns_by_id(file: pa.Schema, path: str) -> dict[int, str]:
    """Return the names of a file's columns by their ids.

    Raises:
        DataError: If the file has columns, and none of them an id.
    """
    found = {number: field.name for field in file if (number := id_of(field)) is not None}
    if len(file) and not found:
        msg = (
            f"{path}: the columns have no ids, by which the table knows them. A file that the table's software wrote was "
            "expected. Rewrite the file, or map the table's columns by name."
        )
        raise DataError(msg)
    return found


def spelt(wanted: str, names: Collection[str]) -> str:
    """Return a name as a file has it, whose writer may have heeded capital letters less than others do.

    Raises:
        pa.ArrowInvalid: If there are several that differ in nothing else.

    Example:
        >>> spelt("id", ["ID", "x"]), spelt("id", ["ID", "id"]), spelt("y", ["ID"])
        ('ID', 'id', 'y')
    """
    if wanted in names:
        return wanted
    found = sorted(name for name in names if name.lower() == wanted.lower())
    if len(found) > 1:
        msg = f"{wanted!r} could be {' or '.join(map(repr, found))}"
        raise pa.ArrowInvalid(msg)
    return found[0] if found else wanted


def int96_unit(schema: pa.Schema) -> str | None:
    """Return the unit that timestamps of twelve bytes are read in: microseconds reach every year, nanoseconds do not."""
    return None if any(has_timestamps(kind, "ns") for kind in schema.types) else "us"


def has_timestamps(kind: pa.DataType, unit: str | None = None) -> bool:
    """Return whether a type has timestamps in it, or such of one unit.

    Example:
        >>> has_timestamps(pa.list_(pa.timestamp("us"))), has_timestamps(pa.timestamp("us"), "ns")
        (True, False)
    """
    if pa.types.is_timestamp(kind):
        return unit in (None, kind.unit)
    return any(has_timestamps(kind.field(at).type, unit) for at in range(kind.num_fields))


def beyond_nanoseconds(column: pa.ChunkedArray) -> bool:
    """Return whether a column has timestamps in seconds which nanoseconds do not reach: before 1677, or after 2262.

    Example:
        >>> beyond_nanoseconds(pa.chunked_array([pa.array([253402214400], pa.timestamp("s"))]))
        True
    """
    return any(_is_beyond(chunk) for chunk in column.chunks)


def _is_beyond(array: pa.Array) -> bool:
    if pa.types.is_timestamp(array.type) and array.type.unit == "s":
        ends = pc.min_max(array.cast(pa.int64()))
        return any(end is not None and not -LONGEST_SECONDS < end < LONGEST_SECONDS for end in ends.as_py().values())
    if pa.types.is_struct(array.type):
        return any(map(_is_beyond, array.flatten()))
    if pa.types.is_map(array.type):
        return _is_beyond(array.keys) or _is_beyond(array.items)
    return _is_listed(array.type) and _is_beyond(array.flatten())


def fitted(column: pa.ChunkedArray, name: str, kind: pa.DataType, snapshot: Snapshot) -> pa.ChunkedArray:
    """Return a stored column in the table's type, of which rows can be picked.

    Raises:
        pa.ArrowException: If its values do not fit that.
    """
    if column.type == kind and (snapshot.stored is None or not pa.types.is_nested(kind)):
        return column
    if snapshot.stored is not None:
        shape = snapshot.stored.field(snapshot.schema.get_field_index(name))
        return pa.chunked_array([_fitted(chunk, kind, shape.type) for chunk in column.chunks], type=kind)
    if snapshot.sampled and not _widens(column.type, kind):
        msg = "no value may change"
        raise pa.ArrowInvalid(msg)
    if pa.types.is_dictionary(kind) and not pa.types.is_dictionary(column.type):
        column = column.cast(kind.value_type).dictionary_encode()
    return _widened(column, kind)


def _fitted(array: pa.Array, kind: pa.DataType, shape: pa.DataType) -> pa.Array:
    """Return an array in a type; `shape` is the same type with the names and ids that files know its fields by."""
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), kind)
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        return _struct(array, kind, shape)
    if pa.types.is_map(kind) and pa.types.is_map(array.type):
        keys, items = _fitted(array.keys, kind.key_type, shape.key_type), _fitted(array.items, kind.item_type, shape.item_type)
        entries = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
        return _around(array, kind, entries)
    if pa.types.is_list(kind) and _is_listed(array.type):
        array = array if pa.types.is_list(array.type) else array.cast(pa.list_(array.type.value_field))
        return _around(array, kind, _fitted(array.values, kind.value_type, shape.value_type))
    if array.type == kind:
        return array
    if not _fits(array.type, kind):
        msg = f"{array.type} is no narrower type than {kind}"
        raise pa.ArrowInvalid(msg)
    return _widened(array, kind)


def _widened(values: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Return values in another type; whole numbers become decimals if they fit, whatever larger ones of their type would do."""
    if pa.types.is_decimal(kind) and pa.types.is_integer(values.type):
        values = values.cast(pa.decimal256(MOST_DIGITS, kind.scale))
    return converted(values, kind)


def _struct(array: pa.StructArray, kind: pa.DataType, shape: pa.DataType) -> pa.Array:
    """Return structs with the fields of a type."""
    fields = [array.type.field(at) for at in range(array.type.num_fields)]
    wanted = [shape.field(at) for at in range(shape.num_fields)]
    if [field.name for field in wanted] == ["metadata", "value"] and "typed_value" in {field.name for field in fields}:
        msg = "its variants are shredded into columns, which is not supported"
        raise pa.ArrowNotImplementedError(msg)
    found = []
    for at, field in enumerate(wanted):
        place = place_of(fields, field)
        target = kind.field(at).type
        found.append(pa.nulls(len(array), target) if place is None else _fitted(array.field(place), target, field.type))
    if not found:
        return pa.Array.from_buffers(kind, len(array), array.buffers()[:1], offset=array.offset, children=[])
    names = [kind.field(at) for at in range(kind.num_fields)]
    return pa.StructArray.from_arrays(found, fields=names, mask=array.is_null() if array.null_count else None)


def place_of(fields: Sequence[pa.Field], wanted: pa.Field) -> int | None:
    """Return the place of a field among those of a file, by its id where it has one, else by its name.

    Raises:
        pa.ArrowInvalid: If there are several whose names differ from it in capital letters only.
    """
    number, name = id_of(wanted), spelt(wanted.name, [field.name for field in fields])
    same = (field.name == name if number is None else id_of(field) == number for field in fields)
    return next((at for at, found in enumerate(same) if found), None)


def _around(array: pa.Array, kind: pa.DataType, values: pa.Array) -> pa.Array:
    """Return lists or maps of the same lengths around other values."""
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], offset=array.offset, children=[values])


def _is_listed(kind: pa.DataType) -> bool:
    views = getattr(pa.types, "is_list_view", lambda _: False), getattr(pa.types, "is_large_list_view", lambda _: False)
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, *views)
    return any(test(kind) for test in tests)


def _fits(stored: pa.DataType, kind: pa.DataType) -> bool:
    """Return whether values of a type go into another without losing what they are; a cast refuses those that do not fit."""
    of = pa.types
    exact = of.is_integer(stored) and of.is_float64(kind) and stored.bit_width <= EXACT_BITS
    ways = (
        _is_bytes(kind) and _is_bytes(stored),
        of.is_integer(kind) and of.is_integer(stored),
        of.is_floating(kind) and (exact or (of.is_floating(stored) and stored.bit_width <= kind.bit_width)),
        of.is_decimal(kind) and (of.is_integer(stored) or of.is_decimal(stored)),
        of.is_timestamp(kind) and (of.is_timestamp(stored) or (of.is_date(stored) and kind.tz is None)),
        of.is_date(kind) and of.is_date(stored),
    )
    return any(ways)


def _is_bytes(kind: pa.DataType) -> bool:
    return any(getattr(pa.types, f"is_{name}")(kind) for name in BYTES)


def _widens(kind: pa.DataType, into: pa.DataType) -> bool:
    """Return whether a type goes into another as it would if both had been looked at when the table was opened."""
    kind, into = (enlarged(in_utc(one.value_type if pa.types.is_dictionary(one) else one)) for one in (kind, into))
    if kind == into:
        return True
    try:
        # The table's own comes first: what both have inside of them is then in its order.
        one, two = pa.schema({"x": into}), pa.schema({"x": kind})
        both = pa.unify_schemas([one, two], promote_options="permissive").field("x").type
    except pa.ArrowException:
        return False
    return bool(both == into)


def takeable(field: pa.Field) -> pa.Field:
    """Return a column in a type that rows can be picked from, which Arrow cannot do of views yet."""
    return field.with_type(unviewed(field.type))
