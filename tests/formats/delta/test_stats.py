"""Statistics in a Delta log: they prune files before any data file is opened."""

from __future__ import annotations

import datetime as dt
import json
import pickle
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from delta_logs import Lake, column, metadata, protocol, struct_of
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs as pafs

import penstock as ps
from penstock.errors import DataError
from penstock.filters import Column, Expr
from penstock.formats.delta.schema import StatsColumn
from penstock.formats.delta.stats import Statistics, _widen


class Watched(pafs.FileSystemHandler):  # type: ignore[misc] # pyarrow has no types
    """A local filesystem that counts how often each data file is opened."""

    def __init__(self) -> None:
        """Create an empty counter."""
        self.local, self.opened = pafs.LocalFileSystem(), Counter[str]()

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same object."""
        return self is other

    __hash__ = None  # type: ignore[assignment]

    def get_type_name(self) -> str:
        """Return a name."""
        return "watched"

    def normalize_path(self, path: str) -> str:
        """Return a path as it is."""
        return path

    def get_file_info(self, paths: Sequence[str]) -> Any:
        """Return the file infos of paths."""
        return self.local.get_file_info(paths)

    def get_file_info_selector(self, selector: pafs.FileSelector) -> Any:
        """Return the file infos of a directory."""
        return self.local.get_file_info(selector)

    def open_input_file(self, path: str) -> Any:
        """Open a file, and count it."""
        if "_delta_log" not in path:
            self.opened[Path(path).name] += 1
        return self.local.open_input_file(path)

    def open_input_stream(self, path: str) -> Any:
        """Open a file, and count it."""
        return self.open_input_file(path)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise PermissionError

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _refuse
    move = copy_file = open_output_stream = open_append_stream = _refuse


def watched(path: Path) -> tuple[ps.Dataset, Counter[str]]:
    """Return a dataset, and the counter of its opened data files."""
    handler = Watched()
    return ps.open(str(path), filesystem=pafs.PyFileSystem(handler)), handler.opened


def days(path: Path, files: int = 40) -> Path:
    """Write a table of small files, partitioned by day, each with its own range of ids."""
    lake = Lake(path)
    adds = []
    for at in range(files):
        low, high = at * 10, at * 10 + 9
        stats = {"numRecords": 10, "minValues": {"id": low}, "maxValues": {"id": high}, "nullCount": {"id": 0}}
        rows = pa.table({"id": range(low, high + 1)})
        adds.append(lake.add(f"day={at % 4}/{at}.parquet", rows, partition={"day": str(at % 4)}, stats=stats))
    lake.commit(0, protocol(), metadata([column("id", "long"), column("day", "integer")], ["day"]), *adds)
    return path


def test_planning_opens_no_small_file(tmp_path: Path) -> None:
    """Row counts, batch counts and shards of small files come from the log, so no file is opened."""
    ds, opened = watched(days(tmp_path / "t"))
    shuffled = ds.shuffle(ps.WindowShuffle(rows=100), seed=1).batch(20)

    assert (ds.num_rows, len(shuffled), ds.shard(1, 4).num_rows) == (400, 20, 400)
    assert opened == {}


def test_a_filter_on_a_partition_opens_no_other_file(tmp_path: Path) -> None:
    """A filter on a partition opens no file to count rows, and only the matching files to read them."""
    ds, opened = watched(days(tmp_path / "t"))
    asked = ds.where(ps.col("day") == 2).shuffle(ps.WindowShuffle(rows=1000), seed=1)

    assert asked.num_rows == 100
    assert opened == {}
    assert sorted(int(row["id"]) // 10 % 4 for row in asked) == [2] * 100
    assert opened == {f"{at}.parquet": 1 for at in range(2, 40, 4)}


def test_a_filter_on_statistics_opens_only_files_that_may_match(tmp_path: Path) -> None:
    """Counting opens only files that the statistics do not decide; reading opens only files with selected rows."""
    ds, opened = watched(days(tmp_path / "t"))
    asked = ds.where(ps.col("id") >= 375)

    assert asked.num_rows == 25
    assert set(opened) == {"37.parquet"}
    assert sorted(int(row["id"]) for row in asked) == list(range(375, 400))
    assert set(opened) == {"37.parquet", "38.parquet", "39.parquet"}


def test_the_first_batch_opens_only_what_its_window_needs(tmp_path: Path) -> None:
    """The first batch of a table of many small files opens only about the files of its window."""
    ds, opened = watched(days(tmp_path / "t", files=400))
    batches = iter(ds.shuffle(ps.WindowShuffle(rows=100), seed=1).batch(10).using(threads=1))
    next(batches)

    assert 10 <= len(opened) <= 44
    batches.close()


def test_statistics_of_files_prune_large_files_before_their_footers(tmp_path: Path) -> None:
    """The log prunes large files without reading their footers, and the footer of a matching file prunes row groups."""
    lake = Lake(tmp_path / "t")
    adds = []
    for at in range(3):
        low, high = at * 1000, at * 1000 + 999
        stats = {"numRecords": 1000, "minValues": {"id": low}, "maxValues": {"id": high}, "nullCount": {"id": 0}}
        adds.append(lake.add(f"{at}.parquet", pa.table({"id": range(low, high + 1)}), stats=stats))
        pq.write_table(pa.table({"id": range(low, high + 1)}), lake.path / f"{at}.parquet", row_group_size=100)
    lake.commit(0, protocol(), metadata([column("id", "long")]), *adds)
    ds, opened = watched(lake.path)
    asked = ds.where(ps.col("id").between(1250, 1349)).shuffle(ps.WindowShuffle(rows=400), seed=1)

    assert asked.num_rows == 100
    assert set(opened) == {"1.parquet"}
    assert "files       1 of 3" in asked.explain()
    assert "row groups  2 of 10" in asked.explain()


KINDS: dict[str, tuple[Any, pa.DataType, st.SearchStrategy[Any]]] = {
    "n": ("long", pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "i": ("integer", pa.int32(), st.integers(-5, 5)),
    "f": ("float", pa.float32(), st.floats(width=32)),
    "d": ("double", pa.float64(), st.floats()),
    "s": ("string", pa.string(), st.text(st.sampled_from("az\U0010ffff\U0001f600é"), max_size=40)),
    "m": ("decimal(20,4)", pa.decimal128(20, 4), st.decimals(-(10**15), 10**15, places=4)),
    "t": ("date", pa.date32(), st.dates()),
    "z": ("timestamp", pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(dt.UTC))),
    "w": ("timestamp_ntz", pa.timestamp("us"), st.datetimes()),
    "b": ("boolean", pa.bool_(), st.booleans()),
}


def stated(value: Any) -> Any:
    """Return a bound as writers state it in JSON: text is truncated, and timestamps have milliseconds."""
    if isinstance(value, dt.datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, float) and not np.isfinite(value):
        return {np.inf: "Infinity", -np.inf: "-Infinity"}.get(value, "NaN")
    if isinstance(value, str):
        return value[:32]
    return value if isinstance(value, bool | int | float) else str(value)


def json_stats(rows: pa.Table) -> dict[str, Any]:
    """Return the statistics that a writer states for a file."""
    low, high, nulls = {}, {}, {}
    for name in rows.column_names:
        values = [value for value in rows[name].to_pylist() if value is not None]
        nulls[name] = rows.num_rows - len(values)
        real = [value for value in values if value == value]  # noqa: PLR0124 - false for NaN
        if real:
            low[name], high[name] = stated(min(real)), stated(max(real))
    return {"numRecords": rows.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}


@given(st.data())
def test_filters_keep_the_same_rows_with_statistics_and_without(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A filter selects as many rows with statistics as without, for any values, conditions and stated bounds."""
    names = data.draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=3, unique=True))
    lake = Lake(tmp_path_factory.mktemp("lake") / "t")
    adds, every = [], []
    for at in range(data.draw(st.integers(1, 3))):
        count = data.draw(st.integers(1, 3))
        cells = {name: data.draw(st.lists(st.none() | KINDS[name][2], min_size=count, max_size=count)) for name in names}
        rows = pa.table({name: pa.array(cells[name], KINDS[name][1]) for name in names})
        every.append(rows)
        adds.append(lake.add(f"{at}.parquet", rows, stats=json_stats(rows)))
    lake.commit(0, protocol("timestampNtz"), metadata([column(name, KINDS[name][0]) for name in names]), *adds)
    table, ds = pa.concat_tables(every), ps.open(lake.path)
    name = data.draw(st.sampled_from(names))
    known = [value for value in table[name].to_pylist() if value is not None and value == value]  # noqa: PLR0124
    value = data.draw(st.sampled_from(known) | KINDS[name][2] if known else KINDS[name][2])
    if value != value:  # noqa: PLR0124
        value = 0.0

    for condition in conditions(ps.col(name), value, data):
        assert ds.where(condition).num_rows == int(condition.mask(table).sum()), condition


