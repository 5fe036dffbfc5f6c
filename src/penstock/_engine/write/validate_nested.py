"""Checks of lists, structs and maps: Arrow drops or rounds values inside them without an error."""

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
from penstock._engine.write.validate import CONVERSION_ERRORS, Check, InvalidCellError, describe
from penstock.dtypes import TENSOR, extension_name, is_compound, is_encoded, is_ragged, numpy_type, python_values
from penstock.schema.compat import family

__all__ = ["DataLossError", "is_compatible", "is_in_c_order", "make_array", "nested_check", "nested_parts"]

NUMBERS = frozenset({"integer", "float", "decimal"})


class DataLossError(ValueError):
    """A value inside another would be dropped, or stored as something else."""


def is_compatible(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a cast keeps the meaning of values: no text as numbers, and no dropped time zone.

    Example:
        >>> is_compatible(pa.int8(), pa.float64()), is_compatible(pa.string(), pa.int8())
        (True, False)
    """
    one, other = family(given), family(wanted)
    if one == other == "timestamp":
        return given.tz is None or wanted.tz is not None
    return one is not None and (one == other or {one, other} <= NUMBERS)


def nested_check(kind: pa.DataType) -> Check:
    """Return the check of cells that Arrow itself converts to a type: lists, structs, maps."""
    storage = _storage(kind)
    has_extensions, has_required = storage != kind, _has_required_parts(kind)
    expected = f"a value of {kind}"

    def check(cell: Any) -> Any:
        value = _unwrap_extensions(cell, kind) if has_extensions else cell
        try:
            try:
                scalar = pa.scalar(value, type=storage)
            except CONVERSION_ERRORS:
                value = _to_python(value, storage)
                scalar = pa.scalar(value, type=storage)
            stored = _from_arrow(scalar)
        except CONVERSION_ERRORS as error:
            raise InvalidCellError(f"{describe(cell)}, which Arrow refuses: {error}", expected, "Change it.") from None
        if has_required and _has_forbidden_null(stored, storage):
            raise InvalidCellError(f"{describe(cell)}, with a null inside", expected, "Give a value, or allow nulls there.")
        if _differs(value, stored):
            advice = f"It would be stored as {stored!r}. Change it, or the schema."
            raise InvalidCellError(describe(cell), expected, advice)
        return value

    return check


def _parts(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields of a struct, the key and value of a map, or the value of a list; none for other types."""
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.value_field] if _is_list(kind) else []


def _has_required_parts(kind: pa.DataType) -> bool:
    """Return whether a type has inner values that may not be null, except keys of maps, which Arrow checks."""
    parts = _parts(kind)[1:] if pa.types.is_map(kind) else _parts(kind)
    return any(not part.nullable or _has_required_parts(part.type) for part in parts)


def _has_forbidden_null(stored: Any, kind: pa.DataType) -> bool:
    """Return whether a value has an inner null where its type allows none."""
    parts = _parts(kind)
    if stored is None or not parts:
        return False
    if pa.types.is_struct(kind):
        inner = [(stored[part.name], part) for part in parts]
    elif pa.types.is_map(kind):
        inner = [(value, parts[1]) for _, value in stored]
    else:
        inner = [(value, parts[0]) for value in stored]
    return any((value is None and not part.nullable) or _has_forbidden_null(value, part.type) for value, part in inner)


