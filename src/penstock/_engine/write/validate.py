"""Whether one value is a cell of a field: each check returns what the field's codec is given, or says what is wrong."""

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

__all__ = ["REFUSED", "Check", "Misfit", "castable", "check_of", "holds", "told", "told_type"]

Check: TypeAlias = Callable[[Any], Any]
"""From a value that is not None to what is stored of it; None where it is a null of its own kind, like NaT."""

Text = TypeVar("Text", str, bytes)

LONGEST = 60
"""Characters of a value in a message."""

KINDS = {"b": "b", "i": "iu", "u": "iu", "f": "iuf", "c": "iufc", "M": "M", "m": "m"}
"""For each kind of dtype, the kinds that may be cast to it: booleans are no numbers here, though NumPy casts them."""


REFUSED = (pa.ArrowException, ValueError, TypeError, OverflowError)
"""What Arrow raises where it does not make a value of a type."""


class Misfit(Exception):  # noqa: N818 - it becomes an error where the row and the field are known
    """A value that is no cell of its field: what it is, what was expected, what to do, and which of those given it is."""

    def __init__(self, got: str, expected: str, advice: str, row: int | None = 0) -> None:
        """Store what is told; no row where it is about all of them."""
        super().__init__(f"got {got}; expected {expected}. {advice}")
        self.row = row


def told(value: object) -> str:
    """Return what a value is, for a message.

    Example:
        >>> told(np.zeros((2, 3), np.int8)), told("x")
        ('a int8 array of shape (2, 3)', "'x' (str)")
    """
    if isinstance(value, np.ndarray):
        return f"a {value.dtype} array of shape {value.shape}"
    shown = repr(value)
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    return f"{shown if len(shown) <= LONGEST else shown[:LONGEST] + '…'} ({name})"


def told_type(kind: pa.DataType) -> str:
    """Return what an Arrow type is called in a message: its NumPy name where it has one.

    Example:
        >>> told_type(pa.float32()), told_type(pa.string())
        ('float32', 'string')
    """
    return {"halffloat": "float16", "float": "float32", "double": "float64"}.get(str(kind), str(kind))


def check_of(field: Field, kind: pa.DataType | None = None) -> Check:
    """Return the check of a field's cells, where they are stored as an Arrow type, or by a codec that says itself how.

    Example:
        >>> check_of(Field("x", np.uint8), pa.uint8())(200)
        200
    """
    if field.shape:
        return partial(_array, field, field.dtype, field.shape)
    found = _SCALARS.get(field.dtype.kind)
    if found is None:
        return partial(_array, field, field.dtype, field.shape)
    check = found(field, kind)
    if kind is None:
        return partial(_as_numpy, field.dtype, check) if field.dtype.kind in "biufc" else check
    natural = field.dtype.kind != "O" and Scalar().storage(field) == kind
    return check if natural or field.dtype.kind in "mM" else partial(_storable, kind, check)


def _unmasked(cell: Any, expected: str) -> None:
    """Refuse a masked value, which is neither a number nor a null."""
    if isinstance(cell, np.ma.MaskedArray):
        raise Misfit("a masked value", expected, "Give a value, or None for a null.")


def _single(cell: Any) -> Any:
    """Return the value of an array without a dimension, and other cells as they are."""
    return cell[()] if type(cell) is np.ndarray and cell.shape == () else cell


def castable(given: np.dtype[Any], dtype: np.dtype[Any]) -> bool:
    """Return whether every value of one dtype is one of another, and means the same.

    Example:
        >>> castable(np.dtype("int8"), np.dtype("int64")), castable(np.dtype("bool"), np.dtype("int64"))
        (True, False)
    """
    return given == dtype or (given.kind in KINDS.get(dtype.kind, "") and np.can_cast(given, dtype, "safe"))


def _as_numpy(dtype: np.dtype[Any], check: Check, cell: Any) -> Any:
    """Return a number as NumPy's own, for a codec that makes bytes of it."""
    return dtype.type(check(cell))


def _storable(kind: pa.DataType, check: Check, cell: Any) -> Any:
    """Return a cell that is stored as a type other than that of its dtype, where it can be."""
    found = check(cell)
    try:
        pa.scalar(found, type=kind)
    except REFUSED as error:
        raise Misfit(
            f"{told(cell)}, which Arrow refuses: {error}", f"a value of {kind}", "Change it or the codec's type."
        ) from None
    return found


