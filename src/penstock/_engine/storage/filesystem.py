"""Where bytes lie: a URL becomes a filesystem and paths in it. The only room that knows of storage systems."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias
from urllib.parse import quote, urlsplit

import pyarrow as pa
from pyarrow import fs as pafs

from penstock.errors import ArgumentError, MissingExtraError, TableNotFoundError
from penstock.model import Place
from penstock.schema import is_unicode

__all__ = [
    "ENDINGS",
    "Source",
    "cache_directory",
    "destination",
    "is_hidden",
    "list_files",
    "locate",
    "place_of_table",
    "stamp",
]

Source: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""What a user may say a table is: a path or URL, one with wildcards, or several files."""

ENDINGS = (".parquet", ".parq", ".pq", ".parquet.gz", ".par")
"""How the names of Parquet files end."""

NATIVE_SCHEMES = frozenset({"file", "s3", "gs", "gcs", "hdfs", "viewfs"})
WITH_HOSTS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "http", "https"})
"""Schemes whose URLs say first in which bucket or container, or on which host, something lies."""

EXTRAS = {
    "s3": "s3",
    "s3a": "s3",
    "az": "azure",
    "abfs": "azure",
    "abfss": "azure",
    "adl": "azure",
    "gs": "gcs",
    "gcs": "gcs",
    "hdfs": "hdfs",
    "viewfs": "hdfs",
}
"""Which extra of Penstock brings what opens a scheme."""

RETRY_SECONDS = 60
"""How long requests to Google's store are tried again."""

LONGEST = 300
"""Characters of a system's own words in a message."""

MARKS = ("_common_metadata", "_metadata", "_delta_log")
"""What lies in the directory of a table, and in no other."""

MOST_ABOVE = 8
"""Directories above a place that are looked at."""

MOST_LINKS = 32
"""Directories one inside of another, from which on links are looked for that lead back; Linux follows 40, others 32."""

WILDCARD = re.compile(r"[*?[]")


def locate(source: Any, *, filesystem: Any = None, options: Mapping[str, Any] | None = None) -> Place:
    """Return the filesystem and the paths that a source names.

    Args:
        source: A path, a URL, either with wildcards, or a list of them, as `Source` says.
        filesystem: A filesystem of pyarrow or fsspec, where the source is a path in it.
        options: What fsspec is told to open the URL with: keys, endpoints.

    Raises:
        ArgumentError: If the source names nothing.
        TableNotFoundError: If no filesystem is known for the URL, or nothing lies there.
        MissingExtraError: If the package that opens such URLs is not installed.

    Example:
        >>> locate("/usr/").path
        '/usr'
    """
    if hasattr(source, "__arrow_c_stream__"):
        msg = f"open() got {type(source).__name__}, which is data; expected a path, a URL or a list of them. Write it first: "
        raise ArgumentError(msg + "penstock.write(url, data=...), then penstock.open(url).")
    strange = isinstance(source, (bytes, Mapping, set, frozenset))  # sets have no order, and mappings more than names
    if strange or not isinstance(source, (str, os.PathLike, Iterable)) or source == "":
        msg = f"open got {source!r}. A path, a URL or a list of them was expected. Give one."
        raise ArgumentError(msg)
    if not isinstance(source, (str, os.PathLike)):
        return _several(list(source), filesystem, options)
    name = os.fspath(source)
    found, path = _filesystem(name, filesystem, options)
    try:
        info = found.get_file_info(path)
    except (OSError, pa.ArrowException, ValueError) as error:
        msg = f"{name!r} cannot be looked at: {error}. Check the path, and what you may read there."
        raise TableNotFoundError(msg) from error
    if isinstance(found, pafs.LocalFileSystem) and not path.rstrip("/"):
        msg = f"{name!r} is the top of its filesystem, and no table. A file or a directory below was expected. Give its path."
        raise TableNotFoundError(msg)
    if info.type == pafs.FileType.NotFound:
        if WILDCARD.search(path):
            return _matching(name, found, path)
        msg = f"Nothing lies at {name!r}. A file or a directory was expected. Check the path."
        raise TableNotFoundError(msg)
    return Place(url=name, filesystem=found, path=path.rstrip("/") or "/")


