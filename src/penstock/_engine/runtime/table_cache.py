"""Units of a table that is small enough to stay in memory: after the first epoch of a loader, nothing of it is read.

Whoever reads a table without a loader mostly reads it once; then units are kept when they are read the second time. What is
kept is what was read, in the types of Arrow, before any cell is decoded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from math import prod
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._engine.runtime.buffers import APART, allocate

__all__ = ["PinnedMemory", "TableCache"]

WING = 1 << 25
"""Bytes that are asked for at once: many pieces on huge pages, which cost one fault for two megabytes."""

ALIGNED = 64
"""Where a piece begins, as Arrow likes it."""


class PinnedMemory:
    """Memory for what stays, piece beside piece; it is let go when the last piece is. Any thread may ask.

    Example:
        >>> PinnedMemory().settled(pa.table({"x": [1, None]})).to_pydict()
        {'x': [1, None]}
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._left = np.empty(0, dtype=np.uint8)
        self._taking = threading.Lock()

    def room(self, size: int) -> npt.NDArray[np.uint8]:
        """Return memory with whatever is in it."""
        if size < APART:
            return allocate(size)
        with self._taking:
            if len(self._left) < size:
                self._left = allocate(max(size, WING))
            found, self._left = self._left[:size], self._left[-(-size // ALIGNED) * ALIGNED :]
            return found

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
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


Part = TypeVar("Part")

SHARE = 0.25
"""The share of the memory limit that a table may take to be kept."""


class TableCache(Generic[Part]):
    """Keeps what is read again, as long as all that was read so far has room; then nothing. Any thread may ask.

    Example:
        >>> kept: TableCache[str] = TableCache()
        >>> kept.bound(100)
        >>> for _ in range(2):
        ...     kept.offer("unit 0", size=lambda: 20, whole=lambda: 40, own=lambda _: "its rows")
        ...     print(kept.get("unit 0"))
        None
        its rows
        >>> kept.offer("unit 1", size=lambda: 20, whole=lambda: 40, own=lambda _: "more rows")
        >>> kept.get("unit 0"), kept.nbytes
        (None, 0)
    """

    def __init__(self) -> None:
        """Begin with nothing, and without room."""
        self._most = self._seen = self._nbytes = 0
        self._is_full = self._again = False
        self._sizes: dict[Hashable, int] = {}
        self._parts: dict[Hashable, Part] = {}
        self._rooms, self._lock = PinnedMemory(), threading.Lock()

    def __reduce__(self) -> tuple[type[TableCache[Part]], tuple[()]]:
        """Begin anew in another process, and in a copy."""
        return TableCache, ()

    @property
    def nbytes(self) -> int:
        """What it takes in memory."""
        return self._nbytes

    def bound(self, limit: int) -> None:
        """Take down how much memory an iteration may take, of which this is a share."""
        with self._lock:
            most = int(SHARE * limit)
            if self._is_full and most > self._most:
                self._is_full = False  # another chance
            elif self._seen > most:
                self._forget()
            self._most = most

    def expect_again(self) -> None:
        """Take down that what is read will be read again, so that it is kept at once."""
        self._again = True

    def get(self, name: Hashable) -> Part | None:
        """Return a unit that is kept."""
        return self._parts.get(name)

    def offer(
        self, name: Hashable, size: Callable[[], int], whole: Callable[[], int], own: Callable[[PinnedMemory], Part]
    ) -> None:
        """Keep a unit that has just been read, if that was not for the first time, or will not be the last, and all have room.

        Args:
            name: Its name.
            size: What tells what it takes in memory.
            whole: What tells what all units together are going to take.
            own: What gives it, moved to such rooms.
        """
        if self._is_full:
            return
        with self._lock:
            known = name in self._sizes
            if not known:
                self._sizes[name] = size()
                self._seen += self._sizes[name]
                if self._seen > self._most:
                    self._forget()
                    self._is_full = True
                    return
            if name in self._parts or not (known or (self._again and whole() <= self._most)):
                return
        part = own(self._rooms)  # which others need not wait for
        with self._lock:
            if name in self._sizes and name not in self._parts:
                self._parts[name] = part
                self._nbytes += self._sizes[name]

    def _forget(self) -> None:
        self._sizes, self._parts, self._seen, self._nbytes, self._rooms = {}, {}, 0, 0, PinnedMemory()
