"""Planning of a read: files and row groups are pruned, split into units, and identified by a fingerprint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock._engine.parquet.footer import RowGroups
from penstock._engine.plan import prune as planning
from penstock.filters import Expr
from penstock.model import ColumnRange, DataFiles, Snapshot, Units

SCHEMA = pa.schema({"id": pa.int64(), "day": pa.string()})


def files(rows: list[int], *, days: list[str | None] | None = None, **facts: Any) -> DataFiles:
    """Return data files with these row counts, where -1 is an unknown count."""
    count = len(rows)
    return DataFiles(
        path=pa.array([f"{at}.parquet" for at in range(count)]),
        size=np.full(count, 100),
        rows=np.array(rows),
        stamp=pa.array(["s"] * count),
        partitions=pa.table({}) if days is None else pa.table({"day": pa.array(days, pa.string())}),
        **facts,
    )


def snapshot(data_files: DataFiles) -> Snapshot:
    """Return a snapshot of these files."""
    return Snapshot(table="t", version="1", schema=SCHEMA, files=data_files)


def span(low: list[int | None], high: list[int | None], nulls: list[int]) -> ColumnRange:
    """Return statistics of an integer column."""
    return ColumnRange(low=pa.array(low, pa.int64()), high=pa.array(high, pa.int64()), nulls=np.array(nulls))


def groups(file: list[int], number: list[int], rows: list[int], **ranges: ColumnRange) -> RowGroups:
    """Return row groups as they come from footers."""
    return RowGroups(
        file=np.array(file, dtype=np.int32), number=np.array(number, dtype=np.int32), rows=np.array(rows), ranges=ranges
    )


NO_GROUPS = groups([], [], [])


def bound(condition: Expr) -> Expr:
    """Return a condition that is bound to the table's columns."""
    return condition.bind(SCHEMA, table="t")


def unit_rows_of(units: Units) -> list[tuple[int, ...]]:
    """Return units as (file, row group, start, first, rows, count)."""
    columns = (units.file, units.row_group, units.start, units.first, units.rows, units.counts)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_files_are_pruned_by_partition_before_any_footer() -> None:
    """Partition values prune files like statistics. A null partition passes no comparison."""
    table = snapshot(files([-1, -1, -1], days=["mon", None, "tue"]))

    assert planning.prune_files(table, bound(ps.col("day") == "tue")).tolist() == [2]
    assert planning.prune_files(table, bound(ps.col("day").is_null())).tolist() == [1]
    assert planning.prune_files(table, None).tolist() == [0, 1, 2]


def test_files_are_pruned_by_the_statistics_of_the_log() -> None:
    """Bounds of the log prune files. Null counts of the log prune only files with a known row count."""
    ranges = {"id": span([0, 10, 20], [9, 19, 29], [0, 0, 0])}
    table = snapshot(files([10, 10, -1], ranges=ranges))

    assert planning.prune_files(table, bound(ps.col("id") >= 15)).tolist() == [1, 2]
    assert planning.prune_files(table, bound(ps.col("id").is_null())).tolist() == [2]


def test_footers_are_read_only_of_files_that_need_them() -> None:
    """Footers are read of files without a row count, and of files too large for one unit."""
    facts, selected = files([3, -1, 50, 4]), np.array([0, 1, 2])

    assert planning.without_row_count(facts, selected).tolist() == [1]
    assert planning.files_to_split(facts, selected, ps.WindowShuffle(rows=64)).tolist() == [2]
    assert planning.files_to_split(facts, selected, ps.RowGroupShuffle()).tolist() == [0, 2]


def test_units_are_row_groups_and_whole_small_files_in_stored_order() -> None:
    """A file without a footer is one unit. A unit has its first row in the row group and in the file."""
    table = snapshot(files([3, 50, 4]))
    footers = groups([1, 1, 1], [0, 1, 2], [20, 0, 30])

    found = planning.make_units(table, np.array([0, 1, 2]), footers, None, ps.InOrder())
    assert unit_rows_of(found) == [(0, -1, 0, 0, 3, 3), (1, 0, 0, 0, 20, 20), (1, 2, 0, 20, 30, 30), (2, -1, 0, 0, 4, 4)]


def test_large_row_groups_are_cut_into_ranges_on_request() -> None:
    """Ranges have almost equal lengths, and their first rows in the row group and the file."""
    table = snapshot(files([-1]))
    found = planning.make_units(table, np.array([0]), groups([0, 0], [0, 1], [5, 7]), None, ps.WindowShuffle(8, unit_rows=4))

    assert unit_rows_of(found) == [(0, 0, 0, 0, 2, 2), (0, 0, 2, 2, 3, 3), (0, 1, 0, 5, 3, 3), (0, 1, 3, 8, 4, 4)]


