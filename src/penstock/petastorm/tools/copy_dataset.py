"""`petastorm.tools.copy_dataset`: copies of datasets.

This command line utility copies a dataset of Petastorm, or some fields of it, or the rows in which some fields are not null.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyarrow import fs as pafs

from penstock.errors import ArgumentError
from penstock.formats.petastorm import UNISCHEMA_KEY, pickle_unischema
from penstock.petastorm._impl.copy import DatasetCopy
from penstock.petastorm._impl.dataset import StoredDataset, open_dataset, target_place
from penstock.petastorm._impl.metadata_keys import stored_schema
from penstock.petastorm._impl.reexports import reexport
from penstock.petastorm.etl.dataset_metadata import get_schema
from penstock.petastorm.tools.spark_session_cli import add_configure_spark_arguments, warn_without_spark
from penstock.petastorm.unischema import Unischema, match_unischema_fields
from penstock.schema import Schema
from penstock.schema.json import KEY, dump

__all__ = ["args_parser", "copy_dataset", "main"]

MEGABYTE = 1 << 20


def copy_dataset(
    spark: Any,  # noqa: ARG001 - Spark is not needed
    source_url: str,
    target_url: str,
    field_regex: Sequence[str] | None,
    not_null_fields: Sequence[str] | None,
    overwrite_output: bool,
    partitions_count: int | None,
    row_group_size_mb: int | None,
    hdfs_driver: str = "libhdfs3",  # noqa: ARG001 - pyarrow finds the driver
) -> None:
    """Copy a dataset, or some of its fields and rows. Cells are copied as they are stored.

    Args:
        spark: No effect; accepted for compatibility.
        source_url: The dataset.
        target_url: The copy.
        field_regex: Regular expressions that match the whole names of fields; None or an empty list for all fields.
        not_null_fields: Rows with a null in one of these fields are not copied.
        overwrite_output: Whether an existing dataset is replaced.
        partitions_count: The number of files; None to begin a new file by size.
        row_group_size_mb: The size of a row group; None for 128.
        hdfs_driver: No effect; accepted for compatibility.

    Raises:
        ValueError: If no field matches, a field or a number is invalid, or the target exists and must not be replaced.
        PetastormMetadataError: If the source has no stored schema.
    """
    dataset = open_dataset(source_url)
    schema = get_schema(dataset)
    fields = match_unischema_fields(schema, field_regex or ())
    if field_regex and not fields:
        msg = f"Regular expressions ({list(field_regex)}) do not match any fields ({list(schema.fields)}). Give others."
        raise ValueError(msg)
    _check_arguments(dataset, not_null_fields or (), partitions_count, row_group_size_mb)
    view = schema.create_schema_view(fields) if fields else schema
    copy = DatasetCopy(
        dataset=dataset,
        columns=_columns(dataset, view, every=not fields),
        not_null=list(not_null_fields or ()),
        files=partitions_count,
        row_group_bytes=(row_group_size_mb or 128) * MEGABYTE,
    )
    place = target_place(target_url)
    if not overwrite_output and place.filesystem.get_file_info(place.path).type != pafs.FileType.NotFound:
        msg = f"{target_url} already exists; expected a target that does not exist. Give another, or overwrite_output=True, "
        raise ValueError(f"{msg}which is --overwrite-output for the command.")
    copy.write(place, "overwrite" if overwrite_output else "error", _metadata(dataset, schema, view))


def _columns(dataset: StoredDataset, view: Unischema, *, every: bool) -> list[str]:
    """Return the columns that are copied: those of the schema, and with `every` the other columns of the files."""
    stored = dataset.raw.schema.names
    return [*(name for name in view.fields if name in stored), *(name for name in stored if every and name not in view.fields)]


def _check_arguments(dataset: StoredDataset, not_null: Sequence[str], files: int | None, megabytes: int | None) -> None:
    """Check that fields exist, and that numbers are positive."""
    unknown = [name for name in not_null if name not in dataset.raw.schema.names]
    if unknown:
        msg = f"Fields {unknown} must not be null, and the dataset has {dataset.raw.schema.names}. Name fields that it has."
        raise ValueError(msg)
    for name, number in (("partitions_count", files), ("row_group_size_mb", megabytes)):
        if number is not None and number < 1:
            raise ValueError(f"{name} must be a positive integer or None, and is {number!r}.")


def _metadata(dataset: StoredDataset, schema: Unischema, view: Unischema) -> dict[bytes, bytes]:
    """Return the metadata of a copy: the schema of Petastorm, and that of Penstock if it is stored.

    If a field of a Penstock table has no counterpart in Petastorm, the copy has the schema of Penstock only.
    """
    keys: dict[bytes, bytes] = {}
    try:
        keys[UNISCHEMA_KEY] = pickle_unischema(stored_schema(view))
    except ArgumentError:
        if dataset.is_petastorm and list(view.fields) != list(schema.fields):
            raise
        if dataset.is_petastorm:  # codecs of users: the pickle is copied
            keys[UNISCHEMA_KEY] = dataset.keys[UNISCHEMA_KEY]
    ours = [field for name, field in dataset.fields.items() if name in view.fields]
    if ours:
        keys[KEY] = dump(Schema(view._name, ours)).encode()  # noqa: SLF001 - a Unischema has no other name
    return keys


def args_parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("source_url", type=str, help="the URL of the dataset")
    parser.add_argument("target_url", type=str, help="the URL of the copy")
    parser.add_argument("--overwrite-output", action="store_true", help="replace an existing dataset")
    parser.add_argument("--field-regex", type=str, nargs="+", help="regular expressions that match the whole names of fields")
    parser.add_argument("--not-null-fields", type=str, nargs="+", help="do not copy rows with a null in these fields")
    parser.add_argument("--partition-count", type=int, required=False, help="the number of files")
    parser.add_argument("--row-group-size-mb", type=int, required=False, help="the size of a row group in megabytes")
    parser.add_argument("--hdfs-driver", type=str, default="libhdfs3", help="no effect; accepted for compatibility")
    add_configure_spark_arguments(parser)
    return parser


def _main(sys_argv: Sequence[str]) -> None:
    logging.basicConfig()
    args = args_parser().parse_args(sys_argv)
    warn_without_spark(master=args.master, spark_session_config=args.spark_session_config)
    copy_dataset(
        None,
        args.source_url,
        args.target_url,
        args.field_regex,
        args.not_null_fields,
        args.overwrite_output,
        args.partition_count,
        args.row_group_size_mb,
        hdfs_driver=args.hdfs_driver,
    )


def main() -> None:
    """Run the command."""
    _main(sys.argv[1:])


if not TYPE_CHECKING:
    __getattr__ = reexport(__name__)

if __name__ == "__main__":
    main()
