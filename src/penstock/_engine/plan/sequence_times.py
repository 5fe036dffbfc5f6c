"""When rows were: a unit's columns of times and groups become numbers, and its sequences are found by them."""

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
from penstock._engine.plan.sequence_find import Line, Rule, Times, first_unordered, starts
from penstock._engine.plan.sequence_links import NotInOrderError, extended
from penstock._engine.read.reader import UNCOUNTED, Reader, Unit, UnitTable
from penstock.errors import ArgumentError, DataChangedError, DataError, UnorderedError
from penstock.model import IntArray, SequenceLinks, Units

__all__ = ["Found", "Moments", "Timeline", "rule_of"]

SIGN = np.uint64(1 << 63)
MOST_TICKS = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moments:
    """When each row of a unit was, and which group it is of.

    Attributes:
        times: When.
        groups: The group, as a number of `names`; None where all are of one.
        names: What the groups are called, in all units alike.
    """

    times: Times
    groups: IntArray | None = None
    names: Sequence[Hashable] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Found:
    """The sequences of a unit.

    Attributes:
        line: Rows in such an order that those of a sequence are neighbours; those of other units come after the unit's own.
        places: Where in the line each sequence begins, in the order of their first rows.
        units: The unit of each row that is not the unit's own.
        rows: Which row of that unit it is.
    """

    line: IntArray
    places: IntArray
    units: IntArray
    rows: IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """Finds the sequences of units.

    Attributes:
        reader: What reads them.
        sequence: What is looked for.
        rule: The same, in the numbers that times become.
        chain: What lies at the borders of units, where sequences go on from one to the next.
    """

    reader: Reader
    sequence: sequences.Sequence
    rule: Rule
    chain: SequenceLinks | None = None

    @classmethod
    def of(cls, reader: Reader, sequence: sequences.Sequence, chain: SequenceLinks | None = None) -> Timeline:
        """Return what finds sequences in the units of a table."""
        return cls(reader=reader, sequence=sequence, rule=rule_of(sequence, reader.snapshot.schema), chain=chain)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that tell when rows were, and their groups."""
        return tuple(dict.fromkeys((self.sequence.by, *self.sequence.groups)))

    def read(self, unit: Unit, columns: Sequence[str], blobs: Sequence[str] = ()) -> UnitTable:
        """Return the rows of a unit, of which only the sequences have been counted, with the columns needed here."""
        return self.reader.read(replace(unit, count=UNCOUNTED), list(dict.fromkeys([*columns, *self.columns])), blobs)

    def count(self, unit: Unit) -> int:
        """Return how many sequences there are in a unit, where none goes on in another."""
        return len(starts(self._line(self.moments(unit, self.read(unit, ()))), self.rule))

    def found(self, index: int, unit: Unit, part: UnitTable) -> Found:
        """Return the sequences that begin in a unit.

        Raises:
            DataChangedError: If there are more or fewer than were counted.
            DataError: If it is not known when a row was.
        """
        moments, none = self.moments(unit, part), np.zeros(0, dtype=np.int64)
        if self.chain is None:
            line = self._line(moments)
            places, units, rows = starts(line, self.rule), none, none
        else:
            stored = np.arange(part.count) if part.selected is None else part.selected
            more = extended(self.chain, index, stored, moments.times, moments.groups, self.rule.length)
            line, units, rows = more.line, more.units, more.rows
            places = starts(line, self.rule, more.free)
        if len(places) != unit.count:
            msg = (
                f"{self.reader.where(unit)}: {len(places)} sequences were found where the plan has {unit.count}. The file was "
                "changed after the table was opened. Open the table again; a state saved before cannot be resumed."
            )
            raise DataChangedError(msg)
        return Found(line=line.rows, places=places[np.argsort(line.rows[places])], units=units, rows=rows)

    def moments(self, unit: Unit, part: UnitTable) -> Moments:
        """Return when each row of a unit was, and its group.

        Raises:
            DataError: If it is not known when.
            UnorderedError: If rows do not lie in the order of time, and that is asked for.
        """
        by, column = self.sequence.by, part.table.column(self.sequence.by)
        valid = dtypes.valid(_one_chunk(column))
        if valid is not None and not valid.all():
            raise self._unknown(unit, part, int(valid.argmin()), "null")
        try:
            times = _times(column)
        except pa.ArrowInvalid as error:
            msg = (
                f"{self.reader.where(unit)}, column {by!r}: it holds values that 64 bits cannot count: {error}. "
                "Sequences go by smaller numbers. Write the times in another column."
            )
            raise DataError(msg) from error
        if times.dtype.kind == "f" and not np.isfinite(times).all():
            odd = int(np.isfinite(times).argmin())
            raise self._unknown(unit, part, odd, str(times[odd]))
        groups, names = _groups(part.table, self.sequence.groups)
        row = None if self.sequence.unordered == "sort" else first_unordered(times, groups, self.rule.length)
        if row is not None:
            msg = (
                f"{self._where(unit, part, row)}, column {by!r}: it is earlier than the row before it{self._same}, and "
                'unordered="raise" was asked for. Write the table in the order of time, or use unordered="sort".'
            )
            raise UnorderedError(msg)
        return Moments(times=times, groups=groups, names=names)

    def not_in_order(self, error: NotInOrderError, units: Units) -> UnorderedError:
        """Return what is wrong with the order of units, as an error that says where."""
        unit, before = (Unit.of(units, number) for number in (error.unit, error.before))
        where = f"{self.reader.where(unit)}, row {unit.first + error.row}, column {self.sequence.by!r}"
        return UnorderedError(
            f"{where}: it is earlier than a row{self._same} in {self.reader.where(before)}, which lies before it. "
            'scope="table" needs row groups that follow one another in time. Write the table in the order of time, or use '
            'scope="row_group".'
        )

    @property
    def _same(self) -> str:
        """Which rows are compared, for messages."""
        return f" of the same {' and '.join(map(repr, self.sequence.groups))}" if self.sequence.groups else ""

    def _line(self, moments: Moments) -> Line:
        return Line.of(moments.times, moments.groups)

    def _where(self, unit: Unit, part: UnitTable, row: int) -> str:
        return f"{self.reader.where(unit)}, row {int(part.row_numbers()[row])}"

    def _unknown(self, unit: Unit, part: UnitTable, row: int, what: str) -> DataError:
        name = self.sequence.by
        remedy = f"penstock.col({name!r}).is_not_null()" if what == "null" else f"penstock.col({name!r}).between(low, high)"
        return DataError(
            f"{self._where(unit, part, row)}, column {name!r}: the value is {what}, and a sequence needs to know when each row "
            f"was. Keep the rows that say: .where({remedy})."
        )


def rule_of(sequence: sequences.Sequence, schema: pa.Schema) -> Rule:
    """Return what makes neighbours a sequence, in the numbers that the times of a table become.

    Raises:
        ArgumentError: If a column cannot tell times or groups, or the gap is not of the kind that times are.

    Example:
        >>> rule_of(sequences.Sequence(length=2, by="t", gap=1.5), pa.schema({"t": pa.decimal128(9, 2)}))
        Rule(length=2, gap=150, overlap=True)
    """
    kind = _plain_type(schema.field(sequence.by).type)
    unit = _nanoseconds(kind)
    if unit is None and not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        msg = (
            f"Sequence got by={sequence.by!r}, which is a column of {kind}. Numbers, decimals, dates or times were expected. "
            "Give the column that says when a row was."
        )
        raise ArgumentError(msg)
    for name in sequence.groups:
        inner = _plain_type(schema.field(name).type)
        if pa.types.is_nested(inner) or pa.types.is_floating(inner):
            msg = (
                f"Sequence got group={name!r}, which is a column of {inner}. Whole numbers, text, bytes, dates or times were "
                "expected, which are equal or not. Give such a column."
            )
            raise ArgumentError(msg)
    return Rule(length=sequence.span, gap=_ticks(sequence, kind, unit), overlap=sequence.overlap)


def _ticks(sequence: sequences.Sequence, kind: pa.DataType, unit: Fraction | None) -> int | float | None:
    """Return a gap in the numbers that times become; None where it is no bound."""
    gap = sequence.gap
    if gap is None:
        return None
    if sequences.is_time(gap) != (unit is not None):
        given = "is a length of time" if unit is None else "is no length of time"
        wanted = "a number" if unit is None else "datetime.timedelta(...)"
        msg = f"Sequence got gap={gap!r}, which {given}, and column {sequence.by!r} is of {kind}. Give {wanted}."
        raise ArgumentError(msg)
    if pa.types.is_floating(kind):
        most: Any = float(sequences.ticks(gap, Fraction(1)))
    else:
        step = unit or Fraction(1, 10**kind.scale if pa.types.is_decimal(kind) else 1)
        counted = sequences.ticks(gap, step)
        most = inf if counted == inf else floor(counted)
    return None if most >= (inf if pa.types.is_floating(kind) else MOST_TICKS) else most


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values themselves."""
    if isinstance(kind, pa.BaseExtensionType):
        return _plain_type(kind.storage_type)
    return _plain_type(kind.value_type) if dtypes.is_encoded(kind) else kind


