"""One process of a run of transformers.Trainer, over a dataset as a stream and by number; it notes the rows of each step.

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
import torch.distributed.nn  # before there is a process group, which it would keep alive until Python ends, and then abort
from torch import distributed

import penstock as ps

# By its name, so that types can be checked where it is not installed.
transformers: Any = import_module("transformers")

EPOCHS = 2


class Model(torch.nn.Module):
    """A line, and a list of the rows that it has seen."""

    def __init__(self) -> None:
        """Begin without any."""
        super().__init__()
        self.line = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = []

    def forward(self, id: torch.Tensor, triple: torch.Tensor) -> dict[str, Any]:  # noqa: A002 - the column's name
        """Note the rows, and return something to train on."""
        self.seen.append(id.tolist())
        return {"loss": self.line(triple.float()[:, None]).square().mean() * 1e-9}


def trained(dataset: Any, place: Path, resume: str | None = None, **options: Any) -> dict[str, Any]:
    """Return the rows of each step of two epochs, or of what is left of them after a checkpoint."""
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
    """Train on both kinds of datasets."""
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
    distributed.barrier()  # no process ends while another still waits for it
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
