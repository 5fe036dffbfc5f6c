"""A location for a table, and the operations that tests of table changes perform there."""

from __future__ import annotations

import errno
import io
from collections.abc import Iterable
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs as pafs

from penstock._engine.commit import log as markers
from penstock._engine.commit.change import Change, begin
from penstock._engine.commit.log import small_file, visible
from penstock._engine.commit.target import Mode, hidden
from penstock._engine.storage.filesystem import list_files
from penstock.model import Place

LOCAL = pafs.LocalFileSystem()
MEMORY = pafs.PyFileSystem(pafs.FSSpecHandler(fsspec.filesystem("memory")))


def parquet_bytes(ids: Iterable[int]) -> bytes:
    """Return a Parquet file of one column."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), sink)
    return sink.getvalue()


class Lake:
    """A location for a table `t`, with operations on its files."""

    def __init__(self, filesystem: pafs.FileSystem, path: str) -> None:
        """Store filesystem and path."""
        self.filesystem, self.path = filesystem, path
        self.place = Place(url="lake", filesystem=filesystem, path=path)

    def begin(self, mode: Mode) -> Change:
        """Begin a change."""
        return begin(self.filesystem, self.path, mode, url="lake")

    def change(self, mode: Mode, ids: Iterable[int], small: bytes = b"small") -> Change:
        """Begin a change, write a file for each id, and finish the change."""
        change = self.begin(mode)
        self.fill(change, ids)
        change.finish({"_common_metadata": small})
        return change

    def fill(self, change: Change, ids: Iterable[int]) -> None:
        """Write a file for each id."""
        for number, one in enumerate(ids):
            self.put(change.path(f"day={one % 2}/part-{number:05d}-{change.id}.parquet"), parquet_bytes([one]))

    def put(self, path: str, data: bytes) -> None:
        """Write a file without a change, as other software does."""
        with self.filesystem.open_output_stream(path, compression=None) as stream:
            stream.write(data)

    def infos(self) -> list[pafs.FileInfo]:
        """Return all files at the location."""
        return list_files(self.place)

    def names(self) -> list[str]:
        """Return the relative names of all files, including files that are not part of the table."""
        return sorted(markers.relative(info.path, self.path) for info in self.infos())

    def ids(self) -> list[int]:
        """Return the ids that Penstock readers see."""
        shown = visible(self.filesystem, self.path, self.infos())
        data = [info.path for info in shown if not hidden(markers.relative(info.path, self.path))]
        tables = [pq.ParquetFile(self.filesystem.open_input_file(path)).read(["id"]) for path in data]
        return sorted(one for table in tables for one in table["id"].to_pylist())

    def small(self) -> bytes | None:
        """Return the small file that Penstock readers see."""
        return small_file(self.filesystem, self.path, "_common_metadata", self.infos())


def unsupported(*_: Any, **__: Any) -> None:
    """Raise the error of a filesystem that lacks an operation."""
    raise OSError(errno.ENOSYS, "no such step here")


def untidied(lake: Lake, monkeypatch: pytest.MonkeyPatch, mode: Mode, ids: Iterable[int], small: bytes = b"new") -> Change:
    """Make a change whose connection breaks before cleanup, and return it."""

    def broken(*_: Any) -> None:
        raise OSError("connection lost")

    with monkeypatch.context() as patch:
        patch.setattr(markers, "complete", broken)
        with pytest.warns(RuntimeWarning, match="connection lost"):
            return lake.change(mode, ids, small)
