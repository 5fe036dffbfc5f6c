"""The position of a reader as a state, and the fingerprint of what is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock._engine.row_groups.tasks import RowGroupTasks
from penstock.errors import StateError
from penstock.model import Snapshot

__all__ = ["ReaderPosition", "read_fingerprint"]

VERSION = 1
NUMBERS = ("seed", "first", "epoch", "place", "rows")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderPosition:
    """The position of the next row.

    Attributes:
        seed: Decides the order.
        first: The first epoch of the iteration.
        epoch: The epoch of the row.
        place: The place of its task in that epoch.
        rows: The number of rows, or batches, of the task that come before it.
    """

    seed: int
    first: int = 0
    epoch: int = 0
    place: int = 0
    rows: int = 0

    def dump(self, fingerprint: str) -> dict[str, Any]:
        """Return the position as a state, which JSON can hold."""
        return {"state": VERSION, "reader": fingerprint, **{name: getattr(self, name) for name in NUMBERS}}

    @classmethod
    def load(cls, state: Any, fingerprint: str) -> ReaderPosition:
        """Return the position of a state.

        Raises:
            StateError: If it is not a state, or that of other data or arguments.
        """
        values = dict(state) if isinstance(state, Mapping) else {}
        if values.get("state") != VERSION or not all(type(values.get(name)) is int for name in NUMBERS):
            raise StateError(f"load_state_dict got {state!r}, which is no state of a reader. Give what state_dict() returned.")
        if values.get("reader") != fingerprint:
            msg = (
                "load_state_dict got the state of another reader: its data, or the arguments that decide which rows come in "
                "which order, were others. Make the reader with the same, or begin anew."
            )
            raise StateError(msg)
        return cls(**{name: values[name] for name in NUMBERS})


def read_fingerprint(snapshot: Snapshot, tasks: RowGroupTasks, arguments: Mapping[str, Any]) -> str:
    """Return a hash of the files, the row groups, and the arguments that decide the order of rows."""
    digest = hashlib.blake2b(json.dumps(arguments, sort_keys=True, default=str).encode(), digest_size=16)
    for column in (snapshot.files.path, snapshot.files.stamp):
        digest.update("\n".join(column.to_pylist()).encode())
    for array in (tasks.ordinal, tasks.units.start, tasks.units.rows):
        digest.update(np.ascontiguousarray(array, dtype="<i8").tobytes())
    return digest.hexdigest()
