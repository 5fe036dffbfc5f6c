"""`penstock.torch.loader`: a `DataLoader` over the engine, and datasets for loaders of your own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from operator import index as whole
from typing import Any, Never

import torch
from torch.utils import data

from penstock._engine.deliver.consensus import check_same_on_ranks, shared_table
from penstock._engine.deliver.loader import Loader as Engine
from penstock._engine.deliver.mixture import MixtureTable, agreed_mixture
from penstock._engine.deliver.skipped import SkippedRow
from penstock._engine.order.state import State, checked_epoch
from penstock._engine.query.query import Query
from penstock._loader_options import refuse_options
from penstock.dataset import Dataset
from penstock.errors import ArgumentError
from penstock.mix import Mixture
from penstock.model import Position
from penstock.policies import Offsets
from penstock.shuffles import InOrder
from penstock.stats import Stats
from penstock.torch._distributed import ProcessGroup, Ranks, check_ranks, ranks, talking
from penstock.torch._frameworks import (
    AccelerateBatches,
    Epochs,
    LightningEpochs,
    Passed,
    is_dispatching,
    is_lightning,
    is_lightning_measuring,
    is_overfitting,
    is_watched,
    refuse_accelerate,
    refuse_lightning,
    refuse_one_for_all,
    refuse_shares,
    refuse_to_dispatch,
)
from penstock.torch._pickling import received, renewed, sent
from penstock.torch._tensors import Tensors
from penstock.torch._worker_shard import WorkerShard

__all__ = ["IterableDataset", "Loader", "LoaderDataset", "MapDataset", "loader"]


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
        """Store the dataset."""
        super().__init__()
        if not isinstance(ds, Mixture):
            _checked_dataset(ds)
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
            ArgumentError: If it is not a number from 0 on, or Accelerate is about to distribute what it cannot.
        """
        self._check()
        self._check_distributed()
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

        Workers come here one after the other, and meanwhile the next iteration may have got another epoch.
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
        """Refuse to be sharded twice, or to bypass the loader."""
        if self._of_a_loader or self.ds._query.world_size > 1:  # noqa: SLF001 - a dataset has no other parts
            refuse_accelerate()

    def _check_distributed(self) -> None:
        """Refuse what Accelerate would distribute wrongly; each of its processes calls this before an epoch."""
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
        """Store the dataset."""
        query = _checked_dataset(ds)._query  # noqa: SLF001 - a dataset has no other parts
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
            self.ds, self._process = _checked_dataset(renewed(self.ds)), os.getpid()
        found = self.ds.take([_number(index) for index in indices])
        rows = ({name: values[row] for name, values in found.items()} for row in range(len(indices)))
        return [self.tensors.batch(row) for row in rows]

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs."""
        return {"ds": sent(self.ds)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take what another process sent."""
        self.ds, self.tensors, self._process = _checked_dataset(received(state["ds"])), Tensors(), os.getpid()


def flat_columns(query: Query) -> list[str]:
    """Return the columns that come as all values of a batch, and where each row begins."""
    columns = query.columns
    return [one.name for one in query.policies if isinstance(one.ragged, Offsets) and (columns is None or one.name in columns)]


def _checked_dataset(ds: object) -> Dataset:
    if not isinstance(ds, Dataset):
        msg = f"{type(ds).__name__} was given; expected a penstock dataset. Give one: penstock.open(url)."
        raise ArgumentError(msg)
    return ds


def _number(row: Any) -> int:
    """Return the number of a row, which may be a tensor of one, as samplers give them."""
    with suppress(TypeError):
        if not isinstance(row, bool):
            return whole(row)
    msg = f"MapDataset was asked for row {row!r}. Rows are counted by whole numbers. Give one, or ask dataset.ds.take for many."
    raise ArgumentError(msg)


OPTIONS = "rank, world_size, process_group, pin_memory, device, jagged"


