"""The iterator of one torch worker over its batches, with a state for loaders that save the states of workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils import data

from penstock._engine.deliver.loader import Batches
from penstock._engine.order import state as states
from penstock.dataset import Dataset
from penstock.errors import StateError
from penstock.mix import Mixture
from penstock.model import Position
from penstock.torch._tensors import Tensors, clone_views

__all__ = ["WorkerShard"]

PART = "part"
"""The extra key of states of workers: first epoch, number of workers, and the worker of the next batch."""


class WorkerShard:
    """Yields the batches, or rows, of one worker; all of them if there are no workers.

    A state has the position after the last batch, and the worker of the next. The state of an iteration that has ended
    resumes with no batches, whatever the next epoch of the dataset is.
    """

    def __init__(self, ds: Dataset | Mixture, tensors: Tensors, start: Position) -> None:
        """Store the position; nothing is read before the first `next`."""
        worker = data.get_worker_info()
        self._ds, self._tensors, self._sent = ds, tensors, worker is not None
        self._workers = 1 if worker is None else worker.num_workers
        self._begin(start, start.epoch, 0 if worker is None else worker.id)

    def _begin(self, start: Position, epoch: int, turn: int) -> None:
        table, query = self._ds._table, self._ds._query  # noqa: SLF001 - engine values of a dataset
        self._epoch, self._turn = epoch, turn
        self._batches = Batches(table, query, start, self._tensors)
        if self._sent:
            self._batches.select(turn, self._workers)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Return this iterator."""
        return self

    def __next__(self) -> dict[str, Any]:
        """Return the next batch, or row."""
        return clone_views(next(self._batches)) if self._sent else next(self._batches)

    def __len__(self) -> int:
        """Return the number of batches, or rows, of all workers."""
        return len(self._batches)

    def close(self) -> None:
        """Stop and free all memory; a further `next` ends the iteration."""
        self._batches.close()

    def state_dict(self) -> states.State:
        """Return the progress of this worker as a JSON-serializable dict."""
        turn = self._workers - 1 if self._batches.iteration.handed else self._turn
        return {**self._batches.state_dict(), PART: [self._epoch, self._workers, turn]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume where the same worker, of an equal number of workers, stopped.

        Raises:
            StateError: If the state is damaged, or was saved over another table, order, query or number of workers.
        """
        position = states.load(state, self._batches.planned.plan, self._ds._query)  # noqa: SLF001 - as above
        epoch, workers, turn = _saved(state)
        if workers != self._workers:
            msg = (
                f"The state was saved by {_worker_count(workers)}, and is loaded by "
                f"{_worker_count(self._workers)}; expected equal numbers, or rows would be lost or repeated. "
                "Give the loader as many workers as before, or use penstock.torch.loader, which needs none."
            )
            raise StateError(msg)
        self.close()
        self._begin(Position(epoch=epoch), epoch, turn)
        if self._batches.iteration.end == position.epoch:
            self._batches.iteration.finish()
            self.close()
        else:
            self._begin(position, epoch, turn)


def _saved(state: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return first epoch, number of workers and next worker of a state."""
    saved = state.get(PART)
    if isinstance(saved, list | tuple) and len(saved) == 3 and all(type(one) is int and one >= 0 for one in saved):  # noqa: PLR2004
        epoch, workers, turn = saved
        if turn < workers:
            return epoch, workers, turn
    msg = (
        f"The state has {saved!r} as {PART!r}; expected an epoch, a number of workers and a turn, as an iteration of an "
        "IterableDataset saves them. Load such a state; load the state of a loader into penstock.torch.loader(ds)."
    )
    raise StateError(msg)


def _worker_count(workers: int) -> str:
    return "one reader" if workers == 1 else f"{workers} workers"
