"""What rows take in memory, by what a footer says, where that is more than they take on storage."""

from __future__ import annotations

from typing import Any

from penstock._engine import thrift
from penstock._engine.thrift import Only, ThriftError, Wanted, leaves, parse

__all__ = ["row_bytes"]

VALUES, UNCOMPRESSED, SIZES, UNENCODED = 5, 6, 16, 1
BYTES, FIXED = 6, 7
WIDTHS = {0: 1, 1: 4, 2: 8, 3: 8, 4: 4, 5: 8}
"""Bytes of a value in memory by its physical type; old timestamps of twelve bytes take eight."""

OFFSET = 4
"""Bytes that say where a text begins."""

LOOKED_AT = 16
"""Row groups of a file that are looked at."""

_META: Wanted = {
    thrift.META: {thrift.TYPE: int, VALUES: int, UNCOMPRESSED: int, SIZES: {UNENCODED: int}},
}


def row_bytes(footer: bytes) -> float:
    """Return what a row of a file takes in memory: exactly for numbers and lists of them, at least so much for text.

    Text in a dictionary takes little on storage, and some writers tell how much it is without.
    """
    try:
        every, _ = leaves(parse(footer, {thrift.SCHEMA: [thrift.ELEMENT]}))
        tree: Wanted = {thrift.ROWS: int, thrift.CHUNKS: Only(places={leaf.place: _META for leaf in every})}
        groups = parse(footer, {thrift.GROUPS: [tree]}).get(thrift.GROUPS, [])[:LOOKED_AT]
    except ThriftError:
        return 0.0
    rows = sum(group.get(thrift.ROWS, 0) for group in groups)
    taken = 0
    for group in groups:
        chunks = group.get(thrift.CHUNKS) or []
        for leaf in every:
            meta = (chunks[leaf.place] or {}).get(thrift.META, {}) if leaf.place < len(chunks) else {}
            taken += _taken(meta, leaf.element)
    return taken / rows if rows > 0 else 0.0


def _taken(meta: dict[int, Any], element: dict[int, Any]) -> int:
    """Return what the values of a column chunk take in memory."""
    kind: int = meta.get(thrift.TYPE, 0)
    values: int = max(0, meta.get(VALUES, 0))
    if kind == BYTES:
        text: int = max(meta.get(UNCOMPRESSED, 0), meta.get(SIZES, {}).get(UNENCODED, 0))
        return text + OFFSET * values
    width: int = max(0, element.get(thrift.LENGTH, 0)) if kind == FIXED else WIDTHS.get(kind, 0)
    return values * width
