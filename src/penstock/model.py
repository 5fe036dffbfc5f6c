"""Values shared by all packages: the facts of a table, the plan of a read, and the position of a reader.

All of them are frozen. Facts about files and units, of which there can be millions, are in arrays with one entry each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import fs as pafs

from penstock.schema import Field

__all__ = [
    "Assignment",
    "BoolArray",
    "Changed",
    "ColumnRange",
    "DataFiles",
    "IntArray",
    "Place",
    "Plan",
    "Position",
    "Ranges",
    "Read",
    "Rows",
    "SequenceLinks",
    "Snapshot",
    "Units",
    "Window",
    "even_edges",
    "join_ranges",
    "ranges_length",
    "slice_ranges",
    "split_ranges",
]

IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
Rows: TypeAlias = slice | IntArray
"""Rows of a unit, counted among its selected rows: a range, or ascending numbers."""

ALIAS, COLUMN_ID, UNMAPPED = b"penstock:alias", b"penstock:id", b"penstock:unmapped"
"""Metadata keys of a stored field: another name that files may use, its id, and a mark to ignore its name."""

DROPPED = b"penstock:dropped"
"""The metadata key of a stored schema from which columns were dropped."""

WHOLE_FILE = -1
"""The row group number of a unit that is a whole file."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Place:
    """A location of a table.

    Attributes:
        url: The location as the user gave it.
        filesystem: The filesystem.
        path: The path in it; the common directory of several paths.
        paths: The files and directories, if several were given.
    """

    url: str
    filesystem: pafs.FileSystem
    path: str
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ColumnRange:
    """Statistics of one column, one entry per file or row group.

    Attributes:
        low: A lower bound of the values; null if not known.
        high: An upper bound of the values; null if not known.
        nulls: The number of nulls; -1 if not known.
    """

    low: pa.Array
    high: pa.Array
    nulls: IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DataFiles:
    """The data files of a snapshot, one entry each, in the table's stored order.

    Attributes:
        path: The path of each file in the table's filesystem.
        size: Bytes on storage.
        rows: Stored rows; -1 if only the file's footer has the number.
        stamp: A value that changes when the file is replaced (an etag, a modification time); "" if not known.
        partitions: Partition values, one column each, one row per file; no columns if the table has no partitions.
        ranges: Statistics of whole files by column name, if the table's log has them.
        deletes: The ascending numbers of deleted rows, by the index of the file.
    """

    path: pa.StringArray
    size: IntArray
    rows: IntArray
    stamp: pa.StringArray
    partitions: pa.Table
    ranges: Mapping[str, ColumnRange] = field(default_factory=dict)
    deletes: Mapping[int, IntArray] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self.path)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """The facts about a table at one version, as its format states them.

    Attributes:
        table: The name of the table in messages and saved states: its URL.
        version: The version; "" if the format has no versions.
        schema: The columns as users see them, with the partition columns.
        files: The data files.
        names: The physical name of each column whose name in the files differs, also of nested fields by dotted names.
        fields: The fields of the schema stored with the table, by name; not every column has one.
        sampled: Whether the schema is that of some files only, so that other files can have more columns.
        stored: The columns of `schema` with their names and nested names in the files, and with their ids
            (`PARQUET:field_id`) if columns are found by id; None if names are those of `schema`. The metadata of its fields
            (`ALIAS`, `COLUMN_ID`, `UNMAPPED`) and of the schema (`DROPPED`) distinguish a file that is older than a column
            from a file with another name for it.
        origins: The version that added each file, by path, if the snapshot is a range of versions.
    """

    table: str
    version: str
    schema: pa.Schema
    files: DataFiles
    names: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, Field] = field(default_factory=dict)
    sampled: bool = False
    stored: pa.Schema | None = None
    origins: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Changed:
    """The rows that were added to a table between two versions.

    Attributes:
        snapshot: The files with these rows, as a table of their own.
        column: The column with the kind of change of each row; None if all rows of the files were added.
        kinds: The values of that column for added rows; null also means added.
    """

    snapshot: Snapshot
    column: str | None
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Units:
    """The units of a read, one entry each: row groups, ranges of their rows, or whole small files.

    Attributes:
        file: Index of the data file.
        row_group: Number of the row group in its file; -1 for a whole file.
        start: The first row of the unit in its row group (in its file, for a whole file).
        first: The first row of the unit in its file.
        rows: Stored rows.
        counts: Selected rows: those that are neither deleted nor filtered out.
        residual: Whether the filter has to be evaluated on its rows; if not, every row passes.
    """

    file: npt.NDArray[np.int32]
    row_group: npt.NDArray[np.int32]
    start: IntArray
    first: IntArray
    rows: IntArray
    counts: IntArray
    residual: BoolArray

    def __len__(self) -> int:
        """Return the number of units."""
        return len(self.file)


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One read of a window: some rows of a unit, counted among its selected rows."""

    unit: int
    rows: Rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Window:
    """Rows that are in memory together: the reads, and the order of their rows.

    Attributes:
        reads: The parts of units to read, in this order.
        take: The permutation of the window: for each of its rows, the index in the rows read; None for the order of reading.
    """

    reads: tuple[Read, ...]
    take: IntArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The assignment of the rest of an epoch to ranks, and the rows that each rank has consumed.

    A rank has `lanes / ranks` consecutive lanes and takes `stride` rows of each in turn.

    Attributes:
        lanes: The number of equal parts of the stream.
        stride: Rows that a rank takes of one lane before the next.
        ranks: The number of ranks.
        rows: Rows that each rank has consumed; one number if it is the same for all.
    """

    lanes: int
    stride: int
    ranks: int
    rows: int | tuple[int, ...] = 0

    def consumed(self, rank: int) -> int:
        """Return the rows that one rank has consumed."""
        return self.rows if isinstance(self.rows, int) else self.rows[rank]


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The position of the readers of an order: the epoch, and its assignments so far."""

    epoch: int = 0
    assignments: tuple[Assignment, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class SequenceLinks:
    """The links of sequences that continue from one unit to the next.

    The arrays `group`, `unit`, `row` and `time` have an entry for each of the first rows of a group in a unit, as many rows
    as a sequence from an earlier unit can need. They are sorted by group, then unit, then time.

    Attributes:
        counts: Sequences that start in each unit.
        group: The number of the group.
        unit: The unit.
        row: The number of the row in its unit.
        time: The time of the row.
        held_unit: A unit, for each group in it whose first rows cannot start a sequence; ascending.
        held_row: The last such row of the group: a sequence of an earlier unit has not ended before it.
    """

    counts: IntArray
    group: IntArray
    unit: IntArray
    row: IntArray
    time: npt.NDArray[Any]
    held_unit: IntArray
    held_row: IntArray

    @cached_property
    def _by_unit(self) -> tuple[IntArray, IntArray]:
        """The entries sorted by unit, and their units."""
        order = np.argsort(self.unit, kind="stable")
        return order, self.unit[order]

    @cached_property
    def _ends(self) -> tuple[IntArray, IntArray]:
        """For each entry, the end of the entries of its unit and group, and the end of those of its group."""
        ends = np.arange(1, len(self.group) + 1)
        group = np.append(self.group, -1)
        unit = np.append(self.unit, -1)
        groups = ends[group[1:] != group[:-1]]
        parts = np.union1d(groups, ends[unit[1:] != unit[:-1]])
        return parts[np.searchsorted(parts, ends)], groups[np.searchsorted(groups, ends)]

    def entries_of(self, unit: int) -> IntArray:
        """Return the numbers of a unit's entries."""
        order, units = self._by_unit
        return order[slice(*np.searchsorted(units, [unit, unit + 1]))]

    def following(self, entries: IntArray, limit: int) -> tuple[IntArray, IntArray]:
        """Return the start and stop of the next entries of the same group in later units, `limit` entries at most."""
        parts, groups = self._ends
        low = parts[entries]
        return low, np.minimum(low + limit, groups[entries])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """The plan of a read: its units, and the fingerprint of everything that decides rows and their order.

    Attributes:
        snapshot: The facts about the table.
        units: The units in stored order, with the number of rows that pass the filter.
        counts: The rows to return of each unit: those of `units`, up to a limit.
        fingerprint: A name of the files, rows, filter, shuffle, window and seed; not of columns, maps or batches.
        mixture: The parts of a mixture as JSON; None for a table.
        links: The links of sequences that continue from one unit to the next; None without such sequences.
    """

    snapshot: Snapshot
    units: Units
    counts: IntArray
    fingerprint: str
    mixture: Mapping[str, Any] | None = None
    links: SequenceLinks | None = None

    @property
    def num_rows(self) -> int:
        """The rows of an epoch."""
        return int(self.counts.sum())


