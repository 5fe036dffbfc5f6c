"""Memory of reading, as a share of `memory_limit`: the peak growth of anonymous memory after planning.

Each case runs in its own process over a table that is larger than the limit when decoded. The consumer is fast, or slow, so
that the loader reads ahead as far as it can, or keeps every third batch, up to a quarter of the limit. The operating system
reports anonymous memory (RssAnon), which is sampled every few milliseconds.

    python -m benchmarks.memory [--limits 256 512 1024 2048] [--work FOLDER] [--cases numbers strings ...]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

MB = 1 << 20
CONSUMERS = ("fast", "slow", "keeps")
SLOW = 0.01
BATCH = 1_024
IMAGE_BATCH = 64
SIDE = 224


def write_numbers(place: Path, size: int) -> None:
    """Write 24 integer columns with few distinct values, so that they take little space on disk."""
    random = np.random.default_rng(0)
    rows, group = size // (24 * 8), 100_000
    base = {f"c{at:02}": pa.array(random.integers(0, 100, group)) for at in range(24)}
    _write(place, pa.table(base), rows, row_group_size=group)


def write_strings(place: Path, size: int) -> None:
    """Write strings of 200 characters, a thousand distinct ones."""
    random = np.random.default_rng(0)
    words = np.array([f"{at:04}" * 50 for at in range(1_000)], dtype=object)
    group = 50_000
    table = pa.table({"id": pa.array(np.arange(group)), "text": pa.array(words[random.integers(0, 1_000, group)], pa.string())})
    _write(place, table, size // 208, row_group_size=group)


def write_lists(place: Path, size: int) -> None:
    """Write lists of 0 to 400 numbers."""
    random = np.random.default_rng(0)
    group = 20_000
    ends = np.cumsum(random.integers(0, 400, group))
    values = pa.array(random.integers(0, 50, int(ends[-1])))
    lists = pa.ListArray.from_arrays(pa.array(np.concatenate([[0], ends]), pa.int32()), values)
    _write(place, pa.table({"id": pa.array(np.arange(group)), "x": lists}), size // 1_600, row_group_size=group)


def write_images(place: Path, size: int) -> None:
    """Write JPEGs, a hundred distinct ones."""
    import penstock as ps

    random = np.random.default_rng(0)
    field = ps.Field("image", np.uint8, (SIDE, SIDE, 3), ps.codecs.Jpeg())
    noise = random.integers(0, 255, (100, SIDE // 8, SIDE // 8, 3), np.uint8)
    images = noise.repeat(8, axis=1).repeat(8, axis=2)
    with ps.write(place, ps.Schema("Images", [ps.Field("id", np.int64), field]), row_group_rows=500) as out:
        for number in range(size // (SIDE * SIDE * 3)):
            out.append({"id": number, "image": images[number % 100]})


def write_one_group(place: Path, size: int) -> None:
    """Write the numbers as one row group that is larger than the limit."""
    random = np.random.default_rng(0)
    rows = size // (24 * 8)
    base = random.integers(0, 100, rows)
    _write(place, pa.table({f"c{at:02}": pa.array(base) for at in range(24)}), rows, row_group_size=rows)


def _write(place: Path, table: pa.Table, rows: int, **options: Any) -> None:
    place.mkdir(parents=True)
    with pq.ParquetWriter(place / "part.parquet", table.schema) as out:
        for _ in range(max(1, rows // len(table))):
            out.write_table(table, **options)


CASES: dict[str, Callable[[Path, int], None]] = {
    "numbers": write_numbers,
    "strings": write_strings,
    "lists": write_lists,
    "images": write_images,
    "one row group": write_one_group,
}


def anonymous() -> int:
    """Return the bytes of anonymous memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("no RssAnon in /proc/self/status")


def consume(case: str, consumer: str, limit: int, place: str) -> None:
    """Run one case: read an epoch and print the growth of memory."""
    import penstock as ps

    size = IMAGE_BATCH if case == "images" else BATCH
    ds = ps.open(place).shuffle(seed=1).batch(size, last="uneven").using(threads=2, memory_limit=limit)
    if case == "lists":
        ds = ds.ragged(ps.Pad(), "x")
    rows = ds.num_rows
    with suppress(ps.errors.MemoryLimitError):  # one-time loading with the first rows does not count
        next(iter(ps.open(place).batch(1).limit(1).using(threads=1)))
    first, most, ended = anonymous(), [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.003):
            most[0] = max(most[0], anonymous())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    kept: deque[Any] = deque()
    held = came = 0
    told = ""
    try:
        for number, batch in enumerate(ds):
            came += len(next(iter(batch.values())))
            if consumer == "slow":
                time.sleep(SLOW)
            elif consumer == "keeps" and number % 3 == 0:
                kept.append(batch)
                held += _bytes(batch)
                while held > limit // 4:
                    held -= _bytes(kept.popleft())
    except ps.errors.PenstockError as error:
        told = str(error)
    ended.set()
    watcher.join()
    assert told or came == rows, f"{came} of {rows} rows came"
    print(json.dumps({"growth": most[0] - first, "told": told}))


def _bytes(batch: dict[str, Any]) -> int:
    return sum(values.nbytes if values.dtype.kind != "O" else sum(map(len, values)) for values in batch.values())


def main() -> None:
    """Print a table of shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limits", type=int, nargs="+", default=[256, 512, 1024, 2048], help="megabytes")
    parser.add_argument("--cases", nargs="+", default=list(CASES))
    parser.add_argument("--consumers", nargs="+", default=list(CONSUMERS))
    parser.add_argument("--times", type=float, default=1.5, help="how much larger than the limit a table is")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--one", nargs=4)
    options = parser.parse_args()
    if options.one:
        case, consumer, limit, place = options.one
        consume(case, consumer, int(limit), place)
        return
    with tempfile.TemporaryDirectory() as folder:
        work = options.work or Path(folder)
        print(f"{'case':<14} {'consumer':<9}" + "".join(f"{limit:>8} MB" for limit in options.limits))
        for case in options.cases:
            places = {limit: work / f"{case.replace(' ', '-')}-{limit}" for limit in options.limits}
            for limit, place in places.items():
                if not place.exists():
                    CASES[case](place, int(limit * MB * options.times))
            for consumer in options.consumers:
                found = [_run(case, consumer, limit * MB, place) for limit, place in places.items()]
                shares = "".join(
                    f"{'refused' if one['told'] else format(one['growth'] / limit / MB, '.2f'):>11}"
                    for one, limit in zip(found, options.limits, strict=True)
                )
                print(f"{case:<14} {consumer:<9}{shares}", flush=True)
                for told in dict.fromkeys(one["told"] for one in found if one["told"]):
                    print(f"    {told}")


def _run(case: str, consumer: str, limit: int, place: Path) -> Any:
    command = [sys.executable, "-m", "benchmarks.memory", "--one", case, consumer, str(limit), str(place)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(found.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
