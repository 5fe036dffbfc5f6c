"""What footers say: the row groups of data files and the statistics of the columns a filter asks about.

Footers are parsed here and not by pyarrow, whose column metadata ends the process where a file is hostile or encrypted.
A bound that is not certain is left out: at worst too much is read, never too little.
"""

from __future__ import annotations

import contextlib
import math
import struct
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
from penstock._engine.runtime.threads import run_over
from penstock._engine.storage.file_errors import (
    changed_file_error,
    check_unchanged,
    footer_error,
    missing_file_error,
    opened_size,
)
from penstock.errors import DataError
from penstock.filters.literals import array_of, kind, plain
from penstock.model import ColumnRange, IntArray, Snapshot

__all__ = [
    "RowGroups",
    "by_schema",
    "column_bytes",
    "footer_of",
    "of_each",
    "read_footers",
    "read_schema",
    "row_bytes",
    "stored_size",
]

VALUES, UNCOMPRESSED, SIZES, UNENCODED = 5, 6, 16, 1
BYTES, FIXED = 6, 7
MEMORY_WIDTHS = {0: 1, 1: 4, 2: 8, 3: 8, 4: 4, 5: 8}
"""Bytes of a value in memory by its physical type; old timestamps of twelve bytes take eight."""

OFFSET = 4
"""Bytes that say where a text begins."""

LOOKED_AT = 16
"""Row groups of a file that are looked at."""

_META: Wanted = {
    thrift.META: {thrift.TYPE: int, VALUES: int, UNCOMPRESSED: int, SIZES: {UNENCODED: int}},
}


def row_bytes(footer: bytes) -> float:
    """Return what a row of a file takes in memory: exactly for numbers and lists of them, at least so much for text.

    Text in a dictionary takes little on storage, and some writers tell how much it is without.
    """
    try:
        every, _ = leaves(parse(footer, {thrift.SCHEMA: [thrift.ELEMENT]}))
        tree: Wanted = {thrift.ROWS: int, thrift.CHUNKS: Only(places={leaf.place: _META for leaf in every})}
        groups = parse(footer, {thrift.GROUPS: [tree]}).get(thrift.GROUPS, [])[:LOOKED_AT]
    except ThriftError:
        return 0.0
    rows = sum(group.get(thrift.ROWS, 0) for group in groups)
    taken = 0
    for group in groups:
        chunks = group.get(thrift.CHUNKS) or []
        for leaf in every:
            meta = (chunks[leaf.place] or {}).get(thrift.META, {}) if leaf.place < len(chunks) else {}
            taken += _taken(meta, leaf.element)
    return taken / rows if rows > 0 else 0.0


def _taken(meta: dict[int, Any], element: dict[int, Any]) -> int:
    """Return what the values of a column chunk take in memory."""
    kind: int = meta.get(thrift.TYPE, 0)
    values: int = max(0, meta.get(VALUES, 0))
    if kind == BYTES:
        text: int = max(meta.get(UNCOMPRESSED, 0), meta.get(SIZES, {}).get(UNENCODED, 0))
        return text + OFFSET * values
    width: int = max(0, element.get(thrift.LENGTH, 0)) if kind == FIXED else MEMORY_WIDTHS.get(kind, 0)
    return values * width


T = TypeVar("T")
Fields: TypeAlias = dict[int, Any]

TAIL = 64 * 1024  # bytes read at the end of a file, in the hope that the footer is among them
ENDING = 8  # bytes at the very end: the footer's length and "PAR1"
LONGEST = 4096  # bytes of a bound; longer ones are not worth their memory
WEIGHED = 4  # files of a table whose rows are all weighed
MOST = 2**48  # rows or bytes of a row group, so that sums of them stay within 64 bits
_SIZE: Wanted = {thrift.META: {thrift.SIZE: int}}
_VALUES: Wanted = {thrift.META: {thrift.VALUES: int}}
_MISSING = Leaf(-1, (), False, {})  # noqa: FBT003 - a column that was added after the file was written

