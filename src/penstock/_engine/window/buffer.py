"""Window buffers: how units are put together to one window in memory, and how rows are picked from it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._blobs import Blobs
from penstock._engine.decode.concat import concat_wide, take_wide
from penstock._engine.parquet.blob_chunks import concat_blobs
from penstock._engine.parquet.file_blobs import FileBlobs
from penstock._engine.query.query import Batch, Stack
from penstock._engine.read.reader import Unit, UnitTable
from penstock._engine.runtime.memory import BufferPool
from penstock.model import IntArray, Window

Cells: TypeAlias = Blobs | FileBlobs

STEP_BYTES = 1 << 22
"""Bytes of a column that one step permutes."""

LONG_CELL = 256
"""Average bytes of a cell from which on bytes are picked from where they are, not put in order."""

CACHED_COLUMN = 1 << 21
"""Bytes of a column that fit in a processor's cache."""

CACHED_BLOCK = 1 << 18
"""Bytes that stay in a processor's cache while columns are written side by side."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitColumns:
    """The selected rows of a unit: columns of a fixed size as arrays, all others as stored.

    Attributes:
        unit: The unit.
        rows: Which of its rows these are, without columns.
        fixed: Columns of a fixed size.
        deferred: All others.
        cached: Columns of `fixed` that are views of memory which stays, such as that of a cached unit.
    """

    unit: Unit
    rows: UnitTable
    fixed: dict[str, npt.NDArray[Any]]
    deferred: dict[str, pa.Array | Cells]
    cached: frozenset[str] = frozenset()

    def without(self, names: Container[str]) -> UnitColumns:
        """Return the unit without some of the deferred columns."""
        return replace(self, deferred={name: values for name, values in self.deferred.items() if name not in names})


Parts: TypeAlias = tuple[tuple[UnitColumns, "slice | IntArray"], ...]
"""Units, and which rows of each."""


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True, eq=False)
class WindowBuffer:
    """A window in memory.

    Rows are numbered in the order in which they were read. `take` permutes them to the order in which batches have them.

    Attributes:
        fixed: Columns of a fixed size, in the order of batches.
        parts: The units with the rows used of each, for deferred columns; in the order of reading.
        ends: The number of the row after the last of each part.
        take: The number of each row in the order of batches; None if both orders are equal.
        cells: Deferred columns of blobs of all parts together, in the order of reading.
        ordered: Deferred columns of Arrow, in the order of batches.
        own_numbers: The row numbers of a copy that `cut` made of some rows.
    """

    fixed: dict[str, npt.NDArray[Any]]
    parts: tuple[tuple[UnitColumns, slice | IntArray], ...] = ()
    ends: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    take: IntArray | None = None
    cells: dict[str, pa.Array | Cells] = field(default_factory=dict)
    ordered: dict[str, pa.Array] = field(default_factory=dict)
    own_numbers: IntArray | None = None

    def cut(self, start: int, stop: int) -> WindowBuffer:
        """Return a copy of rows `start..stop`, so that the window can be freed."""
        fixed = {name: values[start:stop].copy() for name, values in self.fixed.items()}
        names = {**self.cells, **(self.parts[0][0].deferred if self.parts else {})}
        cells = {name: self.pick(name, start, stop) for name in names}
        cells.update({name: values.take(pa.array(np.arange(start, stop))) for name, values in self.ordered.items()})
        numbers = self.numbers(start, stop) if self.own_numbers is None else self.own_numbers[start:stop]
        parts = tuple((replace(unit, deferred={}), rows) for unit, rows in self.parts)
        return WindowBuffer(fixed=fixed, parts=parts, ends=self.ends, cells=cells, own_numbers=numbers)

    def chosen(self, rows: IntArray) -> WindowBuffer:
        """Return some of the rows, in any order."""
        fixed = {name: values[rows] for name, values in self.fixed.items()}
        ordered = {name: take_wide(values, rows) for name, values in self.ordered.items()}
        take = rows if self.take is None else self.take[rows]
        numbers = None if self.own_numbers is None else self.own_numbers[rows]
        return replace(self, fixed=fixed, ordered=ordered, take=take, own_numbers=numbers)

    def numbers(self, start: int, stop: int) -> IntArray:
        """Return the numbers of rows `start..stop`."""
        return np.arange(start, stop) if self.take is None else self.take[start:stop]

    def pick(self, name: str, start: int, stop: int) -> pa.Array | Cells:
        """Return rows `start..stop` of a deferred column."""
        if name in self.ordered:
            return self.ordered[name].slice(start, stop - start)
        numbers = self.numbers(start, stop)
        if name in self.cells:
            return _take(self.cells[name], numbers)
        if not len(numbers):
            return _take(self.parts[0][0].deferred[name], np.zeros(0, dtype=np.int64))
        part = np.searchsorted(self.ends, numbers, side="right")
        order = np.argsort(part, kind="stable")
        picked = []
        for at in np.unique(part).tolist():
            unit, rows = self.parts[at]
            begin = int(self.ends[at - 1]) if at else 0
            inside = numbers[order[part[order] == at]] - begin
            inside = inside + rows.start if isinstance(rows, slice) else rows[inside]
            picked.append(_take(unit.deferred[name], inside))
        if len(picked) == 1:
            return picked[0]
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        return _take(concat_cells(picked), back)

    def where(self, row: int) -> tuple[UnitColumns, int]:
        """Return the unit of a row, and the row's number in the file."""
        number = int((self.numbers(row, row + 1) if self.own_numbers is None else self.own_numbers[row : row + 1])[0])
        at = int(np.searchsorted(self.ends, number, side="right"))
        unit, rows = self.parts[at]
        inside = number - (int(self.ends[at - 1]) if at else 0)
        return unit, int(unit.rows.row_numbers()[rows][inside])


