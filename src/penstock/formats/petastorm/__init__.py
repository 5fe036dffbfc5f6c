"""Datasets of Petastorm: Parquet files, and a pickled schema in `_common_metadata` that is read without unpickling anything."""

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
    told_fields,
    unified,
)
from penstock.formats.petastorm.fields import field_of, schema_of, suited
from penstock.formats.petastorm.index import (
    NotNullIndex,
    RowGroupIndex,
    ValueIndex,
    load_indexes,
    load_row_groups,
    summary_rows,
)
from penstock.formats.petastorm.schema import (
    SparkType,
    StoredCodec,
    StoredField,
    StoredSchema,
    load_unischema,
    pickle_unischema,
)
from penstock.model import IntArray, Place, Snapshot
from penstock.schema import Field, Schema

__all__ = [
    "FORMAT",
    "INDEX_KEY",
    "PRECEDENCE",
    "ROW_GROUPS_KEY",
    "UNISCHEMA_KEY",
    "NotNullIndex",
    "PetastormFacts",
    "PetastormFormat",
    "RowGroupIndex",
    "SparkType",
    "StoredCodec",
    "StoredField",
    "StoredSchema",
    "ValueIndex",
    "field_of",
    "load_indexes",
    "load_unischema",
    "metadata_of",
    "pickle_unischema",
    "schema_of",
]

PRECEDENCE = 50
"""Tried before plain Parquet, whose files these are too."""

T = TypeVar("T")

