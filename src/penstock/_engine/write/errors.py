"""Errors of a write that storage or Parquet refuses: what was written, what happened to the table, and what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from penstock._engine.storage.file_errors import os_message
from penstock.errors import DataError, PenstockError, WriteError

ADVICE = {
    errno.ENOSPC: "Free some space, or write to another place.",
    errno.EDQUOT: "Free some space of your quota, or write to another place.",
    errno.EFBIG: "Write smaller files, file_mb=64, or write to another place.",
    errno.EACCES: "Get the permission to write there, or write to another place.",
    errno.EPERM: "Get the permission to write there, or write to another place.",
    errno.EROFS: "Write to another place.",
    errno.ENAMETOOLONG: "Use a shorter name; partition values are names of directories too.",
    errno.EMFILE: "Allow this process more open files (ulimit -n), or close some.",
}


@contextmanager
def storage_errors(what: str, url: str) -> Iterator[None]:
    """Raise errors of storage as a `WriteError`.

    Example:
        >>> with storage_errors("The file a.parquet", "/data/t"):
        ...     raise OSError(errno.ENOSPC, "No space left on device")
        Traceback (most recent call last):
            ...
        penstock.errors.WriteError: The file a.parquet of /data/t cannot be written: No space left on device. ...
    """
    unchanged = "Nothing of this write appears; existing data stays."
    try:
        yield
    except PenstockError:
        raise
    except OSError as error:
        advice = ADVICE.get(error.errno or 0, "Check the storage, then write again.")
        msg = f"{what} of {url} cannot be written: {os_message(error)}. {unchanged} {advice}"
        raise WriteError.of(msg, error) from error
    except NotImplementedError as error:  # raised by read-only filesystems
        msg = f"{what} of {url} cannot be written: its filesystem is read-only. {unchanged} Write to another place."
        raise WriteError(msg) from error


@contextmanager
def parquet_errors(what: str, url: str) -> Iterator[None]:
    """Raise errors about values that Parquet cannot store as a `DataError`; the arguments are those of `storage_errors`."""
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(
            f"{what} of {url} cannot be written because Parquet cannot store it: {str(error).rstrip('.')}. Nothing of this "
            "write appears; existing data stays. Convert the column, or leave it out."
        ) from error
