"""What makes rows a sequence: how many follow one another in time, how close, and where they are looked for."""

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
"""How long the units are that NumPy and Arrow have, those that are always equally long."""

MOST_ROWS = 2**62
"""Rows that a sequence may span, so that places of rows stay within 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """Rows that follow one another in time, handed out together: what `Dataset.sequence` takes.

    Rows are looked at in the order of `by`. Wherever as many as asked for follow one another, none of them further from the
    one before it than `gap`, they make up a sequence.

    Args:
        length: Rows of a sequence, all of which are handed out.
        by: The column that says when a row was: numbers, decimals, dates or times.
        offsets: Which rows are handed out, instead of `length`: numbers such as `(-2, -1, 0)`, of which the smallest is the
            first row of the sequence and the largest its last. With columns for each, as in
            `{-1: ["image"], 0: ["image", "label"]}`, columns are handed out as `"image/-1"`, `"image/0"` and `"label/0"`;
            names may be regular expressions.
        gap: The most that two neighbours may be apart, a number or, of times, a `timedelta`; by default anything.
        overlap: Whether sequences may share rows. Where not, each begins later than the one before it has ended.
        group: A column, or several, that all rows of a sequence have in common, such as a user. Rows of other groups may lie
            between them.
        scope: Where the rows of a sequence lie: in one "row_group", or anywhere in the "table", whose row groups must then
            follow one another in time, those of each group at least.
        unordered: What is done about rows of a row group that do not lie in the order of time: "sort" or "raise".

    Raises:
        ArgumentError: If one of these cannot be meant.

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
        """Check what was given, and put it in one form."""
        if (self.length is None) == (self.offsets is None):
            msg = (
                f"Sequence got length={self.length!r} and offsets={self.offsets!r}. One of them was expected. "
                "Give length=3, or offsets=(-1, 0, 1)."
            )
            raise ArgumentError(msg)
        if self.length is not None:
            object.__setattr__(self, "length", _whole("length", self.length, 1))
        else:
            object.__setattr__(self, "offsets", _offsets(self.offsets))
        if self.span > MOST_ROWS:
            what = "offsets" if self.length is None else "length"
            msg = f"Sequence got {what} of {self.span} rows. At most 2**62 were expected. Give fewer: no table has so many."
            raise ArgumentError(msg)
        if not isinstance(self.by, str):
            msg = f"Sequence got by={self.by!r}. The name of a column was expected. Give the one that says when a row was."
            raise ArgumentError(msg)
        object.__setattr__(self, "group", _group(self.group))
        if not isinstance(self.overlap, bool):
            raise ArgumentError(f"Sequence got overlap={self.overlap!r}. True or False was expected. Give one of them.")
        for name, known in (("scope", get_args(Scope)), ("unordered", get_args(Unordered))):
            if getattr(self, name) not in known:
                one, other = map(repr, known)
                msg = f"Sequence got {name}={getattr(self, name)!r}. {one} or {other} was expected. Give one of them."
                raise ArgumentError(msg)
        if self.gap is not None and _size(self.gap) < 0:
            msg = f"Sequence got gap={self.gap!r}. Rows cannot be less than nothing apart. Give 0 or more, or leave it out."
            raise ArgumentError(msg)

    @property
    def steps(self) -> range | tuple[int, ...]:
        """The offsets of the rows that are handed out, in ascending order."""
        return range(self.length) if self.length is not None else tuple(self.offsets or ())

    @property
    def span(self) -> int:
        """The rows from the first of a sequence to its last, whether all of them are handed out or not."""
        return self.steps[-1] - self.steps[0] + 1

    @property
    def columns(self) -> Mapping[int, tuple[str, ...]] | None:
        """The columns that are handed out of the row at each offset; None where they are the same for all."""
        return self.offsets if isinstance(self.offsets, dict) else None

    @property
    def groups(self) -> tuple[str, ...]:
        """The columns that rows of a sequence have in common."""
        return tuple(self.group or ())

    def describe(self) -> Mapping[str, Any]:
        """Return what decides which sequences there are: not which of their rows and columns are handed out.

        Example:
            >>> Sequence(length=2, by="time", gap=timedelta(seconds=1)).describe()["gap"]
            '1000000000ns'
        """
        gap = None if self.gap is None else f"{_size(self.gap)}{'ns' if is_time(self.gap) else ''}"
        told = {"length": self.span, "gap": gap, "group": list(self.groups)}
        return {**told, **{name: getattr(self, name) for name in ("by", "overlap", "scope", "unordered")}}

    def __hash__(self) -> int:
        """Return a hash that equal ones share."""
        return hash(repr(self))

    def __repr__(self) -> str:
        """Return what it was made with."""
        told = {column.name: getattr(self, column.name) for column in fields(self)}
        if self.groups:
            told["group"] = self.groups[0] if len(self.groups) == 1 else self.groups
        given = [f"{name}={told[name]!r}" for name in told if told[name] != DEFAULTS[name]]
        return f"Sequence({', '.join(given)})"


