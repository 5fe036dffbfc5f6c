"""Indexes of row groups that are stored with a dataset: `petastorm.etl.rowgroup_indexing`."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock._engine.query.values import Column
from penstock._engine.row_groups.order import Step
from penstock._engine.row_groups.reader import RowGroupReader
from penstock.formats.petastorm import INDEX_KEY
from penstock.petastorm._impl.dataset import opened
from penstock.petastorm._impl.indexes import get_row_group_indexes
from penstock.petastorm._impl.reexports import passed_on
from penstock.petastorm._impl.row_group_selection import Asked, selected
from penstock.petastorm._impl.row_job import RowJob
from penstock.petastorm.etl import RowGroupIndexerBase
from penstock.petastorm.etl._index_pickle import pickle_indexes
from penstock.petastorm.etl.dataset_metadata import get_schema
from penstock.petastorm.utils import add_to_dataset_metadata

__all__ = ["ROWGROUPS_INDEX_KEY", "PieceInfo", "build_rowgroup_index", "get_row_group_indexes"]

ROWGROUPS_INDEX_KEY = INDEX_KEY

PieceInfo = namedtuple("PieceInfo", ["piece_index", "path", "row_group", "partition_keys"])  # noqa: PYI024 - Petastorm's type


def build_rowgroup_index(
    dataset_url: str,
    spark_context: Any,  # noqa: ARG001 - threads of this machine do it
    indexers: Sequence[RowGroupIndexerBase],
    hdfs_driver: str = "libhdfs3",  # noqa: ARG001 - one driver is left, and pyarrow finds it
    *,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
) -> None:
    """Build indexes of the row groups of a dataset, and store them with it; its other indexes are replaced.

    Spark is not needed: row groups are read here, one after the other, and of them the indexed fields alone.

    Raises:
        ValueError: If there is no index to build, or one of a field that the dataset does not have.
        PetastormMetadataError: If the dataset is none of Petastorm.
    """
    if not indexers:
        raise ValueError("build_rowgroup_index got no indexers. Give at least one.")
    dataset = opened(dataset_url, storage_options, filesystem)
    schema = get_schema(dataset)
    names = list(dict.fromkeys(name for indexer in indexers for name in indexer.column_names))
    unknown = [name for name in names if name not in schema.fields]
    if unknown:
        raise ValueError(f"Fields {unknown} are to be indexed, and the schema has {list(schema.fields)}. Index one of those.")
    selection = selected(dataset, dataset.decoding(), schema, Asked(numbered=True))
    fields = selection.snapshot.fields
    reader = RowGroupReader(selection.snapshot, dataset.fs, [Column(name=name, field=fields.get(name)) for name in names])
    job = RowJob(selection.lots, reader, None, schema=schema.create_schema_view([schema.fields[name] for name in names]))
    for place, number in enumerate(selection.lots.ordinal.tolist()):
        rows = job.dicts(Step(epoch=0, place=place, lot=place))
        for indexer in indexers:
            indexer.build_index(rows, int(number))
    value = pickle_indexes({indexer.index_name: indexer for indexer in indexers})
    add_to_dataset_metadata(dataset, ROWGROUPS_INDEX_KEY, value)


if not TYPE_CHECKING:
    __getattr__ = passed_on(__name__)
