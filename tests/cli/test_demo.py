"""Tests of `penstock demo`: it trains, stops, resumes and checks every row, with no packages beyond the required ones."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.cli import demo, main
from penstock.cli._digits import drawn
from penstock.cli._model import Network, NumpyNetwork, TorchNetwork, gradients, initial
from penstock.cli._row_check import compare_ids
from penstock.write import write

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(ps.__file__).parent.parent)}
SMALL = ["--rows", "600", "--epochs", "2"]
NETWORKS = [
    pytest.param(NumpyNetwork, id="numpy"),
    pytest.param(
        TorchNetwork,
        id="torch",
        marks=[pytest.mark.torch, pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")],
    ),
]

# Runs the command line in an interpreter that cannot import the optional libraries.
REQUIRED_ONLY = """
import sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "cv2", "imagecodecs", "rich", "simplejpeg"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refusing())
from penstock.cli import main
sys.exit(main(sys.argv[1:]))
"""

Completed = subprocess.CompletedProcess[str]


def bare(*arguments: str, location: Path) -> Completed:
    """Run `penstock ...` in an interpreter that can import only what Penstock requires."""
    command = [sys.executable, "-W", "error", "-c", REQUIRED_ONLY, *arguments]
    return subprocess.run(command, cwd=location, env=ENVIRONMENT, check=False, capture_output=True, text=True)


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory in which the first demo runs."""
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def first_run(location: Path) -> Completed:
    """Return the completed process of the first demo."""
    return bare("demo", *SMALL, location=location)


@pytest.fixture
def numpy_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train with NumPy, which starts fast."""
    monkeypatch.setattr(demo, "new_network", NumpyNetwork)


def accuracy(output: str) -> float:
    """Return the accuracy that the demo printed."""
    return float(re.findall(r"accuracy (0\.\d+) on", output)[0])


def test_the_demo_runs_without_optional_packages(first_run: Completed) -> None:
    """The demo needs neither torch nor OpenCV nor rich, and prints nothing to standard error."""
    assert (first_run.returncode, first_run.stderr) == (0, "")
    assert "codec tensor (OpenCV, which PNG needs, is not installed)" in first_run.stdout
    assert "train     with NumPy, in batches of 32 rows" in first_run.stdout


def test_the_demo_stops_in_mid_epoch_and_loses_no_row(first_run: Completed) -> None:
    """Every row is counted once in each epoch, including the resumed epoch."""
    stopped = re.findall(r"stopped   in epoch 2 after (\d+) of (\d+) batches, (\d+) of (\d+) rows", first_run.stdout)
    checks = re.findall(r"check     (.+): (\d+) rows due, (\d+) came, (\d+) lost, (\d+) twice, (\d+) strange", first_run.stdout)
    batches, of_batches, rows, due = map(int, stopped[0])

    assert (batches, rows) == (of_batches // 2, 32 * batches)
    assert [check[0] for check in checks] == ["split", "epoch 1", "epoch 2"]
    assert [tuple(map(int, check[1:])) for check in checks] == [(600, 600, 0, 0, 0), *[(due, due, 0, 0, 0)] * 2]
    assert "each row came exactly once in each epoch" in first_run.stdout


def test_the_demo_writes_the_table_that_it_reports(first_run: Completed, location: Path) -> None:
    """The printed path, rows, files, row groups and bytes match the table on disk."""
    table = location / "penstock-demo"
    (file,) = table.glob("*.parquet")
    ds = ps.open(table)
    drawn_images = np.concatenate([batch["image"] for batch in drawn(600, seed=0)])

    assert f"table     {table}\n" in first_run.stdout
    assert f"600 rows, 1 file, 2 row groups, {file.stat().st_size / 1000:.1f} kB" in first_run.stdout
    assert ds.schema.names == ("id", "image", "label")
    assert (ds.head(600)["image"] == drawn_images).all()
    assert re.search(r"[\d,]+ rows/s", first_run.stdout)


def test_a_checkpoint_is_json_and_arrays(first_run: Completed, location: Path) -> None:
    """A checkpoint is readable JSON and arrays that load without pickle."""
    checkpoint = location / "penstock-demo" / "_checkpoint"

    with np.load(checkpoint / "network.npz", allow_pickle=False) as arrays:
        names = set(arrays.files)

    assert first_run.returncode == 0
    assert '"epoch": 1' in (checkpoint / "loader.json").read_text()
    assert {"weight.1", "mean.weight.1", "square.weight.1", "steps"} <= names


@pytest.mark.slow
def test_the_suggested_commands_work(first_run: Completed, location: Path) -> None:
    """Every suggested command runs. The last command, a longer demo, is only compared as text."""
    steps = [line.strip() for line in first_run.stdout.partition("next      try\n")[2].splitlines()]
    outputs = []
    for step in steps[:-1]:
        done = subprocess.run(shlex.split(step), cwd=location, env=ENVIRONMENT, check=True, capture_output=True, text=True)
        outputs.append(done.stdout)

    assert "row groups  2; rows: 100 least, 300 median, 500 most" in outputs[0]
    assert outputs[1].endswith("'label': array([7, 7, 7])}\n")
    assert "penstock.open('penstock-demo').shuffle(seed=1).batch(64)" in outputs[2]
    assert steps[-1] == f"{sys.executable} -m penstock demo --directory penstock-demo --rows 20000 --epochs 5 --seed 1"


def test_a_second_demo_overwrites_the_table_with_the_same_result(first_run: Completed, location: Path) -> None:
    """The same seed gives the same accuracy, and the table is replaced."""
    second = bare("demo", *SMALL, location=location)

    assert second.returncode == 0, second.stderr
    assert accuracy(second.stdout) == accuracy(first_run.stdout)
    assert ps.open(location / "penstock-demo").num_rows == 600


@pytest.mark.torch
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_the_demo_trains_with_torch_if_installed(tmp_path: Path) -> None:
    """Training with torch prints the same facts, and two runs give the same accuracy."""
    command = [sys.executable, "-m", "penstock", "demo", *SMALL, "--directory", str(tmp_path / "t"), "--no-keep"]
    ends = [subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True, text=True).stdout for _ in range(2)]

    assert "train     with torch, in batches of 32 rows" in ends[0]
    assert "each row came exactly once in each epoch" in ends[0]
    assert accuracy(ends[0]) == accuracy(ends[1])


@pytest.mark.usefixtures("numpy_only")
def test_the_network_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the default number of rows, accuracy exceeds 0.9, and --no-keep removes the table."""
    code = main(["demo", "--directory", str(tmp_path / "t"), "--no-keep"])
    output = capsys.readouterr().out

    assert code == 0
    assert accuracy(output) > 0.9
    assert not (tmp_path / "t").exists()
    assert "next      try" not in output


