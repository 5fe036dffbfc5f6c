"""The rank of this process, and communication of ranks by `torch.distributed`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import cloudpickle
from torch import distributed

from penstock.errors import ArgumentError, PenstockError

__all__ = ["ProcessGroup", "Ranks", "check_ranks", "communicating_group", "ranks"]

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroup:
    """A process group of torch, as the engine's consensus uses it.

    Attributes:
        group: The group; None for all processes.
        rank: The rank of this process in the group.
        size: The number of ranks.
    """

    group: Any
    rank: int
    size: int

    def share(self, function: Callable[[], Result]) -> Result:
        """Return the result of the function on rank 0 to every rank; an error there is raised on every rank."""
        results = [_attempt(function) if self.rank == 0 else b""]
        first = distributed.get_global_rank(self.group, 0) if self.group is not None else 0
        distributed.broadcast_object_list(results, src=first, group=self.group)
        found: Result = _outcome(results)[0]
        return found

    def gather(self, function: Callable[[], Result]) -> list[Result]:
        """Return the results of the function on all ranks to every rank; an error on one is raised on every rank."""
        results = [b""] * self.size
        distributed.all_gather_object(results, _attempt(function), group=self.group)
        return _outcome(results)


def _attempt(function: Callable[[], Any]) -> bytes:
    """Return the pickled result or error of a function; an error that cannot be pickled is sent as text."""
    try:
        return _packed(function(), None)
    except Exception as error:  # noqa: BLE001 - raised again on all ranks
        try:
            sent = _packed(None, error)
            cloudpickle.loads(sent)  # some errors can be pickled but not unpickled
        except Exception:  # noqa: BLE001 - its text can always be sent
            return _packed(None, PenstockError(f"{type(error).__name__}: {error}"))
        return sent


def _packed(value: Any, error: Exception | None) -> bytes:
    packed: bytes = cloudpickle.dumps((value, error))
    return packed


def _outcome(results: list[bytes]) -> list[Any]:
    found = [cloudpickle.loads(one) for one in results]
    for _, error in found:
        if error is not None:
            raise error
    return [value for value, _ in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The readers of a dataset, and which of them this process is.

    Attributes:
        rank: The number of this reader.
        size: The number of readers.
        group: The processes that agree on the plan; None without a process group, or if there is only one.
        assumed: Whether rank and size come from the environment instead of arguments.
    """

    rank: int
    size: int
    group: ProcessGroup | None = None
    assumed: bool = False


def ranks(rank: int | None, world_size: int | None, process_group: Any) -> Ranks:
    """Return the readers: from arguments, else from the process group, else from the environment of torchrun.

    Raises:
        ArgumentError: If only one of `rank` and `world_size` is given, or this process is not in the group.
    """
    if (rank is None) != (world_size is None):
        msg = (
            f"loader() got rank={rank!r} and world_size={world_size!r}; expected both, or neither. Give both, or leave "
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


def communicating_group(rank: int | None, world_size: int | None, process_group: Any) -> ProcessGroup | None:
    """Return the ranks that must hear of invalid arguments of this one; None for none.

    Raises:
        ArgumentError: If this process is not in the group.
    """
    alone = process_group is None and (rank is not None or world_size is not None)
    return _joined(process_group) if _is_initialized() and not alone else None


def check_ranks(size: int) -> None:
    """Raise if torch.distributed was initialised after the number of readers was assumed.

    Raises:
        ArgumentError: If there are more or fewer processes now.
    """
    if _is_initialized() and distributed.get_world_size() != size:
        readers = "the only reader" if size == 1 else f"one of {size} readers"
        msg = (
            f"This loader was made as {readers}, and torch.distributed has {distributed.get_world_size()} processes now; "
            "expected equal numbers, or rows would be read twice or never. Make the loader after "
            "torch.distributed.init_process_group (with Lightning: in train_dataloader), or give it rank= and world_size=."
        )
        raise ArgumentError(msg)


def _joined(group: Any) -> ProcessGroup | None:
    """Return a group that this process is in; None if no other process is."""
    if not _is_initialized():
        msg = (
            f"loader() got process_group={group!r}, and torch.distributed is not initialised. Call "
            "torch.distributed.init_process_group first, or leave the group out."
        )
        raise ArgumentError(msg)
    group = _single(group)
    try:
        here, size = distributed.get_rank(group), distributed.get_world_size(group)
    except (ValueError, TypeError) as error:
        msg = (
            f"loader() got process_group={group!r}; expected a process group of torch, or a device mesh of one dimension. "
            'Give mesh["dp"], mesh.get_group("dp"), or the result of torch.distributed.new_group.'
        )
        raise ArgumentError(msg) from error
    if here < 0:
        msg = (
            f"loader() got a process_group that process {distributed.get_rank()} is not in; expected the group of all "
            "processes that read the dataset, with this one. Make the loader in processes of the group only."
        )
        raise ArgumentError(msg)
    return ProcessGroup(group=group, rank=here, size=size) if size > 1 else None


def _single(group: Any) -> Any:
    """Return a process group; a device mesh of one dimension stands for its group."""
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
