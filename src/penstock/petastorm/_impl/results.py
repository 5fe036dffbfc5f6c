"""Results of a row-group task: rows that are made when they are taken, or a list of finished rows, windows or batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

__all__ = ["LazyRows", "ResultList", "TaskResult"]


class LazyRows:
    """Rows that are made one by one from lists of values.

    Thousands of named tuples in memory are visited by the garbage collector again and again, which takes longer than to make
    them.

    Args:
        row_type: The named tuple.
        columns: The values of each field.
        count: The number of rows.
    """

    def __init__(self, row_type: Any, columns: Sequence[list[Any]], count: int) -> None:
        """Store the values."""
        self._row_type, self._columns, self._count = row_type, columns, count

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._count

    def skip(self, count: int) -> LazyRows:
        """Return the rows without the first ones."""
        return LazyRows(self._row_type, [column[count:] for column in self._columns], self._count - count)

    def iterators(self) -> tuple[Iterator[Any], Iterator[Any]]:
        """Return an iterator over the rows, and one whose length hint is the number of rows that are left."""
        if not self._columns:
            rows = iter([self._row_type()] * self._count)
            return rows, rows
        cells = [iter(column) for column in self._columns]
        return map(partial(tuple.__new__, self._row_type), zip(*cells, strict=True)), cells[-1]


class ResultList:
    """Rows, windows or batches that are finished.

    Args:
        items: The results.
    """

    def __init__(self, items: Sequence[Any]) -> None:
        """Store the results."""
        self._items = items

    def __len__(self) -> int:
        """Return the number of results."""
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the results."""
        return iter(self._items)

    def skip(self, count: int) -> ResultList:
        """Return the results without the first ones."""
        return ResultList(self._items[count:])

    def iterators(self) -> tuple[Iterator[Any], Iterator[Any]]:
        """Return an iterator over the results twice; its length hint is the number of results that are left."""
        items = iter(self._items)
        return items, items


TaskResult: TypeAlias = LazyRows | ResultList
