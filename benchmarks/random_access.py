"""Rows by number, compared with Lance and with reading their row groups, in the same run.

Rows have an id, a label and 20,000 random bytes, in row groups of 1,000 rows. There are three tables: one as Penstock writes
it, uncompressed with four cells per page, and two written by pyarrow with zstd and a page index, with one and four cells per
page. Contenders run in turn and read the same rows, different ones each time; the results are compared after the clock has
stopped. Lance runs in its own interpreter, created by `benchmarks/peers/install.sh`; without it only ratios to row groups are
printed.

    python -m benchmarks.random_access [--peers FOLDER] [--rounds 20] [--rows 8000] [--work FOLDER]
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import penstock as ps
from benchmarks.peers.digests import digest
from penstock.codecs import Npy

SIZE, GROUP = 20_000, 1_000
COUNTS = {1: 16, 64: 4, 256: 2}
"""Rows per call, and calls per turn."""

LANCE, GROUP_READ = "Lance", "pyarrow, the row group"
SCHEMA = ps.Schema("Blobs", [ps.Field("id", np.int64), ps.Field("label", np.int64), ps.Field("blob", np.uint8, (SIZE,), Npy())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A timed contender: `take` returns the seconds for some rows and a digest of the result."""

    name: str
    take: Callable[[Sequence[int]], tuple[float, str]]


ZSTD = {"zstd, a blob a page": 1 << 14, "zstd, four blobs a page": 1 << 16}
"""Names of other tables, and the page size of pyarrow for each."""


def make(work: Path, count: int) -> dict[str, Path]:
    """Return the tables by name; the one written by Penstock comes first."""
    own, others = work / f"own-{count}", {name: work / f"zstd-{size}-{count}" for name, size in ZSTD.items()}
    if not all(place.exists() for place in (own, *others.values())):
        random = np.random.default_rng(0)
        blobs = random.integers(0, 256, (count, SIZE), dtype=np.uint8)
        numbers = {"id": np.arange(count), "label": np.arange(count) % 10}
        ps.write(own, SCHEMA, data={**numbers, "blob": blobs}, row_group_rows=GROUP, mode="overwrite")
        table = pa.table({**numbers, "blob": pa.array(map(bytes, blobs), pa.binary())})
        for name, place in others.items():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            options: dict[str, Any] = {"compression": "zstd", "use_dictionary": ["id", "label"], "row_group_size": GROUP}
            pages = {"data_page_size": ZSTD[name], "write_batch_size": 1, "write_page_index": True}
            pq.write_table(table, place / "a.parquet", **options, **pages)
    return {"its own layout": own, **others}


def penstock(name: str, place: Path) -> Contender:
    """Return rows of a table by `take`, and a single one by its number."""
    ds = ps.open(place)

    def take(rows: Sequence[int]) -> tuple[float, str]:
        start = time.perf_counter()
        found = {column: [cell] for column, cell in ds[rows[0]].items()} if len(rows) == 1 else ds.take(rows)
        seconds = time.perf_counter() - start
        return seconds, digest(found["id"], found["blob"])

    return Contender(name=name, take=take)


def row_group(place: Path) -> Contender:
    """Return one row by reading its row group with pyarrow from an open file; taking the row is not timed."""
    file = pq.ParquetFile(next(place.glob("*.parquet")))

    def take(rows: Sequence[int]) -> tuple[float, str]:
        start = time.perf_counter()
        found = file.read_row_group(rows[0] // GROUP)
        seconds = time.perf_counter() - start
        row = found.slice(rows[0] % GROUP, 1)
        cell = np.load(pa.BufferReader(row["blob"][0].as_buffer()), allow_pickle=False)
        return seconds, digest(row["id"].to_pylist(), [cell])

    return Contender(name=GROUP_READ, take=take)


class Lance:
    """The process of Lance; it answers each line with a line."""

    def __init__(self, interpreters: Path, source: Path, own: Path) -> None:
        """Write the data if it does not exist, and start the process."""
        command = [str(interpreters.absolute() / "modern" / "bin" / "python"), "-m", "benchmarks.peers.lance"]
        where = Path(__file__).parent.parent
        if not own.exists():
            subprocess.run([*command, "write", str(source), str(own)], check=True, cwd=where)
        self._process = subprocess.Popen(
            [*command, "serve", str(source), str(own)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=where
        )
        print(", ".join(f"{name} {version}" for name, version in self._ask("").items()))

    def _ask(self, query: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if query:
            self._process.stdin.write(query + "\n")
            self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def take(self, rows: Sequence[int]) -> tuple[float, str]:
        """Return the seconds for some rows, and a digest of the result."""
        answer = self._ask(json.dumps(rows))
        return answer["seconds"], answer["digest"]

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def turns(contenders: Sequence[Contender], rounds: int, rows: int) -> dict[tuple[str, int], list[float]]:
    """Return the seconds of all contenders, which read the same rows in turn."""
    random = np.random.default_rng(1)
    seconds: dict[tuple[str, int], list[float]] = {}
    for _ in range(rounds):
        for count, times in COUNTS.items():
            asked = [random.choice(rows, count, replace=False).tolist() for _ in range(times)]
            expected: list[str] = []
            for contender in contenders:
                if contender.name == GROUP_READ and count > 1:
                    continue
                taken = [contender.take(numbers) for numbers in asked]
                expected = expected or [found for _, found in taken]
                assert [found for _, found in taken] == expected, f"{contender.name} delivered other rows"
                seconds.setdefault((contender.name, count), []).extend(took for took, _ in taken)
    return seconds


def lines(seconds: dict[tuple[str, int], list[float]]) -> Iterator[str]:
    """Yield a table of ratios."""
    yield "| rows | contender | best, ms | median, ms | of the row group, best | median | of Lance, best | median |"
    yield "|---|---|---|---|---|---|---|---|"
    for count in COUNTS:
        for (name, rows), taken in seconds.items():
            if rows != count:
                continue
            shares = []
            for base in (GROUP_READ, LANCE):  # reading a row group is compared for single rows only
                others = seconds.get((base, count))
                pair = [measure(taken) / measure(others) for measure in (min, statistics.median)] if others else []
                shares += [f"{share:.2f}" for share in pair] or ["", ""]
            best, median = min(taken) * 1e3, statistics.median(taken) * 1e3
            yield f"| {count} | {name} | {best:.2f} | {median:.2f} | {' | '.join(shares)} |"


def main() -> None:
    """Write the data, run all contenders in turn, and print a table of ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="the folder that benchmarks/peers/install.sh has made")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rows", type=int, default=8_000)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "penstock-benchmarks")
    options = parser.parse_args()
    tables = make(options.work, options.rows)
    contenders = [
        row_group(tables["its own layout"]),
        *(penstock(f"Penstock, {name}", place) for name, place in tables.items()),
    ]
    with ExitStack() as stack:
        if options.peers:
            place = options.work / f"lance-{options.rows}"
            source = tables[next(iter(ZSTD))] / "a.parquet"
            lance = stack.enter_context(closing(Lance(options.peers, source, place)))
            contenders.append(Contender(name=LANCE, take=lance.take))
        for line in lines(turns(contenders, options.rounds, options.rows)):
            print(line)


if __name__ == "__main__":
    main()
