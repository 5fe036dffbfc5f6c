"""Delta tables in object stores: commits never replace an existing file, and stores that would do so are refused."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from pyarrow import fs as pafs

import penstock as ps
from penstock._engine.storage.filesystem import destination
from penstock.errors import ArgumentError, DataChangedError, DataError, TableNotFoundError
from penstock.formats.delta import DeltaFormat

DELTA = DeltaFormat()
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The public key of azurite's only account, from its documentation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """A bucket on a local server."""

    url: str
    options: dict[str, Any]

    def open(self, name: str, **more: Any) -> ps.Dataset:
        """Return a table."""
        return ps.open(f"{self.url}/{name}", storage_options=self.options, **more)

    def write(self, name: str, data: Any = None, **more: Any) -> Any:
        """Write a table."""
        return ps.write(f"{self.url}/{name}", data=data, storage_options=self.options, format=DELTA, **more)

    def names(self, name: str) -> list[str]:
        """Return the names of the files in a table's log."""
        return sorted(Path(path).name for path in self._files(name) if "_delta_log" in path)

    def num_data_files(self, name: str) -> int:
        """Return the number of data files in a table's directory, also of those that no version has."""
        return sum("_delta_log" not in path for path in self._files(name))

    def _files(self, name: str) -> list[str]:
        filesystem = fsspec.filesystem(self.url.partition(":")[0], **self.options)
        filesystem.invalidate_cache()
        found: list[str] = filesystem.find(f"{self.url.partition('://')[2]}/{name}")
        return found


def free_port() -> int:
    """Return a port that no process uses."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def serving(command: list[str], port: int) -> Iterator[None]:
    """Run a server while the context is open."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            with socket.socket() as one:
                one.settimeout(1)
                if one.connect_ex(("127.0.0.1", port)) == 0:
                    break
        yield
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def s3() -> Iterator[Store]:
    """Return a bucket of a server that speaks S3."""
    pytest.importorskip("moto", reason="moto, which speaks S3, is not installed")
    pytest.importorskip("flask", reason="flask, which moto's server needs, is not installed")
    pytest.importorskip("s3fs")
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_DEFAULT_REGION": "us-east-1"}
    environment = {**keys, "AWS_ENDPOINT_URL": endpoint, "AWS_EC2_METADATA_DISABLED": "true"}
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with serving(command, port), pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        options = {"key": "k", "secret": "s", "endpoint_url": endpoint}
        fsspec.filesystem("s3", **options).mkdir("lake")
        yield Store(url="s3://lake", options=options)


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory, azurite: Path) -> Iterator[Store]:
    """Return a container of a server that speaks to clients of Azure."""
    pytest.importorskip("adlfs")
    port = free_port()
    account = "devstoreaccount1"
    where = ["--location", str(tmp_path_factory.mktemp("blobs")), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    with serving([str(azurite), *where, "--silent", "--skipApiVersionCheck", "--loose", "--disableTelemetry"], port):
        settings = {"AccountName": account, "AccountKey": AZURITE_KEY, "BlobEndpoint": f"http://127.0.0.1:{port}/{account}"}
        text = "".join(f"{key}={value};" for key, value in {"DefaultEndpointsProtocol": "http", **settings}.items())
        options = {"account_name": account, "connection_string": text}
        fsspec.filesystem("abfs", **options).mkdir("lake")
        yield Store(url="abfs://lake", options=options)


@pytest.fixture(
    params=["s3", pytest.param("azure", marks=[pytest.mark.azurite, pytest.mark.filterwarnings("ignore::ResourceWarning")])]
)
def store(request: pytest.FixtureRequest) -> Store:
    """Return a bucket of each store that has a local server."""
    found: Store = request.getfixturevalue(request.param)
    return found


def ids(table: ps.Dataset) -> list[int]:
    """Return all ids, ascending."""
    return sorted(int(row["id"]) for row in table)


@pytest.mark.cloud
def test_a_table_in_a_bucket_is_written_appended_and_replaced(store: Store) -> None:
    """Each write is one commit, the log has only commits, and older versions stay readable."""
    store.write("modes", {"id": [1, 2], "day": ["mon", "tue"]}, partition_by="day")
    store.write("modes", {"id": [3], "day": ["mon"]}, mode="append")
    store.write("modes", {"id": [9], "day": ["wed"]}, mode="overwrite")

    assert ids(store.open("modes")) == [9]
    assert [ids(store.open("modes", version=at)) for at in (0, 1)] == [[1, 2], [1, 2, 3]]
    assert ids(store.open("modes", version=1).where(ps.col("day") == "mon")) == [1, 3]
    assert store.names("modes") == [f"{at:020d}.json" for at in range(3)]
    with pytest.raises(ArgumentError, match="is a Delta table already, at version 2"):
        store.write("modes", {"id": [1], "day": ["mon"]})


@pytest.mark.cloud
def test_a_version_of_another_writer_is_never_overwritten(store: Store) -> None:
    """Concurrent appends both succeed; an overwrite that began before them raises and commits nothing."""
    store.write("race", {"id": [0]})
    first, second = (store.write("race", mode="append") for _ in range(2))
    third = store.write("race", mode="overwrite")
    for number, one in enumerate((first, second, third), 1):
        one.extend({"id": [number]})
    second.close()
    first.close()

    with pytest.raises(DataChangedError, match=r"Another writer committed in version 1 of .* nothing of this write appears"):
        third.close()
    assert [ids(store.open("race", version=at)) for at in range(3)] == [[0], [0, 2], [0, 1, 2]]
    assert store.names("race") == [f"{at:020d}.json" for at in range(3)]
    assert store.num_data_files("race") == 3


@pytest.mark.cloud
def test_many_writers_of_a_bucket_lose_nothing(store: Store) -> None:
    """Six concurrent appends all succeed, each as a version of its own."""
    store.write("many", {"id": [0]})
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda number: store.write("many", {"id": [number]}, mode="append"), range(1, 7)))

    assert ids(store.open("many")) == list(range(7))
    assert store.open("many")._table.snapshot.version == "6"


