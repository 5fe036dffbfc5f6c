"""Counting before ordering: rows kept per unit under a row filter, counted once and kept on disk."""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections import deque
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from penstock._engine.agree import Group
from penstock._engine.execute import Pool, Urgency, default_threads
from penstock._engine.read import Reader, Unit
from penstock._engine.storage import cache_directory
from penstock.model import IntArray, Units

__all__ = ["counted", "counted_together"]


def counted(units: Units, reader: Reader, name: str) -> Units:
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
        _keep(path, found)
    counts = units.counts.copy()
    counts[open_units] = found
    return replace(units, counts=counts)


def counted_together(units: Units, reader: Reader, name: str, group: Group) -> Units:
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
            _keep(path, found)
    counts = units.counts.copy()
    counts[open_units] = found
    return replace(units, counts=counts)


def counts_of(units: Units, which: IntArray, reader: Reader) -> IntArray:
    """Return the counts of some units, counted on threads."""
    pool = Pool(default_threads())
    try:
        tasks = deque[Future[int]]()
        found = []
        for index in which.tolist():
            tasks.append(pool.submit(Urgency.READ, partial(reader.count, Unit.of(units, index))))
            if len(tasks) > 2 * pool.threads:
                found.append(tasks.popleft().result())
        found += [task.result() for task in tasks]
    finally:
        pool.close()
    return np.array(found, dtype=np.int64)


def _kept(path: Path, expected: int) -> IntArray | None:
    """Return counts kept on disk, or None where there are none that fit."""
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    fits = isinstance(found, np.ndarray) and found.shape == (expected,) and found.dtype == np.int64
    return found if fits and (found >= 0).all() else None


def _keep(path: Path, counts: IntArray) -> None:
    """Keep counts on disk; readers see all of them or none."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as target:
                np.save(target, counts, allow_pickle=False)
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
