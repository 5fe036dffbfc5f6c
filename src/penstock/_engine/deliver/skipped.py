"""Count, list, report and limit skipped rows."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from penstock._engine.batch.assemble import AssembledRows
from penstock._engine.decode.bad_cells import BadRow, bad_row_of, file_and_row
from penstock._engine.query.query import Query
from penstock.errors import ArgumentError, DataError
from penstock.model import WHOLE_FILE, Plan

MAX_LISTED = 100_000
"""Skipped rows that are listed in memory; further ones are only counted, and written to the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedRow:
    """A row that was skipped because it is bad.

    Attributes:
        epoch: The epoch.
        file: The file of the row.
        row_group: The number of its row group in the file.
        row: Its number in the file, which `Dataset.with_row_ids` calls `_row`.
        column: The column whose cell cannot be decoded; None if a map raised.
        problem: What is wrong.
    """

    epoch: int
    file: str
    row_group: int
    row: int
    column: str | None
    problem: str

    def __str__(self) -> str:
        """Return the place of the row and its problem."""
        column = "" if self.column is None else f", column {self.column!r}"
        return f"{self.file}, row group {self.row_group}, row {self.row}{column}: {self.problem}"


class SkippedRows:
    """The rows that a loader has skipped so far, on one rank.

    Attributes:
        count: The number of rows.
        plan: The plan, set once it is known.
    """

    def __init__(self, query: Query) -> None:
        """Start without skipped rows; the report is not opened yet."""
        self._query = query
        self._filesystem: pafs.FileSystem = None
        self._path = report_path(query)
        self._lock = threading.Lock()
        self._seen: dict[int, set[int]] = {}
        self._listed: list[SkippedRow] = []
        self._writable = False
        self.count = 0

    @property
    def rows(self) -> tuple[SkippedRow, ...]:
        """The rows, in the order of the epochs; at most the first hundred thousand."""
        return tuple(self._listed)

    def begin(self) -> None:
        """Create the report, so that an unwritable path raises before any row is skipped."""
        if not self._writable and self._path is not None:
            self._append(b"")
        self._writable = True

    def of(self, plan: Plan, filesystem: pafs.FileSystem) -> SkippedRows:
        """Set the plan and the filesystem of its files, and return self."""
        self.plan, self._filesystem = plan, filesystem
        return self

    def add(self, epoch: int, bad: Iterable[tuple[int, BadRow]]) -> None:
        """Add rows that were skipped in an epoch, by their row codes; a row counts once per epoch."""
        with self._lock:
            seen = self._seen.setdefault(epoch, set())
            while len(self._seen) > 2:  # noqa: PLR2004 - this epoch and the one before, which another thread may finish
                del self._seen[min(self._seen)]
            rows = []
            for code, problem in bad:
                place = file_and_row(code)
                key = place[0] << 40 | place[1]
                if key not in seen:
                    seen.add(key)
                    rows.append(self._skipped_row(epoch, place, problem))
            self.count += len(rows)
            self._listed += rows[: max(0, MAX_LISTED - len(self._listed))]
            if rows and self._path is not None:
                self._append(b"".join(self._line(row) for row in rows))
            if rows:
                self._check_limit(epoch, len(seen), rows[-1])

    def _line(self, row: SkippedRow) -> bytes:
        return json.dumps({"rank": self._query.rank, **asdict(row)}).encode() + b"\n"

    def _append(self, lines: bytes) -> None:
        """Append lines to the report in one write, so that lines of several processes do not mix."""
        assert self._path is not None  # noqa: S101 - the callers checked
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                os.write(file, lines)
            finally:
                os.close(file)
        except OSError as error:
            msg = f"on_bad_row() got report={str(self._path)!r}, which cannot be written: {error.strerror}. Give a path in an "
            raise ArgumentError(f"{msg}existing, writable directory.") from error

    def _check_limit(self, epoch: int, count: int, last: SkippedRow) -> None:
        """Raise an error if more rows were skipped than the query allows."""
        skip, ranks = self._query.skip, self._query.world_size
        assert skip is not None  # noqa: S101 - otherwise no row is skipped
        assert self.plan is not None  # noqa: S101 - set before rows are read
        rows = -(-self.plan.num_rows // ranks)
        allowed = ceil(skip.most * rows) if isinstance(skip.most, float) else skip.most
        if count > allowed:
            listed = f"loader.skipped{'' if self._path is None else f' and {self._path}'}"
            msg = (
                f"{count} of {rows} rows were skipped in epoch {epoch}, and most={skip.most} allows {allowed}. The last: "
                f"{str(last).removesuffix('.')}. "
                f"Look at what they have in common ({listed}), or allow more: .on_bad_row('skip', most=...)."
            )
            raise DataError(msg)

    def _skipped_row(self, epoch: int, place: tuple[int, int], bad: BadRow) -> SkippedRow:
        assert self.plan is not None  # noqa: S101 - set before rows are read
        file, row = place
        path = self.plan.snapshot.files.path[file].as_py()
        group = self._row_group(file, row, path)
        return SkippedRow(epoch=epoch, file=path, row_group=group, row=row, column=bad.column, problem=bad.problem)

    def _row_group(self, file: int, row: int, path: str) -> int:
        """Return the row group of a row: that of its unit, or from the footer if the unit is a whole file."""
        assert self.plan is not None  # noqa: S101 - the caller checked
        units = self.plan.units
        containing = np.flatnonzero((units.file == file) & (units.first <= row) & (row < units.first + units.rows))
        if len(containing) and units.row_group[containing[0]] != WHOLE_FILE:
            return int(units.row_group[containing[0]])
        with self._filesystem.open_input_file(path) as source:
            footer = pq.read_metadata(source)
        ends = np.cumsum([footer.row_group(at).num_rows for at in range(footer.num_row_groups)])
        return int(np.searchsorted(ends, row, side="right"))


def report_path(query: Query) -> Path | None:
    """Return the file to which a rank writes skipped rows; each of several ranks has its own.

    Example:
        >>> from penstock._engine.query.query import SkipBadRows
        >>> report_path(Query(skip=SkipBadRows(report="bad.jsonl"), rank=3, world_size=8))
        PosixPath('bad-rank3.jsonl')
    """
    skip = query.skip
    if skip is None or skip.report is None:
        return None
    path = Path(skip.report)
    return path.with_name(f"{path.stem}-rank{query.rank}{path.suffix}") if query.world_size > 1 else path


class SkippedBatches:
    """Records the skipped rows of one iteration, and counts the skipped steps.

    Attributes:
        steps: Steps skipped since the last one that was returned: whole batches, or single rows.
    """

    def __init__(self, query: Query, rows: SkippedRows | None = None) -> None:
        """Store the query, and where rows are recorded; None if bad rows raise errors."""
        self._query, self._rows = query, rows
        self.steps = self._epoch = self._first_epoch = 0
        self._pending: deque[tuple[int, tuple[int, BadRow]]] = deque()

    def record(self, chunk: AssembledRows) -> None:
        """Record the rows that are missing from a chunk."""
        if self._rows is not None:
            self._rows.begin()
            # Single rows are recorded one by one when they are returned.
            if chunk.bad and (self._query.size is not None or self._query.lazy):
                self._rows.add(chunk.rank_epoch.position.epoch, chunk.bad)

    def skips_batch(self, chunk: AssembledRows, *, record: bool = False) -> bool:
        """Return whether a batch is skipped because all its rows are bad; `record` records the rows that maps have dropped."""
        if record:
            self.record(chunk)
        if chunk.count or not chunk.bad:
            return False
        query, last = self._query, chunk.bad[-1][1]
        if query.world_size > 1 and query.ending != "uneven":
            msg = (
                f"All {len(chunk.bad)} rows of a batch are bad, the last because {last.problem} Each of the "
                f"{query.world_size} ranks must have the same number of batches, so this one cannot be skipped. Use "
                'larger batches, or last="uneven".'
            )
            raise DataError(msg)
        self._skip_steps(chunk.rank_epoch.position.epoch, 1, last)
        return True

    def begin_rows(self, chunk: AssembledRows) -> None:
        """Start to return the rows of a chunk one by one; its missing rows are recorded in their places."""
        if chunk.bad:
            assert chunk.selected is not None  # noqa: S101 - set whenever rows are bad
            steps = np.arange(len(range(chunk.start, chunk.stop, chunk.every)))
            missing = np.setdiff1d(steps, chunk.selected).tolist()
            self._epoch, self._pending = chunk.rank_epoch.position.epoch, deque(zip(missing, chunk.bad, strict=True))

    def step(self, chunk: AssembledRows, at: int) -> int:
        """Return the step of a chunk's row, after recording the missing rows before it."""
        step = at if chunk.selected is None else int(chunk.selected[at])
        self._record_pending(step)
        return step

    def skips_row(self, chunk: AssembledRows, at: int, error: BaseException) -> bool:
        """Return whether a single row is skipped because of the error that a map raised on it."""
        bad = None if self._rows is None else bad_row_of(error)
        if self._rows is None or bad is None or chunk.ids is None:
            return False
        epoch = chunk.rank_epoch.position.epoch
        self.step(chunk, at)
        self._skip_steps(epoch, 1, bad)
        self._rows.add(epoch, [(int(chunk.ids[at]), bad)])
        return True

    def end_rows(self) -> None:
        """Record the missing rows at the end of a chunk."""
        self._record_pending(None)

    def _record_pending(self, step: int | None) -> None:
        """Record the missing rows before a step, or all that remain."""
        rows = []
        while self._pending and (step is None or self._pending[0][0] < step):
            rows.append(self._pending.popleft()[1])
        if rows:
            assert self._rows is not None  # noqa: S101 - otherwise bad rows raise errors
            self._skip_steps(self._epoch, len(rows), rows[-1][1])
            self._rows.add(self._epoch, rows)

    def _skip_steps(self, epoch: int, steps: int, last: BadRow) -> None:
        """Count skipped steps; raise an error if whole epochs are skipped without end."""
        if not self.steps:
            self._first_epoch = epoch
        elif self._query.epochs is None and epoch > self._first_epoch + 1:
            msg = (
                f"All rows of a whole epoch are bad, the last because {last.problem} Endless repetition would never return a "
                "row. Repair the rows, or limit the number of epochs: .repeat(times)."
            )
            raise DataError(msg)
        self.steps += steps
