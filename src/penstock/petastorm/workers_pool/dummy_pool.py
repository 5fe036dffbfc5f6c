"""Nobody else: `petastorm.workers_pool.dummy_pool`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.petastorm._impl.reexports import passed_on
from penstock.petastorm.workers_pool._pool import WorkingPool

__all__ = ["DummyPool"]


class DummyPool(WorkingPool):
    """Row groups, or the items of whoever drives it himself, are worked on by whoever asks for the next result.

    Args:
        workers: Accepted as ever.
    """

    def __init__(self, workers: Any = None) -> None:  # noqa: ARG002 - there is one
        """Store nothing that matters."""
        super().__init__(1, None)

    @property
    def diagnostics(self) -> dict[str, Any]:
        """What is going on: nothing."""
        return {}


if not TYPE_CHECKING:
    __getattr__ = passed_on(__name__)
