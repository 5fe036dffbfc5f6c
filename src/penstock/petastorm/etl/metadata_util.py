"""`python -m petastorm.etl.metadata_util --dataset-url URL`: prints the metadata of a dataset."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.petastorm._impl.dataset import open_dataset
from penstock.petastorm._impl.indexes import get_row_group_indexes
from penstock.petastorm._impl.reexports import reexport
from penstock.petastorm.etl.dataset_metadata import get_schema
from penstock.petastorm.reader import normalize_dataset_url_or_urls

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> None:
    """Print the schema and the indexes of row groups."""
    parser = argparse.ArgumentParser(prog="metadata utility", description="Show what Petastorm has stored with a dataset.")
    parser.add_argument("--dataset-url", type=str, required=True, help="the URL of the directory of the dataset")
    parser.add_argument("--schema", action="store_true", help="show the schema")
    parser.add_argument("--index", action="store_true", help="show the indexes of row groups")
    parser.add_argument("--print-values", action="store_true", help="show the row groups of each value too")
    parser.add_argument("--skip-index", nargs="+", type=str, default=(), help="indexes whose values are not shown")
    parser.add_argument("--hdfs-driver", type=str, default="libhdfs3", help="no effect; accepted for compatibility")
    args = parser.parse_args(argv)
    dataset = open_dataset(normalize_dataset_url_or_urls(args.dataset_url))
    if args.schema or not args.index:
        print("*** Schema from dataset metadata ***")  # noqa: T201 - a command
        print(get_schema(dataset))  # noqa: T201 - the same
    if args.index or not args.schema:
        indexes = get_row_group_indexes(dataset)
        print("*** Row group indexes from dataset metadata ***")  # noqa: T201 - the same
        for name, index in indexes.items():
            _print_index(name, index, skipped=name in args.skip_index, groups=args.print_values)


def _print_index(name: str, index: Any, *, skipped: bool, groups: bool) -> None:
    print(f"Index: {name}")  # noqa: T201 - a command
    if skipped:
        print("  (skipped)")  # noqa: T201 - the same
        return
    for value in index.indexed_values:
        numbers = index.get_row_group_indexes(value)
        print(f"  -- {value}({len(numbers)})")  # noqa: T201 - the same
        if groups:
            print(numbers)  # noqa: T201 - the same


if not TYPE_CHECKING:
    __getattr__ = reexport(__name__)

if __name__ == "__main__":
    main()
