"""Batches of one size, cut out of those of row groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.petastorm._impl.values import one_array

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
        uneven: The columns whose arrays may differ in shape.

    Attributes:
        rows: How many rows are there.
        next_row: Where the row after the last batch comes from, and its number there.
    """

    def __init__(self, size: int, uneven: Collection[str] = ()) -> None:
        """Begin without rows."""
        self.size, self._uneven = size, uneven
        self._held, self.rows = deque[_Held](), 0
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
        columns = zip(kind._fields, zip(*parts, strict=True), strict=True)
        return kind(*(_joined(name, each, uneven=name in self._uneven) for name, each in columns))


def _joined(name: str, columns: Sequence[Any], *, uneven: bool) -> npt.NDArray[Any]:
    """Return parts of a column as one; as objects where one part has nulls instead of arrays, or arrays may differ.

    Raises:
        RuntimeError: If lists of two row groups differ in length.
    """
    arrays = [np.asarray(column) for column in columns]
    shapes = {array.shape[1:] for array in arrays}
    if len(shapes) > 1:
        if not uneven and () not in shapes:
            told = ", ".join(sorted(str(shape) for shape in shapes))
            said = f"Length of all values in column '{name}' are expected to be the same length."
            raise RuntimeError(f"{said} Got arrays of {told} in one batch.")
        return one_array([cell for array in arrays for cell in array])
    # Where nanoseconds have no place for a moment, a part has the unit of the files, which NumPy would not choose.
    units = {array.dtype for array in arrays if array.dtype.kind == "M"} - {np.dtype("datetime64[ns]")}
    return np.concatenate(arrays, dtype=units.pop() if units else None)
