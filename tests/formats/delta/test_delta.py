"""Delta tables as their users have them: recognised, pinned, travelled through, and read while others write."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta_logs import Lake, column, inline, metadata, protocol
from deltalake import DeltaTable, write_deltalake
from pyarrow import fs as pafs

import penstock as ps
from penstock._engine.deliver.consensus import shared_table
from penstock.errors import DataChangedError, StateError
from penstock.formats.delta import FORMAT, DeltaFormat
from penstock.protocols import TableFormat, TimeTravel

Told = TypeVar("Told")


def ids(ds: ps.Dataset) -> list[int]:
    """Return the ids of all rows, sorted."""
    return sorted(ds.to_arrow()["id"].to_pylist())


def rows(start: int, stop: int) -> pa.Table:
    """Return rows with an id and a label."""
    return pa.table({"id": range(start, stop), "label": [f"{number % 3}" for number in range(start, stop)]})


def append(path: Path, start: int, stop: int, **options: Any) -> None:
    """Append rows to a table, or make one."""
    write_deltalake(path, rows(start, stop), mode="append", **options)


def test_the_format_keeps_its_protocols() -> None:
    """It is a table format whose versions have times, and it is told by its name and its zone."""
    assert isinstance(FORMAT, TableFormat)
    assert isinstance(FORMAT, TimeTravel)
    assert (FORMAT.name, repr(FORMAT)) == ("delta", "DeltaFormat(timezone='UTC')")


def test_a_delta_table_is_recognised_by_every_name_it_has(tmp_path: Path) -> None:
    """A path, a URL, a filesystem of pyarrow or fsspec, on a disk or not."""
    table = tmp_path / "a table, 100%"
    append(table, 0, 10, partition_by=["label"])
    append(table, 10, 20)
    DeltaTable(table).delete("id = 3")
    expected = [number for number in range(20) if number != 3]
    memory = fsspec.filesystem("memory")
    memory.put(str(table), "/penstock-delta", recursive=True)

    try:
        assert ids(ps.open("memory://penstock-delta")) == expected
        assert ids(ps.open("memory://penstock-delta", version=0)) == list(range(10))
    finally:
        memory.rm("/penstock-delta", recursive=True)
    assert ids(ps.open(table)) == expected
    assert ids(ps.open(str(table) + "/")) == expected
    assert ids(ps.open(table.as_uri())) == expected
    assert ids(ps.open(str(table), filesystem=fsspec.filesystem("file"))) == expected
    assert ids(ps.open(str(table), filesystem=pafs.LocalFileSystem(), format=DeltaFormat())) == expected
    assert ids(ps.open(".", filesystem=pafs.SubTreeFileSystem(str(table), pafs.LocalFileSystem()))) == expected


def test_files_that_the_log_removed_do_not_come_back(tmp_path: Path) -> None:
    """They lie there still; whoever wants them asks for plain Parquet."""
    append(tmp_path / "t", 0, 5)
    write_deltalake(tmp_path / "t", rows(5, 8), mode="overwrite")

    assert ids(ps.open(tmp_path / "t")) == [5, 6, 7]
    assert ids(ps.open(tmp_path / "t", format=ps.formats.parquet.ParquetFormat())) == list(range(8))


def test_no_native_runtime_is_needed(tmp_path: Path) -> None:
    """The log is read by ourselves: a process that opens, reads, and forks a child that reads, never loads deltalake."""
    append(tmp_path / "t", 0, 50, partition_by=["label"])
    script = """
import os, sys
import penstock as ps
ds = ps.open(sys.argv[1]).where(ps.col("id") < 40)
first = sorted(int(row["id"]) for row in ds.shuffle(seed=1))
child = os.fork()
if child == 0:
    again = sorted(int(row["id"]) for row in ps.open(sys.argv[1]).where(ps.col("id") < 40).shuffle(seed=1))
    os._exit(0 if again == first == list(range(40)) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "deltalake" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "t")], capture_output=True, text=True, check=False)

    assert done.stdout == "0 False\n", done.stderr


