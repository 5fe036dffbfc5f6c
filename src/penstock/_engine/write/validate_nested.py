"""Whether lists, structs and maps are stored as they are given: Arrow drops and rounds in silence what is inside of them."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._arrow_types import around
from penstock._engine.write.validate import REFUSED, Check, Misfit, told
from penstock.dtypes import TENSOR, extension_name, is_compound, is_encoded, is_ragged, numpy_type, python_values
from penstock.schema.compat import family

__all__ = ["LostError", "arrow_check", "in_c_order", "inside", "made", "related"]

NUMBERS = frozenset({"integer", "float", "decimal"})


class LostError(ValueError):
    """Something inside of a value would not be stored, or as something else."""


def related(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether values of one type may mean values of another; text never means numbers, and a zone is not dropped.

    Example:
        >>> related(pa.int8(), pa.float64()), related(pa.string(), pa.int8())
        (True, False)
    """
    one, other = family(given), family(wanted)
    if one == other == "timestamp":
        return given.tz is None or wanted.tz is not None
    return one is not None and (one == other or {one, other} <= NUMBERS)


def arrow_check(kind: pa.DataType) -> Check:
    """Return the check of cells that Arrow itself makes a type of: lists, structs, maps.

    Example:
        >>> arrow_check(pa.list_(pa.int8()))([1, 2])
        [1, 2]
    """
    storage = _storage(kind)
    wrapped, strict = storage != kind, _is_strict(kind)

    def check(cell: Any) -> Any:
        found = _unwrapped(cell, kind) if wrapped else cell
        try:
            try:
                scalar = pa.scalar(found, type=storage)
            except REFUSED:
                found = _spelt(found, storage)
                scalar = pa.scalar(found, type=storage)
            stored = _read_back(scalar)
        except REFUSED as error:
            raise Misfit(f"{told(cell)}, which Arrow refuses: {error}", f"a value of {kind}", "Change it.") from None
        if strict and _lacks(stored, storage):
            raise Misfit(f"{told(cell)}, with a null inside", f"a value of {kind}", "Give a value, or allow nulls there.")
        if _changed(found, stored):
            raise Misfit(told(cell), f"a value of {kind}", f"It would be stored as {stored!r}. Change it, or the schema.")
        return found

    return check


def _parts(kind: pa.DataType) -> list[pa.Field]:
    """Return what lists, structs and maps hold, in the order of their values; nothing for other types."""
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.value_field] if _is_list(kind) else []


def _is_strict(kind: pa.DataType) -> bool:
    """Return whether a type has values inside that may not be null; the keys of maps never may, and Arrow sees to them."""
    parts = _parts(kind)[1:] if pa.types.is_map(kind) else _parts(kind)
    return any(not part.nullable or _is_strict(part.type) for part in parts)


def _lacks(stored: Any, kind: pa.DataType) -> bool:
    """Return whether a value has a null inside where its type has none."""
    parts = _parts(kind)
    if stored is None or not parts:
        return False
    if pa.types.is_struct(kind):
        inner = [(stored[part.name], part) for part in parts]
    elif pa.types.is_map(kind):
        inner = [(value, parts[1]) for _, value in stored]
    else:
        inner = [(value, parts[0]) for value in stored]
    return any((value is None and not part.nullable) or _lacks(value, part.type) for value, part in inner)


