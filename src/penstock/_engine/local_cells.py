"""Which files of this machine are open for cells that stay in them, and where their cells lie, found out once."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from penstock._engine.chunks import Chunk, Places, locate_chunk
from penstock._engine.stored import LocalFile, StoredBlobs
from penstock.blobs import Blobs

__all__ = ["LARGE_CELL", "LocalCells", "together"]

LARGE_CELL = 16 << 10
"""Bytes from which on a cell stays in its file until it is needed: to ask for it costs less then than to copy it twice."""

MOST_FILES = 128
"""Files that are kept open for cells that are left in them; those of more are read at once, and closed."""

MOST_PLACES = 64 << 20
"""Bytes of places that are remembered from one epoch to the next, sixteen for each cell."""


class LocalCells:
    """Remembers places of cells, and shares open files among windows and threads."""

    def __init__(self) -> None:
        """Begin without any."""
        self._files: weakref.WeakValueDictionary[str, LocalFile] = weakref.WeakValueDictionary()
        self._places: OrderedDict[tuple[str, int], Places] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.Lock()

    def located(self, path: str, chunk: Chunk, check: Callable[[], None]) -> StoredBlobs | None:
        """Return the cells of a chunk, left where they are; None where that cannot be.

        `check` is called after a file was opened, and raises where it is another than was expected.
        """
        with self._lock:
            file = self._files.get(path)
            if file is None:
                if len(self._files) >= MOST_FILES:
                    return None
                file = LocalFile(path)
                check()
                self._files[path] = file
            places = self._places.get((path, chunk.start))
        if places is None:
            places = locate_chunk(file, chunk)
            if places is None:
                return None
            self._remember((path, chunk.start), places)
        else:
            file.expect(chunk.start, chunk.size)
        source = np.zeros(len(places.start), dtype=np.int64)
        return StoredBlobs(sources=(file,), source=source, start=places.start, stop=places.stop, valid=places.valid)

    def _remember(self, name: tuple[str, int], places: Places) -> None:
        with self._lock:
            self._places[name] = places
            self._nbytes += 2 * places.start.nbytes
            while self._nbytes > MOST_PLACES:
                self._nbytes -= 2 * self._places.popitem(last=False)[1].start.nbytes


def together(cells: Sequence[Blobs | StoredBlobs]) -> Blobs | StoredBlobs:
    """Return the cells of several, one after the other, wherever they lie."""
    if len(cells) == 1:
        return cells[0]
    memory = [one for one in cells if isinstance(one, Blobs)]
    return Blobs.joined(memory) if len(memory) == len(cells) else StoredBlobs.joined(cells)
