"""Batches of a fixed size, made from the batches of row groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.petastorm._impl.conversions import as_objects

__all__ = ["FixedSizeBatches"]


@dataclass(slots=True)
class _InputBatch:
    """A batch of a row group; `position` is the next row that is not handed out."""

    origin: Any
    batch: Any
    rows: int
    position: int = 0


class FixedSizeBatches:
    """Takes batches of row groups, and returns batches of one size.

    Args:
        size: Rows of a batch.
        ragged: The columns whose arrays may differ in shape.

    Attributes:
        rows: The number of rows that wait.
        next_row: The origin of the row after the last batch, and its number there.
    """

    def __init__(self, size: int, ragged: Collection[str] = ()) -> None:
        """Begin without rows."""
        self.size, self._ragged = size, ragged
        self._inputs, self.rows = deque[_InputBatch](), 0
        self.next_row: tuple[Any, int] = (None, 0)

    def put(self, origin: Any, batch: Any, skipped: int = 0) -> None:
        """Add a batch without its first `skipped` rows."""
        rows = len(batch[0]) if len(batch) else 0
        if rows > skipped:
            self._inputs.append(_InputBatch(origin, batch, rows, skipped))
            self.rows += rows - skipped

    def take(self, rows: int) -> Any:
        """Return a batch of the next rows."""
        parts = []
        while rows:
            first = self._inputs[0]
            count = min(rows, first.rows - first.position)
            parts.append([column[first.position : first.position + count] for column in first.batch])
            first.position += count
            rows -= count
            self.rows -= count
            self.next_row, batch_type = (first.origin, first.position), type(first.batch)
            if first.position == first.rows:
                self._inputs.popleft()
        if self._inputs:
            self.next_row = (self._inputs[0].origin, self._inputs[0].position)
        if len(parts) == 1:
            return batch_type(*parts[0])
        columns = zip(batch_type._fields, zip(*parts, strict=True), strict=True)
        return batch_type(*(_concatenate(name, arrays, ragged=name in self._ragged) for name, arrays in columns))


def _concatenate(name: str, columns: Sequence[Any], *, ragged: bool) -> npt.NDArray[Any]:
    """Return parts of a column as one; as objects where one part has nulls instead of arrays, or arrays may differ.

    Raises:
        RuntimeError: If lists of two row groups differ in length.
    """
    arrays = [np.asarray(column) for column in columns]
    shapes = {array.shape[1:] for array in arrays}
    if len(shapes) > 1:
        if not ragged and () not in shapes:
            raise RuntimeError(
                f"Length of all values in column '{name}' are expected to be the same length. "
                f"Got arrays of {', '.join(sorted(map(str, shapes)))} in one batch."
            )
        return as_objects([cell for array in arrays for cell in array])
    # A part with timestamps out of the range of nanoseconds has the unit of the files, which NumPy would not choose.
    units = {array.dtype for array in arrays if array.dtype.kind == "M"} - {np.dtype("datetime64[ns]")}
    return np.concatenate(arrays, dtype=units.pop() if units else None)
