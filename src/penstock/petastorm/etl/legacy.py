"""Pickles of datasets of every version: `petastorm.etl.legacy`. They are read as data, and nothing of them is run."""

from __future__ import annotations

from typing import Any

from penstock.errors import DataError
from penstock.formats.petastorm import load_indexes, load_unischema
from penstock.petastorm._impl.dataset import log_moved_modules, unischema_from_stored
from penstock.petastorm._impl.indexes import stored_indexer

__all__ = ["RestrictedUnpickler", "depickle_legacy_package_name_compatible", "restricted_loads", "safe_modules"]

safe_modules = {"petastorm", "collections", "numpy", "pyspark", "decimal", "builtins", "copy_reg", "__builtin__"}
"""What pickles of datasets name. To add to it has no effect: a closed list of names of these is known, and none is imported."""


def restricted_loads(s: bytes) -> Any:
    """Return the schema, or the indexes, that a pickle of a dataset holds.

    Raises:
        DataError: If it holds anything else.
    """
    try:
        return unischema_from_stored(load_unischema(s))
    except DataError as error:
        try:
            return {name: stored_indexer(index) for name, index in load_indexes(s).items()}
        except DataError:
            raise error from None


def depickle_legacy_package_name_compatible(pickled_string: bytes) -> Any:
    """Return what a pickle of a dataset of any version holds; modules that were renamed are known.

    Raises:
        DataError: If it holds anything else.
    """
    log_moved_modules(pickled_string)
    return restricted_loads(pickled_string)


class RestrictedUnpickler:
    """Reads one pickle of a dataset from a file."""

    def __init__(self, file: Any) -> None:
        """Store the file."""
        self._file = file

    def load(self) -> Any:
        """Return what it holds.

        Raises:
            DataError: If that is neither a schema nor indexes.
        """
        return restricted_loads(self._file.read())
