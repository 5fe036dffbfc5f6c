"""Footers of data files: row groups, schemas, and the statistics of columns that a filter reads.

Footers are parsed here because pyarrow ends the process on the column metadata of hostile or encrypted files.
A bound that is not certain is left out: at worst too much is read, never too little.
"""

from __future__ import annotations

import contextlib
import math
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from penstock._engine.parquet import thrift
from penstock._engine.parquet.thrift import Leaf, Only, ThriftError, Wanted, leaves, parse, parse_start
from penstock._engine.runtime.threads import parallel_map
from penstock._engine.storage.file_errors import changed_file_error, footer_error, missing_file_error
from penstock._engine.storage.filesystem import check_unchanged, opened_size
from penstock.errors import DataError
from penstock.filters.literals import array_of, kind, plain
from penstock.model import ColumnRange, IntArray, Snapshot

T = TypeVar("T")
Fields: TypeAlias = dict[int, Any]

TAIL = 64 * 1024  # bytes read at the end of a file, which nearly always hold the footer
ENDING = 8  # bytes at the very end: the footer's length and "PAR1"
MAX_BOUND_BYTES = 4096  # longer bounds are not worth their memory
WEIGHED_FILES = 4  # tables of more files have an unknown size of a row
WEIGHED_GROUPS = 16  # row groups of a file whose rows are weighed
MAX_CACHED_BYTES = 32 << 20  # bytes of the footers of a table that stay in memory
MAX_COUNT = 2**48  # rows or bytes of a row group, so that sums of them fit into 64 bits
OFFSET = 4  # bytes of the offset of a text in memory

# Physical types, and the bytes of a value in memory: old timestamps of twelve bytes become eight.
BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTES, FIXED = range(8)
MEMORY_WIDTHS = {BOOLEAN: 1, INT32: 4, INT64: 8, INT96: 8, FLOAT: 4, DOUBLE: 8}

# The family of a column's values: by its annotation, of today or of old files, or else by its physical type.
LOGICALS = {5: "decimal", 6: "date", 7: "time", 8: "timestamp", 10: "int", 15: "float"}
LOGICALS |= dict.fromkeys((1, 4, 12, 13, 14), "bytes")
CONVERTEDS = {5: "decimal", 6: "date", 7: "time", 8: "time", 9: "timestamp", 10: "timestamp"}
CONVERTEDS |= dict.fromkeys((0, 4, 19, 20), "bytes")
CONVERTEDS |= dict.fromkeys((11, 12, 13, 14), "uint") | dict.fromkeys((15, 16, 17, 18), "int")
PHYSICALS = {BOOLEAN: "bool", INT32: "int", INT64: "int", FLOAT: "float", DOUBLE: "float", BYTES: "bytes", FIXED: "bytes"}
STORED_AS = {"bool": {BOOLEAN}, "int": {INT32, INT64}, "uint": {INT32, INT64}, "float": {FLOAT, DOUBLE, FIXED}, "date": {INT32}}
STORED_AS |= {"time": {INT32, INT64}, "timestamp": {INT64}, "decimal": {INT32, INT64, BYTES, FIXED}, "bytes": {BYTES, FIXED}}
WIDTHS = {BOOLEAN: 1, INT32: 4, INT64: 8, FLOAT: 4, DOUBLE: 8, BYTES: 0}  # bytes in a file; 0 if each value has its own
FLOATS = {(FIXED, 2): "<e", (FLOAT, 4): "<f", (DOUBLE, 8): "<d"}
DAY, UNITS = 86_400 * 10**9, {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}  # in nanoseconds
LOGICAL_UNITS, CONVERTED_UNITS = {1: 10**6, 2: 10**3, 3: 1}, {7: 10**6, 8: 10**3, 9: 10**6, 10: 10**3}

