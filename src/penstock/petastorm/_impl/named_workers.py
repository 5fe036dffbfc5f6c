"""Worker classes of Petastorm that scripts refer to by name. The engine does their work."""

from __future__ import annotations

from typing import Any, NoReturn

from penstock.petastorm.workers_pool.worker_base import WorkerBase

__all__ = ["NamedResults", "NamedWorker"]


class NamedResults:
    """Says whether a worker makes rows or batches."""

    batched_output = False

    def read_next(self, workers_pool: Any, schema: Any, ngram: Any) -> NoReturn:
        """Raise an error: readers take their results from the engine.

        Raises:
            NotImplementedError: Always.
        """
        del workers_pool, schema, ngram
        raise NotImplementedError(f"{type(self).__name__} reads nothing here. Use make_reader or make_batch_reader.")


class NamedWorker(WorkerBase):
    """A worker class for `Reader(worker_class=...)`, which decides whether rows or batches are returned."""

    results: type[NamedResults] = NamedResults

    @classmethod
    def new_results_queue_reader(cls) -> NamedResults:
        """Return the class that says whether batches are made."""
        return cls.results()

    def process(self, *args: Any, **kargs: Any) -> None:
        """Raise an error: the engine reads row groups.

        Raises:
            NotImplementedError: Always.
        """
        del args, kargs
        raise NotImplementedError(f"{type(self).__name__} works on nothing here. Use make_reader or make_batch_reader.")

    _load_rows = _load_rows_with_predicate = _read_with_shuffle_row_drop = process
