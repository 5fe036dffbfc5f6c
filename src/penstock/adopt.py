"""Giving a schema to a table that others wrote: its data files stay as they are."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from penstock import codecs
from penstock._engine.commit.change import begin, visible
from penstock._engine.commit.log import fresh_listing
from penstock._engine.parquet.footer import read_schema
from penstock._engine.storage.file_errors import system_words
from penstock._engine.storage.filesystem import destination
from penstock._engine.write.cast import fitted, sampled
from penstock._engine.write.errors import refusals_told
from penstock._engine.write.parquet_options import common_metadata
from penstock._engine.write.validate import Misfit
from penstock.dtypes import is_encoded, is_ragged, plain
from penstock.errors import ArgumentError, ColumnNotFoundError, DataError, TableNotFoundError
from penstock.formats._hive import hive_values, partition_table
from penstock.formats.parquet import COMMON, data_files, unified
from penstock.model import Place
from penstock.schema import CellCodec, Field, Schema
from penstock.schema.compat import incompatible, storage_of
from penstock.schema.json import KEY, dump

__all__ = ["adopt"]

FOOTERS_AT_ONCE = 16
FIRST_ROWS = 16


def adopt(
    source: str | os.PathLike[str],
    schema: Schema,
    *,
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Give a schema to a directory of Parquet files, so that opening it decodes its cells.

    Data files are not touched: the schema is written beside them, to `_common_metadata`. Every file must have the columns of
    the schema in a type that suits their codecs, and a first cell of each that is encoded must decode. A field that is not
    nullable must have no nulls, as far as the statistics of files tell. Columns that the schema does not name stay as they
    are.

    Args:
        source: The directory: a path or a URL.
        schema: What its columns hold.
        filesystem: A filesystem of pyarrow or fsspec, where the source is a path in it.
        storage_options: What fsspec is told to open the URL with: keys, endpoints.

    Raises:
        ArgumentError: If it is no directory, or a column does not suit its field.
        ColumnNotFoundError: If a field has no column.
        TableNotFoundError: If storage does not tell what lies there.
        WriteError: If storage refuses the schema.

    Example:
        >>> import numpy as np, pyarrow as pa, pyarrow.parquet as pq, tempfile
        >>> from penstock import Field, Schema
        >>> place = tempfile.mkdtemp()
        >>> pq.write_table(pa.table({"x": pa.array([[1, 2], [3, 4]], pa.list_(pa.int32()))}), place + "/a.parquet")
        >>> adopt(place, Schema("Pairs", [Field("x", np.int32, (2,))]))
    """
    if not isinstance(schema, Schema) or not schema.fields:  # type: ignore[redundant-expr] # a user may give anything
        msg = f"adopt got schema={schema!r}. A penstock.Schema with at least one field was expected. Give one."
        raise ArgumentError(msg)
    full = Schema(schema.name, [each if each.codec else each.with_codec(codecs.default(each)) for each in schema])
    place = destination(source, filesystem=filesystem, options=storage_options)
    try:
        found = place.filesystem.get_file_info(place.path).type
    except OSError as error:
        msg = f"{place.url!r} cannot be looked at: {system_words(error)}. Check the path, and what you may read there."
        raise TableNotFoundError(msg) from error
    if found != pafs.FileType.Directory:
        msg = (
            f"adopt got {place.url!r}, where no directory lies. A directory of Parquet files was expected. Give one; a single "
        )
        raise ArgumentError(msg + "file or a pattern has no place for a schema.")
    _adopt(place, full)


def _adopt(place: Place, schema: Schema) -> None:
    with refusals_told("The schema", place.url):
        change = begin(place.filesystem, place.path, "append", url=place.url)
    try:
        every = visible(place.filesystem, place.path, fresh_listing(place))
        try:
            paths = [info.path for info in data_files(place, every)]
        except TableNotFoundError as error:
            raise ArgumentError(f"adopt: {error}") from error
        columns = _checked(place, paths, schema)
        common = next((info.path for info in every if info.path == f"{place.path}/{COMMON}"), None)
        before = columns if common is None else read_schema(common, place.filesystem)
        metadata = {**(before.metadata or {}), KEY: dump(schema).encode()}
        with refusals_told("The schema", place.url):
            change.finish({COMMON: common_metadata(before.with_metadata(metadata))})
    except BaseException:
        change.abort()
        raise


def _checked(place: Place, paths: Sequence[str], schema: Schema) -> pa.Schema:
    """Return the columns of all files together, after a check of those that the schema names."""
    with ThreadPoolExecutor(min(FOOTERS_AT_ONCE, len(paths)), thread_name_prefix="penstock-footers") as pool:
        schemas = dict(zip(paths, pool.map(partial(read_schema, filesystem=place.filesystem), paths), strict=True))
    values = [hive_values(path, place.path) for path in paths]
    partitions = {name for value in values for name in value}
    found = unified(schemas)
    for field in schema:
        if field.name in partitions:
            _check_partition(field, [value.get(field.name) for value in values])
            continue
        if field.name not in found.names:
            raise ColumnNotFoundError.of(field.name, [*found.names, *partitions], table=place.url)
        for path, columns in schemas.items():
            if field.name in columns.names:
                _check_type(field, columns.field(field.name).type, path)
            elif not field.nullable:
                msg = f"Column {field.name!r} is not in {path}, and the field is not nullable. It was expected in every file. "
                raise ArgumentError(msg + f"Allow nulls: Field({field.name!r}, ..., nullable=True).")
    _check_nulls(place, schemas, schema)
    _check_cells(place, schemas, schema)
    kept = [column for column in found if column.name not in partitions]
    typed = pa.schema([pa.field(field.name, storage_of(field)) for field in schema if field.name in partitions])
    return pa.schema([*kept, *partition_table(values, pa.schema([*kept, *typed])).schema])


