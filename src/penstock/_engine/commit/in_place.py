"""A change of a table whose files are written where they stay, for storage that cannot swap directories.

`penstock._engine.commit.log` tells how readers know what belongs to the table.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from pyarrow import fs as pafs

from penstock._engine.commit import log as markers
from penstock._engine.commit.log import FOLDER, Commit, lies, relative, sync
from penstock._engine.commit.target import Mode, check_name, check_small, check_target, goes
from penstock._engine.storage.filesystem import stamp
from penstock.errors import DataChangedError
from penstock.model import Place

__all__ = ["InPlace", "begin", "warn_untidy"]

OBJECT_STORES = frozenset({"s3", "gcs", "abfs"})
"""What pyarrow calls stores that have no directories, and where an object appears when all of it is there."""

RENEW_SECONDS = 3600


def begin(place: Place, mode: Mode, change: str) -> InPlace:
    """Return a change that was begun: its marker lies there."""
    made = InPlace(place, mode, change)
    try:
        made.mark()
    except BaseException:
        with suppress(OSError):
            made.abort()
        raise
    return made


class InPlace:
    """A change of a table, file by file, that readers of ours see at once. `penstock._engine.commit.change.Change` says how."""

    def __init__(self, place: Place, mode: Mode, change: str) -> None:
        """Store what is changed and how."""
        self.id = change
        self._place, self._mode = place, mode
        self._names: dict[str, None] = {}
        self._made: list[str] = []  # directories, outer ones first
        self._renewed = 0.0
        self._committing = self._ended = False
        self._pending, self._committed, self._spare = (
            f"{place.path}/{FOLDER}/{change}.{ending}" for ending in ("pending", "committed", "tmp")
        )

    def mark(self) -> None:
        """Write the marker, or write it anew, so that it does not grow old."""
        for last in (False, False, True):
            self._make_directory(f"{self._place.path}/{FOLDER}")
            try:
                self._write(self._pending, str(time.time_ns()).encode())
                break
            except FileNotFoundError:  # another change has just ended, and took the directory with it
                if last:
                    raise
        self._renewed = time.monotonic()

    def path(self, name: str) -> str:
        """Return where a data file is written."""
        check_name(name, self.id)
        if time.monotonic() - self._renewed > RENEW_SECONDS:
            self.mark()
        self._names[name] = None
        path = f"{self._place.path}/{name}"
        self._make_directory(path.rpartition("/")[0])
        return path

    def finish(self, small: Mapping[str, bytes], check: Callable[[], None] | None = None) -> None:
        """Make the change."""
        for name in small:
            check_small(name)
        place = self._place
        infos = check_target(place, self._mode)
        found = {relative(info.path, place.path): stamp(info) for info in infos}
        if not lies(self._place.filesystem, self._pending):
            msg = (
                f"The change {self.id} of {place.url} is no longer marked as begun: {self._pending} is gone. Another writer "
                "has overwritten the table, or took this one for dead. Nothing was changed. Write again."
            )
            raise DataChangedError(msg)
        if check is not None:
            check()
        removed = {}
        if self._mode == "overwrite":
            removed = {name: mark for name, mark in found.items() if goes(name) and name not in small}
        commit = Commit(id=self.id, time=time.time_ns(), added=self._written(), removed=removed, small=dict(small))
        self._committing = True
        self._commit(markers.dump(commit))
        try:
            markers.complete(place, commit, infos)
        except OSError as error:
            warn_untidy(place.url, error)
        self._ended = True

    def abort(self) -> None:
        """Remove every trace, unless the change is made."""
        if self._ended:
            return
        place = self._place
        if lies(self._place.filesystem, self._committed):
            markers.settle(place)
        elif not self._committing or lies(self._place.filesystem, self._pending):
            markers.delete(place.filesystem, [self._spare, *(f"{place.path}/{name}" for name in self._names)])
            markers.delete(place.filesystem, [self._pending])
            markers.remove_empty(place.filesystem, reversed(self._made))
        # Otherwise another writer has seen that the change was made, and tidied up after it.
        self._ended = True

    def _written(self) -> tuple[str, ...]:
        """Return the names of files that were written, which are on disk then."""
        paths = [f"{self._place.path}/{name}" for name in self._names]
        infos = self._place.filesystem.get_file_info(paths)
        written = [name for name, info in zip(self._names, infos, strict=True) if info.type == pafs.FileType.File]
        if isinstance(self._place.filesystem, pafs.LocalFileSystem):
            files = [Path(self._place.path, name) for name in written]
            for path in dict.fromkeys([*files, *(file.parent for file in files)]):
                sync(path)
        return tuple(written)

    def _commit(self, data: bytes) -> None:
        """Let the marker appear with all that it holds."""
        filesystem = self._place.filesystem
        try:
            if filesystem.type_name in OBJECT_STORES:
                self._write(self._committed, data)
            else:
                self._write(self._spare, data)
                if isinstance(filesystem, pafs.LocalFileSystem):
                    sync(Path(self._spare))
                filesystem.move(self._spare, self._committed)
                if isinstance(filesystem, pafs.LocalFileSystem):
                    sync(Path(self._committed).parent)
        except OSError:
            # A store may have done what it could not confirm.
            if not lies(self._place.filesystem, self._committed):
                raise

    def _write(self, path: str, data: bytes) -> None:
        with self._place.filesystem.open_output_stream(path, compression=None) as stream:
            stream.write(data)

    def _make_directory(self, path: str) -> None:
        """Make a directory where the storage has such, and remember it where it can be removed again."""
        filesystem = self._place.filesystem
        if filesystem.type_name in OBJECT_STORES:
            return
        if isinstance(filesystem, pafs.LocalFileSystem):
            chain = [Path(path), *Path(path).parents]
            self._made += [str(each) for each in reversed(chain) if not each.exists()]
        filesystem.create_dir(path, recursive=True)


def warn_untidy(url: str, error: OSError) -> None:
    """Warn that a change was made, but that what it replaced lies there still."""
    msg = (
        f"The change of {url} is made, but what it replaced could not be removed: {error}. Software other than Penstock may "
        "still read it. The next write to the table removes it."
    )
    warnings.warn(msg, RuntimeWarning, stacklevel=4)
