"""Copies of datasets. Cells are copied as they are stored, and not decoded."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial, reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock._engine.commit.change import Change, begin
from penstock._engine.commit.target import Mode
from penstock._engine.query.query import ColumnDecoding
from penstock._engine.read.reader import Unit
from penstock._engine.row_groups.reader import RowGroupReader
from penstock._engine.runtime.ordered_map import OrderedMap
from penstock._engine.runtime.threads import Priority, ThreadPool
from penstock._engine.write.parquet_options import common_metadata
from penstock.formats.parquet import COMMON
from penstock.formats.petastorm import ROW_GROUPS_KEY
from penstock.model import Place, even_edges
from penstock.petastorm._impl.dataset import StoredDataset
from penstock.petastorm._impl.row_group_selection import Selection, SelectionArguments, select_row_groups

__all__ = ["DatasetCopy", "cut_row_groups"]

FILE_BYTES = 512 << 20
"""The size of a file if the number of files is not given."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DatasetCopy:
    """A copy of some columns and rows of a dataset.

    Attributes:
        dataset: The source.
        columns: The columns, in order.
        not_null: Rows with a null in one of these columns are not copied.
        files: The number of files; None to begin a new file by size.
        row_group_bytes: The approximate size of a row group.
    """

    dataset: StoredDataset
    columns: Sequence[str]
    not_null: Sequence[str] = ()
    files: int | None = None
    row_group_bytes: int = 128 << 20

    @property
    def schema(self) -> pa.Schema:
        """The columns as they are stored, partition columns included."""
        stored = self.dataset.raw.schema
        return pa.schema([_without_dictionary(stored.field(name)) for name in self.columns])

    def write(self, place: Place, mode: Mode, keys: dict[bytes, bytes]) -> None:
        """Write the copy, which appears all at once or not at all.

        Args:
            place: The target.
            mode: "error" or "overwrite", for a table that exists there.
            keys: Metadata for `_common_metadata`.

        Raises:
            ArgumentError: If the target cannot be written to in this mode.
        """
        change = begin(place.filesystem, place.path, mode, url=place.url)
        try:
            counts = self._write_files(change, place)
            metadata = {**keys, ROW_GROUPS_KEY: json.dumps(counts).encode()}
            change.finish({COMMON: common_metadata(self.schema.with_metadata(metadata))})
        except BaseException:
            change.abort()
            raise

    def _write_files(self, change: Change, place: Place) -> dict[str, int]:
        """Write all files, and return the number of row groups of each."""
        schema, counts = self.schema, dict[str, int]()
        flat = [field.name for field in schema if not (pa.types.is_nested(field.type) or pa.types.is_binary(field.type))]
        with ExitStack() as open_file:
            writer, number = None, -1
            for file, group in cut_row_groups(self._tables(), self.row_group_bytes, self._rows_per_file()):
                if file != number:
                    open_file.close()
                    number, name = file, f"part-{file:05d}-{change.id}.parquet"
                    options = {"compression": "none", "use_dictionary": flat, "filesystem": place.filesystem}
                    writer = open_file.enter_context(pq.ParquetWriter(change.path(name), schema, **options))
                    counts[name] = 0
                if group.num_rows and writer is not None:
                    writer.write_table(group, row_group_size=group.num_rows)
                    counts[name] += 1
        return counts

    def _rows_per_file(self) -> list[int] | None:
        """Return the number of rows of each file, which differ by one at most; None if files are cut by size."""
        if self.files is None:
            return None
        rows = (
            sum(table.num_rows for table in self._read(list(self.not_null)))
            if self.not_null
            else self._selection().tasks.num_rows
        )
        counts: list[int] = np.diff(even_edges(0, rows, max(1, min(self.files, rows)))).tolist()
        return counts

    def _selection(self) -> Selection:
        return select_row_groups(self.dataset, self.dataset.raw, self.dataset.schema, SelectionArguments(may_be_empty=True))

    def _tables(self) -> Iterator[pa.Table]:
        """Yield the rows of each row group that are copied."""
        schema = self.schema
        for table in self._read(list(dict.fromkeys([*self.columns, *self.not_null]))):
            yield table.select(schema.names).cast(schema)
        yield schema.empty_table()

    def _read(self, names: Sequence[str]) -> Iterator[pa.Table]:
        """Yield some columns of each row group, while the next one is read."""
        selection = self._selection()
        reader = RowGroupReader(selection.snapshot, self.dataset.fs, [ColumnDecoding(name=name, field=None) for name in names])

        def read(task: int) -> pa.Table:
            loaded = reader.load(Unit.of(selection.tasks.units, task))
            table = pa.table({name: loaded.columns[name] for name in names})
            return (
                table.filter(reduce(pc.and_, (pc.is_valid(table[name]) for name in self.not_null))) if self.not_null else table
            )

        pool = ThreadPool(1)
        tables = OrderedMap[pa.Table](pool)
        try:
            for task in range(len(selection.tasks)):
                tables.submit(Priority.READ, partial(read, task))
                if tables.pending > 1:
                    yield tables.next()
            if tables.pending:
                yield tables.next()
        finally:
            pool.close()


def _without_dictionary(field: pa.Field) -> pa.Field:
    return field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field


def cut_row_groups(
    tables: Iterator[pa.Table], row_group_bytes: int, rows_per_file: Sequence[int] | None
) -> Iterator[tuple[int, pa.Table]]:
    """Yield row groups of about `row_group_bytes`, each with the number of its file; without rows, one that is empty.

    Args:
        tables: All rows, in order.
        row_group_bytes: The approximate size of a row group.
        rows_per_file: The rows of each file; None to begin a new file by size.
    """
    next_rows = iter(rows_per_file or ())
    file, file_rows = 0, float(next(next_rows, math.inf))
    parts: list[pa.Table] = []
    nbytes = written = 0.0
    for table in tables:
        rest = table
        while rest.num_rows:
            row_bytes = max(1.0, rest.nbytes / rest.num_rows)
            count = int(min(rest.num_rows, file_rows, max(1, math.ceil((row_group_bytes - nbytes) / row_bytes))))
            parts.append(rest.slice(0, count))
            rest, file_rows, nbytes = rest.slice(count), file_rows - count, nbytes + count * row_bytes
            if nbytes >= row_group_bytes or file_rows == 0:
                yield file, pa.concat_tables(parts)
                parts, written, nbytes = [], written + nbytes, 0.0
                if file_rows == 0 or (rows_per_file is None and written >= FILE_BYTES):
                    file, file_rows, written = file + 1, float(next(next_rows, math.inf)), 0.0
        last = rest
    if parts or (file == 0 and not written):
        yield file, pa.concat_tables(parts) if parts else last
