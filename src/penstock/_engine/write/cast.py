"""Casts of Arrow columns to the storage of a field: without loss, unpacked to arrays, or taken as encoded already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock._blobs import Blobs
from penstock._engine.decode.concat import one_array
from penstock._engine.write.validate import (
    DataLossError,
    InvalidCellError,
    is_compatible,
    is_in_c_order,
    nested_parts,
    type_name,
)
from penstock.codecs.tensor import Tensor
from penstock.dtypes import is_encoded, is_ragged, items, numpy_type, plain, valid
from penstock.errors import DataError
from penstock.schema import CellCodec, Codec, Field
from penstock.schema.compat import family, holds_bytes


def cast_column(field: Field, codec: Codec | None, arrow: pa.Field, given: pa.Array | pa.ChunkedArray) -> Any:
    """Return the cells of an Arrow column: as they are stored, or as NumPy values that the codec encodes later.

    Columns of bytes count as cells that a `CellCodec` has encoded; their first cell is decoded as a check.
    """
    array = _combine_chunks(given) if isinstance(given, pa.ChunkedArray) else given
    if isinstance(array, pa.ChunkedArray):  # too large for one array
        raise InvalidCellError(f"a column of {given.nbytes} bytes in one batch", "less than 2 GB", "Give smaller batches.")
    if not field.nullable and array.null_count:
        row = int(np.argmin(valid(array)))  # type: ignore[arg-type] # there is a null
        advice = f"Give one, or allow nulls: Field({field.name!r}, ..., nullable=True)."
        raise InvalidCellError("a null", "a value", advice, row)
    _check_lengths(field, array)
    if array.type == arrow.type and not isinstance(codec, CellCodec):
        return array
    if _has_same_categories(array.type, arrow.type):
        return _cast(array, arrow.type)
    if is_encoded(array.type):
        array = plain(array)
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), arrow.type)
    if isinstance(codec, CellCodec) and holds_bytes(array.type):
        check_first_cell(field, codec, array)
        return _cast(array, arrow.type)
    if isinstance(codec, (CellCodec, Tensor)) and field.shape:
        return _unpack_tensors(field, array)
    if codec is None or is_compatible(array.type, arrow.type):
        return _cast(array, arrow.type)
    encoded = f" that {codec!r} has encoded" if isinstance(codec, CellCodec) else ""
    expected = f"{arrow.type}{encoded}"
    raise InvalidCellError(f"a column of {array.type}", expected, "Convert the column, or change the field.")


def _check_lengths(field: Field, array: pa.Array) -> None:
    """Refuse text or bytes that are longer than the field allows."""
    is_text = field.dtype.kind == "U"
    if field.dtype.kind not in "US" or field.shape or not field.dtype.itemsize:
        return
    array = plain(array) if is_encoded(array.type) else array
    if family(array.type) != ("text" if is_text else "bytes"):
        return
    limit = field.dtype.itemsize // (4 if is_text else 1)
    lengths = (pc.utf8_length if is_text else pc.binary_length)(array).fill_null(0).to_numpy(zero_copy_only=False)
    if (long := np.flatnonzero(lengths > limit)).size:
        got = f"{lengths[long[0]]} {'characters' if is_text else 'bytes'}"
        advice = f"Shorten them, or use dtype={'str' if is_text else 'bytes'}."
        raise InvalidCellError(got, f"{limit} at most", advice, int(long[0]))


def _combine_chunks(given: pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return a column as one array; unchanged if it is too large for one."""
    try:
        return given.combine_chunks()
    except pa.ArrowInvalid:  # the dictionaries together have too many values for their indices
        return one_array(given)


