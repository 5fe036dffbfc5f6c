"""Datasets for people who bring their own `DataLoader`: as a stream, or by number."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import index as whole
from typing import Any

import torch
from torch.utils import data

from penstock._engine.deliver.mixture import MixtureTable
from penstock._engine.order.state import checked_epoch
from penstock._engine.query.query import Query
from penstock.dataset import Dataset
from penstock.errors import ArgumentError
from penstock.mix import Mixture
from penstock.model import Position
from penstock.policies import Offsets
from penstock.shuffles import InOrder
from penstock.torch._frameworks import is_dispatching, refuse_accelerate, refuse_shares, refuse_to_dispatch
from penstock.torch._pickling import received, renewed, sent
from penstock.torch._tensors import Tensors
from penstock.torch._worker_shard import WorkerShard

__all__ = ["IterableDataset", "LoaderDataset", "MapDataset"]


class IterableDataset(data.IterableDataset[dict[str, Any]]):
    """A dataset as torch's stream of rows, or of batches: `DataLoader(IterableDataset(ds.batch(32)), batch_size=None)`.

    With `num_workers=W`, worker w yields batches w, w + W, w + 2W and so on, so that what arrives is in the order of no
    workers at all. Each worker reads every window, and decodes its own batches only; `penstock.torch.loader` reads all of
    it once. Which rank reads what is the dataset's own `.shard()`, never guessed from the environment.

    Every iteration is the same epoch, until `set_epoch` says another. Its iterators have `state_dict` and `load_state_dict`,
    which torchdata's `StatefulDataLoader` asks for.

    Args:
        ds: What to read; a dataset, or a mixture.
        jagged: Columns that become nested tensors of jagged layout.

    Attributes:
        ds: What is read.
        tensors: What makes tensors of its arrays.

    Raises:
        ArgumentError: If it is no dataset.

    Example:
        >>> from penstock.testing import example
        >>> [row["id"].item() for row in IterableDataset(example().limit(3))]
        [0, 1, 2]
    """

    _of_a_loader = False

    def __init__(self, ds: Dataset | Mixture, *, jagged: Iterable[str] = ()) -> None:
        """Store the question."""
        super().__init__()
        if not isinstance(ds, Mixture):
            _checked(ds)
        self.ds: Dataset | Mixture = ds
        self.tensors = Tensors.of(jagged, mapped=bool(ds._query.maps))  # noqa: SLF001 - a dataset has no other parts
        self._process = os.getpid()
        self._start, self._arrived = Position(), False
        self._epoch = torch.zeros((), dtype=torch.int64)
        if not self._of_a_loader:
            # Workers that live on from epoch to epoch see it change.
            self._epoch.share_memory_()  # type: ignore[no-untyped-call]

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of another epoch, in workers that run already too.

        Raises:
            ArgumentError: If it is no number from 0 on, or Accelerate is about to deal out what it cannot.
        """
        self._check()
        self._check_dealt()
        self.begin_at(Position(epoch=checked_epoch(epoch)))

    def begin_at(self, position: Position) -> None:
        """Make the next iteration begin at a position; in workers that run already, at the beginning of its epoch."""
        self._start = position
        self._epoch.fill_(position.epoch)

    def __iter__(self) -> WorkerShard:
        """Yield this worker's part of the epoch."""
        self._check()
        if self._process != os.getpid():
            self.ds, self._process, self._arrived = renewed(self.ds), os.getpid(), True
        return WorkerShard(self.ds, self.tensors, self._begun())

    def _begun(self) -> Position:
        """Return where an iteration begins: of a worker's first, where it was to begin when the worker was started.

        Workers come here one after the other, and meanwhile the next iteration may have been told another epoch.
        """
        worker = data.get_worker_info()
        if worker is not None and not self._arrived:
            return Position(epoch=int(self._epoch))
        self._arrived = False
        return self._start

    def __len__(self) -> int:
        """Return how many batches, or rows, an epoch has.

        Raises:
            TypeError: If it has no length.
            ArgumentError: If Accelerate asks for that of one rank's share, as if it were the whole.
        """
        self._check()
        return len(self.ds)

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs."""
        self._check()
        return {"ds": sent(self.ds), "tensors": self.tensors, "epoch": self._epoch, "start": self._start}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take what another process sent."""
        self.ds, self.tensors, self._process = received(state["ds"]), state["tensors"], os.getpid()
        self._epoch, self._start, self._arrived = state["epoch"], state["start"], True

    def _check(self) -> None:
        """Refuse to be dealt out a second time, or behind a loader's back."""
        if self._of_a_loader or self.ds._query.world_size > 1:  # noqa: SLF001 - a dataset has no other parts
            refuse_accelerate()

    def _check_dealt(self) -> None:
        """Refuse what Accelerate would deal out wrongly; every process of it comes here before an epoch."""
        query = self.ds._query  # noqa: SLF001 - a dataset has no other parts
        mixture = self.ds._table if isinstance(self.ds, Mixture) else None  # noqa: SLF001 - the same
        if query.size is not None or (mixture is not None and mixture.sources[0].query.size is not None):
            refuse_shares()
        if is_dispatching():
            for one in [query, *(source.query for source in (() if mixture is None else mixture.sources))]:
                for name in flat_columns(one):
                    refuse_to_dispatch(name)
            if isinstance(self.ds, Dataset) and not query.maps:
                for field in self.ds.schema.fields:
                    if field.dtype.kind in "OUS":
                        refuse_to_dispatch(field.name)


