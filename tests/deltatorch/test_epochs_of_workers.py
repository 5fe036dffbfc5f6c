"""Epochs, states and errors of the loaders of `penstock.deltatorch`, with threads and with worker processes."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

import penstock as ps

torch = pytest.importorskip("torch")
pytest.importorskip("deltalake")
deltatorch = pytest.importorskip("penstock.deltatorch")
FieldSpec, create_pytorch_dataloader = deltatorch.FieldSpec, deltatorch.create_pytorch_dataloader

pytestmark = [
    pytest.mark.torch,
    # The tests start workers with `fork` on purpose, even if threads exist.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker processes in total:UserWarning"),
]

ROWS = 300


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write a table of ids, and return its path."""
    path = tmp_path_factory.mktemp("lake") / "t"
    ps.write(path, data={"id": range(ROWS)}, format="delta")
    return str(path)


class WaitFor:
    """A `worker_init_fn` that lets the second worker begin only after a file exists."""

    def __init__(self, signal: Path) -> None:
        """Store the path of the file."""
        self.signal = signal

    def __call__(self, worker: int) -> None:
        """Wait for the file, in every worker but the first, before the worker begins to read."""
        while worker and not self.signal.exists():
            pass


def ids(batches: Any) -> list[int]:
    """Return the ids of all batches."""
    return [one for batch in batches for one in batch["id"].tolist()]


def loader(table: str, **options: Any) -> Any:
    """Return a shuffled loader of batches of 32, by default with two worker processes."""
    options = {"multiprocessing_context": "fork", "num_workers": 2, **options}
    return create_pytorch_dataloader(table, fields=[FieldSpec("id")], shuffle=True, **options)


def test_set_epoch_does_not_change_the_running_epoch(table: str, tmp_path: Path) -> None:
    """A worker that begins late reads the epoch that it was started for, even if `set_epoch` was called meanwhile."""
    expected = loader(table, multiprocessing_context=None)
    batches = loader(table, worker_init_fn=WaitFor(tmp_path / "go"))
    epoch = iter(batches)
    batches.set_epoch(7)
    (tmp_path / "go").touch()

    assert ids(epoch) == ids(expected)
    expected.set_epoch(7)
    assert ids(batches) == ids(expected)


@pytest.mark.parametrize("persistent", [False, True])
def test_set_epoch_of_a_dataset_applies_to_the_next_iteration_of_its_workers(
    table: str, tmp_path: Path, *, persistent: bool
) -> None:
    """In torch's `DataLoader`, `set_epoch` of a dataset applies to the next iteration, with persistent workers too."""
    samples = deltatorch.DeltaIterableDataset(table, fields=[FieldSpec("id")], shuffle=True)
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


def test_an_iteration_keeps_the_epoch_in_which_it_was_begun(table: str) -> None:
    """Without workers, `set_epoch` does not change an iteration that was begun before."""
    samples = deltatorch.DeltaIterableDataset(table, fields=[FieldSpec("id")], shuffle=True)
    order = [one["id"] for one in samples]
    iterator = iter(samples)
    samples.set_epoch(1)

    assert [one["id"] for one in iterator] == order != [one["id"] for one in samples]


@pytest.mark.parametrize("context", ["fork", None])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_state_resumes_with_any_kind_of_workers(table: str, context: str | None, *, persistent: bool) -> None:
    """A state that was saved with worker processes resumes with threads, and the other way round."""
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
def test_an_error_does_not_end_the_epoch(table: str, kind: str) -> None:
    """A second `next()` after an error raises it again, so that half an epoch is not mistaken for a whole one."""

    def transform(value: int) -> float:
        return 1 / (value - 200)

    fields = [FieldSpec("id", transform=transform)]
    made = (
        create_pytorch_dataloader(table, fields=fields) if kind == "loader" else deltatorch.DeltaIterableDataset(table, fields)
    )
    batches = iter(made)
    with pytest.raises(ZeroDivisionError):
        list(batches)

    with pytest.raises(ZeroDivisionError):
        next(batches)


def test_a_loader_that_has_been_read_can_be_copied(table: str) -> None:
    """A copied or pickled loader begins with the same epoch as the original."""
    first = loader(table, multiprocessing_context=None)
    own = ps.torch.loader(ps.open(table).shuffle(seed=1).batch(32, last="uneven"))
    for one in (first, own):
        past = ids(one)
        copies = [copy.deepcopy(one), pickle.loads(pickle.dumps(one))]  # noqa: S301 - our own
        here, there = map(ids, copies)

        assert past != here == there == ids(one)