def concat_cells(cells: Sequence[pa.Array | Cells]) -> pa.Array | Cells:
    """Return cells one after the other."""
    if len(cells) == 1:
        return cells[0]
    if not any(isinstance(some, Blobs | FileBlobs) for some in cells):
        return concat_wide(cells)
    return concat_blobs([some if isinstance(some, Blobs | FileBlobs) else Blobs.of(some) for some in cells])


def _take(cells: pa.Array | Cells, rows: IntArray) -> pa.Array | Cells:
    return cells.take(rows) if isinstance(cells, Blobs | FileBlobs) else take_wide(cells, rows)


def joined_cells(parts: Parts, blobs: Sequence[str], plain: Sequence[str]) -> dict[str, pa.Array | Cells]:
    """Return columns of cells of all parts of a window, so that a batch is picked at once and not from part to part.

    Args:
        parts: The parts of the window.
        blobs: Columns of blobs.
        plain: Columns of bytes in Arrow. Long ones without nulls stay where they are: putting them in order would copy the
            whole window, and batches are copies again.
    """
    joined: dict[str, pa.Array | Cells] = {}
    for name in (*blobs, *plain) if parts else ():
        columns: list[Any] = [unit.deferred[name] for unit, _ in parts]
        if name in plain:
            if sum(one.nbytes for one in columns) < LONG_CELL * sum(map(len, columns)) or any(
                one.null_count for one in columns
            ):
                continue
            columns = [Blobs.of(one) for one in columns]
        joined[name] = concat_blobs([one.take(rows) for one, (_, rows) in zip(columns, parts, strict=True)])
    return joined


def reordered_columns(
    parts: Parts, names: Sequence[str], take: IntArray | None, limit: int
) -> tuple[Parts, dict[str, pa.Array]]:
    """Return the parts without columns of Arrow, and these columns in order, so that batches are cut and not picked.

    Columns of more than `limit` bytes stay as they are, because they are in memory twice meanwhile.
    """
    if not names or sum(unit.deferred[name].nbytes for unit, _ in parts for name in names) >= limit:
        return parts, {}
    ordered = {name: _in_order(name, parts, take) for name in names} if parts else {}
    return tuple((unit.without(ordered), rows) for unit, rows in parts), ordered


def _in_order(name: str, parts: Parts, take: IntArray | None) -> pa.Array:
    arrays = []
    for unit, rows in parts:
        values: pa.Array = unit.deferred[name]
        arrays.append(values[rows] if isinstance(rows, slice) else take_wide(values, rows))
    whole = concat_wide(arrays)
    return whole if take is None else take_wide(whole, take)


