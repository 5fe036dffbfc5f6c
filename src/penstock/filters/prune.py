"""Tests of filters on arrays and on statistics.

This module is below the expressions and knows arrays only. Each test of a column has `rows`, which returns true, false or
null for each value, and `verdict`, which returns the possible results within bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock._arrow_types import converted
from penstock.errors import FilterError
from penstock.filters.literals import array_of, kind, misfit, nearest, plain
from penstock.model import BoolArray, ColumnRange, IntArray
from penstock.stable_hash import is_hashable, stable_hash

OPS = {"==": pc.equal, "!=": pc.not_equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal}
# The operator to use if a literal is between two values of the column's type: with the lower value, with the upper value.
_BELOW = {"<": "<=", "<=": "<=", ">": ">", ">=": ">", "==": "never", "!=": "always"}
_ABOVE = {"<": "<", "<=": "<", ">": ">=", ">=": ">=", "==": "never", "!=": "always"}
# Casts that keep the order of bounds: not numbers to text ("10" < "9"), nor floats to exact numbers (they are rounded).
_ORDERLY = {"bytes text", "date timestamp", "decimal float", "decimal int", "int decimal", "int float"}


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """The possible results of a filter for the rows of each file or row group.

    Attributes:
        can_true: Where it can be true for a row, which then matches.
        can_false: Where it can be false for a row.
        can_null: Where it can be null for a row, which then does not match.

    Example:
        >>> yes, no = np.array([True]), np.array([False])
        >>> Verdict(yes, no, no).keeps_all.tolist()
        [True]
    """

    can_true: BoolArray
    can_false: BoolArray
    can_null: BoolArray

    @property
    def may_keep(self) -> BoolArray:
        """Where rows can match; other files and row groups are not read."""
        return self.can_true

    @property
    def keeps_all(self) -> BoolArray:
        """Where every row matches, so that the filter is not evaluated."""
        return ~self.can_false & ~self.can_null

    def __invert__(self) -> Verdict:
        return Verdict(self.can_false, self.can_true, self.can_null)

    def __and__(self, other: Verdict) -> Verdict:
        null = self.can_null & (other.can_true | other.can_null) | other.can_null & self.can_true
        return Verdict(self.can_true & other.can_true, self.can_false | other.can_false, null)

    def __or__(self, other: Verdict) -> Verdict:
        return ~(~self & ~other)


@dataclass(frozen=True, slots=True, eq=False)
class Bounds:
    """Bounds of a column (null if not known), and where it can have values and nulls."""

    low: pa.Array | pa.Scalar
    high: pa.Array | pa.Scalar
    some: BoolArray
    null: BoolArray


def column_bounds(ranges: Mapping[str, ColumnRange], name: str | None, type_: pa.DataType, rows: IntArray) -> Bounds:
    """Return the bounds of a column by statistics; -1 in `rows` or nulls means not known."""
    present = rows != 0
    if name is None or name not in ranges:
        return Bounds(pa.nulls(len(rows), type_), pa.nulls(len(rows), type_), present, present)
    stated = ranges[name]
    some = present & ((stated.nulls != rows) | (rows < 0))
    return Bounds(_bound(stated.low, type_), _bound(stated.high, type_), some, present & (stated.nulls != 0))


def _bound(stated: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return bounds in the column's type, null if they cannot be converted."""
    stored, wanted = kind(plain(stated.type)), kind(type_)
    if stored not in (wanted, "text", "null") and f"{stored} {wanted}" not in _ORDERLY:
        return pa.nulls(len(stated), type_)
    try:
        cast = converted(stated.cast(plain(stated.type)), type_)
    except pa.ArrowException:
        return pa.nulls(len(stated), type_)
    # Some writers use NaN as a bound.
    return pc.if_else(pc.is_nan(cast), pa.scalar(None, type_), cast) if wanted == "float" else cast


def compare(op: str, one: Bounds, two: Bounds) -> Verdict:
    """Return the possible results of `one op two`."""
    if op in (">", ">="):
        return compare(op.replace(">", "<"), two, one)
    if op in ("!=", "never"):
        return ~compare("==" if op == "!=" else "always", one, two)
    some, null = one.some & two.some, one.null | two.null
    if op == "always":
        return Verdict(some, np.zeros_like(some), null)
    if op == "==":
        true = _may(pc.less_equal, one.low, two.high) & _may(pc.greater_equal, one.high, two.low)
        false = _may(pc.not_equal, one.low, two.high) | _may(pc.not_equal, one.high, two.low)
    else:
        holds, fails = (pc.less, pc.greater_equal) if op == "<" else (pc.less_equal, pc.greater)
        true, false = _may(holds, one.low, two.high), _may(fails, one.high, two.low)
    false |= kind(one.low.type) == "float"  # NaN is outside of all bounds, and compares false
    return Verdict(true & some, false & some, null)


