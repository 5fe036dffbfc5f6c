"""Indexes of row groups that are stored with a dataset."""

from __future__ import annotations

from typing import Any

from penstock.formats.petastorm import NotNullIndex, RowGroupIndex
from penstock.petastorm.etl import RowGroupIndexerBase
from penstock.petastorm.etl.dataset_metadata import as_dataset
from penstock.petastorm.etl.rowgroup_indexers import FieldNotNullIndexer, SingleFieldIndexer

__all__ = ["get_row_group_indexes", "indexer_of"]


def get_row_group_indexes(dataset: Any) -> dict[str, RowGroupIndexerBase]:
    """Return the indexes that are stored with a dataset, by name.

    Raises:
        ValueError: If none is.
    """
    found = as_dataset(dataset)
    if found.common_metadata is None:
        msg = f"Could not find _common_metadata file in {found.place.url}. Indexes of row groups are stored there. Build them."
        raise ValueError(msg)
    if not found.has_indexes:
        raise ValueError(f"Row groups indexes were not found in {found.place.url}. Build them before you select by them.")
    return {name: indexer_of(index) for name, index in found.facts.indexes.items()}


def indexer_of(index: RowGroupIndex) -> RowGroupIndexerBase:
    """Return an index of Petastorm that holds what a dataset stores."""
    if isinstance(index, NotNullIndex):
        made = FieldNotNullIndexer(index.name, index.column)
        made._index_data = set(index.row_groups)  # noqa: SLF001 - what it would build
        return made
    single = SingleFieldIndexer(index.name, index.column)
    single._index_data.update({value: set(numbers) for value, numbers in index.row_groups.items()})  # noqa: SLF001 - the same
    return single
