"""Values sent between processes: each arrives unchanged, and memory is reused only when nothing refers to it."""

from __future__ import annotations

import datetime as dt
import gc
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from array_cells import NUMBERS, array
from hypothesis import given
from hypothesis import strategies as st

from penstock._blobs import Blobs
from penstock._engine.parquet.file_blobs import FileBlobs, LocalFile
from penstock._engine.processes import shared_memory
from penstock._engine.processes.serialize import pack, unpack
from penstock._engine.processes.shared_memory import SECOND_END, SharedMemory, anonymous_file
from penstock._engine.runtime.memory import BufferPool


class Pair:
    """Both ends of one file in memory, in one process."""

    def __init__(self) -> None:
        """Create the file."""
        self.file = anonymous_file()
        self.first_end, self.second_end = SharedMemory(self.file), SharedMemory(self.file, first=SECOND_END)

    def send(self, value: Any, file_number: Callable[[LocalFile], int] | None = None) -> Any:
        """Return a value as the other end receives it."""
        blocks = [self.first_end.write(block) for block in pack(value, file_number)]
        return unpack([self.second_end.read(block) for block in blocks])

    def give_back(self) -> None:
        """Return the blocks that the second end has released to the first end."""
        gc.collect()
        self.first_end.take_back(self.second_end.released())


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Return both ends of a file, which is closed after the test."""
    made = Pair()
    yield made
    made.first_end.close()
    made.second_end.close()
    os.close(made.file)


def objects(*cells: Any) -> npt.NDArray[Any]:
    """Return cells as a column of objects."""
    found = np.empty(len(cells), dtype=object)
    for at, cell in enumerate(cells):
        found[at] = cell
    return found


@given(
    st.sampled_from(NUMBERS),
    st.lists(st.integers(0, 4), min_size=1, max_size=3),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_arrays_arrive_unchanged(dtype: str, shape: list[int], rearranged: bool, seed: int) -> None:  # noqa: FBT001 - drawn
    """An array of any dtype and shape, contiguous or not, arrives with the same dtype, shape and bytes."""
    pair = Pair()
    values = array(np.random.default_rng(seed), np.dtype(dtype), shape)
    values = values.T if rearranged else values

    found = pair.send(values)
    os.close(pair.file)

    assert (found.dtype, found.shape) == (values.dtype, values.shape)
    assert found.tobytes() == values.tobytes()
    assert found.flags.writeable


PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    st.complex_numbers(allow_nan=False),
    st.decimals(allow_nan=False),
    st.uuids(),
    st.dates(),
    st.times(),
    st.datetimes(),
    st.datetimes(timezones=st.just(dt.UTC)),
    st.timedeltas(),
    st.integers(-(2**31), 2**31 - 1).map(np.int32),
    st.floats(width=32, allow_nan=False).map(np.float32),
    st.text().map(np.str_),
)
NESTED = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
    ),
    max_leaves=6,
)


@given(
    st.one_of(
        st.lists(st.one_of(st.none(), st.text(st.characters()))),
        st.lists(st.one_of(st.none(), st.binary())),
        st.lists(st.integers(-9, 9).map(np.int8)),
        st.lists(NESTED),
    )
)
def test_objects_arrive_unchanged(cells: list[Any]) -> None:
    """Text, bytes, numbers, times and values nested in containers arrive equal and with the same types."""
    pair = Pair()

    found = pair.send(objects(*cells)).tolist()
    os.close(pair.file)

    assert found == cells
    assert [type(cell) for cell in found] == [type(cell) for cell in cells]


def test_ragged_columns_arrive_unchanged(pair: Pair) -> None:
    """Ragged columns arrive unchanged, also with nulls, scalars and arrays of objects in them."""
    for cells in (
        (np.arange(3), None, np.arange(0)),
        (np.zeros((2, 3), np.float32), np.ones((0, 3), np.float32)),
        (np.array(1.5), None, np.array(2.5)),
        (np.arange(3), np.arange(3.0)),
        (np.array(["2020-01-01"], "M8[D]"), np.array([], "M8[D]")),
        (objects("a", objects(b"b", None)), objects()),
    ):
        found = pair.send(objects(*cells))

        assert repr(found.tolist()) == repr(list(cells))
        assert [getattr(cell, "shape", None) for cell in found] == [getattr(cell, "shape", None) for cell in cells]


def test_structured_arrays_arrive_unchanged(pair: Pair) -> None:
    """Structured arrays keep their names and types."""
    values = np.array([(1, (2.0, 3.0)), (4, (5.0, 6.0))], [("a", "<i4"), ("b", "<f8", (2,))])

    found = pair.send(values)

    assert found.dtype == values.dtype
    assert found.tobytes() == values.tobytes()


def test_a_dtype_of_another_library_arrives_unchanged(pair: Pair) -> None:
    """A dtype that another library adds to NumPy is found by its name."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.arange(4).astype(ml_dtypes.bfloat16)

    found = pair.send(values)

    assert found.dtype == values.dtype
    assert found.tolist() == values.tolist()


