"""Train a small network on a folder of images that has one folder per class.

    python examples/imagefolder/train.py                             # on the digits of scikit-learn, or on drawn shapes
    python examples/imagefolder/train.py --images FOLDER             # on your own images; sizes may differ
    torchrun --nproc-per-node=2 examples/imagefolder/train.py        # in two processes

The script writes the images to a table and trains on it: shuffled, decoded on threads, sharded over the processes.
It needs penstock[image,torch].
"""
# ruff: noqa: INP001, T201 - a script, which prints what it does

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
import torch.distributed.nn  # before there is a process group, which it would keep alive until Python ends, and then abort
from torch import distributed

import penstock as ps

SIDE = 16


def draw(folder: Path) -> None:
    """Write images of several classes: the digits of scikit-learn if it is installed, otherwise drawn shapes."""
    try:
        from sklearn.datasets import load_digits

        digits = load_digits()
        images = [(str(label), pixels * 16) for pixels, label in zip(digits.images, digits.target, strict=True)]
    except ImportError:
        images = list(_shapes(np.random.default_rng(0)))
    for number, (label, image) in enumerate(images):
        directory = folder / label
        directory.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(directory / f"{number:05}.png"), np.clip(image, 0, 255).astype(np.uint8))


def _shapes(random: np.random.Generator) -> Any:
    for label in ("circle", "square", "cross") * 200:
        side = int(random.integers(SIDE, 2 * SIDE))
        image = random.normal(40, 20, (side, side, 3))
        center, size = (int(at) for at in random.integers(side // 3, side // 2, 2))
        corner, opposite = (center - size // 2,) * 2, (center + size // 2,) * 2
        if label == "circle":
            cv2.circle(image, (center, center), size // 2, (220, 180, 160), 2)
        elif label == "square":
            cv2.rectangle(image, corner, opposite, (220, 180, 160), 2)
        else:
            cv2.line(image, corner, opposite, (220, 180, 160), 2)
            cv2.line(image, (corner[0], opposite[1]), (opposite[0], corner[1]), (220, 180, 160), 2)
        yield label, image


def pack(folder: Path, table: Path) -> None:
    """Write a folder of images as a table; the sorted folder names are the classes."""
    schema = ps.Schema(
        "Images",
        [
            ps.Field("file", str),
            ps.Field("label", np.int64),
            ps.Field("image", np.uint8, (None, None, 3), ps.codecs.Png()),
        ],
    )
    with ps.write(table, schema, mode="overwrite", row_group_rows=128) as rows:
        for label, directory in enumerate(sorted(path for path in folder.iterdir() if path.is_dir())):
            for file in sorted(directory.iterdir()):
                image = cv2.imread(str(file), cv2.IMREAD_COLOR)
                if image is not None:  # None: not an image
                    colours = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
                    rows.append({"file": f"{directory.name}/{file.name}", "label": label, "image": colours})


def ready(batch: dict[str, Any]) -> dict[str, Any]:
    """Return images for the network: channels first, values from 0 to 1. Add augmentation here."""
    return {"image": batch["image"].transpose(0, 3, 1, 2).astype(np.float32) / 255, "label": batch["label"]}


def network(classes: int) -> torch.nn.Module:
    """Return a small convolutional network."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(32 * 16, classes),
    )


def evaluate(model: torch.nn.Module, loader: Any) -> tuple[int, int]:
    """Return the numbers of correctly classified images and of all images, over all processes."""
    counts = torch.zeros(2, dtype=torch.int64)
    with torch.no_grad():
        for batch in loader:
            right = model(batch["image"]).argmax(1) == batch["label"]
            # The last batch is padded to equal sizes on all processes; padded rows do not count.
            counts += torch.stack([(right & batch["_valid"]).sum(), batch["_valid"].sum()])
    if distributed.is_initialized():
        distributed.all_reduce(counts)
    right, total = counts.tolist()
    return right, total


def train(table: Path, epochs: int) -> None:
    """Train on four fifths of the images, and print the accuracy on the others after each epoch."""
    ds = ps.open(table).ragged(ps.Resize(SIDE, SIDE), "image").select("image", "label").map(ready)
    parts = ds.split({"train": 0.8, "test": 0.2}, by="file")
    # Each `iter()` is the next epoch; with a process group, each process gets its shard.
    batches = ps.torch.loader(parts["train"].shuffle(seed=1).batch(32))
    test = ps.torch.loader(parts["test"].batch(64, last="pad"))
    classes = int(ps.open(table).select("label").to_arrow().column("label").to_numpy().max()) + 1
    torch.manual_seed(0)
    model: torch.nn.Module = network(classes)
    if distributed.is_initialized():
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(epochs):
        for batch in batches:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"]).backward()
            optimizer.step()
        right, total = evaluate(model, test)
        if not distributed.is_initialized() or distributed.get_rank() == 0:
            print(f"epoch {epoch}: {right} of {total} images classified right ({right / total:.1%})")


def main() -> None:
    """Write the table and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="a folder with one folder of images per class")
    parser.add_argument("--table", type=Path, default=Path(tempfile.gettempdir()) / "penstock-imagefolder")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    if distributed.is_torchelastic_launched():
        distributed.init_process_group("gloo")
    if not distributed.is_initialized() or distributed.get_rank() == 0:
        with tempfile.TemporaryDirectory() as folder:
            if options.images is None:
                draw(Path(folder))
            pack(options.images or Path(folder), options.table)
    if distributed.is_initialized():
        distributed.barrier()
    train(options.table, options.epochs)
    if distributed.is_initialized():
        distributed.barrier()  # torch's threads free the last tensors before Python exits
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
