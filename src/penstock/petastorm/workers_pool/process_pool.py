"""Processes: `petastorm.workers_pool.process_pool`."""

from __future__ import annotations

from typing import Any

__all__ = ["ProcessPool"]


class ProcessPool:
    """So many other processes work on row groups.

    Args:
        workers_count: How many.
        serializer: Accepted as ever; rows cross in shared memory, and are not pickled.
        zmq_copy_buffers: Accepted as ever.
    """

    def __init__(self, workers_count: int, serializer: Any = None, zmq_copy_buffers: bool = True) -> None:
        """Store how many."""
        self.workers_count, self._serializer, self._zmq_copy_buffers = workers_count, serializer, zmq_copy_buffers
