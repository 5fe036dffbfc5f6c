"""Buffers that return rows in their order, or in random order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np

__all__ = ["NoopShufflingBuffer", "RandomShufflingBuffer", "ShufflingBufferBase"]


class ShufflingBufferBase(ABC):
    """The base class of buffers."""

    @abstractmethod
    def add_many(self, items: Iterable[Any]) -> None:
        """Add rows."""

    @abstractmethod
    def retrieve(self) -> Any:
        """Remove a row, and return it."""

    @abstractmethod
    def can_add(self) -> bool:
        """Return whether rows can be added."""

    @abstractmethod
    def can_retrieve(self) -> bool:
        """Return whether a row can be retrieved."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of rows."""

    @abstractmethod
    def finish(self) -> None:
        """End the input; all rows can be retrieved then."""


class NoopShufflingBuffer(ShufflingBufferBase):
    """Returns rows in their order."""

    def __init__(self) -> None:
        """Begin without rows."""
        self._items: deque[Any] = deque()

    def add_many(self, items: Iterable[Any]) -> None:
        """Add rows."""
        self._items.extend(items)

    def retrieve(self) -> Any:
        """Remove the first row, and return it."""
        return self._items.popleft()

    def can_retrieve(self) -> bool:
        """Return whether there is a row."""
        return bool(self._items)

    def can_add(self) -> bool:
        """Return True."""
        return True

    @property
    def size(self) -> int:
        """The number of rows."""
        return len(self._items)

    def finish(self) -> None:
        """Do nothing: all rows can be retrieved."""


class RandomShufflingBuffer(ShufflingBufferBase):
    """Returns rows in random order.

    Args:
        shuffling_buffer_capacity: The number of rows from which on no more can be added.
        min_after_retrieve: The minimum of rows for a retrieval before the end of the input.
        extra_capacity: Rows by which one call of `add_many` may exceed the capacity.
        rng: A `numpy.random.Generator`; by default the global one of NumPy.
    """

    def __init__(
        self, shuffling_buffer_capacity: int, min_after_retrieve: int, extra_capacity: int = 1000, *, rng: Any = None
    ) -> None:
        """Begin without rows."""
        self._capacity, self._min_rows, self._extra = shuffling_buffer_capacity, min_after_retrieve, extra_capacity
        self._items: list[Any] = []
        self._random = np.random.randint if rng is None else rng.integers
        self._done_adding = False

    def add_many(self, items: Iterable[Any]) -> None:
        """Add rows.

        Raises:
            RuntimeError: If there is no capacity, or the input has ended.
        """
        if self._done_adding:
            raise RuntimeError("Can not call add_many after done_adding() was called. No more rows were to come.")
        if not self.can_add():
            raise RuntimeError("Can not enqueue. Check the return value of can_enqueue() to check if more items can be added.")
        rows = list(items)
        limit = self._capacity + self._extra
        if len(self._items) + len(rows) > limit:
            msg = (
                f"Attempt to enqueue more elements than the capacity allows. Current size: {len(self._items)}, new size "
                f"{len(self._items) + len(rows)}, maximum allowed: {limit}"
            )
            raise RuntimeError(msg)
        self._items += rows

    def retrieve(self) -> Any:
        """Remove a random row, and return it.

        Raises:
            RuntimeError: If there are too few rows.
        """
        if not self._done_adding and not self.can_retrieve():
            raise RuntimeError("Can not dequeue. Check the return value of can_dequeue() to check if any items are available.")
        place = int(self._random(0, len(self._items)))
        row = self._items[place]
        last = self._items.pop()
        if place < len(self._items):
            self._items[place] = last
        return row

    def can_add(self) -> bool:
        """Return whether there is capacity, and the input has not ended."""
        return len(self._items) < self._capacity and not self._done_adding

    def can_retrieve(self) -> bool:
        """Return whether there are enough rows; after the end of the input, whether there is any."""
        return len(self._items) >= (1 if self._done_adding else max(1, self._min_rows))

    @property
    def size(self) -> int:
        """The number of rows."""
        return len(self._items)

    def finish(self) -> None:
        """End the input."""
        self._done_adding = True
