"""A write that fails or is interrupted keeps the old table, leaves no files, and raises an error that says what to do."""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from interrupts import Interrupt
from pyarrow import fs as pafs
from rights import run_without_rights

import penstock as ps
from penstock._engine.commit import swap
from penstock._engine.commit.target import Mode
from penstock.errors import WriteError

STAYS = "Nothing of this write appears; existing data stays."

# Overwrites a table repeatedly, each time with a little more free space on the disk, until the write succeeds. Prints the error
# message and the remaining files of every attempt.
FILL_DISK = """
import gc, json, os, sys, threading
import numpy as np
import penstock as ps

place, way = sys.argv[1:]
random = np.random.default_rng(0)
data = {"id": np.arange(500), "x": random.standard_normal((500, 40)), "k": np.arange(500) % 3}
options = {"rows": {"row_group_rows": 100}, "close": {}, "parts": {"partition_by": "k", "row_group_rows": 20}}[way]
ps.write(f"{place}/t", data={"id": np.arange(3)})
found = []
for pages in range(0, 256, 4):
    with open(f"{place}/filler", "wb", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4096))
        except OSError:
            filler.truncate(max(0, filler.tell() - 4096 * pages))
    told = ""
    try:
        with ps.write(f"{place}/t", mode="overwrite", **options) as table:
            table.extend(data)
    except ps.errors.WriteError as error:
        told = f"{error.errno}: {error}"
    os.remove(f"{place}/filler")
    gc.collect()
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock")]
    found.append((told, sorted(os.listdir(place)), ps.open(f"{place}/t").num_rows, threads))
    if not told:
        break
print(json.dumps(found))
"""


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip grace periods and fsync: no reader uses the replaced files here, and no disk loses power."""
    monkeypatch.setattr(swap, "GRACE_SECONDS", 0)
    monkeypatch.setattr(swap, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(os, "fsync", lambda _: None)


def run(script: str, *args: object, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run a script to completion."""
    command = [*before, sys.executable, "-c", script, *map(str, args)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


def threads() -> list[str]:
    """Return the names of the Penstock threads that are alive."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock")]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["rows", "close", "parts"])
def test_a_full_disk_leaves_the_old_table(tmp_path: Path, way: str) -> None:
    """A full disk raises an error at any stage, keeps the old table, and leaves no files, threads or output."""
    mount = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs -o size=1m none "$0" && exec "$@"')
    if shutil.which("unshare") is None or subprocess.run([*mount, str(tmp_path), "true"], check=False).returncode:
        pytest.skip("This machine does not let us make a small disk of our own.")

    done = run(FILL_DISK, tmp_path, way, before=(*mount, str(tmp_path)))

    assert (done.stderr, done.returncode) == ("", 0)
    found = json.loads(done.stdout)
    assert len(found) > 10
    for report, names, rows, alive in found[:-1]:
        assert (names, rows, alive) == (["t"], 3, [])
        assert report.startswith(f"{errno.ENOSPC}: ")
        assert report.endswith(
            f"cannot be written: No space left on device. {STAYS} Free some space, or write to another place."
        )
        assert f"of {tmp_path}/t" in report
    assert found[-1] == ["", ["t"], 500, []]


def test_the_file_size_limit_is_reported(tmp_path: Path) -> None:
    """Reaching the limit on file sizes raises an error with advice, and collecting the writer prints nothing."""
    script = """
import resource, sys
import numpy as np
import penstock as ps

resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    ps.write(sys.argv[1], data={"x": np.random.default_rng(0).standard_normal(100_000)})
except ps.errors.WriteError as error:
    print(error)
"""
    done = run(script, tmp_path / "t")

    assert done.stderr == ""
    assert done.stdout.startswith("A row group of 100000 rows in part-00000-")
    assert done.stdout.endswith(
        f"cannot be written: File too large. {STAYS} Write smaller files, file_mb=64, or write to another place.\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_directory_is_reported(tmp_path: Path) -> None:
    """Without write permission, writing and adopting raise an error, and the existing table stays readable."""
    script = """
import os, sys
import numpy as np
import penstock as ps

place = sys.argv[1]
ps.write(place + "/t", data={"id": np.arange(3)})
os.chmod(place + "/t", 0o555)
os.chmod(place, 0o555)
for name in ("t", "new"):
    try:
        ps.write(f"{place}/{name}", data={"id": np.arange(5)}, mode="overwrite")
    except ps.errors.WriteError as error:
        print(error)
try:
    ps.adopt(place + "/t", ps.Schema("S", [ps.Field("id", np.int64)]))
except ps.errors.WriteError as error:
    print(error)
print(ps.open(place + "/t").num_rows)
"""
    folder = tmp_path / "place"
    folder.mkdir()
    done = run_without_rights(script, folder)
    names = [each.name for each in folder.iterdir()]
    for path in (folder, folder / "t"):
        path.chmod(0o755)

    assert done.stderr == ""
    *report, rows = done.stdout.splitlines()
    for text, name in zip(report, ("t", "new", "t"), strict=True):
        assert f"of {folder}/{name} cannot be written: Permission denied. {STAYS} Get the permission to write there, or" in text
    assert (rows, names) == ("3", ["t"])


def test_a_read_only_table_leaves_no_files_beside_it(tmp_path: Path) -> None:
    """If the table or a partition is read-only, a failed write removes its files from the writable parent directory."""
    script = """
import os, sys
import numpy as np
import penstock as ps
place = sys.argv[1]
data = {"id": np.arange(3), "k": np.arange(3)}
ps.write(f"{place}/t", data=data, partition_by="k")
for closed in ("t", "t/k=1"):
    os.chmod(f"{place}/{closed}", 0o555)
    for mode in ("append", "overwrite"):
        try:
            ps.write(f"{place}/t", data=data, partition_by="k", mode=mode)
        except ps.errors.WriteError as error:
            print(error)
        else:
            print("written")
        print(os.listdir(place), ps.open(f"{place}/t").num_rows)
    os.chmod(f"{place}/{closed}", 0o755)
"""
    done = run_without_rights(script, tmp_path)

    refused = f"The table of {tmp_path}/t cannot be written: Permission denied. {STAYS} Get the permission to write there, or"
    assert done.stderr == ""
    report = done.stdout.splitlines()
    assert [text.startswith(refused) for text in report[::2]] == [True, True, True, False]
    assert report[1::2] == ["['t'] 3"] * 4
    assert report[-2] == "written"


def test_names_that_are_too_long_raise(tmp_path: Path) -> None:
    """Too long names of tables, and of directories made from partition values, raise WriteError."""
    with pytest.raises(WriteError, match=r"cannot be written: File name too long\..*Use a shorter name; partition values are"):
        ps.write(tmp_path / ("x" * 300), data={"id": np.arange(3)})
    with pytest.raises(WriteError, match=r"The file k=x{300}/part-00000-\w+\.parquet of .*File name too long"):
        ps.write(tmp_path / "t", data={"id": [1], "k": ["x" * 300]}, partition_by="k")

    assert list(tmp_path.iterdir()) == []
    assert threads() == []


class FailingStore(pafs.FSSpecHandler):  # type: ignore[misc] # pyarrow has no types
    """A remote store that accepts only a limited number of bytes."""

    def __init__(self, limit: int) -> None:
        """Store the limit in bytes."""
        super().__init__(fsspec.filesystem("memory"))
        self.remaining = limit

    def open_output_stream(self, path: Any, metadata: Any) -> Any:  # noqa: ARG002 - pyarrow's signature
        """Return a stream that fails once the limit is reached."""
        outer, file = self, self.fs.open(path, "wb")

        class Stream:
            closed = False

            def write(self, data: bytes) -> int:
                outer.remaining -= len(data)
                if outer.remaining < 0:
                    raise OSError(errno.EIO, "The store has said no.")
                return int(file.write(bytes(data)))

            def __getattr__(self, name: str) -> Any:
                return getattr(file, name)

        return pa.PythonFile(Stream(), mode="w")


@pytest.mark.parametrize("limit", [0, 100, 20_000, 60_000])
def test_errors_of_a_remote_store_are_reported(limit: int) -> None:
    """The error contains the message of the store, and no file of the write remains."""
    store = pafs.PyFileSystem(FailingStore(limit))
    path = f"/refusing-{limit}"

    with pytest.raises(WriteError) as caught, ps.write(path, filesystem=store, row_group_rows=2000) as table:
        table.extend({"id": np.random.default_rng(0).standard_normal(10_000)})

    assert f"of {path} cannot be written: " in str(caught.value)
    assert "The store has said no." in f"{caught.value} {caught.value.__cause__}"
    assert str(caught.value).endswith(f"{STAYS} Check the storage, then write again.")
    assert fsspec.filesystem("memory").find(path) == []
    assert threads() == []


# ------------------------------------------------------------------------------------------------------------ Ctrl-C


def writing_task(folder: Path, mode: Mode) -> Callable[[], None]:
    """Return a task that writes rows one by one and in batches, with threads."""

    def write() -> None:
        with ps.write(folder / "t", mode=mode, row_group_rows=50, threads=2) as table:
            for number in range(3):
                table.append({"id": number})
            for _ in range(3):
                table.extend({"id": np.arange(60)})

    return write


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # from Python, when interrupted
@pytest.mark.parametrize("mode", ["error", "append", "overwrite"])
def test_ctrl_c_at_any_moment_leaves_all_or_nothing(tmp_path: Path, mode: Mode) -> None:
    """After Ctrl-C the table is the old or the new one, threads end, and the next write removes leftover files."""
    old = [] if mode == "error" else [0, 1, 2]
    new = [*(old if mode == "append" else []), 0, 1, 2, *range(60), *range(60), *range(60)]

    def attempt_at(number: int, at: int) -> tuple[Interrupt, bool, Path]:
        folder = tmp_path / str(number)
        folder.mkdir()
        if old:
            ps.write(folder / "t", data={"id": np.arange(3)})
        interrupt = Interrupt(at)
        return interrupt, interrupt.run(writing_task(folder, mode)), folder

    points = attempt_at(0, -1)[0].points
    assert points > 1000
    for number, at in enumerate(range(1, points, points // 12 + 1), start=1):
        interrupt, interrupted, folder = attempt_at(number, at)
        gc.collect()
        for thread in threading.enumerate():
            if thread.name.startswith("penstock"):
                thread.join(10)

        report = (number, at, interrupt.where)
        assert threads() == [], report
        ids = ps.open(folder / "t").to_arrow()["id"].to_pylist() if (folder / "t").exists() else []
        assert ids in (old, new), report
        assert interrupted or ids == new, report
        ps.write(folder / "t", data={"id": np.arange(2)}, mode="overwrite")
        assert [each.name for each in folder.iterdir()] == ["t"], report


def test_ctrl_c_during_an_endless_write_ends_promptly(tmp_path: Path) -> None:
    """SIGINT to an endless writer raises KeyboardInterrupt, keeps the old table, and leaves no files or output."""
    ps.write(tmp_path / "t", data={"id": np.arange(3)})
    script = """
import sys, threading
import numpy as np
import penstock as ps

try:
    with ps.write(sys.argv[1], mode="overwrite", row_group_rows=1000) as table:
        while True:
            table.extend({"id": np.arange(5000)})
            if table.num_rows == 100_000:
                print("ready", flush=True)
except KeyboardInterrupt:
    print([thread.name for thread in threading.enumerate() if thread.name.startswith("penstock")])
"""
    command = [sys.executable, "-c", script, str(tmp_path / "t")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)

    assert (out, err, process.returncode) == ("[]\n", "", 0)
    assert ps.open(tmp_path / "t").num_rows == 3
    assert [each.name for each in tmp_path.iterdir()] == ["t"]


@pytest.mark.parametrize("name", ["a\0b", "a\udcff"])
def test_names_with_invalid_characters_raise(tmp_path: Path, name: str) -> None:
    """Paths with characters that no storage accepts raise ArgumentError, when writing and when opening."""
    for attempt in (lambda: ps.write(f"{tmp_path}/{name}", data={"id": [1]}), lambda: ps.open(f"{tmp_path}/{name}")):
        with pytest.raises(ps.errors.ArgumentError, match="is not a valid path: it has characters that no storage"):
            attempt()


def test_a_read_only_filesystem_raises() -> None:
    """Writing to a read-only filesystem, such as a website, raises WriteError."""

    class Website(MemoryFileSystem):  # type: ignore[misc] # fsspec has no types
        cachable = False

        def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
            if mode != "rb":
                raise NotImplementedError
            return super()._open(path, mode, **options)

    with pytest.raises(WriteError, match="The directory of /t cannot be written: its filesystem is read-only"):
        ps.write("/t", data={"id": [1]}, filesystem=Website())


# Runs in a working directory that has been deleted.
DELETED_DIRECTORY = """
import os, sys
import penstock as ps

place = sys.argv[1]
os.mkdir(place + "/here")
os.chdir(place + "/here")
os.rmdir(place + "/here")
for mode in ("error", "append", "overwrite"):
    ps.write(place + "/t", data={"id": [1, 2]}, mode=mode)
    print(ps.open(place + "/t").num_rows)
for ask in (ps.open, lambda name: ps.write(name, data={"id": [1]})):
    try:
        ask("t")
    except ps.errors.ArgumentError as error:
        print(error)
"""


def test_a_deleted_working_directory_matters_only_to_relative_paths(tmp_path: Path) -> None:
    """In a deleted working directory absolute paths work, and relative paths raise ArgumentError with the reason."""
    done = subprocess.run([sys.executable, "-c", DELETED_DIRECTORY, tmp_path], capture_output=True, text=True, check=False)

    assert done.stderr == ""
    message = (
        "'t' cannot be resolved: the working directory of this process does not exist any more. "
        "Give an absolute path, which begins with /."
    )
    assert done.stdout.splitlines() == ["2", "4", "2", message, message]


def test_writing_to_a_link_to_itself_raises(tmp_path: Path) -> None:
    """A symbolic link to itself raises WriteError with the message of the operating system."""
    (tmp_path / "t").symlink_to("t")

    with pytest.raises(WriteError, match=r"cannot be written: Too many levels of symbolic links\. Nothing of this write"):
        ps.write(tmp_path / "t", data={"id": [1]})
