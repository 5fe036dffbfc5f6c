"""Storage that refuses what is written to it: told once, with what was written, what became of the table, and what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from penstock._engine.storage.file_errors import os_message
from penstock.errors import DataError, PenstockError, WriteError

__all__ = ["misfits_told", "refusals_told"]

ADVICE = {
    errno.ENOSPC: "Make room, or write elsewhere.",
    errno.EDQUOT: "Make room within your quota, or write elsewhere.",
    errno.EFBIG: "Write smaller files, file_mb=64, or elsewhere.",
    errno.EACCES: "Get the right to write there, or write elsewhere.",
    errno.EPERM: "Get the right to write there, or write elsewhere.",
    errno.EROFS: "Write elsewhere.",
    errno.ENAMETOOLONG: "Use a shorter name; partition values are names of directories too.",
    errno.EMFILE: "Allow this process more open files (ulimit -n), or close some.",
}


@contextmanager
def refusals_told(what: str, url: str) -> Iterator[None]:
    """Tell what storage refuses as an error of ours.

    Args:
        what: What is written, as the beginning of a sentence.
        url: What the table is called.

    Raises:
        WriteError: If storage refuses it.

    Example:
        >>> with refusals_told("The file a.parquet", "/data/t"):
        ...     raise OSError(errno.ENOSPC, "No space left on device")
        Traceback (most recent call last):
            ...
        penstock.errors.WriteError: The file a.parquet of /data/t cannot be written: No space left on device. ...
    """
    try:
        yield
    except PenstockError:
        raise
    except OSError as error:
        advice = ADVICE.get(error.errno or 0, "Check the storage, then write again.")
        told = f"{what} of {url} cannot be written: {os_message(error)}. Nothing of this write appears; what was there "
        raise WriteError.of(f"{told}before stays. {advice}", error) from error
    except NotImplementedError as error:  # as filesystems say that are there to be read
        told = f"{what} of {url} cannot be written: its filesystem only reads. Nothing of this write appears. Write elsewhere."
        raise WriteError(told) from error


@contextmanager
def misfits_told(what: str, url: str) -> Iterator[None]:
    """Tell of values that Parquet does not hold as an error of ours.

    Args:
        what: What is written, as the beginning of a sentence.
        url: What the table is called.

    Raises:
        DataError: If there are such.
    """
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        why = str(error).rstrip(".")
        told = f"{what} of {url} cannot be written, for Parquet does not hold it: {why}. Nothing of this write appears; what "
        raise DataError(f"{told}was there before stays. Convert the column, or leave it out.") from error
