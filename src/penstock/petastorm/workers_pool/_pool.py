"""What pools have in common: items are worked on, and what is made of them comes in the order of the items."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from penstock.petastorm.workers_pool import EmptyResultError

__all__ = ["WorkingPool"]

GLANCE = 0.02
"""Seconds after which a ventilator is asked again whether more will come, since it does not say so itself."""

NOTHING: deque[Any] = deque(maxlen=0)
"""The results of an item that has none yet."""


class WorkingPool:
    """Threads that work on items, each with a worker of its own.

    Args:
        workers_count: How many workers.
        most: How many results may wait; None where whoever asks for results works himself.
    """

    def __init__(self, workers_count: int, most: int | None) -> None:
        """Begin without any."""
        self.workers_count, self._most = workers_count, most
        self._handed = 0
        self._threads: list[threading.Thread] = []
        self._change = threading.Condition()
        self._items: deque[tuple[int, tuple[Any, ...], dict[str, Any]]] = deque()
        self._made: dict[int, deque[Any]] = {}
        self._places: list[int] = []
        self._waiting = self._given = self._turn = 0
        self._finished: set[int] = set()
        self._error: BaseException | None = None
        self._failed = 0
        self._stopped = False
        self._ventilator: Any = None
        self._workers: list[Any] = []

    def start(self, worker_class: Any, worker_args: Any = None, ventilator: Any = None) -> None:
        """Begin to work.

        Args:
            worker_class: A class derived from `WorkerBase`.
            worker_args: What each worker is made with.
            ventilator: What gives items; without one `ventilate` does.

        Raises:
            RuntimeError: If it has begun before.
        """
        if self._workers:
            name = f"{type(self).__name__}({self.workers_count})"
            raise RuntimeError(f"{name} cannot be reused! stop_event set? {self._stopped}. Make another pool.")
        count = max(1, self.workers_count)
        self._places = [-1] * count
        self._workers = [self._worker(worker_class, number, self._publisher(number), worker_args) for number in range(count)]
        for number in range(0 if self._most is None else count):
            thread = threading.Thread(target=self._run, args=(number,), name=f"worker-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._ventilator = ventilator
        if ventilator is not None:
            ventilator.start()

    def _worker(self, worker_class: Any, number: int, publish: Callable[[Any], None], worker_args: Any) -> Any:
        """Return a worker."""
        return worker_class(number, publish, worker_args)

    def ventilate(self, *args: Any, **kargs: Any) -> None:
        """Give an item."""
        with self._change:
            self._items.append((self._given, args, kargs))
            self._made[self._given] = deque()
            self._given += 1
            self._change.notify_all()

    def get_results(self) -> Any:
        """Return what a worker has made next.

        Raises:
            EmptyResultError: If all items have been worked on, and no more will come.
        """
        while True:
            with self._change:
                if self._error is not None:
                    self._stopped = True
                    self._change.notify_all()
                    raise self._error
                made = self._made.get(self._turn, NOTHING)
                taken = [made.popleft()] if made else []
                self._waiting -= len(taken)
                self._handed += len(taken)
                passed = not made and self._turn in self._finished
                if passed:
                    self._finished.remove(self._turn)
                    del self._made[self._turn]
                    self._turn += 1
                if taken or passed:
                    self._change.notify_all()
                elif self._stopped or (self._turn == self._given and self._will_end()):
                    raise EmptyResultError("All items have been worked on.")
                elif self._threads or not self._items:
                    self._change.wait(GLANCE)
                    continue
            if passed and self._ventilator is not None:
                self._ventilator.processed_item()  # only now: an item is under way until its results were taken
            if taken:
                return taken[0]
            if not passed:
                self._work(0)

    def _will_end(self) -> bool:
        """Return whether no more items will be given."""
        return self._ventilator is None or bool(self._ventilator.completed())

    def stop(self) -> None:
        """Begin no more items; those that wait for room give up."""
        if self._ventilator is not None:
            self._ventilator.stop()
        with self._change:
            self._stopped = True
            self._change.notify_all()

    def join(self) -> None:
        """Wait until all workers have ended."""
        for thread in self._threads:
            thread.join()
        for worker in self._workers:
            worker.shutdown()

    def results_qsize(self) -> int:
        """Return how many results wait."""
        return self._waiting

    def _has_room(self) -> bool:
        """Return whether one more result may wait."""
        return self._most is None or self._waiting < self._most

    def _publisher(self, number: int) -> Callable[[Any], None]:
        """Return what a worker hands results to."""

        def publish(result: Any) -> None:
            with self._change:
                item = self._places[number]
                self._change.wait_for(lambda: self._stopped or self._has_room() or item == self._turn)
                self._made[item].append(result)
                self._waiting += 1
                self._change.notify_all()

        return publish

    def _run(self, number: int) -> None:
        """Work on items until there are none."""
        while True:
            with self._change:
                self._change.wait_for(lambda: self._stopped or self._items)
                if self._stopped:
                    return
            if not self._work(number):
                return

    def _work(self, number: int) -> bool:
        """Work on an item, if nobody else has taken it; return whether the worker can go on."""
        with self._change:
            if not self._items or self._stopped:
                return True
            item, args, kargs = self._items.popleft()
            self._places[number] = item
        try:
            self._workers[number].process(*args, **kargs)
        except Exception as error:  # noqa: BLE001 - whoever asks for results gets it
            with self._change:
                self._error = self._error or error
                self._failed += 1
                self._change.notify_all()
            return False
        with self._change:
            self._finished.add(item)
            self._change.notify_all()
        return True
