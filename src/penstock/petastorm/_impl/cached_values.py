"""Plain values as bytes of a file in the disk cache: JSON, and arrays as NumPy stores them. Nothing is pickled."""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np

__all__ = ["UnsupportedValueError", "dump_value", "load_value"]

HEAD_BYTES = 8
"""Bytes that hold the length of the JSON."""

OF_ANOTHER_LIBRARY = 2
"""`numpy.dtype.isbuiltin` of dtypes that were added to NumPy, which its files do not name."""


class UnsupportedValueError(Exception):
    """A value cannot be stored in the cache."""


def dump_value(value: Any) -> bytes:
    """Return a value as bytes.

    Raises:
        UnsupportedValueError: If it is, or contains, an object that is no plain value.

    Example:
        >>> load_value(dump_value({"a": (1, b"x"), "b": np.arange(3)}))
        {'a': (1, b'x'), 'b': array([0, 1, 2])}
    """
    arrays: list[bytes] = []
    described = _describe(value, arrays)
    head = json.dumps({"value": described, "sizes": [len(array) for array in arrays]}).encode()
    return b"".join([len(head).to_bytes(HEAD_BYTES, "little"), head, *arrays])


def load_value(data: bytes) -> Any:
    """Return a value that was stored.

    Raises:
        ValueError, KeyError: If the bytes are damaged.
    """
    at = HEAD_BYTES + int.from_bytes(data[:HEAD_BYTES], "little")
    head = json.loads(data[HEAD_BYTES:at])
    arrays = []
    for size in head["sizes"]:
        arrays.append(data[at : at + size])
        at += size
    return _value(head["value"], arrays)


def _describe(value: Any, arrays: list[bytes]) -> Any:  # noqa: PLR0911 - one for each kind
    """Return a value as JSON: what JSON has as it is, and all else as its type and content."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind in _BY_TEXT:
        return [kind.__name__, _BY_TEXT[kind][0](value)]
    if kind in (dt.datetime, dt.time) and (value.tzinfo is None or type(value.tzinfo) is dt.timezone):
        return [kind.__name__, value.isoformat()]
    if kind in (list, tuple):
        return [kind.__name__, [_describe(one, arrays) for one in value]]
    if kind is dict:
        return ["dict", [[_describe(name, arrays), _describe(one, arrays)] for name, one in value.items()]]
    if kind is np.ndarray and value.dtype.kind == "O":
        return ["objects", [list(value.shape), [_describe(one, arrays) for one in value.reshape(-1).tolist()]]]
    numbers = kind is np.ndarray or isinstance(value, np.generic)
    if numbers and not value.dtype.hasobject and value.dtype.isbuiltin != OF_ANOTHER_LIBRARY:
        file = io.BytesIO()
        np.lib.format.write_array(file, np.asarray(value), allow_pickle=False)
        arrays.append(file.getvalue())
        return ["array" if kind is np.ndarray else "scalar", len(arrays) - 1]
    raise UnsupportedValueError(f"a {kind.__module__}.{kind.__qualname__}")


def _value(described: Any, arrays: list[bytes]) -> Any:  # noqa: PLR0911 - one for each kind
    """Return the value of a description."""
    if not isinstance(described, list):
        return described
    kind, content = described
    match kind:
        case "list":
            return [_value(one, arrays) for one in content]
        case "tuple":
            return tuple(_value(one, arrays) for one in content)
        case "dict":
            return {_value(name, arrays): _value(one, arrays) for name, one in content}
        case "array":
            return np.lib.format.read_array(io.BytesIO(arrays[content]), allow_pickle=False)
        case "scalar":
            return np.lib.format.read_array(io.BytesIO(arrays[content]), allow_pickle=False)[()]
        case "objects":
            shape, cells = content
            values = np.empty(len(cells), dtype=object)
            for at, cell in enumerate(cells):
                values[at] = _value(cell, arrays)
            return values.reshape(shape)
    return _FROM_TEXT[kind](content)


_BY_TEXT: dict[type, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    bytes: (bytes.hex, bytes.fromhex),
    complex: (repr, complex),
    Decimal: (str, Decimal),
    UUID: (str, UUID),
    dt.date: (dt.date.isoformat, dt.date.fromisoformat),
    dt.timedelta: (
        lambda value: f"{value.days} {value.seconds} {value.microseconds}",
        lambda text: dt.timedelta(*map(int, text.split())),
    ),
}
"""Types that are stored as text: how a value becomes text, and how text becomes a value."""

_FROM_TEXT = {kind.__name__: parse for kind, (_, parse) in _BY_TEXT.items()}
_FROM_TEXT |= {"datetime": dt.datetime.fromisoformat, "time": dt.time.fromisoformat}
