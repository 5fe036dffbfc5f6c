"""What a Delta log is told of a table that is written: its columns with their codecs, and each file with its statistics."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.codecs import Npy, Raw, Scalar
from penstock.errors import ArgumentError, DataError
from penstock.schema import Field, Schema
from penstock.schema.compat import incompatible
from penstock.schema.json import KEY, load

__all__ = ["FIELD", "add_action", "check_names", "delta_type", "schema_text", "suited", "told_fields"]

FIELD = "penstock.field"
"""Under which a column's field stands, as JSON text, in the metadata that Delta keeps of it."""

LONGEST = 32
"""Letters of a bound; of a longer upper one, what follows is the last of all letters."""
LAST = "\U0010ffff"
MOST_STATED = 32
"""Columns that have statistics, as in tables of others."""

WIDER = {"uint8": "int16", "uint16": "int32", "uint32": "int64"}
"""Numbers that Delta has no type for, and those that hold them all."""

NEAREST = {"uint64": "int64, which holds numbers up to 2**63 - 1", "halffloat": "float32"}
"""Numbers that Delta has no type for, and that stay as they are unless the user decides."""

NAMES = {
    "is_int8": "byte",
    "is_int16": "short",
    "is_int32": "integer",
    "is_int64": "long",
    "is_float32": "float",
    "is_float64": "double",
    "is_boolean": "boolean",
    "is_string": "string",
    "is_string_view": "string",
    "is_binary_view": "binary",
    "is_large_string": "string",
    "is_binary": "binary",
    "is_large_binary": "binary",
    "is_date32": "date",
}


def suited(schema: Schema) -> Schema:
    """Return a schema whose fields get a codec that Delta has a type for, where they have none.

    Example:
        >>> import numpy as np
        >>> suited(Schema("Hello", [Field("label", np.uint8)]))["label"].codec
        Scalar(type='int16')
    """
    return Schema(schema.name, [_suited(each) for each in schema])


def _suited(field: Field) -> Field:
    if field.codec is not None:
        return field.with_codec(replace(field.codec, fixed=False)) if isinstance(field.codec, Raw) else field
    if field.shape and (field.dtype.kind == "u" or field.dtype.name == "float16"):
        return field.with_codec(Npy())
    return field.with_codec(Scalar(WIDER[field.dtype.name])) if field.dtype.name in WIDER and not field.shape else field


def delta_type(kind: pa.DataType, name: str) -> Any:
    """Return how a log names an Arrow type.

    Raises:
        ArgumentError: If Delta has no such type.

    Example:
        >>> delta_type(pa.list_(pa.int32()), "x")
        {'type': 'array', 'elementType': 'integer', 'containsNull': True}
    """
    of = pa.types
    if (word := _word(kind)) is not None:
        return word
    if isinstance(kind, pa.FixedShapeTensorType):
        return {"type": "array", "elementType": delta_type(kind.value_type, name), "containsNull": True}
    if of.is_list(kind) or of.is_large_list(kind) or of.is_fixed_size_list(kind):
        nullable = kind.value_field.nullable
        return {"type": "array", "elementType": delta_type(kind.value_type, name), "containsNull": nullable}
    if of.is_struct(kind):
        return {"type": "struct", "fields": [_field(field, {}) for field in kind]}
    if of.is_map(kind):
        key, value = delta_type(kind.key_type, name), delta_type(kind.item_type, name)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": kind.item_field.nullable}
    msg = (
        f"Column {name!r} is stored as {kind}, for which Delta has no type. It has whole numbers with a sign, floats of 32 and "
        "64 bits, decimals, text, bytes, booleans, dates, times in microseconds, lists, structs and maps. "
    )
    raise ArgumentError(msg + _advice(kind))


def _advice(kind: pa.DataType) -> str:
    """Return what to do with a type that Delta does not have."""
    word = str(kind)
    if word in WIDER:
        return (
            f"Cast the column to {WIDER[word]}, or give a penstock.Schema whose field has no codec of its own: numbers are "
            "widened then, and arrays stored as .npy."
        )
    if word in NEAREST:
        return (
            f"Make it {NEAREST[word]}, or text; arrays of it in a penstock.Schema are stored as .npy, if they have no codec "
            "of their own."
        )
    return "Cast the column, or its field in the schema, to one of them."


def check_names(arrow: pa.Schema) -> None:
    """Refuse names that differ in nothing but upper and lower case, which Delta takes for one.

    Raises:
        ArgumentError: If there are two such columns, or fields of one struct.

    Example:
        >>> check_names(pa.schema({"a": pa.int64(), "b": pa.struct({"A": pa.int64()})}))
    """
    _check_names(list(arrow), "")


def _check_names(fields: Sequence[pa.Field], inside: str) -> None:
    found: dict[str, str] = {}
    for field in fields:
        key, name = field.name.lower(), inside + field.name
        if key in found:
            msg = (
                f"write got the columns {found[key]!r} and {name!r}, which Delta takes for one: it does not tell upper from "
                "lower case. Names that differ in more were expected. Rename one of them."
            )
            raise ArgumentError(msg)
        found[key] = name
        if pa.types.is_nested(field.type):
            inner = [field.type.field(at) for at in range(field.type.num_fields)]
            _check_names(inner, f"{name}.")


