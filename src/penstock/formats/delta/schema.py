"""What a Delta table's protocol and metadata say: whether it can be read, its columns, and how its files call them."""

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

__all__ = ["Columns", "Leaf", "Metadata", "check_protocol"]

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
"""The features of tables that a reader must know and this one does."""

CATALOG = {"catalogManaged", "catalogOwned", "catalogOwned-preview"}
MAPPED, LISTED = 2, 3
"""The reader versions that brought column mapping, and features by name."""

# Made when they are asked for: some of them would load pandas.
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
"""The key under which pyarrow keeps the id of a column in a file."""


def check_protocol(protocol: Mapping[str, Any], url: str) -> None:
    """Refuse a table that needs what is not known here.

    Raises:
        DataError: If so; the features are named.

    Example:
        >>> check_protocol({"minReaderVersion": 3, "readerFeatures": ["deletionVectors"]}, "t")
    """
    reader = protocol.get("minReaderVersion")
    for kind in ("readerFeatures", "writerFeatures"):
        names = protocol.get(kind)
        if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            msg = f"{url}: {kind} in the table's protocol is {names!r}. A list of names was expected. Restore the log."
            raise DataError(msg)
    if not isinstance(reader, int) or not 1 <= reader <= LISTED:
        needed = protocol.get("readerFeatures")
        more = f", with the features {', '.join(map(str, needed))}" if needed else ""
        msg = (
            f"{url} needs reader version {reader!r} of Delta's protocol{more}. Versions 1 to {LISTED} are known. "
            "Read it with newer software, or with a newer Penstock."
        )
        raise DataError(msg)
    if reader < LISTED:
        return
    unknown = sorted(set(protocol.get("readerFeatures") or ()) - FEATURES)
    if CATALOG.intersection(unknown):
        msg = (
            f"{url} is managed by a catalog ({', '.join(unknown)}): its newest commits are known there and not in its log, so "
            "that an old state would be read. A table with a log of its own was expected. Read it through the catalog."
        )
        raise DataError(msg)
    if unknown:
        msg = (
            f"{url} needs features that are not known here: {', '.join(unknown)}. Known are {', '.join(sorted(FEATURES))}. "
            "Read it with software that knows them, or drop the features from the table."
        )
        raise DataError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A column, or a field inside structs, of which statistics may tell: its bounds, or of lists and maps its nulls alone.

    Attributes:
        path: Its names in the log, from the root.
        kind: Its type.
        from_float: Whether it was of 32 bits when some of its statistics were written.
    """

    path: tuple[str, ...]
    kind: pa.DataType
    from_float: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """The columns of a table.

    Attributes:
        schema: As users see them.
        stored: The same, by the names and ids that files know them by, with what `Snapshot.stored` notes beside.
        names: For a column or field by its dotted name, how files call it, where that differs.
        partitions: For each partition column, its name in the log.
        aliases: For partition columns, other names by which the log could have them.
        leaves: The columns and fields of which statistics may tell, by dotted name, unless that may mean two of them.
    """

    schema: pa.Schema
    stored: pa.Schema
    names: Mapping[str, str]
    partitions: Mapping[str, str]
    aliases: Mapping[str, str]
    leaves: Mapping[str, Leaf]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """The metadata of a table, as its log has it."""

    schema_text: str
    partition_columns: tuple[str, ...]
    configuration: Mapping[str, str]

    @classmethod
    def of(cls, told: Mapping[str, Any], url: str) -> Metadata:
        """Return the metadata out of a log's action.

        Raises:
            DataError: If the action lacks what it must have, or the table's files are not Parquet.
        """
        kind, text = told.get("format") or {}, told.get("schemaString")
        partitions, options = told.get("partitionColumns") or [], told.get("configuration") or {}
        provider = kind.get("provider", "parquet") if isinstance(kind, dict) else kind
        if provider != "parquet":
            msg = (
                f"{url} stores its rows as {provider!r}. Parquet files were expected. Read it with the software that wrote it."
            )
            raise DataError(msg)
        named = isinstance(partitions, list) and all(isinstance(name, str) for name in partitions)
        if not isinstance(text, str) or not named or not isinstance(options, dict):
            msg = f"{url}: the metadata in the table's log has no schema. One was expected. Repair the log."
            raise DataError(msg)
        return cls(
            schema_text=text,
            partition_columns=tuple(partitions),
            configuration={str(key): str(value) for key, value in options.items()},
        )

    @property
    def times_in_commits(self) -> tuple[int, int] | None:
        """From which version on commits say their time themselves, and the time of that version; None where none does."""
        told = self.configuration
        if told.get("delta.enableInCommitTimestamps", "").lower() != "true":
            return None
        first, since = (told.get(f"delta.inCommitTimestampEnablement{what}", "0") for what in ("Version", "Timestamp"))
        return (int(first), int(since)) if first.isdecimal() and since.lstrip("-").isdecimal() else (0, 0)

    def columns(self, protocol: Mapping[str, Any], url: str) -> Columns:
        """Return the table's columns.

        Raises:
            DataError: If the schema cannot be read, or has types that are not known.
        """
        mode = self._mapping(protocol, url)
        try:
            fields = [_Field.of(told, mode) for told in json.loads(self.schema_text)["fields"]]
            twice = sorted({field.name for field in fields if [other.name for other in fields].count(field.name) > 1})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            msg = (
                f"{url}: the schema in the table's log cannot be read: {error}. Repair the log, or use software that knows it."
            )
            raise DataError(msg) from error
        names = [field.name for field in fields]
        missing = [name for name in self.partition_columns if name not in names]
        if missing or twice:
            what = f"no column {missing[0]!r}, by which it is partitioned" if missing else f"two columns called {twice[0]!r}"
            raise DataError(f"{url}: the table's schema has {what}. Columns: {listed(names)}. Repair the log.")
        inside = [field for field in fields if field.name not in self.partition_columns]
        # A column `a.b` beside a field `b` of `a`: which of them is meant is not told by the name.
        dotted = Counter(name for field in fields for name, _ in field.inside())
        partitions = {field.name: field.stored for field in fields if field.name in self.partition_columns}
        keys = {stored.name for stored in partitions.values()}
        aliases = {name: (stored.metadata or {}).get(ALIAS, b"").decode() for name, stored in partitions.items()}
        return Columns(
            schema=pa.schema([field.logical for field in fields]),
            stored=pa.schema([field.stored for field in fields], {DROPPED: b""} if self._dropped(mode) else None),
            names={name: stored for field in inside for name, stored in field.names()} if mode != "none" else {},
            partitions={name: stored.name for name, stored in partitions.items()},
            aliases={name: alias for name, alias in aliases.items() if alias and alias not in keys},
            leaves={name: leaf for field in inside for name, leaf in field.leaves() if dotted[name] == 1},
        )

    def _mapping(self, protocol: Mapping[str, Any], url: str) -> str:
        """Return how files call columns: "none" for as the schema does, "name" or "id"."""
        mode = self.configuration.get("delta.columnMapping.mode", "none").lower()
        # Older tables that Iceberg can read have it among the features of writers alone.
        features = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())}
        reader = protocol.get("minReaderVersion")
        if reader != MAPPED and (reader != LISTED or "columnMapping" not in features):
            return "none"
        if mode not in {"none", "name", "id"}:
            msg = f"{url} maps columns by {mode!r}. By name, by id or not at all was expected. Use software that knows it."
            raise DataError(msg)
        return mode

    def _dropped(self, mode: str) -> bool:
        """Return whether the table has had columns that are not in its schema any more, as only mapping allows."""
        most = self.configuration.get("delta.columnMapping.maxColumnId", "")
        return mode != "none" and most.isdecimal() and int(most) > len(set(_ids(json.loads(self.schema_text))))


def _ids(told: Any) -> Iterator[int]:
    """Yield the ids of all columns and fields of a schema, and of the elements of lists and maps where these have any."""
    if isinstance(told, dict):
        notes = told.get("metadata")
        for key, value in notes.items() if isinstance(notes, dict) else ():
            if key == "delta.columnMapping.id":
                yield int(value)
            elif key.endswith(".nested.ids") and isinstance(value, dict):
                yield from (int(number) for number in value.values())
    for inner in told.values() if isinstance(told, dict) else told if isinstance(told, list) else ():
        yield from _ids(inner)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Field:
    """A field of the schema: as users and as files know it."""

    name: str
    logical: pa.Field
    stored: pa.Field
    inner: tuple[_Field, ...]
    from_float: bool

    @classmethod
    def of(cls, told: Mapping[str, Any], mode: str) -> _Field:
        """Return a field out of its JSON."""
        name, notes, nullable = told["name"], told.get("metadata") or {}, bool(told.get("nullable", True))
        called, alias = name, notes.get("delta.columnMapping.physicalName", name)
        if mode != "none":
            called, alias = alias, name
        keys = {ALIAS: alias.encode()} if alias != called else {}
        keys |= {UNMAPPED: b""} if alias != called and mode == "none" else {}
        if mode == "id" or "delta.columnMapping.id" in notes:
            number = str(int(notes["delta.columnMapping.id"])).encode()
            keys[FIELD_ID if mode == "id" else COLUMN_ID] = number
        changes = notes.get("delta.typeChanges") or []
        for change in json.loads(changes) if isinstance(changes, str) else changes:
            _check_change(change, name)
        logical, stored, inner = _types(told["type"], mode)
        return cls(
            name=name,
            logical=pa.field(name, logical, nullable),
            stored=pa.field(called, stored, nullable, keys or None),
            inner=inner,
            from_float=any(change.get("fromType") == "float" for change in changes if isinstance(change, dict)),
        )

    def names(self) -> Iterator[tuple[str, str]]:
        """Yield dotted names of fields, and how files call them, where that differs."""
        if self.stored.name != self.name:
            yield self.name, self.stored.name
        for field in self.inner:
            for name, stored in field.inside():
                dotted = any("." in part for part in stored)
                # Where names hold dots, a name that no file has: then nothing is known of the field, which is never wrong.
                yield f"{self.name}.{name}", ".".join([self.stored.name, *(["\0"] if dotted else stored)])

    def inside(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield the dotted names of this field and those in it, with the parts of how files call them."""
        yield self.name, (self.stored.name,)
        for field in self.inner:
            for name, stored in field.inside():
                yield f"{self.name}.{name}", (self.stored.name, *stored)

    def leaves(self) -> Iterator[tuple[str, Leaf]]:
        """Yield that of which statistics may tell, by dotted name."""
        if self.inner:
            for field in self.inner:
                for name, leaf in field.leaves():
                    path = (self.stored.name, *leaf.path)
                    yield f"{self.name}.{name}", Leaf(path=path, kind=leaf.kind, from_float=leaf.from_float)
        elif not pa.types.is_null(self.logical.type):
            yield self.name, Leaf(path=(self.stored.name,), kind=self.logical.type, from_float=self.from_float)


