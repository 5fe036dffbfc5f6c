"""`petastorm.test_util.shuffling_analysis`: the quality of shuffling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.petastorm._impl.not_supported import raise_not_supported
from penstock.petastorm._impl.reexports import reexport
from penstock.petastorm.reader import make_reader

__all__ = ["compute_correlation_distribution", "generate_shuffle_analysis_dataset"]


def generate_shuffle_analysis_dataset(
    spark: Any,  # noqa: ARG001 - the signature of Petastorm
    output_dataset_url: str,  # noqa: ARG001 - the same
    num_rows: int = 1000,  # noqa: ARG001 - the same
    row_group_size: int = 100,  # noqa: ARG001 - the same
) -> None:
    """Write a small dataset with Spark.

    Raises:
        MissingExtraError: It is not supported yet.
    """
    raise_not_supported(
        "petastorm.test_util.shuffling_analysis.generate_shuffle_analysis_dataset", "spark", instead="penstock.write"
    )


def compute_correlation_distribution(
    dataset_url: str, id_column: str, shuffle_row_drop_partitions: int, num_corr_samples: int = 100
) -> tuple[float, float]:
    """Return the mean and the standard deviation of the absolute correlation of the stored order and shuffled orders."""
    with make_reader(dataset_url, schema_fields=[id_column], shuffle_row_groups=False, reader_pool_type="dummy") as reader:
        stored = [getattr(row, id_column) for row in reader]
    correlations = []
    for _ in range(num_corr_samples):
        with make_reader(
            dataset_url, schema_fields=[id_column], shuffle_row_drop_partitions=shuffle_row_drop_partitions
        ) as reader:
            correlations.append(abs(np.corrcoef(stored, [getattr(row, id_column) for row in reader])[0, 1]))
    return float(np.mean(correlations)), float(np.std(correlations))


if not TYPE_CHECKING:
    __getattr__ = reexport(__name__)
