"""A change of a table on a local disk: a new directory is prepared beside the table, and one step exchanges both.

Beside a table `t`, a change creates the directory `.t.penstock-<id>`. It holds `table`, which becomes the table; `lock`, which
the writer locks while it lives; and, from just before the exchange, `replaced.json`, which lists the files of the old table.
After the exchange, `table` is the old directory. Other processes may have added files to it that the record does not list;
they are moved into the new directory, and the rest is deleted. The next writer does so for a writer that died.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock._engine.commit import in_place
from penstock._engine.commit.in_place import warn_leftovers
from penstock._engine.commit.log import sync
from penstock._engine.commit.target import Mode, check_name, check_small, check_target, is_overwritten
from penstock.errors import ArgumentError, DataError
from penstock.model import Place

UNSUPPORTED = frozenset(
    {errno.ENOSYS, errno.EINVAL, errno.EXDEV, errno.EPERM, errno.EBUSY, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK}
)
"""Errors of filesystems that cannot exchange directories, or have no hard links."""

NOT_BESIDE = UNSUPPORTED | {errno.EACCES, errno.EROFS, errno.ENOLCK, errno.ENAMETOOLONG}
"""Errors where nothing can be created beside the table, though perhaps inside it."""

GRACE_SECONDS = 0.05
"""The least time before the old directory is deleted: readers that are listing it would miss files."""

PATIENCE_SECONDS, RETRY_SECONDS = 10.0, 0.01
"""How long an aborted change waits for the lock of the table, and how often it tries."""

STAGED, LOCK, RECORD = "table", "lock", "replaced.json"
AT_FDCWD, RENAME_EXCHANGE, RENAME_SWAP = -100, 2, 2  # the constants of Linux and macOS


def begin(place: Place, mode: Mode, change: str) -> DirectorySwap:
    """Return a new change, whose directory beside the table exists and is locked."""
    table = Path(os.path.realpath(place.path))  # unlike Path.resolve, it accepts circular links
    if table.is_mount():
        raise OSError(errno.EXDEV, "The directory is of another filesystem than the one above it.", str(table))
    with suppress(FileNotFoundError, NotADirectoryError):  # the table or the working directory does not exist
        if table.samefile(Path.cwd()):
            raise OSError(
                errno.EBUSY, "The directory is the working directory of this process, and would be deleted.", str(table)
            )
    created = [parent for parent in reversed(table.parents) if not parent.exists()]
    swap = DirectorySwap(place, mode, change, table, created)
    try:
        table.parent.mkdir(parents=True, exist_ok=True)
        with _table_locked(table):
            _remove_abandoned(table)
            swap.open()
    except BaseException as error:
        with suppress(OSError):
            swap.abort()
        if isinstance(error, FileExistsError | NotADirectoryError):
            msg = f"{place.url} is below the file {error.filename}; expected a path below directories. Give another path."
            raise ArgumentError(msg) from error
        raise
    return swap


class DirectorySwap:
    """A change that every reader sees at once. See `penstock._engine.commit.change.Change`."""

    def __init__(self, place: Place, mode: Mode, change: str, table: Path, created: list[Path]) -> None:
        """Store the real path of the table and the directories above it that are to be created."""
        self.id = change
        self._place, self._mode, self._table, self._created = place, mode, table, created
        self._staging = table.with_name(f".{table.name}.penstock-{change}")
        self._staged = self._staging / STAGED
        self._names: dict[str, None] = {}
        self._lock: _FileLock | None = None
        self._fallback: in_place.InPlaceChange | None = None
        self._grace_seconds = 0.0

    def open(self) -> None:
        """Create the directory beside the table, and lock it."""
        self._staging.mkdir()
        self._lock = _lock_file(self._staging / LOCK, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._staged.mkdir()

    def path(self, name: str) -> str:
        """Return where to write a data file."""
        check_name(name, self.id)
        self._names[name] = None
        path = self._staged / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return str(path)

    def finish(self, small: Mapping[str, bytes], check: Callable[[], None] | None = None) -> None:
        """Commit the change."""
        for name, data in small.items():
            check_small(name)
            (self._staged / name).write_bytes(data)
        for name in _list_files(self._staged):
            sync(self._staged / name)
        try:
            with _table_locked(self._table):
                self._install(small, check)
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            self._commit_in_place(small, check)
        try:
            sync(self._table.parent)
            time.sleep(self._grace_seconds)
            self.abort()  # removes the replaced directory
        except OSError as error:
            warn_leftovers(self._place.url, error)

    def abort(self) -> None:
        """Remove everything that was written; after the commit, remove what it replaced."""
        if self._fallback is not None:
            self._fallback.abort()
        if self._staging.exists():
            # An interrupted call may hold the lock until it is garbage collected. Then the next writer cleans up.
            with _table_locked(self._table, PATIENCE_SECONDS) as locked:
                if locked:
                    _remove_staging(self._staging, self._table)
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        for directory in reversed(self._created):
            with suppress(OSError):
                directory.rmdir()

    def _install(self, small: Mapping[str, bytes], check: Callable[[], None] | None) -> None:
        """Move the new directory to the path of the table."""
        while True:
            check_target(self._place, self._mode)
            if check is not None:
                check()
            if self._table.exists():
                _copy_attributes(self._table, self._staged)
            if self._table.exists() and any(self._table.iterdir()):
                self._exchange(small)
                return
            _sync_directories(self._staged)
            try:
                self._staged.rename(self._table)
            except OSError as error:
                # Another process has created something there.
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            else:
                return

    def _exchange(self, small: Mapping[str, bytes]) -> None:
        """Link the files of the table that stay into the new directory, and exchange both directories."""
        started = time.monotonic()
        old_files = _list_files(self._table)
        self._grace_seconds = GRACE_SECONDS + 3 * (time.monotonic() - started)
        for directory in _list_directories(self._table):
            if self._mode != "overwrite" or (self._staged / directory).exists():
                (self._staged / directory).mkdir(parents=True, exist_ok=True)
                _copy_attributes(self._table / directory, self._staged / directory)
        for name in old_files:
            new = self._staged / name
            if name in small or (self._mode == "overwrite" and is_overwritten(name)):
                continue
            if self._mode == "overwrite":
                new.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(self._table / name, new, follow_symlinks=False)
            except FileNotFoundError:  # another process has just deleted it
                if os.path.lexists(self._table / name):
                    raise
        _sync_directories(self._staged)
        _write_record(self._staging / RECORD, self._table.stat().st_ino, old_files)
        exchange(self._staged, self._table)

    def _commit_in_place(self, small: Mapping[str, bytes], check: Callable[[], None] | None) -> None:
        """Commit file by file, on a filesystem that turned out not to exchange directories."""
        self._fallback = in_place.begin(self._place, self._mode, self.id)
        for name in self._names:
            if (self._staged / name).exists():
                shutil.move(self._staged / name, self._fallback.path(name))
        self._fallback.finish(small, check)


def exchange(one: Path, other: Path) -> None:
    """Exchange two directories in one step."""
    library = ctypes.CDLL(None, use_errno=True)
    first, second = os.fsencode(one), os.fsencode(other)
    try:
        if sys.platform == "darwin":
            failed = library.renamex_np(first, second, RENAME_SWAP)
        else:
            failed = library.renameat2(AT_FDCWD, first, AT_FDCWD, second, RENAME_EXCHANGE)
    except AttributeError:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one), None, str(other))


@contextmanager
def _table_locked(table: Path, timeout_seconds: float | None = None) -> Iterator[bool]:
    """Lock a table by a temporary file beside it; yield False if the lock is not free before the timeout."""
    path = table.with_name(f".{table.name}.penstock-lock")
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    lock = None
    while lock is None and (deadline is None or time.monotonic() < deadline):
        lock = _lock_file(path, fcntl.LOCK_EX | (0 if deadline is None else fcntl.LOCK_NB))
        if lock is None and deadline is not None:
            time.sleep(RETRY_SECONDS)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            with suppress(OSError):
                path.unlink()
            lock.release()


class _FileLock:
    """An open file that can be locked; it is unlocked when it is garbage collected, whatever interrupted its users."""

    __slots__ = ("_file",)

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)

    def acquire(self, path: Path, flags: int) -> bool:
        """Lock the file; return False if another process holds the lock, or held it and removed the file."""
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(self._file, flags)
            return os.fstat(self._file).st_ino == path.stat().st_ino
        return False

    def release(self) -> None:
        """Unlock and close the file."""
        file, self._file = getattr(self, "_file", -1), -1
        if file >= 0:
            try:
                fcntl.flock(file, fcntl.LOCK_UN)  # closing is not enough where a child process has inherited it
            finally:
                os.close(file)

    __del__ = release


def _lock_file(path: Path, flags: int) -> _FileLock | None:
    """Return the acquired lock of a file, or None."""
    lock = _FileLock(path)
    if lock.acquire(path, flags):
        return lock
    lock.release()
    return None


def _remove_abandoned(table: Path) -> None:
    """Remove the directories that dead writers have left beside a locked table."""
    pattern = re.compile(rf"\.{re.escape(table.name)}\.penstock-[0-9a-f]{{12,64}}")
    for staging in [path for path in table.parent.iterdir() if pattern.fullmatch(path.name) and path.is_dir()]:
        with suppress(PermissionError):  # it belongs to another user, who can remove it
            lock = _lock_file(staging / LOCK, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if lock is not None:
                try:
                    _remove_staging(staging, table)
                finally:
                    lock.release()


def _remove_staging(staging: Path, table: Path) -> None:
    """Remove a change's directory; files that were added late to the old table are moved to the table."""
    old, record = staging / STAGED, _read_record(staging / RECORD)
    for name in _list_directories(staging):  # they have the mode bits of the table's, which may forbid writing
        with suppress(OSError):
            (staging / name).chmod((staging / name).stat().st_mode | 0o700)
    if record is not None and old.exists() and old.stat().st_ino == record[0]:
        _remove_replaced(old, record[1], table)
    shutil.rmtree(staging)


