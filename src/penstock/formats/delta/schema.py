"""The protocol and metadata of a Delta table: whether it can be read, its columns, and their names in files."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.errors import DataError, listed
from penstock.model import ALIAS, COLUMN_ID, DROPPED, UNMAPPED

__all__ = ["Columns", "Metadata", "StatsColumn", "check_protocol"]

FEATURES = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantShredding",
        "variantShredding-preview",
        "variantType",
        "variantType-preview",
    }
)
"""The features that a reader must know and this one does."""

CATALOG = {"catalogManaged", "catalogOwned", "catalogOwned-preview"}
MAPPING_VERSION, FEATURES_VERSION = 2, 3
"""The reader versions that introduced column mapping, and lists of features."""

# Names of functions: calling some of them loads pandas.
PRIMITIVES = {
    "string": "string",
    "long": "int64",
    "integer": "int32",
    "short": "int16",
    "byte": "int8",
    "float": "float32",
    "double": "float64",
    "boolean": "bool_",
    "binary": "binary",
    "date": "date32",
    "void": "null",
    "null": "null",
}
WIDER = {"byte": 0, "short": 1, "integer": 2, "long": 3}
DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(-?\d+)\s*\)")
FIELD_ID = b"PARQUET:field_id"
"""The metadata key of pyarrow for the id of a column in a file."""


def check_protocol(protocol: Mapping[str, Any], url: str) -> None:
    """Raise `DataError` for a table that needs unknown features.

    Example:
        >>> check_protocol({"minReaderVersion": 3, "readerFeatures": ["deletionVectors"]}, "t")
    """
    reader = protocol.get("minReaderVersion")
    for kind in ("readerFeatures", "writerFeatures"):
        names = protocol.get(kind)
        if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise DataError(f"{url}: {kind} in the table's protocol is {names!r}; expected a list of names. Restore the log.")
    if not isinstance(reader, int) or not 1 <= reader <= FEATURES_VERSION:
        required = protocol.get("readerFeatures")
        more = f", with the features {', '.join(map(str, required))}" if required else ""
        raise DataError(
            f"{url} needs reader version {reader!r} of Delta's protocol{more}; Penstock supports the versions 1 to "
            f"{FEATURES_VERSION}. Read it with newer software, or with a newer Penstock."
        )
    if reader < FEATURES_VERSION:
        return
    unknown = sorted(set(protocol.get("readerFeatures") or ()) - FEATURES)
    if CATALOG.intersection(unknown):
        raise DataError(
            f"{url} is managed by a catalog ({', '.join(unknown)}), which has its newest commits; expected a table whose log "
            "has all commits. Read it through the catalog."
        )
    if unknown:
        raise DataError(
            f"{url} needs unsupported features: {', '.join(unknown)}. Supported features: {', '.join(sorted(FEATURES))}. Read "
            "it with software that supports them, or drop the features from the table."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsColumn:
    """A column, or a field inside structs, that may have statistics: bounds and nulls, or only nulls for lists and maps.

    Attributes:
        path: Its names in the log, from the root.
        kind: Its type.
        from_float: Whether it was a 32-bit float when some of its statistics were written.
    """

    path: tuple[str, ...]
    kind: pa.DataType
    from_float: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """The columns of a table.

    Attributes:
        schema: The columns as users see them.
        stored: The columns with the names and ids in files, and the metadata of `Snapshot.stored`.
        names: The names in files by dotted name, where they differ.
        partitions: The name of each partition column in the log.
        aliases: Other possible names of partition columns in the log.
        leaves: The columns and fields with statistics by dotted name, except ambiguous names.
    """

    schema: pa.Schema
    stored: pa.Schema
    names: Mapping[str, str]
    partitions: Mapping[str, str]
    aliases: Mapping[str, str]
    leaves: Mapping[str, StatsColumn]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """The metadata of a table in its log."""

    schema_text: str
    partition_columns: tuple[str, ...]
    configuration: Mapping[str, str]

    @classmethod
    def of(cls, action: Mapping[str, Any], url: str) -> Metadata:
        """Return the metadata of a `metaData` action, or raise `DataError` if it is incomplete, or not of Parquet files."""
        kind, text = action.get("format") or {}, action.get("schemaString")
        partitions, options = action.get("partitionColumns") or [], action.get("configuration") or {}
        provider = kind.get("provider", "parquet") if isinstance(kind, dict) else kind
        if provider != "parquet":
            msg = f"{url} stores its rows as {provider!r}; expected Parquet files. Read it with the software that wrote it."
            raise DataError(msg)
        named = isinstance(partitions, list) and all(isinstance(name, str) for name in partitions)
        if not isinstance(text, str) or not named or not isinstance(options, dict):
            raise DataError(f"{url}: the metadata in the table's log has no schema; expected one. Repair the log.")
        return cls(
            schema_text=text,
            partition_columns=tuple(partitions),
            configuration={str(key): str(value) for key, value in options.items()},
        )

    @property
    def times_in_commits(self) -> tuple[int, int] | None:
        """The first version whose commit contains its time, and that time; None if no commit does."""
        options = self.configuration
        if options.get("delta.enableInCommitTimestamps", "").lower() != "true":
            return None
        first, since = (options.get(f"delta.inCommitTimestampEnablement{what}", "0") for what in ("Version", "Timestamp"))
        return (int(first), int(since)) if first.isdecimal() and since.lstrip("-").isdecimal() else (0, 0)

    def columns(self, protocol: Mapping[str, Any], url: str) -> Columns:
        """Return the table's columns, or raise `DataError` if the schema cannot be read, or has unknown types."""
        mode = self._mapping_mode(protocol, url)
        try:
            fields = [_Field.of(column, mode) for column in json.loads(self.schema_text)["fields"]]
            twice = sorted({field.name for field in fields if [other.name for other in fields].count(field.name) > 1})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            msg = f"{url}: the schema in the table's log cannot be read: {error}. Repair it, or use software that supports it."
            raise DataError(msg) from error
        names = [field.name for field in fields]
        missing = [name for name in self.partition_columns if name not in names]
        if missing or twice:
            what = f"no column {missing[0]!r}, by which it is partitioned" if missing else f"two columns called {twice[0]!r}"
            raise DataError(f"{url}: the table's schema has {what}. Columns: {listed(names)}. Repair the log.")
        in_files = [field for field in fields if field.name not in self.partition_columns]
        # The name `a.b` is ambiguous between a column `a.b` and a field `b` of `a`.
        dotted = Counter(name for field in fields for name, _ in field.walk())
        partitions = {field.name: field.stored for field in fields if field.name in self.partition_columns}
        keys = {stored.name for stored in partitions.values()}
        aliases = {name: (stored.metadata or {}).get(ALIAS, b"").decode() for name, stored in partitions.items()}
        return Columns(
            schema=pa.schema([field.logical for field in fields]),
            stored=pa.schema([field.stored for field in fields], {DROPPED: b""} if self._has_dropped(mode) else None),
            names={name: stored for field in in_files for name, stored in field.names()} if mode != "none" else {},
            partitions={name: stored.name for name, stored in partitions.items()},
            aliases={name: alias for name, alias in aliases.items() if alias and alias not in keys},
            leaves={name: leaf for field in in_files for name, leaf in field.leaves() if dotted[name] == 1},
        )

    def _mapping_mode(self, protocol: Mapping[str, Any], url: str) -> str:
        """Return how files identify columns: "none" for the names of the schema, "name" for physical names, or "id"."""
        mode = self.configuration.get("delta.columnMapping.mode", "none").lower()
        # Older tables that Iceberg can read list column mapping only in the features of writers.
        features = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())}
        reader = protocol.get("minReaderVersion")
        if reader != MAPPING_VERSION and (reader != FEATURES_VERSION or "columnMapping" not in features):
            return "none"
        if mode not in {"none", "name", "id"}:
            raise DataError(f"{url} maps columns by {mode!r}; expected none, name or id. Use software that supports it.")
        return mode

    def _has_dropped(self, mode: str) -> bool:
        """Return whether columns were dropped from the schema, which only column mapping allows."""
        max_id = self.configuration.get("delta.columnMapping.maxColumnId", "")
        return mode != "none" and max_id.isdecimal() and int(max_id) > len(set(_ids(json.loads(self.schema_text))))


