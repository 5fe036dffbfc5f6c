"""Tables for tests: Parquet files in memory, and an example."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from penstock._engine.plan.table import Table
from penstock.dataset import Dataset
from penstock.errors import ArgumentError
from penstock.model import DataFiles, Place, Snapshot

__all__ = ["MemoryFormat", "example"]


class MemoryFormat:
    """A table in memory: Parquet files that are read like files on a disk.

    Args:
        files: The table's files, each a sequence of row groups.
        partitions: Partition values, one column each and one row per file.
        deletes: The numbers of deleted rows, by the index of the file.
        stated: Whether the table states the rows of its files, as a table with a log does. Small files are then planned
            without their footers.
        version: The table's version.
        name: The name of the table; by default a hash of its content.

    Attributes:
        opened: How often each file was opened.

    Raises:
        ArgumentError: If there is no file, or the partitions do not fit the files.

    Example:
        >>> import pyarrow as pa
        >>> group = pa.table({"id": [1, 2, 3]})
        >>> MemoryFormat([[group, group], [group]]).open().num_rows
        9
    """

    def __init__(
        self,
        files: Sequence[Sequence[pa.Table]],
        *,
        partitions: pa.Table | None = None,
        deletes: Mapping[int, Sequence[int]] | None = None,
        stated: bool = False,
        version: str = "",
        name: str | None = None,
    ) -> None:
        """Write the files to memory."""
        if not files or not all(files):
            msg = "MemoryFormat() got no file, or a file without row groups. Use a table without rows for an empty row group."
            raise ArgumentError(msg)
        self._partitions = pa.table({}) if partitions is None else partitions
        if partitions is not None and partitions.num_rows != len(files):
            msg = f"MemoryFormat() got {partitions.num_rows} rows of partitions for {len(files)} files; expected one for each."
            raise ArgumentError(msg)
        self._schema = files[0][0].schema
        self._rows = [sum(group.num_rows for group in file) for file in files]
        self._content = {f"part-{at}.parquet": _parquet_bytes(file) for at, file in enumerate(files)}
        self._deletes = {file: np.unique(np.asarray(rows, dtype=np.int64)) for file, rows in (deletes or {}).items()}
        self._stated, self._version = stated, version
        digest = hashlib.blake2b(b"".join(self._content.values()), digest_size=8).hexdigest()
        self.url = f"memory:{name or digest}"
        self.opened: Counter[str] = Counter()
        self.filesystem = pafs.PyFileSystem(_MemoryFiles(self._content, self.opened))

    @classmethod
    def of(cls, columns: Mapping[str, Any] | pa.Table, *, row_group_rows: int, files: int = 1, **options: Any) -> MemoryFormat:
        """Return a table of columns cut into row groups, which are distributed to files.

        Example:
            >>> MemoryFormat.of({"id": range(10)}, row_group_rows=3, files=2).open().num_rows
            10
        """
        if row_group_rows < 1 or files < 1:
            msg = f"MemoryFormat.of() got row_group_rows={row_group_rows}, files={files}; expected positive integers."
            raise ArgumentError(msg)
        table = columns if isinstance(columns, pa.Table) else pa.table({name: list(cells) for name, cells in columns.items()})
        groups = [table.slice(at, row_group_rows) for at in range(0, max(1, table.num_rows), row_group_rows)]
        share = -(-len(groups) // files)
        return cls([groups[at : at + share] for at in range(0, len(groups), share)], **options)

    @property
    def name(self) -> str:
        """The name of the format."""
        return "memory"

    @property
    def place(self) -> Place:
        """The location of the table."""
        return Place(url=self.url, filesystem=self.filesystem, path="")

    def recognises(self, place: Place) -> bool:
        """Return whether a place is that of this table."""
        return place.url == self.url

    def snapshot(self, place: Place, version: str | int | None = None) -> Snapshot:  # noqa: ARG002 - it has one version
        """Return the facts about the table."""
        fields = [*self._schema, *(field for field in self._partitions.schema if field.name not in self._schema.names)]
        files = DataFiles(
            path=pa.array(list(self._content), type=pa.string()),
            size=np.array([len(content) for content in self._content.values()], dtype=np.int64),
            rows=np.array(self._rows if self._stated else [-1] * len(self._rows), dtype=np.int64),
            stamp=pa.array([hashlib.blake2b(content, digest_size=8).hexdigest() for content in self._content.values()]),
            partitions=self._partitions,
            deletes=self._deletes,
        )
        return Snapshot(table=place.url, version=self._version, schema=pa.schema(fields), files=files)

    def open(self) -> Dataset:
        """Return the table as a dataset."""
        return Dataset(Table(snapshot=self.snapshot(self.place), filesystem=self.filesystem))


def example() -> Dataset:
    """Return a small table for examples: ten rows in row groups of four, with an id, a number and a label.

    Example:
        >>> example().schema.names
        ('id', 'x', 'label')
    """
    columns = {
        "id": list(range(10)),
        "x": [number / 2 for number in range(10)],
        "label": ["odd" if number % 2 else "even" for number in range(10)],
    }
    return MemoryFormat.of(columns, row_group_rows=4, name="example").open()


def _parquet_bytes(groups: Sequence[pa.Table]) -> bytes:
    """Return row groups as the bytes of one Parquet file."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, groups[0].schema) as writer:
        for group in groups:
            writer.write_table(group, row_group_size=max(1, group.num_rows))
    content: bytes = sink.getvalue().to_pybytes()
    return content


class _MemoryFiles(pafs.FileSystemHandler):  # type: ignore[misc] # pyarrow has no types
    """A read-only filesystem of bytes, which several threads can read."""

    def __init__(self, content: Mapping[str, bytes], opened: Counter[str]) -> None:
        self._content, self._opened = content, opened

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _MemoryFiles) and self._content is other._content

    __hash__ = None  # type: ignore[assignment]

    def get_type_name(self) -> str:
        return "penstock-memory"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: Sequence[str]) -> list[pafs.FileInfo]:
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        return [self._info(path) for path in self._content if path.startswith(selector.base_dir)]

    def open_input_file(self, path: str) -> pa.NativeFile:
        if path not in self._content:
            raise FileNotFoundError(path)
        self._opened[path] += 1
        return pa.BufferReader(self._content[path])

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def _info(self, path: str) -> pafs.FileInfo:
        if path in self._content:
            return pafs.FileInfo(path, pafs.FileType.File, size=len(self._content[path]))
        return pafs.FileInfo(path, pafs.FileType.NotFound)

    def _read_only(self, *_: Any, **__: Any) -> Any:
        msg = "A table in memory is read-only."
        raise PermissionError(msg)

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _read_only
    move = copy_file = open_output_stream = open_append_stream = _read_only
