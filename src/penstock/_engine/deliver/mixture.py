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

from penstock._engine.deliver.batches import MEMORY_LIMIT, BatchStream
from penstock._engine.deliver.consensus import check_same_on_ranks, describe_maps, describe_policies, shared_table
from penstock._engine.deliver.interleave import MixturePrefetcher, SourceReading
from penstock._engine.lookup.access import read_spec
from penstock._engine.order.mixture import MixtureOrder, MixturePart, Pattern, Stop, shares
from penstock._engine.order.rank_epoch import RankEpoch, check_row_maps, check_rows
from penstock._engine.plan.group import Group
from penstock._engine.plan.table import Planned, Table
from penstock._engine.query.adapter import BatchAdapter
from penstock._engine.query.query import Query
from penstock._engine.query.values import Batch
from penstock._engine.runtime.buffers import BufferPool
from penstock._engine.runtime.threads import ThreadPool
from penstock._engine.runtime.timers import Meter
from penstock._engine.window.prefetch import Prefetcher, windows_ahead
from penstock._engine.window.reader import WindowReader
from penstock._engine.window.sequences import make_window_reader
from penstock.errors import EmptyDatasetError
from penstock.model import DataFiles, Plan, Snapshot, Units
from penstock.policies import Offsets
from penstock.protocols import Shuffle
from penstock.shuffles import InOrder

