"""`petastorm.benchmark.dummy_reader`: the throughput of loaders for PyTorch, without reading."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from penstock.petastorm.pytorch import BatchedDataLoader, DataLoader

__all__ = ["BatchedDataLoader", "DataLoader", "DummyReader", "main"]

SIZES = (10, 100, 1000)
LARGE = 100_000
BUFFERED_BATCHES = 10
"""The size of the shuffling buffer in batches."""


class _Row(NamedTuple):
    test: Any


class DummyReader:
    """Yields the same batch endlessly.

    Args:
        batch: The number of rows.
        dim: The size of a row.
    """

    batched_output = True
    is_batched_reader = True
    last_row_consumed = False

    def __init__(self, batch: int = 1000, dim: int = 64) -> None:
        """Store the sizes."""
        self.batch, self.dim = batch, dim

    def stop(self) -> None:
        """Do nothing."""

    def join(self) -> None:
        """Do nothing."""

    def __iter__(self) -> Iterator[Any]:
        """Yield the batch."""
        row = _Row(np.random.default_rng(0).random((self.batch, self.dim), dtype=np.float32))
        while True:
            yield row


def main(
    device: str = "cpu",
    batch: Any = 1000,
    dim: Any = 64,
    *,
    iterations: int = 100,
    batch_sizes: Sequence[int] = (*SIZES, LARGE),
) -> None:
    """Print the rows per second of each loader.

    Args:
        device: The device of the tensors of `BatchedDataLoader`.
        batch: Rows of the batches of the reader.
        dim: The size of a row.
        iterations: Batches for the warm-up, and for the measurement.
        batch_sizes: Batch sizes; those above 1000 are not used for `DataLoader`, which is slow.
    """
    import torch

    reader = DummyReader(int(batch), int(dim))
    _print("Testing DataLoader on cpu")
    for size in [size for size in batch_sizes if size < LARGE]:
        _measure(DataLoader(reader, batch_size=size, shuffling_queue_capacity=BUFFERED_BATCHES * size), size, iterations)
    _print(f"Testing BatchedDataLoader on {device}")
    to_tensor = partial(torch.as_tensor, device=device)
    for size in batch_sizes:
        loader = BatchedDataLoader(
            reader, batch_size=size, transform_fn=to_tensor, shuffling_queue_capacity=BUFFERED_BATCHES * size
        )
        _measure(loader, size, iterations)


def _measure(loader: Any, size: int, iterations: int) -> None:
    batches = iter(loader)
    for _ in range(iterations):
        next(batches)
    _print("Done warming up")
    start = time.perf_counter()
    for _ in range(iterations):
        next(batches)
    _print(f"Samples per second for batch {size}: {iterations * size / (time.perf_counter() - start):.4g}")


def _print(line: str) -> None:
    print(line)  # noqa: T201 - a command


if __name__ == "__main__":
    main(*sys.argv[1:])