# What the values of a column are: by its annotation, of today or of old files, or else by its physical type.
BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTES, FIXED = range(8)
LOGICALS = {5: "decimal", 6: "date", 7: "time", 8: "timestamp", 10: "int", 15: "float"}
LOGICALS |= dict.fromkeys((1, 4, 12, 13, 14), "bytes")
CONVERTEDS = {5: "decimal", 6: "date", 7: "time", 8: "time", 9: "timestamp", 10: "timestamp"}
CONVERTEDS |= dict.fromkeys((0, 4, 19, 20), "bytes")
CONVERTEDS |= dict.fromkeys((11, 12, 13, 14), "uint") | dict.fromkeys((15, 16, 17, 18), "int")
PHYSICALS = {BOOLEAN: "bool", INT32: "int", INT64: "int", FLOAT: "float", DOUBLE: "float", BYTES: "bytes", FIXED: "bytes"}
STORED_AS = {"bool": {BOOLEAN}, "int": {INT32, INT64}, "uint": {INT32, INT64}, "float": {FLOAT, DOUBLE, FIXED}, "date": {INT32}}
STORED_AS |= {"time": {INT32, INT64}, "timestamp": {INT64}, "decimal": {INT32, INT64, BYTES, FIXED}, "bytes": {BYTES, FIXED}}
WIDTHS = {BOOLEAN: 1, INT32: 4, INT64: 8, FLOAT: 4, DOUBLE: 8, BYTES: 0}  # in bytes; 0 where each value has its own
FLOATS = {(FIXED, 2): "<e", (FLOAT, 4): "<f", (DOUBLE, 8): "<d"}
DAY, UNITS = 86_400 * 10**9, {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}  # in nanoseconds
LOGICAL_UNITS, CONVERTED_UNITS = {1: 10**6, 2: 10**3, 3: 1}, {7: 10**6, 8: 10**3, 9: 10**6, 10: 10**3}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowGroups:
    """The row groups of some files, one entry each, in the order of files and of row groups in them.

    Attributes:
        file: Index of the data file.
        number: Number in its file.
        rows: Rows stored.
        size: Bytes on storage, of all columns.
        row_bytes: What a row takes in memory at most, on average of a file; 0 where there are too many files to ask all.
        ranges: Statistics by column name, in the types that columns are compared in.
    """

    file: npt.NDArray[np.int32]
    number: npt.NDArray[np.int32]
    rows: IntArray
    size: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    row_bytes: float = 0.0
    ranges: dict[str, ColumnRange] = field(default_factory=dict)


class _Stored(NamedTuple):
    """How a file stores a column: what values, in which Parquet type, of how many bytes (0: any), unit or scale, and order."""

    family: str
    physical: int
    width: int
    unit: int
    signed: bool


class _Said(NamedTuple):
    """What a file says of a column, an entry per row group: bounds as the Arrow type stores them, or None, and nulls."""

    low: list[Any]
    high: list[Any]
    nulls: list[int]


class _Layout(NamedTuple):
    """Where the columns asked about stand in a file, and the one whose values are compared with the rows of row groups."""

    columns: list[Leaf | None]
    counted: Leaf | None


class _Told(NamedTuple):
    """What a file says of its row groups, and of the columns asked about."""

    rows: list[int]
    size: list[int]
    columns: list[_Said]


def read_footers(
    snapshot: Snapshot, files: Sequence[int], columns: Sequence[str], filesystem: pafs.FileSystem, *, threads: int = 16
) -> RowGroups:
    """Return the row groups of some data files, with statistics of some columns, by dotted names.

    A column that a file does not have is null in all its rows, unless the table maps its columns to other names; then
    the reader of the file decides. Of a column below a list nothing is known.

    Raises:
        DataError: If a file has no footer that can be read; the first such file is named.
        DataChangedError: If a file is gone, or not of the size that it had when the table was opened.

    Example:
        >>> from penstock.testing import MemoryFormat
        >>> table = MemoryFormat.of({"id": range(10)}, row_group_rows=4)
        >>> groups = read_footers(table.snapshot(table.place), [0], ["id"], table.filesystem)
        >>> groups.rows.tolist(), groups.ranges["id"].high.to_pylist()
        ([4, 4, 2], [3, 7, 9])
    """
    asked = [_column(snapshot, column) for column in columns]
    paths, types = [path for path, _ in asked], [type_ for _, type_ in asked]
    missing = _MISSING if snapshot.stored is None else None
    layout = by_schema(lambda every, roots: _layout(every, roots, paths, missing))
    weights: list[float] = []

    def tell(footer: bytes) -> _Told:
        if len(files) <= WEIGHED:
            weights.append(row_bytes(footer))
        return _told(footer, layout(footer), types)

    told = of_each(snapshot, files, filesystem, tell, threads)
    counts = [len(one.rows) for one in told]
    return RowGroups(
        row_bytes=max(weights, default=0.0),
        file=np.repeat(np.array(files, dtype=np.int32), counts),
        number=np.array(_joined(map(range, counts)), dtype=np.int32),
        rows=np.array(_joined(one.rows for one in told), dtype=np.int64),
        size=np.array(_joined(one.size for one in told), dtype=np.int64),
        ranges={column: _range([one.columns[at] for one in told], types[at]) for at, column in enumerate(columns)},
    )


