"""Sequences through the public interface: counted, ordered, shared by ranks, resumed and decoded like rows."""

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
"""Sequences, each as the ids of its rows."""


def table(ids: Iterable[int], times: Iterable[int] | None = None, users: Iterable[str] | None = None) -> pa.Table:
    """Return rows whose columns all follow from the id, so that a mixed-up row is detected."""
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
    """Return a table whose times are equal to its ids."""
    return MemoryFormat.of(table(range(rows)), row_group_rows=row_group_rows, **options)


def runs(batches: Iterable[Mapping[str, Any]]) -> Runs:
    """Return the ids of all sequences without padding, and check that their columns belong together."""
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
    """Return the directory of cached counts, in an empty cache for this test."""
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "counts"


# Which sequences a table has.


@dataclass(frozen=True)
class Case:
    """A table, a query, and the sequences that it should give, in stored order of their first rows."""

    table: MemoryFormat
    sequence: ps.Sequence
    shuffle: Shuffle
    expected: Runs
    excluded: int | None = None

    def dataset(self) -> ps.Dataset:
        """Return the dataset of the query, without ranks or batches."""
        ds = self.table.open().sequence(self.sequence).shuffle(self.shuffle, seed=3)
        return ds if self.excluded is None else ds.where(ps.col("third") != self.excluded)


