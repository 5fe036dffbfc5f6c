"""`petastorm.py_dict_reader_worker`: the name of the worker for rows."""

from __future__ import annotations

from penstock.petastorm import utils
from penstock.petastorm._impl.named_workers import NamedResults, NamedWorker
from penstock.petastorm.cache import NullCache
from penstock.petastorm.workers_pool import EmptyResultError
from penstock.petastorm.workers_pool.worker_base import WorkerBase

__all__ = ["EmptyResultError", "NullCache", "PyDictReaderWorker", "PyDictReaderWorkerResultsQueueReader", "WorkerBase", "utils"]


class PyDictReaderWorkerResultsQueueReader(NamedResults):
    """Says that rows are returned."""


class PyDictReaderWorker(NamedWorker):
    """The worker for rows."""

    results = PyDictReaderWorkerResultsQueueReader
