"""`penstock.petastorm` compared with Petastorm 0.13.1: rows of numbers, hello-world rows, and batches.

Both read the same datasets, written by Penstock, with the same number of threads, each in its own interpreter, in turn. A turn
takes at least two seconds, starts with the first rows, and counts rows as a consumer gets them. Before the first turn each
reads one epoch, and the rows must be equal. Hello-world rows are also compared with the decoding of their PNGs alone.

    python -m benchmarks.petastorm_readers --peer /tmp/peers/petastorm/bin/python [--rounds 5] [--workers 2]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contender import contender

SECONDS = 2.0
ASKED = {"scalar rows": 8.0, "hello-world rows": 2.0, "batches": 3.0, "batches of numbers": None}
"""Targets for the speed-up over Petastorm; for numbers only, pyarrow does most of the work in both."""


def written(place: Path) -> dict[str, str]:
    """Write the datasets and return their URLs."""
    import penstock as ps
    from benchmarks.hello import SCHEMA, rows
    from penstock.formats.petastorm import PetastormFormat

    random = np.random.default_rng(0)
    kinds = {"id": np.int64, "label": np.int32, "x": np.float32, "y": np.float64, "odd": np.bool_, "name": str}
    schema = ps.Schema("Scalars", [ps.Field(name, kind) for name, kind in kinds.items()])
    count = 200_000
    numbers = np.arange(count)
    columns = {"id": numbers, "label": (numbers % 10).astype(np.int32), "x": random.random(count, dtype=np.float32)}
    columns |= {
        "y": random.random(count),
        "odd": numbers % 2 == 1,
        "name": np.array([f"row {n}" for n in range(count)], object),
    }
    with ps.write(str(place / "scalars"), schema, format=PetastormFormat(), row_group_rows=10_000) as table:
        table.extend(columns)
    ps.write(str(place / "hello"), SCHEMA, iter(rows(400)), format=PetastormFormat(), row_group_rows=40)
    _write_plain(place, random)
    return {name: (place / name).as_uri() for name in ("scalars", "hello", "mixed.parquet", "numbers.parquet")}


def _write_plain(place: Path, random: np.random.Generator) -> None:
    """Write plain Parquet: a table of mixed columns, and one of numbers only."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    count, width = 400_000, 16
    numbers = np.arange(count)
    edges = np.arange(count + 1, dtype=np.int32) * width
    mixed = {
        "id": numbers,
        "label": (numbers % 10).astype(np.int32),
        "x": random.random(count, dtype=np.float32),
        "y": random.random(count),
        "when": pa.array(numbers * 1000, pa.timestamp("us")),
        "word": [f"word {number % 1000}" for number in range(count)],
        "vector": pa.ListArray.from_arrays(edges, random.random(count * width, dtype=np.float32)),
    }
    pq.write_table(pa.table(mixed), place / "mixed.parquet", row_group_size=20_000)
    plain = {"id": np.arange(1_000_000), **{f"f{n}": random.random(1_000_000, dtype=np.float32) for n in range(8)}}
    pq.write_table(pa.table(plain), place / "numbers.parquet", row_group_size=50_000)


def work(
    urls: dict[str, str], workers: int
) -> dict[str, tuple[Callable[..., Any], Callable[[Any], int], Callable[[Any], float]]]:
    """Return for each kind of work a reader factory, the rows of an item, and a checksum function."""
    import petastorm

    given = {"workers_count": workers, "seed": 1}

    def rows(**more: Any) -> Any:
        return petastorm.make_reader(urls["scalars"], **given, **more)

    def hello(**more: Any) -> Any:
        return petastorm.make_reader(urls["hello"], **given, **more)

    def batches(**more: Any) -> Any:
        return petastorm.make_batch_reader(urls["mixed.parquet"], **given, **more)

    def numbers(**more: Any) -> Any:
        return petastorm.make_batch_reader(urls["numbers.parquet"], **given, **more)

    def scalar_sum(row: Any) -> float:
        return float(row.id) + float(row.label) + float(row.x) + float(row.y) + float(row.odd) + len(row.name)

    def hello_sum(row: Any) -> float:
        return float(row.id) + float(row.image1[::7].sum()) + float(row.array_4d.sum())

    def batch_sum(batch: Any) -> float:
        words = sum(map(len, batch.word.tolist()))
        return float(batch.id.sum() + batch.label.sum() + batch.x.sum(dtype=np.float64) + batch.y.sum() + words) + float(
            batch.vector.sum(dtype=np.float64)
        )

    def number_sum(batch: Any) -> float:
        return float(sum(column.sum(dtype=np.float64) for column in batch))

    return {
        "scalar rows": (rows, lambda _: 1, scalar_sum),
        "hello-world rows": (hello, lambda _: 1, hello_sum),
        "batches": (batches, lambda batch: len(batch.id), batch_sum),
        "batches of numbers": (numbers, lambda batch: len(batch.id), number_sum),
    }


