"""Whether files that were written for a new Delta table go with the one that another writer has made there first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from penstock.codecs import CellCodec
from penstock.errors import ArgumentError, listed
from penstock.formats.delta.encode_actions import told_fields
from penstock.formats.delta.schema import Metadata
from penstock.schema import Field

__all__ = ["check_fits"]


def check_fits(ours: Metadata, theirs: Metadata, protocol: Mapping[str, Any], url: str) -> None:
    """Refuse files whose columns or partitions are not those of a table.

    Args:
        ours: What the files were written for.
        theirs: What the table is.
        protocol: The table's protocol.
        url: The table, for messages.

    Raises:
        ArgumentError: If they are not, in the words in which an append to such a table is refused.
    """
    if ours.partition_columns != theirs.partition_columns:
        msg = f"write got partition_by={ours.partition_columns!r}, and the directories of {url}, which another writer made "
        msg += f"meanwhile, are named by {theirs.partition_columns!r}. The same was expected. "
        raise ArgumentError(msg + f"Give partition_by={theirs.partition_columns!r}.")
    given, table = ours.columns({}, url).schema, theirs.columns(protocol, url).schema
    told, stored = told_fields(ours.schema_text, given, url), told_fields(theirs.schema_text, table, url)
    differences = [f"{name!r} is not in the table" for name in given.names if name not in table.names]
    for field in table:
        if field.name not in given.names:
            differences.append(f"{field.name!r} is missing")
        elif why := _difference(given.field(field.name), field, told.get(field.name), stored.get(field.name)):
            differences.append(f"{field.name!r} {why}")
    if differences:
        msg = f"The schema is not that of {url}, which another writer made meanwhile: {'; '.join(differences)}. The same was "
        msg += f"expected. Its columns are {listed(table.names)}. Change the schema, leave it out, or replace the table with "
        raise ArgumentError(msg + 'mode="overwrite".')


def _difference(ours: pa.Field, theirs: pa.Field, told: Field | None, stored: Field | None) -> str:
    """Return how a column differs from that of the table, or nothing."""
    if ours.type != theirs.type:
        return f"would be stored as {ours.type} and is {theirs.type} there"
    if told is not None and stored is not None:
        if (told.dtype, told.shape, told.codec) != (stored.dtype, stored.shape, stored.codec):
            return f"is {told} and not {stored}"
    elif told is not None and isinstance(told.codec, CellCodec):
        return f"is {told}, and plain {theirs.type} there"
    return "may be null, and may not be there" if ours.nullable and not theirs.nullable else ""
