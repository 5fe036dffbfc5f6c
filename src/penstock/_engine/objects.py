"""Columns of Python objects as bytes, and back: text, bytes, numbers, times, arrays, and lists and dicts of these.

Data is never pickled, so what is none of these does not cross. Text, bytes and arrays cross as their bytes one after the
other; what is mixed crosses as JSON that tells the types apart.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from itertools import pairwise
from math import prod
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt

from penstock._engine.crossing import Memory, Parcel, Told, cannot_cross, numbers_in, pack_numbers

__all__ = ["StaysHereError", "column_in", "objects_in", "pack_column", "pack_objects"]

TEXT = ("utf-8", "surrogatepass")


class StaysHereError(Exception):
    """A value that cannot cross; its only argument is what it is."""


def pack_column(values: npt.NDArray[Any], parcel: Parcel) -> Told:
    """Add a column of any kind.

    Raises:
        StaysHereError: If it holds something that cannot cross.
    """
    if values.dtype.kind == "O":
        return ["objects", list(values.shape), pack_objects(values.reshape(-1).tolist(), parcel)]
    if cannot_cross(values.dtype):
        raise StaysHereError(f"an array of {values.dtype}")
    return ["numbers", pack_numbers(values, parcel)]


def column_in(told: Told, memory: Memory) -> npt.NDArray[Any]:
    """Return a column that was packed."""
    if told[0] == "numbers":
        return numbers_in(told[1], memory)
    found = np.empty(prod(told[1]), dtype=object)
    for at, cell in enumerate(objects_in(told[2], memory)):
        found[at] = cell
    return found.reshape(told[1])


def pack_objects(cells: Sequence[Any], parcel: Parcel) -> Told:
    """Add objects, which are of one kind mostly.

    Raises:
        StaysHereError: If one of them cannot cross.
    """
    kinds = set(map(type, cells))
    there = kinds - {type(None)}
    kind = there.pop() if len(there) == 1 else None
    if kind is str:
        return ["text", *_pack_bytes([None if cell is None else cell.encode(*TEXT) for cell in cells], parcel)]
    if kind is bytes:
        return ["bytes", *_pack_bytes(cells, parcel)]
    if kind is np.ndarray and (packed := _pack_arrays(cells, parcel)) is not None:
        return packed
    if kind is not None and issubclass(kind, np.generic) and type(None) not in kinds:
        dtypes = {cell.dtype for cell in cells}
        if len(dtypes) == 1 and not cannot_cross(cells[0].dtype):
            return ["scalars", pack_numbers(np.array(cells, dtypes.pop()), parcel)]
    text = json.dumps([_told(cell, parcel) for cell in cells]).encode()
    return ["mixed", parcel.add(text, len(text)), len(text)]


def objects_in(told: Told, memory: Memory) -> list[Any]:
    """Return objects that were packed."""
    return _READERS[told[0]](told, memory)


def _pack_bytes(cells: Sequence[bytes | None], parcel: Parcel) -> list[Told]:
    """Add cells one after the other, and where each begins; nulls are marked."""
    full = [b"" if cell is None else cell for cell in cells]
    ends = np.zeros(len(cells) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, full), np.int64, len(full)), out=ends[1:])
    whole = b"".join(full)
    return [parcel.add(whole, len(whole)), pack_numbers(ends, parcel), _pack_missing(cells, parcel)]


def _pack_missing(cells: Sequence[Any], parcel: Parcel) -> Told:
    missing = np.fromiter((cell is None for cell in cells), np.bool_, len(cells))
    return pack_numbers(missing, parcel) if missing.any() else None


def _bytes_in(told: Told, memory: Memory) -> list[Any]:
    _, at, ends, missing = told
    edges = (at + numbers_in(ends, memory)).tolist()
    view = memory[0].data
    return _marked([bytes(view[start:stop]) for start, stop in pairwise(edges)], missing, memory)


def _text_in(told: Told, memory: Memory) -> list[Any]:
    _, at, ends, missing = told
    edges = (at + numbers_in(ends, memory)).tolist()
    view = memory[0].data
    return _marked([str(view[start:stop], *TEXT) for start, stop in pairwise(edges)], missing, memory)


def _marked(cells: list[Any], missing: Told, memory: Memory) -> list[Any]:
    if missing is not None:
        for row in np.flatnonzero(numbers_in(missing, memory)).tolist():
            cells[row] = None
    return cells


def _pack_arrays(cells: Sequence[Any], parcel: Parcel) -> Told | None:
    """Add arrays of one dtype and number of dimensions, one after the other; None where they are not alike."""
    arrays = [cell for cell in cells if cell is not None]
    alike = {(cell.dtype, cell.ndim) for cell in arrays}
    if len(alike) > 1 or cannot_cross(arrays[0].dtype):
        return None
    dtype, dimensions = alike.pop()
    shapes = np.array([(0,) * dimensions if cell is None else cell.shape for cell in cells], np.int64)
    flat = np.concatenate([cell.reshape(-1) for cell in arrays])
    shapes = shapes.reshape(len(cells), dimensions)
    missing = _pack_missing(cells, parcel)
    return ["arrays", pack_numbers(flat.astype(dtype, copy=False), parcel), pack_numbers(shapes, parcel), missing]


def _arrays_in(told: Told, memory: Memory) -> list[Any]:
    _, values, shapes, missing = told
    flat, sizes = numbers_in(values, memory), numbers_in(shapes, memory)
    gone = None if missing is None else numbers_in(missing, memory)
    count = sizes.prod(axis=1) if gone is None else np.where(gone, 0, sizes.prod(axis=1))
    ends = np.cumsum(count)
    found: list[Any] = [flat[start:stop] for start, stop in zip((ends - count).tolist(), ends.tolist(), strict=True)]
    if sizes.shape[1] != 1:
        found = [cell.reshape(shape) if len(cell) or 0 in shape else cell for cell, shape in zip(found, sizes, strict=True)]
    return _marked(found, missing, memory)


def _scalars_in(told: Told, memory: Memory) -> list[Any]:
    return list(numbers_in(told[1], memory))


def _mixed_in(told: Told, memory: Memory) -> list[Any]:
    _, at, size = told
    return [_value(cell, memory) for cell in json.loads(memory[0][at : at + size].tobytes())]


def _told(value: Any, parcel: Parcel) -> Told:  # noqa: PLR0911 - one for each kind
    """Return a value as JSON: what JSON has as itself, all else as its kind and what is needed to make it again."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind in _SIMPLE:
        return [kind.__name__, _SIMPLE[kind][0](value)]
    if kind in (list, tuple):
        return [kind.__name__, [_told(one, parcel) for one in value]]
    if kind is dict:
        return ["dict", [[_told(name, parcel), _told(one, parcel)] for name, one in value.items()]]
    if kind is np.ndarray:
        return ["array", pack_column(value, parcel)]
    if isinstance(value, np.generic) and not cannot_cross(value.dtype):
        return ["scalar", pack_numbers(np.asarray(value), parcel)]
    if kind in (dt.datetime, dt.time) and (value.tzinfo is None or type(value.tzinfo) is dt.timezone):
        return [kind.__name__, value.isoformat()]
    raise StaysHereError(f"a {kind.__module__}.{kind.__qualname__}".replace("a builtins.", "a "))


