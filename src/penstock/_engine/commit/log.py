"""Changes of a table without a log, as markers beside its files tell them: which were begun, which were made.

Where files cannot be swapped in all at once (object stores), a change writes them under their final names. Each has the
change's id in its name, and `_penstock/<id>.pending` lies there before the first of them: readers of ours leave them out.
`_penstock/<id>.committed` is the moment of the change. It says which files came and which went, and holds what small files
became; from then on readers go by it, until the files that went are deleted and the small ones written, and it goes itself.
Other software passes over `_penstock` and sees files come and go one by one.

A listing is no snapshot of a store. Where a marker is in it, what it says is checked against the store, and listed again if
it no longer holds; a change that begins and ends while one listing runs leaves no marker to see, and may be seen in part.
"""

from __future__ import annotations

import base64
import json
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from pyarrow import fs as pafs

from penstock._engine.storage.filesystem import list_files, stamp
from penstock.errors import DataChangedError, DataError
from penstock.model import Place

__all__ = [
    "FOLDER",
    "Commit",
    "complete",
    "delete",
    "dump",
    "fresh_listing",
    "lies",
    "load",
    "relative",
    "remove_empty",
    "settle",
    "small_file",
    "sync",
    "visible",
]

FOLDER = "_penstock"
VERSION = 1
MARKER = re.compile(rf"(?P<table>(?:.*/)?){FOLDER}/(?P<id>[0-9a-f]{{12,64}})\.(?P<state>pending|committed)")
ABANDONED_SECONDS = 24 * 3600
"""After which a change that was begun and not made is taken for one whose writer died. Writers renew their markers."""

