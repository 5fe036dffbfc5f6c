"""Statistics of files in a Delta log: rows, bounds and nulls, read when a filter asks for them.

They come as JSON in each file's action, or as structs in a checkpoint. A bound that is not certain is left out or moved
outwards: at worst too much is read, never too little.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats.delta.json import read_lines
from penstock.formats.delta.schema import Leaf
from penstock.model import ColumnRange, IntArray

__all__ = ["Statistics"]

CUT = 32
"""The length at which writers cut text short: letters, or units of 16 bits. Some do not raise an upper bound that they cut."""

LATE = "\ufffd\ufffe\uffff\U0010ffff"
"""Letters that writers put after text that they have cut. To some, those that take two units come before them."""

BROKEN = "?"
"""What is left of a letter of two units of which one was cut off."""

ONE_UNIT, FIRST_HALF, AFTER_HALVES = 0xFFFF, 0xD800, 0xE000
"""The last letter that takes one unit; and between the others, what is half of a letter."""

MILLISECOND = 999
"""Microseconds that a time may lie after its bound, which is cut to milliseconds."""

LAST = "\U0010ffff"
"""The last of all letters."""

CERTAIN = 10**15
"""Decimals of fewer digits than this are the same after somebody has taken them for floating-point numbers."""

EXACT = Context(prec=80)
"""More digits than any decimal of Arrow has."""

FURTHEST = 2**63 - 2**11
"""From here on a decimal may have been cut to what 64 bits hold."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Statistics(Mapping[str, ColumnRange]):
    """What a log states of its files, by dotted names of columns.

    Attributes:
        leaves: The columns that may have statistics.
        rows: Rows of each file; -1 where nothing is stated.
        told: Which files have statistics as text.
        texts: These texts, lines of JSON, compressed: a snapshot is sent to every rank.
        size: Bytes of the texts.
        parsed: The statistics of all files as structs; None where no file has any.
    """

    leaves: Mapping[str, Leaf]
    rows: IntArray
    told: IntArray
    texts: bytes
    size: int
    parsed: pa.Array | None
    _known: dict[str, ColumnRange] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, texts: pa.Array, parsed: pa.Array | None, leaves: Mapping[str, Leaf]) -> Statistics:
        """Return the statistics of files, each as text or as a struct or not at all."""
        told = np.flatnonzero(texts.is_valid().to_numpy(zero_copy_only=False))
        lines = texts.cast(pa.large_binary()).drop_null().to_pylist()
        data = b"\n".join(lines)
        if data.count(b"\n") != max(0, len(lines) - 1):  # JSON may be laid out in several lines
            lines = [line.replace(b"\n", b" ") for line in lines]
            data = b"\n".join(lines)
        counts = _at(parsed, ("numRecords",))
        rows = np.full(len(texts), -1, dtype=np.int64) if counts is None else _integers(counts)
        rows[told] = _integers(read_lines(lines, pa.schema({"numRecords": pa.int64()}), strict=False)["numRecords"])
        return cls(
            leaves=leaves,
            rows=np.where(rows > 0, rows, -1),  # hardly a file has none, and its footer tells for sure
            told=told,
            texts=pa.compress(data, codec="zstd", asbytes=True),
            size=len(data),
            parsed=parsed,
        )

    def __getitem__(self, name: str) -> ColumnRange:
        """Return what is stated of a column."""
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = self._range(self.leaves[name])
        return found

    def __contains__(self, name: object) -> bool:
        """Return whether something may be stated of a column."""
        return name in self.leaves

    def __iter__(self) -> Iterator[str]:
        """Return the names of columns."""
        return iter(self.leaves)

    def __len__(self) -> int:
        """Return the number of columns."""
        return len(self.leaves)

    def __getstate__(self) -> list[Any]:
        """Return what another process needs: what was read of the texts is read again there."""
        return [self.leaves, self.rows, self.told, self.texts, self.size, self.parsed]

    def __setstate__(self, state: list[Any]) -> None:
        """Take over what another process had."""
        for name, value in zip(("leaves", "rows", "told", "texts", "size", "parsed", "_known"), [*state, {}], strict=True):
            object.__setattr__(self, name, value)

    def _range(self, leaf: Leaf) -> ColumnRange:
        """Return what is stated of a column, an entry per file."""
        lines = pa.decompress(self.texts, self.size, codec="zstd", asbytes=True).split(b"\n") if len(self.told) else []
        nested = pa.types.is_nested(leaf.kind)
        kinds = {"minValues": _as_json(leaf.kind), "maxValues": _as_json(leaf.kind), "nullCount": pa.int64()}
        schema = pa.schema({name: _nested(leaf.path, kind) for name, kind in kinds.items() if kind is not None})
        table = read_lines(lines, schema, strict=False)
        texts = {name: pc.struct_field(table[name], list(leaf.path)) for name in schema.names}
        structs = {name: _at(self.parsed, (name, *leaf.path)) for name in kinds}
        low, high = (
            _placed(
                len(self.rows),
                self.told,
                _bound(texts.get(name), leaf, up=up, count=len(lines)),
                _bound(None if nested else structs[name], leaf, up=up, count=len(self.rows)),
            )
            for name, up in (("minValues", False), ("maxValues", True))
        )
        nulls = np.full(len(self.rows), -1, dtype=np.int64) if structs["nullCount"] is None else _integers(structs["nullCount"])
        nulls[self.told] = _integers(texts["nullCount"])
        # Of a list or a map a writer may count the nulls inside too, and then as many as rows are not all.
        sound = (nulls >= 0) & (nulls < self.rows if nested else nulls <= self.rows)
        return ColumnRange(low=low, high=high, nulls=np.where(sound, nulls, -1))


