"""PyTorch loaders over readers: batches, passes, shuffle buffers, and mixed readers."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import petastorm_tables as tables
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.petastorm import TransformSpec, make_batch_reader, make_reader
from penstock.petastorm.weighted_sampling_reader import WeightedSamplingReader

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from penstock.petastorm import pytorch  # noqa: E402 - after the check for torch
from penstock.petastorm.pytorch import (  # noqa: E402 - the same
    BatchedDataLoader,
    DataLoader,
    InMemBatchedDataLoader,
    _sanitize_pytorch_types,
    decimal_friendly_collate,
)
from penstock.petastorm.reader_impl.pytorch_shuffling_buffer import (  # noqa: E402 - the same
    BatchedNoopShufflingBuffer,
    BatchedRandomShufflingBuffer,
)
from penstock.petastorm.reader_impl.shuffling_buffer import NoopShufflingBuffer, RandomShufflingBuffer  # noqa: E402


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of four row groups of ten rows."""
    return tables.small(tmp_path_factory.mktemp("small") / "t")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Plain Parquet of 80 rows."""
    columns = {"id": list(range(80)), "x": pa.array([n / 2 for n in range(80)], pa.float32())}
    return tables.plain(tmp_path_factory.mktemp("plain") / "t", columns, group=20)


def rows(url: str, **options: Any) -> Any:
    """Return a reader of two fields."""
    return make_reader(url, schema_fields=["id", "image"], **{"shuffle_row_groups": False, "workers_count": 2, **options})


def batches(url: str, **options: Any) -> Any:
    """Return a reader of batches."""
    return make_batch_reader(url, **{"shuffle_row_groups": False, "workers_count": 2, **options})


def test_rows_become_batches_of_tensors(url: str) -> None:
    """Rows become batches of tensors, and the last batch has the remaining rows."""
    with DataLoader(rows(url), batch_size=16) as loader:
        assert len(loader) == 3
        found = list(loader)

    assert [batch["id"].tolist() for batch in found] == [list(range(16)), list(range(16, 32)), list(range(32, 40))]
    assert found[0]["image"].shape == (16, 4, 6, 3)
    assert found[0]["image"].dtype == torch.uint8


@pytest.mark.parametrize("size", [0, -1, None, "x", 2.5, True])
@pytest.mark.parametrize("kind", [DataLoader, BatchedDataLoader, InMemBatchedDataLoader])
def test_an_invalid_batch_size_raises(plain: str, kind: Any, size: Any) -> None:
    """`batch_size` must be a positive integer. Loaders raise ValueError otherwise, before they read anything."""
    with make_batch_reader(plain) as reader, pytest.raises(ValueError, match="batch_size must be a positive integer"):
        kind(reader, batch_size=size)


def test_batches_of_the_reader_are_cut_into_batches_of_one_size(plain: str) -> None:
    """The batch size does not depend on the sizes of row groups."""
    with DataLoader(batches(plain), batch_size=32) as loader:
        found = list(loader)

    assert [len(batch["id"]) for batch in found] == [32, 32, 16]
    assert torch.cat([batch["id"] for batch in found]).tolist() == list(range(80))


def test_bug_the_last_rows_came_again_in_the_next_pass(plain: str) -> None:
    """Each pass has all rows once, and its last batch has the remaining rows."""
    with DataLoader(batches(plain), batch_size=32) as loader:
        sizes = [[len(batch["id"]) for batch in loader] for _ in range(3)]

    assert sizes == [[32, 32, 16]] * 3


def test_bug_a_shuffle_buffer_took_hundreds_of_megabytes(plain: str) -> None:
    """A shuffle buffer allocates no memory before it has rows."""
    buffer = DataLoader(batches(plain), shuffling_queue_capacity=10)._buffer()

    assert isinstance(buffer, RandomShufflingBuffer)
    assert buffer._items == []


@pytest.mark.parametrize("capacity", [1, 10, 200])
def test_rows_are_shuffled_in_a_buffer(plain: str, capacity: int) -> None:
    """A shuffle buffer loses no row, and a seed gives the same order again."""
    found = []
    for _ in range(2):
        with DataLoader(batches(plain), batch_size=7, shuffling_queue_capacity=capacity, seed=3) as loader:
            found.append([number for batch in loader for number in batch["id"].tolist()])

    assert sorted(found[0]) == list(range(80))
    assert found[0] == found[1]
    assert found[0] != list(range(80))


def test_a_pass_must_end_before_the_next(plain: str) -> None:
    """A second pass during the first raises RuntimeError. If the first was closed, the second has all rows."""
    with DataLoader(batches(plain, num_epochs=1), batch_size=8) as loader:
        first = iter(loader)
        next(first)
        with pytest.raises(RuntimeError, match="You must finish a full pass of Petastorm DataLoader before making another"):
            next(iter(loader))
        first.close()  # type: ignore[attr-defined] # a generator

        assert sum(len(batch["id"]) for batch in loader) == 80


def test_a_pass_after_a_failed_pass_raises(url: str) -> None:
    """After a failed pass, a new pass raises RuntimeError."""
    spec = TransformSpec(lambda row: {}[row["id"]])
    with DataLoader(rows(url, transform_spec=spec)) as loader:
        with pytest.raises(KeyError):
            list(loader)
        with pytest.raises(RuntimeError, match="Cannot start a new iteration because last time iteration failed with error"):
            list(loader)


def test_a_transform_function_may_return_tuples(url: str) -> None:
    """The transform function of a loader or of a reader may return tuples."""
    made = []
    for loader in (
        DataLoader(rows(url), batch_size=20, transform=lambda row: (row["image"], row["id"])),
        DataLoader(rows(url, transform_spec=TransformSpec(lambda row: (row["image"], row["id"]))), batch_size=20),
    ):
        with loader:
            made.append(next(iter(loader)))

    for images, numbers in made:
        assert images.shape == (20, 4, 6, 3)
        assert numbers.tolist() == list(range(20))


def test_collate_fn_makes_the_batch(url: str) -> None:
    """A batch is what `collate_fn` returns."""
    with DataLoader(rows(url), batch_size=30, collate_fn=len, drop_last=True) as loader:
        assert list(loader) == [30]


@pytest.mark.parametrize("capacity", [0, 10, 200])
def test_batched_loaders_cut_columns_into_batches(plain: str, capacity: int) -> None:
    """Batched loaders cut tensors, with and without shuffling, in each pass."""
    with BatchedDataLoader(batches(plain), batch_size=9, shuffling_queue_capacity=capacity, seed=1) as loader:
        found = list(loader)
        again = [number for batch in loader for number in batch["id"].tolist()]

    numbers = [number for batch in found for number in batch["id"].tolist()]
    assert sorted(numbers) == sorted(again) == list(range(80))
    assert all((batch["x"] == batch["id"] / 2).all() for batch in found)
    assert [len(batch["id"]) for batch in found][:-1] == [9] * 8
    assert (numbers == list(range(80))) is (capacity == 0)


@pytest.mark.parametrize("kind", [DataLoader, BatchedDataLoader])
def test_a_loader_has_its_arguments_as_attributes(plain: str, kind: Any) -> None:
    """`batch_size` and `shuffling_queue_capacity` of a loader are the arguments of the caller, whatever the buffer size."""
    with make_batch_reader(plain) as reader, kind(reader, batch_size=10, shuffling_queue_capacity=5) as loader:
        assert (loader.batch_size, loader.shuffling_queue_capacity) == (10, 5)


@pytest.mark.parametrize("kind", [DataLoader, BatchedDataLoader])
def test_another_pass_and_a_failure_are_logged(plain: str, kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A further pass and a failed pass are logged with Petastorm's texts."""
    with make_batch_reader(plain) as reader, kind(reader, batch_size=10) as loader:
        list(loader)
        list(loader)
    assert "Start a new pass of Petastorm DataLoader, reset underlying Petastorm reader to position 0." in caplog.text

    with make_batch_reader(plain) as reader, kind(reader, batch_size=10) as loader:
        loader._buffer = None
        with pytest.raises(TypeError):
            list(loader)
    assert "Iteration on Petastorm DataLoader raise error: TypeError(" in caplog.text


