"""What crosses from one process to another: arrays as bytes in blocks of memory, and JSON that tells what they are.

Nothing is pickled. Columns of Python objects cross as `objects` says, and Arrow as its own stream. An array that is worth it
has a block of its own and is used where it lies; whatever is small shares one block and is copied out of it, so that to keep
the labels of a batch is not to keep its images.
"""

from __future__ import annotations

import ast
import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from importlib import import_module
from itertools import pairwise
from math import prod
from typing import Any, TypeAlias
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock import dtypes
from penstock._blobs import Blobs
from penstock._engine.parquet.file_blobs import FileBlobs, LocalFile
from penstock._engine.processes.shared_memory import Bytes

__all__ = [
    "Memory",
    "Parcel",
    "StaysHereError",
    "Told",
    "arrow_in",
    "blobs_in",
    "cannot_cross",
    "column_in",
    "numbers_in",
    "objects_in",
    "pack_arrow",
    "pack_blobs",
    "pack_column",
    "pack_numbers",
    "pack_objects",
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


def pack_blobs(cells: Blobs | FileBlobs, parcel: Parcel, number: Callable[[LocalFile], int]) -> Told:
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


def _pack_runs(cells: Blobs | FileBlobs, sources: Any, rows: npt.NDArray[np.int64], parcel: Parcel) -> Any:
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


def blobs_in(told: Told, memory: Memory, files: Mapping[int, LocalFile]) -> Blobs | FileBlobs:
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
    return FileBlobs(sources=(*(files[number] for number in order), whole), source=place, start=start, stop=stop, valid=valid)


TEXT = ("utf-8", "surrogatepass")


class StaysHereError(Exception):
    """A value that cannot cross; its only argument is what it is."""


def pack_column(values: npt.NDArray[Any], parcel: Parcel) -> Told:
    """Add a column of any kind.

    Raises:
        StaysHereError: If it holds something that cannot cross.
    """
    if values.dtype.kind == "O":
        return ["objects", list(values.shape), pack_objects(values.reshape(-1).tolist(), parcel)]
    if cannot_cross(values.dtype):
        raise StaysHereError(f"an array of {values.dtype}")
    return ["numbers", pack_numbers(values, parcel)]


def column_in(told: Told, memory: Memory) -> npt.NDArray[Any]:
    """Return a column that was packed."""
    if told[0] == "numbers":
        return numbers_in(told[1], memory)
    found = np.empty(prod(told[1]), dtype=object)
    for at, cell in enumerate(objects_in(told[2], memory)):
        found[at] = cell
    return found.reshape(told[1])


def pack_objects(cells: Sequence[Any], parcel: Parcel) -> Told:
    """Add objects, which are of one kind mostly.

    Raises:
        StaysHereError: If one of them cannot cross.
    """
    kinds = set(map(type, cells))
    there = kinds - {type(None)}
    kind = there.pop() if len(there) == 1 else None
    if kind is str:
        return ["text", *_pack_bytes([None if cell is None else cell.encode(*TEXT) for cell in cells], parcel)]
    if kind is bytes:
        return ["bytes", *_pack_bytes(cells, parcel)]
    if kind is np.ndarray and (packed := _pack_arrays(cells, parcel)) is not None:
        return packed
    if kind is not None and issubclass(kind, np.generic) and type(None) not in kinds:
        dtypes = {cell.dtype for cell in cells}
        if len(dtypes) == 1 and not cannot_cross(cells[0].dtype):
            return ["scalars", pack_numbers(np.array(cells, dtypes.pop()), parcel)]
    text = json.dumps([_told(cell, parcel) for cell in cells]).encode()
    return ["mixed", parcel.add(text, len(text)), len(text)]


def objects_in(told: Told, memory: Memory) -> list[Any]:
    """Return objects that were packed."""
    return _READERS[told[0]](told, memory)


def _pack_bytes(cells: Sequence[bytes | None], parcel: Parcel) -> list[Told]:
    """Add cells one after the other, and where each begins; nulls are marked."""
    full = [b"" if cell is None else cell for cell in cells]
    ends = np.zeros(len(cells) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, full), np.int64, len(full)), out=ends[1:])
    whole = b"".join(full)
    return [parcel.add(whole, len(whole)), pack_numbers(ends, parcel), _pack_missing(cells, parcel)]


def _pack_missing(cells: Sequence[Any], parcel: Parcel) -> Told:
    missing = np.fromiter((cell is None for cell in cells), np.bool_, len(cells))
    return pack_numbers(missing, parcel) if missing.any() else None


def _bytes_in(told: Told, memory: Memory) -> list[Any]:
    _, at, ends, missing = told
    edges = (at + numbers_in(ends, memory)).tolist()
    view = memory[0].data
    return _marked([bytes(view[start:stop]) for start, stop in pairwise(edges)], missing, memory)


