"""What a value is to users of Petastorm: NumPy's own scalars in rows, and in batches the arrays that pandas would give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock import dtypes
from penstock._engine.row_groups.reader import Values
from penstock.petastorm.codecs import CompressedNdarrayCodec, NdarrayCodec
from penstock.petastorm.unischema import UnischemaField

__all__ = ["batch_column", "categorical", "cells_of", "one_array", "text_array"]

Copied: TypeAlias = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
"""What copies an array."""

LAST_ASCII = 127
WIDEST = 64
"""Letters up to which it is faster to lay out texts side by side than to make objects of them."""

PYTHON: tuple[Any, ...] = (int, float, bool, str, bytes)


def cells_of(found: Values, field: UnischemaField) -> list[Any]:
    """Return the values of a field one by one, as rows hold them; None for nulls."""
    cells = list(_microseconds(found.cells) if isinstance(found.cells, np.ndarray) else found.cells)
    if not cells:
        return cells
    convert = _converter(field)
    if found.missing is not None:
        gone = np.flatnonzero(found.missing).tolist()
        if convert is not None:
            cells = [cell if cell is None else convert(cell) for cell in cells]
        for row in gone:
            cells[row] = None
        return cells
    return cells if convert is None else list(map(convert, cells))


def _microseconds(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return moments in microseconds, which is what Spark stores and Petastorm gives, where nothing is lost by that."""
    unit = np.datetime_data(values.dtype)[0] if values.dtype.kind == "M" else ""
    if unit in ("s", "ms") or (unit == "ns" and not (values.view(np.int64) % 1000).any()):
        return values.astype("datetime64[us]")
    return values


def _converter(field: UnischemaField) -> Callable[[Any], Any] | None:
    """Return what makes a value one of a field; None where it is one already."""
    kind = field.numpy_dtype.type if isinstance(field.numpy_dtype, np.dtype) else field.numpy_dtype
    if field.shape:
        return _text_cell if kind in (np.str_, str) else None
    if isinstance(field.codec, NdarrayCodec | CompressedNdarrayCodec):
        return np.asarray  # an array of no dimension, as numpy.load gives it
    if kind in (np.str_, np.bytes_) or kind in PYTHON:
        return kind
    return None


def _text_cell(cell: Any) -> Any:
    """Return a list of texts as an array of text; one with nulls in it as it is."""
    if not isinstance(cell, np.ndarray) or cell.dtype.kind != "O" or any(one is None for one in cell):
        return cell
    return np.array(cell.tolist(), dtype=np.str_) if cell.size else np.zeros(cell.shape, dtype="<U1")


def one_array(cells: Sequence[Any]) -> npt.NDArray[Any]:
    """Return some objects as an array of objects."""
    return np.fromiter(cells, object, len(cells))


def batch_column(  # noqa: PLR0911 - one for each kind
    name: str, array: pa.Array, shape: tuple[int | None, ...] = (), copied: Copied = np.copy
) -> npt.NDArray[Any]:
    """Return a column of a batch, in memory that may be written to.

    Nulls are NaN among floats, NaT among times and None anywhere else, which no dtype but that of objects has.

    Raises:
        RuntimeError: If lists differ in length.
    """
    if dtypes.extension_name(array.type) == dtypes.TENSOR:
        array = array.storage
    kind = array.type
    if dtypes.is_ragged(kind) or pa.types.is_fixed_size_list(kind):
        return _lists(name, array, shape, copied)
    if pa.types.is_timestamp(kind):
        return _moments(array)
    if pa.types.is_string(kind) and not array.null_count and (text := _ascii(array)) is not None:
        return text
    if pa.types.is_date(kind) or dtypes.numpy_type(kind)[0].kind == "O":
        return one_array(dtypes.python_values(array))
    values, valid = dtypes.values(array)
    if valid is None or valid.all():
        return copied(values)
    if values.dtype.kind == "f":
        values = copied(values)
        values[~valid] = np.nan
        return values
    if values.dtype.kind == "m":
        values = copied(values)
        values[~valid] = np.timedelta64("NaT")
        return values
    found = values.astype(object)
    found[~valid] = None
    return found


def _ascii(array: pa.Array) -> npt.NDArray[Any] | None:
    """Return text as an array of text, laid out column by column of its letters; None for what is not plain and short."""
    rows, buffers = len(array), array.buffers()
    if not rows or buffers[2] is None:
        return np.zeros(rows, dtype="<U1")
    ends = np.frombuffer(buffers[1], np.int32, rows + 1, array.offset * 4)
    letters = np.frombuffer(buffers[2], np.uint8)[ends[0] : ends[-1]]
    lengths = np.diff(ends)
    width = int(lengths.max())
    # NumPy cannot tell a zero at the end of a text from none.
    if width > WIDEST or (len(letters) and (letters.max() > LAST_ASCII or letters.min() == 0)):
        return None
    found = np.zeros((rows, max(1, width)), np.uint32)
    found[np.arange(max(1, width)) < lengths[:, np.newaxis]] = letters
    return found.view(f"<U{max(1, width)}").reshape(rows)


