"""Files that cannot be read: which of their columns, why, and what to do."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

import pyarrow as pa
from pyarrow import fs as pafs

from penstock._engine.storage.filesystem import stamp
from penstock.errors import DataChangedError, DataError, listed
from penstock.model import Snapshot

__all__ = [
    "altered",
    "broken_footer",
    "check_same",
    "known_size",
    "miscounted",
    "missing_file",
    "out_of_reach",
    "read_columns",
    "unreadable",
]

ADVICE = {
    errno.EACCES: "Get the right to read it.",
    errno.EPERM: "Get the right to read it.",
    errno.EIO: "Check the storage.",
    errno.EMFILE: "Allow this process more open files (ulimit -n), or close some.",
}

MOST_NAMED = 5
"""Columns that are named in a message."""


class _Unreadable(OSError):  # noqa: N818 - never leaves the engine
    """Columns that cannot be read."""

    columns: tuple[str, ...] = ()


def read_columns(read: Callable[[list[str]], pa.Table], columns: list[str], rows: int) -> pa.Table:
    """Return what is read of some columns of a file; if it cannot be, it is found out which of them cannot.

    Args:
        read: What reads columns.
        columns: Their names.
        rows: How many rows each of them should have.

    Raises:
        OSError: If one cannot; `unreadable` tells which.
    """
    try:
        return read(columns)
    except (OSError, pa.ArrowException) as error:
        # What the system refuses, it refuses for all columns, and may take its time for each.
        if getattr(error, "errno", None) is not None:
            raise
        found = _Unreadable(str(error))
        found.columns = tuple(column for column in columns if _is_bad(read, column, rows))
        raise found from error


def _is_bad(read: Callable[[list[str]], pa.Table], column: str, rows: int) -> bool:
    try:
        return bool(read([column]).num_rows != rows)
    except (OSError, pa.ArrowException):
        return True


def unreadable(where: str, rows: int, error: Exception) -> DataError:
    """Return the error for a file, or a row group of it, that cannot be read.

    Args:
        where: What it is called.
        rows: How many rows it should have.
        error: What went wrong.

    Example:
        >>> print(unreadable("a.parquet, row group 3", 10, OSError(errno.EACCES, "Permission denied")))
        a.parquet, row group 3: cannot be read: Permission denied. The table says it has 10 rows. Get the right to read it.
    """
    number = getattr(error, "errno", None)
    place = where + _in_columns(getattr(error, "columns", ()))
    if "CRC checksum" in str(error):
        return DataError(
            f"{place}: a page does not have the checksum that it was written with: its bytes were changed on storage. "
            f"The table says it has {rows} rows. Restore the file, or write it anew."
        )
    if "decrypt" in str(error).lower():
        return DataError(
            f"{place}: it is encrypted. Encryption is not supported. Leave it out, or write the file again without."
        )
    if isinstance(error, UnicodeDecodeError):
        return DataError(f"{place}: a name in its footer is not UTF-8: {error}. Restore the file, or write it again.")
    advice = ADVICE.get(number or 0, "Check the file.")
    return DataError(f"{place}: cannot be read: {system_words(error)}. The table says it has {rows} rows. {advice}")


def miscounted(where: str, stated: int, found: int) -> DataError:
    """Return the error for a file, or a row group of it, whose pages hold other rows than its footer says.

    Example:
        >>> print(miscounted("a.parquet", 10, 9))
        a.parquet: its footer says 10 rows, and its pages hold 9. The file is damaged. Restore it, or write it again.
    """
    what = f"its footer says {stated} rows, and its pages hold {found}"
    return DataError(f"{where}: {what}. The file is damaged. Restore it, or write it again.")


def out_of_reach(where: str, column: str) -> DataError:
    """Return the error for timestamps that a table has in nanoseconds, and that lie beyond what those reach.

    Example:
        >>> print(out_of_reach("a.parquet", "t"))  # doctest: +ELLIPSIS
        a.parquet, column 't': it has moments before the year 1677 or after 2262, which nanoseconds do not reach...
    """
    return DataError(
        f"{where}, column {column!r}: it has moments before the year 1677 or after 2262, which nanoseconds do not reach, and "
        "the table has the column in nanoseconds, for its files do not say a unit. Open it with a schema in which it is "
        "pyarrow.timestamp('us'): format=ParquetFormat(columns=schema)."
    )


def broken_footer(path: str, why: object) -> DataError:
    """Return the error for a file whose footer cannot be read.

    Example:
        >>> print(broken_footer("a.parquet", "it has no schema"))
        a.parquet: the footer cannot be read: it has no schema. A complete Parquet file was expected. Write the file again.
    """
    if getattr(why, "errno", None) in ADVICE:  # the system refuses, and nothing is said of the file
        return DataError(f"{path}: the footer cannot be read: {system_words(why)}. {ADVICE[why.errno]}")  # type: ignore[attr-defined]
    unknown, garbled = isinstance(why, NotImplementedError), isinstance(why, UnicodeDecodeError)
    why = "a name in it is not UTF-8: " * garbled + " ".join(str(why).split()).rstrip(".")
    if unknown:
        return DataError(f"{path}: it has a column of a type that Arrow does not read: {why}. Write it in another type.")
    return DataError(f"{path}: the footer cannot be read: {why}. A complete Parquet file was expected. Write the file again.")


def system_words(error: object) -> str:
    """Return why something failed, in the system's own words where they are there.

    Example:
        >>> system_words(OSError(13, "Failed to open local file 'a'. Detail: [errno 13] Permission denied"))
        'Permission denied'
    """
    number, why = getattr(error, "errno", None), getattr(error, "strerror", None) or str(error)
    # Arrow tells first what it did, and the system's own words last.
    why = why.rpartition("Detail: ")[2] if number is not None else why
    return " ".join(why.split()).removeprefix(f"[errno {number}] ").rstrip(".")


def _in_columns(columns: Sequence[str]) -> str:
    if not columns:
        return ""
    return f", column{'s' if len(columns) > 1 else ''} {listed(map(repr, columns), MOST_NAMED)}"


def missing_file(snapshot: Snapshot, file: int, where: str) -> DataChangedError:
    """Return the error for a file that is gone."""
    keep = "for runs that last, keep files longer: delta.deletedFileRetentionDuration"
    origin = snapshot.origins.get(snapshot.files.path[file].as_py())
    if origin is not None:
        first, _, last = snapshot.version.partition("..")
        return DataChangedError(
            f"{where}: the file is gone. Version {origin} of {snapshot.table} added its rows, and penstock.changes from "
            f"version {first} to {last} needs them; VACUUM removes files that the newest version does not need. Give "
            f"from_version={origin} or a later one, open the table whole, or restore the file; {keep}."
        )
    if snapshot.version:
        return DataChangedError(
            f"{where}: the file is gone. Version {snapshot.version} of {snapshot.table} needs it; VACUUM removes files that "
            f"newer versions do not need. Open a newer version, or restore the file; {keep}."
        )
    return DataChangedError(f"{where}: the file is gone. It was there when the table was opened. Open the table again.")


def altered(where: str) -> DataChangedError:
    """Return the error for a file that is not the one the table was opened with."""
    return DataChangedError(
        f"{where}: the file was changed after the table was opened: its size or the time of its last write differ. "
        "Open the table again; a state saved before cannot be resumed."
    )


def check_same(snapshot: Snapshot, file: int, filesystem: pafs.FileSystem, where: str) -> None:
    """Refuse a file that is not the one the table was opened with, where that was looked at, or that its log tells of.

    Far away the size that a log tells is not compared: that would be one more request for each file.

    Raises:
        DataChangedError: If it is another.
    """
    told, size = snapshot.files.stamp[file].as_py(), int(snapshot.files.size[file])
    seen = told.startswith("@")
    if not seen and not (snapshot.version and size > 0 and isinstance(filesystem, pafs.LocalFileSystem)):
        return
    info = filesystem.get_file_info(snapshot.files.path[file].as_py())
    if info.type != pafs.FileType.File:
        return
    if seen and stamp(info) != told:
        raise altered(where)
    if not seen and info.size != size:
        msg = (
            f"{where}: it has {info.size} bytes, and the log of {snapshot.table} says {size}. A file as it was committed was "
            "expected; this one was replaced or cut. Restore it."
        )
        raise DataChangedError(msg)


def known_size(snapshot: Snapshot, file: int) -> int | None:
    """Return the bytes that a file had when the table was opened; None where it was not looked at."""
    return int(snapshot.files.size[file]) if snapshot.files.stamp[file].as_py().startswith("@") else None
