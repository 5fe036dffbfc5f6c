"""Writing a table: rows are checked, encoded in parallel, and appear all at once or not at all."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar, get_args

import pyarrow as pa

from penstock._engine.commit.change import Change, begin
from penstock._engine.commit.target import Mode, check_mode
from penstock._engine.runtime.threads import default_threads
from penstock._engine.storage.filesystem import table_destination
from penstock._engine.write.append import ExistingTable, read_existing
from penstock._engine.write.encode import TableEncoder
from penstock._engine.write.errors import storage_errors
from penstock._engine.write.hive import partition_encoder
from penstock._engine.write.job import Missing, OpenWrite, WriteJob, abandon
from penstock._engine.write.parquet_options import Layout, LoggedChange, LoggedFormat, WrittenFormat
from penstock._engine.write.schema import encoder_from_arrow, encoder_from_schema
from penstock._engine.write.validate import describe
from penstock._write.input import TabularInput, as_columns, is_batch, is_tabular, read_tabular, without_unnamed_index
from penstock._write.progress import ProgressLine
from penstock._write.source import WriteInput, read_dataset, with_format_codecs
from penstock._write.type_inference import FirstRows, infer_encoder
from penstock.errors import ArgumentError, DataError
from penstock.formats import known_formats
from penstock.model import Place
from penstock.schema import Schema

__all__ = ["Writer", "write"]

Result = TypeVar("Result")


class Writer:
    """A table that is being written: rows are added, and appear when it is closed.

    `penstock.write` returns it. As a context manager it is closed at the end of the block, or aborted if the block raises.
    A writer that is neither closed nor aborted writes nothing, and a `ResourceWarning` says so if it had rows.

    A row that does not fit is refused where it is given, and others can follow. Errors of encoding and of storage come
    later: the next call raises them, and the write is aborted.

    Attributes:
        num_rows: Rows added so far.
        files: The names of the files, relative to the table, once it is closed.

    Example:
        >>> import tempfile
        >>> with write(tempfile.mkdtemp() + "/t") as table:
        ...     table.append({"id": 1, "name": "one"})
        ...     table.extend({"id": [2, 3], "name": ["two", "three"]})
        >>> table.num_rows, len(table.files)
        (3, 1)
    """

    def __init__(self, begun: OpenWrite, encoder: TableEncoder | None, progress: ProgressLine) -> None:
        """Store the write; `penstock.write` calls it."""
        self.num_rows = 0
        self.files: tuple[str, ...] = ()
        self._begun, self._progress = begun, progress
        self._job: WriteJob | None = None
        self._next_row = 0
        self._state = "open"
        self._was_batch: bool | None = None
        self._has_schema = encoder is not None
        self._first_rows = FirstRows(fill=begun.missing == "null")
        self._finalizer: weakref.finalize[..., Any] = weakref.finalize(self, abandon, begun, self._first_rows.rows)
        if encoder is not None or begun.table is not None:
            self._start(encoder)

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one row.

        Args:
            row: A cell for each field. Fields that the `Schema` of this write says are nullable may be missing, and with
                `missing="null"` all that are nullable. Arrays may be changed afterwards.

        Without a schema, rows whose cells are lists, mappings or null wait for up to 1,000 rows that show their types.

        Raises:
            ArgumentError: If no type follows from the first rows.
            DataError: If a cell does not fit its field. The row is not written; others can follow.
        """
        self._check()
        number = self._next_row
        self._next_row += 1
        if not isinstance(row, Mapping):
            raise DataError(
                f"Row {number} is {describe(row)}; expected a mapping of field names to cells. Give one; batches go to extend."
            )
        if self._job is None and self._first_rows.must_wait(row):
            self._first_rows.add(row, number)
            self._count(1)
            if self._first_rows.is_full:
                self._write_first_rows()
            return
        job = self._job or self._start(self._infer({name: [cell] for name, cell in row.items()}))
        cells = job.encoder.check_row(row, number)
        try:  # not `_or_abort`: this is called for each row
            job.add(cells, number)
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
            DataError: If a cell does not fit its field. The batch or row with that cell is not written; `data` before it
                is.
        """
        self._check()
        if isinstance(data, Mapping):
            self._batch(data)
        elif (dataset := read_dataset(data)) is not None:
            self._dataset(dataset)
        elif (tabular := self._read_tabular(data)) is not None:
            self._tabular(tabular)
        elif isinstance(data, Iterable) and not isinstance(data, (str, bytes, bytearray)):
            for item in data:
                self._item(item)
        else:
            raise ArgumentError(
                f"write() got {describe(data)} as data; expected batches, rows, Arrow tables, data frames, or an iterable of "
                "them. Give one of them."
            )

    def close(self) -> None:
        """Write the remaining rows, and make the table visible.

        Raises:
            ArgumentError: If the write was aborted, or there is neither a schema nor a row.
        """
        if self._state == "closed":
            return
        self._check()
        self._write_first_rows()
        self.files = self._or_abort(self._finish)
        self._state = "closed"
        self._finalizer.detach()
        self._progress.end(self.num_rows)

    def _finish(self) -> tuple[str, ...]:
        if self._job is None:
            raise ArgumentError(f"Nothing was written to {self._begun.place.url}; expected rows or a schema. Give one of them.")
        return self._job.finish()

    def abort(self) -> None:
        """Abort the write: none of its rows appear, and existing data stays."""
        if self._state == "open":
            self._state = "aborted"
            self._progress.end(None)
            self._finalizer.detach()
            (self._begun.change if self._job is None else self._job).abort()

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the table, or abort the write if the block raised."""
        if kind is not None:
            self.abort()
        elif self._state == "open":
            self.close()

    def __repr__(self) -> str:
        """Return the table, its rows and its state."""
        return f"penstock.Writer({self._begun.place.url!r}, num_rows={self.num_rows}, {self._state})"

    def _write_all(self, data: Any) -> Self:
        """Write all data and close; unlike in `extend`, a mapping may be a row."""
        with self:
            if isinstance(data, Mapping):
                self._item(data, alone=True)
            else:
                self.extend(data)
        return self

    @property
    def _encoder(self) -> TableEncoder | None:
        return None if self._job is None else self._job.encoder

    def _start(self, encoder: TableEncoder | None) -> WriteJob:
        """Start the job of a write whose columns are known now."""
        job = self._job = WriteJob(self._begun, encoder)
        self._finalizer.detach()
        self._finalizer = weakref.finalize(self, job.abandon)
        return job

    def _or_abort(self, call: Callable[[], Result]) -> Result:
        """Return the result of a call; if it raises, abort the write."""
        try:
            return call()
        except BaseException:
            self.abort()
            raise

    def _infer(self, batch: Mapping[str, Any]) -> TableEncoder:
        return infer_encoder(batch, self._begun.add_codecs, nullable=self._begun.missing == "null")

    def _write_first_rows(self) -> None:
        """Infer types from the first rows, and write them."""
        if self._first_rows.rows:
            self._or_abort(self._add_first_rows)

    def _add_first_rows(self) -> None:
        job = self._start(self._first_rows.infer_encoder(self._begun.add_codecs))
        for number, row in self._first_rows.rows:
            job.add(job.encoder.check_row(row, number), number)
        self._first_rows.rows.clear()

    def _count(self, rows: int) -> None:
        self.num_rows += rows
        self._progress.update(self.num_rows)

    def _check(self) -> None:
        """Refuse a write that has ended, and raise the error of earlier rows."""
        if self._state != "open":
            raise ArgumentError(
                f"The write to {self._begun.place.url} was {self._state}; expected an open one. Begin another: "
                "penstock.write(...)."
            )
        if self._job is not None:
            try:  # not `_or_abort`: this is called for each row
                self._job.check()
            except BaseException:
                self.abort()
                raise

    def _item(self, item: Any, *, alone: bool = False) -> None:
        """Write a row, a batch or tabular data."""
        if isinstance(item, Mapping):
            if self._is_batch(item, alone=alone):
                self._batch(item)
            else:
                self.append(item)
            return
        tabular = self._read_tabular(item)
        if tabular is None:
            raise DataError(
                f"Row {self._next_row} is {describe(item)}; expected a mapping of names to cells, a batch, an Arrow table or a "
                "data frame. Give one of them."
            )
        self._tabular(tabular, alone=False)

    def _is_batch(self, item: Mapping[str, Any], *, alone: bool) -> bool:
        """Return whether a mapping is a batch, and not a row."""
        if self._first_rows.rows and self._first_rows.has_cells_like(item):
            self._was_batch = False
        else:
            options: dict[str, Any] = {"alone": alone, "before": self._was_batch, "has_schema": self._has_schema}
            self._was_batch = is_batch(item, self._encoder, self._next_row, **options)
        return self._was_batch

    def _dataset(self, data: WriteInput) -> None:
        """Write the rows of a dataset; its columns are known, and get the codecs of the format.

        Cells whose stored form stays the same are not decoded, which keeps nulls and all that a codec would lose.
        """
        self._write_first_rows()
        if self._job is None and data.encoder is not None:
            is_plain = self._begun.format is None
            self._start(data.encoder if is_plain else with_format_codecs(data.encoder, self._begun.add_codecs))
        if data.stored is not None and self._encoder is not None and self._encoder.can_copy(data.encoder):
            for table in data.stored:
                self._item(table)
            return
        for item in data.items:
            if data.batched:
                self._batch(item)
            else:
                self.append(item)

    def _read_tabular(self, data: Any) -> TabularInput | None:
        """Return Arrow or pandas data as the columns of the table; None for other data."""
        if is_tabular(data):
            self._write_first_rows()
        return read_tabular(data, self._encoder, index=self._begun.index)

    def _tabular(self, data: TabularInput, *, alone: bool = True) -> None:
        if self._job is None and data.schema is not None:
            encoder = encoder_from_arrow(data.schema)
            self._start(encoder if alone else encoder.with_wide_indices())
        for batch in data.batches:
            self._batch(batch, shared=data.shared)

    def _batch(self, batch: Mapping[str, Any], *, shared: bool = False) -> None:
        self._check()
        self._write_first_rows()
        first = self._next_row
        columns = as_columns(batch, first)
        self._next_row += max((len(cells) for cells in columns.values() if cells is not None), default=0)
        job = self._job or self._start(self._infer(columns))
        chunk = job.encoder.check_batch(columns, first)
        self._or_abort(lambda: job.put(chunk, shared=shared))
        self._count(chunk.num_rows)


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
        data: All rows: what `Writer.extend` accepts. The writer is closed then. Without data, add rows to the writer.
        mode: What happens to an existing table: "error" refuses it, "append" adds to it, "overwrite" replaces it.
        partition_by: Fields whose values become names of directories, outermost first, as in Hive and Spark.
        index: Whether the named index of a pandas data frame is stored, as columns. By default it is stored if the schema
            or the table has a column of its name, and refused otherwise. An index without a name is never stored.
        missing: What happens if rows, batches, Arrow tables or data frames lack a column. "error" refuses them, unless
            `schema` is a `Schema` whose field is nullable. "null" writes nulls, unless the column may not be null.
        row_group_mb: The size of a row group, before Parquet compresses it.
        row_group_rows: The number of rows of a row group, in place of its size.
        file_mb: The size at which a file ends and the next begins.
        compression: The compression of columns whose codec does not compress.
        threads: The number of threads that encode cells; by default one for each processor.
        progress: Whether to show the number of rows on standard error.
        filesystem: A filesystem of pyarrow or fsspec; the source is a path in it.
        storage_options: Options of fsspec for the URL: keys, endpoints.
        format: The format whose metadata or log is written: "petastorm" or "delta", `PetastormFormat()` or `DeltaFormat()`
            of `penstock.formats`; by default plain Parquet.

    Raises:
        ArgumentError: If an argument is invalid, or the existing table does not allow it.
        DataError: If a row does not fit the schema.

    Example:
        >>> import tempfile
        >>> write(tempfile.mkdtemp() + "/t", data={"id": [1, 2], "name": ["one", "two"]}).num_rows
        2
    """
    layout = Layout(row_group_mb, row_group_rows, file_mb, compression=compression, partition_by=_check_names(partition_by))
    place = table_destination(source, filesystem=filesystem, options=storage_options)
    threads, checked_format = _check_threads(threads), _check_format(format)
    if index is not None and not isinstance(index, bool):
        msg = f"write() got index={index!r}; expected True or False. Write index=True to store the named index of data frames."
        raise ArgumentError(msg)
    if missing not in get_args(Missing):
        msg = (
            f'write() got missing={missing!r}; expected "error" or "null". Write missing="null" to have nulls in columns that '
        )
        raise ArgumentError(msg + "rows lack.")
    encoder = _schema_encoder(schema, checked_format, layout.partition_by)
    progress_line = ProgressLine(place.url, shown=progress)
    change, layout = _begin(place, mode, layout, checked_format)
    try:
        begun = OpenWrite(
            place=place,
            mode=mode,
            change=change,
            layout=layout,
            threads=threads,
            table=_existing_table(place, mode, change),
            format=checked_format,
            index=index,
            missing=missing,
        )
        writer = Writer(begun, encoder, progress_line)
    except BaseException:
        change.abort()
        raise
    return writer if data is None else writer._write_all(data)  # noqa: SLF001 - of this module


def _begin(place: Place, mode: Mode, layout: Layout, kind: WrittenFormat | LoggedFormat | None) -> tuple[Change, Layout]:
    """Return a new change of a table, and the layout with the partition columns that a log has."""
    if not isinstance(kind, LoggedFormat):
        with storage_errors("The directory", place.url):
            return begin(place.filesystem, place.path, mode, url=place.url), layout
    check_mode(mode)
    with storage_errors("The log", place.url):
        change = kind.begin(place, mode)
    return change, replace(layout, partition_by=layout.partition_by or change.partition_by)


def _existing_table(place: Place, mode: Mode, change: Change) -> ExistingTable | None:
    """Return the table that is appended to; None for a new one."""
    if not isinstance(change, LoggedChange):
        return read_existing(place) if mode == "append" else None
    if change.arrow is None:
        return None
    return ExistingTable(url=place.url, arrow=change.arrow, partition_by=change.partition_by, num_files=0)


def _schema_encoder(schema: Any, kind: WrittenFormat | LoggedFormat | None, names: Sequence[str]) -> TableEncoder | None:
    """Return the encoder of a schema, with partition columns."""
    if schema is None:
        return None
    if isinstance(schema, pa.Schema):
        return partition_encoder(encoder_from_arrow(without_unnamed_index(schema)), names)
    if isinstance(schema, Schema):
        return partition_encoder(encoder_from_schema(schema if kind is None else kind.suited(schema)), names)
    raise ArgumentError(
        f"write() got schema of type {type(schema).__name__}; expected a penstock.Schema or a pyarrow.Schema. "
        "Give one, or write data by its name: penstock.write(url, data=...)."
    )


def _check_format(given: Any) -> WrittenFormat | LoggedFormat | None:
    if given is None or given == "parquet":
        return None
    if isinstance(given, (WrittenFormat, LoggedFormat)) and not isinstance(given, type):
        return given
    known = {each.name: each for each in known_formats() if isinstance(each, (WrittenFormat, LoggedFormat))}
    if isinstance(given, str) and given in known:
        return known[given]
    raise ArgumentError(
        f"write() got format={given!r}; expected a format that can be written: {', '.join(map(repr, sorted(known)))}, or an "
        "object like penstock.formats.delta.DeltaFormat(). Give one, or leave it out for plain Parquet."
    )


def _check_names(partition_by: Any) -> tuple[str, ...]:
    is_list = isinstance(partition_by, Iterable) and not isinstance(partition_by, str)
    names = tuple(partition_by) if is_list else (partition_by,)
    if not all(isinstance(name, str) for name in names):
        msg = (
            f"write() got partition_by={partition_by!r}; expected the name of a field, or a list of names. Give them, or leave "
        )
        raise ArgumentError(msg + "it out.")
    return names


def _check_threads(threads: int | None) -> int:
    if threads is None:
        return default_threads()
    if type(threads) is not int or threads < 1:
        raise ArgumentError(f"write() got threads={threads!r}; expected a positive integer. Give one, or leave it out.")
    return threads
