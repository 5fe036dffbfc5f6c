"""Plain Parquet: a file, files, or a directory of them, with hive partitions in the names of directories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
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
from penstock.formats._stray_delta_log import refuse_strays
from penstock.model import DataFiles, Place, Snapshot
from penstock.schema import Field
from penstock.schema.compat import incompatible, storage_of
from penstock.schema.json import KEY, load

__all__ = ["FORMAT", "PRECEDENCE", "ParquetFormat"]

PRECEDENCE = 100
"""Tried last: formats that add a log or a schema to Parquet files come first."""

COMMON = "_common_metadata"
"""How writers of tables name whole numbers; Arrow reads other spellings, such as 0x1, as numbers too."""


@dataclass(frozen=True, slots=True)
class ParquetFormat:
    """Parquet files as they lie.

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

    def recognises(self, place: Place) -> bool:  # noqa: ARG002 - whatever lies there is tried
        """Return True: what no other format claims is taken for Parquet."""
        return True

    def snapshot(self, place: Place, version: str | int | None) -> Snapshot:
        """Return the files that lie at a place now.

        Raises:
            ArgumentError: If a version is asked for.
            TableNotFoundError: If there is no data file.
            DataError: If a file's schema cannot be read, or does not go with the others.
        """
        if version is not None:
            msg = f"version={version!r} was asked of {place.url}, but plain Parquet files have no versions. Leave it out."
            raise ArgumentError(msg)
        every = list_files(place)
        infos = data_files(place, visible(place.filesystem, place.path, every))
        self._check(place, every, infos)
        schemas = self._schemas(place, [info.path for info in infos])
        schema = self.columns if isinstance(self.columns, pa.Schema) else unified(schemas)
        fields = stored_fields(place, every, schemas)
        if not isinstance(self.columns, pa.Schema):
            check_types(place, schema, fields)
        return assembled(place, infos, schema, fields, sampled=self.columns is None)

    def _check(self, place: Place, every: list[pafs.FileInfo], infos: list[pafs.FileInfo]) -> None:
        """Refuse nothing: whoever asks for files as they lie gets them."""

    def _schemas(self, place: Place, paths: Sequence[str]) -> dict[str, pa.Schema]:
        """Return the schemas of whatever files the policy looks at, by path."""
        if self.columns is not None and not isinstance(self.columns, pa.Schema) and self.columns != "union":
            msg = f'ParquetFormat got columns={self.columns!r}. An Arrow schema, "union" or nothing was expected. Give one.'
            raise ArgumentError(msg)
        return file_schemas(place, paths if self.columns == "union" else [paths[0], paths[-1]])


FORMAT = ParquetFormat()


class Unclaimed(ParquetFormat):
    """Parquet files that nobody asked for as they lie: no other format has claimed them, which does not yet make them a table.

    Example:
        >>> Unclaimed().name
        'parquet'
    """

    __slots__ = ()

    def _check(self, place: Place, every: list[pafs.FileInfo], infos: list[pafs.FileInfo]) -> None:
        """Refuse files of a Delta table."""
        refuse_strays(place, every, infos)


def assembled(
    place: Place, infos: Sequence[pafs.FileInfo], schema: pa.Schema, fields: Mapping[str, Field], *, sampled: bool
) -> Snapshot:
    """Return the snapshot of a table without a log: its data files, the columns in them, and those that directories name.

    Args:
        place: Where it lies.
        infos: Its data files, in order.
        schema: The columns of the files.
        fields: What a stored schema says of columns.
        sampled: Whether the columns are those of some files only.

    Raises:
        DataError: If a partition value does not fit its type.
    """
    values = [hive_values(info.path, place.path) for info in infos]
    partitions = partition_table(values, _typed(schema, fields))
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


def _together(one: pa.Schema, two: pa.Schema) -> pa.Schema:
    """Return two schemas as one; a dictionary in one of them only is as good as its values, and a zone as good as another."""
    try:
        return pa.unify_schemas([one, two], promote_options="permissive")
    except pa.ArrowException:
        return pa.unify_schemas([_plainer(one, two), _plainer(two, one)], promote_options="permissive")


