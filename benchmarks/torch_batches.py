"""Batches as tensors, compared with NumPy iteration in the same run, and with the loader of Petastorm.

Shuffled batches of 1,024 rows of the table of `benchmarks.tabular`, and batches of 64 cells that are arrays or JPEGs, each by
`penstock.loader` and by `penstock.torch.loader`. Contenders run in turn and alternate the first turn, so that slow moments of
the machine affect both. Before the first turn an epoch of each is summed, and the sums must be equal; timed epochs count rows.
A table of this size stays in memory after its first epoch; with a lower memory limit its files are read in every epoch. With
one thread of two, a processor is free for the consumer. New loaders of a dataset with `.shuffle(seed=1).batch(1024)` read
three epochs, like the first epochs of a user.

Petastorm's `BatchedDataLoader` reads the same files with a buffer of 100,000 rows, in its own interpreter, created by
`benchmarks/peers/install.sh`; its clock starts when its reader is ready. Its second epoch is compared with epochs from files,
with the first, all three, and the third epoch of a new loader with windows of as many rows, and with all three with default
windows.

    python -m benchmarks.torch_batches [--peers FOLDER] [--rounds 9] [--work FOLDER]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

TABLE_BATCH, CELL_BATCH = 1_024, 64
BUFFER = 100_000
THREADS = 2
EPOCHS, OURS = 2, 3
"""Epochs of Petastorm, the last of which is timed, and of Penstock."""
TOO_LITTLE = 800 << 20
"""A memory limit of which the table of numbers takes more than a quarter, so that it is not cached."""
TURN = 1.0
"""The least seconds of a turn, so that the start and end of an epoch have little weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """One table, two loaders over it, and the target for tensors as a share of the speed of NumPy."""

    title: str
    rows: int
    numpy: Any
    tensors: Any
    column: str
    asked: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Duration of an epoch: wall-clock seconds, and processor seconds, which depend less on the load of the machine."""

    seconds: float
    processor: float


def contests(work: Path, rows: int, pictures: int) -> list[Contest]:
    """Write all tables and return the contests over them."""
    import penstock as ps
    from benchmarks import images, photos, tabular

    numbers = work / f"numbers-{rows}"
    if not numbers.exists():
        numbers.mkdir(parents=True)
        tabular.write(numbers, rows)
    cells = work / "cells"
    fields = [ps.Field("label", np.int64), ps.Field("cell", np.uint8, (128, 120, 3), ps.codecs.Npy())]
    random = np.random.default_rng(0)
    with ps.write(cells, ps.Schema("Cells", fields), mode="overwrite", row_group_rows=250) as table:
        for label in range(pictures):
            table.append({"label": label, "cell": random.integers(0, 255, (128, 120, 3), np.uint8)})
    tiles = images.table(work, photos.make(work, pictures))
    numbered, arrays, shown = (ps.open(one).using(threads=THREADS) for one in (numbers, cells, tiles))
    shuffled = numbered.shuffle(ps.WindowShuffle(rows=tabular.WINDOW), seed=1).batch(TABLE_BATCH, last="uneven")
    stacked = shuffled.stack("x", tabular.FLOATS)
    asked: list[tuple[str, int, ps.Dataset, str, float]] = [
        ("22 columns, from files", rows, shuffled.using(memory_limit=TOO_LITTLE), "i0", 0.95),
        ("16 columns stacked, from files", rows, stacked.using(memory_limit=TOO_LITTLE), "i0", 0.95),
        ("22 columns, in memory", rows, shuffled, "i0", 0.95),
        ("16 columns stacked, in memory", rows, stacked, "i0", 0.95),
        ("22 columns, in memory, one thread", rows, shuffled.using(threads=1), "i0", 0.95),
        ("npy cells (128, 120, 3)", pictures, arrays.shuffle(seed=1).batch(CELL_BATCH, last="uneven"), "label", 0.97),
        ("JPEGs of 256 x 256", pictures, shown.shuffle(seed=1).batch(CELL_BATCH, last="uneven"), "label", 0.97),
    ]
    return [
        Contest(title=title, rows=count, numpy=ps.loader(ds), tensors=ps.torch.loader(ds), column=column, asked=share)
        for title, count, ds, column, share in asked
    ]


def counted(loader: Any, column: str) -> int:
    """Return the rows of an epoch."""
    return sum(len(batch[column]) for batch in loader)


def summed(loader: Any) -> dict[str, float]:
    """Return the sum of each column over an epoch, of arrays or tensors."""
    found: dict[str, float] = {}
    for batch in loader:
        for name, values in batch.items():
            found[name] = found.get(name, 0.0) + float(np.asarray(values).sum(dtype=np.float64))
    return found


def turns(contest: Contest, rounds: int) -> tuple[list[Turn], list[Turn]]:
    """Return the durations of epochs as arrays and as tensors for each round, after both gave equal sums."""
    ours, theirs = summed(contest.tensors), summed(contest.numpy)
    assert ours.keys() == theirs.keys()
    assert all(abs(ours[name] - theirs[name]) <= 1e-9 * abs(theirs[name]) for name in theirs), "tensors hold other values"
    taken: dict[str, list[Turn]] = {"numpy": [], "tensors": []}
    epochs = max(1, round(TURN / timed(contest, "numpy", 1).seconds))
    for turn in range(rounds):
        for name in ("numpy", "tensors") if turn % 2 else ("tensors", "numpy"):
            taken[name].append(timed(contest, name, epochs))
    return taken["numpy"], taken["tensors"]


def timed(contest: Contest, name: str, epochs: int) -> Turn:
    """Return the mean duration of several epochs."""
    return epochs_of(getattr(contest, name), contest.column, contest.rows, epochs)


def epochs_of(loader: Any, column: str, rows: int, epochs: int) -> Turn:
    """Return the mean duration of several epochs of a loader."""
    start, processor = time.perf_counter(), time.process_time()
    for _ in range(epochs):
        assert counted(loader, column) == rows
    return Turn(seconds=(time.perf_counter() - start) / epochs, processor=(time.process_time() - processor) / epochs)


def by_default(work: Path, rows: int, rounds: int) -> tuple[list[Turn], list[Turn]]:
    """Return the mean duration of the first three epochs of a new loader, as arrays and as tensors, in turn."""
    import penstock as ps

    taken: dict[str, list[Turn]] = {"numpy": [], "tensors": []}
    for turn in range(rounds):
        for name in ("numpy", "tensors") if turn % 2 else ("tensors", "numpy"):
            ds = ps.open(work / f"numbers-{rows}").shuffle(seed=1).batch(TABLE_BATCH, last="uneven")
            loader = ps.loader(ds) if name == "numpy" else ps.torch.loader(ds)
            taken[name].append(epochs_of(loader, "i0", rows, OURS))
    return taken["numpy"], taken["tensors"]


def petastorm(place: str) -> None:
    """Run Petastorm: read the files twice, and print the duration and the sums of the second time."""
    from petastorm import make_batch_reader
    from petastorm.pytorch import BatchedDataLoader

    for _ in range(EPOCHS):
        with make_batch_reader(Path(place).as_uri(), num_epochs=1, workers_count=THREADS, shuffle_row_groups=True) as reader:
            loader = BatchedDataLoader(reader, batch_size=TABLE_BATCH, shuffling_queue_capacity=BUFFER)
            start, processor, rows, total = time.perf_counter(), time.process_time(), 0, 0
            for batch in loader:
                rows, total = rows + len(batch["i0"]), total + int(batch["i0"].sum())
            taken = {"seconds": time.perf_counter() - start, "processor": time.process_time() - processor}
    print(json.dumps({"taken": taken, "rows": rows, "sum": total}))


def against_petastorm(python: Path, work: Path, rows: int, rounds: int) -> tuple[list[Turn], dict[str, list[Turn]]]:
    """Return the durations of epochs of Petastorm, after a first one, and of Penstock, in turn, from files and in memory."""
    import penstock as ps
    from benchmarks import tabular

    place = work / f"numbers-{rows}"
    shuffle = ps.WindowShuffle(rows=BUFFER)
    theirs: list[Turn] = []
    ours: dict[str, list[Turn]] = {}
    for _ in range(rounds):
        command = [
            str(python.absolute()),
            "-W",
            "ignore",
            "-m",
            "benchmarks.torch_batches",
            "--petastorm",
            str(place.absolute()),
        ]
        here = Path(tabular.__file__).parent.parent
        found = subprocess.run(command, check=True, capture_output=True, text=True, cwd=here)
        answer = json.loads(found.stdout.splitlines()[-1])
        assert (answer["rows"], answer["sum"]) == (rows, rows * (rows - 1) // 2), "Petastorm delivered other rows"
        theirs.append(Turn(**answer["taken"]))
        ds = ps.open(place).shuffle(shuffle, seed=1).batch(TABLE_BATCH, last="uneven").using(threads=THREADS)
        default = ps.open(place).shuffle(seed=1).batch(TABLE_BATCH, last="uneven")
        asked = (ds.using(memory_limit=TOO_LITTLE), ds, default)
        read, kept, plain = (_epochs(ps.torch.loader(one), rows) for one in asked)
        told = {
            "an epoch from files": _mean(read),
            "the first of three that stay": kept[0],
            "all three": _mean(kept),
            "the third": kept[-1],
            "all three, windows by default": _mean(plain),
        }
        for name, turn in told.items():
            ours.setdefault(name, []).append(turn)
    return theirs, ours


def _epochs(loader: Any, rows: int) -> list[Turn]:
    """Return the durations of several epochs."""
    found = []
    for _ in range(OURS):
        start, processor, total = time.perf_counter(), time.process_time(), 0
        for batch in loader:
            total += int(batch["i0"].sum())
        found.append(Turn(seconds=time.perf_counter() - start, processor=time.process_time() - processor))
        assert total == rows * (rows - 1) // 2
    return found


def _mean(turns: Sequence[Turn]) -> Turn:
    count = len(turns)
    return Turn(seconds=sum(turn.seconds for turn in turns) / count, processor=sum(turn.processor for turn in turns) / count)


def report(title: str, base: Sequence[Turn], taken: Sequence[Turn], asked: str) -> None:
    """Print a line of ratios: the best turns, and the median over rounds, in wall-clock and processor time."""
    shares = []
    for part in ("seconds", "processor"):
        theirs, ours = ([getattr(turn, part) for turn in turns] for turns in (base, taken))
        shares += [min(theirs) / min(ours), statistics.median(one / two for one, two in zip(theirs, ours, strict=True))]
    best = (min(turn.seconds for turn in turns) for turns in (base, taken))
    told = [f"{title:<40}", *(f"{seconds:>8.3f}" for seconds in best), *(f"{share:>7.2f}x" for share in shares), f"{asked:>8}"]
    print(*told, flush=True)


def main() -> None:
    """Print a table of ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="the folder that benchmarks/peers/install.sh has made")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--pictures", type=int, default=2_000)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "penstock-benchmarks")
    parser.add_argument("--petastorm", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.petastorm is not None:
        petastorm(options.petastorm)
        sys.exit()
    print(f"{'':<40} {'seconds, best':>17} {'ratio of seconds':>17} {'of processor time':>17}")
    print(f"{'tensors against':<40} {'theirs':>8} {'ours':>8}" + f" {'best':>8} {'median':>8}" * 2 + f" {'asked':>8}")
    for contest in contests(options.work, options.rows, options.pictures):
        numpy, tensors = turns(contest, options.rounds)
        report(f"NumPy: {contest.title}", numpy, tensors, f"{contest.asked:.2f}x")
    numpy, tensors = by_default(options.work, options.rows, options.rounds)
    report("NumPy: new loaders, three epochs", numpy, tensors, "0.95x")
    if options.peers is not None:
        python = options.peers / "petastorm" / "bin" / "python"
        theirs, ours = against_petastorm(python, options.work, options.rows, max(1, options.rounds // 2))
        for name, taken in ours.items():
            report(f"Petastorm: {name}", theirs, taken, "8x")


if __name__ == "__main__":
    main()
