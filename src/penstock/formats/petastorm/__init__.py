"""Datasets of Petastorm: Parquet files with a pickled schema in `_common_metadata`, which is read without unpickling it.

Opening a table of any format imports this module, to recognise datasets of Petastorm. The modules that read the stored schema
and indexes are imported when they are needed.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyarrow import fs as pafs

from penstock._engine.parquet.footer import read_schema
from penstock.errors import DataError
from penstock.formats.parquet import COMMON
from penstock.formats.petastorm.keys import INDEX_KEY, ROW_GROUPS_KEY, UNISCHEMA_KEY
from penstock.model import Place, Snapshot
from penstock.schema import Schema

if TYPE_CHECKING:
    from penstock.formats.petastorm.fields import field_of, schema_of
    from penstock.formats.petastorm.index import NotNullIndex, RowGroupIndex, ValueIndex, load_indexes
    from penstock.formats.petastorm.metadata import PetastormFacts, metadata_of
    from penstock.formats.petastorm.schema import (
        SparkType,
        StoredCodec,
        StoredField,
        StoredSchema,
        load_unischema,
        pickle_unischema,
    )

__all__ = [
    "FORMAT",
    "INDEX_KEY",
    "PRECEDENCE",
    "ROW_GROUPS_KEY",
    "UNISCHEMA_KEY",
    "NotNullIndex",
    "PetastormFacts",
    "PetastormFormat",
    "RowGroupIndex",
    "SparkType",
    "StoredCodec",
    "StoredField",
    "StoredSchema",
    "ValueIndex",
    "field_of",
    "load_indexes",
    "load_unischema",
    "metadata_of",
    "pickle_unischema",
    "schema_of",
]

PRECEDENCE = 50
"""This format is tried before plain Parquet."""

IMPORTED_ON_USE = {
    "fields": ("field_of", "schema_of"),
    "index": ("NotNullIndex", "RowGroupIndex", "ValueIndex", "load_indexes"),
    "metadata": ("PetastormFacts", "metadata_of"),
    "schema": ("SparkType", "StoredCodec", "StoredField", "StoredSchema", "load_unischema", "pickle_unischema"),
}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        for module, names in IMPORTED_ON_USE.items():
            if name in names:
                return getattr(importlib.import_module(f"{__name__}.{module}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@dataclass(frozen=True, slots=True)
class PetastormFormat:
    """Datasets of Petastorm, of any version.

    If `_common_metadata` holds a schema of Penstock too, written by `penstock.write` or `penstock.adopt`, its fields are used.

    Example:
        >>> PetastormFormat().name
        'petastorm'
    """

    @property
    def name(self) -> str:
        """The name of the format."""
        return "petastorm"

    def recognises(self, place: Place) -> bool:
        """Return whether `_common_metadata` at a place holds a pickled schema of Petastorm."""
        path = f"{place.path.rstrip('/')}/{COMMON}"
        if place.paths or place.filesystem.get_file_info(path).type != pafs.FileType.File:
            return False
        try:
            return UNISCHEMA_KEY in (read_schema(path, place.filesystem).metadata or {})
        except DataError:
            return False

    def snapshot(self, place: Place, version: str | int | None) -> Snapshot:
        """Return the current files at a place, with the columns in the order of the stored schema.

        Raises:
            ArgumentError: If a version is requested.
            TableNotFoundError: If there is no data file.
            DataError: If the schema of a file, or the stored one, cannot be read.
        """
        from penstock.formats.petastorm.metadata import read_snapshot

        return read_snapshot(place, version)

    def facts(self, place: Place) -> PetastormFacts:
        """Return the metadata of Petastorm at a place; empty if nothing is stored.

        Raises:
            DataError: If a part of it cannot be read.
        """
        from penstock.formats.petastorm.metadata import read_facts

        return read_facts(place)

    def suited(self, schema: Schema) -> Schema:
        """Return a schema whose fields without a codec get one that Petastorm has."""
        from penstock.formats.petastorm.fields import suited

        return suited(schema)

    def check(self, schema: Schema, partition_by: Sequence[str]) -> None:
        """Check that Petastorm can read a table.

        Raises:
            ArgumentError: If it has no counterpart for a field, or misreads a partition column.
        """
        from penstock.formats.petastorm.metadata import check_schema

        check_schema(schema, partition_by)

    def metadata(self, schema: Schema, row_groups: Mapping[str, int]) -> dict[bytes, bytes]:
        """Return the metadata by which Petastorm reads a table; see `metadata_of`."""
        from penstock.formats.petastorm.metadata import metadata_of

        return metadata_of(schema, row_groups)


FORMAT = PetastormFormat()
