"""Memory of an iteration: reused buffers, units that stay in memory, and the budget that both count against.

Fresh memory costs a page fault for every four kilobytes, which is more than the copy that fills it. So arrays come from a
`BufferPool`, which gets their memory back when the last reference to them dies. A `TableCache` keeps the units of a small
table after its first epoch. A `MemoryBudget` decides how far to read ahead, from the sizes that reads really produced: a
column of one megabyte on storage may take two hundred in memory.
"""

from __future__ import annotations

import mmap
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import suppress
from math import prod
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import MemoryLimitError

SMALLEST = 1 << 16
"""Bytes of the smallest buffer, and of the smallest step between two sizes."""

SIZE_STEPS = 3
"""Sizes grow by an eighth (2 ** -3) of the power of two below them, so that similar arrays share buffers."""

MAPPED = 1 << 20
"""Buffers of at least this many bytes are mapped one by one, so that freeing one returns it to the operating system."""

HUGE = 1 << 22
"""Buffers of at least this many bytes use huge pages: one page fault for two megabytes."""

EVENTS = 1000
"""Allocations and releases that are noted before they are summed."""


class BufferPool:
    """Uninitialized arrays whose memory is used again after the last reference to them dies.

    Garbage collection may release a buffer at any moment, so a release takes no lock: it only appends to a deque or a list.

    Example:
        >>> pool = BufferPool(limit=1 << 20)
        >>> first = pool.empty((100,), np.dtype(np.float32))
        >>> address = first.ctypes.data
        >>> del first
        >>> pool.empty((100,), np.dtype(np.float32)).ctypes.data == address
        True
    """

    def __init__(self, limit: int) -> None:
        """Store the bytes, in use and idle, above which released buffers are freed."""
        self._limit = limit
        self._idle: dict[int, deque[_Buffer]] = {}
        self._events: deque[int] = deque()
        self._freed: list[int] = []
        self._allocated = self._used = 0
        self._summing = threading.Lock()

    @property
    def used_bytes(self) -> int:
        """Bytes of arrays that are alive."""
        with self._summing:
            while self._events:
                self._used += self._events.popleft()
            return self._used

    def set_limit(self, limit: int) -> None:
        """Set the bytes, in use and idle, above which released buffers are freed."""
        self._limit = limit

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return an uninitialized array."""
        if dtype.hasobject:
            return np.empty(shape, dtype=dtype)
        needed = int(prod(shape)) * dtype.itemsize
        step = max(SMALLEST, 1 << max(0, needed.bit_length() - 1 - SIZE_STEPS))
        size = -(-max(1, needed) // step) * step
        try:
            buffer = self._idle[size].pop()  # the last one released is still in the processor's cache
        except (KeyError, IndexError):
            buffer = self._new(size)
        self._events.append(size)
        if len(self._events) > EVENTS:
            _ = self.used_bytes
        return np.asarray(_BufferOwner(self, buffer, shape, dtype))

    def _new(self, size: int) -> _Buffer:
        """Allocate a buffer; idle buffers of other sizes make room for it."""
        buffer = _Buffer(allocate(size))
        with self._summing:
            self._idle.setdefault(size, deque())
            while self._freed:
                self._allocated -= self._freed.pop()
            self._allocated += size
            self._free_idle(self._limit)
        return buffer

    def free_idle(self) -> None:
        """Free all idle buffers."""
        with self._summing:
            self._free_idle(0)

    def _free_idle(self, limit: int) -> None:
        """Free idle buffers until no more than `limit` bytes are allocated, the sizes that came first before others."""
        for size, queue in self._idle.items():
            while self._allocated > limit and queue:
                with suppress(IndexError):  # another thread has just taken it
                    queue.popleft()
                    self._allocated -= size

    def release(self, buffer: _Buffer) -> None:
        """Take back a buffer whose array is dead."""
        size = len(buffer.memory)
        self._events.append(-size)
        # Another thread may be summing `_freed`, so that one entry counts twice or not at all; that hardly matters.
        if self._allocated - sum(self._freed) <= self._limit:
            self._idle[size].append(buffer)
        else:
            self._freed.append(size)


class _Buffer:
    """Memory and its address; NumPy takes longer to look up an address than to make an array of it."""

    __slots__ = ("address", "memory")

    def __init__(self, memory: npt.NDArray[np.uint8]) -> None:
        self.memory, self.address = memory, memory.ctypes.data


class _BufferOwner:
    """The base object of an array; it releases the buffer when it dies."""

    __slots__ = ("__array_interface__", "_buffer", "_pool")

    def __init__(self, pool: BufferPool, buffer: _Buffer, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._pool, self._buffer = pool, buffer
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": dtype.str, "data": (buffer.address, False)}

    def __del__(self) -> None:
        self._pool.release(self._buffer)


def allocate(size: int) -> npt.NDArray[np.uint8]:
    """Return new memory; large blocks return to the operating system as soon as they are freed."""
    if size < MAPPED or sys.platform == "win32":
        return np.empty(size, dtype=np.uint8)
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        msg = f"{size} bytes of memory are needed in one piece, and the system does not give them: {error}. Make batches, or "
        raise MemoryError(msg + "what their cells become, smaller.") from error
    if size >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # systems without huge pages
            pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, dtype=np.uint8)


BLOCK = 1 << 25
"""Bytes allocated at once for pinned memory, so that many small pieces share huge pages."""

ALIGNMENT = 64
"""Alignment of a piece, as Arrow prefers it."""


class CacheMemory:
    """Memory for copies that stay, cut from large blocks; a block is freed with its last piece. Thread-safe.

    Example:
        >>> CacheMemory().copy_table(pa.table({"x": [1, None]})).to_pydict()
        {'x': [1, None]}
    """

    def __init__(self) -> None:
        """Begin with no memory."""
        self._rest = np.empty(0, dtype=np.uint8)
        self._lock = threading.Lock()

    def allocate(self, size: int) -> npt.NDArray[np.uint8]:
        """Return uninitialized memory."""
        if size < MAPPED:
            return allocate(size)
        with self._lock:
            if len(self._rest) < size:
                self._rest = allocate(max(size, BLOCK))
            piece, self._rest = self._rest[:size], self._rest[-(-size // ALIGNMENT) * ALIGNMENT :]
            return piece

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return an uninitialized array, as `BufferPool.empty` does."""
        return self.allocate(prod(shape) * dtype.itemsize).view(dtype).reshape(shape)

    def copy(self, values: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return a copy of some bytes."""
        copied = self.allocate(len(values))
        copied[:] = values
        return copied

    def copy_table(self, table: pa.Table) -> pa.Table:
        """Return a copy of a table in one block; the table itself where it cannot be copied."""
        if not table.num_columns:
            return table
        try:
            whole = table.combine_chunks()
        except pa.ArrowInvalid:  # values that do not fit one array of their type
            return table
        size = pa.MockOutputStream()
        _write_stream(whole, size)
        memory = pa.py_buffer(self.allocate(size.size()))
        _write_stream(whole, pa.FixedSizeBufferWriter(memory))
        copied = pa.ipc.open_stream(memory).read_all()
        # An extension type that is not registered comes back as its storage type.
        return copied if copied.schema.equals(table.schema, check_metadata=True) else table


def _write_stream(table: pa.Table, sink: pa.NativeFile) -> None:
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


Part = TypeVar("Part")

CACHE_SHARE = 0.25
"""The share of the memory limit that a cached table may take."""


class TableCache(Generic[Part]):
    """Units of a table that is small enough to stay in memory. Thread-safe.

    What is kept is what was read, as Arrow, before any cell is decoded. Without a loader most tables are read once, so a unit
    is kept when it is read for the second time. Once all units seen so far exceed the limit, nothing is kept any more.

    Attributes:
        units: The kept units by name.
        memory: Where units are copied that are kept.
        is_full: Whether the table is too large to be kept.

    Example:
        >>> cache: TableCache[str] = TableCache()
        >>> cache.set_memory_limit(400)
        >>> for _ in range(2):
        ...     if cache.accepts("unit 0", nbytes=20, total=40):
        ...         cache.keep("unit 0", "its rows")
        ...     print(cache.units)
        {}
        {'unit 0': 'its rows'}
        >>> cache.accepts("unit 1", nbytes=90, total=180), cache.units, cache.nbytes
        (False, {}, 0)
    """

    def __init__(self) -> None:
        """Begin empty, with a limit of 0."""
        self.units: dict[Hashable, Part] = {}
        self._sizes: dict[Hashable, int] = {}
        self._limit = self._seen = self._nbytes = 0
        self.is_full = self._read_again = False
        self.memory, self._lock = CacheMemory(), threading.Lock()

    def __reduce__(self) -> tuple[type[TableCache[Part]], tuple[()]]:
        """Begin empty in a copy, and in another process."""
        return TableCache, ()

    @property
    def nbytes(self) -> int:
        """Bytes of the kept units."""
        return self._nbytes

    def set_memory_limit(self, memory_limit: int) -> None:
        """Set the memory limit of an iteration; the cache takes a share of it."""
        with self._lock:
            limit = int(CACHE_SHARE * memory_limit)
            if self.is_full and limit > self._limit:
                self.is_full = False  # another chance
            elif self._seen > limit:
                self._clear()
            self._limit = limit

    def cache_from_first_read(self) -> None:
        """Keep units when they are read for the first time, because they will be read again."""
        self._read_again = True

    def accepts(self, name: Hashable, nbytes: int, total: int) -> bool:
        """Return whether to keep a unit that was just read: it was read before or will be read again, and all units fit."""
        if self.is_full:
            return False
        with self._lock:
            seen_before = name in self._sizes
            if not seen_before:
                self._sizes[name] = nbytes
                self._seen += nbytes
                if self._seen > self._limit:
                    self._clear()
                    self.is_full = True
                    return False
            return name not in self.units and (seen_before or (self._read_again and total <= self._limit))

    def keep(self, name: Hashable, unit: Part) -> None:
        """Keep a unit, which was copied to `memory`."""
        with self._lock:
            if name in self._sizes and name not in self.units:
                self.units[name] = unit
                self._nbytes += self._sizes[name]

    def _clear(self) -> None:
        self._sizes, self.units, self._seen, self._nbytes, self.memory = {}, {}, 0, 0, CacheMemory()


READING = 1.5
"""Memory of a unit while it is read, per byte of the result: compressed and decompressed pages."""

READ_AHEAD = 0.7
"""The share of the limit up to which windows are read ahead; freed memory does not return at once."""

RELEASE = 0.25
"""The share of the limit above which Arrow's unused memory is returned to the operating system."""

MAX_RETAINED = 0.125
"""The share of the limit that windows may take which only single batches keep alive; above it, batches are copied."""


class MemoryBudget:
    """Counts the memory of one iteration. Thread-safe.

    Attributes:
        limit: Bytes that the iteration may take.
        early_rows: Rows of windows that were read ahead for the next epoch.

    Example:
        >>> budget = MemoryBudget(1 << 20, BufferPool(1 << 20), threads=2)
        >>> budget.add_unit(rows=100, nbytes=80_000)
        >>> budget.has_room(500), budget.has_room(5_000)
        (True, False)
    """

    def __init__(self, limit: int, buffer_pool: BufferPool, threads: int, table_cache: TableCache[Any] | None = None) -> None:
        """Store the limit, and whose memory counts beside that of windows: reused buffers and cached units."""
        self.limit, self._buffer_pool, self._threads, self._table_cache = limit, buffer_pool, threads, table_cache
        buffer_pool.set_limit(limit * 5 // 8)
        self._lock = threading.Lock()
        self._units = self._rows = self._bytes = self._stored = self._expected_rows = 0
        self.early_rows = 0

    @property
    def row_bytes(self) -> float:
        """Memory of a row, on average over what was read so far."""
        return self._bytes / max(1, self._rows)

    @property
    def used_bytes(self) -> int:
        """Memory of windows and of the batches that the consumer keeps."""
        return self._buffer_pool.used_bytes + self._stored

    def add_unit(self, *, rows: int, nbytes: int, window_rows: int = 0) -> None:
        """Count a unit that was read for a window of `window_rows` rows."""
        with self._lock:
            self._units += 1
            self._rows += rows
            self._bytes += nbytes
        row_bytes = self._bytes / max(1, self._rows)
        if self.used_bytes + self._expected_rows * row_bytes > RELEASE * self.limit:
            pa.default_memory_pool().release_unused()  # costs page faults, so not always
        if window_rows * row_bytes > self.limit:
            rows = max(1, int(self.limit / 2 / row_bytes))
            msg = (
                f"A window of {window_rows} rows takes {format_bytes(int(window_rows * row_bytes))} in memory, by what was "
                f"read so far, and memory_limit is {format_bytes(self.limit)}. Allow more with .using(memory_limit=...), or "
                "select fewer columns. Where rows are shuffled, use a smaller window: "
                f".shuffle(penstock.WindowShuffle(rows={rows}), ...); where they are not, write the table anew with smaller "
                "row groups."
            )
            raise MemoryLimitError(msg)

    def count_while_alive(self, owner: Any, nbytes: int) -> None:
        """Count memory that is not of the buffer pool for as long as an object lives."""
        if nbytes:
            with self._lock:
                self._stored += nbytes
            weakref.finalize(owner, self._uncount, nbytes).atexit = False

    def _uncount(self, nbytes: int) -> None:
        # No lock: garbage collection may call this in a thread that holds it. An update that is lost only makes windows wait.
        self._stored -= nbytes

    def expect(self, rows: int, window: Future[Any]) -> None:
        """Count a window that is being read, until it is done."""
        with self._lock:
            self._expected_rows += rows

        def done(_: object) -> None:
            with self._lock:
                self._expected_rows -= rows

        window.add_done_callback(done)

    def has_room(self, rows: int) -> bool:
        """Return whether a window of `rows` rows may be read now."""
        if not self._rows:
            return True
        reading = self._threads * READING * self._bytes / self._units
        used = self.used_bytes + (0 if self._table_cache is None else self._table_cache.nbytes)
        return used + (self._expected_rows + rows) * self.row_bytes + reading <= READ_AHEAD * self.limit

    def retains_windows(self, rows: int) -> bool:
        """Return whether the consumer keeps old windows alive, beside the `rows` rows in use, by keeping batches.

        A batch that is a view of its window keeps all of it. The last batch of one old window is always alive.
        """
        return self.used_bytes > (rows + self.early_rows) * self.row_bytes + MAX_RETAINED * self.limit

    def check_unit(self, name: Callable[[], str], rows: int, row_bytes: int) -> None:
        """Refuse a unit that cannot fit."""
        if rows * row_bytes > self.limit:
            msg = (
                f"{name()}: it has {rows} rows, whose numbers alone take {format_bytes(rows * row_bytes)} in memory, and "
                f"memory_limit is {format_bytes(self.limit)}. Allow more with .using(memory_limit=...), select fewer columns, "
                "or write the table anew with smaller row groups."
            )
            raise MemoryLimitError(msg)

    def check_batch(self, rows: int, limit: int) -> None:
        """Refuse to fill up a batch beyond a limit, by what rows took so far."""
        if rows * self.row_bytes > limit:
            msg = (
                f'A batch filled up to {rows} rows by last="pad" takes {format_bytes(int(rows * self.row_bytes))} in memory, '
                f"and memory_limit is {format_bytes(limit)}. Allow more with .using(memory_limit=...), use a smaller batch, or "
                'last="uneven".'
            )
            raise MemoryLimitError(msg)


def format_bytes(count: int) -> str:
    """Return a number of bytes for messages.

    Example:
        >>> format_bytes(5 << 20), format_bytes(1000)
        ('5.0 MiB', '1000 bytes')
    """
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