def _word(kind: pa.DataType) -> str | None:
    """Return the name of a type that has no others inside."""
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return next((word for test, word in NAMES.items() if getattr(pa.types, test)(kind)), None)


def _field(field: pa.Field, notes: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": field.name, "type": delta_type(field.type, field.name), "nullable": field.nullable, "metadata": dict(notes)}


def schema_text(arrow: pa.Schema) -> str:
    """Return the schema of a log; a schema of ours in the metadata goes to its columns.

    Raises:
        ArgumentError: If Delta has no type for a column, or would lose the shape of tensors.
    """
    for column in arrow:
        _check_tensors(column.type, column)
    text = (arrow.metadata or {}).get(KEY)
    ours = {} if text is None else {told["name"]: json.dumps(told) for told in json.loads(text)["fields"]}
    fields = [_field(field, {FIELD: ours[field.name]} if field.name in ours else {}) for field in arrow]
    return json.dumps({"type": "struct", "fields": fields})


def _check_tensors(kind: pa.DataType, column: pa.Field) -> None:
    """Refuse tensors whose shape the schema of ours does not tell: it does so of columns, with their axes in order."""
    if isinstance(kind, pa.FixedShapeTensorType):
        turned = list(kind.permutation or ()) != sorted(kind.permutation or ())
        if turned or kind != column.type:
            why = "whose axes are permuted" if turned else "with tensors inside"
            msg = (
                f"Column {column.name!r} is {column.type}, {why}, and Delta has lists for tensors, by which they would come "
                "back in another shape. A column of tensors in C order was expected. "
            )
            if not turned:
                raise ArgumentError(msg + "Make them lists, or a column of their own.")
            msg += "Turn them: numbers = numpy.ascontiguousarray(column.combine_chunks().to_numpy_ndarray()), and then "
            raise ArgumentError(msg + "pyarrow.FixedShapeTensorArray.from_numpy_ndarray(numbers).")
    elif pa.types.is_nested(kind):
        for at in range(kind.num_fields):
            _check_tensors(kind.field(at).type, column)


def told_fields(schema_text: str, schema: pa.Schema, url: str) -> dict[str, Field]:
    """Return what the fields of a log's schema say of their columns; nothing of those that do not hold it any more.

    Raises:
        DataError: If what a column says cannot be read.
    """
    found = {}
    for told in json.loads(schema_text)["fields"]:
        text = (told.get("metadata") or {}).get(FIELD)
        if not isinstance(text, str) or told["name"] not in schema.names:
            continue
        try:
            (field,) = load(f'{{"penstock": 1, "name": "", "fields": [{text}]}}')
        except (DataError, ValueError) as error:
            raise DataError(f"{url}, column {told['name']!r}: {error}") from error
        field = Field(told["name"], field.dtype, field.shape, field.codec, nullable=bool(told.get("nullable", True)))
        if incompatible(field, schema.field(field.name).type) is None:
            found[field.name] = field
    return found


def add_action(name: str, size: int, footer: pq.FileMetaData, values: Mapping[str, str | None], moment: int) -> dict[str, Any]:
    """Return the action that adds a file to a table."""
    return {
        "path": quote(name, safe="/=-_.~!$&'()*+,;:@"),
        "partitionValues": dict(values),
        "size": size,
        "modificationTime": moment,
        "dataChange": True,
        "stats": json.dumps(_statistics(footer), ensure_ascii=False),
    }


def _statistics(footer: pq.FileMetaData) -> dict[str, Any]:
    """Return what a footer says of whole columns, as a log has it."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    plain = [at for at in range(footer.num_columns) if footer.schema.column(at).max_repetition_level == 0]
    for at in plain[:MOST_STATED]:
        column = footer.schema.column(at)
        parts = [group.column(at).statistics for group in groups]
        if column.path != column.name or not parts or any(part is None for part in parts):
            continue
        if all(part.has_null_count for part in parts):
            nulls[column.name] = sum(part.null_count for part in parts)
        full = [part for part, group in zip(parts, groups, strict=True) if part.null_count != group.num_rows]
        bounds = None
        if full and all(part.has_min_max for part in full):
            with suppress(OverflowError, ValueError):  # a day or a moment that Python does not have
                bounds = _bounds([part.min for part in full], [part.max for part in full])
        if bounds is not None:
            low[column.name], upper = bounds
            high |= {} if upper is None else {column.name: upper}
    return {"numRecords": footer.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}


def _bounds(lows: Sequence[Any], highs: Sequence[Any]) -> tuple[Any, Any] | None:
    """Return the bounds of a column as JSON has them; None where it has none, or no upper one."""
    kind = type(lows[0])
    if kind is bool or isinstance(lows[0], bytes | Decimal):
        return None
    low, high = min(lows), max(highs)
    if isinstance(low, int | float):
        return (low, high) if abs(low) != float("inf") and abs(high) != float("inf") else None
    if isinstance(low, str):
        if len(high) <= LONGEST:
            return low[:LONGEST], high
        return low[:LONGEST], None if high[LONGEST] == LAST else high[:LONGEST] + LAST
    if isinstance(low, dt.datetime):
        return _moment(low), _moment(high)
    return (low.isoformat(), high.isoformat()) if isinstance(low, dt.date) else None


def _moment(moment: dt.datetime) -> str:
    if moment.tzinfo is None:
        return moment.isoformat(timespec="microseconds")
    return moment.astimezone(dt.UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
