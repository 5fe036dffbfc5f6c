"""Files that rows are looked up in: what it costs to read them, and spans of bytes read with few requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from penstock._engine.parquet.chunk_layout import FileLayout
from penstock._engine.parquet.file_blobs import LocalFile
from penstock._engine.parquet.footer import ENDING, TAIL, footer_of
from penstock._engine.parquet.page_index import coalesce
from penstock._engine.parquet.thrift import ThriftError
from penstock._engine.runtime.buffers import BufferPool
from penstock.model import IntArray

__all__ = ["AT_ONCE", "LOCAL", "REMOTE", "Cost", "OpenFile", "side_by_side"]

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What reading costs where a table lies.

    Attributes:
        request: The bytes that could be read in the time that one more request takes.
        most: The bytes of a request that no more are added to, so that others can be read beside it.
        near: Whether a request costs next to nothing: pages may be looked for one by one, and not several at once.
    """

    request: int
    most: int
    near: bool

    def of(self, starts: IntArray, sizes: IntArray) -> int:
        """Return what it costs to read some pieces, in their order, in bytes: neighbours are read with one request."""
        gaps = starts[1:] - starts[:-1] - sizes[:-1]
        return int(sizes.sum() + np.minimum(gaps, self.request).sum()) + self.request


AT_ONCE = 16
"""Requests, or files, that wait for storage at the same time."""

LOCAL = Cost(request=32 << 10, most=64 << 20, near=True)
REMOTE = Cost(request=1 << 20, most=8 << 20, near=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenFile:
    """A file that is open for reading at any place by any thread, and what its footer says.

    Attributes:
        path: Its path.
        source: What reads it.
        anatomy: What its footer says.
    """

    path: str
    source: LocalFile | Any
    anatomy: FileLayout

    @classmethod
    def at(cls, path: str, source: LocalFile | Any) -> OpenFile:
        """Return a file, having looked through its footer.

        Raises:
            OSError: If it cannot be read.
            DataError: If it has no footer.
            ThriftError: If nothing can be made of its footer.
        """
        size = source.size if isinstance(source, LocalFile) else source.size()
        start = max(0, size - TAIL)
        tail = _read(source, start, size - start)
        begin = size - ENDING - int.from_bytes(tail[-ENDING:-4], "little")
        if 0 <= begin < start:
            tail = _read(source, begin, start - begin) + tail
        try:
            return cls(path=path, source=source, anatomy=FileLayout(footer_of(path, tail), size))
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            raise ThriftError(str(error)) from error

    def read(self, start: int, size: int) -> bytes:
        """Return some bytes; fewer at the end of the file."""
        return _read(self.source, start, size)

    def fetch(self, spans: Sequence[tuple[int, int]], cost: Cost, buffer_pool: BufferPool) -> list[memoryview]:
        """Return the bytes of some spans, neighbours read with one request.

        Raises:
            OSError: If the file ends before they do.
        """
        wanted = coalesce(spans, cost.request, cost.most)
        size = sum(stop - start for start, stop, _ in wanted)
        room: memoryview = buffer_pool.empty((size,), np.dtype(np.uint8)).data
        found, parts, at = [room] * len(spans), [], 0
        for start, stop, inside in wanted:
            parts.append((room[at : at + stop - start], start))
            for number in inside:
                begin, end = spans[number]
                found[number] = room[at + begin - start : at + end - start]
            at += stop - start
        if cost.near:
            for part in parts:
                self._fill(part)
        else:
            side_by_side(self._fill, parts)
        return found

    def one_by_one(self, spans: Sequence[tuple[int, int]], buffer_pool: BufferPool) -> Callable[[int], memoryview]:
        """Return what reads one of some spans, by its number, always to the same memory.

        It raises an OSError if the file ends before that.
        """
        room: memoryview = buffer_pool.empty((max(stop - start for start, stop in spans),), np.dtype(np.uint8)).data

        def read(number: int) -> memoryview:
            start, stop = spans[number]
            self._fill((room[: stop - start], start))
            return room[: stop - start]

        return read

    def _fill(self, part: tuple[memoryview, int]) -> None:
        room, start = part
        if isinstance(self.source, LocalFile):
            got = self.source.fill(room, start)
        else:
            data = self.source.read_at(len(room), start)
            got = len(data)
            room[:got] = data
        if got < len(room):
            msg = f"the file ends after {start + got} bytes, and its footer tells of {start + len(room)}"
            raise OSError(msg)


def _read(source: LocalFile | Any, start: int, size: int) -> bytes:
    if isinstance(source, LocalFile):
        return source.peek(start, size)
    found: bytes = source.read_at(size, start)
    return found


def side_by_side(function: Callable[[Item], Result], items: Sequence[Item], threads: int = AT_ONCE) -> list[Result]:
    """Return what a function returns for each item, on threads that end with it; the first error that occurs is raised.

    Example:
        >>> side_by_side(abs, [-1, 2, -3])
        [1, 2, 3]
    """
    if len(items) == 1 or threads == 1:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(threads, len(items)) - 1, thread_name_prefix="penstock-lookup") as pool:
        # The last is done here: one thread less to start.
        rest = [pool.submit(function, item) for item in items[:-1]]
        last = function(items[-1])
        return [*(one.result() for one in rest), last]
