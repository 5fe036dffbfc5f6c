"""A change of a table on a local disk: a new directory is made beside the table's, and both are exchanged in one step.

Beside a table `t`, a change makes the directory `.t.penstock-<id>`. In it lie `table`, which becomes the table; `lock`, which
the writer holds while it lives; and, from just before the exchange, `replaced.json`, which says what the old directory held.
After the exchange `table` is the old directory. What lies in it beyond that record was put there by somebody else in the
meantime, and is moved into the new one; the rest is deleted. The next writer does so for one that died.
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
from dataclasses import dataclass
from pathlib import Path

from penstock._engine.commit import in_place as inplace
from penstock._engine.commit.in_place import warn_untidy
from penstock._engine.commit.log import sync
from penstock._engine.commit.target import Mode, check_name, check_small, check_target, goes
from penstock.errors import ArgumentError, DataError
from penstock.model import Place

__all__ = ["UNSUPPORTED", "DirectorySwap", "begin"]

UNSUPPORTED = frozenset(
    {errno.ENOSYS, errno.EINVAL, errno.EXDEV, errno.EPERM, errno.EBUSY, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK}
)
"""What a filesystem says that cannot exchange directories, or has no hard links."""

NOT_HERE = UNSUPPORTED | {errno.EACCES, errno.EROFS, errno.ENOLCK, errno.ENAMETOOLONG}
"""What it says where nothing can be made beside the table, though perhaps inside it."""

GRACE_SECONDS = 0.05
"""How long the old directory is left alone, at least: readers that were listing it would miss what is deleted under them."""

PATIENCE_SECONDS, AGAIN_SECONDS = 10.0, 0.01
"""How long a change that is given up waits for others who change the table, and how often it looks."""

STAGED, LOCK, RECORD = "table", "lock", "replaced.json"
AT_WORKING_DIRECTORY, EXCHANGE, SWAP = -100, 2, 2  # as Linux and macOS number them


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replaced:
    """A directory: its inode, and the size and time of each file below it by relative name."""

    inode: int
    files: Mapping[str, str]


def begin(place: Place, mode: Mode, change: str) -> DirectorySwap:
    """Return a change that was begun: a directory beside the table is there and locked.

    Raises:
        ArgumentError: If a file lies above it.
        OSError: With a number of `NOT_HERE`, if the table's directory cannot be exchanged for another.
    """
    table = Path(os.path.realpath(place.path))  # which takes links in a circle too
    if table.is_mount():
        raise OSError(errno.EXDEV, "The directory is of another filesystem than the one above it.", str(table))
    with suppress(FileNotFoundError, NotADirectoryError):  # no such table, or no working directory any more
        if table.samefile(Path.cwd()):
            raise OSError(errno.EBUSY, "The directory is the one this process works in, which would be deleted.", str(table))
    made = [each for each in reversed(table.parents) if not each.exists()]
    swap = DirectorySwap(place, mode, change, table, made)
    try:
        table.parent.mkdir(parents=True, exist_ok=True)
        with _locked(table):
            _clear_dead(table)
            swap.open()
    except BaseException as error:
        with suppress(OSError):
            swap.abort()
        if isinstance(error, FileExistsError | NotADirectoryError):
            msg = f"{place.url} lies below a file: {error.filename}. A table is a directory. Give a path below directories."
            raise ArgumentError(msg) from error
        raise
    return swap


class DirectorySwap:
    """A change of a table that every reader sees at once. `penstock._engine.commit.change.Change` says how."""

    def __init__(self, place: Place, mode: Mode, change: str, table: Path, made: list[Path]) -> None:
        """Store what is changed and how; `table` is where it really lies, and `made` are directories above it to make."""
        self.id = change
        self._place, self._mode, self._table, self._made = place, mode, table, made
        self._staging = table.with_name(f".{table.name}.penstock-{change}")
        self._staged = self._staging / STAGED
        self._names: dict[str, None] = {}
        self._lock: _Lock | None = None
        self._instead: inplace.InPlace | None = None
        self._grace = 0.0

    def open(self) -> None:
        """Make the directory beside the table, and hold its lock."""
        self._staging.mkdir()
        self._lock = _lock(self._staging / LOCK, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._staged.mkdir()

    def path(self, name: str) -> str:
        """Return where a data file is written."""
        check_name(name, self.id)
        self._names[name] = None
        path = self._staged / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return str(path)

    def finish(self, small: Mapping[str, bytes], check: Callable[[], None] | None = None) -> None:
        """Make the change."""
        for name, data in small.items():
            check_small(name)
            (self._staged / name).write_bytes(data)
        for name in _files_below(self._staged):
            sync(self._staged / name)
        try:
            with _locked(self._table):
                self._put_in_place(small, check)
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            self._fall_back(small, check)
        try:
            sync(self._table.parent)
            time.sleep(self._grace)
            self.abort()  # what is left to remove is what was replaced
        except OSError as error:
            warn_untidy(self._place.url, error)

    def abort(self) -> None:
        """Remove every trace, unless the change is made: then only of what it replaced."""
        if self._instead is not None:
            self._instead.abort()
        if self._staging.exists():
            # A lock that was taken by what has been interrupted may be held until that is collected. The next writer clears.
            with _locked(self._table, PATIENCE_SECONDS) as held:
                if held:
                    _clear(self._staging, self._table)
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        for directory in reversed(self._made):
            with suppress(OSError):
                directory.rmdir()

    def _put_in_place(self, small: Mapping[str, bytes], check: Callable[[], None] | None) -> None:
        """Let the new directory take the place of the table's, or of nothing."""
        while True:
            check_target(self._place, self._mode)
            if check is not None:
                check()
            if self._table.exists():
                _keep_attributes(self._table, self._staged)
            if self._table.exists() and any(self._table.iterdir()):
                self._exchange(small)
                return
            _sync_directories(self._staged)
            try:
                self._staged.rename(self._table)
            except OSError as error:
                # Somebody else has put something there.
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            else:
                return

    def _exchange(self, small: Mapping[str, bytes]) -> None:
        """Carry over what stays of the table, and let both directories change places."""
        started = time.monotonic()
        old = _Replaced(inode=self._table.stat().st_ino, files=_files_below(self._table))
        self._grace = GRACE_SECONDS + 3 * (time.monotonic() - started)
        for directory in _directories_below(self._table):
            if self._mode != "overwrite" or (self._staged / directory).exists():
                (self._staged / directory).mkdir(parents=True, exist_ok=True)
                _keep_attributes(self._table / directory, self._staged / directory)
        for name in old.files:
            new = self._staged / name
            if name in small or (self._mode == "overwrite" and goes(name)):
                continue
            if self._mode == "overwrite":
                new.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(self._table / name, new, follow_symlinks=False)
            except FileNotFoundError:  # somebody has just deleted it
                if os.path.lexists(self._table / name):
                    raise
        _sync_directories(self._staged)
        _write_record(self._staging / RECORD, old)
        exchange(self._staged, self._table)

    def _fall_back(self, small: Mapping[str, bytes], check: Callable[[], None] | None) -> None:
        """Make the change file by file, on a filesystem that turned out not to exchange directories."""
        self._instead = inplace.begin(self._place, self._mode, self.id)
        for name in self._names:
            if (self._staged / name).exists():
                shutil.move(self._staged / name, self._instead.path(name))
        self._instead.finish(small, check)