def test_deleted_rows_are_not_counted() -> None:
    """Deletes are row numbers of a file. They reduce the counts of the units that hold these rows."""
    table = snapshot(files([-1, 4], deletes={0: np.array([0, 4, 5]), 1: np.array([3])}))
    found = planning.make_units(table, np.array([0, 1]), groups([0, 0], [0, 1], [5, 7]), None, ps.InOrder(file_rows=9))

    assert found.counts.tolist() == [3, 6, 3]


def test_row_groups_are_pruned_by_statistics_and_partition() -> None:
    """Units that cannot pass are pruned. Units that statistics leave open are filtered row by row."""
    table = snapshot(files([-1, -1], days=["mon", "tue"]))
    footers = groups([0, 0, 1], [0, 1, 0], [5, 5, 5], id=span([0, 5, 0], [4, 9, 9], [0, 0, 0]))

    found = planning.make_units(table, np.array([0, 1]), footers, bound(ps.col("id") >= 5), ps.InOrder())
    assert (found.file.tolist(), found.row_group.tolist()) == ([0, 1], [1, 0])
    assert found.residual.tolist() == [False, True]
    tuesday = planning.make_units(table, np.array([0, 1]), footers, bound(ps.col("day") == "tue"), ps.InOrder())
    assert (tuesday.file.tolist(), tuesday.residual.tolist()) == ([1], [False])


def test_whole_files_are_pruned_by_the_statistics_of_the_log() -> None:
    """Files without a footer are decided by the log, and files with one by their row groups."""
    known = files([3, -1], ranges={"id": span([0, 0], [2, 9], [0, 0])})
    footers = groups([1], [0], [9], id=span([0], [8], [0]))
    condition = bound(ps.col("id") < 3)

    found = planning.make_units(snapshot(known), np.array([0, 1]), footers, condition, ps.InOrder())
    assert found.residual.tolist() == [False, True]
    unknown = planning.make_units(snapshot(files([3, -1])), np.array([0, 1]), footers, condition, ps.InOrder())
    assert unknown.residual.tolist() == [True, True]


def test_statistics_of_another_type_are_not_used() -> None:
    """Bounds that cannot be compared with the column's type are left out."""
    text = ColumnRange(low=pa.array(["a"]), high=pa.array(["b"]), nulls=np.array([0]))
    found = planning.concat_ranges(span([1], [2], [0]), text, np.array([1, 0]))

    assert (found.low.to_pylist(), found.high.to_pylist(), found.nulls.tolist()) == ([None, 1], [None, 2], [0, 0])


@pytest.mark.parametrize(("limit", "expected"), [(None, [3, 0, 4]), (0, [0, 0, 0]), (5, [3, 0, 2]), (99, [3, 0, 4])])
def test_a_limit_keeps_the_first_rows(limit: int | None, expected: list[int]) -> None:
    """A limit counts rows in stored order, over all units."""
    assert planning.limit_counts(np.array([3, 0, 4]), limit).tolist() == expected


def fingerprint_of(data_files: DataFiles, **query: Any) -> str:
    """Return the fingerprint of a plan over these files."""
    units = planning.make_units(snapshot(data_files), np.arange(len(data_files)), NO_GROUPS, None, ps.InOrder(file_rows=99))
    return planning.fingerprint(snapshot(data_files), units, query, {"name": "in_order"})


def test_a_fingerprint_depends_on_files_rows_deletes_and_the_query() -> None:
    """A change of the files changes the first half of a fingerprint, and a change of the query the second half."""
    facts = files([3, 4])
    name = fingerprint_of(facts, seed=0)

    assert fingerprint_of(facts, seed=0) == name
    for other in (
        replace(facts, path=pa.array(["0.parquet", "other"])),
        replace(facts, stamp=pa.array(["s", "later"])),
        replace(facts, rows=np.array([3, 5])),
        replace(facts, deletes={0: np.array([1])}),
    ):
        assert fingerprint_of(other, seed=0).split("-")[0] != name.split("-")[0]
        assert fingerprint_of(other, seed=0).split("-")[1] == name.split("-")[1]
    assert fingerprint_of(replace(facts, deletes={0: np.array([1])}), seed=0) != fingerprint_of(
        replace(facts, deletes={0: np.array([2])}), seed=0
    )
    assert fingerprint_of(facts, seed=1).split("-")[0] == name.split("-")[0]
    assert fingerprint_of(facts, seed=1) != name


def test_a_fingerprint_is_the_same_in_all_releases() -> None:
    """Saved states hold fingerprints, so their value is fixed."""
    assert fingerprint_of(files([3, 4]), seed=0, shuffle={"name": "in_order"}) == "070be13036eaeba5-2f83deeee228db9b"
