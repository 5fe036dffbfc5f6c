"""Paths of files in a Delta log: URIs, relative to the table or absolute, as paths of the table's filesystem."""

from __future__ import annotations

import re
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs as pafs

from penstock.errors import DataError
from penstock.model import Place

__all__ = ["resolve", "resolve_all"]

ABSOLUTE = r"^(/|[A-Za-z][A-Za-z0-9+.-]*:/)"
URI = re.compile(r"(?s)([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(/.*)?")
ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "wasbs": "abfs", "wasb": "abfs", "local": "file"}
WITH_BUCKETS = {"s3", "gcs", "abfs"}
"""Filesystems of pyarrow whose paths begin with a bucket."""


def resolve_all(paths: pa.Array, place: Place) -> pa.Array:
    """Return the paths of a log as paths of the table's filesystem; nulls stay.

    Example:
        >>> place = Place(url="/t", filesystem=pafs.LocalFileSystem(), path="/t")
        >>> resolve_all(pa.array(["a.parquet", "x=1%202/b.parquet", "file:/u/c.parquet"]), place).to_pylist()
        ['/t/a.parquet', '/t/x=1 2/b.parquet', '/u/c.parquet']
    """
    plain = pc.binary_join_element_wise(_base(place), paths, "")
    special = pc.or_(pc.match_substring(paths, "%"), pc.match_substring_regex(paths, ABSOLUTE)).fill_null(fill_value=False)
    if not pc.any(special).as_py():
        return plain
    resolved = [resolve(path, place) for path in paths.filter(special).to_pylist()]
    return pc.replace_with_mask(plain, special, pa.array(resolved, pa.string()))


def resolve(uri: str, place: Place) -> str:
    """Return one path of a log as a path of the table's filesystem; see `resolve_all`."""
    if uri.startswith("/"):
        return _in_bucket(unquote(uri), place)
    match = URI.fullmatch(uri) if re.match(ABSOLUTE, uri) else None
    if match is None:
        return _base(place) + unquote(uri)
    scheme, authority, path = match[1].lower(), match[2] or "", unquote(match[3] or "/")
    filesystem = place.filesystem
    wrapped = getattr(filesystem.handler, "fs", None) if isinstance(filesystem, pafs.PyFileSystem) else None
    if wrapped is not None:  # a filesystem of fsspec
        if _is_same_scheme(scheme, (wrapped.protocol,) if isinstance(wrapped.protocol, str) else tuple(wrapped.protocol)):
            return str(wrapped._strip_protocol(f"{scheme}://{authority}{path}"))  # noqa: SLF001 - there is no public way
    elif _is_same_scheme(scheme, ("file" if filesystem.type_name == "local" else filesystem.type_name,)):
        return f"{authority}{path}" if filesystem.type_name in WITH_BUCKETS else path
    raise DataError(
        f"{uri}: a file of the table {place.url}, but on another storage system than its log; expected files on the same "
        "system. Copy the table, or open the table that the file belongs to."
    )


def _is_same_scheme(scheme: str, names: tuple[str, ...]) -> bool:
    return ALIASES.get(scheme, scheme) in {ALIASES.get(name, name) for name in names}


def _base(place: Place) -> str:
    return place.path.rstrip("/") + "/" if place.path else ""


def _in_bucket(path: str, place: Place) -> str:
    """Return an absolute path without a scheme: it is in the table's own bucket, if its storage has buckets."""
    if place.filesystem.type_name in WITH_BUCKETS:
        return place.path.split("/", 1)[0] + path
    return path
