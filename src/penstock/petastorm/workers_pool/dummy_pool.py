"""`petastorm.workers_pool.dummy_pool`: no threads and no processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.petastorm._impl.reexports import reexport
from penstock.petastorm.workers_pool._pool import WorkerPool

__all__ = ["DummyPool"]


class DummyPool(WorkerPool):
    """Processes each item in the call that takes its results.

    Args:
        workers: No effect; accepted for compatibility.
    """

    def __init__(self, workers: Any = None) -> None:  # noqa: ARG002 - there is one
        """Make a pool with one worker."""
        super().__init__(1, None)

    @property
    def diagnostics(self) -> dict[str, Any]:
        """Nothing: no result waits."""
        return {}


if not TYPE_CHECKING:
    __getattr__ = reexport(__name__)
