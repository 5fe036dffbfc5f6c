"""Cells of bytes that stay in their files until the batch that needs them is made.

A window of large blobs is then a list of places: it takes no memory, and nothing is copied to memory that nobody looks at
before it has gone cold. The operating system keeps what it has read; asked for early, it reads ahead by itself.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock._blobs import Blobs
from penstock.dtypes import Marks
from penstock.model import IntArray
from penstock.schema import CellProblem

__all__ = ["FileBlobs", "LocalFile"]

Bytes: TypeAlias = npt.NDArray[np.uint8]

GAP = 4096
"""Bytes between two cells that are read and thrown away rather than asked for apart: the headers of pages."""


class Lender(Protocol):
    """Whoever gives memory."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return an array with whatever is in its memory."""
        ...


class LocalFile:
    """A file of this machine, open for reading at any place by any thread; closed when nobody refers to it any more."""

    __slots__ = ("__weakref__", "_descriptor", "path")

    def __init__(self, path: str, descriptor: int | None = None) -> None:
        """Open it, or take over a descriptor that is open already.

        Raises:
            OSError: If it cannot be opened.
        """
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)) if descriptor is None else descriptor
        # And not by __del__: while that runs, Python lets other threads have the file by their weak references to it.
        weakref.finalize(self, os.close, self._descriptor).atexit = False

    def fileno(self) -> int:
        """Return the descriptor, which stays open as long as this lives."""
        return self._descriptor

    @property
    def size(self) -> int:
        """Bytes that it has now."""
        return os.fstat(self._descriptor).st_size

    def peek(self, start: int, size: int) -> bytes:
        """Return some bytes; fewer at the end of the file."""
        return os.pread(self._descriptor, size, start)

    def fill(self, room: memoryview, start: int) -> int:
        """Read bytes from a place on into memory, and return how many there were."""
        done = 0
        while done < len(room):
            got = os.preadv(self._descriptor, [room[done:]], start + done)
            if got == 0:
                break
            done += got
        return done

    def expect(self, start: int, size: int) -> None:
        """Tell the operating system that some bytes will be read soon."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._descriptor, start, size, os.POSIX_FADV_WILLNEED)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileBlobs:
    """Cells of bytes of which some or all are still in files.

    Attributes:
        sources: Files, and arrays of bytes in memory.
        source: Which of them each cell lies in.
        start: Where in it each cell begins.
        stop: Where each ends.
        valid: Which cells are no nulls; None where none is.
    """

    sources: tuple[LocalFile | Bytes, ...]
    source: IntArray
    start: IntArray
    stop: IntArray
    valid: Marks = None

    @classmethod
    def joined(cls, parts: Sequence[Blobs | FileBlobs]) -> FileBlobs:
        """Return the cells of several, one after the other."""
        sources: dict[int, int] = {}
        kept: list[LocalFile | Bytes] = []
        numbers = []
        for part in parts:
            own = part.buffers if isinstance(part, Blobs) else part.sources
            for one in own:
                if id(one) not in sources:
                    sources[id(one)] = len(kept)
                    kept.append(one)
            numbers.append(np.array([sources[id(one)] for one in own], dtype=np.int64)[part.source])
        marks = [np.ones(len(part), dtype=np.bool_) if part.valid is None else part.valid for part in parts]
        return cls(
            sources=tuple(kept),
            source=np.concatenate(numbers),
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
        """What it takes in memory: the places of cells, and whatever is no file."""
        return 3 * self.start.nbytes + sum(len(one) for one in self.sources if not isinstance(one, LocalFile))

    @property
    def loaded_bytes(self) -> int:
        """What it takes in memory when it is loaded."""
        return self.nbytes + int((self.stop - self.start).sum())

    def loaded(self, buffer_pool: Lender) -> Blobs:
        """Return the cells in memory, those of one file that lie side by side read at once.

        Raises:
            CellProblem: If a file ends before a cell does, or cannot be read.
        """
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
        room = buffer_pool.empty((max(1, int(sizes.sum())),), np.dtype(np.uint8))
        self._fill(room, rows[heads], sizes, places)
        shift = (places - start[heads])[apart.cumsum() - 1]
        return self._moved(rows, shift, room)

    def _in_files(self) -> IntArray:
        """Return the cells that are in files and no nulls, by the places where they lie."""
        if self.valid is None and all(type(one) is LocalFile for one in self.sources):
            return self.start.argsort() if len(self.sources) == 1 else np.lexsort((self.start, self.source))
        in_file = np.array([isinstance(one, LocalFile) for one in self.sources], dtype=np.bool_)[self.source]
        if self.valid is not None:
            in_file &= self.valid
        rows = np.flatnonzero(in_file)
        return rows[np.lexsort((self.start[rows], self.source[rows]))]

    def _fill(self, room: Bytes, rows: IntArray, sizes: IntArray, places: IntArray) -> None:
        """Read runs of cells, the first of each being one of `rows`, to their places in memory."""
        view: Any = room.data
        runs = zip(rows.tolist(), self.source[rows].tolist(), self.start[rows].tolist(), strict=True)
        for (row, source, start), size, place in zip(runs, sizes.tolist(), places.tolist(), strict=True):
            file = self.sources[source]
            assert isinstance(file, LocalFile)  # noqa: S101 - only such cells were chosen
            try:
                got = file.fill(view[place : place + size], start)
            except OSError as error:
                raise CellProblem(row, f"its bytes cannot be read: {error}. Check the file.") from error
            if got < size:
                problem = f"the file ends after {file.size} bytes, before its cell does. It was cut while it was being read. "
                raise CellProblem(row, problem + "Restore the file, and open the table again.")

    def _moved(self, rows: IntArray, shift: IntArray, room: Bytes) -> Blobs:
        """Return the cells, those of some rows in other memory than before."""
        start, stop = self.start.copy(), self.stop.copy()
        start[rows] += shift
        stop[rows] += shift
        if len(rows) == len(start):
            return Blobs(buffers=(room,), source=np.zeros(len(rows), dtype=np.int64), start=start, stop=stop, valid=self.valid)
        memory = [one for one in self.sources if not isinstance(one, LocalFile)]
        numbers = np.cumsum([not isinstance(one, LocalFile) for one in self.sources]) - 1
        source = numbers[self.source]
        source[rows] = len(memory)
        if self.valid is not None:
            nulls = ~self.valid
            source[nulls], start[nulls], stop[nulls] = len(memory), 0, 0
        return Blobs(buffers=(*memory, room), source=source, start=start, stop=stop, valid=self.valid)
