"""Ranks that torchrun starts read one version of a Delta table through DeltaTorch's door, and take equal steps."""

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

import penstock as ps
from penstock.formats.delta import DeltaFormat

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

ROWS, RANKS = 203, 2

# Rank 0 opens the table; then it is changed; then rank 1 opens it.
SCRIPT = """
import json, os, sys
from pathlib import Path
import torch
from torch import distributed
from penstock.deltatorch import FieldSpec, IDBasedDeltaDataset, create_pytorch_dataloader, deltadataset
import penstock as ps
from penstock.formats.delta import DeltaFormat

table, place, change = sys.argv[1:4]
torch.set_num_threads(1)
rank = int(os.environ["RANK"])

def changed():
    if change == "append":
        ps.write(table, data={"id": list(range(1000, 1050))}, format=DeltaFormat(), mode="append")
    if change == "overwrite":
        ps.write(table, data={"other": [1.5]}, format=DeltaFormat(), mode="overwrite")

early = create_pytorch_dataloader(table, "id", [FieldSpec("id")], version=0) if change == "early" else None
alone = create_pytorch_dataloader(table, "id", [FieldSpec("id")], use_fixed_rank=True, rank=0, num_ranks=1, version=0)
distributed.init_process_group("gloo")
opened = deltadataset.open_for_ranks.__globals__["open_table"]

def late(*given, **options):
    if rank != 0:
        return opened(*given, **options)
    found = opened(*given, **options)
    changed()
    return found

deltadataset.open_for_ranks.__globals__["open_table"] = late
found = {"table": None}
try:
    loader = early or create_pytorch_dataloader(
        table, "id", [FieldSpec("id")], shuffle=True, batch_size=8, drop_last=change == "drop", version=None
    )
    epochs = []
    for _ in range(2):
        epochs.append([])
        for batch in loader:
            distributed.all_reduce(torch.ones(1))  # which waits for ever where steps are not equal
            epochs[-1].append(batch["id"].tolist())
    found = {"steps": len(loader), "rows": len(loader.dataset), "epochs": epochs, "version": loader.state_dict()["version"]}
    found["newest"] = ps.open(table)._table.snapshot.version
    found["ranks"] = [loader.dataset.rank, loader.dataset.num_ranks]
    found["alone"] = sorted(one for batch in alone for one in batch["id"].tolist())
except Exception as error:
    found = {"error": f"{type(error).__name__}: {error}"}
Path(place, f"{rank}.json").write_text(json.dumps(found))
"""


def ran(tmp_path: Path, change: str) -> list[Any]:
    """Return what each of two ranks found while the table was changed between their starts."""
    (tmp_path / "job.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    done = subprocess.run(
        [*command, str(tmp_path / "job.py"), str(tmp_path / "t"), str(tmp_path), change],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Return a table of two versions."""
    ps.write(tmp_path / "t", data={"id": list(range(100))}, format=DeltaFormat())
    ps.write(tmp_path / "t", data={"id": list(range(100, ROWS))}, format=DeltaFormat(), mode="append")
    return tmp_path / "t"


@pytest.mark.parametrize("change", ["append", "overwrite"])
@pytest.mark.usefixtures("table")
def test_a_commit_between_the_starts_of_two_ranks_changes_nothing(tmp_path: Path, change: str) -> None:
    """Rank 0 resolves the version for all; other columns that the table has since do not matter either."""
    found = ran(tmp_path, change)

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


@pytest.mark.usefixtures("table")
def test_every_row_comes_at_most_once_where_the_rest_is_dropped(tmp_path: Path) -> None:
    """Steps are equal, and fewer rows than one global batch are left out."""
    found = ran(tmp_path, "drop")
    counts = Counter(one for own in found for batch in own["epochs"][0] for one in batch)

    assert [len(own["epochs"][0]) for own in found] == [ROWS // 16] * 2
    assert (len(counts), set(counts.values())) == (ROWS // 16 * 16, {1})


@pytest.mark.usefixtures("table")
def test_a_loader_that_was_made_before_the_group_follows_torchrun(tmp_path: Path) -> None:
    """What torchrun has put in the environment says who reads, so that no row is read by two."""
    found = ran(tmp_path, "early")
    counts = Counter(one for own in found for batch in own["epochs"][0] for one in batch)

    assert [own["ranks"] for own in found] == [[0, 2], [1, 2]]
    assert set(counts) == set(range(100))
    assert found[0]["steps"] == found[1]["steps"] == 2
