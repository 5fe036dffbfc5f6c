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

HEADERS = 8
"""So many different headers of a batch are copied all cells at a time; what is left then, a cell at a time."""

OF_ANOTHER_LIBRARY = 2
"""What `numpy.dtype.isbuiltin` is for dtypes that were added to NumPy."""


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
        """Refuse Python objects, and dtypes that NumPy does not have itself.

        Raises:
            ArgumentError: If it is one of them.
        """
        check_plain(field, "Npy")

    def encode(self, field: Field, cell: Any) -> bytes:
        """Return what `numpy.save` writes; in C order always, so that cells of one shape have one header."""
        array = np.asarray(cell, field.dtype, order="C")
        return header_bytes(array.dtype, array.shape) + array.tobytes()

    def decode(self, field: Field, cell: memoryview) -> npt.NDArray[Any]:
        """Return the array in a `.npy` file.

        Raises:
            CellProblem: If there is none, or one that does not fit the field.
        """
        return owned(stored_array(field, 0, cell, MAX_CELL_BYTES))

    def decode_into(self, field: Field, cells: Blobs, out: npt.NDArray[Any]) -> None:
        """Decode cells into an array, a row each; all that have the same header at once."""
        rows = present_rows(cells)
        for _ in range(HEADERS):
            if len(rows) == 0:
                return
            done = self._decode_alike(field, cells, rows, out)
            rows = rows[:0] if len(done) == len(rows) else np.setdiff1d(rows, done, assume_unique=True)
        self._decode_one_by_one(field, cells, rows, out)

    def _decode_alike(self, field: Field, cells: Blobs, rows: IntArray, out: npt.NDArray[Any]) -> IntArray:
        """Decode the first of some cells and all that have its length and its header, and return which these are."""
        first, into = int(rows[0]), byte_rows(out)
        header = checked_header(field, first, cells[first], cells.max_cell_bytes)
        alike: IntArray = rows[(cells.stop - cells.start)[rows] == header.stop]
        whole = header.stop <= SMALL and are_sparse(cells, alike)
        found = first_bytes(cells, alike, header.stop if whole else header.start)
        heads = found[:, : header.start]
        if heads.tobytes() != heads[0].tobytes() * len(heads):
            same = (heads == heads[0]).all(axis=1)
            alike, found = alike[same], found[same]
        if into is None or not header.is_plain or header.dtype != out.dtype:
            self._decode_one_by_one(field, cells, alike, out)
        elif whole:
            into[alike if len(alike) < len(into) else slice(None)] = found[:, header.start :]
        else:
            copy_bytes(cells, alike, header.start, into)
        return alike

    def decode_each(self, field: Field, cells: Blobs) -> list[Any]:
        """Return decoded cells one by one, None for nulls."""
        found: list[Any] = [None] * len(cells)
        begin, header = b"", None
        for row, cell in cells.present():
            # Most cells begin as the one before, which was checked.
            if header is not None and len(cell) == header.stop and cell[: header.start] == begin:
                # A copy that NumPy makes would wait for the interpreter's lock afterwards.
                found[row] = np.ndarray(header.shape, header.dtype, bytearray(cell[header.start :]))
                continue
            found[row] = owned(stored_array(field, row, cell, cells.max_cell_bytes))
            header = checked_header(field, row, cell, cells.max_cell_bytes)
            begin = bytes(cell[: header.start])
            header = header if header.is_plain else None
        return found

    def _decode_one_by_one(self, field: Field, cells: Blobs, rows: IntArray, out: npt.NDArray[Any]) -> None:
        for row in rows.tolist():
            out[row] = stored_array(field, row, cells[row], cells.max_cell_bytes)


def check_plain(field: Field, codec: str) -> None:
    """Refuse Python objects, and dtypes of other libraries, which a `.npy` header calls bytes.

    Raises:
        ArgumentError: If it is one of them.

    Example:
        >>> check_plain(Field("x", np.float32, (3,)), "Npy")
    """
    if not field.dtype.hasobject and field.dtype.isbuiltin != OF_ANOTHER_LIBRARY:
        return
    msg = (
        f"Field {field.name!r} is {field.dtype}, and {codec} stores numbers, times, and text and bytes in arrays. Use another "
        "dtype, or for single values penstock.codecs.Scalar()."
    )
    raise ArgumentError(msg)


CODECS = (Npy,)
