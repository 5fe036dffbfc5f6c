"""Readers as datasets of TensorFlow: `petastorm.tf_utils`. Not there yet."""

from __future__ import annotations

from typing import Any, NoReturn

from penstock.petastorm._later import refuse

__all__ = ["RANDOM_SHUFFLING_QUEUE_SIZE", "make_petastorm_dataset", "tf_tensors"]

RANDOM_SHUFFLING_QUEUE_SIZE = "random_shuffling_queue_size"


def tf_tensors(reader: Any, shuffling_queue_capacity: int = 0, min_after_dequeue: int = 0) -> NoReturn:  # noqa: ARG001 - Petastorm's
    """Return tensors of the next row.

    Raises:
        MissingExtraError: It is not there yet.
    """
    refuse("petastorm.tf_utils.tf_tensors", "tensorflow", instead="the reader itself, or tf.data.Dataset.from_generator")


def make_petastorm_dataset(reader: Any) -> NoReturn:  # noqa: ARG001 - the argument is Petastorm's
    """Return a `tf.data.Dataset` of the rows of a reader.

    Raises:
        MissingExtraError: It is not there yet.
    """
    refuse("petastorm.tf_utils.make_petastorm_dataset", "tensorflow", instead="tf.data.Dataset.from_generator with the reader")
