"""Values for another process of this program: one pickle, and a block of shared memory for each large buffer.

Both processes are ours, so to unpickle is safe here. Nothing that was read from a dataset or from a cache is unpickled.
Arrays are views of the block that holds them. Small arrays are part of the pickle and are copied out of it, so that the
labels of a batch do not keep the memory of its images.
"""

from __future__ import annotations

import copyreg
import pickle
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock import dtypes
from penstock._blobs import Blobs
from penstock._engine.parquet.file_blobs import FileBlobs, LocalFile
from penstock._engine.processes.shared_memory import SMALL, Bytes

FileNumber: TypeAlias = Callable[[LocalFile], int]
"""Returns the number by which the other process knows a file."""


def pack(value: Any, file_number: FileNumber | None = None) -> list[memoryview]:
    """Return a pickle of a value, and its large buffers.

    Cells of bytes are copied without the bytes between them. Cells that are in files stay there: the pickle holds the number
    of the file.

    Example:
        >>> blocks = pack({"x": np.zeros(1 << 20, np.uint8), "y": np.arange(3)})
        >>> len(blocks), len(blocks[1])
        (2, 1048576)
        >>> unpack([np.frombuffer(block, np.uint8) for block in blocks])["y"]
        array([0, 1, 2])
    """
    stream = BytesIO()
    buffers: list[memoryview] = []

    def is_small(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes > SMALL:
            buffers.append(raw)
        return raw.nbytes <= SMALL

    pickler = pickle.Pickler(stream, protocol=5, buffer_callback=is_small)
    pickler.dispatch_table = {**copyreg.dispatch_table, **_REDUCERS}
    if file_number is not None:
        pickler.dispatch_table[LocalFile] = lambda file: (int, (file_number(file),))
    pickler.dump(value)
    return [stream.getbuffer(), *buffers]


def unpack(blocks: Sequence[Bytes]) -> Any:
    """Return a value that was packed. Its large arrays keep their blocks alive."""
    return pickle.loads(blocks[0].data, buffers=blocks[1:])  # noqa: S301 - a process of ours has packed it


def _reduce_array(values: npt.NDArray[Any]) -> Any:
    """Return how to make an array again. NumPy's own way copies times and dtypes of other libraries into the pickle."""
    dtype = values.dtype
    if dtype.hasobject or not dtype.itemsize:
        return values.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    whole = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    return _array, (pickle.PickleBuffer(whole.data), dtype.char if dtype.isbuiltin == 1 else dtype, values.shape)


def _reduce_cells(cells: Blobs | FileBlobs) -> Any:
    return cells.compact().__reduce_ex__(pickle.HIGHEST_PROTOCOL)


def _array(data: Any, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return an array in the memory of a buffer, which may be written to whether or not the original may."""
    values: Any = np.frombuffer(data, np.uint8)
    if not values.flags.writeable:
        values = data.obj if isinstance(data, memoryview) else values.copy()
    array: npt.NDArray[Any] = values.view(dtype).reshape(shape)
    return array


def _reduce_arrow(array: pa.Array) -> Any:
    """Return how to make an array again: from an Arrow stream, since pyarrow pickles all of the array that a slice is of."""
    if pa.types.is_dictionary(array.type) and len(array.dictionary) > len(array):
        array = dtypes.plain(array)
    batch = pa.RecordBatch.from_arrays([array], names=[""])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return _arrow_array, (pickle.PickleBuffer(sink.getvalue()),)


def _arrow_array(data: Any) -> pa.Array:
    return pa.ipc.open_stream(pa.py_buffer(data)).read_next_batch().column(0)


def _array_classes(parent: type[pa.Array]) -> list[type[pa.Array]]:
    return [parent, *(each for child in parent.__subclasses__() for each in _array_classes(child))]


_REDUCERS: dict[type, Callable[[Any], Any]] = {np.ndarray: _reduce_array, Blobs: _reduce_cells, FileBlobs: _reduce_cells}
_REDUCERS |= dict.fromkeys(_array_classes(pa.Array), _reduce_arrow)
"""By exact class, since a function that pickle calls for every object takes longer."""
