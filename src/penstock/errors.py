"""The exceptions of Penstock.

Each is a `PenstockError` and also the built-in exception of its kind, so both `except penstock.PenstockError` and
`except KeyError` work:

* PenstockError
    * ColumnNotFoundError (KeyError)      a column that the table does not have
    * ArgumentError (ValueError)          an invalid argument
        * UnknownArgumentError (TypeError)  an argument that the call does not have
    * FilterError (ValueError)            a filter that does not fit the table
    * EmptyDatasetError (ValueError)      no rows, or too few
    * RowNotFoundError (IndexError)       a row number that the dataset does not have
    * StateError (ValueError)             a checkpoint of another table, order or query
    * TableNotFoundError (FileNotFoundError)  no table at a location
    * DataError (ValueError)              data that cannot be read from a file, or stored in one
        * DataChangedError                data that changed after the plan was made
        * UnorderedError                  rows of a sequence that are not in the order of time
    * MemoryLimitError (MemoryError)      rows that need more memory than the limit
    * MapError (ValueError)               an invalid result of a map
    * WorkerError (RuntimeError)          a process that ended, hangs or could not start
    * WriteError (OSError)                a write that storage rejected
    * MissingExtraError (ImportError)     an optional package that is not installed

Each message has three parts: what was wrong, what was expected or exists, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
    "ArgumentError",
    "ColumnNotFoundError",
    "DataChangedError",
    "DataError",
    "EmptyDatasetError",
    "FilterError",
    "MapError",
    "MissingExtraError",
    "PenstockError",
    "RowNotFoundError",
    "StateError",
    "TableNotFoundError",
    "UnknownArgumentError",
    "UnorderedError",
    "WorkerError",
    "WriteError",
]


class PenstockError(Exception):
    """The base class of all exceptions of Penstock.

    Example:
        >>> from penstock.errors import ColumnNotFoundError, PenstockError
        >>> issubclass(ColumnNotFoundError, PenstockError)
        True
    """


class ArgumentError(PenstockError, ValueError):
    """An argument has an invalid value.

    Example:
        >>> issubclass(ArgumentError, ValueError)
        True
    """


class UnknownArgumentError(ArgumentError, TypeError):
    """A call got a keyword argument that it does not have.

    Example:
        >>> issubclass(UnknownArgumentError, TypeError)
        True
    """


class ColumnNotFoundError(PenstockError, KeyError):
    """A column is not in the table.

    Example:
        >>> str(ColumnNotFoundError.of("lable", ["image", "label"], table="mem:t"))
        "Column 'lable' is not in mem:t. Columns: image, label. Did you mean 'label'?"
    """

    def __str__(self) -> str:
        """Return the message; KeyError would return its repr."""
        return str(self.args[0]) if self.args else ""

    @classmethod
    def of(cls, name: object, existing: Iterable[str], *, table: str) -> ColumnNotFoundError:
        """Return the error for a missing name, with the existing names and the closest one."""
        from difflib import get_close_matches

        names = list(existing)
        lower = {each.lower(): each for each in reversed(names)}
        near = [lower[each] for each in get_close_matches(str(name).lower(), lower, n=1, cutoff=0.6)]
        hint = f" Did you mean {near[0]!r}?" if near else " Print `ds.schema` to see their types."
        base, _, suffix = str(name).rpartition("_")
        if base in names and suffix in ("valid", "length", "offsets"):
            hint = f" Select {base!r}: {name!r} is added to it by .nulls() or .ragged()."
        return cls(f"Column {name!r} is not in {table}. Columns: {listed(names)}.{hint}")


class FilterError(PenstockError, ValueError):
    """A filter does not fit the table, or is not a filter.

    Example:
        >>> issubclass(FilterError, ValueError)
        True
    """


class EmptyDatasetError(PenstockError, ValueError):
    """There are no rows, or fewer than the query needs.

    Example:
        >>> issubclass(EmptyDatasetError, ValueError)
        True
    """


class RowNotFoundError(PenstockError, IndexError):
    """A row number is not in the dataset.

    Example:
        >>> issubclass(RowNotFoundError, IndexError)
        True
    """


class StateError(PenstockError, ValueError):
    """A saved state does not belong to this table, order or query.

    Example:
        >>> issubclass(StateError, ValueError)
        True
    """


class TableNotFoundError(PenstockError, FileNotFoundError):
    """There is no table at a location.

    Example:
        >>> issubclass(TableNotFoundError, FileNotFoundError)
        True
    """


class DataError(PenstockError, ValueError):
    """A data file or a value in it cannot be read, or a value cannot be stored.

    Example:
        >>> issubclass(DataError, ValueError)
        True
    """


class DataChangedError(DataError):
    """Data changed between planning and reading.

    Example:
        >>> issubclass(DataChangedError, DataError)
        True
    """


class MemoryLimitError(PenstockError, MemoryError):
    """Rows that have to be in memory together take more than `memory_limit`.

    Example:
        >>> issubclass(MemoryLimitError, MemoryError)
        True
    """


class UnorderedError(DataError):
    """Rows are not in the order of time, which a sequence needs.

    Example:
        >>> issubclass(UnorderedError, DataError)
        True
    """


class MapError(PenstockError, ValueError):
    """A function given to `map` returned an invalid result.

    Example:
        >>> issubclass(MapError, ValueError)
        True
    """


class WorkerError(PenstockError, RuntimeError):
    """A worker process has ended, hangs, or could not start.

    Example:
        >>> issubclass(WorkerError, RuntimeError)
        True
    """


class WriteError(PenstockError, OSError):
    """Storage rejected a write: it is full, or there is no permission.

    Its `errno` is that of the system, if there is one.

    Example:
        >>> WriteError.of("It is full.", OSError(28, "No space left on device")).errno
        28
    """

    @classmethod
    def of(cls, message: str, cause: OSError) -> WriteError:
        """Return the error with a message and the `errno` of its cause."""
        error = cls(message)
        error.errno = cause.errno
        return error


class MissingExtraError(PenstockError, ImportError):
    """An optional package is not installed.

    Example:
        >>> issubclass(MissingExtraError, ImportError)
        True
    """


def listed(names: Iterable[str], limit: int = 20) -> str:
    """Return names for a message: all of them, or the first `limit` and the number of the others."""
    names = list(names)
    text = ", ".join(names[:limit]) or "(none)"
    return text if len(names) <= limit else f"{text} and {len(names) - limit} more"
