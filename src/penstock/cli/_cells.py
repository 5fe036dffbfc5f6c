"""Cells of a table as short text and as JSON; arrays and long texts are summarised."""

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

MAX_SHOWN = 48
"""The limit on the characters of a cell."""


class Unreadable(str):
    """The reason why a cell cannot be shown."""

    __slots__ = ()


def first_rows(ds: Dataset, count: int) -> dict[str, list[Any]]:
    """Return the first cells of each column, with the reason for cells that cannot be decoded.

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
        batch = ds.head(count)
        return {name: list(batch[name]) for name in names}
    except PenstockError:  # one column fails, and the others can be shown
        return {name: _cells(ds, name, count) for name in names}


def _cells(ds: Dataset, name: str, count: int) -> list[Any]:
    """Return the first cells of a column, with None for nulls, which are an error in integers by default."""
    alone = ds.select(ds.schema[name])
    try:
        return list(alone.head(count)[name])
    except PenstockError as error:
        try:
            batch = alone.nulls(Mask(), name).head(count)
        except PenstockError:
            return [Unreadable(str(error))] * count
        valid = batch[f"{name}_valid"]
        return [None if _is_missing(mark) else cell for cell, mark in zip(batch[name], valid, strict=True)]


def _is_missing(mark: Any) -> bool:
    """Return whether a mask means that a whole cell is null; the mask of a list has one value for each item."""
    flat = np.asarray(mark) if not isinstance(mark, np.ndarray) or mark.dtype.kind == "b" else None
    return flat is not None and flat.dtype.kind == "b" and flat.size > 0 and not flat.any()


def in_words(cell: Any) -> str:
    """Return a cell as short text.

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
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def _nested(cell: Any) -> Any:
    """Return a struct, map or list whose arrays and bytes are short text."""
    if isinstance(cell, Mapping):
        return {key: _nested(value) for key, value in cell.items()}
    if isinstance(cell, list | tuple):
        return [_nested(value) for value in cell]
    return in_words(cell) if isinstance(cell, np.ndarray | bytes) else cell


def in_json(cell: Any) -> Any:
    """Return a cell as a JSON value; arrays and bytes are summarised.

    Example:
        >>> in_json(np.arange(3)), in_json(np.float32("nan")), in_json(b"..")
        ({'dtype': 'int64', 'shape': [3], 'min': 0, 'max': 2}, None, {'bytes': 2})
    """
    if isinstance(cell, np.generic) and cell.dtype.kind not in "mMc":
        cell = cell.item()
    match cell:
        case Unreadable():
            value: Any = {"error": str(cell)}
        case None | bool() | int() | str():
            value = cell
        case float():
            value = cell if math.isfinite(cell) else None
        case bytes() | bytearray() | memoryview():
            value = {"bytes": len(cell)}
        case np.ndarray():
            span = _span(cell)
            bounds = {} if span is None else {"min": in_json(span[0]), "max": in_json(span[1])}
            value = {"dtype": _dtype(cell), "shape": list(cell.shape), **bounds}
        case Mapping():
            value = {str(key): in_json(item) for key, item in cell.items()}
        case list() | tuple():
            value = [in_json(item) for item in cell]
        case dt.date() | dt.time():
            value = cell.isoformat()
        case _:
            value = str(cell)
    return value


def _dtype(array: npt.NDArray[Any]) -> str:
    return {"U": "str", "S": "bytes"}.get(array.dtype.kind, str(array.dtype))


def _span(array: npt.NDArray[Any]) -> tuple[Any, Any] | None:
    """Return the minimum and maximum of numbers, without NaN."""
    if array.dtype.kind not in "biuf" or not array.size:
        return None
    values = array[~np.isnan(array)] if array.dtype.kind == "f" else array
    return (values.min(), values.max()) if values.size else None


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float | np.floating | Decimal) else str(value)