def conditions(asked: Column, value: Any, data: st.DataObject) -> list[Expr]:
    """Return conditions on a column."""
    found: list[Expr] = [asked.is_null(), asked.is_not_null(), asked == value, asked != value]
    if not isinstance(value, bool):
        found += [asked < value, asked <= value, asked > value, asked >= value, ~(asked > value)]
    if isinstance(value, str):
        found.append(asked.starts_with(value[: data.draw(st.integers(0, 33))]))
    return found


def test_truncated_bounds_of_text_are_not_exact(tmp_path: Path) -> None:
    """A truncated upper bound of text prunes no file with a selected row, because some writers do not raise it."""
    lake = Lake(tmp_path / "t")
    text = "a" * 32
    stats = {"numRecords": 1, "minValues": {"s": text}, "maxValues": {"s": text}, "nullCount": {"s": 0}}
    lake.commit(
        0, protocol(), metadata([column("s", "string")]), lake.add("0.parquet", pa.table({"s": [text + "z"]}), stats=stats)
    )
    ds = ps.open(lake.path)

    assert ds.where(ps.col("s") == text + "z").num_rows == 1
    assert ds.where(ps.col("s") == text).num_rows == 0
    assert ds.where(ps.col("s") > text).num_rows == 1


def test_bounds_of_floats_that_became_doubles_are_widened(tmp_path: Path) -> None:
    """Bounds of floats that became doubles are widened, because 0.1 as a float is more than 0.1 as a double."""
    lake = Lake(tmp_path / "t")
    notes = {"delta.typeChanges": [{"fromType": "float", "toType": "double"}]}
    stats = {"numRecords": 1, "minValues": {"x": 0.1}, "maxValues": {"x": 0.1}, "nullCount": {"x": 0}}
    add = lake.add("0.parquet", pa.table({"x": pa.array([0.1], pa.float32())}), stats=stats)
    lake.commit(0, protocol("typeWidening"), metadata([column("x", "double", notes)]), add)
    ds = ps.open(lake.path)

    assert ds.where(ps.col("x") > 0.1).num_rows == 1
    assert ds.where(ps.col("x") == float(np.float32(0.1))).num_rows == 1


