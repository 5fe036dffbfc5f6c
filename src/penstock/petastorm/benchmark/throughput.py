"""`petastorm.benchmark.throughput`: the throughput of a reader."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.petastorm._impl.process_usage import Memory, memory_usage
from penstock.petastorm._impl.reexports import reexport
from penstock.petastorm.etl.dataset_metadata import get_schema_from_dataset_url
from penstock.petastorm.reader import make_reader
from penstock.petastorm.tf_utils import tf_tensors
from penstock.petastorm.unischema import match_unischema_fields
from penstock.petastorm.utils import run_in_subprocess

__all__ = ["BenchmarkResult", "ReadMethod", "WorkerPoolType", "reader_throughput"]

REPORT_SECONDS = 1.0

logger = logging.getLogger(__name__)


class BenchmarkResult(NamedTuple):
    """The result of a measurement.

    Attributes:
        time_mean: Seconds per row.
        samples_per_second: Rows per second.
        memory_info: The memory of the process in bytes.
        cpu: The CPU usage of the process in percent of one processor.
    """

    time_mean: float
    samples_per_second: float
    memory_info: Memory
    cpu: float


class WorkerPoolType(Enum):
    """The types of pools."""

    THREAD = "thread"
    PROCESS = "process"
    NONE = "dummy"

    def __str__(self) -> str:
        """Return the name of the type in `make_reader`."""
        return self.value


class ReadMethod(Enum):
    """How rows are read: by `next(reader)`, or by a graph of TensorFlow."""

    TF = "tf"
    PYTHON = "python"

    def __str__(self) -> str:
        """Return the name of the method in the command."""
        return self.value


def reader_throughput(
    dataset_url: str,
    field_regex: Any = None,
    warmup_cycles_count: int = 300,
    measure_cycles_count: int = 1000,
    pool_type: WorkerPoolType = WorkerPoolType.THREAD,
    loaders_count: int = 3,
    profile_threads: bool = False,
    read_method: ReadMethod = ReadMethod.PYTHON,
    shuffling_queue_size: int = 500,
    min_after_dequeue: float = 400,
    reader_extra_args: Mapping[str, Any] | None = None,
    spawn_new_process: bool = True,
) -> BenchmarkResult:
    """Return the throughput of a reader.

    Args:
        dataset_url: The dataset.
        field_regex: Regular expressions that match the whole names of fields; by default all fields are read.
        warmup_cycles_count: Rows that are read before the measurement.
        measure_cycles_count: Rows that are measured.
        pool_type: The type of the pool.
        loaders_count: The number of workers.
        profile_threads: No effect; accepted for compatibility.
        read_method: How rows are read.
        shuffling_queue_size: The size of the queue of TensorFlow.
        min_after_dequeue: The minimum of rows in the queue of TensorFlow.
        reader_extra_args: More arguments of `make_reader`.
        spawn_new_process: Whether to measure in a new process, whose memory is that of the reader alone.

    Raises:
        MissingExtraError: If rows are read by TensorFlow, which is not supported yet.
        ValueError: If no row is measured, or no field matches.
    """
    _check_counts(warmup_cycles_count, measure_cycles_count)
    if spawn_new_process:
        return run_in_subprocess(reader_throughput, **{**locals(), "spawn_new_process": False})  # type: ignore[no-any-return]
    extra = dict(reader_extra_args or {})
    if read_method is ReadMethod.TF:
        tf_tensors(None, shuffling_queue_size, int(min_after_dequeue))
    if "schema_fields" not in extra:
        extra["schema_fields"] = _matching_fields(dataset_url, field_regex)
    logger.info("Fields that are read: %s", extra["schema_fields"])
    extra |= {"reader_pool_type": str(pool_type), "workers_count": loaders_count, "num_epochs": None}
    with make_reader(dataset_url, **extra) as reader:
        return _time_warmup_and_work(reader, warmup_cycles_count, measure_cycles_count)


def _check_counts(warmup: int, measured: int) -> None:
    """Check that a row is measured."""
    if measured < 1 or warmup < 0:
        raise ValueError(f"{warmup} rows to warm up and {measured} to measure were asked for. Measure one or more.")


def _matching_fields(dataset_url: str, field_regex: Any) -> Any:
    """Return the fields that are read."""
    fields = match_unischema_fields(get_schema_from_dataset_url(dataset_url), field_regex)
    if field_regex and not fields:
        raise ValueError(f"No field of {dataset_url} matches {field_regex!r}. Give names of its fields, or leave it out.")
    return fields


def _time_warmup_and_work(
    reader: Any, warmup_cycles_count: int, measure_cycles_count: int, do_work_func: Callable[[], Any] | None = None
) -> BenchmarkResult:
    """Return the throughput of a reader, or of a function that reads a row, after a warm-up."""
    work = do_work_func or (lambda: next(reader))
    _time_multiple_iterations(warmup_cycles_count, work, lambda: reader.diagnostics)
    used = time.process_time()
    seconds = _time_multiple_iterations(measure_cycles_count, work, lambda: reader.diagnostics)
    used = time.process_time() - used
    mean = seconds / measure_cycles_count
    result = BenchmarkResult(
        time_mean=mean, samples_per_second=1.0 / mean, memory_info=memory_usage(), cpu=100.0 * used / seconds
    )
    logger.info("Measured: %s", result)
    return result


def _time_multiple_iterations(
    iterations: int, work_func: Callable[[], Any], diags_info_func: Callable[[], Any], report_period: float = REPORT_SECONDS
) -> float:
    """Return the seconds that a number of calls takes; log the progress."""
    start = reported = time.perf_counter()
    before = 0
    for done in range(1, iterations + 1):
        work_func()
        now = time.perf_counter()
        if now - reported > report_period:
            rates = (done - before) / (now - reported), done / (now - start)
            logger.debug("%.2f (mean: %.2f) iterations/sec. %s", *rates, diags_info_func())
            reported, before = now, done
    return max(time.perf_counter() - start, 1e-9)


if not TYPE_CHECKING:
    __getattr__ = reexport(__name__)
