"""Threads: `petastorm.workers_pool.thread_pool`."""

from __future__ import annotations

__all__ = ["ThreadPool"]


class ThreadPool:
    """So many threads work on row groups.

    Args:
        workers_count: How many.
        results_queue_size: Accepted as ever; how much waits is bounded by its bytes.
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
        self.workers_count, self._results_queue_size = workers_count, results_queue_size
        self._profiling_enabled, self._shuffle_rows, self._seed = profiling_enabled, shuffle_rows, seed
