"""Parquet footers: row groups, column bounds, sizes, and the errors of files that cannot be read."""

from __future__ import annotations

import datetime as dt
import math
import re
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs as pafs

import penstock as ps
from penstock._engine.parquet.footer import RowGroups, column_bytes, read_footers, read_schema
from penstock._engine.parquet.thrift import parse
from penstock._engine.storage.file_errors import footer_error
from penstock.errors import DataError
from penstock.filters.literals import plain
from penstock.model import DataFiles, Snapshot
from penstock.testing import MemoryFormat

LOCAL = pafs.LocalFileSystem()
UTC = dt.UTC


def table_of(paths: Sequence[Path | str], schema: pa.Schema, names: Mapping[str, str] | None = None) -> Snapshot:
    """Return a snapshot of files of which only the paths are known."""
    count = len(paths)
    files = DataFiles(
        path=pa.array(map(str, paths), pa.string()),
        size=np.full(count, -1),
        rows=np.full(count, -1),
        stamp=pa.array([""] * count, pa.string()),
        partitions=pa.table({}),
    )
    return Snapshot(table="t", version="", schema=schema, files=files, names=names or {})


def read_row_groups(path: Path, schema: pa.Schema, columns: Sequence[str] | None = None) -> RowGroups:
    """Return what the footer of one file says about columns, by default about all."""
    return read_footers(table_of([path], schema), [0], schema.names if columns is None else columns, LOCAL)


def footer(path: Path) -> dict[int, Any]:
    """Return the parsed footer of a file."""
    data = path.read_bytes()
    return parse(data[-8 - int.from_bytes(data[-8:-4], "little") : -8])


def varint(number: int) -> bytes:
    """Return an unsigned number as Thrift writes it."""
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def encoded(value: Any) -> bytes:
    """Return a footer value as Thrift writes it, with all integers in 64 bits."""
    kinds = {bool: 1, int: 6, float: 7, bytes: 8, list: 9, dict: 12}
    match value:
        case int():
            return varint(value << 1 if value >= 0 else ~(value << 1))
        case bytes():
            return varint(len(value)) + value
        case list():
            return (
                bytes([15 << 4 | kinds[type(value[0])] if value else 15 << 4])
                + varint(len(value))
                + b"".join(map(encoded, value))
            )
    found = b""
    for number, inner in sorted(value.items()):
        kind = 2 if inner is False else kinds[type(inner)]
        found += bytes([kind]) + encoded(number) + (b"" if isinstance(inner, bool) else encoded(inner))
    return found + b"\x00"


LONGS = {"footer": {3}, "group": {2, 3, 5, 6}, "chunk": {2, 4, 6}, "meta": {5, 6, 7, 9, 10, 11, 14}, "statistics": {3, 4}}
"""Numbers of the 64-bit fields of each struct."""

INSIDE = {("footer", 4): "group", ("group", 1): "chunk", ("chunk", 3): "meta", ("meta", 12): "statistics"}
"""Names of nested structs, by the name of the outer struct and the number of the field."""


def rewritten(value: Any, struct: str = "footer", number: int = 0) -> bytes:
    """Return a footer value with integers of 16, 32 and 64 bits, as other readers require them."""
    if isinstance(value, list):
        kind = kind_of(value[0], struct, number) if value else 12
        return bytes([15 << 4 | kind]) + varint(len(value)) + b"".join(rewritten(one, struct, number) for one in value)
    if not isinstance(value, dict):
        return encoded(value)
    found, name = b"", INSIDE.get((struct, number), struct if number == 0 else "")
    for field, inner in sorted(value.items()):
        found += bytes([kind_of(inner, name, field)]) + encoded(field)
        found += b"" if isinstance(inner, bool) else rewritten(inner, name, field)
    return found + b"\x00"


def kind_of(value: Any, struct: str, number: int) -> int:
    """Return Thrift's number for the type of a value."""
    if isinstance(value, bool):
        return 1 if value else 2
    if isinstance(value, int):
        return 6 if number in LONGS.get(struct, set()) else 4 if (struct, number) == ("group", 7) else 5
    return 8 if isinstance(value, bytes) else 9 if isinstance(value, list) else 12


def written(path: Path, fields: dict[int, Any]) -> Path:
    """Write a file that contains only a footer."""
    data = encoded(fields)
    path.write_bytes(b"PAR1" + data + len(data).to_bytes(4, "little") + b"PAR1")
    return path


def assert_bounded(found: RowGroups, column: str, groups: Sequence[pa.Array], *, exact: bool = False) -> None:
    """Assert that stated bounds and null counts are true for each row group, and exact if `exact` is set."""
    stated = found.ranges[column]
    assert len(stated.low) == len(stated.high) == len(stated.nulls) == len(groups)
    for low, high, nulls, group in zip(stated.low, stated.high, stated.nulls, groups, strict=True):
        assert nulls in (-1, group.null_count)
        storage = group.storage if isinstance(group, pa.ExtensionArray) else group
        values = storage.cast(plain(storage.type)).drop_null()
        if pa.types.is_floating(values.type):
            values = values.filter(pc.invert(pc.is_nan(values)))
        for bound, holds in ((low, pc.greater_equal), (high, pc.less_equal)):
            assert not bound.is_valid or len(values) == 0 or pc.all(holds(values, bound)).as_py()
        if exact and len(values):
            least, most = pc.min_max(values).values()
            assert pc.and_(pc.equal(low, least), pc.equal(high, most)).as_py()


