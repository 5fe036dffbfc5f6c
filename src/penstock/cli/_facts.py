"""Facts about a table from the footers of its files; no data is read.

Footers are parsed by our own parser, since pyarrow's column metadata can crash the process on a hostile file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock._engine.parquet import thrift
from penstock._engine.parquet.footer import RowGroups, of_each, read_footers
from penstock._engine.plan.table import Table
from penstock.dataset import Dataset
from penstock.filters.literals import kind, plain
from penstock.model import ColumnRange, DataFiles, Snapshot
from penstock.schema import CellCodec, Codec, Field

__all__ = ["ColumnFacts", "PartitionFacts", "TableFacts", "first_files", "table_facts"]

CODEC, PLAIN_SIZE = 4, 6  # of a column chunk's metadata, in parquet.thrift
OFFSET_INDEX, COLUMN_INDEX = 4, 6  # of a column chunk
COMPRESSIONS = ("none", "snappy", "gzip", "lzo", "brotli", "lz4", "zstd", "lz4_raw")
CHUNK: thrift.Wanted = {thrift.META: {CODEC: int, PLAIN_SIZE: int, thrift.SIZE: int}, OFFSET_INDEX: int, COLUMN_INDEX: int}
FILTERABLE = frozenset({"bool", "int", "float", "decimal", "text", "timestamp", "date", "time", "duration"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnFacts:
    """Facts about a column.

    Attributes:
        name: Its name.
        arrow_type: Its type in the files.
        dtype: The NumPy type of its values.
        shape: The shape of one cell; None for open dimensions.
        codec: Its codec; None for plain Arrow columns.
        nullable: Whether cells can be null.
        partition: Whether its values are in directory names or in the table's log, and in no file.
        bytes: Bytes on storage.
        plain_bytes: Bytes without compression.
        compression: The compressions of its chunks, each one once.
        nulls: The number of nulls; None if statistics do not have it.
        low: The minimum in statistics; None if a row group has none.
        high: The maximum in statistics; None if a row group has none.
        bounded: Whether every row group has bounds.
        page_index: The share of its chunks that have a page index.
        filterable: Whether a filter can compare its values.
    """

    name: str
    arrow_type: str
    dtype: str
    shape: tuple[int | None, ...]
    codec: Codec | None
    nullable: bool
    partition: bool
    bytes: int
    plain_bytes: int
    compression: tuple[str, ...]
    nulls: int | None
    low: Any
    high: Any
    bounded: bool
    page_index: float
    filterable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """Facts about a partition column: the number of its values, and the first of them."""

    name: str
    arrow_type: str
    values: int
    first: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableFacts:
    """Facts about a table.

    Attributes:
        url: Its location.
        version: Its version; "" if it has none.
        files: The number of its data files.
        files_read: The number of files whose footers were read; rows, row groups and columns are those of these files.
        bytes: Bytes of all files on storage.
        rows: The rows of the files that were read, without deleted rows.
        rows_deleted: The deleted rows of these files.
        group_rows: The rows of each row group.
        group_bytes: The bytes of each row group on storage.
        columns: The columns.
        partitions: The partition columns.
    """

    url: str
    version: str
    files: int
    files_read: int
    bytes: int
    rows: int
    rows_deleted: int
    group_rows: npt.NDArray[np.int64]
    group_bytes: npt.NDArray[np.int64]
    columns: tuple[ColumnFacts, ...]
    partitions: tuple[PartitionFacts, ...]


class _Stored(NamedTuple):
    """The storage of a column: bytes, bytes without compression, compression numbers, chunks, chunks with a page index."""

    size: int = 0
    plain_size: int = 0
    compressions: frozenset[int] = frozenset()
    chunks: int = 0
    indexed: int = 0


def first_files(ds: Dataset, most: int) -> Dataset:
    """Return a plain dataset of the first files of a dataset's table.

    Example:
        >>> from penstock.testing import example
        >>> first_files(example(), 1).num_rows
        10
    """
    table = ds._table  # noqa: SLF001 - the table is not public
    files = table.snapshot.files
    if len(files) <= most:
        return Dataset(table)
    first = DataFiles(
        path=files.path.slice(0, most),
        size=files.size[:most],
        rows=files.rows[:most],
        stamp=files.stamp.slice(0, most),
        partitions=files.partitions.slice(0, most),
        deletes={file: rows for file, rows in files.deletes.items() if file < most},
    )
    return Dataset(Table(snapshot=replace(table.snapshot, files=first), filesystem=table.filesystem))


def table_facts(ds: Dataset, most_files: int = 50) -> TableFacts:
    """Return the facts about a dataset's table, from the footers of its first files.

    Raises:
        DataError: If a file is missing, or its footer cannot be read.

    Example:
        >>> from penstock.testing import example
        >>> facts = table_facts(example())
        >>> facts.rows, [column.name for column in facts.columns]
        (10, ['id', 'x', 'label'])
    """
    table = ds._table  # noqa: SLF001 - the table is not public
    snapshot = table.snapshot
    read = range(min(most_files, len(snapshot.files)))
    inside = [name for name in snapshot.schema.names if name not in snapshot.files.partitions.column_names]
    groups = read_footers(snapshot, read, inside, table.filesystem)
    parts = of_each(snapshot, read, table.filesystem, lambda footer: _stored(footer, _roots(snapshot, inside)), threads=16)
    stored = {name: _sum(part[name] for part in parts) for name in inside}
    deleted = sum(len(rows) for file, rows in snapshot.files.deletes.items() if file < len(read))
    return TableFacts(
        url=snapshot.table,
        version=snapshot.version,
        files=len(snapshot.files),
        files_read=len(read),
        bytes=int(snapshot.files.size.sum()),
        rows=int(groups.rows.sum()) - deleted,
        rows_deleted=deleted,
        group_rows=groups.rows,
        group_bytes=groups.size,
        columns=tuple(_column(snapshot, field, stored.get(field.name, _Stored()), groups) for field in ds.schema),
        partitions=_partitions(snapshot),
    )


def _roots(snapshot: Snapshot, columns: Sequence[str]) -> dict[bytes, str]:
    """Return the columns by their names in the files."""
    return {snapshot.names.get(column, column).encode(): column for column in columns}


def _stored(footer: bytes, roots: dict[bytes, str]) -> dict[str, _Stored]:
    """Return the storage of each column in one file."""
    leaves, _ = thrift.leaves(thrift.parse(footer, {thrift.SCHEMA: [thrift.ELEMENT]}))
    groups = thrift.parse(footer, {thrift.GROUPS: [{thrift.CHUNKS: [CHUNK]}]}).get(thrift.GROUPS, [])
    by_column = {column: list[_Stored]() for column in roots.values()}
    for group in groups:
        for leaf, chunk in zip(leaves, group.get(thrift.CHUNKS, []), strict=False):
            if leaf.path[0] in roots:
                by_column[roots[leaf.path[0]]].append(_chunk(chunk))
    return {column: _sum(chunks) for column, chunks in by_column.items()}


def _chunk(chunk: dict[int, Any]) -> _Stored:
    """Return the storage of one column chunk; an encrypted one has no metadata."""
    meta = chunk.get(thrift.META, {})
    size, whole = max(0, meta.get(thrift.SIZE, 0)), max(0, meta.get(PLAIN_SIZE, 0))
    compressions = frozenset({meta[CODEC]}) if CODEC in meta else frozenset[int]()
    return _Stored(size, whole, compressions, 1, int(OFFSET_INDEX in chunk))


def _sum(parts: Iterable[_Stored]) -> _Stored:
    parts = list(parts)
    compressions = frozenset[int]().union(*(part.compressions for part in parts))
    sums = [sum(part[at] for part in parts) for at in (0, 1, 3, 4)]  # type: ignore[misc] # these are numbers
    return _Stored(sums[0], sums[1], compressions, sums[2], sums[3])


def _column(snapshot: Snapshot, field: Field, stored: _Stored, groups: RowGroups) -> ColumnFacts:
    type_ = snapshot.schema.field(field.name).type
    partition = field.name in snapshot.files.partitions.column_names
    cells = isinstance(field.codec, CellCodec)
    ranges = groups.ranges.get(field.name)
    low, high, bounded, nulls = (None, None, False, None) if ranges is None else _statistics(ranges, groups)
    return ColumnFacts(
        name=field.name,
        arrow_type=str(type_),
        dtype=str(field.dtype),
        shape=field.shape,
        codec=field.codec,
        nullable=field.nullable,
        partition=partition,
        bytes=stored.size,
        plain_bytes=stored.plain_size,
        compression=tuple(_compression(number) for number in sorted(stored.compressions)),
        nulls=nulls,
        low=None if cells else low,
        high=None if cells else high,
        bounded=bounded,
        page_index=stored.indexed / stored.chunks if stored.chunks else 0.0,
        filterable=not cells and kind(plain(type_)) in FILTERABLE,
    )


def _compression(number: int) -> str:
    return COMPRESSIONS[number] if 0 <= number < len(COMPRESSIONS) else f"unknown ({number})"


def _statistics(ranges: ColumnRange, groups: RowGroups) -> tuple[Any, Any, bool, int | None]:
    """Return the bounds of a column, whether every row group has bounds, and the number of nulls."""
    nulls = int(ranges.nulls.sum()) if (ranges.nulls >= 0).all() else None
    filled = ranges.nulls != groups.rows  # a row group of nulls has no bounds
    bounded = bool(filled.any()) and all(not side.filter(pa.array(filled)).null_count for side in (ranges.low, ranges.high))
    return (_value(ranges.low, pc.min), _value(ranges.high, pc.max), True, nulls) if bounded else (None, None, False, nulls)


def _value(values: pa.Array, choose: Any) -> Any:
    """Return the minimum or maximum as a Python value; times as text, since they can be finer than Python's."""
    try:
        scalar = choose(values)
        value = scalar.cast(pa.string()).as_py() if pa.types.is_temporal(scalar.type) else scalar.as_py()
        return value + 0.0 if isinstance(value, float) else value  # writers use -0.0 as a bound of 0.0
    except (pa.ArrowException, ValueError, OverflowError):
        return None


def _partitions(snapshot: Snapshot) -> tuple[PartitionFacts, ...]:
    facts = []
    for name in snapshot.files.partitions.column_names:
        values = snapshot.files.partitions[name].unique()
        first = tuple(None if value is None else str(value) for value in values.slice(0, 5).cast(pa.string()).to_pylist())
        type_ = str(snapshot.schema.field(name).type)
        facts.append(PartitionFacts(name=name, arrow_type=type_, values=len(values), first=first))
    return tuple(facts)
