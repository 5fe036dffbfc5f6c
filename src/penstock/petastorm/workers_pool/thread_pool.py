"""`petastorm.workers_pool.thread_pool`: a pool of threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.petastorm._impl.reexports import reexport
from penstock.petastorm.workers_pool._pool import WorkerPool

__all__ = ["ThreadPool", "WorkerTerminationRequested"]

MIN_RESULTS_PER_WORKER = 5


class WorkerTerminationRequested(Exception):  # noqa: N818 - Petastorm's name
    """A worker must end; Penstock does not raise it."""


class ThreadPool(WorkerPool):
    """Processes items on threads. A reader that gets one decodes row groups on as many threads.

    Args:
        workers_count: The number of threads.
        results_queue_size: Results that may wait, at least five per worker; readers bound them by bytes instead.
        profiling_enabled: No effect; accepted for compatibility.
        shuffle_rows: No effect; accepted for compatibility.
        seed: No effect; accepted for compatibility.
    """

    def __init__(
        self,
        workers_count: int,
        results_queue_size: int = 50,
        profiling_enabled: bool = False,
        shuffle_rows: bool = False,
        seed: int | None = None,
    ) -> None:
        """Store the arguments."""
        workers = max(1, workers_count)
        super().__init__(workers_count, workers * max(MIN_RESULTS_PER_WORKER, results_queue_size // workers))
        self._results_queue_size = results_queue_size
        self._profiling_enabled, self._shuffle_rows, self._seed = profiling_enabled, shuffle_rows, seed

    @property
    def diagnostics(self) -> dict[str, Any]:
        """The number of results that wait."""
        return {"output_queue_size": self.results_qsize()}


if not TYPE_CHECKING:
    __getattr__ = reexport(__name__)
