"""Partition values: text of a Delta log, read by the type of their column."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import MAXYEAR, MINYEAR, UTC, datetime, tzinfo
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from penstock.errors import DataError

__all__ = ["partition_column"]

MOMENT = re.compile(
    r"([+-]?\d{4,})-(\d\d?)-(\d\d?)(?:[ T](\d\d?):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?)?(Z|[+-]\d\d:?\d\d)?", re.ASCII
)
ESCAPED = re.compile(r"(?:\\u00[0-9a-fA-F]{2})+")
NUMBERS = {"nan": "nan", "infinity": "inf", "+infinity": "inf", "-infinity": "-inf"}
BOOLEANS = {"true": True, "false": False}
INTEGER = re.compile(r"[+-]?\d+")
DAY = 86_400_000_000  # microseconds
LATE = 9200  # a year that begins a cycle, whose zones follow the last rules that are known
CYCLE_YEARS, CYCLE_DAYS = 400, 146_097  # after which the calendar, and the days of the week in it, repeat


def partition_column(texts: pa.Array, kind: pa.DataType, zone: tzinfo, what: str) -> pa.Array:
    """Return partition values in their column's type; empty text is null, whatever the type.

    Each value is read once, however many files have it.

    Args:
        texts: The values as the log has them.
        kind: The type of the column.
        zone: Where timestamps without a zone were written.
        what: The column, for messages.

    Raises:
        DataError: If a value is none of that type.

    Example:
        >>> partition_column(pa.array(["7", "", None, "7"]), pa.int32(), UTC, "'n'").to_pylist()
        [7, None, None, 7]
    """
    encoded = texts.dictionary_encode()
    values = []
    for text in encoded.dictionary.to_pylist():
        try:
            values.append(_value(text, kind, zone) if text else None)
            pa.scalar(values[-1], kind)
        except (ValueError, LookupError, ArithmeticError, pa.ArrowException) as error:
            msg = (
                f"Partition column {what} has the value {text!r}, which is no {kind}. A value of the column's type was "
                "expected. The table's log was written wrongly; repair it with the software that wrote it."
            )
            raise DataError(msg) from error
    return pa.array(values, kind).take(encoded.indices)


def _value(text: str, kind: pa.DataType, zone: tzinfo) -> Any:
    """Return one value, as Arrow makes one of the type of it."""
    of = pa.types
    readers: tuple[tuple[Any, Callable[[], Any]], ...] = (
        (of.is_string, lambda: text),
        (of.is_binary, lambda: _binary(text)),
        (of.is_boolean, lambda: BOOLEANS[text.lower()]),
        (of.is_integer, lambda: int(text) if INTEGER.fullmatch(text) else _refuse()),
        (of.is_floating, lambda: _refuse() if "_" in text else float(NUMBERS.get(text.lower(), text))),
        (of.is_decimal, lambda: _decimal(text, kind)),
        (of.is_date, lambda: _micros(text, UTC, zoned=False) // DAY),
        (of.is_timestamp, lambda: _micros(text, zone if kind.tz else UTC, zoned=kind.tz is not None)),
    )
    return next((read for test, read in readers if test(kind)), _refuse)()


def _refuse() -> Any:
    raise ValueError


def _binary(text: str) -> bytes:
    r"""Return bytes that were written as text; some writers escape each byte as \u00ff once more."""
    if ESCAPED.fullmatch(text):
        return bytes.fromhex(text.replace("\\u00", ""))
    return text.encode()


def _decimal(text: str, kind: pa.DataType) -> Decimal:
    """Return a number with the digits after the point that the type has."""
    try:
        number = Decimal(text)
    except InvalidOperation as error:
        raise ValueError from error
    if not number.is_finite():
        raise ValueError
    sign, digits, exponent = number.as_tuple()
    more = int(exponent) + kind.scale
    if more < 0 and any(digits[more:]):
        raise ValueError
    kept = digits[:more] if more < 0 else digits + (0,) * more
    return Decimal((sign, kept or (0,), -kind.scale))


def _micros(text: str, zone: tzinfo, *, zoned: bool) -> int:
    """Return microseconds since the epoch; a zone in the text counts, and is refused where the type has none.

    Years that Python does not have are moved by whole cycles of the calendar to those that it has.
    """
    found = MOMENT.fullmatch(text)
    if found is None or (found[8] and not zoned):
        raise ValueError
    given = datetime.fromisoformat(f"2000-01-01T00:00{found[8]}").tzinfo if found[8] else zone
    year = int(found[1])
    near = year if MINYEAR <= year <= MAXYEAR else year % CYCLE_YEARS + (CYCLE_YEARS if year < MINYEAR else LATE)
    moment = datetime(near, *(int(found[at] or 0) for at in range(2, 7)), tzinfo=given)  # type: ignore[arg-type, misc]
    fraction = (found[7] or "").ljust(9, "0")
    if int(fraction[6:]):
        raise ValueError
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    days = since.days + (year - near) // CYCLE_YEARS * CYCLE_DAYS
    return (days * 86_400 + since.seconds) * 1_000_000 + int(fraction[:6])
