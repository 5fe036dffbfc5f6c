"""Data frames of Spark as datasets: `petastorm.spark.spark_dataset_converter`. Not there yet."""

from __future__ import annotations

from typing import Any, NoReturn

from penstock.petastorm._later import refuse

__all__ = ["SparkDatasetConverter", "make_spark_converter"]

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
        refuse("petastorm.spark.SparkDatasetConverter", "spark", instead=INSTEAD)


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
    refuse("petastorm.spark.make_spark_converter", "spark", instead=INSTEAD)
