"""Rows as bytes: `petastorm.reader_impl.pickle_serializer`. Readers here send none, and nothing of a dataset is given to it."""

from __future__ import annotations

from typing import Any

from penstock.petastorm._impl.pickling import dumps, loads

__all__ = ["PickleSerializer"]


class PickleSerializer:
    """Pickles of whatever a program gives it; unpickle only what the same program has pickled."""

    def serialize(self, rows: Any) -> bytes:
        """Return an object as bytes."""
        return dumps(rows)

    def deserialize(self, serialized_rows: bytes) -> Any:
        """Return the object of bytes."""
        return loads(serialized_rows)
