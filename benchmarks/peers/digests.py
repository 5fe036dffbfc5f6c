"""What a contender delivered, in a few letters, so that contenders in different interpreters can be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any


def digest(ids: Iterable[int], cells: Iterable[Any]) -> str:
    """Return the name of some rows in their order.

    Example:
        >>> digest([1], [b"x"]) == digest([1], [memoryview(b"x")])
        True
    """
    found = hashlib.blake2b(digest_size=16)
    for number, cell in zip(ids, cells, strict=True):
        found.update(int(number).to_bytes(8, "little"))
        found.update(cell)
    return found.hexdigest()
