"""Arrow columns that someone else made, fitted to how a field is stored: cast without loss, unpacked, or taken as encoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock._blobs import Blobs
from penstock._engine.decode.concat import one_array
from penstock._engine.write.validate import Misfit, told_type
from penstock._engine.write.validate_nested import LostError, in_c_order, inside, related
from penstock.codecs.tensor import Tensor
from penstock.dtypes import is_encoded, is_ragged, items, numpy_type, plain, valid
from penstock.errors import DataError
from penstock.schema import CellCodec, Codec, Field
from penstock.schema.compat import family, holds_bytes

__all__ = ["fitted", "sampled"]


def fitted(field: Field, codec: Codec | None, arrow: pa.Field, given: pa.Array | pa.ChunkedArray) -> Any:
    """Return the cells of an Arrow column: as they are stored, or as NumPy values that the codec has yet to encode.

    Columns of bytes are taken for cells that a `CellCodec` has encoded already, and the first is decoded to see.

    Raises:
        Misfit: If they do not fit.
    """
    array = _combined(given) if isinstance(given, pa.ChunkedArray) else given
    if isinstance(array, pa.ChunkedArray):  # too large for one
        raise Misfit(f"a column of {given.nbytes} bytes in one batch", "less than 2 GB", "Give smaller batches.")
    if not field.nullable and array.null_count:
        row = int(np.argmin(valid(array)))  # type: ignore[arg-type] # there is a null
        raise Misfit("a null", "a value", f"Give one, or allow nulls: Field({field.name!r}, ..., nullable=True).", row)
    _check_lengths(field, array)
    if array.type == arrow.type and not isinstance(codec, CellCodec):
        return array
    if _same_encoded(array.type, arrow.type):
        return _cast(array, arrow.type)
    if is_encoded(array.type):
        array = plain(array)
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), arrow.type)
    if isinstance(codec, CellCodec) and holds_bytes(array.type):
        sampled(field, codec, array)
        return _cast(array, arrow.type)
    if isinstance(codec, (CellCodec, Tensor)) and field.shape:
        return _unpacked(field, array)
    if codec is None or related(array.type, arrow.type):
        return _cast(array, arrow.type)
    told_codec = "" if not isinstance(codec, CellCodec) else f" that {codec!r} has encoded"
    raise Misfit(f"a column of {array.type}", f"{arrow.type}{told_codec}", "Convert the column, or change the field.")


def _check_lengths(field: Field, array: pa.Array) -> None:
    """Refuse text or bytes that are longer than their field says."""
    text = field.dtype.kind == "U"
    if field.dtype.kind not in "US" or field.shape or not field.dtype.itemsize:
        return
    array = plain(array) if is_encoded(array.type) else array
    if family(array.type) != ("text" if text else "bytes"):
        return
    most = field.dtype.itemsize // (4 if text else 1)
    lengths = (pc.utf8_length if text else pc.binary_length)(array).fill_null(0).to_numpy(zero_copy_only=False)
    if (long := np.flatnonzero(lengths > most)).size:
        got = f"{lengths[long[0]]} {'characters' if text else 'bytes'}"
        raise Misfit(got, f"{most} at most", f"Shorten them, or use dtype={'str' if text else 'bytes'}.", int(long[0]))


def _combined(given: pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return a column as one array; as it is if it is too large for one."""
    try:
        return given.combine_chunks()
    except pa.ArrowInvalid:  # dictionaries that are too large together for their indices
        return one_array(given)


def sampled(field: Field, codec: CellCodec, array: pa.Array) -> None:
    """Decode the first cell that is not null.

    Raises:
        Misfit: If that cannot be done.
    """
    present = valid(array)
    first = 0 if present is None else int(np.argmax(present))
    if not len(array) or (present is not None and not present[first]):
        return
    try:
        codec.decode_each(field, Blobs.of(array.slice(first, 1)))
    except DataError as error:
        advice = f"Bytes are taken for encoded cells: encode them so, or give arrays. It says: {error}"
        raise Misfit("bytes that it cannot decode", f"a cell that {codec!r} has encoded", advice, first) from error


