"""Bad rows that are skipped: their batch is shorter, other rows do not move, and each is counted, listed and reported."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock._engine.decode.arrow import CellError
from penstock._engine.decode.bad_cells import BadRow, find_bad_rows
from penstock._engine.query.query import raised_by_map
from penstock.codecs import Jpeg, Raw
from penstock.errors import ArgumentError, DataError, MapError
from penstock.protocols import Shuffle
from penstock.schema import Field, Schema
from penstock.testing import example

ROWS, GROUP, FILES = 120, 15, 2
NULL, BYTES, LONG, RAISES = {7, 40, 41, 88}, {3, 41, 77}, {40, 100}, {12, 13, 14, 119}
"""Rows with a null, with a cell of too few bytes, with a list that is too long, and with an error in a map."""

SCHEMA = Schema("Bad", [Field("id", np.int64), Field("cell", np.uint8, (4,), Raw())])


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table with rows that are bad in several ways."""
    directory = tmp_path_factory.mktemp("bad")
    each = ROWS // FILES
    for file in range(FILES):
        numbers = range(file * each, (file + 1) * each)
        columns = {
            "id": pa.array(numbers, pa.int64()),
            "n": pa.array([None if number in NULL else number for number in numbers], pa.int32()),
            "cell": [bytes([number] * (3 if number in BYTES else 4)) for number in numbers],
            "list": [list(range(9 if number in LONG else number % 3)) for number in numbers],
        }
        pq.write_table(pa.table(columns), directory / f"{file}.parquet", row_group_size=GROUP)
    ps.adopt(directory, SCHEMA)
    return directory


def raising(row: dict[str, Any]) -> dict[str, Any]:
    """Raise on some rows, after changing them."""
    row = {**row, "id": row["id"] + 1000}
    if int(row["id"]) - 1000 in RAISES:
        msg = f"no {int(row['id']) - 1000}"
        raise LookupError(msg)
    return row


def raising_on_batches(batch: dict[str, Any]) -> dict[str, Any]:
    """Raise on batches with some rows, after changing all their rows in place."""
    batch["id"] += 1000
    for number in batch["id"].tolist():
        if number - 1000 in RAISES:
            msg = f"no {number - 1000}"
            raise LookupError(msg)
    return batch


