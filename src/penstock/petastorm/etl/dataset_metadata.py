"""`petastorm.etl.dataset_metadata`: the stored schema and row groups of a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from penstock._engine.parquet.footer import read_footers
from penstock.errors import DataError
from penstock.formats.petastorm import ROW_GROUPS_KEY, UNISCHEMA_KEY
from penstock.petastorm._impl.dataset import Piece, StoredDataset, open_dataset
from penstock.petastorm._impl.not_supported import raise_not_supported
from penstock.petastorm._impl.reexports import reexport
from penstock.petastorm.unischema import Unischema

__all__ = [
    "ROW_GROUPS_PER_FILE_KEY",
    "UNISCHEMA_KEY",
    "PetastormMetadataError",
    "PetastormMetadataGenerationError",
    "get_schema",
    "get_schema_from_dataset_url",
    "infer_or_load_unischema",
    "load_row_groups",
    "materialize_dataset",
]

ROW_GROUPS_PER_FILE_KEY = ROW_GROUPS_KEY


class PetastormMetadataError(Exception):
    """The metadata of a dataset is missing, or cannot be read."""


class PetastormMetadataGenerationError(Exception):
    """The metadata of a dataset cannot be written."""


def as_dataset(dataset: Any) -> StoredDataset:
    """Return the dataset of Penstock for one of pyarrow."""
    if isinstance(dataset, StoredDataset):
        return dataset
    filesystem = getattr(dataset, "fs", None) or getattr(dataset, "filesystem", None)
    paths = getattr(dataset, "paths", None) or getattr(dataset, "_base_dir", None) or dataset.files
    paths = paths[0] if isinstance(paths, list) and len(paths) == 1 else paths
    return open_dataset(paths, filesystem=filesystem)


def get_schema(dataset: Any) -> Unischema:
    """Return the stored schema of a dataset.

    Raises:
        PetastormMetadataError: If there is none.
    """
    stored = as_dataset(dataset)
    if not stored.is_described and stored.common_metadata is None:
        msg = (
            f"Could not find _common_metadata file in {stored.place.url}. Use materialize_dataset(..) in "
            "petastorm.etl.dataset_metadata to write it, or make_batch_reader to read the files as they are."
        )
        raise PetastormMetadataError(msg)
    if not stored.is_described:
        msg = (
            f"Could not find the unischema in the dataset common metadata file of {stored.place.url}. Please provide or "
            "generate dataset with the unischema attached, or use make_batch_reader to read the files as they are."
        )
        raise PetastormMetadataError(msg)
    try:
        return stored.schema
    except DataError as error:
        raise PetastormMetadataError(str(error)) from error


def get_schema_from_dataset_url(
    dataset_url_or_urls: Any,
    hdfs_driver: str = "libhdfs3",  # noqa: ARG001 - pyarrow finds the driver
    storage_options: Any = None,
    filesystem: Any = None,
) -> Unischema:
    """Return the stored schema of the dataset at a URL.

    Raises:
        PetastormMetadataError: If there is none.
        OSError: If the dataset does not exist.
        ValueError: If the URL has no scheme.
    """
    return get_schema(open_dataset(dataset_url_or_urls, storage_options, filesystem))


def materialize_dataset(
    spark: Any,  # noqa: ARG001 - the signature of Petastorm
    dataset_url: str,  # noqa: ARG001 - the same
    schema: Unischema,  # noqa: ARG001 - the same
    row_group_size_mb: int | None = None,  # noqa: ARG001 - the same
    use_summary_metadata: bool = False,  # noqa: ARG001 - the same
    filesystem_factory: Any = None,  # noqa: ARG001 - the same
) -> NoReturn:
    """Return a context manager in which Spark writes a dataset.

    Raises:
        MissingExtraError: It is not supported yet.
    """
    raise_not_supported(
        "petastorm.etl.dataset_metadata.materialize_dataset",
        "spark",
        instead="penstock.write(url, schema, rows, format=PetastormFormat())",
    )


def infer_or_load_unischema(dataset: Any) -> Unischema:
    """Return the stored schema of a dataset, or the one inferred from its columns."""
    return as_dataset(dataset).schema


def load_row_groups(dataset: Any) -> list[Piece]:
    """Return the row groups of a dataset, in the order of file paths and of row groups in a file."""
    stored = as_dataset(dataset)
    counts = stored.row_group_counts().copy()
    unknown = np.flatnonzero(counts < 0)
    if len(unknown):
        groups = read_footers(stored.raw, unknown.tolist(), [], stored.fs)
        counts[unknown] = 0
        counts += np.bincount(groups.file, minlength=len(counts))
    return [
        Piece(piece.path, stored.fs, number, piece.partition_keys)
        for piece, count in zip(stored.pieces, counts.tolist(), strict=True)
        for number in range(count)
    ]


if not TYPE_CHECKING:
    __getattr__ = reexport(__name__)
