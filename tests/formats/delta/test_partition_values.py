"""Parsing the texts of a Delta log: partition values, paths and lines of JSON."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from delta_logs import Lake, column, metadata, protocol
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs as pafs

import penstock as ps
from penstock.errors import ArgumentError, DataError
from penstock.formats.delta import DeltaFormat
from penstock.formats.delta.json import read_lines
from penstock.formats.delta.partition_values import partition_column
from penstock.formats.delta.paths import resolve, resolve_all
from penstock.model import Place

UTC = dt.UTC
LOCAL = Place(url="/lake/t", filesystem=pafs.LocalFileSystem(), path="/lake/t")
NAIVE = dt.datetime(2021, 9, 8, 11, 11)  # noqa: DTZ001 - a time without a zone
ZONED, PLAIN = pa.timestamp("us", "UTC"), pa.timestamp("us")


def read(text: str | None, kind: pa.DataType, zone: dt.tzinfo = UTC) -> Any:
    """Return one partition value, parsed."""
    return partition_column(pa.array([text], pa.string()), kind, zone, "'p'")[0].as_py()


TYPED: list[tuple[pa.DataType, st.SearchStrategy[Any], Any]] = [
    (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), min_size=1), str),
    (pa.int8(), st.integers(-128, 127), str),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1), str),
    (pa.float64(), st.floats(allow_nan=False), lambda value: repr(value).replace("inf", "Infinity")),
    (pa.bool_(), st.booleans(), lambda value: str(value).lower()),
    (pa.date32(), st.dates(), str),
    (pa.decimal128(38, 6), st.decimals(-(10**20), 10**20, places=6), str),
    (PLAIN, st.datetimes(), lambda value: value.isoformat(sep=" ")),
    (ZONED, st.datetimes(timezones=st.just(UTC)), lambda value: value.isoformat().replace("+00:00", "Z")),
    (ZONED, st.datetimes(timezones=st.just(UTC)), lambda value: value.replace(tzinfo=None).isoformat(sep=" ")),
]


@given(st.sampled_from(TYPED).flatmap(lambda one: st.tuples(st.just(one[0]), one[1], st.just(one[2]))))
def test_values_of_every_type_are_read_as_they_were_written(given: tuple[pa.DataType, Any, Any]) -> None:
    """A value of every type is read back from its text."""
    kind, value, write = given

    assert read(write(value), kind) == value


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.int32(), pa.float32(), pa.bool_(), pa.date32(), ZONED])
def test_empty_text_is_null_whatever_the_type(kind: pa.DataType) -> None:
    """Empty text and null are null for every type, as the protocol says."""
    assert read("", kind) is None
    assert read(None, kind) is None


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("\x01\x02\x03", pa.binary(), b"\x01\x02\x03"),
        ("\\u0000\\u00fF", pa.binary(), b"\x00\xff"),
        ("é", pa.binary(), "é".encode()),
        ("NaN", pa.float64(), "nan"),
        ("-Infinity", pa.float32(), -np.inf),
        ("0E-10", pa.decimal128(10, 2), Decimal("0.00")),
        ("1E+3", pa.decimal128(10, 2), Decimal("1000.00")),
        ("-2342342.23423", pa.decimal128(12, 5), Decimal("-2342342.23423")),
        ("12345678901234567890123456789012345.678", pa.decimal128(38, 3), Decimal("12345678901234567890123456789012345.678")),
        ("TRUE", pa.bool_(), True),
        ("2021-9-8", pa.date32(), dt.date(2021, 9, 8)),
        ("2021-09-08 11:11", PLAIN, NAIVE),
        ("2021-09-08", PLAIN, NAIVE.replace(hour=0, minute=0)),
        ("2021-09-08T11:11:11.5+02:00", ZONED, dt.datetime(2021, 9, 8, 9, 11, 11, 500000, tzinfo=UTC)),
        ("2021-09-08T11:11:11.123456000Z", ZONED, dt.datetime(2021, 9, 8, 11, 11, 11, 123456, tzinfo=UTC)),
    ],
)
def test_values_are_read_in_all_their_spellings(text: str, kind: pa.DataType, value: Any) -> None:
    """Numbers, bytes and times are read in the spellings of Java, Rust and Python."""
    found = read(text, kind)

    assert str(found) == value if value == "nan" else found == value


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("x", pa.int32()),
        ("1.0", pa.int32()),
        ("1_000", pa.int32()),
        ("300", pa.int8()),
        ("1,5", pa.float64()),
        ("1_5", pa.float64()),
        ("2021-02-29", pa.date32()),
        ("-0001-02-29", pa.date32()),
        ("-0001-13-01", pa.date32()),
        ("+0000-00-01", pa.date32()),
        ("+10000-01-32", pa.date32()),
        ("+5881580-07-12", pa.date32()),
        ("-5877641-06-22", pa.date32()),
        ("+300000-01-01 00:00:00", ZONED),
        ("-0001-01-01 24:00:00", PLAIN),
        ("--001-01-01", pa.date32()),
        ("yes", pa.bool_()),
        ("1.234", pa.decimal128(10, 2)),
        ("NaN", pa.decimal128(10, 2)),
        ("x", pa.decimal128(10, 2)),
        ("123456789", pa.decimal128(5, 0)),
        ("2021-13-01", pa.date32()),
        ("yesterday", ZONED),
        ("2021-09-08T11:11:11.1234567Z", ZONED),
        ("2021-09-08T11:11:11Z", PLAIN),
        ("x", pa.list_(pa.int32())),
    ],
)
def test_a_value_that_does_not_fit_its_type_is_refused(text: str, kind: pa.DataType) -> None:
    """Text that is not a value of the column's type raises DataError, and never becomes null."""
    with pytest.raises(
        DataError, match=r"Partition column 'p' has the value .* which is not .*; expected a value of the column's type"
    ):
        read(text, kind)


