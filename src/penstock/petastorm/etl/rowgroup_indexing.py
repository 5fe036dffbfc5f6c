"""`petastorm.etl.rowgroup_indexing`: stored indexes of row groups."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock._engine.query.query import ColumnDecoding
from penstock._engine.row_groups.reader import RowGroupReader
from penstock._engine.row_groups.tasks import ScheduledTask
from penstock.formats.petastorm import INDEX_KEY
from penstock.petastorm._impl.dataset import open_dataset
from penstock.petastorm._impl.indexes import get_row_group_indexes
from penstock.petastorm._impl.jobs import RowJob
from penstock.petastorm._impl.reexports import reexport
from penstock.petastorm._impl.row_group_selection import SelectionArguments, select_row_groups
from penstock.petastorm.etl import RowGroupIndexerBase
from penstock.petastorm.etl._index_pickle import pickle_indexes
from penstock.petastorm.etl.dataset_metadata import get_schema
from penstock.petastorm.utils import add_to_dataset_metadata

__all__ = ["ROWGROUPS_INDEX_KEY", "PieceInfo", "build_rowgroup_index", "get_row_group_indexes"]

ROWGROUPS_INDEX_KEY = INDEX_KEY

PieceInfo = namedtuple("PieceInfo", ["piece_index", "path", "row_group", "partition_keys"])  # noqa: PYI024 - Petastorm's type


def build_rowgroup_index(
    dataset_url: str,
    spark_context: Any,  # noqa: ARG001 - Spark is not needed
    indexers: Sequence[RowGroupIndexerBase],
    hdfs_driver: str = "libhdfs3",  # noqa: ARG001 - pyarrow finds the driver
    *,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
) -> None:
    """Build indexes of the row groups of a dataset, and store them with it; they replace its other indexes.

    Spark is not needed: this process reads the indexed fields of each row group.

    Raises:
        ValueError: If there is no indexer, or the dataset does not have the field of one.
        PetastormMetadataError: If it is not a dataset of Petastorm.
    """
    if not indexers:
        raise ValueError("build_rowgroup_index got no indexers. Give at least one.")
    dataset = open_dataset(dataset_url, storage_options, filesystem)
    schema = get_schema(dataset)
    names = list(dict.fromkeys(name for indexer in indexers for name in indexer.column_names))
    unknown = [name for name in names if name not in schema.fields]
    if unknown:
        raise ValueError(f"Fields {unknown} are to be indexed, and the schema has {list(schema.fields)}. Index one of those.")
    selection = select_row_groups(dataset, dataset.decoding(), schema, SelectionArguments(numbered=True))
    fields = selection.snapshot.fields
    reader = RowGroupReader(
        selection.snapshot, dataset.fs, [ColumnDecoding(name=name, field=fields.get(name)) for name in names]
    )
    job = RowJob(selection.tasks, reader, None, schema=schema.create_schema_view([schema.fields[name] for name in names]))
    for task, number in enumerate(selection.tasks.ordinal.tolist()):
        rows = job.dicts(ScheduledTask(epoch=0, place=task, task=task))
        for indexer in indexers:
            indexer.build_index(rows, int(number))
    value = pickle_indexes({indexer.index_name: indexer for indexer in indexers})
    add_to_dataset_metadata(dataset, ROWGROUPS_INDEX_KEY, value)


if not TYPE_CHECKING:
    __getattr__ = reexport(__name__)
