"""Schemas as JSON, as they are stored in `_common_metadata` and in the footer of every data file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from penstock import codecs
from penstock.errors import ArgumentError, DataError
from penstock.schema import Codec, Field, Schema

__all__ = ["KEY", "dump", "load"]

KEY = b"penstock.schema"
"""The key of the schema in the key-value metadata of Parquet."""

VERSION = 1
MAX_CHARACTERS = 16 << 20
MAX_SHOWN = 60
"""The limit on the characters of a value in a message."""

JSON_TYPES = {int: "an integer", str: "a string", list: "a list", bool: "a boolean", dict: "an object"}


def dump(schema: Schema) -> str:
    """Return a schema as JSON; fields without a codec get their default.

    Raises:
        ArgumentError: If a codec cannot be restored from its options.

    Example:
        >>> dump(Schema("Hi", [Field("id", np.int32)]))
        '{"penstock": 1, "name": "Hi", "fields": [{"name": "id", "dtype": "int32", "shape": [], "nullable": false, "codec": {"name": "scalar"}}]}'
    """  # noqa: E501 - one line of JSON
    fields = []
    for field in schema:
        codec = field.codec or codecs.default(field)
        dtype = _dtype_name(field.dtype, sized=isinstance(codec, codecs.Raw))
        stored = {"name": codec.name, **_options(field, codec)}
        if isinstance(codec, codecs.Unknown):
            stored = {"name": codec.called, **json.loads(codec.stored)}
        described = {"name": field.name, "dtype": dtype, "shape": list(field.shape), "nullable": field.nullable}
        fields.append({**described, "codec": stored})
    return json.dumps({"penstock": VERSION, "name": schema.name, "fields": fields})


def _options(field: Field, codec: Codec) -> dict[str, Any]:
    """Return the options of a codec, after a check that it can be restored from them."""
    options = dict(codec.options())
    try:
        type(codec).of(json.loads(json.dumps(options)))
    except (TypeError, ValueError) as error:
        why = str(error).rstrip(".")
        msg = (
            f"Field {field.name!r} has the codec {codec!r}, which cannot be restored from its options {options!r}: {why}; "
            "expected a frozen dataclass with JSON values as fields. Change the class of the codec."
        )
        raise ArgumentError(msg) from error
    return options


def load(text: str | bytes, known: Iterable[type[Codec]] = ()) -> Schema:
    """Return the schema in a JSON text, which can be invalid.

    Raises:
        DataError: If it is not a valid schema.
    """
    try:
        return _schema(text, list(known))
    except (ValueError, TypeError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error).rstrip(".")
        msg = f"The schema stored with the table cannot be read: {why}. Rewrite the table, or adopt a schema for it."
        raise DataError(msg) from error


def _schema(text: str | bytes, known: list[type[Codec]]) -> Schema:
    if len(text) > MAX_CHARACTERS:
        msg = f"it has {len(text)} characters, and the limit is {MAX_CHARACTERS}"
        raise DataError(msg)
    try:
        stored = json.loads(text)
    except UnicodeDecodeError as error:
        raise DataError("it is not text") from error
    except json.JSONDecodeError as error:
        raise DataError(f"it is not valid JSON at line {error.lineno}, column {error.colno}") from error
    _check_keys("it", stored, {"penstock": int})
    if stored["penstock"] != VERSION:
        msg = f"it has version {stored['penstock']!r}, and this Penstock reads version {VERSION}; use a newer Penstock"
        raise DataError(msg)
    _check_keys("it", stored, {"name": str, "fields": list})
    return Schema(stored["name"], [_field(number, field, known) for number, field in enumerate(stored["fields"])])


def _check_keys(where: str, value: Any, keys: Mapping[str, type]) -> None:
    """Check that a JSON value is an object with values of these types."""
    if not isinstance(value, dict):
        raise DataError(f"{where} is {_format_json(value)}; expected an object")
    for key, kind in keys.items():
        if key not in value:
            raise DataError(f"{where} has no {key!r}")
        if type(value[key]) is not kind:
            raise DataError(f"{where} has {key!r}: {_format_json(value[key])}; expected {JSON_TYPES[kind]}")


def _format_json(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _dtype_name(dtype: np.dtype[Any], *, sized: bool) -> str:
    """Return the name of a dtype on disk; text and bytes have a length there only if `sized`."""
    if dtype.type is np.void:  # np.dtype does not accept its name
        return dtype.str.lstrip("|")
    if dtype.kind not in "US":
        return dtype.name
    return dtype.str.lstrip("<>|=") if sized else {"U": "str", "S": "bytes"}[dtype.kind]


def _field(number: int, stored: Any, known: Iterable[type[Codec]]) -> Field:
    _check_keys(f"field {number}", stored, {"name": str})
    _check_keys(f"field {stored['name']!r}", stored, {"dtype": str, "shape": list, "nullable": bool, "codec": dict})
    _check_keys(f"the codec of field {stored['name']!r}", stored["codec"], {"name": str})
    dtype = {"str": str, "bytes": bytes}.get(stored["dtype"], stored["dtype"])
    options = dict(stored["codec"])
    codec = codecs.named(options.pop("name"), options, known)
    return Field(stored["name"], dtype, stored["shape"], codec, nullable=stored["nullable"])
