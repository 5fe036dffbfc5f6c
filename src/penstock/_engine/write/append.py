"""The table that rows are appended to: its columns and partitions, and whether those of the rows are the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from penstock._engine.commit.change import small_file, visible
from penstock._engine.commit.log import fresh_listing
from penstock._engine.decode.concat import with_wide_indices
from penstock._engine.parquet.footer import read_schema
from penstock._engine.write.encode import ColumnEncoder, TableEncoder
from penstock._engine.write.schema import of_arrow
from penstock.codecs.scalar import Scalar
from penstock.codecs.tensor import Tensor
from penstock.errors import ArgumentError, TableNotFoundError, listed
from penstock.formats._hive import hive_values, partition_table
from penstock.formats.parquet import COMMON, data_files, file_schemas, unified
from penstock.model import Place
from penstock.schema import Schema
from penstock.schema.json import KEY, dump, load

__all__ = ["ExistingTable", "appended", "check_still", "existing"]

PETASTORM = b"dataset-toolkit."
"""With what the names of Petastorm's metadata begin."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExistingTable:
    """A table that is there.

    Attributes:
        url: What it is called.
        arrow: Its columns, those that only directories name at the end, with the metadata of its first file.
        partition_by: The names of the latter, outermost first.
        files: How many files it has, so that those of an append come after them by name.
    """

    url: str
    arrow: pa.Schema
    partition_by: tuple[str, ...]
    files: int


def existing(place: Place) -> ExistingTable | None:
    """Return the table at a place; None where there is none yet.

    Raises:
        ArgumentError: If nothing can be appended to it.
    """
    listing = fresh_listing(place)
    every = visible(place.filesystem, place.path, listing)
    try:
        paths = [info.path for info in data_files(place, every)]
    except TableNotFoundError:
        return None
    schemas = file_schemas(place, [paths[0], paths[-1]])  # of which the table's columns are, to who opens it
    file = unified(schemas).with_metadata(schemas[paths[0]].metadata)
    common = small_file(place.filesystem, place.path, COMMON, listing)
    metadata = {} if common is None else dict(read_schema(f"{place.path}/{COMMON}", common).metadata or {})
    if any(name.startswith(PETASTORM) for name in metadata):
        msg = (
            f"{place.url} is a Petastorm table, whose metadata counts the row groups of its files, and others would be missed. "
        )
        raise ArgumentError(msg + "A table of another kind was expected. Write another one, and open both.")
    values = [hive_values(path, place.path) for path in paths]
    names = {tuple(value) for value in values}
    if len(names) > 1:
        told = "; ".join(str(name) for name in sorted(names))
        msg = f"The directories of {place.url} are not named alike: {told}. One way was expected. Write the table anew."
        raise ArgumentError(msg)
    told_here = {KEY: metadata[KEY]} if KEY in metadata else {}
    merged = {**(file.metadata or {}), **told_here}
    partition_by = names.pop()
    kinds = _stored_kinds(merged)
    typed = partition_table(values, pa.schema([*file, *(kinds[name] for name in partition_by if name in kinds)]))
    inside = [field for field in file if field.name not in partition_by]
    arrow = pa.schema([*inside, *typed.schema], metadata=merged)
    return ExistingTable(url=place.url, arrow=arrow, partition_by=partition_by, files=len(paths))


def _stored_kinds(metadata: Mapping[bytes, bytes]) -> dict[str, pa.Field]:
    """Return the columns of a stored schema, for those that no file holds."""
    if KEY not in metadata:
        return {}
    return {
        field.name: pa.field(field.name, field.codec.storage(field), nullable=field.nullable)
        for field in load(metadata[KEY])
        if isinstance(field.codec, Scalar)
    }