def exchange(one: Path, other: Path) -> None:
    """Let two directories change places in one step.

    Raises:
        OSError: If they cannot; with ENOSYS, where the system has no such step.
    """
    library = ctypes.CDLL(None, use_errno=True)
    first, second = os.fsencode(one), os.fsencode(other)
    try:
        if sys.platform == "darwin":
            failed = library.renamex_np(first, second, SWAP)
        else:
            failed = library.renameat2(AT_WORKING_DIRECTORY, first, AT_WORKING_DIRECTORY, second, EXCHANGE)
    except AttributeError:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one), None, str(other))


@contextmanager
def _locked(table: Path, patience: float | None = None) -> Iterator[bool]:
    """Hold the one lock of a table, a file beside it that does not stay; tell after `patience` seconds that it is not held."""
    path = table.with_name(f".{table.name}.penstock-lock")
    until = None if patience is None else time.monotonic() + patience
    lock = None
    while lock is None and (until is None or time.monotonic() < until):
        lock = _lock(path, fcntl.LOCK_EX | (0 if until is None else fcntl.LOCK_NB))
        if lock is None and until is not None:
            time.sleep(AGAIN_SECONDS)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            with suppress(OSError):
                path.unlink()
            lock.release()


class _Lock:
    """A file that is open to be locked; unlocked when nobody refers to it any more, whatever interrupted those who did."""

    __slots__ = ("_file",)

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)

    def is_locked(self, path: Path, how: int) -> bool:
        """Lock it, and return whether that went well: no other holds it, or held it and has removed the file."""
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(self._file, how)
            return os.fstat(self._file).st_ino == path.stat().st_ino
        return False

    def release(self) -> None:
        """Unlock and close it."""
        file, self._file = getattr(self, "_file", -1), -1
        if file >= 0:
            try:
                fcntl.flock(file, fcntl.LOCK_UN)  # closing is not enough where a child process has inherited it
            finally:
                os.close(file)

    __del__ = release