MAX_CELL_BYTES = 1 << 28
MOST_LISTINGS = 8
DELETES_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A change that is made.

    Attributes:
        id: The change.
        time: When it was made, in nanoseconds; of two small files of one name the later holds.
        added: The files that came, relative to the table.
        removed: The files that went, each with its stamp: another file of that name is not meant.
        small: The contents of small files.
    """

    id: str
    time: int
    added: tuple[str, ...]
    removed: Mapping[str, str]
    small: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    """A marker in a listing; `table` ends with a slash, or is empty."""

    info: pafs.FileInfo
    table: str
    id: str
    state: str


def dump(commit: Commit) -> bytes:
    """Return a change as its marker holds it.

    Example:
        >>> dump(Commit(id="0" * 12, time=5, added=("a.parquet",), removed={}, small={"_x": b"hi"}))
        b'{"penstock": 1, "time": 5, "added": ["a.parquet"], "removed": {}, "small": {"_x": "aGk="}}'
    """
    small = {name: base64.b64encode(data).decode() for name, data in commit.small.items()}
    told = {"penstock": VERSION, "time": commit.time, "added": commit.added, "removed": commit.removed, "small": small}
    return json.dumps(told).encode()


def load(data: bytes, marker: str) -> Commit:
    """Return the change that a marker tells, which may be anything.

    Raises:
        DataError: If it tells none that we can read.
    """
    try:
        told = json.loads(data)
        if not isinstance(told, dict) or told.get("penstock") != VERSION:
            _broken(marker, f"it is not of version {VERSION}, which is the one known here")
        added, removed, small, when = told.get("added"), told.get("removed"), told.get("small"), told.get("time")
        if not isinstance(added, list) or not isinstance(removed, dict) or not isinstance(small, dict):
            _broken(marker, "it does not say which files came and went")
        if type(when) is not int:
            _broken(marker, f"its time is {when!r}")
        _check_names(marker, [*added, *removed, *small])
        if not all(isinstance(each, str) for each in [*removed.values(), *small.values()]):
            _broken(marker, "its stamps or small files are no text")
        contents = {name: base64.b64decode(text, validate=True) for name, text in small.items()}
    except (ValueError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        _broken(marker, str(error), error)
    found = MARKER.fullmatch(marker)
    return Commit(id=found["id"] if found else "", time=when, added=tuple(added), removed=removed, small=contents)


def _check_names(marker: str, names: Iterable[Any]) -> None:
    """Refuse names that lead out of the table, for what a marker names may be deleted."""
    for name in names:
        if not isinstance(name, str) or "\\" in name or any(part in ("", ".", "..") for part in name.split("/")):
            _broken(marker, f"it names {name!r}, which is no file of the table")


def _broken(marker: str, why: str, cause: BaseException | None = None) -> NoReturn:
    msg = (
        f"The marker {marker} of a change cannot be read: {why}. Penstock wrote it to say which files belong to the table. "
        "Write the table anew elsewhere, or delete the marker if you know which files are right."
    )
    raise DataError(msg) from cause


def relative(path: str, base: str) -> str:
    """Return a path as it lies below another, however either begins.

    Example:
        >>> relative("/t/day=mon/a.parquet", "t")
        'day=mon/a.parquet'
    """
    return path.lstrip("/")[len(base.strip("/")) :].lstrip("/")


def visible(filesystem: pafs.FileSystem, path: str, infos: list[pafs.FileInfo]) -> list[pafs.FileInfo]:
    """Return those of the files listed below a path that belong to the table as committed; see `commit.change`."""
    sure: set[str] = set()
    for _ in range(MOST_LISTINGS):
        marks = _marks(infos)
        if not marks:
            return infos
        commits = _commits(filesystem, marks)
        if commits is not None and _is_settled(filesystem, marks):
            late = {commit.id for table, commit in commits if _is_partly_listed(infos, table, commit)} - sure
            if not late:
                return _shown(infos, marks, commits)
            sure |= late  # a listing that begins now has all that came, but for files that somebody removed later
        for table in sorted({mark.table for mark in marks}):
            infos = _listed_again(filesystem, table, infos)
    msg = f"{path} changes faster than it can be listed: {MOST_LISTINGS} listings were out of date. Wait, then open it again."
    raise DataChangedError(msg)


def _marks(infos: Iterable[pafs.FileInfo]) -> list[_Mark]:
    """Return the markers among files."""
    found = [(info, MARKER.fullmatch(info.path)) for info in infos if FOLDER in info.path]
    return [_Mark(info=info, **match.groupdict()) for info, match in found if match]


def _commits(filesystem: pafs.FileSystem, marks: Iterable[_Mark]) -> list[tuple[str, Commit]] | None:
    """Return the changes that are made, each with its table, the last at the end; None if a marker has gone meanwhile."""
    try:
        found = [(mark.table, _read_commit(filesystem, mark.info)) for mark in marks if mark.state == "committed"]
    except FileNotFoundError:
        return None
    return sorted(found, key=lambda one: (one[1].time, one[1].id))


def _read_commit(filesystem: pafs.FileSystem, info: pafs.FileInfo) -> Commit:
    if (info.size or 0) > MAX_CELL_BYTES:
        _broken(info.path, f"it has {info.size} bytes, and {MAX_CELL_BYTES} are read at most")
    return load(read(filesystem, info.path), info.path)


def read(filesystem: pafs.FileSystem, path: str) -> bytes:
    """Return the bytes of a small file."""
    with filesystem.open_input_stream(path, compression=None) as stream:
        return bytes(stream.read())


def _is_settled(filesystem: pafs.FileSystem, marks: Sequence[_Mark]) -> bool:
    """Return whether changes that a listing saw begun are not made even now, so that none was while it ran."""
    committed = {mark.id for mark in marks if mark.state == "committed"}
    begun = [mark for mark in marks if mark.state == "pending" and mark.id not in committed]
    if not begun:
        return True
    expected = [(mark.info.path, True) for mark in begun]
    expected += [(f"{mark.table}{FOLDER}/{mark.id}.committed", False) for mark in begun]
    _forget(filesystem)
    found = filesystem.get_file_info([path for path, _ in expected])
    return all((info.type == pafs.FileType.File) == there for info, (_, there) in zip(found, expected, strict=True))


def _is_partly_listed(infos: Iterable[pafs.FileInfo], table: str, commit: Commit) -> bool:
    return not {table + name for name in commit.added} <= {info.path for info in infos}


def _listed_again(filesystem: pafs.FileSystem, table: str, infos: Sequence[pafs.FileInfo]) -> list[pafs.FileInfo]:
    """Return a listing with one table's files as they are now, where they stood."""
    first = next((number for number, info in enumerate(infos) if info.path.startswith(table)), len(infos))
    now = fresh_listing(Place(url=table, filesystem=filesystem, path=table.rstrip("/")))
    return [*infos[:first], *now, *(info for info in infos[first:] if not info.path.startswith(table))]


def _shown(
    infos: Iterable[pafs.FileInfo], marks: Iterable[_Mark], commits: Sequence[tuple[str, Commit]]
) -> list[pafs.FileInfo]:
    """Return the files that belong to the table, given all that its markers say."""
    removed = {table + name: mark for table, commit in commits for name, mark in commit.removed.items()}
    begun = {mark.id for mark in marks} - {commit.id for _, commit in commits}
    folders = tuple({f"{mark.table}{FOLDER}/" for mark in marks})
    return [
        info
        for info in infos
        if not info.path.startswith(folders)
        and removed.get(info.path) != stamp(info)
        and not any(change in info.base_name for change in begun)
    ]