def test_batched_loaders_accept_rows_too(url: str) -> None:
    """A row counts as a batch of one. `transform_fn` makes the tensors."""
    with BatchedDataLoader(rows(url), batch_size=7, transform_fn=lambda one: torch.as_tensor(np.array(one)).double()) as loader:
        found = list(loader)

    assert [len(batch["id"]) for batch in found] == [7, 7, 7, 7, 7, 5]
    assert found[0]["image"].dtype == torch.float64


@pytest.mark.parametrize("shuffle", [False, True])
def test_rows_in_memory_are_repeated(plain: str, *, shuffle: bool) -> None:
    """`InMemBatchedDataLoader` repeats as many rows as fit, in a new order for each epoch if they are shuffled."""
    loaders = [
        InMemBatchedDataLoader(batches(plain), batch_size=8, num_epochs=2, rows_capacity=30, shuffle=shuffle, seed=5)
        for _ in range(2)
    ]
    found = [[number for batch in loader for number in batch["id"].tolist()] for loader in loaders]

    assert found[0] == found[1]
    assert sorted(found[0]) == sorted([*range(30), *range(30)])
    assert (found[0][:30] == found[0][30:]) is not shuffle
    with pytest.raises(RuntimeError, match="InMemBatchedDataLoader couldn't be used multiple times"):
        next(iter(loaders[0]))


