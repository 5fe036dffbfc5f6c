"""Processes: `petastorm.workers_pool.process_pool`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from penstock.petastorm._carry import packed, unpacked
from penstock.petastorm._passed_on import passed_on
from penstock.petastorm.workers_pool._pool import WorkingPool

__all__ = ["ProcessPool"]

RESULTS = 50
"""How many results wait at most."""


class ProcessPool(WorkingPool):
    """So many other processes work on row groups, or on the items of whoever drives it himself.

    Args:
        workers_count: How many.
        serializer: Accepted as ever; rows of a reader cross in shared memory, and are not pickled.
        zmq_copy_buffers: Accepted as ever; `diagnostics` repeats it.
    """

    def __init__(self, workers_count: int, serializer: Any = None, zmq_copy_buffers: bool = True) -> None:
        """Store how many."""
        super().__init__(workers_count, RESULTS)
        self._serializer, self.zmq_copy_buffers = serializer, bool(zmq_copy_buffers)

    @property
    def diagnostics(self) -> dict[str, Any]:
        """What is going on, where nobody else drives it."""
        return {
            "items_consumed": self._handed,
            "items_produced": self._handed + self.results_qsize(),
            "items_inprocess": self._given - self._turn - len(self._finished),
            "zmq_copy_buffers": self.zmq_copy_buffers,
        }

    def _worker(self, worker_class: Any, number: int, publish: Callable[[Any], None], worker_args: Any) -> Any:
        return _Remote(packed((worker_class, number, worker_args)), publish)


class _Remote:
    """A worker in another process, and the thread's end of it."""

    def __init__(self, made: bytes, publish: Callable[[Any], None]) -> None:
        self._publish = publish
        self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_make, initargs=(made,))

    def process(self, *args: Any, **kargs: Any) -> None:
        """Have an item worked on, and hand on what is made of it."""
        for result in unpacked(self._pool.submit(_process, packed((args, kargs))).result()):
            self._publish(result)

    def shutdown(self) -> None:
        """End the process."""
        self._pool.shutdown()


_HERE: dict[str, Any] = {}
"""The worker of this process, and what it has made."""


def _make(made: bytes) -> None:
    worker_class, number, worker_args = unpacked(made)
    results: list[Any] = []
    _HERE["results"] = results
    _HERE["worker"] = worker_class(number, results.append, worker_args)


def _process(item: bytes) -> bytes:
    args, kargs = unpacked(item)
    _HERE["results"].clear()
    _HERE["worker"].process(*args, **kargs)
    return packed(_HERE["results"])


if not TYPE_CHECKING:
    __getattr__ = passed_on(__name__)