def _ids(value: Any) -> Iterator[int]:
    """Yield the ids of all columns and fields of a schema, also those of elements of lists and maps."""
    if isinstance(value, dict):
        metadata = value.get("metadata")
        for key, note in metadata.items() if isinstance(metadata, dict) else ():
            if key == "delta.columnMapping.id":
                yield int(note)
            elif key.endswith(".nested.ids") and isinstance(note, dict):
                yield from (int(number) for number in note.values())
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _ids(inner)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Field:
    """A field of the schema, for users and in files."""

    name: str
    logical: pa.Field
    stored: pa.Field
    inner: tuple[_Field, ...]
    from_float: bool

    @classmethod
    def of(cls, column: Mapping[str, Any], mode: str) -> _Field:
        """Return the field of a JSON description."""
        name, metadata, nullable = column["name"], column.get("metadata") or {}, bool(column.get("nullable", True))
        stored_name, alias = name, metadata.get("delta.columnMapping.physicalName", name)
        if mode != "none":
            stored_name, alias = alias, name
        keys = {ALIAS: alias.encode()} if alias != stored_name else {}
        keys |= {UNMAPPED: b""} if alias != stored_name and mode == "none" else {}
        if mode == "id" or "delta.columnMapping.id" in metadata:
            number = str(int(metadata["delta.columnMapping.id"])).encode()
            keys[FIELD_ID if mode == "id" else COLUMN_ID] = number
        changes = metadata.get("delta.typeChanges") or []
        for change in json.loads(changes) if isinstance(changes, str) else changes:
            _check_change(change, name)
        logical, stored, inner = _types(column["type"], mode)
        return cls(
            name=name,
            logical=pa.field(name, logical, nullable),
            stored=pa.field(stored_name, stored, nullable, keys or None),
            inner=inner,
            from_float=any(change.get("fromType") == "float" for change in changes if isinstance(change, dict)),
        )

    def names(self) -> Iterator[tuple[str, str]]:
        """Yield dotted names of fields with their names in files, where they differ."""
        if self.stored.name != self.name:
            yield self.name, self.stored.name
        for field in self.inner:
            for name, stored in field.walk():
                dotted = any("." in part for part in stored)
                # A name with dots is ambiguous. A name that no file has leaves the field without statistics, which is safe.
                yield f"{self.name}.{name}", ".".join([self.stored.name, *(["\0"] if dotted else stored)])

    def walk(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield the dotted names of this field and its inner fields, with the parts of their names in files."""
        yield self.name, (self.stored.name,)
        for field in self.inner:
            for name, stored in field.walk():
                yield f"{self.name}.{name}", (self.stored.name, *stored)

    def leaves(self) -> Iterator[tuple[str, StatsColumn]]:
        """Yield the columns and fields with statistics by dotted name."""
        if self.inner:
            for field in self.inner:
                for name, leaf in field.leaves():
                    path = (self.stored.name, *leaf.path)
                    yield f"{self.name}.{name}", StatsColumn(path=path, kind=leaf.kind, from_float=leaf.from_float)
        elif not pa.types.is_null(self.logical.type):
            yield self.name, StatsColumn(path=(self.stored.name,), kind=self.logical.type, from_float=self.from_float)


def _types(kind: Any, mode: str) -> tuple[pa.DataType, pa.DataType, tuple[_Field, ...]]:
    """Return the type of a JSON description for users and in files, and the fields of a struct."""
    if isinstance(kind, str):
        arrow = _variant() if kind == "variant" else _primitive(kind)
        return arrow, arrow, ()
    match kind["type"]:
        case "struct":
            fields = tuple(_Field.of(field, mode) for field in kind["fields"])
            logical, stored = ([getattr(field, which) for field in fields] for which in ("logical", "stored"))
            return pa.struct(logical), pa.struct(stored), fields
        case "array":
            logical, stored, _ = _types(kind["elementType"], mode)
            nullable = bool(kind.get("containsNull", True))
            return pa.list_(pa.field("element", logical, nullable)), pa.list_(pa.field("element", stored, nullable)), ()
        case "map":
            (key, stored_key, _), (item, stored_item, _) = _types(kind["keyType"], mode), _types(kind["valueType"], mode)
            value = pa.field("value", item, bool(kind.get("valueContainsNull", True)))
            return pa.map_(key, value), pa.map_(stored_key, value.with_type(stored_item)), ()
        case "udt":
            return _types(kind["sqlType"], mode)
    raise ValueError(f"the type {kind['type']!r} is not known")


def _primitive(name: str) -> pa.DataType:
    if name in PRIMITIVES:
        return getattr(pa, PRIMITIVES[name])()
    if name in {"timestamp", "timestamp_ntz"}:
        return pa.timestamp("us", "UTC" if name == "timestamp" else None)
    decimal = DECIMAL.fullmatch(name)
    if decimal or name == "decimal":
        return pa.decimal128(int(decimal[1]), int(decimal[2])) if decimal else pa.decimal128(10, 0)
    raise ValueError(f"the type {name!r} is not known")


def _variant() -> pa.DataType:
    """Return the stored type of a variant."""
    return pa.struct([pa.field("metadata", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)])


def _check_change(change: Mapping[str, Any], name: str) -> None:
    """Refuse a change of a column's type that loses values, or that the protocol does not allow."""
    before, after = change.get("fromType"), change.get("toType")
    if not isinstance(before, str) or not isinstance(after, str) or not _widens(before, after):
        raise ValueError(f"column {name!r} was changed from {before} to {after}, which is no wider type")


def _widens(before: str, after: str) -> bool:
    if before in WIDER and after in WIDER:
        return WIDER[before] <= WIDER[after]
    if after == "double":
        return before in {"byte", "short", "integer", "float"}
    if after == "timestamp_ntz":
        return before == "date"
    new = DECIMAL.fullmatch(after)
    if new is None:
        return before == after
    precision, scale = int(new[1]), int(new[2])
    old = DECIMAL.fullmatch(before)
    if old is not None:
        return int(old[2]) <= scale and precision - scale >= int(old[1]) - int(old[2])
    digits = {"byte": 10, "short": 10, "integer": 10, "long": 20}.get(before)
    return digits is not None and precision - scale >= digits
