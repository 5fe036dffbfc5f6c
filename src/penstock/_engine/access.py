"""Random access: rows by number, counted among the rows kept in stored order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock._engine.gather import Gather
from penstock._engine.question import Question
from penstock._engine.table import Table
from penstock._engine.transform import Batch, apply_map, apply_stack, by_row
from penstock.errors import ArgumentError
from penstock.model import IntArray
from penstock.shuffles import InOrder

__all__ = ["numbered", "to_arrow"]


def numbered(table: Table, question: Question, rows: Sequence[int] | IntArray) -> Batch:
    """Return rows by number, in the order asked for, as one batch.

    Raises:
        ArgumentError: If the dataset is shuffled or batched, or has not so many rows.
    """
    _stored_only(question, "Rows by number count")
    planned = table.plan(question)
    wanted = np.asarray(rows, dtype=np.int64).reshape(-1)
    found = planned.plan.num_rows
    outside = wanted[(wanted < -found) | (wanted >= found)]
    if len(outside):
        msg = (
            f"Row {outside[0]} is not among the {found} rows of {table.snapshot.table}. "
            "Rows count from 0, or from -1 backwards."
        )
        raise ArgumentError(msg)
    wanted = np.where(wanted < 0, wanted + found, wanted)
    gather = Gather(planned.reader, planned.plan, columns_of(table, question), row_ids=question.row_ids)
    batch, _ = gather.load(InOrder().arrange(planned.plan.counts, seed=0, epoch=0).scattered(wanted))
    for stack in question.stacks:
        batch = apply_stack(stack, batch)
    for step in question.maps:
        batch = apply_map(by_row(step), batch, wanted, (question.seed, 0), resize=False)
    return batch


def to_arrow(table: Table, question: Question) -> pa.Table:
    """Return all rows in stored order as Arrow, as they are stored.

    Raises:
        ArgumentError: If the dataset has clauses that Arrow cannot show.
    """
    _stored_only(question, "to_arrow counts")
    if question.maps or question.stacks:
        msg = "to_arrow shows rows as they are stored, and this dataset has maps or stacks. Iterate over it, or leave them out."
        raise ArgumentError(msg)
    planned = table.plan(question)
    gather = Gather(planned.reader, planned.plan, columns_of(table, question), row_ids=question.row_ids)
    parts = [gather.unit(int(unit)) for unit in np.flatnonzero(planned.plan.counts)]
    return pa.concat_tables(parts) if parts else gather.nothing()


def columns_of(table: Table, question: Question) -> tuple[str, ...]:
    """Return the columns that a question reads."""
    return tuple(table.snapshot.schema.names) if question.columns is None else question.columns


def _stored_only(question: Question, what: str) -> None:
    """Refuse to count rows in an order that differs from epoch to epoch."""
    if question.shuffled or question.size is not None or question.world_size > 1 or question.lazy:
        msg = (
            f"{what} in stored order, and this dataset is shuffled, batched, sharded or filtered lazily. "
            "Ask the dataset before .shuffle(), .batch() and .shard()."
        )
        raise ArgumentError(msg)