@pytest.fixture(scope="module")
def travelled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]]]:
    """Return a table of fourteen versions, with appends, deletes, an update, a compaction and a checkpoint."""
    path = tmp_path_factory.mktemp("delta") / "t"
    expected: list[list[int]] = []
    alive: list[int] = []
    for step in range(14):
        if step % 3 == 2:
            DeltaTable(path).delete(f"id % {step + 1} = 1")
            alive = [number for number in alive if number % (step + 1) != 1]
        elif step == 7:
            DeltaTable(path).optimize.compact()
        elif step == 10:
            DeltaTable(path).update(predicate="id = 0", updates={"label": "'changed'"})
        else:
            append(path, step * 10, step * 10 + 10)
            alive = [*alive, *range(step * 10, step * 10 + 10)]
        if step == 6:
            DeltaTable(path).create_checkpoint()
        expected.append(sorted(alive))
    return path, expected


def test_every_version_of_a_long_history_is_what_it_was(travelled: tuple[Path, list[list[int]]]) -> None:
    """Fourteen versions with deletes; delta-rs agrees on each."""
    path, expected = travelled

    assert [ids(ps.open(path, version=at)) for at in range(14)] == expected
    for at in range(14):
        theirs = pa.table(DeltaTable(path, version=at).scan()).to_pylist()
        ours = ps.open(path, version=at).to_arrow().to_pylist()
        assert sorted(ours, key=lambda row: int(row["id"])) == sorted(theirs, key=lambda row: int(row["id"]))
    assert ids(ps.open(path)) == expected[-1]


def test_an_epoch_is_read_from_one_version_whatever_others_do(tmp_path: Path) -> None:
    """Appends, deletes, a compaction, an overwrite and a change of schema come between its batches."""
    path = tmp_path / "t"
    for at in range(10):
        append(path, at * 10, at * 10 + 10)
    changes: Iterator[Callable[[], object]] = iter(
        [
            lambda: append(path, 1000, 1010),
            lambda: DeltaTable(path).delete("id < 50"),
            lambda: DeltaTable(path).optimize.compact(),  # noqa: PLW0108 - of the table as it is then
            lambda: write_deltalake(path, pa.table({"other": [1.5]}), mode="overwrite", schema_mode="overwrite"),
            lambda: DeltaTable(path).create_checkpoint(),
        ]
    )
    ds = ps.open(path).shuffle(ps.WindowShuffle(rows=20), seed=1).batch(10)
    undisturbed = [batch["id"].tolist() for batch in ds]
    found = []
    for batch in ds.using(threads=1):
        found.append(batch["id"].tolist())
        next(changes, lambda: None)()

    assert found == undisturbed
    assert sorted(sum(found, [])) == list(range(100))
    assert [batch["id"].tolist() for batch in ds] == undisturbed
    assert ps.open(path).schema.names == ("other",)


def test_an_epoch_under_a_busy_writer_hands_out_every_row_once(tmp_path: Path) -> None:
    """Another thread appends, deletes, compacts and overwrites as fast as it can, before and while the table is read."""
    path = tmp_path / "t"
    for at in range(5):
        append(path, at * 100, at * 100 + 100)
    stop = threading.Event()
    written: list[int] = []

    def write() -> None:
        while not stop.is_set():
            match len(written) % 5:
                case 0:
                    write_deltalake(path, rows(500, 510), mode="overwrite")
                case 3:
                    DeltaTable(path).delete("id = 500")
                case 4:
                    DeltaTable(path).optimize.compact()
                case _:
                    write_deltalake(path, rows(500, 510), mode="append")
            written.append(1)

    writer = threading.Thread(target=write)
    pinned = ps.open(path, version=4)
    writer.start()
    try:
        while len(written) < 2:
            stop.wait(0.01)
        moving = ps.open(path)
        epochs = [[int(row["id"]) for row in pinned.shuffle(seed=seed)] for seed in range(5)]
        sizes = {len(list(moving.shuffle(seed=seed))) for seed in range(3)}
        while len(written) < 11:
            stop.wait(0.01)
    finally:
        stop.set()
        writer.join()

    assert [sorted(epoch) for epoch in epochs] == [list(range(500))] * 5
    assert len(sizes) == 1
    assert DeltaTable(path).version() >= 12


