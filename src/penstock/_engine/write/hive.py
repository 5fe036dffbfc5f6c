"""Partitions as directory names, in the way of Hive and Spark: `day=mon/city=S%2FA`."""

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
from penstock._engine.write.schema import encoder_from_arrow
from penstock.dtypes import is_encoded
from penstock.errors import ArgumentError, ColumnNotFoundError, DataError
from penstock.formats._hive import NULL

ESCAPED = frozenset([*map(chr, range(32)), "\x7f", *"\"#%'*/:=?\\{[]^"])
"""The characters that Hive writes as %XX; all others, letters of any language included, stay."""

TYPE_TESTS = tuple(
    getattr(pa.types, f"is_{name}")
    for name in ("boolean", "integer", "floating", "string", "large_string", "date32", "timestamp", "decimal")
)
"""Tests of the types that partition columns can have."""

YEAR = r"^(?:000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d{3})-"
"""The beginning of a day or moment that all readers recognise: in the years 1 to 9999."""


def partition_encoder(encoder: TableEncoder, names: Sequence[str]) -> TableEncoder:
    """Return an encoder whose partition columns have plain types, without categories or views."""
    columns = tuple(_plain_column(column) if column.field.name in names else column for column in encoder.columns)
    existing = [column.field.name for column in columns]
    encoder = replace(encoder, columns=columns)
    for name in names:
        if name not in existing:
            raise ColumnNotFoundError.of(str(name), existing, table="the schema")
        column = encoder.named(name)
        kind = column.arrow.type
        if column.is_blob or not any(test(kind) for test in TYPE_TESTS):
            raise ArgumentError(
                f"write() got partition_by={name!r}, which is stored as {kind}; expected numbers, text, booleans or dates. "
                + ("Cast it to date32, or choose another field." if pa.types.is_date64(kind) else "Choose another field.")
            )
    if len(set(names)) < len(names) or len(names) == len(existing):
        raise ArgumentError(
            f"write() got partition_by={tuple(names)!r} of the fields {', '.join(existing)}; expected different fields, and at "
            "least one left for the files. Leave some out."
        )
    return encoder


def _plain_column(column: ColumnEncoder) -> ColumnEncoder:
    """Return a column without categories or views: directory names cannot express them."""
    kind = column.arrow.type
    plain = writable_type(kind.value_type if is_encoded(kind) else kind)
    plain = pa.string() if pa.types.is_string_view(plain) else plain
    return column if plain == kind else encoder_from_arrow(pa.schema([column.arrow.with_type(plain)])).columns[0]


def directory(values: Iterable[tuple[str, str | None]]) -> str:
    """Return the directory of partition values.

    Example:
        >>> directory([("day", "mon"), ("city", "a/b"), ("x", None)])
        'day=mon/city=a%2Fb/x=__HIVE_DEFAULT_PARTITION__'
    """
    return "/".join(f"{_escape_name(name)}={NULL if value is None else _escape(value)}" for name, value in values)


def empty_table_directory(encoder: TableEncoder, names: Sequence[str]) -> str:
    """Return the directory of the one file of a table without rows: a zero of each partition column, or a text.

    Readers that infer the types of partition columns from names cannot infer any from nulls.
    """
    return directory((name, _zero_text(encoder.named(name).arrow.type)) for name in names)


def _zero_text(kind: pa.DataType) -> str:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "no-rows"
    zero = pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(bytes(max(kind.bit_width // 8, 1)))])
    return str(zero.cast(pa.string())[0])


def _escape(text: str) -> str:
    return "".join(f"%{ord(letter):02X}" if letter in ESCAPED else letter for letter in text)


def _escape_name(text: str) -> str:
    """Return the escaped name of a column; a dot at its beginning would hide the directory."""
    return f"%2E{_escape(text[1:])}" if text.startswith(".") else _escape(text)


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Rows of one directory, whose name is relative to the table; computing their size is slow."""

    directory: str
    table: pa.Table
    nbytes: int


def split_partitions(table: pa.Table, names: Sequence[str], first: int = 0) -> list[Partition]:
    """Return the rows of each directory in their order, without the partition columns; `first` is for messages."""
    if not names:
        return [Partition("", table, table.nbytes)]
    texts = [_encode_texts(table, name, first) for name in names]
    rest = table.drop_columns(list(names))
    codes = np.zeros(len(table), dtype=np.int64)
    for encoded in texts:
        codes = codes * (len(encoded.dictionary) + 1) + np.asarray(encoded.indices.fill_null(len(encoded.dictionary)))
        _, codes = np.unique(codes, return_inverse=True)  # so that many columns do not overflow
    order = np.argsort(codes, kind="stable")
    edges = [0, *(np.flatnonzero(np.diff(codes[order])) + 1).tolist(), len(order)] if len(order) else [0]
    partitions = []
    for start, stop in itertools.pairwise(edges):
        rows = order[start:stop]
        values = [(name, text[int(rows[0])].as_py()) for name, text in zip(names, texts, strict=True)]
        part = _take(rest, rows)
        partitions.append(Partition(directory(values), part, part.nbytes))
    return partitions


def _take(table: pa.Table, rows: npt.NDArray[np.int64]) -> pa.Table:
    """Return some rows; without a copy if they are adjacent, or if the column is in chunks, as large blobs are."""
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


def _encode_texts(table: pa.Table, name: str, first: int) -> pa.DictionaryArray:
    """Return the values of a partition column as dictionary-encoded text."""
    column = table.column(name)
    texts = pa.concat_arrays(column.cast(pa.string()).chunks or [pa.array([], type=pa.string())]).dictionary_encode()
    if pc.any(pc.equal(texts.dictionary, NULL), min_count=0).as_py():
        msg = f"Partition field {name!r} has the value {NULL!r}, which stands for a null; expected another value. Rename it."
        raise DataError(msg)
    if pa.types.is_temporal(column.type):
        _check_times(column, texts, name, first)
    return texts


def _check_times(column: pa.ChunkedArray, texts: pa.DictionaryArray, name: str, first: int) -> None:
    """Refuse days and moments whose text readers take for another one, or for none: such a table cannot be opened."""
    codes, rows = np.unique(np.asarray(texts.indices.fill_null(-1)), return_index=True)
    rows = rows[codes >= 0]
    has_year = pc.match_substring_regex(texts.dictionary, YEAR)
    back = pc.if_else(has_year, texts.dictionary, None).cast(column.type)
    same = pc.equal(back, column.take(pa.array(rows)).combine_chunks()).fill_null(False)  # noqa: FBT003 - the fill value
    changed = rows[~same.to_numpy(zero_copy_only=False)]
    if not len(changed):
        return
    row = int(changed.min())
    expected = (
        "a moment whose UTC offset has no seconds" if has_year[texts.indices[row].as_py()].as_py() else "a year from 1 to 9999"
    )
    raise DataError(
        f"Row {first + row}, partition field {name!r}: got {texts[row].as_py()}, which cannot be read back from the name of a "
        f"directory; expected a null or {expected}. Replace it, or partition by another field."
    )
