"""Arrays as raw bytes: dtype and shape are only in the schema."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._blobs import MAX_CELL_BYTES, Blobs
from penstock.codecs._gather import byte_rows, copy_bytes, present_rows, spaced_rows
from penstock.errors import ArgumentError
from penstock.schema import CellCodec, CellProblem, Field

__all__ = ["CODECS", "Raw"]


@dataclass(frozen=True)
class Raw(CellCodec):
    r"""Arrays stored as their bytes, little-endian and in C order; one dimension can differ from row to row.

    Attributes:
        fixed: Whether cells of one size have a fixed-size binary type, which Delta does not have.

    Example:
        >>> field = Field("x", np.int16, (None, 2), Raw())
        >>> Raw().encode(field, np.array([[1, 2]], np.int16))
        b'\x01\x00\x02\x00'
        >>> Raw().storage(Field("x", np.int16, (3, 2), Raw()))
        FixedSizeBinaryType(fixed_size_binary[12])
    """

    name = "raw"
    copied = True

    fixed: bool = True

    def __post_init__(self) -> None:
        """Check the options, which can be read from a file.

        Raises:
            ArgumentError: If `fixed` is not a bool.
        """
        if not isinstance(self.fixed, bool):
            raise ArgumentError(f"Raw() got fixed={self.fixed!r}; expected a bool, for example Raw(fixed=False).")

    def __repr__(self) -> str:
        """Return the codec as Python."""
        return "Raw()" if self.fixed else "Raw(fixed=False)"

    def options(self) -> Mapping[str, Any]:
        """Return the stored options; none with the default."""
        return {} if self.fixed else {"fixed": False}

    def check(self, field: Field) -> None:
        """Check that this codec can store the field.

        Raises:
            ArgumentError: If its values have no fixed size, or the number of bytes does not determine the shape.
        """
        if field.dtype.hasobject or field.dtype.itemsize == 0:
            msg = (
                f"Field {field.name!r} has dtype {field.dtype}, but Raw stores values of a fixed size. "
                "Use penstock.codecs.Npy(), or a dtype with a length, for example 'S8'."
            )
            raise ArgumentError(msg)
        if field.shape.count(None) > 1 or (None in field.shape and 0 in field.shape):
            msg = (
                f"Field {field.name!r} has shape {field.shape}, which the number of bytes does not determine. Raw stores "
                "shapes with at most one None, and no 0 together with it. Use penstock.codecs.Npy()."
            )
            raise ArgumentError(msg)

    def storage(self, field: Field) -> pa.DataType:
        """Return the type of stored cells: binary, of a fixed size if the shape is fixed."""
        size = _known_bytes(field)
        return pa.binary() if None in field.shape or size == 0 or not self.fixed else pa.binary(size)

    def encode(self, field: Field, cell: Any) -> bytes:
        """Return the bytes of an array."""
        return np.asarray(cell, field.dtype.newbyteorder("<"), order="C").tobytes()

    def decode(self, field: Field, cell: memoryview) -> npt.NDArray[Any]:
        """Return the array.

        Raises:
            CellProblem: If the number of bytes does not fit the field.
        """
        return _array_in(field, 0, cell, MAX_CELL_BYTES).astype(field.dtype)

    def decode_into(self, field: Field, cells: Blobs, out: npt.NDArray[Any]) -> None:
        """Decode cells into the rows of an array, all together."""
        rows, rest = present_rows(cells), byte_rows(out)
        wrong = rows[(cells.stop - cells.start)[rows] != _known_bytes(field)]
        # This raises for the first cell of a wrong size, and for the first cell if all are too large.
        for row in [*wrong[:1].tolist(), *rows[:1].tolist()]:
            _array_in(field, row, cells[row], cells.max_cell_bytes)
        if rest is not None and out.dtype == field.dtype.newbyteorder("<"):
            copy_bytes(cells, rows, 0, rest)
            return
        for row in rows.tolist():
            out[row] = _array_in(field, row, cells[row], cells.max_cell_bytes)

    def view(self, field: Field, cells: Blobs) -> npt.NDArray[Any] | None:
        """Return cells at equal distances as an array that shares their memory; None for other cells."""
        dtype, size = field.dtype.newbyteorder("<"), _known_bytes(field)
        if dtype != field.dtype or not 0 < size <= cells.max_cell_bytes or (cells.stop - cells.start != size).any():
            return None
        return spaced_rows(cells, dtype, tuple(side or 0 for side in field.shape))

    def decode_each(self, field: Field, cells: Blobs) -> list[Any]:
        """Return a list of decoded cells, with None for nulls."""
        decoded: list[Any] = [None] * len(cells)
        for row, cell in cells.present():
            decoded[row] = _array_in(field, row, cell, cells.max_cell_bytes).astype(field.dtype)
        return decoded


def _known_bytes(field: Field) -> int:
    """Return the bytes of a cell; with one open dimension, the bytes of one step of it."""
    return math.prod(size for size in field.shape if size is not None) * field.dtype.itemsize


def _array_in(field: Field, row: int, cell: memoryview, max_cell_bytes: int) -> npt.NDArray[Any]:
    """Return a view of the array in a cell."""
    size, is_open = _known_bytes(field), None in field.shape
    if len(cell) % size if is_open else len(cell) != size:
        expected = f"a multiple of {size} bytes" if is_open else f"{size} bytes"
        problem = f"it has {len(cell)} bytes; expected {expected} for {field.dtype} {field.shape}. "
        raise CellProblem(row, problem + "Check what wrote it, or the dtype and the shape in the schema.")
    if len(cell) > max_cell_bytes:
        problem = f"it has {len(cell)} bytes; the limit for a cell is {max_cell_bytes}. Check what wrote it, or raise it: "
        raise CellProblem(row, problem + f".using(max_cell_bytes={len(cell)}).")
    shape = [len(cell) // size if known is None else known for known in field.shape]
    return np.ndarray(shape, field.dtype.newbyteorder("<"), cell)


CODECS = (Raw,)
