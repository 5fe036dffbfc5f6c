"""Arrow becomes NumPy, a column at a time, as `docs/types.md` promises.

One walk goes down a column's type, through extensions and lists to the values, and back up, where lists are cut, padded or
reshaped. What a null becomes is worked out once, before the walk, in `_Way`. A refusal far down knows the place of an item;
each list on its way up turns that into the place of the list, so that what leaves names the row.
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
from penstock._engine.decode.lists import cut, dense, plain_lists
from penstock._engine.query.values import Column
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

__all__ = ["CellError", "check_values", "decode", "told_dtype"]

PERMUTED = re.compile(r"extension<arrow\.variable_shape_tensor\[value_type=.*?, ndim=\d+, permutation=\[([\d,]+)\]")


class CellError(DataError):
    """A cell cannot be decoded as asked.

    Attributes:
        column: The name of the column.
        problem: What is wrong, what was expected and what to do, but not where.
        row: The row it is about, counted in the array that was decoded; None where it is about all of them.
    """

    def __init__(self, column: str, problem: str, row: int | None = None) -> None:
        """Store what is wrong, and where."""
        super().__init__(column, problem, row)
        self.column, self.problem, self.row = column, problem, row

    def __str__(self) -> str:
        """Return the whole sentence."""
        return f"Column {self.column!r}{'' if self.row is None else f', row {self.row}'}: {self.problem}"


TEXT_IDS = frozenset(kind.id for kind in (pa.string(), pa.large_string(), pa.string_view()))
"""Numbers that Arrow gives to types of text."""

BOUNDED_IDS = frozenset(
    kind.id
    for kind in (
        getattr(pa, "decimal32", pa.decimal128)(1),
        getattr(pa, "decimal64", pa.decimal128)(1),
        pa.decimal128(1),
        pa.decimal256(1),
        pa.time32("s"),
        pa.time64("us"),
    )
)
"""Numbers of types that do not have all values that their bits could hold: decimals, and times of day."""

AT_ONCE = 1 << 20
"""Bytes of text that are looked at before the next."""

DICTIONARY_ID = frozenset([pa.dictionary(pa.int8(), pa.string()).id])
"""The number of dictionaries, whose indices count their values."""

TEXTS = frozenset((pa.string(), pa.large_string(), pa.binary(), pa.large_binary()))
"""Types whose values without nulls are Python's own in one step; small batches of them are common."""


def decode(array: pa.Array | pa.ChunkedArray, column: Column, buffer_pool: BufferPool | None = None) -> dict[str, Values]:
    """Return a column as arrays, rows first; read-only where they still are Arrow's memory.

    Beside the column itself there is `<name>_valid` under `Mask`, and of lists `<name>_length` under `Pad` and
    `<name>_offsets` under `Offsets`. Lists that are filled up take their memory from `buffer_pool`.

    Raises:
        CellError: If there is a null or a list that the column's policies have no place for.
        ArgumentError: If the value of a policy does not fit the column.

    Example:
        >>> decode(pa.array([1.5, None]), Column(name="x", nulls=Mask()))
        {'x': array([1.5, 0. ]), 'x_valid': array([ True, False])}
    """
    if isinstance(column.nulls, DefaultNulls) and isinstance(array, pa.Array) and array.type in TEXTS and not array.null_count:
        with suppress(pa.ArrowException):  # bytes that are no text, which is told below
            return {column.name: array.to_numpy(zero_copy_only=False)}
    found = _short_way(array, column, buffer_pool) or _walked(array, column, buffer_pool)
    found[""] = found[""].astype(told_dtype(found[""].dtype, column.field), copy=False)
    return {column.name + suffix: values for suffix, values in found.items()}


def _short_way(array: pa.Array | pa.ChunkedArray, column: Column, buffer_pool: BufferPool | None) -> dict[str, Values] | None:
    """Return what most lists become, by the suffix of what they are called; None for all else.

    Raises:
        ArgumentError: If the value of a policy does not fit the column.
    """
    if not isinstance(array, pa.Array) or not dtypes.is_ragged(array.type) or isinstance(column.nulls, Mask):
        return None
    if isinstance(column.nulls, Fill):
        fitted(column.nulls, array.type, column.name)  # which refuses what does not fit, also where no null is
    ragged = column.ragged
    padding = fitted(ragged, array.type, column.name) if isinstance(ragged, Pad) else None
    return plain_lists(array, ragged, padding, buffer_pool)


