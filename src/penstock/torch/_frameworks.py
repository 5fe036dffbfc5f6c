"""Lightning, Accelerate and transformers: how they use a loader, and what it reports to them. None is imported here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import repeat
from types import FrameType
from typing import Any, Protocol

from torch.utils import data

from penstock._engine.deliver.loader import Iteration
from penstock._engine.deliver.loader import Loader as Engine
from penstock._engine.order.state import State
from penstock._engine.query.query import Query
from penstock.errors import ArgumentError, StateError
from penstock.model import Position

__all__ = [
    "AccelerateBatches",
    "AccelerateLoader",
    "Epochs",
    "LightningEpochs",
    "Passed",
    "is_dispatching",
    "is_lightning",
    "is_lightning_measuring",
    "is_overfitting",
    "is_watched",
    "refuse_accelerate",
    "refuse_lightning",
    "refuse_one_for_all",
    "refuse_shares",
    "refuse_to_dispatch",
]

ACCELERATE = ("accelerate.data_loader",)
CHECKPOINTS = ("accelerate.checkpointing",)
LIGHTNING = ("lightning.pytorch.loops.fit_loop", "pytorch_lightning.loops.fit_loop")
CONNECTORS = ("lightning.pytorch.trainer.connectors.data_connector", "pytorch_lightning.trainer.connectors.data_connector")
MEASURING = frozenset({"has_len", "has_len_all_ranks"})
"""What Lightning calls its functions that ask for the length of a loader, and warn where its dataset is a stream."""

OVERFITTING = "_resolve_overfit_batches"
DISPATCHER, SHARES = "DataLoaderDispatcher.", "IterableDatasetShard."
"""How Accelerate distributes a stream: one process feeds all, or each takes its share of the rows."""


def refuse_accelerate() -> None:
    """Refuse to let Accelerate distribute what is already the share of one rank.

    Raises:
        ArgumentError: If Accelerate's loaders are what asks.
    """
    if "accelerate" in sys.modules and _called_by(ACCELERATE):
        msg = (
            "Accelerate distributes, or skips, batches of this dataset, which is already the share of one rank (by .shard() or "
            "by a loader), so rows would be lost; expected a dataset without .shard(). Give accelerator.prepare a dataset "
            "without it, or penstock.torch.loader(ds); to resume within an epoch, use the loader's load_state_dict."
        )
        raise ArgumentError(msg)


def is_dispatching() -> bool:
    """Return whether a loader of Accelerate's is what asks, which feeds all processes with batches that nobody has changed."""
    caller = _caller(ACCELERATE, DISPATCHER) if "accelerate" in sys.modules else None
    asking = None if caller is None else caller.f_locals.get("self")
    return getattr(asking, "collate_fn", None) in (data.default_convert, data.default_collate)


def refuse_to_dispatch(column: str) -> None:
    """Refuse to let Accelerate cut a column by rows that has other things than one value of a tensor for each.

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
    """Refuse to let Accelerate distribute batches as if they were rows.

    Raises:
        ArgumentError: If it does.
    """
    if "accelerate" in sys.modules and _called_by(ACCELERATE, SHARES):
        msg = (
            "Accelerate distributes rows one by one (dispatch_batches=False), and this dataset yields batches; expected rows. "
            "Leave .batch() out and give the DataLoader its batch_size, or prepare penstock.torch.loader(ds)."
        )
        raise ArgumentError(msg)


def is_lightning() -> bool:
    """Return whether Lightning's training loop is what asks."""
    return _called_by(LIGHTNING)


def is_lightning_measuring() -> bool:
    """Return whether what asks for an attribute of a loader is Lightning's look at its length.

    Lightning's `has_len` asks another function of it, which asks for the attribute, which asks this one.
    """
    caller = sys._getframe(2).f_back  # noqa: SLF001 - who asks decides what is right
    if caller is None or caller.f_code.co_name not in MEASURING:
        return False
    return str(caller.f_globals.get("__name__")).startswith(("lightning.", "lightning_fabric.", "pytorch_lightning."))


def is_overfitting() -> bool:
    """Return whether Lightning makes a loader anew that is to give the same batches in every epoch."""
    return _called_by(CONNECTORS, OVERFITTING)


