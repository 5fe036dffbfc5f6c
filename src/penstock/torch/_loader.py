"""`penstock.torch.loader`: a `DataLoader` over the engine, and datasets for your own `DataLoader`."""

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
from penstock._engine.deliver.loader import Loader as EngineLoader
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
from penstock.torch._distributed import ProcessGroup, Ranks, check_ranks, communicating_group, ranks
from penstock.torch._frameworks import (
    AccelerateBatches,
    BatchIterator,
    EpochSampler,
    LightningEpochs,
    is_dispatching,
    is_lightning,
    is_lightning_measuring,
    is_observed_by_accelerate,
    is_overfitting,
    refuse_accelerate,
    refuse_lightning,
    refuse_shares,
    refuse_state_of_one_rank,
    refuse_to_dispatch,
)
from penstock.torch._pickling import pickled, reopened, unpickled
from penstock.torch._tensors import Tensors
from penstock.torch._worker_shard import WorkerShard

__all__ = ["IterableDataset", "Loader", "LoaderDataset", "MapDataset", "loader"]


class IterableDataset(data.IterableDataset[dict[str, Any]]):
    """A stream of rows or batches for torch: `DataLoader(IterableDataset(ds.batch(32)), batch_size=None)`.

    With `num_workers=W`, worker w yields batches w, w + W, w + 2W and so on, so the order is that without workers. Each
    worker reads every window and decodes only its own batches; `penstock.torch.loader` reads each window once. The share of
    a rank is set by the dataset's `.shard()`; it is never taken from the environment.

    Every iteration is the same epoch until `set_epoch` sets another. Iterators have `state_dict` and `load_state_dict`,
    which torchdata's `StatefulDataLoader` calls.

    Args:
        ds: The dataset or mixture to read.
        jagged: Columns that become nested tensors of jagged layout.

    Attributes:
        ds: The dataset or mixture.
        tensors: The conversion of arrays to tensors.

    Raises:
        ArgumentError: If `ds` is not a dataset.

    Example:
        >>> from penstock.testing import example
        >>> [row["id"].item() for row in IterableDataset(example().limit(3))]
        [0, 1, 2]
    """

    _belongs_to_loader = False

    def __init__(self, ds: Dataset | Mixture, *, jagged: Iterable[str] = ()) -> None:
        """Store the dataset."""
        super().__init__()
        if not isinstance(ds, Mixture):
            _checked_dataset(ds)
        self.ds: Dataset | Mixture = ds
        self.tensors = Tensors.of(jagged, mapped=bool(ds._query.maps))  # noqa: SLF001 - engine values of a dataset
        self._process = os.getpid()
        self._start, self._sent_to_worker = Position(), False
        self._epoch = torch.zeros((), dtype=torch.int64)
        if not self._belongs_to_loader:
            # Persistent workers see the change.
            self._epoch.share_memory_()  # type: ignore[no-untyped-call]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, also in running workers.

        Raises:
            ArgumentError: If `epoch` is not a non-negative integer, or Accelerate cannot distribute the dataset.
        """
        self._check()
        self._check_distributed()
        self.begin_at(Position(epoch=checked_epoch(epoch)))

    def begin_at(self, position: Position) -> None:
        """Set the position where the next iteration begins; running workers begin at the start of its epoch."""
        self._start = position
        self._epoch.fill_(position.epoch)

    def __iter__(self) -> WorkerShard:
        """Return the iterator over this worker's batches of the epoch."""
        self._check()
        if self._process != os.getpid():
            self.ds, self._process, self._sent_to_worker = reopened(self.ds), os.getpid(), True
        return WorkerShard(self.ds, self.tensors, self._take_start())

    def _take_start(self) -> Position:
        """Return the position where an iteration begins.

        The first iteration of a worker begins where the dataset stood when the worker was started: workers start one after
        the other, and `set_epoch` may be called in between.
        """
        worker = data.get_worker_info()
        if worker is not None and not self._sent_to_worker:
            return Position(epoch=int(self._epoch))
        self._sent_to_worker = False
        return self._start

    def __len__(self) -> int:
        """Return the number of batches, or rows, of an epoch.

        Raises:
            TypeError: If the dataset has no length.
            ArgumentError: If Accelerate takes the length of one rank's shard for that of the whole dataset.
        """
        self._check()
        return len(self.ds)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, with the plan."""
        self._check()
        return {"ds": pickled(self.ds), "tensors": self.tensors, "epoch": self._epoch, "start": self._start}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state from pickling."""
        self.ds, self.tensors, self._process = unpickled(state["ds"]), state["tensors"], os.getpid()
        self._epoch, self._start, self._sent_to_worker = state["epoch"], state["start"], True

    def _check(self) -> None:
        """Raise if Accelerate would shard the dataset again, or bypass the loader."""
        if self._belongs_to_loader or self.ds._query.world_size > 1:  # noqa: SLF001 - engine values of a dataset
            refuse_accelerate()

    def _check_distributed(self) -> None:
        """Raise if Accelerate would distribute the dataset wrongly; each of its processes calls this before an epoch."""
        query = self.ds._query  # noqa: SLF001 - engine values of a dataset
        mixture = self.ds._table if isinstance(self.ds, Mixture) else None  # noqa: SLF001 - as above
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
    """The `dataset` attribute of a loader, for frameworks that inspect it; the loader iterates over the engine instead."""

    _belongs_to_loader = True

    def in_order(self) -> LoaderDataset:
        """Return the same batches in stored order, which is equal in every epoch."""
        table, query = self.ds._table, self.ds._query  # noqa: SLF001 - engine values of a dataset
        query = replace(query, last=query.ending)
        if isinstance(table, MixtureTable):
            sources = (replace(one, query=replace(one.query, shuffle=InOrder())) for one in table.sources)
            return LoaderDataset(Mixture(replace(table, sources=tuple(sources)), query), jagged=self.tensors.jagged)
        return LoaderDataset(Dataset(table, replace(query, shuffle=InOrder())), jagged=self.tensors.jagged)


