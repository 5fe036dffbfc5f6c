"""The protocol by which ranks share one snapshot, plan and query."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

__all__ = ["Group"]

Result = TypeVar("Result")


class Group(Protocol):
    """A group of ranks, which all make the same calls in the same order.

    An error on one rank is raised on all, so no rank waits forever.
    """

    @property
    def rank(self) -> int:
        """The number of this rank."""
        ...

    @property
    def size(self) -> int:
        """The number of ranks."""
        ...

    def share(self, compute: Callable[[], Result], /) -> Result:
        """Return on every rank the result of the function on rank 0; other ranks do not call it."""
        ...

    def gather(self, compute: Callable[[], Result], /) -> list[Result]:
        """Return on every rank the results of the function on each rank."""
        ...
