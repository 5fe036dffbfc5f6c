"""Maps and decoding in worker processes: results equal those of threads, and nothing is left behind."""

from __future__ import annotations

import contextlib
import datetime as dt
import gc
import importlib.util
import json
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import installs
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
from products import slow_except
from strategies import aligned, rows

import penstock as ps
from penstock._engine.processes import serialize
from penstock.codecs import CellCodec, Npy
from penstock.errors import ArgumentError, DataError, MapError, WorkerError
from penstock.sequences import Sequence
from penstock.testing import MemoryFormat, example

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what is left behind is looked up in /proc")

TIMEOUT = 60.0
"""Seconds after which a wait counts as hanging. Normal waits are much shorter."""


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory of two files of four row groups each."""
    place = tmp_path_factory.mktemp("table")
    for file in range(2):
        pq.write_table(rows(range(file * 100, (file + 1) * 100)), place / f"{file}.parquet", row_group_size=25)
    return place


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table of arrays. The large ones stay in their files until their batch is made."""
    place = tmp_path_factory.mktemp("pictures") / "table"
    fields = [
        ps.Field("id", np.int64),
        ps.Field("small", np.int16, (4,), Npy()),
        ps.Field("large", np.uint8, (32, 1024), Npy()),
    ]
    with ps.write(place, ps.Schema("Pictures", fields), row_group_mb=1) as writer:
        for number in range(120):
            cell = np.full((32, 1024), number, np.uint8)
            writer.append({"id": number, "small": np.arange(4, dtype=np.int16) + number, "large": cell})
    return place


def children() -> set[int]:
    """Return our worker processes, and ended processes that this one has started and not yet waited for.

    Helpers that Python starts for the workers of torch are excluded, because they stay until this process ends.
    """
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has just ended
            found.update(int(number) for number in (task / "children").read_text().split())
    for number in tuple(found):
        try:
            command = Path(f"/proc/{number}/cmdline").read_bytes()
        except FileNotFoundError:  # another thread has just waited for it
            found.remove(number)
        else:
            found -= set() if not command or b"penstock._engine.processes.worker" in command else {number}
    return found - installs.STARTED


def descriptors() -> list[str]:
    """Return the names of the files that are open in this process."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            found.append(str(entry.readlink()))
    return sorted(found)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Check that a test leaves no process, thread or open file behind."""
    gc.collect()  # frees what the traceback of an earlier failure keeps alive
    before, open_before = children(), descriptors()
    yield
    gc.collect()
    assert children() == before
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("penstock")]
    for thread in threads:  # an interrupt does not wait for threads that are about to end
        thread.join(TIMEOUT)
    assert [thread.name for thread in threads if thread.is_alive()] == []
    assert descriptors() == open_before


def ended(pids: set[int], seconds: float = TIMEOUT) -> bool:
    """Wait until processes have ended, whoever started them, and return whether they have."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        events = waiting.poll(seconds * 1000)
        os.close(descriptor)
        if not events:
            return False
    return True


def contents(batches: Any) -> list[list[tuple[str, str, Any]]]:
    """Return the name, type and values of every column of every batch."""
    return [
        [(name, str(getattr(values, "dtype", type(values))), np.asarray(values).tolist()) for name, values in batch.items()]
        for batch in batches
    ]


def noisy(batch: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Add a column of random numbers."""
    return {**batch, "noise": rng.random(len(batch["id"]))}