UNCOMPRESSED, SIZES, UNENCODED = 6, 16, 1  # fields of a column chunk's metadata
_SIZE: Wanted = {thrift.META: {thrift.SIZE: int}}
_VALUES: Wanted = {thrift.META: {thrift.VALUES: int}}
_WEIGHT: Wanted = {thrift.META: {thrift.TYPE: int, thrift.VALUES: int, UNCOMPRESSED: int, SIZES: {UNENCODED: int}}}
_MISSING = Leaf(-1, (), False, {})  # noqa: FBT003 - a column that was added after the file was written


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowGroups:
    """The row groups of some files, in the order of files and of row groups in them.

    Attributes:
        file: The index of the data file of each row group.
        number: Its number in the file.
        rows: Its stored rows.
        size: Its bytes in the file.
        row_bytes: The largest average size in memory of a file's rows; 0 if there are too many files to look at.
        ranges: Statistics by column name, in the types that columns are compared in.
    """

    file: npt.NDArray[np.int32]
    number: npt.NDArray[np.int32]
    rows: IntArray
    size: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    row_bytes: float = 0.0
    ranges: dict[str, ColumnRange] = field(default_factory=dict)


class _StoredType(NamedTuple):
    """How a file stores a column: family, physical type, bytes of a value (0: any), unit or scale, and order of bounds."""

    family: str
    physical: int
    width: int
    unit: int
    signed: bool


class _Bounds(NamedTuple):
    """Bounds of a column as its Arrow type stores them, or None, and nulls, or -1, for each row group."""

    low: list[Any]
    high: list[Any]
    nulls: list[int]


class _Columns(NamedTuple):
    """The leaves of the requested columns in a file, and the one whose values are compared with the rows of row groups."""

    leaves: list[Leaf | None]
    counted: Leaf | None


class _FileStats(NamedTuple):
    """Rows and bytes of the row groups of a file, and the bounds of the requested columns."""

    rows: list[int]
    size: list[int]
    columns: list[_Bounds]


class FooterCache:
    """The footers of a table's files, so that each is read once: for the plan, for pyarrow and for blobs. Thread-safe."""

    def __init__(self) -> None:
        """Begin empty."""
        self._footers: OrderedDict[str, bytes] = OrderedDict()
        self._lock, self._nbytes = threading.Lock(), 0

    def __reduce__(self) -> tuple[type[FooterCache], tuple[()]]:
        """Begin empty in a copy, and in another process."""
        return FooterCache, ()

    def get(self, path: str, filesystem: pafs.FileSystem, *, size: int | None = None) -> bytes:
        """Return the bytes of a file's footer; `size` is the size that the file must have, where it is known."""
        footer = self._footers.get(path)
        if footer is None:
            footer = footer_of(path, filesystem, size=size)
            with self._lock:
                self._nbytes += len(footer) if path not in self._footers else 0
                self._footers[path] = footer
                while self._nbytes > MAX_CACHED_BYTES:
                    self._nbytes -= len(self._footers.popitem(last=False)[1])
        return footer

    def metadata(self, path: str) -> pq.FileMetaData | None:
        """Return the footer of a file as pyarrow has it; None if the file's footer was not read."""
        footer = self._footers.get(path)
        return None if footer is None else pq.read_metadata(pa.BufferReader(_as_file(footer)))


