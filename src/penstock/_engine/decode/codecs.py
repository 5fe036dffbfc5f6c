"""Cells of bytes become NumPy arrays, a column at a time, by their codec.

Cells of one shape go straight into one dense array, whose memory is lent. Others are decoded one by one, and the column's
policy says what becomes of shapes that differ: an object array, or one that is padded, resized or flat.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._blobs import Blobs
from penstock._engine.decode.arrow import CellError, decode
from penstock._engine.query.values import Column
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

__all__ = ["as_tensors", "check_nulls", "decode_cells", "is_stored_flat", "put_cells_together"]


def decode_cells(cells: Blobs, column: Column, buffer_pool: BufferPool) -> dict[str, Values]:
    """Return cells of bytes as arrays, rows first.

    Beside the column itself there is `<name>_valid` under `Mask`, `<name>_length` under `Pad` and `<name>_offsets` under
    `Offsets`.

    Raises:
        CellError: If a cell cannot be decoded, or is null or of a shape that the column's policies have no place for.
    """
    field, codec = column.field, column.codec
    assert field is not None  # noqa: S101 - whoever has cells of bytes has a field
    assert codec is not None  # noqa: S101 - the same
    missing = None if cells.valid is None or cells.valid.all() else ~cells.valid
    check_nulls(column, field, missing)
    if field.is_dense and not isinstance(column.ragged, Resize):
        _check_size(cells, column, field)
    marks = {f"{field.name}_valid": _marks(cells)} if isinstance(column.nulls, Mask) else {}
    try:
        if isinstance(column.ragged, Resize):
            shape = (column.ragged.height, column.ragged.width, *field.shape[2:])
            return {field.name: _dense(cells, column, shape, buffer_pool, codec.decode_resized), **marks}
        if field.is_dense:
            return {field.name: _dense(cells, column, field.shape, buffer_pool, codec.decode_into), **marks}
        found = codec.decode_each(field, cells)
    except CellProblem as problem:
        raise CellError(column.name, problem.problem, problem.row) from problem.__cause__
    except DataError as error:
        raise CellError(column.name, str(error)) from error
    return {**put_cells_together(found, column, field), **marks}


def check_nulls(column: Column, field: Field, missing: Marks) -> None:
    """Refuse nulls that the column's policy has no place for."""
    if missing is None:
        return
    refuses = isinstance(column.nulls, RaiseOnNull)
    dense = field.is_dense or not isinstance(column.ragged, AsObjects)
    if refuses or (dense and isinstance(column.nulls, DefaultNulls)):
        why = f"{column.nulls} refuses nulls" if refuses else f"an array of {field.dtype} has no place for a null"
        problem = (
            f"the value is null, and {why}. Say what a null becomes: .nulls(penstock.Fill(value), {column.name!r}), or "
            f"penstock.Mask(), or keep the rows that have a value: .where(penstock.col({column.name!r}).is_not_null())."
        )
        raise CellError(column.name, problem, int(missing.argmax()))


def _check_size(cells: Blobs, column: Column, field: Field) -> None:
    """Refuse cells that the schema says to be larger than any may be, before there is memory for them."""
    size = prod(side or 0 for side in field.shape) * field.dtype.itemsize
    if size > cells.max_cell_bytes:
        problem = (
            f"the schema says {field.dtype} {field.shape}, which takes {size} bytes, and a cell may take "
            f"{cells.max_cell_bytes}. "
        )
        advice = f"If the table can be trusted, allow more: .using(max_cell_bytes={size})."
        raise CellError(column.name, problem + advice, 0)


def _marks(cells: Blobs) -> npt.NDArray[np.bool_]:
    return np.ones(len(cells), dtype=np.bool_) if cells.valid is None else cells.valid.copy()


def _stand_in(column: Column, field: Field) -> Any:
    """Return what the values of a null cell become."""
    return _fitted(column.nulls, field) if isinstance(column.nulls, Fill) else zero(field.dtype)