DAYS = [dt.date(1969, 7, 20), dt.date(1, 1, 1), dt.date(2024, 2, 29), dt.date(1970, 1, 1)]
NANOS = [-1, 0, -(10**18) - 1, 1_700_000_000_123_456_789, 10**9]
TEXTS = ["b", "", "a" * 4000, "\U0001f600", "z\x00", "\u00e9t\u00e9"]
DECIMALS = [Decimal("-0.01"), Decimal("0.00"), Decimal("999.99"), Decimal("-999.99"), Decimal("1.28")]
CASES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [False, False, True, True]),
    *((kind, [-1, 0, 127, -128]) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
    (pa.int64(), [-(2**63), 2**63 - 1, 5]),
    *((kind, [0, 1, 255, 128]) for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())),
    (pa.uint32(), [2**31 - 1, 2**31, 2**32 - 1]),
    (pa.uint64(), [2**63 - 1, 2**63, 2**64 - 1]),
    *((kind, [math.nan, -0.0, 1.5, -math.inf, 0.0]) for kind in (pa.float16(), pa.float32(), pa.float64())),
    *((kind, DAYS) for kind in (pa.date32(), pa.date64())),
    *((pa.timestamp(unit, zone), NANOS) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "Europe/Paris")),
    *((kind, [0, 86_399, 1]) for kind in (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"))),
    *((kind, DECIMALS) for kind in (pa.decimal128(5, 2), pa.decimal128(38, 2), pa.decimal256(60, 2))),
    *((kind, TEXTS) for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string()))),
    *((kind, [text.encode() for text in TEXTS] + [b"\xff\xfe"]) for kind in (pa.binary(), pa.large_binary())),
    (pa.binary(2), [b"\x80\x00", b"\x7f\xff", b"\x00\x00"]),
    (pa.uuid(), [bytes([byte] * 16) for byte in (128, 127, 0)]),
]