def loader(
    ds: Dataset | Mixture,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    process_group: Any = None,
    pin_memory: bool = False,
    device: torch.device | str | None = None,
    jagged: Iterable[str] = (),
    **options: Never,
) -> Loader:
    """Return a torch `DataLoader` over a dataset or a mixture: dicts of tensors, sharded by rank, epoch after epoch, resumable.

    Each `iter()` is the next epoch. With a process group all ranks must call this, since they agree here on what is read:
    rank 0 looks at the table and tells the others, and each counts its share of the rows that pass a filter.

    Args:
        ds: What to read; its clauses, `batch` among them, say in which form.
        rank: Which of `world_size` readers this is, where neither a process group nor torchrun's environment shall say.
            Ranks that need the same data, as those of tensor parallelism, give the same number.
        world_size: How many readers there are.
        process_group: The group of data-parallel ranks, or a device mesh of one dimension, where it is not that of all
            processes. With `rank` and `world_size` beside it, the processes that agree on what is read.
        pin_memory: Whether tensors are put in pinned memory.
        device: Where tensors are moved to.
        jagged: Columns that become nested tensors of jagged layout; they need `.ragged(penstock.Offsets(), ...)`.
        options: None; other options of `DataLoader` are refused with what to write instead.

    Raises:
        UnknownArgumentError: If an option belongs to the dataset, as `batch_size` and `shuffle` do.
        ArgumentError: If rank and world_size are not given together, or ranks ask different questions.

    Example:
        >>> from penstock.testing import example
        >>> batches = loader(example().select("id").shuffle(seed=1).batch(4, last="uneven"))
        >>> len(batches), batches.batch_size
        (3, 4)
        >>> [batch["id"].tolist() for batch in batches]
        [[0, 2, 9, 4], [1, 6, 5, 3], [8, 7]]
    """
    if options:
        refuse_options("penstock.torch.loader", options, OPTIONS)
    group, made = talking(rank, world_size, process_group), []

    def check() -> dict[str, Any]:
        made.append((*_checked(ds, rank, world_size, process_group, jagged), _device(device)))
        return {"jagged=": sorted(made[0][2].jagged)}

    # Whoever was given something wrong tells the others, which would wait for it.
    check() if group is None else check_same_on_ranks(group, check)
    mine, found, tensors, place = made[0]
    mine = mine if found.group is None else _agreed(mine, found.group)
    loader_ = Loader(mine, pin_memory=pin_memory, device=place, jagged=tensors.jagged)
    loader_._assumed = found.assumed and ds._query.world_size == 1  # noqa: SLF001 - nobody else need know
    return loader_


def _checked(
    ds: Any, rank: int | None, world_size: int | None, process_group: Any, jagged: Iterable[str]
) -> tuple[Dataset | Mixture, Ranks, Tensors]:
    """Return what this rank is to read, who reads, and what becomes of the arrays."""
    if not isinstance(ds, Dataset | Mixture):
        msg = f"loader got {type(ds).__name__}; expected a dataset. Give one: penstock.open(url).batch(32)."
        raise ArgumentError(msg)
    tensors, found = Tensors.of(jagged), ranks(rank, world_size, process_group)
    query = ds._query  # noqa: SLF001 - a dataset has no other parts
    if query.world_size > 1:
        return _checked_shard(ds, query, found), found, tensors
    return ds.shard(found.rank, found.size, lanes=query.lanes), found, tensors


def _agreed(ds: Dataset | Mixture, group: ProcessGroup) -> Dataset | Mixture:
    """Return a dataset that all ranks see alike."""
    if isinstance(ds, Mixture):
        return Mixture(agreed_mixture(ds._table, ds._query, group), ds._query)  # noqa: SLF001 - the same
    return Dataset(shared_table(ds._table, ds._query, group), ds._query)  # noqa: SLF001 - the same


