"""Statistics of files in a Delta log: rows, bounds and nulls, parsed when a filter needs them.

They are JSON in each file's action, or structs in a checkpoint. An uncertain bound is dropped or widened: at worst too much is
read, never too little.
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
from penstock.formats.delta.schema import StatsColumn
from penstock.formats.delta.sources import as_array
from penstock.model import ColumnRange, IntArray

__all__ = ["Statistics"]

CUT = 32
"""The length at which writers truncate text: letters, or 16-bit units. Some do not raise an upper bound that they truncate."""

TIE_BREAKERS = "\ufffd\ufffe\uffff\U0010ffff"
"""Letters that writers append to truncated text. Some writers order letters of two units before them."""

BROKEN = "?"
"""What remains of a letter of two units if one is truncated."""

MAX_ONE_UNIT, FIRST_SURROGATE, AFTER_SURROGATES = 0xFFFF, 0xD800, 0xE000
"""The last letter of one 16-bit unit, and the range of units that are half a letter."""

MILLISECOND = 999
"""Microseconds by which a time may exceed its bound, which writers truncate to milliseconds."""

LAST_LETTER = "\U0010ffff"

EXACT_BELOW = 10**15
"""Decimals below it stay exact if a writer converts them to doubles."""

EXACT = Context(prec=80)
"""More digits than any Arrow decimal has."""

MAX_CERTAIN = 2**63 - 2**11
"""From here on a writer may have clipped a decimal to 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Statistics(Mapping[str, ColumnRange]):
    """The statistics of a log's files, by dotted names of columns.

    Attributes:
        leaves: The columns that may have statistics.
        rows: The rows of each file; -1 if unknown.
        with_text: The files with statistics as text.
        texts: These texts, lines of JSON, compressed: a snapshot is sent to every rank.
        size: The uncompressed bytes of the texts.
        parsed: The statistics of all files as structs; None if no file has any.
    """

    leaves: Mapping[str, StatsColumn]
    rows: IntArray
    with_text: IntArray
    texts: bytes
    size: int
    parsed: pa.Array | None
    _cache: dict[str, ColumnRange] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, texts: pa.Array, parsed: pa.Array | None, leaves: Mapping[str, StatsColumn]) -> Statistics:
        """Return the statistics of files, each as text, as a struct, or missing."""
        with_text = np.flatnonzero(texts.is_valid().to_numpy(zero_copy_only=False))
        lines = texts.cast(pa.large_binary()).drop_null().to_pylist()
        data = b"\n".join(lines)
        if data.count(b"\n") != max(0, len(lines) - 1):  # JSON may have line breaks
            lines = [line.replace(b"\n", b" ") for line in lines]
            data = b"\n".join(lines)
        counts = _inner_field(parsed, ("numRecords",))
        rows = np.full(len(texts), -1, dtype=np.int64) if counts is None else _integers(counts)
        rows[with_text] = _integers(read_lines(lines, pa.schema({"numRecords": pa.int64()}), strict=False)["numRecords"])
        return cls(
            leaves=leaves,
            rows=np.where(rows > 0, rows, -1),  # a file without rows is rare, and its footer is certain
            with_text=with_text,
            texts=pa.compress(data, codec="zstd", asbytes=True),
            size=len(data),
            parsed=parsed,
        )

    def __getitem__(self, name: str) -> ColumnRange:
        """Return the statistics of a column."""
        column_range = self._cache.get(name)
        if column_range is None:
            column_range = self._cache[name] = self._read_range(self.leaves[name])
        return column_range

    def __contains__(self, name: object) -> bool:
        """Return whether a column may have statistics."""
        return name in self.leaves

    def __iter__(self) -> Iterator[str]:
        """Return the names of columns."""
        return iter(self.leaves)

    def __len__(self) -> int:
        """Return the number of columns."""
        return len(self.leaves)

    def __getstate__(self) -> list[Any]:
        """Return the state for another process, without the cache."""
        return [self.leaves, self.rows, self.with_text, self.texts, self.size, self.parsed]

    def __setstate__(self, state: list[Any]) -> None:
        """Set the state of another process."""
        names = ("leaves", "rows", "with_text", "texts", "size", "parsed", "_cache")
        for name, value in zip(names, [*state, {}], strict=True):
            object.__setattr__(self, name, value)

    def _read_range(self, leaf: StatsColumn) -> ColumnRange:
        """Return the statistics of a column, an entry per file."""
        lines = pa.decompress(self.texts, self.size, codec="zstd", asbytes=True).split(b"\n") if len(self.with_text) else []
        nested = pa.types.is_nested(leaf.kind)
        kinds = {"minValues": _json_type(leaf.kind), "maxValues": _json_type(leaf.kind), "nullCount": pa.int64()}
        schema = pa.schema({name: _wrap_in_structs(leaf.path, kind) for name, kind in kinds.items() if kind is not None})
        table = read_lines(lines, schema, strict=False)
        texts = {name: pc.struct_field(table[name], list(leaf.path)) for name in schema.names}
        structs = {name: _inner_field(self.parsed, (name, *leaf.path)) for name in kinds}
        low, high = (
            _merge(
                len(self.rows),
                self.with_text,
                _bound(texts.get(name), leaf, up=up, count=len(lines)),
                _bound(None if nested else structs[name], leaf, up=up, count=len(self.rows)),
            )
            for name, up in (("minValues", False), ("maxValues", True))
        )
        nulls = np.full(len(self.rows), -1, dtype=np.int64) if structs["nullCount"] is None else _integers(structs["nullCount"])
        nulls[self.with_text] = _integers(texts["nullCount"])
        # Writers may also count the nulls inside lists and maps, so that as many nulls as rows do not mean that all are null.
        is_valid = (nulls >= 0) & (nulls < self.rows if nested else nulls <= self.rows)
        return ColumnRange(low=low, high=high, nulls=np.where(is_valid, nulls, -1))


