"""Statistics show where the time goes while it passes. Events and gates hold threads at known points."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock._dataset import explain
from penstock._engine.deliver.loader import Loader
from penstock._engine.runtime import timers as timers_module
from penstock._engine.runtime.timers import DECODE, MAP, READ, Meter
from penstock.protocols import Shuffle
from penstock.stats import Stats
from penstock.testing import MemoryFormat

TIMEOUT = 60.0
"""Seconds after which a test fails. No test comes near it."""


class Gate:
    """A point where a thread waits until the test lets it continue."""

    def __init__(self) -> None:
        """Create a closed gate."""
        self.reached, self.opened = threading.Event(), threading.Event()

    def pass_through(self) -> None:
        """Wait until the gate is open."""
        self.reached.set()
        assert self.opened.wait(TIMEOUT)


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds that only needs time."""
    limit = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < limit


@contextmanager
def consuming(batches: Iterator[Any], gate: Gate) -> Iterator[None]:
    """Consume batches in another thread, yield when a thread waits at the gate, and open the gate afterwards."""
    thread = threading.Thread(target=lambda: list(batches))
    thread.start()
    try:
        assert gate.reached.wait(TIMEOUT)
        yield
    finally:
        gate.opened.set()
        thread.join(TIMEOUT)


def table(rows: int = 40, group: int = 10) -> MemoryFormat:
    """Return a table of ids and words."""
    return MemoryFormat.of({"id": range(rows), "word": [f"word {row}" for row in range(rows)]}, row_group_rows=group)


def test_a_wait_for_storage_is_reported_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that hangs is reported at once as time that the consumer waits for storage."""
    gate, memory_table = Gate(), table()
    loader = ps.loader(memory_table.open().batch(10).using(threads=2))
    batches = iter(loader)
    handler = memory_table.filesystem.handler
    original = handler.open_input_file

    def open_later(path: str) -> Any:
        gate.pass_through()
        return original(path)

    monkeypatch.setattr(handler, "open_input_file", open_later)

    with consuming(batches, gate):
        until(lambda: loader.stats().shares.storage > 0.9)
        until(lambda: loader.stats().busy.read > 0.9 * loader.stats().busy.total)
        stats = loader.stats()
        assert (stats.batches, stats.units_read, stats.bytes_read) == (0, 0, 0)
        assert stats.blocked_seconds <= stats.waited_seconds
    assert (loader.stats().batches, loader.stats().rows, loader.stats().units_read) == (4, 40, 4)


def test_a_wait_for_decoding_is_reported_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow decoding of cells is reported as a wait for decoding."""
    gate = Gate()
    loader = ps.loader(table().open().batch(10).using(threads=2))
    batches: Any = iter(loader)
    original = batches._window_reader._decode

    def decode_later(*given: Any) -> Any:
        gate.pass_through()
        return original(*given)

    monkeypatch.setattr(batches._window_reader, "_decode", decode_later)

    with consuming(batches, gate):
        until(lambda: loader.stats().shares.decode > 0.9)
        until(lambda: loader.stats().busy.decode > 0.9 * loader.stats().busy.total)


def test_a_wait_for_a_map_is_reported_while_it_lasts() -> None:
    """A slow map function is reported as a wait for the map, which runs in threads of the loader."""
    gate = Gate()

    def slow(batch: dict[str, Any]) -> dict[str, Any]:
        gate.pass_through()
        return batch

    loader = ps.loader(table().open().batch(10).map(slow).using(threads=2))

    with consuming(iter(loader), gate):
        until(lambda: loader.stats().shares.map > 0.9)
        assert loader.stats().busy.map > 0
        assert loader.stats().inline.map == 0


@pytest.mark.parametrize("lazy", [False, True])
def test_a_map_of_single_rows_runs_in_the_consumers_thread(*, lazy: bool) -> None:
    """Maps of single rows run in the consumer's thread and are counted as inline work."""
    gate = Gate()

    def slow(row: dict[str, Any]) -> dict[str, Any]:
        gate.pass_through()
        return row

    ds = table().open().map(slow).using(threads=2)
    loader = ps.loader(ds.where(ps.col("id") >= 0, lazy=True) if lazy else ds)

    with consuming(iter(loader), gate):
        until(lambda: loader.stats().shares.map > 0.9)
        assert loader.stats().inline.map > 0
        assert loader.stats().busy.map == 0
    assert (loader.stats().batches, loader.stats().rows) == (40, 40)