def _value(told: Told, memory: Memory) -> Any:  # noqa: PLR0911 - one for each kind
    """Return what was told."""
    if not isinstance(told, list):
        return told
    kind, given = told
    match kind:
        case "list":
            return [_value(one, memory) for one in given]
        case "tuple":
            return tuple(_value(one, memory) for one in given)
        case "dict":
            return {_value(name, memory): _value(one, memory) for name, one in given}
        case "array":
            return column_in(given, memory)
        case "scalar":
            return numbers_in(given, memory)[()]
        case "datetime":
            return dt.datetime.fromisoformat(given)
        case "time":
            return dt.time.fromisoformat(given)
    return _MAKERS[kind](given)


_SIMPLE: dict[type, tuple[Callable[[Any], Told], Callable[[Any], Any]]] = {
    bytes: (bytes.hex, bytes.fromhex),
    complex: (lambda value: [value.real, value.imag], lambda given: complex(*given)),
    Decimal: (str, Decimal),
    UUID: (str, UUID),
    dt.date: (dt.date.isoformat, dt.date.fromisoformat),
    dt.timedelta: (lambda value: [value.days, value.seconds, value.microseconds], lambda given: dt.timedelta(*given)),
}
"""Values that are told by one line: how each is told, and made again."""

_MAKERS = {kind.__name__: make for kind, (_, make) in _SIMPLE.items()}

_READERS: dict[str, Callable[[Told, Memory], list[Any]]] = {
    "arrays": _arrays_in,
    "bytes": _bytes_in,
    "mixed": _mixed_in,
    "scalars": _scalars_in,
    "text": _text_in,
}
