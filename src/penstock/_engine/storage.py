"""Where bytes lie: a URL becomes a filesystem and a path in it. The only room that knows of storage systems."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs as pafs

from penstock.errors import TableNotFoundError
from penstock.model import Place

__all__ = ["cache_directory", "locate"]

NATIVE_SCHEMES = frozenset({"file", "s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss"})


def locate(url: str | os.PathLike[str]) -> Place:
    """Return the filesystem and path that a URL or a plain path names.

    Raises:
        TableNotFoundError: If no filesystem is known for the URL.

    Example:
        >>> locate("/data/table").path
        '/data/table'
    """
    name = os.fspath(url)
    scheme = urlsplit(name).scheme
    if not scheme[1:]:  # a plain path; one letter is a Windows drive
        return Place(url=name, filesystem=pafs.LocalFileSystem(), path=str(Path(name).absolute()))
    try:
        if scheme in NATIVE_SCHEMES:
            filesystem, path = pafs.FileSystem.from_uri(name)
        else:
            filesystem, path = _through_fsspec(name)
    except (ImportError, ValueError, OSError, pa.ArrowInvalid) as error:
        msg = (
            f"No filesystem opens {name!r}: {error}. Plain paths and the schemes of pyarrow and fsspec are known. "
            "Check the URL, or install the package that fsspec names for it."
        )
        raise TableNotFoundError(msg) from error
    return Place(url=name, filesystem=filesystem, path=path)


def _through_fsspec(url: str) -> tuple[pafs.FileSystem, str]:
    """Return a filesystem that pyarrow does not know itself."""
    import fsspec.core

    filesystem, path = fsspec.core.url_to_fs(url)
    return pafs.PyFileSystem(pafs.FSSpecHandler(filesystem)), path


def cache_directory() -> Path:
    """Return where Penstock keeps what it need not compute twice: `PENSTOCK_CACHE_DIR`, or the user's cache."""
    given = os.environ.get("PENSTOCK_CACHE_DIR")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"
