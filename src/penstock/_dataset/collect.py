"""Answers to a question other than by iterating: how many rows there are, some of them by number, and all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock._dataset import clauses
from penstock._engine.lookup import access
from penstock._engine.plan.table import Table
from penstock._engine.query.query import Query
from penstock._engine.query.values import Batch
from penstock.errors import ArgumentError
from penstock.policies import Offsets

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Collect"]


class Collect:
    """What a dataset answers of a question asked of a table.

    Example:
        >>> from penstock.testing import example
        >>> isinstance(example(), Collect)
        True
    """

    __slots__ = ()

    _table: Table
    _query: Query

    @property
    def num_rows(self) -> int:
        """The rows, or sequences, of an epoch over all ranks; a filter or a sequence costs one pass over its columns."""
        return clauses.exact(self._query, self._table.plan(self._query).plan).num_rows

    def __getitem__(self, row: int | slice) -> dict[str, Any]:
        """Return one row by its number in stored order, or a slice of rows as one batch."""
        if isinstance(row, slice):
            return self.take(range(*row.indices(self.num_rows)))
        if isinstance(row, tuple | list | np.ndarray):
            raise ArgumentError(f"ds[...] takes one row or a slice, and got {row!r}. For several rows use ds.take([...]).")
        if isinstance(row, str):
            msg = f"ds[...] got {row!r}; expected the number of a row, or a slice. "
            raise ArgumentError(msg + f"For a column, write ds.select({row!r}).to_arrow().")
        batch = self.take([row])
        for column in self._query.policies:
            if isinstance(column.ragged, Offsets) and f"{column.name}_offsets" in batch:
                msg = (
                    f"Column {column.name!r} comes as Offsets(), which only a batch has, and ds[{row!r}] is one row. "
                    f"Ask for a batch, ds.take([{row!r}]), or leave Offsets() out."
                )
                raise ArgumentError(msg)
        return {name: values[0] for name, values in batch.items()}

    def take(self, rows: Sequence[int]) -> Batch:
        """Return rows by their numbers in stored order, as one batch in the order asked for.

        Raises:
            ArgumentError: If the dataset is shuffled or batched, or has not so many rows.

        Example:
            >>> from penstock.testing import example
            >>> example().take([3, 9, 5])["id"]
            array([3, 9, 5])
        """
        return access.take_rows(self._table, self._query, rows)

    def head(self, rows: int = 5) -> Batch:
        """Return the first rows in stored order, as one batch.

        Example:
            >>> from penstock.testing import example
            >>> example().head(2)["id"]
            array([0, 1])
        """
        return self.take(range(min(clauses.limit(rows, None, "head"), self.num_rows)))

    def to_arrow(self) -> pa.Table:
        """Return all rows in stored order as an Arrow table, as they are stored."""
        return access.to_arrow(self._table, self._query)

    def to_pandas(self) -> pd.DataFrame:
        """Return all rows in stored order as a pandas data frame with the same values.

        Columns have the dtypes that `pyarrow.Table.to_pandas` chooses, with one exception: a column gets another dtype
        where a value would change, or a null would become another value. Integers with nulls get pandas' nullable
        dtypes (`Int64`), and so do booleans with nulls (`boolean`). Other such columns get `pandas.ArrowDtype`, for example
        lists of integers with nulls inside. A null among floats is NaN, unless the column also holds NaN.

        Example:
            >>> from penstock.testing import MemoryFormat
            >>> MemoryFormat.of({"id": [2**53 + 1, None]}, row_group_rows=2).open().to_pandas()["id"].dtype
            Int64Dtype()
        """
        return access.to_pandas(self._table, self._query)