def _types(told: Any, mode: str) -> tuple[pa.DataType, pa.DataType, tuple[_Field, ...]]:
    """Return a type as users and as files know it, and the fields of a struct."""
    if isinstance(told, str):
        if told == "variant":
            return _variant(), _variant(), ()
        return _primitive(told), _primitive(told), ()
    match told["type"]:
        case "struct":
            fields = tuple(_Field.of(field, mode) for field in told["fields"])
            logical, stored = ([getattr(field, which) for field in fields] for which in ("logical", "stored"))
            return pa.struct(logical), pa.struct(stored), fields
        case "array":
            logical, stored, _ = _types(told["elementType"], mode)
            nullable = bool(told.get("containsNull", True))
            return pa.list_(pa.field("element", logical, nullable)), pa.list_(pa.field("element", stored, nullable)), ()
        case "map":
            (key, stored_key, _), (item, stored_item, _) = _types(told["keyType"], mode), _types(told["valueType"], mode)
            fields_of = pa.field("value", item, bool(told.get("valueContainsNull", True)))
            return pa.map_(key, fields_of), pa.map_(stored_key, fields_of.with_type(stored_item)), ()
        case "udt":
            return _types(told["sqlType"], mode)
    msg = f"the type {told['type']!r} is not known"
    raise ValueError(msg)


