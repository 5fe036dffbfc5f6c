"""`petastorm.pyarrow_helpers.batching_table_queue`: tables of a fixed size."""

from __future__ import annotations

from collections import deque

import pyarrow as pa

__all__ = ["BatchingTableQueue"]


class BatchingTableQueue:
    """Takes Arrow tables of any size, and returns their rows in tables of a fixed size.

    Args:
        batch_size: Rows of a returned table.
    """

    def __init__(self, batch_size: int) -> None:
        """Begin without tables."""
        self._batch_size, self._tables, self._rows = batch_size, deque[pa.Table](), 0

    def put(self, table: pa.Table) -> None:
        """Add a table."""
        if table.num_rows:
            self._tables.append(table)
            self._rows += table.num_rows

    def empty(self) -> bool:
        """Return whether there are too few rows for a table."""
        return self._rows < self._batch_size

    def get(self) -> pa.Table:
        """Return a table; `empty()` must be false."""
        assert not self.empty(), "get() was called though empty() is true: put more tables before"  # noqa: S101 - Petastorm's
        parts, missing = [], self._batch_size
        while missing:
            first = self._tables.popleft()
            parts.append(first.slice(0, missing))
            missing -= parts[-1].num_rows
            if first.num_rows > parts[-1].num_rows:
                self._tables.appendleft(first.slice(parts[-1].num_rows))
        self._rows -= self._batch_size
        return pa.concat_tables(parts)