def refuse_lightning() -> None:
    """Refuse to let Lightning save the state of a loader of which it has fetched more than it has trained on.

    Raises:
        ArgumentError: If Lightning is what asks.
    """
    if is_lightning():
        msg = (
            "Lightning saves the state of a loader without length, of which it fetches a batch before it is needed, so that a "
            "resume would lose that batch; expected a length. Leave lazy=True out of .where(), and give .repeat() a number."
        )
        raise ArgumentError(msg)


def refuse_one_for_all() -> None:
    """Refuse to let one rank's state be saved as that of all, where each needs its own.

    Raises:
        ArgumentError: If Lightning or Accelerate is what asks.
    """
    if is_lightning() or _called_by(CHECKPOINTS):
        msg = (
            "Lightning and Accelerate save the state of one rank for all, and in mid-epoch the ranks of this loader have come "
            'differently far (last="uneven", or a lazy filter), so that a resume would fail. Ranks that advance alike were '
            'expected. Use last="pad" or "level" and no lazy filter, or save at the end of an epoch.'
        )
        raise ArgumentError(msg)


class Epochs(data.Sampler[None]):
    """The sampler that a loader shows: Lightning calls its `set_epoch`, and not that of the loader.

    Others count from 0 after a resume too, so their calls are ignored.
    """

    def __init__(self, set_epoch: Callable[[int], None]) -> None:
        """Store the function that is called with the epoch."""
        self._set_epoch = set_epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration of the loader that of an epoch, if Lightning's training loop says so."""
        if is_lightning():
            self._set_epoch(epoch)

    def __iter__(self) -> Iterator[None]:
        """Yield as little as torch's own sampler of streams."""
        return repeat(None)


def _called_by(modules: tuple[str, ...], within: str = "") -> bool:
    """Return whether a function of one of these modules, or of something in it, is among those that wait for this one."""
    return _caller(modules, within) is not None


def _caller(modules: tuple[str, ...], within: str) -> FrameType | None:
    """Return the nearest call of such a function."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - who asks decides whether it is right
    while frame is not None:
        if frame.f_globals.get("__name__") in modules and frame.f_code.co_qualname.startswith(within):
            return frame
        frame = frame.f_back
    return None


class AccelerateLoader(Protocol):
    """A loader as Accelerate looks at it while it accumulates gradients."""

    end_of_dataloader: bool
    remainder: int


def is_watched() -> bool:
    """Return whether an accelerator exists that wants to know where a loader ends."""
    state = sys.modules.get("accelerate.state")
    return state is not None and bool(state.GradientState._shared_state)  # noqa: SLF001 - it has no other name


class Passed:
    """Batches on their way from the engine to the consumer; what went wrong once is raised again, and any thread may ask."""

    def __init__(self, batches: Iterator[dict[str, Any]]) -> None:
        """Store the batches."""
        self._batches = batches

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Return itself."""
        return self

    def __next__(self) -> dict[str, Any]:
        """Return the next batch."""
        return next(self._batches)

    def close(self) -> None:
        """Stop and let go of everything; a further `next` ends the iteration."""
        self._batches.close()  # type: ignore[attr-defined] # the engine's, or one of these


class AccelerateBatches(Passed):
    """Batches that mark the last one for Accelerate, which then applies gradients, complete or not."""

    def __init__(self, batches: Iterator[dict[str, Any]], loader: AccelerateLoader, length: int | None) -> None:
        """Store the batches, and how many there are where that is known."""
        super().__init__(batches)
        self._loader, self._length, self._number = loader, length, 0
        self._state: Any = None

    def __next__(self) -> dict[str, Any]:
        """Return the next batch; Accelerate looks at the loader from the first to the end."""
        if self._number == 0:
            self._state = sys.modules["accelerate.state"].GradientState()
            self._loader.end_of_dataloader, self._loader.remainder = False, -1
            self._state._add_dataloader(self._loader)  # noqa: SLF001 - what its own loaders do
        try:
            batch = super().__next__()
        except BaseException:
            self._let_go()
            raise
        self._number += 1
        self._loader.end_of_dataloader = self._number == self._length
        return batch

    def close(self) -> None:
        """Stop, and remove the loader from the state of Accelerate."""
        self._let_go()
        super().close()

    def __del__(self) -> None:
        """Remove it after a `break` too."""
        self._let_go()

    def _let_go(self) -> None:
        if self._state is not None:
            self._state._remove_dataloader(self._loader)  # noqa: SLF001 - the same
            self._state = None


