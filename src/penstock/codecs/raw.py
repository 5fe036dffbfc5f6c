"""Arrays as their bare bytes: dtype and shape stand in the schema alone."""

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
    r"""Arrays stored as their bytes, little-endian and in C order; one dimension may differ from row to row.

    Attributes:
        fixed: Whether the type of the column tells the number of bytes, where all cells have the same. Delta has no such type.

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
        """Refuse what is neither true nor false; it may come from a file.

        Raises:
            ArgumentError: If it is something else.
        """
        if not isinstance(self.fixed, bool):
            raise ArgumentError(
                f"Raw got fixed={self.fixed!r}. True or False was expected. Leave it out, or give False for Delta."
            )

    def __repr__(self) -> str:
        """Return how it is made."""
        return "Raw()" if self.fixed else "Raw(fixed=False)"

    def options(self) -> Mapping[str, Any]:
        """Return what is stored with the name: nothing, mostly."""
        return {} if self.fixed else {"fixed": False}

    def check(self, field: Field) -> None:
        """Refuse dtypes that have no bytes of their own, and shapes that the number of bytes does not tell.

        Raises:
            ArgumentError: If it is one of them.
        """
        if field.dtype.hasobject or field.dtype.itemsize == 0:
            msg = (
                f"Field {field.name!r} is {field.dtype}, whose values have no one length, and Raw stores values of one length. "
                "Use penstock.codecs.Npy(), or a dtype with a length: 'S8'."
            )
            raise ArgumentError(msg)
        if field.shape.count(None) > 1 or (None in field.shape and 0 in field.shape):
            msg = (
                f"Field {field.name!r} has the shape {field.shape}, which the number of bytes does not tell. Raw stores shapes "
                "with one None at most, and no 0 beside it. Use penstock.codecs.Npy()."
            )
            raise ArgumentError(msg)

    def storage(self, field: Field) -> pa.DataType:
        """Return the type of bytes; of a fixed number where the shape tells it."""
        size = _known_bytes(field)
        return pa.binary() if None in field.shape or size == 0 or not self.fixed else pa.binary(size)

    def encode(self, field: Field, cell: Any) -> bytes:
        """Return the bytes of an array."""
        return np.asarray(cell, field.dtype.newbyteorder("<"), order="C").tobytes()

    def decode(self, field: Field, cell: memoryview) -> npt.NDArray[Any]:
        """Return the array that bytes are.

        Raises:
            CellProblem: If their number does not fit the field.
        """
        return _array_in(field, 0, cell, MAX_CELL_BYTES).astype(field.dtype)

    def decode_into(self, field: Field, cells: Blobs, out: npt.NDArray[Any]) -> None:
        """Decode cells into an array, a row each; all at once."""
        rows, rest = present_rows(cells), byte_rows(out)
        wrong = rows[(cells.stop - cells.start)[rows] != _known_bytes(field)]
        # The first cell that is wrong is refused, or one for all where they are too large.
        for row in [*wrong[:1].tolist(), *rows[:1].tolist()]:
            _array_in(field, row, cells[row], cells.max_cell_bytes)
        if rest is not None and out.dtype == field.dtype.newbyteorder("<"):
            copy_bytes(cells, rows, 0, rest)
            return
        for row in rows.tolist():
            out[row] = _array_in(field, row, cells[row], cells.max_cell_bytes)

    def view(self, field: Field, cells: Blobs) -> npt.NDArray[Any] | None:
        """Return cells that lie equally far apart as an array of their own memory; None for others."""
        dtype, size = field.dtype.newbyteorder("<"), _known_bytes(field)
        if dtype != field.dtype or not 0 < size <= cells.max_cell_bytes or (cells.stop - cells.start != size).any():
            return None
        return spaced_rows(cells, dtype, tuple(side or 0 for side in field.shape))

    def decode_each(self, field: Field, cells: Blobs) -> list[Any]:
        """Return decoded cells one by one, None for nulls."""
        found: list[Any] = [None] * len(cells)
        for row, cell in cells.present():
            found[row] = _array_in(field, row, cell, cells.max_cell_bytes).astype(field.dtype)
        return found


def _known_bytes(field: Field) -> int:
    """Return the bytes of a cell, or what they are a multiple of where one dimension differs."""
    return math.prod(size for size in field.shape if size is not None) * field.dtype.itemsize


def _array_in(field: Field, row: int, cell: memoryview, max_cell_bytes: int) -> npt.NDArray[Any]:
    """Return the array that bytes are, where they lie."""
    size, differs = _known_bytes(field), None in field.shape
    if len(cell) % size if differs else len(cell) != size:
        problem = (
            f"it has {len(cell)} bytes. {field.dtype} {field.shape} takes {f'a multiple of {size}' if differs else size}. "
        )
        raise CellProblem(row, problem + "Check what wrote it, or the dtype and the shape in the schema.")
    if len(cell) > max_cell_bytes:
        problem = f"it has {len(cell)} bytes. {max_cell_bytes} are allowed for a cell. Check what wrote it, or allow more: "
        raise CellProblem(row, problem + f".using(max_cell_bytes={len(cell)}).")
    shape = [len(cell) // size if known is None else known for known in field.shape]
    return np.ndarray(shape, field.dtype.newbyteorder("<"), cell)


CODECS = (Raw,)
