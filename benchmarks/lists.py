"""Reading of lists of tokens, shuffled, compared with a bare scan in the same run.

200,000 rows of 50 to 500 `int32` tokens, in batches of 64. The bare scan is two Python threads that read whole row groups with
pyarrow. Contenders run in turn, so that slow moments of the machine affect all of them, and must deliver the same rows and
tokens. Each is timed twice: from files, with a memory limit that is too low for the table, and with the table in memory.

    python -m benchmarks.lists [--rows 200000] [--rounds 7]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import penstock as ps

SHORTEST, LONGEST = 50, 500
GROUP, WINDOW, BATCH = 5_000, 40_000, 64
TOO_LITTLE = 700 << 20
"""A memory limit of which the table takes more than a quarter, so that it is not cached."""


def write(place: Path, rows: int, files: int = 4) -> tuple[int, int]:
    """Write a table of lists of tokens, and return the numbers of rows and tokens."""
    random, each, tokens = np.random.default_rng(0), rows // files, 0
    for file in range(files):
        ends = np.cumsum(random.integers(SHORTEST, LONGEST + 1, each))
        lists = pa.ListArray.from_arrays(
            pa.array(np.concatenate([[0], ends]), pa.int32()), pa.array(random.integers(0, 50_000, ends[-1]), pa.int32())
        )
        table = pa.table({"id": np.arange(file * each, (file + 1) * each), "tokens": lists})
        pq.write_table(table, place / f"part-{file}.parquet", row_group_size=GROUP)
        tokens += int(ends[-1])
    return files * each, tokens


def bare(place: Path) -> tuple[int, int]:
    """Return the rows and tokens of a scan with two threads that read whole row groups."""
    tasks = [(path, at) for path in sorted(place.glob("*.parquet")) for at in range(pq.read_metadata(path).num_row_groups)]

    def read(task: tuple[Path, int]) -> tuple[int, int]:
        table = pq.ParquetFile(task[0]).read_row_group(task[1], use_threads=False)
        return table.num_rows, sum(len(chunk.flatten()) for chunk in table.column("tokens").chunks)

    with ThreadPoolExecutor(2) as pool:
        rows, tokens = zip(*pool.map(read, tasks), strict=True)
    return sum(rows), sum(tokens)


def counted(loader: Any, tokens: Callable[[Mapping[str, Any]], int]) -> tuple[int, int]:
    """Return the rows and tokens of an epoch."""
    rows = found = 0
    for batch in loader:
        rows, found = rows + len(batch["id"]), found + tokens(batch)
    return rows, found


def contenders(place: Path, memory_limit: int | None) -> dict[str, Callable[[], tuple[int, int]]]:
    """Return the contenders by name."""
    ds = ps.open(place).shuffle(ps.WindowShuffle(rows=WINDOW), seed=1).batch(BATCH, last="uneven").using(threads=2)
    ds = ds if memory_limit is None else ds.using(memory_limit=memory_limit)
    ways: dict[str, tuple[ps.Dataset, Callable[[Mapping[str, Any]], int]]] = {
        "side by side, with offsets": (ds.ragged(ps.Offsets(), "tokens"), lambda batch: len(batch["tokens"])),
        "an array for each list": (ds, lambda batch: sum(map(len, batch["tokens"]))),
        "filled up": (ds.ragged(ps.Pad(), "tokens"), lambda batch: int(batch["tokens_length"].sum())),
    }
    return {name: partial(counted, ps.loader(asked), tokens) for name, (asked, tokens) in ways.items()}


def main() -> None:
    """Print a table of ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        expected = write(Path(folder), options.rows)
        runs: dict[str, Callable[[], tuple[int, int]]] = {"bare scan": partial(bare, Path(folder))}
        for where, limit in (("from files", TOO_LITTLE), ("in memory", None)):
            runs |= {f"{name}, {where}": run for name, run in contenders(Path(folder), limit).items()}
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for turn in range(options.rounds + 1):
            for name, run in runs.items():
                start = time.perf_counter()
                assert run() == expected, f"{name} delivered other rows"
                if turn:  # before the first turn the table is not in memory
                    seconds[name].append(time.perf_counter() - start)
    print(f"{'contender':<40} {'best s':>8} {'median s':>9} {'of bare, best':>14} {'of bare, median':>16}")
    base = seconds["bare scan"]
    for name, taken in seconds.items():
        best, median = min(base) / min(taken), statistics.median(base) / statistics.median(taken)
        print(f"{name:<40} {min(taken):>8.3f} {statistics.median(taken):>9.3f} {best:>14.2f} {median:>16.2f}")


if __name__ == "__main__":
    main()