def made(cells: Sequence[Any] | npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Return cells that were checked as an array of a type; Arrow itself makes no extensions inside of others.

    Example:
        >>> made([[b"0123456789abcdef"]], pa.list_(pa.uuid())).type
        ListType(list<item: extension<arrow.uuid>>)
    """
    found = pa.array(cells, type=_storage(kind))
    return found if found.type == kind else found.cast(kind)


def _storage(kind: pa.DataType) -> pa.DataType:
    """Return a type with the storage of the extensions inside of it, and itself where there are none.

    One that is no part of another stays, and so do tensors whose numbers lie in another order than that of their shape.
    """
    return kind if isinstance(kind, pa.BaseExtensionType) else around(kind, _bare)


def _bare(kind: pa.DataType) -> pa.DataType:
    return _bare(kind.storage_type) if isinstance(kind, pa.BaseExtensionType) and in_c_order(kind) else _storage(kind)


def in_c_order(kind: pa.DataType) -> bool:
    """Return whether the numbers of tensors lie in the order of their shape; what is no tensor has no other."""
    order = getattr(kind, "permutation", None)
    return order is None or list(order) == sorted(order)


def _unwrapped(cell: Any, kind: pa.DataType) -> Any:
    """Return a cell with values of extensions inside of it as these are stored."""
    if isinstance(kind, pa.BaseExtensionType):
        return _stored(cell, kind)
    if pa.types.is_struct(kind) and isinstance(cell, dict):
        kinds = {field.name: field.type for field in kind}
        return {name: _unwrapped(value, kinds.get(name, pa.null())) for name, value in cell.items()}
    if pa.types.is_map(kind) and isinstance(cell, dict | list):
        both, pairs = (kind.key_type, kind.item_type), list(cell.items()) if isinstance(cell, dict) else cell
        return [tuple(map(_unwrapped, pair, both)) if isinstance(pair, tuple) else pair for pair in pairs]
    if _is_list(kind) and isinstance(cell, list | tuple | np.ndarray) and is_compound(kind.value_type):
        return [_unwrapped(item, kind.value_type) for item in cell]
    return cell


def _stored(cell: Any, kind: pa.DataType) -> Any:
    """Return a value of an extension as that is stored."""
    if isinstance(cell, np.ndarray) and extension_name(kind) == TENSOR:
        return cell.ravel()
    if isinstance(cell, UUID):
        return cell.bytes
    return int(cell) if isinstance(cell, bool | np.bool_) else _unwrapped(cell, kind.storage_type)


def _spelt(cell: Any, kind: pa.DataType) -> Any:
    """Return arrays as lists, and moments as whole numbers, which Arrow takes where it refuses NumPy's own."""
    if isinstance(cell, np.ndarray | list) and _is_list(kind):
        return [_spelt(item, kind.value_type) for item in cell]
    if isinstance(cell, np.datetime64 | np.timedelta64) and numpy_type(kind)[0].kind == cell.dtype.kind:
        exact = cell.astype(numpy_type(kind)[0])
        return None if np.isnat(cell) else int(exact.view(np.int64)) if exact == cell else cell
    return cell.item() if isinstance(cell, np.number | np.bool_) else cell


def _read_back(scalar: pa.Scalar) -> Any:
    """Return what Arrow has made of a cell as Python has it; nanoseconds, which it has not, as whole numbers."""
    with suppress(ValueError):
        return scalar.as_py()
    return python_values(pa.repeat(scalar, 1))[0]


def _changed(given: Any, stored: Any) -> bool:
    """Return whether something was lost on the way to Arrow."""
    if isinstance(stored, list) and isinstance(given, str):
        return True  # of which Arrow makes a list of its letters
    if isinstance(stored, list) and not isinstance(given, bytes):
        found = list(given.items()) if isinstance(given, dict) else list(given)
        return len(found) != len(stored) or any(map(_changed, found, stored))
    if isinstance(stored, dict) and isinstance(given, dict):
        return not given.keys() <= stored.keys() or any(_changed(given[key], stored[key]) for key in given)
    if isinstance(stored, tuple) and isinstance(given, tuple):
        return any(map(_changed, given, stored))
    if isinstance(stored, (dt.date, dt.time, dt.timedelta)):
        return _moved(given, stored)
    return _rounded(given, stored)


def _rounded(given: Any, stored: Any) -> bool:
    """Return whether a number is another than was given; a float may have fewer digits."""
    if isinstance(stored, float) and isinstance(given, (float, np.floating)):
        return math.isfinite(given) != math.isfinite(stored)
    if isinstance(stored, float) and isinstance(given, (int, np.integer)):
        return bool(int(given) != stored)
    return isinstance(stored, int) and isinstance(given, (float, np.floating)) and bool(given != stored)


def _moved(given: Any, stored: dt.date | dt.time | dt.timedelta) -> bool:
    """Return whether a moment or a duration is another than was given; without a zone it is one of UTC."""
    if isinstance(given, dt.datetime) and isinstance(stored, dt.datetime):
        if stored.tzinfo is None:
            return given.tzinfo is not None or given != stored
        return (given if given.tzinfo is not None else given.replace(tzinfo=dt.UTC)) != stored
    if isinstance(given, dt.datetime):
        return isinstance(stored, dt.date) and given != dt.datetime.combine(stored, dt.time.min)
    if isinstance(given, (np.datetime64, np.timedelta64)):
        if isinstance(stored, dt.datetime) and stored.tzinfo is not None:
            stored = stored.astimezone(dt.UTC).replace(tzinfo=None)
        return not isinstance(stored, dt.time) and bool(given != _numpy(stored))
    return isinstance(given, (dt.time, dt.timedelta)) and given != stored


def _numpy(stored: dt.date | dt.timedelta) -> Any:
    """Return a moment or a duration as NumPy's own; those of pandas are finer than Python's."""
    for name in ("to_datetime64", "to_timedelta64"):
        if hasattr(stored, name):
            return getattr(stored, name)()
    return np.timedelta64(stored) if isinstance(stored, dt.timedelta) else np.datetime64(stored)


def inside(array: pa.Array, kind: pa.DataType) -> list[tuple[pa.Array, pa.DataType]]:
    """Return what is inside of lists, structs and maps, with the types that it would be cast to; nothing for other values.

    Raises:
        LostError: If a struct has fields that would be dropped, or values would become something else than they are.

    Example:
        >>> [(part.to_pylist(), str(kind)) for part, kind in inside(pa.array([[1, 2]]), pa.list_(pa.int8()))]
        [([1, 2], 'int8')]
    """
    given = array.type
    if given == kind or any(isinstance(one, pa.BaseExtensionType) or is_encoded(one) for one in (given, kind)):
        return []
    if pa.types.is_map(given) and pa.types.is_map(kind):
        return [_fitting(array.keys, kind.key_type), _fitting(array.items, kind.item_type)]
    if _is_list(given) and _is_list(kind):
        return [_fitting(array.flatten(), kind.value_type)]
    if not (pa.types.is_struct(given) and pa.types.is_struct(kind)):
        return []
    names, wanted = [field.name for field in given], [field.name for field in kind]
    if lost := [name for name in names if name not in wanted]:
        raise LostError(f"its field {lost[0]!r} would be lost, for the struct has the fields {', '.join(wanted)} in the table")
    return [_fitting(part, kind.field(name).type) for name, part in zip(names, array.flatten(), strict=True)]


def _is_list(kind: pa.DataType) -> bool:
    return is_ragged(kind) or bool(pa.types.is_fixed_size_list(kind))


def _fitting(part: pa.Array, kind: pa.DataType) -> tuple[pa.Array, pa.DataType]:
    """Return values with their type, if they can mean the same there."""
    if None not in (family(part.type), family(kind)) and not related(part.type, kind):
        raise LostError(f"values of {part.type} in it would become {kind}")
    return part, kind
