"""Names of columns, as users give them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from penstock.errors import ColumnNotFoundError

__all__ = ["before_maps", "matching"]


@contextmanager
def before_maps(maps: Sequence[object]) -> Iterator[None]:
    """Tell of a name that is not in the table, where there are maps, that they act later than what asked for it."""
    try:
        yield
    except ColumnNotFoundError as error:
        if not maps:
            raise
        hint = (
            "Maps act last, whatever the order of calls: a column that a map makes can be used by maps after it, and by no "
            "other clause. Let the map return the columns that are wanted."
        )
        raise ColumnNotFoundError(f"{error} {hint}") from None


def matching(pattern: str, names: Sequence[str], table: str) -> list[str]:
    """Return the names that a name or a regular expression means; a name means itself before it is a pattern."""
    if pattern in names:
        return [pattern]
    try:
        found = [name for name in names if re.fullmatch(pattern, name)]
    except re.error:
        found = []
    if not found:
        raise ColumnNotFoundError.of(pattern, names, table=table)
    return found
