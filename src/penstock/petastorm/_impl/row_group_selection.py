"""The row groups that a reader reads: selected by partitions, filters, indexes and shards.

A row group is identified by its number in the dataset.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock._engine.parquet.footer import read_footers
from penstock._engine.plan.prune import prune_files
from penstock._engine.plan.table import Table
from penstock._engine.query.query import Query
from penstock._engine.row_groups.tasks import RowGroupTasks
from penstock.filters import Expr, from_tuples
from penstock.model import DataFiles, IntArray, Snapshot
from penstock.petastorm._impl.dataset import StoredDataset
from penstock.petastorm._impl.indexes import get_row_group_indexes
from penstock.petastorm.errors import NoDataAvailableError
from penstock.petastorm.unischema import Unischema
from penstock.shuffles import RowGroupShuffle

__all__ = ["Selection", "SelectionArguments", "select_row_groups"]

EXPANSION = 4
"""Estimated size of columns in memory in relation to their stored size, as long as no row group was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionArguments:
    """The arguments that select row groups.

    Attributes:
        predicate: A predicate of Petastorm.
        selector: A selector of Petastorm, which uses stored indexes.
        filters: Conditions as tuples.
        shard: The number of this shard, and of all shards; None for the whole dataset.
        by_rows: Whether shards have equal numbers of rows instead of whole row groups.
        shard_seed: Decides the order of the row groups of a shard; None for stored order.
        parts: The number of parts that each row group is split into.
        overlap: Rows of the next part that each part has in addition.
        numbered: Whether the numbers of row groups must be exact though nothing is selected by them.
        may_be_empty: Whether an empty selection is no reason for a warning.
    """

    predicate: Any = None
    selector: Any = None
    filters: Any = None
    shard: tuple[int, int] | None = None
    by_rows: bool = False
    shard_seed: int | None = None
    parts: int = 1
    overlap: int = 0
    numbered: bool = False
    may_be_empty: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Selection:
    """The row groups that are read.

    Attributes:
        snapshot: The selected files.
        tasks: Their selected row groups, or parts of them.
        condition: A filter on rows.
        predicate: A predicate on rows; None if it was on partitions, and is applied.
        partitions: The partition values of all files of the dataset.
    """

    snapshot: Snapshot
    tasks: RowGroupTasks
    condition: Expr | None
    predicate: Any
    partitions: pa.Table

    @property
    def expected_bytes(self) -> int:
        """The estimated bytes of the largest task in memory, with all columns of the files."""
        units = self.tasks.units
        if not len(self.tasks):
            return 0
        stored = self.snapshot.files.size[np.unique(units.file)].sum() / max(1, int(units.rows.sum()))
        return int(EXPANSION * stored * int(units.rows.max()))