def test_statistics_of_fields_and_of_mapped_columns_are_found(tmp_path: Path) -> None:
    """Statistics of struct fields and mapped columns are found under their stored names, and prune files."""
    lake = Lake(tmp_path / "t")
    inner = struct_of(column("x", "long", number=2, called="c-2"))
    fields = [
        column("s", inner, number=1, called="c-1"),
        column("a", "long", number=3, called="b"),
        column("b", "long", number=4, called="a"),
    ]
    adds = []
    for at in range(4):
        rows = pa.table({"c-1": [{"c-2": at}], "b": [at], "a": [-at]})
        bounds = {"c-1": {"c-2": at}, "b": at, "a": -at}
        stats = {"numRecords": 1, "minValues": bounds, "maxValues": bounds, "nullCount": {"c-1": {"c-2": 0}, "a": 0, "b": 0}}
        adds.append(lake.add(f"{at}.parquet", rows, stats=stats))
    lake.commit(0, protocol("columnMapping"), metadata(fields, delta__columnMapping__mode="name"), *adds)

    for condition in (ps.col("s")["x"] == 3, ps.col("a") == 3, ps.col("b") == -3):
        ds, opened = watched(lake.path)
        assert ds.where(condition).num_rows == 1
        assert opened == {}
        assert [row["a"] for row in ds.where(condition)] == [3]
        assert set(opened) == {"3.parquet"}


