"""Sequences through the front door: counted, ordered, dealt, resumed and decoded like rows."""

from __future__ import annotations

import datetime as dt
import json
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import shuffles

import penstock as ps
from penstock._engine.deliver.consensus import shared_table
from penstock._engine.deliver.loader import Batches
from penstock.errors import (
    ArgumentError,
    ColumnNotFoundError,
    DataChangedError,
    DataError,
    EmptyDatasetError,
    RowNotFoundError,
    StateError,
    UnorderedError,
)
from penstock.protocols import Shuffle
from penstock.testing import MemoryFormat

Runs = list[tuple[int, ...]]
"""Sequences as the ids of their rows."""


def table(ids: Iterable[int], times: Iterable[int] | None = None, users: Iterable[str] | None = None) -> pa.Table:
    """Return rows whose columns follow from their id, so that a mixed-up row shows."""
    ids = list(ids)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "time": pa.array(ids if times is None else list(times), pa.int64()),
            "user": pa.array(["a" for _ in ids] if users is None else list(users), pa.string()),
            "name": pa.array([f"row {number}" for number in ids], pa.string()),
            "triple": pa.array([3.0 * number for number in ids], pa.float64()),
        }
    )


def counting(rows: int = 12, row_group_rows: int = 4, **options: Any) -> MemoryFormat:
    """Return a table of rows that are their own times."""
    return MemoryFormat.of(table(range(rows)), row_group_rows=row_group_rows, **options)


def runs(batches: Iterable[Mapping[str, Any]]) -> Runs:
    """Return the ids of all sequences, batched or not, padding left out; their columns must belong together."""
    found: Runs = []
    for batch in batches:
        ids = np.atleast_2d(batch["id"])
        assert np.atleast_2d(batch["triple"]).tolist() == (3.0 * ids).tolist()
        assert np.atleast_2d(batch["name"]).tolist() == [[f"row {number}" for number in row] for row in ids.tolist()]
        valid = batch.get("_valid", np.ones(len(ids), np.bool_))
        found += [tuple(row) for row, counts in zip(ids.tolist(), valid.tolist(), strict=True) if counts]
    return found


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache directory of this test's own."""
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "counts"


# What sequences there are.


@dataclass(frozen=True)
class Case:
    """A table, what is asked of it, and the sequences that it should give, in stored order of their first rows."""

    table: MemoryFormat
    sequence: ps.Sequence
    shuffle: Shuffle
    expected: Runs
    keeps: int | None = None

    def dataset(self) -> ps.Dataset:
        """Return the question, without ranks or batches."""
        ds = self.table.open().sequence(self.sequence).shuffle(self.shuffle, seed=3)
        return ds if self.keeps is None else ds.where(ps.col("third") != self.keeps)