def test_a_resumed_training_equals_an_uninterrupted_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All weights and the optimizer state are identical to the last bit."""
    monkeypatch.setattr(demo, "new_network", NumpyNetwork)
    settings = demo.Settings(directory=tmp_path / "t", rows=200, epochs=3, seed=5, keep=True)
    demo._make(settings)
    ds = ps.open(tmp_path / "t").split({"train": 0.8, "val": 0.2}, by="id")["train"].shuffle(seed=5)
    loader, unstopped = ps.loader(ds.batch(32, last="uneven")), NumpyNetwork(5)

    resumed = demo._train(settings, demo.Ledger(), ds.num_rows)
    for _ in range(3):
        for batch in loader:
            unstopped.learn(batch["image"], batch["label"])

    expected = unstopped.state()
    assert all((array == expected[name]).all() for name, array in resumed.state().items())


class Faulty:
    """A loader that changes its first batch, to verify that the demo detects wrong rows."""

    def __init__(self, inner: Any, tamper: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Store the loader and the function that changes a batch."""
        self.inner, self.tamper = inner, tamper

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the batches, with the first one changed."""
        for at, batch in enumerate(self.inner):
            yield self.tamper(batch) if at == 0 else batch

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.inner)

    def state_dict(self) -> Any:
        """Return the state of the loader."""
        return self.inner.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Load a state."""
        self.inner.load_state_dict(state)


def without_first(batch: dict[str, Any]) -> dict[str, Any]:
    """Return the batch without its first row."""
    return {name: values[1:] for name, values in batch.items()}


