"""`Dataset`: a table and a query on it, as an immutable value."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import pyarrow as pa

from penstock import sequences
from penstock._dataset import clauses, data_frames, explain
from penstock._dataset.sequence import sequence_changes
from penstock._dataset.stack import new_stack
from penstock._engine.deliver.loader import Batches, Iteration
from penstock._engine.deliver.mixture import MixtureTable
from penstock._engine.lookup import access
from penstock._engine.plan.table import Table
from penstock._engine.query.query import RESIZE_ADVICE, Batch, Last, Query
from penstock.errors import ArgumentError
from penstock.filters import Expr
from penstock.model import Position
from penstock.policies import Nulls, Offsets, Ragged
from penstock.protocols import Shuffle
from penstock.schema import Field, Schema
from penstock.shuffles import WindowShuffle

__all__ = ["BaseDataset", "Dataset"]

if TYPE_CHECKING:
    import pandas as pd


ALL_ROWS = Query()
"""All rows of all columns, one by one, in stored order."""


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
        self, function: Callable[..., Mapping[str, Any]], *, per_row: bool = False, fields: Sequence[Field] | None = None
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


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Dataset(BaseDataset):
    """A table and a query. Every clause returns a new dataset; rows are read when it is iterated, not before.

    Clauses act in this order, whatever the order of calls: `where`, `split`, `sequence`, `limit`, `select`, `shuffle`,
    `shard`, `batch`, `stack`, `map`. Two datasets are equal if they have the same table and the same clauses.

    Example:
        >>> from penstock.testing import example
        >>> ds = example().where(col("id") >= 7).select("id")
        >>> ds
        penstock.open('memory:example').where(col('id') >= 7).select('id')
        >>> [int(row["id"]) for row in ds]
        [7, 8, 9]
    """

    _table: Table
    _query: Query = ALL_ROWS

    def where(self, *conditions: Expr | Sequence[Any], lazy: bool = False) -> Dataset:
        """Return the rows that pass a filter. Partitions and statistics are checked first, then each row.

        All conditions of all calls must hold. A comparison with null does not hold.

        Args:
            conditions: Expressions over `penstock.col`, or tuples like `("x", ">", 3)` in lists, as pyarrow takes them.
            lazy: Filter while reading, without counting the rows first. This saves a pass over the filter's columns. The
                length is then unknown, and ranks can get unequal numbers of batches.

        Raises:
            ColumnNotFoundError: If the table has no such column.
            FilterError: If a value does not fit its column, or a `map` adds the column.

        Example:
            >>> from penstock.testing import example
            >>> example().where(("id", "<", 3), col("label") == "even").num_rows
            2
        """
        condition = clauses.bound_condition(conditions, self._query, self._table.snapshot)
        return self._with(condition=condition, lazy=lazy or self._query.lazy)

    def sequence(self, sequence: sequences.Sequence) -> Dataset:
        """Return sequences of rows that follow one another in time, instead of single rows.

        All clauses that count, order, limit or shard rows then do so with sequences. Each column of a batch has a second
        dimension for the rows of a sequence. Sequences are made of rows that pass the filter.

        Raises:
            ColumnNotFoundError: If the table has no such column.
            ArgumentError: If a column cannot hold times or groups, or the gap does not fit it.

        Example:
            >>> from penstock.testing import example
            >>> ds = example().select("id").sequence(sequences.Sequence(length=3, by="x"))
            >>> ds.num_rows, ds[1]["id"]
            (4, array([1, 2, 3]))
        """
        return self._with(**sequence_changes(sequence, self._query, self._table.snapshot))

    def select(self, *columns: str | Field) -> Dataset:
        """Return some columns, in this order, by names, regular expressions that match whole names, or fields.

        Raises:
            ColumnNotFoundError: If nothing matches.

        Example:
            >>> from penstock.testing import example
            >>> example().select("l.*", "id").schema.names
            ('label', 'id')
        """
        return self._with(columns=clauses.selected_columns(columns, self._query, self._table.snapshot))

    def shuffle(self, shuffle: Shuffle | None = None, *, seed: int = 0) -> Dataset:
        """Return the rows in a new random order each epoch. The same seed gives the same orders, also in later versions.

        Args:
            shuffle: The kind of order; by default a `WindowShuffle`, whose window trades mixing against memory.
            seed: A non-negative integer; 0 is an ordinary seed.

        Raises:
            ArgumentError: If `shuffle` is not a shuffle, or the seed is not an integer from 0 to 2**63 - 1.

        Example:
            >>> from penstock.testing import example
            >>> sorted(int(row["id"]) for row in example().shuffle(seed=7))
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
        """
        return self._with(shuffle=clauses.valid_shuffle(shuffle or WindowShuffle()), seed=clauses.valid_seed("shuffle", seed))

    def batch(self, size: int | Literal["row_group"], *, last: Last | None = None) -> Dataset:
        """Return batches instead of rows: a dict of arrays, `size` rows each.

        Args:
            size: Rows of a batch on each rank, or "row_group" for one row group per batch.
            last: How an epoch ends if its rows do not fill a batch on every rank. "drop" drops the rest: less than one
                global batch, other rows in each epoch. "pad" repeats a row and marks the copies False in the column
                `_valid`. "wrap" adds rows of the start of the epoch. "level" adds them only up to the rank with most rows.
                "uneven" drops and adds nothing, so ranks can differ. The default is "drop" for shuffled or sharded datasets
                and "uneven" for others.

        Raises:
            ArgumentError: If the size is not positive, or `last` is not one of these.

        Example:
            >>> from penstock.testing import example
            >>> [len(batch["id"]) for batch in example().batch(4)]
            [4, 4, 2]
        """
        return self._with(**clauses.batch_changes(size, last))

    def stack(self, name: str, columns: Sequence[str]) -> Dataset:
        """Return a dataset with columns of numbers stacked into one column of vectors, before maps run.

        Args:
            name: The name of the new column.
            columns: Names, or regular expressions that match whole names.

        Raises:
            ArgumentError: If the columns do not hold numbers, or their shapes differ.

        Example:
            >>> from penstock.testing import example
            >>> next(iter(example().select("id", "x").batch(2).stack("both", ["id", "x"])))["both"].shape
            (2, 2)
        """
        stack = new_stack(name, columns, self._query, self._table.snapshot)
        return self._with(stacks=(*self._query.stacks, stack))

    def limit(self, rows: int) -> Dataset:
        """Return the first `rows` rows that pass the filter, in stored order, the same in every epoch.

        Raises:
            ArgumentError: If `rows` is negative.

        Example:
            >>> from penstock.testing import example
            >>> example().limit(4).num_rows
            4
        """
        return self._with(limit=clauses.smaller_limit(rows, self._query.limit))

    def nulls(self, policy: Nulls, *columns: str) -> Dataset:
        """Return a dataset with another policy for the nulls of some columns.

        By default nulls are NaN in floats, NaT in times and None in objects, and an error in other columns.

        Args:
            policy: `Fill(value)`, `Mask()`, which adds a column `<name>_valid`, or `RaiseOnNull()`.
            columns: Names, or regular expressions that match whole names.

        Example:
            >>> from penstock.testing import example
            >>> sorted(example().nulls(Mask(), "x").head())
            ['id', 'label', 'x', 'x_valid']
        """
        return self._with(policies=clauses.with_policy(columns, self._query, self._table.snapshot, nulls=policy))

    def ragged(self, policy: Ragged, *columns: str) -> Dataset:
        """Return a dataset with another policy for the lists of some columns.

        By default a column of lists is an object array of arrays.

        Args:
            policy: `Pad(value, length)`, which adds a column `<name>_length`; `Offsets()`, which gives all values in one
                array and adds `<name>_offsets`; or `RaiseIfRagged()`, for lists of one length.
            columns: Names, or regular expressions that match whole names.

        Example:
            >>> from penstock.testing import MemoryFormat
            >>> ds = MemoryFormat.of({"tokens": [[1], [2, 3]]}, row_group_rows=2).open().batch(2)
            >>> next(iter(ds.ragged(Pad(), "tokens")))["tokens"].tolist()
            [[1, 0], [2, 3]]
        """
        return self._with(policies=clauses.with_policy(columns, self._query, self._table.snapshot, ragged=policy))

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
        """Return a dataset that is read with other resources, with the same results. Omitted options do not change.

        Args:
            workers: What decodes cells and runs maps: "threads", or "processes" for functions that are Python-bound.
            threads: Threads that read and decode; by default one for each processor.
            processes: Worker processes, with `workers="processes"`; by default one for each processor.
            memory_limit: Bytes that are read ahead at most, unless a single window takes more; 1 GiB by default.
            max_cell_bytes: The largest size of a decoded cell; 256 MiB by default. A small file can declare a huge image.
            timeout: Seconds after which a process that works on one batch is stopped, with an error; 600 by default.
            checksums: Whether the checksums of Parquet pages are verified, if there are any; False by default. Reading then
                takes longer, since pyarrow reads all cells.

        Raises:
            ArgumentError: If a value is not of its type, or not positive.

        Example:
            >>> from penstock.testing import example
            >>> example().using(threads=4) == example()
            True
        """
        changes = clauses.using_changes(
            workers=workers,
            threads=threads,
            processes=processes,
            memory_limit=memory_limit,
            max_cell_bytes=max_cell_bytes,
            timeout=timeout,
            checksums=checksums,
        )
        return self._with(**changes)

    def on_bad_row(
        self, action: Literal["raise", "skip"], *, most: float = 0.01, report: str | os.PathLike[str] | None = None
    ) -> Dataset:
        """Return a dataset that raises on a bad row, which is the default, or skips it. A batch with a skipped row is shorter.

        A row is bad if one of its cells cannot be decoded, if a policy does not accept a null or a list, or if a map raises
        on it. A map of batches runs again without the rows that it raises on. An unreadable file is always an error.

        Args:
            action: "raise" or "skip". `loader.skipped` lists the skipped rows.
            most: The limit on skipped rows of an epoch on each rank: a share of the rows, or a number of rows.
            report: A file to which a line of JSON is appended for each skipped row; each rank writes its own file.

        Raises:
            ArgumentError: If `action` or `most` is not valid, or `report` is not a local path.

        Example:
            >>> from penstock.testing import MemoryFormat
            >>> ds = MemoryFormat.of({"n": [1, None, 3]}).open().batch(3)
            >>> batches = iter(ds.on_bad_row("skip", most=1))
            >>> next(batches)["n"], batches.skipped[0].row
            (array([1, 3]), 1)
        """
        return self._with(skip=clauses.skip_bad_rows(action, most, report))

    def with_row_ids(self) -> Dataset:
        """Return a dataset with the columns `_file`, `_row_group` and `_row` (the row's number in its file) added.

        Example:
            >>> from penstock.testing import example
            >>> example().with_row_ids()[5]["_row_group"]
            np.int64(1)
        """
        return self._with(row_ids=True)

    def split(self, parts: Mapping[str, float], *, by: str, seed: int = 0) -> dict[str, Dataset]:
        """Return disjoint datasets with about the given shares of the rows.

        The part of a row depends on its value of `by` and the seed only, so rows do not move when others are added.

        Args:
            parts: The share of each part by name; their sum is at most 1.
            by: The column that decides: a unique one, or one whose groups have to stay together.
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
        return {name: self.where(part) for name, part in clauses.split_conditions(parts, by, seed, self._query).items()}

    @property
    def num_rows(self) -> int:
        """The rows, or sequences, of an epoch over all ranks; a filter or a sequence takes one pass over its columns."""
        return clauses.exact_plan(self._query, self._table.plan(self._query).plan).num_rows

    def __getitem__(self, row: int | slice) -> dict[str, Any]:
        """Return one row by its number in stored order, or a slice of rows as one batch."""
        if isinstance(row, slice):
            return self.take(range(*row.indices(self.num_rows)))
        if isinstance(row, tuple | list | np.ndarray):
            raise ArgumentError(
                f"ds[...] got {row!r}; expected one row number or a slice. For several rows use ds.take([...])."
            )
        if isinstance(row, str):
            msg = f"ds[...] got {row!r}; expected a row number or a slice. For a column use ds.select({row!r}).to_arrow()."
            raise ArgumentError(msg)
        batch = self.take([row])
        for column in self._query.policies:
            if isinstance(column.ragged, Offsets) and f"{column.name}_offsets" in batch:
                msg = (
                    f"ds[{row!r}] is one row, and column {column.name!r} has the policy Offsets(), which needs a batch. "
                    f"Use ds.take([{row!r}]), or remove Offsets()."
                )
                raise ArgumentError(msg)
        return {name: values[0] for name, values in batch.items()}

    def take(self, rows: Sequence[int]) -> Batch:
        """Return rows by their numbers in stored order, as one batch in the given order.

        Raises:
            ArgumentError: If the dataset is shuffled or batched, or has fewer rows.

        Example:
            >>> from penstock.testing import example
            >>> example().take([3, 9, 5])["id"]
            array([3, 9, 5])
        """
        return access.take_rows(self._table, self._query, rows)

    def head(self, rows: int = 5) -> Batch:
        """Return the first rows in stored order, as one batch.

        Example:
            >>> from penstock.testing import example
            >>> example().head(2)["id"]
            array([0, 1])
        """
        return self.take(range(min(clauses.smaller_limit(rows, None, "head"), self.num_rows)))

    def to_arrow(self) -> pa.Table:
        """Return all rows in stored order as an Arrow table with the stored types."""
        return access.to_arrow(self._table, self._query)

    def to_pandas(self) -> pd.DataFrame:
        """Return all rows in stored order as a pandas data frame with the same values.

        Columns have the dtypes that `pyarrow.Table.to_pandas` chooses, with one exception: a column gets another dtype
        if a value would change, or a null would become another value. Integers with nulls get pandas' nullable
        dtypes (`Int64`), and so do booleans with nulls (`boolean`). Other such columns get `pandas.ArrowDtype`, for example
        lists of integers with nulls inside. A null in a float column is NaN, unless the column also holds NaN.

        Example:
            >>> from penstock.testing import MemoryFormat
            >>> MemoryFormat.of({"id": [2**53 + 1, None]}, row_group_rows=2).open().to_pandas()["id"].dtype
            Int64Dtype()
        """
        return data_frames.to_pandas(self._table, self._query)

    @property
    def schema(self) -> Schema:
        """The columns of a row, as NumPy types; of maps, the columns that they declare."""
        return explain.output_schema(self._table, self._query)

    @property
    def fingerprint(self) -> str:
        """A name of the query; equal datasets have equal names."""
        return explain.fingerprint(self._table, self._query)

    def explain(self, *, analyze: bool = False) -> str:
        """Return a text about what is read and returned; with `analyze` some is read now, and it shows where the time goes.

        Example:
            >>> from penstock.testing import example
            >>> print(example().where(col("id") > 8).batch(2).explain().splitlines()[1].strip())
            files       1 of 1
        """
        return explain.explain(self._table, self._query, analyze=analyze)

    def __repr__(self) -> str:
        """Return the dataset as Python, with a comment about rows and columns if it has no clauses."""
        return explain.format_dataset(self._table, self._query)

    def _with(self, **changes: Any) -> Dataset:
        return Dataset(self._table, clauses.check_query(replace(self._query, **changes), self._table.snapshot))