@pytest.mark.parametrize("size", [4, 1 << 20])
def test_a_read_only_array_arrives_writable(pair: Pair, size: int) -> None:
    """A received array owns its memory and is writable, small or large, even if the sent array is read-only."""
    values = np.arange(size)
    values.flags.writeable = False

    found = pair.send(values)
    found[0] = 7

    assert (found[0], found[-1]) == (7, size - 1)


@pytest.mark.parametrize("size", [4, 1 << 18])
def test_an_array_that_is_not_contiguous_arrives_unchanged(pair: Pair, size: int) -> None:
    """Slices with a step, transposed arrays and broadcast arrays arrive with the same values."""
    values = np.arange(2 * size).reshape(2, size)

    for rearranged in (values[:, ::2], values.T, np.broadcast_to(values[:1], (3, size))):
        assert (pair.send(rearranged) == rearranged).all()


@pytest.mark.parametrize("dtype", ["M8[ns]", "m8[D]", "U3", "S3", ">f8"])
def test_large_arrays_of_any_dtype_have_a_separate_block(dtype: str) -> None:
    """Large arrays have a separate block, also times, which the buffer protocol does not support."""
    values = np.zeros(1 << 18, dtype)

    assert [len(block) for block in pack(values)[1:]] == [values.nbytes]


def test_a_value_that_cannot_be_pickled_raises(pair: Pair) -> None:
    """The error of pickle is raised unchanged."""
    with pytest.raises(TypeError, match=r"^cannot pickle '_thread\.lock' object$"):
        pair.send(objects([{"a": threading.Lock()}]))


def test_arrow_arrives_unchanged(pair: Pair) -> None:
    """Arrow columns keep their types and nulls. A dictionary with more values than rows is not sent."""
    columns = {
        "text": pa.array(["a", None]),
        "lists": pa.array([[1, 2], None]),
        "words": pa.array(["b"] * 2).dictionary_encode(),
        "rare": pa.DictionaryArray.from_arrays(pa.array([2, 0]), pa.array(["x", "y", "z"])),
    }

    found = pair.send(columns)

    assert {name: array.to_pylist() for name, array in found.items()} == {
        name: array.to_pylist() for name, array in columns.items()
    }
    assert found["words"].type == columns["words"].type
    assert found["rare"].type == pa.string()


def test_a_slice_of_arrow_is_sent_without_the_rest(pair: Pair) -> None:
    """Only the rows of a slice are sent."""
    array = pa.array(range(1 << 20)).slice(5, 3)

    assert sum(len(block) for block in pack(array)) < 4096
    assert pair.send(array).to_pylist() == [5, 6, 7]


@given(
    st.lists(st.lists(st.one_of(st.none(), st.binary(max_size=80)), min_size=1, max_size=8), min_size=1, max_size=3),
    st.lists(st.integers(0, 30), max_size=12),
)
def test_cells_of_bytes_arrive_in_any_order(chunks: list[list[bytes | None]], order: list[int]) -> None:
    """Cells picked from several arrays in any order, with nulls, arrive with the same bytes."""
    pair = Pair()
    every = [cell for chunk in chunks for cell in chunk]
    rows = np.array([number % len(every) for number in order], np.int64)
    cells = Blobs.joined([Blobs.of(pa.array(chunk, pa.binary())) for chunk in chunks]).take(rows)

    found = pair.send(cells)
    os.close(pair.file)

    assert isinstance(found, Blobs)
    second_end = dict(found.present())
    assert [bytes(second_end[row]) if row in second_end else None for row in range(len(found))] == [every[row] for row in rows]


