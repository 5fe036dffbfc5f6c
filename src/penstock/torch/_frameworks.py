"""What trainers of others do with a loader, and what it must tell them. None of them is imported here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any, Protocol

from torch.utils import data

from penstock.errors import ArgumentError

__all__ = ["Epochs", "Watched", "is_lightning", "is_watched", "refuse_accelerate", "refuse_lightning", "told_accelerate"]

ACCELERATE = ("accelerate.data_loader",)
LIGHTNING = ("lightning.pytorch.loops.fit_loop", "pytorch_lightning.loops.fit_loop")


def refuse_accelerate() -> None:
    """Refuse to let Accelerate deal out what is one rank's share already.

    Raises:
        ArgumentError: If Accelerate's loaders are what asks.
    """
    if "accelerate" in sys.modules and _called_by(ACCELERATE):
        msg = (
            "Accelerate deals out, or skips, the batches of this dataset, which is one rank's share by .shard() or by a loader "
            "already, so that rows would be lost. A dataset without .shard() was expected. Give accelerator.prepare such a "
            "one, or the loader of penstock.torch.loader(ds); to go on in mid-epoch, use that loader's load_state_dict."
        )
        raise ArgumentError(msg)


def is_lightning() -> bool:
    """Return whether Lightning's training loop is what asks."""
    return _called_by(LIGHTNING)


def refuse_lightning() -> None:
    """Refuse to let Lightning save the state of a loader of which it has fetched more than it has trained on.

    Raises:
        ArgumentError: If Lightning is what asks.
    """
    if is_lightning():
        msg = (
            "Lightning saves the state of a loader without length, of which it fetches a batch before it is needed, so that a "
            "resume would lose that batch. A length was expected. Leave lazy=True out of .where(), and give .repeat() a number."
        )
        raise ArgumentError(msg)


class Epochs(data.Sampler[None]):
    """The sampler that a loader shows: Lightning tells it, and not the loader, which epoch begins.

    Others who do so count from 0 after a resume too, and are not heard.
    """

    def __init__(self, set_epoch: Callable[[int], None]) -> None:
        """Store what is to be told."""
        self._set_epoch = set_epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration of the loader that of an epoch, if Lightning's training loop says so."""
        if is_lightning():
            self._set_epoch(epoch)

    def __iter__(self) -> Iterator[None]:
        """Yield as little as torch's own sampler of streams."""
        return repeat(None)


def _called_by(modules: tuple[str, ...]) -> bool:
    """Return whether a function of one of these modules is among those that wait for this one."""
    frame = sys._getframe(1)  # noqa: SLF001 - who asks decides whether it is right
    while frame is not None:
        if frame.f_globals.get("__name__") in modules:
            return True
        frame = frame.f_back  # type: ignore[assignment] # None is the end
    return False


class Watched(Protocol):
    """A loader as Accelerate looks at it while it accumulates gradients."""

    end_of_dataloader: bool
    remainder: int


def is_watched() -> bool:
    """Return whether an accelerator exists that wants to know where a loader ends."""
    state = sys.modules.get("accelerate.state")
    return state is not None and bool(state.GradientState._shared_state)  # noqa: SLF001 - it has no other name


def told_accelerate(loader: Watched, batches: Iterator[dict[str, Any]], length: int | None) -> Iterator[dict[str, Any]]:
    """Yield batches, and tell Accelerate which is the last: it is then that gradients are applied, complete or not."""
    state = sys.modules["accelerate.state"].GradientState()
    loader.end_of_dataloader, loader.remainder = False, -1
    state._add_dataloader(loader)  # noqa: SLF001 - what its own loaders do
    try:
        for number, batch in enumerate(batches, start=1):
            loader.end_of_dataloader = number == length
            yield batch
    finally:
        state._remove_dataloader(loader)  # noqa: SLF001 - the same
