"""Opening Delta tables: recognition, versions, time travel, resume, and reading while others write."""

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

Value = TypeVar("Value")


def ids(ds: ps.Dataset) -> list[int]:
    """Return the ids of all rows, sorted."""
    return sorted(ds.to_arrow()["id"].to_pylist())


def rows(start: int, stop: int) -> pa.Table:
    """Return rows with an id and a label."""
    return pa.table({"id": range(start, stop), "label": [f"{number % 3}" for number in range(start, stop)]})


def append(path: Path, start: int, stop: int, **options: Any) -> None:
    """Append rows to a table, or make one."""
    write_deltalake(path, rows(start, stop), mode="append", **options)


def test_the_format_implements_its_protocols() -> None:
    """The Delta format implements TableFormat and TimeTravel, and has a name and a repr."""
    assert isinstance(FORMAT, TableFormat)
    assert isinstance(FORMAT, TimeTravel)
    assert (FORMAT.name, repr(FORMAT)) == ("delta", "DeltaFormat(timezone='UTC')")


def test_a_delta_table_is_recognised_by_every_kind_of_source(tmp_path: Path) -> None:
    """A Delta table is recognised by path, by URL and in filesystems of pyarrow and fsspec, on disk and in memory."""
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


def test_files_that_the_log_removed_are_not_read(tmp_path: Path) -> None:
    """Files that the log removed are not read, unless the Parquet format is given."""
    append(tmp_path / "t", 0, 5)
    write_deltalake(tmp_path / "t", rows(5, 8), mode="overwrite")

    assert ids(ps.open(tmp_path / "t")) == [5, 6, 7]
    assert ids(ps.open(tmp_path / "t", format=ps.formats.parquet.ParquetFormat())) == list(range(8))


def test_no_native_runtime_is_needed(tmp_path: Path) -> None:
    """A process that opens and reads a table, and reads it again in a forked child, never imports deltalake."""
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
def long_history(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]]]:
    """Return a table of fourteen versions, with deletes, an update, a compaction and a checkpoint, and the ids of each."""
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


def test_every_version_of_a_long_history_has_its_original_rows(long_history: tuple[Path, list[list[int]]]) -> None:
    """Every version of a long history has its original rows, and delta-rs agrees."""
    path, expected = long_history

    assert [ids(ps.open(path, version=at)) for at in range(14)] == expected
    for at in range(14):
        theirs = pa.table(DeltaTable(path, version=at).scan()).to_pylist()
        ours = ps.open(path, version=at).to_arrow().to_pylist()
        assert sorted(ours, key=lambda row: int(row["id"])) == sorted(theirs, key=lambda row: int(row["id"]))
    assert ids(ps.open(path)) == expected[-1]