class Slow:
    """An adapter that hands batches over through a gate."""

    def __init__(self, gate: Gate) -> None:
        """Store the gate."""
        self.gate = gate

    def batch(self, batch: Any) -> dict[str, Any]:
        """Return the batch after the gate opens."""
        self.gate.pass_through()
        return dict(batch)

    def split(self, columns: Mapping[str, np.ndarray[Any, Any]], size: int) -> Iterator[dict[str, Any]]:
        """Yield batches that are views of the columns."""
        rows = len(next(iter(columns.values())))
        return ({name: column[at : at + size] for name, column in columns.items()} for at in range(0, rows, size))


def test_a_wait_for_the_hand_over_is_reported_while_it_lasts() -> None:
    """Conversion of arrays to a framework's types is counted as hand-over."""
    gate, ds = Gate(), table().open().batch(10).using(threads=2)
    loader = Loader(ds._table, ds._query, Slow(gate))

    with consuming(iter(loader), gate):
        until(lambda: loader.stats().shares.hand_over > 0.9)
        assert loader.stats().busy.hand_over > 0


def test_a_working_consumer_is_reported_while_it_works() -> None:
    """Time between two batches counts as the consumer's, up to now. Time after the last batch does not count."""
    loader = ps.loader(table().open().batch(10).using(threads=2))
    batches = iter(loader)
    next(batches)

    until(lambda: loader.stats().shares.consumer > 0.9)
    assert loader.stats().remedy.startswith("The loader keeps up: the consumer waits ")
    list(batches)
    ended = loader.stats()
    assert loader.stats() == ended


def test_a_computing_consumer_is_known_by_its_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processor clock of the consumer's thread distinguishes computing from waiting for a device."""
    monkeypatch.setattr(timers_module, "SAMPLE_INTERVAL", 0)
    loader = ps.loader(table().open().batch(10).map(lambda batch: batch).using(threads=2))
    batches = iter(loader)
    next(batches)
    begun = time.thread_time()
    until(lambda: time.thread_time() - begun > 0.02)
    next(batches)

    assert 0.02 <= loader.stats().consumer_processor_seconds <= time.thread_time()
    batches.close()


SHUFFLES: list[Shuffle] = [ps.InOrder(), ps.RowGroupShuffle(), ps.WindowShuffle(rows=15)]


@settings(max_examples=20)
@given(
    shuffle=st.sampled_from(SHUFFLES),
    size=st.sampled_from([None, "row_group", 1, 7, 16]),
    last=st.sampled_from([None, "drop", "pad", "wrap", "uneven"]),
    lazy=st.booleans(),
    maps=st.booleans(),
    epochs=st.integers(1, 2),
)
def test_rows_are_counted_exactly(*, shuffle: Shuffle, size: Any, last: Any, lazy: bool, maps: bool, epochs: int) -> None:
    """The statistics count the rows and batches that the consumer gets, including padding, for any query."""
    ds = table(45, 10).open().shuffle(shuffle, seed=2).repeat(epochs).using(threads=2)
    if lazy:
        ds = ds.where(ps.col("id") >= 18, lazy=True)
    if size == "row_group":
        ds = ds.shuffle(ps.RowGroupShuffle(), seed=2).batch("row_group")
    elif size is not None:
        ds = ds.batch(size, last=None if lazy else last)
    loader = ps.loader(ds.map(lambda batch: batch) if maps else ds)
    row_counts = [np.size(batch["id"]) for batch in loader]
    stats = loader.stats()

    assert (stats.batches, stats.rows) == (len(row_counts), sum(row_counts))


@pytest.mark.parametrize("size", [None, 4])
def test_a_mixture_is_counted_like_a_table(size: int | None) -> None:
    """Rows of all sources are counted, one by one or in batches. The time of the sources' maps is counted too."""
    sources = [table(40).open().map(lambda some: some), table(30).open().map(lambda some: some)]
    mixed = ps.mix([(ds if size is None else ds.batch(size), 1) for ds in sources], seed=1)
    loader = ps.loader(mixed)
    row_counts = [np.size(batch["id"]) for batch in loader]
    stats = loader.stats()

    assert (stats.batches, stats.rows) == (len(row_counts), sum(row_counts))
    assert stats.busy.map + stats.inline.map > 0


