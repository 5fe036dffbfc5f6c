"""An opened table: one snapshot, where its bytes lie, and the plans made of it so far."""

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

from penstock._engine.parquet.footer import RowGroups, of_each, read_footers, row_bytes
from penstock._engine.plan import prune as planning
from penstock._engine.plan.count import UnitCounter, count_units, link_sequences
from penstock._engine.plan.group import Group
from penstock._engine.plan.sequence_times import SequenceFinder
from penstock._engine.query.query import Query
from penstock._engine.query.values import ORDER
from penstock._engine.read.reader import Reader, UnitTable
from penstock._engine.read.schema_evolution import field_id
from penstock._engine.runtime.table_cache import TableCache
from penstock.dtypes import least_bytes
from penstock.model import WHOLE_FILE, IntArray, Plan, SequenceLinks, Snapshot, Units
from penstock.protocols import Shuffle
from penstock.shuffles import RowGroupShuffle

__all__ = ["Laid", "Planned", "Pruned", "Table", "asked"]

PLANS_KEPT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What a plan leaves out before anything is read.

    Attributes:
        files: Files of the table.
        files_kept: Files that may hold rows that pass.
        groups: Row groups of those files, where their footers were read.
        groups_kept: Row groups that may hold rows that pass.
        rows: Rows stored in the files kept.
    """

    files: int
    files_kept: int
    groups: int
    groups_kept: int
    rows: int


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True, eq=False)
class Planned:
    """A plan, the shuffle with its numbers fixed, the reader that carries the plan out, and what was left out of it."""

    plan: Plan
    shuffle: Shuffle
    reader: Reader
    pruned: Pruned


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Laid:
    """What a question may read, with the rows that pass its filter not counted yet, and how many bytes it is."""

    units: Units
    shuffle: Shuffle
    pruned: Pruned
    size: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """A table pinned to one snapshot.

    Attributes:
        snapshot: Its facts.
        filesystem: Where its files lie.
    """

    snapshot: Snapshot
    filesystem: pafs.FileSystem
    _plans: OrderedDict[str, Planned] = field(default_factory=OrderedDict, repr=False)
    _groups: OrderedDict[bytes, RowGroups] = field(default_factory=OrderedDict, repr=False)
    _table_cache: TableCache[UnitTable] = field(default_factory=TableCache, repr=False)
    _used: WeakValueDictionary[str, Planned] = field(default_factory=WeakValueDictionary, repr=False)

    def expect_again(self) -> None:
        """Take down that the table will be read more than once, so that what stays in memory stays at once."""
        self._table_cache.expect_again()

    def plan(self, query: Query) -> Planned:
        """Return what a question reads; footers are read and rows counted the first time it is asked.

        Raises:
            DataError: If a file that is needed cannot be read.
        """
        found = self._plans.get(name := _name(query))
        if found is not None:
            with suppress(KeyError):  # another thread has just made too many others
                self._plans.move_to_end(name)
            return found
        # However many there are, those that are being read need not be made again.
        return self._used.get(name) or self.settle(query, self.laid(query))

    def laid(self, query: Query) -> Laid:
        """Return what a question may read, before its rows are counted; footers are read.

        Raises:
            DataError: If a file that is needed cannot be read.
        """
        snapshot, condition = self.snapshot, query.condition
        kept = planning.prune_files(snapshot, condition)
        groups = self._footers(planning.without_row_count(snapshot.files, kept), query)
        rows, size = self._size(kept, groups)
        shuffle = query.shuffle.settle(rows, size)
        # Sequences are looked for in row groups, so these are neither cut nor taken together.
        laying = shuffle if query.sequence is None else RowGroupShuffle()
        more = self._footers(planning.files_to_split(snapshot.files, kept, laying), query)
        every = _together(groups, more)
        units = planning.make_units(snapshot, kept, every, condition, laying)
        pruned = Pruned(
            files=len(snapshot.files),
            files_kept=len(kept),
            groups=len(every.rows),
            groups_kept=len(np.unique(_key(units.file, units.row_group)[units.row_group != WHOLE_FILE])),
            rows=rows,
        )
        return Laid(units=units, shuffle=shuffle, pruned=pruned, size=size)

    def _size(self, kept: IntArray, groups: RowGroups) -> tuple[int, int]:
        """Return the rows of the files that are kept, and their bytes: on storage, or in memory if that is known to be more.

        Memory counts twice, for while one window is handed out, another is filled. What text and lists take footers tell,
        of many files that of the middle one.
        """
        snapshot, rows = self.snapshot, _rows(self.snapshot, kept, groups)
        widths = [least_bytes(column.type) for column in snapshot.schema]
        each = float(sum(widths))
        if 0 in widths and len(groups.file):
            middle = [int(groups.file[len(groups.file) // 2])]
            each = max(each, groups.row_bytes or of_each(snapshot, middle, self.filesystem, row_bytes, threads=1)[0])
        return rows, max(int(2 * rows * each), int(snapshot.files.size[kept].sum()))

    def reader(self, query: Query) -> Reader:
        """Return what reads the rows of a question."""
        return Reader(
            snapshot=self.snapshot,
            filesystem=self.filesystem,
            condition=query.condition,
            lazy=query.lazy,
            checksums=query.checksums,
            table_cache=self._table_cache,
        )

    def settle(self, query: Query, laid: Laid, group: Group | None = None) -> Planned:
        """Return the plan of a question whose rows are counted now, and keep it for when it is asked again.

        Of a group of ranks, which all call this, each counts its share.
        """
        snapshot, condition, units, reader = self.snapshot, query.condition, laid.units, self.reader(query)
        shuffle, links = laid.shuffle, None
        if query.sequence is not None:
            units, links = self._sequences(query, units, reader, group)
            # A window holds so many sequences, and what one takes is known only now.
            shuffle = query.shuffle.settle(int(units.counts.sum()), laid.size)
        elif condition is not None and not query.lazy:
            name = planning.fingerprint(snapshot, units, {"filter": condition.describe()}, {})
            units = _counted(units, reader, name, group)
        plan = Plan(
            snapshot=snapshot,
            units=units,
            counts=planning.limit_counts(units.counts, query.limit),
            fingerprint=planning.fingerprint(snapshot, units, asked(query), dict(shuffle.describe())),
            links=links,
        )
        found = Planned(plan=plan, shuffle=shuffle, reader=reader, pruned=laid.pruned)
        self._keep(_name(query), found)
        return found

    def _keep(self, name: str, made: Planned) -> None:
        """Keep a plan, and of older ones no more than a few, without the memory that lies idle: nobody may come back to it."""
        for other in list(self._plans.values()):
            other.reader.buffer_pool.let_go()
        self._plans[name] = self._used[name] = made
        while len(self._plans) > PLANS_KEPT:
            self._plans.popitem(last=False)

    def _sequences(self, query: Query, units: Units, reader: Reader, group: Group | None) -> tuple[Units, SequenceLinks | None]:
        """Return units with the sequences that begin in each, and what lies at their borders where that matters."""
        sequence, condition = query.sequence, query.condition
        assert sequence is not None  # noqa: S101 - asked before
        told = {"filter": None if condition is None else condition.describe(), "sequence": dict(sequence.describe())}
        name = planning.fingerprint(self.snapshot, units, told, {})
        timeline = SequenceFinder.of(reader, sequence)
        if sequence.scope == "table":
            links = link_sequences(units, timeline, name, group)
            return replace(units, counts=links.counts), links
        every = replace(units, residual=np.ones(len(units), dtype=np.bool_))
        return replace(units, counts=_counted(every, timeline, name, group).counts), None

    def _footers(self, files: IntArray, query: Query) -> RowGroups:
        """Return the row groups of some files, with the statistics the question's filter asks about; read once."""
        paths = query.condition.paths if query.condition is not None else frozenset()
        columns = paths.difference(self.snapshot.files.partitions.column_names)
        name = files.tobytes()
        known = self._groups.get(name)
        if known is None or not columns <= known.ranges.keys():
            every = sorted(columns.union(known.ranges if known is not None else ()))
            known = self._read_footers(files, every)
            self._groups[name] = known
            while len(self._groups) > PLANS_KEPT:
                self._groups.popitem(last=False)
        return replace(known, ranges={column: known.ranges[column] for column in sorted(columns)})

    def _read_footers(self, files: IntArray, columns: Sequence[str]) -> RowGroups:
        """Return row groups and statistics; none of these where columns go by ids, which each file may name otherwise."""
        snapshot = self.snapshot
        by_id = snapshot.stored is not None and any(field_id(column) is not None for column in snapshot.stored)
        found = read_footers(snapshot, files.tolist(), [] if by_id else columns, self.filesystem)
        stated = snapshot.files.ranges
        unknown = {name: planning.unknown_range(len(found.rows), stated.get(name)) for name in columns}
        return replace(found, ranges=unknown) if by_id else found

    def __reduce__(self) -> tuple[Callable[[], Table], tuple[()]]:
        """Begin anew in another process, and in a copy: plans are made again there."""
        return partial(Table, snapshot=self.snapshot, filesystem=self.filesystem), ()