def _array(field: Field, dtype: np.dtype[Any], shape: tuple[int | None, ...], cell: Any) -> npt.NDArray[Any]:
    if type(cell) is np.ndarray and cell.dtype == dtype and (cell.shape == shape or field.fits(cell)):
        return cell
    if type(cell) is np.ndarray and not cell.dtype.isnative:
        return _array(field, dtype, shape, cell.astype(cell.dtype.newbyteorder("=")))
    expected = f"a {field.dtype} array of shape {field.shape}"
    is_bytes, codec = isinstance(cell, (bytes, bytearray, memoryview)), field.codec
    if is_bytes and isinstance(codec, CellCodec) and not isinstance(codec, Raw):
        advice = f"Give the array. Bytes that are a cell of {codec!r} already are taken in columns of Arrow: "
        raise Misfit(told(cell), expected, f"{advice}pyarrow.table({{{field.name!r}: [cell]}}).")
    if not isinstance(cell, np.ndarray):
        maker = "frombuffer" if is_bytes else "asarray"
        raise Misfit(told(cell), expected, f"Make it one: numpy.{maker}(cell, {_called(field.dtype)!r}).")
    if isinstance(cell, np.ma.MaskedArray):
        raise Misfit("a masked array", expected, "Fill it: cell.filled(value).")
    if field.fits(cell):
        return np.asarray(cell)
    if len(cell.shape) == len(shape) and field.fits(np.empty(cell.shape, field.dtype)):
        raise Misfit(told(cell), expected, f"Convert it: cell.astype({_called(field.dtype)!r}); or change the field's dtype.")
    raise Misfit(told(cell), expected, "Bring it to that shape, or change the field's: None stands for any size.")


def _called(dtype: np.dtype[Any]) -> str:
    """Return a name that NumPy takes back; those of text and bytes of some length it does not."""
    return dtype.str.lstrip("<>|=") if dtype.kind in "USV" and dtype.itemsize else dtype.name


def _boolean(field: Field, kind: pa.DataType | None) -> Check:  # noqa: ARG001 - as the others
    def check(cell: Any) -> bool:
        _unmasked(cell, "True or False")
        if isinstance(cell, (bool, np.bool_)) or (isinstance(cell, np.ndarray) and cell.shape == () and cell.dtype == np.bool_):
            return bool(cell)
        raise Misfit(told(cell), "True or False", "Make it one: bool(cell).")

    return check


def _integer(field: Field, kind: pa.DataType | None) -> Check:  # noqa: ARG001 - as the others
    bounds = np.iinfo(field.dtype)
    low, high = int(bounds.min), int(bounds.max)
    expected = f"a whole number of {field.dtype}, from {low} to {high}"

    def check(cell: Any) -> int:
        if type(cell) is int and low <= cell <= high:
            return cell
        if isinstance(cell, (np.generic, np.ndarray)):
            _unmasked(cell, expected)
            if cell.shape == () and castable(cell.dtype, field.dtype):
                return int(cell)
            raise Misfit(told(cell), expected, f"Convert it: numpy.{field.dtype}(cell); or change the field's dtype.")
        if isinstance(cell, float) and cell.is_integer():
            cell = int(cell)
        if isinstance(cell, int) and not isinstance(cell, bool) and low <= cell <= high:
            return cell
        raise Misfit(told(cell), expected, "Change it, or the field's dtype.")

    return check


def _floating(field: Field, kind: pa.DataType | None) -> Check:  # noqa: ARG001 - as the others
    make = field.dtype.type
    expected = f"a number that {field.dtype} holds"

    def check(cell: Any) -> Any:
        if isinstance(cell, (np.generic, np.ndarray)):
            _unmasked(cell, expected)
            if cell.shape != () or not castable(cell.dtype, field.dtype):
                raise Misfit(told(cell), expected, f"Convert it: numpy.{field.dtype}(cell); or change the field's dtype.")
            if cell.dtype.kind == "f":
                return make(cell)
            cell = int(cell)
        if isinstance(cell, (int, float)) and not isinstance(cell, bool):
            with np.errstate(all="ignore"):
                try:
                    found = make(cell)
                except OverflowError:  # an integer beyond all floats
                    found = make(np.inf)
            # A float is rounded to the field's precision; an integer means what it says.
            if float(found) == cell or (isinstance(cell, float) and (np.isfinite(found) or not np.isfinite(cell))):
                return found
        raise Misfit(told(cell), expected, "Change it, or the field's dtype.")

    return check


