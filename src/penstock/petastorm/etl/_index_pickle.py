"""Pickles of indexes of row groups, written opcode by opcode with names of Petastorm."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np

__all__ = ["pickle_indexes"]

MODULE = "petastorm.etl.rowgroup_indexers"


def pickle_indexes(indexers: Mapping[str, Any]) -> bytes:
    """Return the pickle of indexes by name, with protocol 2, which Petastorm reads on every Python.

    Raises:
        ValueError: If the type of an index or of a value is not supported.
    """
    items = b"".join(_text(name) + _indexer(index) for name, index in indexers.items())
    return b"\x80\x02}(" + items + b"u."


def _indexer(index: Any) -> bytes:
    """Return the opcodes of one index."""
    kind = type(index).__name__
    if kind not in ("SingleFieldIndexer", "FieldNotNullIndexer"):
        raise ValueError(
            f"Indexes of the type {kind} cannot be stored. SingleFieldIndexer and FieldNotNullIndexer can. Use one."
        )
    data = index._index_data  # noqa: SLF001 - as Petastorm stores it
    stored = _groups(data) if kind == "FieldNotNullIndexer" else _values(index.index_name, data)
    state = _text("_index_name") + _text(index.index_name)
    state += _text("_column_name") + _text(index.column_names[0]) + _text("_index_data") + stored
    return _name(MODULE, kind) + b")\x81}(" + state + b"ub"


def _values(name: str, data: Mapping[Any, set[int]]) -> bytes:
    """Return the opcodes of a defaultdict of sets, as Petastorm has it."""
    items = b"".join(_value(name, value) + _groups(numbers) for value, numbers in data.items())
    return _name("collections", "defaultdict") + b"(" + _name("__builtin__", "set") + b"tR(" + items + b"u"


def _groups(numbers: set[int]) -> bytes:
    return _name("__builtin__", "set") + b"(](" + b"".join(_integer(int(number)) for number in sorted(numbers)) + b"etR"


def _value(name: str, value: Any) -> bytes:
    """Return the opcodes of a value as a Python value, which equals that of NumPy and has the same hash."""
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, bool):
        return b"\x88" if plain else b"\x89"
    if isinstance(plain, int):
        return _integer(plain)
    if isinstance(plain, float):
        return b"G" + struct.pack(">d", plain)
    if isinstance(plain, str):
        return _text(plain)
    if isinstance(plain, bytes):
        # An opcode of protocol 3: for bytes, protocol 2 calls a function that Petastorm does not allow.
        return b"B" + struct.pack("<I", len(plain)) + plain
    if isinstance(plain, Decimal):
        return _name("decimal", "Decimal") + b"(" + _text(str(plain)) + b"tR"
    msg = (
        f"Index {name!r} holds {value!r}, a {type(value).__name__}. Numbers, text and bytes can be stored. Index another field."
    )
    raise ValueError(msg)


def _name(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _text(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(raw)) + raw


def _integer(number: int) -> bytes:
    if -(2**31) <= number < 2**31:
        return b"J" + struct.pack("<i", number)
    raw = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + struct.pack("<B", len(raw)) + raw