def destination(source: Any, *, filesystem: Any = None, options: Mapping[str, Any] | None = None) -> Place:
    """Return the place that a path or URL names, where nothing need lie yet.

    Raises:
        ArgumentError: If it names none, or several.
        TableNotFoundError: If no filesystem is known for the URL.

    Example:
        >>> destination("/data/hello/").path
        '/data/hello'
    """
    if not isinstance(source, (str, os.PathLike)) or not os.fspath(source) or isinstance(os.fspath(source), bytes):
        msg = f"write got {source!r} to write to. The path or URL of one directory was expected. Give one."
        raise ArgumentError(msg)
    name = os.fspath(source)
    found, path = _filesystem(name, filesystem, options)
    return Place(url=name, filesystem=found, path=path.rstrip("/") or "/")


def place_of_table(source: Any, *, filesystem: Any = None, options: Mapping[str, Any] | None = None) -> Place:
    """Return the place that a path or URL names, where a table is to be written.

    It is none inside of another table, which would read what is written there as its own, and delete it when it is replaced.

    Raises:
        ArgumentError: If it is one, or names none, or several.
        TableNotFoundError: If no filesystem is known for the URL.

    Example:
        >>> place_of_table("/data/hello/").path
        '/data/hello'
    """
    place = destination(source, filesystem=filesystem, options=options)
    above = [str(each) for each in PurePosixPath(place.path).parents][:MOST_ABOVE]
    marks = [f"{each.rstrip('/')}/{mark}" for each in above if each not in (".", "/") for mark in MARKS]
    try:
        found = [mark.path for mark in place.filesystem.get_file_info(marks) if mark.type != pafs.FileType.NotFound]
    except (OSError, NotImplementedError):  # who may not look there is not helped by a refusal
        found = []
    if found:
        table = found[0].rpartition("/")[0]
        msg = (
            f"{place.url} lies inside of the table at {table}, of which it would be a part. A table has a directory of its "
            "own. Write to one beside it; to add rows to the table, write to that with mode='append'."
        )
        raise ArgumentError(msg)
    return place


def _several(sources: list[str | os.PathLike[str]], filesystem: Any, options: Mapping[str, Any] | None) -> Place:
    """Return the place of several files or directories, all of one filesystem."""
    if not sources:
        msg = "An empty list names no table. Give at least one path."
        raise ArgumentError(msg)
    places = [locate(source, filesystem=filesystem, options=options) for source in sources]
    paths = tuple(path for place in places for path in place.paths or (place.path,))
    base = os.path.commonpath([path if place.paths else str(Path(path).parent) for place, path in _paired(places)])
    return Place(url=", ".join(place.url for place in places), filesystem=places[0].filesystem, path=base, paths=paths)


def _paired(places: Iterable[Place]) -> list[tuple[Place, str]]:
    return [(place, path) for place in places for path in place.paths or (place.path,)]


def _matching(name: str, filesystem: pafs.FileSystem, pattern: str) -> Place:
    """Return the place of all files that match a pattern."""
    from fsspec.utils import glob_translate

    base = pattern[: WILDCARD.search(pattern).start()].rpartition("/")[0]  # type: ignore[union-attr] # it has one
    selector = pafs.FileSelector(base or "/", recursive=True, allow_not_found=True)
    matches = re.compile(glob_translate(pattern)).fullmatch
    listed = {info.path for info in filesystem.get_file_info(selector)}
    folders = {path.rpartition("/")[0] for path in listed}  # which not all stores list
    named = [part for part in pattern[len(base) :].split("/") if part.startswith((".", "_"))]
    every = listed.union(folders, *(_above(folder, base) for folder in folders))
    found = {path for path in every if matches(path) and _is_meant(path[len(base) :], named)}
    # What lies in a directory that matches is read with it, and once.
    paths = tuple(sorted(path for path in found if found.isdisjoint(_above(path, base))))
    if not paths:
        msg = f"Nothing matches {name!r}. Files or directories were expected. Check the pattern."
        raise TableNotFoundError(msg)
    return Place(url=name, filesystem=filesystem, path=base or "/", paths=paths)