def _json_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type of a column's bounds in JSON; None if it has no bounds."""
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_decimal(kind):
        return pa.decimal128(38, kind.scale)
    if pa.types.is_boolean(kind):
        return kind
    return pa.string() if pa.types.is_string(kind) or pa.types.is_temporal(kind) else None


def _wrap_in_structs(path: Sequence[str], kind: pa.DataType) -> pa.DataType:
    """Return the type of structs around a field."""
    for name in reversed(path):
        kind = pa.struct([(name, kind)])
    return kind


def _inner_field(values: pa.Array | None, path: Sequence[str]) -> pa.Array | None:
    """Return a field inside structs, or None."""
    for name in path:
        if values is None or not pa.types.is_struct(values.type) or values.type.get_field_index(name) < 0:
            return None
        values = pc.struct_field(values, name)
    return values


def _merge(count: int, with_text: IntArray, texts: pa.Array, structs: pa.Array) -> pa.Array:
    """Return the values of all files: from texts for the files that have one, from structs for the others."""
    positions = np.arange(count) + len(texts)
    positions[with_text] = np.arange(len(texts))
    return pa.concat_arrays([texts, structs]).take(pa.array(positions))


def _integers(values: pa.Array | pa.ChunkedArray) -> IntArray:
    """Return integers; -1 for nulls, and for all if they are stored as another type."""
    try:
        integers = values.cast(pa.int64()).fill_null(-1)
    except pa.ArrowException:
        return np.full(len(values), -1, dtype=np.int64)
    return np.array(integers, dtype=np.int64)


def _bound(stated: pa.Array | pa.ChunkedArray | None, leaf: StatsColumn, *, up: bool, count: int) -> pa.Array:
    """Return bounds in a column's type; null where they are uncertain."""
    if stated is None:
        return pa.nulls(count, leaf.kind)
    values = as_array(stated) if isinstance(stated, pa.ChunkedArray) else stated
    if pa.types.is_temporal(leaf.kind) and pa.types.is_string(values.type):
        values = _parse_times(values, leaf.kind)
    try:
        values = values.cast(leaf.kind)
    except pa.ArrowException:
        return pa.nulls(count, leaf.kind)
    return _widen(values, leaf, up=up)


def _widen(values: pa.Array, leaf: StatsColumn, *, up: bool) -> pa.Array:
    """Return bounds widened where some writers write them too narrow."""
    if pa.types.is_timestamp(leaf.kind) and up:
        whole = values.cast(pa.int64())
        far = pc.greater(whole, pa.scalar(2**63 - 1 - MILLISECOND))
        whole = pc.add(pc.if_else(far, pa.scalar(None, pa.int64()), whole), MILLISECOND)
        return whole.cast(leaf.kind)
    if pa.types.is_string(leaf.kind) and up:
        return pa.array([_widen_text(value) for value in values.to_pylist()], leaf.kind)
    if pa.types.is_decimal(leaf.kind):
        return pa.array([_widen_decimal(value, leaf.kind, up=up) for value in values.to_pylist()], leaf.kind)
    if leaf.from_float:
        narrow = values.cast(pa.float32(), safe=False).cast(leaf.kind)
        return (pc.max_element_wise if up else pc.min_element_wise)(values, narrow, skip_nulls=False)
    return values


def _widen_text(stated: str | None) -> str | None:
    """Return an upper bound of all texts that a writer truncates to this one; None if there is none.

    Example:
        >>> _widen_text("short"), _widen_text("x" * 32)[-2:], _widen_text("cut\ufffd")
        ('short', 'xy', 'cuu')
    """
    if stated is None:
        return None
    prefix = stated.rstrip(TIE_BREAKERS)
    units = len(stated) + sum(ord(letter) > MAX_ONE_UNIT for letter in stated)
    if prefix == stated and units < CUT - 1:  # one less, because a letter of two units may have been truncated
        return stated
    prefix = prefix.removesuffix(BROKEN).rstrip(LAST_LETTER)  # no letter comes after it
    following = ord(prefix[-1]) + 1 if prefix else 0
    return prefix[:-1] + chr(AFTER_SURROGATES if following == FIRST_SURROGATE else following) if prefix else None


def _widen_decimal(stated: Decimal | None, kind: pa.DataType, *, up: bool) -> Decimal | None:
    """Return a bound that holds even if the writer has rounded it to a double, or clipped it to 64 bits; None if none does."""
    if stated is None or (stated >= MAX_CERTAIN if up else stated <= -MAX_CERTAIN):
        return None
    whole = int(stated.scaleb(kind.scale, EXACT))
    if abs(whole) < EXACT_BELOW:
        return stated
    whole += (abs(whole) // 2**52 + 1) * (1 if up else -1)
    return Decimal(whole).scaleb(-kind.scale, EXACT) if abs(whole) < 10**kind.precision else None


def _parse_times(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the times in texts; null where a text is not a time of that type."""
    try:
        return texts.cast(kind)
    except pa.ArrowException:
        return pa.array([_parse_time(text, kind) for text in texts.to_pylist()], kind)


def _parse_time(text: str | None, kind: pa.DataType) -> Any:
    """Return one time; None if only one of the text and the column has a zone."""
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    if pa.types.is_date(kind):
        return moment.date() if moment.tzinfo is None else None
    return moment if (moment.tzinfo is not None) == (kind.tz is not None) else None
