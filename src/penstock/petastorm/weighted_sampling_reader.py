"""`petastorm.weighted_sampling_reader`: a random mixture of readers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

__all__ = ["WeightedSamplingReader"]


class WeightedSamplingReader:
    """Takes each row, or batch, from a random one of several readers; it ends when any reader ends.

    Args:
        readers: At least two readers with the same fields.
        probabilities: The probability of each reader.
        seed: Decides the readers; by default the global generator of NumPy does.

    Raises:
        ValueError: If there are fewer readers, or their schemas differ.
    """

    def __init__(self, readers: Sequence[Any], probabilities: Sequence[float], *, seed: int | None = None) -> None:
        """Store the readers."""
        if len(readers) <= 1:
            raise ValueError(f"Two or more readers must be specified. Got {len(readers)}.")
        if len(readers) != len(probabilities):
            lengths = f"{len(readers)} and {len(probabilities)}"
            msg = f"readers and probabilities are expected to be lists of the same length, and have {lengths}."
            raise ValueError(msg)
        weights = np.array(probabilities, dtype=np.float64)
        if not (weights >= 0).all() or not 0 < weights.sum() < np.inf:
            raise ValueError(f"probabilities must be numbers from 0 on, and not all 0. They are {list(probabilities)!r}.")
        first, *others = readers
        for other in others:
            if other.batched_output != first.batched_output:
                raise ValueError("All readers passed to WeightedSamplingReader should have the same value for batched_output.")
            if set(other.schema.fields) != set(first.schema.fields):
                raise ValueError(
                    "All readers passed to WeightedSamplingReader should have the same schema: their fields differ."
                )
            if (other.ngram is None) != (first.ngram is None) or (first.ngram is not None and other.ngram != first.ngram):
                raise ValueError("All readers passed to WeightedSamplingReader should have the same ngram spec.")
        self._readers, self._ends = list(readers), np.cumsum(weights / weights.sum())
        self._draw = np.random.random if seed is None else np.random.default_rng(seed).random
        self.schema, self.ngram, self.batched_output = first.schema, first.ngram, first.batched_output

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> Any:
        """Return the next row, or batch, of one of the readers."""
        index = min(int(np.searchsorted(self._ends, self._draw(), side="right")), len(self._readers) - 1)
        return next(self._readers[index])

    def next(self) -> Any:
        """Return the next row, or batch, of one of the readers."""
        return self.__next__()

    def __len__(self) -> int:
        """Return the number of rows, or batches, of all readers."""
        return sum(len(reader) for reader in self._readers)

    @property
    def last_row_consumed(self) -> bool:
        """Whether any reader has ended."""
        return any(reader.last_row_consumed for reader in self._readers)

    def stop(self) -> None:
        """Stop all readers."""
        for reader in self._readers:
            reader.stop()

    def join(self) -> None:
        """Wait until all readers have ended."""
        for reader in self._readers:
            reader.join()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all readers, and wait for them."""
        self.stop()
        self.join()
