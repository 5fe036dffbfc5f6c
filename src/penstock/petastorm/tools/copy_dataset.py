"""Copies of datasets: `petastorm.tools.copy_dataset`. Not there yet."""

from __future__ import annotations

from typing import Any, NoReturn

from penstock.petastorm._later import refuse

__all__ = ["copy_dataset"]


def copy_dataset(
    spark: Any,  # noqa: ARG001 - the arguments are Petastorm's
    source_url: str,  # noqa: ARG001 - the same
    target_url: str,  # noqa: ARG001 - the same
    field_regex: Any,  # noqa: ARG001 - the same
    not_null_fields: Any,  # noqa: ARG001 - the same
    overwrite_output: bool,  # noqa: ARG001 - the same
    partitions_count: int | None,  # noqa: ARG001 - the same
    row_group_size_mb: int | None,  # noqa: ARG001 - the same
    hdfs_driver: str = "libhdfs3",  # noqa: ARG001 - the same
) -> NoReturn:
    """Copy a dataset, or some fields and rows of it.

    Raises:
        MissingExtraError: It is not there yet.
    """
    refuse("petastorm.tools.copy_dataset", "spark", instead="penstock.open and penstock.write")
