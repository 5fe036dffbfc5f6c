"""Memory that is lent comes back when the last reference to it dies, and no more of it lies idle than was allowed."""

from __future__ import annotations

import numpy as np
import pytest

from penstock._engine.runtime import memory as lease
from penstock._engine.runtime.memory import BufferPool

BYTES = np.dtype(np.uint8)
SIZE = 1 << 17


def test_memory_that_came_back_is_lent_again() -> None:
    """Two arrays that live at once have memory of their own; what is let go is used again."""
    buffer_pool = BufferPool(limit=1 << 20)
    first, second = buffer_pool.empty((SIZE,), BYTES), buffer_pool.empty((SIZE,), BYTES)
    places = {first.ctypes.data, second.ctypes.data}
    view = second[10:20]
    del first, second

    again = buffer_pool.empty((SIZE,), BYTES)

    assert len(places) == 2
    assert again.ctypes.data in places
    assert again.ctypes.data != view.ctypes.data - 10


def test_what_is_lent_is_counted() -> None:
    """Whoever asks gets the bytes that are lent, not those that lie idle."""
    buffer_pool = BufferPool(limit=1 << 20)
    kept = [buffer_pool.empty((SIZE,), BYTES) for _ in range(3)]

    assert buffer_pool.used_bytes == 3 * SIZE

    kept.pop()

    assert buffer_pool.used_bytes == 2 * SIZE


def test_no_more_is_kept_than_was_allowed() -> None:
    """Of what comes back while there is too much of it, only so much is kept that lent and idle do not go beyond the limit."""
    buffer_pool = BufferPool(limit=2 * SIZE)
    lent = [buffer_pool.empty((SIZE,), BYTES) for _ in range(5)]
    places = {one.ctypes.data for one in lent}
    lent.clear()

    assert sum(map(len, buffer_pool._idle.values())) == 2

    again = [buffer_pool.empty((SIZE,), BYTES) for _ in range(2)]

    assert {one.ctypes.data for one in again} <= places
    assert not any(buffer_pool._idle.values())


def test_a_lower_limit_holds_for_what_comes_back() -> None:
    """A limit that is set later counts from then on."""
    buffer_pool = BufferPool(limit=1 << 30)
    lent = buffer_pool.empty((SIZE,), BYTES)
    buffer_pool.set_limit(0)
    del lent

    assert not any(buffer_pool._idle.values())


@pytest.mark.parametrize("size", [1 << 60, 1 << 70])
def test_memory_that_there_is_not_is_told_as_such(size: int) -> None:
    """Not as a fault of storage, which the system's own error looks like; and nothing counts as lent."""
    buffer_pool = BufferPool(limit=1 << 20)

    with pytest.raises(MemoryError, match=r"bytes of memory are needed in one piece.* Make batches, or what"):
        buffer_pool.empty((size,), BYTES)

    assert buffer_pool.used_bytes == 0


def test_what_lies_idle_makes_room_for_other_sizes() -> None:
    """Sizes that are asked for no more do not keep those that are from being used again, nor add to them."""
    buffer_pool = BufferPool(limit=4 * SIZE)
    old = [buffer_pool.empty((SIZE,), BYTES) for _ in range(4)]
    old.clear()

    new = [buffer_pool.empty((2 * SIZE,), BYTES) for _ in range(2)]
    places = {one.ctypes.data for one in new}

    assert not any(buffer_pool._idle.values())

    new.clear()
    again = [buffer_pool.empty((2 * SIZE,), BYTES) for _ in range(2)]

    assert {one.ctypes.data for one in again} == places


def test_what_lies_idle_can_be_let_go() -> None:
    """What is lent stays, and is used again when it has come back."""
    buffer_pool = BufferPool(limit=4 * SIZE)
    kept, idle = buffer_pool.empty((SIZE,), BYTES), buffer_pool.empty((SIZE,), BYTES)
    where = kept.ctypes.data
    del idle

    buffer_pool.free_idle()

    assert not any(buffer_pool._idle.values())

    del kept

    assert buffer_pool.empty((SIZE,), BYTES).ctypes.data == where


def test_memory_that_there_was_not_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the system had none left, what comes back is kept as before."""
    buffer_pool = BufferPool(limit=SIZE)

    def none_left(size: int) -> None:
        raise MemoryError(size)

    with monkeypatch.context() as short:
        short.setattr(lease, "allocate", none_left)
        with pytest.raises(MemoryError):
            buffer_pool.empty((SIZE,), BYTES)
    first = buffer_pool.empty((SIZE,), BYTES)
    del first

    assert sum(map(len, buffer_pool._idle.values())) == 1
