"""What is made of row groups: rows that are put together when they are asked for, and whatever is ready."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

__all__ = ["Made", "Rows"]


class Rows:
    """Rows that are made one by one when they are asked for, of columns whose values are all there.

    Named tuples that lie in memory by the thousand are looked at by the garbage collector again and again, which takes longer
    than to make them.
    """

    def __init__(self, kind: Any, columns: Sequence[list[Any]], count: int) -> None:
        """Store the type of the rows, and their columns."""
        self._kind, self._columns, self._count = kind, columns, count

    def __len__(self) -> int:
        """Return how many there are."""
        return self._count

    def after(self, first: int) -> Rows:
        """Return the rows from one on."""
        return Rows(self._kind, [column[first:] for column in self._columns], self._count - first)

    def begun(self) -> tuple[Iterator[Any], Iterator[Any]]:
        """Return an iterator over the rows, and one whose length is that of the rows which are left."""
        if not self._columns:
            left = iter([self._kind()] * self._count)
            return left, left
        cells = [iter(column) for column in self._columns]
        return map(partial(tuple.__new__, self._kind), zip(*cells, strict=True)), cells[-1]


class Made:
    """Rows, windows or batches that are made already."""

    def __init__(self, items: Sequence[Any]) -> None:
        """Store them."""
        self._items = items

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over them."""
        return iter(self._items)

    def after(self, first: int) -> Made:
        """Return those from one on."""
        return Made(self._items[first:])

    def begun(self) -> tuple[Iterator[Any], Iterator[Any]]:
        """Return an iterator over them, whose length is that of those which are left."""
        found = iter(self._items)
        return found, found
