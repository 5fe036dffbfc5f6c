"""The files of a Delta log that make a version: the newest checkpoint before it, and the commits after that."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from pyarrow import fs as pafs

from penstock.errors import ArgumentError, DataError, TableNotFoundError
from penstock.formats.delta.commit import invalidate_cache
from penstock.model import Place

__all__ = ["LOG", "Log", "Segment", "list_log"]

LOG = "_delta_log"
COMMIT = re.compile(r"(\d+)\.json")
CHECKPOINT = re.compile(r"(\d+)\.checkpoint\.parquet")
PART = re.compile(r"(\d+)\.checkpoint\.(\d+)\.(\d+)\.parquet")
NAMED = re.compile(r"(\d+)\.checkpoint\.[^.]+\.(?:json|parquet)")
COMPACTED = re.compile(r"(\d+)\.(\d+)\.compacted\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The files of a log that make one version.

    Attributes:
        version: The version.
        checkpoint: The files of the checkpoint; none if the version begins with the first commit.
        commits: The files of the commits after it, in order.
        compacted: The first and last version of each of these files that holds several commits.
    """

    version: int
    checkpoint: tuple[str, ...]
    commits: tuple[str, ...]
    compacted: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """The files of a table's log.

    Attributes:
        url: The table, for messages.
        commits: The commit file of each version.
        times: The modification times of these, in milliseconds since the epoch.
        checkpoints: The files of each complete checkpoint by version.
        compacted: The last version and the path of each file with several commits, by its first version.
    """

    url: str
    commits: Mapping[int, str]
    times: Mapping[int, int]
    checkpoints: Mapping[int, tuple[str, ...]]
    compacted: Mapping[int, tuple[tuple[int, str], ...]]

    @property
    def newest(self) -> int:
        """The newest version."""
        if not self.commits and not self.checkpoints and not self.compacted:
            raise DataError(
                f"{self.url} has a Delta log without commits; expected at least one. Check that the whole table was copied."
            )
        return max([*self.commits, *self.checkpoints, *(last for each in self.compacted.values() for last, _ in each)])

    def check(self, version: int, what: str, instead: str) -> None:
        """Raise `ArgumentError` for a version that the table never had; `what` and `instead` are parts of the message."""
        newest = self.newest
        if not 0 <= version <= newest:
            msg = f"{self.url} has no version {version}. Its newest is {newest}. Give {what} from 0 to {newest}, {instead}."
            raise ArgumentError(msg)

    def segment(self, version: int | None, without: Collection[str] = ()) -> Segment:
        """Return the files that make a version, by default the newest, without some compacted commits."""
        target = self.newest if version is None else version
        self.check(target, "a version", "or none")
        checkpoints = sorted((at for at in self.checkpoints if at <= target), reverse=True)
        missing = []
        for start in [*checkpoints, -1]:
            files = self._shortest_path(start, target, without)
            if isinstance(files, list):
                return Segment(
                    version=target,
                    checkpoint=self.checkpoints.get(start, ()),
                    commits=tuple(path for _, _, path in files),
                    compacted={path: (first, last) for first, last, path in files if self.commits.get(first) != path},
                )
            missing.append(files)
        raise self._missing_error(missing[0], target)

    def _shortest_path(self, start: int, target: int, without: Collection[str]) -> list[tuple[int, int, str]] | int:
        """Return the fewest files, each with its first and last version, between two versions; or the missing commit."""
        reached: dict[int, tuple[int, int, str]] = {}  # by the version that follows a file
        queue = deque([start + 1])
        while queue and target + 1 not in reached:
            at = queue.popleft()
            files = [(at, self.commits[at])] if at in self.commits else []
            files += [file for file in self.compacted.get(at, ()) if file[1] not in without]
            for last, path in files:
                if last <= target and last + 1 not in reached:
                    reached[last + 1] = (at, last, path)
                    queue.append(last + 1)
        if start < target and target + 1 not in reached:
            return max(reached, default=start + 1)
        path_back, at = [], target + 1
        while at > start + 1:
            path_back.append(reached[at])
            at = reached[at][0]
        return path_back[::-1]

    def _missing_error(self, at: int, target: int) -> Exception:
        """Return the error for a commit that does not exist."""
        oldest = min((version for version in self.checkpoints if version > target), default=None)
        if oldest is not None:
            return ArgumentError(
                f"{self.url} has no version {target} any more: its log was cleaned up, and commit {at} is gone. The oldest "
                f"available version is {oldest}. Give a version from there on, or none."
            )
        return DataError(
            f"{self.url}: commit {at} is missing in the table's log, which has later ones. No version from {at} on can be read "
            "without it. Check that the table was copied completely, or restore the commit."
        )

    def version_at(self, moment: datetime, in_commit: tuple[int, int] | None, read: Callable[[str], int]) -> int:
        """Return the version that was the newest at a moment.

        Args:
            moment: The moment.
            in_commit: The first version whose commit contains its time, and that time; None if file times count.
            read: Returns the time in a commit file.
        """
        time = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
        versions = self._readable_versions()
        if in_commit is not None and time >= in_commit[1]:
            timed = [version for version in versions if version >= in_commit[0]]
            newest = _last_until(time, timed, lambda version: read(self.commits[version]))
        else:
            untimed = versions if in_commit is None else [version for version in versions if version < in_commit[0]]
            newest = _last_until(time, untimed, _ascending(self.times, untimed).__getitem__)
        if newest is None:
            oldest = f"version {versions[0]}" if versions else "none"
            raise ArgumentError(
                f"{self.url} has no version as of {moment.isoformat()}. The oldest available version is {oldest}, which is "
                "later. Give a later timestamp, or a version."
            )
        return newest

    def _readable_versions(self) -> list[int]:
        """Return the versions, ascending, that can be read and have a commit file with a time."""
        starts: dict[int, set[int]] = {version: {version - 1} for version in self.commits}
        for first, files in self.compacted.items():
            for last, _ in files:
                starts.setdefault(last, set()).add(first - 1)
        readable = {-1}
        for version in sorted({*starts, *self.checkpoints}):
            if version in self.checkpoints or starts[version] & readable:
                readable.add(version)
        return sorted(readable.intersection(self.commits))


