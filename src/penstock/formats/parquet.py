"""Plain Parquet: a file, several files, or a directory of them, with Hive partitions in the names of directories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyarrow import fs as pafs

from penstock._arrow_types import in_utc, unviewed
from penstock._engine.commit.log import small_file, visible
from penstock._engine.parquet.footer import read_schema
from penstock._engine.storage.filesystem import ENDINGS, is_hidden, list_files, stamp
from penstock.codecs import CellCodec, Scalar, Tensor, Unknown
from penstock.errors import ArgumentError, DataError, TableNotFoundError
from penstock.formats._hive import hive_values, partition_table
from penstock.model import DataFiles, Place, Snapshot
from penstock.schema import Field
from penstock.schema.compat import incompatible, storage_of
from penstock.schema.json import KEY, load

__all__ = ["FORMAT", "PRECEDENCE", "ParquetFormat"]

PRECEDENCE = 100
"""Tried last: formats that add a log or a schema to Parquet files come first."""

COMMON = "_common_metadata"
"""The file beside the data files that holds only a schema."""

DELTA_LOG = "_delta_log"

MAX_URL_LENGTH = 300
"""Characters of a URL in a message: a list may have thousands of names."""


@dataclass(frozen=True, slots=True)
class ParquetFormat:
    """Parquet files as they are.

    Args:
        columns: The columns of the table. By default those of its first and its last file together; a file without
            one of them has nulls there, and one with a narrower type is widened. Give `"union"` to look at every
            file, or an Arrow schema.

    Example:
        >>> ParquetFormat().name
        'parquet'
    """

    columns: pa.Schema | str | None = None

    @property
    def name(self) -> str:
        """The name of the format."""
        return "parquet"

    def recognises(self, place: Place) -> bool:  # noqa: ARG002 - any place may hold Parquet files
        """Return True: a place that no other format recognises is read as Parquet."""
        return True

    def snapshot(self, place: Place, version: str | int | None) -> Snapshot:
        """Return the files at a place.

        Raises:
            ArgumentError: If a version is asked for.
            TableNotFoundError: If there is no data file.
            DataError: If a file's schema cannot be read, or does not fit the others.
        """
        if version is not None:
            msg = f"open() got version={version!r} for {place.url}; plain Parquet files have no versions. Leave it out."
            raise ArgumentError(msg)
        every = list_files(place)
        infos = data_files(place, visible(place.filesystem, place.path, every))
        self._check(place, every, infos)
        schemas = self._schemas(place, [info.path for info in infos])
        schema = self.columns if isinstance(self.columns, pa.Schema) else unify_schemas(schemas)
        fields = stored_fields(place, every, schemas)
        if not isinstance(self.columns, pa.Schema):
            check_types(place, schema, fields)
        return assembled(place, infos, schema, fields, sampled=self.columns is None)

    def _check(self, place: Place, every: list[pafs.FileInfo], infos: list[pafs.FileInfo]) -> None:
        """Accept all files: the user asked for them as they are."""

    def _schemas(self, place: Place, paths: Sequence[str]) -> dict[str, pa.Schema]:
        """Return the schemas of the files that the columns come from, by path."""
        if self.columns is not None and not isinstance(self.columns, pa.Schema) and self.columns != "union":
            msg = f'ParquetFormat() got columns={self.columns!r}; expected an Arrow schema, "union" or None.'
            raise ArgumentError(msg)
        return file_schemas(place, paths if self.columns == "union" else [paths[0], paths[-1]])


FORMAT = ParquetFormat()


class UnrecognisedParquet(ParquetFormat):
    """Parquet files that were opened without `format=` and that no other format recognises.

    Example:
        >>> UnrecognisedParquet().name
        'parquet'
    """

    __slots__ = ()

    def _check(self, place: Place, every: list[pafs.FileInfo], infos: list[pafs.FileInfo]) -> None:
        """Refuse files of a Delta table: without its log, deleted rows come back and others come twice.

        Raises:
            ArgumentError: If a file that would be read is in a Delta table.
        """
        table = _delta_table_below(every, infos) or _delta_table_above(place)
        if table is None:
            return
        before, found, _ = place.url.partition(place.path) if place.path.strip("/.") else ("", "", "")
        url = f"{before}{table}" if found else table
        opened = place.url if len(place.url) <= MAX_URL_LENGTH else f"{place.url[:MAX_URL_LENGTH]}…"
        msg = (
            f"{opened} would be read as plain Parquet, and holds files of the Delta table {url}, whose log says which of "
            f"their rows count. Open the table, penstock.open({url!r}), and choose a partition with where; or give "
            "format='parquet' to read files as they are, with rows that were deleted or replaced."
        )
        raise ArgumentError(msg)


def assembled(
    place: Place, infos: Sequence[pafs.FileInfo], schema: pa.Schema, fields: Mapping[str, Field], *, sampled: bool
) -> Snapshot:
    """Return the snapshot of a table without a log: its data files, their columns, and the partition columns.

    Args:
        place: The place of the table.
        infos: Its data files, in order.
        schema: The columns of the files.
        fields: The fields of a stored schema.
        sampled: Whether the columns are those of some files only.

    Raises:
        DataError: If a partition value does not fit its type.
    """
    partitions = pa.table({})
    if any("=" in info.path[len(place.path) :] for info in infos):
        partitions = partition_table([hive_values(info.path, place.path) for info in infos], _typed(schema, fields))
    inside = [field for field in schema if field.name not in partitions.column_names]
    files = DataFiles(
        path=pa.array([info.path for info in infos], type=pa.string()),
        size=np.array([info.size or 0 for info in infos], dtype=np.int64),
        rows=np.full(len(infos), -1, dtype=np.int64),
        stamp=pa.array([stamp(info) for info in infos], type=pa.string()),
        partitions=partitions,
    )
    columns = pa.schema([*inside, *partitions.schema])
    fields = {name: field for name, field in fields.items() if name in columns.names}
    return Snapshot(table=place.url, version="", schema=columns, files=files, fields=fields, sampled=sampled)


def file_schemas(place: Place, paths: Sequence[str]) -> dict[str, pa.Schema]:
    """Return the schemas of some files, by path.

    Raises:
        DataError: If one cannot be read, or has two columns of one name.
    """
    schemas = {path: read_schema(path, place.filesystem) for path in dict.fromkeys(paths)}
    for path, schema in schemas.items():
        twice = sorted(name for name, count in Counter(schema.names).items() if count > 1)
        if twice:
            names = ", ".join(map(repr, twice))
            msg = f"{path} has more than one column called {names}. Names must differ. Rename all but one."
            raise DataError(msg)
    return schemas


def _unify(one: pa.Schema, two: pa.Schema) -> pa.Schema:
    """Return two schemas as one; where types differ, dictionaries become their values and time zones UTC."""
    try:
        return pa.unify_schemas([one, two], promote_options="permissive")
    except pa.ArrowException:
        return pa.unify_schemas([_plainer(one, two), _plainer(two, one)], promote_options="permissive")


def _plainer(schema: pa.Schema, other: pa.Schema) -> pa.Schema:
    """Return a schema without dictionaries, views and zones other than UTC in the columns that differ from another schema."""
    types = {field.name: field.type for field in other}
    same = {field.name for field in schema if types.get(field.name, field.type) == field.type}
    return pa.schema([field if field.name in same else field.with_type(_plain(field.type)) for field in schema])


def _plain(kind: pa.DataType) -> pa.DataType:
    return unviewed(in_utc(kind.value_type if pa.types.is_dictionary(kind) else kind))


def data_files(place: Place, every: list[pafs.FileInfo]) -> list[pafs.FileInfo]:
    """Return the data files at a place: no hidden names, and only those with a suffix of Parquet if there are any.

    Raises:
        TableNotFoundError: If there is none.
    """
    shown = [info for info in every if place.path == info.path or not _hidden(info.path, place)]
    named = [info for info in shown if info.path.lower().endswith(ENDINGS)]
    found = named or shown
    if not found:
        msg = (
            f"{place.url!r} has no Parquet file: none of {len(every)} files is a data file (names that begin with _ or . "
            "are ignored). Check the path."
        )
        raise TableNotFoundError(msg)
    return found


def _hidden(path: str, place: Place) -> bool:
    """Return whether a part of a path below a place is hidden, as for Spark."""
    if place.paths and path in place.paths:
        return False
    return any(is_hidden(part) for part in path[len(place.path) :].strip("/").split("/"))


def stored_fields(place: Place, every: list[pafs.FileInfo], schemas: Mapping[str, pa.Schema]) -> dict[str, Field]:
    """Return the fields of the stored schema: that of `_common_metadata`, or else those of footers.

    Raises:
        DataError: If a schema cannot be read, or two files have different fields of one name.
    """
    common = small_file(place.filesystem, place.path, COMMON, every)
    if common is not None:
        path = place.path.rstrip("/") + "/" + COMMON
        common_fields = schema_fields(path, read_schema(path, common))
        if common_fields:
            return common_fields
    fields: dict[str, tuple[str, Field]] = {}
    for path, schema in schemas.items():
        for name, field in schema_fields(path, schema).items():
            where, before = fields.setdefault(name, (path, field))
            if before != field:
                msg = (
                    f"{where} and {path} were written with different schemas: column {name!r} is {before} in one and {field} "
                    "in the other. Open them apart, or adopt a schema that fits both."
                )
                raise DataError(msg)
    return {name: field for name, (_, field) in fields.items()}


def check_types(place: Place, schema: pa.Schema, fields: Mapping[str, Field]) -> None:
    """Refuse a stored schema that does not fit the columns of the files.

    Raises:
        DataError: If a column has a type that its field's codec does not read.
    """
    for field in fields.values():
        if field.name not in schema.names or not isinstance(field.codec, Scalar | Tensor | CellCodec):
            continue
        kind = schema.field(field.name).type
        expected = None if isinstance(field.codec, Unknown) else incompatible(field, kind)
        if expected is not None and kind != storage_of(field):
            msg = (
                f"Column {field.name!r} is {kind} in the files of {place.url}. The schema stored with them expects {expected} "
            )
            raise DataError(
                f"{msg}({field.codec!r}). Adopt one that fits, penstock.adopt(url, schema), or write the table anew."
            )


def schema_fields(path: str, schema: pa.Schema) -> dict[str, Field]:
    """Return the fields of the schema in a file's metadata; none if there is no schema."""
    text = (schema.metadata or {}).get(KEY)
    if text is None:
        return {}
    try:
        return {field.name: field for field in load(text)}
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _typed(schema: pa.Schema, fields: Mapping[str, Field]) -> pa.Schema:
    """Return a schema with the partition columns too."""
    more = [
        pa.field(name, field.codec.storage(field))
        for name, field in fields.items()
        if name not in schema.names and isinstance(field.codec, Scalar)
    ]
    return pa.schema([*schema, *more])


