"""The cost of the counters: the same epochs with and without them, in turn.

Batches of 1,024 rows of two columns of the table of `benchmarks.tabular`, the case with the least work per batch: in order,
shuffled, through an identity map, and as tensors if torch is installed. Without counters, a meter that does nothing is called.
Both run in turn and alternate the first turn, so that slow moments of the machine affect both. The output has the medians of
the ratios of wall-clock and processor seconds of each round, and the ratios of the best turns. Noise is the same ratio between
two halves of the rounds without counters; smaller differences mean nothing.

The second table multiplies the cost of one reading of a clock by the number of readings, which noise does not affect: spans
are clocks of a step on a thread, waits those of the consumer, and units are counted with their bytes.

    python -m benchmarks.stats [--rows 2000000] [--rounds 40]
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import thread_time_ns
from typing import Any

import pyarrow.parquet as pq

import penstock as ps
from benchmarks import tabular
from penstock._engine.deliver import loader as engine
from penstock._engine.read.reader import FileHandle
from penstock._engine.runtime.timers import MAP, PROBE_INTERVAL, SAMPLE_INTERVAL, Meter
from penstock.stats import Stats

COLUMNS = ("i0", "f3")
ENGINE: Any = engine  # the module whose meter is replaced


class Silent:
    """A meter that counts nothing."""

    surplus = processes = 0
    ended = True

    def __init__(self, **_: Any) -> None:
        """Store nothing."""

    def busy(self, _: int) -> Silent:
        """Return a clock that is always zero."""
        return self

    @property
    def blocked(self) -> Silent:
        """A clock that is always zero."""
        return self

    def timed(self, _: int, task: Callable[[], Any]) -> Callable[[], Any]:
        """Return the task."""
        return task

    def waited_for(self, step: Callable[[], Any]) -> Callable[[], Any]:
        """Return the step."""
        return step

    def read(self, _: int) -> None:
        """Count nothing."""

    def end(self) -> None:
        """Stop nothing."""

    def stats(self, **_: Any) -> Stats:
        """Return nothing counted."""
        return Stats()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Disable the counters."""
    stored_bytes = FileHandle.stored_bytes
    FileHandle.stored_bytes = lambda *_: 0  # type: ignore[method-assign] # to measure its cost
    ENGINE.Meter = Silent
    try:
        yield
    finally:
        FileHandle.stored_bytes, ENGINE.Meter = stored_bytes, Meter  # type: ignore[method-assign] # the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Duration of an epoch: wall-clock seconds, and processor seconds, which depend less on the load of the machine."""

    seconds: float
    processor: float


def contests(place: Path) -> dict[str, Any]:
    """Return the loaders by name."""
    ds = ps.open(place).using(threads=2).select(*COLUMNS)
    shuffled = ds.shuffle(ps.WindowShuffle(rows=tabular.WINDOW), seed=1).batch(tabular.BATCH, last="uneven")
    found = {
        "as stored": ds.batch(tabular.BATCH, last="uneven"),
        "shuffled": shuffled,
        "shuffled, mapped": shuffled.map(lambda batch: batch),
    }
    return found | ({"shuffled, tensors": ps.torch.loader(shuffled)} if find_spec("torch") else {})


def epoch(batches: Any, rows: int | None = None) -> Turn:
    """Return the duration of an epoch, and check its number of rows if it is known."""
    start, processor = time.perf_counter(), time.process_time()
    found = sum(len(batch["i0"]) for batch in batches)
    taken = Turn(seconds=time.perf_counter() - start, processor=time.process_time() - processor)
    assert found == (rows or found)
    return taken


def report(name: str, counted: list[Turn], silent: list[Turn], batches: int) -> None:
    """Print a line of ratios."""
    told = [f"{name:<20} {1e6 * min(turn.seconds for turn in silent) / batches:>10.1f}"]
    for part in ("seconds", "processor"):
        ours, theirs = ([getattr(turn, part) for turn in turns] for turns in (counted, silent))
        noise = statistics.median(theirs[::2]) / statistics.median(theirs[1::2])
        each = statistics.median(one / two for one, two in zip(ours, theirs, strict=True))
        told.append(f"{min(ours) / min(theirs):>9.4f} {each:>9.4f} {noise:>9.4f}")
    print(*told, flush=True)


