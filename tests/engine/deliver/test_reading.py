"""Reading files on threads: the same rows in the same order, errors in their place, and nothing left behind."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs as pafs
from strategies import aligned, rows

import penstock as ps
from penstock._engine.query.query import ColumnDecoding, ReadSpec
from penstock._engine.runtime.threads import Priority, ThreadPool
from penstock._engine.window.buffer import WindowBuffer
from penstock._engine.window.prefetch import Prefetcher
from penstock._engine.window.reader import WindowReader
from penstock.errors import DataChangedError, DataError
from penstock.model import Read, Window
from penstock.protocols import Shuffle

GROUP, FILES, EACH = 25, 4, 150


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory of four files of six row groups each."""
    directory = tmp_path_factory.mktemp("table")
    for file in range(FILES):
        pq.write_table(rows(range(file * EACH, (file + 1) * EACH)), directory / f"{file}.parquet", row_group_size=GROUP)
    return directory


def threads() -> list[str]:
    """Return the names of live Penstock threads."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock")]


def failing(batch: dict[str, Any]) -> dict[str, Any]:
    """Raise an error of the user's own."""
    return {"id": 1 / 0, **batch}


def ids(batch: dict[str, Any]) -> list[int]:
    """Return the ids of a batch."""
    return [int(number) for number in batch["id"]]


SHUFFLES: list[Shuffle] = [
    ps.InOrder(),
    ps.RowGroupShuffle(),
    ps.WindowShuffle(rows=60),
    ps.WindowShuffle(rows=30, unit_rows=10),
    ps.ExactShuffle(40),
]


@pytest.mark.slow
@settings(max_examples=25)
@given(st.sampled_from(SHUFFLES), st.integers(1, 8), st.integers(1, 5), st.integers(1, 40), st.integers(0, 2))
def test_the_number_of_threads_never_changes_the_rows(
    table: Path, shuffle: Shuffle, count: int, ranks: int, size: int, seed: int
) -> None:
    """With any number of threads, rows come in the same order as with one, each once, with aligned columns."""
    ds = ps.open(table).shuffle(shuffle, seed=seed).batch(size, last="uneven")
    single_threaded = [[ids(batch) for batch in ds.shard(rank, ranks).using(threads=1)] for rank in range(ranks)]
    found = []
    for rank in range(ranks):
        batches = list(ds.shard(rank, ranks).using(threads=count))
        assert all(aligned(batch) for batch in batches)
        found.append([ids(batch) for batch in batches])

    assert found == single_threaded
    assert sorted(number for rank in found for batch in rank for number in batch) == list(range(FILES * EACH))


@settings(max_examples=15)
@given(st.integers(1, 8), st.integers(1, 3), st.integers(1, 30), st.data())
def test_a_resume_may_use_another_number_of_threads(
    table: Path, count: int, ranks: int, size: int, data: st.DataObject
) -> None:
    """A state counts rows that were handed out, not rows that threads have read ahead."""
    ds = ps.open(table).shuffle(ps.WindowShuffle(rows=60), seed=3).batch(size).map(lambda batch: batch)
    reader = ps.loader(ds.shard(0, ranks).using(threads=count))
    batches = iter(reader)
    stop = data.draw(st.integers(1, len(batches) - 1))
    for _ in range(stop):
        next(batches)
    state = reader.state_dict()
    expected = [ids(batch) for batch in batches]

    again = ps.loader(ds.shard(0, ranks).using(threads=1))
    again.load_state_dict(state)
    assert [ids(batch) for batch in again] == expected


def test_the_first_batch_comes_before_a_second_window_is_read(table: Path) -> None:
    """Shuffling waits for one window only."""
    ds = ps.open(table).shuffle(ps.WindowShuffle(rows=100)).batch(10).using(threads=4)
    batches = iter(ds)
    release = threading.Event()
    window_reader: Any = batches._window_reader
    read, seen = window_reader._read_all, []

    def recording_units(indices: list[int], **window: int) -> Any:
        seen.extend(indices)
        if len(seen) > 4:
            release.wait()
        return read(indices, **window)

    window_reader._read_all = recording_units
    first = next(batches)
    release.set()

    assert len(first["id"]) == 10
    assert len(set(seen[:4])) == 4


