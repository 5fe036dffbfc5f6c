"""Values between processes: each is equal on the other side, and memory is reused only when nothing refers to it."""

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
    """Two ends of one file in memory, in one process."""

    def __init__(self) -> None:
        """Make the file."""
        self.file = anonymous_file()
        self.here, self.there = SharedMemory(self.file), SharedMemory(self.file, first=SECOND_END)

    def cross(self, value: Any, file_number: Callable[[LocalFile], int] | None = None) -> Any:
        """Return a value as the other end gets it."""
        blocks = [self.here.write(block) for block in pack(value, file_number)]
        return unpack([self.there.read(block) for block in blocks])

    def give_back(self) -> None:
        """Return the blocks to the first end that the other has released."""
        gc.collect()
        self.here.take_back(self.there.released())


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Return two ends of a file, which is closed after the test."""
    made = Pair()
    yield made
    made.here.close()
    made.there.close()
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
def test_arrays_come_as_they_went(dtype: str, shape: list[int], turned: bool, seed: int) -> None:  # noqa: FBT001 - drawn
    """An array of any dtype and shape, contiguous or not, has the same dtype, shape and bytes on the other side."""
    pair = Pair()
    values = array(np.random.default_rng(seed), np.dtype(dtype), shape)
    values = values.T if turned else values

    found = pair.cross(values)
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
def test_objects_come_as_they_went(cells: list[Any]) -> None:
    """Text, bytes, numbers, times and what is made of them are equal on the other side, and of the same types."""
    pair = Pair()

    found = pair.cross(objects(*cells)).tolist()
    os.close(pair.file)

    assert found == cells
    assert [type(cell) for cell in found] == [type(cell) for cell in cells]


def test_arrays_of_any_shape_cross_in_one_column(pair: Pair) -> None:
    """Ragged columns, with nulls, single values and arrays of objects among them, come as they went."""
    for cells in (
        (np.arange(3), None, np.arange(0)),
        (np.zeros((2, 3), np.float32), np.ones((0, 3), np.float32)),
        (np.array(1.5), None, np.array(2.5)),
        (np.arange(3), np.arange(3.0)),
        (np.array(["2020-01-01"], "M8[D]"), np.array([], "M8[D]")),
        (objects("a", objects(b"b", None)), objects()),
    ):
        found = pair.cross(objects(*cells))

        assert repr(found.tolist()) == repr(list(cells))
        assert [getattr(cell, "shape", None) for cell in found] == [getattr(cell, "shape", None) for cell in cells]


def test_structured_numbers_cross(pair: Pair) -> None:
    """Records keep their names and types."""
    values = np.array([(1, (2.0, 3.0)), (4, (5.0, 6.0))], [("a", "<i4"), ("b", "<f8", (2,))])

    found = pair.cross(values)

    assert found.dtype == values.dtype
    assert found.tobytes() == values.tobytes()


def test_a_dtype_of_another_library_crosses(pair: Pair) -> None:
    """What others have added to NumPy is found again by its name."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.arange(4).astype(ml_dtypes.bfloat16)

    found = pair.cross(values)

    assert found.dtype == values.dtype
    assert found.tolist() == values.tolist()


@pytest.mark.parametrize("size", [4, 1 << 20])
def test_an_array_that_is_read_only_can_be_written_to(pair: Pair, size: int) -> None:
    """The memory on the other side belongs to the array, small or large, whatever the memory was on this side."""
    values = np.arange(size)
    values.flags.writeable = False

    found = pair.cross(values)
    found[0] = 7

    assert (found[0], found[-1]) == (7, size - 1)


@pytest.mark.parametrize("size", [4, 1 << 18])
def test_an_array_that_is_not_contiguous_crosses(pair: Pair, size: int) -> None:
    """Slices with a step, transposed arrays and broadcast ones have the same values."""
    values = np.arange(2 * size).reshape(2, size)

    for turned in (values[:, ::2], values.T, np.broadcast_to(values[:1], (3, size))):
        assert (pair.cross(turned) == turned).all()


@pytest.mark.parametrize("dtype", ["M8[ns]", "m8[D]", "U3", "S3", ">f8"])
def test_large_arrays_of_any_dtype_have_a_block(dtype: str) -> None:
    """Only the buffer protocol leaves times out; here they are bytes like others."""
    values = np.zeros(1 << 18, dtype)

    assert [len(block) for block in pack(values)[1:]] == [values.nbytes]


def test_what_cannot_be_pickled_is_an_error(pair: Pair) -> None:
    """The error of pickle, as it is."""
    with pytest.raises(TypeError, match=r"^cannot pickle '_thread\.lock' object$"):
        pair.cross(objects([{"a": threading.Lock()}]))