def test_struct_statistics_of_a_checkpoint_prune_files(tmp_path: Path) -> None:
    """Statistics in structs of a checkpoint prune files, beside text statistics of later commits."""
    lake = Lake(tmp_path / "t")
    kinds = {"i": pa.int32(), "z": pa.timestamp("us", "UTC"), "s": pa.string()}
    names = [
        column("i", "integer"),
        column("z", "timestamp"),
        column("s", "string"),
        column("n", struct_of(column("x", "long"))),
    ]

    def rows(at: int) -> pa.Table:
        moment = dt.datetime(2024, 1, 1 + at, 0, 0, 0, 5, tzinfo=dt.UTC)
        cells = {"i": [at], "z": [moment], "s": ["abc"[at % 3]]}
        return pa.table({**{name: pa.array(cells[name], kind) for name, kind in kinds.items()}, "n": [{"x": at}]})

    adds = [lake.add(f"{at}.parquet", rows(at), stats=None)["add"] for at in range(3)]
    bounds = pa.struct([*((name, kind) for name, kind in kinds.items()), ("n", pa.struct([("x", pa.int64())]))])
    counts = pa.struct([*((name, pa.int64()) for name in kinds), ("n", pa.struct([("x", pa.int64())]))])
    parsed = pa.struct([("numRecords", pa.int64()), ("minValues", bounds), ("maxValues", bounds), ("nullCount", counts)])

    def stats(at: int) -> dict[str, Any]:
        low = rows(at).to_pylist()[0] | {"z": dt.datetime(2024, 1, 1 + at, tzinfo=dt.UTC)}
        zero = {"i": 0, "z": 0, "s": 0, "n": {"x": 0}}
        return {"numRecords": 1, "minValues": low, "maxValues": low, "nullCount": zero}

    values = pa.map_(pa.string(), pa.string())
    kind = pa.struct([("path", pa.string()), ("partitionValues", values), ("size", pa.int64()), ("stats_parsed", parsed)])
    recorded = [
        {"path": add["path"], "partitionValues": [], "size": add["size"], "stats_parsed": stats(at)}
        for at, add in enumerate(adds)
    ]
    lake.parquet("head.parquet", [protocol(), metadata(names)])
    head = pq.read_table(lake.log / "head.parquet").drop_columns(["add"])
    (lake.log / "head.parquet").unlink()
    checkpoint = pa.concat_tables([head, pa.table({"add": pa.array(recorded, kind)})], promote_options="default")
    pq.write_table(checkpoint, lake.log / f"{4:020d}.checkpoint.parquet")
    text = {
        "numRecords": 1,
        "minValues": {"i": 3, "n": {"x": 3}},
        "maxValues": {"i": 3, "n": {"x": 3}},
        "nullCount": {"i": 0, "n": {"x": 0}},
    }
    lake.commit(5, lake.add("3.parquet", rows(3), stats=text))
    lake.commit(6, lake.add("4.parquet", rows(4), stats=None))

    ds, opened = watched(lake.path)
    assert sorted(ds.to_arrow()["i"].to_pylist()) == [0, 1, 2, 3, 4]
    opened.clear()
    for condition, found in ((ps.col("i") == 3, {"3.parquet"}), (ps.col("n")["x"] == 1, {"1.parquet"})):
        ds, opened = watched(lake.path)
        assert ds.where(condition).num_rows == 1
        assert set(opened) <= {*found, "4.parquet"}
    assert ds.where(ps.col("z") == dt.datetime(2024, 1, 2, 0, 0, 0, 5, tzinfo=dt.UTC)).num_rows == 1


