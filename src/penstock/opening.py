"""Opening a table: a URL is located, its format recognised, and one snapshot of it pinned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pyarrow import fs as pafs

from penstock._engine.storage import Source, locate
from penstock._engine.table import Table
from penstock.codecs import Codec, resolved
from penstock.dataset import Dataset
from penstock.errors import ArgumentError, TableNotFoundError
from penstock.formats import known_formats
from penstock.model import Place
from penstock.protocols import TableFormat

__all__ = ["open", "recognised"]


def open(
    source: Source,
    *,
    version: str | int | None = None,
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    format: TableFormat | None = None,  # noqa: A002 - the word for it
    codecs: Iterable[type[Codec]] = (),
) -> Dataset:
    """Return a table as a dataset, pinned to what it is now or was at a version.

    Args:
        source: Where the table lies: a path, a URL, one with wildcards, or a list of them.
        version: Which of the table's versions, where its format has them.
        filesystem: A filesystem of pyarrow or fsspec, where the source is a path in it.
        storage_options: What fsspec is told to open the URL with: keys, endpoints.
        format: The table's format, where it is not to be recognised.
        codecs: Codecs of your own that the table was written with, where they are not registered.

    Raises:
        TableNotFoundError: If no known table lies there.

    Example:
        >>> from penstock.testing import MemoryFormat
        >>> table = MemoryFormat.of({"id": range(10)}, row_group_rows=4)
        >>> open("part-0.parquet", filesystem=table.filesystem).num_rows
        10
    """
    if format is not None and not isinstance(format, TableFormat):
        msg = f"open got format={format!r}. A TableFormat object was expected. Give one, like ParquetFormat(), or leave it out."
        raise ArgumentError(msg)
    given: list[object] = list(codecs)
    strangers = [codec for codec in given if not (isinstance(codec, type) and issubclass(codec, Codec))]
    if strangers:
        msg = f"open got {strangers[0]!r} among codecs. Classes of codecs were expected. Give them: codecs=[TheCodec]."
        raise ArgumentError(msg)
    place = locate(source, filesystem=filesystem, options=storage_options)
    found = format if format is not None else recognised(place)
    snapshot = found.snapshot(place, version)
    fields = {
        name: resolved(field, [codec for codec in given if isinstance(codec, type)]) for name, field in snapshot.fields.items()
    }
    return Dataset(Table(snapshot=replace(snapshot, fields=fields), filesystem=place.filesystem))


def recognised(place: Place) -> TableFormat:
    """Return the format of the table at a place.

    Raises:
        TableNotFoundError: If it is none that is known.
    """
    log = place.filesystem.get_file_info(place.path.rstrip("/") + "/_delta_log")
    if not place.paths and log.type == pafs.FileType.Directory:
        msg = (
            f"{place.url!r} is a Delta table: its log says which of its files count. This version does not read Delta logs. "
            "Open its files as they lie, removed ones among them, with format=penstock.formats.parquet.ParquetFormat()."
        )
        raise TableNotFoundError(msg)
    formats = known_formats()
    for known in formats:
        if known.recognises(place):
            return known
    told = ", ".join(known.name for known in formats) or "none"
    msg = f"No table lies at {place.url!r}. Formats that were tried: {told}. Check the path, or name the format with format=."
    raise TableNotFoundError(msg)
