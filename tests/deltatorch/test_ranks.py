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

# What torchrun starts: a job whose loader is made before the process group.
SCRIPT = """
import json, os, sys
from pathlib import Path
import gloo_jobs

rank, place = int(os.environ["RANK"]), Path(sys.argv[2])
found = gloo_jobs.work("changed_table", rank, 2, place, {"table": sys.argv[1], "change": "early"})
Path(place, f"{rank}.json").write_text(json.dumps(found))
gloo_jobs.distributed.destroy_process_group()
"""


def by_torchrun(table: Path, place: Path) -> list[Any]:
    """Return what each of two ranks that torchrun starts found."""
    (place / "job.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    done = subprocess.run(
        [*command, str(place / "job.py"), str(table), str(place)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((place / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Return a table of two versions."""
    ps.write(tmp_path / "t", data={"id": list(range(100))}, format=DeltaFormat())
    ps.write(tmp_path / "t", data={"id": list(range(100, ROWS))}, format=DeltaFormat(), mode="append")
    return tmp_path / "t"


@pytest.mark.parametrize("change", ["append", "overwrite"])
def test_a_commit_between_the_starts_of_two_ranks_changes_nothing(ranks: Ranks, table: Path, change: str) -> None:
    """Rank 0 resolves the version for all; other columns that the table has since do not matter either."""
    found = ranks.done("changed_table", RANKS, table=str(table), change=change)

    assert [own["version"] for own in found] == ["1", "1"]
    assert [own["newest"] for own in found] == ["2", "2"]
    assert [own["ranks"] for own in found] == [[0, 2], [1, 2]]
    assert [own["alone"] for own in found] == [list(range(100))] * 2
    assert {own["rows"] for own in found} == {(ROWS + 1) // 2}
    for epoch in range(2):
        counts = Counter(one for own in found for batch in own["epochs"][epoch] for one in batch)
        assert {len(own["epochs"][epoch]) for own in found} == {found[0]["steps"]} == {13}
        assert set(counts) == set(range(ROWS))
        assert sum(counts.values()) == math.ceil(ROWS / RANKS) * RANKS
    assert found[0]["epochs"][0] != found[0]["epochs"][1]


def test_every_row_comes_at_most_once_where_the_rest_is_dropped(ranks: Ranks, table: Path) -> None:
    """Steps are equal, and fewer rows than one global batch are left out."""
    found = ranks.done("changed_table", RANKS, table=str(table), change="drop")
    counts = Counter(one for own in found for batch in own["epochs"][0] for one in batch)

    assert [len(own["epochs"][0]) for own in found] == [ROWS // 16] * 2
    assert (len(counts), set(counts.values())) == (ROWS // 16 * 16, {1})


@pytest.mark.slow
def test_a_loader_that_was_made_before_the_group_follows_torchrun(table: Path, tmp_path: Path) -> None:
    """What torchrun has put in the environment says who reads, so that no row is read by two."""
    found = by_torchrun(table, tmp_path)
    counts = Counter(one for own in found for batch in own["epochs"][0] for one in batch)

    assert [own["ranks"] for own in found] == [[0, 2], [1, 2]]
    assert set(counts) == set(range(100))
    assert found[0]["steps"] == found[1]["steps"] == 2
