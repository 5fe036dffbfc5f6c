"""What is read of each row of a table, as a question asks for it."""

from __future__ import annotations

from dataclasses import dataclass

from penstock import sequences
from penstock._blobs import MAX_CELL_BYTES
from penstock._engine.query.values import MEMORY_LIMIT, Column, Stack

__all__ = ["ReadSpec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSpec:
    """What is read of each row.

    Attributes:
        columns: The table's columns, and how their nulls and lists are treated.
        stacks: Columns stacked into one.
        row_ids: Whether the columns that say where a row lies are added.
        max_cell_bytes: What one cell may take when it is decoded.
        writable: Whether no array may be a view of memory that others share.
        memory_limit: Bytes that all of it may take in memory.
        sequence: What makes up a sequence, where rows are handed out in sequences.
        skip: Whether bad rows are marked instead of raised.
        permuted: Whether all of it is put in another order, and so to other memory, before anybody gets it.
    """

    columns: tuple[Column, ...]
    stacks: tuple[Stack, ...] = ()
    row_ids: bool = False
    max_cell_bytes: int = MAX_CELL_BYTES
    writable: bool = False
    memory_limit: int = MEMORY_LIMIT
    sequence: sequences.Sequence | None = None
    skip: bool = False
    permuted: bool = False