def expected_of(rows: list[dict[str, Any]], sequence: ps.Sequence, length: int) -> Runs:
    """Return the sequences of rows that lie in stored order, by trying one window after the other."""
    found: list[tuple[int, tuple[int, ...]]] = []
    scopes = {(row["group"] if sequence.scope == "row_group" else 0, row["user"] if sequence.group else "") for row in rows}
    gap: Any = sequence.gap
    for scope in scopes:
        mine = [
            (place, row)
            for place, row in enumerate(rows)
            if (row["group"] if sequence.scope == "row_group" else 0, row["user"] if sequence.group else "") == scope
        ]
        mine.sort(key=lambda each: each[1]["time"])
        ended = None
        for at in range(len(mine) - length + 1):
            some = mine[at : at + length]
            close = gap is None or all(later["time"] - earlier["time"] <= gap for (_, earlier), (_, later) in pairwise(some))
            if close and (sequence.overlap or ended is None or some[0][1]["time"] > ended):
                found.append((some[0][0], tuple(row["id"] for _, row in some)))
                ended = some[-1][1]["time"]
    return [ids for _, ids in sorted(found)]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a table of files and row groups, some rows deleted or filtered, and what makes a sequence of them."""
    scope: Any = draw(st.sampled_from(["row_group", "table"]))
    sizes = draw(st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=3), min_size=1, max_size=3))
    total = sum(map(sum, sizes))
    times = draw(st.lists(st.integers(0, 12), min_size=total, max_size=total))
    times = sorted(times) if scope == "table" else times
    users = draw(st.lists(st.sampled_from("ab"), min_size=total, max_size=total))
    keeps = draw(st.none() | st.integers(0, 2))
    files, rows, deletes, number = [], [], {}, 0
    for at, file in enumerate(sizes):
        gone = draw(st.sets(st.integers(0, max(0, sum(file) - 1)), max_size=2)) if sum(file) else set()
        deletes[at] = sorted(gone)
        groups, first = [], number
        for size in file:
            ids = range(number, number + size)
            some = table(ids, times[number : number + size], users[number : number + size])
            groups.append(some.append_column("third", pa.array([one % 3 for one in ids], pa.int64())))
            rows += [
                {"id": one, "time": times[one], "user": users[one], "group": (at, len(groups))}
                for one in ids
                if one - first not in gone and (keeps is None or one % 3 != keeps)
            ]
            number += size
        files.append(groups)
    length = draw(st.integers(1, 4))
    sequence = ps.Sequence(
        length=length,
        by="time",
        gap=draw(st.none() | st.integers(0, 4)),
        overlap=draw(st.booleans()),
        group=draw(st.sampled_from([None, "user"])),
        scope=scope,
    )
    return Case(
        table=MemoryFormat(files, deletes=deletes, stated=draw(st.booleans())),
        sequence=sequence,
        shuffle=draw(shuffles),
        expected=expected_of(rows, sequence, length),
        keeps=keeps,
    )


@pytest.mark.slow
@given(cases(), st.integers(1, 5), st.integers(1, 4))
def test_every_sequence_comes_once_each_epoch(case: Case, ranks: int, size: int) -> None:
    """Over all ranks, whatever the shuffle, the filter, the deletes and the borders."""
    assert case.dataset().num_rows == len(case.expected)
    assume(case.expected)
    ranks = min(ranks, len(case.expected))
    readers = [ps.loader(case.dataset().shard(rank, ranks).batch(size, last="uneven")) for rank in range(ranks)]

    for _ in range(2):
        found = [run for reader in readers for run in runs(reader)]
        assert sorted(found) == sorted(case.expected)


@given(cases())
def test_stored_order_is_that_of_first_rows(case: Case) -> None:
    """Rows by number, slices, limits and plain iteration all count sequences in that order."""
    ds = Case(case.table, case.sequence, ps.InOrder(), case.expected, case.keeps).dataset()

    assert runs(ds) == case.expected
    assert len(ds) == len(case.expected)
    assert runs(ds.limit(3)) == case.expected[:3]
    assert runs([ds[1:]]) == case.expected[1:]
    if case.expected:
        assert runs([ds[-1]]) == case.expected[-1:]


@given(cases(), st.integers(1, 3), st.integers(1, 5), st.sampled_from(["drop", "pad", "wrap"]), st.data())
def test_a_resume_goes_on_with_the_sequences_that_are_left(
    case: Case, ranks: int, size: int, last: Any, data: st.DataObject
) -> None:
    """On as many ranks as before, batch for batch; on another number, with all that is left."""
    assume(case.expected)
    ranks = min(ranks, len(case.expected))
    size = min(size, len(case.expected) // ranks)
    ds = case.dataset().batch(size, last=last)
    first = [ps.loader(ds.shard(rank, ranks)) for rank in range(ranks)]
    taking = [iter(loader) for loader in first]
    stop = data.draw(st.integers(0, len(first[0])))
    before = [run for one in taking for _ in range(stop) for run in runs([next(one)])]
    state = json.loads(json.dumps(first[0].state_dict()))

    again = [ps.loader(ds.shard(rank, ranks)) for rank in range(ranks)]
    for loader in again:
        loader.load_state_dict(state)
    if stop == len(first[0]):  # the epoch has ended, and what comes is the next
        return
    assert [runs(loader) for loader in again] == [runs(one) for one in taking]
    others = data.draw(st.integers(1, len(case.expected) // size))
    elastic = [ps.loader(ds.shard(rank, others)) for rank in range(others)]
    for loader in elastic:
        loader.load_state_dict(state)
    after = [run for loader in elastic for run in runs(loader)]
    assert {*before, *after} <= {*case.expected}
    assert len({*before, *after}) > len(case.expected) - (others * size if last == "drop" else 1)
    assert last != "drop" or len({*before, *after}) == len(before) + len(after)


def test_row_groups_are_borders_unless_the_table_is_the_scope() -> None:
    """Four rows make two sequences of three; a table in order has no borders."""
    ds = counting().open()

    assert runs(ds.sequence(ps.Sequence(length=3, by="time"))) == [
        (0, 1, 2), (1, 2, 3), (4, 5, 6), (5, 6, 7), (8, 9, 10), (9, 10, 11)
    ]  # fmt: skip
    assert runs(ds.sequence(ps.Sequence(length=3, by="time", scope="table"))) == [(at, at + 1, at + 2) for at in range(10)]
    assert runs(ds.sequence(ps.Sequence(length=5, by="time"))) == []
    assert runs(ds.sequence(ps.Sequence(length=5, by="time", scope="table", overlap=False))) == [
        (0, 1, 2, 3, 4), (5, 6, 7, 8, 9)
    ]  # fmt: skip


def test_the_filter_acts_before_sequences_are_made() -> None:
    """What does not pass is not there: its neighbours follow one another."""
    ds = counting().open().where(ps.col("id") != 1, ps.col("id") != 6)

    assert runs(ds.sequence(ps.Sequence(length=3, by="time"))) == [(0, 2, 3), (4, 5, 7), (8, 9, 10), (9, 10, 11)]
    assert runs(ds.sequence(ps.Sequence(length=3, by="time", gap=1))) == [(8, 9, 10), (9, 10, 11)]


def test_parts_of_a_split_share_no_group() -> None:
    """Split by the column that sequences are grouped by, no sequence is torn apart."""
    rows = table(range(40), users=[f"user {number % 10}" for number in range(40)])
    ds = MemoryFormat.of(rows, row_group_rows=20).open().sequence(ps.Sequence(length=2, by="time", group="user"))

    parts = ds.split({"train": 0.5, "rest": 0.5}, by="user")

    assert sorted(runs(parts["train"]) + runs(parts["rest"])) == sorted(runs(ds))
    assert len(runs(ds)) == 20
    assert {run[0] % 10 for run in runs(parts["train"])}.isdisjoint({run[0] % 10 for run in runs(parts["rest"])})
    assert 0 < parts["train"].num_rows < 20


def test_groups_may_be_of_several_columns_and_lie_between_one_another() -> None:
    """A sequence has all columns of its group in common; null is a group too."""
    rows = table(range(8), users=["a", "b"] * 4).append_column("day", pa.array([1, 1, 1, 1, None, 2, None, 2], pa.int32()))
    ds = MemoryFormat.of(rows, row_group_rows=8).open().nulls(ps.Fill(0), "day")

    assert runs(ds.sequence(ps.Sequence(length=2, by="time", group=("user", "day")))) == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert runs(ds.sequence(ps.Sequence(length=2, by="time", group="day"))) == [(0, 1), (1, 2), (2, 3), (4, 6), (5, 7)]


@pytest.mark.parametrize("scope", ["row_group", "table"])
@pytest.mark.parametrize(
    ("values", "kind", "gap"),
    [
        ([-128, 126, 127], pa.int8(), 1),
        ([0, 2**64 - 2, 2**64 - 1], pa.uint64(), 1),
        ([-(2**63), 2**63 - 2, 2**63 - 1], pa.int64(), 1.5),
        ([0.0, 1.5, 2.0], pa.float32(), 0.5),
        ([0.0, 1.5, 2.0], pa.float16(), 0.5),
        ([Decimal("0.10"), Decimal("0.35"), Decimal("0.40")], pa.decimal128(9, 2), Decimal("0.05")),
        ([Decimal("0.10"), Decimal("0.35"), Decimal("0.40")], pa.decimal256(9, 2), 0.06),
        ([0, 10, 11], pa.timestamp("ns", "UTC"), np.timedelta64(1, "ns")),
        ([0, 10, 11], pa.timestamp("us"), dt.timedelta(microseconds=1)),
        ([0, 10, 11], pa.date32(), dt.timedelta(days=1)),
        ([0, 10 * 86_400_000, 11 * 86_400_000], pa.date64(), np.timedelta64(1, "D")),
        ([0, 10, 11], pa.time32("s"), np.timedelta64(1_999, "ms")),
        ([0, 10, 11], pa.time64("us"), dt.timedelta(microseconds=2)),
        ([0, 10, 11], pa.duration("ms"), dt.timedelta(milliseconds=1)),
    ],
)
def test_times_may_be_of_any_kind_that_has_an_order(values: list[Any], kind: pa.DataType, gap: Any, scope: Any) -> None:
    """Numbers go with gaps that are numbers, times with lengths of time; both are compared exactly."""
    values = [np.float16(value) for value in values] if kind == pa.float16() else values
    rows = table(range(3)).set_column(1, "time", pa.array(values, kind))
    ds = MemoryFormat.of(rows, row_group_rows=3).open()

    assert runs(ds.sequence(ps.Sequence(length=2, by="time", gap=gap, scope=scope))) == [(1, 2)]
    assert ds.sequence(ps.Sequence(length=2, by="time", scope=scope)).num_rows == 2


def test_times_and_groups_may_be_in_dictionaries() -> None:
    """How a column is stored does not matter."""
    rows = table([0, 1, 2, 3], users=["b", "a", "b", "a"])
    rows = rows.set_column(1, "time", rows["time"].dictionary_encode())
    rows = rows.set_column(2, "user", rows["user"].dictionary_encode())
    ds = MemoryFormat.of(rows, row_group_rows=2).open()

    assert runs(ds.sequence(ps.Sequence(length=2, by="time", group="user", scope="table"))) == [(0, 2), (1, 3)]


def test_groups_may_be_of_a_type_of_their_own() -> None:
    """What an extension type stores is what tells groups apart."""
    users = pa.ExtensionArray.from_storage(
        pa.uuid(), pa.array([bytes([number % 2] * 16) for number in range(4)], pa.binary(16))
    )
    rows = table(range(4)).set_column(2, "user", users)
    ds = MemoryFormat.of(rows, row_group_rows=4).open()

    assert runs(ds.sequence(ps.Sequence(length=2, by="time", group="user"))) == [(0, 2), (1, 3)]


def test_a_gap_without_bound_is_none() -> None:
    """Infinity, and whatever is more than any two times can be apart."""
    ds = counting(rows=4).open()

    for gap in (float("inf"), 2**70, Decimal(10) ** 30):
        assert ds.sequence(ps.Sequence(length=4, by="time", gap=gap)).num_rows == 1


# What comes out.


def test_a_column_has_one_dimension_more() -> None:
    """The second one, for the rows of each sequence."""
    rows = table(range(6)).append_column("v", pa.array([[number, -number] for number in range(6)], pa.list_(pa.int16(), 2)))
    ds = MemoryFormat.of(rows, row_group_rows=6).open().sequence(ps.Sequence(length=3, by="time"))
    (batch,) = ds.batch(4)

    assert {name: (values.shape, values.dtype) for name, values in batch.items()} == {
        "id": ((4, 3), np.int64),
        "time": ((4, 3), np.int64),
        "user": ((4, 3), object),
        "name": ((4, 3), object),
        "triple": ((4, 3), np.float64),
        "v": ((4, 3, 2), np.int16),
    }
    assert batch["v"][2].tolist() == [[2, -2], [3, -3], [4, -4]]
    assert [(field.name, field.shape) for field in ds.schema] == [
        ("id", (3,)), ("time", (3,)), ("user", (3,)), ("name", (3,)), ("triple", (3,)), ("v", (3, 2))
    ]  # fmt: skip
    assert next(iter(ds))["v"].shape == (3, 2)


def test_offsets_choose_the_rows_of_a_sequence() -> None:
    """The smallest is its first row and the largest its last; those between them count, but only those named come."""
    ds = counting(rows=6, row_group_rows=6).open()

    assert runs(ds.sequence(ps.Sequence(offsets=(2, -2, 0), by="time"))) == [(0, 2, 4), (1, 3, 5)]
    assert runs(ds.sequence(ps.Sequence(offsets=[7], by="time"))) == [(number,) for number in range(6)]
    assert runs(ds.sequence(ps.Sequence(offsets=range(-1, 2), by="time"))) == [(at, at + 1, at + 2) for at in range(4)]


def test_offsets_may_have_columns_of_their_own() -> None:
    """Each is handed out under its name and offset, offsets in ascending order."""
    ds = counting(rows=4, row_group_rows=4).open()
    asked = ds.sequence(ps.Sequence(offsets={1: ["name", "id"], -1: [ps.Field("id", np.int64), "tri.*"], 0: []}, by="time"))
    (batch,) = asked.batch(2)

    assert {name: values.tolist() for name, values in batch.items()} == {
        "id/-1": [0, 1],
        "triple/-1": [0.0, 3.0],
        "name/1": ["row 2", "row 3"],
        "id/1": [2, 3],
    }
    assert tuple(batch) == asked.schema.names
    assert {name: np.shape(values) for name, values in asked[0].items()} == dict.fromkeys(batch, ())


def test_the_column_of_times_need_not_be_handed_out() -> None:
    """It is read for the sequences' sake alone, and so is that of groups."""
    ds = counting().open().select("name").sequence(ps.Sequence(length=2, by="time", group="user"))

    assert {name: values.tolist() for name, values in ds[0].items()} == {"name": ["row 0", "row 1"]}


