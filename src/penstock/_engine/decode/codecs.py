"""Decode cells of bytes to NumPy arrays, a column at a time, by their codec.

Cells of one shape go straight into one dense array from the buffer pool. Other cells are decoded one by one, and the column's
policy combines them: as an object array, or one that is padded, resized or flat.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._blobs import Blobs
from penstock._engine.decode.arrow import CellError, decode, null_problem
from penstock._engine.decode.lists import pad_width, too_long_problem
from penstock._engine.query.query import ColumnDecoding
from penstock._engine.runtime.memory import BufferPool
from penstock.codecs import Scalar, Tensor
from penstock.dtypes import Marks, Values, extension_name, is_ragged, numpy_type
from penstock.errors import DataError
from penstock.policies import (
    AsObjects,
    DefaultNulls,
    Fill,
    Mask,
    Offsets,
    Pad,
    RaiseIfRagged,
    RaiseOnNull,
    Resize,
    fitted,
    fitted_to,
    zero,
)
from penstock.schema import CellProblem, Field


def decode_cells(cells: Blobs, column: ColumnDecoding, buffer_pool: BufferPool) -> dict[str, Values]:
    """Return cells of bytes as arrays, rows first.

    The result also has `<name>_valid` under `Mask`, `<name>_length` under `Pad` and `<name>_offsets` under `Offsets`.
    """
    field, codec = column.field, column.codec
    assert field is not None  # noqa: S101 - columns of bytes have a field
    assert codec is not None  # noqa: S101 - the same
    missing = None if cells.valid is None or cells.valid.all() else ~cells.valid
    check_nulls(column, field, missing)
    if field.is_dense and not isinstance(column.ragged, Resize):
        _check_size(cells, column, field)
    marks = {f"{field.name}_valid": _validity(cells)} if isinstance(column.nulls, Mask) else {}
    try:
        if isinstance(column.ragged, Resize):
            shape = (column.ragged.height, column.ragged.width, *field.shape[2:])
            return {field.name: _decode_dense(cells, column, shape, buffer_pool, codec.decode_resized), **marks}
        if field.is_dense:
            return {field.name: _decode_dense(cells, column, field.shape, buffer_pool, codec.decode_into), **marks}
        arrays = codec.decode_each(field, cells)
    except CellProblem as problem:
        raise CellError(column.name, problem.problem, problem.row) from problem.__cause__
    except DataError as error:
        raise CellError(column.name, str(error)) from error
    return {**combine_cells(arrays, column, field), **marks}


def check_nulls(column: ColumnDecoding, field: Field, missing: Marks) -> None:
    """Raise an error for the first null, if the column's policy does not allow nulls."""
    if missing is None:
        return
    refuses = isinstance(column.nulls, RaiseOnNull)
    dense = field.is_dense or not isinstance(column.ragged, AsObjects)
    if refuses or (dense and isinstance(column.nulls, DefaultNulls)):
        reason = f"{column.nulls} refuses nulls" if refuses else f"an array of {field.dtype} cannot hold a null"
        raise CellError(column.name, null_problem(column.name, reason), int(missing.argmax()))


def _check_size(cells: Blobs, column: ColumnDecoding, field: Field) -> None:
    """Raise an error if the schema's shape exceeds the limit of a cell, before the array is allocated."""
    size = prod(side or 0 for side in field.shape) * field.dtype.itemsize
    if size > cells.max_cell_bytes:
        problem = (
            f"the schema says {field.dtype} {field.shape}, which takes {size} bytes, and a cell may take "
            f"{cells.max_cell_bytes}. If the table can be trusted, allow more: .using(max_cell_bytes={size})."
        )
        raise CellError(column.name, problem, 0)


def _validity(cells: Blobs) -> npt.NDArray[np.bool_]:
    return np.ones(len(cells), dtype=np.bool_) if cells.valid is None else cells.valid.copy()


def _null_value(column: ColumnDecoding, field: Field) -> Any:
    """Return the value that replaces the values of a null cell."""
    return _fitted(column.nulls, field) if isinstance(column.nulls, Fill) else zero(field.dtype)


