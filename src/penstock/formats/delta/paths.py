"""Where a Delta log's paths lead: they are URIs, relative to the table or absolute, and name files of its filesystem."""

from __future__ import annotations

import re
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs as pafs

from penstock.errors import DataError
from penstock.model import Place

__all__ = ["resolve", "resolved"]

ABSOLUTE = r"^(/|[A-Za-z][A-Za-z0-9+.-]*:/)"
URI = re.compile(r"(?s)([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(/.*)?")
ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs", "wasbs": "abfs", "wasb": "abfs", "local": "file"}
WITH_BUCKETS = {"s3", "gcs", "abfs"}
"""Filesystems of pyarrow whose paths begin with a bucket."""


def resolved(paths: pa.Array, place: Place) -> pa.Array:
    """Return the paths of a log as the table's filesystem names them; nulls stay.

    Raises:
        DataError: If one lies on another storage system than the table.

    Example:
        >>> place = Place(url="/t", filesystem=pafs.LocalFileSystem(), path="/t")
        >>> resolved(pa.array(["a.parquet", "x=1%202/b.parquet", "file:/u/c.parquet"]), place).to_pylist()
        ['/t/a.parquet', '/t/x=1 2/b.parquet', '/u/c.parquet']
    """
    plain = pc.binary_join_element_wise(_base(place), paths, "")
    odd = pc.or_(pc.match_substring(paths, "%"), pc.match_substring_regex(paths, ABSOLUTE)).fill_null(fill_value=False)
    if not pc.any(odd).as_py():
        return plain
    mended = [resolve(path, place) for path in paths.filter(odd).to_pylist()]
    return pc.replace_with_mask(plain, odd, pa.array(mended, pa.string()))


def resolve(uri: str, place: Place) -> str:
    """Return one path of a log as the table's filesystem names it.

    Raises:
        DataError: If it lies on another storage system than the table.
    """
    if uri.startswith("/"):
        return _rooted(unquote(uri), place)
    found = URI.fullmatch(uri) if re.match(ABSOLUTE, uri) else None
    if found is None:
        return _base(place) + unquote(uri)
    scheme, authority, path = found[1].lower(), found[2] or "", unquote(found[3] or "/")
    filesystem = place.filesystem
    own = getattr(filesystem.handler, "fs", None) if isinstance(filesystem, pafs.PyFileSystem) else None
    if own is not None:  # one of fsspec
        if _same(scheme, (own.protocol,) if isinstance(own.protocol, str) else tuple(own.protocol)):
            return str(own._strip_protocol(f"{scheme}://{authority}{path}"))  # noqa: SLF001 - there is no public way
    elif _same(scheme, ("file" if filesystem.type_name == "local" else filesystem.type_name,)):
        return f"{authority}{path}" if filesystem.type_name in WITH_BUCKETS else path
    msg = (
        f"{uri}: a file of the table {place.url}, but on another storage system than its log. Files beside the log, or on the "
        "same system, were expected. Copy the table, or open the one that the file belongs to."
    )
    raise DataError(msg)


def _same(scheme: str, names: tuple[str, ...]) -> bool:
    return ALIASES.get(scheme, scheme) in {ALIASES.get(name, name) for name in names}


def _base(place: Place) -> str:
    return place.path.rstrip("/") + "/" if place.path else ""


def _rooted(path: str, place: Place) -> str:
    """Return a path without a scheme: it is one of the table's own system, and of its bucket where it has buckets."""
    if place.filesystem.type_name in WITH_BUCKETS:
        return place.path.split("/", 1)[0] + path
    return path