def test_row_ids_are_those_of_every_row() -> None:
    """They say where each row of a sequence lies, beyond borders too."""
    asked = counting(files=3).open().with_row_ids()
    row = asked.sequence(ps.Sequence(length=2, by="time", scope="table"))[3]
    by_offset = asked.sequence(ps.Sequence(offsets={0: ["id"], 1: []}, by="time", scope="table"))

    assert row["_file"].tolist() == ["part-0.parquet", "part-1.parquet"]
    assert row["_row_group"].tolist() == [0, 0]
    assert row["_row"].tolist() == [3, 0]
    assert {name: np.asarray(value).tolist() for name, value in by_offset[3].items()} == {
        "id/0": 3,
        "_file/0": "part-0.parquet",
        "_row_group/0": 0,
        "_row/0": 3,
        "_file/1": "part-1.parquet",
        "_row_group/1": 0,
        "_row/1": 0,
    }
    assert tuple(by_offset[3]) == by_offset.schema.names


def test_stacked_columns_are_vectors_of_each_row() -> None:
    """A stack stands in the last dimension, after that of rows."""
    ds = counting().open().select("id", "triple").sequence(ps.Sequence(length=2, by="time")).stack("both", ["triple", "id"])
    (first, *_) = ds.batch(2)

    assert first["both"].tolist() == [[[0.0, 0.0], [3.0, 1.0]], [[3.0, 1.0], [6.0, 2.0]]]
    assert ds.schema["both"].shape == (2, 2)


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_maps_get_sequences(workers: Any) -> None:
    """A batch of them, or one at a time; in other processes too."""
    ds = counting().open().sequence(ps.Sequence(length=3, by="time")).using(workers=workers, threads=2)

    sums = [batch["sum"].tolist() for batch in ds.batch(4).map(lambda batch: {"sum": batch["id"].sum(axis=1)})]
    rows = [int(row["first"]) for row in ds.map(lambda row: {"first": row["id"][0]})]
    named = ds.sequence(ps.Sequence(offsets={0: ["id", "name"], 1: ["id"]}, by="time")).batch(9)
    (both,) = named.map(lambda batch: {"pair": batch["id/0"] * 100 + batch["id/1"], "name": batch["name/0"]})

    assert sums == [[3, 6, 15, 18], [27, 30]]
    assert rows == [0, 1, 4, 5, 8, 9]
    assert both["pair"].tolist() == [1, 102, 203, 405, 506, 607, 809, 910, 1011]
    assert both["name"].tolist() == [f"row {number}" for number in (0, 1, 2, 4, 5, 6, 8, 9, 10)]


