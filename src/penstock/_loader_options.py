"""Options of other loaders, and what to write instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.errors import UnknownArgumentError

__all__ = ["refuse_options"]

INSTEAD = {
    "batch_size": "Batches belong to the dataset: {call}(ds.batch({value!r})).",
    "shuffle": "The order belongs to the dataset: {call}(ds.shuffle(seed=0).batch(size)).",
    "seed": "The seed belongs to the dataset: ds.shuffle(seed={value!r}).",
    "drop_last": 'The end of an epoch is set on the dataset: ds.batch(size, last="drop"), or "pad", "wrap", "level", "uneven".',
    "num_workers": (
        "Threads read ahead, one for each processor. Remove it, or set their number with ds.using(threads=...). "
        'For maps that are Python-bound, use processes: ds.using(workers="processes").'
    ),
    "persistent_workers": "The loader has no persistent workers. Remove it.",
    "prefetch_factor": "The memory limit decides how much is read ahead. Remove it, or set ds.using(memory_limit=bytes).",
    "timeout": "The timeout belongs to the dataset: ds.using(timeout={value!r}).",
    "collate_fn": "Batches are dicts of arrays. To change them, map the dataset: ds.batch(size).map(function).",
    "transform": "Maps belong to the dataset: ds.batch(size).map(function).",
    "sampler": "The order belongs to the dataset: ds.shuffle(seed=0). For weights: penstock.mix([(ds_a, 0.7), (ds_b, 0.3)]).",
    "batch_sampler": "Order and batches belong to the dataset: ds.shuffle(seed=0).batch(size).",
    "generator": "The order depends on the seed only: ds.shuffle(seed=7).",
    "worker_init_fn": "The loader has no workers to set up. Remove it; a map can import what it needs.",
    "multiprocessing_context": 'Remove it. For maps in processes: ds.using(workers="processes").',
    "in_order": "Batches always come in the order of the seed. Remove it.",
    "columns": "Columns belong to the dataset: ds.select('a', 'b').",
    "filters": "Filters belong to the dataset: ds.where(penstock.col('x') > 3).",
    "epochs": "Epochs belong to the dataset: ds.repeat({value!r}).",
    "num_epochs": "Epochs belong to the dataset: ds.repeat({value!r}).",
    "rank": "The shard of a reader belongs to the dataset: ds.shard(rank, world_size).",
    "world_size": "The shard of a reader belongs to the dataset: ds.shard(rank, world_size).",
}
"""What to write instead of the options of other loaders, by name."""


def refuse_options(call: str, options: Mapping[str, Any], known: str) -> None:
    """Raise an error for options that a loader does not have.

    Args:
        call: The loader, as users call it.
        options: The unknown options by name.
        known: The names of the options that it has.

    Raises:
        UnknownArgumentError: If there are options; it says what to write instead.

    Example:
        >>> try:
        ...     refuse_options("penstock.loader", {"seed": 7}, known="none")
        ... except UnknownArgumentError as error:
        ...     print(error)
        penstock.loader() got seed=7; expected options: none. The seed belongs to the dataset: ds.shuffle(seed=7).
    """
    for name, value in options.items():
        advice = INSTEAD.get(name, "Remove it.").format(call=call, value=value)
        raise UnknownArgumentError(f"{call}() got {name}={value!r}; expected options: {known}. {advice}")
