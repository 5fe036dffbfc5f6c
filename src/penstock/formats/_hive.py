"""Partition values in the names of directories, as Hive writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import unquote
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from penstock._arrow_types import unviewed
from penstock.errors import DataError

__all__ = ["NULL", "hive_values", "partition_table"]

NULL = "__HIVE_DEFAULT_PARTITION__"

INTEGER = re.compile(r"-?[0-9]+")


def hive_values(path: str, base: str) -> dict[str, str | None]:
    """Return the partition values that the directories between a base and a file name.

    Example:
        >>> hive_values("/t/day=mon/city=S%C3%A3o/x.parquet", "/t")
        {'day': 'mon', 'city': 'São'}
    """
    found: dict[str, str | None] = {}
    for part in path[len(base) :].split("/")[:-1]:
        name, equals, value = part.partition("=")
        if equals:
            found[unquote(name)] = None if value == NULL else unquote(value)
    return found


def partition_table(values: Sequence[Mapping[str, str | None]], schema: pa.Schema) -> pa.Table:
    """Return partition values as columns: integers where all are and fit, else text, or the type that the schema says."""
    names = list(dict.fromkeys(name for file in values for name in file))
    columns = {}
    for name in names:
        cells = [file.get(name) for file in values]
        kind = schema.field(name).type if name in schema.names else None
        texts = pa.array(cells, type=pa.string())
        if kind is None or kind == pa.null():
            whole = _integers(cells, texts)
            columns[name] = texts if whole is None else whole
            continue
        try:
            columns[name] = _read_as(kind, texts)
        except (pa.ArrowException, ValueError) as error:
            why = str(error).rstrip(".")
            msg = f"Partition column {name!r} does not fit its type {kind}: {why}. Give another type in the schema."
            raise DataError(msg) from error
    return pa.table(columns) if columns else pa.table({})


def _read_as(kind: pa.DataType, texts: pa.Array) -> pa.Array:
    """Return text as values of a type; of views, which rows cannot be picked from, as those that they stand for."""
    if isinstance(kind, pa.UuidType):
        cells = [None if text is None else UUID(text).bytes for text in texts.to_pylist()]
        return pa.ExtensionArray.from_storage(kind, pa.array(cells, kind.storage_type))
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _read_as(kind.storage_type, texts))
    if pa.types.is_time(kind):
        return pc.binary_join_element_wise("1970-01-01", texts, " ").cast(pa.timestamp("ns")).cast(kind)
    return texts.cast(unviewed(kind))


def _integers(cells: Sequence[str | None], texts: pa.Array) -> pa.Array | None:
    """Return partition values as whole numbers; None where one is something else, or too large, or all are null."""
    if texts.null_count == len(texts) or not all(cell is None or INTEGER.fullmatch(cell) for cell in cells):
        return None
    try:
        return texts.cast(pa.int64())
    except pa.ArrowException:
        return None