def threads() -> list[str]:
    """Return the names of live Penstock threads."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock")]


def ids(batches: Iterator[dict[str, Any]] | ps.Dataset) -> list[list[int]]:
    """Return the ids of batches, or of single rows, without what maps added to them."""
    return [[int(number) % 1000 for number in np.atleast_1d(batch["id"])] for batch in batches]


def without(batches: list[list[int]], bad: set[int]) -> list[list[int]]:
    """Return batches without some rows, and without batches that become empty."""
    left = ([number for number in batch if number not in bad] for batch in batches)
    return [batch for batch in left if batch]


KINDS: list[tuple[set[int], tuple[str, ...], Callable[..., Any] | None, bool]] = [
    (NULL, ("id", "n"), None, False),
    (BYTES, ("id", "cell"), None, False),
    (LONG, ("id", "list"), None, False),
    (RAISES, ("id",), raising, True),
    (RAISES, ("id",), raising_on_batches, False),
    (NULL | BYTES | LONG | RAISES, ("id", "n", "cell", "list"), raising, True),
    (NULL | BYTES | LONG | RAISES, ("id", "n", "cell", "list"), raising_on_batches, False),
]
SHUFFLES: list[Shuffle] = [ps.InOrder(), ps.RowGroupShuffle(), ps.WindowShuffle(rows=50), ps.ExactShuffle(20)]


def query(
    table: Path, kind: tuple[set[int], tuple[str, ...], Callable[..., Any] | None, bool]
) -> tuple[ps.Dataset, ps.Dataset]:
    """Return a dataset with bad rows, and a dataset of the same rows without what makes them bad."""
    _, columns, function, per_row = kind
    clean = ps.open(table).select("id")
    ds = ps.open(table).select(*columns)
    if "list" in columns:
        ds = ds.ragged(ps.Pad(0, length=4), "list")
    return (ds if function is None else ds.map(function, per_row=per_row)), clean


@settings(max_examples=40)
@given(
    st.sampled_from(KINDS),
    st.sampled_from(SHUFFLES),
    st.integers(1, 3),
    st.sampled_from([None, 1, 4, 16, 30]),
    st.sampled_from(["uneven", "drop", "wrap"]),
    st.booleans(),
)
def test_skipping_shortens_batches_and_moves_nothing_else(
    table: Path,
    kind: tuple[set[int], tuple[str, ...], Callable[..., Any] | None, bool],
    shuffle: Shuffle,
    ranks: int,
    size: int | None,
    last: Any,
    lazy: bool,  # noqa: FBT001 - drawn
) -> None:
    """On any rank, each batch has its usual rows except the bad ones. Each bad row is listed once."""
    function, per_row = kind[2:]
    if (size is None and function is not None and not per_row) or (size is not None and size < 5 and ranks > 1):
        return  # the map needs batches, or ranks may differ in their number of batches
    dirty, clean = query(table, kind)
    lazy = lazy and size is None
    found, expected, skipped = [], [], []
    for rank in range(ranks):
        both = []
        for ds in (dirty, clean):
            each = ds.where(ps.col("id") >= 5, lazy=lazy).shuffle(shuffle, seed=ranks).shard(rank, ranks)
            both.append(each if size is None else each.batch(size, last=last))
        batches: Any = iter(both[0].on_bad_row("skip", most=1.0))
        found.append(ids(batches))
        skipped += [row.row + (row.file.endswith("1.parquet")) * (ROWS // FILES) for row in batches.skipped]
        expected.append(ids(both[1]))

    assert found == [without(rank, kind[0]) for rank in expected]
    seen = {number for rank in expected for batch in rank for number in batch}
    assert sorted(set(skipped)) == sorted(kind[0] & seen)
    assert len(skipped) == len(set(skipped)) or last == "wrap"
    assert threads() == []


@pytest.mark.parametrize(("kind", "size"), [(KINDS[1], 16), (KINDS[5], None), (KINDS[6], 16)])
def test_processes_skip_the_same_rows(table: Path, kind: Any, size: int | None) -> None:
    """Rows that cannot be decoded or mapped are skipped by processes as by threads."""
    ds = query(table, kind)[0].shuffle(ps.WindowShuffle(rows=50)).on_bad_row("skip", most=1.0)
    ds = ds if size is None else ds.batch(size)
    one: Any = iter(ds)
    two: Any = iter(ds.using(workers="processes", processes=2))

    assert ids(two) == ids(one)
    assert sorted(row.row for row in two.skipped) == sorted(row.row for row in one.skipped)
    assert threads() == []


def test_by_default_a_bad_row_raises_with_its_location(table: Path) -> None:
    """A bad row raises DataError by default, also after skipping was requested and revoked."""
    ds = ps.open(table).select("id", "n").batch(10)
    for each in (ds, ds.on_bad_row("raise"), ds.on_bad_row("skip").on_bad_row("raise")):
        with pytest.raises(DataError, match=r"0\.parquet, row group 0, row 7, column 'n': the value is null"):
            list(each)
    assert ds == ds.on_bad_row("raise")
    assert repr(ds.on_bad_row("skip", most=3)).endswith(".batch(10).on_bad_row('skip', most=3)")


def test_skipped_rows_are_listed_with_location_and_problem(table: Path) -> None:
    """A skipped row has file, row group, row, column or map, and epoch. A loader lists those of all its epochs."""
    loader = ps.loader(query(table, KINDS[5])[0].batch(16).on_bad_row("skip", most=1.0))
    list(loader)
    first = loader.skipped
    list(loader)

    bad = NULL | BYTES | LONG | RAISES
    assert [(row.epoch, row.row + ROWS // FILES * row.file.endswith("1.parquet")) for row in first] == [
        (0, number) for number in sorted(bad)
    ]
    reported = {row.row: row for row in first if row.file.endswith("0.parquet")}
    assert str(reported[3]) == f"{table}/0.parquet, row group 0, row 3, column 'cell': {reported[3].problem}"
    assert "3 bytes" in reported[3].problem
    assert (reported[7].row_group, reported[7].column) == (0, "n")
    assert (reported[12].row_group, reported[12].column, reported[12].problem) == (
        0,
        None,
        "map raising raised LookupError: no 12",
    )
    assert (reported[40].row_group, reported[40].column) == (2, "n")
    assert [row.epoch for row in loader.skipped[len(first) :]] == [1] * len(bad)
    assert loader.num_skipped == 2 * len(bad)


def test_damaged_images_are_skipped(tmp_path: Path) -> None:
    """A truncated or invalid image skips its own row only. Other images of its batch are complete."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (20, 16, 16, 3), np.uint8)
    schema = Schema("Photos", [Field("id", np.int64), Field("image", np.uint8, (16, 16, 3), Jpeg(quality=95))])
    codec = Jpeg(quality=95)
    cells = [codec.encode(schema["image"], image) for image in images]
    cells[6], cells[11] = cells[6][:200], b"no image"
    pq.write_table(pa.table({"id": range(20), "image": cells}), tmp_path / "a.parquet", row_group_size=5)
    ps.adopt(tmp_path, schema)
    batches: Any = iter(ps.open(tmp_path).batch(8).on_bad_row("skip", most=2))
    found = list(batches)

    assert ids(iter(found)) == [[0, 1, 2, 3, 4, 5, 7], [8, 9, 10, 12, 13, 14, 15], [16, 17, 18, 19]]
    assert all(batch["image"].shape == (len(batch["id"]), 16, 16, 3) for batch in found)
    for batch in found:
        for number, image in zip(batch["id"], batch["image"], strict=True):
            assert (image == codec.decode(schema["image"], memoryview(cells[number]))).all()
    assert [(row.row_group, row.row, row.column) for row in batches.skipped] == [(1, 6, "image"), (2, 11, "image")]


