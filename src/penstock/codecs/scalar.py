"""Single values as Arrow has them: numbers, text, bytes, decimals, dates and times."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.dtypes import FIXED, numpy_type
from penstock.errors import ArgumentError
from penstock.schema import Codec, Field

__all__ = ["CODECS", "Scalar"]

NUMPY = {dtype: kind for kind, dtype in FIXED.items() if kind != pa.date64()}
PLAIN = ("string", "large_string", "binary", "large_binary", "date32", "date64", "bool", "float16", "float", "double")
ALIASES = {"date32[day]": "date32", "date64[ms]": "date64", "halffloat": "float16"}  # what Arrow itself calls them
NUMBERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
DECIMAL = r"decimal(32|64|128|256)\((\d+), ?(-?\d+)\)"
TIME = r"(timestamp|duration|time32|time64)\[(s|ms|us|ns)(?:, ?tz=([^\]]+))?\]"


@dataclass(frozen=True)
class Scalar(Codec):
    """One value per cell, stored as the Arrow type of its dtype, or as another Arrow type.

    Args:
        type: An Arrow type or its name, like `"decimal128(10, 2)"` or `"timestamp[ms, tz=UTC]"`; None for that of the dtype.

    Raises:
        ArgumentError: If the type is not known.

    Example:
        >>> Scalar(pa.decimal128(10, 2))
        Scalar(type='decimal128(10, 2)')
    """

    name = "scalar"
    type: str | None = None

    def __init__(self, type: str | pa.DataType | None = None) -> None:  # noqa: A002 - the word for it
        """Store the name of the type."""
        name = None if type is None else ALIASES.get(str(type), str(type))
        if name is not None:
            arrow_type(name)
        object.__setattr__(self, "type", name)

    def options(self) -> Mapping[str, Any]:
        """Return the type, if one was given."""
        return {} if self.type is None else {"type": self.type}

    def check(self, field: Field) -> None:
        """Check that this codec can store the field.

        Raises:
            ArgumentError: If it holds arrays, or Arrow does not have its dtype.
        """
        if field.shape != ():
            msg = f"Field {field.name!r} has shape {field.shape}, but Scalar stores single values. Use Tensor() or Npy()."
            raise ArgumentError(msg)
        stored, expected = self.storage(field), Scalar(None).storage(field)
        if not _holds(stored, expected, field):
            msg = f"Field {field.name!r} has dtype {field.dtype}, but {stored} does not hold its values. "
            raise ArgumentError(msg + "Use another dtype or type.")

    def storage(self, field: Field) -> pa.DataType:
        """Return the Arrow type of a field.

        Raises:
            ArgumentError: If Arrow does not have its dtype.
        """
        if self.type is not None:
            return in_files(arrow_type(self.type))
        if field.dtype in NUMPY:
            return NUMPY[field.dtype]
        if field.dtype.kind in "US":
            return pa.string() if field.dtype.kind == "U" else pa.binary()
        unit, count = np.datetime_data(field.dtype) if field.dtype.kind in "mM" else ("", 1)
        if unit in ("s", "ms", "us", "ns") and count == 1:
            return in_files(pa.timestamp(unit) if field.dtype.kind == "M" else pa.duration(unit))
        if field.dtype.kind == "O":
            return pa.decimal128(38, 18)
        msg = (
            f"Field {field.name!r} has dtype {field.dtype}, which Arrow does not have. Use another dtype, or "
            "penstock.codecs.Npy() with a shape."
        )
        raise ArgumentError(msg)

    def encode_column(self, field: Field, cells: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
        """Return cells as Arrow values."""
        kind = self.storage(field)
        if isinstance(cells, np.ndarray) and cells.dtype.kind in "US":
            cells = cells.astype(object)
        elif not isinstance(cells, np.ndarray) and field.dtype.kind in "mM":
            cells = np.array(["NaT" if cell is None else cell for cell in cells], field.dtype)
        if pa.types.is_time(kind) and isinstance(cells, np.ndarray) and cells.dtype.kind == "m":
            ticks = cells.astype(f"timedelta64[{kind.unit}]").view(np.int64)  # Arrow cannot cast a duration to a time
            stored = pa.array(ticks, mask=np.isnat(cells)).cast(pa.int32() if kind.bit_width == 32 else pa.int64())  # noqa: PLR2004
            return stored.cast(kind)
        if pa.types.is_date32(kind) and isinstance(cells, np.ndarray) and cells.dtype.kind == "M":
            cells = cells.astype("M8[D]")
        return pa.array(cells, type=kind)


def in_files(kind: pa.DataType) -> pa.DataType:
    """Return the type that Parquet stores; it has no seconds, and no dates in milliseconds.

    Example:
        >>> in_files(pa.timestamp("s", tz="UTC"))
        TimestampType(timestamp[ms, tz=UTC])
    """
    if pa.types.is_timestamp(kind) and kind.unit == "s":
        return pa.timestamp("ms", tz=kind.tz)
    if pa.types.is_date64(kind):
        return pa.date32()
    return pa.time32("ms") if kind == pa.time32("s") else kind


def _holds(stored: pa.DataType, expected: pa.DataType, field: Field) -> bool:
    """Return whether a type holds the values of a field without a change."""
    tests = pa.types
    text = tests.is_string(stored) or tests.is_large_string(stored)
    blob = tests.is_binary(stored) or tests.is_large_binary(stored)
    if field.dtype.kind in "OUS":
        return bool({"O": tests.is_decimal(stored) or text or blob, "U": text, "S": blob}[field.dtype.kind])
    if field.dtype.kind in "mM":
        return numpy_type(stored)[0].kind == field.dtype.kind
    if field.dtype.kind in "iu":  # the writer checks the range of values
        return bool(tests.is_integer(stored))
    return bool(stored == expected)


def arrow_type(name: str) -> pa.DataType:
    """Return the Arrow type of single values with a name.

    Raises:
        ArgumentError: If there is no such type.

    Example:
        >>> arrow_type("decimal128(10, 2)")
        Decimal128Type(decimal128(10, 2))
    """
    try:
        if name in PLAIN or name in NUMBERS:
            return pa.type_for_alias(name)
        if (match := re.fullmatch(DECIMAL, name)) and not match[3].startswith("-"):  # Parquet has no negative scales
            return getattr(pa, f"decimal{match[1]}")(int(match[2]), int(match[3]))
        if match := re.fullmatch(TIME, name):
            make = getattr(pa, match[1])
            return make(match[2], tz=match[3]) if match[3] else make(match[2])
    except (ValueError, pa.ArrowException) as error:
        raise ArgumentError(f"Scalar() got type={name!r}, which Arrow rejects: {error}. Use another type.") from error
    msg = (
        f"Scalar() got type={name!r}; expected one of {', '.join([*NUMBERS, *PLAIN])}, decimal32(p, s), decimal64(p, s), "
        "decimal128(p, s), decimal256(p, s), timestamp[unit], timestamp[unit, tz=zone], time32[unit], time64[unit], "
        "duration[unit]."
    )
    raise ArgumentError(msg)


CODECS = (Scalar,)