def number(text: str, kind: pa.DataType, zone: dt.tzinfo = UTC) -> int:
    """Return the number that Arrow stores for one partition value: days or microseconds since 1970."""
    found = partition_column(pa.array([text], pa.string()), kind, zone, "'p'")
    stored: int = found.cast(pa.int32() if pa.types.is_date(kind) else pa.int64())[0].as_py()
    return stored


def spelt(year: int, sign: str = "+") -> str:
    """Return a year as Java and others write it."""
    return f"-{-year:04d}" if year < 0 else f"{sign if year > 9999 else ''}{year:04d}"


@given(st.integers(-5_877_000, 5_877_000), st.integers(1, 12), st.integers(1, 28), st.sampled_from(["", "+"]))
def test_days_of_every_year_are_read(year: int, month: int, day: int, sign: str) -> None:
    """Dates of all years, also before 1 and after 9999, are the same days as in NumPy."""
    expected = int(np.datetime64(f"{spelt(year)}-{month:02d}-{day:02d}").astype(np.int64))

    assert number(f"{spelt(year, sign)}-{month:02d}-{day:02d}", pa.date32()) == expected


@given(st.integers(-290_000, 290_000), st.integers(1, 12), st.integers(1, 28), st.integers(0, 86_399_999_999))
def test_timestamps_of_every_year_are_read(year: int, month: int, day: int, micros: int) -> None:
    """Timestamps are read with and without a zone, also in years outside Python's range."""
    seconds = micros // 1_000_000
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{micros % 1_000_000:06d}"
    text = f"{spelt(year)}-{month:02d}-{day:02d}"
    expected = int(np.datetime64(text).astype(np.int64)) * 86_400_000_000 + micros

    assert number(f"{text} {clock}", PLAIN) == expected
    assert number(f"{text}T{clock}Z", ZONED) == expected
    assert number(f"{text}T{clock}+01:30", ZONED) == expected - 5_400_000_000


def test_distant_timestamps_without_a_zone_use_the_zone_of_the_writer() -> None:
    """In the writer's zone, early timestamps use local mean time, and late ones the last known rules."""
    zone = ZoneInfo("America/Los_Angeles")
    mean = 7 * 3600 + 52 * 60 + 58

    for text in ("-0001-07-01 00:00:00", "0000-07-01 00:00:00", "0001-07-01 00:00:00"):
        assert number(text, ZONED, zone) - number(text, PLAIN) == mean * 1_000_000
    for year in ("9999", "+10000", "+10399", "+290000"):
        assert number(f"{year}-07-01 00:00:00", ZONED, zone) - number(f"{year}-07-01 00:00:00", PLAIN) == 7 * 3_600_000_000
        assert number(f"{year}-01-01 12:00:00", ZONED, zone) - number(f"{year}-01-01 12:00:00", PLAIN) == 8 * 3_600_000_000


