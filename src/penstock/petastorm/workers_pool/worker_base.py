"""What workers have in common: `petastorm.workers_pool.worker_base`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["WorkerBase"]


class WorkerBase:
    """Derive from it for a worker of your own; readers here have theirs, and take no others.

    Args:
        worker_id: Its number.
        publish_func: What it hands results to.
        args: Whatever else it needs.
    """

    def __init__(self, worker_id: int, publish_func: Callable[[Any], None], args: Any) -> None:
        """Store them."""
        self.worker_id, self.publish_func, self.args = worker_id, publish_func, args

    def process(self, *args: Any, **kargs: Any) -> None:
        """Work on an item."""

    def shutdown(self) -> None:
        """End."""
