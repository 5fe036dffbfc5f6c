"""Random access: rows by number, counted among the selected rows in stored order; whole tables; data frames."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import index
from typing import SupportsIndex
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
from pyarrow import fs as pafs

from penstock._engine.batch.assemble import in_query_order
from penstock._engine.batch.user_map import apply_map, by_row
from penstock._engine.lookup.byte_ranges import LOCAL, REMOTE
from penstock._engine.lookup.cache import LookupCache, LruCache
from penstock._engine.lookup.row_lookup import RowLookup, RowTaker
from penstock._engine.plan.table import Table
from penstock._engine.query.query import MEMORY_LIMIT, Batch, Query, ReadSpec
from penstock._engine.read.reader import Reader
from penstock._engine.runtime.threads import ThreadPool, default_threads
from penstock._engine.window.reader import WindowReader
from penstock._engine.window.sequences import SequenceWindowReader
from penstock.errors import ArgumentError, RowNotFoundError
from penstock.model import IntArray

MIN_NUMBER, MAX_NUMBER = -(2**63), 2**63 - 1
"""The limits of an array of row numbers."""

MAX_QUERIES = 8
"""Queries of a table whose readers are cached."""


def take_rows(table: Table, query: Query, rows: Sequence[int] | IntArray) -> Batch:
    """Return rows by number, in the order of the numbers, as one batch."""
    _check_stored_order(query, "Rows by number count")
    ready = _ready(table, query)
    query, taker = ready.query, ready.taker
    numbers = _row_numbers(rows)
    count = taker.num_rows
    outside = np.flatnonzero((numbers < -count) | (numbers >= count))
    if len(outside):
        one, many = ("Row", "rows") if query.sequence is None else ("Sequence", "sequences")
        number = np.asarray(rows, dtype=object).reshape(-1)[outside[0]]
        msg = (
            f"{one} {number} is not among the {count} {many} of {table.snapshot.table}. "
            f"{many.capitalize()} count from 0, or from -1 backwards."
        )
        raise RowNotFoundError(msg)
    numbers = np.where(numbers < 0, numbers + count, numbers)
    batch = in_query_order(query, taker, taker.rows(numbers))
    for number, step in enumerate(query.maps):
        batch = apply_map(by_row(step), batch, numbers, (query.seed, 0, number), resize=False)
    return batch


def _row_numbers(rows: object) -> IntArray:
    """Return row numbers as an array; numbers that do not fit into 64 bits are clipped."""
    values = np.asarray(rows)
    if values.size == 0:
        return np.zeros(0, dtype=np.int64)
    if values.dtype.kind in "Of":  # NumPy's types for integers that are too large for 64 bits
        every = np.asarray(rows, dtype=object).reshape(-1)
        if all(isinstance(number, SupportsIndex) and not isinstance(number, bool | np.ndarray) for number in every):
            return np.array([min(max(index(number), MIN_NUMBER), MAX_NUMBER) for number in every], dtype=np.int64)
    values = np.minimum(values, MAX_NUMBER) if values.dtype == np.uint64 else values
    if values.dtype.kind not in "iu":
        hint = " Of a mask, take numpy.flatnonzero(mask)." if values.dtype.kind == "b" else ""
        msg = f"Rows are counted by whole numbers, and {rows!r} is {values.dtype}. Give numbers from 0 on.{hint}"
        raise ArgumentError(msg)
    return values.astype(np.int64).reshape(-1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _ReadyQuery:
    """A query that is ready for row numbers.

    Attributes:
        requested: The user's query. It is found by its identity, and kept alive here so that no other gets its id.
        query: The query without skipping of bad rows: a row by number is that row, or an error.
        taker: Reads the rows.
    """

    requested: Query
    query: Query
    taker: RowTaker | SequenceWindowReader


@dataclass(frozen=True, slots=True, eq=False)
class _TableCaches:
    """What is remembered of a table between calls."""

    files: LookupCache = field(default_factory=LookupCache)
    ready: LruCache[int, _ReadyQuery] = field(default_factory=lambda: LruCache(MAX_QUERIES))


_CACHES: WeakKeyDictionary[Table, _TableCaches] = WeakKeyDictionary()
"""By table, and not in it: in another process, or after a fork, a table has no caches."""

_CREATING = threading.Lock()


def _ready(table: Table, requested: Query) -> _ReadyQuery:
    """Return a query that is ready for row numbers."""
    with _CREATING:
        caches = _CACHES.get(table)
        if caches is None:
            caches = _CACHES[table] = _TableCaches()
    ready = caches.ready.get(id(requested))
    if ready is None:
        query = replace(requested, skip=None)
        planned = table.plan(query)
        cost = LOCAL if isinstance(table.filesystem, pafs.LocalFileSystem) else REMOTE
        options = {option.name: getattr(planned.reader, option.name) for option in fields(Reader)}
        reader, spec = (
            RowLookup(**options, cost=cost, cache=caches.files),
            ReadSpec.of(table.snapshot, query, memory_limit=MEMORY_LIMIT),
        )
        taker: RowTaker | SequenceWindowReader
        if spec.sequence is not None:
            taker = SequenceWindowReader(reader, planned.plan, spec, ThreadPool(1))
        else:
            taker = RowTaker(reader, planned.plan, spec, query.threads or default_threads())
        ready = _ReadyQuery(requested=requested, query=query, taker=taker)
        caches.ready.put(id(requested), ready, 1)
    return ready


def to_arrow(table: Table, query: Query, *, call: str = "to_arrow") -> pa.Table:
    """Return all rows in stored order as Arrow, as they are stored.

    Args:
        table: The table.
        query: The dataset's clauses.
        call: The method that the user called, for messages.
    """
    _check_stored_order(query, f"{call} counts")
    if query.maps or query.stacks or query.sequence is not None:
        clauses = "sequences" if query.sequence is not None else "maps or stacks"
        msg = f"{call} shows rows as they are stored, and this dataset has {clauses}. Iterate over it, or leave them out."
        raise ArgumentError(msg)
    if not columns_of(table, query) and not query.row_ids:
        rows = pa.nulls(table.plan(query).plan.num_rows)
        return pa.table({"rows": rows}).select([])  # a table without columns still has rows
    return pa.concat_tables(stored_tables(table, query))


def stored_tables(table: Table, query: Query) -> Iterator[pa.Table]:
    """Yield the rows of each unit in stored order as Arrow, as they are stored; one empty table if there are none."""
    planned = table.plan(query)
    window_reader = WindowReader(
        planned.reader, planned.plan, ReadSpec.of(table.snapshot, query, memory_limit=MEMORY_LIMIT), ThreadPool(1)
    )
    units = np.flatnonzero(planned.plan.counts).tolist()
    yield from map(window_reader.unit, units) if units else [window_reader.empty_table()]


def columns_of(table: Table, query: Query) -> tuple[str, ...]:
    """Return the columns that a query reads."""
    return tuple(table.snapshot.schema.names) if query.columns is None else query.columns


def _check_stored_order(query: Query, what: str) -> None:
    """Refuse row numbers in an order that differs between epochs."""
    if query.lazy:
        msg = f"{what} the rows that pass, and a lazy filter has not counted them. Leave lazy=True out."
        raise ArgumentError(msg)
    if query.shuffled or query.size is not None or query.world_size > 1:
        msg = (
            f"{what} in stored order, and this dataset is shuffled, batched or sharded. "
            "Ask the dataset before .shuffle(), .batch() and .shard()."
        )
        raise ArgumentError(msg)