__all__ = ["MixturePlan", "MixtureReader", "MixtureTable", "Source", "agreed_mixture", "opened_mixture"]


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

    def expect_again(self) -> None:
        """Take down that the tables will be read more than once."""
        for source in self.sources:
            source.table.expect_again()

    def plan(self, query: Query) -> MixturePlan:
        """Return what is read; the sources are planned the first time it is asked.

        Raises:
            DataError: If a file that is needed cannot be read.
            EmptyDatasetError: If a source has nothing to hand out.
            ArgumentError: If rows are asked for of what only batches have.
        """
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
        told = {
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
        return MixturePlan(plan=_virtual(self.name, blend.num_slots, told), shuffle=InOrder(), blend=blend, sources=planned)


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
    width = query.size if isinstance(query.size, int) else 1
    return MixturePart(
        counts=plan.counts,
        shuffle=planned.shuffle,
        seed=query.seed,
        width=width,
        partial=query.size is not None and query.ending != "drop",
    )


def _virtual(name: str, slots: int, told: dict[str, Any]) -> Plan:
    """Return the plan of a table that nobody stores: one unit, whose rows are the slots of a mixture."""
    none, small = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
    files = DataFiles(
        path=pa.array([], pa.string()), size=none, rows=none, stamp=pa.array([], pa.string()), partitions=pa.table({})
    )
    residual = np.zeros(0, dtype=np.bool_)
    units = Units(file=small, row_group=small, start=none, first=none, rows=none, counts=none, residual=residual)
    fingerprint = hashlib.blake2b(json.dumps(told).encode(), digest_size=16).hexdigest()
    snapshot = Snapshot(table=name, version="", schema=pa.schema([]), files=files)
    return Plan(snapshot=snapshot, units=units, counts=np.array([slots]), fingerprint=fingerprint, mixture=told)


class MixtureReader:
    """What reads the sources of a mixture, on the threads of one pool."""

    def __init__(self, readings: tuple[SourceReading, ...], meter: Meter) -> None:
        """Store how each source is read, and what counts all of it."""
        self.readings, self.meter = readings, meter
        self.deferred = tuple(column for reading in readings for column in reading.window_reader.deferred)
        self.columns = readings[0].window_reader.columns
        self.max_cell_bytes = max(reading.window_reader.max_cell_bytes for reading in readings)

    @property
    def units_read(self) -> int:
        """How often a unit has been read so far."""
        return sum(reading.window_reader.units_read for reading in self.readings)

    @property
    def dense_bytes(self) -> int:
        """What the cells of a row take decoded, of those that all have one shape."""
        return max(reading.window_reader.dense_bytes for reading in self.readings)

    def check_batch(self, rows: int) -> None:
        """Refuse to fill a batch up to more than fits.

        Raises:
            MemoryLimitError: If it does not, by what the largest rows took so far.
        """
        budgets = [reading.window_reader.budget for reading in self.readings]
        max(budgets, key=lambda budget: budget.row_bytes).check_batch(rows, sum(budget.limit for budget in budgets))

    def arranged(self, found: Batch) -> Batch:
        """Return columns as the sources have arranged them."""
        return found


class MixtureStream(BatchStream):
    """Makes a mixture's batches from a position on."""

    def __init__(
        self,
        mixture: MixtureTable,
        blend: MixtureOrder,
        window_reader: MixtureReader,
        pool: ThreadPool,
        query: Query,
        rank_epochs: Iterator[RankEpoch],
        adapter: BatchAdapter | None,
    ) -> None:
        """Store the question; nothing is read before the first `next`."""
        self._mixture, self._blend, self._sources = mixture, blend, window_reader.readings
        # Those of sources with batches have been applied by the sources.
        self._policies = () if mixture.batched else query.policies
        self._buffer_pool = BufferPool((query.memory_limit or MEMORY_LIMIT) // 16)
        # A stream asks of what reads no more than the names of columns, and how they are arranged.
        super().__init__(cast("WindowReader", window_reader), pool, query, rank_epochs, adapter)
        # Maps of sources are run where their rows are put together.
        self._inline = self._inline and not any(reading.query.maps for reading in window_reader.readings) and not self._policies
        self._plain = self._plain and self._inline
        # Cells are decoded there too, so that other processes have only the maps of the mixture to run.
        self._elsewhere = self._elsewhere if query.maps else None

    def only(self, worker: int, workers: int) -> None:
        """Hand out no more than batches `worker`, `worker + workers` and so on; called before the first."""
        if self._query.size is None:
            self.next = islice(iter(self.next, None), worker, None, workers).__next__
        else:
            super().only(worker, workers)

    def _next_batch(self) -> dict[str, Any]:
        made = super()._next_batch()
        if self._mixture.batched:  # a step is one slot, and what is counted are rows
            flat = {column.name for column in self._query.policies}
            self._meter.surplus += next((len(values) for name, values in made.items() if name not in flat), 1) - 1
        return made

    def _feed_of(self, rank_epoch: RankEpoch) -> Prefetcher:
        """Return what reads the slots of a leg."""
        mixing = self._blend.epoch(rank_epoch.position.epoch, rank_epoch.position.assignments[0].lanes)
        return MixturePrefetcher(
            self._sources,
            mixing,
            rank_epoch,
            buffer_pool=self._buffer_pool,
            numbered=self._mixture.numbered,
            policies=self._policies,
            adapter=self._adapter,
        )


def opened_mixture(
    mixture: MixtureTable,
    planned: MixturePlan,
    query: Query,
    pool: ThreadPool,
    meter: Meter,
    rank_epochs: Iterator[RankEpoch],
    adapter: BatchAdapter | None,
) -> tuple[MixtureReader, MixtureStream]:
    """Return what reads a mixture, and what makes its batches; no data is read yet.

    Each source has its share of the memory, and of the windows that are read ahead.
    """
    # Batches of a source are handed on as they are; single rows are copied when they are put together.
    writable, as_numbers = mixture.batched and adapter is not None, adapter is not None and not query.maps
    limit = (query.memory_limit or MEMORY_LIMIT) // len(mixture.sources)
    readings = []
    for number, (one, made, part) in enumerate(zip(mixture.sources, planned.sources, planned.blend.parts, strict=True)):
        most = one.query.memory_limit or limit
        asked = replace(read_spec(one.table, one.query, as_numbers=as_numbers), writable=writable, memory_limit=most)
        reading = SourceReading(
            name=f"source {number} ({one.table.snapshot.table})",
            query=one.query,
            window_reader=make_window_reader(made.reader, made.plan, asked, pool, meter),
            num_rows=part.num_rows,
            ahead=ceil(windows_ahead(one.query, pool) * mixture.shares[number] / sum(mixture.shares)),
            memory_limit=most,
        )
        readings.append(reading)
    window_reader = MixtureReader(tuple(readings), meter)
    if mixture.batched:
        # A step is one slot. What is flat in the sources' batches is so in what maps of the mixture get.
        flat = tuple(one for one in mixture.sources[0].query.policies if isinstance(one.ragged, Offsets))
        query = replace(query, size=1, policies=flat)
    return window_reader, MixtureStream(mixture, planned.blend, window_reader, pool, query, rank_epochs, adapter)


def agreed_mixture(mixture: MixtureTable, query: Query, group: Group) -> MixtureTable:
    """Return a mixture with the tables of its sources as rank 0 sees them, and their plans made.

    Raises:
        ArgumentError: If ranks ask different questions.
        DataError: If rank 0 cannot read what it needs, or a rank cannot count its share.
    """
    told: dict[str, Any] = {
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
    check_same_on_ranks(group, lambda: told)
    sources = (replace(one, table=shared_table(one.table, one.query, group)) for one in mixture.sources)
    return replace(mixture, sources=tuple(sources))
