"""`changes`: the rows that were added to a table since one of its versions."""

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
    """Return the rows that were added to a table after one version and up to another.

    These are inserted rows, and updated rows with their new values at that time. Rows that were deleted later are included.
    Rows that were only moved to other files are not.

    Args:
        source: The location of the table.
        from_version: The version after which rows count.
        to_version: The last version whose rows count; by default the newest one at the time of the call.
        filesystem: A filesystem of pyarrow or fsspec, if `source` is a path in it.
        storage_options: Options of fsspec for the URL; this and the following arguments are those of `penstock.open`.
        format: The table's format; by default it is detected.
        codecs: Codec classes of your own that the table was written with.

    Raises:
        ArgumentError: If the table's format has no versions, or the table does not have these versions.
        DataError: If a commit rewrote files without a record of the changed rows.

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
    table_format = format if format is not None else recognised(place)
    if not isinstance(table_format, Changing):
        msg = f"{place.url} has the format {table_format.name}, which does not record added rows; expected a Delta table. "
        raise ArgumentError(msg + "Open all of it: penstock.open(url).")
    return _added_rows(table_format.changes(place, from_version, to_version), place, given)


def _added_rows(changed: Changed, place: Place, codecs: list[type[Codec]]) -> Dataset:
    """Return the added rows, without the column with the kind of change."""
    fields = {name: resolved(field, codecs) for name, field in changed.snapshot.fields.items()}
    ds = Dataset(Table(snapshot=replace(changed.snapshot, fields=fields), filesystem=place.filesystem))
    if changed.column is None:
        return ds
    kind = col(changed.column)
    others = [field for field in ds.schema if field.name != changed.column]
    return ds.where(kind.is_null() | kind.isin(changed.kinds)).select(*others)
