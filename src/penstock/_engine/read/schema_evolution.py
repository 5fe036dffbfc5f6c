"""Convert stored columns to the table's schema: match them by name or id, rename nested fields, widen narrow types.

A file may be older than the table's schema. Columns that it does not have are null; columns that the table dropped are not
read.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from penstock._arrow_types import converted, enlarged, in_utc, unviewed
from penstock.errors import DataError
from penstock.model import Snapshot

FIELD_ID = b"PARQUET:field_id"
"""pyarrow's metadata key of a Parquet column's id."""

BYTES = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view", "fixed_size_binary")
MAX_NANOSECOND_SECONDS = 2**63 // 10**9
"""Seconds before or after 1970 from which a timestamp does not fit nanoseconds."""

MAX_DECIMAL_DIGITS = 76

EXACT_BITS = 32
"""The width of integers that the table formats widen to 64-bit floats, which hold them exactly."""


def field_id(field: pa.Field, key: bytes = FIELD_ID) -> int | None:
    """Return the id of a column; None if the column is identified by name.

    Example:
        >>> field_id(pa.field("a", pa.int64(), metadata={"PARQUET:field_id": "7"}))
        7
    """
    text = (field.metadata or {}).get(key)
    return None if text is None else int(text)


def columns_by_id(file: pa.Schema, path: str) -> dict[int, str]:
    """Return the names of a file's columns by their ids."""
    names = {number: field.name for field in file if (number := field_id(field)) is not None}
    if len(file) and not names:
        msg = (
            f"{path}: the columns have no ids, but the table identifies columns by id. Rewrite the file with the table's "
            "software, or map the table's columns by name."
        )
        raise DataError(msg)
    return names


def match_name(name: str, names: Collection[str]) -> str:
    """Return a column's name as a file has it, which may differ in case; `name` itself if the file has no such column.

    Example:
        >>> match_name("id", ["ID", "x"]), match_name("id", ["ID", "id"]), match_name("y", ["ID"])
        ('ID', 'id', 'y')
    """
    if name in names:
        return name
    matches = sorted(candidate for candidate in names if candidate.lower() == name.lower())
    if len(matches) > 1:
        msg = f"{name!r} could be {' or '.join(map(repr, matches))}"
        raise pa.ArrowInvalid(msg)
    return matches[0] if matches else name


def int96_unit(schema: pa.Schema) -> str | None:
    """Return the unit for reading INT96 timestamps: microseconds, which hold every year, unless the table has nanoseconds."""
    return None if any(has_timestamps(kind, "ns") for kind in schema.types) else "us"


def has_timestamps(kind: pa.DataType, unit: str | None = None) -> bool:
    """Return whether a type is or contains timestamps, of one unit if given.

    Example:
        >>> has_timestamps(pa.list_(pa.timestamp("us"))), has_timestamps(pa.timestamp("us"), "ns")
        (True, False)
    """
    if pa.types.is_timestamp(kind):
        return unit in (None, kind.unit)
    return any(has_timestamps(kind.field(at).type, unit) for at in range(kind.num_fields))


def exceeds_nanoseconds(column: pa.ChunkedArray) -> bool:
    """Return whether a column has timestamps in seconds before 1677 or after 2262, which do not fit nanoseconds.

    Example:
        >>> exceeds_nanoseconds(pa.chunked_array([pa.array([253402214400], pa.timestamp("s"))]))
        True
    """
    return any(_exceeds(chunk) for chunk in column.chunks)


def _exceeds(array: pa.Array) -> bool:
    if pa.types.is_timestamp(array.type) and array.type.unit == "s":
        ends = pc.min_max(array.cast(pa.int64()))
        return any(
            end is not None and not -MAX_NANOSECOND_SECONDS < end < MAX_NANOSECOND_SECONDS for end in ends.as_py().values()
        )
    if pa.types.is_struct(array.type):
        return any(map(_exceeds, array.flatten()))
    if pa.types.is_map(array.type):
        return _exceeds(array.keys) or _exceeds(array.items)
    return _is_any_list(array.type) and _exceeds(array.flatten())


def evolve_column(column: pa.ChunkedArray, name: str, kind: pa.DataType, snapshot: Snapshot) -> pa.ChunkedArray:
    """Return a stored column in the table's type, without views."""
    if column.type == kind and (snapshot.stored is None or not pa.types.is_nested(kind)):
        return column
    if snapshot.stored is not None:
        file_type = snapshot.stored.field(snapshot.schema.get_field_index(name))
        return pa.chunked_array([_evolve_array(chunk, kind, file_type.type) for chunk in column.chunks], type=kind)
    if snapshot.sampled and not _is_widening(column.type, kind):
        msg = "no value may change"
        raise pa.ArrowInvalid(msg)
    if pa.types.is_dictionary(kind) and not pa.types.is_dictionary(column.type):
        column = column.cast(kind.value_type).dictionary_encode()
    return _cast(column, kind)


