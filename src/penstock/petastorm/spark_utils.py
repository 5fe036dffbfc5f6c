"""`petastorm.spark_utils`: datasets as RDDs of Spark. Not supported yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from penstock.petastorm._impl.not_supported import raise_not_supported
from penstock.petastorm._impl.reexports import reexport

__all__ = ["dataset_as_rdd"]


def dataset_as_rdd(
    dataset_url: str,  # noqa: ARG001 - the signature of Petastorm
    spark_session: Any,  # noqa: ARG001 - the same
    schema_fields: Any = None,  # noqa: ARG001 - the same
    hdfs_driver: str = "libhdfs3",  # noqa: ARG001 - the same
) -> NoReturn:
    """Return the rows of a dataset as an RDD.

    Raises:
        MissingExtraError: It is not supported yet.
    """
    raise_not_supported("petastorm.spark_utils.dataset_as_rdd", "spark", instead="petastorm.make_reader")


if not TYPE_CHECKING:
    __getattr__ = reexport(__name__)
