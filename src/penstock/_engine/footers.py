"""What footers say: the row groups of data files and the statistics of the columns a filter asks about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from penstock.errors import DataError
from penstock.model import ColumnRange, IntArray, Snapshot

__all__ = ["RowGroups", "read_footers"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowGroups:
    """The row groups of some files, one entry each, in the order of files and of row groups in them.

    Attributes:
        file: Index of the data file.
        number: Number in its file.
        rows: Rows stored.
        ranges: Statistics by column name.
    """

    file: npt.NDArray[np.int32]
    number: npt.NDArray[np.int32]
    rows: IntArray
    ranges: dict[str, ColumnRange] = field(default_factory=dict)


class _Gathering:
    """Statistics of one column, collected a row group at a time."""

    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind
        self.raw = pa.types.is_temporal(kind)
        self.low: list[Any] = []
        self.high: list[Any] = []
        self.nulls: list[int] = []

    def add(self, statistics: Any | None, kind: pa.DataType | None) -> None:
        """Add what one row group says of the column, which it holds as `kind`."""
        low = high = None
        if statistics is not None and statistics.has_min_max:
            # Temporal bounds are taken as the integers they are: Python's times would cut off nanoseconds.
            if not self.raw:
                low, high = statistics.min, statistics.max
            elif kind == self.kind:
                low, high = statistics.min_raw, statistics.max_raw
        self.low.append(low)
        self.high.append(high)
        self.nulls.append(statistics.null_count if statistics is not None and statistics.has_null_count else -1)

    def range(self) -> ColumnRange:
        nulls = np.array(self.nulls, dtype=np.int64)
        return ColumnRange(low=self._array(self.low), high=self._array(self.high), nulls=nulls)

    def _array(self, values: list[Any]) -> pa.Array:
        try:
            if self.raw:
                width = pa.int32() if self.kind.bit_width == pa.int32().bit_width else pa.int64()
                return pa.array(values, type=width).cast(self.kind)
            return pa.array(values, type=self.kind, from_pandas=True)  # a bound that is not a number is none
        except (pa.ArrowException, ValueError, OverflowError, TypeError):
            # A file may hold the column in another type; what it says of it is then no bound.
            return pa.nulls(len(values), type=self.kind)


def read_footers(snapshot: Snapshot, files: Iterable[int], columns: Sequence[str], filesystem: pafs.FileSystem) -> RowGroups:
    """Return the row groups of some data files, with statistics of some columns.

    Raises:
        DataError: If a file is not there, or has no footer that can be read.
    """
    gathering = {column: _Gathering(_leaf_type(snapshot.schema, column)) for column in columns}
    wanted = {_physical(snapshot, column): found for column, found in gathering.items()}
    file, number, rows = [], [], []
    for index in files:
        footer = _footer(snapshot.files.path[index].as_py(), filesystem)
        leaf = {footer.schema.column(at).path: at for at in range(footer.num_columns)} if wanted else {}
        kinds = _kinds(footer) if any(found.raw for found in wanted.values()) else {}
        for at in range(footer.num_row_groups):
            group = footer.row_group(at)
            file.append(index)
            number.append(at)
            rows.append(group.num_rows)
            for path, found in wanted.items():
                found.add(group.column(leaf[path]).statistics if path in leaf else None, kinds.get(path))
    ranges = {column: found.range() for column, found in gathering.items()}
    return RowGroups(
        file=np.array(file, dtype=np.int32),
        number=np.array(number, dtype=np.int32),
        rows=np.array(rows, dtype=np.int64),
        ranges=ranges,
    )


def _footer(path: str, filesystem: pafs.FileSystem) -> pq.FileMetaData:
    try:
        with filesystem.open_input_file(path) as source:
            return pq.read_metadata(source)
    except (OSError, pa.ArrowException) as error:
        msg = f"{path}: the footer cannot be read: {error}. A complete Parquet file was expected. Write the file again."
        raise DataError(msg) from error


def _kinds(footer: pq.FileMetaData) -> dict[str, pa.DataType]:
    """Return the Arrow types of a file's columns by name."""
    schema = footer.schema.to_arrow_schema()
    return dict(zip(schema.names, schema.types, strict=True))


def _physical(snapshot: Snapshot, column: str) -> str:
    """Return the path of a leaf column in the files, given its dotted name in the table."""
    root, dot, rest = column.partition(".")
    return snapshot.names.get(column) or snapshot.names.get(root, root) + dot + rest


def _leaf_type(schema: pa.Schema, column: str) -> pa.DataType:
    """Return the type of a column, or of a field nested in one."""
    if column in schema.names:
        kind = schema.field(column).type
    else:
        root, *inner = column.split(".")
        kind = schema.field(root).type
        for name in inner:
            kind = kind.field(name).type
    return kind.value_type if pa.types.is_dictionary(kind) else kind