def _is_meant(path: str, named: Sequence[str]) -> bool:
    """Return whether no part of a path is hidden, but for those that a pattern names as such."""
    hidden = [part for part in path.strip("/").split("/") if is_hidden(part)]
    return all(any(fnmatchcase(part, one) for one in named) for part in hidden)


def is_hidden(name: str) -> bool:
    """Return whether readers of tables pass over a file or directory, as Spark does; a partition they do not.

    Example:
        >>> [is_hidden(name) for name in (".crc", "_SUCCESS", "_year=2025", "a.parquet")]
        [True, True, False, False]
    """
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _above(path: str, base: str) -> Iterator[str]:
    """Yield the directories that a path lies in, up to one."""
    while len(path) > len(base):
        path = path.rpartition("/")[0]
        yield path


def _filesystem(name: str, given: Any, options: Mapping[str, Any] | None) -> tuple[pafs.FileSystem, str]:
    """Return the filesystem of a name, and the name's path in it."""
    if options is not None and not isinstance(options, Mapping):
        msg = f"storage_options={options!r} is no mapping. Names and values that fsspec takes were expected. Give them, like "
        raise ArgumentError(msg + "storage_options={'anon': True}, or leave them out.")
    if "\0" in name or not is_unicode(name):
        msg = f"{name!r} names nothing: no storage has such letters in its names. A path or a URL was expected. Give one."
        raise ArgumentError(msg)
    if given is not None:
        return _given(given, name)
    scheme = urlsplit(name).scheme
    if not scheme[1:]:  # a plain path; one letter is a Windows drive
        return pafs.LocalFileSystem(), _without_steps_up(_absolute(name))
    if scheme in WITH_HOSTS and not name.partition(":")[2].strip("/"):
        msg = f"{name!r} names no bucket or host. A URL that goes on was expected. Give all of it: {scheme}://bucket/table."
        raise ArgumentError(msg)
    host = urlsplit(name).netloc if scheme == "file" else ""
    if host not in ("", "localhost"):
        msg = f"{name!r} names {host!r} as a host. A file URL has an absolute path after three slashes. "
        raise ArgumentError(msg + f"Write file://{_absolute(name.partition('://')[2])}, or a plain path.")
    try:
        if scheme in NATIVE_SCHEMES and not options:
            found, path = pafs.FileSystem.from_uri(_quoted(name) if scheme == "file" else _bounded(name, scheme))
            return found, _without_steps_up(path) if isinstance(found, pafs.LocalFileSystem) else path
        return _through_fsspec(name, options or {})
    except ImportError as error:
        raise _missing(name, scheme, error) from error
    except (ValueError, OSError, pa.ArrowException) as error:
        raise _unopened(name, scheme, error) from error


def _unopened(name: str, scheme: str, error: Exception) -> MissingExtraError | TableNotFoundError:
    """Return the error for a URL that its filesystem refuses, or that none opens."""
    if scheme in EXTRAS and f"Protocol not known: {scheme}" in str(error):  # fsspec learns some schemes from their packages
        return _missing(name, scheme, ImportError(str(error)))
    if re.search("libjvm|libhdfs", str(error)):
        msg = (
            f"{name!r} needs Java and Hadoop's libhdfs, which pip does not install: {_shortened(str(error))}. Install both, "
            "and set JAVA_HOME, HADOOP_HOME and CLASSPATH, by which pyarrow finds them."
        )
        return MissingExtraError(msg)
    msg = (
        f"No filesystem opens {name!r}: {_shortened(str(error))}. Plain paths and the schemes of pyarrow and fsspec are "
        "known. Check the URL, and the keys or endpoints in storage_options."
    )
    return TableNotFoundError(msg)


