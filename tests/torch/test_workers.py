"""Datasets in torch's `DataLoader`: any number of workers, however started, gives the same as none."""

from __future__ import annotations

import multiprocessing
import pickle
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import Case, cases, rows

import penstock as ps
from penstock._engine.deliver.loader import Batches
from penstock._engine.window import reader as gather
from penstock.errors import ArgumentError, DataError, RowNotFoundError
from penstock.model import Position
from penstock.testing import MemoryFormat, example

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.torch,
    # The tests start workers with `fork` on purpose, even if threads exist.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker processes in total:UserWarning"),
]

FILES, EACH = 3, 60


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table of three files with row groups of ten rows."""
    folder = tmp_path_factory.mktemp("table")
    for at in range(FILES):
        part = rows(range(at * EACH, (at + 1) * EACH))
        lists = pa.array([list(range(number % 4)) for number in part.column("id").to_pylist()])
        pq.write_table(part.append_column("list", lists), folder / f"{at}.parquet", row_group_size=10)
    return folder


@pytest.fixture(scope="module")
def contexts() -> dict[str, Any]:
    """Return the contexts for starting processes. The fork server loads torch once for all its workers."""
    found = {name: multiprocessing.get_context(name) for name in ("fork", "spawn", "forkserver")}
    found["forkserver"].set_forkserver_preload(["torch", "penstock.torch"])
    return found


def listed(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch as lists, nested tensors as lists of lists."""
    return {name: _list(values) for name, values in batch.items()}


def _list(values: Any) -> Any:
    if not isinstance(values, torch.Tensor):
        return values.tolist() if isinstance(values, np.ndarray | np.generic) else values
    return [part.tolist() for part in values.unbind()] if values.is_nested else values.tolist()


def lists(batches: Any) -> list[dict[str, Any]]:
    """Return batches as lists."""
    return [listed(batch) for batch in batches]


