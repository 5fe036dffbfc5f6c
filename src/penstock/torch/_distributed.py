"""Which rank this is, and how ranks talk to each other."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import cloudpickle
from torch import distributed

from penstock.errors import ArgumentError, PenstockError

__all__ = ["ProcessGroup", "Ranks", "check_ranks", "ranks", "talking"]

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroup:
    """The ranks of a process group of torch, as the engine sees them.

    Attributes:
        group: The group; None for all processes.
        rank: Which of the ranks this is.
        size: How many there are.
    """

    group: Any
    rank: int
    size: int

    def share(self, function: Callable[[], Result]) -> Result:
        """Return, on every rank, what the function returns on rank 0; what it raises there is raised everywhere."""
        said = [_attempt(function) if self.rank == 0 else b""]
        first = distributed.get_global_rank(self.group, 0) if self.group is not None else 0
        distributed.broadcast_object_list(said, src=first, group=self.group)
        found: Result = _outcome(said)[0]
        return found

    def gather(self, function: Callable[[], Result]) -> list[Result]:
        """Return, on every rank, what the function returns on each; what one raises is raised everywhere."""
        said = [b""] * self.size
        distributed.all_gather_object(said, _attempt(function), group=self.group)
        return _outcome(said)


def _attempt(function: Callable[[], Any]) -> bytes:
    """Return what a function returns or raises, as it travels; what cannot travel must not leave other ranks waiting."""
    try:
        return _packed(function(), None)
    except Exception as error:  # noqa: BLE001 - it is raised again, on all ranks
        try:
            sent = _packed(None, error)
            cloudpickle.loads(sent)  # some errors go but do not come back
        except Exception:  # noqa: BLE001 - whatever is in the way, its text can travel
            return _packed(None, PenstockError(f"{type(error).__name__}: {error}"))
        return sent


def _packed(value: Any, error: Exception | None) -> bytes:
    packed: bytes = cloudpickle.dumps((value, error))
    return packed


def _outcome(said: list[bytes]) -> list[Any]:
    found = [cloudpickle.loads(one) for one in said]
    for _, error in found:
        if error is not None:
            raise error
    return [value for value, _ in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Who reads.

    Attributes:
        rank: Which of the readers this is.
        size: How many there are.
        group: Those that agree on what is read; None where they cannot talk, or there is only one.
        assumed: Whether nobody has said so, and it was found out.
    """

    rank: int
    size: int
    group: ProcessGroup | None = None
    assumed: bool = False


def ranks(rank: int | None, world_size: int | None, process_group: Any) -> Ranks:
    """Return who reads.

    What is given counts first; then the process group; then what torchrun has put in the environment.

    Raises:
        ArgumentError: If only one of rank and world_size is given, or the group is one of others.
    """
    if (rank is None) != (world_size is None):
        msg = (
            f"loader got rank={rank!r} and world_size={world_size!r}; expected both, or neither. Give both, or leave "
            "them out to take them from torch.distributed or from torchrun."
        )
        raise ArgumentError(msg)
    if rank is not None and world_size is not None:
        return Ranks(rank=rank, size=world_size, group=None if process_group is None else _joined(process_group))
    if process_group is not None or _is_initialized():
        group = _joined(process_group)
        return Ranks(
            rank=0 if group is None else group.rank,
            size=1 if group is None else group.size,
            group=group,
            assumed=process_group is None,
        )
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return Ranks(rank=_environment("RANK"), size=_environment("WORLD_SIZE"), assumed=True)
    return Ranks(rank=0, size=1, assumed=True)


def talking(rank: int | None, world_size: int | None, process_group: Any) -> ProcessGroup | None:
    """Return the ranks that this one talks to, also where it was given something else that is wrong; None for none.

    Raises:
        ArgumentError: If the group is one of others.
    """
    alone = process_group is None and (rank is not None or world_size is not None)
    return _joined(process_group) if _is_initialized() and not alone else None


def check_ranks(size: int) -> None:
    """Refuse to go on with a number of readers that was found out before torch.distributed said another.

    Raises:
        ArgumentError: If there are other processes now.
    """
    if _is_initialized() and distributed.get_world_size() != size:
        readers = "the only reader" if size == 1 else f"one of {size} readers"
        msg = (
            f"This loader was made as {readers}, and torch.distributed has {distributed.get_world_size()} processes now, so "
            "that rows would be read more than once, or never. Make it after torch.distributed.init_process_group (with "
            "Lightning: in train_dataloader), or give it rank= and world_size=."
        )
        raise ArgumentError(msg)


def _joined(group: Any) -> ProcessGroup | None:
    """Return a group that this process is in; None where it is in it alone."""
    if not _is_initialized():
        msg = (
            f"loader got process_group={group!r}, and torch.distributed is not initialised. Call "
            "torch.distributed.init_process_group first, or leave the group out."
        )
        raise ArgumentError(msg)
    group = _single(group)
    try:
        here, size = distributed.get_rank(group), distributed.get_world_size(group)
    except (ValueError, TypeError) as error:
        msg = (
            f"loader got process_group={group!r}, which is none; expected a process group of torch, or a device "
            'mesh of one dimension. Give mesh["dp"], mesh.get_group("dp"), or what torch.distributed.new_group returns.'
        )
        raise ArgumentError(msg) from error
    if here < 0:
        msg = (
            f"loader got a process_group that process {distributed.get_rank()} is not in. A group of the processes that "
            "share out the data, this one among them, was expected. Give that."
        )
        raise ArgumentError(msg)
    return ProcessGroup(group=group, rank=here, size=size) if size > 1 else None


def _single(group: Any) -> Any:
    """Return a group, also where a device mesh stands for the only one that it has."""
    return group.get_group() if getattr(group, "ndim", 0) == 1 and hasattr(group, "get_group") else group


def _is_initialized() -> bool:
    return bool(distributed.is_available() and distributed.is_initialized())


def _environment(name: str) -> int:
    try:
        return int(os.environ[name])
    except ValueError:
        msg = (
            f"The environment says {name}={os.environ[name]!r}; expected a number, as torchrun sets it. Set it, or give "
            "the loader rank= and world_size=."
        )
        raise ArgumentError(msg) from None