def test_the_time_of_worker_processes_is_counted() -> None:
    """The time of maps in worker processes is counted in the statistics of the loader."""
    loader = ps.loader(table().open().batch(10).map(lambda batch: batch).using(workers="processes", processes=1))
    list(loader)
    stats = loader.stats()

    assert (stats.rows, stats.processes) == (40, 1)
    assert stats.busy.map >= stats.processor.map > 0
    assert stats.inline.map == 0


@pytest.mark.slow
def test_the_start_of_processes_is_reported() -> None:
    """In a short iteration most time goes to starting processes, and the remedy says so."""
    ds = table().open().batch(10).map(lambda batch: batch).using(workers="processes", processes=1)
    loader = ps.loader(ds)
    list(loader)
    once = loader.stats()
    list(loader)

    assert 0 < once.starting_seconds < once.first_seconds
    assert once.shares.starting_processes > 0.5
    assert once.remedy.startswith("The consumer waits for processes to start ")
    assert loader.stats().starting_seconds > once.starting_seconds
    assert "starting processes" in ds.explain(analyze=True)
    assert ps.loader(ds.using(workers="threads")).stats().starting_seconds == 0


def test_bytes_read_are_those_of_the_columns_read(tmp_path: Any) -> None:
    """`bytes_read` sums the footer's sizes of selected columns, nested ones whole, and of filter columns."""
    columns = {
        "id": list(range(100)),
        "pair": [{"a": row, "b": str(row)} for row in range(100)],
        "left": [0.5] * 100,
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=25)
    footer = pq.read_metadata(tmp_path / "t.parquet")
    groups = [footer.row_group(group) for group in range(4)]
    sizes = [[group.column(leaf).total_compressed_size for leaf in range(4)] for group in groups]
    plain = ps.loader(ps.open(tmp_path).select("id").batch(10))
    nested = ps.loader(ps.open(tmp_path).select("pair").batch(10))
    filtered = ps.loader(ps.open(tmp_path).select("left").where(ps.col("id") >= 60).batch(10))
    for loader in (plain, nested, filtered):
        list(loader)

    assert plain.stats().bytes_read == sum(size[0] for size in sizes)
    assert nested.stats().bytes_read == sum(size[1] + size[2] for size in sizes)
    # Two row groups remain. All rows of one of them pass, so its filter column is not read.
    assert filtered.stats().bytes_read == sizes[2][0] + sizes[2][3] + sizes[3][3]
    assert (plain.stats().units_read, filtered.stats().units_read) == (4, 2)


def test_statistics_of_iterations_add_up() -> None:
    """A loader counts all its epochs, including unfinished ones. It stores only the sums of those that ended."""
    loader = ps.loader(table().open().shuffle(ps.WindowShuffle(rows=20), seed=1).batch(10).using(threads=2))
    assert (loader.stats(), json.loads(json.dumps(loader.stats().as_dict()))["rows"]) == (Stats(), 0)
    for _ in range(2):
        list(loader)
    before = loader.stats()
    for batch in loader:
        assert len(batch["id"]) == 10
        break
    del batch

    assert (before.batches, before.rows, before.units_read) == (8, 80, 4)  # the table stays in memory
    assert loader.stats().since(before).batches == 1
    assert len(loader._counted[1]) == 1
    assert loader.stats().waited_seconds >= before.waited_seconds >= before.first_seconds > 0
    assert loader.stats().busy.decode > before.busy.decode > 0


def test_an_error_stops_the_clock() -> None:
    """The time of an iteration stops growing after an error."""

    def failing(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "id": 1 / 0}

    loader = ps.loader(table().open().batch(10).map(failing))
    with pytest.raises(ZeroDivisionError):
        list(loader)
    ended = loader.stats()

    assert ended.batches == 0
    assert loader.stats() == ended


def test_explain_analyze_reports_where_the_time_goes() -> None:
    """`explain(analyze=True)` adds the time table to the plan, and says how much was read for it."""
    ds = table().open().shuffle(seed=1).batch(8).repeat()
    plan, reported = ds.explain(), ds.explain(analyze=True)
    lines = reported.removeprefix(plan).splitlines()

    assert reported.startswith(plan + "\n")
    assert lines[1] == "  analyzed    a whole epoch, read now for a consumer that does nothing"
    assert lines[2].startswith("  handed out  5 batches, 40 rows, ")
    names = ["handed out", "read", "time", "waiting on", "threads", "busy", "remedy"]
    assert [line.split("  ")[1] for line in lines[2:]] == names