def test_batches_may_be_written_to() -> None:
    """They are gathered anew, so what is done to one shows in no other."""
    ds = counting().open().sequence(ps.Sequence(length=3, by="time")).batch(2)
    for batch in ds:
        batch["id"][:] = -1

    assert runs(ds)[0] == (0, 1, 2)


# Nulls and lists.


def lists() -> ps.Dataset:
    """Return rows of lists and nulls, in sequences of two."""
    rows = table(range(4)).append_column("n", pa.array([1, None, 3, 4], pa.int32()))
    rows = rows.append_column("l", pa.array([[1], [2, 3], [], [4]], pa.list_(pa.int32())))
    ds = MemoryFormat.of(rows, row_group_rows=4).open().select("n", "l").nulls(ps.Mask(), "n")
    return ds.sequence(ps.Sequence(length=2, by="time"))


def test_nulls_and_lists_become_what_was_asked_for() -> None:
    """Marks and lengths come by row too, and padding is as long as the longest list of the batch."""
    (batch,) = lists().ragged(ps.Pad(), "l").batch(3)

    assert {name: values.tolist() for name, values in batch.items()} == {
        "n": [[1, 0], [0, 3], [3, 4]],
        "n_valid": [[True, False], [False, True], [True, True]],
        "l": [[[1, 0], [2, 3]], [[2, 3], [0, 0]], [[0, 0], [4, 0]]],
        "l_length": [[1, 2], [2, 0], [0, 1]],
    }
    (deferred,) = lists().batch(3)
    assert [[cell.tolist() for cell in row] for row in deferred["l"]] == [[[1], [2, 3]], [[2, 3], []], [[], [4]]]


def test_values_and_offsets_are_those_of_all_rows() -> None:
    """Lists stand one after the other, sequence after sequence; those of two sequences come twice."""
    (batch,) = lists().ragged(ps.Offsets(), "l").batch(3)

    assert batch["l"].tolist() == [1, 2, 3, 2, 3, 4]
    assert batch["l_offsets"].tolist() == [0, 1, 3, 5, 5, 5, 6]


def test_policies_go_by_offset_too() -> None:
    """What a policy adds has the offset of its column."""
    rows = table(range(2)).append_column("n", pa.array([1, None], pa.int32()))
    ds = MemoryFormat.of(rows, row_group_rows=2).open().nulls(ps.Mask(), "n")
    named = ds.sequence(ps.Sequence(offsets={0: ["n"], 1: ["n"]}, by="time"))

    assert {name: np.asarray(value).tolist() for name, value in named[0].items()} == {
        "n/0": 1, "n_valid/0": True, "n/1": 0, "n_valid/1": False
    }  # fmt: skip
    assert tuple(named[0]) == named.schema.names


# Cells of a codec.


decoded: list[int] = []


@dataclass(frozen=True)
class Noted(ps.codecs.Npy):
    """A codec that notes which cells it decodes."""

    name = "noted"

    def decode_into(self, field: ps.Field, cells: Any, out: npt.NDArray[Any]) -> None:
        """Note the first value of each."""
        super().decode_into(field, cells, out)
        decoded.extend(out[:, 0].tolist())


def of_cells(rows: int, row_group_rows: int, *, broken: int | None = None) -> ps.Dataset:
    """Return rows with cells of a codec, one of which may be none."""
    field = ps.Field("x", np.float32, (3,), Noted())
    cells = [Noted().encode(field, np.full(3, number, np.float32)) for number in range(rows)]
    if broken is not None:
        cells[broken] = b"nonsense"
    made = MemoryFormat.of(table(range(rows)).append_column("x", pa.array(cells)), row_group_rows=row_group_rows)
    opened = made.open()._table
    return ps.Dataset(replace(opened, snapshot=replace(opened.snapshot, fields={"x": field})))


def test_a_cell_is_decoded_once_for_all_sequences_of_a_batch() -> None:
    """However many of them it is part of; of two row groups, each has its own."""
    decoded.clear()
    (batch,) = of_cells(16, 8).sequence(ps.Sequence(length=4, by="time")).batch(20)

    assert batch["x"].shape == (10, 4, 3)
    assert batch["x"][:, :, 2].tolist() == batch["time"].tolist()
    assert sorted(decoded) == list(range(16))


def test_cells_beyond_a_border_are_decoded_like_others() -> None:
    """Also where a window is let go of before its batch is full."""
    ds = of_cells(16, 2).sequence(ps.Sequence(length=4, by="time", scope="table"))

    for asked in (ds, ds.using(memory_limit=2_000), ds.shuffle(ps.WindowShuffle(rows=5), seed=1)):
        found = list(asked.batch(5, last="uneven"))
        assert sorted(row[0] for batch in found for row in batch["x"][:, :, 1].tolist()) == list(range(13))
        assert [batch["x"][:, :, 0].tolist() for batch in found] == [batch["time"].tolist() for batch in found]