def test_values_are_converted_for_torch() -> None:
    """Small unsigned integers become wider, booleans become bytes, and values without a tensor type raise TypeError."""
    row: dict[str, Any] = {
        "a": np.zeros(2, np.uint16),
        "b": np.zeros(2, np.uint32),
        "c": np.array([True]),
        "d": np.bool_(True),  # noqa: FBT003 - the value
        "e": np.zeros(1, np.int8),
        "f": "text",
    }

    _sanitize_pytorch_types(row)

    assert [getattr(value, "dtype", None) for value in row.values()] == [np.int32, np.int64, np.uint8, np.uint8, np.int8, None]
    for wrong, text in ((np.array(["x"]), "arrays of string or object classes. Found in field a"), (None, "nullable fields")):
        with pytest.raises(TypeError, match=text):
            _sanitize_pytorch_types({"a": wrong})


def test_decimals_and_text_stay_as_they_are() -> None:
    """In a batch, decimals and text become lists, since torch has no tensors for them."""
    found = decimal_friendly_collate(
        [{"p": Decimal(1), "t": "x", "n": np.int32(1)}, {"p": Decimal(2), "t": "y", "n": np.int32(2)}]
    )

    assert (found["p"], found["t"]) == ([Decimal(1), Decimal(2)], ["x", "y"])
    assert found["n"].tolist() == [1, 2]
    assert [list(map(str, column)) for column in decimal_friendly_collate([("a", "b"), ("c", "d")])] == [["a", "c"], ["b", "d"]]
    assert pytorch.DataLoader is DataLoader


def test_buffers_return_rows() -> None:
    """Buffers return rows in order, or at random after enough were added. Misuse raises RuntimeError."""
    plain, random = NoopShufflingBuffer(), RandomShufflingBuffer(5, 3)
    plain.add_many([1, 2])
    random.add_many(range(2))

    assert (plain.size, plain.can_add(), plain.retrieve(), plain.can_retrieve()) == (2, True, 1, True)
    assert (random.can_add(), random.can_retrieve()) == (True, False)
    with pytest.raises(RuntimeError, match="Can not dequeue"):
        random.retrieve()
    random.add_many([2, 3, 4])
    assert (random.can_add(), random.can_retrieve(), random.size) == (False, True, 5)
    with pytest.raises(RuntimeError, match="Can not enqueue"):
        random.add_many([5])
    random.finish()
    assert sorted(random.retrieve() for _ in range(5)) == [0, 1, 2, 3, 4]
    with pytest.raises(RuntimeError, match="more elements than the capacity allows"):
        RandomShufflingBuffer(2, 1, extra_capacity=1).add_many(range(9))


def test_buffers_of_tensors_return_batches() -> None:
    """Buffers return whole batches, and after `finish` the remaining rows."""
    for buffer in (BatchedNoopShufflingBuffer(4), BatchedRandomShufflingBuffer(20, 2, batch_size=4)):
        buffer.add_many([torch.arange(3), torch.arange(3) * 2])
        assert not buffer.can_retrieve()
        buffer.add_many([torch.arange(3, 10), torch.arange(3, 10) * 2])
        found = []
        while buffer.can_retrieve():
            found.append(buffer.retrieve())
        buffer.finish()
        assert buffer.can_add() == isinstance(buffer, BatchedNoopShufflingBuffer)
        while buffer.can_retrieve():
            found.append(buffer.retrieve())

        assert sorted(torch.cat([one for one, _ in found]).tolist()) == list(range(10))
        assert all((two == 2 * one).all() for one, two in found)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.float16])
@pytest.mark.parametrize("shape", [(), (2,)])
def test_a_buffer_shuffles_tensors_of_every_type(dtype: Any, shape: tuple[int, ...]) -> None:
    """A buffer shuffles tensors of types for which torch lacks operations, such as some unsigned integers."""
    buffer = BatchedRandomShufflingBuffer(20, 2, batch_size=3)
    given = torch.arange(10)
    buffer.add_many([given, given.reshape(10, *[1 for _ in shape]).expand(10, *shape).to(dtype)])
    buffer.finish()
    found = []
    while buffer.can_retrieve():
        found += [(number, cell) for numbers, cells in [buffer.retrieve()] for number, cell in zip(numbers, cells, strict=True)]

    assert sorted(int(number) for number, _ in found) == list(range(10))
    assert all(cell.dtype == dtype and cell.tolist() == number.to(dtype).expand(shape).tolist() for number, cell in found)


