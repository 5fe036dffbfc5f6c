"""Opening and reading a table two hundred times leaks no memory, file handles or threads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

ROUNDS = """
import gc, json, os, sys, threading
import numpy as np
import penstock as ps
from penstock.codecs import Raw

place = sys.argv[1]
schema = ps.Schema("S", [ps.Field("id", np.int64), ps.Field("cell", np.uint8, (5000,), Raw()), ps.Field("word", str)])
cells = np.random.default_rng(0).integers(0, 256, (400, 5000), np.uint8)
ps.write(place, schema, {"id": np.arange(400), "cell": cells, "word": [f"word {n}" for n in range(400)]}, row_group_rows=100)

def whole(ds):
    assert sum(len(batch["id"]) for batch in ds) == 400

def broken_off(ds):
    for batch in ds.map(lambda batch: batch):
        break

def closed(ds):
    batches = iter(ps.loader(ds.select("id")))
    next(batches)
    batches.close()

def rows(ds):
    for number, row in enumerate(ps.open(place).using(threads=2)):
        if number == 50:
            break

def failed(ds):
    try:
        list(ds.map(lambda batch: {"id": 1 / 0}))
    except ZeroDivisionError:
        pass

seen = []
for number in range(200):
    ds = ps.open(place).shuffle(ps.WindowShuffle(rows=200), seed=number).batch(50).using(threads=2)
    (whole, broken_off, closed, rows, failed)[number % 5](ds)
    del ds
    if number % 5 == 4:
        gc.collect()
        with open("/proc/self/statm") as file:
            memory = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock")]
        seen.append((memory, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), threads))
print(json.dumps(seen))
"""


@pytest.mark.slow
def test_two_hundred_rounds_leak_nothing(tmp_path: Path) -> None:
    """After fifty rounds, memory, handles and threads no longer grow, whether iterations end, stop early, close or fail."""
    command = [sys.executable, "-c", ROUNDS, str(tmp_path / "t")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    assert (done.stderr, done.returncode) == ("", 0)
    memory, handles, tasks, threads = zip(*json.loads(done.stdout)[10:], strict=True)
    assert set(handles) == {handles[0]}
    assert max(tasks) <= tasks[0]
    assert set(map(tuple, threads)) == {()}
    half = len(memory) // 2
    # A window of this table takes one megabyte: if each round leaked one, the difference would be seventy.
    assert median(memory[half:]) - median(memory[:half]) < 8 << 20
