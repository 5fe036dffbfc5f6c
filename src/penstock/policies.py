"""Policies for nulls and for lists of different lengths; each column has one of each kind.

NumPy has no null integer and no array whose rows differ in length. The result is never guessed from the data: a policy
decides it, and without a policy it is an error or an object array. `docs/types.md` shows the result of each.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias
from uuid import UUID

import numpy as np
import pyarrow as pa

from penstock import dtypes
from penstock.errors import ArgumentError

__all__ = [
    "DEFAULT_NULLS",
    "DEFAULT_RAGGED",
    "AsObjects",
    "DefaultNulls",
    "Fill",
    "Mask",
    "Nulls",
    "Offsets",
    "Pad",
    "Ragged",
    "RaiseIfRagged",
    "RaiseOnNull",
    "Resize",
    "Scalar",
]

Scalar: TypeAlias = bool | int | float | complex | str | bytes | Decimal | UUID | dt.date | dt.timedelta | np.generic
"""An immutable value that many cells can share."""


@dataclass(frozen=True, slots=True)
class DefaultNulls:
    """Nulls are NaN in floats, NaT in times and None in objects, and an error in other columns.

    Example:
        >>> DEFAULT_NULLS
        DefaultNulls()
    """


@dataclass(frozen=True, slots=True)
class Fill:
    """Nulls become a value, which has to fit the column; a null list becomes an empty list.

    Args:
        value: The value in place of nulls. A float is rounded to the column's precision; other values have to fit exactly.

    Raises:
        ArgumentError: If it is not a single value.

    Example:
        >>> Fill(-1)
        Fill(value=-1)
    """

    value: Scalar

    def __post_init__(self) -> None:
        """Check the value."""
        _check_scalar(self.value, "Fill")


@dataclass(frozen=True, slots=True)
class Mask:
    """Nulls become zero, and an added column `<name>_valid` is True for values and False for nulls.

    Zero is 0, False, NaT in times and None in objects.

    Example:
        >>> Mask() == Mask()
        True
    """


@dataclass(frozen=True, slots=True)
class RaiseOnNull:
    """Any null is an error, also in floats and objects.

    Example:
        >>> RaiseOnNull()
        RaiseOnNull()
    """


@dataclass(frozen=True, slots=True)
class AsObjects:
    """Lists become an object array whose cells are arrays.

    Example:
        >>> AsObjects()
        AsObjects()
    """


@dataclass(frozen=True, slots=True)
class Pad:
    """Lists become one dense array, padded at their end, and an added column `<name>_length` has their lengths.

    Lists inside lists are padded too, to the longest of them.

    Args:
        value: The padding. 0 is the zero of every dtype: False, NaT in times and None in objects.
        length: The padded length; None for the length of the longest list of the batch.
        truncate: Whether longer lists are cut at `length`; otherwise they are an error.

    Raises:
        ArgumentError: If `value` is not a scalar, `length` is negative, or `truncate` has no length.

    Example:
        >>> Pad(length=128, truncate=True)
        Pad(value=0, length=128, truncate=True)
    """

    value: Scalar = 0
    length: int | None = None
    truncate: bool = False

    def __post_init__(self) -> None:
        """Check the options."""
        _check_scalar(self.value, "Pad")
        whole = isinstance(self.length, int | np.integer) and not isinstance(self.length, bool)
        if self.length is not None and not (whole and self.length >= 0):
            msg = f"Pad() got length={self.length!r}; expected a non-negative integer or None, for example Pad(length=8)."
            raise ArgumentError(msg)
        if self.truncate and self.length is None:
            msg = "Pad() got truncate=True without a length; expected both, for example Pad(length=128, truncate=True)."
            raise ArgumentError(msg)


@dataclass(frozen=True, slots=True)
class Offsets:
    """Lists become one array of all values, and an added column `<name>_offsets` has the start of each list and the end.

    Example:
        >>> Offsets()
        Offsets()
    """


@dataclass(frozen=True, slots=True)
class RaiseIfRagged:
    """Lists become one dense array, and lists that differ in length are an error.

    Example:
        >>> RaiseIfRagged()
        RaiseIfRagged()
    """


@dataclass(frozen=True, slots=True)
class Resize:
    """Images are resized to one size and become one dense array; JPEGs are decoded at a reduced size if that is enough.

    Args:
        height: Rows of pixels.
        width: Pixels of a row.

    Raises:
        ArgumentError: If a size is not a positive integer.

    Example:
        >>> Resize(224, 224)
        Resize(height=224, width=224)
    """

    height: int
    width: int

    def __post_init__(self) -> None:
        """Check the sizes."""
        sizes: dict[str, object] = {"height": self.height, "width": self.width}
        for name, size in sizes.items():
            if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
                msg = f"Resize() got {name}={size!r}; expected a positive integer, for example Resize(224, 224)."
                raise ArgumentError(msg)


Nulls: TypeAlias = DefaultNulls | Fill | Mask | RaiseOnNull
Ragged: TypeAlias = AsObjects | Pad | Offsets | RaiseIfRagged | Resize

DEFAULT_NULLS = DefaultNulls()
DEFAULT_RAGGED = AsObjects()


def zero(dtype: np.dtype[Any]) -> Any:
    """Return the zero of a dtype: 0, False, NaT of times, an empty text, None of objects.

    Example:
        >>> zero(np.dtype("uint8")), zero(np.dtype(object))
        (np.uint8(0), None)
    """
    if dtype.kind == "O":
        return None
    if dtype.kind in "US":
        return dtype.type()
    return np.array("NaT" if dtype.kind in "mM" else 0, dtype)[()]


def fitted(policy: Fill | Pad, kind: pa.DataType, column: str) -> Any:
    """Return the value of a policy in the type of a column.

    Raises:
        ArgumentError: If that type cannot hold it without loss.

    Example:
        >>> fitted(Fill(7), pa.list_(pa.uint8()), "x")
        np.uint8(7)
    """
    leaf = dtypes.leaf_type(kind)
    return _fitted(policy, leaf, dtypes.numpy_type(leaf)[0], column)


def fitted_to(policy: Fill | Pad, dtype: np.dtype[Any], column: str) -> Any:
    """Return the value of a policy in a dtype, which can be one that Arrow does not have.

    Raises:
        ArgumentError: If the dtype cannot hold it without loss.

    Example:
        >>> fitted_to(Pad(0), np.dtype("U"), "x")
        np.str_('')
    """
    return _fitted(policy, pa.null(), dtype, column)


def _fitted(policy: Fill | Pad, leaf: pa.DataType, dtype: np.dtype[Any], column: str) -> Any:
    if isinstance(policy, Pad) and type(policy.value) is int and policy.value == 0:
        return zero(dtype)
    expected, fits, value = _fit(policy.value, leaf, dtype)
    if fits:
        return value
    named = leaf if dtype.kind == "O" else {"U": "text", "S": "bytes"}.get(dtype.kind, dtype)
    alternative = "Mask()" if isinstance(policy, Fill) else "AsObjects()"
    msg = f"Column {column!r} got {policy}, which does not fit {named}; expected {expected}. Change the value, or use "
    raise ArgumentError(f"{msg}{alternative}.")


def _fit(value: Scalar, leaf: pa.DataType, dtype: np.dtype[Any]) -> tuple[str, bool, Any]:
    """Return what is expected of a value, whether this one fits, and the value in the dtype."""
    if dtype.kind == "O":
        return _fit_object(value, leaf)
    special = {"U": _fit_text, "S": _fit_text, "c": _fit_complex, "M": _fit_time, "m": _fit_time}.get(dtype.kind)
    if special is not None:
        return special(value, dtype)
    if dtype.kind == "b":
        return "True or False", isinstance(value, bool | np.bool_), value
    bounds = np.iinfo(dtype) if dtype.kind in "iu" else None
    expected = f"a number that {dtype} holds" if bounds is None else f"an integer from {bounds.min} to {bounds.max}"
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return expected, False, None
    try:
        with np.errstate(all="ignore"):
            fitted_value = dtype.type(value if bounds is None else int(value))
    except (OverflowError, ValueError):  # too large, or an infinite or NaN integer
        return expected, False, None
    if bounds is None and not isinstance(value, int | np.integer):  # a float may be rounded
        fits = bool(np.isfinite(fitted_value) or not np.isfinite(value))
    else:
        fits = int(fitted_value) == value
    return expected, fits, fitted_value


def _fit_text(value: Scalar, dtype: np.dtype[Any]) -> tuple[str, bool, Any]:
    """Return the same as `_fit` for text and bytes, which can have a maximal length."""
    kind, max_length = (str, dtype.itemsize // 4) if dtype.kind == "U" else (bytes, dtype.itemsize)
    expected = ("a str" if kind is str else "bytes") + (f" of length {max_length} at most" if max_length else "")
    return expected, isinstance(value, kind) and (not max_length or len(value) <= max_length), value


def _fit_complex(value: Scalar, dtype: np.dtype[Any]) -> tuple[str, bool, Any]:
    """Return the same as `_fit` for complex numbers."""
    expected = f"a number that {dtype} holds"
    if isinstance(value, bool) or not isinstance(value, int | float | complex | np.number):
        return expected, False, None
    try:
        with np.errstate(all="ignore"):
            fitted_value = dtype.type(value)
    except OverflowError:
        return expected, False, None
    if isinstance(value, int | np.integer):
        return expected, bool(int(fitted_value.real) == value), fitted_value
    return expected, bool(np.isfinite(fitted_value) or not np.isfinite(value)), fitted_value


def _fit_time(value: Scalar, dtype: np.dtype[Any]) -> tuple[str, bool, Any]:
    """Return the same as `_fit` for dates, timestamps and durations."""
    types: tuple[Any, ...] = (np.datetime64, dt.date) if dtype.kind == "M" else (np.timedelta64, dt.timedelta)
    expected = f"a {' or '.join(f'{kind.__module__}.{kind.__name__}' for kind in types)} that {dtype} holds"
    if not isinstance(value, types):
        return expected, False, None
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        value = value.astimezone(dt.UTC).replace(tzinfo=None)  # NumPy has no zones; stored times are in UTC
    exact = types[0](value)  # in the value's own unit
    fitted_value = exact.astype(dtype)
    return expected, bool(np.isnat(exact) or fitted_value.astype(exact.dtype) == exact), fitted_value


def _fit_object(value: Scalar, leaf: pa.DataType) -> tuple[str, bool, Any]:
    """Return the same as `_fit` for objects."""
    tests = pa.types
    if tests.is_string(leaf) or tests.is_large_string(leaf) or tests.is_string_view(leaf):
        return "a str", isinstance(value, str), value
    if tests.is_binary(leaf) or tests.is_large_binary(leaf) or tests.is_binary_view(leaf) or tests.is_fixed_size_binary(leaf):
        return "bytes", isinstance(value, bytes), value
    if tests.is_decimal(leaf):
        return "a decimal.Decimal", isinstance(value, Decimal), value
    if dtypes.extension_name(leaf) == dtypes.UUID:
        return "a uuid.UUID", isinstance(value, UUID), value
    return "no value, since cells of this type are mutable", tests.is_null(leaf), value


def _check_scalar(value: object, policy: str) -> None:
    """Check that a value is an immutable scalar."""
    scalar = bool | int | float | complex | str | bytes | Decimal | UUID | dt.date | dt.timedelta | np.generic
    if not isinstance(value, scalar):
        msg = (
            f"{policy}() got value={value!r}; expected a number, str, bytes, Decimal, UUID, date, duration or NumPy scalar, "
            f"for example {policy}(0)."
        )
        raise ArgumentError(msg)
