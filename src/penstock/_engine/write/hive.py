"""Partitions as names of directories, the way Hive and Spark write them: `day=mon/city=S%2FA`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock._engine.decode.concat import writable_type
from penstock._engine.write.encode import ColumnEncoder, TableEncoder
from penstock._engine.write.schema import of_arrow
from penstock.dtypes import is_encoded
from penstock.errors import ArgumentError, ColumnNotFoundError, DataError
from penstock.formats._hive import NULL

__all__ = ["Partition", "directory", "directory_of_nothing", "partitioned", "split"]

ESCAPED = frozenset([*map(chr, range(32)), "\x7f", *"\"#%'*/:=?\\{[]^"])
"""What Hive writes as %XX; everything else, letters of any language included, stands as it is."""

TESTS = ("is_boolean", "is_integer", "is_floating", "is_string", "is_large_string", "is_date32", "is_timestamp", "is_decimal")


YEAR = r"^(?:000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d{3})-"
"""How the text of a day or a moment begins that all readers of tables take for one: in the years 1 to 9999."""


def partitioned(columns: TableEncoder, names: Sequence[str]) -> TableEncoder:
    """Return columns of which some name directories; these have the types of their values, where they have categories.

    Raises:
        ArgumentError: If one cannot be a name of a directory, is named twice, or nothing is left for the files.
        ColumnNotFoundError: If there is no such field.

    Example:
        >>> from penstock._engine.write.schema import of_arrow
        >>> found = of_arrow(pa.schema({"n": pa.int8(), "day": pa.dictionary(pa.int8(), pa.string())}))
        >>> partitioned(found, ["day"]).named("day").arrow.type
        DataType(string)
    """
    every = tuple(_plain(column) if column.field.name in names else column for column in columns.columns)
    found = replace(columns, columns=every)
    _check(found, names)
    return found


def _plain(column: ColumnEncoder) -> ColumnEncoder:
    """Return a column without categories or views, which no name of a directory tells."""
    kind = column.arrow.type
    plain = writable_type(kind.value_type if is_encoded(kind) else kind)
    plain = pa.string() if pa.types.is_string_view(plain) else plain
    return column if plain == kind else of_arrow(pa.schema([column.arrow.with_type(plain)])).columns[0]


def _check(columns: TableEncoder, names: Sequence[str]) -> None:
    """Refuse columns that cannot name directories."""
    found = tuple(names)
    existing = [column.field.name for column in columns.columns]
    for name in found:
        if name not in existing:
            raise ColumnNotFoundError.of(str(name), existing, table="the schema")
        kind = columns.named(name).arrow.type
        if columns.named(name).is_blob or not any(getattr(pa.types, test)(kind) for test in TESTS):
            msg = (
                f"write got partition_by={name!r}, which is stored as {kind}. Numbers, text, booleans and dates were expected. "
            )
            raise ArgumentError(msg + ("Cast it to date32, or c" if pa.types.is_date64(kind) else "C") + "hoose another field.")
    if len(set(found)) < len(found) or len(found) == len(existing):
        msg = (
            f"write got partition_by={found!r} of the fields {', '.join(existing)}. Different ones were expected, and one left "
        )
        raise ArgumentError(msg + "for the files. Leave some out.")


def directory(values: Iterable[tuple[str, str | None]]) -> str:
    """Return the directory of partition values.

    Example:
        >>> directory([("day", "mon"), ("city", "a/b"), ("x", None)])
        'day=mon/city=a%2Fb/x=__HIVE_DEFAULT_PARTITION__'
    """
    return "/".join(f"{_name(name)}={NULL if value is None else _escaped(value)}" for name, value in values)


def directory_of_nothing(columns: TableEncoder, names: Sequence[str]) -> str:
    """Return a directory for the one file of a table without rows: a zero of each partition column, or a text.

    Readers that find out the types of partitions by their names find none where all are null.

    Example:
        >>> from penstock._engine.write.schema import of_arrow
        >>> columns = of_arrow(pa.schema({"n": pa.int8(), "day": pa.date32(), "city": pa.string()}))
        >>> directory_of_nothing(columns, ["day", "city"])
        'day=1970-01-01/city=no-rows'
    """
    return directory((name, _nothing(columns.named(name).arrow.type)) for name in names)


def _nothing(kind: pa.DataType) -> str:
    """Return the text of a value of a type."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "no-rows"
    zero = pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(bytes(max(kind.bit_width // 8, 1)))])
    return str(zero.cast(pa.string())[0])


def _escaped(text: str) -> str:
    return "".join(f"%{ord(letter):02X}" if letter in ESCAPED else letter for letter in text)


def _name(text: str) -> str:
    """Return a column's name; one that begins with a dot would be hidden."""
    return f"%2E{_escaped(text[1:])}" if text.startswith(".") else _escaped(text)


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Some rows of one directory.

    Attributes:
        directory: Its name below the table; nothing for the table's own.
        table: The rows, without the columns that name the directory.
        nbytes: The bytes that they take, which it takes a while to count.
    """

    directory: str
    table: pa.Table
    nbytes: int


def split(table: pa.Table, names: Sequence[str], first: int = 0) -> list[Partition]:
    """Return the rows of each directory, in their order and without the columns that name it.

    Args:
        table: The rows.
        names: The columns that name directories.
        first: The number of the first row, for messages.

    Raises:
        DataError: If a value would be read as a null, as another or not at all.
    """
    if not names:
        return [Partition("", table, table.nbytes)]
    texts = [_texts(table, name, first) for name in names]
    rest = table.drop_columns(list(names))
    codes = np.zeros(len(table), dtype=np.int64)
    for encoded in texts:
        codes = codes * (len(encoded.dictionary) + 1) + np.asarray(encoded.indices.fill_null(len(encoded.dictionary)))
        _, codes = np.unique(codes, return_inverse=True)  # so that many columns do not overflow
    order = np.argsort(codes, kind="stable")
    edges = [0, *(np.flatnonzero(np.diff(codes[order])) + 1).tolist(), len(order)] if len(order) else [0]
    found = []
    for start, stop in itertools.pairwise(edges):
        rows = order[start:stop]
        values = [(name, text[int(rows[0])].as_py()) for name, text in zip(names, texts, strict=True)]
        part = _rows(rest, rows)
        found.append(Partition(directory(values), part, part.nbytes))
    return found


def _rows(table: pa.Table, rows: npt.NDArray[np.int64]) -> pa.Table:
    """Return some rows; those that lie together are not copied, and neither are large blobs, which come in pieces."""
    if int(rows[-1]) - int(rows[0]) + 1 == len(rows):
        return table.slice(int(rows[0]), len(rows))
    numbers = pa.array(rows)
    columns = []
    for column in table.columns:
        if column.num_chunks == 1:
            columns.append(column.take(numbers))
        else:
            chunks = [chunk for row in rows.tolist() for chunk in column.slice(row, 1).chunks]
            columns.append(pa.chunked_array(chunks, type=column.type))
    return pa.Table.from_arrays(columns, schema=table.schema)


def _texts(table: pa.Table, name: str, first: int) -> pa.DictionaryArray:
    """Return the values of a partition column as text, each once."""
    column = table.column(name)
    found = pa.concat_arrays(column.cast(pa.string()).chunks or [pa.array([], type=pa.string())]).dictionary_encode()
    if pc.any(pc.equal(found.dictionary, NULL), min_count=0).as_py():
        msg = (
            f"Partition field {name!r} has the value {NULL!r}, which is how a null is written. Another was expected. Rename it."
        )
        raise DataError(msg)
    if pa.types.is_temporal(column.type):
        _check_times(column, found, name, first)
    return found


def _check_times(column: pa.ChunkedArray, found: pa.DictionaryArray, name: str, first: int) -> None:
    """Refuse days and moments whose text is read as another one, or as none: a table with one could not be opened."""
    which, rows = np.unique(np.asarray(found.indices.fill_null(-1)), return_index=True)
    rows = rows[which >= 0]
    near = pc.match_substring_regex(found.dictionary, YEAR)
    back = pc.if_else(near, found.dictionary, None).cast(column.type)
    same = pc.equal(back, column.take(pa.array(rows)).combine_chunks()).fill_null(False)  # noqa: FBT003 - what nulls become
    lost = rows[~same.to_numpy(zero_copy_only=False)]
    if not len(lost):
        return
    row = int(lost.min())
    expected = "one that its text tells to the second" if near[found.indices[row].as_py()].as_py() else "a year from 1 to 9999"
    msg = (
        f"Row {first + row}, partition field {name!r}: got {found[row].as_py()}, which cannot be read back from the name of a "
        f"directory. A null or {expected} was expected. Replace it, or partition by another field."
    )
    raise DataError(msg)