class MapDataset(data.Dataset[dict[str, Any]]):
    """A map-style dataset for your own sampler: rows in stored order, by number.

    Each row costs a read of its pages or row group, unless several are fetched at once with `__getitems__`, as torch does.

    Args:
        ds: The dataset; it must not be shuffled, batched, sharded or repeated.

    Raises:
        ArgumentError: If it is one of these, or has a column with `Offsets()`, which needs batches.

    Example:
        >>> from penstock.testing import example
        >>> rows = MapDataset(example())
        >>> len(rows), rows[3]["id"]
        (10, tensor(3))
    """

    def __init__(self, ds: Dataset) -> None:
        """Store the dataset."""
        query = _checked_dataset(ds)._query  # noqa: SLF001 - engine values of a dataset
        if query.shuffled or query.size is not None or query.world_size > 1 or query.epochs != 1:
            msg = (
                f"MapDataset got {ds!r}, which is shuffled, batched, sharded or repeated; expected a dataset in stored order. "
                "Leave .shuffle(), .batch(), .shard() and .repeat() out: samplers do all that."
            )
            raise ArgumentError(msg)
        flat = flat_columns(query)
        if flat:
            msg = (
                f"Column {flat[0]!r} has the policy Offsets(), which needs batches; expected a policy for single rows, because "
                "MapDataset returns rows. Leave the policy out, or use Pad(length=...)."
            )
            raise ArgumentError(msg)
        self.ds, self.tensors, self._process = ds, Tensors(), os.getpid()

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.ds.num_rows

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a row.

        Raises:
            ArgumentError: If `index` is not an integer.
            RowNotFoundError: If the dataset has fewer rows.
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return several rows; each row group is read once."""
        if self._process != os.getpid():
            self.ds, self._process = _checked_dataset(reopened(self.ds)), os.getpid()
        found = self.ds.take([_number(index) for index in indices])
        rows = ({name: values[row] for name, values in found.items()} for row in range(len(indices)))
        return [self.tensors.batch(row) for row in rows]

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, with the plan."""
        return {"ds": pickled(self.ds)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state from pickling."""
        self.ds, self.tensors, self._process = _checked_dataset(unpickled(state["ds"])), Tensors(), os.getpid()


def flat_columns(query: Query) -> list[str]:
    """Return the columns with the policy `Offsets()`."""
    columns = query.columns
    return [one.name for one in query.policies if isinstance(one.ragged, Offsets) and (columns is None or one.name in columns)]


def _checked_dataset(ds: object) -> Dataset:
    if not isinstance(ds, Dataset):
        msg = f"Got {type(ds).__name__}; expected a penstock dataset. Write penstock.open(url)."
        raise ArgumentError(msg)
    return ds


def _number(row: Any) -> int:
    """Return the number of a row; samplers also give tensors of one element."""
    with suppress(TypeError):
        if not isinstance(row, bool):
            return whole(row)
    msg = f"MapDataset got row {row!r}; expected an integer. For many rows, write dataset.ds.take([...])."
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

    Each `iter()` is the next epoch. With a process group, all ranks must call this function: rank 0 opens the table and
    broadcasts its plan, and each rank counts its share of the rows that pass a filter.

    Args:
        ds: The dataset or mixture to read, with its clauses, such as `batch`.
        rank: The number of this reader among `world_size`, instead of that of the process group or of torchrun's environment.
            Ranks that need the same data, as in tensor parallelism, give the same number.
        world_size: The number of readers.
        process_group: The group of data-parallel ranks, or a device mesh of one dimension; by default all processes. With
            `rank` and `world_size`, the group of processes that agree on the plan.
        pin_memory: Whether tensors are copied to pinned memory.
        device: The device that tensors are moved to.
        jagged: Columns that become nested tensors of jagged layout; they need `.ragged(penstock.Offsets(), ...)`.
        options: None. Other options of `DataLoader` raise an error with the replacement.

    Raises:
        UnknownArgumentError: If an option belongs to the dataset, such as `batch_size` and `shuffle`.
        ArgumentError: If only one of `rank` and `world_size` is given, or the ranks have different queries.

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
    group, checked = communicating_group(rank, world_size, process_group), []

    def check() -> dict[str, Any]:
        checked.append((*_checked(ds, rank, world_size, process_group, jagged), _device(device)))
        return {"jagged=": sorted(checked[0][2].jagged)}

    # A rank with invalid arguments reports them to the others, which would wait for it otherwise.
    check() if group is None else check_same_on_ranks(group, check)
    shard, readers, tensors, torch_device = checked[0]
    if readers.group is not None:
        shard = _agreed(shard, readers.group)
    made = Loader(shard, pin_memory=pin_memory, device=torch_device, jagged=tensors.jagged)
    made._rank_is_assumed = readers.assumed and ds._query.world_size == 1  # noqa: SLF001 - not an option of users
    return made


def _checked(
    ds: Any, rank: int | None, world_size: int | None, process_group: Any, jagged: Iterable[str]
) -> tuple[Dataset | Mixture, Ranks, Tensors]:
    """Return the shard of this rank, the ranks, and the conversion to tensors."""
    if not isinstance(ds, Dataset | Mixture):
        msg = f"loader() got {type(ds).__name__}; expected a dataset. Write penstock.open(url).batch(32)."
        raise ArgumentError(msg)
    tensors, readers = Tensors.of(jagged), ranks(rank, world_size, process_group)
    query = ds._query  # noqa: SLF001 - engine values of a dataset
    if query.world_size > 1:
        return _checked_shard(ds, query, readers), readers, tensors
    return ds.shard(readers.rank, readers.size, lanes=query.lanes), readers, tensors


def _agreed(ds: Dataset | Mixture, group: ProcessGroup) -> Dataset | Mixture:
    """Return a dataset with the plan of rank 0."""
    if isinstance(ds, Mixture):
        return Mixture(agreed_mixture(ds._table, ds._query, group), ds._query)  # noqa: SLF001 - as above
    return Dataset(shared_table(ds._table, ds._query, group), ds._query)  # noqa: SLF001 - as above


def _checked_shard(ds: Dataset | Mixture, query: Query, readers: Ranks) -> Dataset | Mixture:
    """Return a dataset with `.shard()`, which must agree with the rank of this process."""
    if readers.size > 1 and (query.rank, query.world_size) != (readers.rank, readers.size):
        msg = (
            f"The dataset is rank {query.rank} of {query.world_size} by .shard(), and this process is rank {readers.rank} "
            f"of {readers.size}; expected equal ranks. Leave .shard() out, or give the loader rank= and world_size=."
        )
        raise ArgumentError(msg)
    return ds


class Loader(data.DataLoader[dict[str, Any]]):
    """A `torch.utils.data.DataLoader` whose batches come from the engine; `loader` makes one.

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

    # Accelerate rebuilds loaders from their datasets unless they have this attribute.
    _is_accelerate_prepared = True
    # Accelerate saves and loads the state of a loader with that of the model if this is true.
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
        self._query = shown.ds._query  # noqa: SLF001 - engine values of a dataset
        self._engine = EngineLoader(shown.ds._table, self._query, shown.tensors)  # noqa: SLF001 - as above
        # Set in `__dict__`, because torch forbids setting it and wrappers copy the attribute.
        self.__dict__["batch_size"] = self._query.batch_rows
        self._rank_is_assumed = False
        self._lightning_epochs = LightningEpochs(self._engine, self._query)

    @property
    def dataset(self) -> Any:
        """The dataset; None while Lightning asks for the length of the loader.

        Lightning warns that the length of an iterable dataset may be wrong with workers. This loader has no such workers.
        """
        return None if is_lightning_measuring() else self.__dict__["dataset"]

    @dataset.setter
    def dataset(self, dataset: Any) -> None:
        self.__dict__["dataset"] = dataset

    @property
    def sampler(self) -> Any:
        """The sampler for frameworks that call `set_epoch` of one; the engine orders and shards rows."""
        return EpochSampler(self._lightning_epochs.set_epoch)

    @sampler.setter
    def sampler(self, _: Any) -> None:
        """Ignore the sampler that torch sets."""

    def __iter__(self) -> Iterator[dict[str, Any]]:  # type: ignore[override] # torch declares a class of its own
        """Return the batches of the next epoch.

        Raises:
            ArgumentError: If torch.distributed was initialised after the loader was made, with other ranks.
            EmptyDatasetError: If there are no rows, or too few for one batch.
        """
        if self._rank_is_assumed:
            check_ranks(self._query.world_size)
        if is_lightning():
            self._lightning_epochs.request()
            return self._lightning_batches()
        self._lightning_epochs.begun()
        return self._next_batches()

    def _next_batches(self) -> Iterator[dict[str, Any]]:
        """Return the batches of the next epoch, moved to the device, and observed by Accelerate."""
        epoch = iter(self._engine)
        batches: Iterator[dict[str, Any]] = epoch
        if self.device is not None or self.pin_memory:
            batches = DeviceBatches(batches, self.device, pin=self.pin_memory)
        if is_observed_by_accelerate():
            sized = not self._query.lazy and self._query.epochs is not None
            batches = AccelerateBatches(batches, self, len(epoch) if sized else None)
        return batches

    def _lightning_batches(self) -> Iterator[dict[str, Any]]:
        """Yield batches of the epoch that is set at the first `next()`: Lightning sets the epoch after `iter()`."""
        if self._lightning_epochs.begin():
            yield from self._next_batches()

    def __len__(self) -> int:
        """Return the number of batches that the next `iter()` yields.

        Raises:
            TypeError: If the dataset repeats without end or has a lazy filter.
        """
        return self._lightning_epochs.length()

    def state_dict(self) -> State:
        """Return the progress as a JSON-serializable dict.

        Raises:
            ArgumentError: If Lightning saves a loader without length, or one rank's state where ranks advance differently.
        """
        if self._query.lazy or self._query.epochs is None:
            refuse_lightning()
        state = self._engine.state_dict()
        if not state["alike"] and any(rows for *_, rows in state["deals"]):
            refuse_state_of_one_rank()
        return self._lightning_epochs.saved(state)

    def state_at(self, step: int) -> State:
        """Return the state after `step` batches of the running iteration, for frameworks that prefetch.

        Raises:
            ArgumentError: If the iteration has fewer steps.
        """
        return self._engine.state_at(step)

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Resume at a state: that of any rank, or a list of the states of all ranks.

        Raises:
            StateError: If the state is damaged, or was saved over another table, order or query.
        """
        self._engine.load_state_dict(state)
        self._lightning_epochs.loaded(state)

    @property
    def skipped(self) -> tuple[SkippedRow, ...]:
        """The bad rows that this rank skipped, with place and reason; at most the first hundred thousand."""
        return self._engine.skipped

    @property
    def num_skipped(self) -> int:
        """The number of rows that this rank skipped."""
        return self._engine.num_skipped

    def stats(self) -> Stats:
        """Return counts and times of all iterations of this loader, with advice.

        Pinning and moving to a device count as time of the consumer, in whose thread they run.
        """
        return self._engine.stats()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next `iter()`; a state that was loaded inside the same epoch stays.

        Raises:
            ArgumentError: If `epoch` is not a non-negative integer.
        """
        self._engine.set_epoch(epoch)
        self._lightning_epochs.set_by_user()


def _device(device: torch.device | str | None) -> torch.device | None:
    """Return the device that tensors are moved to.

    Raises:
        ArgumentError: If torch does not know the device, or this machine does not have it.
    """
    if device is None:
        return None
    try:
        return torch.empty(0, device=torch.device(device)).device
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        msg = f'loader() got device={device!r}; expected a device of torch, such as "cuda" or "cpu". Torch reports: {error}'
        raise ArgumentError(msg) from error


class DeviceBatches(BatchIterator):
    """Moves batches to pinned memory or to a device."""

    def __init__(self, batches: Iterator[dict[str, Any]], device: torch.device | None, *, pin: bool) -> None:
        """Store the batches and the device."""
        super().__init__(batches)
        self._device, self._pin = device, pin

    def __next__(self) -> dict[str, Any]:
        """Return the next batch on the device."""
        return {name: _placed(value, self._device, pin=self._pin) for name, value in super().__next__().items()}


def _placed(tensor: Any, device: torch.device | None, *, pin: bool) -> Any:
    if not isinstance(tensor, torch.Tensor):
        return tensor
    # The oldest supported torch has no torch.accelerator.
    tensor = tensor.pin_memory() if pin and getattr(torch, "accelerator", torch.cuda).is_available() else tensor
    return tensor if device is None else tensor.to(device, non_blocking=pin)
