"""A schema as JSON, which is how it is stored: in `_common_metadata` and in the footer of every data file."""

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
"""Under which the schema stands among the key-value metadata of Parquet."""

VERSION = 1
MOST_CHARACTERS = 16 << 20
LONGEST = 60
"""Characters of a value in a message."""

WORDS = {int: "a whole number", str: "a text", list: "a list", bool: "true or false", dict: "a JSON object"}


def dump(schema: Schema) -> str:
    """Return a schema as JSON text; fields without a codec get their default.

    Raises:
        ArgumentError: If a codec could not be made again from what is stored of it.

    Example:
        >>> dump(Schema("Hi", [Field("id", np.int32)]))
        '{"penstock": 1, "name": "Hi", "fields": [{"name": "id", "dtype": "int32", "shape": [], "nullable": false, "codec": {"name": "scalar"}}]}'
    """  # noqa: E501 - the text
    fields = []
    for field in schema:
        codec = field.codec or codecs.default(field)
        dtype = _dtype_name(field.dtype, sized=isinstance(codec, codecs.Raw))
        told = {"name": field.name, "dtype": dtype, "shape": list(field.shape), "nullable": field.nullable}
        stored = {"name": codec.name, **_options(field, codec)}
        if isinstance(codec, codecs.Unknown):  # which stays what it was
            stored = {"name": codec.called, **json.loads(codec.stored)}
        fields.append({**told, "codec": stored})
    return json.dumps({"penstock": VERSION, "name": schema.name, "fields": fields})


def _options(field: Field, codec: Codec) -> dict[str, Any]:
    """Return what is stored of a codec, from which another like it can be made."""
    options = dict(codec.options())
    try:
        type(codec).of(json.loads(json.dumps(options)))
    except (TypeError, ValueError) as error:
        why = str(error).rstrip(".")
        msg = (
            f"Field {field.name!r} has the codec {codec!r}, which cannot be made again from the options that are stored of it, "
            f"{options!r}: {why}. A frozen dataclass whose fields JSON can hold was expected. Make it one."
        )
        raise ArgumentError(msg) from error
    return options


def load(text: str | bytes, known: Iterable[type[Codec]] = ()) -> Schema:
    """Return the schema that a JSON text holds, which may be anything.

    Raises:
        DataError: If it holds none that we can read.
    """
    try:
        return _schema(text, list(known))
    except (ValueError, TypeError, RecursionError) as error:
        why = "it is nested too deep" if isinstance(error, RecursionError) else str(error).rstrip(".")
        msg = f"The schema stored with the table cannot be read: {why}. Write the table anew, or adopt a schema for it."
        raise DataError(msg) from error


def _schema(text: str | bytes, known: list[type[Codec]]) -> Schema:
    if len(text) > MOST_CHARACTERS:
        msg = f"it has {len(text)} characters, and {MOST_CHARACTERS} are read at most"
        raise DataError(msg)
    try:
        told = json.loads(text)
    except UnicodeDecodeError as error:
        raise DataError("it is no text") from error
    except json.JSONDecodeError as error:
        raise DataError(f"it is no JSON from line {error.lineno}, column {error.colno} on") from error
    _check_keys("it", told, {"penstock": int})
    if told["penstock"] != VERSION:
        msg = f"it is of version {told['penstock']!r}, and version {VERSION} is known here; a newer Penstock reads it"
        raise DataError(msg)
    _check_keys("it", told, {"name": str, "fields": list})
    return Schema(told["name"], [_field(number, field, known) for number, field in enumerate(told["fields"])])


def _check_keys(what: str, told: Any, keys: Mapping[str, type]) -> None:
    """Refuse what is no object of JSON with such values."""
    if not isinstance(told, dict):
        raise DataError(f"{what} is {_shown(told)} where a JSON object was expected")
    for key, kind in keys.items():
        if key not in told:
            raise DataError(f"{what} has no {key!r}")
        if type(told[key]) is not kind:
            raise DataError(f"{what} has {_shown(told[key])} as {key!r}, where {WORDS[kind]} was expected")


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _dtype_name(dtype: np.dtype[Any], *, sized: bool) -> str:
    """Return what a dtype is called on disk; text and bytes have no length there, but where cells are nothing but values."""
    if dtype.type is np.void:  # whose own name NumPy does not take back
        return dtype.str.lstrip("|")
    if dtype.kind not in "US":
        return dtype.name
    return dtype.str.lstrip("<>|=") if sized else {"U": "str", "S": "bytes"}[dtype.kind]


def _field(number: int, told: Any, known: Iterable[type[Codec]]) -> Field:
    _check_keys(f"field {number}", told, {"name": str})
    _check_keys(f"field {told['name']!r}", told, {"dtype": str, "shape": list, "nullable": bool, "codec": dict})
    _check_keys(f"the codec of field {told['name']!r}", told["codec"], {"name": str})
    dtype = {"str": str, "bytes": bytes}.get(told["dtype"], told["dtype"])
    options = dict(told["codec"])
    codec = codecs.named(options.pop("name"), options, known)
    return Field(told["name"], dtype, told["shape"], codec, nullable=told["nullable"])
