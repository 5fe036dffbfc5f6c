"""The loaders behind `create_pytorch_dataloader`: by the engine's threads, or by torch's own worker processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils import data
from torch.utils.data._utils.pin_memory import pin_memory as pinned

from penstock._engine.deliver.loader import Iteration
from penstock._engine.deliver.loader import Loader as Engine
from penstock.deltatorch._samples import PACKED
from penstock.deltatorch.deltadataset import DeltaIterableDataset
from penstock.errors import EmptyDatasetError
from penstock.torch import IterableDataset, Loader

__all__ = ["Dealt", "ThreadsLoader", "WorkersLoader"]


class ThreadsLoader(data.DataLoader[dict[str, Any]]):
    """A `DataLoader` whose batches the engine's threads make. Each `iter()` is the next epoch.

    Attributes:
        engine: The loader that it hands out the batches of: it has states, statistics and epochs.
    """

    # Accelerate takes loaders apart and builds others from their datasets, unless they say that this has been done.
    _is_accelerate_prepared = True

    def __init__(self, dataset: DeltaIterableDataset, engine: Loader, *, pin_memory: bool) -> None:
        """Store the dataset that is shown, and what makes the batches."""
        super().__init__(dataset, batch_size=dataset.batch_size, drop_last=dataset.drop_last, pin_memory=pin_memory)
        self.engine = engine

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override] # torch promises a class of its own
        """Return the batches of the next epoch."""
        _check_rows(self.dataset)  # type: ignore[arg-type] # the one that was given
        batches = map(_unpacked, iter(self.engine))
        # torch.accelerator is younger than the oldest torch that is supported.
        if self.pin_memory and getattr(torch, "accelerator", torch.cuda).is_available():
            return map(pinned, batches)
        return batches

    def __len__(self) -> int:
        """Return how many batches the next `iter()` yields."""
        return len(self.engine)

    def state_dict(self) -> Any:
        """Return how far the reading has come, as JSON can hold it."""
        return self.engine.state_dict()

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go on where a state says.

        Raises:
            StateError: If it was saved over another table, order or question.
        """
        self.engine.load_state_dict(state)

    def set_epoch(self, epoch: int) -> None:
        """Make the next `iter()` begin this epoch."""
        self.engine.set_epoch(epoch)


class Dealt(data.IterableDataset[Any]):
    """Batches as torch's workers yield them, each whole."""

    def __init__(self, batches: IterableDataset, rows: int) -> None:
        """Store what makes them, and the rows that they are made of."""
        super().__init__()
        self.batches, self.rows = batches, rows

    def __iter__(self) -> Iterator[Any]:
        """Yield this worker's batches."""
        return map(_unpacked, iter(self.batches))

    def __len__(self) -> int:
        """Return the rows of this rank, as of the datasets of other loaders."""
        return self.rows


def _check_rows(shown: DeltaIterableDataset) -> None:
    """Refuse an epoch without a batch, in words that whoever came by this door knows.

    Raises:
        EmptyDatasetError: If there are too few rows.
    """
    rows, size = shown.count(), shown.batch_size * shown.num_ranks
    where = f"{shown.path} has {rows} rows" + (f" that pass {shown.partition_filter!r}" if shown.partition_filter else "")
    if not rows:
        msg = (
            f"{where}, of which no batch can be made. At least one was expected. Look at len(loader.dataset) where none may be."
        )
        raise EmptyDatasetError(msg)
    if shown.drop_last and rows < size:
        msg = (
            f"{where}, and a batch, of all {shown.num_ranks} ranks together, {size}: drop_last=True would drop them all. Give "
            "a smaller batch_size, or leave drop_last out."
        )
        raise EmptyDatasetError(msg)


def _unpacked(batch: Mapping[str, Any]) -> Any:
    """Return a batch as it was collated. A map of these, unlike a generator, raises again what it has raised."""
    return batch[PACKED][0]


class WorkersLoader(data.DataLoader[Any]):
    """A `DataLoader` whose batches torch's worker processes make, in the order of no workers at all.

    Each `iter()` is the next epoch, and its workers go the way that this process knows.
    """

    _is_accelerate_prepared = True

    def __init__(self, dealt: Dealt, shown: DeltaIterableDataset, way: Engine, **options: Any) -> None:
        """Store what is dealt, and what knows the way: an engine's loader that reads nothing."""
        super().__init__(dealt, batch_size=None, **options)
        self._shown, self._way = shown, way
        self._course: Iteration | None = None

    @property
    def batch_size(self) -> Any:
        """Rows of a batch."""
        return self._shown.batch_size if hasattr(self, "_shown") else None

    @batch_size.setter
    def batch_size(self, _: Any) -> None:
        """Take what torch says, which does not count here."""

    def set_epoch(self, epoch: int) -> None:
        """Make the next `iter()` begin this epoch."""
        self._way.set_epoch(epoch)

    def state_dict(self) -> Any:
        """Return how far the reading has come, by what was handed out, as JSON can hold it."""
        if self._course is not None and self._course.handed:
            self._course.at = self._course.position_at(self._course.handed)
        return self._way.state_dict()

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go on where a state says.

        Raises:
            StateError: If it was saved over another table, order or question.
        """
        self._way.load_state_dict(state)
        self._iterator = None  # workers that live on from epoch to epoch begin at the beginning of one

    def __iter__(self) -> Any:
        """Return the batches of the next epoch."""
        _check_rows(self._shown)
        course = self._course = self._way.begin()
        self.dataset.batches.begin_at(course.start)  # type: ignore[attr-defined] # it is what was dealt
        return map(partial(_counted, course), super().__iter__())

    def __len__(self) -> int:
        """Return how many batches the next `iter()` yields."""
        return len(self._way)


def _counted(course: Iteration, batch: Any) -> Any:
    """Return a batch, having counted it."""
    course.handed += 1
    return batch