@pytest.mark.parametrize("threads", [1, 4])
def test_columns_reordered_in_many_steps_are_right(table: Path, monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    """A column that threads reorder in many steps equals one that is reordered in a single step."""
    ds = ps.open(table).shuffle(ps.WindowShuffle(rows=100), seed=3).batch(30, last="uneven")
    expected = [{name: values.tolist() for name, values in batch.items()} for batch in ds.using(threads=1)]

    monkeypatch.setattr("penstock._engine.window.buffer.STEP_BYTES", 64)  # eight numbers: a column takes a dozen steps

    found = [{name: values.tolist() for name, values in batch.items()} for batch in ds.using(threads=threads)]
    assert found == expected


def test_threads_and_files_end_with_the_iteration(table: Path) -> None:
    """No thread or open file is left after the end, a break, `close`, garbage collection or an error."""
    ds = ps.open(table).shuffle(ps.WindowShuffle(rows=60)).batch(20).using(threads=4)
    gc.collect()  # frees what earlier tests left behind
    handles = len(list(Path("/proc/self/fd").iterdir()))

    list(ds)
    assert threads() == []
    for _ in ds:
        break
    gc.collect()
    assert threads() == []
    batches = iter(ps.loader(ds))
    next(batches)
    assert threads() != []
    batches.close()
    assert threads() == []
    other = iter(ds)
    next(other)
    del other
    assert threads() == []
    with pytest.raises(ZeroDivisionError):
        list(ds.map(failing))
    assert threads() == []
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) == handles


def test_an_error_in_a_thread_reaches_the_consumer_in_order(table: Path, tmp_path: Path) -> None:
    """Batches before an error come first. The error names its location, and every further call raises it again."""
    for file in table.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    ds = ps.open(tmp_path).batch(50)
    assert ds.num_rows == FILES * EACH
    whole = (tmp_path / "2.parquet").read_bytes()
    (tmp_path / "2.parquet").write_bytes(whole[:100] + bytes(len(whole) - 2000) + whole[-1900:])
    batches = iter(ds)
    found = [ids(next(batches)) for _ in range(6)]

    assert sum(found, []) == list(range(300))
    for _ in range(3):
        with pytest.raises(DataError, match=r"2\.parquet, row group 0") as caught:
            next(batches)
    assert "Open the table again" in str(caught.value)
    assert threads() == []
    footer = int.from_bytes(whole[-8:-4], "little") + 8
    (tmp_path / "2.parquet").write_bytes(whole[:4] + bytes(len(whole) - 4 - footer) + whole[-footer:])
    with pytest.raises(DataError, match=r"2\.parquet, row group 0, columns 'id', .*: cannot be read: .*Check the file\."):
        list(ps.open(tmp_path).batch(50))


def test_a_missing_or_replaced_file_raises(table: Path, tmp_path: Path) -> None:
    """A file that was deleted or replaced after the table was opened raises DataChangedError."""
    for file in table.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    ds = ps.open(tmp_path).batch(50)
    assert ds.num_rows == FILES * EACH
    (tmp_path / "3.parquet").unlink()
    with pytest.raises(DataChangedError, match=r"3\.parquet, row group 0: the file is gone\. .* Open the table again"):
        list(ds)
    pq.write_table(rows(range(450, 470)), tmp_path / "3.parquet")
    with pytest.raises(DataChangedError, match=r"3\.parquet, row group 0: the file was changed after the table was opened"):
        list(ds)
    (tmp_path / "3.parquet").unlink()
    pq.write_table(rows(range(599, 449, -1)), tmp_path / "3.parquet", row_group_size=GROUP)
    with pytest.raises(DataChangedError, match="Open the table again"):
        list(ds)


