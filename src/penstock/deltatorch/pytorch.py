"""`deltatorch.pytorch`: the loader of a Delta table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from penstock._engine.deliver.loader import Loader as EngineLoader
from penstock._engine.query.query import Last
from penstock.deltatorch._loader import ThreadsLoader, WorkerBatches, WorkersLoader
from penstock.deltatorch._sample_map import FieldSpec
from penstock.deltatorch.id_based_deltadataset import IDBasedDeltaDataset
from penstock.errors import ArgumentError
from penstock.torch import IterableDataset

__all__ = ["create_pytorch_dataloader"]

WORKER_DEFAULTS = {"worker_init_fn": None, "prefetch_factor": None, "timeout": 0, "in_order": True}
"""The options of worker processes, and their defaults."""
OTHER_OPTIONS = ("collate_fn", "pin_memory", "generator", "persistent_workers", "multiprocessing_context", "pin_memory_device")


def create_pytorch_dataloader(
    path: str,
    id_field: str | None = None,
    fields: Sequence[FieldSpec] | None = None,
    partition_filter: Sequence[Any] | None = None,
    version: int | None = None,
    batch_size: int = 32,
    use_fixed_rank: bool = False,
    rank: int | None = None,
    num_ranks: int | None = None,
    num_workers: int = 2,
    shuffle: bool = False,
    drop_last: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
    **pytorch_dataloader_kwargs: Any,
) -> DataLoader[Any]:
    """Return a `DataLoader` of batches of a Delta table, pinned to one version, with an exact length.

    Args:
        path: The table.
        id_field: A column of ids; it is checked to exist, and not used.
        fields: The columns, and how their values are converted; None for all columns.
        partition_filter: Conditions (column, operator, value) that all rows fulfil.
        version: The table's version; None for the newest.
        batch_size: Rows of a batch on each rank.
        use_fixed_rank: Whether `rank` and `num_ranks` are used, instead of those of torch.distributed.
        rank: The number of this reader.
        num_ranks: The number of readers. All get the same number of batches; if the rows do not divide evenly, some are
            repeated, or with `drop_last` dropped in that epoch.
        num_workers: The number of threads; with `multiprocessing_context`, of processes.
        shuffle: Whether rows are shuffled, anew in each epoch.
        drop_last: Whether rows that do not fill a batch are dropped.
        storage_options: Options for fsspec to open the path.
        seed: Decides the orders; drawn from `generator`, if there is one.
        pytorch_dataloader_kwargs: Other arguments of torch's `DataLoader`.

    Raises:
        ArgumentError: If an argument is invalid, or would have no effect.
        ColumnNotFoundError: If the table has no such column.
    """
    options = _check_options(pytorch_dataloader_kwargs, batch_size, num_workers)
    generator = options.get("generator")
    if generator is not None:
        seed = int(torch.randint(2**62, (), generator=generator))
    dataset = IDBasedDeltaDataset(
        path,
        id_field,
        fields,
        version,
        partition_filter,
        use_fixed_rank,
        rank,
        num_ranks,
        num_workers,
        shuffle,
        batch_size,
        drop_last,
        storage_options,
        seed=seed,
    )
    return _loader(dataset, options)


def _loader(dataset: IDBasedDeltaDataset, options: dict[str, Any]) -> DataLoader[Any]:
    read, shard = dataset._read, dataset._shard  # noqa: SLF001 - of this package
    last: Last = "drop" if dataset.drop_last else "level" if dataset.num_ranks > 1 else "uneven"
    sample_map = read.sample_map(collate=options.pop("collate_fn", None))
    batches = shard.batch(dataset.batch_size, last=last).map(sample_map)
    if options.get("multiprocessing_context") is None:
        engine = read.loader(batches.using(threads=read.threads))
        return ThreadsLoader(dataset, engine, pin_memory=options.get("pin_memory", False))
    worker_batches = WorkerBatches(IterableDataset(batches.using(threads=1)), len(dataset))
    engine_loader = EngineLoader(batches._table, batches._query)  # noqa: SLF001 - a Dataset has no public query
    return WorkersLoader(worker_batches, dataset, engine_loader, num_workers=dataset.num_workers, **options)


def _check_options(given: Mapping[str, Any], batch_size: Any, num_workers: Any) -> dict[str, Any]:
    """Return the arguments of torch's loader that have an effect."""
    if type(batch_size) is not int or batch_size < 1:
        msg = f"batch_size={batch_size!r} was given; expected a whole number from 1 on. Give one: batch_size=32."
        raise ArgumentError(msg)
    processes = given.get("multiprocessing_context") is not None
    for name, value in given.items():
        if name in ("sampler", "batch_sampler") and value is not None:
            msg = f"{name}={value!r} was given, but rows are read and shuffled as they lie; expected no sampler. "
            raise ArgumentError(msg + "Give shuffle=True, or use penstock.torch.MapDataset with a loader of your own.")
        if name not in (*WORKER_DEFAULTS, *OTHER_OPTIONS, "sampler", "batch_sampler"):
            known = ", ".join(sorted((*WORKER_DEFAULTS, *OTHER_OPTIONS)))
            raise ArgumentError(f"create_pytorch_dataloader got {name}={value!r}. Known are {known}. Leave it out.")
        if name in WORKER_DEFAULTS and value != WORKER_DEFAULTS[name] and not processes:
            more = "" if num_workers else " and num_workers=4"
            msg = (
                f"{name}={value!r} was given, and num_workers={num_workers} is served by threads, for which it means nothing. "
                f"Worker processes were expected. Give multiprocessing_context='spawn' too{more}, or leave {name} out."
            )
            raise ArgumentError(msg)
        if name == "pin_memory_device" and value:
            msg = f"pin_memory_device={value!r} was given. The current accelerator's memory is pinned. Leave it out."
            raise ArgumentError(msg)
    if processes and not num_workers:
        msg = "multiprocessing_context was given with num_workers=0; expected workers. Give num_workers=4, or leave it out."
        raise ArgumentError(msg)
    ignored = {"sampler", "batch_sampler", "pin_memory_device"}
    return {name: value for name, value in given.items() if name not in ignored}