def _moments(array: pa.Array) -> npt.NDArray[Any]:
    values, valid = dtypes.values(array)
    if valid is not None:
        values = values.copy()
        values[~valid] = np.datetime64("NaT")
    return nanoseconds(values)


def nanoseconds(moments: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy of moments in nanoseconds, or as they are where nanoseconds have no place for some of their centuries."""
    found = moments.astype("datetime64[ns]")
    others = (found.astype(moments.dtype) != moments) & ~np.isnat(moments)
    return moments.copy() if others.any() else found


def _lists(name: str, array: pa.Array, shape: tuple[int | None, ...], copied: Copied) -> npt.NDArray[Any]:
    """Return lists of one length as rows of an array; with nulls among them as objects."""
    inner = tuple(size for size in shape if size is not None)
    whole = len(shape) > 1 and len(inner) == len(shape)
    if array.null_count:
        cells = [batch_column(name, array[row].values) if array[row].is_valid else None for row in range(len(array))]
        return one_array([cell.reshape(inner) if whole and cell is not None else cell for cell in cells])
    flat = array.flatten()
    lengths = np.unique(_lengths(array))
    if len(lengths) > 1:
        raise RuntimeError(_ragged(name, lengths.tolist()))
    width = int(lengths[0]) if len(lengths) else 0
    values = one_array(dtypes.python_values(flat)) if pa.types.is_string(flat.type) else batch_column(name, flat, (), copied)
    return values.reshape(len(array), *(inner if whole else (width,)))


def _lengths(array: pa.Array) -> npt.NDArray[Any]:
    if pa.types.is_fixed_size_list(array.type):
        return np.full(len(array), array.type.list_size)
    return dtypes.items(array)[1]


def _ragged(name: str, lengths: Sequence[int]) -> str:
    told = ", ".join(map(str, sorted(lengths)))
    said = f"Length of all values in column '{name}' are expected to be the same length."
    return f"{said} Got the following set of lengths: '{told}'"


def text_array(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return text as an array of text where all of it is, and as objects where some is None."""
    cells = values.tolist()
    if not cells:
        return np.zeros(0, dtype="<U1")
    return np.array(cells, dtype=np.str_) if set(map(type, cells)) <= {str, np.str_} else values


def stacked(name: str, cells: Sequence[Any], shape: tuple[int | None, ...]) -> npt.NDArray[Any]:
    """Return arrays that a function has put into the cells of a data frame as one array.

    Raises:
        ValueError: If one has another shape than was declared.
        RuntimeError: If lists differ in length.
    """
    if len(shape) > 1:
        for cell in cells:
            check_cell(name, cell, shape)
        return np.stack(cells) if len(cells) else np.zeros((0, *(size or 0 for size in shape)))
    if any(cell is None for cell in cells):
        return one_array(cells)
    lengths = {len(cell) for cell in cells}
    if len(lengths) > 1:
        raise RuntimeError(_ragged(name, sorted(lengths)))
    return np.stack([np.asarray(cell) for cell in cells]) if cells else np.zeros((0, 0))


def check_cell(name: str, cell: Any, shape: tuple[int | None, ...]) -> None:
    """Check that a cell is an array of the shape that its field declares.

    Raises:
        ValueError: If it is not, or the shape has a dimension of any size.
    """
    if None in shape:
        raise ValueError(f"All dimensions of a shape: {shape} in: {name} field must be constant. Declare them.")
    if not isinstance(cell, np.ndarray):
        raise ValueError(f"field {name} must be numpy array type, and a cell is {type(cell).__name__}.")  # noqa: TRY004
    if cell.shape != tuple(shape):
        raise ValueError(f"field {name} must be the shape {tuple(shape)}, and a cell has {cell.shape}.")
    if not cell.flags.c_contiguous:
        raise ValueError(f"field {name} error: only support row major multi-dimensional array.")


def whole_again(values: npt.NDArray[Any], kind: Any) -> npt.NDArray[Any]:
    """Return floats that were whole numbers as such, None where they are NaN; if they have become others, as they are."""
    dtype, missing = np.dtype(kind), np.isnan(values)
    whole = np.where(missing, 0, values)
    if dtype.kind not in "iu" or (whole != np.floor(whole)).any() or (np.abs(whole) > np.iinfo(dtype).max).any():
        return values
    if not missing.any():
        return whole.astype(dtype)
    found = whole.astype(dtype).astype(object)
    found[missing] = None
    return found


def categorical(values: npt.NDArray[Any], categories: Sequence[Any]) -> Any:
    """Return a column that directories name as pandas has it: values of which there are few."""
    try:
        from pandas import Categorical
    except ModuleNotFoundError:
        return values
    return Categorical(values, categories=list(categories))
