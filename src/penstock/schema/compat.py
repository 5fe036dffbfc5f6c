"""Arrow types that each codec reads, and whether a stored column has one of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.codecs import CellCodec, Scalar, Tensor
from penstock.codecs import default as default_codec
from penstock.dtypes import is_encoded, numpy_type
from penstock.schema import Field

__all__ = ["family", "holds_bytes", "incompatible", "storage_of"]

FAMILIES: dict[str, tuple[str, ...]] = {
    "integer": ("is_integer",),
    "float": ("is_floating",),
    "decimal": ("is_decimal",),
    "boolean": ("is_boolean",),
    "text": ("is_string", "is_large_string", "is_string_view"),
    "bytes": ("is_binary", "is_large_binary", "is_binary_view", "is_fixed_size_binary"),
    "date": ("is_date",),
    "timestamp": ("is_timestamp",),
    "duration": ("is_duration",),
    "time": ("is_time",),
}

OBJECTS = {"U": "text", "S": "bytes", "O": "decimal"}
"""The families of dtypes that stand for several Arrow types."""


def family(kind: pa.DataType) -> str | None:
    """Return the family of an Arrow type, or None."""
    return next((word for word, tests in FAMILIES.items() if any(getattr(pa.types, test)(kind) for test in tests)), None)


def holds_bytes(kind: pa.DataType) -> bool:
    """Return whether cells of an Arrow type are bytes or text."""
    return family(kind) in {"bytes", "text"}


def storage_of(field: Field) -> pa.DataType:
    """Return the Arrow type of a field with its codec, or with the default codec."""
    return (field.codec or default_codec(field)).storage(field)


def incompatible(field: Field, kind: pa.DataType) -> str | None:
    """Return what a field's codec reads if a column of an Arrow type is something else; None if it can read the column.

    Example:
        >>> incompatible(Field("x", np.int8, (), Scalar()), pa.int64())
        'single values of int8'
    """
    kind = kind.value_type if is_encoded(kind) else kind
    dtype, shape = numpy_type(kind)
    if isinstance(field.codec, CellCodec):
        compatible, expected = holds_bytes(kind), "bytes"
    elif isinstance(field.codec, Tensor):
        same = len(shape) == len(field.shape) and all(one in (None, two) for one, two in zip(shape, field.shape, strict=True))
        flat = len(shape) == 1 and shape[0] in (None, int(np.prod([size or 0 for size in field.shape])))
        compatible, expected = dtype == field.dtype and (same or flat), f"lists or tensors of {field.dtype} {field.shape}"
    elif isinstance(field.codec, Scalar):
        word = OBJECTS.get(field.dtype.kind)
        compatible = shape == () and (dtype == field.dtype if word is None else family(kind) == word)
        expected = f"single values of {word or field.dtype}"
    else:
        compatible, expected = kind == storage_of(field), str(storage_of(field))
    return None if compatible else expected