def looks(place: Path, rounds: int) -> None:
    """Print the cost of all clock readings of an epoch: the cost of one times their number."""
    took = costs(place, rounds)
    print("nanoseconds of one: " + ", ".join(f"{name} {nanoseconds:,.0f}" for name, nanoseconds in took.items()))
    print(f"{'':<20} {'spans':>8} {'waits':>8} {'units':>8} {'ms, all':>9} {'ms of processors':>17} {'share':>8}")
    for name, batches in contests(place).items():
        found = counted_looks(batches, rounds)
        # The largest possible number of readings of the other clocks: per kind and thread, and per thread.
        turns = found["seconds"] * 1e9
        rare = {"look": min(found["spans"], 2 * 5 * turns / SAMPLE_INTERVAL), "probe": 2 * turns / PROBE_INTERVAL}
        every = {"span": found["spans"], "wait": found["waits"], "unit": found["units"], **rare}
        total = sum(count * took[kind] for kind, count in every.items()) / 1e6
        share = total / (1e3 * found["processor"])
        told = f"{found['spans']:>8.0f} {found['waits']:>8.0f} {found['units']:>8.0f}"
        print(f"{name:<20} {told} {total:>9.2f} {1e3 * found['processor']:>17.1f} {share:>8.2%}")


def costs(place: Path, rounds: int) -> dict[str, float]:
    """Return the least processor nanoseconds of each kind of clock reading."""
    meter = Meter()
    path = min(place.glob("*.parquet"))
    handle = FileHandle(file=pq.ParquetFile(path), source=None, names=frozenset(COLUMNS))

    def span() -> None:
        with meter.busy(MAP):
            pass

    def wait() -> None:
        with meter, meter.blocked:
            pass

    def unit() -> None:
        meter.read(1, handle.stored_bytes(0, COLUMNS))

    def look() -> None:
        thread_time_ns()
        thread_time_ns()

    calls = {"span": span, "wait": wait, "unit": unit, "look": look, "probe": meter.busy(MAP)._probe}  # noqa: SLF001 - ours
    found = {}
    for name, call in calls.items():
        many = 20 if name == "probe" else 500
        best = []
        for _ in range(20 * rounds):  # short runs, so that some are not interrupted
            start = thread_time_ns()
            for _ in range(many):
                call()
            best.append((thread_time_ns() - start) / many)
        found[name] = min(best)
    return found


def counted_looks(batches: Any, rounds: int) -> dict[str, float]:
    """Return the number of clock readings of an epoch, and its least duration without them."""
    seen = {"spans": 0, "waits": 0, "units": 0}

    class Counting(Silent):
        def busy(self, _: int) -> Counting:
            seen["spans"] += 1
            seen["waits"] -= 1  # the meter enters it, too
            return self

        @property
        def blocked(self) -> Counting:
            seen["waits"] -= 1  # the meter counts it
            return self

        def timed(self, _: int, task: Callable[[], Any]) -> Callable[[], Any]:
            seen["spans"] += 1
            return task

        def read(self, _: int) -> None:
            seen["units"] += 1

        def __enter__(self) -> None:
            seen["waits"] += 1

    with silence():
        turns = [epoch(batches) for _ in range(rounds)]
        ENGINE.Meter = Counting
        epoch(batches)
    best = {"seconds": min(turn.seconds for turn in turns), "processor": min(turn.processor for turn in turns)}
    return {**seen, **best}


def main() -> None:
    """Print the two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tabular.write(Path(folder), options.rows)
        print(f"{'':<20} {'':>10} {'of seconds':>29} {'of processor seconds':>29}")
        print(f"{'with / without':<20} {'us a batch':>10}" + f" {'best':>9} {'median':>9} {'noise':>9}" * 2)
        for name, batches in contests(Path(folder)).items():
            taken: tuple[list[Turn], list[Turn]] = ([], [])
            for turn in range(options.rounds):
                for counted in (True, False) if turn % 2 else (False, True):
                    with contextlib.nullcontext() if counted else silence():
                        taken[not counted].append(epoch(batches, options.rows))
            report(name, *taken, -(-options.rows // tabular.BATCH))
        print()
        looks(Path(folder), max(5, options.rounds // 4))


if __name__ == "__main__":
    main()
