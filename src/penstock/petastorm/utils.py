"""Small things of `petastorm.utils`: rows decoded one by one, and what goes wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from decimal import Decimal
from multiprocessing import get_context
from typing import Any

import numpy as np

from penstock.errors import DataError
from penstock.petastorm._carry import packed, unpacked
from penstock.petastorm._keys import store_keys
from penstock.petastorm.etl.dataset_metadata import as_dataset

__all__ = ["DecodeFieldError", "add_to_dataset_metadata", "decode_row", "run_in_subprocess"]


class DecodeFieldError(RuntimeError, DataError):
    """A cell cannot be decoded; the message names the field, and where the cell lies."""


def decode_row(row: Mapping[str, Any], schema: Any) -> dict[str, Any]:
    """Return a stored row decoded by the codecs of a schema; fields that the schema does not have are left out.

    Raises:
        DecodeFieldError: If a cell cannot be decoded.
    """
    found = {}
    for name, field in schema.fields.items():
        if name not in row:
            continue
        try:
            found[name] = _decoded(field, row[name])
        except Exception as error:
            raise DecodeFieldError(f'Decoding field "{name}" failed: {error}') from error
    return found


def _decoded(field: Any, value: Any) -> Any:
    """Return a stored value decoded."""
    if value is None:
        return None
    if field.codec is not None:
        return field.codec.decode(field, value)
    kind = field.numpy_dtype
    plain = isinstance(kind, type) and (issubclass(kind, np.generic) or kind is Decimal)
    return kind(value) if plain and not field.shape else value


def add_to_dataset_metadata(dataset: Any, key: bytes, value: bytes) -> None:
    """Store a value with a dataset, in `_common_metadata`, beside whatever is there."""
    store_keys(as_dataset(dataset), {key: value})


def run_in_subprocess(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return what a function returns, run in another process.

    Raises:
        Exception: Whatever it raises there.
    """
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_run, packed((func, args, kwargs))).result()


def _run(data: bytes) -> Any:
    func, args, kwargs = unpacked(data)
    return func(*args, **kwargs)
