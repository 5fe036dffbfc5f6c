"""`petastorm.generator`: random rows for tests."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np

from penstock.petastorm.unischema import Unischema

__all__ = ["LIST_SIZE", "generate_datapoint"]

LIST_SIZE = 13
"""The size of a dimension without a declared size."""


def generate_datapoint(schema: Unischema) -> dict[str, Any]:
    """Return a row of random values: any value of an integer dtype, and 0 to 1 for other dtypes."""
    return {
        name: _random_value(field.numpy_dtype, tuple(LIST_SIZE if size is None else size for size in field.shape))
        for name, field in schema.fields.items()
    }


def _random_value(kind: Any, shape: tuple[int, ...]) -> Any:
    rng = np.random.default_rng()
    if kind is Decimal:
        return np.array([Decimal(str(value)) for value in rng.random(shape).reshape(-1)], dtype=object).reshape(shape)
    dtype = np.dtype(kind)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return np.asarray(rng.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True))
    return np.asarray(rng.random(shape)).astype(dtype)
