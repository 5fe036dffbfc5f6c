"""Arrays of times without a unit in the schema, as in Petastorm: each cell has its own unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from penstock._blobs import MAX_CELL_BYTES, Blobs
from penstock.codecs import Npy, Npz
from penstock.codecs._npy_header import owned, read_header, stored_array
from penstock.codecs.npz import _member
from penstock.errors import ArgumentError
from penstock.schema import CellCodec, CellProblem, Field

__all__ = ["Times"]


@dataclass(frozen=True)
class Times(CellCodec):
    """Arrays of timestamps or durations, stored by `numpy.save` and decoded in their stored units.

    Args:
        packed: Whether they are stored by `numpy.savez_compressed`.

    Example:
        >>> import numpy as np
        >>> field = Field("at", object, (None,), Times())
        >>> stored = Npy().encode(Field("at", "datetime64[s]", (None,)), np.array([0, 1], "datetime64[s]"))
        >>> Times().decode(field, memoryview(stored)).dtype
        dtype('<M8[s]')
    """

    name = "petastorm-times"
    packed: bool = False

    def check(self, field: Field) -> None:
        """Check that the dtype of a field has no unit.

        Raises:
            ArgumentError: If it has one.
        """
        if field.dtype.kind != "O":
            msg = f"Field {field.name!r} is {field.dtype}, and Times stores times of any unit. Use penstock.codecs.Npy()."
            raise ArgumentError(msg)

    def encode(self, field: Field, cell: Any) -> bytes:
        """Return the stored form of an array."""
        exact = Field(field.name, cell.dtype, field.shape)
        return Npz().encode(exact, cell) if self.packed else Npy().encode(exact, cell)

    def decode(self, field: Field, cell: memoryview) -> npt.NDArray[Any]:
        """Return an array of times.

        Raises:
            CellProblem: If the cell is not an array of times that fits the field.
        """
        return self._array(field, 0, cell, MAX_CELL_BYTES)

    def decode_each(self, field: Field, cells: Blobs) -> list[Any]:
        """Return decoded cells, None for nulls."""
        arrays: list[Any] = [None] * len(cells)
        for row, cell in cells.present():
            arrays[row] = self._array(field, row, cell, cells.max_cell_bytes)
        return arrays

    def _array(self, field: Field, row: int, cell: memoryview, max_cell_bytes: int) -> npt.NDArray[Any]:
        try:
            inner = memoryview(_member(bytes(cell), max_cell_bytes)) if self.packed else cell
            dtype = read_header(inner).dtype
        except ValueError as error:
            raise CellProblem(row, str(error)) from error
        if dtype.kind not in "mM":
            problem = f"it holds {dtype}, and times were expected. Check what wrote it."
            raise CellProblem(row, problem)
        return owned(stored_array(Field(field.name, dtype, field.shape), row, inner, max_cell_bytes))
