"""Checks that files of a new Delta table fit the table that another writer has created first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from penstock.codecs import CellCodec
from penstock.errors import ArgumentError, listed
from penstock.formats.delta.encode_actions import stored_fields
from penstock.formats.delta.schema import Metadata
from penstock.schema import Field

__all__ = ["check_append"]


def check_append(ours: Metadata, theirs: Metadata, protocol: Mapping[str, Any], url: str) -> None:
    """Raise `ArgumentError` unless files for our metadata fit the table of the other metadata and protocol."""
    if ours.partition_columns != theirs.partition_columns:
        raise ArgumentError(
            f"write() got partition_by={ours.partition_columns!r}; expected {theirs.partition_columns!r}, the partitions of "
            f"{url}, which another writer has created meanwhile. Write partition_by={theirs.partition_columns!r}."
        )
    given, table = ours.columns({}, url).schema, theirs.columns(protocol, url).schema
    our_fields, their_fields = stored_fields(ours.schema_text, given, url), stored_fields(theirs.schema_text, table, url)
    differences = [f"{name!r} is not in the table" for name in given.names if name not in table.names]
    for field in table:
        if field.name not in given.names:
            differences.append(f"{field.name!r} is missing")
        elif why := _difference(given.field(field.name), field, our_fields.get(field.name), their_fields.get(field.name)):
            differences.append(f"{field.name!r} {why}")
    if differences:
        raise ArgumentError(
            f"The schema is not that of {url}, which another writer has created meanwhile: {'; '.join(differences)}; expected "
            f"the same columns: {listed(table.names)}. Change the schema, leave it out, or replace the table with "
            'mode="overwrite".'
        )


def _difference(ours: pa.Field, theirs: pa.Field, our_field: Field | None, their_field: Field | None) -> str:
    """Return how a column differs from that of the table; empty if it does not."""
    if ours.type != theirs.type:
        return f"would be stored as {ours.type} and is {theirs.type} there"
    if our_field is not None and their_field is not None:
        if (our_field.dtype, our_field.shape, our_field.codec) != (their_field.dtype, their_field.shape, their_field.codec):
            return f"is {our_field} and not {their_field}"
    elif our_field is not None and isinstance(our_field.codec, CellCodec):
        return f"is {our_field}, and plain {theirs.type} there"
    return "may be null, and may not be there" if ours.nullable and not theirs.nullable else ""
