"""Transport of batches to worker processes, compared with plain copies; and epochs with threads and processes.

A batch of 12 MB is sent to a process whose map reads little of it; a batch is made there and returned; and a batch is sent and
returned unchanged. Each direction is one copy. The time until the parent has the result, messages included, is compared with
the same number of plain copies of 12 MB in warm memory. Contenders run in turn, so that slow moments of the machine affect all
of them. A single batch includes the time to wake processes; twenty batches with two in flight are what a dataset does.

Then a table is read with a map in pure Python, on threads and in processes, by an idle consumer and by one that computes in
Python for as long as the map. All must give the same rows.

    python -m benchmarks.processes [--rounds 101]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import penstock as ps
from penstock._engine.processes.pool import ProcessPool, Reply, Task
from penstock._engine.processes.task import Recipe, WorkerInput, pack_input
from penstock._engine.query.query import Batch, Map, Query
from penstock._engine.runtime.threads import ThreadPool
from penstock.testing import MemoryFormat

ROWS, CELL = 1_024, 12 << 10
"""A batch of 12 MB, as one of 1,024 rows."""

ASKED = 0.5

FLOW = 20
"""The number of consecutive batches, two of them in flight at a time."""

BATCHES, SIZE = 160, 64
SPIN = 2_000
"""Duration of the map, and of the consumer, per row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """One process with its map, a batch to send, and the number of copies of 12 MB until the result is back."""

    title: str
    crew: ProcessPool
    batch: Batch
    copies: int

    @classmethod
    def of(cls, title: str, pool: ThreadPool, batch: Batch, function: Any, *, copies: int = 1) -> Crossing:
        """Start a process."""
        query = Query(size=ROWS, maps=(Map(function=function),), last="drop")
        recipe = Recipe(query=query, columns=("x",), deferred=(), max_cell_bytes=1 << 30)
        return cls(title=title, crew=ProcessPool(recipe, pool, processes=1, timeout=60.0), batch=batch, copies=copies)

    def cross(self) -> Batch:
        """Return the result of the worker process for the batch."""
        return self.begin().result(60)

    def flow(self, count: int) -> None:
        """Send consecutive batches, two in flight at a time, as a dataset does."""
        under_way = deque([self.begin()])
        for _ in range(count - 1):
            under_way.append(self.begin())
            under_way.popleft().result(60)
        under_way.popleft().result(60)

    def begin(self) -> Future[Batch]:
        """Send the batch, and return the promise of what the other process makes of it."""
        promised = Future[Batch]()
        batch = WorkerInput(columns=self.batch, places=np.arange(ROWS), rows=ROWS, size=ROWS, valid=ROWS, run_maps=True)

        def receive(reply: Reply) -> None:
            assert reply.error is None, reply.error
            promised.set_result(reply.output.columns)

        def fail(error: BaseException | None) -> None:
            promised.set_exception(error or RuntimeError("dropped"))

        blocks = pack_input(batch, Query(), lambda _: 0)
        self.crew.submit(Task(blocks=blocks, files={}, where="a batch", receive=receive, fail=fail))
        return promised


def crossings(pool: ThreadPool, values: Any) -> list[Crossing]:
    """Return all directions: to the worker, from it, and both."""
    kept: list[Any] = []

    def made(batch: dict[str, Any]) -> dict[str, Any]:
        if not kept:
            kept.append(np.full((ROWS, CELL), 7, np.uint8))
        return {"x": kept[0], "n": batch["x"]}

    small = {"x": np.zeros(ROWS)}
    return [
        Crossing.of("there", pool, {"x": values}, lambda batch: {"n": batch["x"][:, 0].copy()}),
        Crossing.of("back", pool, small, made),
        Crossing.of("there and back", pool, {"x": values}, lambda batch: batch, copies=2),
    ]


def crossing(rounds: int) -> None:
    """Print the speed of the transport as a share of the speed of a plain copy."""
    pool = ThreadPool(1)
    values = np.random.default_rng(0).integers(0, 255, (ROWS, CELL)).astype(np.uint8)
    room = np.empty_like(values)
    ways = crossings(pool, values)
    assert (ways[0].cross()["n"] == values[:, 0]).all()
    assert (ways[1].cross()["x"] == 7).all()  # noqa: PLR2004 - the value that the map writes
    assert (ways[2].cross()["x"] == values).all()

    def copy(count: int) -> None:
        for _ in range(count):
            np.copyto(room, values)

    tasks: dict[str, tuple[int, Any]] = {"copied": (1, partial(copy, 1))}
    tasks |= {way.title: (way.copies, way.cross) for way in ways}
    tasks |= {f"{FLOW} copied": (FLOW, partial(copy, FLOW))}
    tasks |= {f"{FLOW} {way.title}": (way.copies * FLOW, partial(way.flow, FLOW)) for way in ways}
    took: dict[str, list[float]] = {title: [] for title in tasks}
    for number in range(rounds):
        for title, (copies, task) in tasks.items():
            if copies < FLOW or number % FLOW == 0:
                begun = time.perf_counter()
                task()
                took[title].append((time.perf_counter() - begun) / copies)
    pool.close()
    print(f"12 MB copied in {statistics.median(took['copied']) * 1e3:.2f} ms, median of {rounds}")
    for title, times in took.items():
        plain = took[f"{FLOW} copied" if title.startswith(str(FLOW)) else "copied"]
        share, best = statistics.median(plain) / statistics.median(times), min(plain) / min(times)
        if times is not plain:
            print(f"{title}: {share:.2f} x memcpy in the median, best {best:.2f} x; asked {ASKED}")


def spun(batch: dict[str, Any]) -> dict[str, Any]:
    """Compute in Python while holding the GIL."""
    return {**batch, "y": np.array([sum(number * step for step in range(SPIN)) for number in batch["id"].tolist()])}


def epoch(ds: ps.Dataset, *, busy: bool) -> tuple[float, int]:
    """Return the seconds of an epoch from its first batch on, and the sum of its values."""
    batches = iter(ds)
    total = int(next(batches)["y"].sum())
    begun = time.perf_counter()
    for batch in batches:
        total += int((spun(batch) if busy else batch)["y"].sum())
    return time.perf_counter() - begun, total


def python_bound() -> None:
    """Print the duration of an epoch with threads and with processes."""
    count = BATCHES * SIZE
    table = MemoryFormat.of({"id": list(range(count))}, row_group_rows=count // 8).open()
    ds = table.shuffle(seed=1).batch(SIZE).map(spun)
    for busy, title in ((False, "consumer does nothing"), (True, "consumer computes in Python")):
        threads, first = epoch(ds, busy=busy)
        processes, second = epoch(ds.using(workers="processes"), busy=busy)
        assert first == second
        print(f"{title}: threads {threads:.2f} s, processes {processes:.2f} s, {threads / processes:.2f} x")


def main() -> None:
    """Print all ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=101)
    given = parser.parse_args()
    crossing(given.rounds)
    python_bound()


if __name__ == "__main__":
    main()
