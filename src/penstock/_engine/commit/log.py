"""Commit markers of tables without a log of their own: which changes were begun, and which were committed.

Object stores cannot swap directories, so a change writes its files under their final names. Each name holds the id of the
change, and `_penstock/<id>.pending` exists before the first file: readers of ours skip these files. Creating
`_penstock/<id>.committed` commits the change. It lists the files that were added and removed, and holds the contents of small
files. Readers follow it until the removed files are deleted and the small files are written; then the marker is deleted.
Other software skips `_penstock` and sees files come and go one by one.

A listing of a store is no snapshot. If it holds a marker, its contents are checked against the store, and listed again if they
are out of date. A change that begins and ends during one listing leaves no marker, and may be seen in part.
"""

from __future__ import annotations

import base64
import json
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from pyarrow import fs as pafs

from penstock._engine.runtime.threads import parallel_map
from penstock._engine.storage.filesystem import list_files, stamp
from penstock.errors import DataChangedError, DataError
from penstock.model import Place

FOLDER = "_penstock"
VERSION = 1
MARKER = re.compile(rf"(?P<table>(?:.*/)?){FOLDER}/(?P<id>[0-9a-f]{{12,64}})\.(?P<state>pending|committed)")
ABANDONED_SECONDS = 24 * 3600
"""The age of a pending marker at which its writer counts as dead. Live writers renew their markers."""

