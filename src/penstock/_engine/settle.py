"""What is to stay in memory moves to pages of its own.

What Arrow reads to is memory that it uses over and over. Whoever kept it would have the next unit read to fresh memory, whose
page faults take longer than reading.
"""

from __future__ import annotations

import threading
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._engine.lease import APART, fresh

__all__ = ["Rooms"]

WING = 1 << 25
"""Bytes that are asked for at once: many pieces on huge pages, which cost one fault for two megabytes."""

ALIGNED = 64
"""Where a piece begins, as Arrow likes it."""


class Rooms:
    """Memory for what stays, piece beside piece; it is let go when the last piece is. Any thread may ask.

    Example:
        >>> Rooms().settled(pa.table({"x": [1, None]})).to_pydict()
        {'x': [1, None]}
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._left = np.empty(0, dtype=np.uint8)
        self._taking = threading.Lock()

    def room(self, size: int) -> npt.NDArray[np.uint8]:
        """Return memory with whatever is in it."""
        if size < APART:
            return fresh(size)
        with self._taking:
            if len(self._left) < size:
                self._left = fresh(max(size, WING))
            found, self._left = self._left[:size], self._left[-(-size // ALIGNED) * ALIGNED :]
            return found

    def lend(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return an array with whatever is in its memory, for those who ask slabs otherwise; it does not come back."""
        return self.room(prod(shape) * dtype.itemsize).view(dtype).reshape(shape)

    def copied(self, values: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return bytes in memory that nobody else uses."""
        found = self.room(len(values))
        found[:] = values
        return found

    def settled(self, table: pa.Table) -> pa.Table:
        """Return a table's rows in memory that nobody else uses."""
        if not table.num_columns:
            return table
        try:
            whole = table.combine_chunks()
        except pa.ArrowInvalid:  # values that do not fit one array of their type
            return table
        measure = pa.MockOutputStream()
        _write(whole, measure)
        room = pa.py_buffer(self.room(measure.size()))
        _write(whole, pa.FixedSizeBufferWriter(room))
        found = pa.ipc.open_stream(room).read_all()
        # A type that is only known to whoever made it comes back as what it is stored as.
        return found if found.schema.equals(table.schema, check_metadata=True) else table


def _write(table: pa.Table, sink: pa.NativeFile) -> None:
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
