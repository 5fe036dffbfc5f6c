"""Arrays of times whose field tells no unit, as Petastorm's fields do not: each cell has its own."""

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
    """Arrays of moments or durations, each stored as the bytes of `numpy.save` and decoded in the unit that it has there.

    Args:
        packed: Whether they are compressed, as by `numpy.savez_compressed`.

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
        """Refuse a field that tells a unit.

        Raises:
            ArgumentError: If it does.
        """
        if field.dtype.kind != "O":
            msg = f"Field {field.name!r} is {field.dtype}, and Times stores times of any unit. Use penstock.codecs.Npy()."
            raise ArgumentError(msg)

    def encode(self, field: Field, cell: Any) -> bytes:
        """Return what `numpy.save` writes."""
        exact = Field(field.name, cell.dtype, field.shape)
        return Npz().encode(exact, cell) if self.packed else Npy().encode(exact, cell)

    def decode(self, field: Field, cell: memoryview) -> npt.NDArray[Any]:
        """Return an array of times.

        Raises:
            CellProblem: If there is none, or one that does not fit the field.
        """
        return self._array(field, 0, cell, MAX_CELL_BYTES)

    def decode_each(self, field: Field, cells: Blobs) -> list[Any]:
        """Return decoded cells one by one, None for nulls."""
        found: list[Any] = [None] * len(cells)
        for row, cell in cells.present():
            found[row] = self._array(field, row, cell, cells.max_cell_bytes)
        return found

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