@pytest.mark.parametrize(
    "stats",
    [
        "",
        "{",
        "[]",
        '{"numRecords": "many"}',
        '{"numRecords": -5}',
        '{"numRecords": 2, "minValues": 7, "maxValues": [], "nullCount": {"i": "x"}}',
        '{"numRecords": 2, "minValues": {"i": "x"}, "maxValues": {"i": {}}, "nullCount": {"i": 99}}',
        '{"numRecords": 2, "minValues": {"i": 99999999999}, "maxValues": {"i": 1e400}, "nullCount": {"i": -1}}',
        '{"numRecords": 2,\n "minValues": {"i": 1},\n "maxValues": {"i": 2}, "nullCount": {"i": 0}}',
    ],
)
def test_invalid_statistics_are_ignored(tmp_path: Path, stats: str) -> None:
    """Invalid statistics of a file lose no rows, neither of this file nor of others."""
    lake = Lake(tmp_path / "t")
    good = {"numRecords": 1, "minValues": {"i": 7}, "maxValues": {"i": 7}, "nullCount": {"i": 0}}
    adds = [
        lake.add("0.parquet", pa.table({"i": pa.array([1, 2], pa.int32())}), stats=None),
        lake.add("1.parquet", pa.table({"i": pa.array([7], pa.int32())}), stats=good),
    ]
    adds[0]["add"]["stats"] = stats
    lake.commit(0, protocol(), metadata([column("i", "integer")]), *adds)
    ds = ps.open(lake.path)

    assert ds.num_rows == 3
    assert [ds.where(ps.col("i") == value).num_rows for value in (1, 2, 7, 8)] == [1, 1, 1, 0]
    assert ds.where(ps.col("i").is_null()).num_rows == 0


def test_a_file_with_another_row_count_than_the_log_is_refused(tmp_path: Path) -> None:
    """A file whose row count differs from the log's raises an error, because orders depend on the log's count."""
    lake = Lake(tmp_path / "t")
    lake.commit(
        0, protocol(), metadata([column("i", "long")]), lake.add("0.parquet", pa.table({"i": [1, 2]}), stats={"numRecords": 3})
    )

    with pytest.raises(ps.PenstockError, match=r"0\.parquet: it has 2 rows, and the table's log says 3\. .*repair its log"):
        ps.open(lake.path).to_arrow()


def test_statistics_are_parsed_once_in_each_process(tmp_path: Path) -> None:
    """Statistics are parsed once; a pickled snapshot has them as compressed text, which is parsed again."""
    snapshot = ps.open(days(tmp_path / "t"))._table.snapshot
    ranges = snapshot.files.ranges
    assert isinstance(ranges, Statistics)
    first = ranges["id"]
    again = pickle.loads(pickle.dumps(snapshot)).files.ranges  # noqa: S301 - pickled right here

    assert ranges["id"] is first
    assert (list(ranges), len(ranges), "id" in ranges, "day" in ranges) == (["id"], 1, True, False)
    assert again["id"].low.equals(first.low)
    assert sorted(again["id"].high.to_pylist()) == [at * 10 + 9 for at in range(40)]
    assert again["id"].nulls.tolist() == [0] * 40
    assert len(ranges.texts) < ranges.size / 5


