"""`petastorm.workers_pool.process_pool`: a pool of processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any

from penstock.petastorm._impl.pickling import dumps, loads
from penstock.petastorm._impl.reexports import reexport
from penstock.petastorm.workers_pool._pool import WorkerPool

__all__ = ["ProcessPool"]

MAX_RESULTS = 50

EXIT_PRIORITY = 100
"""An executor ends at exit before the queues of multiprocessing, which it needs for that."""


class ProcessPool(WorkerPool):
    """Processes items in other processes. A reader that gets one decodes row groups in as many processes.

    Args:
        workers_count: The number of processes.
        serializer: No effect; accepted for compatibility. The rows of a reader are passed in shared memory.
        zmq_copy_buffers: No effect; accepted for compatibility. `diagnostics` repeats it.
    """

    def __init__(self, workers_count: int, serializer: Any = None, zmq_copy_buffers: bool = True) -> None:
        """Store the arguments."""
        super().__init__(workers_count, MAX_RESULTS)
        self._serializer, self.zmq_copy_buffers = serializer, bool(zmq_copy_buffers)

    @property
    def diagnostics(self) -> dict[str, Any]:
        """The numbers of items and results."""
        return {
            "items_consumed": self._taken,
            "items_produced": self._taken + self.results_qsize(),
            "items_inprocess": self._items.pending - self._items.ready,
            "zmq_copy_buffers": self.zmq_copy_buffers,
        }

    def start(self, worker_class: Any, worker_args: Any = None, ventilator: Any = None) -> None:
        """Make the workers, and wait until all processes run.

        Raises:
            RuntimeError: If the pool was started before, or a worker cannot be made.
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
        """Submit an item.

        Raises:
            RuntimeError: If all workers have failed.
        """
        if self._error is not None and self._failed == len(self._workers) and self._ventilator is None:
            msg = f"All {self._failed} workers of this ProcessPool have failed, one with {self._error!r}. Make another pool."
            raise RuntimeError(msg) from self._error
        super().ventilate(*args, **kargs)

    def _make_worker(self, worker_class: Any, number: int, publish: Callable[[Any], None], worker_args: Any) -> Any:
        return _ProcessWorker(dumps((worker_class, number, worker_args)), publish)


class _ProcessWorker:
    """A worker in another process.

    Args:
        arguments: The pickled class of the worker, its number and its argument.
        publish: Takes its results.
    """

    def __init__(self, arguments: bytes, publish: Callable[[Any], None]) -> None:
        self._publish = publish
        self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_make_worker, initargs=(arguments,))
        self._process = self._pool.submit(os.getpid)
        # A child of multiprocessing waits for its own children before Python ends the executor.
        self._end = Finalize(None, self._pool.shutdown, exitpriority=EXIT_PRIORITY)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.result()

    def wait(self) -> None:
        """Wait until the process runs."""
        self._process.result()

    def process(self, *args: Any, **kargs: Any) -> None:
        """Process an item, and publish its results."""
        for result in loads(self._pool.submit(_process, dumps((args, kargs))).result()):
            self._publish(result)

    def shutdown(self) -> None:
        """End the process."""
        self._end()


_PROCESS: dict[str, Any] = {}
"""The worker of this process, and its results."""


def _end_with_parent() -> None:
    """End this process when the process that started it has ended."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _make_worker(arguments: bytes) -> None:
    threading.Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()
    worker_class, number, worker_args = loads(arguments)
    results: list[Any] = []
    _PROCESS["results"] = results
    _PROCESS["worker"] = worker_class(number, results.append, worker_args)


def _process(item: bytes) -> bytes:
    args, kargs = loads(item)
    _PROCESS["results"].clear()
    _PROCESS["worker"].process(*args, **kargs)
    return dumps(_PROCESS["results"])


if not TYPE_CHECKING:
    __getattr__ = reexport(__name__)
