"""What the arguments of readers mean, said once for all functions that have them; and what users are warned of."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["NOT_PETASTORM", "PETASTORM", "PYARROW_SERIALIZE", "SHARD_SEED", "described"]

F = TypeVar("F", bound=Callable[..., Any])

NOT_PETASTORM = (
    "Currently make_reader supports reading only Petastorm datasets. To read from a non-Petastorm Parquet store use "
    "make_batch_reader instead."
)
PETASTORM = (
    "Please use make_reader (instead of make_batch_reader) to read this dataset, which was written by Petastorm, or "
    "make_batch_reader(..., decode=True): without it images and arrays come as the bytes that are stored."
)
SHARD_SEED = (
    "shard_seed was deprecated and will be removed in future versions. Use seed to apply randomization effects on sharding "
    "row groups."
)
PYARROW_SERIALIZE = (
    "pyarrow_serializer was deprecated and will be removed in future versions. The argument no longer has any effect."
)

MEANINGS = {
    "dataset_url": "Where a dataset of Petastorm, or a table of Penstock, lies; other Parquet is read too, with a warning.",
    "dataset_url_or_urls": "Where Parquet or a Delta table lies: a directory, a file, or a list of files.",
    "schema_fields": "Fields, or regular expressions that match whole names; by default all fields.",
    "reader_pool_type": 'What works on row groups: "thread", "process" or "dummy".',
    "workers_count": "How many of them.",
    "pyarrow_serialize": "Accepted as ever, and without effect.",
    "results_queue_size": "Accepted as ever; how much is read ahead is bounded by its bytes.",
    "seed": "Decides the order; 0 is a seed. By default it is another each time.",
    "shuffle_rows": "Whether the rows of each row group come in another order.",
    "shuffle_row_groups": "Whether row groups do, another one in each epoch.",
    "shuffle_row_drop_partitions": "Parts that each row group is cut into, which then come in any order.",
    "predicate": "Which rows are read.",
    "rowgroup_selector": "Which row groups are read, by stored indexes.",
    "num_epochs": "How often the dataset is read; None for without end.",
    "cur_shard": "Which of `shard_count` shards this is.",
    "shard_count": "How many there are; row group `n` belongs to shard `n % shard_count`.",
    "shard_seed": "Deprecated; takes the place of `seed` for the order of the row groups of a shard. Use `seed`.",
    "cache_type": '"local-disk" to keep row groups on disk, or "null".',
    "cache_location": "In which directory.",
    "cache_size_limit": "How many bytes.",
    "cache_row_size_estimate": "What a row takes.",
    "cache_extra_settings": "More options of `LocalDiskCache`.",
    "hdfs_driver": "Accepted as ever, and without effect: one driver is left, and pyarrow finds it.",
    "transform_spec": "A function that is run on each row.",
    "filters": "Conditions as tuples, of any columns.",
    "storage_options": "What fsspec is told to open the URL with.",
    "zmq_copy_buffers": "Accepted as ever, and without effect.",
    "filesystem": "A filesystem of pyarrow or fsspec.",
    "convert_early_to_numpy": "Accepted as ever, and without effect: workers always do.",
    "shard_by": '"rows" for shards whose numbers of rows differ by one at most, whatever row groups there are.',
    "codecs": "Classes of codecs of your own that the dataset was written with.",
    "memory_limit": "Bytes that may be read ahead.",
    "decode": "Whether images and arrays of a dataset of Petastorm are decoded, as those of a table of Penstock always are.",
    "batch_size": "Rows of each batch but the last, whatever row groups have.",
    "drop_last": "Whether a last batch of fewer rows is left out.",
}


def described(**others: str) -> Callable[[F], F]:
    """Return what adds the meanings of its arguments to the docstring of a function, before what it raises.

    Args:
        **others: Arguments that mean something else there.
    """

    def add(function: F) -> F:
        if function.__doc__ is not None:  # which `python -OO` leaves out
            names = inspect.signature(function).parameters
            told = "\n".join(f"        {name}: {(MEANINGS | others)[name]}" for name in names)
            function.__doc__ = function.__doc__.replace("    Raises:", f"    Args:\n{told}\n\n    Raises:", 1)
        return function

    return add