def unify_schemas(schemas: Mapping[str, pa.Schema]) -> pa.Schema:
    """Return one schema for files whose schemas differ: all columns, each in the widest of its types.

    Raises:
        DataError: If a column has types that have none in common.

    Example:
        >>> one, two = pa.schema({"a": pa.int32()}), pa.schema({"a": pa.int64(), "b": pa.string()})
        >>> unify_schemas({"1.parquet": one, "2.parquet": two}).types
        [DataType(int64), DataType(string)]
    """
    found, *others = schemas.items()
    path, schema = found
    for other, more in others:
        try:
            schema = _unify(schema.remove_metadata(), more.remove_metadata())
        except pa.ArrowException as error:
            msg = (
                f"The schemas of {path} and {other} do not fit together: {error} Each column needs one type. "
                "Rewrite one of the files, or open with a schema of your own: format=ParquetFormat(columns=schema)."
            )
            raise DataError(msg) from error
    return schema


def _delta_table_below(every: Sequence[pafs.FileInfo], chosen: Sequence[pafs.FileInfo]) -> str | None:
    """Return a Delta table whose log was listed, and that one of the chosen files is in."""
    folders = {info.path.rpartition("/")[0] for info in every}
    tables: set[str] = {folder.removesuffix(f"/{DELTA_LOG}") for folder in folders if folder.endswith(f"/{DELTA_LOG}")}
    if not tables:
        return None
    for folder in dict.fromkeys(str(info.path).rpartition("/")[0] for info in chosen):
        table = next((each for each in (folder, *_parents(folder)) if each in tables), None)
        if table is not None:
            return table
    return None


def _delta_table_above(place: Place) -> str | None:
    """Return a Delta table that the place is in; each directory above is looked up once."""
    seen: set[str] = set()
    for path in place.paths or (place.path,):
        for parent in _parents(path):
            if parent in seen:
                break
            seen.add(parent)
            if _has_delta_log(place.filesystem, parent):
                return parent
    return None


def _parents(path: str) -> Iterator[str]:
    """Yield the directories of a path, the nearest first; the last is the root, "/" or empty.

    Paths of some stores begin with a scheme, and have no directory before it.
    """
    while path and not path.endswith((":", ":/")):
        before, slash, _ = path.rpartition("/")
        path = before
        if not before.endswith((":", ":/")):
            yield before or slash


def _has_delta_log(filesystem: pafs.FileSystem, folder: str) -> bool:
    path = f"{folder.rstrip('/')}/{DELTA_LOG}" if folder else DELTA_LOG
    try:
        return bool(filesystem.get_file_info(path).type == pafs.FileType.Directory)
    except Exception:  # noqa: BLE001 - each store has its own errors for missing rights and missing buckets
        return False