def test_a_cell_that_cannot_be_decoded_is_reported_with_its_location(tmp_path: Path) -> None:
    """The error names file, row group, row and column, and a remedy."""
    for file in range(2):
        numbers = pa.array([None if file and at == 7 else at for at in range(10)], pa.int32())
        pq.write_table(pa.table({"id": range(10), "n": numbers}), tmp_path / f"{file}.parquet", row_group_size=5)
    with pytest.raises(DataError) as caught:
        list(ps.open(tmp_path).batch(4))

    text = str(caught.value)
    assert text.startswith(f"{tmp_path}/1.parquet, row group 1, row 7, column 'n': ")
    assert "nulls(" in text


def test_an_interrupt_ends_all_threads(tmp_path: Path) -> None:
    """Ctrl-C while a map waits ends the process and its threads promptly."""
    pq.write_table(pa.table({"id": range(1000)}), tmp_path / "a.parquet", row_group_size=10)
    script = textwrap.dedent(
        """
        import sys, threading
        import penstock as ps

        waiting = threading.Event()
        def slow(batch):
            print("ready", flush=True)
            waiting.wait()
            return batch

        try:
            for batch in ps.open(sys.argv[1]).batch(5).map(slow).using(threads=2):
                pass
        except KeyboardInterrupt:
            waiting.set()
        for thread in threading.enumerate():
            if thread.name.startswith("penstock"):
                thread.join()
        print("ended", flush=True)
        """
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.read(5) == "ready"
        process.send_signal(signal.SIGINT)

        assert "ended" in process.stdout.read()
        assert process.wait() == 0


def test_blobs_belong_to_their_rows(tmp_path: Path) -> None:
    """Strings, bytes and lists come with the right rows, in any order, over several windows and files."""
    for file in range(3):
        numbers = range(file * 40, (file + 1) * 40)
        columns = {
            "id": list(numbers),
            "text": [f"row {number}" for number in numbers],
            "blob": [bytes([number]) * (number % 5) for number in numbers],
            "list": [list(range(number % 4)) for number in numbers],
        }
        pq.write_table(pa.table(columns), tmp_path / f"{file}.parquet", row_group_size=9)
    for shuffle in SHUFFLES:
        seen = []
        for batch in ps.open(tmp_path).shuffle(shuffle, seed=1).batch(7, last="uneven").using(threads=3):
            for number, text, blob, cells in zip(batch["id"], batch["text"], batch["blob"], batch["list"], strict=True):
                seen.append(int(number))
                assert text == f"row {number}"
                assert blob == bytes([number]) * (number % 5)
                assert np.asarray(cells).tolist() == list(range(number % 4))
        assert sorted(seen) == list(range(120))


class Counted(pafs.FSSpecHandler):  # type: ignore[misc] # pyarrow has no types
    """A filesystem that counts the bytes read from its files."""

    total = 0

    def open_input_file(self, path: str) -> Any:
        """Return a file whose reads are counted."""
        outer, file = self, self.fs.open(path, "rb", block_size=0, cache_type="none")

        class Watched:
            closed = False

            def read(self, size: int = -1) -> bytes:
                found: bytes = file.read(size)
                outer.total += len(found)
                return found

            def __getattr__(self, name: str) -> Any:
                return getattr(file, name)

        return pa.PythonFile(Watched(), mode="r")


def test_a_filter_for_one_percent_reads_at_most_two(tmp_path: Path) -> None:
    """Row groups that statistics exclude are not read, and neither are columns that are not selected."""
    random = np.random.default_rng(0)
    blobs = [random.bytes(300) for _ in range(100_000)]
    pq.write_table(pa.table({"id": range(100_000), "blob": blobs}), tmp_path / "a.parquet", row_group_size=1000)
    handler = Counted(fsspec.filesystem("file"))
    ds = ps.open(str(tmp_path), filesystem=pafs.PyFileSystem(handler))

    assert sum(len(batch["id"]) for batch in ds.where(ps.col("id").between(5000, 5999)).batch(100)) == 1000
    assert handler.total <= 0.02 * (tmp_path / "a.parquet").stat().st_size
    before = handler.total
    assert sum(len(batch["id"]) for batch in ds.select("id").batch(1000)) == 100_000
    assert handler.total - before <= 0.04 * (tmp_path / "a.parquet").stat().st_size


def test_read_ahead_stays_within_the_memory_limit(tmp_path: Path) -> None:
    """With a limit of two row groups, no more are in memory, whatever the number of threads."""
    pq.write_table(pa.table({"id": np.arange(400_000)}), tmp_path / "a.parquet", row_group_size=10_000)
    ds = ps.open(tmp_path).batch(10_000).using(threads=4)
    bounded, free = iter(ds.using(threads=4, memory_limit=300_000)), iter(ds)
    for batches in (bounded, free):
        for _ in range(3):
            next(batches)
    ahead = [len(batches._stream._steps.prefetcher._lanes[0]._queue) for batches in (bounded, free)]  # type: ignore[union-attr]

    assert ahead[0] <= 1 < ahead[1]
    assert sum(len(batch["id"]) for batch in ds.using(memory_limit=80_000)) == 400_000
    with pytest.raises(ps.errors.MemoryLimitError, match=r"row group 0: .* take 80000 bytes .* memory_limit is 79999"):
        next(iter(ds.using(memory_limit=79_999)))


def test_memory_of_kept_batches_is_never_reused(table: Path) -> None:
    """Batches that the consumer keeps never change, however many follow them."""
    ds = (
        ps.open(table)
        .select("id", "triple")
        .shuffle(ps.WindowShuffle(rows=60), seed=5)
        .batch(7, last="uneven")
        .using(threads=3)
    )
    kept = [(batch, ids(batch)) for _ in range(3) for batch in ds]

    assert all(ids(batch) == numbers for batch, numbers in kept)
    assert all((batch["triple"] == 3.0 * batch["id"]).all() for batch, _ in kept)


def test_an_iteration_in_a_forked_process_raises(table: Path) -> None:
    """An iteration in a forked process raises instead of waiting for threads of the parent. A new one works there."""
    script = """
import os, sys
import penstock as ps
batches = iter(ps.open(sys.argv[1]).batch(10).using(threads=2, memory_limit=2000))
next(batches)
child = os.fork()
if child == 0:
    try:
        list(batches)
    except ps.PenstockError as error:
        print("told" if "Begin a new one" in str(error) else error, len(list(ps.open(sys.argv[1]).batch(10))), flush=True)
    os._exit(0)
os.waitpid(child, 0)
print(len(list(batches)))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(table)], capture_output=True, text=True, check=False
    )

    assert done.stdout.split() == ["told", "60", "59"], done.stderr


class Backwards(ThreadPool):
    """A pool that runs tasks on request, the newest first, because threads guarantee no order."""

    def __init__(self) -> None:
        super().__init__(1)
        self.tasks: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, urgency: Priority, task: Callable[[], Any]) -> Future[Any]:  # noqa: ARG002 - one order for all
        """Store a task."""
        future: Future[Any] = Future()
        self.tasks.append((future, task))
        return future

    def run(self) -> None:
        """Run all tasks, including those that they submit."""
        while self.tasks:
            future, task = self.tasks.pop()
            future.set_result(task())


def test_a_unit_of_two_windows_is_read_once_in_any_order(table: Path) -> None:
    """A window reuses the unit that the window before it used in part, even if its own task runs first."""
    batches: Any = iter(ps.open(table).batch(10))
    pool = Backwards()
    window_reader = WindowReader(
        batches.planned.reader, batches.planned.plan, ReadSpec(columns=(ColumnDecoding(name="id"),)), pool
    )
    both = Window(reads=(Read(unit=0, rows=slice(0, 25)), Read(unit=1, rows=slice(0, 10))))
    rest = Window(reads=(Read(unit=1, rows=slice(10, 25)),))
    first = window_reader.request(lambda: both, None)
    second = window_reader.request(lambda: rest, first)
    pool.run()

    assert first.buffer.result().fixed["id"].tolist() == list(range(35))
    assert second.buffer.result().fixed["id"].tolist() == list(range(35, 50))
    assert window_reader.units_read == 2


def test_the_next_epoch_is_read_ahead(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated dataset reads the next epoch before it is needed, and reads every unit once per epoch."""
    read: list[int] = []
    twice, original = threading.Event(), WindowReader._read_all

    def recording(self: WindowReader, indices: list[int], window_rows: int) -> Any:
        found = original(self, indices, window_rows)
        read.extend(indices)
        if len(read) == 2 * len(batches.planned.plan.counts):
            twice.set()
        return found

    monkeypatch.setattr(WindowReader, "_read_all", recording)
    ds = ps.open(table).shuffle(seed=1).batch(10)
    batches: Any = iter(ds.repeat(2))
    first = ids(next(batches))

    assert twice.wait(60)
    assert [first, *map(ids, batches)] == [ids(batch) for loader in [ps.loader(ds)] for _ in range(2) for batch in loader]
    assert read.count(0) == 4  # two epochs here, and two of the loader for comparison


@pytest.mark.parametrize("limit", [2_000, 20_000, 200_000])
@pytest.mark.parametrize("lanes", [1, 6])
def test_two_epochs_share_the_memory(table: Path, monkeypatch: pytest.MonkeyPatch, limit: int, lanes: int) -> None:
    """Data that is read ahead for the next epoch fits in the limit beside the current epoch, also if windows are views."""
    original, seen = Prefetcher.prefetch_first_windows, []

    def recording(self: Prefetcher, beside: int) -> None:
        before = self.rows_in_memory
        original(self, beside)
        if self.rows_in_memory > before:
            seen.append((beside + self.rows_in_memory) * self._window_reader.row_bytes)

    monkeypatch.setattr(Prefetcher, "prefetch_first_windows", recording)
    ds = ps.open(table).shard(0, 1, lanes=lanes).batch(10).using(threads=2, memory_limit=limit)

    assert sum(len(batch["id"]) for batch in ds.repeat(3)) == 3 * ds.num_rows
    assert all(taken <= 1.5 * limit for taken in seen)  # the size of a row is estimated during the iteration
    assert seen or limit < 200_000


class Once(ps.WindowShuffle):
    """A shuffle that arranges the first epoch only."""

    def arrange(self, counts: Any, *, seed: int, epoch: int) -> Any:
        """Return the order of the first epoch, and raise for others."""
        if epoch:
            raise KeyError(epoch)
        return ps.WindowShuffle.arrange(self, counts, seed=seed, epoch=epoch)


def test_an_error_of_the_next_epoch_is_raised_in_its_turn(table: Path) -> None:
    """All batches of an epoch come before an error of the next one."""
    batches = iter(ps.open(table).shuffle(Once(rows=5_000), seed=1).batch(10).repeat(2))

    assert sorted(number for _ in range(60) for number in ids(next(batches))) == list(range(600))
    with pytest.raises(KeyError):
        next(batches)


def test_windows_are_freed_with_their_iteration(table: Path) -> None:
    """Closing an iteration at any point frees all its windows without the garbage collector, also of the next epoch."""

    def buffer() -> int:
        return sum(type(one) is WindowBuffer for one in gc.get_objects())  # isinstance() would also count proxies

    gc.collect()
    gc.disable()
    try:
        before = buffer()
        for stop in (1, 30, 58, 60, 61):
            batches: Any = iter(ps.open(table).shuffle(ps.WindowShuffle(rows=100), seed=1).batch(10).repeat(3))
            for _ in range(stop):
                next(batches)
            batches.close()
            del batches
            until = time.monotonic() + 10
            while buffer() > before and time.monotonic() < until:  # a thread that has just ended lets go of its last window
                threading.Event().wait(0.01)
            assert buffer() <= before
    finally:
        gc.enable()


def test_closing_from_another_thread_ends_a_wait(table: Path) -> None:
    """A consumer that waits for rows stops waiting when another thread closes the iteration."""
    entered, release = threading.Event(), threading.Event()

    def slow(batch: dict[str, Any]) -> dict[str, Any]:
        entered.set()
        release.wait()
        return batch

    batches = iter(ps.open(table).batch(10).map(slow).using(threads=1))
    got: list[Any] = []
    consumer = threading.Thread(target=lambda: got.extend(batches))
    consumer.start()
    entered.wait()
    closer = threading.Thread(target=batches.close)
    closer.start()
    release.set()
    consumer.join()
    closer.join()

    assert len(got) <= 1
    assert threads() == []
