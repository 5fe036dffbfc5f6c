"""Nobody else: `petastorm.workers_pool.dummy_pool`."""

from __future__ import annotations

from typing import Any

__all__ = ["DummyPool"]


class DummyPool:
    """Row groups are worked on by whoever asks for the next row.

    Args:
        workers: Accepted as ever.
    """

    def __init__(self, workers: Any = None) -> None:
        """Store nothing that matters."""
        self.workers_count = 1
        self._workers = workers