def noisy(batch: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Return a batch with an additional column of random numbers."""
    return {**batch, "noise": rng.random(np.shape(batch["id"]))}


def full_query(table: Path) -> ps.Dataset:
    """Return a query with text, padded lists, a filter and random numbers."""
    ds = ps.open(table).where(ps.col("third") != 1).ragged(ps.Pad(), "list").map(noisy)
    return ds.shuffle(ps.WindowShuffle(rows=50), seed=3).batch(7, last="uneven")


def loader_of(ds: ps.Dataset, **options: Any) -> tuple[Any, Any]:
    """Return torch's loader over a dataset, and the dataset in it."""
    dataset = ps.torch.IterableDataset(ds)
    return torch.utils.data.DataLoader(dataset, batch_size=None, **options), dataset


@pytest.mark.slow
@pytest.mark.parametrize(("method", "workers"), [("fork", 1), ("fork", 2), ("fork", 3), ("spawn", 2), ("forkserver", 3)])
def test_workers_give_the_same_batches_in_the_same_order_as_no_workers(
    table: Path, contexts: dict[str, Any], method: str, workers: int
) -> None:
    """Two epochs with persistent workers equal those of the loader without workers."""
    ds, plain = full_query(table), ps.loader(full_query(table))
    loader, dataset = loader_of(ds, num_workers=workers, multiprocessing_context=contexts[method], persistent_workers=True)
    assert len(loader) == len(ds)
    for epoch in range(2):
        dataset.set_epoch(epoch)
        assert lists(loader) == lists(plain)


def test_workers_that_are_not_persistent_read_the_epoch_that_was_set(table: Path) -> None:
    """Every iteration reads the epoch that was set."""
    ds = ps.open(table).select("id").shuffle(seed=1).batch(20)
    loader, dataset = loader_of(ds, num_workers=2, multiprocessing_context="fork")
    dataset.set_epoch(3)
    plain = ps.loader(ds)
    plain.set_epoch(3)
    expected = lists(plain)

    assert lists(loader) == expected
    assert lists(loader) == expected


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_rows_come_in_the_same_order_as_without_workers(table: Path, workers: int) -> None:
    """Without batches, rows come in the same order with any number of workers."""
    ds = ps.open(table).shuffle(ps.WindowShuffle(rows=50), seed=3).map(noisy).limit(100)
    loader, _ = loader_of(ds, num_workers=workers, multiprocessing_context="fork" if workers else None)

    assert lists(loader) == lists(ds)


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_are_batched_by_torch(table: Path, workers: int) -> None:
    """`DataLoader(batch_size=...)` collates rows. Each row comes once, and text comes as a list."""
    ds = ps.open(table).shuffle(seed=3).select("id", "triple", "name")
    options = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
    found = list(torch.utils.data.DataLoader(ps.torch.IterableDataset(ds), batch_size=8, **options))

    assert sorted(number for batch in found for number in batch["id"].tolist()) == list(range(FILES * EACH))
    for batch in found:
        assert batch["triple"].tolist() == [3.0 * number for number in batch["id"].tolist()]
        assert batch["name"] == [f"row {number}" for number in batch["id"].tolist()]


def batches_of_workers(ds: ps.Dataset, workers: int) -> list[list[dict[str, Any]]]:
    """Return the batches of each worker, which are read in this process."""
    found = []
    for worker in range(workers):
        batches = Batches(ds._table, ds._query, Position(epoch=1))
        batches.select(worker, workers)
        found.append(lists(batches))
    return found


def in_turn(parts: list[list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Yield batches in the order of torch: one of each worker in turn, without the workers that have ended."""
    streams = [iter(part) for part in parts]
    while streams:
        for stream in list(streams):
            try:
                yield next(stream)
            except StopIteration:
                streams.remove(stream)


@given(cases(), st.integers(1, 4), st.none() | st.integers(1, 5), st.sampled_from(["drop", "pad", "wrap", "uneven"]), st.data())
def test_any_number_of_workers_gives_what_one_reader_gives(
    case: Case, workers: int, size: int | None, last: Any, data: st.DataObject
) -> None:
    """The items of workers, collected in turn, are those of one reader: batches or rows, with or without a map."""
    assume(case.ids)
    ds = case.dataset().repeat(data.draw(st.integers(1, 2)))
    ds = ds if size is None else ds.batch(min(size, len(case.ids)) if last == "drop" else size, last=last)
    ds = ds.map(noisy) if data.draw(st.booleans()) else ds
    ds = ds.shard(0, 1, lanes=data.draw(st.integers(1, 3)))
    whole = lists(Batches(ds._table, ds._query, Position(epoch=1)))

    assert list(in_turn(batches_of_workers(ds, workers))) == whole


@given(cases(), st.integers(1, 4), st.none() | st.integers(1, 5))
def test_any_number_of_workers_gives_what_one_reader_gives_with_a_lazy_filter(
    case: Case, workers: int, size: int | None
) -> None:
    """With a lazy filter, the items of workers, collected in turn, are those of one reader."""
    assume(case.ids)
    ds = case.dataset().where(ps.col("third") != 0, lazy=True)
    ds = ds if size is None else ds.batch(size)
    whole = lists(Batches(ds._table, ds._query, Position(epoch=1)))

    assert list(in_turn(batches_of_workers(ds, workers))) == whole


@pytest.mark.parametrize("size", [None, 10])
def test_a_worker_decodes_only_its_own_batches(table: Path, monkeypatch: pytest.MonkeyPatch, size: int | None) -> None:
    """A worker decodes the text of its own batches only."""
    decoded = []
    decode: Any = vars(gather)["decode_deferred"]

    def counted(cells: Any, *options: Any) -> Any:
        decoded.append(len(cells))
        return decode(cells, *options)

    monkeypatch.setattr(gather, "decode_deferred", counted)
    ds = ps.open(table).select("name").shuffle(seed=1)
    batches = Batches(*((part := ds if size is None else ds.batch(size))._table, part._query), Position())
    batches.select(1, 3)

    assert len(list(batches)) == (FILES * EACH // 3 if size is None else FILES * EACH // size // 3)
    assert sum(decoded) == FILES * EACH // 3


def test_workers_start_while_a_loader_runs(table: Path) -> None:
    """A process that is forked during an iteration reads on its own, and the iteration of the parent goes on."""
    ds = ps.open(table).select("id").shuffle(ps.WindowShuffle(rows=50), seed=3).batch(5).using(threads=4)
    running = iter(ps.torch.loader(ds))
    first = [listed(next(running)) for _ in range(3)]
    loader, _ = loader_of(ds, num_workers=2, multiprocessing_context="fork")

    expected = lists(ds)
    assert lists(loader) == expected
    assert first + lists(running) == expected


def test_a_worker_sends_only_the_batch(table: Path) -> None:
    """Batches are views of a window, but a worker sends only the memory of the batch."""
    loader, _ = loader_of(ps.open(table).select("id").shuffle(seed=1).batch(5), num_workers=1, multiprocessing_context="fork")

    assert {batch["id"].untyped_storage().nbytes() for batch in loader} == {5 * 8}


@pytest.mark.slow
def test_lambdas_and_nested_tensors_work_with_spawned_workers(table: Path, contexts: dict[str, Any]) -> None:
    """A spawned worker runs a lambda that uses a local variable, and returns nested tensors."""
    shift = 1000
    ds = ps.open(table).select("id", "list").ragged(ps.Offsets(), "list").batch(30)
    ds = ds.map(lambda batch: {**batch, "id": batch["id"] + shift})
    dataset = ps.torch.IterableDataset(ds, jagged=["list"])
    spawned = contexts["spawn"]
    found = lists(torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context=spawned))

    assert found == lists(dataset)
    assert found[0]["id"][:2] == [1000, 1001]
    assert found[0]["list"][:4] == [[], [0], [0, 1], [0, 1, 2]]


def test_a_pickled_dataset_is_an_independent_copy() -> None:
    """A pickled copy has the same query and epoch. After that both are independent."""
    ds = example().shuffle(seed=1).batch(4)
    for dataset in (ps.torch.IterableDataset(ds), ps.torch.IterableDataset(ds)):
        dataset.set_epoch(2)
        copy = pickle.loads(pickle.dumps(dataset))  # noqa: S301 - what was pickled here

        assert lists(copy) == lists(dataset)
        copy.set_epoch(0)
        assert lists(copy) == lists(ds) != lists(dataset)
    by_number = pickle.loads(pickle.dumps(ps.torch.MapDataset(example())))  # noqa: S301 - the same
    assert listed(by_number[3]) == listed(example()[3])


def test_a_pickled_dataset_contains_its_plan() -> None:
    """A pickled dataset contains its plan, so that workers do not read footers or count rows again."""
    of = MemoryFormat.of({"id": range(12), "third": [number % 3 for number in range(12)]}, row_group_rows=3, files=2)
    dataset = ps.torch.IterableDataset(of.open().where(ps.col("third") == 1).batch(2))
    assert len(dataset) == 2
    opened = sum(of.opened.values())
    copy = pickle.loads(pickle.dumps(dataset))  # noqa: S301 - what was pickled here

    assert len(copy) == 2
    assert sum(copy.ds._table.filesystem.handler._opened.values()) == opened
    assert lists(copy) == [{"id": [1, 4], "third": [1, 1]}, {"id": [7, 10], "third": [1, 1]}]


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_by_number_work_with_samplers_of_torch(table: Path, workers: int) -> None:
    """`MapDataset` with torch's random sampler gives every row once."""
    dataset = ps.torch.MapDataset(ps.open(table).select("id", "name", "triple"))
    options = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
    found = list(torch.utils.data.DataLoader(dataset, batch_size=50, shuffle=True, **options))

    assert [len(batch["id"]) for batch in found] == [50, 50, 50, 30]
    assert sorted(number for batch in found for number in batch["id"].tolist()) == list(range(FILES * EACH))
    for batch in found:
        assert batch["name"] == [f"row {number}" for number in batch["id"].tolist()]


def test_rows_by_number_work_with_a_distributed_sampler(table: Path) -> None:
    """`MapDataset` with a filter and `DistributedSampler` gives every row once over all ranks."""
    dataset = ps.torch.MapDataset(ps.open(table).where(ps.col("third") == 0).select("id"))
    found = []
    for rank in range(3):
        sampler: Any = torch.utils.data.DistributedSampler(dataset, num_replicas=3, rank=rank, shuffle=True, seed=1)
        found += [
            number for batch in torch.utils.data.DataLoader(dataset, batch_size=4, sampler=sampler) for number in batch["id"]
        ]

    assert sorted(map(int, found)) == list(range(0, FILES * EACH, 3))


def test_a_batch_by_number_reads_each_row_group_once() -> None:
    """For rows that torch fetches together, each row group is read once."""
    of = MemoryFormat.of({"id": range(100)}, row_group_rows=10, files=10)
    dataset = ps.torch.MapDataset(of.open())
    assert len(dataset) == 100
    before = sum(of.opened.values())
    found = dataset.__getitems__([5, 95, 7, 6, 96])

    assert [int(row["id"]) for row in found] == [5, 95, 7, 6, 96]
    assert sum(of.opened.values()) - before == 2


def test_rows_by_number_are_a_sequence() -> None:
    """`MapDataset` can be iterated, accepts negative indices, and raises beyond its end."""
    dataset: Any = ps.torch.MapDataset(example().select("id"))

    assert [int(row["id"]) for row in dataset] == list(range(10))
    assert int(dataset[-1]["id"]) == 9
    with pytest.raises(RowNotFoundError, match="Row 10 is not among the 10 rows"):
        dataset[10]


@pytest.mark.parametrize("row", [1.5, True, "1", None, slice(2), [1, 2], torch.tensor([1, 2])])
def test_only_integers_are_row_numbers(row: Any) -> None:
    """`MapDataset` accepts integers of Python, NumPy and torch. Anything else raises ArgumentError."""
    dataset: Any = ps.torch.MapDataset(example().select("id"))

    assert [int(dataset[number]["id"]) for number in (3, np.int64(3), torch.tensor(3))] == [3, 3, 3]
    with pytest.raises(ArgumentError, match=r"MapDataset got row .*; expected an integer\."):
        dataset[row]


@pytest.mark.parametrize("epoch", [-1, "1", True, 1.0, 2**62])
def test_an_epoch_of_a_stream_is_a_number_from_0(epoch: Any) -> None:
    """`IterableDataset.set_epoch` raises ArgumentError for an invalid epoch, and names it."""
    with pytest.raises(ArgumentError) as caught:
        ps.torch.IterableDataset(example()).set_epoch(epoch)
    assert str(caught.value).startswith(f"set_epoch() got {epoch!r}; expected the number of the epoch")


@pytest.mark.parametrize(
    "ds",
    [example().shuffle(), example().batch(2), example().shard(0, 2), example().repeat(2)],
    ids=["shuffled", "batched", "sharded", "repeated"],
)
def test_a_map_dataset_refuses_shuffles_batches_shards_and_repeats(ds: ps.Dataset) -> None:
    """`MapDataset` raises ArgumentError for a dataset that is shuffled, batched, sharded or repeated."""
    with pytest.raises(ArgumentError) as caught:
        ps.torch.MapDataset(ds)
    assert str(caught.value) == (
        f"MapDataset got {ds!r}, which is shuffled, batched, sharded or repeated; expected a dataset in stored order. "
        "Leave .shuffle(), .batch(), .shard() and .repeat() out: samplers do all that."
    )


def test_a_map_dataset_refuses_offsets(table: Path) -> None:
    """`MapDataset` raises ArgumentError for the policy `Offsets`, which only batches have."""
    with pytest.raises(ArgumentError) as caught:
        ps.torch.MapDataset(ps.open(table).ragged(ps.Offsets(), "list"))
    assert str(caught.value) == (
        "Column 'list' has the policy Offsets(), which needs batches; expected a policy for single rows, because MapDataset "
        "returns rows. Leave the policy out, or use Pad(length=...)."
    )


def test_an_error_in_a_worker_reaches_the_consumer(table: Path, tmp_path: Path) -> None:
    """The batches before an error come first. Then each call raises the error, with its type and text."""
    for file in table.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    ds = ps.open(tmp_path).select("id").batch(10)
    assert ds.num_rows == FILES * EACH
    (tmp_path / "1.parquet").unlink()
    batches = iter(loader_of(ds, num_workers=1, multiprocessing_context="fork")[0])
    found = [listed(next(batches))["id"] for _ in range(6)]
    messages = [problem(batches) for _ in range(2)]

    assert found == [list(range(at, at + 10)) for at in range(0, 60, 10)]
    for text in messages:
        assert re.match(r"(\w+Error): Caught \1 in DataLoader worker process 0", text)
        assert "1.parquet, row group 0: the file is gone." in text


def problem(batches: Any) -> str:
    """Return the type and text of an error. A reference to the error itself would keep workers alive."""
    try:
        list(batches)
    except DataError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def test_a_dataset_without_length_can_be_read(table: Path) -> None:
    """`DataLoader` reads a dataset without length."""
    ds = ps.open(table).select("id").where(ps.col("third") == 0, lazy=True).batch(20, last="uneven")
    loader, dataset = loader_of(ds, num_workers=2, multiprocessing_context="fork")

    assert sum(len(batch["id"]) for batch in loader) == FILES * EACH // 3
    with pytest.raises(TypeError, match="lazy filter has no length"):
        len(dataset)
