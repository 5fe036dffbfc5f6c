"""The type table: what each Arrow type is in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["numpy_type"]

FIXED: dict[pa.DataType, np.dtype[Any]] = {
    pa.bool_(): np.dtype(np.bool_),
    pa.int8(): np.dtype(np.int8),
    pa.int16(): np.dtype(np.int16),
    pa.int32(): np.dtype(np.int32),
    pa.int64(): np.dtype(np.int64),
    pa.uint8(): np.dtype(np.uint8),
    pa.uint16(): np.dtype(np.uint16),
    pa.uint32(): np.dtype(np.uint32),
    pa.uint64(): np.dtype(np.uint64),
    pa.float16(): np.dtype(np.float16),
    pa.float32(): np.dtype(np.float32),
    pa.float64(): np.dtype(np.float64),
    pa.date32(): np.dtype("datetime64[D]"),
    pa.date64(): np.dtype("datetime64[ms]"),
}


def numpy_type(kind: pa.DataType) -> tuple[np.dtype[Any], tuple[int | None, ...]]:
    """Return the NumPy dtype of a column of an Arrow type, and the shape of one cell.

    A dimension that differs from row to row is None; what NumPy has no type for is an object.

    Example:
        >>> numpy_type(pa.list_(pa.float32(), 3))
        (dtype('float32'), (3,))
        >>> numpy_type(pa.string())
        (dtype('O'), ())
    """
    if kind in FIXED:
        return FIXED[kind], ()
    if pa.types.is_timestamp(kind):
        return np.dtype(f"datetime64[{kind.unit}]"), ()
    if pa.types.is_duration(kind):
        return np.dtype(f"timedelta64[{kind.unit}]"), ()
    if pa.types.is_dictionary(kind):
        return numpy_type(kind.value_type)
    if pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner, shape = numpy_type(kind.value_type)
        return inner, (kind.list_size if pa.types.is_fixed_size_list(kind) else None, *shape)
    return np.dtype(object), ()