def _same_encoded(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether both are dictionaries of the same values, maybe with other indices."""
    if not pa.types.is_dictionary(given) or not pa.types.is_dictionary(wanted) or given.ordered != wanted.ordered:
        return False
    if wanted.index_type.bit_width < given.index_type.bit_width:
        return False
    return given.value_type == wanted.value_type or related(given.value_type, wanted.value_type)


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values as another type, where all of them survive it."""
    if array.type == kind:
        return array
    try:
        return _lossless(array, kind)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        row = _first_bad(array, lambda part: _lossless(part, kind))
        got = (
            f"{_told_value(array[row])} of {told_type(array.type)}"
            if row < len(array)
            else f"a column of {told_type(array.type)}"
        )
        if isinstance(error, _Rounded):
            expected = f"values that {told_type(kind)} holds as they are"
            advice = f"Round the column yourself, with .astype({told_type(kind)!r}) or .cast(); or change the field's dtype."
            raise Misfit(f"{got}, which would be rounded to {error}", expected, advice, row) from None
        if isinstance(error, LostError):
            advice = "Convert the column, or change the schema."
            raise Misfit(f"{got}: {error}", f"values of {told_type(kind)}", advice, row) from None
        why = str(error).rstrip(".")
        advice = "Convert the column, or change the field."
        raise Misfit(f"{got}, and Arrow says: {why}", told_type(kind), advice, row) from None


def _told_value(value: pa.Scalar) -> str:
    try:
        return repr(value.as_py())
    except (ValueError, OverflowError):  # a time that Python does not have
        return str(value.cast(pa.int64()))


class _Rounded(ValueError):  # noqa: N818 - never leaves this room
    """A number would become another."""


def _lossless(array: pa.Array, kind: pa.DataType) -> pa.Array:
    for part, part_kind in inside(array, kind):
        _lossless(part, part_kind)
    found = array.cast(kind, safe=True)
    if pa.types.is_floating(array.type) and pa.types.is_decimal(kind):
        msg = "a float is no exact decimal"
        raise ValueError(msg)
    if pa.types.is_floating(array.type) and pa.types.is_floating(kind) and kind.bit_width < array.type.bit_width:
        back = found.cast(array.type)  # Arrow rounds floats without a word
        same = pc.or_(pc.equal(back, array), pc.is_nan(array))
        if not pc.all(same, min_count=0).as_py():
            raise _Rounded(found[np.argmin(same.to_numpy(zero_copy_only=False))].as_py())
    return found


def _first_bad(array: pa.Array, attempt: Callable[[pa.Array], object]) -> int:
    """Return the number of the first value that an attempt fails for, halving what is looked at."""
    low, high = 0, len(array)
    while low < high:
        middle = (low + high) // 2
        try:
            attempt(array.slice(low, middle + 1 - low))
            low = middle + 1
        except (pa.ArrowException, ValueError):
            high = middle
    return low


def _unpacked(field: Field, array: pa.Array) -> npt.NDArray[Any] | list[Any]:
    """Return tensors or lists as arrays of the field's shape; a list with None where there are nulls."""
    dtype, shape = numpy_type(array.type)
    if not in_c_order(array.type):
        raise Misfit(f"a column of {array.type}", "tensors in C order", "Convert the column, or give NumPy arrays.")
    if field.shape[0] is None and None not in field.shape[1:] and is_ragged(array.type) and dtype == field.dtype:
        return _unpacked_lists(field, array)
    sizes = tuple(size for size in field.shape if size is not None)
    flat_shape = len(shape) == 1 and shape[0] in (None, int(np.prod(sizes)))
    alike = len(shape) == len(field.shape) and all(one in (None, two) for one, two in zip(shape, field.shape, strict=True))
    if len(sizes) != len(field.shape) or not (alike or flat_shape) or dtype.kind not in "biuf":
        told_type, open_ended = f"a column of {array.type}", None in field.shape[1:] or field.dtype.kind not in "biuf"
        expected = f"{'arrays' if open_ended else 'tensors or lists'} of {field.dtype} {field.shape}"
        advice = "Give NumPy arrays, for Arrow has none such." if open_ended else "Convert the column, or give NumPy arrays."
        raise Misfit(told_type, expected, advice)
    present = valid(array)
    inner: Any = array if present is None else array.filter(pa.array(present))
    numbers = np.arange(len(array)) if present is None else np.flatnonzero(present)
    values = _flat(field, inner, sizes if alike else (int(np.prod(sizes)),), numbers)
    found = values.reshape(len(inner), *sizes)
    if present is None:
        return found
    cells: list[Any] = [None] * len(array)
    for number, cell in zip(numbers.tolist(), found, strict=True):
        cells[number] = cell
    return cells


def _unpacked_lists(field: Field, array: pa.Array) -> list[Any]:
    """Return lists of any length as arrays of a field whose first size differs, None where there are nulls."""
    inside, length, present = items(array)
    sizes = tuple(size or 0 for size in field.shape[1:])
    if len(numpy_type(inside.type)[1]) != len(sizes):
        raise Misfit(f"a column of {array.type}", f"lists of {field.dtype} {field.shape}", "Convert the column.", None)
    values = _flat(field, inside, sizes, np.repeat(np.arange(len(array)), length)).reshape(len(inside), *sizes)
    cells: list[Any] = np.split(values, np.cumsum(length)[:-1]) if len(array) else []
    return [cell if present is None or present[row] else None for row, cell in enumerate(cells)]


def _flat(field: Field, array: pa.Array, sizes: tuple[int, ...], numbers: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Return the numbers in lists of given sizes, one after the other."""
    each = int(np.prod(sizes))
    for depth, size in enumerate(sizes):
        if array.null_count and not is_ragged(array.type):
            raise _with_nulls(field, array, int(np.prod(sizes[:depth])), numbers)
        if isinstance(array, pa.ExtensionArray):
            array = array.storage.flatten()
            break
        if is_ragged(array.type):
            lengths = np.asarray(pc.list_value_length(array).fill_null(-1))
            if (wrong := np.flatnonzero(lengths != size)).size:
                row = int(wrong[0]) // int(np.prod(sizes[:depth]))
                told_length = "a null" if lengths[wrong[0]] < 0 else f"a list of {lengths[wrong[0]]}"
                advice = "Give lists of one length, or use penstock.codecs.Npy() with None in the shape."
                raise Misfit(told_length, f"lists of {size} values", advice, int(numbers[row]))
        array = array.flatten()
    if array.null_count:
        raise _with_nulls(field, array, each, numbers)
    wanted = pa.from_numpy_dtype(field.dtype)
    if array.type != wanted:
        raise Misfit(f"values of {array.type}", f"{wanted}", "Cast the column; arrays are not converted.")
    return array.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return] # pyarrow has no types


def _with_nulls(field: Field, array: pa.Array, each: int, numbers: npt.NDArray[np.int64]) -> Misfit:
    """Return what is told of nulls inside of cells, of which each has so many of the values."""
    row = int(np.argmin(valid(array))) // each  # type: ignore[arg-type] # there is a null
    return Misfit("lists with nulls in them", f"arrays of {field.dtype} {field.shape}", "Fill the nulls.", int(numbers[row]))
