"""Selectors of `petastorm.selectors`: which row groups are read, by the indexes stored with a dataset."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

__all__ = ["IntersectIndexSelector", "RowGroupSelectorBase", "SingleIndexSelector", "UnionIndexSelector"]


class RowGroupSelectorBase(ABC):
    """What selectors have in common; derive from it for one of your own."""

    @abstractmethod
    def get_index_names(self) -> list[str]:
        """Return the names of the indexes that it looks at."""

    @abstractmethod
    def select_row_groups(self, index_dict: Mapping[str, Any]) -> set[int]:
        """Return the numbers of the row groups that are read, given indexes by name."""


class SingleIndexSelector(RowGroupSelectorBase):
    """Row groups that hold any of some values, by one index."""

    def __init__(self, index_name: str, values_list: Sequence[Any]) -> None:
        """Store the index and the values."""
        self._index_name, self._values_list = index_name, values_list

    def get_index_names(self) -> list[str]:
        """Return the index."""
        return [self._index_name]

    def select_row_groups(self, index_dict: Mapping[str, Any]) -> set[int]:
        """Return the row groups of all of the values."""
        index = index_dict[self._index_name]
        return {int(number) for value in self._values_list for number in index.get_row_group_indexes(value)}


class IntersectIndexSelector(RowGroupSelectorBase):
    """Row groups that every one of several selectors selects."""

    def __init__(self, single_index_selectors: Sequence[SingleIndexSelector]) -> None:
        """Store the selectors."""
        self._selectors = single_index_selectors

    def get_index_names(self) -> list[str]:
        """Return the first index of each."""
        return [selector.get_index_names()[0] for selector in self._selectors]

    def select_row_groups(self, index_dict: Mapping[str, Any]) -> set[int]:
        """Return the row groups that all of them select."""
        return reduce(set.intersection, [selector.select_row_groups(index_dict) for selector in self._selectors])


class UnionIndexSelector(RowGroupSelectorBase):
    """Row groups that at least one of several selectors selects."""

    def __init__(self, single_index_selectors: Sequence[SingleIndexSelector]) -> None:
        """Store the selectors."""
        self._selectors = single_index_selectors

    def get_index_names(self) -> list[str]:
        """Return the first index of each."""
        return [selector.get_index_names()[0] for selector in self._selectors]

    def select_row_groups(self, index_dict: Mapping[str, Any]) -> set[int]:
        """Return the row groups that any of them selects."""
        return set().union(*(selector.select_row_groups(index_dict) for selector in self._selectors))