DEFAULTS = {column.name: column.default for column in fields(Sequence)}


def is_time(gap: Gap) -> bool:
    """Return whether a gap is a length of time, and not just a number."""
    return isinstance(gap, timedelta | np.timedelta64)


def _size(gap: object) -> Fraction | float:
    """Return a gap as a number: of nanoseconds, if it is a length of time."""
    if isinstance(gap, timedelta):
        return Fraction(gap.days * 86_400 * 10**6 + gap.seconds * 10**6 + gap.microseconds) * 1000
    if isinstance(gap, np.timedelta64) and not np.isnat(gap) and np.datetime_data(gap.dtype)[0] in NANOSECONDS:
        unit, count = np.datetime_data(gap.dtype)
        return int(gap.view(np.int64)) * count * NANOSECONDS[unit]
    number = isinstance(gap, int | float | Decimal | np.integer | np.floating) and not isinstance(gap, bool | np.timedelta64)
    if not number or gap != gap:  # noqa: PLR0124 - which is so of what is not a number
        msg = f"Sequence got gap={gap!r}. A number or a timedelta was expected. Give the most that two rows may be apart."
        raise ArgumentError(msg)
    plain: Any = gap.item() if isinstance(gap, np.generic) else gap
    return float(plain) if abs(plain) == inf else Fraction(plain)


def ticks(gap: Gap, unit: Fraction) -> Fraction | float:
    """Return a gap counted in units: of nanoseconds for lengths of time, of 1 for numbers.

    Example:
        >>> ticks(timedelta(milliseconds=3), NANOSECONDS["us"])
        Fraction(3000, 1)
    """
    return _size(gap) / unit


def _whole(name: str, number: object, least: int | None = None) -> int:
    """Return a whole number."""
    whole = index(number) if isinstance(number, SupportsIndex) and not isinstance(number, bool | np.ndarray) else None
    if whole is None or (least is not None and whole < least):
        what = "Whole numbers were expected" if least is None else "A positive whole number was expected"
        raise ArgumentError(f"Sequence got {name}={number!r}. {what}. Give such, like length=3 or offsets=(-1, 0, 1).")
    return whole


def _offsets(given: Any) -> tuple[int, ...] | dict[int, tuple[str, ...]]:
    """Return offsets in ascending order, with the columns of each where there are any."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        msg = f"Sequence got offsets={given!r}. Several whole numbers were expected. Give them, or length= for so many rows."
        raise ArgumentError(msg)
    every = sorted(_whole("offsets", number) for number in given)
    if not every or len(set(every)) < len(every):
        msg = f"Sequence got offsets={given!r}. At least one was expected, and none twice. Give each row once."
        raise ArgumentError(msg)
    if not isinstance(given, Mapping):
        return tuple(every)
    return {number: _names(number, given[number]) for number in every}


def _names(number: int, given: Any) -> tuple[str, ...]:
    """Return the columns at one offset."""
    every = None if isinstance(given, str | bytes) or not isinstance(given, Iterable) else list(given)
    if every is None or not all(isinstance(name, str | Field) for name in every):
        msg = (
            f"Sequence got {given!r} as columns of offset {number}. A list of names, regular expressions or fields was "
            f"expected. Give one: {{{number}: ['image', 'label']}}."
        )
        raise ArgumentError(msg)
    return tuple(dict.fromkeys(name.name if isinstance(name, Field) else name for name in every))


def _group(given: Any) -> tuple[str, ...] | None:
    """Return the columns that tell groups apart."""
    if given is None:
        return None
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else ()
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        msg = f"Sequence got group={given!r}. The name of a column, or several, was expected. Give them, or leave it out."
        raise ArgumentError(msg)
    return names
