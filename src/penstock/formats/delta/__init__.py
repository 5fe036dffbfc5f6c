"""Delta Lake: a table whose log says which files count, at every one of its versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from typing import Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from penstock.errors import ArgumentError, DataError
from penstock.formats.delta.changes import ADDED, CHANGE, added
from penstock.formats.delta.deletion_vectors import deletes, described
from penstock.formats.delta.encode_actions import suited, told_fields
from penstock.formats.delta.log import LOG, Log, list_log
from penstock.formats.delta.partition_values import partition_column
from penstock.formats.delta.replay import read_actions
from penstock.formats.delta.schema import Columns, Metadata, check_protocol
from penstock.formats.delta.sources import LogChangedError, commit_time
from penstock.formats.delta.stats import Statistics
from penstock.formats.delta.write import DeltaChange, Mode, begin
from penstock.model import Changed, DataFiles, IntArray, Place, Snapshot
from penstock.schema import Schema

__all__ = ["FORMAT", "PRECEDENCE", "DeltaFormat"]

Told = TypeVar("Told")

PRECEDENCE = 10
"""Tried early: a log says which of the Parquet files beside it count."""

ATTEMPTS = 3
"""How often a log is listed that is cleaned up while it is read."""


@dataclass(frozen=True, slots=True)
class DeltaFormat:
    """Delta Lake tables, by their log.

    Args:
        timezone: The zone of the systems that wrote the table. Partition values that are timestamps may be stored without
            a zone, and then are in that of their writer, which the table does not tell.

    Example:
        >>> DeltaFormat().name
        'delta'
    """

    timezone: str = "UTC"

    @property
    def name(self) -> str:
        """The name of the format."""
        return "delta"

    def recognises(self, place: Place) -> bool:
        """Return whether a log lies at a place."""
        log = f"{place.path.rstrip('/')}/{LOG}"
        return not place.paths and place.filesystem.get_file_info(log).type == pafs.FileType.Directory

    def snapshot(self, place: Place, version: str | int | None) -> Snapshot:
        """Return the table's facts at a version; at the newest where none is given.

        Raises:
            ArgumentError: If there is no such version.
            DataError: If the log cannot be read, or the table needs what is not known here.
        """
        zone, number = self._zone(), _number(version)
        return _of_log(place, lambda log: _snapshot(place, log, number, zone))

    def version_at(self, place: Place, moment: datetime) -> int:
        """Return the version that was the newest at a moment.

        Raises:
            ArgumentError: If the table was not there yet.
            DataError: If the log cannot be read.
        """

        def found(log: Log) -> int:
            metadata = Metadata.of(read_actions(place, log, None).metadata, place.url)
            return log.version_at(moment, metadata.times_in_commits, lambda path: commit_time(place.filesystem, path))

        return _of_log(place, found)

    def changes(self, place: Place, first: int, last: int | None) -> Changed:
        """Return what was added after one version and up to another; up to the newest where none is given.

        Raises:
            ArgumentError: If there is no such version, or a commit between is gone.
            DataError: If a commit does not tell what it added.
        """
        zone = self._zone()
        return _of_log(place, lambda log: _changed(place, log, (first, last), zone))

    def suited(self, schema: Schema) -> Schema:
        """Return a schema whose fields without a codec get one that Delta has a type for."""
        return suited(schema)

    def begin(self, place: Place, mode: Mode) -> DeltaChange:
        """Return a change of the table at a place, which need not be there yet.

        Raises:
            ArgumentError: If the mode, the storage or the table's own rules do not allow it.
        """
        return begin(place, mode)

    def _zone(self) -> tzinfo:
        try:
            return UTC if self.timezone == "UTC" else ZoneInfo(self.timezone)  # not every machine has a list of zones
        except (ZoneInfoNotFoundError, ValueError, TypeError, OSError) as error:
            msg = f"DeltaFormat got timezone={self.timezone!r}. The name of a zone was expected. Give one: 'America/New_York'."
            raise ArgumentError(msg) from error


FORMAT = DeltaFormat()


def _of_log(place: Place, told: Callable[[Log], Told]) -> Told:
    """Return what is told of a table's log, which is listed again where files of it go away meanwhile."""
    for _ in range(ATTEMPTS):
        try:
            return told(list_log(place))
        except LogChangedError as error:
            gone = error
    msg = f"{gone}: the file was listed in the table's log and is gone. The log is being cleaned up; open the table again."
    raise DataError(msg) from gone


def _number(version: Any) -> int | None:
    """Return a version as a number."""
    if version is None or (isinstance(version, int) and not isinstance(version, bool)):
        return version
    if isinstance(version, str) and version.isdecimal():
        return int(version)
    msg = (
        f"version={version!r} was asked for, but the versions of a Delta table are whole numbers. Give one, such as version=3."
    )
    raise ArgumentError(msg)


