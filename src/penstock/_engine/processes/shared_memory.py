"""A file in memory that two processes share: each writes blocks of its own and maps the blocks of the other.

A block is reused when the reader has released every array in it, and not before. The file has no name, so nothing remains of
it when both processes have ended, however they end.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import tempfile
import threading
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Iterable
from errno import EBADF
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Block: TypeAlias = tuple[int, int, int]
"""Where a block begins in the file, its capacity, and how many bytes of it are used."""

SECOND_END = 1 << 40
"""Where the blocks of the second end begin. The file is sparse: bytes that were never written take no memory."""

STEP = 1 << 16
"""The smallest capacity of a block, and the smallest difference between two; a multiple of every machine's page."""

STEPS = 3
"""Capacities differ by an eighth (2 ** -3) of the power of two below them, so that blocks of similar sizes can be reused."""

IDLE_BLOCKS, IDLE_BYTES = 16, 256 << 20
"""Own blocks that stay allocated while unused, and their bytes."""

MAX_REFERENCED = 16
"""Blocks of the other end that arrays may lie in. Further blocks are copied, since each mapping takes a handle."""

CLOSED = -1

SMALL = 1 << 18
"""Bytes up to which a copy costs less than to keep account of a block."""

LARGE = 4 << 20
"""Bytes from which NumPy copies, which releases the interpreter's lock. To acquire it again takes longer than a small copy."""


def anonymous_file() -> int:
    """Return the descriptor of a new file without a name: in memory, or on disk where the system has no such files."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("penstock")
    with tempfile.TemporaryFile(prefix="penstock-") as file:
        return os.dup(file.fileno())


class SharedMemory:
    """One end of the file.

    Example:
        >>> file = anonymous_file()
        >>> first, second = SharedMemory(file), SharedMemory(file, first=SECOND_END)
        >>> block = first.write(memoryview(bytes([0, 1, 2, 3])))
        >>> values = second.read(block)
        >>> values
        array([0, 1, 2, 3], dtype=uint8)
        >>> del values
        >>> first.take_back(second.released())
        >>> first.write(memoryview(bytes(4))) == block
        True
        >>> os.close(file)
    """

    def __init__(self, file: int, *, first: int = 0) -> None:
        """Store the file, which the caller closes, and where the blocks of this end begin."""
        self._file, self._next = file, first
        self._lock = threading.RLock()  # garbage collection may close it at any moment
        self._own: dict[int, Bytes] = {}
        self._idle: list[tuple[int, int]] = []
        self._mapped: OrderedDict[int, Bytes] = OrderedDict()
        self._referenced: set[int] = set()
        self._released: deque[int] = deque()

    def write(self, data: memoryview) -> Block:
        """Write bytes to a block, which belongs to the other end until it is released."""
        with self._lock:
            first, capacity = self._allocate(data.nbytes)
            memory = self._own[first]
        if data.nbytes < LARGE:
            memory.data[: data.nbytes] = data
        else:
            np.copyto(memory[: data.nbytes], np.frombuffer(data, np.uint8))
        return first, capacity, data.nbytes

    def take_back(self, blocks: Iterable[int]) -> None:
        """Take back own blocks that the other end has released."""
        with self._lock:
            for first in blocks:
                insort(self._idle, (len(self._own[first]), first))
            idle = sum(capacity for capacity, _ in self._idle)
            while len(self._idle) > IDLE_BLOCKS or idle > IDLE_BYTES:
                # The largest goes: it frees most, and few buffers need it.
                capacity, first = self._idle.pop()
                self._free(self._own.pop(first))
                idle -= capacity

    def read(self, block: Block) -> Bytes:
        """Return the bytes of a block of the other end, which does not change while anything refers to them."""
        first, capacity, size = block
        with self._lock:
            self._collect()
            memory = self._mapped.pop(first, None)
            if memory is None:
                memory = self._map(first, capacity)
            self._mapped[first] = memory
            while len(self._mapped) > 2 * MAX_REFERENCED:
                self._mapped.popitem(last=False)
            if size > SMALL and len(self._referenced) < MAX_REFERENCED:
                self._referenced.add(first)
                return np.asarray(_BlockOwner(memory, size, first, self._released))
        copied = memory[:size].copy()
        self._released.append(first)
        return copied

    def released(self) -> list[int]:
        """Return the blocks of the other end that were released since the last call."""
        with self._lock:
            return self._collect(drain=True)

    def close(self) -> None:
        """Free all memory except that of arrays in use. Nothing can be written or read afterwards."""
        with self._lock:
            self._file = CLOSED  # the number may soon be that of another file
            self._collect()
            for first, memory in [*self._own.items(), *self._mapped.items()]:
                if first not in self._referenced:
                    self._free(memory)
            self._own, self._idle = {}, []
            self._mapped.clear()

    def _collect(self, *, drain: bool = False) -> list[int]:
        """Note which blocks are no longer referenced. References may end at any moment, so their end only adds to a queue."""
        released = [self._released.popleft() for _ in range(len(self._released))]
        self._referenced.difference_update(released)
        if not drain:
            self._released.extendleft(reversed(released))
        return released

    def _allocate(self, size: int) -> tuple[int, int]:
        """Return the start and the capacity of an unused block for so many bytes."""
        at = bisect_left(self._idle, (size, 0))
        if at < len(self._idle) and self._idle[at][0] <= 2 * max(size, STEP):
            capacity, first = self._idle.pop(at)
            return first, capacity
        step = max(STEP, 1 << max(0, size.bit_length() - 1 - STEPS))
        capacity, first = -(-max(1, size) // step) * step, self._next
        if hasattr(os, "posix_fallocate"):
            # Without it, a write to memory that the system does not have would end the process.
            os.posix_fallocate(self._file, first, capacity)
        elif os.fstat(self._file).st_size < first + capacity:
            os.ftruncate(self._file, first + capacity)
        self._own[first] = self._map(first, capacity)
        self._next += capacity
        return first, capacity

    def _map(self, first: int, capacity: int) -> Bytes:
        if self._file == CLOSED:
            raise OSError(EBADF, "the file has been closed")
        options: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        return np.frombuffer(mmap.mmap(self._file, capacity, flags=flags, offset=first, **options), dtype=np.uint8)

    def _free(self, memory: Bytes) -> None:
        """Return the memory of a block to the system, where the system can take it."""
        base: Any = memory.base  # which NumPy may have wrapped
        if hasattr(mmap, "MADV_REMOVE"):
            with contextlib.suppress(OSError, ValueError):
                getattr(base, "obj", base).madvise(mmap.MADV_REMOVE)


class _BlockOwner:
    """The owner of an array in a block of the other end; the block is released when it dies."""

    __slots__ = ("__array_interface__", "_first", "_memory", "_released")

    def __init__(self, memory: Bytes, size: int, first: int, released: deque[int]) -> None:
        self._memory, self._first, self._released = memory, first, released
        self.__array_interface__ = {"version": 3, "shape": (size,), "typestr": "|u1", "data": (memory.ctypes.data, False)}

    def __del__(self) -> None:
        self._released.append(self._first)
