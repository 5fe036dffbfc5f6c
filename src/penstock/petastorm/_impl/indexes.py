"""Stored indexes of row groups."""

from __future__ import annotations

from typing import Any

from penstock.formats.petastorm import NotNullIndex, RowGroupIndex
from penstock.petastorm.etl import RowGroupIndexerBase
from penstock.petastorm.etl.dataset_metadata import as_dataset
from penstock.petastorm.etl.rowgroup_indexers import FieldNotNullIndexer, SingleFieldIndexer

__all__ = ["get_row_group_indexes", "stored_indexer"]


def get_row_group_indexes(dataset: Any) -> dict[str, RowGroupIndexerBase]:
    """Return the stored indexes of a dataset by name.

    Raises:
        ValueError: If there is none.
    """
    stored = as_dataset(dataset)
    if stored.common_metadata is None:
        msg = f"Could not find _common_metadata file in {stored.place.url}. Indexes of row groups are stored there. Build them."
        raise ValueError(msg)
    if not stored.has_indexes:
        raise ValueError(f"Row groups indexes were not found in {stored.place.url}. Build them before you select by them.")
    return {name: stored_indexer(index) for name, index in stored.facts.indexes.items()}


def stored_indexer(index: RowGroupIndex) -> RowGroupIndexerBase:
    """Return the indexer of Petastorm for a stored index."""
    if isinstance(index, NotNullIndex):
        not_null = FieldNotNullIndexer(index.name, index.column)
        not_null._index_data = set(index.row_groups)  # noqa: SLF001 - as its build_index does
        return not_null
    single = SingleFieldIndexer(index.name, index.column)
    single._index_data.update({value: set(numbers) for value, numbers in index.row_groups.items()})  # noqa: SLF001 - the same
    return single
