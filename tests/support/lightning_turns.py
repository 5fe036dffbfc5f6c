"""One process that trains with Lightning, where loader epochs differ from Lightning epochs, and resumes from checkpoints.

    python lightning_turns.py TABLE PLACE

It records the rows of complete runs, and of the runs resumed from each checkpoint.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import penstock as ps

# Imported by name, so that type checks pass where it is not installed.
lightning: Any = import_module("lightning")
ModelCheckpoint: Any = import_module("lightning.pytorch.callbacks").ModelCheckpoint
CombinedLoader: Any = import_module("lightning.pytorch.utilities").CombinedLoader


class Model(lightning.LightningModule):  # type: ignore[misc] # it is untyped here
    """A linear model that records the rows it gets."""

    def __init__(self, data: Callable[[], Any]) -> None:
        """Create the model with an empty record."""
        super().__init__()
        self.data, self.line = data, torch.nn.Linear(1, 1)
        self.seen: list[Any] = []

    def train_dataloader(self) -> Any:
        """Return the training data."""
        return self.data()

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        """Record the rows and return a loss."""
        parts = batch if isinstance(batch, list | tuple) else [batch]
        self.seen.append([None if part is None else part["id"].tolist() for part in parts])
        loss: torch.Tensor = self.line(torch.zeros(1, 1)).mean()
        return loss

    def configure_optimizers(self) -> Any:
        """Return an optimizer."""
        return torch.optim.SGD(self.parameters(), lr=1e-9)


def fit(place: Path, data: Callable[[], Any], checkpoint: str | None = None, epochs: int = 2, **options: Any) -> list[Any]:
    """Return the rows that a run gets."""
    model, saving = Model(data), ModelCheckpoint(dirpath=place, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=epochs,
        callbacks=[] if checkpoint else [saving],
        enable_checkpointing=not checkpoint,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    ).fit(model, ckpt_path=checkpoint)
    return model.seen


def main() -> None:
    """Train, resume from each checkpoint, and train with loaded states and with epochs set by hand."""
    table, place = sys.argv[1], Path(sys.argv[2])
    ds = ps.open(table).select("id").limit(16).shuffle(seed=1).batch(4)

    single = ps.open(table).select("id").limit(16).shuffle(seed=1)
    mixture = ps.mix([(single, 1), (single, 1)]).batch(4)

    def combined(mode: str) -> Any:
        return CombinedLoader([ps.torch.loader(ds), ps.torch.loader(ds.limit(8))], mode)

    kinds: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
        "repeat": (lambda: ps.torch.loader(ds.repeat(2)), {}),
        "cycle": (lambda: combined("max_size_cycle"), {}),
        "max": (lambda: combined("max_size"), {}),
        "limit": (lambda: ps.torch.loader(ds), {"limit_train_batches": 2}),
        "overfit": (lambda: ps.torch.loader(ds), {"overfit_batches": 2}),
        "overfit mixture": (lambda: ps.torch.loader(mixture), {"overfit_batches": 2}),
        "reload": (lambda: ps.torch.loader(ds), {"reload_dataloaders_every_n_epochs": 1}),
    }
    found: dict[str, Any] = {}
    for kind, (data, options) in kinds.items():
        whole = fit(place / kind, data, **options)
        steps = range(1, len(whole))
        rest = [fit(place / kind, data, str(place / kind / f"step={step}.ckpt"), **options) for step in steps]
        found[kind] = {"whole": whole, "rest": rest}
    first = ps.torch.loader(ds)
    first.set_epoch(2)
    batches = iter(first)
    next(batches)
    loaded, later = ps.torch.loader(ds), ps.torch.loader(ds)
    loaded.load_state_dict(first.state_dict())
    later.set_epoch(2)
    found["loaded"] = fit(place / "loaded", lambda: loaded, epochs=1)
    found["set"] = fit(place / "set", lambda: later)
    (place / "turns.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
