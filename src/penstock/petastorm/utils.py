"""`petastorm.utils`: decoding of single rows, and functions in subprocesses."""

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
    """A cell cannot be decoded; the message has its field and location."""


def decode_row(row: Mapping[str, Any], schema: Any) -> dict[str, Any]:
    """Return the decoded values of a stored row; fields that are not in the schema are dropped.

    Raises:
        DecodeFieldError: If a cell cannot be decoded.
    """
    decoded = {}
    for name, field in schema.fields.items():
        if name not in row:
            continue
        try:
            decoded[name] = _decode(field, row[name])
        except Exception as error:
            raise DecodeFieldError(f'Decoding field "{name}" failed: {error}') from error
    return decoded


def _decode(field: Any, value: Any) -> Any:
    if value is None:
        return None
    if field.codec is not None:
        return field.codec.decode(field, value)
    kind = field.numpy_dtype
    plain = isinstance(kind, type) and (issubclass(kind, np.generic) or kind is Decimal)
    return kind(value) if plain and not field.shape else value


def add_to_dataset_metadata(dataset: Any, key: bytes, value: bytes) -> None:
    """Add a key to the metadata of a dataset in `_common_metadata`."""
    store_keys(as_dataset(dataset), {key: value})


def run_in_subprocess(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the result of a function in another process, which does not run the main script of this one.

    Raises:
        Exception: The error of the function.
    """
    with TemporaryDirectory() as directory:
        answer = Path(directory) / "answer"
        code = exec_in_new_process(_write_answer, str(answer), func, args, kwargs).wait()
        if not answer.exists():
            raise RuntimeError(f"The process that ran {func!r} ended with code {code} and no answer. Look at what it printed.")
        value, error = loads(answer.read_bytes())
    if error is not None:
        raise error
    return value


def _write_answer(answer: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Write the result of a function, or its error, to a file."""
    value, raised = None, None
    try:
        value = func(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - the other process raises it
        error.add_note(f"In process {os.getpid()}:\n{traceback.format_exc()}")
        raised = error
    Path(answer).write_bytes(dumps((value, raised)))
