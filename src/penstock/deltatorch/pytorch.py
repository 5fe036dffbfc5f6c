"""`create_pytorch_dataloader`, as DeltaTorch has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from penstock._engine.deliver.loader import Loader as Engine
from penstock._engine.query.values import Last
from penstock.deltatorch._loader import Dealt, ThreadsLoader, WorkersLoader
from penstock.deltatorch._samples import FieldSpec
from penstock.deltatorch.id_based_deltadataset import IDBasedDeltaDataset
from penstock.errors import ArgumentError
from penstock.torch import IterableDataset

__all__ = ["create_pytorch_dataloader"]

OF_WORKERS = ("worker_init_fn", "prefetch_factor", "timeout", "in_order")
"""What only worker processes have, and what says nothing."""
NOTHING = {"worker_init_fn": None, "prefetch_factor": None, "timeout": 0, "in_order": True}
ANYWAY = ("collate_fn", "pin_memory", "generator", "persistent_workers", "multiprocessing_context", "pin_memory_device")


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
        id_field: A column of ids; it is checked to exist, and needed for nothing else.
        fields: The columns, and what becomes of them; None for all columns as they are.
        partition_filter: Which rows: (column, operator, value), all of which must hold.
        version: The table's version; None for the newest.
        batch_size: Rows of a batch on each rank.
        use_fixed_rank: Whether `rank` and `num_ranks` count, and not what torch.distributed says.
        rank: Which of the readers this is.
        num_ranks: How many there are. All get as many batches; where rows do not divide, some come twice, or with
            `drop_last` some not at all in that epoch.
        num_workers: How many threads read and transform; with `multiprocessing_context`, how many processes.
        shuffle: Whether each epoch has an order of its own.
        drop_last: Whether rows that do not fill a batch are left out.
        storage_options: What fsspec is told to open the path with.
        seed: What the orders depend on; `generator` draws another.
        pytorch_dataloader_kwargs: What else torch's loader takes.

    Raises:
        ArgumentError: If an argument cannot be meant, or could not take effect.
        ColumnNotFoundError: If the table has no such column.
    """
    options = _checked(pytorch_dataloader_kwargs, batch_size, num_workers)
    generator = options.get("generator")
    if generator is not None:
        seed = int(torch.randint(2**62, (), generator=generator))
    shown = IDBasedDeltaDataset(
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
    return _loader(shown, options)


def _loader(shown: IDBasedDeltaDataset, options: dict[str, Any]) -> DataLoader[Any]:
    """Return the loader of a dataset."""
    asked = shown._asked  # noqa: SLF001 - of this door
    last: Last = "drop" if shown.drop_last else "level" if shown.num_ranks > 1 else "uneven"
    made = asked.samples(collate=options.pop("collate_fn", None))
    batches = shown._share.batch(shown.batch_size, last=last).map(made)  # noqa: SLF001 - the same
    if options.get("multiprocessing_context") is None:
        batches = batches.using(threads=asked.threads)
        return ThreadsLoader(shown, asked.loader(batches), pin_memory=options.get("pin_memory", False))
    dealt = Dealt(IterableDataset(batches.using(threads=1)), len(shown))
    way = Engine(batches._table, batches._query)  # noqa: SLF001 - a dataset has no other parts
    return WorkersLoader(dealt, shown, way, num_workers=shown.num_workers, **options)


def _checked(given: Mapping[str, Any], batch_size: Any, num_workers: Any) -> dict[str, Any]:
    """Return arguments of torch's loader that will take effect."""
    if type(batch_size) is not int or batch_size < 1:
        msg = f"batch_size={batch_size!r} was given. A whole number from 1 on was expected. Give one: batch_size=32."
        raise ArgumentError(msg)
    processes = given.get("multiprocessing_context") is not None
    for name, value in given.items():
        if name in ("sampler", "batch_sampler") and value is not None:
            msg = f"{name}={value!r} was given, but rows are read and shuffled as they lie. No sampler was expected. "
            raise ArgumentError(msg + "Give shuffle=True, or use penstock.torch.MapDataset with a loader of your own.")
        if name not in (*OF_WORKERS, *ANYWAY, "sampler", "batch_sampler"):
            known = ", ".join(sorted((*OF_WORKERS, *ANYWAY)))
            raise ArgumentError(f"create_pytorch_dataloader got {name}={value!r}. Known are {known}. Leave it out.")
        if name in OF_WORKERS and value != NOTHING[name] and not processes:
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
        msg = (
            "multiprocessing_context was given with num_workers=0. Workers were expected. Give num_workers=4, or leave it out."
        )
        raise ArgumentError(msg)
    silent = {"sampler", "batch_sampler", "pin_memory_device"}
    return {name: value for name, value in given.items() if name not in silent}