def _fitted(policy: Fill | Pad, field: Field) -> Any:
    """Return the value of a policy as the values of a field have it."""
    if field.dtype.kind != "O":
        return fitted_to(policy, field.dtype, field.name)
    return fitted(policy, Scalar().storage(Field(field.name, field.dtype)), field.name)


def _dense(
    cells: Blobs,
    column: Column,
    shape: tuple[int | None, ...],
    buffer_pool: BufferPool,
    decoder: Callable[[Field, Blobs, npt.NDArray[Any]], None],
) -> Values:
    """Return cells decoded into one array."""
    field = column.field
    assert field is not None  # noqa: S101 - asked before
    if None in shape:
        msg = f"Resize needs to know how many channels an image has, and the schema says {field.shape}. Adopt one that does."
        raise DataError(msg)
    out = buffer_pool.empty((len(cells), *(size or 0 for size in shape)), field.dtype)
    if cells.valid is not None and not cells.valid.all():
        out[~cells.valid] = _stand_in(column, field)
    decoder(field, cells, out)
    return out


def put_cells_together(found: list[Any], column: Column, field: Field) -> dict[str, Values]:
    """Return cells that may differ in shape as the column's policy says."""
    name, ragged = field.name, column.ragged
    if not field.shape and field.dtype.kind in "US":
        return {name: _words(found, column, field)}
    if isinstance(ragged, AsObjects) or None not in field.shape:
        empty = _nothing(field, column.nulls) if isinstance(column.nulls, Fill) else None
        return {name: np.fromiter((empty if cell is None else cell for cell in found), object, len(found))}
    first = next((cell for cell in found if cell is not None), _nothing(field))
    cells = [np.zeros((0,) * first.ndim, first.dtype) if cell is None else cell for cell in found]
    if isinstance(ragged, Offsets):
        return _flat(cells, column, field)
    if isinstance(ragged, RaiseIfRagged):
        for row, cell in enumerate(found):
            if cell is not None and cell.shape != first.shape:
                problem = f"the cell has the shape {cell.shape}, and others {first.shape}. {ragged} needs one. "
                raise CellError(name, problem + "Use Pad() or AsObjects(), or Resize() for images.", row)
        lengths, sizes = None, first.shape
    else:
        assert isinstance(ragged, Pad)  # noqa: S101 - the last there is
        lengths, sizes = _sizes(cells, ragged, field)
    filler = _fitted(ragged, field) if isinstance(ragged, Pad) else _stand_in(column, field)
    whole = np.full((len(cells), *sizes), filler, _common(first.dtype, cells, filler))
    for row, cell in enumerate(cells):
        kept = tuple(slice(0, min(have, room)) for have, room in zip(cell.shape, sizes, strict=True))
        whole[row][kept] = cell[kept]
    return {name: whole} if lengths is None else {name: whole, f"{name}_length": lengths}


def _words(found: list[Any], column: Column, field: Field) -> Values:
    """Return single texts or bytes, which codecs hand out as arrays without a dimension, as Python's own."""
    nulls = column.nulls
    filler = _fitted(nulls, field) if isinstance(nulls, Fill) else None
    words = (filler if cell is None else cell.item() if isinstance(cell, np.ndarray | np.generic) else cell for cell in found)
    return np.fromiter(words, object, len(found))


def _nothing(field: Field, nulls: Fill | None = None) -> Values:
    """Return a cell without values; where its field says how many there are, so many of what a null becomes."""
    filler = zero(field.dtype) if nulls is None or None in field.shape else _fitted(nulls, field)
    return np.full(tuple(size or 0 for size in field.shape), filler, field.dtype if field.dtype.itemsize else None)