def _checked_shard(ds: Dataset | Mixture, query: Query, found: Ranks) -> Dataset | Mixture:
    """Return a dataset that is this rank's share already, and no other's."""
    if found.size > 1 and (query.rank, query.world_size) != (found.rank, found.size):
        msg = (
            f"The dataset is rank {query.rank} of {query.world_size} by .shard(), and this process is rank {found.rank} "
            f"of {found.size}. They must be the same. Leave .shard() out, or give the loader rank= and world_size=."
        )
        raise ArgumentError(msg)
    return ds


class Loader(data.DataLoader[dict[str, Any]]):
    """A `torch.utils.data.DataLoader` whose iterator is the engine's; `loader` makes one.

    Example:
        >>> from penstock.testing import example
        >>> first = loader(example().select("id").batch(4))
        >>> batches = iter(first)
        >>> _ = next(batches)
        >>> again = loader(example().select("id").batch(4))
        >>> again.load_state_dict(first.state_dict())
        >>> next(iter(again))["id"]
        tensor([4, 5, 6, 7])
    """

    # Accelerate takes loaders apart and builds others from their datasets, unless they say that this has been done.
    _is_accelerate_prepared = True
    # It saves and loads their states with those of the model, if they say that they have one.
    use_stateful_dataloader = True
    end_of_dataloader = False
    remainder = -1

    def __init__(
        self,
        dataset: Dataset | Mixture | LoaderDataset,
        *,
        pin_memory: bool = False,
        device: torch.device | str | None = None,
        jagged: Iterable[str] = (),
        sampler: None = None,
        batch_sampler: None = None,
    ) -> None:
        """Store the dataset and the device; samplers are ignored."""
        shown = LoaderDataset(dataset, jagged=jagged) if isinstance(dataset, Dataset | Mixture) else dataset
        shown = shown.in_order() if is_overfitting() else shown
        super().__init__(shown, batch_size=None, sampler=sampler, batch_sampler=batch_sampler, pin_memory=pin_memory)
        self.device = _device(device)
        self._query = shown.ds._query  # noqa: SLF001 - a dataset has no other parts
        self._engine = Engine(shown.ds._table, self._query, shown.tensors)  # noqa: SLF001 - the same
        size = self._query.size
        # An attribute like torch's own, which lets nobody set it any more: wrappers copy attributes.
        self.__dict__["batch_size"] = size if isinstance(size, int) else None
        self._assumed = False
        self._lightning_epochs = LightningEpochs(self._engine, self._query)

    @property
    def dataset(self) -> Any:
        """The dataset; Lightning is shown none while it asks for the length of the loader.

        It warns that the length of a stream may be wrong with workers, of which there are none here, and takes what is no
        stream for one whose length is right.
        """
        return None if is_lightning_measuring() else self.__dict__["dataset"]

    @dataset.setter
    def dataset(self, dataset: Any) -> None:
        self.__dict__["dataset"] = dataset

    @property
    def sampler(self) -> Any:
        """The sampler for frameworks that call `set_epoch` of one; the engine orders and shards rows."""
        return Epochs(self._lightning_epochs.say)

    @sampler.setter
    def sampler(self, _: Any) -> None:
        """Take what torch says, which does not count here."""

    def __iter__(self) -> Iterator[dict[str, Any]]:  # type: ignore[override] # torch promises a class of its own
        """Return the batches of the next epoch.

        Raises:
            ArgumentError: If torch.distributed has been initialised since, and has other ranks.
            EmptyDatasetError: If there is nothing, or too little, to hand out.
        """
        if self._assumed:
            check_ranks(self._query.world_size)
        if is_lightning():
            self._lightning_epochs.ask()
            return self._late()
        self._lightning_epochs.begun()
        return self._begun()

    def _begun(self) -> Iterator[dict[str, Any]]:
        """Return the batches of the next epoch, as they are handed out."""
        begun = iter(self._engine)
        batches: Iterator[dict[str, Any]] = begun
        if self.device is not None or self.pin_memory:
            batches = Moved(batches, self.device, pin=self.pin_memory)
        if is_watched():
            sized = not self._query.lazy and self._query.epochs is not None
            batches = AccelerateBatches(batches, self, len(begun) if sized else None)
        return batches

    def _late(self) -> Iterator[dict[str, Any]]:
        """Yield batches of what is next when the first is asked for: Lightning says after `iter()` which epoch it is."""
        if self._lightning_epochs.begin():
            yield from self._begun()

    def __len__(self) -> int:
        """Return how many batches the next `iter()` yields.

        Raises:
            TypeError: If it has no length: it repeats without end, or filters on the fly.
        """
        return self._lightning_epochs.length()

    def state_dict(self) -> State:
        """Return how far the reading has come, as JSON can hold it.

        Raises:
            ArgumentError: If Lightning asks for it of a loader without length, or saves one rank's for ranks that differ.
        """
        if self._query.lazy or self._query.epochs is None:
            refuse_lightning()
        state = self._engine.state_dict()
        if not state["alike"] and any(rows for *_, rows in state["deals"]):
            refuse_one_for_all()
        return self._lightning_epochs.saved(state)

    def state_at(self, step: int) -> State:
        """Return the state after `step` batches of the iteration that runs, for whoever fetches ahead of the training.

        Raises:
            ArgumentError: If the iteration has not so many steps.
        """
        return self._engine.state_at(step)

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go on where a state says: that of any rank, or a list of those of all ranks.

        Raises:
            StateError: If the state is damaged, or was saved over another table, order or query.
        """
        self._engine.load_state_dict(state)
        self._lightning_epochs.loaded(state)

    @property
    def skipped(self) -> tuple[SkippedRow, ...]:
        """The bad rows that this rank has skipped so far, where and why; no more than the first hundred thousand."""
        return self._engine.skipped

    @property
    def num_skipped(self) -> int:
        """How many rows this rank has skipped so far."""
        return self._engine.num_skipped

    def stats(self) -> Stats:
        """Return what all iterations of this loader did so far, where their time went, and what would make them faster.

        Pinning, and moving to a device, is done by the consumer's thread and counted as the consumer's.
        """
        return self._engine.stats()

    def set_epoch(self, epoch: int) -> None:
        """Make the next `iter()` begin this epoch; a state loaded inside of the same epoch stays.

        Raises:
            ArgumentError: If it is no number from 0 on.
        """
        self._engine.set_epoch(epoch)
        self._lightning_epochs.set_by_user()


def _device(device: torch.device | str | None) -> torch.device | None:
    """Return where tensors are moved to.

    Raises:
        ArgumentError: If torch knows no such device, or this machine has none.
    """
    if device is None:
        return None
    try:
        return torch.empty(0, device=torch.device(device)).device
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        msg = f'loader got device={device!r}, of which torch says: {error} Give a device of torch, such as "cuda" or "cpu".'
        raise ArgumentError(msg) from error


class Moved(Passed):
    """Batches that are moved to pinned memory, or to a device."""

    def __init__(self, batches: Iterator[dict[str, Any]], device: torch.device | None, *, pin: bool) -> None:
        """Store the batches, and where they go."""
        super().__init__(batches)
        self._device, self._pin = device, pin

    def __next__(self) -> dict[str, Any]:
        """Return the next batch where it was to go."""
        return {name: _placed(value, self._device, pin=self._pin) for name, value in super().__next__().items()}


def _placed(tensor: Any, device: torch.device | None, *, pin: bool) -> Any:
    if not isinstance(tensor, torch.Tensor):
        return tensor
    # torch.accelerator is younger than the oldest torch that is supported.
    tensor = tensor.pin_memory() if pin and getattr(torch, "accelerator", torch.cuda).is_available() else tensor
    return tensor if device is None else tensor.to(device, non_blocking=pin)
