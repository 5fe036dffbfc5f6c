"""How much memory an iteration may take, and how much it takes: what was lent, what windows keep as stored, what is coming.

Sizes are what reads really gave so far: a column of a megabyte on storage may take two hundred in memory.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pyarrow as pa

from penstock._engine.runtime.buffers import BufferPool
from penstock._engine.runtime.table_cache import TableCache
from penstock.errors import MemoryLimitError

__all__ = ["MemoryBudget", "format_bytes"]


TRANSIENT = 1.5
"""What a unit takes while it is read, beside what is left of it: pages as stored and as decompressed."""


AHEAD = 0.7
"""The share of the limit up to which windows are read before they are needed: what is freed does not go back at once."""


SHORT = 0.25
"""The share of the limit above which memory that was used goes back to the operating system at once."""


PINNED = 0.125
"""The share of the limit that windows may take which are kept alive by single batches; then batches are copied."""


class MemoryBudget:
    """Counts bytes of one iteration; threads share it.

    Attributes:
        early: Rows of windows that were read for an epoch whose turn it is not yet.

    Example:
        >>> budget = MemoryBudget(1 << 20, BufferPool(1 << 20), threads=2)
        >>> budget.note(rows=100, fixed=80_000, deferred=0)
        >>> budget.has_room(500), budget.has_room(5_000)
        (True, False)
    """

    def __init__(self, limit: int, buffer_pool: BufferPool, threads: int, units: TableCache[Any] | None = None) -> None:
        """Store the limit; memory that waits to be used again counts too, and units that stay in memory."""
        self.limit, self._buffer_pool, self._threads, self._table_cache = limit, buffer_pool, threads, units
        buffer_pool.bound(limit * 5 // 8)
        self._lock = threading.Lock()
        self._units = self._rows = self._bytes = self._kept = self._coming = 0
        self.early = 0

    @property
    def row_bytes(self) -> float:
        """What a row has taken in memory so far, on average."""
        return self._bytes / max(1, self._rows)

    @property
    def taken(self) -> int:
        """Bytes that are held now, by windows and by whoever keeps what was handed out."""
        return self._buffer_pool.lent + self._kept

    def note(self, *, rows: int, fixed: int, deferred: int) -> None:
        """Take down what a unit took: arrays of a fixed size, and what is kept as stored."""
        with self._lock:
            self._units += 1
            self._rows += rows
            self._bytes += fixed + deferred

    def keep(self, owner: Any, nbytes: int) -> None:
        """Count bytes that are no lent memory as long as an object lives."""
        if nbytes:
            with self._lock:
                self._kept += nbytes
            weakref.finalize(owner, self._let_go, nbytes).atexit = False

    def _let_go(self, nbytes: int) -> None:
        # Without the lock: garbage collection may come here while this thread has it. What is lost by that is made up for,
        # since no window is ever refused for what is kept, only put off.
        self._kept -= nbytes

    def expect(self, rows: int, window: Future[Any]) -> None:
        """Count a window that is being read, until it has come."""
        with self._lock:
            self._coming += rows

        def came(_: object) -> None:
            with self._lock:
                self._coming -= rows

        window.add_done_callback(came)

    def has_room(self, rows: int) -> bool:
        """Return whether a window of some rows may be read now, beside all that is held and being read."""
        if not self._rows:
            return True
        reading = self._threads * TRANSIENT * self._bytes / self._units
        taken = self.taken + (0 if self._table_cache is None else self._table_cache.nbytes)
        return taken + (self._coming + rows) * self.row_bytes + reading <= AHEAD * self.limit

    def tidy(self) -> None:
        """Have memory given back that Arrow keeps for later, where there is not much of it; it costs page faults."""
        if self.taken + self._coming * self.row_bytes > SHORT * self.limit:
            pa.default_memory_pool().release_unused()

    def is_pinned(self, rows: int) -> bool:
        """Return whether the consumer keeps windows alive that it has long passed, beside those of some rows that are in use.

        A batch that is a view of its window keeps all of it. Of one such window there is always some last batch.
        """
        return self.taken > (rows + self.early) * self.row_bytes + PINNED * self.limit

    def check_unit(self, where: Callable[[], str], rows: int, least: int) -> None:
        """Refuse to read what cannot fit.

        Raises:
            MemoryLimitError: If it takes more than the limit by its rows and the width of its columns alone.
        """
        if rows * least > self.limit:
            msg = (
                f"{where()}: it has {rows} rows, whose numbers alone take {format_bytes(rows * least)} in memory, and "
                f"memory_limit is {format_bytes(self.limit)}. Allow more with .using(memory_limit=...), select fewer columns, "
                "or write the table anew with smaller row groups."
            )
            raise MemoryLimitError(msg)

    def check_batch(self, rows: int, limit: int) -> None:
        """Refuse to fill a batch up to more than fits, by what rows took so far.

        Raises:
            MemoryLimitError: If it does not.
        """
        if rows * self.row_bytes > limit:
            msg = (
                f'A batch filled up to {rows} rows by last="pad" takes {format_bytes(int(rows * self.row_bytes))} in memory, '
                "and "
                f"memory_limit is {format_bytes(limit)}. Allow more with .using(memory_limit=...), use a smaller batch, or "
                'last="uneven".'
            )
            raise MemoryLimitError(msg)

    def check_window(self, rows: int) -> None:
        """Refuse to go on where one window alone does not fit, by what rows took so far.

        Raises:
            MemoryLimitError: If it does not.
        """
        if rows * self.row_bytes > self.limit:
            fitting = max(1, int(self.limit / 2 / self.row_bytes))
            told = format_bytes(int(rows * self.row_bytes))
            msg = (
                f"A window of {rows} rows takes {told} in memory, by what was read so far, and memory_limit is "
                f"{format_bytes(self.limit)}. Allow more with .using(memory_limit=...), or select fewer columns. Where "
                "rows are "
                f"shuffled, use a smaller window: .shuffle(penstock.WindowShuffle(rows={fitting}), ...); where they are not, "
                "write the table anew with smaller row groups."
            )
            raise MemoryLimitError(msg)


def format_bytes(count: int) -> str:
    """Return a number of bytes as people say it.

    Example:
        >>> format_bytes(5 << 20), format_bytes(1000)
        ('5.0 MiB', '1000 bytes')
    """
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
