"""`petastorm.arrow_reader_worker`: the name of the worker for batches."""

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
    """Return the columns of a table as in batches: text as arrays of text, lists of one length as a matrix.

    Raises:
        RuntimeError: If lists of a column differ in length.
    """
    columns = zip(result_table.column_names, result_table.columns, strict=True)
    return {name: batch_column(name, one_array(column), schema.fields[name].shape) for name, column in columns}


class ArrowReaderWorkerResultsQueueReader(NamedResults):
    """Says that batches are returned."""

    batched_output = True


class ArrowReaderWorker(NamedWorker):
    """The worker for batches."""

    results = ArrowReaderWorkerResultsQueueReader

    @staticmethod
    def _check_shape_and_ravel(x: Any, field: Any) -> npt.NDArray[Any]:
        """Return a cell in one dimension; it must have the shape of its field."""
        check_cell(field.name, x, field.shape)
        flat: npt.NDArray[Any] = x.ravel()
        return flat
