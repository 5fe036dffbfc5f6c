"""What Petastorm stores with a dataset, made anew: `petastorm.etl.petastorm_generate_metadata`."""

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
from penstock.petastorm.tools.spark_session_cli import tell_without_spark
from penstock.petastorm.unischema import Unischema
from penstock.schema.json import KEY

__all__ = ["example_text", "generate_petastorm_metadata", "main"]

DRIVER_MEMORY = "4g"

example_text = """For example:
petastorm-generate-metadata.py --dataset_url file:///data/hello_world --unischema_class our_project.schemas.HelloWorldSchema
"""
"""What the command shows below its arguments."""


class NoSchemaError(PetastormMetadataError, ValueError):
    """There is no schema, neither with a dataset nor given."""


def generate_petastorm_metadata(
    spark: Any,  # noqa: ARG001 - it is done on this machine, whatever Spark there is
    dataset_url: str,
    unischema_class: str | None = None,
    use_summary_metadata: bool = False,
    hdfs_driver: str = "libhdfs3",  # noqa: ARG001 - one driver is left, and pyarrow finds it
) -> None:
    """Store the schema of a dataset and the numbers of row groups of its files; the files stay as they are.

    Args:
        spark: A session of Spark, which is not needed, and is not stopped; None will do.
        dataset_url: The dataset: a directory of Parquet files.
        unischema_class: Where its schema is, as in `our_project.schemas.HelloWorldSchema`; None for the one that is stored
            already. The module is imported.
        use_summary_metadata: Whether row groups are told by `_metadata`, a summary of all footers.
        hdfs_driver: Accepted as ever, and without effect.

    Raises:
        ValueError: If there is no such schema, or a log names the files.
        PetastormMetadataGenerationError: If files are too different for one summary of them.
    """
    dataset = open_dataset(dataset_url)
    check_files(dataset)
    schema = _schema(dataset, unischema_class)
    keys: dict[bytes, bytes | None] = {UNISCHEMA_KEY: pickle_unischema(stored_schema(schema))}
    if unischema_class:
        keys[KEY] = None  # a schema of ours would count, and tell what was true before
    if use_summary_metadata:
        _write_summary(dataset)
    else:
        keys[ROW_GROUPS_KEY] = json.dumps(_row_groups(dataset)).encode()
    store_keys(dataset, keys)


def _schema(dataset: StoredDataset, name: str | None) -> Unischema:
    """Return the schema that a user names, or else the stored one; nothing of a dataset is ever imported."""
    if name:
        found = locate(name)
        if not isinstance(found, Unischema):
            msg = f"The specified class {name} is not an instance of a petastorm.Unischema object. It is {found!r}. Name one."
            raise ValueError(msg)
        return found
    try:
        return get_schema(dataset)
    except PetastormMetadataError as error:
        msg = f"Unischema class could not be located in existing dataset, please specify it: {dataset.place.url} has none."
        raise NoSchemaError(msg) from error


def _row_groups(dataset: StoredDataset) -> dict[str, int]:
    """Return how many row groups each file has, by its path relative to the dataset."""
    paths = dataset.raw.files.path.to_pylist()
    groups = read_footers(dataset.raw, list(range(len(paths))), [], dataset.fs)
    counts = np.bincount(groups.file, minlength=len(paths)).tolist()
    base = dataset.place.path.rstrip("/")
    return {path[len(base) :].lstrip("/"): int(count) for path, count in zip(paths, counts, strict=True)}


def _write_summary(dataset: StoredDataset) -> None:
    """Write `_metadata`, which tells of the row groups of all files."""
    base, footers = dataset.place.path.rstrip("/"), []
    for piece in dataset.pieces:
        footers.append(piece.get_metadata())
        footers[-1].set_file_path(piece.path[len(base) :].lstrip("/"))
    whole = footers[0]
    try:
        for footer in footers[1:]:
            whole.append_row_groups(footer)
    except RuntimeError as error:
        told = " ".join(str(error).split())
        msg = f"The files of {dataset.place.url} have different columns, which no summary can tell of: {told}. "
        raise PetastormMetadataGenerationError(f"{msg}Leave use_summary_metadata out.") from error
    with dataset.fs.open_output_stream(f"{base}/{SUMMARY}") as target:
        whole.write_metadata_file(target)
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
    parser.add_argument("--master", type=str, help="accepted as ever, and without effect: Spark is not needed")
    parser.add_argument("--spark-driver-memory", type=str, default=DRIVER_MEMORY, help="the same")
    parser.add_argument(
        "--use-summary-metadata", action="store_true", help="tell row groups by _metadata, a summary of all footers"
    )
    parser.add_argument("--hdfs-driver", type=str, default="libhdfs3", help="accepted as ever, and without effect")
    given = parser.parse_args(args)
    memory = None if given.spark_driver_memory == DRIVER_MEMORY else given.spark_driver_memory
    tell_without_spark(master=given.master, spark_driver_memory=memory)
    generate_petastorm_metadata(
        None, given.dataset_url, given.unischema_class, given.use_summary_metadata, hdfs_driver=given.hdfs_driver
    )


def main() -> None:
    """Run the command."""
    _main(sys.argv[1:])


if not TYPE_CHECKING:
    __getattr__ = reexport(__name__)

if __name__ == "__main__":
    main()