def test_a_resume_goes_on_with_its_version_and_refuses_another(tmp_path: Path) -> None:
    """The state carries the version; opened at it, the rest of the epoch is the same, whatever the table is now."""
    path = tmp_path / "t"
    append(path, 0, 60)
    append(path, 60, 100)

    def loader(**version: Any) -> Any:
        return ps.loader(ps.open(path, **version).shuffle(ps.WindowShuffle(rows=30), seed=5).batch(10))

    first = loader()
    batches = iter(first)
    for _ in range(4):
        next(batches)
    state = json.loads(json.dumps(first.state_dict()))
    rest = [batch["id"].tolist() for batch in batches]
    append(path, 100, 130)
    DeltaTable(path).create_checkpoint()

    assert state["version"] == "1"
    with pytest.raises(
        StateError,
        match=r"The state was saved with version '1', but this dataset has version '2'\. Resume over the same version",
    ):
        loader().load_state_dict(state)
    again = loader(version=state["version"])
    again.load_state_dict(state)
    assert [batch["id"].tolist() for batch in again] == rest


class Rank:
    """One of two ranks that run one after the other: the second is told what the first said."""

    size = 2

    def __init__(self, rank: int, said: list[bytes]) -> None:
        """Store which one it is, and what was said."""
        self.rank, self.said = rank, said

    def share(self, told: Callable[[], Told]) -> Told:
        """Return what rank 0 says, as it comes over a wire."""
        if self.rank == 0:
            self.said.append(pickle.dumps(told()))
        found: Told = pickle.loads(self.said[-1] if self.rank == 0 else self.said.pop(0))  # noqa: S301 - pickled right here
        return found

    def gather(self, told: Callable[[], Told]) -> list[Told]:
        """Return what both say, which is the same here."""
        return [told(), told()]


def test_a_commit_between_the_starts_of_two_ranks_changes_nothing(tmp_path: Path) -> None:
    """Rank 0 resolves the version, and all read what it saw: deleted rows, partitions and statistics among it."""
    lake = Lake(tmp_path / "t")
    stats = {"numRecords": 10, "minValues": {"id": 0}, "maxValues": {"id": 9}, "nullCount": {"id": 0}}
    add = lake.add("0.parquet", pa.table({"id": range(10)}), partition={"p": "1"}, stats=stats, deletionVector=inline([3]))
    told = metadata([column("id", "long"), column("p", "integer")], ["p"])
    lake.commit(0, protocol("deletionVectors"), told, add)
    ds = ps.open(lake.path).where(ps.col("p") == 1, ps.col("id") >= 0).shuffle(seed=1)
    said: list[bytes] = []
    first = shared_table(ds._table, ds._query, Rank(0, said))
    lake.commit(1, {"remove": {"path": "0.parquet", "deletionVector": add["add"]["deletionVector"]}})
    late = ps.open(lake.path).where(ps.col("p") == 1, ps.col("id") >= 0).shuffle(seed=1)
    second = shared_table(late._table, late._query, Rank(1, said))

    assert late._table.snapshot.version == "1"
    assert [table.snapshot.version for table in (first, second)] == ["0", "0"]
    assert first.plan(ds._query).plan.fingerprint == second.plan(ds._query).plan.fingerprint
    assert sorted(int(row["id"]) for row in ps.Dataset(second, late._query)) == [0, 1, 2, *range(4, 10)]


