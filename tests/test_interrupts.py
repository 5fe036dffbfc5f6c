"""Ctrl-C while reading raises KeyboardInterrupt at once, leaves no threads behind, and leaves the loader usable."""

from __future__ import annotations

import _thread
import gc
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from interrupts import Interrupt
from products import slow_except

import penstock as ps
from penstock._engine.runtime.threads import InterruptibleCondition, InterruptibleFuture, wait_for_one

FILES, ROWS_PER_FILE = 3, 60


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table of numbers and words."""
    folder = tmp_path_factory.mktemp("table")
    for file in range(FILES):
        numbers = range(file * ROWS_PER_FILE, (file + 1) * ROWS_PER_FILE)
        columns = {"id": list(numbers), "word": [f"word {number}" for number in numbers]}
        pq.write_table(pa.table(columns), folder / f"{file}.parquet", row_group_size=10)
    return folder


def unchanged(batch: dict[str, Any]) -> dict[str, Any]:
    """Return the batch unchanged."""
    return batch


QUERIES: dict[str, Callable[[ps.Dataset], ps.Dataset]] = {
    "views": lambda ds: ds.select("id").shuffle(ps.WindowShuffle(rows=40)).batch(7),
    "maps": lambda ds: ds.shuffle(ps.WindowShuffle(rows=40)).batch(7).map(unchanged),
    "rows": lambda ds: ds.map(unchanged),
    "lazy": lambda ds: ds.where(ps.col("id") > 20, lazy=True).batch(7).map(unchanged),
    "skipping": lambda ds: ds.batch(7).map(unchanged).on_bad_row("skip"),
}


def ids(batch: dict[str, Any]) -> list[int]:
    """Return the ids of a batch, or of a row."""
    found: list[int] = np.atleast_1d(batch["id"]).tolist()
    return found


def threads() -> list[str]:
    """Return the names of Penstock's threads that are alive."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock")]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python itself warns when it is interrupted
@pytest.mark.parametrize("kind", slow_except(QUERIES, fast=["views"]))
def test_ctrl_c_at_any_moment_ends_only_the_iteration(table: Path, kind: str) -> None:
    """After Ctrl-C, earlier batches are correct, all threads end, and the saved state resumes where reading stopped."""
    ds = QUERIES[kind](ps.open(table).using(threads=2))
    expected = [ids(batch) for batch in ds]

    def make_reader(loader: Any, got: list[list[int]]) -> Callable[[], None]:
        def read() -> None:
            for batch in loader:
                got.append(ids(batch))  # noqa: PERF401 - keeps the batches before the interrupt

        return read

    probe = Interrupt(-1)
    probe.run(make_reader(ps.loader(ds), []))
    assert probe.points > 500
    for at in range(1, probe.points, probe.points // 8 + 1):
        loader, got, interrupt = ps.loader(ds), list[list[int]](), Interrupt(at)
        interrupted = interrupt.run(make_reader(loader, got))
        state = loader.state_dict()
        gc.collect()
        for thread in threading.enumerate():
            if thread.name.startswith("penstock"):
                thread.join(10)

        moment = (at, interrupt.where)
        assert threads() == [], moment
        assert got == expected[: len(got)], moment
        assert interrupted or got == expected, moment
        again = ps.loader(ds)
        again.load_state_dict(json.loads(json.dumps(state)))
        # One batch may have left the loader without reaching the consumer.
        rest = [ids(batch) for batch in again] if interrupted else []
        assert rest in (expected[len(got) :], expected[len(got) + 1 :]) or state["epoch"] == 1, moment
        assert len([ids(batch) for batch in loader]) == len(expected), moment


WAITING = """
import os, signal, sys, threading
import pyarrow as pa
from dataclasses import dataclass
from pyarrow import fs as pafs
import fsspec
import numpy as np
import penstock as ps
from penstock.codecs import CellCodec, register

place, phase = sys.argv[1:]
release, main = threading.Event(), threading.main_thread()

def ready():
    if not release.is_set():
        os.write(1, b"ready\\n")
        while not release.wait(0.1):  # a signal that comes just before a wait without end would not be seen
            pass

class Slow(pafs.FSSpecHandler):
    def open_input_file(self, path):
        file = self.fs.open(path, "rb")
        class Watched:
            closed = False
            def read(self, size=-1):
                if phase == "storage" and threading.current_thread() is not main:
                    ready()
                return file.read(size)
            def __getattr__(self, name):
                return getattr(file, name)
        return pa.PythonFile(Watched(), mode="r")

@register
@dataclass(frozen=True)
class Slowly(CellCodec):
    name = "slowly"
    def encode(self, field, cell):
        return bytes(cell)
    def decode(self, field, cell):
        if phase == "decode":
            ready()
        return np.frombuffer(cell, np.uint8)

def function(row):
    if phase in ("map", "row"):
        ready()
    return row

ps.write(place, ps.Schema("S", [ps.Field("id", np.int64), ps.Field("cell", np.uint8, (3,), Slowly())]),
         {"id": np.arange(40), "cell": np.zeros((40, 3), np.uint8)}, row_group_rows=10)
ds = ps.open(place, filesystem=pafs.PyFileSystem(Slow(fsspec.filesystem("file"))), codecs=[Slowly]).using(threads=2)
ds = ds.map(function) if phase == "row" else ds.batch(5).map(function)
loader = ps.loader(ds)
try:
    for batch in loader:
        if phase == "between":
            ready()
    print("not interrupted")
except KeyboardInterrupt:
    os.write(1, b"interrupted\\n")
release.set()
for thread in threading.enumerate():
    if thread.name.startswith("penstock"):
        thread.join(30)
left = [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock")]
print(left, sum(np.size(batch["id"]) for batch in loader))
"""


@pytest.mark.parametrize("phase", ["storage", "decode", "map", "row", "between"])
def test_a_signal_raises_while_a_loader_waits(tmp_path: Path, phase: str) -> None:
    """A signal during a read, a decoding, a map, or between batches raises at once and prints no error."""
    command = [sys.executable, "-c", WAITING, str(tmp_path / "t"), phase]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)

    assert err == ""
    assert [line for line in out.splitlines() if line != "ready"] == ["interrupted", "[] 40"]
    assert process.returncode == 0


