"""An opened table: one snapshot, where its bytes lie, and the plans made of it so far."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from pyarrow import fs as pafs

from penstock._engine import plan as planning
from penstock._engine.count import counted
from penstock._engine.footers import RowGroups, read_footers
from penstock._engine.order import ORDER
from penstock._engine.question import Question
from penstock._engine.read import Reader
from penstock.model import WHOLE_FILE, IntArray, Plan, Snapshot, Units
from penstock.protocols import Shuffle

__all__ = ["Counter", "Laid", "Planned", "Pruned", "Table", "asked"]

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Planned:
    """A plan, the shuffle with its numbers fixed, the reader that carries the plan out, and what was left out of it."""

    plan: Plan
    shuffle: Shuffle
    reader: Reader
    pruned: Pruned


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Laid:
    """What a question may read, with the rows that pass its filter not counted yet."""

    units: Units
    shuffle: Shuffle
    pruned: Pruned


Counter: TypeAlias = Callable[[Units, Reader, str], Units]
"""What counts the rows that pass a filter: units, what reads them, and the name that counts are kept under."""


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

    def plan(self, question: Question) -> Planned:
        """Return what a question reads; footers are read and rows counted the first time it is asked.

        Raises:
            DataError: If a file that is needed cannot be read.
        """
        found = self._plans.get(_name(question))
        if found is None:
            return self.settle(question, self.laid(question), counted)
        self._plans.move_to_end(_name(question))
        return found

    def laid(self, question: Question) -> Laid:
        """Return what a question may read, before its rows are counted; footers are read.

        Raises:
            DataError: If a file that is needed cannot be read.
        """
        snapshot, condition = self.snapshot, question.condition
        kept = planning.prune_files(snapshot, condition)
        groups = self._footers(planning.unstated(snapshot.files, kept), question)
        shuffle = question.shuffle.settle(*_size(snapshot, kept, groups))
        more = self._footers(planning.with_footers(snapshot.files, kept, shuffle), question)
        every = _together(groups, more)
        units = planning.lay_units(snapshot, kept, every, condition, shuffle)
        pruned = Pruned(
            files=len(snapshot.files),
            files_kept=len(kept),
            groups=len(every.rows),
            groups_kept=len(np.unique(_key(units.file, units.row_group)[units.row_group != WHOLE_FILE])),
            rows=_size(snapshot, kept, groups)[0],
        )
        return Laid(units=units, shuffle=shuffle, pruned=pruned)

    def reader(self, question: Question) -> Reader:
        """Return what reads the rows of a question."""
        return Reader(snapshot=self.snapshot, filesystem=self.filesystem, condition=question.condition, lazy=question.lazy)

    def settle(self, question: Question, laid: Laid, counter: Counter) -> Planned:
        """Return the plan of a question whose rows are counted now, and keep it for when it is asked again."""
        snapshot, condition, units, reader = self.snapshot, question.condition, laid.units, self.reader(question)
        if condition is not None and not question.lazy:
            name = planning.fingerprint(snapshot, units, {"filter": condition.describe()}, {})
            units = counter(units, reader, name)
        plan = Plan(
            snapshot=snapshot,
            units=units,
            counts=planning.limited(units.counts, question.limit),
            fingerprint=planning.fingerprint(snapshot, units, asked(question), dict(laid.shuffle.describe())),
        )
        found = Planned(plan=plan, shuffle=laid.shuffle, reader=reader, pruned=laid.pruned)
        self._plans[_name(question)] = found
        while len(self._plans) > PLANS_KEPT:
            self._plans.popitem(last=False)
        return found

    def _footers(self, files: IntArray, question: Question) -> RowGroups:
        """Return the row groups of some files, with the statistics the question's filter asks about; read once."""
        paths = question.condition.paths if question.condition is not None else frozenset()
        columns = paths.difference(self.snapshot.files.partitions.column_names)
        name = files.tobytes()
        known = self._groups.get(name)
        if known is None or not columns <= known.ranges.keys():
            every = sorted(columns.union(known.ranges if known is not None else ()))
            known = read_footers(self.snapshot, files.tolist(), every, self.filesystem)
            self._groups[name] = known
            while len(self._groups) > PLANS_KEPT:
                self._groups.popitem(last=False)
        return replace(known, ranges={column: known.ranges[column] for column in sorted(columns)})

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs: plans are made again there."""
        return {"snapshot": self.snapshot, "filesystem": self.filesystem, "_plans": OrderedDict(), "_groups": OrderedDict()}


def _name(question: Question) -> str:
    return repr((asked(question), question.shuffle))


def asked(question: Question) -> dict[str, Any]:
    """Return the part of a question that decides which rows come in which order."""
    return {
        "order": ORDER,
        "filter": question.condition.describe() if question.condition is not None else None,
        "lazy": question.lazy,
        "limit": question.limit,
        "shuffle": dict(question.shuffle.describe()),
        "seed": question.seed,
    }


def _key(file: npt.NDArray[np.int32], row_group: npt.NDArray[np.int32]) -> IntArray:
    """Return one number for each row group of each file."""
    return file.astype(np.int64) << 32 | row_group


def _size(snapshot: Snapshot, kept: IntArray, groups: RowGroups) -> tuple[int, int]:
    """Return the rows and bytes of the files that are kept."""
    stated = snapshot.files.rows[kept]
    return int(stated[stated >= 0].sum() + groups.rows.sum()), int(snapshot.files.size[kept].sum())


def _together(first: RowGroups, second: RowGroups) -> RowGroups:
    """Return the row groups of two sets of files as one, in the order of files."""
    file = np.concatenate([first.file, second.file])
    order = np.argsort(file, kind="stable")
    ranges = {name: planning.joined_range(found, second.ranges[name], order) for name, found in first.ranges.items()}
    number, rows = np.concatenate([first.number, second.number]), np.concatenate([first.rows, second.rows])
    size = np.concatenate([first.size, second.size])
    return replace(first, file=file[order], number=number[order], rows=rows[order], size=size[order], ranges=ranges)