def cases_of(kind: pa.DataType, values: list[Any]) -> list[pa.Array]:
    """Return row groups: one for each value, one of all values, one with nulls, and one of nulls only."""
    whole = [*([value] for value in values), values, [None, *values, None], [None, None]]
    if pa.types.is_timestamp(kind):
        per = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[kind.unit]
        return [
            pa.array([value if value is None else value // per for value in group], pa.int64()).cast(kind) for group in whole
        ]
    return [pa.array(group, kind) for group in whole]


@pytest.mark.parametrize(
    "options", [{}, {"version": "1.0"}, {"store_decimal_as_integer": True, "store_schema": False}], ids=str
)
@pytest.mark.parametrize(("kind", "values"), CASES, ids=lambda given: str(given)[:30])
def test_bounds_are_the_minimum_and_the_maximum(tmp_path: Path, kind: pa.DataType, values: list[Any], options: Any) -> None:
    """Bounds are the minimum and maximum in the table's type. NaN is ignored, and only nulls have no bounds."""
    groups = cases_of(kind, values)
    if options.get("version") == "1.0" and pa.types.is_timestamp(kind) and kind.unit == "ns":
        options = {**options, "coerce_timestamps": "us", "allow_truncated_timestamps": True}
    path = tmp_path / "a.parquet"
    with pq.ParquetWriter(path, pa.schema({"x": kind}), **options) as writer:
        for group in groups:
            writer.write_table(pa.table({"x": group}))

    found = read_row_groups(path, pa.schema({"x": kind}))
    if "coerce_timestamps" not in options:  # coerced timestamps are truncated, so their bounds are not exact
        assert_bounded(found, "x", groups, exact=True)
    stated = found.ranges["x"]
    assert stated.low.type == stated.high.type == plain(kind)
    assert stated.nulls.tolist() == [group.null_count for group in groups]
    assert (stated.low[-1].as_py(), stated.high[-1].as_py()) == (None, None)


def one_row_group(
    path: Path, element: dict[int, Any], bounds: dict[int, Any], *, order: dict[int, Any] | None = None, **changes: Any
) -> Path:
    """Write a footer with one row group of ten rows and one column, by default in its type's own order."""
    physical = element[1]
    meta = {1: physical, 2: [0], 3: [b"x"], 4: 0, 5: 10, 6: 80, 7: 80, 9: 4, 12: bounds, **changes.get("meta", {})}
    fields = {
        1: 2,
        2: [{4: b"root", 5: 1}, {4: b"x", 3: 1, **element}],
        3: 10,
        4: [{1: [{2: 4, 3: meta}], 2: 80, 3: 10, **changes.get("group", {})}],
        7: [{1: {}} if order is None else order],
    }
    return written(path, {**fields, **changes.get("footer", {})})


def bounds_of(path: Path, kind: pa.DataType) -> tuple[Any, Any, int]:
    """Return the bounds and the null count of a file's only row group, in a table whose column has some type."""
    stated = read_row_groups(path, pa.schema({"x": kind})).ranges["x"]
    return stated.low[0].as_py(), stated.high[0].as_py(), int(stated.nulls[0])


def i32(number: int) -> bytes:
    """Return an INT32 as a file stores it."""
    return struct.pack("<i", number)


def i64(number: int) -> bytes:
    """Return an INT64 as a file stores it."""
    return struct.pack("<q", number)


INT32, INT64, INT96, DOUBLE, BYTES, FIXED = 1, 2, 3, 5, 6, 7
OLD = {1: i32(9), 2: i32(-9)}
NEW = {5: i32(9), 6: i32(-9)}
TEXT = {1: BYTES, 6: 0}
NONE = (None, None, -1)


@pytest.mark.parametrize(
    ("element", "bounds", "kind", "expected"),
    [
        ({1: INT32}, OLD, pa.int32(), (-9, 9, -1)),
        ({1: INT32}, {**OLD, 5: i32(8), 3: 4}, pa.int64(), (-9, 8, 4)),
        ({1: INT32, 10: {10: {1: 32, 2: True}}}, OLD, pa.int32(), (-9, 9, -1)),
        ({1: INT32, 10: {10: {1: 32, 2: False}}}, OLD, pa.uint32(), NONE),
        ({1: INT32, 10: {10: {1: 32}}}, NEW, pa.int32(), NONE),
        ({1: INT32, 6: 13}, OLD, pa.uint32(), NONE),
        ({1: INT32, 6: 13}, {5: i32(-1), 6: i32(1)}, pa.uint32(), (1, 2**32 - 1, -1)),
        ({1: INT32, 6: 13}, {5: i32(-1), 6: i32(1)}, pa.int64(), (1, 2**32 - 1, -1)),
        ({1: INT32, 6: 6}, OLD, pa.date32(), (dt.date(1969, 12, 23), dt.date(1970, 1, 10), -1)),
        (TEXT, {1: b"z", 2: b"a"}, pa.string(), NONE),
        (TEXT, {5: b"z", 6: b"a", 3: 0}, pa.string(), ("a", "z", 0)),
        ({1: BYTES}, {5: b"z", 6: b"a"}, pa.string(), ("a", "z", -1)),
        ({1: BYTES, 10: {1: {}}}, {5: b"z", 6: b"a"}, pa.binary(), (b"a", b"z", -1)),
        ({1: BYTES, 6: 5, 7: 2}, {1: b"\x01", 2: b"\x00"}, pa.decimal128(9, 2), NONE),
        ({1: INT64, 6: 5, 7: 2}, {1: i64(150), 2: i64(-1)}, pa.decimal128(9, 2), (Decimal("-0.01"), Decimal("1.50"), -1)),
    ],
)
def test_bounds_of_old_files_are_used_where_they_are_sound(
    tmp_path: Path, element: dict[int, Any], bounds: dict[int, Any], kind: pa.DataType, expected: tuple[Any, Any, int]
) -> None:
    """The deprecated fields for bounds are only used for types that compare as signed numbers."""
    assert bounds_of(one_row_group(tmp_path / "a", element, bounds), kind) == expected


@pytest.mark.parametrize("order", [{}, {2: {}}])
def test_bounds_of_bytes_need_a_file_that_states_their_order(tmp_path: Path, order: dict[int, Any]) -> None:
    """Without a stated column order only signed numbers have bounds, because their order is certain."""
    for element, kind in ((TEXT, pa.string()), ({1: INT32, 6: 13}, pa.uint32()), ({1: BYTES, 6: 5}, pa.decimal128(9, 0))):
        path = one_row_group(tmp_path / "a", element, {5: b"zzzz", 6: b"aaaa", 3: 0}, order=order)
        assert bounds_of(path, kind) == (None, None, 0)
    assert bounds_of(one_row_group(tmp_path / "a", {1: INT32}, NEW, order=order), pa.int32()) == (-9, 9, -1)
    path = one_row_group(tmp_path / "a", TEXT, {5: b"z", 6: b"a"}, footer={7: []})
    assert bounds_of(path, pa.string()) == NONE


@pytest.mark.parametrize(
    ("element", "low", "high", "kind", "expected"),
    [
        # A unit that is coarser in the table: the lower bound is rounded down, the upper one up.
        ({1: INT64, 10: {8: {1: True, 2: {2: {}}}}}, -1500, 1500, pa.timestamp("ms", "UTC"), (-2, 2)),
        ({1: INT64, 10: {8: {1: True, 2: {3: {}}}}}, -1, 1, pa.timestamp("s"), (-1, 1)),
        ({1: INT64, 10: {8: {1: False, 2: {1: {}}}}}, -1, 2**62, pa.timestamp("ns"), (-(10**6), None)),
        ({1: INT64, 10: {8: {1: True}}}, 1, 2, pa.timestamp("us"), (None, None)),
        ({1: INT64, 6: 9}, 1, 2, pa.timestamp("us"), (1000, 2000)),
        ({1: INT64, 6: 10}, 1, 2, pa.timestamp("us"), (1, 2)),
        ({1: INT64, 6: 8}, -1, 86_400_000_001, pa.time64("us"), (None, None)),
        ({1: INT64, 6: 8}, 1, 1_000_001, pa.time32("s"), (0, 2)),
        # Another kind of type in the table, which may have another order.
        ({1: INT64}, 1, 2, pa.timestamp("us"), (None, None)),
        ({1: INT64}, 1, 2, pa.string(), (None, None)),
        ({1: INT64}, 1, 2, pa.float64(), (None, None)),
        ({1: INT64}, 1, 2, pa.duration("s"), (None, None)),
        ({1: INT64, 6: 5, 7: 2}, 1, 2, pa.decimal128(9, 3), (None, None)),
        ({1: INT64, 6: 5, 7: 2}, 1, 1000, pa.decimal128(3, 2), (1, None)),
        ({1: INT64, 10: {5: {2: 9}}}, 1, 2, pa.decimal128(9, 0), (None, None)),
        # Values that the table's type cannot hold, unknown or unfitting annotations, and types without an order.
        ({1: INT64}, -129, 127, pa.int8(), (None, 127)),
        ({1: INT64}, -1, 2**63 - 1, pa.uint64(), (None, 2**63 - 1)),
        ({1: INT64, 10: {99: {}}}, 1, 2, pa.int64(), (None, None)),
        ({1: INT64, 10: {11: {}}}, 1, 2, pa.int64(), (None, None)),
        ({1: INT64, 6: 21}, 1, 2, pa.int64(), (None, None)),
        ({1: INT64, 10: {1: {}}}, 1, 2, pa.string(), (None, None)),
        ({1: INT64, 10: {15: {}}}, 1, 2, pa.float64(), (None, None)),
        ({1: INT96}, 1, 2, pa.timestamp("ns"), (None, None)),
        ({1: 99}, 1, 2, pa.int64(), (None, None)),
        ({1: FIXED, 2: 8, 10: {15: {}}}, 1, 2, pa.float16(), (None, None)),
        # The lower bound is above the upper one.
        ({1: INT64}, 2, 1, pa.int64(), (None, None)),
    ],
)
def test_bounds_follow_the_types_of_file_and_table(
    tmp_path: Path, element: dict[int, Any], low: int, high: int, kind: pa.DataType, expected: tuple[int | None, int | None]
) -> None:
    """A bound is converted to the table's type if it stays a valid bound there. Otherwise it is unknown."""
    stated = read_row_groups(
        one_row_group(tmp_path / "a", element, {5: i64(high), 6: i64(low)}), pa.schema({"x": kind})
    ).ranges["x"]

    def stored(array: pa.Array) -> Any:
        if pa.types.is_decimal(array.type):
            return None if array[0].as_py() is None else int(array[0].as_py().scaleb(2))
        return array.view(f"int{kind.bit_width}")[0].as_py() if pa.types.is_temporal(kind) else array[0].as_py()

    assert (stored(stated.low), stored(stated.high)) == expected


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (b"caf\xc3", b"caf\xc3", ("caf", None)),
        (b"\xff", b"\xff", ("", None)),
        (b"a\xffb", b"b", ("a", "b")),
        (b"", b"", ("", "")),
        (b"a" * 4097, b"b" * 4097, ("a" * 4096, None)),
        (b"a" * 4095 + "\u00e9".encode(), b"b" * 4096, ("a" * 4095, "b" * 4096)),
    ],
)
def test_bounds_of_text_may_be_cut(tmp_path: Path, low: bytes, high: bytes, expected: tuple[str, str | None]) -> None:
    """Bounds may be cut inside a character. The valid part is a lower bound, and the upper bound is unknown."""
    assert bounds_of(one_row_group(tmp_path / "a", TEXT, {5: high, 6: low}), pa.string())[:2] == expected


