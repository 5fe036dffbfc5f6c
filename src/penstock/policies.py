"""What becomes of nulls and of lists that differ in length: values that say so, one of each for a column.

NumPy has no null among integers and no list that differs in length from row to row. What to do then is never guessed from
the data: a policy decides it, and without one it is an error or an object array. `docs/types.md` shows what each gives.
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
"""A single value that cannot be changed, so that many cells can share it."""


@dataclass(frozen=True, slots=True)
class DefaultNulls:
    """Nulls are NaN among floats, NaT among times and None among objects; anywhere else they are an error.

    Example:
        >>> DEFAULT_NULLS
        DefaultNulls()
    """


@dataclass(frozen=True, slots=True)
class Fill:
    """Nulls become a value, which must fit the column; a null list becomes an empty one.

    Args:
        value: What stands where a null was. A float is rounded to the column's precision; nothing else may change.

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
    """Nulls become zero, and a second column `<name>_valid` is True where there was a value.

    Zero is 0, False, NaT among times and None among objects.

    Example:
        >>> Mask() == Mask()
        True
    """


@dataclass(frozen=True, slots=True)
class RaiseOnNull:
    """Any null is an error, among floats and objects too.

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
    """Lists become one dense array, filled up at their end, and a second column `<name>_length` tells their real lengths.

    Lists inside lists are filled up too, to the longest of them.

    Args:
        value: What lists are filled up with. 0 is zero of every dtype: False, NaT among times and None among objects.
        length: Values of a cell; None for as many as the longest list of the batch has.
        truncate: Whether longer lists are cut at `length`. Otherwise they are an error.

    Raises:
        ArgumentError: If the value is not a single one, the length is negative, or there is no length to cut at.

    Example:
        >>> Pad(length=128, truncate=True)
        Pad(value=0, length=128, truncate=True)
    """

    value: Scalar = 0
    length: int | None = None
    truncate: bool = False

    def __post_init__(self) -> None:
        """Check what was given."""
        _check_scalar(self.value, "Pad")
        whole = isinstance(self.length, int | np.integer) and not isinstance(self.length, bool)
        if self.length is not None and not (whole and self.length >= 0):
            msg = f"Pad(length={self.length!r}) is no length. A whole number from 0 is one, or None. Give such: Pad(length=8)."
            raise ArgumentError(msg)
        if self.truncate and self.length is None:
            msg = "Pad(truncate=True) has no length to cut at. It needs one. Give it: Pad(length=128, truncate=True)."
            raise ArgumentError(msg)


@dataclass(frozen=True, slots=True)
class Offsets:
    """Lists become their values, one after the other, and `<name>_offsets` tells where each list starts and the last ends.

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
    """Images become one dense array, each made to one size; JPEGs are decoded at no more than the size that needs.

    Args:
        height: Rows of pixels.
        width: Pixels of a row.

    Raises:
        ArgumentError: If a size is no positive number.

    Example:
        >>> Resize(224, 224)
        Resize(height=224, width=224)
    """

    height: int
    width: int

    def __post_init__(self) -> None:
        """Check the sizes."""
        sizes: tuple[object, object] = (self.height, self.width)
        for size in sizes:
            if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
                msg = f"{self} is no size. Two positive whole numbers were expected. Give them: Resize(224, 224)."
                raise ArgumentError(msg)


Nulls: TypeAlias = DefaultNulls | Fill | Mask | RaiseOnNull
Ragged: TypeAlias = AsObjects | Pad | Offsets | RaiseIfRagged | Resize

DEFAULT_NULLS = DefaultNulls()
DEFAULT_RAGGED = AsObjects()


def zero(dtype: np.dtype[Any]) -> Any:
    """Return what stands for nothing in an array: 0, False, NaT among times, no letters in text, None among objects.

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
    """Return the value of a policy as the values of a column have it.

    Raises:
        ArgumentError: If it cannot be one of them without loss.

    Example:
        >>> fitted(Fill(7), pa.list_(pa.uint8()), "x")
        np.uint8(7)
    """
    leaf = dtypes.leaf_type(kind)
    return _fitted(policy, leaf, dtypes.numpy_type(leaf)[0], column)


def fitted_to(policy: Fill | Pad, dtype: np.dtype[Any], column: str) -> Any:
    """Return the value of a policy as an array of a dtype has it, which may be one that Arrow does not have.

    Raises:
        ArgumentError: If it cannot be one of its values without loss.

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
    msg = f"Column {column!r}: {policy} does not fit {named}. The value must be {expected}. Give such a value, or use "
    raise ArgumentError(msg + ("Mask()." if isinstance(policy, Fill) else "AsObjects()."))


