"""Which row groups a reader reads: by directories, filters, indexes and shards, each known by its number in the dataset."""

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
from penstock._engine.row_groups.order import RowGroupTasks
from penstock.filters import Expr, from_tuples
from penstock.model import DataFiles, IntArray, Snapshot
from penstock.petastorm._impl.dataset import StoredDataset
from penstock.petastorm._impl.indexes import get_row_group_indexes
from penstock.petastorm.errors import NoDataAvailableError
from penstock.petastorm.unischema import Unischema
from penstock.shuffles import RowGroupShuffle

__all__ = ["Asked", "Selection", "selected"]


EXPANSION = 4
"""How many times as large columns may be in memory as they are on storage, before any has been read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What decides which row groups are read.

    Attributes:
        predicate: A predicate.
        selector: A selector.
        filters: Conditions, as tuples.
        shard: Which shard this is, and of how many; None where there is one.
        by_rows: Whether shards have equal numbers of rows, rather than whole row groups.
        shard_seed: Decides the order of the row groups of a shard; None for stored order.
        parts: How many parts row groups are cut into.
        more: Rows of the next part that each part has besides.
        numbered: Whether the numbers of row groups matter though nothing is chosen by them.
        may_be_empty: Whether it is no reason to warn where nothing is left.
    """

    predicate: Any = None
    selector: Any = None
    filters: Any = None
    shard: tuple[int, int] | None = None
    by_rows: bool = False
    shard_seed: int | None = None
    parts: int = 1
    more: int = 0
    numbered: bool = False
    may_be_empty: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Selection:
    """What is read.

    Attributes:
        snapshot: The files that are left, and their columns.
        lots: Their row groups, or parts of them.
        condition: What rows must fulfil.
        predicate: The predicate, where rows have yet to be asked about.
        partitions: What directories say of all files, those too that are not left.
    """

    snapshot: Snapshot
    lots: RowGroupTasks
    condition: Expr | None
    predicate: Any
    partitions: pa.Table

    @property
    def lot_bytes(self) -> int:
        """What the largest of the row groups takes in memory, by the sizes of files, with all their columns."""
        units = self.lots.units
        if not len(self.lots):
            return 0
        stored = self.snapshot.files.size[np.unique(units.file)].sum() / max(1, int(units.rows.sum()))
        return int(EXPANSION * stored * int(units.rows.max()))


def selected(dataset: StoredDataset, snapshot: Snapshot, schema: Unischema, asked: Asked) -> Selection:
    """Return what a reader reads; footers are read of the files that are left only, unless all must be counted.

    Raises:
        NoDataAvailableError: If there are fewer row groups than shards.
        ValueError: If an index is not there.
    """
    files, predicate = _by_partition(snapshot, schema, asked.predicate)
    every = snapshot
    if len(files) < len(snapshot.files):
        snapshot = replace(snapshot, files=_picked(snapshot.files, files))
    condition = None
    _check_filters(asked.filters)
    if asked.filters:
        condition = from_tuples(_fitted(asked.filters, snapshot.schema)).bind(snapshot.schema, table=snapshot.table)
    laid = (
        Table(snapshot=snapshot, filesystem=dataset.fs).uncounted(Query(condition=condition, shuffle=RowGroupShuffle())).units
    )
    numbered = asked.numbered or asked.selector is not None or asked.shard is not None
    counts = _row_group_counts(dataset, every, count_all=numbered)
    lots = RowGroupTasks(units=laid, ordinal=_begins(counts)[files[laid.file]] + laid.row_group)
    stored = dataset.facts.rows
    if stored is not None:  # files that a summary does not tell of are none of the dataset
        told = dataset.row_group_counts()[files[laid.file]]
        lots = lots.picked(np.flatnonzero(laid.row_group < told))
    chosen = None if asked.selector is None else _selected(dataset, asked.selector)
    if chosen is not None:
        lots = lots.picked(np.flatnonzero(np.isin(lots.ordinal, chosen)))
    if asked.shard is not None and asked.by_rows:
        lots = _shared_out(lots, *asked.shard)
    elif asked.shard is not None:
        groups = _RowGroups(counts=counts, shown=prune_files(_without_ranges(every), condition), files=files, chosen=chosen)
        lots = _sharded(lots, groups, asked.shard, asked.shard_seed)
    if not len(lots) and not asked.may_be_empty:
        warnings.warn(
            "No matching data is available for loading after rowgroup selector were applied and the data was sharded.",
            UserWarning,
            stacklevel=5,
        )
    if asked.parts > 1:
        lots = lots.cut(asked.parts, asked.more)
    partitions = every.files.partitions
    return Selection(snapshot=snapshot, lots=lots, condition=condition, predicate=predicate, partitions=partitions)


