"""The table that rows are appended to: its columns and partitions, and whether those of the rows are the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from penstock._engine.columns import of_arrow
from penstock._engine.commit import visible
from penstock._engine.encode import Column, Columns
from penstock._engine.footers import read_schema
from penstock._engine.markers import fresh_listing
from penstock._engine.wide import with_roomy_indices
from penstock._schema_json import KEY, dump, load
from penstock.codecs.scalar import Scalar
from penstock.errors import ArgumentError, TableNotFoundError, listed
from penstock.formats.parquet import COMMON, data_files, hive_values, partition_table
from penstock.model import Place
from penstock.schema import Schema

__all__ = ["Existing", "appended", "existing"]

PETASTORM = b"dataset-toolkit."
"""With what the names of Petastorm's metadata begin."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Existing:
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


def existing(place: Place) -> Existing | None:
    """Return the table at a place; None where there is none yet.

    Raises:
        ArgumentError: If nothing can be appended to it.
    """
    every = visible(place.filesystem, place.path, fresh_listing(place))
    try:
        paths = [info.path for info in data_files(place, every)]
    except TableNotFoundError:
        return None
    file = read_schema(paths[0], place.filesystem)
    common = next((info.path for info in every if info.path == f"{place.path}/{COMMON}"), None)
    metadata = {} if common is None else dict(read_schema(common, place.filesystem).metadata or {})
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
    return Existing(url=place.url, arrow=arrow, partition_by=partition_by, files=len(paths))


def _stored_kinds(metadata: Mapping[bytes, bytes]) -> dict[str, pa.Field]:
    """Return the columns of a stored schema, for those that no file holds."""
    if KEY not in metadata:
        return {}
    return {
        field.name: pa.field(field.name, field.codec.storage(field), nullable=field.nullable)
        for field in load(metadata[KEY])
        if isinstance(field.codec, Scalar)
    }


def appended(table: Existing, columns: Columns | None, partition_by: tuple[str, ...]) -> Columns:
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
    found: list[Column] = []
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
        return of_arrow(table.arrow)
    return Columns(tuple(found), columns.schema, dict(table.arrow.metadata or {}))


def _told(schema: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {field["name"]: field for field in schema["fields"]}


def _difference(column: Column, field: pa.Field, stored: dict[str, Any] | None) -> str:
    """Return how a column differs from that of the table, or nothing."""
    if stored is None or not column.stated:
        same = with_roomy_indices(column.arrow).type == with_roomy_indices(field).type
        if same and (stored is not None or not column.is_blob):
            return ""
        codec = f" by {column.codec!r}" if column.is_blob else ""
        return f"would be stored as {column.arrow.type}{codec} and is {field.type} there"
    (now,) = _told(json.loads(dump(Schema("", [column.field])))).values()
    parts = [f"{key} {now[key]!r} and not {stored[key]!r}" for key in now if key != "name" and now[key] != stored.get(key)]
    return f"has {', '.join(parts)}" if parts else ""
