"""One file in memory that two processes share: each writes blocks of its own, and reads those of the other where they lie.

A block is written to again when the reader has let go of every array that lies in it, and not before: whoever keeps a
batch keeps its block. The file has no name, so that nothing is left of it when both processes have ended, however they did.
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
from collections.abc import Iterable, Sequence
from errno import EBADF
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["APART", "Bytes", "Place", "SharedMemory", "anonymous_file"]

Bytes: TypeAlias = npt.NDArray[np.uint8]
Place: TypeAlias = tuple[int, int]
"""Where a block begins in the file, and how many bytes it has room for."""

APART = 1 << 40
"""Where the blocks of the second end begin. The file has holes where nobody has written, which take no memory."""

STEP = 1 << 16
"""The smallest block, and the smallest step from one size to the next; a multiple of every machine's page."""

STEPS = 3
"""Sizes go up by an eighth (two to the minus this) of the power of two below them, so that what differs a little can share."""

IDLE_BLOCKS, IDLE_BYTES = 16, 256 << 20
"""Own blocks that may lie idle, and their bytes; of more, the memory is given back."""

MOST_LENT = 16
"""Blocks of the other end that arrays may lie in; of further ones copies are handed out, since each mapping takes a handle."""

CLOSED = -1

SMALL = 1 << 18
"""Bytes up to which a copy costs less than to keep account of a block."""


def anonymous_file() -> int:
    """Return the descriptor of a new file in memory, or on disk where the system has no such files, that has no name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("penstock")
    with tempfile.TemporaryFile(prefix="penstock-") as file:
        return os.dup(file.fileno())


class SharedMemory:
    """One end of the file.

    Example:
        >>> file = anonymous_file()
        >>> here, there = SharedMemory(file), SharedMemory(file, first=APART)
        >>> place = here.write([(0, np.arange(4, dtype=np.uint8))], 4)
        >>> found = there.read(place, 4)
        >>> found
        array([0, 1, 2, 3], dtype=uint8)
        >>> del found
        >>> here.take_back(there.let_go())
        >>> here.write([], 4) == place
        True
        >>> os.close(file)
    """

    def __init__(self, file: int, *, first: int = 0) -> None:
        """Store the file, which others close, and where this end's own blocks begin."""
        self._file, self._next = file, first
        self._lock = threading.RLock()  # garbage collection may close it at any moment
        self._own: dict[int, Bytes] = {}
        self._idle: list[Place] = []
        self._mapped: OrderedDict[int, Bytes] = OrderedDict()
        self._lent: set[int] = set()
        self._let_go: deque[int] = deque()

    def write(self, buffers: Sequence[tuple[int, Any]], size: int) -> Place:
        """Write buffers, each from a place on, to a block of `size` bytes, which the other end has until it lets go of it.

        Arrays are copied by NumPy, which lets other threads run meanwhile; anything else are bytes, copied at once.

        Raises:
            OSError: If there is no memory for it.
        """
        with self._lock:
            place = self._free(size)
        memory = self._own[place[0]]
        view = memory.data
        for at, buffer in buffers:
            if isinstance(buffer, np.ndarray):
                np.copyto(memory[at : at + buffer.nbytes].view(buffer.dtype).reshape(buffer.shape), buffer)
            else:
                view[at : at + len(buffer)] = buffer
        return place

    def take_back(self, blocks: Iterable[int]) -> None:
        """Take back blocks of one's own, which the other end has let go of."""
        with self._lock:
            for first in blocks:
                insort(self._idle, (len(self._own[first]), first))
            idle = sum(room for room, _ in self._idle)
            while len(self._idle) > IDLE_BLOCKS or idle > IDLE_BYTES:
                # The largest goes: it frees most, and what needs it is rare.
                room, first = self._idle.pop()
                self._hollow(self._own.pop(first))
                idle -= room

    def read(self, place: Place, size: int) -> Bytes:
        """Return the bytes of a block of the other end, which it will not change while anything refers to them."""
        with self._lock:
            first, room = place
            self._collect()
            memory = self._mapped.pop(first, None)
            if memory is None:
                memory = self._map(first, room)
            self._mapped[first] = memory
            while len(self._mapped) > 2 * MOST_LENT:
                self._mapped.popitem(last=False)
            if size > SMALL and len(self._lent) < MOST_LENT:
                self._lent.add(first)
                return np.asarray(_Loan(memory, size, first, self._let_go))
        found = memory[:size].copy()
        self._let_go.append(first)
        return found

    def let_go(self) -> list[int]:
        """Return the blocks of the other end that nothing refers to any more since it was last asked."""
        with self._lock:
            return self._collect(drain=True)

    def close(self) -> None:
        """Give back all memory but that of arrays which are still in use; nothing is written or read after that."""
        with self._lock:
            self._file = CLOSED  # whoever has its number next must not be written to
            self._collect()
            for first, memory in [*self._own.items(), *self._mapped.items()]:
                if first not in self._lent:
                    self._hollow(memory)
            self._own, self._idle = {}, []
            self._mapped.clear()

    def _collect(self, *, drain: bool = False) -> list[int]:
        """Note which loans have ended; references may die at any moment, so whoever dies only adds to a queue."""
        found = [self._let_go.popleft() for _ in range(len(self._let_go))]
        self._lent.difference_update(found)
        if not drain:
            self._let_go.extendleft(reversed(found))
        return found

    def _free(self, size: int) -> Place:
        """Return a block that nobody uses, with room for so many bytes."""
        at = bisect_left(self._idle, (size, 0))
        if at < len(self._idle) and self._idle[at][0] <= 2 * max(size, STEP):
            room, first = self._idle.pop(at)
            return first, room
        step = max(STEP, 1 << max(0, size.bit_length() - 1 - STEPS))
        room, first = -(-max(1, size) // step) * step, self._next
        if hasattr(os, "posix_fallocate"):
            # Memory that is only promised, and not there when it is written to, would end the process.
            os.posix_fallocate(self._file, first, room)
        elif os.fstat(self._file).st_size < first + room:
            os.ftruncate(self._file, first + room)
        self._own[first] = self._map(first, room)
        self._next += room
        return first, room

    def _map(self, first: int, room: int) -> Bytes:
        if self._file == CLOSED:
            raise OSError(EBADF, "the file has been closed")
        options: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
        flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
        return np.frombuffer(mmap.mmap(self._file, room, flags=flags, offset=first, **options), dtype=np.uint8)

    def _hollow(self, memory: Bytes) -> None:
        """Give back the memory of a block, where the system can."""
        base: Any = memory.base  # which NumPy may have wrapped
        if hasattr(mmap, "MADV_REMOVE"):
            with contextlib.suppress(OSError, ValueError):
                getattr(base, "obj", base).madvise(mmap.MADV_REMOVE)


class _Loan:
    """What an array in a block keeps alive; the block is let go of when it dies."""

    __slots__ = ("__array_interface__", "_first", "_let_go", "_memory")

    def __init__(self, memory: Bytes, size: int, first: int, let_go: deque[int]) -> None:
        self._memory, self._first, self._let_go = memory, first, let_go
        self.__array_interface__ = {"version": 3, "shape": (size,), "typestr": "|u1", "data": (memory.ctypes.data, False)}

    def __del__(self) -> None:
        self._let_go.append(self._first)
