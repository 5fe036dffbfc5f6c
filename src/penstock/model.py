"""The nouns that cross doorways: what a table holds, what is read of it, and how far a reader has come.

Values only: frozen, compared by content, made by pure rooms and carried out by others.
What there may be a million of (files, units) is held in arrays, one entry each.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    "Read",
    "Rows",
    "SequenceLinks",
    "Snapshot",
    "Units",
    "Window",
]

IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
Rows: TypeAlias = slice | IntArray
"""Rows of a unit, counted among the rows kept of it: a range, or explicit ascending numbers."""

ALIAS, COLUMN_ID, UNMAPPED = b"penstock:alias", b"penstock:id", b"penstock:unmapped"
"""Notes of a stored field: another name that files could have it by; its id; and that this name should not count."""

DROPPED = b"penstock:dropped"
"""The note of a stored schema that once had columns which it has no more."""

WHOLE_FILE = -1
"""The row group number of a unit that is a whole file."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Place:
    """A location that can be read.

    Attributes:
        url: How it was named.
        filesystem: The filesystem.
        path: The path there; where several were named, the directory that they share.
        paths: The files and directories, where several were named.
    """

    url: str
    filesystem: pafs.FileSystem
    path: str
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ColumnRange:
    """What statistics say of one column, one entry per file or row group.

    Attributes:
        low: A lower bound of the values; null where none is known.
        high: An upper bound of the values; null where none is known.
        nulls: The number of nulls; -1 where it is not known.
    """

    low: pa.Array
    high: pa.Array
    nulls: IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DataFiles:
    """The data files of a snapshot, one entry each, in the table's stored order.

    Attributes:
        path: Where each file lies, as the table's filesystem names it.
        size: Bytes on storage.
        rows: Rows stored; -1 where only the file's footer knows.
        stamp: What changes when the file is replaced (an etag, a modification time); "" where nothing is known.
        partitions: Partition values, a column each, a row per file; no column where the table has none.
        ranges: Statistics of whole files by column name, where the table's log has them.
        deletes: For a file's index, the ascending numbers of its rows that are deleted.
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
    """A table at one moment: the facts a table format states, and no decision.

    Attributes:
        table: What the table is called in messages and in saved states; its URL.
        version: Which of the table's states this is; "" where the format has no versions.
        schema: The columns as the user sees them, partition columns included.
        files: The data files.
        names: The physical name of each column whose name in the files differs, and by dotted names of fields inside.
        fields: What the schema stored with the table says of columns; none of those that it does not name.
        sampled: Whether the columns are those of some files only, so that another may turn out to have more.
        stored: The same columns as `schema`, with the names that files give them and their fields inside, and with their
            ids (`PARQUET:field_id`) where files are searched by those; None where names are as in `schema`. Notes of
            fields (`ALIAS`, `COLUMN_ID`, `UNMAPPED`) and of the schema (`DROPPED`) help to tell a file that is older than
            a column from one that calls it otherwise.
        origins: The version that added each file, by its path, where the snapshot is what several versions have added.
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
    """What was added to a table between two of its states.

    Attributes:
        snapshot: The files that hold it, as a table of their own.
        column: The column that tells what became of each row; None where all rows of the files were added.
        kinds: What that says of rows that were added; a null says so too.
    """

    snapshot: Snapshot
    column: str | None
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Units:
    """What is read in one go, one entry each: row groups, ranges of their rows, or whole small files.

    Attributes:
        file: Index of the data file.
        row_group: Number of the row group in its file; -1 for a whole file.
        start: First row of the unit, counted in its row group (in its file, for a whole file).
        first: First row of the unit, counted in its file.
        rows: Rows stored in the unit.
        counts: Rows kept of it, less deletes and filtered rows.
        residual: Whether the row filter has yet to be run on it; where not, every row passes.
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
    """Some rows of one unit, counted among the rows kept of it."""

    unit: int
    rows: Rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Window:
    """Rows that are held together: what to read, and in which order to hand it out.

    Attributes:
        reads: The parts of units to read, in this order.
        take: For each row handed out, its place among the rows read; None to hand them out as they were read.
    """

    reads: tuple[Read, ...]
    take: IntArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """How the rest of an epoch was dealt to ranks, and how much of it each has consumed.

    A rank owns `lanes / ranks` consecutive lanes and takes `stride` rows of each in turn.

    Attributes:
        lanes: Parts of equal length that the stream was cut into.
        stride: Rows that a rank takes of one of its lanes before it goes on to the next.
        ranks: The number of ranks.
        rows: Rows that each rank has consumed; one number where all have consumed as many.
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
    """How far the readers of an order have come: an epoch, and the deals made in it so far."""

    epoch: int = 0
    assignments: tuple[Assignment, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class SequenceLinks:
    """What lies at the borders of units whose sequences go on from one to the next.

    The first arrays have an entry for each row that a group begins with in a unit, as many as a sequence needs which began
    before them; by group, then by unit, then by time.

    Attributes:
        counts: Sequences that begin in each unit.
        group: The number of the group.
        unit: The unit.
        row: The number of the row in its unit.
        time: When it was.
        held_unit: A unit, for each group in it whose rows may not begin a sequence from its start on; ascending.
        held_row: The last row of the group that may not, since a sequence of an earlier unit has not ended before.
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
        """The entries by unit, and the unit of each."""
        order = np.argsort(self.unit, kind="stable")
        return order, self.unit[order]

    @cached_property
    def _ends(self) -> tuple[IntArray, IntArray]:
        """Where, after each entry, those of its unit and group end, and those of its group."""
        every = np.arange(1, len(self.group) + 1)
        group = np.append(self.group, -1)
        unit = np.append(self.unit, -1)
        groups = every[group[1:] != group[:-1]]
        parts = np.union1d(groups, every[unit[1:] != unit[:-1]])
        return tuple(ends[np.searchsorted(ends, every)] for ends in (parts, groups))  # type: ignore[return-value] # two

    def entries_of(self, unit: int) -> IntArray:
        """Return the numbers of a unit's entries."""
        order, units = self._by_unit
        return order[slice(*np.searchsorted(units, [unit, unit + 1]))]

    def following(self, entries: IntArray, most: int) -> tuple[IntArray, IntArray]:
        """Return, for entries, from where to where the entries of the same group in later units go, `most` at most."""
        parts, groups = self._ends
        low = parts[entries]
        return low, np.minimum(low + most, groups[entries])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """What is read of a table, decided: its units, and the fingerprint of all that decides rows and their order.

    Attributes:
        snapshot: The table's facts.
        units: What is read, in stored order, with the rows that pass the filter.
        counts: Rows handed out of each unit: those of `units`, less what a limit cuts off.
        fingerprint: Names the files, rows, filter, shuffle, window and seed; never columns, maps or batches.
        mixture: Of a mixture, whose rows are slots, what it is made of, as JSON can hold it; None of a table.
        links: The links of sequences that continue in the next unit; None if no sequence does.
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
