"""Check columns that a data file does not have: null if the file is older than the column, else an error.

A file whose columns have other names than the table expects looks like an older file. The log, the schema and the file's
other columns tell the two cases apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from penstock._engine.read.schema_evolution import FIELD_ID, field_id, field_index
from penstock.errors import DataError, listed
from penstock.model import ALIAS, COLUMN_ID, DROPPED, UNMAPPED, Snapshot


def check_missing_columns(snapshot: Snapshot, file: int, columns: Sequence[str], file_schema: pa.Schema) -> str:
    """Raise an error if a file lacks a column, or a nested field, that cannot be null in it.

    Statistics alone are not enough for an error if the table has no column mapping and the file has only columns of the
    table: then the values cannot be anywhere in the file, so the log is wrong.

    Args:
        snapshot: The table.
        file: The index of the file.
        columns: The columns to read, without partition columns.
        file_schema: The schema of the file.

    Returns:
        A warning if only statistics say that the column has values, or if the file has a column that may be an older one of
        the same name; else an empty text.
    """
    partitions = snapshot.files.partitions.column_names
    stored = snapshot.schema if snapshot.stored is None else snapshot.stored
    pairs = tuple((logical, stored.field(at)) for at, logical in enumerate(snapshot.schema) if logical.name not in partitions)
    level = _FieldLevel(present=tuple(file_schema), expected=pairs, dropped=DROPPED in (stored.metadata or {}))
    warning = ""
    for missing in level.missing(frozenset(columns)):
        statistics = _values_in_log(snapshot, file, missing.name)
        reason = missing.reason or (statistics if missing.may_be_renamed else "")
        problem = f"{snapshot.files.path[file]}: the file has no column {missing.stored_name}"
        column = f"column {missing.name!r} of {snapshot.table} at version {snapshot.version}"
        if reason:
            msg = (
                f"{problem}, which is the stored name of {column}, but {reason}. The file has: {listed(missing.present)}. "
                "Nulls would be wrong. Restore the file, or have the software that wrote it rewrite it with the table's names; "
                "or leave the column out with select()."
            )
            raise DataError(msg)
        if statistics:
            warning = (
                f"{problem}, so {column} is null in it, but {statistics}. Either the log's statistics or the file is wrong. "
                "Have the software that wrote the table repair it."
            )
        elif missing.namesake:
            warning = (
                f"{problem}, so {column} is null in it, but it has {missing.namesake!r} without a field id. That is right if "
                "the table dropped that column and added it again; if not, have the software that wrote the file rewrite it "
                "with the table's names."
            )
    return warning


@dataclass(frozen=True, slots=True, kw_only=True)
class _MissingColumn:
    """A column or nested field that a file does not have.

    Attributes:
        name: Its dotted name.
        stored_name: Its name in files, quoted, with its id.
        reason: Why it cannot be null; empty if it can.
        present: The columns or fields at its level in the file.
        may_be_renamed: Whether the file may have it under another name.
        namesake: A column of the file without a field id and with the table's name of the column; empty if there is none.
    """

    name: str
    stored_name: str
    reason: str
    present: tuple[str, ...]
    may_be_renamed: bool
    namesake: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _FieldLevel:
    """The columns of a file, or the fields of one of its structs, and the table's columns at the same level.

    Attributes:
        present: The fields of the file.
        expected: The fields of the table, each with the logical and the stored name.
        dropped: Whether the table dropped columns in the past.
        name: The dotted name of the struct with a trailing dot; empty at the top.
        stored_name: The same with stored names.
        indexes: The index in the file of each expected field; None if it is missing, -1 if several fields match.
    """

    present: tuple[pa.Field, ...]
    expected: tuple[tuple[pa.Field, pa.Field], ...]
    dropped: bool
    name: str = ""
    stored_name: str = ""
    indexes: tuple[int | None, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Look up the table's columns in the file."""
        object.__setattr__(self, "indexes", tuple(_index(self.present, stored) for _, stored in self.expected))

    def missing(self, names: frozenset[str] | None = None) -> Iterator[_MissingColumn]:
        """Yield the missing fields, of some columns or of all, and those nested in them."""
        for (logical, stored), index in zip(self.expected, self.indexes, strict=True):
            if names is not None and logical.name not in names:
                continue
            if index is None:
                number = field_id(stored)
                yield _MissingColumn(
                    name=self.name + logical.name,
                    stored_name=repr(self.stored_name + stored.name) + ("" if number is None else f" with the id {number}"),
                    reason=self._reason(logical, stored),
                    present=tuple(other.name for other in self.present),
                    may_be_renamed=bool(stored.metadata or self._unknown),
                    namesake=self._namesake(logical),
                )
            elif index >= 0:
                yield from self._nested(self.present[index].type, logical, stored, self.name + logical.name, self.stored_name)

    @property
    def _unknown(self) -> list[pa.Field]:
        """The fields of the file that are not columns of the table."""
        return [other for at, other in enumerate(self.present) if at not in self.indexes]

    def _namesake(self, logical: pa.Field) -> str:
        """Return the name of an unknown field without an id that has the table's name of a column."""
        names = (other.name for other in self._unknown if field_id(other) is None)
        return next((name for name in names if name.lower() == logical.name.lower()), "")

    def _nested(
        self, kind: pa.DataType, logical: pa.Field, stored: pa.Field, name: str, prefix: str
    ) -> Iterator[_MissingColumn]:
        """Yield the missing fields inside a column, which has the type `kind` in the file."""
        table_type, file_type, prefix, of = logical.type, stored.type, prefix + stored.name, pa.types
        kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
        if of.is_struct(table_type) and of.is_struct(kind):
            fields = tuple(kind.field(at) for at in range(kind.num_fields))
            pairs = tuple((table_type.field(at), file_type.field(at)) for at in range(table_type.num_fields))
            if "typed_value" in {other.name for other in fields}:  # a shredded variant, for which reading raises an error
                return
            inner = _FieldLevel(present=fields, expected=pairs, dropped=self.dropped, name=f"{name}.", stored_name=f"{prefix}.")
            yield from inner.missing()
        elif of.is_map(table_type) and of.is_map(kind):
            for part, word in (("key_field", "key"), ("item_field", "value")):
                inside, inner_logical, inner_stored = (getattr(each, part) for each in (kind, table_type, file_type))
                yield from self._nested(
                    inside.type, inner_logical, inner_stored.with_name(word), f"{name}.{word}", f"{prefix}."
                )
        elif of.is_list(table_type) and kind.num_fields == 1:
            item, item_stored = table_type.value_field, file_type.value_field
            yield from self._nested(kind.field(0).type, item, item_stored, f"{name}.element", f"{prefix}.")

    def _reason(self, logical: pa.Field, stored: pa.Field) -> str:
        """Return why the schema or the file says that a missing column has values; empty if it may be null."""
        if not logical.nullable and not pa.types.is_null(logical.type):
            return "the schema says that it may not be null"
        no_match = bool(self.present) and all(index is None for index in self.indexes)
        metadata = stored.metadata or {}
        alias, unmapped = metadata.get(ALIAS, b"").decode(), UNMAPPED in metadata
        ids = (field_id(stored, key) for key in (FIELD_ID, COLUMN_ID))
        expected_id = next((number for number in ids if number is not None), None)
        for other in self._unknown:
            own_id, same_name = field_id(other), other.name.lower() in {stored.name.lower(), alias.lower()}
            if not same_name or (own_id is not None and expected_id is not None and own_id != expected_id):
                continue  # with another id it is a former column of the same name
            if unmapped:
                return (
                    f"the file has {other.name!r}, which the schema calls its physical name, and the table's protocol does not "
                    "have column mapping"
                )
            if own_id is not None and own_id == expected_id:
                return f"the file has {other.name!r} with its id {own_id}"
            if no_match or not self.dropped or other.name == stored.name:
                return f"the file has {other.name!r}, and the table maps its columns to other names"
        return "" if self.dropped or not no_match else "it has none of the table's columns"


def _index(present: Sequence[pa.Field], stored: pa.Field) -> int | None:
    """Return the index of a column in a file; -1 if several match, for which reading raises an error."""
    try:
        return field_index(present, stored)
    except pa.ArrowInvalid:
        return -1


def _values_in_log(snapshot: Snapshot, file: int, name: str) -> str:
    """Return what the log's statistics say about values of a column in a file; empty if all may be null."""
    ranges, rows = snapshot.files.ranges, int(snapshot.files.rows[file])
    for leaf in [name] if name in ranges else [path for path in ranges if path.startswith(f"{name}.")]:
        statistics = ranges[leaf]
        for which, bound in (("least", statistics.low), ("greatest", statistics.high)):
            if bound[file].is_valid:
                return f"the log says that its {which} value is {bound[file]}"
        if 0 <= (nulls := int(statistics.nulls[file])) < rows:
            return f"the log says that {nulls} of its {rows} values are null"
    return ""