def _as_json(kind: pa.DataType) -> pa.DataType | None:
    """Return the type that bounds of a column have in JSON; None where it has none."""
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_decimal(kind):
        return pa.decimal128(38, kind.scale)
    if pa.types.is_boolean(kind):
        return kind
    return pa.string() if pa.types.is_string(kind) or pa.types.is_temporal(kind) else None


def _nested(path: Sequence[str], kind: pa.DataType) -> pa.DataType:
    """Return the type of structs around a field."""
    for name in reversed(path):
        kind = pa.struct([(name, kind)])
    return kind


def _at(parsed: pa.Array | None, path: Sequence[str]) -> pa.Array | None:
    """Return a field inside structs; None where there is none."""
    found = parsed
    for name in path:
        if found is None or not pa.types.is_struct(found.type) or found.type.get_field_index(name) < 0:
            return None
        found = pc.struct_field(found, name)
    return found


def _placed(count: int, told: IntArray, texts: pa.Array, structs: pa.Array) -> pa.Array:
    """Return an array for all files: what texts say of those that have one, and structs of the others."""
    place = np.arange(count) + len(texts)
    place[told] = np.arange(len(texts))
    return pa.concat_arrays([texts, structs]).take(pa.array(place))


def _integers(values: pa.Array | pa.ChunkedArray) -> IntArray:
    """Return whole numbers; -1 where nothing is stated, and for all where they are stored as something else."""
    try:
        known = values.cast(pa.int64())
    except pa.ArrowException:
        return np.full(len(values), -1, dtype=np.int64)
    found: IntArray = known.fill_null(-1).to_numpy(**({} if isinstance(values, pa.ChunkedArray) else {"zero_copy_only": False}))
    return found.copy()


def _bound(stated: pa.Array | pa.ChunkedArray | None, leaf: Leaf, *, up: bool, count: int) -> pa.Array:
    """Return bounds in a column's type; null where they say nothing certain."""
    if stated is None:
        return pa.nulls(count, leaf.kind)
    values = pa.concat_arrays(stated.chunks) if isinstance(stated, pa.ChunkedArray) and stated.num_chunks else stated
    values = pa.array([], leaf.kind) if isinstance(values, pa.ChunkedArray) else values
    if pa.types.is_temporal(leaf.kind) and pa.types.is_string(values.type):
        values = _times(values, leaf.kind)
    try:
        values = values.cast(leaf.kind)
    except pa.ArrowException:
        return pa.nulls(count, leaf.kind)
    return _moved(values, leaf, up=up)


def _moved(values: pa.Array, leaf: Leaf, *, up: bool) -> pa.Array:
    """Return bounds moved outwards, where writers are known to state them too narrow."""
    if pa.types.is_timestamp(leaf.kind) and up:
        whole = values.cast(pa.int64())
        far = pc.greater(whole, pa.scalar(2**63 - 1 - MILLISECOND))
        whole = pc.add(pc.if_else(far, pa.scalar(None, pa.int64()), whole), MILLISECOND)
        return whole.cast(leaf.kind)
    if pa.types.is_string(leaf.kind) and up:
        return pa.array([_text(value) for value in values.to_pylist()], leaf.kind)
    if pa.types.is_decimal(leaf.kind):
        return pa.array([_decimal(value, leaf.kind, up=up) for value in values.to_pylist()], leaf.kind)
    if leaf.from_float:
        narrow = values.cast(pa.float32(), safe=False).cast(leaf.kind)
        return (
            pc.max_element_wise(values, narrow, skip_nulls=False)
            if up
            else pc.min_element_wise(values, narrow, skip_nulls=False)
        )
    return values


def _text(stated: str | None) -> str | None:
    """Return a bound that no text is above that goes on where the writer has cut; None where there is none.

    Example:
        >>> _text("short"), _text("x" * 32)[-2:], _text("cut\ufffd")
        ('short', 'xy', 'cuu')
    """
    if stated is None:
        return None
    begun = stated.rstrip(LATE)
    units = len(stated) + sum(ord(letter) > ONE_UNIT for letter in stated)
    if begun == stated and units < CUT - 1:  # one less where a letter of two would have been cut
        return stated
    begun = begun.removesuffix(BROKEN).rstrip(LAST)  # which nothing follows
    follows = ord(begun[-1]) + 1 if begun else 0
    return begun[:-1] + chr(AFTER_HALVES if follows == FIRST_HALF else follows) if begun else None


def _decimal(stated: Decimal | None, kind: pa.DataType, *, up: bool) -> Decimal | None:
    """Return a bound that holds even if the writer has rounded it to a double, or cut it to 64 bits; None where none does."""
    if stated is None or (stated >= FURTHEST if up else stated <= -FURTHEST):
        return None
    whole = int(stated.scaleb(kind.scale, EXACT))
    if abs(whole) < CERTAIN:
        return stated
    whole += (abs(whole) // 2**52 + 1) * (1 if up else -1)
    return Decimal(whole).scaleb(-kind.scale, EXACT) if abs(whole) < 10**kind.precision else None


def _times(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return times out of text; null where one is no time of that kind."""
    try:
        return texts.cast(kind)
    except pa.ArrowException:
        return pa.array([_time(text, kind) for text in texts.to_pylist()], kind)


def _time(text: str | None, kind: pa.DataType) -> Any:
    """Return one time; None where it is not certain: without a zone, though the column has one, or the other way."""
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    if pa.types.is_date(kind):
        return moment.date() if moment.tzinfo is None else None
    return moment if (moment.tzinfo is not None) == (kind.tz is not None) else None