class LoaderDataset(IterableDataset):
    """The dataset that a loader shows to those who look at it, and does not iterate over itself."""

    _of_a_loader = True

    def in_order(self) -> LoaderDataset:
        """Return the rows in stored order, which is the same in every epoch, cut into batches as before."""
        table, query = self.ds._table, self.ds._query  # noqa: SLF001 - a dataset has no other parts
        query = replace(query, last=query.ending)
        if isinstance(table, MixtureTable):
            sources = (replace(one, query=replace(one.query, shuffle=InOrder())) for one in table.sources)
            return LoaderDataset(Mixture(replace(table, sources=tuple(sources)), query), jagged=self.tensors.jagged)
        return LoaderDataset(Dataset(table, replace(query, shuffle=InOrder())), jagged=self.tensors.jagged)


class MapDataset(data.Dataset[dict[str, Any]]):
    """A dataset as torch's dataset by number, for samplers of others: rows in stored order, by their number.

    Rows by number cost a read of their row group each, unless a batch of them is fetched at once, as torch does.

    Args:
        ds: What to read, neither shuffled nor batched, sharded or repeated.

    Raises:
        ArgumentError: If it is one of these, or has a column that only batches have.

    Example:
        >>> from penstock.testing import example
        >>> rows = MapDataset(example())
        >>> len(rows), rows[3]["id"]
        (10, tensor(3))
    """

    def __init__(self, ds: Dataset) -> None:
        """Store the question."""
        query = _checked(ds)._query  # noqa: SLF001 - a dataset has no other parts
        if query.shuffled or query.size is not None or query.world_size > 1 or query.epochs != 1:
            msg = (
                f"MapDataset got {ds!r}, which is shuffled, batched, sharded or repeated. Rows by number are in stored order, "
                "and samplers do all that. Leave .shuffle(), .batch(), .shard() and .repeat() out."
            )
            raise ArgumentError(msg)
        flat = flat_columns(query)
        if flat:
            msg = (
                f"Column {flat[0]!r} comes as Offsets(), which only a batch has, and MapDataset hands out rows. Leave the "
                "policy out, or give it Pad(length=...)."
            )
            raise ArgumentError(msg)
        self.ds, self.tensors, self._process = ds, Tensors(), os.getpid()

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.ds.num_rows

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a row.

        Raises:
            ArgumentError: If it is no number.
            RowNotFoundError: If there are not so many rows.
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return several rows, each row group read once."""
        if self._process != os.getpid():
            self.ds, self._process = _checked(renewed(self.ds)), os.getpid()
        found = self.ds.take([_number(index) for index in indices])
        rows = ({name: values[row] for name, values in found.items()} for row in range(len(indices)))
        return [self.tensors.batch(row) for row in rows]

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs."""
        return {"ds": sent(self.ds)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take what another process sent."""
        self.ds, self.tensors, self._process = _checked(received(state["ds"])), Tensors(), os.getpid()


def flat_columns(query: Query) -> list[str]:
    """Return the columns that come as all values of a batch, and where each row begins."""
    columns = query.columns
    return [one.name for one in query.policies if isinstance(one.ragged, Offsets) and (columns is None or one.name in columns)]


def _checked(ds: object) -> Dataset:
    if not isinstance(ds, Dataset):
        msg = f"{type(ds).__name__} was given. A penstock dataset was expected. Give one: penstock.open(url)."
        raise ArgumentError(msg)
    return ds


def _number(row: Any) -> int:
    """Return the number of a row, which may be a tensor of one, as samplers give them."""
    with suppress(TypeError):
        if not isinstance(row, bool):
            return whole(row)
    msg = f"MapDataset was asked for row {row!r}. Rows are counted by whole numbers. Give one, or ask dataset.ds.take for many."
    raise ArgumentError(msg)
