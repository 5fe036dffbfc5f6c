"""Resolve URLs to filesystems and paths. No other module knows storage systems."""

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

from penstock._engine.storage.file_errors import changed_file_error
from penstock.errors import ArgumentError, DataChangedError, MissingExtraError, TableNotFoundError
from penstock.model import Place, Snapshot

Source: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A table's path or URL, also with wildcards, or several files."""

ENDINGS = (".parquet", ".parq", ".pq", ".parquet.gz", ".par")
"""The file name suffixes of Parquet files."""

NATIVE_SCHEMES = frozenset({"file", "s3", "gs", "gcs", "hdfs", "viewfs"})
SCHEMES_WITH_HOST = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "http", "https"})
"""Schemes whose URLs begin with a bucket, a container or a host."""

EXTRAS = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("az", "abfs", "abfss", "adl"), "azure"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("hdfs", "viewfs"), "hdfs"),
}
"""The extra of Penstock that a scheme needs."""

RETRY_SECONDS = 60
"""The retry limit of requests to Google's store."""

MAX_ERROR_CHARS = 300
"""Characters of a foreign error text in a message."""

TABLE_ENTRIES = ("_common_metadata", "_metadata", "_delta_log")
"""Entries that only the directory of a table has."""

MAX_PARENTS = 8
"""Parent directories that are checked for a table."""

MAX_DEPTH = 32
"""Depth of nested directories from which cyclic links are looked for. Linux follows 40 links, other systems 32."""

WILDCARD = re.compile(r"[*?[]")


def locate(source: Any, *, filesystem: Any = None, options: Mapping[str, Any] | None = None) -> Place:
    """Return the filesystem and the paths of a source.

    Raises:
        ArgumentError: If the source is not a path or URL.
        TableNotFoundError: If no filesystem is known for the URL, or nothing exists there.
        MissingExtraError: If the package that opens this kind of URL is not installed.

    Example:
        >>> locate("/usr/").path
        '/usr'
    """
    if hasattr(source, "__arrow_c_stream__"):
        msg = f"open() got {type(source).__name__}, which is data; expected a path, a URL or a list of them. Write it first: "
        raise ArgumentError(msg + "penstock.write(url, data=...), then penstock.open(url).")
    no_sequence = isinstance(source, (bytes, Mapping, set, frozenset))  # sets have no order, and mappings have values too
    if no_sequence or not isinstance(source, (str, os.PathLike, Iterable)) or source == "":
        msg = f"open() got {source!r}; expected a path, a URL or a list of them, for example open('/data/table')."
        raise ArgumentError(msg)
    if not isinstance(source, (str, os.PathLike)):
        return _locate_all(list(source), filesystem, options)
    name = os.fspath(source)
    resolved, path = _filesystem(name, filesystem, options)
    try:
        info = resolved.get_file_info(path)
    except (OSError, pa.ArrowException, ValueError) as error:
        msg = f"{name!r} cannot be accessed: {error}. Check the path and its permissions."
        raise TableNotFoundError(msg) from error
    if isinstance(resolved, pafs.LocalFileSystem) and not path.rstrip("/"):
        msg = f"{name!r} is the root of the filesystem; expected a file or a directory below it. Give its path."
        raise TableNotFoundError(msg)
    if info.type == pafs.FileType.NotFound:
        if WILDCARD.search(path):
            return _locate_matching(name, resolved, path)
        msg = f"No file or directory exists at {name!r}. Check the path."
        raise TableNotFoundError(msg)
    return Place(url=name, filesystem=resolved, path=path.rstrip("/") or "/")


def destination(source: Any, *, filesystem: Any = None, options: Mapping[str, Any] | None = None) -> Place:
    """Return the place of a path or URL, which need not exist.

    Raises:
        ArgumentError: If the source is not one path or URL.
        TableNotFoundError: If no filesystem is known for the URL.

    Example:
        >>> destination("/data/hello/").path
        '/data/hello'
    """
    if not isinstance(source, (str, os.PathLike)) or not os.fspath(source) or isinstance(os.fspath(source), bytes):
        msg = f"The target is {source!r}; expected the path or URL of one directory, for example '/data/table'."
        raise ArgumentError(msg)
    name = os.fspath(source)
    resolved, path = _filesystem(name, filesystem, options)
    return Place(url=name, filesystem=resolved, path=path.rstrip("/") or "/")


