"""Data files of a Delta table are not read as plain Parquet, whatever source names them, unless the format is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs as pafs

import penstock as ps
from penstock.errors import ArgumentError
from penstock.formats.parquet import ParquetFormat, _parents


def ids(ds: ps.Dataset) -> list[int]:
    """Return the ids of all rows, ascending."""
    return sorted(int(row["id"]) for row in ds)


def overwritten_table(url: str) -> str:
    """Write a Delta table of three days, overwrite its rows, and return its URL; the files of both versions stay."""
    days = {"id": [1, 2, 3], "day": ["mon", "tue", "wed"]}
    ps.write(url, data=days, format="delta", partition_by="day")
    ps.write(url, data={"id": [7, 8, 9], "day": days["day"]}, format="delta", partition_by="day", mode="overwrite")
    return url


NAMES: dict[str, Callable[[Path], Any]] = {
    "a list of it": lambda lake: [lake / "t"],
    "a pattern of tables": lambda lake: f"{lake}/t*",
    "a directory of tables": lambda lake: lake,
    "a directory of directories of tables": lambda lake: lake.parent,
    "a partition": lambda lake: lake / "t/day=mon",
    "partitions": lambda lake: [lake / "t/day=mon", lake / "t/day=tue"],
    "a pattern of partitions": lambda lake: f"{lake}/t/day=*",
    "a pattern of files": lambda lake: f"{lake}/t/*/*.parquet",
    "a pattern of all that lies there": lambda lake: f"{lake}/t/*",
    "a file": lambda lake: next((lake / "t").glob("*/*.parquet")),
    "files": lambda lake: sorted((lake / "t").glob("*/*.parquet")),
    "a file beside others": lambda lake: [lake / "plain.parquet", next((lake / "t").glob("*/*.parquet"))],
}


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Return a directory with a Delta table and a Parquet file that does not belong to it."""
    overwritten_table(str(tmp_path / "lake/t"))
    pq.write_table(pa.table({"id": [5]}), tmp_path / "lake/plain.parquet")
    return tmp_path / "lake"


@pytest.mark.parametrize("name", NAMES)
def test_files_of_a_table_are_not_read_without_its_log(lake: Path, name: str) -> None:
    """A source of a Delta table's files raises, because deleted rows would return; the message names table and remedy."""
    source = NAMES[name](lake)

    with pytest.raises(ArgumentError) as caught:
        ps.open(source)
    assert f"holds files of the Delta table {lake}/t, whose log says which of their rows count." in str(caught.value)
    assert f"Open the table, penstock.open('{lake}/t'), and choose a partition with where; or give format='parquet'" in str(
        caught.value
    )


def test_the_remedies_of_the_message_work(lake: Path) -> None:
    """The table itself has the current rows, and the Parquet format gives the rows of all files."""
    assert ids(ps.open(lake / "t")) == [7, 8, 9]
    assert ids(ps.open(lake / "t").where(ps.col("day") == "mon")) == [7]
    assert ids(ps.open(lake / "t/day=mon", format="parquet")) == [1, 7]
    assert ids(ps.open([lake / "t"], format=ParquetFormat())) == [1, 2, 3, 7, 8, 9]
    assert ids(ps.open(f"{lake}/t/*/*.parquet", format=ParquetFormat(columns="union"))) == [1, 2, 3, 7, 8, 9]


def test_files_beside_a_table_are_read(lake: Path) -> None:
    """Plain files are read, also if a hidden directory beside them holds a Delta table."""
    (lake / "_old").mkdir()
    (lake / "t").rename(lake / "_old/t")

    assert ids(ps.open(lake / "plain.parquet")) == [5]
    assert ids(ps.open(f"{lake}/*.parquet")) == [5]
    assert ids(ps.open(lake)) == [5]  # hidden directories are not searched


def test_a_file_named_like_a_log_is_not_a_log(tmp_path: Path) -> None:
    """A file named _delta_log does not make its directory a Delta table."""
    pq.write_table(pa.table({"id": [5]}), tmp_path / "plain.parquet")
    (tmp_path / "_delta_log").write_text("")

    assert ids(ps.open(tmp_path)) == ids(ps.open(tmp_path / "plain.parquet")) == [5]