def _check_partition(field: Field, cells: Sequence[str | None]) -> None:
    """Refuse a field that does not hold what the names of directories say."""
    if not isinstance(field.codec, codecs.Scalar):
        msg = f"Column {field.name!r} is named by directories, and {field.codec!r} does not store such. Use Scalar()."
        raise ArgumentError(msg)
    try:
        pa.array(cells, type=pa.string()).cast(storage_of(field))
    except pa.ArrowException as error:
        msg = (
            f"Column {field.name!r} is named by directories, whose values do not fit {field.dtype}: {error}. Use another dtype."
        )
        raise ArgumentError(msg) from error


def _check_type(field: Field, kind: pa.DataType, path: str) -> None:
    """Refuse a column whose type is none that the field's codec reads."""
    expected = incompatible(field, kind)
    if expected is not None:
        msg = f"Column {field.name!r} is {kind} in {path}, and {field.codec!r} reads {expected}. "
        deferred = is_ragged(kind) and None in field.shape
        advice = (
            "Leave the field out: lists are arrays as they are."
            if deferred
            else "Give the field another dtype, shape or codec."
        )
        raise ArgumentError(msg + advice)


def _check_nulls(place: Place, schemas: Mapping[str, pa.Schema], schema: Schema) -> None:
    """Refuse nulls under a field that has none, as far as the statistics of files tell of them."""
    full = {field.name for field in schema if not field.nullable}
    paths = [path for path, columns in schemas.items() if any(each.nullable for each in columns if each.name in full)]
    with ThreadPoolExecutor(FOOTERS_AT_ONCE, thread_name_prefix="penstock-footers") as pool:
        for path, nulls in zip(paths, pool.map(partial(_nulls_in, place, full), paths), strict=True):
            for name, group, count in nulls:
                msg = f"Column {name!r} of {path} has {count} nulls in row group {group}, and the field is not nullable. "
                raise ArgumentError(f"{msg}Values were expected. Allow nulls: Field({name!r}, ..., nullable=True).")


def _nulls_in(place: Place, names: Collection[str], path: str) -> list[tuple[str, int, int]]:
    """Return those of some columns of single values that have nulls in a file, with their first row group and its nulls."""
    with place.filesystem.open_input_file(path) as source:
        footer = pq.read_metadata(source)
    found: dict[str, tuple[str, int, int]] = {}
    flat = [at for at in range(footer.num_columns) if footer.schema.column(at).max_definition_level <= 1]
    for group, at in product(range(footer.num_row_groups), flat):
        chunk = footer.row_group(group).column(at)
        told = chunk.statistics if chunk.path_in_schema in names else None
        if told is not None and told.has_null_count and told.null_count:
            found.setdefault(chunk.path_in_schema, (chunk.path_in_schema, group, told.null_count))
    return list(found.values())


def _check_cells(place: Place, schemas: Mapping[str, pa.Schema], schema: Schema) -> None:
    """Decode the first cell of every column that is encoded, or unpack the first lists, of the first file that has rows."""
    for field in schema:
        if not isinstance(field.codec, (CellCodec, codecs.Tensor)):
            continue
        for path in [path for path, columns in schemas.items() if field.name in columns.names]:
            array = _first_cells(place, path, field.name)
            if len(array):
                _check_array(field, array, path)
                break


def _first_cells(place: Place, path: str, name: str) -> pa.Array:
    """Return the first cells of a column of a file; none where it has no rows."""
    try:
        with pq.ParquetFile(path, filesystem=place.filesystem) as file:
            found = next(file.iter_batches(batch_size=FIRST_ROWS, columns=[name]), None)
    except (OSError, pa.ArrowException) as error:
        msg = f"Column {name!r} of {path} cannot be read: {error}. A Parquet file was expected. Check what wrote it."
        raise DataError(msg) from error
    return pa.nulls(0) if found is None or not found.num_columns else found.column(0)


def _check_array(field: Field, array: pa.Array, path: str) -> None:
    array = plain(array) if is_encoded(array.type) else array
    try:
        if isinstance(field.codec, CellCodec):
            sampled(field, field.codec, array)
        else:
            fitted(field, field.codec, pa.field(field.name, storage_of(field), nullable=field.nullable), array)
    except Misfit as misfit:
        msg = f"Column {field.name!r} does not hold in {path} what its field says: row {misfit.row} {misfit}"
        raise ArgumentError(msg) from misfit
