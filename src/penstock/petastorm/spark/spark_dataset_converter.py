"""`petastorm.spark.spark_dataset_converter`: data frames of Spark as datasets. Not supported yet."""

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
    """A data frame that was written as a dataset.

    Raises:
        MissingExtraError: It is not supported yet.
    """

    PARENT_CACHE_DIR_URL_CONF = "petastorm.spark.converter.parentCacheDirUrl"

    def __init__(self, cache_dir_url: str, file_urls: Any, dataset_size: int) -> None:  # noqa: ARG002 - the signature of Petastorm
        """Raise MissingExtraError."""
        raise_not_supported("petastorm.spark.SparkDatasetConverter", "spark", instead=INSTEAD)


def make_spark_converter(
    df: Any,  # noqa: ARG001 - the signature of Petastorm
    parquet_row_group_size_bytes: int = DEFAULT_ROW_GROUP_SIZE_BYTES,  # noqa: ARG001 - the same
    compression_codec: str | None = None,  # noqa: ARG001 - the same
    dtype: str | None = "float32",  # noqa: ARG001 - the same
) -> NoReturn:
    """Write a data frame, and return its converter.

    Raises:
        MissingExtraError: It is not supported yet.
    """
    raise_not_supported("petastorm.spark.make_spark_converter", "spark", instead=INSTEAD)


def register_delete_dir_handler(handler: Any) -> NoReturn:  # noqa: ARG001 - the signature of Petastorm
    """Register a function that deletes directories of data frames.

    Raises:
        MissingExtraError: It is not supported yet.
    """
    raise_not_supported("petastorm.spark.spark_dataset_converter.register_delete_dir_handler", "spark", instead=INSTEAD)


class _NotSupported:
    """A class that only a converter makes.

    Raises:
        MissingExtraError: It is not supported yet.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Raise MissingExtraError."""
        del args, kwargs
        raise_not_supported(f"petastorm.spark.spark_dataset_converter.{type(self).__name__}", "spark", instead=INSTEAD)


class CachedDataFrameMeta(_NotSupported):
    """The metadata of a data frame that was written."""


class TFDatasetContextManager(_NotSupported):
    """A context manager for a dataset of TensorFlow."""


class TorchDatasetContextManager(_NotSupported):
    """A context manager for a loader of PyTorch."""


if not TYPE_CHECKING:
    __getattr__ = reexport(__name__)