def _common(dtype: np.dtype[Any], cells: list[Values], filler: Any) -> np.dtype[Any]:
    """Return the dtype that holds all cells, and what fills them up: text is as long as the longest."""
    return np.result_type(dtype, *{cell.dtype for cell in cells}, np.asarray(filler).dtype) if dtype.kind in "US" else dtype


def _sizes(cells: list[Values], ragged: Pad, field: Field) -> tuple[Values, tuple[int, ...]]:
    """Return how long each cell is where its field does not say, and how large all are made."""
    deferred = [axis for axis, size in enumerate(field.shape) if size is None]
    lengths = np.array([[cell.shape[axis] for axis in deferred] for cell in cells], dtype=np.int64).reshape(
        len(cells), len(deferred)
    )
    longest = [int(lengths[:, at].max(initial=0)) for at in range(len(deferred))]
    if ragged.length is not None:
        over = lengths[:, 0] > ragged.length
        if over.any() and not ragged.truncate:
            row = int(over.argmax())
            problem = f"the cell has {lengths[row, 0]} values, and {ragged} has room for {ragged.length}. "
            raise CellError(field.name, problem + "Give a larger length, or truncate=True to cut.", row)
        longest[0] = int(ragged.length)
    known = iter(longest)
    return lengths[:, 0] if len(deferred) == 1 else lengths, tuple(
        next(known) if size is None else size for size in field.shape
    )


def _flat(cells: list[Values], column: Column, field: Field) -> dict[str, Values]:
    """Return cells one after the other, and where each begins."""
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


def is_stored_flat(column: Column, kind: pa.DataType) -> bool:
    """Return whether a column of tensors is stored as plain lists, as by software that does not know Arrow's tensors."""
    tensor = column.field is not None and isinstance(column.field.codec, Tensor)
    return tensor and extension_name(kind) is None and (is_ragged(kind) or pa.types.is_fixed_size_list(kind))


def as_tensors(array: pa.Array | pa.ChunkedArray, column: Column) -> dict[str, Values]:
    """Return lists of numbers in the shape that the column's field says.

    Raises:
        CellError: If a list has another number of values.
    """
    assert column.field is not None  # noqa: S101 - it has a codec
    shape = tuple(size or 0 for size in column.field.shape)
    if len(numpy_type(array.type)[1]) == len(shape) > 1:
        return _nested_tensors(array, column, shape)
    found = decode(array, Column(name=column.name, nulls=column.nulls, ragged=Pad(length=prod(shape))))
    lengths = found.pop(f"{column.name}_length", None)
    there = None if lengths is None else lengths == prod(shape)
    if there is not None and isinstance(column.nulls, Fill | Mask):
        there |= lengths == 0
    if there is not None and not there.all():
        row = int((~there).argmax())
        problem = f"the list has {lengths[row] if lengths is not None else 0} values, and a tensor {shape} has {prod(shape)}. "
        raise CellError(column.name, problem + "Adopt a schema that fits, or one without this field.", row)
    return {name: values.reshape(len(values), *shape) if values.ndim > 1 else values for name, values in found.items()}


def _nested_tensors(array: pa.Array | pa.ChunkedArray, column: Column, shape: tuple[int, ...]) -> dict[str, Values]:
    """Return lists of lists of numbers, which must have the sizes of a shape."""
    found = decode(array, Column(name=column.name, nulls=column.nulls, ragged=RaiseIfRagged()))
    sizes = found[column.name].shape[1:]
    if sizes == shape:
        return found
    there = array.is_valid().to_numpy(zero_copy_only=False)
    if there.any():
        problem = f"the lists have the sizes {sizes}, and a tensor has {shape}. Adopt a schema that fits, or one without this "
        raise CellError(column.name, problem + "field.", int(there.argmax()))
    assert column.field is not None  # noqa: S101 - asked before
    whole = np.full((len(array), *shape), _stand_in(column, column.field), column.field.dtype)
    return {name: whole if name == column.name else np.zeros(whole.shape, np.bool_) for name in found}
