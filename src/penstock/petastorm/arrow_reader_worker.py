"""The worker that made batches: `petastorm.arrow_reader_worker`."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import pyarrow as pa

from penstock._engine.decode.concat import one_array
from penstock.petastorm._impl.conversions import batch_column, check_cell
from penstock.petastorm._impl.named_workers import NamedResults, NamedWorker
from penstock.petastorm.cache import NullCache
from penstock.petastorm.local_disk_cache import LocalDiskCache
from penstock.petastorm.workers_pool import EmptyResultError
from penstock.petastorm.workers_pool.worker_base import WorkerBase

__all__ = [
    "ArrowReaderWorker",
    "ArrowReaderWorkerResultsQueueReader",
    "EmptyResultError",
    "LocalDiskCache",
    "NullCache",
    "WorkerBase",
    "convert_arrow_table_to_numpy_dict",
]


def convert_arrow_table_to_numpy_dict(result_table: pa.Table, schema: Any) -> dict[str, Any]:
    """Return the columns of a table as batches have them: text as arrays of text, lists of one length as a matrix.

    Raises:
        RuntimeError: If lists of a column differ in length.
    """
    found = {}
    for name, column in zip(result_table.column_names, result_table.columns, strict=True):
        whole = one_array(column)
        found[name] = batch_column(name, whole, schema.fields[name].shape)
    return found


class ArrowReaderWorkerResultsQueueReader(NamedResults):
    """Says that batches come."""

    batched_output = True


class ArrowReaderWorker(NamedWorker):
    """The worker that made batches, by its name."""

    results = ArrowReaderWorkerResultsQueueReader

    @staticmethod
    def _check_shape_and_ravel(x: Any, field: Any) -> npt.NDArray[Any]:
        """Return the values of a cell in one dimension, if it has the shape of its field."""
        check_cell(field.name, x, field.shape)
        flat: npt.NDArray[Any] = x.ravel()
        return flat