def test_statistics_of_delta_rs_prune_its_tables(tmp_path: Path) -> None:
    """For every type, statistics of delta-rs prune a query to one file, with the same rows as a full scan."""
    for at in range(5):
        rows = {
            "i": [at],
            "f": [at / 10],
            "s": [f"{at}" * 50],
            "m": [Decimal(at).scaleb(-2)],
            "t": [dt.date(2024, 1, 1 + at)],
            "z": [dt.datetime(2024, 1, 1 + at, 1, 2, 3, 456789, tzinfo=dt.UTC)],
        }
        write_deltalake(tmp_path / "t", pa.table(rows), mode="append")
    table = ps.open(tmp_path / "t").to_arrow()

    for name in table.column_names:
        for value in table[name].to_pylist():
            ds, opened = watched(tmp_path / "t")
            assert [row["i"] for row in ds.where(ps.col(name) == value)] == table.filter(pc.equal(table[name], value))[
                "i"
            ].to_pylist()
            assert len(opened) == 1, (name, value)


@given(
    values=st.lists(
        st.integers(-(10**20), 10**20) | st.integers(2**63 - 3, 2**63 + 3) | st.integers(-50, 50), min_size=1, max_size=4
    ),
    scale=st.integers(0, 18),
    asked=st.integers(0, 3),
    checkpoint=st.booleans(),
)
def test_decimals_are_found_although_their_bounds_are_rounded(
    values: list[int], scale: int, asked: int, tmp_path_factory: pytest.TempPathFactory, *, checkpoint: bool
) -> None:
    """Filters on decimals select the right rows, although delta-rs states bounds as doubles or cuts them to 64 bits."""
    place = tmp_path_factory.mktemp("decimals") / "t"
    numbers = [Decimal(value).scaleb(-scale) for value in values]
    write_deltalake(place, pa.table({"p": pa.array(numbers, pa.decimal128(38, scale))}))
    if checkpoint:
        DeltaTable(place).create_checkpoint()
    ds, p, value = ps.open(place), ps.col("p"), numbers[asked % len(numbers)]

    assert ds.where(p == value).num_rows == sum(number == value for number in numbers)
    assert ds.where(p != value).num_rows == sum(number != value for number in numbers)
    assert ds.where(p >= value).num_rows == sum(number >= value for number in numbers)
    assert ds.where(p < value).num_rows == sum(number < value for number in numbers)


def test_decimals_of_few_digits_prune_files(tmp_path: Path) -> None:
    """Bounds of decimals with up to fifteen digits are exact, so they prune files."""
    for start in (0, 100, 200):
        numbers = [Decimal(start + number).scaleb(-2) for number in range(100)]
        write_deltalake(tmp_path / "t", pa.table({"p": pa.array(numbers, pa.decimal128(9, 2))}), mode="append")

    (read,) = ps.open(tmp_path / "t").where(ps.col("p") < Decimal("0.50")).with_row_ids().to_arrow()["_file"].unique()
    others = [str(file) for file in (tmp_path / "t").glob("*.parquet") if str(file) != read.as_py()]
    for file in others:
        Path(file).unlink()

    assert len(others) == 2
    assert ps.open(tmp_path / "t").where(ps.col("p") < Decimal("0.50")).num_rows == 50


def test_a_file_that_the_log_calls_empty_is_read(tmp_path: Path) -> None:
    """A file is read even if the log says that it has no rows."""
    lake = Lake(tmp_path / "t")
    adds = [lake.add(f"{rows}.parquet", pa.table({"id": range(rows)}), stats={"numRecords": 0}) for rows in (3, 0)]
    lake.commit(0, protocol(), metadata([column("id", "long")]), *adds)

    assert ps.open(lake.path).num_rows == 3
    assert sorted(row["id"] for row in ps.open(lake.path)) == [0, 1, 2]


def test_a_file_that_was_replaced_is_refused(tmp_path: Path) -> None:
    """A file whose size differs from the log's raises DataChangedError, whenever it was replaced."""
    place = tmp_path / "t"
    write_deltalake(place, pa.table({"id": range(100)}))
    ds = ps.open(place)
    (file,) = place.glob("*.parquet")
    pq.write_table(pa.table({"id": range(5_000, 5_100), "more": ["x" * at for at in range(100)]}), file)

    for read in (lambda: ds[0], lambda: list(ds.batch(10)), lambda: list(ps.open(place))):
        with pytest.raises(ps.errors.DataChangedError, match=r"bytes, and the log of .* says \d+\. The file was replaced"):
            read()


