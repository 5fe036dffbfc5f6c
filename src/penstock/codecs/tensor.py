"""Arrays of one shape as fixed-shape tensors of Arrow, which are read without parsing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.codecs.scalar import NUMPY
from penstock.errors import ArgumentError
from penstock.schema import Codec, Field

__all__ = ["CODECS", "Tensor"]

MAX_VALUES = 2**31 - 1
"""The limit of Arrow on the values of one tensor."""


@dataclass(frozen=True)
class Tensor(Codec):
    """Arrays of one shape and a plain number type, stored as Arrow's fixed-shape tensors.

    Other Parquet readers read them as lists of numbers; readers that support Arrow's tensors also read the shape.

    Example:
        >>> Tensor().storage(Field("x", np.float32, (2, 3), Tensor()))
        FixedShapeTensorType(extension<arrow.fixed_shape_tensor[value_type=float, shape=[2,3]]>)
    """

    name = "tensor"

    def check(self, field: Field) -> None:
        """Check that this codec can store the field.

        Raises:
            ArgumentError: If its shape is open, empty or too large, or its dtype is not a plain number.
        """
        if not field.shape or None in field.shape or 0 in field.shape:
            msg = (
                f"Field {field.name!r} has shape {field.shape}, but Tensor stores arrays of one shape that is not empty. Use "
                "penstock.codecs.Npy()."
            )
            raise ArgumentError(msg)
        if prod(size or 0 for size in field.shape) > MAX_VALUES:
            msg = (
                f"Field {field.name!r} has shape {field.shape}, but Tensor stores up to {MAX_VALUES} values in a cell. "
                "Use penstock.codecs.Raw()."
            )
            raise ArgumentError(msg)
        if field.dtype not in NUMPY or field.dtype.kind not in "biuf":
            msg = f"Field {field.name!r} has dtype {field.dtype}, but Tensor stores plain numbers. Use penstock.codecs.Npy()."
            raise ArgumentError(msg)

    def storage(self, field: Field) -> pa.DataType:
        """Return the tensor type of a field."""
        return pa.fixed_shape_tensor(NUMPY[field.dtype], [size or 0 for size in field.shape])

    def encode_column(self, field: Field, cells: Sequence[Any] | npt.NDArray[Any]) -> pa.Array:
        """Return cells as tensors."""
        shape = tuple(size or 0 for size in field.shape)
        missing = np.zeros(len(cells), dtype=np.bool_)
        if isinstance(cells, np.ndarray):
            whole = cells
        else:
            whole = np.zeros((len(cells), *shape), field.dtype)
            for row, cell in enumerate(cells):
                missing[row] = cell is None
                whole[row] = 0 if cell is None else cell
        values = pa.array(np.ascontiguousarray(whole).reshape(-1), type=NUMPY[field.dtype])
        lists = pa.FixedSizeListArray.from_arrays(values, prod(shape), mask=pa.array(missing) if missing.any() else None)
        return pa.ExtensionArray.from_storage(self.storage(field), lists)


CODECS = (Tensor,)
