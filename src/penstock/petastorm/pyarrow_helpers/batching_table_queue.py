"""Tables of one size made of others: `petastorm.pyarrow_helpers.batching_table_queue`."""

from __future__ import annotations

from collections import deque

import pyarrow as pa

__all__ = ["BatchingTableQueue"]


class BatchingTableQueue:
    """Takes Arrow tables of any size, and gives their rows, in their order, in tables of one size.

    Args:
        batch_size: The rows of each table that comes out.
    """

    def __init__(self, batch_size: int) -> None:
        """Begin with nothing."""
        self._batch_size, self._held, self._rows = batch_size, deque[pa.Table](), 0

    def put(self, table: pa.Table) -> None:
        """Take a table."""
        if table.num_rows:
            self._held.append(table)
            self._rows += table.num_rows

    def empty(self) -> bool:
        """Return whether there are too few rows for a table."""
        return self._rows < self._batch_size

    def get(self) -> pa.Table:
        """Return a table; `empty()` must be false."""
        assert not self.empty(), "get() was called though empty() is true: put more tables before"  # noqa: S101 - Petastorm's
        parts, missing = [], self._batch_size
        while missing:
            first = self._held.popleft()
            parts.append(first.slice(0, missing))
            missing -= parts[-1].num_rows
            if first.num_rows > parts[-1].num_rows:
                self._held.appendleft(first.slice(parts[-1].num_rows))
        self._rows -= self._batch_size
        return pa.concat_tables(parts)