def _fitted(policy: Fill | Pad, field: Field) -> Any:
    """Return the value of a policy in the type of a field."""
    if field.dtype.kind != "O":
        return fitted_to(policy, field.dtype, field.name)
    return fitted(policy, Scalar().storage(Field(field.name, field.dtype)), field.name)


def _decode_dense(
    cells: Blobs,
    column: ColumnDecoding,
    shape: tuple[int | None, ...],
    buffer_pool: BufferPool,
    decoder: Callable[[Field, Blobs, npt.NDArray[Any]], None],
) -> Values:
    """Return cells decoded into one array."""
    field = column.field
    assert field is not None  # noqa: S101 - the caller checked
    if None in shape:
        msg = f"Resize needs to know how many channels an image has, and the schema says {field.shape}. Adopt one that does."
        raise DataError(msg)
    out = buffer_pool.empty((len(cells), *(size or 0 for size in shape)), field.dtype)
    if cells.valid is not None and not cells.valid.all():
        out[~cells.valid] = _null_value(column, field)
    decoder(field, cells, out)
    return out


def combine_cells(arrays: list[Any], column: ColumnDecoding, field: Field) -> dict[str, Values]:
    """Return cells that may differ in shape, combined as the column's policy says."""
    name, ragged = field.name, column.ragged
    if not field.shape and field.dtype.kind in "US":
        return {name: _text_values(arrays, column, field)}
    if isinstance(ragged, AsObjects) or None not in field.shape:
        empty = _empty_cell(field, column.nulls) if isinstance(column.nulls, Fill) else None
        return {name: np.fromiter((empty if cell is None else cell for cell in arrays), object, len(arrays))}
    first = next((cell for cell in arrays if cell is not None), _empty_cell(field))
    cells = [np.zeros((0,) * first.ndim, first.dtype) if cell is None else cell for cell in arrays]
    if isinstance(ragged, Offsets):
        return _concat_cells(cells, column, field)
    if isinstance(ragged, RaiseIfRagged):
        for row, cell in enumerate(arrays):
            if cell is not None and cell.shape != first.shape:
                problem = f"the cell has the shape {cell.shape}, and others {first.shape}. {ragged} needs one. "
                raise CellError(name, problem + "Use Pad() or AsObjects(), or Resize() for images.", row)
        lengths, sizes = None, first.shape
    else:
        assert isinstance(ragged, Pad)  # noqa: S101 - the only policy left
        lengths, sizes = _padded_sizes(cells, ragged, field)
    padding = _fitted(ragged, field) if isinstance(ragged, Pad) else _null_value(column, field)
    whole = np.full((len(cells), *sizes), padding, _common_dtype(first.dtype, cells, padding))
    for row, cell in enumerate(cells):
        overlap = tuple(slice(0, min(have, limit)) for have, limit in zip(cell.shape, sizes, strict=True))
        whole[row][overlap] = cell[overlap]
    return {name: whole} if lengths is None else {name: whole, f"{name}_length": lengths}


def _text_values(cells: list[Any], column: ColumnDecoding, field: Field) -> Values:
    """Return single texts or bytes as Python objects; codecs return them as arrays without a dimension."""
    null = _fitted(column.nulls, field) if isinstance(column.nulls, Fill) else None
    texts = (null if cell is None else cell.item() if isinstance(cell, np.ndarray | np.generic) else cell for cell in cells)
    return np.fromiter(texts, object, len(cells))


def _empty_cell(field: Field, nulls: Fill | None = None) -> Values:
    """Return an empty cell of a field; if its shape is fixed, a cell of zeros, or of the value of `nulls`."""
    value = zero(field.dtype) if nulls is None or None in field.shape else _fitted(nulls, field)
    return np.full(tuple(size or 0 for size in field.shape), value, field.dtype if field.dtype.itemsize else None)


def _common_dtype(dtype: np.dtype[Any], cells: list[Values], padding: Any) -> np.dtype[Any]:
    """Return the dtype of all cells and their padding; for text, the length of the longest."""
    return np.result_type(dtype, *{cell.dtype for cell in cells}, np.asarray(padding).dtype) if dtype.kind in "US" else dtype


