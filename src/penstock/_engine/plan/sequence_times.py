"""Find the sequences of units: read the columns of times and groups as numbers, and apply the sequence rule."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor, inf
from typing import Any

import numpy as np
import pyarrow as pa

from penstock import dtypes, sequences
from penstock._engine.decode.concat import one_array
from penstock._engine.plan.sequence_find import SequenceRule, SortedRows, Times, first_unordered, sequence_starts
from penstock._engine.plan.sequence_links import NotInOrderError, extend_rows
from penstock._engine.read.reader import UNCOUNTED, Reader, Unit, UnitTable
from penstock.errors import ArgumentError, DataChangedError, DataError, UnorderedError
from penstock.model import IntArray, SequenceLinks, Units

SIGN = np.uint64(1 << 63)
MAX_TICKS = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowTimes:
    """The time and the group of each row of a unit.

    Attributes:
        times: The times.
        groups: The groups, as indices of `names`; None if all rows are in one group.
        names: The names of the groups, the same in all units.
    """

    times: Times
    groups: IntArray | None = None
    names: Sequence[Hashable] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitSequences:
    """The sequences of a unit.

    Attributes:
        line: Row numbers, sorted so that the rows of a sequence are neighbours; rows of later units follow the unit's own.
        places: The place in the line of each sequence's first row, in the order of these rows.
        units: The unit of each row of a later unit.
        rows: The number of each such row in its unit.
    """

    line: IntArray
    places: IntArray
    units: IntArray
    rows: IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SequenceFinder:
    """Finds the sequences of units; `links` is for sequences that may continue in the next unit."""

    reader: Reader
    sequence: sequences.Sequence
    rule: SequenceRule
    links: SequenceLinks | None = None

    @classmethod
    def of(cls, reader: Reader, sequence: sequences.Sequence, links: SequenceLinks | None = None) -> SequenceFinder:
        """Return a finder for the units of a table."""
        return cls(reader=reader, sequence=sequence, rule=sequence_rule(sequence, reader.snapshot.schema), links=links)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of times and groups."""
        return tuple(dict.fromkeys((self.sequence.by, *self.sequence.groups)))

    def read(self, unit: Unit, columns: Sequence[str], blobs: Sequence[str] = ()) -> UnitTable:
        """Return all rows of a unit, with the requested columns and those of times and groups."""
        return self.reader.read(replace(unit, count=UNCOUNTED), list(dict.fromkeys([*columns, *self.columns])), blobs)

    def count(self, unit: Unit) -> int:
        """Return the number of sequences in a unit, none of which continues in another."""
        rows = self.row_times(unit, self.read(unit, ()))
        return len(sequence_starts(SortedRows.of(rows.times, rows.groups), self.rule))

    def find(self, index: int, unit: Unit, part: UnitTable) -> UnitSequences:
        """Return the sequences that begin in a unit."""
        row_times, none = self.row_times(unit, part), np.zeros(0, dtype=np.int64)
        if self.links is None:
            line = SortedRows.of(row_times.times, row_times.groups)
            places, units, rows = sequence_starts(line, self.rule), none, none
        else:
            stored = np.arange(part.count) if part.selected is None else part.selected
            extended = extend_rows(self.links, index, stored, row_times.times, row_times.groups, self.rule.length)
            line, units, rows = extended.line, extended.units, extended.rows
            places = sequence_starts(line, self.rule, extended.free)
        if len(places) != unit.count:
            msg = (
                f"{self.reader.where(unit)}: it has {len(places)} sequences, and the plan has {unit.count}. The file was "
                "changed after the table was opened. Open the table again; a state saved before cannot be resumed."
            )
            raise DataChangedError(msg)
        return UnitSequences(line=line.rows, places=places[np.argsort(line.rows[places])], units=units, rows=rows)

    def row_times(self, unit: Unit, part: UnitTable) -> RowTimes:
        """Return the time and the group of each row of a unit."""
        by, column = self.sequence.by, part.table.column(self.sequence.by)
        valid = dtypes.valid(_one_chunk(column))
        if valid is not None and not valid.all():
            raise self._unknown_time(unit, part, int(valid.argmin()), "null")
        try:
            times = _times(column)
        except pa.ArrowInvalid as error:
            msg = (
                f"{self.reader.where(unit)}, column {by!r}: it has values that do not fit 64 bits: {error}. "
                "Sequences need smaller numbers. Write the times in another column."
            )
            raise DataError(msg) from error
        if times.dtype.kind == "f" and not np.isfinite(times).all():
            row = int(np.isfinite(times).argmin())
            raise self._unknown_time(unit, part, row, str(times[row]))
        groups, names = _groups(part.table, self.sequence.groups)
        unordered = None if self.sequence.unordered == "sort" else first_unordered(times, groups, self.rule.length)
        if unordered is not None:
            msg = (
                f"{self._where(unit, part, unordered)}, column {by!r}: it is earlier than the row before it{self._same_group}, "
                'and unordered="raise" is set. Write the table in the order of time, or use unordered="sort".'
            )
            raise UnorderedError(msg)
        return RowTimes(times=times, groups=groups, names=names)

    def order_error(self, error: NotInOrderError, units: Units) -> UnorderedError:
        """Return the error for units that are not in the order of time."""
        unit, before = (Unit.of(units, number) for number in (error.unit, error.before))
        where = f"{self.reader.where(unit)}, row {unit.first + error.row}, column {self.sequence.by!r}"
        return UnorderedError(
            f"{where}: it is earlier than a row{self._same_group} in {self.reader.where(before)}, which comes before it. "
            'scope="table" needs row groups in the order of time. Write the table in the order of time, or use '
            'scope="row_group".'
        )

    @property
    def _same_group(self) -> str:
        """The group columns, for messages about rows of one group."""
        return f" of the same {' and '.join(map(repr, self.sequence.groups))}" if self.sequence.groups else ""

    def _where(self, unit: Unit, part: UnitTable, row: int) -> str:
        return f"{self.reader.where(unit)}, row {int(part.row_numbers()[row])}"

    def _unknown_time(self, unit: Unit, part: UnitTable, row: int, value: str) -> DataError:
        name = self.sequence.by
        remedy = f"penstock.col({name!r}).is_not_null()" if value == "null" else f"penstock.col({name!r}).between(low, high)"
        return DataError(
            f"{self._where(unit, part, row)}, column {name!r}: the value is {value}, and a sequence needs the time of each "
            f"row. Keep the rows that have a time: .where({remedy})."
        )