@pytest.mark.parametrize(
    ("element", "raw", "kind"),
    [
        ({1: INT32}, b"\x01", pa.int32()),
        ({1: INT64}, i32(1), pa.int64()),
        ({1: 0}, b"\x02", pa.bool_()),
        ({1: 0}, b"", pa.bool_()),
        ({1: DOUBLE}, b"\x00" * 4, pa.float64()),
        ({1: DOUBLE}, struct.pack("<d", math.nan), pa.float64()),
        ({1: FIXED, 2: 3}, b"abcd", pa.binary(3)),
        ({1: FIXED, 2: -3}, b"abc", pa.binary(3)),
        ({1: BYTES, 6: 5}, b"", pa.decimal128(9, 0)),
        ({1: BYTES, 6: 5}, b"\x7f" * 40, pa.decimal128(9, 0)),
    ],
)
def test_bytes_that_are_no_value_are_no_bound(tmp_path: Path, element: dict[int, Any], raw: bytes, kind: pa.DataType) -> None:
    """Bytes of the wrong length, and bytes that are no valid value, give no bound."""
    assert bounds_of(one_row_group(tmp_path / "a", element, {5: raw, 6: raw, 3: 2}), kind) == (None, None, 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"meta": {3: [b"y"]}},
        {"meta": {1: INT64}},
        {"group": {1: []}},
        {"group": {1: [{2: 4, 9: b"encrypted"}]}},
        {"meta": {12: {}}},
    ],
)
def test_statistics_of_another_column_are_not_used(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Chunks of another name or type, missing chunks and encrypted chunks give no bounds."""
    assert bounds_of(one_row_group(tmp_path / "a", {1: INT32}, NEW, **changes), pa.int32()) == NONE


CRASH = """
import sys
import pyarrow.parquet as pq
pq.ParquetFile(sys.argv[1]).metadata.row_group(0).column(0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the exit code is that of Linux")
def test_pyarrow_ends_the_process_on_encrypted_column_metadata(tmp_path: Path) -> None:
    """Decision 0006: footers are parsed here, because pyarrow aborts the process. If this fails, review the decision."""
    # The schema of one column "x"; one row group of one row, whose column chunk is encrypted with a key of its own.
    schema = bytes.fromhex("1502192c4804726f6f741502001502250018017800")
    chunk = bytes.fromhex("26086c2c1918017800 001809") + b"encrypted" + b"\x00"
    footer = schema + bytes.fromhex("1602191c191c") + chunk + bytes.fromhex("16a00116020000")
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")

    process = subprocess.run([sys.executable, "-c", CRASH, str(path)], capture_output=True, timeout=60, check=False)

    assert process.returncode == -signal.SIGABRT
    assert b"ParquetException" in process.stderr
    assert bounds_of(path, pa.int32()) == NONE


@pytest.mark.parametrize(("nulls", "expected"), [(0, 0), (10, 10), (11, -1), (-1, -1)])
def test_nulls_are_at_most_the_rows(tmp_path: Path, nulls: int, expected: int) -> None:
    """A null count that is negative or larger than the number of rows is unknown."""
    assert bounds_of(one_row_group(tmp_path / "a", {1: INT32}, {3: nulls}), pa.int32())[2] == expected


def test_columns_are_found_by_the_names_of_the_files(tmp_path: Path) -> None:
    """Renamed columns, struct fields and names with dots are found. Lists have no bounds; missing columns are null."""
    inner = pa.struct({"a": pa.int64(), "deep": pa.struct({"b.c": pa.string()})})
    rows = pa.table(
        {
            "s-1": pa.array([{"a": 5, "deep": {"b.c": "x"}}, None, {"a": None, "deep": None}], inner),
            "a.b": [1, 2, 3],
            "l": [[1], [2], [3]],
        }
    )
    pq.write_table(rows, tmp_path / "a.parquet")
    schema = pa.schema({"s": inner, "a.b": pa.int64(), "l": pa.list_(pa.int64()), "new": pa.string(), "news": inner})
    table = table_of([tmp_path / "a.parquet"], schema, {"s": "s-1"})

    found = read_footers(table, [0], ["s.a", "a.b", "l", "new", "s", "news.a"], LOCAL).ranges
    summaries = {name: (r.low[0].as_py(), r.high[0].as_py(), int(r.nulls[0])) for name, r in found.items()}
    assert summaries == {
        "s.a": (5, 5, 2),
        "a.b": (1, 3, 0),
        "l": NONE,
        "new": (None, None, 3),
        "s": NONE,
        "news.a": (None, None, 3),
    }
    deep = table_of([tmp_path / "a.parquet"], pa.schema({"s": pa.struct({"x": pa.int64()})}), {"s.x": "s-1.a"})
    assert read_footers(deep, [0], ["s.x"], LOCAL).ranges["s.x"].high.to_pylist() == [5]
    assert column_bytes(table, [0], ["s", "l", "new"], LOCAL).keys() == {"s", "l", "new"}


def test_two_columns_of_one_name_have_no_bounds(tmp_path: Path) -> None:
    """Two columns of one name have no bounds, because the name is ambiguous."""
    schema = [{4: b"root", 5: 2}, {4: b"x", 1: INT32}, {4: b"x", 1: INT32}]
    chunk = {3: {1: INT32, 3: [b"x"], 7: 8, 12: NEW}}

    path = written(tmp_path / "a", {1: 2, 2: schema, 3: 9, 4: [{1: [chunk, chunk], 3: 9}], 7: [{1: {}}, {1: {}}]})
    assert bounds_of(path, pa.int32()) == NONE


def test_row_groups_come_in_the_order_of_files() -> None:
    """Row groups come in the order of the requested files, for any number of threads."""
    groups = [[pa.table({"id": np.arange(at * 10, at * 10 + rows)}) for rows in (3, 0, 2)] for at in range(70)]
    table = MemoryFormat(groups)
    wanted = [5, 0, 69, 5]

    for threads in (1, 3, 16):
        found = read_footers(table.snapshot(table.place), wanted, ["id"], table.filesystem, threads=threads)
        assert found.file.tolist() == [file for file in wanted for _ in range(3)]
        assert (found.number.tolist(), found.rows.tolist()) == ([0, 1, 2] * 4, [3, 0, 2] * 4)
        assert found.ranges["id"].low.to_pylist() == [low for at in wanted for low in (at * 10, None, at * 10)]
    every = read_footers(table.snapshot(table.place), range(70), [], table.filesystem)
    assert every.file.tolist() == sorted(list(range(70)) * 3)
    assert every.ranges == {}
    assert [array.dtype.name for array in (every.file, every.number, every.rows, every.size)] == ["int32"] * 2 + ["int64"] * 2


def test_no_files_have_no_row_groups() -> None:
    """Without files nothing is read, and the results are empty arrays of the right types."""
    table = MemoryFormat.of({"id": [1]}, row_group_rows=1)

    found = read_footers(table.snapshot(table.place), [], ["id"], table.filesystem)
    assert (len(found.file), len(found.rows), len(found.size), found.ranges["id"].low.type) == (0, 0, 0, pa.int64())
    assert column_bytes(table.snapshot(table.place), [], ["id"], table.filesystem) == {"id": 0}
    assert not table.opened


def test_sizes_are_the_bytes_on_storage(tmp_path: Path) -> None:
    """Sizes are bytes on storage. Row groups of old files without a size get the sum of their chunks."""
    rows = pa.table({"a": np.zeros(1000), "b": np.random.RandomState(0).rand(1000), "s": [{"x": 1, "y": "z"}] * 1000})
    path = tmp_path / "a.parquet"
    pq.write_table(rows, path, row_group_size=400)
    table = table_of([path, path], rows.schema)

    found = read_footers(table, [0], [], LOCAL)
    sizes = column_bytes(table, [0], ["a", "b", "s"], LOCAL)
    assert found.size.sum() == sum(sizes.values())
    assert 8000 < sizes["b"] < path.stat().st_size
    assert sizes["a"] < 1000
    assert column_bytes(table, [0, 1], ["b", "other"], LOCAL) == {"b": 2 * sizes["b"], "other": 0}
    old = footer(path)
    for group in old[4]:
        del group[6]
    assert (
        read_footers(table_of([written(tmp_path / "old", old)], rows.schema), [0], [], LOCAL).size.tolist()
        == found.size.tolist()
    )


def test_impossible_sizes_are_corrected(tmp_path: Path) -> None:
    """Negative sizes are ignored, and sizes above 2**48 are cut to it, so that sizes can be summed."""
    element = {1: INT32}
    sizes = [
        read_row_groups(
            one_row_group(tmp_path / "a", element, {}, group={6: size}, meta={7: 2**63 - 1}), pa.schema({}), []
        ).size.tolist()
        for size in (-5, 0, 7, 2**63 - 1)
    ]
    assert sizes == [[2**48], [2**48], [7], [2**48]]
    path = one_row_group(tmp_path / "a", element, {}, meta={7: -1})
    assert read_row_groups(path, pa.schema({}), []).size.tolist() == [0]
    assert column_bytes(table_of([path], pa.schema({})), [0], ["x"], LOCAL) == {"x": 0}


def test_long_footers_are_read_in_two_requests(tmp_path: Path) -> None:
    """A footer that is longer than the first read is read whole, in a file of unknown size."""
    rows = pa.table({f"column {at}": [at] for at in range(1500)})
    pq.write_table(rows, tmp_path / "a.parquet")
    assert int.from_bytes((tmp_path / "a.parquet").read_bytes()[-8:-4], "little") > 64 * 1024

    found = read_row_groups(tmp_path / "a.parquet", rows.schema)
    assert [found.ranges[name].high[0].as_py() for name in rows.column_names] == list(range(1500))
    assert read_schema(str(tmp_path / "a.parquet"), LOCAL) == rows.schema


def test_files_of_one_table_may_have_several_schemas(tmp_path: Path) -> None:
    """Files of one table may have columns at other places, of other types, or missing."""
    pq.write_table(pa.table({"id": pa.array([1, 2], pa.int32()), "x": ["a", "b"]}), tmp_path / "0")
    pq.write_table(pa.table({"x": ["c", None], "id": pa.array([3, 4], pa.int64())}), tmp_path / "1")
    pq.write_table(pa.table({"y": [1.5, 2.5]}), tmp_path / "2")
    table = table_of([tmp_path / "0", tmp_path / "1", tmp_path / "2"], pa.schema({"id": pa.int64(), "x": pa.string()}))

    found = read_footers(table, [0, 1, 2, 0], ["id", "x"], LOCAL).ranges
    assert found["id"].high.to_pylist() == [2, 4, None, 2]
    assert found["x"].low.to_pylist() == ["a", "c", None, "a"]
    assert found["x"].nulls.tolist() == [0, 1, 2, 0]


WHOLE = ["expected a complete Parquet file.", "Write the file again."]
KINDS = ["At least 12 that end in b'PAR1' were expected.", "keep files of other kinds out of the table."]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["not a Parquet file: it has 0 bytes and ends in b''", *KINDS]),
        (b"PAR1", ["not a Parquet file: it has 4 bytes", *KINDS]),
        (b"id,x\n1,2\n3,4\n5,6\n", ["it has 17 bytes and ends in b'5,6\\n'", *KINDS]),
        (b"PAR1" + b"\x00" * 20 + b"\x08\x00\x00\x00PARE", ["the file is encrypted", "not supported", "without it"]),
        (
            b"PAR1\xff\xff\xff\x7fPAR1",
            ["the footer cannot be read: it should have 2147483647 bytes, and the file has 12", *WHOLE],
        ),
        (b"PAR1\x00\x00\x00\x00PAR1", ["the footer cannot be read: it ends in the middle of a value", *WHOLE]),
        (b"PAR1\x00\x01\x00\x00\x00PAR1", ["the footer cannot be read", *WHOLE]),
        (b"PAR1\x19\x00\x00\x02\x00\x00\x00PAR1", ["the footer cannot be read", *WHOLE]),
    ],
)
def test_files_without_a_valid_footer_raise(tmp_path: Path, content: bytes, words: list[str]) -> None:
    """The error names the file and the problem, what was expected, and what to do."""
    path = tmp_path / "a.parquet"
    path.write_bytes(content)
    table = table_of([path], pa.schema({"id": pa.int64()}))

    columns: list[str]
    for columns in ([], ["id"]):
        with pytest.raises(DataError) as raised:
            read_footers(table, [0], columns, LOCAL)
        assert str(raised.value).startswith(f"{path}: ")
        assert [word for word in words if word not in str(raised.value)] == []


