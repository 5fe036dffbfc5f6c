"""`petastorm.etl.rowgroup_indexers`: indexes of row groups by value, and of row groups without nulls only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from penstock.petastorm.etl import RowGroupIndexerBase

__all__ = ["FieldNotNullIndexer", "SingleFieldIndexer"]


class _FieldIndexer(RowGroupIndexerBase):
    """The base class of indexes of one field."""

    def __init__(self, index_name: str, index_field: str) -> None:
        """Store the name of the index and of the field."""
        self._index_name, self._column_name = index_name, index_field

    @property
    def index_name(self) -> str:
        """The name of the index."""
        return self._index_name

    @property
    def column_names(self) -> list[str]:
        """The field."""
        return [self._column_name]

    def _check(self, other: Any) -> None:
        """Check that an index can be merged: it has the same type and field."""
        if not isinstance(other, type(self)):
            raise TypeError(f"Make sure Spark map function return the same indexer type: {type(other).__name__}")
        if self.column_names != other.column_names:
            msg = f"Make sure indexers in Spark map function index the same fields: {self.column_names}, {other.column_names}"
            raise ValueError(msg)

    def _column(self, decoded_rows: Iterable[Mapping[str, Any]]) -> list[Any]:
        rows = list(decoded_rows)
        if not rows:
            raise ValueError(f"Cannot build index for empty rows, of column '{self._column_name}'")
        return [row[self._column_name] for row in rows]


class SingleFieldIndexer(_FieldIndexer):
    """The row groups that contain each value of a field, or of the arrays in it."""

    def __init__(self, index_name: str, index_field: str) -> None:
        """Begin without values."""
        super().__init__(index_name, index_field)
        self._index_data: dict[Any, set[int]] = defaultdict(set)

    def __add__(self, other: Any) -> SingleFieldIndexer:
        """Merge another index into this one, and return it."""
        self._check(other)
        for value, numbers in other._index_data.items():
            self._index_data[value].update(numbers)
        return self

    @property
    def indexed_values(self) -> list[Any]:
        """The indexed values."""
        return list(self._index_data)

    def get_row_group_indexes(self, value_key: Any) -> set[int]:
        """Return the row groups that contain a value."""
        return set(self._index_data.get(value_key, ()))

    def build_index(self, decoded_rows: Iterable[Mapping[str, Any]], piece_index: int) -> dict[Any, set[int]]:
        """Add the rows of a row group.

        Raises:
            ValueError: If there are no rows.
        """
        for value in self._column(decoded_rows):
            if value is None:
                continue
            for item in value.reshape(-1) if isinstance(value, np.ndarray) else (value,):
                self._index_data[item].add(piece_index)
        return self._index_data


class FieldNotNullIndexer(_FieldIndexer):
    """The row groups in which a field is not always null."""

    def __init__(self, index_name: str, index_field: str) -> None:
        """Begin without values."""
        super().__init__(index_name, index_field)
        self._index_data: set[int] = set()

    def __add__(self, other: Any) -> FieldNotNullIndexer:
        """Merge another index into this one, and return it."""
        self._check(other)
        self._index_data.update(other._index_data)
        return self

    @property
    def indexed_values(self) -> list[str]:
        """A single name for all values."""
        return ["Field is Not Null"]

    def get_row_group_indexes(self, value_key: Any = None) -> set[int]:  # noqa: ARG002 - any value
        """Return the row groups that contain a value."""
        return set(self._index_data)

    def build_index(self, decoded_rows: Iterable[Mapping[str, Any]], piece_index: int) -> set[int]:
        """Add the rows of a row group.

        Raises:
            ValueError: If there are no rows.
        """
        if any(value is not None for value in self._column(decoded_rows)):
            self._index_data.add(piece_index)
        return self._index_data
