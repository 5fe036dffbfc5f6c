"""Counting before ordering: rows kept per unit under a row filter, or sequences, counted once and kept on disk."""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import IO, Protocol, TypeVar
from zipfile import BadZipFile

import numpy as np

from penstock._engine.plan.group import Group
from penstock._engine.plan.sequence_links import Linking, NotInOrderError
from penstock._engine.plan.sequence_times import Moments, Timeline
from penstock._engine.read.reader import Unit
from penstock._engine.runtime.threads import Priority, ThreadPool, default_threads
from penstock._engine.storage.filesystem import cache_directory
from penstock.model import IntArray, SequenceLinks, Units

__all__ = ["Counts", "counted", "counted_together", "linked"]

Answer = TypeVar("Answer")


class Counts(Protocol):
    """What can count a unit."""

    def count(self, unit: Unit) -> int:
        """Return how many rows, or sequences, are handed out of a unit."""
        ...


def counted(units: Units, reader: Counts, name: str) -> Units:
    """Return units with exact counts, from disk where they were counted before under the same name.

    `name` must change whenever a count could: it is made of the files and the filter.
    """
    open_units = np.flatnonzero(units.residual)
    if not len(open_units):
        return units
    path = cache_directory() / "counts" / f"{name}.npy"
    found = _kept(path, len(open_units))
    if found is None:
        found = counts_of(units, open_units, reader)
        _keep(path, partial(np.save, arr=found, allow_pickle=False))
    counts = units.counts.copy()
    counts[open_units] = found
    return replace(units, counts=counts)


def counted_together(units: Units, reader: Counts, name: str, group: Group) -> Units:
    """Return units with exact counts, each rank having counted its share; counts kept on disk are those of rank 0."""
    open_units = np.flatnonzero(units.residual)
    if not len(open_units):
        return units
    path = cache_directory() / "counts" / f"{name}.npy"
    found = group.share(lambda: _kept(path, len(open_units)))
    if found is None:
        shares = group.gather(lambda: counts_of(units, open_units[group.rank :: group.size], reader))
        found = np.zeros(len(open_units), dtype=np.int64)
        for rank, share in enumerate(shares):
            found[rank :: group.size] = share
        if group.rank == 0:
            _keep(path, partial(np.save, arr=found, allow_pickle=False))
    counts = units.counts.copy()
    counts[open_units] = found
    return replace(units, counts=counts)


def linked(units: Units, timeline: Timeline, name: str, group: Group | None = None) -> SequenceLinks:
    """Return the sequences that begin in each unit, where they may go on in the next, and what lies at the borders.

    Units are looked at in stored order, so of several ranks one does it for all.
    """

    def found() -> SequenceLinks:
        path = cache_directory() / "counts" / f"{name}.npz"
        chain = _kept_chain(path, len(units))
        if chain is None:
            chain = _linked(units, timeline)
            _keep(path, partial(np.savez, **{column.name: getattr(chain, column.name) for column in fields(SequenceLinks)}))
        return chain

    return found() if group is None else group.share(found)


def _linked(units: Units, timeline: Timeline) -> SequenceLinks:
    linking = Linking(timeline.rule, len(units))

    def look(index: int) -> tuple[IntArray, Moments]:
        part = timeline.read(Unit.of(units, index), ())
        stored = np.arange(part.count) if part.selected is None else part.selected
        return stored, timeline.moments(Unit.of(units, index), part)

    several = range(len(units) if timeline.rule.length <= int(units.rows.sum()) else 0)  # or there is no sequence to look for
    for index, (stored, found) in enumerate(_in_turn(look, several)):
        try:
            linking.add(index, stored, found.times, found.groups, found.names)
        except NotInOrderError as error:
            raise timeline.not_in_order(error, units) from error
    return linking.chain()


def counts_of(units: Units, which: IntArray, reader: Counts) -> IntArray:
    """Return the counts of some units, counted on threads."""
    found = _in_turn(lambda index: reader.count(Unit.of(units, index)), which.tolist())
    return np.fromiter(found, dtype=np.int64, count=len(which))


def _in_turn(task: Callable[[int], Answer], which: Iterable[int]) -> Iterator[Answer]:
    """Yield what a task returns for each unit, in their order; it is run on threads, a few units ahead."""
    pool = ThreadPool(default_threads())
    try:
        tasks = deque[Future[Answer]]()
        for index in which:
            tasks.append(pool.submit(Priority.READ, partial(task, index)))
            if len(tasks) > 2 * pool.threads:
                yield tasks.popleft().result()
        while tasks:
            yield tasks.popleft().result()
    finally:
        pool.close()


def _kept(path: Path, expected: int) -> IntArray | None:
    """Return counts kept on disk, or None where there are none that fit."""
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    fits = isinstance(found, np.ndarray) and found.shape == (expected,) and found.dtype == np.int64
    return found if fits and (found >= 0).all() else None


def _kept_chain(path: Path, expected: int) -> SequenceLinks | None:
    """Return what was kept on disk of the borders of units, or None where it does not fit."""
    try:
        with np.load(path, allow_pickle=False) as kept:
            found = {column.name: kept[column.name] for column in fields(SequenceLinks)}
    except (OSError, ValueError, EOFError, KeyError, AttributeError, TypeError, BadZipFile):
        return None
    whole = all(values.ndim == 1 and (name == "time" or values.dtype == np.int64) for name, values in found.items())
    entries = {len(found[name]) for name in ("group", "unit", "row", "time")}
    fits = whole and len(entries) == 1 and len(found["held_unit"]) == len(found["held_row"])
    return SequenceLinks(**found) if fits and len(found["counts"]) == expected and (found["counts"] >= 0).all() else None


def _keep(path: Path, write: Callable[[IO[bytes]], None]) -> None:
    """Keep counts on disk; readers see all of them or none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as target:
                write(target)
            Path(temporary).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
    except OSError as error:
        warnings.warn(
            f"The counts of a row filter cannot be kept in {path.parent}: {error}. They will be counted again next time. "
            "Set PENSTOCK_CACHE_DIR to a directory that can be written.",
            RuntimeWarning,
            stacklevel=2,
        )
