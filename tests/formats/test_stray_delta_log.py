"""Files of a Delta table that nobody asked for as they lie: refused by every name under which they would be read as Parquet."""

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


def made(url: str) -> str:
    """Write a Delta table of three days, whose first rows were replaced, and whose files are all still there."""
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
    """Return a directory with a Delta table, and a file that is none of it."""
    made(str(tmp_path / "lake/t"))
    pq.write_table(pa.table({"id": [5]}), tmp_path / "lake/plain.parquet")
    return tmp_path / "lake"


@pytest.mark.parametrize("name", NAMES)
def test_files_of_a_table_are_not_read_without_its_log(lake: Path, name: str) -> None:
    """Rows that were deleted would come back; the message names the table, and what to do."""
    source = NAMES[name](lake)

    with pytest.raises(ArgumentError) as told:
        ps.open(source)
    assert f"holds files of the Delta table {lake}/t, whose log says which of their rows count." in str(told.value)
    assert f"Open the table, penstock.open('{lake}/t'), and choose a partition with where; or give format='parquet'" in str(
        told.value
    )


def test_what_the_message_says_helps(lake: Path) -> None:
    """The table itself has the rows that count, and whoever says so gets files as they lie."""
    assert ids(ps.open(lake / "t")) == [7, 8, 9]
    assert ids(ps.open(lake / "t").where(ps.col("day") == "mon")) == [7]
    assert ids(ps.open(lake / "t/day=mon", format="parquet")) == [1, 7]
    assert ids(ps.open([lake / "t"], format=ParquetFormat())) == [1, 2, 3, 7, 8, 9]
    assert ids(ps.open(f"{lake}/t/*/*.parquet", format=ParquetFormat(columns="union"))) == [1, 2, 3, 7, 8, 9]


def test_what_lies_beside_a_table_is_read(lake: Path) -> None:
    """A table hinders those who read its files, and nobody else."""
    (lake / "_old").mkdir()
    (lake / "t").rename(lake / "_old/t")

    assert ids(ps.open(lake / "plain.parquet")) == [5]
    assert ids(ps.open(f"{lake}/*.parquet")) == [5]
    assert ids(ps.open(lake)) == [5]  # what lies in a hidden directory is not read


def test_a_file_called_like_a_log_is_none(tmp_path: Path) -> None:
    """A log is a directory."""
    pq.write_table(pa.table({"id": [5]}), tmp_path / "plain.parquet")
    (tmp_path / "_delta_log").write_text("")

    assert ids(ps.open(tmp_path)) == ids(ps.open(tmp_path / "plain.parquet")) == [5]


def test_relative_names_are_names_too(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also from inside of the table."""
    monkeypatch.chdir(lake / "t/day=mon")

    with pytest.raises(ArgumentError, match="holds files of the Delta table"):
        ps.open("../day=tue")
    with pytest.raises(ArgumentError, match="holds files of the Delta table"):
        ps.open(next(Path().glob("*.parquet")))


@pytest.fixture
def memory() -> Iterator[str]:
    """Return the URL of a Delta table in memory."""
    yield made("memory://strays/t")
    fsspec.filesystem("memory").rm("/strays", recursive=True)


def test_a_table_in_a_store_is_named_by_its_url(memory: str) -> None:
    """What the message says to open can be opened."""
    for source in ("memory://strays", "memory://strays/t/day=mon", ["memory://strays/t"], "memory://strays/t/*/*.parquet"):
        with pytest.raises(ArgumentError, match=r"penstock\.open\('memory://strays/t'\)"):
            ps.open(source)
    assert ids(ps.open(memory)) == [7, 8, 9]


def test_the_root_of_a_store_may_be_a_table(lake: Path) -> None:
    """Paths without a parent lie in the root of what was given."""
    for filesystem in (
        pafs.SubTreeFileSystem(str(lake / "t"), pafs.LocalFileSystem()),
        DirFileSystem(str(lake / "t"), fsspec.filesystem("file")),
    ):
        with pytest.raises(ArgumentError, match="holds files of the Delta table"):
            ps.open("day=mon", filesystem=filesystem)
        assert ids(ps.open("day=mon", filesystem=filesystem, format="parquet")) == [1, 7]


class Guarded(MemoryFileSystem):  # type: ignore[misc] # fsspec has no types
    """A store that tells how often it was asked for a log, and of some directories tells nothing."""

    protocol = "guarded"
    store: dict[str, Any] = {}  # noqa: RUF012 - as its parent has it
    pseudo_dirs: list[str] = [""]  # noqa: RUF012 - as its parent has it
    asked: list[str] = []  # noqa: RUF012 - of all objects

    def info(self, path: str, **more: Any) -> dict[str, Any]:
        """Return what lies there, if one may know."""
        if path.endswith("_delta_log"):
            self.asked.append(path)
            if path in ("/_delta_log", "/bucket/_delta_log"):
                raise RuntimeError("The bucket is not yours.")
        found: dict[str, Any] = super().info(path, **more)
        return found


def test_few_questions_are_asked_and_refusals_are_no_logs() -> None:
    """Each directory is asked for once, however many files lie in it; who may not look there reads on."""
    filesystem = Guarded()
    paths = [f"/bucket/a/day={at % 2}/{at}.parquet" for at in range(100)]
    for at, path in enumerate(paths):
        with filesystem.open(path, "wb") as sink:
            pq.write_table(pa.table({"id": [at]}), sink)
    expected = ["/_delta_log", "/bucket/_delta_log", "/bucket/a/_delta_log", "/bucket/a/day=0/_delta_log"]
    filesystem.asked.clear()
    everything = ps.open(paths, filesystem=filesystem)
    for_files = sorted(filesystem.asked)
    filesystem.asked.clear()
    ps.open("/bucket/a/day=0", filesystem=filesystem)

    assert everything.num_rows == 100
    assert for_files == [*expected, "/bucket/a/day=1/_delta_log"]
    assert sorted(filesystem.asked) == expected


@given(st.lists(st.sampled_from(["a", "b=1", "c d", ".."]), min_size=1, max_size=5), st.sampled_from(["", "/"]))
def test_all_that_a_path_lies_in_is_known(parts: list[str], root: str) -> None:
    """Up to the root, each once, the nearest first."""
    found = list(_parents(root + "/".join(parts)))

    assert found == [root + "/".join(parts[:at]) for at in range(len(parts) - 1, -1, -1)]


def test_nothing_lies_above_a_host() -> None:
    """Where paths are URLs, the scheme is no directory; nor is the letter of a disk."""
    assert list(_parents("https://host/a/b.parquet")) == ["https://host/a", "https://host"]
    assert list(_parents("C:/lake/b.parquet")) == ["C:/lake"]