def with_first_twice(batch: dict[str, Any]) -> dict[str, Any]:
    """Return the batch with its first row repeated."""
    return {name: np.concatenate([values[:1], values]) for name, values in batch.items()}


@pytest.mark.usefixtures("numpy_only")
@pytest.mark.parametrize(
    ("tamper", "reported"),
    [(without_first, "119 came, 1 lost, 0 twice"), (with_first_twice, "121 came, 0 lost, 1 twice")],
    ids=["lost", "twice"],
)
def test_the_demo_fails_if_a_row_is_lost_or_repeated(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tamper: Callable[[dict[str, Any]], dict[str, Any]],
    reported: str,
) -> None:
    """The exit code is 1, and the output gives the numbers of lost and repeated rows."""
    monkeypatch.setattr(NumpyNetwork, "loader", lambda _, ds: Faulty(ps.loader(ds), tamper))

    code = main(["demo", "--rows", "150", "--epochs", "2", "--directory", str(tmp_path / "t")])
    output = capsys.readouterr().out

    due = int(re.findall(r"epoch 1: (\d+) rows due", output)[0])
    assert code == 1
    assert reported.replace("119", str(due - 1)).replace("121", str(due + 1)) in output
    assert "FAILED: rows were lost, came twice, or were not due" in output


@given(st.sets(st.integers(0, 50), min_size=1), st.data())
def test_compare_ids_finds_missing_repeated_and_unexpected_rows(due: set[int], data: st.DataObject) -> None:
    """The three lists are exact, and `complete` is true only if each row came exactly once."""
    came = data.draw(st.one_of(st.permutations(sorted(due)), st.lists(st.integers(0, 60))))

    found = compare_ids(np.array(sorted(due)), np.array(came, dtype=np.int64))

    assert set(found.lost) == due - set(came)
    assert set(found.repeated) == {row for row in came if came.count(row) > 1}
    assert set(found.strange) == set(came) - due
    assert found.complete == (sorted(came) == sorted(due))


def test_gradients_match_finite_differences() -> None:
    """The gradient of each weight equals the change of the loss when that weight changes slightly."""
    random = np.random.RandomState(3)
    weights: dict[str, npt.NDArray[Any]] = {
        "weight.1": random.normal(size=(6, 5)),
        "bias.1": random.normal(size=5),
        "weight.2": random.normal(size=(5, 4)),
        "bias.2": random.normal(size=4),
    }
    inputs, labels, step = random.normal(size=(7, 6)), random.randint(0, 4, 7), 1e-6

    _, slopes = gradients(weights, inputs, labels)

    for name, array in weights.items():
        for location in np.ndindex(array.shape):
            losses = []
            for sign in (1, -1):
                moved = {**weights, name: array.copy()}
                moved[name][location] += sign * step
                losses.append(gradients(moved, inputs, labels)[0])
            assert slopes[name][location] == pytest.approx((losses[0] - losses[1]) / (2 * step), abs=1e-7)


def train_steps(network: Network, steps: range) -> list[float]:
    """Train on generated images, and return the loss of each step."""
    (batch,) = drawn(320, seed=1)
    return [network.learn(batch["image"][at::10], batch["label"][at::10]) for at in steps]


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_network_continues_from_its_state(kind: type[NumpyNetwork | TorchNetwork]) -> None:
    """A new network that loads a state has the same losses as the original network."""
    old, new = kind(0), kind(1)
    train_steps(old, range(5))
    new.load(old.state())

    assert train_steps(new, range(5, 10)) == train_steps(old, range(5, 10))


@pytest.mark.torch
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_torch_and_numpy_have_the_same_losses() -> None:
    """From the same weights, the same steps give the same losses up to rounding."""
    assert train_steps(TorchNetwork(0), range(10)) == pytest.approx(train_steps(NumpyNetwork(0), range(10)), rel=1e-3)


def test_images_depend_only_on_the_seed() -> None:
    """Fewer rows are a prefix of more rows, another seed gives other images, and every digit occurs."""
    few, many, others = next(drawn(40, seed=2)), next(drawn(400, seed=2)), next(drawn(40, seed=3))

    assert (few["image"] == many["image"][:40]).all()
    assert (few["image"] != others["image"]).any()
    assert set(many["label"].tolist()) == set(range(10))
    assert initial(0)["weight.1"].tolist() != initial(1)["weight.1"].tolist()


