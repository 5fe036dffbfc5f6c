"""Decode Arrow columns to NumPy arrays, as `docs/types.md` describes.

The decoder descends a column's type, through extensions and lists to the values. On the way back up it cuts, pads or reshapes
the lists. `_CellRules` resolves the policies once, before that. An error in nested values has the position of an item; each
list translates it to the position of the list, so the final error names the row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock import dtypes
from penstock._engine.decode.lists import decode_number_lists, list_views, pad_lists, pad_width, too_long_problem
from penstock._engine.query.query import ColumnDecoding
from penstock._engine.runtime.memory import BufferPool
from penstock.codecs.scalar import Scalar
from penstock.dtypes import Marks, Values
from penstock.errors import DataError
from penstock.policies import (
    DEFAULT_NULLS,
    DEFAULT_RAGGED,
    AsObjects,
    DefaultNulls,
    Fill,
    Mask,
    Nulls,
    Offsets,
    Pad,
    Ragged,
    RaiseIfRagged,
    RaiseOnNull,
    fitted,
    zero,
)
from penstock.schema import Field

PERMUTATION = re.compile(r"extension<arrow\.variable_shape_tensor\[value_type=.*?, ndim=\d+, permutation=\[([\d,]+)\]")


class CellError(DataError):
    """A cell that cannot be decoded.

    Attributes:
        column: The name of the column.
        problem: What is wrong, what was expected and what to do, without the place.
        row: The row in the decoded array; None if the error is not about one row.
    """

    def __init__(self, column: str, problem: str, row: int | None = None) -> None:
        """Store the problem and its place."""
        super().__init__(column, problem, row)
        self.column, self.problem, self.row = column, problem, row

    def __str__(self) -> str:
        """Return the message with column and row."""
        return f"Column {self.column!r}{'' if self.row is None else f', row {self.row}'}: {self.problem}"


TEXT_IDS = frozenset(kind.id for kind in (pa.string(), pa.large_string(), pa.string_view()))
"""Arrow's type ids of text."""

CHECKED_IDS = frozenset(
    kind.id
    for kind in (
        *(getattr(pa, name, pa.decimal128)(1) for name in ("decimal32", "decimal64", "decimal128", "decimal256")),
        pa.time32("s"),
        pa.time64("us"),
    )
)
"""Arrow's ids of the types in which some bit patterns are not valid: decimals and times of day."""

ASCII_BLOCK_BYTES = 1 << 20
"""Bytes of text that one step of the ASCII check reads."""

DICTIONARY_IDS = frozenset([pa.dictionary(pa.int8(), pa.string()).id])

STRING_TYPES = frozenset((pa.string(), pa.large_string(), pa.binary(), pa.large_binary()))
"""Types that pyarrow converts to Python objects in one call, if there are no nulls. Small batches of them are common."""


def decode(
    array: pa.Array | pa.ChunkedArray, column: ColumnDecoding, buffer_pool: BufferPool | None = None
) -> dict[str, Values]:
    """Return a column as arrays, rows first; arrays that share Arrow's memory are read-only.

    The result also has `<name>_valid` under `Mask`, and for lists `<name>_length` under `Pad` and `<name>_offsets` under
    `Offsets`. The memory of padded lists comes from `buffer_pool`.

    Example:
        >>> decode(pa.array([1.5, None]), ColumnDecoding(name="x", nulls=Mask()))
        {'x': array([1.5, 0. ]), 'x_valid': array([ True, False])}
    """
    default_nulls = isinstance(column.nulls, DefaultNulls)
    if default_nulls and isinstance(array, pa.Array) and array.type in STRING_TYPES and not array.null_count:
        with suppress(pa.ArrowException):  # not UTF-8: the general path finds the row
            return {column.name: array.to_numpy(zero_copy_only=False)}
    decoded = _decode_plain_lists(array, column, buffer_pool) or _decode_general(array, column, buffer_pool)
    decoded[""] = decoded[""].astype(output_dtype(decoded[""].dtype, column.field), copy=False)
    return {column.name + suffix: values for suffix, values in decoded.items()}