def table_destination(source: Any, *, filesystem: Any = None, options: Mapping[str, Any] | None = None) -> Place:
    """Return the place of a new table, which need not exist.

    It must not lie inside another table: that table would read the files as its own, and delete them when it is replaced.

    Raises:
        ArgumentError: If it lies inside another table, or is not one path or URL.
        TableNotFoundError: If no filesystem is known for the URL.

    Example:
        >>> table_destination("/data/hello/").path
        '/data/hello'
    """
    place = destination(source, filesystem=filesystem, options=options)
    parents = [str(parent) for parent in PurePosixPath(place.path).parents][:MAX_PARENTS]
    entries = [f"{parent.rstrip('/')}/{name}" for parent in parents if parent not in (".", "/") for name in TABLE_ENTRIES]
    try:
        infos = place.filesystem.get_file_info(entries)
    except (OSError, NotImplementedError):  # without permission to look there, writing may still be possible
        infos = []
    existing = [info.path for info in infos if info.type != pafs.FileType.NotFound]
    if existing:
        table = existing[0].rpartition("/")[0]
        msg = (
            f"{place.url} lies inside the table at {table}, which would read it as its own files. Expected a directory outside "
            "of any table. Write to another directory, or add rows to the table: write to it with mode='append'."
        )
        raise ArgumentError(msg)
    return place


def _locate_all(sources: list[str | os.PathLike[str]], filesystem: Any, options: Mapping[str, Any] | None) -> Place:
    """Return the place of several files or directories of one filesystem."""
    if not sources:
        msg = "open() got an empty list; expected at least one path."
        raise ArgumentError(msg)
    places = [locate(source, filesystem=filesystem, options=options) for source in sources]
    paths = tuple(path for place in places for path in place.paths or (place.path,))
    bases = [base for place in places for base in (place.paths or (str(Path(place.path).parent),))]
    url = ", ".join(place.url for place in places)
    return Place(url=url, filesystem=places[0].filesystem, path=os.path.commonpath(bases), paths=paths)


def _locate_matching(name: str, filesystem: pafs.FileSystem, pattern: str) -> Place:
    """Return the place of all files that match a pattern."""
    from fsspec.utils import glob_translate

    base = pattern[: WILDCARD.search(pattern).start()].rpartition("/")[0]  # type: ignore[union-attr] # it has one
    selector = pafs.FileSelector(base or "/", recursive=True, allow_not_found=True)
    matches = re.compile(glob_translate(pattern)).fullmatch
    listed = {info.path for info in filesystem.get_file_info(selector)}
    directories = {path.rpartition("/")[0] for path in listed}  # some stores do not list directories
    hidden_parts = [part for part in pattern[len(base) :].split("/") if part.startswith((".", "_"))]
    candidates = listed.union(directories, *(_parents(directory, base) for directory in directories))
    matching = {path for path in candidates if matches(path) and _is_visible(path[len(base) :], hidden_parts)}
    # A matching directory includes its files, which are not listed twice.
    paths = tuple(sorted(path for path in matching if matching.isdisjoint(_parents(path, base))))
    if not paths:
        msg = f"No file or directory matches {name!r}. Check the pattern."
        raise TableNotFoundError(msg)
    return Place(url=name, filesystem=filesystem, path=base or "/", paths=paths)


def _is_visible(path: str, hidden_parts: Sequence[str]) -> bool:
    """Return whether each hidden part of a path matches one of the hidden parts of a pattern."""
    hidden = [part for part in path.strip("/").split("/") if is_hidden(part)]
    return all(any(fnmatchcase(part, pattern) for pattern in hidden_parts) for part in hidden)


def is_hidden(name: str) -> bool:
    """Return whether readers of tables skip a file or directory, as Spark does. A partition directory is not hidden.

    Example:
        >>> [is_hidden(name) for name in (".crc", "_SUCCESS", "_year=2025", "a.parquet")]
        [True, True, False, False]
    """
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _parents(path: str, base: str) -> Iterator[str]:
    """Yield the directories that contain a path, up to `base`."""
    while len(path) > len(base):
        path = path.rpartition("/")[0]
        yield path


