"""Snapshots and changes of a Delta table, read from its log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, tzinfo
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from penstock.errors import ArgumentError, DataError
from penstock.formats.delta.changes import ADDED, CHANGE, read_added
from penstock.formats.delta.deletion_vectors import deleted_rows, parse_vectors
from penstock.formats.delta.encode_actions import stored_fields
from penstock.formats.delta.log import Log, list_log
from penstock.formats.delta.partition_values import partition_column
from penstock.formats.delta.replay import read_actions
from penstock.formats.delta.schema import Columns, Metadata, check_protocol
from penstock.formats.delta.sources import LogChangedError, as_array, commit_time
from penstock.formats.delta.stats import Statistics
from penstock.model import Changed, DataFiles, IntArray, Place, Snapshot

__all__ = ["read_changes", "read_snapshot", "version_at"]

Result = TypeVar("Result")

ATTEMPTS = 3
"""How often a log is listed if it is cleaned up while it is read."""


def read_snapshot(place: Place, version: str | int | None, zone: tzinfo) -> Snapshot:
    """Return the snapshot of a version, by default of the newest."""
    number = _version_number(version)
    return _with_log(place, lambda log: _read_snapshot(place, log, number, zone))


def version_at(place: Place, moment: datetime) -> int:
    """Return the version that was the newest at a moment."""

    def find(log: Log) -> int:
        metadata = Metadata.of(read_actions(place, log, None).metadata, place.url)
        return log.version_at(moment, metadata.times_in_commits, lambda path: commit_time(place.filesystem, path))

    return _with_log(place, find)


def read_changes(place: Place, first: int, last: int | None, zone: tzinfo) -> Changed:
    """Return the rows that were added after one version and up to another, by default the newest."""
    return _with_log(place, lambda log: _read_changes(place, log, (first, last), zone))


def _with_log(place: Place, read: Callable[[Log], Result]) -> Result:
    """Return the result of a function of a table's log; the log is listed again if its files are deleted meanwhile."""
    for _ in range(ATTEMPTS):
        try:
            return read(list_log(place))
        except LogChangedError as error:
            last_error = error
    msg = (
        f"{last_error}: the file was listed in the table's log and is gone. The log is being cleaned up; open the table again."
    )
    raise DataError(msg) from last_error


def _version_number(version: Any) -> int | None:
    if version is None or (isinstance(version, int) and not isinstance(version, bool)):
        return version
    if isinstance(version, str) and version.isdecimal():
        return int(version)
    raise ArgumentError(
        f"Delta tables got version={version!r}; the versions of a Delta table are whole numbers. Give version=3."
    )


def _read_snapshot(place: Place, log: Log, number: int | None, zone: tzinfo) -> Snapshot:
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
        fields=stored_fields(metadata.schema_text, columns.schema, place.url),
    )


def _read_changes(place: Place, log: Log, versions: tuple[int, int | None], zone: tzinfo) -> Changed:
    first, last = (_version_number(version) for version in versions)
    if first is not None:
        log.check(first, "a from_version", "or open the table whole")
    until = log.newest if last is None else last
    log.check(until, "a version", "or none")
    if first is None or first > until:
        raise ArgumentError(
            f"changes() of {place.url} got the versions {first} to {until}; expected two versions, the older one first. "
            "Give them in this order."
        )
    actions = read_actions(place, log, until)
    check_protocol(actions.protocol, place.url)
    metadata = Metadata.of(actions.metadata, place.url)
    columns = metadata.columns(actions.protocol, place.url)
    names = [*columns.partitions.values(), *columns.aliases.values()]
    added = read_added(place, log, range(first + 1, until + 1), names)
    more = [pa.field(CHANGE, pa.string())] if added.has_feed else []
    snapshot = Snapshot(
        table=place.url,
        version=f"{first}..{until}",
        schema=pa.schema([*columns.schema, *more]),
        files=_keep_rows(_data_files(place, added.files, columns, until, zone), added.kept_rows, place.filesystem),
        names=columns.names,
        stored=pa.schema([*columns.stored, *more]),
        fields=stored_fields(metadata.schema_text, columns.schema, place.url),
        origins=dict(zip(added.files["path"].to_pylist(), added.versions, strict=True)),
    )
    return Changed(snapshot=snapshot, column=CHANGE if added.has_feed else None, kinds=ADDED)


def _data_files(place: Place, table: pa.Table, columns: Columns, version: int, zone: tzinfo) -> DataFiles:
    """Return the files of a replayed log."""
    arrays = {name: as_array(table[name]) for name in table.column_names}
    _check_partitions(arrays, columns, place, version)
    statistics = Statistics.of(arrays["stats"], arrays.get("parsed"), columns.leaves)
    partitions = {
        name: partition_column(arrays[f"={key}"], columns.schema.field(name).type, zone, f"{name!r} of {place.url}")
        for name, key in columns.partitions.items()
    }
    with_deletes = np.flatnonzero(arrays["vector"].is_valid().to_numpy(zero_copy_only=False)).tolist()
    return DataFiles(
        path=arrays["path"],
        size=arrays["size"].to_numpy(),
        rows=statistics.rows,
        stamp=pc.binary_join_element_wise(arrays["size"].cast(pa.string()), arrays["modified"].cast(pa.string()), ":"),
        partitions=pa.table(partitions) if partitions else pa.table({}),
        ranges=statistics,
        deletes=deleted_rows(parse_vectors(arrays["vector"], with_deletes), place, version) if with_deletes else {},
    )


def _check_partitions(arrays: Mapping[str, pa.Array], columns: Columns, place: Place, version: int) -> None:
    """Refuse partition values that the log has under another name than the table: they would all be null."""
    for name, alias in columns.aliases.items():
        key = columns.partitions[name]
        misnamed = pc.and_(pc.is_null(arrays[f"={key}"]), pc.is_valid(arrays[f"={alias}"]))
        if pc.any(misnamed).as_py():
            raise DataError(
                f"{place.url} version {version}: the partition column {name!r} of the table has no value under {key!r} in the "
                f"log's entry for {arrays['path'].filter(misnamed)[0]}, and one under {alias!r}. Nulls would be "
                "wrong. Repair the log with the software that wrote the table: the names of columns and the column mapping of "
                "the protocol must agree."
            )


def _keep_rows(files: DataFiles, kept_rows: Mapping[int, IntArray], filesystem: pafs.FileSystem) -> DataFiles:
    """Return files of which some have all rows deleted except the given ones."""
    deletes = dict(files.deletes)
    for file, rows in kept_rows.items():
        count = int(files.rows[file])
        if count < 0:
            count = _count_rows(files.path[file].as_py(), filesystem)
        deletes[file] = np.setdiff1d(np.arange(count), rows, assume_unique=True)
    return replace(files, deletes=deletes)


def _count_rows(path: str, filesystem: pafs.FileSystem) -> int:
    """Return the number of rows in the footer of a file, where the log does not have it."""
    try:
        return int(pq.read_metadata(path, filesystem=filesystem).num_rows)
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"{path}: the number of rows cannot be read: {error}. The table's log does not have it, and deleted rows of the "
            "file were restored. Restore the file, or give a later from_version."
        ) from error
