"""Several tables as one: a mixture is planned, dealt and resumed like a table whose rows are its slots."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import islice
from math import ceil
from typing import Any, cast

import numpy as np
import pyarrow as pa

from penstock._engine.decode.bad_cells import BadRow
from penstock._engine.deliver.batches import BatchStream, Steps
from penstock._engine.deliver.consensus import check_same_on_ranks, describe_maps, describe_policies, shared_table
from penstock._engine.deliver.interleave import MixturePrefetcher, SourceReading
from penstock._engine.order.mixture import MixtureOrder, MixturePart, Pattern, Stop, shares
from penstock._engine.order.shard import RankEpoch
from penstock._engine.plan.count import Group
from penstock._engine.plan.table import Planned, Table, check_row_maps, check_rows
from penstock._engine.query.query import Batch, BatchAdapter, Query, ReadSpec
from penstock._engine.runtime.memory import BufferPool
from penstock._engine.runtime.threads import ThreadPool
from penstock._engine.runtime.timers import Meter
from penstock._engine.window.prefetch import windows_ahead
from penstock._engine.window.reader import WindowReader
from penstock._engine.window.sequences import SequenceWindowReader
from penstock.errors import EmptyDatasetError
from penstock.model import DataFiles, Plan, Snapshot, Units
from penstock.policies import Offsets
from penstock.protocols import Shuffle
from penstock.shuffles import InOrder


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    """One of the datasets of a mixture.

    Attributes:
        table: Its table.
        query: What is asked of it.
        weight: How much of the mixture it is, in proportion to the weights of others.
    """

    table: Table
    query: Query
    weight: float | Fraction


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MixturePlan:
    """What is read of a mixture, decided.

    Attributes:
        plan: The mixture as a table of one unit, whose rows are the slots of an epoch.
        shuffle: Slots are handed out as they are drawn.
        blend: Which rows of which source each slot is.
        sources: The plans of the sources.
    """

    plan: Plan
    shuffle: Shuffle
    blend: MixtureOrder
    sources: tuple[Planned, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class MixtureTable:
    """Several tables by weight.

    Attributes:
        sources: The tables, and what is asked of each.
        stop: Whether an epoch ends with the first source that would run out, or when all have been handed out whole.
        numbered: Whether the column is added that says which source a row comes from.
    """

    sources: tuple[Source, ...]
    stop: Stop = "first"
    numbered: bool = False

    @property
    def batched(self) -> bool:
        """Whether slots are batches, as the sources make them, and no single rows."""
        return self.sources[0].query.size is not None

    @property
    def name(self) -> str:
        """What the mixture is called in messages and in saved states."""
        return f"a mixture of {' and '.join(source.table.snapshot.table for source in self.sources)}"

    @cached_property
    def shares(self) -> tuple[int, ...]:
        """The slots of each source in a stratum."""
        return shares([Fraction(source.weight) for source in self.sources])

    def cache_from_first_read(self) -> None:
        """Take down that the tables will be read more than once."""
        for source in self.sources:
            source.table.cache_from_first_read()

    def plan(self, query: Query) -> MixturePlan:
        """Return what is read; the sources are planned the first time it is asked."""
        planned = tuple(source.table.plan(source.query) for source in self.sources)
        pairs = list(zip(self.sources, planned, strict=True))
        if self.batched:
            first = self.sources[0].query
            check_row_maps(query.maps, () if first.maps else first.policies, first.columns)
        parts = tuple(_part(number, source, made) for number, (source, made) in enumerate(pairs))
        blend = MixtureOrder(parts=parts, pattern=Pattern(shares=self.shares, seed=query.seed), stop=self.stop)
        if self.batched and blend.num_slots < query.world_size:
            msg = (
                f"{self.name} has {blend.num_slots} batches to hand out, fewer than its {query.world_size} ranks. Every "
                'rank needs at least one. Use fewer ranks, smaller batches, or stop="all".'
            )
            raise EmptyDatasetError(msg)
        description = {
            "sources": [
                {
                    "table": made.plan.snapshot.table,
                    "version": made.plan.snapshot.version,
                    "seed": source.query.seed,
                    "fingerprint": made.plan.fingerprint,
                }
                for source, made in pairs
            ],
            "shares": list(self.shares),
            "batches": [[part.width, part.partial] for part in parts] if self.batched else None,
            "stop": self.stop,
        }
        return MixturePlan(
            plan=_virtual(self.name, blend.num_slots, description), shuffle=InOrder(), blend=blend, sources=planned
        )


def _part(number: int, source: Source, planned: Planned) -> MixturePart:
    """Return what a mixture takes of a source, which must have something to give."""
    query, plan = source.query, planned.plan
    check_rows(plan, query, source=number)
    if plan.num_rows == 0:
        under = "" if query.condition is None else f" under the filter {query.condition!r}"
        msg = (
            f"Source {number} of the mixture, {plan.snapshot.table}, has no rows to hand out{under}. Every source needs at "
            "least one. Check its filter, or leave it out."
        )
        raise EmptyDatasetError(msg)
    return MixturePart(
        counts=plan.counts,
        shuffle=planned.shuffle,
        seed=query.seed,
        width=query.step_rows,
        partial=query.size is not None and query.ending != "drop",
    )


def _virtual(name: str, slots: int, description: dict[str, Any]) -> Plan:
    """Return the plan of a table that nobody stores: one unit, whose rows are the slots of a mixture."""
    none, small = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
    files = DataFiles(
        path=pa.array([], pa.string()), size=none, rows=none, stamp=pa.array([], pa.string()), partitions=pa.table({})
    )
    residual = np.zeros(0, dtype=np.bool_)
    units = Units(file=small, row_group=small, start=none, first=none, rows=none, counts=none, residual=residual)
    fingerprint = hashlib.blake2b(json.dumps(description).encode(), digest_size=16).hexdigest()
    snapshot = Snapshot(table=name, version="", schema=pa.schema([]), files=files)
    return Plan(snapshot=snapshot, units=units, counts=np.array([slots]), fingerprint=fingerprint, mixture=description)


class MixtureReader:
    """Reads the sources of a mixture, on the threads of one pool; it has the part of a `WindowReader` that batches ask for.

    Attributes:
        readings: How each source is read.
        meter: What counts the time of all sources.
        columns: The names of the columns.
        deferred: The columns of all sources that are decoded per batch.
        max_cell_bytes: The most that a decoded cell may take.
        bad_rows: Always empty: a mixture does not drop bad rows.
        decodes_by_row: Whether a row does not depend on the other rows of its batch.
    """

    def __init__(self, readings: tuple[SourceReading, ...], meter: Meter, *, by_row: bool) -> None:
        """Store how each source is read, and whether the mixture handles rows one by one."""
        self.readings, self.meter = readings, meter
        self.deferred = tuple(column for reading in readings for column in reading.window_reader.deferred)
        self.columns = readings[0].window_reader.columns
        self.max_cell_bytes = max(reading.window_reader.max_cell_bytes for reading in readings)
        self.bad_rows: dict[int, BadRow] = {}
        self.decodes_by_row = by_row and all(reading.window_reader.decodes_by_row for reading in readings)

    @property
    def units_read(self) -> int:
        """The number of units read from storage."""
        return sum(reading.window_reader.units_read for reading in self.readings)

    @property
    def row_bytes(self) -> float:
        """Memory of a row of the source with the largest rows."""
        return max(reading.window_reader.row_bytes for reading in self.readings)

    @property
    def dense_bytes(self) -> int:
        """The bytes that the deferred cells of a row take decoded, where they are all of one shape."""
        return max(reading.window_reader.dense_bytes for reading in self.readings)

    def check_batch(self, rows: int) -> None:
        """Refuse to fill up a batch to more rows than fit in memory."""
        budgets = [reading.window_reader.budget for reading in self.readings]
        max(budgets, key=lambda budget: budget.row_bytes).check_batch(rows, sum(budget.limit for budget in budgets))

    def arranged(self, batch: Batch) -> Batch:
        """Return columns in the order of the sources."""
        return batch


class MixtureStream(BatchStream):
    """The batches or rows of a mixture."""

    def __init__(self, *args: Any, batched: bool, **options: Any) -> None:
        """Store whether the sources make the batches."""
        super().__init__(*args, **options)
        self._batched = batched

    def select(self, worker: int, workers: int) -> None:
        """Return only batches `worker`, `worker + workers` and so on; to be called before the first."""
        if self._query.size is None:
            self.next = islice(iter(self.next, None), worker, None, workers).__next__
        else:
            super().select(worker, workers)

    def _next_batch(self) -> dict[str, Any]:
        batch = super()._next_batch()
        if self._batched:  # a step is one slot, but rows are counted
            flat = {column.name for column in self._query.policies}
            self._meter.surplus += next((len(values) for name, values in batch.items() if name not in flat), 1) - 1
        return batch


def open_mixture(
    mixture: MixtureTable,
    planned: MixturePlan,
    query: Query,
    pool: ThreadPool,
    meter: Meter,
    rank_epochs: Iterator[RankEpoch],
    adapter: BatchAdapter | None,
) -> tuple[MixtureReader, BatchStream]:
    """Return the reader of a mixture's sources and the stream of its batches; nothing is read.

    Each source has its share of the memory, and of the windows that are read ahead.
    """
    readings = []
    for number, (source, plan, part) in enumerate(zip(mixture.sources, planned.sources, planned.blend.parts, strict=True)):
        limit = source.query.memory_limit or query.memory_bytes // len(mixture.sources)
        spec = ReadSpec.of(source.table.snapshot, source.query, memory_limit=limit)
        # Batches of a source are handed on as they are; single rows are copied when they are interleaved.
        as_numbers = adapter is not None and not query.maps and not source.query.maps
        spec = replace(
            spec,
            writable=mixture.batched and adapter is not None,
            columns=tuple(replace(column, as_numbers=as_numbers) for column in spec.columns),
        )
        reading = SourceReading(
            name=f"source {number} ({source.table.snapshot.table})",
            query=source.query,
            window_reader=(WindowReader if spec.sequence is None else SequenceWindowReader)(
                plan.reader, plan.plan, spec, pool, meter
            ),
            num_rows=part.num_rows,
            ahead=ceil(windows_ahead(source.query, pool) * mixture.shares[number] / sum(mixture.shares)),
            memory_limit=limit,
        )
        readings.append(reading)
    # Policies of sources with batches are applied by the sources.
    policies = () if mixture.batched else query.policies
    reader = MixtureReader(tuple(readings), meter, by_row=not mixture.batched and not policies)
    buffer_pool = BufferPool(query.memory_bytes // 16)
    if mixture.batched:
        # A step is one slot. What is flat in the sources' batches is flat in those that maps of the mixture get.
        flat = tuple(column for column in mixture.sources[0].query.policies if isinstance(column.ragged, Offsets))
        query = replace(query, size=1, policies=flat)

    def make_prefetcher(rank_epoch: RankEpoch) -> MixturePrefetcher:
        mixing = planned.blend.epoch(rank_epoch.position.epoch, rank_epoch.position.assignments[0].lanes)
        return MixturePrefetcher(
            readings, mixing, rank_epoch, buffer_pool=buffer_pool, numbered=mixture.numbered, policies=policies
        )

    as_reader = cast("WindowReader", reader)
    stream = MixtureStream(
        Steps(query, as_reader, rank_epochs, make_prefetcher),
        pool,
        adapter,
        inline=not (reader.deferred or query.maps or policies or any(one.query.maps for one in readings)),
        may_use_processes=bool(query.maps),  # cells are decoded by the sources
        batched=mixture.batched,
    )
    return reader, stream


def agreed_mixture(mixture: MixtureTable, query: Query, group: Group) -> MixtureTable:
    """Return a mixture with the tables of its sources as rank 0 sees them, and their plans made."""
    description: dict[str, Any] = {
        "the sources": [source.table.snapshot.table for source in mixture.sources],
        "the shares": list(mixture.shares),
        "stop=": mixture.stop,
        "the seed": query.seed,
        "batches of": query.size,
        "last=": query.ending,
        "lanes": query.lanes,
        ".repeat()": query.epochs,
        "ranks": query.world_size,
        ".with_source()": mixture.numbered,
        "the policies": describe_policies(query.policies),
        **describe_maps(query),
    }
    check_same_on_ranks(group, lambda: description)
    sources = (replace(one, table=shared_table(one.table, one.query, group)) for one in mixture.sources)
    return replace(mixture, sources=tuple(sources))