def _padded_sizes(cells: list[Values], ragged: Pad, field: Field) -> tuple[Values, tuple[int, ...]]:
    """Return the sizes of each cell in the axes of unknown size, and the shape of all padded cells."""
    axes = [axis for axis, size in enumerate(field.shape) if size is None]
    lengths = np.array([[cell.shape[axis] for axis in axes] for cell in cells], dtype=np.int64).reshape(len(cells), len(axes))
    width, too_long = pad_width(lengths[:, 0], ragged)
    if too_long is not None:
        raise CellError(field.name, f"the cell has {too_long_problem(lengths[too_long, 0], ragged)}", too_long)
    sizes = iter([width, *lengths[:, 1:].max(axis=0, initial=0).tolist()])
    shape = tuple(next(sizes) if size is None else size for size in field.shape)
    return lengths[:, 0] if len(axes) == 1 else lengths, shape


def _concat_cells(cells: list[Values], column: ColumnDecoding, field: Field) -> dict[str, Values]:
    """Return cells one after the other, with the offset of each."""
    shapes = {cell.shape[1:] for cell in cells if cell.size or cell.ndim == 1}
    if len(shapes) > 1 or field.shape[:1] != (None,):
        row = next((row for row, cell in enumerate(cells) if cell.shape[1:] != cells[0].shape[1:]), 0)
        problem = f"{column.ragged} puts cells one after the other, and they differ in more than their first size: {shapes}. "
        raise CellError(field.name, problem + "Use Pad() or AsObjects().", row)
    inner = next(iter(shapes), tuple(size or 0 for size in field.shape[1:]))
    offsets = np.cumsum([0, *(len(cell) for cell in cells)])
    full = [cell for cell in cells if len(cell)]
    values = np.concatenate(full) if full else np.zeros((0, *inner), field.dtype)
    return {field.name: values, f"{field.name}_offsets": offsets}


def is_stored_flat(column: ColumnDecoding, kind: pa.DataType) -> bool:
    """Return whether a column of tensors is stored as plain lists, as writers without Arrow's tensor types do."""
    tensor = column.field is not None and isinstance(column.field.codec, Tensor)
    return tensor and extension_name(kind) is None and (is_ragged(kind) or pa.types.is_fixed_size_list(kind))


def decode_flat_tensors(array: pa.Array | pa.ChunkedArray, column: ColumnDecoding) -> dict[str, Values]:
    """Return plain lists of numbers in the shape of the column's field."""
    assert column.field is not None  # noqa: S101 - it has a codec
    shape = tuple(size or 0 for size in column.field.shape)
    if len(numpy_type(array.type)[1]) == len(shape) > 1:
        return _nested_tensors(array, column, shape)
    arrays = decode(array, ColumnDecoding(name=column.name, nulls=column.nulls, ragged=Pad(length=prod(shape))))
    lengths = arrays.pop(f"{column.name}_length", None)
    if lengths is not None:
        fits = lengths == prod(shape)
        if isinstance(column.nulls, Fill | Mask):
            fits |= lengths == 0
        if not fits.all():
            row = int((~fits).argmax())
            problem = f"the list has {lengths[row]} values, and a tensor {shape} has {prod(shape)}. "
            raise CellError(column.name, problem + "Adopt a schema that fits, or one without this field.", row)
    return {name: values.reshape(len(values), *shape) if values.ndim > 1 else values for name, values in arrays.items()}


def _nested_tensors(array: pa.Array | pa.ChunkedArray, column: ColumnDecoding, shape: tuple[int, ...]) -> dict[str, Values]:
    """Return nested lists of numbers, whose sizes must be those of a shape."""
    arrays = decode(array, ColumnDecoding(name=column.name, nulls=column.nulls, ragged=RaiseIfRagged()))
    sizes = arrays[column.name].shape[1:]
    if sizes == shape:
        return arrays
    present = array.is_valid().to_numpy(zero_copy_only=False)
    if present.any():
        problem = f"the lists have the sizes {sizes}, and a tensor has {shape}. Adopt a schema that fits, or one without this "
        raise CellError(column.name, problem + "field.", int(present.argmax()))
    assert column.field is not None  # noqa: S101 - the caller checked
    whole = np.full((len(array), *shape), _null_value(column, column.field), column.field.dtype)
    return {name: whole if name == column.name else np.zeros(whole.shape, np.bool_) for name in arrays}