def _decode_plain_lists(
    array: pa.Array | pa.ChunkedArray, column: ColumnDecoding, buffer_pool: BufferPool | None
) -> dict[str, Values] | None:
    """Return lists of numbers without nulls as arrays by the suffix of their name; None for all other columns."""
    if not isinstance(array, pa.Array) or not dtypes.is_ragged(array.type) or isinstance(column.nulls, Mask):
        return None
    if isinstance(column.nulls, Fill):
        fitted(column.nulls, array.type, column.name)  # raises if the value does not fit, even if there are no nulls
    ragged = column.ragged
    padding = fitted(ragged, array.type, column.name) if isinstance(ragged, Pad) else None
    return decode_number_lists(array, ragged, padding, buffer_pool)


def _decode_general(
    array: pa.Array | pa.ChunkedArray, column: ColumnDecoding, buffer_pool: BufferPool | None
) -> dict[str, Values]:
    """Return a column of any type as arrays by the suffix of their name."""
    rules = replace(_CellRules.of(column, array.type), buffer_pool=buffer_pool)
    chunks = array.chunks if isinstance(array, pa.ChunkedArray) else [array]
    try:
        cells = _decode_chunks(chunks or [pa.nulls(0, array.type)], rules)
    except _PositionError as error:
        raise CellError(column.name, error.describe(*error.positions), *error.positions[:1]) from error.__cause__
    except DataError as error:
        raise CellError(column.name, str(error)) from None
    arrays = {"": cells.values, "_length": cells.length, "_offsets": cells.offsets, "_valid": cells.valid}
    return {suffix: values for suffix, values in arrays.items() if values is not None}


def output_dtype(dtype: np.dtype[Any], field: Field | None) -> np.dtype[Any]:
    """Return the dtype of single values in a batch: their field's, if the file stores them as a related type."""
    if field is None or dtype == field.dtype or not isinstance(field.codec, Scalar):
        return dtype
    return field.dtype if dtype.kind == field.dtype.kind in "mM" or {dtype.kind, field.dtype.kind} <= {"i", "u"} else dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class _CellRules:
    """The column's policies, resolved for the values at one level of its type.

    Attributes:
        refuses: Whether a null among the values is an error.
        null_value: The replacement of a null, if it is not an error.
        padding: The value that fills padded lists.
        inner: Whether the values are items of lists.
    """

    name: str
    nulls: Nulls
    ragged: Ragged
    refuses: bool
    null_value: Any
    padding: Any
    inner: bool = False
    buffer_pool: BufferPool | None = None

    @classmethod
    def of(cls, column: ColumnDecoding, kind: pa.DataType) -> _CellRules:
        """Return the rules for a column of an Arrow type."""
        nulls, ragged, (dtype, shape) = column.nulls, column.ragged, dtypes.numpy_type(kind)
        numbers = "biumM" if column.as_numbers else "biu"
        refuses = isinstance(nulls, RaiseOnNull) or (isinstance(nulls, DefaultNulls) and dtype.kind in numbers)
        null_value = fitted(nulls, kind, column.name) if isinstance(nulls, Fill) else zero(dtype)
        if isinstance(nulls, DefaultNulls) and dtype.kind == "f":
            null_value = np.nan
        padding = fitted(ragged, kind, column.name) if isinstance(ragged, Pad) and None in shape else None
        return cls(name=column.name, nulls=nulls, ragged=ragged, refuses=refuses, null_value=null_value, padding=padding)

    def null_error(self, valid: npt.NDArray[np.bool_], reason: str) -> _PositionError:
        """Return the error for the first null."""
        if isinstance(self.nulls, RaiseOnNull):
            reason = f"{self.nulls} refuses nulls"
        problem = null_problem(self.name, reason, inner=self.inner)
        return _PositionError(lambda _: problem, int(valid.argmin()))


def null_problem(name: str, reason: str, *, inner: bool = False) -> str:
    """Return the message for a null in a column, or inside one of its lists."""
    what = "an item is" if inner else "the value is"
    remedy = f"Say what a null becomes: .nulls(penstock.Fill(value), {name!r}), or penstock.Mask()"
    if not inner:
        remedy += f", or keep the rows that have a value: .where(penstock.col({name!r}).is_not_null())"
    return f"{what} null, and {reason}. {remedy}."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decoded:
    """Decoded values, their validity under `Mask`, and the lengths or offsets of lists."""

    values: Values
    valid: Values | None = None
    length: Values | None = None
    offsets: Values | None = None

    def map_arrays(self, change: Callable[[Values], Values]) -> _Decoded:
        """Return the result with each array changed; flat values with offsets stay as they are."""
        if self.offsets is not None:
            return self
        valid, length = (None if values is None else change(values) for values in (self.valid, self.length))
        return _Decoded(values=change(self.values), valid=valid, length=length)


