"""The code of the article that presents DeltaTorch runs on real digits. Penstock's writer replaces Spark."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.formats.delta import DeltaFormat

torch = pytest.importorskip("torch")
tqdm = pytest.importorskip("tqdm").tqdm
datasets = pytest.importorskip("sklearn.datasets")
deltatorch = pytest.importorskip("penstock.deltatorch")
nn, optim, DataLoader = torch.nn, torch.optim, torch.utils.data.DataLoader
create_pytorch_dataloader, FieldSpec = deltatorch.create_pytorch_dataloader, deltatorch.FieldSpec

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parent.parent.parent


class BinaryToFloatTensor:
    """Turns the bytes of an image into a tensor of floats."""

    def __call__(self, pic: bytes) -> Any:
        """Return an image as a tensor."""
        return torch.from_numpy(np.frombuffer(pic, dtype=np.uint8).reshape(8, 8).copy()).float()


@pytest.mark.slow
def test_the_articles_snippet_trains(tmp_path: Path) -> None:
    """The loader is a `DataLoader` of torch with the right length, each epoch has all digits, and the network learns."""
    digits = datasets.load_digits(n_class=4)
    rows = [
        {"id": number, "label": float(label), "features": image.astype(np.uint8).tobytes()}
        for number, (image, label) in enumerate(zip(digits.images, digits.target, strict=True))
    ]
    schema = ps.Schema("", [ps.Field("id", np.int32), ps.Field("label", np.float32), ps.Field("features", bytes)])
    ps.write(tmp_path / "train", schema, rows, format=DeltaFormat(), mode="overwrite", row_group_rows=50)
    train_dl = create_pytorch_dataloader(
        str(tmp_path / "train"),
        id_field="id",
        fields=[FieldSpec("features", transform=BinaryToFloatTensor()), FieldSpec("label")],
        num_workers=4,
        shuffle=True,
        batch_size=32,
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    accuracies = []
    for _ in range(3):
        correct = total = 0
        progress = tqdm(enumerate(train_dl), total=len(train_dl), file=io.StringIO())
        for _, data in progress:
            inputs, labels = data["features"], data["label"]
            optimizer.zero_grad()
            outputs = model(inputs.unsqueeze(1))
            loss = nn.CrossEntropyLoss()(outputs, labels.long())
            loss.backward()
            optimizer.step()
            total += labels.size(0)
            correct += int((outputs.argmax(1) == labels.long()).sum())
        assert (progress.n, total) == (len(train_dl), len(rows))
        accuracies.append(correct / total)

    assert isinstance(train_dl, DataLoader)
    assert accuracies[-1] > 0.95


@pytest.mark.slow
def test_the_example_learns_digits(tmp_path: Path) -> None:
    """The example reads all training digits in each epoch, and recognizes at least 85% of the test digits."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    found = subprocess.run(
        [sys.executable, str(ROOT / "examples/mnist_delta.py"), "--table", str(tmp_path)],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-6000:]

    assert re.findall(r"of (\d+) digits right .* (\d+) batches", found.stdout) == [("1347", "43")] * 3
    assert "43/43" in found.stderr
    assert float(re.findall(r"test: ([\d.]+)% right", found.stdout)[0]) >= 85
