"""What is read: files pruned by partition and statistics, then row groups, and what is left laid out as units.

Pure: it is told what the table and the footers say and returns values.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock._engine.parquet.footer import RowGroups
from penstock.filters import Expr
from penstock.model import WHOLE_FILE, ColumnRange, DataFiles, IntArray, Snapshot, Units
from penstock.protocols import Shuffle

__all__ = [
    "alive",
    "fingerprint",
    "joined_range",
    "lay_units",
    "limited",
    "prune_files",
    "unknown_range",
    "unstated",
    "with_footers",
]


def prune_files(snapshot: Snapshot, condition: Expr | None) -> IntArray:
    """Return the indices of the files that may hold rows which pass a filter."""
    files = snapshot.files
    every = np.arange(len(files))
    if condition is None:
        return every
    unknown = files.rows < 0
    rows = np.where(unknown, 1, files.rows)  # where the footer alone knows, some row must be assumed
    ranges = {
        name: ColumnRange(low=found.low, high=found.high, nulls=np.where(unknown, -1, found.nulls))
        for name in sorted(condition.paths)
        if (found := files.ranges.get(name)) is not None
    }
    return np.flatnonzero(condition.prune({**ranges, **_partition_ranges(files, every, rows)}, rows).may_keep)


def _partition_ranges(files: DataFiles, index: IntArray, rows: IntArray) -> dict[str, ColumnRange]:
    """Return the partition values of some files as statistics: a value is both bounds, a null is nothing but nulls."""
    found = {}
    for name in files.partitions.column_names:
        values = files.partitions.column(name).combine_chunks().take(pa.array(index))
        null = values.is_null().to_numpy(zero_copy_only=False)
        found[name] = ColumnRange(low=values, high=values, nulls=np.where(null, rows, 0))
    return found


def unstated(files: DataFiles, kept: IntArray) -> IntArray:
    """Return those of the kept files whose rows only their footers know."""
    return kept[files.rows[kept] < 0]


def with_footers(files: DataFiles, kept: IntArray, shuffle: Shuffle) -> IntArray:
    """Return those of the kept files that state their rows but have too many to be taken whole."""
    stated = files.rows[kept]
    return kept[(stated >= 0) & (stated > shuffle.whole_file_rows)]


def lay_units(snapshot: Snapshot, kept: IntArray, groups: RowGroups, condition: Expr | None, shuffle: Shuffle) -> Units:
    """Return what is read, in stored order: the row groups of files with footers, other files whole.

    The counts of units whose filter has yet to be run are those before the filter.
    """
    files = snapshot.files
    whole = np.setdiff1d(kept, groups.file)
    rows = _extended(groups.rows, files.rows[whole])
    if condition is None:
        keep, residual = rows > 0, np.zeros(len(rows), dtype=np.bool_)
    else:
        verdict = condition.prune(_unit_ranges(files, groups, whole), rows)
        keep, residual = verdict.may_keep & (rows > 0), ~verdict.keeps_all  # a file without row groups says nothing of rows
    units = Units(
        file=_extended(groups.file, whole.astype(np.int32)),
        row_group=_extended(groups.number, np.full(len(whole), WHOLE_FILE, dtype=np.int32)),
        start=np.zeros(len(rows), dtype=np.int64),
        first=_extended(_firsts(groups), np.zeros(len(whole), dtype=np.int64)),
        rows=rows,
        counts=rows,
        residual=residual,
    )
    if len(whole) or not keep.all():
        order = np.lexsort((units.row_group, units.file)) if len(whole) else np.arange(len(rows))
        units = _mapped(units, order[keep[order]])
    if shuffle.unit_rows is not None:
        units = _split(units, shuffle.unit_rows)
    return replace(units, counts=alive(files, units))


def _extended(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return two arrays as one; the first itself where the second is empty, for there may be a million entries."""
    return np.concatenate([first, second]) if len(second) else first


def _firsts(groups: RowGroups) -> IntArray:
    """Return the number that the first row of each row group has in its file."""
    begins = np.cumsum(groups.rows)
    begins -= groups.rows
    opens = np.flatnonzero(groups.number == 0)
    begins -= np.repeat(begins[opens], np.diff(np.append(opens, len(begins))))
    return begins


def _mapped(units: Units, index: IntArray) -> Units:
    """Return some units, in another order or several times."""
    return Units(**{column.name: getattr(units, column.name)[index] for column in fields(units)})


