"""`penstock.changes`: the rows inserted or updated since a version, each once, from a change data feed or from files."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from delta_logs import Lake, column, inline, metadata, protocol

import penstock as ps
from penstock.errors import ArgumentError, DataChangedError, DataError
from penstock.formats.delta import DeltaFormat

deltalake = pytest.importorskip("deltalake")

DELTA = DeltaFormat()
FEED = {"delta.enableChangeDataFeed": "true"}


def write_table(path: Path, *, configuration: dict[str, str] | None = None) -> str:
    """Write a table of ten rows and return its path."""
    table = pa.table({"id": list(range(10)), "x": ["old"] * 10})
    deltalake.write_deltalake(str(path), table, configuration=configuration)
    return str(path)


def append(path: str, *ids: int) -> None:
    """Append rows."""
    deltalake.write_deltalake(path, pa.table({"id": list(ids), "x": ["new"] * len(ids)}), mode="append")


def ids(ds: ps.Dataset) -> list[int]:
    """Return the ids of a dataset."""
    return [int(row["id"]) for row in ds] if ds.num_rows else []


def test_appended_rows_are_changes(tmp_path: Path) -> None:
    """Rows of each version after the first and up to the last come once, in the order of the versions."""
    path = write_table(tmp_path / "t")
    append(path, 10, 11)
    append(path, 12)
    append(path, 13)

    assert ids(ps.changes(path, 0)) == [10, 11, 12, 13]
    assert ids(ps.changes(path, 1, 2)) == [12]
    assert ids(ps.changes(path, 3)) == []
    assert sorted(ids(ps.changes(path, 0).shuffle(seed=1))) == [10, 11, 12, 13]


def test_rows_moved_by_optimize_are_not_changes(tmp_path: Path) -> None:
    """OPTIMIZE adds files but no rows; rows that it moved still count as added by their own version."""
    path = write_table(tmp_path / "t")
    append(path, 10)
    deltalake.DeltaTable(path).optimize.compact()

    assert ids(ps.changes(path, 0)) == [10]
    assert ids(ps.changes(path, 1)) == []


def test_deletes_neither_add_nor_remove_changes(tmp_path: Path) -> None:
    """A delete adds no rows, though it rewrites files; rows that were added before and deleted later still come."""
    path = write_table(tmp_path / "t")
    append(path, 10, 11)
    deltalake.DeltaTable(path).delete("id in (3, 10)")

    assert ids(ps.changes(path, 0)) == [10, 11]
    assert ids(ps.changes(path, 1)) == []


def test_an_overwrite_adds_all_its_rows(tmp_path: Path) -> None:
    """An overwrite adds all rows that it writes."""
    path = write_table(tmp_path / "t")
    ps.write(path, data={"id": [5, 6], "x": ["a", "b"]}, format=DELTA, mode="overwrite")
    deltalake.write_deltalake(path, pa.table({"id": [7], "x": ["c"]}), mode="overwrite")

    assert ids(ps.changes(path, 0)) == [5, 6, 7]


def test_a_change_data_feed_gives_updated_rows(tmp_path: Path) -> None:
    """With a change data feed, updated rows come in their new form, and other rows of their files do not come."""
    path = write_table(tmp_path / "t", configuration=FEED)
    deltalake.DeltaTable(path).update(predicate="id = 4", updates={"x": "'changed'"})
    append(path, 10)
    deltalake.DeltaTable(path).delete("id = 5")
    found = ps.changes(path, 0)

    assert [(int(row["id"]), row["x"]) for row in found] == [(4, "changed"), (10, "new")]
    assert found.schema.names == ("id", "x")
    assert found.num_rows == 2


def test_a_restore_that_rewrites_files_raises(tmp_path: Path) -> None:
    """A RESTORE that rewrites files raises an error, even with a change data feed, because it records no changed rows."""
    path = write_table(tmp_path / "t", configuration=FEED)
    deltalake.DeltaTable(path).delete("id = 5")
    deltalake.DeltaTable(path).restore(0)

    with pytest.raises(
        DataError, match=r"\(RESTORE\) has rewritten files without .* A RESTORE has none: give a from_version from 2 on"
    ):
        ps.changes(path, 1)


def test_rows_of_a_restore_that_only_adds_files_are_changes(tmp_path: Path) -> None:
    """A RESTORE that only adds files is supported: none of their rows was in the table before."""
    path = str(tmp_path / "t")
    deltalake.write_deltalake(path, pa.table({"id": [1, 2], "part": ["a", "b"]}), partition_by="part")
    deltalake.DeltaTable(path).delete("part = 'a'")
    deltalake.DeltaTable(path).restore(0)

    assert ids(ps.changes(path, 1)) == [1]


def test_an_update_without_a_feed_raises(tmp_path: Path) -> None:
    """An UPDATE without a change data feed raises an error, because the new rows of rewritten files are unknown."""
    path = write_table(tmp_path / "t")
    deltalake.DeltaTable(path).update(predicate="id = 4", updates={"x": "'changed'"})

    with pytest.raises(
        DataError, match=r"Version 1 of .* \(UPDATE\) has rewritten files without .* delta\.enableChangeDataFeed"
    ):
        ps.changes(path, 0)


def test_deletion_vectors_add_nothing(tmp_path: Path) -> None:
    """A file added again with a deletion vector has no new rows; a new file of the same commit has."""
    path = write_table(tmp_path / "t")
    log = Path(path) / "_delta_log"
    append(path, 10)
    (add,) = (json.loads(line)["add"] for line in (log / f"{0:020d}.json").read_text().splitlines() if '"add"' in line)
    (new,) = (json.loads(line)["add"] for line in (log / f"{1:020d}.json").read_text().splitlines() if '"add"' in line)
    lines = [
        {"commitInfo": {"operation": "UPDATE"}},
        {"remove": {"path": add["path"], "dataChange": True}},
        {"add": {**add, "deletionVector": {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}}},
        {"add": new},
    ]
    (log / f"{1:020d}.json").write_text("\n".join(map(json.dumps, lines)))
    (log / f"{2:020d}.json").write_text(json.dumps({"commitInfo": {"operation": "NOTHING"}}))

    assert ids(ps.changes(path, 0)) == [10]


@pytest.mark.parametrize("operation", ["RESTORE", "UPDATE", None])
@pytest.mark.parametrize(("after", "restored"), [([1], [0]), (None, [0, 1]), ([], [0, 1]), ([1, 3], [0]), ([0, 1], [])])
@pytest.mark.parametrize("stats", ["rows", None])
def test_rows_that_a_deletion_vector_no_longer_deletes_are_changes(
    tmp_path: Path, after: list[int] | None, restored: list[int], operation: str | None, stats: str | None
) -> None:
    """Only rows that a deletion vector no longer deletes come from its file, with or without row counts in the log."""
    lake, rows = Lake(tmp_path / "t"), pa.table({"id": range(4)})
    lake.commit(0, protocol("deletionVectors"), metadata([column("id", "long")]), lake.add("0.parquet", rows, stats=stats))
    vector, more = inline([0, 1]), {} if after is None else {"deletionVector": inline(after)}
    hiding = lake.add("0.parquet", rows, stats=stats, deletionVector=vector)
    lake.commit(1, {"remove": {"path": "0.parquet", "dataChange": True}}, hiding)
    reported = [{"commitInfo": {"operation": operation}}] if operation else []
    gone = {"remove": {"path": "0.parquet", "dataChange": True, "deletionVector": vector}}
    lake.commit(
        2, *reported, gone, lake.add("0.parquet", rows, stats=stats, **more), lake.add("1.parquet", pa.table({"id": [9]}))
    )
    found = ps.changes(str(lake.path), 1)

    assert sorted(ids(found)) == [*restored, 9]
    assert sorted(ids(found.where(ps.col("id") < 9))) == restored
    assert ids(ps.changes(str(lake.path), 0, 1)) == []


@pytest.mark.parametrize(("operation", "reported"), [("DELETE", True), ("MERGE", True), ("RESTORE", False)])
def test_a_missing_deletion_vector_raises_only_if_rows_may_be_restored(
    tmp_path: Path, operation: str, *, reported: bool
) -> None:
    """A missing deletion vector raises an error, unless the operation, such as DELETE, never restores rows."""
    lake, rows = Lake(tmp_path / "t"), pa.table({"id": range(4)})
    lake.commit(0, protocol("deletionVectors"), metadata([column("id", "long")]), lake.add("0.parquet", rows))
    gone = {"storageType": "p", "pathOrInlineDv": str(tmp_path / "gone.bin"), "offset": 1, "sizeInBytes": 40, "cardinality": 1}
    after = lake.add("0.parquet", rows, deletionVector=inline([0, 1]))
    before = {"remove": {"path": "0.parquet", "dataChange": True, "deletionVector": gone}}
    lake.commit(1, {"commitInfo": {"operation": operation}}, before, after)
    lake.commit(2, lake.add("1.parquet", pa.table({"id": [9]})))

    if reported:
        assert ids(ps.changes(str(lake.path), 0)) == [9]
    else:
        with pytest.raises(DataError, match=r"gone\.bin: the file is gone"):
            ps.changes(str(lake.path), 0)


def test_a_file_without_a_row_count_raises(tmp_path: Path) -> None:
    """A file with restored rows raises an error if neither the log nor the file gives its number of rows."""
    lake, rows = Lake(tmp_path / "t"), pa.table({"id": range(4)})
    fields = metadata([column("id", "long")])
    lake.commit(0, protocol("deletionVectors"), fields, lake.add("0.parquet", rows, stats=None, deletionVector=inline([1])))
    gone = {"remove": {"path": "0.parquet", "dataChange": True, "deletionVector": inline([1])}}
    lake.commit(1, gone, lake.add("0.parquet", rows, stats=None))
    (lake.path / "0.parquet").unlink()

    with pytest.raises(DataError, match=r"0\.parquet: the number of rows cannot be read"):
        ps.changes(str(lake.path), 0)


@pytest.mark.parametrize("mode", ["name", "id"])
def test_a_change_data_feed_works_with_column_mapping(tmp_path: Path, mode: str) -> None:
    """A change data feed works with column mapping, although its column `_change_type` has no id."""
    lake = Lake(tmp_path / "t")
    field = pa.field("c1", pa.int64(), metadata={"PARQUET:field_id": "1"})

    def file(*cells: int, **more: list[str]) -> pa.Table:
        kinds = [pa.field(name, pa.string()) for name in more]
        return pa.table([pa.array(cells, pa.int64()), *more.values()], schema=pa.schema([field, *kinds]))

    lake.commit(
        0,
        protocol(reader=2),
        metadata([column("id", "long", number=1, called="c1")], delta__columnMapping__mode=mode),
        lake.add("0.parquet", file(1, 2)),
    )
    feed_file = lake.add("_change_data/c.parquet", file(2, 20, _change_type=["update_preimage", "update_postimage"]))["add"]
    lake.commit(
        1,
        {"remove": {"path": "0.parquet", "dataChange": True}},
        lake.add("1.parquet", file(1, 20)),
        {"cdc": {key: feed_file[key] for key in ("path", "partitionValues", "size")} | {"dataChange": False}},
    )
    found = ps.changes(str(lake.path), 0)

    assert ids(found) == [20]
    assert ids(found.where(ps.col("id") == 2)) == []
    assert ids(found.where(ps.col("id") >= 2)) == [20]


def test_an_overwrite_with_a_predicate_raises_unless_all_rows_are_new(tmp_path: Path) -> None:
    """An overwrite with a predicate raises an error, unless the log says that all rows of its files are new."""
    path = write_table(tmp_path / "t")
    new = pa.table({"id": [5], "x": ["new"]})
    deltalake.write_deltalake(path, new, mode="overwrite", predicate="id = 5")

    with pytest.raises(DataError, match=r"Version 1 of .* has rewritten files"):
        ps.changes(path, 0)

    parts = str(tmp_path / "parts")
    deltalake.write_deltalake(parts, pa.table({"id": [1, 2], "x": ["a", "b"]}), partition_by=["x"])
    deltalake.write_deltalake(parts, pa.table({"id": [3], "x": ["a"]}), mode="overwrite", predicate="x = 'a'")

    assert ids(ps.changes(parts, 0)) == [3]


@pytest.mark.parametrize("window", [1, 10_000])
def test_a_file_that_vacuum_removed_is_reported_with_its_version(tmp_path: Path, window: int) -> None:
    """The error names the removed file, the versions that need it, and the first version from which changes are available."""
    path = write_table(tmp_path / "t")
    for number in (10, 11, 12):
        append(path, number)
    before = set((tmp_path / "t").glob("*.parquet"))
    deltalake.write_deltalake(path, pa.table({"id": [99], "x": ["new"]}), mode="overwrite")
    append(path, 100)
    gone = next(file for file in before if file.name in (tmp_path / "t/_delta_log" / f"{2:020d}.json").read_text())
    gone.unlink()
    ds = ps.changes(path, 0).shuffle(ps.WindowShuffle(rows=window), seed=1)

    match = (
        rf"{gone.name}.*: the file is gone\. Version 2 of {path} added its rows, and penstock\.changes from version 0 to 5 "
        r"needs them; VACUUM removes files .* Give from_version=2 or a later one, open the table whole, or restore the file"
    )
    with pytest.raises(DataChangedError, match=match):
        list(ds)
    assert sorted(ids(ps.changes(path, 2))) == [12, 99, 100]


def test_missing_versions_raise(tmp_path: Path) -> None:
    """Unknown versions, versions in the wrong order and versions without a commit raise ArgumentError."""
    path = write_table(tmp_path / "t")
    append(path, 10)
    append(path, 11)

    with pytest.raises(ArgumentError, match=r"has no version 7\. Its newest is 2"):
        ps.changes(path, 0, 7)
    for first, last in ((99, None), (99, 1), (-1, None)):
        with pytest.raises(
            ArgumentError, match=rf"has no version {first}\. Its newest is 2\. Give a from_version from 0 to 2, or"
        ):
            ps.changes(path, first, last)
    assert ids(ps.changes(path, 2)) == []
    with pytest.raises(ArgumentError, match=r"got the versions 2 to 1; expected two versions, the older one first"):
        ps.changes(path, 2, 1)
    deltalake.DeltaTable(path).create_checkpoint()
    (tmp_path / "t/_delta_log" / f"{1:020d}.json").unlink()
    with pytest.raises(ArgumentError, match=r"has no commit 1 any more: .* Give a from_version from 1 on"):
        ps.changes(path, 0)
    assert ids(ps.changes(path, 1)) == [11]


def test_a_table_without_versions_raises(tmp_path: Path) -> None:
    """A table of Parquet files raises ArgumentError, because it does not record when rows were added."""
    ps.write(tmp_path / "t", data={"id": [1]})

    with pytest.raises(ArgumentError, match=r"has the format parquet, which does not record added rows"):
        ps.changes(tmp_path / "t", 0)


def test_changes_have_partition_columns(tmp_path: Path) -> None:
    """Changes have the partition columns of the table, and are pruned by them."""
    for day in ("mon", "tue"):
        ps.write(tmp_path / "t", data=[{"id": 1, "day": day}], format=DELTA, mode="append", partition_by="day")
    found = ps.changes(tmp_path / "t", 0)

    assert [row["day"] for row in found] == ["tue"]
    assert found.where(ps.col("day") == "mon").num_rows == 0