def test_a_broken_cell_is_told_where_it_lies() -> None:
    """The file, row group and row of the cell itself, not of the sequence."""
    for scope in ("row_group", "table"):
        ds = of_cells(8, 4, broken=5).sequence(ps.Sequence(length=2, by="time", scope=scope))
        with pytest.raises(DataError, match=r"part-0.parquet, row group 1, row 5, column 'x': "):
            list(ds.batch(2))


# How it is read.


def test_a_unit_is_read_once() -> None:
    """In a window of several units, and in order; a border that is crossed reads the next unit for its first rows."""
    ds = counting(rows=40).open().shuffle(ps.WindowShuffle(rows=12), seed=1).batch(4, last="uneven")
    inside: Any = iter(ds.sequence(ps.Sequence(length=3, by="time")))
    runs(inside)
    across: Any = iter(ds.shuffle(ps.InOrder()).sequence(ps.Sequence(length=3, by="time", scope="table")))
    runs(across)

    assert inside.units_read == 10
    assert across.units_read == 10 + 9


def test_a_gap_at_a_border_needs_no_other_unit() -> None:
    """Only sequences that really go on read what comes after."""
    rows = table(range(8), [0, 1, 2, 3, 100, 101, 102, 103])
    ds = MemoryFormat.of(rows, row_group_rows=4).open().sequence(ps.Sequence(length=2, by="time", gap=1, scope="table"))
    batches: Any = iter(ds.batch(2))

    assert len(runs(batches)) == 6
    assert batches.units_read == 2


def test_how_a_shuffle_cuts_units_does_not_change_sequences() -> None:
    """Row groups are neither cut nor taken together, whatever the shuffle would do with rows."""
    ds = counting(rows=24, files=3, stated=True).open().sequence(ps.Sequence(length=3, by="time"))
    expected = sorted(runs(ds))

    for shuffle in (ps.WindowShuffle(rows=80), ps.WindowShuffle(rows=4, unit_rows=1), ps.ExactShuffle(rows=100)):
        found = runs(ds.shuffle(shuffle, seed=5))
        assert sorted(found) == expected
        assert found != expected
    assert [len(batch["id"]) for batch in ds.batch("row_group")] == [2] * 6


def test_windows_of_a_shuffle_are_counted_in_sequences() -> None:
    """What a window holds follows from how much of the table a sequence stands for."""
    rows = table(range(1000))
    ds = MemoryFormat.of(rows, row_group_rows=100).open().shuffle(ps.WindowShuffle(window_bytes=8_000), seed=1)
    every = ds.sequence(ps.Sequence(length=10, by="time"))._table.plan(ds.sequence(ps.Sequence(length=10, by="time"))._query)
    apart = ds.sequence(ps.Sequence(length=10, by="time", overlap=False))

    few = apart._table.plan(apart._query).shuffle.describe()["rows"]
    many = every.shuffle.describe()["rows"]
    assert isinstance(few, int)
    assert isinstance(many, int)
    assert many == pytest.approx(9.1 * few, rel=0.2)


def test_sequences_can_be_mixed() -> None:
    """A mixture hands out sequences as it does rows."""
    ds = counting().open().sequence(ps.Sequence(length=3, by="time"))
    found = runs(ps.mix([(ds, 1), (ds.shuffle(seed=2), 1)], stop="all").batch(4, last="uneven"))

    assert sorted(found) == sorted(runs(ds) * 2)


