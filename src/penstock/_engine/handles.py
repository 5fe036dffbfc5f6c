"""Data files that are open, of each thread its own."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from penstock._engine.chunks import Chunk
from penstock._engine.fit_stored import beyond_nanoseconds, has_timestamps, int96_unit
from penstock.model import WHOLE_FILE

__all__ = ["Handle", "Handles"]


@dataclass(slots=True, kw_only=True, eq=False)
class Handle:
    """An open data file: as pyarrow reads it, its bytes, and the names of its columns.

    Attributes:
        in_nanoseconds: Whether timestamps of twelve bytes, INT96, are read in nanoseconds.
        chunks: Where the cells of some columns lie that can be read as they are; None before anybody asked.
        ids: The names of columns by their ids; None before anybody asked.
    """

    file: pq.ParquetFile
    source: Any
    names: frozenset[str]
    in_nanoseconds: bool = False
    chunks: dict[str, list[Chunk]] | None = None
    ids: dict[int, str] | None = None

    def rows(self, row_group: int) -> int:
        """Return the rows that a row group, or the whole file, has by its footer."""
        footer = self.file.metadata
        return int(footer.num_rows if row_group == WHOLE_FILE else footer.row_group(row_group).num_rows)

    def stored_bytes(self, row_group: int, columns: Sequence[str]) -> int:
        """Return what columns of a row group, or of the whole file, take on storage."""
        # pyarrow has found out the leaves of columns when it opened the file; to do so again would take as long as that.
        footer, leaves = self.file.metadata, getattr(self.file, "_nested_paths_by_prefix", {})
        groups = map(footer.row_group, range(footer.num_row_groups) if row_group == WHOLE_FILE else (row_group,))
        found = [leaf for name in columns for leaf in leaves.get(name, ())]
        return sum([group.column(leaf).total_compressed_size for group in groups for leaf in found])

    def out_of_reach(self, row_group: int, columns: Sequence[str]) -> str | None:
        """Return which column of a row group, or of the whole file, has timestamps that nanoseconds do not reach.

        Arrow makes other timestamps of them and does not say so; in seconds they are what they are.
        """
        if not self.in_nanoseconds:
            return None
        asked = [name for name in columns if has_timestamps(self.file.schema_arrow.field(name).type)]
        leaves, stored = getattr(self.file, "_nested_paths_by_prefix", {}), self.file.schema
        asked = [name for name in asked if any(stored.column(leaf).physical_type == "INT96" for leaf in leaves.get(name, ()))]
        if not asked:
            return None
        file = pq.ParquetFile(self.source, metadata=self.file.metadata, coerce_int96_timestamp_unit="s")
        groups = range(self.file.metadata.num_row_groups) if row_group == WHOLE_FILE else (row_group,)
        found = file.read_row_groups(list(groups), columns=asked, use_threads=False)
        return next((name for name in asked if beyond_nanoseconds(found.column(name))), None)


class Handles(threading.local):
    """Open data files, of each thread its own: the newest few, closed when the thread ends.

    What their footers say is shared, so that a file is opened often but its footer read once.
    """

    MOST = 8

    def __init__(self, footers: OrderedDict[str, pq.FileMetaData] | None = None) -> None:
        """Begin without any; called anew in every thread, with the same footers."""
        self._files: OrderedDict[str, Handle] = OrderedDict()
        self._footers = OrderedDict() if footers is None else footers
        self.fetched = 0

    def get(
        self, path: str, filesystem: pafs.FileSystem, check: Callable[[], None], schema: pa.Schema, *, checksums: bool = False
    ) -> Handle:
        """Return an open file of a table with some schema; `check` is called before one is opened."""
        found = self._files.pop(path, None)
        if found is None:
            check()
            remote = not isinstance(filesystem, pafs.LocalFileSystem)
            source = filesystem.open_input_file(path)
            footer, unit = self._footers.get(path), int96_unit(schema)
            options = {"pre_buffer": remote, "coerce_int96_timestamp_unit": unit, "page_checksum_verification": checksums}
            file = pq.ParquetFile(source, metadata=footer, **options)
            found = Handle(file=file, source=source, names=frozenset(file.schema_arrow.names), in_nanoseconds=unit is None)
            self._footers[path] = file.metadata
            while len(self._footers) > 8 * self.MOST:
                self._footers.popitem(last=False)
        self._files[path] = found
        while len(self._files) > self.MOST:
            self._files.popitem(last=False)[1].file.close(force=True)
        return found