@pytest.mark.cloud
def test_files_of_a_table_in_a_bucket_are_not_read_without_its_log(store: Store) -> None:
    """A source of a Delta table's files raises with the table's URL; files outside of Delta tables are read."""
    store.write("strays/t", {"id": [1, 2], "day": ["mon", "tue"]}, partition_by="day")
    store.write("strays/t", {"id": [3, 4], "day": ["mon", "tue"]}, partition_by="day", mode="overwrite")
    ps.write(f"{store.url}/plain/t", data={"id": [5]}, storage_options=store.options)

    for name in ("strays", "strays/t/day=mon", "strays/t/*/*.parquet"):
        with pytest.raises(ArgumentError, match=rf"penstock\.open\('{store.url}/strays/t'\)"):
            store.open(name)
    assert ids(store.open("strays/t/day=mon", format="parquet")) == [1, 3]
    assert ids(store.open("plain/t")) == ids(store.open("plain")) == ids(store.open("plain/t/*.parquet")) == [5]


@pytest.mark.cloud
def test_files_of_a_table_that_pyarrow_opens_are_not_read_without_its_log(s3: Store) -> None:
    """A source of a Delta table's files that pyarrow opens raises with the table's URL; other files are read."""
    s3.write("opened/t", {"id": [1], "day": ["mon"]}, partition_by="day")
    ps.write(f"{s3.url}/bare/t", data={"id": [5]}, storage_options=s3.options)

    for source in ("s3://lake/opened", "s3://lake/opened/t/day=mon", ["s3://lake/opened/t"]):
        with pytest.raises(ArgumentError, match=r"penstock\.open\('s3://lake/opened/t'\)"):
            ps.open(source)
    assert ids(ps.open("s3://lake/bare/t")) == [5]


@pytest.mark.cloud
def test_writers_that_create_a_table_in_a_bucket_all_succeed(store: Store) -> None:
    """One of several concurrent appends creates the table, and the others append to it."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda one: store.write("made", {"id": [one]}, mode="append", threads=1), range(4)))

    assert ids(store.open("made")) == [0, 1, 2, 3]
    assert store.names("made") == [f"{at:020d}.json" for at in range(4)]


@pytest.mark.cloud
def test_a_url_that_pyarrow_opens_is_committed_to_by_fsspec(s3: Store) -> None:
    """Tables at S3 URLs are written and read with settings of the environment; pyarrow's S3FileSystem cannot commit."""
    ps.write("s3://lake/native", data={"id": [1]}, format=DELTA)
    ps.write("s3://lake/native", data={"id": [2]}, format=DELTA, mode="append")

    assert ids(ps.open("s3://lake/native")) == ids(s3.open("native")) == [1, 2]
    with pytest.raises(ArgumentError, match=r"is on s3, .* Give filesystem=s3fs\.S3FileSystem\(\.\.\.\)"):
        ps.write("lake/t", data={"id": [1]}, format=DELTA, filesystem=pafs.S3FileSystem())


