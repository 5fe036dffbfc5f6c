"""Columns that a data file does not have: null, if it is older than they are, and an error where something says otherwise.

A table's schema grows, and rows of older files have nothing in newer columns. A file whose columns go by other names than
the table expects looks the same; what the log, the schema and the file itself say tells the two apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from penstock._engine.read.schema_evolution import FIELD_ID, place_of
from penstock.errors import DataError, listed
from penstock.model import ALIAS, COLUMN_ID, DROPPED, UNMAPPED, Snapshot

__all__ = ["check_absent"]


def check_absent(snapshot: Snapshot, file: int, columns: Sequence[str], there: pa.Schema) -> str:
    """Refuse a file that lacks a column, or a field inside of one, which cannot be null in it.

    Statistics of the log alone do not refuse a file without mapped columns that has nothing but columns of the table: its
    values can be nowhere in it, and the log is what errs.

    Args:
        snapshot: The table's facts.
        file: The index of the file.
        columns: The columns that are asked for, none of them a partition column.
        there: What the file has.

    Returns:
        A warning for the user where only statistics say that there should be values, or where the file has a column that may
        be an older one of the same name; else nothing.

    Raises:
        DataError: If it is one; it names the column, its name in files, the reason, and what the file has.
    """
    partitions = snapshot.files.partitions.column_names
    stored = snapshot.schema if snapshot.stored is None else snapshot.stored
    every = [(logical, stored.field(at)) for at, logical in enumerate(snapshot.schema) if logical.name not in partitions]
    level = _Level(there=tuple(there), every=tuple(every), dropped=DROPPED in (stored.metadata or {}))
    doubt = ""
    for lacks in level.lacking(frozenset(columns)):
        said = _stated(snapshot, file, lacks.name)
        why = lacks.why or (said if lacks.findable else "")
        place = f"column {lacks.name!r} of {snapshot.table} at version {snapshot.version}"
        if why:
            msg = (
                f"{snapshot.files.path[file]}: the file has no column {lacks.called}, which is what files call {place}, but "
                f"{why}. The file holds: {listed(lacks.there)}. Nulls would be wrong. Restore the file, or have the software "
                "that wrote it rewrite it under the table's names; or leave the column out with select()."
            )
            raise DataError(msg)
        if said:
            doubt = (
                f"{snapshot.files.path[file]}: the file has no column {lacks.called}, so that {place} is null in it, but "
                f"{said}. The log's statistics are wrong, or the file is. Have the software that wrote the table repair it."
            )
        elif lacks.namesake:
            doubt = (
                f"{snapshot.files.path[file]}: the file has no column {lacks.called}, so that {place} is null in it, but it "
                f"has {lacks.namesake!r} without a field id. That is right if the table dropped that column and added it "
                "again; if not, have the software that wrote the file rewrite it under the table's names."
            )
    return doubt


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lacking:
    """A column or field that a file does not have.

    Attributes:
        name: Its dotted name.
        called: What files call it, for messages.
        why: What says that it must be there; empty where nothing does.
        there: The columns or fields beside which it would be.
        findable: Whether it might be there by another name.
        namesake: A column of the file without a field id that has the name it has in the table; empty where there is none.
    """

    name: str
    called: str
    why: str
    there: tuple[str, ...]
    findable: bool
    namesake: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Level:
    """The columns of a file, or the fields of a struct in it, beside those that the table has there.

    Attributes:
        there: Those of the file.
        every: Those of the table, as users and as files know them.
        dropped: Whether the table once had columns that it has no more.
        name: The dotted name of the struct, and a dot; empty at the top.
        called: The same, as files know it.
    """

    there: tuple[pa.Field, ...]
    every: tuple[tuple[pa.Field, pa.Field], ...]
    dropped: bool
    name: str = ""
    called: str = ""
    places: tuple[int | None, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Look up the table's columns among those of the file."""
        object.__setattr__(self, "places", tuple(_found(self.there, stored) for _, stored in self.every))

    def lacking(self, asked: frozenset[str] | None = None) -> Iterator[_Lacking]:
        """Yield what is not there, of some columns or of all, and of the fields inside of them."""
        names = tuple(one.name for one in self.there)
        for (logical, stored), place in zip(self.every, self.places, strict=True):
            if asked is not None and logical.name not in asked:
                continue
            if place is None:
                number = _number(stored, FIELD_ID)
                called = repr(self.called + stored.name) + ("" if number is None else f" with the id {number}")
                yield _Lacking(
                    name=self.name + logical.name,
                    called=called,
                    why=self._why(logical, stored),
                    there=names,
                    findable=bool(stored.metadata or self._strangers),
                    namesake=self._namesake(logical),
                )
            elif place >= 0:
                yield from self._inside(self.there[place].type, logical, stored, self.name + logical.name, self.called)

    @property
    def _strangers(self) -> list[pa.Field]:
        """What the file has beside the columns of the table."""
        return [one for at, one in enumerate(self.there) if at not in self.places]

    def _namesake(self, logical: pa.Field) -> str:
        """Return the name of a column beside those of the table that is called as users call this one, and has no id."""
        names = (one.name for one in self._strangers if _number(one, FIELD_ID) is None)
        return next((name for name in names if name.lower() == logical.name.lower()), "")

    def _inside(self, kind: pa.DataType, logical: pa.Field, stored: pa.Field, name: str, called: str) -> Iterator[_Lacking]:
        """Yield what is not there of the fields inside of a column of some type in the file."""
        wanted, shape, called, of = logical.type, stored.type, called + stored.name, pa.types
        kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
        if of.is_struct(wanted) and of.is_struct(kind):
            fields = tuple(kind.field(at) for at in range(kind.num_fields))
            pairs = tuple((wanted.field(at), shape.field(at)) for at in range(wanted.num_fields))
            if "typed_value" in {one.name for one in fields}:  # a shredded variant, which is refused elsewhere
                return
            inner = _Level(there=fields, every=pairs, dropped=self.dropped, name=f"{name}.", called=f"{called}.")
            yield from inner.lacking()
        elif of.is_map(wanted) and of.is_map(kind):
            for part in ("key", "item"):
                inside, told, other = (getattr(one, f"{part}_field") for one in (kind, wanted, shape))
                word = "key" if part == "key" else "value"
                yield from self._inside(inside.type, told, other.with_name(word), f"{name}.{word}", f"{called}.")
        elif of.is_list(wanted) and kind.num_fields == 1:
            yield from self._inside(kind.field(0).type, wanted.value_field, shape.value_field, f"{name}.element", f"{called}.")

    def _why(self, logical: pa.Field, stored: pa.Field) -> str:
        """Return what in the schema or in the file says that a column must be there; nothing where it may be null."""
        if not logical.nullable and not pa.types.is_null(logical.type):
            return "the schema says that it may not be null"
        nothing = bool(self.there) and all(place is None for place in self.places)
        notes = stored.metadata or {}
        alias, unmapped = notes.get(ALIAS, b"").decode(), UNMAPPED in notes
        number = next((found for key in (FIELD_ID, COLUMN_ID) if (found := _number(stored, key)) is not None), None)
        for one in self._strangers:
            own, same = _number(one, FIELD_ID), one.name.lower() in {stored.name.lower(), alias.lower()}
            if not same or (own is not None and number is not None and own != number):
                continue  # with another id it is a column of that name which the table had before
            if unmapped:
                return (
                    f"the file has {one.name!r}, which the schema calls its physical name, and the table's protocol does not "
                    "have column mapping"
                )
            if own is not None and own == number:
                return f"the file has {one.name!r} with its id {own}"
            if nothing or not self.dropped or one.name == stored.name:
                return f"the file has {one.name!r}, and the table maps its columns to other names"
        return "" if self.dropped or not nothing else "it holds none of the table's columns"


def _found(there: Sequence[pa.Field], stored: pa.Field) -> int | None:
    """Return the place of a column in a file; -1 where several columns match, which raises when they are read."""
    try:
        return place_of(there, stored)
    except pa.ArrowInvalid:
        return -1


def _number(one: pa.Field, key: bytes) -> int | None:
    text = (one.metadata or {}).get(key)
    return None if text is None else int(text)


def _stated(snapshot: Snapshot, file: int, name: str) -> str:
    """Return what the log says of the values of a column in a file; nothing where they may all be null."""
    ranges, rows = snapshot.files.ranges, int(snapshot.files.rows[file])
    for leaf in [name] if name in ranges else [one for one in ranges if one.startswith(f"{name}.")]:
        found = ranges[leaf]
        for which, bound in (("least", found.low), ("greatest", found.high)):
            if bound[file].is_valid:
                return f"the log says that its {which} value is {bound[file]}"
        if 0 <= (nulls := int(found.nulls[file])) < rows:
            return f"the log says that {nulls} of its {rows} values are null"
    return ""