def _primitive(name: str) -> pa.DataType:
    if name in PRIMITIVES:
        return getattr(pa, PRIMITIVES[name])()
    if name in {"timestamp", "timestamp_ntz"}:
        return pa.timestamp("us", "UTC" if name == "timestamp" else None)
    found = DECIMAL.fullmatch(name)
    if found or name == "decimal":
        return pa.decimal128(int(found[1]), int(found[2])) if found else pa.decimal128(10, 0)
    msg = f"the type {name!r} is not known"
    raise ValueError(msg)


def _variant() -> pa.DataType:
    """Return what a variant is stored as."""
    return pa.struct([pa.field("metadata", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)])


def _check_change(change: Mapping[str, Any], name: str) -> None:
    """Refuse a change of a column's type that loses values, or that the protocol does not have."""
    before, after = change.get("fromType"), change.get("toType")
    if not isinstance(before, str) or not isinstance(after, str) or not _widens(before, after):
        msg = f"column {name!r} was changed from {before} to {after}, which is no wider type"
        raise ValueError(msg)


def _widens(before: str, after: str) -> bool:
    if before in WIDER and after in WIDER:
        return WIDER[before] <= WIDER[after]
    if after == "double":
        return before in {"byte", "short", "integer", "float"}
    if after == "timestamp_ntz":
        return before == "date"
    found = DECIMAL.fullmatch(after)
    if found is None:
        return before == after
    precision, scale = int(found[1]), int(found[2])
    old = DECIMAL.fullmatch(before)
    if old is not None:
        return int(old[2]) <= scale and precision - scale >= int(old[1]) - int(old[2])
    digits = {"byte": 10, "short": 10, "integer": 10, "long": 20}.get(before)
    return digits is not None and precision - scale >= digits
