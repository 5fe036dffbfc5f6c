"""`Sequence`: which rows form a sequence, by their order in time, their distance and their groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from math import inf
from operator import index
from typing import Any, Literal, SupportsIndex, TypeAlias, get_args

import numpy as np

from penstock.errors import ArgumentError
from penstock.schema import Field

__all__ = ["Gap", "Scope", "Sequence", "Unordered"]

Gap: TypeAlias = int | float | Decimal | timedelta | np.timedelta64
Scope: TypeAlias = Literal["row_group", "table"]
Unordered: TypeAlias = Literal["sort", "raise"]

NANOSECONDS = {
    "W": Fraction(604_800 * 10**9),
    "D": Fraction(86_400 * 10**9),
    "h": Fraction(3_600 * 10**9),
    "m": Fraction(60 * 10**9),
    "s": Fraction(10**9),
    "ms": Fraction(10**6),
    "us": Fraction(10**3),
    "ns": Fraction(1),
    "ps": Fraction(1, 10**3),
    "fs": Fraction(1, 10**6),
    "as": Fraction(1, 10**9),
}
"""The nanoseconds of each unit of NumPy and Arrow that has a fixed length."""

MAX_ROWS = 2**62
"""The limit on the rows that a sequence spans, so that row numbers fit 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """Rows that follow one another in time and are returned together; the argument of `Dataset.sequence`.

    Rows are taken in the order of `by`. Rows form a sequence if `length` of them follow one another and none is further than
    `gap` from the row before it.

    Args:
        length: Rows of a sequence, all of which are returned.
        by: The column with the time of a row: numbers, decimals, dates or times.
        offsets: The rows that are returned, instead of `length`: numbers such as `(-2, -1, 0)`. The smallest is the first row
            of the sequence and the largest its last. With columns for each offset, as in
            `{-1: ["image"], 0: ["image", "label"]}`, the returned columns are `"image/-1"`, `"image/0"` and `"label/0"`;
            names can be regular expressions.
        gap: The largest distance of two neighbours: a number, or a `timedelta` for times. The default is no limit.
        overlap: Whether sequences can share rows. If not, each starts after the end of the one before it.
        group: One or several columns that are equal in all rows of a sequence, such as a user. Rows of other groups can be
            between them.
        scope: Where the rows of a sequence are: in one "row_group", or anywhere in the "table". The row groups of a table then
            have to be in the order of time, at least those of each group.
        unordered: What happens if rows of a row group are not in the order of time: "sort" or "raise".

    Raises:
        ArgumentError: If an argument is not valid.

    Example:
        >>> Sequence(length=3, by="time", gap=10)
        Sequence(length=3, by='time', gap=10)
        >>> Sequence(offsets={1: ["x", "y"], -1: ["x"]}, by="time").span
        3
    """

    length: int | None = None
    by: str
    offsets: Iterable[int] | Mapping[int, Iterable[str | Field]] | None = None
    gap: Gap | None = None
    overlap: bool = True
    group: str | Iterable[str] | None = None
    scope: Scope = "row_group"
    unordered: Unordered = "sort"

    def __post_init__(self) -> None:
        """Check the arguments and bring them into one form."""
        if (self.length is None) == (self.offsets is None):
            msg = (
                f"Sequence() got length={self.length!r} and offsets={self.offsets!r}; expected one of them, for example "
                "length=3 or offsets=(-1, 0, 1)."
            )
            raise ArgumentError(msg)
        if self.length is not None:
            object.__setattr__(self, "length", _integer("length", self.length, 1))
        else:
            object.__setattr__(self, "offsets", _offsets(self.offsets))
        if self.span > MAX_ROWS:
            name = "offsets" if self.length is None else "length"
            raise ArgumentError(f"Sequence() got {name} of {self.span} rows; expected at most 2**62 rows.")
        if not isinstance(self.by, str):
            msg = f"Sequence() got by={self.by!r}; expected the name of the column with the times, for example by='time'."
            raise ArgumentError(msg)
        object.__setattr__(self, "group", _group(self.group))
        if not isinstance(self.overlap, bool):
            raise ArgumentError(f"Sequence() got overlap={self.overlap!r}; expected a bool, for example overlap=False.")
        for name, known in (("scope", get_args(Scope)), ("unordered", get_args(Unordered))):
            if getattr(self, name) not in known:
                one, other = map(repr, known)
                raise ArgumentError(f"Sequence() got {name}={getattr(self, name)!r}; expected {one} or {other}.")
        if self.gap is not None and _size(self.gap) < 0:
            raise ArgumentError(f"Sequence() got gap={self.gap!r}; expected a non-negative number or timedelta, or None.")

    @property
    def steps(self) -> range | tuple[int, ...]:
        """The offsets of the returned rows, ascending."""
        return range(self.length) if self.length is not None else tuple(self.offsets or ())

    @property
    def span(self) -> int:
        """The number of rows from the first to the last of a sequence, also those that are not returned."""
        return self.steps[-1] - self.steps[0] + 1

    @property
    def columns(self) -> Mapping[int, tuple[str, ...]] | None:
        """The returned columns of each offset; None if they are the same for all."""
        return self.offsets if isinstance(self.offsets, dict) else None

    @property
    def groups(self) -> tuple[str, ...]:
        """The columns that are equal in all rows of a sequence."""
        return tuple(self.group or ())

    def describe(self) -> Mapping[str, Any]:
        """Return what decides which sequences there are, without the selection of their rows and columns.

        Example:
            >>> Sequence(length=2, by="time", gap=timedelta(seconds=1)).describe()["gap"]
            '1000000000ns'
        """
        gap = None if self.gap is None else f"{_size(self.gap)}{'ns' if is_time(self.gap) else ''}"
        description = {"length": self.span, "gap": gap, "group": list(self.groups)}
        return {**description, **{name: getattr(self, name) for name in ("by", "overlap", "scope", "unordered")}}

    def __hash__(self) -> int:
        """Return a hash of the repr."""
        return hash(repr(self))

    def __repr__(self) -> str:
        """Return the sequence as Python."""
        options = {column.name: getattr(self, column.name) for column in fields(self)}
        if self.groups:
            options["group"] = self.groups[0] if len(self.groups) == 1 else self.groups
        changed = [f"{name}={value!r}" for name, value in options.items() if value != DEFAULTS[name]]
        return f"Sequence({', '.join(changed)})"