def paths_below(directory: Path) -> list[str]:
    """Return all paths below a directory."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def a_note(directory: Path) -> Path:
    """Put a text file of the user into a directory."""
    (directory / "note.txt").write_text("mine")
    return directory / "note.txt"


def a_table(directory: Path) -> Path:
    """Put a Parquet file of the user into a directory."""
    pq.write_table(pa.table({"id": [1]}), directory / "mine.parquet")
    return directory / "mine.parquet"


def a_penstock_table(directory: Path) -> Path:
    """Put a table that the user wrote with Penstock into a directory."""
    write(directory / "inner", ps.Schema("Mine", [ps.Field("id", np.int64)]), {"id": [1]})
    return directory / "inner" / "_common_metadata"


@pytest.mark.parametrize("put", [a_note, a_table, a_penstock_table])
def test_a_directory_that_no_demo_wrote_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], put: Callable[[Path], Path]
) -> None:
    """A directory with other files is rejected and left unchanged."""
    put(tmp_path)
    before = paths_below(tmp_path)

    code = main(["demo", "--directory", str(tmp_path)])
    message = capsys.readouterr().err

    assert code == 1
    assert re.fullmatch(
        rf"penstock: '{tmp_path}.+' was not written by an earlier demo. Use --directory with a new or an empty "
        "directory, or with one of an earlier demo, which is overwritten.\n",
        message,
    )
    assert paths_below(tmp_path) == before


@pytest.mark.parametrize("directory", ["~/demo", "nothing/../demo"])
def test_unusual_directories_are_resolved_consistently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, directory: str) -> None:
    """`~` and `..` after a missing directory mean the same directory for the table and the checkpoint."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))

    assert main(["demo", "--rows", "100", "--epochs", "1", f"--directory={directory}"]) == 0

    assert [path.name for path in tmp_path.iterdir() if path.name != ".cache"] == ["demo"]
    assert (tmp_path / "demo" / "_checkpoint").is_dir()


@pytest.mark.parametrize(("directory", "reported"), [("", "The target is ''"), ("memory://demo", "is not on this machine")])
def test_a_directory_that_is_not_local_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], directory: str, reported: str
) -> None:
    """An empty or a remote directory gives exit code 2 and a message."""
    assert main(["demo", "--directory", directory]) == 2
    assert reported in capsys.readouterr().err


def test_a_file_in_place_of_the_directory_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If the directory is a file, the demo reports it and leaves the file unchanged."""
    code = main(["demo", "--directory", str(a_note(tmp_path))])

    assert code == 1
    assert "note.txt' was not written by an earlier demo" in capsys.readouterr().err
    assert (tmp_path / "note.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        (["--rows", "99"], "argument --rows: '99' is not a whole number from 100 on"),
        (["--rows", "9" * 20], f"argument --rows: '{'9' * 20}' is not a whole number from 100 to {2**62 - 1}"),
        (["--epochs", "0"], "argument --epochs: '0' is not a whole number from 1 on"),
        (["--seed", "x"], "argument --seed: 'x' is not a whole number from 0 on"),
    ],
)
def test_invalid_numbers_are_usage_errors(capsys: pytest.CaptureFixture[str], options: list[str], reported: str) -> None:
    """The exit code is 2, and the message names the option."""
    assert main(["demo", *options]) == 2
    assert reported in capsys.readouterr().err


class Interrupted(NumpyNetwork):
    """A network in whose first step the user presses Ctrl-C."""

    def learn(self, images: npt.NDArray[Any], labels: npt.NDArray[Any]) -> float:  # noqa: ARG002 - it raises before it uses them
        """Raise KeyboardInterrupt."""
        raise KeyboardInterrupt


def test_an_interrupt_ends_the_demo_quietly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C gives exit code 130 and one line without a traceback."""
    monkeypatch.setattr(demo, "new_network", Interrupted)

    code = main(["demo", "--rows", "100", "--directory", str(tmp_path / "t")])

    assert (code, capsys.readouterr().err) == (130, "penstock: stopped.\n")