def epoch(make: Callable[..., Any], check: Callable[[Any], float]) -> tuple[int, float]:
    """Return the number of items of an epoch and their checksum; Petastorm may stop before its first row."""
    while True:
        with make() as reader:
            found = [check(item) for item in reader]
        if found:
            return len(found), round(sum(found), 1)


def turn(make: Callable[..., Any], size: Callable[[Any], int]) -> float:
    """Return rows per second."""
    while True:
        with make(num_epochs=None) as reader:
            items: Iterator[Any] = iter(reader)
            try:
                step = size(next(items))
            except StopIteration:  # Petastorm may stop before its first row
                continue
            ahead = 2_000 if step == 1 else 40
            for _ in range(ahead if ahead == 40 or make.__name__ == "rows" else 40):  # noqa: PLR2004 - skips read-ahead items
                next(items)
            rows, begun = 0, time.perf_counter()
            while (taken := time.perf_counter() - begun) < SECONDS:
                for _ in range(100 if step == 1 else 1):
                    item = next(items)
                rows += (100 if step == 1 else 1) * size(item)
            return rows / taken


def serve(urls: dict[str, str], workers: int) -> None:
    """Answer each line of standard input, which names the work and says whether it is timed."""
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    known = work(urls, workers)
    for line in sys.stdin:
        name, what = json.loads(line)
        make, size, check = known[name]
        print(json.dumps(turn(make, size) if what == "time" else epoch(make, check)), file=answers)


def pure_decode(place: Path, rounds: int) -> float:
    """Return the PNGs of hello-world rows that two threads decode per second."""
    import pyarrow.parquet as pq

    from benchmarks.hello import PngOfOpenCV, decode_only

    files = sorted((place / "hello").rglob("*.parquet"))
    cells = [cell for file in files for cell in pq.read_table(file, columns=["image1"]).column(0).to_pylist()]
    found = []
    for _ in range(rounds):
        count, begun = 0, time.perf_counter()
        while (taken := time.perf_counter() - begun) < SECONDS:
            count += decode_only(cells, PngOfOpenCV())
        found.append(count / taken)
    return statistics.median(found)


def compared(ours: Callable[[str, str], Any], theirs: Callable[[str, str], Any], rounds: int) -> dict[str, float]:
    """Print the speeds of both projects, and return the rows per second of Penstock."""
    speeds = {}
    for name, asked in ASKED.items():
        assert ours(name, "examine") == theirs(name, "examine"), f"{name}: other rows"
        both = [(ours(name, "time"), theirs(name, "time")) for _ in range(rounds)]
        mine, other = (statistics.median(one) for one in zip(*both, strict=True))
        ratios = [one / two for one, two in both]
        print(
            f"{name}: {mine:,.0f} rows/s, Petastorm {other:,.0f} rows/s: {statistics.median(ratios):.1f} x "
            f"({min(ratios):.1f} to {max(ratios):.1f})" + ("" if asked is None else f", asked {asked} x")
        )
        speeds[name] = mine
    return speeds


def main() -> None:
    """Print all ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--serve")
    given = parser.parse_args()
    if given.serve:
        serve(json.loads(given.serve), given.workers)
        return
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        urls = written(place)
        ours = contender(sys.executable, "-m", "penstock.dropin", __file__, serve=json.dumps(urls), workers=given.workers)
        theirs = contender(given.peer, __file__, serve=json.dumps(urls), workers=given.workers)
        speeds = compared(ours, theirs, given.rounds)
        decoded = pure_decode(place, given.rounds)
        share = speeds["hello-world rows"] / decoded
        print(f"hello-world rows: {share:.2f} x pure PNG decode ({decoded:,.0f} images/s), asked 0.9")


if __name__ == "__main__":
    main()
