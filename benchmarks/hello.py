"""How fast hello-world rows are read and written, as shares of the pure work of their PNGs in the same run.

A row is Petastorm's example: an int32, a random RGB image of 128 x 256 pixels as PNG, and a random array of 4 x 128 x 30 x 3
bytes as npy. Reading is compared with decoding the PNGs alone on two threads, from memory, into fresh arrays; writing with
encoding the images and the arrays alone on two threads, the bytes thrown away.

    python -m benchmarks.hello [--rows 1000] [--rounds 7]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

import penstock as ps
from penstock.codecs import Npy, Png

IMAGE = ps.Field("image1", np.uint8, (128, 256, 3), Png())
ARRAY = ps.Field("array_4d", np.uint8, (None, 128, 30, None), Npy())
SCHEMA = ps.Schema("HelloWorld", [ps.Field("id", np.int32), IMAGE, ARRAY])
EPOCHS = 3


def rows(count: int) -> list[dict[str, Any]]:
    """Return random rows."""
    random = np.random.default_rng(0)
    return [
        {
            "id": number,
            "image1": random.integers(0, 256, (128, 256, 3), dtype=np.uint8),
            "array_4d": random.integers(0, 256, (4, 128, 30, 3), dtype=np.uint8),
        }
        for number in range(count)
    ]


def decode_only(cells: list[bytes]) -> int:
    """Return the number of images decoded by two threads."""

    def decode(part: list[bytes]) -> int:
        return sum(Png().decode(IMAGE, memoryview(cell)).shape == IMAGE.shape for cell in part)

    with ThreadPoolExecutor(2) as pool:
        return sum(pool.map(decode, [cells[start : start + 32] for start in range(0, len(cells), 32)] * EPOCHS))


def encode_only(given: list[dict[str, Any]]) -> int:
    """Return the number of rows encoded by two threads."""

    def encode(part: list[dict[str, Any]]) -> int:
        made = [(Png().encode(IMAGE, row["image1"]), Npy().encode(ARRAY, row["array_4d"])) for row in part]
        return len(made)

    with ThreadPoolExecutor(2) as pool:
        return sum(pool.map(encode, [given[start : start + 16] for start in range(0, len(given), 16)]))


def read(ds: ps.Dataset) -> int:
    """Return the number of images read in some epochs, which follow one another as those of the pure work do."""
    return sum(len(batch["image1"]) for batch in ds.repeat(EPOCHS))


def write(place: Path, given: Iterator[dict[str, Any]] | list[dict[str, Any]]) -> int:
    """Return the number of rows written."""
    with ps.write(str(place), SCHEMA, row_group_mb=16, threads=2) as table:
        for row in given:
            table.append(row)
    return table.num_rows


def timed(runs: dict[str, Callable[[], int]], expected: dict[str, int], rounds: int, written: Path) -> dict[str, list[float]]:
    """Return how long each took in each round, having checked how many rows it delivered; what was written is deleted."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            assert run() == expected[name], f"{name} delivered other rows"
            seconds[name].append(time.perf_counter() - start)
            shutil.rmtree(written, ignore_errors=True)
    return seconds


def main() -> None:
    """Print a table of ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    given = rows(options.rows)
    with tempfile.TemporaryDirectory() as folder:
        place, again = Path(folder) / "read", Path(folder) / "written"
        write(place, given)
        for row in ps.open(place).take([0, options.rows - 1])["image1"], [given[0]["image1"], given[-1]["image1"]]:
            assert (np.asarray(row) == np.stack([given[0]["image1"], given[-1]["image1"]])).all()
        cells = pq.read_table(place, columns=["image1"]).column("image1").to_pylist()
        ds = ps.open(place).using(threads=2)
        shuffled = ds.shuffle(seed=1).batch(32, last="uneven")
        runs: dict[str, Callable[[], int]] = {
            "decode the PNGs only": lambda: decode_only(cells),
            "read rows, shuffled": lambda: read(shuffled),
            "read rows, in order": lambda: read(ds.batch(32, last="uneven")),
            "encode only": lambda: encode_only(given),
            "write rows": lambda: write(again, given),
        }
        expected = {name: options.rows * (1 if "encode" in name.split() or "write" in name else EPOCHS) for name in runs}
        seconds = timed(runs, expected, options.rounds, again)
    print(f"{'work':<28} {'best s':>8} {'median s':>9} {'of pure, best':>14} {'of pure, median':>16}")
    for name, taken in seconds.items():
        base = seconds["encode only" if "encode" in name.split() or "write" in name else "decode the PNGs only"]
        best, median = min(base) / min(taken), statistics.median(base) / statistics.median(taken)
        print(f"{name:<28} {min(taken):>8.3f} {statistics.median(taken):>9.3f} {best:>14.2f} {median:>16.2f}")


if __name__ == "__main__":
    main()
