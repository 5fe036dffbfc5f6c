"""Commits of a Delta log: put where none is yet, all of it at once, or refused."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from pyarrow import fs as pafs

from penstock.errors import ArgumentError
from penstock.model import Place

__all__ = ["check_puts", "put_if_absent", "sync_files"]

NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)
EXCLUSIVE = ("memory",)
"""Filesystems of fsspec, by their protocol, that create a file only where there is none."""


def check_puts(place: Place) -> None:
    """Refuse storage where two writers could both make one version.

    Raises:
        ArgumentError: If it is one.
    """
    if isinstance(place.filesystem, pafs.LocalFileSystem) or _exclusive(place.filesystem) is not None:
        return
    msg = (
        f"{place.url} lies on {place.filesystem.type_name}, where Penstock cannot create a file only if there is none, and two "
        "writers could make one version of a Delta table. A local path was expected. Write it there and copy it, write it with "
        "the package deltalake, or leave the format out for Parquet files."
    )
    raise ArgumentError(msg)


def _exclusive(filesystem: pafs.FileSystem) -> object | None:
    """Return the filesystem of fsspec inside, if it can create files exclusively."""
    own = getattr(filesystem.handler, "fs", None) if isinstance(filesystem, pafs.PyFileSystem) else None
    names = getattr(own, "protocol", ())
    return own if any(name in EXCLUSIVE for name in ((names,) if isinstance(names, str) else names)) else None


def put_if_absent(place: Place, path: str, data: bytes, spare: str) -> bool:
    """Write a file where none is, whole or not at all; return whether it was written.

    Args:
        place: The table.
        path: The file.
        data: What it holds.
        spare: A path beside it that is nobody else's.

    Raises:
        OSError: If storage refuses it.
    """
    own = _exclusive(place.filesystem)
    if own is not None:
        try:
            own.pipe_file(path, data, mode="create")  # type: ignore[attr-defined] # fsspec's
        except FileExistsError:
            return False
        return True
    with Path(spare).open("wb") as sink:
        sink.write(data)
        sink.flush()
        os.fsync(sink.fileno())
    try:
        os.link(spare, path)  # the one step that fails where a file is, and shows all of it where none was
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in NO_LINKS:
            msg = f"the disk has no hard links ({error.strerror}), by which commits are made at once"
            raise OSError(error.errno, msg) from error
        raise
    finally:
        with suppress(OSError):
            Path(spare).unlink()
    with suppress(OSError):  # the commit is made, whatever a failing disk says now
        _sync(Path(path).parent)
    return True


def sync_files(place: Place, paths: list[str]) -> None:
    """Wait until files and their directories are on disk, where they lie on one."""
    if isinstance(place.filesystem, pafs.LocalFileSystem):
        for path in [*map(Path, paths), *{Path(path).parent for path in paths}]:
            _sync(path)


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