def _lock(path: Path, how: int) -> _Lock | None:
    """Return the lock that a file is; None where another holds it, or held it and has removed the file."""
    lock = _Lock(path)
    if lock.is_locked(path, how):
        return lock
    lock.release()
    return None


def _clear_dead(table: Path) -> None:
    """Remove what writers that died have left beside a table, whose lock is held."""
    ours = re.compile(rf"\.{re.escape(table.name)}\.penstock-[0-9a-f]{{12,64}}")
    for staging in [each for each in table.parent.iterdir() if ours.fullmatch(each.name) and each.is_dir()]:
        with suppress(PermissionError):  # another user's, who can remove it
            lock = _lock(staging / LOCK, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if lock is not None:
                try:
                    _clear(staging, table)
                finally:
                    lock.release()


def _clear(staging: Path, table: Path) -> None:
    """Remove a change's directory. Where it holds the old directory of a table, nothing that was put there late is lost."""
    old, replaced = staging / STAGED, _read_record(staging / RECORD)
    for name in _directories_below(staging):  # which have the mode bits of the table's, that may let nobody write
        with suppress(OSError):
            (staging / name).chmod((staging / name).stat().st_mode | 0o700)
    if replaced is not None and old.exists() and old.stat().st_ino == replaced.inode:
        _give_back(old, replaced.files, table)
    shutil.rmtree(staging)


def _give_back(old: Path, known: Mapping[str, str], table: Path) -> None:
    """Remove a table's old directory; files in it that are not known are moved to where the table is now."""
    while True:
        for name, stamp in _files_below(old).items():
            if known.get(name) != stamp:
                new = table / name
                new.parent.mkdir(parents=True, exist_ok=True)
                # What lies there is the version before this one, or a later one, which stays.
                if not os.path.lexists(new) or _stamp(new.lstat()) == known.get(name):
                    (old / name).replace(new)
                    continue
            (old / name).unlink()
        try:
            for directory in reversed(_directories_below(old)):
                (old / directory).rmdir()
            old.rmdir()
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:  # one more file came
                raise
        else:
            return


def _write_record(path: Path, replaced: _Replaced) -> None:
    spare = path.with_suffix(".tmp")
    spare.write_text(json.dumps({"inode": replaced.inode, "files": replaced.files}), encoding="utf-8")
    sync(spare)
    spare.rename(path)
    sync(path.parent)


def _read_record(path: Path) -> _Replaced | None:
    """Return what a directory held before it was exchanged, or None where nothing says that it was."""
    try:
        told = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        told = None
    files = told.get("files") if isinstance(told, dict) else None
    if not isinstance(files, dict) or not isinstance(told.get("inode"), int):
        msg = (
            f"{path} cannot be read. It was expected to say which files a table held when it was changed. Look whether files "
            f"are in {path.parent} that belong to the table, then remove that directory."
        )
        raise DataError(msg)
    return _Replaced(inode=told["inode"], files=files)


def _files_below(top: Path) -> dict[str, str]:
    """Return size and time of everything below a directory that is none itself, by relative name; links are not followed."""
    found = {}
    for name, entry in _entries(top):
        if not entry.is_dir(follow_symlinks=False):
            with suppress(FileNotFoundError):  # somebody has just deleted it
                found[name] = _stamp(entry.stat(follow_symlinks=False))
    return found


def _stamp(status: os.stat_result) -> str:
    return f"{status.st_size}:{status.st_mtime_ns}"


def _directories_below(top: Path) -> list[str]:
    """Return the relative names of the directories below another, outer ones first."""
    return [name for name, entry in _entries(top) if entry.is_dir(follow_symlinks=False)]


def _entries(top: Path, inside: str = "") -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield all that lies below a directory, by relative name; nothing where there is none."""
    try:
        with os.scandir(top / inside) as entries:
            found = list(entries)
    except FileNotFoundError:
        return
    for entry in found:
        name = f"{inside}{entry.name}"
        yield name, entry
        if entry.is_dir(follow_symlinks=False):
            yield from _entries(top, f"{name}/")


def _sync_directories(top: Path) -> None:
    for name in reversed(["", *_directories_below(top)]):
        sync(top / name)


def _keep_attributes(old: Path, new: Path) -> None:
    """Give a directory the owner and the mode bits of the one whose place it takes."""
    was = old.stat()
    with suppress(PermissionError):
        os.chown(new, was.st_uid, was.st_gid)
    shutil.copystat(old, new)
