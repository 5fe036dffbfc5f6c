"""Jobs for rank processes in tests: each function runs one rank of a job and returns a value that JSON can hold."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from strategies import rows
from torch import distributed

import penstock as ps
import penstock.torch  # imported once, before ranks are forked
from penstock import deltatorch
from penstock._engine.read.reader import Reader
from penstock.deltatorch import deltadataset
from penstock.formats.delta import DeltaFormat
from penstock.policies import DefaultNulls

TIMEOUT = dt.timedelta(seconds=60)


def work(job: str, rank: int, size: int, place: Path, arguments: dict[str, Any]) -> Any:
    """Run one rank of a job and return its result; the process group exists, except in jobs of EARLY."""
    torch.set_num_threads(1)
    if job not in EARLY:
        join(rank, size, place)
    return JOBS[job](rank, size, place, arguments)


def join(rank: int, size: int, place: Path) -> None:
    """Join the process group of all ranks; a file store is used, so that no port is needed."""
    store = torch.distributed.FileStore(str(place / "store"), size)  # type: ignore[attr-defined] # not in __all__
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=TIMEOUT)


def build_dataset(arguments: Mapping[str, Any]) -> ps.Dataset:
    """Return the dataset that the arguments describe."""
    ds = ps.open(arguments["table"]).select(*arguments.get("columns", ["id"]))
    if "window" in arguments:
        ds = ds.shuffle(ps.WindowShuffle(rows=arguments["window"]), seed=arguments.get("seed", 0))
    if "below" in arguments:
        ds = ds.where(ps.col("third") < arguments["below"], lazy=arguments.get("lazy", False))
    if "lanes" in arguments:
        ds = ds.shard(0, 1, lanes=arguments["lanes"])
    return ds.batch(arguments["size"], last=arguments.get("last")).repeat(arguments.get("repeat", 1)).using(threads=2)


def ids(batch: Mapping[str, Any]) -> list[int]:
    """Return the ids of a batch without padding."""
    found = batch["id"] if "_valid" not in batch else batch["id"][batch["_valid"]]
    return [int(number) for number in found]


def epochs(_rank: int, _size: int, _place: Path, arguments: dict[str, Any]) -> Any:
    """Return the number of steps, and the ids of all batches of some epochs."""
    loader = ps.torch.loader(build_dataset(arguments))
    steps = len(loader) if not arguments.get("lazy") else None
    return {"steps": steps, "epochs": [[ids(batch) for batch in loader] for _ in range(arguments.get("epochs", 2))]}


def counts(_rank: int, _size: int, _place: Path, arguments: dict[str, Any]) -> Any:
    """Return the number of units that this rank counted, the rows of the plan, its fingerprint and the steps."""
    os.environ["PENSTOCK_CACHE_DIR"] = arguments["cache"]
    counted = []
    count = Reader.count

    def watched(self: Reader, unit: Any) -> int:
        found = count(self, unit)
        counted.append(found)
        return found

    Reader.count = watched  # type: ignore[method-assign] # this process ends with the job
    loader = ps.torch.loader(build_dataset(arguments))
    plan = loader._engine._table.plan(loader._query).plan
    return {"counted": len(counted), "rows": plan.num_rows, "fingerprint": plan.fingerprint, "steps": len(loader)}


class Unsent(Exception):  # noqa: N818 - not an error of the package
    """An exception that cannot be unpickled in another process."""

    def __init__(self, one: str, two: str) -> None:
        """Take two arguments; pickle keeps only the joined text."""
        super().__init__(f"{one} {two}")


def failing_count(rank: int, _size: int, _place: Path, arguments: dict[str, Any]) -> Any:
    """Create a loader while counting rows fails on one rank."""
    os.environ["PENSTOCK_CACHE_DIR"] = arguments["cache"]
    if rank == arguments["failing"]:

        def failed(_self: Reader, _unit: Any) -> int:
            raise Unsent(*arguments["error"]) if arguments["unsent"] else OSError(*arguments["error"])

        Reader.count = failed  # type: ignore[method-assign, assignment] # this process ends with the job
    ps.torch.loader(build_dataset(arguments))


CLAUSES: dict[str, Callable[[ps.Dataset], ps.Dataset]] = {
    "none": lambda ds: ds,
    "all": lambda ds: ds.select(".*"),
    "default": lambda ds: ds.nulls(DefaultNulls(), "id"),
    "nulls": lambda ds: ds.nulls(ps.Fill(0), "id"),
    "row ids": lambda ds: ds.with_row_ids(),
    "sequence": lambda ds: ds.sequence(ps.Sequence(length=2, by="id")),
    "stack": lambda ds: ds.stack("x", ["id"]),
    "map": lambda ds: ds.map(lambda batch: {"y": batch["id"]}, fields=[ps.Field("y", np.int64)]),
    "map without fields": lambda ds: ds.map(lambda batch: batch),
}


def unlike(rank: int, _size: int, _place: Path, arguments: dict[str, Any]) -> Any:
    """Create a loader with arguments that differ between ranks."""
    own = {**arguments, **arguments["each"][rank]}
    ps.torch.loader(CLAUSES[own.get("clause", "none")](build_dataset(own)), jagged=own.get("jagged", ()))


def misgiven(rank: int, _size: int, _place: Path, arguments: dict[str, Any]) -> Any:
    """Create a loader with an invalid dataset on rank 1, and then wait for all ranks."""
    ds: Any = build_dataset(arguments)
    kind = arguments["kind"] if rank == 1 else ""
    try:
        ps.torch.loader({"shard": ds.shard(0, 2), "table": arguments["table"]}.get(kind, ds))
    finally:
        distributed.barrier()


def vanished(rank: int, _size: int, _place: Path, arguments: dict[str, Any]) -> Any:
    """Create a loader for a table after one of its files was deleted."""
    ds = build_dataset(arguments)
    distributed.barrier()
    if rank == 0:
        Path(arguments["file"]).unlink()
    distributed.barrier()
    ps.torch.loader(ds)


def appended(rank: int, _size: int, _place: Path, arguments: dict[str, Any]) -> Any:
    """Return an epoch planned while a file was added to the table, after rank 0 and before the other ranks opened it."""
    if rank != 0:
        distributed.barrier()
    ds = build_dataset(arguments)
    if rank == 0:
        pq.write_table(rows(range(10_000, 10_050)), Path(arguments["table"]) / "0-more.parquet")
        distributed.barrier()
    for _ in range(arguments.get("read", 0)):  # repeated reads are cached in memory
        assert len(list(ds)) == len(ds)
    return {"opened": ds.num_rows, "batches": [ids(batch) for batch in ps.torch.loader(ds)]}


def train(rank: int, _size: int, place: Path, arguments: dict[str, Any]) -> Any:
    """Train, or resume from a state: record rows, synchronize ranks in each step, and save states.

    With `kill`, one rank is killed during a step, or after the last one.
    """
    loader = ps.torch.loader(build_dataset(arguments))
    if arguments.get("states"):
        states = arguments["states"]
        loader.load_state_dict(states if arguments.get("last") == "uneven" else states[0])
    uneven, steps, units = arguments.get("last") == "uneven", 0, []
    trained: list[list[list[int]]] = []
    for _ in range(arguments.get("epochs", 1)):
        batches: Any = iter(loader)
        trained.append([])
        for batch in batches:
            if arguments.get("kill") == [rank, steps]:
                os.kill(os.getpid(), signal.SIGKILL)
            if not uneven:
                distributed.all_reduce(torch.ones(1))
            steps += 1
            trained[-1].append(ids(batch))
            part = place / f"{rank}.part"
            part.write_text(json.dumps({"state": loader.state_dict(), "epochs": trained}))
            part.replace(place / f"saved-{rank}.json")
            if steps == arguments.get("stop"):
                break
        units.append(batches.units_read)
    if arguments.get("kill") == [rank, steps]:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"epochs": trained, "units": units, "state": loader.state_dict()}


def tensor_parallel(rank: int, _size: int, _place: Path, arguments: dict[str, Any]) -> Any:
    """Return the batches of four processes in a 2 x 2 mesh, where two processes each need the same data."""
    mesh = distributed.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    options: dict[str, Any] = {"process_group": mesh["dp"] if arguments.get("mesh") else mesh.get_group("dp")}
    if arguments.get("mesh") == "both":
        options = {"process_group": mesh}
    if arguments["world"]:
        options = {"rank": mesh.get_local_rank("dp"), "world_size": 2, "process_group": distributed.group.WORLD}
    if arguments["outside"] and rank > 1:
        options = {"process_group": distributed.new_group([0, 1])}
    elif arguments["outside"]:
        distributed.new_group([0, 1])
    loader = ps.torch.loader(build_dataset(arguments), **options)
    return {"place": list(mesh.get_coordinate() or ()), "epochs": [[ids(batch) for batch in loader] for _ in range(2)]}


def too_early(rank: int, size: int, place: Path, arguments: dict[str, Any]) -> Any:
    """Return the batches of a loader that was created before the process group."""
    if arguments["environment"]:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
    loader = ps.torch.loader(build_dataset(arguments))
    alone = ps.torch.loader(build_dataset(arguments), rank=0, world_size=1)
    join(rank, size, place)
    if arguments["alone"]:
        return [ids(batch) for batch in alone]
    return [ids(batch) for batch in loader]


def mixture(rank: int, _size: int, _place: Path, arguments: dict[str, Any]) -> Any:
    """Return the ids of two epochs of a mixture, whose weights and repeats may differ between ranks."""
    repeat, weights = arguments.get("repeats", {}).get(str(rank), 1), arguments["weights"]
    weights = weights[rank] if isinstance(weights[0], list) else weights
    sources = [
        (ps.open(url).select("id").shuffle(seed=number), weights[number]) for number, url in enumerate(arguments["tables"])
    ]
    mixed = ps.mix(sources, seed=1)
    mixed = mixed if rank == arguments.get("sourceless") else mixed.with_source()
    loader = ps.torch.loader(mixed.batch(arguments["size"]).repeat(repeat))
    return [[ids(batch) for batch in loader] for _ in range(2)]


def changed_table(rank: int, size: int, place: Path, arguments: dict[str, Any]) -> Any:
    """Return two epochs of the DeltaTorch loader over a table that changes after rank 0 opened it and before the others do.

    With the change `early`, the loader is created before the process group, and the table does not change.
    """
    table, change = arguments["table"], arguments["change"]
    fields = [deltatorch.FieldSpec("id")]
    make: Any = partial(deltatorch.create_pytorch_dataloader, table, "id", fields)
    loader = make(version=0) if change == "early" else None
    alone = make(use_fixed_rank=True, rank=0, num_ranks=1, version=0)
    join(rank, size, place)
    names = vars(deltadataset)["open_for_ranks"].__globals__
    open_table = names["open_table"]

    def open_and_change(*given: Any, **options: Any) -> Any:
        opened = open_table(*given, **options)
        if rank == 0 and change in ("append", "overwrite"):
            data = {"id": list(range(1000, 1050))} if change == "append" else {"other": [1.5]}
            ps.write(table, data=data, format=DeltaFormat(), mode=change)
        return opened

    names["open_table"] = open_and_change  # this process ends with the job
    loader = loader or make(shuffle=True, batch_size=8, drop_last=change == "drop", version=None)
    epochs: list[list[list[int]]] = []
    for _ in range(2):
        epochs.append([])
        for batch in loader:
            distributed.all_reduce(torch.ones(1))  # hangs if ranks have different numbers of steps
            epochs[-1].append(batch["id"].tolist())
    return {
        "steps": len(loader),
        "rows": len(loader.dataset),
        "epochs": epochs,
        "version": loader.state_dict()["version"],
        "newest": ps.open(table)._table.snapshot.version,
        "ranks": [loader.dataset.rank, loader.dataset.num_ranks],
        "alone": sorted(number for batch in alone for number in batch["id"].tolist()),
    }


JOBS: dict[str, Callable[[int, int, Path, dict[str, Any]], Any]] = {
    job.__name__: job
    for job in (
        epochs,
        counts,
        failing_count,
        unlike,
        misgiven,
        vanished,
        appended,
        train,
        tensor_parallel,
        too_early,
        mixture,
        changed_table,
    )
}
EARLY = {"too_early", "changed_table"}