def _complex(field: Field, kind: pa.DataType | None) -> Check:  # noqa: ARG001 - as the others
    def check(cell: Any) -> Any:
        if isinstance(cell, complex) and not isinstance(cell, np.generic):
            return field.dtype.type(cell)
        _unmasked(cell, f"a number of {field.dtype}")
        if isinstance(cell, (np.generic, np.ndarray)) and cell.shape == () and castable(cell.dtype, field.dtype):
            found = field.dtype.type(cell)
            if cell.dtype.kind not in "iu" or int(found.real) == int(cell):
                return found
        raise Misfit(told(cell), f"a number of {field.dtype}", f"Convert it: numpy.{field.dtype}(cell).")

    return check


def _text(field: Field, kind: pa.DataType | None) -> Check:  # noqa: ARG001 - as the others
    most = field.dtype.itemsize // 4

    def check(cell: Any) -> str:
        cell = _single(cell)
        if not isinstance(cell, str):
            advice = "Decode it: cell.decode()." if isinstance(cell, bytes) else "Make it text: str(cell)."
            raise Misfit(told(cell), "a str", advice)
        if not cell.isascii():
            try:
                cell.encode()
            except UnicodeEncodeError as error:
                raise Misfit(f"text that is no Unicode: {error}", "a str that UTF-8 can hold", "Clean it.") from None
        if most and len(cell) > most:
            raise Misfit(f"{told(cell)} of {len(cell)} characters", f"a str of {most} at most", "Shorten it, or use dtype=str.")
        return _whole(field, cell, "\0")

    return check


def _bytes(field: Field, kind: pa.DataType | None) -> Check:  # noqa: ARG001 - as the others
    most = field.dtype.itemsize

    def check(cell: Any) -> bytes:
        cell = _single(cell)
        if not isinstance(cell, (bytes, bytearray, memoryview)):
            advice = "Encode it: cell.encode()." if isinstance(cell, str) else "Make it bytes."
            raise Misfit(told(cell), "bytes", advice)
        found = cell if isinstance(cell, bytes) else bytes(cell)
        if most and len(found) > most:
            raise Misfit(f"{len(found)} bytes", f"{most} at most", "Shorten them, or use dtype=bytes.")
        return _whole(field, found, b"\0")

    return check


def _whole(field: Field, cell: Text, zero: Text) -> Text:
    """Return text or bytes, unless its codec stores values of NumPy, for which zeros at the end are no part of them."""
    if isinstance(field.codec, (Npy, Npz, Raw)) and cell.endswith(zero):
        expected = f"one that does not end in {zero!r}, which NumPy would cut off"
        raise Misfit(told(cell), expected, "Use penstock.codecs.Scalar(), which keeps it.")
    return cell


def _decimal(field: Field, kind: pa.DataType | None) -> Check:
    if kind is None or not pa.types.is_decimal(kind):
        return lambda cell: cell  # an object of any kind, for the codec or for Arrow to judge

    def check(cell: Any) -> Decimal:
        if isinstance(cell, Decimal):
            return cell
        if isinstance(cell, int) and not isinstance(cell, bool):
            return Decimal(cell)
        if isinstance(cell, (float, np.number)):
            raise Misfit(told(cell), "a decimal.Decimal", "Make it one: Decimal(str(cell)).")
        expected = "a decimal.Decimal, as a field of objects without a codec holds"
        kind_ = "str" if isinstance(cell, str) else "bytes" if isinstance(cell, bytes) else "..."
        advice = (
            f"Say what its cells are: Field({field.name!r}, {kind_}); or give the field a codec of your own that stores them."
        )
        raise Misfit(told(cell), expected, advice)

    return check


