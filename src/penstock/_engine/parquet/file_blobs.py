"""Cells of bytes that stay in their files until the batch that needs them is made.

A window of large blobs is then a list of places, which takes no memory and is not copied. The operating system caches what it
has read, and reads ahead on request.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock._blobs import Blobs
from penstock.dtypes import Marks
from penstock.model import IntArray
from penstock.schema import CellProblem

Bytes: TypeAlias = npt.NDArray[np.uint8]

GAP = 4096
"""Bytes between two cells, mostly page headers, that are read rather than making two requests."""


class Allocator(Protocol):
    """Allocates memory: a buffer pool, or memory of its own."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return an uninitialized array."""
        ...


class LocalFile:
    """A local file, open for reading at any place by any thread. It is closed when nothing refers to it."""

    __slots__ = ("__weakref__", "_descriptor", "_written", "path")

    def __init__(self, path: str, descriptor: int | None = None) -> None:
        """Open the file, or use an open descriptor of it, which is closed with this object."""
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)) if descriptor is None else descriptor
        # Not __del__: while that runs, other threads can still get the object by their weak references to it.
        weakref.finalize(self, os.close, self._descriptor).atexit = False
        self._written = os.fstat(self._descriptor).st_mtime_ns

    def fileno(self) -> int:
        """Return the descriptor, which stays open as long as this object lives."""
        return self._descriptor

    @property
    def size(self) -> int:
        """Its current bytes."""
        return os.fstat(self._descriptor).st_size

    def peek(self, start: int, size: int) -> bytes:
        """Return some bytes; fewer at the end of the file."""
        return os.pread(self._descriptor, size, start)

    def fill(self, memory: memoryview, start: int) -> int:
        """Read bytes into memory, and return their number; it is smaller at the end of the file.

        It raises an OSError if the file was written to after it was opened, so that new bytes are never taken for old ones.
        """
        done = 0
        while done < len(memory):
            count = os.preadv(self._descriptor, [memory[done:]], start + done)
            if count == 0:
                break
            done += count
        if done == len(memory) and os.fstat(self._descriptor).st_mtime_ns != self._written:
            raise OSError("the file was written to while it was being read")
        return done

    def expect(self, start: int, size: int) -> None:
        """Ask the operating system to read some bytes ahead."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, start, size, os.POSIX_FADV_WILLNEED)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileBlobs:
    """Cells of bytes; some or all of them are in files.

    Attributes:
        sources: Files, and arrays of bytes in memory.
        source: The index of the source of each cell.
        start: The first byte of each cell in its source.
        stop: The byte after its last.
        valid: Which cells are not null; None if none is null.
    """

    sources: tuple[LocalFile | Bytes, ...]
    source: IntArray
    start: IntArray
    stop: IntArray
    valid: Marks = None

    @classmethod
    def joined(cls, parts: Sequence[Blobs | FileBlobs]) -> FileBlobs:
        """Return the cells of several, one after the other."""
        sources: dict[int, LocalFile | Bytes] = {}
        own = [part.buffers if isinstance(part, Blobs) else part.sources for part in parts]
        for one in chain.from_iterable(own):
            sources.setdefault(id(one), one)
        numbers = {identity: number for number, identity in enumerate(sources)}
        marks = [np.ones(len(part), dtype=np.bool_) if part.valid is None else part.valid for part in parts]
        return cls(
            sources=tuple(sources.values()),
            source=np.concatenate(
                [
                    np.array([numbers[id(one)] for one in mine], np.int64)[part.source]
                    for mine, part in zip(own, parts, strict=True)
                ]
            ),
            start=np.concatenate([part.start for part in parts]),
            stop=np.concatenate([part.stop for part in parts]),
            valid=None if all(part.valid is None for part in parts) else np.concatenate(marks),
        )

    def take(self, rows: IntArray | slice) -> FileBlobs:
        """Return some of the cells, in another order."""
        valid = None if self.valid is None else self.valid[rows]
        return replace(self, source=self.source[rows], start=self.start[rows], stop=self.stop[rows], valid=valid)

    def compact(self) -> FileBlobs:
        """Return the same cells, those in memory in one buffer that holds no other bytes."""
        is_file = np.array([isinstance(one, LocalFile) for one in self.sources], dtype=np.bool_)
        if is_file.all():
            return self
        rows = np.flatnonzero(~is_file[self.source])
        in_memory = self._in_memory(rows).compact()
        files = tuple(one for one in self.sources if isinstance(one, LocalFile))
        source, start, stop = (np.cumsum(is_file) - 1)[self.source], self.start.copy(), self.stop.copy()
        source[rows], start[rows], stop[rows] = len(files), in_memory.start, in_memory.stop
        return replace(self, sources=(*files, *in_memory.buffers), source=source, start=start, stop=stop)

    def _in_memory(self, rows: IntArray) -> Blobs:
        """Return cells that are all in memory."""
        buffers = tuple(one for one in self.sources if not isinstance(one, LocalFile))
        numbers = np.cumsum([not isinstance(one, LocalFile) for one in self.sources]) - 1
        valid = None if self.valid is None else self.valid[rows]
        return Blobs(
            buffers=buffers, source=numbers[self.source[rows]], start=self.start[rows], stop=self.stop[rows], valid=valid
        )

    def __len__(self) -> int:
        """Return the number of cells."""
        return len(self.start)

    @property
    def nbytes(self) -> int:
        """Bytes in memory: the places of cells, and the sources that are no files."""
        return 3 * self.start.nbytes + sum(len(one) for one in self.sources if not isinstance(one, LocalFile))

    @property
    def loaded_bytes(self) -> int:
        """Bytes in memory after `loaded`."""
        return self.nbytes + int((self.stop - self.start).sum())

    def loaded(self, buffer_pool: Allocator) -> Blobs:
        """Return the cells in memory. Neighbouring cells of a file are read with one request."""
        rows = self._in_files()
        source, start, stop = self.source[rows], self.start[rows], self.stop[rows]
        apart = np.ones(len(rows), dtype=np.bool_)
        apart[1:] = start[1:] - stop[:-1] > GAP
        if len(self.sources) > 1:
            apart[1:] |= source[1:] != source[:-1]
        heads = np.flatnonzero(apart)
        ends = np.maximum.reduceat(stop, heads) if len(heads) else stop
        sizes = ends - start[heads]
        places = sizes.cumsum() - sizes
        memory = buffer_pool.empty((max(1, int(sizes.sum())),), np.dtype(np.uint8))
        self._fill(memory, rows[heads], sizes, places)
        shift = (places - start[heads])[apart.cumsum() - 1]
        return self._moved(rows, shift, memory)

    def _in_files(self) -> IntArray:
        """Return the cells that are in files and not null, sorted by their places."""
        if self.valid is None and all(type(one) is LocalFile for one in self.sources):
            return self.start.argsort() if len(self.sources) == 1 else np.lexsort((self.start, self.source))
        in_file = np.array([isinstance(one, LocalFile) for one in self.sources], dtype=np.bool_)[self.source]
        if self.valid is not None:
            in_file &= self.valid
        rows = np.flatnonzero(in_file)
        return rows[np.lexsort((self.start[rows], self.source[rows]))]

    def _fill(self, memory: Bytes, rows: IntArray, sizes: IntArray, places: IntArray) -> None:
        """Read runs of cells to their places in memory; `rows` has the first cell of each run."""
        view: Any = memory.data
        runs = zip(rows.tolist(), self.source[rows].tolist(), self.start[rows].tolist(), strict=True)
        for (row, source, start), size, place in zip(runs, sizes.tolist(), places.tolist(), strict=True):
            file = self.sources[source]
            assert isinstance(file, LocalFile)  # noqa: S101 - only such cells were chosen
            try:
                count = file.fill(view[place : place + size], start)
            except OSError as error:
                raise CellProblem(row, f"its bytes cannot be read: {error}. Check the file.") from error
            if count < size:
                problem = f"the file ends after {file.size} bytes, before its cell does. It was cut while it was being read. "
                raise CellProblem(row, problem + "Restore the file, and open the table again.")

    def _moved(self, rows: IntArray, shift: IntArray, loaded: Bytes) -> Blobs:
        """Return the cells in memory; those of some rows were loaded."""
        start, stop = self.start.copy(), self.stop.copy()
        start[rows] += shift
        stop[rows] += shift
        if len(rows) == len(start):
            return Blobs(
                buffers=(loaded,), source=np.zeros(len(rows), dtype=np.int64), start=start, stop=stop, valid=self.valid
            )
        memory = [one for one in self.sources if not isinstance(one, LocalFile)]
        numbers = np.cumsum([not isinstance(one, LocalFile) for one in self.sources]) - 1
        source = numbers[self.source]
        source[rows] = len(memory)
        if self.valid is not None:
            nulls = ~self.valid
            source[nulls], start[nulls], stop[nulls] = len(memory), 0, 0
        return Blobs(buffers=(*memory, loaded), source=source, start=start, stop=stop, valid=self.valid)
