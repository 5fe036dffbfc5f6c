"""One process of an Accelerate run: passes loaders to Accelerate in every supported way and records the rows of each.

torchrun --nproc-per-node=2 gloo_accelerate.py TABLE PLACE
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed.nn  # imported before the process group exists; else it keeps the group alive until exit, which aborts
from torch import distributed
from torch.utils.data import DataLoader

import penstock as ps
from penstock.testing import MemoryFormat

# Imported by name, so that type checks pass where it is not installed.
accelerate: Any = import_module("accelerate")

ACCUMULATED = 4


def training_rows(table: str) -> ps.Dataset:
    """Return the rows to train on."""
    return ps.open(table).select("id", "triple").shuffle(ps.WindowShuffle(rows=30), seed=5).batch(8)


def passed_through(accelerator: Any, table: str) -> dict[str, Any]:
    """Train two epochs with the loader itself; gradients are applied every few steps and at the end of each epoch."""
    model = torch.nn.Linear(1, 1)
    loader = ps.torch.loader(training_rows(table), device=accelerator.device)
    prepared: Any
    model, optimizer, prepared = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-9), loader)
    epochs: list[list[Any]] = []
    applied: list[list[bool]] = []
    for _ in range(2):
        epochs.append([])
        applied.append([])
        for batch in prepared:
            with accelerator.accumulate(model):
                loss = model(batch["triple"].float()[:, None]).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            epochs[-1].append(batch["id"].tolist())
            applied[-1].append(accelerator.sync_gradients)
    devices = sorted({str(batch["id"].device) for batch in prepared})
    ended = accelerator.gradient_state.active_dataloader is None
    return {"same": prepared is loader, "epochs": epochs, "applied": applied, "devices": devices, "ended": ended}


def saved_and_loaded(accelerator: Any, table: str, place: Path) -> dict[str, Any]:
    """Save the state in the middle of an epoch with the accelerator, and continue with a new loader."""
    accelerator.free_memory()
    loader: Any = accelerator.prepare(ps.torch.loader(training_rows(table)))
    before = []
    for step, batch in enumerate(loader, start=1):
        before.append(batch["id"].tolist())
        if step == 5:
            accelerator.save_state(str(place / "state"))
            break
    accelerator.wait_for_everyone()
    accelerator.free_memory()
    again: Any = accelerator.prepare(ps.torch.loader(training_rows(table)))
    accelerator.load_state(str(place / "state"))
    return {"before": before, "after": [batch["id"].tolist() for batch in again]}


def save_uneven_ranks(accelerator: Any, table: str, place: Path) -> list[str]:
    """Return the errors of saving when ranks advance unequally: before, during and at the end of an epoch."""
    accelerator.free_memory()
    loader: Any = accelerator.prepare(ps.torch.loader(ps.open(table).select("id").batch(8, last="uneven")))

    def save() -> None:
        accelerator.save_state(str(place / "unlike"))

    found = [error_message(save)]
    batches = iter(loader)
    next(batches)
    found.append(error_message(save))
    for _ in batches:
        ...
    return [*found, error_message(save)]


def dispatch_invalid_columns(accelerator: Any, table: str) -> list[str]:
    """Return the errors for columns that Accelerate cannot dispatch by rows."""
    text = ps.open(table).select("id", "name")
    lists = MemoryFormat.of({"list": [[1], [2, 3]] * 16}, row_group_rows=8).open().ragged(ps.Offsets(), "list")
    loaders = [
        DataLoader(ps.torch.IterableDataset(text.batch(8)), batch_size=None),
        DataLoader(ps.torch.IterableDataset(text), batch_size=8),
        DataLoader(ps.torch.IterableDataset(lists.batch(8)), batch_size=None),
    ]
    return [error_message(partial(first, accelerator.prepare(loader))) for loader in loaders]


def dispatch_collated_text(accelerator: Any, table: str) -> int:
    """Return the number of rows of a text column that a collate function turns into tensors before dispatch."""

    def lengths(rows: list[dict[str, Any]]) -> torch.Tensor:
        return torch.tensor([len(row["name"]) for row in rows])

    stream = ps.torch.IterableDataset(ps.open(table).select("name"))
    return sum(len(batch) for batch in accelerator.prepare(DataLoader(stream, batch_size=8, collate_fn=lengths)))


def shares(table: str) -> list[Any]:
    """Return the error for batches that Accelerate would shard as rows, and the ids where the items are rows."""
    configured = accelerate.utils.DataLoaderConfiguration(dispatch_batches=False)
    accelerate.state.AcceleratorState._reset_state()
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=configured)
    batches = accelerator.prepare(DataLoader(ps.torch.IterableDataset(training_rows(table)), batch_size=None))
    rows = ps.torch.IterableDataset(ps.open(table).select("id"))
    taken: Any = accelerator.prepare(DataLoader(rows, batch_size=8))
    return [error_message(partial(first, batches)), [batch["id"].tolist() for batch in taken]]


def dispatched(accelerator: Any, table: str, **options: Any) -> list[Any]:
    """Return two epochs of a loader that Accelerate builds from a dataset and dispatches from the first process."""
    loader: Any = accelerator.prepare(DataLoader(ps.torch.IterableDataset(training_rows(table)), batch_size=None, **options))
    return [[batch["id"].tolist() for batch in loader] for _ in range(2)]


def first(loader: Iterable[Any]) -> Any:
    """Return the first batch."""
    return next(iter(loader))


def error_message(ask: Callable[[], Any]) -> str:
    """Return the message of the ArgumentError that a call raises, or "nothing"."""
    try:
        ask()
    except ps.errors.ArgumentError as error:
        return str(error)
    return "nothing"


def main() -> None:
    """Run all cases, and write their results."""
    table, place = sys.argv[1:]
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED)
    rank, size = accelerator.process_index, accelerator.num_processes
    found: dict[str, Any] = {"passed": passed_through(accelerator, table)}
    found["saved"] = saved_and_loaded(accelerator, table, Path(place))
    found["dispatched"] = dispatched(accelerator, table)
    found["workers"] = dispatched(accelerator, table, num_workers=1, multiprocessing_context="fork")
    shard = ps.torch.IterableDataset(training_rows(table).shard(rank, size))
    prepared: Any = accelerator.prepare(DataLoader(shard, batch_size=None))
    spawned: Any = accelerator.prepare(DataLoader(shard, batch_size=None, num_workers=1, multiprocessing_context="spawn"))
    skipping: Any = accelerator.skip_first_batches(ps.torch.loader(training_rows(table)), 3)
    found["refused"] = [error_message(partial(first, loader)) for loader in (prepared, spawned, skipping)]
    found["refused"].append(error_message(lambda: len(skipping)))
    forked: Any = accelerator.prepare(DataLoader(shard, batch_size=None, num_workers=1, multiprocessing_context="fork"))
    found["refused"].append(error_message(partial(first, forked)))
    found["unlike"] = save_uneven_ranks(accelerator, table, Path(place))
    found["undealt"], found["collated"] = (
        dispatch_invalid_columns(accelerator, table),
        dispatch_collated_text(accelerator, table),
    )
    found["shares"] = shares(table)
    (Path(place) / f"accelerate-{os.environ['RANK']}.json").write_text(json.dumps(found))
    distributed.barrier()  # no process may exit while another one waits for it
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
