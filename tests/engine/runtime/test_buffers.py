"""The buffer pool reuses the memory of dead arrays, and keeps no more idle memory than its limit allows."""

from __future__ import annotations

import numpy as np
import pytest

from penstock._engine.runtime import memory as memory_module
from penstock._engine.runtime.memory import BufferPool

BYTES = np.dtype(np.uint8)
SIZE = 1 << 17


def test_released_memory_is_reused() -> None:
    """Live arrays have separate memory. A new array reuses released memory, but not that of an array with a live view."""
    buffer_pool = BufferPool(limit=1 << 20)
    first, second = buffer_pool.empty((SIZE,), BYTES), buffer_pool.empty((SIZE,), BYTES)
    addresses = {first.ctypes.data, second.ctypes.data}
    view = second[10:20]
    del first, second

    again = buffer_pool.empty((SIZE,), BYTES)

    assert len(addresses) == 2
    assert again.ctypes.data in addresses
    assert again.ctypes.data != view.ctypes.data - 10


def test_used_bytes_counts_live_arrays() -> None:
    """`used_bytes` counts the memory of live arrays, not idle memory."""
    buffer_pool = BufferPool(limit=1 << 20)
    alive = [buffer_pool.empty((SIZE,), BYTES) for _ in range(3)]

    assert buffer_pool.used_bytes == 3 * SIZE

    alive.pop()

    assert buffer_pool.used_bytes == 2 * SIZE


def test_idle_memory_stays_within_the_limit() -> None:
    """Releasing more than the limit keeps only as much idle memory as the limit allows. Idle memory is reused."""
    buffer_pool = BufferPool(limit=2 * SIZE)
    in_use = [buffer_pool.empty((SIZE,), BYTES) for _ in range(5)]
    addresses = {array.ctypes.data for array in in_use}
    in_use.clear()

    assert sum(map(len, buffer_pool._idle.values())) == 2

    again = [buffer_pool.empty((SIZE,), BYTES) for _ in range(2)]

    assert {array.ctypes.data for array in again} <= addresses
    assert not any(buffer_pool._idle.values())


def test_a_lower_limit_applies_to_memory_released_later() -> None:
    """`set_limit` applies to memory that is released later."""
    buffer_pool = BufferPool(limit=1 << 30)
    in_use = buffer_pool.empty((SIZE,), BYTES)
    buffer_pool.set_limit(0)
    del in_use

    assert not any(buffer_pool._idle.values())


@pytest.mark.parametrize("size", [1 << 60, 1 << 70])
def test_an_allocation_that_is_too_large_raises(size: int) -> None:
    """An allocation that the system refuses raises MemoryError, not OSError. No memory counts as used."""
    buffer_pool = BufferPool(limit=1 << 20)

    with pytest.raises(MemoryError, match=r"bytes of memory are needed in one piece.* Make batches, or what"):
        buffer_pool.empty((size,), BYTES)

    assert buffer_pool.used_bytes == 0


def test_idle_memory_makes_room_for_other_sizes() -> None:
    """Idle buffers of sizes that are no longer requested are freed. Buffers of the new size are reused."""
    buffer_pool = BufferPool(limit=4 * SIZE)
    old = [buffer_pool.empty((SIZE,), BYTES) for _ in range(4)]
    old.clear()

    new = [buffer_pool.empty((2 * SIZE,), BYTES) for _ in range(2)]
    addresses = {array.ctypes.data for array in new}

    assert not any(buffer_pool._idle.values())

    new.clear()
    again = [buffer_pool.empty((2 * SIZE,), BYTES) for _ in range(2)]

    assert {array.ctypes.data for array in again} == addresses


def test_free_idle_frees_idle_memory_only() -> None:
    """`free_idle` frees idle buffers. A live array keeps its buffer, which is reused after the array dies."""
    buffer_pool = BufferPool(limit=4 * SIZE)
    alive, idle = buffer_pool.empty((SIZE,), BYTES), buffer_pool.empty((SIZE,), BYTES)
    address = alive.ctypes.data
    del idle

    buffer_pool.free_idle()

    assert not any(buffer_pool._idle.values())

    del alive

    assert buffer_pool.empty((SIZE,), BYTES).ctypes.data == address


def test_a_failed_allocation_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed allocation, released memory stays idle within the limit as before."""
    buffer_pool = BufferPool(limit=SIZE)

    def refuse(size: int) -> None:
        raise MemoryError(size)

    with monkeypatch.context() as patch:
        patch.setattr(memory_module, "allocate", refuse)
        with pytest.raises(MemoryError):
            buffer_pool.empty((SIZE,), BYTES)
    first = buffer_pool.empty((SIZE,), BYTES)
    del first

    assert sum(map(len, buffer_pool._idle.values())) == 1
