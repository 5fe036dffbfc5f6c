"""Commit files of a Delta log: created as a whole where none exists, or not at all."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyarrow import fs as pafs

from penstock.errors import ArgumentError
from penstock.model import Place

__all__ = [
    "check_exclusive_create",
    "check_storage",
    "create_exclusive",
    "delete_if_exists",
    "invalidate_cache",
    "remove_empty_directory",
    "sync_files",
]

NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)
LOCAL = ("file", "local")
EXCLUSIVE = ("memory", "s3", "s3a", "abfs", "abfss", "az", "gs", "gcs")
"""Protocols of fsspec filesystems that can create a file only if none exists."""

FSSPEC_PACKAGES = {"s3": ("s3fs", "s3fs.S3FileSystem(...)", "s3"), "gcs": ("gcsfs", "gcsfs.GCSFileSystem(...)", "gcs")}
"""For filesystems of pyarrow, which cannot do so: the fsspec package that can, its constructor, and our extra."""


def check_storage(place: Place) -> None:
    """Refuse storage on which two writers could both create one version."""
    if _is_local(place.filesystem) or _exclusive_filesystem(place) is not None:
        return
    kind = place.filesystem.type_name
    advice = "Write it there and copy it, write it with the package deltalake, or leave the format out for Parquet files."
    if kind in FSSPEC_PACKAGES:
        package, constructor, extra = FSSPEC_PACKAGES[kind]
        advice = (
            f"Give filesystem={constructor} of the package {package} (pip install 'penstock[{extra}]'), or write the table "
            "with the package deltalake."
        )
    raise ArgumentError(
        f"{place.url} is on {kind}, where Penstock cannot create a file only if none exists, and two writers could create one "
        f"version of a Delta table; expected a local path, or S3, Azure or Google storage opened by fsspec. {advice}"
    )


def _wrapped(filesystem: pafs.FileSystem) -> Any:
    """Return the fsspec filesystem inside one of pyarrow, or None."""
    return getattr(filesystem.handler, "fs", None) if isinstance(filesystem, pafs.PyFileSystem) else None


def _protocols(filesystem: Any) -> tuple[str, ...]:
    names = getattr(filesystem, "protocol", ())
    return (names,) if isinstance(names, str) else tuple(names)


def _is_local(filesystem: pafs.FileSystem) -> bool:
    return isinstance(filesystem, pafs.LocalFileSystem) or any(name in LOCAL for name in _protocols(_wrapped(filesystem)))


def _exclusive_filesystem(place: Place) -> Any:
    """Return an fsspec filesystem that can create a file only if none exists, or None.

    A URL that pyarrow opened itself is opened a second time by fsspec, with the same keys: those of the environment.
    """
    wrapped = _wrapped(place.filesystem)
    if wrapped is not None:
        return wrapped if any(name in EXCLUSIVE for name in _protocols(wrapped)) else None
    scheme, _, rest = place.url.partition("://")
    # fsspec does not understand options and keys in a URL, which a question mark and an at sign show.
    if place.filesystem.type_name not in FSSPEC_PACKAGES or not rest or set("?@") & set(rest):
        return None
    import fsspec

    try:
        return fsspec.filesystem(scheme)
    except (ImportError, ValueError):
        return None


def invalidate_cache(place: Place) -> None:
    """Clear the listings that fsspec has cached: other processes may have changed them."""
    wrapped = _wrapped(place.filesystem)
    if wrapped is not None:
        wrapped.invalidate_cache()


def check_exclusive_create(place: Place, temporary: str) -> None:
    """Create a file on remote storage, and refuse storage that creates it a second time.

    The file makes the log's directory exist, where directories are only names of files. Some servers with the protocol of a
    cloud ignore the condition and replace the file without an error.
    """
    if _is_local(place.filesystem):
        return
    filesystem = _exclusive_filesystem(place)
    filesystem.pipe_file(temporary, b"1", mode="create")
    with suppress(OSError):  # the expected refusal; the contents of the file decide
        filesystem.pipe_file(temporary, b"2", mode="create")
    filesystem.invalidate_cache()
    if filesystem.cat_file(temporary) == b"1":
        return
    delete_if_exists(place, temporary)
    raise ArgumentError(
        f"The storage of {place.url} was asked to create a file only if none exists, and replaced an existing one, so that two "
        "writers could create one version of a Delta table; expected storage that keeps this condition. Update its server or "
        "its client package, or write the table locally and copy it."
    )


def delete_if_exists(place: Place, path: str) -> None:
    """Delete a file; errors of storage are ignored."""
    with suppress(OSError):
        place.filesystem.delete_file(path)


def remove_empty_directory(place: Place, path: str) -> None:
    """Remove a directory if it is empty."""
    with suppress(OSError):
        if _is_local(place.filesystem):
            Path(path).rmdir()  # fails if another writer has just created a file
        elif not place.filesystem.get_file_info(pafs.FileSelector(path)):
            place.filesystem.delete_dir(path)


def create_exclusive(place: Place, path: str, data: bytes, temporary: str) -> bool:
    """Create a file with all of its contents, and return True; return False if one exists.

    If the answer of storage was lost, the existing file may be ours. `temporary` is an unused path in the same directory.
    """
    if _is_local(place.filesystem):
        return _link_exclusive(path, data, temporary)
    filesystem = _exclusive_filesystem(place)
    try:
        filesystem.pipe_file(path, data, mode="create")
    except OSError as error:
        filesystem.invalidate_cache()
        if isinstance(error, FileExistsError) or filesystem.exists(path):
            return False
        raise
    return True


def _link_exclusive(path: str, data: bytes, temporary: str) -> bool:
    with Path(temporary).open("wb") as sink:
        sink.write(data)
        sink.flush()
        os.fsync(sink.fileno())
    try:
        os.link(temporary, path)  # one step that fails if the file exists, and otherwise shows all of it
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in NO_LINKS:
            raise OSError(error.errno, f"the disk has no hard links ({error.strerror}), which commits need") from error
        raise
    finally:
        with suppress(OSError):
            Path(temporary).unlink()
    with suppress(OSError):  # the commit exists, even if the disk fails now
        _sync(Path(path).parent)
    return True


def sync_files(place: Place, paths: list[str]) -> None:
    """Flush files and their directories to a local disk."""
    if _is_local(place.filesystem):
        for path in [*map(Path, paths), *{Path(path).parent for path in paths}]:
            _sync(path)


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
