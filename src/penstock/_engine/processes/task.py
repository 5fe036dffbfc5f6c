"""What a worker process does with the rows of a batch: it decodes columns and runs the user's functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock._engine.batch.assemble import NO_PLACES, fill_up, mapped, mapped_row, stacked
from penstock._engine.decode.columns import DeferredCells, decode_deferred, in_order
from penstock._engine.parquet.file_blobs import FileBlobs, LocalFile
from penstock._engine.processes.serialize import FileNumber, pack
from penstock._engine.query.query import Batch, ColumnDecoding, Query
from penstock._engine.runtime.memory import BufferPool
from penstock._engine.runtime.timers import DECODE, MAP, Meter
from penstock.errors import DataError, MapError, PenstockError
from penstock.model import IntArray

IDLE_BYTES = 64 << 20
"""Memory of decoded batches that may wait to be reused."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recipe:
    """What a worker process needs to know for all batches; it is sent once.

    Attributes:
        query: The query. What decides the order of rows may be missing.
        columns: The table's columns, in the order of the query.
        deferred: Columns that are decoded when their batch is made.
        max_cell_bytes: The limit of one decoded cell.
    """

    query: Query
    columns: tuple[str, ...]
    deferred: tuple[ColumnDecoding, ...]
    max_cell_bytes: int

    def __str__(self) -> str:
        """Return what the process does, for messages."""
        if self.query.maps:
            return f"map {', '.join(step.name for step in self.query.maps)}"
        return f"decoding column {', '.join(repr(column.name) for column in self.deferred if column.codec is not None)}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkerInput:
    """The rows of one batch.

    Attributes:
        deferred: Columns as they are stored.
        places: The place of each row in the epoch's sequence.
        size: The number of rows after padding with the last row.
        valid: How many of these are no padding.
        run_maps: Whether maps are run. Otherwise deferred columns are decoded and nothing else.
        outputs: The columns that each stored column becomes; None if the columns are in the query's order already.
    """

    columns: Batch = field(default_factory=dict)
    deferred: Mapping[str, DeferredCells] = field(default_factory=dict)
    places: IntArray = field(default_factory=lambda: NO_PLACES)
    rows: int = 0
    size: int = 0
    valid: int = 0
    epoch: int = 0
    run_maps: bool = False
    outputs: Mapping[str, Sequence[str]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkerOutput:
    """What a worker returns for one batch.

    Attributes:
        outputs: The columns that each decoded column became.
        rows: Single rows instead of columns, where the query has no batches.
        error: The error of the row after the last of these. It is sent beside the pickle.
    """

    columns: Batch = field(default_factory=dict)
    outputs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    rows: list[dict[str, Any]] | None = None
    error: BaseException | None = None


class BatchWorker:
    """Decodes batches and runs maps, as a recipe says."""

    def __init__(self, recipe: Recipe) -> None:
        """Store the recipe."""
        self.recipe = recipe
        self._buffer_pool, self._meter = BufferPool(IDLE_BYTES), Meter()

    def run(self, batch: WorkerInput, files: Mapping[int, LocalFile]) -> WorkerOutput:
        """Return what becomes of a batch; `files` are those that the sender has numbered."""
        recipe, query = self.recipe, self.recipe.query
        columns, outputs = dict(batch.columns), dict(batch.outputs or {})
        with self._meter.busy(DECODE):
            for column in recipe.deferred:
                if column.name in batch.deferred:
                    cells = _with_files(batch.deferred[column.name], files)
                    arrays = decode_deferred(cells, column, self._buffer_pool, recipe.max_cell_bytes, self._meter)
                    outputs[column.name] = tuple(arrays)
                    columns.update(arrays)
        if not batch.run_maps:
            return WorkerOutput(columns=columns, outputs=outputs)
        columns, places = fill_up(columns, batch.places, batch.rows, batch.size)
        if batch.outputs is not None:
            columns = in_order(stacked(query, columns), recipe.columns, outputs, query.stacks)
        with self._meter.busy(MAP):
            if query.size is None:
                return self._map_rows(columns, places, batch)
            return WorkerOutput(columns=mapped(query, columns, places, batch.epoch, (batch.size, batch.valid)))

    def _map_rows(self, columns: Batch, places: IntArray, batch: WorkerInput) -> WorkerOutput:
        """Return single rows after the maps, up to the first row that fails."""
        rows: list[dict[str, Any]] = []
        for row in range(batch.size):
            try:
                rows.append(mapped_row(self.recipe.query, columns, places, batch.epoch, row))
            except Exception as error:  # noqa: BLE001 - it is raised after the rows before it
                return WorkerOutput(rows=rows, error=error)
        return WorkerOutput(rows=rows)

    def taken(self) -> list[list[int]]:
        """Return what has been counted since the last call, for `Meter.add` of the other process."""
        return self._meter.taken()


def _with_files(cells: DeferredCells, files: Mapping[int, LocalFile]) -> DeferredCells:
    """Return cells with files instead of their numbers."""
    if not isinstance(cells, FileBlobs):
        return cells
    sources: tuple[Any, ...] = cells.sources
    return replace(cells, sources=tuple(files[one] if isinstance(one, int) else one for one in sources))


def pack_input(batch: WorkerInput, query: Query, file_number: FileNumber) -> list[memoryview]:
    """Return the blocks of what is sent to a worker."""
    try:
        return pack(batch, file_number)
    except Exception as error:
        raise _pickling_error(batch.columns.items(), error, query) from error


def pack_output(output: WorkerOutput, query: Query) -> list[memoryview]:
    """Return the blocks of what a worker sends back."""
    try:
        return pack(output if output.error is None else replace(output, error=None))
    except Exception as error:
        rows = [output.columns] if output.rows is None else output.rows
        raise _pickling_error([item for row in rows for item in row.items()], error, query) from error


def _pickling_error(values: Iterable[tuple[Any, Any]], error: Exception, query: Query) -> PenstockError:
    """Return the error of a batch that cannot be pickled; it names the first such column."""
    where = "The batch"
    for name, value in values:
        try:
            pack(value)
        except Exception as problem:  # noqa: BLE001 - pickling runs code of the value
            where, error = f"Column {name!r}", problem
            break
    source = f"map {query.maps[-1].name} returned" if query.maps else "its codec returned"
    msg = (
        f"{where}: {source} a value that cannot be pickled, and so cannot be sent to another process: {error}. "
        "Return arrays, numbers, text, bytes, times, or lists, tuples and dicts of them, or leave workers='processes' out."
    )
    return MapError(msg) if query.maps else DataError(msg)