def cut_by_spark(text: str) -> str:
    """Return the upper bound of a text as older versions of Spark state it: cut by 16-bit units, followed by U+FFFD."""
    data = text.encode("utf-16-le")
    units = [data[at : at + 2] for at in range(0, len(data), 2)]
    if len(units) <= 32:
        return text
    more = 32
    while more < len(units) and int.from_bytes(units[more], "little") >= 0xFFFD:
        more += 1
    whole = b"".join(units[:more]).decode("utf-16-le", "surrogatepass")
    return "".join("?" if 0xD800 <= ord(letter) < 0xE000 else letter for letter in whole) + "\ufffd"


LETTERS = st.sampled_from(["a", "?", "\ud7ff", "\ue000", "\ufffd", "\uffff", "\U00010000", "\U0001f600", "\U0010ffff"])


@given(text=st.text(LETTERS, max_size=40) | st.builds("x".__mul__, st.integers(28, 34)), more=st.text(LETTERS, max_size=6))
def test_widened_bounds_are_never_below_the_text(text: str, more: str) -> None:
    """A widened upper bound is at or above the text, whether its writer cut letters or 16-bit units."""
    whole = text + more
    leaf = StatsColumn(path=("s",), kind=pa.string(), from_float=False)
    units = whole.encode("utf-16-le")[:64].decode("utf-16-le", "surrogatepass")
    broken = "".join("?" if 0xD800 <= ord(letter) < 0xE000 else letter for letter in units)
    less = whole.encode("utf-16-le")[:64].decode("utf-16-le", "ignore")
    stated = [whole, whole[:32], cut_by_spark(whole), broken, less] + (
        [whole[:32] + "\U0010ffff"] if whole[32:33] < "\U0010ffff" else []
    )
    bounds = _widen(pa.array(stated), leaf, up=True).to_pylist()

    assert all(bound is None or bound.encode() >= whole.encode() for bound in bounds)


def test_bounds_of_short_texts_are_not_widened() -> None:
    """Bounds of short texts are exact, so they are not widened."""
    leaf = StatsColumn(path=("s",), kind=pa.string(), from_float=False)

    assert _widen(pa.array(["abc", "", None, "\U0001f600" * 15]), leaf, up=True).to_pylist() == [
        "abc",
        "",
        None,
        "\U0001f600" * 15,
    ]