def test_a_schema_that_cannot_be_read_raises(tmp_path: Path) -> None:
    """Errors of pyarrow and missing files raise `DataError`, which names the file."""
    path = written(tmp_path / "a", {1: 2, 2: [{4: b"root", 5: 1}, {4: b"x", 1: 99, 3: 1}], 3: 0, 4: []})

    for broken in (path, tmp_path / "nowhere"):
        with pytest.raises(DataError, match=f"^{re.escape(str(broken))}: the footer cannot be read: .*Write the file again.$"):
            read_schema(str(broken), LOCAL)


def test_a_schema_comes_with_its_metadata(tmp_path: Path) -> None:
    """The schema of a file has the metadata that was written, for the schema and its fields."""
    schema = pa.schema([pa.field("x", pa.int8(), metadata={"k": "v"})], metadata={"about": "it"})
    pq.write_table(pa.table({"x": pa.array([1], pa.int8())}).cast(schema), tmp_path / "a.parquet")

    found = read_schema(str(tmp_path / "a.parquet"), LOCAL)
    assert found == schema
    assert found.metadata[b"about"] == b"it"


@pytest.mark.parametrize("rows", [-1, 2**60, None])
def test_impossible_numbers_of_rows_raise(tmp_path: Path, rows: int | None) -> None:
    """Negative, huge and missing row counts of a row group raise `DataError`."""
    groups = [{2: 1, 3: 5}, {2: 1} if rows is None else {2: 1, 3: rows}]
    path = written(tmp_path / "a", {1: 2, 2: [{4: b"root", 5: 0}], 3: 0, 4: groups})

    with pytest.raises(DataError, match=rf"a: the footer cannot be read: it says that row group 1 has {rows} rows"):
        read_row_groups(path, pa.schema({}), [])


