"""One process of a Lightning run: trains, saves checkpoints, resumes from them, and records the rows it gets.

    torchrun --nproc-per-node=2 gloo_lightning.py TABLE PLACE [NAME=CHECKPOINT ...]

Without checkpoints it trains, validates and predicts; with checkpoints, it resumes from each of them.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed.nn  # imported before the process group exists; else it keeps the group alive until exit, which aborts
from torch import distributed

import penstock as ps

# Imported by name, so that type checks pass where it is not installed.
lightning: Any = import_module("lightning")
ModelCheckpoint: Any = import_module("lightning.pytorch.callbacks").ModelCheckpoint

EPOCHS = 3


def training(table: str) -> ps.Dataset:
    """Return the rows to train on."""
    return ps.open(table).select("id", "triple").shuffle(ps.WindowShuffle(rows=30), seed=5).batch(8)


class Model(lightning.LightningModule):  # type: ignore[misc] # it is untyped here
    """A linear model that records the rows it gets."""

    def __init__(self, table: str) -> None:
        """Create the model with empty records."""
        super().__init__()
        self.table, self.line = table, torch.nn.Linear(1, 1)
        self.trained: list[Any] = []
        self.validated: list[Any] = []

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor:
        """Record the rows and return a loss."""
        self.trained.append([self.current_epoch, batch_idx, batch["id"].tolist()])
        loss: torch.Tensor = self.line(batch["triple"].float()[:, None]).square().mean() * 1e-9
        return loss

    def validation_step(self, batch: dict[str, Any], _: int) -> None:
        """Record the rows."""
        self.validated += batch["id"][batch["_valid"]].tolist()

    def predict_step(self, batch: dict[str, Any], _: int) -> Any:
        """Return the rows."""
        return batch["id"][batch["_valid"]].tolist()

    def train_dataloader(self) -> Any:
        """Return a loader, created after the process group."""
        return ps.torch.loader(training(self.table))

    def val_dataloader(self) -> Any:
        """Return a loader that pads the last batch, so that no row is dropped."""
        return ps.torch.loader(ps.open(self.table).select("id").batch(10, last="pad"))

    predict_dataloader = val_dataloader

    def configure_optimizers(self) -> Any:
        """Return an optimizer."""
        return torch.optim.SGD(self.parameters(), lr=1e-9)


def trainer(place: Path, **options: Any) -> Any:
    """Return a trainer of two processes that saves every five steps and at the end of each epoch."""
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
    """A model whose rows are filtered during reading, so that its loader has no length."""

    def train_dataloader(self) -> Any:
        """Return a loader without a length."""
        return ps.torch.loader(training(self.table).where(ps.col("third") == 0, lazy=True))


def error_without_length(table: str, place: Path) -> str:
    """Return the error message when Lightning saves the state of a loader without a length."""
    try:
        trainer(place / "lazy", limit_val_batches=0).fit(Lazy(table))
    except ps.errors.ArgumentError as error:
        return str(error)
    return "nothing"


def main() -> None:
    """Train, or resume from checkpoints."""
    table, place, *checkpoints = sys.argv[1:]
    found: dict[str, Any] = {}
    if not checkpoints:
        model, runs = Model(table), trainer(Path(place), num_sanity_val_steps=2, check_val_every_n_epoch=1)
        runs.fit(model)
        found["trained"], model.validated = model.trained, []
        runs.validate(model, verbose=False)
        found["validated"] = model.validated
        found["refused"] = error_without_length(table, Path(place))
        found["predicted"] = [number for part in runs.predict(model) or () for number in part]
    for checkpoint in checkpoints:
        name, _, path = checkpoint.partition("=")
        model = Model(table)
        runs = trainer(Path(place), saving=False, checkpointing=False, limit_val_batches=0)
        runs.fit(model, ckpt_path=path)
        found[name] = model.trained
    (Path(place) / f"{'resumed' if checkpoints else 'begun'}-{os.environ['RANK']}.json").write_text(json.dumps(found))
    distributed.barrier()  # no process may exit while another one waits for it
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
