"""How far a reader has come, as a few numbers, and what they are numbers of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock._engine.row_groups.order import RowGroupTasks
from penstock.errors import StateError
from penstock.model import Snapshot

__all__ = ["Progress", "fingerprint"]

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The row that comes next.

    Attributes:
        seed: Decides the order.
        first: The epoch that the reading began with.
        epoch: The epoch of the row.
        place: Which of the row groups of that epoch it is in.
        rows: How many rows, or batches, of that row group come before it.
    """

    seed: int
    first: int = 0
    epoch: int = 0
    place: int = 0
    rows: int = 0

    def dump(self, name: str) -> dict[str, Any]:
        """Return it as JSON can hold it, with the name of what is read."""
        numbers = {each: getattr(self, each) for each in ("seed", "first", "epoch", "place", "rows")}
        return {"state": VERSION, "reader": name, **numbers}

    @classmethod
    def load(cls, state: Any, name: str) -> Progress:
        """Return what was saved of a reader of the same.

        Raises:
            StateError: If it was saved over other data or with other arguments, or is none.
        """
        numbers = ("seed", "first", "epoch", "place", "rows")
        told = dict(state) if isinstance(state, Mapping) else {}
        if told.get("state") != VERSION or not all(type(told.get(number)) is int for number in numbers):
            raise StateError(f"load_state_dict got {state!r}, which is no state of a reader. Give what state_dict() returned.")
        if state.get("reader") != name:
            msg = (
                "load_state_dict got the state of another reader: its data, or the arguments that decide which rows come in "
                "which order, were others. Make the reader with the same, or begin anew."
            )
            raise StateError(msg)
        return cls(**{number: state[number] for number in numbers})


def fingerprint(snapshot: Snapshot, lots: RowGroupTasks, asked: Mapping[str, Any]) -> str:
    """Return a name of what is read in which order: files, row groups, and the arguments that decide it."""
    found = hashlib.blake2b(json.dumps(asked, sort_keys=True, default=str).encode(), digest_size=16)
    for column in (snapshot.files.path, snapshot.files.stamp):
        found.update("\n".join(column.to_pylist()).encode())
    for array in (lots.ordinal, lots.units.start, lots.units.rows):
        found.update(np.ascontiguousarray(array, dtype="<i8").tobytes())
    return found.hexdigest()