def read_footers(
    snapshot: Snapshot,
    files: Sequence[int],
    columns: Sequence[str],
    filesystem: pafs.FileSystem,
    *,
    threads: int = 16,
    footers: FooterCache | None = None,
) -> RowGroups:
    """Return the row groups of some data files, with statistics of some columns, by dotted names.

    A column that a file does not have is null in all its rows, unless the table maps its columns to other names. Of a column
    below a list nothing is known.

    Example:
        >>> from penstock.testing import MemoryFormat
        >>> table = MemoryFormat.of({"id": range(10)}, row_group_rows=4)
        >>> groups = read_footers(table.snapshot(table.place), [0], ["id"], table.filesystem)
        >>> groups.rows.tolist(), groups.ranges["id"].high.to_pylist()
        ([4, 4, 2], [3, 7, 9])
    """
    requested = [_path_and_type(snapshot, column) for column in columns]
    paths, types = [path for path, _ in requested], [type_ for _, type_ in requested]
    missing = _MISSING if snapshot.stored is None else None
    columns_in = by_schema(lambda every, roots: _find_columns(every, roots, paths, missing))
    weights: list[float] = []

    def parse_file(footer: bytes) -> _FileStats:
        if len(files) <= WEIGHED_FILES:
            weights.append(row_bytes(footer))
        return _parse_stats(footer, columns_in(footer), types)

    stats = of_each(snapshot, files, filesystem, parse_file, threads, footers)
    counts = [len(one.rows) for one in stats]
    return RowGroups(
        row_bytes=max(weights, default=0.0),
        file=np.repeat(np.array(files, dtype=np.int32), counts),
        number=np.array(_flatten(map(range, counts)), dtype=np.int32),
        rows=np.array(_flatten(one.rows for one in stats), dtype=np.int64),
        size=np.array(_flatten(one.size for one in stats), dtype=np.int64),
        ranges={column: _range([one.columns[at] for one in stats], types[at]) for at, column in enumerate(columns)},
    )


def row_bytes(footer: bytes) -> float:
    """Return the average size of a row in memory: exact for numbers and lists of them, a lower limit for text.

    Text in a dictionary takes few bytes in the file. Some writers store its size without the dictionary.
    """
    try:
        every, _ = leaves(parse(footer, {thrift.SCHEMA: [thrift.ELEMENT]}))
        tree: Wanted = {thrift.ROWS: int, thrift.CHUNKS: Only(places={leaf.place: _WEIGHT for leaf in every})}
        groups = parse(footer, {thrift.GROUPS: [tree]}).get(thrift.GROUPS, [])[:WEIGHED_GROUPS]
    except ThriftError:
        return 0.0
    rows = sum(group.get(thrift.ROWS, 0) for group in groups)
    total = 0
    for group in groups:
        chunks = group.get(thrift.CHUNKS) or []
        for leaf in every:
            meta = (chunks[leaf.place] or {}).get(thrift.META, {}) if leaf.place < len(chunks) else {}
            total += _memory_bytes(meta, leaf.element)
    return total / rows if rows > 0 else 0.0


def _memory_bytes(meta: Fields, element: Fields) -> int:
    """Return the bytes of a column chunk's values in memory."""
    physical: int = meta.get(thrift.TYPE, 0)
    values: int = max(0, meta.get(thrift.VALUES, 0))
    if physical == BYTES:
        text: int = max(meta.get(UNCOMPRESSED, 0), meta.get(SIZES, {}).get(UNENCODED, 0))
        return text + OFFSET * values
    width: int = max(0, element.get(thrift.LENGTH, 0)) if physical == FIXED else MEMORY_WIDTHS.get(physical, 0)
    return values * width


def read_schema(path: str, filesystem: pafs.FileSystem | bytes) -> pa.Schema:
    """Return the Arrow schema of one data file, with its metadata; `filesystem` may be the bytes of the file.

    Example:
        >>> from penstock.testing import MemoryFormat
        >>> table = MemoryFormat.of({"id": range(10)}, row_group_rows=4)
        >>> read_schema("part-0.parquet", table.filesystem).names
        ['id']
    """
    footer = footer_of(path, filesystem)
    try:
        every, _ = leaves(parse(footer, {thrift.SCHEMA: [thrift.ELEMENT]}))
        whole = _as_file(footer)
        file = pq.ParquetFile(pa.BufferReader(whole))  # its schema has UUID and JSON, that of `pq.read_metadata` has not
        by_spark = any(key.startswith(b"org.apache.spark.") for key in file.metadata.metadata or ())
        if by_spark and any(leaf.element[thrift.TYPE] == INT96 for leaf in every):  # which Spark writes in microseconds
            file = pq.ParquetFile(pa.BufferReader(whole), coerce_int96_timestamp_unit="us")
    except (OSError, ValueError, pa.ArrowException) as error:
        raise footer_error(path, error) from error
    return file.schema_arrow


