"""Buffers of tensors that return batches of rows in their order, or in random order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

__all__ = ["BatchedNoopShufflingBuffer", "BatchedRandomShufflingBuffer", "BatchedShufflingBufferBase"]


class BatchedShufflingBufferBase(ABC):
    """The base class of buffers of tensors.

    Args:
        batch_size: Rows of a batch.
    """

    def __init__(self, batch_size: int = 1) -> None:
        """Store the batch size."""
        self._keys: list[str] | None = None
        self.batch_size, self._done_adding = batch_size, False

    def add_many(self, items: Sequence[Any]) -> None:
        """Add rows: a tensor for each column."""
        self._add_many([_tensor(item) for item in items])

    @abstractmethod
    def _add_many(self, items: list[Any]) -> None: ...

    @abstractmethod
    def retrieve(self) -> list[Any]:
        """Remove a batch of rows, and return it."""

    @abstractmethod
    def can_add(self) -> bool:
        """Return whether rows can be added."""

    @abstractmethod
    def can_retrieve(self) -> bool:
        """Return whether a batch can be retrieved."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The number of rows."""

    def finish(self) -> None:
        """End the input; all rows can be retrieved then."""
        self._done_adding = True


def _tensor(item: Any) -> Any:
    import torch

    return item if isinstance(item, torch.Tensor) else torch.as_tensor(item)


class BatchedNoopShufflingBuffer(BatchedShufflingBufferBase):
    """Returns batches of rows in their order."""

    def __init__(self, batch_size: int = 1) -> None:
        """Begin without rows."""
        super().__init__(batch_size)
        self._parts: list[list[Any]] = []
        self._at = 0

    def _add_many(self, items: list[Any]) -> None:
        if len(items[0]):
            self._parts.append(items)

    def retrieve(self) -> list[Any]:
        """Remove the first rows, and return them."""
        import torch

        missing, taken = min(self.batch_size, self.size), []
        while missing:
            columns = self._parts[0]
            count = min(missing, len(columns[0]) - self._at)
            taken.append([column[self._at : self._at + count] for column in columns])
            missing, self._at = missing - count, self._at + count
            if self._at == len(columns[0]):
                self._parts.pop(0)
                self._at = 0
        return taken[0] if len(taken) == 1 else [torch.cat(parts) for parts in zip(*taken, strict=True)]

    def can_retrieve(self) -> bool:
        """Return whether there is a whole batch; after the end of the input, whether there is any row."""
        return self.size >= (1 if self._done_adding else self.batch_size)

    def can_add(self) -> bool:
        """Return True."""
        return True

    @property
    def size(self) -> int:
        """The number of rows."""
        return sum(len(columns[0]) for columns in self._parts) - self._at


def _signed(column: Any) -> Any:
    """Return a view of an unsigned tensor as signed numbers; other tensors unchanged."""
    import torch

    signed = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}.get(column.dtype)
    return column if signed is None else column.view(signed)


class BatchedRandomShufflingBuffer(BatchedShufflingBufferBase):
    """Returns batches of random rows.

    Args:
        shuffling_buffer_capacity: The number of rows from which on no more can be added.
        min_after_retrieve: The minimum of rows for the last row of a batch before the end of the input.
        extra_capacity: Rows by which one call of `add_many` may exceed the capacity.
        batch_size: Rows of a batch.
        generator: A `torch.Generator`; by default the global one of torch.
    """

    def __init__(
        self,
        shuffling_buffer_capacity: int,
        min_after_retrieve: int,
        extra_capacity: int = 1000,
        batch_size: int = 1,
        *,
        generator: Any = None,
    ) -> None:
        """Begin without rows."""
        super().__init__(batch_size)
        self._capacity, self._min_rows, self._extra = shuffling_buffer_capacity, min_after_retrieve, extra_capacity
        self._items: list[Any] | None = None
        self._size, self._generator = 0, generator

    def _add_many(self, items: list[Any]) -> None:
        import torch

        if self._done_adding:
            raise RuntimeError("Can not call add_many after done_adding() was called. No more rows were to come.")
        if not self.can_add():
            raise RuntimeError("Can not enqueue. Check the return value of can_enqueue() to check if more items can be added.")
        needed = self._size + len(items[0])
        if needed > self._capacity + self._extra:
            msg = (
                f"Attempt to enqueue more elements than the capacity allows. Current size: {self._size}, new size {needed}, "
                f"maximum allowed: {self._capacity + self._extra}"
            )
            raise RuntimeError(msg)
        if self._items is None or needed > len(self._items[0]):
            rows = max(needed, min(2 * needed, self._capacity + self._extra))
            grown = [torch.empty((rows, *item.shape[1:]), dtype=item.dtype, device=item.device) for item in items]
            for new, old in zip(grown, self._items or (), strict=False):
                new[: self._size] = old[: self._size]
            self._items = grown
        for column, item in zip(self._items, items, strict=True):
            column[self._size : needed] = item
        self._size = needed

    def retrieve(self) -> list[Any]:
        """Remove a batch of random rows, and return it.

        Raises:
            RuntimeError: If there are too few rows.
        """
        import torch

        if not self.can_retrieve() or self._items is None:
            raise RuntimeError("Can not dequeue. Check the return value of can_dequeue() to check if any items are available.")
        count = min(self.batch_size, self._size)
        indices = torch.randperm(self._size, generator=self._generator)[:count]
        batch = [column[indices] for column in self._items]
        # Remaining rows at the end replace removed rows before it.
        remaining = self._size - count
        removed = torch.zeros(self._size, dtype=torch.bool)
        removed[indices] = True
        holes = removed[:remaining].nonzero().squeeze(1)
        moved = (~removed[remaining:]).nonzero().squeeze(1) + remaining
        for column in self._items:
            cells = _signed(column)  # torch does not support indexed writes of unsigned numbers
            cells[holes] = cells[moved]
        self._size = remaining
        return batch

    def can_add(self) -> bool:
        """Return whether there is capacity, and the input has not ended."""
        return self._size < self._capacity and not self._done_adding

    def can_retrieve(self) -> bool:
        """Return whether there are enough rows for a batch; after the end of the input, whether there is any row."""
        return self._size >= (1 if self._done_adding else max(1, self._min_rows + self.batch_size - 1))

    @property
    def size(self) -> int:
        """The number of rows."""
        return self._size