def read_schema(path: str, filesystem: pafs.FileSystem | bytes) -> pa.Schema:
    """Return the Arrow schema of one data file, with its metadata; its bytes may be given instead of a filesystem.

    Raises:
        DataError: If the file is not there, or has no footer that can be read.

    Example:
        >>> from penstock.testing import MemoryFormat
        >>> table = MemoryFormat.of({"id": range(10)}, row_group_rows=4)
        >>> read_schema("part-0.parquet", table.filesystem).names
        ['id']
    """
    footer = footer_of(path, filesystem)
    try:
        every, _ = leaves(parse(footer, {thrift.SCHEMA: [thrift.ELEMENT]}))
        whole = footer + len(footer).to_bytes(4, "little") + b"PAR1"
        found = pq.ParquetFile(pa.BufferReader(whole))  # whose schema has UUID and JSON, which that of its metadata has not
        sparks = any(key.startswith(b"org.apache.spark.") for key in found.metadata.metadata or ())
        if sparks and any(leaf.element[thrift.TYPE] == INT96 for leaf in every):  # whose moments are in microseconds
            found = pq.ParquetFile(pa.BufferReader(whole), coerce_int96_timestamp_unit="us")
    except (OSError, ValueError, pa.ArrowException) as error:
        raise footer_error(path, error) from error
    return found.schema_arrow


