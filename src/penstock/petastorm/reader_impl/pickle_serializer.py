"""`petastorm.reader_impl.pickle_serializer`: pickled rows. Readers of Penstock do not use it, and it never reads a dataset."""

from __future__ import annotations

from typing import Any

from penstock.petastorm._impl.pickling import dumps, loads

__all__ = ["PickleSerializer"]


class PickleSerializer:
    """Pickles objects. Unpickle only what the same program has pickled."""

    def serialize(self, rows: Any) -> bytes:
        """Return the pickle of an object."""
        return dumps(rows)

    def deserialize(self, serialized_rows: bytes) -> Any:
        """Return the object of a pickle."""
        return loads(serialized_rows)
