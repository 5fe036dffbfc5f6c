"""Cached tables are copied to pinned memory with unchanged values."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._engine.runtime.memory import BLOCK, MAPPED, CacheMemory

TENSORS = pa.ExtensionArray.from_storage(
    pa.fixed_shape_tensor(pa.float32(), [2]), pa.array([[1, 2], [3, 4], None], pa.list_(pa.float32(), 2))
)
COLUMNS: dict[str, Any] = {
    "numbers": pa.array([1, None, 3]),
    "flags": pa.array([True, None, False]),
    "texts": pa.array(["a", None, "ccc"]),
    "views": pa.array(["a" * 40, None, "c"], pa.string_view()),
    "large": pa.array([b"a", None, b"ccc"], pa.large_binary()),
    "lists": pa.array([[1, None], None, []]),
    "structs": pa.array([{"a": 1, "b": ["x"]}, None, {"a": None, "b": []}]),
    "maps": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int8())),
    "words": pa.array(["a", None, "a"]).dictionary_encode(),
    "sums": pa.array([Decimal("1.5"), None, Decimal(2)]),
    "days": pa.array([date(2020, 1, 1), None, date(1, 1, 1)]),
    "moments": pa.array([datetime(2020, 1, 1, tzinfo=UTC), None, datetime(1999, 1, 1, tzinfo=UTC)]),
    "tensors": TENSORS,
    "nothing": pa.nulls(3),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("cut", [slice(0, 3), slice(1, 3), slice(2, 2)])
@pytest.mark.parametrize("chunks", [1, 2])
def test_copies_of_every_type_equal_the_original(name: str, cut: slice, chunks: int) -> None:
    """`copy_table` keeps values, nulls, types and metadata, also of slices and of several chunks."""
    column = pa.chunked_array([COLUMNS[name][cut]] * chunks)
    table = pa.table({name: column}, metadata={"told": "too"})

    found = CacheMemory().copy_table(table)

    assert found.schema.equals(table.schema, check_metadata=True)
    assert found.to_pylist() == table.to_pylist()
    found.validate(full=True)


def test_a_copy_shares_no_memory_with_the_original() -> None:
    """Changing the memory of the original does not change the copy."""
    memory = np.arange(300_000)
    table = pa.table({"x": pa.Array.from_buffers(pa.int64(), len(memory), [None, pa.py_buffer(memory)])})
    found = CacheMemory().copy_table(table)
    memory[:] = -1

    assert found["x"].to_numpy().tolist() == list(range(300_000))


class Unknown(pa.ExtensionType):  # type: ignore[misc] # pyarrow has no annotations
    """An extension type that is not registered."""

    def __init__(self) -> None:
        """Store values as int64."""
        super().__init__(pa.int64(), "penstock.test.unknown")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: Any, serialized: bytes) -> Unknown:
        return cls()


def test_a_table_of_an_unregistered_type_is_not_changed() -> None:
    """A table with an unregistered extension type keeps the type, which a copy would lose."""
    kind = Unknown()
    table = pa.table({"x": pa.ExtensionArray.from_storage(kind, pa.array([1, 2]))})

    found = CacheMemory().copy_table(table)

    assert found.schema == table.schema
    assert found["x"].combine_chunks().storage.to_pylist() == [1, 2]


@given(sizes=st.lists(st.sampled_from([1, 100, MAPPED - 1, MAPPED, MAPPED + 1, 3 * MAPPED + 7, BLOCK, BLOCK + 1]), max_size=12))
def test_pieces_never_overlap(sizes: list[int]) -> None:
    """Allocated pieces have the requested sizes. Writing to one does not change the others."""
    memory_blocks = CacheMemory()
    pieces = [memory_blocks.allocate(size) for size in sizes]
    for number, piece in enumerate(pieces):
        piece[:: max(1, len(piece) // 50)] = number
        piece[-1] = number

    assert [len(piece) for piece in pieces] == sizes
    for number, piece in enumerate(pieces):
        assert set(piece[:: max(1, len(piece) // 50)].tolist()) == {number}
        assert piece[-1] == number


def test_threads_get_separate_pieces() -> None:
    """Concurrent copies never share memory."""
    memory_blocks = CacheMemory()

    def copied(number: int) -> Any:
        return memory_blocks.copy(np.full(MAPPED + number, number, np.uint8))

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(copied, range(60)))

    for number, piece in enumerate(found):
        assert (piece == number).all()
        assert len(piece) == MAPPED + number