@pytest.mark.parametrize("size", [None, 2])
def test_workers_share_out_the_sequences_of_a_rank(size: int | None) -> None:
    """Each takes every so many-th batch, or single sequence, and together they take all."""
    ds = counting(rows=40).open().sequence(ps.Sequence(length=2, by="time", scope="table")).shuffle(seed=1)
    ds = ds if size is None else ds.batch(size)
    expected = runs(ds)

    parts = []
    for worker in range(3):
        batches = iter(ds)
        assert isinstance(batches, Batches)
        batches.only(worker, 3)
        parts.append(runs(batches))

    step = size or 1
    found = [parts[at // step % 3].pop(0) for at in range(len(expected))]
    assert found == expected


class Threads:
    """Ranks that are threads of this process."""

    def __init__(self, rank: int, size: int, told: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size, self._told, self._barrier = rank, size, told, barrier

    def share(self, told: Callable[[], Any]) -> Any:
        """Return what rank 0 says."""
        return self.gather(told if self.rank == 0 else lambda: None)[0]

    def gather(self, told: Callable[[], Any]) -> list[Any]:
        """Return what each rank says."""
        self._told[self.rank] = told()
        self._barrier.wait(30)
        found = list(self._told)
        self._barrier.wait(30)
        return found


@pytest.mark.parametrize("scope", ["row_group", "table"])
def test_ranks_that_work_together_agree_on_sequences(cache: Path, scope: Any) -> None:
    """They count together what each would have counted alone."""
    of = counting(rows=40, files=3)
    ds = of.open().sequence(ps.Sequence(length=3, by="time", scope=scope, overlap=False))
    told: list[Any] = [None] * 3
    barrier = threading.Barrier(3)

    def counts(rank: int) -> list[int]:
        table = shared_table(of.open()._table, ds._query, Threads(rank, 3, told, barrier))
        found: list[int] = table.plan(ds._query).plan.counts.tolist()
        return found

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(counts, range(3)))
    next(cache.iterdir()).unlink()

    assert found == [ds._table.plan(ds._query).plan.counts.tolist()] * 3
    assert sum(found[0]) == (13 if scope == "table" else 10)


# What is kept, and what it is named by.


@pytest.mark.parametrize("scope", ["row_group", "table"])
def test_sequences_are_counted_once_and_kept(cache: Path, scope: Any) -> None:
    """A second job over the same table reads footers, and no data to count; damage is noticed."""
    sequence = ps.Sequence(length=3, by="time", scope=scope, overlap=False)
    first, second, third, plain = counting(), counting(), counting(), counting()
    expected = runs(first.open().sequence(sequence))
    (kept,) = cache.iterdir()
    again = second.open().sequence(sequence).num_rows
    planned = plain.open().num_rows
    kept.write_bytes(b"nonsense")

    assert again == len(expected)
    assert (planned, second.opened) == (12, plain.opened)
    assert runs(third.open().sequence(sequence).shuffle(ps.InOrder(file_rows=8))) == expected
    assert kept.read_bytes() != b"nonsense"


def test_counts_that_were_kept_are_not_trusted(cache: Path) -> None:
    """What is read must have as many sequences as were counted, and the rows that they go on with."""
    inside = ps.Sequence(length=3, by="time")
    assert counting().open().sequence(inside).num_rows == 6
    (kept,) = cache.iterdir()
    np.save(kept, np.array([2, 1, 2]))
    with pytest.raises(DataChangedError, match=r"row group 1: it has 2 sequences, and the plan has 1. The file was changed"):
        list(counting().open().sequence(inside))
    kept.unlink()
    across = ps.Sequence(length=3, by="time", scope="table")
    assert counting().open().sequence(across).num_rows == 10
    (kept,) = cache.iterdir()
    with np.load(kept) as found:
        arrays = dict(found)
    np.savez(kept, **{**arrays, "row": np.where(arrays["unit"] == 1, 7, arrays["row"])})

    with pytest.raises(DataChangedError, match=r"row group 1: a row that a sequence goes on with is no longer there. The file"):
        list(counting().open().sequence(across))


def test_a_state_belongs_to_one_kind_of_sequence() -> None:
    """Columns, offsets that are handed out and the way a gap is written do not matter; what decides sequences does."""
    ds = counting().open().shuffle(seed=4)
    asked = ds.sequence(ps.Sequence(length=3, by="time", gap=2)).batch(2)
    loader = ps.loader(asked)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()

    same = ps.loader(ds.select("id").sequence(ps.Sequence(offsets=(-1, 1), by="time", gap=2.0)).batch(2))
    same.load_state_dict(state)
    assert [batch["id"].tolist() for batch in same] == [[[row[0], row[2]] for row in runs([batch])] for batch in batches]
    others: list[dict[str, Any]] = [
        {"gap": 3},
        {"overlap": False},
        {"scope": "table"},
        {"group": "user"},
        {"unordered": "raise"},
    ]
    for other in others:
        asked = ds.sequence(replace(ps.Sequence(length=3, by="time", gap=2), **other)).batch(2)
        with pytest.raises(StateError, match="since it was saved, the filter, sequence, shuffle, window or limit changed"):
            ps.loader(asked).load_state_dict(state)


def test_a_dataset_tells_of_its_sequence() -> None:
    """In its text, its equality and its explanation."""
    ds = counting(name="counting").open()
    asked = ds.limit(5).sequence(ps.Sequence(length=2, by="time", group="user", gap=1)).where(ps.col("id") > 2)
    named = ds.sequence(ps.Sequence(offsets={0: ["id"]}, by="time"))

    assert repr(asked) == (
        "penstock.open('memory:counting').where(col('id') > 2)"
        ".sequence(Sequence(length=2, by='time', gap=1, group='user')).limit(5)"
    )
    assert repr(named) == "penstock.open('memory:counting').sequence(Sequence(by='time', offsets={0: ('id',)}))"
    assert asked != ds.limit(5).sequence(ps.Sequence(length=2, by="time", group="user", gap=2)).where(ps.col("id") > 2)
    assert "  rows        5 sequences of 2 rows each, out of 12 rows" in asked.explain()
    assert ps.Sequence(length=2, by="t", group=["a"]) == ps.Sequence(length=2, by="t", group="a")
    assert hash(ps.Sequence(offsets={1: ["x"]}, by="t")) == hash(ps.Sequence(offsets={1: ("x",)}, by="t"))


# What is refused.


def test_rows_that_do_not_say_when_they_were_are_refused() -> None:
    """A null, or what is not a number, names its place; rows that a filter leaves out need no time."""
    rows = table(range(6)).set_column(1, "time", pa.array([0, 1, 2, 3, None, 5], pa.int64()))
    ds = MemoryFormat.of(rows, row_group_rows=3).open()
    floats = rows.set_column(1, "time", pa.array([0.0, 1.0, 2.0, float("nan"), 4.0, 5.0]))
    sequence = ps.Sequence(length=2, by="time")

    with pytest.raises(DataError) as error:
        ds.sequence(sequence).num_rows  # noqa: B018 - asking is what fails
    assert str(error.value) == (
        "part-0.parquet, row group 1, row 4, column 'time': the value is null, and a sequence needs the time of each row. "
        "Keep the rows that have a time: .where(penstock.col('time').is_not_null())."
    )
    assert runs(ds.sequence(sequence).where(ps.col("time").is_not_null())) == [(0, 1), (1, 2), (3, 5)]
    with pytest.raises(DataError, match="row group 1, row 3, column 'time': the value is nan, and a sequence needs the time"):
        MemoryFormat.of(floats, row_group_rows=3).open().sequence(sequence).num_rows  # noqa: B018 - the same


def test_times_that_cannot_be_counted_are_refused() -> None:
    """Decimals may be larger than sequences can go by."""
    rows = table(range(2)).set_column(1, "time", pa.array([Decimal(1), Decimal(10) ** 30], pa.decimal128(38, 2)))

    with pytest.raises(DataError, match=r"part-0.parquet, row group 0, column 'time': it has values that do not fit 64 bits: "):
        MemoryFormat.of(rows, row_group_rows=2).open().sequence(SEQUENCE).num_rows  # noqa: B018 - asking is what fails


def test_rows_out_of_order_are_sorted_or_refused() -> None:
    """Inside a row group that is for the user to say; rows of one time stay as they are stored."""
    ds = MemoryFormat.of(table(range(4), [3, 1, 2, 1]), row_group_rows=4).open()

    assert runs(ds.sequence(ps.Sequence(length=4, by="time"))) == [(1, 3, 2, 0)]
    with pytest.raises(UnorderedError) as error:
        ds.sequence(ps.Sequence(length=4, by="time", unordered="raise")).num_rows  # noqa: B018 - asking is what fails
    assert str(error.value) == (
        "part-0.parquet, row group 0, row 1, column 'time': it is earlier than the row before it, and "
        'unordered="raise" is set. Write the table in the order of time, or use unordered="sort".'
    )
    assert ds.sequence(ps.Sequence(length=5, by="time", unordered="raise")).num_rows == 0


def test_row_groups_out_of_order_are_refused_where_they_are_crossed() -> None:
    """The table's scope needs them to follow one another, group by group."""
    rows = table(range(6), [0, 1, 5, 4, 6, 7], ["a", "b", "a", "a", "a", "b"])
    ds = MemoryFormat.of(rows, row_group_rows=3, files=2).open()

    assert ds.sequence(ps.Sequence(length=2, by="time")).num_rows == 4
    with pytest.raises(UnorderedError) as error:
        ds.sequence(ps.Sequence(length=2, by="time", scope="table", group="user")).num_rows  # noqa: B018 - asking fails
    assert str(error.value) == (
        "part-1.parquet, row group 0, row 0, column 'time': it is earlier than a row of the same 'user' in part-0.parquet, row "
        'group 0, which comes before it. scope="table" needs row groups in the order of time. Write the table in the order of '
        'time, or use scope="row_group".'
    )
    by_user = table(range(6), [0, 1, 5, 3, 4, 7], ["a", "a", "a", "b", "b", "b"])
    sorted_by_user = MemoryFormat.of(by_user, row_group_rows=2).open()
    assert runs(sorted_by_user.sequence(ps.Sequence(length=2, by="time", scope="table", group="user"))) == [
        (0, 1), (1, 2), (3, 4), (4, 5)
    ]  # fmt: skip


@pytest.mark.parametrize("length", [10**9, 2**62])
@pytest.mark.parametrize("options", [{"scope": "table"}, {"scope": "table", "group": "user"}, {}, {"overlap": False}])
def test_a_sequence_longer_than_any_table_takes_no_memory(length: int, options: dict[str, Any]) -> None:
    """Time and memory go by the rows there are, and not by those asked for."""
    ds = counting().open().sequence(ps.Sequence(length=length, by="time", **options))

    assert (ds.num_rows, len(ds), len(ds.batch(2))) == (0, 0, 0)
    assert ds.schema["id"].shape == (length,)


def test_a_long_sequence_of_few_rows_of_many_groups_is_found() -> None:
    """What is kept of a group goes by its rows: a long one does not make the short ones long."""
    users = [*(str(number) for number in range(50)), *["long"] * 60, *(str(number) for number in range(50))]
    found = MemoryFormat.of(table(range(160), users=users), row_group_rows=7).open()
    ds = found.sequence(ps.Sequence(length=59, by="time", scope="table", group="user"))

    assert runs(ds) == [tuple(range(50, 109)), tuple(range(51, 110))]


def test_too_few_sequences_are_told_as_such() -> None:
    """What was looked for is part of the text."""
    with pytest.raises(EmptyDatasetError) as error:
        list(counting(name="counting").open().sequence(ps.Sequence(length=5, by="time")).batch(2))
    assert str(error.value) == (
        "memory:counting has 0 sequences to hand out by Sequence(length=5, by='time'). At least one is needed. Check the "
        "filter, or ask `ds.num_rows` first where none may be right."
    )
    with pytest.raises(RowNotFoundError, match=r"Sequence 6 is not among the 6 sequences of memory:counting\. Sequences count"):
        counting(name="counting").open().sequence(ps.Sequence(length=3, by="time"))[6]


SEQUENCE = ps.Sequence(length=2, by="time")
BY_OFFSET = ps.Sequence(offsets={0: ["id"]}, by="time")


@pytest.mark.parametrize(
    ("ask", "kind", "text"),
    [
        (lambda ds: ds.sequence(3), ArgumentError, "sequence() got 3; expected a Sequence object, for example penstock."),
        (
            lambda ds: ds.sequence(ps.Sequence(length=2, by="when")),
            ColumnNotFoundError,
            "Column 'when' is not in memory:counting",
        ),
        (
            lambda ds: ds.sequence(ps.Sequence(length=2, by="time", group="users")),
            ColumnNotFoundError,
            "Column 'users' is not in memory:counting. Columns: id, time, user, name, triple. Did you mean 'user'?",
        ),
        (
            lambda ds: ds.sequence(ps.Sequence(offsets={0: ["i"]}, by="time")),
            ColumnNotFoundError,
            "Column 'i' is not in memory:counting",
        ),
        (
            lambda ds: ds.sequence(ps.Sequence(length=2, by="name")),
            ArgumentError,
            "Sequence got by='name', which is a column of string; expected a column of numbers, decimals, dates or "
            "times. Give the column with the time of each row.",
        ),
        (
            lambda ds: ds.sequence(ps.Sequence(length=2, by="time", group="triple")),
            ArgumentError,
            "Sequence got group='triple', which is a column of double; expected a column of whole numbers, text, "
            "bytes, dates or times. Give a column of such values.",
        ),
        (
            lambda ds: ds.sequence(ps.Sequence(length=2, by="time", gap=dt.timedelta(1))),
            ArgumentError,
            "Sequence got gap=datetime.timedelta(days=1), which is a length of time, and column 'time' is of int64. "
            "Give a number.",
        ),
        (
            lambda ds: ds.sequence(SEQUENCE).where(ps.col("id") > 1, lazy=True),
            ArgumentError,
            "sequence() does not combine with a lazy filter: sequences are made of the rows that pass it. Remove lazy=True.",
        ),
        (
            lambda ds: ds.sequence(BY_OFFSET).select("name"),
            ArgumentError,
            "select() does not combine with Sequence(by='time', offsets={0: ('id',)}), which selects the columns of each "
            "offset itself. Remove select(), or give offsets without columns.",
        ),
        (
            lambda ds: ds.select("name").sequence(BY_OFFSET),
            ArgumentError,
            "select() does not combine with Sequence(by='time'",
        ),
        (
            lambda ds: ds.sequence(BY_OFFSET).stack("x", ["id"]),
            ArgumentError,
            "stack('x') does not combine with Sequence(by='time', offsets={0: ('id',)}), whose offsets have columns of "
            "their own. Remove it, or give offsets without columns.",
        ),
        (
            lambda ds: ds.sequence(BY_OFFSET).ragged(ps.Offsets(), "i[d]"),
            ArgumentError,
            "Offsets() for column 'id' does not combine with Sequence(by='time'",
        ),
        (
            lambda ds: ds.sequence(SEQUENCE).to_arrow(),
            ArgumentError,
            "to_arrow shows rows as they are stored, and this dataset has sequences. Iterate over it, or leave them out.",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(ask: Callable[[ps.Dataset], Any], kind: type[Exception], text: str) -> None:
    """Each with what was wrong, what was expected and what to do."""
    ds = counting(name="counting").open()

    with pytest.raises(kind, match=re.escape(text)):
        ask(ds)


def test_a_number_is_no_length_of_time() -> None:
    """Of times, a gap has a unit."""
    rows = table(range(3)).set_column(1, "time", pa.array([0, 1, 2], pa.timestamp("us")))

    with pytest.raises(ArgumentError) as error:
        MemoryFormat.of(rows, row_group_rows=3).open().sequence(ps.Sequence(length=2, by="time", gap=5))
    assert str(error.value) == (
        "Sequence got gap=5, which is not a length of time, and column 'time' is of timestamp[us]. "
        "Give datetime.timedelta(...)."
    )


def test_a_clause_that_is_called_again_replaces_the_first() -> None:
    """Also where the first had columns of its own."""
    ds = counting(rows=4).open()

    assert ds.sequence(BY_OFFSET).sequence(SEQUENCE) == ds.sequence(SEQUENCE)
    assert ds.sequence(SEQUENCE).sequence(BY_OFFSET) == ds.sequence(BY_OFFSET)
    assert ds.sequence(BY_OFFSET).sequence(BY_OFFSET) == ds.sequence(BY_OFFSET)


@pytest.mark.parametrize(
    ("given_", "text"),
    [
        ({}, "Sequence() got length=None and offsets=None; expected one of them, for example length=3 or offsets=(-1, 0, 1)."),
        ({"length": 2, "offsets": (0, 1)}, "Sequence() got length=2 and offsets=(0, 1); expected one of them"),
        ({"length": 0}, "Sequence() got length=0; expected a positive integer, for example length=3."),
        ({"length": True}, "Sequence() got length=True; expected a positive integer"),
        ({"length": 2.0}, "Sequence() got length=2.0; expected a positive integer"),
        ({"offsets": (0, 0.5)}, "Sequence() got offsets=0.5; expected integers"),
        (
            {"offsets": 3},
            "Sequence() got offsets=3; expected integers, for example offsets=(-1, 0, 1).",
        ),
        ({"offsets": "01"}, "Sequence() got offsets='01'; expected integers"),
        ({"offsets": ()}, "Sequence() got offsets=(); expected at least one offset, and each one once."),
        ({"offsets": [1, 1]}, "Sequence() got offsets=[1, 1]; expected at least one offset"),
        (
            {"offsets": {0: "id"}},
            "Sequence() got 'id' as columns of offset 0; expected a list of names, regular expressions or fields, for example "
            "{0: ['image', 'label']}.",
        ),
        ({"offsets": {0: [1]}}, "Sequence() got [1] as columns of offset 0;"),
        ({"offsets": {0: None}}, "Sequence() got None as columns of offset 0;"),
        (
            {"length": 10**30},
            f"Sequence() got length of {10**30} rows; expected at most 2**62 rows.",
        ),
        ({"offsets": (-(2**61), 0, 2**62)}, f"Sequence() got offsets of {3 * 2**61 + 1} rows; expected at most 2**62 rows."),
        (
            {"length": 2, "by": 3},
            "Sequence() got by=3; expected the name of the column with the times, for example by='time'.",
        ),
        ({"length": 2, "group": ()}, "Sequence() got group=(); expected the name of a column, or several names"),
        ({"length": 2, "group": 3}, "Sequence() got group=3; expected the name of a column"),
        ({"length": 2, "group": ("a", "a")}, "Sequence() got group=('a', 'a'); expected the name of a column"),
        ({"length": 2, "overlap": 1}, "Sequence() got overlap=1; expected a bool"),
        ({"length": 2, "scope": "file"}, "Sequence() got scope='file'; expected 'row_group' or 'table'."),
        ({"length": 2, "unordered": "skip"}, "Sequence() got unordered='skip'; expected 'sort' or 'raise'."),
        (
            {"length": 2, "gap": -1},
            "Sequence() got gap=-1; expected a non-negative number or timedelta, or None.",
        ),
        ({"length": 2, "gap": dt.timedelta(seconds=-1)}, "expected a non-negative number or timedelta"),
        (
            {"length": 2, "gap": "1s"},
            "Sequence() got gap='1s'; expected a number or a timedelta, for example gap=10.",
        ),
        ({"length": 2, "gap": float("nan")}, "Sequence() got gap=nan; expected a number or a timedelta"),
        ({"length": 2, "gap": True}, "Sequence() got gap=True; expected a number or a timedelta"),
        ({"length": 2, "gap": np.timedelta64(1, "M")}, "expected a number or a timedelta"),
        ({"length": 2, "gap": np.timedelta64("NaT")}, "expected a number or a timedelta"),
    ],
)
def test_a_sequence_that_cannot_be_is_refused(given_: dict[str, Any], text: str) -> None:
    """Before any table is asked."""
    with pytest.raises(ArgumentError, match=re.escape(text)):
        ps.Sequence(**{"by": "time", **given_})


# As users of Petastorm know it.


def test_ngrams_of_petastorm_are_sequences() -> None:
    """Its own examples: a threshold that is inclusive, row groups as borders, and timestamps that do not overlap."""
    ids = [0, 3, 8, 10, 11, 20, 23]
    by_ten = [[number for number in ids if number // 10 == ten] for ten in range(3)]
    apart = MemoryFormat([[table(some)] for some in by_ten]).open()
    together = MemoryFormat([[table(ids)]]).open()
    ngram = ps.Sequence(offsets={0: ["id"], 1: ["id"]}, by="time", gap=4, unordered="raise")

    def pairs(ds: ps.Dataset) -> list[tuple[int, int]]:
        return [(int(row["id/0"]), int(row["id/1"])) for row in ds.sequence(ngram)]

    assert pairs(apart) == [(0, 3), (10, 11), (20, 23)]
    assert pairs(together) == [(0, 3), (8, 10), (10, 11), (20, 23)]
    tens = MemoryFormat.of(table(range(20)), row_group_rows=10).open()
    threes = tens.sequence(ps.Sequence(length=3, by="time", gap=10, overlap=False, unordered="raise"))
    assert [run[0] for run in runs(threes)] == [0, 3, 6, 10, 13, 16]
    gapped = tens.sequence(ps.Sequence(offsets={-1: ["id"], 1: ["id"]}, by="time", gap=1, unordered="raise"))
    assert {name: int(value) for name, value in gapped[0].items()} == {"id/-1": 0, "id/1": 2}
