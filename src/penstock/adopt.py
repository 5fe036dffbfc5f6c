"""Adding a schema to a table of other software; its data files stay unchanged."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from penstock import codecs
from penstock._engine.commit.change import begin
from penstock._engine.commit.log import fresh_listing, visible
from penstock._engine.parquet.footer import read_schema
from penstock._engine.runtime.threads import parallel_map
from penstock._engine.storage.file_errors import os_message
from penstock._engine.storage.filesystem import destination
from penstock._engine.write.cast import cast_column, check_first_cell
from penstock._engine.write.errors import storage_errors
from penstock._engine.write.parquet_options import common_metadata
from penstock._engine.write.validate import InvalidCellError
from penstock.dtypes import is_encoded, is_ragged, plain
from penstock.errors import ArgumentError, ColumnNotFoundError, DataError, TableNotFoundError
from penstock.formats._hive import hive_values, partition_table
from penstock.formats.parquet import COMMON, data_files, unify_schemas
from penstock.model import Place
from penstock.schema import CellCodec, Field, Schema
from penstock.schema.compat import incompatible, storage_of
from penstock.schema.json import KEY, dump

__all__ = ["adopt"]

PARALLEL_FOOTERS = 16
FIRST_ROWS = 16


def adopt(
    source: str | os.PathLike[str], schema: Schema, *, filesystem: Any = None, storage_options: Mapping[str, Any] | None = None
) -> None:
    """Add a schema to a directory of Parquet files, so that opening it decodes its cells.

    Data files do not change: the schema is written to `_common_metadata`. Every file must have the columns of the schema in
    a type that suits their codecs, and the first encoded cell of each column must decode. The statistics of a field that is
    not nullable must show no nulls. Columns that are not in the schema stay as they are.

    Args:
        source: The directory: a path or a URL.
        schema: The fields of its columns.
        filesystem: A filesystem of pyarrow or fsspec; the source is a path in it.
        storage_options: Options of fsspec for the URL: keys, endpoints.

    Raises:
        ArgumentError: If the source is not a directory, or a column does not suit its field.
        ColumnNotFoundError: If a field has no column.
        TableNotFoundError: If storage cannot show what the source is.
        WriteError: If storage refuses the schema.

    Example:
        >>> import numpy as np, pyarrow as pa, pyarrow.parquet as pq, tempfile
        >>> from penstock import Field, Schema
        >>> place = tempfile.mkdtemp()
        >>> pq.write_table(pa.table({"x": pa.array([[1, 2], [3, 4]], pa.list_(pa.int32()))}), place + "/a.parquet")
        >>> adopt(place, Schema("Pairs", [Field("x", np.int32, (2,))]))
    """
    if not isinstance(schema, Schema) or not schema.fields:  # type: ignore[redundant-expr] # a user may give anything
        raise ArgumentError(f"adopt() got schema={schema!r}; expected a penstock.Schema with at least one field. Give one.")
    full = Schema(schema.name, [each if each.codec else each.with_codec(codecs.default(each)) for each in schema])
    place = destination(source, filesystem=filesystem, options=storage_options)
    try:
        kind = place.filesystem.get_file_info(place.path).type
    except OSError as error:
        msg = f"{place.url!r} cannot be read: {os_message(error)}. Check the path, and your permission to read it."
        raise TableNotFoundError(msg) from error
    if kind != pafs.FileType.Directory:
        raise ArgumentError(
            f"adopt() got {place.url!r}, where there is no directory; expected a directory of Parquet files. Give one; a "
            "single file or a pattern cannot have a schema."
        )
    with storage_errors("The schema", place.url):
        change = begin(place.filesystem, place.path, "append", url=place.url)
    try:
        infos = visible(place.filesystem, place.path, fresh_listing(place))
        try:
            paths = [info.path for info in data_files(place, infos)]
        except TableNotFoundError as error:
            raise ArgumentError(f"adopt: {error}") from error
        columns = _check_files(place, paths, full)
        common = next((info.path for info in infos if info.path == f"{place.path}/{COMMON}"), None)
        before = columns if common is None else read_schema(common, place.filesystem)
        metadata = {**(before.metadata or {}), KEY: dump(full).encode()}
        with storage_errors("The schema", place.url):
            change.finish({COMMON: common_metadata(before.with_metadata(metadata))})
    except BaseException:
        change.abort()
        raise


def _check_files(place: Place, paths: Sequence[str], schema: Schema) -> pa.Schema:
    """Return the columns of all files together; refuse those that do not suit the schema."""
    footers = parallel_map(partial(read_schema, filesystem=place.filesystem), paths, PARALLEL_FOOTERS)
    schemas = dict(zip(paths, footers, strict=True))
    values = [hive_values(path, place.path) for path in paths]
    partitions = {name for value in values for name in value}
    columns = unify_schemas(schemas)
    for field in schema:
        if field.name in partitions:
            _check_partition(field, [value.get(field.name) for value in values])
            continue
        if field.name not in columns.names:
            raise ColumnNotFoundError.of(field.name, [*columns.names, *partitions], table=place.url)
        for path, file_schema in schemas.items():
            if field.name in file_schema.names:
                _check_type(field, file_schema.field(field.name).type, path)
            elif not field.nullable:
                raise ArgumentError(
                    f"Column {field.name!r} is not in {path}, and the field is not nullable; expected it in every file. Allow "
                    f"nulls: Field({field.name!r}, ..., nullable=True)."
                )
    _check_nulls(place, schemas, schema)
    _check_cells(place, schemas, schema)
    in_files = [column for column in columns if column.name not in partitions]
    typed = pa.schema([pa.field(field.name, storage_of(field)) for field in schema if field.name in partitions])
    return pa.schema([*in_files, *partition_table(values, pa.schema([*in_files, *typed])).schema])


def _check_partition(field: Field, cells: Sequence[str | None]) -> None:
    """Refuse a field that cannot hold the values in the names of directories."""
    if not isinstance(field.codec, codecs.Scalar):
        raise ArgumentError(
            f"Column {field.name!r} is a partition column, which {field.codec!r} cannot store; expected Scalar(). Use it."
        )
    try:
        pa.array(cells, type=pa.string()).cast(storage_of(field))
    except pa.ArrowException as error:
        msg = f"Column {field.name!r} is a partition column; its values do not fit {field.dtype}: {error}. Use another dtype."
        raise ArgumentError(msg) from error


def _check_type(field: Field, kind: pa.DataType, path: str) -> None:
    """Refuse a column of a type that the field's codec cannot read."""
    expected = incompatible(field, kind)
    if expected is not None:
        is_list = is_ragged(kind) and None in field.shape
        advice = (
            "Leave the field out: lists become arrays without it."
            if is_list
            else "Give the field another dtype, shape or codec."
        )
        raise ArgumentError(f"Column {field.name!r} is {kind} in {path}, and {field.codec!r} reads {expected}. {advice}")


