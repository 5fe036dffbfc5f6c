"""Apply ragged policies to decoded cells, for batches whose rows come from several sources.

A dataset applies its policies while it decodes Arrow, in `decode` and `decode_cells`. A mixture decodes its rows source by
source, before the batch of a row is known. The result is the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock._engine.decode.arrow import CellError
from penstock._engine.decode.codecs import check_nulls, combine_cells
from penstock._engine.decode.lists import pad_lists, pad_width, too_long_problem
from penstock._engine.query.query import Batch, ColumnDecoding
from penstock._engine.runtime.memory import BufferPool
from penstock.dtypes import Values
from penstock.policies import Mask, Offsets, Pad, RaiseIfRagged, fitted, fitted_to
from penstock.schema import Field

OBJECTS = np.dtype(object)


def depends_on_batch(column: ColumnDecoding, shape: tuple[int | None, ...]) -> bool:
    """Return whether the arrays of a column depend on the other rows of their batch.

    Example:
        >>> depends_on_batch(ColumnDecoding(name="x", ragged=Pad()), (None,))
        True
        >>> depends_on_batch(ColumnDecoding(name="x", ragged=Pad(length=8)), (None,))
        False
    """
    if isinstance(column.ragged, Pad) and None in shape:
        return column.ragged.length is None or shape.count(None) > 1
    return isinstance(column.ragged, Offsets | RaiseIfRagged) and None in shape


def apply_ragged(batch: Batch, column: ColumnDecoding, buffer_pool: BufferPool | None = None) -> Batch:
    """Return a batch with the lists or arrays of one column padded, flattened or checked, as its policy says.

    The memory of padded lists comes from `buffer_pool`.

    Example:
        >>> cells = np.fromiter((np.arange(2), np.arange(1)), object, 2)
        >>> apply_ragged({"x": cells}, ColumnDecoding(name="x", ragged=Pad(value=-1)))
        {'x': array([[ 0,  1],
               [ 0, -1]]), 'x_length': array([2, 1])}
    """
    name, values, marks = column.name, batch[column.name], batch.get(f"{column.name}_valid")
    if isinstance(column.ragged, RaiseIfRagged) and (values.ndim > 1 or values.dtype != OBJECTS):
        return batch  # one array already
    # A column of marks already says which cells are null, so they are no error.
    masked = column if marks is None else replace(column, nulls=Mask())
    combined = {**batch, **_combine(_arrays(values), masked, buffer_pool)}
    if marks is not None and marks.dtype == OBJECTS:  # a mark for each value of a list
        ragged = replace(column.ragged, value=0) if isinstance(column.ragged, Pad) else column.ragged
        field = Field(f"{name}_valid", np.bool_, (None,) * max(1, 0 if column.field is None else len(column.field.shape)))
        mark_column = ColumnDecoding(name=field.name, nulls=Mask(), ragged=ragged, field=field)
        combined[field.name] = _combine(_arrays(marks), mark_column, None)[field.name]
    return combined


def _arrays(cells: Iterable[Any]) -> list[Values | None]:
    return [None if cell is None else np.asarray(cell) for cell in cells]


def _combine(cells: list[Values | None], column: ColumnDecoding, buffer_pool: BufferPool | None) -> Batch:
    """Return the arrays of a column; a cell that is None is null."""
    field = column.field
    missing = np.array([cell is None for cell in cells], dtype=np.bool_)
    if missing.any():
        check_nulls(column, field or Field(column.name, object, (None,)), missing)
    dtype, ndim = _common_kind(cells, column)
    if ndim > 1:  # arrays of one dtype, not nested lists
        shape = field.shape if field is not None and len(field.shape) == ndim else (None,) * ndim
        arrays = [cell if cell is not None and cell.ndim == ndim else None for cell in cells]
        return combine_cells(arrays, column, Field(column.name, dtype, shape))
    lists = [np.zeros(0, dtype) if cell is None or not cell.size else cell for cell in cells]
    if isinstance(column.ragged, Offsets):
        offsets = np.cumsum([0, *map(len, lists)])
        return {column.name: _concat(lists, dtype), f"{column.name}_offsets": offsets}
    depth = 1 if field is None else max(1, len(field.shape))
    values, length = _pad_nested(lists, dtype, column, depth, np.flatnonzero(~missing).tolist(), buffer_pool)
    return {column.name: values, f"{column.name}_length": length} if isinstance(column.ragged, Pad) else {column.name: values}


def _common_kind(cells: Iterable[Values | None], column: ColumnDecoding) -> tuple[np.dtype[Any], int]:
    """Return the dtype and the number of dimensions of all cells that have values, which must not differ."""
    full = [(row, cell) for row, cell in enumerate(cells) if cell is not None and cell.size]
    if not full:
        field = column.field
        if field is None:
            return np.dtype(np.float64), 1
        nested = field.codec is None and len(field.shape) > 1
        return (OBJECTS, 1) if nested else (field.dtype, max(1, len(field.shape)))
    row, first = full[0]
    for other, cell in full[1:]:
        alike = cell.dtype == first.dtype or cell.dtype.kind == first.dtype.kind in "US"
        if not alike or cell.ndim != first.ndim:
            problem = (
                f"the cell has {cell.dtype} in {cell.ndim} dimensions, and another of its batch has {first.dtype} in "
                f"{first.ndim}. All cells of a column must be alike. Return the same dtype from the maps of all sources."
            )
            raise CellError(column.name, problem, other)
    if not first.ndim:
        problem = f"the cell is a single value, and {column.ragged} is for lists. Leave the policy out for this column."
        raise CellError(column.name, problem, row)
    dtype = np.result_type(*{cell.dtype for _, cell in full}) if first.dtype.kind in "US" else first.dtype
    return dtype, first.ndim


def _concat(lists: list[Values], dtype: np.dtype[Any]) -> Values:
    """Return the values of all lists, one after the other."""
    return np.concatenate([np.zeros(0, dtype), *(values for values in lists if len(values))])


def _pad_nested(
    lists: list[Values],
    dtype: np.dtype[Any],
    column: ColumnDecoding,
    depth: int,
    present: list[int],
    buffer_pool: BufferPool | None = None,
) -> tuple[Values, Values]:
    """Return lists as one array with one more dimension, and the length of each; nested lists become dimensions too.

    `depth` is the least depth of nesting, for lists without values. `present` are the indices of the lists that are not null.
    """
    length = np.array([len(values) for values in lists], dtype=np.int64)
    width = _width(length, column, present)
    items = _concat(lists, dtype)
    if depth > 1 or any(isinstance(item, np.ndarray) for item in items[:1]):
        items = _pad_inner(items, column, depth - 1, length)
    return pad_lists(items, length, width, _padding(items, column), buffer_pool), length


def _pad_inner(items: Values, column: ColumnDecoding, depth: int, length: Values) -> Values:
    """Return the lists inside of lists as one array."""
    ragged = Pad(column.ragged.value) if isinstance(column.ragged, Pad) else column.ragged
    field = column.field
    inner = None if field is None or len(field.shape) < 2 else Field(field.name, field.dtype, field.shape[1:])  # noqa: PLR2004 - a list in a list
    nested = replace(column, ragged=ragged, field=inner)
    cells = _arrays(items)
    try:
        missing = np.array([cell is None for cell in cells], dtype=np.bool_)
        if missing.any():
            check_nulls(nested, inner or Field(column.name, object, (None,)), missing)
        dtype, _ = _common_kind(cells, nested)
        lists = [np.zeros(0, dtype) if cell is None or not cell.size else cell for cell in cells]
        return _pad_nested(lists, dtype, nested, depth, np.flatnonzero(~missing).tolist())[0]
    except CellError as error:
        row = int(np.searchsorted(np.cumsum(length), error.row or 0, "right"))
        raise CellError(column.name, error.problem, row) from None


def _padding(items: Values, column: ColumnDecoding) -> Any:
    """Return the value that fills lists."""
    policy = column.ragged if isinstance(column.ragged, Pad) else Pad()
    if items.dtype != OBJECTS:
        return fitted_to(policy, items.dtype, column.name)
    example = next((item for item in items.flat if item is not None), None)
    return fitted(policy, pa.null() if example is None else pa.scalar(example).type, column.name)


def _width(length: Values, column: ColumnDecoding, present: list[int]) -> int:
    """Return the common width of all lists; raise an error if one is too long, or if they differ without a policy."""
    ragged = column.ragged
    if isinstance(ragged, Pad):
        width, too_long = pad_width(length, ragged)
        if too_long is not None:
            raise CellError(column.name, f"the list has {too_long_problem(length[too_long], ragged)}", too_long)
        return width
    width = int(length[present[0]]) if present else 0
    for row in present:
        if length[row] != width:
            problem = f"the list has {length[row]} values, and another of its batch has {width}. {ragged} needs one length. "
            raise CellError(column.name, problem + "Use Pad(), Offsets() or AsObjects().", row)
    return width
