"""The question: a frozen value that says which rows of a table are wanted, in which order and shape."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from penstock import sequences
from penstock._dataset import clauses
from penstock._dataset import explain as telling
from penstock._dataset import sequence as sequencing
from penstock._dataset import stack as stacking
from penstock._dataset.collect import Collect
from penstock._engine.deliver.loader import Batches, Iteration
from penstock._engine.plan.table import Table
from penstock._engine.query.query import Query
from penstock._engine.query.values import Last, Map
from penstock.filters import Expr
from penstock.model import Position
from penstock.policies import Nulls, Ragged
from penstock.protocols import Shuffle
from penstock.schema import Field, Schema
from penstock.shuffles import WindowShuffle

__all__ = ["Dataset"]

PLAIN = Query()
"""All rows of all columns, one by one, as they are stored."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Dataset(Collect):
    """A question asked of a table; every clause returns a new one, and nothing is read before an answer is asked for.

    Clauses act in this order, whatever the order of calls: `where`, `split`, `sequence`, `limit`, `select`, `shuffle`,
    `shard`, `batch`, `stack`, `map`. Two datasets are equal when they ask the same of the same table.

    Example:
        >>> from penstock.testing import example
        >>> ds = example().where(col("id") >= 7).select("id")
        >>> ds
        penstock.open('memory:example').where(col('id') >= 7).select('id')
        >>> [int(row["id"]) for row in ds]
        [7, 8, 9]
    """

    _table: Table
    _query: Query = PLAIN

    def where(self, *conditions: Expr | Sequence[Any], lazy: bool = False) -> Dataset:
        """Return the rows that pass: pruned by partition and statistics first, then row by row.

        Conditions given together, or in several calls, must all hold. A null passes none.

        Args:
            conditions: Expressions over `penstock.col`, or tuples like `("x", ">", 3)` in lists as pyarrow takes them.
            lazy: Filter while reading instead of counting first. It saves a pass over the filter's columns; the length is
                then unknown, and ranks may get unequal numbers of batches.

        Raises:
            ColumnNotFoundError: If the table has no such column.
            FilterError: If a value does not fit its column, or the column is made by `map`.

        Example:
            >>> from penstock.testing import example
            >>> example().where(("id", "<", 3), col("label") == "even").num_rows
            2
        """
        condition = clauses.bound(conditions, self._query, self._table.snapshot)
        return self._with(condition=condition, lazy=lazy or self._query.lazy)

    def sequence(self, sequence: sequences.Sequence) -> Dataset:
        """Return sequences of rows that follow one another in time, instead of single rows.

        Whatever counts, orders, limits or shares out rows does so with sequences then. Of every column a batch has one
        dimension more, the second, for the rows of each sequence. The filter acts first: sequences are made of rows that pass.

        Raises:
            ColumnNotFoundError: If the table has no such column.
            ArgumentError: If a column cannot tell times or groups, or the gap does not fit it.

        Example:
            >>> from penstock.testing import example
            >>> ds = example().select("id").sequence(sequences.Sequence(length=3, by="x"))
            >>> ds.num_rows, ds[1]["id"]
            (4, array([1, 2, 3]))
        """
        return self._with(**sequencing.sequence(sequence, self._query, self._table.snapshot))

    def select(self, *columns: str | Field) -> Dataset:
        """Return only some columns, in this order: names, regular expressions that match whole names, or fields.

        Raises:
            ColumnNotFoundError: If nothing matches.

        Example:
            >>> from penstock.testing import example
            >>> example().select("l.*", "id").schema.names
            ('label', 'id')
        """
        return self._with(columns=clauses.selected(columns, self._query, self._table.snapshot))

    def shuffle(self, shuffle: Shuffle | None = None, *, seed: int = 0) -> Dataset:
        """Return the rows in another order each epoch, the same for the same seed, for ever.

        Args:
            shuffle: The kind of order; by default a `WindowShuffle`, whose window trades mixing against memory.
            seed: Any integer from 0 on; 0 is a seed like others.

        Example:
            >>> from penstock.testing import example
            >>> sorted(int(row["id"]) for row in example().shuffle(seed=7))
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
        """
        return self._with(shuffle=clauses.order(shuffle or WindowShuffle()), seed=clauses.seed(seed))

    def batch(self, size: int | Literal["row_group"], *, last: Last | None = None) -> Dataset:
        """Return batches instead of rows: a dict of arrays, `size` rows each.

        Args:
            size: Rows of a batch on each rank, or "row_group" for what is read in one go.
            last: What becomes of the rows that do not fill a batch on every rank. "drop" leaves them out, fewer than one
                global batch and others each epoch; "pad" repeats a row to fill up and marks it False in the column
                `_valid`; "wrap" fills up with rows of the beginning; "level" does so only as far as the rank goes that has
                most rows; "uneven" lets ranks have unequal batches. By default "drop" for shuffled or sharded datasets,
                and "uneven" for others, which loses nothing.

        Raises:
            ArgumentError: If the size is not positive or `last` is not one of these.

        Example:
            >>> from penstock.testing import example
            >>> [len(batch["id"]) for batch in example().batch(4)]
            [4, 4, 2]
        """
        size, last = clauses.batching(size, last)
        return self._with(size=size, last=last)

    def map(
        self,
        function: Callable[..., Mapping[str, Any]],
        *,
        per_row: bool = False,
        fields: Sequence[Field] | None = None,
    ) -> Dataset:
        """Return what a function makes of each batch, or of each row of a dataset without batches.

        The function gets a dict of arrays and returns one with as many rows. Where it takes a second argument, or one
        called `rng`, it also gets a `numpy.random.Generator` that depends on nothing but the seed, the epoch and the
        rows' place in it.

        Args:
            function: The function; several maps run one after the other.
            per_row: Call it with one row at a time, also where there are batches.
            fields: The columns it returns, where they are to be known before it runs.

        Example:
            >>> from penstock.testing import example
            >>> next(iter(example().batch(3).map(lambda batch: {"twice": batch["id"] * 2})))
            {'twice': array([0, 2, 4])}
        """
        clauses.check_map(function, fields)
        step = Map(function=function, per_row=per_row, fields=None if fields is None else tuple(fields))
        return self._with(maps=(*self._query.maps, step))

    def stack(self, name: str, columns: Sequence[str]) -> Dataset:
        """Return a dataset with columns of numbers stacked into one column of vectors, before any map.

        Args:
            name: What the new column is called.
            columns: Names, or regular expressions that match whole names.

        Raises:
            ArgumentError: If they are no numbers, or their shapes differ.

        Example:
            >>> from penstock.testing import example
            >>> next(iter(example().select("id", "x").batch(2).stack("both", ["id", "x"])))["both"].shape
            (2, 2)
        """
        stacked = stacking.stacked(name, columns, self._query, self._table.snapshot)
        return self._with(stacks=(*self._query.stacks, stacked))

    def shard(self, rank: int, world_size: int, *, lanes: int | None = None) -> Dataset:
        """Return the part of one of several readers; together they read every row once.

        Args:
            rank: Which reader this is, from 0.
            world_size: How many there are.
            lanes: Parts that the order is cut into, a multiple of `world_size`; by default `world_size`. A job that will go
                on with another number of readers which divides the lanes sees the same global batches.

        Raises:
            ArgumentError: If the rank is not below the world size.

        Example:
            >>> from penstock.testing import example
            >>> [len(example().shard(rank, 3)) for rank in range(3)]
            [3, 3, 4]
        """
        return self._with(**clauses.sharding(rank, world_size, lanes))

    def limit(self, rows: int) -> Dataset:
        """Return at most the first `rows` rows that pass the filter, in stored order, the same in every epoch.

        Example:
            >>> from penstock.testing import example
            >>> example().limit(4).num_rows
            4
        """
        return self._with(limit=clauses.limit(rows, self._query.limit))

    def repeat(self, epochs: int | None = None) -> Dataset:
        """Return a dataset whose one iteration is several epochs, each in an order of its own; without end by default.

        Example:
            >>> from penstock.testing import example
            >>> len(example().repeat(3))
            30
        """
        return self._with(epochs=clauses.epochs(epochs))

    def nulls(self, policy: Nulls, *columns: str) -> Dataset:
        """Return a dataset in which nulls of some columns are treated otherwise than by default.

        By default they are NaN among floats, NaT among times and None among objects, and an error anywhere else.

        Args:
            policy: `Fill(value)`, `Mask()`, which adds a column `<name>_valid`, or `RaiseOnNull()`.
            columns: Names, or regular expressions that match whole names.

        Example:
            >>> from penstock.testing import example
            >>> sorted(example().nulls(Mask(), "x").head())
            ['id', 'label', 'x', 'x_valid']
        """
        return self._with(policies=clauses.policies(columns, self._query, self._table.snapshot, nulls=policy))

    def ragged(self, policy: Ragged, *columns: str) -> Dataset:
        """Return a dataset in which lists of some columns become arrays otherwise than by default.

        By default a column of lists is an object array of arrays.

        Args:
            policy: `Pad(value, length)`, which adds a column `<name>_length`; `Offsets()`, which gives all values in one
                array and adds `<name>_offsets`; or `RaiseIfRagged()`, for lists that are all of one length.
            columns: Names, or regular expressions that match whole names.

        Example:
            >>> from penstock.testing import MemoryFormat
            >>> ds = MemoryFormat.of({"tokens": [[1], [2, 3]]}, row_group_rows=2).open().batch(2)
            >>> next(iter(ds.ragged(Pad(), "tokens")))["tokens"].tolist()
            [[1, 0], [2, 3]]
        """
        return self._with(policies=clauses.policies(columns, self._query, self._table.snapshot, ragged=policy))

    def using(
        self,
        *,
        workers: Literal["threads", "processes"] | None = None,
        threads: int | None = None,
        processes: int | None = None,
        memory_limit: int | None = None,
        max_cell_bytes: int | None = None,
        timeout: float | None = None,
        checksums: bool | None = None,
    ) -> Dataset:
        """Return a dataset that is read with other means, which change nothing in what comes; what is not given stays.

        Args:
            workers: What decodes cells and runs maps: "threads", or "processes" for functions that are Python-bound.
            threads: How many threads read, and decode; by default one for each processor.
            processes: How many processes there are, where there are any; by default one for each processor.
            memory_limit: Bytes that may be read ahead of the consumer, where a single window is not more; 1 GiB by default.
            max_cell_bytes: What one cell may take when it is decoded, 256 MiB by default: a small file can claim to be huge.
            timeout: Seconds that a process may take for one batch before it is ended, with an error; 600 by default.
            checksums: Whether pages are compared with the checksums that they were written with, where they were; cells are
                then read by pyarrow and not as they lie, which takes longer. They are not by default.

        Example:
            >>> from penstock.testing import example
            >>> example().using(threads=4) == example()
            True
        """
        return self._with(**clauses.means(threads, memory_limit, max_cell_bytes, workers, processes, timeout, checksums))

    def on_bad_row(
        self, action: Literal["raise", "skip"], *, most: float = 0.01, report: str | os.PathLike[str] | None = None
    ) -> Dataset:
        """Return a dataset that raises on a bad row, as by default, or skips it: its batch is shorter, and nothing else moves.

        A row is bad if a cell of it cannot be decoded, or is null or ragged where that is refused, or if a map raises on it.
        A map of batches is run again without the rows that it raises on. A file that cannot be read is an error always.

        Args:
            action: "raise" or "skip". What was skipped is listed in `loader.skipped`.
            most: How many rows of an epoch may be skipped on each rank before it is an error: a share, or a whole number.
            report: A file that a line of JSON is added to for every row that is skipped; of several ranks, one for each.

        Example:
            >>> from penstock.testing import MemoryFormat
            >>> ds = MemoryFormat.of({"n": [1, None, 3]}).open().batch(3)
            >>> batches = iter(ds.on_bad_row("skip", most=1))
            >>> next(batches)["n"], batches.skipped[0].row
            (array([1, 3]), 1)
        """
        return self._with(skip=clauses.skipping(action, most, report))

    def with_row_ids(self) -> Dataset:
        """Return a dataset with the columns `_file`, `_row_group` and `_row` (the row's number in its file) added.

        Example:
            >>> from penstock.testing import example
            >>> example().with_row_ids()[5]["_row_group"]
            np.int64(1)
        """
        return self._with(row_ids=True)

    def split(self, parts: Mapping[str, float], *, by: str, seed: int = 0) -> dict[str, Dataset]:
        """Return disjoint datasets that hold about the given shares of the rows.

        A row's part depends on nothing but its value of `by` and the seed, so rows never move when others are added.

        Args:
            parts: The share of each part by its name; together at most 1.
            by: The column that decides, best one that is unique, or the one whose groups must stay together.
            seed: Another seed gives other parts.

        Raises:
            ArgumentError: If the shares are not positive or exceed 1 together.
            ColumnNotFoundError: If the table has no such column.

        Example:
            >>> from penstock.testing import example
            >>> train, rest = example().split({"train": 0.8, "rest": 0.2}, by="id").values()
            >>> train.num_rows + rest.num_rows
            10
        """
        return {name: self.where(part) for name, part in clauses.parts(parts, by, seed, self._query).items()}

    def __iter__(self) -> Batches:
        """Return the batches, or rows, of epoch 0.

        Raises:
            EmptyDatasetError: If there is nothing, or too little, to hand out.
        """
        return Batches(self._table, self._query, Position())

    def __len__(self) -> int:
        """Return how many batches, or rows, one iteration yields on this rank.

        Raises:
            TypeError: If it has no length: it repeats without end, or filters on the fly.
        """
        return len(Iteration(self._table.plan(self._query), self._query, Position()))

    def __bool__(self) -> bool:
        """Return True: whether a dataset has rows is asked with `num_rows`."""
        return True

    @property
    def schema(self) -> Schema:
        """The columns of a row, as NumPy types; what a map makes is known where the map declares it."""
        return telling.schema(self._table, self._query)

    @property
    def fingerprint(self) -> str:
        """A name of the question; equal datasets have equal names."""
        return telling.fingerprint(self._table, self._query)

    def explain(self, *, analyze: bool = False) -> str:
        """Return what will be read and handed out; with `analyze` some is read now, and the text tells where the time goes.

        Example:
            >>> from penstock.testing import example
            >>> print(example().where(col("id") > 8).batch(2).explain().splitlines()[1].strip())
            files       1 of 1
        """
        return telling.explain(self._table, self._query, analyze=analyze)

    def __eq__(self, other: object) -> bool:
        """Return whether two datasets ask the same question of the same table."""
        return isinstance(other, Dataset) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        """Return a hash that equal datasets share."""
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        """Return the question as it can be asked again; of an opened table its rows and columns too, as a comment."""
        return telling.shown(self._table, self._query)

    def _with(self, **changes: Any) -> Dataset:
        return Dataset(self._table, clauses.checked(replace(self._query, **changes), self._table.snapshot))