def test_partitions_of_distant_years_are_read_and_filtered(tmp_path: Path) -> None:
    """Rows in partitions of distant years are read by batch and by row, and filters select them."""
    lake = Lake(tmp_path / "t")
    days = ["-0001-01-01", "0000-02-29", "2024-01-01", "+10000-12-31"]
    adds = [
        lake.add(f"{at}.parquet", pa.table({"id": [at]}), partition={"d": day, "t": f"{day} 01:02:03"})
        for at, day in enumerate(days)
    ]
    lake.commit(
        0, protocol(), metadata([column("id", "long"), column("d", "date"), column("t", "timestamp")], ["d", "t"]), *adds
    )
    ds = ps.open(lake.path)

    expected = [int(np.datetime64(day.lstrip("+")).astype(np.int64)) for day in days]
    assert ds.to_arrow()["d"].cast(pa.int32()).to_pylist() == expected
    (batch,) = ds.batch(4)
    assert batch["d"].astype(np.int64).tolist() == expected
    assert [int(row["id"]) for row in ds.where(ps.col("d") < dt.date(2000, 1, 1))] == [0, 1]
    assert [int(row["id"]) for row in ds.where(ps.col("t") > dt.datetime(2000, 1, 1, tzinfo=UTC))] == [2, 3]
    assert [int(row["id"]) for row in ds.where(ps.col("d") == dt.date(2024, 1, 1))] == [2]
    assert sorted(int(row["id"]) for row in ds.shuffle(seed=1)) == [0, 1, 2, 3]
    assert ds[0]["d"] == np.datetime64("-0001-01-01")


def test_timestamps_without_a_zone_use_the_zone_of_the_format(tmp_path: Path) -> None:
    """Timestamps without a zone are in the format's time zone, UTC by default; those with a zone do not need it."""
    lake = Lake(tmp_path / "t")
    adds = [
        lake.add(f"{at}.parquet", pa.table({"id": [at]}), partition={"p": text})
        for at, text in enumerate(["2021-07-08 11:11:11", "2021-07-08T11:11:11Z"])
    ]
    lake.commit(0, protocol(), metadata([column("id", "long"), column("p", "timestamp")], ["p"]), *adds)

    def hours(format: DeltaFormat) -> list[int]:  # noqa: A002 - as penstock.open has it
        rows = ps.open(lake.path, format=format).to_arrow().to_pylist()
        return [row["p"].astimezone(UTC).hour for row in sorted(rows, key=lambda row: int(row["id"]))]

    assert hours(DeltaFormat()) == [11, 11]
    assert hours(DeltaFormat(timezone="America/Los_Angeles")) == [18, 11]
    assert read("2021-07-08 11:11:11", ZONED, ZoneInfo("Asia/Tokyo")).hour == 2
    with pytest.raises(ArgumentError, match=r"DeltaFormat\(\) got timezone='Mars'"):
        ps.open(lake.path, format=DeltaFormat(timezone="Mars"))


def test_partitions_that_delta_rs_writes_are_read(tmp_path: Path) -> None:
    """Partition values of delta-rs are read with any characters, which its paths escape twice."""
    values = ["a b", "a/b", "a=b", "100%", "%41", "ü", "a:b", "é#?", "a\nb", "\U0001f600", " ", "null", None]
    write_deltalake(tmp_path / "t", pa.table({"p": values, "id": range(len(values))}), partition_by=["p"])
    ds = ps.open(tmp_path / "t")

    rows = {int(row["id"]): row["p"] for row in ds}
    assert rows == dict(enumerate(values))
    assert [int(row["id"]) for row in ds.where(ps.col("p") == "100%")] == [3]
    assert [int(row["id"]) for row in ds.where(ps.col("p").is_null())] == [12]


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: not text.startswith("/")))
def test_a_relative_path_is_decoded_and_resolved_in_the_table(name: str) -> None:
    """A relative path is percent-decoded and resolved inside the table, alone and among many alike."""
    written = quote(name, safe="/=")

    assert resolve(written, LOCAL) == f"/lake/t/{name}"
    assert resolve_all(pa.array([written, "x", None]), LOCAL).to_pylist() == [f"/lake/t/{name}", "/lake/t/x", None]


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///other/a.parquet", "/other/a.parquet"),
        ("file:/other/a%20b.parquet", "/other/a b.parquet"),
        ("/other/a%20b.parquet", "/other/a b.parquet"),
        ("FILE:///other/a.parquet", "/other/a.parquet"),
        ("time=10:00/a.parquet", "/lake/t/time=10:00/a.parquet"),
    ],
)
def test_absolute_paths_are_resolved(uri: str, path: str) -> None:
    """File URIs and absolute paths resolve to their own path, and a colon in a relative path is not a scheme."""
    assert resolve(uri, LOCAL) == path


