"""Random access: rows by number, counted among the rows kept in stored order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import index
from typing import Any, SupportsIndex

import numpy as np
import pyarrow as pa

from penstock._blobs import MOST_BYTES
from penstock._engine.batch.assemble import arranged
from penstock._engine.batch.user_map import apply_map, by_row
from penstock._engine.lookup.data_frames import frame_of
from penstock._engine.lookup.take import ready
from penstock._engine.plan.table import Table
from penstock._engine.query.projection import Wanted
from penstock._engine.query.query import Question
from penstock._engine.query.values import Batch, Column
from penstock._engine.runtime.threads import Pool
from penstock._engine.window.reader import Gather
from penstock.errors import ArgumentError, MissingExtraError, RowNotFoundError
from penstock.model import IntArray
from penstock.shuffles import ExactShuffle, WindowShuffle

__all__ = ["columns_of", "numbered", "stored_tables", "to_arrow", "to_pandas", "wanted"]

LEAST, MOST = -(2**63), 2**63 - 1
"""The numbers that an array of numbers of rows can hold."""


def numbered(table: Table, question: Question, rows: Sequence[int] | IntArray) -> Batch:
    """Return rows by number, in the order asked for, as one batch.

    Raises:
        ArgumentError: If the dataset is shuffled or batched, or what is asked for is no number.
        RowNotFoundError: If there are not so many rows.
    """
    _stored_only(question, "Rows by number count")
    made = ready(table, question, wanted)
    question, picks = made.question, made.picks
    asked = _numbers(rows)
    found = picks.num_rows
    outside = np.flatnonzero((asked < -found) | (asked >= found))
    if len(outside):
        one, many = ("Row", "rows") if question.sequence is None else ("Sequence", "sequences")
        number = np.asarray(rows, dtype=object).reshape(-1)[outside[0]]
        msg = (
            f"{one} {number} is not among the {found} {many} of {table.snapshot.table}. "
            f"{many.capitalize()} count from 0, or from -1 backwards."
        )
        raise RowNotFoundError(msg)
    asked = np.where(asked < 0, asked + found, asked)
    batch = arranged(question, picks, picks.rows(asked))
    for number, step in enumerate(question.maps):
        batch = apply_map(by_row(step), batch, asked, (question.seed, 0, number), resize=False)
    return batch


def _numbers(rows: object) -> IntArray:
    """Return numbers of rows as an array, which they must be; those that do not fit it are as good as its last."""
    found = np.asarray(rows)
    if found.size == 0:
        return np.zeros(0, dtype=np.int64)
    if found.dtype.kind in "Of":  # which NumPy makes of whole numbers that are too large for its own
        every = np.asarray(rows, dtype=object).reshape(-1)
        if all(isinstance(number, SupportsIndex) and not isinstance(number, bool | np.ndarray) for number in every):
            return np.array([min(max(index(number), LEAST), MOST) for number in every], dtype=np.int64)
    found = np.minimum(found, MOST) if found.dtype == np.uint64 else found
    if found.dtype.kind not in "iu":
        hint = " Of a mask, take numpy.flatnonzero(mask)." if found.dtype.kind == "b" else ""
        msg = f"Rows are counted by whole numbers, and {rows!r} is {found.dtype}. Give numbers from 0 on.{hint}"
        raise ArgumentError(msg)
    return found.astype(np.int64).reshape(-1)


def to_arrow(table: Table, question: Question, *, call: str = "to_arrow") -> pa.Table:
    """Return all rows in stored order as Arrow, as they are stored.

    Args:
        table: The table.
        question: The dataset's clauses.
        call: The method that the user called, for messages.

    Raises:
        ArgumentError: If the dataset has clauses that Arrow cannot show.
    """
    _stored_only(question, f"{call} counts")
    if question.maps or question.stacks or question.sequence is not None:
        clauses = "sequences" if question.sequence is not None else "maps or stacks"
        msg = f"{call} shows rows as they are stored, and this dataset has {clauses}. Iterate over it, or leave them out."
        raise ArgumentError(msg)
    if not columns_of(table, question) and not question.row_ids:
        return pa.table({"rows": pa.nulls(table.plan(question).plan.num_rows)}).select([])  # rows without columns are rows
    return pa.concat_tables(stored_tables(table, question))


def stored_tables(table: Table, question: Question) -> Iterator[pa.Table]:
    """Yield the rows of all units in stored order as Arrow, as they are stored; one table without rows where there are none."""
    planned = table.plan(question)
    gather = Gather(planned.reader, planned.plan, wanted(table, question), Pool(1))
    units = np.flatnonzero(planned.plan.counts).tolist()
    yield from map(gather.unit, units) if units else [gather.nothing()]


def to_pandas(table: Table, question: Question) -> Any:
    """Return all rows in stored order as a pandas data frame that holds the same values.

    Raises:
        ArgumentError: If the dataset has clauses that a data frame cannot show.
        MissingExtraError: If pandas is not installed.
    """
    found = to_arrow(table, question, call="to_pandas")
    try:
        return frame_of(found)
    except ModuleNotFoundError as error:
        msg = "to_pandas needs pandas, which is not installed. Install it: pip install pandas."
        raise MissingExtraError(msg) from error


def wanted(table: Table, question: Question, *, as_numbers: bool = False) -> Wanted:
    """Return what is read of each row; `as_numbers` says that times become whole numbers, unless a map has a say."""
    policies = {column.name: column for column in question.policies}
    fields = table.snapshot.fields
    columns = tuple(
        replace(policies.get(name) or Column(name=name), field=fields.get(name), as_numbers=as_numbers and not question.maps)
        for name in columns_of(table, question)
    )
    most = question.max_cell_bytes or MOST_BYTES
    return Wanted(
        columns=columns,
        stacks=question.stacks,
        row_ids=question.row_ids,
        most_bytes=most,
        sequence=question.sequence,
        skip=question.skip is not None,
        permuted=isinstance(question.shuffle, WindowShuffle | ExactShuffle) and question.sequence is None,
    )


def columns_of(table: Table, question: Question) -> tuple[str, ...]:
    """Return the columns that a question reads."""
    return tuple(table.snapshot.schema.names) if question.columns is None else question.columns


def _stored_only(question: Question, what: str) -> None:
    """Refuse to count rows in an order that differs from epoch to epoch."""
    if question.lazy:
        msg = f"{what} the rows that pass, and a lazy filter has not counted them. Leave lazy=True out."
        raise ArgumentError(msg)
    if question.shuffled or question.size is not None or question.world_size > 1:
        msg = (
            f"{what} in stored order, and this dataset is shuffled, batched or sharded. "
            "Ask the dataset before .shuffle(), .batch() and .shard()."
        )
        raise ArgumentError(msg)
