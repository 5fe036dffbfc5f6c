"""Conversions of decoded values: NumPy scalars in rows, and in batches the arrays that pandas would return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock import dtypes
from penstock._engine.row_groups.reader import DecodedColumn
from penstock.petastorm.codecs import CompressedNdarrayCodec, NdarrayCodec
from penstock.petastorm.unischema import UnischemaField

__all__ = ["as_objects", "batch_column", "categorical", "field_cells"]

CopyFunction: TypeAlias = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]

MAX_ASCII = 127
MAX_TEXT_WIDTH = 64
"""Up to this number of letters, an array of fixed-width text is faster than objects."""

PYTHON_TYPES: tuple[Any, ...] = (int, float, bool, str, bytes)


def field_cells(column: DecodedColumn, field: UnischemaField) -> list[Any]:
    """Return the values of a field one by one, as rows hold them; None for nulls."""
    cells = list(_to_microseconds(column.cells) if isinstance(column.cells, np.ndarray) else column.cells)
    convert = _cell_converter(field) if cells else None
    if column.missing is None:
        return cells if convert is None else list(map(convert, cells))
    if convert is not None:
        cells = [cell if cell is None else convert(cell) for cell in cells]
    for row in np.flatnonzero(column.missing).tolist():
        cells[row] = None
    return cells


def _to_microseconds(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return timestamps in microseconds, as Spark stores and Petastorm returns them, if that loses nothing."""
    unit = np.datetime_data(values.dtype)[0] if values.dtype.kind == "M" else ""
    if unit in ("s", "ms") or (unit == "ns" and not (values.view(np.int64) % 1000).any()):
        return values.astype("datetime64[us]")
    return values


def _cell_converter(field: UnischemaField) -> Callable[[Any], Any] | None:
    """Return the function that converts decoded values to those of a field; None where they are equal."""
    kind = field.numpy_dtype.type if isinstance(field.numpy_dtype, np.dtype) else field.numpy_dtype
    if field.shape:
        return _text_cell if kind in (np.str_, str) else None
    if isinstance(field.codec, NdarrayCodec | CompressedNdarrayCodec):
        return np.asarray  # an array without dimensions, as numpy.load returns it
    if kind in (np.str_, np.bytes_) or kind in PYTHON_TYPES:
        return kind
    return None


def _text_cell(cell: Any) -> Any:
    """Return a list of texts as an array of text; a list with nulls as it is."""
    if not isinstance(cell, np.ndarray) or cell.dtype.kind != "O" or any(item is None for item in cell):
        return cell
    return np.array(cell.tolist(), dtype=np.str_) if cell.size else np.zeros(cell.shape, dtype="<U1")


def as_objects(cells: Sequence[Any]) -> npt.NDArray[Any]:
    """Return cells as an array of objects with one dimension."""
    return np.fromiter(cells, object, len(cells))


def batch_column(  # noqa: PLR0911 - one for each kind
    name: str, array: pa.Array, shape: tuple[int | None, ...] = (), copy: CopyFunction = np.copy
) -> npt.NDArray[Any]:
    """Return a column of a batch in writable memory.

    Null is NaN among floats, NaT among times, and None in all other columns, which become objects.

    Raises:
        RuntimeError: If lists differ in length.
    """
    if dtypes.extension_name(array.type) == dtypes.TENSOR:
        array = array.storage
    kind = array.type
    if dtypes.is_ragged(kind) or pa.types.is_fixed_size_list(kind):
        return _list_column(name, array, shape, copy)
    if pa.types.is_timestamp(kind):
        return _timestamps(array)
    if pa.types.is_string(kind) and not array.null_count and (text := _ascii_text(array)) is not None:
        return text
    if pa.types.is_date(kind) or dtypes.numpy_type(kind)[0].kind == "O":
        return as_objects(dtypes.python_values(array))
    values, valid = dtypes.values(array)
    if valid is None or valid.all():
        return copy(values)
    if values.dtype.kind in "fm":
        values = copy(values)
        values[~valid] = np.nan if values.dtype.kind == "f" else np.timedelta64("NaT")
        return values
    objects = values.astype(object)
    objects[~valid] = None
    return objects