def _walked(array: pa.Array | pa.ChunkedArray, column: Column, buffer_pool: BufferPool | None) -> dict[str, Values]:
    """Return what a column becomes, by the suffix of what it is called.

    Raises:
        CellError: If there is a null or a list that the column's policies have no place for.
        ArgumentError: If the value of a policy does not fit the column.
    """
    way = replace(_Way.of(column, array.type), buffer_pool=buffer_pool)
    chunks = array.chunks if isinstance(array, pa.ChunkedArray) else [array]
    try:
        cells = _joined(chunks or [pa.nulls(0, array.type)], way)
    except _Refused as refused:
        raise CellError(column.name, refused.tell(*refused.places), *refused.places[:1]) from refused.__cause__
    except DataError as error:
        raise CellError(column.name, str(error)) from None
    found = {"": cells.values, "_length": cells.length, "_offsets": cells.offsets, "_valid": cells.valid}
    return {suffix: values for suffix, values in found.items() if values is not None}


def told_dtype(dtype: np.dtype[Any], field: Field | None) -> np.dtype[Any]:
    """Return the dtype that single values are handed out with: that of their field, which may be stored as another."""
    if field is None or dtype == field.dtype or not isinstance(field.codec, Scalar):
        return dtype
    return field.dtype if dtype.kind == field.dtype.kind in "mM" or {dtype.kind, field.dtype.kind} <= {"i", "u"} else dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """What becomes of nulls and lists, worked out for the values of one column.

    Attributes:
        name: The column's name.
        nulls: What was asked for nulls.
        ragged: What becomes of lists here.
        refuses: Whether a null among the values is an error.
        stand_in: What it becomes otherwise.
        padding: What lists are filled up with.
        inner: Whether these are items of lists.
        buffer_pool: Where memory comes from.
    """

    name: str
    nulls: Nulls
    ragged: Ragged
    refuses: bool
    stand_in: Any
    padding: Any
    inner: bool = False
    buffer_pool: BufferPool | None = None

    @classmethod
    def of(cls, column: Column, kind: pa.DataType) -> _Way:
        """Return what becomes of a column of an Arrow type."""
        nulls, ragged, (dtype, shape) = column.nulls, column.ragged, dtypes.numpy_type(kind)
        numbers = "biumM" if column.as_numbers else "biu"
        refuses = isinstance(nulls, RaiseOnNull) or (isinstance(nulls, DefaultNulls) and dtype.kind in numbers)
        stand_in = fitted(nulls, kind, column.name) if isinstance(nulls, Fill) else zero(dtype)
        if isinstance(nulls, DefaultNulls) and dtype.kind == "f":
            stand_in = np.nan
        padding = fitted(ragged, kind, column.name) if isinstance(ragged, Pad) and None in shape else None
        return cls(name=column.name, nulls=nulls, ragged=ragged, refuses=refuses, stand_in=stand_in, padding=padding)

    def null(self, valid: npt.NDArray[np.bool_], reason: str) -> _Refused:
        """Return the refusal of the first null."""
        what = "an item is" if self.inner else "the value is"
        if isinstance(self.nulls, RaiseOnNull):
            reason = f"{self.nulls} refuses nulls"
        remedy = f"Say what a null becomes: .nulls(penstock.Fill(value), {self.name!r}), or penstock.Mask()"
        if not self.inner:
            remedy += f", or keep the rows that have a value: .where(penstock.col({self.name!r}).is_not_null())"
        return _Refused(lambda _: f"{what} null, and {reason}. {remedy}.", int(valid.argmin()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cells:
    """Decoded cells: their values, where they are valid under `Mask`, and what tells lists apart."""

    values: Values
    valid: Values | None = None
    length: Values | None = None
    offsets: Values | None = None

    def each(self, change: Callable[[Values], Values]) -> _Cells:
        """Return these cells with all arrays changed alike; flat values, which offsets tell apart, stay as they are."""
        if self.offsets is not None:
            return self
        valid, length = (None if found is None else change(found) for found in (self.valid, self.length))
        return _Cells(values=change(self.values), valid=valid, length=length)


class _Refused(Exception):  # noqa: N818 - never leaves this room
    """Something has no place in the result: how to tell it, and the places that it is about, the row to blame first."""

    def __init__(self, tell: Callable[..., str], *places: int) -> None:
        super().__init__()
        self.tell, self.places = tell, places


@contextmanager
def _placed(outer: Callable[[int], int]) -> Iterator[None]:
    """Turn the places of a refusal from inside into places outside."""
    try:
        yield
    except _Refused as refused:
        raise _Refused(refused.tell, *(int(outer(place)) for place in refused.places)) from None


def _joined(chunks: list[pa.Array], way: _Way) -> _Cells:
    """Return the cells of several arrays of one type."""
    dense = None in dtypes.numpy_type(chunks[0].type)[1] and not isinstance(way.ragged, AsObjects)
    if len(chunks) > 1 and dense:  # one array needs all lengths
        try:
            chunks = [pa.concat_arrays(chunks)]
        except pa.ArrowInvalid as error:
            problem = f"its {len(chunks)} parts do not fit one Arrow array, which counts to 2**31. Read fewer rows at a time."
            raise _Refused(lambda: problem) from error
    first, parts = 0, []
    for chunk in chunks:
        with _placed(first.__add__):
            parts.append(_cells(chunk, way, None))
        first += len(chunk)
    if len(parts) == 1:
        return parts[0]
    valid = None if parts[0].valid is None else np.concatenate([part.valid for part in parts])
    return _Cells(values=np.concatenate([part.values for part in parts]), valid=valid)


def _cells(array: pa.Array, way: _Way, present: Marks) -> _Cells:
    """Return the cells of an array; `present` is False for those that are null because what holds them is."""
    kind, extension = array.type, dtypes.extension_name(array.type)
    if pa.types.is_fixed_size_list(kind) or dtypes.is_ragged(kind):
        return (_lists if dtypes.is_ragged(kind) else _fixed_lists)(array, way, present)
    if dtypes.is_encoded(kind) and dtypes.is_compound(kind.value_type):
        return _cells(dtypes.plain(array), way, present)
    if extension == dtypes.TENSOR:
        order = [0, *(axis + 1 for axis in kind.permutation or range(len(kind.shape)))]
        stored = _cells(array.storage, way, present)
        return stored.each(lambda found: found.reshape(len(array), *kind.shape).transpose(order))
    if extension not in {None, dtypes.BOOL8, dtypes.UUID, dtypes.VARIABLE_TENSOR}:
        return _cells(array.storage, way, present)
    values, valid = _variable_tensors(array, way) if extension == dtypes.VARIABLE_TENSOR else _values(array)
    valid = dtypes.both(valid, present)
    if valid is not None and not valid.all():
        if way.refuses:
            numbers = values.dtype if values.dtype.kind not in "mM" else "a whole number, which a time becomes here,"
            raise way.null(valid, f"{numbers} has no value for a null")
        values = values if values.flags.writeable else values.copy()
        values[~valid] = way.stand_in
    if not isinstance(way.nulls, Mask):
        return _Cells(values=values)
    return _Cells(values=values, valid=np.ones(len(array), np.bool_) if valid is None else valid)


def check_values(column: pa.ChunkedArray, name: str) -> None:
    r"""Refuse values that their Arrow type does not have, which readers of Parquet do not look for.

    Such values come from damaged files, and from writers that call any bytes text: text that is not UTF-8, decimals with more
    digits than their type has, times of day beyond midnight.

    Args:
        column: The column, as it was read.
        name: Its name.

    Raises:
        CellError: If there is one; it names the first row, or none where a dictionary is wrong.

    Example:
        >>> check_values(pa.chunked_array([pa.array([b"a", b"\xff"]).view(pa.string())]), "x")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        penstock._engine.decode.arrow.CellError: Column 'x', row 1: its text is not UTF-8: ...
    """
    first = 0
    for chunk in column.chunks:
        if not _is_sound(chunk):
            row = _first_unsound(chunk)
            raise CellError(name, _unsound(chunk, row), None if row is None else first + row)
        first += len(chunk)


def _is_sound(array: pa.Array) -> bool:
    """Return whether an array has only values that its type has."""
    kind = array.type
    if not _holds(kind, TEXT_IDS | BOUNDED_IDS | DICTIONARY_ID):
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return _is_sound(array.storage)
    if pa.types.is_struct(kind):
        return all(_is_sound(array.field(number)) for number in range(kind.num_fields))
    if pa.types.is_map(kind):
        return _is_sound(dtypes.items(array)[0])
    if pa.types.is_fixed_size_list(kind) or dtypes.is_ragged(kind):
        return _is_sound(array.flatten())
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return (text and _is_ascii(array)) or _refusal(array) is None


def _is_ascii(array: pa.Array) -> bool:
    """Return whether text is ASCII only, which is found out in a fraction of the time that any UTF-8 takes."""
    _, offsets, data = array.buffers()
    if not len(array) or data is None:
        return True
    width = np.dtype(np.int64 if pa.types.is_large_string(array.type) else np.int32)
    first, last = np.frombuffer(offsets, width, len(array) + 1, array.offset * width.itemsize)[[0, -1]].tolist()
    found = np.frombuffer(data, np.int8, last - first, first)
    return all(found[at : at + AT_ONCE].min(initial=0) >= 0 for at in range(0, len(found), AT_ONCE))


def _refusal(array: pa.Array) -> pa.ArrowInvalid | None:
    """Return what Arrow has against the values of an array; None where they are as they should be."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        return error
    return None


def _first_unsound(array: pa.Array) -> int | None:
    """Return the first row with a value that its type does not have; None where it is not rows that are to blame."""
    if _refusal(array.take(pa.array([], pa.int64()))) is not None:  # a dictionary, which rows share
        return None
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        # What is taken has memory of its own: a slice of lists would have the items of all.
        sound = _refusal(array.take(pa.array(np.arange(low, middle)))) is None
        low, high = (middle, high) if sound else (low, middle)
    return low


def _unsound(array: pa.Array, row: int | None) -> str:
    """Return what is wrong with a row of an array, or with all of it, and what to do."""
    some = array if row is None else array.take(pa.array([row]))
    try:
        some.to_pylist()
    except UnicodeDecodeError as error:
        return (
            f"its text is not UTF-8: {error}. Write it again as UTF-8 or as binary. To read the bytes as they are, open "
            "Parquet files with a schema that has pyarrow.binary() there: format=ParquetFormat(columns=schema)."
        )
    except (ValueError, OverflowError):  # Python has no such value, and Arrow says why
        pass
    why = str(_refusal(some)).rpartition("Invalid: ")[2].rstrip(".")
    return f"its value is not valid: {why}. Restore the file, or write it again."


def _holds(kind: pa.DataType, ids: frozenset[int]) -> bool:
    """Return whether a type is one of some, or has one of them inside."""
    if kind.id in ids:
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return _holds(kind.storage_type, ids)
    if dtypes.is_encoded(kind):
        return _holds(kind.value_type, ids)
    return any(_holds(kind.field(number).type, ids) for number in range(kind.num_fields))


def _values(array: pa.Array) -> tuple[Values, Marks]:
    """Return the values of an array, and where they are no nulls."""
    try:
        # What is not checked here is so when it becomes Python's text.
        if not _holds(array.type, BOUNDED_IDS) or _refusal(array) is None:
            return dtypes.values(array)
    except UnicodeDecodeError:
        pass
    if dtypes.is_encoded(array.type):  # no row may stand for what is wrong
        return _values(dtypes.plain(array))
    row = _first_unsound(array)
    problem = _unsound(array, row)
    raise _Refused(lambda *_: problem, *([] if row is None else [row]))


def _fixed_lists(array: pa.Array, way: _Way, present: Marks) -> _Cells:
    """Return lists whose type fixes their length, as one dimension more."""
    rows, size = len(array), array.type.list_size
    valid = dtypes.both(dtypes.valid(array), present)
    if valid is not None and isinstance(way.nulls, DefaultNulls | RaiseOnNull):
        raise way.null(valid, f"{array.type} has no value for a null")
    with _placed(lambda item: item // size):
        inside = None if valid is None else np.repeat(valid, size)
        items = _cells(array.values.slice(array.offset * size, rows * size), replace(way, inner=True), inside)
    return items.each(lambda found: found.reshape(rows, size, *found.shape[1:]))


def _lists(array: pa.Array, way: _Way, present: Marks) -> _Cells:
    """Return lists of any length, as the column's policy says."""
    flat, length, valid = dtypes.items(array, present)
    room = isinstance(way.nulls, Fill | Mask) or (isinstance(way.nulls, DefaultNulls) and isinstance(way.ragged, AsObjects))
    if valid is not None and not room:
        raise way.null(valid, f"{way.ragged} has no place for a null list")
    width = _width(length, valid, way)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(length)])
    inner: Ragged = DEFAULT_RAGGED if isinstance(way.ragged, Offsets) else way.ragged
    if isinstance(inner, Pad):
        inner = replace(inner, length=None, truncate=False)
    with _placed(lambda item: int(np.searchsorted(offsets, item, "right")) - 1):
        items = _cells(flat, replace(way, inner=True, ragged=inner), None)
    if isinstance(way.ragged, Offsets):
        return _Cells(values=items.values, valid=items.valid, offsets=offsets)
    if isinstance(way.ragged, AsObjects):
        missing = None if valid is None or isinstance(way.nulls, Fill) else ~valid
        return items.each(lambda found: cut(found, offsets, missing))
    padding = way.padding if isinstance(way.ragged, Pad) else way.stand_in
    values = dense(items.values, length, width, padding, way.buffer_pool)
    marks = None if items.valid is None else dense(items.valid, length, width, padding=False, buffer_pool=way.buffer_pool)
    return _Cells(values=values, valid=marks, length=length if isinstance(way.ragged, Pad) else None)