@pytest.mark.cloud
def test_delta_rs_appends_to_a_table_in_a_bucket(s3: Store) -> None:
    """delta-rs and Penstock append to one table and read each other's rows, despite cached listings."""
    deltalake, pa = pytest.importorskip("deltalake"), pytest.importorskip("pyarrow")
    options = {"AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": s3.options["endpoint_url"]}
    s3.write("both", {"id": [1]})
    assert ids(s3.open("both")) == [1]
    deltalake.write_deltalake("s3://lake/both", pa.table({"id": [2]}), mode="append", storage_options=options)
    s3.write("both", {"id": [3]}, mode="append")

    assert ids(s3.open("both")) == [1, 2, 3]
    assert deltalake.DeltaTable("s3://lake/both", storage_options=options).version() == 2


@pytest.mark.cloud
def test_a_table_is_not_read_as_parquet_while_it_is_first_written(store: Store) -> None:
    """The log exists before the first file, so an unfinished table raises; an aborted write leaves no table."""
    place = destination(f"{store.url}/half", options=store.options)
    change = DELTA.begin(place, "error")
    with place.filesystem.open_output_stream(change.path(f"part-{change.id}.parquet")) as sink:
        sink.write(b"half of it")

    with pytest.raises(DataError, match=r"/half has a Delta log without commits"):
        store.open("half")
    change.abort()
    with pytest.raises(TableNotFoundError):
        store.open("half")


class Unconditional(MemoryFileSystem):  # type: ignore[misc] # fsspec has no types
    """A store that ignores the condition that no file exists, as some servers do."""

    protocol = "s3"
    store: dict[str, Any] = {}  # noqa: RUF012 - shared by all instances, as in the parent class

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **more: Any) -> Any:  # noqa: ARG002 - ignored on purpose
        """Write a file, even if one exists."""
        return super().pipe_file(path, value, mode="overwrite", **more)


class LosesReplies(MemoryFileSystem):  # type: ignore[misc] # fsspec has no types
    """A store whose replies to commits are lost after the commit was made."""

    protocol = "s3"
    store: dict[str, Any] = {}  # noqa: RUF012 - shared by all instances, as in the parent class

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **more: Any) -> Any:
        """Write a file, and time out if it is a commit."""
        found = super().pipe_file(path, value, mode=mode, **more)
        if path.endswith(".json"):
            raise TimeoutError(path)
        return found


def test_a_store_that_ignores_the_condition_is_refused() -> None:
    """A store that replaces existing files in spite of the condition raises ArgumentError, and nothing stays in it."""
    filesystem = Unconditional()

    with pytest.raises(ArgumentError, match=r"asked to create a file only if none exists, and replaced an existing one"):
        ps.write("/forgetful", data={"id": [1]}, filesystem=filesystem, format=DELTA)
    assert filesystem.find("/forgetful") == []


def test_a_commit_whose_reply_was_lost_is_made_once() -> None:
    """A commit whose reply was lost is recognised in the log and is not repeated as the next version."""
    filesystem = LosesReplies()
    ps.write("/deaf", data={"id": [1]}, filesystem=filesystem, format=DELTA)
    ps.write("/deaf", data={"id": [2]}, filesystem=filesystem, format=DELTA, mode="append")
    found = ps.open("/deaf", filesystem=filesystem)

    assert ids(found) == [1, 2]
    assert found._table.snapshot.version == "1"


def test_a_local_disk_opened_by_fsspec_accepts_commits(tmp_path: Path) -> None:
    """A local disk that fsspec opens accepts commits, and only commits stay in the log."""
    filesystem = fsspec.filesystem("file")
    ps.write(str(tmp_path / "t"), data={"id": [1]}, filesystem=filesystem, format=DELTA)
    ps.write(str(tmp_path / "t"), data={"id": [2]}, filesystem=filesystem, format=DELTA, mode="append")

    assert ids(ps.open(tmp_path / "t")) == [1, 2]
    assert sorted(path.name for path in (tmp_path / "t/_delta_log").iterdir()) == [f"{at:020d}.json" for at in range(2)]
