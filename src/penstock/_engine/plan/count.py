"""Count the rows of units that pass a filter, or their sequences; later plans read the counts from the disk cache."""

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

from penstock._engine.plan.sequence_links import NotInOrderError, SequenceLinker
from penstock._engine.plan.sequence_times import RowTimes, SequenceFinder
from penstock._engine.read.reader import Unit
from penstock._engine.runtime.threads import Priority, ThreadPool, default_threads
from penstock._engine.storage.filesystem import cache_directory
from penstock.model import IntArray, SequenceLinks, Units

Result = TypeVar("Result")


class Group(Protocol):
    """A group of ranks, which all make the same calls in the same order.

    An error on one rank is raised on all, so no rank waits forever.
    """

    @property
    def rank(self) -> int:
        """The number of this rank."""
        ...

    @property
    def size(self) -> int:
        """The number of ranks."""
        ...

    def share(self, compute: Callable[[], Result], /) -> Result:
        """Return on every rank the result of the function on rank 0; other ranks do not call it."""
        ...

    def gather(self, compute: Callable[[], Result], /) -> list[Result]:
        """Return on every rank the results of the function on each rank."""
        ...


class UnitCounter(Protocol):
    """An object that counts the rows or sequences of a unit."""

    def count(self, unit: Unit) -> int:
        """Return the number of rows, or sequences, that a unit yields."""
        ...


def count_units(units: Units, counter: UnitCounter, name: str, group: Group | None = None) -> Units:
    """Return units with exact counts, from the disk cache if an earlier run stored them under the same name.

    In a group, each rank counts a share of the units, and rank 0 reads and writes the cache. `name` must change whenever a
    count could change: it is derived from the files and the filter.
    """
    uncounted = np.flatnonzero(units.residual)
    if not len(uncounted):
        return units
    path = cache_directory() / "counts" / f"{name}.npy"
    load = partial(_load_counts, path, len(uncounted))
    count_units = load() if group is None else group.share(load)
    if count_units is None:
        if group is None:
            count_units = counts_of(units, uncounted, counter)
        else:
            shares = group.gather(lambda: counts_of(units, uncounted[group.rank :: group.size], counter))
            count_units = np.zeros(len(uncounted), dtype=np.int64)
            for rank, share in enumerate(shares):
                count_units[rank :: group.size] = share
        if group is None or group.rank == 0:
            _save(path, partial(np.save, arr=count_units, allow_pickle=False))
    counts = units.counts.copy()
    counts[uncounted] = count_units
    return replace(units, counts=counts)


def link_sequences(units: Units, finder: SequenceFinder, name: str, group: Group | None = None) -> SequenceLinks:
    """Return the number of sequences that begin in each unit, and the links of those that continue in the next unit.

    Units are read in stored order, so in a group rank 0 does it for all.
    """

    def load_or_link() -> SequenceLinks:
        path = cache_directory() / "counts" / f"{name}.npz"
        links = _load_links(path, len(units))
        if links is None:
            links = _link(units, finder)
            _save(path, partial(np.savez, **{column.name: getattr(links, column.name) for column in fields(SequenceLinks)}))
        return links

    return load_or_link() if group is None else group.share(load_or_link)


def _link(units: Units, finder: SequenceFinder) -> SequenceLinks:
    linker = SequenceLinker(finder.rule, len(units))

    def read(index: int) -> tuple[IntArray, RowTimes]:
        part = finder.read(Unit.of(units, index), ())
        stored = np.arange(part.count) if part.selected is None else part.selected
        return stored, finder.row_times(Unit.of(units, index), part)

    # A table with fewer rows than a sequence has none, and need not be read.
    indexes = range(len(units) if finder.rule.length <= int(units.rows.sum()) else 0)
    for index, (stored, rows) in enumerate(_map_ordered(read, indexes)):
        try:
            linker.add(index, stored, rows.times, rows.groups, rows.names)
        except NotInOrderError as error:
            raise finder.order_error(error, units) from error
    return linker.links()


def counts_of(units: Units, indexes: IntArray, counter: UnitCounter) -> IntArray:
    """Return the counts of some units, counted on threads."""
    counts = _map_ordered(lambda index: counter.count(Unit.of(units, index)), indexes.tolist())
    return np.fromiter(counts, dtype=np.int64, count=len(indexes))


def _map_ordered(task: Callable[[int], Result], indexes: Iterable[int]) -> Iterator[Result]:
    """Yield the results of a task for each index in order; threads run a few tasks ahead."""
    pool = ThreadPool(default_threads())
    try:
        tasks = deque[Future[Result]]()
        for index in indexes:
            tasks.append(pool.submit(Priority.READ, partial(task, index)))
            if len(tasks) > 2 * pool.threads:
                yield tasks.popleft().result()
        while tasks:
            yield tasks.popleft().result()
    finally:
        pool.close()


def _load_counts(path: Path, expected: int) -> IntArray | None:
    """Return cached counts; None if there are none, or not as many as expected."""
    try:
        counts = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    valid = isinstance(counts, np.ndarray) and counts.shape == (expected,) and counts.dtype == np.int64
    return counts if valid and (counts >= 0).all() else None


def _load_links(path: Path, expected: int) -> SequenceLinks | None:
    """Return cached links; None if there are none, or they do not fit."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {column.name: file[column.name] for column in fields(SequenceLinks)}
    except (OSError, ValueError, EOFError, KeyError, AttributeError, TypeError, BadZipFile):
        return None
    valid = all(values.ndim == 1 and (name == "time" or values.dtype == np.int64) for name, values in arrays.items())
    lengths = {len(arrays[name]) for name in ("group", "unit", "row", "time")}
    valid = valid and len(lengths) == 1 and len(arrays["held_unit"]) == len(arrays["held_row"])
    return SequenceLinks(**arrays) if valid and len(arrays["counts"]) == expected and (arrays["counts"] >= 0).all() else None


def _save(path: Path, write: Callable[[IO[bytes]], None]) -> None:
    """Write a file of the cache; a reader sees the whole file or none."""
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
            f"The counts of a row filter cannot be cached in {path.parent}: {error}. The next run will count again. "
            "Set PENSTOCK_CACHE_DIR to a writable directory.",
            RuntimeWarning,
            stacklevel=2,
        )
