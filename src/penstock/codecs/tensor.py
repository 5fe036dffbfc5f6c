"""Arrays of one shape as Arrow's own fixed-shape tensors: nothing is parsed to read them."""

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

MOST_VALUES = 2**31 - 1
"""Values of one tensor, as Arrow counts them."""


@dataclass(frozen=True)
class Tensor(Codec):
    """Arrays of one shape and a plain number type, stored as Arrow's fixed-shape tensors.

    Every Parquet reader sees them as lists of numbers; those that know Arrow's tensors see the shape too.

    Example:
        >>> Tensor().storage(Field("x", np.float32, (2, 3), Tensor()))
        FixedShapeTensorType(extension<arrow.fixed_shape_tensor[value_type=float, shape=[2,3]]>)
    """

    name = "tensor"

    def check(self, field: Field) -> None:
        """Refuse shapes that differ or are too large, and dtypes that are no plain numbers.

        Raises:
            ArgumentError: If it is one of them.
        """
        if not field.shape or None in field.shape or 0 in field.shape:
            msg = (
                f"Field {field.name!r} has the shape {field.shape}, and Tensor stores arrays of one shape, not empty. Use "
                "penstock.codecs.Npy()."
            )
            raise ArgumentError(msg)
        if prod(size or 0 for size in field.shape) > MOST_VALUES:
            msg = (
                f"Field {field.name!r} has the shape {field.shape}, and Tensor stores up to {MOST_VALUES} values in a cell. "
                "Use penstock.codecs.Raw()."
            )
            raise ArgumentError(msg)
        if field.dtype not in NUMPY or field.dtype.kind not in "biuf":
            msg = f"Field {field.name!r} is {field.dtype}, and Tensor stores plain numbers. Use penstock.codecs.Npy()."
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
