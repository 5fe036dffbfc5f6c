"""Rows by number: of each row group that has some, the pages that hold them are read, or all of it where that is cheaper.

What becomes of them then (names, types, partition values) is `read`'s to say, as for rows that come in turn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import fs as pafs

from penstock._blobs import Blobs
from penstock._engine.lookup.byte_ranges import Cost, OpenFile, side_by_side
from penstock._engine.lookup.cache import LookupCache, LruCache
from penstock._engine.lookup.page_reads import Found, Request, Way, picked
from penstock._engine.parquet.blob_chunks import concat_blobs
from penstock._engine.parquet.chunk_layout import FileLayout
from penstock._engine.parquet.file_blobs import FileBlobs, LocalFile
from penstock._engine.parquet.plain_pages import as_arrow
from penstock._engine.parquet.thrift import ThriftError
from penstock._engine.read.reader import Reader, Unit, UnitTable
from penstock.errors import DataChangedError
from penstock.model import WHOLE_FILE, BoolArray, IntArray
from penstock.schema import CellProblem

__all__ = ["LookupRequest", "RowLookup"]

KEPT_MOST = 16 << 20
"""Bytes of numbers of rows that pass a filter."""

SHARE = 1 << 22
"""Bytes that a thread reads and unpacks, at least: for less it is not started."""

SEVERAL = -2
"""The row group of rows that lie in several."""

Groups: TypeAlias = Sequence[tuple[int, IntArray]]
"""Row groups, and which rows of each."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LookupRequest:
    """What is asked of rows.

    Attributes:
        columns: The table's columns.
        blobs: Those among them whose cells may be left as they lie.
        threads: How many may read and unpack beside each other, where that saves time.
    """

    columns: Sequence[str]
    blobs: Sequence[str] = ()
    threads: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Picked(Unit):
    """Some rows of a file that have been read, by the names that columns have there."""

    found: dict[str, Found]


