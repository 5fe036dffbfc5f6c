"""Train with checkpoints, and resume from the last one on any number of processes.

    torchrun --nproc-per-node=3 examples/resume/train.py --work FOLDER
    torchrun --nproc-per-node=2 examples/resume/train.py --work FOLDER        # resumes where the first run stopped

The checkpoint contains `loader.state_dict()` of the first process: a few numbers. Each process writes the rows of each step
to a file in the folder, so that `demo.py` can count them. It needs penstock[torch].
"""
# ruff: noqa: INP001, T201 - a script, which prints what it does

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path

import numpy as np
import torch
import torch.distributed.nn  # before there is a process group, which it would keep alive until Python ends, and then abort
from torch import distributed

import penstock as ps

ROWS = 6_000
BATCH = 32
EVERY = 5


def write(table: Path) -> None:
    """Write points on a plane with a little noise."""
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, 3)).astype(np.float32)
    y = (x @ np.array([1, -2, 3], np.float32) + random.normal(0, 0.1, ROWS)).astype(np.float32)
    ps.write(table, data={"id": np.arange(ROWS), "x": x, "y": y}, mode="overwrite", row_group_rows=250)


def train(work: Path, kill: int | None) -> None:
    """Train one epoch, or the rest of it. With `kill`, the last process is killed in that step."""
    rank, size = distributed.get_rank(), distributed.get_world_size()
    loader = ps.torch.loader(ps.open(work / "table").shuffle(ps.WindowShuffle(rows=1_000), seed=3).batch(BATCH))
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    saved, step = work / "checkpoint.pt", 0
    if saved.exists():
        checkpoint = torch.load(saved, weights_only=True)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        loader.load_state_dict(checkpoint["data"])
        step = checkpoint["step"]
    if rank == 0:
        print(f"{size} processes start after step {step}, {len(loader)} steps remain")
    with (work / f"rows-{size}-{rank}.jsonl").open("w") as log:
        for batch in loader:
            step += 1
            if step == kill and rank == size - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(batch["x"])[:, 0], batch["y"])
            loss.backward()
            optimizer.step()
            print(json.dumps({"step": step, "rows": batch["id"].tolist()}), file=log, flush=True)
            if step % EVERY == 0 and rank == 0:
                checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save({**checkpoint, "data": loader.state_dict()}, work / "part.pt")
                (work / "part.pt").replace(saved)
    if rank == 0:
        print(f"the epoch ended after step {step}, with a loss of {loss.item():.3f}")


def main() -> None:
    """Join the process group and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for the table, the checkpoint and the row files")
    parser.add_argument("--kill", type=int, help="the step in which the last process is killed")
    options = parser.parse_args()
    distributed.init_process_group("gloo")
    if distributed.get_rank() == 0 and not (options.work / "table").exists():
        write(options.work / "table")
    distributed.barrier()
    train(options.work, options.kill)
    distributed.barrier()  # torch's threads free the last tensors before Python exits
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
