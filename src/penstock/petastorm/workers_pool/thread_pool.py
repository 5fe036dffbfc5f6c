"""Threads: `petastorm.workers_pool.thread_pool`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.petastorm._impl.reexports import passed_on
from penstock.petastorm.workers_pool._pool import WorkingPool

__all__ = ["ThreadPool", "WorkerTerminationRequested"]

RESULTS_OF_A_WORKER = 5


class WorkerTerminationRequested(Exception):  # noqa: N818 - Petastorm's name
    """A worker is to end; pools here end theirs without it."""


class ThreadPool(WorkingPool):
    """So many threads work on row groups, or on the items of whoever drives it himself.

    Args:
        workers_count: How many.
        results_queue_size: How many results wait at most, but five of each worker may; a reader bounds them by bytes.
        profiling_enabled: Accepted as ever.
        shuffle_rows: Accepted as ever.
        seed: Accepted as ever.
    """

    def __init__(
        self,
        workers_count: int,
        results_queue_size: int = 50,
        profiling_enabled: bool = False,
        shuffle_rows: bool = False,
        seed: int | None = None,
    ) -> None:
        """Store how many."""
        workers = max(1, workers_count)
        super().__init__(workers_count, workers * max(RESULTS_OF_A_WORKER, results_queue_size // workers))
        self._results_queue_size = results_queue_size
        self._profiling_enabled, self._shuffle_rows, self._seed = profiling_enabled, shuffle_rows, seed

    @property
    def diagnostics(self) -> dict[str, Any]:
        """What is going on, where nobody else drives it."""
        return {"output_queue_size": self.results_qsize()}


if not TYPE_CHECKING:
    __getattr__ = passed_on(__name__)