@pytest.mark.parametrize("least", [0, 1, 3, 7])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_buffer_returns_rows_from_min_after_retrieve_on(least: int, size: int) -> None:
    """`min_after_retrieve` rows are enough, counted before the last row of a batch. An empty buffer returns nothing."""
    rows = RandomShufflingBuffer(10, least)
    batches = BatchedRandomShufflingBuffer(20, least, batch_size=size)
    ready: list[tuple[bool, bool]] = []
    for _ in range(12):
        ready.append((rows.can_retrieve(), batches.can_retrieve()))
        if rows.can_add():
            rows.add_many([1])
        batches.add_many([[1]])

    assert [one for one, _ in ready[:11]] == [buffered >= max(1, least) for buffered in range(11)]
    assert [two for _, two in ready] == [buffered >= max(1, least + size - 1) for buffered in range(12)]


def test_readers_are_mixed_by_probability(plain: str, url: str) -> None:
    """Each reader is used about as often as its probability says. The mix ends with the first reader that ends."""
    with WeightedSamplingReader([batches(plain, num_epochs=None), batches(plain, num_epochs=40)], [1, 3], seed=1) as mixed:
        count = sum(1 for _ in mixed)

        assert mixed.last_row_consumed
        assert mixed.batched_output
        assert list(mixed.schema.fields) == ["id", "x"]
    assert 170 < count < 260
    with (
        WeightedSamplingReader([rows(url), rows(url)], [0.5, 0.5]) as mixed,
        DataLoader(mixed, batch_size=8) as loader,
    ):
        assert next(iter(loader))["id"].shape == (8,)
        assert len(mixed) == 80


def test_mixing_readers_that_differ_raises(plain: str, url: str, tmp_path: Path) -> None:
    """Readers that differ, a single reader, and invalid probabilities raise ValueError."""
    other = tables.plain(tmp_path / "t", {"y": [1]})
    one, two, three, four = batches(plain), rows(url), batches(other), batches(plain)
    cases: list[tuple[list[Any], list[float], str]] = [
        ([one], [1], "Two or more readers"),
        ([one, four], [1], "same length"),
        ([one, four], [0, 0], "probabilities must be numbers from 0 on"),
        ([one, two], [1, 1], "same value for batched_output"),
        ([one, three], [1, 1], "should have the same schema"),
    ]
    for readers, shares, text in cases:
        with pytest.raises(ValueError, match=text):
            WeightedSamplingReader(readers, shares)
    for reader in (one, two, three, four):
        reader.stop()
        reader.join()


def test_text_partition_columns_stay_text(tmp_path: Path) -> None:
    """Values of a text partition column become a list, although the reader gives a Categorical. Numbers become tensors."""
    columns = {"id": [1, 2, 3], "day": ["mon", "tue", "tue"], "hour": [7, 8, 9]}
    pq.write_to_dataset(pa.table(columns), tmp_path, partition_cols=["day", "hour"])

    with DataLoader(make_batch_reader(tmp_path.as_uri(), shuffle_row_groups=False), batch_size=2) as loader:
        batches = list(loader)

    assert [batch["day"] for batch in batches] == [["mon", "tue"], ["tue"]]
    assert [batch["hour"].tolist() for batch in batches] == [[7, 8], [9]]


def test_a_null_in_a_text_partition_column_raises(tmp_path: Path) -> None:
    """A null in a text partition column raises TypeError, as for any column of objects."""
    pq.write_to_dataset(pa.table({"id": [1, 2], "day": ["mon", None]}), tmp_path, partition_cols=["day"])

    with (
        DataLoader(make_batch_reader(tmp_path.as_uri(), shuffle_row_groups=False)) as loader,
        pytest.raises(TypeError, match=r"arrays of string or object classes\. Found in field day"),
    ):
        list(loader)


def test_integers_with_nulls_raise_with_advice(tmp_path: Path) -> None:
    """Integers with nulls raise TypeError that advises to fill the nulls in a `TransformSpec`, which works."""
    url = tables.plain(tmp_path, {"id": [1, 2, 3], "n": pa.array([7, None, 9])})
    filled = TransformSpec(lambda frame: frame.fillna({"n": 0}))

    with (
        DataLoader(make_batch_reader(url)) as loader,
        pytest.raises(TypeError, match=r"Found in field n\. There are nulls: fill them in the function of a TransformSpec"),
    ):
        list(loader)
    with DataLoader(make_batch_reader(url, transform_spec=filled), batch_size=3) as loader:
        (batch,) = loader
    assert (batch["n"].tolist(), batch["n"].dtype) == ([7, 0, 9], torch.int64)
