"""Ranks read one version of a Delta table through `penstock.deltatorch`, and take equal steps."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from gloo_ranks import Ranks

import penstock as ps
from penstock.formats.delta import DeltaFormat

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

ROWS, RANKS = 203, 2

# The job that torchrun starts. It makes its loader before the process group.
SCRIPT = """
import json, os, sys
from pathlib import Path
import gloo_jobs

rank, place = int(os.environ["RANK"]), Path(sys.argv[2])
found = gloo_jobs.work("changed_table", rank, 2, place, {"table": sys.argv[1], "change": "early"})
Path(place, f"{rank}.json").write_text(json.dumps(found))
gloo_jobs.distributed.destroy_process_group()
"""


def run_with_torchrun(table: Path, folder: Path) -> list[Any]:
    """Run the job on two ranks with torchrun, and return the result of each."""
    (folder / "job.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    done = subprocess.run(
        [*command, str(folder / "job.py"), str(table), str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Write a table of two versions, and return its path."""
    ps.write(tmp_path / "t", data={"id": list(range(100))}, format=DeltaFormat())
    ps.write(tmp_path / "t", data={"id": list(range(100, ROWS))}, format=DeltaFormat(), mode="append")
    return tmp_path / "t"


@pytest.mark.parametrize("change", ["append", "overwrite"])
def test_a_commit_between_the_starts_of_two_ranks_changes_nothing(ranks: Ranks, table: Path, change: str) -> None:
    """All ranks read the version that rank 0 resolved, even if the newest version has other columns."""
    found = ranks.done("changed_table", RANKS, table=str(table), change=change)

    assert [result["version"] for result in found] == ["1", "1"]
    assert [result["newest"] for result in found] == ["2", "2"]
    assert [result["ranks"] for result in found] == [[0, 2], [1, 2]]
    assert [result["alone"] for result in found] == [list(range(100))] * 2
    assert {result["rows"] for result in found} == {(ROWS + 1) // 2}
    for epoch in range(2):
        counts = Counter(one for result in found for batch in result["epochs"][epoch] for one in batch)
        assert {len(result["epochs"][epoch]) for result in found} == {found[0]["steps"]} == {13}
        assert set(counts) == set(range(ROWS))
        assert sum(counts.values()) == math.ceil(ROWS / RANKS) * RANKS
    assert found[0]["epochs"][0] != found[0]["epochs"][1]


def test_every_row_comes_at_most_once_with_drop_last(ranks: Ranks, table: Path) -> None:
    """With `drop_last`, ranks take equal steps, repeat no row, and drop less than one global batch."""
    found = ranks.done("changed_table", RANKS, table=str(table), change="drop")
    counts = Counter(one for result in found for batch in result["epochs"][0] for one in batch)

    assert [len(result["epochs"][0]) for result in found] == [ROWS // 16] * 2
    assert (len(counts), set(counts.values())) == (ROWS // 16 * 16, {1})


@pytest.mark.slow
def test_a_loader_that_is_made_before_the_group_uses_torchruns_environment(table: Path, tmp_path: Path) -> None:
    """A loader that is made before the process group takes its rank from the environment, and reads only its share."""
    found = run_with_torchrun(table, tmp_path)
    counts = Counter(one for result in found for batch in result["epochs"][0] for one in batch)

    assert [result["ranks"] for result in found] == [[0, 2], [1, 2]]
    assert set(counts) == set(range(100))
    assert found[0]["steps"] == found[1]["steps"] == 2
