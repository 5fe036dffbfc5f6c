"""Petastorm: its own dataset of images, written with Spark, read by its pool of threads or processes."""

# mypy: disable-error-code="import-not-found"
# The peer is installed in an interpreter of its own.

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
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
    """Return what starts an epoch; one reader reads all epochs.

    Rows are shuffled inside their row group, or in a queue of decoded pictures. Without a seed its thread pool would wait
    for rows in a busy loop, which takes the processor from those that decode. Each epoch gets a loader of its own: one that
    is iterated again repeats the last rows of the epoch before.
    """
    logging.getLogger("petastorm").setLevel(logging.ERROR)
    url, in_groups = own.absolute().as_uri(), queue == 0
    reader = make_reader(url, reader_pool_type=pool, workers_count=2, seed=1, shuffle_row_groups=True, shuffle_rows=in_groups)
    atexit.register(lambda: (reader.stop(), reader.join()))  # else the processes of its pool live on

    def epoch() -> Iterator[tuple[Any, Any]]:
        if reader.last_row_consumed:
            # Not when the epoch before ends: the pool would read ahead while others are timed.
            reader.reset()
        for batch in DataLoader(reader, batch_size=BATCH, shuffling_queue_capacity=queue):
            yield batch["image"], batch["label"]

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
