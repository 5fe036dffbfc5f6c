"""`petastorm.tf_util`: an old name of `petastorm.tf_utils`."""

from __future__ import annotations

from penstock.petastorm.tf_utils import RANDOM_SHUFFLING_QUEUE_SIZE, make_petastorm_dataset, tf_tensors

__all__ = ["RANDOM_SHUFFLING_QUEUE_SIZE", "make_petastorm_dataset", "tf_tensors"]
