"""Lance: rows of a Lance dataset by their numbers."""

# mypy: disable-error-code="import-not-found"
# The peer is installed in an interpreter of its own.

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path

import lance
import pyarrow.parquet as pq

from benchmarks.peers.digests import digest


def main() -> None:
    """Write the rows of a Parquet file, or answer each line, a list of numbers, by the time that takes and what came."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["write", "serve"])
    parser.add_argument("source", type=Path)
    parser.add_argument("own", type=Path)
    options = parser.parse_args()
    if options.what == "write":
        lance.write_dataset(pq.read_table(options.source), str(options.own), mode="overwrite")
        return
    # Libraries print what they like; answers go out where nothing else does.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    found = lance.dataset(str(options.own))
    print(json.dumps({"python": platform.python_version(), "pylance": version("pylance")}), file=answers)
    for line in sys.stdin:
        rows = json.loads(line)
        start = time.perf_counter()
        taken = found.take(rows)
        seconds = time.perf_counter() - start
        cells = [cell.as_buffer() for cell in taken["blob"]]
        print(json.dumps({"seconds": seconds, "digest": digest(taken["id"].to_pylist(), cells)}), file=answers)


if __name__ == "__main__":
    main()
