"""What was added to a table since one of its versions, as a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from penstock._engine.plan.table import Table
from penstock._engine.storage.filesystem import Source, locate
from penstock._open import recognised
from penstock.codecs import Codec, classes, resolved
from penstock.dataset import Dataset
from penstock.errors import ArgumentError
from penstock.filters import col
from penstock.model import Changed, Place
from penstock.protocols import Changing, TableFormat

__all__ = ["changes"]


def changes(
    source: Source,
    from_version: int,
    to_version: int | None = None,
    *,
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    format: TableFormat | None = None,  # noqa: A002 - the word for it
    codecs: Iterable[type[Codec]] = (),
) -> Dataset:
    """Return the rows that were added to a table after one version, and up to another.

    They are rows that were inserted, and rows as they became by an update, each as it was then. What was deleted takes
    nothing back, and what was merely moved to other files does not count.

    Args:
        source: Where the table lies.
        from_version: The version after which rows count.
        to_version: The last version whose rows count; the newest by default. It is pinned.
        filesystem: A filesystem of pyarrow or fsspec, where the source is a path in it.
        storage_options: What fsspec is told to open the URL with; this and what follows is as of `penstock.open`.
        format: The table's format, where it is not to be recognised.
        codecs: Codecs of your own that the table was written with.

    Raises:
        ArgumentError: If the table's format has no versions, or the table not these.
        DataError: If a commit has rewritten files without telling which rows it changed.

    Example:
        >>> import tempfile
        >>> from penstock.formats.delta import DeltaFormat
        >>> from penstock.write import write
        >>> path = tempfile.mkdtemp() + "/t"
        >>> _ = write(path, data={"id": [1, 2]}, format=DeltaFormat())
        >>> _ = write(path, data={"id": [3]}, format=DeltaFormat(), mode="append")
        >>> [int(row["id"]) for row in changes(path, 0)]
        [3]
    """
    given = classes(codecs, "changes")
    place = locate(source, filesystem=filesystem, options=storage_options)
    found = format if format is not None else recognised(place)
    if not isinstance(found, Changing):
        msg = f"{place.url} is a table of the format {found.name}, which does not tell what was added to it. A Delta table was "
        raise ArgumentError(msg + "expected. Open it whole: penstock.open(url).")
    return _added(found.changes(place, from_version, to_version), place, given)


def _added(told: Changed, place: Place, codecs: list[type[Codec]]) -> Dataset:
    """Return the rows that were added, without the column that may tell so."""
    fields = {name: resolved(field, codecs) for name, field in told.snapshot.fields.items()}
    ds = Dataset(Table(snapshot=replace(told.snapshot, fields=fields), filesystem=place.filesystem))
    if told.column is None:
        return ds
    kind = col(told.column)
    others = [field for field in ds.schema if field.name != told.column]
    return ds.where(kind.is_null() | kind.isin(told.kinds)).select(*others)
