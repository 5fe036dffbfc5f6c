"""What crosses from one process to another: arrays as bytes in blocks of memory, and JSON that tells what they are.

Nothing is pickled. Columns of Python objects cross as `objects` says, and Arrow as its own stream. An array that is worth it
has a block of its own and is used where it lies; whatever is small shares one block and is copied out of it, so that to keep
the labels of a batch is not to keep its images.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock import dtypes
from penstock._engine.mapped import Bytes
from penstock._engine.stored import LocalFile, StoredBlobs
from penstock.blobs import Blobs

__all__ = [
    "Memory",
    "Parcel",
    "Told",
    "arrow_in",
    "blobs_in",
    "cannot_cross",
    "numbers_in",
    "pack_arrow",
    "pack_blobs",
    "pack_numbers",
]

Told: TypeAlias = Any
"""What a value is and where it lies, as JSON has it."""

Memory: TypeAlias = Sequence[Bytes]
"""The blocks of a parcel: first the one that is shared, then those of single arrays."""

ALIGNED = 64
"""Bytes that buffers begin at a multiple of, as Arrow and vector instructions like it."""

SMALL = 1 << 18
"""Bytes up to which an array shares a block with others."""

LARGE = 4 << 20
"""Bytes from which on NumPy copies an array: others may run meanwhile. To wait for the interpreter's lock again takes as long
as to copy less than that, and is not worth it."""

GAP = 64
"""Bytes between two cells that cross with them, rather than each on its own."""

PLAIN = "biufcmMSUV"
"""Kinds of numbers whose memory means the same in another process."""

OF_ANOTHER_LIBRARY = 2
"""What `numpy.dtype.isbuiltin` is for dtypes that were added to NumPy."""


class Parcel:
    """Buffers that will lie in blocks.

    Attributes:
        blocks: The buffers of each block with their places in it, and its size; what is small shares the first.
    """

    def __init__(self) -> None:
        """Begin without any."""
        self.blocks: list[tuple[list[tuple[int, Any]], int]] = [([], 0)]

    @property
    def size(self) -> int:
        """Bytes of the shared block."""
        return self.blocks[0][1]

    def add(self, buffer: Any, nbytes: int) -> int:
        """Add a buffer to the shared block, and return its place there."""
        at = -(-self.size // ALIGNED) * ALIGNED
        self._put(at, buffer, nbytes)
        return at

    def follow(self, buffer: Any, nbytes: int) -> None:
        """Add a buffer right after the last one."""
        self._put(self.size, buffer, nbytes)

    def apart(self, buffer: Any, nbytes: int) -> int:
        """Add a buffer with a block of its own, and return the number of the block."""
        self.blocks.append(([(0, buffer)], nbytes))
        return len(self.blocks) - 1

    def _put(self, at: int, buffer: Any, nbytes: int) -> None:
        buffers = self.blocks[0][0]
        if nbytes:
            buffers.append((at, buffer))
        self.blocks[0] = (buffers, at + nbytes)


def cannot_cross(dtype: np.dtype[Any]) -> bool:
    """Return whether the memory of such an array means nothing in another process."""
    return dtype.hasobject or (dtype.kind not in PLAIN and dtype.isbuiltin != OF_ANOTHER_LIBRARY)


def pack_numbers(values: npt.NDArray[Any], parcel: Parcel) -> Told:
    """Add an array of numbers, times or text of fixed length."""
    size = values.nbytes
    by_numpy = size >= LARGE or not values.flags.c_contiguous
    buffer: Any = values if by_numpy else values.reshape(-1).view(np.uint8).data if size else b""
    place = [parcel.apart(buffer, size), 0] if size > SMALL else [0, parcel.add(buffer, size)]
    return [_told_dtype(values.dtype), list(values.shape), *place]


def numbers_in(told: Told, memory: Memory) -> npt.NDArray[Any]:
    """Return an array that was packed; one that has a block of its own where it lies."""
    dtype, shape, block, at = told
    found = _dtype(dtype)
    size = prod(shape) * found.itemsize
    if not size:
        return np.zeros(shape, found)
    whole: npt.NDArray[Any] = memory[block][at : at + size].view(found).reshape(shape)
    return whole if block else whole.copy()


def _told_dtype(dtype: np.dtype[Any]) -> Told:
    if dtype.isbuiltin == OF_ANOTHER_LIBRARY:
        return [dtype.type.__module__, dtype.type.__name__]
    return dtype.str if dtype.names is None and dtype.subdtype is None else repr(np.lib.format.dtype_to_descr(dtype))


def _dtype(told: Told) -> np.dtype[Any]:
    if isinstance(told, list):
        found: np.dtype[Any] = np.dtype(vars(import_module(told[0]))[told[1]])
    else:
        found = np.lib.format.descr_to_dtype(ast.literal_eval(told)) if told[0] in "[(" else np.dtype(told)
    return found


def pack_arrow(columns: Mapping[str, pa.Array], parcel: Parcel) -> Told:
    """Add columns of Arrow, all of one length."""
    if not columns:
        return None
    arrays = [_without_spare(array) for array in columns.values()]
    batch = pa.RecordBatch.from_arrays(arrays, names=list(columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    buffer = sink.getvalue()
    return [parcel.add(memoryview(buffer).cast("B"), buffer.size), buffer.size]


def _without_spare(array: pa.Array) -> pa.Array:
    """Return an array without a dictionary of more values than it has rows."""
    spare = pa.types.is_dictionary(array.type) and len(array.dictionary) > len(array)
    return dtypes.plain(array) if spare else array


def arrow_in(told: Told, memory: Memory) -> dict[str, pa.Array]:
    """Return columns of Arrow that were packed, where they lie."""
    if told is None:
        return {}
    at, size = told
    batch = pa.ipc.open_stream(pa.py_buffer(memory[0][at : at + size])).read_next_batch()
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def pack_blobs(cells: Blobs | StoredBlobs, parcel: Parcel, number: Callable[[LocalFile], int]) -> Told:
    """Add cells of bytes. Those that are still in files stay there, and are read by whoever needs them.

    Args:
        cells: The cells.
        parcel: What they are added to.
        number: What says by which number the other process knows a file.
    """
    sources = cells.buffers if isinstance(cells, Blobs) else cells.sources
    in_file = np.array([isinstance(one, LocalFile) for one in sources], dtype=np.bool_)
    numbers = [number(one) if isinstance(one, LocalFile) else 0 for one in sources]
    here = ~in_file[cells.source]
    if cells.valid is not None:
        here &= cells.valid
    start, stop = cells.start.copy(), cells.stop.copy()
    source = np.array(numbers, dtype=np.int64)[cells.source] if numbers else cells.source.copy()
    at = parcel.add(b"", 0)
    rows = np.flatnonzero(here)
    if len(rows):
        moved = _pack_runs(cells, sources, rows, parcel) - start[rows]
        start[rows] += moved
        stop[rows] += moved
    source[~in_file[cells.source]] = -1
    if cells.valid is not None:
        start[~cells.valid], stop[~cells.valid], source[~cells.valid] = 0, 0, -1
    size = parcel.size - at
    told = [pack_numbers(values, parcel) for values in (source, start, stop)]
    marks = None if cells.valid is None else pack_numbers(cells.valid, parcel)
    return [at, size, *told, marks]


def _pack_runs(cells: Blobs | StoredBlobs, sources: Any, rows: npt.NDArray[np.int64], parcel: Parcel) -> Any:
    """Add the bytes of cells, those together that lie side by side, and return where each begins after the first."""
    source, start, stop = cells.source[rows], cells.start[rows], cells.stop[rows]
    gaps = start[1:] - stop[:-1]
    apart = np.concatenate([[True], (source[1:] != source[:-1]) | (gaps < 0) | (gaps > GAP)])
    heads = np.flatnonzero(apart)
    tails = np.concatenate([heads[1:] - 1, [len(rows) - 1]])
    first, sizes = start[heads], stop[tails] - start[heads]
    views = {number: memoryview(sources[number]) for number in np.unique(source).tolist()}
    for number, begin, size in zip(source[heads].tolist(), first.tolist(), sizes.tolist(), strict=True):
        if size:
            parcel.follow(views[number][begin : begin + size], size)
    return start + (np.cumsum(sizes) - sizes - first)[np.cumsum(apart) - 1]


def blobs_in(told: Told, memory: Memory, files: Mapping[int, LocalFile]) -> Blobs | StoredBlobs:
    """Return cells of bytes that were packed; `files` are those that the sender has numbered."""
    at, size, *numbers, marks = told
    source, start, stop = (numbers_in(one, memory) for one in numbers)
    valid = None if marks is None else numbers_in(marks, memory)
    whole = memory[0][at : at + size]
    used = np.unique(source)
    if len(used) == 0 or used[-1] < 0:
        return Blobs(buffers=(whole,), source=np.zeros(len(source), np.int64), start=start, stop=stop, valid=valid)
    order = [int(number) for number in used if number >= 0]
    place = np.searchsorted(order, source)
    place[source < 0] = len(order)
    return StoredBlobs(sources=(*(files[number] for number in order), whole), source=place, start=start, stop=stop, valid=valid)
