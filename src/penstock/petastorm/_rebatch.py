"""Batches of one size, cut out of those of row groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Rebatch"]


@dataclass(slots=True)
class _Held:
    """A batch of which some rows are handed out: where it comes from, and which row comes next."""

    origin: Any
    batch: Any
    rows: int
    at: int = 0


class Rebatch:
    """Holds batches of row groups, and gives back batches of one size.

    Args:
        size: Rows of a batch.

    Attributes:
        rows: How many rows are there.
        next_row: Where the row after the last batch comes from, and its number there.
    """

    def __init__(self, size: int) -> None:
        """Begin without rows."""
        self.size, self._held, self.rows = size, deque[_Held](), 0
        self.next_row: tuple[Any, int] = (None, 0)

    def put(self, origin: Any, batch: Any, skipped: int = 0) -> None:
        """Add a batch, without its first rows where some were handed out before."""
        rows = len(batch[0]) if len(batch) else 0
        if rows > skipped:
            self._held.append(_Held(origin, batch, rows, skipped))
            self.rows += rows - skipped

    def take(self, rows: int) -> Any:
        """Return a batch of so many rows, which are there, and note where the next one comes from."""
        parts = []
        while rows:
            held = self._held[0]
            count = min(rows, held.rows - held.at)
            parts.append([column[held.at : held.at + count] for column in held.batch])
            held.at += count
            rows -= count
            self.rows -= count
            self.next_row, kind = (held.origin, held.at), type(held.batch)
            if held.at == held.rows:
                self._held.popleft()
        if self._held:
            self.next_row = (self._held[0].origin, self._held[0].at)
        if len(parts) == 1:
            return kind(*parts[0])
        return kind(*(_joined(name, columns) for name, columns in zip(kind._fields, zip(*parts, strict=True), strict=True)))


def _joined(name: str, columns: Sequence[Any]) -> Any:
    """Return parts of a column as one.

    Raises:
        RuntimeError: If lists of two row groups differ in length.
    """
    arrays = [np.asarray(column) for column in columns]
    shapes = {array.shape[1:] for array in arrays}
    if len(shapes) > 1:
        told = ", ".join(sorted(str(shape) for shape in shapes))
        msg = f"Length of all values in column '{name}' are expected to be the same length. Got arrays of {told} in one batch."
        raise RuntimeError(msg)
    return np.concatenate(arrays)
