"""`petastorm.benchmark.cli`: the command that measures the throughput of a reader."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from penstock.petastorm.benchmark.throughput import ReadMethod, WorkerPoolType, reader_throughput

__all__ = ["ReadMethod", "WorkerPoolType", "main", "reader_throughput"]

DEFAULT_FRACTION = 0.8
"""The default of `--min-after-dequeue` in relation to the queue size."""

logger = logging.getLogger(__name__)


def _parse_args(args: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the throughput of a reader.")
    add = parser.add_argument
    add("dataset_path", type=str, help="the URL of a dataset of Petastorm")
    add("--field-regex", type=str, nargs="+", help="regular expressions that match the whole names of fields to read")
    add("-w", "--workers-count", type=int, default=3, help="the number of workers")
    add(
        "-p",
        "--pool-type",
        type=WorkerPoolType,
        default=WorkerPoolType.THREAD,
        choices=list(WorkerPoolType),
        help="the type of workers",
    )
    add("-m", "--warmup-cycles", type=int, default=200, help="rows that are read before the measurement")
    add("-n", "--measure-cycles", type=int, default=1000, help="rows that are measured")
    add("--profile-threads", dest="profile_threads", action="store_true", help="no effect; accepted for compatibility")
    add(
        "-d",
        "--read-method",
        type=ReadMethod,
        choices=list(ReadMethod),
        default=ReadMethod.PYTHON,
        help="'python' for next(reader), 'tf' for a graph of TensorFlow",
    )
    add("-q", "--shuffling-queue-size", type=int, default=500, required=False, help="the size of the queue of TensorFlow")
    add(
        "--min-after-dequeue",
        type=int,
        default=None,
        required=False,
        help=f"the minimum of rows in that queue; by default {DEFAULT_FRACTION:.0%} of its size".replace("%", "%%"),
    )
    add("-vv", action="store_true", default=False, help="log everything")
    add("-v", action="store_true", default=False, help="log progress")
    options = parser.parse_args(args)
    if not options.min_after_dequeue:
        options.min_after_dequeue = DEFAULT_FRACTION * options.shuffling_queue_size
    return options


def _main(args: Sequence[str]) -> None:
    logging.basicConfig()
    options = _parse_args(args)
    if options.v or options.vv:
        logging.getLogger().setLevel(logging.DEBUG if options.vv else logging.INFO)
    result = reader_throughput(
        options.dataset_path,
        options.field_regex,
        warmup_cycles_count=options.warmup_cycles,
        measure_cycles_count=options.measure_cycles,
        pool_type=options.pool_type,
        loaders_count=options.workers_count,
        profile_threads=options.profile_threads,
        read_method=options.read_method,
        shuffling_queue_size=options.shuffling_queue_size,
        min_after_dequeue=options.min_after_dequeue,
    )
    megabytes = result.memory_info.rss / 2**20
    rate = f"Average sample read rate: {result.samples_per_second:1.2f} samples/sec"
    print(f"{rate}; RAM {megabytes:1.2f} MB (rss); CPU {result.cpu:1.2f}%")  # noqa: T201 - a command


def main() -> None:
    """Run the command."""
    _main(sys.argv[1:])


if __name__ == "__main__":
    main()
