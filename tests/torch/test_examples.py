"""The examples run on a CPU, on data that they find or generate, and reach the results that they announce."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.slow]

ROOT = Path(__file__).parent.parent.parent
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def run(tmp_path: Path, *arguments: str) -> str:
    """Run an example in a temporary folder, and return what it prints."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments],
        check=False,
        cwd=tmp_path,
        env={**environment, "PYTHONFAULTHANDLER": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return done.stdout


def accuracies(output: str) -> list[float]:
    """Return the percentage of correct predictions of each epoch."""
    return [float(accuracy) for accuracy in re.findall(r"^epoch \d+: .* right \(([\d.]+)%\)", output, re.MULTILINE)]


@pytest.mark.parametrize("start", [(), TORCHRUN], ids=["one process", "two processes"])
def test_a_folder_of_images_is_trained_on(tmp_path: Path, start: tuple[str, ...]) -> None:
    """The example writes images to a table, and trains a network that is right more often than a guess."""
    pytest.importorskip("cv2")
    output = run(tmp_path, *start, str(ROOT / "examples/imagefolder/train.py"), "--table", str(tmp_path / "images"))

    assert len(accuracies(output)) == 3
    assert accuracies(output)[-1] > 60


def test_a_folder_of_images_may_be_the_users_own(tmp_path: Path) -> None:
    """Each folder is a class, images may differ in size, and files that are no images are ignored."""
    cv2, numpy = pytest.importorskip("cv2"), pytest.importorskip("numpy")
    for number in range(120):
        folder = tmp_path / "images" / ("dark", "light")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        picture = numpy.full((10 + number % 7, 12, 3), 30 if number % 2 == 0 else 220, "uint8")
        cv2.imwrite(str(folder / f"{number}.jpg"), picture)
    (tmp_path / "images" / "dark" / "notes.txt").write_text("no image")
    options = ("--images", str(tmp_path / "images"), "--table", str(tmp_path / "table"), "--epochs", "2")
    output = run(tmp_path, str(ROOT / "examples/imagefolder/train.py"), *options)

    assert accuracies(output)[-1] == 100


def test_a_table_of_numbers_is_trained_on(tmp_path: Path) -> None:
    """The example trains in two processes, and beats the better one of the two constant predictions."""
    output = run(tmp_path, *TORCHRUN, str(ROOT / "examples/tabular/train.py"), "--table", str(tmp_path / "flights"))
    late = float(re.findall(r"([\d.]+)% are late", output)[-1])

    assert len(accuracies(output)) == 2
    assert accuracies(output)[-1] > max(late, 100 - late)


def test_a_killed_job_resumes_with_fewer_processes(tmp_path: Path) -> None:
    """Over both runs no row is used twice, and only rows that do not fill a batch are unused."""
    output = run(tmp_path, str(ROOT / "examples/resume/demo.py"))

    assert "one of 3 processes was killed in step 33; torchrun ended with 1" in output
    assert "5952 rows were used once, 0 twice, 48 not at all" in output
