"""Cells of bytes as places in Arrow's memory, so that rows are taken without a copy of their bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock import dtypes
from penstock.dtypes import Marks
from penstock.errors import DataError

__all__ = ["MAX_CELL_BYTES", "Blobs"]

IntArray: TypeAlias = npt.NDArray[np.int64]

MAX_CELL_BYTES = 256 << 20
"""The default limit of one decoded cell, since a small cell can claim to be huge."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blobs:
    """Cells of bytes, or of text as bytes, in the memory of one or several Arrow arrays.

    Attributes:
        buffers: The bytes of each array.
        source: The index of the buffer of each cell.
        start: The first byte of each cell in its buffer.
        stop: The byte after its last.
        valid: Which cells are not null; None if none is null.
        max_cell_bytes: The limit of one decoded cell.

    Example:
        >>> cells = Blobs.of(pa.array([b"one", None, b"three"]))
        >>> bytes(cells[2]), len(cells), cells.valid
        (b'three', 3, array([ True, False,  True]))
    """

    buffers: tuple[npt.NDArray[np.uint8], ...]
    source: IntArray
    start: IntArray
    stop: IntArray
    valid: Marks = None
    max_cell_bytes: int = MAX_CELL_BYTES

    @classmethod
    def of(cls, array: pa.Array) -> Blobs:
        """Return the cells of an Arrow array of bytes or text.

        Raises:
            DataError: If it is an array of another type.
        """
        kind, rows = array.type, len(array)
        if dtypes.is_encoded(kind):
            return cls.of(dtypes.plain(array))
        if isinstance(kind, pa.BaseExtensionType):
            return cls.of(array.storage)
        if pa.types.is_fixed_size_binary(kind):
            edges = (array.offset + np.arange(rows + 1)) * kind.byte_width
        elif pa.types.is_binary(kind) or pa.types.is_string(kind):
            edges = _edges(array, np.int32)
        elif pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
            edges = _edges(array, np.int64)
        else:
            msg = f"the column is {kind}, and its codec stores bytes; expected bytes or text. Write the table anew."
            raise DataError(msg)
        data = array.buffers()[-1]
        whole = np.zeros(0, dtype=np.uint8) if data is None else np.frombuffer(data, dtype=np.uint8)
        source = np.zeros(rows, dtype=np.int64)
        return cls(buffers=(whole,), source=source, start=edges[:-1], stop=edges[1:], valid=dtypes.valid(array))

    @classmethod
    def joined(cls, parts: Sequence[Blobs]) -> Blobs:
        """Return the cells of several, one after the other."""
        if len(parts) == 1:
            return parts[0]
        first = np.cumsum([0, *(len(part.buffers) for part in parts)])
        marks = [np.ones(len(part), dtype=np.bool_) if part.valid is None else part.valid for part in parts]
        return cls(
            buffers=tuple(buffer for part in parts for buffer in part.buffers),
            source=np.concatenate([part.source + at for part, at in zip(parts, first, strict=False)]),
            start=np.concatenate([part.start for part in parts]),
            stop=np.concatenate([part.stop for part in parts]),
            valid=None if all(part.valid is None for part in parts) else np.concatenate(marks),
        )

    def take(self, rows: IntArray | slice) -> Blobs:
        """Return some of the cells, in another order."""
        valid = None if self.valid is None else self.valid[rows]
        return replace(self, source=self.source[rows], start=self.start[rows], stop=self.stop[rows], valid=valid)

    def compact(self) -> Blobs:
        """Return the same cells in one buffer that holds no other bytes."""
        sizes = self.stop - self.start
        if self.valid is not None:
            sizes[~self.valid] = 0
        whole = np.frombuffer(b"".join([cell for _, cell in self.present()]), dtype=np.uint8)
        stop = np.cumsum(sizes)
        return replace(self, buffers=(whole,), source=np.zeros(len(self), dtype=np.int64), start=stop - sizes, stop=stop)

    def __len__(self) -> int:
        """Return the number of cells."""
        return len(self.start)

    def __getitem__(self, row: int) -> memoryview:
        """Return the bytes of a cell; those of a null cell have no meaning."""
        view: memoryview = self.buffers[self.source[row]].data[self.start[row] : self.stop[row]]
        return view

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers, which may hold more than the cells."""
        return sum(len(buffer) for buffer in self.buffers)

    def present(self) -> Iterator[tuple[int, memoryview]]:
        """Yield the number and the bytes of each cell that is not null."""
        views = [buffer.data for buffer in self.buffers]
        places = zip(self.source.tolist(), self.start.tolist(), self.stop.tolist(), strict=True)
        valid: Any = self.valid
        for row, (source, start, stop) in enumerate(places):
            if valid is None or valid[row]:
                yield row, views[source][start:stop]


def _edges(array: pa.Array, dtype: type[np.signedinteger[Any]]) -> IntArray:
    """Return the offsets of an array of cells of different lengths."""
    buffer, rows = array.buffers()[1], len(array)
    if rows == 0 or buffer is None:
        return np.zeros(rows + 1, dtype=np.int64)
    return np.frombuffer(buffer, dtype, rows + 1, array.offset * np.dtype(dtype).itemsize).astype(np.int64)
