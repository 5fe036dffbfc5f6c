"""Errors of missing, changed and damaged files: the place, the reason and the remedy."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

import pyarrow as pa

from penstock.errors import DataChangedError, DataError, listed
from penstock.model import Snapshot

ADVICE = {
    errno.EACCES: "Get the right to read it.",
    errno.EPERM: "Get the right to read it.",
    errno.EIO: "Check the storage.",
    errno.EMFILE: "Allow this process more open files (ulimit -n), or close some.",
}

MAX_NAMED_COLUMNS = 5


class _ColumnsError(OSError):
    """An error of some columns of a file."""

    columns: tuple[str, ...] = ()


def read_columns(read: Callable[[list[str]], pa.Table], columns: list[str], rows: int) -> pa.Table:
    """Return the columns that a function reads; on failure, find out which of them cannot be read.

    Raises:
        OSError: If a column cannot be read; `read_error` reports which.
    """
    try:
        return read(columns)
    except (OSError, pa.ArrowException) as error:
        # An error of the operating system concerns all columns, and each attempt may take long.
        if getattr(error, "errno", None) is not None:
            raise
        detailed = _ColumnsError(str(error))
        detailed.columns = tuple(column for column in columns if _is_bad(read, column, rows))
        raise detailed from error


def _is_bad(read: Callable[[list[str]], pa.Table], column: str, rows: int) -> bool:
    try:
        return bool(read([column]).num_rows != rows)
    except (OSError, pa.ArrowException):
        return True


def read_error(where: str, rows: int, error: Exception) -> DataError:
    """Return the error for a file, or one of its row groups, that cannot be read.

    Example:
        >>> print(read_error("a.parquet, row group 3", 10, OSError(errno.EACCES, "Permission denied")))
        a.parquet, row group 3: cannot be read: Permission denied. The table says it has 10 rows. Get the right to read it.
    """
    place = where + _in_columns(getattr(error, "columns", ()))
    if "CRC checksum" in str(error):
        return DataError(
            f"{place}: a page does not match its checksum: its bytes changed in storage. "
            f"The table says it has {rows} rows. Restore the file, or write it again."
        )
    if "decrypt" in str(error).lower():
        return DataError(
            f"{place}: it is encrypted. Encryption is not supported. Leave it out, or write the file again without it."
        )
    if isinstance(error, UnicodeDecodeError):
        return DataError(f"{place}: a name in its footer is not UTF-8: {error}. Restore the file, or write it again.")
    advice = ADVICE.get(getattr(error, "errno", None) or 0, "Check the file.")
    return DataError(f"{place}: cannot be read: {os_message(error)}. The table says it has {rows} rows. {advice}")


def row_count_error(where: str, stated: int, actual: int) -> DataError:
    """Return the error for a file, or a row group, whose pages have another number of rows than its footer says."""
    problem = f"its footer says {stated} rows, and its pages have {actual}"
    return DataError(f"{where}: {problem}. The file is damaged. Restore it, or write it again.")


def timestamp_range_error(where: str, column: str) -> DataError:
    """Return the error for timestamps of a file that do not fit the table's nanoseconds."""
    return DataError(
        f"{where}, column {column!r}: it has timestamps before the year 1677 or after 2262, which do not fit nanoseconds. "
        "The table has the column in nanoseconds, because its files do not state a unit. Open it with a schema in which it "
        "is pyarrow.timestamp('us'): format=ParquetFormat(columns=schema)."
    )


def footer_error(path: str, why: object) -> DataError:
    """Return the error for a file whose footer cannot be read."""
    if getattr(why, "errno", None) in ADVICE:  # refused by the operating system, so the file itself may be fine
        return DataError(f"{path}: the footer cannot be read: {os_message(why)}. {ADVICE[why.errno]}")  # type: ignore[attr-defined]
    text = " ".join(str(why).split()).rstrip(".")
    if isinstance(why, UnicodeDecodeError):
        text = f"a name in it is not UTF-8: {text}"
    if isinstance(why, NotImplementedError):
        return DataError(f"{path}: it has a column of a type that Arrow does not read: {text}. Write it in another type.")
    return DataError(f"{path}: the footer cannot be read: {text}; expected a complete Parquet file. Write the file again.")


def os_message(error: object) -> str:
    """Return the reason of an error, in the operating system's words if it has them.

    Example:
        >>> os_message(OSError(13, "Failed to open local file 'a'. Detail: [errno 13] Permission denied"))
        'Permission denied'
    """
    number, why = getattr(error, "errno", None), getattr(error, "strerror", None) or str(error)
    # Arrow puts its own context first and the operating system's message last.
    why = why.rpartition("Detail: ")[2] if number is not None else why
    return " ".join(why.split()).removeprefix(f"[errno {number}] ").rstrip(".")


def _in_columns(columns: Sequence[str]) -> str:
    if not columns:
        return ""
    return f", column{'s' if len(columns) > 1 else ''} {listed(map(repr, columns), MAX_NAMED_COLUMNS)}"


def missing_file_error(snapshot: Snapshot, file: int, where: str) -> DataChangedError:
    """Return the error for a data file that does not exist any more."""
    keep = "for long runs, keep files longer: delta.deletedFileRetentionDuration"
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


def changed_file_error(where: str) -> DataChangedError:
    """Return the error for a file that changed after the table was opened."""
    return DataChangedError(
        f"{where}: the file was changed after the table was opened: its size or the time of its last write differ. "
        "Open the table again; a state saved before cannot be resumed."
    )
