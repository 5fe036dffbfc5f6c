"""Errors that cross from one process to another: the same type, the same text, and where they were raised."""

from __future__ import annotations

import contextlib
import os
import traceback
from typing import Any

import cloudpickle

from penstock.errors import WorkerError

__all__ = ["error_in", "pack_error"]


def pack_error(error: BaseException) -> bytes:
    """Return an error as it crosses, with the text of its traceback."""
    where = f"In process {os.getpid()}:\n{''.join(traceback.format_exception(error)).rstrip()}"
    for parts in (_whole, _in_parts):
        with contextlib.suppress(Exception):  # it may hold anything, and pickling runs what it holds
            packed: bytes = cloudpickle.dumps((*parts(error), where))
            make, given, _ = cloudpickle.loads(packed)
            make(*given)
            return packed
    told: bytes = cloudpickle.dumps((_unknown, (f"{type(error).__qualname__}: {error}",), where))
    return told


def error_in(packed: bytes) -> BaseException:
    """Return an error that has crossed; the traceback of the other process is its note."""
    try:
        make, given, where = cloudpickle.loads(packed)
        error: BaseException = make(*given)
    except Exception as why:  # noqa: BLE001 - a class that can be unpickled there and not here
        return _unknown(f"an error that cannot be told here ({why})")
    error.add_note(where)
    return error


def _whole(error: BaseException) -> tuple[Any, tuple[Any, ...]]:
    """Return an error as pickle takes it."""
    return _same, (error,)


def _in_parts(error: BaseException) -> tuple[Any, tuple[Any, ...]]:
    """Return the parts of an error whose class cannot be called with its own arguments."""
    return _rebuilt, (type(error), error.args, error.__dict__)


def _same(error: BaseException) -> BaseException:
    return error


def _rebuilt(kind: type[BaseException], args: tuple[Any, ...], more: dict[str, Any]) -> BaseException:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(more)
    return error


def _unknown(told: str) -> BaseException:
    return WorkerError(
        f"A process raised {told}. An error that can be pickled would have come with its own type. "
        "See below where it was raised."
    )
