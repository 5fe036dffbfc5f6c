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

from penstock._engine.deliver.batches import MEMORY_LIMIT, Stream
from penstock._engine.deliver.consensus import agreed, check_told, told_maps, told_policies
from penstock._engine.deliver.interleave import MixedFeed, Reading
from penstock._engine.lookup.access import wanted
from penstock._engine.order.mixture import Blend, Part, Pattern, Stop, shares
from penstock._engine.order.rank_epoch import Leg, check_row_maps, check_rows
from penstock._engine.plan.group import Group
from penstock._engine.plan.table import Planned, Table
from penstock._engine.query.adapter import HandOver
from penstock._engine.query.query import Question
from penstock._engine.query.values import Batch
from penstock._engine.runtime.buffers import Slabs
from penstock._engine.runtime.threads import Pool
from penstock._engine.runtime.timers import Meter
from penstock._engine.window.prefetch import Feed, windows_ahead
from penstock._engine.window.reader import Gather
from penstock._engine.window.sequences import gathering
from penstock.errors import EmptyDatasetError
from penstock.model import DataFiles, Plan, Snapshot, Units
from penstock.policies import Offsets
from penstock.protocols import Shuffle
from penstock.shuffles import InOrder

__all__ = ["Mixed", "MixedGather", "MixedPlan", "Source", "agreed_mixture", "opened_mixture"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    """One of the datasets of a mixture.

    Attributes:
        table: Its table.
        question: What is asked of it.
        weight: How much of the mixture it is, in proportion to the weights of others.
    """

    table: Table
    question: Question
    weight: float | Fraction


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MixedPlan:
    """What is read of a mixture, decided.

    Attributes:
        plan: The mixture as a table of one unit, whose rows are the slots of an epoch.
        shuffle: Slots are handed out as they are drawn.
        blend: Which rows of which source each slot is.
        sources: The plans of the sources.
    """

    plan: Plan
    shuffle: Shuffle
    blend: Blend
    sources: tuple[Planned, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Mixed:
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
        return self.sources[0].question.size is not None

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

    def plan(self, question: Question) -> MixedPlan:
        """Return what is read; the sources are planned the first time it is asked.

        Raises:
            DataError: If a file that is needed cannot be read.
            EmptyDatasetError: If a source has nothing to hand out.
            ArgumentError: If rows are asked for of what only batches have.
        """
        planned = tuple(source.table.plan(source.question) for source in self.sources)
        pairs = list(zip(self.sources, planned, strict=True))
        if self.batched:
            first = self.sources[0].question
            check_row_maps(question.maps, () if first.maps else first.policies, first.columns)
        parts = tuple(_part(number, source, made) for number, (source, made) in enumerate(pairs))
        blend = Blend(parts=parts, pattern=Pattern(shares=self.shares, seed=question.seed), stop=self.stop)
        if self.batched and blend.num_slots < question.world_size:
            msg = (
                f"{self.name} has {blend.num_slots} batches to hand out, fewer than its {question.world_size} ranks. Every "
                'rank needs at least one. Use fewer ranks, smaller batches, or stop="all".'
            )
            raise EmptyDatasetError(msg)
        told = {
            "sources": [
                {
                    "table": made.plan.snapshot.table,
                    "version": made.plan.snapshot.version,
                    "seed": source.question.seed,
                    "fingerprint": made.plan.fingerprint,
                }
                for source, made in pairs
            ],
            "shares": list(self.shares),
            "batches": [[part.width, part.partial] for part in parts] if self.batched else None,
            "stop": self.stop,
        }
        return MixedPlan(plan=_virtual(self.name, blend.num_slots, told), shuffle=InOrder(), blend=blend, sources=planned)


def _part(number: int, source: Source, planned: Planned) -> Part:
    """Return what a mixture takes of a source, which must have something to give."""
    question, plan = source.question, planned.plan
    check_rows(plan, question, source=number)
    if plan.num_rows == 0:
        under = "" if question.condition is None else f" under the filter {question.condition!r}"
        msg = (
            f"Source {number} of the mixture, {plan.snapshot.table}, has no rows to hand out{under}. Every source needs at "
            "least one. Check its filter, or leave it out."
        )
        raise EmptyDatasetError(msg)
    width = question.size if isinstance(question.size, int) else 1
    return Part(
        counts=plan.counts,
        shuffle=planned.shuffle,
        seed=question.seed,
        width=width,
        partial=question.size is not None and question.ending != "drop",
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


class MixedGather:
    """What reads the sources of a mixture, on the threads of one pool."""

    def __init__(self, readings: tuple[Reading, ...], meter: Meter) -> None:
        """Store how each source is read, and what counts all of it."""
        self.readings, self.meter = readings, meter
        self.loose = tuple(column for reading in readings for column in reading.gather.loose)
        self.columns = readings[0].gather.columns
        self.most_bytes = max(reading.gather.most_bytes for reading in readings)

    @property
    def units_read(self) -> int:
        """How often a unit has been read so far."""
        return sum(reading.gather.units_read for reading in self.readings)

    @property
    def dense_bytes(self) -> int:
        """What the cells of a row take decoded, of those that all have one shape."""
        return max(reading.gather.dense_bytes for reading in self.readings)

    def check_batch(self, rows: int) -> None:
        """Refuse to fill a batch up to more than fits.

        Raises:
            MemoryLimitError: If it does not, by what the largest rows took so far.
        """
        budgets = [reading.gather.budget for reading in self.readings]
        max(budgets, key=lambda budget: budget.row_bytes).check_batch(rows, sum(budget.limit for budget in budgets))

    def arranged(self, found: Batch) -> Batch:
        """Return columns as the sources have arranged them."""
        return found


class MixedStream(Stream):
    """Makes a mixture's batches from a position on."""

    def __init__(
        self,
        mixed: Mixed,
        blend: Blend,
        gather: MixedGather,
        pool: Pool,
        question: Question,
        legs: Iterator[Leg],
        hand_over: HandOver | None,
    ) -> None:
        """Store the question; nothing is read before the first `next`."""
        self._mixed, self._blend, self._sources = mixed, blend, gather.readings
        # Those of sources with batches have been applied by the sources.
        self._policies = () if mixed.batched else question.policies
        self._slabs = Slabs((question.memory_limit or MEMORY_LIMIT) // 16)
        # A stream asks of what reads no more than the names of columns, and how they are arranged.
        super().__init__(cast("Gather", gather), pool, question, legs, hand_over)
        # Maps of sources are run where their rows are put together.
        self._inline = self._inline and not any(reading.question.maps for reading in gather.readings) and not self._policies
        self._plain = self._plain and self._inline
        # Cells are decoded there too, so that other processes have only the maps of the mixture to run.
        self._elsewhere = self._elsewhere if question.maps else None

    def only(self, worker: int, workers: int) -> None:
        """Hand out no more than batches `worker`, `worker + workers` and so on; called before the first."""
        if self._question.size is None:
            self.next = islice(iter(self.next, None), worker, None, workers).__next__
        else:
            super().only(worker, workers)

    def _next_batch(self) -> dict[str, Any]:
        made = super()._next_batch()
        if self._mixed.batched:  # a step is one slot, and what is counted are rows
            flat = {column.name for column in self._question.policies}
            self._meter.surplus += next((len(values) for name, values in made.items() if name not in flat), 1) - 1
        return made

    def _feed_of(self, leg: Leg) -> Feed:
        """Return what reads the slots of a leg."""
        mixing = self._blend.mixing(leg.position.epoch, leg.position.deals[0].lanes)
        return MixedFeed(
            self._sources,
            mixing,
            leg,
            slabs=self._slabs,
            numbered=self._mixed.numbered,
            policies=self._policies,
            hand_over=self._hand_over,
        )


def opened_mixture(
    mixed: Mixed,
    planned: MixedPlan,
    question: Question,
    pool: Pool,
    meter: Meter,
    legs: Iterator[Leg],
    hand_over: HandOver | None,
) -> tuple[MixedGather, MixedStream]:
    """Return what reads a mixture, and what makes its batches; no data is read yet.

    Each source has its share of the memory, and of the windows that are read ahead.
    """
    # Batches of a source are handed on as they are; single rows are copied when they are put together.
    writable, as_numbers = mixed.batched and hand_over is not None, hand_over is not None and not question.maps
    limit = (question.memory_limit or MEMORY_LIMIT) // len(mixed.sources)
    readings = []
    for number, (one, made, part) in enumerate(zip(mixed.sources, planned.sources, planned.blend.parts, strict=True)):
        most = one.question.memory_limit or limit
        asked = replace(wanted(one.table, one.question, as_numbers=as_numbers), writable=writable, memory_limit=most)
        reading = Reading(
            name=f"source {number} ({one.table.snapshot.table})",
            question=one.question,
            gather=gathering(made.reader, made.plan, asked, pool, meter),
            num_rows=part.num_rows,
            ahead=ceil(windows_ahead(one.question, pool) * mixed.shares[number] / sum(mixed.shares)),
            memory_limit=most,
        )
        readings.append(reading)
    gather = MixedGather(tuple(readings), meter)
    if mixed.batched:
        # A step is one slot. What is flat in the sources' batches is so in what maps of the mixture get.
        flat = tuple(one for one in mixed.sources[0].question.policies if isinstance(one.ragged, Offsets))
        question = replace(question, size=1, policies=flat)
    return gather, MixedStream(mixed, planned.blend, gather, pool, question, legs, hand_over)


def agreed_mixture(mixed: Mixed, question: Question, group: Group) -> Mixed:
    """Return a mixture with the tables of its sources as rank 0 sees them, and their plans made.

    Raises:
        ArgumentError: If ranks ask different questions.
        DataError: If rank 0 cannot read what it needs, or a rank cannot count its share.
    """
    told: dict[str, Any] = {
        "the sources": [source.table.snapshot.table for source in mixed.sources],
        "the shares": list(mixed.shares),
        "stop=": mixed.stop,
        "the seed": question.seed,
        "batches of": question.size,
        "last=": question.ending,
        "lanes": question.lanes,
        ".repeat()": question.epochs,
        "ranks": question.world_size,
        ".with_source()": mixed.numbered,
        "the policies": told_policies(question.policies),
        **told_maps(question),
    }
    check_told(group, lambda: told)
    sources = (replace(one, table=agreed(one.table, one.question, group)) for one in mixed.sources)
    return replace(mixed, sources=tuple(sources))
