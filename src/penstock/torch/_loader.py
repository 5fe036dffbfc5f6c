"""The loader: torch's own class, with the engine's iterator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Never

import torch
from torch.utils import data

from penstock._engine.deliver.consensus import check_same_on_ranks, shared_table
from penstock._engine.deliver.loader import Loader as Engine
from penstock._engine.deliver.mixture import agreed_mixture
from penstock._engine.deliver.skipped import SkippedRow
from penstock._engine.order.state import State
from penstock._engine.query.query import Query
from penstock._engine.runtime.stats import Stats
from penstock._loader_options import refuse_options
from penstock.dataset import Dataset
from penstock.errors import ArgumentError
from penstock.mix import Mixture
from penstock.torch._datasets import LoaderDataset
from penstock.torch._distributed import ProcessGroup, Ranks, check_ranks, ranks, talking
from penstock.torch._frameworks import (
    Epochs,
    Passed,
    ToldAccelerate,
    is_lightning,
    is_lightning_measuring,
    is_overfitting,
    is_watched,
    refuse_lightning,
    refuse_one_for_all,
)
from penstock.torch._lightning import LightningEpochs
from penstock.torch._tensors import Tensors

__all__ = ["Loader", "loader"]

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
        msg = f"loader got {type(ds).__name__}. A dataset was expected. Give one: penstock.open(url).batch(32)."
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
        """Store the question, and what tensors are to be; there are no samplers, whoever names them."""
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
        self._turns = LightningEpochs(self._engine, self._query)

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
        """What those who speak to samplers are shown; rows are dealt by the engine."""
        return Epochs(self._turns.say)

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
            self._turns.ask()
            return self._late()
        self._turns.begun()
        return self._begun()

    def _begun(self) -> Iterator[dict[str, Any]]:
        """Return the batches of the next epoch, as they are handed out."""
        begun = iter(self._engine)
        batches: Iterator[dict[str, Any]] = begun
        if self.device is not None or self.pin_memory:
            batches = Moved(batches, self.device, pin=self.pin_memory)
        if is_watched():
            sized = not self._query.lazy and self._query.epochs is not None
            batches = ToldAccelerate(batches, self, len(begun) if sized else None)
        return batches

    def _late(self) -> Iterator[dict[str, Any]]:
        """Yield batches of what is next when the first is asked for: Lightning says after `iter()` which epoch it is."""
        if self._turns.begin():
            yield from self._begun()

    def __len__(self) -> int:
        """Return how many batches the next `iter()` yields.

        Raises:
            TypeError: If it has no length: it repeats without end, or filters on the fly.
        """
        return self._turns.length()

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
        return self._turns.told(state)

    def state_at(self, step: int) -> State:
        """Return the state after `step` batches of the iteration that runs, for whoever fetches ahead of the training.

        Raises:
            ArgumentError: If the iteration has not so many steps.
        """
        return self._engine.state_at(step)

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go on where a state says: that of any rank, or a list of those of all ranks.

        Raises:
            StateError: If the state is damaged, or was saved over another table, order or question.
        """
        self._engine.load_state_dict(state)
        self._turns.loaded(state)

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
        self._turns.set_by_user()


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
