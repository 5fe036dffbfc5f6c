"""The table that rows are appended to: its columns and partitions, and whether new rows match them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from penstock._engine.commit.log import fresh_listing, small_file, visible
from penstock._engine.decode.concat import with_wide_indices
from penstock._engine.parquet.footer import read_schema
from penstock._engine.write.encode import ColumnEncoder, TableEncoder
from penstock._engine.write.schema import encoder_from_arrow
from penstock.codecs.scalar import Scalar
from penstock.codecs.tensor import Tensor
from penstock.errors import ArgumentError, TableNotFoundError, listed
from penstock.formats._hive import hive_values, partition_table
from penstock.formats.parquet import COMMON, data_files, file_schemas, unify_schemas
from penstock.model import Place
from penstock.schema import Schema
from penstock.schema.json import KEY, dump, load

PETASTORM = b"dataset-toolkit."
"""The prefix of Petastorm's metadata keys."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExistingTable:
    """A table that exists."""

    url: str
    arrow: pa.Schema
    """Its columns, partition columns last, with the metadata of its first file."""
    partition_by: tuple[str, ...]
    num_files: int
    """The names of appended files continue the numbers."""


def read_existing(place: Place) -> ExistingTable | None:
    """Return the table at a place, or None if there is none."""
    listing = fresh_listing(place)
    try:
        paths = [info.path for info in data_files(place, visible(place.filesystem, place.path, listing))]
    except TableNotFoundError:
        return None
    schemas = file_schemas(place, [paths[0], paths[-1]])  # readers take the columns of a table from these two
    columns = unify_schemas(schemas).with_metadata(schemas[paths[0]].metadata)
    common = small_file(place.filesystem, place.path, COMMON, listing)
    metadata = {} if common is None else dict(read_schema(f"{place.path}/{COMMON}", common).metadata or {})
    if any(name.startswith(PETASTORM) for name in metadata):
        raise ArgumentError(
            f"{place.url} is a Petastorm table, whose metadata counts the row groups of its files, so that its readers would "
            "miss new files; expected another table. Write a table of its own, and open both."
        )
    values = [hive_values(path, place.path) for path in paths]
    names = {tuple(value) for value in values}
    if len(names) > 1:
        levels = "; ".join(str(name) for name in sorted(names))
        msg = f"The directories of {place.url} have different partition columns: {levels}; expected the same in all paths. "
        raise ArgumentError(msg + "Write the table again.")
    partition_by = names.pop()
    merged = {**(columns.metadata or {}), **({KEY: metadata[KEY]} if KEY in metadata else {})}
    stored = _stored_fields(merged)
    typed = partition_table(values, pa.schema([*columns, *(stored[name] for name in partition_by if name in stored)]))
    in_files = [field for field in columns if field.name not in partition_by]
    arrow = pa.schema([*in_files, *typed.schema], metadata=merged)
    return ExistingTable(url=place.url, arrow=arrow, partition_by=partition_by, num_files=len(paths))


def _stored_fields(metadata: Mapping[bytes, bytes]) -> dict[str, pa.Field]:
    """Return the single-value columns of a stored schema; the types of partition columns stand in no file."""
    fields = load(metadata[KEY]) if KEY in metadata else ()
    return {
        field.name: pa.field(field.name, field.codec.storage(field), nullable=field.nullable)
        for field in fields
        if isinstance(field.codec, Scalar)
    }


def append_encoder(table: ExistingTable, given: TableEncoder | None, partition_by: tuple[str, ...]) -> TableEncoder:
    """Return the encoder of appended rows: the table's columns in its order, stored with the codecs of the given ones."""
    if partition_by != table.partition_by:
        raise ArgumentError(
            f"write() got partition_by={partition_by!r}; expected {table.partition_by!r}, the partitions of {table.url}. "
            f"Write partition_by={table.partition_by!r}."
        )
    if given is None:
        return encoder_from_arrow(table.arrow)
    stored = _fields_by_name((table.arrow.metadata or {}).get(KEY, b'{"fields": []}'))
    by_name = {column.field.name: column for column in given.columns}
    differences = [f"{name!r} is not in the table" for name in by_name if name not in table.arrow.names]
    columns: list[ColumnEncoder] = []
    for field in table.arrow:
        if field.name not in by_name:
            differences.append(f"{field.name!r} is missing")
            continue
        column = by_name[field.name]
        if difference := _difference(column, field, stored.get(field.name)):
            differences.append(f"{field.name!r} {difference}")
        columns.append(replace(column, arrow=field) if column.in_schema else column)
    if differences:
        raise ArgumentError(
            f"The schema is not that of {table.url}: {'; '.join(differences)}; expected the same columns: "
            f'{listed(table.arrow.names)}. Change the schema, leave it out, or replace the table with mode="overwrite".'
        )
    if not all(column.in_schema for column in columns):
        return replace(encoder_from_arrow(table.arrow), optional=given.optional)
    return replace(given, columns=tuple(columns), metadata=dict(table.arrow.metadata or {}))


def check_unchanged(place: Place, before: ExistingTable | None, encoder: TableEncoder, partition_by: tuple[str, ...]) -> None:
    """Refuse to add files to a table that another writer has changed since the write began, when it was `before`."""
    table = read_existing(place)
    if table is None or (
        before is not None
        and before.partition_by == table.partition_by
        and before.arrow.equals(table.arrow, check_metadata=True)
    ):
        return
    table = replace(table, url=f"{place.url}, which another writer has changed meanwhile")
    wanted = append_encoder(table, encoder, partition_by)
    differences = [
        f"{column.field.name!r} {why}"
        for column in encoder.columns
        if (why := _written_difference(column, wanted.named(column.field.name), in_file=column.field.name not in partition_by))
    ]
    if differences:
        raise ArgumentError(
            f"The rows do not fit {table.url}: {'; '.join(differences)}; expected the same columns. Nothing was appended. "
            "Look at the table, then write again."
        )


def _written_difference(written: ColumnEncoder, wanted: ColumnEncoder, *, in_file: bool) -> str:
    """Return how written cells differ from those that a new write would store; empty if they do not."""
    if (written.codec, written.arrow.type) != (wanted.codec, wanted.arrow.type) or (
        written.is_blob and written.field.shape != wanted.field.shape
    ):
        return f"was stored as {written.arrow.type} by {written.codec!r} and is {wanted.arrow.type} by {wanted.codec!r} there"
    if in_file and written.arrow.nullable and not wanted.arrow.nullable:
        return "may be null, and may not be there"
    return ""


def _fields_by_name(schema: str | bytes) -> dict[str, dict[str, Any]]:
    return {field["name"]: field for field in json.loads(schema)["fields"]}


def _difference(column: ColumnEncoder, field: pa.Field, stored: dict[str, Any] | None) -> str:
    """Return how a column differs from that of the table; empty if it does not."""
    if stored is None or not column.in_schema:
        types = [with_wide_indices(column.arrow).type]
        if isinstance(column.codec, Tensor):  # the same type without names of axes
            types.append(column.codec.storage(column.field))
        if with_wide_indices(field).type in types and (stored is not None or not column.is_blob):
            return ""
        codec = f" by {column.codec!r}" if column.is_blob else ""
        return f"would be stored as {column.arrow.type}{codec} and is {field.type} there"
    new = _fields_by_name(dump(Schema("", [column.field])))[column.field.name]
    parts = [f"{key} {new[key]!r} and not {stored[key]!r}" for key in new if key != "name" and new[key] != stored.get(key)]
    return f"has {', '.join(parts)}" if parts else ""