def test_the_first_file_that_fails_is_named_and_no_thread_stays(tmp_path: Path) -> None:
    """The error names the first file that fails, for any number of threads, and no thread keeps running."""
    pq.write_table(pa.table({"id": [1]}), tmp_path / "good")
    (tmp_path / "bad").write_bytes(b"bad, and long enough")
    paths = [tmp_path / ("bad" if at == 150 else "nowhere" if at > 300 else "good") for at in range(1000)]
    before = threading.active_count()

    for threads in (1, 8):
        with pytest.raises(DataError, match=re.escape(f"{tmp_path / 'bad'}: not a Parquet file")):
            read_footers(table_of(paths, pa.schema({"id": pa.int64()})), range(1000), ["id"], LOCAL, threads=threads)
        assert threading.active_count() == before


def leaf_names(schema: pa.Schema) -> list[str]:
    """Return the dotted names of columns and their struct fields, without columns whose name is not unique."""

    def inside(name: str, kind: pa.DataType) -> list[str]:
        fields = [kind.field(at) for at in range(kind.num_fields)] if pa.types.is_struct(kind) else []
        return [name, *(leaf for field in fields for leaf in inside(f"{name}.{field.name}", field.type))]

    names = [name for name in dict.fromkeys(schema.names) if schema.names.count(name) == 1]
    return [leaf for name in names for leaf in inside(name, schema.field(name).type)]


