"""Integration with Lightning, Accelerate and transformers. This module imports none of them.

These frameworks rebuild, wrap and save loaders in their own ways. This module finds out from the call stack which one calls.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import repeat
from types import FrameType
from typing import Any, Protocol

from torch.utils import data

from penstock._engine.deliver.loader import Iteration
from penstock._engine.deliver.loader import Loader as EngineLoader
from penstock._engine.order.state import State
from penstock._engine.query.query import Query
from penstock.errors import ArgumentError, StateError
from penstock.model import Position

__all__ = [
    "AccelerateBatches",
    "AccelerateLoader",
    "BatchIterator",
    "EpochSampler",
    "LightningEpochs",
    "is_dispatching",
    "is_lightning",
    "is_lightning_measuring",
    "is_observed_by_accelerate",
    "is_overfitting",
    "refuse_accelerate",
    "refuse_lightning",
    "refuse_shares",
    "refuse_state_of_one_rank",
    "refuse_to_dispatch",
]

ACCELERATE = ("accelerate.data_loader",)
CHECKPOINTS = ("accelerate.checkpointing",)
LIGHTNING = ("lightning.pytorch.loops.fit_loop", "pytorch_lightning.loops.fit_loop")
CONNECTORS = ("lightning.pytorch.trainer.connectors.data_connector", "pytorch_lightning.trainer.connectors.data_connector")
MEASURING = frozenset({"has_len", "has_len_all_ranks"})
"""Functions of Lightning that ask for the length of a loader, and warn if its dataset is iterable."""

OVERFITTING = "_resolve_overfit_batches"
DISPATCHER, SHARES = "DataLoaderDispatcher.", "IterableDatasetShard."
"""Classes of Accelerate that distribute an iterable dataset: from one process to all, or each process takes its rows."""


def refuse_accelerate() -> None:
    """Raise if Accelerate is about to distribute the shard of one rank.

    Raises:
        ArgumentError: If a loader of Accelerate calls.
    """
    if "accelerate" in sys.modules and _called_by(ACCELERATE):
        msg = (
            "Accelerate distributes, or skips, batches of this dataset, which is already the shard of one rank (by .shard() or "
            "by a loader), so rows would be lost; expected a dataset without .shard(). Give accelerator.prepare a dataset "
            "without it, or penstock.torch.loader(ds); to resume within an epoch, use the loader's load_state_dict."
        )
        raise ArgumentError(msg)


def is_dispatching() -> bool:
    """Return whether a dispatching loader of Accelerate calls that uses one of torch's own collate functions."""
    caller = _caller(ACCELERATE, DISPATCHER) if "accelerate" in sys.modules else None
    asking = None if caller is None else caller.f_locals.get("self")
    return getattr(asking, "collate_fn", None) in (data.default_convert, data.default_collate)


def refuse_to_dispatch(column: str) -> None:
    """Raise for a column that Accelerate cannot cut by rows.

    Raises:
        ArgumentError: Always.
    """
    msg = (
        f"Accelerate concatenates batches and distributes them by rows, and column {column!r} is not one tensor with an entry "
        "for each row; expected such columns only. Leave it out with .select(...), give lists .ragged(penstock.Pad(), ...), "
        "or prepare penstock.torch.loader(ds), whose batches stay as they are."
    )
    raise ArgumentError(msg)


def refuse_shares() -> None:
    """Raise if Accelerate is about to distribute batches as if they were rows.

    Raises:
        ArgumentError: If a loader of Accelerate that takes single rows calls.
    """
    if "accelerate" in sys.modules and _called_by(ACCELERATE, SHARES):
        msg = (
            "Accelerate distributes rows one by one (dispatch_batches=False), and this dataset yields batches; expected rows. "
            "Leave .batch() out and give the DataLoader its batch_size, or prepare penstock.torch.loader(ds)."
        )
        raise ArgumentError(msg)


def is_lightning() -> bool:
    """Return whether Lightning's training loop calls."""
    return _called_by(LIGHTNING)


def is_lightning_measuring() -> bool:
    """Return whether Lightning's `has_len` reads an attribute of a loader.

    `has_len` calls another function of Lightning, which reads the attribute, whose property calls this function.
    """
    caller = sys._getframe(2).f_back  # noqa: SLF001 - the answer depends on the caller
    if caller is None or caller.f_code.co_name not in MEASURING:
        return False
    return str(caller.f_globals.get("__name__")).startswith(("lightning.", "lightning_fabric.", "pytorch_lightning."))