def _bounded(url: str, scheme: str) -> str:
    """Return a URL of Google's store with a limit on retries, where it has none: by default they go on for 15 minutes.

    Example:
        >>> _bounded("gs://lake/clicks", "gs")
        'gs://lake/clicks?retry_limit_seconds=60'
    """
    if scheme not in ("gs", "gcs") or "retry_limit_seconds=" in url:
        return url
    return f"{url}{'&' if '?' in url else '?'}retry_limit_seconds={RETRY_SECONDS}"


def _missing(name: str, scheme: str, error: ImportError) -> MissingExtraError:
    """Return the error for a URL whose package is not installed."""
    extra = EXTRAS.get(scheme)
    if extra is not None:
        msg = f"{name!r} needs the extra {extra!r}, which is not installed. Install it: pip install 'penstock[{extra}]'."
        return MissingExtraError(msg)
    return MissingExtraError(f"{name!r} needs a package that is not installed: {str(error).rstrip('.')}. Install that package.")


def _absolute(name: str) -> str:
    """Return a local path from the top of the filesystem on.

    Raises:
        ArgumentError: If it leads on from a working directory that is not there any more, or from a home that nobody knows.
    """
    try:
        return str(Path(name).expanduser().absolute())
    except (FileNotFoundError, RuntimeError) as error:
        why = (
            "the directory that this process works in is gone"
            if isinstance(error, FileNotFoundError)
            else str(error).rstrip(".")
        )
        msg = f"{name!r} leads nowhere: {why}. A path that can be followed was expected. Give one that begins with /."
        raise ArgumentError(msg) from error


def _quoted(url: str) -> str:
    """Return the URL of a local file with all that stands for itself in one, as a space or a wildcard does, percent-encoded.

    Example:
        >>> _quoted("file://localhost/lake/a b%20c/part-?.parquet")
        'file:///lake/a%20b%20c/part-%3F.parquet'
    """
    local = re.sub(r"^file://localhost/", "file:///", url)
    return quote(re.sub(r"%(?![0-9A-Fa-f]{2})", "%25", local), safe="%/:")


def _without_steps_up(path: str) -> str:
    """Return a local path without `..`, which leads up from where a link leads to, and from what is not there by its name.

    Example:
        >>> _without_steps_up("/usr/nowhere/../lib")
        '/usr/lib'
    """
    parts = PurePosixPath(path).parts
    if ".." not in parts:
        return path
    last = len(parts) - parts[::-1].index("..")
    return str(Path(os.path.realpath(Path(*parts[:last])), *parts[last:]))  # which takes links in a circle too


def _given(given: Any, name: str) -> tuple[pafs.FileSystem, str]:
    """Return a filesystem that was given as one of pyarrow, and a name as it calls it in listings."""
    if isinstance(given, pafs.LocalFileSystem):
        return given, _without_steps_up(name)
    if isinstance(given, pafs.FileSystem):
        return given, name
    from fsspec import AbstractFileSystem
    from fsspec.implementations.local import LocalFileSystem

    if isinstance(given, AbstractFileSystem):
        path = given._strip_protocol(name)  # noqa: SLF001 - all of its methods do so, and there is no other name for it
        path = os.path.normpath(_without_steps_up(path)) if isinstance(given, LocalFileSystem) else path
        return pafs.PyFileSystem(_Store(given)), path
    msg = f"filesystem={given!r} is no filesystem. An object of pyarrow.fs or fsspec was expected. Give one, like "
    raise ArgumentError(msg + "fsspec.filesystem('s3'), or leave it out and give a URL: s3://bucket/table.")


class _Store(pafs.FSSpecHandler):  # type: ignore[misc] # pyarrow has no types
    """A filesystem of fsspec, for pyarrow: below a file lies nothing, which some of them take for a fault."""

    def get_file_info(self, paths: Sequence[str]) -> list[pafs.FileInfo]:
        """Return what lies at paths."""
        found = []
        for path in paths:
            try:
                found += super().get_file_info([path])
            except NotADirectoryError:
                found.append(pafs.FileInfo(path, pafs.FileType.NotFound))
            except (OSError, ValueError, NotImplementedError):
                raise
            except Exception as error:  # clients of stores have errors of their own, which nobody here knows by name
                msg = f"{type(error).__name__}: {error}"
                raise OSError(msg) from error
        return found


