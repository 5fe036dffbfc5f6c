"""Actions of a Delta commit: the columns of a table with their codecs, and its files with their statistics."""

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

__all__ = ["FIELD", "add_action", "check_names", "delta_type", "schema_text", "stored_fields", "suited"]

FIELD = "penstock.field"
"""The key of a column's `Field`, as JSON text, in the column's metadata."""

MAX_LETTERS = 32
"""The length of a bound; a longer upper bound ends with the last of all letters."""
LAST_LETTER = "\U0010ffff"
MAX_COLUMNS = 32
"""The number of columns with statistics, as in other writers."""

WIDER = {"uint8": "int16", "uint16": "int32", "uint32": "int64"}
"""Types that Delta lacks, and the types that hold all of their numbers."""

NEAREST = {"uint64": "int64, which holds numbers up to 2**63 - 1", "halffloat": "float32"}
"""Types that Delta lacks, and that only the user can convert."""

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
    """Return a schema whose fields without a codec get one that Delta has a type for.

    Example:
        >>> import numpy as np
        >>> suited(Schema("Hello", [Field("label", np.uint8)]))["label"].codec
        Scalar(type='int16')
    """
    return Schema(schema.name, [_with_delta_codec(each) for each in schema])


def _with_delta_codec(field: Field) -> Field:
    if field.codec is not None:
        return field.with_codec(replace(field.codec, fixed=False)) if isinstance(field.codec, Raw) else field
    if field.shape and (field.dtype.kind == "u" or field.dtype.name == "float16"):
        return field.with_codec(Npy())
    return field.with_codec(Scalar(WIDER[field.dtype.name])) if field.dtype.name in WIDER and not field.shape else field


def delta_type(kind: pa.DataType, name: str) -> Any:
    """Return an Arrow type as the log describes it.

    Raises:
        ArgumentError: If Delta has no such type.

    Example:
        >>> delta_type(pa.list_(pa.int32()), "x")
        {'type': 'array', 'elementType': 'integer', 'containsNull': True}
    """
    of = pa.types
    if (name_in_log := _primitive_name(kind)) is not None:
        return name_in_log
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
    raise ArgumentError(
        f"Column {name!r} is stored as {kind}, for which Delta has no type; expected signed integers, floats of 32 and 64 "
        f"bits, decimals, text, bytes, booleans, dates, times in microseconds, lists, structs or maps. {_advice(str(kind))}"
    )


def _advice(kind: str) -> str:
    """Return what to do with a type that Delta lacks."""
    if kind in WIDER:
        return (
            f"Cast the column to {WIDER[kind]}, or give a penstock.Schema whose field has no codec of its own: numbers are "
            "widened then, and arrays stored as .npy."
        )
    if kind in NEAREST:
        return (
            f"Make it {NEAREST[kind]}, or text; arrays of it in a penstock.Schema are stored as .npy, if they have no codec "
            "of their own."
        )
    return "Cast the column, or its field in the schema, to one of them."


def check_names(arrow: pa.Schema) -> None:
    """Refuse columns, or fields of one struct, whose names differ only in case: Delta ignores it.

    Example:
        >>> check_names(pa.schema({"a": pa.int64(), "b": pa.struct({"A": pa.int64()})}))
    """
    _check_names(list(arrow), "")


def _check_names(fields: Sequence[pa.Field], prefix: str) -> None:
    names: dict[str, str] = {}
    for field in fields:
        key, name = field.name.lower(), prefix + field.name
        if key in names:
            raise ArgumentError(
                f"write() got the columns {names[key]!r} and {name!r}, which are the same to Delta, which ignores case; "
                "expected names that differ in more. Rename one of them."
            )
        names[key] = name
        if pa.types.is_nested(field.type):
            inner = [field.type.field(at) for at in range(field.type.num_fields)]
            _check_names(inner, f"{name}.")


def _primitive_name(kind: pa.DataType) -> str | None:
    """Return the name of a type without inner types, or None."""
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return next((name for test, name in NAMES.items() if getattr(pa.types, test)(kind)), None)


def _field(field: pa.Field, metadata: Mapping[str, Any]) -> dict[str, Any]:
    kind = delta_type(field.type, field.name)
    return {"name": field.name, "type": kind, "nullable": field.nullable, "metadata": dict(metadata)}


