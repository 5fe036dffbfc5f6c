"""Ranks that can talk to each other agree: on one snapshot, one plan and one question."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

__all__ = ["Group"]

Told = TypeVar("Told")


class Group(Protocol):
    """Ranks that work together. Every rank makes the same calls in the same order.

    What goes wrong on one rank is raised on all, so that none is left waiting.
    """

    @property
    def rank(self) -> int:
        """Which of the ranks this is."""
        ...

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    def share(self, told: Callable[[], Told]) -> Told:
        """Return, on every rank, what the function returns on rank 0; elsewhere it is not called."""
        ...

    def gather(self, told: Callable[[], Told]) -> list[Told]:
        """Return, on every rank, what the function returns on each."""
        ...
