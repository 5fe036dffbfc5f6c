"""A schema as JSON, which is how it is stored: in `_common_metadata` and in the footer of every data file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from penstock import codecs
from penstock.errors import DataError
from penstock.schema import Codec, Field, Schema

__all__ = ["KEY", "dump", "load"]

KEY = b"penstock.schema"
"""Under which the schema stands among the key-value metadata of Parquet."""

VERSION = 1
MOST_CHARACTERS = 16 << 20


def dump(schema: Schema) -> str:
    """Return a schema as JSON text; fields without a codec get their default.

    Example:
        >>> dump(Schema("Hi", [Field("id", np.int32)]))
        '{"penstock": 1, "name": "Hi", "fields": [{"name": "id", "dtype": "int32", "shape": [], "nullable": false, "codec": {"name": "scalar"}}]}'
    """  # noqa: E501 - the text
    fields = []
    for field in schema:
        codec = field.codec or codecs.default(field)
        told = {"name": field.name, "dtype": _dtype_name(field.dtype), "shape": list(field.shape), "nullable": field.nullable}
        fields.append({**told, "codec": {"name": codec.name, **codec.options()}})
    return json.dumps({"penstock": VERSION, "name": schema.name, "fields": fields})


def load(text: str | bytes, known: Iterable[type[Codec]] = ()) -> Schema:
    """Return the schema that a JSON text holds, which may be anything.

    Raises:
        DataError: If it holds none that we can read.
    """
    try:
        return _schema(text, list(known))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        why = f"{error!r}" if isinstance(error, KeyError) else f"{error}"
        msg = f"The schema stored with the table cannot be read: {why}. Write the table anew, or adopt a schema for it."
        raise DataError(msg) from error


def _schema(text: str | bytes, known: list[type[Codec]]) -> Schema:
    if len(text) > MOST_CHARACTERS:
        msg = f"it has {len(text)} characters, and {MOST_CHARACTERS} are read at most"
        raise DataError(msg)
    told = json.loads(text)
    if told["penstock"] != VERSION:
        msg = f"it is of version {told['penstock']!r}, and version {VERSION} is known here; a newer Penstock reads it"
        raise DataError(msg)
    return Schema(str(told["name"]), [_field(field, known) for field in told["fields"]])


def _dtype_name(dtype: np.dtype[Any]) -> str:
    """Return what a dtype is called on disk; text and bytes have no length there."""
    return {"U": "str", "S": "bytes"}.get(dtype.kind, dtype.name) if dtype.kind in "US" else dtype.name


def _field(told: Mapping[str, Any], known: Iterable[type[Codec]]) -> Field:
    dtype = {"str": str, "bytes": bytes}.get(told["dtype"], told["dtype"])
    if not isinstance(told["dtype"], str) or not isinstance(told["codec"], dict):
        msg = f"field {told['name']!r} has the dtype {told['dtype']!r} and the codec {told['codec']!r}"
        raise DataError(msg)
    options = dict(told["codec"])
    codec = codecs.named(str(options.pop("name")), options, known)
    return Field(told["name"], dtype, told["shape"], codec, nullable=told["nullable"])
