"""The errors Penstock raises, as one tree.

Every error of ours is a `PenstockError` and also the built-in that Python would have raised, so both
`except penstock.PenstockError` and `except KeyError` work:

* PenstockError
    * ColumnNotFoundError (KeyError)      a name that the table does not have
    * ArgumentError (ValueError)          an argument that cannot be meant
        * UnknownArgumentError (TypeError)  an argument that the call does not have
    * FilterError (ValueError)            a filter that does not fit the table
    * EmptyDatasetError (ValueError)      nothing, or too little, to hand out
    * RowNotFoundError (IndexError)       a row number that the dataset does not have
    * StateError (ValueError)             a checkpoint of another table, order or question
    * TableNotFoundError (FileNotFoundError)  nothing that we can open lies there
    * DataError (ValueError)              a data file that cannot be read as promised
        * DataChangedError                what is read differs from what was planned
        * UnorderedError                  rows that a sequence needs in the order of time, and are not
    * MapError (ValueError)               a map that broke its promise
    * WorkerError (RuntimeError)          a process that ended, hung or could not begin
    * WriteError (OSError)                storage that refuses what is written to it
    * MissingExtraError (ImportError)     an optional package that is not installed

Each message has three parts: what was wrong, what was expected or exists, and what to do next.
"""

from __future__ import annotations

import difflib
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
    """The root of every error that Penstock raises on purpose.

    Example:
        >>> from penstock.errors import ColumnNotFoundError, PenstockError
        >>> issubclass(ColumnNotFoundError, PenstockError)
        True
    """


class ArgumentError(PenstockError, ValueError):
    """An argument has a value that cannot be meant.

    Example:
        >>> issubclass(ArgumentError, ValueError)
        True
    """


class UnknownArgumentError(ArgumentError, TypeError):
    """A call got an argument by a name that it does not have.

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
        """Return the sentence itself; KeyError would show its repr."""
        return str(self.args[0]) if self.args else ""

    @classmethod
    def of(cls, name: object, existing: Iterable[str], *, table: str) -> ColumnNotFoundError:
        """Return the error for one missing name, with what exists and the nearest name."""
        names = list(existing)
        lower = {each.lower(): each for each in reversed(names)}
        near = [lower[each] for each in difflib.get_close_matches(str(name).lower(), lower, n=1, cutoff=0.6)]
        hint = f" Did you mean {near[0]!r}?" if near else " Print `ds.schema` to see their types."
        base, _, suffix = str(name).rpartition("_")
        if base in names and suffix in ("valid", "length", "offsets"):
            hint = f" Select {base!r}: {name!r} comes with it, where .nulls() or .ragged() asks for it."
        return cls(f"Column {name!r} is not in {table}. Columns: {listed(names)}.{hint}")


class FilterError(PenstockError, ValueError):
    """A filter does not fit the table, or is not a filter.

    Example:
        >>> issubclass(FilterError, ValueError)
        True
    """


class EmptyDatasetError(PenstockError, ValueError):
    """There are no rows to hand out, or fewer than the question needs.

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
    """A saved state does not belong to this table, order or question.

    Example:
        >>> issubclass(StateError, ValueError)
        True
    """


class TableNotFoundError(PenstockError, FileNotFoundError):
    """Nothing that Penstock can open lies at a location.

    Example:
        >>> issubclass(TableNotFoundError, FileNotFoundError)
        True
    """


class DataError(PenstockError, ValueError):
    """A data file cannot be read as its table promised.

    Example:
        >>> issubclass(DataError, ValueError)
        True
    """


class DataChangedError(DataError):
    """What was read differs from what was planned: the data changed under us.

    Example:
        >>> issubclass(DataChangedError, DataError)
        True
    """


class MemoryLimitError(PenstockError, MemoryError):
    """What has to be in memory at once is more than `memory_limit` allows.

    Example:
        >>> issubclass(MemoryLimitError, MemoryError)
        True
    """


class UnorderedError(DataError):
    """Rows do not lie in the order of time, which a sequence needs.

    Example:
        >>> issubclass(UnorderedError, DataError)
        True
    """


class MapError(PenstockError, ValueError):
    """A function given to `map` returned something other than it promised.

    Example:
        >>> issubclass(MapError, ValueError)
        True
    """


class WorkerError(PenstockError, RuntimeError):
    """A process that runs maps, or decodes, has ended or hangs, or could not begin.

    Example:
        >>> issubclass(WorkerError, RuntimeError)
        True
    """


class WriteError(PenstockError, OSError):
    """Storage refuses what is written to it: it is full, or may not be written to.

    Its `errno` is the system's number for why, where there is one.

    Example:
        >>> WriteError.of("It is full.", OSError(28, "No space left on device")).errno
        28
    """

    @classmethod
    def of(cls, message: str, cause: OSError) -> WriteError:
        """Return the error that tells of another."""
        found = cls(message)
        found.errno = cause.errno
        return found


class MissingExtraError(PenstockError, ImportError):
    """A package that an optional part needs is not installed.

    Example:
        >>> issubclass(MissingExtraError, ImportError)
        True
    """


def listed(names: Iterable[str], limit: int = 20) -> str:
    """Return names for a message: all of them, or the first `limit` and how many more there are."""
    every = list(names)
    shown = ", ".join(every[:limit]) or "(none)"
    return shown if len(every) <= limit else f"{shown} and {len(every) - limit} more"