class _Asked(NamedTuple):
    """A column of one of some row groups: how to read it, and the page that it is in, by its key, where that is kept."""

    at: int
    name: str
    way: Way
    key: tuple[str, int, str, int] | None
    page: pa.ChunkedArray | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowLookup(Reader):
    """Reads some rows of units.

    Attributes:
        cost: What reading costs where the table lies.
        shelf: What is kept of its files.
        kept: Which rows of a unit pass the filter.
    """

    cost: Cost
    shelf: LookupCache
    kept: LruCache[tuple[int, int, int], IntArray] = field(default_factory=lambda: LruCache(KEPT_MOST), repr=False)

    def stored(self, unit: Unit, rows: IntArray) -> IntArray:
        """Return which rows of a unit some of those are that are kept of it.

        Raises:
            DataError: If the file cannot be read.
            DataChangedError: If other rows pass than were counted.
        """
        if not unit.residual and unit.file not in self.snapshot.files.deletes:
            return rows
        key = (unit.file, unit.row_group, unit.start)
        found = self.kept.get(key)
        if found is None:
            every = self.read(unit, ()).selected
            found = np.arange(unit.rows) if every is None else every
            self.kept.put(key, found, found.nbytes + 100)
        return found[rows]

    def pick(self, units: Sequence[tuple[Unit, IntArray]], wish: LookupRequest) -> tuple[Unit, UnitTable] | None:
        """Return some rows of units of one file as one unit, by their numbers in each, in ascending order.

        Where the units must be read whole it is None.

        Raises:
            DataError: If the file cannot be read.
            DataChangedError: If it is not the one that the table was opened with.
        """
        if self.checksums:  # of which pyarrow alone knows
            return None
        try:
            file = self._opened(units[0][0])
            groups = [some for unit, rows in units for some in self._groups(unit, file.anatomy, rows)]
        except ThriftError:
            return None
        numbers = [unit.first + rows for unit, rows in units]
        kept = numbers[0] if len(numbers) == 1 else np.concatenate(numbers)
        some = Picked(
            file=units[0][0].file,
            row_group=groups[0][0] if len(groups) == 1 else SEVERAL,
            start=0,
            first=0,
            rows=len(kept),
            count=len(kept),
            residual=False,
            found={},
        )
        if self.snapshot.sampled and not self.warned:
            self._warn(some, file.anatomy.names)
        some.found.update(self._found(some, file, groups, wish))
        part = self.read(some, wish.columns, wish.blobs)
        some.found.clear()
        return some, replace(part, selected=kept)

    def _opened(self, unit: Unit) -> OpenFile:
        """Return a unit's file.

        Raises:
            ThriftError: If nothing can be made of its footer.
        """
        path = self.snapshot.files.path[unit.file].as_py()
        found = self.shelf.file(path)
        if found is None:
            with self._file_errors(unit):
                self._check_unchanged(unit)
                local = isinstance(self.filesystem, pafs.LocalFileSystem)
                found = OpenFile.at(path, LocalFile(path) if local else self.filesystem.open_input_file(path))
            self.shelf.put_file(found)
        return found

    def _groups(self, unit: Unit, anatomy: FileLayout, rows: IntArray) -> Groups:
        """Return the row groups that hold some rows of a unit, and which rows of each these are."""
        if unit.row_group != WHOLE_FILE:
            there = anatomy.rows(unit.row_group)
            if there < unit.start + unit.rows:
                raise DataChangedError(self._changed(unit, max(0, there)))
            return [(unit.row_group, unit.start + rows)]
        sizes = anatomy.group_rows()
        ends, total = np.cumsum(sizes), int(sizes.sum())
        if (sizes < 0).any() or total < unit.rows or self.snapshot.files.rows[unit.file] not in (-1, total):
            raise DataChangedError(self._changed(unit, total))
        groups = np.searchsorted(ends, rows, side="right")
        return [(group, rows[groups == group] - int(ends[group] - sizes[group])) for group in np.unique(groups).tolist()]

    def _found(self, unit: Unit, file: OpenFile, groups: Groups, wish: LookupRequest) -> dict[str, Found]:
        """Return rows of some row groups, by the names that columns have in the file."""
        partitions = self.snapshot.files.partitions.column_names
        there = file.anatomy.names
        called = self._called(unit, [name for name in wish.columns if name not in partitions], there)
        called = {name: stored for name, stored in called.items() if stored in there}
        cells = {called[name] for name in wish.blobs if name in called}
        found: list[dict[str, Found]] = [{} for _ in groups]
        with self._file_errors(unit):
            names = tuple(called.values())
            asked = [one for at in range(len(groups)) for one in self._asked(file, groups, at, names)]
            parts = side_by_side(lambda some: self._read(file, some, cells), self._shares(asked, wish.threads))
            for one, column in zip(asked, chain.from_iterable(parts), strict=True):
                if column is not None:
                    found[one.at][one.name] = column
            for (group, rows), some in zip(groups, found, strict=True):
                rest = [name for name, stored in called.items() if stored not in some]
                if rest:
                    table = Reader._from_file(self, replace(unit, row_group=group), rest)  # noqa: SLF001 - see _from_file
                    some.update({name: picked(table.column(at), rows) for at, name in enumerate(table.column_names)})
        return found[0] if len(found) == 1 else {name: _joined([some[name] for some in found]) for name in called.values()}

    def _asked(self, file: OpenFile, groups: Groups, at: int, names: tuple[str, ...]) -> Iterator[_Asked]:
        """Yield how to read columns of one of some row groups, but for those that are left to pyarrow."""
        group, rows = groups[at]
        for column in self.shelf.columns(file, group, names, self.cost, self.buffer_pool):
            way = column.way(file, rows, self.cost)
            if way is not None:
                key = None if way.number is None else (file.path, group, column.name, way.number)
                yield _Asked(at, column.name, way, key, None if key is None else self.shelf.page(key))

    def _shares(self, asked: Sequence[_Asked], threads: int) -> list[Sequence[_Asked]]:
        """Return what each thread has to do: one does all where it is little, or where requests are made at once anyway."""
        sizes = np.cumsum([0, *(one.way.size if one.page is None else 0 for one in asked)])
        shares = min(threads, int(sizes[-1]) // SHARE) if self.cost.near else 1
        if shares < 2:  # noqa: PLR2004 - nobody to share with
            return [asked]
        edges = np.searchsorted(sizes, np.arange(1, shares) * sizes[-1] // shares).tolist()
        return [asked[start:stop] for start, stop in pairwise([0, *edges, len(asked)])]

    def _read(self, file: OpenFile, asked: Sequence[_Asked], cells: Collection[str]) -> list[Found | None]:
        """Return columns, None for those that are left to pyarrow."""
        spans = [span for one in asked if one.page is None for span in one.way.spans]
        data = iter(file.fetch(spans, self.cost, self.buffer_pool) if spans else ())
        found = []
        for one in asked:
            mine = [next(data) for _ in one.way.spans] if one.page is None else []
            found.append(self._made(file, one, mine, cells=one.name in cells))
        return found

    def _made(self, file: OpenFile, asked: _Asked, data: Sequence[memoryview], *, cells: bool) -> Found | None:
        """Return rows of a column; None where its pages are not what they should be, for pyarrow to tell why."""
        way, page = asked.way, asked.page
        try:
            if asked.key is not None and isinstance(way, Request):
                if page is None:
                    page = way.decoded(data, self.buffer_pool)
                    self.shelf.put_page(asked.key, page)
                return way.picked(page)
            found = way.found(data, self.buffer_pool)
            return found if cells or isinstance(found, pa.ChunkedArray) else self._as_arrow(file, asked.name, found)
        except (OSError, ValueError, pa.ArrowException, CellProblem):
            self.shelf.refuse(file, asked.name)
            return None

    def _as_arrow(self, file: OpenFile, name: str, cells: Blobs | FileBlobs) -> pa.ChunkedArray:
        """Return cells as Arrow, where nobody asked for them as they lie."""
        loaded = cells.loaded(self.buffer_pool) if isinstance(cells, FileBlobs) else cells
        return pa.chunked_array([as_arrow(loaded, file.anatomy.schema.field(name).type, self.buffer_pool)])

    def where(self, unit: Unit) -> str:
        """Return the name of a unit for messages."""
        return Reader.where(self, replace(unit, row_group=WHOLE_FILE) if unit.row_group == SEVERAL else unit)

    def row_groups(self, unit: Unit, rows: IntArray) -> IntArray:
        """Return the number of the row group that each row of a unit lies in."""
        if unit.row_group != SEVERAL:
            return Reader.row_groups(self, unit, rows)
        return np.searchsorted(np.cumsum(self._opened(unit).anatomy.group_rows()), rows, side="right")

    # What `read` asks of a file has been read already. Classes with slots have no super().

    def _from_file(self, unit: Unit, columns: Sequence[str]) -> pa.Table:
        if not isinstance(unit, Picked):
            return Reader._from_file(self, unit, columns)  # noqa: SLF001 - of the class above
        stored = [name for name in self._called(unit, columns).values() if name in unit.found]
        if not stored:
            return pa.table({"rows": pa.nulls(unit.rows)}).select([])  # rows without columns are rows
        return pa.Table.from_arrays([unit.found[name] for name in stored], names=stored)

    def _cells(self, unit: Unit, columns: Sequence[str]) -> dict[str, Blobs | FileBlobs]:
        if not isinstance(unit, Picked):
            return Reader._cells(self, unit, columns)  # noqa: SLF001 - of the class above
        found = {name: unit.found.get(stored) for name, stored in self._called(unit, columns).items()}
        return {name: cells for name, cells in found.items() if isinstance(cells, Blobs | FileBlobs)}

    def _names_in(self, unit: Unit) -> Collection[str]:
        return unit.found if isinstance(unit, Picked) else Reader._names_in(self, unit)  # noqa: SLF001 - of the class above

    def _schema_in(self, unit: Unit) -> pa.Schema:
        return self._opened(unit).anatomy.schema if isinstance(unit, Picked) else Reader._schema_in(self, unit)  # noqa: SLF001

    def _alive(self, unit: Unit) -> BoolArray | None:
        return None if isinstance(unit, Picked) else Reader._alive(self, unit)  # noqa: SLF001 - of the class above


def _joined(parts: Sequence[Found]) -> Found:
    """Return rows of several row groups, one after the other."""
    cells = [part for part in parts if isinstance(part, Blobs | FileBlobs)]
    if cells:  # of some, which those of others can be made of
        return concat_blobs([_as_cells(part) for part in parts])
    chunks = [chunk for array in parts for chunk in array.chunks]  # type: ignore[union-attr] # all are Arrow's
    return pa.chunked_array([pa.concat_arrays(chunks)] if pa.types.is_primitive(chunks[0].type) else chunks)


def _as_cells(part: Found) -> Blobs | FileBlobs:
    if isinstance(part, Blobs | FileBlobs):
        return part
    return Blobs.joined([Blobs.of(chunk) for chunk in part.chunks])
