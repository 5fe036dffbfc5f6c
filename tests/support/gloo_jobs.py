"""What ranks do in tests: each function is one rank's part of a job, and returns what JSON can hold."""

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
import penstock.torch  # loaded once, before ranks are forked
from penstock import deltatorch
from penstock._engine.read.reader import Reader
from penstock.deltatorch import deltadataset
from penstock.formats.delta import DeltaFormat
from penstock.policies import DefaultNulls

TIMEOUT = dt.timedelta(seconds=60)


def work(job: str, rank: int, size: int, place: Path, arguments: dict[str, Any]) -> Any:
    """Return what one rank's part of a job gives; the process group is there, unless the job makes it."""
    torch.set_num_threads(1)
    if job not in EARLY:
        join(rank, size, place)
    return JOBS[job](rank, size, place, arguments)


def join(rank: int, size: int, place: Path) -> None:
    """Join the group of all ranks; they meet in a file, so that no port is needed."""
    store = torch.distributed.FileStore(str(place / "store"), size)  # type: ignore[attr-defined] # it is not in __all__
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=TIMEOUT)


def asked(arguments: Mapping[str, Any]) -> ps.Dataset:
    """Return the question that arguments describe."""
    ds = ps.open(arguments["table"]).select(*arguments.get("columns", ["id"]))
    if "window" in arguments:
        ds = ds.shuffle(ps.WindowShuffle(rows=arguments["window"]), seed=arguments.get("seed", 0))
    if "below" in arguments:
        ds = ds.where(ps.col("third") < arguments["below"], lazy=arguments.get("lazy", False))
    if "lanes" in arguments:
        ds = ds.shard(0, 1, lanes=arguments["lanes"])
    return ds.batch(arguments["size"], last=arguments.get("last")).repeat(arguments.get("repeat", 1)).using(threads=2)


def ids(batch: Mapping[str, Any]) -> list[int]:
    """Return the ids of a batch, without what was padded."""
    found = batch["id"] if "_valid" not in batch else batch["id"][batch["_valid"]]
    return [int(number) for number in found]


def epochs(_rank: int, _size: int, _place: Path, arguments: dict[str, Any]) -> Any:
    """Return the length, and the ids of all batches of some epochs."""
    loader = ps.torch.loader(asked(arguments))
    steps = len(loader) if not arguments.get("lazy") else None
    return {"steps": steps, "epochs": [[ids(batch) for batch in loader] for _ in range(arguments.get("epochs", 2))]}


def counts(_rank: int, _size: int, _place: Path, arguments: dict[str, Any]) -> Any:
    """Return how many units were counted here, how many rows all ranks see, and the plan's fingerprint."""
    os.environ["PENSTOCK_CACHE_DIR"] = arguments["cache"]
    counted = []
    count = Reader.count

    def watched(self: Reader, unit: Any) -> int:
        found = count(self, unit)
        counted.append(found)
        return found

    Reader.count = watched  # type: ignore[method-assign] # this process ends with the job
    loader = ps.torch.loader(asked(arguments))
    plan = loader._engine._table.plan(loader._query).plan
    return {"counted": len(counted), "rows": plan.num_rows, "fingerprint": plan.fingerprint, "steps": len(loader)}


class Unsent(Exception):  # noqa: N818 - it is none of ours
    """An error that another process cannot make again."""

    def __init__(self, one: str, two: str) -> None:
        """Store more than it tells."""
        super().__init__(f"{one} {two}")


def failing_count(rank: int, _size: int, _place: Path, arguments: dict[str, Any]) -> Any:
    """Count rows where one rank cannot."""
    os.environ["PENSTOCK_CACHE_DIR"] = arguments["cache"]
    if rank == arguments["failing"]:

        def failed(_self: Reader, _unit: Any) -> int:
            raise Unsent(*arguments["error"]) if arguments["unsent"] else OSError(*arguments["error"])

        Reader.count = failed  # type: ignore[method-assign, assignment] # this process ends with the job
    ps.torch.loader(asked(arguments))


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
    """Ask what only this rank asks."""
    own = {**arguments, **arguments["each"][rank]}
    ps.torch.loader(CLAUSES[own.get("clause", "none")](asked(own)), jagged=own.get("jagged", ()))


def misgiven(rank: int, _size: int, _place: Path, arguments: dict[str, Any]) -> Any:
    """Give one rank something that is wrong, and wait for all, as a job does that goes on after an error."""
    ds: Any = asked(arguments)
    kind = arguments["kind"] if rank == 1 else ""
    try:
        ps.torch.loader({"shard": ds.shard(0, 2), "table": arguments["table"]}.get(kind, ds))
    finally:
        distributed.barrier()


def vanished(rank: int, _size: int, _place: Path, arguments: dict[str, Any]) -> Any:
    """Plan over a table of which a file is gone."""
    ds = asked(arguments)
    distributed.barrier()
    if rank == 0:
        Path(arguments["file"]).unlink()
    distributed.barrier()
    ps.torch.loader(ds)


def appended(rank: int, _size: int, _place: Path, arguments: dict[str, Any]) -> Any:
    """Return an epoch that was planned while somebody wrote to the table, between the start of one rank and the others."""
    if rank != 0:
        distributed.barrier()
    ds = asked(arguments)
    if rank == 0:
        pq.write_table(rows(range(10_000, 10_050)), Path(arguments["table"]) / "0-more.parquet")
        distributed.barrier()
    for _ in range(arguments.get("read", 0)):  # what is read again stays in memory
        assert len(list(ds)) == len(ds)
    return {"opened": ds.num_rows, "batches": [ids(batch) for batch in ps.torch.loader(ds)]}


def train(rank: int, _size: int, place: Path, arguments: dict[str, Any]) -> Any:
    """Train, or go on from a state: rows are noted, ranks wait for each other in each step, and all save their states.

    With `kill`, one rank is killed in the midst of a step, or after the last.
    """
    loader = ps.torch.loader(asked(arguments))
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
    """Return what each of two times two processes reads, where two and two need the same."""
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
    loader = ps.torch.loader(asked(arguments), **options)
    return {"place": list(mesh.get_coordinate() or ()), "epochs": [[ids(batch) for batch in loader] for _ in range(2)]}


def too_early(rank: int, size: int, place: Path, arguments: dict[str, Any]) -> Any:
    """Return what a loader gives that was made before the process group was."""
    if arguments["environment"]:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
    loader = ps.torch.loader(asked(arguments))
    alone = ps.torch.loader(asked(arguments), rank=0, world_size=1)
    join(rank, size, place)
    if arguments["alone"]:
        return [ids(batch) for batch in alone]
    return [ids(batch) for batch in loader]


def mixture(rank: int, _size: int, _place: Path, arguments: dict[str, Any]) -> Any:
    """Return the ids of all batches of two epochs of a mixture, whose weights and repeats may differ from rank to rank."""
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
    """Return two epochs of DeltaTorch's loader over a table that changes after rank 0 and before the others opened it.

    With the change `early`, the loader is made before the process group, and nothing changes.
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
            distributed.all_reduce(torch.ones(1))  # which waits for ever where steps are not equal
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
