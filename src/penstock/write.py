"""Writing a table: rows are checked, encoded side by side, and appear all at once or not at all."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self, get_args

import pyarrow as pa

from penstock._engine.commit.change import Change, Mode, begin
from penstock._engine.commit.target import check_mode
from penstock._engine.runtime.threads import default_threads
from penstock._engine.storage.filesystem import table_destination
from penstock._engine.write.append import ExistingTable, existing
from penstock._engine.write.encode import TableEncoder
from penstock._engine.write.errors import refusals_told
from penstock._engine.write.hive import partitioned
from penstock._engine.write.input import Tabular, as_columns, is_batch, is_tabular, tabular, without_unnamed_index
from penstock._engine.write.job import Missing, OpenWrite, WriteJob, forsake
from penstock._engine.write.parquet_options import Layout, LoggedFormat, WrittenFormat
from penstock._engine.write.progress import Progress, progress_line
from penstock._engine.write.schema import of_arrow, of_schema
from penstock._engine.write.type_inference import FirstRows, columns_of_batch
from penstock._engine.write.validate import told
from penstock._write_input import WriteInput, given, suited
from penstock.errors import ArgumentError, DataError
from penstock.formats import known_formats
from penstock.model import Place
from penstock.schema import Schema

__all__ = ["Writer", "write"]


class Writer:
    """A table that is being written: rows are appended, and appear when it is closed.

    `penstock.write` makes it. As a context manager it is closed at the end of the block, or given up if the block raises.
    One that is neither closed nor given up leaves nothing, and a `ResourceWarning` says so if it had rows.

    A row that does not fit is refused where it is given, and the others can go on. What goes wrong later, while cells are
    encoded or files written, is raised by the next call, and gives up the write.

    Attributes:
        num_rows: Rows taken so far.
        files: The names of the files, relative to the table, once it is closed.

    Example:
        >>> import tempfile
        >>> with write(tempfile.mkdtemp() + "/t") as table:
        ...     table.append({"id": 1, "name": "one"})
        ...     table.extend({"id": [2, 3], "name": ["two", "three"]})
        >>> table.num_rows, len(table.files)
        (3, 1)
    """

    def __init__(self, begun: OpenWrite, columns: TableEncoder | None, progress: Progress) -> None:
        """Store what was begun; `penstock.write` calls it."""
        self.num_rows = 0
        self.files: tuple[str, ...] = ()
        self._begun, self._progress = begun, progress
        self._writing: WriteJob | None = None
        self._given = 0
        self._state = "open"
        self._batched: bool | None = None
        self._stated = columns is not None
        self._first = FirstRows(fill=begun.missing == "null")
        self._end: weakref.finalize[..., Any] = weakref.finalize(self, forsake, begun, self._first.rows)
        if columns is not None or begun.table is not None:
            self._start(columns)

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one row.

        Args:
            row: A cell for each field. Fields that the `Schema` of this write says are nullable may be missing, and with
                `missing="null"` all that are nullable. Arrays may be changed afterwards.

        Without a schema, rows whose cells are lists, mappings or null wait for up to 1,000 rows that tell their types.

        Raises:
            ArgumentError: If no type follows from the first rows.
            DataError: If a cell does not fit its field. The row is not written; others can follow.
        """
        self._check()
        number = self._given
        self._given += 1
        if not isinstance(row, Mapping):
            msg = (
                f"Row {number} is {told(row)}. A mapping of field names to cells was expected. Give one; batches go to extend."
            )
            raise DataError(msg)
        if self._writing is None and self._first.waits(row):
            self._first.add(row, number)
            self._count(1)
            if self._first.full:
                self._settle()
            return
        writing = self._writing or self._start(self._inferred({name: [cell] for name, cell in row.items()}))
        cells = writing.columns.row(row, number)
        try:
            writing.add(cells, number)
        except BaseException:
            self.abort()
            raise
        self._count(1)

    def extend(self, data: Any) -> None:
        """Write many rows.

        Args:
            data: A batch (a mapping of columns, rows first), an Arrow table, batch or reader, a pandas data frame, a dataset
                or loader of ours, or an iterable of rows and the first three. In an iterable a mapping is a batch if every
                value is a list, or an array with one dimension more than a cell; else a row. Without a schema a mapping of
                arrays alone could be both, and is refused there; one of lists of different lengths is a row.

        Raises:
            DataError: If a cell does not fit its field. Of the batch or row that has it nothing is written; what came
                before it in `data` is.
        """
        self._check()
        if isinstance(data, Mapping):
            self._batch(data)
        elif (ours := given(data)) is not None:
            self._handed_out(ours)
        elif (found := self._as_tabular(data)) is not None:
            self._tabular(found)
        elif isinstance(data, Iterable) and not isinstance(data, (str, bytes, bytearray)):
            for item in data:
                self._item(item)
        else:
            msg = f"write got {told(data)} to write. Batches, rows, Arrow tables, data frames or an iterable of them were "
            raise ArgumentError(msg + "expected. Give one of them.")

    def close(self) -> None:
        """Write what is left, and let the table appear.

        Raises:
            ArgumentError: If the write was given up, or there is neither a schema nor a row.
        """
        if self._state == "closed":
            return
        self._check()
        self._settle()
        try:
            if self._writing is None:
                msg = f"Nothing was written to {self._begun.place.url}, and no schema was given. One was expected. Give it."
                raise ArgumentError(msg)  # noqa: TRY301 - the write is given up like for any other reason
            self.files = self._writing.finish()
        except BaseException:
            self.abort()
            raise
        self._state = "closed"
        self._end.detach()
        self._progress.end(self.num_rows)

    def abort(self) -> None:
        """Give up the write: nothing of it appears, and what was there before stays."""
        if self._state == "open":
            self._state = "given up"
            self._progress.end(None)
            self._end.detach()
            (self._begun.change if self._writing is None else self._writing).abort()

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the table, or give it up if the block raised; one that the block has given up stays so."""
        if kind is not None:
            self.abort()
        elif self._state == "open":
            self.close()

    def __repr__(self) -> str:
        """Return what is written where."""
        return f"penstock.Writer({self._begun.place.url!r}, num_rows={self.num_rows}, {self._state})"

    def _fill(self, data: Any) -> Self:
        """Write all that there is to write, and close; a mapping may be a row too."""
        with self:
            if isinstance(data, Mapping):
                self._item(data, alone=True)
            else:
                self.extend(data)
        return self

    @property
    def _columns(self) -> TableEncoder | None:
        return None if self._writing is None else self._writing.columns

    def _start(self, columns: TableEncoder | None) -> WriteJob:
        """Go on from a write that was begun to one whose columns are known."""
        writing = WriteJob(self._begun, columns)
        self._writing = writing
        self._end.detach()
        self._end = weakref.finalize(self, writing.forsake)
        return writing

    def _inferred(self, batch: Mapping[str, Any]) -> TableEncoder:
        """Return the columns that follow from a batch."""
        return columns_of_batch(batch, self._begun.suited, nullable=self._begun.missing == "null")

    def _settle(self) -> None:
        """Write the first rows, which have waited for each other to tell their types."""
        if not self._first.rows:
            return
        try:
            writing = self._start(self._first.columns(self._begun.suited))
            for number, row in self._first.rows:
                writing.add(writing.columns.row(row, number), number)
        except BaseException:
            self.abort()
            raise
        self._first.rows.clear()

    def _count(self, rows: int) -> None:
        self.num_rows += rows
        self._progress.update(self.num_rows)

    def _check(self) -> None:
        """Refuse a write that has ended, and raise what has gone wrong with this one."""
        if self._state != "open":
            msg = f"The write to {self._begun.place.url} was {self._state}. An open one was expected. "
            raise ArgumentError(msg + "Begin another: penstock.write(...).")
        if self._writing is not None:
            try:
                self._writing.check()
            except BaseException:
                self.abort()
                raise

    def _item(self, item: Any, *, alone: bool = False) -> None:
        """Write one of many: a row, a batch or something tabular."""
        if isinstance(item, Mapping):
            if self._is_batch(item, alone=alone):
                self._batch(item)
            else:
                self.append(item)
            return
        found = self._as_tabular(item)
        if found is None:
            msg = (
                f"Row {self._given} is {told(item)}. A mapping of names to cells, a batch, an Arrow table or a data frame was "
            )
            raise DataError(msg + "expected. Give one of them.")
        self._tabular(found, alone=False)

    def _is_batch(self, item: Mapping[str, Any], *, alone: bool) -> bool:
        """Return whether a mapping is a batch, and not a row."""
        if self._first.rows and self._first.has_cells_like(item):
            self._batched = False
        else:
            self._batched = is_batch(item, self._columns, self._given, alone=alone, before=self._batched, stated=self._stated)
        return self._batched

    def _handed_out(self, ours: WriteInput) -> None:
        """Write what a dataset hands out; its columns are known, and get the codecs of the format.

        Cells that are to be stored as they are already are not decoded: nulls stay, and so does what a codec would lose.
        """
        self._settle()
        if self._writing is None and ours.columns is not None:
            self._start(ours.columns if self._begun.format is None else suited(ours.columns, self._begun.suited))
        if ours.stored is not None and self._columns is not None and self._columns.alike(ours.columns):
            for part in ours.stored:
                self._item(part)
            return
        for item in ours.items:
            if ours.batched:
                self._batch(item)
            else:
                self.append(item)

    def _as_tabular(self, data: Any) -> Tabular | None:
        """Return Arrow or pandas data as columns, by those of the table; None for anything else."""
        if is_tabular(data):
            self._settle()
        return tabular(data, self._columns, index=self._begun.index)

    def _tabular(self, data: Tabular, *, alone: bool = True) -> None:
        if self._writing is None and data.schema is not None:
            self._start(of_arrow(data.schema) if alone else of_arrow(data.schema).roomy())
        for batch in data.batches:
            self._batch(batch, lent=data.lent)

    def _batch(self, batch: Mapping[str, Any], *, lent: bool = False) -> None:
        self._check()
        self._settle()
        first = self._given
        columns = as_columns(batch, first)
        self._given += max((len(cells) for cells in columns.values() if cells is not None), default=0)
        writing = self._writing or self._start(self._inferred(columns))
        chunk = writing.columns.batch(columns, first)
        try:
            writing.put(chunk, lent=lent)
        except BaseException:
            self.abort()
            raise
        self._count(chunk.rows)


def write(  # noqa: PLR0913 - each says one thing about the table, and all but the first have a default
    source: str | os.PathLike[str],
    schema: Schema | pa.Schema | None = None,
    data: Any = None,
    *,
    mode: Mode = "error",
    partition_by: str | Sequence[str] = (),
    index: bool | None = None,
    missing: Missing = "error",
    row_group_mb: float = 64,
    row_group_rows: int | None = None,
    file_mb: float = 512,
    compression: str | None = "zstd",
    threads: int | None = None,
    progress: bool = False,
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    format: WrittenFormat | LoggedFormat | str | None = None,  # noqa: A002 - the word for it
) -> Writer:
    """Write a table of Parquet files, which appears all at once or not at all; return its writer.

    Args:
        source: The directory to write to: a path or a URL.
        schema: The columns, as a `Schema` or as Arrow's. By default those of the table that is appended to, or of the data.
        data: All rows: what `Writer.extend` takes. The writer is closed then; else rows are given to it.
        mode: What becomes of a table that is there: "error" refuses it, "append" adds to it, "overwrite" replaces it.
        partition_by: Fields whose values name directories, outermost first, as Hive and Spark do.
        index: Whether the named index of a pandas data frame is stored, as columns. By default it is stored if the schema
            or the table has a column of its name, and refused otherwise. An index without a name is never stored.
        missing: What becomes of a column that rows, batches, Arrow tables or data frames lack. "error" refuses them, unless
            `schema` is a `Schema` whose field is nullable. "null" writes nulls, unless the column may not be null.
        row_group_mb: The size of a row group, before Parquet compresses it.
        row_group_rows: The rows of a row group, if it is to be cut by them and not by its size.
        file_mb: The size at which a file is ended and another begun.
        compression: The compression of columns whose codec does not compress.
        threads: How many threads encode cells; by default one for each processor.
        progress: Whether to show on standard error how far it has come.
        filesystem: A filesystem of pyarrow or fsspec, where the source is a path in it.
        storage_options: What fsspec is told to open the URL with: keys, endpoints.
        format: What is written beside Parquet files: "petastorm" or "delta", `PetastormFormat()` or `DeltaFormat()` of
            `penstock.formats`, or nothing.

    Raises:
        ArgumentError: If an argument cannot be meant, or the table that is there does not allow it.
        DataError: If a row does not fit the schema.

    Example:
        >>> import tempfile
        >>> write(tempfile.mkdtemp() + "/t", data={"id": [1, 2], "name": ["one", "two"]}).num_rows
        2
    """
    layout = Layout(row_group_mb, row_group_rows, file_mb, compression=compression, partition_by=_checked_names(partition_by))
    place = table_destination(source, filesystem=filesystem, options=storage_options)
    start = _Start(
        mode=mode,
        layout=layout,
        threads=_checked_threads(threads),
        format=_checked_format(format),
        index=_checked_index(index),
        missing=_checked_missing(missing),
    )
    writer = _begun(place, start, _columns_of(schema, start), progress_line(place.url, shown=progress))
    return writer if data is None else writer._fill(data)  # noqa: SLF001 - of this module


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """What was asked of a write, checked."""

    mode: Mode
    layout: Layout
    threads: int
    format: WrittenFormat | LoggedFormat | None
    index: bool | None
    missing: Missing

    def begun(self, place: Place, change: Change, table: ExistingTable | None, layout: Layout) -> OpenWrite:
        """Return the write that was begun with a change of a table."""
        return OpenWrite(
            place=place,
            change=change,
            table=table,
            layout=layout,
            mode=self.mode,
            threads=self.threads,
            format=self.format,
            index=self.index,
            missing=self.missing,
        )


def _begun(place: Place, start: _Start, columns: TableEncoder | None, progress: Progress) -> Writer:
    """Return a writer that was begun, or leave nothing."""
    if isinstance(start.format, LoggedFormat):
        return _begun_logged(place, start, start.format, columns, progress)
    with refusals_told("The directory", place.url):
        change = begin(place.filesystem, place.path, start.mode, url=place.url)
    try:
        table = existing(place) if start.mode == "append" else None
        return Writer(start.begun(place, change, table, start.layout), columns, progress)
    except BaseException:
        change.abort()
        raise


def _begun_logged(place: Place, start: _Start, kind: LoggedFormat, columns: TableEncoder | None, progress: Progress) -> Writer:
    """Return a writer of a table with a log, or leave nothing."""
    check_mode(start.mode)
    with refusals_told("The log", place.url):
        change = kind.begin(place, start.mode)
    layout, table = start.layout, None
    if change.arrow is not None:
        table = ExistingTable(url=place.url, arrow=change.arrow, partition_by=change.partition_by, files=0)
        # The log says by what a table is partitioned, also to those who do not.
        layout = replace(layout, partition_by=layout.partition_by or change.partition_by)
    try:
        return Writer(start.begun(place, change, table, layout), columns, progress)
    except BaseException:
        change.abort()
        raise


def _columns_of(schema: Any, start: _Start) -> TableEncoder | None:
    """Return the columns of a schema, which can be partitioned as asked."""
    if schema is None:
        return None
    if not isinstance(schema, (Schema, pa.Schema)):
        msg = (
            f"write() got schema of type {type(schema).__name__}; expected a penstock.Schema or a pyarrow.Schema. "
            "Give one, or write data by its name: penstock.write(url, data=...)."
        )
        raise ArgumentError(msg)
    if isinstance(schema, pa.Schema):
        found = of_arrow(without_unnamed_index(schema))
    else:
        found = of_schema(schema if start.format is None else start.format.suited(schema))
    return partitioned(found, start.layout.partition_by)


def _checked_format(given: Any) -> WrittenFormat | LoggedFormat | None:
    if (
        given is None
        or given == "parquet"
        or (isinstance(given, (WrittenFormat, LoggedFormat)) and not isinstance(given, type))
    ):
        return None if given == "parquet" else given
    known = {found.name: found for found in known_formats() if isinstance(found, (WrittenFormat, LoggedFormat))}
    if isinstance(given, str) and given in known:
        return known[given]
    names = ", ".join(repr(name) for name in sorted(known))
    msg = f"write got format={given!r}. A format that can be written was expected: {names}, or an object like "
    raise ArgumentError(msg + "penstock.formats.delta.DeltaFormat(). Give one, or leave it out for plain Parquet.")


def _checked_names(given: Any) -> tuple[str, ...]:
    """Return the names of the columns that become directories."""
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(isinstance(name, str) for name in names):
        msg = f"write got partition_by={given!r}. The name of a field, or a list of names, was expected. Give it, or "
        raise ArgumentError(msg + "leave it out.")
    return names


def _checked_index(index: Any) -> bool | None:
    if index is not None and not isinstance(index, bool):
        msg = f"write() got index={index!r}; expected True or False. Write index=True to store the named index of data frames."
        raise ArgumentError(msg)
    return index


def _checked_missing(missing: Any) -> Missing:
    if missing in get_args(Missing):
        found: Missing = missing
        return found
    msg = (
        f'write() got missing={missing!r}; expected "error" or "null". Write missing="null" to have nulls in columns that rows '
    )
    raise ArgumentError(msg + "lack.")


def _checked_threads(threads: int | None) -> int:
    if threads is None:
        return default_threads()
    if type(threads) is not int or threads < 1:
        msg = f"write got threads={threads!r}. A whole number from 1 on was expected. Give one, or leave it out."
        raise ArgumentError(msg)
    return threads
