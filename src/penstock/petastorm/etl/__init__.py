"""Indexes of row groups, and what Petastorm stores with a dataset: `petastorm.etl`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from penstock.petastorm._impl.reexports import reexport

__all__ = ["RowGroupIndexerBase"]


class RowGroupIndexerBase(ABC):
    """What indexes of row groups have in common; derive from it for one of your own."""

    @abstractmethod
    def __add__(self, other: Any) -> Any:
        """Return this index with another of the same column merged into it."""

    @property
    @abstractmethod
    def index_name(self) -> str:
        """What the index is called."""

    @property
    @abstractmethod
    def column_names(self) -> list[str]:
        """The columns that it is made of."""

    @property
    @abstractmethod
    def indexed_values(self) -> list[Any]:
        """The values that it knows row groups of."""

    @abstractmethod
    def get_row_group_indexes(self, value_key: Any) -> Iterable[int]:
        """Return the numbers of the row groups that hold a value."""

    @abstractmethod
    def build_index(self, decoded_rows: Any, piece_index: int) -> Any:
        """Add the rows of a row group."""


if not TYPE_CHECKING:
    __getattr__ = reexport(__name__)