def is_overfitting() -> bool:
    """Return whether Lightning rebuilds a loader for `overfit_batches`, which needs equal batches in every epoch."""
    return _called_by(CONNECTORS, OVERFITTING)


def refuse_lightning() -> None:
    """Raise if Lightning saves the state of a loader without length, from which it fetches a batch ahead.

    Raises:
        ArgumentError: If Lightning's training loop calls.
    """
    if is_lightning():
        msg = (
            "Lightning saves the state of a loader without length, from which it fetches one batch ahead, so that a resume "
            "would lose that batch; expected a length. Leave lazy=True out of .where(), and give .repeat() a number."
        )
        raise ArgumentError(msg)


def refuse_state_of_one_rank() -> None:
    """Raise if Lightning or Accelerate saves the state of one rank for all, where each rank needs its own.

    Raises:
        ArgumentError: If Lightning or Accelerate calls.
    """
    if is_lightning() or _called_by(CHECKPOINTS):
        msg = (
            "Lightning and Accelerate save the state of one rank for all, and in mid-epoch the ranks of this loader differ in "
            'progress (last="uneven", or a lazy filter), so that a resume would fail; expected ranks that advance alike. '
            'Use last="pad" or "level" and no lazy filter, or save at the end of an epoch.'
        )
        raise ArgumentError(msg)


class EpochSampler(data.Sampler[None]):
    """The sampler that a loader shows: Lightning calls its `set_epoch`, and not that of the loader.

    Others count from 0 after a resume too, so their calls are ignored.
    """

    def __init__(self, set_epoch: Callable[[int], None]) -> None:
        """Store the function that is called with the epoch."""
        self._set_epoch = set_epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the loader's next iteration, if Lightning's training loop calls."""
        if is_lightning():
            self._set_epoch(epoch)

    def __iter__(self) -> Iterator[None]:
        """Yield None without end, as torch's sampler of iterable datasets does."""
        return repeat(None)


def _called_by(modules: tuple[str, ...], within: str = "") -> bool:
    """Return whether the call stack has a function of one of these modules whose qualified name begins with `within`."""
    return _caller(modules, within) is not None


def _caller(modules: tuple[str, ...], within: str) -> FrameType | None:
    """Return the nearest frame of such a function; None if there is none."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - the answer depends on the caller
    while frame is not None:
        if frame.f_globals.get("__name__") in modules and frame.f_code.co_qualname.startswith(within):
            return frame
        frame = frame.f_back
    return None


class AccelerateLoader(Protocol):
    """The attributes of a loader that Accelerate reads while it accumulates gradients."""

    end_of_dataloader: bool
    remainder: int


def is_observed_by_accelerate() -> bool:
    """Return whether an accelerator exists that needs to know where a loader ends."""
    state = sys.modules.get("accelerate.state")
    return state is not None and bool(state.GradientState._shared_state)  # noqa: SLF001 - there is no public name


class BatchIterator:
    """An iterator over the batches of another; the base of iterators that change or observe them."""

    def __init__(self, batches: Iterator[dict[str, Any]]) -> None:
        """Store the batches."""
        self._batches = batches

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Return this iterator."""
        return self

    def __next__(self) -> dict[str, Any]:
        """Return the next batch."""
        return next(self._batches)

    def close(self) -> None:
        """Stop and free all memory; a further `next` ends the iteration."""
        self._batches.close()  # type: ignore[attr-defined] # an iterator of the engine, or a `BatchIterator`


class AccelerateBatches(BatchIterator):
    """Tells Accelerate which batch is the last; Accelerate then applies incomplete gradients."""

    def __init__(self, batches: Iterator[dict[str, Any]], loader: AccelerateLoader, length: int | None) -> None:
        """Store the batches and their number, if it is known."""
        super().__init__(batches)
        self._loader, self._length, self._number = loader, length, 0
        self._state: Any = None

    def __next__(self) -> dict[str, Any]:
        """Return the next batch; the loader is registered with Accelerate from the first batch to the end."""
        if self._number == 0:
            self._state = sys.modules["accelerate.state"].GradientState()
            self._loader.end_of_dataloader, self._loader.remainder = False, -1
            self._state._add_dataloader(self._loader)  # noqa: SLF001 - as its own loaders do
        try:
            batch = super().__next__()
        except BaseException:
            self._unregister()
            raise
        self._number += 1
        self._loader.end_of_dataloader = self._number == self._length
        return batch

    def close(self) -> None:
        """Stop, and unregister the loader from Accelerate."""
        self._unregister()
        super().close()

    def __del__(self) -> None:
        """Unregister it also after a `break`."""
        self._unregister()

    def _unregister(self) -> None:
        if self._state is not None:
            self._state._remove_dataloader(self._loader)  # noqa: SLF001 - as above
            self._state = None


