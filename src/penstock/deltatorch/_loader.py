"""The loaders that `create_pytorch_dataloader` returns: with threads of the engine, or with worker processes of torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils import data
from torch.utils.data._utils.pin_memory import pin_memory

from penstock._engine.deliver.loader import Iteration
from penstock._engine.deliver.loader import Loader as EngineLoader
from penstock.deltatorch._sample_map import SAMPLE
from penstock.deltatorch.deltadataset import DeltaIterableDataset
from penstock.errors import EmptyDatasetError
from penstock.torch import IterableDataset, Loader

__all__ = ["ThreadsLoader", "WorkerBatches", "WorkersLoader"]


class ThreadsLoader(data.DataLoader[dict[str, Any]]):
    """A `DataLoader` whose batches threads of the engine make. Each `iter()` is the next epoch.

    Attributes:
        engine: The loader of Penstock, which has states, statistics and epochs.
    """

    # Without this, Accelerate builds another loader from the dataset.
    _is_accelerate_prepared = True

    def __init__(self, dataset: DeltaIterableDataset, engine: Loader, *, pin_memory: bool) -> None:
        """Store the dataset and the engine's loader."""
        super().__init__(dataset, batch_size=dataset.batch_size, drop_last=dataset.drop_last, pin_memory=pin_memory)
        self.engine = engine

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override] # torch declares a class of its own
        """Return the batches of the next epoch."""
        _check_rows(self.dataset)  # type: ignore[arg-type] # it is a DeltaIterableDataset
        batches = map(_first_sample, iter(self.engine))
        # The oldest supported torch has no torch.accelerator.
        if self.pin_memory and getattr(torch, "accelerator", torch.cuda).is_available():
            return map(pin_memory, batches)
        return batches

    def __len__(self) -> int:
        """Return the number of batches of the next `iter()`."""
        return len(self.engine)

    def state_dict(self) -> Any:
        """Return the position as a state, which JSON can hold."""
        return self.engine.state_dict()

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue at a state.

        Raises:
            StateError: If it was saved with another table, order or query.
        """
        self.engine.load_state_dict(state)

    def set_epoch(self, epoch: int) -> None:
        """Make the next `iter()` begin this epoch."""
        self.engine.set_epoch(epoch)


class WorkerBatches(data.IterableDataset[Any]):
    """The dataset of torch's workers, whose items are whole batches."""

    def __init__(self, batches: IterableDataset, rows: int) -> None:
        """Store the batches and the number of their rows."""
        super().__init__()
        self.batches, self.rows = batches, rows

    def __iter__(self) -> Iterator[Any]:
        """Yield this worker's batches."""
        return map(_first_sample, iter(self.batches))

    def __len__(self) -> int:
        """Return the number of rows of this rank."""
        return self.rows


def _check_rows(dataset: DeltaIterableDataset) -> None:
    """Check that an epoch has a batch; the message uses the argument names of DeltaTorch.

    Raises:
        EmptyDatasetError: If there are too few rows.
    """
    rows, size = dataset.count(), dataset.batch_size * dataset.num_ranks
    where = f"{dataset.path} has {rows} rows" + (f" that pass {dataset.partition_filter!r}" if dataset.partition_filter else "")
    if not rows:
        msg = f"{where}; expected at least one row for a batch. If there may be none, check len(loader.dataset) first."
        raise EmptyDatasetError(msg)
    if dataset.drop_last and rows < size:
        msg = (
            f"{where}, and a batch, of all {dataset.num_ranks} ranks together, {size}: drop_last=True would drop them all. "
            "Give a smaller batch_size, or leave drop_last out."
        )
        raise EmptyDatasetError(msg)


def _first_sample(batch: Mapping[str, Any]) -> Any:
    """Return the collated batch. A `map` of this function, unlike a generator, can continue after an error."""
    return batch[SAMPLE][0]


class WorkersLoader(data.DataLoader[Any]):
    """A `DataLoader` whose batches worker processes of torch make, in the same order as without workers.

    Each `iter()` is the next epoch.
    """

    _is_accelerate_prepared = True

    def __init__(self, batches: WorkerBatches, dataset: DeltaIterableDataset, engine: EngineLoader, **options: Any) -> None:
        """Store the dataset, and an engine's loader that counts epochs and positions and reads nothing."""
        super().__init__(batches, batch_size=None, **options)
        self._delta, self._engine = dataset, engine
        self._iteration: Iteration | None = None

    @property
    def batch_size(self) -> Any:
        """Rows of a batch."""
        return self._delta.batch_size if hasattr(self, "_delta") else None

    @batch_size.setter
    def batch_size(self, _: Any) -> None:
        """Ignore the batch size that torch sets."""

    def set_epoch(self, epoch: int) -> None:
        """Make the next `iter()` begin this epoch."""
        self._engine.set_epoch(epoch)

    def state_dict(self) -> Any:
        """Return the position after the last batch as a state, which JSON can hold."""
        if self._iteration is not None and self._iteration.handed:
            self._iteration.at = self._iteration.position_at(self._iteration.handed)
        return self._engine.state_dict()

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue at a state.

        Raises:
            StateError: If it was saved with another table, order or query.
        """
        self._engine.load_state_dict(state)
        self._iterator = None  # persistent workers start at the beginning of an epoch

    def __iter__(self) -> Any:
        """Return the batches of the next epoch."""
        _check_rows(self._delta)
        iteration = self._iteration = self._engine.begin()
        self.dataset.batches.begin_at(iteration.start)  # type: ignore[attr-defined] # it is a WorkerBatches
        return map(partial(_count, iteration), super().__iter__())

    def __len__(self) -> int:
        """Return the number of batches of the next `iter()`."""
        return len(self._engine)


def _count(iteration: Iteration, batch: Any) -> Any:
    """Count a batch, and return it."""
    iteration.handed += 1
    return batch
