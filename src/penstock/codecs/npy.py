"""Arrays of any shape as `.npy` files: the bytes of `numpy.save`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock._blobs import MAX_CELL_BYTES, Blobs
from penstock.codecs._gather import SMALL, are_sparse, byte_rows, copy_bytes, first_bytes, present_rows
from penstock.codecs._npy_header import checked_header, header_bytes, owned, stored_array
from penstock.errors import ArgumentError
from penstock.model import IntArray
from penstock.schema import CellCodec, Field

__all__ = ["CODECS", "Npy"]

MAX_HEADERS = 8
"""The number of headers whose cells are copied together; cells with other headers are copied one by one."""

OF_ANOTHER_LIBRARY = 2
"""The value of `numpy.dtype.isbuiltin` for dtypes that were added to NumPy."""


@dataclass(frozen=True)
class Npy(CellCodec):
    r"""Arrays of any shape, each stored as the bytes of `numpy.save`.

    Example:
        >>> field = Field("x", np.float32, (None, 2), Npy())
        >>> stored = Npy().encode(field, np.ones((1, 2), np.float32))
        >>> stored[:6], Npy().decode(field, memoryview(stored))
        (b'\x93NUMPY', array([[1., 1.]], dtype=float32))
    """

    name = "npy"
    copied = True

    def check(self, field: Field) -> None:
        """Check that this codec can store the field.

        Raises:
            ArgumentError: If it holds Python objects, or has a dtype of another library.
        """
        check_plain(field, "Npy")

    def encode(self, field: Field, cell: Any) -> bytes:
        """Return the bytes of `numpy.save`, always in C order, so that cells of one shape have the same header."""
        array = np.asarray(cell, field.dtype, order="C")
        return header_bytes(array.dtype, array.shape) + array.tobytes()

    def decode(self, field: Field, cell: memoryview) -> npt.NDArray[Any]:
        """Return the array in a `.npy` file.

        Raises:
            CellProblem: If it is not valid, or does not fit the field.
        """
        return owned(stored_array(field, 0, cell, MAX_CELL_BYTES))

    def decode_into(self, field: Field, cells: Blobs, out: npt.NDArray[Any]) -> None:
        """Decode cells into the rows of an array, all cells with the same header together."""
        rows = present_rows(cells)
        for _ in range(MAX_HEADERS):
            if len(rows) == 0:
                return
            done = self._decode_same_header(field, cells, rows, out)
            rows = rows[:0] if len(done) == len(rows) else np.setdiff1d(rows, done, assume_unique=True)
        self._decode_one_by_one(field, cells, rows, out)

    def _decode_same_header(self, field: Field, cells: Blobs, rows: IntArray, out: npt.NDArray[Any]) -> IntArray:
        """Decode the first cell and all cells with its length and header, and return their rows."""
        first, into = int(rows[0]), byte_rows(out)
        header = checked_header(field, first, cells[first], cells.max_cell_bytes)
        same: IntArray = rows[(cells.stop - cells.start)[rows] == header.stop]
        whole = header.stop <= SMALL and are_sparse(cells, same)
        data = first_bytes(cells, same, header.stop if whole else header.start)
        headers = data[:, : header.start]
        if headers.tobytes() != headers[0].tobytes() * len(headers):
            equal = (headers == headers[0]).all(axis=1)
            same, data = same[equal], data[equal]
        if into is None or not header.is_plain or header.dtype != out.dtype:
            self._decode_one_by_one(field, cells, same, out)
        elif whole:
            into[same if len(same) < len(into) else slice(None)] = data[:, header.start :]
        else:
            copy_bytes(cells, same, header.start, into)
        return same

    def decode_each(self, field: Field, cells: Blobs) -> list[Any]:
        """Return a list of decoded cells, with None for nulls."""
        decoded: list[Any] = [None] * len(cells)
        prefix, header = b"", None
        for row, cell in cells.present():
            # Most cells have the header of the cell before, which was checked.
            if header is not None and len(cell) == header.stop and cell[: header.start] == prefix:
                # A copy by NumPy would wait for the interpreter's lock afterwards.
                decoded[row] = np.ndarray(header.shape, header.dtype, bytearray(cell[header.start :]))
                continue
            decoded[row] = owned(stored_array(field, row, cell, cells.max_cell_bytes))
            header = checked_header(field, row, cell, cells.max_cell_bytes)
            prefix = bytes(cell[: header.start])
            header = header if header.is_plain else None
        return decoded

    def _decode_one_by_one(self, field: Field, cells: Blobs, rows: IntArray, out: npt.NDArray[Any]) -> None:
        for row in rows.tolist():
            out[row] = stored_array(field, row, cells[row], cells.max_cell_bytes)


def check_plain(field: Field, codec: str) -> None:
    """Check that a `.npy` header can describe the dtype of a field.

    Raises:
        ArgumentError: If it holds Python objects, or has a dtype of another library, which a `.npy` header calls bytes.

    Example:
        >>> check_plain(Field("x", np.float32, (3,)), "Npy")
    """
    if not field.dtype.hasobject and field.dtype.isbuiltin != OF_ANOTHER_LIBRARY:
        return
    msg = (
        f"Field {field.name!r} has dtype {field.dtype}, but {codec} stores arrays of numbers, times, text or bytes. Use "
        "another dtype, or penstock.codecs.Scalar() for single values."
    )
    raise ArgumentError(msg)


CODECS = (Npy,)
