"""What gives items to a pool: `petastorm.workers_pool.ventilator`. Readers here do not need it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["ConcurrentVentilator", "Ventilator"]


class Ventilator(ABC):
    """What ventilators have in common; derive from it for one of your own.

    Args:
        ventilate_fn: What takes an item: `ventilate` of a pool.
    """

    def __init__(self, ventilate_fn: Callable[..., None]) -> None:
        """Store what takes items."""
        self._ventilate_fn = ventilate_fn

    @abstractmethod
    def start(self) -> None:
        """Begin to give items."""

    @abstractmethod
    def processed_item(self) -> None:
        """Be told that an item has been worked on."""

    @abstractmethod
    def completed(self) -> bool:
        """Return whether no more items will come."""

    @abstractmethod
    def stop(self) -> None:
        """Give no more items."""


class ConcurrentVentilator(Ventilator):
    """Gives items on a thread of its own, no more at a time than were asked for.

    Args:
        ventilate_fn: What takes an item, by keywords.
        items_to_ventilate: The items, each a dict of those keywords.
        iterations: How often all of them are given; None for without end.
        randomize_item_order: Whether they come in another order each time.
        random_seed: Decides the order; 0 is a seed. By default it is another each time.
        max_ventilation_queue_size: How many may be under way; by default all of one time.
        ventilation_interval: Accepted as ever: nothing is waited for by the clock.

    Raises:
        ValueError: If the items or their number of times cannot be meant.
    """

    def __init__(
        self,
        ventilate_fn: Callable[..., None],
        items_to_ventilate: Any,
        iterations: Any = 1,
        randomize_item_order: bool = False,
        random_seed: int | None = None,
        max_ventilation_queue_size: int | None = None,
        ventilation_interval: float = 0.01,  # noqa: ARG002 - nobody looks at the clock
    ) -> None:
        """Store the items."""
        super().__init__(ventilate_fn)
        if iterations is not None and (not isinstance(iterations, int) or iterations < 1):
            raise ValueError(f"iterations must be positive integer or None, and is {iterations!r}.")
        if not isinstance(items_to_ventilate, list) or not all(isinstance(item, dict) for item in items_to_ventilate):
            raise ValueError("items_to_ventilate must be a list of dicts. Give one.")
        self._items, self._iterations, self._left = items_to_ventilate, iterations, iterations
        self._random = np.random.default_rng(random_seed) if randomize_item_order else None
        self._most = max_ventilation_queue_size or len(items_to_ventilate)
        self._change = threading.Condition()
        self._ventilated_items_count = self._processed_items_count = 0
        self._stopped = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to give items."""
        self._thread = threading.Thread(target=self._run, name="ventilator", daemon=True)
        self._thread.start()

    def processed_item(self) -> None:
        """Be told that an item has been worked on."""
        with self._change:
            self._processed_items_count += 1
            self._change.notify_all()

    def completed(self) -> bool:
        """Return whether no more items will come."""
        return self._stopped or self._left == 0 or not self._items

    def reset(self) -> None:
        """Give all items again.

        Raises:
            NotImplementedError: If not all were given yet.
        """
        if not self.completed():
            raise NotImplementedError("Reseting ventilator while ventilating is not supported. Wait until it has completed.")
        self._left = self._iterations
        self.start()

    def stop(self) -> None:
        """Give no more items, and wait for the thread."""
        with self._change:
            self._stopped = True
            self._change.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _under_way(self) -> int:
        """Return how many items are being worked on, or wait for it."""
        return self._ventilated_items_count - self._processed_items_count

    def _run(self) -> None:
        """Give the items."""
        while not self.completed():
            order = range(len(self._items)) if self._random is None else self._random.permutation(len(self._items))
            for number in order:
                with self._change:
                    self._change.wait_for(lambda: self._stopped or self._under_way() < self._most)
                    if self._stopped:
                        return
                    self._ventilated_items_count += 1
                self._ventilate_fn(**self._items[int(number)])
            if self._left is not None:
                self._left -= 1