def test_an_interrupted_condition_is_left_unlocked() -> None:
    """After an interrupt anywhere in a wait, other threads can lock the condition and be notified."""

    def make_wait(condition: InterruptibleCondition) -> Callable[[], None]:
        def wait() -> None:
            with condition:
                condition.notify_all()
                condition.wait(timeout=0)

        return wait

    probe = Interrupt(-1)
    probe.run(make_wait(InterruptibleCondition()))
    assert probe.points > 8
    for at in range(1, probe.points + 1):
        condition, entered = InterruptibleCondition(), threading.Event()
        assert Interrupt(at).run(make_wait(condition))

        def other(condition: InterruptibleCondition = condition, entered: threading.Event = entered) -> None:
            with condition:
                entered.set()
                condition.wait()

        thread = threading.Thread(target=other)
        thread.start()
        assert entered.wait(10)
        with condition:
            condition.notify()
        thread.join(10)
        assert not thread.is_alive()


def test_a_future_returns_its_result_after_an_interrupt() -> None:
    """After an interrupted `result()`, setting the result does not block, and `result()` returns it."""
    for at in range(1, 40):
        future: InterruptibleFuture[int] = InterruptibleFuture()
        Interrupt(at).run(lambda future=future: _time_out(future))  # type: ignore[misc]
        future.set_result(at)
        assert future.result(timeout=10) == at


def _time_out(future: InterruptibleFuture[int]) -> None:
    with pytest.raises(TimeoutError):
        future.result(timeout=0)


def test_wait_for_one_can_be_interrupted() -> None:
    """After an interrupt anywhere in `wait_for_one`, it can be called again, and the other futures can be completed."""

    def make_wait(futures: list[InterruptibleFuture[int]]) -> Callable[[], None]:
        return lambda: wait_for_one(futures)

    def make_futures() -> list[InterruptibleFuture[int]]:
        futures: list[InterruptibleFuture[int]] = [InterruptibleFuture() for _ in range(3)]
        futures[1].set_result(1)
        return futures

    probe = Interrupt(-1)
    probe.run(make_wait(make_futures()))
    assert probe.points > 8
    for at in range(1, probe.points + 1):
        futures = make_futures()
        assert Interrupt(at).run(make_wait(futures)), at
        wait_for_one(futures)
        futures[0].set_result(0)
        futures[2].set_exception(ValueError())
        wait_for_one(futures[2:])
        assert futures[0].result(timeout=10) == 0


@pytest.mark.parametrize(
    "wait", [InterruptibleFuture.result, lambda future: wait_for_one([future])], ids=["result", "wait_for_one"]
)
def test_an_interrupt_that_does_not_wake_a_wait_is_still_raised(wait: Callable[[Any], Any]) -> None:
    """An interrupt that does not wake the waiting thread is raised all the same, like one just before the wait began."""
    future: InterruptibleFuture[None] = InterruptibleFuture()
    watchdog = threading.Timer(60, future.set_result, [None])

    def interrupt() -> None:
        while not (future._condition._waiters or future._done_callbacks):  # type: ignore[attr-defined] # until it waits
            pass
        _thread.interrupt_main()  # sets a flag and wakes no thread

    watchdog.start()
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        wait(future)
    watchdog.cancel()

    assert not future.done()