def _snapshot(place: Place, log: Log, number: int | None, zone: tzinfo) -> Snapshot:
    actions = read_actions(place, log, number)
    check_protocol(actions.protocol, place.url)
    metadata = Metadata.of(actions.metadata, place.url)
    columns = metadata.columns(actions.protocol, place.url)
    table = actions.files(place, [*columns.partitions.values(), *columns.aliases.values()])
    files = _data_files(place, table, columns, actions.version, zone)
    return Snapshot(
        table=place.url,
        version=str(actions.version),
        schema=columns.schema,
        files=files,
        names=columns.names,
        stored=columns.stored,
        fields=told_fields(metadata.schema_text, columns.schema, place.url),
    )


def _changed(place: Place, log: Log, versions: tuple[int, int | None], zone: tzinfo) -> Changed:
    first, last = (_number(version) for version in versions)
    if first is not None:
        log.check(first, "a from_version", "or open the table whole")
    until = log.newest if last is None else last
    log.check(until, "a version", "or none")
    if first is None or first > until:
        msg = (
            f"{place.url} was asked what was added from version {first} to {until}. Two versions, the older one "
            "first, were expected. Give them in this order."
        )
        raise ArgumentError(msg)
    actions = read_actions(place, log, until)
    check_protocol(actions.protocol, place.url)
    metadata = Metadata.of(actions.metadata, place.url)
    columns = metadata.columns(actions.protocol, place.url)
    found = added(place, log, range(first + 1, until + 1), [*columns.partitions.values(), *columns.aliases.values()])
    more = [pa.field(CHANGE, pa.string())] if found.fed else []
    snapshot = Snapshot(
        table=place.url,
        version=f"{first}..{until}",
        schema=pa.schema([*columns.schema, *more]),
        files=_only(_data_files(place, found.files, columns, until, zone), found.only, place.filesystem),
        names=columns.names,
        stored=pa.schema([*columns.stored, *more]),
        fields=told_fields(metadata.schema_text, columns.schema, place.url),
        origins=dict(zip(found.files["path"].to_pylist(), found.versions, strict=True)),
    )
    return Changed(snapshot=snapshot, column=CHANGE if found.fed else None, kinds=ADDED)


def _data_files(place: Place, table: pa.Table, columns: Columns, version: int, zone: tzinfo) -> DataFiles:
    """Return the files of a replayed log."""
    found = {name: _array(table[name]) for name in table.column_names}
    _check_partitions(found, columns, place, version)
    statistics = Statistics.of(found["stats"], found.get("parsed"), columns.leaves)
    partitions = {
        name: partition_column(found[f"={key}"], columns.schema.field(name).type, zone, f"{name!r} of {place.url}")
        for name, key in columns.partitions.items()
    }
    deleted = np.flatnonzero(found["vector"].is_valid().to_numpy(zero_copy_only=False)).tolist()
    written = pc.binary_join_element_wise(found["size"].cast(pa.string()), found["modified"].cast(pa.string()), ":")
    return DataFiles(
        path=found["path"],
        size=found["size"].to_numpy(),
        rows=statistics.rows,
        stamp=written,
        partitions=pa.table(partitions) if partitions else pa.table({}),
        ranges=statistics,
        deletes=deletes(described(found["vector"], deleted), place, version) if deleted else {},
    )


def _check_partitions(found: Mapping[str, pa.Array], columns: Columns, place: Place, version: int) -> None:
    """Refuse partition values that the log has under another name than the table's: they would all be null."""
    for name, alias in columns.aliases.items():
        key = columns.partitions[name]
        odd = pc.and_(pc.is_null(found[f"={key}"]), pc.is_valid(found[f"={alias}"]))
        if pc.any(odd).as_py():
            path = found["path"].filter(odd)[0]
            msg = (
                f"{place.url} version {version}: the partition column {name!r} of the table has no value under {key!r} in the "
                f"log's entry for {path}, and one under {alias!r}. Nulls would be wrong. Have the software that wrote the "
                "table repair its log: the names of columns, and whether the protocol has column mapping, must agree."
            )
            raise DataError(msg)


def _only(files: DataFiles, only: Mapping[int, IntArray], filesystem: pafs.FileSystem) -> DataFiles:
    """Return files with all rows of some of them deleted but those named."""
    found = dict(files.deletes)
    for file, rows in only.items():
        count = int(files.rows[file])
        if count < 0:
            count = _count(files.path[file].as_py(), filesystem)
        found[file] = np.setdiff1d(np.arange(count), rows, assume_unique=True)
    return replace(files, deletes=found)


def _count(path: str, filesystem: pafs.FileSystem) -> int:
    """Return the rows of a file of which the log does not say how many it has."""
    try:
        return int(pq.read_metadata(path, filesystem=filesystem).num_rows)
    except (OSError, pa.ArrowException) as error:
        msg = (
            f"{path}: how many rows the file has cannot be read: {error}. The table's log does not say it, and deleted rows of "
            "the file are there again. Restore the file, or give a later from_version."
        )
        raise DataError(msg) from error


def _array(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
