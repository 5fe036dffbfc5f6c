"""Errors of a worker process in the parent: the same type and text, and a note with the traceback."""

from __future__ import annotations

import contextlib
import os
import traceback
from typing import Any

import cloudpickle

from penstock.errors import WorkerError

__all__ = ["pack_error", "unpack_error"]


def pack_error(error: BaseException) -> bytes:
    """Return an error as a pickle, with the text of its traceback."""
    where = f"In process {os.getpid()}:\n{''.join(traceback.format_exception(error)).rstrip()}"
    by_parts = (type(error), error.args, error.__dict__)  # for a class that cannot be called with its own arguments
    for function, arguments in ((_same, (error,)), (_rebuild, by_parts)):
        with contextlib.suppress(Exception):  # it may hold anything, and pickling runs what it holds
            packed: bytes = cloudpickle.dumps((function, arguments, where))
            rebuild, unpacked, _ = cloudpickle.loads(packed)
            rebuild(*unpacked)
            return packed
    described: bytes = cloudpickle.dumps((_unknown, (f"{type(error).__qualname__}: {error}",), where))
    return described


def unpack_error(packed: bytes) -> BaseException:
    """Return an error that another process has packed; the traceback there is its note."""
    try:
        function, arguments, where = cloudpickle.loads(packed)
        error: BaseException = function(*arguments)
    except Exception as problem:  # noqa: BLE001 - a class that can be unpickled there and not here
        return _unknown(f"an error that cannot be unpickled here ({problem})")
    error.add_note(where)
    return error


def _same(error: BaseException) -> BaseException:
    return error


def _rebuild(kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]) -> BaseException:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


def _unknown(description: str) -> BaseException:
    return WorkerError(
        f"A process raised {description}. An error that can be pickled would have come with its own type. "
        "See below where it was raised."
    )
