"""Open files for random access: the cost of reading them, and byte ranges that are read with few requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from penstock._engine.parquet.chunk_layout import FileLayout
from penstock._engine.parquet.file_blobs import LocalFile
from penstock._engine.parquet.footer import footer_of, read_tail
from penstock._engine.parquet.page_index import coalesce
from penstock._engine.parquet.thrift import ThriftError
from penstock._engine.runtime.memory import BufferPool
from penstock._engine.runtime.threads import parallel_map
from penstock.model import IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of reading from a kind of storage.

    Attributes:
        request: The bytes that can be read in the time of one more request.
        max_bytes: The size from which on no span is added to a request, so that others can be read in parallel.
        near: Whether a request costs almost nothing, so that page headers may be read one by one and requests in order.
    """

    request: int
    max_bytes: int
    near: bool

    def of(self, starts: IntArray, sizes: IntArray) -> int:
        """Return the cost in bytes of reading some pieces, in ascending order; neighbours need one request."""
        gaps = starts[1:] - starts[:-1] - sizes[:-1]
        return int(sizes.sum() + np.minimum(gaps, self.request).sum()) + self.request


MAX_REQUESTS = 16
"""Requests, or files, that wait for storage at the same time."""

LOCAL = Cost(request=32 << 10, max_bytes=64 << 20, near=True)
REMOTE = Cost(request=1 << 20, max_bytes=8 << 20, near=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenFile:
    """A file that any thread can read at any place, and its parsed footer."""

    path: str
    source: LocalFile | Any
    layout: FileLayout

    @classmethod
    def at(cls, path: str, source: LocalFile | Any) -> OpenFile:
        """Return a file with its footer."""
        size = source.size if isinstance(source, LocalFile) else source.size()
        tail = read_tail(size, partial(_read, source))
        try:
            return cls(path=path, source=source, layout=FileLayout(footer_of(path, tail), size))
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            raise ThriftError(str(error)) from error

    def read(self, start: int, size: int) -> bytes:
        """Return some bytes; fewer at the end of the file."""
        return _read(self.source, start, size)

    def fetch(self, spans: Sequence[tuple[int, int]], cost: Cost, buffer_pool: BufferPool) -> list[memoryview]:
        """Return the bytes of some spans; neighbours are read with one request."""
        requests = coalesce(spans, cost.request, cost.max_bytes)
        size = sum(stop - start for start, stop, _ in requests)
        memory: memoryview = buffer_pool.empty((size,), np.dtype(np.uint8)).data
        data, parts, at = [memory] * len(spans), [], 0
        for start, stop, inside in requests:
            parts.append((memory[at : at + stop - start], start))
            for number in inside:
                begin, end = spans[number]
                data[number] = memory[at + begin - start : at + end - start]
            at += stop - start
        if cost.near:
            for part in parts:
                self._fill(part)
        else:
            list(parallel_map(self._fill, parts, MAX_REQUESTS))
        return data

    def one_by_one(self, spans: Sequence[tuple[int, int]], buffer_pool: BufferPool) -> Callable[[int], memoryview]:
        """Return a function that reads one of some spans, by its index, always to the same memory.

        It raises an OSError if the file ends before the span.
        """
        memory: memoryview = buffer_pool.empty((max(stop - start for start, stop in spans),), np.dtype(np.uint8)).data

        def read(number: int) -> memoryview:
            start, stop = spans[number]
            self._fill((memory[: stop - start], start))
            return memory[: stop - start]

        return read

    def _fill(self, part: tuple[memoryview, int]) -> None:
        memory, start = part
        if isinstance(self.source, LocalFile):
            count = self.source.fill(memory, start)
        else:
            data = self.source.read_at(len(memory), start)
            count = len(data)
            memory[:count] = data
        if count < len(memory):
            raise OSError(f"the file ends after {start + count} bytes, and its footer refers to {start + len(memory)}")


def _read(source: LocalFile | Any, start: int, size: int) -> bytes:
    data: bytes = source.peek(start, size) if isinstance(source, LocalFile) else source.read_at(size, start)
    return data
