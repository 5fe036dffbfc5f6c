"""One process of a transformers.Trainer run over an iterable and a map-style dataset; it records the rows of each step.

torchrun --nproc-per-node=2 gloo_transformers.py TABLE PLACE
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
transformers: Any = import_module("transformers")

EPOCHS = 2


class Model(torch.nn.Module):
    """A linear model that records the rows it gets."""

    def __init__(self) -> None:
        """Create the model with an empty record."""
        super().__init__()
        self.line = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = []

    def forward(self, id: torch.Tensor, triple: torch.Tensor) -> dict[str, Any]:  # noqa: A002 - the column's name
        """Record the rows and return a loss."""
        self.seen.append(id.tolist())
        return {"loss": self.line(triple.float()[:, None]).square().mean() * 1e-9}


def trained(dataset: Any, place: Path, resume: str | None = None, **options: Any) -> dict[str, Any]:
    """Return the rows of each step of two epochs, or of the steps after a checkpoint."""
    options = {"save_strategy": "no", **options}
    arguments = transformers.TrainingArguments(
        output_dir=str(place),
        use_cpu=True,
        per_device_train_batch_size=8,
        num_train_epochs=EPOCHS,
        learning_rate=1e-9,
        report_to=[],
        disable_tqdm=True,
        **options,
    )
    model = Model()
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=dataset)
    trainer.train(resume_from_checkpoint=resume)
    return {"seen": model.seen, "steps": trainer.state.global_step, "epoch": trainer.state.epoch}


def main() -> None:
    """Train on both kinds of datasets, and write the results."""
    table, place = sys.argv[1], Path(sys.argv[2])
    ds = ps.open(table).select("id", "triple")
    stream = ds.shuffle(ps.WindowShuffle(rows=30), seed=5)
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 18}
    found = {
        "stream": trained(ps.torch.IterableDataset(stream), place, **saving),
        "resumed": trained(ps.torch.IterableDataset(stream), place, resume=str(place / "checkpoint-18")),
        "workers": trained(ps.torch.IterableDataset(stream), place, dataloader_num_workers=2),
        "numbers": trained(ps.torch.MapDataset(ds), place),
    }
    (place / f"transformers-{os.environ['RANK']}.json").write_text(json.dumps(found))
    distributed.barrier()  # no process may exit while another one waits for it
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
