"""Published examples run unchanged. Names that they leave out are defined, and paths are replaced."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import petastorm_tables as tables
import pytest

import penstock as ps
from penstock.codecs import Npy
from penstock.formats.petastorm import PetastormFormat

ROOT = Path(__file__).parent.parent.parent
SPARK = {
    "000-1": "SparkSession.builder",
    "001-0": "SparkSession.builder",
    "002-0": "spark.conf.set",
    "002-1": "make_spark_converter(df)",
    "002-3": "converter.delete()",
    "002-4": "spark.createDataFrame",
    "004-0": "import pyspark",
    "004-1": "spark.createDataFrame",
    "004-2": "spark.read",
}
TENSORFLOW = {"001-2": "tf.Session", "002-2": "make_tf_dataset", "002-5": "tf_util"}
DELTATORCH = {
    "004-3": "# utils.py",
    "004-4": "from deltatorch import",
    "004-5": "create_data_loader(",
    "004-7": "train_dl",
    "004-8": "test_dl",
}
NO_PYTHON = {"000-0": "%%configure", "000-5": "", "004-6": "> type(train_dl)"}
"""Blocks that do not run here, with the text that is the reason. `tests/deltatorch` runs those of DeltaTorch."""

TORCH_NAMES = """
import numpy as np, torch
from petastorm import make_reader, TransformSpec
from petastorm.reader import Reader

class transforms:
    class Compose:
        def __init__(self, steps): self.steps = steps
        def __call__(self, value):
            for step in self.steps: value = step(value)
            return value
    class ToTensor:
        def __call__(self, image): return torch.from_numpy(image[None].astype(np.float32) / 255)
    class Normalize:
        def __init__(self, mean, std): self.mean, self.std = mean[0], std[0]
        def __call__(self, image): return (image - self.mean) / self.std

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(784, 10)
    def forward(self, images): return self.layer(images.flatten(1)).log_softmax(1)

def train(model, device, loader, log_interval, optimizer, epoch):
    rows = 0
    for images, digits in loader:
        optimizer.zero_grad()
        torch.nn.functional.nll_loss(model(images), digits).backward()
        optimizer.step()
        rows += len(digits)
    print("trained", rows, tuple(images.shape[1:]), images.dtype, digits.dtype)

def test(model, device, loader):
    print("tested", sum(len(digits) for _, digits in loader))
"""

PRELUDES = {
    "Reader(": "from petastorm.reader import Reader\n",
    "spark._jvm": "from unittest import mock\nspark = mock.Mock()\n"
    "spark._jvm.com.microsoft.azure.synapse.tokenlibrary.TokenLibrary.getConnectionString.return_value = 'token'\n",
    "import torch": TORCH_NAMES,
}
"""Code that defines the names a block leaves out, by a text in the block."""


def blocks() -> dict[str, str]:
    """Return all blocks that are marked as Python, by name."""
    files = sorted(Path(os.environ.get("PENSTOCK_SEEDS") or ROOT.parent / "shared" / "seeds").glob("*.txt"))
    texts = {file.stem[:3]: re.findall(r"```python\n(.*?)```", file.read_text(), re.DOTALL) for file in files}
    return {f"{file}-{number}": textwrap.dedent(text) for file, found in texts.items() for number, text in enumerate(found)}


NOT_RUN = {**SPARK, **TENSORFLOW, **DELTATORCH, **NO_PYTHON}
BLOCKS = {name: text for name, text in blocks().items() if name not in NOT_RUN}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the URLs that replace those of the examples."""
    place = tmp_path_factory.mktemp("seeds")
    digits = ps.Schema(
        "Mnist", [ps.Field("idx", np.int32), ps.Field("digit", np.int64), ps.Field("image", np.uint8, (28, 28), Npy())]
    )
    for part in ("train", "test"):
        rows = ({"idx": n, "digit": n % 10, "image": np.full((28, 28), n, np.uint8)} for n in range(70))
        ps.write(str(place / "mnist" / part), digits, rows, format=PetastormFormat(), row_group_rows=20)
    hello = tables.small(place / "data_directory")
    tables.plain(place / "plain", {"id": [1, 2], "value1": [3, 4], "value2": [5.0, 6.0]})
    return {
        "file:///localpath": place.as_uri(),
        "abfs://default@adls4synapsemlgpu.dfs.core.windows.net": place.as_uri(),
        "hdfs://myhadoop/some_dataset": hello,
        "abfs://<container_name>/<data directory path>/": hello,
        "plain": (place / "plain").as_uri(),
    }


def with_places(text: str, places: dict[str, str]) -> str:
    """Return a block with its paths replaced."""
    if "make_batch_reader" in text:
        return text.replace("abfs://<container_name>/<data directory path>/", places["plain"])
    for old, new in places.items():
        text = text.replace(old, new) if old != "plain" else text
    return text


def test_every_block_is_run_unless_it_needs_another_library() -> None:
    """A changed file hides no block: each block runs, or contains the text that is the reason to leave it out."""
    every = blocks()
    if not every:
        pytest.skip("There are no published examples beside the repository. Set PENSTOCK_SEEDS to the folder that holds them.")

    assert {name for name, word in NOT_RUN.items() if word not in every[name]} == set()
    assert every["000-5"].strip() == ""
    assert list(BLOCKS) == ["000-2", "000-3", "000-4", "001-1", "001-3", "003-0"]


@pytest.mark.parametrize("text", BLOCKS.values(), ids=BLOCKS)
def test_a_published_example_runs_unchanged(text: str, places: dict[str, str], tmp_path: Path) -> None:
    """A published example runs under the drop-in, as a script."""
    if "torch" in text:
        pytest.importorskip("torch")
    prelude = "".join(given for word, given in PRELUDES.items() if word in text)
    script = tmp_path / "example.py"
    script.write_text(prelude + with_places(text, places))

    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "penstock.dropin", str(script)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
    )

    assert found.stderr == ""
    if "mnist" in text:
        assert "trained 700 (1, 28, 28) torch.float32 torch.int64\n" in found.stdout
        assert "tested 700\n" in found.stdout
    elif "make_batch_reader" in text:
        assert "Batched read:\nvalue1: [3 4] value2: [5. 6.]\n" in found.stdout
    else:
        assert found.stdout.count("Small_view(id=") == 40
        assert "np.str_('row 39')" in found.stdout
