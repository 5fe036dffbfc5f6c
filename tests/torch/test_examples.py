"""The examples run, on a CPU and on data that they find or make, and keep what they promise."""

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
    """Run an example in a folder of its own, and return what it prints."""
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


def shares(told: str) -> list[float]:
    """Return the shares that were right, epoch by epoch."""
    return [float(share) for share in re.findall(r"^epoch \d+: .* right \(([\d.]+)%\)", told, re.MULTILINE)]


@pytest.mark.parametrize("start", [(), TORCHRUN], ids=["one process", "two processes"])
def test_a_folder_of_images_is_trained_on(tmp_path: Path, start: tuple[str, ...]) -> None:
    """Images become a table, and a network learns more of them than a guess would give."""
    pytest.importorskip("cv2")
    told = run(tmp_path, *start, str(ROOT / "examples/imagefolder/train.py"), "--table", str(tmp_path / "images"))

    assert len(shares(told)) == 3
    assert shares(told)[-1] > 60


def test_a_folder_of_images_may_be_the_users_own(tmp_path: Path) -> None:
    """Folders are classes, sizes may differ, and what is no image is left out."""
    cv2, numpy = pytest.importorskip("cv2"), pytest.importorskip("numpy")
    for number in range(120):
        place = tmp_path / "images" / ("dark", "light")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        picture = numpy.full((10 + number % 7, 12, 3), 30 if number % 2 == 0 else 220, "uint8")
        cv2.imwrite(str(place / f"{number}.jpg"), picture)
    (tmp_path / "images" / "dark" / "notes.txt").write_text("no image")
    options = ("--images", str(tmp_path / "images"), "--table", str(tmp_path / "table"), "--epochs", "2")
    told = run(tmp_path, str(ROOT / "examples/imagefolder/train.py"), *options)

    assert shares(told)[-1] == 100


def test_a_table_of_numbers_is_trained_on(tmp_path: Path) -> None:
    """In two processes, and better than always saying the same."""
    told = run(tmp_path, *TORCHRUN, str(ROOT / "examples/tabular/train.py"), "--table", str(tmp_path / "flights"))
    late = float(re.findall(r"([\d.]+)% are late", told)[-1])

    assert len(shares(told)) == 2
    assert shares(told)[-1] > max(late, 100 - late)


def test_a_killed_job_goes_on_with_fewer_processes(tmp_path: Path) -> None:
    """Rows are counted over both runs: none twice, and no more lost than do not fill a batch."""
    told = run(tmp_path, str(ROOT / "examples/resume/demo.py"))

    assert "one of 3 processes was killed in step 33; torchrun ended with 1" in told
    assert "5952 rows were used once, 0 twice, 48 not at all" in told