class _PositionError(Exception):
    """An error at positions of the current array, the bad one first; `describe` returns the message for positions."""

    def __init__(self, describe: Callable[..., str], *positions: int) -> None:
        super().__init__()
        self.describe, self.positions = describe, positions


@contextmanager
def _translate_positions(outer: Callable[[int], int]) -> Iterator[None]:
    """Translate positions in list items to positions of the lists when an error passes."""
    try:
        yield
    except _PositionError as error:
        raise _PositionError(error.describe, *(int(outer(position)) for position in error.positions)) from None


def _decode_chunks(chunks: list[pa.Array], rules: _CellRules) -> _Decoded:
    """Return the values of several arrays of one type."""
    dense = None in dtypes.numpy_type(chunks[0].type)[1] and not isinstance(rules.ragged, AsObjects)
    if len(chunks) > 1 and dense:  # one common width needs all lengths
        try:
            chunks = [pa.concat_arrays(chunks)]
        except pa.ArrowInvalid as error:
            problem = f"its {len(chunks)} parts exceed the 2**31 items of one Arrow array. Read fewer rows at a time."
            raise _PositionError(lambda: problem) from error
    first, parts = 0, []
    for chunk in chunks:
        with _translate_positions(first.__add__):
            parts.append(_decode_array(chunk, rules, None))
        first += len(chunk)
    if len(parts) == 1:
        return parts[0]
    valid = None if parts[0].valid is None else np.concatenate([part.valid for part in parts])
    return _Decoded(values=np.concatenate([part.values for part in parts]), valid=valid)


def _decode_array(array: pa.Array, rules: _CellRules, present: Marks) -> _Decoded:
    """Return the values of an array; `present` is False for items of null lists."""
    kind, extension = array.type, dtypes.extension_name(array.type)
    if pa.types.is_fixed_size_list(kind) or dtypes.is_ragged(kind):
        return (_decode_lists if dtypes.is_ragged(kind) else _decode_fixed_lists)(array, rules, present)
    if dtypes.is_encoded(kind) and dtypes.is_compound(kind.value_type):
        return _decode_array(dtypes.plain(array), rules, present)
    if extension == dtypes.TENSOR:
        order = [0, *(axis + 1 for axis in kind.permutation or range(len(kind.shape)))]
        stored = _decode_array(array.storage, rules, present)
        return stored.map_arrays(lambda values: values.reshape(len(array), *kind.shape).transpose(order))
    if extension not in {None, dtypes.BOOL8, dtypes.UUID, dtypes.VARIABLE_TENSOR}:
        return _decode_array(array.storage, rules, present)
    values, valid = _decode_variable_tensors(array, rules) if extension == dtypes.VARIABLE_TENSOR else _decode_values(array)
    valid = dtypes.both(valid, present)
    if valid is not None and not valid.all():
        if rules.refuses:
            numbers = values.dtype if values.dtype.kind not in "mM" else "a whole number, which a time becomes here,"
            raise rules.null_error(valid, f"{numbers} has no value for a null")
        values = values if values.flags.writeable else values.copy()
        values[~valid] = rules.null_value
    if not isinstance(rules.nulls, Mask):
        return _Decoded(values=values)
    return _Decoded(values=values, valid=np.ones(len(array), np.bool_) if valid is None else valid)


def check_values(column: pa.ChunkedArray, name: str) -> None:
    r"""Raise an error for values that are not valid for their Arrow type. Parquet readers do not check this.

    Damaged files have such values, and some writers: text that is not UTF-8, decimals with more digits than their type has,
    times of day beyond midnight.

    Example:
        >>> check_values(pa.chunked_array([pa.array([b"a", b"\xff"]).view(pa.string())]), "x")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        penstock._engine.decode.arrow.CellError: Column 'x', row 1: its text is not UTF-8: ...
    """
    first = 0
    for chunk in column.chunks:
        if not _is_valid(chunk):
            row = _first_invalid_row(chunk)
            raise CellError(name, _describe_invalid(chunk, row), None if row is None else first + row)
        first += len(chunk)