def test_absolute_paths_on_other_systems() -> None:
    """A URI on the table's storage system resolves to its path there, and one on another system raises DataError."""
    memory = pafs.PyFileSystem(pafs.FSSpecHandler(fsspec.filesystem("memory")))
    place = Place(url="memory://t", filesystem=memory, path="/t")

    assert resolve("memory://u/a%20b.parquet", place) == "/u/a b.parquet"
    assert resolve("a.parquet", Place(url="", filesystem=memory, path="")) == "a.parquet"
    with pytest.raises(DataError, match=r"s3://bucket/a: a file of the table memory://t, but on another storage system"):
        resolve("s3://bucket/a", place)
    with pytest.raises(DataError, match="on another storage system"):
        resolve("hdfs://host/a", LOCAL)


@pytest.mark.skipif(not hasattr(pafs, "S3FileSystem"), reason="pyarrow was built without S3")
def test_absolute_paths_in_buckets() -> None:
    """S3 URIs resolve to their bucket and key, and an absolute path resolves to the table's bucket."""
    store = pafs.S3FileSystem(anonymous=True, region="eu-west-1")
    place = Place(url="s3://lake/t", filesystem=store, path="lake/t")

    assert resolve("s3a://other/t/a%3D1.parquet", place) == "other/t/a=1.parquet"
    assert resolve("/t/b.parquet", place) == "lake/t/b.parquet"


WANTED = pa.schema(
    {
        "n": pa.int64(),
        "f": pa.float64(),
        "s": pa.string(),
        "b": pa.bool_(),
        "d": pa.decimal128(38, 2),
        "o": pa.struct([("s", pa.string()), ("n", pa.int64())]),
    }
)
PLAINEST = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
OBJECTS = st.dictionaries(
    st.sampled_from("nfsbdox"), PLAINEST | st.dictionaries(st.sampled_from("snx"), PLAINEST, max_size=3), max_size=5
)


@given(st.lists(OBJECTS, min_size=1, max_size=5))
def test_lines_are_read_alike_together_and_one_by_one(rows: list[dict[str, Any]]) -> None:
    """Lines give the same values together and one by one, and an odd line changes no other."""
    lines = [json.dumps(row).encode() for row in rows]
    together = read_lines(lines, WANTED, strict=False).to_pylist()
    odd = read_lines([*lines, b'{"n": "odd", "s": "s", "s": "t"}'], WANTED, strict=False).to_pylist()

    assert together == [read_lines([line], WANTED, strict=False).to_pylist()[0] for line in lines]
    assert odd == [*together, {"n": None, "f": None, "s": "t", "b": None, "d": None, "o": None}]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"{", "is not a JSON object"),
        (b"[1]", "is not a JSON object"),
        (b'{"n": "x"}', "'n' is 'x', and not int64"),
        (b'{"o": [1]}', "'o' is"),
        (b'{"n": true}', "'n' is True, and not int64"),
        (b'{"n": "x", "a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "is not a JSON object"),
    ],
)
def test_strict_lines_are_refused_with_the_reason(line: bytes, complaint: str) -> None:
    """In strict mode, invalid JSON or a value of another type raises ValueError with the reason."""
    with pytest.raises(ValueError, match=complaint):
        read_lines([b'{"n": 1}', line], WANTED, strict=True)


def test_bounds_are_read_without_rounding() -> None:
    """Decimals keep their digits, numbers as text are read as numbers, and no lines give no rows."""
    lines = [b'{"d": 123456789012345678901234567890.12, "f": "NaN"}', b'{"d": "0.5", "f": 1}']

    found = read_lines(lines, WANTED, strict=False).to_pylist()
    assert [row["d"] for row in found] == [Decimal("123456789012345678901234567890.12"), Decimal("0.50")]
    assert str(found[0]["f"]) == "nan"
    assert read_lines([], WANTED, strict=True).num_rows == 0