def of_each(
    snapshot: Snapshot, files: Sequence[int], filesystem: pafs.FileSystem, tell: Callable[[bytes], T], threads: int
) -> list[T]:
    """Return what is told of the footer of each file, in their order, having read them in parallel."""

    def told_of(file: int) -> T:
        path = snapshot.files.path[file].as_py()
        try:
            return tell(footer_of(path, filesystem, size=opened_size(snapshot, file)))
        except (DataError, ThriftError) as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise missing_file_error(snapshot, file, path) from error
            with contextlib.suppress(OSError):  # what cannot be looked at cannot be compared
                check_unchanged(snapshot, file, filesystem, path)
            if isinstance(error, ThriftError):
                raise footer_error(path, error) from error
            raise

    def told(part: Sequence[int]) -> list[T]:
        return [told_of(file) for file in part]

    size = max(1, min(32, len(files) // (4 * threads)))  # a task for each file would cost more than its footer
    parts = [files[at : at + size] for at in range(0, len(files), size)]
    return _joined(run_over(told, parts, threads))


def footer_of(path: str, place: pafs.FileSystem | bytes, *, size: int | None = None) -> bytes:
    """Return the bytes of a file's footer; a file that is not of a size which is known is refused."""
    try:
        with pa.BufferReader(place) if isinstance(place, bytes) else place.open_input_file(path) as source:
            expected, size = size, source.size()
            if expected not in (None, size):
                raise changed_file_error(path)
            start = max(0, size - TAIL)
            tail: bytes = source.read_at(size - start, start)
            length = int.from_bytes(tail[-ENDING:-4], "little")
            if tail[-4:] == b"PAR1" and len(tail) < length + ENDING <= size:
                begin = size - ENDING - length
                tail = source.read_at(start - begin, begin) + tail
    except (OSError, pa.ArrowException) as error:
        raise footer_error(path, error) from error
    if tail[-4:] == b"PARE":
        raise DataError(f"{path}: the file is encrypted. Encryption is not supported. Write the file again without it.")
    if tail[-4:] != b"PAR1" or size < ENDING + 4:
        raise DataError(
            f"{path}: not a Parquet file: it has {size} bytes and ends in {tail[-4:]!r}. At least 12 that end in b'PAR1' were "
            "expected. Write the file again, or keep files of other kinds out of the table."
        )
    if length + ENDING > len(tail):
        raise footer_error(path, f"it should have {length} bytes, and the file has {size}")
    return tail[-ENDING - length : -ENDING]


def by_schema(derive: Callable[[list[Leaf], set[bytes]], T]) -> Callable[[bytes], T]:
    """Return a function from a footer to what follows from its schema, found once for all files that have the same."""
    known: list[tuple[bytes, T]] = []

    def of(footer: bytes) -> T:
        for start, found in tuple(known):
            if footer.startswith(start):
                return found
        fields, end = parse_start(footer, {thrift.SCHEMA: [thrift.ELEMENT]})
        found = derive(*leaves(fields))
        known[:] = [*known[-7:], (footer[:end], found)]
        return found

    return of


def _layout(every: list[Leaf], roots: set[bytes], paths: list[tuple[bytes, ...]], missing: Leaf | None) -> _Layout:
    """Return some columns of a file; None for one that is below a list, no leaf, or of a name that others could have too."""
    found: dict[tuple[bytes, ...], Leaf | None] = {}
    for leaf in every:
        found[leaf.path] = None if leaf.repeated or leaf.path in found else leaf
    alike = {root.lower() for root in roots}
    columns = [found.get(path) if path[0] in roots or path[0].lower() in alike else missing for path in paths]
    return _Layout(columns, next((leaf for leaf in every if not leaf.repeated), every[0] if every else None))


def _told(footer: bytes, layout: _Layout, types: list[pa.DataType]) -> _Told:
    """Return what a footer says of its row groups and of some columns."""
    columns, counted = layout
    places = [leaf.place for leaf in columns if leaf]
    chunks = Only(places={**({} if counted is None else {counted.place: _VALUES}), **dict.fromkeys(places, thrift.CHUNK)})
    orders = {thrift.ORDERS: Only(places={place: {1: {}} for place in places})} if places else {}
    wanted: Wanted = [{thrift.ROWS: int, thrift.COMPRESSED: int, thrift.CHUNKS: chunks}]
    found = parse(footer, {thrift.TOTAL: int, thrift.GROUPS: wanted, **orders})
    if thrift.GROUPS not in found:
        raise ThriftError("it has no row groups")
    groups = found[thrift.GROUPS]
    for number, one in enumerate(groups):
        _check_rows(number, one, counted)
    rows, size = [one[thrift.ROWS] for one in groups], [one.get(thrift.COMPRESSED, 0) for one in groups]
    if found.get(thrift.TOTAL, sum(rows)) != sum(rows):
        raise ThriftError(f"it says that the file has {found[thrift.TOTAL]} rows, and its row groups have {sum(rows)}")
    if any(total <= 0 < count for total, count in zip(size, rows, strict=True)):  # old files say the sizes of chunks only
        sized = parse(footer, {thrift.GROUPS: [{thrift.CHUNKS: [_SIZE]}]})[thrift.GROUPS]
        size = [sum(map(stored_size, one.get(thrift.CHUNKS, []))) for one in sized]
    size = [min(max(0, total), MOST) for total in size]
    return _Told(rows, size, [_said(found, leaf, type_) for leaf, type_ in zip(columns, types, strict=True)])


def _check_rows(number: int, group: Fields, counted: Leaf | None) -> None:
    """Refuse a number of rows that cannot be: every row has one value in a column, or at least one in a column of lists.

    Raises:
        ThriftError: If it cannot be.
    """
    rows, chunks = group.get(thrift.ROWS), group.get(thrift.CHUNKS, [])
    if rows is None or not 0 <= rows < MOST:
        raise ThriftError(f"it says that row group {number} has {rows} rows")
    if counted is None or counted.place >= len(chunks):
        return
    values = chunks[counted.place].get(thrift.META, {}).get(thrift.VALUES, rows)
    if values < rows or (values > rows and not counted.repeated):
        name = b".".join(counted.path).decode(errors="replace")
        raise ThriftError(f"it says that row group {number} has {rows} rows, and column {name!r} has {values} values in it")


def stored_size(chunk: Fields) -> int:
    """Return the bytes of a column chunk on storage; none are known of an encrypted one."""
    return max(0, int(chunk.get(thrift.META, {}).get(thrift.SIZE, 0)))


def _said(footer: Fields, leaf: Leaf | None, type_: pa.DataType) -> _Said:
    """Return what a footer says of a column, which the table has in an Arrow type."""
    said, groups, orders = _Said([], [], []), footer[thrift.GROUPS], footer.get(thrift.ORDERS, [])
    if leaf is None or leaf is _MISSING:
        return _Said(
            [None] * len(groups), [None] * len(groups), [-1 if leaf is None else group[thrift.ROWS] for group in groups]
        )
    stored = _stored(leaf.element, type_, ordered=leaf.place < len(orders) and 1 in orders[leaf.place])
    for group in groups:
        chunks = group.get(thrift.CHUNKS, [])
        meta = chunks[leaf.place].get(thrift.META, {}) if leaf.place < len(chunks) else {}
        same = meta.get(thrift.PATH) == list(leaf.path) and meta.get(thrift.TYPE) == leaf.element[thrift.TYPE]
        found = meta.get(thrift.STATISTICS, {}) if same else {}
        low, high = (None, None) if stored is None else _bounds(found, stored, type_)
        said.low.append(low)
        said.high.append(high)
        said.nulls.append(nulls if 0 <= (nulls := found.get(thrift.NULLS, -1)) <= group[thrift.ROWS] else -1)
    return said


def _stored(element: Fields, type_: pa.DataType, *, ordered: bool) -> _Stored | None:
    """Return how a column is stored; None where what is said of it bounds nothing in an Arrow type."""
    (family, unit), physical = _annotated(element), element[thrift.TYPE]
    signed = physical < BYTES and family != "uint"
    fits = family.removeprefix("u") == kind(type_) or (family, kind(type_)) == ("bytes", "text")
    if not fits or not (signed or ordered) or physical not in STORED_AS[family]:
        return None
    width = WIDTHS[physical] if physical in WIDTHS else element.get(thrift.LENGTH, 0)
    special = {"float": (physical, width) in FLOATS, "decimal": unit == getattr(type_, "scale", None)}
    sound = special.get(family, unit > 0 or not pa.types.is_temporal(type_))
    return _Stored(family, physical, width, unit, signed) if sound else None


def _annotated(element: Fields) -> tuple[str, int]:
    """Return what the values of a column are, and their unit of time or scale; 0 where they have none."""
    if thrift.LOGICAL in element:
        which, facts = next(iter(element[thrift.LOGICAL].items()), (0, dict[int, Any]()))
        family, scale = LOGICALS.get(which, "-"), facts.get(1, -1)
        if family == "int":
            return (("uint", "int")[facts[2]] if 2 in facts else "-"), 0  # noqa: PLR2004 - the field that says if it is signed
        unit = next((LOGICAL_UNITS[at] for at in facts.get(2, ())), 0)
    else:
        which, scale = element.get(thrift.CONVERTED, -1), element.get(thrift.SCALE, 0)
        family = CONVERTEDS.get(which, "-") if thrift.CONVERTED in element else PHYSICALS.get(element[thrift.TYPE], "-")
        unit = CONVERTED_UNITS.get(which, 0)
    return family, {"decimal": scale, "date": DAY}.get(family, unit)


def _bounds(found: Fields, stored: _Stored, type_: pa.DataType) -> tuple[Any, Any]:
    """Return the bounds that statistics state, as the Arrow type stores them; None where they are not certain."""
    old_low, old_high = (found.get(thrift.OLD_LOW), found.get(thrift.OLD_HIGH)) if stored.signed else (None, None)
    low = _bound(found.get(thrift.LOW, old_low), stored, type_, up=False)
    high = _bound(found.get(thrift.HIGH, old_high), stored, type_, up=True)
    return (low, high) if low is None or high is None or low <= high else (None, None)


def _bound(raw: bytes | None, stored: _Stored, type_: pa.DataType, *, up: bool) -> Any:
    """Return one bound, rounded up or down."""
    if raw is None or stored.width not in (0, len(raw)) or (stored.family == "decimal" and not raw):
        return None
    if stored.family == "bytes":
        return _text(raw, type_, up=up)
    if stored.family == "float":
        return None if math.isnan(value := struct.unpack(FLOATS[stored.physical, stored.width], raw)[0]) else value
    number = int.from_bytes(raw, "little" if stored.physical < BYTES else "big", signed=stored.family != "uint")
    if pa.types.is_temporal(type_):
        unit = DAY if pa.types.is_date32(type_) else UNITS[getattr(type_, "unit", "ms")]
        number = -(-number * stored.unit // unit) if up else number * stored.unit // unit
    least, most = _limits(type_)
    return number if least <= number <= most else None


def _text(raw: bytes, type_: pa.DataType, *, up: bool) -> str | bytes | None:
    """Return a bound of bytes or text; a lower one may be cut short, and text cut in the middle of a letter."""
    if up and len(raw) > LONGEST:
        return None
    try:
        return raw[:LONGEST] if kind(type_) == "bytes" else raw[:LONGEST].decode()
    except UnicodeDecodeError as error:
        return None if up else raw[: error.start].decode()


@cache
def _limits(type_: pa.DataType) -> tuple[int, int]:
    """Return the least and the most that a type stores as an integer."""
    if pa.types.is_decimal(type_):
        return 1 - 10**type_.precision, 10**type_.precision - 1
    if pa.types.is_time(type_):
        return 0, DAY // UNITS[type_.unit]
    least = 0 if pa.types.is_boolean(type_) or pa.types.is_unsigned_integer(type_) else -(2 ** (type_.bit_width - 1))
    return least, least + 2**type_.bit_width - 1


def _range(said: list[_Said], type_: pa.DataType) -> ColumnRange:
    """Return what files say of a column, as arrays."""
    low, high = _array(_joined(one.low for one in said), type_), _array(_joined(one.high for one in said), type_)
    return ColumnRange(low=low, high=high, nulls=np.array(_joined(one.nulls for one in said), dtype=np.int64))


def _array(values: list[Any], type_: pa.DataType) -> pa.Array:
    """Return an array of values as a type stores them; null where they are None."""
    known = np.array([value is not None for value in values], dtype=np.bool_)
    if not known.any():
        return pa.nulls(len(values), type_)
    found = [bool(value) if pa.types.is_boolean(type_) else value for value in values if value is not None]
    return array_of(found, type_).take(pa.array(np.cumsum(known) - 1, pa.int64(), mask=~known))


def _joined(lists: Iterable[Iterable[Any]]) -> list[Any]:
    return list(chain.from_iterable(lists))


def _column(snapshot: Snapshot, column: str) -> tuple[tuple[bytes, ...], pa.DataType]:
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
    """Return the bytes that top-level columns take on storage, over some data files.

    Raises:
        DataError: If a file is not there, or has no footer that can be read; the first such file is named.

    Example:
        >>> from penstock.testing import MemoryFormat
        >>> table = MemoryFormat.of({"id": range(10)}, row_group_rows=10)
        >>> column_bytes(table.snapshot(table.place), [0], ["day"], table.filesystem)
        {'day': 0}
    """
    roots = [snapshot.names.get(column, column).encode() for column in columns]
    layout = by_schema(lambda every, _: [[leaf.place for leaf in every if leaf.path[0] == root] for root in roots])

    def tell(footer: bytes) -> list[int]:
        places = layout(footer)
        wanted = {thrift.CHUNKS: Only(places={place: _SIZE for of_root in places for place in of_root})}
        found = [one.get(thrift.CHUNKS, []) for one in parse(footer, {thrift.GROUPS: [wanted]}).get(thrift.GROUPS, [])]
        return [sum(stored_size(chunks[at]) for chunks in found for at in of_root if at < len(chunks)) for of_root in places]

    told = of_each(snapshot, files, filesystem, tell, threads)
    return {column: sum(one[at] for one in told) for at, column in enumerate(columns)}