def _check_nulls(place: Place, schemas: Mapping[str, pa.Schema], schema: Schema) -> None:
    """Refuse nulls in columns whose field is not nullable, as far as the statistics of files show them."""
    required = {field.name for field in schema if not field.nullable}
    paths = [path for path, columns in schemas.items() if any(each.nullable for each in columns if each.name in required)]
    counts = parallel_map(partial(_count_nulls, place, required), paths, PARALLEL_FOOTERS)
    for path, nulls in zip(paths, counts, strict=True):
        for name, (group, count) in nulls.items():
            raise ArgumentError(
                f"Column {name!r} of {path} has {count} nulls in row group {group}, and the field is not nullable; "
                f"expected values. Allow nulls: Field({name!r}, ..., nullable=True)."
            )


def _count_nulls(place: Place, names: Collection[str], path: str) -> dict[str, tuple[int, int]]:
    """Return for each flat column with nulls the first row group that has them, and their number there."""
    with place.filesystem.open_input_file(path) as source:
        footer = pq.read_metadata(source)
    nulls: dict[str, tuple[int, int]] = {}
    flat = [at for at in range(footer.num_columns) if footer.schema.column(at).max_definition_level <= 1]
    for group, at in product(range(footer.num_row_groups), flat):
        chunk = footer.row_group(group).column(at)
        statistics = chunk.statistics if chunk.path_in_schema in names else None
        if statistics is not None and statistics.has_null_count and statistics.null_count:
            nulls.setdefault(chunk.path_in_schema, (group, statistics.null_count))
    return nulls


def _check_cells(place: Place, schemas: Mapping[str, pa.Schema], schema: Schema) -> None:
    """Decode the first cell of every encoded column, or unpack the first lists, in the first file that has rows."""
    for field in schema:
        if not isinstance(field.codec, (CellCodec, codecs.Tensor)):
            continue
        for path in [path for path, columns in schemas.items() if field.name in columns.names]:
            array = _read_first_cells(place, path, field.name)
            if len(array):
                _check_array(field, array, path)
                break


def _read_first_cells(place: Place, path: str, name: str) -> pa.Array:
    """Return the first cells of a column of a file; none if it has no rows."""
    try:
        with pq.ParquetFile(path, filesystem=place.filesystem) as file:
            batch = next(file.iter_batches(batch_size=FIRST_ROWS, columns=[name]), None)
    except (OSError, pa.ArrowException) as error:
        msg = f"Column {name!r} of {path} cannot be read: {error}; expected a Parquet file. Check the software that wrote it."
        raise DataError(msg) from error
    return pa.nulls(0) if batch is None or not batch.num_columns else batch.column(0)


def _check_array(field: Field, array: pa.Array, path: str) -> None:
    array = plain(array) if is_encoded(array.type) else array
    try:
        if isinstance(field.codec, CellCodec):
            check_first_cell(field, field.codec, array)
        else:
            cast_column(field, field.codec, pa.field(field.name, storage_of(field), nullable=field.nullable), array)
    except InvalidCellError as error:
        msg = f"Column {field.name!r} in {path} does not match its field: row {error.row} {error}"
        raise ArgumentError(msg) from error