def _as_file(footer: bytes) -> bytes:
    """Return a footer as the end of a Parquet file."""
    return footer + len(footer).to_bytes(4, "little") + b"PAR1"


def of_each(
    snapshot: Snapshot,
    files: Sequence[int],
    filesystem: pafs.FileSystem,
    parse_footer: Callable[[bytes], T],
    threads: int,
    footers: FooterCache | None = None,
) -> list[T]:
    """Return what `parse_footer` returns for the footer of each file, in their order. Footers are read in parallel."""

    def parse_file(file: int) -> T:
        path = snapshot.files.path[file].as_py()
        try:
            read = footer_of if footers is None else footers.get
            return parse_footer(read(path, filesystem, size=opened_size(snapshot, file)))
        except (DataError, ThriftError) as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise missing_file_error(snapshot, file, path) from error
            with contextlib.suppress(OSError):  # without the file's state there is nothing to compare
                check_unchanged(snapshot, file, filesystem, path)
            if isinstance(error, ThriftError):
                raise footer_error(path, error) from error
            raise

    def parse_files(part: Sequence[int]) -> list[T]:
        return [parse_file(file) for file in part]

    size = max(1, min(32, len(files) // (4 * threads)))  # a task for each file would cost more than its footer
    parts = [files[at : at + size] for at in range(0, len(files), size)]
    return _flatten(parallel_map(parse_files, parts, threads))


def footer_of(path: str, place: pafs.FileSystem | bytes, *, size: int | None = None) -> bytes:
    """Return the bytes of a file's footer."""
    try:
        with pa.BufferReader(place) if isinstance(place, bytes) else place.open_input_file(path) as source:
            expected, size = size, source.size()
            if expected not in (None, size):
                raise changed_file_error(path)
            tail = read_tail(size, lambda start, count: source.read_at(count, start))
    except (OSError, pa.ArrowException) as error:
        raise footer_error(path, error) from error
    if tail[-4:] == b"PARE":
        raise DataError(f"{path}: the file is encrypted. Encryption is not supported. Write the file again without it.")
    if tail[-4:] != b"PAR1" or size < ENDING + 4:
        raise DataError(
            f"{path}: not a Parquet file: it has {size} bytes and ends in {tail[-4:]!r}. At least 12 that end in b'PAR1' were "
            "expected. Write the file again, or keep files of other kinds out of the table."
        )
    length = int.from_bytes(tail[-ENDING:-4], "little")
    if length + ENDING > len(tail):
        raise footer_error(path, f"it should have {length} bytes, and the file has {size}")
    return tail[-ENDING - length : -ENDING]


def read_tail(size: int, read: Callable[[int, int], bytes]) -> bytes:
    """Return the end of a file with all of its footer, given the bytes of the file."""
    start = max(0, size - TAIL)
    tail = read(start, size - start)
    begin = size - ENDING - int.from_bytes(tail[-ENDING:-4], "little")
    return read(begin, start - begin) + tail if 0 <= begin < start and tail[-4:] == b"PAR1" else tail


def by_schema(derive: Callable[[list[Leaf], set[bytes]], T]) -> Callable[[bytes], T]:
    """Return a function from a footer to a value that depends on its schema only, computed once for equal schemas."""
    known: list[tuple[bytes, T]] = []

    def of(footer: bytes) -> T:
        for start, value in tuple(known):
            if footer.startswith(start):
                return value
        fields, end = parse_start(footer, {thrift.SCHEMA: [thrift.ELEMENT]})
        value = derive(*leaves(fields))
        known[:] = [*known[-7:], (footer[:end], value)]
        return value

    return of


def _find_columns(every: list[Leaf], roots: set[bytes], paths: list[tuple[bytes, ...]], missing: Leaf | None) -> _Columns:
    """Return the leaves of some columns of a file; None for a column that is below a list, no leaf, or ambiguous."""
    by_path: dict[tuple[bytes, ...], Leaf | None] = {}
    for leaf in every:
        by_path[leaf.path] = None if leaf.repeated or leaf.path in by_path else leaf
    lower = {root.lower() for root in roots}
    columns = [by_path.get(path) if path[0] in roots or path[0].lower() in lower else missing for path in paths]
    return _Columns(columns, next((leaf for leaf in every if not leaf.repeated), every[0] if every else None))


def _parse_stats(footer: bytes, columns: _Columns, types: list[pa.DataType]) -> _FileStats:
    """Return the row groups of a footer, with the bounds of some columns."""
    counted = columns.counted
    places = [leaf.place for leaf in columns.leaves if leaf]
    chunks = Only(places={**({} if counted is None else {counted.place: _VALUES}), **dict.fromkeys(places, thrift.CHUNK)})
    orders = {thrift.ORDERS: Only(places={place: {1: {}} for place in places})} if places else {}
    wanted: Wanted = [{thrift.ROWS: int, thrift.COMPRESSED: int, thrift.CHUNKS: chunks}]
    fields = parse(footer, {thrift.TOTAL: int, thrift.GROUPS: wanted, **orders})
    if thrift.GROUPS not in fields:
        raise ThriftError("it has no row groups")
    groups = fields[thrift.GROUPS]
    for number, group in enumerate(groups):
        _check_rows(number, group, counted)
    rows, size = [group[thrift.ROWS] for group in groups], [group.get(thrift.COMPRESSED, 0) for group in groups]
    if fields.get(thrift.TOTAL, sum(rows)) != sum(rows):
        raise ThriftError(f"it says that the file has {fields[thrift.TOTAL]} rows, and its row groups have {sum(rows)}")
    if any(total <= 0 < count for total, count in zip(size, rows, strict=True)):  # old files have sizes of chunks only
        sized = parse(footer, {thrift.GROUPS: [{thrift.CHUNKS: [_SIZE]}]})[thrift.GROUPS]
        size = [sum(map(stored_size, group.get(thrift.CHUNKS, []))) for group in sized]
    size = [min(max(0, total), MAX_COUNT) for total in size]
    return _FileStats(
        rows, size, [_column_bounds(fields, leaf, type_) for leaf, type_ in zip(columns.leaves, types, strict=True)]
    )


def _check_rows(number: int, group: Fields, counted: Leaf | None) -> None:
    """Check the rows of a row group: every row has one value in a column, or at least one in a column of lists."""
    rows, chunks = group.get(thrift.ROWS), group.get(thrift.CHUNKS, [])
    if rows is None or not 0 <= rows < MAX_COUNT:
        raise ThriftError(f"it says that row group {number} has {rows} rows")
    if counted is None or counted.place >= len(chunks):
        return
    values = chunks[counted.place].get(thrift.META, {}).get(thrift.VALUES, rows)
    if values < rows or (values > rows and not counted.repeated):
        name = b".".join(counted.path).decode(errors="replace")
        raise ThriftError(f"it says that row group {number} has {rows} rows, and column {name!r} has {values} values in it")


def stored_size(chunk: Fields) -> int:
    """Return the bytes of a column chunk in its file; 0 if it is encrypted."""
    return max(0, int(chunk.get(thrift.META, {}).get(thrift.SIZE, 0)))


def _column_bounds(footer: Fields, leaf: Leaf | None, type_: pa.DataType) -> _Bounds:
    """Return the bounds of a column of an Arrow type."""
    groups, orders = footer[thrift.GROUPS], footer.get(thrift.ORDERS, [])
    if leaf is None or leaf is _MISSING:
        unknown = [None] * len(groups)
        return _Bounds(unknown, unknown, [-1 if leaf is None else group[thrift.ROWS] for group in groups])
    column = _Bounds([], [], [])
    stored = _stored_type(leaf.element, type_, ordered=leaf.place < len(orders) and 1 in orders[leaf.place])
    for group in groups:
        chunks = group.get(thrift.CHUNKS, [])
        meta = chunks[leaf.place].get(thrift.META, {}) if leaf.place < len(chunks) else {}
        same = meta.get(thrift.PATH) == list(leaf.path) and meta.get(thrift.TYPE) == leaf.element[thrift.TYPE]
        statistics = meta.get(thrift.STATISTICS, {}) if same else {}
        low, high = (None, None) if stored is None else _bounds(statistics, stored, type_)
        nulls = statistics.get(thrift.NULLS, -1)
        column.low.append(low)
        column.high.append(high)
        column.nulls.append(nulls if 0 <= nulls <= group[thrift.ROWS] else -1)
    return column


def _stored_type(element: Fields, type_: pa.DataType, *, ordered: bool) -> _StoredType | None:
    """Return how a column is stored; None if its statistics say nothing about values of an Arrow type."""
    (family, unit), physical = _family(element), element[thrift.TYPE]
    signed = physical < BYTES and family != "uint"
    fits = family.removeprefix("u") == kind(type_) or (family, kind(type_)) == ("bytes", "text")
    if not fits or not (signed or ordered) or physical not in STORED_AS[family]:
        return None
    width = WIDTHS[physical] if physical in WIDTHS else element.get(thrift.LENGTH, 0)
    special = {"float": (physical, width) in FLOATS, "decimal": unit == getattr(type_, "scale", None)}
    sound = special.get(family, unit > 0 or not pa.types.is_temporal(type_))
    return _StoredType(family, physical, width, unit, signed) if sound else None


def _family(element: Fields) -> tuple[str, int]:
    """Return the family of a column's values, and their unit of time or scale; 0 if they have none."""
    if thrift.LOGICAL in element:
        number, parameters = next(iter(element[thrift.LOGICAL].items()), (0, dict[int, Any]()))
        family, scale = LOGICALS.get(number, "-"), parameters.get(1, -1)
        if family == "int":
            signed = parameters.get(2)
            return "-" if signed is None else "int" if signed else "uint", 0
        unit = next((LOGICAL_UNITS[at] for at in parameters.get(2, ())), 0)
    else:
        number, scale = element.get(thrift.CONVERTED, -1), element.get(thrift.SCALE, 0)
        family = CONVERTEDS.get(number, "-") if thrift.CONVERTED in element else PHYSICALS.get(element[thrift.TYPE], "-")
        unit = CONVERTED_UNITS.get(number, 0)
    return family, {"decimal": scale, "date": DAY}.get(family, unit)


def _bounds(statistics: Fields, stored: _StoredType, type_: pa.DataType) -> tuple[Any, Any]:
    """Return the bounds of a column chunk as the Arrow type stores them; None if they are not certain."""
    old_low, old_high = (statistics.get(thrift.OLD_LOW), statistics.get(thrift.OLD_HIGH)) if stored.signed else (None, None)
    low = _bound(statistics.get(thrift.LOW, old_low), stored, type_, up=False)
    high = _bound(statistics.get(thrift.HIGH, old_high), stored, type_, up=True)
    return (low, high) if low is None or high is None or low <= high else (None, None)


def _bound(raw: bytes | None, stored: _StoredType, type_: pa.DataType, *, up: bool) -> Any:
    """Return one bound, rounded up or down."""
    if raw is None or stored.width not in (0, len(raw)) or (stored.family == "decimal" and not raw):
        return None
    if stored.family == "bytes":
        return _text_bound(raw, type_, up=up)
    if stored.family == "float":
        return None if math.isnan(value := struct.unpack(FLOATS[stored.physical, stored.width], raw)[0]) else value
    number = int.from_bytes(raw, "little" if stored.physical < BYTES else "big", signed=stored.family != "uint")
    if pa.types.is_temporal(type_):
        unit = DAY if pa.types.is_date32(type_) else UNITS[getattr(type_, "unit", "ms")]
        number = -(-number * stored.unit // unit) if up else number * stored.unit // unit
    low, high = _limits(type_)
    return number if low <= number <= high else None


def _text_bound(raw: bytes, type_: pa.DataType, *, up: bool) -> str | bytes | None:
    """Return a bound of bytes or text. A lower bound may be cut; the file may have cut text in the middle of a letter."""
    if up and len(raw) > MAX_BOUND_BYTES:
        return None
    try:
        return raw[:MAX_BOUND_BYTES] if kind(type_) == "bytes" else raw[:MAX_BOUND_BYTES].decode()
    except UnicodeDecodeError as error:
        return None if up else raw[: error.start].decode()


@cache
def _limits(type_: pa.DataType) -> tuple[int, int]:
    """Return the smallest and the largest integer of a type."""
    if pa.types.is_decimal(type_):
        return 1 - 10**type_.precision, 10**type_.precision - 1
    if pa.types.is_time(type_):
        return 0, DAY // UNITS[type_.unit]
    low = 0 if pa.types.is_boolean(type_) or pa.types.is_unsigned_integer(type_) else -(2 ** (type_.bit_width - 1))
    return low, low + 2**type_.bit_width - 1


def _range(files: list[_Bounds], type_: pa.DataType) -> ColumnRange:
    """Return the bounds of a column in several files as arrays."""
    low, high = (_array(_flatten(values), type_) for values in ([one.low for one in files], [one.high for one in files]))
    return ColumnRange(low=low, high=high, nulls=np.array(_flatten(one.nulls for one in files), dtype=np.int64))


def _array(values: list[Any], type_: pa.DataType) -> pa.Array:
    """Return an array of values as a type stores them, with a null for each None."""
    known = np.array([value is not None for value in values], dtype=np.bool_)
    if not known.any():
        return pa.nulls(len(values), type_)
    present = [bool(value) if pa.types.is_boolean(type_) else value for value in values if value is not None]
    return array_of(present, type_).take(pa.array(np.cumsum(known) - 1, pa.int64(), mask=~known))


def _flatten(lists: Iterable[Iterable[Any]]) -> list[Any]:
    return list(chain.from_iterable(lists))


def _path_and_type(snapshot: Snapshot, column: str) -> tuple[tuple[bytes, ...], pa.DataType]:
    """Return the names of a column in the files, from the root, and the type it is compared in, given its dotted name."""
    root, *inner = [column] if column in snapshot.schema.names else column.split(".")
    type_ = snapshot.schema.field(root).type
    for name in inner:
        type_ = type_.field(name).type
    whole = snapshot.names.get(column, "") if inner else ""
    names = whole.split(".") if whole else [snapshot.names.get(root, root), *inner]
    return tuple(name.encode() for name in names), plain(type_)


def column_bytes(
    snapshot: Snapshot, files: Sequence[int], columns: Sequence[str], filesystem: pafs.FileSystem, *, threads: int = 16
) -> dict[str, int]:
    """Return the bytes of top-level columns in some data files.

    Example:
        >>> from penstock.testing import MemoryFormat
        >>> table = MemoryFormat.of({"id": range(10)}, row_group_rows=10)
        >>> column_bytes(table.snapshot(table.place), [0], ["day"], table.filesystem)
        {'day': 0}
    """
    roots = [snapshot.names.get(column, column).encode() for column in columns]
    places_in = by_schema(lambda every, _: [[leaf.place for leaf in every if leaf.path[0] == root] for root in roots])

    def parse_file(footer: bytes) -> list[int]:
        places = places_in(footer)
        wanted = {thrift.CHUNKS: Only(places={place: _SIZE for of_root in places for place in of_root})}
        groups = parse(footer, {thrift.GROUPS: [wanted]}).get(thrift.GROUPS, [])
        chunks = [group.get(thrift.CHUNKS, []) for group in groups]
        return [sum(stored_size(one[at]) for one in chunks for at in of_root if at < len(one)) for of_root in places]

    sizes = of_each(snapshot, files, filesystem, parse_file, threads)
    return {column: sum(one[at] for one in sizes) for at, column in enumerate(columns)}