def test_the_first_good_row_of_a_batch_sets_the_length_of_lists(tmp_path: Path) -> None:
    """Lists that must have equal lengths are compared with the list of the first good row of their batch."""
    lists = [[0] * (3 if number == 5 else 2) for number in range(10)]
    pq.write_table(pa.table({"id": range(10), "list": lists}), tmp_path / "a.parquet")
    batches: Any = iter(ps.open(tmp_path).ragged(ps.RaiseIfRagged(), "list").batch(4).on_bad_row("skip", most=5))

    assert ids(batches) == [[0, 1, 2, 3], [4, 6, 7], [8, 9]]
    assert [row.row for row in batches.skipped] == [5]


def test_padded_batches_have_full_size(table: Path) -> None:
    """With last="pad", batches with skipped rows are padded to full size too, and padding is marked."""
    ds = ps.open(table).select("id", "n").batch(16, last="pad").on_bad_row("skip", most=1.0)
    plain = ps.open(table).select("id").batch(16, last="pad")

    for batch, whole in zip(ds, plain, strict=True):
        good = [number for number, valid in zip(whole["id"].tolist(), whole["_valid"], strict=True) if valid]
        good = [number for number in good if number not in NULL]
        assert len(batch["id"]) == len(batch["_valid"]) == 16
        assert batch["id"][batch["_valid"]].tolist() == good
        assert set(batch["id"][~batch["_valid"]].tolist()) <= {good[-1]}