def small_file(filesystem: pafs.FileSystem, path: str, name: str, infos: Iterable[pafs.FileInfo]) -> bytes | None:
    """Return a small hidden file as committed, or None; see `commit.change`."""
    here = [info for info in infos if "/" not in (inside := relative(info.path, path)) or inside.startswith(f"{FOLDER}/")]
    commits = _commits(filesystem, _marks(here))
    for _, commit in reversed(commits or []):
        if name in commit.small:
            return commit.small[name]
    plain = [info for info in here if relative(info.path, path) == name]
    if commits is None:  # they were tidied up meanwhile, so that the file itself is the last
        plain = filesystem.get_file_info([f"{path.rstrip('/')}/{name}"])
    gone = {commit.removed.get(name) for _, commit in commits or []}
    for info in plain:
        if info.type == pafs.FileType.File and stamp(info) not in gone:
            try:
                return read(filesystem, info.path)
            except FileNotFoundError:
                continue
            except PermissionError as error:
                msg = f"{info.path} may not be read, and says what the columns of the table are. Get the right to read it."
                raise DataError(msg) from error
    return None


def fresh_listing(place: Place) -> list[pafs.FileInfo]:
    """Return the files at a place as they are now."""
    _forget(place.filesystem)
    return list_files(place)


def lies(filesystem: pafs.FileSystem, path: str) -> bool:
    """Return whether a file lies at a path now."""
    _forget(filesystem)
    return bool(filesystem.get_file_info(path).type == pafs.FileType.File)


def _forget(filesystem: pafs.FileSystem) -> None:
    """Let fsspec forget what it listed, for others may have changed it."""
    behind = getattr(getattr(filesystem, "handler", None), "fs", None)
    if behind is not None:
        behind.invalidate_cache()


def settle(place: Place) -> None:
    """Complete changes that were made and not tidied up, and drop those whose writers are taken for dead.

    Raises:
        DataError: If a marker cannot be read.
    """
    marks = _marks(fresh_listing(replace(place, path=f"{place.path}/{FOLDER}")))
    infos = fresh_listing(place) if marks else []
    committed = {mark.id for mark in marks if mark.state == "committed"}
    for _, commit in _commits(place.filesystem, marks) or []:
        complete(place, commit, infos)
    for mark in marks:
        if mark.id not in committed and _is_abandoned(place.filesystem, mark):
            delete(place.filesystem, [info.path for info in infos if mark.id in info.base_name and info is not mark.info])
            delete(place.filesystem, [mark.info.path])
    remove_empty(place.filesystem, [f"{place.path}/{FOLDER}"])


def _is_abandoned(filesystem: pafs.FileSystem, mark: _Mark) -> bool:
    """Return whether a marker is too old for its writer to be alive; where that cannot be told, it is not."""
    when = mark.info.mtime_ns
    if when is None:
        try:
            when = int(read(filesystem, mark.info.path))
        except (OSError, ValueError):
            return False
    return bool(time.time_ns() - when > ABANDONED_SECONDS * 1_000_000_000)


def complete(place: Place, commit: Commit, infos: Iterable[pafs.FileInfo]) -> None:
    """Tidy up after a change that is made: write its small files, delete what it removed, and last its markers."""
    begin, end = (f"{place.path}/{FOLDER}/{commit.id}.{state}" for state in ("pending", "committed"))
    for name, data in commit.small.items():
        # Another writer may have completed this change and made a later one, whose small files these must not replace.
        if not lies(place.filesystem, end):
            return
        with place.filesystem.open_output_stream(f"{place.path}/{name}", compression=None) as stream:
            stream.write(data)
        if isinstance(place.filesystem, pafs.LocalFileSystem):
            sync(Path(f"{place.path}/{name}"))
    removed = {f"{place.path}/{name}".lstrip("/"): mark for name, mark in commit.removed.items()}
    delete(place.filesystem, [info.path for info in infos if removed.get(info.path.lstrip("/")) == stamp(info)])
    delete(place.filesystem, [f"{place.path}/{FOLDER}/{commit.id}.tmp", begin])
    delete(place.filesystem, [end])  # after the other marker, which alone would hide what came
    remove_empty(place.filesystem, [f"{place.path}/{FOLDER}"])


def delete(filesystem: pafs.FileSystem, paths: Sequence[str]) -> None:
    """Delete files, several at once; what is gone already is no error."""
    if len(paths) > 1:
        with ThreadPoolExecutor(min(len(paths), DELETES_AT_ONCE), thread_name_prefix="penstock-delete") as pool:
            list(pool.map(partial(_delete, filesystem), paths))
    elif paths:
        _delete(filesystem, paths[0])


def _delete(filesystem: pafs.FileSystem, path: str) -> None:
    try:
        filesystem.delete_file(path)
    except OSError:
        if filesystem.get_file_info(path).type != pafs.FileType.NotFound:
            raise


def sync(path: Path) -> None:
    """Return when what was written to a file or directory of a local disk is on it."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def remove_empty(filesystem: pafs.FileSystem, directories: Iterable[str]) -> None:
    """Remove directories where they are empty; only of a local disk, as others remove what is inside with them."""
    if isinstance(filesystem, pafs.LocalFileSystem):
        for directory in directories:
            with suppress(OSError):
                Path(directory).rmdir()
