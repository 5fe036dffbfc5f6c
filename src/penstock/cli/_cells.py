"""Cells of a table as a few words, and as JSON: pictures and long texts are told, not shown."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.cli._tables import visible
from penstock.dataset import Dataset
from penstock.errors import PenstockError
from penstock.policies import Mask

__all__ = ["Unreadable", "first_rows", "in_json", "in_words"]

LONGEST = 48
"""Characters of a cell that are shown."""


class Unreadable(str):
    """Why a cell cannot be shown."""

    __slots__ = ()


def first_rows(ds: Dataset, count: int) -> dict[str, list[Any]]:
    """Return the first cells of each column; where one cannot be decoded, why not.

    Example:
        >>> from penstock.testing import example
        >>> first_rows(example().select("id", "label"), 2)
        {'id': [np.int64(0), np.int64(1)], 'label': ['even', 'odd']}
    """
    names = ds.schema.names
    count = min(count, ds.num_rows) if names else 0
    if not count:
        return {name: [] for name in names}
    try:
        found = ds.head(count)
        return {name: list(found[name]) for name in names}
    except PenstockError:  # one column is the reason, and the others can be shown
        return {name: _cells(ds, name, count) for name in names}


def _cells(ds: Dataset, name: str, count: int) -> list[Any]:
    """Return the first cells of a column; None for nulls, which are an error among whole numbers by default."""
    alone = ds.select(ds.schema[name])
    try:
        return list(alone.head(count)[name])
    except PenstockError as error:
        try:
            found = alone.nulls(Mask(), name).head(count)
        except PenstockError:
            return [Unreadable(str(error))] * count
        valid = found[f"{name}_valid"]
        return [None if _is_missing(mark) else cell for cell, mark in zip(found[name], valid, strict=True)]


def _is_missing(mark: Any) -> bool:
    """Return whether a mark says that a whole cell is null; that of a list marks its items, to any depth."""
    flat = np.asarray(mark) if not isinstance(mark, np.ndarray) or mark.dtype.kind == "b" else None
    return flat is not None and flat.dtype.kind == "b" and flat.size > 0 and not flat.any()


def in_words(cell: Any) -> str:
    """Return a cell in at most a few words.

    Example:
        >>> in_words(np.arange(6, dtype=np.uint8).reshape(2, 3)), in_words(b"..."), in_words(None)
        ('uint8 (2, 3) 0..5', '3 bytes', 'null')
    """
    if isinstance(cell, Unreadable):
        return f"cannot be read: {visible(cell)}"
    if cell is None:
        return "null"
    if isinstance(cell, np.ndarray):
        span = _span(cell)
        return f"{_dtype(cell)} {cell.shape}" + (f" {_number(span[0])}..{_number(span[1])}" if span else "")
    if isinstance(cell, bytes | bytearray | memoryview):
        return f"{len(cell)} bytes"
    if isinstance(cell, float | np.floating):
        return _number(cell)
    text = visible(str(_nested(cell) if isinstance(cell, Mapping | list | tuple) else cell))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _nested(cell: Any) -> Any:
    """Return a struct, map or list whose arrays and bytes are told in words."""
    if isinstance(cell, Mapping):
        return {key: _nested(value) for key, value in cell.items()}
    if isinstance(cell, list | tuple):
        return [_nested(value) for value in cell]
    return in_words(cell) if isinstance(cell, np.ndarray | bytes) else cell


def in_json(cell: Any) -> Any:
    """Return a cell as JSON can hold it; arrays and bytes as what they are, not what is in them.

    Example:
        >>> in_json(np.arange(3)), in_json(np.float32("nan")), in_json(b"..")
        ({'dtype': 'int64', 'shape': [3], 'min': 0, 'max': 2}, None, {'bytes': 2})
    """
    if isinstance(cell, np.generic) and cell.dtype.kind not in "mMc":
        cell = cell.item()
    match cell:
        case Unreadable():
            found: Any = {"error": str(cell)}
        case None | bool() | int() | str():
            found = cell
        case float():
            found = cell if math.isfinite(cell) else None
        case bytes() | bytearray() | memoryview():
            found = {"bytes": len(cell)}
        case np.ndarray():
            span = _span(cell)
            bounds = {} if span is None else {"min": in_json(span[0]), "max": in_json(span[1])}
            found = {"dtype": _dtype(cell), "shape": list(cell.shape), **bounds}
        case Mapping():
            found = {str(key): in_json(value) for key, value in cell.items()}
        case list() | tuple():
            found = [in_json(value) for value in cell]
        case dt.date() | dt.time():
            found = cell.isoformat()
        case _:
            found = str(cell)
    return found


def _dtype(array: npt.NDArray[Any]) -> str:
    return {"U": "str", "S": "bytes"}.get(array.dtype.kind, str(array.dtype))


def _span(array: npt.NDArray[Any]) -> tuple[Any, Any] | None:
    """Return the least and greatest of numbers, NaN left aside."""
    if array.dtype.kind not in "biuf" or not array.size:
        return None
    values = array[~np.isnan(array)] if array.dtype.kind == "f" else array
    return (values.min(), values.max()) if values.size else None


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float | np.floating | Decimal) else str(value)