def _moment(field: Field, kind: pa.DataType | None) -> Check:
    zoned = kind is not None and pa.types.is_timestamp(kind) and kind.tz is not None
    days = np.datetime_data(field.dtype)[0] == "D" or (kind is not None and pa.types.is_date(kind))
    units = _units(field, kind)
    expected = f"a {'date' if days else 'datetime'} or numpy.datetime64 that {field.dtype} holds"

    def check(cell: Any) -> Any:
        found = cell = _single(cell)
        if isinstance(cell, dt.datetime) and not days:
            if cell.tzinfo is not None and not zoned:
                advice = (
                    "Give the field a zone: codec=Scalar('timestamp[us, tz=UTC]'); or make it naive: "
                    "cell.astimezone(datetime.UTC).replace(tzinfo=None)."
                )
                raise Misfit(f"{told(cell)} with a time zone", "one without", advice)
            found = cell.astimezone(dt.UTC).replace(tzinfo=None) if cell.tzinfo is not None else cell
            found = found.to_datetime64() if hasattr(found, "to_datetime64") else np.datetime64(found)
        elif isinstance(cell, dt.date) and not isinstance(cell, dt.datetime) and days:
            found = np.datetime64(cell)
        if isinstance(found, np.datetime64):
            exact = _exact(cell, found, units, expected)
            if exact is not None and not holds(kind, exact):
                remedy = "Give a nearer one, or change the field's dtype."
                raise Misfit(f"{told(cell)}, which is further than {kind} in a file holds", expected, remedy)
            return exact
        raise Misfit(told(cell), expected, "Make it one.")

    return check


def holds(kind: pa.DataType | None, moments: Any) -> bool:
    """Return whether files hold moments of a type: they have fewer days than NumPy, and seconds as milliseconds.

    Example:
        >>> holds(pa.date32(), np.array([2**31 - 1], "M8[D]")), holds(pa.date32(), np.array([2**31], "M8[D]"))
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


def _duration(field: Field, kind: pa.DataType | None) -> Check:
    clock = kind is not None and pa.types.is_time(kind)
    units = _units(field, kind)
    expected = f"a {'time' if clock else 'timedelta'} or numpy.timedelta64 that {field.dtype} holds"

    def check(cell: Any) -> Any:
        found = cell = _single(cell)
        if clock and isinstance(cell, dt.time) and cell.tzinfo is None:
            found = np.timedelta64(dt.datetime.combine(dt.date.min, cell) - dt.datetime.min)  # noqa: DTZ901 - a time of any day
        elif isinstance(cell, dt.timedelta):
            if abs(cell // dt.timedelta(microseconds=1)) >= 2**63:  # which NumPy would take for another
                raise Misfit(f"{told(cell)}, which is further than {field.dtype} holds", expected, "Give a shorter one.")
            found = cell.to_timedelta64() if hasattr(cell, "to_timedelta64") else np.timedelta64(cell)
        if isinstance(found, np.timedelta64):
            return _exact(cell, found, units, expected)
        raise Misfit(told(cell), expected, "Make it one.")

    return check


def _units(field: Field, kind: pa.DataType | None) -> list[np.dtype[Any]]:
    """Return the dtypes that a moment or a duration must survive: that it is stored in, and that of the field."""
    return [field.dtype] if kind is None else [numpy_type(kind)[0], field.dtype]


def _exact(cell: Any, found: Any, units: list[np.dtype[Any]], expected: str) -> Any:
    """Return a moment or a duration in the last of some units; None for NaT."""
    if np.isnat(found):
        return None
    for unit in units:
        try:
            here = found.astype(unit)
        except OverflowError:  # of units far apart
            here = found.dtype.type("NaT")
        if np.isnat(here) or here.astype(found.dtype) != found:
            what = "dtype" if unit == units[-1] else "codec"
            remedy = f"Round it, or change the field's {what}."
            raise Misfit(f"{told(cell)}, which is finer or further than {unit} holds", expected, remedy)
    return here


_SCALARS: dict[str, Callable[[Field, pa.DataType | None], Check]] = {
    "b": _boolean,
    "i": _integer,
    "u": _integer,
    "f": _floating,
    "c": _complex,
    "U": _text,
    "S": _bytes,
    "O": _decimal,
    "M": _moment,
    "m": _duration,
}