def _may(test: Callable[[Any, Any], Any], one: pa.Array, two: pa.Array) -> BoolArray:
    """Return where a comparison is true or not known."""
    return np.array(pc.fill_null(test(one, two), fill_value=True), np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """A comparison of a column with another, or with a literal in the column's own type, so that nothing is rounded.

    Attributes:
        op: One of `OPS`, or "always" or "never" if the result is the same for all values that are not null.
        literal: An array of one value, since pickling a scalar of nanoseconds needs pandas; None to compare with a column.
    """

    op: str
    literal: Any = None

    @classmethod
    def fit(cls, op: str, value: object, type_: pa.DataType, name: str) -> Comparison:
        """Return the comparison of a plain column with a literal; FilterError if they do not compare."""
        near, side = nearest(value, type_, name)
        if near is None:
            return cls("always" if op == "!=" else "never", pa.nulls(1, type_))
        return cls({-1: _BELOW, 0: {}, 1: _ABOVE}[side].get(op, op), array_of([near], type_))

    def rows(self, values: Any, others: Any = None) -> Any:
        """Return for each value whether its row matches."""
        if self.op in OPS:
            return OPS[self.op](values, others if self.literal is None else self.literal[0])
        return pc.if_else(pc.is_valid(values), self.op == "always", None)

    def verdict(self, column: Bounds, other: Bounds | None = None) -> Verdict:
        """Return the possible results for files or row groups with these bounds."""
        if other is None:
            other = Bounds(self.literal[0], self.literal[0], np.ones(1, np.bool_), np.zeros(1, np.bool_))
        return compare(self.op, column, other)


@dataclass(frozen=True, slots=True, eq=False)
class Membership:
    """Whether a column equals one of several values, which are in ascending order."""

    values: pa.Array

    @classmethod
    def fit(cls, values: Iterable[object], type_: pa.DataType, name: str) -> Membership:
        """Return the membership in those literals that a plain column can hold."""
        sides = {nearest(value, type_, name) for value in values}
        exact = sorted(near for near, side in sides if near is not None and side == 0)
        if kind(type_) == "float" and 0.0 in exact:
            exact[exact.index(0.0) : exact.index(0.0) + 1] = [-0.0, 0.0]  # equal, but different to is_in
        return cls(array_of(exact, type_))

    def rows(self, values: Any) -> Any:
        """Return for each value whether its row matches."""
        return pc.if_else(pc.is_valid(values), pc.is_in(values, value_set=self.values), None)

    def verdict(self, column: Bounds) -> Verdict:
        """Return the possible results for files or row groups with these bounds."""
        if len(self.values) == 0:
            return compare("never", column, column)
        first = self._first_from(column.low)
        true = (first < len(self.values)) & _may(pc.less_equal, self._at(first), column.high)
        proven = true & ~_may(pc.not_equal, column.low, column.high) & (kind(self.values.type) != "float")
        return Verdict(true & column.some, ~proven & column.some, column.null)

    def _first_from(self, low: pa.Array) -> IntArray:
        """Return the index of the first value at or above each bound, by a binary search for all bounds together."""
        start, stop = np.zeros(len(low), np.int64), np.full(len(low), len(self.values))
        for _ in range(len(self.values).bit_length()):
            middle = (start + stop) // 2
            below = ~_may(pc.greater_equal, self._at(middle), low) & (start < stop)
            start, stop = np.where(below, middle + 1, start), np.where(below, stop, middle)
        return start

    def _at(self, places: IntArray) -> pa.Array:
        return self.values.take(pa.array(np.minimum(places, len(self.values) - 1)))


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """Whether a column of bytes has a prefix: the values from the prefix up to the next larger prefix."""

    edges: tuple[Comparison, ...]

    @classmethod
    def fit(cls, prefix: str | bytes, type_: pa.DataType, name: str) -> Prefix:
        """Return the test for a prefix of a plain column, which is read as bytes."""
        if kind(type_) not in ("null", "text" if isinstance(prefix, str) else "bytes"):
            raise misfit(prefix, type_, name, "starts_with() takes a str for a string column, bytes for a binary one.")
        first = prefix.encode() if isinstance(prefix, str) else prefix
        stem = first.rstrip(b"\xff")
        edges = [(">=", first)] + ([("<", stem[:-1] + bytes([stem[-1] + 1]))] if stem else [])
        return cls(tuple(Comparison(op, pa.array([edge], pa.large_binary())) for op, edge in edges))

    def rows(self, values: Any) -> Any:
        """Return for each value whether its row matches."""
        return reduce(pc.and_kleene, (edge.rows(values) for edge in self.edges))

    def verdict(self, column: Bounds) -> Verdict:
        """Return the possible results for files or row groups with these bounds."""
        return reduce(and_, (edge.verdict(column) for edge in self.edges))


@dataclass(frozen=True, slots=True, eq=False)
class Nullness:
    """Whether a column is null."""

    def rows(self, values: Any) -> Any:
        """Return for each value whether its row matches."""
        return pc.is_null(values)

    def verdict(self, column: Bounds) -> Verdict:
        """Return the possible results for files or row groups with these bounds."""
        return Verdict(column.null, column.some, np.zeros_like(column.some))


@dataclass(frozen=True, slots=True, eq=False)
class Hashed:
    """Whether the stable hash of a column is in a half-open range."""

    low: int
    high: int
    seed: int

    @classmethod
    def fit(cls, given: tuple[int, int, int], type_: pa.DataType, name: str) -> Hashed:
        """Return the test for a range and a seed."""
        if not is_hashable(type_):
            raise FilterError(f"Column {name!r} has type {type_}, which has no stable hash. Split by an id: text or a number.")
        return cls(*given)

    def rows(self, values: Any) -> Any:
        """Return for each value whether its row matches."""
        hashes = stable_hash(values, self.seed)
        low, last = min(self.low, 2**64 - 1), max(self.high - 1, 0)
        return pa.chunked_array([(hashes >= np.uint64(low)) & (hashes <= np.uint64(last)) & (self.low < self.high)])

    def verdict(self, column: Bounds) -> Verdict:
        """Return the possible results for files or row groups with these bounds."""
        present = column.some | column.null
        return Verdict(present, present, np.zeros_like(present))