def test_relative_paths_to_files_of_a_table_raise(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths to files of a Delta table raise, also from a working directory inside the table."""
    monkeypatch.chdir(lake / "t/day=mon")

    with pytest.raises(ArgumentError, match="holds files of the Delta table"):
        ps.open("../day=tue")
    with pytest.raises(ArgumentError, match="holds files of the Delta table"):
        ps.open(next(Path().glob("*.parquet")))


@pytest.fixture
def memory() -> Iterator[str]:
    """Return the URL of a Delta table in memory."""
    yield overwritten_table("memory://strays/t")
    fsspec.filesystem("memory").rm("/strays", recursive=True)


def test_a_table_in_a_store_is_named_by_its_url(memory: str) -> None:
    """For a table in a store, the message names a URL that opens the table."""
    for source in ("memory://strays", "memory://strays/t/day=mon", ["memory://strays/t"], "memory://strays/t/*/*.parquet"):
        with pytest.raises(ArgumentError, match=r"penstock\.open\('memory://strays/t'\)"):
            ps.open(source)
    assert ids(ps.open(memory)) == [7, 8, 9]


def test_the_root_of_a_store_may_be_a_table(lake: Path) -> None:
    """A Delta table at the root of a filesystem is found from paths without a parent."""
    for filesystem in (
        pafs.SubTreeFileSystem(str(lake / "t"), pafs.LocalFileSystem()),
        DirFileSystem(str(lake / "t"), fsspec.filesystem("file")),
    ):
        with pytest.raises(ArgumentError, match="holds files of the Delta table"):
            ps.open("day=mon", filesystem=filesystem)
        assert ids(ps.open("day=mon", filesystem=filesystem, format="parquet")) == [1, 7]


class Guarded(MemoryFileSystem):  # type: ignore[misc] # fsspec has no types
    """A store that records the lookups of Delta logs and denies some of them."""

    protocol = "guarded"
    store: dict[str, Any] = {}  # noqa: RUF012 - as in the parent class
    pseudo_dirs: list[str] = [""]  # noqa: RUF012 - as in the parent class
    lookups: list[str] = []  # noqa: RUF012 - shared by all instances

    def info(self, path: str, **more: Any) -> dict[str, Any]:
        """Return the facts of a path, unless access is denied."""
        if path.endswith("_delta_log"):
            self.lookups.append(path)
            if path in ("/_delta_log", "/bucket/_delta_log"):
                raise RuntimeError("The bucket is not yours.")
        found: dict[str, Any] = super().info(path, **more)
        return found


def test_each_directory_is_checked_for_a_log_once() -> None:
    """Each directory is checked for a log once, however many files it has; a denied check counts as no log."""
    filesystem = Guarded()
    paths = [f"/bucket/a/day={at % 2}/{at}.parquet" for at in range(100)]
    for at, path in enumerate(paths):
        with filesystem.open(path, "wb") as sink:
            pq.write_table(pa.table({"id": [at]}), sink)
    expected = ["/_delta_log", "/bucket/_delta_log", "/bucket/a/_delta_log", "/bucket/a/day=0/_delta_log"]
    filesystem.lookups.clear()
    everything = ps.open(paths, filesystem=filesystem)
    for_files = sorted(filesystem.lookups)
    filesystem.lookups.clear()
    ps.open("/bucket/a/day=0", filesystem=filesystem)

    assert everything.num_rows == 100
    assert for_files == [*expected, "/bucket/a/day=1/_delta_log"]
    assert sorted(filesystem.lookups) == expected


@given(st.lists(st.sampled_from(["a", "b=1", "c d", ".."]), min_size=1, max_size=5), st.sampled_from(["", "/"]))
def test_parents_are_all_directories_above_a_path(parts: list[str], root: str) -> None:
    """The parents of a path are all directories above it, each once, the nearest first."""
    found = list(_parents(root + "/".join(parts)))

    assert found == [root + "/".join(parts[:at]) for at in range(len(parts) - 1, -1, -1)]


def test_parents_end_at_a_host_or_a_drive() -> None:
    """The parents of a URL end at its host, and those of a Windows path at its drive."""
    assert list(_parents("https://host/a/b.parquet")) == ["https://host/a", "https://host"]
    assert list(_parents("C:/lake/b.parquet")) == ["C:/lake"]