@given(text=st.text(LETTERS, min_size=28, max_size=40), more=st.text(LETTERS, max_size=4))
def test_written_bounds_are_never_below_the_text(text: str, more: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A written upper bound is at or above every text, or is left out."""
    place, whole = tmp_path_factory.mktemp("cut") / "t", text + more
    ps.write(str(place), data={"s": ["a", whole]}, format="delta")
    log = (place / "_delta_log" / f"{0:020d}.json").read_text(encoding="utf-8").splitlines()
    (recorded,) = (json.loads(line)["add"]["stats"] for line in log if '"add"' in line)
    stated = json.loads(recorded)["maxValues"].get("s")

    assert stated is None or stated.encode() >= max("a", whole).encode()
    assert ps.open(place).where(ps.col("s") == whole).num_rows == (2 if whole == "a" else 1)


@pytest.mark.parametrize("first", [True, False])
def test_a_column_and_a_field_of_the_same_dotted_name_are_distinguished(tmp_path: Path, *, first: bool) -> None:
    """Statistics of the column 'a.b' do not apply to the field 'b' of the struct 'a', nor the other way round."""
    lake = Lake(tmp_path / "t")
    fields = [column("a.b", "long"), column("a", struct_of(column("b", "long")))]
    stated = {"a.b": 1, "a": {"b": 2}}
    stats = {"numRecords": 1, "minValues": stated, "maxValues": stated, "nullCount": {"a.b": 0, "a": {"b": 0}}}
    lake.commit(
        0,
        protocol(),
        metadata(fields if first else fields[::-1]),
        lake.add("0.parquet", pa.Table.from_pylist([stated]), stats=stats),
    )
    ds, name, inside = ps.open(lake.path), ps.col("a.b"), ps.col("a")["b"]

    assert [ds.where(asked).num_rows for asked in (name == 1, name == 2, inside == 1, inside == 2)] == [1, 0, 0, 1]


@pytest.mark.parametrize("text", ["null", "[]", "1", '"x"', " null", "\tnull "])
def test_statistics_that_are_not_an_object_are_ignored(tmp_path: Path, text: str) -> None:
    """Statistics that are not a JSON object are ignored, although Arrow's JSON reader crashes on some of them."""
    lake = Lake(tmp_path / "t")
    adds = [lake.add(f"{at}.parquet", pa.table({"id": [at]})) for at in range(2)]
    adds[0]["add"]["stats"] = text
    lake.commit(0, protocol(), metadata([column("id", "long")]), *adds)

    assert sorted(int(row["id"]) for row in ps.open(lake.path)) == [0, 1]
    assert ps.open(lake.path).where(ps.col("id") == 0).num_rows == 1


def with_structs(lake: Lake, *stats: pa.Array) -> None:
    """Write a checkpoint of one part and one file for each array, which replaces the struct of statistics."""
    count = len(stats)
    for at, recorded in enumerate(stats):
        name = f"{0:020d}.checkpoint.{at + 1:010d}.{count:010d}.parquet"
        start = [protocol(), metadata([column("id", "long")])] if at == 0 else []
        lake.parquet(name, [*start, lake.add(f"{at}.parquet", pa.table({"id": [at]}), stats=None)])
        whole = pq.read_table(lake.log / name)
        add = whole["add"].combine_chunks()
        fields = {field.name: add.field(field.name) for field in add.type}
        fields["stats_parsed"] = pa.concat_arrays([pa.nulls(len(start), recorded.type), recorded])
        place = whole.column_names.index("add")
        struct = pa.StructArray.from_arrays(list(fields.values()), names=list(fields), mask=add.is_null())
        pq.write_table(whole.set_column(place, "add", struct), lake.log / name)


@pytest.mark.parametrize(
    "recorded",
    [
        pa.array(["x"]),
        pa.array([[1]]),
        pa.nulls(1),
        *(
            pa.array([{"numRecords": count, "minValues": {"id": 0}, "nullCount": {"id": count}}])
            for count in ("x", 0.5, [1], {"a": 1}, b"\xff")
        ),
        pa.array([{"numRecords": 1, "minValues": 1, "maxValues": ["x"], "nullCount": "x"}]),
    ],
)
def test_invalid_struct_statistics_are_ignored(tmp_path: Path, recorded: pa.Array) -> None:
    """Struct statistics of wrong types are ignored, and the footers of files are used."""
    lake = Lake(tmp_path / "t")
    with_structs(lake, recorded)
    ds = ps.open(lake.path)

    assert ds.num_rows == 1
    assert ds.where(ps.col("id") == 0, ps.col("id").is_not_null()).num_rows == 1


def test_checkpoint_parts_with_different_types_of_statistics_are_refused(tmp_path: Path) -> None:
    """Parts of a checkpoint with different types of statistics raise DataError, which names the parts."""
    lake = Lake(tmp_path / "t")
    with_structs(lake, pa.array([{"numRecords": 1}]), pa.array([{"nullCount": {"id": 0}}]), pa.array([{"numRecords": "1"}]))

    with pytest.raises(
        DataError, match=r"0*3\.0*3\.parquet: the statistics in this file .* other types than those in .*0*1\.0*3\.parquet"
    ):
        ps.open(lake.path)