def _unit_ranges(files: DataFiles, groups: RowGroups, whole: IntArray) -> dict[str, ColumnRange]:
    """Return statistics of row groups and then of whole files, with the partition values of each."""
    index = np.concatenate([groups.file, whole])
    rows = np.concatenate([groups.rows, files.rows[whole]])
    found = {}
    for name, of_groups in groups.ranges.items():
        of_files = files.ranges.get(name)
        count = len(whole)
        empty = ColumnRange(
            low=pa.nulls(count, of_groups.low.type), high=pa.nulls(count, of_groups.high.type), nulls=np.full(count, -1)
        )
        rest = empty if of_files is None else _picked(of_files, whole)
        found[name] = joined_range(of_groups, rest, np.arange(len(index)))
    return {**found, **_partition_ranges(files, index, rows)}


def joined_range(first: ColumnRange, second: ColumnRange, order: IntArray) -> ColumnRange:
    """Return two columns of statistics as one, in another order."""
    both = ColumnRange(
        low=_appended(first.low, second.low),
        high=_appended(first.high, second.high),
        nulls=np.concatenate([first.nulls, second.nulls]),
    )
    return _picked(both, order)


def _picked(found: ColumnRange, index: IntArray) -> ColumnRange:
    return ColumnRange(low=found.low.take(pa.array(index)), high=found.high.take(pa.array(index)), nulls=found.nulls[index])


def _appended(first: pa.Array, second: pa.Array) -> pa.Array:
    """Return two arrays as one, of the first one's type; bounds that do not fit it are unknown."""
    try:
        return pa.concat_arrays([first, second.cast(first.type)])
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.concat_arrays([first, pa.nulls(len(second), first.type)])


def unknown_range(count: int, like: ColumnRange | None) -> ColumnRange:
    """Return statistics that say nothing, in the types of others."""
    low, high = (pa.null(), pa.null()) if like is None else (like.low.type, like.high.type)
    return ColumnRange(low=pa.nulls(count, low), high=pa.nulls(count, high), nulls=np.full(count, -1))


def _split(units: Units, most: int) -> Units:
    """Return units cut into equal ranges of at most `most` rows."""
    parts = -(-units.rows // most)
    number = np.arange(int(parts.sum())) - np.repeat(np.cumsum(parts) - parts, parts)
    found = _mapped(units, np.repeat(np.arange(len(units)), parts))
    parts = np.repeat(parts, parts)
    begin, end = number * found.rows // parts, (number + 1) * found.rows // parts
    return replace(found, start=found.start + begin, first=found.first + begin, rows=end - begin)


def alive(files: DataFiles, units: Units) -> IntArray:
    """Return how many rows of each unit are not deleted."""
    if not files.deletes:
        return units.rows
    found = units.rows.copy()
    for file, deleted in files.deletes.items():
        low, high = np.searchsorted(units.file, [file, file + 1])
        first, rows = units.first[low:high], units.rows[low:high]
        found[low:high] -= np.searchsorted(deleted, first + rows) - np.searchsorted(deleted, first)
    return found


def limited(counts: IntArray, limit: int | None) -> IntArray:
    """Return counts of which only the first `limit` rows in stored order are left.

    Example:
        >>> limited(np.array([3, 4, 5]), 5).tolist()
        [3, 2, 0]
    """
    if limit is None or limit >= counts.sum():
        return counts
    ends = np.minimum(np.cumsum(counts), limit)
    return np.diff(ends, prepend=0)


def fingerprint(snapshot: Snapshot, units: Units, query: Mapping[str, Any], settled: Mapping[str, Any]) -> str:
    """Return the name of a plan: two parts, of the files and rows, and of the question that is asked of them.

    Everything that decides which rows come in which order is in it, and nothing else. `settled` is what follows from the
    files' sizes, and so belongs to the first part.
    """
    files = hashlib.blake2b(json.dumps(settled, sort_keys=True).encode(), digest_size=8)
    read = np.unique(units.file)
    for column in (snapshot.files.path, snapshot.files.stamp):
        _, ends, text = column.take(pa.array(read)).buffers()
        offsets = np.frombuffer(ends, dtype=np.int32, count=len(read) + 1)
        files.update(offsets.astype("<i4").data)
        files.update(memoryview(text or b"")[: offsets[-1]])
    for array in (units.file, units.row_group, units.start, units.rows, units.counts):
        files.update(np.ascontiguousarray(array, dtype="<i8").data)
    for file in np.intersect1d(read, np.fromiter(snapshot.files.deletes, dtype=np.int64)).tolist():
        files.update(np.int64(file).astype("<i8").tobytes())
        files.update(np.ascontiguousarray(snapshot.files.deletes[file], dtype="<i8").data)
    asked = hashlib.blake2b(json.dumps(query, sort_keys=True).encode(), digest_size=8)
    return f"{files.hexdigest()}-{asked.hexdigest()}"
