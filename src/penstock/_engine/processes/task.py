"""What a process does with the rows of a batch: decodes what is still as stored, and runs the user's functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock._engine.batch.assemble import NO_PLACES, fill_up, mapped, mapped_row, stacked
from penstock._engine.decode.columns import DeferredCells, decode_deferred, in_order
from penstock._engine.parquet.file_blobs import LocalFile
from penstock._engine.processes.serialize import (
    Memory,
    Parcel,
    StaysHereError,
    Told,
    arrow_in,
    blobs_in,
    column_in,
    numbers_in,
    objects_in,
    pack_column,
    pack_objects,
)
from penstock._engine.query.query import Query
from penstock._engine.query.values import Batch, Column
from penstock._engine.runtime.memory import BufferPool
from penstock._engine.runtime.timers import DECODE, MAP, Meter
from penstock.errors import DataError, MapError, PenstockError

__all__ = ["BatchWorker", "Recipe", "columns_in", "pack_columns", "rows_in"]

IDLE_BYTES = 64 << 20
"""Memory of decoded batches that may wait to be used again."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recipe:
    """What becomes of the stored rows of every batch, as one value that another process can be sent.

    Attributes:
        query: The question; what decides which rows come in which order may be left out.
        columns: The table's columns, in the order asked for.
        deferred: Those that are decoded when their batch is made.
        max_cell_bytes: What one cell may take when it is decoded.
    """

    query: Query
    columns: tuple[str, ...]
    deferred: tuple[Column, ...]
    max_cell_bytes: int

    @property
    def told(self) -> str:
        """What it does, for messages."""
        if self.query.maps:
            return f"map {', '.join(step.name for step in self.query.maps)}"
        return f"decoding column {', '.join(repr(column.name) for column in self.deferred if column.codec is not None)}"


class BatchWorker:
    """Works by a recipe."""

    def __init__(self, recipe: Recipe) -> None:
        """Store the recipe."""
        self._recipe, self._buffer_pool, self._meter = recipe, BufferPool(IDLE_BYTES), Meter()

    def make(self, told: Mapping[str, Told], memory: Memory, files: Mapping[int, LocalFile]) -> tuple[Told, Parcel, Any]:
        """Return what was made of a batch: what tells of it, its bytes, and the error of a row where there was one.

        Raises:
            CellError: If a cell cannot be decoded.
            Exception: Whatever a map raises.
        """
        parcel, recipe = Parcel(), self._recipe
        found = columns_in(told["columns"], memory)
        deferred: dict[str, DeferredCells] = dict(arrow_in(told["arrow"], memory))
        deferred.update({name: blobs_in(one, memory, files) for name, one in told["cells"].items()})
        outputs: dict[str, Sequence[str]] = dict(told["outputs"] or {})
        with self._meter.busy(DECODE):
            for column in recipe.deferred:
                if column.name in deferred:
                    made = decode_deferred(
                        deferred.pop(column.name), column, self._buffer_pool, recipe.max_cell_bytes, self._meter
                    )
                    outputs[column.name] = tuple(made)
                    found.update(made)
        if told["do"] == "decode":
            return {"columns": pack_columns(found, parcel, recipe.query), "outputs": outputs}, parcel, None
        places = NO_PLACES if told["places"] is None else numbers_in(told["places"], memory)
        found, places = fill_up(found, places, told["rows"], told["size"])
        if told["outputs"] is not None:
            found = in_order(stacked(recipe.query, found), recipe.columns, outputs, recipe.query.stacks)
        with self._meter.busy(MAP):
            if recipe.query.size is None:
                return self._by_row(found, places, told, parcel)
            batch = mapped(recipe.query, found, places, told["epoch"], (told["size"], told["valid"]))
        return {"columns": pack_columns(batch, parcel, recipe.query)}, parcel, None

    @property
    def told(self) -> str:
        """What it does, for messages."""
        return self._recipe.told

    def took(self) -> list[list[int]]:
        """Return what has been counted since it was last asked, for `Meter.add` of the other process."""
        return self._meter.taken()

    def _by_row(self, found: Batch, places: Any, told: Mapping[str, Told], parcel: Parcel) -> tuple[Told, Parcel, Any]:
        """Return what maps make of single rows, up to the first that fails."""
        query, rows, failed = self._recipe.query, [], None
        for at in range(told["size"]):
            try:
                rows.append(mapped_row(query, found, places, told["epoch"], at))
            except Exception as error:  # noqa: BLE001 - it is raised when the rows before it have been handed out
                failed = error
                break
        return {"made": _pack_rows(rows, parcel, query)}, parcel, failed


def pack_columns(batch: Batch, parcel: Parcel, query: Query) -> Told:
    """Add columns.

    Raises:
        MapError: If a map has made something that cannot cross; a DataError if a codec has.
    """
    found = []
    for name, values in batch.items():
        try:
            found.append([_pack_name(name), pack_column(values, parcel)])
        except StaysHereError as error:
            raise _stays(f"Column {name!r}", error, query) from None
    return found


def columns_in(told: Told, memory: Memory) -> Batch:
    """Return columns that were packed."""
    return {name: column_in(one, memory) for name, one in told}


def _pack_name(name: Any) -> Told:
    """Return the name of a column, which may be a number too."""
    if type(name) not in (str, int):
        raise StaysHereError(f"a name of type {type(name).__name__}")
    return name


def _pack_rows(rows: list[dict[str, Any]], parcel: Parcel, query: Query) -> Told:
    """Add rows: column by column where all have the same, or else one by one."""
    names = tuple(rows[0]) if rows else ()
    if any(tuple(row) != names for row in rows):
        try:
            return [len(rows), None, pack_objects(rows, parcel)]
        except StaysHereError as error:
            raise _stays("A row", error, query) from None
    found = []
    for name in names:
        try:
            found.append([_pack_name(name), pack_objects([row[name] for row in rows], parcel)])
        except StaysHereError as error:
            raise _stays(f"Column {name!r}", error, query) from None
    return [len(rows), found, None]


def rows_in(told: Told, memory: Memory) -> list[dict[str, Any]]:
    """Return rows that were packed."""
    count, columns, whole = told
    if columns is None:
        return objects_in(whole, memory)
    found: list[dict[str, Any]] = [{} for _ in range(count)]
    for name, cells in columns:
        for row, cell in zip(found, objects_in(cells, memory), strict=True):
            row[name] = cell
    return found


def _stays(what: str, error: StaysHereError, query: Query) -> PenstockError:
    """Return the error of what cannot cross."""
    maker = f"map {query.maps[-1].name} returned" if query.maps else "its codec made"
    msg = (
        f"{what}: {maker} {error}, which cannot go from one process to another. Arrays, numbers, text, bytes, times, and "
        "lists, tuples and dicts of these can. Return one of them, or leave workers='processes' out."
    )
    return MapError(msg) if query.maps else DataError(msg)