def _filesystem(name: str, filesystem: Any, options: Mapping[str, Any] | None) -> tuple[pafs.FileSystem, str]:
    """Return the filesystem of a path or URL, and its path in that filesystem."""
    if options is not None and not isinstance(options, Mapping):
        msg = f"storage_options={options!r} is not a mapping; expected options of fsspec, for example {{'anon': True}}."
        raise ArgumentError(msg)
    if "\0" in name or name.encode(errors="replace").decode() != name:
        msg = f"{name!r} is not a valid path: it has characters that no storage allows in names. Give a path or a URL."
        raise ArgumentError(msg)
    if filesystem is not None:
        return _adapt(filesystem, name)
    scheme = urlsplit(name).scheme
    if not scheme[1:]:  # a plain path; one letter is a Windows drive
        return pafs.LocalFileSystem(), _resolve_parents(_absolute(name))
    if scheme in SCHEMES_WITH_HOST and not name.partition(":")[2].strip("/"):
        msg = f"{name!r} has no bucket or host. Give the whole URL: {scheme}://bucket/table."
        raise ArgumentError(msg)
    host = urlsplit(name).netloc if scheme == "file" else ""
    if host not in ("", "localhost"):
        msg = f"{name!r} names {host!r} as a host. A file URL has an absolute path after three slashes. "
        raise ArgumentError(msg + f"Write file://{_absolute(name.partition('://')[2])}, or a plain path.")
    try:
        if scheme in NATIVE_SCHEMES and not options:
            url = _percent_encoded(name) if scheme == "file" else _with_retry_limit(name, scheme)
            native, path = pafs.FileSystem.from_uri(url)
            return native, _resolve_parents(path) if isinstance(native, pafs.LocalFileSystem) else path
        import fsspec.core

        foreign, path = fsspec.core.url_to_fs(name, **options or {})
        return pafs.PyFileSystem(_FsspecHandler(foreign)), path
    except ImportError as error:
        raise _missing_extra(name, scheme, error) from error
    except (ValueError, OSError, pa.ArrowException) as error:
        raise _open_error(name, scheme, error) from error


def _open_error(name: str, scheme: str, error: Exception) -> MissingExtraError | TableNotFoundError:
    """Return the error for a URL that its filesystem refuses, or that no filesystem supports."""
    if scheme in EXTRAS and f"Protocol not known: {scheme}" in str(error):  # packages register some schemes with fsspec
        return _missing_extra(name, scheme, ImportError(str(error)))
    if re.search("libjvm|libhdfs", str(error)):
        msg = (
            f"{name!r} needs Java and Hadoop's libhdfs, which pip does not install: {_shorten(str(error))}. Install both, "
            "and set JAVA_HOME, HADOOP_HOME and CLASSPATH, so that pyarrow finds them."
        )
        return MissingExtraError(msg)
    msg = (
        f"No filesystem opens {name!r}: {_shorten(str(error))}. Plain paths and the schemes of pyarrow and fsspec are "
        "supported. Check the URL, and the keys or endpoints in storage_options."
    )
    return TableNotFoundError(msg)


def _with_retry_limit(url: str, scheme: str) -> str:
    """Return a URL of Google's store with a retry limit; the default is 15 minutes.

    Example:
        >>> _with_retry_limit("gs://lake/clicks", "gs")
        'gs://lake/clicks?retry_limit_seconds=60'
    """
    if scheme not in ("gs", "gcs") or "retry_limit_seconds=" in url:
        return url
    return f"{url}{'&' if '?' in url else '?'}retry_limit_seconds={RETRY_SECONDS}"


def _missing_extra(name: str, scheme: str, error: ImportError) -> MissingExtraError:
    """Return the error for a URL whose package is not installed."""
    extra = EXTRAS.get(scheme)
    if extra is not None:
        msg = f"{name!r} needs the extra {extra!r}, which is not installed. Install it: pip install 'penstock[{extra}]'."
        return MissingExtraError(msg)
    return MissingExtraError(f"{name!r} needs a package that is not installed: {str(error).rstrip('.')}. Install that package.")