def _width(length: Values, valid: Marks, way: _Way) -> int:
    """Return how long all lists are made, or must be, where that is asked for."""
    there = np.arange(len(length)) if valid is None else np.flatnonzero(valid)
    what, other = ("a list in it has", "one of") if way.inner else ("the list has", "that of")
    if isinstance(way.ragged, Pad):
        longest = int(length.max(initial=0))
        width = longest if way.ragged.length is None else int(way.ragged.length)
        if longest > width and not way.ragged.truncate:
            row = int((length > width).argmax())
            problem = f"{what} {length[row]} values, and {way.ragged} has room for {width}. "
            raise _Refused(lambda _: problem + "Give a larger length, or truncate=True to cut.", row)
        return width
    width = int(length[there[0]]) if len(there) else 0
    odd = there[length[there] != width]
    if len(odd) and isinstance(way.ragged, RaiseIfRagged):
        found = f"{what} {length[odd[0]]} values"
        wanted = f"{width}. {way.ragged} needs one length. Use Pad(), Offsets() or AsObjects()."
        raise _Refused(lambda _, row: f"{found}, and {other} row {row} has {wanted}", int(odd[0]), int(there[0]))
    return width


def _variable_tensors(array: pa.Array, way: _Way) -> tuple[Values, Marks]:
    """Return tensors that differ in shape as an object array."""
    data, sizes = array.storage.field(0), array.storage.field(1)
    valid = dtypes.both(dtypes.valid(array), dtypes.both(dtypes.valid(data), dtypes.valid(sizes)))
    nulls = way.nulls if isinstance(way.nulls, RaiseOnNull) and valid is None else DEFAULT_NULLS
    lists = _cells(data, replace(_Way.of(Column(name=way.name, nulls=nulls), data.type), inner=True), valid).values
    permuted = PERMUTED.match(str(array.type))  # pyarrow tells it nowhere else
    axes = None if permuted is None else [int(axis) for axis in permuted[1].split(",")]
    found: Values = np.empty(len(array), object)
    for row, shape in enumerate(dtypes.python_values(sizes)):
        if valid is not None and not valid[row]:
            continue
        if prod(shape) != len(lists[row]):
            text = f"the tensor has {len(lists[row])} values, and its shape is {shape}. Both must agree. Write the table anew."
            raise _Refused(lambda _, text=text: text, row)
        cell = lists[row].reshape(shape)
        found[row] = cell if axes is None else cell.transpose(axes)
    return found, valid