def test_arrow_crosses_as_it_is(pair: Pair) -> None:
    """Columns of Arrow keep their types and nulls; a dictionary with more values than rows is left behind."""
    columns = {
        "text": pa.array(["a", None]),
        "lists": pa.array([[1, 2], None]),
        "words": pa.array(["b"] * 2).dictionary_encode(),
        "rare": pa.DictionaryArray.from_arrays(pa.array([2, 0]), pa.array(["x", "y", "z"])),
    }

    found = pair.cross(columns)

    assert {name: array.to_pylist() for name, array in found.items()} == {
        name: array.to_pylist() for name, array in columns.items()
    }
    assert found["words"].type == columns["words"].type
    assert found["rare"].type == pa.string()


def test_a_slice_of_arrow_crosses_without_the_rest(pair: Pair) -> None:
    """Of a slice only its own rows are sent."""
    array = pa.array(range(1 << 20)).slice(5, 3)

    assert sum(len(block) for block in pack(array)) < 4096
    assert pair.cross(array).to_pylist() == [5, 6, 7]


@given(
    st.lists(st.lists(st.one_of(st.none(), st.binary(max_size=80)), min_size=1, max_size=8), min_size=1, max_size=3),
    st.lists(st.integers(0, 30), max_size=12),
)
def test_cells_of_bytes_cross_in_any_order(chunks: list[list[bytes | None]], order: list[int]) -> None:
    """Cells picked from several arrays, side by side or not, nulls among them, have the same bytes on the other side."""
    pair = Pair()
    every = [cell for chunk in chunks for cell in chunk]
    rows = np.array([number % len(every) for number in order], np.int64)
    cells = Blobs.joined([Blobs.of(pa.array(chunk, pa.binary())) for chunk in chunks]).take(rows)

    found = pair.cross(cells)
    os.close(pair.file)

    assert isinstance(found, Blobs)
    there = dict(found.present())
    assert [bytes(there[row]) if row in there else None for row in range(len(found))] == [every[row] for row in rows]


def test_cells_in_files_stay_there(pair: Pair, tmp_path: Path) -> None:
    """Of cells that are still in files only their places cross, and the other side reads them."""
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

    found = pair.cross(cells, lambda _: 7)

    assert found.sources[0] == 7
    assert bytes(found.sources[1]) == b"four"
    loaded = replace(found, sources=(file, found.sources[1])).loaded(BufferPool(0))
    assert {row: bytes(cell) for row, cell in loaded.present()} == {0: b"three", 1: b"four", 2: b"one"}


def test_memory_is_used_again_when_nobody_looks(pair: Pair) -> None:
    """However many batches cross, the file is as large as those that are in use at a time."""
    batch = np.arange(1 << 20)
    sizes = set()
    for _ in range(20):
        found = pair.cross(batch)
        assert found[-1] == (1 << 20) - 1
        del found
        pair.give_back()
        sizes.add(os.fstat(pair.file).st_size)

    assert len(sizes) == 1


def test_what_is_kept_stays_as_it_is(pair: Pair) -> None:
    """An array that somebody keeps is never written to again, however many come after it, and after the end as well."""
    kept = []
    for number in range(3 * shared_memory.MAX_REFERENCED):
        found = pair.cross(np.full(1 << 16, number))
        kept.append(found)
        pair.give_back()

    pair.there.close()

    assert [int(values.max()) for values in kept] == list(range(3 * shared_memory.MAX_REFERENCED))
    assert [int(values.min()) for values in kept] == list(range(3 * shared_memory.MAX_REFERENCED))


def test_small_columns_do_not_keep_large_ones(pair: Pair) -> None:
    """Whoever keeps the labels of a batch does not keep the memory of its images."""
    labels = pair.cross({"images": np.zeros(1 << 20), "labels": np.arange(3)})["labels"]
    gc.collect()

    assert len(pair.there.released()) == 2
    assert labels.tolist() == [0, 1, 2]


def test_idle_memory_is_given_back(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of memory that lies idle no more is kept than was said; the rest goes back to the system."""
    monkeypatch.setattr(shared_memory, "IDLE_BLOCKS", 2)
    held = [pair.cross(np.ones(1 << 17)) for _ in range(6)]
    before = os.fstat(pair.file).st_blocks
    del held
    pair.give_back()

    assert os.fstat(pair.file).st_blocks < before // 2


def test_without_files_in_memory_one_on_disk_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the system has no anonymous memory, a temporary file without a name takes its place."""
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pair = Pair()

    found = pair.cross(np.arange(1 << 17))
    os.close(pair.file)

    assert found[-1] == (1 << 17) - 1
    assert list(tmp_path.iterdir()) == []


def test_values_of_each_kind_are_told_exactly(pair: Pair) -> None:
    """One of each kind, side by side in one column."""
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

    found = pair.cross(objects(*cells)).tolist()

    assert repr(found) == repr(cells)
