"""Small things of `petastorm.utils`: rows decoded one by one, and what goes wrong with them."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from penstock.errors import DataError
from penstock.petastorm._impl.metadata_keys import store_keys
from penstock.petastorm._impl.pickling import dumps, loads
from penstock.petastorm.etl.dataset_metadata import as_dataset
from penstock.petastorm.workers_pool.exec_in_new_process import exec_in_new_process

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
    """Return what a function returns, run in another process, which does not run the script of this one.

    Raises:
        Exception: Whatever it raises there.
    """
    with TemporaryDirectory() as place:
        answer = Path(place) / "answer"
        code = exec_in_new_process(_answered, str(answer), func, args, kwargs).wait()
        if not answer.exists():
            raise RuntimeError(f"The process that ran {func!r} ended with code {code} and no answer. Look at what it printed.")
        value, error = loads(answer.read_bytes())
    if error is not None:
        raise error
    return value


def _answered(answer: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Write what a function returns, or raises, to a file."""
    value, wrong = None, None
    try:
        value = func(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other process raises it
        error.add_note(f"In process {os.getpid()}:\n{traceback.format_exc()}")
        wrong = error
    Path(answer).write_bytes(dumps((value, wrong)))