def _absolute(name: str) -> str:
    """Return the absolute form of a local path."""
    try:
        return str(Path(name).expanduser().absolute())
    except (FileNotFoundError, RuntimeError) as error:
        gone = isinstance(error, FileNotFoundError)
        why = "the working directory of this process does not exist any more" if gone else str(error).rstrip(".")
        msg = f"{name!r} cannot be resolved: {why}. Give an absolute path, which begins with /."
        raise ArgumentError(msg) from error


def _percent_encoded(url: str) -> str:
    """Return the URL of a local file with all special characters of names, such as spaces and wildcards, percent-encoded.

    Example:
        >>> _percent_encoded("file://localhost/lake/a b%20c/part-?.parquet")
        'file:///lake/a%20b%20c/part-%3F.parquet'
    """
    local = re.sub(r"^file://localhost/", "file:///", url)
    return quote(re.sub(r"%(?![0-9A-Fa-f]{2})", "%25", local), safe="%/:")


def _resolve_parents(path: str) -> str:
    """Return a local path without `..`, which after a link means the parent of the link's target.

    Example:
        >>> _resolve_parents("/usr/nowhere/../lib")
        '/usr/lib'
    """
    parts = PurePosixPath(path).parts
    if ".." not in parts:
        return path
    last = len(parts) - parts[::-1].index("..")
    return str(Path(os.path.realpath(Path(*parts[:last])), *parts[last:]))  # realpath accepts cyclic links


def _adapt(filesystem: Any, name: str) -> tuple[pafs.FileSystem, str]:
    """Return the user's filesystem as one of pyarrow, and a path as its listings have it."""
    if isinstance(filesystem, pafs.LocalFileSystem):
        return filesystem, _resolve_parents(name)
    if isinstance(filesystem, pafs.FileSystem):
        return filesystem, name
    from fsspec import AbstractFileSystem
    from fsspec.implementations.local import LocalFileSystem

    if isinstance(filesystem, AbstractFileSystem):
        path = filesystem._strip_protocol(name)  # noqa: SLF001 - fsspec's own methods call it, and it has no public name
        path = os.path.normpath(_resolve_parents(path)) if isinstance(filesystem, LocalFileSystem) else path
        return pafs.PyFileSystem(_FsspecHandler(filesystem)), path
    msg = f"filesystem={filesystem!r} is not a filesystem; expected an object of pyarrow.fs or fsspec, for example "
    raise ArgumentError(msg + "fsspec.filesystem('s3'). Or leave it out and give a URL: s3://bucket/table.")


class _FsspecHandler(pafs.FSSpecHandler):  # type: ignore[misc] # pyarrow has no types
    """A filesystem of fsspec for pyarrow. A path below a file does not exist; some filesystems raise an error for it."""

    def get_file_info(self, paths: Sequence[str]) -> list[pafs.FileInfo]:
        """Return information about paths."""
        infos = []
        for path in paths:
            try:
                infos += super().get_file_info([path])
            except NotADirectoryError:
                infos.append(pafs.FileInfo(path, pafs.FileType.NotFound))
            except (OSError, ValueError, NotImplementedError):
                raise
            except Exception as error:  # clients of stores raise types of their own
                msg = f"{type(error).__name__}: {error}"
                raise OSError(msg) from error
        return infos


def stamp(info: pafs.FileInfo) -> str:
    """Return the size and modification time of a file, which change when the file is replaced.

    The leading @ marks a stamp that can be compared with the file, unlike one from a table's log.
    """
    return f"@{info.size}:{info.mtime_ns or ''}"


def list_files(place: Place) -> list[pafs.FileInfo]:
    """Return the files at a place, with those in subdirectories, in the order of `paths` and by path below a directory.

    If a directory is replaced during the listing, the listing is repeated: it must not mix files of two versions. Tables on a
    local disk change in this way.

    Raises:
        TableNotFoundError: If a directory cannot be read or contains itself, or a name is not UTF-8.
    """
    while True:
        before = _inodes(place)
        try:
            files = _list_once(place)
        except PermissionError as error:
            msg = f"{place.url!r} cannot be listed: {_shorten(str(error))}. Check the path and its permissions."
            raise TableNotFoundError(msg) from error
        except UnicodeDecodeError as error:
            name = _shorten(str(bytes(error.object)))
            msg = f"{place.url!r} cannot be listed: the file name {name} is not UTF-8. Rename the file, or remove it."
            raise TableNotFoundError(msg) from error
        if _inodes(place) == before:
            return files