def expected_sequences(rows: list[dict[str, Any]], sequence: ps.Sequence, length: int) -> Runs:
    """Return the sequences of rows in stored order, found by trying one window after the other."""
    found: list[tuple[int, tuple[int, ...]]] = []
    scopes = {(row["group"] if sequence.scope == "row_group" else 0, row["user"] if sequence.group else "") for row in rows}
    gap: Any = sequence.gap
    for scope in scopes:
        in_scope = [
            (place, row)
            for place, row in enumerate(rows)
            if (row["group"] if sequence.scope == "row_group" else 0, row["user"] if sequence.group else "") == scope
        ]
        in_scope.sort(key=lambda each: each[1]["time"])
        ended = None
        for at in range(len(in_scope) - length + 1):
            some = in_scope[at : at + length]
            close = gap is None or all(later["time"] - earlier["time"] <= gap for (_, earlier), (_, later) in pairwise(some))
            if close and (sequence.overlap or ended is None or some[0][1]["time"] > ended):
                found.append((some[0][0], tuple(row["id"] for _, row in some)))
                ended = some[-1][1]["time"]
    return [ids for _, ids in sorted(found)]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a table of files and row groups, some rows deleted or filtered, and a definition of its sequences."""
    scope: Any = draw(st.sampled_from(["row_group", "table"]))
    sizes = draw(st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=3), min_size=1, max_size=3))
    total = sum(map(sum, sizes))
    times = draw(st.lists(st.integers(0, 12), min_size=total, max_size=total))
    times = sorted(times) if scope == "table" else times
    users = draw(st.lists(st.sampled_from("ab"), min_size=total, max_size=total))
    excluded = draw(st.none() | st.integers(0, 2))
    files, rows, deletes, number = [], [], {}, 0
    for at, file in enumerate(sizes):
        deleted = draw(st.sets(st.integers(0, max(0, sum(file) - 1)), max_size=2)) if sum(file) else set()
        deletes[at] = sorted(deleted)
        groups, first = [], number
        for size in file:
            ids = range(number, number + size)
            some = table(ids, times[number : number + size], users[number : number + size])
            groups.append(some.append_column("third", pa.array([one % 3 for one in ids], pa.int64())))
            rows += [
                {"id": one, "time": times[one], "user": users[one], "group": (at, len(groups))}
                for one in ids
                if one - first not in deleted and (excluded is None or one % 3 != excluded)
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
        expected=expected_sequences(rows, sequence, length),
        excluded=excluded,
    )


@pytest.mark.slow
@given(cases(), st.integers(1, 5), st.integers(1, 4))
def test_every_sequence_comes_once_each_epoch(case: Case, ranks: int, size: int) -> None:
    """All ranks together return every sequence once, for any shuffle, filter, deletes and row groups."""
    assert case.dataset().num_rows == len(case.expected)
    assume(case.expected)
    ranks = min(ranks, len(case.expected))
    readers = [ps.loader(case.dataset().shard(rank, ranks).batch(size, last="uneven")) for rank in range(ranks)]

    for _ in range(2):
        found = [run for reader in readers for run in runs(reader)]
        assert sorted(found) == sorted(case.expected)


@given(cases())
def test_stored_order_is_that_of_first_rows(case: Case) -> None:
    """Indexes, slices, limits and iteration count sequences in the stored order of their first rows."""
    ds = Case(case.table, case.sequence, ps.InOrder(), case.expected, case.excluded).dataset()

    assert runs(ds) == case.expected
    assert len(ds) == len(case.expected)
    assert runs(ds.limit(3)) == case.expected[:3]
    assert runs([ds[1:]]) == case.expected[1:]
    if case.expected:
        assert runs([ds[-1]]) == case.expected[-1:]


@given(cases(), st.integers(1, 3), st.integers(1, 5), st.sampled_from(["drop", "pad", "wrap"]), st.data())
def test_a_resume_continues_with_the_remaining_sequences(
    case: Case, ranks: int, size: int, last: Any, data: st.DataObject
) -> None:
    """A resume on as many ranks returns the same batches; on another number, it returns all that is left."""
    assume(case.expected)
    ranks = min(ranks, len(case.expected))
    size = min(size, len(case.expected) // ranks)
    ds = case.dataset().batch(size, last=last)
    first = [ps.loader(ds.shard(rank, ranks)) for rank in range(ranks)]
    iterators = [iter(loader) for loader in first]
    stop = data.draw(st.integers(0, len(first[0])))
    before = [run for one in iterators for _ in range(stop) for run in runs([next(one)])]
    state = json.loads(json.dumps(first[0].state_dict()))

    again = [ps.loader(ds.shard(rank, ranks)) for rank in range(ranks)]
    for loader in again:
        loader.load_state_dict(state)
    if stop == len(first[0]):  # the epoch has ended, and the state begins the next
        return
    assert [runs(loader) for loader in again] == [runs(one) for one in iterators]
    others = data.draw(st.integers(1, len(case.expected) // size))
    elastic = [ps.loader(ds.shard(rank, others)) for rank in range(others)]
    for loader in elastic:
        loader.load_state_dict(state)
    after = [run for loader in elastic for run in runs(loader)]
    assert {*before, *after} <= {*case.expected}
    assert len({*before, *after}) > len(case.expected) - (others * size if last == "drop" else 1)
    assert last != "drop" or len({*before, *after}) == len(before) + len(after)


def test_row_groups_are_borders_unless_the_table_is_the_scope() -> None:
    """Sequences end with their row group, and cross row groups with scope="table"."""
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
    """Rows that do not pass the filter are left out first, so their neighbours follow one another."""
    ds = counting().open().where(ps.col("id") != 1, ps.col("id") != 6)

    assert runs(ds.sequence(ps.Sequence(length=3, by="time"))) == [(0, 2, 3), (4, 5, 7), (8, 9, 10), (9, 10, 11)]
    assert runs(ds.sequence(ps.Sequence(length=3, by="time", gap=1))) == [(8, 9, 10), (9, 10, 11)]


def test_parts_of_a_split_share_no_group() -> None:
    """A split by the column of the groups separates no rows of a sequence."""
    rows = table(range(40), users=[f"user {number % 10}" for number in range(40)])
    ds = MemoryFormat.of(rows, row_group_rows=20).open().sequence(ps.Sequence(length=2, by="time", group="user"))

    parts = ds.split({"train": 0.5, "rest": 0.5}, by="user")

    assert sorted(runs(parts["train"]) + runs(parts["rest"])) == sorted(runs(ds))
    assert len(runs(ds)) == 20
    assert {run[0] % 10 for run in runs(parts["train"])}.isdisjoint({run[0] % 10 for run in runs(parts["rest"])})
    assert 0 < parts["train"].num_rows < 20


def test_groups_may_have_several_columns_and_interleave() -> None:
    """All columns of a group are equal in the rows of a sequence; null is a group too."""
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
def test_times_may_have_any_type_with_an_order(values: list[Any], kind: pa.DataType, gap: Any, scope: Any) -> None:
    """Columns of numbers take numbers as gaps, and columns of times take durations; both compare exactly."""
    values = [np.float16(value) for value in values] if kind == pa.float16() else values
    rows = table(range(3)).set_column(1, "time", pa.array(values, kind))
    ds = MemoryFormat.of(rows, row_group_rows=3).open()

    assert runs(ds.sequence(ps.Sequence(length=2, by="time", gap=gap, scope=scope))) == [(1, 2)]
    assert ds.sequence(ps.Sequence(length=2, by="time", scope=scope)).num_rows == 2


def test_times_and_groups_may_be_in_dictionaries() -> None:
    """Dictionary-encoded columns of times and groups give the same sequences as plain ones."""
    rows = table([0, 1, 2, 3], users=["b", "a", "b", "a"])
    rows = rows.set_column(1, "time", rows["time"].dictionary_encode())
    rows = rows.set_column(2, "user", rows["user"].dictionary_encode())
    ds = MemoryFormat.of(rows, row_group_rows=2).open()

    assert runs(ds.sequence(ps.Sequence(length=2, by="time", group="user", scope="table"))) == [(0, 2), (1, 3)]


def test_groups_may_have_an_extension_type() -> None:
    """Groups of an extension type are compared by their stored values."""
    users = pa.ExtensionArray.from_storage(
        pa.uuid(), pa.array([bytes([number % 2] * 16) for number in range(4)], pa.binary(16))
    )
    rows = table(range(4)).set_column(2, "user", users)
    ds = MemoryFormat.of(rows, row_group_rows=4).open()

    assert runs(ds.sequence(ps.Sequence(length=2, by="time", group="user"))) == [(0, 2), (1, 3)]


def test_a_gap_larger_than_all_distances_is_no_limit() -> None:
    """Infinity, or a number larger than any distance of two times, is no limit."""
    ds = counting(rows=4).open()

    for gap in (float("inf"), 2**70, Decimal(10) ** 30):
        assert ds.sequence(ps.Sequence(length=4, by="time", gap=gap)).num_rows == 1


# What is returned.


def test_a_column_has_one_dimension_more() -> None:
    """The rows of each sequence are an additional dimension: the second of a batch."""
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
    """Only rows at the offsets are returned; the smallest offset is the first row of the sequence, the largest its last."""
    ds = counting(rows=6, row_group_rows=6).open()

    assert runs(ds.sequence(ps.Sequence(offsets=(2, -2, 0), by="time"))) == [(0, 2, 4), (1, 3, 5)]
    assert runs(ds.sequence(ps.Sequence(offsets=[7], by="time"))) == [(number,) for number in range(6)]
    assert runs(ds.sequence(ps.Sequence(offsets=range(-1, 2), by="time"))) == [(at, at + 1, at + 2) for at in range(4)]


def test_offsets_may_have_columns_of_their_own() -> None:
    """Columns of an offset are returned under their name and offset, in ascending order of offsets."""
    ds = counting(rows=4, row_group_rows=4).open()
    derived = ds.sequence(ps.Sequence(offsets={1: ["name", "id"], -1: [ps.Field("id", np.int64), "tri.*"], 0: []}, by="time"))
    (batch,) = derived.batch(2)

    assert {name: values.tolist() for name, values in batch.items()} == {
        "id/-1": [0, 1],
        "triple/-1": [0.0, 3.0],
        "name/1": ["row 2", "row 3"],
        "id/1": [2, 3],
    }
    assert tuple(batch) == derived.schema.names
    assert {name: np.shape(values) for name, values in derived[0].items()} == dict.fromkeys(batch, ())


def test_the_column_of_times_need_not_be_returned() -> None:
    """Columns of times and groups that are not selected are read, and not returned."""
    ds = counting().open().select("name").sequence(ps.Sequence(length=2, by="time", group="user"))

    assert {name: values.tolist() for name, values in ds[0].items()} == {"name": ["row 0", "row 1"]}


def test_row_ids_are_those_of_every_row() -> None:
    """Row ids give the position of each row of a sequence, also across files."""
    derived = counting(files=3).open().with_row_ids()
    row = derived.sequence(ps.Sequence(length=2, by="time", scope="table"))[3]
    by_offset = derived.sequence(ps.Sequence(offsets={0: ["id"], 1: []}, by="time", scope="table"))

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
    """The columns of a stack are the last dimension, after the rows."""
    ds = counting().open().select("id", "triple").sequence(ps.Sequence(length=2, by="time")).stack("both", ["triple", "id"])
    (first, *_) = ds.batch(2)

    assert first["both"].tolist() == [[[0.0, 0.0], [3.0, 1.0]], [[3.0, 1.0], [6.0, 2.0]]]
    assert ds.schema["both"].shape == (2, 2)


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_maps_get_sequences(workers: Any) -> None:
    """Maps get batches of sequences, or single ones, on threads and in worker processes."""
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
    """Batches of sequences are copies, so that writing to one changes no other."""
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


def test_nulls_and_lists_follow_their_policies() -> None:
    """Masks and lengths have one value per row, and lists are padded to the longest of the batch."""
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
    """With offsets, the lists of all sequences follow one another; those of rows in two sequences come twice."""
    (batch,) = lists().ragged(ps.Offsets(), "l").batch(3)

    assert batch["l"].tolist() == [1, 2, 3, 2, 3, 4]
    assert batch["l_offsets"].tolist() == [0, 1, 3, 5, 5, 5, 6]


def test_columns_of_policies_have_offsets_too() -> None:
    """A column that a policy adds has the offset of its column."""
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
class Recording(ps.codecs.Npy):
    """A codec that records which cells it decodes."""

    name = "noted"

    def decode_into(self, field: ps.Field, cells: Any, out: npt.NDArray[Any]) -> None:
        """Record the first value of each cell."""
        super().decode_into(field, cells, out)
        decoded.extend(out[:, 0].tolist())


def cell_table(rows: int, row_group_rows: int, *, broken: int | None = None) -> ps.Dataset:
    """Return rows with cells of a codec, one of which can be invalid."""
    field = ps.Field("x", np.float32, (3,), Recording())
    cells = [Recording().encode(field, np.full(3, number, np.float32)) for number in range(rows)]
    if broken is not None:
        cells[broken] = b"nonsense"
    made = MemoryFormat.of(table(range(rows)).append_column("x", pa.array(cells)), row_group_rows=row_group_rows)
    opened = made.open()._table
    return ps.Dataset(replace(opened, snapshot=replace(opened.snapshot, fields={"x": field})))


def test_a_cell_is_decoded_once_for_all_sequences_of_a_batch() -> None:
    """A batch decodes each cell once, however many sequences contain it, also from two row groups."""
    decoded.clear()
    (batch,) = cell_table(16, 8).sequence(ps.Sequence(length=4, by="time")).batch(20)

    assert batch["x"].shape == (10, 4, 3)
    assert batch["x"][:, :, 2].tolist() == batch["time"].tolist()
    assert sorted(decoded) == list(range(16))


def test_cells_beyond_a_border_are_decoded_like_others() -> None:
    """Sequences across row groups decode all their cells, also if a window is released before its batch is full."""
    ds = cell_table(16, 2).sequence(ps.Sequence(length=4, by="time", scope="table"))

    for derived in (ds, ds.using(memory_limit=2_000), ds.shuffle(ps.WindowShuffle(rows=5), seed=1)):
        found = list(derived.batch(5, last="uneven"))
        assert sorted(row[0] for batch in found for row in batch["x"][:, :, 1].tolist()) == list(range(13))
        assert [batch["x"][:, :, 0].tolist() for batch in found] == [batch["time"].tolist() for batch in found]


def test_an_invalid_cell_is_reported_with_its_position() -> None:
    """The error names the file, row group and row of the cell, not of the sequence."""
    for scope in ("row_group", "table"):
        ds = cell_table(8, 4, broken=5).sequence(ps.Sequence(length=2, by="time", scope=scope))
        with pytest.raises(DataError, match=r"part-0.parquet, row group 1, row 5, column 'x': "):
            list(ds.batch(2))


# How it is read.


def test_a_unit_is_read_once() -> None:
    """Each unit is read once; with scope="table", each crossed border reads the next unit once more."""
    ds = counting(rows=40).open().shuffle(ps.WindowShuffle(rows=12), seed=1).batch(4, last="uneven")
    inside: Any = iter(ds.sequence(ps.Sequence(length=3, by="time")))
    runs(inside)
    across: Any = iter(ds.shuffle(ps.InOrder()).sequence(ps.Sequence(length=3, by="time", scope="table")))
    runs(across)

    assert inside.units_read == 10
    assert across.units_read == 10 + 9


def test_a_gap_at_a_border_needs_no_other_unit() -> None:
    """The next unit is read only if a sequence continues in it."""
    rows = table(range(8), [0, 1, 2, 3, 100, 101, 102, 103])
    ds = MemoryFormat.of(rows, row_group_rows=4).open().sequence(ps.Sequence(length=2, by="time", gap=1, scope="table"))
    batches: Any = iter(ds.batch(2))

    assert len(runs(batches)) == 6
    assert batches.units_read == 2


def test_how_a_shuffle_cuts_units_does_not_change_sequences() -> None:
    """Shuffles neither cut nor join the row groups of sequences, whatever they do with those of rows."""
    ds = counting(rows=24, files=3, stated=True).open().sequence(ps.Sequence(length=3, by="time"))
    expected = sorted(runs(ds))

    for shuffle in (ps.WindowShuffle(rows=80), ps.WindowShuffle(rows=4, unit_rows=1), ps.ExactShuffle(rows=100)):
        found = runs(ds.shuffle(shuffle, seed=5))
        assert sorted(found) == expected
        assert found != expected
    assert [len(batch["id"]) for batch in ds.batch("row_group")] == [2] * 6


def test_windows_of_a_shuffle_are_counted_in_sequences() -> None:
    """A window of a fixed number of bytes holds fewer sequences if each stands for more of the table."""
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
    """A mixture returns sequences like rows."""
    ds = counting().open().sequence(ps.Sequence(length=3, by="time"))
    found = runs(ps.mix([(ds, 1), (ds.shuffle(seed=2), 1)], stop="all").batch(4, last="uneven"))

    assert sorted(found) == sorted(runs(ds) * 2)


@pytest.mark.parametrize("size", [None, 2])
def test_workers_share_the_sequences_of_a_rank(size: int | None) -> None:
    """Each of three workers takes every third batch, or single sequence, and together they take all."""
    ds = counting(rows=40).open().sequence(ps.Sequence(length=2, by="time", scope="table")).shuffle(seed=1)
    ds = ds if size is None else ds.batch(size)
    expected = runs(ds)

    parts = []
    for worker in range(3):
        batches = iter(ds)
        assert isinstance(batches, Batches)
        batches.select(worker, 3)
        parts.append(runs(batches))

    step = size or 1
    found = [parts[at // step % 3].pop(0) for at in range(len(expected))]
    assert found == expected


class Threads:
    """Ranks that are threads of this process."""

    def __init__(self, rank: int, size: int, result: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size, self._results, self._barrier = rank, size, result, barrier

    def share(self, result: Callable[[], Any]) -> Any:
        """Return the result of rank 0."""
        return self.gather(result if self.rank == 0 else lambda: None)[0]

    def gather(self, result: Callable[[], Any]) -> list[Any]:
        """Return the results of all ranks."""
        self._results[self.rank] = result()
        self._barrier.wait(30)
        found = list(self._results)
        self._barrier.wait(30)
        return found


@pytest.mark.parametrize("scope", ["row_group", "table"])
def test_ranks_that_work_together_agree_on_sequences(cache: Path, scope: Any) -> None:
    """Ranks that count together get the same counts as one rank alone."""
    of = counting(rows=40, files=3)
    ds = of.open().sequence(ps.Sequence(length=3, by="time", scope=scope, overlap=False))
    result: list[Any] = [None] * 3
    barrier = threading.Barrier(3)

    def counts(rank: int) -> list[int]:
        table = shared_table(of.open()._table, ds._query, Threads(rank, 3, result, barrier))
        found: list[int] = table.plan(ds._query).plan.counts.tolist()
        return found

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(counts, range(3)))
    next(cache.iterdir()).unlink()

    assert found == [ds._table.plan(ds._query).plan.counts.tolist()] * 3
    assert sum(found[0]) == (13 if scope == "table" else 10)


# Cached counts and states.


@pytest.mark.parametrize("scope", ["row_group", "table"])
def test_counts_of_sequences_are_cached(cache: Path, scope: Any) -> None:
    """A second job over the same table uses the cached counts and reads no data; a damaged cache file is replaced."""
    sequence = ps.Sequence(length=3, by="time", scope=scope, overlap=False)
    first, second, third, plain = counting(), counting(), counting(), counting()
    expected = runs(first.open().sequence(sequence))
    (cached,) = cache.iterdir()
    again = second.open().sequence(sequence).num_rows
    planned = plain.open().num_rows
    cached.write_bytes(b"nonsense")

    assert again == len(expected)
    assert (planned, second.opened) == (12, plain.opened)
    assert runs(third.open().sequence(sequence).shuffle(ps.InOrder(file_rows=8))) == expected
    assert cached.read_bytes() != b"nonsense"


def test_cached_counts_are_checked(cache: Path) -> None:
    """Data with other sequences than the cached counts say, or without their rows, raises DataChangedError."""
    inside = ps.Sequence(length=3, by="time")
    assert counting().open().sequence(inside).num_rows == 6
    (cached,) = cache.iterdir()
    np.save(cached, np.array([2, 1, 2]))
    with pytest.raises(DataChangedError, match=r"row group 1: it has 2 sequences, and the plan has 1. The file was changed"):
        list(counting().open().sequence(inside))
    cached.unlink()
    across = ps.Sequence(length=3, by="time", scope="table")
    assert counting().open().sequence(across).num_rows == 10
    (cached,) = cache.iterdir()
    with np.load(cached) as found:
        arrays = dict(found)
    np.savez(cached, **{**arrays, "row": np.where(arrays["unit"] == 1, 7, arrays["row"])})

    with pytest.raises(DataChangedError, match=r"row group 1: a row that a sequence goes on with is no longer there. The file"):
        list(counting().open().sequence(across))


def test_a_state_belongs_to_one_kind_of_sequence() -> None:
    """A state resumes with other columns or returned offsets; with other sequences it raises StateError."""
    ds = counting().open().shuffle(seed=4)
    derived = ds.sequence(ps.Sequence(length=3, by="time", gap=2)).batch(2)
    loader = ps.loader(derived)
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
        derived = ds.sequence(replace(ps.Sequence(length=3, by="time", gap=2), **other)).batch(2)
        with pytest.raises(StateError, match="since it was saved, the filter, sequence, shuffle, window or limit changed"):
            ps.loader(derived).load_state_dict(state)


def test_a_dataset_shows_its_sequence() -> None:
    """The repr, equality and explanation of a dataset include its sequence."""
    ds = counting(name="counting").open()
    derived = ds.limit(5).sequence(ps.Sequence(length=2, by="time", group="user", gap=1)).where(ps.col("id") > 2)
    named = ds.sequence(ps.Sequence(offsets={0: ["id"]}, by="time"))

    assert repr(derived) == (
        "penstock.open('memory:counting').where(col('id') > 2)"
        ".sequence(Sequence(length=2, by='time', gap=1, group='user')).limit(5)"
    )
    assert repr(named) == "penstock.open('memory:counting').sequence(Sequence(by='time', offsets={0: ('id',)}))"
    assert derived != ds.limit(5).sequence(ps.Sequence(length=2, by="time", group="user", gap=2)).where(ps.col("id") > 2)
    assert "  rows        5 sequences of 2 rows each, out of 12 rows" in derived.explain()
    assert ps.Sequence(length=2, by="t", group=["a"]) == ps.Sequence(length=2, by="t", group="a")
    assert hash(ps.Sequence(offsets={1: ["x"]}, by="t")) == hash(ps.Sequence(offsets={1: ("x",)}, by="t"))


# Errors.


def test_rows_without_a_time_raise() -> None:
    """A time that is null or NaN raises DataError with its position; rows that a filter leaves out need no time."""
    rows = table(range(6)).set_column(1, "time", pa.array([0, 1, 2, 3, None, 5], pa.int64()))
    ds = MemoryFormat.of(rows, row_group_rows=3).open()
    floats = rows.set_column(1, "time", pa.array([0.0, 1.0, 2.0, float("nan"), 4.0, 5.0]))
    sequence = ps.Sequence(length=2, by="time")

    with pytest.raises(DataError) as error:
        ds.sequence(sequence).num_rows  # noqa: B018 - the property raises
    assert str(error.value) == (
        "part-0.parquet, row group 1, row 4, column 'time': the value is null, and a sequence needs the time of each row. "
        "Keep the rows that have a time: .where(penstock.col('time').is_not_null())."
    )
    assert runs(ds.sequence(sequence).where(ps.col("time").is_not_null())) == [(0, 1), (1, 2), (3, 5)]
    with pytest.raises(DataError, match="row group 1, row 3, column 'time': the value is nan, and a sequence needs the time"):
        MemoryFormat.of(floats, row_group_rows=3).open().sequence(sequence).num_rows  # noqa: B018 - the same


def test_times_that_do_not_fit_64_bits_raise() -> None:
    """Decimals that do not fit 64 bits as times raise DataError."""
    rows = table(range(2)).set_column(1, "time", pa.array([Decimal(1), Decimal(10) ** 30], pa.decimal128(38, 2)))

    with pytest.raises(DataError, match=r"part-0.parquet, row group 0, column 'time': it has values that do not fit 64 bits: "):
        MemoryFormat.of(rows, row_group_rows=2).open().sequence(SEQUENCE).num_rows  # noqa: B018 - the property raises


def test_rows_out_of_order_are_sorted_or_refused() -> None:
    """Rows out of order are sorted, or raise with unordered="raise"; rows of one time stay in stored order."""
    ds = MemoryFormat.of(table(range(4), [3, 1, 2, 1]), row_group_rows=4).open()

    assert runs(ds.sequence(ps.Sequence(length=4, by="time"))) == [(1, 3, 2, 0)]
    with pytest.raises(UnorderedError) as error:
        ds.sequence(ps.Sequence(length=4, by="time", unordered="raise")).num_rows  # noqa: B018 - the property raises
    assert str(error.value) == (
        "part-0.parquet, row group 0, row 1, column 'time': it is earlier than the row before it, and "
        'unordered="raise" is set. Write the table in the order of time, or use unordered="sort".'
    )
    assert ds.sequence(ps.Sequence(length=5, by="time", unordered="raise")).num_rows == 0


def test_row_groups_out_of_order_are_refused_where_they_are_crossed() -> None:
    """With scope="table", row groups of one group that are out of order raise UnorderedError."""
    rows = table(range(6), [0, 1, 5, 4, 6, 7], ["a", "b", "a", "a", "a", "b"])
    ds = MemoryFormat.of(rows, row_group_rows=3, files=2).open()

    assert ds.sequence(ps.Sequence(length=2, by="time")).num_rows == 4
    with pytest.raises(UnorderedError) as error:
        ds.sequence(ps.Sequence(length=2, by="time", scope="table", group="user")).num_rows  # noqa: B018 - it raises
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
    """Time and memory depend on the rows of the table, not on the length of a sequence."""
    ds = counting().open().sequence(ps.Sequence(length=length, by="time", **options))

    assert (ds.num_rows, len(ds), len(ds.batch(2))) == (0, 0, 0)
    assert ds.schema["id"].shape == (length,)


def test_a_long_group_among_many_short_ones_is_found() -> None:
    """Sequences of one long group are found among many groups of single rows."""
    users = [*(str(number) for number in range(50)), *["long"] * 60, *(str(number) for number in range(50))]
    found = MemoryFormat.of(table(range(160), users=users), row_group_rows=7).open()
    ds = found.sequence(ps.Sequence(length=59, by="time", scope="table", group="user"))

    assert runs(ds) == [tuple(range(50, 109)), tuple(range(51, 110))]


def test_errors_about_missing_sequences_name_sequences() -> None:
    """Errors about too few sequences, or one that does not exist, speak of sequences and not of rows."""
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
    ("make", "kind", "text"),
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
def test_invalid_queries_raise(make: Callable[[ps.Dataset], Any], kind: type[Exception], text: str) -> None:
    """Each error says what is wrong, what is expected and what to do."""
    ds = counting(name="counting").open()

    with pytest.raises(kind, match=re.escape(text)):
        make(ds)


def test_a_number_as_gap_of_times_raises() -> None:
    """A gap of a column of times is a duration; a number raises ArgumentError."""
    rows = table(range(3)).set_column(1, "time", pa.array([0, 1, 2], pa.timestamp("us")))

    with pytest.raises(ArgumentError) as error:
        MemoryFormat.of(rows, row_group_rows=3).open().sequence(ps.Sequence(length=2, by="time", gap=5))
    assert str(error.value) == (
        "Sequence got gap=5, which is not a length of time, and column 'time' is of timestamp[us]. "
        "Give datetime.timedelta(...)."
    )


def test_a_clause_that_is_called_again_replaces_the_first() -> None:
    """A second `sequence` replaces the first, also if the first had columns of its own."""
    ds = counting(rows=4).open()

    assert ds.sequence(BY_OFFSET).sequence(SEQUENCE) == ds.sequence(SEQUENCE)
    assert ds.sequence(SEQUENCE).sequence(BY_OFFSET) == ds.sequence(BY_OFFSET)
    assert ds.sequence(BY_OFFSET).sequence(BY_OFFSET) == ds.sequence(BY_OFFSET)


@pytest.mark.parametrize(
    ("arguments", "text"),
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
def test_invalid_arguments_of_a_sequence_raise(arguments: dict[str, Any], text: str) -> None:
    """Invalid arguments raise ArgumentError when the Sequence is made."""
    with pytest.raises(ArgumentError, match=re.escape(text)):
        ps.Sequence(**{"by": "time", **arguments})


# Compatibility with Petastorm.


def test_ngrams_of_petastorm_are_sequences() -> None:
    """The examples of Petastorm's NGram: an inclusive threshold, row groups as borders, and timestamps that do not overlap."""
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
