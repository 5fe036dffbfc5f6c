"""Choose what to read: prune files by partition and statistics, then row groups, and make units of the rest.

Pure: functions of the table's metadata and the footers.
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


def prune_files(snapshot: Snapshot, condition: Expr | None) -> IntArray:
    """Return the indices of the files that may have rows which pass a filter."""
    files = snapshot.files
    every = np.arange(len(files))
    if condition is None:
        return every
    unknown = files.rows < 0
    rows = np.where(unknown, 1, files.rows)  # a file whose row count is only in its footer must not look empty
    ranges = {
        name: ColumnRange(low=known.low, high=known.high, nulls=np.where(unknown, -1, known.nulls))
        for name in sorted(condition.paths)
        if (known := files.ranges.get(name)) is not None
    }
    return np.flatnonzero(condition.prune({**ranges, **_partition_ranges(files, every, rows)}, rows).may_keep)


def _partition_ranges(files: DataFiles, index: IntArray, rows: IntArray) -> dict[str, ColumnRange]:
    """Return the partition values of some files as statistics: a value is both bounds, a null stands for all rows."""
    ranges = {}
    for name in files.partitions.column_names:
        values = files.partitions.column(name).combine_chunks().take(pa.array(index))
        null = values.is_null().to_numpy(zero_copy_only=False)
        ranges[name] = ColumnRange(low=values, high=values, nulls=np.where(null, rows, 0))
    return ranges


def without_row_count(files: DataFiles, selected: IntArray) -> IntArray:
    """Return the selected files whose row count is only in their footer."""
    return selected[files.rows[selected] < 0]


def files_to_split(files: DataFiles, selected: IntArray, shuffle: Shuffle) -> IntArray:
    """Return the selected files with a known row count that is too large to read the file as one unit."""
    rows = files.rows[selected]
    return selected[(rows >= 0) & (rows > shuffle.whole_file_rows)]


def make_units(snapshot: Snapshot, selected: IntArray, groups: RowGroups, condition: Expr | None, shuffle: Shuffle) -> Units:
    """Return the units to read, in stored order: the row groups of files with footers, other files whole.

    Units that the filter must still check have the count of all their rows.
    """
    files = snapshot.files
    whole = np.setdiff1d(selected, groups.file)
    rows = _concat(groups.rows, files.rows[whole])
    if condition is None:
        keep, residual = rows > 0, np.zeros(len(rows), dtype=np.bool_)
    else:
        verdict = condition.prune(_unit_ranges(files, groups, whole), rows)
        keep, residual = verdict.may_keep & (rows > 0), ~verdict.keeps_all  # unknown row counts are not positive
    units = Units(
        file=_concat(groups.file, whole.astype(np.int32)),
        row_group=_concat(groups.number, np.full(len(whole), WHOLE_FILE, dtype=np.int32)),
        start=np.zeros(len(rows), dtype=np.int64),
        first=_concat(_first_rows(groups), np.zeros(len(whole), dtype=np.int64)),
        rows=rows,
        counts=rows,
        residual=residual,
    )
    if len(whole) or not keep.all():
        order = np.lexsort((units.row_group, units.file)) if len(whole) else np.arange(len(rows))
        units = _take_units(units, order[keep[order]])
    if shuffle.unit_rows is not None:
        units = _split(units, shuffle.unit_rows)
    return replace(units, counts=undeleted_rows(files, units))


def _concat(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return two arrays as one, without a copy if the second is empty: there may be a million entries."""
    return np.concatenate([first, second]) if len(second) else first


def _first_rows(groups: RowGroups) -> IntArray:
    """Return the number of each row group's first row in its file."""
    starts = np.cumsum(groups.rows)
    starts -= groups.rows
    first_groups = np.flatnonzero(groups.number == 0)
    starts -= np.repeat(starts[first_groups], np.diff(np.append(first_groups, len(starts))))
    return starts


def _take_units(units: Units, index: IntArray) -> Units:
    """Return units by index, in any order, also repeatedly."""
    return Units(**{column.name: getattr(units, column.name)[index] for column in fields(units)})


