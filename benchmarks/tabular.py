"""Reading of tables of numbers, compared with a bare scan in the same run.

The bare scan is two Python threads that read whole row groups with pyarrow. Contenders run in turn, so that slow moments of
the machine affect all of them, and must deliver the same rows. The memory limit is too low to keep the table in memory, so all
read files in every round.

    python -m benchmarks.tabular [--rows 2000000] [--rounds 7]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import penstock as ps

FLOATS, INTS = [f"f{at}" for at in range(16)], [f"i{at}" for at in range(5)]
GROUP = 50_000
WINDOW = 200_000
BATCH = 1_024


def write(place: Path, rows: int, files: int = 8) -> None:
    """Write a table of 16 float32, five int64 and one int32 column."""
    each = rows // files
    for file in range(files):
        random = np.random.default_rng(file)
        columns: dict[str, np.ndarray] = {name: random.random(each, dtype=np.float32) for name in FLOATS}
        columns |= {name: random.integers(0, 1 << 40, each) for name in INTS[1:]}
        columns["i0"] = np.arange(file * each, (file + 1) * each)
        columns["label"] = random.integers(0, 1000, each).astype(np.int32)
        pq.write_table(pa.table(columns), place / f"part-{file}.parquet", row_group_size=GROUP, compression="snappy")


def bare(place: Path, columns: list[str] | None = None) -> int:
    """Return the sum of ids of a scan with two threads that read whole row groups."""
    tasks = [(path, at) for path in sorted(place.glob("*.parquet")) for at in range(pq.read_metadata(path).num_row_groups)]
    handles = {path: pq.ParquetFile(path) for path, _ in tasks}

    def read(task: tuple[Path, int]) -> int:
        table = pq.ParquetFile(task[0], metadata=handles[task[0]].metadata).read_row_group(
            task[1], columns=columns, use_threads=False
        )
        return int(table.column("i0").to_numpy().sum())

    with ThreadPoolExecutor(2) as pool:
        return sum(pool.map(read, tasks))


def summed(ds: ps.Dataset, columns: int = 22) -> int:
    """Return the sum of ids of all batches, and check that each has all columns."""
    total = 0
    for batch in ds:
        assert len(batch) == columns
        total += int(batch["i0"].sum())
    return total


def contenders(place: Path) -> dict[str, Callable[[], int]]:
    """Return the contenders by name; the first is the baseline."""
    ds = ps.open(place).using(threads=2, memory_limit=800 << 20)
    narrow = ["i0", "f3"]
    columns = ds.select(*narrow).using(memory_limit=64 << 20)
    shuffled = ds.shuffle(ps.WindowShuffle(rows=WINDOW), seed=1).batch(BATCH, last="uneven")
    return {
        "bare scan": lambda: bare(place),
        "scan to NumPy": lambda: summed(ds.batch("row_group")),
        "scan, batches of 1,024": lambda: summed(ds.batch(BATCH, last="uneven")),
        "shuffled batches of 1,024": lambda: summed(shuffled),
        "shuffled, 16 columns stacked": lambda: summed(shuffled.stack("x", FLOATS), 7),
        "bare scan, 2 of 22 columns": lambda: bare(place, narrow),
        "scan to NumPy, 2 of 22 columns": lambda: summed(columns.batch("row_group"), 2),
    }


def main() -> None:
    """Print a table of ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), options.rows)
        expected = options.rows * (options.rows - 1) // 2
        runs = contenders(Path(folder))
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(options.rounds):
            for name, run in runs.items():
                start = time.perf_counter()
                assert run() == expected, f"{name} delivered other rows"
                seconds[name].append(time.perf_counter() - start)
    print(f"{'contender':<32} {'best s':>8} {'median s':>9} {'of bare, best':>14} {'of bare, median':>16}")
    for name, taken in seconds.items():
        base = seconds["bare scan, 2 of 22 columns" if "2 of 22" in name else "bare scan"]
        best, median = min(base) / min(taken), statistics.median(base) / statistics.median(taken)
        print(f"{name:<32} {min(taken):>8.3f} {statistics.median(taken):>9.3f} {best:>14.2f} {median:>16.2f}")


if __name__ == "__main__":
    main()