TRAINER = "trainer"
"""What states that Lightning saves have besides: its epoch, and the one of the loader that it began with."""


class Given(Enum):
    """Who said where the next iteration begins."""

    NOBODY = 0
    USER = 1
    LIGHTNING = 2


class LightningEpochs:
    """Puts a loader where an iteration of Lightning's begins.

    Lightning says a number when an epoch of its own begins. It may take several iterations for that, or a part of one, so the
    number tells no more than how many epochs have gone by since the last one that is known. A position that was loaded, or an
    epoch that was set, counts more, as long as nobody has begun it.
    """

    def __init__(self, engine: Engine, query: Query) -> None:
        """Begin with Lightning's epoch 0 as the loader's."""
        self._engine, self._query = engine, query
        self._said: int | None = None
        self._number = self._first = 0
        self._given, self._asked = Given.NOBODY, False

    def ask(self) -> None:
        """Note that Lightning has asked for an iteration, which begins when it asks for the first batch."""
        self._asked = True

    def length(self) -> int:
        """Return the number of batches of the iteration after the one that was asked for, or of the next.

        Raises:
            TypeError: If it has no length.
        """
        coming = self._engine.coming
        if self._asked and coming.end is not None:
            coming = Iteration(coming.planned, self._query, Position(epoch=coming.end))
        return len(coming)

    def say(self, epoch: int) -> None:
        """Note which epoch Lightning begins."""
        self._said = epoch

    def set_by_user(self) -> None:
        """Note that somebody else has said where the next iteration begins."""
        self._given = Given.USER

    def loaded(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Note that a state was loaded, and in which of Lightning's epochs it was saved, if Lightning is what loads it.

        Raises:
            StateError: If that cannot be what was saved.
        """
        one = state if isinstance(state, Mapping) else state[0]
        self._given = Given.USER
        if is_lightning() and TRAINER in one:
            number, first = _epochs(one[TRAINER])
            self._given, self._number, self._first = Given.LIGHTNING, number, first

    def saved(self, state: State) -> State:
        """Return a state as it is saved, by Lightning or others."""
        if self._given is Given.USER or not is_lightning():
            return state
        return {**state, TRAINER: [self._number, self._first]}

    def begun(self) -> None:
        """Note that an iteration begins."""
        self._given, self._asked = Given.NOBODY, False

    def begin(self) -> bool:
        """Put the loader where the next iteration of Lightning's begins; False where that had ended before it was saved."""
        said, given, repeats = self._said, self._given, self._query.epochs
        self._said = None
        self.begun()
        if said is None or repeats is None:
            return True
        start = self._engine.coming.start
        if given is Given.USER:
            self._number, self._first = said, start.epoch // repeats * repeats
            return True
        if given is Given.LIGHTNING and said <= self._number:
            return start.epoch == self._first or start.epoch % repeats > 0 or _is_inside(start)
        self._number, self._first = said, max(0, self._first + (said - self._number) * repeats)
        self._engine.load_state_dict({**self._engine.state_dict(), "epoch": self._first, "deals": []})
        return True


def _epochs(saved: Any) -> tuple[int, int]:
    """Return the two epochs that a state was saved with."""
    if isinstance(saved, list | tuple) and len(saved) == 2 and all(type(one) is int and one >= 0 for one in saved):  # noqa: PLR2004
        return saved[0], saved[1]
    msg = f"The state has {saved!r} as {TRAINER!r}; expected two epochs, Lightning's and the loader's. Load one as saved."
    raise StateError(msg)


def _is_inside(position: Position) -> bool:
    """Return whether something of an epoch has been handed out."""
    return any(
        assignment.rows if isinstance(assignment.rows, int) else any(assignment.rows) for assignment in position.assignments
    )
