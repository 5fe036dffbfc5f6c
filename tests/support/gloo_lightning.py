"""One process of a run of Lightning: trains, saves checkpoints, goes on from them, and notes which rows it was given.

    torchrun --nproc-per-node=2 gloo_lightning.py TABLE PLACE [NAME=CHECKPOINT ...]

Without checkpoints it trains two epochs, validates and predicts; with some, it goes on from each of them.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed.nn  # before there is a process group, which it would keep alive until Python ends, and then abort
from torch import distributed

import penstock as ps

# By its name, so that types can be checked where it is not installed.
lightning: Any = import_module("lightning")
ModelCheckpoint: Any = import_module("lightning.pytorch.callbacks").ModelCheckpoint

EPOCHS = 3


def training(table: str) -> ps.Dataset:
    """Return the rows to train on."""
    return ps.open(table).select("id", "triple").shuffle(ps.WindowShuffle(rows=30), seed=5).batch(8)


class Model(lightning.LightningModule):  # type: ignore[misc] # it has no type here
    """A line, and lists of the rows that it has seen."""

    def __init__(self, table: str) -> None:
        """Begin without any."""
        super().__init__()
        self.table, self.line = table, torch.nn.Linear(1, 1)
        self.trained: list[Any] = []
        self.validated: list[Any] = []

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        """Note the rows, and return something to train on."""
        self.trained.append([self.current_epoch, batch_idx, batch["id"].tolist()])
        loss: torch.Tensor = self.line(batch["triple"].float()[:, None]).square().mean() * 1e-9
        return loss

    def validation_step(self, batch: dict[str, Any], _: int) -> None:
        """Note the rows."""
        self.validated += batch["id"][batch["_valid"]].tolist()

    def predict_step(self, batch: dict[str, Any], _: int) -> Any:
        """Return the rows."""
        return batch["id"][batch["_valid"]].tolist()

    def train_dataloader(self) -> Any:
        """Return a loader, made when the process group is there."""
        return ps.torch.loader(training(self.table))

    def val_dataloader(self) -> Any:
        """Return a loader that leaves out no row."""
        return ps.torch.loader(ps.open(self.table).select("id").batch(10, last="pad"))

    predict_dataloader = val_dataloader

    def configure_optimizers(self) -> Any:
        """Return one."""
        return torch.optim.SGD(self.parameters(), lr=1e-9)


def trainer(place: Path, **options: Any) -> Any:
    """Return a trainer of two processes, which saves every five steps and at the end of each epoch."""
    steps = ModelCheckpoint(dirpath=place, filename="{step}", every_n_train_steps=5, save_top_k=-1)
    ends = ModelCheckpoint(dirpath=place, filename="end-{epoch}", save_top_k=-1, save_on_train_epoch_end=True)
    return lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=EPOCHS,
        callbacks=[steps, ends] if options.pop("saving", True) else [],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=options.pop("checkpointing", True),
        **options,
    )


class Lazy(Model):
    """One whose rows are filtered on the fly, so that its loader has no length."""

    def train_dataloader(self) -> Any:
        """Return a loader without length."""
        return ps.torch.loader(training(self.table).where(ps.col("third") == 0, lazy=True))


def refused(table: str, place: Path) -> str:
    """Return what is said where Lightning is to save the state of a loader that has no length."""
    try:
        trainer(place / "lazy", limit_val_batches=0).fit(Lazy(table))
    except ps.errors.ArgumentError as error:
        return str(error)
    return "nothing"


def main() -> None:
    """Train, or go on."""
    table, place, *checkpoints = sys.argv[1:]
    found: dict[str, Any] = {}
    if not checkpoints:
        model, runs = Model(table), trainer(Path(place), num_sanity_val_steps=2, check_val_every_n_epoch=1)
        runs.fit(model)
        found["trained"], model.validated = model.trained, []
        runs.validate(model, verbose=False)
        found["validated"] = model.validated
        found["refused"] = refused(table, Path(place))
        found["predicted"] = [number for part in runs.predict(model) or () for number in part]
    for checkpoint in checkpoints:
        name, _, path = checkpoint.partition("=")
        model = Model(table)
        runs = trainer(Path(place), saving=False, checkpointing=False, limit_val_batches=0)
        runs.fit(model, ckpt_path=path)
        found[name] = model.trained
    (Path(place) / f"{'resumed' if checkpoints else 'begun'}-{os.environ['RANK']}.json").write_text(json.dumps(found))
    distributed.barrier()  # no process ends while another still waits for it
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