def _plainer(schema: pa.Schema, other: pa.Schema) -> pa.Schema:
    """Return a schema without dictionaries, views and zones but UTC, in those columns that another has in other types."""
    types = {field.name: field.type for field in other}
    same = {field.name for field in schema if types.get(field.name, field.type) == field.type}
    return pa.schema([field if field.name in same else field.with_type(_plain(field.type)) for field in schema])


def _plain(kind: pa.DataType) -> pa.DataType:
    return unviewed(in_utc(kind.value_type if pa.types.is_dictionary(kind) else kind))


def data_files(place: Place, every: list[pafs.FileInfo]) -> list[pafs.FileInfo]:
    """Return the data files among those at a place: hidden names left out, and other endings where Parquet's own are there.

    Raises:
        TableNotFoundError: If there is none.
    """
    shown = [info for info in every if place.path == info.path or not _hidden(info.path, place)]
    named = [info for info in shown if info.path.lower().endswith(ENDINGS)]
    found = named or shown
    if not found:
        msg = (
            f"No Parquet file lies at {place.url!r}: of {len(every)} files there none is data "
            "(names that begin with _ or . are left out). Check the path."
        )
        raise TableNotFoundError(msg)
    return found


def _hidden(path: str, place: Place) -> bool:
    """Return whether a path below a place has a part that readers of tables pass over, as Spark does."""
    if place.paths and path in place.paths:
        return False
    return any(is_hidden(part) for part in path[len(place.path) :].strip("/").split("/"))


def stored_fields(place: Place, every: list[pafs.FileInfo], schemas: Mapping[str, pa.Schema]) -> dict[str, Field]:
    """Return what schemas of ours say of columns: the one in `_common_metadata`, or else those in the footers of files.

    Raises:
        DataError: If a schema cannot be read, or two files say different things of one column.
    """
    common = small_file(place.filesystem, place.path, COMMON, every)
    if common is not None:
        path = place.path.rstrip("/") + "/" + COMMON
        found = told_fields(path, read_schema(path, common))
        if found:
            return found
    told: dict[str, tuple[str, Field]] = {}
    for path, schema in schemas.items():
        for name, field in told_fields(path, schema).items():
            where, before = told.setdefault(name, (path, field))
            if before != field:
                msg = (
                    f"{where} and {path} were written with different schemas: column {name!r} is {before} in the one and "
                    f"{field} in the other. One was expected. Open them apart, or adopt a schema that fits both."
                )
                raise DataError(msg)
    return {name: field for name, (_, field) in told.items()}


def check_types(place: Place, schema: pa.Schema, fields: Mapping[str, Field]) -> None:
    """Refuse what a stored schema says of columns that the files do not hold.

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


def told_fields(path: str, schema: pa.Schema) -> dict[str, Field]:
    """Return what a schema of ours in a file's metadata says of columns; nothing where there is none."""
    text = (schema.metadata or {}).get(KEY)
    if text is None:
        return {}
    try:
        return {field.name: field for field in load(text)}
    except DataError as error:
        raise DataError(f"{path}: {error}") from error


def _typed(schema: pa.Schema, fields: Mapping[str, Field]) -> pa.Schema:
    """Return a schema that also has the columns which only the names of directories hold."""
    more = [
        pa.field(name, field.codec.storage(field))
        for name, field in fields.items()
        if name not in schema.names and isinstance(field.codec, Scalar)
    ]
    return pa.schema([*schema, *more])


def unified(schemas: Mapping[str, pa.Schema]) -> pa.Schema:
    """Return one schema for files whose schemas differ: all columns, each in the widest of its types.

    Raises:
        DataError: If a column has types that have none in common.

    Example:
        >>> one, two = pa.schema({"a": pa.int32()}), pa.schema({"a": pa.int64(), "b": pa.string()})
        >>> unified({"1.parquet": one, "2.parquet": two}).types
        [DataType(int64), DataType(string)]
    """
    found, *others = schemas.items()
    path, schema = found
    for other, more in others:
        try:
            schema = _together(schema.remove_metadata(), more.remove_metadata())
        except pa.ArrowException as error:
            msg = (
                f"The schemas of {path} and {other} do not go together: {error} One type was expected for each column. "
                "Rewrite one of the files, or open with a schema of your own: format=ParquetFormat(columns=schema)."
            )
            raise DataError(msg) from error
    return schema
