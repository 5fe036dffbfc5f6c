"""The replay of a Delta log: the checkpoint and commits of a version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock._engine.runtime.threads import parallel_map
from penstock.errors import ArgumentError, DataError
from penstock.formats.delta.log import LOG, Log, Segment
from penstock.formats.delta.sources import Lines, Parquet, as_array, read_texts
from penstock.model import Place

__all__ = ["Actions", "read_actions"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Actions:
    """The actions of a log at a version.

    Attributes:
        version: The version.
        protocol: The newest `protocol` action.
        metadata: The newest `metaData` action.
        checkpoint: The files of the checkpoint.
        sidecars: The paths of its sidecar files, which have more actions.
        commits: The commits after it.
    """

    version: int
    protocol: Mapping[str, Any]
    metadata: Mapping[str, Any]
    checkpoint: tuple[Lines | Parquet, ...]
    sidecars: tuple[str, ...]
    commits: Lines

    def files(self, place: Place, partitions: Sequence[str]) -> pa.Table:
        """Return the data files of the version, a row each, oldest first.

        The order does not depend on the checkpoints, so that it stays the same for a version. The columns are those of the
        log's sources: `path`, `size`, `modified`, `stats`, `vector`, `=name` for the partition column `name` of the log, and
        `parsed` if some statistics are structs.
        """
        after = self.commits.actions(place, partitions)
        newest = after.take(_last_positions(after["key"]))
        parts = [newest.filter(newest["alive"])]
        if self.checkpoint:
            sources = [*self.checkpoint, *_read_checkpoint(place, self.sidecars)]
            before = _concat_sources(sources, [source.actions(place, partitions) for source in sources])
            before = before.filter(before["alive"])
            if pc.count_distinct(before["path"]).as_py() != pc.count_distinct(before["key"]).as_py():
                raise _duplicate_error(before, self.checkpoint[0].name)
            is_replaced = pc.is_in(before["key"], value_set=as_array(newest["key"]))
            parts.insert(0, before.filter(pc.invert(is_replaced)))
        files = _concat(parts)
        files = files.take(_last_positions(files["path"]))
        order = pc.sort_indices(files, sort_keys=[("modified", "ascending"), ("path", "ascending")])
        return files.take(order).drop_columns(["key", "alive"]).combine_chunks()


def _duplicate_error(actions: pa.Table, checkpoint: str) -> DataError:
    """Return the error for a checkpoint that has a file twice, with different deletion vectors."""
    keys = actions.select(["path", "key"]).group_by(["path", "key"]).aggregate([])
    counts = keys.group_by("path").aggregate([("key", "count")])
    path = counts.filter(pc.greater(counts["key_count"], 1))["path"][0]
    return DataError(
        f"{checkpoint}: the checkpoint has {path} with several deletion vectors; expected each file once. Restore the "
        "checkpoint, or remove it if all commits before it exist."
    )


def _concat_sources(sources: Sequence[Lines | Parquet], tables: Sequence[pa.Table]) -> pa.Table:
    """Return the actions of a checkpoint's files as one table, or raise `DataError` if types of statistics differ."""
    try:
        return _concat(tables)
    except pa.ArrowException as error:
        at = next(at for at in range(1, len(tables)) if not _have_compatible_types(tables[: at + 1]))
        raise DataError(
            f"{sources[at].name}: the statistics in this file of the table's checkpoint have other types than those in "
            f"{sources[0].name}: {' '.join(str(error).split()).rstrip('.')}; expected files of one checkpoint. Restore the "
            "checkpoint, or remove it if all commits before it exist."
        ) from error


def _have_compatible_types(tables: Sequence[pa.Table]) -> bool:
    try:
        pa.unify_schemas([table.schema for table in tables], promote_options="permissive")
    except pa.ArrowException:
        return False
    return True


def _concat(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables, promote_options="permissive")


def _last_positions(keys: pa.ChunkedArray) -> pa.Array:
    """Return the position of the last occurrence of each key, ascending."""
    encoded = as_array(keys).dictionary_encode()
    last = np.zeros(len(encoded.dictionary), dtype=np.int64)
    last[encoded.indices.to_numpy()] = np.arange(len(encoded))
    return pa.array(np.sort(last))


def read_actions(place: Place, log: Log, version: int | None) -> Actions:
    """Return the actions of a log at a version, by default the newest.

    Compacted commits that are not reconciled are skipped, and the commits that they replace are read.

    Raises:
        ArgumentError: If the version does not exist.
        DataError: If a file of the log is missing or cannot be read, or the log has no protocol or metadata.
        LogChangedError: If a file of the log is gone.
    """
    unreconciled: dict[str, str] = {}
    while True:
        try:
            segment = log.segment(version, without=unreconciled)
        except (ArgumentError, DataError) as error:
            if not unreconciled:
                raise
            raise _unreconciled_error(unreconciled, error) from error
        commits = Lines.of(segment.commits, read_texts(place.filesystem, segment.commits))
        parts = {path: commits.part(at) for at, path in enumerate(segment.commits) if path in segment.compacted}
        commits.refuse_empty(segment.compacted)
        new = {path: why for path, part in parts.items() if (why := part.find_unreconciled(place)) is not None}
        if not new:
            return _read_segment(place, segment, commits)
        unreconciled |= new


def _unreconciled_error(unreconciled: Mapping[str, str], error: Exception) -> DataError:
    """Return the error for compacted commits that are not reconciled, and whose commits are gone."""
    path, why = next(iter(unreconciled.items()))
    first, last = (int(part) for part in path.rsplit("/", 1)[-1].split(".")[:2])
    return DataError(
        f"{path}: the compacted commits are not reconciled: the file {why}, and their order is not known. The commits "
        f"themselves cannot be read: {str(error).rstrip('.')}. Restore the commits {first} to {last} of the log."
    )


def _read_segment(place: Place, segment: Segment, commits: Lines) -> Actions:
    checkpoint = _read_checkpoint(place, segment.checkpoint)
    newest: dict[str, Mapping[str, Any]] = {}
    for kind in ("protocol", "metaData"):
        actions = [*(action for source in checkpoint for action in source.find(kind)), *commits.find(kind)]
        if not actions:
            raise DataError(
                f"{place.url}: the table's log has no {kind} action up to version {segment.version}; expected one. Check that "
                "the table was copied completely."
            )
        newest[kind] = actions[-1]
    folder = f"{place.path.rstrip('/')}/{LOG}/_sidecars/"
    sidecars = [action.get("path") for source in checkpoint for action in source.find("sidecar")]
    if not all(isinstance(path, str) for path in sidecars):
        raise DataError(f"{segment.checkpoint[0]}: a sidecar of the checkpoint has no path; expected one. Restore the file.")
    return Actions(
        version=segment.version,
        protocol=newest["protocol"],
        metadata=newest["metaData"],
        checkpoint=tuple(checkpoint),
        sidecars=tuple(folder + unquote(str(path)).rsplit("/", 1)[-1] for path in sidecars),
        commits=commits,
    )


def _read_checkpoint(place: Place, paths: Sequence[str]) -> list[Lines | Parquet]:
    """Return the files of a checkpoint, read in parallel."""

    def read(path: str) -> Lines | Parquet:
        if path.endswith(".json"):
            return Lines.of([path], read_texts(place.filesystem, [path]))
        return Parquet.open(place.filesystem, path)

    return list(parallel_map(read, paths))
