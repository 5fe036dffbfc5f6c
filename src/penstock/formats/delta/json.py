"""Lines of JSON as Arrow columns of types that are known beforehand.

Arrow reads them, many at a time. What it refuses for one odd value (NaN as text, a key that comes twice) is read again
line by line, so that both ways give the same values.
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
"""Bytes that one thread reads at a time."""

LARGEST = (1 << 31) - 1


def read_lines(lines: Sequence[bytes], schema: pa.Schema, *, strict: bool) -> pa.Table:
    """Return some fields of JSON objects, a row for each line; a field that is not there is null.

    Args:
        lines: One object each.
        schema: The fields that are wanted, in types of JSON: structs, text, numbers, booleans, decimals.
        strict: Whether what is no JSON, or of another type, is an error; else it is null, as if nothing was said.

    Raises:
        ValueError: If it is strict, and a line is no JSON object or a value has another type.

    Example:
        >>> read_lines([b'{"a": 1}', b'{"b": [2]}'], pa.schema({"a": pa.int64()}), strict=True).to_pydict()
        {'a': [1, None]}
    """
    if not lines:
        return schema.empty_table()
    block = max(BLOCK, max(map(len, lines)) + 2)
    # A line that is no object is not shown to Arrow: where the first one is `null`, it ends the process.
    if block < LARGEST and all(line[:1] == b"{" or line.lstrip()[:1] == b"{" for line in lines):
        try:
            found = pj.read_json(
                pa.BufferReader(b"\n".join(lines)),
                read_options=pj.ReadOptions(block_size=block),
                parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
            )
            if found.num_rows == len(lines):
                return found
        except pa.ArrowInvalid:
            pass  # told below, with the line
    rows = [_object(line, schema, strict=strict) for line in lines]
    return pa.Table.from_arrays([pa.array([row[field.name] for row in rows], field.type) for field in schema], schema=schema)


def _object(line: bytes, schema: pa.Schema, *, strict: bool) -> dict[str, Any]:
    """Return the wanted fields of one line."""
    try:
        found = json.loads(line, parse_float=Decimal)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        if strict:
            msg = f"{line[:80]!r} is no JSON object"
            raise ValueError(msg)
        found = {}
    return {field.name: _value(found.get(field.name), field, strict=strict) for field in schema}


def _value(value: Any, field: pa.Field, *, strict: bool) -> Any:
    """Return a value as Python makes an Arrow value of it; None for one of another type that does not matter."""
    kind = field.type
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return {inner.name: _value(value.get(inner.name), inner, strict=strict) for inner in kind}
    found = _leaf(value, kind)
    if found is None and value is not None and strict:
        msg = f"{field.name!r} is {value!r}, and not {kind}"
        raise ValueError(msg)
    return found


def _leaf(value: Any, kind: pa.DataType) -> Any:
    """Return a value that is no object; None where it does not have the type."""
    of = pa.types
    makers: tuple[tuple[Any, type | tuple[type, ...], Any], ...] = (
        (of.is_string, str, str),
        (of.is_boolean, bool, bool),
        (of.is_integer, int, int),
        (of.is_floating, (int, Decimal, str), float),
        (of.is_decimal, (int, Decimal, str), Decimal),
    )
    accepted, make = next((found[1:] for found in makers if found[0](kind)), ((), None))
    if not isinstance(value, accepted) or (isinstance(value, bool) and not of.is_boolean(kind)) or make is None:
        return None
    try:
        return pa.scalar(make(value), kind).as_py()
    except (ValueError, ArithmeticError, pa.ArrowException):
        return None
