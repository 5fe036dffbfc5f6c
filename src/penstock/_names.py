"""Names of columns, as users give them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock.errors import ColumnNotFoundError

__all__ = ["matching"]


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
