"""Commits of a Delta log: put where none is yet, all of it at once, or refused."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyarrow import fs as pafs

from penstock.errors import ArgumentError
from penstock.model import Place

__all__ = ["check_puts", "drop_claim", "drop_folder", "forget", "prove_puts", "put_if_absent", "sync_files"]

NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)
LOCAL = ("file", "local")
CREATING = ("memory", "s3", "s3a", "abfs", "abfss", "az", "gs", "gcs")
"""Filesystems of fsspec, by their protocol, that are told to create a file only where there is none."""

BESIDE = {"s3": ("s3fs", "s3fs.S3FileSystem(...)", "s3"), "gcs": ("gcsfs", "gcsfs.GCSFileSystem(...)", "gcs")}
"""What pyarrow opens itself and cannot create so: the package whose filesystem can, how it is made, and our extra."""


def check_puts(place: Place) -> None:
    """Refuse storage where two writers could both make one version.

    Raises:
        ArgumentError: If it is one.
    """
    if _is_local(place.filesystem) or _creating(place) is not None:
        return
    kind = place.filesystem.type_name
    remedy = "Write it there and copy it, write it with the package deltalake, or leave the format out for Parquet files."
    if kind in BESIDE:
        package, made, extra = BESIDE[kind]
        remedy = (
            f"Give filesystem={made} of the package {package} (pip install 'penstock[{extra}]'), or write the table with the "
            "package deltalake."
        )
    msg = (
        f"{place.url} lies on {kind}, where Penstock cannot create a file only if there is none, and two writers could make "
        "one version of a Delta table. A local path, or S3, Azure or Google storage opened by fsspec, was expected. "
    )
    raise ArgumentError(msg + remedy)


def _behind(filesystem: pafs.FileSystem) -> Any:
    """Return the filesystem of fsspec inside one of pyarrow; None where there is none."""
    return getattr(filesystem.handler, "fs", None) if isinstance(filesystem, pafs.PyFileSystem) else None


def _protocols(filesystem: Any) -> tuple[str, ...]:
    names = getattr(filesystem, "protocol", ())
    return (names,) if isinstance(names, str) else tuple(names)


def _is_local(filesystem: pafs.FileSystem) -> bool:
    return isinstance(filesystem, pafs.LocalFileSystem) or any(name in LOCAL for name in _protocols(_behind(filesystem)))


def _creating(place: Place) -> Any:
    """Return a filesystem of fsspec that creates files only where there is none; None where there is none.

    Where pyarrow opened the URL itself, fsspec opens it a second time, with the same keys: those of the environment.
    """
    own = _behind(place.filesystem)
    if own is not None:
        return own if any(name in CREATING for name in _protocols(own)) else None
    scheme, _, rest = place.url.partition("://")
    # What pyarrow was told in the URL, fsspec would not understand: a question mark begins options, an at sign ends keys.
    if place.filesystem.type_name not in BESIDE or not rest or set("?@") & set(rest):
        return None
    import fsspec

    try:
        return fsspec.filesystem(scheme)
    except (ImportError, ValueError):
        return None


def forget(place: Place) -> None:
    """Let fsspec forget what it listed, for others may have written since."""
    own = _behind(place.filesystem)
    if own is not None:
        own.invalidate_cache()


def prove_puts(place: Place, spare: str) -> None:
    """Leave a file on storage that is far away, and see that it cannot be created twice.

    The file makes the log's directory appear, where directories are nothing but the names of files. Some servers that speak
    a cloud's protocol do not know the condition and write over what is there, without a word.

    Args:
        place: The table.
        spare: A path in the log that is nobody else's.

    Raises:
        ArgumentError: If storage has replaced the file.
    """
    if _is_local(place.filesystem):
        return
    own = _creating(place)
    own.pipe_file(spare, b"1", mode="create")
    with suppress(OSError):  # which is how it refuses; what counts is what lies there then
        own.pipe_file(spare, b"2", mode="create")
    own.invalidate_cache()
    if own.cat_file(spare) == b"1":
        return
    drop_claim(place, spare)
    msg = (
        f"The storage of {place.url} was asked to create a file only if there is none, and replaced one that was there, so "
        "that two writers could make one version of a Delta table. Storage that keeps this condition was expected. Update its "
        "server or the package that speaks to it, or write the table locally and copy it."
    )
    raise ArgumentError(msg)


def drop_claim(place: Place, spare: str) -> None:
    """Remove the file that made the log's directory appear, if there is one."""
    with suppress(OSError):
        place.filesystem.delete_file(spare)


def drop_folder(place: Place, path: str) -> None:
    """Remove a directory if nothing lies in it."""
    with suppress(OSError):
        if _is_local(place.filesystem):
            Path(path).rmdir()  # which fails where another writer has just put a file
        elif not place.filesystem.get_file_info(pafs.FileSelector(path)):
            place.filesystem.delete_dir(path)


def put_if_absent(place: Place, path: str, data: bytes, spare: str) -> bool:
    """Write a file where none is, whole or not at all; return whether it was written.

    Where an answer was lost, the file may be there and not known to be ours: False says that one is there, whosever it is.

    Args:
        place: The table.
        path: The file.
        data: What it holds.
        spare: A path beside it that is nobody else's.

    Raises:
        OSError: If storage refuses it.
    """
    if _is_local(place.filesystem):
        return _linked(path, data, spare)
    own = _creating(place)
    try:
        own.pipe_file(path, data, mode="create")
    except OSError as error:
        own.invalidate_cache()
        if isinstance(error, FileExistsError) or own.exists(path):
            return False
        raise
    return True


def _linked(path: str, data: bytes, spare: str) -> bool:
    """Write a file on a local disk where none is."""
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
    if _is_local(place.filesystem):
        for path in [*map(Path, paths), *{Path(path).parent for path in paths}]:
            _sync(path)


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
