"""Arrow becomes NumPy, a column at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.dtypes import numpy_type
from penstock.errors import DataError

__all__ = ["decode"]


def decode(column: pa.ChunkedArray, name: str, where: str) -> npt.NDArray[Any]:
    """Return a column as one array, rows first; read-only where it still is Arrow's memory.

    Nulls are NaN among floats, NaT among times and None among objects; integers and booleans have no value for them.

    Raises:
        DataError: If an integer or boolean column has nulls.
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # no chunk at all
        array = pa.array([], type=column.type)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    dtype, shape = numpy_type(array.type)
    if dtype.kind == "O":
        return _objects(array)
    if not shape:
        return _fixed(array, dtype, name, where)
    return _cells(array, name, where)


def _fixed(array: pa.Array, dtype: np.dtype[Any], name: str, where: str) -> npt.NDArray[Any]:
    if array.null_count and dtype.kind in "iub":
        msg = (
            f"{where}, column {name!r}: {array.null_count} of {len(array)} values are null, and {dtype} has no value for a "
            f"null. Keep the rows without: .where(penstock.col({name!r}).is_not_null())."
        )
        raise DataError(msg)
    found: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return found if found.dtype == dtype else found.astype(dtype)


def _cells(array: pa.Array, name: str, where: str) -> npt.NDArray[Any]:
    """Return lists as one array where all are of one length by type, else as an object array of arrays."""
    if pa.types.is_fixed_size_list(array.type) and not array.null_count:
        inner = decode(pa.chunked_array([array.flatten()]), name, where)
        return inner.reshape(len(array), array.type.list_size, *inner.shape[1:])
    found = np.empty(len(array), dtype=object)
    for row, cell in enumerate(array):
        if cell.is_valid:
            found[row] = decode(pa.chunked_array([cell.values]), name, where)
    return found


def _objects(array: pa.Array) -> npt.NDArray[Any]:
    """Return Python values in an object array, which is never guessed into another shape or type."""
    found = np.empty(len(array), dtype=object)
    found[:] = array.to_pylist()
    return found
