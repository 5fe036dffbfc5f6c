"""Options of other loaders, and what to write for them here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.errors import UnknownArgumentError

__all__ = ["refuse_options"]

INSTEAD = {
    "batch_size": "Batches belong to the dataset: {call}(ds.batch({value!r})).",
    "shuffle": "The order belongs to the dataset: {call}(ds.shuffle(seed=0).batch(size)).",
    "seed": "The seed belongs to the dataset: ds.shuffle(seed={value!r}).",
    "drop_last": 'How an epoch ends belongs to the dataset: ds.batch(size, last="drop"), or "pad", "wrap", "level", "uneven".',
    "num_workers": (
        "Threads read ahead without it, one for each processor: leave it out, or give their number with ds.using(threads=...). "
        'For maps that are Python-bound, use processes: ds.using(workers="processes").'
    ),
    "persistent_workers": "There are no workers to keep. Leave it out.",
    "prefetch_factor": "Windows are read ahead as memory allows. Leave it out, or give ds.using(memory_limit=bytes).",
    "timeout": "The time that a process may take belongs to the dataset: ds.using(timeout={value!r}).",
    "collate_fn": "Batches come as dicts of arrays. To change them, map the dataset: ds.batch(size).map(function).",
    "transform": "Maps belong to the dataset: ds.batch(size).map(function).",
    "sampler": "The order belongs to the dataset: ds.shuffle(seed=0). For weights: penstock.mix([(ds_a, 0.7), (ds_b, 0.3)]).",
    "batch_sampler": "Order and batches belong to the dataset: ds.shuffle(seed=0).batch(size).",
    "generator": "Randomness depends on the seed alone: ds.shuffle(seed=7).",
    "worker_init_fn": "There are no workers to set up. Leave it out; a map may import what it needs.",
    "multiprocessing_context": 'Leave it out. For maps in processes: ds.using(workers="processes").',
    "in_order": "Batches come in the order of the seed, always. Leave it out.",
    "columns": "Columns belong to the dataset: ds.select('a', 'b').",
    "filters": "Filters belong to the dataset: ds.where(penstock.col('x') > 3).",
    "epochs": "Epochs belong to the dataset: ds.repeat({value!r}).",
    "num_epochs": "Epochs belong to the dataset: ds.repeat({value!r}).",
    "rank": "The part of a reader belongs to the dataset: ds.shard(rank, world_size).",
    "world_size": "The part of a reader belongs to the dataset: ds.shard(rank, world_size).",
}
"""What to write instead of options that loaders of others have, by name."""


def refuse_options(call: str, options: Mapping[str, Any], known: str) -> None:
    """Refuse options that a loader does not have.

    Args:
        call: The loader, as users call it.
        options: The options by name.
        known: Those that it has.

    Raises:
        UnknownArgumentError: If there are any; it says what to write instead.

    Example:
        >>> try:
        ...     refuse_options("penstock.loader", {"seed": 7}, known="none")
        ... except UnknownArgumentError as error:
        ...     print(error)
        penstock.loader() got seed=7; expected options: none. The seed belongs to the dataset: ds.shuffle(seed=7).
    """
    for name, value in options.items():
        advice = INSTEAD.get(name, "Leave it out.").format(call=call, value=value)
        raise UnknownArgumentError(f"{call}() got {name}={value!r}; expected options: {known}. {advice}")
