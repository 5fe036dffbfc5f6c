"""Buffers of rows: as they came, or in any order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np

__all__ = ["NoopShufflingBuffer", "RandomShufflingBuffer", "ShufflingBufferBase"]


class ShufflingBufferBase(ABC):
    """What buffers have in common."""

    @abstractmethod
    def add_many(self, items: Iterable[Any]) -> None:
        """Add rows."""

    @abstractmethod
    def retrieve(self) -> Any:
        """Return a row, which is not in the buffer any more."""

    @abstractmethod
    def can_add(self) -> bool:
        """Return whether more rows may be added now."""

    @abstractmethod
    def can_retrieve(self) -> bool:
        """Return whether a row may be taken now."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many rows there are."""

    @abstractmethod
    def finish(self) -> None:
        """Say that no more rows come, so that all may be taken."""


class NoopShufflingBuffer(ShufflingBufferBase):
    """Gives rows in the order they came in."""

    def __init__(self) -> None:
        """Begin without rows."""
        self._items: deque[Any] = deque()

    def add_many(self, items: Iterable[Any]) -> None:
        """Add rows."""
        self._items.extend(items)

    def retrieve(self) -> Any:
        """Return the row that came first."""
        return self._items.popleft()

    def can_retrieve(self) -> bool:
        """Return whether there is a row."""
        return bool(self._items)

    def can_add(self) -> bool:
        """Return True."""
        return True

    @property
    def size(self) -> int:
        """How many rows there are."""
        return len(self._items)

    def finish(self) -> None:
        """Do nothing: whatever is there may be taken."""


class RandomShufflingBuffer(ShufflingBufferBase):
    """Gives rows in any order.

    Args:
        shuffling_buffer_capacity: From how many rows on no more are added.
        min_after_retrieve: Rows that must be there before one is taken, as long as more are to come.
        extra_capacity: Rows by which one addition may exceed the capacity.
        rng: What draws, a `numpy.random.Generator`; by default `numpy.random` itself.
    """

    def __init__(
        self, shuffling_buffer_capacity: int, min_after_retrieve: int, extra_capacity: int = 1000, *, rng: Any = None
    ) -> None:
        """Begin without rows."""
        self._capacity, self._least, self._extra = shuffling_buffer_capacity, min_after_retrieve, extra_capacity
        self._items: list[Any] = []
        self._draw = np.random.randint if rng is None else rng.integers
        self._done_adding = False

    def add_many(self, items: Iterable[Any]) -> None:
        """Add rows.

        Raises:
            RuntimeError: If there is no room, or no more were to come.
        """
        if self._done_adding:
            raise RuntimeError("Can not call add_many after done_adding() was called. No more rows were to come.")
        if not self.can_add():
            raise RuntimeError("Can not enqueue. Check the return value of can_enqueue() to check if more items can be added.")
        given = list(items)
        most = self._capacity + self._extra
        if len(self._items) + len(given) > most:
            msg = (
                f"Attempt to enqueue more elements than the capacity allows. Current size: {len(self._items)}, new size "
                f"{len(self._items) + len(given)}, maximum allowed: {most}"
            )
            raise RuntimeError(msg)
        self._items += given

    def retrieve(self) -> Any:
        """Return any of the rows.

        Raises:
            RuntimeError: If too few are there.
        """
        if not self._done_adding and not self.can_retrieve():
            raise RuntimeError("Can not dequeue. Check the return value of can_dequeue() to check if any items are available.")
        place = int(self._draw(0, len(self._items)))
        found = self._items[place]
        last = self._items.pop()
        if place < len(self._items):
            self._items[place] = last
        return found

    def can_add(self) -> bool:
        """Return whether there is room, and more were to come."""
        return len(self._items) < self._capacity and not self._done_adding

    def can_retrieve(self) -> bool:
        """Return whether enough rows are there, or any where no more come."""
        return len(self._items) >= (1 if self._done_adding else max(1, self._least))

    @property
    def size(self) -> int:
        """How many rows there are."""
        return len(self._items)

    def finish(self) -> None:
        """Say that no more rows come."""
        self._done_adding = True
