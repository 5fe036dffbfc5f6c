"""`petastorm.workers_pool.ventilator`: threads that submit items to a pool. Readers of Penstock do not use them."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["ConcurrentVentilator", "Ventilator"]


class Ventilator(ABC):
    """The base class of ventilators.

    Args:
        ventilate_fn: Submits an item: `ventilate` of a pool.
    """

    def __init__(self, ventilate_fn: Callable[..., None]) -> None:
        """Store the function."""
        self._ventilate_fn = ventilate_fn

    @abstractmethod
    def start(self) -> None:
        """Begin to submit items."""

    @abstractmethod
    def processed_item(self) -> None:
        """Count an item whose results were taken."""

    @abstractmethod
    def completed(self) -> bool:
        """Return whether no more items will be submitted."""

    @abstractmethod
    def stop(self) -> None:
        """Submit no more items."""


class ConcurrentVentilator(Ventilator):
    """Submits items on a thread of its own, a limited number at a time.

    Args:
        ventilate_fn: Submits an item; it gets the keywords of the item.
        items_to_ventilate: The items: dicts of keywords.
        iterations: How often all items are submitted; None for endless.
        randomize_item_order: Whether the items are shuffled, anew in each iteration.
        random_seed: Decides the order; 0 is a seed. Random by default.
        max_ventilation_queue_size: Items that may be under way; by default those of one iteration.
        ventilation_interval: No effect; accepted for compatibility.

    Raises:
        ValueError: If the items or the iterations are invalid.
    """

    def __init__(
        self,
        ventilate_fn: Callable[..., None],
        items_to_ventilate: Any,
        iterations: Any = 1,
        randomize_item_order: bool = False,
        random_seed: int | None = None,
        max_ventilation_queue_size: int | None = None,
        ventilation_interval: float = 0.01,  # noqa: ARG002 - nothing waits for a time
    ) -> None:
        """Store the items."""
        super().__init__(ventilate_fn)
        if iterations is not None and (not isinstance(iterations, int) or iterations < 1):
            raise ValueError(f"iterations must be positive integer or None, and is {iterations!r}.")
        if not isinstance(items_to_ventilate, list) or not all(isinstance(item, dict) for item in items_to_ventilate):
            raise ValueError("items_to_ventilate must be a list of dicts. Give one.")
        self._items, self._iterations, self._left = items_to_ventilate, iterations, iterations
        self._random = np.random.default_rng(random_seed) if randomize_item_order else None
        self._max_under_way = max_ventilation_queue_size or len(items_to_ventilate)
        self._change = threading.Condition()
        self._ventilated_items_count = self._processed_items_count = 0
        self._stopped = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to submit items."""
        self._thread = threading.Thread(target=self._run, name="ventilator", daemon=True)
        self._thread.start()

    def processed_item(self) -> None:
        """Count an item whose results were taken."""
        with self._change:
            self._processed_items_count += 1
            self._change.notify_all()

    def completed(self) -> bool:
        """Return whether no more items will be submitted."""
        return self._stopped or self._left == 0 or not self._items

    def reset(self) -> None:
        """Submit all items again.

        Raises:
            NotImplementedError: If not all were submitted yet.
        """
        if not self.completed():
            raise NotImplementedError("Reseting ventilator while ventilating is not supported. Wait until it has completed.")
        self._left = self._iterations
        self.start()

    def stop(self) -> None:
        """Submit no more items, and wait for the thread."""
        with self._change:
            self._stopped = True
            self._change.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _items_under_way(self) -> int:
        return self._ventilated_items_count - self._processed_items_count

    def _run(self) -> None:
        while not self.completed():
            order = range(len(self._items)) if self._random is None else self._random.permutation(len(self._items))
            for number in order:
                with self._change:
                    self._change.wait_for(lambda: self._stopped or self._items_under_way() < self._max_under_way)
                    if self._stopped:
                        return
                    self._ventilated_items_count += 1
                self._ventilate_fn(**self._items[int(number)])
            if self._left is not None:
                self._left -= 1