def values_of(group: pa.Table, column: str) -> pa.Array:
    """Return the values of a column or of a struct field."""
    root, *inner = [column] if column in group.column_names else column.split(".")
    found = group.column(root).combine_chunks()
    for name in inner:
        found = pc.struct_field(found, name)
    return found


def test_bounds_hold_for_every_file_of_the_corpus(corpus: Callable[[str], Path]) -> None:
    """Each corpus file is read within a second. Its bounds and row counts are true, or it raises `DataError`."""
    bounded = refused = 0
    for path in sorted(path for path in corpus("parquet").rglob("*") if path.is_file()):
        start = time.perf_counter()
        try:
            schema = read_schema(str(path), LOCAL)
        except DataError:
            schema = pa.schema({"x": pa.int64()})
        columns = leaf_names(schema)
        try:
            found = read_row_groups(path, schema, columns)
            column_bytes(table_of([path], schema), [0], columns, LOCAL)
        except DataError as error:
            assert str(error).startswith(f"{path}: ")  # noqa: PT017 - either outcome is right
            refused += 1
            continue
        assert time.perf_counter() - start < 1
        bounded += sum(len(found.rows) - stated.low.null_count for stated in found.ranges.values())
        try:
            file = pq.ParquetFile(path)
            if sum(file.metadata.row_group(at).total_byte_size for at in range(len(found.rows))) > 10**8:
                continue  # large_string_map.brotli.parquet: two gigabytes in two rows
            groups = [file.read_row_group(at) for at in range(len(found.rows))]
        except (OSError, ValueError, pa.ArrowException):
            continue
        assert [group.num_rows for group in groups] == found.rows.tolist()
        for column in columns:
            assert_bounded(found, column, [values_of(group, column) for group in groups])
    assert bounded > 1000
    assert refused > 10


def real_footer() -> bytes:
    """Return a footer with the columns of many types."""
    sink = pa.BufferOutputStream()
    groups = pa.table(
        {str(number): cases_of(kind, values)[-2] for number, (kind, values) in enumerate(CASES) if len(values) == 4}
    )
    pq.write_table(groups, sink, row_group_size=3)
    data: bytes = sink.getvalue().to_pybytes()
    return data[-8 - int.from_bytes(data[-8:-4], "little") : -8]


FOOTER = real_footer()


@settings(max_examples=300)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.lists(st.tuples(st.integers(0, len(FOOTER) - 1), st.binary(max_size=4), st.integers(0, 4)), min_size=1, max_size=6),
    )
)
def test_damaged_footers_are_read_or_raise(given: bytes | list[tuple[int, bytes, int]]) -> None:
    """Arbitrary bytes and damaged footers are read or raise `DataError`, within a second."""
    data = given if isinstance(given, bytes) else FOOTER
    for at, inserted, removed in given if isinstance(given, list) else ():
        data = data[:at] + inserted + data[at + removed :]
    table = MemoryFormat.of({"0": [1]}, row_group_rows=1)
    table._content["part-0.parquet"] = b"PAR1" + data + len(data).to_bytes(4, "little") + b"PAR1"
    schema = pa.schema({str(number): kind for number, (kind, values) in enumerate(CASES) if len(values) == 4})
    snapshot = table_of(["part-0.parquet"], schema)
    start = time.perf_counter()

    for columns in ([], [*schema.names]):
        try:
            found = read_footers(snapshot, [0], columns, table.filesystem, threads=1)
            assert (found.rows >= 0).all()
            column_bytes(snapshot, [0], schema.names, table.filesystem, threads=1)
        except DataError as error:
            assert str(error).startswith("part-0.parquet: the footer cannot be read: ")  # noqa: PT017 - either is right
    assert time.perf_counter() - start < 1


