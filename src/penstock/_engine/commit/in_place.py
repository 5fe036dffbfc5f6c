"""A change of a table that writes files under their final names, for storage that cannot swap directories.

`penstock._engine.commit.log` explains how readers know which files belong to the table.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from pyarrow import fs as pafs

from penstock._engine.commit import log
from penstock._engine.commit.log import FOLDER, Commit, file_exists, relative, sync
from penstock._engine.commit.target import Mode, check_name, check_small, check_target, is_overwritten
from penstock._engine.storage.filesystem import stamp
from penstock.errors import DataChangedError
from penstock.model import Place

OBJECT_STORES = frozenset({"s3", "gcs", "abfs"})
"""The names in pyarrow of stores without directories, in which an object appears only when it is complete."""

RENEW_SECONDS = 3600
MARKER_TRIES = 20
"""How often a change creates the directory of markers again if other changes keep removing it."""


def begin(place: Place, mode: Mode, change: str) -> InPlaceChange:
    """Return a new change, whose pending marker exists."""
    result = InPlaceChange(place, mode, change)
    try:
        result.write_marker()
    except BaseException:
        with suppress(OSError):
            result.abort()
        raise
    return result


class InPlaceChange:
    """A change that writes files under their final names. See `penstock._engine.commit.change.Change`."""

    def __init__(self, place: Place, mode: Mode, change: str) -> None:
        """Store the place and the mode; nothing is written yet."""
        self.id = change
        self._place, self._mode = place, mode
        self._filesystem = place.filesystem
        self._is_local = isinstance(place.filesystem, pafs.LocalFileSystem)
        self._names: dict[str, None] = {}
        self._created: list[str] = []  # directories, outer ones first
        self._renewed = 0.0
        self._committing = self._ended = False
        self._pending, self._committed, self._temporary = (
            f"{place.path}/{FOLDER}/{change}.{ending}" for ending in ("pending", "committed", "tmp")
        )

    def write_marker(self) -> None:
        """Write the pending marker, or renew it before it counts as abandoned."""
        for left in reversed(range(MARKER_TRIES)):
            self._create_directory(f"{self._place.path}/{FOLDER}")
            try:
                self._write(self._pending, str(time.time_ns()).encode())
                break
            except FileNotFoundError:  # another change has just ended and removed the directory
                if not left:
                    raise
        self._renewed = time.monotonic()

    def path(self, name: str) -> str:
        """Return where to write a data file."""
        check_name(name, self.id)
        if time.monotonic() - self._renewed > RENEW_SECONDS:
            self.write_marker()
        self._names[name] = None
        path = f"{self._place.path}/{name}"
        self._create_directory(path.rpartition("/")[0])
        return path

    def finish(self, small: Mapping[str, bytes], check: Callable[[], None] | None = None) -> None:
        """Commit the change."""
        for name in small:
            check_small(name)
        place = self._place
        infos = check_target(place, self._mode)
        if not file_exists(self._filesystem, self._pending):
            raise DataChangedError(
                f"The change {self.id} of {place.url} has lost its marker {self._pending}. Another writer has overwritten the "
                "table, or removed the marker as abandoned. Nothing was changed. Write again."
            )
        if check is not None:
            check()
        removed = {}
        if self._mode == "overwrite":
            stamps = {relative(info.path, place.path): stamp(info) for info in infos}
            removed = {name: mark for name, mark in stamps.items() if is_overwritten(name) and name not in small}
        commit = Commit(id=self.id, time=time.time_ns(), added=self._written(), removed=removed, small=dict(small))
        self._committing = True
        self._commit(log.dump(commit))
        try:
            log.complete(place, commit, infos)
        except OSError as error:
            warn_leftovers(place.url, error)
        self._ended = True

    def abort(self) -> None:
        """Remove everything that was written, unless the change is committed."""
        if self._ended:
            return
        if file_exists(self._filesystem, self._committed):
            log.recover(self._place)
        elif not self._committing or file_exists(self._filesystem, self._pending):
            log.delete(self._filesystem, [self._temporary, *(f"{self._place.path}/{name}" for name in self._names)])
            log.delete(self._filesystem, [self._pending])
            log.remove_empty(self._filesystem, reversed(self._created))
        # Otherwise another writer found the change committed, and completed it.
        self._ended = True

    def _written(self) -> tuple[str, ...]:
        """Return the names of the files that were written, flushed to disk."""
        infos = self._filesystem.get_file_info([f"{self._place.path}/{name}" for name in self._names])
        written = [name for name, info in zip(self._names, infos, strict=True) if info.type == pafs.FileType.File]
        if self._is_local:
            files = [Path(self._place.path, name) for name in written]
            for path in dict.fromkeys([*files, *(file.parent for file in files)]):
                sync(path)
        return tuple(written)

    def _commit(self, data: bytes) -> None:
        """Create the committed marker with all of its contents."""
        try:
            if self._filesystem.type_name in OBJECT_STORES:
                self._write(self._committed, data)
                return
            self._write(self._temporary, data)
            if self._is_local:
                sync(Path(self._temporary))
            self._filesystem.move(self._temporary, self._committed)
            if self._is_local:
                sync(Path(self._committed).parent)
        except OSError:
            # The store may have created the marker although its answer was lost.
            if not file_exists(self._filesystem, self._committed):
                raise

    def _write(self, path: str, data: bytes) -> None:
        with self._filesystem.open_output_stream(path, compression=None) as stream:
            stream.write(data)

    def _create_directory(self, path: str) -> None:
        """Create a directory where the storage has directories; on local disks `abort` removes it again."""
        if self._filesystem.type_name in OBJECT_STORES:
            return
        if self._is_local:
            chain = [Path(path), *Path(path).parents]
            self._created += [str(directory) for directory in reversed(chain) if not directory.exists()]
        self._filesystem.create_dir(path, recursive=True)


def warn_leftovers(url: str, error: OSError) -> None:
    """Warn that a committed change could not remove the files that it replaced."""
    warnings.warn(
        f"The change of {url} is committed, but the files that it replaced could not be removed: {error}. Software other than "
        "Penstock may still read them. The next write to the table removes them.",
        RuntimeWarning,
        stacklevel=4,
    )