def check_first_cell(field: Field, codec: CellCodec, array: pa.Array) -> None:
    """Decode the first cell that is not null."""
    present = valid(array)
    first = 0 if present is None else int(np.argmax(present))
    if not len(array) or (present is not None and not present[first]):
        return
    try:
        codec.decode_each(field, Blobs.of(array.slice(first, 1)))
    except DataError as error:
        advice = f"Bytes count as encoded cells: encode them with this codec, or give arrays. The codec says: {error}"
        expected = f"a cell that {codec!r} has encoded"
        raise InvalidCellError("bytes that it cannot decode", expected, advice, first) from error


def _has_same_categories(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether both types are dictionaries of compatible values, and the indices fit."""
    if not pa.types.is_dictionary(given) or not pa.types.is_dictionary(wanted) or given.ordered != wanted.ordered:
        return False
    if wanted.index_type.bit_width < given.index_type.bit_width:
        return False
    return given.value_type == wanted.value_type or is_compatible(given.value_type, wanted.value_type)


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values as another type without loss."""
    if array.type == kind:
        return array
    try:
        return _cast_lossless(array, kind)
    except (pa.ArrowException, ValueError, OverflowError) as error:
        row = _first_failure(array, lambda part: _cast_lossless(part, kind))
        value = _format_scalar(array[row]) if row < len(array) else "a column"
        got, wanted = f"{value} of {type_name(array.type)}", type_name(kind)
        if isinstance(error, _RoundedError):
            expected = f"values that {wanted} holds as they are"
            advice = f"Round the column yourself, with .astype({wanted!r}) or .cast(); or change the field's dtype."
            raise InvalidCellError(f"{got}, which would be rounded to {error}", expected, advice, row) from None
        if isinstance(error, DataLossError):
            advice = "Convert the column, or change the schema."
            raise InvalidCellError(f"{got}: {error}", f"values of {wanted}", advice, row) from None
        advice = "Convert the column, or change the field."
        raise InvalidCellError(f"{got}, and Arrow says: {str(error).rstrip('.')}", wanted, advice, row) from None


def _format_scalar(value: pa.Scalar) -> str:
    try:
        return repr(value.as_py())
    except (ValueError, OverflowError):  # a time outside the range of Python
        return str(value.cast(pa.int64()))


class _RoundedError(ValueError):
    """A cast would round a number."""


def _cast_lossless(array: pa.Array, kind: pa.DataType) -> pa.Array:
    for part, part_kind in nested_parts(array, kind):
        _cast_lossless(part, part_kind)
    result = array.cast(kind, safe=True)
    if pa.types.is_floating(array.type) and pa.types.is_decimal(kind):
        raise ValueError("a float is no exact decimal")
    if pa.types.is_floating(array.type) and pa.types.is_floating(kind) and kind.bit_width < array.type.bit_width:
        back = result.cast(array.type)  # safe casts of Arrow round floats too
        same = pc.or_(pc.equal(back, array), pc.is_nan(array))
        if not pc.all(same, min_count=0).as_py():
            raise _RoundedError(result[np.argmin(same.to_numpy(zero_copy_only=False))].as_py())
    return result


def _first_failure(array: pa.Array, attempt: Callable[[pa.Array], object]) -> int:
    """Return the number of the first value for which a call fails, by binary search."""
    low, high = 0, len(array)
    while low < high:
        middle = (low + high) // 2
        try:
            attempt(array.slice(low, middle + 1 - low))
            low = middle + 1
        except (pa.ArrowException, ValueError):
            high = middle
    return low


def _unpack_tensors(field: Field, array: pa.Array) -> npt.NDArray[Any] | list[Any]:
    """Return tensors or lists as arrays of the field's shape; as a list with None if there are nulls."""
    dtype, shape = numpy_type(array.type)
    got = f"a column of {array.type}"
    if not is_in_c_order(array.type):
        raise InvalidCellError(got, "tensors in C order", "Convert the column, or give NumPy arrays.")
    if field.shape[0] is None and None not in field.shape[1:] and is_ragged(array.type) and dtype == field.dtype:
        return _unpack_lists(field, array)
    sizes = tuple(size for size in field.shape if size is not None)
    is_flat = len(shape) == 1 and shape[0] in (None, int(np.prod(sizes)))
    is_same = len(shape) == len(field.shape) and all(one in (None, two) for one, two in zip(shape, field.shape, strict=True))
    if len(sizes) != len(field.shape) or not (is_same or is_flat) or dtype.kind not in "biuf":
        arrays_only = None in field.shape[1:] or field.dtype.kind not in "biuf"
        expected = f"{'arrays' if arrays_only else 'tensors or lists'} of {field.dtype} {field.shape}"
        advice = "Give NumPy arrays, Arrow cannot hold these." if arrays_only else "Convert the column, or give NumPy arrays."
        raise InvalidCellError(got, expected, advice)
    present = valid(array)
    cells: Any = array if present is None else array.filter(pa.array(present))
    rows = np.arange(len(array)) if present is None else np.flatnonzero(present)
    values = _flat_values(field, cells, sizes if is_same else (int(np.prod(sizes)),), rows).reshape(len(cells), *sizes)
    if present is None:
        return values
    unpacked: list[Any] = [None] * len(array)
    for row, cell in zip(rows.tolist(), values, strict=True):
        unpacked[row] = cell
    return unpacked


def _unpack_lists(field: Field, array: pa.Array) -> list[Any]:
    """Return lists of any length as arrays of a field whose first size is None; None where there are nulls."""
    elements, lengths, present = items(array)
    sizes = tuple(size or 0 for size in field.shape[1:])
    if len(numpy_type(elements.type)[1]) != len(sizes):
        got, expected = f"a column of {array.type}", f"lists of {field.dtype} {field.shape}"
        raise InvalidCellError(got, expected, "Convert the column.", None)
    rows = np.repeat(np.arange(len(array)), lengths)
    values = _flat_values(field, elements, sizes, rows).reshape(len(elements), *sizes)
    cells: list[Any] = np.split(values, np.cumsum(lengths)[:-1]) if len(array) else []
    return [cell if present is None or present[row] else None for row, cell in enumerate(cells)]


def _flat_values(field: Field, array: pa.Array, sizes: tuple[int, ...], rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Return the numbers in lists of given sizes, one after the other; `rows` has the row number of each list."""
    per_cell = int(np.prod(sizes))
    for depth, size in enumerate(sizes):
        if array.null_count and not is_ragged(array.type):
            raise _null_error(field, array, int(np.prod(sizes[:depth])), rows)
        if isinstance(array, pa.ExtensionArray):
            array = array.storage.flatten()
            break
        if is_ragged(array.type):
            lengths = np.asarray(pc.list_value_length(array).fill_null(-1))
            if (wrong := np.flatnonzero(lengths != size)).size:
                row = int(wrong[0]) // int(np.prod(sizes[:depth]))
                got = "a null" if lengths[wrong[0]] < 0 else f"a list of {lengths[wrong[0]]}"
                advice = "Give lists of one length, or use penstock.codecs.Npy() with None in the shape."
                raise InvalidCellError(got, f"lists of {size} values", advice, int(rows[row]))
        array = array.flatten()
    if array.null_count:
        raise _null_error(field, array, per_cell, rows)
    wanted = pa.from_numpy_dtype(field.dtype)
    if array.type != wanted:
        raise InvalidCellError(f"values of {array.type}", f"{wanted}", "Cast the column; arrays are not converted.")
    return array.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return] # pyarrow has no types


def _null_error(field: Field, array: pa.Array, per_cell: int, rows: npt.NDArray[np.int64]) -> InvalidCellError:
    """Return the error for a null inside a cell, given the number of values in each cell."""
    row = int(np.argmin(valid(array))) // per_cell  # type: ignore[arg-type] # there is a null
    expected = f"arrays of {field.dtype} {field.shape}"
    return InvalidCellError("lists with nulls in them", expected, "Fill the nulls.", int(rows[row]))
