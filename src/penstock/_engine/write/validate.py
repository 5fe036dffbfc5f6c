"""Checks of cells: each returns the value that the field's codec gets, or raises what is wrong with it.

The second half checks lists, structs and maps: Arrow drops or rounds values inside them without an error.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import partial
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._arrow_types import around
from penstock.codecs.npy import Npy
from penstock.codecs.npz import Npz
from penstock.codecs.raw import Raw
from penstock.codecs.scalar import Scalar
from penstock.dtypes import TENSOR, extension_name, is_compound, is_encoded, is_ragged, numpy_type, python_values
from penstock.schema import CellCodec, Field
from penstock.schema.compat import family

Check: TypeAlias = Callable[[Any], Any]
"""Takes a value that is not None and returns the value to store; None for a null of another kind, like NaT."""

Text = TypeVar("Text", str, bytes)

MAX_CHARACTERS = 60
"""The longest value in a message."""

SAFE_KINDS = {"b": "b", "i": "iu", "u": "iu", "f": "iuf", "c": "iufc", "M": "M", "m": "m"}
"""For each kind of dtype, the kinds that may be cast to it. NumPy casts booleans to numbers too, which changes the meaning."""

NUMBERS = frozenset({"integer", "float", "decimal"})
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
    """Return the check of a field's cells; `kind` is the stored type, or None if a codec makes bytes of the cells."""
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
