"""`petastorm.etl.legacy`: pickles of datasets of all versions, which are read as data and never executed."""

from __future__ import annotations

from typing import Any

from penstock.errors import DataError
from penstock.formats.petastorm import load_indexes, load_unischema
from penstock.petastorm._impl.dataset import log_moved_modules, unischema_from_stored
from penstock.petastorm._impl.indexes import stored_indexer

__all__ = ["RestrictedUnpickler", "depickle_legacy_package_name_compatible", "restricted_loads", "safe_modules"]

safe_modules = {"petastorm", "collections", "numpy", "pyspark", "decimal", "builtins", "copy_reg", "__builtin__"}
"""The packages that pickles of datasets name. Additions have no effect: Penstock has a closed list of names."""


def restricted_loads(s: bytes) -> Any:
    """Return the schema, or the indexes, of a pickle of a dataset.

    Raises:
        DataError: If it is another pickle.
    """
    try:
        return unischema_from_stored(load_unischema(s))
    except DataError as error:
        try:
            return {name: stored_indexer(index) for name, index in load_indexes(s).items()}
        except DataError:
            raise error from None


def depickle_legacy_package_name_compatible(pickled_string: bytes) -> Any:
    """Return the schema, or the indexes, of a pickle of any version, with old names of modules.

    Raises:
        DataError: If it is another pickle.
    """
    log_moved_modules(pickled_string)
    return restricted_loads(pickled_string)


class RestrictedUnpickler:
    """Reads a pickle of a dataset from a file."""

    def __init__(self, file: Any) -> None:
        """Store the file."""
        self._file = file

    def load(self) -> Any:
        """Return the schema, or the indexes, of the pickle.

        Raises:
            DataError: If it is another pickle.
        """
        return restricted_loads(self._file.read())