def test_an_epoch_is_read_from_one_version_whatever_others_do(tmp_path: Path) -> None:
    """Appends, deletes, a compaction, an overwrite and a new schema during an epoch do not change its batches."""
    path = tmp_path / "t"
    for at in range(10):
        append(path, at * 10, at * 10 + 10)
    changes: Iterator[Callable[[], object]] = iter(
        [
            lambda: append(path, 1000, 1010),
            lambda: DeltaTable(path).delete("id < 50"),
            lambda: DeltaTable(path).optimize.compact(),  # noqa: PLW0108 - loads the table when it is called
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


def test_an_epoch_under_a_busy_writer_yields_every_row_once(tmp_path: Path) -> None:
    """Epochs of a pinned version yield every row once while another thread keeps writing to the table."""
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


def test_a_state_resumes_at_its_version_and_refuses_another(tmp_path: Path) -> None:
    """A state stores the version; at that version it resumes the epoch, and at another it raises StateError."""
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
    """One of two ranks that run one after the other; rank 1 receives what rank 0 shared."""

    size = 2

    def __init__(self, rank: int, shared: list[bytes]) -> None:
        """Store the rank and the list of shared messages."""
        self.rank, self.shared = rank, shared

    def share(self, content: Callable[[], Value]) -> Value:
        """Return the value of rank 0, pickled as on a wire."""
        if self.rank == 0:
            self.shared.append(pickle.dumps(content()))
        found: Value = pickle.loads(self.shared[-1] if self.rank == 0 else self.shared.pop(0))  # noqa: S301 - pickled right here
        return found

    def gather(self, content: Callable[[], Value]) -> list[Value]:
        """Return the values of both ranks, which are equal here."""
        return [content(), content()]


def test_a_commit_between_the_starts_of_two_ranks_changes_nothing(tmp_path: Path) -> None:
    """Rank 0 resolves the version, and all ranks read it with its deleted rows, partitions and statistics."""
    lake = Lake(tmp_path / "t")
    stats = {"numRecords": 10, "minValues": {"id": 0}, "maxValues": {"id": 9}, "nullCount": {"id": 0}}
    add = lake.add("0.parquet", pa.table({"id": range(10)}), partition={"p": "1"}, stats=stats, deletionVector=inline([3]))
    content = metadata([column("id", "long"), column("p", "integer")], ["p"])
    lake.commit(0, protocol("deletionVectors"), content, add)
    ds = ps.open(lake.path).where(ps.col("p") == 1, ps.col("id") >= 0).shuffle(seed=1)
    shared: list[bytes] = []
    first = shared_table(ds._table, ds._query, Rank(0, shared))
    lake.commit(1, {"remove": {"path": "0.parquet", "deletionVector": add["add"]["deletionVector"]}})
    late = ps.open(lake.path).where(ps.col("p") == 1, ps.col("id") >= 0).shuffle(seed=1)
    second = shared_table(late._table, late._query, Rank(1, shared))

    assert late._table.snapshot.version == "1"
    assert [table.snapshot.version for table in (first, second)] == ["0", "0"]
    assert first.plan(ds._query).plan.fingerprint == second.plan(ds._query).plan.fingerprint
    assert sorted(int(row["id"]) for row in ps.Dataset(second, late._query)) == [0, 1, 2, *range(4, 10)]


@pytest.mark.parametrize("window", [4, 10_000])
def test_a_file_removed_by_vacuum_is_reported_with_version_and_remedy(tmp_path: Path, window: int) -> None:
    """Reading files that VACUUM removed raises DataChangedError with version and remedy; the newest version is readable."""
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


def test_rows_keep_their_positions_when_rows_are_appended(tmp_path: Path) -> None:
    """Files are ordered by their modification time, so that appended rows come last."""
    path = tmp_path / "t"
    lake = Lake(path)
    adds = [lake.add(f"{name}.parquet", pa.table({"id": [at]}), modificationTime=at) for at, name in enumerate("zyxab")]
    lake.commit(0, protocol(), metadata([column("id", "long")]), *adds[2::-1])
    lake.commit(1, *adds[3:])

    assert ps.open(path, version=0).to_arrow()["id"].to_pylist() == [0, 1, 2]
    assert ps.open(path).to_arrow()["id"].to_pylist() == [0, 1, 2, 3, 4]
    assert ps.open(path)[-1]["id"] == 4


def test_a_table_without_files_is_read(tmp_path: Path) -> None:
    """A table without files has its columns and no rows."""
    DeltaTable.create(tmp_path / "t", schema=rows(0, 0).schema)
    ds = ps.open(tmp_path / "t")

    assert (ds.num_rows, ds.schema.names, ds.to_arrow().num_rows) == (0, ("id", "label"), 0)
    assert ds.where(ps.col("id") > 3).num_rows == 0


def test_partition_columns_may_be_selected_alone(tmp_path: Path) -> None:
    """A selection of partition columns only gives one row for each stored row that is not deleted."""
    lake = Lake(tmp_path / "t")
    add = lake.add("0.parquet", pa.table({"id": range(4)}), partition={"p": "7"}, deletionVector=inline([1]))
    lake.commit(0, protocol("deletionVectors"), metadata([column("id", "long"), column("p", "integer")], ["p"]), add)

    assert ps.open(lake.path).select("p").to_arrow()["p"].to_pylist() == [7, 7, 7]


def test_the_log_overrides_a_partition_column_stored_in_files(tmp_path: Path) -> None:
    """If files also store a partition column, the value of the log is used."""
    lake = Lake(tmp_path / "t")
    add = lake.add("0.parquet", pa.table({"id": [1], "p": [5]}), partition={"p": "7"})
    lake.commit(0, protocol(), metadata([column("id", "long"), column("p", "integer")], ["p"]), add)

    assert ps.open(lake.path).to_arrow().to_pylist() == [{"id": 1, "p": 7}]
    assert pq.read_table(lake.path / "0.parquet")["p"].to_pylist() == [5]


def test_a_shallow_clone_reads_the_files_of_another_table(tmp_path: Path) -> None:
    """A log may name the files of another table by absolute paths, as the log of a shallow clone does."""
    append(tmp_path / "source table", 0, 10)
    (file,) = (tmp_path / "source table").glob("*.parquet")
    lake = Lake(tmp_path / "clone")
    add = {"path": file.as_uri(), "partitionValues": {}, "size": file.stat().st_size, "modificationTime": 1, "dataChange": True}
    lake.commit(0, protocol(), metadata([column("id", "long"), column("label", "string")]), {"add": add})

    assert ids(ps.open(lake.path)) == list(range(10))
