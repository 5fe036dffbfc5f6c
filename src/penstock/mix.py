"""Several datasets by weight, as one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from penstock import _mix_clauses as blending
from penstock._dataset import clauses
from penstock._dataset import explain as telling
from penstock._engine.deliver.loader import Batches, Iteration
from penstock._engine.deliver.mixture import MixtureTable
from penstock._engine.order.mixture import Stop
from penstock._engine.order.shard import RankEpoch
from penstock._engine.query.query import Query
from penstock._engine.query.values import Last, Map
from penstock.dataset import Dataset
from penstock.errors import ArgumentError
from penstock.model import Position
from penstock.policies import Ragged
from penstock.schema import Field, Schema
from penstock.shuffles import InOrder

__all__ = ["Mixture", "mix"]


def mix(sources: Sequence[tuple[Dataset, float | Fraction]], *, stop: Stop = "first", seed: int = 0) -> Mixture:
    """Return several datasets as one, each with its exact share of what comes.

    Sources without batches are mixed row by row, and `.batch(256)` of the mixture has rows of all of them. Sources with
    batches are mixed batch by batch. Which source comes when depends on nothing but the seed, so a mixture is dealt to ranks
    and resumed like a dataset.

    Args:
        sources: Datasets and their weights: positive numbers, of which only the proportions count.
        stop: Where an epoch ends. "first": where the first source would run out, so that no row comes twice. "all": when
            every source has been handed out whole, and those that end before begin again, in the order of their next epoch.
        seed: Another seed takes turns otherwise; the order of a source's rows is its own `.shuffle(seed=...)`.

    Raises:
        ArgumentError: If sources do not go together, or a weight is not positive.

    Example:
        >>> from penstock.testing import example
        >>> odd, even = (example().where(("label", "==", label)).select("id") for label in ("odd", "even"))
        >>> [batch["id"].tolist() for batch in mix([(odd, 2), (even, 1)], seed=1).batch(3)]
        [[1, 3, 0], [5, 2, 7], [9, 4]]
    """
    found = blending.sources(sources)
    found, policies = blending.gathered(found)
    mixture = MixtureTable(sources=found, stop=blending.stop(stop))
    _ = mixture.shares  # which refuses weights that are too small
    query = Query(
        seed=clauses.seed(seed),
        # An epoch ends as that of a shuffled dataset where any source is one.
        shuffle=next((source.query.shuffle for source in found if source.query.shuffled), InOrder()),
        # A batch is a slot, and all ranks have as many.
        last="drop" if mixture.batched else None,
        threads=max((source.query.threads or 0 for source in found), default=0) or None,
        policies=policies,
    )
    blending.check_added(mixture, query)
    return Mixture(mixture, query)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Mixture:
    """Several datasets by weight; every clause returns a new one, and nothing is read before an answer is asked for.

    What concerns rows and columns (`where`, `select`, `shuffle`, `limit` and so on) is asked of the sources, and what
    concerns the whole (`batch`, `map`, `ragged`, `shard`, `repeat`) of the mixture.

    Example:
        >>> from penstock.testing import example
        >>> mix([(example(), 3), (example().shuffle(seed=2), 1)], stop="all").batch(4)
        penstock.mix([(penstock.open('memory:example'), 3), (penstock.open('memory:example').shuffle(seed=2), 1)], stop='all').batch(4)
    """  # noqa: E501 - what is printed is as long as it is

    _table: MixtureTable
    _query: Query

    def batch(self, size: int, *, last: Last | None = None) -> Mixture:
        """Return batches of rows of all sources, `size` rows each.

        Args:
            size: Rows of a batch on each rank.
            last: What becomes of the rows that do not fill a batch on every rank, as for `Dataset.batch`. By default "drop"
                where a source is shuffled or the mixture is sharded, and "uneven" otherwise.

        Raises:
            ArgumentError: If the sources have batches of their own, or the size is not positive.

        Example:
            >>> from penstock.testing import example
            >>> len(mix([(example(), 1), (example(), 1)]).batch(4))
            5
        """
        if self._table.batched:
            msg = (
                "batch was called on a mixture whose sources have batches already, which are handed out as they are. Leave it "
                "out; or leave .batch() out of the sources for batches with rows of all of them."
            )
            raise ArgumentError(msg)
        found, last = clauses.batching(size, last)
        if found == "row_group":
            msg = 'batch got "row_group", and a mixture has rows of several tables in turn. Give a number of rows.'
            raise ArgumentError(msg)
        return self._with(size=found, last=last)

    def map(
        self,
        function: Callable[..., Mapping[str, Any]],
        *,
        per_row: bool = False,
        fields: Sequence[Field] | None = None,
    ) -> Mixture:
        """Return what a function makes of each batch, or of each row of a mixture without batches.

        It runs after the maps of the sources, and gets rows of all of them; see `Dataset.map`.

        Args:
            function: The function; several maps run one after the other.
            per_row: Call it with one row at a time, also where there are batches.
            fields: The columns it returns, where they are to be known before it runs.

        Example:
            >>> from penstock.testing import example
            >>> one = example().select("id")
            >>> next(iter(mix([(one, 1), (one, 1)]).batch(4).map(lambda batch: {"twice": batch["id"] * 2})))
            {'twice': array([0, 0, 2, 2])}
        """
        clauses.check_map(function, fields)
        declared = None if fields is None else tuple(fields)
        step = Map(function=function, per_row=per_row, fields=declared, advice=blending.RESIZE_ADVICE)
        return self._with(maps=(*self._query.maps, step))

    def ragged(self, policy: Ragged, *columns: str) -> Mixture:
        """Return a mixture in which lists of some columns become arrays otherwise than by default.

        The policy acts on the mixture's batches, with rows of all sources, after the maps of the sources and before those of
        the mixture. Policies of the sources do so too, as far as they depend on the other rows of a batch. Where the sources
        have batches of their own, each of these is treated by itself.

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
        mixture, query = blending.ragged(policy, columns, self._table, self._query)
        blending.check_added(mixture, query)
        return Mixture(mixture, query)

    def shard(self, rank: int, world_size: int, *, lanes: int | None = None) -> Mixture:
        """Return the part of one of several readers; together they read every row once. See `Dataset.shard`.

        Raises:
            ArgumentError: If the rank is not below the world size.

        Example:
            >>> from penstock.testing import example
            >>> [len(mix([(example(), 1), (example(), 1)]).shard(rank, 3)) for rank in range(3)]
            [6, 7, 7]
        """
        return self._with(**clauses.sharding(rank, world_size, lanes))

    def repeat(self, epochs: int | None = None) -> Mixture:
        """Return a mixture whose one iteration is several epochs; without end by default.

        Example:
            >>> from penstock.testing import example
            >>> len(mix([(example(), 1), (example(), 1)]).repeat(3))
            60
        """
        return self._with(epochs=clauses.epochs(epochs))

    def using(
        self,
        *,
        workers: Literal["threads", "processes"] | None = None,
        threads: int | None = None,
        processes: int | None = None,
        memory_limit: int | None = None,
        timeout: float | None = None,
    ) -> Mixture:
        """Return a mixture that is read with other means; it changes nothing in what comes, nor in its order.

        What is not given stays as it was.

        Args:
            workers: What runs the maps of the mixture: "threads", or "processes" for functions that are Python-bound. Sources
                are read, decoded and mapped on threads.
            threads: How many threads read and decode, for all sources together; by default the most that one of them has
                by its own `.using()`, or one for each processor.
            processes: How many processes there are, where there are any; by default one for each processor.
            memory_limit: Bytes that the rows of all sources may take in memory, shared out evenly to those that have no limit
                of their own; 1 GiB by default.
            timeout: Seconds that a process may take for one batch before it is ended, with an error; 600 by default.

        Example:
            >>> from penstock.testing import example
            >>> mix([(example(), 1)]).using(threads=4) == mix([(example(), 1)])
            True
        """
        return self._with(**clauses.means(threads, memory_limit, None, workers, processes, timeout))

    def with_source(self) -> Mixture:
        """Return a mixture with the column `_source` added: the number of the source that a row comes from.

        Example:
            >>> from penstock.testing import example
            >>> next(iter(mix([(example(), 2), (example(), 1)]).with_source().batch(6)))["_source"]
            array([1, 0, 0, 1, 0, 0])
        """
        mixture = replace(self._table, numbered=True)
        blending.check_added(mixture, self._query)
        return Mixture(mixture, self._query)

    def __iter__(self) -> Batches:
        """Return the batches, or rows, of epoch 0.

        Raises:
            EmptyDatasetError: If there is nothing, or too little, to hand out.
        """
        return Batches(self._table, self._query, Position())

    def __len__(self) -> int:
        """Return how many batches, or rows, one iteration yields on this rank.

        Raises:
            TypeError: If it has no length: it repeats without end.
        """
        return len(Iteration(self._table.plan(self._query), self._query, Position()))

    def __bool__(self) -> bool:
        """Return True: whether a mixture has rows is asked with `num_rows`."""
        return True

    @property
    def num_rows(self) -> int:
        """The rows of an epoch over all ranks, those that come twice counted twice."""
        return self._table.plan(self._query).blend.num_rows

    @property
    def schema(self) -> Schema:
        """The columns of a row, as NumPy types; what a map makes is known where the map declares it."""
        return blending.schema(self._table, self._query)

    @property
    def fingerprint(self) -> str:
        """A name of the question; equal mixtures have equal names."""
        sources = [telling.fingerprint(source.table, source.query) for source in self._table.sources]
        asked = [sources, [id(step.function) for step in self._query.maps], repr(self)]
        return hashlib.blake2b(json.dumps(asked).encode(), digest_size=16).hexdigest()

    def explain(self, *, analyze: bool = False) -> str:
        """Return what will be handed out of each source; with `analyze` some is read now, and the text tells where time goes.

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
        page = _explained(self._table, self._query, repr(self))
        return telling.analyzed(self._table, self._query, page) if analyze else page

    def __eq__(self, other: object) -> bool:
        """Return whether two mixtures ask the same of the same tables."""
        return isinstance(other, Mixture) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        """Return a hash that equal mixtures share."""
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        """Return the question as it can be asked again."""
        mixture, query = self._table, self._query
        pairs = ", ".join(f"({telling.told(one.table, one.query)}, {one.weight!r})" for one in mixture.sources)
        said = [f"[{pairs}]", *(f"{name}={value!r}" for name, value in _options(mixture, query).items())]
        clauses_told = telling.told_clauses(replace(query, shuffle=InOrder(), seed=0))
        return f"penstock.mix({', '.join(said)}){'.with_source()' * mixture.numbered}{''.join(clauses_told)}"

    if not TYPE_CHECKING:  # or every name would be one of a mixture's

        def __getattr__(self, name: str) -> NoReturn:
            """Refuse what a mixture does not have, with where to ask for it."""
            raise AttributeError(blending.lacking(name), name=name, obj=self)

    def _with(self, **changes: Any) -> Mixture:
        query = replace(self._query, **changes)
        blending.check_added(self._table, query)
        return Mixture(self._table, query)


def _options(mixture: MixtureTable, query: Query) -> dict[str, Any]:
    """Return the options of `mix` that differ from their defaults."""
    said = {"stop": (mixture.stop, "first"), "seed": (query.seed, 0)}
    return {name: value for name, (value, default) in said.items() if value != default}


def _explained(mixture: MixtureTable, query: Query, told: str) -> str:
    """Return a page that says what is handed out of which source."""
    planned = mixture.plan(query)
    blend, kind = planned.blend, "batches" if mixture.batched else "rows"
    rank_epoch = RankEpoch(planned.plan, planned.shuffle, query, Position())
    lines = {}
    for number, (part, used) in enumerate(zip(blend.parts, blend.used, strict=True)):
        share = f"{mixture.shares[number]} of every {blend.pattern.stratum} slots"
        epochs = f"{used} {kind}, in {blend.epochs(number)} epochs of {part.slots}"
        lines[f"source {number}"] = f"{share}; {epochs if used > part.slots else f'{used} of its {part.slots} {kind}'}"
    ends = "until the first source would run out" if mixture.stop == "first" else "until all sources have been handed out whole"
    lines["epoch"] = f"{blend.num_slots} {kind}, {ends}"
    share = f"this is rank {query.rank}, with {rank_epoch.shard.num_rows} {kind}"
    lines["ranks"] = f"{query.world_size}, {rank_epoch.position.assignments[0].lanes} lanes; {share}"
    lines["steps"] = f"{len(rank_epoch.schedule)} per epoch on this rank, last={query.ending}"
    return "\n".join([told, *(f"  {name:<11} {text}" for name, text in lines.items())])
