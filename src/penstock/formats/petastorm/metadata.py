"""The metadata of a Petastorm dataset in `_common_metadata` and `_metadata`, and the snapshot of its files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa
from pyarrow import fs as pafs

from penstock._engine.commit.log import small_file, visible
from penstock._engine.parquet.footer import footer_of, read_schema
from penstock._engine.storage.filesystem import list_files
from penstock.codecs import Scalar
from penstock.errors import ArgumentError, DataError
from penstock.formats.parquet import (
    COMMON,
    ParquetFormat,
    assembled,
    check_types,
    data_files,
    file_schemas,
    schema_fields,
    unify_schemas,
)
from penstock.formats.petastorm.fields import field_of, schema_of
from penstock.formats.petastorm.index import RowGroupIndex, load_indexes, load_row_groups, summary_rows
from penstock.formats.petastorm.keys import INDEX_KEY, ROW_GROUPS_KEY, SUMMARY, UNISCHEMA_KEY
from penstock.formats.petastorm.schema import StoredSchema, load_unischema, pickle_unischema
from penstock.model import IntArray, Place, Snapshot
from penstock.schema import Field, Schema

__all__ = ["PetastormFacts", "check_schema", "metadata_of", "read_facts", "read_snapshot"]

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PetastormFacts:
    """The metadata of Petastorm in a dataset.

    Attributes:
        schema: The Unischema; None if it is not stored.
        row_groups: The number of row groups of each file, by its path in the dataset; None if it is not stored.
        rows: The rows of each row group, by the path of its file; None without a summary file.
        indexes: The indexes of row groups by name. Row groups are numbered over the files in the order of their paths.
    """

    schema: StoredSchema | None = None
    row_groups: Mapping[str, int] | None = None
    rows: Mapping[str, list[int]] | None = None
    indexes: Mapping[str, RowGroupIndex] = field(default_factory=dict)

    def counts(self, paths: Sequence[str], base: str) -> IntArray:
        """Return the number of row groups of some files; -1 where it is not stored, and 0 for files not in the summary.

        Args:
            paths: The paths of the files.
            base: The path of the dataset.

        Example:
            >>> PetastormFacts(row_groups={"a.parquet": 2}).counts(["/t/a.parquet", "/t/b.parquet"], "/t").tolist()
            [2, -1]
        """
        stored, default = self.row_groups or {}, -1 if self.rows is None else 0
        names = [path[len(base) :].lstrip("/") for path in paths]
        return np.array([stored.get(name, default) for name in names], dtype=np.int64)


def read_snapshot(place: Place, version: str | int | None) -> Snapshot:
    """Return the current files at a place; see `PetastormFormat.snapshot`."""
    if version is not None:
        msg = f"version={version!r} was asked of {place.url}, but datasets of Petastorm have no versions. Leave it out."
        raise ArgumentError(msg)
    listing = list_files(place)
    common = _read_common(place, listing)
    metadata = {} if common is None else dict(common.metadata or {})
    if common is None or UNISCHEMA_KEY not in metadata:
        return ParquetFormat().snapshot(place, version)
    infos = data_files(place, visible(place.filesystem, place.path, listing))
    schema = unify_schemas(file_schemas(place, [infos[0].path, infos[-1].path]))
    fields, names = schema_fields(_path(place, COMMON), common), []
    check_types(place, schema, fields)
    if not fields.keys() >= {*schema.names}:
        stored = _load_schema(place, metadata[UNISCHEMA_KEY])
        names = [each.name for each in stored.fields]
        theirs = _fields_of(stored, schema)
        schema = _with_field_types(schema, {name: theirs[name] for name in theirs if name not in fields})
        fields = {**theirs, **fields}
    snapshot = assembled(place, infos, schema, fields, sampled=False)
    return replace(snapshot, schema=_columns_first(snapshot.schema, [*names, *fields]))


def read_facts(place: Place) -> PetastormFacts:
    """Return the metadata of Petastorm at a place; see `PetastormFormat.facts`."""
    listing = list_files(place)
    common = _read_common(place, listing)
    metadata = {} if common is None else dict(common.metadata or {})
    rows = _read_summary(place, listing)
    counts = None if rows is None else {path: len(groups) for path, groups in rows.items()}
    if counts is None and ROW_GROUPS_KEY in metadata:
        counts = _load(place, "numbers of row groups", load_row_groups, metadata[ROW_GROUPS_KEY])
    return PetastormFacts(
        schema=_load_schema(place, metadata[UNISCHEMA_KEY]) if UNISCHEMA_KEY in metadata else None,
        row_groups=counts,
        rows=rows,
        indexes=_load(place, "index of row groups", load_indexes, metadata[INDEX_KEY]) if INDEX_KEY in metadata else {},
    )


def check_schema(schema: Schema, partition_by: Sequence[str]) -> None:
    """Check that Petastorm can read a table; see `PetastormFormat.check`."""
    schema_of(schema)
    for name in partition_by:
        if schema[name].dtype.kind == "b":
            msg = f"write got partition_by={name!r}, which is a boolean, and Petastorm takes every name of a directory for "
            raise ArgumentError(msg + "True. Text or numbers were expected. Choose another field, or make it int8.")


def metadata_of(schema: Schema, row_groups: Mapping[str, int]) -> dict[bytes, bytes]:
    """Return the metadata by which Petastorm reads a table: its schema and its row groups.

    Args:
        schema: The columns.
        row_groups: The number of row groups of each file, by its path in the table.

    Raises:
        ArgumentError: If Petastorm has no counterpart for a field.

    Example:
        >>> import numpy as np
        >>> found = metadata_of(Schema("Hello", [Field("id", np.int32)]), {"part-0.parquet": 2})
        >>> found[b"dataset-toolkit.num_row_groups_per_file.v1"]
        b'{"part-0.parquet": 2}'
    """
    unischema = pickle_unischema(schema_of(schema))
    return {UNISCHEMA_KEY: unischema, ROW_GROUPS_KEY: json.dumps(dict(row_groups)).encode()}


def _path(place: Place, name: str) -> str:
    return place.path.rstrip("/") + "/" + name


def _read_common(place: Place, listing: list[pafs.FileInfo]) -> pa.Schema | None:
    """Return the schema in `_common_metadata`; None without that file."""
    filesystem = None if place.paths else small_file(place.filesystem, place.path, COMMON, listing)
    return None if filesystem is None else read_schema(_path(place, COMMON), filesystem)


def _read_summary(place: Place, listing: list[pafs.FileInfo]) -> dict[str, list[int]] | None:
    """Return the rows of the row groups in the summary file; None if there is no such file, or it has no row group."""
    path = _path(place, SUMMARY)
    if place.paths or not any(info.path == path for info in listing):
        return None
    try:
        return summary_rows(footer_of(path, place.filesystem)) or None
    except DataError as error:
        raise DataError(f"{path}: {error}; expected a summary of Parquet files. Delete it, or write it anew.") from error


def _load(place: Place, what: str, load: Callable[[bytes], Value], data: bytes) -> Value:
    """Return a value of `_common_metadata`."""
    try:
        return load(data)
    except DataError as error:
        msg = (
            f"{_path(place, COMMON)}: the {what} that Petastorm stored there cannot be read: {error}; expected one that "
            "Petastorm wrote, and nothing of it is ever run. Check where the dataset comes from"
        )
        raise DataError(f"{msg}, or write it anew.") from error


def _load_schema(place: Place, data: bytes) -> StoredSchema:
    try:
        return _load(place, "schema", load_unischema, data)
    except DataError as error:
        advice = "or open its files as they lie with format=penstock.formats.parquet.ParquetFormat(), or give it another schema"
        text = str(error).removesuffix(", or write it anew.")
        raise DataError(f"{text}, {advice} with penstock.adopt(url, schema).") from error.__cause__


def _fields_of(stored: StoredSchema, schema: pa.Schema) -> dict[str, Field]:
    """Return the fields of a stored schema, without those whose columns are shown as they are stored."""
    types = {column.name: column.type for column in schema}
    fields = {each.name: field_of(each, types.get(each.name)) for each in stored.fields}
    return {name: one for name, one in fields.items() if one is not None}


def _with_field_types(schema: pa.Schema, fields: Mapping[str, Field]) -> pa.Schema:
    """Return the columns of the files in the types of their fields, and the columns that no file has."""
    columns = {column.name: column for column in schema}
    for name, one in fields.items():
        column = columns.get(name, pa.field(name, pa.binary()))
        columns[name] = column.with_type(one.codec.storage(one)) if isinstance(one.codec, Scalar) else column
    return pa.schema(list(columns.values()))


def _columns_first(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Return a schema whose first columns are the named ones, in their order."""
    first = [name for name in dict.fromkeys(names) if name in schema.names]
    return pa.schema([schema.field(name) for name in dict.fromkeys([*first, *schema.names])])
