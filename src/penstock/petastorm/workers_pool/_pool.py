"""The base of all pools: workers process items, and results are returned in the order of the items."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from penstock._engine.runtime.ordered_map import OrderedMap
from penstock._engine.runtime.threads import Priority, ThreadPool
from penstock.petastorm.workers_pool import EmptyResultError

__all__ = ["WorkerPool"]

POLL_SECONDS = 0.02
"""How often a ventilator is asked whether it has completed; it sends no notification."""


class WorkerPool:
    """Workers that process items on threads.

    Args:
        workers_count: The number of workers, and of threads.
        max_results: Results that may wait; None for no threads: each item is processed by the call that takes its results.
    """

    def __init__(self, workers_count: int, max_results: int | None) -> None:
        """Store the bounds; threads start with the first items."""
        self.workers_count, self._max_results = workers_count, max_results
        self._threads = None if max_results is None else ThreadPool(max(1, workers_count))
        self._items = OrderedMap[deque[Any]](self._threads)
        self._results: deque[Any] | None = None
        self._workers: list[Any] = []
        self._idle: list[int] = []
        self._processed: dict[int, tuple[int, deque[Any]]] = {}
        self._change = threading.Condition()
        self._submitted = self._turn = self._waiting = self._taken = self._failed = 0
        self._error: BaseException | None = None
        self._stopped = self._has_raised = False
        self._ventilator: Any = None

    def start(self, worker_class: Any, worker_args: Any = None, ventilator: Any = None) -> None:
        """Make the workers.

        Args:
            worker_class: A class derived from `WorkerBase`.
            worker_args: The last argument of its constructor.
            ventilator: Submits items; without one, call `ventilate`.

        Raises:
            RuntimeError: If the pool was started before.
        """
        if self._workers:
            name = f"{type(self).__name__}({self.workers_count})"
            raise RuntimeError(f"{name} cannot be reused! stop_event set? {self._stopped}. Make another pool.")
        self._idle = list(range(max(1, self.workers_count)))
        self._workers = [self._make_worker(worker_class, at, partial(self._publish, at), worker_args) for at in self._idle]
        self._ventilator = ventilator
        if ventilator is not None:
            ventilator.start()

    def _make_worker(self, worker_class: Any, number: int, publish: Callable[[Any], None], worker_args: Any) -> Any:
        return worker_class(number, publish, worker_args)

    def ventilate(self, *args: Any, **kargs: Any) -> None:
        """Submit an item."""
        with self._change:
            self._items.submit(Priority.READ, partial(self._process, self._submitted, args, kargs))
            self._submitted += 1
            self._change.notify_all()

    def get_results(self) -> Any:
        """Return the next result of a worker.

        Raises:
            EmptyResultError: If there is none, and no more items are submitted.
        """
        while True:
            if self._results is None:
                self._results = self._next_item()
            with self._change:
                if self._results:
                    self._waiting -= 1
                    self._taken += 1
                    self._change.notify_all()
                    return self._results.popleft()
                self._results = None
                self._turn += 1
                self._change.notify_all()
            if self._ventilator is not None:
                self._ventilator.processed_item()  # not before: an item is under way until its results are taken

    def _next_item(self) -> deque[Any]:
        """Return the results of the next item, waiting for it."""
        while not self._has_raised:
            with self._change:
                if self._stopped and not self._items.has_result:
                    break
                if not self._items.pending:
                    if self._ventilator is None or self._ventilator.completed():
                        break
                    self._change.wait(POLL_SECONDS)
                    continue
            try:
                return self._items.next()
            except StopIteration:  # the pool was stopped
                break
            except Exception:  # noqa: BLE001 - raised below
                with self._change:
                    self._has_raised = self._stopped = True
                    self._change.notify_all()
        if self._has_raised and self._error is not None:
            raise self._error
        raise EmptyResultError("All items have been worked on.")

    def stop(self) -> None:
        """Begin no more items; workers that wait to publish a result go on."""
        if self._ventilator is not None:
            self._ventilator.stop()
        with self._change:
            self._stopped = True
            self._change.notify_all()
        if self._threads is not None:
            self._threads.close(0.0)

    def join(self) -> None:
        """Wait until all workers have ended."""
        if self._threads is not None:
            self._threads.join(threading.TIMEOUT_MAX)
        for worker in self._workers:
            worker.shutdown()

    def results_qsize(self) -> int:
        """Return the number of results that wait."""
        return self._waiting

    def _publish(self, worker: int, result: Any) -> None:
        """Add a result to those of the worker's item; wait while there are too many, unless it is the item's turn."""
        item, results = self._processed[worker]
        with self._change:
            self._change.wait_for(lambda: self._stopped or self._has_capacity() or item == self._turn)
            results.append(result)
            self._waiting += 1

    def _has_capacity(self) -> bool:
        return self._max_results is None or self._waiting < self._max_results

    def _process(self, item: int, args: tuple[Any, ...], kargs: dict[str, Any]) -> deque[Any]:
        """Return the results of an item; a worker that fails processes no more items."""
        with self._change:
            if self._error is not None and not self._idle:
                raise self._error
            worker, results = self._idle.pop(), deque[Any]()
            self._processed[worker] = (item, results)
        try:
            self._workers[worker].process(*args, **kargs)
        except Exception as error:
            with self._change:
                self._error = self._error or error
                self._failed += 1
            raise
        with self._change:
            self._idle.append(worker)
        return results
