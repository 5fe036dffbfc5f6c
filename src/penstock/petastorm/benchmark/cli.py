"""Measures how fast a reader hands out the rows of a dataset: `petastorm.benchmark.cli`."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from penstock.petastorm.benchmark.throughput import ReadMethod, WorkerPoolType, reader_throughput

__all__ = ["ReadMethod", "WorkerPoolType", "main", "reader_throughput"]

STAY = 0.8
"""The part of TensorFlow's queue that stays in it, where nobody says."""

logger = logging.getLogger(__name__)


def _parse_args(args: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure how fast a reader hands out the rows of a dataset.")
    add = parser.add_argument
    add("dataset_path", type=str, help="the URL of a dataset of Petastorm")
    add("--field-regex", type=str, nargs="+", help="regular expressions that match the whole names of fields to read")
    add("-w", "--workers-count", type=int, default=3, help="how many workers the reader has")
    add(
        "-p", "--pool-type", type=WorkerPoolType, default=WorkerPoolType.THREAD, choices=list(WorkerPoolType), help="which ones"
    )
    add("-m", "--warmup-cycles", type=int, default=200, help="rows that are read before the clock runs")
    add("-n", "--measure-cycles", type=int, default=1000, help="rows that are read while it runs")
    add("--profile-threads", dest="profile_threads", action="store_true", help="accepted as ever, and without effect")
    add(
        "-d",
        "--read-method",
        type=ReadMethod,
        choices=list(ReadMethod),
        default=ReadMethod.PYTHON,
        help="what takes rows: 'python' with next(reader), 'tf' with a graph of TensorFlow",
    )
    add("-q", "--shuffling-queue-size", type=int, default=500, required=False, help="rows in TensorFlow's queue")
    add(
        "--min-after-dequeue",
        type=int,
        default=None,
        required=False,
        help=f"rows that stay in that queue; by default {STAY:.0%} of its size".replace("%", "%%"),
    )
    add("-vv", action="store_true", default=False, help="log everything")
    add("-v", action="store_true", default=False, help="log what is done")
    found = parser.parse_args(args)
    if not found.min_after_dequeue:
        found.min_after_dequeue = STAY * found.shuffling_queue_size
    return found


def _main(args: Sequence[str]) -> None:
    logging.basicConfig()
    given = _parse_args(args)
    if given.v or given.vv:
        logging.getLogger().setLevel(logging.DEBUG if given.vv else logging.INFO)
    found = reader_throughput(
        given.dataset_path,
        given.field_regex,
        warmup_cycles_count=given.warmup_cycles,
        measure_cycles_count=given.measure_cycles,
        pool_type=given.pool_type,
        loaders_count=given.workers_count,
        profile_threads=given.profile_threads,
        read_method=given.read_method,
        shuffling_queue_size=given.shuffling_queue_size,
        min_after_dequeue=given.min_after_dequeue,
    )
    megabytes = found.memory_info.rss / 2**20
    rate = f"Average sample read rate: {found.samples_per_second:1.2f} samples/sec"
    print(f"{rate}; RAM {megabytes:1.2f} MB (rss); CPU {found.cpu:1.2f}%")  # noqa: T201 - a command


def main() -> None:
    """Run the command."""
    _main(sys.argv[1:])


if __name__ == "__main__":
    main()
