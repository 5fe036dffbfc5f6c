"""Which files of a Delta log make a version: the newest checkpoint before it, and the commits after that."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from pyarrow import fs as pafs

from penstock.errors import ArgumentError, DataError, TableNotFoundError
from penstock.formats.delta.commit import forget
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
        checkpoint: The parts of the checkpoint that it begins with; none where it begins with the first commit.
        commits: The commits after that, in order; some may hold several versions.
        compacted: The first and the last version of each file among them that holds several.
    """

    version: int
    checkpoint: tuple[str, ...]
    commits: tuple[str, ...]
    compacted: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What lies in a table's log.

    Attributes:
        url: The table, for messages.
        commits: The file of each version's commit.
        times: When each of them was written, in milliseconds since the epoch.
        checkpoints: The files of a whole checkpoint, by its version.
        compacted: By its first version, the files that hold several commits: the last version, and the file.
    """

    url: str
    commits: Mapping[int, str]
    times: Mapping[int, int]
    checkpoints: Mapping[int, tuple[str, ...]]
    compacted: Mapping[int, tuple[tuple[int, str], ...]]

    @property
    def newest(self) -> int:
        """The newest version.

        Raises:
            DataError: If the log holds none.
        """
        if not self.commits and not self.checkpoints and not self.compacted:
            msg = (
                f"{self.url} has a Delta log without commits. At least one was expected. Check that the table was copied whole."
            )
            raise DataError(msg)
        return max([*self.commits, *self.checkpoints, *(last for each in self.compacted.values() for last, _ in each)])

    def check(self, version: int, what: str, instead: str) -> None:
        """Refuse a version that the table never had.

        Args:
            version: The version.
            what: What was asked for, for the message.
            instead: What else may be given.

        Raises:
            ArgumentError: If it is one.
        """
        newest = self.newest
        if not 0 <= version <= newest:
            msg = f"{self.url} has no version {version}. Its newest is {newest}. Give {what} from 0 to {newest}, {instead}."
            raise ArgumentError(msg)

    def segment(self, version: int | None, without: Collection[str] = ()) -> Segment:
        """Return the files that make a version; of the newest where none is given.

        Args:
            version: The version.
            without: Compacted commits that must not be used.

        Raises:
            ArgumentError: If there is no such version, or none any more.
            DataError: If a commit is missing.
        """
        wanted = self.newest if version is None else version
        self.check(wanted, "a version", "or none")
        starts = [*sorted((at for at in self.checkpoints if at <= wanted), reverse=True), -1]
        gaps = []
        for start in starts:
            found = self._way(start, wanted, without)
            if isinstance(found, list):
                return Segment(
                    version=wanted,
                    checkpoint=self.checkpoints.get(start, ()),
                    commits=tuple(path for _, _, path in found),
                    compacted={path: (first, last) for first, last, path in found if self.commits.get(first) != path},
                )
            gaps.append(found)
        raise self._missing(gaps[0], wanted)

    def _way(self, start: int, wanted: int, without: Collection[str]) -> list[tuple[int, int, str]] | int:
        """Return the fewest files, each with its versions, that lead from one version to another; or the commit that lacks."""
        came: dict[int, tuple[int, int, str]] = {}
        ends = deque([start + 1])
        while ends and wanted + 1 not in came:
            at = ends.popleft()
            own = [(at, self.commits[at])] if at in self.commits else []
            for last, path in own + [found for found in self.compacted.get(at, ()) if found[1] not in without]:
                if last <= wanted and last + 1 not in came:
                    came[last + 1] = (at, last, path)
                    ends.append(last + 1)
        if start < wanted and wanted + 1 not in came:
            return max(came, default=start + 1)
        way, at = [], wanted + 1
        while at > start + 1:
            way.append(came[at])
            at = came[at][0]
        return way[::-1]

    def _missing(self, at: int, wanted: int) -> Exception:
        """Return the error for a commit that is not there."""
        oldest = min((version for version in self.checkpoints if version > wanted), default=None)
        if oldest is not None:
            return ArgumentError(
                f"{self.url} has no version {wanted} any more: its log was cleaned up, and commit {at} is gone. The oldest "
                f"that can be had is {oldest}. Give a version from there on, or none."
            )
        return DataError(
            f"{self.url}: commit {at} is missing in the table's log, which has later ones. Without it no version from {at} on "
            "is known. Check that the table was copied whole, or restore the commit."
        )

    def version_at(self, moment: datetime, in_commit: tuple[int, int] | None, read: Callable[[str], int]) -> int:
        """Return the version that was the newest at a moment.

        Args:
            moment: The moment.
            in_commit: Where commits say their time themselves: from which version on, and its time; None where files tell.
            read: What returns the time that a commit says.

        Raises:
            ArgumentError: If the table was not there yet, or is not known at that time any more.
        """
        asked = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
        known = self._known()
        if in_commit is not None and asked >= in_commit[1]:
            inside = [version for version in known if version >= in_commit[0]]
            found = _last_before(asked, inside, lambda version: read(self.commits[version]))
        else:
            outside = known if in_commit is None else [version for version in known if version < in_commit[0]]
            found = _last_before(asked, outside, _ascending(self.times, outside).__getitem__)
        if found is None:
            first = f"version {known[0]}" if known else "none"
            msg = (
                f"{self.url} has no version as of {moment.isoformat()}. The oldest that can be had is {first}, which came "
                "later. Give a later timestamp, or a version."
            )
            raise ArgumentError(msg)
        return found

    def _known(self) -> list[int]:
        """Return the versions, ascending, that can be put together and whose commits tell their times."""
        begins: dict[int, set[int]] = {version: {version - 1} for version in self.commits}
        for first, each in self.compacted.items():
            for last, _ in each:
                begins.setdefault(last, set()).add(first - 1)
        whole = {-1}
        for version in sorted({*begins, *self.checkpoints}):
            if version in self.checkpoints or begins[version] & whole:
                whole.add(version)
        return sorted(whole.intersection(self.commits))


def _last_before(moment: int, versions: list[int], time: Callable[[int], int]) -> int | None:
    """Return the last of ascending versions whose time is not after a moment: a binary search, for times may cost a read."""
    low, high = 0, len(versions)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if time(versions[middle]) <= moment else (low, middle)
    return versions[low - 1] if low else None


def _ascending(times: Mapping[int, int], versions: list[int]) -> dict[int, int]:
    """Return times that grow from version to version, as those of files need not."""
    found: dict[int, int] = {}
    before = -1
    for version in versions:
        before = found[version] = max(times[version], before + 1)
    return found


def list_log(place: Place) -> Log:
    """Return what lies in a table's log now.

    Raises:
        TableNotFoundError: If there is no log.
    """
    forget(place)
    try:
        infos = place.filesystem.get_file_info(pafs.FileSelector(f"{place.path.rstrip('/')}/{LOG}"))
    except (OSError, pa.ArrowException) as error:
        msg = f"{place.url!r} is no Delta table: it has no {LOG} that can be listed ({error}). Check the path."
        raise TableNotFoundError(msg) from error
    files = {info.path.rstrip("/").rsplit("/", 1)[-1]: info for info in infos if info.type == pafs.FileType.File}
    commits = {int(found[1]): files[name] for name in files if (found := COMMIT.fullmatch(name))}
    compacted: dict[int, tuple[tuple[int, str], ...]] = {}
    for name, info in files.items():
        if (found := COMPACTED.fullmatch(name)) and int(found[1]) <= int(found[2]):
            compacted[int(found[1])] = (*compacted.get(int(found[1]), ()), (int(found[2]), info.path))
    return Log(
        url=place.url,
        commits={version: info.path for version, info in commits.items()},
        times={version: (info.mtime_ns or 0) // 1_000_000 for version, info in commits.items()},
        checkpoints=_checkpoints({name: info.path for name, info in files.items()}),
        compacted=compacted,
    )


def _checkpoints(files: Mapping[str, str]) -> dict[int, tuple[str, ...]]:
    """Return the files of each whole checkpoint by its version; where there are several of one, the simplest."""
    found: dict[int, tuple[str, ...]] = {}
    for name in sorted(files):
        if match := NAMED.fullmatch(name):
            found[int(match[1])] = (files[name],)
    parts: dict[tuple[int, int], dict[int, str]] = {}
    for name in sorted(files):
        if match := PART.fullmatch(name):
            parts.setdefault((int(match[1]), int(match[3])), {})[int(match[2])] = files[name]
    for (version, count), paths in sorted(parts.items()):
        if set(paths) == set(range(1, count + 1)):
            found[version] = tuple(paths[number] for number in sorted(paths))
    for name in files:
        if match := CHECKPOINT.fullmatch(name):
            found[int(match[1])] = (files[name],)
    return found
