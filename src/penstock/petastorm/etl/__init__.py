"""`petastorm.etl`: indexes of row groups, and the stored metadata of datasets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from penstock.petastorm._impl.reexports import reexport

__all__ = ["RowGroupIndexerBase"]


class RowGroupIndexerBase(ABC):
    """The base class of indexes of row groups."""

    @abstractmethod
    def __add__(self, other: Any) -> Any:
        """Merge another index of the same column into this one, and return it."""

    @property
    @abstractmethod
    def index_name(self) -> str:
        """The name of the index."""

    @property
    @abstractmethod
    def column_names(self) -> list[str]:
        """The indexed columns."""

    @property
    @abstractmethod
    def indexed_values(self) -> list[Any]:
        """The indexed values."""

    @abstractmethod
    def get_row_group_indexes(self, value_key: Any) -> Iterable[int]:
        """Return the numbers of the row groups that contain a value."""

    @abstractmethod
    def build_index(self, decoded_rows: Any, piece_index: int) -> Any:
        """Add the rows of a row group."""


if not TYPE_CHECKING:
    __getattr__ = reexport(__name__)
