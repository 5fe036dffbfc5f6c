"""Arrays that are lent: their memory comes back when the last reference to them dies, and is lent again.

Fresh memory costs a page fault for every four kilobytes, which is more than the gather that fills it.
"""

from __future__ import annotations

import mmap
import sys
import threading
from collections import deque
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["APART", "BufferPool", "allocate"]

STEP = 1 << 16
"""The smallest slab, and the smallest step from one size to the next."""

STEPS = 3
"""Sizes go up by an eighth (two to the minus this) of the power of two below them, so that what differs a little can share."""


APART = 1 << 20
"""A slab of so many bytes has memory pages of its own, and does not lie among what others allocate."""

HUGE = 1 << 22
"""A slab of so many bytes is worth huge pages, which cost one fault for two megabytes."""

EVENTS = 1000
"""So many slabs lent and given back are noted before they are added up."""


class BufferPool:
    """Memory that is lent out as arrays.

    Nothing that garbage collection may do at any moment is locked: what is free, and what is to be counted, lies in queues
    and lists, whose ends are safe from threads.

    Example:
        >>> buffer_pool = BufferPool(most=1 << 20)
        >>> first = buffer_pool.empty((100,), np.dtype(np.float32))
        >>> where = first.ctypes.data
        >>> del first
        >>> buffer_pool.empty((100,), np.dtype(np.float32)).ctypes.data == where
        True
    """

    def __init__(self, most: int) -> None:
        """Store how many bytes there may be, lent and idle, before what comes back is let go."""
        self._most = most
        self._free: dict[int, deque[_Buffer]] = {}
        self._events: deque[int] = deque()
        self._dropped: list[int] = []
        self._made = self._lent = 0
        self._adding = threading.Lock()

    @property
    def lent(self) -> int:
        """Bytes that are lent now."""
        with self._adding:
            while self._events:
                self._lent += self._events.popleft()
            return self._lent

    def bound(self, most: int) -> None:
        """Set how many bytes there may be, lent and idle, before what comes back is let go."""
        self._most = most

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return an array with whatever was in its memory before."""
        if dtype.hasobject:
            return np.empty(shape, dtype=dtype)
        wanted = int(prod(shape)) * dtype.itemsize
        step = max(STEP, 1 << max(0, wanted.bit_length() - 1 - STEPS))
        size = -(-max(1, wanted) // step) * step
        try:
            slab = self._free[size].pop()  # the one that came back last, which is warm
        except (KeyError, IndexError):
            slab = self._new(size)
        self._events.append(size)
        if len(self._events) > EVENTS:
            _ = self.lent
        return np.asarray(_BufferOwner(self, slab, shape, dtype))

    def _new(self, size: int) -> _Buffer:
        """Return a slab that there was not before; what lies idle in other sizes makes room for it."""
        slab = _Buffer(allocate(size))
        with self._adding:
            self._free.setdefault(size, deque())
            while self._dropped:
                self._made -= self._dropped.pop()
            self._made += size
            self._let_go(self._most)
        return slab

    def let_go(self) -> None:
        """Let go of what lies idle."""
        with self._adding:
            self._let_go(0)

    def _let_go(self, most: int) -> None:
        """Let go of what lies idle until there is no more than so much, sizes that were made first before others."""
        for size, queue in self._free.items():
            while self._made > most and queue:
                with suppress(IndexError):  # somebody has just been lent it
                    queue.popleft()
                    self._made -= size

    def give(self, slab: _Buffer) -> None:
        """Take a slab back."""
        size = len(slab.memory)
        self._events.append(-size)
        # Who adds up what was dropped may be at it, so that one counts twice or not at all; that hardly matters.
        if self._made - sum(self._dropped) <= self._most:
            self._free[size].append(slab)
        else:
            self._dropped.append(size)


class _Buffer:
    """A piece of memory, and where it lies, which NumPy takes longer to tell than to make an array of it."""

    __slots__ = ("address", "memory")

    def __init__(self, memory: npt.NDArray[np.uint8]) -> None:
        self.memory, self.address = memory, memory.ctypes.data


def allocate(size: int) -> npt.NDArray[np.uint8]:
    """Return fresh memory; large pieces go back to the operating system as soon as they are let go, whatever lies beside.

    Raises:
        MemoryError: If the system has not so much.
    """
    if size < APART or sys.platform == "win32":
        return np.empty(size, dtype=np.uint8)
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        msg = f"{size} bytes of memory are needed in one piece, and the system does not give them: {error}. Make batches, or "
        raise MemoryError(msg + "what their cells become, smaller.") from error
    if size >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # of systems that have none
            pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, dtype=np.uint8)


class _BufferOwner:
    """What an array keeps alive; it gives the slab back when it dies."""

    __slots__ = ("__array_interface__", "_buffer_pool", "_slab")

    def __init__(self, buffer_pool: BufferPool, slab: _Buffer, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._buffer_pool, self._slab = buffer_pool, slab
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": dtype.str, "data": (slab.address, False)}

    def __del__(self) -> None:
        self._buffer_pool.give(self._slab)
