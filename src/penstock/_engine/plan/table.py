"""An opened table: one snapshot, its filesystem, and the plans that were made for queries."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
from pyarrow import fs as pafs

from penstock._engine.parquet.footer import FooterCache, RowGroups, of_each, read_footers, row_bytes
from penstock._engine.plan import prune
from penstock._engine.plan.count import Group, count_units, link_sequences
from penstock._engine.plan.sequence_times import SequenceFinder
from penstock._engine.query.query import ORDER, ColumnDecoding, Map, Query
from penstock._engine.read.reader import Reader, UnitTable
from penstock._engine.read.schema_evolution import field_id
from penstock._engine.runtime.memory import TableCache, format_bytes
from penstock.dtypes import least_bytes
from penstock.errors import ArgumentError, EmptyDatasetError, MemoryLimitError
from penstock.model import WHOLE_FILE, IntArray, Plan, SequenceLinks, Snapshot, Units
from penstock.policies import Offsets, Pad
from penstock.protocols import Shuffle
from penstock.shuffles import RowGroupShuffle

MAX_PLANS = 8
"""Plans of a table that are kept, and lists of row groups."""

MIN_PADDED_ROW_BYTES = 8
"""The least that a row of padding takes: the number of the row that it repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """How much of a table a plan reads.

    Attributes:
        files: Files of the table.
        files_kept: Files that may have rows that pass the filter.
        groups: Row groups of those files, where their footers were read.
        groups_kept: Row groups that may have rows that pass the filter.
        rows: Rows stored in the files kept.
    """

    files: int
    files_kept: int
    groups: int
    groups_kept: int
    rows: int


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True, eq=False)
class Planned:
    """A plan, its shuffle with all numbers fixed, the reader that carries it out, and how much it reads."""

    plan: Plan
    shuffle: Shuffle
    reader: Reader
    pruned: Pruned


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UncountedPlan:
    """The units of a plan before their selected rows are counted, and their bytes."""

    units: Units
    shuffle: Shuffle
    pruned: Pruned
    nbytes: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """A table pinned to one snapshot.

    Attributes:
        snapshot: Its facts.
        filesystem: Where its files are.
    """

    snapshot: Snapshot
    filesystem: pafs.FileSystem
    _plans: OrderedDict[str, Planned] = field(default_factory=OrderedDict, repr=False)
    _row_groups: OrderedDict[bytes, RowGroups] = field(default_factory=OrderedDict, repr=False)
    _table_cache: TableCache[UnitTable] = field(default_factory=TableCache, repr=False)
    _footer_cache: FooterCache = field(default_factory=FooterCache, repr=False)
    _alive: WeakValueDictionary[str, Planned] = field(default_factory=WeakValueDictionary, repr=False)

    def cache_from_first_read(self) -> None:
        """Keep the units of a small table in memory from the first read on, because they will be read again."""
        self._table_cache.cache_from_first_read()

    def plan(self, query: Query) -> Planned:
        """Return the plan of a query; footers are read and rows counted the first time."""
        name = _plan_name(query)
        planned = self._plans.get(name)
        if planned is not None:
            with suppress(KeyError):  # another thread has just made too many others
                self._plans.move_to_end(name)
            return planned
        # A plan that is in use is found also if too many others were made after it.
        return self._alive.get(name) or self.count(query, self.uncounted(query))

    def uncounted(self, query: Query) -> UncountedPlan:
        """Return the units that a query may read, before their rows are counted; footers are read."""
        snapshot, condition = self.snapshot, query.condition
        files = prune.prune_files(snapshot, condition)
        row_groups = self._footers(prune.without_row_count(snapshot.files, files), query)
        rows, nbytes = self._size(files, row_groups)
        shuffle = query.shuffle.settle(rows, nbytes)
        # Sequences are found within row groups, so these are neither cut nor joined.
        layout = shuffle if query.sequence is None else RowGroupShuffle()
        more = prune.files_to_split(snapshot.files, files, layout)
        if len(more):
            row_groups = _joined_row_groups(row_groups, self._footers(more, query))
        units = prune.make_units(snapshot, files, row_groups, condition, layout)
        pruned = Pruned(
            files=len(snapshot.files),
            files_kept=len(files),
            groups=len(row_groups.rows),
            groups_kept=len(np.unique(_group_keys(units.file, units.row_group)[units.row_group != WHOLE_FILE])),
            rows=rows,
        )
        return UncountedPlan(units=units, shuffle=shuffle, pruned=pruned, nbytes=nbytes)

    def _size(self, files: IntArray, row_groups: RowGroups) -> tuple[int, int]:
        """Return the rows of some files, and their bytes: on storage, or in memory where that is known to be more.

        Memory counts twice: one window is handed out while another is filled. The size of text and lists is in footers; of
        many files that of the middle one counts.
        """
        snapshot, stated = self.snapshot, self.snapshot.files.rows[files]
        rows = int(stated[stated >= 0].sum() + row_groups.rows.sum())
        widths = [least_bytes(column.type) for column in snapshot.schema]
        each = float(sum(widths))
        if 0 in widths and len(row_groups.file):
            middle = [int(row_groups.file[len(row_groups.file) // 2])]
            each = max(each, row_groups.row_bytes or of_each(snapshot, middle, self.filesystem, row_bytes, threads=1)[0])
        return rows, max(int(2 * rows * each), int(snapshot.files.size[files].sum()))

    def reader(self, query: Query) -> Reader:
        """Return the reader of a query."""
        return Reader(
            snapshot=self.snapshot,
            filesystem=self.filesystem,
            condition=query.condition,
            lazy=query.lazy,
            checksums=query.checksums,
            table_cache=self._table_cache,
            footers=self._footer_cache,
        )

    def count(self, query: Query, uncounted: UncountedPlan, group: Group | None = None) -> Planned:
        """Count the selected rows of each unit, and keep the plan.

        All ranks of a group call this, and each counts its share.
        """
        snapshot, condition, units, reader = self.snapshot, query.condition, uncounted.units, self.reader(query)
        shuffle, links = uncounted.shuffle, None
        if query.sequence is not None:
            units, links = self._sequences(query, units, reader, group)
            # A window has a number of sequences, and their size is known only now.
            shuffle = query.shuffle.settle(int(units.counts.sum()), uncounted.nbytes)
        elif condition is not None and not query.lazy:
            name = prune.fingerprint(snapshot, units, {"filter": condition.describe()}, {})
            units = count_units(units, reader, name, group)
        plan = Plan(
            snapshot=snapshot,
            units=units,
            counts=prune.limit_counts(units.counts, query.limit),
            fingerprint=prune.fingerprint(snapshot, units, order_of(query), dict(shuffle.describe())),
            links=links,
        )
        planned = Planned(plan=plan, shuffle=shuffle, reader=reader, pruned=uncounted.pruned)
        for other in list(self._plans.values()):  # older plans keep no idle memory
            other.reader.buffer_pool.free_idle()
        name = _plan_name(query)
        self._plans[name] = self._alive[name] = planned
        while len(self._plans) > MAX_PLANS:
            self._plans.popitem(last=False)
        return planned

    def _sequences(self, query: Query, units: Units, reader: Reader, group: Group | None) -> tuple[Units, SequenceLinks | None]:
        """Return units with the number of sequences that begin in each, and how sequences continue across units."""
        sequence, condition = query.sequence, query.condition
        assert sequence is not None  # noqa: S101 - asked before
        described = {"filter": None if condition is None else condition.describe(), "sequence": dict(sequence.describe())}
        name = prune.fingerprint(self.snapshot, units, described, {})
        finder = SequenceFinder.of(reader, sequence)
        if sequence.scope == "table":
            links = link_sequences(units, finder, name, group)
            return replace(units, counts=links.counts), links
        every = replace(units, residual=np.ones(len(units), dtype=np.bool_))
        return replace(units, counts=count_units(every, finder, name, group).counts), None

    def _footers(self, files: IntArray, query: Query) -> RowGroups:
        """Return the row groups of some files, with statistics of the filter's columns; each footer is read once."""
        paths = query.condition.paths if query.condition is not None else frozenset()
        columns = paths.difference(self.snapshot.files.partitions.column_names)
        name = files.tobytes()
        known = self._row_groups.get(name)
        if known is None or not columns <= known.ranges.keys():
            every = sorted(columns.union(known.ranges if known is not None else ()))
            known = self._read_footers(files, every)
            self._row_groups[name] = known
            while len(self._row_groups) > MAX_PLANS:
                self._row_groups.popitem(last=False)
        return replace(known, ranges={column: known.ranges[column] for column in sorted(columns)})

    def _read_footers(self, files: IntArray, columns: Sequence[str]) -> RowGroups:
        """Return row groups and statistics; no statistics where columns have field ids, which each file may name otherwise."""
        snapshot = self.snapshot
        by_id = snapshot.stored is not None and any(field_id(column) is not None for column in snapshot.stored)
        names = [] if by_id else columns
        row_groups = read_footers(snapshot, files.tolist(), names, self.filesystem, footers=self._footer_cache)
        stated = snapshot.files.ranges
        unknown = {name: prune.unknown_range(len(row_groups.rows), stated.get(name)) for name in columns}
        return replace(row_groups, ranges=unknown) if by_id else row_groups

    def __reduce__(self) -> tuple[Callable[[], Table], tuple[()]]:
        """Begin without plans in a copy, and in another process."""
        return partial(Table, snapshot=self.snapshot, filesystem=self.filesystem), ()


def _plan_name(query: Query) -> str:
    return repr((order_of(query), query.shuffle, query.checksums))


def order_of(query: Query) -> dict[str, Any]:
    """Return the part of a query that decides which rows come in which order."""
    sequence = {} if query.sequence is None else {"sequence": dict(query.sequence.describe())}
    return {
        "order": ORDER,
        "filter": query.condition.describe() if query.condition is not None else None,
        "lazy": query.lazy,
        "limit": query.limit,
        "shuffle": dict(query.shuffle.describe()),
        "seed": query.seed,
        **sequence,
    }


def _group_keys(file: npt.NDArray[np.int32], row_group: npt.NDArray[np.int32]) -> IntArray:
    """Return one number for each row group of each file."""
    return file.astype(np.int64) << 32 | row_group


def _joined_row_groups(first: RowGroups, second: RowGroups) -> RowGroups:
    """Return the row groups of two sets of files, in the order of files."""
    file = np.concatenate([first.file, second.file])
    order = np.argsort(file, kind="stable")
    ranges = {name: prune.concat_ranges(found, second.ranges[name], order) for name, found in first.ranges.items()}
    number, rows = np.concatenate([first.number, second.number]), np.concatenate([first.rows, second.rows])
    size = np.concatenate([first.size, second.size])
    return replace(first, file=file[order], number=number[order], rows=rows[order], size=size[order], ranges=ranges)


def check_rows(plan: Plan, query: Query, *, source: int | None = None) -> None:
    """Refuse an epoch in which some rank would get nothing.

    A dataset of single rows for one reader may be empty, as the result of a query may be.
    """
    _check_policies(query, source)
    check_row_maps(query.maps, query.policies, query.columns)
    rows, ranks, size = plan.num_rows, query.world_size, query.batch_rows
    noun = "row" if query.sequence is None else "sequence"
    described = f"{plan.snapshot.table} has {rows} {noun}{'' if rows == 1 else 's'} to hand out"
    if query.sequence is not None:
        described += f" by {query.sequence!r}"
    if query.condition is not None:
        described += f" under the filter {query.condition!r}"
    if rows == 0 and (query.size is not None or ranks > 1 or query.epochs is None):
        msg = f"{described}. At least one is needed. Check the filter, or ask `ds.num_rows` first where none may be right."
        raise EmptyDatasetError(msg)
    if 0 < rows < ranks:
        msg = f"{described}, fewer than its {ranks} ranks. Every rank needs at least one row. Use at most {rows} ranks."
        raise EmptyDatasetError(msg)
    if size is not None and query.ending == "drop" and rows // ranks < size and not query.lazy:
        whole = f"one global batch of {size * ranks} rows ({ranks} ranks of {size})" if ranks > 1 else f"one batch of {size}"
        msg = (
            f'{described}, fewer than {whole}, and last="drop" would drop them all. Use a batch of at most {rows // ranks} '
            'rows, or last="pad", "wrap", "level" or "uneven".'
        )
        raise EmptyDatasetError(msg)
    nbytes = (size or 0) * MIN_PADDED_ROW_BYTES
    if size is not None and size > rows and query.ending in {"pad", "wrap"} and nbytes > query.memory_bytes:
        msg = (
            f'{described}, and last="{query.ending}" would fill them up to a batch of {size}, which takes at least '
            f"{format_bytes(nbytes)} in memory; memory_limit is {format_bytes(query.memory_bytes)}. Use a smaller batch, or "
            'last="uneven".'
        )
        raise MemoryLimitError(msg)


def check_row_maps(maps: Sequence[Map], policies: Sequence[ColumnDecoding], columns: Sequence[str] | None = None) -> None:
    """Refuse a map of single rows over a column that only batches have."""
    flat = [one.name for one in policies if isinstance(one.ragged, Offsets) and (columns is None or one.name in columns)]
    if flat and maps and maps[0].per_row:
        msg = (
            f"Column {flat[0]!r} comes as Offsets(), which has all values of a batch in one array, and map {maps[0].name} is "
            "called with one row at a time; expected a map of batches. Leave per_row=True out, or Offsets()."
        )
        raise ArgumentError(msg)


def _check_policies(query: Query, source: int | None) -> None:
    """Refuse single rows of columns that depend on their batch."""
    for column in query.policies:
        longest = isinstance(column.ragged, Pad) and column.ragged.length is None
        if query.size is None and (longest or isinstance(column.ragged, Offsets)):
            remedy = "this dataset has no batches. Add .batch(size), or give Pad a length."
            if source is not None:
                other = "give Pad a length" if longest else "leave Offsets() out"
                remedy = f"source {source} of the mixture has single rows. Batch each source, not the mixture, or {other}."
            msg = f"Column {column.name!r} comes as {column.ragged}, which depends on the other rows of a batch, and {remedy}"
            raise ArgumentError(msg)
