"""Ctrl-C while reading: it is raised at once, nothing hangs or stays, and the loader can be used again."""

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

FILES, EACH = 3, 60


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table of numbers and words."""
    place = tmp_path_factory.mktemp("table")
    for file in range(FILES):
        numbers = range(file * EACH, (file + 1) * EACH)
        columns = {"id": list(numbers), "word": [f"word {number}" for number in numbers]}
        pq.write_table(pa.table(columns), place / f"{file}.parquet", row_group_size=10)
    return place


def same(batch: dict[str, Any]) -> dict[str, Any]:
    """Return a batch as it is."""
    return batch


QUESTIONS: dict[str, Callable[[ps.Dataset], ps.Dataset]] = {
    "views": lambda ds: ds.select("id").shuffle(ps.WindowShuffle(rows=40)).batch(7),
    "maps": lambda ds: ds.shuffle(ps.WindowShuffle(rows=40)).batch(7).map(same),
    "rows": lambda ds: ds.map(same),
    "lazy": lambda ds: ds.where(ps.col("id") > 20, lazy=True).batch(7).map(same),
    "skipping": lambda ds: ds.batch(7).map(same).on_bad_row("skip"),
}


def ids(batch: dict[str, Any]) -> list[int]:
    """Return the ids of a batch, or of a row."""
    found: list[int] = np.atleast_1d(batch["id"]).tolist()
    return found


def threads() -> list[str]:
    """Return the names of our threads that are alive."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock")]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of Python's own, when it is interrupted
@pytest.mark.parametrize("kind", slow_except(QUESTIONS, fast=["views"]))
def test_ctrl_c_at_any_moment_ends_an_iteration_and_nothing_else(table: Path, kind: str) -> None:
    """It is raised, the batches before it are right, no thread waits for ever, and the state goes on where it came."""
    ds = QUESTIONS[kind](ps.open(table).using(threads=2))
    whole = [ids(batch) for batch in ds]

    def reading(loader: Any, got: list[list[int]]) -> Callable[[], None]:
        def read() -> None:
            for batch in loader:
                got.append(ids(batch))  # noqa: PERF401 - what came before the interrupt counts

        return read

    probe = Interrupt(-1)
    probe.run(reading(ps.loader(ds), []))
    assert probe.points > 500
    for at in range(1, probe.points, probe.points // 8 + 1):
        loader, got, interrupt = ps.loader(ds), list[list[int]](), Interrupt(at)
        interrupted = interrupt.run(reading(loader, got))
        state = loader.state_dict()
        gc.collect()
        for thread in threading.enumerate():
            if thread.name.startswith("penstock"):
                thread.join(10)

        told = (at, interrupt.where)
        assert threads() == [], told
        assert got == whole[: len(got)], told
        assert interrupted or got == whole, told
        again = ps.loader(ds)
        again.load_state_dict(json.loads(json.dumps(state)))
        # One batch may have been on its way from the loader to who reads.
        rest = [ids(batch) for batch in again] if interrupted else []
        assert rest in (whole[len(got) :], whole[len(got) + 1 :]) or state["epoch"] == 1, told
        assert len([ids(batch) for batch in loader]) == len(whole), told


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
def test_a_signal_is_raised_while_a_loader_waits(tmp_path: Path, phase: str) -> None:
    """For storage, a codec, a map on its threads or on the consumer's, or for nothing: at once, and nothing is printed."""
    command = [sys.executable, "-c", WAITING, str(tmp_path / "t"), phase]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)

    assert err == ""
    assert [line for line in out.splitlines() if line != "ready"] == ["interrupted", "[] 40"]
    assert process.returncode == 0


def test_a_gate_that_is_interrupted_is_left_unlocked() -> None:
    """Wherever a wait is interrupted, others can go on, and those who are notified come."""

    def waiting(gate: InterruptibleCondition) -> Callable[[], None]:
        def wait() -> None:
            with gate:
                gate.notify_all()
                gate.wait(timeout=0)

        return wait

    probe = Interrupt(-1)
    probe.run(waiting(InterruptibleCondition()))
    assert probe.points > 8
    for at in range(1, probe.points + 1):
        gate, came = InterruptibleCondition(), threading.Event()
        assert Interrupt(at).run(waiting(gate))

        def other(gate: InterruptibleCondition = gate, came: threading.Event = came) -> None:
            with gate:
                came.set()
                gate.wait()

        thread = threading.Thread(target=other)
        thread.start()
        assert came.wait(10)
        with gate:
            gate.notify()
        thread.join(10)
        assert not thread.is_alive()


def test_a_promise_is_kept_after_an_interrupt() -> None:
    """Who was interrupted while waiting may ask again, and who keeps the promise is not held up."""
    for at in range(1, 40):
        promise: InterruptibleFuture[int] = InterruptibleFuture()
        Interrupt(at).run(lambda promise=promise: _waited(promise))  # type: ignore[misc]
        promise.set_result(at)
        assert promise.result(timeout=10) == at


def _waited(promise: InterruptibleFuture[int]) -> None:
    with pytest.raises(TimeoutError):
        promise.result(timeout=0)


def test_waiting_for_one_of_several_can_be_interrupted() -> None:
    """Anywhere; it ends with the first of them, and those who keep the other promises are not held up."""

    def waiting(promises: list[InterruptibleFuture[int]]) -> Callable[[], None]:
        return lambda: wait_for_one(promises)

    def promised() -> list[InterruptibleFuture[int]]:
        promises: list[InterruptibleFuture[int]] = [InterruptibleFuture() for _ in range(3)]
        promises[1].set_result(1)
        return promises

    probe = Interrupt(-1)
    probe.run(waiting(promised()))
    assert probe.points > 8
    for at in range(1, probe.points + 1):
        promises = promised()
        assert Interrupt(at).run(waiting(promises)), at
        wait_for_one(promises)
        promises[0].set_result(0)
        promises[2].set_exception(ValueError())
        wait_for_one(promises[2:])
        assert promises[0].result(timeout=10) == 0


@pytest.mark.parametrize(
    "wait", [InterruptibleFuture.result, lambda promise: wait_for_one([promise])], ids=["result", "wait_for_one"]
)
def test_an_interrupt_that_does_not_end_a_wait_is_seen_all_the_same(wait: Callable[[Any], Any]) -> None:
    """As one that came just before the wait began: the system has told it by then, and will not do so again."""
    promise: InterruptibleFuture[None] = InterruptibleFuture()
    at_last = threading.Timer(60, promise.set_result, [None])

    def interrupt() -> None:
        while not (promise._condition._waiters or promise._done_callbacks):  # type: ignore[attr-defined] # it waits by then
            pass
        _thread.interrupt_main()  # which only notes it

    at_last.start()
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        wait(promise)
    at_last.cancel()

    assert not promise.done()
