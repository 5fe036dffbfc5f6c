"""Warnings about a table that its owner can act on."""

from __future__ import annotations

import re

import numpy as np

from penstock.cli._facts import ColumnFacts, TableFacts
from penstock.cli._tables import format_bytes, grouped
from penstock.codecs import Unknown
from penstock.errors import listed

__all__ = ["advice"]

LARGE_GROUP = 512_000_000
SMALL_GROUP, MANY_GROUPS = 100_000, 100
SMALL_FILE, MANY_FILES = 1_000_000, 100
INDEX_WORTH = 16_000_000  # bytes of a row group that are too many to read for one row
INTEGERS = r"u?int\d+|bool"


def advice(facts: TableFacts) -> list[str]:
    """Return the warnings; an empty list for a well-made table."""
    return [*_layout(facts), *_columns(facts)]


def _layout(facts: TableFacts) -> list[str]:
    """Return warnings about the sizes of files and row groups."""
    warnings, sizes = [], facts.group_bytes
    large = int((sizes > LARGE_GROUP).sum())
    if large:
        warnings.append(
            f"{large} of {len(sizes)} row groups are larger than {format_bytes(LARGE_GROUP)}, up to "
            f"{format_bytes(sizes.max())}: "
            "each is held in memory as a whole. Write the table with row groups of about 64 MB."
        )
    if len(sizes) >= MANY_GROUPS and np.median(sizes) < SMALL_GROUP:
        warnings.append(
            f"{grouped(len(sizes))} row groups of {format_bytes(float(np.median(sizes)))} each, by their median, take a "
            "request "
            "per column each. Write the table with row groups of about 64 MB, or as large as the table."
        )
    if facts.files >= MANY_FILES and facts.bytes / facts.files < SMALL_FILE:
        warnings.append(
            f"{grouped(facts.files)} files of {format_bytes(facts.bytes / facts.files)} each, on average, take long to "
            "list and "
            "open. Write the table with fewer files."
        )
    return warnings


def _columns(facts: TableFacts) -> list[str]:
    """Return warnings about columns."""
    warnings = []
    bare = [column.name for column in facts.columns if _lacks_statistics(column, facts)]
    if bare:
        warnings.append(
            f"There are no statistics, or not in all row groups, of {_names(bare)}: a filter on them reads every row group. "
            "Write the table with statistics."
        )
    inside = [column for column in facts.columns if not column.partition]
    if inside and facts.group_bytes.max(initial=0) > INDEX_WORTH and not any(column.page_index for column in inside):
        warnings.append(
            f"There is no page index, and row groups have up to {format_bytes(facts.group_bytes.max())}: reading one row reads "
            "its whole row group. Write the table with a page index."
        )
    holed = [column.name for column in inside if column.nulls and not column.shape and re.fullmatch(INTEGERS, column.dtype)]
    if holed:
        warnings.append(
            f"There are nulls in the integers or booleans of {_names(holed)}, which are an error by default. Set a policy: "
            f".nulls(penstock.Fill(0), {holed[0]!r}), or penstock.Mask()."
        )
    return [*warnings, *(_unknown(column.name, column.codec) for column in inside if isinstance(column.codec, Unknown))]


def _unknown(name: str, codec: Unknown) -> str:
    return (
        f"Column {name!r} was written with the unknown codec {codec.called!r}. Register its class with "
        "penstock.codecs.register, or leave the column out with .select(...)."
    )


def _lacks_statistics(column: ColumnFacts, facts: TableFacts) -> bool:
    """Return whether a filter on a column would gain from missing statistics."""
    wholly_null = column.nulls is not None and column.nulls == int(facts.group_rows.sum())
    return column.filterable and not (column.partition or column.bounded or wholly_null) and len(facts.group_rows) > 1


def _names(names: list[str]) -> str:
    return listed((repr(name) for name in names), limit=6)