class WindowBuilder:
    """A window that is being filled; each unit is put in by the thread that has read it.

    The columns of a unit are copied to reused memory at once, so that the memory they were read to is free, and still in the
    processor's cache, for the next unit. Memory that each unit kept until the window is complete would be fresh for every
    unit, and its page faults cost more than reading. Columns of cached units wait where they are until they are permuted.

    Attributes:
        window: What is read, and the order of its rows.
        ends: The number of the row after the last of each read.
        num_rows: The rows of the window.
        nbytes: The bytes of its columns, once all were put in.
    """

    def __init__(self, window: Window, stacks: Sequence[Stack], buffer_pool: BufferPool, *, writable: bool = False) -> None:
        """Store what comes; `writable` says that no array may be a view of memory that others share."""
        self.window = window
        rows = [read.rows for read in window.reads]
        self.ends: IntArray = np.cumsum([at.stop - at.start if isinstance(at, slice) else len(at) for at in rows])
        self.num_rows = int(self.ends[-1])
        self.nbytes = 0
        self._has = [False] * len(rows)
        self._stacks, self._buffer_pool = stacks, buffer_pool
        self._copies = writable if window.take is None else len(rows) > 1
        self._parts: list[Batch] = [{} for _ in rows]
        self._copied: Batch = {}
        self._outputs: list[_Output] = []
        self._lock = threading.Lock()
        self._columns: dict[str, _Column] = {}
        self._steps: deque[tuple[_Column, slice]] = deque()

    def put(self, at: int, fixed: Batch, cached: frozenset[str] = frozenset()) -> None:
        """Put in the rows of read number `at`; columns that are `cached` may wait where they are."""
        rows, self._has[at] = self.window.reads[at].rows, True
        part = {name: values[rows] for name, values in fixed.items()}
        cached = cached if isinstance(rows, slice) and self.window.take is not None else frozenset()
        with self._lock:
            if not self._outputs:
                self._outputs = _outputs(part, self._stacks)
            copied = [one for one in self._outputs if self._copies and not self._waits(one, part, cached)]
            for one in copied:
                if one.name not in self._copied:
                    self._copied[one.name] = self._empty(one, part)
        start, stop = (int(self.ends[at - 1]) if at else 0), int(self.ends[at])
        for one in copied:
            one.copy(part, self._copied[one.name][start:stop])
        self._parts[at] = {one.name: part[one.name] for one in self._outputs if one not in copied} if self._copies else part

    def _waits(self, output: _Output, part: Batch, cached: frozenset[str]) -> bool:
        """Return whether a column is copied only when it is permuted: it stays in the cache, and is small as a whole."""
        return output.name in cached and self.num_rows * part[output.name][:1].nbytes <= STEP_BYTES

    def has(self, at: int) -> bool:
        """Return whether the rows of read number `at` were put in."""
        return self._has[at]

    def prepare_steps(self) -> int:
        """Prepare the steps that put the columns in order, and return their number; call it after all reads were put in."""
        take = self.window.take
        for one in self._outputs:
            if self._copies and one.name not in self._copied:
                self._columns[one.name] = column = _Column(None, waiting=[part[one.name] for part in self._parts], left=1)
                self.nbytes += sum(part.nbytes for part in column.waiting)
                self._steps.append((column, slice(0, self.num_rows)))
                continue
            whole = self._filled(one) if self._copies else self._joined(one)
            column = self._columns[one.name] = _Column(whole)
            if take is not None:
                count = max(1, min(len(whole), whole.nbytes // STEP_BYTES))
                ends = [len(whole) * at // count for at in range(count + 1)]
                self._steps.extend((column, slice(*pair)) for pair in pairwise(ends))
                column.left = count
            self.nbytes += whole.nbytes
        self._parts = []
        return len(self._steps)

    def _filled(self, output: _Output) -> npt.NDArray[Any]:
        """Return a column that was copied, with the parts that waited while others did not."""
        whole = self._copied.pop(output.name)
        for part, start, stop in zip(self._parts, [0, *self.ends.tolist()], self.ends.tolist(), strict=False):
            if output.name in part:
                whole[start:stop] = part[output.name]
        return whole

    def order(self) -> None:
        """Run the steps that are left; several threads may do so at once.

        Columns are begun one after the other, so that no more of them than there are threads are in memory twice.
        """
        take = self.window.take
        while self._steps:
            try:
                column, rows = self._steps.popleft()
            except IndexError:  # another thread was faster
                return
            assert take is not None  # noqa: S101 - without it there are no steps
            whole = self._cached(column)
            with self._lock:
                if column.ordered is None:
                    column.ordered = self._buffer_pool.empty(whole.shape, whole.dtype)
            # mode="clip" saves the check of every index; they come from a permutation.
            whole.take(take[rows], axis=0, mode="clip", out=column.ordered[rows])
            del whole
            with self._lock:
                column.left -= 1
                if not column.left:
                    column.whole, column.waiting = column.ordered, []

    def _cached(self, column: _Column) -> npt.NDArray[Any]:
        """Return a column as it was read; a small one is copied, which brings it into the processor's cache.

        Fetching rows one by one from far memory, in the order of the permutation, takes longer than the copy.
        """
        whole = column.whole
        if whole is not None and (column.left > 1 or whole.nbytes > CACHED_COLUMN):
            return whole
        parts = column.waiting if whole is None else [whole]
        copied = self._buffer_pool.empty((self.num_rows, *parts[0].shape[1:]), parts[0].dtype)
        np.concatenate(parts, out=copied, casting="unsafe")
        return copied

    def complete(self) -> Batch:
        """Return the window's columns in order, after all steps."""
        columns, self._columns = self._columns, {}
        return {name: column.whole for name, column in columns.items() if column.whole is not None}

    def _empty(self, output: _Output, part: Batch) -> npt.NDArray[Any]:
        shape, dtype = output.kind(part)
        return self._buffer_pool.empty((self.num_rows, *shape), dtype)

    def _joined(self, output: _Output) -> npt.NDArray[Any]:
        """Return the parts of a column as one array."""
        if output.columns is None:
            return concat_arrays([part[output.name] for part in self._parts])
        whole = self._empty(output, self._parts[0])
        start = 0
        for part, stop in zip(self._parts, self.ends.tolist(), strict=True):
            output.copy(part, whole[start:stop])
            start = stop
        return whole


@dataclass(slots=True)
class _Column:
    """A column that is being put in order: as it was read, in order, and how many steps are left.

    A column that waits where it is has one step, which copies it first.
    """

    whole: npt.NDArray[Any] | None
    waiting: list[npt.NDArray[Any]] = field(default_factory=list)
    ordered: npt.NDArray[Any] | None = None
    left: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Output:
    """A column of the window: a column as it is, or several stacked."""

    name: str
    columns: tuple[str, ...] | None = None

    def kind(self, part: Batch) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return the shape and dtype of a row."""
        if self.columns is None:
            return part[self.name].shape[1:], part[self.name].dtype
        first = part[self.columns[0]]
        return (len(self.columns), *first.shape[1:]), np.result_type(*(part[name].dtype for name in self.columns))

    def copy(self, part: Batch, out: npt.NDArray[Any]) -> None:
        """Copy the rows of a part."""
        if self.columns is None:
            out[...] = part[self.name]
            return
        # In blocks that stay in the cache: each cache line is written once for every column.
        step = max(1, CACHED_BLOCK // max(1, out[:1].nbytes))
        for start in range(0, len(out), step):
            for at, name in enumerate(self.columns):
                out[start : start + step, at] = part[name][start : start + step]


def _outputs(fixed: Batch, stacks: Sequence[Stack]) -> list[_Output]:
    """Return the columns that a window has, given the columns of a fixed size."""
    possible = [stack for stack in stacks if all(name in fixed for name in stack.columns)]
    used = {name for stack in possible for name in stack.columns}
    outputs = [_Output(name=stack.name, columns=stack.columns) for stack in possible]
    return outputs + [_Output(name=name) for name in fixed if name not in used]


def concat_arrays(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return arrays one after the other; a single one as it is."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
