"""Lines of JSON as Arrow columns of given types.

Arrow parses many lines at a time. Lines that it refuses (for NaN as text, or a repeated key) are parsed again by Python, with
the same result.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.json as pj

__all__ = ["read_lines"]

BLOCK = 4 << 20
"""The bytes that one thread parses at a time."""

LARGEST = (1 << 31) - 1


def read_lines(lines: Sequence[bytes], schema: pa.Schema, *, strict: bool) -> pa.Table:
    """Return some fields of JSON objects, a row for each line; missing fields are null.

    Args:
        lines: One object each.
        schema: The fields, with types of JSON: structs, text, numbers, booleans, decimals.
        strict: Whether invalid JSON, or a value of another type, is an error; otherwise it is null.

    Example:
        >>> read_lines([b'{"a": 1}', b'{"b": [2]}'], pa.schema({"a": pa.int64()}), strict=True).to_pydict()
        {'a': [1, None]}
    """
    if not lines:
        return schema.empty_table()
    block = max(BLOCK, max(map(len, lines)) + 2)
    # Arrow crashes if the first line is `null`, so it only gets objects.
    if block < LARGEST and all(line[:1] == b"{" or line.lstrip()[:1] == b"{" for line in lines):
        try:
            table = pj.read_json(
                pa.BufferReader(b"\n".join(lines)),
                read_options=pj.ReadOptions(block_size=block),
                parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
            )
            if table.num_rows == len(lines):
                return table
        except pa.ArrowInvalid:
            pass  # the code below raises the error with the line
    rows = [_parse_object(line, schema, strict=strict) for line in lines]
    return pa.Table.from_arrays([pa.array([row[field.name] for row in rows], field.type) for field in schema], schema=schema)


def _parse_object(line: bytes, schema: pa.Schema, *, strict: bool) -> dict[str, Any]:
    """Return the fields of a schema in one line."""
    try:
        value = json.loads(line, parse_float=Decimal)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        if strict:
            raise ValueError(f"{line[:80]!r} is not a JSON object")
        value = {}
    return {field.name: _convert(value.get(field.name), field, strict=strict) for field in schema}


def _convert(value: Any, field: pa.Field, *, strict: bool) -> Any:
    """Return a JSON value in the Python type of a field; None for another type, unless that is an error."""
    kind = field.type
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return {inner.name: _convert(value.get(inner.name), inner, strict=strict) for inner in kind}
    converted = _convert_leaf(value, kind)
    if converted is None and value is not None and strict:
        raise ValueError(f"{field.name!r} is {value!r}, and not {kind}")
    return converted


def _convert_leaf(value: Any, kind: pa.DataType) -> Any:
    """Return a value that is not an object in the Python type of a type; None if it has another type."""
    of = pa.types
    converters: tuple[tuple[Any, type | tuple[type, ...], Any], ...] = (
        (of.is_string, str, str),
        (of.is_boolean, bool, bool),
        (of.is_integer, int, int),
        (of.is_floating, (int, Decimal, str), float),
        (of.is_decimal, (int, Decimal, str), Decimal),
    )
    accepted, convert = next((row[1:] for row in converters if row[0](kind)), ((), None))
    if not isinstance(value, accepted) or (isinstance(value, bool) and not of.is_boolean(kind)) or convert is None:
        return None
    try:
        return pa.scalar(convert(value), kind).as_py()
    except (ValueError, ArithmeticError, pa.ArrowException):
        return None
