"""The state of one worker's part of an iteration, and resuming from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.errors import StateError

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.torch,
    # Workers are forked while Penstock's threads exist, and do not use them.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker processes in total:UserWarning"),
]
ROWS = 105


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table of one file with row groups of ten rows."""
    folder = tmp_path_factory.mktemp("table")
    pq.write_table(pa.table({"id": range(ROWS)}), folder / "0.parquet", row_group_size=10)
    return folder


class Saving(torch.utils.data.IterableDataset):  # type: ignore[name-defined,misc] # torch may not be there
    """Yields the batches of a dataset, each with its worker and the state after it. Workers resume from their states."""

    def __init__(self, dataset: Any, states: dict[int, str]) -> None:
        self.dataset, self.states = dataset, states

    def __iter__(self) -> Iterator[tuple[int, list[int], str]]:
        info = torch.utils.data.get_worker_info()
        worker = 0 if info is None else info.id
        part = iter(self.dataset)
        if worker in self.states:
            part.load_state_dict(json.loads(self.states[worker]))
        for batch in part:
            yield worker, batch["id"].reshape(-1).tolist(), json.dumps(part.state_dict())


def read(ds: ps.Dataset, workers: int, states: dict[int, str], steps: int | None = None) -> list[tuple[int, list[int], str]]:
    """Return the first batches of a loader with workers, each with its worker and the state after it."""
    context = "fork" if workers else None
    saving = Saving(ps.torch.IterableDataset(ds), states)
    loader = torch.utils.data.DataLoader(
        saving, batch_size=None, num_workers=workers, multiprocessing_context=context, collate_fn=lambda found: found
    )
    return [found for found, _ in zip(loader, range(ROWS * 9) if steps is None else range(steps), strict=False)]


def by_worker(found: list[tuple[int, list[int], str]]) -> dict[int, list[list[int]]]:
    """Return the ids of each worker, batch by batch."""
    return {worker: [ids for one, ids, _ in found if one == worker] for worker, *_ in sorted(found)}


@pytest.mark.parametrize("workers", [0, 2, 3])
@pytest.mark.parametrize("kind", ["batches", "rows", "lazy", "repeated"])
def test_two_resumes_in_one_epoch_give_the_identical_rest(table: Path, workers: int, kind: str) -> None:
    """Each worker resumes twice with its own batches. The states after the last batch leave nothing to read."""
    ds = ps.open(table).shuffle(seed=3)
    ds = ds.where(ps.col("id") != 7, lazy=True) if kind == "lazy" else ds
    ds = ds if kind == "rows" else ds.batch(4, last="uneven")
    ds = ds.repeat(2) if kind == "repeated" else ds
    whole = by_worker(read(ds, workers, {}))

    first = read(ds, workers, {}, 7)
    states = {worker: state for worker, _, state in first}
    second = read(ds, workers, states, 5)
    states |= {worker: state for worker, _, state in second}
    third = read(ds, workers, states)
    ended = states | {worker: state for worker, _, state in third}

    assert by_worker(first + second + third).keys() == whole.keys()
    for worker, batches in whole.items():
        assert [ids for found in (first, second, third) for one, ids, _ in found if one == worker] == batches
    assert read(ds, workers, ended) == []


def test_a_state_of_another_number_of_workers_is_refused(table: Path) -> None:
    """Loading the state of one of two workers in a single reader raises StateError."""
    ds = ps.open(table).batch(4)
    states = {worker: state for worker, _, state in read(ds, 2, {}, 4)}

    with pytest.raises(StateError, match="saved by 2 workers, and is loaded by one reader"):
        iter(ps.torch.IterableDataset(ds)).load_state_dict(json.loads(states[0]))


def test_a_state_of_a_loader_is_refused(table: Path) -> None:
    """Loading the state of a loader into an iterator of `IterableDataset` raises StateError."""
    ds = ps.open(table).batch(4)

    with pytest.raises(StateError, match="The state has None as 'part'"):
        iter(ps.torch.IterableDataset(ds)).load_state_dict(ps.torch.loader(ds).state_dict())
