"""Workers of Petastorm that scripts name and that readers here do not need: the engine does what they did."""

from __future__ import annotations

from typing import Any, NoReturn

from penstock.petastorm.workers_pool.worker_base import WorkerBase

__all__ = ["NamedResults", "NamedWorker"]


class NamedResults:
    """Whether a worker makes batches.

    Attributes:
        batched_output: Whether it does.
    """

    batched_output = False

    def read_next(self, workers_pool: Any, schema: Any, ngram: Any) -> NoReturn:
        """Refuse: readers here take what the engine makes.

        Raises:
            NotImplementedError: Always.
        """
        del workers_pool, schema, ngram
        raise NotImplementedError(f"{type(self).__name__} reads nothing here. Use make_reader or make_batch_reader.")


class NamedWorker(WorkerBase):
    """A worker by its name: `Reader(worker_class=...)` takes it, and it says whether rows or batches come."""

    results: type[NamedResults] = NamedResults

    @classmethod
    def new_results_queue_reader(cls) -> NamedResults:
        """Return what says whether batches come."""
        return cls.results()

    def process(self, *args: Any, **kargs: Any) -> None:
        """Refuse: the engine reads row groups.

        Raises:
            NotImplementedError: Always.
        """
        del args, kargs
        raise NotImplementedError(f"{type(self).__name__} works on nothing here. Use make_reader or make_batch_reader.")

    _load_rows = _load_rows_with_predicate = _read_with_shuffle_row_drop = process