@pytest.mark.parametrize("window", [4, 10_000])
def test_a_file_gone_by_vacuum_is_told_with_its_version_and_the_remedy(tmp_path: Path, window: int) -> None:
    """Whether its footer is looked for first, or it is taken whole; the newest version reads on."""
    path = tmp_path / "t"
    append(path, 0, 100)
    write_deltalake(path, rows(200, 300), mode="overwrite")
    DeltaTable(path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    old = ps.open(path, version=0).shuffle(ps.WindowShuffle(rows=window), seed=1).batch(10)

    assert ids(ps.open(path)) == list(range(200, 300))
    with pytest.raises(
        DataChangedError, match=r"\.parquet: the file is gone\. Version 0 of .*/t needs it; VACUUM removes .* Open a newer"
    ):
        list(old)


def test_rows_keep_their_numbers_when_rows_are_appended(tmp_path: Path) -> None:
    """Files come in the order in which they were written, so that new rows come last."""
    path = tmp_path / "t"
    lake = Lake(path)
    adds = [lake.add(f"{name}.parquet", pa.table({"id": [at]}), modificationTime=at) for at, name in enumerate("zyxab")]
    lake.commit(0, protocol(), metadata([column("id", "long")]), *adds[2::-1])
    lake.commit(1, *adds[3:])

    assert ps.open(path, version=0).to_arrow()["id"].to_pylist() == [0, 1, 2]
    assert ps.open(path).to_arrow()["id"].to_pylist() == [0, 1, 2, 3, 4]
    assert ps.open(path)[-1]["id"] == 4


def test_a_table_without_rows_or_files_is_a_table(tmp_path: Path) -> None:
    """Its columns are known, and there is nothing to hand out."""
    DeltaTable.create(tmp_path / "t", schema=rows(0, 0).schema)
    ds = ps.open(tmp_path / "t")

    assert (ds.num_rows, ds.schema.names, ds.to_arrow().num_rows) == (0, ("id", "label"), 0)
    assert ds.where(ps.col("id") > 3).num_rows == 0


def test_partition_columns_may_be_all_that_is_selected(tmp_path: Path) -> None:
    """No column of a file is read then; rows are counted all the same, deleted ones left out."""
    lake = Lake(tmp_path / "t")
    add = lake.add("0.parquet", pa.table({"id": range(4)}), partition={"p": "7"}, deletionVector=inline([1]))
    lake.commit(0, protocol("deletionVectors"), metadata([column("id", "long"), column("p", "integer")], ["p"]), add)

    assert ps.open(lake.path).select("p").to_arrow()["p"].to_pylist() == [7, 7, 7]


def test_a_partition_column_that_files_have_too_is_believed_as_the_log_has_it(tmp_path: Path) -> None:
    """Some writers store it in both places."""
    lake = Lake(tmp_path / "t")
    add = lake.add("0.parquet", pa.table({"id": [1], "p": [5]}), partition={"p": "7"})
    lake.commit(0, protocol(), metadata([column("id", "long"), column("p", "integer")], ["p"]), add)

    assert ps.open(lake.path).to_arrow().to_pylist() == [{"id": 1, "p": 7}]
    assert pq.read_table(lake.path / "0.parquet")["p"].to_pylist() == [5]


def test_a_shallow_clone_reads_the_files_of_another_table(tmp_path: Path) -> None:
    """Its log names them by their full paths."""
    append(tmp_path / "source table", 0, 10)
    (file,) = (tmp_path / "source table").glob("*.parquet")
    lake = Lake(tmp_path / "clone")
    add = {"path": file.as_uri(), "partitionValues": {}, "size": file.stat().st_size, "modificationTime": 1, "dataChange": True}
    lake.commit(0, protocol(), metadata([column("id", "long"), column("label", "string")]), {"add": add})

    assert ids(ps.open(lake.path)) == list(range(10))
