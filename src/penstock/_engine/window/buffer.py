"""Windows in memory: how units that were read are put together to one, and how rows are picked from it."""

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
from penstock._engine.query.values import Batch, Stack
from penstock._engine.read.reader import Unit, UnitTable
from penstock._engine.runtime.buffers import BufferPool
from penstock.model import IntArray, Window

__all__ = [
    "Cells",
    "UnitColumns",
    "WindowBuffer",
    "WindowBuilder",
    "concat_arrays",
    "concat_cells",
    "joined_cells",
    "reordered_columns",
]

Cells: TypeAlias = Blobs | FileBlobs

STEP = 1 << 22
"""Bytes of a column that are brought in order in one step."""

LONG = 256
"""Bytes that a cell of bytes has, on average, if it is picked from where it lies."""

NEAR = 1 << 21
"""Bytes of a column that a core keeps near as a whole."""

BLOCK = 1 << 18
"""Bytes that a core keeps near while columns are written side by side."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitColumns:
    """A unit that has been read: columns of a fixed size as arrays, cells of a codec where they lie, others as Arrow.

    Attributes:
        unit: The unit.
        part: Which of its rows these are.
        fixed: Columns of a fixed size.
        deferred: All others.
        lasting: Those of a fixed size that are views of memory which stays as it is, whether they are let go or not.
    """

    unit: Unit
    part: UnitTable
    fixed: dict[str, npt.NDArray[Any]]
    deferred: dict[str, pa.Array | Cells]
    lasting: frozenset[str] = frozenset()

    def without(self, names: Container[str]) -> UnitColumns:
        """Return it with some of the columns less that were left as stored."""
        return replace(self, deferred={name: values for name, values in self.deferred.items() if name not in names})


Parts: TypeAlias = tuple[tuple[UnitColumns, "slice | IntArray"], ...]
"""Units, and which rows of each."""


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True, eq=False)
class WindowBuffer:
    """A window in memory.

    Attributes:
        fixed: Columns in the order they are handed out.
        parts: What its units gave, and which rows of it, where columns are still to be picked.
        ends: Where the rows of each part end, counted in the order they were read.
        take: For each row handed out, its number in that order; None where it is the same.
        cells: Columns of blobs of all parts together, in that order.
        ordered: Columns that Arrow holds, in the order they are handed out.
        places: Where rows that were cut out of a window stood in that order.
    """

    fixed: dict[str, npt.NDArray[Any]]
    parts: tuple[tuple[UnitColumns, slice | IntArray], ...] = ()
    ends: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    take: IntArray | None = None
    cells: dict[str, pa.Array | Cells] = field(default_factory=dict)
    ordered: dict[str, pa.Array] = field(default_factory=dict)
    places: IntArray | None = None

    def cut(self, start: int, stop: int) -> WindowBuffer:
        """Return rows `start..stop` of what is handed out in memory of their own, so that the window can be let go."""
        fixed = {name: values[start:stop].copy() for name, values in self.fixed.items()}
        names = {**self.cells, **(self.parts[0][0].deferred if self.parts else {})}
        cells = {name: self.pick(name, start, stop) for name in names}
        cells.update({name: values.take(pa.array(np.arange(start, stop))) for name, values in self.ordered.items()})
        places = self.numbers(start, stop) if self.places is None else self.places[start:stop]
        parts = tuple((replace(read, deferred={}), rows) for read, rows in self.parts)
        return WindowBuffer(fixed=fixed, parts=parts, ends=self.ends, cells=cells, places=places)

    def chosen(self, rows: IntArray) -> WindowBuffer:
        """Return some of the rows that are handed out, in another order or several times."""
        fixed = {name: values[rows] for name, values in self.fixed.items()}
        ordered = {name: take_wide(values, rows) for name, values in self.ordered.items()}
        take = rows if self.take is None else self.take[rows]
        places = None if self.places is None else self.places[rows]
        return replace(self, fixed=fixed, ordered=ordered, take=take, places=places)

    def numbers(self, start: int, stop: int) -> IntArray:
        """Return rows `start..stop` of what is handed out, by their number in the order they were read."""
        return np.arange(start, stop) if self.take is None else self.take[start:stop]

    def pick(self, name: str, start: int, stop: int) -> pa.Array | Cells:
        """Return a column that was left as stored, of rows `start..stop`."""
        if name in self.ordered:
            return self.ordered[name].slice(start, stop - start)
        numbers = self.numbers(start, stop)
        if name in self.cells:
            return _picked(self.cells[name], numbers)
        if not len(numbers):
            return _picked(self.parts[0][0].deferred[name], np.zeros(0, dtype=np.int64))
        part = np.searchsorted(self.ends, numbers, side="right")
        order = np.argsort(part, kind="stable")
        found = []
        for at in np.unique(part).tolist():
            read, rows = self.parts[at]
            begin = int(self.ends[at - 1]) if at else 0
            inside = numbers[order[part[order] == at]] - begin
            inside = inside + rows.start if isinstance(rows, slice) else rows[inside]
            found.append(_picked(read.deferred[name], inside))
        if len(found) == 1:
            return found[0]
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        return _picked(concat_cells(found), back)

    def where(self, row: int) -> tuple[UnitColumns, int]:
        """Return which unit a row that is handed out comes from, and its number in the file."""
        number = int((self.numbers(row, row + 1) if self.places is None else self.places[row : row + 1])[0])
        at = int(np.searchsorted(self.ends, number, side="right"))
        read, rows = self.parts[at]
        inside = number - (int(self.ends[at - 1]) if at else 0)
        return read, int(read.part.numbers()[rows][inside])


def concat_cells(cells: Sequence[pa.Array | Cells]) -> pa.Array | Cells:
    """Return the cells of several as one."""
    if len(cells) == 1:
        return cells[0]
    if not any(isinstance(some, Blobs | FileBlobs) for some in cells):
        return concat_wide(cells)
    return concat_blobs([some if isinstance(some, Blobs | FileBlobs) else Blobs.of(some) for some in cells])


def _picked(cells: pa.Array | Cells, rows: IntArray) -> pa.Array | Cells:
    return cells.take(rows) if isinstance(cells, Blobs | FileBlobs) else take_wide(cells, rows)


def joined_cells(parts: Parts, blobs: Sequence[str], plain: Sequence[str]) -> dict[str, pa.Array | Cells]:
    """Return columns of cells of all parts of a window, so that batches are picked at once and not from part to part.

    Args:
        parts: What the window is made of.
        blobs: Columns of blobs.
        plain: Columns of bytes that Arrow holds. They stay where they are too if they are long, and none is null: to bring
            them in order would copy all of a window to fresh memory, of which batches are copies again.
    """
    found: dict[str, pa.Array | Cells] = {}
    for name in (*blobs, *plain) if parts else ():
        columns: list[Any] = [read.deferred[name] for read, _ in parts]
        if name in plain:
            if sum(one.nbytes for one in columns) < LONG * sum(map(len, columns)) or any(one.null_count for one in columns):
                continue
            columns = [Blobs.of(one) for one in columns]
        found[name] = concat_blobs([one.take(rows) for one, (_, rows) in zip(columns, parts, strict=True)])
    return found


def reordered_columns(
    parts: Parts, names: Sequence[str], take: IntArray | None, most: int
) -> tuple[Parts, dict[str, pa.Array]]:
    """Return columns that Arrow holds in the order they are handed out, and what is left of the parts.

    Batches are then cut, and not picked from part to part. What takes more than `most` bytes is left where it is, since
    meanwhile it lies in memory twice.
    """
    if not names or sum(read.deferred[name].nbytes for read, _ in parts for name in names) >= most:
        return parts, {}
    ordered = {name: _ordered(name, parts, take) for name in names} if parts else {}
    return tuple((read.without(ordered), rows) for read, rows in parts), ordered


def _ordered(name: str, parts: Parts, take: IntArray | None) -> pa.Array:
    found = []
    for read, rows in parts:
        values: pa.Array = read.deferred[name]
        found.append(values[rows] if isinstance(rows, slice) else take_wide(values, rows))
    whole = concat_wide(found)
    return whole if take is None else take_wide(whole, take)


class WindowBuilder:
    """A window that is being filled, each unit by the thread that has read it.

    Where rows are to be permuted, a unit's columns are copied to memory that is used over and over, and can be let go at
    once: the memory they were read to is then still warm for the next unit. Held until the window is complete, it would
    be fresh memory for every unit, whose page faults cost more than reading. What stays in memory anyway waits where it is,
    and is copied just before it is permuted, when it is still near.
    """

    def __init__(self, window: Window, stacks: Sequence[Stack], buffer_pool: BufferPool, *, writable: bool = False) -> None:
        """Store what is to come, and whether it may be no view of memory that others share."""
        self.window = window
        rows = [read.rows for read in window.reads]
        self.ends: IntArray = np.cumsum([at.stop - at.start if isinstance(at, slice) else len(at) for at in rows])
        self._stacks, self._buffer_pool = stacks, buffer_pool
        self._copies = writable if window.take is None else len(rows) > 1
        self._chunks: list[Batch] = [{} for _ in rows]
        self._rooms: Batch = {}
        self._makers: list[_Maker] = []
        self._making = threading.Lock()
        self._columns: dict[str, _Column] = {}
        self._steps: deque[tuple[_Column, slice]] = deque()

    def put(self, at: int, fixed: Batch, lasting: frozenset[str] = frozenset()) -> None:
        """Put in the rows of the window's read number `at`; columns that are `lasting` may wait where they are."""
        rows = self.window.reads[at].rows
        chunk = {name: values[rows] for name, values in fixed.items()}
        lasting = lasting if isinstance(rows, slice) and self.window.take is not None else frozenset()
        with self._making:
            if not self._makers:
                self._makers = _makers(chunk, self._stacks)
            now = [make for make in self._makers if self._copies and not self._waits(make, chunk, lasting)]
            for make in now:
                if make.name not in self._rooms:
                    self._rooms[make.name] = self._room(make, chunk)
        start, stop = (int(self.ends[at - 1]) if at else 0), int(self.ends[at])
        for make in now:
            make.copy(chunk, self._rooms[make.name][start:stop])
        self._chunks[at] = {make.name: chunk[make.name] for make in self._makers if make not in now} if self._copies else chunk

    def _waits(self, make: _Maker, chunk: Batch, lasting: frozenset[str]) -> bool:
        """Return whether a column is copied when it is permuted: one that lasts, and that a core keeps near as a whole."""
        return make.name in lasting and len(self) * chunk[make.name][:1].nbytes <= STEP

    def __len__(self) -> int:
        """Return the rows of the window."""
        return int(self.ends[-1])

    def steps(self) -> int:
        """Return in how many steps the columns are brought in the order they are handed out; everything has been put in."""
        take = self.window.take
        for make in self._makers:
            if self._copies and make.name not in self._rooms:
                self._columns[make.name] = column = _Column(None, waiting=[chunk[make.name] for chunk in self._chunks], left=1)
                self._steps.append((column, slice(0, len(self))))
                continue
            whole = self._filled(make) if self._copies else self._joined(make)
            column = self._columns[make.name] = _Column(whole)
            if take is not None:
                count = max(1, min(len(whole), whole.nbytes // STEP))
                ends = [len(whole) * at // count for at in range(count + 1)]
                self._steps.extend((column, slice(*pair)) for pair in pairwise(ends))
                column.left = count
        self._chunks = []
        return len(self._steps)

    def _filled(self, make: _Maker) -> npt.NDArray[Any]:
        """Return a column that was copied, with those parts of it that have waited while others have not."""
        room = self._rooms.pop(make.name)
        for chunk, start, stop in zip(self._chunks, [0, *self.ends.tolist()], self.ends.tolist(), strict=False):
            if make.name in chunk:
                room[start:stop] = chunk[make.name]
        return room

    def order(self) -> None:
        """Go all steps that are left; several threads may do so at once.

        Columns are begun one after the other, so that no more of them than threads lie in memory twice.
        """
        take = self.window.take
        while self._steps:
            try:
                column, rows = self._steps.popleft()
            except IndexError:  # another thread was faster
                return
            assert take is not None  # noqa: S101 - without it there are no steps
            whole = self._near(column)
            with self._making:
                if column.ordered is None:
                    column.ordered = self._buffer_pool.empty(whole.shape, whole.dtype)
            # mode="clip" spares the check of every index; they come from a permutation.
            whole.take(take[rows], axis=0, mode="clip", out=column.ordered[rows])
            del whole
            with self._making:
                column.left -= 1
                if not column.left:
                    column.whole, column.waiting = column.ordered, []

    def _near(self, column: _Column) -> npt.NDArray[Any]:
        """Return a column as it was read; one that a core keeps near as a whole is copied there, in the order of memory.

        Rows that lie far are fetched one by one, in the order of the permutation, which takes longer than the copy.
        """
        whole = column.whole
        if whole is not None and (column.left > 1 or whole.nbytes > NEAR):
            return whole
        parts = column.waiting if whole is None else [whole]
        near = self._buffer_pool.empty((len(self), *parts[0].shape[1:]), parts[0].dtype)
        np.concatenate(parts, out=near, casting="unsafe")
        return near

    def complete(self) -> Batch:
        """Return the window's columns in the order they are handed out, after all steps."""
        columns, self._columns = self._columns, {}
        return {name: column.whole for name, column in columns.items() if column.whole is not None}

    def _room(self, make: _Maker, chunk: Batch) -> npt.NDArray[Any]:
        shape, dtype = make.kind(chunk)
        return self._buffer_pool.empty((int(self.ends[-1]), *shape), dtype)

    def _joined(self, make: _Maker) -> npt.NDArray[Any]:
        """Return chunks that were kept as one array."""
        if make.columns is None:
            return concat_arrays([chunk[make.name] for chunk in self._chunks])
        whole = self._room(make, self._chunks[0])
        start = 0
        for chunk, stop in zip(self._chunks, self.ends.tolist(), strict=True):
            make.copy(chunk, whole[start:stop])
            start = stop
        return whole


@dataclass(slots=True)
class _Column:
    """A column of a window that is brought in order: as it was read, then in order, and how many steps that takes yet.

    What has waited where it is has only one step, which copies it first.
    """

    whole: npt.NDArray[Any] | None
    waiting: list[npt.NDArray[Any]] = field(default_factory=list)
    ordered: npt.NDArray[Any] | None = None
    left: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Maker:
    """Something that is handed out, and what it is made of: a column as it is, or several side by side."""

    name: str
    columns: tuple[str, ...] | None = None

    def kind(self, chunk: Batch) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return the shape of a row, and the type."""
        if self.columns is None:
            return chunk[self.name].shape[1:], chunk[self.name].dtype
        first = chunk[self.columns[0]]
        return (len(self.columns), *first.shape[1:]), np.result_type(*(chunk[name].dtype for name in self.columns))

    def copy(self, chunk: Batch, room: npt.NDArray[Any]) -> None:
        """Copy it to where it belongs."""
        if self.columns is None:
            room[...] = chunk[self.name]
            return
        # In blocks that stay near: each line of memory is written once for every column.
        step = max(1, BLOCK // max(1, room[:1].nbytes))
        for start in range(0, len(room), step):
            for at, name in enumerate(self.columns):
                room[start : start + step, at] = chunk[name][start : start + step]


def _makers(fixed: Batch, stacks: Sequence[Stack]) -> list[_Maker]:
    """Return everything that can be handed out of columns of a fixed size."""
    possible = [stack for stack in stacks if all(name in fixed for name in stack.columns)]
    used = {name for stack in possible for name in stack.columns}
    made = [_Maker(name=stack.name, columns=stack.columns) for stack in possible]
    return made + [_Maker(name=name) for name in fixed if name not in used]


def concat_arrays(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return arrays as one, a single one as it is."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