def _fit(value: Scalar, leaf: pa.DataType, dtype: np.dtype[Any]) -> tuple[str, bool, Any]:
    """Return what a value must be, whether this one is, and the value with the dtype."""
    if dtype.kind == "O":
        return _fit_object(value, leaf)
    special = {"U": _fit_text, "S": _fit_text, "c": _fit_complex, "M": _fit_time, "m": _fit_time}.get(dtype.kind)
    if special is not None:
        return special(value, dtype)
    if dtype.kind == "b":
        return "True or False", isinstance(value, bool | np.bool_), value
    bounds = np.iinfo(dtype) if dtype.kind in "iu" else None
    expected = f"a number that {dtype} holds" if bounds is None else f"a whole number from {bounds.min} to {bounds.max}"
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return expected, False, None
    try:
        with np.errstate(all="ignore"):
            found = dtype.type(value if bounds is None else int(value))
    except (OverflowError, ValueError):  # too large, or among integers infinite or NaN
        return expected, False, None
    rounded = bounds is None and not isinstance(value, int | np.integer)
    return expected, bool(np.isfinite(found) or not np.isfinite(value)) if rounded else int(found) == value, found


def _fit_text(value: Scalar, dtype: np.dtype[Any]) -> tuple[str, bool, Any]:
    """Return what a value must be among text or bytes, which may have a greatest length, whether this one is, and the value."""
    kind, most = (str, dtype.itemsize // 4) if dtype.kind == "U" else (bytes, dtype.itemsize)
    expected = ("a str" if kind is str else "bytes") + (f" of {most} at most" if most else "")
    return expected, isinstance(value, kind) and (not most or len(value) <= most), value


def _fit_complex(value: Scalar, dtype: np.dtype[Any]) -> tuple[str, bool, Any]:
    """Return what a value must be among complex numbers, whether this one is, and the value with the dtype."""
    expected = f"a number that {dtype} holds"
    if isinstance(value, bool) or not isinstance(value, int | float | complex | np.number):
        return expected, False, None
    try:
        with np.errstate(all="ignore"):
            found = dtype.type(value)
    except OverflowError:
        return expected, False, None
    whole = isinstance(value, int | np.integer)
    return expected, bool(int(found.real) == value if whole else np.isfinite(found) or not np.isfinite(value)), found


def _fit_time(value: Scalar, dtype: np.dtype[Any]) -> tuple[str, bool, Any]:
    """Return what a value must be among dates, moments or durations, whether this one is, and the value with the dtype."""
    given: tuple[Any, ...] = (np.datetime64, dt.date) if dtype.kind == "M" else (np.timedelta64, dt.timedelta)
    expected = f"a {' or '.join(f'{kind.__module__}.{kind.__name__}' for kind in given)} that {dtype} holds"
    if not isinstance(value, given):
        return expected, False, None
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        value = value.astimezone(dt.UTC).replace(tzinfo=None)  # NumPy's moments have no zone and ours are in UTC
    exact = given[0](value)  # in the value's own unit
    found = exact.astype(dtype)
    return expected, bool(np.isnat(exact) or found.astype(exact.dtype) == exact), found


def _fit_object(value: Scalar, leaf: pa.DataType) -> tuple[str, bool, Any]:
    """Return what a value must be among objects, whether this one is, and the value."""
    tests = pa.types
    if tests.is_string(leaf) or tests.is_large_string(leaf) or tests.is_string_view(leaf):
        return "a str", isinstance(value, str), value
    if tests.is_binary(leaf) or tests.is_large_binary(leaf) or tests.is_binary_view(leaf) or tests.is_fixed_size_binary(leaf):
        return "bytes", isinstance(value, bytes), value
    if tests.is_decimal(leaf):
        return "a decimal.Decimal", isinstance(value, Decimal), value
    if dtypes.extension_name(leaf) == dtypes.UUID:
        return "a uuid.UUID", isinstance(value, UUID), value
    return "one that cells can share, and such cells share none", tests.is_null(leaf), value


def _check_scalar(value: object, policy: str) -> None:
    """Refuse what is not one value that cells can share."""
    single = bool | int | float | complex | str | bytes | Decimal | UUID | dt.date | dt.timedelta | np.generic
    if not isinstance(value, single):
        msg = (
            f"{policy}({value!r}) does not hold a single value. A number, a string, bytes, a Decimal, a UUID, a date, "
            f"a duration or a NumPy scalar is one. Give such a value, or leave the policy out."
        )
        raise ArgumentError(msg)
