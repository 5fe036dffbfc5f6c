"""What a Delta log says at a version: its checkpoint and commits, replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ArgumentError, DataError
from penstock.formats.delta.log import LOG, Log, Segment
from penstock.formats.delta.sources import Lines, Parquet, read_texts
from penstock.model import Place

__all__ = ["Actions", "read_actions"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Actions:
    """What a log says, as it is written there.

    Attributes:
        version: The version.
        protocol: The newest `protocol` action.
        metadata: The newest `metaData` action.
        checkpoint: What holds the files of the checkpoint.
        sidecars: Files of the log that hold more of them.
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

        The order does not depend on which checkpoints there are, so that a version reads alike for ever. The columns are
        those of the log's sources: `path`, `size`, `modified`, `stats`, `vector`, `=name` for the partition column `name` of
        the log, and `parsed` if some statistics come as structs.

        Raises:
            DataError: If the log cannot be read.
            LogChangedError: If a file of the log is gone.
        """
        after = self.commits.actions(place, partitions)
        newest = after.take(_last(after["key"]))
        parts = [newest.filter(newest["alive"])]
        if self.checkpoint:
            sources = [*self.checkpoint, *_checkpoints(place, self.sidecars)]
            told = _of_sources(sources, [source.actions(place, partitions) for source in sources])
            told = told.filter(told["alive"])
            if pc.count_distinct(told["path"]).as_py() != pc.count_distinct(told["key"]).as_py():
                raise _twice(told, self.checkpoint[0].name)
            touched = pc.is_in(told["key"], value_set=_array(newest["key"]))
            parts.insert(0, told.filter(pc.invert(touched)))
        files = _together(parts)
        files = files.take(_last(files["path"]))
        order = pc.sort_indices(files, sort_keys=[("modified", "ascending"), ("path", "ascending")])
        return files.take(order).drop_columns(["key", "alive"]).combine_chunks()


def _twice(told: pa.Table, checkpoint: str) -> DataError:
    """Return the error for a checkpoint that has a file twice, with different deletion vectors."""
    keys = told.select(["path", "key"]).group_by(["path", "key"]).aggregate([])
    counts = keys.group_by("path").aggregate([("key", "count")])
    path = counts.filter(pc.greater(counts["key_count"], 1))["path"][0]
    return DataError(
        f"{checkpoint}: the checkpoint has {path} with several deletion vectors, and which of them counts is not known. Each "
        "file was expected once. Restore the checkpoint, or remove it if all commits before it are there."
    )


def _of_sources(sources: Sequence[Lines | Parquet], tables: Sequence[pa.Table]) -> pa.Table:
    """Return the actions of a checkpoint's files as one table.

    Raises:
        DataError: If two of the files have statistics of types that do not go together; the second is named.
    """
    try:
        return _together(tables)
    except pa.ArrowException as error:
        at = next(at for at in range(1, len(tables)) if not _fit(tables[: at + 1]))
        msg = (
            f"{sources[at].name}: the statistics in this file of the table's checkpoint have other types than those in "
            f"{sources[0].name}: {' '.join(str(error).split()).rstrip('.')}. Files of one checkpoint were expected. Restore "
            "the checkpoint, or remove it if all commits before it are there."
        )
        raise DataError(msg) from error


def _fit(tables: Sequence[pa.Table]) -> bool:
    try:
        pa.unify_schemas([table.schema for table in tables], promote_options="permissive")
    except pa.ArrowException:
        return False
    return True


def _together(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables, promote_options="permissive")


def _last(keys: pa.ChunkedArray) -> pa.Array:
    """Return the place of the last of each key, ascending."""
    encoded = _array(keys).dictionary_encode()
    last = np.zeros(len(encoded.dictionary), dtype=np.int64)
    last[encoded.indices.to_numpy()] = np.arange(len(encoded))
    return pa.array(np.sort(last))


def _array(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def read_actions(place: Place, log: Log, version: int | None) -> Actions:
    """Return what a log says at a version; at the newest where none is given.

    Compacted commits that are not reconciled are left, and the commits that they stand for are read instead.

    Raises:
        ArgumentError: If there is no such version.
        DataError: If a file of the log is missing or cannot be read, or the log has no protocol or metadata.
        LogChangedError: If a file of the log is gone.
    """
    doubts: dict[str, str] = {}
    while True:
        try:
            segment = log.segment(version, without=doubts)
        except (ArgumentError, DataError) as error:
            if not doubts:
                raise
            raise _unordered(doubts, error) from error
        commits = Lines.of(segment.commits, read_texts(place.filesystem, segment.commits))
        parts = {path: commits.part(at) for at, path in enumerate(segment.commits) if path in segment.compacted}
        commits.refuse_empty(segment.compacted)
        found = {path: why for path, part in parts.items() if (why := part.doubt(place)) is not None}
        if not found:
            return _actions(place, segment, commits)
        doubts |= found


def _unordered(doubts: Mapping[str, str], error: Exception) -> DataError:
    """Return the error for compacted commits that cannot be believed, and whose commits are gone."""
    path, why = next(iter(doubts.items()))
    first, last = (int(part) for part in path.rsplit("/", 1)[-1].split(".")[:2])
    return DataError(
        f"{path}: the compacted commits are not reconciled: the file {why}, and which of these came last is not known. "
        f"The commits themselves would tell, but: {str(error).rstrip('.')}. Restore the commits {first} to {last} of the log."
    )


def _actions(place: Place, segment: Segment, commits: Lines) -> Actions:
    """Return what the files of a log say."""
    checkpoint = _checkpoints(place, segment.checkpoint)
    found: dict[str, Mapping[str, Any]] = {}
    for kind in ("protocol", "metaData"):
        told = [*(action for source in checkpoint for action in source.few(kind)), *commits.few(kind)]
        if not told:
            msg = (
                f"{place.url}: the table's log has no {kind} action up to version {segment.version}. Every Delta table has "
                "one. Check that the table was copied whole."
            )
            raise DataError(msg)
        found[kind] = told[-1]
    folder = f"{place.path.rstrip('/')}/{LOG}/_sidecars/"
    beside = [told.get("path") for source in checkpoint for told in source.few("sidecar")]
    if not all(isinstance(path, str) for path in beside):
        msg = f"{segment.checkpoint[0]}: a sidecar of the checkpoint has no path. One was expected. Restore the file."
        raise DataError(msg)
    return Actions(
        version=segment.version,
        protocol=found["protocol"],
        metadata=found["metaData"],
        checkpoint=tuple(checkpoint),
        sidecars=tuple(folder + unquote(str(path)).rsplit("/", 1)[-1] for path in beside),
        commits=commits,
    )


def _checkpoints(place: Place, paths: Sequence[str]) -> list[Lines | Parquet]:
    """Return the files of a checkpoint, read in parallel."""

    def read(path: str) -> Lines | Parquet:
        if path.endswith(".json"):
            return Lines.of([path], read_texts(place.filesystem, [path]))
        return Parquet.open(place.filesystem, path)

    with ThreadPoolExecutor(max(1, min(16, len(paths))), thread_name_prefix="penstock-delta") as pool:
        return list(pool.map(read, paths))
