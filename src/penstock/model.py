"""The nouns that cross doorways: what a table holds, what is read of it, and how far a reader has come.

Values only: frozen, compared by content, made by pure rooms and carried out by others.
What there may be a million of (files, units) is held in arrays, one entry each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import fs as pafs

from penstock.schema import Field

__all__ = [
    "BoolArray",
    "ColumnRange",
    "DataFiles",
    "Deal",
    "IntArray",
    "Place",
    "Plan",
    "Position",
    "Read",
    "Rows",
    "Snapshot",
    "Units",
    "Window",
]

IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
Rows: TypeAlias = slice | IntArray
"""Rows of a unit, counted among the rows kept of it: a range, or explicit ascending numbers."""

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
        names: The physical name of each column whose name in the files differs.
        fields: What the schema stored with the table says of columns; none of those that it does not name.
        sampled: Whether the columns are those of some files only, so that another may turn out to have more.
    """

    table: str
    version: str
    schema: pa.Schema
    files: DataFiles
    names: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, Field] = field(default_factory=dict)
    sampled: bool = False


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
class Deal:
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
    deals: tuple[Deal, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """What is read of a table, decided: its units, and the fingerprint of all that decides rows and their order.

    Attributes:
        snapshot: The table's facts.
        units: What is read, in stored order, with the rows that pass the filter.
        counts: Rows handed out of each unit: those of `units`, less what a limit cuts off.
        fingerprint: Names the files, rows, filter, shuffle, window and seed; never columns, maps or batches.
    """

    snapshot: Snapshot
    units: Units
    counts: IntArray
    fingerprint: str

    @property
    def num_rows(self) -> int:
        """The rows of an epoch."""
        return int(self.counts.sum())
