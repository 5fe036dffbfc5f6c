"""`mix` and `Mixture`: several datasets by weight, read as one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

from penstock import _mix_clauses
from penstock._dataset import clauses, explain
from penstock._engine.deliver.mixture import MixtureTable
from penstock._engine.order.mixture import Stop
from penstock._engine.order.shard import RankEpoch
from penstock._engine.query.query import Last, Query
from penstock.dataset import BaseDataset, Dataset
from penstock.errors import ArgumentError
from penstock.model import Position
from penstock.policies import Ragged
from penstock.schema import Schema
from penstock.shuffles import InOrder

__all__ = ["Mixture", "mix"]


def mix(sources: Sequence[tuple[Dataset, float | Fraction]], *, stop: Stop = "first", seed: int = 0) -> Mixture:
    """Return several datasets as one, with an exact share of the rows from each.

    Sources without batches are mixed row by row, and `.batch(256)` of the mixture has rows of all of them. Sources with
    batches are mixed batch by batch. The order of the sources depends on the seed only, so a mixture is sharded and resumed
    like a dataset.

    Args:
        sources: Datasets and their weights: positive numbers, of which only the proportions count.
        stop: The end of an epoch. "first": when the first source has no more rows, so that no row comes twice. "all": when
            every source has been read to its end; sources that end earlier start again, in the order of their next epoch.
        seed: The seed of the order of the sources; the order of rows in a source is its own `.shuffle(seed=...)`.

    Raises:
        ArgumentError: If the sources do not fit together, or a weight is not positive.

    Example:
        >>> from penstock.testing import example
        >>> odd, even = (example().where(("label", "==", label)).select("id") for label in ("odd", "even"))
        >>> [batch["id"].tolist() for batch in mix([(odd, 2), (even, 1)], seed=1).batch(3)]
        [[1, 3, 0], [5, 2, 7], [9, 4]]
    """
    parts, policies = _mix_clauses.shared_policies(_mix_clauses.mixture_sources(sources))
    mixture = MixtureTable(sources=parts, stop=_mix_clauses.valid_stop(stop))
    _ = mixture.shares  # raises for weights that are too small
    query = Query(
        seed=clauses.valid_seed("mix", seed),
        # An epoch ends like that of a shuffled dataset if any source is shuffled.
        shuffle=next((source.query.shuffle for source in parts if source.query.shuffled), InOrder()),
        # A batch is a slot, and all ranks have the same number of slots.
        last="drop" if mixture.batched else None,
        threads=max((source.query.threads or 0 for source in parts), default=0) or None,
        policies=policies,
    )
    return _checked(mixture, query)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Mixture(BaseDataset):
    """Several datasets by weight. Every clause returns a new mixture; rows are read when it is iterated, not before.

    Clauses about rows and columns (`where`, `select`, `shuffle`, `limit` and so on) belong to the sources. Clauses about the
    whole (`batch`, `map`, `ragged`, `shard`, `repeat`) belong to the mixture.

    Example:
        >>> from penstock.testing import example
        >>> mix([(example(), 3), (example().shuffle(seed=2), 1)], stop="all").batch(4)
        penstock.mix([(penstock.open('memory:example'), 3), (penstock.open('memory:example').shuffle(seed=2), 1)], stop='all').batch(4)
    """  # noqa: E501 - the output of one line

    _RESIZE_ADVICE: ClassVar[str] = _mix_clauses.RESIZE_ADVICE

    _table: MixtureTable
    _query: Query

    def batch(self, size: int, *, last: Last | None = None) -> Mixture:
        """Return batches of rows of all sources, `size` rows each.

        Args:
            size: Rows of a batch on each rank.
            last: How an epoch ends if its rows do not fill a batch on every rank, as in `Dataset.batch`. The default is
                "drop" if a source is shuffled or the mixture is sharded, and "uneven" otherwise.

        Raises:
            ArgumentError: If the sources have batches of their own, or the size is not positive.

        Example:
            >>> from penstock.testing import example
            >>> len(mix([(example(), 1), (example(), 1)]).batch(4))
            5
        """
        if self._table.batched:
            msg = (
                f"batch() got size={size!r} for a mixture whose sources have batches already. Remove it; or remove .batch() "
                "from the sources, for batches with rows of all of them."
            )
            raise ArgumentError(msg)
        changes = clauses.batch_changes(size, last)
        if changes["size"] == "row_group":
            msg = 'batch() got size="row_group" for a mixture; expected a positive integer, for example batch(32).'
            raise ArgumentError(msg)
        return self._with(**changes)

    def ragged(self, policy: Ragged, *columns: str) -> Mixture:
        """Return a mixture with another policy for the lists of some columns.

        The policy acts on the mixture's batches, with rows of all sources, after the maps of the sources and before those of
        the mixture. Policies of the sources that depend on the other rows of a batch do so too. If the sources have batches
        of their own, the policy acts on each of these.

        Args:
            policy: `Pad(value, length)`, `Offsets()` or `RaiseIfRagged()`, as for `Dataset.ragged`.
            columns: Names, or regular expressions that match whole names.

        Raises:
            ColumnNotFoundError: If nothing matches.
            ArgumentError: If a column has no lists.

        Example:
            >>> from penstock import Pad
            >>> from penstock.testing import MemoryFormat
            >>> ds = MemoryFormat.of({"tokens": [[1], [2, 3]]}, row_group_rows=2).open()
            >>> next(iter(mix([(ds, 1), (ds, 1)]).batch(4).ragged(Pad(), "tokens")))["tokens"].tolist()
            [[1, 0], [1, 0], [2, 3], [2, 3]]
        """
        return _checked(*_mix_clauses.with_ragged(policy, columns, self._table, self._query))

    def using(
        self,
        *,
        workers: Literal["threads", "processes"] | None = None,
        threads: int | None = None,
        processes: int | None = None,
        memory_limit: int | None = None,
        timeout: float | None = None,
    ) -> Mixture:
        """Return a mixture that is read with other resources, with the same results. Omitted options do not change.

        Args:
            workers: What runs the maps of the mixture: "threads", or "processes" for functions that are Python-bound. Sources
                are read, decoded and mapped on threads.
            threads: Threads that read and decode, for all sources together; by default the largest number that a source has
                by its own `.using()`, or one for each processor.
            processes: Worker processes, with `workers="processes"`; by default one for each processor.
            memory_limit: Bytes that the rows of all sources take in memory at most, in equal shares for the sources without a
                limit of their own; 1 GiB by default.
            timeout: Seconds after which a process that works on one batch is stopped, with an error; 600 by default.

        Example:
            >>> from penstock.testing import example
            >>> mix([(example(), 1)]).using(threads=4) == mix([(example(), 1)])
            True
        """
        changes = clauses.using_changes(
            workers=workers, threads=threads, processes=processes, memory_limit=memory_limit, timeout=timeout
        )
        return self._with(**changes)

    def with_source(self) -> Mixture:
        """Return a mixture with the column `_source` added, the number of the source of each row.

        Example:
            >>> from penstock.testing import example
            >>> next(iter(mix([(example(), 2), (example(), 1)]).with_source().batch(6)))["_source"]
            array([1, 0, 0, 1, 0, 0])
        """
        return _checked(replace(self._table, numbered=True), self._query)

    @property
    def num_rows(self) -> int:
        """The rows of an epoch over all ranks; repeated rows count each time."""
        return self._table.plan(self._query).blend.num_rows

    @property
    def schema(self) -> Schema:
        """The columns of a row, as NumPy types; of maps, the columns that they declare."""
        return _mix_clauses.output_schema(self._table, self._query)

    @property
    def fingerprint(self) -> str:
        """A name of the query; equal mixtures have equal names."""
        sources = [explain.fingerprint(source.table, source.query) for source in self._table.sources]
        parts = [sources, [id(step.function) for step in self._query.maps], repr(self)]
        return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()

    def explain(self, *, analyze: bool = False) -> str:
        """Return a text about what is read of each source; with `analyze` some is read now, and it shows where the time goes.

        Example:
            >>> from penstock.testing import example
            >>> print(mix([(example(), 2), (example().limit(3), 1)]).batch(3).explain())
            penstock.mix([(penstock.open('memory:example'), 2), (penstock.open('memory:example').limit(3), 1)]).batch(3)
              source 0    2 of every 3 slots; 7 of its 10 rows
              source 1    1 of every 3 slots; 3 of its 3 rows
              epoch       10 rows, until the first source would run out
              ranks       1, 1 lanes; this is rank 0, with 10 rows
              steps       4 per epoch on this rank, last=uneven
        """
        page = _explain(self._table, self._query, repr(self))
        return explain.append_timings(self._table, self._query, page) if analyze else page

    def __repr__(self) -> str:
        """Return the mixture as Python."""
        mixture, query = self._table, self._query
        pairs = ", ".join(f"({explain.format_query(one.table, one.query)}, {one.weight!r})" for one in mixture.sources)
        options = {"stop": (mixture.stop, "first"), "seed": (query.seed, 0)}
        changed = [f"{name}={value!r}" for name, (value, default) in options.items() if value != default]
        calls = explain.format_clauses(replace(query, shuffle=InOrder(), seed=0))
        return f"penstock.mix({', '.join([f'[{pairs}]', *changed])}){'.with_source()' * mixture.numbered}{''.join(calls)}"

    if not TYPE_CHECKING:  # or a type checker would accept any attribute

        def __getattr__(self, name: str) -> NoReturn:
            """Raise an error that names the place of a clause which a mixture does not have."""
            raise AttributeError(_mix_clauses.missing_attribute(name), name=name, obj=self)

    def _with(self, **changes: Any) -> Mixture:
        return _checked(self._table, replace(self._query, **changes))


def _checked(mixture: MixtureTable, query: Query) -> Mixture:
    """Return a mixture, after a check that its clauses can be combined."""
    _mix_clauses.check_added_columns(mixture, query)
    return Mixture(mixture, query)


def _explain(mixture: MixtureTable, query: Query, title: str) -> str:
    """Return a page about what is read of which source."""
    planned = mixture.plan(query)
    blend, kind = planned.blend, "batches" if mixture.batched else "rows"
    rank_epoch = RankEpoch(planned.plan, planned.shuffle, query, Position())
    lines = {}
    for number, (part, used) in enumerate(zip(blend.parts, blend.used, strict=True)):
        share = f"{mixture.shares[number]} of every {blend.pattern.stratum} slots"
        epochs = f"{used} {kind}, in {blend.epochs(number)} epochs of {part.slots}"
        lines[f"source {number}"] = f"{share}; {epochs if used > part.slots else f'{used} of its {part.slots} {kind}'}"
    end = "until the first source would run out" if mixture.stop == "first" else "until all sources have been handed out whole"
    lines["epoch"] = f"{blend.num_slots} {kind}, {end}"
    share = f"this is rank {query.rank}, with {rank_epoch.shard.num_rows} {kind}"
    lines["ranks"] = f"{query.world_size}, {rank_epoch.position.assignments[0].lanes} lanes; {share}"
    lines["steps"] = f"{len(rank_epoch.schedule)} per epoch on this rank, last={query.ending}"
    return "\n".join([title, *(f"  {name:<11} {text}" for name, text in lines.items())])