def _name(query: Query) -> str:
    return repr((asked(query), query.shuffle, query.checksums))


def asked(query: Query) -> dict[str, Any]:
    """Return the part of a question that decides which rows come in which order."""
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


def _counted(units: Units, reader: UnitCounter, name: str, group: Group | None) -> Units:
    """Return units with exact counts, by this process alone or by all ranks together."""
    return count_units(units, reader, name, group)


def _key(file: npt.NDArray[np.int32], row_group: npt.NDArray[np.int32]) -> IntArray:
    """Return one number for each row group of each file."""
    return file.astype(np.int64) << 32 | row_group


def _rows(snapshot: Snapshot, kept: IntArray, groups: RowGroups) -> int:
    """Return the rows of the files that are kept."""
    stated = snapshot.files.rows[kept]
    return int(stated[stated >= 0].sum() + groups.rows.sum())


def _together(first: RowGroups, second: RowGroups) -> RowGroups:
    """Return the row groups of two sets of files as one, in the order of files."""
    file = np.concatenate([first.file, second.file])
    order = np.argsort(file, kind="stable")
    ranges = {name: planning.concat_ranges(found, second.ranges[name], order) for name, found in first.ranges.items()}
    number, rows = np.concatenate([first.number, second.number]), np.concatenate([first.rows, second.rows])
    size = np.concatenate([first.size, second.size])
    return replace(first, file=file[order], number=number[order], rows=rows[order], size=size[order], ranges=ranges)