def _shorten(text: str) -> str:
    """Return a text without its middle, if it is very long."""
    return text if len(text) <= MAX_ERROR_CHARS else f"{text[: MAX_ERROR_CHARS // 2]}…{text[-MAX_ERROR_CHARS // 2 :]}"


def _inodes(place: Place) -> list[int]:
    """Return the inodes of local directories, which differ after a directory was replaced under its name."""
    if not isinstance(place.filesystem, pafs.LocalFileSystem):
        return []
    return [os.stat(path).st_ino if os.path.isdir(path) else 0 for path in place.paths or (place.path,)]  # noqa: PTH112, PTH116


def _list_once(place: Place) -> list[pafs.FileInfo]:
    files: list[pafs.FileInfo] = []
    for info in place.filesystem.get_file_info(list(place.paths or (place.path,))):
        if info.type == pafs.FileType.Directory:
            inside = place.filesystem.get_file_info(pafs.FileSelector(info.path, recursive=True))
            if isinstance(place.filesystem, pafs.LocalFileSystem):
                _check_link_cycle(info.path, (entry.path for entry in inside))
            files += sorted((entry for entry in inside if entry.type == pafs.FileType.File), key=lambda entry: entry.path)
        elif info.type == pafs.FileType.File:
            files.append(info)
    return files


def _check_link_cycle(top: str, paths: Iterable[str]) -> None:
    """Raise an error for a link to one of its own parent directories, through which files are listed again and again."""
    deep = (path for path in paths if path.count("/", len(top)) >= MAX_DEPTH)
    path = next((path for path in deep if not any(map(is_hidden, path[len(top) :].strip("/").split("/")))), None)
    if path is None:
        return
    visited: dict[tuple[int, int], str] = {}
    for step in (*reversed([parent for parent in _parents(path, top) if len(parent) >= len(top)]), path):
        status = Path(step).stat()
        first = visited.setdefault((status.st_dev, status.st_ino), step)
        if first != step:
            msg = f"{step!r} is a link to {first!r}, which contains it, so the same files would be listed again and again. "
            raise TableNotFoundError(msg + "Remove the link.")


def cache_directory() -> Path:
    """Return the directory of Penstock's cached results: `PENSTOCK_CACHE_DIR`, or one in the user's cache."""
    configured = os.environ.get("PENSTOCK_CACHE_DIR")
    if configured:
        return Path(configured)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"


def check_unchanged(snapshot: Snapshot, file: int, filesystem: pafs.FileSystem, where: str) -> None:
    """Raise an error if a file differs from its stamp in the snapshot, or a local file from the size in the table's log.

    The size of remote files is not compared with the log: that would take one more request per file.

    Raises:
        DataChangedError: If it differs.
    """
    expected, size = snapshot.files.stamp[file].as_py(), int(snapshot.files.size[file])
    stamped = expected.startswith("@")
    if not stamped and not (snapshot.version and size > 0 and isinstance(filesystem, pafs.LocalFileSystem)):
        return
    info = filesystem.get_file_info(snapshot.files.path[file].as_py())
    if info.type != pafs.FileType.File:
        return
    if stamped and stamp(info) != expected:
        raise changed_file_error(where)
    if not stamped and info.size != size:
        msg = (
            f"{where}: it has {info.size} bytes, and the log of {snapshot.table} says {size}. The file was replaced or cut "
            "after its commit. Restore it."
        )
        raise DataChangedError(msg)


def opened_size(snapshot: Snapshot, file: int) -> int | None:
    """Return the size of a file when the table was opened; None if the snapshot has no stamp of it."""
    return int(snapshot.files.size[file]) if snapshot.files.stamp[file].as_py().startswith("@") else None
