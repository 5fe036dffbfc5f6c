"""One process of a run of Accelerate: all the ways in which it can be given a loader, and which rows come out of each.

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
import torch.distributed.nn  # before there is a process group, which it would keep alive until Python ends, and then abort
from torch import distributed
from torch.utils.data import DataLoader

import penstock as ps
from penstock.testing import MemoryFormat

# By its name, so that types can be checked where it is not installed.
accelerate: Any = import_module("accelerate")

ACCUMULATED = 4


def asked(table: str) -> ps.Dataset:
    """Return the rows to train on."""
    return ps.open(table).select("id", "triple").shuffle(ps.WindowShuffle(rows=30), seed=5).batch(8)


def passed_through(accelerator: Any, table: str) -> dict[str, Any]:
    """Train two epochs with the loader itself, gradients applied every few steps and at the end of each epoch."""
    model = torch.nn.Linear(1, 1)
    loader = ps.torch.loader(asked(table), device=accelerator.device)
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
    """Save in the midst of an epoch with the accelerator's own function, and go on with another loader."""
    accelerator.free_memory()
    loader: Any = accelerator.prepare(ps.torch.loader(asked(table)))
    before = []
    for step, batch in enumerate(loader, start=1):
        before.append(batch["id"].tolist())
        if step == 5:
            accelerator.save_state(str(place / "state"))
            break
    accelerator.wait_for_everyone()
    accelerator.free_memory()
    again: Any = accelerator.prepare(ps.torch.loader(asked(table)))
    accelerator.load_state(str(place / "state"))
    return {"before": before, "after": [batch["id"].tolist() for batch in again]}


def unlike(accelerator: Any, table: str, place: Path) -> list[str]:
    """Return what is said when ranks that do not advance alike are saved: before an epoch, in its midst, and at its end."""
    accelerator.free_memory()
    loader: Any = accelerator.prepare(ps.torch.loader(ps.open(table).select("id").batch(8, last="uneven")))

    def save() -> None:
        accelerator.save_state(str(place / "unlike"))

    found = [refused(save)]
    batches = iter(loader)
    next(batches)
    found.append(refused(save))
    for _ in batches:
        ...
    return [*found, refused(save)]


def undealt(accelerator: Any, table: str) -> list[str]:
    """Return what is said of columns that cannot be dealt out by rows."""
    text = ps.open(table).select("id", "name")
    lists = MemoryFormat.of({"list": [[1], [2, 3]] * 16}, row_group_rows=8).open().ragged(ps.Offsets(), "list")
    loaders = [
        DataLoader(ps.torch.IterableDataset(text.batch(8)), batch_size=None),
        DataLoader(ps.torch.IterableDataset(text), batch_size=8),
        DataLoader(ps.torch.IterableDataset(lists.batch(8)), batch_size=None),
    ]
    return [refused(partial(first, accelerator.prepare(loader))) for loader in loaders]


def collated(accelerator: Any, table: str) -> int:
    """Return how many rows come of a text that becomes tensors before it is dealt out."""

    def lengths(rows: list[dict[str, Any]]) -> torch.Tensor:
        return torch.tensor([len(row["name"]) for row in rows])

    stream = ps.torch.IterableDataset(ps.open(table).select("name"))
    return sum(len(batch) for batch in accelerator.prepare(DataLoader(stream, batch_size=8, collate_fn=lengths)))


def shares(table: str) -> list[Any]:
    """Return what is said of batches that are to be dealt out as rows, and how many rows come where rows are."""
    configured = accelerate.utils.DataLoaderConfiguration(dispatch_batches=False)
    accelerate.state.AcceleratorState._reset_state()
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=configured)
    batches = accelerator.prepare(DataLoader(ps.torch.IterableDataset(asked(table)), batch_size=None))
    rows = ps.torch.IterableDataset(ps.open(table).select("id"))
    taken: Any = accelerator.prepare(DataLoader(rows, batch_size=8))
    return [refused(partial(first, batches)), [batch["id"].tolist() for batch in taken]]


def dispatched(accelerator: Any, table: str, **options: Any) -> list[Any]:
    """Return two epochs of a loader that Accelerate makes of a dataset, of which the first process reads everything."""
    loader: Any = accelerator.prepare(DataLoader(ps.torch.IterableDataset(asked(table)), batch_size=None, **options))
    return [[batch["id"].tolist() for batch in loader] for _ in range(2)]


def first(loader: Iterable[Any]) -> Any:
    """Return the first batch."""
    return next(iter(loader))


def refused(ask: Callable[[], Any]) -> str:
    """Return what is said to be wrong with what is asked for."""
    try:
        ask()
    except ps.errors.ArgumentError as error:
        return str(error)
    return "nothing"


def main() -> None:
    """Try all ways."""
    table, place = sys.argv[1:]
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED)
    rank, size = accelerator.process_index, accelerator.num_processes
    found: dict[str, Any] = {"passed": passed_through(accelerator, table)}
    found["saved"] = saved_and_loaded(accelerator, table, Path(place))
    found["dispatched"] = dispatched(accelerator, table)
    found["workers"] = dispatched(accelerator, table, num_workers=1, multiprocessing_context="fork")
    shard = ps.torch.IterableDataset(asked(table).shard(rank, size))
    prepared: Any = accelerator.prepare(DataLoader(shard, batch_size=None))
    spawned: Any = accelerator.prepare(DataLoader(shard, batch_size=None, num_workers=1, multiprocessing_context="spawn"))
    skipping: Any = accelerator.skip_first_batches(ps.torch.loader(asked(table)), 3)
    found["refused"] = [refused(partial(first, loader)) for loader in (prepared, spawned, skipping)]
    found["refused"].append(refused(lambda: len(skipping)))
    forked: Any = accelerator.prepare(DataLoader(shard, batch_size=None, num_workers=1, multiprocessing_context="fork"))
    found["refused"].append(refused(partial(first, forked)))
    found["unlike"] = unlike(accelerator, table, Path(place))
    found["undealt"], found["collated"] = undealt(accelerator, table), collated(accelerator, table)
    found["shares"] = shares(table)
    (Path(place) / f"accelerate-{os.environ['RANK']}.json").write_text(json.dumps(found))
    distributed.barrier()  # no process ends while another still waits for it
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
