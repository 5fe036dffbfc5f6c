"""What is worth keeping from one call to the next, as long as there is room."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Keep"]

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Keep(Generic[Key, Value]):
    """Values by key; what was not asked for longest goes first when there is no room. Any thread may ask.

    Example:
        >>> keep: Keep[str, int] = Keep(most=10)
        >>> keep.put("a", 1, size=6)
        >>> keep.put("b", 2, size=6)
        >>> keep.get("a"), keep.get("b")
        (None, 2)
    """

    def __init__(self, most: int) -> None:
        """Store how much there is room for, in whatever unit sizes are given."""
        self._most, self._used = most, 0
        self._found: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key) -> Value | None:
        """Return a value; None where it is not kept."""
        with self._lock:
            found = self._found.get(key)
            if found is None:
                return None
            self._found.move_to_end(key)
            return found[0]

    def put(self, key: Key, value: Value, size: int) -> None:
        """Keep a value, unless it alone is too large."""
        if size > self._most:
            return
        with self._lock:
            old = self._found.pop(key, None)
            self._used += size - (old[1] if old is not None else 0)
            self._found[key] = (value, size)
            while self._used > self._most:
                self._used -= self._found.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Keep nothing of it."""
        with self._lock:
            self._found.clear()
            self._used = 0

    def __len__(self) -> int:
        """Return how many values are kept."""
        return len(self._found)
