"""Random access: rows by number, counted among the rows kept in stored order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import index
from typing import Any, SupportsIndex

import numpy as np
import pyarrow as pa

from penstock._blobs import MAX_CELL_BYTES
from penstock._engine.batch.assemble import in_query_order
from penstock._engine.batch.user_map import apply_map, by_row
from penstock._engine.lookup.data_frames import frame_of
from penstock._engine.lookup.take import ready
from penstock._engine.plan.table import Table
from penstock._engine.query.query import Query, ReadSpec
from penstock._engine.query.values import Batch, Column
from penstock._engine.runtime.threads import ThreadPool
from penstock._engine.window.reader import WindowReader
from penstock.errors import ArgumentError, MissingExtraError, RowNotFoundError
from penstock.model import IntArray
from penstock.shuffles import ExactShuffle, WindowShuffle

__all__ = ["columns_of", "read_spec", "stored_tables", "take_rows", "to_arrow", "to_pandas"]

LEAST, MOST = -(2**63), 2**63 - 1
"""The numbers that an array of numbers of rows can hold."""


def take_rows(table: Table, query: Query, rows: Sequence[int] | IntArray) -> Batch:
    """Return rows by number, in the order asked for, as one batch.

    Raises:
        ArgumentError: If the dataset is shuffled or batched, or what is asked for is no number.
        RowNotFoundError: If there are not so many rows.
    """
    _stored_only(query, "Rows by number count")
    made = ready(table, query, read_spec)
    query, picks = made.query, made.picks
    asked = _numbers(rows)
    found = picks.num_rows
    outside = np.flatnonzero((asked < -found) | (asked >= found))
    if len(outside):
        one, many = ("Row", "rows") if query.sequence is None else ("Sequence", "sequences")
        number = np.asarray(rows, dtype=object).reshape(-1)[outside[0]]
        msg = (
            f"{one} {number} is not among the {found} {many} of {table.snapshot.table}. "
            f"{many.capitalize()} count from 0, or from -1 backwards."
        )
        raise RowNotFoundError(msg)
    asked = np.where(asked < 0, asked + found, asked)
    batch = in_query_order(query, picks, picks.rows(asked))
    for number, step in enumerate(query.maps):
        batch = apply_map(by_row(step), batch, asked, (query.seed, 0, number), resize=False)
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


def to_arrow(table: Table, query: Query, *, call: str = "to_arrow") -> pa.Table:
    """Return all rows in stored order as Arrow, as they are stored.

    Args:
        table: The table.
        query: The dataset's clauses.
        call: The method that the user called, for messages.

    Raises:
        ArgumentError: If the dataset has clauses that Arrow cannot show.
    """
    _stored_only(query, f"{call} counts")
    if query.maps or query.stacks or query.sequence is not None:
        clauses = "sequences" if query.sequence is not None else "maps or stacks"
        msg = f"{call} shows rows as they are stored, and this dataset has {clauses}. Iterate over it, or leave them out."
        raise ArgumentError(msg)
    if not columns_of(table, query) and not query.row_ids:
        return pa.table({"rows": pa.nulls(table.plan(query).plan.num_rows)}).select([])  # rows without columns are rows
    return pa.concat_tables(stored_tables(table, query))


def stored_tables(table: Table, query: Query) -> Iterator[pa.Table]:
    """Yield the rows of all units in stored order as Arrow, as they are stored; one table without rows where there are none."""
    planned = table.plan(query)
    window_reader = WindowReader(planned.reader, planned.plan, read_spec(table, query), ThreadPool(1))
    units = np.flatnonzero(planned.plan.counts).tolist()
    yield from map(window_reader.unit, units) if units else [window_reader.empty_table()]


def to_pandas(table: Table, query: Query) -> Any:
    """Return all rows in stored order as a pandas data frame that holds the same values.

    Raises:
        ArgumentError: If the dataset has clauses that a data frame cannot show.
        MissingExtraError: If pandas is not installed.
    """
    found = to_arrow(table, query, call="to_pandas")
    try:
        return frame_of(found)
    except ModuleNotFoundError as error:
        msg = "to_pandas needs pandas, which is not installed. Install it: pip install pandas."
        raise MissingExtraError(msg) from error


def read_spec(table: Table, query: Query, *, as_numbers: bool = False) -> ReadSpec:
    """Return what is read of each row; `as_numbers` says that times become whole numbers, unless a map has a say."""
    policies = {column.name: column for column in query.policies}
    fields = table.snapshot.fields
    columns = tuple(
        replace(policies.get(name) or Column(name=name), field=fields.get(name), as_numbers=as_numbers and not query.maps)
        for name in columns_of(table, query)
    )
    most = query.max_cell_bytes or MAX_CELL_BYTES
    return ReadSpec(
        columns=columns,
        stacks=query.stacks,
        row_ids=query.row_ids,
        max_cell_bytes=most,
        sequence=query.sequence,
        skip=query.skip is not None,
        permuted=isinstance(query.shuffle, WindowShuffle | ExactShuffle) and query.sequence is None,
    )


def columns_of(table: Table, query: Query) -> tuple[str, ...]:
    """Return the columns that a question reads."""
    return tuple(table.snapshot.schema.names) if query.columns is None else query.columns


def _stored_only(query: Query, what: str) -> None:
    """Refuse to count rows in an order that differs from epoch to epoch."""
    if query.lazy:
        msg = f"{what} the rows that pass, and a lazy filter has not counted them. Leave lazy=True out."
        raise ArgumentError(msg)
    if query.shuffled or query.size is not None or query.world_size > 1:
        msg = (
            f"{what} in stored order, and this dataset is shuffled, batched or sharded. "
            "Ask the dataset before .shuffle(), .batch() and .shard()."
        )
        raise ArgumentError(msg)
