"""`petastorm.workers_pool.worker_base`: the base class of workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["WorkerBase"]


class WorkerBase:
    """The base class of workers for pools that you use without a reader.

    Args:
        worker_id: The number of the worker.
        publish_func: Takes a result.
        args: The argument of `start`.
    """

    def __init__(self, worker_id: int, publish_func: Callable[[Any], None], args: Any) -> None:
        """Store the arguments."""
        self.worker_id, self.publish_func, self.args = worker_id, publish_func, args

    def process(self, *args: Any, **kargs: Any) -> None:
        """Process an item."""

    def shutdown(self) -> None:
        """End the worker."""
