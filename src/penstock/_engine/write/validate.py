"""Checks of single values: each returns the value that the field's codec gets, or raises what is wrong with it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.codecs.npy import Npy
from penstock.codecs.npz import Npz
from penstock.codecs.raw import Raw
from penstock.codecs.scalar import Scalar
from penstock.dtypes import numpy_type
from penstock.schema import CellCodec, Field

__all__ = ["CONVERSION_ERRORS", "Check", "InvalidCellError", "castable", "cell_check", "describe", "fits_storage", "type_name"]

Check: TypeAlias = Callable[[Any], Any]
"""Takes a value that is not None and returns the value to store; None for a null of another kind, like NaT."""

Text = TypeVar("Text", str, bytes)

MAX_CHARACTERS = 60
"""The longest value in a message."""

SAFE_KINDS = {"b": "b", "i": "iu", "u": "iu", "f": "iuf", "c": "iufc", "M": "M", "m": "m"}
"""For each kind of dtype, the kinds that may be cast to it. NumPy casts booleans to numbers too, which changes the meaning."""

CONVERSION_ERRORS = (pa.ArrowException, ValueError, TypeError, OverflowError)
"""The errors of Arrow for a value that does not fit a type."""


class InvalidCellError(Exception):
    """A value does not fit its field. Callers that know the field and the row raise a `DataError` from it."""

    def __init__(self, got: str, expected: str, advice: str, row: int | None = 0) -> None:
        """Make the message; `row` counts within the given values, and is None if it concerns all of them."""
        super().__init__(f"got {got}; expected {expected}. {advice}")
        self.row = row


def describe(value: object) -> str:
    """Return a value and its type for a message.

    Example:
        >>> describe(np.zeros((2, 3), np.int8)), describe("x")
        ('a int8 array of shape (2, 3)', "'x' (str)")
    """
    if isinstance(value, np.ndarray):
        return f"a {value.dtype} array of shape {value.shape}"
    text = repr(value)
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    return f"{text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] + '…'} ({name})"


def type_name(kind: pa.DataType) -> str:
    """Return the name of an Arrow type in a message: its NumPy name if it is a float."""
    return {"halffloat": "float16", "float": "float32", "double": "float64"}.get(str(kind), str(kind))


def cell_check(field: Field, kind: pa.DataType | None = None) -> Check:
    """Return the check of a field's cells.

    Args:
        field: The field.
        kind: The Arrow type of the stored column; None if a codec makes bytes of the cells.
    """
    make_check = None if field.shape else _SCALAR_CHECKS.get(field.dtype.kind)
    if make_check is None:
        return partial(_check_array, field)
    check = make_check(field, kind)
    if kind is None:
        return partial(_as_numpy, field.dtype, check) if field.dtype.kind in "biufc" else check
    natural = field.dtype.kind != "O" and Scalar().storage(field) == kind
    return check if natural or field.dtype.kind in "mM" else partial(_check_storable, kind, check)


def _refuse_masked(cell: Any, expected: str) -> None:
    if isinstance(cell, np.ma.MaskedArray):
        raise InvalidCellError("a masked value", expected, "Give a value, or None for a null.")


def _unwrap(cell: Any) -> Any:
    """Return the value of an array without dimensions; other cells unchanged."""
    return cell[()] if type(cell) is np.ndarray and cell.shape == () else cell


def castable(given: np.dtype[Any], dtype: np.dtype[Any]) -> bool:
    """Return whether a cast keeps every value of a dtype, and its meaning.

    Example:
        >>> castable(np.dtype("int8"), np.dtype("int64")), castable(np.dtype("bool"), np.dtype("int64"))
        (True, False)
    """
    return given == dtype or (given.kind in SAFE_KINDS.get(dtype.kind, "") and np.can_cast(given, dtype, "safe"))


def _as_numpy(dtype: np.dtype[Any], check: Check, cell: Any) -> Any:
    return dtype.type(check(cell))


def _check_storable(kind: pa.DataType, check: Check, cell: Any) -> Any:
    """Return a cell that is stored as another type than that of its dtype."""
    value = check(cell)
    try:
        pa.scalar(value, type=kind)
    except CONVERSION_ERRORS as error:
        got = f"{describe(cell)}, which Arrow refuses: {error}"
        raise InvalidCellError(got, f"a value of {kind}", "Change it or the codec's type.") from None
    return value


def _check_array(field: Field, cell: Any) -> npt.NDArray[Any]:
    if type(cell) is np.ndarray and cell.dtype == field.dtype and (cell.shape == field.shape or field.fits(cell)):
        return cell
    if type(cell) is np.ndarray and not cell.dtype.isnative:
        return _check_array(field, cell.astype(cell.dtype.newbyteorder("=")))
    expected = f"a {field.dtype} array of shape {field.shape}"
    is_bytes, codec = isinstance(cell, (bytes, bytearray, memoryview)), field.codec
    if is_bytes and isinstance(codec, CellCodec) and not isinstance(codec, Raw):
        advice = f"Give the array. Bytes that are a cell of {codec!r} already are taken in columns of Arrow: "
        raise InvalidCellError(describe(cell), expected, f"{advice}pyarrow.table({{{field.name!r}: [cell]}}).")
    if not isinstance(cell, np.ndarray):
        function = "frombuffer" if is_bytes else "asarray"
        raise InvalidCellError(describe(cell), expected, f"Make it one: numpy.{function}(cell, {_dtype_name(field.dtype)!r}).")
    if isinstance(cell, np.ma.MaskedArray):
        raise InvalidCellError("a masked array", expected, "Fill it: cell.filled(value).")
    if field.fits(cell):
        return np.asarray(cell)
    if len(cell.shape) == len(field.shape) and field.fits(np.empty(cell.shape, field.dtype)):
        advice = f"Convert it: cell.astype({_dtype_name(field.dtype)!r}); or change the field's dtype."
    else:
        advice = "Bring it to that shape, or change the field's: None stands for any size."
    raise InvalidCellError(describe(cell), expected, advice)


def _dtype_name(dtype: np.dtype[Any]) -> str:
    """Return a name that NumPy accepts; the names of text and bytes of fixed length are not."""
    return dtype.str.lstrip("<>|=") if dtype.kind in "USV" and dtype.itemsize else dtype.name


def _boolean_check(field: Field, kind: pa.DataType | None) -> Check:  # noqa: ARG001 - all have these arguments
    def check(cell: Any) -> bool:
        _refuse_masked(cell, "True or False")
        if isinstance(cell, (bool, np.bool_)) or (isinstance(cell, np.ndarray) and cell.shape == () and cell.dtype == np.bool_):
            return bool(cell)
        raise InvalidCellError(describe(cell), "True or False", "Make it one: bool(cell).")

    return check


def _integer_check(field: Field, kind: pa.DataType | None) -> Check:  # noqa: ARG001 - all have these arguments
    bounds = np.iinfo(field.dtype)
    low, high = int(bounds.min), int(bounds.max)
    expected = f"a whole number of {field.dtype}, from {low} to {high}"

    def check(cell: Any) -> int:
        if type(cell) is int and low <= cell <= high:
            return cell
        if isinstance(cell, (np.generic, np.ndarray)):
            _refuse_masked(cell, expected)
            if cell.shape == () and castable(cell.dtype, field.dtype):
                return int(cell)
            advice = f"Convert it: numpy.{field.dtype}(cell); or change the field's dtype."
            raise InvalidCellError(describe(cell), expected, advice)
        if isinstance(cell, float) and cell.is_integer():
            cell = int(cell)
        if isinstance(cell, int) and not isinstance(cell, bool) and low <= cell <= high:
            return cell
        raise InvalidCellError(describe(cell), expected, "Change it, or the field's dtype.")

    return check


def _float_check(field: Field, kind: pa.DataType | None) -> Check:  # noqa: ARG001 - all have these arguments
    convert = field.dtype.type
    expected = f"a number that {field.dtype} holds"

    def check(cell: Any) -> Any:
        if isinstance(cell, (np.generic, np.ndarray)):
            _refuse_masked(cell, expected)
            if cell.shape != () or not castable(cell.dtype, field.dtype):
                advice = f"Convert it: numpy.{field.dtype}(cell); or change the field's dtype."
                raise InvalidCellError(describe(cell), expected, advice)
            if cell.dtype.kind == "f":
                return convert(cell)
            cell = int(cell)
        if isinstance(cell, (int, float)) and not isinstance(cell, bool):
            with np.errstate(all="ignore"):
                try:
                    number = convert(cell)
                except OverflowError:  # an integer beyond all floats
                    number = convert(np.inf)
            # A float is rounded to the precision of the field; an integer must stay exact.
            if float(number) == cell or (isinstance(cell, float) and (np.isfinite(number) or not np.isfinite(cell))):
                return number
        raise InvalidCellError(describe(cell), expected, "Change it, or the field's dtype.")

    return check


def _complex_check(field: Field, kind: pa.DataType | None) -> Check:  # noqa: ARG001 - all have these arguments
    expected = f"a number of {field.dtype}"

    def check(cell: Any) -> Any:
        if isinstance(cell, complex) and not isinstance(cell, np.generic):
            return field.dtype.type(cell)
        _refuse_masked(cell, expected)
        if isinstance(cell, (np.generic, np.ndarray)) and cell.shape == () and castable(cell.dtype, field.dtype):
            number = field.dtype.type(cell)
            if cell.dtype.kind not in "iu" or int(number.real) == int(cell):
                return number
        raise InvalidCellError(describe(cell), expected, f"Convert it: numpy.{field.dtype}(cell).")

    return check


def _text_check(field: Field, kind: pa.DataType | None) -> Check:  # noqa: ARG001 - all have these arguments
    limit = field.dtype.itemsize // 4

    def check(cell: Any) -> str:
        cell = _unwrap(cell)
        if not isinstance(cell, str):
            advice = "Decode it: cell.decode()." if isinstance(cell, bytes) else "Make it text: str(cell)."
            raise InvalidCellError(describe(cell), "a str", advice)
        if not cell.isascii():
            try:
                cell.encode()
            except UnicodeEncodeError as error:
                got = f"text that is not Unicode: {error}"
                raise InvalidCellError(got, "a str that UTF-8 can hold", "Remove those characters.") from None
        if limit and len(cell) > limit:
            got = f"{describe(cell)} of {len(cell)} characters"
            raise InvalidCellError(got, f"a str of {limit} at most", "Shorten it, or use dtype=str.")
        return _check_ending(field, cell, "\0")

    return check


def _bytes_check(field: Field, kind: pa.DataType | None) -> Check:  # noqa: ARG001 - all have these arguments
    limit = field.dtype.itemsize

    def check(cell: Any) -> bytes:
        cell = _unwrap(cell)
        if not isinstance(cell, (bytes, bytearray, memoryview)):
            advice = "Encode it: cell.encode()." if isinstance(cell, str) else "Make it bytes."
            raise InvalidCellError(describe(cell), "bytes", advice)
        value = cell if isinstance(cell, bytes) else bytes(cell)
        if limit and len(value) > limit:
            raise InvalidCellError(f"{len(value)} bytes", f"{limit} at most", "Shorten them, or use dtype=bytes.")
        return _check_ending(field, value, b"\0")

    return check


def _check_ending(field: Field, cell: Text, zero: Text) -> Text:
    """Return text or bytes; refuse zeros at the end if the codec stores NumPy values, which lose them."""
    if isinstance(field.codec, (Npy, Npz, Raw)) and cell.endswith(zero):
        expected = f"one that does not end in {zero!r}, which NumPy would cut off"
        raise InvalidCellError(describe(cell), expected, "Use penstock.codecs.Scalar(), which keeps it.")
    return cell


def _object_check(field: Field, kind: pa.DataType | None) -> Check:
    if kind is None or not pa.types.is_decimal(kind):
        return lambda cell: cell  # any object: the codec or Arrow checks it

    def check(cell: Any) -> Decimal:
        if isinstance(cell, Decimal):
            return cell
        if isinstance(cell, int) and not isinstance(cell, bool):
            return Decimal(cell)
        if isinstance(cell, (float, np.number)):
            raise InvalidCellError(describe(cell), "a decimal.Decimal", "Make it one: Decimal(str(cell)).")
        dtype = next((each.__name__ for each in (str, bytes) if isinstance(cell, each)), "...")
        advice = (
            f"Say what its cells are: Field({field.name!r}, {dtype}); or give the field a codec of your own that stores them."
        )
        raise InvalidCellError(describe(cell), "a decimal.Decimal, as a field of objects without a codec holds", advice)

    return check


def _datetime_check(field: Field, kind: pa.DataType | None) -> Check:
    zoned = kind is not None and pa.types.is_timestamp(kind) and kind.tz is not None
    days = np.datetime_data(field.dtype)[0] == "D" or (kind is not None and pa.types.is_date(kind))
    dtypes = _required_dtypes(field, kind)
    expected = f"a {'date' if days else 'datetime'} or numpy.datetime64 that {field.dtype} holds"

    def check(cell: Any) -> Any:
        moment = cell = _unwrap(cell)
        if isinstance(cell, dt.datetime) and not days:
            if cell.tzinfo is not None and not zoned:
                advice = "Give the field a zone: codec=Scalar('timestamp[us, tz=UTC]'); or make it naive: "
                advice += "cell.astimezone(datetime.UTC).replace(tzinfo=None)."
                raise InvalidCellError(f"{describe(cell)} with a time zone", "one without", advice)
            moment = cell.astimezone(dt.UTC).replace(tzinfo=None) if cell.tzinfo is not None else cell
            moment = moment.to_datetime64() if hasattr(moment, "to_datetime64") else np.datetime64(moment)
        elif isinstance(cell, dt.date) and not isinstance(cell, dt.datetime) and days:
            moment = np.datetime64(cell)
        if not isinstance(moment, np.datetime64):
            raise InvalidCellError(describe(cell), expected, "Make it one.")
        exact = _convert_exact(cell, moment, dtypes, expected)
        if exact is not None and not fits_storage(kind, exact):
            got = f"{describe(cell)}, which is further than {kind} in a file holds"
            raise InvalidCellError(got, expected, "Give a nearer one, or change the field's dtype.")
        return exact

    return check


def fits_storage(kind: pa.DataType | None, moments: Any) -> bool:
    """Return whether files can store moments of a type: they have fewer days than NumPy, and store seconds as milliseconds.

    Example:
        >>> fits_storage(pa.date32(), np.array([2**31 - 1], "M8[D]")), fits_storage(pa.date32(), np.array([2**31], "M8[D]"))
        (True, False)
    """
    if kind is None or not (pa.types.is_date32(kind) or pa.types.is_timestamp(kind)):
        return True
    given = np.asarray(moments)
    stored = given.astype(f"M8[{'D' if pa.types.is_date32(kind) else kind.unit}]", copy=False)
    if stored is not given and not (stored.astype(given.dtype) == given).all():
        return False
    if not pa.types.is_date32(kind) or not stored.size:
        return True
    days = stored.view(np.int64)
    return bool(days.min() >= -(2**31) and days.max() < 2**31)


def _duration_check(field: Field, kind: pa.DataType | None) -> Check:
    is_time = kind is not None and pa.types.is_time(kind)
    dtypes = _required_dtypes(field, kind)
    expected = f"a {'time' if is_time else 'timedelta'} or numpy.timedelta64 that {field.dtype} holds"

    def check(cell: Any) -> Any:
        duration = cell = _unwrap(cell)
        if is_time and isinstance(cell, dt.time) and cell.tzinfo is None:
            duration = np.timedelta64(dt.datetime.combine(dt.date.min, cell) - dt.datetime.min)  # noqa: DTZ901 - a time of any day
        elif isinstance(cell, dt.timedelta):
            if abs(cell // dt.timedelta(microseconds=1)) >= 2**63:  # NumPy would overflow
                got = f"{describe(cell)}, which is further than {field.dtype} holds"
                raise InvalidCellError(got, expected, "Give a shorter one.")
            duration = cell.to_timedelta64() if hasattr(cell, "to_timedelta64") else np.timedelta64(cell)
        if isinstance(duration, np.timedelta64):
            return _convert_exact(cell, duration, dtypes, expected)
        raise InvalidCellError(describe(cell), expected, "Make it one.")

    return check


def _required_dtypes(field: Field, kind: pa.DataType | None) -> list[np.dtype[Any]]:
    """Return the dtypes that must hold a moment or a duration: that of the stored type, and that of the field."""
    return [field.dtype] if kind is None else [numpy_type(kind)[0], field.dtype]


def _convert_exact(cell: Any, value: Any, dtypes: list[np.dtype[Any]], expected: str) -> Any:
    """Return a moment or a duration in the last of some dtypes, if all hold it exactly; None for NaT."""
    if np.isnat(value):
        return None
    for dtype in dtypes:
        try:
            converted = value.astype(dtype)
        except OverflowError:  # units far apart
            converted = value.dtype.type("NaT")
        if np.isnat(converted) or converted.astype(value.dtype) != value:
            got = f"{describe(cell)}, which is finer or further than {dtype} holds"
            advice = f"Round it, or change the field's {'dtype' if dtype == dtypes[-1] else 'codec'}."
            raise InvalidCellError(got, expected, advice)
    return converted


_SCALAR_CHECKS: dict[str, Callable[[Field, pa.DataType | None], Check]] = {
    "b": _boolean_check,
    "i": _integer_check,
    "u": _integer_check,
    "f": _float_check,
    "c": _complex_check,
    "U": _text_check,
    "S": _bytes_check,
    "O": _object_check,
    "M": _datetime_check,
    "m": _duration_check,
}