def _ascii_text(array: pa.Array) -> npt.NDArray[Any] | None:
    """Return short ASCII text as an array of text; None for other text."""
    rows, buffers = len(array), array.buffers()
    if not rows or buffers[2] is None:
        return np.zeros(rows, dtype="<U1")
    ends = np.frombuffer(buffers[1], np.int32, rows + 1, array.offset * 4)
    letters = np.frombuffer(buffers[2], np.uint8)[ends[0] : ends[-1]]
    lengths = np.diff(ends)
    width = int(lengths.max())
    # NumPy drops zeros at the end of a text.
    if width > MAX_TEXT_WIDTH or (len(letters) and (letters.max() > MAX_ASCII or letters.min() == 0)):
        return None
    text = np.zeros((rows, max(1, width)), np.uint32)
    text[np.arange(max(1, width)) < lengths[:, np.newaxis]] = letters
    return text.view(f"<U{max(1, width)}").reshape(rows)


def _timestamps(array: pa.Array) -> npt.NDArray[Any]:
    values, valid = dtypes.values(array)
    if valid is not None:
        values = values.copy()
        values[~valid] = np.datetime64("NaT")
    return to_nanoseconds(values)


def to_nanoseconds(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy of timestamps in nanoseconds; in their own unit if one is out of the range of nanoseconds."""
    converted = values.astype("datetime64[ns]")
    out_of_range = (converted.astype(values.dtype) != values) & ~np.isnat(values)
    return values.copy() if out_of_range.any() else converted


def _list_column(name: str, array: pa.Array, shape: tuple[int | None, ...], copy: CopyFunction) -> npt.NDArray[Any]:
    """Return lists of one length as rows of an array; as objects where one is null."""
    inner = tuple(size for size in shape if size is not None)
    is_declared = len(shape) > 1 and len(inner) == len(shape)
    if array.null_count:
        cells = [batch_column(name, cell.values) if cell.is_valid else None for cell in array]
        return as_objects([cell.reshape(inner) if is_declared and cell is not None else cell for cell in cells])
    flat = array.flatten()
    lengths = np.unique(_list_lengths(array))
    if len(lengths) > 1:
        raise RuntimeError(_lengths_message(name, lengths.tolist()))
    width = int(lengths[0]) if len(lengths) else 0
    values = as_objects(dtypes.python_values(flat)) if pa.types.is_string(flat.type) else batch_column(name, flat, (), copy)
    return values.reshape(len(array), *(inner if is_declared else (width,)))


def _list_lengths(array: pa.Array) -> npt.NDArray[Any]:
    if pa.types.is_fixed_size_list(array.type):
        return np.full(len(array), array.type.list_size)
    return dtypes.items(array)[1]


def _lengths_message(name: str, lengths: Sequence[int]) -> str:
    return (
        f"Length of all values in column '{name}' are expected to be the same length. "
        f"Got the following set of lengths: '{', '.join(map(str, sorted(lengths)))}'"
    )


def as_text_array(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return objects as an array of text; unchanged where one is not text."""
    cells = values.tolist()
    if not cells:
        return np.zeros(0, dtype="<U1")
    return np.array(cells, dtype=np.str_) if set(map(type, cells)) <= {str, np.str_} else values


def stack_declared(name: str, cells: Sequence[Any], shape: tuple[int | None, ...]) -> npt.NDArray[Any]:
    """Return the arrays in the cells of a user's data frame as one array.

    Raises:
        ValueError: If a shape is not the declared one.
        RuntimeError: If lists differ in length.
    """
    if len(shape) > 1:
        for cell in cells:
            check_cell(name, cell, shape)
        return np.stack(cells) if len(cells) else np.zeros((0, *(size or 0 for size in shape)))
    if any(cell is None for cell in cells):
        return as_objects(cells)
    lengths = {len(cell) for cell in cells}
    if len(lengths) > 1:
        raise RuntimeError(_lengths_message(name, sorted(lengths)))
    return np.stack([np.asarray(cell) for cell in cells]) if cells else np.zeros((0, 0))


def check_cell(name: str, cell: Any, shape: tuple[int | None, ...]) -> None:
    """Check that a cell is an array of the declared shape.

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


def restore_integers(values: npt.NDArray[Any], kind: Any) -> npt.NDArray[Any]:
    """Return floats that pandas made of integers as integers, with None for NaN; unchanged if they are no integers now."""
    dtype, missing = np.dtype(kind), np.isnan(values)
    integers = np.where(missing, 0, values)
    if dtype.kind not in "iu" or (integers != np.floor(integers)).any() or (np.abs(integers) > np.iinfo(dtype).max).any():
        return values
    if not missing.any():
        return integers.astype(dtype)
    objects = integers.astype(dtype).astype(object)
    objects[missing] = None
    return objects


def categorical(values: npt.NDArray[Any], categories: Sequence[Any]) -> Any:
    """Return a partition column as a pandas Categorical; unchanged without pandas."""
    try:
        from pandas import Categorical
    except ModuleNotFoundError:
        return values
    return Categorical(values, categories=list(categories))
