"""Changes that fail midway: killed writers, failing storage, and others at work at the same time."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.parquet as pq
import pytest
from lake import LOCAL, MEMORY, Lake, parquet_bytes
from pyarrow import fs as pafs

from penstock._engine.commit import log as markers
from penstock._engine.commit import swap
from penstock._engine.commit.target import Mode

# Repeats each change in a fresh copy of a table, and kills itself one step later each time: before any file is created,
# written, renamed, linked or deleted, and in the middle of every write.
KILLED = """
import errno, itertools, json, os, shutil, signal, sys
from pathlib import Path
from pyarrow import fs as pafs
from penstock._engine.commit import change as commit, swap

root = Path(sys.argv[1])
swap.GRACE_SECONDS = 0
left = way = None
exchanging = False
MUTATIONS = {"rename", "remove", "rmdir", "mkdir", "link", "chmod", "chown", "utime", "symlink", "truncate"}
WRITING = os.O_CREAT | os.O_WRONLY | os.O_RDWR

def step():
    global left
    if left is not None and (exchanging or way in ("swap", "in place")):  # other ways differ from there on only
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

def watch(event, args):
    if event.removeprefix("os.") in MUTATIONS or (event == "open" and args[2] & WRITING):
        step()

sys.addaudithook(watch)
really_exchange = swap.exchange

def exchange(one, other):
    global exchanging
    if way == "meddled":
        shutil.copyfile(root / "data" / "4.parquet", other / "stray.parquet")
    exchanging = True
    if way == "fall back":
        raise OSError(errno.ENOSYS, "no such step")
    step()
    really_exchange(one, other)

def unsupported(*args):
    raise OSError(errno.ENOSYS, "no such step")

class Slow:
    def __init__(self, stream):
        self.stream = stream
    def __enter__(self):
        return self
    def __exit__(self, *args):
        self.stream.close()
    def write(self, data):
        half = len(data) // 2
        self.stream.write(data[:half])
        step()
        self.stream.write(data[half:])

def write_bytes(path, data):
    with Slow(open(path, "wb", buffering=0)) as stream:
        stream.write(data)

class Mortal(pafs.LocalFileSystem):
    def create_dir(self, *args, **kwargs):
        step()
        super().create_dir(*args, **kwargs)
    def delete_file(self, *args):
        step()
        super().delete_file(*args)
    def move(self, *args):
        step()
        super().move(*args)
    def open_output_stream(self, *args, **kwargs):
        step()
        return Slow(super().open_output_stream(*args, **kwargs))

os.fsync, swap.exchange = lambda file: None, exchange  # what a process wrote outlives it without being synced
Path.write_bytes, Path.write_text = write_bytes, lambda path, text, **_: write_bytes(path, text.encode())

def make_change(place, mode):
    filesystem = Mortal()
    if way == "in place":
        swap.begin = unsupported
    change = commit.begin(filesystem, f"{place}/t", mode, url="t")
    for day, file in enumerate(sorted((root / "data").iterdir())):
        with filesystem.open_output_stream(change.path(f"day={day}/part-{day}-{change.id}.parquet")) as stream:
            stream.write(file.read_bytes())
    change.finish({"_common_metadata": b"new"})

for way, mode in json.loads(sys.argv[2]):
    for number in itertools.count():
        place = shutil.copytree(root / ("nothing" if mode == "error" else "table"), root / way / mode / str(number))
        child = os.fork()
        if not child:
            left = number
            make_change(place, mode)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 0:
            break
        if status != -signal.SIGKILL:
            sys.exit(f"step {number} of {mode} ended with {status}")
"""

CHANGES = [
    *((way, mode) for way in ("swap", "in place") for mode in ("error", "append", "overwrite")),
    *(("fall back", mode) for mode in ("append", "overwrite")),  # a new table exchanges nothing
]

# Four processes start at the same time and append five files each.
APPENDING = """
import errno, os, sys
from pathlib import Path
from pyarrow import fs as pafs
from penstock._engine.commit import change as commit, swap

way, table, data = sys.argv[1:]

def unsupported(*args):
    raise OSError(errno.ENOSYS, "no such step")

def append(numbers):
    filesystem = pafs.LocalFileSystem()
    if way == "in place":
        swap.begin = unsupported
    for number in numbers:
        change = commit.begin(filesystem, table, "append", url="t")
        Path(change.path(f"part-{change.id}.parquet")).write_bytes(Path(data, f"{number}.parquet").read_bytes())
        change.finish({"_common_metadata": b"same"})

ready, go = os.pipe()
children = []
for first in range(0, 20, 5):
    child = os.fork()
    if not child:
        os.close(go)
        os.read(ready, 1)
        append(range(first, first + 5))
        os._exit(0)
    children.append(child)
os.close(go)
sys.exit(sum(os.waitpid(child, 0)[1] for child in children))
"""

# Reads a table as other software does, until stdin has a line. Prints the states that it saw, without repeats in a row.
READING = """
import json, sys, threading
import pyarrow.parquet as pq

stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
states = []
while True:
    last = stop.is_set()
    try:
        found = pq.read_table(sys.argv[1])
        state = sorted(found["id"].to_pylist()) if found.column_names else "empty"
    except OSError as error:
        state = "gone"
    if not states:
        print("ready", flush=True)
    if states[-1:] != [state]:
        states.append(state)
    if last:
        break
print(json.dumps(states))
"""


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the grace period for readers of replaced files and skip fsync, unless a test needs them."""
    monkeypatch.setattr(swap, "GRACE_SECONDS", 0)
    monkeypatch.setattr(os, "fsync", lambda _: None)


@contextmanager
def started(script: str, *args: object) -> Iterator[subprocess.Popen[str]]:
    """Start a script and wait until it prints that it is ready."""
    command = [sys.executable, "-c", script, *map(str, args)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def rows_without_markers(path: Path) -> list[int]:
    """Return the rows that software sees which does not know commit markers."""
    found = pq.read_table(path) if path.exists() else None
    return sorted(found["id"].to_pylist()) if found is not None and found.column_names else []


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kill each change of rows 1 to 3 to rows 4 and 5 at every step. Return the root of a directory per change and step."""
    root = tmp_path_factory.mktemp("killed")
    (root / "nothing").mkdir()
    (root / "data").mkdir()
    Lake(LOCAL, f"{root}/table/t").change("error", [1, 2, 3], b"old")
    for number in (4, 5):
        (root / "data" / f"{number}.parquet").write_bytes(parquet_bytes([number]))
    command = [sys.executable, "-c", KILLED, str(root), json.dumps([*CHANGES, ("meddled", "append")])]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert (done.stderr, done.returncode) == ("", 0)
    return root


def steps(directory: Path) -> list[Lake]:
    """Return the table as a kill at each step of a change has left it."""
    return [Lake(LOCAL, f"{directory}/{number}/t") for number in range(len(list(directory.iterdir())))]


@pytest.mark.slow
@pytest.mark.parametrize(("way", "mode"), CHANGES)
def test_a_writer_that_is_killed_leaves_all_or_nothing(
    killed: Path, monkeypatch: pytest.MonkeyPatch, way: str, mode: Mode
) -> None:
    """After a kill at any step, every reader sees the old or the new table. The next writer works and cleans up."""
    old: tuple[list[int], bytes | None] = ([], None) if mode == "error" else ([1, 2, 3], b"old")
    new = ([1, 2, 3, 4, 5] if mode == "append" else [4, 5], b"new")
    lakes = steps(killed / way / mode)
    seen = [(lake.ids(), lake.small()) for lake in lakes]
    shown = [rows_without_markers(Path(lake.path)) for lake in lakes] if way == "swap" else [ids for ids, _ in seen]
    for lake in lakes:
        lake.change("append", [77], b"next")
    after = [lake.ids() for lake in lakes]
    monkeypatch.setattr(markers, "ABANDONED_SECONDS", -1)
    for lake in lakes:
        lake.begin("append").abort()

    made = seen.index(new)
    assert seen == [old] * made + [new] * (len(seen) - made)
    assert shown == [ids for ids, _ in seen]
    assert made >= 10
    assert after == [[*ids, 77] for ids, _ in seen]
    for lake, ids in zip(lakes, after, strict=True):
        assert [each.name for each in Path(lake.path).parent.iterdir()] == ["t"]
        assert (len(lake.names()), lake.ids(), lake.small()) == (len(ids) + 1, ids, b"next")
        assert not Path(lake.path, "_penstock").exists()


@pytest.mark.slow
def test_files_of_others_survive_a_killed_writer(killed: Path) -> None:
    """A file added by others during the exchange ends up in the table, at whichever step the writer is killed."""
    lakes = steps(killed / "meddled" / "append")
    before = [lake.ids() for lake in lakes]
    for lake in lakes:
        lake.change("append", [77])

    assert {len(ids) for ids in before} == {4, 5, 6}
    assert [set(lake.ids()) for lake in lakes] == [{*ids, 4, 77} for ids in before]
    assert all(Path(lake.path, "stray.parquet").exists() for lake in lakes)


class Failing(pafs.FSSpecHandler):  # type: ignore[misc] # pyarrow has no types
    """Storage that fails at one call, counted from 0, or at that call and all later ones."""

    def __init__(self, at: int, *, forever: bool) -> None:
        """Store which calls fail."""
        super().__init__(fsspec.filesystem("memory"))
        self.calls, self.at, self.forever = 0, at, forever

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self.at + 1 or (self.forever and self.calls > self.at):
            raise OSError("injected")

    def get_file_info(self, paths: Any) -> Any:
        """Fail or return file information."""
        self._count()
        return super().get_file_info(paths)

    def get_file_info_selector(self, selector: Any) -> Any:
        """Fail or list files."""
        self._count()
        return super().get_file_info_selector(selector)

    def create_dir(self, path: Any, recursive: Any) -> None:
        """Fail or create a directory."""
        self._count()
        super().create_dir(path, recursive)

    def delete_file(self, path: Any) -> None:
        """Fail or delete a file."""
        self._count()
        super().delete_file(path)

    def move(self, source: Any, target: Any) -> None:
        """Fail or move a file."""
        self._count()
        super().move(source, target)

    def open_input_stream(self, path: Any) -> Any:
        """Fail or open a file for reading."""
        self._count()
        return super().open_input_stream(path)

    def open_output_stream(self, path: Any, metadata: Any) -> Any:
        """Fail or open a file for writing."""
        self._count()
        return super().open_output_stream(path, metadata)


def attempt_change(lake: Lake, handler: Failing, mode: Mode) -> bool:
    """Change a table through failing storage, abort on an error, and return whether the change was committed."""
    broken = Lake(pafs.PyFileSystem(handler), lake.path)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        try:
            change = broken.begin(mode)
        except OSError:
            return False
        try:
            broken.fill(change, [4, 5])
            change.finish({"_common_metadata": b"new"})
        except OSError:
            try:
                change.abort()
            except OSError:
                assert handler.forever
            return False
        return True


@pytest.mark.parametrize("forever", [False, True])
@pytest.mark.parametrize("mode", ["error", "append", "overwrite"])
def test_a_store_that_fails_leaves_all_or_nothing(monkeypatch: pytest.MonkeyPatch, mode: Mode, *, forever: bool) -> None:
    """Whichever call fails, once or from then on, the change is committed if `finish` returns, and has no effect otherwise."""
    old: tuple[list[int], bytes | None] = ([], None) if mode == "error" else ([1, 2, 3], b"old")
    new = ([1, 2, 3, 4, 5] if mode == "append" else [4, 5], b"new")
    outcomes: list[bool] = []
    handler = Failing(-1, forever=forever)
    while handler.calls > handler.at:
        lake, handler = Lake(MEMORY, f"/{secrets.token_hex(8)}/t"), Failing(len(outcomes), forever=forever)
        if mode != "error":
            lake.change("error", [1, 2, 3], b"old")
        before = lake.names()
        made = attempt_change(lake, handler, mode)
        outcomes.append(made)

        assert (lake.ids(), lake.small()) == (new if made else old)
        assert made or forever or lake.names() == before

        lake.change("append", [77], b"next")
        assert lake.ids() == [*(new if made else old)[0], 77]
        with monkeypatch.context() as patch:
            patch.setattr(markers, "ABANDONED_SECONDS", -1)
            lake.begin("append").abort()
        assert len(lake.names()) == len(lake.ids()) + 1
    assert outcomes == sorted(outcomes)
    assert outcomes.count(False) > 10
    assert outcomes.count(True) > 3


@pytest.mark.parametrize("way", ["swap", "in place"])
def test_concurrent_appends_are_all_committed(tmp_path: Path, way: str) -> None:
    """Four processes append five times each at the same time. The table has every row."""
    data = tmp_path / "data"
    data.mkdir()
    for number in range(20):
        (data / f"{number}.parquet").write_bytes(parquet_bytes([number]))
    lake = Lake(LOCAL, str(tmp_path / "lake" / "t"))

    command = [sys.executable, "-c", APPENDING, way, lake.path, str(data)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)

    assert (done.stderr, done.returncode) == ("", 0)
    assert lake.ids() == list(range(20))
    assert lake.small() == b"same"
    assert [each.name for each in (tmp_path / "lake").iterdir()] == ["t"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_running_reader_sees_complete_tables_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode) -> None:
    """While a table is changed thirty times, other software reads a complete state each time, in their order.

    During an append the reader gets no errors. During an overwrite listed files may be gone when the reader opens them or when
    pyarrow looks at them again, and the reader has to start again.
    """
    monkeypatch.setattr(swap, "GRACE_SECONDS", 0.05)
    lake = Lake(LOCAL, str(tmp_path / "lake" / "t"))
    states = []
    with_all: list[int] = []
    for number in range(31):
        rows = list(range(number * 10, number * 10 + 10))
        with_all = [*with_all, *rows] if mode == "append" else rows
        states.append(with_all)

    def change(state: list[int], how: Mode) -> None:
        new = state[-10:]
        made = lake.begin(how)
        for part, ids in enumerate((new[:5], new[5:])):
            lake.put(made.path(f"part-{part}-{made.id}.parquet"), parquet_bytes(ids))
        made.finish({})

    change(states[0], "error")
    with started(READING, lake.path) as reader:
        for state in states[1:]:
            change(state, mode)
        found = json.loads(reader.communicate("\n", timeout=60)[0])

    again = ("gone", "empty") if mode == "overwrite" else ()
    whole = [state for state in found if state not in again]
    assert all(state in states for state in whole)
    assert all(states.index(one) <= states.index(two) for one, two in pairwise(whole))
    assert whole[-1] == states[-1]
    assert len(whole) > 3
