"""Reading and writing of hello-world rows, compared with the decoding and encoding of their PNGs alone.

A row is the example of Petastorm: an int32, a random RGB image of 128 x 256 pixels as PNG, and a random array of 4 x 128 x 30
x 3 bytes as npy. Reading is compared with decoding the PNGs alone on two threads, from memory, into new arrays. Writing is
compared with encoding images and arrays alone on two threads without storing the bytes. This work is done by OpenCV on its own
PNGs, as in Petastorm, and by our codecs on their own. Tables with both kinds of PNG are read. A last contender encodes rows
and appends the bytes to a file, without a table.

    python -m benchmarks.hello [--rows 1000] [--rounds 7]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import cv2
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


class PngOfOpenCV(Png):
    """A PNG codec that uses OpenCV only."""

    def encode(self, field: ps.Field, cell: Any) -> bytes:
        """Return an image as bytes."""
        del field
        return bytes(cv2.imencode(".png", cv2.cvtColor(cell, cv2.COLOR_RGB2BGR))[1])

    def decode(self, field: ps.Field, cell: memoryview) -> Any:
        """Return an image."""
        del field
        found = cv2.imdecode(np.frombuffer(cell, np.uint8), cv2.IMREAD_UNCHANGED)
        assert found is not None
        return cv2.cvtColor(found, cv2.COLOR_BGR2RGB)


def decode_only(cells: list[bytes], codec: Png) -> int:
    """Return the number of images decoded by two threads."""

    def decode(part: list[bytes]) -> int:
        return sum(codec.decode(IMAGE, memoryview(cell)).shape == IMAGE.shape for cell in part)

    with ThreadPoolExecutor(2) as pool:
        return sum(pool.map(decode, [cells[start : start + 32] for start in range(0, len(cells), 32)] * EPOCHS))


def encode_only(given: list[dict[str, Any]], codec: Png) -> int:
    """Return the number of rows encoded by two threads."""

    def encode(part: list[dict[str, Any]]) -> int:
        made = [(codec.encode(IMAGE, row["image1"]), Npy().encode(ARRAY, row["array_4d"])) for row in part]
        return len(made)

    with ThreadPoolExecutor(2) as pool:
        return sum(pool.map(encode, [given[start : start + 16] for start in range(0, len(given), 16)]))


def encode_to_file(place: Path, given: list[dict[str, Any]], codec: Png) -> int:
    """Return the number of rows encoded by two threads and appended to a file that is on disk at the end."""

    def encode(part: list[dict[str, Any]]) -> list[bytes]:
        cells = [(codec.encode(IMAGE, row["image1"]), Npy().encode(ARRAY, row["array_4d"])) for row in part]
        return [cell for row in cells for cell in row]

    place.mkdir()
    count = 0
    with ThreadPoolExecutor(2) as pool, (place / "cells").open("wb", buffering=0) as file:
        for cells in pool.map(encode, [given[start : start + 16] for start in range(0, len(given), 16)]):
            os.writev(file.fileno(), cells)
            count += len(cells) // 2
        os.fsync(file.fileno())
    return count


def read(ds: ps.Dataset) -> int:
    """Return the number of images read in several consecutive epochs."""
    return sum(len(batch["image1"]) for batch in ds.repeat(EPOCHS))


def write(place: Path, given: list[dict[str, Any]], codec: Png) -> int:
    """Return the number of rows written."""
    fields = [ps.Field("id", np.int32), ps.Field("image1", np.uint8, (128, 256, 3), codec), ARRAY]
    with ps.write(str(place), ps.Schema("HelloWorld", fields), row_group_mb=16, threads=2) as table:
        for row in given:
            table.append(row)
    return table.num_rows


def runs_of(folder: Path, given: list[dict[str, Any]]) -> dict[str, dict[str, Callable[[], int]]]:
    """Return the contenders; decoding and encoding alone come first."""
    opencv, ours = PngOfOpenCV(), Png()
    cells, tables = {}, {}
    for name, codec in {"opencv": opencv, "ours": ours}.items():
        write(folder / name, given, codec)
        cells[name] = pq.read_table(folder / name, columns=["image1"]).column("image1").to_pylist()
        tables[name] = ps.open(folder / name).using(threads=2)
        found = np.asarray(tables[name].take([0, len(given) - 1])["image1"])
        assert (found == np.stack([given[0]["image1"], given[-1]["image1"]])).all()
    reading: dict[str, Callable[[], int]] = {
        "OpenCV decodes its PNGs": lambda: decode_only(cells["opencv"], opencv),
        "Png() decodes OpenCV's PNGs": lambda: decode_only(cells["opencv"], ours),
        "Png() decodes its PNGs": lambda: decode_only(cells["ours"], ours),
    }
    for name, ds in tables.items():
        reading[f"read rows of {name}, shuffled"] = partial(read, ds.shuffle(seed=1).batch(32, last="uneven"))
        reading[f"read rows of {name}, in order"] = partial(read, ds.batch(32, last="uneven"))
    writing: dict[str, Callable[[], int]] = {
        "OpenCV encodes": lambda: encode_only(given, opencv),
        "Png() encodes": lambda: encode_only(given, ours),
        "OpenCV encodes to a file": lambda: encode_to_file(folder / "written", given, opencv),
        "Png() encodes to a file": lambda: encode_to_file(folder / "written", given, ours),
        "write rows": lambda: write(folder / "written", given, ours),
        "write rows, PNGs of OpenCV": lambda: write(folder / "written", given, opencv),
    }
    return {"reading": reading, "writing": writing}


def timed(runs: dict[str, Callable[[], int]], expected: int, rounds: int, written: Path) -> dict[str, list[float]]:
    """Return the seconds of each contender and round; check the numbers of rows and delete what was written."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            assert run() == expected, f"{name} delivered other rows"
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
    print(f"{'work':<32} {'best s':>8} {'median s':>9} {'of OpenCV, best | median':>26} {'of Png(), best | median':>26}")
    with tempfile.TemporaryDirectory() as folder:
        for kind, runs in runs_of(Path(folder), given).items():
            expected = options.rows * (EPOCHS if kind == "reading" else 1)
            seconds = timed(runs, expected, options.rounds, Path(folder) / "written")
            pure = seconds[next(iter(runs))]
            for name, taken in seconds.items():
                own = {"reading": "Png() decodes OpenCV's PNGs" if "opencv" in name else "Png() decodes its PNGs"}
                base = seconds[own.get(kind, "Png() encodes")]
                ratios = [
                    f"{min(one) / min(taken):.2f} | {statistics.median(one) / statistics.median(taken):.2f}"
                    for one in (pure, base)
                ]
                print(f"{name:<32} {min(taken):>8.3f} {statistics.median(taken):>9.3f} {ratios[0]:>26} {ratios[1]:>26}")


if __name__ == "__main__":
    main()
