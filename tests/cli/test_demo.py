"""The demo: it trains, stops, resumes and accounts for every row, on a machine with Python alone."""

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

# Runs the command line where some libraries cannot be imported.
BARE = """
import sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "cv2", "imagecodecs", "rich", "simplejpeg"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refusing())
from penstock.cli import main
sys.exit(main(sys.argv[1:]))
"""

Done = subprocess.CompletedProcess[str]


def bare(*arguments: str, place: Path) -> Done:
    """Return the end of `penstock ...` on a machine with nothing but what Penstock requires."""
    command = [sys.executable, "-W", "error", "-c", BARE, *arguments]
    return subprocess.run(command, cwd=place, env=ENVIRONMENT, check=False, capture_output=True, text=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory that the first demo ran in."""
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def first(place: Path) -> Done:
    """Return the end of the first demo."""
    return bare("demo", *SMALL, place=place)


@pytest.fixture
def numpy_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train on NumPy, which starts at once."""
    monkeypatch.setattr(demo, "new_network", NumpyNetwork)


def accuracy(output: str) -> float:
    """Return the accuracy that a demo printed."""
    return float(re.findall(r"accuracy (0\.\d+) on", output)[0])


def test_the_demo_runs_with_nothing_but_python(first: Done) -> None:
    """Neither torch nor OpenCV nor rich is needed, and nothing is said on the error stream."""
    assert (first.returncode, first.stderr) == (0, "")
    assert "codec tensor (OpenCV, which PNG needs, is not installed)" in first.stdout
    assert "train     with NumPy, in batches of 32 rows" in first.stdout


def test_the_demo_stops_in_mid_epoch_and_loses_no_row(first: Done) -> None:
    """Each epoch is accounted for, the one that was resumed too."""
    stopped = re.findall(r"stopped   in epoch 2 after (\d+) of (\d+) batches, (\d+) of (\d+) rows", first.stdout)
    checks = re.findall(r"check     (.+): (\d+) rows due, (\d+) came, (\d+) lost, (\d+) twice, (\d+) strange", first.stdout)
    batches, of_batches, rows, due = map(int, stopped[0])

    assert (batches, rows) == (of_batches // 2, 32 * batches)
    assert [check[0] for check in checks] == ["split", "epoch 1", "epoch 2"]
    assert [tuple(map(int, check[1:])) for check in checks] == [(600, 600, 0, 0, 0), *[(due, due, 0, 0, 0)] * 2]
    assert "each row came exactly once in each epoch" in first.stdout


def test_the_demo_leaves_the_table_that_it_tells_of(first: Done, place: Path) -> None:
    """Where it lies, how many rows, files, row groups and bytes it has."""
    table = place / "penstock-demo"
    (file,) = table.glob("*.parquet")
    ds = ps.open(table)
    drawn_images = np.concatenate([batch["image"] for batch in drawn(600, seed=0)])

    assert f"table     {table}\n" in first.stdout
    assert f"600 rows, 1 file, 2 row groups, {file.stat().st_size / 1000:.1f} kB" in first.stdout
    assert ds.schema.names == ("id", "image", "label")
    assert (ds.head(600)["image"] == drawn_images).all()
    assert re.search(r"[\d,]+ rows/s", first.stdout)


def test_a_checkpoint_is_json_and_arrays(first: Done, place: Path) -> None:
    """What is saved can be looked at, and loaded without unpickling."""
    checkpoint = place / "penstock-demo" / "_checkpoint"

    with np.load(checkpoint / "network.npz", allow_pickle=False) as arrays:
        names = set(arrays.files)

    assert first.returncode == 0
    assert '"epoch": 1' in (checkpoint / "loader.json").read_text()
    assert {"weight.1", "mean.weight.1", "square.weight.1", "steps"} <= names


def test_what_the_demo_says_to_try_next_works(first: Done, place: Path) -> None:
    """Every command that is printed runs; the last, a longer demo, is tried with fewer rows."""
    steps = [line.strip() for line in first.stdout.partition("next      try\n")[2].splitlines()]
    outputs = []
    for step in steps[:-1]:
        done = subprocess.run(shlex.split(step), cwd=place, env=ENVIRONMENT, check=True, capture_output=True, text=True)
        outputs.append(done.stdout)

    assert "row groups  2; rows: 100 least, 300 median, 500 most" in outputs[0]
    assert outputs[1].endswith("'label': array([7, 7, 7])}\n")
    assert "penstock.open('penstock-demo').shuffle(seed=1).batch(64)" in outputs[2]
    assert steps[-1] == f"{sys.executable} -m penstock demo --directory penstock-demo --rows 20000 --epochs 5 --seed 1"


def test_a_second_demo_overwrites_the_first_and_finds_the_same(first: Done, place: Path) -> None:
    """The same seed gives the same accuracy, and the table is replaced, not added to."""
    second = bare("demo", *SMALL, place=place)

    assert second.returncode == 0, second.stderr
    assert accuracy(second.stdout) == accuracy(first.stdout)
    assert ps.open(place / "penstock-demo").num_rows == 600


@pytest.mark.torch
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_the_demo_trains_with_torch_where_it_is_installed(tmp_path: Path) -> None:
    """The same facts are told, and the same accuracy comes twice."""
    command = [sys.executable, "-m", "penstock", "demo", *SMALL, "--directory", str(tmp_path / "t"), "--no-keep"]
    ends = [subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True, text=True).stdout for _ in range(2)]

    assert "train     with torch, in batches of 32 rows" in ends[0]
    assert "each row came exactly once in each epoch" in ends[0]
    assert accuracy(ends[0]) == accuracy(ends[1])


@pytest.mark.usefixtures("numpy_only")
def test_the_network_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the default number of rows, well over nine in ten pictures are told apart."""
    code = main(["demo", "--directory", str(tmp_path / "t"), "--no-keep"])
    output = capsys.readouterr().out

    assert code == 0
    assert accuracy(output) > 0.9
    assert not (tmp_path / "t").exists()
    assert "next      try" not in output


def test_a_resumed_training_ends_as_one_that_never_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit of every weight, and of the optimizer's memory."""
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
    """A loader whose batches are tampered with, as a check on the check."""

    def __init__(self, inner: Any, tamper: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Store the loader, and what is done to its batches."""
        self.inner, self.tamper = inner, tamper

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the batches, the first of them changed."""
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
    """Return a batch that has lost its first row."""
    return {name: values[1:] for name, values in batch.items()}


def with_first_twice(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch whose first row comes twice."""
    return {name: np.concatenate([values[:1], values]) for name, values in batch.items()}


@pytest.mark.usefixtures("numpy_only")
@pytest.mark.parametrize(
    ("tamper", "told"),
    [(without_first, "119 came, 1 lost, 0 twice"), (with_first_twice, "121 came, 0 lost, 1 twice")],
    ids=["lost", "twice"],
)
def test_the_demo_fails_where_a_row_is_lost_or_comes_twice(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tamper: Callable[[dict[str, Any]], dict[str, Any]],
    told: str,
) -> None:
    """The check is no ornament: the exit code is 1, and the numbers tell."""
    monkeypatch.setattr(NumpyNetwork, "loader", lambda _, ds: Faulty(ps.loader(ds), tamper))

    code = main(["demo", "--rows", "150", "--epochs", "2", "--directory", str(tmp_path / "t")])
    output = capsys.readouterr().out

    due = int(re.findall(r"epoch 1: (\d+) rows due", output)[0])
    assert code == 1
    assert told.replace("119", str(due - 1)).replace("121", str(due + 1)) in output
    assert "FAILED: rows were lost, came twice, or were not due" in output


@given(st.sets(st.integers(0, 50), min_size=1), st.data())
def test_a_roll_call_finds_every_row_that_is_missing_repeated_or_strange(due: set[int], data: st.DataObject) -> None:
    """Whatever came, the three lists are right, and all is well only where each row came once."""
    came = data.draw(st.one_of(st.permutations(sorted(due)), st.lists(st.integers(0, 60))))

    found = compare_ids(np.array(sorted(due)), np.array(came, dtype=np.int64))

    assert set(found.lost) == due - set(came)
    assert set(found.repeated) == {row for row in came if came.count(row) > 1}
    assert set(found.strange) == set(came) - due
    assert found.complete == (sorted(came) == sorted(due))


def test_gradients_are_those_of_finite_differences() -> None:
    """The slope by each weight is what the loss does when that weight is moved a little."""
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
        for place in np.ndindex(array.shape):
            losses = []
            for sign in (1, -1):
                moved = {**weights, name: array.copy()}
                moved[name][place] += sign * step
                losses.append(gradients(moved, inputs, labels)[0])
            assert slopes[name][place] == pytest.approx((losses[0] - losses[1]) / (2 * step), abs=1e-7)


def taught(network: Network, steps: range) -> list[float]:
    """Return the losses of some steps on made pictures."""
    (batch,) = drawn(320, seed=1)
    return [network.learn(batch["image"][at::10], batch["label"][at::10]) for at in steps]


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_network_goes_on_from_its_state(kind: type[NumpyNetwork | TorchNetwork]) -> None:
    """A new network that has loaded a state learns what the old one would have learned."""
    old, new = kind(0), kind(1)
    taught(old, range(5))
    new.load(old.state())

    assert taught(new, range(5, 10)) == taught(old, range(5, 10))


@pytest.mark.torch
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_torch_learns_as_numpy_does() -> None:
    """From the same weights, the same steps give the same losses, but for rounding."""
    assert taught(TorchNetwork(0), range(10)) == pytest.approx(taught(NumpyNetwork(0), range(10)), rel=1e-3)


def test_pictures_depend_on_the_seed_alone() -> None:
    """Fewer rows are a beginning of more, other seeds give others, and every digit comes."""
    few, many, others = next(drawn(40, seed=2)), next(drawn(400, seed=2)), next(drawn(40, seed=3))

    assert (few["image"] == many["image"][:40]).all()
    assert (few["image"] != others["image"]).any()
    assert set(many["label"].tolist()) == set(range(10))
    assert initial(0)["weight.1"].tolist() != initial(1)["weight.1"].tolist()


def listed(directory: Path) -> list[str]:
    """Return what lies in a directory."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def a_note(directory: Path) -> Path:
    """Put a file of the user into a directory."""
    (directory / "note.txt").write_text("mine")
    return directory / "note.txt"


def a_table(directory: Path) -> Path:
    """Put a table of the user into a directory."""
    pq.write_table(pa.table({"id": [1]}), directory / "mine.parquet")
    return directory / "mine.parquet"


def a_table_of_ours(directory: Path) -> Path:
    """Put a table of the user, written with Penstock, into a directory."""
    write(directory / "inner", ps.Schema("Mine", [ps.Field("id", np.int64)]), {"id": [1]})
    return directory / "inner" / "_common_metadata"


@pytest.mark.parametrize("put", [a_note, a_table, a_table_of_ours])
def test_what_no_demo_wrote_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], put: Callable[[Path], Path]
) -> None:
    """A directory with anything else in it is refused, and left as it was."""
    put(tmp_path)
    before = listed(tmp_path)

    code = main(["demo", "--directory", str(tmp_path)])
    message = capsys.readouterr().err

    assert code == 1
    assert re.fullmatch(
        rf"penstock: '{tmp_path}.+' was not written by an earlier demo. Use --directory with a new or an empty "
        "directory, or with one of an earlier demo, which is overwritten.\n",
        message,
    )
    assert listed(tmp_path) == before


@pytest.mark.parametrize("directory", ["~/demo", "nothing/../demo"])
def test_the_demo_is_where_its_table_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, directory: str) -> None:
    """A home that no shell has told, and steps up from what is not there, mean the same to all of it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))

    assert main(["demo", "--rows", "100", "--epochs", "1", f"--directory={directory}"]) == 0

    assert [path.name for path in tmp_path.iterdir() if path.name != ".cache"] == ["demo"]
    assert (tmp_path / "demo" / "_checkpoint").is_dir()


@pytest.mark.parametrize(("directory", "told"), [("", "The target is ''"), ("memory://demo", "is not on this machine")])
def test_no_directory_of_this_machine_is_a_usage_error(capsys: pytest.CaptureFixture[str], directory: str, told: str) -> None:
    """It is told before anything is made."""
    assert main(["demo", "--directory", directory]) == 2
    assert told in capsys.readouterr().err


def test_a_file_is_no_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where a file lies, the demo says so, and leaves it."""
    code = main(["demo", "--directory", str(a_note(tmp_path))])

    assert code == 1
    assert "note.txt' was not written by an earlier demo" in capsys.readouterr().err
    assert (tmp_path / "note.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("given_", "told"),
    [
        (["--rows", "99"], "argument --rows: '99' is not a whole number from 100 on"),
        (["--rows", "9" * 20], f"argument --rows: '{'9' * 20}' is not a whole number from 100 to {2**62 - 1}"),
        (["--epochs", "0"], "argument --epochs: '0' is not a whole number from 1 on"),
        (["--seed", "x"], "argument --seed: 'x' is not a whole number from 0 on"),
    ],
)
def test_wrong_numbers_are_usage_errors(capsys: pytest.CaptureFixture[str], given_: list[str], told: str) -> None:
    """The exit code is 2, and the message names the option."""
    assert main(["demo", *given_]) == 2
    assert told in capsys.readouterr().err


class Interrupted(NumpyNetwork):
    """A network in whose first step the user presses Ctrl-C."""

    def learn(self, images: npt.NDArray[Any], labels: npt.NDArray[Any]) -> float:  # noqa: ARG002 - it does not come to look
        """Stop."""
        raise KeyboardInterrupt


def test_an_interrupt_ends_the_demo_quietly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C gives exit code 130 and one line, and no traceback."""
    monkeypatch.setattr(demo, "new_network", Interrupted)

    code = main(["demo", "--rows", "100", "--directory", str(tmp_path / "t")])

    assert (code, capsys.readouterr().err) == (130, "penstock: stopped.\n")
