"""Loaders of DeltaTorch's names: epochs, states and errors, with threads and with worker processes alike."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

import penstock as ps

torch = pytest.importorskip("torch")
pytest.importorskip("deltalake")
door = pytest.importorskip("penstock.deltatorch")
FieldSpec, create_pytorch_dataloader = door.FieldSpec, door.create_pytorch_dataloader

pytestmark = [
    pytest.mark.torch,
    # Starting workers with `fork` is what is tested here, threads or not.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker processes in total:UserWarning"),
]

ROWS = 300


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a table of ids."""
    place = tmp_path_factory.mktemp("lake") / "t"
    ps.write(place, data={"id": range(ROWS)}, format="delta")
    return str(place)


class WaitFor:
    """Lets the second worker begin only when a file says so."""

    def __init__(self, signal: Path) -> None:
        """Store which."""
        self.signal = signal

    def __call__(self, worker: int) -> None:
        """Wait, in a worker that has been started and has not begun to read."""
        while worker and not self.signal.exists():
            pass


def ids(batches: Any) -> list[int]:
    """Return the ids of all batches."""
    return [one for batch in batches for one in batch["id"].tolist()]


def loader(table: str, **options: Any) -> Any:
    """Return a shuffled loader of batches of 32, by two processes unless something else is said."""
    options = {"multiprocessing_context": "fork", "num_workers": 2, **options}
    return create_pytorch_dataloader(table, fields=[FieldSpec("id")], shuffle=True, **options)


def test_a_look_at_another_epoch_changes_nothing_in_the_one_that_runs(table: str, tmp_path: Path) -> None:
    """A worker that begins late begins the epoch that it was started for, whatever was begun since."""
    expected = loader(table, multiprocessing_context=None)
    batches = loader(table, worker_init_fn=WaitFor(tmp_path / "go"))
    epoch = iter(batches)
    batches.set_epoch(7)
    (tmp_path / "go").touch()

    assert ids(epoch) == ids(expected)
    expected.set_epoch(7)
    assert ids(batches) == ids(expected)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_dataset_of_workers_takes_the_epoch_of_the_iteration(table: str, tmp_path: Path, *, persistent: bool) -> None:
    """So does a dataset in a loader of somebody else; workers that live on go to the epoch that is set between iterations."""
    samples = door.DeltaIterableDataset(table, fields=[FieldSpec("id")], shuffle=True)
    orders = []
    for number in range(3):
        samples.set_epoch(number)
        orders.append([one["id"] for one in samples])
    samples.set_epoch(0)
    workers: Any = torch.utils.data.DataLoader(
        samples,
        batch_size=32,
        num_workers=2,
        multiprocessing_context="fork",
        worker_init_fn=WaitFor(tmp_path / "go"),
        persistent_workers=persistent,
    )
    epoch = iter(workers)
    samples.set_epoch(1)
    (tmp_path / "go").touch()

    assert ids(epoch) == orders[0]
    assert ids(workers) == orders[1]
    samples.set_epoch(2)
    assert ids(workers) == orders[2]


def test_an_iteration_is_of_the_epoch_it_was_begun_in(table: str) -> None:
    """Without workers too: what is set afterwards is for the next."""
    samples = door.DeltaIterableDataset(table, fields=[FieldSpec("id")], shuffle=True)
    order = [one["id"] for one in samples]
    begun = iter(samples)
    samples.set_epoch(1)

    assert [one["id"] for one in begun] == order != [one["id"] for one in samples]


@pytest.mark.parametrize("context", ["fork", None])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_state_goes_on_with_any_kind_of_workers(table: str, context: str | None, *, persistent: bool) -> None:
    """What worker processes have left of an epoch, threads go on with, and processes with what threads have left."""
    whole = loader(table, multiprocessing_context=None)
    epochs = [ids(whole), ids(whole), ids(whole)]
    options = {"persistent_workers": True} if persistent and context else {}
    first = loader(table, multiprocessing_context=context, **options)
    ids(first)
    seen = []
    for step, batch in enumerate(first):
        seen += batch["id"].tolist()
        if step == 3:
            break
    state = first.state_dict()
    other = loader(table, multiprocessing_context=None if context else "fork")
    other.load_state_dict(state)
    again = loader(table, multiprocessing_context=context, **options)
    list(again)
    again.load_state_dict(state)

    assert len(other) == len(again) == len(whole) - 4
    assert seen + ids(other) == seen + ids(again) == epochs[1]
    assert ids(other) == ids(again) == epochs[2]
    assert len(other) == len(again) == len(whole)


@pytest.mark.parametrize("kind", ["loader", "dataset"])
def test_what_went_wrong_is_no_end(table: str, kind: str) -> None:
    """A second `next()` raises the same again, so that nobody takes half an epoch for a whole one."""

    def transform(value: int) -> float:
        return 1 / (value - 200)

    fields = [FieldSpec("id", transform=transform)]
    made = create_pytorch_dataloader(table, fields=fields) if kind == "loader" else door.DeltaIterableDataset(table, fields)
    batches = iter(made)
    with pytest.raises(ZeroDivisionError):
        list(batches)

    with pytest.raises(ZeroDivisionError):
        next(batches)


def test_a_loader_that_has_been_read_can_be_copied(table: str) -> None:
    """A copy, here or in another process, begins where the loader would."""
    first = loader(table, multiprocessing_context=None)
    own = ps.torch.loader(ps.open(table).shuffle(seed=1).batch(32, last="uneven"))
    for one in (first, own):
        past = ids(one)
        copies = [copy.deepcopy(one), pickle.loads(pickle.dumps(one))]  # noqa: S301 - our own
        here, there = map(ids, copies)

        assert past != here == there == ids(one)