Ranges: TypeAlias = tuple[tuple[int, int], ...]


def even_edges(start: int, stop: int, parts: int) -> IntArray:
    """Return the edges of `parts` consecutive parts of `start..stop`, whose lengths differ by at most one.

    Example:
        >>> even_edges(10, 20, 3).tolist()
        [10, 13, 16, 20]
    """
    whole, rest = divmod(stop - start, parts)
    part = np.arange(parts + 1, dtype=np.int64)
    # part * (stop - start) // parts, written so that no product leaves 64 bits.
    return start + part * whole + part * rest // parts


def ranges_length(ranges: Ranges) -> int:
    """Return the number of places in ranges.

    Example:
        >>> ranges_length(((0, 3), (10, 11)))
        4
    """
    return sum(stop - start for start, stop in ranges)


def slice_ranges(ranges: Ranges, start: int, stop: int) -> Ranges:
    """Return the places with the numbers `start` to `stop` in ranges.

    Example:
        >>> slice_ranges(((0, 3), (10, 20)), 2, 5)
        ((2, 3), (10, 12))
    """
    result = []
    passed = 0
    for low, high in ranges:
        if passed >= stop:
            break
        first, last = max(start, passed), min(stop, passed + high - low)
        if first < last:
            result.append((low + first - passed, low + last - passed))
        passed += high - low
    return tuple(result)


def split_ranges(ranges: Ranges, parts: int) -> list[Ranges]:
    """Return `parts` consecutive parts of ranges, whose lengths differ by at most one.

    Example:
        >>> split_ranges(((0, 3), (10, 13)), 2)
        [((0, 3),), ((10, 13),)]
    """
    edges = even_edges(0, ranges_length(ranges), parts).tolist()
    result: list[list[tuple[int, int]]] = [[] for _ in range(parts)]
    part, passed = 0, 0
    for low, high in ranges:
        place = low
        while place < high:
            while edges[part + 1] <= passed:
                part += 1
            step = min(high - place, edges[part + 1] - passed)
            result[part].append((place, place + step))
            place += step
            passed += step
    return [tuple(part) for part in result]


def join_ranges(parts: Iterable[Ranges]) -> Ranges:
    """Return several parts as one, with adjacent ranges merged.

    Example:
        >>> join_ranges([((0, 2),), ((2, 5), (8, 9))])
        ((0, 5), (8, 9))
    """
    result: list[tuple[int, int]] = []
    for low, high in (span for part in parts for span in part):
        if result and result[-1][1] == low:
            result[-1] = (result[-1][0], high)
        else:
            result.append((low, high))
    return tuple(result)