def _through_fsspec(url: str, options: Mapping[str, Any]) -> tuple[pafs.FileSystem, str]:
    """Return a filesystem that pyarrow does not know itself, or not with such options."""
    import fsspec.core

    filesystem, path = fsspec.core.url_to_fs(url, **options)
    return pafs.PyFileSystem(_Store(filesystem)), path


def stamp(info: pafs.FileInfo) -> str:
    """Return what changes when a file is replaced: its size and the time it was last written.

    It begins with @, so that a reader knows it for one that can be compared with the file.
    """
    return f"@{info.size}:{info.mtime_ns or ''}"


def list_files(place: Place) -> list[pafs.FileInfo]:
    """Return the files at a place, below its directories too, in the order given and by path below a directory.

    A directory that is exchanged for another while it is listed, which is how a table on a local disk changes, is listed
    again: else files of the old one and of the new would be mixed.

    Raises:
        TableNotFoundError: If a directory may not be looked into, leads back to itself, or holds a name that is no Unicode.
    """
    while True:
        before = _identities(place)
        try:
            found = _listed(place)
        except PermissionError as error:
            msg = f"{place.url!r} cannot be listed: {_shortened(str(error))}. A table all of which may be read was expected. "
            raise TableNotFoundError(msg + "Check the path, and what you may read there.") from error
        except UnicodeDecodeError as error:
            told = _shortened(str(bytes(error.object)))
            msg = (
                f"{place.url!r} cannot be listed: {told} is no UTF-8. Names of Unicode were expected. Rename it, or remove it."
            )
            raise TableNotFoundError(msg) from error
        if _identities(place) == before:
            return found


def _shortened(text: str) -> str:
    """Return a text without its middle, where it is very long."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}…{text[-LONGEST // 2 :]}"


def _identities(place: Place) -> list[int]:
    """Return what tells local directories apart from those that come to stand under the same names."""
    if not isinstance(place.filesystem, pafs.LocalFileSystem):
        return []
    return [os.stat(path).st_ino if os.path.isdir(path) else 0 for path in place.paths or (place.path,)]  # noqa: PTH112, PTH116


def _listed(place: Place) -> list[pafs.FileInfo]:
    found: list[pafs.FileInfo] = []
    for info in place.filesystem.get_file_info(list(place.paths or (place.path,))):
        if info.type == pafs.FileType.Directory:
            inside = place.filesystem.get_file_info(pafs.FileSelector(info.path, recursive=True))
            if isinstance(place.filesystem, pafs.LocalFileSystem):
                _refuse_circle(info.path, (one.path for one in inside))
            found += sorted((one for one in inside if one.type == pafs.FileType.File), key=lambda one: one.path)
        elif info.type == pafs.FileType.File:
            found.append(info)
    return found


def _refuse_circle(top: str, paths: Iterable[str]) -> None:
    """Refuse a link to a directory that it lies in, below which the same files are listed until the system has enough."""
    deep = (path for path in paths if path.count("/", len(top)) >= MOST_LINKS)
    path = next((path for path in deep if not any(map(is_hidden, path[len(top) :].strip("/").split("/")))), None)
    if path is None:
        return
    passed: dict[tuple[int, int], str] = {}
    for step in (*reversed([each for each in _above(path, top) if len(each) >= len(top)]), path):
        status = Path(step).stat()
        first = passed.setdefault((status.st_dev, status.st_ino), step)
        if first != step:
            msg = f"{step!r} leads back to {first!r}, which it lies in, so that the same files would come again and again. "
            raise TableNotFoundError(msg + "A directory of files that each lie there once was expected. Remove the link.")


def cache_directory() -> Path:
    """Return where Penstock keeps what it need not compute twice: `PENSTOCK_CACHE_DIR`, or the user's cache."""
    given = os.environ.get("PENSTOCK_CACHE_DIR")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"