def _text_in(told: Told, memory: Memory) -> list[Any]:
    _, at, ends, missing = told
    edges = (at + numbers_in(ends, memory)).tolist()
    view = memory[0].data
    return _marked([str(view[start:stop], *TEXT) for start, stop in pairwise(edges)], missing, memory)


def _marked(cells: list[Any], missing: Told, memory: Memory) -> list[Any]:
    if missing is not None:
        for row in np.flatnonzero(numbers_in(missing, memory)).tolist():
            cells[row] = None
    return cells


def _pack_arrays(cells: Sequence[Any], parcel: Parcel) -> Told | None:
    """Add arrays of one dtype and number of dimensions, one after the other; None where they are not alike."""
    arrays = [cell for cell in cells if cell is not None]
    alike = {(cell.dtype, cell.ndim) for cell in arrays}
    if len(alike) > 1 or cannot_cross(arrays[0].dtype):
        return None
    dtype, dimensions = alike.pop()
    shapes = np.array([(0,) * dimensions if cell is None else cell.shape for cell in cells], np.int64)
    flat = np.concatenate([cell.reshape(-1) for cell in arrays])
    shapes = shapes.reshape(len(cells), dimensions)
    missing = _pack_missing(cells, parcel)
    return ["arrays", pack_numbers(flat.astype(dtype, copy=False), parcel), pack_numbers(shapes, parcel), missing]


def _arrays_in(told: Told, memory: Memory) -> list[Any]:
    _, values, shapes, missing = told
    flat, sizes = numbers_in(values, memory), numbers_in(shapes, memory)
    gone = None if missing is None else numbers_in(missing, memory)
    count = sizes.prod(axis=1) if gone is None else np.where(gone, 0, sizes.prod(axis=1))
    ends = np.cumsum(count)
    found: list[Any] = [flat[start:stop] for start, stop in zip((ends - count).tolist(), ends.tolist(), strict=True)]
    if sizes.shape[1] != 1:
        found = [cell.reshape(shape) if len(cell) or 0 in shape else cell for cell, shape in zip(found, sizes, strict=True)]
    return _marked(found, missing, memory)


def _scalars_in(told: Told, memory: Memory) -> list[Any]:
    return list(numbers_in(told[1], memory))


def _mixed_in(told: Told, memory: Memory) -> list[Any]:
    _, at, size = told
    return [_value(cell, memory) for cell in json.loads(memory[0][at : at + size].tobytes())]


def _told(value: Any, parcel: Parcel) -> Told:  # noqa: PLR0911 - one for each kind
    """Return a value as JSON: what JSON has as itself, all else as its kind and what is needed to make it again."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind in _SIMPLE:
        return [kind.__name__, _SIMPLE[kind][0](value)]
    if kind in (list, tuple):
        return [kind.__name__, [_told(one, parcel) for one in value]]
    if kind is dict:
        return ["dict", [[_told(name, parcel), _told(one, parcel)] for name, one in value.items()]]
    if kind is np.ndarray:
        return ["array", pack_column(value, parcel)]
    if isinstance(value, np.generic) and not cannot_cross(value.dtype):
        return ["scalar", pack_numbers(np.asarray(value), parcel)]
    if kind in (dt.datetime, dt.time) and (value.tzinfo is None or type(value.tzinfo) is dt.timezone):
        return [kind.__name__, value.isoformat()]
    raise StaysHereError(f"a {kind.__module__}.{kind.__qualname__}".replace("a builtins.", "a "))


def _value(told: Told, memory: Memory) -> Any:  # noqa: PLR0911 - one for each kind
    """Return what was told."""
    if not isinstance(told, list):
        return told
    kind, given = told
    match kind:
        case "list":
            return [_value(one, memory) for one in given]
        case "tuple":
            return tuple(_value(one, memory) for one in given)
        case "dict":
            return {_value(name, memory): _value(one, memory) for name, one in given}
        case "array":
            return column_in(given, memory)
        case "scalar":
            return numbers_in(given, memory)[()]
        case "datetime":
            return dt.datetime.fromisoformat(given)
        case "time":
            return dt.time.fromisoformat(given)
    return _MAKERS[kind](given)


_SIMPLE: dict[type, tuple[Callable[[Any], Told], Callable[[Any], Any]]] = {
    bytes: (bytes.hex, bytes.fromhex),
    complex: (lambda value: [value.real, value.imag], lambda given: complex(*given)),
    Decimal: (str, Decimal),
    UUID: (str, UUID),
    dt.date: (dt.date.isoformat, dt.date.fromisoformat),
    dt.timedelta: (lambda value: [value.days, value.seconds, value.microseconds], lambda given: dt.timedelta(*given)),
}
"""Values that are told by one line: how each is told, and made again."""

_MAKERS = {kind.__name__: make for kind, (_, make) in _SIMPLE.items()}

_READERS: dict[str, Callable[[Told, Memory], list[Any]]] = {
    "arrays": _arrays_in,
    "bytes": _bytes_in,
    "mixed": _mixed_in,
    "scalars": _scalars_in,
    "text": _text_in,
}
