"""Readers as datasets of TensorFlow: `petastorm.tf_utils`. What needs TensorFlow is not there yet."""

from __future__ import annotations

from calendar import timegm
from datetime import date
from typing import Any, NoReturn

from penstock.petastorm._later import refuse
from penstock.petastorm.ngram import NGram
from penstock.petastorm.unischema import Unischema

__all__ = [
    "RANDOM_SHUFFLING_QUEUE_SIZE",
    "date_to_nsec_from_epoch",
    "make_namedtuple_tf_ngram",
    "make_petastorm_dataset",
    "tf_tensors",
]

RANDOM_SHUFFLING_QUEUE_SIZE = "random_shuffling_queue_size"
NANOSECONDS = 1_000_000_000


def date_to_nsec_from_epoch(dt: date) -> int:
    """Return a date, or a moment without its fraction of a second, as nanoseconds since 1970."""
    return timegm(dt.timetuple()) * NANOSECONDS


def make_namedtuple_tf_ngram(unischema: Unischema, ngram: NGram, *args: Any, **kargs: Any) -> dict[int, Any]:
    """Return a window as named tuples by offset.

    Args:
        unischema: The fields.
        ngram: Which of them each offset has.
        *args: Values in order: of the first offset, then of the next.
        **kargs: Values by name, in a dict for each offset, whose key is that offset as text.
    """
    found, used = {}, 0
    for offset in range(min(ngram.fields), max(ngram.fields) + 1):
        view = ngram.get_schema_at_timestep(unischema, offset)
        count = len(ngram.get_field_names_at_timestep(offset))
        found[offset] = view.make_namedtuple_tf(*args[used : used + count], **kargs.get(str(offset), {}))
        used += count
    return found


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