SUMMARY = "_metadata"
UNISCHEMA_KEY = b"dataset-toolkit.unischema.v1"
ROW_GROUPS_KEY = b"dataset-toolkit.num_row_groups_per_file.v1"
INDEX_KEY = b"dataset-toolkit.rowgroups_index.v1"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PetastormFacts:
    """What Petastorm has stored of a dataset, beside its data.

    Attributes:
        schema: Its Unischema; None where it has none.
        row_groups: How many row groups each file has, by its path relative to the dataset; None where that is not stored.
        rows: The rows of each of them, where a summary file tells them.
        indexes: Which row groups hold which values, by the name of the index. Row groups are counted over the files in the
            order of their paths.
    """

    schema: StoredSchema | None = None
    row_groups: Mapping[str, int] | None = None
    rows: Mapping[str, list[int]] | None = None
    indexes: Mapping[str, RowGroupIndex] = field(default_factory=dict)

    def counts(self, paths: Sequence[str], base: str) -> IntArray:
        """Return how many row groups some files have; -1 where that is not stored.

        A file that a summary file does not tell of has none that Petastorm would read.

        Args:
            paths: The files.
            base: The path of the dataset, which they lie below.

        Example:
            >>> PetastormFacts(row_groups={"a.parquet": 2}).counts(["/t/a.parquet", "/t/b.parquet"], "/t").tolist()
            [2, -1]
        """
        told, other = self.row_groups or {}, -1 if self.rows is None else 0
        names = [path[len(base) :].lstrip("/") for path in paths]
        return np.array([told.get(name, other) for name in names], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class PetastormFormat:
    """Datasets of Petastorm, of any version.

    Where `_common_metadata` holds a schema of ours too, as it does where we wrote it or `penstock.adopt` gave it, that is the
    one that counts.

    Example:
        >>> PetastormFormat().name
        'petastorm'
    """

    @property
    def name(self) -> str:
        """The name of the format."""
        return "petastorm"

    def recognises(self, place: Place) -> bool:
        """Return whether `_common_metadata` at a place holds a pickled schema of Petastorm."""
        path = _beside(place, COMMON)
        if place.paths or place.filesystem.get_file_info(path).type != pafs.FileType.File:
            return False
        try:
            return UNISCHEMA_KEY in (read_schema(path, place.filesystem).metadata or {})
        except DataError:
            return False

    def snapshot(self, place: Place, version: str | int | None) -> Snapshot:
        """Return the files that lie at a place now, with the columns in the order of the stored schema.

        Raises:
            ArgumentError: If a version is asked for.
            TableNotFoundError: If there is no data file.
            DataError: If a file's schema or the stored one cannot be read.
        """
        if version is not None:
            msg = f"version={version!r} was asked of {place.url}, but datasets of Petastorm have no versions. Leave it out."
            raise ArgumentError(msg)
        every = list_files(place)
        told = _common(place, every)
        metadata = {} if told is None else dict(told.metadata or {})
        if told is None or UNISCHEMA_KEY not in metadata:
            return ParquetFormat().snapshot(place, version)
        infos = data_files(place, visible(place.filesystem, place.path, every))
        schema = unified(file_schemas(place, [infos[0].path, infos[-1].path]))
        fields, names = told_fields(_beside(place, COMMON), told), []
        check_types(place, schema, fields)
        if not fields.keys() >= {*schema.names}:
            stored = _read_unischema(place, metadata[UNISCHEMA_KEY])
            names = [each.name for each in stored.fields]
            theirs = _fields(stored, schema)
            schema = _typed(schema, {name: found for name, found in theirs.items() if name not in fields})
            fields = {**theirs, **fields}
        snapshot = assembled(place, infos, schema, fields, sampled=False)
        return replace(snapshot, schema=_ordered(snapshot.schema, [*names, *fields]))

    def facts(self, place: Place) -> PetastormFacts:
        """Return what Petastorm has stored of the dataset at a place; nothing where it has stored nothing.

        Raises:
            DataError: If something of it cannot be read.
        """
        every = list_files(place)
        told = _common(place, every)
        metadata = {} if told is None else dict(told.metadata or {})
        rows = _summary(place, every)
        counts = None if rows is None else {path: len(groups) for path, groups in rows.items()}
        if counts is None and ROW_GROUPS_KEY in metadata:
            counts = _read(place, "numbers of row groups", load_row_groups, metadata[ROW_GROUPS_KEY])
        return PetastormFacts(
            schema=_read_unischema(place, metadata[UNISCHEMA_KEY]) if UNISCHEMA_KEY in metadata else None,
            row_groups=counts,
            rows=rows,
            indexes=_read(place, "index of row groups", load_indexes, metadata[INDEX_KEY]) if INDEX_KEY in metadata else {},
        )

    def suited(self, schema: Schema) -> Schema:
        """Return a schema whose fields without a codec get one that Petastorm has."""
        return suited(schema)

    def check(self, schema: Schema, partition_by: Sequence[str]) -> None:
        """Refuse a table that Petastorm could not read as it was written.

        Raises:
            ArgumentError: If it has no counterpart for a field, or misreads directories that a field names.
        """
        schema_of(schema)
        for name in partition_by:
            if schema[name].dtype.kind == "b":
                msg = f"write got partition_by={name!r}, which is a boolean, and Petastorm takes every name of a directory for "
                raise ArgumentError(msg + "True. Text or numbers were expected. Choose another field, or make it int8.")

    def metadata(self, schema: Schema, row_groups: Mapping[str, int]) -> dict[bytes, bytes]:
        """Return what `_common_metadata` must say for Petastorm to read a table; see `metadata_of`."""
        return metadata_of(schema, row_groups)


FORMAT = PetastormFormat()


def metadata_of(schema: Schema, row_groups: Mapping[str, int]) -> dict[bytes, bytes]:
    """Return the metadata of a table that is written, by which Petastorm reads it: its schema and its row groups.

    Args:
        schema: The columns.
        row_groups: How many row groups each file has, by its path relative to the table.

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


def _beside(place: Place, name: str) -> str:
    return place.path.rstrip("/") + "/" + name


def _common(place: Place, every: list[pafs.FileInfo]) -> pa.Schema | None:
    """Return what `_common_metadata` says; None where there is none."""
    found = None if place.paths else small_file(place.filesystem, place.path, COMMON, every)
    return None if found is None else read_schema(_beside(place, COMMON), found)


def _summary(place: Place, every: list[pafs.FileInfo]) -> dict[str, list[int]] | None:
    """Return the rows of the row groups that a summary file tells of; None where there is none, or it tells of none."""
    path = _beside(place, SUMMARY)
    if place.paths or not any(info.path == path for info in every):
        return None
    try:
        return summary_rows(footer_of(path, place.filesystem)) or None
    except DataError as error:
        raise DataError(f"{path}: {error}. A summary of Parquet files was expected. Delete it, or write it anew.") from error


def _read(place: Place, what: str, load: Callable[[bytes], T], data: bytes) -> T:
    """Return what `_common_metadata` holds under a key."""
    try:
        return load(data)
    except DataError as error:
        msg = (
            f"{_beside(place, COMMON)}: the {what} that Petastorm stored there cannot be read: {error}. One that Petastorm "
            "wrote was expected, and nothing of it is ever run. Check where the dataset comes from"
        )
        raise DataError(f"{msg}, or write it anew.") from error


def _read_unischema(place: Place, data: bytes) -> StoredSchema:
    try:
        return _read(place, "schema", load_unischema, data)
    except DataError as error:
        advice = "or open its files as they lie with format=penstock.formats.parquet.ParquetFormat(), or give it another schema"
        text = str(error).removesuffix(", or write it anew.")
        raise DataError(f"{text}, {advice} with penstock.adopt(url, schema).") from error.__cause__


def _fields(stored: StoredSchema, schema: pa.Schema) -> dict[str, Field]:
    """Return what a stored schema says of columns; nothing of those that are shown as they are stored."""
    kinds = {column.name: column.type for column in schema}
    found = {each.name: field_of(each, kinds.get(each.name)) for each in stored.fields}
    return {name: made for name, made in found.items() if made is not None}


def _typed(schema: pa.Schema, fields: Mapping[str, Field]) -> pa.Schema:
    """Return the columns of files in the types that their fields say, and those that no file has."""
    columns = {column.name: column for column in schema}
    for name, told in fields.items():
        before = columns.get(name, pa.field(name, pa.binary()))
        columns[name] = before.with_type(told.codec.storage(told)) if isinstance(told.codec, Scalar) else before
    return pa.schema(list(columns.values()))


def _ordered(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Return a schema with some columns first, in an order."""
    first = [name for name in dict.fromkeys(names) if name in schema.names]
    return pa.schema([schema.field(name) for name in dict.fromkeys([*first, *schema.names])])
