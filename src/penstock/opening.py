"""Opening a table: a URL is located, its format recognised, and one snapshot of it pinned."""

from __future__ import annotations

import os

from pyarrow import fs as pafs

from penstock._engine.storage import locate
from penstock._engine.table import Table
from penstock.dataset import Dataset
from penstock.errors import TableNotFoundError
from penstock.formats import known_formats
from penstock.model import Place
from penstock.protocols import TableFormat

__all__ = ["open"]


def open(
    url: str | os.PathLike[str],
    *,
    version: str | int | None = None,
    filesystem: pafs.FileSystem | None = None,
    format: TableFormat | None = None,  # noqa: A002 - the word for it
) -> Dataset:
    """Return a table as a dataset, pinned to what it is now or was at a version.

    Args:
        url: Where the table lies: a path or a URL.
        version: Which of the table's versions, where its format has them.
        filesystem: The filesystem that `url` is a path of, where it is not to be found from the URL.
        format: The table's format, where it is not to be recognised.

    Raises:
        TableNotFoundError: If no known table lies there.

    Example:
        >>> from penstock.testing import MemoryFormat
        >>> table = MemoryFormat.of({"id": range(10)}, row_group_rows=4, name="ten")
        >>> open("memory:ten", filesystem=table.filesystem, format=table)
        penstock.open('memory:ten')
    """
    name = os.fspath(url)
    place = locate(name) if filesystem is None else Place(url=name, filesystem=filesystem, path=name)
    found = format if format is not None else _recognised(place)
    return Dataset(Table(snapshot=found.snapshot(place, version), filesystem=place.filesystem))


def _recognised(place: Place) -> TableFormat:
    formats = known_formats()
    for known in formats:
        if known.recognises(place):
            return known
    told = ", ".join(known.name for known in formats) or "none"
    msg = f"No table lies at {place.url!r}. Formats that were tried: {told}. Check the path, or name the format with format=."
    raise TableNotFoundError(msg)
