"""Several readers as one, by chance: `petastorm.weighted_sampling_reader`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

__all__ = ["WeightedSamplingReader"]


class WeightedSamplingReader:
    """Takes each row, or batch, from one of several readers, which chance decides; it ends when any of them does.

    Args:
        readers: Two readers or more, of the same fields.
        probabilities: How likely each is.
        seed: Decides which reader is asked; by default `numpy.random` does.

    Raises:
        ValueError: If there are fewer, or they differ in what they hand out.
    """

    def __init__(self, readers: Sequence[Any], probabilities: Sequence[float], *, seed: int | None = None) -> None:
        """Store the readers."""
        if len(readers) <= 1:
            raise ValueError(f"Two or more readers must be specified. Got {len(readers)}.")
        if len(readers) != len(probabilities):
            both = f"{len(readers)} and {len(probabilities)}"
            msg = f"readers and probabilities are expected to be lists of the same length, and have {both}."
            raise ValueError(msg)
        shares = np.array(probabilities, dtype=np.float64)
        if not (shares >= 0).all() or not 0 < shares.sum() < np.inf:
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
        self._readers, self._ends = list(readers), np.cumsum(shares / shares.sum())
        self._draw = np.random.random if seed is None else np.random.default_rng(seed).random
        self.schema, self.ngram, self.batched_output = first.schema, first.ngram, first.batched_output

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> Any:
        """Return what one of the readers hands out next."""
        chosen = min(int(np.searchsorted(self._ends, self._draw(), side="right")), len(self._readers) - 1)
        return next(self._readers[chosen])

    def next(self) -> Any:
        """Return what one of the readers hands out next."""
        return self.__next__()

    def __len__(self) -> int:
        """Return how many rows, or batches, all readers have."""
        return sum(len(reader) for reader in self._readers)

    @property
    def last_row_consumed(self) -> bool:
        """Whether one of the readers has ended."""
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