def _remove_replaced(old: Path, recorded: Mapping[str, str], table: Path) -> None:
    """Remove a table's old directory; files that are not recorded are moved to the table."""
    while True:
        for name, stamp in _list_files(old).items():
            if recorded.get(name) != stamp:
                new = table / name
                new.parent.mkdir(parents=True, exist_ok=True)
                # A file of that name is replaced if it is the recorded version; a later one stays.
                if not os.path.lexists(new) or _stamp(new.lstat()) == recorded.get(name):
                    (old / name).replace(new)
                    continue
            (old / name).unlink()
        try:
            for directory in reversed(_list_directories(old)):
                (old / directory).rmdir()
            old.rmdir()
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:  # another file was added meanwhile
                raise
        else:
            return


def _write_record(path: Path, inode: int, files: Mapping[str, str]) -> None:
    """Write the inode of a directory, and the size and time of each file below it by relative name."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"inode": inode, "files": files}), encoding="utf-8")
    sync(temporary)
    temporary.rename(path)
    sync(path.parent)


def _read_record(path: Path) -> tuple[int, Mapping[str, str]] | None:
    """Return the inode and the files of a directory that was to be exchanged, or None if there is no record."""
    try:
        record = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        record = None
    files = record.get("files") if isinstance(record, dict) else None
    if not isinstance(files, dict) or not isinstance(record.get("inode"), int):
        raise DataError(
            f"{path} cannot be read; expected the list of files that a table held before a change. Check whether "
            f"{path.parent} holds files that belong to the table, then remove that directory."
        )
    return record["inode"], files


def _list_files(top: Path) -> dict[str, str]:
    """Return the stamps of all files below a directory by relative name; links are not followed."""
    stamps = {}
    for name, entry in _entries(top):
        if not entry.is_dir(follow_symlinks=False):
            with suppress(FileNotFoundError):  # another process has just deleted it
                stamps[name] = _stamp(entry.stat(follow_symlinks=False))
    return stamps


def _stamp(status: os.stat_result) -> str:
    return f"{status.st_size}:{status.st_mtime_ns}"


def _list_directories(top: Path) -> list[str]:
    """Return the relative names of the directories below another, outer ones first."""
    return [name for name, entry in _entries(top) if entry.is_dir(follow_symlinks=False)]


def _entries(top: Path, inside: str = "") -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield all entries below a directory by relative name; none if it does not exist."""
    try:
        with os.scandir(top / inside) as scan:
            entries = list(scan)
    except FileNotFoundError:
        return
    for entry in entries:
        name = f"{inside}{entry.name}"
        yield name, entry
        if entry.is_dir(follow_symlinks=False):
            yield from _entries(top, f"{name}/")


def _sync_directories(top: Path) -> None:
    for name in reversed(["", *_list_directories(top)]):
        sync(top / name)


def _copy_attributes(old: Path, new: Path) -> None:
    """Give a directory the owner and the mode bits of another."""
    status = old.stat()
    with suppress(PermissionError):
        os.chown(new, status.st_uid, status.st_gid)
    shutil.copystat(old, new)