def test_cells_in_files_are_sent_as_positions(pair: Pair, tmp_path: Path) -> None:
    """Cells that are still in files are sent as positions, and the other end reads them."""
    (tmp_path / "cells").write_bytes(b"onetwothree")
    file = LocalFile(str(tmp_path / "cells"))
    memory = np.frombuffer(b"four", np.uint8)
    cells = FileBlobs(
        sources=(file, memory),
        source=np.array([0, 1, 0, 0]),
        start=np.array([6, 0, 0, 3]),
        stop=np.array([11, 4, 3, 6]),
        valid=np.array([True, True, True, False]),
    )

    found = pair.send(cells, lambda _: 7)

    assert found.sources[0] == 7
    assert bytes(found.sources[1]) == b"four"
    loaded = replace(found, sources=(file, found.sources[1])).loaded(BufferPool(0))
    assert {row: bytes(cell) for row, cell in loaded.present()} == {0: b"three", 1: b"four", 2: b"one"}


@pytest.mark.slow
def test_released_memory_is_reused(pair: Pair) -> None:
    """The file does not grow with the number of batches if each is released before the next one."""
    batch = np.arange(1 << 20)
    sizes = set()
    for _ in range(8):
        found = pair.send(batch)
        assert found[-1] == (1 << 20) - 1
        del found
        pair.give_back()
        sizes.add(os.fstat(pair.file).st_size)

    assert len(sizes) == 1


@pytest.mark.slow
def test_kept_arrays_keep_their_values(pair: Pair) -> None:
    """An array that is still referenced is never overwritten, however many follow it, even after the end is closed."""
    kept = []
    for number in range(shared_memory.MAX_REFERENCED + 8):
        found = pair.send(np.full(1 << 16, number))
        kept.append(found)
        pair.give_back()

    pair.second_end.close()

    assert [int(values.max()) for values in kept] == list(range(shared_memory.MAX_REFERENCED + 8))
    assert [int(values.min()) for values in kept] == list(range(shared_memory.MAX_REFERENCED + 8))


def test_small_columns_do_not_keep_large_ones(pair: Pair) -> None:
    """Keeping the labels of a batch does not keep the memory of its images."""
    labels = pair.send({"images": np.zeros(1 << 20), "labels": np.arange(3)})["labels"]
    gc.collect()

    assert len(pair.second_end.released()) == 2
    assert labels.tolist() == [0, 1, 2]


def test_idle_memory_is_returned_to_the_system(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle memory beyond the limit is returned to the system."""
    monkeypatch.setattr(shared_memory, "IDLE_BLOCKS", 2)
    alive = [pair.send(np.ones(1 << 17)) for _ in range(6)]
    before = os.fstat(pair.file).st_blocks
    del alive
    pair.give_back()

    assert os.fstat(pair.file).st_blocks < before // 2


def test_a_temporary_file_replaces_missing_anonymous_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If the system has no anonymous memory, a temporary file without a name is used."""
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pair = Pair()

    found = pair.send(np.arange(1 << 17))
    os.close(pair.file)

    assert found[-1] == (1 << 17) - 1
    assert list(tmp_path.iterdir()) == []


def test_values_of_each_kind_arrive_unchanged(pair: Pair) -> None:
    """One column may have values of every kind."""
    cells = [
        None,
        True,
        1 << 80,
        -0.0,
        "ß\ud800",
        b"\x00",
        1j,
        Decimal("1.50"),
        UUID(int=5),
        dt.date(2020, 2, 29),
        dt.time(1, 2, 3, 4),
        dt.datetime(2020, 1, 1, 5),  # noqa: DTZ001 - one without a zone
        dt.timedelta(-1, 2, 3),
        np.float16(1.5),
        np.datetime64("2020-01-01T00:00:00.000000001"),
        (1, [2, {"a": (b"b",)}]),
    ]

    found = pair.send(objects(*cells)).tolist()

    assert repr(found) == repr(cells)