MAX_MARKER_BYTES = 1 << 28
MAX_LISTINGS = 8
PARALLEL_DELETES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A committed change.

    Attributes:
        id: The id of the change.
        time: The commit time in nanoseconds; of two small files of one name the later counts.
        added: The added files, relative to the table.
        removed: The removed files with their stamps; a file of that name with another stamp is not removed.
        small: The contents of small files.
    """

    id: str
    time: int
    added: tuple[str, ...]
    removed: Mapping[str, str]
    small: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class _CommitMarker:
    """A marker file in a listing; `table` ends with a slash, or is empty."""

    info: pafs.FileInfo
    table: str
    id: str
    state: str


def dump(commit: Commit) -> bytes:
    """Return a change as the contents of its marker.

    Example:
        >>> dump(Commit(id="0" * 12, time=5, added=("a.parquet",), removed={}, small={"_x": b"hi"}))
        b'{"penstock": 1, "time": 5, "added": ["a.parquet"], "removed": {}, "small": {"_x": "aGk="}}'
    """
    small = {name: base64.b64encode(data).decode() for name, data in commit.small.items()}
    contents = {"penstock": VERSION, "time": commit.time, "added": commit.added, "removed": commit.removed, "small": small}
    return json.dumps(contents).encode()


def load(data: bytes, marker: str) -> Commit:
    """Return the change that a marker describes; the data may be anything."""
    try:
        contents = json.loads(data)
        if not isinstance(contents, dict) or contents.get("penstock") != VERSION:
            _refuse_marker(marker, f"it is not of version {VERSION}, the only known version")
        added, removed, small, moment = (contents.get(key) for key in ("added", "removed", "small", "time"))
        if not isinstance(added, list) or not isinstance(removed, dict) or not isinstance(small, dict):
            _refuse_marker(marker, "it does not list the added and removed files")
        if type(moment) is not int:
            _refuse_marker(marker, f"its time is {moment!r}")
        _check_names(marker, [*added, *removed, *small])
        if not all(isinstance(text, str) for text in [*removed.values(), *small.values()]):
            _refuse_marker(marker, "its stamps or small files are not text")
        small_files = {name: base64.b64decode(text, validate=True) for name, text in small.items()}
    except (ValueError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        _refuse_marker(marker, str(error), error)
    match = MARKER.fullmatch(marker)
    return Commit(id=match["id"] if match else "", time=moment, added=tuple(added), removed=removed, small=small_files)


def _check_names(marker: str, names: Iterable[Any]) -> None:
    """Refuse names that lead out of the table: files that a marker names may be deleted."""
    for name in names:
        if not isinstance(name, str) or "\\" in name or any(part in ("", ".", "..") for part in name.split("/")):
            _refuse_marker(marker, f"it names {name!r}, which is not a file of the table")


def _refuse_marker(marker: str, why: str, cause: BaseException | None = None) -> NoReturn:
    raise DataError(
        f"The commit marker {marker} cannot be read: {why}. Penstock wrote it to record which files belong to the table. "
        "Write the table again to another path, or delete the marker if you know which files are right."
    ) from cause


def relative(path: str, base: str) -> str:
    """Return a path relative to another; a leading slash of either does not matter.

    Example:
        >>> relative("/t/day=mon/a.parquet", "t")
        'day=mon/a.parquet'
    """
    return path.lstrip("/")[len(base.strip("/")) :].lstrip("/")


def visible(filesystem: pafs.FileSystem, path: str, infos: list[pafs.FileInfo]) -> list[pafs.FileInfo]:
    """Return the listed files that belong to the table as committed.

    Files of uncommitted changes are left out, and removed files that are not deleted yet. `infos` must have all files below
    the path, also hidden ones. A listing without markers costs no request.
    """
    relisted: set[str] = set()
    for _ in range(MAX_LISTINGS):
        markers = _find_markers(infos)
        if not markers:
            return infos
        commits = _read_commits(filesystem, markers)
        if commits is not None and _are_still_pending(filesystem, markers):
            partial_ids = {commit.id for table, commit in commits if _is_partly_listed(infos, table, commit)} - relisted
            if not partial_ids:
                return _committed_files(infos, markers, commits)
            relisted |= partial_ids  # the next listing has all added files, except those that were removed since
        for table in sorted({marker.table for marker in markers}):
            infos = _list_again(filesystem, table, infos)
    raise DataChangedError(
        f"{path} changes faster than it can be listed: {MAX_LISTINGS} listings were out of date. Wait, then open it again."
    )


def _find_markers(infos: Iterable[pafs.FileInfo]) -> list[_CommitMarker]:
    matches = [(info, MARKER.fullmatch(info.path)) for info in infos if FOLDER in info.path]
    return [_CommitMarker(info=info, **match.groupdict()) for info, match in matches if match]


def _read_commits(filesystem: pafs.FileSystem, markers: Iterable[_CommitMarker]) -> list[tuple[str, Commit]] | None:
    """Return the committed changes with their tables, oldest first; None if a marker was deleted since the listing."""
    try:
        commits = [(each.table, _read_commit(filesystem, each.info)) for each in markers if each.state == "committed"]
    except FileNotFoundError:
        return None
    return sorted(commits, key=lambda item: (item[1].time, item[1].id))


def _read_commit(filesystem: pafs.FileSystem, info: pafs.FileInfo) -> Commit:
    if (info.size or 0) > MAX_MARKER_BYTES:
        _refuse_marker(info.path, f"it has {info.size} bytes, more than the limit of {MAX_MARKER_BYTES}")
    return load(_read_bytes(filesystem, info.path), info.path)


def _read_bytes(filesystem: pafs.FileSystem, path: str) -> bytes:
    with filesystem.open_input_stream(path, compression=None) as stream:
        return bytes(stream.read())


def _are_still_pending(filesystem: pafs.FileSystem, markers: Sequence[_CommitMarker]) -> bool:
    """Return whether the changes that a listing shows as pending are pending now, so that none was committed meanwhile."""
    committed = {marker.id for marker in markers if marker.state == "committed"}
    pending = [marker for marker in markers if marker.state == "pending" and marker.id not in committed]
    if not pending:
        return True
    expected = [(marker.info.path, True) for marker in pending]
    expected += [(f"{marker.table}{FOLDER}/{marker.id}.committed", False) for marker in pending]
    _invalidate_cache(filesystem)
    infos = filesystem.get_file_info([path for path, _ in expected])
    return all((info.type == pafs.FileType.File) == exists for info, (_, exists) in zip(infos, expected, strict=True))


def _is_partly_listed(infos: Iterable[pafs.FileInfo], table: str, commit: Commit) -> bool:
    return not {table + name for name in commit.added} <= {info.path for info in infos}


def _list_again(filesystem: pafs.FileSystem, table: str, infos: Sequence[pafs.FileInfo]) -> list[pafs.FileInfo]:
    """Return a listing in which the files of one table are listed again, at the same position."""
    first = next((number for number, info in enumerate(infos) if info.path.startswith(table)), len(infos))
    listed = fresh_listing(Place(url=table, filesystem=filesystem, path=table.rstrip("/")))
    return [*infos[:first], *listed, *(info for info in infos[first:] if not info.path.startswith(table))]


def _committed_files(
    infos: Iterable[pafs.FileInfo], markers: Iterable[_CommitMarker], commits: Sequence[tuple[str, Commit]]
) -> list[pafs.FileInfo]:
    """Return the files that belong to the table according to its markers."""
    removed = {table + name: mark for table, commit in commits for name, mark in commit.removed.items()}
    pending = {marker.id for marker in markers} - {commit.id for _, commit in commits}
    folders = tuple({f"{marker.table}{FOLDER}/" for marker in markers})
    return [
        info
        for info in infos
        if not info.path.startswith(folders)
        and removed.get(info.path) != stamp(info)
        and not any(change in info.base_name for change in pending)
    ]


def small_file(filesystem: pafs.FileSystem, path: str, name: str, infos: Iterable[pafs.FileInfo]) -> bytes | None:
    """Return the contents of a small hidden file of a table as committed, or None; `infos` must have all files of the table."""
    infos = [info for info in infos if "/" not in (inner := relative(info.path, path)) or inner.startswith(f"{FOLDER}/")]
    commits = _read_commits(filesystem, _find_markers(infos))
    for _, commit in reversed(commits or []):
        if name in commit.small:
            return commit.small[name]
    candidates = [info for info in infos if relative(info.path, path) == name]
    if commits is None:  # another process completed them, so the file itself is current
        candidates = filesystem.get_file_info([f"{path.rstrip('/')}/{name}"])
    removed = {commit.removed.get(name) for _, commit in commits or []}
    for info in candidates:
        if info.type == pafs.FileType.File and stamp(info) not in removed:
            try:
                return _read_bytes(filesystem, info.path)
            except FileNotFoundError:
                continue
            except PermissionError as error:
                msg = f"{info.path} holds the columns of the table and may not be read. Get the permission to read it."
                raise DataError(msg) from error
    return None


def fresh_listing(place: Place) -> list[pafs.FileInfo]:
    """Return the files at a place, listed now and not from a cache."""
    _invalidate_cache(place.filesystem)
    return list_files(place)


def file_exists(filesystem: pafs.FileSystem, path: str) -> bool:
    """Return whether a file exists now, without a cache."""
    _invalidate_cache(filesystem)
    return bool(filesystem.get_file_info(path).type == pafs.FileType.File)


def _invalidate_cache(filesystem: pafs.FileSystem) -> None:
    """Clear the listings that fsspec has cached: other processes may have changed them."""
    wrapped = getattr(getattr(filesystem, "handler", None), "fs", None)
    if wrapped is not None:
        wrapped.invalidate_cache()


def recover(place: Place) -> None:
    """Complete committed changes whose writer stopped early, and delete the files of abandoned ones."""
    markers = _find_markers(fresh_listing(replace(place, path=f"{place.path}/{FOLDER}")))
    infos = fresh_listing(place) if markers else []
    committed = {marker.id for marker in markers if marker.state == "committed"}
    for _, commit in _read_commits(place.filesystem, markers) or []:
        complete(place, commit, infos)
    for marker in markers:
        if marker.id not in committed and _is_abandoned(place.filesystem, marker):
            delete(place.filesystem, [info.path for info in infos if marker.id in info.base_name and info is not marker.info])
            delete(place.filesystem, [marker.info.path])
    remove_empty(place.filesystem, [f"{place.path}/{FOLDER}"])


def _is_abandoned(filesystem: pafs.FileSystem, marker: _CommitMarker) -> bool:
    """Return whether a marker is too old for its writer to be alive; False where its age is unknown."""
    written = marker.info.mtime_ns
    if written is None:
        try:
            written = int(_read_bytes(filesystem, marker.info.path))
        except (OSError, ValueError):
            return False
    return bool(time.time_ns() - written > ABANDONED_SECONDS * 1_000_000_000)


def complete(place: Place, commit: Commit, infos: Iterable[pafs.FileInfo]) -> None:
    """Write the small files of a committed change, delete the files that it removed, and then its markers."""
    pending, committed = (f"{place.path}/{FOLDER}/{commit.id}.{state}" for state in ("pending", "committed"))
    for name, data in commit.small.items():
        # Another writer may have completed this change and committed a later one; its small files must not be replaced.
        if not file_exists(place.filesystem, committed):
            return
        with place.filesystem.open_output_stream(f"{place.path}/{name}", compression=None) as stream:
            stream.write(data)
        if isinstance(place.filesystem, pafs.LocalFileSystem):
            sync(Path(f"{place.path}/{name}"))
    removed = {f"{place.path}/{name}".lstrip("/"): mark for name, mark in commit.removed.items()}
    delete(place.filesystem, [info.path for info in infos if removed.get(info.path.lstrip("/")) == stamp(info)])
    delete(place.filesystem, [f"{place.path}/{FOLDER}/{commit.id}.tmp", pending])
    delete(place.filesystem, [committed])  # last: the pending marker alone would hide the added files
    remove_empty(place.filesystem, [f"{place.path}/{FOLDER}"])


def delete(filesystem: pafs.FileSystem, paths: Sequence[str]) -> None:
    """Delete files, several at once; a file that does not exist is no error."""
    list(parallel_map(partial(_delete_file, filesystem), paths, PARALLEL_DELETES))


def _delete_file(filesystem: pafs.FileSystem, path: str) -> None:
    try:
        filesystem.delete_file(path)
    except OSError:
        if filesystem.get_file_info(path).type != pafs.FileType.NotFound:
            raise


def sync(path: Path) -> None:
    """Flush a file or directory of a local disk to the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def remove_empty(filesystem: pafs.FileSystem, directories: Iterable[str]) -> None:
    """Remove directories that are empty, on local disks only: other filesystems would remove their contents too."""
    if isinstance(filesystem, pafs.LocalFileSystem):
        for directory in directories:
            with suppress(OSError):
                Path(directory).rmdir()
