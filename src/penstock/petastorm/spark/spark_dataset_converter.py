"""Data frames of Spark as datasets: `petastorm.spark.spark_dataset_converter`. Not there yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from penstock.petastorm._impl.not_supported import raise_not_supported
from penstock.petastorm._impl.reexports import reexport

__all__ = [
    "CachedDataFrameMeta",
    "SparkDatasetConverter",
    "TFDatasetContextManager",
    "TorchDatasetContextManager",
    "make_spark_converter",
    "register_delete_dir_handler",
]

DEFAULT_ROW_GROUP_SIZE_BYTES = 32 * 1024 * 1024
INSTEAD = "df.write.parquet and petastorm.make_batch_reader"


class SparkDatasetConverter:
    """A data frame that is written, and can be read from there.

    Raises:
        MissingExtraError: It is not there yet.
    """

    PARENT_CACHE_DIR_URL_CONF = "petastorm.spark.converter.parentCacheDirUrl"

    def __init__(self, cache_dir_url: str, file_urls: Any, dataset_size: int) -> None:  # noqa: ARG002 - Petastorm's
        """Refuse."""
        raise_not_supported("petastorm.spark.SparkDatasetConverter", "spark", instead=INSTEAD)


def make_spark_converter(
    df: Any,  # noqa: ARG001 - the arguments are Petastorm's
    parquet_row_group_size_bytes: int = DEFAULT_ROW_GROUP_SIZE_BYTES,  # noqa: ARG001 - the same
    compression_codec: str | None = None,  # noqa: ARG001 - the same
    dtype: str | None = "float32",  # noqa: ARG001 - the same
) -> NoReturn:
    """Write a data frame, and return what reads it.

    Raises:
        MissingExtraError: It is not there yet.
    """
    raise_not_supported("petastorm.spark.make_spark_converter", "spark", instead=INSTEAD)


def register_delete_dir_handler(handler: Any) -> NoReturn:  # noqa: ARG001 - Petastorm's
    """Have directories of data frames deleted by a function.

    Raises:
        MissingExtraError: It is not there yet.
    """
    raise_not_supported("petastorm.spark.spark_dataset_converter.register_delete_dir_handler", "spark", instead=INSTEAD)


class _Later:
    """What only a converter makes.

    Raises:
        MissingExtraError: It is not there yet.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Refuse."""
        del args, kwargs
        raise_not_supported(f"petastorm.spark.spark_dataset_converter.{type(self).__name__}", "spark", instead=INSTEAD)


class CachedDataFrameMeta(_Later):
    """What is known of a data frame that was written."""


class TFDatasetContextManager(_Later):
    """A context in which a data frame is a dataset of TensorFlow."""


class TorchDatasetContextManager(_Later):
    """A context in which a data frame is a loader for PyTorch."""


if not TYPE_CHECKING:
    __getattr__ = reexport(__name__)
