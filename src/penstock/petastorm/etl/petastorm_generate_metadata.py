"""What Petastorm stores with a dataset, made anew: `petastorm.etl.petastorm_generate_metadata`. Not there yet."""

from __future__ import annotations

from typing import Any, NoReturn

from penstock.petastorm._later import refuse

__all__ = ["generate_petastorm_metadata"]


def generate_petastorm_metadata(
    spark: Any,  # noqa: ARG001 - the arguments are Petastorm's
    dataset_url: str,  # noqa: ARG001 - the same
    unischema_class: str | None = None,  # noqa: ARG001 - the same
    use_summary_metadata: bool = False,  # noqa: ARG001 - the same
    hdfs_driver: str = "libhdfs3",  # noqa: ARG001 - the same
) -> NoReturn:
    """Store the schema and the numbers of row groups of a dataset.

    Raises:
        MissingExtraError: It is not there yet.
    """
    refuse("petastorm.etl.petastorm_generate_metadata", "spark", instead="penstock.adopt")