def _is_valid(array: pa.Array) -> bool:
    """Return whether all values of an array are valid for its type."""
    kind = array.type
    if not _contains_type(kind, TEXT_IDS | CHECKED_IDS | DICTIONARY_IDS):
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return _is_valid(array.storage)
    if pa.types.is_struct(kind):
        return all(_is_valid(array.field(number)) for number in range(kind.num_fields))
    if pa.types.is_map(kind):
        return _is_valid(dtypes.items(array)[0])
    if pa.types.is_fixed_size_list(kind) or dtypes.is_ragged(kind):
        return _is_valid(array.flatten())
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return (text and _is_ascii(array)) or _validation_error(array) is None


def _is_ascii(array: pa.Array) -> bool:
    """Return whether all text is ASCII. This check is many times faster than a UTF-8 check."""
    _, offsets, data = array.buffers()
    if not len(array) or data is None:
        return True
    width = np.dtype(np.int64 if pa.types.is_large_string(array.type) else np.int32)
    first, last = np.frombuffer(offsets, width, len(array) + 1, array.offset * width.itemsize)[[0, -1]].tolist()
    data = np.frombuffer(data, np.int8, last - first, first)
    return all(data[at : at + ASCII_BLOCK_BYTES].min(initial=0) >= 0 for at in range(0, len(data), ASCII_BLOCK_BYTES))


def _validation_error(array: pa.Array) -> pa.ArrowInvalid | None:
    """Return Arrow's error for an array whose values are not valid, else None."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        return error
    return None


def _first_invalid_row(array: pa.Array) -> int | None:
    """Return the first row whose value is not valid; None if the fault is not in a row."""
    if _validation_error(array.take(pa.array([], pa.int64()))) is not None:  # the dictionary, which all rows share
        return None
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        # `take` copies what it selects: a slice of lists would still have the items of all lists.
        valid = _validation_error(array.take(pa.array(np.arange(low, middle)))) is None
        low, high = (middle, high) if valid else (low, middle)
    return low


def _describe_invalid(array: pa.Array, row: int | None) -> str:
    """Return the message for a row of an array, or for all of it."""
    selected = array if row is None else array.take(pa.array([row]))
    try:
        selected.to_pylist()
    except UnicodeDecodeError as error:
        return (
            f"its text is not UTF-8: {error}. Write it again as UTF-8 or as binary. To read the bytes as they are, open "
            "Parquet files with a schema that has pyarrow.binary() there: format=ParquetFormat(columns=schema)."
        )
    except (ValueError, OverflowError):  # Python has no such value; Arrow's message names it
        pass
    why = str(_validation_error(selected)).rpartition("Invalid: ")[2].rstrip(".")
    return f"its value is not valid: {why}. Restore the file, or write it again."


def _contains_type(kind: pa.DataType, ids: frozenset[int]) -> bool:
    """Return whether a type is, or contains, a type of some ids."""
    if kind.id in ids:
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return _contains_type(kind.storage_type, ids)
    if dtypes.is_encoded(kind):
        return _contains_type(kind.value_type, ids)
    return any(_contains_type(kind.field(number).type, ids) for number in range(kind.num_fields))


def _decode_values(array: pa.Array) -> tuple[Values, Marks]:
    """Return the values of an array, and their validity."""
    try:
        # The conversion to Python objects checks the other types.
        if not _contains_type(array.type, CHECKED_IDS) or _validation_error(array) is None:
            return dtypes.values(array)
    except UnicodeDecodeError:
        pass
    if dtypes.is_encoded(array.type):  # dictionary values do not say which row is bad
        return _decode_values(dtypes.plain(array))
    row = _first_invalid_row(array)
    problem = _describe_invalid(array, row)
    raise _PositionError(lambda *_: problem, *([] if row is None else [row]))


def _decode_fixed_lists(array: pa.Array, rules: _CellRules, present: Marks) -> _Decoded:
    """Return lists of a fixed size as arrays with one more dimension."""
    rows, size = len(array), array.type.list_size
    valid = dtypes.both(dtypes.valid(array), present)
    if valid is not None and isinstance(rules.nulls, DefaultNulls | RaiseOnNull):
        raise rules.null_error(valid, f"{array.type} has no value for a null")
    with _translate_positions(lambda item: item // size):
        inside = None if valid is None else np.repeat(valid, size)
        items = _decode_array(array.values.slice(array.offset * size, rows * size), replace(rules, inner=True), inside)
    return items.map_arrays(lambda values: values.reshape(rows, size, *values.shape[1:]))


def _decode_lists(array: pa.Array, rules: _CellRules, present: Marks) -> _Decoded:
    """Return lists of any length as the column's policy says."""
    flat, length, valid = dtypes.items(array, present)
    objects, default_nulls = isinstance(rules.ragged, AsObjects), isinstance(rules.nulls, DefaultNulls)
    if valid is not None and not isinstance(rules.nulls, Fill | Mask) and not (default_nulls and objects):
        raise rules.null_error(valid, f"{rules.ragged} cannot hold a null list")
    width = _width(length, valid, rules)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(length)])
    inner: Ragged = DEFAULT_RAGGED if isinstance(rules.ragged, Offsets) else rules.ragged
    if isinstance(inner, Pad):
        inner = replace(inner, length=None, truncate=False)
    with _translate_positions(lambda item: int(np.searchsorted(offsets, item, "right")) - 1):
        items = _decode_array(flat, replace(rules, inner=True, ragged=inner), None)
    if isinstance(rules.ragged, Offsets):
        return _Decoded(values=items.values, valid=items.valid, offsets=offsets)
    if objects:
        missing = None if valid is None or isinstance(rules.nulls, Fill) else ~valid
        return items.map_arrays(lambda values: list_views(values, offsets, missing))
    padding = rules.padding if isinstance(rules.ragged, Pad) else rules.null_value
    values = pad_lists(items.values, length, width, padding, rules.buffer_pool)
    marks = None if items.valid is None else pad_lists(items.valid, length, width, padding=False, buffer_pool=rules.buffer_pool)
    return _Decoded(values=values, valid=marks, length=length if isinstance(rules.ragged, Pad) else None)