def test_row_groups_have_all_rows_of_the_file(tmp_path: Path) -> None:
    """A file's row count that differs from the sum of its row groups raises, so no row is lost silently."""
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"id": range(12_345)}), path, row_group_size=5_000)
    reported, other = (b"\x16" + bytes([count & 127 | 128, count >> 7 & 127 | 128, count >> 14]) for count in (24_690, 24_692))
    data = path.read_bytes()
    footer = data[-8 - int.from_bytes(data[-8:-4], "little") :]
    assert footer.count(reported) == 1
    path.write_bytes(data[: -len(footer)] + footer.replace(reported, other))

    with pytest.raises(DataError, match=r"t\.parquet: .* says that the file has 12346 rows, and its row groups have 12345"):
        list(ps.open(path).batch(10))


COLUMNS = pa.table({"id": range(100), "list": [[number] * (number % 3) for number in range(100)]})
FLAT, LISTS = COLUMNS.select(["id"]), COLUMNS.select(["list"])


def misstated(path: Path, table: pa.Table, change: Callable[[dict[int, Any]], None]) -> Path:
    """Write a table in two row groups of fifty rows, and apply `change` to its footer."""
    pq.write_table(table, path, row_group_size=50, store_schema=False)
    data = path.read_bytes()
    size = int.from_bytes(data[-8:-4], "little")
    reported = parse(data[-8 - size : -8])
    change(reported)
    path.write_bytes(data[: -8 - size] + rewritten(reported) + len(rewritten(reported)).to_bytes(4, "little") + b"PAR1")
    return path


def with_rows(first: int, second: int) -> Callable[[dict[int, Any]], None]:
    """Return a function that changes the row counts of both row groups, and their sum."""

    def change(reported: dict[int, Any]) -> None:
        reported[3], reported[4][0][3], reported[4][1][3] = first + second, first, second

    return change


def with_values(group: int, column: int, values: int) -> Callable[[dict[int, Any]], None]:
    """Return a function that changes the value count of a column chunk."""

    def change(reported: dict[int, Any]) -> None:
        reported[4][group][1][column][3][5] = values

    return change


@pytest.mark.parametrize(("table", "change", "numbers"), [
    (FLAT, with_rows(40, 50), "row group 0 has 40 rows, and column 'id' has 50 values in it"),
    (FLAT, with_rows(60, 40), "row group 0 has 60 rows, and column 'id' has 50 values in it"),
    (FLAT, with_rows(50, 2**40), "row group 1 has 1099511627776 rows, and column 'id' has 50 values in it"),
    (FLAT, with_values(1, 0, -1), "row group 1 has 50 rows, and column 'id' has -1 values in it"),
    (LISTS, with_rows(50, 2**40), r"row group 1 has 1099511627776 rows, and column 'list\.list\.element' has 67 values in it"),
    (LISTS, with_values(0, 0, 49), r"row group 0 has 50 rows, and column 'list\.list\.element' has 49 values in it"),
    (FLAT, lambda reported: reported.update({3: -1}), "the file has -1 rows, and its row groups have 100"),
    (FLAT, lambda reported: reported.update({4: []}), "the file has 100 rows, and its row groups have 0"),
])  # fmt: skip
@pytest.mark.parametrize("query", [
    lambda ds: ds.num_rows,
    lambda ds: ds.to_arrow(),
    lambda ds: ds[3],
    lambda ds: list(ds.batch(10)),
    lambda ds: ds.where(ps.col(ds.schema.names[0]).is_not_null()).num_rows,
])  # fmt: skip
def test_a_footer_that_contradicts_itself_raises(
    tmp_path: Path,
    table: pa.Table,
    change: Callable[[dict[int, Any]], None],
    numbers: str,
    query: Callable[[ps.Dataset], Any],
) -> None:
    """Counts that contradict each other raise `DataError` with both numbers, and not `DataChangedError`."""
    path = misstated(tmp_path / "t.parquet", table, change)
    with pytest.raises(DataError, match=rf"/t\.parquet: .* says that {numbers}; expected .* Write the file again\.") as raised:
        query(ps.open(path))

    assert type(raised.value) is DataError


SHORT = "its footer says 50 rows, and its pages have 0. The file is damaged. Restore it, or write it again."


@pytest.mark.parametrize(("query", "reported"), [
    (lambda ds: ds.to_arrow(),
     ", column 'text': cannot be read: Column 1 named text expected length 50 but got length 0. The table says it has 50 rows. "
     "Check the file."),
    (lambda ds: list(ds.select("text").batch(10)), f": {SHORT}"),
    (lambda ds: ds.select("text").where(ps.col("text") != "60").num_rows, f": {SHORT}"),
    (lambda ds: ds.take([0, 60]), f": {SHORT}"),
])  # fmt: skip
def test_pages_that_hold_fewer_rows_than_their_row_group_raise(
    tmp_path: Path, query: Callable[[ps.Dataset], Any], reported: str
) -> None:
    """Pages with fewer rows than the footer says raise `DataError`, and not `DataChangedError`."""
    table = pa.table({"id": range(100), "text": [str(number) for number in range(100)]})
    path = misstated(tmp_path / "t.parquet", table, with_values(1, 1, -1))
    with pytest.raises(DataError) as raised:
        query(ps.open(path))

    assert type(raised.value) is DataError
    assert str(raised.value) == f"{path}, row group 1{reported}"


def test_a_type_that_arrow_does_not_have_is_reported() -> None:
    """The error of a type that Arrow does not have says so, and does not call the file damaged."""
    unknown = pa.lib.ArrowNotImplementedError("Integers with more than 64 bits not implemented")

    reported = (
        "a.parquet: it has a column of a type that Arrow does not read: Integers with more than 64 bits not implemented. "
    )
    assert str(footer_error("a.parquet", unknown)).startswith(reported)
