"""`petastorm.etl.petastorm_generate_metadata`: writes the metadata of an existing dataset."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pydoc import locate
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock._engine.parquet.footer import read_footers
from penstock.formats.petastorm import ROW_GROUPS_KEY, UNISCHEMA_KEY, pickle_unischema
from penstock.formats.petastorm.keys import SUMMARY
from penstock.petastorm._impl.dataset import StoredDataset, open_dataset
from penstock.petastorm._impl.metadata_keys import check_files, remove_checksum, store_keys, stored_schema
from penstock.petastorm._impl.reexports import reexport
from penstock.petastorm.etl.dataset_metadata import PetastormMetadataError, PetastormMetadataGenerationError, get_schema
from penstock.petastorm.tools.spark_session_cli import warn_without_spark
from penstock.petastorm.unischema import Unischema
from penstock.schema.json import KEY

__all__ = ["example_text", "generate_petastorm_metadata", "main"]

DRIVER_MEMORY = "4g"

example_text = """For example:
petastorm-generate-metadata.py --dataset_url file:///data/hello_world --unischema_class our_project.schemas.HelloWorldSchema
"""
"""The epilog of the help."""


class NoSchemaError(PetastormMetadataError, ValueError):
    """A schema is neither stored nor options."""


def generate_petastorm_metadata(
    spark: Any,  # noqa: ARG001 - Spark is not needed
    dataset_url: str,
    unischema_class: str | None = None,
    use_summary_metadata: bool = False,
    hdfs_driver: str = "libhdfs3",  # noqa: ARG001 - pyarrow finds the driver
) -> None:
    """Store the schema of a dataset and the numbers of row groups of its files, which do not change.

    Args:
        spark: No effect; accepted for compatibility.
        dataset_url: The dataset: a directory of Parquet files.
        unischema_class: The dotted name of its schema, like `our_project.schemas.HelloWorldSchema`, whose module is
            imported; None for the stored schema.
        use_summary_metadata: Whether to write `_metadata`, a summary of all footers, instead of the numbers.
        hdfs_driver: No effect; accepted for compatibility.

    Raises:
        ValueError: If the schema does not exist, or the table has a transaction log.
        PetastormMetadataGenerationError: If the files have different columns, and a summary is requested.
    """
    dataset = open_dataset(dataset_url)
    check_files(dataset)
    schema = _schema(dataset, unischema_class)
    keys: dict[bytes, bytes | None] = {UNISCHEMA_KEY: pickle_unischema(stored_schema(schema))}
    if unischema_class:
        keys[KEY] = None  # a stored schema of Penstock would be used instead
    if use_summary_metadata:
        _write_summary(dataset)
    else:
        keys[ROW_GROUPS_KEY] = json.dumps(_row_group_counts(dataset)).encode()
    store_keys(dataset, keys)


def _schema(dataset: StoredDataset, name: str | None) -> Unischema:
    """Return the schema with a name, or the stored one. The name comes from the user, never from a dataset."""
    if name:
        schema = locate(name)
        if not isinstance(schema, Unischema):
            msg = f"The specified class {name} is not an instance of a petastorm.Unischema object. It is {schema!r}. Name one."
            raise ValueError(msg)
        return schema
    try:
        return get_schema(dataset)
    except PetastormMetadataError as error:
        msg = f"Unischema class could not be located in existing dataset, please specify it: {dataset.place.url} has none."
        raise NoSchemaError(msg) from error


def _row_group_counts(dataset: StoredDataset) -> dict[str, int]:
    """Return the number of row groups of each file, by its path in the dataset."""
    paths = dataset.raw.files.path.to_pylist()
    groups = read_footers(dataset.raw, list(range(len(paths))), [], dataset.fs)
    counts = np.bincount(groups.file, minlength=len(paths)).tolist()
    base = dataset.place.path.rstrip("/")
    return {path[len(base) :].lstrip("/"): int(count) for path, count in zip(paths, counts, strict=True)}


def _write_summary(dataset: StoredDataset) -> None:
    """Write `_metadata`, which has the footers of all files."""
    base, footers = dataset.place.path.rstrip("/"), []
    for piece in dataset.pieces:
        footers.append(piece.get_metadata())
        footers[-1].set_file_path(piece.path[len(base) :].lstrip("/"))
    summary = footers[0]
    try:
        for footer in footers[1:]:
            summary.append_row_groups(footer)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        msg = f"The files of {dataset.place.url} have different columns, which a summary cannot have: {reason}. "
        raise PetastormMetadataGenerationError(f"{msg}Leave use_summary_metadata out.") from error
    with dataset.fs.open_output_stream(f"{base}/{SUMMARY}") as target:
        summary.write_metadata_file(target)
    remove_checksum(dataset.fs, base, SUMMARY)


def _main(args: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="petastorm_generate_metadata",
        description="Store what Petastorm needs to read a dataset of Parquet files.",
        epilog=example_text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dataset_url", required=True, help="the URL of the directory of the dataset")
    parser.add_argument(
        "--unischema_class",
        required=False,
        help="the dotted name of its Unischema, as in our_project.schemas.HelloWorldSchema; by default the stored one",
    )
    parser.add_argument("--master", type=str, help="no effect; Spark is not needed")
    parser.add_argument("--spark-driver-memory", type=str, default=DRIVER_MEMORY, help="the same")
    parser.add_argument("--use-summary-metadata", action="store_true", help="write _metadata, a summary of all footers")
    parser.add_argument("--hdfs-driver", type=str, default="libhdfs3", help="no effect; accepted for compatibility")
    options = parser.parse_args(args)
    memory = None if options.spark_driver_memory == DRIVER_MEMORY else options.spark_driver_memory
    warn_without_spark(master=options.master, spark_driver_memory=memory)
    generate_petastorm_metadata(
        None, options.dataset_url, options.unischema_class, options.use_summary_metadata, hdfs_driver=options.hdfs_driver
    )


def main() -> None:
    """Run the command."""
    _main(sys.argv[1:])


if not TYPE_CHECKING:
    __getattr__ = reexport(__name__)

if __name__ == "__main__":
    main()
