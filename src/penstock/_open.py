"""Opening a table: a URL is located, its format recognised, and one snapshot of it pinned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from penstock._engine.plan.table import Table
from penstock._engine.storage.file_errors import os_message
from penstock._engine.storage.filesystem import Source, locate
from penstock.codecs import Codec, classes, resolved
from penstock.dataset import Dataset
from penstock.errors import ArgumentError, TableNotFoundError
from penstock.formats import known_formats
from penstock.formats.parquet import FORMAT as PARQUET
from penstock.formats.parquet import UnrecognisedParquet
from penstock.model import Place
from penstock.protocols import TableFormat, TimeTravel

__all__ = ["open", "recognised"]


def open(
    source: Source,
    *,
    version: str | int | None = None,
    timestamp: str | datetime | None = None,
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    format: TableFormat | str | None = None,  # noqa: A002 - the word for it
    codecs: Iterable[type[Codec]] = (),
) -> Dataset:
    """Return a table as a dataset, pinned to what it is now or was at a version.

    Args:
        source: Where the table lies: a path, a URL, one with wildcards, or a list of them.
        version: Which of the table's versions, where its format has them.
        timestamp: The version that was the newest at that time, instead: ISO 8601 with a zone, or a datetime with one.
        filesystem: A filesystem of pyarrow or fsspec, where the source is a path in it.
        storage_options: Options for fsspec to open the URL: keys, endpoints.
        format: The table's format or its name, where it is not to be recognised.
        codecs: Codecs of your own that the table was written with, where they are not registered.

    Raises:
        ArgumentError: If the table has no such version, or no format is given for files of a Delta table.
        TableNotFoundError: If no known table lies there.

    Example:
        >>> from penstock.testing import MemoryFormat
        >>> table = MemoryFormat.of({"id": range(10)}, row_group_rows=4)
        >>> open("part-0.parquet", filesystem=table.filesystem).num_rows
        10
    """
    wanted = None if format is None else _named(format)
    given = classes(codecs, "open") if codecs != () else []
    place = locate(source, filesystem=filesystem, options=storage_options)
    found = recognised(place) if wanted is None else wanted
    snapshot = found.snapshot(place, version if timestamp is None else _version_at(found, place, version, timestamp))
    fields = {name: resolved(field, given) for name, field in snapshot.fields.items()}
    return Dataset(Table(snapshot=replace(snapshot, fields=fields), filesystem=place.filesystem))


def _named(format: object) -> TableFormat:  # noqa: A002 - the word for it
    """Return a format that was given, or one that is known by a name."""
    if isinstance(format, TableFormat):
        return format
    known = {each.name: each for each in known_formats()}
    if isinstance(format, str) and format in known:
        return known[format]
    msg = (
        f"open got format={format!r}; expected a TableFormat object, or one of the names {', '.join(map(repr, known))}. "
        "Give one, like ParquetFormat(), or leave it out."
    )
    raise ArgumentError(msg)


def _version_at(found: TableFormat, place: Place, version: str | int | None, timestamp: object) -> str | int:
    """Return the version that a table had at a time."""
    if version is not None:
        msg = f"open got version={version!r} and timestamp={timestamp!r}, which both name a version. Give one of them."
        raise ArgumentError(msg)
    if not isinstance(found, TimeTravel):
        msg = (
            f"timestamp={timestamp!r} was asked of {place.url}, but tables of the format {found.name} do not tell when their "
            "versions came. Leave it out."
        )
        raise ArgumentError(msg)
    try:
        moment = datetime.fromisoformat(timestamp) if isinstance(timestamp, str) else timestamp
    except ValueError:
        moment = None
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        msg = (
            f"open got timestamp={timestamp!r}; expected a time with a zone, as text or as a datetime. "
            "Write it like timestamp='2026-01-01T00:00:00Z'."
        )
        raise ArgumentError(msg)
    if moment > datetime.now(UTC):
        msg = f"open got timestamp={timestamp!r}, which is still to come. What the table was at a time was asked. Leave it out."
        raise ArgumentError(msg)
    return found.version_at(place, moment)


def recognised(place: Place) -> TableFormat:
    """Return the format of the table at a place.

    Raises:
        TableNotFoundError: If it is none that is known.
    """
    formats = known_formats()
    try:
        for known in formats:
            if known.recognises(place):
                return UnrecognisedParquet() if known is PARQUET else known
    except OSError as error:
        msg = f"{place.url!r} cannot be looked into: {os_message(error)}. Check the path, and what you may read there."
        raise TableNotFoundError(msg) from error
    tried = ", ".join(known.name for known in formats) or "none"
    msg = f"No table lies at {place.url!r}. Formats that were tried: {tried}. Check the path, or name the format with format=."
    raise TableNotFoundError(msg)
