"""A copy of a dataset as its cells are stored: nothing is decoded, so that images are not encoded anew."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock._engine.commit.change import Change, Mode, begin
from penstock._engine.query.values import Column
from penstock._engine.read.reader import Unit
from penstock._engine.row_groups.reader import RowGroupReader
from penstock._engine.write.parquet_options import common_metadata
from penstock._ranges import even_edges
from penstock.formats.parquet import COMMON
from penstock.formats.petastorm import ROW_GROUPS_KEY
from penstock.model import Place
from penstock.petastorm._impl.dataset import StoredDataset
from penstock.petastorm._impl.row_group_selection import Asked, Selection, selected

__all__ = ["Copy", "row_groups"]

FILE_BYTES = 512 << 20
"""What a file holds where nobody says how many there are to be."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Copy:
    """What is copied of a dataset, and how it is to lie.

    Attributes:
        dataset: Where it comes from.
        columns: The columns, in order.
        full: Columns that must not be null in a row that is copied.
        files: How many files there are to be; None for as many as their sizes ask for.
        row_group_bytes: How large row groups are to be, about.
    """

    dataset: StoredDataset
    columns: Sequence[str]
    full: Sequence[str] = ()
    files: int | None = None
    row_group_bytes: int = 128 << 20

    @property
    def schema(self) -> pa.Schema:
        """The columns as they are stored; what directories name becomes a column like others."""
        stored = self.dataset.raw.schema
        return pa.schema([_plain(stored.field(name)) for name in self.columns])

    def write(self, place: Place, mode: Mode, keys: dict[bytes, bytes]) -> None:
        """Write the copy, which appears all at once or not at all.

        Args:
            place: Where to.
            mode: What becomes of a table that is there: "error" or "overwrite".
            keys: What is stored beside it.

        Raises:
            ArgumentError: If what is there does not allow it.
        """
        change = begin(place.filesystem, place.path, mode, url=place.url)
        try:
            counts = self._write_files(change, place)
            told = {**keys, ROW_GROUPS_KEY: json.dumps(counts).encode()}
            change.finish({COMMON: common_metadata(self.schema.with_metadata(told))})
        except BaseException:
            change.abort()
            raise

    def _write_files(self, change: Change, place: Place) -> dict[str, int]:
        """Write all files, and return how many row groups each has."""
        schema, counts = self.schema, dict[str, int]()
        flat = [field.name for field in schema if not (pa.types.is_nested(field.type) or pa.types.is_binary(field.type))]
        with ExitStack() as open_file:
            writer, number = None, -1
            for file, group in row_groups(self._tables(), self.row_group_bytes, self._rows_per_file()):
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
        """Return how many rows each file is to have, as equal as can be; None where only sizes count."""
        if self.files is None:
            return None
        rows = sum(table.num_rows for table in self._read(list(self.full))) if self.full else self._selected().lots.num_rows
        found: list[int] = np.diff(even_edges(0, rows, max(1, min(self.files, rows)))).tolist()
        return found

    def _selected(self) -> Selection:
        return selected(self.dataset, self.dataset.raw, self.dataset.schema, Asked(may_be_empty=True))

    def _tables(self) -> Iterator[pa.Table]:
        """Yield what is copied of each row group."""
        schema = self.schema
        for table in self._read(list(dict.fromkeys([*self.columns, *self.full]))):
            yield table.select(schema.names).cast(schema)
        yield schema.empty_table()

    def _read(self, names: Sequence[str]) -> Iterator[pa.Table]:
        """Yield some columns of each row group, without rows in which one of the full columns is null."""
        selection = self._selected()
        reader = RowGroupReader(selection.snapshot, self.dataset.fs, [Column(name=name, field=None) for name in names])

        def read(lot: int) -> pa.Table:
            loaded = reader.load(Unit.of(selection.lots.units, lot))
            table = pa.table({name: loaded.columns[name] for name in names})
            return table.filter(reduce(pc.and_, (pc.is_valid(table[name]) for name in self.full))) if self.full else table

        return _ahead(read, len(selection.lots))


def _plain(field: pa.Field) -> pa.Field:
    return field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field


def _ahead(read: Callable[[int], pa.Table], count: int) -> Iterator[pa.Table]:
    """Yield what is read of each number, while the next is read already."""
    with ThreadPoolExecutor(1, thread_name_prefix="penstock-copy") as pool:
        coming = pool.submit(read, 0) if count else None
        for number in range(1, count + 1):
            found = coming.result()  # type: ignore[union-attr] # there is one
            coming = pool.submit(read, number) if number < count else None
            yield found


def row_groups(
    tables: Iterator[pa.Table], max_cell_bytes: int, rows_per_file: Sequence[int] | None
) -> Iterator[tuple[int, pa.Table]]:
    """Yield row groups of about so many bytes, each with the number of the file that it belongs to.

    The last may have no rows, where there are none at all.

    Args:
        tables: All rows, in order.
        max_cell_bytes: How large row groups are to be.
        rows_per_file: The rows of each file; None to begin another when one is large.
    """
    left = iter(rows_per_file or ())
    file, room = 0, float(next(left, math.inf))
    held: list[pa.Table] = []
    nbytes = written = 0.0
    for table in tables:
        rest = table
        while rest.num_rows:
            each = max(1.0, rest.nbytes / rest.num_rows)
            count = int(min(rest.num_rows, room, max(1, math.ceil((max_cell_bytes - nbytes) / each))))
            held.append(rest.slice(0, count))
            rest, room, nbytes = rest.slice(count), room - count, nbytes + count * each
            if nbytes >= max_cell_bytes or room == 0:
                yield file, pa.concat_tables(held)
                held, written, nbytes = [], written + nbytes, 0.0
                if room == 0 or (rows_per_file is None and written >= FILE_BYTES):
                    file, room, written = file + 1, float(next(left, math.inf)), 0.0
        last = rest
    if held or (file == 0 and not written):
        yield file, pa.concat_tables(held) if held else last