def sequence_rule(sequence: sequences.Sequence, schema: pa.Schema) -> SequenceRule:
    """Return the rule of a table's sequences, with the gap in the numbers that its times are converted to.

    Example:
        >>> sequence_rule(sequences.Sequence(length=2, by="t", gap=1.5), pa.schema({"t": pa.decimal128(9, 2)}))
        SequenceRule(length=2, gap=150, overlap=True)
    """
    kind = _plain_type(schema.field(sequence.by).type)
    unit = _nanoseconds(kind)
    if unit is None and not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        msg = (
            f"Sequence got by={sequence.by!r}, which is a column of {kind}; expected a column of numbers, decimals, dates or "
            "times. Give the column with the time of each row."
        )
        raise ArgumentError(msg)
    for name in sequence.groups:
        inner = _plain_type(schema.field(name).type)
        if pa.types.is_nested(inner) or pa.types.is_floating(inner):
            msg = (
                f"Sequence got group={name!r}, which is a column of {inner}; expected a column of whole numbers, text, bytes, "
                "dates or times. Give a column of such values."
            )
            raise ArgumentError(msg)
    return SequenceRule(length=sequence.span, gap=_ticks(sequence, kind, unit), overlap=sequence.overlap)


def _ticks(sequence: sequences.Sequence, kind: pa.DataType, unit: Fraction | None) -> int | float | None:
    """Return a gap in the numbers that times are converted to; None if it is no limit for them."""
    gap = sequence.gap
    if gap is None:
        return None
    if sequences.is_time(gap) != (unit is not None):
        actual = "is a length of time" if unit is None else "is not a length of time"
        expected = "a number" if unit is None else "datetime.timedelta(...)"
        msg = f"Sequence got gap={gap!r}, which {actual}, and column {sequence.by!r} is of {kind}. Give {expected}."
        raise ArgumentError(msg)
    if pa.types.is_floating(kind):
        limit: Any = float(sequences.ticks(gap, Fraction(1)))
    else:
        step = unit or Fraction(1, 10**kind.scale if pa.types.is_decimal(kind) else 1)
        ticks = sequences.ticks(gap, step)
        limit = inf if ticks == inf else floor(ticks)
    return None if limit >= (inf if pa.types.is_floating(kind) else MAX_TICKS) else limit


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values, without extensions and dictionaries."""
    if isinstance(kind, pa.BaseExtensionType):
        return _plain_type(kind.storage_type)
    return _plain_type(kind.value_type) if dtypes.is_encoded(kind) else kind


def _nanoseconds(kind: pa.DataType) -> Fraction | None:
    """Return the nanoseconds of one step in a column of dates or times; None for other columns."""
    if pa.types.is_date(kind):
        return sequences.NANOSECONDS["D" if pa.types.is_date32(kind) else "ms"]
    timed = pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or pa.types.is_time(kind)
    return sequences.NANOSECONDS[str(kind.unit)] if timed else None


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    array = one_array(column)
    while isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    return dtypes.plain(array) if dtypes.is_encoded(array.type) else array


def _plain_times(array: pa.Array) -> pa.Array:
    """Return dates and times as whole numbers, other values as they are."""
    if _nanoseconds(array.type) is None:
        return array
    return array.cast(pa.int32() if array.type.bit_width == 32 else pa.int64())  # noqa: PLR2004 - its bits


def _numbers(array: pa.Array) -> pa.Array:
    """Return dates, times and decimals as whole numbers, other numbers as they are."""
    kind = array.type
    if pa.types.is_decimal(kind):
        # Read without a scale, the same bits count the smallest steps.
        wide = array.cast(pa.decimal128(kind.precision, kind.scale)) if kind.bit_width < 128 else array  # noqa: PLR2004 - its bits
        plain = (pa.decimal128 if wide.type.bit_width == 128 else pa.decimal256)(kind.precision, 0)  # noqa: PLR2004 - the same
        return pa.Array.from_buffers(plain, len(wide), wide.buffers(), offset=wide.offset).cast(pa.int64())
    return _plain_times(array)


def _times(column: pa.ChunkedArray) -> Times:
    """Return times as numbers with the same order and the same differences."""
    numbers: Times = _numbers(_one_chunk(column)).to_numpy(zero_copy_only=False)
    if numbers.dtype.kind == "f":
        return numbers.astype(np.float64)
    return numbers.astype(np.uint64) if numbers.dtype.kind == "u" else numbers.astype(np.int64).view(np.uint64) ^ SIGN


def _groups(table: pa.Table, columns: Sequence[str]) -> tuple[IntArray | None, Sequence[Hashable]]:
    """Return the group of each row and the names of the groups; null is a group too."""
    if not columns:
        return None, ()
    encoded = [_plain_times(_one_chunk(table.column(name))).dictionary_encode(null_encoding="encode") for name in columns]
    numbers = [array.indices.to_numpy(zero_copy_only=False).astype(np.int64) for array in encoded]
    names = [array.dictionary.to_pylist() for array in encoded]
    if len(columns) == 1:
        return numbers[0], names[0]
    joint = np.zeros(table.num_rows, dtype=np.int64)
    for number, values in zip(numbers, names, strict=True):
        # `unique` makes the numbers small again each time, so they cannot overflow.
        joint = np.unique(joint * max(1, len(values)) + number, return_inverse=True)[1].reshape(-1)
    rows = np.unique(joint, return_index=True)[1].tolist()
    return joint, [tuple(values[number[row]] for number, values in zip(numbers, names, strict=True)) for row in rows]
