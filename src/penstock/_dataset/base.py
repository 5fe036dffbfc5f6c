"""What datasets and mixtures have in common: iteration, length, sharding, maps and equality."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

from penstock._dataset import clauses
from penstock._engine.deliver.loader import Batches, Iteration
from penstock._engine.deliver.mixture import MixtureTable
from penstock._engine.plan.table import Table
from penstock._engine.query.query import Query
from penstock._engine.query.values import RESIZE_ADVICE
from penstock.model import Position
from penstock.schema import Field

__all__ = ["BaseDataset"]


class BaseDataset:
    """The base class of `Dataset` and `Mixture`.

    Example:
        >>> from penstock.testing import example
        >>> isinstance(example(), BaseDataset)
        True
    """

    __slots__ = ()

    _RESIZE_ADVICE: ClassVar[str] = RESIZE_ADVICE

    _table: Table | MixtureTable
    _query: Query

    def _with(self, **changes: Any) -> Self:
        """Return a copy whose query has other values for some clauses."""
        raise NotImplementedError

    def map(
        self,
        function: Callable[..., Mapping[str, Any]],
        *,
        per_row: bool = False,
        fields: Sequence[Field] | None = None,
    ) -> Self:
        """Return the results of a function of each batch, or of each row if there are no batches.

        The function gets a dict of arrays and returns one with the same number of rows. If it takes a second argument, or
        one called `rng`, it also gets a `numpy.random.Generator` that depends on the seed, the epoch and the position of the
        rows in it only. The maps of a mixture run after those of its sources, on batches with rows of all of them.

        Args:
            function: The function; several maps run one after the other.
            per_row: Call it with one row at a time, also if there are batches.
            fields: The columns it returns, for `schema` to show them before it runs.

        Raises:
            ArgumentError: If it is not a function, or `fields` are not `Field` objects.

        Example:
            >>> from penstock.testing import example
            >>> next(iter(example().batch(3).map(lambda batch: {"twice": batch["id"] * 2})))
            {'twice': array([0, 2, 4])}
        """
        step = clauses.new_map(function, fields, per_row=per_row, advice=self._RESIZE_ADVICE)
        return self._with(maps=(*self._query.maps, step))

    def shard(self, rank: int, world_size: int, *, lanes: int | None = None) -> Self:
        """Return the part of one of several readers; together they read every row once.

        Args:
            rank: The number of this reader, from 0.
            world_size: The number of readers.
            lanes: Parts that the order is cut into, a multiple of `world_size`; by default `world_size`. A job that resumes
                with another number of readers that divides the lanes sees the same global batches.

        Raises:
            ArgumentError: If the rank is not below the world size.

        Example:
            >>> from penstock.testing import example
            >>> [len(example().shard(rank, 3)) for rank in range(3)]
            [3, 3, 4]
        """
        return self._with(**clauses.shard_changes(rank, world_size, lanes))

    def repeat(self, epochs: int | None = None) -> Self:
        """Return several epochs as one iteration, each in its own order; without end by default.

        Example:
            >>> from penstock.testing import example
            >>> len(example().repeat(3))
            30
        """
        return self._with(epochs=clauses.valid_epochs(epochs))

    def __iter__(self) -> Batches:
        """Return the batches, or rows, of epoch 0.

        Raises:
            EmptyDatasetError: If there are no rows, or too few.
        """
        return Batches(self._table, self._query, Position())

    def __len__(self) -> int:
        """Return the number of batches, or rows, that one iteration yields on this rank.

        Raises:
            TypeError: If it has no length: it repeats without end, or has a lazy filter.
        """
        return len(Iteration(self._table.plan(self._query), self._query, Position()))

    def __bool__(self) -> bool:
        """Return True; `num_rows` says whether there are rows."""
        return True

    @property
    def fingerprint(self) -> str:
        """A name of the query; equal datasets have equal names."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        """Return whether both have the same table and query."""
        return isinstance(other, type(self)) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        """Return a hash of the fingerprint."""
        return hash(self.fingerprint)