def make_array(cells: Sequence[Any] | npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Return checked cells as an array; pyarrow does not convert values to extension types inside others."""
    array = pa.array(cells, type=_storage(kind))
    return array if array.type == kind else array.cast(kind)


def _storage(kind: pa.DataType) -> pa.DataType:
    """Return a type with the storage of its inner extension types.

    A column of an extension type stays, and so do tensors whose numbers are not in C order.
    """
    return kind if isinstance(kind, pa.BaseExtensionType) else around(kind, _inner_storage)


def _inner_storage(kind: pa.DataType) -> pa.DataType:
    is_unwrapped = isinstance(kind, pa.BaseExtensionType) and is_in_c_order(kind)
    return _inner_storage(kind.storage_type) if is_unwrapped else _storage(kind)


def is_in_c_order(kind: pa.DataType) -> bool:
    """Return whether a type stores the numbers of tensors in C order; True for other types."""
    order = getattr(kind, "permutation", None)
    return order is None or list(order) == sorted(order)


def _unwrap_extensions(cell: Any, kind: pa.DataType) -> Any:
    """Return a cell whose inner values of extension types are converted to their storage."""
    if isinstance(kind, pa.BaseExtensionType):
        return _unwrap_extension(cell, kind)
    if pa.types.is_struct(kind) and isinstance(cell, dict):
        kinds = {field.name: field.type for field in kind}
        return {name: _unwrap_extensions(value, kinds.get(name, pa.null())) for name, value in cell.items()}
    if pa.types.is_map(kind) and isinstance(cell, dict | list):
        both, pairs = (kind.key_type, kind.item_type), list(cell.items()) if isinstance(cell, dict) else cell
        return [tuple(map(_unwrap_extensions, pair, both)) if isinstance(pair, tuple) else pair for pair in pairs]
    if _is_list(kind) and isinstance(cell, list | tuple | np.ndarray) and is_compound(kind.value_type):
        return [_unwrap_extensions(item, kind.value_type) for item in cell]
    return cell


def _unwrap_extension(cell: Any, kind: pa.DataType) -> Any:
    if isinstance(cell, np.ndarray) and extension_name(kind) == TENSOR:
        return cell.ravel()
    if isinstance(cell, UUID):
        return cell.bytes
    return int(cell) if isinstance(cell, bool | np.bool_) else _unwrap_extensions(cell, kind.storage_type)


def _to_python(cell: Any, kind: pa.DataType) -> Any:
    """Return arrays as lists, and NumPy's moments as integers, which Arrow accepts where it refuses NumPy's types."""
    if isinstance(cell, np.ndarray | list) and _is_list(kind):
        return [_to_python(item, kind.value_type) for item in cell]
    if isinstance(cell, np.datetime64 | np.timedelta64) and numpy_type(kind)[0].kind == cell.dtype.kind:
        exact = cell.astype(numpy_type(kind)[0])
        return None if np.isnat(cell) else int(exact.view(np.int64)) if exact == cell else cell
    return cell.item() if isinstance(cell, np.number | np.bool_) else cell


def _from_arrow(scalar: pa.Scalar) -> Any:
    """Return a scalar as Python's value; nanoseconds, which Python lacks, as integers."""
    with suppress(ValueError):
        return scalar.as_py()
    return python_values(pa.repeat(scalar, 1))[0]


def _differs(given: Any, stored: Any) -> bool:
    """Return whether Arrow has dropped or changed a value."""
    if isinstance(stored, list) and isinstance(given, str):
        return True  # Arrow splits text into a list of letters
    if isinstance(stored, list) and not isinstance(given, bytes):
        items = list(given.items()) if isinstance(given, dict) else list(given)
        return len(items) != len(stored) or any(map(_differs, items, stored))
    if isinstance(stored, dict) and isinstance(given, dict):
        return not given.keys() <= stored.keys() or any(_differs(given[key], stored[key]) for key in given)
    if isinstance(stored, tuple) and isinstance(given, tuple):
        return any(map(_differs, given, stored))
    if isinstance(stored, (dt.date, dt.time, dt.timedelta)):
        return _time_differs(given, stored)
    return _number_differs(given, stored)


def _number_differs(given: Any, stored: Any) -> bool:
    if isinstance(stored, float) and isinstance(given, (float, np.floating)):
        return math.isfinite(given) != math.isfinite(stored)  # it may have fewer digits
    if isinstance(stored, float) and isinstance(given, (int, np.integer)):
        return bool(int(given) != stored)
    return isinstance(stored, int) and isinstance(given, (float, np.floating)) and bool(given != stored)


def _time_differs(given: Any, stored: dt.date | dt.time | dt.timedelta) -> bool:
    """Return whether a moment or a duration has changed; a moment without a zone counts as UTC."""
    if isinstance(given, dt.datetime) and isinstance(stored, dt.datetime):
        if stored.tzinfo is None:
            return given.tzinfo is not None or given != stored
        return (given if given.tzinfo is not None else given.replace(tzinfo=dt.UTC)) != stored
    if isinstance(given, dt.datetime):
        return isinstance(stored, dt.date) and given != dt.datetime.combine(stored, dt.time.min)
    if isinstance(given, (np.datetime64, np.timedelta64)):
        if isinstance(stored, dt.datetime) and stored.tzinfo is not None:
            stored = stored.astimezone(dt.UTC).replace(tzinfo=None)
        return not isinstance(stored, dt.time) and bool(given != _to_numpy(stored))
    return isinstance(given, (dt.time, dt.timedelta)) and given != stored


def _to_numpy(stored: dt.date | dt.timedelta) -> Any:
    """Return a moment or a duration as NumPy's value; those of pandas are finer than Python's."""
    for name in ("to_datetime64", "to_timedelta64"):
        if hasattr(stored, name):
            return getattr(stored, name)()
    return np.timedelta64(stored) if isinstance(stored, dt.timedelta) else np.datetime64(stored)


def nested_parts(array: pa.Array, kind: pa.DataType) -> list[tuple[pa.Array, pa.DataType]]:
    """Return the inner arrays of lists, structs and maps with the types that a cast gives them; none for other values.

    Example:
        >>> [(part.to_pylist(), str(kind)) for part, kind in nested_parts(pa.array([[1, 2]]), pa.list_(pa.int8()))]
        [([1, 2], 'int8')]
    """
    given = array.type
    if given == kind or any(isinstance(one, pa.BaseExtensionType) or is_encoded(one) for one in (given, kind)):
        return []
    if pa.types.is_map(given) and pa.types.is_map(kind):
        return [_compatible_part(array.keys, kind.key_type), _compatible_part(array.items, kind.item_type)]
    if _is_list(given) and _is_list(kind):
        return [_compatible_part(array.flatten(), kind.value_type)]
    if not (pa.types.is_struct(given) and pa.types.is_struct(kind)):
        return []
    names, wanted = [field.name for field in given], [field.name for field in kind]
    if lost := [name for name in names if name not in wanted]:
        raise DataLossError(
            f"its field {lost[0]!r} would be lost, because the struct of the table has only {', '.join(wanted)}"
        )
    return [_compatible_part(part, kind.field(name).type) for name, part in zip(names, array.flatten(), strict=True)]


def _is_list(kind: pa.DataType) -> bool:
    return is_ragged(kind) or bool(pa.types.is_fixed_size_list(kind))


def _compatible_part(part: pa.Array, kind: pa.DataType) -> tuple[pa.Array, pa.DataType]:
    if None not in (family(part.type), family(kind)) and not is_compatible(part.type, kind):
        raise DataLossError(f"values of {part.type} in it would become {kind}")
    return part, kind