def noisy_row(row: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Add a random number and a tuple."""
    return {**row, "noise": float(rng.random()), "pair": (int(row["id"]), row["name"])}


QUERIES: dict[str, Callable[[ps.Dataset], ps.Dataset]] = {
    "batches": lambda ds: ds.shuffle(seed=3).batch(7, last="uneven").map(noisy),
    "padded": lambda ds: ds.shuffle(seed=3).batch(30, last="pad").map(noisy),
    "wrapped, two maps": lambda ds: ds.shuffle(seed=1).batch(30, last="wrap").map(noisy).map(noisy),
    "a rank": lambda ds: ds.shuffle(ps.WindowShuffle(rows=40), seed=1).shard(1, 3).batch(8).map(noisy),
    "row groups": lambda ds: ds.batch("row_group").map(lambda batch: {"id": batch["id"][::2]}),
    "rows of batches": lambda ds: ds.shuffle(seed=2).batch(9).map(noisy_row, per_row=True),
    "rows": lambda ds: ds.shuffle(seed=2).map(noisy_row),
    "stacked": lambda ds: ds.batch(9).stack("both", ["triple", "third"]).map(noisy),
    "ids": lambda ds: ds.with_row_ids().shuffle(seed=2).batch(9).map(noisy),
    "filtered on the fly": lambda ds: ds.where(ps.col("third") == 1, lazy=True).shuffle(seed=2).batch(6).map(noisy),
    "rows filtered on the fly": lambda ds: ds.where(ps.col("third") == 1, lazy=True).map(noisy_row),
    "epochs": lambda ds: ds.limit(20).shuffle(seed=2).batch(6).repeat(2).map(noisy),
}


@pytest.mark.slow
@pytest.mark.parametrize("query", slow_except(QUERIES, fast=["batches", "rows"]))
def test_processes_return_what_threads_return(table: Path, query: str) -> None:
    """Rows, order, types, random numbers and padding do not depend on whether threads or processes run maps."""
    ds = QUERIES[query](ps.open(table))
    processes = 3 if query == "batches" else 1

    assert contents(ds.using(processes=processes)) == contents(ds)


OBJECT_COLUMNS = {
    "id": list(range(24)),
    "text": [None if n % 5 == 0 else f"row {n}" for n in range(24)],
    "raw": [bytes([n]) * n for n in range(24)],
    "lists": [None if n % 7 == 3 else list(range(n % 4)) for n in range(24)],
    "words": [["a"] * (n % 3) for n in range(24)],
    "struct": [{"a": n, "b": [str(n)]} for n in range(24)],
    "price": [Decimal(n) / 4 for n in range(24)],
    "when": [dt.datetime(2020, 1, 1 + n, tzinfo=dt.UTC) for n in range(24)],
}


@pytest.mark.parametrize("policy", slow_except([None, ps.Pad(), ps.Offsets()], fast=[None]))
def test_columns_of_objects_are_the_same_as_with_threads(policy: Any) -> None:
    """Text, bytes, lists, structs, decimals, times and nulls are the same as with threads, in a map and after it."""
    ds = MemoryFormat.of(OBJECT_COLUMNS, row_group_rows=10).open().shuffle(seed=1)
    ds = ds if policy is None else ds.nulls(ps.Fill(0), "lists").ragged(policy, "lists")
    ds = ds.batch(5, last="uneven").map(
        lambda batch: {**batch, 7: batch["id"], "kind": [str(batch["lists"].dtype)] * len(batch["id"])}
    )
    threads, processes = list(ds), list(ds.using(processes=1))

    assert repr(processes) == repr(threads)


@pytest.mark.slow
def test_sequences_are_mapped_in_processes(table: Path) -> None:
    """Sequences of rows, which are gathered after decoding, are mapped like rows."""
    ds = ps.open(table).sequence(Sequence(length=3, by="id")).shuffle(seed=2).batch(4).map(noisy)

    assert contents(ds.using(processes=1)) == contents(ds)


def summed(batch: dict[str, Any]) -> dict[str, Any]:
    """Add the sum of each picture."""
    return {**batch, "sum": batch["large"].sum(axis=(1, 2))}


DECODED: dict[str, Callable[[ps.Dataset], ps.Dataset]] = {
    "batches": lambda ds: ds.shuffle(seed=1).batch(16, last="pad"),
    "mapped batches": lambda ds: ds.shuffle(seed=1).batch(16, last="pad").map(summed),
    "rows": lambda ds: ds.select("small", "id"),
    "filtered on the fly": lambda ds: ds.where(ps.col("id") > 50, lazy=True).batch(16),
    "mapped, filtered on the fly": lambda ds: ds.where(ps.col("id") > 50, lazy=True).batch(16).map(summed),
}


@pytest.mark.parametrize("query", slow_except(DECODED, fast=["mapped batches"]))
def test_cells_are_decoded_in_processes(pictures: Path, query: str) -> None:
    """Processes decode cells of bytes like threads, in memory or in files, with maps and without."""
    ds = DECODED[query](ps.open(pictures))

    assert contents(ds.using(processes=1)) == contents(ds)


def test_no_process_is_started_without_work(table: Path) -> None:
    """Without maps, and without cells to decode, no process is started."""
    batches = iter(ps.open(table).batch(10).using(workers="processes"))
    next(batches)

    assert children() == set()
    batches.close()


@pytest.mark.slow
def test_a_state_is_the_same_with_processes_and_threads(table: Path) -> None:
    """States saved with processes and with threads at the same batch are equal. Both continue from such a state."""
    ds = ps.open(table).shuffle(seed=5).batch(8).map(noisy)
    states, rests = [], []
    for variant in (ds, ds.using(processes=2)):
        loader = ps.loader(variant)
        batches = iter(loader)
        for _ in range(5):
            next(batches)
        states.append(loader.state_dict())
        del batches
        again = ps.loader(variant)
        again.load_state_dict(json.loads(json.dumps(states[0])))
        rests.append(contents(again))

    assert states[0] == states[1]
    assert rests[0] == rests[1]


@pytest.mark.slow
def test_epochs_of_a_loader_are_the_same_with_processes(table: Path) -> None:
    """Every epoch of a loader is the same with processes and with threads."""
    ds = ps.open(table).limit(40).shuffle(seed=5).batch(8).map(noisy)
    threads, processes = ps.loader(ds), ps.loader(ds.using(processes=1))

    assert [contents(processes) for _ in range(2)] == [contents(threads) for _ in range(2)]


# What can be sent to processes.


def test_large_arrays_are_not_copied_into_the_pickle(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pickle of a batch is small, because large arrays are in separate blocks. Their values are right."""
    sizes: list[list[int]] = []

    def unpack(blocks: list[npt.NDArray[np.uint8]]) -> Any:
        sizes.append([len(block) for block in blocks])
        return serialize.unpack(blocks)

    def enlarge(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "ragged": ragged(batch["id"]), "large": np.ones((len(batch["id"]), 1 << 16))}

    monkeypatch.setattr("penstock._engine.processes.pool.unpack", unpack)
    batches = list(ps.open(table).batch(50).map(enlarge).using(processes=1))

    assert all(aligned(batch) for batch in batches)
    assert [batch["large"].shape for batch in batches] == [(50, 1 << 16)] * 4
    assert batches[1]["ragged"][2].tolist() == list(range(52 % 5))
    assert [large for _, *large in sizes] == [[50 * 8 << 16]] * 4
    assert max(pickled for pickled, *_ in sizes) < 1 << 14


def ragged(numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return arrays of several lengths."""
    found = np.empty(len(numbers), dtype=object)
    for at, number in enumerate(numbers.tolist()):
        found[at] = np.arange(number % 5)
    return found


def test_closures_are_sent_to_processes(table: Path) -> None:
    """A function is sent with the values of its closure, wherever it is defined."""
    factor = 3

    def scaled(batch: dict[str, Any]) -> dict[str, Any]:
        return {"id": batch["id"], "scaled": batch["id"] * factor}

    (batch, *_) = ps.open(table).batch(10).map(scaled).using(processes=1)

    assert batch["scaled"].tolist() == list(range(0, 30, 3))


def test_functions_of_a_module_that_cannot_be_imported_are_sent(tmp_path: Path) -> None:
    """A function is sent with its code if a new process cannot import its module."""
    (tmp_path / "hidden_away.py").write_text("OFFSET = 5\ndef shifted(batch):\n    return {'y': batch['id'] + OFFSET}\n")
    spec = importlib.util.spec_from_file_location("hidden_away", tmp_path / "hidden_away.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["hidden_away"] = module
    try:
        spec.loader.exec_module(module)
        found = [batch["y"].tolist() for batch in example().batch(5).map(module.shifted).using(processes=1)]
    finally:
        del sys.modules["hidden_away"]

    assert found == [[5, 6, 7, 8, 9], [10, 11, 12, 13, 14]]


def test_what_cannot_travel_is_told(table: Path) -> None:
    """A function that refers to an object that cannot be pickled raises ArgumentError with its name and a remedy."""
    lock = threading.Lock()

    def locked(batch: dict[str, Any]) -> dict[str, Any]:
        with lock:
            return batch

    with pytest.raises(ArgumentError) as caught:
        next(iter(ps.open(table).batch(10).map(locked).using(processes=1)))

    text = str(caught.value)
    assert text.startswith(
        "map test_what_cannot_travel_is_told.<locals>.locked cannot be sent to another process: cannot pickle"
    )
    assert text.endswith("Make what cannot be pickled inside the function, or leave workers='processes' out.")


def test_objects_that_can_be_pickled_come_back() -> None:
    """A map may return any object that both processes can pickle."""

    def paths(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "path": [Path(str(number)) for number in batch["id"]]}

    (batch, *_) = example().batch(3).map(paths).using(processes=1)

    assert batch["path"].tolist() == [Path("0"), Path("1"), Path("2")]


@pytest.mark.parametrize("per_row", [False, True])
def test_objects_that_cannot_be_pickled_are_reported(per_row: bool) -> None:  # noqa: FBT001 - a parameter
    """The error names the column, the map and what to return instead."""

    def locks(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "lock": threading.Lock() if per_row else [threading.Lock() for _ in batch["id"]]}

    ds = example().map(locks) if per_row else example().batch(3).map(locks)
    with pytest.raises(MapError) as caught:
        next(iter(ds.using(processes=1)))

    assert str(caught.value) == (
        "Column 'lock': map test_objects_that_cannot_be_pickled_are_reported.<locals>.locks returned a value that cannot be "
        "pickled, and so cannot be sent to another process: cannot pickle '_thread.lock' object. Return arrays, numbers, text, "
        "bytes, times, or lists, tuples and dicts of them, or leave workers='processes' out."
    )


def test_objects_that_only_the_worker_finds_are_reported(tmp_path: Path) -> None:
    """A value whose class this process cannot import raises WorkerError with a remedy."""
    (tmp_path / "worker_only.py").write_text("class Thing:\n    pass\n")

    def things(batch: dict[str, Any]) -> dict[str, Any]:
        import sys

        sys.path.append(str(tmp_path))
        import worker_only  # type: ignore[import-not-found] # its folder is on the worker's path only

        return {**batch, "thing": [worker_only.Thing() for _ in batch["id"]]}

    with pytest.raises(WorkerError) as caught:
        next(iter(example().batch(3).map(things).using(processes=1)))

    assert "returned values that cannot be unpickled here during map test_objects_that_only_the_worker" in str(caught.value)
    assert "ModuleNotFoundError: No module named 'worker_only'. Return arrays, numbers, text" in str(caught.value)


@dataclass(frozen=True)
class Odd(CellCodec):
    """A codec of the user, which rejects one cell."""

    name = "odd-of-processes"

    def encode(self, field: ps.Field, cell: Any) -> bytes:  # noqa: ARG002 - not needed
        """Return a number as text."""
        return str(int(cell[0])).encode()

    def decode(self, field: ps.Field, cell: memoryview) -> Any:
        """Return the number, unless it is 17."""
        if bytes(cell) == b"17":
            msg = "nobody likes 17"
            raise ValueError(msg)
        return np.array([int(bytes(cell))], field.dtype)


@pytest.mark.slow
def test_a_bad_cell_is_reported_with_its_location(tmp_path: Path) -> None:
    """An error of a cell names file, row group, row and column, whether a thread or a process decodes it."""
    fields = [ps.Field("id", np.int64), ps.Field("cell", np.int64, (1,), Odd())]
    with ps.write(tmp_path / "table", ps.Schema("Odd", fields)) as writer:
        for number in range(30):
            writer.append({"id": number, "cell": np.array([number])})
    ds = ps.open(tmp_path / "table", codecs=[Odd]).shuffle(seed=1).batch(5)
    texts = []
    for variant in (ds, ds.using(processes=2), ds.map(lambda batch: batch).using(processes=2)):
        with pytest.raises(DataError) as caught:
            list(variant)
        texts.append(str(caught.value))

    assert "row group 0, row 17, column 'cell': " in texts[0]
    assert "nobody likes 17" in texts[0]
    assert texts == [texts[0]] * 3


# Errors and exits of functions.


class PickyError(Exception):
    """An error that cannot be recreated from its arguments."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")
        self.first = first


@pytest.mark.slow
@pytest.mark.parametrize("kind", [KeyError, PickyError])
def test_an_error_arrives_with_its_type(kind: type[Exception]) -> None:
    """An error of a map is raised with its type and the traceback of its process, and again by every `next`."""

    def failing(batch: dict[str, Any]) -> dict[str, Any]:
        if 6 in batch["id"]:
            raise PickyError("one", "two") if kind is PickyError else KeyError("a key")
        return batch

    batches = iter(example().batch(2).map(failing).using(processes=2))

    assert [next(batches)["id"].tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(kind) as caught:
        next(batches)
    with pytest.raises(kind):
        next(batches)
    first, second = caught.value.__notes__
    assert first.startswith("Raised by map test_an_error_arrives_with_its_type.<locals>.failing, on the rows from position 6")
    assert second.startswith("In process ")
    assert "in failing" in second
    assert "test_pool.py" in second
    assert str(caught.value) == {KeyError: "'a key'", PickyError: "one and two"}[kind]


def test_an_error_that_cannot_be_pickled_is_reported() -> None:
    """An error that cannot be pickled is raised as WorkerError with its text."""

    def failing(_: dict[str, Any]) -> dict[str, Any]:
        msg = "no"
        raise ValueError(msg, threading.Lock())

    with pytest.raises(WorkerError, match="A process raised ValueError: ") as caught:
        next(iter(example().batch(2).map(failing).using(processes=1)))

    assert "in failing" in caught.value.__notes__[0]


def test_rows_before_a_bad_one_come_first() -> None:
    """A map of single rows returns all rows before the one that fails."""

    def failing(row: dict[str, Any]) -> dict[str, Any]:
        return {"id": 10 // (7 - int(row["id"]))}

    found_rows = iter(example().map(failing).using(processes=1))
    found = [next(found_rows)["id"] for _ in range(7)]

    assert found == [10 // (7 - number) for number in range(7)]
    with pytest.raises(ZeroDivisionError):
        next(found_rows)


def test_an_invalid_result_of_a_map_raises() -> None:
    """A map that returns columns of the wrong length raises the same MapError as with threads."""
    ds = example().batch(4).map(lambda batch: {"id": batch["id"][:1]})
    texts = []
    for variant in (ds, ds.using(processes=1)):
        with pytest.raises(MapError) as caught:
            list(variant)
        texts.append(str(caught.value))

    assert texts[0] == texts[1]


def killed(batch: dict[str, Any]) -> dict[str, Any]:
    """End the process with SIGKILL, as the system does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)
    return batch


def crashed(batch: dict[str, Any]) -> dict[str, Any]:
    """End the process with SIGSEGV, like a crash of native code."""
    os.kill(os.getpid(), signal.SIGSEGV)
    return batch


def exited(batch: dict[str, Any]) -> dict[str, Any]:
    """End the process without an exception."""
    os._exit(3)
    return batch


def left(batch: dict[str, Any]) -> dict[str, Any]:
    """Raise SystemExit."""
    sys.exit("enough")
    return batch


def interrupted(_: dict[str, Any]) -> dict[str, Any]:
    """Raise KeyboardInterrupt, as Ctrl-C does."""
    raise KeyboardInterrupt


def closed(_: dict[str, Any]) -> dict[str, Any]:
    """Raise GeneratorExit."""
    raise GeneratorExit


def exit_with_code(batch: dict[str, Any]) -> dict[str, Any]:
    """Raise SystemExit with an exit code."""
    sys.exit(4)
    return batch


END = "A function must return or raise an error that tells what is wrong."


KILLED = (killed, ("was ended by SIGKILL during map killed, on the rows from position ", "where memory runs out: use fewer"))


@pytest.mark.parametrize(
    ("function", "parts"),
    slow_except(
        [
            KILLED,
            (
                crashed,
                ("was ended by SIGSEGV during map crashed, on the rows from position ", "Native code may have crashed: "),
            ),
            (
                exited,
                ("ended with exit code 3 during map exited, on the rows from position ", "A function must return or raise"),
            ),
            (
                left,
                (
                    "was asked to end during map left, on the rows from position 0 of epoch 0: SystemExit('enough') was raised",
                    END,
                ),
            ),
            (
                interrupted,
                ("during map interrupted, on the rows from position 0 of epoch 0: KeyboardInterrupt() was raised", END),
            ),
            (closed, ("during map closed, on the rows from position 0 of epoch 0: GeneratorExit() was raised there. ", END)),
        ],
        fast=[KILLED],
    ),
)
def test_a_process_that_ends_raises_an_error(function: Callable[..., Any], parts: tuple[str, ...]) -> None:
    """A process that ends raises WorkerError, which says how it ended, in which map and on which batch."""
    batches = iter(example().batch(2).map(function).using(processes=2))

    with pytest.raises(WorkerError) as caught:
        next(batches)

    for part in parts:
        assert part in str(caught.value)


@pytest.mark.slow
def test_of_several_maps_the_one_that_ends_its_process_is_told() -> None:
    """The error names which of several maps ended its process, and where its batch begins in the epoch."""
    for ds, place in ((example().batch(4), 4), (example(), 4)):
        mapped = ds.map(dict).map(lambda batch: exit_with_code(batch) if np.max(batch["id"]) >= 4 else batch)
        name = "test_of_several_maps_the_one_that_ends_its_process_is_told.<locals>.<lambda>"
        with pytest.raises(WorkerError) as caught:
            list(mapped.using(processes=1))

        assert re.fullmatch(
            rf"Process \d+ was asked to end during map {re.escape(name)}, on the rows from position \d+ of epoch 0: "
            rf"SystemExit\(4\) was raised there\. {re.escape(END)}",
            str(caught.value),
        )
        assert f"Raised by map {name}, on the rows from position {place} of epoch 0." in caught.value.__notes__[-1]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, ZeroDivisionError, MemoryError])
def test_whatever_a_map_raises_on_a_thread_is_noted(kind: type[BaseException]) -> None:
    """A note names the map and the position. It suggests skipping only for errors that rows may cause."""

    def failing(_: dict[str, Any]) -> dict[str, Any]:
        raise kind

    with pytest.raises(kind) as caught:
        list(example().batch(2).map(failing))

    found = ' A dataset with .on_bad_row("skip") finds the rows that it fails on, and lists them in loader.skipped.'
    name = "test_whatever_a_map_raises_on_a_thread_is_noted.<locals>.failing"
    note = f"Raised by map {name}, on the rows from position 0 of epoch 0."
    assert caught.value.__notes__ == [note + (found if kind is ZeroDivisionError else "")]


@pytest.mark.slow
def test_a_function_that_hangs_is_ended() -> None:
    """A process that works longer than the timeout is ended, and raises WorkerError."""

    def hangs(batch: dict[str, Any]) -> dict[str, Any]:
        threading.Event().wait()
        return batch

    with pytest.raises(WorkerError) as caught:
        next(iter(example().batch(2).map(hangs).using(processes=1, timeout=3)))

    text = str(caught.value)
    assert (
        "has worked for more than 3 seconds during map test_a_function_that_hangs_is_ended.<locals>.hangs, on the rows" in text
    )
    assert text.endswith("If it needs so long, allow it: .using(timeout=...).")


def test_a_missing_module_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a process cannot import the module of a function, WorkerError names the function and the module."""
    (tmp_path / "gone_soon.py").write_text("def same(batch):\n    return batch\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("gone_soon")
    ds = example().batch(5).map(module.same).using(processes=1)
    found = importlib.util.find_spec
    assert found("gone_soon") is not None
    batches = iter(ds)
    monkeypatch.setattr("penstock._engine.processes.pickling._is_found", lambda _: True)
    (tmp_path / "gone_soon.py").unlink()
    for cached in (tmp_path / "__pycache__").glob("*"):
        cached.unlink()

    with pytest.raises(WorkerError) as caught:
        next(batches)

    assert str(caught.value).startswith(
        "A process could not take over map same: ModuleNotFoundError: No module named 'gone_soon'"
    )
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


# Batches that are kept, and what an iteration leaves behind.


def test_kept_batches_keep_their_values(table: Path) -> None:
    """A consumer may keep batches and write to them, also after the end of the iteration."""

    def large(batch: dict[str, Any]) -> dict[str, Any]:
        return {"id": batch["id"], "large": np.repeat(batch["id"], 1 << 13).reshape(len(batch["id"]), 1 << 13)}

    kept = list(ps.open(table).batch(5).map(large).using(processes=1))
    kept[0]["large"][:] = 7
    gc.collect()

    assert (kept[0]["large"] == 7).all()
    for batch in kept[1:]:
        assert (batch["large"] == batch["id"][:, None]).all()


@pytest.mark.slow
def test_batches_kept_by_a_map_keep_their_values() -> None:
    """A map may keep the batches that it gets. Their memory is not reused meanwhile."""
    seen: list[tuple[int, npt.NDArray[Any]]] = []

    def keeping(batch: dict[str, Any]) -> dict[str, Any]:
        seen.append((int(batch["id"][0]), batch["big"]))
        assert all((values == first).all() for first, values in seen)
        return {"id": batch["id"], "kept": np.full(len(batch["id"]), len(seen))}

    ds = MemoryFormat.of({"id": list(range(60)), "big": [[float(n // 3 * 3)] * 40_000 for n in range(60)]}, row_group_rows=15)
    batches = list(ds.open().ragged(ps.Pad(length=40_000), "big").batch(3).map(keeping).using(processes=1))

    # The process may get batches out of order.
    assert sorted(int(batch["kept"][0]) for batch in batches) == list(range(1, 21))


def test_a_break_ends_the_processes(table: Path) -> None:
    """A break in the loop ends all processes, whatever they do at that time."""
    for batch in ps.open(table).batch(2).map(noisy).using(processes=2):
        assert len(batch["id"]) == 2
        assert children() != set()
        break


@pytest.mark.slow
def test_repeated_breaks_leave_nothing(table: Path) -> None:
    """Iterations that are started and stopped repeatedly leave no file, process or thread. The fixture counts them."""
    ds = ps.open(table).batch(50).map(noisy).using(processes=1)
    for _ in range(3):
        next(iter(ds))
        gc.collect()

        assert children() == set()


@pytest.mark.slow
def test_torch_gets_tensors(pictures: Path) -> None:
    """A torch loader makes tensors in this process from the results of worker processes."""
    torch = pytest.importorskip("torch")
    from penstock.torch import loader

    ds = ps.open(pictures).select("id", "large").shuffle(seed=1).batch(16)
    ds = ds.map(lambda batch: {**batch, "mean": batch["large"].mean(axis=(1, 2))})
    threads, processes = list(loader(ds)), list(loader(ds.using(processes=2)))

    assert [type(value) for value in processes[0].values()] == [torch.Tensor] * 3
    for one, other in zip(processes, threads, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


# Scripts, as users run them.


def script(text: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start a script that has no file to import."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.mark.slow
def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    """Processes do not run the script again. Its functions, output, path, arguments and environment work in them."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "helpful.py").write_text("def add(values):\n    return values + 1\n")
    (tmp_path / "train.py").write_text(
        textwrap.dedent(
            """
            import os, sys
            sys.path.insert(0, os.path.join(os.path.dirname(__file__), "lib"))
            import helpful
            import penstock as ps
            from penstock.testing import example

            print("begun", flush=True)
            os.environ["SPOKEN"] = "word"
            LIMIT = 100

            def augment(batch):
                sys.stdout.write(f"mapping {os.environ['SPOKEN']} {sys.argv[1]}\\n")
                sys.stderr.write("to the other\\n")
                return {"y": helpful.add(batch["id"]) + LIMIT}

            print([batch["y"].tolist() for batch in example().batch(5).map(augment).using(workers="processes", processes=1)])
            """
        )
    )

    process = subprocess.run(
        [sys.executable, str(tmp_path / "train.py"), "given"], capture_output=True, text=True, timeout=TIMEOUT, check=True
    )

    assert sorted(process.stdout.splitlines()) == [
        "[[101, 102, 103, 104, 105], [106, 107, 108, 109, 110]]",
        "begun",
        "mapping word given",
        "mapping word given",
    ]
    assert process.stderr == "to the other\n" * 2


@pytest.mark.slow
def test_python_exits_while_a_thread_iterates() -> None:
    """No more processes are started while Python exits, so the exit does not hang."""
    text = """
        import threading
        import penstock as ps
        from penstock.testing import example

        begun = threading.Semaphore(0)
        loader = ps.loader(example().batch(2).map(lambda batch: batch).using(processes=1))

        def go():
            while True:
                for batch in loader:
                    begun.release()

        threading.Thread(target=go, daemon=True).start()
        for _ in range(12):
            begun.acquire()
        print("main ends", flush=True)
        """
    with script(text) as process:
        contents, errors = process.communicate(timeout=TIMEOUT)

    assert contents == "main ends\n"
    assert process.returncode == 0
    assert "WorkerError: Python ends, and starts no more processes for map" in errors or not errors


WAITING = """
    import os, sys, threading
    import penstock as ps
    from penstock.testing import example

    def waits(batch):
        os.write(1, b"%d\\n" % os.getpid())  # in one go, so that two processes do not mix
        {wait}
        return batch

    for batch in example().batch(2).map(waits).using(processes=2):
        pass
    """


@pytest.mark.slow
@pytest.mark.parametrize("wait", ["threading.Event().wait()", "import re; re.match('(a+)+$', 'a' * 60 + 'b')"])
def test_processes_end_with_their_parent(wait: str) -> None:
    """When the parent is killed, its processes end by themselves, even if a map never releases the GIL."""
    with script(WAITING.format(wait=wait)) as parent:
        assert parent.stdout is not None
        pids = {int(parent.stdout.readline()) for _ in range(2)}
        parent.kill()

        assert ended(pids)


@pytest.mark.slow
def test_an_interrupt_ends_parent_and_processes() -> None:
    """Ctrl-C while processes hang ends all of them promptly. Only the traceback of the parent is printed."""
    with script(WAITING.format(wait="threading.Event().wait()")) as parent:
        assert parent.stdout is not None
        assert parent.stderr is not None
        pids = {int(parent.stdout.readline()) for _ in range(2)}
        parent.send_signal(signal.SIGINT)

        assert parent.wait(TIMEOUT) == -signal.SIGINT
        assert ended(pids)
        assert parent.stderr.read().count("Traceback (most recent call last)") == 1


@pytest.mark.slow
def test_a_fork_of_the_parent_leaves_its_processes_alone() -> None:
    """A forked process that exits does not end the worker processes of its parent."""
    with script(
        """
        import os, sys, gc
        import penstock as ps
        from penstock.testing import example

        batches = iter(example().batch(2).map(lambda batch: batch).using(processes=1))
        print(next(batches)["id"].tolist())
        sys.stdout.flush()
        child = os.fork()
        if not child:
            del batches
            gc.collect()
            sys.exit(0)
        os.waitpid(child, 0)
        print([batch["id"].tolist() for batch in batches])
        """
    ) as process:
        out, errors = process.communicate(timeout=TIMEOUT)

    assert errors == ""
    assert out == "[0, 1]\n[[2, 3], [4, 5], [6, 7], [8, 9]]\n"


# Arguments of `using`.


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"workers": "fibres"}, "using() got workers='fibres'; expected 'threads', 'processes' or None."),
        ({"processes": 0}, "using() got processes=0; expected a positive integer, for example using(processes=4)."),
        ({"workers": "threads", "processes": 2}, "using() got processes=2 with workers='threads', which has no"),
        ({"timeout": 0}, "using() got timeout=0; expected a positive number of seconds, for example timeout=600."),
        ({"timeout": True}, "using() got timeout=True; expected a positive number of seconds"),
    ],
)
def test_invalid_arguments_of_using_raise(options: dict[str, Any], problem: str) -> None:
    """`using` raises ArgumentError for invalid arguments at once."""
    with pytest.raises(ArgumentError) as caught:
        example().using(**options)

    assert str(caught.value).startswith(problem)


def test_using_does_not_change_equality() -> None:
    """Datasets that differ only in `using` are equal."""
    assert example().using(workers="processes", timeout=5) == example()