def _shared_out(lots: RowGroupTasks, shard: int, shards: int) -> RowGroupTasks:
    return lots.shared_out(shard, shards) if 0 <= shard < shards else lots.picked(np.zeros(0, dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _RowGroups:
    """The row groups that shards are made of, as Petastorm counts them.

    Filters on directories decide which files there are. A predicate and a selector choose among their row groups, whose
    numbers stay the same.

    Attributes:
        counts: How many row groups each file of the dataset has.
        shown: The files that filters on directories leave.
        files: The files that a predicate on directories leaves.
        chosen: The numbers in the whole dataset that a selector chose; None for all.
    """

    counts: IntArray
    shown: IntArray
    files: IntArray
    chosen: IntArray | None

    @property
    def shown_counts(self) -> IntArray:
        """How many row groups of each file are counted."""
        found = np.zeros_like(self.counts)
        found[self.shown] = self.counts[self.shown]
        return found

    def candidates(self) -> list[int]:
        """Return the numbers of the row groups that are left, in stored order."""
        files = np.intersect1d(self.files, self.shown)
        counts = self.counts[files]
        inside = np.arange(int(counts.sum())) - np.repeat(_begins(counts), counts)
        numbers = np.repeat(_begins(self.shown_counts)[files], counts) + inside
        if self.chosen is not None:
            ordinals = np.repeat(_begins(self.counts)[files], counts) + inside
            numbers = numbers[np.isin(ordinals, self.chosen)]
        found: list[int] = numbers.tolist()
        return found


def _sharded(lots: RowGroupTasks, groups: _RowGroups, shard: tuple[int, int], seed: int | None) -> RowGroupTasks:
    """Return the row groups of one shard, in the order that a seed gives them in Petastorm."""
    this, shards = shard
    total = int(groups.shown_counts.sum())
    if total < shards:
        msg = (
            "Number of row-groups in the dataset must be greater or equal to the number of requested shards. There are "
            f'{total} row groups and {shards} shards. Use fewer, or shard_by="rows".'
        )
        raise NoDataAvailableError(msg)
    numbers = _begins(groups.shown_counts)[groups.files[lots.units.file]] + lots.units.row_group
    found = np.flatnonzero(numbers % shards == this)
    if seed is not None:
        order = groups.candidates()
        random.Random(seed).shuffle(order)  # noqa: S311 - Petastorm's own order, which Python keeps for a seed
        place = {number: at for at, number in enumerate(order)}
        found = found[np.argsort([place[number] for number in numbers[found].tolist()], kind="stable")]
    return lots.picked(found)


def _begins(counts: IntArray) -> IntArray:
    return np.cumsum(counts) - counts


def _without_ranges(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot whose files have partition values alone to be told apart by."""
    return replace(snapshot, files=replace(snapshot.files, ranges={}))


def _by_partition(snapshot: Snapshot, schema: Unischema, predicate: Any) -> tuple[IntArray, Any]:
    """Return the files that a predicate on directories includes, and the predicate where it is none."""
    every, partitions = np.arange(len(snapshot.files)), snapshot.files.partitions
    names = set() if predicate is None else set(predicate.get_fields())
    if not names or names != set(partitions.column_names):
        return every, predicate
    assert len(names) == 1, "Datasets with only a single partition level supported at the moment"  # noqa: S101 - Petastorm's
    (name,) = names
    kind = schema.fields[name].numpy_dtype if name in schema.fields else np.str_
    verdicts: dict[Any, bool] = {}
    found = []
    for value in partitions.column(name).to_pylist():
        if value not in verdicts:
            verdicts[value] = bool(predicate.do_include({name: None if value is None else kind(value)}))
        found.append(verdicts[value])
    return every[np.array(found, dtype=np.bool_)], None


def _picked(files: DataFiles, which: IntArray) -> DataFiles:
    index = pa.array(which)
    arrays = {name: getattr(files, name)[which] for name in ("size", "rows")}
    texts = {name: getattr(files, name).take(index) for name in ("path", "stamp")}
    partitions = files.partitions.take(index) if files.partitions.column_names else files.partitions
    deletes = {at: files.deletes[file] for at, file in enumerate(which.tolist()) if file in files.deletes}
    known = {column.name for column in fields(DataFiles)}
    assert {*arrays, *texts, "partitions", "ranges", "deletes"} == known  # noqa: S101 - none may be forgotten
    return DataFiles(**arrays, **texts, partitions=partitions, deletes=deletes)


def _row_group_counts(dataset: StoredDataset, snapshot: Snapshot, *, count_all: bool) -> IntArray:
    """Return how many row groups each file has; only a guess where nobody asks for their numbers."""
    counts = dataset.row_group_counts()
    unknown = np.flatnonzero(counts < 0)
    if len(unknown):
        counts = counts.copy()
        counts[unknown] = 0
        if count_all:
            groups = read_footers(snapshot, unknown.tolist(), [], dataset.fs)
            counts += np.bincount(groups.file, minlength=len(counts))
        else:  # any numbers will do that are different
            counts[unknown] = 1 << 20
    return counts


def _selected(dataset: StoredDataset, selector: Any) -> IntArray:
    """Return the numbers of the row groups that a selector selects."""
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
    """Refuse what is no list of conditions; what is in a list is looked at when it is read."""
    if filters is not None and (isinstance(filters, (str, bytes)) or not isinstance(filters, Sequence)):
        msg = f"filters must be a list of tuples (column, operator, value), a list of such lists, or None, and is {filters!r}. "
        raise ValueError(msg + "Give them: filters=[('id', '<', 5)].")


def _fitted(filters: Sequence[Any], schema: pa.Schema) -> list[Any]:
    """Return conditions whose values have the types of their columns, as whole numbers in names of directories have not."""
    match filters:
        case [str(name), operator, value]:
            kind = schema.field(name).type if name in schema.names else None
            return (name, operator, _value(value, kind))  # type: ignore[return-value] # one of them
        case [str(), *_]:
            return tuple(filters)  # type: ignore[return-value] # the same
    # What is neither a condition nor a list of them is refused with all that was given, in words of its own.
    return [_fitted(one, schema) if isinstance(one, (list, tuple)) else one for one in filters]


def _value(value: Any, kind: pa.DataType | None) -> Any:
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_value(one, kind) for one in value]
    if kind is not None and pa.types.is_integer(kind) and isinstance(value, str):
        return int(value)
    if kind is not None and pa.types.is_string(kind) and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value
