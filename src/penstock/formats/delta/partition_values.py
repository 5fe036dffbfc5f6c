"""Partition values of a Delta log, which are text, in the type of their column."""

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
LATE_CYCLE = 9200  # the first year of a cycle, in which zones follow their newest rules
CYCLE_YEARS, CYCLE_DAYS = 400, 146_097  # the period of the calendar and its days of the week


def partition_column(texts: pa.Array, kind: pa.DataType, zone: tzinfo, what: str) -> pa.Array:
    """Return partition values in their column's type; empty text is null in all types.

    Args:
        texts: The values in the log. Each is parsed once, however many files have it.
        kind: The type of the column.
        zone: The zone of timestamps without one.
        what: The column, for messages.

    Example:
        >>> partition_column(pa.array(["7", "", None, "7"]), pa.int32(), UTC, "'n'").to_pylist()
        [7, None, None, 7]
    """
    encoded = texts.dictionary_encode()
    values = []
    for text in encoded.dictionary.to_pylist():
        try:
            values.append(_parse(text, kind, zone) if text else None)
            pa.scalar(values[-1], kind)
        except (ValueError, LookupError, ArithmeticError, pa.ArrowException) as error:
            raise DataError(
                f"Partition column {what} has the value {text!r}, which is not {kind}; expected a value of the column's type. "
                "The table's log is wrong; repair it with the software that wrote it."
            ) from error
    return pa.array(values, kind).take(encoded.indices)


def _parse(text: str, kind: pa.DataType, zone: tzinfo) -> Any:
    """Return one value as Arrow accepts it for a type."""
    of = pa.types
    parsers: tuple[tuple[Any, Callable[[], Any]], ...] = (
        (of.is_string, lambda: text),
        (of.is_binary, lambda: _parse_binary(text)),
        (of.is_boolean, lambda: BOOLEANS[text.lower()]),
        (of.is_integer, lambda: int(text) if INTEGER.fullmatch(text) else _refuse()),
        (of.is_floating, lambda: _refuse() if "_" in text else float(NUMBERS.get(text.lower(), text))),
        (of.is_decimal, lambda: _parse_decimal(text, kind)),
        (of.is_date, lambda: _parse_micros(text, UTC, zoned=False) // DAY),
        (of.is_timestamp, lambda: _parse_micros(text, zone if kind.tz else UTC, zoned=kind.tz is not None)),
    )
    return next((parse for test, parse in parsers if test(kind)), _refuse)()


def _refuse() -> Any:
    raise ValueError


def _parse_binary(text: str) -> bytes:
    r"""Return the bytes of text; some writers escape each byte as \u00ff."""
    if ESCAPED.fullmatch(text):
        return bytes.fromhex(text.replace("\\u00", ""))
    return text.encode()


def _parse_decimal(text: str, kind: pa.DataType) -> Decimal:
    """Return a number with the scale of a type."""
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
    scaled = digits[:more] if more < 0 else digits + (0,) * more
    return Decimal((sign, scaled or (0,), -kind.scale))


def _parse_micros(text: str, zone: tzinfo, *, zoned: bool) -> int:
    """Return microseconds since the epoch; a zone in the text takes precedence, and is refused if the type has none.

    Years outside the range of Python are shifted into it by whole cycles of the calendar.
    """
    match = MOMENT.fullmatch(text)
    if match is None or (match[8] and not zoned):
        raise ValueError
    given = datetime.fromisoformat(f"2000-01-01T00:00{match[8]}").tzinfo if match[8] else zone
    year = int(match[1])
    near = year if MINYEAR <= year <= MAXYEAR else year % CYCLE_YEARS + (CYCLE_YEARS if year < MINYEAR else LATE_CYCLE)
    moment = datetime(near, *(int(match[at] or 0) for at in range(2, 7)), tzinfo=given)  # type: ignore[arg-type, misc]
    fraction = (match[7] or "").ljust(9, "0")
    if int(fraction[6:]):
        raise ValueError
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    days = since.days + (year - near) // CYCLE_YEARS * CYCLE_DAYS
    return (days * 86_400 + since.seconds) * 1_000_000 + int(fraction[:6])