def test_a_map_gets_unchanged_rows_on_every_attempt(table: Path) -> None:
    """If a map changes rows before it raises, the next attempt without the bad row gets unchanged rows."""
    ds = ps.open(table).select("id").shuffle(ps.WindowShuffle(rows=60)).batch(16)
    found = [batch["id"] for batch in ds.map(raising_on_batches).on_bad_row("skip", most=1.0)]

    assert all(1000 <= number < 1000 + ROWS for batch in found for number in batch.tolist())


def test_skipping_does_not_change_random_numbers(table: Path) -> None:
    """A map of rows gets the same random numbers for a row, whether or not others of its batch are bad."""

    def noisy(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        noise = rng.integers(1 << 60)
        return {"id": raising(row)["id"], "noise": noise}

    def quiet(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"id": row["id"] + 1000, "noise": rng.integers(1 << 60)}

    ds = ps.open(table).select("id").shuffle(seed=3).batch(16)
    skipping = ds.map(noisy, per_row=True).on_bad_row("skip", most=1.0)
    kept = {int(number): int(noise) for batch in skipping for number, noise in zip(batch["id"], batch["noise"], strict=True)}
    every = {
        int(number): int(noise)
        for batch in ds.map(quiet, per_row=True)
        for number, noise in zip(batch["id"], batch["noise"], strict=True)
    }

    assert len(kept) == len(every) - len(RAISES & {number - 1000 for number in every})
    assert kept.items() <= every.items()


@pytest.mark.parametrize("size", [None, 1, 16])
def test_a_resume_continues_with_the_next_good_row(table: Path, size: int | None) -> None:
    """After any step, a loader that loads the state continues with the next good row. `state_at` returns the same state."""
    ds = query(table, KINDS[5])[0].shuffle(ps.WindowShuffle(rows=50), seed=1).on_bad_row("skip", most=1.0)
    ds = ds if size is None else ds.batch(size)
    whole = ids(ds)
    loader = ps.loader(ds)
    batches: Any = iter(loader)
    for step in range(1, len(whole)):
        next(batches)
        if step % 7 and step < len(whole) - 2:
            continue
        state = loader.state_dict()
        again = ps.loader(ds)
        again.load_state_dict(json.loads(json.dumps(state)))
        assert ids(iter(again)) == whole[step:]
        assert loader.state_at(step) == state


def test_a_report_has_a_line_for_each_skipped_row(table: Path, tmp_path: Path) -> None:
    """The report is written during the iteration, new lines are appended, and every rank has its own file."""
    report = tmp_path / "bad.jsonl"
    ds = ps.open(table).select("id", "n").batch(10)
    batches = iter(ds.on_bad_row("skip", report=report, most=1.0))
    next(batches)
    assert [json.loads(line)["row"] for line in report.read_text().splitlines()] == [7]
    list(batches)
    lines = [json.loads(line) for line in report.read_text().splitlines()]

    assert {**lines[0], "problem": ""} == {
        "rank": 0,
        "epoch": 0,
        "file": f"{table}/0.parquet",
        "row_group": 0,
        "row": 7,
        "column": "n",
        "problem": "",
    }
    assert lines[0]["problem"].startswith("the value is null, and int32 has no value for a null.")
    assert len(lines) == len(NULL)
    list(ds.on_bad_row("skip", report=str(report), most=1.0))
    assert len(report.read_text().splitlines()) == 2 * len(NULL)
    for rank in range(2):
        list(ds.shard(rank, 2).on_bad_row("skip", report=report, most=1.0))
    texts = [(tmp_path / f"bad-rank{rank}.jsonl").read_text().splitlines() for rank in range(2)]
    assert sorted(json.loads(line)["row"] for text in texts for line in text) == sorted(row["row"] for row in lines)
    assert {json.loads(line)["rank"] for line in texts[1]} <= {1}
    with pytest.raises(ArgumentError, match=r"report='.*none/x', which cannot be written: No such file or directory\. Give a"):
        next(iter(ds.on_bad_row("skip", report=tmp_path / "none" / "x")))


@pytest.mark.parametrize(("most", "allowed"), [(0.01, 2), (3, 3), (0.03, 4)])
def test_more_bad_rows_than_allowed_raise(table: Path, most: float, allowed: int) -> None:
    """The error names the first row too many and both numbers. A second `next` raises it again."""
    ds = ps.open(table).select("id", "n").batch(5)
    batches: Any = iter(ds.on_bad_row("skip", most=most))
    if allowed >= len(NULL):
        list(batches)
        return
    with pytest.raises(DataError) as caught:
        list(batches)
    with pytest.raises(DataError) as again:
        next(batches)

    assert again.value is caught.value
    text = str(caught.value)
    worst = sorted(NULL)[allowed]
    assert text.startswith(f"{allowed + 1} of 120 rows were skipped in epoch 0, and most={most} allows {allowed}. The last: ")
    assert f"row {worst % (ROWS // FILES)}, column 'n': the value is null" in text
    assert text.endswith("Look at what they have in common (loader.skipped), or allow more: .on_bad_row('skip', most=...).")
    assert len(batches.skipped) == allowed + 1
    assert threads() == []


def test_a_batch_of_bad_rows_only_is_dropped(table: Path) -> None:
    """A single reader gets one batch less. Ranks that need equal numbers of batches raise an error instead."""
    ds = ps.open(table).select("id", "n").batch(1)
    batches: Any = iter(ds.on_bad_row("skip", most=1.0))

    assert len(ds.on_bad_row("skip")) == ROWS
    assert ids(batches) == [[number] for number in range(ROWS) if number not in NULL]
    with pytest.raises(DataError, match=r"All 1 rows of a batch are bad, .*Each of the 2 ranks must have the same number of"):
        list(ds.shard(0, 2).on_bad_row("skip", most=1.0))
    uneven = ds.batch(1, last="uneven").on_bad_row("skip", most=1.0)
    assert sum(len(ids(uneven.shard(rank, 2))) for rank in range(2)) == ROWS - len(NULL)


@pytest.mark.parametrize("size", [None, 2])
def test_an_epoch_that_ends_with_bad_rows_is_complete(tmp_path: Path, size: int | None) -> None:
    """After the last good row of an epoch, the state is that of the next epoch."""
    pq.write_table(pa.table({"id": range(6), "n": [0, 1, 2, 3, None, None]}), tmp_path / "n.parquet")
    ds = ps.open(tmp_path).on_bad_row("skip", most=2)
    ds = ds if size is None else ds.batch(size)
    loader, again = ps.loader(ds), ps.loader(ds)
    whole = [batch["id"].tolist() for batch in loader]
    again.load_state_dict(loader.state_dict())

    assert (loader.state_dict()["epoch"], loader.state_dict()["deals"]) == (1, [])
    assert [batch["id"].tolist() for batch in again] == whole == ([0, 1, 2, 3] if size is None else [[0, 1], [2, 3]])


def test_bad_rows_that_a_lazy_filter_removes_are_not_listed(tmp_path: Path) -> None:
    """A bad row that a lazy filter removes is not listed. A bad row that passes is listed, even if no row is left."""
    numbers = [0, 1, None, None, 4, 5, 6, 7]
    pq.write_table(pa.table({"id": range(8), "n": numbers}), tmp_path / "a.parquet")
    ds = ps.open(tmp_path).where(~ps.col("id").isin([2, 3]), lazy=True).on_bad_row("skip")

    for size, batches in ((2, [[0, 1], [4, 5], [6, 7]]), (3, [[0, 1, 4], [5, 6, 7]])):
        loader = ps.loader(ds.batch(size, last="uneven"))
        assert [batch["id"].tolist() for batch in loader] == batches
        assert loader.skipped == ()
    loader = ps.loader(ps.open(tmp_path).where(ps.col("id") == 2, lazy=True).batch(2).on_bad_row("skip", most=1))
    assert list(loader) == []
    assert [row.row for row in loader.skipped] == [2]
    assert (loader.state_dict()["epoch"], loader.state_dict()["deals"]) == (1, [])


def test_rows_by_number_are_never_skipped(table: Path) -> None:
    """Looking up a bad row raises an error, because the caller wants that very row."""
    ds = ps.open(table).select("id", "n").on_bad_row("skip")

    assert ds[8]["id"] == 8
    with pytest.raises(DataError, match="row 7, column 'n'"):
        ds.take([6, 7])
    assert ds.to_arrow().num_rows == ROWS


def test_errors_that_no_row_causes_are_raised(table: Path, tmp_path: Path) -> None:
    """Invalid results of maps, MemoryError, interrupts and truncated files raise errors instead of skipping rows."""
    ds = ps.open(table).select("id").batch(10).on_bad_row("skip", most=1.0)
    with pytest.raises(MapError, match="returned columns of other lengths"):
        list(ds.map(lambda batch: {"id": batch["id"][:1]}))
    with pytest.raises(MemoryError):
        list(ds.map(lambda _: (_ for _ in ()).throw(MemoryError("full"))))
    with pytest.raises(KeyboardInterrupt):
        list(ds.map(lambda _: (_ for _ in ()).throw(KeyboardInterrupt())))
    random = np.random.default_rng(0)
    large = Schema("Large", [Field("cell", np.uint8, (20_000,), Raw())])
    ps.write(tmp_path / "t", large, {"cell": random.integers(0, 256, (60, 20_000), np.uint8)}, row_group_rows=10)
    (path,) = (tmp_path / "t").glob("*.parquet")
    batches = iter(ps.open(tmp_path / "t").batch(2).using(threads=1).on_bad_row("skip", most=1.0))
    next(batches)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(DataError, match=r"the file ends after|the file was changed"):
        list(batches)
    assert threads() == []


def test_a_map_that_fails_on_whole_batches_only_raises(table: Path) -> None:
    """If a map fails on no single row, its error is raised and no row is skipped."""

    def whole(batch: dict[str, Any]) -> dict[str, Any]:
        if len(batch["id"]) > 5:
            msg = "too many"
            raise ValueError(msg)
        return batch

    with pytest.raises(ValueError, match="too many"):
        list(ps.open(table).select("id").batch(10).map(whole).on_bad_row("skip", most=1.0))


@pytest.mark.parametrize(("columns", "bad"), [(("id", "n"), NULL), (("id", "cell"), BYTES)])
def test_sequences_with_a_bad_row_are_skipped(table: Path, columns: tuple[str, ...], bad: set[int]) -> None:
    """A sequence is skipped if any of its rows is bad, and is listed under its first row."""
    three = ps.Sequence(length=3, by="id")
    ds = ps.open(table).select(*columns).sequence(three).batch(10)
    plain = ps.open(table).select("id").sequence(three)
    batches: Any = iter(ds.on_bad_row("skip", most=1.0))
    found = [[row.tolist() for row in batch["id"]] for batch in batches]
    expected = [[row.tolist() for row in batch["id"] if not bad & set(row.tolist())] for batch in plain.batch(10)]

    assert found == [batch for batch in expected if batch]
    assert len(batches.skipped) + sum(map(len, found)) == plain.num_rows
    assert all({row.row, row.row + 1, row.row + 2} & {number % (ROWS // FILES) for number in bad} for row in batches.skipped)
    assert {row.column for row in batches.skipped} == {columns[1]}


def test_a_mixture_refuses_sources_that_skip(table: Path) -> None:
    """A mixture has exact shares, so a source that skips rows raises ArgumentError."""
    ds = ps.open(table).select("id")
    with pytest.raises(ArgumentError, match=r"got source 1 with .on_bad_row\('skip'\).*Remove .on_bad_row\(\)."):
        ps.mix([(ds, 1), (ds.on_bad_row("skip"), 1)])


@pytest.mark.parametrize(
    ("action", "options", "reported"),
    [
        ("ignore", {}, "on_bad_row() got action='ignore'; expected 'raise' or 'skip'."),
        (
            "skip",
            {"most": 0},
            "on_bad_row() got most=0; expected a share of the rows above 0 and up to 1.0, or a positive integer",
        ),
        ("skip", {"most": 1.5}, "on_bad_row() got most=1.5;"),
        ("skip", {"most": True}, "on_bad_row() got most=True;"),
        ("skip", {"report": "s3://bucket/bad.jsonl"}, "expected the path of a local file."),
        ("skip", {"report": 3}, "on_bad_row() got report=3;"),
    ],
)
def test_invalid_arguments_of_on_bad_row_raise(table: Path, action: Any, options: dict[str, Any], reported: str) -> None:
    """`on_bad_row` raises ArgumentError for invalid arguments at once."""
    with pytest.raises(ArgumentError) as caught:
        ps.open(table).on_bad_row(action, **options)

    assert reported in str(caught.value)


@given(st.sets(st.integers(0, 40)), st.integers(0, 41))
def test_exactly_the_rows_that_fail_are_found(bad: set[int], count: int) -> None:
    """Halving finds all failing rows and no others, with a bounded number of attempts."""
    attempts = []

    def attempt(rows: Any) -> list[int]:
        attempts.append(len(rows))
        if bad & set(rows.tolist()):
            raise CellError("x", "bad", 0)
        return list(rows.tolist())

    made, found = find_bad_rows(np.arange(count), attempt)
    wrong = {row for row in bad if row < count}
    assert found == dict.fromkeys(sorted(wrong), BadRow(column="x", problem="bad"))
    good = [row for row in range(count) if row not in bad]
    assert made == (good or None)
    assert len(attempts) <= 2 + 2 * len(wrong) * max(1, count).bit_length()


def _breaks(_: Any) -> Any:
    msg = "no"
    raise ValueError(msg)


ALL_BAD = {
    "batches": lambda ds: ds.batch(2).map(_breaks),
    "rows": lambda ds: ds.map(_breaks),
    "maps of rows": lambda ds: ds.batch(2).map(_breaks, per_row=True),
    "rows that pass": lambda ds: ds.where(ps.col("id") > 3, lazy=True).batch(2).map(_breaks),
    "processes": lambda ds: ds.batch(2).map(_breaks).using(processes=1),
}


@pytest.mark.parametrize("query", ALL_BAD)
def test_an_endless_dataset_without_good_rows_raises(query: str) -> None:
    """If all rows are bad, an endless dataset raises DataError. A dataset with a last epoch is empty."""
    ds = ALL_BAD[query](example().on_bad_row("skip", most=1.0))

    with pytest.raises(DataError, match=r"All rows of a whole epoch are bad, the last because map _breaks raised Val"):
        next(iter(ps.loader(ds.repeat())))
    assert list(ps.loader(ds.repeat(3))) == []


def test_one_good_batch_per_epoch_is_enough() -> None:
    """An endless dataset continues if each epoch has a good batch, however many are skipped in between."""
    ds = example().on_bad_row("skip", most=1.0).batch(1).map(lambda batch: batch if batch["id"][0] == 9 else _breaks(batch))
    batches = iter(ps.loader(ds.repeat()))

    assert [next(batches)["id"].tolist() for _ in range(4)] == [[9]] * 4


def test_notes_of_others_name_no_map() -> None:
    """Only a note that the engine adds names the map that raised an error."""
    error = ValueError("boom")
    assert raised_by_map(error) is None
    error.add_note("While the model was trained")
    assert raised_by_map(error) is None
    error.add_note("Raised by map double, on the rows from position 3 of epoch 0.")
    assert raised_by_map(error) == "double"