TRAINER = "trainer"
"""The extra key of states that Lightning saves: its epoch, and the loader's epoch that it began with."""


class StartFrom(Enum):
    """What sets the position where the next iteration begins."""

    LOADER = 0
    USER = 1
    LIGHTNING = 2


class LightningEpochs:
    """Maps the epochs of Lightning to those of a loader.

    Lightning sets its epoch number when an epoch begins. Such an epoch may take several iterations of the loader, or a part
    of one, so only the difference to the last known number counts. A state that was loaded, or an epoch that the user set,
    comes first for the next iteration.
    """

    def __init__(self, engine: EngineLoader, query: Query) -> None:
        """Map Lightning's epoch 0 to the loader's epoch 0."""
        self._engine, self._query = engine, query
        self._lightning_epoch: int | None = None
        self._number = self._first = 0
        self._start_from, self._requested = StartFrom.LOADER, False

    def request(self) -> None:
        """Record that Lightning called `iter()`; the iteration begins with the first batch."""
        self._requested = True

    def length(self) -> int:
        """Return the number of batches of the next iteration, or of the one after it if `iter()` was called.

        Raises:
            TypeError: If the iteration has no length.
        """
        coming = self._engine.next_iteration
        if self._requested and coming.end is not None:
            coming = Iteration(coming.planned, self._query, Position(epoch=coming.end))
        return len(coming)

    def set_epoch(self, epoch: int) -> None:
        """Record which epoch Lightning begins."""
        self._lightning_epoch = epoch

    def set_by_user(self) -> None:
        """Record that the user set the epoch of the next iteration."""
        self._start_from = StartFrom.USER

    def loaded(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Record that a state was loaded, and if Lightning loads it, in which of its epochs it was saved.

        Raises:
            StateError: If the epochs in the state are damaged.
        """
        one = state if isinstance(state, Mapping) else state[0]
        self._start_from = StartFrom.USER
        if is_lightning() and TRAINER in one:
            number, first = _epochs(one[TRAINER])
            self._start_from, self._number, self._first = StartFrom.LIGHTNING, number, first

    def saved(self, state: State) -> State:
        """Return a state as it is saved; Lightning's states have its epoch."""
        if self._start_from is StartFrom.USER or not is_lightning():
            return state
        return {**state, TRAINER: [self._number, self._first]}

    def begun(self) -> None:
        """Record that an iteration begins."""
        self._start_from, self._requested = StartFrom.LOADER, False

    def begin(self) -> bool:
        """Set the loader to the next iteration of Lightning; return False if it had ended before the state was saved."""
        lightning_epoch, start_from, repeats = self._lightning_epoch, self._start_from, self._query.epochs
        self._lightning_epoch = None
        self.begun()
        if lightning_epoch is None or repeats is None:
            return True
        start = self._engine.next_iteration.start
        if start_from is StartFrom.USER:
            self._number, self._first = lightning_epoch, start.epoch // repeats * repeats
            return True
        if start_from is StartFrom.LIGHTNING and lightning_epoch <= self._number:
            return start.epoch == self._first or start.epoch % repeats > 0 or _is_inside(start)
        self._number, self._first = lightning_epoch, max(0, self._first + (lightning_epoch - self._number) * repeats)
        self._engine.load_state_dict({**self._engine.state_dict(), "epoch": self._first, "deals": []})
        return True


def _epochs(saved: Any) -> tuple[int, int]:
    """Return the two epochs in a state of Lightning."""
    if isinstance(saved, list | tuple) and len(saved) == 2 and all(type(one) is int and one >= 0 for one in saved):  # noqa: PLR2004
        return saved[0], saved[1]
    msg = f"The state has {saved!r} as {TRAINER!r}; expected two epochs, Lightning's and the loader's. Load it as saved."
    raise StateError(msg)


def _is_inside(position: Position) -> bool:
    """Return whether a position is inside an epoch: some of its batches were returned."""
    return any(
        assignment.rows if isinstance(assignment.rows, int) else any(assignment.rows) for assignment in position.assignments
    )