DEFAULTS = {column.name: column.default for column in fields(Sequence)}


def is_time(gap: Gap) -> bool:
    """Return whether a gap is a duration and not a number."""
    return isinstance(gap, timedelta | np.timedelta64)


def _size(gap: object) -> Fraction | float:
    """Return a gap as a number; a duration in nanoseconds."""
    if isinstance(gap, timedelta):
        return Fraction(gap.days * 86_400 * 10**6 + gap.seconds * 10**6 + gap.microseconds) * 1000
    if isinstance(gap, np.timedelta64) and not np.isnat(gap) and np.datetime_data(gap.dtype)[0] in NANOSECONDS:
        unit, count = np.datetime_data(gap.dtype)
        return int(gap.view(np.int64)) * count * NANOSECONDS[unit]
    number = isinstance(gap, int | float | Decimal | np.integer | np.floating) and not isinstance(gap, bool | np.timedelta64)
    if not number or gap != gap:  # noqa: PLR0124 - True for NaN
        raise ArgumentError(f"Sequence() got gap={gap!r}; expected a number or a timedelta, for example gap=10.")
    plain: Any = gap.item() if isinstance(gap, np.generic) else gap
    return float(plain) if abs(plain) == inf else Fraction(plain)


def ticks(gap: Gap, unit: Fraction) -> Fraction | float:
    """Return a gap in a unit: nanoseconds for durations, 1 for numbers.

    Example:
        >>> ticks(timedelta(milliseconds=3), NANOSECONDS["us"])
        Fraction(3000, 1)
    """
    return _size(gap) / unit


def _integer(name: str, number: object, minimum: int | None = None) -> int:
    """Return an integer, which is `minimum` at least."""
    integer = index(number) if isinstance(number, SupportsIndex) and not isinstance(number, bool | np.ndarray) else None
    if integer is None or (minimum is not None and integer < minimum):
        expected = "integers, for example offsets=(-1, 0, 1)" if minimum is None else "a positive integer, for example length=3"
        raise ArgumentError(f"Sequence() got {name}={number!r}; expected {expected}.")
    return integer


def _offsets(given: Any) -> tuple[int, ...] | dict[int, tuple[str, ...]]:
    """Return offsets in ascending order, with the columns of each if there are any."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise ArgumentError(f"Sequence() got offsets={given!r}; expected integers, for example offsets=(-1, 0, 1).")
    numbers = sorted(_integer("offsets", number) for number in given)
    if not numbers or len(set(numbers)) < len(numbers):
        raise ArgumentError(f"Sequence() got offsets={given!r}; expected at least one offset, and each one once.")
    if not isinstance(given, Mapping):
        return tuple(numbers)
    return {number: _names(number, given[number]) for number in numbers}


def _names(number: int, given: Any) -> tuple[str, ...]:
    """Return the columns at one offset."""
    names = None if isinstance(given, str | bytes) or not isinstance(given, Iterable) else list(given)
    if names is None or not all(isinstance(name, str | Field) for name in names):
        msg = (
            f"Sequence() got {given!r} as columns of offset {number}; expected a list of names, regular expressions or fields, "
            f"for example {{{number}: ['image', 'label']}}."
        )
        raise ArgumentError(msg)
    return tuple(dict.fromkeys(name.name if isinstance(name, Field) else name for name in names))


def _group(given: Any) -> tuple[str, ...] | None:
    """Return the names of the group columns."""
    if given is None:
        return None
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else ()
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        msg = f"Sequence() got group={given!r}; expected the name of a column, or several names, for example group='user'."
        raise ArgumentError(msg)
    return names
