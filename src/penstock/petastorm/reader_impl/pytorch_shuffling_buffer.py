"""Buffers of tensors, a column each: batches as they came, or of rows in any order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

__all__ = ["BatchedNoopShufflingBuffer", "BatchedRandomShufflingBuffer", "BatchedShufflingBufferBase"]


class BatchedShufflingBufferBase(ABC):
    """What buffers of tensors have in common.

    Args:
        batch_size: Rows of a batch.
    """

    def __init__(self, batch_size: int = 1) -> None:
        """Store how many rows are taken at once."""
        self._keys: list[str] | None = None
        self.batch_size, self._done_adding = batch_size, False

    def add_many(self, items: Sequence[Any]) -> None:
        """Add rows: tensors of as many, one for each column."""
        self._add_many([_tensor(item) for item in items])

    @abstractmethod
    def _add_many(self, items: list[Any]) -> None:
        """Add rows."""

    @abstractmethod
    def retrieve(self) -> list[Any]:
        """Return a batch, whose rows are not in the buffer any more."""

    @abstractmethod
    def can_add(self) -> bool:
        """Return whether more rows may be added now."""

    @abstractmethod
    def can_retrieve(self) -> bool:
        """Return whether a batch may be taken now."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many rows there are."""

    def finish(self) -> None:
        """Say that no more rows come, so that all may be taken."""
        self._done_adding = True


def _tensor(item: Any) -> Any:
    import torch

    return item if isinstance(item, torch.Tensor) else torch.as_tensor(item)


class BatchedNoopShufflingBuffer(BatchedShufflingBufferBase):
    """Gives batches of rows in the order they came in."""

    def __init__(self, batch_size: int = 1) -> None:
        """Begin without rows."""
        super().__init__(batch_size)
        self._parts: list[list[Any]] = []
        self._at = 0

    def _add_many(self, items: list[Any]) -> None:
        if len(items[0]):
            self._parts.append(items)

    def retrieve(self) -> list[Any]:
        """Return the rows that came first."""
        import torch

        left, taken = min(self.batch_size, self.size), []
        while left:
            columns = self._parts[0]
            count = min(left, len(columns[0]) - self._at)
            taken.append([column[self._at : self._at + count] for column in columns])
            left, self._at = left - count, self._at + count
            if self._at == len(columns[0]):
                self._parts.pop(0)
                self._at = 0
        return taken[0] if len(taken) == 1 else [torch.cat(parts) for parts in zip(*taken, strict=True)]

    def can_retrieve(self) -> bool:
        """Return whether there is a whole batch, or, where no more rows come, any row."""
        return self.size >= (1 if self._done_adding else self.batch_size)

    def can_add(self) -> bool:
        """Return True."""
        return True

    @property
    def size(self) -> int:
        """How many rows there are."""
        return sum(len(columns[0]) for columns in self._parts) - self._at


def _signed(column: Any) -> Any:
    """Return the memory of a tensor, as signed numbers where it holds unsigned ones of more than a byte."""
    import torch

    signed = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}.get(column.dtype)
    return column if signed is None else column.view(signed)


class BatchedRandomShufflingBuffer(BatchedShufflingBufferBase):
    """Gives batches of rows in any order.

    Args:
        shuffling_buffer_capacity: From how many rows on no more are added.
        min_after_retrieve: Rows that must be there before the last row of a batch is taken, as long as more are to come.
        extra_capacity: Rows by which one addition may exceed the capacity.
        batch_size: Rows of a batch.
        generator: What draws, a `torch.Generator`; by default that of torch.
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
        self._capacity, self._least, self._extra = shuffling_buffer_capacity, min_after_retrieve, extra_capacity
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
            room = max(needed, min(2 * needed, self._capacity + self._extra))
            grown = [torch.empty((room, *item.shape[1:]), dtype=item.dtype, device=item.device) for item in items]
            for new, old in zip(grown, self._items or (), strict=False):
                new[: self._size] = old[: self._size]
            self._items = grown
        for column, item in zip(self._items, items, strict=True):
            column[self._size : needed] = item
        self._size = needed

    def retrieve(self) -> list[Any]:
        """Return any of the rows, a batch of them.

        Raises:
            RuntimeError: If too few are there.
        """
        import torch

        if not self.can_retrieve() or self._items is None:
            raise RuntimeError("Can not dequeue. Check the return value of can_dequeue() to check if any items are available.")
        count = min(self.batch_size, self._size)
        chosen = torch.randperm(self._size, generator=self._generator)[:count]
        found = [column[chosen] for column in self._items]
        # Rows at the end that stay fill the places of those that go.
        left = self._size - count
        going = torch.zeros(self._size, dtype=torch.bool)
        going[chosen] = True
        holes, movers = going[:left].nonzero().squeeze(1), (~going[left:]).nonzero().squeeze(1) + left
        for column in self._items:
            cells = _signed(column)  # torch does not write rows of unsigned numbers
            cells[holes] = cells[movers]
        self._size = left
        return found

    def can_add(self) -> bool:
        """Return whether there is room, and more were to come."""
        return self._size < self._capacity and not self._done_adding

    def can_retrieve(self) -> bool:
        """Return whether enough rows are there for a whole batch, or any where no more come."""
        return self._size >= (1 if self._done_adding else max(1, self._least + self.batch_size - 1))

    @property
    def size(self) -> int:
        """How many rows there are."""
        return self._size