def _unit_ranges(files: DataFiles, groups: RowGroups, whole: IntArray) -> dict[str, ColumnRange]:
    """Return the statistics of row groups and then of whole files, with their partition values."""
    index = np.concatenate([groups.file, whole])
    rows = np.concatenate([groups.rows, files.rows[whole]])
    ranges = {}
    for name, of_groups in groups.ranges.items():
        of_files = files.ranges.get(name)
        rest = unknown_range(len(whole), of_groups) if of_files is None else _take_range(of_files, whole)
        ranges[name] = concat_ranges(of_groups, rest, np.arange(len(index)))
    return {**ranges, **_partition_ranges(files, index, rows)}


def concat_ranges(first: ColumnRange, second: ColumnRange, order: IntArray) -> ColumnRange:
    """Return the statistics of two sets of rows as one, in the given order."""
    both = ColumnRange(
        low=_concat_bounds(first.low, second.low),
        high=_concat_bounds(first.high, second.high),
        nulls=np.concatenate([first.nulls, second.nulls]),
    )
    return _take_range(both, order)


def _take_range(statistics: ColumnRange, index: IntArray) -> ColumnRange:
    low, high = (bound.take(pa.array(index)) for bound in (statistics.low, statistics.high))
    return ColumnRange(low=low, high=high, nulls=statistics.nulls[index])


def _concat_bounds(first: pa.Array, second: pa.Array) -> pa.Array:
    """Return two arrays of bounds as one, of the first one's type; bounds that do not fit that type become null."""
    try:
        return pa.concat_arrays([first, second.cast(first.type)])
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.concat_arrays([first, pa.nulls(len(second), first.type)])


def unknown_range(count: int, like: ColumnRange | None) -> ColumnRange:
    """Return statistics without any information, in the types of `like`."""
    low, high = (pa.null(), pa.null()) if like is None else (like.low.type, like.high.type)
    return ColumnRange(low=pa.nulls(count, low), high=pa.nulls(count, high), nulls=np.full(count, -1))


def _split(units: Units, max_rows: int) -> Units:
    """Return units cut into equal ranges of at most `max_rows` rows."""
    parts = -(-units.rows // max_rows)
    number = np.arange(int(parts.sum())) - np.repeat(np.cumsum(parts) - parts, parts)
    repeated = _take_units(units, np.repeat(np.arange(len(units)), parts))
    parts = np.repeat(parts, parts)
    begin, end = number * repeated.rows // parts, (number + 1) * repeated.rows // parts
    return replace(repeated, start=repeated.start + begin, first=repeated.first + begin, rows=end - begin)


def undeleted_rows(files: DataFiles, units: Units) -> IntArray:
    """Return the number of rows of each unit that are not deleted."""
    if not files.deletes:
        return units.rows
    counts = units.rows.copy()
    for file, deleted in files.deletes.items():
        low, high = np.searchsorted(units.file, [file, file + 1])
        first, rows = units.first[low:high], units.rows[low:high]
        counts[low:high] -= np.searchsorted(deleted, first + rows) - np.searchsorted(deleted, first)
    return counts


def limit_counts(counts: IntArray, limit: int | None) -> IntArray:
    """Return counts that keep only the first `limit` rows in stored order.

    Example:
        >>> limit_counts(np.array([3, 4, 5]), 5).tolist()
        [3, 2, 0]
    """
    if limit is None or limit >= counts.sum():
        return counts
    ends = np.minimum(np.cumsum(counts), limit)
    return np.diff(ends, prepend=0)


def fingerprint(snapshot: Snapshot, units: Units, query: Mapping[str, Any], settled: Mapping[str, Any]) -> str:
    """Return the fingerprint of a plan, in two parts: of the files and rows, and of the query.

    It covers everything that decides which rows come in which order, and nothing else. `settled` has the options that follow
    from the files' sizes, so it belongs to the first part.
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
    options = hashlib.blake2b(json.dumps(query, sort_keys=True).encode(), digest_size=8)
    return f"{files.hexdigest()}-{options.hexdigest()}"