def schema_text(arrow: pa.Schema) -> str:
    """Return the schema as a log has it; the `Schema` in the metadata becomes metadata of its columns."""
    for column in arrow:
        _check_tensors(column.type, column)
    text = (arrow.metadata or {}).get(KEY)
    stored = {} if text is None else {field["name"]: json.dumps(field) for field in json.loads(text)["fields"]}
    fields = [_field(field, {FIELD: stored[field.name]} if field.name in stored else {}) for field in arrow]
    return json.dumps({"type": "struct", "fields": fields})


def _check_tensors(kind: pa.DataType, column: pa.Field) -> None:
    """Refuse tensors whose shape the `Schema` does not have: it has those of whole columns in C order."""
    if isinstance(kind, pa.FixedShapeTensorType):
        is_permuted = list(kind.permutation or ()) != sorted(kind.permutation or ())
        if is_permuted or kind != column.type:
            why = "whose axes are permuted" if is_permuted else "with tensors inside"
            advice = "Make them lists, or a column of their own."
            if is_permuted:
                advice = (
                    "Reorder them: numbers = numpy.ascontiguousarray(column.combine_chunks().to_numpy_ndarray()), and then "
                    "pyarrow.FixedShapeTensorArray.from_numpy_ndarray(numbers)."
                )
            raise ArgumentError(
                f"Column {column.name!r} is {column.type}, {why}, and Delta stores tensors as lists, which would lose their "
                f"shape; expected a column of tensors in C order. {advice}"
            )
    elif pa.types.is_nested(kind):
        for at in range(kind.num_fields):
            _check_tensors(kind.field(at).type, column)


def stored_fields(schema_text: str, schema: pa.Schema, url: str) -> dict[str, Field]:
    """Return the `Field`s in the metadata of a log's columns, except those that no longer suit their column."""
    fields = {}
    for column in json.loads(schema_text)["fields"]:
        name, text = column["name"], (column.get("metadata") or {}).get(FIELD)
        if not isinstance(text, str) or name not in schema.names:
            continue
        try:
            (field,) = load(f'{{"penstock": 1, "name": "", "fields": [{text}]}}')
        except (DataError, ValueError) as error:
            raise DataError(f"{url}, column {name!r}: {error}") from error
        field = Field(name, field.dtype, field.shape, field.codec, nullable=bool(column.get("nullable", True)))
        if incompatible(field, schema.field(name).type) is None:
            fields[name] = field
    return fields


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
    """Return the statistics of a file's columns, as a log has them."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    plain = [at for at in range(footer.num_columns) if footer.schema.column(at).max_repetition_level == 0]
    for at in plain[:MAX_COLUMNS]:
        column = footer.schema.column(at)
        parts = [group.column(at).statistics for group in groups]
        if column.path != column.name or not parts or any(part is None for part in parts):
            continue
        if all(part.has_null_count for part in parts):
            nulls[column.name] = sum(part.null_count for part in parts)
        full = [part for part, group in zip(parts, groups, strict=True) if part.null_count != group.num_rows]
        bounds = None
        if full and all(part.has_min_max for part in full):
            with suppress(OverflowError, ValueError):  # a day or a moment outside the range of Python
                bounds = _bounds([part.min for part in full], [part.max for part in full])
        if bounds is not None:
            low[column.name], upper = bounds
            high |= {} if upper is None else {column.name: upper}
    return {"numRecords": footer.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}


def _bounds(lows: Sequence[Any], highs: Sequence[Any]) -> tuple[Any, Any] | None:
    """Return the bounds of a column for JSON; None if it has none, and None for a missing upper bound."""
    kind = type(lows[0])
    if kind is bool or isinstance(lows[0], bytes | Decimal):
        return None
    low, high = min(lows), max(highs)
    if isinstance(low, int | float):
        return (low, high) if abs(low) != float("inf") and abs(high) != float("inf") else None
    if isinstance(low, str):
        if len(high) <= MAX_LETTERS:
            return low[:MAX_LETTERS], high
        return low[:MAX_LETTERS], None if high[MAX_LETTERS] == LAST_LETTER else high[:MAX_LETTERS] + LAST_LETTER
    if isinstance(low, dt.datetime):
        return _format_datetime(low), _format_datetime(high)
    return (low.isoformat(), high.isoformat()) if isinstance(low, dt.date) else None


def _format_datetime(moment: dt.datetime) -> str:
    if moment.tzinfo is None:
        return moment.isoformat(timespec="microseconds")
    return moment.astimezone(dt.UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
