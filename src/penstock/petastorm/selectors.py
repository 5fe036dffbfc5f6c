"""`petastorm.selectors`: selection of row groups by the stored indexes of a dataset."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

__all__ = ["IntersectIndexSelector", "RowGroupSelectorBase", "SingleIndexSelector", "UnionIndexSelector"]


class RowGroupSelectorBase(ABC):
    """The base class of selectors."""

    @abstractmethod
    def get_index_names(self) -> list[str]:
        """Return the names of the indexes that it uses."""

    @abstractmethod
    def select_row_groups(self, index_dict: Mapping[str, Any]) -> set[int]:
        """Return the numbers of the selected row groups."""


class SingleIndexSelector(RowGroupSelectorBase):
    """Row groups that contain one of the values, by one index."""

    def __init__(self, index_name: str, values_list: Sequence[Any]) -> None:
        """Store the index and the values."""
        self._index_name, self._values_list = index_name, values_list

    def get_index_names(self) -> list[str]:
        """Return the name of the index."""
        return [self._index_name]

    def select_row_groups(self, index_dict: Mapping[str, Any]) -> set[int]:
        """Return the row groups of all values."""
        index = index_dict[self._index_name]
        return {int(number) for value in self._values_list for number in index.get_row_group_indexes(value)}


class _CombinedSelector(RowGroupSelectorBase):
    """The base class of selectors that combine others."""

    def __init__(self, single_index_selectors: Sequence[SingleIndexSelector]) -> None:
        """Store the selectors."""
        self._selectors = single_index_selectors

    def get_index_names(self) -> list[str]:
        """Return the name of the first index of each selector."""
        return [selector.get_index_names()[0] for selector in self._selectors]


class IntersectIndexSelector(_CombinedSelector):
    """Row groups that all selectors select."""

    def select_row_groups(self, index_dict: Mapping[str, Any]) -> set[int]:
        """Return the row groups that all selectors select."""
        return reduce(set.intersection, [selector.select_row_groups(index_dict) for selector in self._selectors])


class UnionIndexSelector(_CombinedSelector):
    """Row groups that any selector selects."""

    def select_row_groups(self, index_dict: Mapping[str, Any]) -> set[int]:
        """Return the row groups that any selector selects."""
        return set().union(*(selector.select_row_groups(index_dict) for selector in self._selectors))