def _last_until(moment: int, versions: list[int], time: Callable[[int], int]) -> int | None:
    """Return the last of ascending versions whose time is not after a moment, by binary search: a time may cost a read."""
    low, high = 0, len(versions)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if time(versions[middle]) <= moment else (low, middle)
    return versions[low - 1] if low else None


def _ascending(times: Mapping[int, int], versions: list[int]) -> dict[int, int]:
    """Return file times, raised where they do not ascend with the versions."""
    ascending: dict[int, int] = {}
    before = -1
    for version in versions:
        before = ascending[version] = max(times[version], before + 1)
    return ascending


def list_log(place: Place) -> Log:
    """Return the files of a table's log now, or raise `TableNotFoundError` if there is no log."""
    invalidate_cache(place)
    try:
        infos = place.filesystem.get_file_info(pafs.FileSelector(f"{place.path.rstrip('/')}/{LOG}"))
    except (OSError, pa.ArrowException) as error:
        msg = f"{place.url!r} is no Delta table: it has no {LOG} that can be listed ({error}). Check the path."
        raise TableNotFoundError(msg) from error
    files = {info.path.rstrip("/").rsplit("/", 1)[-1]: info for info in infos if info.type == pafs.FileType.File}
    commits = {int(match[1]): files[name] for name in files if (match := COMMIT.fullmatch(name))}
    compacted: dict[int, tuple[tuple[int, str], ...]] = {}
    for name, info in files.items():
        if (match := COMPACTED.fullmatch(name)) and int(match[1]) <= int(match[2]):
            compacted[int(match[1])] = (*compacted.get(int(match[1]), ()), (int(match[2]), info.path))
    return Log(
        url=place.url,
        commits={version: info.path for version, info in commits.items()},
        times={version: (info.mtime_ns or 0) // 1_000_000 for version, info in commits.items()},
        checkpoints=_checkpoints({name: info.path for name, info in files.items()}),
        compacted=compacted,
    )


def _checkpoints(files: Mapping[str, str]) -> dict[int, tuple[str, ...]]:
    """Return the files of each complete checkpoint by version; of several for one version, the simplest."""
    checkpoints: dict[int, tuple[str, ...]] = {}
    for name in sorted(files):
        if match := NAMED.fullmatch(name):
            checkpoints[int(match[1])] = (files[name],)
    parts: dict[tuple[int, int], dict[int, str]] = {}
    for name in sorted(files):
        if match := PART.fullmatch(name):
            parts.setdefault((int(match[1]), int(match[3])), {})[int(match[2])] = files[name]
    for (version, count), paths in sorted(parts.items()):
        if set(paths) == set(range(1, count + 1)):
            checkpoints[version] = tuple(paths[number] for number in sorted(paths))
    for name in files:
        if match := CHECKPOINT.fullmatch(name):
            checkpoints[int(match[1])] = (files[name],)
    return checkpoints
