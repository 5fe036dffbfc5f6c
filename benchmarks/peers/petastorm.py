"""Petastorm: its own dataset of images, written with Spark, read by its pool of threads or processes."""

# mypy: disable-error-code="import-not-found"
# The peer is installed in an interpreter of its own.

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from petastorm import make_reader
from petastorm.codecs import CompressedImageCodec, ScalarCodec
from petastorm.etl.dataset_metadata import materialize_dataset
from petastorm.pytorch import DataLoader
from petastorm.unischema import Unischema, UnischemaField
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType

from benchmarks.peers import turns

BATCH = 64
QUEUE = 1_000
GROUP_MB = 3
SCHEMA: Any = Unischema(
    "Photos",
    [
        UnischemaField("image", np.uint8, (256, 256, 3), CompressedImageCodec("jpeg", 90), False),  # noqa: FBT003 - theirs
        UnischemaField("label", np.int64, (), ScalarCodec(LongType()), False),  # noqa: FBT003 - theirs
    ],
)


def write(photos: Path, own: Path) -> None:
    """Write the dataset with its own tools, but with the bytes of the JPEGs as they are, so that all read the same ones."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").config("spark.driver.memory", "2g").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    url = own.absolute().as_uri()
    rows = [(bytearray(file.read_bytes()), label) for file, label in turns.photos(photos)]
    with materialize_dataset(spark, url, SCHEMA, GROUP_MB):
        frame = spark.createDataFrame(spark.sparkContext.parallelize(rows, 8), SCHEMA.as_spark_schema())
        frame.coalesce(4).write.mode("overwrite").option("compression", "none").parquet(url)
    spark.stop()


def prepare(own: Path, pool: str, queue: int) -> Callable[[], turns.Batches]:
    """Return what starts an epoch, with a reader of its own, as the project's own examples have it.

    Rows are shuffled inside their row group, or in a queue of decoded pictures. Without a seed the thread pool would wait
    for rows in a busy loop, which takes the processor from those that decode.
    """
    logging.getLogger("petastorm").setLevel(logging.ERROR)
    url, seeds = own.absolute().as_uri(), count(1)

    def attempt() -> Iterator[tuple[Any, Any]]:
        # A loader that is used again would repeat the last rows of the epoch before.
        reader = make_reader(url, reader_pool_type=pool, workers_count=2, seed=next(seeds), shuffle_rows=queue == 0)
        with DataLoader(reader, batch_size=BATCH, shuffling_queue_capacity=queue) as loader:
            for batch in loader:
                yield batch["image"], batch["label"]

    def epoch() -> Iterator[tuple[Any, Any]]:
        # A reader may end before its first row: it asks whether all that was begun is done, then whether all was begun,
        # and between the two questions all may be begun.
        rows = 0
        while not rows:
            for images, labels in attempt():
                rows += len(labels)
                yield images, labels

    return epoch


if __name__ == "__main__":
    turns.serve(
        ["petastorm", "torch", "pyarrow", "opencv-python-headless"],
        write,
        {
            f"{pool}-{name}": partial(prepare, pool=pool, queue=queue)
            for pool in ("thread", "process")
            for name, queue in (("groups", 0), ("queue", QUEUE))
        },
    )