def _evolve_array(array: pa.Array, kind: pa.DataType, file_type: pa.DataType) -> pa.Array:
    """Return an array in a type; `file_type` is that type with the files' names and ids of nested fields."""
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), kind)
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        return _evolve_struct(array, kind, file_type)
    if pa.types.is_map(kind) and pa.types.is_map(array.type):
        keys, items = (
            _evolve_array(array.keys, kind.key_type, file_type.key_type),
            _evolve_array(array.items, kind.item_type, file_type.item_type),
        )
        entries = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
        return _with_values(array, kind, entries)
    if pa.types.is_list(kind) and _is_any_list(array.type):
        array = array if pa.types.is_list(array.type) else array.cast(pa.list_(array.type.value_field))
        return _with_values(array, kind, _evolve_array(array.values, kind.value_type, file_type.value_type))
    if array.type == kind:
        return array
    if not _can_cast(array.type, kind):
        msg = f"{array.type} is not narrower than {kind}"
        raise pa.ArrowInvalid(msg)
    return _cast(array, kind)


def _cast(values: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Return values in another type. Integers become decimals if these values fit, not only if all of their type do."""
    if pa.types.is_decimal(kind) and pa.types.is_integer(values.type):
        values = values.cast(pa.decimal256(MAX_DECIMAL_DIGITS, kind.scale))
    return converted(values, kind)


def _evolve_struct(array: pa.StructArray, kind: pa.DataType, file_type: pa.DataType) -> pa.Array:
    """Return structs with the fields of a type, null if the file lacks them."""
    fields = [array.type.field(at) for at in range(array.type.num_fields)]
    wanted = [file_type.field(at) for at in range(file_type.num_fields)]
    if [field.name for field in wanted] == ["metadata", "value"] and "typed_value" in {field.name for field in fields}:
        msg = "its variants are shredded into columns, which is not supported"
        raise pa.ArrowNotImplementedError(msg)
    children = []
    for at, field in enumerate(wanted):
        index = field_index(fields, field)
        target = kind.field(at).type
        child = pa.nulls(len(array), target) if index is None else _evolve_array(array.field(index), target, field.type)
        children.append(child)
    if not children:
        return pa.Array.from_buffers(kind, len(array), array.buffers()[:1], offset=array.offset, children=[])
    names = [kind.field(at) for at in range(kind.num_fields)]
    return pa.StructArray.from_arrays(children, fields=names, mask=array.is_null() if array.null_count else None)


def field_index(fields: Sequence[pa.Field], wanted: pa.Field) -> int | None:
    """Return the index of a field among those of a file, by its id if it has one, else by name; None if it is missing."""
    number, name = field_id(wanted), match_name(wanted.name, [field.name for field in fields])
    matches = (field.name == name if number is None else field_id(field) == number for field in fields)
    return next((at for at, match in enumerate(matches) if match), None)


def _with_values(array: pa.Array, kind: pa.DataType, values: pa.Array) -> pa.Array:
    """Return lists or maps of the same lengths with other values."""
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], offset=array.offset, children=[values])


def _is_any_list(kind: pa.DataType) -> bool:
    views = getattr(pa.types, "is_list_view", lambda _: False), getattr(pa.types, "is_large_list_view", lambda _: False)
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, *views)
    return any(test(kind) for test in tests)


def _can_cast(stored: pa.DataType, kind: pa.DataType) -> bool:
    """Return whether a cast between two types preserves values; it still raises an error for values that do not fit."""
    of = pa.types
    exact = of.is_integer(stored) and of.is_float64(kind) and stored.bit_width <= EXACT_BITS
    ways = (
        _is_text_or_binary(kind) and _is_text_or_binary(stored),
        of.is_integer(kind) and of.is_integer(stored),
        of.is_floating(kind) and (exact or (of.is_floating(stored) and stored.bit_width <= kind.bit_width)),
        of.is_decimal(kind) and (of.is_integer(stored) or of.is_decimal(stored)),
        of.is_timestamp(kind) and (of.is_timestamp(stored) or (of.is_date(stored) and kind.tz is None)),
        of.is_date(kind) and of.is_date(stored),
    )
    return any(ways)


def _is_text_or_binary(kind: pa.DataType) -> bool:
    return any(getattr(pa.types, f"is_{name}")(kind) for name in BYTES)


def _is_widening(kind: pa.DataType, into: pa.DataType) -> bool:
    """Return whether `into` is the common type of both, as if both had been sampled when the table was opened."""
    kind, into = (enlarged(in_utc(one.value_type if pa.types.is_dictionary(one) else one)) for one in (kind, into))
    if kind == into:
        return True
    try:
        # The table's own type comes first, so nested fields keep its order.
        one, two = pa.schema({"x": into}), pa.schema({"x": kind})
        both = pa.unify_schemas([one, two], promote_options="permissive").field("x").type
    except pa.ArrowException:
        return False
    return bool(both == into)


def without_view_types(field: pa.Field) -> pa.Field:
    """Return a field in a type that Arrow can take rows from, which it cannot do for views yet."""
    return field.with_type(unviewed(field.type))
