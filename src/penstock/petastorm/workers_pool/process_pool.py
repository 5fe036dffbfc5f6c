"""Processes: `petastorm.workers_pool.process_pool`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any

from penstock.petastorm._impl.pickling import packed, unpacked
from penstock.petastorm._impl.reexports import passed_on
from penstock.petastorm.workers_pool._pool import WorkingPool

__all__ = ["ProcessPool"]

RESULTS = 50
"""How many results wait at most."""

BEFORE_QUEUES = 100
"""When an executor that nobody has ended is ended at exit: before the queues of multiprocessing, which it needs for it."""


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

    def start(self, worker_class: Any, worker_args: Any = None, ventilator: Any = None) -> None:
        """Begin to work, when all processes are there.

        Raises:
            RuntimeError: If it has begun before, or a worker cannot be made.
        """
        super().start(worker_class, worker_args)
        try:
            for worker in self._workers:
                worker.wait()
        except BrokenExecutor:
            self.stop()
            self.join()
            raise
        if ventilator is not None:
            self._ventilator = ventilator
            ventilator.start()

    def ventilate(self, *args: Any, **kargs: Any) -> None:
        """Give an item.

        Raises:
            RuntimeError: If all workers have failed, so that nobody would work on it.
        """
        if self._error is not None and self._failed == len(self._workers) and self._ventilator is None:
            msg = f"All {self._failed} workers of this ProcessPool have failed, one with {self._error!r}. Make another pool."
            raise RuntimeError(msg) from self._error
        super().ventilate(*args, **kargs)

    def _worker(self, worker_class: Any, number: int, publish: Callable[[Any], None], worker_args: Any) -> Any:
        return _Remote(packed((worker_class, number, worker_args)), publish)


class _Remote:
    """A worker in another process, and the thread's end of it."""

    def __init__(self, made: bytes, publish: Callable[[Any], None]) -> None:
        self._publish = publish
        self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_make, initargs=(made,))
        self._process = self._pool.submit(os.getpid)
        # A child of multiprocessing waits for its own children before Python would end the executor.
        self._end = Finalize(None, self._pool.shutdown, exitpriority=BEFORE_QUEUES)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.result()

    def wait(self) -> None:
        """Wait until the process is there."""
        self._process.result()

    def process(self, *args: Any, **kargs: Any) -> None:
        """Have an item worked on, and hand on what is made of it."""
        for result in unpacked(self._pool.submit(_process, packed((args, kargs))).result()):
            self._publish(result)

    def shutdown(self) -> None:
        """End the process."""
        self._end()


_HERE: dict[str, Any] = {}
"""The worker of this process, and what it has made."""


def _end_with_parent() -> None:
    """End this process when the one that started it has ended, however it did."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _make(made: bytes) -> None:
    threading.Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()
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
