"""The cost of a Delta table of 100,000 files before its first batch: seconds, and opened files.

The files are hard links to a few real ones, in a hundred partitions. The log is one commit, and then also a checkpoint. A
filesystem counts the opened files. A query of one partition must not open files of another, and the first batch of the whole
table must open no more files than the windows that are read by then.

    python -m benchmarks.delta_many_files [--files 100000] [--work FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

import penstock as ps

PARTITIONS = 100
ROWS = 20
LINKS = 30_000
"""Hard links per file; filesystems allow some ten thousand."""

Found = TypeVar("Found")


class Watched(pafs.FileSystemHandler):  # type: ignore[misc] # pyarrow has no types
    """The local filesystem; it records opened data files."""

    def __init__(self) -> None:
        """Start with no opened files."""
        self.local, self.opened = pafs.LocalFileSystem(), set[str]()

    def get_type_name(self) -> str:
        """Return a name."""
        return "watched"

    def normalize_path(self, path: str) -> str:
        """Return the path unchanged."""
        return path

    def get_file_info(self, paths: Sequence[str]) -> Any:
        """Return information about files."""
        return self.local.get_file_info(paths)

    def get_file_info_selector(self, selector: pafs.FileSelector) -> Any:
        """Return the listing of a directory."""
        return self.local.get_file_info(selector)

    def open_input_file(self, path: str) -> Any:
        """Record and open a file."""
        if "_delta_log" not in path:
            self.opened.add(path)
        return self.local.open_input_file(path)

    def open_input_stream(self, path: str) -> Any:
        """Record and open a file."""
        return self.open_input_file(path)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise PermissionError

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _refuse
    move = copy_file = open_output_stream = open_append_stream = _refuse


def written(place: Path, files: int) -> Path:
    """Write a table of `files` files and return its path."""
    log = place / "_delta_log"
    log.mkdir(parents=True)
    for number in range(PARTITIONS):
        (place / f"day={number}").mkdir()
    lines = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, _metadata()]
    stats = {"numRecords": ROWS, "minValues": {"id": 0}, "maxValues": {"id": ROWS - 1}, "nullCount": {"id": 0}}
    source, size = place / "source", 0
    for number in range(files):
        if number % LINKS == 0:
            source.unlink(missing_ok=True)
            pq.write_table(pa.table({"id": range(ROWS), "x": [float(one) for one in range(ROWS)]}), source)
            size = source.stat().st_size
        name = f"day={number % PARTITIONS}/part-{number:06d}.parquet"
        os.link(source, place / name)
        told = {"path": name, "partitionValues": {"day": str(number % PARTITIONS)}, "size": size, "modificationTime": number}
        lines.append({"add": {**told, "dataChange": True, "stats": json.dumps(stats)}})
    source.unlink()
    (log / f"{0:020d}.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return place


def _metadata() -> dict[str, Any]:
    kinds = {"id": "long", "x": "double", "day": "integer"}
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()]
    told = {"id": "many", "format": {"provider": "parquet", "options": {}}, "partitionColumns": ["day"], "configuration": {}}
    return {"metaData": {**told, "schemaString": json.dumps({"type": "struct", "fields": fields})}}


def timed(what: str, do: Callable[[], Found], watched: Watched) -> Found:
    """Print the seconds of a step and the number of files that it opens."""
    before, begun = len(watched.opened), time.perf_counter()
    found = do()
    print(f"{what:<44} {time.perf_counter() - begun:7.2f} s {len(watched.opened) - before:7d} files opened", flush=True)
    return found


def first(batches: Any) -> Any:
    """Return the first batch and stop reading."""
    found = next(batches)
    batches.close()
    return found


def measured(table: Path, files: int) -> None:
    """Print the cost with one kind of log."""
    watched = Watched()
    filesystem = pafs.PyFileSystem(watched)
    ds = timed("open", lambda: ps.open(str(table), filesystem=filesystem), watched)
    assert timed("count", lambda: ds.num_rows, watched) == files * ROWS
    pruned = ds.where(ps.col("day") == PARTITIONS // 2).shuffle(seed=1).batch(32)
    assert timed("plan, pruned to one partition", lambda: len(pruned), watched) == -(-files * ROWS // PARTITIONS // 32)
    batch = timed("first batch of that", lambda: first(iter(pruned)), watched)
    assert set(batch["day"].tolist()) == {PARTITIONS // 2}
    assert all(f"/day={PARTITIONS // 2}/" in path for path in watched.opened), "a file of another partition was opened"
    whole = ds.shuffle(ps.WindowShuffle(rows=2_000), seed=1).batch(32)
    watched.opened.clear()
    assert timed("plan, all of it", lambda: len(whole), watched) == files * ROWS // 32
    assert not watched.opened, "planning has opened data files"
    timed("first batch of that, windows of 2,000 rows", lambda: first(iter(whole)), watched)
    most = 10 * 2_000 // ROWS
    assert len(watched.opened) <= most, f"{len(watched.opened)} files were opened, and a few windows need {most} at most"


def main() -> None:
    """Print the cost of a table without and with a checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--work")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.work) as folder:
        table = written(Path(folder) / "t", given.files)
        print(f"{given.files} files, one commit")
        measured(table, given.files)
        try:
            from deltalake import DeltaTable
        except ModuleNotFoundError:
            print("deltalake, which writes the checkpoint here, is not installed")
            return
        DeltaTable(str(table)).create_checkpoint()
        print(f"{given.files} files, one checkpoint")
        measured(table, given.files)


if __name__ == "__main__":
    main()
