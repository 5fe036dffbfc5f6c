"""Column names and regular expressions, as users pass them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from penstock.errors import ColumnNotFoundError

__all__ = ["maps_run_last", "matching_names"]


@contextmanager
def maps_run_last(maps: Sequence[object]) -> Iterator[None]:
    """Add to the error for a missing column, if the dataset has maps, that clauses cannot use the columns of maps."""
    try:
        yield
    except ColumnNotFoundError as error:
        if not maps:
            raise
        hint = (
            "Maps run last, whatever the order of calls, so only later maps can use a column that a map returns. Return the "
            "columns that you want from the map."
        )
        raise ColumnNotFoundError(f"{error} {hint}") from None


def matching_names(pattern: str, names: Sequence[str], table: str) -> list[str]:
    """Return the names that a name or a regular expression selects; an existing name is never read as a pattern."""
    if pattern in names:
        return [pattern]
    try:
        matches = [name for name in names if re.fullmatch(pattern, name)]
    except re.error:
        matches = []
    if not matches:
        raise ColumnNotFoundError.of(pattern, names, table=table)
    return matches
