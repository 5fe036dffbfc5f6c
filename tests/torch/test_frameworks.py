"""Lightning, Accelerate and transformers.Trainer really run, in two processes: every row is seen once per epoch."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from strategies import rows

import penstock as ps

pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.slow]

SUPPORT = Path(__file__).parent.parent / "support"
ROWS, RANKS, STEPS = 208, 2, 13


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table of two files, whose rows make thirteen batches of eight on each of two ranks."""
    place = tmp_path_factory.mktemp("table")
    for at in range(2):
        pq.write_table(rows(range(at * ROWS // 2, (at + 1) * ROWS // 2)), place / f"{at}.parquet", row_group_size=8)
    return place


def needed(library: str) -> None:
    """Skip what needs a library that is not installed."""
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed.")


def run(script: str, table: Path, place: Path, name: str, *arguments: str) -> list[Any]:
    """Run a script by torchrun in two processes, and return what each of them noted."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    command = [*torchrun, str(SUPPORT / script), str(table), str(place), *arguments]
    told = {"PYTHONPATH": os.pathsep.join(sys.path), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    found = subprocess.run(
        command, check=False, cwd=place, env={**os.environ, **told}, capture_output=True, text=True, timeout=300
    )
    assert found.returncode == 0, found.stderr[-6000:]
    return [json.loads((place / f"{name}-{rank}.json").read_text()) for rank in range(RANKS)]


def joined(found: Any) -> list[int]:
    """Return all numbers of lists of lists, however deep."""
    return [number for part in found for number in (joined(part) if isinstance(part, list) else [part])]


def assert_once(epochs: Any) -> None:
    """Check that each epoch has every row once over all ranks."""
    for epoch in zip(*epochs, strict=True):
        assert sorted(joined(list(epoch))) == list(range(ROWS))


def test_lightning_fits_and_goes_on_from_its_own_checkpoints(table: Path, tmp_path: Path) -> None:
    """Three epochs see every row once each; from a checkpoint in mid-epoch, or at its end, the identical rest follows."""
    needed("lightning")
    begun = run("gloo_lightning.py", table, tmp_path, "begun")
    marks = {"5": "step=5", "20": "step=20", "13": "end-epoch=0", "26": "end-epoch=1"}
    checkpoints = [f"{step}={tmp_path / name}.ckpt" for step, name in marks.items()]
    resumed = run("gloo_lightning.py", table, tmp_path, "resumed", *checkpoints)

    trained = [own["trained"] for own in begun]
    assert [[step[:2] for step in own] for own in trained] == [[[at // STEPS, at % STEPS] for at in range(3 * STEPS)]] * RANKS
    assert_once([[[step[2] for step in own if step[0] == epoch] for epoch in range(3)] for own in trained])
    assert len({json.dumps(own[at][2]) for own in trained for at in (0, STEPS, 2 * STEPS)}) == 3 * RANKS
    for whole, rest in zip(trained, resumed, strict=True):
        assert rest == {step: whole[int(step) :] for step in marks}
    for stage in ("validated", "predicted"):
        assert sorted(joined([own[stage] for own in begun])) == list(range(ROWS))
    assert {own["refused"] for own in begun} == {
        "Lightning saves the state of a loader without length, of which it fetches a batch before it is needed, so that a "
        "resume would lose that batch; expected a length. Leave lazy=True out of .where(), and give .repeat() a number."
    }


def test_lightning_goes_on_where_its_epochs_are_not_those_of_the_loader(table: Path, tmp_path: Path) -> None:
    """Several epochs in one of Lightning's, cycled and exhausted loaders, parts of epochs: the identical rest follows."""
    needed("lightning")
    told = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SUPPORT / "lightning_turns.py"), str(table), str(tmp_path)]
    done = subprocess.run(
        command, check=False, cwd=tmp_path, env={**os.environ, **told}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-6000:]
    found = json.loads((tmp_path / "turns.json").read_text())

    loader = ps.loader(ps.open(str(table)).select("id").limit(16).shuffle(seed=1).batch(4))
    epochs = [[[batch["id"].tolist()] for batch in loader] for _ in range(4)]
    assert found["repeat"]["whole"] == [batch for epoch in epochs for batch in epoch]
    assert found["reload"]["whole"] == epochs[0] + epochs[1]
    assert found["limit"]["whole"] == epochs[0][:2] + epochs[1][:2]
    assert found["overfit"]["whole"] == [[[0, 1, 2, 3]], [[4, 5, 6, 7]]] * 2
    mixture = found["overfit mixture"]["whole"]
    assert mixture[:2] == mixture[2:]
    assert sorted(joined(mixture[:2])) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [None in step for step in found["max"]["whole"]] == [False, False, True, True] * 2
    for kind in ("repeat", "cycle", "max", "limit", "overfit", "overfit mixture", "reload"):
        whole, rest = found[kind]["whole"], found[kind]["rest"]
        assert rest == [whole[step:] for step in range(1, len(whole))], kind
    assert found["loaded"] == epochs[2][1:]
    assert found["set"] == epochs[2] + epochs[3]


def test_accelerate_takes_the_loader_as_it_is_and_datasets_unshared(table: Path, tmp_path: Path) -> None:
    """A loader passes through, is told from its end, and is saved; a dataset is dealt out; what would lose rows is refused."""
    needed("accelerate")
    found = run("gloo_accelerate.py", table, tmp_path, "accelerate")

    for own in found:
        passed = own["passed"]
        assert (passed["same"], passed["devices"], passed["ended"]) == (True, ["cpu"], True)
        applied = [[step for step, done in enumerate(epoch, start=1) if done] for epoch in passed["applied"]]
        assert applied == [[4, 8, 12, 13]] * 2
        assert own["saved"]["before"] + own["saved"]["after"] == passed["epochs"][0]
        assert own["workers"] == own["dispatched"]
        before, midst, end = own["unlike"]
        assert (before, end) == ("nothing", "nothing")
        assert midst.startswith("Lightning and Accelerate save the state of one rank for all, and in mid-epoch the ranks of")
        assert set(own["refused"]) == {
            "Accelerate distributes, or skips, batches of this dataset, which is already the share of one rank (by .shard() or "
            "by a loader), so rows would be lost; expected a dataset without .shard(). Give accelerator.prepare a dataset "
            "without it, or penstock.torch.loader(ds); to resume within an epoch, use the loader's load_state_dict."
        }
        columns = [
            re.findall(r"and column '(\w+)' is not one tensor with an entry for each row", one) for one in own["undealt"]
        ]
        assert columns == [["name"], ["name"], ["list"]]
        assert own["shares"][0].startswith("Accelerate distributes rows one by one (dispatch_batches=False), and this dataset")
    assert sum(own["collated"] for own in found) == ROWS
    assert sorted(joined([own["shares"][1] for own in found])) == list(range(ROWS))
    assert_once([own["passed"]["epochs"] for own in found])
    assert_once([own["dispatched"] for own in found])
    assert found[0]["dispatched"][0] != found[0]["dispatched"][1]


def test_the_trainer_of_transformers_sees_every_row_once(table: Path, tmp_path: Path) -> None:
    """As a stream, with workers, by number, and on from a checkpoint of its own."""
    needed("transformers")
    found = run("gloo_transformers.py", table, tmp_path, "transformers")

    for kind in ("stream", "workers", "numbers"):
        assert [own[kind]["steps"] for own in found] == [2 * STEPS] * RANKS
        assert_once([[own[kind]["seen"][:STEPS], own[kind]["seen"][STEPS:]] for own in found])
        assert found[0][kind]["seen"][0] != found[0][kind]["seen"][STEPS]
    for own in found:
        assert own["resumed"]["seen"] == own["stream"]["seen"][18:]