@pytest.mark.parametrize(("lazy", "part"), [(False, "the first 1 of 40 steps"), (True, "the first 1 steps")])
def test_explain_ends_after_some_seconds(*, lazy: bool, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`explain(analyze=True)` stops after ANALYZED_SECONDS and says which part of the epoch was read."""
    monkeypatch.setattr(explain, "ANALYZED_SECONDS", 0.0)
    ds = table().open()

    reported = (ds.where(ps.col("id") >= 0, lazy=True) if lazy else ds).explain(analyze=True)

    assert f"  analyzed    {part} of an epoch, read now for a consumer that does nothing\n" in reported


def test_explain_of_a_dataset_without_batches_raises() -> None:
    """`explain(analyze=True)` raises EmptyDatasetError if the dataset has no full batch."""
    with pytest.raises(ps.errors.EmptyDatasetError):
        table(3).open().shuffle().batch(10).explain(analyze=True)


def test_nested_work_is_counted_separately() -> None:
    """The outer clock stops while the inner one runs, and continues after it."""
    meter = Meter()
    with meter.busy(DECODE):
        until(lambda: meter.stats(handed=0, size=1).busy.decode > 0.001)
        with meter.busy(READ):
            before = meter.stats(handed=0, size=1).busy.decode
            until(lambda: meter.stats(handed=0, size=1).busy.read > 0.001)
            assert meter.stats(handed=0, size=1).busy.decode == before
        until(lambda: meter.stats(handed=0, size=1).busy.decode > before)
    ended = meter.stats(handed=0, size=1).busy

    assert ended == meter.stats(handed=0, size=1).busy
    assert (ended.map, ended.gather, ended.hand_over) == (0, 0, 0)


def test_processor_time_never_exceeds_elapsed_time() -> None:
    """The sampled processor time never exceeds the elapsed time."""
    meter = Meter()
    for _ in range(100):
        with meter.busy(MAP):
            pass
    stats = meter.stats(handed=0, size=1)

    assert 0 <= stats.processor.map <= stats.busy.map


def test_work_of_the_consumer_is_inline() -> None:
    """Work in the consumer's thread is counted separately from work in the loader's threads."""
    meter = Meter()
    with meter, meter.blocked:
        thread = threading.Thread(target=meter.timed(MAP, lambda: None))
        thread.start()
        thread.join()
    with meter.busy(DECODE):
        pass
    stats = meter.stats(handed=0, size=1)

    assert stats.busy.map > 0
    assert stats.inline.decode > 0
    assert (stats.busy.decode, stats.inline.map) == (0, 0)


@pytest.mark.parametrize("reported", [True, False])
def test_threads_measure_waits_for_the_gil(*, reported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads probe the GIL now and then, on systems that report queueing time and on others."""
    monkeypatch.setattr(timers_module, "PROBE_INTERVAL", 0)
    if not reported:
        monkeypatch.setattr(timers_module, "SCHEDSTAT", "/nowhere/schedstat")
    meter = Meter()
    for _ in range(2):
        with meter.busy(MAP):
            pass
    (span,) = meter._spans.values()

    assert (span.probes, span.probed > 0) == (2, True)
    assert span.queued == 0 or reported


def test_a_consumer_may_move_from_thread_to_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clocks of two threads are never compared."""
    monkeypatch.setattr(timers_module, "SAMPLE_INTERVAL", 0)
    meter = Meter()
    for _ in range(2):
        thread = threading.Thread(target=meter.waited_for(lambda: None))
        thread.start()
        thread.join()
    with meter:
        pass

    assert meter.stats(handed=0, size=1).consumer_processor_seconds == 0


def test_the_time_of_another_process_is_added() -> None:
    """`taken` returns the time since the last call. `add` counts it like the time of a thread of the loader."""
    worker_meter, parent_meter = Meter(), Meter(threads=1)
    with worker_meter.busy(MAP):
        pass
    worker_stats = worker_meter.stats(handed=0, size=1)
    parent_meter.add(worker_meter.taken())
    parent_meter.add(worker_meter.taken())

    assert (parent_meter.stats(handed=0, size=1).busy, parent_meter.stats(handed=0, size=1).processor) == (
        worker_stats.busy,
        worker_stats.processor,
    )
    assert worker_meter.stats(handed=0, size=1).busy.total == 0


def test_a_meter_ends_once() -> None:
    """Ending a meter a second time changes nothing."""
    meter = Meter()
    with meter:
        pass
    meter.end()
    first = meter.stats(handed=1, size=2)
    meter.end()

    assert meter.ended
    assert meter.stats(handed=1, size=2) == first
