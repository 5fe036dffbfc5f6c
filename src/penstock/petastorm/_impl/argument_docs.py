"""The meanings of the arguments of readers, for the docstrings of all functions that have them; and warnings."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["NOT_PETASTORM", "PETASTORM", "PYARROW_SERIALIZE", "SHARD_SEED", "document_arguments"]

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
    "dataset_url": "The URL of a Petastorm dataset or a Penstock table; other Parquet files are read with a warning.",
    "dataset_url_or_urls": "The URL of Parquet files or a Delta table: a directory, a file, or a list of files.",
    "schema_fields": "Fields, or regular expressions that match whole names; by default all fields.",
    "reader_pool_type": 'Where row groups are decoded: "thread", "process" or "dummy".',
    "workers_count": "The number of threads or processes.",
    "pyarrow_serialize": "No effect; accepted for compatibility.",
    "results_queue_size": "No effect; accepted for compatibility. The bytes of row groups limit what is read ahead.",
    "seed": "Decides the order; 0 is a seed. Random by default.",
    "shuffle_rows": "Whether the rows of each row group are shuffled.",
    "shuffle_row_groups": "Whether the row groups are shuffled, anew in each epoch.",
    "shuffle_row_drop_partitions": "The number of parts that each row group is split into; the parts are shuffled.",
    "predicate": "Selects rows.",
    "rowgroup_selector": "Selects row groups by stored indexes.",
    "num_epochs": "The number of epochs; None for endless reading.",
    "cur_shard": "The number of this shard.",
    "shard_count": "The number of shards; row group `n` belongs to shard `n % shard_count`.",
    "shard_seed": "Deprecated; replaces `seed` for the order of the row groups of a shard. Use `seed`.",
    "cache_type": '"local-disk" to cache row groups on disk, or "null".',
    "cache_location": "The directory of the cache.",
    "cache_size_limit": "The size of the cache in bytes.",
    "cache_row_size_estimate": "The size of a row in bytes.",
    "cache_extra_settings": "More options of `LocalDiskCache`.",
    "hdfs_driver": "No effect; accepted for compatibility. pyarrow finds the driver.",
    "transform_spec": "A function that is called with each row.",
    "filters": "Conditions on any columns, as tuples.",
    "storage_options": "Options for fsspec to open the URL.",
    "zmq_copy_buffers": "No effect; accepted for compatibility.",
    "filesystem": "A filesystem of pyarrow or fsspec.",
    "convert_early_to_numpy": "No effect; accepted for compatibility. Workers always convert.",
    "shard_by": '"rows" for shards whose numbers of rows differ by one at most.',
    "codecs": "Your codec classes that the dataset was written with.",
    "memory_limit": "Bytes that read-ahead may use.",
    "decode": "Whether images and arrays of a Petastorm dataset are decoded; those of a Penstock table always are.",
    "batch_size": "Rows of each batch but the last; by default those of a row group.",
    "drop_last": "Whether a last batch with fewer rows is dropped.",
}


def document_arguments(**others: str) -> Callable[[F], F]:
    """Return a decorator that adds an `Args` section to the docstring of a function, before `Raises`.

    Args:
        **others: Meanings that differ for this function.
    """

    def add(function: F) -> F:
        if function.__doc__ is not None:  # `python -OO` removes it
            names = inspect.signature(function).parameters
            meanings = "\n".join(f"        {name}: {(MEANINGS | others)[name]}" for name in names)
            function.__doc__ = function.__doc__.replace("    Raises:", f"    Args:\n{meanings}\n\n    Raises:", 1)
        return function

    return add
