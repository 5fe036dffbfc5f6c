"""Copies of datasets: `petastorm.tools.copy_dataset`.

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
from penstock.petastorm.tools.spark_session_cli import add_configure_spark_arguments, tell_without_spark
from penstock.petastorm.unischema import Unischema, match_unischema_fields
from penstock.schema import Schema
from penstock.schema.json import KEY, dump

__all__ = ["args_parser", "copy_dataset", "main"]

MEGABYTE = 1 << 20


def copy_dataset(
    spark: Any,  # noqa: ARG001 - it is done on this machine, whatever Spark there is
    source_url: str,
    target_url: str,
    field_regex: Sequence[str] | None,
    not_null_fields: Sequence[str] | None,
    overwrite_output: bool,
    partitions_count: int | None,
    row_group_size_mb: int | None,
    hdfs_driver: str = "libhdfs3",  # noqa: ARG001 - one driver is left, and pyarrow finds it
) -> None:
    """Copy a dataset, or some fields and rows of it; cells are copied as they are stored.

    Args:
        spark: A session of Spark, which is not needed; None will do.
        source_url: The dataset.
        target_url: Where its copy goes.
        field_regex: Regular expressions that match the whole names of the fields that are copied; None or none for all.
        not_null_fields: Fields that must not be null in a row that is copied.
        overwrite_output: Whether a dataset that is there is replaced.
        partitions_count: How many files there are to be; None for as many as their sizes ask for.
        row_group_size_mb: How large row groups are to be; None for 128.
        hdfs_driver: Accepted as ever, and without effect.

    Raises:
        ValueError: If no field matches, one is not there, a number is none, or a dataset is there that is not to be replaced.
        PetastormMetadataError: If no schema is stored with the source, neither Petastorm's nor Penstock's.
    """
    dataset = open_dataset(source_url)
    schema = get_schema(dataset)
    fields = match_unischema_fields(schema, field_regex or ())
    if field_regex and not fields:
        msg = f"Regular expressions ({list(field_regex)}) do not match any fields ({list(schema.fields)}). Give others."
        raise ValueError(msg)
    _check(dataset, not_null_fields or (), partitions_count, row_group_size_mb)
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
        msg = f"{target_url} already exists. A place where nothing lies was expected. Give another, or overwrite_output=True, "
        raise ValueError(f"{msg}which is --overwrite-output for the command.")
    copy.write(place, "overwrite" if overwrite_output else "error", _keys(dataset, schema, view))


def _columns(dataset: StoredDataset, view: Unischema, *, every: bool) -> list[str]:
    """Return the columns that are copied: those of a schema that files have, and maybe those that it does not name."""
    stored = dataset.raw.schema.names
    return [*(name for name in view.fields if name in stored), *(name for name in stored if every and name not in view.fields)]


def _check(dataset: StoredDataset, full: Sequence[str], files: int | None, megabytes: int | None) -> None:
    """Refuse fields that are not there, and numbers that are none."""
    unknown = [name for name in full if name not in dataset.raw.schema.names]
    if unknown:
        msg = f"Fields {unknown} must not be null, and the dataset has {dataset.raw.schema.names}. Name fields that it has."
        raise ValueError(msg)
    for name, number in (("partitions_count", files), ("row_group_size_mb", megabytes)):
        if number is not None and number < 1:
            raise ValueError(f"{name} must be a positive integer or None, and is {number!r}.")


def _keys(dataset: StoredDataset, schema: Unischema, view: Unischema) -> dict[bytes, bytes]:
    """Return what is stored beside a copy: the schema of Petastorm, and that of ours where there is one.

    A table of ours whose fields have no counterpart in Petastorm has ours alone.
    """
    keys: dict[bytes, bytes] = {}
    try:
        keys[UNISCHEMA_KEY] = pickle_unischema(stored_schema(view))
    except ArgumentError:
        if dataset.is_petastorm and list(view.fields) != list(schema.fields):
            raise
        if dataset.is_petastorm:  # with codecs of users: as it is, and never looked into
            keys[UNISCHEMA_KEY] = dataset.keys[UNISCHEMA_KEY]
    ours = [field for name, field in dataset.fields.items() if name in view.fields]
    if ours:
        keys[KEY] = dump(Schema(view._name, ours)).encode()  # noqa: SLF001 - the name, which has no other way
    return keys


def args_parser() -> argparse.ArgumentParser:
    """Return what parses the arguments of the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("source_url", type=str, help="the URL of the dataset that is copied")
    parser.add_argument("target_url", type=str, help="the URL that it is copied to")
    parser.add_argument("--overwrite-output", action="store_true", help="replace a dataset that is there already")
    parser.add_argument("--field-regex", type=str, nargs="+", help="regular expressions that match the whole names of fields")
    parser.add_argument("--not-null-fields", type=str, nargs="+", help="fields that must not be null in a row that is copied")
    parser.add_argument("--partition-count", type=int, required=False, help="how many files there are to be")
    parser.add_argument("--row-group-size-mb", type=int, required=False, help="how large row groups are to be, in megabytes")
    parser.add_argument("--hdfs-driver", type=str, default="libhdfs3", help="accepted as ever, and without effect")
    add_configure_spark_arguments(parser)
    return parser


def _main(sys_argv: Sequence[str]) -> None:
    logging.basicConfig()
    args = args_parser().parse_args(sys_argv)
    tell_without_spark(master=args.master, spark_session_config=args.spark_session_config)
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