def select_row_groups(
    dataset: StoredDataset, snapshot: Snapshot, schema: Unischema, arguments: SelectionArguments
) -> Selection:
    """Return the selected row groups; reads the footers of the selected files, or of all if row groups must be counted.

    Raises:
        NoDataAvailableError: If there are fewer row groups than shards.
        ValueError: If an index does not exist.
    """
    files, predicate = _files_by_predicate(snapshot, schema, arguments.predicate)
    whole = snapshot
    if len(files) < len(snapshot.files):
        snapshot = replace(snapshot, files=_take_files(snapshot.files, files))
    condition = None
    _check_filters(arguments.filters)
    if arguments.filters:
        condition = from_tuples(_convert_filters(arguments.filters, snapshot.schema)).bind(
            snapshot.schema, table=snapshot.table
        )
    units = (
        Table(snapshot=snapshot, filesystem=dataset.fs).uncounted(Query(condition=condition, shuffle=RowGroupShuffle())).units
    )
    numbered = arguments.numbered or arguments.selector is not None or arguments.shard is not None
    counts = _row_group_counts(dataset, whole, count_all=numbered)
    tasks = RowGroupTasks(units=units, ordinal=_first_numbers(counts)[files[units.file]] + units.row_group)
    if dataset.facts.rows is not None:  # a file that the summary does not list is not part of the dataset
        listed = dataset.row_group_counts()[files[units.file]]
        tasks = tasks.take(np.flatnonzero(units.row_group < listed))
    selected = None if arguments.selector is None else _numbers_by_selector(dataset, arguments.selector)
    if selected is not None:
        tasks = tasks.take(np.flatnonzero(np.isin(tasks.ordinal, selected)))
    if arguments.shard is not None and arguments.by_rows:
        shard, shards = arguments.shard
        tasks = tasks.shard(shard, shards) if 0 <= shard < shards else tasks.take(np.zeros(0, dtype=np.int64))
    elif arguments.shard is not None:
        by_partition = prune_files(_without_ranges(whole), condition)
        groups = _CountedRowGroups(counts=counts, by_filters=by_partition, by_predicate=files, selected=selected)
        tasks = _shard_of_row_groups(tasks, groups, arguments.shard, arguments.shard_seed)
    if not len(tasks) and not arguments.may_be_empty:
        warnings.warn(
            "No matching data is available for loading after rowgroup selector were applied and the data was sharded.",
            UserWarning,
            stacklevel=5,
        )
    if arguments.parts > 1:
        tasks = tasks.split(arguments.parts, arguments.overlap)
    partitions = whole.files.partitions
    return Selection(snapshot=snapshot, tasks=tasks, condition=condition, predicate=predicate, partitions=partitions)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _CountedRowGroups:
    """The row groups that shards consist of, as Petastorm numbers them.

    Only the files that pass the filters on partitions are counted. A predicate and a selector select among their row groups,
    and do not change the numbers.

    Attributes:
        counts: The number of row groups of each file of the dataset.
        by_filters: The files that pass the filters on partitions.
        by_predicate: The files that pass a predicate on partitions.
        selected: The numbers in the whole dataset that a selector selected; None for all.
    """

    counts: IntArray
    by_filters: IntArray
    by_predicate: IntArray
    selected: IntArray | None

    @property
    def filtered_counts(self) -> IntArray:
        """The number of row groups of each file; 0 for files that do not pass the filters."""
        counts = np.zeros_like(self.counts)
        counts[self.by_filters] = self.counts[self.by_filters]
        return counts

    def selected_numbers(self) -> list[int]:
        """Return the numbers of the selected row groups in stored order."""
        files = np.intersect1d(self.by_predicate, self.by_filters)
        counts = self.counts[files]
        inside = np.arange(int(counts.sum())) - np.repeat(_first_numbers(counts), counts)
        numbers = np.repeat(_first_numbers(self.filtered_counts)[files], counts) + inside
        if self.selected is not None:
            ordinals = np.repeat(_first_numbers(self.counts)[files], counts) + inside
            numbers = numbers[np.isin(ordinals, self.selected)]
        result: list[int] = numbers.tolist()
        return result


def _shard_of_row_groups(
    tasks: RowGroupTasks, groups: _CountedRowGroups, shard: tuple[int, int], seed: int | None
) -> RowGroupTasks:
    """Return the row groups of one shard, in Petastorm's order for a seed."""
    this, shards = shard
    total = int(groups.filtered_counts.sum())
    if total < shards:
        msg = (
            "Number of row-groups in the dataset must be greater or equal to the number of requested shards. There are "
            f'{total} row groups and {shards} shards. Use fewer, or shard_by="rows".'
        )
        raise NoDataAvailableError(msg)
    numbers = _first_numbers(groups.filtered_counts)[groups.by_predicate[tasks.units.file]] + tasks.units.row_group
    indices = np.flatnonzero(numbers % shards == this)
    if seed is not None:
        order = groups.selected_numbers()
        random.Random(seed).shuffle(order)  # noqa: S311 - Petastorm's own order, which Python keeps for a seed
        place = {number: at for at, number in enumerate(order)}
        indices = indices[np.argsort([place[number] for number in numbers[indices].tolist()], kind="stable")]
    return tasks.take(indices)


def _first_numbers(counts: IntArray) -> IntArray:
    return np.cumsum(counts) - counts