def _width(length: Values, valid: Marks, rules: _CellRules) -> int:
    """Return the common width of all lists; under `AsObjects` and `Offsets` it has no meaning."""
    what, other = ("a list in it has", "one of") if rules.inner else ("the list has", "that of")
    if isinstance(rules.ragged, Pad):
        width, too_long = pad_width(length, rules.ragged)
        if too_long is not None:
            problem = f"{what} {too_long_problem(length[too_long], rules.ragged)}"
            raise _PositionError(lambda _: problem, too_long)
        return width
    present = np.arange(len(length)) if valid is None else np.flatnonzero(valid)
    width = int(length[present[0]]) if len(present) else 0
    differing = present[length[present] != width]
    if len(differing) and isinstance(rules.ragged, RaiseIfRagged):
        actual = f"{what} {length[differing[0]]} values"
        expected = f"{width}. {rules.ragged} needs one length. Use Pad(), Offsets() or AsObjects()."
        raise _PositionError(
            lambda _, row: f"{actual}, and {other} row {row} has {expected}", int(differing[0]), int(present[0])
        )
    return width


def _decode_variable_tensors(array: pa.Array, rules: _CellRules) -> tuple[Values, Marks]:
    """Return tensors that differ in shape as an object array."""
    data, sizes = array.storage.field(0), array.storage.field(1)
    valid = dtypes.both(dtypes.valid(array), dtypes.both(dtypes.valid(data), dtypes.valid(sizes)))
    nulls = rules.nulls if isinstance(rules.nulls, RaiseOnNull) and valid is None else DEFAULT_NULLS
    lists = _decode_array(
        data, replace(_CellRules.of(ColumnDecoding(name=rules.name, nulls=nulls), data.type), inner=True), valid
    ).values
    permuted = PERMUTATION.match(str(array.type))  # pyarrow has no attribute for it
    axes = None if permuted is None else [int(axis) for axis in permuted[1].split(",")]
    tensors: Values = np.empty(len(array), object)
    for row, shape in enumerate(dtypes.python_values(sizes)):
        if valid is not None and not valid[row]:
            continue
        if prod(shape) != len(lists[row]):
            problem = (
                f"the tensor has {len(lists[row])} values, and its shape is {shape}. Both must agree. Write the table again."
            )
            raise _PositionError(lambda _, problem=problem: problem, row)
        cell = lists[row].reshape(shape)
        tensors[row] = cell if axes is None else cell.transpose(axes)
    return tensors, valid
