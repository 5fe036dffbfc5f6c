"""What both kinds of jobs do with a row group: it is read, its rows are put in order, and its cells are decoded."""

from __future__ import annotations

from math import prod
from typing import Any

from penstock._blobs import Blobs
from penstock._engine.decode.arrow import CellError
from penstock._engine.parquet.file_blobs import FileBlobs
from penstock._engine.read.reader import Unit
from penstock._engine.row_groups.order import RowGroupTasks, Step
from penstock._engine.row_groups.reader import LoadedRowGroup, RowGroupReader, Values
from penstock.codecs import Npy
from penstock.petastorm._impl.pickling import packed, unpacked
from penstock.petastorm._impl.values import cells_of
from penstock.petastorm.utils import DecodeFieldError
from penstock.randomness import permutation

__all__ = ["WHOLE", "LotJob", "array_bytes", "field_cells", "field_values"]

SWELLS = 8
"""How many times as large an image is in memory as it is stored, about, where its size differs from row to row."""

WHOLE = "\0rows"
"""The name under which rows cross that are no dicts."""


class LotJob:
    """What both kinds of jobs have in common: lots, what reads them, and in which order their rows come."""

    def __init__(self, lots: RowGroupTasks, reader: RowGroupReader, seed: int | None) -> None:
        """Store them; rows are as they are stored where there is no seed."""
        self._lots, self._reader, self._seed = lots, reader, seed

    def __getstate__(self) -> dict[str, Any]:
        """Return itself packed, with the functions of the user."""
        return {"packed": packed(self.__dict__)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Unpack itself."""
        self.__dict__.update(unpacked(state["packed"]))

    def load(self, step: Step) -> LoadedRowGroup:
        """Return the rows of a lot."""
        loaded = self._reader.load(Unit.of(self._lots.units, step.lot))
        if self._seed is None or loaded.count < 2:  # noqa: PLR2004 - what has an order
            return loaded
        place = (self._seed, step.epoch, int(self._lots.ordinal[step.lot]), int(self._lots.units.start[step.lot]))
        return loaded.taken(permutation(loaded.count, "rows of a lot", *place))


def field_cells(reader: RowGroupReader, loaded: LoadedRowGroup, field: Any, rows: slice) -> list[Any]:
    """Return the values of a field, as rows hold them.

    Raises:
        DecodeFieldError: If one cannot be decoded.
    """
    return cells_of(field_values(reader, loaded, field.name, rows), field)


def field_values(reader: RowGroupReader, loaded: LoadedRowGroup, name: str, rows: slice) -> Values:
    try:
        return reader.values(loaded, name, rows)
    except CellError as error:
        raise DecodeFieldError(f'Decoding field "{name}" failed: {error.problem}') from error


def array_bytes(reader: RowGroupReader, read: LoadedRowGroup) -> int:
    """Return what the arrays of a row take: by their shapes, or by what is stored where sizes differ."""
    found = 0
    for column in reader.columns.values():
        field, cells = column.field, read.columns.get(column.name)
        if field is None or column.codec is None:
            continue
        if None not in field.shape:
            found += field.dtype.itemsize * prod(side or 0 for side in field.shape)
        elif isinstance(cells, Blobs | FileBlobs):
            stored = int((cells.stop - cells.start).sum()) // max(1, read.count)
            found += stored if isinstance(column.codec, Npy) else SWELLS * stored
    return found
