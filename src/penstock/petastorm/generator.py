"""Rows of chance, for tests: `petastorm.generator`."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np

from penstock.petastorm.unischema import Unischema

__all__ = ["LIST_SIZE", "generate_datapoint"]

LIST_SIZE = 13
"""What stands for a size that differs from row to row."""


def generate_datapoint(schema: Unischema) -> dict[str, Any]:
    """Return a row of random values: of any that the dtype has for whole numbers, from 0 to 1 for others."""
    return {
        name: _value(field.numpy_dtype, tuple(LIST_SIZE if size is None else size for size in field.shape))
        for name, field in schema.fields.items()
    }


def _value(kind: Any, shape: tuple[int, ...]) -> Any:
    draw = np.random.default_rng()
    if kind is Decimal:
        return np.array([Decimal(str(one)) for one in draw.random(shape).reshape(-1)], dtype=object).reshape(shape)
    dtype = np.dtype(kind)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return np.asarray(draw.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True))
    return np.asarray(draw.random(shape)).astype(dtype)