def _nanoseconds(kind: pa.DataType) -> Fraction | None:
    """Return what one stands for in a column of dates or times; None for other columns."""
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
    """Return dates and times as whole numbers, all else as it is."""
    if _nanoseconds(array.type) is None:
        return array
    return array.cast(pa.int32() if array.type.bit_width == 32 else pa.int64())  # noqa: PLR2004 - its bits


def _numbers(array: pa.Array) -> pa.Array:
    """Return dates, times and decimals as whole numbers, other numbers as they are."""
    kind = array.type
    if pa.types.is_decimal(kind):
        # The same bits without a scale are how many of the smallest step there are.
        wide = array.cast(pa.decimal128(kind.precision, kind.scale)) if kind.bit_width < 128 else array  # noqa: PLR2004 - its bits
        plain = (pa.decimal128 if wide.type.bit_width == 128 else pa.decimal256)(kind.precision, 0)  # noqa: PLR2004 - the same
        return pa.Array.from_buffers(plain, len(wide), wide.buffers(), offset=wide.offset).cast(pa.int64())
    return _plain_times(array)


def _times(column: pa.ChunkedArray) -> Times:
    """Return when rows were, in numbers that sort alike and are as far from one another."""
    found: Times = _numbers(_one_chunk(column)).to_numpy(zero_copy_only=False)
    if found.dtype.kind == "f":
        return found.astype(np.float64)
    return found.astype(np.uint64) if found.dtype.kind == "u" else found.astype(np.int64).view(np.uint64) ^ SIGN


def _groups(table: pa.Table, columns: Sequence[str]) -> tuple[IntArray | None, Sequence[Hashable]]:
    """Return the group of each row, and what groups are called; null is a group too."""
    if not columns:
        return None, ()
    encoded = [_plain_times(_one_chunk(table.column(name))).dictionary_encode(null_encoding="encode") for name in columns]
    numbers = [one.indices.to_numpy(zero_copy_only=False).astype(np.int64) for one in encoded]
    names = [one.dictionary.to_pylist() for one in encoded]
    if len(columns) == 1:
        return numbers[0], names[0]
    joint = np.zeros(table.num_rows, dtype=np.int64)
    for number, values in zip(numbers, names, strict=True):
        # Numbers are made small again each time, so that they cannot overflow.
        joint = np.unique(joint * max(1, len(values)) + number, return_inverse=True)[1].reshape(-1)
    rows = np.unique(joint, return_index=True)[1].tolist()
    return joint, [tuple(values[number[row]] for number, values in zip(numbers, names, strict=True)) for row in rows]
