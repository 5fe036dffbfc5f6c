"""Units of a table that is small enough to stay in memory: from the third epoch on, nothing of it is read.

Not from the second on, since most tables are read once, and memory that is let go of at once is warm when the next unit is
read. What is kept is what was read, in the types of Arrow, before any cell is decoded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["KeptUnits"]

Part = TypeVar("Part")

SHARE = 0.25
"""The share of the memory limit that a table may take to be kept."""


class KeptUnits(Generic[Part]):
    """Keeps what was read twice, as long as all that was read so far has room; then nothing. Any thread may ask.

    Example:
        >>> kept: KeptUnits[str] = KeptUnits()
        >>> kept.bound(100)
        >>> for _ in range(2):
        ...     kept.offer("unit 0", size=lambda: 20, own=lambda: "its rows")
        ...     print(kept.get("unit 0"))
        None
        its rows
        >>> kept.offer("unit 1", size=lambda: 20, own=lambda: "more rows")
        >>> kept.get("unit 0"), kept.nbytes
        (None, 0)
    """

    def __init__(self) -> None:
        """Begin with nothing, and without room."""
        self._most = self._seen = self._nbytes = 0
        self._is_full = False
        self._sizes: dict[Hashable, int] = {}
        self._parts: dict[Hashable, Part] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[KeptUnits[Part]], tuple[()]]:
        """Begin anew in another process, and in a copy."""
        return KeptUnits, ()

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

    def get(self, name: Hashable) -> Part | None:
        """Return a unit that is kept."""
        return self._parts.get(name)

    def offer(self, name: Hashable, size: Callable[[], int], own: Callable[[], Part]) -> None:
        """Keep a unit that has just been read, if that was not for the first time and all have room.

        Args:
            name: Its name.
            size: What tells what it takes in memory.
            own: What gives it, in memory that it does not share with its window.
        """
        if self._is_full:
            return
        with self._lock:
            if name not in self._sizes:
                self._sizes[name] = size()
                self._seen += self._sizes[name]
                if self._seen > self._most:
                    self._forget()
                    self._is_full = True
            elif name not in self._parts:
                self._parts[name] = own()
                self._nbytes += self._sizes[name]

    def _forget(self) -> None:
        self._sizes, self._parts, self._seen, self._nbytes = {}, {}, 0, 0