def _without_ranges(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot without statistics, so that files are pruned by partition values only."""
    return replace(snapshot, files=replace(snapshot.files, ranges={}))


def _files_by_predicate(snapshot: Snapshot, schema: Unischema, predicate: Any) -> tuple[IntArray, Any]:
    """Return the files that a predicate on partitions includes and None; for any other predicate all files and itself."""
    every, partitions = np.arange(len(snapshot.files)), snapshot.files.partitions
    names = set() if predicate is None else set(predicate.get_fields())
    if not names or names != set(partitions.column_names):
        return every, predicate
    assert len(names) == 1, "Datasets with only a single partition level supported at the moment"  # noqa: S101 - Petastorm's
    (name,) = names
    kind = schema.fields[name].numpy_dtype if name in schema.fields else np.str_
    includes: dict[Any, bool] = {}
    values = partitions.column(name).to_pylist()
    for value in values:
        if value not in includes:
            includes[value] = bool(predicate.do_include({name: None if value is None else kind(value)}))
    return every[np.array([includes[value] for value in values], dtype=np.bool_)], None


def _take_files(files: DataFiles, indices: IntArray) -> DataFiles:
    index = pa.array(indices)
    arrays = {name: getattr(files, name)[indices] for name in ("size", "rows")}
    texts = {name: getattr(files, name).take(index) for name in ("path", "stamp")}
    partitions = files.partitions.take(index) if files.partitions.column_names else files.partitions
    deletes = {at: files.deletes[file] for at, file in enumerate(indices.tolist()) if file in files.deletes}
    known = {column.name for column in fields(DataFiles)}
    assert {*arrays, *texts, "partitions", "ranges", "deletes"} == known  # noqa: S101 - DataFiles has no other columns
    return DataFiles(**arrays, **texts, partitions=partitions, deletes=deletes)


def _row_group_counts(dataset: StoredDataset, snapshot: Snapshot, *, count_all: bool) -> IntArray:
    """Return the number of row groups of each file; a guess where it is not stored, unless `count_all`."""
    counts = dataset.row_group_counts()
    unknown = np.flatnonzero(counts < 0)
    if len(unknown):
        counts = counts.copy()
        counts[unknown] = 0
        if count_all:
            groups = read_footers(snapshot, unknown.tolist(), [], dataset.fs)
            counts += np.bincount(groups.file, minlength=len(counts))
        else:  # numbers of row groups need only differ
            counts[unknown] = 1 << 20
    return counts


def _numbers_by_selector(dataset: StoredDataset, selector: Any) -> IntArray:
    indexes = get_row_group_indexes(dataset)
    names = set(selector.get_index_names())
    missing = names - set(indexes)
    if missing:
        msg = (
            f"Some of required indexes {sorted(names)} are not available in {list(indexes)}. Build them, or use another "
            "selector."
        )
        raise ValueError(msg)
    return np.array(sorted(selector.select_row_groups(indexes)), dtype=np.int64)


def _check_filters(filters: Any) -> None:
    """Check that filters are a list; its items are checked when they are parsed."""
    if filters is not None and (isinstance(filters, (str, bytes)) or not isinstance(filters, Sequence)):
        msg = f"filters must be a list of tuples (column, operator, value), a list of such lists, or None, and is {filters!r}. "
        raise ValueError(msg + "Give them: filters=[('id', '<', 5)].")


def _convert_filters(filters: Sequence[Any], schema: pa.Schema) -> list[Any]:
    """Return conditions whose values have the types of their columns; for partition columns, Petastorm takes text too."""
    match filters:
        case [str(name), operator, value]:
            kind = schema.field(name).type if name in schema.names else None
            return (name, operator, _convert_value(value, kind))  # type: ignore[return-value] # one of them
        case [str(), *_]:
            return tuple(filters)  # type: ignore[return-value] # the same
    # `from_tuples` raises the error for an item that is neither a condition nor a list of conditions.
    return [_convert_filters(item, schema) if isinstance(item, (list, tuple)) else item for item in filters]


def _convert_value(value: Any, kind: pa.DataType | None) -> Any:
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_convert_value(item, kind) for item in value]
    if kind is not None and pa.types.is_integer(kind) and isinstance(value, str):
        return int(value)
    if kind is not None and pa.types.is_string(kind) and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value