def appended(table: ExistingTable, columns: TableEncoder | None, partition_by: tuple[str, ...]) -> TableEncoder:
    """Return the columns of rows that are appended: the table's own, in its order, stored as the given ones say.

    Raises:
        ArgumentError: If the given ones differ, or are partitioned otherwise.
    """
    if partition_by != table.partition_by:
        msg = (
            f"write got partition_by={partition_by!r}, and the directories of {table.url} are named by {table.partition_by!r}. "
        )
        raise ArgumentError(msg + f"The same was expected. Give partition_by={table.partition_by!r}.")
    if columns is None:
        return of_arrow(table.arrow)
    stored = _told(json.loads((table.arrow.metadata or {}).get(KEY, b'{"fields": []}')))
    given = {column.field.name: column for column in columns.columns}
    differences = [f"{name!r} is not in the table" for name in given if name not in table.arrow.names]
    found: list[ColumnEncoder] = []
    for field in table.arrow:
        if field.name not in given:
            differences.append(f"{field.name!r} is missing")
            continue
        column = given[field.name]
        if why := _difference(column, field, stored.get(field.name)):
            differences.append(f"{field.name!r} {why}")
        found.append(replace(column, arrow=field) if column.stated else column)
    if differences:
        msg = f"The schema is not that of {table.url}: {'; '.join(differences)}. The same was expected. Its columns are "
        told_names = listed(table.arrow.names)
        raise ArgumentError(f'{msg}{told_names}. Change the schema, leave it out, or replace the table with mode="overwrite".')
    if not all(column.stated for column in found):
        return replace(of_arrow(table.arrow), optional=columns.optional)
    return replace(columns, columns=tuple(found), metadata=dict(table.arrow.metadata or {}))


def check_still(place: Place, before: ExistingTable | None, columns: TableEncoder, partition_by: tuple[str, ...]) -> None:
    """Refuse files that were written for one table, where another writer has put another one meanwhile.

    Args:
        place: Where they are to be added.
        before: The table that was there when the write began; None where there was none.
        columns: What the files hold.
        partition_by: What their directories are named by.

    Raises:
        ArgumentError: If they do not go with what is there now.
    """
    found = existing(place)
    if found is None or (
        before is not None
        and before.partition_by == found.partition_by
        and before.arrow.equals(found.arrow, check_metadata=True)
    ):
        return
    now = replace(found, url=f"{place.url} as another writer has left it meanwhile")
    fitting = appended(now, columns, partition_by)
    differences = [
        f"{column.field.name!r} {why}"
        for column in columns.columns
        if (why := _misfit(column, fitting.named(column.field.name), is_inside=column.field.name not in partition_by))
    ]
    if differences:
        msg = f"The rows do not go with {now.url}: {'; '.join(differences)}. The same was expected, and nothing was appended. "
        raise ArgumentError(msg + "Look at the table, then write again.")


def _misfit(written: ColumnEncoder, wanted: ColumnEncoder, *, is_inside: bool) -> str:
    """Return how cells that were written differ from those that would be if the write began now, or nothing."""
    mine, theirs = ((one.codec, one.arrow.type) for one in (written, wanted))
    if mine != theirs or (written.is_blob and written.field.shape != wanted.field.shape):
        return f"was stored as {mine[1]} by {mine[0]!r} and is {theirs[1]} by {theirs[0]!r} there"
    if is_inside and written.arrow.nullable and not wanted.arrow.nullable:
        return "may be null, and may not be there"
    return ""


def _told(schema: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {field["name"]: field for field in schema["fields"]}


def _difference(column: ColumnEncoder, field: pa.Field, stored: dict[str, Any] | None) -> str:
    """Return how a column differs from that of the table, or nothing."""
    if stored is None or not column.stated:
        kinds = [with_wide_indices(column.arrow).type]
        if isinstance(column.codec, Tensor):  # which tells the same in fewer words: names of axes are left out
            kinds.append(column.codec.storage(column.field))
        if with_wide_indices(field).type in kinds and (stored is not None or not column.is_blob):
            return ""
        codec = f" by {column.codec!r}" if column.is_blob else ""
        return f"would be stored as {column.arrow.type}{codec} and is {field.type} there"
    (now,) = _told(json.loads(dump(Schema("", [column.field])))).values()
    parts = [f"{key} {now[key]!r} and not {stored[key]!r}" for key in now if key != "name" and now[key] != stored.get(key)]
    return f"has {', '.join(parts)}" if parts else ""
